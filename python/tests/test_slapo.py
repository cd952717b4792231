"""Slapo's tutorial with its import line changed: what it prints, and its numbers beside PyTorch's."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import slapo  # noqa: E402


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1, self.activation, self.linear2 = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)

    def forward(self, data):
        return self.linear2(self.activation(self.linear1(data)))


def pattern(x, bias):
    return F.gelu(bias + x)


def lines(module):
    return [line.rstrip() for line in str(module).splitlines() if line.strip()]


def tensor_parallel(sch):
    sch["linear1"].shard("weight", axis=0)
    sch["linear1"].shard("bias", axis=0)
    sch["linear2"].shard("weight", axis=1)
    sch["linear2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")
    sch["linear1"].sync(mode="bwd_post", sync_op_or_fn="all_reduce")


def fused(sch):
    sch["linear1"].decompose()
    sch.trace(flatten=True)
    subgraph = sch.find(pattern)
    sch.fuse(subgraph, compiler="TorchScript", name="BiasGeLU")
    return subgraph


LINEAR1 = "  (linear1): Linear(in_features=1024, out_features=1024, bias=True)"
ACTIVATION = "  (activation): GELU(approximate='none')"
LINEAR2 = (
    "  (linear2): LinearWithSyncFunc(in_features=1024, out_features=1024, bias=True, "
    "sync_fn=partial(reduce_forward_output, group=None))"
)
FORWARD = [
    "def forward(self, data):",
    "    linear1_weight = self.linear1.weight",
    "    linear = torch._C._nn.linear(data, linear1_weight, None);  data = linear1_weight = None",
    "    linear1_bias = self.linear1.bias",
]
DEBUG = "# To see more debug info, please use `graph_module.print_readable()`"


def test_the_tutorial_prints_what_it_says():
    model = MLP(1024)
    sch = slapo.create_schedule(model)
    assert lines(sch.mod) == [
        "MLP(",
        LINEAR1,
        ACTIVATION,
        "  (linear2): Linear(in_features=1024, out_features=1024, bias=True)",
        ")",
    ]
    tensor_parallel(sch)
    assert lines(sch.mod) == ["MLP(", LINEAR1, ACTIVATION, LINEAR2, ")"]
    sch["linear1"].decompose()
    separate = LINEAR1.replace("Linear(", "LinearWithSeparateBias(")
    assert lines(sch.mod) == ["MLP(", separate, ACTIVATION, LINEAR2, ")"]
    sch.trace(flatten=True)
    assert lines(sch.mod) == [
        "GraphModule(",
        "  (linear1): Module()",
        ACTIVATION,
        LINEAR2,
        ")",
        *FORWARD,
        "    add = linear + linear1_bias;  linear = linear1_bias = None",
        "    activation = self.activation(add);  add = None",
        "    linear2 = self.linear2(activation);  activation = None",
        "    return linear2",
        DEBUG,
    ]
    subgraph = sch.find(pattern)
    assert str(subgraph) == "[[('', add), ('', activation)]]"
    sch.fuse(subgraph, compiler="TorchScript", name="BiasGeLU")
    assert lines(sch.mod) == [
        "GraphModule(",
        "  (linear1): Module()",
        LINEAR2,
        "  (BiasGeLU_0): FusedSubgraph(gelu(bias + x))",
        ")",
        *FORWARD,
        "    bias_ge_lu_0 = self.BiasGeLU_0(linear, linear1_bias);  linear = linear1_bias = None",
        "    linear2 = self.linear2(bias_ge_lu_0);  bias_ge_lu_0 = None",
        "    return linear2",
        DEBUG,
    ]
    x = torch.randn(2, 8, 1024)
    torch.testing.assert_close(sch.mod(x), model(x))


def test_the_environment_answers():
    slapo.env.setup(rank=0, world_size=1, backend="gloo")
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        assert slapo.create_schedule(MLP(4)).mesh == partita.Mesh("tp=1")
    finally:
        dist.destroy_process_group()
    slapo.env.setup(world_size=2)
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (0, 2)
        assert slapo.create_schedule(MLP(4)).mesh == partita.Mesh("tp=2")
    finally:
        dist.destroy_process_group()
    with pytest.raises(partita.PartitaError) as refused:
        slapo.env.setup(rank=1, world_size=2)
    assert refused.value.code == "E393"


@pytest.mark.parametrize("mesh", ["tp=1", "tp=2", "tp=3", "dp=2,tp=2"])
def test_the_tutorial_trains_as_pytorch_does(mesh):
    torch.manual_seed(0)
    model = MLP(64)
    sch = slapo.create_schedule(model, mesh=mesh)
    tensor_parallel(sch)
    fused(sch)
    opt_model, _ = slapo.build(sch, init_weights=False)
    data, target = torch.randn(2, 8, 64), torch.randn(2, 8, 64)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (model, opt_model)]
    for _ in range(3):
        losses = []
        for m, optimizer in zip((model, opt_model), optimizers):
            loss = F.mse_loss(m(data), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(opt_model.state_dict()[name], value, rtol=1e-4, atol=1e-4)


def test_the_tutorial_at_full_size_verifies():
    torch.manual_seed(0)
    sch = slapo.create_schedule(MLP(1024), mesh="tp=2")
    with slapo.Verify(sch, example_inputs=torch.randn(2, 16, 1024)) as verified:
        sch["linear1"].shard(["weight", "bias"], axis=0)
        sch["linear2"].shard("weight", axis=1)
        sch["linear2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")
        sch["linear1"].sync(mode="bwd_post", sync_op_or_fn="all_reduce")
        fused(sch)
    assert verified.largest_difference < 1e-5
    assert len(sch.plan) == 8


def test_a_schedule_that_changes_the_numbers_is_undone(monkeypatch):
    torch.manual_seed(0)
    sch = slapo.create_schedule(MLP(16), mesh="tp=2")
    before = str(sch.mod)
    inputs = [torch.randn(4, 16)]
    wrong = copy.deepcopy(sch._root.model)
    with torch.no_grad():
        wrong.linear1.bias.add_(1)
    from partita import _module

    planned = _module.planned_module
    monkeypatch.setattr(_module, "planned_module", lambda _, plan, mesh, same: planned(wrong, plan, mesh))
    with pytest.raises(partita.PartitaError) as refused:
        with slapo.Verify(sch, example_inputs=inputs):
            tensor_parallel(sch)
    assert refused.value.code == "E253" and "output 0" in refused.value.found
    assert len(sch.plan) == 0 and str(sch.mod) == before
    with pytest.raises(ZeroDivisionError):
        with slapo.Verify(sch, example_inputs=inputs):
            tensor_parallel(sch)
            1 / 0
    assert len(sch.plan) == 0 and str(sch.mod) == before


def test_mistakes_are_refused_with_a_code():
    sch = slapo.create_schedule(MLP(16), mesh="tp=2")
    sch["linear1"].shard("weight", axis=0)
    for code, wrong in [
        ("E221", lambda: sch["liner1"]),
        ("E231", lambda: sch["linear1"].shard("weight", axis=1)),
        ("E232", lambda: sch["linear1"].shard("wieght", axis=0)),
        ("E224", lambda: sch["linear1"].shard("bias", axis=1)),
        ("E234", lambda: sch["linear1"].sync("fwd_post", "all_scatter")),
        ("E248", lambda: sch.find(pattern)),
        ("E242", lambda: sch.find(r"layers\..*")),
        ("E242", lambda: sch.fuse([], name="X")),
    ]:
        with pytest.raises(partita.PartitaError) as refused:
            wrong()
        assert refused.value.code == code
    for wrong, reason in [
        (lambda: slapo.create_schedule(MLP), "the class MLP: call it"),
        (lambda: slapo.create_schedule(None), "found NoneType"),
        (lambda: sch["linear2"].shard("weight", axis="0"), "found '0'"),
        (lambda: sch[None], "named by their path"),
    ]:
        with pytest.raises(TypeError, match=reason):
            wrong()
    assert len(sch.plan) == 1
    assert [path for path, _ in sch.find(r"linear\d")] == ["linear1", "linear2"]
    with pytest.raises(partita.PartitaError) as refused:
        slapo.build(sch, example_inputs=[torch.randn(4, 15)])
    assert refused.value.code == "E415"
    first, second = (slapo.build(sch)[0] for _ in range(2))
    x = torch.randn(4, 16)
    torch.testing.assert_close(first(x), second(x))
    sch._root.model.linear3 = nn.Linear(16, 16)
    with pytest.raises(partita.PartitaError) as refused:
        slapo.build(sch)
    assert refused.value.code == "E393"


def test_patterns_bind_the_same_value_to_the_same_input():
    class Twice(nn.Module):
        def forward(self, x, y):
            return torch.relu(x + y) * 2 + F.relu(y + x) * torch.tanh(x)

    sch = slapo.create_schedule(Twice(), mesh="tp=1")
    sch.trace(flatten=True)
    assert str(sch.find(lambda a, b: torch.relu(a + b))) == "[[('', add), ('', relu)], [('', add_1), ('', relu_1)]]"
    for unmatched in (lambda a: torch.relu(a + a), lambda a, b: torch.tanh(a + b), lambda a: a * 3):
        with pytest.raises(partita.PartitaError) as refused:
            sch.find(unmatched)
        assert refused.value.code == "E242"
    with pytest.raises(partita.PartitaError) as refused:
        sch.find(lambda a: a if a.sum() > 0 else -a)
    assert refused.value.code == "E240"


def test_patterns_are_written_as_expressions_of_a_plan():
    from partita.slapo.pattern import Pattern

    for function, text in [
        (pattern, "gelu(bias + x)"),
        (lambda a, b, c: (a + b) * (c - 2) / a, "((a + b) * (c - 2)) / a"),
        (lambda a, b: torch.relu(torch.mul(a, b).tanh()), "relu(tanh(a * b))"),
    ]:
        assert Pattern(function).text() == text
    with pytest.raises(partita.PartitaError) as refused:
        Pattern(lambda a: torch.fft.fft(a)).text()
    assert refused.value.code == "E241"


def halves(module, count):
    """The text of a module whose first layer has rows, and whose second one has columns, over so many ranks."""
    text = lines(module)
    assert f"Linear(in_features=64, out_features={count}, bias=True)" in text[1]
    assert text[3].startswith(f"  (linear2): LinearWithSyncFunc(in_features={count}, out_features=64")
    return text


@pytest.mark.parametrize("mesh, count", [("tp=1", 64), ("tp=2", 32), ("tp=3", 22), ("dp=2,tp=2", 32)])
def test_modules_print_the_sizes_of_a_rank(mesh, count):
    sch = slapo.create_schedule(MLP(64), mesh=mesh)
    tensor_parallel(sch)
    built, _ = slapo.build(sch)
    assert halves(built, count) == halves(sch.mod, count) == halves(copy.deepcopy(built), count)
    assert lines(sch["linear1"].mod) == [f"Linear(in_features=64, out_features={count}, bias=True)"]
    # Tensors are whole, and the user's module is as it was.
    assert built.linear1.out_features == 64 and built.linear1.weight.shape == (64, 64)
    assert "out_features=64" in str(sch._root.model.linear1)
    fused(sch)
    traced, _ = slapo.build(sch, init_weights=False)
    assert lines(traced) == lines(sch.mod) and lines(traced)[0] == "GraphModule("
    assert f"LinearWithSyncFunc(in_features={count}, out_features=64" in str(traced) and "bias_ge_lu_0" in str(traced)
    assert f"in_features={count}" in str(nn.Sequential(traced))
    # Of one that has other parts now, those.
    built.linear1 = nn.Identity()
    assert lines(built)[1] == "  (linear1): Identity()"


def test_layers_of_all_kinds_print_the_sizes_of_a_rank():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Conv1d(4, 6, 1), nn.ConvTranspose1d(6, 4, 1), nn.BatchNorm1d(4), nn.Linear(8, 5))
    sch = slapo.create_schedule(model, mesh="tp=2")
    for path, name, axis in [("0", "weight", 1), ("1", "weight", 0), ("2", "weight", 1), ("3", "weight", 0), ("4", "bias", -1)]:
        sch[path].shard(name, axis=axis)
    found = str(slapo.build(sch)[0])
    for text in ("Embedding(10, 4)", "Conv1d(4, 3,", "ConvTranspose1d(6, 2,", "BatchNorm1d(2,", "in_features=8, out_features=3"):
        assert text in found


def test_modules_of_the_proposal_print_the_sizes_of_a_rank():
    from partita import ms

    sch = ms.create_schedule(MLP(64), world_size=2)
    sch[sch.forward_ops[0]].partition(axis=0, param="weight")
    built, _ = ms.build(sch)
    assert "(linear1): Linear(in_features=64, out_features=32, bias=True)" in str(built)
    assert [node.name for node in built.graph.nodes][1:-1] == ["linear1", "activation", "linear2"]


FORWARD_SYNC = 'all_reduce of "linear2" in the forward pass'
BACKWARD_SYNC = 'all_reduce of "linear1" in the backward pass'
SHARDS = [
    lambda sch: sch["linear1"].shard(["weight", "bias"], axis=0),
    lambda sch: sch["linear2"].shard("weight", axis=1),
]
SYNCS = [
    lambda sch: sch["linear2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce"),
    lambda sch: sch["linear1"].sync(mode="bwd_post", sync_op_or_fn="all_reduce"),
]


@pytest.mark.parametrize(
    "mesh, said, expected",
    [
        ("tp=2", SHARDS, [FORWARD_SYNC, BACKWARD_SYNC]),
        ("tp=2", SHARDS[:1], [FORWARD_SYNC, BACKWARD_SYNC]),
        ("tp=2", [*SHARDS, SYNCS[0]], [BACKWARD_SYNC]),
        ("tp=2", [*SHARDS, SYNCS[1]], [FORWARD_SYNC]),
        ("tp=2", [*SHARDS, *SYNCS], []),
        ("tp=2", [*SHARDS, *SYNCS, fused], []),
        ("tp=2", [*SHARDS, fused], [FORWARD_SYNC, BACKWARD_SYNC]),
        ("tp=1", SHARDS, []),
        ("dp=2,tp=2", [*SHARDS, *SYNCS], []),
        ("dp=2", [], []),
    ],
)
def test_verify_says_what_no_sync_says(mesh, said, expected):
    sch = slapo.create_schedule(MLP(64), mesh=mesh)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with slapo.Verify(sch, example_inputs=[torch.randn(6, 64)]) as verified:
            for line in said:
                line(sch)
    notes = [note for note in found if "no sync() of the schedule says" in str(note.message)]
    assert verified.added == expected and len(notes) == bool(expected)
    for note, what in zip(notes, [expected] * len(notes)):
        assert all(text in str(note.message) for text in what) and note.filename == __file__
        assert ('sch["linear2"].sync(mode="fwd_post"' in str(note.message)) == (FORWARD_SYNC in what)


def test_a_sync_of_a_module_says_what_is_inside():
    from partita.slapo._added import Collective, added

    inside = Collective("layers.0.mlp.down", "all_reduce", False)
    for path in ("", "layers.0", "layers.0.mlp.down"):
        assert added([inside], [(path, "fwd_post")]) == []
    assert added([inside], [("layers.0", "bwd_post")]) == [inside]
    # A value may be communicated where it is read.
    assert added([inside], [("layers.0.norm", "fwd_pre")]) == []
    assert added([inside, Collective("head", "all_reduce", False)], [("layers.0.norm", "fwd_pre")]) != []
