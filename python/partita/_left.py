"""States of parameters that are frozen for some steps, beside a checkpoint: the ranks do not have them."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np

from partita._error import refuse

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
    content = b"".join(data.tobytes() for _, _, data in values.values())
    text = json.dumps(header | {"__metadata__": {"sha256": _digest(header, content)}}).encode()
    text += b" " * (-len(text) % 8)
    partial = folder / f"{_FILE}.{os.getpid()}"
    partial.write_bytes(len(text).to_bytes(8, "little") + text + content)
    partial.replace(folder / _FILE)


def _digest(header: dict[str, Any], content: bytes) -> str:
    """Of names, types and values."""
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + content).hexdigest()


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
    """E312 for a file that is not what was written."""
    if not file.exists():
        return {}
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:begin])
        is_whole = header.pop("__metadata__")["sha256"] == _digest(header, data[begin:])
    except (AttributeError, KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise refuse(
            "E312",
            f"{file.name} of the checkpoint is damaged",
            at=str(file),
            expected="what was written, by its digest",
            found="something else",
            help="load an earlier checkpoint; or remove the file, and frozen parameters begin without states when they are trained",
        )
    values = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(data, np.uint8, last - first, begin + first).copy()
        values[name] = _KINDS[entry["dtype"]], entry["shape"], array
    return values
