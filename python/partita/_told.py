"""Notes to the user, which are warnings of Python: each is given once, at the line of the user's program."""

from __future__ import annotations

import os
import sys
import warnings


class Told:
    """What a program was told about one model, mesh or function."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    @property
    def notes(self) -> list[str]:
        """All of it."""
        return list(self._notes.values())

    def has(self, subject: str) -> bool:
        """Whether something was said about this subject."""
        return subject in self._notes

    def say(self, subject: str, text: str) -> None:
        """Warns, unless something was said about this subject before."""
        if subject not in self._notes:
            self._notes[subject] = text
            warn(text)


def warn(text: str) -> None:
    """A warning at the nearest frame which is neither of this package nor of PyTorch."""
    files = [__file__, getattr(sys.modules.get("torch"), "__file__", None) or __file__]
    inside = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
