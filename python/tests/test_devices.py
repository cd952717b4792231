"""Tensors on another device than the host: numbers, results and gradients are as PyTorch's, and the program is told once.

The device is `away.cpp`, a backend of PyTorch in memory of the host, which a compiler builds here. Autograd counts devices in
the first backward pass of a process: so what needs this one runs in a process of its own, which the first test starts.
"""

import copy
import os
import shutil
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import ms, slapo  # noqa: E402
from partita.distributed import init_device_mesh  # noqa: E402
from partita.distributed.fsdp import fully_shard  # noqa: E402
from partita.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from partita.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from partita.nvfuser import FusionDefinition  # noqa: E402


_ALONE = "PARTITA_TEST_DEVICES"


@pytest.mark.skipif(_ALONE in os.environ, reason="this is that process")
def test_what_needs_a_device_runs_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", __file__]
    done = subprocess.run(command, env=os.environ | {_ALONE: "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    if "SKIPPED" in done.stdout and "compiler" in done.stdout:
        pytest.skip(done.stdout)


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """The device."""
    if _ALONE not in os.environ:
        pytest.skip("runs in the process of the first test")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no compiler for C++")
    root = Path(torch.__file__).parent
    include, library = root / "include", tmp_path_factory.mktemp("away") / "away.so"
    command = [compiler, "-std=c++20", "-O0", "-fPIC", "-shared", str(Path(__file__).with_name("away.cpp")), "-o", str(library)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", f"-I{include}"]
    command += [f"-I{include / 'torch/csrc/api/include'}", f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"this compiler does not build a device: {built.stderr[:200]}")
    torch.utils.rename_privateuse1_backend("away")
    torch.ops.load_library(str(library))
    functions = {"is_available": lambda: True, "is_initialized": lambda: True, "_is_in_bad_fork": lambda: False}
    functions |= {"current_device": lambda: 0, "device_count": lambda: 1, "manual_seed_all": lambda seed: None}
    torch._register_device_module("away", types.SimpleNamespace(**functions))
    return torch.device("away:0")


class Net(torch.nn.Module):
    """With a constant, buffers of which one changes, an op that makes a tensor, and a value that is left in an attribute."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("count", torch.zeros(()))
        self.aux = None

    def forward(self, x):
        self.count.add_(1)
        hidden = F.gelu(self.up(x))
        self.aux = hidden.square().mean()
        return self.down(hidden) * self.scale + torch.arange(4, device=x.device)


def net(device="cpu"):
    torch.manual_seed(0)
    return Net().to(device)


def data(device="cpu"):
    torch.manual_seed(1)
    return torch.randn(4, 8, device="cpu").to(device).requires_grad_(), torch.randn(4, 4).to(device)


def told(found):
    return [str(note.message) for note in found if "the cores of this machine" in str(note.message)]


def built_by_slapo(module, x):
    sch = slapo.create_schedule(module, mesh="tp=2")
    with slapo.Verify(sch, example_inputs=[x]):
        sch["up"].shard(["weight", "bias"], axis=0)
        sch["down"].shard("weight", axis=1)
        sch["down"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")
    return slapo.build(sch)[0]


def built_by_ms(module, x):
    sch = ms.create_schedule(module, world_size=2)
    sch["up"].partition(axis=0, param="weight")
    return ms.build(sch)[0]


def built_by_schedule(module, x):
    sch = partita.Schedule(partita.load(module, (x.detach(),)), "dp=2")
    assert sch.verify().ok
    return sch.build()


def built_in_parallel(module, x):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    return parallelize_module(copy.deepcopy(module), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def built_as_fsdp(module, x):
    module = copy.deepcopy(module)
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    return module


BUILT = {
    "slapo": built_by_slapo,
    "ms": built_by_ms,
    "Schedule": built_by_schedule,
    "parallelize_module": built_in_parallel,
    "fully_shard": built_as_fsdp,
}


@pytest.mark.parametrize("how", BUILT)
def test_a_built_module_trains_on_the_device_of_its_tensors(away, how):
    plain, (x, _), (own, _) = net(), data(), data(away)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        built = BUILT[how](net(away), own)
        optimizer, other = torch.optim.AdamW(built.parameters(), 0.01), torch.optim.AdamW(plain.parameters(), 0.01)
        for _ in range(3):
            for module, given in ((built, own), (plain, x)):
                (module(given).square().mean() + module.aux).backward()
            for each in (optimizer, other):
                each.step(), each.zero_grad()
        result = built(own)
        with torch.no_grad():
            assert built(own).device == away
    assert result.device == built.aux.device == own.grad.device == away
    assert {value.device for value in [*built.parameters(), *built.buffers()]} == {away}
    torch.testing.assert_close(result.cpu(), plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert float(built.count) == 5
    notes = told(found)
    assert len(notes) == 1 and notes[0].startswith("Net is on the device away:0")
    assert [note.filename for note in found if str(note.message) in notes] == [__file__]


def test_gradients_lie_beside_their_parameters(away):
    built = built_by_ms(net(away), None)
    built(data(away)[0]).sum().backward()
    assert {value.grad.device for value in built.parameters() if value.grad is not None} == {away}
    first = built.up.weight.grad
    built.zero_grad()
    built(2 * data(away)[0]).sum().backward()
    # A gradient of a device is its own memory: no later pass changes it.
    assert not torch.equal(first.cpu(), built.up.weight.grad.cpu())


def test_a_module_may_go_to_a_device_and_come_back(away):
    plain, (x, _) = net(), data()
    built = built_by_ms(net(), x)
    expected = plain(x)
    for device in ("cpu", away, "cpu", away):
        built.to(device)
        given = x.detach().to(device).requires_grad_()
        result = built(given)
        result.sum().backward()
        assert result.device == given.grad.device == built.up.weight.device == built.up.weight.grad.device == torch.device(device)
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_results_lie_where_the_module_puts_them(away):
    class Mixed(torch.nn.Module):
        def forward(self, x):
            return x * 2, (x * 3).cpu(), torch.ones(2)

    model = partita.load(Mixed(), (torch.ones(4, 2).to(away),))
    built = partita.Schedule(model, "dp=2").build()
    found = built(torch.ones(4, 2).to(away))
    assert [value.device.type for value in found] == ["away", "cpu", "cpu"]
    assert [value.device.type for value in built(torch.ones(4, 2))] == ["cpu", "cpu", "cpu"]


def test_the_types_of_autocast_on_a_device_are_those_of_an_export():
    from partita._readings import casts

    before = casts()
    if not torch.is_autocast_enabled("xla"):
        torch.set_autocast_enabled("xla", True)
        try:
            assert casts() != before
        finally:
            torch.set_autocast_enabled("xla", False)
    assert casts() == before


def test_a_trainer_has_values_for_the_device_of_its_module(away):
    module, (x, y) = net(away), data(away)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = partita.load(module, (x.detach(), y), loss=F.mse_loss)
        sch = partita.Schedule(model, "dp=2", optimizer="sgd")
        assert sch.verify().ok
        trainer, other = sch.trainer(), partita.Trainer(
            partita.load(net(), tuple(value.detach().cpu() for value in (x, y)), loss=F.mse_loss), None, "dp=2", "sgd"
        )
        for _ in range(3):
            assert trainer.step((x, y)) == other.step((x.cpu(), y.cpu()))
    state = trainer.state_dict()
    assert {value.device for value in [*state.values(), *model.state_dict().values()]} == {away}
    module.load_state_dict(state)
    trainer.step((x, y))
    trainer.load_state_dict(module.state_dict())
    assert len(told(found)) == 1 and "away:0" in trainer.notes[-1] and not any("away" in note for note in other.notes)


def test_a_module_of_the_host_may_be_given_batches_of_a_device(away):
    x, y = data(away)
    trainer = partita.Trainer(partita.load(net(), tuple(v.detach().cpu() for v in (x, y)), loss=F.mse_loss), None, "dp=2")
    with pytest.warns(UserWarning, match="Net is on the device away:0"):
        trainer.step((x, y))
    assert {value.device.type for value in trainer.state_dict().values()} == {"cpu"}


def test_parameters_that_share_memory_of_a_device_are_refused(away):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Parameter(torch.rand(4, device="cpu").to(away))
            self.other = torch.nn.Parameter(torch.zeros(4).to(away))
            self.other.data = self.one.data

        def forward(self, x):
            return (x * self.one + self.other).sum()

    with pytest.raises(partita.PartitaError) as refused:
        partita.Trainer(partita.load(Twice(), torch.ones(2, 4).to(away)), None, "dp=2")
    assert refused.value.code == "E398"


def test_distributed_tensors_stay_on_their_device(away):
    with pytest.warns(UserWarning, match="the mesh is on the device away") as found:
        mesh = init_device_mesh("away", (2,), mesh_dim_names=("tp",))
        a, b = torch.randn(4, 6), torch.randn(6, 8)
        left = distribute_tensor(a.to(away).requires_grad_(), mesh, [Shard(1)])
        right = distribute_tensor(b.to(away).requires_grad_(), mesh, [Shard(0)])
        product = left @ right
        product.square().sum().backward()
    assert len(told(found)) == 1
    placed = [left, right, product, product.redistribute(placements=[Shard(0)]), product.full_tensor(), left.grad]
    placed += [*product.to_local(), *left.grad.to_local(), DTensor.from_local([a.to(away)] * 2, mesh, [Partial()]).full_tensor()]
    assert {value.device for value in placed} == {away}
    torch.testing.assert_close(product.full_tensor().cpu(), a @ b)
    torch.testing.assert_close(left.grad.full_tensor().cpu(), 2 * (a @ b) @ b.T, rtol=1e-4, atol=1e-4)
    # And go where they are sent.
    home = product.detach().cpu().requires_grad_()
    assert home.device.type == "cpu" and home.to_local()[0].device.type == "cpu"
    back = home.to(away, torch.float64)
    assert back.device == away and back.dtype == torch.float64 and back.to(home).device.type == "cpu"
    back.sum().backward()
    assert home.grad.device.type == "cpu" and home.grad.full_tensor().eq(1).all()


def test_a_mesh_of_the_host_takes_tensors_of_a_device(away):
    mesh = init_device_mesh("cpu", (2,))
    with pytest.warns(UserWarning, match="a distributed tensor is on the device away:0"):
        found = distribute_tensor(torch.ones(4).to(away), mesh, [Shard(0)]) * 2
    assert found.device == away and distribute_tensor(torch.ones(4), mesh, [Replicate()]).sum().device.type == "cpu"


def test_a_program_for_cuda_makes_its_mesh():
    with pytest.warns(UserWarning, match="the mesh is on the device cuda"):
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh.device_type == "cuda" and mesh["tp"].device_type == "cuda"
    for wrong in ("cud", "cuda:0", "meta"):
        with pytest.raises(partita.PartitaError) as refused:
            init_device_mesh(wrong, (2,))
        assert refused.value.code == "E380"
    with pytest.raises(partita.PartitaError, match="did you mean 'cuda'"):
        init_device_mesh("cud", (2,))


def test_a_fusion_returns_tensors_of_the_device(away):
    class Sum(FusionDefinition):
        def definition(self):
            self.x = self.from_pytorch(torch.ones(4, 2))
            self.add_output(self.ops.sum(self.ops.add(self.x, self.x), [0]))

    with pytest.warns(UserWarning, match="Sum is on the device away:0"):
        (found,) = Sum().execute([torch.ones(4, 2).to(away)])
    assert found.device == away and found.cpu().tolist() == [8.0, 8.0]


def test_arrays_of_jax_stay_on_their_device():
    pytest.importorskip("jax", reason="JAX is not installed")
    program = """
import jax, jax.numpy as jnp
from partita import alpa

alpa.init(cluster="local", num_devices_per_node=2)


@alpa.parallelize
def step(state, batch):
    loss, gradient = alpa.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
    return state - 0.1 * gradient, loss


own = jax.devices()[1]
state, batch = jax.device_put((jnp.ones((4, 2)), jnp.ones((8, 4))), own)
for _ in range(2):
    state, loss = step(state, batch)
print(loss.device == own, alpa.fetch(state).device == own)
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_tensor_without_values_is_refused():
    built = built_by_ms(net(), None)
    with pytest.raises(partita.PartitaError) as refused:
        built(torch.ones(4, 8, device="meta"))
    assert refused.value.code == "E415"
