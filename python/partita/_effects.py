"""What a forward pass leaves behind in objects of the user: a loss in an attribute, a list that grows, a counter.

While a module is exported its code runs with tensors that have no values. ``Watched`` notes what it changes in the objects
that a ``Tree`` reached, and puts everything back. Tensors among the changes become outputs of the program, and ``Effects``
repeats the changes with the tensors of a pass, which are connected to autograd as those of PyTorch are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from partita._caches import without_caches
from partita._code import CallRecorder
from partita._drawn_outside import Drawn
from partita._error import refuse
from partita._watched import Holder, Tree, described, is_unchanged

# How an entry is made: it stays, is another one, a container, an input, a part of the result, an output; or a constant, a
# container of such, or a weak reference to one.
_OLD, _KNOWN, _TARGET, _INPUT, _RESULT, _OUTPUT, _CONSTANT, _BUILT, _WEAK = range(9)


Type = tuple[torch.dtype, tuple[int, ...], bool, torch.device]
"""Of a tensor: element type, shape, whether it has a gradient, where it lies."""


@dataclass
class Change:
    """The new entries of a holder, by its number in a tree."""

    number: int
    entries: dict[Any, Any]
    removed: list[Any]
    """The keys of entries that are gone."""
    places: list[str]
    """Where entries are new, in words."""
    is_steady: bool
    """Whether they are as the old ones but for the values of tensors."""
    grows: bool
    """Whether they are the old ones, and more tensors."""


@dataclass
class Effects:
    """The changes of a forward pass."""

    changes: list[Change] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """The tensors that a program returns for them, beside its result."""
    types: list[Type] = field(default_factory=list)
    """Of each of these."""
    results: list[Type | None] = field(default_factory=list)
    """Of the leaves of what is returned; None for what is no tensor."""
    written: list[tuple[int, int]] = field(default_factory=list)
    """Arguments that are changed in place, by number among their leaves, and the output that has what is then in them."""
    copied: list[tuple[Any, Any]] = field(default_factory=list)
    """Buffers that were given another tensor, with that tensor: it is copied into them."""

    @property
    def places(self) -> list[str]:
        """What is changed, in words."""
        return [place for change in self.changes for place in change.places]

    @property
    def is_steady(self) -> bool:
        """Whether another pass would begin as this one did."""
        return all(change.is_steady for change in self.changes)

    def separate(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The tensors among the leaves of the arguments, as a pass takes them: of those that are changed afterwards, copies."""
        written = {id(leaves[number]) for number, _ in self.written}
        for value in inputs:
            if id(value) in written and value.requires_grad and torch.is_grad_enabled():
                raise refuse(
                    "E396",
                    "forward() changes an argument in place that requires a gradient",
                    expected="an argument that is read",
                    found=f"a tensor of shape {list(value.shape)} with requires_grad",
                    help="change a clone() of it",
                )
        return [value.clone() if id(value) in written else value for value in inputs]

    def apply(self, tree: Tree, outputs: Sequence[Any], inputs: Sequence[Any], result: Sequence[Any]) -> None:
        """Changes the objects of a tree with the same key as a pass of PyTorch would have. ``inputs`` and ``result`` are
        the leaves of the arguments and of what is returned."""
        outputs = [value.reshape(shape) for value, (_, shape, _, _) in zip(outputs, self.types)]
        with torch.no_grad():
            for number, output in self.written:
                inputs[number].copy_(outputs[output])
        olds = {change.number: tree.holders[change.number].read() for change in self.changes}
        taken = dict(olds)

        def value(leaf: Any, old: dict[Any, Any]) -> Any:
            kind, *about = leaf
            if kind == _OLD:
                return old[about[0]]
            if kind == _KNOWN:
                number, key = about
                if number not in taken:
                    taken[number] = tree.holders[number].read()
                return taken[number][key]
            if kind == _TARGET:
                return tree.holders[about[0]].target
            if kind in (_INPUT, _RESULT, _OUTPUT):
                return (inputs if kind == _INPUT else result if kind == _RESULT else outputs)[about[0]]
            if kind == _CONSTANT:
                return about[0]
            if kind == _WEAK:
                return weakref.ref(value(about[0], old))
            return pytree.tree_unflatten([value(part, old) for part in about[1]], about[0])

        made = [
            (change, {key: value(leaf, olds[change.number]) for key, leaf in change.entries.items()})
            for change in self.changes
        ]
        for change, entries in made:
            new = {key: value for key, value in entries.items() if change.entries[key] != (_OLD, key)}
            tree.holders[change.number].change(new, change.removed, list(entries.values()))


