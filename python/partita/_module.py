"""Modules of PyTorch under a plan: forward and backward passes of the ranks as one function of autograd.

A planned module is a copy of the user's module whose ``forward`` runs planned programs. For each training mode and each
shape of inputs it is exported and planned once, when it is first called so. Parameters remain those of PyTorch, so any
optimizer, hook or scheduler works, and lie in the memory of a rank where one holds them whole: see ``partita._lent``. Both
passes are one program, which pauses between them and keeps its activations in the ranks' memory. Only if another forward
pass came in between, or a backward pass runs twice, the forward pass is computed again, with the same random numbers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from partita import _caches, _export, _launched, _partita
from partita._apart import copied
from partita._code import Ran
from partita._devices import brought, tell, tensors_of
from partita._effects import Effects
from partita._error import refuse
from partita._kinds import is_over, members_over
from partita._lent import Homes, Occupied, Pass
from partita._load import Model
from partita._observed import observe
from partita._origins import Passed, note
from partita._partita import Mesh, Plan
from partita._printed import Printed
from partita._readings import casts
from partita._rows import check_rows
from partita._spelled import spelled
from partita._tensors import pack, to_torch
from partita._told import Told
from partita._traced import Constants, traced
from partita._watched import Key, Tree, described

FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

_FORWARD = ("forward",)

# How many states of a module have programs for the same arguments.
_MOST = 8


def _training(differentiated: Sequence[str]) -> tuple[str, ...]:
    return ("training", *differentiated)


class Programs:
    """The planned programs of a module in one mode, for inputs of one shape."""

    def __init__(
        self, module: torch.nn.Module, model: Model, plan: Plan, mesh: Mesh, homes: Homes, may_repeat: bool
    ) -> None:
        native = model._native
        self.model: Any = model
        self.may_repeat = may_repeat
        self.plan, self.mesh, self.homes = plan, mesh, homes
        self.inputs = list(model.inputs)
        self.outputs = list(model.outputs)
        self.types = model.outputs
        self.parameters = [name for name, _, _ in native.parameters()]
        self.frozen: list[str] = []
        self.buffers: list[str] = []
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, _, _ in native.states():
            (self.frozen if name in parameters else self.buffers).append(name)
        # By kind: a forward pass alone, or a forward and a backward pass with the gradients of these inputs.
        self._passes: dict[tuple[str, ...], Pass] = {}
        # Whether gradients may be the memory of ranks.
        self._lends = True

    @contextmanager
    def _running(self, kind: tuple[str, ...], name: str) -> Iterator[Pass]:
        """A program, planned when it is first needed; and again after an error in it, such as Ctrl-C, which ended its
        ranks. ``name`` is what a profiler calls its pass."""
        if kind not in self._passes:
            native = _partita.Executable(
                self.model._native, self.plan, self.mesh, kind[0], list(kind[1:]), self.may_repeat
            )
            self._passes[kind] = Pass(native, kind[0] == "training", self.homes)
        running = self._passes[kind]
        try:
            with observe(name, running.native):
                yield running
        except BaseException:
            self._close(kind)
            raise

    def close(self) -> None:
        """The programs will not run again."""
        for kind in list(self._passes):
            self._close(kind)

    def _close(self, kind: tuple[str, ...]) -> None:
        closed = self._passes.pop(kind, None)
        if closed is not None:
            closed.close()

    def kept(self, module: torch.nn.Module) -> dict[str, Any]:
        """The tensors that are neither inputs nor trained: frozen parameters, and copies of changing buffers."""
        if not self.frozen and not self.buffers:
            return {}
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        copies = {name: buffers[name].clone() for name in self.buffers}
        return {name: parameters[name] for name in self.frozen} | copies

    def without_gradient(self, outputs: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
        """The outputs that no gradient leads from to what needs one: integers, and what the module has detached."""
        graph = self.model._reached
        trained = {name for name, is_needed in zip([*self.inputs, *self.parameters], needed) if is_needed}
        live = [[place == number for place in range(len(outputs))] for number in range(len(outputs))]
        return [
            value
            for value, alone in zip(outputs, live)
            if not (value.is_floating_point() or value.is_complex()) or not trained & graph.from_outputs(alone)
        ]

    def seed(self) -> int:
        """The seed of a forward pass and its backward pass: from PyTorch's generator, if they draw random numbers."""
        return int(torch.randint(2**63 - 1, ()).item()) if self.model._native.is_random() else 0

    def forward(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
        seed: int,
    ) -> list[Any]:
        """The outputs. Buffers that the module changes are changed in place, as by the module itself."""
        with self._ready(_FORWARD, module, inputs, parameters, kept) as (running, fed):
            found = running.native.run(fed, self.outputs + self.buffers, seed)
            return self._returned(module, found)

    def forward_of_training(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
        seed: int,
        differentiated: Sequence[str],
        token: object,
    ) -> list[Any]:
        """The outputs, as of ``forward``. A backward pass may follow, which is given the same token."""
        with self._ready(_training(differentiated), module, inputs, parameters, kept) as (running, fed):
            running.paused = None
            found = running.native.forward(fed, self.outputs + self.buffers, seed)
            running.paused = token
            return self._returned(module, found)

    def _returned(self, module: torch.nn.Module, found: Sequence[Any]) -> list[Any]:
        if self.buffers:
            named = dict(module.named_buffers(remove_duplicate=False))
            with torch.no_grad():
                for name, value in zip(self.buffers, found[len(self.outputs) :]):
                    named[name].copy_(to_torch(value, named[name].is_complex()))
        return [brought(to_torch(value, is_complex), device) for value, (device, is_complex) in zip(found, self.model._kinds)]

    def backward(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
        seed: int,
        differentiated: Sequence[str],
        cotangents: Sequence[Any],
        needed: Sequence[bool],
        token: object,
    ) -> list[Any]:
        """The gradients with respect to inputs and parameters, None where one is not needed."""
        count = len(self.inputs)
        # As in PyTorch, what no gradient reaches has none, and not zeros.
        graph = self.model._reached
        unreached = graph.names - graph.from_outputs([cotangent is not None for cotangent in cotangents])
        names = [*self.inputs, *self.parameters]
        needed = [is_needed and name not in unreached for name, is_needed in zip(names, needed)]
        of_inputs = [f"grad.{name}" for name, is_needed in zip(self.inputs, needed) if is_needed]
        of_parameters = [f"grad.{name}" for name, is_needed in zip(self.parameters, needed[count:]) if is_needed]
        kind = _training(differentiated)
        if kind not in self._passes or self._passes[kind].paused is not token:
            with self._ready(kind, module, inputs, parameters, kept) as (running, fed):
                running.native.forward(fed, [], seed)
        with self._running(kind, "partita::backward") as running:
            running.paused = None
            fed = []
            for name, cotangent in zip(self.outputs, cotangents):
                if f"cotangent.{name}" in running.read:
                    dtype, shape = self.types[name]
                    value = torch.zeros(shape) if cotangent is None else cotangent
                    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
                    fed.append((f"cotangent.{name}", pack(value.to(FLOATS[dtype]))))
            copied, lent = (of_inputs, of_parameters) if self._lends else (of_inputs + of_parameters, [])
            packed = running.native.backward(fed, copied, lent)
            wanted = [value for value, is_needed in zip([*inputs, *parameters], needed) if is_needed]
            found = [to_torch(value, of.is_complex()) for value, of in zip(packed, wanted)]
            running.lending(found[len(copied) :])
        # Each on the device of its tensor, as autograd demands. What is copied there is no longer lent.
        gradients = iter(found)
        return [
            brought(next(gradients), value.device) if is_needed else None
            for value, is_needed in zip([*inputs, *parameters], needed)
        ]

    @contextmanager
    def _ready(
        self,
        kind: tuple[str, ...],
        module: torch.nn.Module,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
    ) -> Iterator[tuple[Pass, list[Any]]]:
        """A program for a forward pass, with what it keeps, and what it is fed."""
        with self._running(kind, "partita::forward") as running:
            if self._prepare(running, module, parameters):
                yield running, self._fed(running, inputs, kept)
                return
            self._close(kind)
        with self._running(kind, "partita::forward") as running:
            self._prepare(running, module, parameters)
            yield running, self._fed(running, inputs, kept)

    def _prepare(self, running: Pass, module: torch.nn.Module, parameters: Sequence[Any]) -> bool:
        """Brings parameters to the ranks. False if someone sees memory that a pass would overwrite: it needs other memory."""
        try:
            running.release(module)
            for name, value in zip(self.parameters, parameters):
                running.settle(name, value)
        except Occupied as occupied:
            self._lends = self._lends and not occupied.by_gradients
            return False
        return True

    def _fed(self, running: Pass, inputs: Sequence[Any], kept: dict[str, Any]) -> list[Any]:
        """What a run is fed, beside parameters; sets what it keeps."""
        fed = [(name, pack(value)) for name, value in zip(self.inputs, inputs) if name in running.read]
        for name, value in kept.items():
            if name in running.read:
                fed.append((name, pack(value)))
            else:
                running.native.set(name, pack(value))
        return fed


