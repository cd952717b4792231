"""Parallel modules in the words of torch.distributed: the numbers of one device, the plans that the calls write, refusals."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError  # noqa: E402
from partita.distributed import init_device_mesh, plan_of  # noqa: E402
from partita.distributed.fsdp import fully_shard  # noqa: E402
from partita.distributed.tensor import Partial, Replicate, Shard  # noqa: E402
from partita.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class ToyModel(nn.Module):
    def __init__(self, inputs=10, hidden=32, outputs=5):
        super().__init__()
        self.in_proj = nn.Linear(inputs, hidden)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


class Block(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = ToyModel(width, 16, width)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.layers = nn.ModuleList([Block(width), Block(width)])
        self.head = nn.Linear(width, 20)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def close(found, expected, tolerance=1e-4):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def lines(module):
    return dict(plan_of(module).lines())


def train_beside(parallel, plain, batches, loss, rule):
    """Trains both and compares outputs, losses, gradients and parameters in each step."""
    rules = [rule(module.parameters()) for module in (parallel, plain)]
    for inputs in batches:
        for module, optimizer in zip((parallel, plain), rules):
            optimizer.zero_grad()
            loss(module, *inputs).backward()
        close([p.grad for p in parallel.parameters()], [p.grad for p in plain.parameters()])
        for optimizer in rules:
            optimizer.step()
        close(dict(parallel.state_dict()), dict(plain.state_dict()))
        close(parallel(inputs[0]), plain(inputs[0]))


def made(kind=ToyModel):
    torch.manual_seed(0)
    module = kind()
    return module, copy.deepcopy(module)


def rows(count=4, generator=None):
    return [(torch.rand(20, 10, generator=torch.Generator().manual_seed(seed)),) for seed in range(count)]


def test_the_sequence_parallel_toy_trains_as_on_one_device():
    module, plain = made()
    parallel = parallelize_module(
        module=module,
        device_mesh=init_device_mesh(device_type="cpu", mesh_shape=(3,)),
        parallelize_plan={
            "in_proj": ColwiseParallel(input_layouts=Shard(0)),
            "out_proj": RowwiseParallel(output_layouts=Shard(0)),
        },
    )
    assert parallel is module and isinstance(parallel, ToyModel)
    assert lines(parallel) == {
        "in_proj": "colwise(input_from=shard(0), axis=mesh_0)",
        "out_proj": "rowwise(output=shard(0), axis=mesh_0)",
    }
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.25, foreach=True)  # noqa: E731
    train_beside(parallel, plain, rows(10), lambda m, x: m(x).sum(), adamw)


def test_the_toy_meets_once_before_and_once_after():
    """An all_gather of the rows, a reduce_scatter of the sums, as the toy's text says; parameters are never moved."""
    module, _ = made()
    plan = {"in_proj": ColwiseParallel(input_layouts=Shard(0)), "out_proj": RowwiseParallel(output_layouts=Shard(0))}
    parallelize_module(module, init_device_mesh("cpu", (3,)), plan)
    loss = lambda output, target: output.sum()  # noqa: E731
    model = partita.load(ToyModel(), (torch.rand(20, 10), torch.rand(1)), loss=loss)
    sch = partita.Schedule(model, "mesh_0=3", plan_of(module))
    forward = [(kind, count) for phase, kind, count, _ in sch.collectives() if phase == "forward"]
    # The all_reduce is the sum that is the loss.
    assert sorted(forward) == [("all_gather", 1), ("all_reduce", 1), ("reduce_scatter", 1)]


