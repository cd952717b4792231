"""Training with the optimizer inside the planned step: the fast way."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partita import _launched, _partita, optim
from partita._devices import at_home, tell, tensors_of
from partita._error import refuse
from partita._partita import PartitaError
from partita._load import Model, named_inputs
from partita._observed import observe
from partita._partita import Mesh, Plan
from partita._rows import check_rows
from partita._schedule import mesh_of, plan_of, step_options
from partita._spelled import in_python, spelled
from partita._tensors import pack, to_numpy, to_torch
from partita._working import working

# The factor of the loss in the first step in f16, as docs/PRECISION.md says.
_FIRST_SCALE = 65536.0

if TYPE_CHECKING:
    from partita._followed import Update
    from partita._values import Values

__all__ = ["Trainer"]


class Trainer:
    """A model that trains on a mesh under a plan. All ranks run in this process, without the interpreter lock. (On the
    runtime of PyTorch, a module runs under a plan by ``partita.torch.apply``.)

    ``plan`` is a ``Plan``, a text, a dictionary from module patterns to styles, or None, which shards the batch, and over an
    axis ``fsdp`` parameters too.
    Of a model from a module, what its code and its loss read is looked at before each step: a change of an attribute, or of a
    replaced part, counts. So do values that a program gives parameters and buffers, as long as they are those of the trainer:
    steps train the values on the ranks, and leave the module as it is. The mode is that of the module as the trainer was made.

    ``optimizer`` is one of ``partita.optim``, its name, or a new ``torch.optim.SGD``, ``Adam``, ``AdamW`` or ``Adafactor``
    over parameters of the module; AdamW by default. Of PyTorch's, groups, options and learning rates are read before each
    step, so its schedulers work; what is in no group is not trained; its parameters and states stay as they are. With
    ``microbatches``, the gradients of the parts of a batch are summed before the update. Parameters that the loss does not
    depend on are left alone, as by optimizers of PyTorch. With ``precision="bf16"`` the model computes in bf16
    while parameters, their gradients and updates keep f32; ``precision="f16"`` also scales the loss, and skips steps whose
    gradients are not finite. ``"mxfp8"``, ``"f8-block"`` and ``"f8-delayed"`` round the operands of matmuls to 8 bits.

    Raises ``PartitaError``: E055 for a model without a loss, E057 for an optimizer that a planned step cannot have or a
    number of it out of range, E391 for hooks of gradients, which no step would run, E396 for what ``forward`` changes in
    each call, E398 for parameters that share memory, E399 (of a step) for values put over old ones of the module, E395 for
    launched processes with different weights, what the plan refuses, E394 for what PyTorch cannot run.
    """

    @spelled
    def __init__(
        self,
        model: Model,
        plan: Plan | str | Mapping[str, Any] | None,
        mesh: Mesh | str,
        optimizer: Any = None,
        *,
        microbatches: int = 1,
        clip_grad_norm: float | None = None,
        sequence_parallel: bool = False,
        precision: str | None = None,
        seed: int = 0,
        engine: str = "native",
        _options: dict[str, Any] | None = None,
    ) -> None:
        if engine != "native":
            raise refuse(
                "E394",
                f"a trainer has no engine {engine}",
                expected="native",
                found=engine,
                help="partita.torch.apply runs a plan on a module of your own, on PyTorch's runtime" if engine == "torch" else None,
            )
        _partita.check_alone()
        # What the module is now, also if it has changed since it was loaded.
        self._whole = self.model = model = model._current()
        self.mesh = mesh_of(mesh)
        self.plan = plan_of(plan, model, self.mesh)
        followed, options = step_options(model, optimizer, microbatches, clip_grad_norm, sequence_parallel, precision)
        if _options is not None:
            options = _options | {key: options[key] for key in ("optimizer", "decay_1d", "groups")}
        self._followed, self._options, self._seed = followed, options, seed
        self._update = None if followed is None else followed.read()
        self._rule = None if followed is not None else optim.of(optimizer)
        self._lr = 0.0 if self._rule is None else self._rule.lr
        self._precision = precision
        self.grad_norm: float | None = None
        # The states of parameters that are not trained now, by name.
        self._left: dict[str, Any] = {}
        if _launched.is_launched():
            native = model._native
            names = [name for name, _, _ in native.parameters() + native.states()]
            found = ((name, native.value(name)) for name in names)
            _launched.compare("weights", ((name, value) for name, value in found if value is not None))
        _check_module(model)
        if self._update is not None:
            self.model = _only(model, self._update)
        self._native: _partita.Trainer | _Lost = self._made()
        self._named: tuple[_partita.Model, list[str], list[str]] | None = None
        self._values = self._watched()
        self._told = model._told
        tell(self._told, self._kind(), tensors_of(model._module))
        # Whether a step has failed so that no other one can follow.
        # The error after which the ranks stopped.
        self._failure: PartitaError | None = None

    def _kind(self) -> str:
        """What messages call the model."""
        return "the model" if self.model._module is None else type(self.model._module).__name__

    def _made(self) -> _partita.Trainer:
        """New ranks with the parameters of the model."""
        with working("planning the training step"):
            return _partita.Trainer(self.model._native, self.plan, self.mesh, self._options, self._seed)

    def _watched(self) -> Values | None:
        """The values of the module that the model came from, which programs may change."""
        module, taken = self.model._module, self._whole._taken
        if module is None or taken is None:
            return None
        from partita._values import Values

        return Values(module, self._names()[0], taken.tree)

    def _reset_states(self) -> None:
        """States that a program has taken out of an optimizer of PyTorch begin anew."""
        names = [] if self._followed is None else self._followed.cleared(self.steps)
        for name in names:
            self._left = {state: value for state, value in self._left.items() if not state.endswith(f".{name}")}
        held = set(self._native.names()) if names else set()
        for state in [f"optimizer.momentum_buffer.{name}" for name in names]:
            if state in held:
                kind, shape, data = self._native.get(state)
                self._native.set(state, (kind, list(shape), data * 0))
        if names and self._followed is not None:
            self._followed.mark()

    def _names(self) -> tuple[list[str], list[str]]:
        """The parameters and buffers that the ranks have values of, and those of them that steps change."""
        native, module = self.model._native, self.model._module
        if self._named is None or self._named[0] is not native:
            trained, states = ([name for name, _, _ in found] for found in (native.parameters(), native.states()))
            frozen = set() if module is None else {name for name, _ in module.named_parameters(remove_duplicate=False)}
            self._named = native, trained + states, trained + [name for name in states if name not in frozen]
        return self._named[1], self._named[2]

    def _take_values(self) -> None:
        """What a program has put into the module goes to the ranks."""
        if self._values is not None and self._whole._taken is not None and not isinstance(self._native, _Lost):
            self._values.take(self._names()[0], self._whole._taken.tree, self._native)

    def _fall_behind(self, names: list[str]) -> None:
        """The module has not the values of these names that the ranks have now."""
        if self._values is not None:
            self._values.fall_behind(names)

    def _follow(self) -> None:
        """Plans the step again if the code of the module, what it reads, or the optimizer of PyTorch has changed by more than
        its learning rates. Parameters, states and steps stay."""
        if isinstance(self._native, _Lost):
            return
        whole = self._whole if self._whole._taken is None else self._whole._taken.followed(self._whole)
        taken = whole._taken
        update = None if self._followed is None else self._followed.read(None if taken is None else taken.tree)
        self._reset_states()
        is_same = whole is self._whole or _text(whole) == _text(self._whole)
        if is_same and (update is None or self._update is None or update.groups == self._update.groups):
            self._whole, self._update = whole, update
            return
        before = self.model, self._options
        try:
            self.model = whole
            if update is not None and self._update is not None:
                from partita._followed import check_added

                check_added(self._update, update, self.steps)
                self.model, self._options = _only(whole, update), self._options | update.options()
            _check_module(self.model)
            native: Any = self._made()
            native.continue_from(self._native)
        except BaseException:
            self.model, self._options = before
            raise
        # An optimizer of PyTorch keeps the states of a parameter that is frozen for some steps.
        had, has = set(self._native.names()), set(native.names())
        for name in had - has:
            self._left[name] = self._native.get(name)
        for name in (has - had) & self._left.keys():
            native.set(name, self._left.pop(name))
        self._whole, self._update, self._native = whole, update, native

    @spelled
    def step(self, batch: Any, lr: float | None = None) -> float:
        """One step on a global batch, and its loss.

        ``batch`` has the inputs of the model, in their order or by name: tensors of PyTorch, arrays, or lists. ``lr`` is
        the learning rate of this step, by default the attribute ``lr``, which a program may change. Afterwards the
        attribute ``grad_norm`` has the norm of the gradients, if they are clipped.

        Ctrl-C ends it with ``KeyboardInterrupt``; what is in memory is then lost, and the trainer continues with ``load``.

        Raises ``PartitaError``: E414, E415 and E430 for tensors that are unknown, of another shape or type, or missing;
        E412 if the loss is not finite, which changes nothing: the next batch trains as if this one had not been tried; E423
        for an index that PyTorch refuses; E427 after Ctrl-C.
        """
        if self._failure is not None:
            raise refuse(
                self._failure.code,
                "an earlier step failed, and the ranks of this trainer have stopped",
                expected="a trainer whose steps have all ended well",
                found=f"in step {self.steps + 1}: {self._failure.message}",
                help="continue from the last checkpoint: trainer.load(folder), in this trainer or a new one",
            )
        self._follow()
        self._take_values()
        types = self.model.inputs
        given = named_inputs(self.model, batch).items()
        tell(self._told, self._kind(), (value for _, value in given))
        packed = [(name, pack(value, types[name][0] if name in types else None)) for name, value in given]
        if _launched.checks_inputs():
            _launched.compare("inputs", packed)
        check_rows(self.model, packed)
        rates, steps = self._rates(lr), self.steps
        try:
            with observe("partita::step", self._native):
                loss, self.grad_norm = self._native.step(packed, rates)
        except BaseException as error:
            if isinstance(error, PartitaError) and error.code in _FATAL:
                self._failure = error
            if isinstance(error, KeyboardInterrupt) and self.steps == steps:
                # The ranks stopped in the middle of a step. Their folder of checkpoints is free again.
                self._native = _Lost(steps)
            raise
        self._fall_behind(self._names()[1])
        if self._followed is not None:
            self._followed.stepped()
            self._followed.mark()
        return loss

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None where the loss is not scaled."""
        if self._precision != "f16":
            return None
        # The state is 0 until a step has set it, as all states are: the step then takes the first scale.
        return float(to_numpy(self._native.get("optimizer.scale.loss"))) or _FIRST_SCALE

    @property
    def lr(self) -> float:
        """The learning rate of the next step; of an optimizer of PyTorch, that of its first group. To set it sets it for all
        groups."""
        return self._lr if self._followed is None else self._followed.read().rates[0]

    @lr.setter
    def lr(self, rate: float) -> None:
        if self._followed is None:
            self._lr = rate
        else:
            self._followed.set_rate(rate)

    def _rates(self, lr: float | None) -> list[float]:
        """The learning rates of the next step."""
        if lr is not None or self._update is None:
            return [self._lr if lr is None else lr]
        return self._update.given()

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._native.steps_taken()

    @property
    def notes(self) -> list[str]:
        """Facts about the planned step, such as idle ranks."""
        return [*map(in_python, self._native.notes()), *self._told.notes]

    @property
    def bytes_on_ranks(self) -> list[int]:
        """The memory of each rank: parameters, states and everything a step computes."""
        return self._native.bytes()

    def state_dict(self) -> dict[str, Any]:
        """Parameters and changing buffers by name, whole, on any mesh: ``module.load_state_dict`` takes them.

        Tensors of PyTorch if the model came from a module (with its constant buffers), arrays of numpy otherwise.
        """
        native = self.model._native
        unpack = to_numpy if self.model._module is None else to_torch
        names = [name for name, _, _ in native.parameters() + native.states()]
        values = at_home({name: unpack(self._native.get(name)) for name in names}, self.model._module)
        values |= {alias: values[name] for alias, name in native.ties()}
        if self.model._module is None:
            return values
        return {name: values.get(name, kept) for name, kept in self.model._module.state_dict().items()}

    @spelled
    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Sets parameters and changing buffers. E415 for another shape or type; ``KeyError`` names what is missing."""
        native = self.model._native
        names = [name for name, _, _ in native.parameters() + native.states()]
        missing = [name for name in names if name not in values]
        if missing:
            raise KeyError(f"missing: {', '.join(missing)}")
        self._fall_behind(names)
        for name in names:
            self._native.set(name, pack(values[name]))

    def optimizer_state(self) -> dict[str, Any]:
        """The states of the optimizer by name, ``optimizer.<state>.<parameter>``, as arrays."""
        own = {name for name, _, _ in self.model._native.parameters()}
        names = [name for name in self._native.names() if name.startswith("optimizer.") and name not in own]
        return {name: to_numpy(self._native.get(name)) for name in names}

    @spelled
    def save(self, folder: str | os.PathLike[str], keep: int = 2) -> pathlib.Path:
        """Saves parameters, buffers, optimizer states and the number of steps in a folder, which keeps the last ``keep``
        checkpoints. Returns the folder of this one; ``model.safetensors`` in it is read by other tools.

        Raises ``PartitaError``: E315 if it cannot be written, E330 and E331 if it belongs to another run.
        """
        from partita import _left

        path = pathlib.Path(self._native.save(folder, keep))
        _left.save(path, self._left)
        return path

    @spelled
    def load(self, folder: str | os.PathLike[str], keep: int = 2, changed: bool = False) -> list[str]:
        """Continues from a checkpoint, or from the newest one of a folder, made on any mesh and under any plan. A
        trainer whose step was interrupted or has failed goes on from there. A folder that another trainer writes to is only
        read: save to another one. Of a model that computes something else on inputs of the same types, or of an optimizer
        with another rule, it is refused, although the tensors are the same, unless ``changed`` is true. Returns what differs
        or could not be compared, a line for each of it.

        Raises ``PartitaError``: E311 to E313 if it cannot be read, E314 with a table if it is of other tensors, E317 if it is
        of another model or rule.
        """
        if self._failure is not None or isinstance(self._native, _Lost):
            self._native, self._failure = self._made(), None
        self._fall_behind(list(self._names()[0]))
        from partita import _left

        notes = self._native.load(folder, keep, changed)
        self._left = _left.load(folder, self.steps)
        if self._followed is not None:
            self._followed.loaded()
        return notes

    def __repr__(self) -> str:
        return f"Trainer({self.model!r} on {self.mesh}, {self.steps} steps)"


# After these the ranks of a trainer run no other step.
_FATAL = ("E410", "E411", "E413", "E417", "E418", "E427", "E443", "E447")


class _Lost:
    """In the place of ranks that Ctrl-C has stopped in the middle of a step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def steps_taken(self) -> int:
        """The steps that were taken as a whole."""
        return self._steps

    def __getattr__(self, name: str) -> Any:
        raise refuse(
            "E427",
            "the step was interrupted",
            expected="a trainer that has its parameters",
            found=f"one that was stopped after {self._steps} steps, in the middle of the next one",
            help="continue from the last checkpoint: trainer.load(folder), in this trainer or a new one",
        )


