"""The tutorial, as typed in: its files are written, its commands are run in order, and print what it says.

A block under ``<!-- file: NAME -->`` is a file. In a block of console, a line with ``$`` is a command; the lines below it
are what it prints, where ``..`` stands for any text and a line ``..`` for any lines.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import partita

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "TUTORIAL.md"
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def test_the_tutorial_can_be_typed_in_to_its_last_line(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    package = str(Path(partita.__file__).resolve().parents[1])
    environment, commands = os.environ | {"COLUMNS": "200", "PYTHONPATH": package}, 0
    for name, language, text in BLOCK.findall(TUTORIAL.read_text()):
        if name:
            (tmp_path / name).write_text(text)
            continue
        assert language == "console", "every block is a file or commands"
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            program, *arguments = shlex.split(line)
            interpreter = {"python": [sys.executable], "partita": [sys.executable, "-m", "partita"]}[program]
            command = [*interpreter, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            pattern = re.sub(r"\.\.$", "...", expected, flags=re.MULTILINE)
            same = doctest.OutputChecker().check_output(pattern, done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert same, f"{line}\nprints\n{done.stdout}\nnot\n{expected}"
            commands += 1
    assert commands > 10
    for made in ("report.html", "found.toml", "trace.json", "runs/small", "log/plugins/profile/run-1/rank-3.pt.trace.json"):
        assert (tmp_path / made).exists(), made
