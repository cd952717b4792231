"""Twenty modules of the sweep: random ones that have each of the edges where built programs meet loops, and real ones.

`scripts/sweep modules` trains all 230 of them, on more meshes. Each is trained for three steps under a plan, and outputs,
gradients, buffers and parameters are compared with PyTorch in f64.
"""

import sys
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sweeps"))

import judge  # noqa: E402
from modules import case  # noqa: E402
from workers import Job  # noqa: E402

SEED = 1
RANDOM = (3, 11, 15, 17, 33, 35, 38, 40, 44, 54, 73, 155, 166, 179, 183, 198)
REAL = ("hf-gpt2", "resnet", "unet", "mixture")
NAMES = [*(f"random-{index}" for index in RANDOM), *REAL]
SHARDED = ("tp=2", "fsdp=2", "dp=2,tp=2")
TRIALS = [(name, mesh) for place, name in enumerate(NAMES) for mesh in ("dp=2", SHARDED[place % 3], "pp=2")]


@lru_cache(maxsize=1)
def trained(name):
    """The case, and what PyTorch makes of it."""
    one = case(Job(name, SEED))
    return one, judge.reference(one)


@pytest.mark.parametrize("name, mesh", TRIALS, ids=[f"{name}-{mesh}" for name, mesh in TRIALS])
def test_a_module_trains_on_a_mesh_as_in_f64(name, mesh):
    if name.startswith("hf-"):
        pytest.importorskip("transformers", reason="transformers is not installed")
    one, beside = trained(name)
    verdict = judge.judged(one, mesh, beside)
    assert verdict.verdict == "right", f"{one.about}: {verdict.code} {verdict.where}"


def test_the_judge_sees_what_is_wrong():
    """A gradient that is missing, one that is zero, and one that is off by a thousandth."""
    one, beside = trained(NAMES[0])
    trace = dict(beside.rounded.trace)
    assert judge.compared(trace, beside)[0] <= judge.TOLERANCE
    gradients = {key: entry.value for key, entry in trace.items() if entry.kind == "gradient" and entry.value is not None}
    name = max(gradients, key=lambda key: gradients[key].norm().item())
    for changed in (None, 0 * trace[name].value, 1.001 * trace[name].value):
        error, where = judge.compared({**trace, name: judge.Entry("gradient", changed)}, beside)
        assert error > judge.TOLERANCE and where.startswith(name)
