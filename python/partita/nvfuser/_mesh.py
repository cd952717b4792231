"""Device meshes of fusion definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from partita import distributed
from partita._error import refuse

__all__ = ["DeviceMesh", "create_mesh"]

_NAMES = ("x", "y", "z")


class DeviceMesh(distributed.DeviceMesh):
    """The ranks 0, 1, .. as a list, nested lists or a tensor, whose shape is that of the mesh.

    Its dimensions are called ``x``, ``y`` and ``z``, or by ``names``; ``mesh["x"]`` is the mesh of one of them.
    Raises ``PartitaError``: E380 for ranks in another order, and for more than three dimensions without names.
    """

    def __init__(self, devices: Any, names: Sequence[str] | None = None) -> None:
        ranks = torch.as_tensor(devices)
        if ranks.dim() == 0 or not torch.equal(ranks.reshape(-1), torch.arange(ranks.numel())):
            raise refuse(
                "E380",
                "the ranks of a mesh are in order",
                expected="0, 1, .. in the shape of the mesh",
                found=str(devices),
                help="create_mesh(shape) makes them",
            )
        shape = tuple(ranks.shape)
        if names is None and len(shape) > len(_NAMES):
            raise refuse("E380", "a mesh of more than three dimensions without names", expected="names=", found=str(shape))
        super().__init__("cpu", shape, mesh_dim_names=names or _NAMES[: len(shape)])


def create_mesh(shape: int | Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """A mesh of this shape, major to minor. As ``DeviceMesh``."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or any(size < 1 for size in sizes):
        raise refuse("E380", "a mesh dimension has no ranks", expected="sizes above 0", found=str(shape))
    return DeviceMesh(torch.arange(int(torch.tensor(sizes).prod())).reshape(sizes), names)
