"""Two modules of PyTorch compared on the same inputs: outputs, and gradients for the same random cotangents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from partita._caches import without_caches

# A gradient that is zero in exact arithmetic, as that of the bias of attention's keys, is noise of the size of rounding:
# tensors are compared with their own largest element, but with no less than this part of the largest gradient.
_FLOOR = 1e-2

Seen = list[tuple[str, torch.Tensor]]


def observed(
    module: nn.Module,
    parameters: Sequence[tuple[str, torch.Tensor]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Seen:
    """Outputs, and gradients with respect to parameters and the first float input. Buffers are as before afterwards."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    wanted = [(f"the gradient of {name}", parameter) for name, parameter in parameters]
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[place] = leaf.detach()
    real = (place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())
    first = next(real, None)
    if first is not None:
        leaves[first] = leaves[first].clone().requires_grad_()
        wanted.append(("the gradient of the first input", leaves[first]))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    state = {name: value.clone() for name, value in module.named_buffers()}
    try:
        with torch.enable_grad():
            outputs, _ = without_caches(module(*args, **kwargs))
        found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        seen: Seen = [(f"output {place}", leaf.detach().cpu()) for place, leaf in enumerate(found)]
        results = [leaf for leaf in found if leaf.requires_grad]
        if not results or not wanted:
            return seen
        generator = torch.Generator().manual_seed(0)
        cotangents = [torch.randn(leaf.shape, generator=generator).to(leaf.device, leaf.dtype) for leaf in results]
        values = [value for _, value in wanted]
        gradients = torch.autograd.grad(results, values, cotangents, allow_unused=True)
    finally:
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(state[name])
    for (name, value), gradient in zip(wanted, gradients):
        seen.append((name, torch.zeros_like(value) if gradient is None else gradient))
    # Compared on the host: not every device has each element type.
    return [(name, value.cpu()) for name, value in seen]


def difference(expected: Seen, found: Seen, tolerance: float | None = None) -> tuple[float, str | None]:
    """The largest difference, relative to the largest element of its tensor; and the first tensor whose difference is
    above ``tolerance``, in words, None if there is none. Without a tolerance that of its type of numbers holds."""
    largest, first = 0.0, None
    gradients = [_magnitude(value) for name, value in expected if name.startswith("the gradient")]
    floor = _FLOOR * max(gradients, default=0.0)
    for (name, theirs), (_, ours) in zip(expected, found):
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            return float("inf"), first or f"{name} is {ours.dtype} {list(ours.shape)}, not {theirs.dtype} {list(theirs.shape)}"
        scale = max(_magnitude(theirs), floor if name.startswith("the gradient") else 0.0, 1e-30)
        off = _magnitude(ours.double() - theirs.double()) / scale
        largest = max(largest, off)
        allowed = _TOLERANCE.get(theirs.dtype, 0.0) if tolerance is None else tolerance
        if not off <= allowed and first is None:
            first = f"{name} is off by {off:.1e} of its largest element"
    if len(expected) != len(found):
        first = first or f"{len(found)} tensors instead of {len(expected)}"
    return largest, first


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


def _magnitude(value: torch.Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0
