"""Device meshes of fusion definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        self._names = names
        super().__init__("cpu", devices)

    def _set(self, device_type: str, shape: tuple[int, ...], mesh_dim_names: Sequence[str] | None) -> None:
        names = self._names or _NAMES[: len(shape)]
        if self._names is None and len(shape) > len(_NAMES):
            raise refuse("E380", "a mesh of more than three dimensions without names", expected="names=", found=str(shape))
        super()._set(device_type, shape, names)


def create_mesh(shape: int | Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """A mesh of this shape, major to minor. As ``DeviceMesh``."""
    made: DeviceMesh = object.__new__(DeviceMesh)
    made._names = names
    made._set("cpu", (shape,) if isinstance(shape, int) else tuple(shape), None)
    return made
