"""The shares that the parts of a batch have in its loss.

Ranks and microbatches compute the loss of their own rows. The loss of the whole batch is the sum of theirs, each times its
share. Of a mean over rows all shares are equal, of a sum each is 1; of a mean over what counts, such as labels that are not
ignored or the ones of a mask, a part has the share of its count in that of the batch.

The loss is followed back through sums, factors and divisors to reductions over rows (``_rows``); below these no other one may
stand. Divisors that depend on the batch alone are evaluated, for the batch and for each part, before each pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from partita._error import refuse

from ._rows import COUNTED, FORMS, REDUCED, Place, Rows, Unshared, ancestors, argument, numbers, op_name, shown

_MEAN, _SUM = 1, 2
"""The argument ``reduction`` of losses."""


@dataclass(frozen=True)
class _Count:
    """What a part is divided by: a number for the batch and for a part, or a value of the two programs."""

    whole: float | Node | Callable[[_Values], torch.Tensor]
    part: float | Node | Callable[[_Values], torch.Tensor]


@dataclass(frozen=True)
class _Term:
    """A sum over rows, divided by counts; ``None`` for what is the same in each part."""

    counts: tuple[_Count, ...] | None
    summed: Node | None = None
    """What is summed, or the loss that sums, in the program for a part."""


class Shares:
    """The shares of equal parts of a batch, from the exported programs for the batch and for one part.

    ``is_returned``: the module computes the loss itself, so that a part without what counts cannot be left out. Raises
    ``Unshared`` for a loss whose parts do not sum to it.
    """

    def __init__(self, whole: Any, part: Any, parts: int, is_returned: bool) -> None:
        self._programs, self._parts, self._is_returned = (whole, part), parts, is_returned
        self._rows = Rows(whole, part, parts)
        self._twin = self._rows.twin
        self._trained = [_dependent(program.graph, _of_kind(program, "PARAMETER")) for program in (whole, part)]
        self._terms = list(dict.fromkeys(self._follow(self._rows.loss, ())))

    def _follow(self, node: Any, counts: tuple[_Count, ...]) -> list[_Term]:
        """The terms of a value that is reduced over rows."""
        state = self._rows[node] if isinstance(node, Node) else None
        if not isinstance(node, Node) or state is None:
            return [] if isinstance(node, (int, float)) and node == 0 else [_Term(None)]
        if isinstance(state, Place):
            raise Unshared(f"the loss has rows: {shown(node)}")
        name, args = op_name(node), list[Any](node.args)
        if name in FORMS or name == "neg":
            return self._follow(args[0], counts)
        if name in ("add", "sub", "rsub") and numbers(node) == numbers(self._twin[node]):
            return self._follow(args[0], counts) + self._follow(args[1], counts)
        if name in ("mul", "div", "true_divide"):
            return self._product(node, name == "mul", counts)
        if name in ("stack", "cat") or (name in ("sum", "mean") and not isinstance(self._rows[args[0]], Place)):
            elements = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            return [term for element in elements for term in self._follow(element, counts)]
        if name in ("sum", "mean"):
            self._check_below(node, args[0])
            return [_Term(counts if name == "sum" else (*counts, self._of_rows), self._twin[args[0]])]
        reduction = argument(node, "reduction")
        if reduction in (_MEAN, _SUM):
            self._check_below(node, *node.all_input_nodes)
            if reduction == _MEAN:
                is_counted = name in COUNTED and not argument(node, "target").meta["val"].is_floating_point()
                counts = (*counts, self._labels(node) if is_counted else self._of_rows)
            return [_Term(counts, self._twin[node])]
        raise Unshared(f"the loss is no sum over rows: it is computed by {shown(node)}")

    def _product(self, node: Node, is_product: bool, counts: tuple[_Count, ...]) -> list[_Term]:
        one, other = node.args[:2]
        if argument(node, "rounding_mode") is not None:
            raise Unshared(f"{shown(node)} rounds what is summed over rows")
        reduced = [value for value in (one, other) if isinstance(value, Node) and self._rows[value] == REDUCED]
        if len(reduced) == 1:
            if not is_product and reduced[0] is other:
                raise Unshared(f"{shown(node)} divides by what is summed over rows")
            # A number of rows is a number in both programs.
            for value, own in zip((one, other), self._twin[node].args[:2]):
                if isinstance(value, (int, float)) and isinstance(own, (int, float)) and value != own:
                    if is_product and 0 in (value, own):
                        raise Unshared(f"{shown(node)} multiplies by {value}, and for a part by {own}")
                    divisors = (1 / value, 1 / own) if is_product else (float(value), float(own))
                    counts = (*counts, _Count(*divisors))
            return self._follow(reduced[0], counts)
        factors = [value for value in reduced if value not in self._trained[0]]
        count = factors[-1] if factors else None
        if count is None or (not is_product and count is not other):
            raise Unshared(f"{shown(node)} multiplies or divides two values that depend on rows and parameters")
        self._check_evaluated(count)
        if is_product:
            found = _Count(_inverse(count), _inverse(self._twin[count]))
        else:
            found = _Count(count, self._twin[count])
        return self._follow(one if count is other else other, (*counts, found))

    @property
    def _of_rows(self) -> _Count:
        """The number of rows, times a number."""
        return _Count(float(self._parts), 1.0)

    def _labels(self, node: Node) -> _Count:
        """The labels that are not ignored, or the sum of their weights."""
        for name in ("target", "weight"):
            value = argument(node, name)
            if isinstance(value, Node):
                if value in self._trained[0]:
                    raise Unshared(f"the {name} of {shown(node)} depends on parameters")
                self._check_evaluated(value)
        return _Count(_labels_of(node), _labels_of(self._twin[node]))

    def _check_below(self, node: Node, *summed: Node) -> None:
        """Below a sum over rows there is no other one."""
        for value in summed:
            for inner in ancestors(self._programs[0].graph, value):
                if self._rows[inner] == REDUCED:
                    raise Unshared(f"{shown(inner)} depends on all rows and is used for each row of {shown(node)}")

    def _check_evaluated(self, node: Node) -> None:
        for inner in ancestors(self._programs[0].graph, node):
            if not _is_plain(inner):
                raise Unshared(f"{shown(inner)} in what the loss is divided by")

    def compute(
        self, batch: Sequence[Any], parts: Sequence[Sequence[Any]], buffers: Mapping[str, torch.Tensor]
    ) -> list[float]:
        """The shares of all parts of a batch; each is given as the leaves of the arguments. Raises ``Unshared`` where a part
        has several, or has nothing that counts and is not 0."""
        whole = _Values(self._programs[0], batch, buffers)
        shares = [self._of_part(whole, _Values(self._programs[1], leaves, buffers)) for leaves in parts]
        if any(term.counts is None for term in self._terms) and abs(sum(shares) - 1) > 1e-6:
            raise Unshared(f"a term is the same in each part, whose shares sum to {sum(shares):.6g}")
        return shares

    def _of_part(self, whole: _Values, part: _Values) -> float:
        terms = [term for term in self._terms if term.counts is not None]
        found = {self._share(term, whole, part) for term in terms}
        if len(found) > 1 and max(found) - min(found) > 1e-6 * max(map(abs, found)):
            several = " and ".join(f"{share:.6g}" for share in sorted(found))
            raise Unshared(f"a part of the batch has the shares {several} in different terms of the loss")
        share = max(found, default=1 / self._parts)
        if share == 0.0:
            if self._is_returned:
                raise Unshared(
                    "in a part of this batch nothing counts, and the module divides by the count itself",
                    "give apply the loss as a function, loss=, or leave rows without labels out of the batch",
                )
            if not all(self._is_nothing(term.summed, part) for term in terms):
                raise Unshared("what a part of this batch is divided by is 0, and what is divided is not")
        return share

    @staticmethod
    def _share(term: _Term, whole: _Values, part: _Values) -> float:
        share = 1.0
        for count in term.counts or ():
            total, own = whole.number(count.whole), part.number(count.part)
            if total == 0 and own != 0:
                raise Unshared("what the loss of this batch is divided by is 0, and in a part of it is not")
            # Where nothing counts in the whole batch, the loss is what PyTorch makes of it.
            share *= own / total if total else 1.0
        return share

    def _is_nothing(self, node: Any, part: _Values) -> bool:
        """Whether a value of a part is 0 whatever the parameters are."""
        if not isinstance(node, Node):
            return isinstance(node, (int, float)) and node == 0
        if node not in self._trained[1] and all(_is_plain(inner) for inner in ancestors(self._programs[1].graph, node)):
            return not bool(torch.as_tensor(part[node]).count_nonzero())
        name, args = op_name(node), node.args
        if name in COUNTED:
            target = argument(node, "target")
            counted = part[target] != argument(node, "ignore_index") if not _is_floating(target) else torch.ones(1)
            return not bool(counted.any())
        if name == "mul":
            return any(self._is_nothing(factor, part) for factor in args[:2])
        if name in FORMS or name in ("neg", "div", "true_divide", "sum", "mean"):
            return self._is_nothing(args[0], part)
        if name in ("add", "sub"):
            return all(self._is_nothing(summand, part) for summand in args[:2])
        if name == "where" and self._is_nothing(args[2], part):
            return self._is_nothing(args[0], part)
        mask = args[1] if len(args) > 1 else None
        if name == "masked_fill" and args[2] == 0 and isinstance(mask, Node) and mask not in self._trained[1]:
            return bool(part[mask].all())
        return False


class _Values:
    """Values of a program for the leaves of its arguments, computed as they are asked for."""

    def __init__(self, program: Any, leaves: Sequence[Any], buffers: Mapping[str, torch.Tensor]) -> None:
        self._program, self._leaves = program, leaves
        self._held = {**program.state_dict, **program.constants, **buffers}
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
            value = self._held.get(spec.target)
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
    target, weight, ignored = (argument(node, name) for name in ("target", "weight", "ignore_index"))

    def count(values: _Values) -> torch.Tensor:
        labels = values[target]
        counted = labels[labels != ignored]
        total: torch.Tensor = torch.tensor(counted.numel()) if weight is None else values[weight].double()[counted].sum()
        return total

    return count


def operations(program: Any) -> float:
    """About how many operations on elements both passes of a program take."""
    total = 0.0
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            total += 3 * value.numel() * _summands(node)
    return total


def _summands(node: Node) -> float:
    """About how many products an element of a result sums."""
    shapes = [value.meta["val"].shape for value in node.all_input_nodes if isinstance(value.meta.get("val"), torch.Tensor)]
    name = op_name(node)
    if name in ("linear", "mm", "bmm", "matmul", "addmm", "baddbmm", "einsum") and shapes and shapes[-1]:
        return 2.0 * float(max((shape[-1] for shape in shapes if shape), default=1))
    if name.startswith("conv") and len(shapes) > 1:
        return 2.0 * float(torch.Size(shapes[1][1:]).numel())
    if name == "scaled_dot_product_attention":
        return 4.0 * float(argument(node, "key").meta["val"].shape[-2])
    return 1.0


def _of_kind(program: Any, kind: str) -> set[Node]:
    nodes = program.graph.find_nodes(op="placeholder")
    return {node for node, spec in zip(nodes, program.graph_signature.input_specs) if spec.kind.name == kind}


def _dependent(graph: Any, sources: set[Node]) -> set[Node]:
    found = set(sources)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_plain(node: Node) -> bool:
    """Whether a value can be evaluated by its op."""
    return node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _is_floating(node: Node) -> bool:
    return bool(node.meta["val"].is_floating_point())


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
