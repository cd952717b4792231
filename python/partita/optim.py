"""Optimizers of a planned step, with the names, defaults and formulas of ``torch.optim``.

A planned step contains its update, so an optimizer here is only its constants. An optimizer of PyTorch is accepted in
the same place; its learning rate is read before each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from partita._error import refuse
from partita._partita import PartitaError

__all__ = ["LAMB", "SGD", "Adafactor", "Adam", "Adam8bit", "AdamW", "Lion", "Muon", "Optimizer", "of"]


@dataclass
class Optimizer:
    """The constants of an update rule. With ``decay_1d=False`` weight decay spares what is no matrix: biases and norms.

    Raises ``PartitaError``: E057 for a constant that is no number; its range is checked where a step is planned.
    """

    lr: float = 1e-3
    decay_1d: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for constant in fields(self):
            value = getattr(self, constant.name)
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and (isinstance(number, str) or not hasattr(number, "__float__")):
                    raise refuse(
                        "E057",
                        f"{constant.name} of {type(self).__name__} is no number",
                        expected=str(constant.type),
                        found=repr(value),
                    )

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        """The kind of the rule and its constants by name."""
        raise NotImplementedError


@dataclass
class SGD(Optimizer):
    """``torch.optim.SGD``."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        return "sgd", [
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
            ("nesterov", float(self.nesterov)),
        ]


@dataclass
class _Moments(Optimizer):
    """The constants of rules with decaying means of gradients and of squared gradients."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        return type(self).__name__.lower(), [
            ("beta1", self.betas[0]),
            ("beta2", self.betas[1]),
            ("epsilon", self.eps),
            ("weight_decay", self.weight_decay),
        ]


@dataclass
class Adam(_Moments):
    """``torch.optim.Adam``."""


@dataclass
class AdamW(Adam):
    """``torch.optim.AdamW``."""

    weight_decay: float = 1e-2


@dataclass
class Lion(Optimizer):
    """Lion (Chen et al. 2023)."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        return "lion", [("beta1", self.betas[0]), ("beta2", self.betas[1]), ("weight_decay", self.weight_decay)]


@dataclass
class LAMB(_Moments):
    """LAMB (You et al. 2020): Adam's direction, scaled to the norm of each parameter."""

    eps: float = 1e-6
    weight_decay: float = 1e-2


@dataclass
class Adam8bit(_Moments):
    """AdamW whose states have 8 bits (Dettmers et al. 2022)."""

    weight_decay: float = 1e-2


@dataclass
class Adafactor(Optimizer):
    """``torch.optim.Adafactor``. The first of ``eps`` is None for the unit of the element type."""

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        least = [] if self.eps[0] is None else [("epsilon1", self.eps[0])]
        return "adafactor", [
            ("beta2_decay", self.beta2_decay),
            *least,
            ("epsilon2", self.eps[1]),
            ("clip", self.d),
            ("weight_decay", self.weight_decay),
        ]


