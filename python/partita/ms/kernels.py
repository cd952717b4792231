"""Modules for ``replace`` that the engine runs as one kernel."""

from __future__ import annotations

from torch import nn


class FusedLayerNorm(nn.LayerNorm):
    """The layer norm of Apex, by name and arguments: ``FusedLayerNorm(normalized_shape, eps=1e-5,
    elementwise_affine=True)``. It is one composite op, which the engine runs as one kernel, forward and backward."""

    def __init__(
        self, normalized_shape: int | list[int], eps: float = 1e-5, elementwise_affine: bool = True
    ) -> None:
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)
