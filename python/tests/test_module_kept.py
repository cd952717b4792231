"""A built module stays what the user's module is: arguments and parameters are known by their places, not by identity; what
forward() leaves behind is there after each call; what was changed since counts. PyTorch runs beside."""

import copy
import gc
import types

import numpy as np
import pytest

import partita

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
T = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
MESHES = ["dp=1", "dp=2"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(module, *args, mesh="dp=2"):
    return partita.Schedule(partita.load(module, args), mesh).build()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def refusal(wrong):
    with pytest.raises(partita.PartitaError) as refused:
        wrong()
    return refused.value


def train(make, mesh="dp=2", extra=lambda module: 0.0, before=lambda module: None, tie=lambda module: None):
    """Three steps of a built module and of PyTorch's, with other batches, in f64. Returns the built module."""
    torch.manual_seed(0)
    module = make().double()
    torch.manual_seed(0)
    beside = make().double()
    tie(beside)
    before(module)
    built = build(module, X.double(), mesh=mesh)
    pairs = [(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in (built, beside)]
    for step in range(3):
        x, results = torch.randn(4, 3, dtype=torch.float64), []
        for each, optimizer in pairs:
            before(each)
            optimizer.zero_grad()
            y = each(x)
            (y.pow(2).mean() + extra(each)).backward()
            results.append((y, [value.grad for value in each.parameters()]))
        torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
        for _, optimizer in pairs:
            optimizer.step()
    torch.testing.assert_close(dict(built.named_parameters()), dict(beside.named_parameters()), rtol=1e-9, atol=1e-9)
    return built


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gate, self.aux = nn.Linear(3, 3), nn.Linear(3, 3), None

    def loss(self, x):
        return self.gate(x).softmax(-1).pow(2).mean()

    def forward(self, x):
        return self.layer(torch.tanh(self.gate(x)))


# Arguments and parameters


class Two(Base):
    def forward(self, x, y):
        return self.layer(x) - 2 * self.gate(y)


class Nested(Base):
    def forward(self, given):
        return self.layer(given["a"]) + 2 * self.gate(given["b"][0])


@pytest.mark.parametrize("mesh", MESHES)
def test_two_arguments_are_two_inputs(mesh):
    module = nn.Linear(3, 3)
    for first in ((X, X), (X, X[:]), (X, X.view(4, 3))):
        trainer = partita.Trainer(partita.load(module, first, loss=F.mse_loss), None, mesh, "sgd")
        assert trainer.step((X, T)) == pytest.approx(F.mse_loss(module(X), T).item(), rel=1e-5)
    module = Two()
    built = build(module, X, X, mesh=mesh)
    for args in ((X, X), (X, T), (T, X), (T, T[:])):
        close(built(*args), module(*args))
    close(built(y=X, x=T), module(T, X))
    module = Nested()
    built = build(module, {"a": X, "b": [X]}, mesh=mesh)
    for given in ({"a": X, "b": [X]}, {"a": X, "b": [T]}, {"b": [X], "a": T}):
        close(built(given), module(given))


def test_an_argument_may_be_a_parameter():
    built = build(nn.Linear(3, 3), torch.randn(3, 3))
    beside = copy.deepcopy(built)._planning.original(copy.deepcopy(built))
    for x in (built.weight, torch.randn(3, 3)):
        close(built(x), F.linear(x, built.weight, built.bias))
    built(built.weight).pow(2).sum().backward()
    beside(beside.weight).pow(2).sum().backward()
    close(built.weight.grad, beside.weight.grad)


@pytest.mark.parametrize("value", [1, 1.5, True, -0.0, 2, "double"])
def test_other_constants_among_arguments_are_another_program(value):
    class Times(Base):
        def forward(self, x, by):
            return self.layer(x) * (2 if by == "double" else by) / (1 if isinstance(by, bool) else 3)

    module = Times()
    built = build(module, X, 1)
    built(X, 1)
    close(built(X, value), module(X, value))


def pruned(module):
    del module[0]


def swapped(module):
    module[0], module[1] = module[1], module[0]


def inserted(module):
    module.insert(1, nn.Linear(3, 3, dtype=module[0].weight.dtype))
    nn.init.eye_(module[1].weight), nn.init.zeros_(module[1].bias)


def one_twice(module):
    module[1] = module[0]


@pytest.mark.parametrize("change", [pruned, swapped, inserted, one_twice])
def test_parameters_that_change_places_are_found(change):
    module = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    built = build(module, X)
    for each in (built, module):
        each(X)
        change(each)
        each(X).pow(2).sum().backward()
    close(built(T), module(T))
    close([value.grad for value in built.parameters()], [value.grad for value in module.parameters()])


def test_an_entry_taken_out_and_put_back():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterDict({"a": torch.randn(3), "b": torch.randn(3)})

        def forward(self, x):
            return x * self.p["a"] + self.p["b"]

    module = Named()
    built = build(module, X)
    for each in (built, module):
        each(X)
        each.p["a"] = each.p.pop("a")
        assert list(each.p) == ["b", "a"]
    close(built(X), module(X))


def whole(module):
    module[2].weight.data = module[0].weight.data


def row(module):
    module[2].bias.data = module[0].weight.data[0]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("tie", [whole, row])
@pytest.mark.parametrize("when", ["before", "after", "later"])
def test_parameters_in_one_memory_are_two_parameters(mesh, tie, when):
    def make():
        return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    module, beside = make(), make()
    if when == "before":
        tie(module)
    built = build(module, X, mesh=mesh)
    if when == "later":
        built(X).sum().backward()
    if when != "before":
        tie(built)
    tie(beside)
    with torch.no_grad():
        for one, other in zip(beside.parameters(), built.parameters()):
            one.copy_(other)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (built, beside)]
    for _ in range(3):
        x = torch.randn(4, 3)
        for each, optimizer in zip((built, beside), optimizers):
            optimizer.zero_grad()
            each(x).pow(2).sum().backward()
            optimizer.step()
        torch.testing.assert_close(list(built.parameters()), list(beside.parameters()), rtol=1e-3, atol=1e-3)
    error = refusal(lambda: partita.Trainer(partita.load(beside, (X, T), loss=F.mse_loss), None, mesh))
    assert error.code == "E398" and "0.weight" in error.message


# What forward() leaves behind


class Attribute(Base):
    def forward(self, x):
        self.aux = self.loss(x)
        return self.layer(x)


class Entries(Base):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        self.kept["a"] = self.loss(x)
        self.kept["b"] = {"list": [self.gate(x).mean(), (self.loss(x), 3)]}
        self.shape = x.shape
        return self.layer(x)


class Buffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("lost", torch.zeros(()))

    def forward(self, x):
        self.lost = self.loss(x)
        return self.layer(x)


class Listed(Base):
    everywhere = []

    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        self.losses.append(self.loss(x))
        Listed.everywhere.append(self.gate(x).mean())
        return self.layer(x)


class Expert(Base):
    def forward(self, x):
        self.aux = self.loss(x)
        return super().forward(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.total = nn.ModuleList(Expert() for _ in range(3)), 0.0

    def forward(self, x):
        for expert in self.experts:
            x = expert(x)
            self.total = self.total + expert.aux
        return x


class Store:
    def __init__(self):
        self.last, self.all = None, []

    def add(self, value):
        self.last = value
        self.all.append(value)


class Stored(Base):
    def __init__(self):
        super().__init__()
        self.store = Store()

    def forward(self, x):
        self.store.add(self.loss(x))
        return self.layer(x)


GLOBAL = []


class Globally(Base):
    def forward(self, x):
        GLOBAL.append(self.loss(x))
        return self.layer(x)


def cleared(module):
    for values in (getattr(module, "losses", []), Listed.everywhere, GLOBAL):
        values.clear()
    if hasattr(module, "total"):
        module.total = 0.0
    if hasattr(module, "store"):
        module.store.all.clear()


LEFT = [
    (Attribute, lambda m: m.aux),
    (Entries, lambda m: m.kept["a"] + m.kept["b"]["list"][0] * m.kept["b"]["list"][1][0] * m.kept["b"]["list"][1][1]),
    (Buffer, lambda m: m.lost),
    (Listed, lambda m: m.losses[0] + Listed.everywhere[0]),
    (Experts, lambda m: m.total + sum(expert.aux for expert in m.experts)),
    (Stored, lambda m: m.store.last + m.store.all[0]),
    (Globally, lambda m: GLOBAL[0]),
]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("make, extra", LEFT, ids=[make.__name__ for make, _ in LEFT])
def test_losses_that_forward_leaves_behind_have_their_gradients(mesh, make, extra):
    built = train(make, mesh, extra, cleared)
    # Most calls run what was exported already.
    assert len(built._planning.programs) <= 2


def test_a_hook_may_keep_an_activation():
    kept = {}

    def make():
        module = Base()
        module.gate.register_forward_hook(lambda _, inputs, output: kept.__setitem__("gate", output))
        return module

    train(make, extra=lambda _: kept["gate"].pow(2).mean())


@pytest.mark.parametrize("make", [make for make, _ in LEFT])
def test_nothing_of_an_export_stays(make):
    module = make()
    cleared(module)

    def everything(value, found):
        if isinstance(value, torch.Tensor):
            found.append((type(value), value.data_ptr(), value._version))
        elif isinstance(value, nn.Module) or isinstance(value, Store):
            everything(value.__dict__, found)
        elif isinstance(value, dict):
            found.append(list(value)), [everything(part, found) for part in value.values()]
        elif isinstance(value, (list, tuple)):
            found.append(len(value)), [everything(part, found) for part in value]
        else:
            found.append(id(value))
        return found

    kept = [module, GLOBAL, Listed.everywhere, type(module)]
    before, attributes = everything(kept, []), {name: id(value) for name, value in module.__dict__.items()}
    partita.load(module, X)
    partita.load(module, (X, T), loss=F.mse_loss)
    assert everything(kept, []) == before and {name: id(value) for name, value in module.__dict__.items()} == attributes
    # A module that has run has tensors of autograd, which PyTorch cannot copy.
    module(X)
    cleared(module)
    close(build(module, X)(T), module(T))


def test_what_is_left_is_what_pytorch_leaves():
    class Keeps(Base):
        def forward(self, x):
            self.detached, self.given, self.weights = self.loss(x).detach(), x, [self.layer.weight]
            self.result = self.layer(x)
            return self.result

    built = build(Keeps(), X)
    for _ in range(2):
        y = built(X)
        assert built.given is X and built.weights[0] is built.layer.weight and built.result is y
        assert not built.detached.requires_grad and y.requires_grad


def test_an_argument_that_is_changed_in_place():
    class Adds(Base):
        def forward(self, x):
            x.add_(1)
            return self.layer(x)

    module = Adds()
    built = build(module, X)
    one, other = X.clone(), X.clone()
    close(built(one), module(other))
    close(one, other)
    built(one).sum().backward()
    assert refusal(lambda: built(X.clone().requires_grad_() * 1)).code in ("E390", "E396")


@pytest.mark.parametrize("mesh", MESHES)
def test_a_loss_function_may_read_what_is_left(mesh):
    for make, read in ((Attribute, lambda m: m.aux), (Experts, lambda m: sum(e.aux for e in m.experts))):
        module = make()
        cleared(module)
        if make is Experts:
            module.forward = lambda x: module.experts[1](module.experts[0](x)) + module.experts[2](x)
        beside = copy.deepcopy(module)
        model = partita.load(module, (X, T), loss=lambda y, t: F.mse_loss(y, t) + read(module))
        trainer = partita.Trainer(model, None, mesh, partita.optim.SGD(lr=0.1))
        if make is Experts:
            beside.forward = lambda x: beside.experts[1](beside.experts[0](x)) + beside.experts[2](x)
        optimizer = torch.optim.SGD(beside.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(4, 3)
            optimizer.zero_grad()
            loss = F.mse_loss(beside(x), T) + read(beside)
            loss.backward()
            optimizer.step()
            assert trainer.step((x, T)) == pytest.approx(loss.item(), rel=1e-4)


def test_what_changes_in_each_call_is_refused_by_name():
    class Counts(Base):
        def __init__(self):
            super().__init__()
            self.calls, self.seen = 0, []

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.calls

    class Logs(Counts):
        def forward(self, x):
            self.seen.append(3.0)
            return self.layer(x)

    for make, name in ((Counts, "calls"), (Logs, "seen")):
        module = make()
        error = refusal(lambda: partita.load(module, X))
        assert error.code == "E396" and name in error.message and module.calls == 0 and not module.seen


def test_state_in_an_attribute_is_refused_when_it_is_read():
    class Recurrent(Base):
        state = None

        def forward(self, x):
            before = torch.zeros_like(x) if self.state is None else self.state
            self.state = torch.tanh(self.gate(before) + x).detach()
            return self.layer(self.state)

    model = partita.load(Recurrent(), X)
    built = partita.Schedule(model, "dp=1").build()
    close(built(X), F.linear(built.state, built.layer.weight, built.layer.bias))
    error = refusal(lambda: built(X))
    assert error.code == "E396" and "state" in error.message
    built.state = None
    built(X)
    model = partita.load(Recurrent(), (X, T), loss=F.mse_loss)
    assert refusal(lambda: partita.Trainer(model, None, "dp=1")).code == "E396"


def test_a_tensor_that_is_trained_and_no_parameter_is_refused():
    class Plain(Base):
        def __init__(self):
            super().__init__()
            self.weights = [nn.Parameter(torch.ones(3))]

        def forward(self, x):
            return self.layer(x) * self.weights[0]

    built = build(Plain(), X)
    error = refusal(lambda: built(X))
    assert error.code == "E396" and "weights[0]" in error.message


# What was changed since

SCALE = 2.0


class Changing(nn.Module):
    of_class = 1.0

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(3, 3), nn.Dropout(0.0), nn.BatchNorm1d(3)
        self.scale, self.options, self.mask, self.array = 1.0, {"k": [1.0]}, torch.ones(3), np.ones(3, "float32")
        self.part, self.config = nn.Tanh(), types.SimpleNamespace(power=1)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        x = self.part(self.norm(self.drop(self.layer(x)))) * self.scale * self.options["k"][0] * self.of_class
        return x**self.config.power * self.mask * torch.from_numpy(self.array) * SCALE + self.shift


def of_hook(module):
    module.layer.register_forward_hook(lambda _, inputs, output: output * 5)


def of_forward(module):
    module.layer.forward = types.MethodType(lambda self, x: F.linear(x, 2 * self.weight), module.layer)


CHANGES = {
    "temperature": lambda m: setattr(m, "scale", 3.0),
    "type": lambda m: setattr(m, "scale", torch.tensor(2.0)),
    "list": lambda m: m.options["k"].__setitem__(0, 3.0),
    "dict": lambda m: m.options.update(k=[4.0]),
    "mask": lambda m: m.mask.__setitem__(1, 0.0),
    "new mask": lambda m: setattr(m, "mask", torch.full((3,), 4.0)),
    "array": lambda m: m.array.__setitem__(0, 7.0),
    "buffer": lambda m: m.shift.add_(1),
    "dropout": lambda m: setattr(m.drop, "p", 1.0),
    "momentum": lambda m: setattr(m.norm, "momentum", 0.5),
    "epsilon": lambda m: setattr(m.norm, "eps", 1.0),
    "submodule": lambda m: setattr(m, "part", nn.Sigmoid()),
    "larger": lambda m: setattr(m, "part", nn.Sequential(nn.Tanh(), nn.Linear(3, 3, bias=False).requires_grad_(False))),
    "inside": lambda m: setattr(m.config, "power", 2),
    "mode": lambda m: m.norm.eval(),
    "hook": of_hook,
    "forward": of_forward,
    "class": lambda m: setattr(m.layer, "__class__", type("Wide", (nn.Linear,), {"forward": lambda s, x: 2 * x})),
}


@pytest.mark.parametrize("mesh", ["dp=2"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_build_counts(mesh, name):
    module = Changing()
    built = build(module, X, mesh=mesh)
    for each in (built, module):
        each(X)
        torch.manual_seed(3)
        CHANGES[name](each)
        each.zero_grad()
        each(T)
        each(X + 1).pow(2).sum().backward()
    close(built(X), module(X))
    close(dict(built.named_buffers()), dict(module.named_buffers()))
    # Of the bias before a norm, the gradient is rounding.
    found, expected = ([p.grad for p in each.parameters()] for each in (built, module))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


# Parametrizations


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


PARAMETRIZATIONS = {
    "own": lambda part: nn.utils.parametrize.register_parametrization(part, "weight", Doubled()),
    "two": lambda part: [nn.utils.parametrize.register_parametrization(part, name, Doubled()) for name in ("weight", "bias")],
    "weight norm": lambda part: nn.utils.parametrizations.weight_norm(part),
}


@pytest.mark.parametrize("is_root", [True, False])
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations_come_and_go(name, is_before, is_root):
    torch.manual_seed(0)
    module = nn.Linear(3, 3) if is_root else nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def part(of):
        return of if is_root else of[0]

    if is_before:
        PARAMETRIZATIONS[name](part(module))
    built = build(module, X)
    close(built(X), module(X))
    if not is_before:
        for each in (module, built):
            PARAMETRIZATIONS[name](part(each))
        close(built(X), module(X))
    twin = copy.deepcopy(built)
    for tensor in [*list(part(module).parametrizations)]:
        for each in (built, module):
            nn.utils.parametrize.remove_parametrizations(part(each), tensor)
        close(built(X), module(X))
    assert not nn.utils.parametrize.is_parametrized(part(built)) and hasattr(built, "_planning")
    for each in (built, module, twin):
        each.zero_grad()
        each(X).pow(2).sum().backward()
    close(built.state_dict(), module.state_dict())
    close(part(built).weight.grad, part(module).weight.grad)
    close(twin(X), module(X))
    assert type(part(module)) is nn.Linear and nn.utils.parametrize.is_parametrized(part(twin))


def test_globals_classes_and_modes_count(monkeypatch):
    class Asks(Changing):
        def forward(self, x):
            return super().forward(x) * (2.0 if torch.is_grad_enabled() else 3.0)

    module = Asks()
    built = build(module, X)
    close(built(X), module(X))
    with torch.no_grad():
        close(built(X), module(X))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    close(built(X), module(X))
    monkeypatch.setattr(Changing, "of_class", 7.0)
    close(built(X), module(X))
    monkeypatch.setattr(Asks, "forward", lambda self, x: self.layer(x))
    close(built(X), module(X))


def test_going_back_and_forth_exports_once(monkeypatch):
    from partita import _export

    exports = []
    exported = _export._exported
    monkeypatch.setattr(_export, "_exported", lambda *given: exports.append(1) or exported(*given))
    module = Changing()
    built = build(module, X)
    exports.clear()
    for scale in (1.0, 2.0, 1.0, 2.0):
        built.scale = module.scale = scale
        close(built(X), module(X))
    assert len(exports) == 2


# Between load and training


@pytest.mark.parametrize("make", [lambda model: partita.Trainer(model, None, "dp=2"), lambda m: partita.Schedule(m, "dp=2").trainer()])
def test_a_trainer_takes_the_module_as_it_is(make):
    def of_data(module):
        module[0].weight.data.mul_(3)

    for change in (
        lambda m: m.load_state_dict(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3)).state_dict()),
        of_data,
        lambda m: m.eval(),
        lambda m: setattr(m[1], "p", 1.0),
        lambda m: m[2].requires_grad_(False),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(3, 3))),
    ):
        module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 3))
        model = partita.load(module, (X, T), loss=F.mse_loss)
        change(module)
        if module[1].p == 0.5:
            module[1].p = 0.0
        frozen = module[2].weight.clone()
        trainer = make(model)
        assert trainer.step((X, T)) == pytest.approx(F.mse_loss(module(X), T).item(), rel=1e-5)
        assert module[2].weight.requires_grad or torch.equal(trainer.state_dict()["2.weight"], frozen)


