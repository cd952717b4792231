"""Plans on PyTorch's own runtime: losses and parameters of native ranks, from four processes over gloo; modules and losses
that parts of a batch make up, and those that they do not; refusals.

Run as a script, in each process of a launcher, this file trains every case and writes what it found.
"""

import functools
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


def trainer(kind, mesh, plan, options):
    return partita.Trainer(loaded(kind), plan, mesh, partita.optim.AdamW(lr=3e-3), **options)


def devices(mesh):
    from torch.distributed.device_mesh import init_device_mesh

    sizes = partita.Mesh(mesh)
    return init_device_mesh("cpu", tuple(sizes.shape), mesh_dim_names=tuple(sizes.axis_names))


def trained(name):
    """The losses of some steps, the last norm of the gradients, and the squares of parameters, under a plan."""
    import partita.torch

    kind, mesh, plan, options = CASES[name]
    options = dict(options)
    clip = options.pop("clip_grad_norm", None)
    if "pp=" in mesh:
        options["example_inputs"] = next(batches(kind))[:-1]
    parallel = partita.torch.apply(plan, made(kind), devices(mesh), loss=loss_of(kind), **options)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=3e-3)
    losses, norm = [], None
    for batch in batches(kind, steps_of(name)):
        loss = parallel.backward(**batch) if isinstance(batch, dict) else parallel.backward(*batch)
        losses.append(loss.item())
        if clip is not None:
            norm = float(parallel.clip_grad_norm_(clip))
        optimizer.step()
        optimizer.zero_grad()
    whole = {key: value.square().sum().item() for key, value in parallel.state_dict().items()}
    return {"losses": losses, "norm": norm, "parameters": whole}


# Modules and losses, beside those above: what parts of a batch make up, and what they do not.


