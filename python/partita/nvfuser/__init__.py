"""Fusion definitions over several devices in the words of nvFuser's Python frontend, on ranks of this process.

    from partita.nvfuser import FusionDefinition, Shard

    class Matmul(FusionDefinition):
        def definition(self):
            a, b = self.from_pytorch(pt_a), self.from_pytorch(pt_b)
            mesh = self.create_mesh((2, 2))
            c = self.ops.matmul(
                self.ops.create_dtensor(a, mesh["x"], [Shard(0)]), self.ops.create_dtensor(b, mesh["y"], [Shard(1)])
            )
            self.add_output(self.ops.to_local(c))

    parts = Matmul().execute([pt_a, pt_b])[0]        # one tensor for each rank

A definition is one program for the whole mesh. Layouts come from its statements or from ``multidevice_schedule``, and
collectives follow by propagation; ``host_ir()`` shows them. ``python/docs/nvfuser.md`` says what differs from nvFuser.
"""

from partita.distributed.tensor import Partial, Replicate, Shard
from partita.nvfuser._collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    create_dtensor,
    gather,
    reduce_scatter,
    scatter,
    to_local,
)
from partita.nvfuser._definition import FusionDefinition
from partita.nvfuser._mesh import DeviceMesh, create_mesh
from partita.nvfuser._ops import DataType
from partita.nvfuser._schedule import LoadStoreOpType, ParallelType
from partita.nvfuser._value import Piece, Tensor

__all__ = [
    "DataType",
    "DeviceMesh",
    "FusionDefinition",
    "LoadStoreOpType",
    "ParallelType",
    "Partial",
    "Piece",
    "Replicate",
    "Shard",
    "Tensor",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "create_dtensor",
    "create_mesh",
    "gather",
    "reduce_scatter",
    "scatter",
    "to_local",
]
