"""Passes of built modules in a row, with other gradients of their outputs: nothing of one is left in the next, the caller
finds each output before the gradients are given, and nothing hangs. PyTorch's own module in f64 says what is right."""

import copy
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import partita  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Ends(nn.Module):
    """A layer, and a view of its result that needs a copy."""

    def __init__(self, layer, end):
        super().__init__()
        self.layer, self.end = layer, end

    def forward(self, x):
        return self.end(self.layer(x))


class Beside(nn.Module):
    """A loss, and numbers beside it that nobody differentiates."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.a(x).chunk(3, -1)
        h = self.b(q * torch.tanh(k) + v)
        return {"loss": (h**2).mean(), "mean": x.mean(), "size": h.abs().mean(), "best": h.argmax(-1), "mask": x > 0}


class Found(NamedTuple):
    total: torch.Tensor
    rows: torch.Tensor


class Named(nn.Module):
    """A named tuple with two scalars, and one as an argument."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, pair):
        h = self.a(pair.total + pair.rows)
        return Found(h.square().mean(), h.abs().mean()), h[:, ::2].reshape(-1)


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x, labels):
        return F.cross_entropy(self.b(self.a(x)), labels)


class Moving(nn.Module):
    """A buffer that is changed, and read before and behind the change by forward and backward pass."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        h = self.a(x) * self.scale.clone()
        with torch.no_grad():
            self.scale.mul_(0.5).add_(x.mean(0).abs())
        return h * self.scale.clone(), self.scale.sum()


def image(end):
    return lambda: (Ends(nn.Conv2d(1, 4, 3, padding=1), end), (torch.randn(2, 1, 6, 6),))


def rows(end):
    return lambda: (Ends(nn.Linear(8, 6), end), (torch.randn(4, 3, 8),))


CASES = {
    "shuffle": image(nn.PixelShuffle(2)),
    "channels last": image(lambda y: y.permute(0, 2, 3, 1).flatten(1)),
    "but the last": rows(lambda y: y[:, :-1].reshape(-1, 6)),
    "repeat": rows(lambda y: y.repeat_interleave(2, 1)),
    "turned": rows(lambda y: y.transpose(0, 1).contiguous()),
    "two of one": rows(lambda y: (y.flip(0), y[:, 0], y)),
    "beside": lambda: (Beside(), (torch.randn(4, 8),)),
    "named": lambda: (Named(), (Found(torch.randn(4, 8), torch.randn(4, 8)),)),
    "own loss": lambda: (OwnLoss(), (torch.randn(4, 8), torch.randint(0, 5, (4,)))),
    "moving": lambda: (Moving(), (torch.randn(4, 8),)),
    "lstm": lambda: (Ends(nn.LSTM(8, 6, batch_first=True), lambda y: y[0][:, -1]), (torch.randn(4, 3, 8),)),
    "gru": lambda: (Ends(nn.GRU(8, 6, 2), lambda y: (y[0], y[1])), (torch.randn(3, 4, 8),)),
}


def backward(outputs, number):
    """A backward pass with weights that differ from pass to pass; the third one has weights of zero."""
    generator = torch.Generator().manual_seed(number)
    total = 0.0
    for value in torch.utils._pytree.tree_leaves(outputs):
        weight = torch.randn(value.shape, generator=generator).double() * (number != 2)
        if value.requires_grad:
            total = total + (value.double() * weight).sum()
    total.backward()


@pytest.mark.parametrize("mesh", ["dp=1", "dp=2", "fsdp=2", "pp=2"])
@pytest.mark.parametrize("name", CASES)
def test_passes_in_a_row_are_those_of_pytorch(name, mesh):
    torch.manual_seed(len(name))
    module, inputs = CASES[name]()
    right = copy.deepcopy(module).double()
    plan = {"**": "fsdp"} if mesh.startswith("fsdp") else None
    schedule = partita.Schedule(partita.load(module, inputs), mesh, plan)
    if mesh.startswith("pp") and name in ("shuffle", "channels last", "but the last", "repeat", "turned", "two of one", "moving"):
        schedule.layers(2)
    built = schedule.build()
    for number in range(4):
        def in_f64(value):
            return value.double() if value.is_floating_point() else value

        given = torch.utils._pytree.tree_map(lambda v: v * (number + 1) if v.is_floating_point() else v, inputs)
        built.zero_grad()
        right.zero_grad()
        found, expected = built(*given), right(*torch.utils._pytree.tree_map(in_f64, given))
        pairs = list(zip(*map(torch.utils._pytree.tree_leaves, (found, expected))))
        for one, other in pairs:
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)
        backward(found, number)
        backward(expected, number)
        for (where, one), (_, other) in zip(built.named_parameters(), right.named_parameters()):
            assert (one.grad is None) == (other.grad is None), where
            if other.grad is not None:
                torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5, msg=f"{where}, pass {number}")
        for (where, one), (_, other) in zip(built.named_buffers(), right.named_buffers()):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5, msg=f"{where}, pass {number}")


def test_verify_says_what_it_compared():
    report = partita.Schedule(partita.load(Beside(), (torch.randn(4, 8),)), "dp=2").verify()
    step, passes, module = report.compared
    assert report and "x: tensor<4x8xf32>" in step and "piece by piece" in passes
    assert "with Beside of PyTorch, at float32[4, 8]" in module


def test_verify_finds_a_module_that_computes_something_else():
    from partita._verified import beside_pytorch

    x = torch.randn(4, 8)
    schedule, other = partita.Schedule(partita.load(Beside(), (x,)), "dp=1"), Beside()
    report = beside_pytorch(schedule.model, partita.Schedule(partita.load(other, (x,)), "dp=1").build, schedule.trainer, None, schedule._native.verify())
    assert not report and "of PyTorch" in repr(report) and "differ" in report.compared[-1]


def test_a_trainer_asks_which_of_two_scalars_is_the_loss():
    model = partita.load(Named(), (Found(torch.randn(4, 8), torch.randn(4, 8)),))
    assert not model.has_loss
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(model, None, "dp=1")
    assert refused.value.code == "E055" and "output.0.total" in refused.value.found


class Routed(nn.Module):
    """A loss of its own in an attribute."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        self.balance = self.b(x).square().mean()
        return self.a(x) - y


def test_verify_looks_at_each_argument_and_at_what_is_left_behind():
    x = torch.randn(4, 8)
    report = partita.Schedule(partita.load(Routed(), (x, x)), "dp=2").verify()
    assert report and any("attribute" in name for name, _, _ in report.tensors)
    assert any("grad.b.weight" in name for name, _, _ in report.tensors if name.startswith("pass"))
