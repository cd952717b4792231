"""Search and predictions: what the command line prints with ``--json``."""

import json
import subprocess
import sys

import pytest

import partita

GPT = {"model.dim": 32, "model.layers": 2, "model.heads": 4, "model.sequence": 16, "train.batch": 8}
MODEL = {key: value for key, value in GPT.items() if key.startswith("model.")}
TIMES = ("wall_s", "tracing_s", "enumerating_s", "solving_s", "checking_s")


def printed(*arguments, settings=GPT):
    """The event that the command line prints."""
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "partita", arguments[0], "gpt", "--json", *arguments[1:], *flags]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (event,) = [event for event in map(json.loads, lines) if event["event"] == arguments[0]]
    return event


def untimed(event):
    return {name: value for name, value in event.items() if name not in TIMES}


def test_a_plan_is_found_as_by_the_command():
    found = partita.plan("gpt", devices=2, cluster="laptop", settings=GPT)
    assert untimed(found.event) == untimed(printed("plan", "--devices", "2", "--cluster", "laptop"))
    best = found.event["candidates"][0]
    assert (str(found.mesh), found.microbatches, found.step_s) == (best["mesh"], best["microbatches"], best["step_s"])
    assert found.mesh.size == 2 and len(found.plan) == len(partita.Plan(found.event["plan"]).lines())


def test_a_step_is_predicted_as_by_the_command():
    predicted = partita.simulate("gpt", "dp=2", cluster="laptop", settings=GPT)
    event = printed("simulate", "--mesh", "dp=2", "--cluster", "laptop")
    assert predicted.event == event and predicted.step_s == event["step_s"] > 0 and predicted.fits
    assert predicted.bytes == max(of["peak_bytes"] for of in event["classes"])


def test_a_plan_changes_the_prediction():
    plan = partita.Plan({"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"})
    without = partita.simulate("gpt", "tp=2", partita.Plan({"**": "replicate(axis=tp)"}), settings=GPT)
    planned = partita.simulate("gpt", "tp=2", plan, settings=GPT)
    assert planned.bytes < without.bytes


def test_needs_are_those_of_the_command():
    needs = partita.estimate("gpt", most=8, settings=MODEL)
    event = printed("estimate", "--most", "8", settings=MODEL)
    assert needs.event == event and needs.parameters == event["parameters"]
    assert [choice.devices for choice in needs.choices] == [choice["devices"] for choice in event["choices"]]


def test_what_the_command_refuses_is_an_exception():
    split = partita.Plan('sch["layers.0.mlp.up_proj"].shard("weight", 0, "tp")')
    for code, wrong in (
        ("E223", lambda: partita.simulate("gpt", "dp=2", split)),
        ("E005", lambda: partita.plan("gtp", devices=2)),
        ("E033", lambda: partita.plan("gpt", "dp=2", devices=2)),
        ("E473", lambda: partita.estimate("gpt", cluster="nowhere")),
    ):
        with pytest.raises(partita.PartitaError) as refused:
            wrong()
        assert refused.value.code == code


def test_a_module_is_planned_and_predicted():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    x = torch.randn(8, 64)
    model = partita.load(torch.nn.Sequential(module), (x, x), loss=torch.nn.functional.mse_loss)
    found = partita.plan(model, "tp=2")
    assert found.mesh == partita.Mesh("tp=2") and found.step_s > 0
    predicted = partita.simulate(model, "tp=2", found.plan)
    assert predicted.fits and predicted.bytes > 0
    # The plan that was found runs, and changes no number.
    assert partita.Schedule(model, "tp=2", found.plan).verify()
