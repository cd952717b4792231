"""Tensor-parallel styles of modules, as in ``torch.distributed.tensor.parallel``."""

from partita.distributed.tensor.parallel._module import parallelize_module
from partita.distributed.tensor.parallel._style import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "parallelize_module",
]
