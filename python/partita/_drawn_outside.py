"""Random numbers and iterators that PyTorch does not know: an export reads them once, and its program repeats what it read.

A module may read the generators of Python and NumPy, or generators and iterators in its attributes. Their states before and
after the forward pass tell whether it did.
"""

from __future__ import annotations

import pickle
import random
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
        if pickle.dumps(np.random.get_state()) != pickle.dumps(self._numpy):
            np.random.set_state(self._numpy)
            found.append("numpy.random")
        if random.getstate() != self._python:
            random.setstate(self._python)
            found.append("random")
        return ", ".join(found) or None


def _state(value: Any) -> bytes | None:
    """The state of a generator or an iterator; None if it is neither, or cannot be saved."""
    is_generator = isinstance(value, (random.Random, np.random.Generator, np.random.RandomState))
    if not is_generator and not hasattr(type(value), "__next__"):
        return None
    try:
        return pickle.dumps(value)
    except Exception:
        # What an object raises that cannot be pickled is its own affair.
        return None
