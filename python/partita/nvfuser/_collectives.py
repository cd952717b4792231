"""Layouts and collectives as statements of a definition.

A collective changes the layout of a tensor, and nothing else: ``all_reduce`` makes a sum of terms complete on every rank.
What it is called for is checked against the layout that the statements before have given. The pieces of ranks go in and
come out as lists, one for each rank; a tensor with a layout goes in and comes out as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partita._error import refuse
from partita.distributed.device_mesh import DeviceMesh
from partita.distributed.tensor._placement import Partial, Placement, Replicate, Shard, checked
from partita.distributed.tensor._run import Spec
from partita.nvfuser._value import Piece, Statement, Tensor, layout_of, pieces_of, tensor_of

Pieces = list[Piece]


def create_dtensor(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    """The tensor in a layout: one placement for each dimension of the mesh. E380 for one that does not fit."""
    given = tensor_of(tensor, "create_dtensor")
    if given._spec is not None:
        raise refuse("E382", "a tensor has a layout already", expected="a tensor of no mesh", found=repr(given))
    return _laid_out(given, mesh, placements)


def scatter(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Pieces:
    """One tensor for each rank: its part of a tensor that every rank has. E380 for a layout that does not fit."""
    given = tensor_of(tensor, "scatter")
    if given._spec is not None:
        raise refuse("E382", "a tensor is scattered already", expected="a tensor of no mesh", found=repr(given))
    given._fd._keep_whole(given)
    return pieces_of(_laid_out(given, mesh, placements))


def broadcast(tensor: Tensor, mesh: DeviceMesh) -> Pieces:
    """One tensor for each rank: all of it."""
    return scatter(tensor, mesh, [Replicate()] * mesh.ndim)


def gather(pieces: Pieces | Tensor, mesh: DeviceMesh | None = None) -> Tensor:
    """The whole tensor of the ranks' pieces."""
    given = tensor_of(pieces, "gather")
    spec = _spec(given, "gather")
    axes = _axes(spec, mesh)
    whole = tuple(Replicate() if axis in axes else place for axis, place in zip(spec.mesh._axes, spec.placements))
    after = Spec(spec.mesh, whole, spec.shape, spec.dtype)
    return _copy(given, after, axes, is_local=False, is_global=True)


def to_local(tensor: Tensor) -> Tensor:
    """The pieces of a tensor with a layout: as an output, one tensor for each rank."""
    given = tensor_of(tensor, "to_local")
    spec = _spec(given, "to_local")
    local = Tensor(given._fd, given.shape, given.dtype, spec, is_local=True)
    given._fd._statements.append(Statement([local], [given]))
    return local


def all_gather(pieces: Any, mesh: DeviceMesh | None = None) -> Any:
    """Every rank gets all pieces. E382 if the tensor is not split over the axes of the mesh."""
    return _changed(pieces, mesh, "all_gather", Shard, lambda _: Replicate())


def all_reduce(pieces: Any, mesh: DeviceMesh | None = None) -> Any:
    """Every rank gets the sum (or maximum, ..) of all terms. E382 if the pieces are no terms over the axes of the mesh."""
    return _changed(pieces, mesh, "all_reduce", Partial, lambda _: Replicate())


def reduce_scatter(pieces: Any, dim: int = 0, mesh: DeviceMesh | None = None) -> Any:
    """Every rank gets its part, along ``dim``, of the sum of all terms. E382 as for ``all_reduce``."""
    return _changed(pieces, mesh, "reduce_scatter", Partial, lambda _: Shard(dim))


def all_to_all(pieces: Any, dim: int, mesh: DeviceMesh | None = None) -> Any:
    """Pieces along one dimension become pieces along ``dim``. E382 if the tensor is not split over the axes of the mesh."""
    return _changed(pieces, mesh, "all_to_all", Shard, lambda _: Shard(dim))


def _spec(tensor: Tensor, name: str) -> Spec:
    if tensor._spec is None:
        raise refuse(
            "E382",
            f"`{name}` of a tensor without a layout",
            expected="pieces of ranks, or a tensor with a layout",
            found=repr(tensor),
            help="begin with create_dtensor or scatter",
        )
    return tensor._spec


def _axes(spec: Spec, mesh: DeviceMesh | None) -> tuple[str, ...]:
    """The axes of a mesh, which is that of the tensor or a part of it."""
    if mesh is None:
        return spec.mesh._axes
    if mesh._root != spec.mesh:
        raise refuse("E382", "tensors on different meshes", expected=repr(spec.mesh), found=repr(mesh))
    return mesh._axes


def _laid_out(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    given = checked(placements, mesh, tensor.ndim)
    if any(isinstance(placement, Partial) for placement in given):
        raise refuse("E380", "a tensor is not distributed into terms", expected="Shard or Replicate", found=repr(given))
    tensor._fd._use(mesh)
    named = dict(zip(mesh._axes, given))
    whole = tuple(named.get(axis, Replicate()) for axis in mesh._root._axes)
    return _copy(tensor, Spec(mesh._root, whole, tensor.shape, tensor.dtype), mesh._axes, tensor.is_local)


def _copy(tensor: Tensor, spec: Spec, decided: tuple[str, ...], is_local: bool, is_global: bool = False) -> Tensor:
    made = Tensor(tensor._fd, tensor.shape, tensor.dtype, None if is_global else spec, is_local)
    tensor._fd._statements.append(Statement([made], [tensor], layout=layout_of(spec, decided)))
    return made


def _changed(
    value: Any, mesh: DeviceMesh | None, name: str, before: type[Placement], after: Callable[[Placement], Placement]
) -> Any:
    """The tensor with other placements over the axes of a mesh; without one, over those that have such a placement."""
    given = tensor_of(value, name)
    spec = _spec(given, name)
    named = dict(zip(spec.mesh._axes, spec.placements))
    axes = _axes(spec, mesh)
    chosen = [axis for axis in axes if isinstance(named[axis], before)]
    if not chosen or (mesh is not None and len(chosen) < len(axes)):
        kinds = {Shard: "a split", Partial: "a sum of terms"}
        raise refuse(
            "E382",
            f"`{name}` of a tensor that is not {kinds[before]} over {', '.join(axes)}",
            expected=f"{before.__name__} over each of {', '.join(axes)}",
            found=repr(given),
        )
    for axis in chosen:
        named[axis] = checked([after(named[axis])], spec.mesh[axis], given.ndim)[0]
    changed = Spec(spec.mesh, tuple(named.values()), spec.shape, spec.dtype)
    made = _copy(given, changed, tuple(chosen), given.is_local)
    return made if isinstance(value, Tensor) else pieces_of(made)
