"""Batch axes as ``fully_shard`` and ``replicate``: each rank computes its rows, gradients are their mean.

Rows of the batch are sharded over ``dp`` and ``fsdp`` on any plan. Parameters that a line ``fsdp`` names are sharded over
its axis and replicated over the other one; where no line names any, all are replicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from partita._axes import DENSE_BATCH_AXES
from partita._error import refuse

from ._lines import STAGES, Line, Refusals, matches

_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclass(frozen=True)
class Unit:
    """A module whose parameters are gathered together; they stay gathered between the passes unless ``reshards``."""

    path: str
    reshards: bool


def batch_axes(mesh: DeviceMesh) -> list[str]:
    """The axes of more than one rank that shard the batch."""
    names = mesh.mesh_dim_names or ()
    return [name for name, size in zip(names, mesh.shape) if name in DENSE_BATCH_AXES and size > 1]


def ranks_of(mesh: DeviceMesh) -> int:
    """The number of ranks among which the rows of a batch are divided."""
    return math.prod(mesh[axis].size() for axis in batch_axes(mesh))


def place_in(mesh: DeviceMesh, axes: Sequence[str]) -> int:
    """The number of this rank among those that differ in these axes alone."""
    place = 0
    for axis in axes:
        place = place * mesh[axis].size() + mesh.get_local_rank(axis)
    return place


def device_of(mesh: DeviceMesh) -> torch.device:
    """The device of this process."""
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())


def world_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    """The group of all ranks of a mesh."""
    return mesh.get_group() if mesh.ndim == 1 else mesh[tuple(mesh.mesh_dim_names or ())]._flatten().get_group()


def units(
    lines: Sequence[Line], module: torch.nn.Module, microbatches: int, mesh: DeviceMesh, refusals: Refusals
) -> list[Unit]:
    """What is gathered together: the outermost modules of each line, and of a whole model the elements of its lists of
    layers too. Inner ones first; of two lines for a module, the later one counts."""
    found: dict[str, Unit] = {}
    axes = batch_axes(mesh)
    for line in lines:
        axis, gather = line.call.take("axis", default="fsdp"), line.call.take("gather", default="use")
        if axis not in axes:
            continue
        if axis != axes[-1]:
            refusals.add(
                line,
                f"fully_shard shards over the last axis of a mesh, here {axes[-1]}",
                line.call.without(axis=axes[-1]),
            )
        if gather == "pass" and microbatches > 1:
            refusals.add(line, "fully_shard gathers for each microbatch, or once", line.call.without("gather"))
        for path in _outermost(line.paths, module):
            for inner in [*(_layers(module) if path == "" else []), path]:
                found[inner] = Unit(inner, gather != "step")
    ordered = sorted(found.values(), key=lambda unit: -unit.path.count(".") if unit.path else 1)
    _check_shared(ordered, module)
    return ordered


def _check_shared(ordered: Sequence[Unit], module: torch.nn.Module) -> None:
    """E394 for a parameter that is read in two units: each gathers its own."""
    homes: dict[int, tuple[str, str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        unit = next((unit.path for unit in ordered if f"{name}.".startswith(f"{unit.path}." if unit.path else "")), "")
        other = homes.setdefault(id(parameter), (unit, name))
        if other[0] != unit:
            raise refuse(
                "E394",
                "PyTorch gathers a shared parameter with one module",
                expected="its owners in one line fsdp, without others inside",
                found=f"{other[1]} = {name}, gathered with {other[0] or 'the whole module'} and {unit or 'the whole module'}",
                help="leave these modules out of the lines fsdp: the rest is gathered with the whole module",
            )


def _outermost(paths: Sequence[str], module: torch.nn.Module) -> list[str]:
    """Of modules that can be called, those that are in no other one of these."""
    called = [path for path in paths if not isinstance(module.get_submodule(path), _LISTS)]
    return [
        path
        for path in called
        if not any(matches(f"{other}.**" if other else "**", path) for other in called if other != path)
    ]


def _layers(module: torch.nn.Module) -> list[str]:
    """The elements of the outermost lists of a model."""
    lists = [
        path for path, inner in module.named_modules() if isinstance(inner, (*_LISTS, torch.nn.Sequential)) and path
    ]
    outer = [path for path in lists if not any(path.startswith(f"{other}.") for other in lists)]
    return [f"{path}.{name}" for path in outer for name, _ in module.get_submodule(path).named_children()]


def shard(root: torch.nn.Module, mesh: DeviceMesh, found: Sequence[Unit]) -> None:
    """Applies ``fully_shard`` to the units of a module and ``replicate`` to the rest, in place."""
    axes = batch_axes(mesh)
    if not axes:
        return
    inside = dict(root.named_modules())
    # ``fully_shard`` takes no scalars; ``Parallel`` averages their gradients.
    scalars = {value for value in root.parameters() if value.ndim == 0}
    for unit in found:
        module = inside.get(unit.path)
        if module is not None and any(True for _ in module.parameters()):
            fully_shard(
                module,
                mesh=mesh[tuple(axes)] if len(axes) > 1 else mesh[axes[0]],
                reshard_after_forward=unit.reshards,
                ignored_params=scalars,
            )
    if not any(unit.path == "" for unit in found):
        replicate(root, mesh=mesh[tuple(axes)]._flatten() if len(axes) > 1 else mesh[axes[0]], ignored_params=scalars)


class Draws:
    """The random numbers of this rank: alike on ranks with the same rows and stages, which compute the same values, and others
    on other ranks. The generators of the program are left as they are; the first rank's seed decides."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._device, world = device_of(mesh), world_of(mesh)
        seed: list[Any] = [torch.initial_seed()]
        dist.broadcast_object_list(seed, src=dist.get_global_rank(world, 0), group=world)
        axes = [axis for axis in (*batch_axes(mesh), STAGES) if axis in (mesh.mesh_dim_names or ())]
        self._seed = (int(seed[0]) + 0x9E3779B97F4A7C15 * place_in(mesh, axes)) % 2**63
        self._states: Any = None

    @contextmanager
    def of_this_rank(self) -> Iterator[None]:
        """Inside, PyTorch draws the numbers of this rank, from where the last pass stopped."""
        on_device = self._device.type != "cpu"
        devices = [self._device.index] if on_device else []
        with torch.random.fork_rng(devices, device_type=self._device.type if on_device else "cuda"):
            if self._states is None:
                torch.manual_seed(self._seed)
            else:
                torch.set_rng_state(self._states[0])
                if on_device:
                    torch.get_device_module(self._device.type).set_rng_state(self._states[1])
            yield
            own = torch.get_device_module(self._device.type).get_rng_state() if on_device else None
            self._states = (torch.get_rng_state(), own)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What is drawn inside is drawn again afterwards."""
        before = self._states
        try:
            yield
        finally:
            self._states = before
