"""Plans on PyTorch's own runtime: losses, parameters and states of native ranks, from four processes over gloo; refusals.

Run as a script, in each process of a launcher, this file trains every case and writes what it found.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError  # noqa: E402
from partita.torch._lines import Call, matches, parse  # noqa: E402

RANKS = 4
COMPARE = Path(__file__).resolve().parents[2] / "tests" / "xla" / "compare.py"


class MLP(nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        # A bias of keys would have no gradient but rounding, which AdamW makes large.
        self.q, self.v, self.o = (nn.Linear(width, width) for _ in range(3))
        self.k = nn.Linear(width, width, bias=False)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (f(x).view(rows, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), MLP(width, 2 * width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, layers=2, width=16, heads=4, vocabulary=32, length=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Summed(MLP):
    def forward(self, x, y):
        return ((super().forward(x) - y) ** 2).sum()


class Judged(MLP):
    """Computes its loss itself, as models of Hugging Face do."""

    def forward(self, x, target):
        return F.mse_loss(super().forward(x), target)


def next_token(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


TENSOR = {
    "**.q": "colwise",
    "**.k": "colwise",
    "**.v": "colwise",
    "**.o": "rowwise",
    "**.up": "colwise",
    "**.down": "rowwise",
}
SEQUENCE = TENSOR | {
    "**.o": "rowwise(output=shard(1))",
    "**.down": "rowwise(output=shard(1))",
    "blocks.*.norm_*": "sequence",
    "tokens": "rowwise",
    "head": "colwise",
}
PRIMITIVES = """
sch["blocks.*.mlp.up"].shard("weight", 0)
sch["blocks.*.mlp.up"].shard("bias", 0)
sch["blocks.*.mlp.down"].shard("weight", 1)
sch["blocks.*.mlp.down"].sync("fwd_post", "all_reduce")
sch["blocks.*.attention"].checkpoint()
"""
HALVES = {"blocks.0": "pipeline_split"}
QUARTERS = {f"blocks.{number}": "pipeline_split" for number in range(3)}
MLP_TENSOR = {"up": "colwise", "down": "rowwise"}
MLP_HALVES = {"up": "pipeline_split"}

# Name: model, mesh, plan, options. Those that are named by a mesh take 20 steps, the others 5.
CASES = {
    "mlp dp=4": (MLP, "dp=4", {}, {}),
    "mlp fsdp=4": (MLP, "fsdp=4", {"**": "fsdp"}, {}),
    "mlp tp=4": (MLP, "tp=4", MLP_TENSOR, {}),
    "mlp dp=2,tp=2": (MLP, "dp=2,tp=2", MLP_TENSOR, {"microbatches": 2}),
    "mlp dp=2,pp=2": (MLP, "dp=2,pp=2", MLP_HALVES, {"microbatches": 4}),
    "mlp with a loss": (Judged, "dp=2,tp=2", MLP_TENSOR, {"microbatches": 2}),
    "gpt dp=4": (GPT, "dp=4", {}, {}),
    "gpt fsdp=4": (GPT, "fsdp=4", {"**": "fsdp"}, {"clip_grad_norm": 0.5}),
    "gpt of fsdp in parts": (GPT, "dp=2,fsdp=2", {"blocks.*": "fsdp(gather=step)"}, {"microbatches": 2}),
    "gpt tp=4": (GPT, "tp=4", TENSOR, {"clip_grad_norm": 0.5}),
    "gpt of sequences": (GPT, "tp=4", SEQUENCE, {}),
    "gpt of primitives": (GPT, "dp=2,tp=2", PRIMITIVES, {}),
    "gpt dp=2,pp=2": (GPT, "dp=2,pp=2", HALVES, {"microbatches": 4, "clip_grad_norm": 0.5}),
    "gpt of stages and tensors": (
        GPT,
        "pp=2,tp=2",
        SEQUENCE | HALVES | {"blocks.1": "checkpoint"},
        {"microbatches": 2},
    ),
}
# Beside losses: timetables, which PyTorch has a class for, or a table of tasks.
TIMETABLES = {
    "interleaved-1f1b": ("fsdp=2,pp=2", QUARTERS | {"**": "fsdp"}, "ScheduleInterleaved1F1B"),
    "zbv": ("dp=2,pp=2", QUARTERS, "ScheduleZBVZeroBubble"),
    "zb-h1": ("pp=4", QUARTERS, "_PipelineScheduleRuntime"),
}


def made(kind, **sizes):
    torch.manual_seed(0)
    return kind(**sizes)


def loss_of(kind):
    return {GPT: next_token, MLP: F.mse_loss}.get(kind)


def steps_of(name):
    return 20 if "=" in name else 5


def batches(kind, count=1):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        if kind is GPT:
            yield tuple(torch.randint(32, (8, 8), generator=generator) for _ in range(2))
        elif kind is Judged:
            yield {name: torch.randn(8, 16, generator=generator) for name in ("target", "x")}
        else:
            yield tuple(torch.randn(8, 16, generator=generator) for _ in range(2))


@functools.cache
def loaded(kind):
    return partita.load(made(kind), next(batches(kind)), loss=loss_of(kind))


def trainer(kind, mesh, plan, options, engine):
    return partita.Trainer(loaded(kind), plan, mesh, partita.optim.AdamW(lr=3e-3), engine=engine, **options)


def main(path):
    """What each process of the launcher does."""
    import partita.torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    found = {}
    for name, (kind, mesh, plan, options) in CASES.items():
        running = trainer(kind, mesh, plan, options, "torch")
        losses = [running.step(batch) for batch in batches(kind, steps_of(name))]
        whole = {key: value.square().sum().item() for key, value in running.state_dict().items()}
        states = {key: float((value**2).sum()) for key, value in running.optimizer_state().items()}
        found[name] = {"losses": losses, "norm": running.grad_norm, "parameters": whole, "states": states}
    for name, (mesh, plan, kind) in TIMETABLES.items():
        sizes = partita.Mesh(mesh)
        devices = init_device_mesh("cpu", tuple(sizes.shape), mesh_dim_names=tuple(sizes.axis_names))
        module = made(GPT, layers=4)
        inputs, target = next(batches(GPT))
        parallel = partita.torch.apply(
            plan, module, devices, loss=next_token, microbatches=4, timetable=name, example_inputs=(inputs,)
        )
        loss = parallel.backward(inputs, target)
        gradients = parallel.whole({key: value.grad for key, value in parallel.named_parameters()})
        plain = made(GPT, layers=4)
        next_token(plain(inputs), target).backward()
        worst = max((gradients[key] - value.grad).abs().max().item() for key, value in plain.named_parameters())
        found[name] = {"loss": loss.item(), "schedule": type(parallel.schedule).__name__, "worst": worst}
        found[name]["names"] = sorted(gradients) == sorted(key for key, _ in plain.named_parameters())
    # A loop of one's own, and a state that comes back.
    devices = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    parallel = partita.torch.apply(TENSOR, made(GPT), devices)
    inputs, target = next(batches(GPT))
    with parallel.running():
        loss = next_token(parallel.module(inputs), target)
        loss.backward()
    before = parallel.state_dict()
    with torch.no_grad():
        for parameter in parallel.parameters():
            parameter.zero_()
    parallel.load_state_dict(before)
    same = all(torch.equal(value, before[key]) for key, value in parallel.state_dict().items())
    found["loop"] = {
        "loss": loss.item(),
        "same": same,
        "part": parallel.module.blocks[0].mlp.up.weight.to_local().shape,
    }
    refused = {}
    for key, misuse in {
        "rows": lambda: partita.torch.apply({}, made(MLP), init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))).local(
            torch.ones(6, 2)
        ),
        "sum": lambda: partita.torch.apply(
            {},
            made(MLP),
            init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)),
            loss=lambda o, y: F.mse_loss(o, y) * len(o),
        ).backward(*next(batches(MLP))),
        "no loss": lambda: partita.torch.apply(
            {}, made(MLP), init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        ).backward(torch.ones(8, 16)),
        "a sum in the module": lambda: partita.torch.apply(
            {}, Summed(), init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        ).backward(*next(batches(MLP))),
        "stages without inputs": lambda: partita.torch.apply(
            MLP_HALVES, made(MLP), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp")), loss=F.mse_loss
        ),
    }.items():
        try:
            misuse()
        except PartitaError as error:
            refused[key] = str(error)
    found["refused"] = refused
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the processes found."""
    path = tmp_path_factory.mktemp("torch") / "found.json"
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "partita.launch", "-n", str(RANKS), __file__, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_pytorch_trains_as_native_ranks_do(found, name):
    kind, mesh, plan, options = CASES[name]
    native = trainer(kind, mesh, plan, options, "native")
    losses = [native.step(batch) for batch in batches(kind, steps_of(name))]
    assert losses[-1] != pytest.approx(losses[0], abs=1e-3)
    assert found[name]["losses"] == pytest.approx(losses, abs=1e-4)
    assert found[name]["norm"] == (native.grad_norm and pytest.approx(native.grad_norm, rel=1e-3))
    whole = {key: value.square().sum().item() for key, value in native.state_dict().items()}
    assert found[name]["parameters"] == pytest.approx(whole, rel=1e-3, abs=1e-4)
    states = {key: float((value**2).sum()) for key, value in native.optimizer_state().items()}
    assert found[name]["states"] == pytest.approx(states, rel=1e-2, abs=1e-6)


