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
from partita._caches import without_caches
from partita._load import Model
from partita._module import FLOATS
from partita._partita import PartitaError, Report

__all__ = ["beside_pytorch"]

# As in verifications without PyTorch: the noise of a gradient where terms cancel, over the error of PyTorch's own pass
# against one in f64; and without one, in units in the last place of the largest gradient.
_NOISE_OVER_ERROR, _NOISE_UNITS = _partita.gradient_noise()
_PASSES = 4
_STEPS = 3
_RATE = 0.01
# Why a trainer does not take a module that may be built: hooks of gradients, state outside of buffers, shared memory.
_UNTRAINED = ("E391", "E396", "E398")


def beside_pytorch(
    model: Model,
    build: Callable[[], Any],
    trainer: Callable[[str], Any],
    clip_grad_norm: float | None,
    report: Report,
) -> Report:
    """The report with a comparison of the planned module with the module itself, if the model came from one; and of the steps
    of a trainer, which may clip gradients, if it has a loss."""
    module, example = model._module, model._example
    if module is None or example is None:
        return report
    args, kwargs = example
    # Masks of dropout are others than PyTorch's; without them the module is compared.
    draws = model._native.is_random()
    if model._loss is not None and not draws:
        report = _steps(model, trainer, clip_grad_norm, args, report)
    # With a loss, the last argument is its target.
    args = args if model._loss is None else args[:-1]
    sides = [build(), copy.deepcopy(module), _precise(module)]
    for side in sides:
        if side is not None:
            side.train(module.training and not draws)
    planned, plain, precise = sides
    found, expected = _passes(planned, args, kwargs, draws), _passes(plain, args, kwargs, draws)
    exact = None if precise is None else _passes(precise, args, kwargs, draws)
    kind = type(module).__name__
    shapes = ", ".join(_shown(value) for value in pytree.tree_leaves((args, kwargs)))
    mode = "without dropout" if draws else "training" if module.training else "evaluating"
    what = f"{_PASSES} passes of the built module, {mode}, with {kind} of PyTorch, at {shapes}"
    return report.also(what, *_compared(found, expected, exact))


def _steps(
    model: Model, trainer: Callable[[str], Any], clip_grad_norm: float | None, args: Sequence[Any], report: Report
) -> Report:
    """The report with a comparison of the steps that a trainer takes with those of PyTorch, by gradient descent."""
    module: Any = model._module
    loss: Any = model._loss
    try:
        trained = trainer("sgd")
    except PartitaError as error:
        if error.code in _UNTRAINED:
            return report
        raise
    sides = [copy.deepcopy(module), _precise(module)]
    found: dict[str, torch.Tensor] = {}
    compared: list[dict[str, torch.Tensor] | None] = [{}, None if sides[1] is None else {}]
    batches = [[_fed(value, number, place) for place, value in enumerate(args)] for number in range(_STEPS)]
    for number, batch in enumerate(batches):
        found[f"step {number}, loss"] = torch.tensor(trained.step(tuple(batch), lr=_RATE))
    found |= {f"after {_STEPS} steps, {name}": value for name, value in trained.state_dict().items()}
    for place, (side, results) in enumerate(zip(sides, compared)):
        if side is None or results is None:
            continue
        parameters = [value for value in side.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=_RATE)
        try:
            for number, batch in enumerate(batches):
                given = [value.detach().to(_type_for(side, value)) if _is_float(value) else value for value in batch]
                optimizer.zero_grad()
                value = loss(side(*given[:-1]), given[-1])
                value.backward()
                if clip_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, clip_grad_norm)
                optimizer.step()
                results[f"step {number}, loss"] = value.detach()
        except (RuntimeError, TypeError):
            # Not every module has a form in f64.
            if place == 0:
                raise
            compared[place] = None
            continue
        results |= {f"after {_STEPS} steps, {name}": value for name, value in side.state_dict().items()}
        compared[place] = results
    kind = type(module).__name__
    shapes = ", ".join(map(_shown, args))
    what = f"{_STEPS} steps of a trainer with those of PyTorch on {kind}, by SGD, at {shapes}"
    # The trainer may compute in a narrower type.
    return report.also(what, *_compared(found, compared[0], compared[1], report.tolerance))


