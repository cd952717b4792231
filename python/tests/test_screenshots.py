"""The pictures of the documents are still what the commands draw, where Chromium is installed."""

import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import partita

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "screenshots.py"


def script():
    specification = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_reports_look_as_in_the_documents():
    found = [name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)]
    if not found:
        pytest.skip("Chromium is not installed")
    command = [sys.executable, SCRIPT, "--check", f"{sys.executable} -m partita", found[0]]
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pictures_of_different_pages_are_told_apart():
    screenshots = script()
    kept = screenshots.IMAGES / "report-phone.png"
    assert screenshots.difference(kept, kept) == 0
    (size, means) = screenshots.squares(kept)
    assert size == (420, 1100) and len(means) == (420 // 16) * (1100 // 16)
    # A page of one colour is another picture.
    dark = min(means)
    assert sum(mean - dark for mean in means) / len(means) > screenshots.NEAR


def test_the_notebook_runs_and_its_values_draw_themselves(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    cells = json.loads((SCRIPT.parents[1] / "python" / "examples" / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n".join(code))
    values = runpy.run_path(str(tmp_path / "cells.py"))
    assert "<table" in values["sch"]._repr_html_()
    # Four instructions of each rank and more are boxes of the drawing.
    assert values["prof"]._repr_html_().count("<rect") > 8


def test_a_line_of_a_notebook_is_named_by_its_cell(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch

    # What IPython says of the files that it makes of cells.
    names = {"<made of a cell>": ("Cell", "In[2]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    model = partita.load(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(2, 4))
    schedule = partita.Schedule(model, "tp=2")
    exec(compile("\nschedule['0'].style('colwise')", "<made of a cell>", "exec"), {"schedule": schedule})
    assert "In[2]:2" in schedule.explain() and "In[2]:2" in schedule._repr_html_()