@pytest.mark.parametrize("name", TIMETABLES)
def test_timetables_run_as_pytorchs_classes_or_as_tables(found, name):
    plain = made(GPT, layers=4)
    inputs, target = next(batches(GPT))
    assert found[name]["schedule"] == TIMETABLES[name][2] and found[name]["names"]
    assert found[name]["loss"] == pytest.approx(next_token(plain(inputs), target).item(), abs=1e-5)
    assert found[name]["worst"] < 1e-5


def test_a_loop_of_ones_own_and_a_state_that_comes_back(found):
    inputs, target = next(batches(GPT))
    assert found["loop"]["loss"] == pytest.approx(next_token(made(GPT)(inputs), target).item(), abs=1e-5)
    assert found["loop"]["same"] and found["loop"]["part"] == [8, 16]


def test_what_only_processes_find_is_refused(found):
    refused = found["refused"]
    assert all("E394" in text for text in refused.values())
    assert "a multiple of 4 rows" in refused["rows"] and "found: 6 rows" in refused["rows"]
    assert "not the mean of the losses of its halves" in refused["sum"]
    assert "not the mean of the losses of its halves" in refused["a sum in the module"]
    assert "the module returns no loss" in refused["no loss"]
    assert "no example_inputs" in refused["stages without inputs"]


