"""States and activations in host memory through ``At.offload``: the numbers of PyTorch, in less memory of a rank."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402

DIM, BLOCKS, ROWS, STEPS = 48, 5, 256, 3
X = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
Y = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(2))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.layers = nn.ModuleList(block() for _ in range(BLOCKS))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Blocks()


def trained(module, mesh, *lines):
    """Losses and bytes of each rank, parameters and states after some steps, with lines ``(module, what, ahead)``."""
    schedule = partita.Schedule(partita.load(module, (X, Y), loss=F.mse_loss), mesh)
    for path, what, ahead in lines:
        schedule[path].offload(what, ahead)
    trainer = schedule.trainer(partita.optim.AdamW(lr=0.01))
    losses = [trainer.step((X, Y)) for _ in range(STEPS)]
    return losses, trainer.bytes_on_ranks, trainer.state_dict() | trainer.optimizer_state()


def largest_states():
    """Bytes of both states of all parameters, and of the three parameters with the largest states."""
    sizes = sorted((8 * parameter.numel() for parameter in Blocks().parameters()), reverse=True)
    return sum(sizes), sum(sizes[:3])


@pytest.mark.parametrize("mesh", ["dp=1", "dp=2", "fsdp=2"])
@pytest.mark.parametrize(
    "lines",
    [
        [("", "optimizer", None)],
        [("layers.*", "optimizer", 2)],
        [("layers.*", "activations", None)],
        [("", "optimizer", None), ("layers.*", "activations", None)],
    ],
    ids=["states", "two-ahead", "activations", "both"],
)
def test_numbers_are_the_same_to_the_bit_in_less_memory(module, mesh, lines):
    plain = trained(module, mesh)
    found = trained(module, mesh, *lines)
    assert found[0] == plain[0]
    assert found[2].keys() == plain[2].keys() and len(plain[2]) == 3 * 4 * BLOCKS
    assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(plain[2][name])) for name, value in found[2].items())
    assert all(less < bytes for less, bytes in zip(found[1], plain[1], strict=True))


def test_states_are_those_of_pytorch(module):
    theirs = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    expected = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(theirs(X), Y)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    losses, _, tensors = trained(module, "dp=2", ("", "optimizer", None), ("layers.*", "activations", None))
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, parameter in theirs.named_parameters():
        moments = optimizer.state[parameter]
        # Adam divides a gradient by its size: where that is rounding, in any of the steps, the update is arbitrary.
        difference = (torch.as_tensor(tensors[name]) - parameter).abs()
        assert (difference > 1e-5).float().mean() <= 0.01 and difference.max() < 0.1 * 0.01, f"{name}: {difference.max()}"
        found = [value for key, value in tensors.items() if key.startswith("optimizer.") and key.endswith(f".{name}")]
        assert len(found) == 2
        for slot in ("exp_avg", "exp_avg_sq"):
            assert any(torch.allclose(torch.as_tensor(value), moments[slot], atol=1e-6) for value in found)


def test_a_rank_saves_all_states_but_those_on_their_way(module):
    """Where the peak is in the update, it falls by the bytes of all states but the three that are loaded at a time."""
    states, window = largest_states()
    saved = trained(module, "dp=1")[1][0] - trained(module, "dp=1", ("", "optimizer", None))[1][0]
    assert 0 < saved <= states
    assert saved >= (states - window) // 2


def test_what_cannot_be_moved_is_refused(module):
    schedule = partita.Schedule(partita.load(module, (X, Y), loss=F.mse_loss), "dp=1")
    with pytest.raises(partita.PartitaError):
        schedule.offload("weights")
    with pytest.raises(partita.PartitaError) as refused:
        schedule["layer.*"].offload("optimizer")
    assert refused.value.code == "E221" and len(schedule.plan) == 0
