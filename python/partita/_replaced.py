"""Parts of a module of PyTorch replaced by others that compute the same: where their parameters come from, and the proof.

A new part takes the parameters and buffers of what it replaces, so that nothing is initialized again and optimizers keep
their tensors. That it computes the same is compared when shapes are known.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import fx, nn

from partita._compared import difference, observed
from partita._error import refuse

def shared_copy(module: nn.Module) -> nn.Module:
    """A copy of a tree of modules with the very same parameters and buffers."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())})


def take_tensors(
    new: nn.Module, old: Sequence[tuple[str, torch.Tensor]], chosen: Mapping[str, str] | None, at: str
) -> None:
    """Gives a module the tensors of what it replaces.

    ``old`` are names and tensors in order of use. The tensors of one shape are taken in their order; where several have
    one shape, their own names must be the same in the same order, as those of ``weight`` and ``bias``. ``chosen`` says
    for names of the new module which old ones they take; the others then keep their values.

    Raises ``PartitaError``: E250 if a tensor is left over on one side, or if the order does not tell.
    """
    wanted = [*new.named_parameters(), *new.named_buffers()]
    found = dict(old)
    if chosen is not None:
        for name, source in chosen.items():
            if name not in dict(wanted) or source not in found:
                raise _unfit(new, at, f"there is no `{name if name not in dict(wanted) else source}`", wanted, old)
            if dict(wanted)[name].shape != found[source].shape:
                raise _unfit(new, at, f"`{name}` and `{source}` have other shapes", wanted, old)
            _put(new, name, found[source])
        return
    places: dict[tuple[int, ...], list[str]] = {}
    sources: dict[tuple[int, ...], list[str]] = {}
    for by_shape, tensors in ((places, wanted), (sources, old)):
        for name, tensor in tensors:
            by_shape.setdefault(tuple(tensor.shape), []).append(name)
    for shape in [*places, *(shape for shape in sources if shape not in places)]:
        ours, theirs = places.get(shape, []), sources.get(shape, [])
        if len(ours) != len(theirs):
            raise _unfit(new, at, f"{len(ours)} tensors of shape {list(shape)} replace {len(theirs)}", wanted, old)
        own = [[name.rpartition(".")[2] for name in names] for names in (ours, theirs)]
        if len(ours) > 1 and own[0] != own[1]:
            raise _unfit(new, at, f"which of the tensors of shape {list(shape)} is which is not clear", wanted, old)
    for shape, names in places.items():
        for name, source in zip(names, sources[shape]):
            _put(new, name, found[source])


def _unfit(
    new: nn.Module,
    at: str,
    what: str,
    wanted: Sequence[tuple[str, torch.Tensor]],
    old: Sequence[tuple[str, torch.Tensor]],
) -> Exception:
    def shown(tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors) or "no tensors"

    return refuse(
        "E250",
        f"`{type(new).__name__}` does not fit here: {what}",
        at=at,
        expected=f"the tensors of what it replaces: {shown(old)}",
        found=shown(wanted),
        help="name them: replace(.., parameters={new name: old name}); tensors that are not named keep their values",
    )


def _put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    path, _, own = name.rpartition(".")
    owner = module.get_submodule(path)
    held: dict[str, Any] = owner._parameters if own in owner._parameters else owner._buffers
    held[own] = tensor


