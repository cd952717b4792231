"""How random modules end: views and copies of what they computed, and what they return beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

View = Callable[[Tensor], Any]


class Found(NamedTuple):
    """Outputs with names that are no dictionary."""

    main: Any
    rest: Any


def _stacked(y: Tensor) -> Tensor:
    return torch.stack([y, y.flip(0)], 1)


VIEWS: dict[str, View] = {
    "itself": lambda y: y,
    "rows": lambda y: y.reshape(-1, y.shape[-1]),
    "all but the last": lambda y: y[:, :-1].reshape(-1, *y.shape[2:]),
    "flat": lambda y: y.flatten(1),
    "one row": lambda y: y.reshape(-1),
    "turned": lambda y: y.transpose(1, -1),
    "turned and dense": lambda y: y.transpose(0, 1).contiguous(),
    "channels last": lambda y: y.movedim(1, -1).flatten(0, -2),
    "repeated": lambda y: y.repeat_interleave(2, dim=1),
    "tiled": lambda y: y.repeat(2, *[1] * (y.dim() - 1)),
    "every second": lambda y: y[..., ::2],
    "first": lambda y: y[:, 0],
    "last": lambda y: y[:, -1],
    "wide": lambda y: y.unsqueeze(1).expand(-1, 3, *y.shape[1:]),
    "stacked": _stacked,
    "joined": lambda y: torch.cat([y, y], 1),
    "flipped": lambda y: y.flip(-1),
    "rolled": lambda y: y.roll(1, 1),
    "padded": lambda y: F.pad(y, (1, 2)),
    "cloned": lambda y: y.clone(),
    "narrow": lambda y: y.narrow(-1, 1, y.shape[-1] - 1),
    "picked": lambda y: y.index_select(1, torch.tensor([1, 0, 1])),
    "windows": lambda y: y.unfold(1, 2, 1),
    "squeezed": lambda y: y.unsqueeze(0).squeeze(0),
    "lower": lambda y: y.reshape(y.shape[0], -1).tril(),
    "halves": lambda y: y.chunk(2, -1),
    "columns": lambda y: y.unbind(1),
    "twice": lambda y: (y, y),
    "view beside": lambda y: (y, y.flatten(1)),
    "parts beside": lambda y: (y[:, :1], y[:, 1:], y),
}
OF_IMAGES_ALONE: dict[str, View] = {
    "shuffled": lambda y: F.pixel_shuffle(y, 2),
    "unshuffled": lambda y: F.pixel_unshuffle(y, 2),
    "patches": lambda y: y.flatten(2).transpose(1, 2),
    "crop": lambda y: y[:, :, 1:-1, 1:-1],
    "larger": lambda y: F.interpolate(y, scale_factor=2),
}

Extra = Callable[[Tensor, Tensor, Tensor], Any]
"""What is returned beside: from the output, a value from the middle, and the first input that is of floats."""

EXTRAS: dict[str, Extra] = {
    "mean of the input": lambda y, h, x: x.mean(),
    "input": lambda y, h, x: x,
    "input doubled": lambda y, h, x: 2 * x,
    "class": lambda y, h, x: y.argmax(-1),
    "accuracy": lambda y, h, x: (y.argmax(-1) == 0).float().mean(),
    "detached": lambda y, h, x: y.detach(),
    "detached middle": lambda y, h, x: h.detach().square().sum(),
    "middle": lambda y, h, x: h,
    "mean of the middle": lambda y, h, x: h.mean(),
    "middle turned": lambda y, h, x: h.transpose(0, 1).contiguous(),
    "mask": lambda y, h, x: y > 0,
    "count": lambda y, h, x: (y > 0).sum(),
    "best": lambda y, h, x: y.topk(2, -1).values,
    "best places": lambda y, h, x: y.topk(2, -1).indices,
    "constant": lambda y, h, x: torch.arange(3),
    "ones": lambda y, h, x: torch.ones(2, 2),
    "number": lambda y, h, x: y.shape[0],
    "none": lambda y, h, x: None,
    "norm": lambda y, h, x: y.flatten(1).norm(dim=1),
}


def combined(draw: random.Random) -> str:
    """How outputs are put together."""
    return draw.choice(("tuple", "tuple", "list", "list", "dictionary", "dictionary", "nested", "nested", "named"))


def together(way: str, main: Any, extras: list[Any], loss: Tensor | None) -> Any:
    """All outputs in one value."""
    if not extras and loss is None:
        return main
    if way == "dictionary":
        found = {"main": main, **{f"extra{number}": value for number, value in enumerate(extras)}}
        return found if loss is None else {"loss": loss, **found}
    before = [] if loss is None else [loss]
    if way == "nested":
        return {"first": before, "second": (main, {"rest": extras})}
    if way == "named":
        return Found((*before, main), tuple(extras))
    everything = [*before, main, *extras]
    return tuple(everything) if way == "tuple" else everything


def loss_of(way: str, outputs: Any) -> Tensor:
    """The loss that ``together`` has put into the outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    found = {
        "dictionary": lambda: outputs["loss"],
        "nested": lambda: outputs["first"][0],
        "named": lambda: outputs.main[0],
    }.get(way, lambda: outputs[0])()
    assert isinstance(found, Tensor)
    return found
