"""A matmul over four ranks in nvFuser's language, in four forms: rows of A and columns of B make blocks of C."""

import torch

from partita.nvfuser import FusionDefinition, LoadStoreOpType, ParallelType, Replicate, Shard, gather, scatter

torch.manual_seed(0)
pt_a, pt_b = torch.randn(64, 32), torch.randn(32, 48)
ROWS, COLUMNS = [Shard(0), Replicate()], [Replicate(), Shard(1)]


class Scheduled(FusionDefinition):
    """The math, and beside it a schedule that lays tensors out; what is not named follows."""

    def definition(self):
        self.a, self.b = self.from_pytorch(pt_a), self.from_pytorch(pt_b)
        self.c = self.ops.matmul(self.a, self.b)
        self.add_output(self.c)

    def multidevice_schedule(self):
        mesh = self.create_mesh((2, 2))
        for tensor, dim, axis in ((self.a, 0, ParallelType.mesh_x), (self.b, 1, ParallelType.mesh_y)):
            self.sched._set_device_mesh(tensor, mesh)
            self.sched.parallelize(tensor, dim, axis)


class Cached(Scheduled):
    """The schedule makes copies where communication is: whole tensors outside, parts inside."""

    def multidevice_schedule(self):
        mesh = self.create_mesh((2, 2))
        part_a = self.schedule.cache_after(self.a, LoadStoreOpType.scatter)
        part_b = self.schedule.cache_after(self.b, LoadStoreOpType.scatter)
        part_c = self.schedule.cache_before(self.c, LoadStoreOpType.gather)
        for tensor in (part_a, part_b, part_c):
            self.sched._set_device_mesh(tensor, mesh)
        for tensor, dim in ((part_a, 0), (part_c, 0)):
            self.sched.parallelize(tensor, dim, ParallelType.mesh_x)
        for tensor, dim in ((part_b, 1), (part_c, 1)):
            self.sched.parallelize(tensor, dim, ParallelType.mesh_y)


class Manual(FusionDefinition):
    """Communication is written in the definition: one tensor for each rank."""

    def definition(self):
        a, b = self.from_pytorch(pt_a), self.from_pytorch(pt_b)
        mesh = self.create_mesh((2, 2))
        parts = zip(scatter(a, mesh, ROWS), scatter(b, mesh, COLUMNS))
        self.add_output(gather([self.ops.matmul(part_a, part_b) for part_a, part_b in parts], mesh))


class Distributed(FusionDefinition):
    """Tensors have layouts, and the layout of the product follows. Each rank returns its block."""

    def definition(self):
        a, b = self.from_pytorch(pt_a), self.from_pytorch(pt_b)
        mesh = self.create_mesh((2, 2))
        dt_a, dt_b = self.ops.create_dtensor(a, mesh, ROWS), self.ops.create_dtensor(b, mesh, COLUMNS)
        self.add_output(self.ops.to_local(self.ops.matmul(dt_a, dt_b)))


for form in (Scheduled, Cached, Manual, Distributed):
    fusion = form()
    (result,) = fusion.execute([pt_a, pt_b])
    if isinstance(result, list):
        top, bottom = torch.cat(result[:2], 1), torch.cat(result[2:], 1)
        result = torch.cat([top, bottom])
    moved = ", ".join(f"{count} {kind}" for kind, count, _ in fusion.collectives()) or "nothing moves"
    print(f"{form.__name__}: as PyTorch {torch.allclose(result, pt_a @ pt_b, atol=1e-4)}; {moved}")

print(Cached().host_ir())
