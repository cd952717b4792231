"""Where passes tell a profiler what they do. Without one, that costs a look at a variable."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol


class Observer(Protocol):
    """A profiler that is recording."""

    def span(self, name: str, native: Any = None) -> AbstractContextManager[None]:
        """A context for work of this name on the host; ``native`` is the step that ranks run in it."""


_CURRENT: ContextVar[Observer | None] = ContextVar("profiler", default=None)


def observe(name: str, native: Any = None) -> AbstractContextManager[None]:
    """A context for a pass, which the current profiler records."""
    observer = _CURRENT.get()
    return nullcontext() if observer is None else observer.span(name, native)


def observe_with(observer: Observer | None) -> Observer | None:
    """From now on this profiler records, or none. Returns the one before."""
    before = _CURRENT.get()
    _CURRENT.set(observer)
    return before
