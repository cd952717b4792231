"""The launcher: what processes are told, what they compute together, and how they end."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import partita

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1])}


def start(tmp_path, script, count, *arguments):
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "partita.launch", "-n", str(count), str(path), *arguments]
    # A shell that runs the tests in the background lets its children ignore Ctrl-C.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, preexec_fn=heed, **pipes)


def run(tmp_path, script, count, *arguments):
    process = start(tmp_path, script, count, *arguments)
    out, error = process.communicate(timeout=900)
    lines = [[] for _ in range(count)]
    for line in out.splitlines():
        assert line.startswith("[rank "), line
        rank, text = line.removeprefix("[rank ").split("] ", 1)
        lines[int(rank)].append(text)
    return process.returncode, lines, error


def test_each_process_is_told_its_place(tmp_path):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    script = f"import os, sys\nprint(*[os.environ[name] for name in {names}], *sys.argv[1:])\nprint('two', file=sys.stderr)"
    code, lines, error = run(tmp_path, script, 3, "--steps", "5")
    assert code == 0 and error == ""
    places = [line[0].split() for line in lines]
    for rank, place in enumerate(places):
        assert place[:4] == [str(rank), str(rank), "3", "3"] and place[-2:] == ["--steps", "5"]
        assert lines[rank][1] == "two"
    assert len({tuple(place[4:6]) for place in places}) == 1


TRAINING = """
import sys
import numpy as np
import partita

model = partita.load(sys.argv[1])
trainer = partita.Trainer(model, {"model.0": "colwise", "model.2": "rowwise"}, "tp=2", "sgd")
draws = np.random.default_rng(0)
x, y = draws.standard_normal((6, 4), np.float32), draws.standard_normal((6, 4), np.float32)
for _ in range(3):
    print(repr(trainer.step((x, y), lr=0.1)))
print(len(trainer.bytes_on_ranks), repr(float(trainer.state_dict()["model.0.weight"].sum())))
"""


def test_processes_train_as_one_does(tmp_path, recorded):
    script = tmp_path / "alone.py"
    script.write_text(TRAINING)
    path = str(recorded("mlp"))
    command = [sys.executable, script, path]
    alone = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    alone = alone.stdout.splitlines()
    code, lines, error = run(tmp_path, TRAINING, 2, path)
    assert code == 0, (lines, error)
    assert lines[0][:3] == lines[1][:3] == alone[:3]
    # Alone it has the memory of both ranks, launched of its own.
    assert alone[3].split()[0] == "2" and lines[0][3].split() == lines[1][3].split() == ["1", alone[3].split()[1]]


LOOP = """
import torch
import torch.distributed as dist
from torch import nn
from partita import slapo

