"""Steps exported for XLA give the losses, and the state, of training. `tests/xla/compare.py` compares more of them."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

COMPARE = Path(__file__).resolve().parents[2] / "tests" / "xla" / "compare.py"


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare", COMPARE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("model", "mesh"), [("mlp", "dp=2"), ("gpt", "fsdp=2,tp=2")])
def test_the_engine_xla_trains_and_resumes_with_the_losses_of_the_native_one(compare, tmp_path, model, mesh):
    partita = [sys.executable, "-m", "partita"]
    assert compare.compare_engine(partita, model, mesh, 4, tmp_path) <= compare.TOLERANCE


@pytest.mark.parametrize(("model", "mesh", "more"), [("gpt", "dp=2,pp=2", ["train.microbatches=2"])])
def test_the_stages_of_a_pipeline_run_in_the_order_of_its_timetable(compare, tmp_path, model, mesh, more):
    partita = [sys.executable, "-m", "partita"]
    assert compare.compare_engine(partita, model, mesh, 4, tmp_path, more=more) <= compare.TOLERANCE


@pytest.mark.parametrize(
    ("model", "mesh", "more"),
    [
        ("gpt", "dp=2,tp=2", []),
        ("gpt", "pp=2,tp=2", ["train.microbatches=2", "model.dropout=0.1"]),
        ("gpt", "dp=2,pp=2", ["train.microbatches=2"]),
    ],
)
def test_two_processes_of_half_the_devices_give_the_numbers_of_one(compare, tmp_path, model, mesh, more):
    """A step over all ranks, a pipeline with a stage in each process, and one with every stage in both."""
    partita = [sys.executable, "-m", "partita"]
    losses, states = compare.compare_processes(partita, model, mesh, 4, tmp_path, more=more)
    assert max(losses, states) <= compare.TOLERANCE


def test_two_hosts_give_the_numbers_of_one(compare, tmp_path):
    hosts = compare.Hosts()
    try:
        if hosts.why is not None:
            pytest.skip(f"two network namespaces: {hosts.why}")
        partita = [sys.executable, "-m", "partita"]
        losses, states = compare.compare_processes(partita, "mlp", "dp=4", 4, tmp_path, hosts)
        assert max(losses, states) <= compare.TOLERANCE
    finally:
        hosts.close()


def test_launched_processes_share_the_devices(compare, tmp_path):
    partita = [sys.executable, "-m", "partita"]
    launcher = [*partita, "launch", "-n", "2", "--"]
    assert compare.compare_engine(partita, "mlp", "dp=4", 4, tmp_path, launcher=launcher) <= compare.TOLERANCE


@pytest.mark.parametrize(
    ("model", "mesh", "form"),
    [
        ("mlp", "tp=2", "uniform"),
        ("mlp", "dp=3", "uniform"),
        ("mlp", "dp=2,tp=2", "global"),
        ("gpt", "dp=2,tp=2", "uniform"),
        ("gpt", "fsdp=4", "uniform"),
    ],
)
def test_a_step_under_xla_gives_the_numbers_of_training(compare, tmp_path, model, mesh, form):
    partita = [sys.executable, "-m", "partita"]
    losses, states, _ = compare.compare(partita, model, mesh, 1, form, tmp_path)
    assert max(losses, states) <= compare.TOLERANCE
    losses, _, _ = compare.compare(partita, model, mesh, 5, form, tmp_path)
    assert losses <= compare.TOLERANCE
