"""Exports of modules as they are called: in place, with arguments of their own, and with nothing left behind.

A loss, a hook or another module may refer to the module that is exported. So the export runs on another object with the very
same attributes, ``_alias``, whose ``forward`` is watched; afterwards all objects that were reached are as before.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _export
from partita._apart import separate
from partita._cached import Kept, drop_traced
from partita._code import CallRecorder, Ran
from partita._effects import Effects, Watched, refuse_cached, refuse_carried, refuse_drawn, refuse_moving, zeros
from partita._error import refuse
from partita._load import Model
from partita._origin import of_result
from partita._readings import as_outside
from partita._tensors import pack
from partita._watched import HOOKS, Tree


# How often a module is exported again because code ran that no walk had reached.
_ROUNDS = 4

Constant = tuple[str, int | None, Any]
"""A tensor whose values a program contains: its name, its number in the tree if it is there, and the tensor. Of a buffer
there is the name alone."""


class Constants:
    """Tensors whose values a program contains, with these values; and what caches contained that it may have read."""

    def __init__(self, module: torch.nn.Module, tree: Tree, found: list[Constant], model: Model) -> None:
        # Tensors that the program changes are fed.
        changed = {name for name, _, _ in model._native.states()}
        self._found = [constant for constant in found if constant[0] not in changed]
        self._values = [None if value is None else value.detach().clone() for value in self._held(module, tree)]
        self._kept = Kept(tree.caches)

    def _held(self, module: torch.nn.Module, tree: Tree) -> list[Any]:
        if not self._found:
            return []
        buffers = dict(module.named_buffers(remove_duplicate=False))
        return [
            buffers.get(name) if value is None else value if number is None else tree.tensors[number]
            for name, number, value in self._found
        ]

    def digest(self) -> str:
        """What tells other values apart."""
        found = hashlib.sha256()
        for value in self._values:
            found.update(b"" if value is None else pack(value)[2].tobytes())
        return found.hexdigest()

    def are_current(self, module: torch.nn.Module, tree: Tree) -> bool:
        """Whether the tensors that are there now have the same values, and caches still what they had."""
        if not self._kept.is_there():
            return False
        pairs = zip(self._held(module, tree), self._values)
        return all(now is not None and before is not None and _is_equal(now, before) for now, before in pairs)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same type and values; one that is not a number is equal to itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    return one.is_floating_point() and torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


@dataclass
class Traced:
    """A program of ``torch.export``, and what it does not contain."""

    program: Any
    tree: Tree
    effects: Effects
    text: str
    """The program as text: of two programs with one text, one can be run for the other."""
    constants: list[Constant]
    again: Traced | None = None
    """The same program, exported from the state that it leaves behind."""
    ran: CallRecorder = field(default_factory=CallRecorder)
    """The code of the user that ran."""
    cache: str | None = None
    """The class of a cache that it does not return."""
    refused: Exception | None = None
    """Why no step can repeat it: it depends on what a pass before has left behind."""


def traced(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tree: Tree,
    *,
    kind: type[torch.nn.Module] | None = None,
    loss: Callable[..., Any] | None = None,
    keeps: bool = False,
) -> Traced:
    """The exported program of a module, whose ``tree`` is that of now.

    ``kind`` is the class of the user of a planned module, whose own hooks run around it. ``loss`` is a function of the
    result and of the last argument, which ``forward`` does not take. ``keeps``: the program returns tensors that forward()
    leaves in attributes and containers, after its result; otherwise it is for steps that leave them alone.

    Raises ``PartitaError``: E396 for changes that no pass can repeat, E390, E391 and E415 as ``load``.
    """
    with _export.turn():
        for _ in range(_ROUNDS):
            with _without_modes():
                found = _from(module, args, kwargs, tree, kind, loss, keeps)
            # Code that the walk did not reach may read what is not known yet.
            new = [(code, *scope) for code, scope in found.ran.code.items() if code not in tree.code]
            known = {reading[0] for reading in tree.ran.readings}
            asked = [reading for key, reading in found.ran.readings.items() if key not in known]
            if not new and not asked:
                break
            tree = Tree(module, kind, Ran((*tree.ran.code, *new), (*tree.ran.readings, *asked)), tree.also)
            if not new and found.again is None:
                # The same objects were reached.
                found.tree = tree
                break
    return found


def _from(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tree: Tree,
    kind: type[torch.nn.Module] | None,
    loss: Callable[..., Any] | None,
    keeps: bool,
) -> Traced:
    """See ``traced``. Of the state of a module that a tree has reached."""
    before = tree.saved()
    try:
        found = _once(module, args, kwargs, tree, kind, loss, keeps)
        if keeps and found.refused is not None:
            raise found.refused
        if found.ran.clocks and _once(module, args, kwargs, tree, kind, loss, keeps).text != found.text:
            raise refuse_drawn(found.ran.clocks[0])
        if not found.effects.is_steady:
            leaves = pytree.tree_map(separate, pytree.tree_leaves((args, kwargs)))
            found.effects.apply(tree, zeros(found.effects.types), leaves, zeros(found.effects.results))
            later = Tree(module, kind, tree.ran, tree.also)
            changed = later.saved()
            try:
                again = _once(module, args, kwargs, later, kind, loss, keeps)
            finally:
                later.restore(changed)
            if any(not (change.is_steady or change.grows) for change in again.effects.changes):
                raise refuse_moving(again.effects)
            if again.text == found.text:
                found.again = again
            elif not keeps:
                found.refused = refuse_carried(found.effects.places[0])
    finally:
        tree.restore(before)
    return found


@contextmanager
def _without_modes() -> Iterator[None]:
    """Exports need tensors with version counters, which those of inference mode have not. Gradients stay off in it. Hooks on
    what autograd saves, such as those of activation checkpoints, are about passes, and see nothing of an export."""
    is_on = torch.is_grad_enabled()
    plain = torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value)
    with as_outside(), torch.set_grad_enabled(is_on), plain:
        yield


def _once(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tree: Tree,
    kind: type[torch.nn.Module] | None,
    loss: Callable[..., Any] | None,
    keeps: bool,
) -> Traced:
    own = kind or type(module)
    plain = _plain(module, own)
    run = module.__dict__.get("forward") or getattr(plain, "forward")
    signature = inspect.signature(run)
    if loss is not None:
        run, signature = _with_loss(plain, run, signature, loss, len(args))
    watched = Watched(tree, run, keeps)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return watched(*args, **kwargs)

    setattr(forward, "__signature__", signature)
    # An attribute of the module called forward does not hide a property.
    members: dict[str, Any] = {"forward": property(lambda _: forward), "__module__": own.__module__}
    if kind is not None or loss is not None:
        # The hooks of the module itself run around its passes, and not around its loss.
        members["_call_impl"] = lambda self, *args, **kwargs: self.forward(*args, **kwargs)
    before, kept = tree.saved(), Kept(tree.caches)
    try:
        with _plain_parts(module):
            program = _export._exported(_alias(module, type(own.__name__, (own,), members)), args, kwargs)
    finally:
        drop_traced(tree.caches)
    changed = kept.changed()
    if changed is not None:
        raise refuse_cached(changed)
    # PyTorch puts equal containers in the place of those that it finds.
    tree.restore(before)
    constants = _constants(program, tree)
    effects = watched.effects
    refused: Exception | None = None
    read = _read_buffers(program)
    for name, number, value in constants:
        place = name if number is None else tree.places[number]
        if any(place == other or place.startswith((f"{other}.", f"{other}[")) for other in effects.places):
            refused = refuse_carried(place)
        if value is None and name in read:
            value = module.get_buffer(name)
        if keeps and value is not None and torch.is_grad_enabled() and value.requires_grad:
            refused = refused or _trained_outside(place)
    return Traced(program, tree, effects, text_of(program), constants, ran=watched.ran, cache=watched.cache, refused=refused)


def _plain(module: torch.nn.Module, kind: type[torch.nn.Module]) -> Any:
    """A module as one of the class of the user. Of a planned module it is one object for all exports: a method under
    ``lru_cache`` has values of its own for each object."""
    planning = module.__dict__.get("_planning")
    if planning is None or type(module) is kind:
        return module
    if type(planning.plain) is not kind:
        planning.plain = _alias(module, kind)
    return planning.plain


def _alias(module: torch.nn.Module, kind: type[torch.nn.Module]) -> Any:
    """Another object with the very same attributes, of a class."""
    alias = object.__new__(kind)
    object.__setattr__(alias, "__dict__", module.__dict__)
    return alias


@contextmanager
def _plain_parts(module: torch.nn.Module) -> Iterator[None]:
    """A context in which planned modules inside a module are those of the user, none is compiled, and parameters are
    ``nn.Parameter``: for one call, ``functional_call`` puts others in their place."""
    with ExitStack() as stack:
        for part in module.modules():
            # What torch.compile has put in the place of a call.
            if "_compiled_call_impl" in part.__dict__:
                stack.callback(part.__dict__.__setitem__, "_compiled_call_impl", part.__dict__.pop("_compiled_call_impl"))
            planning = part.__dict__.get("_planning")
            if planning is not None and part is not module:
                stack.callback(setattr, part, "__class__", type(part))
                part.__class__ = planning.kind_of(part)
            for name, value in part._parameters.items():
                if value is not None and not isinstance(value, torch.nn.Parameter):
                    stack.callback(part._parameters.__setitem__, name, value)
                    part._parameters[name] = torch.nn.Parameter(value.detach())
        yield


def _with_loss(
    alias: Any, run: Callable[..., Any], signature: inspect.Signature, loss: Callable[..., Any], count: int
) -> tuple[Callable[..., Any], inspect.Signature]:
    """A function, and its signature, that takes a target after the arguments of ``run`` and returns the loss."""
    if count < 2:
        raise TypeError("with a loss, example_inputs are the inputs of the module and a target")
    names = list(signature.parameters)[: count - 1]
    if len(names) < count - 1 or "target" in names:
        names = [f"input{number}" for number in range(count - 1)]
    named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in [*names, "target"]]
    # The hooks of the module are about its own arguments and result.
    if any(value for name, value in alias.__dict__.items() if name in HOOKS):
        run = alias._call_impl

    def with_loss(*inputs: Any) -> Any:
        return of_result(loss, run(*inputs[:-1]), inputs[-1])

    return with_loss, inspect.Signature(named)


def _constants(program: Any, tree: Tree) -> list[Constant]:
    """The tensors beside parameters whose values the program contains."""
    at = {(value.data_ptr(), value.shape): (number, value) for number, _, value in tree.plain() if value.numel() > 0}
    found: list[Constant] = []
    used = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.arg.name in used:
            found.append((spec.target, None, None))
        elif spec.kind.name == "CONSTANT_TENSOR" and spec.arg.name in used:
            value = program.constants[spec.target]
            number, held = at.get((value.data_ptr(), value.shape), (None, value))
            found.append((spec.target, number, held))
    return found


def _read_buffers(program: Any) -> set[str]:
    """The buffers that a program reads, and does not only replace."""

    def is_read(node: Any) -> bool:
        return any(str(user.target) != "aten.copy_.default" or user.args[0] is not node for user in node.users)

    placeholders = {node.name for node in program.graph.find_nodes(op="placeholder") if is_read(node)}
    specs = program.graph_signature.input_specs
    return {spec.target for spec in specs if spec.kind.name == "BUFFER" and spec.arg.name in placeholders}


def text_of(program: Any) -> str:
    """A program as text: its graphs, the types of all values in them, which parameters are one."""
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    parts = [str(program.graph_signature), *map(str, graphs)]
    # Under autocast, the types alone tell what an op computes in.
    for node in chain.from_iterable(graph.nodes for graph in graphs):
        values = pytree.tree_leaves(node.meta.get("val"))
        known = [value for value in values if isinstance(value, torch.Tensor)]
        parts.append(str([(value.dtype, tuple(value.shape), str(value.device)) for value in known]))
    tied: dict[int, list[str]] = {}
    for name, value in program.state_dict.items():
        tied.setdefault(id(value), []).append(name)
    parts.append(str([names for names in tied.values() if len(names) > 1]))
    parts.append(str(program.call_spec.out_spec))
    return "\n".join(parts)


def _trained_outside(place: str) -> Exception:
    return refuse(
        "E396",
        f"forward() reads {place}, which requires a gradient and is no parameter of a module",
        at=place,
        expected="parameters: attributes of modules, of nn.ParameterList or of nn.ParameterDict",
        found=f"a tensor with requires_grad in {place}",
        help="register it: register_parameter(name, value); or detach it, if it needs no gradient",
    )
