"""The types of the package are right, as strict mypy sees them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "jax", "numpy")), reason="mypy needs PyTorch and JAX"
)
def test_mypy_finds_nothing(tmp_path):
    folder = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), "partita"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