def _check_module(model: Model) -> None:
    """E391 for hooks on gradients: a planned step has no moment at which they could run. E396 for state outside of buffers,
    which a step has no place for. E398 for parameters that share memory: each would have its own on the ranks."""
    module = model._module
    if module is None:
        return
    if model._taken is not None and model._taken.refused is not None:
        raise model._taken.refused
    held = [(f"the parameter {name}", value) for name, value in module.named_parameters()]
    for name, value in [(f"the module {type(module).__name__}", module), *held]:
        hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
        if any(getattr(value, hook, None) for hook in hooks):
            raise refuse(
                "E391",
                f"{name} has a hook that changes its gradient",
                expected="parameters without hooks: forward pass, backward pass and update are one program",
                found=f"a hook on {name}",
                help="a built module, `sch.build()`, trains with loss.backward() and runs hooks of parameters",
            )
    from partita._apart import sharing

    shared = sharing(module)
    if shared:
        one, other = shared[0]
        raise refuse(
            "E398",
            f"{one} and {other} are two tensors in one memory",
            expected="one parameter with two names, or memory of their own",
            found="; ".join(f"{one} and {other}" for one, other in shared),
            help="assign the parameter itself, instead of its .data; or train a built module, `sch.build()`",
        )


def _text(model: Model) -> Any:
    """The program of a model from a module, and what it trains."""
    return None if model._taken is None else (model._taken.text, list(model.parameters))


def _only(model: Model, update: Update) -> Model:
    """The model with the parameters of an update alone trained."""
    from partita._followed import only

    return only(model, update.names)
