"""Devices of tensors of PyTorch. Ranks compute on the cores of the host; what comes back lies where PyTorch would have it.

Until ranks run on other devices, a program that uses one is told so, once for each module, trainer or mesh, in a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from partita._told import Told


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
    """Values of parameters and buffers by name, each where the module has what is called so, and complex if that is; as they
    are for None."""
    if module is None:
        return values
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    return {name: _like(value, own[name]) if name in own else value for name, value in values.items()}


def _like(value: Any, own: Any) -> Any:
    """A value that came from a rank on the device of another tensor; complex if that is."""
    if own.is_complex():
        import torch

        value = torch.view_as_complex(value)
    return brought(value, own.device)


def tell(told: Told, what: str, values: Iterable[Any]) -> None:
    """Says once that the first of these values which lies on another device is computed on the host."""
    if not told.has("device"):
        device = next((value.device for value in values if is_away(value)), None)
        if device is not None:
            tell_of(told, what, device)


def tell_of(told: Told, what: str, device: Any) -> None:
    """Says once that the ranks of what is on a device compute on the host."""
    told.say(
        "device",
        f"{what} is on the device {device}, and its ranks compute on the cores of this machine: tensors go to the host "
        f"for each pass, and results and gradients come back to {device}",
    )
