"""What an export of a module freezes: all that its code may read beside the values of tensors.

A walk from the module reaches its attributes, parts, hooks and classes, the containers and objects in them, and what the
code of these classes and hooks refers to: globals, closures, defaults. ``Tree.key`` describes what was reached by value, so
that equal keys mean one program. The walk also keeps live views of all that it read: whether anything changed since is asked
by comparing identities, in C, without another walk.

Code of installed packages is not followed, and objects of the standard library, PyTorch and NumPy other than containers and
arrays count by their identity. So does a container of more than ``LARGE`` entries, with its length. Code that ran and that
the walk did not reach is given to another walk: see ``partita._code``.
"""

from __future__ import annotations

import contextvars
import functools
import operator
import threading
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from partita._code import Ran, attributes_of, globals_of, is_cache, is_installed, is_library, modules_of, names_in, nested, queries

LARGE = 4096

PLAIN = (type(None), bool, int, str, bytes, type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType, types.MethodType, type, types.ModuleType)
# Attributes that a module has from the start, and those of them that its forward pass reads. Most are empty.
_TENSORS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOKS = frozenset(name for name in torch.nn.Module().__dict__ if name.startswith(_HOOKS))
_STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"}
_DEEPEST = 100
# Modules of the standard library whose objects hold what a program puts into them.
_HOLDERS = ("argparse", "collections", "configparser", "optparse")
# Devices whose tensors have no place in memory that a program sees.
_WITHOUT_ADDRESSES = ("lazy", "meta", "xla")
# The function in a method of a class, a property, a cached property, a method with defaults.
_INNER = ("__func__", "fget", "func")

