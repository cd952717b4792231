"""``create_schedule``, ``Verify`` and ``build`` of Slapo's language."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn

import partita
from partita import _module
from partita._error import refuse
from partita._partita import Mesh, PartitaError, Plan
from partita._schedule import caller, mesh_of
from partita.slapo import env
from partita.slapo.modules import SYNCHRONIZED, FusedSubgraph, LinearWithSyncFunc, separate_bias
from partita.slapo.modules import LinearWithSeparateBias as Separate
from partita.slapo.patterns import Pattern


class _Tracer(fx.Tracer):
    """Traces down to layers of PyTorch and to those that a schedule communicates or fuses."""

    def __init__(self, flatten: bool) -> None:
        super().__init__()
        self.flatten = flatten

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        if not self.flatten or isinstance(module, (LinearWithSyncFunc, FusedSubgraph)):
            return True
        return super().is_leaf_module(module, path) and not isinstance(module, Separate)


class Matches(list[list[tuple[str, fx.Node]]]):
    """The matches of a pattern; prints as a list of lists of paths and ops."""

    def __init__(self, found: list[list[tuple[str, fx.Node]]], pattern: Pattern, path: str) -> None:
        super().__init__(found)
        self.pattern, self.path = pattern, path


class Schedule:
    """A module and the plan so far. ``sch["path"]`` is the schedule of a module inside."""

    def __init__(self, root: _Root, path: str) -> None:
        self._root = root
        self.path = path

    @property
    def mod(self) -> nn.Module:
        """The module as the schedule leaves it, for reading. Shapes are those of one device."""
        return self._root.shown if not self.path else self._root.shown_at(self.path)

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        return self._root.plan()

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._root.mesh

    def __getitem__(self, path: str) -> Schedule:
        full = ".".join(part for part in (self.path, path) if part)
        self._root.module_at(full)
        return Schedule(self._root, full)

    def shard(self, tensor_name: str, axis: int) -> None:
        """Shards a parameter along a dimension: over ``tp``, or the only axis of the mesh.

        Raises ``PartitaError``: E231 if it is sharded already, E232 for an unknown name, E224 for an unknown dimension.
        """
        module = self._root.module_at(self.path)
        tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        if tensor_name not in tensors:
            raise refuse(
                "E232",
                f"`{self.path}` has no tensor `{tensor_name}`",
                expected=", ".join(tensors) or "a module with parameters of its own",
                found=tensor_name,
            )
        rank = tensors[tensor_name].dim()
        if not -rank <= axis < rank:
            raise refuse(
                "E224",
                f"`{self.path}.{tensor_name}` has no dimension {axis}",
                expected=f"a dimension from {-rank} to {rank - 1}",
                found=str(axis),
            )
        if any(line[:3] == (self.path, "shard", (tensor_name,)) for line in self._root.lines):
            raise refuse(
                "E231", f"`{self.path}.{tensor_name}` is sharded already", expected="one shard() of a tensor", found="two"
            )
        self._root.add(self.path, "shard", (tensor_name,), {"dim": axis})

    def sync(self, mode: str, sync_op_or_fn: str) -> None:
        """Communicates a result: ``fwd_pre``, ``fwd_post`` or ``bwd_post``; ``all_reduce``, ``all_gather``,
        ``reduce_scatter`` or ``scatter``. E234 for another operation."""
        if sync_op_or_fn not in SYNCHRONIZED:
            raise refuse(
                "E234",
                "a plan derives collectives from layouts and runs no function for them",
                expected=", ".join(SYNCHRONIZED),
                found=str(sync_op_or_fn),
            )
        self._root.add(self.path, "sync", (), {"mode": mode, "op": sync_op_or_fn})
        shown = self._root.shown_at(self.path)
        if mode == "fwd_post" and isinstance(shown, nn.Linear):
            self._root.show(self.path, LinearWithSyncFunc(shown, SYNCHRONIZED[sync_op_or_fn]))

    def decompose(self) -> None:
        """Separates the bias of a linear layer from its matmul."""
        self._root.add(self.path, "decompose", (), {})
        shown = self._root.shown_at(self.path)
        if type(shown) is nn.Linear and shown.bias is not None:
            self._root.show(self.path, separate_bias(shown))

    def trace(self, flatten: bool = False) -> None:
        """Makes the module a graph of ops: of its children, or with ``flatten`` of their layers."""
        shown = self._root.shown_at(self.path)
        try:
            graph = _Tracer(flatten).trace(shown)
        except Exception as error:
            raise refuse(
                "E248",
                f"`{self.path or type(shown).__name__}` cannot be traced",
                expected="a forward() without branches on values and without decorators",
                found=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
                help="trace a module inside it",
            ) from error
        self._root.add(self.path, "trace", (), {"flatten": flatten})
        self._root.show(self.path, fx.GraphModule(shown, graph))

    def find(self, pattern: Callable[..., Any] | str) -> Matches | list[tuple[str, nn.Module]]:
        """The matches of a Python function over ops of PyTorch in the traced module, or the modules inside whose path
        matches a regular expression.

        Raises ``PartitaError``: E242 if there is none, E248 if the module is not traced.
        """
        shown = self._root.shown_at(self.path)
        if isinstance(pattern, str):
            named = [(path, module) for path, module in shown.named_modules() if path and re.fullmatch(pattern, path)]
            if not named:
                raise refuse("E242", f"no module matches `{pattern}`", expected="a path", found="no match")
            return named
        if not isinstance(shown, fx.GraphModule):
            raise refuse(
                "E248",
                f"`{self.path or type(shown).__name__}` is closed to patterns",
                expected="a traced module",
                found=type(shown).__name__,
                help="call trace(flatten=True) first",
            )
        traced = Pattern(pattern)
        found = [[("", node) for node in nodes] for nodes in traced.find(shown)]
        if not found:
            raise refuse("E242", f"`{traced.text()}` has no match", expected="a match in the traced ops", found="none")
        return Matches(found, traced, self.path)

    def fuse(self, subgraph: Matches, compiler: str | None = None, name: str = "FusedKernel") -> None:
        """Makes each match one op. ``TorchScript`` and other compilers of PyTorch are accepted: the engine is Partita's."""
        if subgraph.path != self.path:
            raise refuse("E248", "the matches are of another module", expected=self.path, found=subgraph.path)
        self._root.add(
            self.path, "fuse", (), {"pattern": subgraph.pattern.text(), "name": name, "compiler": compiler}
        )
        shown = self._root.shown_at(self.path)
        for number, match in enumerate(subgraph):
            nodes = [node for _, node in match]
            fused = f"{name}_{number}"
            shown.add_submodule(fused, FusedSubgraph(subgraph.pattern.function, subgraph.pattern.text()))
            with shown.graph.inserting_after(nodes[-1]):
                call = shown.graph.call_module(fused, tuple(subgraph.pattern.inputs(nodes, shown)))
            nodes[-1].replace_all_uses_with(call)
            for node in reversed(nodes):
                shown.graph.erase_node(node)
        shown.delete_all_unused_submodules()
        shown.recompile()

    def checkpoint(self) -> None:
        """Recomputes the module in the backward pass."""
        self._root.add(self.path, "checkpoint", (), {})

    def cut_pipeline_stage(self) -> None:
        """A pipeline stage ends after the module."""
        self._root.add(self.path, "pipeline_split", (), {})

    def fork_rng(self) -> None:
        """Accepted without effect: random numbers do not depend on the mesh."""
        self._root.add(self.path, "fork_rng", (), {})

    def annotate(self, param: str, key: str, value: Any) -> None:
        """Attaches a note to a parameter."""
        self._root.add(self.path, "annotate", (param, key, value), {})


