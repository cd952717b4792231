"""What the rest of this package needs of plans and timetables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from partita import _partita
from partita._partita import Plan
from partita._schedule import plan_of

__all__ = ["lines", "spelled", "tasks"]


def lines(plan: Plan | str | Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """The lines of a plan: pattern, request, origin."""
    read = plan_of(plan)
    return [(pattern, request, origin) for (pattern, request), origin in zip(read.lines(), read.origins())]


def spelled(requests: Mapping[str, list[str]]) -> str:
    """Lines of a plan as calls, one on each line."""
    return Plan(dict(requests)).to_calls()


def tasks(name: str, slices: int, microbatches: int) -> dict[str, Any]:
    """A timetable by its name or its CSV file: its name, its numbers of ``stages``, ``slices`` and ``microbatches``, and the
    ``tasks`` of each slice as a CSV text. E462 for an unknown one."""
    own = name.lower().endswith(".csv")
    sizes = [] if own else ["--slices", str(slices), "--microbatches", str(microbatches)]
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, "tasks.csv")
        found = json.loads(_partita.ask(["partita", "timetable", name, *sizes, "--csv", path, "--json"]))
        with open(path, encoding="utf-8") as file:
            text = file.read()
    return {"name": found["timetable"], "tasks": text} | {
        key: found[key] for key in ("stages", "slices", "microbatches")
    }
