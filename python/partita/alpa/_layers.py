"""Layers of a pipeline, and gradients at which a step is divided into what each microbatch does and what is done once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax

from partita._error import refuse
from partita.alpa._marks import border, layers_asked, layers_marked

__all__ = [
    "AutoLayerOption",
    "ManualLayerOption",
    "automatic_layer_construction",
    "grad",
    "layer_option",
    "manual_layer_construction",
    "value_and_grad",
]


class ManualLayerOption:
    """Layers end at ``mark_pipeline_boundary()``: as ``manual_layer_construction`` around every loss."""

    def construct(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return layers_marked(function)

    def __repr__(self) -> str:
        return "ManualLayerOption()"


class AutoLayerOption:
    """``layer_num`` layers of about equal work: as ``automatic_layer_construction`` around every loss."""

    def __init__(self, layer_num: int) -> None:
        self.layer_num = _positive(layer_num)

    def construct(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return layers_asked(function, self.layer_num)

    def __repr__(self) -> str:
        return f"AutoLayerOption(layer_num={self.layer_num})"


layer_option: ContextVar[ManualLayerOption | AutoLayerOption | None] = ContextVar("layer_option", default=None)
"""The option of the method for which a step is being traced."""


def _positive(layer_num: int) -> int:
    if isinstance(layer_num, bool) or not isinstance(layer_num, int) or layer_num < 1:
        raise refuse("E386", "the number of layers is no positive number", expected="an int of at least 1", found=repr(layer_num))
    return layer_num


def manual_layer_construction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the loss: its layers end where it calls ``mark_pipeline_boundary()``, so that ``n`` marks make
    ``n + 1`` layers, which become the stages of a pipeline.

    Raises ``PartitaError`` where it is called: E386 for a mark in a loop, a branch or a rematerialised function.
    """
    return layers_marked(function)


def automatic_layer_construction(
    function: Callable[..., Any] | None = None, *, layer_num: int
) -> Callable[..., Any]:
    """A decorator of the loss: Partita cuts it into ``layer_num`` layers of about equal work where the fewest bytes
    cross. Each layer needs a matrix product or an op of that size (E460)."""
    count = _positive(layer_num)
    if function is None:
        return functools.partial(layers_asked, count=count)
    return layers_asked(function, count)


def value_and_grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """``jax.value_and_grad``, and says that what uses the results runs once for a batch, after all microbatches.

    With ``has_aux`` the other results are those of the whole batch.
    """

    @functools.wraps(fun)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        option = layer_option.get()
        loss = fun if option is None else option.construct(fun)
        value, gradients = jax.value_and_grad(loss, argnums, has_aux, **options)(*arguments, **named)
        value, aux = value if has_aux else (value, None)
        of = [arguments[place] for place in argnums] if isinstance(argnums, tuple) else arguments[argnums]
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(of)[0]]
        names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path in paths)
        leaves, tree = jax.tree.flatten(gradients)
        value, *leaves = border.bind(value, *leaves, names=names)
        gradients = jax.tree.unflatten(tree, leaves)
        return ((value, aux) if has_aux else value), gradients

    return differentiated


def grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """``jax.grad``, and says that what uses the gradients runs once for a batch, after all microbatches.

    The gradients are those of the whole batch, of a mean and of a sum alike: what does not depend on single samples,
    such as the number that a mean is divided by, stays that of the batch.
    """
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        value, gradients = both(*arguments, **named)
        return (gradients, value[1]) if has_aux else gradients

    return differentiated
