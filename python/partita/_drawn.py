"""Drawings for notebooks: plain SVG and HTML, without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_COLORS = {"compute": "#4c78a8", "start": "#f58518", "wait": "#e45756", "host": "#9d9da1"}
_WIDTH, _ROW, _LABEL = 900, 18, 70
# More boxes would be narrower than a pixel; the longest ones are drawn.
_MOST_BOXES = 4000


def timeline(spans: Iterable[Any], works: Iterable[Any]) -> str:
    """The work of the host and of each rank over time, as SVG. Times are those of the whole recording."""
    boxes: list[tuple[str, int, int, str, str]] = []
    for span in spans:
        boxes.append((f"host {span.depth}", span.begin_ns, span.end_ns - span.begin_ns, "host", span.name))
    for work in works:
        for thread, begin, nanos in work.pieces:
            boxes.append((f"{work.rank}/{thread}", begin, nanos, work.kind, f"{work.name} {work.path}".strip()))
    if not boxes:
        return "<p>nothing was recorded</p>"
    first = min(begin for _, begin, _, _, _ in boxes)
    whole = max(1, max(begin + nanos for _, begin, nanos, _, _ in boxes) - first)
    names = sorted({row for row, *_ in boxes}, key=lambda row: (not row.startswith("host"), _numbers(row)))
    rows = {name: place for place, name in enumerate(names)}
    shown = sorted(boxes, key=lambda box: -box[2])[:_MOST_BOXES]
    parts = []
    for name, place in rows.items():
        label = name if name.startswith("host") else "rank " + name
        parts.append(f'<text x="0" y="{place * _ROW + 13}" font-size="11">{label}</text>')
    for row, begin, nanos, kind, what in sorted(shown, key=lambda box: box[1]):
        x = _LABEL + (begin - first) / whole * _WIDTH
        width = max(nanos / whole * _WIDTH, 0.2)
        title = html.escape(f"{what}, {nanos / 1e3:.1f} us")
        parts.append(
            f'<rect x="{x:.2f}" y="{rows[row] * _ROW + 2}" width="{width:.2f}" height="{_ROW - 4}" '
            f'fill="{_COLORS[kind]}"><title>{title}</title></rect>'
        )
    size = f'width="{_LABEL + _WIDTH}" height="{len(rows) * _ROW + 4}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">{"".join(parts)}</svg>'


def _numbers(row: str) -> list[int]:
    return [int(part) for part in row.replace("host ", "").split("/")]


def model(native_name: str, tensors: dict[str, dict[str, tuple[str, tuple[int, ...]]]], text: str) -> str:
    """A model as tables of its tensors, and its graph as text that opens on a click."""
    parts = [f"<p><b>{html.escape(native_name)}</b></p>"]
    for kind, rows in tensors.items():
        cells = "".join(
            f"<tr><td><code>{html.escape(name)}</code></td><td>{dtype}</td><td>{list(shape)}</td></tr>"
            for name, (dtype, shape) in rows.items()
        )
        count = f"{len(rows)} {kind if len(rows) != 1 else kind.removesuffix('s')}"
        parts.append(f"<details><summary>{count}</summary><table>{cells}</table></details>")
    parts.append(f"<details><summary>graph</summary><pre>{html.escape(text)}</pre></details>")
    return "".join(parts)
