"""Values of a fusion definition: tensors, and the pieces of them that ranks hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from partita._error import refuse
from partita._function import Function
from partita.distributed.device_mesh import DeviceMesh
from partita.distributed.tensor._placement import Shard
from partita.distributed.tensor._run import Spec

if TYPE_CHECKING:
    from partita.nvfuser._definition import FusionDefinition


@dataclass(frozen=True)
class Layout:
    """A requested layout: the axes that split each dimension, whether others may too, and those that must not."""

    dims: tuple[tuple[str, ...], ...]
    is_open: bool = False
    replicated: tuple[str, ...] = ()

    def text(self) -> str:
        """As an attribute of ``sdy``."""
        more = ["?"] if self.is_open else []
        dims = ", ".join("{" + ", ".join([*(f'"{axis}"' for axis in axes), *more]) + "}" for axes in self.dims)
        not_split = ", ".join(f'"{axis}"' for axis in self.replicated)
        return f"<@mesh, [{dims}]" + (f", replicated={{{not_split}}}" if not_split and self.is_open else "") + ">"


def layout_of(spec: Spec, decided: tuple[str, ...]) -> Layout:
    """The layout of a tensor over the axes that are decided; those that are not may split it further."""
    dims = tuple(tuple(axes) for axes in spec.dims)
    used = {axis for axes in dims for axis in axes}
    is_open = any(axis not in decided for axis in spec.mesh._root._axes)
    return Layout(dims, is_open, tuple(axis for axis in decided if axis not in used))


class Tensor:
    """A tensor of a definition, whose shape is global. ``is_local``: as an output it comes back as one tensor per rank."""

    def __init__(
        self, fd: FusionDefinition, shape: tuple[int, ...], dtype: torch.dtype, spec: Spec | None, is_local: bool = False
    ) -> None:
        self._fd, self._spec, self.is_local = fd, spec, is_local
        self.shape, self.dtype = shape, dtype
        self._number = len(fd._tensors)
        self._mesh: DeviceMesh | None = None
        self._annotation: Layout | None = None
        fd._tensors.append(self)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def placements(self) -> Any:
        """The layout as far as the statements before say it; None for a tensor of no mesh."""
        return None if self._spec is None else self._spec.placements

    def to_local(self) -> Tensor:
        """See ``ops.to_local``."""
        from partita.nvfuser._collectives import to_local

        return to_local(self)

    def _binary(self, name: str, *operands: Any) -> Any:
        return getattr(self._fd.ops, name)(*operands)

    def __add__(self, other: Any) -> Any:
        return self._binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("div", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._binary("matmul", self, other)

    def __neg__(self) -> Any:
        return self._binary("neg", self)

    def __repr__(self) -> str:
        layout = "" if self._spec is None else ", " + ", ".join(map(str, self._spec.placements))
        dtype = str(self.dtype).removeprefix("torch.")
        return f"T{self._number}({dtype}{list(self.shape)}{layout})"


class Piece:
    """What one rank holds of a tensor. A statement on pieces of one rank is that rank's part of the statement."""

    def __init__(self, tensor: Tensor, rank: int) -> None:
        self.tensor, self.rank = tensor, rank

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece."""
        assert self.tensor._spec is not None
        return tuple(self.tensor._spec.parts[self.rank][1])

    def _binary(self, name: str, *operands: Any) -> Any:
        return getattr(self.tensor._fd.ops, name)(*operands)

    __add__, __radd__, __sub__, __rsub__ = Tensor.__add__, Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__
    __mul__, __rmul__, __truediv__, __rtruediv__ = (
        Tensor.__mul__,
        Tensor.__rmul__,
        Tensor.__truediv__,
        Tensor.__rtruediv__,
    )
    __matmul__, __neg__ = Tensor.__matmul__, Tensor.__neg__

    def __repr__(self) -> str:
        return f"{self.tensor!r} of rank {self.rank}"


@dataclass
class Statement:
    """A statement of a definition: a function, a copy (perhaps into a layout), or nothing for an input."""

    results: list[Tensor]
    operands: list[Tensor] = field(default_factory=list)
    function: Function | None = None
    layout: Layout | None = None


def pieces_of(tensor: Tensor) -> list[Piece]:
    """The pieces of all ranks."""
    assert tensor._spec is not None
    return [Piece(tensor, rank) for rank in range(tensor._spec.mesh._root.size())]


def tensor_of(value: Any, name: str) -> Tensor:
    """The tensor of all its pieces, or the tensor itself. E382 for anything else."""
    if isinstance(value, Tensor):
        return value
    pieces = list(value) if isinstance(value, (list, tuple)) else [value]
    if pieces and all(isinstance(piece, Piece) for piece in pieces):
        first: Tensor = pieces[0].tensor
        expected = pieces_of(first)
        if [(id(piece.tensor), piece.rank) for piece in pieces] == [(id(piece.tensor), piece.rank) for piece in expected]:
            return first
        raise refuse(
            "E382",
            f"`{name}` takes one tensor of each rank, in their order",
            expected=f"the same statement on {len(expected)} ranks",
            found=", ".join(map(repr, pieces)),
        )
    raise refuse("E382", f"`{name}` takes a tensor, or one of each rank", expected="a tensor", found=repr(value))
