"""The names of ``partita.distributed.tensor`` under the path that older programs import."""

from partita.distributed.device_mesh import DeviceMesh, init_device_mesh
from partita.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_tensor",
    "init_device_mesh",
]
