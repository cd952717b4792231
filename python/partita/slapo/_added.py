"""The collectives of a step that no ``sync`` of its schedule says: Partita derives them from layouts, and tells where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from partita._axes import BATCH_AXES

_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "collective_", "reduce_scatter")


@dataclass(frozen=True)
class Collective:
    """A collective of a step: the module whose values it carries, what it is, and whether it is of the backward pass."""

    path: str
    kind: str
    is_backward: bool

    def __str__(self) -> str:
        where = f'"{self.path}"' if self.path else "the model"
        return f"{self.kind} of {where} in the {'backward' if self.is_backward else 'forward'} pass"

    def is_said_by(self, path: str, mode: str) -> bool:
        """Whether a ``sync`` of a module says it: of this module, or of one that it is in."""
        is_inside = not path or self.path == path or self.path.startswith(f"{path}.")
        return is_inside and self.is_backward == mode.startswith("bwd")

    def call(self) -> str:
        """The call that says it."""
        mode = "bwd_post" if self.is_backward else "fwd_post"
        return f'sch["{self.path}"].sync(mode="{mode}", sync_op_or_fn="{self.kind}")'


def collectives(native: Iterable[Any], axes: Sequence[str]) -> list[Collective]:
    """Those of planned programs, each once. Where an axis shards the batch, gradients of weights meet without a ``sync``."""
    found: dict[Collective, None] = {}
    for program in native:
        for instructions in program.programs()[1]:
            for what, kind, phase, path, _, _ in instructions:
                name = re.sub(r"^\d+\*", "", what)
                if kind != "start" or not name.startswith(_COLLECTIVES):
                    continue
                if phase == "forward" or phase == "input_grad" or not set(BATCH_AXES) & set(axes):
                    found[Collective(path, name, phase != "forward")] = None
    return list(found)


def added(found: Sequence[Collective], said: Sequence[tuple[str, str]]) -> list[Collective]:
    """The collectives that no ``sync`` says, which are given by path and mode. One that says none where it is may be of a
    value that travels on to another module: it counts for one of the same pass."""
    rest = [one for one in found if not any(one.is_said_by(path, mode) for path, mode in said)]
    for path, mode in said:
        if not any(one.is_said_by(path, mode) for one in found):
            other = next((one for one in rest if one.is_backward == mode.startswith("bwd")), None)
            if other is not None:
                rest.remove(other)
    return rest
