"""Layout lines as styles of ``torch.distributed.tensor.parallel``.

Layouts of a plan are of whole tensors, so the module runs on ``DTensor`` throughout: no style hands on local pieces, every
other parameter is replicated, inputs are wrapped and outputs gathered at the border of the model. Code between the
layers sees the sizes of one device, such as the number of all heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ._lines import Call, Line, Refusals

LAYERS = (torch.nn.Linear, torch.nn.Embedding)
"""The layers that PyTorch's column and row styles take."""


class Placed(ParallelStyle):
    """Parameters of a module sharded along dimensions, or its first input and its outputs in other layouts: what plans
    have and PyTorch has no style for."""

    def __init__(
        self,
        parameters: Mapping[str, int] | None = None,
        input: Placement | None = None,
        output: Placement | None = None,
    ) -> None:
        super().__init__()
        self.parameters, self.input, self.output = dict(parameters or {}), input, output

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        for name, dim in self.parameters.items():
            owner, _, last = name.rpartition(".")
            _place(module.get_submodule(owner), last, device_mesh, Shard(dim))
        if self.input is not None:
            module.register_forward_pre_hook(partial(_arrives, device_mesh, self.input))
        if self.output is not None:
            module.register_forward_hook(partial(_leaves, device_mesh, self.output))
        return module


