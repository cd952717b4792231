"""Placements: how a tensor lies along one dimension of a mesh. A layout has one for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita._error import refuse
from partita.distributed.device_mesh import DeviceMesh

__all__ = ["Partial", "Placement", "Replicate", "Shard"]


class Placement:
    """How a tensor lies along one dimension of a mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether the tensor is split, along ``dim`` if it is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether every rank has all of it."""
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        """Whether the ranks have terms of it."""
        return isinstance(self, Partial)


@dataclass(frozen=True)
class Shard(Placement):
    """The tensor is split along its dimension ``dim``; a negative number counts from the last."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True)
class Replicate(Placement):
    """Every rank has all of it."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, repr=False)
class Partial(Placement):
    """Every rank has a term; all terms together, under ``sum``, ``avg``, ``max``, ``min`` or ``product``, are the tensor."""

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op not in ("sum", "avg", "max", "min", "product"):
            raise refuse(
                "E380", "no such reduction", expected="sum, avg, max, min or product", found=repr(self.reduce_op)
            )

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


def checked(placements: Sequence[Placement] | None, mesh: DeviceMesh, rank: int) -> tuple[Placement, ...]:
    """The placements for a tensor of ``rank`` dimensions, those that count from the last rewritten; None is replicated.

    E380 for another number than the mesh has dimensions, for what is no placement, and for a dimension that the tensor
    does not have.
    """
    if placements is None:
        return (Replicate(),) * mesh.ndim
    given = (placements,) if isinstance(placements, Placement) else tuple(placements)
    if len(given) != mesh.ndim:
        raise refuse(
            "E380",
            "a layout has one placement for each dimension of its mesh",
            expected=f"{mesh.ndim} placements, for {mesh}",
            found=repr(given),
        )
    found: list[Placement] = []
    for placement in given:
        if not isinstance(placement, (Shard, Replicate, Partial)):
            raise refuse(
                "E380", "what is no placement", expected="Shard(dim), Replicate() or Partial()", found=repr(placement)
            )
        if isinstance(placement, Shard):
            if not -rank <= placement.dim < rank:
                raise refuse(
                    "E380",
                    "a placement names a dimension that its tensor does not have",
                    expected=f"a dimension of {rank}",
                    found=repr(placement),
                )
            placement = Shard(placement.dim % rank)
        found.append(placement)
    return tuple(found)


def dims_of(placements: Sequence[Placement], mesh: DeviceMesh, rank: int) -> list[list[str]]:
    """For each dimension of a tensor the mesh axes that split it, major to minor."""
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis, placement in zip(mesh._axes, placements):
        if isinstance(placement, Shard):
            dims[placement.dim].append(axis)
    return dims


_COMBINERS = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}


def placements_of(
    dims: Sequence[Sequence[str]], partial: Sequence[tuple[str, str]], mesh: DeviceMesh
) -> tuple[Placement, ...] | None:
    """The placements of a layout on a mesh; None if they cannot say it."""
    found: dict[str, Placement] = {}
    order = {axis: number for number, axis in enumerate(mesh._axes)}
    for dim, axes in enumerate(dims):
        places = [order.get(axis, -1) for axis in axes]
        if -1 in places or places != sorted(places):
            return None
        found |= {axis: Shard(dim) for axis in axes}
    for axis, combiner in partial:
        if axis not in order or combiner not in _COMBINERS:
            return None
        found[axis] = Partial(_COMBINERS[combiner])
    return tuple(found.get(axis, Replicate()) for axis in mesh._axes)
