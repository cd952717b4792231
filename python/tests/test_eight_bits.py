"""Matmuls in 8 bits through ``precision=``: beside a loop of PyTorch that rounds the same operands by PyTorch's own types."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402


def script():
    path = Path(__file__).resolve().parents[2] / "tests" / "precision" / "make_f8.py"
    specification = importlib.util.spec_from_file_location("make_f8", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


THEIRS = script()
QUANTISE = {
    "mxfp8": lambda: THEIRS.Blocks(32, True, "e5m2"),
    "f8-block": lambda: THEIRS.Blocks(128, False, "e4m3"),
    "f8-delayed": lambda: THEIRS.Delayed(),
}
X = THEIRS.wave(20, [THEIRS.ROWS, 64], 1.0)
Y = torch.tensor([(7 * i + i * i) % 8 for i in range(THEIRS.ROWS)])


def model():
    """The classifier of the script, with its parameters."""
    module = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            parameter.copy_(THEIRS.wave(k, THEIRS.SHAPES[k], 0.2))
    return partita.load(module, (X, Y), loss=F.cross_entropy)


def losses(precision, mesh, plan=None, steps=THEIRS.STEPS):
    rule = partita.optim.SGD(lr=THEIRS.RATE, momentum=0.9)
    trainer = partita.Trainer(model(), plan, mesh, rule, precision=precision)
    found = [trainer.step((X, Y)) for _ in range(steps)]
    assert all(value.dtype == torch.float32 for value in trainer.state_dict().values())
    return found


@pytest.mark.parametrize("precision", QUANTISE)
def test_losses_are_those_of_a_loop_that_rounds_alike(precision):
    expected = THEIRS.run(QUANTISE[precision]())
    found = losses(precision, "dp=1")
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found == pytest.approx(expected, rel=1e-2)
    # Rounding to 8 bits shows: in full precision the losses are others.
    assert abs(losses(None, "dp=1", steps=1)[0] - found[0]) > 1e-4 * found[0]


@pytest.mark.parametrize("precision", QUANTISE)
@pytest.mark.parametrize(("mesh", "plan"), [("dp=2", None), ("tp=2", {"0": "colwise", "2": "rowwise"}), ("fsdp=2", None)])
def test_every_mesh_rounds_alike(precision, mesh, plan):
    expected = losses(precision, "dp=1", steps=4)
    assert losses(precision, mesh, plan, steps=4) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", QUANTISE)
def test_a_schedule_is_verified_within_the_bound_of_the_type(precision):
    schedule = partita.Schedule(model(), "tp=2", {"0": "colwise", "2": "rowwise"}, precision=precision)
    report = schedule.verify()
    assert report and report.tolerance == (2.0**-5 if precision == "f8-block" else 2.0**-4)


def test_a_module_keeps_its_precision():
    """With both layers left out, the step is that of full precision."""
    plan = {"0": "precision(f32)", "2": "precision(f32)"}
    assert losses("mxfp8", "dp=1", plan, steps=4) == losses(None, "dp=1", steps=4)