@dataclass
class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for matrices; AdamW with ``betas`` and ``eps`` for embeddings, heads, and parameters that
    are no matrices. ``match_rms``: updates are as large as AdamW's, as ``adjust_lr_fn="match_rms_adamw"`` of PyTorch.
    """

    momentum: float = 0.95
    nesterov: bool = True
    match_rms: bool = True
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def constants(self) -> tuple[str, list[tuple[str, float]]]:
        return "muon", [
            ("momentum", self.momentum),
            ("nesterov", float(self.nesterov)),
            ("match_rms", float(self.match_rms)),
            ("beta1", self.betas[0]),
            ("beta2", self.betas[1]),
            ("epsilon", self.eps),
            ("weight_decay", self.weight_decay),
        ]


KINDS: dict[str, type[Optimizer]] = {
    kind.__name__.lower(): kind for kind in (SGD, Adam, AdamW, Lion, Adafactor, LAMB, Muon, Adam8bit)
}


def of(optimizer: Any) -> Optimizer:
    """The constants of an optimizer: one of this module, its name, or a new optimizer of PyTorch. Two groups of parameters
    are one group without weight decay on what is no matrix, if that is how they differ.

    Raises ``PartitaError``: E057 for an optimizer with options or groups that a planned step does not have.
    """
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    name = optimizer.lower() if isinstance(optimizer, str) else type(optimizer).__name__.lower()
    if name not in KINDS:
        raise _refused(f"no optimizer {name!r}", f"one of {', '.join(KINDS)}", name)
    if isinstance(optimizer, str):
        return KINDS[name]()
    if optimizer.state:
        raise _refused("the optimizer has taken steps, and its states would be lost", "a new optimizer", "one with states")
    groups = optimizer.param_groups
    for group in groups:
        for option, plain in (("amsgrad", False), ("maximize", False), ("dampening", 0)):
            if group.get(option, plain) != plain:
                raise _refused(f"a planned step has no {option}", f"{option}={plain}", f"{option}={group[option]}")
    if name == "muon":
        raise _refused("torch.optim.Muon takes matrices alone", "partita.optim.Muon, which takes all parameters", name)
    names = [field.name for field in fields(KINDS[name]) if field.name in groups[0]]
    shared = [{key: group[key] for key in names if key != "weight_decay"} for group in groups]
    decays = sorted({float(group.get("weight_decay", 0.0)) for group in groups})
    known = {key: groups[0][key] for key in names} | {"lr": float(groups[0]["lr"])}
    if any(other != shared[0] for other in shared) or len(decays) > 2 or (len(decays) == 2 and decays[0] != 0.0):
        raise _refused_groups(shared, decays)
    if len(decays) == 2:
        is_matrix = [
            (group["weight_decay"] != 0.0, all(value.dim() >= 2 for value in group["params"])) for group in groups
        ]
        is_vector = [all(value.dim() < 2 for value in group["params"]) for group in groups]
        if not all(matrix if decay else vector for (decay, matrix), vector in zip(is_matrix, is_vector)):
            raise _refused_groups(shared, decays)
        known |= {"weight_decay": decays[1], "decay_1d": False}
    return KINDS[name](**known)


def _refused(message: str, expected: str, found: str) -> PartitaError:
    help = "a built module, `sch.build()`, trains with loss.backward() and any optimizer of PyTorch"
    return refuse("E057", message, expected=expected, found=found, help=help)


def _refused_groups(shared: list[dict[str, Any]], decays: list[float]) -> PartitaError:
    differing = [key for key in shared[0] if any(other[key] != shared[0][key] for other in shared)]
    found = f"groups that differ in {', '.join(differing)}" if differing else f"groups with weight_decay {decays}"
    expected = "one group of parameters, or two: matrices with weight decay, biases and norms without"
    return _refused("a planned step updates all parameters by one rule", expected, found)


class Followed:
    """An optimizer of PyTorch that a trainer was made with: its learning rate is that of the next step, so schedulers of
    PyTorch work. Its other constants must stay."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._constants = optimizer, self._found(optimizer)

    @staticmethod
    def _found(optimizer: Any) -> list[dict[str, Any]]:
        names = [field.name for field in fields(KINDS[type(optimizer).__name__.lower()]) if field.name != "lr"]
        return [{key: group[key] for key in names if key in group} for group in optimizer.param_groups]

    @property
    def lr(self) -> float:
        """The learning rate now. E057 if another constant has changed, or groups have different rates."""
        for before, now in zip(self._constants, self._found(self._optimizer)):
            changed = [key for key in before if before[key] != now[key]]
            if changed:
                name = changed[0]
                raise _refused(
                    f"{name} of the optimizer has changed, and is a constant of the planned step",
                    f"{name}={before[name]}",
                    f"{name}={now[name]}",
                )
        rates = sorted({float(group["lr"]) for group in self._optimizer.param_groups})
        if len(rates) > 1:
            raise _refused("a planned step updates all parameters by one rule", "one learning rate", str(rates))
        return rates[0]

    @lr.setter
    def lr(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def stepped(self) -> None:
        """Schedulers warn of an optimizer that takes no steps."""
        self._optimizer._opt_called = True
