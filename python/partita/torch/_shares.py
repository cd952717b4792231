"""The shares that the parts of a batch have in its loss.

Ranks and microbatches compute the loss of their own rows. The loss of the whole batch is the sum of theirs, each times its
share. Of a mean over rows all shares are equal, of a sum each is 1; of a mean over what counts, such as labels that are not
ignored or the ones of a mask, a part has the share of its count in that of the batch.

Shares are read off two exported programs of the module with its loss, for the batch and for a part. A dimension that is of
rows has another size in one than in the other, so a value that has the same size in both and depends on the batch is a
reduction over rows. The loss is followed back through sums, factors and divisors to such reductions; below them no other
one may stand. Divisors that depend on the batch alone are evaluated, for the batch and for each part, before each pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from partita._error import refuse

# Results of these are their first operand in another form, of one element as of many.
_FORMS = {
    "_to_copy", "_unsafe_view", "alias", "clone", "contiguous", "expand", "flatten", "lift_fresh_copy", "neg", "reshape",
    "squeeze", "to", "unsqueeze", "view", "view_as",
}  # fmt: skip
# Losses whose mean is over the labels that are not ignored.
_COUNTED = {"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"}
# Ops that move numbers along a dimension which they keep.
_ALONG = {
    "_log_softmax", "_softmax", "argsort", "cummax", "cummin", "cumprod", "cumsum", "flip", "gather", "index_add",
    "index_copy", "index_select", "log_softmax", "logcumsumexp", "roll", "scatter", "scatter_add", "scatter_reduce",
    "softmax", "sort", "topk",
}  # fmt: skip
# What makes a tensor of a size, alike in each row.
_ALIKE = {
    "bernoulli", "empty", "empty_like", "full", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones",
    "ones_like", "rand", "rand_like", "randn", "randn_like", "zeros", "zeros_like",
}  # fmt: skip
# Arguments of these are sizes and places.
_SIZED = {"arange", "as_strided", "chunk", "narrow", "select", "slice", "split"}
# Ops that use statistics of the rows, where their argument `training`, or `use_input_stats`, is true.
_STATISTICS = {"_native_batch_norm_legit", "batch_norm", "cudnn_batch_norm", "native_batch_norm"}

_MEAN, _SUM = 1, 2
"""The argument ``reduction`` of losses."""


class Unshared(Exception):
    """Why parts have no shares."""

    def __init__(self, why: str, help: str | None = None) -> None:
        super().__init__(why)
        self.why, self.help = why, help


@dataclass(frozen=True)
class _Count:
    """What a part is divided by: a number for the batch and for a part, or a value of the two programs."""

    whole: float | Node | Callable[[_Values], torch.Tensor]
    part: float | Node | Callable[[_Values], torch.Tensor]


@dataclass(frozen=True)
class _Term:
    """A sum over rows, divided by counts; ``None`` for what is the same in each part."""

    counts: tuple[_Count, ...] | None


class Shares:
    """The shares of equal parts of a batch, from the exported programs for the batch and for one part.

    Raises ``Unshared`` for a loss whose parts do not sum to it.
    """

    def __init__(self, whole: Any, part: Any, parts: int) -> None:
        self._programs, self._parts = (whole, part), parts
        pairs = list(zip(whole.graph.nodes, part.graph.nodes))
        same = len(whole.graph.nodes) == len(part.graph.nodes)
        if not same or any(_kind(one) != _kind(other) for one, other in pairs):
            raise Unshared("forward() computes otherwise with other numbers of rows")
        self._twin = dict(pairs)
        self._rows: dict[Node, bool] = {}
        """Of values that depend on the rows: whether they have rows, or are reduced over them."""
        self._trained = _dependent(whole.graph, _of_kind(whole, "PARAMETER"))
        for one in whole.graph.nodes:
            self._see(one)
        loss = _result(whole)
        for node in _ancestors(whole.graph, loss):
            _check_op(node, self._rows, self._twin)
        terms = self._follow(loss, ())
        self._terms = list(dict.fromkeys(terms))

    def _see(self, node: Node) -> None:
        """Notes whether a value depends on the rows."""
        sizes = [_size(node), _size(self._twin[node])]
        if node.op == "placeholder":
            if sizes[0] is not None and sizes[0] != sizes[1]:
                self._rows[node] = True
            return
        if node.op == "output":
            return
        if not any(source in self._rows for source in node.all_input_nodes):
            if sizes[0] != sizes[1]:
                _check_made(node)
                self._rows[node] = True
            return
        if sizes[0] is None or sizes[1] is None:
            # Several results: each is looked at where it is taken.
            self._rows[node] = any(self._rows.get(source, False) for source in node.all_input_nodes)
        elif sizes[0] == sizes[1]:
            # An empty value has nothing of the rows.
            self._rows[node] = sizes[0] == 0
        elif sizes[0] == sizes[1] * self._parts:
            self._rows[node] = True
        else:
            raise Unshared(f"{_shown(node)} combines rows: it has {sizes[0]} elements, of a part {sizes[1]}")

    def _follow(self, node: Any, counts: tuple[_Count, ...]) -> list[_Term]:
        """The terms of a value that is reduced over rows."""
        if not isinstance(node, Node) or node not in self._rows:
            return [] if isinstance(node, (int, float)) and node == 0 else [_Term(None)]
        if self._rows[node]:
            raise Unshared(f"the loss has rows: {_shown(node)}")
        name, args = _name(node), list[Any](node.args)
        if name in _FORMS:
            return self._follow(args[0], counts)
        if name in ("add", "sub", "rsub", "add_", "sub_"):
            return self._follow(args[0], counts) + self._follow(args[1], counts)
        if name in ("mul", "div", "true_divide", "mul_", "div_"):
            return self._product(node, name.strip("_") == "mul", counts)
        if name in ("stack", "cat") or (name in ("sum", "mean") and not self._rows[args[0]]):
            elements = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            return [term for element in elements for term in self._follow(element, counts)]
        if name in ("sum", "mean"):
            self._check_rows_of(node, args[0])
            return [_Term(counts if name == "sum" else (*counts, self._elements(args[0])))]
        reduction = _argument(node, "reduction")
        if reduction in (_MEAN, _SUM):
            rows = args[0]
            self._check_rows_of(node, *(value for value in node.all_input_nodes if value in self._rows))
            if reduction == _SUM:
                return [_Term(counts)]
            target = _argument(node, "target")
            is_counted = name in _COUNTED and not target.meta["val"].is_floating_point()
            return [_Term((*counts, self._labels(node) if is_counted else self._elements(rows)))]
        raise Unshared(f"the loss is no sum over rows: it is computed by {_shown(node)}")

    def _product(self, node: Node, is_product: bool, counts: tuple[_Count, ...]) -> list[_Term]:
        one, other = node.args[:2]
        reduced = [value for value in (one, other) if isinstance(value, Node) and value in self._rows]
        if len(reduced) == 1:
            if not is_product and reduced[0] is other:
                raise Unshared(f"{_shown(node)} divides by what is summed over rows")
            # A number of rows is a number in both programs.
            for value, own in zip((one, other), self._twin[node].args[:2]):
                if isinstance(value, (int, float)) and isinstance(own, (int, float)) and value != own:
                    numbers = (1 / value, 1 / own) if is_product else (float(value), float(own))
                    counts = (*counts, _Count(*numbers))
            return self._follow(reduced[0], counts)
        factors = [value for value in reduced if value not in self._trained]
        count = factors[-1] if factors else None
        if count is None or (not is_product and count is not other):
            raise Unshared(f"{_shown(node)} multiplies or divides two values that depend on rows and parameters")
        self._check_evaluated(count)
        if is_product:
            found = _Count(_inverse(count), _inverse(self._twin[count]))
        else:
            found = _Count(count, self._twin[count])
        return self._follow(one if count is other else other, (*counts, found))

    def _elements(self, node: Node) -> _Count:
        """The number of elements, which is that of rows times a number."""
        return _Count(float(_size(node) or 0), float(_size(self._twin[node]) or 0))

    def _labels(self, node: Node) -> _Count:
        """The labels that are not ignored, or the sum of their weights."""
        for name in ("target", "weight"):
            value = _argument(node, name)
            if isinstance(value, Node):
                if value in self._trained:
                    raise Unshared(f"the {name} of {_shown(node)} depends on parameters")
                self._check_evaluated(value)
        return _Count(_labels_of(node), _labels_of(self._twin[node]))

    def _check_rows_of(self, node: Node, *rows: Node) -> None:
        """Below a sum over rows there is no other one."""
        for value in rows:
            for inner in _ancestors(self._programs[0].graph, value):
                if self._rows.get(inner) is False:
                    raise Unshared(f"{_shown(inner)} is reduced over rows and used for each row of {_shown(node)}")

    def _check_evaluated(self, node: Node) -> None:
        for inner in _ancestors(self._programs[0].graph, node):
            if inner.op not in ("call_function", "placeholder") or not _is_plain(inner):
                raise Unshared(f"{_shown(inner)} in what the loss is divided by")

    @property
    def are_equal(self) -> bool:
        """Whether no share depends on the numbers of a batch."""
        return all(isinstance(count.whole, float) for term in self._terms for count in term.counts or ())

    def compute(self, batch: Sequence[Any], parts: Sequence[Sequence[Any]]) -> list[float]:
        """The shares of parts of a batch; each is given as the leaves of the arguments. Raises ``Unshared`` where they
        differ by term."""
        whole = _Values(self._programs[0], batch)
        shares: list[float] = []
        for leaves in parts:
            part = _Values(self._programs[1], leaves)
            found = {self._share(term, whole, part) for term in self._terms if term.counts is not None}
            if len(found) > 1 and max(found) - min(found) > 1e-6 * max(map(abs, found)):
                shown = " and ".join(f"{share:.6g}" for share in sorted(found))
                raise Unshared(f"a part of the batch has the shares {shown} in different terms of the loss")
            shares.append(max(found, default=1 / self._parts))
        return shares

    @property
    def has_constants(self) -> bool:
        """Whether each part computes something of the loss that is the same in all: shares must sum to 1."""
        return any(term.counts is None for term in self._terms)

    @staticmethod
    def _share(term: _Term, whole: _Values, part: _Values) -> float:
        share = 1.0
        for count in term.counts or ():
            total = whole.number(count.whole)
            # Where nothing counts in the whole batch, the loss is what PyTorch makes of it.
            share *= part.number(count.part) / total if total else 1.0
        return share


class _Values:
    """Values of a program for the leaves of its arguments, computed as they are asked for."""

    def __init__(self, program: Any, leaves: Sequence[Any]) -> None:
        self._program, self._leaves = program, leaves
        self._known: dict[Node, Any] = {}

    def __getitem__(self, node: Node) -> Any:
        if node not in self._known:
            self._known[node] = self._given(node) if node.op == "placeholder" else self._computed(node)
        return self._known[node]

    def _given(self, node: Node) -> Any:
        specs = self._program.graph_signature.input_specs
        (spec,) = [spec for spec in specs if getattr(spec.arg, "name", None) == node.name]
        if spec.kind.name == "USER_INPUT":
            own = [spec for spec in specs if spec.kind.name == "USER_INPUT"]
            value = self._leaves[own.index(spec)]
        else:
            value = {**self._program.state_dict, **self._program.constants}.get(spec.target)
        return value.detach().cpu() if isinstance(value, torch.Tensor) else value

    def _computed(self, node: Node) -> Any:
        target: Any = node.target
        with torch.no_grad():
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.__getitem__)
            return target(*args, **kwargs)

    def number(self, count: float | Node | Callable[[_Values], torch.Tensor]) -> float:
        """A count as a number."""
        if isinstance(count, (int, float)):
            return float(count)
        return float(self[count] if isinstance(count, Node) else count(self))


def _inverse(node: Node) -> Callable[[_Values], torch.Tensor]:
    return lambda values: 1.0 / values[node].double()


def _labels_of(node: Node) -> Callable[[_Values], torch.Tensor]:
    target, weight, ignored = (_argument(node, name) for name in ("target", "weight", "ignore_index"))

    def count(values: _Values) -> torch.Tensor:
        labels = values[target]
        counted = labels[labels != ignored]
        total: torch.Tensor = torch.tensor(counted.numel()) if weight is None else values[weight].double()[counted].sum()
        return total

    return count


def _check_op(node: Node, rows: dict[Node, bool], twin: dict[Node, Node]) -> None:
    """Refuses an op that combines rows and keeps their number, and one that cannot be looked into."""
    if node.op != "call_function" or node not in rows or node.target is operator.getitem:
        return
    name = _name(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Unshared(f"{name} contains a program of its own")
    if name in _STATISTICS and (_argument(node, "training") or _argument(node, "use_input_stats")):
        raise Unshared(
            f"{name} at {_path(node)} normalises by statistics of the rows, of which a part has its own",
            "put it in eval mode, replace it by LayerNorm or GroupNorm, or use a mesh without dp and fsdp and one microbatch",
        )
    for value, own in zip(node.args, twin[node].args):
        # Below a sum; above it, `_follow` takes such a number as a divisor.
        is_number = isinstance(value, (int, float)) and isinstance(own, (int, float))
        if is_number and value != own and rows[node] and name not in _SIZED:
            raise Unshared(f"{_shown(node)} computes with the number of rows, {value}")
    if name == "roll" and not _argument(node, "dims"):
        raise Unshared(f"{_shown(node)} combines rows")
    if name in _ALONG:
        value = node.all_input_nodes[0]
        dims = _argument(node, "dims") or [_argument(node, "dim")]
        shapes = [value.meta["val"].shape, twin[value].meta["val"].shape]
        if any(isinstance(dim, int) and shapes[0][dim] != shapes[1][dim] for dim in dims):
            raise Unshared(f"{_shown(node)} combines rows")


def _check_made(node: Node) -> None:
    """Refuses a tensor that is made of the number of rows and is not alike in all of them, unless it is an index of rows."""
    name = _name(node)
    is_index = name == "arange" and all(_name(user) == "index" for user in node.users)
    if name not in _ALIKE and not is_index:
        raise Unshared(f"{_shown(node)} numbers the rows, and a part numbers its own")


def changed_buffers(program: Any) -> list[str]:
    """The buffers that a program changes."""
    names = {
        node: spec.target
        for node, spec in zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs)
        if spec.kind.name == "BUFFER"
    }
    written: set[Node] = set()
    _note_written(program.graph, program.graph_module, written)
    return [name for node, name in names.items() if node in written]


def _note_written(graph: Any, owner: Any, written: set[Node]) -> None:
    """Adds the values of a graph that its ops change, inside of graphs of its own too."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            arguments = node.target._schema.arguments
            changed = [argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write]
            if _name(node) in _STATISTICS and (_argument(node, "training") or _argument(node, "use_input_stats")):
                changed += ["running_mean", "running_var"]
            written.update(value for name in changed if isinstance(value := _argument(node, name), Node))
            continue
        graphs = [value for value in node.all_input_nodes if value.op == "get_attr"]
        for value in graphs:
            inner = getattr(owner, str(value.target), None)
            if isinstance(inner, torch.fx.GraphModule):
                inside: set[Node] = set()
                _note_written(inner.graph, inner, inside)
                given = [other for other in node.args if isinstance(other, Node) and other.op != "get_attr"]
                places = inner.graph.find_nodes(op="placeholder")
                written.update(outer for place, outer in zip(places, given) if place in inside)


