"""A line on the terminal for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: Work that takes less is not shown.
AFTER_S = 2.0

_lock = threading.Lock()
_shown = False


@contextmanager
def working(what: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Shows ``what`` on the terminal with the seconds it has taken, once it takes longer than two of them. The line is erased
    at the end. Nothing is shown where the errors of the program do not go to a terminal, nor for work inside other work that
    is shown."""
    global _shown
    stream = sys.stderr
    with _lock:
        is_ours = not _shown and stream is not None and stream.isatty()
        _shown = _shown or is_ours
    if not is_ours:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(stream, what, after_s, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with _lock:
            _shown = False


def _show(stream: TextIO, what: str, after_s: float, done: threading.Event) -> None:
    """Writes the line each half second until ``done``, then erases it."""
    began = time.monotonic()
    wait, is_shown = after_s, False
    while not done.wait(wait):
        stream.write(f"\r\x1b[2Kpartita: {what}, {time.monotonic() - began:.0f} s")
        stream.flush()
        wait, is_shown = 0.5, True
    if is_shown:
        stream.write("\r\x1b[2K")
        stream.flush()
