"""Messages of the native side in the words of Python: it advises flags of the command line, and a program has arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from partita._partita import PartitaError

_P = ParamSpec("_P")
_T = TypeVar("_T")

# What a flag of an advice is called in a program. The longer ones first: a part of one may be another.
_SPELLINGS: tuple[tuple[str, str], ...] = (
    # A program has no limit of its own: that of the machine or the container holds.
    (r"; --memory-limit BYTES or PERCENT sets another limit", ""),
    (r"--resume-changed \(`changed=True` in Python\)", "`changed=True`"),
    (r"--resume-changed", "`changed=True`"),
    (r"with --resume (\S+), or name another folder \(`--checkpoint-dir`\)", r'with trainer.load("\1"), or save to another folder'),
    (r"name another (folder|one) \(`--checkpoint-dir`\)", r"save to another \1"),
    (r"`--set model\.ranks=(\d+)`", r"`partita.load(.., ranks=\1)`"),
    (r"--set model\.loss=(\w+)", r'partita.load(.., loss="\1")'),
    (r"`--(microbatches|precision|seed|batch) (\w+)`", r"`\1=\2`"),
    (r"`--sequence-parallel`", "`sequence_parallel=True`"),
    (r"--sequence-parallel", "sequence_parallel=True"),
    # Where an error is, if that is a flag alone.
    (r"(^|^ *at: )--(\w+)$", r"\1\2"),
)


def in_python(text: str) -> str:
    """A text in which flags are arguments."""
    if "--" in text:
        for pattern, spelling in _SPELLINGS:
            text = re.sub(pattern, spelling, text, flags=re.MULTILINE)
    return text


def spelled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, whose errors advise what a program can do."""

    @functools.wraps(function)
    def spoken(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except PartitaError as error:
            _spell(error)
            raise

    return spoken


def _spell(error: PartitaError) -> None:
    """Changes an error in place."""
    error.args = tuple(in_python(part) if isinstance(part, str) else part for part in error.args)
    for name in ("message", "expected", "found", "at", "help"):
        text = getattr(error, name, None)
        if text is not None:
            setattr(error, name, in_python(text))
    error.notes = [in_python(note) for note in getattr(error, "notes", [])]
