"""Functions of distributed tensors: layouts and collectives of a program follow by propagation.

A function is traced once for the types of its arguments, planned once for their layouts, and then runs from the ranks'
tensors to the ranks' tensors. A partial tensor is the sum (or maximum, ..) along a further dimension that is split over
its mesh axis, one term on each rank; so the planner alone decides where the terms are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from partita import _partita
from partita._devices import brought, is_away, tell_of
from partita._error import refuse
from partita._function import Function, Part, dtype_name, dtype_named, tensor_type, traced
from partita._tensors import pack, to_torch
from partita.distributed.device_mesh import DeviceMesh
from partita.distributed.tensor._placement import Partial, Placement, Replicate, dims_of, placements_of

# The programs that a mesh keeps; the one that was used longest ago goes first.
_MOST_PROGRAMS = 256

Locals = list[torch.Tensor]
"""The tensors of all ranks, in their order."""


@dataclass(frozen=True)
class Spec:
    """A tensor on a mesh: its global shape and type, and its placements."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def dims(self) -> list[list[str]]:
        """The mesh axes that split each dimension."""
        return dims_of(self.placements, self.mesh, len(self.shape))

    @property
    def partial(self) -> list[tuple[str, int, str]]:
        """The mesh axes over which the tensor is partial: name, ranks, reduction."""
        named = zip(self.mesh._axes, self.mesh._shape, self.placements)
        return [(axis, size, place.reduce_op) for axis, size, place in named if isinstance(place, Partial)]

    @cached_property
    def parts(self) -> list[Part]:
        """The offset and shape of each rank's part."""
        return [*self.mesh._native.parts(list(self.shape), self.dims)]

    def complete(self) -> Spec:
        """The same, replicated where it is partial."""
        whole = tuple(Replicate() if isinstance(place, Partial) else place for place in self.placements)
        return Spec(self.mesh, whole, self.shape, self.dtype)

    def terms(self) -> Operand:
        """What a program takes: the terms of a partial tensor along further dimensions."""
        sizes, axes = [size for _, size, _ in self.partial], [[axis] for axis, _, _ in self.partial]
        return Operand(self.dtype, (*sizes, *self.shape), (*axes, *self.dims))


