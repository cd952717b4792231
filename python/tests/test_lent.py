"""Tensors that are not copied: where parameters, gradients, inputs and outputs lie, and that no one sees them overwritten."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita._tensors import pack  # noqa: E402

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
MESHES = ["dp=1", "dp=2", "tp=2"]


def make(mesh):
    """A module, and a copy of it under a plan: on tp=2 the second layer is split by columns, and so the third by rows."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))
    plan = {"2": "colwise"} if mesh.startswith("tp") else None
    return module, partita.Schedule(partita.load(module, X), mesh, plan).build()


def whole(planned, mesh):
    """The parameters that a rank holds whole."""
    return [value for name, value in planned.named_parameters() if not is_split(name, mesh)]


def is_split(name, mesh):
    return mesh == "tp=2" and name in ("2.weight", "2.bias", "4.weight")


def natives(planned, kind):
    """The programs of a kind that are in memory."""
    found = []
    for programs in planned._planning.programs.values():
        found += [running.native for key, running in programs._passes.items() if key[0] == kind]
    return found


def address_on_rank(planned, name, kind="training"):
    (native,) = natives(planned, kind)
    lent = native.lend(name)
    return None if lent is None else lent[2].ctypes.data


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def train(m, optimizer, x=X, y=Y):
    optimizer.zero_grad()
    loss = F.mse_loss(m(x), y)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("mesh", MESHES)
def test_parameters_lie_in_the_memory_of_a_rank_and_are_updated_there(mesh):
    module, planned = make(mesh)
    ours, theirs = (torch.optim.Adam(m.parameters(), lr=1e-2, eps=1e-4) for m in (planned, module))
    train(planned, ours), train(module, theirs)
    addresses = {name: value.data_ptr() for name, value in planned.named_parameters()}
    for name, address in addresses.items():
        on_rank = address_on_rank(planned, name)
        assert (on_rank is None) == is_split(name, mesh), name
        assert on_rank is None or on_rank == address, name
    for _ in range(4):
        close(train(planned, ours), train(module, theirs))
    assert {name: value.data_ptr() for name, value in planned.named_parameters()} == addresses
    close(dict(planned.state_dict()), dict(module.state_dict()))


@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_lie_in_the_memory_of_a_rank(mesh):
    module, planned = make(mesh)
    for m in (module, planned):
        F.mse_loss(m(X), Y).backward()
    (native,) = natives(planned, "training")
    assert native.is_lent()
    first = [value.grad.data_ptr() for value in whole(planned, mesh)]
    close(gradients(planned), gradients(module))
    for m in (module, planned):
        m.zero_grad()
        F.mse_loss(m(Y), X).backward()
    assert [value.grad.data_ptr() for value in whole(planned, mesh)] == first
    close(gradients(planned), gradients(module))
    planned.zero_grad()
    assert not native.is_lent()
    assert natives(planned, "training") == [native]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("order", ["before the forward", "before the backward", "in place", "never"])
def test_gradients_that_are_attached_in_a_forward_keep_their_values(mesh, order):
    module, planned = make(mesh)
    for m in (module, planned):
        for x, y in ((X, Y), (Y, X), (X, X)):
            if order in ("before the forward", "in place"):
                m.zero_grad(set_to_none=order != "in place")
            out = m(x)
            if order == "before the backward":
                m.zero_grad()
            F.mse_loss(out, y).backward()
    close(gradients(planned), gradients(module))
    # The program that planned them first still runs.
    (native,) = natives(planned, "training")
    assert native.is_lent() == (order not in ("in place", "never"))


@pytest.mark.parametrize("seen", ["attached", "part", "detached", "numpy", "hook", "returned"])
def test_a_gradient_that_someone_sees_is_not_overwritten(seen):
    _, planned = make("dp=2")
    weight, caught = planned[0].weight, []
    if seen == "hook":
        weight.register_hook(lambda gradient: caught.append(gradient) if not caught else None)
    loss = F.mse_loss(planned(X), Y)
    if seen == "returned":
        (kept,) = torch.autograd.grad(loss, [weight])
    else:
        loss.backward()
        kept = {
            "attached": lambda: weight.grad,
            "part": lambda: weight.grad[1:],
            "detached": lambda: weight.grad.detach(),
            "numpy": lambda: weight.grad.numpy(),
            "hook": lambda: caught[0],
        }[seen]()
    copied = torch.as_tensor(kept).clone().numpy()
    for _ in range(2):
        planned.zero_grad()
        F.mse_loss(planned(Y), X).backward()
    np.testing.assert_array_equal(torch.as_tensor(kept).numpy(), copied)
    assert not np.array_equal(planned[0].weight.grad.numpy()[-1], copied[-1])


@pytest.mark.parametrize("mesh", MESHES)
def test_other_modes_and_shapes_have_the_same_parameters(mesh):
    module, planned = make(mesh)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (planned, module))
    with torch.no_grad():
        close(planned(X), module(X))
    for rows in (6, 4, 6, 2):
        close(train(planned, ours, X[:rows], Y[:rows]), train(module, theirs, X[:rows], Y[:rows]))
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                close(planned(X), module(X))
        planned.eval(), module.eval()
        close(planned(X), module(X))
        planned.train(), module.train()
    close(dict(planned.state_dict()), dict(module.state_dict()))


