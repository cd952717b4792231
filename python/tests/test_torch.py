"""Modules of PyTorch: export, training, planned modules in loops of autograd; PyTorch beside each."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
import partita.profiler  # noqa: E402


class MLP(nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.down = nn.Linear(hidden, width)

    def forward(self, data):
        return self.down(self.activation(self.up(data)))


PLAN = {"up": "colwise", "down": "rowwise"}
MESHES = ["tp=2", "dp=2,tp=2"]


@pytest.fixture
def module():
    torch.manual_seed(0)
    return MLP()


def batch(rows=8, width=16):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_trainer_trains_as_pytorch_does(module, mesh, optimizer):
    x, y = batch()
    model = partita.load(module, (x, y), loss=F.mse_loss)
    assert list(model.inputs) == ["data", "target"]
    rule = OPTIMIZERS[optimizer](module.parameters())
    trainer = partita.Trainer(model, PLAN, mesh, optimizer=rule)
    for _ in range(4):
        loss = F.mse_loss(module(x), y)
        assert trainer.step((x, y)) == pytest.approx(loss.item(), rel=1e-5)
        rule.zero_grad()
        loss.backward()
        rule.step()
    close(trainer.state_dict(), dict(module.state_dict()), 1e-4)
    module.load_state_dict(trainer.state_dict())


@pytest.mark.parametrize("rule", [partita.optim.LAMB(), partita.optim.Muon(), partita.optim.Adam8bit()], ids=repr)
def test_the_rules_that_pytorch_lacks_train_alike_on_meshes(module, rule):
    x, y = batch()
    model = partita.load(module, (x, y), loss=F.mse_loss)
    plans = {"dp=1": {}} | dict.fromkeys(MESHES, PLAN)
    trainers = [partita.Trainer(model, plan, mesh, optimizer=rule) for mesh, plan in plans.items()]
    losses = [[trainer.step((x, y)) for _ in range(4)] for trainer in trainers]
    for found in losses:
        assert found == pytest.approx(losses[0], rel=1e-5) and found[-1] < found[0]


def test_an_optimizer_that_is_none_is_refused(module):
    x, y = batch()
    model = partita.load(module, (x, y), loss=F.mse_loss)
    for wrong in ("sdg", 3, torch.optim.SGD, {"lr": 0.1}):
        with pytest.raises(partita.PartitaError) as refused:
            partita.Trainer(model, None, "dp=1", wrong)
        assert refused.value.code == "E057"


def test_verification_without_a_loss_covers_outputs_and_gradients(module):
    x, _ = batch()
    sch = partita.Schedule(partita.load(module, x), "tp=2", PLAN)
    report = sch.verify()
    names = [name for name, _, _ in report.tensors]
    assert report and "grad.up.weight" in names and len(names) > 10
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(sch.model, PLAN, "tp=2")
    assert refused.value.code == "E055"


@pytest.mark.parametrize("mesh", MESHES)
def test_a_planned_module_runs_the_loops_people_write(module, mesh):
    x, y = batch()
    planned = partita.Schedule(partita.load(module, x), mesh, PLAN).build()
    assert isinstance(planned, MLP) and list(planned.state_dict()) == list(module.state_dict())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (module, planned)]
    for _ in range(4):
        losses = []
        for m, optimizer in zip((module, planned), optimizers):
            optimizer.zero_grad()
            loss = F.mse_loss(m(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        close(losses[1], losses[0])
    close(dict(planned.state_dict()), dict(module.state_dict()), 1e-4)


def gradients(module, x, backward):
    x = x.clone().requires_grad_()
    module.zero_grad()
    backward(module, x)
    return [x.grad, *(p.grad for p in module.parameters())]


def twice(module, x):
    first, second = module(x), module(2 * x)
    (first * second).sum().backward()


def retained(module, x):
    out = module(x).sin()
    out.sum().backward(retain_graph=True)
    out.sum().backward()


def strided(module, x):
    module(x).backward(torch.ones(()).expand(x.shape))


def transposed(module, x):
    module(x).t().contiguous().t().pow(2).sum().backward()


def on_itself(module, x):
    module(module(x)).pow(2).sum().backward()


def penalised(module, x):
    (module(x).pow(2).mean() + sum(p.pow(2).sum() for p in module.parameters())).backward()


@pytest.mark.parametrize("backward", [twice, retained, strided, transposed, on_itself, penalised])
def test_gradients_are_those_of_autograd(module, backward):
    x, _ = batch()
    planned = partita.Schedule(partita.load(module, x), "tp=2", PLAN).build()
    close(gradients(planned, x, backward), gradients(module, x, backward), 1e-4)


def test_gradients_accumulate_and_stop_where_pytorch_stops_them(module):
    x, y = batch()
    planned = partita.Schedule(partita.load(module, x), "tp=2", PLAN).build()
    for m in (module, planned):
        m.up.weight.requires_grad_(False)
        for set_to_none in (True, False):
            m.zero_grad(set_to_none=set_to_none)
            F.mse_loss(m(x), y).backward()
            F.mse_loss(m(y), x).backward()
    assert planned.up.weight.grad is None
    close(planned.down.weight.grad, module.down.weight.grad)
    with torch.no_grad():
        assert not planned(x).requires_grad
    found = torch.autograd.grad(planned(x).sum(), planned.down.bias)
    close(found, torch.autograd.grad(module(x).sum(), module.down.bias))
    out = planned(x).sum()
    with torch.no_grad():
        planned.down.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    grad = torch.autograd.grad(planned(x).pow(2).sum(), planned.down.weight, create_graph=True)[0]
    with pytest.raises(partita.PartitaError) as refused:
        grad.sum().backward()
    assert refused.value.code == "E392"


def test_new_shapes_and_modes_are_planned_when_they_come():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    x = torch.randn(6, 4)
    planned = partita.Schedule(partita.load(module, x), "dp=2").build()
    for rows in (6, 4):
        close(planned(x[:rows]), module(x[:rows]))
    close(planned[1].running_mean, module[1].running_mean)
    assert planned[1].num_batches_tracked == module[1].num_batches_tracked == 2
    module.eval(), planned.eval()
    close(planned(x), module(x))
    # The program for eval() contains the statistics, which training changes.
    for m in (module, planned):
        m.train()
        m(3 * x)
        m.eval()
    close(planned(x), module(x))


def test_a_forward_pass_is_computed_again_only_if_another_came_in_between():
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)), torch.randn(6, 4)
    planned = partita.Schedule(partita.load(module, x), "dp=2").build()

    def passes(work):
        with partita.profiler.profile() as prof:
            work()
        rows = {row.key: row.count for row in prof.key_averages()}
        return rows.get("partita::forward", 0), rows.get("partita::backward", 0)

    def one():
        planned(x).square().sum().backward()

    def two():
        losses = [planned(x).square().sum() for _ in range(2)]
        losses[0].backward()
        losses[1].backward()

    def twice():
        loss = planned(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert passes(one) == (1, 1)
    # Both lost their activations: the second one to the first one's backward pass.
    assert passes(two) == (4, 2)
    assert passes(twice) == (2, 2)
    assert passes(lambda: planned(x)) == (1, 0)


def test_a_backward_pass_has_the_buffers_of_its_forward_pass():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("count", torch.ones(4))
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x):
            self.count.add_(1)
            return {"y": self.linear(x) * self.count.clone() * self.scale, "kind": "counted", "none": None}

    torch.manual_seed(0)
    module, x = Counting(), torch.randn(6, 4)
    planned = partita.Schedule(partita.load(module, x), "dp=2").build()
    for scale in (2.0, 5.0):
        for m in (module, planned):
            m.scale.fill_(scale)
            m.zero_grad()
            first, second = m(x), m(x)
            assert first["kind"] == "counted" and first["none"] is None
            (first["y"] * second["y"]).sum().backward()
        close(planned.linear.weight.grad, module.linear.weight.grad, 1e-4)
        close(planned.count, module.count)


def test_planned_modules_are_copied_and_pickled(module):
    x, _ = batch()
    planned = partita.Schedule(partita.load(module, x), "tp=2", PLAN).build()
    out = planned(x)
    for other in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        close(other(x), out)
        with torch.no_grad():
            other.down.bias.add_(1)
        close(other(x), out + 1)
    close(planned(x), out)


def test_other_types_of_numbers(module):
    x, _ = batch()
    planned = partita.Schedule(partita.load(module, x), "tp=2", PLAN).build()
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.bfloat16, 3e-2)):
        planned.to(dtype), module.to(dtype)
        close(planned(x.to(dtype)), module(x.to(dtype)), tolerance)
        close(
            gradients(planned, x.to(dtype), on_itself), gradients(module, x.to(dtype), on_itself), 10 * tolerance
        )


@pytest.mark.parametrize("mesh", ["tp=1", "dp=2", "tp=2"])
def test_both_passes_of_dropout_have_the_same_masks(mesh):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.25), nn.Linear(32, 64), nn.Dropout(0.5))
    x = torch.randn(8, 16)
    plan = {"0": "colwise", "2": "rowwise"} if "tp" in mesh else None
    planned = partita.Schedule(partita.load(module, x), mesh, plan).build()
    # With weights that keep apart what the masks do: the first layer gives ones, the second their sum.
    with torch.no_grad():
        for layer in (planned[0], planned[2]):
            layer.weight.zero_()
        planned[0].bias.fill_(1.0)
        planned[2].weight.fill_(1.0)
        planned[2].bias.fill_(1.0)
    first, second = planned(x), planned(x)
    assert not torch.equal(first == 0, second == 0)
    assert 0.4 < (first == 0).float().mean() < 0.6
    for out in (first, second):
        kept = (out != 0).float() / 0.5
        gradient = torch.autograd.grad(out.sum(), planned[2].bias)[0]
        close(gradient, kept.sum(0))
    # The rows of the first mask sum to what the second layer adds up.
    out = planned(x)
    hidden = torch.autograd.grad(out.sum(), planned[0].bias)[0]
    rows = (out.max(1).values / 2 - 1) * 0.75
    close(rows, rows.round(), 1e-4)
    kept = (out != 0).float().sum(1) / 0.5
    close(hidden.sum(), (kept * rows / 0.75).sum(), 1e-4)
    torch.manual_seed(3)
    out = planned(x)
    torch.manual_seed(3)
    close(planned(x), out)
    module.eval(), planned.eval()
    close(planned(x), planned(x))
    assert not (planned(x) == 0).any()


def test_what_pytorch_cannot_export_is_refused_with_its_reason():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(partita.PartitaError) as refused:
        partita.load(Branch(), torch.randn(4, 4))
    assert refused.value.code == "E390" and "test_torch.py" in refused.value.found


def test_a_custom_function_is_refused_by_name():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    class Custom(nn.Module):
        def forward(self, x):
            return Double.apply(x)

    before = torch.autograd.Function.__dict__.get("apply")
    with pytest.raises(partita.PartitaError) as refused:
        partita.load(Custom(), torch.randn(4, 4))
    assert refused.value.code == "E391" and "Double" in refused.value.found
    assert torch.autograd.Function.__dict__.get("apply") is before


def test_a_file_and_an_exported_program_are_models(module, tmp_path):
    x, _ = batch()
    exported = torch.export.export(module, (x,))
    torch.export.save(exported, tmp_path / "mlp.pt2")
    for model in (partita.load(exported), partita.load(tmp_path / "mlp.pt2")):
        outputs = partita.Schedule(model, "tp=2", PLAN).build()(x)
        (found,) = outputs.values()
        close(torch.from_numpy(found), module(x).detach())


def test_a_loss_does_not_become_a_part_of_the_module(module):
    x, y = batch()
    model = partita.load(module, (x, y), loss=F.mse_loss)
    close(partita.Schedule(model, "tp=2", PLAN).build()(x), module(x))
    assert type(module) is MLP and not hasattr(module.forward, "__signature__")


def test_tied_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens):
            return self.head(self.table(tokens))

    torch.manual_seed(0)
    module, tokens = Tied(), torch.randint(10, (4, 6))
    planned = partita.Schedule(partita.load(module, tokens), "dp=2").build()
    assert planned.head.weight is planned.table.weight
    for m in (module, planned):
        F.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten()).backward()
    close(planned.head.weight.grad, module.head.weight.grad)
    model = partita.load(module, (tokens, tokens), loss=lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()))
    trainer = partita.Trainer(model, None, "dp=2", "sgd")
    trainer.step((tokens, tokens), lr=0.1)
    with torch.no_grad():
        module.head.weight -= 0.1 * module.head.weight.grad
    close(trainer.state_dict(), dict(module.state_dict()))


class Logarithms(nn.Module):
    """`logsumexp` of rows of a parameter."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, scale):
        return (self.rows * scale).logsumexp(-1)


@pytest.mark.parametrize("first", [None, -1e4, float("-inf")])
def test_logsumexp_does_not_depend_on_its_first_element(first):
    rows = torch.randn(3, 1 << 15, generator=torch.Generator().manual_seed(0))
    if first is not None:
        rows[:, 0] = first
    one = torch.ones(())
    planned = partita.Schedule(partita.load(Logarithms(rows), (one,)), "dp=1").build()
    exact = Logarithms(rows.double())
    for module, scale in ((planned, one), (exact, one.double())):
        module(scale).sum().backward()
    found, expected = planned(one).double(), exact(one.double())
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()
    found, expected = planned.rows.grad.double(), exact.rows.grad
    assert (found - expected).abs().max() < 1e-6 * expected.max()