@dataclass(frozen=True)
class Operand:
    """A tensor of a program: type, global shape, the mesh axes of each dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    dims: tuple[list[str], ...]


_REDUCE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda tensor, dim: tensor.sum(dim, dtype=tensor.dtype),
    "avg": lambda tensor, dim: tensor.mean(dim),
    "max": lambda tensor, dim: tensor.amax(dim),
    "min": lambda tensor, dim: tensor.amin(dim),
    "product": lambda tensor, dim: tensor.prod(dim, dtype=tensor.dtype),
}


def combined(tensor: torch.Tensor, terms: Sequence[tuple[str, int, str]], kept: Sequence[str] = ()) -> torch.Tensor:
    """Combines the terms along the first dimensions, except over the axes that are kept."""
    dim = 0
    for axis, _, operation in terms:
        if axis in kept:
            dim += 1
        else:
            tensor = _REDUCE[operation](tensor, dim)
    return tensor


class Planned:
    """A function on a mesh: its program, and the layouts of what it returns."""

    def __init__(
        self, mesh: DeviceMesh, function: Function, inputs: Sequence[Operand], outputs: Sequence[list[list[str]] | None]
    ) -> None:
        self.function, self.mesh = function, mesh
        given = [list(operand.dims) for operand in inputs]

        def planned(wanted: Sequence[list[list[str]] | None]) -> _partita.Placed:
            # One thread runs all ranks: programs of single ops are too short to share.
            return _partita.Placed(function.text, mesh._native, given, list(wanted), 1)

        self.program = planned(outputs)
        found = [self._spec(described) for described in self.program.outputs()]
        if None in found:
            # Placements are in the order of the mesh.
            order = {axis: number for number, axis in enumerate(mesh._root._axes)}
            sorted_dims = [
                [sorted((axis for axis in axes if axis in order), key=order.__getitem__) for axes in described[3]]
                for described in self.program.outputs()
            ]
            wanted = [old if spec is not None else dims for old, spec, dims in zip(outputs, found, sorted_dims)]
            self.program = planned(wanted)
            found = [self._spec(described) for described in self.program.outputs()]
        self.outputs: list[Spec] = [spec for spec in found if spec is not None]

    def _spec(self, described: Any) -> Spec | None:
        _, dtype, shape, dims, partial, _ = described
        placements = placements_of(dims, partial, self.mesh)
        return None if placements is None else Spec(self.mesh, placements, tuple(shape), dtype_named(dtype))

    def run(self, inputs: Sequence[Locals]) -> list[Locals]:
        """The outputs, each as the tensors of all ranks, on the device of the inputs: if several, the one beside the host."""
        device = next((locals[0].device for locals in inputs if is_away(locals[0])), None)
        if device is not None:
            tell_of(self.mesh._root._told, "a distributed tensor", device)
        found = self.program.run([[pack(local) for local in locals] for locals in inputs])
        return [[brought(to_torch(local), device) for local in locals] for locals in found]


def planned(
    mesh: DeviceMesh,
    key: Any,
    function: Callable[[], Function],
    inputs: Sequence[Operand],
    outputs: Sequence[list[list[str]] | None],
) -> Planned:
    """The plan of a function for operands in these layouts, made when it first comes. ``key`` names the function."""
    kept = mesh._programs
    name = (key, mesh._axes, repr(list(inputs)), repr(list(outputs)))
    plan: Planned | None = kept.pop(name, None)
    if plan is None:
        made = function()
        plan = Planned(mesh, made, inputs, outputs or [None] * len(made.outputs))
        if len(kept) >= _MOST_PROGRAMS:
            kept.pop(next(iter(kept)))
    kept[name] = plan
    return plan


def function_plan(
    key: Any, call: Callable[..., Any], name: str, specs: Sequence[Spec], outputs: Sequence[list[list[str]] | None] = ()
) -> Planned:
    """The plan of a function of tensors, whose partial arguments arrive as terms."""
    mesh = specs[0].mesh
    operands = [spec.terms() for spec in specs]
    terms = [spec.partial for spec in specs]

    def function() -> Function:
        def on_terms(*tensors: torch.Tensor) -> Any:
            return call(*[combined(tensor, each) for tensor, each in zip(tensors, terms)])

        return traced(on_terms, [(operand.dtype, operand.shape) for operand in operands], name)

    return planned(mesh, (key, repr(terms)), function, operands, outputs)


def stacked(locals: Locals, spec: Spec) -> Locals:
    """The tensors of the ranks with the dimensions of terms."""
    count = len(spec.partial)
    return [local.reshape((1,) * count + tuple(local.shape)) for local in locals] if count else locals


def moved(locals: Locals, before: Spec, after: Spec) -> Locals:
    """The tensors of the ranks in another layout. E380 for a layout with terms that the tensor does not have."""
    if before.placements == after.placements:
        return locals
    kept = []
    for axis, old, new in zip(before.mesh._axes, before.placements, after.placements):
        if isinstance(new, Partial):
            if old != new:
                raise refuse(
                    "E380",
                    f"a tensor cannot go from {old} to {new}",
                    expected="Shard or Replicate, or the terms that there are",
                    found=f"{new!r} over {axis}",
                )
            kept.append(axis)
    terms, operand = before.partial, before.terms()
    wanted = [[axis] for axis, _, _ in terms if axis in kept] + after.dims

    def function() -> Function:
        if not terms:
            return _identity(operand)
        call = lambda tensor: combined(tensor, terms, kept)  # noqa: E731
        return traced(call, [(operand.dtype, operand.shape)], "redistribute")

    plan = planned(before.mesh, ("redistribute", repr(terms), tuple(kept)), function, [operand], [wanted])
    found = plan.run([stacked(locals, before)])[0]
    return [local.reshape(local.shape[len(kept) :]) for local in found]


def _identity(operand: Operand) -> Function:
    ty = tensor_type(operand.dtype, operand.shape)
    text = f"func.func public @main(%arg0: {ty}) -> {ty} {{\n  return %arg0 : {ty}\n}}\n"
    types = ((dtype_name(operand.dtype), operand.shape),)
    return Function(text, types, types, lambda found: found[0])
