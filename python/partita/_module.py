"""Modules of PyTorch under a plan: forward and backward passes of the ranks as one function of autograd.

A planned module is a copy of the user's module whose ``forward`` runs planned programs. For each training mode and each
shape of inputs it is exported and planned once, when it is first called so. Parameters remain those of PyTorch, so any
optimizer, hook or scheduler works; each forward pass copies them to the ranks. Both passes are one program, which
pauses between them and keeps its activations in the ranks' memory. Only if another forward pass came in between, or a
backward pass runs twice, the forward pass is computed again, with the same random numbers. ``partita.Trainer`` copies
nothing, and is faster.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _export, _partita
from partita._error import refuse
from partita._load import Model
from partita._observed import observe
from partita._partita import Mesh, Plan
from partita._tensors import pack, to_torch


_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
_FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


class Programs:
    """The planned programs of a module in one mode, for inputs of one shape."""

    def __init__(self, module: torch.nn.Module, model: Model, plan: Plan, mesh: Mesh) -> None:
        native = model._native
        self.model: Any = model
        self.plan, self.mesh = plan, mesh
        self.inputs = list(model.inputs)
        self.outputs = list(model.outputs)
        self.parameters = [name for name, _, _ in native.parameters()]
        self.frozen: list[str] = []
        self.buffers: list[str] = []
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, _, _ in native.states():
            (self.frozen if name in parameters else self.buffers).append(name)
        self.real = [name for name in self.inputs if model.inputs[name][0] in _FLOATS]
        named = dict(module.named_buffers(remove_duplicate=False))
        # The programs contain the values of buffers that the module only reads.
        self.constants = {name: value.clone() for name, value in named.items() if name not in self.buffers}
        self._passes: dict[str, _partita.Executable] = {}
        # Which forward pass the activations of the training program belong to.
        self._paused: object | None = None

    @contextmanager
    def _running(self, kind: str, name: str) -> Iterator[_partita.Executable]:
        """A program, planned when it is first needed; and again after an error in it, such as Ctrl-C, which ended its
        ranks. ``name`` is what a profiler calls its pass."""
        if kind not in self._passes:
            self._passes[kind] = _partita.Executable(self.model._native, self.plan, self.mesh, kind)
        running = self._passes[kind]
        try:
            with observe(name, running):
                yield running
        except BaseException:
            self._passes.pop(kind, None)
            self._paused = None
            raise

    def is_current(self, module: torch.nn.Module) -> bool:
        """Whether the buffers that the programs contain still have the same values."""
        named = dict(module.named_buffers(remove_duplicate=False))
        same = (name in named and torch.equal(named[name], value) for name, value in self.constants.items())
        return all(same)

    def kept(self, module: torch.nn.Module) -> dict[str, Any]:
        """The tensors that are neither inputs nor trained: frozen parameters, and copies of changing buffers."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        copies = {name: buffers[name].clone() for name in self.buffers}
        return {name: parameters[name] for name in self.frozen} | copies

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
        token: object | None = None,
    ) -> list[Any]:
        """The outputs. Buffers that the module changes are changed in place, as by the module itself. With a token, a
        backward pass may follow, which is given the same token."""
        names = self.outputs + self.buffers
        with self._running("forward" if token is None else "training", "partita::forward") as running:
            fed = self._feed(running, inputs, parameters, kept)
            if token is None:
                found = running.run(fed, names, seed)
            else:
                self._paused = None
                found = running.forward(fed, names, seed)
                self._paused = token
            values = [to_torch(value) for value in found]
        named = dict(module.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for name, value in zip(self.buffers, values[len(self.outputs) :]):
                named[name].copy_(value)
        return values[: len(self.outputs)]

    def backward(
        self,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
        seed: int,
        cotangents: Sequence[Any],
        needed: Sequence[bool],
        token: object,
    ) -> list[Any]:
        """The gradients with respect to inputs and parameters, None where one is not needed."""
        names = [name for name, is_needed in zip(self.inputs + self.parameters, needed) if is_needed]
        if self._paused is not token:
            with self._running("training", "partita::forward") as running:
                running.forward(self._feed(running, inputs, parameters, kept), [], seed)
        self._paused = None
        with self._running("training", "partita::backward") as running:
            fed = []
            read = running.inputs()
            for name, cotangent in zip(self.outputs, cotangents):
                if f"cotangent.{name}" in read:
                    dtype, shape = self.model.outputs[name]
                    value = torch.zeros(shape) if cotangent is None else cotangent
                    fed.append((f"cotangent.{name}", pack(value.to(_FLOATS[dtype]))))
            found = running.backward(fed, [f"grad.{name}" for name in names])
        gradients = iter([to_torch(value) for value in found])
        return [next(gradients) if is_needed else None for is_needed in needed]

    def _feed(
        self,
        executable: _partita.Executable,
        inputs: Sequence[Any],
        parameters: Sequence[Any],
        kept: dict[str, Any],
    ) -> list[Any]:
        """Sets what the executable keeps, and returns what a run is fed."""
        read, fed = executable.inputs(), []
        for name, value in [*zip(self.inputs, inputs), *zip(self.parameters, parameters), *kept.items()]:
            if name in read:
                fed.append((name, pack(value)))
            elif name not in self.inputs:
                executable.set(name, pack(value))
        return fed


class _Step(torch.autograd.Function):
    """A planned pass: inputs, then parameters; all outputs."""

    @staticmethod
    def forward(ctx: Any, programs: Programs, module: torch.nn.Module, *tensors: Any) -> tuple[Any, ...]:
        ctx.programs, ctx.kept, ctx.seed = programs, programs.kept(module), programs.seed()
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        count = len(programs.inputs)
        ctx.token = object()
        outputs = programs.forward(module, tensors[:count], tensors[count:], ctx.kept, ctx.seed, ctx.token)
        ctx.mark_non_differentiable(*[value for value in outputs if not value.is_floating_point()])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, None, *_Gradients.apply(ctx, len(cotangents), *cotangents, *ctx.saved_tensors))