class Two(nn.Module):
    """Reads its second argument first, and in each stage."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, y):
        hidden = torch.tanh(y)
        return self.down(F.gelu(self.up(x - hidden))) + 0.5 * y


class Text(nn.Module):
    def __init__(self, dropout=0.0, tied=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.up, self.down, self.dropout = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(dropout)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Labelled(Text):
    def forward(self, tokens, labels):
        return {"loss": next_token(super().forward(tokens)[:, :-1], labels[:, 1:])}


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.relu(self.norm(self.up(x))))


def per_token(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.clamp(min=0).flatten(), reduction="none").view_as(target)


def masked(output, target):
    mask = (target != -100).float()
    return (per_token(output, target) * mask).sum() / mask.sum().clamp(min=1)


def smoothed(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), label_smoothing=0.1)


def per_row(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum") / len(target)


def with_penalty(output, target):
    return next_token(output, target) + 0.01 * output.pow(2).mean()


def weighted_by_mean(output, target):
    mask = (target != -100).float()
    return (per_token(output, target) * mask / mask.mean()).mean()


def contrastive(output, target):
    return F.cross_entropy(output @ target.T, torch.arange(len(output)))


def root(output, target):
    return F.mse_loss(output, target).sqrt()


def _numbers(generator):
    return torch.randn(8, 16, generator=generator)


def _tokens(generator):
    return torch.randint(32, (8, 8), generator=generator)


def _ragged(generator):
    """Labels of which each row has another number; in the second batch, the last rows have none."""
    labels = _tokens(generator)
    for row in range(8):
        labels[row, int(torch.randint(1, 8, (1,), generator=generator)) :] = -100
    return labels


def _half(generator):
    labels = _ragged(generator)
    labels[4:] = -100
    return labels


# Name: the module, its loss, what makes its arguments, and what refuses it, by axis; "" where every mesh does.
ROWS, TERM = "is not the sum of those of its", "in different terms of the loss"
MODULES = {
    "two": (Two, F.mse_loss, (_numbers, _numbers, _numbers), {}),
    "labels": (Text, next_token, (_tokens, _ragged), {}),
    "no labels in some parts": (Text, next_token, (_tokens, _half), {}),
    "a mask": (Text, masked, (_tokens, _ragged), {}),
    "no mask in some parts": (Text, masked, (_tokens, _half), {}),
    "smoothed": (Text, smoothed, (_tokens, _ragged), {}),
    "a sum by rows": (Text, per_row, (_tokens, _ragged), {}),
    "its own loss": (Labelled, None, (_tokens, _ragged), {"pp": "stages need a loss"}),
    "dropout": (functools.partial(Text, 0.2), next_token, (_tokens, _ragged), {}),
    "tied": (functools.partial(Text, tied=True), next_token, (_tokens, _ragged), {"pp": "have one parameter"}),
    "even terms": (Text, with_penalty, (_tokens, _tokens), {}),
    "batch norm": (Normalised, F.mse_loss, (_numbers, _numbers), dict.fromkeys(("dp", "fsdp", "pp"), "norm.running_mean")),
    "ragged terms": (Text, with_penalty, (_tokens, _ragged), dict.fromkeys(("dp", "fsdp", "pp"), TERM)),
    "a weight of the batch": (Text, weighted_by_mean, (_tokens, _ragged), dict.fromkeys(("dp", "fsdp", "pp"), ROWS)),
    "contrast": (MLP, contrastive, (_numbers, _numbers), dict.fromkeys(("dp", "fsdp", "pp"), ROWS)),
    "a root": (MLP, root, (_numbers, _numbers), dict.fromkeys(("dp", "fsdp", "pp"), ROWS)),
}  # fmt: skip
MESHES = {
    2: {"dp=2": ({}, 1), "fsdp=2": ({"**": "fsdp"}, 2), "tp=2": (MLP_TENSOR, 1), "pp=2": (MLP_HALVES, 2)},
    4: {"dp=4": ({}, 1), "dp=2,tp=2": (MLP_TENSOR, 2), "dp=2,pp=2": (MLP_HALVES, 2)},
}


def judged(name, mesh, plan, microbatches):
    """The largest difference from PyTorch on one device, of three steps; or what was refused."""
    import partita.torch

    kind, loss, makers, _ = MODULES[name]
    generator = torch.Generator().manual_seed(1)
    given = [tuple(make(generator) for make in makers) for _ in range(3)]
    plain = made(kind)
    options = {"example_inputs": given[0][:-1]} if "pp" in mesh and loss is not None else {}
    try:
        parallel = partita.torch.apply(
            plan, made(kind), devices(mesh), loss=loss, microbatches=microbatches, **options
        )
        sides = [torch.optim.SGD(side.parameters(), lr=0.1) for side in (parallel, plain)]
        worst = 0.0
        for batch in given:
            # By name, and not in the order of the signature, where there are two arguments.
            found = parallel.backward(batch[0], batch[2], y=batch[1]) if kind is Two else parallel.backward(*batch)
            right = plain(*batch)["loss"] if loss is None else loss(plain(*batch[:-1]), batch[-1])
            right.backward()
            gradients = parallel.whole({key: value.grad for key, value in parallel.named_parameters()})
            worst = max(worst, abs(found.item() - right.item()) / max(1.0, abs(right.item())))
            for key, value in plain.named_parameters():
                worst = max(worst, (gradients[key] - value.grad).abs().max().item() / max(1.0, value.grad.abs().max().item()))
            for side in sides:
                side.step()
                side.zero_grad()
        return worst
    except PartitaError as error:
        return str(error)


def judge(path):
    """What each process of the launcher does for the table of modules."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in MODULES:
        for mesh, (plan, microbatches) in MESHES[dist.get_world_size()].items():
            everywhere = [None] * dist.get_world_size()
            dist.all_gather_object(everywhere, judged(name, mesh, plan, microbatches))
            found[f"{name}, {mesh}"] = everywhere
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("count", MESHES)
def test_the_parts_of_a_batch_make_up_its_loss_or_are_refused_on_all_ranks(tmp_path_factory, count):
    found = launched(tmp_path_factory, count, "judge")
    right = 0
    for name, (_, _, _, refusals) in MODULES.items():
        for mesh in MESHES[count]:
            reasons = [text for axis, text in refusals.items() if f"{axis}=" in mesh]
            everywhere = found[f"{name}, {mesh}"]
            for value in everywhere:
                if reasons:
                    assert isinstance(value, str) and reasons[0] in value, (name, mesh, value)
                else:
                    # The masks of dropout are others.
                    assert isinstance(value, float) and value < (0.2 if name == "dropout" else 2e-6), (name, mesh, value)
                    right += 1
    assert right >= count * len(MESHES[count]) * 9


