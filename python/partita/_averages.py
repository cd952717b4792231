"""Sums of what a profiler saw, and their table in the form of ``torch.profiler``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Average", "Averages"]


@dataclass
class Average:
    """All calls of one name. Times are in microseconds, memory in bytes.

    The host is the thread that calls passes; the device is the ranks. ``self_..`` leaves out what is inside.
    """

    key: str
    input_shapes: str = ""
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    device_time_total: float = 0.0
    self_device_time_total: float = 0.0
    device_memory_usage: int = 0
    self_device_memory_usage: int = 0

    @property
    def cpu_time(self) -> float:
        """The host's time of a call on average."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """The ranks' time of a call on average, summed over their threads."""
        return self.device_time_total / self.count if self.count else 0.0

    def __getattr__(self, name: str) -> Any:
        # The device is the CPU: what programs call cuda is it.
        if "cuda" in name:
            return getattr(self, name.replace("cuda", "device"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass
class Averages:
    """A list of ``Average``, which prints as a table."""

    rows: list[Average]
    has_memory: bool = False
    has_shapes: bool = False

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Average:
        return self.rows[place]

    @property
    def self_cpu_time_total(self) -> float:
        """The host's time."""
        return sum(row.self_cpu_time_total for row in self.rows)

    @property
    def self_device_time_total(self) -> float:
        """The ranks' time, summed over their threads."""
        return sum(row.self_device_time_total for row in self.rows)

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
    ) -> str:
        """The table: the ``row_limit`` first rows in descending order of ``sort_by``, all if that is negative.

        ``sort_by`` is an attribute of ``Average``, such as ``cpu_time_total`` or ``device_time_total``, which is also
        called ``cuda_time_total``. Raises ``AttributeError`` for another name.
        """
        rows = self.rows
        if sort_by is not None:
            rows = sorted(rows, key=lambda row: getattr(row, sort_by), reverse=True)
        shown = rows if row_limit < 0 else rows[:row_limit]
        cpu, device = self.self_cpu_time_total, self.self_device_time_total
        titles = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        titles += ["Self Device", "Self Device %", "Device total", "Device time avg"]
        titles += ["Device Mem", "Self Device Mem"] if self.has_memory else []
        titles += ["# of Calls"] + (["Input Shapes"] if self.has_shapes else [])
        cells = []
        for row in shown:
            line = [_cut(row.key, max_name_column_width)]
            line += [_percent(row.self_cpu_time_total, cpu), _time(row.self_cpu_time_total)]
            line += [_percent(row.cpu_time_total, cpu), _time(row.cpu_time_total), _time(row.cpu_time)]
            line += [_time(row.self_device_time_total), _percent(row.self_device_time_total, device)]
            line += [_time(row.device_time_total), _time(row.device_time)]
            if self.has_memory:
                line += [_memory(row.device_memory_usage), _memory(row.self_device_memory_usage)]
            line += [str(row.count)] + ([_cut(row.input_shapes, max_shapes_column_width)] if self.has_shapes else [])
            cells.append(line)
        widths = [max(12, len(title)) for title in titles]
        widths[0] = min(max((len(row.key) for row in self.rows), default=0) + 4, max_name_column_width)
        if self.has_shapes:
            widths[-1] = max([len(titles[-1])] + [len(line[-1]) for line in cells])
        rule = "  ".join("-" * width for width in widths) + "  "
        text = [] if header is None else ["=" * len(rule), header]
        text += [rule, _line(titles, widths), rule, *(_line(line, widths) for line in cells), rule]
        text += [f"Self CPU time total: {_time(cpu)}", f"Self Device time total: {_time(device)}", ""]
        return "\n".join(text)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths)) + "  "


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "0.00%"


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3f}{unit}"
    return f"{microseconds:.3f}us"


def _memory(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def shapes_text(shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """The shapes of an instruction's inputs."""
    return "[" + ", ".join(str(list(shape)) for _, shape in shapes) + "]"