slapo.env.setup()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
sch = slapo.create_schedule(model, mesh="tp=2")
sch["0"].shard("weight", axis=0)
sch["0"].shard("bias", axis=0)
sch["2"].shard("weight", axis=1)
sch["2"].sync("fwd_post", "all_reduce")
built, optimizer = slapo.build(sch)
optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
x = torch.randn(4, 8)
for _ in range(3):
    optimizer.zero_grad()
    loss = built(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(dist.get_rank(), dist.get_world_size(), dist.get_backend())
dist.destroy_process_group()
"""


MODULES = """
import torch
from torch import nn
from partita.distributed import init_device_mesh
from partita.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(mesh.get_rank())
"""


@pytest.mark.parametrize("script, places", [(LOOP, ["0 2 gloo", "1 2 gloo"]), (MODULES, ["0", "1"])], ids=["slapo", "modules"])
def test_a_loop_of_pytorch_runs_once_per_rank(tmp_path, script, places):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch import nn

    code, lines, error = run(tmp_path, script, 2)
    assert code == 0, (lines, error)
    command = [sys.executable, tmp_path / "script.py"]
    alone = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout.splitlines()
    # To the last bit: processes compute what one does.
    assert lines[0][:3] == lines[1][:3] == alone[:3] and len(lines[0]) == 4
    assert [line[3] for line in lines] == places
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    for line in alone[:3]:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        assert float(line) == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("how", ["sys.exit(7)", "raise ValueError('lost')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_when_one_fails_all_end_with_one_message(tmp_path, how):
    script = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    print(time.time())
    {how}
time.sleep(600)
"""
    code, lines, error = run(tmp_path, script, 3)
    # From its end on, not counting how long three interpreters take to start.
    assert time.time() - float(lines[1][0]) < 5
    status = {"sys.": (7, "exit code 7"), "rais": (1, "exit code 1"), "os.k": (137, "ended by SIGKILL")}[how[:4]]
    assert code == status[0]
    assert error.count("error[") == 1 and f"error[E449]: rank 1 of 3 failed: {status[1]}" in error
    assert lines[0] == lines[2] == [] and ("ValueError: lost" in lines[1]) == how.startswith("raise")


def test_a_rank_that_dies_in_training_ends_the_others(tmp_path, recorded):
    script = TRAINING.replace("for _ in range(3):", "import os\nfor step in range(10**9):\n    if step == 5 and os.environ['RANK'] == '1': os._exit(9)")
    code, _, error = run(tmp_path, script, 2, str(recorded("mlp")))
    assert code == 9 and "error[E449]: rank 1 of 2 failed: exit code 9" in error and error.count("error[") == 1


def test_ctrl_c_ends_all(tmp_path):
    process = start(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(60)", 2)
    assert "ready" in process.stdout.readline()
    process.stdout.readline()
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130 and time.monotonic() - begin < 5


def test_more_processes_than_ranks_and_wrong_commands_are_refused(tmp_path, recorded):
    code, lines, _ = run(tmp_path, TRAINING, 3, str(recorded("mlp")))
    assert code == 1 and any("error[E449]: 3 processes have only 2 ranks to run" in line for line in sum(lines, []))
    for arguments, reason in [(["-n", "0", "x.py"], "at least one"), (["-n", "2", "no.py"], "no script no.py")]:
        command = [sys.executable, "-m", "partita.launch", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 2 and reason in done.stderr


def test_a_place_that_is_not_this_process_is_refused(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from partita import slapo

    for variables, arguments, reason in [
        ({"WORLD_SIZE": "2", "RANK": "0"}, {}, "partita.launch -n N"),
        ({"WORLD_SIZE": "2", "RANK": "1", "PARTITA_LAUNCH": "1/2:/x"}, {"rank": 0}, "rank 1 of 2"),
    ]:
        for name in ("WORLD_SIZE", "RANK", "PARTITA_LAUNCH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(partita.PartitaError) as refused:
            slapo.env.setup(**arguments)
        assert refused.value.code == "E393" and reason in str(refused.value)


DIFFERENT = """
import os, sys
import torch
import partita

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
if sys.argv[1] == "weights":
    torch.nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
x, y = torch.randn(6, 8), torch.randn(6, 4)
if sys.argv[1] == "inputs":
    x += int(os.environ["RANK"])
loaded = partita.load(model, (x, y), loss=torch.nn.functional.mse_loss)
trainer = partita.Trainer(loaded, None, "dp=2", "sgd")
trainer.step((x, y))
"""


@pytest.mark.parametrize("what", ["weights", "inputs"])
def test_processes_with_other_tensors_are_refused(tmp_path, what, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setitem(ENVIRONMENT, "PARTITA_CHECK", "1")
    code, lines, error = run(tmp_path, DIFFERENT, 2, what)
    said = "\n".join(sum(lines, []))
    assert code == 1 and f"error[E395]: processes 0 and 1 of the launch have different {what}" in said
    assert said.count("Traceback") == 1 and error.count("error[") == 1


SLOW_END = """
import atexit, os, sys, time
import numpy as np
import partita

model = partita.load(sys.argv[1])
trainer = partita.Trainer(model, None, "dp=2", "sgd")
x = np.zeros((6, 4), np.float32)
trainer.step((x, x))
atexit.register(time.sleep, 60)
if os.environ["RANK"] == "1":
    print(time.time(), flush=True)
    raise ValueError("lost")
while True:
    trainer.step((x, x))
"""


def test_an_interpreter_that_ends_slowly_is_not_waited_for(tmp_path, recorded):
    code, lines, error = run(tmp_path, SLOW_END, 2, str(recorded("mlp")))
    assert time.time() - float(lines[1][0]) < 5
    assert code == 1 and "ValueError: lost" in lines[1] and "E449]: rank 1 of 2 failed: exit code 1" in error
    # What rank 0 says of it is no news.
    assert lines[0] == []


OTHERS = [
    {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
    {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"},
    {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
    {"PMI_SIZE": "3", "PMI_RANK": "0"},
]
ALONE = [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}]


def doors():
    """What runs all ranks of a mesh in this process."""
    import torch

    from partita import alpa, ms, slapo
    from partita.distributed import init_device_mesh

    line, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    model = partita.load(line, (x, x), loss=torch.nn.functional.mse_loss)
    yield lambda: partita.Trainer(model, None, "dp=2")
    yield lambda: partita.Schedule(model, "dp=2").trainer()
    yield lambda: partita.Schedule(model, "dp=2").build()
    yield lambda: init_device_mesh("cpu", (2,))
    yield lambda: slapo.build(slapo.create_schedule(line, mesh="tp=2"))
    yield lambda: ms.build(ms.create_schedule(line, mesh="tp=2"))
    yield lambda: alpa.init(cluster="local", num_devices_per_node=2)


@pytest.mark.parametrize("variables", OTHERS + ALONE, ids=str)
def test_one_of_several_processes_of_another_launcher_is_refused(variables, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("jax", reason="JAX is not installed")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "PARTITA_LAUNCH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for number, door in enumerate(doors()):
        try:
            door()
            code = None
        except partita.PartitaError as error:
            code = error.code
        assert code == ("E393" if variables in OTHERS else None), (number, variables)
