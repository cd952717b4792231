"""Distributed tensors and parallel modules in the words of ``torch.distributed``, with all ranks in this process.

    from partita.distributed.device_mesh import init_device_mesh
    from partita.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
    from partita.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from partita.distributed.fsdp import fully_shard

There is no launcher, and a plain tensor is global. ``python/docs/distributed.md`` says what differs from PyTorch.
"""

from partita.distributed._declared import plan_of
from partita.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh", "plan_of"]