COMMANDS = {
    "dp=2": ("mlp", []),
    "dp=2,tp=2": ("gpt", ["train.microbatches=2"]),
    "fsdp=4": ("llama", []),
    "dp=2,pp=2": ("gpt", ["train.microbatches=2", "model.tied=false"]),
}


@pytest.mark.parametrize("mesh", COMMANDS)
def test_the_command_trains_and_resumes_with_the_losses_of_the_native_engine(tmp_path, mesh):
    model, more = COMMANDS[mesh]
    spec = importlib.util.spec_from_file_location("compare", COMPARE)
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    partita = [sys.executable, "-m", "partita"]
    assert compare.compare_engine(partita, model, mesh, 6, tmp_path, "torch", more) <= compare.TOLERANCE


@pytest.mark.parametrize(
    "text",
    [
        "colwise",
        "rowwise(output=shard(-1), axis=model)",
        "prepare(input_from=[shard(1), none], input=[replicate, none])",
        'fuse("gelu(x + b)", name=bias_gelu, at=[0, 2])',
        "fsdp(gather=step, axis=dp)",
        "colwise(use_local_output=false)",
        'replace(bias_gelu, with_="in \\"quotes\\"", gather=pass)',
    ],
)
def test_requests_are_read_as_plans_print_them(text):
    assert str(parse(text)) == text
    assert str(parse(partita.Plan({"a": text}).lines()[0][1])) == text


