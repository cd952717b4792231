"""``fd.ops``: nvFuser's names where they differ from PyTorch's, and every function of PyTorch by its own."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from partita._error import refuse
from partita._function import Arguments, dtype_named, traced
from partita.distributed.tensor import _run
from partita.distributed.tensor._placement import Replicate
from partita.distributed.tensor._run import Spec
from partita.nvfuser import _collectives
from partita.nvfuser._value import Piece, Statement, Tensor

if TYPE_CHECKING:
    from partita.nvfuser._definition import FusionDefinition


class DataType(enum.Enum):
    """Element types."""

    Double = torch.float64
    Float = torch.float32
    Half = torch.float16
    BFloat16 = torch.bfloat16
    Int = torch.int64
    Int32 = torch.int32
    Bool = torch.bool


def _dtype(dtype: DataType | torch.dtype) -> torch.dtype:
    found: torch.dtype = dtype.value if isinstance(dtype, DataType) else dtype
    return found


def _dims(dims: int | Sequence[int] | None) -> list[int] | None:
    return None if dims is None else [dims] if isinstance(dims, int) else list(dims)


def _broadcast_in_dim(x: torch.Tensor, shape: Sequence[int], broadcast_dims: Sequence[int]) -> torch.Tensor:
    missing = [dim for dim in range(len(shape)) if dim not in broadcast_dims]
    for dim in missing:
        x = x.unsqueeze(dim)
    return x.expand(*shape)


def _sum(x: torch.Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    return torch.sum(x, _dims(dims), keepdim, dtype=None if dtype is None else _dtype(dtype))


def _max(x: torch.Tensor, dims: Any = None, keepdim: bool = False) -> torch.Tensor:
    return torch.amax(x, _dims(dims) or list(range(x.dim())), keepdim)


def _min(x: torch.Tensor, dims: Any = None, keepdim: bool = False) -> torch.Tensor:
    return torch.amin(x, _dims(dims) or list(range(x.dim())), keepdim)


def _mean(x: torch.Tensor, dims: Any = None, keepdim: bool = False) -> torch.Tensor:
    return torch.mean(x, _dims(dims), keepdim)


def _var(x: torch.Tensor, dims: Any, correction: float = 1, keepdim: bool = False) -> torch.Tensor:
    return torch.var(x, _dims(dims), correction=correction, keepdim=keepdim)


def _var_mean(x: torch.Tensor, dims: Any, correction: float = 1, keepdim: bool = False) -> Any:
    return torch.var_mean(x, _dims(dims), correction=correction, keepdim=keepdim)


_OWN: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "cast": lambda x, dtype: x.to(_dtype(dtype)),
    "max": _max,
    "mean": _mean,
    "min": _min,
    "permute": lambda x, dims: torch.permute(x, tuple(dims)),
    "reshape": lambda x, new_shape: torch.reshape(x, tuple(new_shape)),
    "set": torch.clone,
    "slice": lambda x, start_indices, end_indices, strides=None: x[
        tuple(slice(*each) for each in zip(start_indices, end_indices, strides or [1] * len(start_indices)))
    ],
    "sum": _sum,
    "var": _var,
    "var_mean": _var_mean,
}

_LAYOUTS: dict[str, Callable[..., Any]] = {
    "all_gather": _collectives.all_gather,
    "all_reduce": _collectives.all_reduce,
    "all_to_all": _collectives.all_to_all,
    "broadcast": _collectives.broadcast,
    "create_dtensor": _collectives.create_dtensor,
    "gather": _collectives.gather,
    "reduce_scatter": _collectives.reduce_scatter,
    "scatter": _collectives.scatter,
    "to_local": _collectives.to_local,
}


def _named(name: str) -> Callable[..., Any]:
    """The function of PyTorch of this name. E382 with those that are near if there is none."""
    if name in _OWN:
        own: Callable[..., Any] = _OWN[name]
        return own
    for place in (torch, F):
        found = getattr(place, name, None)
        if callable(found) and not isinstance(found, type) and not name.startswith("_") and not name.endswith("_"):
            function: Callable[..., Any] = found
            return function
    near = difflib.get_close_matches(name, [*_OWN, *_LAYOUTS, *dir(torch), *dir(F)], 1)
    raise refuse(
        "E382",
        f"no op `{name}`",
        expected="an op of nvFuser, or a function of PyTorch",
        found=name,
        help=f"did you mean `{near[0]}`?" if near else None,
    )


class Ops:
    """The ops of a definition; each call is a statement."""

    def __init__(self, fd: FusionDefinition) -> None:
        self._fd = fd

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _LAYOUTS:
            layout: Callable[..., Any] = _LAYOUTS[name]
            return layout
        function = _named(name)

        def op(*args: Any, **kwargs: Any) -> Any:
            return _stated(self._fd, name, function, args, kwargs)

        return op


def _stated(fd: FusionDefinition, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A statement: a function of tensors, or of the pieces of one rank."""
    pieces = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Piece)]
    ranks = {piece.rank for piece in pieces}
    if len(ranks) > 1:
        raise refuse(
            "E382",
            f"`{name}` of pieces of different ranks",
            expected="pieces of one rank",
            found=", ".join(map(repr, pieces)),
            help="collectives move pieces between ranks",
        )
    arguments = Arguments(args, kwargs, lambda leaf: _operand(fd, leaf, name))
    operands: list[Tensor] = arguments.tensors
    key = (name, arguments.key, *[operand._number for operand in operands])
    if pieces and key in fd._per_rank:
        # The same statement of another rank.
        return _of_rank(fd._per_rank[key], ranks)

    def call(*values: torch.Tensor) -> Any:
        own_args, own_kwargs = arguments.filled(values)
        return function(*own_args, **own_kwargs)

    traced_function = traced(call, [(operand.dtype, operand.shape) for operand in operands], name)
    specs = _specs(arguments.key, call, name, operands)
    specs = specs or [None] * len(traced_function.outputs)
    is_local = any(operand.is_local for operand in operands)
    results = [
        Tensor(fd, shape, dtype_named(dtype), spec, is_local)
        for (dtype, shape), spec in zip(traced_function.outputs, specs)
    ]
    fd._statements.append(Statement(list(results), operands, traced_function))
    returned = traced_function.returned(results)
    if not pieces:
        return returned
    fd._per_rank[key] = returned
    return _of_rank(returned, ranks)


