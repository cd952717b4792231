"""Fusion definitions on ranks: the matmul in its four forms, collectives as statements, layouts over them, refusals."""

import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

from partita import PartitaError, nvfuser  # noqa: E402
from partita.nvfuser import (  # noqa: E402
    DataType,
    DeviceMesh,
    FusionDefinition,
    LoadStoreOpType,
    ParallelType,
    Partial,
    Replicate,
    Shard,
    create_dtensor,
    create_mesh,
    gather,
    scatter,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, B = numbers(8, 6), numbers(6, 10, seed=1)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Matmul(FusionDefinition):
    """The matmul of the request for comments, without a layout."""

    def definition(self):
        fd = self
        self.A = fd.from_pytorch(A)
        self.B = fd.from_pytorch(B)
        self.C = fd.ops.matmul(self.A, self.B)
        fd.add_output(self.C)


class Scheduled(Matmul):
    def multigpu_schedule(self):
        mesh = DeviceMesh([[0, 1], [2, 3]])
        for t in self.all_tensors():
            self.sched._set_device_mesh(t, mesh)
        self.sched.parallelize(self.A, 0, ParallelType.mesh_x)
        self.sched.parallelize(self.B, 1, ParallelType.mesh_y)
        self.sched.parallelize(self.C, 0, ParallelType.mesh_x)
        self.sched.parallelize(self.C, -1, ParallelType.mesh_y)


class Cached(Matmul):
    def multidevice_schedule(self):
        shard_A = self.schedule.cache_after(self.A, LoadStoreOpType.scatter)
        shard_B = self.schedule.cache_after(self.B, LoadStoreOpType.scatter)
        shard_C = self.schedule.cache_before(self.C, LoadStoreOpType.gather)
        mesh = self.create_mesh((2, 2))
        for t, axes in ((shard_A, "x-"), (shard_B, "-y"), (shard_C, "xy")):
            self.sched._set_device_mesh(t, mesh)
            for dim, axis in enumerate(axes):
                self.sched.parallelize(t, dim, ParallelType["serial" if axis == "-" else f"mesh_{axis}"])


class Manual(FusionDefinition):
    def definition(self):
        fd = self
        a, b = fd.from_pytorch(A), fd.from_pytorch(B)
        mesh = fd.create_mesh((2, 2))
        shards_A = scatter(a, mesh, [Shard(0), Replicate()])
        shards_B = scatter(b, mesh, [Replicate(), Shard(1)])
        shards_C = [fd.ops.matmul(shard_A, shard_B) for shard_A, shard_B in zip(shards_A, shards_B)]
        assert [shard.shape for shard in shards_C] == [(4, 5)] * 4
        fd.add_output(gather(shards_C, mesh))


class Distributed(FusionDefinition):
    def definition(self):
        fd = self
        a, b = fd.from_pytorch(A), fd.from_pytorch(B)
        mesh = fd.create_mesh((2, 2))
        dtA = fd.ops.create_dtensor(a, mesh, [Shard(0), Replicate()])
        dtB = create_dtensor(b, mesh, [Replicate(), Shard(1)])
        dtC = fd.ops.matmul(dtA, dtB)
        assert dtC.placements == (Shard(0), Shard(1))
        fd.add_output(fd.ops.to_local(dtC))
        fd.add_output(dtC)


# Each form, and its collectives: kind, how often, bytes.
FORMS = [(Matmul, []), (Scheduled, []), (Cached, [("all_gather", 2, 480)]), (Manual, [("all_gather", 2, 480)])]


@pytest.mark.parametrize("form, collectives", FORMS)
def test_the_matmul_is_that_of_one_device(form, collectives):
    fd = form()
    (found,) = fd.execute([A, B])
    close(found, A @ B)
    assert fd.collectives() == collectives
    close(fd.execute([2 * A, B])[0], 2 * A @ B)


def test_a_local_output_is_one_tensor_per_rank():
    fd = Distributed()
    parts, whole = fd.execute([A, B])
    close(whole, A @ B)
    assert len(parts) == 4
    for rank, part in enumerate(parts):
        rows, columns = divmod(rank, 2)
        close(part, (A @ B)[4 * rows : 4 * rows + 4, 5 * columns : 5 * columns + 5])
    assert fd.collectives() == []


def test_shards_along_one_axis_of_both_operands_are_fetched():
    """Rows of A and columns of B over the same ranks: no rank has the blocks off the diagonal, so B is gathered."""

    class OneAxis(FusionDefinition):
        def definition(self):
            mesh = self.create_mesh(2)
            shards_A = self.ops.scatter(self.from_pytorch(A), mesh, [Shard(0)])
            shards_B = self.ops.scatter(self.from_pytorch(B), mesh, [Shard(1)])
            self.add_output(self.ops.gather([a @ b for a, b in zip(shards_A, shards_B)], mesh))

    fd = OneAxis()
    close(fd.execute([A, B])[0], A @ B)
    # The columns of B, and the rows of the product.
    assert fd.collectives() == [("all_gather", 2, 560)]


def test_the_host_program_has_compute_and_communication_apart():
    text = Cached().host_ir(3)
    assert re.findall(r"^ +\d+  (?:%\S+ = )?(start #\d all_gather over \S+ \d]|wait|[a-z_]+)", text, re.MULTILINE) == [
        "dot_general",
        "start #1 all_gather over [1, 3]",
        "wait",
        "start #3 all_gather over [2, 3]",
        "wait",
    ]
    assert "stablehlo.all_gather" in Cached().local_ir()
    assert 'sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]>' in Cached().global_ir()


COLLECTIVES = {
    "all_reduce": (lambda p: nvfuser.all_reduce(p), ["all_reduce"], [slice(None)] * 3),
    "reduce_scatter": (
        lambda p: nvfuser.reduce_scatter(p, 0),
        ["reduce_scatter"],
        [slice(0, 3), slice(3, 6), slice(6, 8)],
    ),
    "all_gather": (
        lambda p: nvfuser.all_gather(nvfuser.reduce_scatter(p, 0)),
        ["all_gather", "reduce_scatter"],
        [slice(None)] * 3,
    ),
    "none": (lambda p: p, [], None),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("is_list", [True, False])
def test_collectives_are_statements(name, is_list):
    statement, kinds, windows = COLLECTIVES[name]

    class Sum(FusionDefinition):
        def definition(self):
            mesh = self.create_mesh(3)
            a, b = self.from_pytorch(A), self.from_pytorch(B)
            if is_list:
                pairs = zip(scatter(a, mesh, [Shard(1)]), scatter(b, mesh, [Shard(0)]))
                product = [self.ops.matmul(left, right) for left, right in pairs]
                assert product[0].tensor.placements == (Partial(),)
            else:
                product = create_dtensor(a, mesh, [Shard(1)]) @ create_dtensor(b, mesh, [Shard(0)])
            result = statement(product)
            self.add_output(result if is_list else result.to_local())

    fd = Sum()
    (parts,) = fd.execute([A, B])
    assert [kind for kind, _, _ in fd.collectives()] == kinds
    if windows is None:
        close(sum(parts), A @ B)
    else:
        for part, window in zip(parts, windows):
            close(part, (A @ B)[window])


def test_pieces_change_their_dimension():
    with FusionDefinition() as fd:
        pieces = scatter(fd.from_pytorch(A), fd.create_mesh(2), [Shard(0)])
        fd.add_output(nvfuser.all_to_all([fd.ops.mul(piece, 2.0) for piece in pieces], 1))
        fd.add_output(nvfuser.broadcast(fd.define_tensor((3,), DataType.Float), fd.create_mesh(2)))
    parts, copies = fd.execute([A, A[0, :3]])
    close(torch.cat(parts, 1), 2 * A)
    assert [copy.tolist() for copy in copies] == [A[0, :3].tolist()] * 2
    assert [kind for kind, _, _ in fd.collectives()] == ["all_to_all"]


class DataParallel(FusionDefinition):
    """A linear layer and the gradient of its weight: rows over dp, written out with an all_reduce of the gradient."""

    def definition(self):
        self.mesh = self.create_mesh((2, 2), names=("dp", "tp"))
        dp = self.mesh["dp"]
        self.w = self.from_pytorch(B)
        x, gy = self.from_pytorch(A), self.from_pytorch(numbers(8, 10, seed=2))
        pairs = list(zip(scatter(x, dp, [Shard(0)]), scatter(gy, dp, [Shard(0)])))
        y = [self.ops.relu(self.ops.matmul(rows, self.w)) for rows, _ in pairs]
        gw = [self.ops.matmul(self.ops.permute(rows, [1, 0]), gradient) for rows, gradient in pairs]
        self.add_output(y)
        self.add_output(nvfuser.all_reduce(gw, dp))


class DataAndTensorParallel(DataParallel):
    """The same statements; the weight is split over tp, and all else follows."""

    def multidevice_schedule(self):
        self.sched._set_device_mesh(self.w, self.mesh)
        self.sched.parallelize(self.w, 1, ParallelType.mesh_y)


def test_tensor_parallel_layouts_go_over_data_parallel_collectives():
    gy = numbers(8, 10, seed=2)
    y, gw = torch.relu(A @ B), A.T @ gy
    plain = DataParallel()
    found = plain.execute([B, A, gy])
    for rank in range(4):
        close(found[0][rank], y[4 * (rank // 2) : 4 * (rank // 2) + 4])
        close(found[1][rank], gw)
    assert plain.collectives() == [("all_reduce", 1, 240)]
    both = DataAndTensorParallel()
    found = both.execute([B, A, gy])
    for rank in range(4):
        columns = slice(5 * (rank % 2), 5 * (rank % 2) + 5)
        close(found[0][rank], y[4 * (rank // 2) : 4 * (rank // 2) + 4, columns])
    assert [kind for kind, _, _ in both.collectives()] == ["all_reduce"]
    assert "over [0, 2]" in both.host_ir(0) and "over [0, 1]" not in both.host_ir(0)


OPS = {
    "linear": (lambda o, a, b: o.linear(a, o.permute(b, [1, 0])), lambda a, b: a @ b),
    "gelu": (lambda o, a, b: o.gelu(a), lambda a, b: F.gelu(a)),
    "sum": (lambda o, a, b: o.sum(a, [0], keepdim=True), lambda a, b: a.sum(0, True)),
    "max": (lambda o, a, b: o.max(a, 1), lambda a, b: a.amax(1)),
    "min": (lambda o, a, b: o.min(a), lambda a, b: a.min()),
    "mean": (lambda o, a, b: o.mean(a, [1]), lambda a, b: a.mean(1)),
    "var": (lambda o, a, b: o.var(a, [1], correction=0), lambda a, b: a.var(1, correction=0)),
    "var_mean": (lambda o, a, b: o.var_mean(a, [1])[1], lambda a, b: a.mean(1)),
    "broadcast_in_dim": (
        lambda o, a, b: o.broadcast_in_dim(o.sum(a, [1]), [8, 3], [0]),
        lambda a, b: a.sum(1, True).expand(8, 3),
    ),
    "reshape": (lambda o, a, b: o.reshape(a, [4, 12]), lambda a, b: a.reshape(4, 12)),
    "slice": (lambda o, a, b: o.slice(a, [1, 2], [7, 5], [2, 1]), lambda a, b: a[1:7:2, 2:5]),
    "cast": (lambda o, a, b: o.cast(a, dtype=DataType.BFloat16), lambda a, b: a.bfloat16()),
    "where": (lambda o, a, b: o.where(o.gt(a, 0.0), a, o.neg(a)), lambda a, b: a.abs()),
    "set": (lambda o, a, b: o.set(a), lambda a, b: a),
    "operators": (lambda o, a, b: (2.0 - a * 3.0) / 4.0 + -(a - 1.0), lambda a, b: (2 - a * 3) / 4 - (a - 1)),
    "softmax": (lambda o, a, b: o.softmax(a, -1), lambda a, b: a.softmax(-1)),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("placement", [None, Shard(0), Shard(1)])
def test_ops_have_pytorchs_values(name, placement):
    statement, expected = OPS[name]
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(A), fd.from_pytorch(B)
        if placement is not None:
            a = create_dtensor(a, fd.create_mesh(2), [placement])
        fd.add_output(statement(fd.ops, a, b))
    close(fd.execute([A, B])[0], expected(A, B))


def with_inputs(misuse):
    def run():
        with FusionDefinition() as fd:
            misuse(fd, fd.from_pytorch(A), fd.from_pytorch(B))

    return run


def laid_out(fd, tensor, placement, ranks=2):
    return create_dtensor(tensor, fd.create_mesh(ranks), [placement])


def zipped(fd, a):
    pieces = scatter(a, fd.create_mesh(2), [Shard(0)])
    return pieces[0] + pieces[1]


REFUSED = {
    "a dimension that there is not": ("E380", with_inputs(lambda fd, a, b: laid_out(fd, a, Shard(2)))),
    "placements of another mesh": (
        "E380",
        with_inputs(lambda fd, a, b: create_dtensor(a, fd.create_mesh((2, 2)), [Shard(0)])),
    ),
    "into terms": ("E380", with_inputs(lambda fd, a, b: laid_out(fd, a, Partial()))),
    "ranks out of order": ("E380", lambda: DeviceMesh([1, 0])),
    "no ranks": ("E380", lambda: create_mesh((2, 0))),
    "four dimensions without names": ("E380", lambda: create_mesh((1, 1, 1, 2))),
    "two layouts": ("E382", with_inputs(lambda fd, a, b: laid_out(fd, laid_out(fd, a, Shard(0)), Shard(1)))),
    "two meshes": (
        "E382",
        with_inputs(lambda fd, a, b: (laid_out(fd, a, Shard(0)), laid_out(fd, b, Shard(0), 3))),
    ),
    "a sum of no terms": ("E382", with_inputs(lambda fd, a, b: nvfuser.all_reduce(laid_out(fd, a, Shard(0))))),
    "a gather of nothing split": ("E382", with_inputs(lambda fd, a, b: nvfuser.all_gather(laid_out(fd, a, Replicate())))),
    "a gather without a layout": ("E382", with_inputs(lambda fd, a, b: gather(a))),
    "some pieces": (
        "E382",
        with_inputs(lambda fd, a, b: gather(scatter(a, fd.create_mesh(2), [Shard(0)])[:1])),
    ),
    "pieces of two ranks": ("E382", with_inputs(lambda fd, a, b: zipped(fd, a))),
    "an unknown op": ("E382", with_inputs(lambda fd, a, b: fd.ops.matmull(a, b))),
    "a tensor of PyTorch": ("E382", with_inputs(lambda fd, a, b: fd.ops.matmul(a, B))),
    "another definition": ("E382", with_inputs(lambda fd, a, b: FusionDefinition().ops.relu(a))),
    "no output": ("E382", lambda: FusionDefinition().execute([])),
    "no tensor": ("E382", with_inputs(lambda fd, a, b: fd.add_output(1))),
    "other inputs": ("E382", lambda: Matmul().execute([A])),
    "other shapes": ("E382", lambda: Matmul().execute([B, A])),
    "shapes that do not fit": ("E415", with_inputs(lambda fd, a, b: fd.ops.matmul(b, a))),
    "no such rank": ("E014", lambda: Scheduled().host_ir(4)),
    "parallel without a mesh": (
        "E382",
        with_inputs(lambda fd, a, b: fd.sched.parallelize(a, 0, ParallelType.mesh_x)),
    ),
    "an axis twice": ("E382", with_inputs(lambda fd, a, b: parallel(fd, a, (0, "x"), (1, "x")))),
    "a mesh dimension that there is not": ("E382", with_inputs(lambda fd, a, b: parallel(fd, a, (0, "z")))),
    "a tensor dimension that there is not": ("E382", with_inputs(lambda fd, a, b: parallel(fd, a, (2, "x")))),
    "the producer of an input": ("E382", with_inputs(lambda fd, a, b: fd.sched.cache_before(a))),
}


def parallel(fd, tensor, *axes):
    fd.sched._set_device_mesh(tensor, fd.create_mesh((2, 2)))
    for dim, axis in axes:
        fd.sched.parallelize(tensor, dim, ParallelType[f"mesh_{axis}"])


def test_a_schedule_says_what_it_is_for():
    with pytest.raises(AttributeError, match="no `split`: it says where tensors are"):
        FusionDefinition().sched.split


@pytest.mark.parametrize("what", REFUSED)
def test_misuse_is_refused(what):
    code, misuse = REFUSED[what]
    with pytest.raises(PartitaError) as refused:
        misuse()
    assert refused.value.code == code, str(refused.value)
