"""Optimizers that were made before ``build()``: they hold parameters of the user's module, of which a built module has copies.

Their steps would change nothing, and say nothing. A hook of PyTorch on the steps of all optimizers finds them: an optimizer
over parameters that a module was built from, none of which has a gradient, while a backward pass went through that module.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from partita._error import refuse

# The planned modules that were built from the module of a parameter.
_BUILT: Any = WeakIdKeyDictionary()
_HOOKED: list[Any] = []


class Passed:
    """Whether a backward pass has gone through a planned module."""

    def __init__(self) -> None:
        self.has = False


def note(original: torch.nn.Module, passed: Passed) -> None:
    """A module was built from the original. ``passed`` lives as long as it does."""
    if not _HOOKED:
        _HOOKED.append(register_optimizer_step_pre_hook(_check))
    for value in original.parameters():
        _BUILT.setdefault(value, []).append(weakref.ref(passed))


def _check(optimizer: Any, *_: Any) -> None:
    """E397 for an optimizer whose step is meant for the parameters of a built module."""
    if not _BUILT:
        return
    is_meant = False
    for group in optimizer.param_groups:
        for value in group["params"]:
            built = _BUILT.get(value)
            if built is None:
                continue
            if value.grad is not None and bool(value.grad.any()):
                return
            is_meant = is_meant or any(passed.has for passed in (reference() for reference in built) if passed is not None)
    if is_meant:
        raise refuse(
            "E397",
            "an optimizer has the parameters of the module that was built from, and not those of the built module",
            expected=f"torch.optim.{type(optimizer).__name__}(built.parameters())",
            found="parameters without gradients, while a backward pass went through the built module",
            help="make the optimizer after build(), which returns a copy of the module; for one with states, "
            "new.load_state_dict(old.state_dict())",
        )
