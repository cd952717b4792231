"""Pipeline stages of a module, and their order of work, with ``torch.distributed.pipelining``.

A module is exported with the rows of a microbatch and cut after the modules that ``pipeline_split`` names. Its modules
remain inside the stages, so that layout lines find them. A timetable that PyTorch has a class for runs as that class; any
other one, also a user's own, runs from its table of tasks.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.utils import _pytree as pytree

from partita._caches import without_caches
from partita._error import refuse

from ._layouts import LAYERS
from ._lines import STAGES, Line, Refusals
from ._needs import tasks

_CLASSES: dict[str, type] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


_FORWARD = re.compile(r"(\d+)F(\d+)")

# A stage, and what is done there for which microbatch.
_TASK = re.compile(r"(\d+)([FBIW])\d+")


@dataclass(frozen=True)
class Timetable:
    """An order of work: its name, the number of stages, and the tasks of each slice of the mesh as a CSV text."""

    name: str
    stages: int
    tasks: str

    def stages_of(self, slice: int) -> list[int]:
        """The stages of a slice."""
        row = self.tasks.splitlines()[slice].split(",")
        return sorted({int(found.group(1)) for task in row if (found := _TASK.match(task))})

    def order_of_losses(self) -> list[int]:
        """The microbatches in the order of the forward passes of the last stage, which computes the loss."""
        passes = (task for line in self.tasks.splitlines() for task in _FORWARD.findall(line))
        return [int(microbatch) for stage, microbatch in passes if int(stage) == self.stages - 1]

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of activations and of parameters are tasks of their own."""
        return any(found.group(2) in "IW" for found in _TASK.finditer(self.tasks))


def timetable(name: str, slices: int, microbatches: int) -> Timetable:
    """A timetable by its name or its CSV file. E462 for an unknown one."""
    found = tasks(name, slices, microbatches)
    if (found["slices"], found["microbatches"]) != (slices, microbatches):
        raise refuse(
            "E394",
            f"the timetable {name} is for another mesh or another number of microbatches",
            expected=f"{slices} slices and {microbatches} microbatches",
            found=f"{found['slices']} slices and {found['microbatches']} microbatches",
        )
    return Timetable(found["name"], found["stages"], found["tasks"])


