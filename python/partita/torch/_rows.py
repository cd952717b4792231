"""Where the rows of a batch are in the values of a program.

A program is exported for a batch and for one of its equal parts. A value that depends on the number of rows has one dimension
with another size in one than in the other; all other sizes are equal. A rule for each op then says whether the op computes
rows apart from each other and keeps their order, as parts of a batch need it. An op without a rule is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node


class Unshared(Exception):
    """Why parts of a batch do not make up its loss."""

    def __init__(self, why: str, help: str | None = None) -> None:
        super().__init__(why)
        self.why, self.help = why, help


@dataclass(frozen=True)
class Place:
    """A dimension with rows. It holds ``blocks`` blocks of all rows, and each row has equally many elements in a block.
    ``None``: all elements of the value are one number, or are drawn alike."""

    dim: int
    blocks: int | None


REDUCED = "reduced"
"""The state of a value that depends on the rows, or on their number, and has none."""

State = Place | str | None
"""A place, ``REDUCED``, or None for what does not depend on the rows."""

# Results of these are their first operand in another form.
FORMS = {
    "_to_copy", "_unsafe_view", "alias", "broadcast_to", "clone", "contiguous", "detach", "expand", "expand_as", "flatten",
    "lift_fresh_copy", "ravel", "reshape", "squeeze", "to", "type_as", "unflatten", "unsqueeze", "view", "view_as",
}  # fmt: skip


class Rows:
    """The states of the values that a loss is computed from. Raises ``Unshared`` for an op that combines rows."""

    def __init__(self, whole: Any, part: Any, parts: int) -> None:
        self.parts = parts
        self.loss = _result(whole)
        self.twin = _paired(self.loss, _result(part))
        """Of each value of the program for the batch, that of the program for a part."""
        self.numbers: set[Node] = set()
        """The numbers of the rows: 0, 1, 2, .."""
        self._states: dict[Node, Any] = {}
        self.count = 0
        """The number of rows of the batch."""
        self._find_inputs(whole, part)
        for node in ancestors(whole.graph, self.loss):
            if node.op != "placeholder":
                self._states[node] = self._found(node)

    def __getitem__(self, node: Node) -> State:
        state: State = self._states.get(node)
        return state

    def shapes(self, node: Node) -> tuple[torch.Size, torch.Size] | None:
        """The shapes of a value in the two programs, if it is a tensor."""
        shapes = [_shape(value) for value in (node, self.twin[node])]
        return (shapes[0], shapes[1]) if shapes[0] is not None and shapes[1] is not None else None

    def _find_inputs(self, whole: Any, part: Any) -> None:
        names = {spec.arg.name: spec.target for spec in part.graph_signature.input_specs}
        constants = [{**program.constants, **program.state_dict} for program in (whole, part)]
        for spec, node in zip(whole.graph_signature.input_specs, whole.graph.find_nodes(op="placeholder")):
            shapes = self.shapes(node) if node in self.twin else None
            if spec.kind.name == "USER_INPUT":
                if shapes is not None:
                    state = self.located(shapes, 1, node)
                    if isinstance(state, Place):
                        self.count, self._states[node] = shapes[0][state.dim], state
            elif spec.kind.name == "CONSTANT_TENSOR" and node in self.twin:
                value, own = constants[0].get(spec.target), constants[1].get(names[self.twin[node].name])
                if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and not torch.equal(value, own):
                    self._states[node] = self._of_constant(node, value, own)

    def _of_constant(self, node: Node, value: torch.Tensor, own: torch.Tensor) -> State:
        """Of a tensor that forward() makes of the number of rows."""
        if value.shape == own.shape:
            return REDUCED
        if value.unique().numel() != 1 or not torch.equal(value.unique(), own.unique()):
            raise Unshared(f"{shown(node)} is made of the number of rows")
        return self.located((value.shape, own.shape), None, node)

    def located(self, shapes: tuple[torch.Size, torch.Size], blocks: int | None, node: Node) -> State:
        """The place of rows in a value of these shapes in the two programs; None for one without rows."""
        whole, part = shapes
        dims = [dim for dim, (size, own) in enumerate(zip(whole, part)) if size != own]
        if len(whole) == len(part) and not dims:
            return None
        if len(whole) != len(part) or len(dims) != 1 or whole[dims[0]] != part[dims[0]] * self.parts:
            raise Unshared(f"{shown(node)} combines rows: of a part its shape is {list(part)}")
        return Place(dims[0], blocks)

    def _found(self, node: Node) -> Any:
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            (source,), index = node.all_input_nodes, node.args[1]
            state = self._states.get(source)
            return state[index] if isinstance(state, tuple) and isinstance(index, int) else state
        sources = [source for source in node.all_input_nodes if self._states.get(source) is not None]
        if not sources:
            return self._of_independent(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unshared(f"{op_name(node)} contains a program of its own")
        if op_name(node) in _ALIKE:
            return self._of_independent(node)
        if all(self._states[source] == REDUCED for source in sources) and not _is_made_larger(node, self):
            return self._each(node, REDUCED)
        if any(source in self.numbers for source in sources):
            if op_name(node) in FORMS or op_name(node) == "slice":
                self.numbers.add(node)
            elif op_name(node) not in ("index", "index_put"):
                raise Unshared(f"{shown(node)} computes with the numbers of the rows, and a part numbers its own")
        rule = _rule(node)
        if rule is None:
            raise Unshared(f"nothing is known of {shown(node)}, which may combine rows")
        op = _Op(node, self)
        if rule not in _SIZED:
            op.check_numbers()
        blocks = rule(op)
        # After any other op, a tensor of one number may have several.
        return self._each(node, 1 if blocks is None and rule not in _UNIFORM else blocks)

    def _of_independent(self, node: Node) -> Any:
        """Of an op that reads nothing of the rows, but may be given their number."""
        shapes = self.shapes(node)
        differs = numbers(node) != numbers(self.twin[node])
        if shapes is None:
            if differs:
                raise Unshared(f"{shown(node)} computes with the number of rows")
            return None
        state = self.located(shapes, None, node)
        name = op_name(node)
        if state is None:
            return REDUCED if differs else None
        if name in _ALIKE and argument(node, "fill_value") == argument(self.twin[node], "fill_value"):
            return state
        if name in _LARGER:
            return self._each(node, _LARGER[name](_Op(node, self)))
        is_counted = (argument(node, "start") or 0) == 0 and (argument(node, "step") or 1) == 1
        if name == "arange" and shapes[0][0] == self.count and is_counted:
            self.numbers.add(node)
            return Place(0, 1)
        raise Unshared(f"{shown(node)} numbers the rows, and a part numbers its own")

    def _each(self, node: Node, blocks: int | str | None) -> Any:
        """The states of the results of an op, from what its rule says."""
        value, own = node.meta.get("val"), self.twin[node].meta.get("val")
        if isinstance(value, (list, tuple)) and isinstance(own, (list, tuple)):
            return tuple(self._of_result(node, one, other, blocks) for one, other in zip(value, own))
        return self._of_result(node, value, own, blocks)

    def _of_result(self, node: Node, value: Any, own: Any, blocks: int | str | None) -> State:
        if not isinstance(value, torch.Tensor) or not isinstance(own, torch.Tensor):
            return REDUCED
        state = self.located((_known(value, node), _known(own, node)), None if isinstance(blocks, str) else blocks, node)
        if state is None or blocks == REDUCED:
            if state is not None:
                raise Unshared(f"{shown(node)} combines rows")
            # An empty value has nothing of the rows.
            return REDUCED if value.numel() else None
        return state


class _Op:
    """An op with rows among its operands, as its rule sees it."""

    def __init__(self, node: Node, rows: Rows) -> None:
        self.node, self.rows = node, rows
        self.operands = [source for source in node.all_input_nodes if isinstance(rows[source], Place)]
        """Those with rows."""

    def __getitem__(self, name: str) -> Any:
        return argument(self.node, name)

    def own(self, name: str) -> Any:
        """An argument in the program for a part."""
        return argument(self.rows.twin[self.node], name)

    def place(self, value: Any) -> Place | None:
        """Where an operand has rows."""
        state = self.rows[value] if isinstance(value, Node) else None
        return state if isinstance(state, Place) else None

    def shape(self, value: Node) -> torch.Size:
        shape = _shape(value)
        if shape is None:
            raise self.refused()
        return shape

    @property
    def first(self) -> Node:
        """The first operand that is a tensor."""
        return self.node.all_input_nodes[0]

    @property
    def place_of_first(self) -> Place:
        """Where the first operand has rows, which it alone may have."""
        place = self.place(self.first)
        if place is None or len(self.operands) > 1:
            raise self.refused()
        return place

    @property
    def result(self) -> tuple[Place, torch.Size]:
        """Where the result has rows, by its shapes in the two programs, and its shape."""
        shapes = self.rows.shapes(self.node)
        state = self.rows.located(shapes, 1, self.node) if shapes is not None else None
        if shapes is None or not isinstance(state, Place):
            raise self.refused()
        return state, shapes[0]

    @property
    def blocks(self) -> int | None:
        """The blocks of all operands, which must agree."""
        return self.joined(place for value in self.operands if (place := self.place(value)))

    def refused(self) -> Unshared:
        return Unshared(f"{shown(self.node)} combines rows")

    def check_numbers(self) -> None:
        """Refuses an op that computes with the number of rows."""
        if numbers(self.node) != numbers(self.rows.twin[self.node]):
            raise Unshared(f"{shown(self.node)} computes with the number of rows")

    def joined(self, places: Iterable[Place]) -> int | None:
        """The blocks of operands whose rows lie along one dimension."""
        found = {place.blocks for place in places} - {None}
        if len(found) > 1:
            raise self.refused()
        return found.pop() if found else None

    def aligned(self, values: Iterable[Any]) -> int | None:
        """The blocks of operands that are broadcast: their rows must lie along one dimension, counted from the last. An operand
        without rows must have size 1 there or lack the dimension: otherwise it would not fit the rows of a part."""
        given = [value for value in values if isinstance(value, Node)]
        places = [(value, place) for value in given if (place := self.place(value)) is not None]
        dims = {place.dim - len(self.shape(value)) for value, place in places}
        if len(dims) > 1:
            raise self.refused()
        for value in given:
            shape = self.shape(value)
            if self.place(value) is None and any(len(shape) >= -dim and shape[dim] != 1 for dim in dims):
                raise self.refused()
        return self.joined(place for _, place in places)

    def dims(self, *names: str) -> set[int]:
        """The dimensions of the first operand that arguments name; all, where they name none."""
        count = len(self.shape(self.first))
        found: set[int] = set()
        for name in names:
            value = self[name]
            found |= {value % count} if isinstance(value, int) else {dim % count for dim in value or ()}
        return found or set(range(count))


def _pointwise(op: _Op) -> int | None:
    blocks = op.aligned(op.node.all_input_nodes)
    others = [source for source in op.node.all_input_nodes if op.place(source) is None]
    # A tensor of one number is none any more after an op with other numbers.
    return blocks if blocks is not None or all(op.shape(other).numel() == 1 for other in others) else 1


def _kept(op: _Op) -> int | None:
    """Of ops that leave all dimensions where they are, or add some at the end."""
    return op.place_of_first.blocks


def _form(op: _Op) -> int | None:
    """Of views: the number of elements before the rows stays as it is."""
    place = op.place_of_first
    if place.blocks is None:
        return None
    before = math.prod(op.shape(op.first)[: place.dim]) * place.blocks
    found, shape = op.result
    outer = math.prod(shape[: found.dim])
    blocks = before // outer if outer else 0
    if blocks * outer != before or blocks == 0 or shape[found.dim] % (blocks * op.rows.count):
        raise op.refused()
    return blocks


def _expand(op: _Op) -> int | None:
    place = op.place(op.first)
    if place is not None:
        return place.blocks
    found, shape = op.result
    if shape[found.dim] != op.rows.count:
        raise op.refused()
    return 1


def _repeat(op: _Op) -> int | None:
    place = op.place(op.first)
    if place is None:
        return 1
    times = list(op["repeats"] if op["repeats"] is not None else op["dims"])
    dim = place.dim + len(times) - len(op.shape(op.first))
    op.check_numbers()
    return place.blocks if place.blocks is None or dim < 0 else place.blocks * times[dim]


def _broadcast(op: _Op) -> int | None:
    return op.aligned(op.node.all_input_nodes)


def _interleaved(op: _Op) -> int | None:
    if op["dim"] is None or not isinstance(op["repeats"], int):
        raise op.refused()
    return op.place_of_first.blocks


def _moved(op: _Op) -> int | None:
    return op.place_of_first.blocks


def _along(op: _Op) -> int | None:
    """Of ops that move or combine numbers along dimensions without rows."""
    place = op.place(op.first)
    named = [name for name in ("dim", "dims") if op[name] is not None and op[name] != []]
    if place is None or not named or place.dim in op.dims(*named):
        raise op.refused()
    for value in op.node.all_input_nodes:
        own, shape = op.place(value), op.shape(value)
        # Of an operand that is longer than the rows, each part would read the beginning.
        is_along = own is not None and own.dim == place.dim and shape[own.dim] == op.shape(op.first)[place.dim]
        if not is_along and len(shape) > 0:
            raise op.refused()
    return op.blocks


def _reduced(op: _Op) -> int | str | None:
    if isinstance(op["other"], Node):
        return _pointwise(op)
    blocks, place = op.aligned(op.node.all_input_nodes), op.place(op.first)
    if place is None:
        raise op.refused()
    return REDUCED if place.dim in op.dims("dim") else blocks


def _inner(count: int) -> Callable[[_Op], int | None]:
    """Of ops that combine the last dimensions of their first operand, and have rows in no other one."""

    def rule(op: _Op) -> int | None:
        if op.place_of_first.dim >= len(op.shape(op.first)) - count:
            raise op.refused()
        return op.place_of_first.blocks

    return rule


def _leading(op: _Op) -> int | None:
    """Of ops over batches of samples, the first dimension of the first operand."""
    if op.place_of_first.dim != 0:
        raise op.refused()
    return op.place_of_first.blocks


def _convolution(op: _Op) -> int | None:
    if len(op.shape(op.first)) != len(op.shape(op["weight"])):
        raise op.refused()
    return _leading(op)


def _normalized(op: _Op) -> int | None:
    return _inner(len(op["normalized_shape"]))(op)


def _padded(op: _Op) -> int | None:
    return _inner(len(op["pad"]) // 2)(op)


def _product(op: _Op) -> int | str | None:
    """Of matrix products."""
    factors = [op[name] for name in ("self", "mat1", "batch1", "mat2", "batch2", "other", "vec", "tensor")]
    tensors = [factor for factor in factors if isinstance(factor, Node)]
    one, other = tensors[-2:]
    sum_dims = (len(op.shape(one)) - 1, max(len(op.shape(other)) - 2, 0))
    places = [op.place(one), op.place(other)]
    is_summed = [place is not None and place.dim == dim for place, dim in zip(places, sum_dims)]
    if any(is_summed):
        if not all(is_summed) or len(op.operands) > len({one, other}):
            raise op.refused()
        op.joined(place for place in places if place is not None)
        return REDUCED
    if all(places):
        # Both have rows: as matrices of a batch.
        if any(place.dim >= len(op.shape(value)) - 2 for value, place in zip((one, other), places) if place):
            raise op.refused()
        blocks = op.aligned((one, other))
    else:
        blocks = op.joined(place for place in places if place is not None)
    bias = tensors[0] if len(tensors) == 3 else None
    place = op.place(bias)
    if place is not None and bias is not None:
        found, shape = op.result
        is_along = place.dim - len(op.shape(bias)) == found.dim - len(shape)
        if not any(places) or not is_along or place.blocks not in (None, blocks):
            raise op.refused()
    return blocks


def _einsum(op: _Op) -> int | str | None:
    equation, tensors = op.node.args[:2]
    if not isinstance(equation, str) or "." in equation or "->" not in equation or not isinstance(tensors, (list, tuple)):
        raise op.refused()
    inputs, result = equation.replace(" ", "").split("->")
    found = [(names[place.dim], place) for names, value in zip(inputs.split(","), tensors) if (place := op.place(value))]
    if len({name for name, _ in found}) != 1:
        raise op.refused()
    blocks = op.joined(place for _, place in found)
    return blocks if found[0][0] in result else REDUCED


def _attention(op: _Op) -> int | None:
    values = [op[name] for name in ("query", "key", "value")]
    for value in values:
        place = op.place(value)
        if place is None or place.dim >= len(op.shape(value)) - 2:
            raise op.refused()
    return op.aligned([*values, op["attn_mask"]])


def _between(op: _Op) -> int | None:
    """Of ops on the last dimensions of two operands."""
    for value in op.operands:
        place = op.place(value)
        if place is None or place.dim == len(op.shape(value)) - 1 or value not in op.node.all_input_nodes[:2]:
            raise op.refused()
    return op.aligned(op.node.all_input_nodes[:2])


def _embedding(op: _Op) -> int | None:
    if op.place(op["weight"]) is not None:
        raise Unshared(f"{shown(op.node)} takes rows by an index")
    return op.blocks


def _selected(op: _Op) -> int | None:
    """Of ``index_select``."""
    source, index = op.place(op["self"]), op.place(op["index"])
    if source is not None and (index is not None or source.dim in op.dims("dim")):
        raise Unshared(f"{shown(op.node)} takes rows by an index")
    return op.joined(place for place in (source, index) if place is not None)


def _indexed(op: _Op) -> int | None:
    """Of ``index`` and ``index_put``: rows are taken each by its own number alone."""
    indices = op["indices"]
    given = [index for index in indices if index is not None]
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in given):
        raise op.refused()
    if op["values"] is not None and op.place(op["values"]) is not None:
        raise op.refused()
    source = op.place(op["self"])
    with_rows = [index for index in given if op.place(index) is not None]
    if source is None:
        if op_name(op.node) != "index":
            raise op.refused()
        return op.aligned(given)
    own = indices[source.dim] if source.dim < len(indices) else None
    if own is None:
        if with_rows:
            raise op.refused()
        return source.blocks
    if own not in op.rows.numbers or source.blocks not in (None, 1):
        raise Unshared(f"{shown(op.node)} takes rows by an index")
    return op.aligned(given)


def _cut(op: _Op) -> int | None:
    """Of ``slice`` and ``narrow``: along rows, whole blocks."""
    place, shapes, results = op.place_of_first, op.rows.shapes(op.first), op.rows.shapes(op.node)
    if place.dim not in op.dims("dim"):
        op.check_numbers()
        return place.blocks
    if shapes is None or results is None or (op["step"] or 1) != 1:
        raise op.refused()
    (size, own_size), left = (shape[place.dim] for shape in shapes), results[0][place.dim]
    if size == left:
        return place.blocks
    if place.blocks is None:
        raise op.refused()
    start, own = op["start"] or 0, op.own("start") or 0
    start, own = start + size * (start < 0), own + own_size * (own < 0)
    block = size // place.blocks
    if start % block or left % block or start * own_size != own * size:
        raise op.refused()
    return left // block


def _scattered(op: _Op) -> int | None:
    """Of ``select_scatter`` and ``slice_scatter``, which assignments to parts of a tensor become."""
    source, own = op.place(op["self"]), op.place(op["src"])
    dim = next(iter(op.dims("dim")))
    if source is None or own is None:
        raise op.refused()
    if op_name(op.node) == "select_scatter":
        is_apart = source.dim != dim and own.dim == source.dim - (dim < source.dim)
    else:
        is_whole = op.shape(op["self"]) == op.shape(op["src"])
        is_apart = own.dim == source.dim and (source.dim != dim or is_whole)
    if not is_apart:
        raise op.refused()
    return op.joined((source, own))


def _split(op: _Op) -> int | None:
    place = op.place_of_first
    if place.dim not in op.dims("dim"):
        op.check_numbers()
        return place.blocks
    values = op.node.meta["val"]
    sizes = {value.shape[place.dim] for value in values if len(value.shape) == len(op.shape(op.first))}
    if len(values) == 1 and sizes == {op.shape(op.first)[place.dim]}:
        return place.blocks
    if place.blocks is None or len(values) != place.blocks or len(sizes) != 1:
        raise op.refused()
    return 1


def _one(op: _Op) -> int | None:
    """Of ``select`` and ``unbind``."""
    if op.place_of_first.dim in op.dims("dim"):
        raise op.refused()
    return op.place_of_first.blocks


def _cat(op: _Op) -> int | None:
    values = [value for value in op["tensors"] if op.shape(value) != (0,)]
    places = [op.place(value) for value in values]
    found = [place for place in places if place is not None]
    if len(found) != len(values) or len({place.dim for place in found}) != 1:
        raise op.refused()
    dim = int(op["dim"] or 0) % (len(op.shape(values[0])) + (op_name(op.node) == "stack"))
    if op_name(op.node) == "stack" or found[0].dim != dim:
        return op.joined(found)
    blocks = [place.blocks for place in found]
    sizes = {op.shape(value)[dim] // (count or 1) for value, count in zip(values, blocks)}
    if None in blocks or len(sizes) != 1:
        raise op.refused()
    return sum(count for count in blocks if count is not None)


def _batch_norm(op: _Op) -> int | None:
    """Rows as channels are normalised each for itself, as in ``instance_norm``."""
    place = op.place(op.first)
    if place is None:
        raise op.refused()
    if place.dim == 1 and all(op.place(value) in (None, Place(0, place.blocks)) for value in op.operands[1:]):
        return place.blocks
    if op["training"] or place.dim != 0 or len(op.operands) > 1:
        raise Unshared(
            f"{op_name(op.node)} at {_path(op.node)} normalises by statistics of the rows, of which a part has its own",
            "put it in eval mode, replace it by LayerNorm or GroupNorm, or use a mesh without dp and fsdp and one microbatch",
        )
    return place.blocks


def _recurrent(op: _Op) -> int | None:
    dim = 0 if op["batch_first"] else 1
    for value in op.operands:
        place = op.place(value)
        if place is None or place.dim != (dim if value is op.first else 1) or place.blocks not in (None, 1):
            raise op.refused()
    return 1


def _loss_by_element(op: _Op) -> int | str | None:
    blocks = op.aligned(op.node.all_input_nodes)
    return blocks if op["reduction"] == 0 else REDUCED


def _loss_by_row(op: _Op) -> int | str | None:
    """Of losses with one number for each element of the first dimension."""
    least = 2 if op_name(op.node) in COUNTED else 1
    if any(place.dim != 0 for value in op.operands if (place := op.place(value))) or len(op.shape(op.first)) < least:
        raise op.refused()
    if op["weight"] is not None and op.place(op["weight"]) is not None:
        raise op.refused()
    others = [value for value in op.node.all_input_nodes if value is not op["weight"] and op.place(value) is None]
    if any(len(op.shape(value)) > 0 and op.shape(value)[0] != 1 for value in others):
        raise op.refused()
    blocks = op.blocks
    return blocks if op["reduction"] == 0 else REDUCED


# Losses whose mean is over the labels that are not ignored.
COUNTED = {"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"}
# What makes a tensor of a size, alike in each row.
_ALIKE = {
    "bernoulli", "empty", "empty_like", "full", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones",
    "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "zeros", "zeros_like",
}  # fmt: skip
# What may give rows to a value without any.
_LARGER: dict[str, Callable[[_Op], int | None]] = {
    "broadcast_to": _expand, "expand": _expand, "expand_as": _expand, "repeat": _repeat, "tile": _repeat,
}  # fmt: skip

_Rule = Callable[[_Op], "int | str | None"]


def _table(rows: dict[_Rule, str]) -> dict[str, _Rule]:
    return {name: rule for rule, names in rows.items() for name in names.split()}


_RULES: dict[str, _Rule] = _table(
    {
        _pointwise: "_to_copy alias bernoulli clone contiguous copy detach dropout empty_like fill full_like lift_fresh_copy "
        "masked_fill native_dropout new_empty new_full new_ones new_zeros ones_like polar rand_like randn_like to type_as where "
        "zeros_like",
        _kept: "bucketize one_hot",
        _form: "_unsafe_view flatten ravel reshape squeeze unflatten unsqueeze view view_as",
        _expand: "broadcast_to expand expand_as",
        _repeat: "repeat tile",
        _broadcast: "broadcast_tensors",
        _interleaved: "repeat_interleave",
        _moved: "mT movedim permute swapaxes t transpose numpy_T",
        _along: "_log_softmax _safe_softmax _softmax argsort cummax cummin cumprod cumsum diff fft_fft fft_ifft fft_irfft fft_rfft "
        "flip gather glu log_softmax logcumsumexp roll scatter scatter_add scatter_reduce softmax sort take_along_dim topk",
        _reduced: "all amax amin aminmax any argmax argmin cosine_similarity count_nonzero kthvalue linalg_vector_norm logsumexp "
        "max mean median min mode nanmean nanmedian nansum norm prod std std_mean sum var var_mean",
        _leading: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "avg_pool1d avg_pool2d avg_pool3d col2im group_norm im2col instance_norm max_pool1d max_pool2d max_pool3d "
        "max_pool2d_with_indices native_group_norm pixel_shuffle pixel_unshuffle channel_shuffle upsample_bicubic2d "
        "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d",
        _convolution: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
        _inner(1): "linear",
        _inner(2): "tril triu",
        _inner(0): "view_as_complex view_as_real",
        _normalized: "layer_norm native_layer_norm rms_norm _fused_rms_norm",
        _padded: "constant_pad_nd pad",
        _product: "addmm baddbmm bmm matmul mm mv",
        _einsum: "einsum",
        _attention: "scaled_dot_product_attention",
        _between: "bilinear pairwise_distance",
        _embedding: "embedding",
        _selected: "index_select",
        _indexed: "index index_put",
        _cut: "narrow slice",
        _scattered: "select_scatter slice_scatter",
        _split: "chunk split split_with_sizes",
        _one: "index_fill select unbind",
        _cat: "cat stack",
        _batch_norm: "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
        "batch_norm cudnn_batch_norm native_batch_norm",
        _recurrent: "gru lstm rnn_relu rnn_tanh",
        _loss_by_element: "binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div l1_loss "
        "margin_ranking_loss mse_loss poisson_nll_loss smooth_l1_loss soft_margin_loss",
        _loss_by_row: "cosine_embedding_loss cross_entropy_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d "
        "nll_loss_nd triplet_margin_loss",
    }
)


# The arguments of these may contain the number of rows: the shapes of their results show what it does.
_SIZED = (_form, _expand, _repeat, _cut, _split)
# Of a tensor of one number, these make a tensor of one number.
_UNIFORM = (_form, _expand, _repeat, _broadcast, _moved, _pointwise)


def _rule(node: Node) -> _Rule | None:
    found = _RULES.get(op_name(node))
    if found is None and isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
        return _pointwise
    return found


def _is_made_larger(node: Node, rows: Rows) -> bool:
    """Whether an op gives rows to what was reduced over them."""
    shapes = rows.shapes(node)
    return shapes is not None and shapes[0] != shapes[1]


def numbers(node: Node) -> list[Any]:
    """The arguments of an op that are no tensors."""
    found: list[Any] = []

    def note(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for each in value:
                note(each)
        elif not isinstance(value, Node):
            found.append(value)

    note([*node.args, *node.kwargs.values()])
    return found


def _kind(node: Node) -> tuple[str, str]:
    """What computes a value."""
    return node.op, str(node.target) if node.op == "call_function" else ""


def _paired(loss: Node, own: Node) -> dict[Node, Node]:
    """Of each value that a loss is computed from, that of another program. Raises ``Unshared`` if they are computed by other
    ops."""
    found, rest = {loss: own}, [loss]
    while rest:
        one = rest.pop()
        other = found[one]
        sources = one.all_input_nodes, other.all_input_nodes
        if _kind(one) != _kind(other) or len(sources[0]) != len(sources[1]):
            raise Unshared(f"forward() computes {shown(one)} otherwise with other numbers of rows")
        for source, own_source in zip(*sources):
            if source not in found:
                found[source] = own_source
                rest.append(source)
            elif found[source] is not own_source:
                raise Unshared(f"forward() computes {shown(one)} otherwise with other numbers of rows")
    return found


def normalize(program: Any) -> Any:
    """The program without copies, its views under one name. Which of them PyTorch writes depends on the sizes."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in (torch.ops.aten.clone.default, torch.ops.aten.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in (torch.ops.aten._unsafe_view.default, torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
    return program


