"""A step that is refused for numbers that are not finite, and the steps after it."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import partita  # noqa: E402
from test_launch import ENVIRONMENT, run  # noqa: E402


class Fit(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(8, 4)

    def forward(self, x, y):
        return ((self.last(self.drop(torch.relu(self.norm(self.first(x))))) - y) ** 2).mean()


def batch(number):
    draws = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=draws), torch.randn(8, 4, generator=draws)


def state(trainer):
    return trainer.state_dict() | trainer.optimizer_state()


MESHES = ["dp=1", "dp=2", "fsdp=2", "tp=2", "pp=2", "dp=2,pp=2"]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_training_goes_on_after_a_batch_that_is_not_finite(mesh, precision):
    plan = {"fsdp=2": {"**": "fsdp"}, "tp=2": {"first": "colwise", "last": "rowwise"}}.get(mesh)
    made = partita.load(Fit(), batch(0))
    trainer, other = (partita.Trainer(made, plan, mesh, partita.optim.AdamW(lr=0.01), precision=precision) for _ in range(2))
    losses, expected = [], []
    for number in range(4):
        x, y = batch(number)
        wrong = x.clone()
        wrong[2, 1], wrong[7, 3] = float("nan"), float("inf")
        for _ in range(2):
            with pytest.raises(partita.PartitaError) as refused:
                trainer.step((wrong, y))
            assert refused.value.code == "E412"
            assert "`x` has 1 NaN and 1 infinite of 32 elements, the first at [2, 1]" in str(refused.value)
        assert trainer.steps == number
        losses.append(trainer.step((x, y)))
        expected.append(other.step((x, y)))
    assert losses == expected
    for name, value in state(trainer).items():
        np.testing.assert_array_equal(value, state(other)[name], err_msg=name)


def test_a_loss_that_diverges_is_not_the_fault_of_the_batch():
    trainer = partita.Trainer(partita.load(Fit(), batch(0)), None, "dp=2", "sgd")
    x, y = batch(0)
    with pytest.raises(partita.PartitaError) as refused:
        trainer.step((x, y * 1e30))
    assert "the batch is not finite" not in str(refused.value) and "lower the learning rate" in str(refused.value)


TRAINING = """
import sys
import numpy as np
import partita

model = partita.load(sys.argv[1])
trainer = partita.Trainer(model, {"model.0": "colwise", "model.2": "rowwise"}, "tp=2", "adamw")
draws = np.random.default_rng(0)
x, y = draws.standard_normal((6, 4), np.float32), draws.standard_normal((6, 4), np.float32)
for _ in range(3):
    for _ in range(int(sys.argv[2])):
        try:
            trainer.step((np.where(x > 1, np.nan, x), y), lr=0.1)
        except partita.PartitaError as error:
            assert error.code == "E412" and "`x` has" in str(error), error
    print(repr(trainer.step((x, y), lr=0.1)))
print(repr(float(trainer.state_dict()["model.0.weight"].sum())))
"""


def test_launched_processes_go_on_after_a_batch_that_is_not_finite(tmp_path, recorded):
    script = tmp_path / "alone.py"
    script.write_text(TRAINING)
    path = str(recorded("mlp"))
    command = [sys.executable, script, path, "0"]
    alone = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout.splitlines()
    code, lines, error = run(tmp_path, TRAINING, 2, path, "2")
    assert code == 0, (lines, error)
    assert lines[0] == lines[1] == alone
