"""Marks in a program of JAX: ends of layers, and the border between gradients and what uses them.

Both are primitives, so that they survive tracing. The mark of a layer has no operands; an effect keeps it from being
removed. It has no tangent either, and would never appear in the backward pass. So the loss is traced, its equations are
evaluated again, and those of a layer run under a named scope, ``pp_stage_0``, ..: differentiation carries the scope into
every equation that it makes, and it arrives as the location of an op.

This file alone uses private parts of JAX (tried with 0.10).
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import core as private_core
from jax._src import dtypes, effects, source_info_util
from jax._src.interpreters import pxla
from jax.extend import core
from jax.interpreters import batching, mlir

from partita._error import refuse

__all__ = ["border", "evaluate", "holds", "layers_asked", "layers_marked", "mark", "mark_pipeline_boundary", "register_array", "where"]

# The source lines of messages are those of the user.
for _file in pathlib.Path(__file__).parent.glob("*.py"):
    source_info_util.register_exclusion(str(_file))


class _MarkEffect(effects.Effect):
    """Keeps the mark of a layer from being removed as unused."""


_EFFECT = _MarkEffect()
for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(_MarkEffect)

mark = core.Primitive("pipeline_mark")
mark.multiple_results = True
mark.def_impl(lambda: [])
mark.def_effectful_abstract_eval(lambda: ([], {_EFFECT}))
mlir.register_lowering(mark, lambda ctx: [])
batching.primitive_batchers[mark] = lambda args, dims: (mark.bind(), [])

border = core.Primitive("gradient_border")
border.multiple_results = True
border.def_impl(lambda *values, names: list(values))
border.def_abstract_eval(lambda *values, names: list(values))
mlir.register_lowering(border, mlir.lower_fun(lambda *values, names: list(values), multiple_results=True))


def mark_pipeline_boundary() -> None:
    """Ends a layer of a pipeline here: in a module of flax or haiku, or anywhere in the loss.

    The loss must be decorated with ``manual_layer_construction``; otherwise ``parallelize`` raises E386. Outside of a
    parallelized function it does nothing.
    """
    mark.bind()


def holds(equation: Any, primitives: Sequence[Any]) -> bool:
    """Whether one of these primitives is in an equation or in what it calls."""
    if equation.primitive in primitives:
        return True
    return any(holds(inner, primitives) for jaxpr in _called(equation) for inner in jaxpr.eqns)


def _called(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def where(equation: Any) -> str:
    """The source line of an equation."""
    return source_info_util.summarize(equation.source_info)


def evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    arguments: Sequence[Any],
    handlers: dict[Any, Callable[[Any, list[Any]], list[Any]]],
    scope: Callable[[], Any] = contextlib.nullcontext,
) -> list[Any]:
    """Evaluates a jaxpr, with ``handlers`` for some primitives: they get the equation and its operands. Calls of jitted
    functions with such primitives in them are opened. All other equations run in ``scope()``.

    Raises ``PartitaError``: E386 for such a primitive in a loop, a branch or a rematerialised function.
    """
    values = dict(zip(jaxpr.constvars, constants)) | dict(zip(jaxpr.invars, arguments))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    def run(equations: list[Any]) -> None:
        if not equations:
            return
        made = {variable for equation in equations for variable in equation.outvars}
        operands = (v for equation in equations for v in equation.invars if not isinstance(v, core.Literal))
        taken = list(dict.fromkeys(v for v in operands if v not in made))
        results = [v for equation in equations for v in equation.outvars if type(v).__name__ != "DropVar"]
        part = jaxpr.replace(
            constvars=[],
            invars=taken,
            outvars=results,
            eqns=equations,
            effects=set(),
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        with scope():
            found = core.jaxpr_as_fun(core.ClosedJaxpr(part, []))(*map(read, taken))
        values.update(zip(results, found))

    plain: list[Any] = []
    for equation in jaxpr.eqns:
        if not holds(equation, list(handlers)):
            plain.append(equation)
            continue
        run(plain)
        plain = []
        operands = list(map(read, equation.invars))
        handler = handlers.get(equation.primitive)
        if handler is not None:
            found = handler(equation, operands)
        elif equation.primitive.name in ("jit", "pjit"):
            called, name = equation.params["jaxpr"], str(equation.source_info.name_stack)
            with jax.named_scope(name) if name else contextlib.nullcontext():
                found = evaluate(called.jaxpr, called.consts, operands, handlers, scope)
        else:
            raise refuse(
                "E386",
                f"a mark or a gradient inside `{equation.primitive.name}` cannot be seen from outside",
                expected="marks and `alpa.grad` outside of loops, branches and rematerialised functions",
                at=where(equation),
                help="put the mark between two calls of `nn.remat`, `nn.scan` or `lax.cond`, not into one",
            )
        values.update(zip(equation.outvars, found))
    run(plain)
    return list(map(read, jaxpr.outvars))


def _traced(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    leaves = jax.tree.leaves((arguments, named))
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments, **named)
    return closed, jax.tree.structure(shape), leaves


def register_array(kind: type, fetch: Callable[[Any], Any]) -> None:
    """Lets functions of JAX take arrays of this kind, which have ``shape`` and ``dtype``, by the array that ``fetch`` gives."""

    def aval(value: Any) -> Any:
        return jax.core.ShapedArray(value.shape, value.dtype)

    def shards(values: Any, shardings: Any, layouts: Any, copies: Any) -> Any:
        return pxla.shard_args(shardings, layouts, copies, list(map(fetch, values)))

    private_core.pytype_aval_mappings[kind] = aval
    dtypes.register_canonicalize_value_handler(kind, fetch)
    pxla.shard_arg_handlers[kind] = shards


def layers_marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with each layer, up to a mark, in a scope of its own: ``pp_stage_0``, ``pp_stage_1``, .."""

    @functools.wraps(function)
    def marked(*arguments: Any, **named: Any) -> Any:
        closed, tree, leaves = _traced(function, arguments, named)
        layer = 0

        def next_layer(equation: Any, operands: list[Any]) -> list[Any]:
            nonlocal layer
            layer += 1
            return []

        def scope() -> Any:
            return jax.named_scope(f"pp_stage_{layer}")

        found = evaluate(closed.jaxpr, closed.consts, leaves, {mark: next_layer}, scope)
        return jax.tree.unflatten(tree, found)

    return marked


def layers_asked(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The function in a scope that asks for so many layers: ``pp_layers_2``. Marks in it are ignored."""

    @functools.wraps(function)
    def asked(*arguments: Any, **named: Any) -> Any:
        closed, tree, leaves = _traced(function, arguments, named)

        def scope() -> Any:
            return jax.named_scope(f"pp_layers_{count}")

        found = evaluate(closed.jaxpr, closed.consts, leaves, {mark: lambda equation, operands: []}, scope)
        return jax.tree.unflatten(tree, found)

    return asked