def _place(owner: torch.nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    given = getattr(owner, name)
    placed = distribute_tensor(given.data, mesh, [placement])
    owner.register_parameter(name, torch.nn.Parameter(placed, requires_grad=given.requires_grad))


def _moved(mesh: DeviceMesh, placement: Placement, tensor: Any) -> Any:
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.redistribute(mesh, [placement])


def _arrives(mesh: DeviceMesh, placement: Placement, module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    return (_moved(mesh, placement, inputs[0]), *inputs[1:]) if inputs else inputs


def _leaves(mesh: DeviceMesh, placement: Placement, module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    return pytree.tree_map(partial(_moved, mesh, placement), outputs)


def styles(lines: list[Line], module: torch.nn.Module, refusals: Refusals) -> dict[str, list[ParallelStyle]]:
    """The styles of each module by path: of several that say how it computes, the last one."""
    layers: dict[str, ParallelStyle] = {}
    others: list[tuple[str, ParallelStyle]] = []
    for line in lines:
        make = _MAKERS[line.call.name]
        for path in line.paths:
            try:
                style = make(line.call, module.get_submodule(path))
            except _Unfit as unfit:
                refusals.add(line, unfit.why, *unfit.nearest)
                break
            if line.call.name in ("colwise", "rowwise", "sequence", "replicate"):
                layers[path] = style
            else:
                others.append((path, style))
    _check_ties(lines, module, refusals)
    found: dict[str, list[ParallelStyle]] = {}
    for path, style in [*layers.items(), *others]:
        found.setdefault(path, []).append(style)
    return found


def _check_ties(lines: list[Line], module: torch.nn.Module, refusals: Refusals) -> None:
    """``parallelize_module`` makes two parameters of a shared one, if its layers have a style."""
    owners: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    shared = {name.rpartition(".")[0]: names for names in owners.values() if len(names) > 1 for name in names}
    for line in lines:
        named = [path for path in line.paths if path in shared]
        if named and line.call.name in ("colwise", "rowwise", "shard"):
            refusals.add(line, f"{' and '.join(shared[named[0]])} are one parameter, which PyTorch would make two")


class _Unfit(Exception):
    def __init__(self, why: str, *nearest: Call) -> None:
        super().__init__(why)
        self.why, self.nearest = why, nearest


def _layout(value: Any) -> Placement | None:
    """A layout as a plan spells it: ``replicate``, ``shard(1)``, or a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or value == "none":
        return None
    if value == "replicate":
        return Replicate()
    if isinstance(value, Call) and value.name == "shard":
        return Shard(value.positional[0])
    raise _Unfit("several layouts, where PyTorch takes one")


def _layouts(value: Any) -> tuple[Placement | None, ...]:
    return tuple(_layout(each) for each in value) if isinstance(value, list) else (_layout(value),)


def _of_layer(call: Call, module: torch.nn.Module) -> None:
    if not isinstance(module, LAYERS):
        raise _Unfit(f"it is a {type(module).__name__}, and PyTorch's style is for nn.Linear and nn.Embedding")


def _colwise(call: Call, module: torch.nn.Module) -> ParallelStyle:
    _of_layer(call, module)
    if _layout(call.take("input")) not in (None, Replicate()):
        raise _Unfit("ColwiseParallel reads its input replicated", call.without("input"))
    return ColwiseParallel(
        input_layouts=_layout(call.take("input_from")),
        output_layouts=_layout(call.take("output")),
        use_local_output=False,
    )


def _rowwise(call: Call, module: torch.nn.Module) -> ParallelStyle:
    _of_layer(call, module)
    arrives = _layout(call.take("input_from")) or _layout(call.take("input"))
    return RowwiseParallel(input_layouts=arrives, output_layouts=_layout(call.take("output")), use_local_output=False)


def _sequence(call: Call, module: torch.nn.Module) -> ParallelStyle:
    lies = _layout(call.take("output")) or Shard(1)
    if not isinstance(lies, Shard) or not {"input", "input_from"}.isdisjoint(call.named):
        raise _Unfit("SequenceParallel shards the input and the output alike", call.without("input", "input_from"))
    return SequenceParallel(sequence_dim=lies.dim)


def _prepare(call: Call, module: torch.nn.Module) -> ParallelStyle:
    sides = [side for side in ("input", "output") if side in call.named]
    if len(sides) == 2:
        apart = [call.without("output", "output_from"), call.without("input", "input_from")]
        raise _Unfit("an input and an output in one line", *apart)
    side = sides[0]
    wanted = _layouts(call.take(side))
    given = _layouts(call.take(f"{side}_from")) if f"{side}_from" in call.named else wanted
    if None in wanted or None in given or len(wanted) != len(given):
        if len(wanted) == 1 and wanted[0] is not None:
            return Placed(input=wanted[0]) if side == "input" else Placed(output=wanted[0])
        raise _Unfit("layouts of some of several values")
    before, after = (tuple(layout for layout in each if layout is not None) for each in (given, wanted))
    if side == "input":
        return PrepareModuleInput(input_layouts=before, desired_input_layouts=after, use_local_output=False)
    return PrepareModuleOutput(output_layouts=before, desired_output_layouts=after, use_local_output=False)


def _replicate(call: Call, module: torch.nn.Module) -> ParallelStyle:
    return Placed(input=_layout(call.take("input")), output=_layout(call.take("output")))


def _shard(call: Call, module: torch.nn.Module) -> ParallelStyle:
    """``shard(weight, 0)`` of a tensor, or the style ``shard(0)`` of all parameters."""
    named = {name: parameter for name, parameter in module.named_parameters() if "." not in name}
    first = call.take("tensor", 0)
    if isinstance(first, int):
        chosen = {
            name: first for name, parameter in module.named_parameters() if -parameter.ndim <= first < parameter.ndim
        }
        return Placed(chosen)
    dim = call.take("dim", 1)
    if first in ("input", "output"):
        return Placed(input=Shard(dim)) if first == "input" else Placed(output=Shard(dim))
    if first not in named:
        raise _Unfit(f"{type(module).__name__} has no parameter `{first}`")
    return Placed({first: dim})


def _sync(call: Call, module: torch.nn.Module) -> ParallelStyle:
    mode, op, dim = call.take("mode", 0), call.take("op", 1), call.take("dim", default=0)
    if mode == "bwd_post":
        # Gradients are summed where the layouts need it.
        return Placed()
    if isinstance(op, Call):
        dim, op = op.take("dim", 0, dim), op.name
    lies = Shard(dim) if op in ("reduce_scatter", "scatter") else Replicate()
    return Placed(input=lies) if mode == "fwd_pre" else Placed(output=lies)


_MAKERS: dict[str, Callable[[Call, torch.nn.Module], ParallelStyle]] = {
    "colwise": _colwise,
    "rowwise": _rowwise,
    "sequence": _sequence,
    "prepare": _prepare,
    "replicate": _replicate,
    "shard": _shard,
    "sync": _sync,
}

NAMES = tuple(_MAKERS)
"""The requests that are layouts."""


def parallelize(root: torch.nn.Module, mesh: DeviceMesh, found: Mapping[str, list[ParallelStyle]]) -> None:
    """Makes a module parallel over the one axis of a mesh, in place. Styles of modules that it does not have are skipped."""
    inside = dict(root.named_modules())
    for path, styles_of in found.items():
        for style in styles_of if path in inside else []:
            parallelize_module(inside[path], mesh, style)
    replicated: dict[int, torch.nn.Parameter] = {}
    for module in inside.values():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not isinstance(parameter, DTensor):
                if id(parameter) not in replicated:
                    whole = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
                    replicated[id(parameter)] = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad)
                module.register_parameter(name, replicated[id(parameter)])
    root.register_forward_pre_hook(partial(_wrap, mesh), with_kwargs=True)
    root.register_forward_hook(_unwrap)


def _wrap(mesh: DeviceMesh, module: torch.nn.Module, inputs: Any, named: Any) -> Any:
    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            return value
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False)

    return pytree.tree_map(wrapped, (inputs, named))


def _unwrap(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    return pytree.tree_map(lambda value: value.full_tensor() if isinstance(value, DTensor) else value, outputs)


@contextmanager
def running(mesh: DeviceMesh | None) -> Iterator[None]:
    """Both passes of a parallel module: plain tensors that it makes count as replicated, and attention on a CPU is
    computed by the implementation whose ops have layouts."""
    if mesh is None:
        yield
        return
    math = sdpa_kernel(SDPBackend.MATH) if mesh.device_type == "cpu" else nullcontext()
    with implicit_replication(), math, warnings.catch_warnings():
        # What a model returns, gathered, is a view that nothing here changes.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        # Ranks that hold the same values draw the same numbers: see `Draws`.
        warnings.filterwarnings("ignore", message="DTensor random operators may not have complete support")
        yield