def _operand(fd: FusionDefinition, leaf: Any, name: str) -> Tensor | None:
    """An argument as a tensor of the definition; None for a constant."""
    if isinstance(leaf, torch.Tensor):
        raise refuse(
            "E382",
            f"`{name}` of a tensor of PyTorch",
            expected="a tensor of the definition",
            found="a torch.Tensor",
            help="call from_pytorch",
        )
    tensor = leaf.tensor if isinstance(leaf, Piece) else leaf
    if not isinstance(tensor, Tensor):
        return None
    if tensor._fd is not fd:
        raise refuse("E382", "a tensor of another definition", expected="a tensor of this one", found=repr(tensor))
    return tensor


def _of_rank(returned: Any, ranks: set[int]) -> Any:
    (rank,) = ranks
    return pytree.tree_map(lambda leaf: Piece(leaf, rank) if isinstance(leaf, Tensor) else leaf, returned)


def _specs(key: Any, call: Callable[..., Any], name: str, operands: list[Tensor]) -> list[Spec | None] | None:
    """The layouts of the results, by propagation from those of the operands; None if these have none."""
    known = [operand._spec for operand in operands if operand._spec is not None]
    if not known:
        return None
    mesh = known[0].mesh
    replicated = (Replicate(),) * mesh.ndim
    specs = [operand._spec or Spec(mesh, replicated, operand.shape, operand.dtype) for operand in operands]
    if any(spec.mesh != mesh for spec in specs):
        raise refuse("E382", "tensors on different meshes", expected=repr(mesh), found=", ".join(map(repr, operands)))
    return [*_run.function_plan(("nvfuser", name, key), call, name, specs).outputs]
