"""``create_schedule``, ``Verify`` and ``build`` of Slapo's language."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn

import partita
from partita._compared import difference, observed
from partita._error import refuse
from partita._module import Call
from partita._partita import Mesh, Plan
from partita._replaced import replace_nodes, shared_copy, take_tensors
from partita._schedule import caller, mesh_of
from partita._scheduled import Scheduled
from partita._told import warn
from partita.slapo import env
from partita.slapo._added import added, collectives
from partita.slapo.modules import SYNCHRONIZED, FusedSubgraph, LinearWithSyncFunc, separate_bias
from partita.slapo.modules import LinearWithSeparateBias as Separate
from partita.slapo.pattern import Pattern


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

    def __init__(self, root: Scheduled, path: str) -> None:
        self._root = root
        self.path = path

    @property
    def mod(self) -> nn.Module:
        """The module as the schedule leaves it, for reading. Sizes are those that a rank holds; tensors are whole."""
        module: nn.Module = self._root.view(self.path)
        return module

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        return self._root.plan()

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._root.mesh

    def __getitem__(self, path: str | int) -> Schedule:
        if not isinstance(path, (str, int)):
            raise TypeError(f"modules are named by their path, found {path!r}")
        full = ".".join(part for part in (self.path, str(path)) if part)
        self._root.module_at(full)
        return Schedule(self._root, full)

    def shard(self, tensor_name: str | Sequence[str], axis: int) -> None:
        """Shards a parameter, or several, along a dimension: over ``tp``, or the only axis of the mesh.

        Raises ``PartitaError``: E231 if it is sharded already, E232 for an unknown name, E224 for an unknown dimension.
        """
        for name in [tensor_name] if isinstance(tensor_name, str) else tensor_name:
            self._root.shard(self.path, name, axis)

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

    def find(
        self, pattern: Callable[..., Any] | str, func_pattern: Callable[..., Any] | None = None
    ) -> Matches | list[tuple[str, nn.Module]]:
        """The matches of a Python function over ops of PyTorch in the traced module; or the modules inside whose path
        matches a regular expression; or with both, the matches inside those modules.

        Inside a pattern, ``slapo.pattern.call_module("query|key|value", x)`` matches the modules of such a path.
        Raises ``PartitaError``: E242 if there is none, E248 if the module is not traced.
        """
        shown = self._root.shown_at(self.path)
        if isinstance(pattern, str) and func_pattern is None:
            named = [(path, module) for path, module in shown.named_modules() if path and re.fullmatch(pattern, path)]
            if not named:
                raise refuse("E242", f"no module matches `{pattern}`", expected="a path", found="no match")
            return named
        scope, function = (pattern, func_pattern) if isinstance(pattern, str) else (".*", pattern)
        assert function is not None
        traced = Pattern(function)
        nodes = traced.find(self._traced(shown))
        nodes = [match for match in nodes if all(re.fullmatch(scope, _scope(node)) for node in match)]
        if not nodes:
            raise refuse("E242", f"`{traced.text()}` has no match", expected="a match in the traced ops", found="none")
        return Matches([[("", node) for node in match] for match in nodes], traced, self.path)

    def find_node(self, pattern: Callable[[fx.Node], bool]) -> list[tuple[str, fx.Node]]:
        """The ops of the traced module for which a function is true. E242 if there is none, E248 if it is not traced."""
        found = [("", node) for node in self._traced(self._root.shown_at(self.path)).graph.nodes if pattern(node)]
        if not found:
            raise refuse("E242", "no op matches", expected="an op for which the function is true", found="none")
        return found

    def _traced(self, shown: nn.Module) -> fx.GraphModule:
        if not isinstance(shown, fx.GraphModule):
            raise refuse(
                "E248",
                f"`{self.path or type(shown).__name__}` is closed to patterns",
                expected="a traced module",
                found=type(shown).__name__,
                help="call trace(flatten=True) first",
            )
        return shown

    def replace(
        self,
        new_mod: nn.Module,
        target_ops: Matches | Sequence[tuple[str, fx.Node]] | None = None,
        *,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Replaces the module by another one, or each match in the traced module by a call of it.

        ``new_mod`` takes the parameters and buffers of what it replaces, those of one shape in their order; or those that
        ``parameters`` names (new name: old name), and keeps its own values for the others. It must compute the same,
        which is compared when shapes are known.

        Raises ``PartitaError``: E250 if it does not fit, later E251 if it does not compute the same.
        """
        what = f"replace({type(new_mod).__name__})"
        at = f"{self.path or 'the model'}, {what} at {caller()}"
        if target_ops is None:
            shown = self._root.module_at(self.path)
            tensors = [*shown.named_parameters(), *shown.named_buffers()]
            take_tensors(new_mod, tensors, parameters, at)
            self._put(new_mod, what)
            return
        given: Any = target_ops
        whole = isinstance(given, Matches) or (given and isinstance(given[0], list))
        matches: list[list[tuple[str, fx.Node]]] = list(given) if whole else [list(given)]
        shown = self._traced(self._root.shown_at(self.path))
        known = set(shown.graph.nodes)
        if any(node not in known for match in matches for _, node in match):
            raise refuse("E248", "the matches are of another module", expected=f"ops of `{self.path}`", found="others")
        if len(matches) > 1 and any(True for _ in new_mod.parameters()):
            raise refuse(
                "E250",
                f"`{type(new_mod).__name__}` has parameters and replaces {len(matches)} matches",
                at=at,
                expected="one match, or a module without parameters",
                found=f"{len(matches)} matches",
            )
        for match in matches:
            replace_nodes(shown, [node for _, node in match], new_mod, parameters, at)
        # What is planned is now the traced module, with the parameters of the user's.
        self._put(shown, what)

    def _put(self, new: nn.Module, what: str) -> None:
        edited = shared_copy(self._root.edited)
        if self.path:
            edited.set_submodule(self.path, new)
        else:
            edited = shared_copy(new)
        self._root.edit(edited, what)
        self._root.show(self.path, new)

    def replace_all(
        self,
        target_mod_type: type[nn.Module],
        make_mod_fn: Callable[[str, nn.Module], nn.Module],
        *,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """``replace`` for every module of a class inside, by what ``make_mod_fn(path, module)`` returns.

        Raises ``PartitaError``: E242 if there is none, and what ``replace`` does; then nothing is replaced.
        """
        inside = self._root.module_at(self.path).named_modules()
        found = [(path, module) for path, module in inside if path and type(module) is target_mod_type]
        if not found:
            raise refuse(
                "E242", f"no module is a {target_mod_type.__name__}", expected="a module of this class", found="none"
            )
        before = self._root.state()
        try:
            for path, module in found:
                self[path].replace(make_mod_fn(path, module), parameters=parameters)
        except BaseException:
            self._root.restore(before)
            raise

    def fuse(self, subgraph: Matches, compiler: str | None = None, name: str = "FusedKernel") -> None:
        """Makes each match one op. ``TorchScript`` and other compilers of PyTorch are accepted: the engine is Partita's."""
        if not isinstance(subgraph, Matches):
            raise refuse(
                "E242", "fuse takes the matches of a pattern", expected="what find(function) returns", found=repr(subgraph)
            )
        if subgraph.path != self.path:
            raise refuse("E248", "the matches are of another module", expected=self.path, found=subgraph.path)
        if not name.isidentifier():
            raise refuse("E222", "a fused module has a name", expected="letters, digits and underscores", found=repr(name))
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
        """Attaches a note to a parameter. E232 for an unknown name."""
        self._root.tensor_at(self.path, param)
        self._root.add(self.path, "annotate", (param, key, value), {})


def create_schedule(model: nn.Module, mesh: Mesh | str | None = None, **_: Any) -> Schedule:
    """A schedule of a model. Its tensors are sharded over ``mesh``, by default ``tp`` with as many ranks as
    ``env.setup`` announced."""
    return Schedule(Scheduled(model, mesh_of(mesh or f"tp={env.world_size()}")), "")


def build(
    sch: Schedule,
    target: Any = None,
    init_weights: bool | Callable[[nn.Module], None] = True,
    example_inputs: Sequence[torch.Tensor] | torch.Tensor | None = None,
    **_: Any,
) -> tuple[nn.Module, Any]:
    """The model under the plan, a module for training loops, and ``target``, which may be an optimizer of its parameters.

    A function as ``init_weights`` is applied to its modules; otherwise weights are those of the model. With
    ``example_inputs`` the plan is applied now, rather than in the first call.

    Raises ``PartitaError``: E393 if the model was changed after ``create_schedule``, E251 if a module computes another thing
    than what it replaces, and what the plan refuses.
    """
    root = sch._root
    built = root.planned()
    if example_inputs is not None:
        example_inputs = _listed(example_inputs)
        model = partita.load(root.edited, tuple(example_inputs))
        root.same.check(example_inputs, {})
        partita.Schedule(model, root.mesh, root.plan())
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

    Numbers are right also where a ``sync`` was forgotten: Partita derives collectives from layouts. A warning names those that
    no ``sync`` says, with their modules, and so does ``added``.
    """

    def __init__(
        self,
        sch: Schedule,
        example_inputs: Sequence[torch.Tensor] | torch.Tensor,
        tolerance: float = 1e-4,
        enable: bool = True,
        **_: Any,
    ) -> None:
        self.sch, self.inputs, self.tolerance, self.enable = sch, _listed(example_inputs), tolerance, enable
        self.largest_difference = 0.0
        self.added: list[str] = []

    def __enter__(self) -> Verify:
        self._before = self.sch._root.state()
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
        self.sch._root.restore(self._before)

    def _compare(self) -> None:
        root = self.sch._root
        planned: Any = root.planned()
        planned._planning.may_repeat = True
        original = shared_copy(root.edited)
        names = [name for name, value in original.named_parameters() if value.requires_grad]
        if self._is_random(planned):
            # The random numbers of PyTorch are others: compared without.
            original.eval(), planned.eval()
        expected, found = (
            observed(module, [(name, dict(module.named_parameters())[name]) for name in names], self.inputs, {})
            for module in (original, planned)
        )
        self.largest_difference, first = difference(expected, found, self.tolerance)
        if first is not None:
            raise refuse(
                "E253",
                "the schedule changes the numbers",
                expected=f"those of PyTorch, within {self.tolerance:.0e}",
                found=first,
                help="the schedule is back in its state before this scope",
            )
        self._tell(planned)

    def _tell(self, planned: Any) -> None:
        """Names the collectives that the schedule does not say."""
        root = self.sch._root
        passes = [each.native for programs in planned._planning.programs.values() for each in programs._passes.values()]
        said = [(path, str(named["mode"])) for path, name, _, named, _ in root.lines if name == "sync"]
        missing = added(collectives(passes, root.mesh.axis_names), said)
        self.added = [str(one) for one in missing]
        if missing:
            calls = "".join(f"\n  {one.call()}" for one in missing if one.kind in SYNCHRONIZED)
            warn(
                f"Partita has added what no sync() of the schedule says: {', '.join(self.added)}"
                + (f". To say it:{calls}" if calls else "")
            )

    def _is_random(self, planned: Any) -> bool:
        return bool(planned._planning.find(Call(planned, tuple(self.inputs), {})).model._native.is_random())


def _listed(inputs: Sequence[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
    """Example inputs; a tensor alone is the only one."""
    return [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)


def _scope(node: fx.Node) -> str:
    """The path of the module that a traced op is in; of a call of a module, its own path."""
    if node.op == "call_module":
        return str(node.target)
    inside = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return inside[-1] if inside else ""
