"""Optimizers of a planned step, with the names, defaults and formulas of ``torch.optim``.

A planned step contains its update, so an optimizer here is only its constants. An optimizer of PyTorch is accepted in
the same place, if all its parameters are in one group.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["SGD", "Adam", "AdamW", "Lion", "Optimizer", "of"]


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
class Adam(Optimizer):
    """``torch.optim.Adam``."""

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


def of(optimizer: Any) -> Optimizer:
    """The constants of an optimizer: one of this module, its name, or an optimizer of PyTorch with one group.

    Raises ``ValueError`` for an optimizer with options that a planned step does not have.
    """
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    kinds: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "lion": Lion}
    name = optimizer.lower() if isinstance(optimizer, str) else type(optimizer).__name__.lower()
    if name not in kinds:
        raise ValueError(f"no optimizer {name!r}: expected sgd, adam, adamw or lion")
    if isinstance(optimizer, str):
        return kinds[name]()
    if len(optimizer.param_groups) != 1:
        raise ValueError("expected an optimizer with one group of parameters")
    (group,) = optimizer.param_groups
    if optimizer.state:
        raise ValueError("expected a new optimizer: this one has taken steps, and its states would be lost")
    for option, plain in (("amsgrad", False), ("maximize", False), ("dampening", 0)):
        if group.get(option, plain) != plain:
            raise ValueError(f"a planned step has no {option}")
    known = [key for key in ("betas", "eps", "momentum", "nesterov", "weight_decay") if key in group]
    names = {field.name for field in fields(kinds[name])}
    return kinds[name](lr=float(group["lr"]), **{key: group[key] for key in known if key in names})
