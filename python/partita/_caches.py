"""Caches of keys and values, which decoders of transformers return for the next token, as ``use_cache`` is on by default.

A pass over whole sequences has no next token, and an export cannot return such an object: the result has None there.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

_LIBRARIES = ("transformers", "transformers_modules")


def is_cache(value: Any) -> bool:
    """Whether an object is a cache of transformers, of whatever class."""
    return any(
        kind.__module__.partition(".")[0] in _LIBRARIES and kind.__name__.endswith("Cache") for kind in type(value).__mro__
    )


def without_caches(result: Any) -> tuple[Any, str | None]:
    """What a module returns with None in the place of caches, and the class of the first of them, if there is one."""
    caches = [leaf for leaf in pytree.tree_leaves(result, is_leaf=is_cache) if is_cache(leaf)]
    if not caches:
        return result, None
    found = pytree.tree_map(lambda leaf: None if is_cache(leaf) else leaf, result, is_leaf=is_cache)
    return found, type(caches[0]).__name__


def note(kind: str, cache: str) -> str:
    """What a program is told when a cache was dropped."""
    return (
        f"{kind} returns a cache for the next token, {cache}, which a planned pass does not keep: None is in its place; "
        "use_cache=False in its configs turns it off"
    )