class _Step(torch.autograd.Function):
    """A planned pass: inputs, then parameters; all outputs."""

    @staticmethod
    def forward(ctx: Any, programs: Programs, module: torch.nn.Module, *tensors: Any) -> tuple[Any, ...]:
        ctx.programs, ctx.kept, ctx.seed = programs, programs.kept(module), programs.seed()
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        count = len(programs.inputs)
        ctx.token, ctx.module = object(), module
        needed = zip(programs.inputs, ctx.needs_input_grad[2:])
        ctx.differentiated = [name for name, is_needed in needed if is_needed]
        outputs = programs.forward_of_training(
            module, tensors[:count], tensors[count:], ctx.kept, ctx.seed, ctx.differentiated, ctx.token
        )
        ctx.mark_non_differentiable(*programs.without_gradient(outputs, ctx.needs_input_grad[2:]))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        _check_transforms(cotangents)
        return (None, None, *_Gradients.apply(ctx, len(cotangents), *cotangents, *ctx.saved_tensors))


class _Output(torch.autograd.Function):
    """One of several outputs, as a node of its own in the graph of autograd."""

    @staticmethod
    def forward(_: Any, value: Any) -> Any:
        return value.data

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient


class _Gradients(torch.autograd.Function):
    """The backward pass of a step: its cotangents, then what it saved; all gradients. They have no gradients."""

    @staticmethod
    def forward(_: Any, step: Any, outputs: int, *tensors: Any) -> tuple[Any, ...]:
        count = outputs + len(step.programs.inputs)
        inputs, parameters, needed = tensors[outputs:count], tensors[count:], step.needs_input_grad[2:]
        step.module._planning.passed.has = True
        with step.module._planning.lock:
            gradients = step.programs.backward(
                step.module,
                inputs,
                parameters,
                step.kept,
                step.seed,
                step.differentiated,
                tensors[:outputs],
                needed,
                step.token,
            )
        return tuple(gradients)

    @staticmethod
    def backward(*_: Any) -> Any:
        raise refuse(
            "E392",
            "a planned module has no gradients of its gradients",
            expected="one backward pass through each forward pass",
            found="a backward pass through a backward pass, as of create_graph=True",
            help="compute what needs it with the module itself",
        )


