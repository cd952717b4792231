"""Verification against PyTorch: a module under a plan, called as its users call it, beside the module itself.

The programs of a plan are compared with the interpreter, which reads the graph that they were made of. Here the other side
is PyTorch's own forward and backward pass, so that the import, the exported program and what lies around a pass are compared
as well. Each pass is one of several in a row, with other inputs and other gradients of the outputs: what is left of the one
before would show.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _partita
from partita._load import Model
from partita._module import FLOATS
from partita._partita import Report

__all__ = ["beside_pytorch"]

# As in verifications without PyTorch: the noise of a gradient where terms cancel, over the error of PyTorch's own pass
# against one in f64; and without one, in units in the last place of the largest gradient.
_NOISE_OVER_ERROR, _NOISE_UNITS = _partita.gradient_noise()
_PASSES = 3


def beside_pytorch(model: Model, build: Callable[[], Any], report: Report) -> Report:
    """The report with a comparison of the planned module with the module itself, if the model came from one."""
    module, example = model._module, model._example
    if module is None or example is None:
        return report
    args, kwargs = example
    # With a loss, the last argument is its target.
    args = args if model._loss is None else args[:-1]
    # Masks of dropout are others than PyTorch's; without them the module is compared.
    draws = model._native.is_random()
    sides = [build(), copy.deepcopy(module), _precise(module)]
    for side in sides:
        if side is not None:
            side.train(module.training and not draws)
    planned, plain, precise = sides
    found, expected = _passes(planned, args, kwargs), _passes(plain, args, kwargs)
    exact = None if precise is None else _passes(precise, args, kwargs)
    kind = type(module).__name__
    shapes = ", ".join(_shown(value) for value in pytree.tree_leaves((args, kwargs)))
    mode = "without dropout" if draws else "training" if module.training else "evaluating"
    what = f"{_PASSES} passes of the built module, {mode}, with {kind} of PyTorch, at {shapes}"
    return report.also(what, *_compared(found, expected, exact))


def _precise(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module in f64, if all its numbers are in f32."""
    tensors = [*module.parameters(), *module.buffers()]
    if not all(value.dtype == torch.float32 for value in tensors if value.is_floating_point()):
        return None
    return copy.deepcopy(module).double()


def _passes(module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """Outputs, gradients and buffers of some forward and backward passes in a row, by name; None if the module refuses its
    inputs in this type."""
    dtype = next((value.dtype for value in module.parameters() if value.is_floating_point()), torch.float32)
    results: dict[str, torch.Tensor] = {}
    for number in range(_PASSES):
        generator = torch.Generator().manual_seed(number)

        def fed(place: int, value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return value
            # No two passes, and no two arguments, have the same numbers.
            scaled = value.detach() * (1 - 0.25 * number) * (1 - 0.03 * place)
            return scaled.to(dtype if value.dtype == torch.float32 else value.dtype).requires_grad_(value.requires_grad)

        given, spec = pytree.tree_flatten((tuple(args), kwargs))
        inputs = pytree.tree_unflatten([fed(place, value) for place, value in enumerate(given)], spec)
        module.zero_grad(set_to_none=True)
        try:
            outputs = module(*inputs[0], **inputs[1])
        except (RuntimeError, TypeError):
            if dtype == torch.float64:
                return None
            raise
        leaves = enumerate(pytree.tree_leaves(outputs))
        found = {f"output {place}": value for place, value in leaves if isinstance(value, torch.Tensor)}
        found |= _left_behind(module)
        product: Any = 0.0
        for place, (name, value) in enumerate(found.items()):
            results[f"pass {number}, {name}"] = value.detach().clone()
            if value.requires_grad and value.is_floating_point():
                # The last pass has no gradient of the first output.
                weight = torch.randn(value.shape, generator=generator) * (number < _PASSES - 1 or place > 0)
                product = product + (value.double() * weight.double()).sum()
        if isinstance(product, torch.Tensor):
            product.backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                results[f"pass {number}, grad.{name}"] = parameter.grad.detach().clone()
        for name, buffer in module.named_buffers():
            results[f"pass {number}, {name}"] = buffer.detach().clone()
    return results


def _left_behind(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that forward() has left in attributes, such as a loss of a router."""
    found = {}
    for path, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        for place, value in enumerate(pytree.tree_leaves(own)):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                found[f"{path or type(part).__name__}, attribute {place}"] = value
    return found


def _compared(
    found: dict[str, torch.Tensor] | None,
    expected: dict[str, torch.Tensor] | None,
    exact: dict[str, torch.Tensor] | None,
) -> tuple[float, list[tuple[str, float, int]]]:
    """The tolerance, and for each tensor its name, its largest relative difference, and its wrong elements."""
    found, expected = found or {}, expected or {}
    types = {value.dtype for value in expected.values()}
    tolerance = max((_partita.tolerance(name) for name, dtype in FLOATS.items() if dtype in types), default=0.0)
    sizes = [_largest(value) for name, value in expected.items() if ", grad." in name]
    largest_gradient = max(sizes, default=0.0)
    compared = []
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in found or name not in expected or found[name].shape != expected[name].shape:
            compared.append((name, math.inf, 1))
            continue
        own, right = found[name].double(), expected[name].double()
        size = _largest(right)
        noise = _NOISE_UNITS * torch.finfo(torch.float32).eps * largest_gradient if ", grad." in name else 0.0
        if exact is not None and name in exact:
            noise = _NOISE_OVER_ERROR * _largest(right - exact[name].double())
        difference = (own - right).abs()
        # What is not finite must be equal.
        difference[(own == right) | (own.isnan() & right.isnan())] = 0.0
        wrong = int((~(difference <= max(tolerance * size, noise))).sum())
        relative = float(difference.nan_to_num(math.inf).max()) / max(size, 1e-6) if difference.numel() else 0.0
        compared.append((name, relative, wrong))
    return tolerance, compared


def _largest(value: torch.Tensor) -> float:
    """The largest magnitude of the finite elements."""
    value = value.double().abs()
    return float(value[value.isfinite()].max()) if value.isfinite().any() else 0.0


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
