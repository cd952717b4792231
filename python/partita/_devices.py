"""Devices of tensors of PyTorch. Ranks compute on the cores of the host; what comes back lies where PyTorch would have it.

Until ranks run on other devices, a program that uses one is told so, once for each module, trainer or mesh, in a warning.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any


def is_away(value: Any) -> bool:
    """Whether a tensor of PyTorch lies on another device than the host."""
    device = getattr(value, "device", None)
    # Arrays of other libraries have devices of other kinds.
    return getattr(device, "type", "cpu") != "cpu"


def tensors_of(module: Any) -> list[Any]:
    """The parameters and buffers of a module of PyTorch; of None there are none."""
    return [] if module is None else [*module.parameters(), *module.buffers()]


def brought(value: Any, device: Any) -> Any:
    """A tensor of a rank on the device that its user expects it on: itself, if that is the host."""
    return value if device is None or value.device == device else value.to(device)


def at_home(values: dict[str, Any], module: Any) -> dict[str, Any]:
    """Values of parameters and buffers by name, each on the device of what has this name in a module; as they are for None."""
    if module is None:
        return values
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    return {name: brought(value, own[name].device) if name in own else value for name, value in values.items()}


class Told:
    """Whether a program was told that its devices do not compute: in one object, so that it is told once."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """What it was told."""

    def tell(self, what: str, values: Iterable[Any]) -> None:
        """Warns of the first tensor that lies on another device, unless a warning was given before."""
        if not self.notes:
            device = next((value.device for value in values if is_away(value)), None)
            if device is not None:
                self.say(what, device)

    def say(self, what: str, device: Any) -> None:
        """Warns of a device, unless a warning was given before."""
        if not self.notes:
            self.notes.append(
                f"{what} is on the device {device}, and its ranks compute on the cores of this machine: tensors go to the host "
                f"for each pass, and results and gradients come back to {device}"
            )
            warn(self.notes[0])


def warn(text: str) -> None:
    """A warning at the line of the user: that of the nearest frame which is neither of this package nor of PyTorch."""
    files = [__file__, getattr(sys.modules.get("torch"), "__file__", None) or __file__]
    inside = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