def _result(program: Any) -> Node:
    """The loss, which is all that the program returns to its caller."""
    (output,) = program.graph.find_nodes(op="output")
    specs = program.graph_signature.output_specs
    (loss,) = [value for value, spec in zip(output.args[0], specs) if spec.kind.name == "USER_OUTPUT"]
    if not isinstance(loss, Node):
        raise Unshared("the loss is a number that does not depend on the module")
    return loss


def ancestors(graph: Any, node: Node) -> list[Node]:
    """What a value is computed from, and the value itself."""
    found, rest = {node}, [node]
    while rest:
        for source in rest.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                rest.append(source)
    return [each for each in graph.nodes if each in found]


def _known(value: torch.Tensor, node: Node) -> torch.Size:
    if not all(isinstance(size, int) for size in value.shape):
        raise Unshared(f"the shape of {shown(node)} depends on numbers of the batch")
    return value.shape


def _shape(node: Node) -> torch.Size | None:
    value = node.meta.get("val")
    return _known(value, node) if isinstance(value, torch.Tensor) else None


def argument(node: Node, name: str) -> Any:
    """An argument of an op by name, or its default."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for place, described in enumerate(node.target._schema.arguments):
        if described.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            return node.args[place] if place < len(node.args) else described.default_value
    return None


def op_name(node: Node) -> str:
    """The name of an op: ``sum`` of ``aten.sum.default``."""
    return node.target._schema.name.split("::")[1] if isinstance(node.target, torch._ops.OpOverload) else str(node.target)


def _path(node: Node) -> str:
    """The path of the module that computes a value."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return path.removeprefix("L['self'].").removeprefix("L__self___") or "the module itself"


def _line(node: Node) -> str | None:
    """The last line of the user that a value comes from."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/torch/" not in line and "/partita/" not in line]
    return own[-1].replace('File "', "").replace('", line ', ":").split(",")[0] if own else None


def shown(node: Node) -> str:
    """A value for a message: its op, shape and line."""
    value, line = node.meta.get("val"), _line(node)
    shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"`{op_name(node)}`{shape}" + (f" at {line}" if line else "")
