"""Optimizers of a planned step, with the names, defaults and formulas of ``torch.optim``.

A planned step contains its update, so an optimizer here is only its constants. An optimizer of PyTorch is accepted in
the same place: see ``partita._followed``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from partita._error import refuse

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
    """The constants of an optimizer of this module, or of its name.

    Raises ``PartitaError``: E057 for anything else.
    """
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer.lower() in KINDS:
        return KINDS[optimizer.lower()]()
    found = repr(optimizer) if isinstance(optimizer, str) else f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    raise refuse(
        "E057",
        f"no optimizer {found}",
        expected=f"one of partita.optim, its name ({', '.join(KINDS)}), or one of torch.optim over the parameters of the module",
        found=found,
        help="a built module, `sch.build()`, trains with loss.backward() and any optimizer of PyTorch",
    )
