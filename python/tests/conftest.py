"""Where the recorded models are."""

from pathlib import Path

import pytest

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "pt2"


@pytest.fixture
def recorded():
    """The path of a recorded model by its name."""
    return lambda name: RECORDED / f"{name}.pt2"