def _precise(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module in f64, if all its numbers are in f32."""
    tensors = [*module.parameters(), *module.buffers()]
    if not all(value.dtype == torch.float32 for value in tensors if value.is_floating_point()):
        return None
    return copy.deepcopy(module).double()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _type_for(module: torch.nn.Module, value: torch.Tensor) -> torch.dtype:
    """The type in which a module takes a tensor."""
    own = next((value.dtype for value in module.parameters() if value.is_floating_point()), torch.float32)
    return own if value.dtype == torch.float32 else value.dtype


def _fed(value: Any, number: int, place: int) -> Any:
    """An argument in one of several passes: no two passes, and no two arguments, have the same numbers."""
    if not _is_float(value):
        return value
    moved = value.detach() * (1 - 0.2 * number) * (1 - 0.03 * place)
    # Rows in another order are as far apart as the rows are.
    return moved.roll(place, 0) if moved.dim() else moved


def _passes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any], draws: bool
) -> dict[str, torch.Tensor] | None:
    """Outputs, gradients and buffers of some forward and backward passes in a row, by name; None if the module refuses its
    inputs in this type.

    The first pass gives one tensor in all places that can take it, as a user may; the last one changes the mode and the plain
    numbers of the module first.
    """
    results: dict[str, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}
    for number in range(_PASSES):
        generator = torch.Generator().manual_seed(number)
        first: dict[Any, torch.Tensor] = {}

        def fed(place: int, value: Any) -> Any:
            if not _is_float(value):
                return value
            key = value.dtype, value.shape, value.requires_grad, place if number else 0
            if key not in first:
                made = _fed(value, number, place).to(_type_for(module, value))
                first[key] = made.requires_grad_(value.requires_grad)
            return first[key]

        given, spec = pytree.tree_flatten((tuple(args), kwargs))
        inputs = pytree.tree_unflatten([fed(place, value) for place, value in enumerate(given)], spec)
        if number == _PASSES - 1:
            _change(module, draws)
        module.zero_grad(set_to_none=True)
        try:
            outputs, _ = without_caches(module(*inputs[0], **inputs[1]))
        except (RuntimeError, TypeError):
            if any(value.dtype == torch.float64 for value in module.parameters()):
                return None
            raise
        leaves = enumerate(pytree.tree_leaves(outputs))
        found = {f"output {place}": value for place, value in leaves if isinstance(value, torch.Tensor)}
        found |= _left_behind(module, seen)
        product: Any = 0.0
        for place, (name, value) in enumerate(found.items()):
            results[f"pass {number}, {name}"] = value.detach().clone()
            value = _real(value)
            if value.requires_grad and value.is_floating_point():
                # The last pass but one has no gradient of the first output.
                weight = torch.randn(value.shape, generator=generator) * (number != _PASSES - 2 or place > 0)
                product = product + (value.cpu().double() * weight.double()).sum()
        if isinstance(product, torch.Tensor):
            product.backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                results[f"pass {number}, grad.{name}"] = parameter.grad.detach().clone()
        for name, buffer in module.named_buffers():
            results[f"pass {number}, {name}"] = buffer.detach().clone()
    return results


def _change(module: torch.nn.Module, draws: bool) -> None:
    """Changes a module as its user may between two calls: its mode, unless dropout would follow, and plain numbers."""
    if not draws:
        module.eval()
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if type(value) is float and not name.startswith("_"):
                setattr(part, name, 0.75 * value)


def _left_behind(module: torch.nn.Module, seen: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that forward() has left in attributes and buffers, such as a loss of a router, but those seen before."""
    found = {}
    for path, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if not name.startswith("_")} | part._buffers
        for place, value in enumerate(pytree.tree_leaves(own)):
            if isinstance(value, torch.Tensor) and not value.is_leaf and id(value) not in seen:
                # Kept, so that no other tensor gets its id.
                seen[id(value)] = value
                found[f"{path or type(part).__name__}, attribute {place}"] = value
    return found


def _compared(
    found: dict[str, torch.Tensor] | None,
    expected: dict[str, torch.Tensor] | None,
    exact: dict[str, torch.Tensor] | None,
    at_least: float = 0.0,
) -> tuple[float, list[tuple[str, float, int]]]:
    """The tolerance, and for each tensor its name, its largest relative difference, and its wrong elements."""
    found, expected = found or {}, expected or {}
    found, expected = ({name: _real(value) for name, value in values.items()} for values in (found, expected))
    types = {value.dtype for value in expected.values()}
    tolerance = max((_partita.tolerance(name) for name, dtype in FLOATS.items() if dtype in types), default=0.0)
    tolerance = max(tolerance, at_least)
    sizes = [_largest(value) for name, value in expected.items() if ", grad." in name]
    largest_gradient = max(sizes, default=0.0)
    compared = []
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in found or name not in expected or found[name].shape != expected[name].shape:
            compared.append((name, math.inf, 1))
            continue
        own, right = found[name].cpu().double(), expected[name].cpu().double()
        size = _largest(right)
        noise = _NOISE_UNITS * torch.finfo(torch.float32).eps * largest_gradient if ", grad." in name else 0.0
        if exact is not None and name in exact:
            noise = _NOISE_OVER_ERROR * _largest(right - _real(exact[name]).cpu().double())
        difference = (own - right).abs()
        # What is not finite must be equal.
        difference[(own == right) | (own.isnan() & right.isnan())] = 0.0
        wrong = int((~(difference <= max(tolerance * size, noise))).sum())
        # Of a tensor that is noise, against the size at which the noise is the tolerance.
        scale = max(size, noise / tolerance if tolerance else 0.0, 1e-6)
        relative = float(difference.nan_to_num(math.inf).max()) / scale if difference.numel() else 0.0
        compared.append((name, relative, wrong))
    return tolerance, compared


def _real(value: torch.Tensor) -> torch.Tensor:
    """Real numbers: of complex ones, their parts."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _largest(value: torch.Tensor) -> float:
    """The largest magnitude of the finite elements."""
    value = value.cpu().double().abs()
    return float(value[value.isfinite()].max()) if value.isfinite().any() else 0.0


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
