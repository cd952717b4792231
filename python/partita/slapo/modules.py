"""The modules that a schedule puts into ``sch.mod``. They compute what they replace; they are for reading."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SYNCHRONIZED = {
    "all_reduce": "reduce_forward_output",
    "all_gather": "all_gather_forward_output",
    "reduce_scatter": "reduce_scatter_forward_output",
    "scatter": "scatter_forward_output",
}


def reduce_forward_output(data: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Stands for the reduction that a plan derives: on whole tensors there is nothing to reduce."""
    return data


class LinearWithSeparateBias(nn.Linear):
    """A linear layer whose bias is added by an op of its own."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return F.linear(data, self.weight, None) + self.bias


class LinearWithSyncFunc(nn.Linear):
    """A linear layer whose result is communicated before its bias is added, so that the bias counts once."""

    def __init__(self, like: nn.Linear, name: str) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.weight, self.bias = like.weight, like.bias
        self.sync_fn = functools.partial(reduce_forward_output, group=None)
        self.sync_name = name

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        out = self.sync_fn(F.linear(data, self.weight, None))
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sync_fn=partial({self.sync_name}, group=None)"


class FusedSubgraph(nn.Module):
    """Ops that run as one kernel."""

    def __init__(self, function: Callable[..., Any], pattern: str) -> None:
        super().__init__()
        self.function, self.pattern = function, pattern

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def extra_repr(self) -> str:
        return self.pattern


def separate_bias(like: nn.Linear) -> LinearWithSeparateBias:
    """The layer with its bias apart."""
    made = LinearWithSeparateBias.__new__(LinearWithSeparateBias)
    nn.Module.__init__(made)
    made.in_features, made.out_features = like.in_features, like.out_features
    made.weight, made.bias = like.weight, like.bias
    return made