def splits(lines: Sequence[Line], module: torch.nn.Module, stages: int, refusals: Refusals) -> list[str]:
    """The modules after which a stage ends, as many as the stages need.

    A plan without such lines, or with another number of them, is refused with the lines that divide the longest list of
    layers evenly.
    """
    ends: list[str] = []
    for line in lines:
        if not {"mesh", "ranks"}.isdisjoint(line.call.named):
            refusals.add(line, "a stage on a mesh of its own", line.call.without("mesh", "ranks"))
        ends += [path for path in line.paths if path]
    if len(ends) + 1 != stages:
        lists = [
            inner
            for inner in module.named_modules()
            if isinstance(inner[1], (torch.nn.ModuleList, torch.nn.Sequential))
        ]
        path, layers = max(lists, key=lambda inner: len(inner[1]), default=("", torch.nn.ModuleList()))
        names = [name for name, _ in layers.named_children()]
        even = [names[len(names) * stage // stages - 1] for stage in range(1, stages)] if len(names) >= stages else []
        refusals.missing(
            f"{len(ends)} lines pipeline_split make {len(ends) + 1} stages, and the timetable has {stages}",
            [(f"{path}.{name}".strip("."), "pipeline_split") for name in even] if not ends else [],
        )
    return ends


def cut(
    module: torch.nn.Module,
    ends: Sequence[str],
    inputs: tuple[Any, ...],
    mesh: DeviceMesh,
    device: torch.device,
    mine: Sequence[int],
) -> tuple[list[_PipelineStageBase], Any]:
    """The stages of this rank, whose parameters are those of the module, and the structure of its output. E390 if it cannot be
    exported, E394 if stages share a parameter or an input is no tensor with rows."""
    for leaf in pytree.tree_leaves(inputs):
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            raise refuse(
                "E394",
                f"stages of {type(module).__name__} cannot be given {leaf!r}",
                expected="example_inputs that are tensors with rows",
                found=type(leaf).__name__,
                help="make it an attribute or a default of the module",
            )
    owners: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    specs: list[Any] = []

    def returned(_: Any, __: Any, output: Any) -> Any:
        output, _ = without_caches(output)
        specs.append(pytree.tree_structure(output))
        return output

    hook = module.register_forward_hook(returned)
    try:
        pipe = pipeline(module, inputs, split_spec={end: SplitPoint.END for end in ends})
    except Exception as error:
        reason = error.__cause__ or error
        raise refuse(
            "E390",
            f"PyTorch cannot cut {type(module).__name__} into stages",
            expected="a module that torch.export captures",
            found=f"{type(reason).__name__}: {reason}",
        ) from error
    finally:
        hook.remove()
        for end in ends:
            split = module.get_submodule(end).__dict__
            split.pop("forward", None)
            split.pop("_orig_forward", None)
    homes: dict[str, set[int]] = {}
    for number in range(pipe.num_stages):
        for name, _ in pipe.get_stage_module(number).named_parameters(remove_duplicate=False):
            homes.setdefault(name, set()).add(number)
    for names in owners.values():
        where = set().union(*(homes.get(name, set()) for name in names))
        if len(where) > 1:
            raise refuse(
                "E394",
                f"stages {' and '.join(str(number) for number in sorted(where))} have one parameter",
                expected="parameters that one stage reads: PyTorch sums no gradients over stages",
                found=" = ".join(names),
                help="give each stage a parameter of its own, or use a mesh without the axis pp",
            )
    stages: list[_PipelineStageBase] = [pipe.build_stage(number, device, mesh.get_group(STAGES)) for number in mine]
    for stage in stages:
        # PyTorch's styles ask for the classes of layers.
        for path, _ in list(stage.submod.named_modules()):
            # A module that is called again has a number there: `dropout@1`.
            original = module.get_submodule(re.sub(r"@\d+", "", path))
            if path and isinstance(original, LAYERS):
                stage.submod.set_submodule(path, original)
    return stages, specs[-1]


class Pipeline:
    """The stages of this rank with the schedule of PyTorch that runs them."""

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        table: Timetable,
        slices: int,
        microbatches: int,
        loss: Callable[..., Any],
        output: Any,
    ) -> None:
        """``output`` is the structure of what the module returns; the last stage returns its leaves."""

        def of_leaves(found: Any, target: Any) -> Any:
            return loss(pytree.tree_unflatten(pytree.tree_leaves(found), output), target)

        self.stages = stages
        self.schedule = _scheduled(stages, table, slices, microbatches, of_leaves)
        self.order = table.order_of_losses()
        graph: Any = getattr(stages[0], "pipe_info").graph
        places = [node for node in graph.nodes if node.op == "placeholder"]
        self._inputs = [node.name for node in places]
        shapes = [list(node.meta["val"].shape) for node in places]
        self._shapes = [[shape[0] * microbatches, *shape[1:]] for shape in shapes]
        """Those of the arguments, with the rows of a rank."""
        self._microbatches = microbatches
        for stage in stages:
            _read_by_name(stage)

    def check(self, given: tuple[tuple[Any, ...], dict[str, Any]], rows: int, name: str) -> None:
        """E394 for a batch of other arguments than the stages were cut for, or with other rows of this rank."""
        shapes = [list(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in self._leaves(given)]
        found = [None if shape is None else [rows, *shape[1:]] for shape in shapes]
        if found != self._shapes:
            raise refuse(
                "E394",
                f"the stages of {name} were cut for other arguments",
                expected=", ".join(f"{input} {shape}" for input, shape in zip(self._inputs, self._shapes))
                + ": the rows of this rank",
                found=", ".join(repr(leaf) if shape is None else str(shape) for leaf, shape in zip(self._leaves(given), found)),
                help="give batches of one size, that of example_inputs",
            )

    def _leaves(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
        args, kwargs = given
        return pytree.tree_leaves((args[:-1], kwargs))

    def step(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Both passes over the rows of this rank. Every stage reads what it needs by name; the loss has its targets."""
        # PyTorch cuts a target, which must be a tensor: a number for each microbatch.
        ends = {"target": torch.arange(self._microbatches), "losses": []} if any(stage.is_last for stage in self.stages) else {}
        self.schedule.step(**dict(zip(self._inputs, self._leaves(given))), **ends)


def _read_by_name(stage: Any) -> None:
    """Makes a stage read the arguments of the module by name, of all that it is given, and activations in their order.

    ``split_module`` puts the arguments of a stage in the order in which it reads them, and PyTorch gives only the first stage
    positional ones.
    """
    places = [node.name for node in stage.submod.graph.nodes if node.op == "placeholder"]
    arguments = {place: node.name for place, node in zip(places, stage.node.args) if node.op == "placeholder"}
    if not stage.is_first:
        # PyTorch waits for arguments of the module to arrive from another stage.
        made = stage._create_act_recv_info
        stage._create_act_recv_info = lambda: tuple(info for info in made() if not info.is_root_arg)

    def rename(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arrived = iter(args)
        # By position: PyTorch gives the first stage a signature with the names in the order of the module.
        return tuple(kwargs[arguments[place]] if place in arguments else next(arrived) for place in places), {}

    stage.submod.register_forward_pre_hook(rename, with_kwargs=True)


def _scheduled(
    stages: list[_PipelineStageBase], table: Timetable, slices: int, microbatches: int, loss: Callable[..., Any]
) -> Any:
    """The schedule of PyTorch that runs the stages of this rank."""
    kind = _CLASSES.get(table.name)
    if kind in (Schedule1F1B, ScheduleGPipe):
        return kind(stages[0], microbatches, loss_fn=loss, scale_grads=False)
    # The class takes whole rounds of microbatches only.
    if kind is not None and (kind is not ScheduleInterleaved1F1B or microbatches % slices == 0):
        return kind(stages, microbatches, loss_fn=loss, scale_grads=False)
    runtime: Any = _PipelineScheduleRuntime
    schedule = runtime(stages, microbatches, loss_fn=loss, scale_grads=False)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, "tasks.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(table.tasks)
        schedule._load_csv(path, format="compute_only")
    return schedule