@dataclass
class Entry:
    """The programs for the calls of one key, and how they fit the module as it is in these calls."""

    programs: Programs
    places: list[int]
    """Where the parameters of the programs are among all parameters of the module."""
    effects: Effects
    constants: Constants


class Planning:
    """What a planned module has beside its tensors: the class of the user's module, the plan, the mesh, the programs."""

    kind: type[torch.nn.Module]
    """The class of the user."""

    same: Any = None
    """Of a module with replaced parts: a ``partita._replaced.Same``."""

    may_repeat = False
    """Whether ranks along an axis of the mesh may all do the same: of a schedule in the making, which is only verified."""

    passed: Passed
    """Whether a backward pass has gone through the module."""

    told: Told
    """What the program was told about it."""

    printed: Printed | None = None
    """What it prints, if it was built by a schedule that shows it."""

    _over: tuple[dict[str, Any], Any] = {}, None
    """What a parametrization has put over that class, and the class with it."""

    plain: Any = None
    """The planned module as one of the user's class, once it has been exported."""

    lock: threading.RLock
    """One thread at a time runs the module: while it is exported, other tensors are in the place of its own."""

    def __init__(self, kind: type[torch.nn.Module], plan: Plan, mesh: Mesh, same: Any = None) -> None:
        self.kind, self.plan, self.mesh, self.same = kind, plan, mesh, same
        self.homes, self.lock, self.passed, self.told = Homes(), threading.RLock(), Passed(), Told()
        self._begin()

    def _begin(self) -> None:
        self.programs: dict[str, Programs] = {}
        """By the text of what was exported."""
        self._entries: dict[tuple[Any, Key], Entry] = {}
        self._trees: list[Tree] = []
        self._ran = Ran()

    def kind_of(self, module: torch.nn.Module) -> type[torch.nn.Module]:
        """The class that a module would have if it were not planned. Parametrizations put a class over the planned one."""
        kinds = type(module).__mro__
        found: dict[str, Any] = {}
        for kind in reversed(kinds[: kinds.index(self.kind) - 1]):
            found |= members_over(kind)
        if found and self._over[0] != found:
            self._over = found, type(type(module).__name__, (self.kind,), found)
        return self._over[1] if found else self.kind

    def original(self, module: torch.nn.Module) -> torch.nn.Module:
        """The user's module with the tensors of the planned one."""
        plain: torch.nn.Module = object.__new__(self.kind_of(module))
        plain.__dict__.update({name: value for name, value in module.__dict__.items() if name != "_planning"})
        return plain

    def forget(self) -> None:
        """All programs are planned anew when they are needed."""
        for programs in self.programs.values():
            programs.close()
        self._begin()

    def look(self, module: torch.nn.Module) -> Tree:
        """The module as it is now. Of those that were met last, most often it is one."""
        for place, tree in enumerate(self._trees):
            if tree.is_current():
                if place:
                    self._trees.insert(0, self._trees.pop(place))
                return tree
        tree = Tree(module, self.kind_of(module), self._ran)
        self._trees = [tree, *self._trees[:2]]
        return tree

    def find(self, call: Call) -> Programs:
        """The programs for these inputs, exported and planned if they are new."""
        return self.entry(call).programs

    def entry(self, call: Call) -> Entry:
        """The programs for these inputs, exported and planned if they are new, and how they fit the module."""
        key = (call.key(), call.tree.key)
        found = self._entries.get(key)
        if found is None or not found.constants.are_current(call.module, call.tree):
            self._entries.pop(key, None)
            found = self._made(call, key[0])
            self._entries[key[0], call.tree.key] = found
            self._drop(key[0])
        return found

    def _drop(self, arguments: Any) -> None:
        """Forgets what was exported for these arguments long ago, and programs that no call has any more."""
        old = [key for key in self._entries if key[0] == arguments][:-_MOST]
        for key in old:
            del self._entries[key]
        used = {id(entry.programs) for entry in self._entries.values()}
        for text, programs in list(self.programs.items()):
            if id(programs) not in used:
                programs.close()
                del self.programs[text]

    def _made(self, call: Call, arguments: Any) -> Entry:
        """A new entry. If the pass leaves another state behind, in which it is the same, that has an entry too."""
        module, args, kwargs = call.module, call.args, call.kwargs
        tell(self.told, self.kind_of(module).__name__, [*tensors_of(module), *call.inputs])
        if not self.programs and _launched.is_launched():
            tensors = [*module.named_parameters(), *module.named_buffers()]
            _launched.compare("weights", ((name, pack(value)) for name, value in tensors))
        found = traced(module, args, kwargs, call.tree, kind=self.kind_of(module), keeps=True)
        if found.cache is not None:
            self.told.say("cache", _caches.note(self.kind_of(module).__name__, found.cache))
        if found.tree is not call.tree:
            call.tree, self._ran = found.tree, found.tree.ran
            self._trees = [call.tree]
        # What is saved says which parameters are trained. A program has all gradients: which of them are needed is asked in
        # each pass.
        floats = [value for value in module.parameters() if value.is_floating_point() or value.is_complex()]
        frozen = [value for value in floats if not value.requires_grad]
        try:
            for value in frozen:
                value.requires_grad_(True)
            model = _export._imported(found.program, module)
            constants = Constants(module, call.tree, found.constants, model)
            text = found.text + constants.digest()
            if text not in self.programs:
                self.programs[text] = Programs(module, model, self.plan, self.mesh, self.homes, self.may_repeat)
        finally:
            for value in frozen:
                value.requires_grad_(False)
        if self.same is not None:
            self.same.check(args, kwargs)
        programs = self.programs[text]
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        places = [names.index(name) for name in programs.parameters]
        if found.again is not None:
            later = found.again
            self._entries[arguments, later.tree.key] = Entry(
                programs, places, later.effects, Constants(module, later.tree, later.constants, model)
            )
        return Entry(programs, places, found.effects, constants)


