"""Optimizers of PyTorch in a planned step: what is accepted trains as PyTorch does, all else is refused by name."""

import collections
import copy

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import partita  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))


def batches(count):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(count)]


def net():
    torch.manual_seed(0)
    return Net()


def loaded(module):
    return partita.load(module, batches(1)[0], loss=F.mse_loss)


def compare(make, change=lambda step, module, optimizer: None, steps=5, mesh="dp=2", plan=None, scheduler=None, **options):
    """Trains a trainer that follows an optimizer, and PyTorch with an optimizer of its own."""
    module = net()
    beside = copy.deepcopy(module)
    followed, own = make(module), make(beside)
    trainer = partita.Trainer(loaded(module), plan, mesh, followed, **options)
    schedulers = [scheduler(each) for each in (followed, own)] if scheduler else []
    for step, (x, y) in enumerate(batches(steps)):
        for each, optimizer in ((module, followed), (beside, own)):
            change(step, each, optimizer)
        loss = F.mse_loss(beside(x), y)
        own.zero_grad()
        loss.backward()
        own.step()
        assert trainer.step((x, y)) == pytest.approx(loss.item(), rel=1e-5)
        for each in schedulers:
            each.step()
        found = trainer.state_dict()
        for name, value in beside.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6, msg=lambda text: f"step {step}, {name}: {text}")
    return trainer


def groups(module, **second):
    matrices = [value for value in module.parameters() if value.dim() > 1]
    vectors = [value for value in module.parameters() if value.dim() < 2]
    return [{"params": matrices}, {"params": vectors} | second]


ACCEPTED = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.1),
    "Adam, decoupled": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.3, decoupled_weight_decay=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.3),
    "AdamW, foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, foreach=True),
    "AdamW, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True),
    "AdamW, tensor rate": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.01)),
    "AdamW, named": lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.01),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.05, weight_decay=0.1),
    "a group without decay": lambda m: torch.optim.AdamW(groups(m, weight_decay=0.0), lr=0.01, weight_decay=0.3),
    "two decays": lambda m: torch.optim.AdamW(groups(m, weight_decay=0.5), lr=0.01, weight_decay=0.3),
    "two rates": lambda m: torch.optim.AdamW(groups(m, lr=0.1), lr=0.01),
    "a rate of zero": lambda m: torch.optim.AdamW(groups(m, lr=0.0), lr=0.01),
    "two betas": lambda m: torch.optim.Adam(groups(m, betas=(0.5, 0.6), eps=1e-4), lr=0.01),
    "two kinds of decay": lambda m: torch.optim.Adam(
        groups(m, decoupled_weight_decay=True, weight_decay=0.5), lr=0.01, weight_decay=0.2
    ),
    "momentum in one group": lambda m: torch.optim.SGD(groups(m, momentum=0.9, nesterov=True), lr=0.1),
    "three groups": lambda m: torch.optim.SGD(
        [
            {"params": m.a.parameters(), "lr": 0.3},
            {"params": m.norm.parameters(), "weight_decay": 0.2},
            {"params": m.b.parameters(), "momentum": 0.5},
        ],
        lr=0.1,
    ),
    "a part": lambda m: torch.optim.AdamW(m.b.parameters(), lr=0.05),
    "two parts": lambda m: torch.optim.SGD([{"params": m.a.parameters(), "lr": 0.3}, {"params": m.norm.weight}], lr=0.1),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_trains_as_pytorch_does(name):
    compare(ACCEPTED[name])


@pytest.mark.parametrize("mesh, plan", [("dp=1", None), ("fsdp=2", {"**": "fsdp"}), ("tp=2", {"b": "colwise"}), ("pp=2", None)])
@pytest.mark.parametrize("name", ["three groups", "two rates", "a part"])
def test_groups_train_on_every_mesh(name, mesh, plan):
    compare(ACCEPTED[name], mesh=mesh, plan=plan)