class _Root:
    """What all schedules of one model share."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        self.model, self.mesh = model, mesh
        self.shown: nn.Module = copy.deepcopy(model)
        self.lines: list[tuple[str, str, tuple[Any, ...], dict[str, Any], str]] = []
        self.structure = self._structure()

    def _structure(self) -> list[tuple[str, type]]:
        return [(path, type(module)) for path, module in self.model.named_modules()]

    def module_at(self, path: str) -> nn.Module:
        """A module of the model. E221 with the nearest names if there is none."""
        try:
            return self.model.get_submodule(path)
        except AttributeError:
            import difflib

            known = [known for known, _ in self.structure if known]
            near = difflib.get_close_matches(path, known, 3)
            raise refuse(
                "E221",
                f"no module `{path}`",
                expected="the path of a module",
                found=path,
                help=f"did you mean `{'`, `'.join(near)}`?" if near else f"there are {', '.join(known[:8])}",
            ) from None

    def shown_at(self, path: str) -> Any:
        return self.shown.get_submodule(path) if path else self.shown

    def show(self, path: str, module: nn.Module) -> None:
        if path:
            self.shown.set_submodule(path, module)
        else:
            self.shown = module

    def add(self, path: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Adds a line. What can be said without shapes is checked now, the rest when the plan is applied."""
        self.lines.append((path, name, arguments, named, caller()))
        try:
            self.plan()
        except PartitaError:
            self.lines.pop()
            raise

    def plan(self) -> Plan:
        """The lines as a plan."""
        calls = []
        for path, name, arguments, named, origin in self.lines:
            texts = [_text(value) for value in arguments]
            texts += [f"{key}={_text(value)}" for key, value in named.items() if value is not None]
            place = f"sch[{_text(path)}]" if path else "sch"
            calls.append(f"{place}.{name}({', '.join(texts)})  # {origin}")
        return Plan("\n".join(calls))

    def check_unchanged(self) -> None:
        if self._structure() != self.structure:
            raise refuse(
                "E393",
                "the model was changed after its schedule was created",
                expected="the modules it had then",
                found="others",
                help="create the schedule after the model is complete",
            )


