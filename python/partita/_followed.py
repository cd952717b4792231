"""Optimizers of PyTorch that a trainer was made with: the update of a planned step is theirs, option by option.

The classes are those of ``torch.optim``, by identity, and parameters are those of the module, by identity. What is in no
group is not trained. Groups, options and learning rates are read before each step.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from partita import optim
from partita._error import refuse
from partita._load import Model
from partita._partita import PartitaError
from partita._watched import Tree

# The rule of each class, and its options that a step has. AdamW and Adam are one rule with and without decoupled decay.
_CLASSES: dict[type[torch.optim.Optimizer], tuple[str, tuple[str, ...]]] = {
    torch.optim.SGD: ("sgd", ("momentum", "weight_decay", "nesterov")),
    torch.optim.Adam: ("adam", ("betas", "eps", "weight_decay", "decoupled_weight_decay")),
    torch.optim.AdamW: ("adamw", ("betas", "eps", "weight_decay", "decoupled_weight_decay")),
}
if hasattr(torch.optim, "Adafactor"):
    _CLASSES[torch.optim.Adafactor] = ("adafactor", ("beta2_decay", "eps", "d", "weight_decay"))

# Options that choose an implementation and change no number.
_IMPLEMENTATION = ("foreach", "fused", "capturable")

Group = tuple[frozenset[str], str, tuple[tuple[str, float], ...]]
"""Names of parameters, kind and constants of their rule."""


@dataclass(frozen=True)
class Update:
    """The update of a step: groups of parameters with the rule of each, and their learning rates."""

    groups: tuple[Group, ...]
    rates: tuple[float, ...]

    @property
    def names(self) -> frozenset[str]:
        """The parameters that are trained."""
        return frozenset().union(*(names for names, _, _ in self.groups))

    @property
    def counts_steps(self) -> bool:
        """Whether an update depends on the number of steps that a parameter has taken."""
        return any(kind != "sgd" for _, kind, _ in self.groups)

    def options(self) -> dict[str, Any]:
        """As options of a step."""
        _, kind, constants = self.groups[0]
        groups = [(set(names), kind, list(constants)) for names, kind, constants in self.groups]
        return {"optimizer": (kind, list(constants)), "decay_1d": True, "groups": groups if len(groups) > 1 else []}

    def given(self) -> list[float]:
        """The learning rates as a step takes them: that of parameters in no group, then those of the groups."""
        return [self.rates[0], *self.rates] if len(self.groups) > 1 else [self.rates[0]]


class Followed:
    """An optimizer of PyTorch, and the model whose parameters it has."""

    def __init__(self, model: Model, optimizer: torch.optim.Optimizer) -> None:
        """E057 for an optimizer that a planned step cannot follow."""
        if type(optimizer) not in _CLASSES:
            kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            known = ", ".join(f"torch.optim.{kind.__name__}" for kind in _CLASSES)
            own = ", ".join(kind.__name__ for kind in optim.KINDS.values())
            raise _refused(f"a planned step has no rule of {kind}", f"{known}; or one of partita.optim: {own}", kind)
        if model._module is None:
            raise _refused(
                "the model has no tensors of PyTorch, which an optimizer of PyTorch could be matched to",
                "an optimizer of partita.optim, or its name",
                f"torch.optim.{type(optimizer).__name__}",
            )
        self.optimizer, self._module, self._states = optimizer, model._module, optimizer.state
        # The tree of a module whose parameters have these names, by identity.
        self._tree: Tree | None = None
        self._named: dict[int, list[str]] = {}
        self._groups: list[tuple[list[int], frozenset[str]]] = []
        # After a step, each trained parameter has an entry among the states, which is empty, as the states are on the ranks.
        self._marked: dict[Any, list[str]] = {}
        self._update: Update | None = None
        self._trained_last: list[frozenset[str]] = []
        # What the class has for an option that is not given.
        self._defaults = inspect.signature(type(optimizer)).parameters
        self._check_states()

    def read(self, tree: Tree | None = None) -> Update:
        """The update of the next step. E057 for what a planned step does not have. ``tree`` is the module as it is now, if it
        is known: names are those of the last time if it is the same."""
        self._check_calls()
        # Its own steps beside the trainer fill the states that it has; load_state_dict() gives it others.
        if self.optimizer.state is not self._states:
            self._check_states()
        kind, options = _CLASSES[type(self.optimizer)]
        if tree is None and self._tree is not None and self._tree.is_current():
            tree = self._tree
        if tree is None or tree is not self._tree:
            self._tree, self._named, self._groups = tree, {}, []
            for name, value in self._module.named_parameters(remove_duplicate=False):
                self._named.setdefault(id(value), []).append(name)
        groups: list[Group] = []
        rates: list[float] = []
        for number, group in enumerate(self.optimizer.param_groups):
            for option in self.optimizer.defaults:
                known = option in options or option in _IMPLEMENTATION or option == "lr"
                if not known and group[option] != self._defaults[option].default:
                    raise _refused(
                        f"a planned step has no {option}",
                        f"{option}={self._defaults[option].default}",
                        f"{option}={group[option]} in group {number} of {type(self.optimizer).__name__}",
                    )
            names = self._trained(number, group["params"])
            if names:
                groups.append((names, *_rule(kind, {option: group[option] for option in options if option in group})))
                try:
                    rates.append(float(group["lr"]))
                except (TypeError, ValueError):
                    raise _refused("a learning rate is no number", "a number", f"lr={group['lr']!r}") from None
        if not groups:
            raise _refused("the optimizer has no parameters that are trained", "parameters with requires_grad", "none")
        self._update = Update(tuple(groups), tuple(rates))
        return self._update

    def _trained(self, number: int, parameters: list[Any]) -> frozenset[str]:
        """The names of the parameters of a group that are trained. E057 for those of another module."""
        own = [*map(id, parameters)]
        if number < len(self._groups) and self._groups[number][0] == own:
            return self._groups[number][1]
        foreign = [value for value in parameters if id(value) not in self._named]
        if foreign:
            raise _refused(
                f"the optimizer has {len(foreign)} parameters that are not of {type(self._module).__name__}",
                "the parameters of the module that the model was loaded from",
                f"tensors of shapes {', '.join(str(list(value.shape)) for value in foreign[:4])} in group {number}",
            )
        names = frozenset(name for value in parameters if value.requires_grad for name in self._named[id(value)])
        self._groups[number:] = [(own, names)]
        return names

    def mark(self) -> None:
        """A step was taken: the parameters that it has trained have states."""
        update = self._update
        trained = [] if update is None else [names for names, _, _ in update.groups]
        if update is None or (trained == self._trained_last and self.optimizer.state is self._states):
            return
        self._trained_last, self._states = trained, self.optimizer.state
        for group in self.optimizer.param_groups:
            for value in group["params"]:
                names = self._named.get(id(value), [])
                if not update.names.isdisjoint(names):
                    self._states[value]
                    self._marked[value] = names

    def loaded(self) -> None:
        """The states are those of a checkpoint now."""
        self._marked, self._trained_last = {}, []
        self.mark()

    def cleared(self, steps: int) -> list[str]:
        """The parameters whose states a program has taken out of the optimizer. E057 for a rule that would go on counting
        their steps, and for states that were saved without those of the ranks."""
        state = self.optimizer.state
        if not self._marked or not steps or (state is self._states and len(state) >= len(self._marked)):
            return []
        gone = [value for value in self._marked if value not in state]
        if state is not self._states and len(gone) < len(self._marked):
            raise _refused(
                "the optimizer was given the states of a state_dict(), and those of a trainer are on its ranks",
                "`trainer.save(folder)` and `trainer.load(folder)`, which keep them",
                f"other states after {steps} steps",
            )
        names = sorted(name for value in gone for name in self._marked[value])
        kind = type(self.optimizer).__name__
        if any(rule != "sgd" for _, rule, _ in (self._update.groups if self._update is not None else ())):
            raise _refused(
                f"the states of {kind} were cleared after {steps} steps, and its rule counts the steps of each parameter",
                "a new trainer of a module with the trained values, module.load_state_dict(trainer.state_dict())",
                f"no states of {_listed(names)}",
            )
        for value in gone:
            del self._marked[value]
        self._trained_last, self._states = [], state
        return names

    def _check_calls(self) -> None:
        """E057 for a step that does something else beside the rule."""
        optimizer = self.optimizer
        own = vars(optimizer).get("step")
        # A scheduler of PyTorch counts the steps of its optimizer.
        if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):
            found = f"an attribute step of torch.optim.{type(optimizer).__name__}"
            raise _refused("the optimizer has another step", "torch.optim as it is", found)
        everywhere = importlib.import_module("torch.optim.optimizer")
        hooks = [
            *(getattr(optimizer, name, {}) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")),
            *(getattr(everywhere, name, {}) for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")),
        ]
        # That of ``partita._origins`` watches optimizers of modules that were built from.
        if any(not str(getattr(hook, "__module__", None)).startswith("partita.") for held in hooks for hook in held.values()):
            raise _refused("the optimizer has hooks, which no planned step runs", "an optimizer without hooks", "step hooks")

    def _check_states(self) -> None:
        """E057 for states that the ranks would not use."""
        if any(self.optimizer.state.values()):
            raise _refused(
                "the optimizer has states, which the ranks of a trainer would not use",
                "a new optimizer: the states of a trainer are on its ranks, `trainer.save(folder)` keeps them",
                f"states of {sum(map(bool, self.optimizer.state.values()))} parameters",
            )

    def set_rate(self, rate: float) -> None:
        """Gives all groups a learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def stepped(self) -> None:
        """Schedulers warn of an optimizer that takes no steps."""
        setattr(self.optimizer, "_opt_called", True)