def replace_nodes(gm: fx.GraphModule, nodes: Sequence[fx.Node], new: nn.Module, chosen: Any, at: str) -> fx.Node:
    """Replaces ops of a graph by a call of a module, which takes the values that they read, in order of use.

    Raises ``PartitaError``: E250 if more than the last op is read outside, or if the module does not fit.
    """
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    nodes = sorted(nodes, key=order.__getitem__)
    last = nodes[-1]
    outside = [node for node in nodes[:-1] if any(user not in nodes for user in node.users)]
    if outside:
        raise refuse(
            "E250",
            f"`{type(new).__name__}` does not fit here: more than one value is read outside",
            at=at,
            expected=f"only `{last.name}` read by other ops",
            found=", ".join(node.name for node in [*outside, last]),
        )
    inputs: dict[fx.Node, None] = {}
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for node in nodes:
        if node.op == "call_module":
            part = gm.get_submodule(str(node.target))
            for name, tensor in chain(part.named_parameters(), part.named_buffers()):
                tensors.setdefault(id(tensor), (f"{node.target}.{name}", tensor))
        for value in node.all_input_nodes:
            if value in nodes:
                continue
            if value.op == "get_attr" and isinstance(held := _attribute(gm, str(value.target)), torch.Tensor):
                tensors.setdefault(id(held), (str(value.target), held))
            else:
                inputs[value] = None
    take_tensors(new, list(tensors.values()), chosen, at)
    _check_call(new, len(inputs), at)
    is_alone = len(nodes) == 1 and last.op == "call_module" and list(last.args) == list(inputs) and not last.kwargs
    if is_alone:
        gm.set_submodule(str(last.target), new)
        gm.recompile()
        return last
    taken = {name for name, _ in gm.named_children()}
    number = next(number for number in range(len(taken) + 1) if f"{type(new).__name__}_{number}" not in taken)
    target = f"{type(new).__name__}_{number}"
    gm.add_submodule(target, new)
    with gm.graph.inserting_after(last):
        call = gm.graph.call_module(target, tuple(inputs))
    last.replace_all_uses_with(call)
    for node in reversed(nodes):
        gm.graph.erase_node(node)
    for node in reversed(list(gm.graph.nodes)):
        if node.op == "get_attr" and not node.users:
            gm.graph.erase_node(node)
            if all(other.target != node.target for other in gm.graph.nodes):
                path, _, own = str(node.target).rpartition(".")
                delattr(gm.get_submodule(path), own)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return call


def _attribute(module: nn.Module, target: str) -> Any:
    path, _, own = target.rpartition(".")
    return getattr(module.get_submodule(path), own)


def _check_call(new: nn.Module, count: int, at: str) -> None:
    signature = inspect.signature(new.forward)
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise refuse(
            "E250",
            f"`{type(new).__name__}` does not fit here: its arguments are others",
            at=at,
            expected=f"a forward() of {count} tensors",
            found=f"forward{signature}",
        ) from error


@dataclass
class Same:
    """That an edited module computes what its original does: outputs, and gradients of the parameters they share."""

    original: nn.Module
    edited: nn.Module
    replaced: list[str] = field(default_factory=list)
    """What was replaced, and where the program says so."""

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Runs both in PyTorch in eval mode on these inputs. E251 names the first tensor that differs."""
        if not self.replaced:
            return
        shared = {id(tensor) for tensor in self.edited.parameters()}
        named = [(name, p) for name, p in self.original.named_parameters() if id(p) in shared and p.requires_grad]
        with _in_eval(self.original), _in_eval(self.edited):
            _, first = difference(
                observed(self.original, named, args, kwargs), observed(self.edited, named, args, kwargs)
            )
        if first is not None:
            raise refuse(
                "E251",
                "the model with replaced parts does not compute what it replaces",
                at="; ".join(self.replaced),
                expected="the outputs and gradients of the model without them",
                found=first,
                help="check what the new module computes, and which parameters it takes",
            )


@contextmanager
def _in_eval(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in eval mode."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode


def moved_optimizer(optimizer: Any, before: nn.Module, after: nn.Module) -> Any:
    """A copy of an optimizer of PyTorch, with its states, over the parameters of another module of the same names.

    Raises ``PartitaError``: E393 if it has parameters that are not the module's.
    """
    named = dict(after.named_parameters(remove_duplicate=False))
    memo: dict[int, Any] = {}
    for name, parameter in before.named_parameters(remove_duplicate=False):
        memo[id(parameter)] = named[name]
    unknown = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in memo]
    if unknown:
        raise refuse(
            "E393",
            "the optimizer has parameters that are not the model's",
            expected="an optimizer of the parameters of the model that is scheduled",
            found=f"{len(unknown)} others, the first of shape {list(unknown[0].shape)}",
        )
    return copy.deepcopy(optimizer, memo)
