"""Optimizers of a planned step, with the names, defaults and formulas of ``torch.optim``.

A planned step contains its update, so an optimizer here is only its constants. An optimizer of PyTorch is accepted in
the same place, if all its parameters are in one group.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["LAMB", "SGD", "Adafactor", "Adam", "Adam8bit", "AdamW", "Lion", "Muon", "Optimizer", "of"]


@dataclass
class Optimizer:
    """The constants of an update rule."""

    lr: float = 1e-3

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
    """The constants of an optimizer: one of this module, its name, or an optimizer of PyTorch with one group.

    Raises ``ValueError`` for an optimizer with options that a planned step does not have.
    """
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    name = optimizer.lower() if isinstance(optimizer, str) else type(optimizer).__name__.lower()
    if name not in KINDS:
        raise ValueError(f"no optimizer {name!r}: expected one of {', '.join(KINDS)}")
    if isinstance(optimizer, str):
        return KINDS[name]()
    if len(optimizer.param_groups) != 1:
        raise ValueError("expected an optimizer with one group of parameters")
    (group,) = optimizer.param_groups
    if optimizer.state:
        raise ValueError("expected a new optimizer: this one has taken steps, and its states would be lost")
    for option, plain in (("amsgrad", False), ("maximize", False), ("dampening", 0)):
        if group.get(option, plain) != plain:
            raise ValueError(f"a planned step has no {option}")
    if name == "muon":
        raise ValueError("torch.optim.Muon takes matrices alone; partita.optim.Muon takes all parameters")
    names = [field.name for field in fields(KINDS[name]) if field.name in group]
    return KINDS[name](**{key: group[key] for key in names} | {"lr": float(group["lr"])})