def main(path):
    """What each process of the launcher does."""
    import partita.torch

    torch.set_num_threads(1)
    found = {}
    for name in CASES:
        found[name] = trained(name)
    for name, (mesh, plan, kind) in TIMETABLES.items():
        module = made(GPT, layers=4)
        inputs, target = next(batches(GPT))
        parallel = partita.torch.apply(
            plan, module, devices(mesh), loss=next_token, microbatches=4, timetable=name, example_inputs=(inputs,)
        )
        loss = parallel.backward(inputs, target)
        gradients = parallel.whole({key: value.grad for key, value in parallel.named_parameters()})
        plain = made(GPT, layers=4)
        next_token(plain(inputs), target).backward()
        worst = max((gradients[key] - value.grad).abs().max().item() for key, value in plain.named_parameters())
        found[name] = {"loss": loss.item(), "schedule": type(parallel.schedule).__name__, "worst": worst}
        found[name]["names"] = sorted(gradients) == sorted(key for key, _ in plain.named_parameters())
    # A loop of one's own, and a state that comes back.
    parallel = partita.torch.apply(TENSOR, made(GPT), devices("tp=4"), check=False)
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
    over = devices("dp=4")

    def applied(module, loss=None, **options):
        return partita.torch.apply({}, module, over, loss=loss, **options)

    inputs, target = next(batches(MLP))
    apart = torch.randn(8, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    for key, misuse in {
        "rows": lambda: applied(made(MLP)).local(torch.ones(6, 2)),
        "no loss": lambda: applied(made(MLP)).backward(inputs),
        "stages without inputs": lambda: partita.torch.apply(
            MLP_HALVES, made(MLP), devices("dp=2,pp=2"), loss=F.mse_loss
        ),
        "an unknown argument": lambda: applied(made(MLP), F.mse_loss).backward(inputs, target, y=target),
        "a missing argument": lambda: applied(Judged()).backward(inputs),
        "batches of their own": lambda: applied(made(MLP), F.mse_loss).backward(apart, target),
        "rows of some": lambda: applied(Judged()).backward(inputs, target[:4]),
        "a limit": lambda: applied(made(MLP), F.mse_loss, verify_limit=10.0).backward(inputs, target),
        "a loop": lambda: applied(made(MLP), F.mse_loss).running().__enter__(),
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


def launched(tmp_path_factory, count, *args):
    """What processes of this file found."""
    path = tmp_path_factory.mktemp("torch") / "found.json"
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "partita.launch", "-n", str(count), __file__, str(path), *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return launched(tmp_path_factory, RANKS)


@pytest.mark.parametrize("name", CASES)
def test_pytorch_trains_as_native_ranks_do(found, name):
    kind, mesh, plan, options = CASES[name]
    native = trainer(kind, mesh, plan, options)
    losses = [native.step(batch) for batch in batches(kind, steps_of(name))]
    assert losses[-1] != pytest.approx(losses[0], abs=1e-3)
    assert found[name]["losses"] == pytest.approx(losses, abs=1e-4)
    assert found[name]["norm"] == (native.grad_norm and pytest.approx(native.grad_norm, rel=1e-3))
    whole = {key: value.square().sum().item() for key, value in native.state_dict().items()}
    assert found[name]["parameters"] == pytest.approx(whole, rel=1e-3, abs=1e-4)


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
    assert {key: text[6:10] for key, text in refused.items()} == {
        key: {"an unknown argument": "E414", "a missing argument": "E430"}.get(key, "E394") for key in refused
    }
    assert "a multiple of 4 rows" in refused["rows"] and "found: 6 rows" in refused["rows"]
    assert "the module returns no loss" in refused["no loss"]
    assert "no example_inputs" in refused["stages without inputs"]
    assert "ranks are given different batches" in refused["batches of their own"]
    assert "[8, 16], [4, 16]" in refused["rows of some"]
    assert "verify_limit" in refused["a limit"]
    assert "use parallel.backward" in refused["a loop"]


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


def test_a_trainer_has_one_engine():
    with pytest.raises(PartitaError, match="has no engine torch") as refused:
        partita.Trainer(loaded(MLP), {}, "dp=4", engine="torch")
    assert refused.value.code == "E394" and "partita.torch.apply" in refused.value.help


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else judge(sys.argv[1])
