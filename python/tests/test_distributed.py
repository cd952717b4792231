"""Distributed tensors: layouts by propagation, values and gradients beside PyTorch on one device, refusals."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

from partita import PartitaError  # noqa: E402
from partita.distributed._tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from partita.distributed._tensor.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from partita.log_utils import get_logger, rank_log, verify_min_gpu_count  # noqa: E402


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, W = numbers(4, 32), numbers(32, 5, seed=1)


@pytest.fixture(scope="module")
def mesh():
    return init_device_mesh("cpu", (3,))


@pytest.fixture(scope="module")
def grid():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


P, R = Partial(), Replicate()

# A function of `a`, split along dimension 1, of `w`, split along dimension 0, and of their product, a sum over ranks.
# The layouts are those of PyTorch's DTensor but for the last lines.
FUNCTIONS = {
    "matmul": (lambda a, w: a @ w, P),
    "sum of sums": (lambda a, w: a @ w + a @ w, P),
    "sum over the split": (lambda a, w: a.sum(1), P),
    "largest over the split": (lambda a, w: a.amax(1), Partial("max")),
    "smallest over the split": (lambda a, w: a.amin(1), Partial("min")),
    "sum of all": (lambda a, w: a.sum(), P),
    "one more": (lambda a, w: a @ w + 1, R),
    "relu": (lambda a, w: torch.relu(a @ w), R),
    "exp": (lambda a, w: (a @ w).exp(), R),
    "gelu": (lambda a, w: F.gelu(a), Shard(1)),
    "cat": (lambda a, w: torch.cat([a, a * 2]), Shard(1)),
    "stack": (lambda a, w: torch.stack([a, a]), Shard(2)),
    "transpose": (lambda a, w: a.T, Shard(0)),
    "slice": (lambda a, w: a[1:3], Shard(1)),
    "embedding": (lambda a, w: F.embedding(torch.tensor(7), w), P),
    # PyTorch gathers first: Replicate.
    "softmax": (lambda a, w: a.softmax(1), Shard(1)),
    "layer norm": (lambda a, w: F.layer_norm(a, (32,)), Shard(1)),
    # PyTorch keeps the terms: Partial.
    "twice": (lambda a, w: (a @ w) * 2, R),
    # PyTorch has a strided layout.
    "view": (lambda a, w: a.view(128), R),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_pytorchs_values_and_a_layout_by_propagation(mesh, name):
    function, placement = FUNCTIONS[name]
    found = function(distribute_tensor(A, mesh, [Shard(1)]), distribute_tensor(W, mesh, [Shard(0)]))
    assert isinstance(found, DTensor) and found.placements == (placement,)
    close(found.full_tensor(), function(A, W))


@pytest.mark.parametrize("a", [Replicate(), Shard(0), Shard(1)])
@pytest.mark.parametrize("b", [Replicate(), Shard(0), Shard(1)])
def test_layouts_of_two_operands_meet(mesh, a, b):
    found = distribute_tensor(A, mesh, [a]) * distribute_tensor(A, mesh, [b])
    close(found.full_tensor(), A * A)
    sharded = [placement for placement in (a, b) if placement.is_shard()]
    assert found.placements[0] in sharded or not sharded


# Shape, new shape, layout on 2 x 2 ranks, and the layout of the result. A result has whole mesh axes and parts as even as
# possible, also where the planner would keep other ones.
RESHAPED = [
    ((8, 3), (24,), (Shard(0), Replicate()), (Shard(0), Replicate())),
    ((24,), (4, 6), (Shard(0), Shard(0)), (Shard(0), Shard(0))),
    ((24,), (6, 4), (Shard(0), Shard(0)), (Shard(0), Shard(0))),
    ((4, 8), (2, 2, 8), (Shard(0), Shard(0)), (Shard(0), Shard(1))),
    ((7, 6), (7, 3, 2), (Shard(0), Shard(1)), (Shard(0), Shard(1))),
    ((7, 6), (42,), (Shard(0), Shard(1)), (Shard(0), Replicate())),
    ((5, 4), (2, 10), (Shard(1), Replicate()), (Replicate(), Replicate())),
]


@pytest.mark.parametrize("shape, new, before, after", RESHAPED)
def test_reshapes_keep_the_values(grid, shape, new, before, after):
    value = numbers(*shape)
    found = distribute_tensor(value, grid, before).view(new)
    assert found.placements == after
    assert (found.full_tensor() == value.view(new)).all()


def test_parts_are_as_even_as_possible(mesh):
    parts = distribute_tensor(A, mesh, [Shard(-1)]).to_local()
    assert [tuple(part.shape) for part in parts] == [(4, 11), (4, 11), (4, 10)]
    assert (torch.cat(parts, 1) == A).all()
    rows = distribute_tensor(A[:2], mesh, [Shard(0)])
    assert [len(part) for part in rows.to_local()] == [1, 1, 0]
    assert (rows.full_tensor() == A[:2]).all()


LAYOUTS = [
    ([Shard(0), Shard(1)], [Shard(1), Shard(0)]),
    ([Shard(0), Shard(0)], [Replicate(), Shard(1)]),
    ([Replicate(), Shard(0)], [Shard(0), Replicate()]),
    ([Shard(1), Replicate()], [Replicate(), Replicate()]),
    ([Replicate(), Replicate()], [Shard(1), Shard(1)]),
]


@pytest.mark.parametrize("before, after", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_redistribute_changes_the_layout_alone(grid, before, after, dtype):
    value = (A * 3).to(dtype)
    found = distribute_tensor(value, grid, before).redistribute(placements=after)
    assert found.placements == tuple(after)
    assert [part.shape for part in found.to_local()] == [
        part.shape for part in distribute_tensor(value, grid, after).to_local()
    ]
    assert (found.full_tensor() == value).all()


@pytest.mark.parametrize("operation", ["sum", "avg", "max", "min", "product"])
@pytest.mark.parametrize("other", [Replicate(), Shard(0)])
def test_terms_are_combined(grid, operation, other):
    terms = [numbers(4, 6, seed=seed) for seed in range(2)]
    whole = torch.stack(terms)
    expected = {
        "sum": whole.sum(0),
        "avg": whole.mean(0),
        "max": whole.amax(0),
        "min": whole.amin(0),
        "product": whole.prod(0),
    }[operation]
    # Ranks are (dp, tp): terms along dp, rows along tp.
    rows = [term[2 * tp : 2 * tp + 2] if other == Shard(0) else term for term in terms for tp in range(2)]
    tensor = DTensor.from_local(rows, grid, [Partial(operation), other])
    assert tensor.shape == (4, 6)
    close(tensor.full_tensor(), expected)
    close(tensor.redistribute(placements=[Shard(1), other]).full_tensor(), expected)
    kept = tensor.redistribute(placements=[Partial(operation), Shard(1)])
    assert kept.placements == (Partial(operation), Shard(1)) and kept.to_local()[0].shape == (4, 3)
    close(kept.full_tensor(), expected)
    close((tensor * 1.5).full_tensor(), expected * 1.5)


def test_from_local_takes_the_tensors_of_ranks_or_a_global_one(mesh):
    parts = [A[:, :11], A[:, 11:22], A[:, 22:]]
    tensor = DTensor.from_local(parts, mesh, [Shard(1)])
    assert tensor.shape == A.shape and (tensor.full_tensor() == A).all()
    for placement in (Shard(0), Replicate(), Partial(), Partial("avg"), Partial("max"), Partial("product")):
        close(DTensor.from_local(A, mesh, [placement]).full_tensor(), A)
    DTensor.from_local([A, A, A], mesh, run_check=True)
    with pytest.raises(PartitaError, match="copies of one tensor differ"):
        DTensor.from_local([A, A + 1, A], mesh, run_check=True)


def test_gradients_are_those_of_one_device(mesh):
    def loss(a, w, bias):
        hidden = F.gelu(a @ w + bias)
        return (F.layer_norm(hidden, (5,)) * hidden).square().mean() + a.T.sum() + (a @ w).amax(1).sum()

    bias = numbers(5, seed=2)
    ours = [
        distribute_tensor(value.clone().requires_grad_(), mesh, [placement])
        for value, placement in ((A, Shard(1)), (W, Shard(0)), (bias, Replicate()))
    ]
    plain = [value.clone().requires_grad_() for value in (A, W, bias)]
    found, expected = loss(*ours), loss(*plain)
    close(found.full_tensor(), expected)
    found.backward()
    expected.backward()
    for mine, other in zip(ours, plain):
        assert mine.is_leaf and mine.grad.placements == mine.placements
        close(mine.grad.full_tensor(), other.grad)


def test_gradients_pass_between_plain_and_distributed_tensors(mesh):
    plain = A.clone().requires_grad_()
    parts = [W[:11].clone().requires_grad_(), W[11:22].clone().requires_grad_(), W[22:].clone().requires_grad_()]
    product = DTensor.from_local(plain, mesh, [Shard(1)]) @ DTensor.from_local(parts, mesh, [Shard(0)])
    (product.full_tensor() ** 2).sum().backward()
    a, w = A.clone().requires_grad_(), W.clone().requires_grad_()
    ((a @ w) ** 2).sum().backward()
    close(plain.grad, a.grad, 1e-4)
    close(torch.cat([part.grad for part in parts]), w.grad, 1e-4)
    leaf = distribute_tensor(A.clone().requires_grad_(), mesh, [Shard(1)])
    sum(part.square().sum() for part in leaf.redistribute(placements=[Shard(0)]).to_local()).backward()
    close(leaf.grad.full_tensor(), 2 * A)


def test_gradients_of_copies_and_terms_are_those_of_their_value(grid):
    """A layer that is split by hand: rows over dp, output features over tp, then the sum of two terms."""
    x, w = A.clone().requires_grad_(), W[:, :4].clone().requires_grad_()
    (x @ w).square().sum().backward()
    ours = distribute_tensor(A.clone().requires_grad_(), grid, [Shard(0), Replicate()])
    weight = distribute_tensor(W[:, :4].clone().requires_grad_(), grid, [Replicate(), Shard(1)])
    products = [rows @ columns for rows, columns in zip(ours.to_local(), weight.to_local())]
    DTensor.from_local(products, grid, [Shard(0), Shard(1)]).square().sum().backward()
    close(ours.grad.full_tensor(), x.grad, 1e-4)
    close(weight.grad.full_tensor(), w.grad, 1e-4)
    for placement, factor in ((Partial(), 1), (Partial("avg"), 0.5), (Replicate(), None)):
        parts = [A.clone().requires_grad_() for _ in range(4)]
        DTensor.from_local(parts, grid, [placement, Replicate()]).sum().backward()
        expected = [1, 0, 0, 0] if factor is None else [factor, 0, factor, 0]
        assert [part.grad.unique().item() for part in parts] == expected
    parts = [A.clone().requires_grad_() for _ in range(4)]
    largest = DTensor.from_local(parts, grid, [Partial("max"), Replicate()]).sum()
    with pytest.raises(PartitaError, match="E381"):
        largest.backward()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_update_distributed_parameters(mesh, optimizer):
    ours = torch.nn.Parameter(distribute_tensor(W, mesh, [Shard(0)]))
    plain = torch.nn.Parameter(W.clone())
    rules = [optimizer([weight], lr=0.05) for weight in (ours, plain)]
    for _ in range(3):
        for weight, rule, x in ((ours, rules[0], distribute_tensor(A, mesh)), (plain, rules[1], A)):
            rule.zero_grad()
            F.mse_loss(x @ weight, torch.zeros_like(x @ weight)).backward()
            rule.step()
    assert isinstance(ours, DTensor) and ours.placements == (Shard(0),)
    close(ours.full_tensor(), plain.detach())


def test_constants_tell_functions_apart(mesh):
    whole = torch.arange(6)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    for constant in (2, 2.0, True, 3, -1.5):
        found, expected = (tensor * constant).full_tensor(), whole * constant
        assert found.dtype == expected.dtype and (found == expected).all()
    for window in (slice(1, 4), slice(1, None), slice(None, None, 2)):
        assert (tensor[window].full_tensor() == whole[window]).all()


def test_a_tensor_prints_copies_and_has_values(mesh, tmp_path):
    tensor = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    assert repr(tensor) == (
        "DTensor(local_tensor=tensor([0., 1.]), device_mesh=DeviceMesh((3,), 'cpu'), placements=(Shard(dim=0),))"
    )
    assert tensor.sum().item() == 15 and bool(tensor.sum() > 14) and tensor.tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.shape == (6,) and tensor.dtype == torch.float32 and len(tensor) == 6
    again = pickle.loads(pickle.dumps(tensor))
    assert again.placements == tensor.placements and (again.full_tensor() == tensor.full_tensor()).all()
    assert (copy.deepcopy(tensor).full_tensor() == tensor.full_tensor()).all()
    tensor += 1
    assert tensor.placements == (Shard(0),) and tensor.tolist() == [1, 2, 3, 4, 5, 6]


def test_meshes_answer_as_pytorchs_do(grid):
    assert grid.get_rank() == 0 and grid.size() == 4 and grid.size(1) == 2 and grid.ndim == 2
    assert grid.mesh.tolist() == [[0, 1], [2, 3]] and grid["tp"].mesh.tolist() == [0, 1]
    assert grid["dp"].mesh.tolist() == [0, 2] and grid["tp"].mesh_dim_names == ("tp",)
    assert repr(grid) == "DeviceMesh((dp=2, tp=2), 'cpu')"
    assert grid == init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) != grid["tp"]
    assert pickle.loads(pickle.dumps(grid["tp"])) == grid["tp"]
    for ranks in ([[0, 1], [2, 3]], torch.arange(4).reshape(2, 2)):
        assert DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp")) == grid
    assert DeviceMesh("cpu", range(3)).shape == (3,) and DeviceMesh("cpu", [[[0]], [[1]]]).shape == (2, 1, 1)
    part = distribute_tensor(A, grid["tp"], [Shard(0)])
    assert [len(local) for local in part.to_local()] == [2, 2, 2, 2]
    close((part @ distribute_tensor(W, grid["tp"])).full_tensor(), A @ W)
    assert verify_min_gpu_count(min_gpus=2)
    with pytest.raises(ValueError):
        verify_min_gpu_count(0)


def test_one_rank_logs(caplog):
    logger = get_logger()
    with caplog.at_level("INFO", logger="partita"):
        rank_log(0, logger, "of rank 0")
        rank_log(1, logger, "of rank 1")
    assert [record.message for record in caplog.records] == ["of rank 0"]


REFUSED = {
    "a dimension that there is not": ("E380", lambda m: distribute_tensor(A, m, [Shard(2)])),
    "placements of another mesh": ("E380", lambda m: distribute_tensor(A, m, [Shard(0), Shard(1)])),
    "no placement": ("E380", lambda m: distribute_tensor(A, m, ["S(0)"])),
    "into terms": ("E380", lambda m: distribute_tensor(A, m, [Partial()])),
    "another reduction": ("E380", lambda m: Partial("mean")),
    "no ranks' tensors": ("E380", lambda m: DTensor.from_local([], m)),
    "too few ranks": ("E380", lambda m: DTensor.from_local([A, A], m)),
    "other parts": ("E380", lambda m: DTensor.from_local([A, A[:2], A], m, [Shard(0)])),
    "other ranks": ("E380", lambda m: DTensor.from_local([A, A, A[0]], m)),
    "other types": ("E380", lambda m: DTensor.from_local([A, A, A.double()], m)),
    "from Replicate to terms": ("E380", lambda m: distribute_tensor(A, m).redistribute(placements=[Partial()])),
    "another device": ("E380", lambda m: init_device_mesh("gpu", (2,))),
    "names": ("E380", lambda m: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp",))),
    "no ranks": ("E380", lambda m: init_device_mesh("cpu", (0,))),
    "ranks in another order": ("E380", lambda m: DeviceMesh("cpu", [1, 0])),
    "ranks in no order": ("E380", lambda m: DeviceMesh("cpu", [[0, 1], [2]])),
    "no list of ranks": ("E380", lambda m: DeviceMesh("cpu", 2)),
    "a part of an unnamed mesh": ("E380", lambda m: m["tp"]),
    "twice": ("E381", lambda m: distribute_tensor(distribute_tensor(A, m), m)),
    "a plain tensor": ("E381", lambda m: distribute_tensor(A, m) + A),
    "another mesh": (
        "E381",
        lambda m: distribute_tensor(A, m) + distribute_tensor(A, init_device_mesh("cpu", (2,))),
    ),
    "redistribute to another mesh": (
        "E381",
        lambda m: distribute_tensor(A, m).redistribute(init_device_mesh("cpu", (2,)), [Shard(0)]),
    ),
    "random numbers": ("E381", lambda m: F.dropout(distribute_tensor(A, m), 0.5, True)),
    "shapes that depend on values": ("E355", lambda m: torch.nonzero(distribute_tensor(A, m))),
    "other shapes": ("E415", lambda m: distribute_tensor(A, m) @ distribute_tensor(A, m)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_misuse_is_refused(mesh, what):
    code, misuse = REFUSED[what]
    with pytest.raises(PartitaError) as refused:
        misuse(mesh)
    assert refused.value.code == code, str(refused.value)
