"""The rest of Slapo's language: modules replaced, patterns of paths, notes, random numbers, schedules without inputs."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import slapo  # noqa: E402
from partita.slapo.pattern import call_module  # noqa: E402


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        scores = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2), -1)
        return self.out(scores @ self.value(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Norm(nn.Module):
    """A layer norm of its own code, whose parameters have the same names."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight + self.bias


class TanhGelu(nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        return F.gelu(self.linear(x))


class ErfGelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = nn.Sequential(Block(16), Block(16))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) / 8)
    return made


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(5))


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def trains_alike(built, model):
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (built, model)]
    for _ in range(3):
        losses = []
        for module, optimizer in zip((built, model), optimizers):
            optimizer.zero_grad()
            loss = module(X).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        close(losses[0], losses[1], 1e-4)


@pytest.mark.parametrize("mesh", ["tp=1", "tp=2"])
def test_a_module_is_replaced_and_keeps_its_parameters(model, mesh):
    sch = slapo.create_schedule(model, mesh=mesh)
    with slapo.Verify(sch, example_inputs=[X]):
        sch["0.norm"].replace(Norm(16))
        sch["0.up"].shard("weight", axis=0)
        sch["0.up"].shard("bias", axis=0)
        sch["0.down"].shard("weight", axis=1)
        sch["0.down"].sync("fwd_post", "all_reduce")
    assert type(sch.mod[0].norm) is Norm and "(norm): Norm()" in str(sch.mod)
    assert type(model[0].norm) is nn.LayerNorm
    built, _ = slapo.build(sch)
    assert list(built.state_dict()) == list(model.state_dict())
    close(built(X), model(X))
    trains_alike(built, model)


def test_all_modules_of_a_class_are_replaced(model):
    sch = slapo.create_schedule(model, mesh="dp=2")
    seen = []

    def make(path, module):
        seen.append(path)
        return Norm(module.normalized_shape[0])

    sch.replace_all(nn.LayerNorm, make)
    sch["1"].replace_all(nn.GELU, lambda path, module: ErfGelu())
    assert seen == ["0.norm", "1.norm"]
    kinds = {path: type(module) for path, module in sch.mod.named_modules()}
    assert kinds["0.norm"] is kinds["1.norm"] is Norm and kinds["0.act"] is nn.GELU and kinds["1.act"] is ErfGelu
    built, _ = slapo.build(sch, example_inputs=[X])
    trains_alike(built, model)
    with pytest.raises(partita.PartitaError) as refused:
        sch.replace_all(nn.BatchNorm1d, make)
    assert refused.value.code == "E242"
    # One that does not fit leaves all as they were.
    fresh = slapo.create_schedule(model, mesh="dp=2")
    with pytest.raises(partita.PartitaError) as refused:
        fresh.replace_all(nn.LayerNorm, lambda path, module: Norm(16 if path == "0.norm" else 8))
    assert refused.value.code == "E250" and "1.norm" in refused.value.at
    assert type(fresh.mod[0].norm) is nn.LayerNorm and fresh._root.edited is model


def test_ops_are_replaced_in_a_traced_module(model):
    sch = slapo.create_schedule(model[0], mesh="dp=2")
    sch.trace(flatten=True)
    found = sch.find(lambda x: F.gelu(x))
    assert str(found) == "[[('', act)]]"
    sch.replace(ErfGelu(), found)
    assert type(sch.mod.act) is ErfGelu
    sch.replace(Up(), sch.find(lambda x: call_module("act", call_module("up", x))))
    assert "%up_0 : [num_users=1] = call_module[target=Up_0](args = (%add,), kwargs = {})" in str(sch.mod.graph)
    node = sch.find_node(lambda node: node.name == "softmax")
    sch.replace(nn.Softmax(-1), node)
    built, _ = slapo.build(sch, example_inputs=[X])
    close(built(X), model[0](X))
    trains_alike(built, model[0])


