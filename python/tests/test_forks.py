"""Forked children of a process that trains: they are refused, end well, and leave the parent as it was."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import os, sys
import torch
from torch import nn
import partita

torch.manual_seed(0)
module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
x, y = torch.randn(8, 4), torch.randn(8, 4)
trainer = partita.Trainer(partita.load(module, (x, y), loss=nn.functional.mse_loss), None, "dp=2", "sgd")
built = partita.Schedule(partita.load(module, (x,)), "dp=2").build()
first = [trainer.step((x, y), lr=0.1), float(built(x).sum())]
trainer.save("run")


def tried(call):
    try:
        call()
        return "ran"
    except partita.PartitaError as error:
        return error.code


def new():
    partita.Trainer(partita.load(module, (x, y), loss=nn.functional.mse_loss), None, "dp=1", "sgd")


calls = {"trainer": lambda: trainer.step((x, y)), "built": lambda: built(x), "new": new, "save": lambda: trainer.save("run")}
child = os.fork()
if child == 0:
    for name, call in calls.items():
        print(name, tried(call), flush=True)
    # The interpreter ends as it does at the end of a program: values are dropped.
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, row):
        return x[row], y[row]


batches = torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork")
losses = [trainer.step(batch, lr=0.1) for _ in range(2) for batch in batches]
assert losses[1] < losses[0] < first[0] and trainer.steps == 3
trainer.save("run")
print("parent ran")
"""


def test_a_forked_child_is_refused_and_the_parent_trains_as_before(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = ["trainer E433", "built E433", "new E433", "save E433", "parent ran"]
    assert done.stdout.splitlines() == lines, done.stdout + done.stderr
    assert "panicked" not in done.stderr
