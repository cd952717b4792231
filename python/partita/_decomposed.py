"""Ops that the import does not know, in terms of ops that it knows: by the decompositions of PyTorch, or those of this package."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from partita._decompositions import DECOMPOSITIONS

_ATEN = torch.ops.aten

MAX_ROUNDS = 16
"""A decomposition may use ops that are not known either; an op that is known may be called in a way that is not, one by one."""


def decomposed(exported: Any, unknown: Iterable[str]) -> Any:
    """The exported program without the ops of these names, such as ``aten.trace.default``; ``None`` if nothing decomposes
    any of them.

    Each call is replaced where it is. ``run_decompositions`` traces the program anew, and loses ``detach`` and the regions of
    ``no_grad``, so gradients would be others.
    """
    composites = torch.export.default_decompositions()
    ops = [op for name in unknown if not name.startswith(_OF_GRADIENTS) and (op := _op(name)) is not None]
    table = {op: way for op in ops if (way := DECOMPOSITIONS.get(str(op)) or decomposition_table.get(op)) is not None}
    table.update({op: composites[op] for op in ops if op not in table and op in composites})
    if not table:
        return None
    table |= {op: DECOMPOSITIONS[str(op)] for name in _READ_IN_FULL if (op := _op(name)) is not None}
    module = copy.deepcopy(exported.graph_module)
    # What a decomposition makes anew belongs to the mode of the program.
    values = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    mode = detect_fake_mode(values) or nullcontext()
    replaced = 0
    for part, own in zip(module.modules(), exported.graph_module.modules()):
        if isinstance(part, torch.fx.GraphModule):
            # A copy calls `input` `input_1`; the signature of the program has the first name.
            for node, named in zip(part.graph.nodes, own.graph.nodes):
                node.name = named.name
            calls = [node for node in part.graph.nodes if node.op == "call_function" and node.target in table]
            calls = [node for node in calls if str(node.target) not in _READ_IN_FULL or _is_read_in_full(node)]
            replaced += sum(_replace(part, node, table[node.target], mode) for node in calls)
            part.graph.lint()
            part.recompile()
    return exported._update(module, exported.graph_signature) if replaced else None


def _replace(module: torch.fx.GraphModule, call: torch.fx.Node, way: Callable[..., Any], mode: Any) -> bool:
    """Writes the decomposition of a call in its place; ``False`` where it has none for these arguments."""
    graph, given = module.graph, []

    def value(node: torch.fx.Node) -> Any:
        given.append(node)
        return node.meta["val"]

    args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), value)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    nodes = [node for node in given if isinstance(node.meta["val"], torch.Tensor)]
    if len(places) != len(nodes):
        return False

    def run(*tensors: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        found = way(*args, **kwargs)
        # Some return tuples with names, of a class of their own.
        return tuple(found) if isinstance(found, tuple) else found

    try:
        with mode:
            traced = make_fx(torch.func.functionalize(run))(*[leaves[place] for place in places])
    except Exception:
        # A decomposition that cannot be traced is none: the caller reports the op as unknown.
        return False
    if any(str(node.target).startswith("prims.") for node in traced.graph.nodes):
        # The import knows none of these.
        return False
    in_place = [node.all_input_nodes[0] for node in traced.graph.nodes if node.target in _IN_PLACE]
    if any(node.op == "get_attr" for node in traced.graph.nodes) or any(len(node.users) > 1 for node in in_place):
        return False
    (output,) = traced.graph.find_nodes(op="output")
    if not all(isinstance(leaf, (torch.fx.Node, type(None))) for leaf in pytree.tree_leaves(output.args[0])):
        return False
    results = output.args[0]
    if isinstance(results, (tuple, list)):
        read = [user for user in call.users if user.users]
        if any(user.target is not operator.getitem or results[cast(int, user.args[1])] is None for user in read):
            return False
    if results is None:
        # A check that computes nothing.
        if call.users:
            return False
        graph.erase_node(call)
        return True
    told = {key: value for key, value in call.meta.items() if key in ("nn_module_stack", "stack_trace", "torch_fn", "custom")}
    copies: dict[torch.fx.Node, torch.fx.Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes))
    with graph.inserting_before(call):
        for node in traced.graph.nodes:
            if node.op == "call_function":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {**told, "val": node.meta.get("val")}
                # A result of its own: nothing else reads the tensor whose shape changes in place.
                copies[node].target = _IN_PLACE.get(node.target, node.target)

        def own(found: Any) -> torch.fx.Node:
            # What a decomposition returns as it was given has a name of its own too.
            node = copies[found]
            if found.op == "call_function":
                return node
            same = graph.call_function(_ATEN.clone.default, (node,))
            same.meta = {**told, "val": node.meta["val"]}
            return same

        if isinstance(results, (tuple, list)):
            for user in list(call.users):
                if user.users:
                    _take_over(graph, user, own(results[cast(int, user.args[1])]))
                else:
                    graph.erase_node(user)
            graph.erase_node(call)
        else:
            _take_over(graph, call, own(results))
    return True


_OF_GRADIENTS = ("aten.embedding", "aten._embedding_bag")
"""Ops with options of their gradients alone, which PyTorch's decompositions drop."""

_READ_IN_FULL = ("aten.max_pool2d_with_indices.default",)
"""Ops of which the import knows the first result alone: they are replaced where another one is read."""


def _is_read_in_full(call: torch.fx.Node) -> bool:
    return any(user.users and user.args[1] != 0 for user in call.users)


_IN_PLACE = {
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
}
"""Changes of a shape in place."""


def _take_over(graph: torch.fx.Graph, old: torch.fx.Node, new: torch.fx.Node) -> None:
    """A node in the place of another one, under its name, by which the signature of the program knows it."""
    name = old.name
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    new.name = name


def _op(name: str) -> Any:
    """``aten.trace.default`` as an op of PyTorch."""
    found: Any = torch.ops
    for part in name.removeprefix("torch.ops.").split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found if isinstance(found, torch._ops.OpOverload) else None
