"""Indices that a program is fed: where they choose rows of a tensor, they must be rows of it.

The ranks clamp an index into its range, as StableHLO does, where PyTorch raises. So those that come from outside are
checked before a pass. An index that the program computes itself is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from partita import _partita
from partita._error import refuse
from partita._tensors import Packed, to_numpy

if TYPE_CHECKING:
    from partita._load import Model


class Range(NamedTuple):
    """The indices that an op takes, from ``least`` to ``most``, and what it is called."""

    least: int
    most: int
    op: str
    ignored: int | None = None
    """An index outside them that is taken all the same: that of labels that do not count."""


# What changes the place of elements, and no integer.
_MOVES = {
    "_to_copy", "alias", "clone", "contiguous", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze", "t",
    "to", "transpose", "unflatten", "unsqueeze", "view",
}  # fmt: skip


def ranges_of(exported: Any) -> dict[str, list[Range]]:
    """By input of an exported program of PyTorch: the ranges in which its elements must lie."""
    inputs = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    found: dict[str, list[Range]] = {}
    for node in exported.graph.nodes:
        for index, size, wraps, *ignored in _chosen(node):
            while _name(index) in _MOVES and not _is_float(index.args[0]):
                index = index.args[0]
            if index.op == "placeholder" and index.name in inputs and _is_integer(index):
                where = _module_of(node)
                op = f"{_name(node)} of {where}" if where else _name(node)
                one = Range(-size if wraps else 0, size - 1, op, *ignored)
                if one not in found.setdefault(index.name, []):
                    found[index.name].append(one)
    return {_partita.name_of_user(name): ranges for name, ranges in found.items()}


_LABELS_AT = {"cross_entropy_loss": 4, "nll_loss": 4, "nll_loss2d": 4, "nll_loss_nd": 4}
"""The ops that take labels, and the place of ``ignore_index`` among their arguments."""

_ALONG = {
    "gather": False, "index_add": False, "index_copy": False, "index_fill": True, "index_reduce": False,
    "index_select": False, "scatter": False, "scatter_add": False, "scatter_reduce": False,
}  # fmt: skip
"""The ops of a tensor, a dimension and indices along it, and whether negative ones count from the end."""


def _chosen(node: Any) -> list[tuple[Any, ...]]:
    """The indices of an op, how many rows each chooses from, whether negative ones count from the end, and for labels the one
    that is ignored."""
    name = _name(node)
    if name not in _LABELS_AT:
        # The form of an op that replaces its first argument.
        name = name.removesuffix("_")
    if name in _LABELS_AT:
        shape, place = _shape(node.args[0]), _LABELS_AT[name]
        given = node.args[place] if len(node.args) > place else node.kwargs.get("ignore_index", -100)
        return [(node.args[1], shape[1 if len(shape) > 1 else 0], False, given)] if isinstance(given, int) else []
    if name == "multilabel_margin_loss":
        # -1 ends the labels of a row.
        return [(node.args[1], _shape(node.args[0])[-1], False, -1)]
    if name == "multi_margin_loss":
        return [(node.args[1], _shape(node.args[0])[-1], False)]
    if name in ("embedding", "embedding_bag", "_embedding_bag"):
        return [(node.args[1], _shape(node.args[0])[0], False)]
    if name == "one_hot" and len(node.args) > 1:
        return [(node.args[0], node.args[1], False)]
    if name in ("take", "put"):
        return [(node.args[1], math.prod(_shape(node.args[0])), True)]
    if name in ("max_unpool2d", "max_unpool3d"):
        return [(node.args[1], math.prod(node.args[2]), False)]
    if name == "take_along_dim":
        shape, dim = _shape(node.args[0]), _given(node, 2, "dim")
        return [(node.args[1], math.prod(shape) if dim is None else shape[dim], True)]
    if name in _ALONG:
        shape, dim, index = _shape(node.args[0]), _given(node, 1, "dim"), _given(node, 2, "index")
        return [(index, shape[dim], _ALONG[name])] if shape else []
    if name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        shape = _shape(node.args[0])
        return [(index, shape[dim], True) for dim, index in enumerate(node.args[1]) if index is not None]
    return []


def _given(node: Any, place: int, name: str) -> Any:
    """An argument by place or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _name(node: Any) -> str:
    text = str(node.target)
    return text.split(".")[1] if node.op == "call_function" and text.startswith("aten.") else ""


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _is_integer(node: Any) -> bool:
    return str(node.meta["val"].dtype).startswith(("torch.int", "torch.uint"))


def _is_float(node: Any) -> bool:
    value = getattr(node, "meta", {}).get("val")
    return bool(getattr(value, "is_floating_point", bool)())


def _module_of(node: Any) -> str:
    """The path of the module that an op is in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path: str = stack[-1][0] if stack else ""
    return path


def check_rows(model: Model, tensors: Iterable[tuple[str, Packed]]) -> None:
    """E423 for an input with an index outside the tensor that it chooses from."""
    if not model._ranges:
        return
    for name, packed in tensors:
        for least, most, op, ignored in model._ranges.get(name, ()):
            values = to_numpy(packed)
            if ignored is not None:
                values = values[values != ignored]
            if not values.size or values.dtype.kind not in "iu":
                continue
            low, high = int(values.min()), int(values.max())
            if low < least or high > most:
                wrong = low if low < least else high
                raise refuse(
                    "E423",
                    f"`{name}` has the index {wrong}, which is outside the tensor"
                    if ignored is None
                    else f"`{name}` has the label {wrong}, which is no class",
                    at=op,
                    expected=f"from {least} to {most}",
                    found=f"from {low} to {high}",
                )
