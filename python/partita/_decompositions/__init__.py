"""Ops of PyTorch in terms of ops that the import knows, by name: not every version of PyTorch has every op.

A function takes what its op takes. It returns ``NotImplemented`` for arguments that it is not written for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita._decompositions.index import INDEX
from partita._decompositions.linear import LINEAR
from partita._decompositions.special import SPECIAL
from partita._decompositions.windows import WINDOWS

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {**INDEX, **LINEAR, **SPECIAL, **WINDOWS}