def _rule(kind: str, options: dict[str, Any]) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The kind and the constants of a rule of PyTorch."""
    if "decoupled_weight_decay" in options:
        kind = "adamw" if options.pop("decoupled_weight_decay") else "adam"
    values = {name: _number(value) for name, value in options.items()}
    kind, constants = replace(optim.KINDS[kind](), **values).constants()
    return kind, tuple((name, float(value)) for name, value in constants)


def _number(value: Any) -> Any:
    """An option, which may be a tensor."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_number, value))
    return value.item() if isinstance(value, torch.Tensor) else value


def only(model: Model, names: frozenset[str]) -> Model:
    """The model with these parameters alone trained."""
    module, taken = model._module, model._taken
    if module is None or taken is None or names >= frozenset(model.parameters):
        return model
    rest = [value for name, value in module.named_parameters(remove_duplicate=False) if name not in names]
    frozen = [value for value in rest if value.requires_grad]
    try:
        for value in frozen:
            value.requires_grad_(False)
        return taken.made()
    finally:
        for value in frozen:
            value.requires_grad_(True)


def check_added(before: Update, now: Update, steps: int) -> None:
    """E057 for parameters that would count steps of their own."""
    added = now.names - before.names
    if added and steps and now.counts_steps:
        raise _refused(
            f"parameters were added to the optimizer after {steps} steps, and its rule counts the steps of each",
            "the parameters that it had before the first step, or SGD",
            _listed(sorted(added)),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _refused(message: str, expected: str, found: str) -> PartitaError:
    help = "a built module, `sch.build()`, trains with loss.backward() and any optimizer of PyTorch"
    return refuse("E057", message, expected=expected, found=found, help=help)
