"""Diagnostics of the Python side: the same exception, with the same parts, as those of Rust."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from partita._partita import PartitaError


def near_names(unknown: Iterable[str], known: Iterable[str]) -> str | None:
    """A help with the known names that are near to unknown ones; None if there are none."""
    near = [match for name in unknown for match in difflib.get_close_matches(name, list(known), 1)]
    return f"did you mean `{'`, `'.join(near)}`?" if near else None


def refuse(
    code: str,
    message: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    at: str | None = None,
    help: str | None = None,
    notes: Sequence[str] = (),
) -> PartitaError:
    """A ``PartitaError`` to be raised."""
    lines = [f"error[{code}]: {message}"]
    parts = [("at", at), ("expected", expected), ("found", found), *(("note", note) for note in notes), ("help", help)]
    for label, text in parts:
        if text is not None:
            lines.append(f"  {label:>8}: " + text.replace("\n", "\n            "))
    error = PartitaError("\n".join(lines))
    error.code, error.message, error.expected, error.found = code, message, expected, found
    error.at, error.notes, error.help = at, list(notes), help
    return error