def operations(program: Any) -> float:
    """About how many operations on elements both passes of a program take."""
    total = 0.0
    for node in program.graph.nodes:
        size = _size(node)
        if node.op == "call_function" and size is not None:
            total += 3 * size * _summands(node)
    return total


def _summands(node: Node) -> float:
    """About how many products an element of a result sums."""
    shapes = [value.meta["val"].shape for value in node.all_input_nodes if isinstance(value.meta.get("val"), torch.Tensor)]
    name = _name(node)
    if name in ("linear", "mm", "bmm", "matmul", "addmm", "baddbmm", "einsum") and shapes and shapes[-1]:
        return 2.0 * float(max((shape[-1] for shape in shapes if shape), default=1))
    if name.startswith("conv") and len(shapes) > 1:
        return 2.0 * float(torch.Size(shapes[1][1:]).numel())
    if name == "scaled_dot_product_attention":
        return 4.0 * float(shapes[1][-2])
    return 1.0


def _kind(node: Node) -> tuple[str, str]:
    """What a value is, without the numbers that a program gives to the programs inside it."""
    return node.op, "" if node.op == "get_attr" else str(node.target)


def _result(program: Any) -> Node:
    """The loss, which is all that the program returns to its caller."""
    (output,) = program.graph.find_nodes(op="output")
    specs = program.graph_signature.output_specs
    (loss,) = [value for value, spec in zip(output.args[0], specs) if spec.kind.name == "USER_OUTPUT"]
    if not isinstance(loss, Node):
        raise Unshared("the loss is a number that does not depend on the module")
    return loss


