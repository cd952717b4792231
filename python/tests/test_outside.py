"""What a forward pass reads beside tensors of PyTorch: generators, iterators, which parameters are trained, the mode. A built
module does as the module itself would, or refuses it by name."""

import copy
import io
import itertools
import queue
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import partita  # noqa: E402
from torch import nn  # noqa: E402

X = torch.randn(4, 8)


def build(module, mesh="dp=1"):
    return partita.Schedule(partita.load(module, (X,)), mesh).build()


class Drawing(nn.Module):
    """Scales what a layer computes by a number that ``draw`` gives."""

    def __init__(self, draw, **kept):
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 8), draw
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.layer(x) * float(self.draw(self))


def queued(*values):
    made = queue.Queue()
    for value in values:
        made.put(value)
    return made


DRAWN = {
    "random": lambda: Drawing(lambda _: random.random()),
    "numpy.random": lambda: Drawing(lambda _: np.random.rand()),
    "own": lambda: Drawing(lambda m: m.own.random(), own=random.Random(0)),
    "rising": lambda: Drawing(lambda m: next(m.rising), rising=(float(k) for k in range(9))),
    "waiting": lambda: Drawing(lambda m: m.waiting.get(), waiting=queued(1.0, 2.0, 3.0)),
    "text": lambda: Drawing(lambda m: float(m.text.readline()), text=io.StringIO("1\n2\n3\n")),
    "generator": lambda: Drawing(lambda m: m.generator.random(), generator=np.random.default_rng(0)),
    "counter": lambda: Drawing(lambda m: next(m.counter), counter=itertools.count(1)),
    "cycle": lambda: Drawing(lambda m: next(m.cycle), cycle=itertools.cycle([1, 2])),
}


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_that_are_not_drawn_by_pytorch_are_refused_by_name(name):
    before = random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(partita.PartitaError) as refused:
        build(DRAWN[name]())(X)
    assert refused.value.code == "E396" and name in refused.value.message
    assert random.getstate() == before[0] and (np.random.get_state()[1] == before[1]).all()


class Asking(nn.Module):
    """Computes other things for parameters that are trained."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.a.requires_grad_(False)

    def forward(self, x):
        y = self.a(x)
        y = y * 2 if self.a.weight.requires_grad else y * 3
        return self.b(y + 1 if y.requires_grad else y)


@pytest.mark.parametrize("mesh", ["dp=1", "fsdp=2", "pp=2"])
def test_forward_may_ask_which_parameters_are_trained(mesh):
    module = Asking()
    built = build(module, mesh)
    for is_trained in (False, True, False):
        built.a.requires_grad_(is_trained)
        module.a.requires_grad_(is_trained)
        built.zero_grad()
        module.zero_grad()
        found, expected = built(X), module(X)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        for own, right in zip(built.parameters(), module.parameters()):
            assert (own.grad is None) == (right.grad is None)
            if right.grad is not None:
                torch.testing.assert_close(own.grad, right.grad)


def test_a_buffer_that_is_trained_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(8).requires_grad_())

        def forward(self, x):
            return self.a(x) * self.scale

    built = build(Scaled())
    with pytest.raises(partita.PartitaError) as refused:
        built(X)
    assert refused.value.code == "E396" and "scale" in refused.value.message
    with torch.no_grad():
        built(X)
    built.scale = torch.ones(8)
    torch.testing.assert_close(built(X), copy.copy(built.a)(X))


def test_the_first_pass_may_be_in_inference_mode():
    module = nn.Linear(8, 8)
    built = build(module)
    with torch.inference_mode():
        torch.testing.assert_close(built(X), module(X))
        torch.testing.assert_close(built(X + 1), module(X + 1))
    built(X).sum().backward()
    assert built.weight.grad is not None


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.a(x), self.b(x)


def test_hooks_of_outputs_run_where_a_gradient_reaches():
    module = Two()
    for called in (build(module), module):
        seen = []
        one, other = called(X)
        one.register_hook(lambda _: seen.append("one"))
        other.register_hook(lambda gradient: seen.append(gradient.shape))
        other.sum().backward()
        assert seen == [other.shape]


def test_outputs_may_be_changed_in_place():
    module = Two()
    built = build(module)
    sums = []
    for called in (built, module):
        one, other = called(X)
        one.add_(1).detach_()
        other.mul_(2).sum().backward()
        sums.append(one.sum())
    assert module.a.weight.grad is None and built.a.weight.grad is None
    torch.testing.assert_close(*sums)
    torch.testing.assert_close(built.b.weight.grad, module.b.weight.grad)


def test_activations_of_a_built_module_may_be_checkpointed():
    module = nn.Linear(8, 8)
    built = build(module)
    for called in (built, module):
        x = X.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(called, x, use_reentrant=False).sin().sum().backward()
    torch.testing.assert_close(built.weight.grad, module.weight.grad)


def of_parameters(transform):
    def run(built):
        parameters = {name: value.detach().clone() for name, value in built.named_parameters()}
        return transform(lambda given: torch.func.functional_call(built, given, (X,)).sum())(parameters)

    return run


@pytest.mark.parametrize(
    "run",
    [
        of_parameters(torch.func.grad),
        lambda built: torch.func.grad(lambda x: built(x).sum())(X),
        lambda built: torch.vmap(built)(torch.stack([X, X])),
        lambda built: torch.func.jacrev(built)(X),
        lambda built: torch.func.jvp(built, (X,), (X,)),
        lambda built: torch.autograd.functional.jacobian(built, X, vectorize=True),
        lambda built: torch.jit.trace(built, (X,)),
        lambda built: torch.export.export(built, (X,), strict=False),
    ],
)
def test_transforms_are_refused(run):
    built = build(nn.Linear(8, 8))
    with pytest.raises(partita.PartitaError) as refused:
        run(built)
    assert refused.value.code == "E392"
    torch.testing.assert_close(torch.autograd.functional.jacobian(built, X).shape, torch.Size([4, 8, 4, 8]))


@pytest.mark.parametrize("given", [X.to("meta"), X.to_sparse()])
def test_tensors_without_dense_memory_are_refused(given):
    with pytest.raises(partita.PartitaError) as refused:
        build(nn.Linear(8, 8))(given)
    assert refused.value.code == "E415"


class Caching(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.a, self.change = nn.Linear(8, 8), change

    def forward(self, x, cache):
        y = self.a(x)
        self.change(cache, y)
        return y


@pytest.mark.parametrize(
    "cache, change",
    [
        ([], lambda cache, y: cache.append(y)),
        ({}, lambda cache, y: cache.update(last=y)),
        ({"count": 1}, lambda cache, y: cache.update(count=2)),
        ([[1, 2]], lambda cache, y: cache[0].pop()),
    ],
)
def test_a_container_of_the_caller_that_forward_changes_is_refused(cache, change):
    module = Caching(change)
    with pytest.raises(partita.PartitaError) as refused:
        partita.Schedule(partita.load(module, (X, copy.deepcopy(cache))), "dp=1").build()(X, cache)
    assert refused.value.code == "E396" and "arguments" in refused.value.message
