"""Values that a program gives the module of a trainer between steps, beside a loop of PyTorch."""

import copy
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import partita  # noqa: E402

X, T = torch.linspace(-1, 1, 24).reshape(4, 6), torch.linspace(0, 1, 16).reshape(4, 4)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


class Loop:
    """A module under a trainer, and a copy of it in a loop of PyTorch."""

    def __init__(self, module=None, mesh="dp=1", plan=None):
        self.module = net() if module is None else module
        self.beside = copy.deepcopy(self.module)
        model = partita.load(self.module, (X, T), loss=F.mse_loss)
        self.trainer = partita.Trainer(model, plan, mesh, partita.optim.SGD(lr=0.1, momentum=0.9))
        self.own = torch.optim.SGD(self.beside.parameters(), lr=0.1, momentum=0.9)

    def step(self, change=lambda module: None):
        for module in (self.module, self.beside):
            torch.manual_seed(1)
            change(module)
        self.own.zero_grad()
        loss = F.mse_loss(self.beside(X), T)
        loss.backward()
        self.own.step()
        assert self.trainer.step((X, T)) == pytest.approx(loss.item(), rel=1e-5)
        found = self.trainer.state_dict()
        for name, value in self.beside.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6, msg=lambda text: f"{name}: {text}")


def in_place(change):
    def changed(module):
        with torch.no_grad():
            change(module)

    return changed


def other(module):
    return {name: value * 0.5 for name, value in module.state_dict().items()}


CHANGES = {
    "load_state_dict": lambda m: m.load_state_dict(other(m)),
    "load_state_dict, assign": lambda m: m.load_state_dict(other(m) | {"1.num_batches_tracked": torch.tensor(0)}, assign=True),
    "init": lambda m: nn.init.orthogonal_(m[0].weight),
    "one element": in_place(lambda m: m[2].weight[1, 2].fill_(3.0)),
    "data": lambda m: m[2].weight.data.mul_(3),
    "other data": lambda m: setattr(m[2].weight, "data", torch.full((4, 8), 0.1)),
    "numpy": lambda m: m[2].bias.detach().numpy().fill(2.0),
    "a parameter": lambda m: setattr(m[2], "weight", nn.Parameter(torch.full((4, 8), 0.1))),
    "a buffer": lambda m: m[1].running_mean.fill_(2.0),
}


@pytest.mark.parametrize("mesh, plan", [("dp=1", None), ("fsdp=2", {"**": "fsdp"})])
@pytest.mark.parametrize("name", CHANGES)
def test_values_given_before_the_first_step_are_trained(name, mesh, plan):
    loop = Loop(mesh=mesh, plan=plan)
    for module in (loop.module, loop.beside):
        torch.manual_seed(1)
        CHANGES[name](module)
    loop.own = torch.optim.SGD(loop.beside.parameters(), lr=0.1, momentum=0.9)
    loop.step()
    loop.step()


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "a buffer"])
def test_values_put_over_old_ones_are_refused(name):
    loop = Loop()
    loop.step()
    CHANGES[name](loop.module)
    for _ in range(2):
        with pytest.raises(partita.PartitaError, match="E399.*were changed, while those that its trainer trains"):
            loop.trainer.step((X, T))
    assert loop.trainer.steps == 1
    # Either the values of the module, or those of the trainer.
    if name == "one element":
        loop.module.load_state_dict(loop.trainer.state_dict())
    else:
        loop.trainer.load_state_dict(loop.module.state_dict())
        loop.beside.load_state_dict(loop.module.state_dict())
    loop.step()


def test_values_of_the_trainer_may_be_put_into_the_module():
    loop = Loop()
    initial = copy.deepcopy(loop.module.state_dict())
    for _ in range(2):
        loop.step()
        loop.module.load_state_dict(loop.trainer.state_dict())
    loop.step()
    # What the module had when it was last looked at may come back: an average was tried in between.
    seen = copy.deepcopy(loop.module.state_dict())
    loop.module.load_state_dict(initial)
    loop.module.load_state_dict(seen)
    loop.step()


def test_a_module_that_pytorch_trains_beside_its_trainer_is_told_of():
    loop = Loop()
    loop.beside = loop.module
    loop.own = torch.optim.SGD(loop.module.parameters(), lr=0.1)
    first = copy.deepcopy(loop.module)
    losses = [loop.trainer.step((X, T))]
    for _ in range(2):
        loop.own.zero_grad()
        F.mse_loss(loop.module(X), T).backward()
        loop.own.step()
        if len(losses) == 1:
            with pytest.warns(UserWarning, match="trains beside its trainer: 0.weight"):
                losses.append(loop.trainer.step((X, T)))
        else:
            losses.append(loop.trainer.step((X, T)))
    loop.module, loop.beside = first, copy.deepcopy(first)
    loop.trainer = partita.Trainer(
        partita.load(loop.module, (X, T), loss=F.mse_loss), None, "dp=1", partita.optim.SGD(lr=0.1, momentum=0.9)
    )
    assert [loop.trainer.step((X, T)) for _ in losses] == losses
    # Steps of PyTorch that were taken before do not count.
    loop.module[2].weight.data.mul_(2)
    with pytest.raises(partita.PartitaError, match="E399"):
        loop.trainer.step((X, T))


def test_statistics_of_passes_of_the_module_are_told_of():
    loop = Loop()
    loop.step()
    loop.module(X)
    with pytest.warns(UserWarning, match="trains beside its trainer: 1.running_mean"):
        loop.step()


def test_values_that_pytorch_has_trained_before_the_first_step_are_taken():
    loop = Loop()
    for module in (loop.module, loop.beside):
        own = torch.optim.SGD(module.parameters(), lr=0.3)
        F.mse_loss(module(X), T).backward()
        own.step()
    loop.step()
    loop.step()


def test_frozen_values_may_change_at_any_time():
    module = net()
    module[2].requires_grad_(False)
    loop = Loop(module)
    loop.step()
    for factor in (2.0, 0.5):
        loop.step(in_place(lambda m: m[2].weight.mul_(factor)))


def test_a_checkpoint_is_no_value_of_the_module(tmp_path):
    loop = Loop()
    loop.step()
    loop.trainer.save(tmp_path / "run")
    other = Loop()
    other.trainer.load(tmp_path / "run")
    other.beside, other.own = loop.beside, loop.own
    other.step()
    with torch.no_grad():
        other.module[0].bias.add_(1)
    with pytest.raises(partita.PartitaError, match="E399"):
        other.trainer.step((X, T))


def test_a_module_that_stays_costs_little():
    module = nn.Sequential(*[nn.Linear(4, 4) for _ in range(10)])
    trainer = partita.Trainer(partita.load(module, (X[:, :4], X[:, :4]), loss=F.mse_loss), None, "dp=1")
    trainer.step((X[:, :4], X[:, :4]))
    times = []
    for _ in range(50):
        began = time.perf_counter()
        trainer._take_values()
        times.append(time.perf_counter() - began)
    assert min(times) < 50e-6