class Watched:
    """A forward pass that is being exported."""

    def __init__(self, tree: Tree, run: Callable[..., Any], keeps: bool) -> None:
        """``keeps``: whether a program returns the tensors that are left behind."""
        self.tree, self.run, self.keeps = tree, run, keeps
        self.effects, self.ran = Effects(), CallRecorder()
        # The class of a cache that forward() returned, in whose place is None.
        self.cache: str | None = None
        # What the export puts others in the place of: the entries that the user sees.
        self._own = tree.saved()
        # By the id of what is in its place, while the module runs.
        self._replaced: dict[int, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = self.tree.saved()
        pairs = [(now, own) for entries, owned in zip(before, self._own) for now, own in _shared(entries, owned)]
        self._replaced = {id(now): own for now, own in pairs if isinstance(now, torch.Tensor)}
        try:
            inputs = pytree.tree_leaves((args, kwargs))
            versions = [value._version if isinstance(value, torch.Tensor) else 0 for value in inputs]
            drawn = Drawn(self.tree.opaque)
            with CallRecorder() as self.ran:
                result, self.cache = without_caches(self.run(*args, **kwargs))
            after = pytree.tree_leaves((args, kwargs))
            if len(after) != len(inputs) or any(now is not before for now, before in zip(after, inputs)):
                raise _refused("forward() changes a list or a dictionary among its arguments", "an argument")
            if self.ran.files:
                raise refuse_read(self.ran.files[0])
            if self.ran.unanswered:
                raise refuse_unanswered(self.ran.unanswered[0])
            advanced = drawn.advanced()
            if advanced is not None:
                raise refuse_drawn(advanced)
            tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
            if tensors and not any(isinstance(value, FakeTensor) for value in tensors):
                # Not an export: the module is asked what it says to its arguments.
                return result
            self.effects = self._found(before, inputs, pytree.tree_leaves(result))
            self._written(self.effects, inputs, versions)
        finally:
            self.tree.restore(before)
        with torch.no_grad():
            for buffer, value in self.effects.copied:
                buffer.copy_(value.detach())
        outputs, self.effects.outputs, self.effects.copied = self.effects.outputs, [], []
        return (result, outputs) if self.keeps and outputs else result

    def _written(self, effects: Effects, inputs: list[Any], versions: list[int]) -> None:
        """Arguments that forward() changed in place: a program returns what is in them."""
        for number, (value, version) in enumerate(zip(inputs, versions)):
            if isinstance(value, torch.Tensor) and value._version != version:
                effects.written.append((number, len(effects.outputs)))
                effects.outputs.append(value.reshape(1) if value.dim() == 0 else value)
                effects.types.append((value.dtype, tuple(value.shape), False, value.device))

    def _found(self, before: list[dict[Any, Any]], inputs: list[Any], result: list[Any]) -> Effects:
        effects = Effects(results=[_type_of(value) if isinstance(value, torch.Tensor) else None for value in result])
        known: dict[int, Any] = {}
        for number, entries in enumerate(before):
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    known.setdefault(id(value), (_KNOWN, number, key))
        for number, holder in enumerate(self.tree.holders):
            known.setdefault(id(holder.target), (_TARGET, number))
        for kind, values in ((_INPUT, inputs), (_RESULT, result)):
            for place, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    known.setdefault(id(value), (kind, place))
        for number, (holder, old) in enumerate(zip(self.tree.holders, before)):
            new = holder.read()
            if not is_unchanged(old, new):
                self._change(effects, known, number, holder, old, new)
        return effects

    def _change(
        self,
        effects: Effects,
        known: dict[int, Any],
        number: int,
        holder: Holder,
        old: dict[Any, Any],
        new: dict[Any, Any],
    ) -> None:
        entries: dict[Any, Any] = {}
        removed = [key for key in old if key not in new]
        places = [holder.named(key) for key in removed]
        for key, value in new.items():
            entries[key] = (_OLD, key)
            if key in old and (old[key] is value or self._is_as_before(value, self._own[number].get(key))):
                continue
            if holder.place.endswith("_buffers") and self._is_copied(old.get(key), value):
                effects.copied.append((old[key], value))
                continue
            place = holder.named(key)
            if holder.place.endswith("_parameters") and isinstance(value, torch.Tensor):
                raise _refused("forward() gives a module another parameter", place)
            places.append(place)
            entries[key] = self._leaf(effects, known, value, place)
        if places or list(old) != list(new):
            renewed = [key for key, value in new.items() if key in old and old[key] is not value]
            is_steady = list(old) == list(new) and all(_kind_of(old[key]) == _kind_of(new[key]) for key in renewed)
            grown = [value for key, value in new.items() if key not in old]
            grows = len(new) > len(old) and all(key in new and new[key] is value for key, value in old.items())
            effects.changes.append(
                Change(
                    number,
                    entries,
                    removed,
                    places,
                    is_steady,
                    grows and isinstance(holder.target, list) and all(isinstance(value, torch.Tensor) for value in grown),
                )
            )

    def _is_as_before(self, now: Any, own: Any) -> bool:
        """Whether an entry is what the user sees, but for tensors in whose place the export puts others: recurrent modules
        notice those, and list their weights anew."""
        if isinstance(now, torch.Tensor):
            return self._replaced.get(id(now), now) is own
        if type(now) is not type(own):
            return False
        if isinstance(now, weakref.ref):
            return self._is_as_before(now(), own())
        if isinstance(now, (list, tuple)):
            return len(now) == len(own) and all(map(self._is_as_before, now, own))
        if isinstance(now, dict):
            return list(now) == list(own) and all(map(self._is_as_before, now.values(), own.values()))
        return now is own

    def _is_copied(self, old: Any, new: Any) -> bool:
        """Whether a tensor that a buffer is replaced by can as well be copied into it."""
        both = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
        return both and old.shape == new.shape and old.dtype == new.dtype and not (self.keeps and new.requires_grad)

    def _leaf(self, effects: Effects, known: dict[int, Any], value: Any, place: str) -> Any:
        leaf = known.get(id(value))
        if leaf is not None:
            return leaf
        if isinstance(value, torch.Tensor):
            if not isinstance(value, FakeTensor) and not torch._is_functional_tensor(value):
                return (_CONSTANT, value)
            leaf = known[id(value)] = (_OUTPUT, len(effects.outputs))
            # No output with one number is taken for the loss.
            effects.outputs.append(value.reshape(1) if value.dim() == 0 else value)
            effects.types.append(_type_of(value))
            return leaf
        if isinstance(value, weakref.ref) and id(value()) in known:
            return (_WEAK, known[id(value())])
        parts, spec = pytree.tree_flatten(value)
        if not spec.is_leaf() and not isinstance(value, torch.Size):
            return (_BUILT, spec, [self._leaf(effects, known, part, place) for part in parts])
        if Tree(value).tensors:
            raise _refused("forward() stores a tensor where a planned pass cannot put it", place, type(value).__name__)
        return (_CONSTANT, value)


def _shared(one: dict[Any, Any], other: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The values of the keys that both have."""
    return [(value, other[key]) for key, value in one.items() if key in other]


def zeros(types: Sequence[Type | None]) -> list[Any]:
    """Tensors of these types."""
    return [
        None if kind is None else torch.zeros(kind[1], dtype=kind[0], device=kind[3]).requires_grad_(kind[2]) for kind in types
    ]


def _type_of(value: torch.Tensor) -> Type:
    return value.dtype, tuple(value.shape), value.requires_grad, value.device


def _kind_of(value: Any) -> Any:
    """A value by what is in it, tensors by types and shapes alone."""
    leaves, spec = pytree.tree_flatten(value)
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    return spec, [(leaf.dtype, leaf.shape) if tensor else described(leaf) for leaf, tensor in zip(leaves, is_tensor)]


def _refused(message: str, place: str, found: str = "") -> Exception:
    return refuse(
        "E396",
        message,
        at=place,
        expected="tensors in attributes, lists, tuples and dictionaries of modules",
        found=f"{place}: {found}" if found else place,
        help="return the value from forward(), or keep what changes from call to call in a buffer",
    )


def refuse_moving(effects: Effects) -> Exception:
    """E396 for what another pass changes once more, so that no program repeats it."""
    moving = [place for change in effects.changes if not (change.is_steady or change.grows) for place in change.places]
    return refuse(
        "E396",
        f"forward() changes {moving[0]} in each call",
        at=moving[0],
        expected="attributes that are the same in each call, or tensors",
        found=", ".join(moving),
        help="count outside of forward(), or in a buffer: register_buffer(name, torch.tensor(0)), and add_(1) in forward()",
    )


def refuse_drawn(place: str) -> Exception:
    """E396 for random numbers that an export would draw once and for all."""
    return refuse(
        "E396",
        f"forward() draws from {place}, which gives another value in each call",
        at=place,
        expected="random numbers of PyTorch, such as dropout, or drawn outside of forward()",
        found=f"a call that advances {place}",
        help="draw them outside and pass them in, as a tensor or as a number",
    )


def refuse_read(call: str) -> Exception:
    """E396 for a file that an export would read once and for all."""
    return refuse(
        "E396",
        f"forward() calls {call}, which a planned pass does not repeat",
        at=call,
        expected="a forward pass over its arguments and the attributes of the module",
        found=f"a call of {call}",
        help="read files outside of forward(), and pass in what was read",
    )


def refuse_unanswered(call: str) -> Exception:
    """E396 for code that asks for inference mode in a way that an export cannot answer."""
    return refuse(
        "E396",
        f"forward() asks {call} in inference mode, which an export does not run in",
        at=call,
        expected="torch.is_inference_mode_enabled(), called by this name",
        found=f"a call of {call}",
        help="ask torch.is_inference_mode_enabled(), or call the built module under torch.no_grad()",
    )


def refuse_cached(cache: str) -> Exception:
    """E396 for a value in a cache that a pass changes."""
    return refuse(
        "E396",
        f"forward() changes a value that the cache of {cache} has",
        at=cache,
        expected="values in caches that stay as they are",
        found=f"a value that {cache} has returned before, and that is another one afterwards",
        help="keep what changes in an attribute, or in a buffer",
    )


def refuse_carried(place: str) -> Exception:
    """E396 for a tensor that a pass reads from the pass before."""
    return refuse(
        "E396",
        f"forward() reads {place}, which an earlier call of it has changed",
        at=place,
        expected="state between calls in buffers, which a planned pass reads and changes in place",
        found=f"state in {place}",
        help="register_buffer(name, value) and copy_() in forward(); or set it anew before each call",
    )
