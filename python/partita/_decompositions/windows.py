"""Poolings and convolutions, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """The begin and end of each window of an adaptive pooling."""
    return [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]


MAX_WINDOWS = 256
"""Windows of an adaptive pooling up to which each is written out."""


def _adaptive_max_pool2d(x: Any, output_size: Any) -> Any:
    """The greatest element of each window, the first of equal ones, and its place in its image."""
    height, width = x.shape[-2:]
    rows, columns = _windows(height, output_size[0]), _windows(width, output_size[1])
    if len(rows) * len(columns) > MAX_WINDOWS:
        return NotImplemented
    values, places = [], []
    for top, bottom in rows:
        for left, right in columns:
            value, place = x[..., top:bottom, left:right].flatten(-2).max(-1)
            across = right - left
            values.append(value)
            places.append((top + place // across) * width + left + place % across)
    shape = (*x.shape[:-2], len(rows), len(columns))
    return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)


def _max_pool2d(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """The greatest element of each window, the first of equal ones, and its place in its image."""
    kernel, padding, dilation = (_pairs(value, 2) for value in (kernel, padding, dilation))
    stride = _pairs(stride, 2) if stride else kernel
    if ceil_mode:
        return NotImplemented
    height, width = x.shape[-2:]
    bound = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    wide = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]), value=bound)
    reach = [step * (size - 1) + 1 for size, step in zip(kernel, dilation)]
    counts = [(extent - across) // jump + 1 for extent, across, jump in zip(wide.shape[-2:], reach, stride)]
    values, places = [], []
    # The elements of all windows at the same place within them.
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            below = torch.arange(counts[0], device=x.device)[:, None] * stride[0] + top - padding[0]
            across = torch.arange(counts[1], device=x.device) * stride[1] + left - padding[1]
            part = wide[..., top : top + stride[0] * (counts[0] - 1) + 1 : stride[0], :]
            values.append(part[..., left : left + stride[1] * (counts[1] - 1) + 1 : stride[1]])
            places.append(below * width + across)
    value, first = torch.stack(values, -1).max(-1)
    place = torch.stack(places, -1).expand(*first.shape, len(places)).gather(-1, first.unsqueeze(-1)).squeeze(-1)
    return value, place


def _pooling(size: int, count: int, like: Any) -> Any:
    """The matrix of an adaptive mean over a dimension."""
    places = torch.arange(size, device=like.device)
    rows = [((places >= begin) & (places < end)).to(like.dtype) / (end - begin) for begin, end in _windows(size, count)]
    return torch.stack(rows)


def _adaptive_avg_pool2d_backward(grad: Any, x: Any) -> Any:
    down = _pooling(x.shape[-2], grad.shape[-2], grad)
    across = _pooling(x.shape[-1], grad.shape[-1], grad)
    return down.T @ grad @ across


def _pairs(value: Any, count: int) -> list[int]:
    """An option of each dimension, of which one may stand for all."""
    values: list[int] = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _input_gradient(grad: Any, shape: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Of a convolution: the convolution with its weight, transposed. What no window reached takes no gradient."""
    count = len(shape) - 2
    missing = [
        shape[2 + d] - ((grad.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1)
        for d in range(count)
    ]
    return _ATEN.convolution.default(grad, weight, None, stride, padding, dilation, True, missing, groups)


def _weight_gradient(grad: Any, x: Any, shape: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Of a convolution: that of the inputs with the gradients as weight, where rows and channels have changed places."""
    rows, count = x.shape[0], len(shape) - 2
    per, out = x.shape[1] // groups, grad.shape[1]
    inputs = x.reshape(rows, groups, per, *x.shape[2:]).movedim(2, 0).transpose(1, 2).reshape(per, groups * rows, *x.shape[2:])
    weights = grad.movedim(0, 1)
    found = _ATEN.convolution.default(inputs, weights, None, dilation, padding, stride, False, [0] * count, groups)
    for d in range(count):
        # Elements behind the last window belong to no place of the weight.
        found = found.narrow(2 + d, 0, shape[2 + d])
    return found.movedim(0, 1).reshape(out, per, *shape[2:])


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> Any:
    count = x.dim() - 2
    stride, padding, dilation = (_pairs(value, count) for value in (stride, padding, dilation))
    if transposed:
        to_input = _ATEN.convolution.default(grad, weight, None, stride, padding, dilation, False, [0] * count, groups)
        # The convolution whose transpose this is takes the gradient and gives the input.
        to_weight = _weight_gradient(x, grad, weight.shape, stride, padding, dilation, groups)
    else:
        to_input = _input_gradient(grad, x.shape, weight, stride, padding, dilation, groups)
        to_weight = _weight_gradient(grad, x, weight.shape, stride, padding, dilation, groups)
    to_bias = grad.sum([0, *range(2, grad.dim())])
    return tuple(part if asked else None for part, asked in zip((to_input, to_weight, to_bias), output_mask))


def _max_pool_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Any
) -> Any:
    zeros = torch.zeros_like(x).flatten(-2)
    return zeros.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(x.shape)


def _avg_pool_backward(
    grad: Any,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    kernel = _pairs(kernel, 2)
    stride, padding = _pairs(stride, 2) if stride else kernel, _pairs(padding, 2)
    if ceil_mode or (any(padding) and not count_include_pad and divisor_override is None):
        return NotImplemented
    channels = x.shape[-3]
    ones = torch.ones((channels, 1, *kernel), dtype=grad.dtype, device=grad.device)
    spread = _input_gradient(
        grad.reshape(-1, channels, *grad.shape[-2:]),
        (1, channels, *x.shape[-2:]),
        ones,
        stride,
        padding,
        [1, 1],
        channels,
    )
    return (spread / (divisor_override or kernel[0] * kernel[1])).reshape(x.shape)


def _avg_pool(count: int) -> Callable[..., Any]:
    """A mean over windows of so many dimensions."""

    def way(
        x: Any,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        kernel, padding = _pairs(kernel, count), _pairs(padding, count)
        stride = _pairs(stride, count) if stride else kernel
        # Windows beyond the last whole one, which must begin within the tensor or the padding before it.
        beyond, results = [], []
        for extent, size, jump, pad in zip(x.shape[-count:], kernel, stride, padding):
            windows = (extent + 2 * pad - size + (jump - 1 if ceil_mode else 0)) // jump + 1
            windows -= int(ceil_mode and (windows - 1) * jump >= extent + pad)
            results.append(windows)
            beyond.append(max(0, (windows - 1) * jump + size - extent - 2 * pad))

        def summed(inner: Any) -> Any:
            wide = torch.nn.functional.pad(inner, [side for more in reversed(beyond) for side in (0, more)])
            for dim, (size, jump, windows) in enumerate(zip(kernel, stride, results), start=-count):
                # The elements of all windows at the same place within them.
                parts = [wide.narrow(dim, place, jump * (windows - 1) + 1) for place in range(size)]
                steps = torch.arange(windows, device=x.device) * jump
                wide = torch.stack([part.index_select(dim, steps) for part in parts]).sum(0)
            return wide

        around = [side for pad in reversed(padding) for side in (pad, pad)]
        padded = torch.nn.functional.pad(x, around)
        if divisor_override or (count_include_pad and not any(beyond)):
            return summed(padded) / (divisor_override or math.prod(kernel))
        ones = torch.ones_like(padded) if count_include_pad else torch.nn.functional.pad(torch.ones_like(x), around)
        return summed(padded) / summed(ones)

    return way


WINDOWS: dict[str, Callable[..., Any]] = {
    "aten.max_pool2d_with_indices.default": _max_pool2d,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool2d,
    "aten.avg_pool1d.default": _avg_pool(1),
    "aten.avg_pool2d.default": _avg_pool(2),
    "aten.avg_pool3d.default": _avg_pool(3),
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_avg_pool2d_backward,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    "aten.avg_pool2d_backward.default": _avg_pool_backward,
}
