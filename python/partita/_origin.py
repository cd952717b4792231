"""Where a call was made, for messages and origins."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

__all__ = ["place"]


def place(frame: FrameType) -> str:
    """``file:line`` of a frame; in a cell of a notebook ``In[2]:3``, as tracebacks there name it."""
    name = frame.f_code.co_filename
    interactive: Any = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(name)
    return f"{label[1] if label else name}:{frame.f_lineno}"