@pytest.mark.parametrize("mesh", MESHES)
def test_changes_that_pytorch_does_not_count_are_seen(mesh):
    module, planned = make(mesh)
    planned(X)
    for change in (
        lambda m: m[0].weight.data.mul_(0.5),
        lambda m: m[0].weight.data.copy_(torch.ones(16, 8)),
        lambda m: setattr(m[0].weight, "data", torch.full((16, 8), 0.1)),
        lambda m: setattr(m[2], "weight", nn.Parameter(torch.full((16, 16), 0.2))),
        lambda m: m.load_state_dict({name: value + 0.1 for name, value in m.state_dict().items()}),
        lambda m: m.load_state_dict({name: value + 0.1 for name, value in m.state_dict().items()}, assign=True),
        lambda m: m[4].bias.detach().numpy().fill(0.3),
    ):
        for m in (module, planned):
            change(m)
        close(planned(X), module(X))
        with torch.no_grad():
            close(planned(X), module(X))


def test_other_parameters_for_one_call():
    module, planned = make("dp=1")
    planned(X)
    doubled = {name: nn.Parameter(value.detach() * 2) for name, value in module.named_parameters()}
    before = planned.state_dict()
    values = {name: value.clone() for name, value in before.items()}
    for _ in range(2):
        close(torch.func.functional_call(planned, doubled, (X,)), torch.func.functional_call(module, doubled, (X,)))
        close(planned(X), module(X))
    # What a program saw of the parameters before is theirs still.
    close(dict(before), values)
    scaled = {name: value * 3 for name, value in doubled.items()}
    torch.func.functional_call(planned, scaled, (X,)).sum().backward()
    found = doubled["0.weight"].grad.clone()
    doubled["0.weight"].grad = None
    scaled = {name: value * 3 for name, value in doubled.items()}
    torch.func.functional_call(module, scaled, (X,)).sum().backward()
    close(found, doubled["0.weight"].grad)


def test_copies_have_memory_of_their_own(tmp_path):
    module, planned = make("dp=2")
    planned(X)
    other = copy.deepcopy(planned)
    torch.save(planned.state_dict(), tmp_path / "state.pt")
    with torch.no_grad():
        planned[0].weight.zero_()
    close(other(X), module(X))
    planned.load_state_dict(torch.load(tmp_path / "state.pt"))
    close(planned(X), module(X))


def test_memory_outlives_the_module():
    _, planned = make("dp=1")
    F.mse_loss(planned(X), Y).backward()
    weight, gradient = planned[0].weight, planned[0].weight.grad
    values = weight.detach().clone(), gradient.clone()
    del planned
    close((weight.detach(), gradient), values)


def test_the_dtype_of_a_module_may_change_between_steps():
    module, planned = make("dp=2")
    planned(X)
    module.to(torch.bfloat16), planned.to(torch.bfloat16)
    for m in (module, planned):
        F.mse_loss(m(X.bfloat16()), Y.bfloat16()).backward()
    assert planned[0].weight.dtype == planned[0].weight.grad.dtype == torch.bfloat16
    close(gradients(planned), gradients(module), 3e-2)
    module.float(), planned.float()
    close(planned(X), module(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_contiguous_input_crosses_without_a_copy(dtype):
    value = (X > 0) if dtype == torch.bool else X.to(dtype)
    name, shape, data = pack(value)
    assert data.ctypes.data == value.data_ptr() and shape == [6, 8] and data.nbytes == value.nbytes
    if dtype != torch.bfloat16:
        array = value.numpy()
        assert pack(array)[2].ctypes.data == array.ctypes.data
    assert pack(value.t())[2].ctypes.data != value.data_ptr()
    assert pack(torch.empty(0, 3, dtype=dtype))[1] == [0, 3]


def test_inputs_and_outputs_of_the_dlpack_protocol(recorded, tmp_path):
    class Given:
        """Has the protocol and nothing else."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    array = X.numpy()
    assert pack(Given(array))[2].ctypes.data == array.ctypes.data
    module, planned = make("tp=2")
    torch.export.save(torch.export.export(module, (X,)), tmp_path / "model.pt2")
    from_file = partita.Schedule(partita.load(tmp_path / "model.pt2"), "dp=2").build()
    (found,) = from_file(Given(array)).values()
    assert torch.from_dlpack(found).data_ptr() == found.ctypes.data
    close(torch.from_dlpack(found), module(X))
    out = planned(X)
    assert np.from_dlpack(out.detach()).ctypes.data == out.data_ptr()


def test_an_output_is_not_overwritten_by_the_next_call():
    module, planned = make("dp=2")
    outs = [planned(x) for x in (X, Y)]
    close(outs, [module(x) for x in (X, Y)])


def test_gradients_of_several_inputs():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, y, scale):
            return (self.linear(x) * y.sin()) * scale

    torch.manual_seed(0)
    module = Sum()
    planned = partita.Schedule(partita.load(module, (X, Y, torch.tensor(2.0))), "dp=2").build()
    for wanted in ((True, False, False), (False, True, False), (True, True, True), (False, False, False)):
        found = []
        for m in (module, planned):
            m.zero_grad()
            inputs = [
                value.clone().requires_grad_(wants) for value, wants in zip((X, Y, torch.tensor(2.0)), wanted)
            ]
            m(*inputs).pow(2).sum().backward()
            found.append([value.grad for value in inputs] + gradients(m))
            assert [value.grad is not None for value in inputs] == list(wanted)
        close(found[1], found[0], 1e-4)