class Same:
    """An object that counts by its identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Key:
    """A description whose hash is computed once."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: Any) -> None:
        self.parts, self._hash = parts, hash(parts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self._hash == other._hash and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Holder:
    """Something with named entries that code may change: attributes of an object, a container, globals, a cell."""

    place: str
    target: Any
    names: tuple[str, ...] | None = None
    """The attributes that count, of what is no container and has no dictionary."""

    def read(self) -> dict[Any, Any]:
        """Its entries now."""
        if self.names is not None:
            return {name: getattr(self.target, name) for name in self.names if hasattr(self.target, name)}
        if isinstance(self.target, dict):
            return dict(dict.items(self.target))
        return dict(enumerate(self.target))

    def write(self, entries: dict[Any, Any]) -> None:
        """Gives it these entries, and no others."""
        target = self.target
        if self.names is not None:
            for name in self.names:
                if name in entries:
                    setattr(target, name, entries[name])
                elif hasattr(target, name):
                    delattr(target, name)
        elif isinstance(target, dict):
            owner: Any = type(target) if type(target).__module__ == "collections" else dict
            owner.clear(target)
            owner.update(target, entries)
        elif isinstance(target, list):
            list.__setitem__(target, slice(None), list(entries.values()))
        else:
            target.clear()
            (target.extend if isinstance(target, deque) else target.update)(list(entries.values()))

    def change(self, new: dict[Any, Any], removed: list[Any], entries: list[Any]) -> None:
        """Gives it new entries, takes away removed ones; ``entries`` are all that it then has."""
        target = self.target
        if self.names is None and not isinstance(target, dict):
            self.write(dict(enumerate(entries)))
        elif self.names is None:
            for key in removed:
                del target[key]
            for key, value in new.items():
                target[key] = value
        else:
            for name in removed:
                delattr(target, name)
            for name, value in new.items():
                setattr(target, name, value)

    def named(self, key: Any) -> str:
        """The name of an entry, as a program would write it."""
        if isinstance(self.target, (list, deque, set)) or (isinstance(self.target, dict) and self.place.endswith("]")):
            return f"{self.place}[{key!r}]"
        return f"{self.place}.{key}" if self.place else str(key)


def is_unchanged(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    """Whether a holder has the very same entries in the same order."""
    return len(before) == len(now) and all(
        one is other and first == second for (first, one), (second, other) in zip(before.items(), now.items())
    )


class _Globals:
    """Globals of a module of Python, as attributes."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "values", values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.values[name] = value

    def __delattr__(self, name: str) -> None:
        self.values.pop(name, None)


class Tree:
    """What was reached from a module, or from any value."""

    def __init__(self, root: Any, kind: type | None = None, ran: Ran = Ran(), also: Any = None) -> None:
        """``kind`` is the class of the user of a planned module: its own hooks run around its passes, and do not count.
        ``ran`` is what its forward pass runs and asks for, and that no walk reaches. ``also`` is walked too: a loss."""
        self.holders: list[Holder] = []
        self.tensors: list[torch.Tensor] = []
        """Each tensor once, in the order in which they were reached."""
        self.places: list[str] = []
        """Where the tensors are."""
        self.opaque: list[tuple[str, Any]] = []
        """Objects that count by their identity, with where they are."""
        self.code: set[types.CodeType] = set()
        """What was followed."""
        self.caches: list[Any] = []
        """Functions under ``functools.lru_cache``."""
        self.ran, self.also = ran, also
        self._root, self._kind = root, kind
        self._numbers: dict[int, int] = {}
        self._views: list[Any] = []
        self._seen: list[Any] = []
        self._lengths: list[int] = []
        self._reads: list[tuple[Any, tuple[str, ...], tuple[Any, ...]]] = []
        self._asked: list[tuple[Callable[[], Any], Any]] = []
        self._arrays: list[tuple[Callable[[], bytes], bytes]] = []
        self._empty: list[Any] = []
        self._kept: list[Any] = []
        self._known: set[tuple[str, int, str]] = set()
        self._typed: list[Any] = []
        self._registered: set[int] = set()
        self._owners: list[tuple[Any, dict[str, Any], int]] = []
        self._owned: list[Any] = []
        self._depth = 0
        described = [self._described(root, ""), self._described(also, "loss")]
        described += [self._described(free, code.co_name) for code, _, free in ran.code]
        described += [self._of_names_in(code, outer, list(free.values())) for code, outer, free in ran.code]
        described += [self._of_answer(ask, place) for _, place, ask in ran.readings]
        self.key = Key((tuple(described), self._tensors()))
        self._pointers = [*map(torch.Tensor.data_ptr, self._with_memory)]
        self._flags = [value.requires_grad for value in self.tensors]
        self._kinds = [*map(type, self._typed)]
        self.modules = list(_parts(root)) if isinstance(root, torch.nn.Module) else []
        self.parameters = [p for part in self.modules for p in part._parameters.values() if p is not None]
        """Those of all modules, in the order of ``named_parameters(remove_duplicate=False)``, also those that repeat."""

    def is_current(self) -> bool:
        """Whether a walk would find the same."""
        try:
            owned = [getter(attributes) for getter, attributes, _ in self._owners]
        except KeyError:
            return False
        return (
            all(map(operator.is_, chain.from_iterable(owned), self._owned))
            and not any(self._empty)
            and all([len(attributes) == length for _, attributes, length in self._owners])
            and [*map(len, self._views)] == self._lengths
            and all(map(operator.is_, chain.from_iterable(self._views), self._seen))
            and [*map(torch.Tensor.data_ptr, self._with_memory)] == self._pointers
            and [*map(type, self._typed)] == self._kinds
            and [value.requires_grad for value in self.tensors] == self._flags
            and all(
                getattr(target, name, Tree) is value
                for target, names, values in self._reads
                for name, value in zip(names, values)
            )
            and all(read() == value for read, value in self._arrays)
            and all(_is_same(ask(), value) for ask, value in self._asked)
        )

    def saved(self) -> list[dict[Any, Any]]:
        """The entries of all holders."""
        return [holder.read() for holder in self.holders]

    def restore(self, saved: list[dict[Any, Any]]) -> None:
        """Gives all holders the entries that they had."""
        for holder, entries in zip(self.holders, saved):
            if not is_unchanged(entries, holder.read()):
                holder.write(entries)

    def plain(self) -> list[tuple[int, str, torch.Tensor]]:
        """The tensors that are neither parameters nor buffers of a module: number, place, tensor."""
        registered = set()
        for part in self.modules:
            registered |= {id(value) for value in chain(part._parameters.values(), part._buffers.values())}
        numbered = enumerate(zip(self.places, self.tensors))
        return [(number, place, value) for number, (place, value) in numbered if id(value) not in registered]

    # The walk. Each method returns a description that can be hashed and compared.

    def _described(self, value: Any, place: str) -> Any:
        kind = type(value)
        if isinstance(value, PLAIN):
            return (kind, value)
        if isinstance(value, (float, complex)):
            return (kind, repr(value))
        number = self._numbers.get(id(value))
        if number is not None:
            return ("again", number)
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self.places.append(place)
            return ("tensor", len(self.tensors) - 1)
        if self._depth > _DEEPEST:
            return Same(value)
        self._depth += 1
        try:
            return self._of_object(value, kind, place)
        finally:
            self._depth -= 1

    def _of_object(self, value: Any, kind: type, place: str) -> Any:
        if isinstance(value, _FUNCTIONS):
            return self._of_code(value, place)
        if isinstance(value, slice):
            return (kind, *(self._described(part, place) for part in (value.start, value.stop, value.step)))
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return Same(value)
            self._arrays.append((value.tobytes, value.tobytes()))
            return (kind, value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, (bytearray, array)):
            read = value.tobytes if isinstance(value, array) else functools.partial(bytes, value)
            self._arrays.append((read, read()))
            return (kind, getattr(value, "typecode", ""), read())
        if isinstance(value, functools.partial):
            return (kind, *(self._described(part, place) for part in (value.func, value.args, value.keywords)))
        found: list[Any] = [Same(kind)]
        if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            if len(value) > LARGE:
                return (Same(value), len(value))
            found.append(self._of_container(value, place))
        if isinstance(value, torch.nn.Module):
            found.append(self._of_module(value, place))
        elif not is_library(kind.__module__) or kind.__module__ in _HOLDERS or _is_plain_holder(value):
            found.append(self._of_instance(value, kind, place))
        elif isinstance(value, torch.optim.Optimizer):
            found.append(self._described(value.param_groups, f"{place}.param_groups"))
        elif isinstance(value, (weakref.ref, contextvars.ContextVar)):
            ask = value if isinstance(value, weakref.ref) else functools.partial(value.get, None)
            found.append(self._of_answer(ask, place))
        elif is_cache(value):
            found += [Same(value), self._of_cache(value, place)]
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
            found += [Same(value), self._described(value.__wrapped__, place)]
        elif len(found) == 1:
            self.opaque.append((place, value))
            return Same(value)
        return tuple(found)

    def _of_container(self, value: Any, place: str) -> Any:
        if not isinstance(value, (tuple, frozenset)):
            self._hold(Holder(place, value))
        if isinstance(value, (list, set, deque)):
            self._view(value)
        if isinstance(value, dict):
            owner: Any = type(value) if type(value).__module__ == "collections" else dict
            self._view(owner.keys(value))
            self._view(owner.values(value))
            own = place.endswith(("_parameters", "_buffers", "_modules"))
            outer = place.rpartition(".")[0] if own else place
            dotted = "{0}.{1}".format if own and outer else "{1}".format if own else "{0}[{1!r}]".format
            entries = list(owner.items(value))
            return tuple((self._described(k, place), self._described(v, dotted(outer, k))) for k, v in entries)
        if isinstance(value, (set, frozenset)):
            return frozenset(self._described(entry, place) for entry in value)
        return tuple(self._described(entry, f"{place}[{number}]") for number, entry in enumerate(list(value)))

    def _of_module(self, module: torch.nn.Module, place: str) -> Any:
        attributes = module.__dict__
        is_root = module is self._root and self._kind is not None
        kind: type = self._kind if is_root and self._kind is not None else type(module)
        self._hold(Holder(place, attributes))
        own = [name for name in attributes if name not in _STANDARD]
        getter = operator.itemgetter(*_TENSORS, *own)
        self._owners.append((getter, attributes, len(attributes)))
        self._owned += getter(attributes)
        if not is_root:
            self._typed.append(module)
        prefix = f"{place}." if place else ""
        self._registered.update(map(id, attributes["_parameters"].values()))
        found: list[Any] = [self._of_class(kind)]
        for name in (*_TENSORS, *(() if is_root else _HOOKS)):
            value = attributes[name]
            if value:
                found.append((name, self._described(value, prefix + name)))
            else:
                self._hold(Holder(prefix + name, value))
                self._empty.append(value)
        found += [(name, self._described(attributes[name], prefix + name)) for name in own if name != "_planning"]
        return tuple(found)

    def _of_instance(self, value: Any, kind: type, place: str) -> Any:
        found: list[Any] = [self._of_class(kind)]
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._hold(Holder(place, attributes))
            self._view(attributes)
            self._view(attributes.values())
            found += [(name, self._described(own, f"{place}.{name}")) for name, own in list(attributes.items())]
        if isinstance(value, threading.local):
            self._asked.append((functools.partial(_attributes, value), attributes))
        slots = [name for base in kind.__mro__ for name in _listed(base.__dict__.get("__slots__", ()))]
        names = tuple(name for name in slots if name not in ("__dict__", "__weakref__") and not name.startswith("__"))
        if kind is types.CellType:
            names = ("cell_contents",)
        if names:
            self._hold(Holder(place, value, names))
            found += self._of_names(value, names, place)
        return tuple(found) if len(found) > 1 else (*found, Same(value))

    def _of_answer(self, ask: Callable[[], Any], place: str) -> Any:
        """What a call without arguments returns now."""
        value = ask()
        self._asked.append((ask, value))
        return self._described(value, place)

    def _of_cache(self, cache: Any, place: str) -> Any:
        """The function that a cache is around. Which values the cache has is not a part of the walk: see ``partita._cached``."""
        inner = cache.__wrapped__
        if not is_installed(getattr(inner, "__module__", None)):
            self.caches.append(cache)
        return self._described(inner, place)

    def _of_names(self, target: Any, names: tuple[str, ...], place: str) -> list[Any]:
        self._read(target, names)
        there = [(name, getattr(target, name, Tree)) for name in names]
        prefix = f"{place}." if place else ""
        return [(name, self._described(value, prefix + name)) for name, value in there if value is not Tree]

    def _of_code(self, value: Any, place: str) -> Any:
        if isinstance(value, types.MethodType):
            return ("method", self._described(value.__func__, place), self._described(value.__self__, place))
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, types.ModuleType) and not is_installed(value.__name__):
            return (Same(value), *self._of_settings(value))
        if not isinstance(value, types.FunctionType) or is_installed(value.__module__):
            return Same(value)
        self._read(value, ("__code__", "__defaults__", "__kwdefaults__"))
        found = [Same(value)]
        found += [self._described(part, value.__name__) for part in (value.__defaults__, value.__kwdefaults__)]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            if self._is_new("cell", cell):
                self._hold(Holder(name, cell, ("cell_contents",)))
                found += self._of_names(cell, ("cell_contents",), "")
        around = [cell.cell_contents for cell in value.__closure__ or () if hasattr(cell, "cell_contents")]
        return (*found, self._of_names_in(value.__code__, value.__globals__, around))

    def _of_names_in(self, code: types.CodeType, outer: dict[str, Any], around: list[Any]) -> Any:
        """What the code of a function refers to. ``around`` are values of variables of the functions around it."""
        self.code.update(nested(code))
        used = names_in(code)
        found: list[Any] = [Same(code)]
        names = tuple(name for name in globals_of(used, outer) if self._is_new("global", outer, name))
        if names:
            target = _Globals(outer)
            self._hold(Holder("", target, names))
            found += self._of_names(target, names, "")
        named = [outer[name] for name in globals_of(used, outer) if isinstance(outer[name], types.ModuleType)]
        waiting = [*named, *around, *modules_of(used, outer.get("__package__"))]
        followed = set()
        while waiting:
            inside = waiting.pop()
            if not isinstance(inside, types.ModuleType) or is_installed(inside.__name__) or id(inside) in followed:
                continue
            followed.add(id(inside))
            names = attributes_of(used, inside)
            waiting += [getattr(inside, name) for name in names]
            names = tuple(name for name in names if self._is_new("global", vars(inside), name))
            if names:
                self._hold(Holder(inside.__name__, inside, names))
                found += self._of_names(inside, names, inside.__name__)
        found += [self._of_answer(ask, place) for place, ask in queries(used) if self._is_new("asked", place)]
        return tuple(found)

    def _of_settings(self, module: types.ModuleType) -> list[Any]:
        """The values in a module of Python that is itself a value; its functions are followed if they run."""
        own = [name for name, value in vars(module).items() if not name.startswith("__") and not isinstance(value, _FUNCTIONS)]
        names = tuple(name for name in own if self._is_new("global", vars(module), name))
        if names:
            self._hold(Holder(module.__name__, module, names))
        return self._of_names(module, names, module.__name__)

    def _of_class(self, kind: type) -> Any:
        """A class, with what its code refers to and the plain values that are its attributes. Of a module's class, the code
        is what ``forward`` calls by name."""
        if not self._is_new("class", kind):
            return Same(kind)
        found: list[Any] = [Same(kind)]
        if isinstance(getattr(kind, "forward", None), types.FunctionType):
            self._read(kind, ("forward",))
            found.append(Same(kind.forward))  # type: ignore[attr-defined]
        bases = [base for base in kind.__mro__ if not is_installed(base.__module__)]
        for base in bases:
            self._view(vars(base).values())
            plain = [name for name, value in list(vars(base).items()) if _is_value(name, value)]
            if plain:
                self._hold(Holder(base.__name__, base, tuple(plain)))
            plain += [name for name, value in list(vars(base).items()) if _is_descriptor(value)]
            found += [(name, self._described(vars(base)[name], f"{base.__name__}.{name}")) for name in plain]
            methods = [getattr(value, "__func__", value) for value in list(vars(base).values())]
            found += [self._described(value, base.__name__) for value in methods if is_cache(value)]
        called, waiting = set(), ["forward", "__call__", "__getattr__"]
        while waiting:
            name = waiting.pop()
            if name in called:
                continue
            called.add(name)
            for base in bases:
                value = vars(base).get(name)
                inner = next((getattr(value, part) for part in _INNER if getattr(value, part, None) is not None), value)
                if isinstance(inner, types.FunctionType):
                    found.append((name, self._described(inner, base.__name__)))
                    waiting += names_in(inner.__code__)
        return tuple(found)

    # What the walk leaves behind for ``is_current``.

    def _is_new(self, what: str, target: Any, name: str = "") -> bool:
        """Whether this is met for the first time."""
        entry = (what, id(target), name)
        if entry in self._known:
            return False
        self._known.add(entry)
        self._kept.append(target)
        return True

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        self._kept.append(holder)

    def _view(self, view: Any) -> None:
        self._views.append(view)
        entries = list(view)
        self._lengths.append(len(entries))
        self._seen += entries

    def _read(self, target: Any, names: tuple[str, ...]) -> None:
        self._reads.append((target, names, tuple(getattr(target, name, Tree) for name in names)))

    def _tensors(self) -> Any:
        """The tensors: types and shapes, and which of them see the same memory, and how."""
        self._with_memory = [value for value in self.tensors if has_memory(value)]
        groups: dict[int, list[torch.Tensor]] = {}
        for value in self._with_memory:
            groups.setdefault(value.untyped_storage().data_ptr(), []).append(value)
        shared = {
            id(value): (number, value.storage_offset(), value.stride())
            for number, group in enumerate([group for group in groups.values() if len(group) > 1])
            for value in group
        }
        return tuple((self._type_of(value), shared.get(id(value))) for value in self.tensors)

    def _type_of(self, value: torch.Tensor) -> Any:
        if isinstance(value, (UninitializedBuffer, UninitializedParameter)):
            return Same(value)
        # forward() may ask which parameters are trained.
        return id(value) in self._registered, value.dtype, tuple(value.shape), value.requires_grad, value.device


def has_memory(value: torch.Tensor) -> bool:
    """Whether a tensor has elements in memory, of the host or of a device, which another one may share."""
    if isinstance(value, (UninitializedBuffer, UninitializedParameter, FakeTensor)) or is_traceable_wrapper_subclass(value):
        return False
    return value.layout == torch.strided and value.device.type not in _WITHOUT_ADDRESSES and value.numel() > 0


def _listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_value(name: str, value: Any) -> bool:
    """Whether an attribute of a class is no code."""
    is_code = hasattr(type(value), "__get__") or isinstance(value, type)
    return not name.startswith("__") and name not in ("_abc_impl", "_member_map_") and not is_code


def _is_descriptor(value: Any) -> bool:
    """Whether an attribute of a class is an object of the user that computes the attribute."""
    return hasattr(type(value), "__get__") and not is_library(type(value).__module__) and not isinstance(value, type)


def _is_plain_holder(value: Any) -> bool:
    return type(value) in (types.SimpleNamespace, types.CellType) or isinstance(value, threading.local)


def _is_same(now: Any, before: Any) -> bool:
    """Whether a call answers as before: by identity, and plain values by value."""
    return now is before or (isinstance(now, (*PLAIN, float, dict, tuple)) and type(now) is type(before) and bool(now == before))


def _attributes(value: Any) -> dict[str, Any]:
    """Those of an object; of one that is local to threads, those of this thread."""
    return value.__dict__  # type: ignore[no-any-return]


def _parts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and all in it, in the order of ``named_modules(remove_duplicate=False)``."""
    stack = [module]
    while stack:
        part = stack.pop()
        yield part
        if part._modules:
            stack += [child for child in reversed(part._modules.values()) if child is not None]


def described(value: Any) -> Key:
    """A value by what is in it: equal for values that a program cannot tell apart."""
    return Tree(value).key