class Call:
    """A call of a planned module: the tensors in its arguments, and the module as it is."""

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.leaves: Sequence[Any] = args
        self._spec: Any = len(args)
        if kwargs or not all(isinstance(value, torch.Tensor) for value in args):
            self.leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.inputs = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.tree = module._planning.look(module)

    def key(self) -> Any:
        """What tells the programs of two calls apart, beside the module."""
        inputs = tuple([_told(leaf) for leaf in self.leaves])
        return inputs, self._spec, casts(), torch.is_grad_enabled()


def _told(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        strides = leaf.stride() if leaf.layout == torch.strided else None
        return leaf.shape, strides, leaf.dtype, leaf.requires_grad, leaf.device
    return described(leaf)


@functools.lru_cache(maxsize=None)
def planned_forward() -> Any:
    """The ``forward`` of planned modules. ``torch.compile`` calls it as it is: its code is no code of the user."""
    return torch.compiler.disable(_forward)


@spelled
def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    with self._planning.lock:
        return _locked_forward(self, args, kwargs)


def _check_transforms(values: Sequence[Any] = ()) -> None:
    """E392 inside a transform of ``torch.func``, and while PyTorch records ops of tensors that have no values."""
    found = None
    kinds = torch._C._functorch
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if kinds.peek_interpreter_stack() is not None or any(map(kinds.is_legacy_batchedtensor, tensors)):
        found = "a transform of torch.func, such as grad or vmap"
    elif torch._C._get_tracing_state() is not None:
        found = "torch.jit.trace"
    elif any(isinstance(value, FakeTensor) or torch._is_functional_tensor(value) for value in tensors):
        found = "an export, or a mode of tensors without values"
    if found is not None:
        raise refuse(
            "E392",
            "a planned module runs programs of its own, which transforms of PyTorch cannot look into",
            expected="calls with tensors, and backward() or torch.autograd.grad",
            found=found,
            help="transform the module itself, and plan what comes out; or call the planned module outside",
        )


def _check_memory(call: Call) -> None:
    """E415 for tensors that have no values, or not element by element."""
    for value in call.inputs:
        if value.device.type == "meta" or value.layout != torch.strided:
            raise refuse(
                "E415",
                f"{call.module._planning.kind_of(call.module).__name__} is called with a tensor that it cannot read",
                expected="dense tensors with values",
                found=f"a tensor on {value.device} with the layout {value.layout}",
            )


def _locked_forward(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_transforms()
    call = Call(self, args, kwargs)
    _check_transforms(call.inputs)
    _check_memory(call)
    entry = self._planning.entry(call)
    programs = entry.programs
    if _launched.checks_inputs():
        _launched.compare("inputs", ((name, pack(value)) for name, value in zip(programs.inputs, call.inputs)))
    inputs = entry.effects.separate(call.inputs, call.leaves) if entry.effects.written else call.inputs
    parameters = [call.tree.parameters[place] for place in entry.places]
    if programs.model._ranges:
        limited = zip(programs.inputs, inputs)
        check_rows(programs.model, ((name, pack(value)) for name, value in limited if name in programs.model._ranges))
    is_differentiated = torch.is_grad_enabled() and any(value.requires_grad for value in [*inputs, *parameters])
    if is_differentiated:
        outputs = list(_Step.apply(programs, self, *inputs, *parameters))
        if len(outputs) > 1:
            # A hook on one of them runs only if a gradient reaches it.
            outputs = [_Output.apply(value) if value.requires_grad else value for value in outputs]
    else:
        outputs = programs.forward(self, inputs, parameters, programs.kept(self), programs.seed())
    returned = programs.model._returned(outputs)
    if not (entry.effects.changes or entry.effects.written):
        return returned
    result, kept = returned if entry.effects.types else (returned, [])
    entry.effects.apply(call.tree, kept, call.leaves, pytree.tree_leaves(result))
    return result


def planned_module(module: torch.nn.Module, plan: Plan, mesh: Mesh, same: Any = None) -> Any:
    """A copy of a module whose passes run on a mesh under a plan. It is an instance of the module's class. If parts of it
    replace others, ``same`` is a ``partita._replaced.Same``, which compares them once for each shape.

    Calling it raises ``PartitaError``: E414, E415 and E430 for arguments that the module does not take, E423 for indices out
    of range, E390 and E391 for what PyTorch cannot export, E396 for what ``forward`` changes in each call, E392 for gradients
    of gradients and transforms, E395 for launched processes with different tensors, E251 for a replaced part that computes
    another thing, and what the plan refuses.
    """
    _partita.check_alone()
    planned = _planned(copied(module), plan, mesh, same)
    note(module, planned._planning.passed)
    return planned


def _planned(module: Any, plan: Plan, mesh: Mesh, same: Any, printed: Printed | None = None) -> Any:
    """The module itself, planned."""
    over, kind = None, type(module)
    if is_over(module):
        over, kind = kind, kind.__bases__[0]
    plain: Any = kind
    module._planning = Planning(kind, plan, mesh, same)
    module._planning.printed = printed

    def reduce(self: Any, protocol: int) -> Any:
        return _planned, (self._planning.original(self), plan, mesh, same, self._planning.printed)

    def text(self: Any) -> str:
        shown = self._planning.printed
        return shown.text if shown is not None and shown.fits(self) else str(plain.__repr__(self))

    def whole(self: Any) -> str:
        shown = self._planning.printed
        return shown.whole if shown is not None and shown.fits(self) else str(plain.__str__(self))

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        original, printed = self._planning.original(self), self._planning.printed
        memo[id(self)] = made = _planned(copied(original, memo), plan, mesh, same, printed)
        return made

    own = {"forward": planned_forward(), "__reduce_ex__": reduce, "__deepcopy__": deepcopy, "__repr__": text, "__str__": whole}
    planned: Any = type(kind.__name__, (kind,), own)
    if over is not None:
        planned = type(over.__name__, (planned,), members_over(over))
    module.__class__ = planned
    return module