def test_what_is_in_no_group_is_not_trained():
    module = net()
    trainer = partita.Trainer(loaded(module), None, "dp=2", torch.optim.SGD(module.b.parameters(), lr=0.1))
    assert set(trainer.model.parameters) == {"b.weight", "b.bias"}
    assert all(value.requires_grad for value in module.parameters())


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.1),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda s: 1 / (1 + s), lambda s: 1 + s]),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_change_the_rates_of_groups(name):
    compare(lambda m: torch.optim.AdamW(groups(m, lr=0.05), lr=0.01), scheduler=SCHEDULERS[name])


def set_option(**options):
    return lambda step, module, optimizer: step == 2 and optimizer.param_groups[0].update(options)


def freeze(step, module, optimizer):
    if step == 2:
        module.a.requires_grad_(False)


def add(step, module, optimizer):
    if step == 2:
        optimizer.add_param_group({"params": list(module.a.parameters()), "lr": 0.3})


def freeze_for_a_step(step, module, optimizer):
    module.a.requires_grad_(step != 2)


def leave_out(step, module, optimizer):
    if step == 2:
        optimizer.param_groups[0]["params"] = list(module.b.parameters())


CHANGES = {
    "a rate": (ACCEPTED["AdamW"], set_option(lr=0.1)),
    "weight decay": (ACCEPTED["AdamW"], set_option(weight_decay=0.9)),
    "betas": (ACCEPTED["Adam"], set_option(betas=(0.5, 0.6))),
    "momentum from nothing": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), set_option(momentum=0.9)),
    "an option of one group": (ACCEPTED["two rates"], set_option(weight_decay=0.7)),
    "a layer is frozen": (ACCEPTED["SGD"], freeze),
    "a layer is frozen for a step": (ACCEPTED["SGD"], freeze_for_a_step),
    "parameters are added": (lambda m: torch.optim.SGD(m.b.parameters(), lr=0.1, momentum=0.9), add),
    "parameters are left out": (ACCEPTED["SGD"], leave_out),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_steps_counts_in_the_next(name):
    make, change = CHANGES[name]
    compare(make, change)


def test_a_trainer_whose_rule_has_changed_saves_and_loads(tmp_path):
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    first, second, third = batches(3)
    trainer.step(first)
    trainer.save(tmp_path / "run")
    optimizer.param_groups[0]["weight_decay"] = 0.5
    trainer.step(second)
    assert trainer.steps == 2
    trainer.save(tmp_path / "run")
    expected = trainer.step(third)
    trainer.load(tmp_path / "run")
    assert trainer.steps == 2 and trainer.step(third) == expected


class AdamW(torch.optim.AdamW):
    """A rule of the user with a name of PyTorch's."""

    def step(self, closure=None):
        return None


class Adafactor(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})


