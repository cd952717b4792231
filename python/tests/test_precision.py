"""Mixed precision: a trainer beside a loop of PyTorch under autocast."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402

X = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


@pytest.mark.parametrize("mesh", ["dp=1", "dp=2"])
@pytest.mark.parametrize(("precision", "units"), [("bf16", 2.0**-5), ("f16", 2.0**-8)])
def test_losses_are_those_of_autocast(module, precision, units, mesh):
    model = partita.load(module, (X, Y), loss=F.mse_loss)
    trainer = partita.Trainer(model, None, mesh, partita.optim.SGD(lr=0.1, momentum=0.9), precision=precision)
    # Also before the first step.
    assert trainer.loss_scale == (65536.0 if precision == "f16" else None)
    theirs = copy.deepcopy(module)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16 if precision == "bf16" else torch.float16):
            output = theirs(X)
        loss = F.mse_loss(output.float(), Y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found = trainer.step((X, Y))
        assert abs(found - loss.item()) <= units * loss.item()
    assert trainer.loss_scale == (65536.0 if precision == "f16" else None)
    assert all(value.dtype == torch.float32 for value in trainer.state_dict().values())


def test_a_precision_that_does_not_exist_is_refused(module):
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(partita.load(module, (X, Y), loss=F.mse_loss), None, "dp=1", precision="f8")
    assert refused.value.code == "E004"
