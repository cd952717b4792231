"""Patterns that are Python functions over ops of PyTorch: matched in a traced module, and written as the text of a plan.

A pattern is traced and matched by dataflow, from its result to its inputs: an op of the module matches one of the pattern
if both are the same operation, whether it is written as a function, a method, an operator or a layer, and if their
operands match; those of a sum or product in either order. An input of the pattern matches any value, the same value in all
its places. No value inside a match may be read outside. ``call_module`` matches modules by their path.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from partita._error import refuse

# The name of each operation in a plan, and how programs write it.
_OPERATIONS: dict[str, tuple[Any, ...]] = {
    "add": (operator.add, operator.iadd, torch.add, "add"),
    "subtract": (operator.sub, torch.sub, "sub"),
    "multiply": (operator.mul, operator.imul, torch.mul, "mul"),
    "divide": (operator.truediv, torch.div, "div"),
    "gelu": (F.gelu, nn.GELU),
    "relu": (F.relu, torch.relu, nn.ReLU, "relu"),
    "tanh": (F.tanh, torch.tanh, nn.Tanh, "tanh"),
    "logistic": (F.sigmoid, torch.sigmoid, nn.Sigmoid, "sigmoid"),
    "silu": (F.silu, nn.SiLU),
    "exponential": (torch.exp, "exp"),
    "softmax": (F.softmax, torch.softmax, nn.Softmax, "softmax"),
    "dropout": (F.dropout, nn.Dropout),
    "linear": (F.linear, nn.Linear),
}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_COMMUTATIVE = {"add", "multiply"}


def call_module(path: str, *inputs: Any) -> Any:
    """In a pattern: a call of a module whose path matches a regular expression, or whose last names do.

        sch.find(lambda x: call_module("query|key|value", x))
    """
    tracers = [value.tracer for value in inputs if isinstance(value, fx.Proxy)]
    if not tracers:
        raise TypeError("call_module() is for patterns: it takes the pattern's values")
    return tracers[0].create_proxy("call_function", call_module, (path, *inputs), {})


def _is_called(path: str, node: fx.Node) -> bool:
    return node.op == "call_module" and re.search(rf"(?:^|\.)(?:{path})$", str(node.target)) is not None


def operation(node: fx.Node, root: nn.Module) -> Any:
    """The name of a node's operation; another node of the same unnamed operation has an equal value."""
    target = node.target
    if node.op == "call_module":
        kinds = type(root.get_submodule(str(target))).__mro__
        for name, forms in _OPERATIONS.items():
            if any(isinstance(form, type) and form in kinds for form in forms):
                return name
        return kinds[0]
    for name, forms in _OPERATIONS.items():
        if any(target is form or (isinstance(form, str) and target == form) for form in forms):
            return name
    return (node.op, target)


def _operands(node: fx.Node, root: nn.Module) -> list[Any]:
    values = [*node.args, *node.kwargs.values()]
    if node.op == "call_module" and isinstance(root.get_submodule(str(node.target)), nn.Linear):
        layer = root.get_submodule(str(node.target))
        return [*values, *([layer.weight] if layer.bias is None else [layer.weight, layer.bias])]
    # Options of an op, such as the kind of a GELU, are not compared, as in the patterns of a plan.
    return [value for value in values if isinstance(value, (fx.Node, int, float)) and not isinstance(value, bool)]


