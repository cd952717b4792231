"""The schedule language: requests for modules of a model, each checked when it is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita import _partita, optim
from partita._load import Model
from partita._origin import place
from partita._partita import Mesh, Plan, Report
from partita._spelled import spelled
from partita._working import working

if TYPE_CHECKING:
    from partita._followed import Followed

__all__ = ["At", "Schedule", "Subgraphs"]


def mesh_of(mesh: Mesh | str) -> Mesh:
    """A mesh, from itself or its text."""
    return Mesh(mesh) if isinstance(mesh, str) else mesh


def plan_of(plan: Plan | str | Mapping[str, Any] | None, model: Model | None = None, mesh: Mesh | None = None) -> Plan:
    """A plan, from itself, its text, or a dictionary from module patterns to styles. None is the plan of a model for a mesh:
    over an axis ``fsdp``, parameters are sharded."""
    if plan is None and model is not None and mesh is not None:
        return model._native.storage_plan(mesh)
    return plan if isinstance(plan, Plan) else Plan(dict(plan) if isinstance(plan, Mapping) else plan)


def step_options(
    model: Model,
    optimizer: Any,
    microbatches: int,
    clip_grad_norm: float | None,
    sequence_parallel: bool,
    precision: str | None = None,
) -> tuple[Followed | None, dict[str, Any]]:
    """An optimizer of PyTorch, if it is one, and the options of a step as Rust takes them."""
    options: dict[str, Any] = {
        "microbatches": microbatches,
        "clip_grad_norm": clip_grad_norm,
        "sequence_parallel": sequence_parallel,
        "precision": precision,
    }
    if is_of_pytorch(optimizer):
        from partita._followed import Followed

        followed = Followed(model, optimizer)
        return followed, options | followed.read().options()
    rule = optim.of(optimizer)
    return None, options | {"optimizer": rule.constants(), "decay_1d": rule.decay_1d, "groups": []}


def is_of_pytorch(optimizer: Any) -> bool:
    """Whether an optimizer is one of PyTorch, or of a class that was made from one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(optimizer, torch.optim.Optimizer)


def caller() -> str:
    """``file:line`` of the nearest frame outside this package: the origin of a line."""
    frame = sys._getframe(1)
    here = os.path.dirname(os.path.abspath(__file__)) + os.sep
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(here):
        frame = frame.f_back
    return place(frame)


@dataclass(frozen=True)
class Subgraphs:
    """Matches of a pattern, to be fused, replaced or checkpointed."""

    pattern: str
    matches: tuple[str, ...]
    at: tuple[int, ...] = ()

    def only(self, *at: int) -> Subgraphs:
        """These matches alone, from 0."""
        return Subgraphs(self.pattern, self.matches, at)

    def __len__(self) -> int:
        return len(self.at or self.matches)

    def __iter__(self) -> Iterator[str]:
        return iter([self.matches[number] for number in self.at] if self.at else self.matches)

    def __str__(self) -> str:
        return "\n".join(self)