def _of_kind(program: Any, kind: str) -> set[Node]:
    nodes = program.graph.find_nodes(op="placeholder")
    return {node for node, spec in zip(nodes, program.graph_signature.input_specs) if spec.kind.name == kind}


def _dependent(graph: Any, sources: set[Node]) -> set[Node]:
    found = set(sources)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _ancestors(graph: Any, node: Node) -> list[Node]:
    """What a value is computed from, and the value itself."""
    found, rest = {node}, [node]
    while rest:
        for source in rest.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                rest.append(source)
    return [each for each in graph.nodes if each in found]


def _size(node: Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    size = value.numel()
    if not isinstance(size, int):
        raise Unshared(f"the size of {_shown(node)} depends on numbers of the batch")
    return size


def _is_plain(node: Node) -> bool:
    return node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _argument(node: Node, name: str) -> Any:
    """An argument of an op by name, or its default."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            return node.args[place] if place < len(node.args) else argument.default_value
    return None


def _name(node: Node) -> str:
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


def _shown(node: Node) -> str:
    value, line = node.meta.get("val"), _line(node)
    shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"`{_name(node)}`{shape}" + (f" at {line}" if line else "")


def unshared(reason: Unshared, parts: int) -> Exception:
    """The error for a loss that has no shares."""
    return refuse(
        "E394",
        f"the loss of a batch is not the sum of those of its {parts} parts",
        expected="a mean or a sum over rows, or over what counts in them: each rank and microbatch computes that of its rows",
        found=reason.why,
        help=reason.help or "write the loss as a sum over rows divided by a count, or use a mesh without dp and fsdp and one "
        "microbatch",
    )
