"""What all ranks of a mesh do, or none: a rank that is refused alone would leave the others in a collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from partita._error import refuse
from partita._partita import PartitaError

_T = TypeVar("_T")
_FAILED = "partita.torch.failed"


class Agreement:
    """The ranks of a process group before and during their passes."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device

    def all(self, given: Any, prepare: Callable[[], _T], kind: Callable[[_T], Any] = lambda _: None) -> _T:
        """What ``prepare`` returns, if it succeeds on all ranks. ``given`` must be equal on all of them, and so must what
        ``kind`` returns for the result.

        Raises what the first rank that failed has raised; E394 where ranks differ.
        """
        error: Exception | None = None
        made: list[_T] = []
        numbers = [0, 0]
        try:
            numbers[0] = digest(given)
            made.append(prepare())
            numbers[1] = digest(kind(made[0]))
        except Exception as raised:
            error = raised
        # Numbers are equal on all ranks if the largest is the smallest, which is minus the largest of their negatives.
        state = torch.tensor(
            [error is not None, *numbers, *(-number for number in numbers)], dtype=torch.int64, device=self._device
        )
        dist.all_reduce(state, dist.ReduceOp.MAX, group=self._group)
        failed, *found = state.tolist()
        if failed:
            self._raise_first(error)
        if found[0] != -found[2]:
            raise refuse(
                "E394",
                "ranks are given different batches",
                expected="the whole batch on every rank, which takes its rows of it",
                found="other numbers, shapes or arguments on some ranks",
                help="draw it from a generator of one seed, or broadcast it",
            )
        if found[1] != -found[3]:
            raise refuse(
                "E394",
                "ranks have different modules, losses or settings",
                expected="one program on every rank",
                found="other values that forward() or the loss read on some ranks",
                help="make modules and losses alike on all ranks, and change their settings on all of them",
            )
        return made[0]

    def _raise_first(self, error: Exception | None) -> None:
        """Raises an error of this rank, or that of the first rank that has one."""
        errors: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(errors, None if error is None else _carried(error), group=self._group)
        if error is not None:
            raise error
        rank, first = next((rank, each) for rank, each in enumerate(errors) if each is not None)
        raise _arrived(first, dist.get_global_rank(self._group, rank))

    def on_first(self, check: Callable[[], None]) -> None:
        """Runs a check on the first rank. What it raises is raised on all."""
        error: Exception | None = None
        if dist.get_rank(self._group) == 0:
            try:
                check()
            except Exception as raised:
                error = raised
        carried = [None if error is None else _carried(error)]
        first = dist.get_global_rank(self._group, 0)
        dist.broadcast_object_list(carried, src=first, group=self._group)
        if error is not None:
            raise error
        if carried[0] is not None:
            raise _arrived(carried[0], first)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A pass with collectives inside. Where one rank fails, all end: it closes its connections, on which others wait.

        Raises what this rank has raised; E443 with the reason of another one.
        """
        try:
            yield
        except Exception as error:
            store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
            mine = f"rank {rank}: {type(error).__name__}: {error}"
            try:
                first = store.compare_set(_FAILED, "", mine).decode()
            except RuntimeError:
                # The process that holds the store has ended.
                first = mine
            dist.distributed_c10d._abort_process_group()
            if first == mine:
                raise
            raise refuse(
                "E443",
                f"this step has ended on all ranks: it failed on {first.split(':')[0]}",
                expected="a pass that succeeds on every rank",
                found=first,
                help="start the processes again",
            ) from error


def digest(batch: Any) -> int:
    """A number that tells batches apart, from -2^62 to 2^62. Tensors are read where they are."""
    leaves, spec = pytree.tree_flatten(batch)
    found = hashlib.sha256(str(spec).encode())
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.update(f"{leaf.dtype}{tuple(leaf.shape)}{_checksum(leaf)}".encode())
        else:
            is_plain = isinstance(leaf, (type(None), bool, int, float, complex, str, bytes))
            found.update((repr(leaf) if is_plain else type(leaf).__qualname__).encode())
    return int.from_bytes(found.digest()[:8], "little", signed=True) // 2


def _checksum(tensor: torch.Tensor) -> int:
    """The sum of the bytes, each times another odd number, modulo 2^64."""
    values = tensor.detach().contiguous().flatten()
    if values.numel() == 0:
        return 0
    size = values.element_size()
    words = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)).to(torch.int64)
    # Spread over all bits, so that small differences do not cancel.
    places = torch.arange(1, words.numel() + 1, device=words.device) * 0x9E3779B97F4A7C1 + 1
    return int((words * places).sum())


def _carried(error: Exception) -> Any:
    """An error for other processes: the parts of a ``PartitaError``, or the type and the text."""
    if isinstance(error, PartitaError):
        return {name: getattr(error, name) for name in ("code", "message", "at", "expected", "found", "help")}
    return f"{type(error).__name__}: {error}"


def _arrived(carried: Any, rank: int) -> Exception:
    """The error of another rank."""
    if isinstance(carried, dict):
        code, message = carried.pop("code"), carried.pop("message")
        return refuse(code, message, **carried)
    return refuse(
        "E443",
        f"rank {rank} cannot begin this step",
        expected="a batch and a loss that every rank can read",
        found=carried,
    )
