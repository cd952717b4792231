"""Classes of modules: ``torch.nn.utils.parametrize`` puts a class of its own over that of a module, and takes it away again."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import parametrize


def _members(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}


def members_over(kind: type) -> dict[str, Any]:
    """What a class of parametrizations defines, but for how it is copied: a planned module has a way of its own."""
    return {name: value for name, value in _members(kind).items() if name not in ("__deepcopy__", "__getstate__")}


def is_over(module: torch.nn.Module) -> bool:
    """Whether the class of a module is one that its parametrizations have put over its own."""
    held: Any = getattr(module, "parametrizations", None)
    return parametrize.is_parametrized(module) and not vars(type(module)).keys().isdisjoint(held.keys())


def part(module: torch.nn.Module) -> None:
    """Gives the parametrized parts of a copy classes of their own: to remove a parametrization changes the class."""
    for inner in module.modules():
        if is_over(inner):
            inner.__class__ = type(type(inner).__name__, type(inner).__bases__, _members(type(inner)))