class At:
    """Modules of a schedule. Each method adds a line to the plan and returns the modules again.

    Every method raises ``PartitaError`` if the line contradicts the model, the mesh or an earlier line; the schedule is
    then as before.
    """

    def __init__(self, schedule: Schedule, path: str) -> None:
        self._schedule = schedule
        self._path = path

    @spelled
    def apply(self, primitive: str, *arguments: Any, **named: Any) -> At:
        """Adds a line by the name of its style or primitive: ``apply("shard", "weight", 0)``. E222 for an unknown one."""
        self._schedule._native.apply(self._path, primitive, arguments, named, caller())
        return self

    def style(self, style: str) -> At:
        """A declared style: ``"colwise"``, ``"rowwise(output=shard(1))"``."""
        self._schedule.extend({self._path: style}, caller())
        return self

    def shard(self, tensor: str, dim: int | None = None, axis: int | str | None = None) -> At:
        """Shards ``weight``, ``bias``, a buffer, the ``input`` or the ``output`` along a dimension.

        ``axis`` is a mesh axis by name, by default ``tp`` or the only one; a number is the dimension, as Slapo spells it.
        E231 if it is sharded already, E232 for an unknown tensor, E224 for an unknown dimension.
        """
        return self.apply("shard", tensor, dim=dim, axis=axis)

    def sync(self, mode: str, op: str, dim: int | None = None, axis: str | None = None) -> At:
        """Says where a value is communicated: ``fwd_pre``, ``fwd_post`` or ``bwd_post``; and how: ``all_reduce``,
        ``all_gather``, ``reduce_scatter``, ``scatter``.

        E233 if the value is replicated already, E234 if the operation contradicts its layout.
        """
        return self.apply("sync", mode, op, dim=dim, axis=axis)

    def checkpoint(self, pattern: str | Subgraphs | None = None) -> At:
        """Recomputes the modules, or each match of a pattern, in the backward pass."""
        return self.apply("checkpoint", pattern=pattern.pattern if isinstance(pattern, Subgraphs) else pattern)

    def decompose(self) -> At:
        """Makes the matmul and the bias of linear layers visible to patterns, and inlines composites by one level."""
        return self.apply("decompose")

    def trace(self, flatten: bool = False) -> At:
        """Makes the modules inside visible to patterns; with ``flatten``, down to their layers."""
        return self.apply("trace", flatten=flatten)

    def find(self, pattern: str) -> Subgraphs:
        """The matches of a pattern such as ``"gelu(x + b)"``. E242 if there is none, E248 if it matches only across the
        border of a module that is not traced."""
        return Subgraphs(pattern, tuple(self._schedule._native.find(self._path, pattern)))

    def ops(self) -> list[tuple[str, str]]:
        """The forward ops in order: module path and name."""
        return self._schedule._native.ops(self._path)

    def fuse(self, subgraphs: Subgraphs | str, name: str, compiler: str | None = None) -> At:
        """Makes each match one composite. With a ``compiler``, that engine must run it as one kernel; E252 if it does
        not."""
        found = subgraphs if isinstance(subgraphs, Subgraphs) else Subgraphs(subgraphs, ())
        return self.apply("fuse", found.pattern, name=name, compiler=compiler, at=list(found.at) or None)

    def replace(
        self, name: str, subgraphs: Subgraphs | None = None, ops: Sequence[int] | None = None, **bindings: Any
    ) -> At:
        """Replaces the modules, matches, or a range of ops by a composite. E250 if it does not fit, E251 if it does not
        compute the same."""
        pattern = subgraphs.pattern if subgraphs else None
        at = list(subgraphs.at) or None if subgraphs else None
        return self.apply("replace", name, pattern=pattern, at=at, ops=list(ops) if ops else None, **bindings)

    def replace_all(self, kind: str, name: str, **bindings: Any) -> At:
        """``replace`` for every module of a kind inside."""
        return self.apply("replace_all", kind, name, **bindings)

    def pipeline_split(self, mesh: Mesh | str | None = None, ranks: Sequence[int] | None = None) -> At:
        """A pipeline stage ends after the module. It may run on a mesh and on ranks of its own."""
        return self.apply(
            "pipeline_split", mesh=None if mesh is None else str(mesh), ranks=list(ranks) if ranks else None
        )

    def annotate(self, tensor: str, key: str, value: Any) -> At:
        """Attaches a note to a parameter."""
        return self.apply("annotate", tensor, key, value)

    def precision(self, compute: str) -> At:
        """Computes in this element type: ``"bf16"``."""
        return self.apply("precision", compute)

    def offload(self, what: str, ahead: int | None = None) -> At:
        """Keeps ``"optimizer"`` states or ``"activations"`` in host memory while nothing uses them, and loads ``ahead``
        groups of them before their use; one by default. On a schedule itself, those of the whole model."""
        at = self if self._path else At(self._schedule, "**")
        at.apply("offload", what, ahead=ahead)
        return self

    def fork_rng(self) -> At:
        """Accepted without effect: random numbers depend on the place of an element in the whole tensor on any mesh."""
        return self.apply("fork_rng")