def _text(value: Any) -> str:
    import json

    return json.dumps(value)


def create_schedule(model: nn.Module, mesh: Mesh | str | None = None, **_: Any) -> Schedule:
    """A schedule of a model. Its tensors are sharded over ``mesh``, by default ``tp`` with as many ranks as
    ``env.setup`` announced."""
    return Schedule(_Root(model, mesh_of(mesh or f"tp={env.world_size()}")), "")


def build(
    sch: Schedule,
    target: Any = None,
    init_weights: bool | Callable[[nn.Module], None] = True,
    example_inputs: Sequence[torch.Tensor] | None = None,
    **_: Any,
) -> tuple[nn.Module, Any]:
    """The model under the plan, a module for training loops, and ``target``, which may be an optimizer of its parameters.

    A function as ``init_weights`` is applied to its modules; otherwise weights are those of the model. With
    ``example_inputs`` the plan is applied now, rather than in the first call.

    Raises ``PartitaError``: E393 if the model was changed after ``create_schedule``, and what the plan refuses.
    """
    root = sch._root
    root.check_unchanged()
    if example_inputs is not None:
        partita.Schedule(partita.load(root.model, tuple(example_inputs)), root.mesh, root.plan())
    built = _module.planned_module(root.model, root.plan(), root.mesh)
    if callable(init_weights):
        built.apply(init_weights)
    return built, target


class Verify:
    """A context: after it, the model under the plan must compute what PyTorch computes, outputs and gradients.

        with slapo.Verify(sch, example_inputs=[torch.randn(2, 512, 1024)]):
            sch["linear1"].shard("weight", axis=0)

    At its end both run on the example inputs, with the same random cotangents. If they differ, or if the body failed, the
    schedule is as it was before, and ``PartitaError`` E253 names the first tensor that differs. ``largest_difference`` is
    then the largest one, relative to the largest element of its tensor.
    """

    def __init__(
        self, sch: Schedule, example_inputs: Sequence[torch.Tensor], tolerance: float = 1e-4, enable: bool = True, **_: Any
    ) -> None:
        self.sch, self.inputs, self.tolerance, self.enable = sch, list(example_inputs), tolerance, enable
        self.largest_difference = 0.0

    def __enter__(self) -> Verify:
        root = self.sch._root
        self._before = (list(root.lines), copy.deepcopy(root.shown))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.enable:
            return
        try:
            if error is None:
                self._compare()
        except BaseException:
            self._restore()
            raise
        if error is not None:
            self._restore()

    def _restore(self) -> None:
        self.sch._root.lines, self.sch._root.shown = self._before

    def _compare(self) -> None:
        root = self.sch._root
        root.check_unchanged()
        planned = _module.planned_module(root.model, root.plan(), root.mesh)
        expected, found = _observed(root.model, self.inputs), _observed(planned, self.inputs)
        for (name, ours), (_, theirs) in zip(found, expected):
            scale = max(theirs.abs().max().item(), 1e-30) if theirs.numel() else 1.0
            difference = (ours - theirs).abs().max().item() / scale if theirs.numel() else 0.0
            self.largest_difference = max(self.largest_difference, difference)
            if not difference <= self.tolerance:
                raise refuse(
                    "E253",
                    "the schedule changes the numbers",
                    expected=f"those of PyTorch, within {self.tolerance:.0e}",
                    found=f"{name} off by {difference:.1e}",
                    help="the schedule is back in its state before this scope",
                )


def _observed(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Outputs, gradients of parameters and of the first input, for cotangents that are drawn the same every time."""
    parameters = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    first, *others = [value.detach() for value in inputs]
    wanted: list[torch.Tensor] = [value for _, value in parameters]
    if first.is_floating_point():
        first = first.clone().requires_grad_()
        wanted.append(first)
    state = {name: value.clone() for name, value in module.named_buffers()}
    outputs = module(first, *others)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    real = [leaf for leaf in leaves if leaf.requires_grad]
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(leaf.shape, generator=generator).to(leaf.dtype) for leaf in real]
    gradients = torch.autograd.grad(real, wanted, cotangents, allow_unused=True)
    with torch.no_grad():
        for name, value in module.named_buffers():
            value.copy_(state[name])
    names = [*(name for name, _ in parameters), "the first input"]
    seen = [(f"output {place}", leaf.detach().float()) for place, leaf in enumerate(leaves)]
    for name, like, gradient in zip(names, wanted, gradients):
        seen.append((f"the gradient of {name}", torch.zeros_like(like) if gradient is None else gradient.float()))
    return seen
