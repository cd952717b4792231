"""Meshes as ``torch.distributed.device_mesh`` spells them, over ranks of this process."""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Sequence
from typing import Any

from partita import Mesh, _partita
from partita._devices import tell_of
from partita._error import refuse
from partita._told import Told

__all__ = ["DeviceMesh", "init_device_mesh"]


# Types of devices whose names a program may have meant.
_DEVICES = ("cpu", "cuda", "hpu", "mps", "mtia", "npu", "xpu")


def _is_device(device_type: Any) -> bool:
    """Whether PyTorch knows a type of device, whose tensors have values."""
    import torch

    try:
        return isinstance(device_type, str) and device_type not in ("meta", "") and torch.device(device_type).index is None
    except RuntimeError:
        return False


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """A mesh of ``mesh_shape`` ranks, major to minor: ``init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))``.

    Ranks run on the cores of this machine: another type of device than "cpu" is accepted with a warning, and tensors stay on
    the device where they are. Raises ``PartitaError``: E380 for a type of device that PyTorch does not know and for names that
    do not fit, E203 to E207 for what is no mesh.
    """
    try:
        shape = tuple(operator.index(size) for size in mesh_shape)
    except TypeError:
        raise refuse(
            "E380", "the size of a mesh dimension is a whole number", expected="sizes such as (2, 2)", found=repr(mesh_shape)
        ) from None
    made: DeviceMesh = object.__new__(DeviceMesh)
    made._set(device_type, shape, mesh_dim_names)
    return made


class DeviceMesh:
    """Ranks on the dimensions of a mesh: ``mesh`` has their numbers, 0, 1, .., as nested lists or a tensor.

    All of them live in this process, which calls itself rank 0. ``mesh["tp"]`` is the mesh of one dimension: tensors are
    split over it, and replicated over the others. Raises ``PartitaError``: as ``init_device_mesh``, and E380 for ranks in
    another order.
    """

    def __init__(self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None) -> None:
        shape, ranks = _nested(mesh.tolist() if hasattr(mesh, "tolist") else mesh)
        if ranks != list(range(len(ranks))):
            raise refuse(
                "E380",
                "the ranks of a mesh are in order",
                expected="0, 1, .. in the shape of the mesh",
                found=str(mesh),
                help="init_device_mesh makes a mesh of a shape",
            )
        self._set(device_type, shape, mesh_dim_names)

    def _set(self, device_type: str, shape: tuple[int, ...], mesh_dim_names: Sequence[str] | None) -> None:
        _partita.check_alone()
        if not _is_device(device_type):
            near = difflib.get_close_matches(str(device_type), _DEVICES, 1)
            raise refuse(
                "E380",
                "a mesh has a type of device that there is not",
                expected='"cpu", whose cores the ranks run on, or another type that PyTorch knows',
                found=repr(device_type),
                help=f"did you mean {near[0]!r}?" if near else None,
            )
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if names is not None and (len(names) != len(shape) or len(set(names)) != len(names)):
            raise refuse(
                "E380",
                "a mesh has one name for each dimension",
                expected=f"{len(shape)} names, all different",
                found=repr(names),
            )
        if not shape or any(size < 1 for size in shape):
            raise refuse("E380", "a mesh dimension has no ranks", expected="sizes above 0", found=repr(shape))
        self.device_type = device_type
        self.mesh_dim_names = names
        self._shape = shape
        self._axes = names or tuple(f"mesh_{number}" for number in range(len(shape)))
        self._native = Mesh(",".join(f"{axis}={size}" for axis, size in zip(self._axes, shape)))
        self._root = self
        self._told = Told()
        if device_type != "cpu":
            tell_of(self._told, "the mesh", device_type)
        # The planned programs of tensors on this mesh, by function and layouts.
        self._programs: dict[Any, Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The ranks along each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def mesh(self) -> Any:
        """The numbers of the ranks, as a tensor of this shape: those of rank 0's group for a part of a mesh."""
        import torch

        sizes = self._root._shape
        ranks = torch.arange(math.prod(sizes)).reshape(sizes)
        return ranks[tuple(slice(None) if axis in self._axes else 0 for axis in self._root._axes)]

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of ranks, or that along one dimension."""
        return math.prod(self._shape) if mesh_dim is None else self._shape[mesh_dim]

    def get_rank(self) -> int:
        """The number of this process under ``python -m partita.launch``; 0 where one process runs all ranks."""
        return int(os.environ["RANK"]) if "PARTITA_LAUNCH" in os.environ else 0

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """0, along any dimension. E380 for a dimension that the mesh does not have."""
        if isinstance(mesh_dim, str):
            self[mesh_dim]
        elif mesh_dim is not None and not -self.ndim <= mesh_dim < self.ndim:
            raise refuse("E380", "no such mesh dimension", expected=f"below {self.ndim}", found=str(mesh_dim))
        return 0

    def get_coordinate(self) -> list[int]:
        """The place of rank 0."""
        return [0] * self.ndim

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh of some dimensions. E380 for a name that there is not."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        if self.mesh_dim_names is None or any(name not in self.mesh_dim_names for name in wanted):
            known = ", ".join(self.mesh_dim_names or ()) or "a mesh with mesh_dim_names"
            raise refuse("E380", "no such mesh dimension", expected=known, found=", ".join(wanted))
        if wanted == self.mesh_dim_names:
            return self
        part: DeviceMesh = object.__new__(DeviceMesh)
        part.device_type, part.mesh_dim_names, part._axes = self.device_type, wanted, wanted
        part._shape = tuple(self._shape[self._axes.index(name)] for name in wanted)
        part._root, part._native, part._programs = self._root, self._native, self._programs
        return part

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._axes == other._axes and self._native == other._native

    def __hash__(self) -> int:
        return hash((self._axes, self._native))

    def __reduce__(self) -> Any:
        root, named = self._root, self._root.mesh_dim_names
        return _restored, (root._shape, named, None if self is root else self._axes)

    def __repr__(self) -> str:
        if self.mesh_dim_names is None:
            return f"DeviceMesh({self._shape}, {self.device_type!r})"
        sizes = ", ".join(f"{name}={size}" for name, size in zip(self.mesh_dim_names, self._shape))
        return f"DeviceMesh(({sizes}), {self.device_type!r})"


def _nested(ranks: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and what is in them; no shape for lists of different lengths."""
    if not isinstance(ranks, (list, tuple, range)):
        return (), [ranks]
    parts = [_nested(part) for part in ranks]
    if len({shape for shape, _ in parts}) != 1:
        return (), []
    return (len(parts), *parts[0][0]), [rank for _, flat in parts for rank in flat]


def _restored(shape: tuple[int, ...], names: tuple[str, ...] | None, part: tuple[str, ...] | None) -> DeviceMesh:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return mesh if part is None else mesh[part]
