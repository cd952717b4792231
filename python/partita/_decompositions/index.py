"""Sorts, scans, and elements at computed places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_MAX_COMPARED = 4096**2
"""Pairs of elements up to which ``scatter_reduce`` is written as comparisons of all with all."""


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, indices = torch.sort(x, dim=dim)
    part = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return part if keepdim else tuple(each.squeeze(dim) for each in part)


def _running(greatest: bool) -> Callable[..., Any]:
    """``cummax`` and ``cummin``: of equal elements, and of several NaN, the last one counts, as in PyTorch."""

    def way(x: Any, dim: int) -> Any:
        if x.dim() == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        size, shift = x.shape[dim], 1
        rows = x.movedim(dim, -1)
        places = torch.arange(size, device=x.device).expand(rows.shape)
        found = rows.to(torch.uint8) if x.dtype == torch.bool else rows
        # Of each place: the extreme of 1, 2, 4, .. elements that end there.
        while shift < size:
            late, early = found[..., shift:], found[..., :-shift]
            is_kept = late >= early if greatest else late <= early
            if x.is_floating_point():
                is_kept = (is_kept & ~early.isnan()) | late.isnan()
            both = torch.where(is_kept, places[..., shift:], places[..., :-shift])
            places = torch.cat([places[..., :shift], both], -1)
            found = torch.cat([found[..., :shift], torch.where(is_kept, late, early)], -1)
            shift *= 2
        # The gradient goes to these places.
        values = torch.gather(rows, -1, places)
        return values.movedim(-1, dim), places.movedim(-1, dim)

    return way


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[place].reshape(x.shape), x)


def _searchsorted(
    sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    right = right if side is None else side == "right"
    if sequence.dim() > 1:
        bounds, given = sequence.unsqueeze(-2), values.unsqueeze(-1)
    else:
        bounds, given = sequence, values.unsqueeze(-1)
    below = bounds <= given if right else bounds < given
    if given.is_floating_point():
        # NaN is the last.
        below = below | given.isnan()
    return below.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _cumprod(x: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Products of twice as many elements in each round."""
    if dtype is None and not (x.is_floating_point() or x.is_complex()):
        dtype = torch.int64
    x = x if dtype is None else x.to(dtype)
    if x.dim() == 0:
        return x.clone()
    size, shift = x.shape[dim], 1
    while shift < size:
        before = torch.cat([torch.ones_like(x.narrow(dim, 0, shift)), x.narrow(dim, 0, size - shift)], dim)
        x, shift = x * before, 2 * shift
    return x


def _scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Every element against every place, so that equal ones share the gradient of ``amax`` and ``amin``."""
    dim = dim % x.dim() if x.dim() else 0
    others = [extent for place, extent in enumerate(x.shape) if place != dim]
    given = [extent for place, extent in enumerate(index.shape) if place != dim]
    neutral = {"amax": float("-inf"), "amin": float("inf"), "prod": 1.0}.get(reduce, 0.0)
    if others != given or not x.is_floating_point() or x.shape[dim] * index.shape[dim] > _MAX_COMPARED:
        return NotImplemented
    source = source.narrow(dim, 0, index.shape[dim])
    rows, index, source = (each.movedim(dim, -1) for each in (x, index, source))
    is_there = index.unsqueeze(-2) == torch.arange(x.shape[dim], device=x.device).unsqueeze(-1)
    values = torch.where(is_there, source.unsqueeze(-2), neutral)
    own = rows.unsqueeze(-1)
    if not include_self:
        own = torch.where(is_there.any(-1, keepdim=True), neutral, own)
    values = torch.cat([own, values], -1)
    if reduce == "mean":
        count = is_there.sum(-1) + (1 if include_self else 0)
        found = values.sum(-1) / count.clamp(min=1).to(x.dtype)
    else:
        found = getattr(values, reduce)(-1)
    return found.movedim(-1, dim)


def _repeated(repeats: Any, *, output_size: int | None = None) -> Any:
    """The place of the element that each result repeats."""
    if output_size is None:
        return NotImplemented
    results = torch.arange(output_size, device=repeats.device).unsqueeze(-1)
    return (repeats.cumsum(0) <= results).to(torch.int64).sum(-1)


INDEX: dict[str, Callable[..., Any]] = {
    "aten.kthvalue.default": _kthvalue,
    "aten.cummax.default": _running(greatest=True),
    "aten.cummin.default": _running(greatest=False),
    "aten.cumprod.default": _cumprod,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.searchsorted.Tensor": _searchsorted,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.repeat_interleave.Tensor": _repeated,
}
