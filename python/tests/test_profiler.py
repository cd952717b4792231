"""The profiler: its schedule and table beside those of PyTorch, and what it says of the ranks."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import partita
from partita import profiler
from partita.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule

PLAN = {"model.0": "colwise", "model.2": "rowwise"}


def batch():
    draws = np.random.default_rng(0)
    return draws.standard_normal((6, 4), np.float32), draws.standard_normal((6, 4), np.float32)


@pytest.fixture
def trainer(recorded):
    return partita.Trainer(partita.load(recorded("mlp")), PLAN, "tp=2", "sgd")


def test_the_schedule_is_the_one_of_the_document():
    steps = [schedule(wait=1, warmup=1, active=3, repeat=2)(step).name for step in range(12)]
    cycle = ["NONE", "WARMUP", "RECORD", "RECORD", "RECORD_AND_SAVE"]
    assert steps == [*cycle, *cycle, "NONE", "NONE"]


@pytest.mark.parametrize("wait", [0, 2])
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize("repeat", [0, 2])
@pytest.mark.parametrize("skip_first", [0, 3])
def test_schedules_are_those_of_pytorch(wait, warmup, active, repeat, skip_first):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    counts = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
    ours, theirs = schedule(**counts), torch.profiler.schedule(**counts)
    assert [ours(step).name for step in range(25)] == [theirs(step).name for step in range(25)]


def test_each_cycle_is_handed_over_with_the_step_that_begins(trainer):
    calls, ready = [], []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=lambda prof: ready.append((prof.step_num, len(prof.key_averages()))),
    ) as prof:
        for _ in range(10):
            trainer.step(batch())
            calls.append(prof.current_action)
            prof.step()
    assert [step for step, _ in ready] == [5, 10] and calls[4] is ProfilerAction.RECORD_AND_SAVE
    # The last cycle alone is kept.
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["ProfilerStep*"].count == rows["partita::step"].count == 3


def test_instructions_are_counted_as_the_programs_have_them(trainer, recorded):
    with profile(profile_memory=True, record_shapes=True) as prof:
        for _ in range(2):
            trainer.step(batch())
    places, lists = trainer._native.programs()
    assert [rank for rank, _ in places] == [0, 1]
    expected = {}
    for _, program in places:
        for what, kind, *_ in lists[program]:
            name = what if kind == "compute" else f"{kind} {what}"
            expected[name] = expected.get(name, 0) + 2
    averages = prof.key_averages()
    rows = {row.key: row for row in averages}
    assert rows.pop("partita::step").count == 2
    assert {name: row.count for name, row in rows.items()} == expected
    # Collectives are those that the plan explains.
    sch = partita.Schedule(partita.load(recorded("mlp")), "tp=2", PLAN, optimizer="sgd")
    collectives = sum(count for _, _, count, _ in sch.collectives())
    assert sum(row.count for name, row in rows.items() if name.startswith("start ")) == 2 * 2 * collectives
    step = next(row for row in averages if row.key == "partita::step")
    spent = sum(row.self_device_time_total for row in averages)
    assert 0 < spent and step.device_time_total == pytest.approx(spent) and step.self_device_time_total == 0
    assert step.cuda_time_total == step.device_time_total and step.cuda_time == pytest.approx(spent / 2)
    grouped = prof.key_averages(group_by_input_shape=True)
    assert sum(row.count for row in grouped) == sum(row.count for row in averages)
    assert any("[6, 4]" in row.input_shapes for row in grouped) and "Input Shapes" in grouped.table()


def test_nothing_is_recorded_outside(trainer):
    trainer.step(batch())
    assert trainer._native.events()[0] == []
    with profile() as prof:
        pass
    trainer.step(batch())
    assert trainer._native.events()[0] == [] and len(prof.key_averages()) == 0
    with pytest.raises(partita.PartitaError), profile() as prof:
        trainer.step((batch()[0][:3], batch()[1]))
    assert [row.key for row in prof.key_averages()] == ["partita::step"]
    trainer.step(batch())
    assert trainer._native.events()[0] == []


def test_the_table_has_the_form_of_pytorch(trainer):
    with profile(profile_memory=True) as prof:
        trainer.step(batch())
    table = prof.key_averages().table(sort_by="cuda_time_total", row_limit=4)
    lines = table.split("\n")
    assert re.fullmatch(r"(-+  )+", lines[0]) and lines[0] == lines[2] == lines[7]
    titles = re.split(r" {2,}", lines[1].strip())
    assert titles == [
        *["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"],
        *["Self Device", "Self Device %", "Device total", "Device time avg"],
        *["Device Mem", "Self Device Mem", "# of Calls"],
    ]
    assert all(len(line) == len(lines[0]) for line in lines[1:7])
    assert lines[3].split()[0] == "partita::step"
    assert re.fullmatch(r"Self CPU time total: \d+\.\d{3}(us|ms|s)", lines[8])
    assert re.fullmatch(r"Self Device time total: \d+\.\d{3}(us|ms|s)", lines[9])
    times = [row.device_time_total for row in prof.key_averages()]
    assert len(times) > 4 and "dot_general" in prof.key_averages().table(row_limit=-1)
    with pytest.raises(AttributeError, match="has no attribute 'speed'"):
        prof.key_averages().table(sort_by="speed")


def test_times_and_sizes_are_written_as_pytorch_writes_them():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.autograd.profiler_util import _format_time

    from partita._averages import _memory, _time

    for microseconds in (0.0, 0.25, 55.8421, 999.9, 1656.4, 2.5e6, 7.25e8):
        assert _time(microseconds) == _format_time(microseconds)
    assert torch is not None
    assert [_memory(count) for count in (0, 3799, -2048, 3 << 20, 5 << 30)] == [
        *["0 B", "3.71 KB", "-2.00 KB", "3.00 MB", "5.00 GB"]
    ]


def test_a_trace_file_a_cycle_in_chromes_format(trainer, tmp_path):
    handler = profiler.tensorboard_trace_handler(tmp_path / "log", worker_name="host")
    with profile(
        schedule=schedule(wait=0, warmup=1, active=2, repeat=2),
        on_trace_ready=handler,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for _ in range(6):
            with record_function("one step"):
                trainer.step(batch())
            prof.step()
    files = sorted((tmp_path / "log").iterdir())
    assert len(files) == 2
    for number, file in enumerate(files):
        assert re.fullmatch(r"host\.\d+\.pt\.trace\.json", file.name)
        trace = json.loads(file.read_text())
        events = trace["traceEvents"]
        assert trace["record_shapes"] == trace["profile_memory"] == trace["with_stack"] == 1
        complete = [event for event in events if event["ph"] == "X"]
        steps = [event["name"] for event in complete if event["name"].startswith("ProfilerStep#")]
        assert steps == [f"ProfilerStep#{3 * number + 1}", f"ProfilerStep#{3 * number + 2}"]
        by_name = {event["name"]: event for event in complete}
        step, mine = by_name["partita::step"], by_name["one step"]
        assert mine["cat"] == "user_annotation" and step["cat"] == "cpu_op"
        assert "test_profiler.py" in step["args"]["Call stack"]
        inside = [event for event in complete if event["cat"] == "kernel"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert {names[event["pid"]] for event in inside} == {"rank 0", "rank 1"}
        dots = [event for event in inside if "dot_general" in event["name"]]
        assert dots and all(event["args"]["Input Dims"] and event["args"]["Input type"] for event in dots)
        assert {event["args"]["Module"] for event in dots} >= {"model.0", "model.2"}
        # On the clock of the host: ranks work inside the passes that run them.
        passes = [event for event in complete if event["name"] == "partita::step"]
        for event in inside:
            slack = 50.0
            fits = lambda p: p["ts"] - slack <= event["ts"] and event["ts"] + event["dur"] <= p["ts"] + p["dur"] + slack
            assert any(fits(one) for one in passes)
        # What a step takes in memory it gives back, except its outputs.
        assert any(event["ph"] == "C" and event["args"]["live"] > 0 for event in events)
    assert prof._repr_html_().startswith("<svg") and "rank 1/" in prof._repr_html_()


def test_a_loop_of_pytorch_has_passes_and_an_optimizer():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.Linear(4, 4)
    x = torch.randn(6, 4)
    planned = partita.Schedule(partita.load(module, x), "dp=2").build()
    optimizer = torch.optim.AdamW(planned.parameters())
    with profile(with_stack=True) as prof:
        for _ in range(2):
            planned(x).sum().backward()
            optimizer.step()
    rows = {row.key: row.count for row in prof.key_averages()}
    for name in ("partita::forward", "partita::backward", "Optimizer.step#AdamW.step"):
        assert rows[name] == 2
    optimizer.step()
    assert {row.key: row.count for row in prof.key_averages()} == rows
    assert all("test_profiler.py" in event.stack for event in prof.events() if hasattr(event, "stack"))


def test_what_is_no_activity_or_count_is_refused():
    with pytest.raises(ValueError, match="no activity 'GPU'"):
        profile(activities=["GPU"])
    with pytest.raises(ValueError, match="at least one active step"):
        schedule(wait=1, warmup=1, active=0)


def test_importing_the_profiler_needs_no_torch():
    code = "import sys, partita.profiler; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
