"""The demos of the scheduling proposal with their import lines changed, beside PyTorch; and what is refused."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import ms  # noqa: E402
from partita.ms.kernels import FusedLayerNorm  # noqa: E402


class MLP(nn.Module):
    def __init__(self, dim, rows=None):
        super().__init__()
        self.dense_1 = nn.Linear(dim, dim * 2)
        self.layer_norm = nn.LayerNorm([rows or dim, dim * 2])
        self.activation = nn.ReLU()
        self.dense_2 = nn.Linear(dim * 2, dim)

    def forward(self, x):
        return self.dense_2(self.activation(self.layer_norm(self.dense_1(x))))


class FusedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim * 2)
        self.ln = nn.LayerNorm([dim, dim * 2])
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.ln(self.fc(x)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = MLP(32)
    with torch.no_grad():
        for parameter in made.layer_norm.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return made


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def trains_alike(first, second, optimizers, steps=3):
    for step in range(steps):
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(step))
        losses = []
        for module, optimizer in zip((first, second), optimizers):
            optimizer.zero_grad()
            loss = module(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        close(losses[0], losses[1])


def test_the_graph_and_its_operators_print_as_in_the_proposal(model):
    sch = ms.create_schedule(copy.deepcopy(model))
    lines = str(sch.gm.graph).splitlines()
    assert lines[1].strip() == "%x : [num_users=1] = placeholder[target=x]"
    assert lines[2].strip() == "%dense_1 : [num_users=1] = call_module[target=dense_1](args = (%x,), kwargs = {})"
    assert str(sch.forward_ops) == "[dense_1, layer_norm, activation, dense_2]"


def test_kernel_injection(model):
    sch = ms.create_schedule(copy.deepcopy(model))
    ops = sch.forward_ops
    sch[ops[1]].replace(FusedLayerNorm, [32, 32 * 2])
    assert type(sch.gm.layer_norm) is FusedLayerNorm
    opt_model, optimizer = ms.build(sch)
    assert optimizer is None and "call_module[target=layer_norm]" in str(opt_model.graph)
    inp = torch.rand(32, 32)
    np.testing.assert_almost_equal(model(inp).detach().numpy(), opt_model(inp).detach().numpy(), decimal=5)
    assert list(opt_model.state_dict()) == list(model.state_dict())
    trains_alike(opt_model, model, [torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (opt_model, model)])


@pytest.mark.parametrize("mesh", ["tp=1", "dp=2", "tp=2"])
def test_kernel_fusion(model, mesh):
    sch = ms.create_schedule(copy.deepcopy(model), mesh=mesh)
    state = torch.random.get_rng_state()
    node = sch[sch.forward_ops[0:3]].replace(FusedBlock, 32)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert str(sch.forward_ops) == "[fused_block_0, dense_2]" and node.name == "fused_block_0"
    assert "%fused_block_0 : [num_users=1] = call_module[target=FusedBlock_0](args = (%x,), kwargs = {})" in str(sch.gm.graph)
    if mesh == "tp=2":
        sch["FusedBlock_0.fc"].partition(axis=0, param="weight")
        sch["dense_2"].partition(axis=1, param="weight")
    opt_model, _ = ms.build(sch)
    names = {"fc": "dense_1", "ln": "layer_norm"}
    for new, old in names.items():
        for own in ("weight", "bias"):
            close(getattr(getattr(opt_model.FusedBlock_0, new), own), getattr(getattr(model, old), own))
    x = torch.randn(32, 32)
    close(opt_model(x), model(x))
    trains_alike(opt_model, model, [torch.optim.SGD(m.parameters(), lr=0.1) for m in (opt_model, model)])
    close(opt_model.FusedBlock_0.ln.weight, model.layer_norm.weight)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parameter_sharding(model, world_size):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    beside = copy.deepcopy(model)
    sch = ms.create_schedule(model, optimizer, world_size, 0)
    ops = sch.forward_ops
    sch[ops[0]].partition(axis=0, param="weight")
    sch[ops[3]].partition(axis=1, param="weight")
    sch[ops[3]].partition(axis=0)
    assert [line for _, line in sch.plan.lines()] == ["shard(weight, 0)", "shard(weight, 1)", "shard(output, 0)"]
    built, moved = ms.build(sch)
    assert type(moved) is torch.optim.SGD and moved.param_groups[0]["lr"] == 0.002
    assert {id(p) for p in moved.param_groups[0]["params"]} == {id(p) for p in built.parameters()}
    other = torch.optim.SGD(beside.parameters(), lr=0.002, momentum=0.9)
    for step in range(5):
        inp = torch.rand(32, 32, generator=torch.Generator().manual_seed(step))
        for module, rule in ((built, moved), (beside, other)):
            output = module(inp)
            output.sum().backward()
            rule.step()
        close(built.dense_1.weight.grad, beside.dense_1.weight.grad, 1e-4)
    close(dict(built.state_dict()), dict(beside.state_dict()), 1e-4)
    # What is partitioned is on a rank in part: the plan says so, and the ranks' programs have it.
    lines = partita.Schedule(partita.load(model, inp), sch.mesh, sch.plan)
    assert f"[{64 // world_size}, 32]" in lines.explain("dense_1.weight")
    kinds = {kind for _, kind, _, _ in lines.collectives()}
    assert ("reduce_scatter" in kinds) == (world_size > 1)


def test_an_optimizer_takes_its_states_along(model):
    rule = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    x = torch.randn(32, 32)
    model(x).pow(2).mean().backward()
    rule.step()
    beside = copy.deepcopy(model)
    other = copy.deepcopy(rule, {id(p): q for p, q in zip(model.parameters(), beside.parameters())})
    sch = ms.create_schedule(model, rule, 2, 0)
    sch[sch.forward_ops[0:3]].replace(FusedBlock, 32)
    sch["dense_2"].partition(axis=1, param="weight")
    built, moved = ms.build(sch)
    assert len(moved.state) == 6 and moved.state[built.FusedBlock_0.fc.weight]["step"] == 1
    trains_alike(built, beside, [moved, other])
    stranger = ms.create_schedule(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(partita.PartitaError) as refused:
        ms.build(stranger)
    assert refused.value.code == "E393" and "[2, 2]" in refused.value.found


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, y):
        h = torch.relu(self.a(x)) * self.scale
        return self.b(h) + y + h


class Swapped(nn.Module):
    """Two layers of one shape in another order, with names that do not tell."""

    def __init__(self):
        super().__init__()
        self.kernel, self.shift = nn.Parameter(torch.zeros(8, 8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return x @ self.kernel.t() + self.shift


class ScaledRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return x.clamp(min=0) * self.scale


def test_functions_and_parameters_of_the_model_are_replaced():
    torch.manual_seed(0)
    model = Residual()
    with torch.no_grad():
        model.scale.normal_()
    sch = ms.create_schedule(model, mesh="dp=2")
    assert str(sch.forward_ops) == "[a, relu, mul, b, add, add_1]"
    sch[sch.forward_ops[1:3]].replace(ScaledRelu)
    sch["a"].replace(Swapped)
    assert str(sch.forward_ops) == "[a, scaled_relu_0, b, add, add_1]"
    built, _ = ms.build(sch)
    assert set(dict(built.named_parameters())) == {"ScaledRelu_0.scale", "a.kernel", "a.shift", "b.weight", "b.bias"}
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    close(built(x, y), model(x, y))
    model.scale.grad = built.ScaledRelu_0.scale.grad = None
    built(x, y).sum().backward(), model(x, y).sum().backward()
    close(built.ScaledRelu_0.scale.grad, model.scale.grad)


class Two(nn.Module):
    def __init__(self, first="weight", second="bias"):
        super().__init__()
        setattr(self, first, nn.Parameter(torch.zeros(32, 64)))
        setattr(self, second, nn.Parameter(torch.zeros(32, 64)))
        self.names = (first, second)

    def forward(self, x):
        weight, bias = (getattr(self, name) for name in self.names)
        return F.layer_norm(x, [32, 64], weight, bias)


class Wrong(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1e-2


class Biased(nn.LayerNorm):
    """Forward as it should be; a gradient is lost."""

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight.detach(), self.bias, self.eps)


def test_what_does_not_fit_is_refused_and_changes_nothing(model):
    sch = ms.create_schedule(model, mesh="dp=2")
    before, ops = str(sch.gm.graph), sch.forward_ops
    for what, wrong in [
        ("0 tensors of shape [64, 32] replace 1", lambda: sch[ops[0:2]].replace(nn.LayerNorm, [32, 64])),
        ("1 tensors of shape [16, 32] replace 0", lambda: sch[ops[0]].replace(nn.Linear, 32, 16)),
        ("which of the tensors of shape [32, 64] is which", lambda: sch[ops[1]].replace(Two, "gain", "offset")),
        ("which of the tensors of shape [32, 64] is which", lambda: sch[ops[1]].replace(Two, "bias", "weight")),
        ("more than one value is read outside", lambda: sch[[ops[0], ops[3]]].replace(nn.Identity)),
        ("its arguments are others", lambda: sch[ops[2]].replace(Arguments)),
        ("there is no `gian`", lambda: sch[ops[1]].replace(Two, parameters={"gian": "layer_norm.weight"})),
        ("other shapes", lambda: sch[ops[0:2]].replace(Two, parameters={"weight": "dense_1.bias"})),
    ]:
        with pytest.raises(partita.PartitaError) as refused:
            wrong()
        assert refused.value.code == "E250" and what in refused.value.message, refused.value
        assert "test_ms.py" in refused.value.at
    assert str(sch.gm.graph) == before and sch.forward_ops == ops
    named = {"gain": "layer_norm.weight", "offset": "layer_norm.bias"}
    sch[ops[1]].replace(Two, "gain", "offset", parameters=named)
    x = torch.randn(32, 32)
    close(ms.build(sch)[0](x), model(x))


class Arguments(nn.Module):
    def forward(self):
        return 1


@pytest.mark.parametrize("cls, what", [(Wrong, "output 0"), (Biased, "the gradient of layer_norm.weight")])
def test_a_replacement_that_computes_another_thing_is_refused(model, cls, what):
    sch = ms.create_schedule(model, mesh="tp=2")
    sch[sch.forward_ops[1]].replace(cls, [32, 64])
    x = torch.randn(32, 32)
    built, _ = ms.build(sch)
    for call in (lambda: ms.build(sch, example_inputs=[x]), lambda: built(x), lambda: copy.deepcopy(built)(x)):
        with pytest.raises(partita.PartitaError) as refused:
            call()
        assert refused.value.code == "E251" and refused.value.found.startswith(what), refused.value
        assert f"layer_norm: replace({cls.__name__})" in refused.value.at and "test_ms.py" in refused.value.at


def test_mistakes_are_refused_with_a_code(model):
    sch = ms.create_schedule(model, mesh="tp=2")
    ops = sch.forward_ops
    sch[ops[0]].partition(axis=0, param="weight")
    other = ms.create_schedule(model).forward_ops
    for code, wrong in [
        ("E221", lambda: sch["dense_3"]),
        ("E221", lambda: sch[[]]),
        ("E221", lambda: sch[other[0]]),
        ("E221", lambda: sch[ops[0:2]].partition(axis=0, param="weight")),
        ("E224", lambda: sch[ops[3]].partition(axis=2, param="weight")),
        ("E231", lambda: sch[ops[0]].partition(axis=1, param="weight")),
        ("E232", lambda: sch[ops[2]].partition(axis=0, param="weight")),
        ("E393", lambda: ms.create_schedule(model, None, 2, 1)),
    ]:
        with pytest.raises(partita.PartitaError) as refused:
            wrong()
        assert refused.value.code == code
    assert "`dense_1`" in pytest.raises(partita.PartitaError, lambda: sch["dense"]).value.help
    assert "of another schedule" in pytest.raises(partita.PartitaError, lambda: sch[other[0]]).value.found
    with pytest.raises(TypeError, match="an optimizer of PyTorch, found 'sgd'"):
        ms.create_schedule(model, "sgd", 2, 0)
    assert len(sch.plan) == 1


def test_a_model_that_cannot_be_traced_has_modules_by_path():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(self.up(x)) if x.dim() == 2 and bool(x.shape[0] > 1) else x

    torch.manual_seed(0)
    model = Branching()
    sch = ms.create_schedule(model, mesh="tp=2")
    with pytest.raises(partita.PartitaError) as refused:
        sch.forward_ops  # noqa: B018
    assert refused.value.code == "E248"
    sch["up"].partition(axis=0, param="weight")
    sch["down"].partition(axis=1, param="weight")
    built, _ = ms.build(sch)
    x = torch.randn(4, 8)
    close(built(x), model(x))


def test_a_built_model_is_copied_and_pickled(model):
    sch = ms.create_schedule(model, mesh="dp=2")
    sch[sch.forward_ops[1]].replace(FusedLayerNorm, [32, 64])
    built, _ = ms.build(sch)
    x = torch.randn(32, 32)
    out = built(x)
    for other in (copy.deepcopy(built), pickle.loads(pickle.dumps(built))):
        close(other(x), out)
