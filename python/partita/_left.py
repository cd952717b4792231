"""States of parameters that are frozen for some steps, beside a checkpoint: the ranks do not have them."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np

_FILE = "frozen.safetensors"
_KINDS = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "I32": "i32", "I64": "i64"}


def save(folder: pathlib.Path, values: dict[str, Any]) -> None:
    """Writes packed tensors into the folder of a checkpoint."""
    if not values:
        return
    names = {short: long for long, short in _KINDS.items()}
    header, begin = {}, 0
    for name, (kind, shape, data) in values.items():
        header[name] = {"dtype": names[kind], "shape": list(shape), "data_offsets": [begin, begin + data.size]}
        begin += data.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = folder / f"{_FILE}.{os.getpid()}"
    partial.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *(data.tobytes() for _, _, data in values.values())]))
    partial.replace(folder / _FILE)


def load(folder: str | os.PathLike[str], steps: int) -> dict[str, Any]:
    """What ``save`` has written beside the checkpoint of so many steps, which is in the folder or is the folder."""
    path = pathlib.Path(folder)
    latest = path / "latest"
    newest = [path / latest.read_text().strip()] if latest.exists() else []
    for each in [path, *newest, *sorted(path.glob("step-*"), reverse=True)]:
        state = each / "state.json"
        if state.exists() and json.loads(state.read_text())["step"] == steps:
            return _read(each / _FILE)
    return {}


def _read(file: pathlib.Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    values = {}
    for name, entry in json.loads(data[8:begin]).items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(data, np.uint8, last - first, begin + first).copy()
        values[name] = _KINDS[entry["dtype"]], entry["shape"], array
    return values