class Pattern:
    """A traced pattern."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        try:
            self.module = fx.symbolic_trace(function)
        except Exception as error:
            name = getattr(function, "__name__", "pattern")
            raise refuse(
                "E240",
                f"the pattern `{name}` cannot be traced",
                expected="a function of tensors without branches on their values",
                found=str(error).strip().splitlines()[0],
            ) from error
        (result,) = next(node for node in self.module.graph.nodes if node.op == "output").args
        self.results = list(result) if isinstance(result, (tuple, list)) else [result]

    def text(self) -> str:
        """The pattern as an expression of a plan: ``gelu(bias + x)``. E241 for an operation that has no name there."""
        return ", ".join(self._text(result) for result in self.results)

    def _text(self, value: Any) -> str:
        if not isinstance(value, fx.Node):
            return repr(value)
        if value.op == "placeholder":
            return str(value.target)
        if value.target is call_module:
            inputs = [self._text(inner) for inner in value.args[1:]]
            return f"module({', '.join([json.dumps(value.args[0]), *inputs])})"
        name = operation(value, self.module)
        if not isinstance(name, str):
            raise refuse(
                "E241",
                f"the pattern has an operation without a name in plans: {value.format_node()}",
                expected=", ".join(_OPERATIONS),
                found=str(value.target),
            )
        operands = _operands(value, self.module)
        if name in _SIGNS:
            return f" {_SIGNS[name]} ".join(self._factor(operand) for operand in operands)
        return f"{name}({', '.join(self._text(operand) for operand in operands)})"

    def _factor(self, value: Any) -> str:
        """An operand of an operator, in parentheses if it is one itself."""
        is_operator = isinstance(value, fx.Node) and operation(value, self.module) in _SIGNS
        return f"({self._text(value)})" if is_operator else self._text(value)

    def find(self, root: fx.GraphModule) -> list[list[fx.Node]]:
        """The matches in a traced module, each its nodes in order; no two share a node."""
        order = {node: place for place, node in enumerate(root.graph.nodes)}
        found: list[list[fx.Node]] = []
        taken: set[fx.Node] = set()
        for node in root.graph.nodes:
            if len(self.results) != 1:
                break
            bound = self._match(self.results[0], node, root, {})
            if bound is None:
                continue
            nodes = [ours for theirs, ours in bound.items() if theirs.op != "placeholder" and isinstance(ours, fx.Node)]
            inner = [ours for ours in nodes if ours is not node]
            if taken.intersection(nodes) or any(user not in nodes for ours in inner for user in ours.users):
                continue
            taken.update(nodes)
            found.append(sorted(nodes, key=order.__getitem__))
        return found

    def _match(self, theirs: Any, ours: Any, root: nn.Module, bound: dict[Any, Any]) -> dict[Any, Any] | None:
        """The values of a match by nodes of the pattern, which extend ``bound``; None if there is none."""
        if not isinstance(theirs, fx.Node):
            return bound if theirs == ours else None
        if theirs in bound:
            return bound if bound[theirs] is ours else None
        if theirs.op == "placeholder":
            return bound | {theirs: ours}
        if not isinstance(ours, fx.Node) or ours.op in ("placeholder", "output", "get_attr"):
            return None
        if theirs.target is call_module:
            if not _is_called(str(theirs.args[0]), ours):
                return None
            name, pattern, operands = None, list(theirs.args[1:]), list(ours.args)
        else:
            name = operation(theirs, self.module)
            if name != operation(ours, root):
                return None
            pattern, operands = _operands(theirs, self.module), _operands(ours, root)
        if len(pattern) != len(operands):
            return None
        orders = [operands, operands[::-1]] if name in _COMMUTATIVE else [operands]
        if self._is_reversed(pattern):
            orders.reverse()
        for order in orders:
            extended: dict[Any, Any] | None = bound | {theirs: ours}
            for inner, value in zip(pattern, order):
                extended = None if extended is None else self._match(inner, value, root, extended)
            if extended is not None:
                return extended
        return None

    def _is_reversed(self, operands: list[Any]) -> bool:
        """Whether two inputs of the pattern are read in another order than they are declared: of a sum that fits either
        way, the first input then is the first operand."""
        declared = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        places = [declared.index(value) for value in operands if value in declared]
        return len(places) == 2 == len(operands) and places[0] > places[1]

    def inputs(self, nodes: list[fx.Node], root: fx.GraphModule) -> list[Any]:
        """What the placeholders of the pattern stand for in a match, in their order."""
        bound = self._match(self.results[0], nodes[-1], root, {})
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        return [bound[node] for node in placeholders] if bound else []
