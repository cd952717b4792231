"""What the command writes, read by the tools of others; and the view on a terminal. Each is skipped where its tool is missing."""

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "partita"]
SMALL = ["--set", "model.layers=2", "--set", "model.dim=32", "--set", "model.heads=2", "--batch", "4", "--no-sample"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A profiled run of two ranks with a log for TensorBoard: its folder, and the events of its steps."""
    folder = tmp_path_factory.mktemp("run")
    train = ["train", "gpt", "--mesh", "dp=2", "--steps", "6", "--json", "--no-verify", *SMALL]
    profiled = ["--profile", "--cycle", "wait=1,warmup=1,active=3", "--tensorboard", "log"]
    done = subprocess.run([*COMMAND, *train, *profiled], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return folder, [event for event in events if event["event"] == "step"]


def test_tensorboard_reads_the_figures_of_each_step(run):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    folder, steps = run
    log = accumulator.EventAccumulator(str(folder / "log")).Reload()
    expected = {"loss/training": "loss", "throughput/tokens per second": "tokens_per_s", "memory/used bytes": "peak_bytes_used"}
    assert set(expected) < set(log.Tags()["scalars"])
    for tag, key in expected.items():
        found = [(scalar.step, scalar.value) for scalar in log.Scalars(tag)]
        assert found == [(step["step"], pytest.approx(step[key], rel=1e-6)) for step in steps], tag
    assert [scalar.step for scalar in log.Scalars("loss/validation")] == [6]


def test_the_profiler_of_tensorboard_finds_steps_kernels_and_communication(run):
    data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="torch-tb-profiler is not installed")
    traces = run[0] / "log" / "plugins" / "profile" / "run-1"
    for rank in (0, 1):
        profile = data.RunProfileData.parse(f"rank-{rank}", None, str(traces / f"rank-{rank}.pt.trace.json"), None)
        assert profile.distributed_info["rank"] == rank and profile.distributed_info["world_size"] == 2
        assert profile.has_kernel and profile.has_communication
        assert profile.steps_names == ["3", "4", "5"]
        assert {node.step_name for node in profile.comm_node_list} == {"3", "4", "5"}
        assert any("dot_general" in kernel for kernel in profile.kernel_stat.index)


def test_holistic_trace_analysis_tells_compute_from_communication(run):
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    traces = run[0] / "log" / "plugins" / "profile" / "run-1"
    found = analysis.TraceAnalysis(trace_dir=str(traces), include_last_profiler_step=True)
    times = found.get_temporal_breakdown(visualize=False)
    assert list(times["rank"]) == [0, 1]
    assert (times["compute_time(us)"] > 0).all() and (times["compute_time(us)"] <= times["kernel_time(us)"]).all()
    kinds, kernels = found.get_gpu_kernel_breakdown(visualize=False)
    assert {"COMPUTATION", "COMMUNICATION"} <= set(kinds["kernel_type"])
    assert kernels["name"].str.startswith("ncclKernel_all_reduce").any()
    overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
    assert ((overlap >= 0) & (overlap <= 100)).all()


def on_terminal(command, folder, rows=30, columns=90):
    """What a command writes to a terminal of this size."""
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd=folder, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    written = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 120)
        assert ready, "the command writes within two minutes"
        try:
            part = os.read(ours, 65536)
        except OSError:
            part = b""
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, written
    return written.decode()


def screen(written):
    """The lines that stand on the screen in the end: the view moves up and erases what is below."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+A|\x1b\[J|\r\n|\n|\r)", written):
        if part in ("\r\n", "\n"):
            lines.append("")
        elif move := re.fullmatch(r"\x1b\[(\d+)A", part):
            del lines[len(lines) - int(move[1]) :]
        elif part not in ("\r", "\x1b[J"):
            lines[-1] += part
    return lines


def test_the_view_stays_in_place_and_ends_with_the_last_step(tmp_path):
    train = ["train", "gpt", "--mesh", "dp=2", "--steps", "6", "--live", "--no-verify", *SMALL]
    written = on_terminal([*COMMAND, *train], tmp_path)
    lines = screen(written)
    views = [number for number, line in enumerate(lines) if "gpt on mesh dp=2" in line and "step " in line]
    assert len(views) == 1, lines
    assert lines[views[0]].rstrip().endswith("step 6/6"), lines
    for begin in ("loss ", "validation ", "tokens/s ", "memory ", "rank 0 ", "rank 1 "):
        assert sum(line.startswith(begin) for line in lines[views[0] : views[0] + 10]) == 1, (begin, lines)
    assert any("computes" in line and "waits" in line for line in lines)
    assert not any(re.match(r"step +\d+/6  loss", line) for line in lines), "no line for each step"


def test_without_a_terminal_the_view_is_the_plain_log(tmp_path):
    train = ["train", "gpt", "--mesh", "dp=2", "--steps", "4", "--no-verify", *SMALL]
    shown = [
        subprocess.run([*COMMAND, *train, *live], capture_output=True, text=True, cwd=tmp_path) for live in ([], ["--live"])
    ]
    assert all(done.returncode == 0 for done in shown), shown
    losses = [re.findall(r"^step +(\d)/4  loss +([\d.]+)", done.stdout, re.MULTILINE) for done in shown]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    assert "\x1b" not in shown[1].stdout