def test_an_unchanged_module_is_not_loaded_again():
    model = partita.load(nn.Linear(3, 3), (X, T), loss=F.mse_loss)
    assert partita.Trainer(model, None, "dp=1").model is model and partita.Schedule(model, "dp=1").model is model


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_made_before_build_is_refused(kind):
    module = nn.Linear(3, 3)
    old = kind(module.parameters(), lr=0.1)
    built = build(module, X)
    built(X).pow(2).sum().backward()
    error = refusal(old.step)
    assert error.code == "E397" and "built.parameters()" in error.expected
    kind(built.parameters(), lr=0.1).step()
    # Both may train, each with its own optimizer.
    module(X).pow(2).sum().backward()
    old.step()
    old.zero_grad(set_to_none=False)
    assert refusal(old.step).code == "E397"
    del built, error
    gc.collect()
    old.step()


def test_an_optimizer_of_some_parameters_trains_these_alone():
    module = Base()
    some = torch.optim.SGD(module.layer.parameters(), lr=0.1)
    trainer = partita.Trainer(partita.load(module, (X, T), loss=F.mse_loss), None, "dp=1", some)
    trainer.step((X, T))
    assert torch.equal(trainer.state_dict()["gate.weight"], module.gate.weight)
    assert not torch.equal(trainer.state_dict()["layer.weight"], module.layer.weight)


def test_hooks_of_the_module_itself_are_about_its_own_result():
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda _, inputs, output: 3 * output)
    trainer = partita.Trainer(partita.load(module, (X, T), loss=F.mse_loss), None, "dp=1")
    assert trainer.step((X, T)) == pytest.approx(F.mse_loss(module(X), T).item(), rel=1e-5)
    module.register_full_backward_hook(lambda *_: None)
    assert refusal(lambda: partita.Trainer(partita.load(module, (X, T), loss=F.mse_loss), None, "dp=1")).code == "E391"
