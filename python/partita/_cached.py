"""What ``functools.lru_cache`` keeps: values that a function has computed before, perhaps from what has changed since.

An export reads them as the module itself would. They count as long as they are in the cache. Tensors that an export computes
have no values, and do not stay in one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from partita._watched import PLAIN, Tree, described


class _Value:
    """A value in a cache: an object, with what is in it."""

    __slots__ = ("_key", "value", "_tree")

    def __init__(self, key: Any, value: Any) -> None:
        # An identity is that of an object as long as it lives.
        self._key, self.value = key, value
        self._tree = None if isinstance(value, (*PLAIN, float)) else Tree(value)

    def is_same(self, now: Any) -> bool:
        """Whether a program cannot tell another value from this one. Tensors count by their identity."""
        if now is self.value:
            return self._tree is None or self._tree.is_current() or Tree(now).key == self._tree.key
        tree = Tree(now)
        return not tree.tensors and tree.key == (described(self.value) if self._tree is None else self._tree.key)


class Kept:
    """The entries of caches."""

    def __init__(self, caches: Iterable[Any]) -> None:
        self._caches = [
            (cache, {number: _Value(key, value) for number, (key, value) in _entries(cache).items()}) for cache in caches
        ]

    def is_there(self) -> bool:
        """Whether all entries are still in their caches, with the same values. There may be more of them."""
        for cache, entries in self._caches:
            now = _entries(cache)
            if any(number not in now or not entry.is_same(now[number][1]) for number, entry in entries.items()):
                return False
        return True

    def changed(self) -> str | None:
        """The name of a cache with a value that is another one than before, or None."""
        for cache, entries in self._caches:
            if any(not entry.is_same(entry.value) for entry in entries.values()):
                return f"{cache.__module__}.{cache.__qualname__}"
        return None


def drop_traced(caches: Iterable[Any]) -> None:
    """Takes tensors of an export out of caches."""
    for cache in caches:
        entries = _inner(cache)[0]
        traced = [key for key, value in _entries(cache).values() if any(map(_is_traced, pytree.tree_leaves(value)))]
        for key in traced:
            entries.pop(key, None)


def _is_traced(value: Any) -> bool:
    return isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and torch._is_functional_tensor(value))


def _entries(cache: Any) -> dict[int, tuple[Any, Any]]:
    """The keys and values of a cache, by the identities of the keys."""
    inner, listed = _inner(cache)
    if not listed:
        return {id(key): (key, value) for key, value in inner.items()}
    there = {id(key) for key in inner}
    return {id(key): (key, value) for key, value in zip(listed[0::3], listed[1::3]) if id(key) in there}


def _inner(cache: Any) -> tuple[dict[Any, Any], list[Any]]:
    """The dictionary of a cache. In one of limited size it has links in the place of values: these are in a list of keys,
    values and the class of a link."""
    found = gc.get_referents(cache)
    places = [place for place, value in enumerate(found) if value is cache.__wrapped__ and isinstance(found[place - 1], dict)]
    if not places:
        return {}, []
    return found[places[-1] - 1], found[(places[-1] - 1) % 3 : places[-1] - 1]