class Schedule(At):
    """A model, a mesh, and the plan so far; itself the whole model, whose modules are ``sch["path"]``.

    Without a plan it begins with the lines that the axes of the mesh promise: over ``fsdp`` parameters are sharded.
    ``optimizer`` and the other options are those of the step that is checked, explained and verified.
    """

    @spelled
    def __init__(
        self,
        model: Model,
        mesh: Mesh | str,
        plan: Plan | str | Mapping[str, Any] | None = None,
        *,
        optimizer: Any = None,
        microbatches: int = 1,
        clip_grad_norm: float | None = None,
        sequence_parallel: bool = False,
        precision: str | None = None,
    ) -> None:
        super().__init__(self, "")
        self.model = model = model._current()
        self.mesh = mesh_of(mesh)
        _, self._options = step_options(model, optimizer, microbatches, clip_grad_norm, sequence_parallel, precision)
        self._optimizer = optimizer
        self._native = _partita.Schedule(model._native, self.mesh, self._options)
        lines = plan_of(plan, model, self.mesh)
        if len(lines):
            self.extend(lines, caller())

    def at(self, path: str) -> At:
        """The modules of a path or pattern: ``"layers.*.mlp"``. E221 with the nearest names if there is none."""
        self._native.check_path(path)
        return At(self, path)

    def __getitem__(self, path: str) -> At:
        return self.at(path) if path else self

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        return self._native.plan()

    @spelled
    def extend(self, plan: Plan | str | Mapping[str, Any], origin: str | None = None) -> Schedule:
        """Adds the lines of a plan, all or none."""
        lines = plan if isinstance(plan, Plan) else Plan(dict(plan) if isinstance(plan, Mapping) else plan, origin or caller())
        self._native.extend(lines)
        return self

    def undo(self) -> str | None:
        """Removes the last line, and returns it; None if there is none."""
        return self._native.undo()

    def layers(self, count: int) -> Schedule:
        """Clusters the ops into ``count`` layers of similar work; pipeline stages consist of whole layers."""
        self.apply("layers", count)
        return self

    @spelled
    def verify(self) -> Report:
        """Compares what would run with what it should compute. The report is true if all agree, and its ``compared`` says
        what was compared with what:

        - the program of a training step, and those of a forward and a backward pass with a pause between them, on random
          inputs and gradients of the outputs, with the interpreter on one device: loss, outputs, every gradient, parameter
          and optimizer state;
        - of a model from a module of PyTorch, the module that ``build`` returns with that module itself, on the example
          inputs: outputs, gradients and buffers of four passes in a row. The first one is given one tensor in all places that
          can take it, and before the last one the mode and plain numbers of the module are changed;
        - of one with a loss, three steps of a trainer with those of PyTorch: losses, parameters and buffers.
        """
        with working("comparing the plan with one device"):
            report = self._native.verify()
            if self.model._module is None:
                return report
            from partita._verified import beside_pytorch

            return beside_pytorch(self.model, self.build, self.trainer, self._options["clip_grad_norm"], report)

    @spelled
    def explain(self, name: str | None = None) -> str:
        """Why the step is as it is: what each line does and why ranks meet; or, for the name of a tensor or collective,
        its layout and the causes of it. E257 or E258 for a name that the step does not have."""
        return self._native.explain(name)

    @spelled
    def collectives(self, rank: int = 0) -> list[tuple[str, str, int, int]]:
        """How often ranks meet in a step: phase, collective, how often, bytes."""
        return self._native.collectives(rank)

    @spelled
    def program(self, rank: int = 0) -> str:
        """The program of a rank as text: one line per instruction. E014 if there is no such rank."""
        return self._native.program(rank)

    def build(self) -> Any:
        """The model under the plan: a module of PyTorch if it was one, and otherwise a ``Planned``.

        A function that ``load`` took as the loss is not a part of the module: it returns what the module returned.
        """
        from partita._planned import planned

        with working("planning the passes of the model"):
            return planned(self.model, self.plan, self.mesh)

    @spelled
    def trainer(self, optimizer: Any = None, seed: int = 0, engine: str = "native") -> Any:
        """A ``Trainer`` of this model, plan and mesh."""
        from partita._trainer import Trainer

        rule = self._optimizer if optimizer is None else optimizer
        return Trainer(self.model, self.plan, self.mesh, rule, seed=seed, engine=engine, _options=self._options)

    def __str__(self) -> str:
        return str(self._native)

    def _repr_html_(self) -> str:
        """The plan as a table, for notebooks."""
        return self.plan._repr_html_()

    def __repr__(self) -> str:
        return f"Schedule({len(self.plan)} lines on {self.mesh})"
