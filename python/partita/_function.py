"""Functions of PyTorch as programs in text, and the parts of tensors that ranks hold.

A function is exported with ``torch.export`` and read by the importer, whose table of ops is so the only one: whatever a
module may call, a distributed tensor may be given to.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from partita import _export
from partita._error import refuse
from partita._partita import PartitaError
from partita._schedule import caller
from partita._tensors import _LONG, _NAMES

# The source line of every op: that of the call below.
_PLACE = re.compile(r' loc\("[^"]*_function\.py":\d+:\d+\)')

Part = tuple[Sequence[int], Sequence[int]]
"""The offset and the shape of what a rank holds of a tensor."""


@dataclass(frozen=True)
class Function:
    """A program in text: StableHLO, the types of its tensors, and what it returns as a function of its outputs."""

    text: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    returned: Callable[[Sequence[Any]], Any]


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of an element type: ``f32``. E354 for one that Partita does not have."""
    long = str(dtype).removeprefix("torch.")
    if long not in _NAMES:
        raise refuse("E354", "a tensor has an unsupported element type", expected=", ".join(_NAMES), found=long)
    return _NAMES[long]


def dtype_named(name: str) -> torch.dtype:
    """The element type of a short name."""
    found: torch.dtype = getattr(torch, _LONG[name])
    return found


def tensor_type(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """A type as MLIR spells it: ``tensor<2x3xf32>``."""
    name = dtype_name(dtype)
    element = "i1" if name == "bool" else f"ui{name[1:]}" if name.startswith("u") else name
    return "tensor<" + "".join(f"{extent}x" for extent in shape) + f"{element}>"


def traced(function: Callable[..., Any], inputs: Sequence[tuple[torch.dtype, Sequence[int]]], name: str) -> Function:
    """The program of a function of tensors with these types. ``name`` is what messages call it.

    Raises ``PartitaError``: E390 for what PyTorch cannot export, E415 for tensors that do not fit the function, E350 to E360
    for ops that the importer does not know, E381 for a function that draws random numbers.
    """
    found: list[Any] = []
    has_turn, origin = _export.has_turn(), caller()

    def export() -> None:
        _export.share_turn(has_turn)
        try:
            kind = type(name, (_Call,), {})
            examples = tuple(torch.empty(tuple(shape), dtype=dtype) for dtype, shape in inputs)
            module = kind(function)
            exported = _export._exported(module, examples, {})
            random = [node.target for node in exported.graph.nodes if _draws(node)]
            if random:
                raise refuse(
                    "E381",
                    f"`{name}` draws random numbers",
                    expected="a function of its arguments alone",
                    found=str(random[0]),
                    help="draw the numbers first as a plain tensor, and distribute it",
                )
            found.append(_export._imported(exported, None))
        except PartitaError as error:
            found.append(_at(origin, name, error) if error.code in ("E355", "E356") else error)
        except Exception as error:
            found.append(error)

    # A thread of its own: below autograd, where an op of a distributed tensor may be, PyTorch cannot trace.
    thread = threading.Thread(target=export)
    thread.start()
    thread.join()
    model = found[0]
    if isinstance(model, Exception):
        raise model
    return Function(_PLACE.sub("", model.text()), tuple(model.inputs.values()), tuple(model.outputs.values()), model._returned)


def _at(origin: str, name: str, error: PartitaError) -> PartitaError:
    """The same about an op that the importer does not know, with the line that called the function."""
    return refuse(
        error.code,
        f"`{name}` is a function that cannot be planned",
        at=origin,
        expected="ops that the importer knows, which make new tensors",
        found=error.found,
        help="write it with other functions, and without `out=`",
    )


def _draws(node: torch.fx.Node) -> bool:
    """Whether an op draws random numbers. Attention does only if it drops weights."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    for place, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given != 0)
    return True


class Arguments:
    """The arguments of a call, its tensors apart: ``take`` gives the tensor of an argument, or None for a constant."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], take: Callable[[Any], Any]) -> None:
        self._leaves, self._tree = pytree.tree_flatten((args, kwargs))
        found = [take(leaf) for leaf in self._leaves]
        self._places = [place for place, tensor in enumerate(found) if tensor is not None]
        self.tensors: list[Any] = [found[place] for place in self._places]
        constants = [_frozen(leaf) for place, leaf in enumerate(self._leaves) if place not in self._places]
        self.key = (str(self._tree), tuple(self._places), tuple(constants))
        """What else than types and layouts of tensors tells two calls apart."""

    def filled(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other values in the places of the tensors."""
        leaves = list(self._leaves)
        for place, value in zip(self._places, values):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        return args, kwargs


def _frozen(value: Any) -> Any:
    """A constant as a part of a key. ``TypeError`` for one that is neither hashable nor a slice nor an array."""
    if isinstance(value, slice):
        return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if isinstance(value, np.ndarray):
        return ("array", value.shape, value.dtype.str, value.tobytes())
    hash(value)
    # 1, 1.0 and True are equal; 0.0 and -0.0 are too.
    return (type(value), value, str(value)) if isinstance(value, (int, float, complex)) else (type(value), value)


class _Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._function(*tensors)


def _window(part: Part) -> tuple[slice, ...]:
    return tuple(slice(start, start + extent) for start, extent in zip(*part))


def cut(tensor: torch.Tensor, parts: Sequence[Part]) -> list[torch.Tensor]:
    """The part of each rank, copied."""
    return [tensor[_window(part)].clone(memory_format=torch.contiguous_format) for part in parts]


def joined(pieces: Sequence[torch.Tensor], parts: Sequence[Part], shape: Sequence[int]) -> torch.Tensor:
    """The tensor of these parts; where ranks hold the same elements, those of the last one."""
    whole = pieces[0].new_empty(tuple(shape))
    for piece, part in zip(pieces, parts):
        whole[_window(part)] = piece
    return whole
