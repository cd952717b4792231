"""Tensors that are laid out over a mesh, as in ``torch.distributed.tensor``."""

from partita.distributed.device_mesh import DeviceMesh, init_device_mesh
from partita.distributed.tensor._dtensor import DTensor, distribute_tensor
from partita.distributed.tensor._placement import Partial, Placement, Replicate, Shard

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
