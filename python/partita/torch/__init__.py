"""A plan on PyTorch's own distributed runtime: the same lines, on the user's module, over gloo, NCCL or whatever backend
its process group has.

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    parallel = partita.torch.apply(sch.plan, module, mesh, loss=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    loss = parallel.backward(tokens, targets)          # whole batches; gradients are those of the whole batch
    optimizer.step()

Layout lines become styles of ``parallelize_module``, ``fsdp`` becomes ``fully_shard``, ``checkpoint`` activation
checkpointing, ``pipeline_split`` a ``PipelineStage``, and the timetable a schedule of ``torch.distributed.pipelining``. A
program here runs once in each process, started by torchrun or ``python -m partita.launch``.
"""

from ._apply import apply
from ._parallel import Parallel

__all__ = ["Parallel", "apply"]