def test_a_call_is_changed_by_name():
    assert str(Call("fsdp", (), {"gather": "pass", "axis": "dp"}).without("gather", axis="fsdp")) == "fsdp(axis=fsdp)"


@pytest.mark.parametrize(
    "pattern, path, is_match",
    [
        ("", "", True),
        ("", "up", False),
        ("**", "", True),
        ("**", "layers.0", True),
        ("*", "", False),
        ("layers.*.mlp", "layers.3.mlp", True),
        ("layers.*", "layers.3.mlp", False),
        ("layers.1*", "layers.10", True),
        ("layers.*.*_proj", "layers.3.up_proj", True),
        ("**.up", "up", True),
        ("layers.**.up", "layers.up", True),
        ("**.up", "layers.upper", False),
        ("a*b*c", "a_b_b_c", True),
        ("a*b*c", "a_c_b", False),
    ],
)
def test_patterns_match_as_in_plans(pattern, path, is_match):
    assert matches(pattern, path) == is_match


@pytest.fixture
def meshes():
    """Makes meshes of 4 ranks that do not exist: what is refused is refused before ranks meet."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield lambda names, shape: init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


REFUSED = {
    # Lines: each with what is nearest.
    "zero1": ({"**": "zero1"}, ("dp",), (4,), {}, "E394", 'sch["**"].fsdp(gather="step", axis="dp")'),
    "zero2": ({"**": "zero2"}, ("dp",), (4,), {}, "E394", 'sch["**"].fsdp(gather="step", axis="dp")'),
    "fuse": ('sch[""].fuse("gelu(x + b)", name="bias_gelu")', ("dp",), (4,), {}, "E394", "(no lines)"),
    "precision": ({"**": "precision(bf16)"}, ("dp",), (4,), {}, "E394", "`**`: precision(bf16)"),
    "layers": ({"": "layers(2)"}, ("dp",), (4,), {}, "E394", "pipeline_split"),
    "a column of a block": (
        {"blocks.0": "colwise", "head": "colwise"},
        ("tp",),
        (4,),
        {},
        "E394",
        'the nearest plan that it runs:\n            sch["head"].colwise()',
    ),
    "an input of columns": (
        {"head": "colwise(input=shard(1))"},
        ("tp",),
        (4,),
        {},
        "E394",
        'sch["head"].colwise()',
    ),
    "a pattern to recompute": (
        {"blocks.0": 'checkpoint("gelu(x + b)")'},
        ("dp",),
        (4,),
        {},
        "E394",
        'sch["blocks.0"].checkpoint()',
    ),
    "a gather of a pass": (
        {"**": "fsdp(gather=pass)"},
        ("fsdp",),
        (4,),
        {"microbatches": 2},
        "E394",
        'sch["**"].fsdp()',
    ),
    "the outer batch axis": (
        {"**": "fsdp(axis=dp)"},
        ("dp", "fsdp"),
        (2, 2),
        {},
        "E394",
        'sch["**"].fsdp(axis="fsdp")',
    ),
    "layouts over the batch": ({"head": "colwise(axis=dp)"}, ("dp",), (4,), {}, "E394", "share no axis with the batch"),
    "two axes of layouts": (
        {"head": "colwise", "tokens": "colwise(axis=ep)"},
        ("tp", "ep"),
        (2, 2),
        {},
        "E394",
        'sch["head"].colwise()',
    ),
    "a stage on a mesh": (
        {"blocks.0": 'pipeline_split(mesh="dp=2")'},
        ("dp", "pp"),
        (2, 2),
        {},
        "E394",
        'sch["blocks.0"].pipeline_split()',
    ),
    "stages without ends": ({}, ("dp", "pp"), (2, 2), {}, "E394", 'sch["blocks.0"].pipeline_split()'),
    "too many stages": (QUARTERS, ("dp", "pp"), (2, 2), {}, "E394", "make 4 stages, and the timetable has 2"),
    # Axes, meshes and timetables.
    "an idle axis": ({}, ("dp", "tp"), (2, 2), {}, "E394", "would all do the same"),
    "a default axis that is not there": ({"head": "colwise"}, ("dp",), (4,), {}, "E223", "no axis `tp`"),
    "an axis of shards that is not there": ({"**": "fsdp"}, ("dp",), (4,), {}, "E223", "no axis `fsdp`"),
    "an axis that is not there": ({"head": "colwise(axis=tpp)"}, ("tp",), (4,), {}, "E223", "tpp"),
    "a path that is not there": ({"haed": "colwise"}, ("tp",), (4,), {}, "E221", "did you mean `head`?"),
    "an unknown timetable": (HALVES, ("dp", "pp"), (2, 2), {"timetable": "zbw"}, "E462", "zbw"),
    "a split backward pass": (
        QUARTERS | {"**": "fsdp"},
        ("fsdp", "pp"),
        (2, 2),
        {"timetable": "zbv", "microbatches": 4},
        "E394",
        "1f1b, gpipe or interleaved-1f1b",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_pytorch_cannot_run_is_refused(meshes, what):
    import partita.torch

    plan, names, shape, options, code, text = REFUSED[what]
    module = made(GPT, layers=4 if "split" in what or "many" in what else 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(PartitaError) as refused:
        partita.torch.apply(plan, module, meshes(names, shape), loss=next_token, **options)
    assert refused.value.code == code and text in str(refused.value)
    # The module is as before.
    assert all(type(value) is nn.Parameter for value in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_all_refused_lines_are_named_at_once(meshes):
    import partita.torch

    plan = 'sch["**"].zero1()\nsch["head"].colwise()\nsch["norm"].colwise()'
    with pytest.raises(PartitaError) as refused:
        partita.torch.apply(partita.Plan(plan, "own.py"), made(GPT), meshes(("dp", "tp"), (2, 2)))
    assert refused.value.message == "PyTorch cannot run 2 lines of the plan"
    assert refused.value.at.startswith("own.py") and len(refused.value.found.splitlines()) == 2
    nearest = refused.value.help.split("\n", 1)[1]
    assert partita.Plan(nearest) == partita.Plan({"**": "fsdp(gather=step, axis=dp)", "head": "colwise"})


def test_a_shared_parameter_is_refused(meshes):
    import partita.torch

    module = made(GPT)
    module.head.weight = module.tokens.weight
    with pytest.raises(PartitaError, match="tokens.weight and head.weight are one parameter"):
        partita.torch.apply({"head": "colwise"}, module, meshes(("tp",), (4,)))


def test_an_engine_needs_processes(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PartitaError, match="one process for each rank") as refused:
        trainer(MLP, "dp=4", {}, {}, "torch")
    assert refused.value.code == "E394" and "partita.launch -n 4" in refused.value.help
    with pytest.raises(ValueError, match="no engine 'toch'"):
        trainer(MLP, "dp=4", {}, {}, "toch")


if __name__ == "__main__":
    main(sys.argv[1])


def test_an_optimizer_that_pytorch_lacks_is_refused():
    from partita.torch._engine import _optimizer

    parameters = [nn.Parameter(torch.zeros(2))]
    for rule in (partita.optim.SGD(), partita.optim.Adam(), partita.optim.AdamW()):
        assert type(_optimizer(rule, parameters)).__name__ == type(rule).__name__
    for rule in (partita.optim.LAMB(), partita.optim.Adam8bit(), partita.optim.Lion()):
        with pytest.raises(PartitaError, match="E394.*no optimizer"):
            _optimizer(rule, parameters)