def test_what_a_replacement_changes_is_found(model):
    sch = slapo.create_schedule(model, mesh="dp=2")
    sch["0.act"].replace(TanhGelu())
    built, _ = slapo.build(sch)
    for call in (lambda: built(X), lambda: slapo.build(sch, example_inputs=[X])):
        with pytest.raises(partita.PartitaError) as refused:
            call()
        assert refused.value.code == "E251" and "replace(TanhGelu)" in refused.value.at
        assert "test_slapo_replace.py" in refused.value.at
    before = slapo.create_schedule(model, mesh="dp=2")
    with pytest.raises(partita.PartitaError) as refused:
        with slapo.Verify(before, example_inputs=[X]):
            before["1.act"].replace(TanhGelu())
    assert refused.value.code == "E251"
    assert type(before.mod[1].act) is nn.GELU
    close(slapo.build(before)[0](X), model(X))


def test_a_module_with_parameters_of_its_own_is_named(model):
    fused = nn.Linear(16, 48)
    sch = slapo.create_schedule(model, mesh="tp=1")
    with pytest.raises(partita.PartitaError) as refused:
        sch["0.attention"].replace(fused)
    assert refused.value.code == "E250" and "parameters={new name: old name}" in refused.value.help
    own = nn.LayerNorm(16)
    own.load_state_dict(model[0].norm.state_dict())
    sch["0.norm"].replace(own, parameters={})
    close(slapo.build(sch)[0](X), model(X))
    assert sch._root.edited[0].norm.weight is own.weight


def test_modules_are_matched_by_their_paths(model):
    sch = slapo.create_schedule(model[0], mesh="tp=2")
    sch.trace(flatten=True)
    found = sch.find(lambda x: call_module("query|key|value", x))
    names = ["attention_query", "attention_key", "attention_value"]
    assert [[node.name for _, node in match] for match in found] == [[name] for name in names]
    (pair,) = sch.find(lambda x: F.gelu(call_module(r"u.", x)))
    assert [node.name for _, node in pair] == ["up", "act"]
    # A pattern inside the modules of a path.
    inside = sch.find(r"attention.*", lambda x: call_module(r".*", x))
    assert [node.name for match in inside for _, node in match] == [*names, "attention_out"]
    sch.fuse(sch.find(lambda x: F.gelu(call_module("up", x))), compiler="TorchScript", name="UpGelu")
    assert 'module(\\"up\\", x)' in sch.plan.to_calls()
    with pytest.raises(partita.PartitaError) as refused:
        sch.find(lambda x: call_module("quer", x))
    assert refused.value.code == "E242"
    with pytest.raises(TypeError, match="is for patterns"):
        call_module("up", X)


def test_a_fused_match_by_path_computes_the_same(model):
    sch = slapo.create_schedule(model[0], mesh="tp=2")
    with slapo.Verify(sch, example_inputs=[X]):
        sch.trace(flatten=True)
        sch.fuse(sch.find(lambda x: F.gelu(call_module("up", x))), name="UpGelu")
    # A schedule in the making may leave ranks alike; a built module may not.
    with pytest.raises(partita.PartitaError) as refused:
        slapo.build(sch)[0](X)
    assert refused.value.code == "E009" and "`tp`" in refused.value.message
    sch["down"].shard("weight", axis=1)
    close(slapo.build(sch)[0](X), model[0](X))


def test_notes_and_random_numbers_are_lines_of_the_plan(model):
    sch = slapo.create_schedule(model, mesh="dp=2")
    sch["0.up"].annotate("weight", "init_std", 0.02)
    sch["0"].fork_rng()
    assert [line for _, line in sch.plan.lines()] == ["annotate(weight, init_std, 0.02)", "fork_rng"]
    with pytest.raises(partita.PartitaError) as refused:
        sch["0.up"].annotate("wieght", "init_std", 0.02)
    assert refused.value.code == "E232"
    close(slapo.build(sch)[0](X), model(X))


def test_a_schedule_needs_no_inputs_and_serves_every_shape(model):
    sch = slapo.create_schedule(model, mesh="tp=2")
    sch["0.up"].shard("weight", axis=0)
    built, _ = slapo.build(sch)
    for shape in ((2, 6, 16), (4, 3, 16)):
        x = torch.randn(shape)
        close(built(x), model(x))
    wrong = slapo.create_schedule(model, mesh="tp=3")
    wrong["0.attention"].sync("fwd_post", "reduce_scatter")
    built, _ = slapo.build(wrong)
    with pytest.raises(partita.PartitaError):
        built(X)
