"""``apply``: a plan onto a module of PyTorch and a mesh of its processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from partita._axes import DENSE_BATCH_AXES
from partita._error import refuse

from . import _batch, _layouts, _stages
from ._agreement import Agreement
from ._lines import STAGES, Call, Line, Refusals, read
from ._needs import lines as lines_of
from ._one_device import VERIFY_LIMIT, OneDevice
from ._parallel import Parallel, PartLoss, check_rows, part_of, rows_of

_NO_EFFECT = ("annotate", "decompose", "fork_rng", "trace")
"""Requests that change nothing here: notes, and what only patterns see."""

_REFUSED: dict[str, tuple[str, tuple[Call, ...]]] = {
    "fuse": ("its kernels are those of PyTorch; torch.compile fuses", ()),
    "layers": ("stages are cut by pipeline_split", ()),
    "precision": ("its element types are those of the module", ()),
    "replace": ("its kernels are those of PyTorch", ()),
    "replace_all": ("its kernels are those of PyTorch", ()),
    "zero1": ("PyTorch shards states and gradients with the parameters", (Call("fsdp", (), {"gather": "step"}),)),
    "zero2": ("PyTorch shards states and gradients with the parameters", (Call("fsdp", (), {"gather": "step"}),)),
}


def apply(
    plan: Any,
    module: torch.nn.Module,
    device_mesh: DeviceMesh,
    *,
    loss: Callable[..., Any] | None = None,
    microbatches: int = 1,
    timetable: str = "1f1b",
    example_inputs: tuple[Any, ...] | None = None,
    check: bool = True,
    verify_limit: float = VERIFY_LIMIT,
) -> Parallel:
    """Applies a plan to a module, in place, on a mesh of PyTorch whose dimensions have the names of the plan's axes. Every
    process of the mesh calls it, and takes the parameters of the first one. ``plan`` is a ``Plan``, a text, a dictionary
    from module patterns to styles, or None.

    Axes ``dp`` and ``fsdp`` shard the rows of a batch, ``pp`` has stages, and one more axis may have layouts. ``loss``
    takes what the module returns and the target, and is a sum or a mean over rows or over what counts in them; without it the
    module returns the loss, a scalar or an attribute ``loss``. Stages need it, and ``example_inputs``, the tensors of a whole
    batch without the target.

    The first step is compared with that of one device of the native engine: of a batch, cut to rows that take at most
    ``verify_limit`` operations on elements. ``check=False`` leaves this out.

    Raises ``PartitaError``: E394 with all lines that PyTorch cannot express and the nearest plan that it can, or for a
    mesh, module or loss that it cannot; E221 for a pattern that matches no module, E223 for an axis that the mesh does not
    have, E390 for a module that cannot be exported, E462 for an unknown timetable.
    """
    _sizes(device_mesh)
    agreement = Agreement(_batch.world_of(device_mesh), _batch.device_of(device_mesh))
    found = agreement.all(
        None,
        lambda: _accepted(plan, module, device_mesh, loss, microbatches, timetable, example_inputs),
        lambda found: (str(found), [f"{name} {value.dtype} {tuple(value.shape)}" for name, value in _tensors(module)]),
    )
    table, layout_axis = found.table, found.layout_axis

    device, ranks = _batch.device_of(device_mesh), _batch.ranks_of(device_mesh)
    module.to(device)
    _begin_alike(module, device_mesh)
    one_device = OneDevice(module, loss)
    part_loss = PartLoss(loss, ranks)
    limit = verify_limit if check else None
    layout_mesh = device_mesh[layout_axis] if layout_axis is not None else None

    def made(root: torch.nn.Module) -> None:
        inside = dict(root.named_modules())
        if layout_mesh is not None:
            _layouts.parallelize(root, layout_mesh, found.styles)
        for path in found.recomputed:
            if path in inside:
                checkpoint(inside[path])
        _batch.shard(root, device_mesh, found.units)

    if table is None:
        made(module)
        return Parallel(device_mesh, [module], layout_mesh, microbatches, part_loss, one_device, limit)
    # The rows of one microbatch of one rank.
    given = pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, (example_inputs, {}))
    inputs, _ = part_of(given, rows_of(given), ranks * microbatches, 0)
    mine = table.stages_of(device_mesh.get_local_rank(STAGES))
    stages, output = _stages.cut(module, found.ends, inputs, device_mesh, device, mine)
    roots = [stage.submod for stage in stages]
    for root in roots:
        made(root)
    pipeline = _stages.Pipeline(stages, table, device_mesh[STAGES].size(), microbatches, part_loss, output)
    return Parallel(device_mesh, roots, layout_mesh, microbatches, part_loss, one_device, limit, pipeline)


@dataclass(frozen=True)
class _Accepted:
    """A plan as PyTorch runs it."""

    lines: list[str]
    layout_axis: str | None
    styles: dict[str, Any]
    units: list[_batch.Unit]
    recomputed: list[str]
    table: _stages.Timetable | None
    ends: list[str]

    def __str__(self) -> str:
        return f"{self.lines} {self.units} {self.recomputed} {self.table} {self.ends}"


def _accepted(
    plan: Any,
    module: torch.nn.Module,
    device_mesh: DeviceMesh,
    loss: Callable[..., Any] | None,
    microbatches: int,
    timetable: str,
    example_inputs: tuple[Any, ...] | None,
) -> _Accepted:
    """A plan that PyTorch can run on this rank. Raises what ``apply`` raises."""
    lines = read(lines_of(plan), module)
    sizes = _sizes(device_mesh)
    refusals = Refusals(lines)
    _check_axes(lines, sizes)
    for line in lines:
        if line.call.name in _REFUSED:
            why, nearest = _REFUSED[line.call.name]
            axis = {"axis": line.call.take("axis", default="dp")}
            refusals.add(line, why, *[call.without(**axis) for call in nearest])
        elif line.call.name == "checkpoint" and (line.call.positional or line.call.named):
            refusals.add(line, "it recomputes whole modules", Call("checkpoint"))
    layout_axis = _layout_axis(lines, sizes, refusals)

    def named(*names: str) -> list[Line]:
        return [line for line in lines if line.call.name in names]

    layouts = [line for line in named(*_layouts.NAMES) if _axis_of(line, sizes) == layout_axis]
    styles = _layouts.styles(layouts, module, refusals)
    units = _batch.units(named("fsdp"), module, microbatches, device_mesh, refusals)
    slices = sizes.get(STAGES, 1)
    table, ends = None, []
    if slices > 1:
        table = _stages.timetable(timetable, slices, microbatches)
        ends = _stages.splits(named("pipeline_split"), module, table.stages, refusals)
    refusals.check()
    if table is not None and table.splits_backward and (units or layout_axis is not None):
        # With fully_shard the gradients would be wrong without a word, with layouts autograd stops.
        raise refuse(
            "E394",
            f"the timetable {table.name} computes gradients of parameters apart from those of activations",
            expected="1f1b, gpipe or interleaved-1f1b: PyTorch can split only the backward pass of replicated parameters",
            found="a plan with " + ("fsdp" if units else f"layouts over {layout_axis}"),
        )
    if table is not None and (loss is None or example_inputs is None):
        missing = "loss" if loss is None else "example_inputs"
        raise refuse(
            "E394", "stages need a loss and example inputs", expected="loss= and example_inputs=", found=f"no {missing}"
        )

    parameters = loss.named_parameters() if isinstance(loss, torch.nn.Module) else ()
    learned = [name for name, value in parameters if value.requires_grad]
    if learned:
        raise refuse(
            "E394",
            "the loss has parameters, which no plan lays out",
            expected="a loss without parameters; or one that the module computes and returns",
            found=", ".join(learned),
        )
    if table is not None:
        check_rows(rows_of((example_inputs or (), {})), _batch.ranks_of(device_mesh), microbatches)
    for name, tensor in _tensors(module):
        if tensor.is_meta:
            raise refuse(
                "E394", f"`{name}` has no values", expected="a module with its parameters in memory", found="meta"
            )
    recomputed = list(dict.fromkeys(path for line in named("checkpoint") for path in line.paths))
    return _Accepted([str(line) for line in lines], layout_axis, styles, units, recomputed, table, ends)


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    """The sizes of the axes by name. E394 for a mesh without names."""
    if mesh.mesh_dim_names is None:
        raise refuse(
            "E394",
            "the dimensions of a mesh need the names of the plan's axes",
            expected='init_device_mesh(.., mesh_dim_names=("dp", "tp"))',
            found=repr(mesh),
        )
    return dict(zip(mesh.mesh_dim_names, mesh.shape))


def _axis_of(line: Line, sizes: Mapping[str, int]) -> str | None:
    """The axis of a line; None for one that is about no axis. Styles have their own default, ``shard`` and ``sync`` of one
    tensor take ``tp`` or the only axis that it can be."""
    name = line.call.name
    if name not in (*_layouts.NAMES, "fsdp", "zero1", "zero2"):
        return None
    given: str | None = line.call.take("axis")
    if given is not None:
        return given
    others = [axis for axis in sizes if axis not in (*DENSE_BATCH_AXES, STAGES)] or list(sizes)
    if name in ("shard", "sync") and isinstance(line.call.positional[0], str) and len(others) == 1:
        return others[0]
    return {"fsdp": "fsdp", "zero1": "dp", "zero2": "dp"}.get(name, "tp")


def _check_axes(lines: list[Line], sizes: Mapping[str, int]) -> None:
    for line in lines:
        axis = _axis_of(line, sizes)
        if axis is not None and axis not in sizes:
            raise refuse(
                "E223",
                f"the mesh has no axis `{axis}`",
                expected=", ".join(sizes),
                found=str(line),
                at=line.origin,
            )


def _layout_axis(lines: list[Line], sizes: Mapping[str, int], refusals: Refusals) -> str | None:
    """The axis of more than one rank that layout lines use: there is one at most."""
    found: str | None = None
    for line in lines:
        if line.call.name not in _layouts.NAMES:
            continue
        axis = _axis_of(line, sizes)
        if axis is None or sizes[axis] == 1:
            continue
        if axis in (*DENSE_BATCH_AXES, STAGES):
            refusals.add(line, f"PyTorch's styles share no axis with the batch or the stages, and this is over {axis}")
        elif found not in (None, axis):
            refusals.add(line, f"PyTorch's styles are over one axis, {found}, and this is over {axis}")
        else:
            found = axis
    idle = [name for name, size in sizes.items() if size > 1 and name not in (*DENSE_BATCH_AXES, STAGES, found)]
    if idle:
        refusals.missing(f"no line uses the axis {idle[0]} of {sizes[idle[0]]} ranks, which would all do the same", [])
    return found


def _begin_alike(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Every rank takes the parameters and buffers of the first one."""
    first = int(mesh.mesh.flatten()[0])
    group = _batch.world_of(mesh)
    for _, tensor in _tensors(module):
        dist.broadcast(tensor.detach(), first, group=group)
