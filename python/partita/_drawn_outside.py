"""Random numbers and iterators that PyTorch does not know: an export reads them once, and its program repeats what it read.

A module may read the generators of Python and NumPy, or generators and iterators in its attributes. Their states before and
after the forward pass tell whether it did.
"""

from __future__ import annotations

import io
import queue
import random
import types
from collections.abc import Iterable
from typing import Any

import numpy as np


class Drawn:
    """The states of all generators and iterators that a forward pass may read."""

    def __init__(self, reached: Iterable[tuple[str, Any]]) -> None:
        """``reached`` are objects with the names of where they are."""
        known = [(place, value, _state(value)) for place, value in reached]
        self._known = [entry for entry in known if entry[2] is not None]
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def advanced(self) -> str | None:
        """The names of those that were read since, or None. The generators of Python and NumPy are set back."""
        found = [place for place, value, state in self._known if _state(value) != state]
        if _plain(np.random.get_state()) != _plain(self._numpy):
            np.random.set_state(self._numpy)
            found.append("numpy.random")
        if random.getstate() != self._python:
            random.setstate(self._python)
            found.append("random")
        return ", ".join(found) or None


def _state(value: Any) -> Any:
    """The state of a generator, an iterator, a queue or a file, as plain values; None if it is none, or does not tell."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _plain(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _plain(value.get_state())
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, [(name, id(local)) for name, local in frame.f_locals.items()])
    if isinstance(value, queue.Queue):
        return [*map(id, value.queue)]
    if isinstance(value, io.IOBase):
        return value.tell() if not value.closed and value.seekable() else None
    if not hasattr(type(value), "__next__"):
        return None
    try:
        return _plain(value.__reduce__())
    except TypeError:
        return None


def _plain(value: Any) -> Any:
    """A state in a form that compares whole. What an iterator runs over counts by its identity and its length."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return [(key, _plain(part)) for key, part in value.items()]
    if hasattr(type(value), "__next__"):
        return type(value), _plain(value.__reduce__())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return id(value), len(value) if hasattr(type(value), "__len__") else None
