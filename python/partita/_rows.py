"""Indices that a program is fed: where they choose rows of a tensor, they must be rows of it.

The ranks clamp an index into its range, as StableHLO does, where PyTorch raises. So those that come from outside are
checked before a pass. An index that the program computes itself is not.
"""

from __future__ import annotations

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
        for index, size, wraps in _chosen(node):
            while _name(index) in _MOVES and not _is_float(index.args[0]):
                index = index.args[0]
            if index.op == "placeholder" and index.name in inputs and _is_integer(index):
                where = _module_of(node)
                one = Range(-size if wraps else 0, size - 1, f"{_name(node)} of {where}" if where else _name(node))
                if one not in found.setdefault(index.name, []):
                    found[index.name].append(one)
    return {_partita.name_of_user(name): ranges for name, ranges in found.items()}


def _chosen(node: Any) -> list[tuple[Any, int, bool]]:
    """The indices of an op, how many rows each chooses from, and whether negative ones count from the end."""
    name = _name(node)
    if name == "embedding":
        return [(node.args[1], _shape(node.args[0])[0], False)]
    if name in ("index_select", "gather"):
        shape, dim, index = _shape(node.args[0]), node.args[1], node.args[2]
        return [(index, shape[dim], False)] if shape else []
    if name == "index":
        shape = _shape(node.args[0])
        return [(index, shape[dim], True) for dim, index in enumerate(node.args[1]) if index is not None]
    return []


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
        for least, most, op in model._ranges.get(name, ()):
            values = to_numpy(packed)
            if not values.size or values.dtype.kind not in "iu":
                continue
            low, high = int(values.min()), int(values.max())
            if low < least or high > most:
                wrong = low if low < least else high
                raise refuse(
                    "E423",
                    f"`{name}` has the index {wrong}, which is outside the tensor",
                    at=op,
                    expected=f"from {least} to {most}",
                    found=f"from {low} to {high}",
                )
