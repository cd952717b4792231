"""Where a call was made, for messages and origins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["of_result", "place", "raised_in"]


def place(frame: FrameType, line: int | None = None) -> str:
    """``file:line`` of a frame, by default the line that it is in; in a cell of a notebook ``In[2]:3``, as in tracebacks."""
    name = frame.f_code.co_filename
    interactive: Any = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(name)
    return f"{label[1] if label else name}:{line or frame.f_lineno}"


def of_result(loss: Any, result: Any, target: Any) -> Any:
    """A function that ``load`` took as the loss, of what the module returned. A frame of this one tells errors of the loss
    from those of the module."""
    return loss(result, target)


def raised_in(error: BaseException) -> tuple[str | None, Any]:
    """The line of the user's code, or of the definition of the loss, that an exception came from, if it is known; and the
    loss, if it came from there."""
    here, library = (os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, os.__file__))
    line: str | None = None
    loss: Any = None
    for frame, number in _frames(error):
        name = os.path.abspath(frame.f_code.co_filename)
        if frame.f_code is of_result.__code__:
            loss, line = frame.f_locals["loss"], None
        elif not name.startswith((here, library)) and not any(part in name for part in ("site-packages", "dist-packages")):
            line = place(frame, number)
    code = getattr(loss, "__code__", None)
    if line is None and code is not None and "-packages" not in code.co_filename:
        line = f"{code.co_filename}:{code.co_firstlineno}"
    return line, loss


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that an exception has come through, from outside to inside; then those of the one that caused it."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    if error.__cause__ is not None:
        yield from _frames(error.__cause__)
