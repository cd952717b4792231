"""Batch norms with ``momentum=None``: their statistics are averages over all batches so far.

PyTorch divides by the number of batches as a number of Python, which no export captures. Inside ``captured()`` it is divided by
as a tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def captured() -> Iterator[None]:
    """Inside, this thread can export such modules."""
    original: Any = _BatchNorm.forward
    thread = threading.get_ident()

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        is_average = self.momentum is None and self.training and self.track_running_stats
        if not is_average or threading.get_ident() != thread or self.num_batches_tracked is None:
            return original(self, input)  # type: ignore[no-any-return]
        self._check_input_dim(input)
        dimensions = [dimension for dimension in range(input.dim()) if dimension != 1]
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            part = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
            values = input.detach().to(self.running_mean.dtype)
            for running, found in (
                (self.running_mean, values.mean(dimensions)),
                (self.running_var, values.var(dimensions)),
            ):
                running.copy_(running * (1.0 - part) + found * part)
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    setattr(_BatchNorm, "forward", forward)
    try:
        yield
    finally:
        setattr(_BatchNorm, "forward", original)
