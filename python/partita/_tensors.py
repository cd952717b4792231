"""Tensors across the border to Rust: an element type, a shape and a flat array of bytes, which is not copied.

Complex tensors cross as real ones with a last dimension of 2, which have the same bytes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from partita._error import refuse

if TYPE_CHECKING:
    import numpy as np

Packed = tuple[str, list[int], "np.ndarray"]

_NAMES = {
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
# The types that programs in text have beside them.
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
_LONG = {short: long for long, short in _NAMES.items()} | _COMPLEX


def long_dtype(name: str) -> str:
    """The name that numpy and PyTorch have for an element type: ``float32`` for ``f32``."""
    return _LONG[name]


def torch_if_loaded() -> Any:
    """The module ``torch``, if the program has imported it."""
    return sys.modules.get("torch")


def is_complex(name: str) -> bool:
    """Whether this is an element type of complex numbers."""
    return name in _COMPLEX


def pack(value: Any, dtype: str | None = None) -> Packed:
    """A tensor of PyTorch, an array or nested lists as Rust takes it. Numbers and lists get the type ``dtype``."""
    import numpy as np

    torch = torch_if_loaded()
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta:
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            raise refuse(
                "E415",
                "a tensor has no elements of its own to read",
                expected="a dense tensor with values",
                found=f"{kind} {list(value.shape)}",
                help="pass `tensor.to_dense()`" if not value.is_meta else "pass a tensor with values",
            )
        if value.is_complex():
            value = torch.view_as_real(value.detach().resolve_conj())
        name = str(value.dtype).removeprefix("torch.")
        dense = value.detach().cpu().contiguous()
        if name == "bfloat16":
            # numpy lacks it.
            dense = dense.view(torch.int16)
        return _NAMES.get(name, name), list(value.shape), dense.numpy().reshape(-1).view(np.uint8)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        value = np.from_dlpack(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        if dtype == "bf16":
            raise TypeError("bfloat16 needs tensors of PyTorch: numpy lacks it")
        value = np.asarray(value, dtype=None if dtype is None else _LONG[dtype])
    array, shape = np.ascontiguousarray(value), list(value.shape)
    if array.dtype.kind == "c":
        array, shape = array.reshape(-1).view(array.real.dtype), [*shape, 2]
    name = _NAMES.get(array.dtype.name, array.dtype.name)
    return name, shape, array.reshape(-1).view(np.uint8)


def to_numpy(packed: Packed, as_complex: bool = False) -> np.ndarray:
    """An array; bfloat16, which numpy lacks, as float32 with the same values. ``as_complex``: pairs as complex numbers."""
    import numpy as np

    name, shape, data = packed
    if as_complex:
        return data.view({"f32": np.complex64, "f64": np.complex128}[name]).reshape(shape[:-1])
    if name == "bf16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return data.view(_LONG[name]).reshape(shape)


def to_torch(packed: Packed, as_complex: bool = False) -> Any:
    """A tensor of PyTorch over the same memory. ``as_complex``: pairs as complex numbers."""
    import torch

    if as_complex:
        return torch.view_as_complex(to_torch(packed))

    name, shape, data = packed
    long = _LONG[name]
    if data.size == 0:
        return torch.empty(shape, dtype=getattr(torch, long))
    if long == "bfloat16":
        return torch.from_numpy(data.view("int16").reshape(shape)).view(torch.bfloat16)
    return torch.from_numpy(data.view(long).reshape(shape))
