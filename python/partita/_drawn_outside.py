"""Random numbers and iterators that PyTorch does not know: an export asks them once, and its program repeats the answers.

A module may read the generators of Python and NumPy, or generators and iterators in its attributes. Whoever exports it
compares their states before and after its forward pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np


class Drawn:
    """The states of all generators that a forward pass may read."""

    def __init__(self, reached: Iterable[tuple[str, Any]]) -> None:
        """``reached`` are objects with what they are called."""
        self._reached = [(place, value) for place, value in reached if _state(value) is not None]
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._states = [repr(_state(value)) for _, value in self._reached]

    def moved(self) -> str | None:
        """What has been asked for more since, in words. The generators of Python and NumPy are then as they were."""
        found = [place for (place, value), state in zip(self._reached, self._states) if repr(_state(value)) != state]
        if repr(np.random.get_state()) != repr(self._numpy):
            np.random.set_state(self._numpy)
            found.append("numpy.random")
        if random.getstate() != self._python:
            random.setstate(self._python)
            found.append("random")
        return ", ".join(found) or None


def _state(value: Any) -> Any:
    """The state of a generator or an iterator; None if it is neither, or does not tell."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if hasattr(type(value), "__next__"):
        try:
            return value.__reduce__()
        except TypeError:
            return None
    return None