class _Gradients(torch.autograd.Function):
    """The backward pass of a step: its cotangents, then what it saved; all gradients. They have no gradients."""

    @staticmethod
    def forward(_: Any, step: Any, outputs: int, *tensors: Any) -> tuple[Any, ...]:
        count = outputs + len(step.programs.inputs)
        inputs, parameters, needed = tensors[outputs:count], tensors[count:], step.needs_input_grad[2:]
        gradients = step.programs.backward(
            inputs, parameters, step.kept, step.seed, tensors[:outputs], needed, step.token
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


class Planning:
    """What a planned module has beside its tensors: the class of the user's module, the plan, the mesh, the programs."""

    same: Any = None
    """Of a module with replaced parts: a ``partita._replaced.Same``."""

    def __init__(self, kind: type[torch.nn.Module], plan: Plan, mesh: Mesh, same: Any = None) -> None:
        self.kind, self.plan, self.mesh, self.same = kind, plan, mesh, same
        self.programs: dict[Any, Programs] = {}

    def original(self, module: torch.nn.Module) -> torch.nn.Module:
        """The user's module with the tensors of the planned one."""
        plain: torch.nn.Module = object.__new__(self.kind)
        plain.__dict__.update({name: value for name, value in module.__dict__.items() if name != "_planning"})
        return plain

    def find(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Programs:
        """The programs for these inputs, exported and planned if they are new."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        inputs = tuple(
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves
        )
        parameters = tuple(value.dtype for value in module.parameters())
        modes = tuple(child.training for child in module.modules())
        # Types of numbers that PyTorch casts to are a part of the program.
        cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (inputs, str(spec), parameters, modes, cast)
        if key not in self.programs or not self.programs[key].is_current(module):
            plain = self.original(module)
            # The hooks of the module itself run around its passes; those of modules inside are a part of the program.
            plain.__dict__.update({name: OrderedDict() for name in plain.__dict__ if name.endswith(_HOOKS)})
            # A program has all gradients: which of them are needed is asked in each pass.
            frozen = [value for value in module.parameters() if not value.requires_grad and value.is_floating_point()]
            try:
                for value in frozen:
                    value.requires_grad_(True)
                # What is saved says which parameters are trained.
                exported = _export._exported(plain, args, kwargs)
                model = _export._imported(exported, plain, None, None)
            finally:
                for value in frozen:
                    value.requires_grad_(False)
            if self.same is not None:
                self.same.check(args, kwargs)
            self.programs[key] = Programs(module, model, self.plan, self.mesh)
        return self.programs[key]


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    programs = self._planning.find(self, args, kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    named = dict(self.named_parameters(remove_duplicate=False))
    parameters = [named[name] for name in programs.parameters]
    is_differentiated = torch.is_grad_enabled() and any(value.requires_grad for value in [*inputs, *parameters])
    if is_differentiated:
        for name, value in zip(programs.inputs, inputs):
            if value.requires_grad and name not in programs.real[:1]:
                raise refuse(
                    "E392",
                    f"a planned module has no gradient with respect to its input `{name}`",
                    expected=f"gradients with respect to parameters and to `{programs.real[0]}`",
                    found=f"`{name}` requires a gradient",
                    help="detach the input",
                )
        outputs = list(_Step.apply(programs, self, *inputs, *parameters))
    else:
        outputs = programs.forward(self, inputs, parameters, programs.kept(self), programs.seed())
    return programs.model._returned(outputs)


def planned_module(module: torch.nn.Module, plan: Plan, mesh: Mesh, same: Any = None) -> torch.nn.Module:
    """A copy of a module whose passes run on a mesh under a plan. It is an instance of the module's class. If parts of it
    replace others, ``same`` is a ``partita._replaced.Same``, which compares them once for each shape.

    Calling it raises ``PartitaError``: E390 and E391 for what PyTorch cannot export, E392 for gradients of further inputs
    and of gradients,
    E251 for a replaced part that computes another thing, and what the plan refuses.
    """
    return _planned(copy.deepcopy(module), plan, mesh, same)


def _planned(module: Any, plan: Plan, mesh: Mesh, same: Any) -> torch.nn.Module:
    """The module itself, planned."""
    kind = type(module)
    module._planning = Planning(kind, plan, mesh, same)

    def reduce(self: Any, protocol: int) -> Any:
        return _planned, (self._planning.original(self), plan, mesh, same)

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        memo[id(self)] = made = _planned(copy.deepcopy(self._planning.original(self), memo), plan, mesh, same)
        return made

    module.__class__ = type(
        kind.__name__, (kind,), {"forward": _forward, "__reduce_ex__": reduce, "__deepcopy__": deepcopy}
    )
    planned: torch.nn.Module = module
    return planned
