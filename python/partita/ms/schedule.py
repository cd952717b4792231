"""``create_schedule`` and ``build`` of the scheduling proposal."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from partita._error import refuse
from partita._partita import Mesh, Plan
from partita._replaced import moved_optimizer, replace_nodes, shared_copy
from partita._schedule import caller, mesh_of
from partita._scheduled import Scheduled
from partita.slapo.env import check_place

_CALLS = ("call_module", "call_function", "call_method")


class Schedule:
    """A model as a graph of operators, and the requests so far."""

    def __init__(self, root: Scheduled, optimizer: torch.optim.Optimizer | None) -> None:
        self._root, self._optimizer = root, optimizer

    @property
    def gm(self) -> fx.GraphModule:
        """The model as a module with a graph, ``gm.graph``, whose operators are layers and functions of PyTorch.

        Raises ``PartitaError``: E248 if ``torch.fx`` cannot trace the model.
        """
        if not isinstance(self._root.shown, fx.GraphModule):
            try:
                traced = fx.symbolic_trace(shared_copy(self._root.model))
            except Exception as error:
                raise refuse(
                    "E248",
                    f"`{type(self._root.model).__name__}` cannot be traced",
                    expected="a forward() without branches on values and without decorators",
                    found=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
                    help='name modules by path instead of operators: sch["layers.0.mlp"]',
                ) from error
            self._root.show("", traced)
        graph: Any = self._root.shown
        return graph  # type: ignore[no-any-return]

    @property
    def forward_ops(self) -> list[fx.Node]:
        """The operators of the forward pass in order; they print as their names."""
        return [node for node in self.gm.graph.nodes if node.op in _CALLS]

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        return self._root.plan()

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._root.mesh

    def __getitem__(self, ops: fx.Node | str | Sequence[fx.Node]) -> Ops:
        """An operator, several, or a module by its path.

        Raises ``PartitaError``: E221 with the nearest names for an operator or path that the model does not have.
        """
        if isinstance(ops, str) and ops in dict(self._root.edited.named_modules()):
            return Ops(self, ops, [])
        given = [ops] if isinstance(ops, (fx.Node, str)) else list(ops)
        if not given:
            raise refuse("E221", "no operators are named", expected="at least one", found="an empty list")
        known = self.forward_ops
        nodes = []
        for op in given:
            node = next((node for node in known if node is op or node.name == op), None)
            if node is None:
                raise _unknown(op, [node.name for node in known])
            nodes.append(node)
        path = str(nodes[0].target) if len(nodes) == 1 and nodes[0].op == "call_module" else None
        return Ops(self, path, nodes)

    def _repr_html_(self) -> str:
        """The plan as a table, for notebooks."""
        return self.plan._repr_html_()

    def __repr__(self) -> str:
        return f"Schedule({len(self.plan)} lines on {self.mesh})"


def _unknown(op: Any, known: list[str]) -> Exception:
    """E221 for what is no operator of a schedule."""
    near = difflib.get_close_matches(str(op), known, 3)
    help = f"did you mean `{'`, `'.join(near)}`?" if near else None
    found = str(op)
    if isinstance(op, fx.Node):
        help = "read sch.forward_ops again"
        found = f"`{op}` of another schedule, or of the graph before a replace()"
    return refuse("E221", f"the model has no operator `{op}`", expected=", ".join(known), found=found, help=help)


class Ops:
    """Operators of a schedule, or a module of it."""

    def __init__(self, schedule: Schedule, path: str | None, nodes: list[fx.Node]) -> None:
        self._schedule, self._root, self._path, self._nodes = schedule, schedule._root, path, nodes

    def _name(self) -> str:
        return ", ".join(node.name for node in self._nodes) or str(self._path)

    def replace(
        self, cls: type[nn.Module] | nn.Module, *args: Any, parameters: Mapping[str, str] | None = None, **kwargs: Any
    ) -> fx.Node:
        """Replaces the operators by one call of ``cls(*args, **kwargs)``; returns its node.

        It takes the values that they read, in order of use, and their parameters: those of one shape in order of use, if
        their own names agree; or those that ``parameters`` names (new name: old name), and keeps its own values for the
        others. That it computes the same is compared for each shape of inputs, in ``build(.., example_inputs=)`` or the
        first call.

        Raises ``PartitaError``: E250 if it does not fit, later E251 if it does not compute the same.
        """
        root, graph = self._root, self._schedule.gm
        nodes = self._nodes or [node for node in self._schedule.forward_ops if node.target == self._path]
        if not nodes or (len(nodes) > 1 and not self._nodes):
            raise refuse(
                "E250",
                f"`{self._path}` is called {len(nodes)} times as an operator",
                expected="an operator, or a list of them: sch[ops[0:3]]",
                found=self._path,
            )
        # A new module's own values are thrown away; the program's random numbers are not disturbed.
        with torch.random.fork_rng(devices=[]):
            new = cls if isinstance(cls, nn.Module) else cls(*args, **kwargs)
        what = f"replace({type(new).__name__})"
        edited: Any = shared_copy(graph)
        # The same operators in a copy: if they do not fit, nothing is changed.
        copies = dict(zip(graph.graph.nodes, edited.graph.nodes))
        node = replace_nodes(edited, [copies[node] for node in nodes], new, parameters, f"{self._name()}, {what} at {caller()}")
        root.show("", edited)
        root.edit(edited, f"{self._name()}: {what}")
        return node

    def partition(self, axis: int, param: str | None = None) -> None:
        """Partitions a parameter along a dimension over the ranks; without ``param``, the result of the operator, whose
        partial sums are then reduced and scattered along it.

        Raises ``PartitaError``: E231 if it is partitioned already, E232 for an unknown parameter, E224 for an unknown
        dimension, E221 for operators that are no single module.
        """
        if self._path is None:
            raise refuse(
                "E221",
                f"`{self._name()}` is not one module",
                expected="an operator that calls a module",
                found=", ".join(node.op for node in self._nodes),
            )
        if param is not None:
            self._root.shard(self._path, param, axis)
        else:
            self._root.add(self._path, "shard", ("output",), {"dim": axis})


def create_schedule(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    world_size: int = 1,
    rank: int = 0,
    *,
    mesh: Mesh | str | None = None,
) -> Schedule:
    """A schedule of a model, whose parameters are partitioned over ``world_size`` ranks, or over another mesh.

    All ranks run in this process, as rank 0; under ``python -m partita.launch`` each process is its rank. Raises
    ``PartitaError``: E393 for another rank.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"create_schedule takes an optimizer of PyTorch, found {optimizer!r}")
    if mesh is None:
        check_place(rank, world_size)
    return Schedule(Scheduled(model, mesh_of(mesh or f"tp={world_size}")), optimizer)


def build(
    sch: Schedule, example_inputs: Sequence[torch.Tensor] | None = None
) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """The model under the plan, a module for training loops; and the optimizer, over its parameters, with its states.

    With ``example_inputs`` the replaced operators are compared and the plan is applied now, rather than in the first call.

    Raises ``PartitaError``: E393 if the model was changed since or the optimizer is of another model, E251 if an operator
    computes another thing than what it replaces, and what the plan refuses.
    """
    root = sch._root
    if isinstance(root.shown, fx.GraphModule) and not root.same.replaced:
        # The graph that was shown is what is built.
        root.same.edited = root.shown
    built = root.planned()
    if example_inputs is not None:
        with torch.no_grad():
            built(*example_inputs)
    if sch._optimizer is None:
        return built, None
    return built, moved_optimizer(sch._optimizer, root.edited, built)