def replaced(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.step = lambda closure=None: None
    return optimizer


def hooked(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def stepped(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(batches(1)[0][0]).sum().backward()
    optimizer.step()
    return optimizer


REFUSED = {
    "a class of the user": (lambda m: AdamW(m.parameters()), "test_optimizers_of_pytorch.AdamW"),
    "another class of the user": (lambda m: Adafactor(m.parameters()), "test_optimizers_of_pytorch.Adafactor"),
    "RMSprop": (lambda m: torch.optim.RMSprop(m.parameters()), "RMSprop"),
    "NAdam": (lambda m: torch.optim.NAdam(m.parameters()), "NAdam"),
    "amsgrad": (lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True), "amsgrad=True"),
    "maximize": (lambda m: torch.optim.Adafactor(m.parameters(), maximize=True), "maximize=True"),
    "dampening": (lambda m: torch.optim.SGD(m.parameters(), momentum=0.9, dampening=0.1), "dampening=0.1"),
    "differentiable": (lambda m: torch.optim.Adam(m.parameters(), differentiable=True), "differentiable=True"),
    "an option of one group": (lambda m: torch.optim.AdamW(groups(m, amsgrad=True)), "amsgrad=True in group 1"),
    "another module": (lambda m: torch.optim.SGD(Net().parameters()), "[8, 6]"),
    "a parameter more": (lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.ones(3))]), "[3]"),
    "another step": (replaced, "attribute step"),
    "a hook": (hooked, "step hooks"),
    "steps": (stepped, "states"),
    "nothing trained": (lambda m: torch.optim.SGD([p.requires_grad_(False) for p in m.norm.parameters()]), "none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_planned_step_does_not_have_is_refused(name):
    make, found = REFUSED[name]
    module = net()
    model = loaded(module)
    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(model, None, "dp=2", make(module))
    assert refused.value.code == "E057" and found in refused.value.found, refused.value


def test_what_is_refused_later_changes_nothing():
    module = net()
    optimizer = torch.optim.AdamW(module.b.parameters(), lr=0.01)
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    other = partita.Trainer(loaded(module), None, "dp=2", torch.optim.AdamW(module.b.parameters(), lr=0.01))
    first, second, _ = batches(3)
    assert trainer.step(first) == other.step(first)
    optimizer.add_param_group({"params": list(module.a.parameters())})
    with pytest.raises(partita.PartitaError, match="E057.*after 1 steps"):
        trainer.step(second)
    del optimizer.param_groups[1]
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(partita.PartitaError, match="E057.*hooks"):
        trainer.step(second)
    handle.remove()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(partita.PartitaError, match="E057.*amsgrad"):
        trainer.step(second)
    optimizer.param_groups[0]["amsgrad"] = False
    assert trainer.steps == 1 and trainer.step(second) == other.step(second)


def test_states_and_rates_that_the_ranks_would_not_use_are_refused():
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    saved = stepped(net()).state_dict()
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    first, second, _ = batches(3)
    trainer.step(first)
    optimizer.load_state_dict(saved)
    with pytest.raises(partita.PartitaError, match="E057.*states"):
        trainer.step(second)
    optimizer.state.clear()
    optimizer.param_groups[0]["lr"] = "x"
    with pytest.raises(partita.PartitaError, match="E057.*no number"):
        trainer.step(second)


MOMENTUM = ACCEPTED["SGD"]

CLEARED = {
    "clear": lambda m, o: o.state.clear(),
    "another dictionary": lambda m, o: setattr(o, "state", collections.defaultdict(dict)),
    "one parameter": lambda m, o: o.state.pop(m.a.weight),
    "the states of a new optimizer": lambda m, o: o.load_state_dict(MOMENTUM(m).state_dict()),
}


@pytest.mark.parametrize("name", CLEARED)
def test_states_that_are_cleared_begin_anew(name):
    def change(step, module, optimizer):
        if step in (2, 3):
            CLEARED[name](module, optimizer)

    compare(MOMENTUM, change, mesh="fsdp=2", plan={"**": "fsdp"}, steps=5)


def test_states_of_a_frozen_parameter_are_cleared_too():
    def change(step, module, optimizer):
        module.a.requires_grad_(step != 2)
        if step == 2:
            optimizer.state.clear()

    compare(MOMENTUM, change, steps=5)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adafactor"])
def test_a_rule_that_counts_steps_does_not_begin_anew(name):
    module = net()
    optimizer = ACCEPTED[name](module)
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    first, second, _ = batches(3)
    optimizer.state.clear()
    trainer.step(first)
    optimizer.state.clear()
    for _ in range(2):
        with pytest.raises(partita.PartitaError, match="E057.*cleared after 1 steps"):
            trainer.step(second)


def test_states_of_an_older_step_are_refused():
    module = net()
    optimizer = MOMENTUM(module)
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    first, second, third = batches(3)
    trainer.step(first)
    saved = optimizer.state_dict()
    trainer.step(second)
    optimizer.load_state_dict(saved)
    with pytest.raises(partita.PartitaError, match="E057.*the states of a state_dict"):
        trainer.step(third)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_checkpoint_has_the_states_of_frozen_parameters(is_new, tmp_path):
    module = net()
    beside = copy.deepcopy(module)
    optimizer, own = MOMENTUM(module), MOMENTUM(beside)
    trainer = partita.Trainer(loaded(module), None, "dp=2", optimizer)
    rows = batches(6)
    for step, (x, y) in enumerate(rows):
        for each in (module, beside):
            each.a.requires_grad_(step not in (2, 3))
        if step == 3:
            trainer.save(tmp_path / "run")
            if is_new:
                module = net()
                module.a.requires_grad_(False)
                trainer = partita.Trainer(loaded(module), None, "fsdp=2", MOMENTUM(module))
            else:
                # Steps that the checkpoint does not know of.
                module.a.requires_grad_(True)
                trainer.step(rows[0])
                module.a.requires_grad_(False)
                trainer.step(rows[1])
            trainer.load(tmp_path / "run")
        own.zero_grad()
        loss = F.mse_loss(beside(x), y)
        loss.backward()
        own.step()
        assert trainer.step((x, y)) == pytest.approx(loss.item(), rel=1e-5)


def test_unchanged_groups_are_read_from_names_that_are_known(monkeypatch):
    module = net()
    trainer = partita.Trainer(loaded(module), None, "dp=2", MOMENTUM(module))
    first, second, third = batches(3)
    trainer.step(first)
    monkeypatch.setattr(nn.Module, "named_parameters", None)
    trainer.step(second)
    assert trainer.lr == 0.1


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.slope, self.drop, self.b = nn.Linear(6, 8), 0.1, nn.Dropout(0.0), nn.Linear(8, 4)

    def forward(self, x):
        return self.b(self.drop(F.leaky_relu(self.a(x), self.slope)))


WEIGHT = {"loss": 1.0}


def weighted(found, expected):
    return F.mse_loss(found, expected) * WEIGHT["loss"]


def set_weight(step, module, loss):
    WEIGHT["loss"] = 1.0 if step < 2 else 7.0


@pytest.mark.parametrize(
    "loss, change",
    [
        (F.mse_loss, lambda step, module, loss: setattr(module, "slope", 0.1 * (1 + step))),
        (F.mse_loss, lambda step, module, loss: module.a.requires_grad_(step != 2)),
        (weighted, set_weight),
        (nn.SmoothL1Loss(), lambda step, module, loss: setattr(loss, "beta", 1.0 / (1 + step))),
    ],
)
@pytest.mark.parametrize("mesh", ["dp=1", "fsdp=2"])
def test_a_trainer_follows_what_the_code_of_module_and_loss_reads(loss, change, mesh):
    torch.manual_seed(0)
    module = Leaky()
    beside = copy.deepcopy(module)
    trainer = partita.Trainer(partita.load(module, batches(1)[0], loss=loss), None, mesh, partita.optim.SGD(lr=0.1))
    own = torch.optim.SGD(beside.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(4)):
        for each in (module, beside):
            change(step, each, loss)
        # The mode of a trainer is that of its beginning.
        module.train(step % 2 == 0)
        value = loss(beside(x), y)
        own.zero_grad()
        value.backward()
        own.step()
        assert trainer.step((x, y)) == pytest.approx(value.item(), rel=1e-5)
    WEIGHT["loss"] = 1.0
    for name, value in beside.state_dict().items():
        torch.testing.assert_close(trainer.state_dict()[name], value, rtol=2e-5, atol=2e-6)


def test_a_model_without_tensors_of_pytorch_takes_no_optimizer_of_it(tmp_path):
    module = net()
    path = tmp_path / "net.pt2"
    x, y = batches(1)[0]

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = module

        def forward(self, x, y):
            return F.mse_loss(self.net(x), y)

    torch.export.save(torch.export.export(WithLoss(), (x, y)), path)
    with pytest.raises(partita.PartitaError, match="E057.*no tensors of PyTorch"):
        partita.Trainer(partita.load(str(path)), None, "dp=2", torch.optim.SGD(module.parameters(), lr=0.1))


def test_verify_checks_the_groups():
    module = net()
    optimizer = ACCEPTED["three groups"](module)
    report = partita.Schedule(loaded(module), "fsdp=2,tp=2", {"a": "colwise", "**": "fsdp"}, optimizer=optimizer).verify()
    assert report and any("optimizer.momentum_buffer.b.weight" in str(each) for each in report.tensors)
