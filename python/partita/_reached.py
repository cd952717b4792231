"""Which tensors the outputs of an exported program depend on, as autograd sees it.

PyTorch leaves ``.grad`` of a parameter None if no gradient flows to it, and its optimizers then skip it, weight decay
included. A gradient of zeros is another thing, so what no gradient reaches is not trained here either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from partita import _partita

# What makes a new tensor in the likeness of another has no gradient.
_MAKES = ("_like", "new_empty", "new_full", "new_ones", "new_zeros")


class Reached:
    """For each output that is a tensor, the names of the parameters and inputs that a gradient of it reaches."""

    def __init__(self, exported: Any) -> None:
        signature = exported.graph_signature
        # Parameters by the name of their placeholder; inputs have the name of theirs, as a step calls it.
        self.named: dict[str, str] = {}
        for spec in signature.input_specs:
            name = getattr(spec.arg, "name", None)
            if spec.kind.name in ("PARAMETER", "USER_INPUT") and name is not None:
                self.named[name] = spec.target if spec.kind.name == "PARAMETER" else _partita.name_of_user(name)
        found = _sets(exported.graph, frozenset(self.named))
        # Names of one tensor share their gradient.
        tied: dict[int, set[str]] = {}
        for name, target in self.named.items():
            if target in exported.state_dict:
                tied.setdefault(id(exported.state_dict[target]), set()).add(target)
        same = {name: names for names in tied.values() for name in names}
        self.of_outputs: dict[str, frozenset[str]] = {}
        self._outputs: list[str] = []
        self.names = frozenset(self.named.values())
        for output in signature.output_specs:
            name = getattr(output.arg, "name", None)
            if output.kind.name == "USER_OUTPUT" and not hasattr(output.arg, "value") and name is not None:
                targets = [self.named[placeholder] for placeholder in found.get(name, ())]
                self.of_outputs[name] = frozenset().union(*(same.get(target, {target}) for target in targets))
                self._outputs.append(name)

    def from_outputs(self, live: list[bool]) -> frozenset[str]:
        """The names that gradients of the live outputs reach; all if the outputs are others than those exported."""
        if len(live) != len(self._outputs):
            return self.names
        return frozenset().union(*(self.of_outputs[name] for name, is_live in zip(self._outputs, live) if is_live))

    def trained(self, loss: str | None) -> frozenset[str]:
        """What the output called ``loss`` reaches, or any output if there is none of this name."""
        chosen = [name == loss for name in self._outputs]
        return self.from_outputs(chosen if any(chosen) else [True] * len(chosen))


def _sets(graph: Any, names: frozenset[str]) -> dict[str, frozenset[str]]:
    """By node: the placeholders of these names that its gradient reaches."""
    found: dict[str, frozenset[str]] = {}
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op == "placeholder":
            found[node.name] = frozenset({node.name}) & names
            continue
        reached = frozenset().union(*(found[other.name] for other in node.all_input_nodes))
        found[node.name] = reached if node.op == "call_function" and _has_gradient(node) else frozenset()
        # An op that writes into a tensor: whatever shows its memory depends on what is written.
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and _is_float(node.meta.get("val")):
            written = [value for argument, value in zip(schema.arguments, node.args) if _is_written(argument)]
            if not all(_is_last(value, node, order) or found[value.name] >= reached for value in written):
                return {node.name: names for node in graph.nodes}
    return found


def _is_last(value: Any, node: Any, order: dict[Any, int]) -> bool:
    """Whether an op writes into a buffer that nothing reads afterwards, as at the end of a program."""
    is_alone = value.op == "placeholder" and not node.users
    return is_alone and all(order[user] <= order[node] and not (user.users and _is_view(user)) for user in value.users)


def _is_view(node: Any) -> bool:
    """Whether the result of an op may show the memory of its operands."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _has_gradient(node: Any) -> bool:
    """Whether the results of an op have a gradient with respect to its operands."""
    name = str(node.target)
    if name.startswith("wrap_with_set_grad_enabled") and node.args[0] is False:
        return False
    if name.startswith("aten.") and (name.startswith("aten.detach") or name.split(".")[1].endswith(_MAKES)):
        return False
    return "val" not in node.meta or _is_float(node.meta["val"])


def _is_float(value: Any) -> bool:
    """Whether a value is, or contains, a tensor of numbers that may have gradients."""
    if isinstance(value, (tuple, list)):
        return any(_is_float(part) for part in value)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@contextmanager
def only_trained(exported: Any, reached: frozenset[str]) -> Iterator[None]:
    """Inside, parameters that no gradient reaches are frozen: a saved program says which of them are trained."""
    parameters = [exported.state_dict[name] for name in exported.graph_signature.parameters if name not in reached]
    frozen = [value for value in parameters if value.requires_grad and value.is_leaf]
    try:
        for value in frozen:
            value.requires_grad_(False)
        yield
    finally:
        for value in frozen:
            value.requires_grad_(True)
