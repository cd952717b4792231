"""Names of a user's inputs, outputs and parameters that a training step also gives to its own."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import partita  # noqa: E402


class Named(nn.Module):
    """Its arguments, results, parameters and buffers have the names of what a step adds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.optimizer = nn.Linear(4, 4)
        self.grad = nn.Linear(4, 4)
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x, seed, step, learning_rate):
        self.counter += 1
        hidden = torch.tanh(self.optimizer(x)) * learning_rate + seed * step
        result = self.grad(hidden)
        return {"loss": (result**2).mean(), "grad_norm": result.abs().max(), "seed": hidden.mean()}


def batch():
    draws = torch.Generator().manual_seed(1)
    return tuple(torch.randn(8, 4, generator=draws) for _ in range(2)) + (torch.tensor(2.5), torch.tensor(0.75))


@pytest.mark.parametrize("mesh", ["dp=1", "dp=2", "fsdp=2"])
def test_a_step_does_not_take_the_inputs_of_a_module_for_its_own(mesh):
    module = Named()
    x, seed, step, rate = batch()
    model = partita.load(module, batch())
    trainer = partita.Trainer(model, {"**": "fsdp"} if "fsdp" in mesh else None, mesh, "sgd")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for number in range(3):
        named = {"x": x, "seed": seed, "step": step, "learning_rate": rate}
        found = trainer.step(named if number == 1 else (x, seed, step, rate), lr=0.1)
        optimizer.zero_grad()
        loss = module(x, seed, step, rate)["loss"]
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-5)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(trainer.state_dict()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_results_of_a_module_are_its_own():
    module = Named()
    model = partita.load(module, batch())
    outputs = partita.Schedule(model, "dp=2").build()(*batch())
    expected = module(*batch())
    for value, name in zip(outputs.values() if isinstance(outputs, dict) else outputs, expected):
        assert float(value) == pytest.approx(float(expected[name]), rel=1e-5)


class Root(nn.Module):
    """A parameter of the root with the name of a scalar that the step of AdamW reads."""

    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return ((x * self.step) ** 2).mean()


def test_a_parameter_with_the_name_of_a_scalar_of_the_step_is_refused():
    model = partita.load(Root(), (batch()[0],))
    with pytest.raises(partita.PartitaError, match="`step` is the name of two inputs of the step") as refused:
        partita.Trainer(model, None, "dp=2", "adamw")
    assert refused.value.code == "E161"