@pytest.mark.parametrize("names", [("dp", "tp"), ("data", "model")])
def test_fsdp_and_tensor_parallelism_train_as_on_one_device(names):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    module, plain = made(Stack)
    for layer in module.layers:
        parallelize_module(
            layer,
            mesh[names[1]],
            {
                "norm": SequenceParallel(),
                "mlp.in_proj": ColwiseParallel(),
                "mlp.out_proj": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
        fully_shard(layer, mesh=mesh[names[0]])
    fully_shard(module, mesh=mesh[names[0]])
    assert type(module).__name__ == "Stack" and isinstance(module, Stack)
    tokens = [torch.randint(20, (4, 8), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    loss = lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten())  # noqa: E731
    train_beside(module, plain, [(x,) for x in tokens], loss, lambda p: torch.optim.AdamW(p, lr=0.01))


def test_fully_shard_keeps_pytorchs_defaults():
    """The outermost module keeps its gathered parameters, the layers that are sharded by themselves do not."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    module, plain = made(Stack)
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    assert lines(module) == {
        "**": "fsdp(gather=step, axis=dp)",
        "layers.0": "fsdp(axis=dp)",
        "layers.1": "fsdp(axis=dp)",
    }
    tokens = torch.arange(16).reshape(2, 8)
    loss = lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten())  # noqa: E731
    model = partita.load(plain, (tokens, tokens), loss=loss)

    def gathers(sharded):
        found = partita.Schedule(model, "dp=2", plan_of(sharded)).collectives()
        return {phase: count for phase, kind, count, _ in found if kind == "all_gather"}

    # Of the table, two layers and the head; then of the two layers.
    assert gathers(module) == {"forward": 4, "backward": 2}
    alike, _ = made(Stack)
    fully_shard(alike, mesh=mesh, reshard_after_forward=True)
    assert lines(alike) == {"**": "fsdp(axis=dp)"}
    assert gathers(alike)["backward"] > 2


def test_a_module_whose_parts_are_all_sharded_has_no_line_of_its_own():
    """As in PyTorch, the call for the whole shards what is left, which is nothing; a plan refuses a line without effect."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    module = copy.deepcopy(plain)
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    assert lines(module) == {"0": "fsdp(axis=dp)", "1": "fsdp(axis=dp)"}
    x = torch.randn(4, 4)
    model = partita.load(plain, (x, x), loss=F.mse_loss)
    assert partita.Trainer(model, plan_of(module), "dp=2").step((x, x)) > 0


@pytest.mark.parametrize("style", [ColwiseParallel(), RowwiseParallel(), ColwiseParallel(output_layouts=Replicate())])
@pytest.mark.parametrize("kind", [lambda: nn.Linear(10, 6), lambda: nn.Linear(10, 6, bias=False)])
def test_a_layer_alone_is_parallel(style, kind):
    module, plain = made(kind)
    parallelize_module(module, init_device_mesh("cpu", (2,)), style)
    train_beside(module, plain, rows(2), lambda m, x: m(x).square().mean(), lambda p: torch.optim.SGD(p, lr=0.1))


@pytest.mark.parametrize("style, dim", [(ColwiseParallel(), 1), (RowwiseParallel(), 0)])
def test_an_embedding_alone_is_parallel(style, dim):
    module, plain = made(lambda: nn.Embedding(20, 6))
    parallelize_module(module, init_device_mesh("cpu", (2,)), style)
    assert plan_of(module).lines() == [("", f"shard(weight, {dim}, axis=mesh_0)")]
    tokens = torch.arange(12).reshape(3, 4)
    close(module(tokens), plain(tokens))


def test_inputs_and_outputs_are_prepared():
    module, plain = made(Block)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(
        module,
        mesh,
        {
            "norm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "mlp.in_proj": ColwiseParallel(),
            "mlp.out_proj": RowwiseParallel(),
        },
    )
    # A second call adds to the first.
    parallelize_module(
        module, mesh, {"mlp": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))}
    )
    x = torch.rand(4, 8, 12)
    close(module(x), plain(x))
    assert [request for path, request in plan_of(module).lines() if path == "mlp"] == [
        "prepare(input_from=[shard(1)], input=[replicate], axis=tp)",
        "prepare(output_from=[replicate], output=[shard(1)], axis=tp)",
    ]


def test_patterns_name_several_modules():
    module, plain = made(Stack)
    parallelize_module(
        module,
        init_device_mesh("cpu", (2,)),
        {"layers.*.mlp.in_proj": ColwiseParallel(), "layers.*.mlp.out_proj": RowwiseParallel()},
    )
    assert list(lines(module)) == [f"layers.{n}.mlp.{name}" for name in ("in_proj", "out_proj") for n in range(2)]
    tokens = torch.arange(16).reshape(2, 8)
    close(module(tokens), plain(tokens))


def test_a_parallel_module_is_copied_pickled_and_changed():
    module, plain = made()
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(module, mesh, {"in_proj": ColwiseParallel()})
    x = torch.rand(4, 10)
    close(module(x), plain(x))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert plan_of(other) == plan_of(module)
        close(other(x), plain(x))
    parallelize_module(module, mesh, {"out_proj": RowwiseParallel()})
    assert list(lines(module)) == ["in_proj", "out_proj"]
    close(module(x), plain(x))
    module.load_state_dict({name: value + 1 for name, value in plain.state_dict().items()})
    plain.load_state_dict({name: value + 1 for name, value in plain.state_dict().items()})
    close(module(x), plain(x))
    with pytest.raises(TypeError):
        plan_of(plain)


def refusals():
    one = init_device_mesh("cpu", (2,))
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {
        "an unknown path": (
            "E221",
            lambda m: parallelize_module(m, one, {"in_prj": ColwiseParallel()}),
            "did you mean `in_proj`?",
        ),
        "another module": ("E380", lambda m: parallelize_module(m, one, {"relu": ColwiseParallel()}), "nn.Linear"),
        "a whole model": ("E380", lambda m: parallelize_module(m, one, RowwiseParallel()), "nn.Linear"),
        "a whole mesh": ("E380", lambda m: parallelize_module(m, two, {}), 'mesh["tp"]'),
        "terms as a layout": ("E380", lambda m: ColwiseParallel(input_layouts=Partial()), "Shard or Replicate"),
        "no layout to convert to": ("E380", lambda m: PrepareModuleInput(input_layouts=Shard(0)), "desired_input"),
        "two meshes": (
            "E381",
            lambda m: fully_shard(parallelize_module(m, one, {"in_proj": ColwiseParallel()}), mesh=two["dp"]),
            "make one mesh",
        ),
        "a policy": ("E380", lambda m: fully_shard(m, mesh=one, mp_policy=object()), "mp_policy"),
        "ranks of a part": ("E380", lambda m: fully_shard(m, mesh=one, reshard_after_forward=4), "=4"),
        "a mesh of two dimensions": ("E380", lambda m: fully_shard(m, mesh=two), 'mesh["dp"]'),
        "no mesh": ("E380", lambda m: fully_shard(m), "WORLD_SIZE"),
    }


def test_what_is_no_module_is_refused():
    mesh = init_device_mesh("cpu", (2,))
    for misuse in (
        lambda: fully_shard(torch.ones(2), mesh=mesh),
        lambda: parallelize_module(torch.ones(2), mesh, ColwiseParallel()),
        lambda: parallelize_module(torch.ones(2), mesh, {"up": ColwiseParallel()}),
    ):
        with pytest.raises(TypeError, match="a module of PyTorch, found Tensor"):
            misuse()


@pytest.mark.parametrize("what", refusals())
def test_misuse_is_refused(what, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    code, misuse, text = refusals()[what]
    with pytest.raises(PartitaError) as refused:
        misuse(ToyModel())
    assert refused.value.code == code and text in str(refused.value)


def test_all_ranks_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    module, plain = made()
    fully_shard(module)
    x = torch.rand(4, 10)
    close(module(x), plain(x))
    assert lines(module) == {"**": "fsdp(gather=step, axis=fsdp)"}


def test_a_style_of_a_whole_model_that_needs_a_path_is_refused_when_it_is_planned():
    module = nn.LayerNorm(12)
    parallelize_module(module, init_device_mesh("cpu", (2,)), SequenceParallel())
    with pytest.raises(PartitaError) as refused:
        module(torch.rand(2, 4, 12))
    assert refused.value.code == "E380"
