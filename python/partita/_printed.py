"""How a module under a plan prints: as its schedule shows it, with the sizes of what a rank holds.

Parameters are whole tensors of PyTorch all the same; so the sizes are those of a view of the module that is made for reading.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from partita._partita import Mesh, PartitaError

# The attributes that say how large a parameter is along each dimension.
_SIZES: tuple[tuple[type[nn.Module], dict[str, tuple[str, ...]]], ...] = (
    (nn.Linear, {"weight": ("out_features", "in_features"), "bias": ("out_features",)}),
    (nn.Embedding, {"weight": ("num_embeddings", "embedding_dim")}),
    (nn.modules.conv._ConvTransposeNd, {"weight": ("in_channels", "out_channels"), "bias": ("out_channels",)}),
    (nn.modules.conv._ConvNd, {"weight": ("out_channels", "in_channels"), "bias": ("out_channels",)}),
    (nn.modules.batchnorm._NormBase, {"weight": ("num_features",), "bias": ("num_features",)}),
    (nn.GroupNorm, {"weight": ("num_channels",), "bias": ("num_channels",)}),
)

Shard = tuple[str, str, int]
"""The path of a module, a tensor of it, and the dimension that is sharded."""


def _names(module: nn.Module, tensor: str) -> tuple[str, ...]:
    if (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return {"weight": ("nx", "nf"), "bias": ("nf",)}.get(tensor, ())
    return next((names.get(tensor, ()) for kind, names in _SIZES if isinstance(module, kind)), ())


def _local(mesh: Mesh, extent: int) -> int:
    """What the rank of this process holds of a dimension; all of it, where the mesh does not say over which axis."""
    axes = mesh.axis_names
    axis = "tp" if "tp" in axes else axes[0] if len(axes) == 1 else None
    rank = int(os.environ["RANK"]) if "PARTITA_LAUNCH" in os.environ else 0
    if axis is None or not 0 <= rank < mesh.size:
        return extent
    try:
        return mesh.parts([extent], [[axis]])[rank][1][0]
    except PartitaError:
        # The plan is refused, with the reason, when it is applied.
        return extent


def view(module: nn.Module, shards: Sequence[Shard], mesh: Mesh, path: str = "") -> Any:
    """The module for reading: other objects with the same tensors and graphs, and the sizes of a rank. The module itself, if
    nothing in it is sharded."""
    prefix = f"{path}." if path else ""
    if mesh.size == 1 or not any(of == path or of.startswith(prefix) for of, _, _ in shards):
        return module
    made: Any = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    made.__dict__["_modules"] = {
        name: None if child is None else view(child, shards, mesh, prefix + name) for name, child in module._modules.items()
    }
    for of, tensor, dim in shards:
        names = _names(module, tensor)
        value = getattr(module, names[dim], None) if of == path and -len(names) <= dim < len(names) else None
        if isinstance(value, int):
            made.__dict__[names[dim]] = _local(mesh, value)
    return made


@dataclass(frozen=True)
class Printed:
    """What a planned module prints, as long as it has the parts that it was built with."""

    text: str
    """``repr`` of it."""
    whole: str
    """``str`` of it: of a traced module with its code."""
    parts: tuple[tuple[str, type], ...]

    def fits(self, module: nn.Module) -> bool:
        """Whether the module has these parts still."""
        return self.parts == parts_of(module)


def parts_of(module: nn.Module) -> tuple[tuple[str, type], ...]:
    """The modules inside a module, with their classes."""
    return tuple((path, type(part)) for path, part in module.named_modules() if path)
