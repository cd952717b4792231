"""A module under a plan, as the ranks of PyTorch's runtime hold it: passes over whole batches, whole states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from partita._error import refuse
from partita._partita import PartitaError

from . import _stages
from ._batch import Draws, batch_axes, ranks_of, world_of
from ._layouts import running
from ._lines import STAGES
from ._one_device import Given, OneDevice, difference, digest, fields, loss_in, without_dropout
from ._shares import Unshared, unshared


_TOLD = 1e10
"""Operations on elements that may take more than a second, so that a line tells of them."""


class PartLoss:
    """The loss of a part of the batch, times its share and the number of ranks whose gradients PyTorch averages."""

    def __init__(self, loss: Callable[..., Any] | None, ranks: int) -> None:
        self._loss, self._ranks = loss, ranks
        self._shares: list[float] = []
        self.found: list[torch.Tensor] = []
        """The losses of parts, times their shares."""

    def begin(self, shares: Sequence[float]) -> None:
        """The shares of the parts that follow, in the order of their forward passes."""
        self._shares, self.found = list(shares), []

    def forward(self, root: Callable[..., Any], part: Given) -> torch.Tensor:
        """The loss of a module for a part."""
        args, kwargs = part
        return self(root(*args, **kwargs)) if self._loss is None else self(root(*args[:-1], **kwargs), args[-1])

    def __call__(self, output: Any, target: Any = None) -> torch.Tensor:
        share = self._shares.pop(0)
        if self._loss is None:
            loss = loss_in(output)
        elif share == 0.0:
            # Nothing counts in this part, and a mean over nothing is no number.
            leaves = pytree.tree_leaves(output)
            loss = sum((leaf * 0.0).sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
        else:
            loss = self._loss(output, target)
        self.found.append(loss.detach() * share)
        scaled: torch.Tensor = loss * (share * self._ranks)
        return scaled


class Parallel:
    """What ``apply`` returns: a module on the ranks of a mesh, of which this process is one.

    ``module`` is the user's module, changed in place; on a mesh with stages it is None, and ``stages`` and ``schedule`` are
    those of ``torch.distributed.pipelining``.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        roots: Sequence[torch.nn.Module],
        layouts: DeviceMesh | None,
        microbatches: int,
        loss: PartLoss,
        one_device: OneDevice,
        verify_limit: float | None,
        pipeline: _stages.Pipeline | None = None,
    ) -> None:
        self.mesh, self.microbatches = mesh, microbatches
        self.module = None if pipeline is not None else roots[0]
        self.schedule = None if pipeline is None else pipeline.schedule
        self.stages = [] if pipeline is None else pipeline.stages
        self._roots, self._layouts, self._loss, self._pipeline = list(roots), layouts, loss, pipeline
        self._one_device, self._unverified = one_device, verify_limit
        self._batch = batch_axes(mesh)
        self._world, self._draws = world_of(mesh), Draws(mesh)

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The parameters that this rank holds a part of, by the names that they have in the user's module."""
        for root in self._roots:
            yield from root.named_parameters()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of ``named_parameters``, for an optimizer of PyTorch."""
        for _, parameter in self.named_parameters():
            yield parameter

    @contextmanager
    def running(self) -> Iterator[None]:
        """What a pass of one's own runs in: ``with parallel.running(), torch.no_grad(): parallel.module(x)``.

        E394 if gradients are on where ranks have rows of their own, or before a first step has been compared with one device:
        what the loss of some rows means for the batch is known to ``backward`` alone.
        """
        if torch.is_grad_enabled() and (self._batch or self._unverified is not None):
            raise refuse(
                "E394",
                "the gradients of a pass of one's own are not compared with those of one device",
                expected="torch.no_grad(); or a mesh without dp and fsdp, after a first step of backward() or with check=False",
                found=str(self.mesh),
                help="use parallel.backward(*batch)",
            )
        with running(self._layouts):
            yield

    def _place(self) -> int:
        """Which of the ranks that divide the rows this one is."""
        place = 0
        for axis in self._batch:
            place = place * self.mesh[axis].size() + self.mesh.get_local_rank(axis)
        return place

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a batch. E394 if the ranks, and the microbatches of each, do not divide them."""
        rows, ranks = tensor.shape[0], ranks_of(self.mesh)
        check_rows(rows, ranks, self.microbatches)
        found: torch.Tensor = part_of(tensor, rows, ranks, self._place())
        return found

    def backward(self, *batch: Any, **named: Any) -> torch.Tensor:
        """Both passes over a whole batch, which every rank is given; gradients are added to those of the parameters.

        With a function as loss, the last positional argument is the target. Returns the loss, the same on every rank, without a
        gradient. The first call compares loss and gradients with those of one device.

        Raises ``PartitaError``, on all ranks: E394 for a loss or a module whose parts do not make up the batch, and for a first
        step that is not that of one device; E414 and E430 for other arguments than the module takes.
        """
        given = self._one_device.bound(batch, named)
        if self._unverified is not None:
            self._verify(given, self._unverified)
            self._unverified = None
        return self._both_passes(given)

    def _both_passes(self, given: Given) -> torch.Tensor:
        parts = self._parts(given)
        shares = self._shares(given, parts)
        with running(self._layouts), self._draws.of_this_rank():
            if self._pipeline is None:
                self._loss.begin(shares)
                self._pass(parts)
            else:
                self._loss.begin([shares[number] for number in self._pipeline.order])
                ranks = ranks_of(self.mesh)
                mine = part_of(given, rows_of(given), ranks, self._place()) if ranks > 1 else given
                self._pipeline.step(mine, self._one_device.name)
        device = next((value.device for value in self.parameters()), torch.device("cpu"))
        # Stages but the last one add nothing.
        found = [value.to(device, torch.float32) for value in self._loss.found]
        loss = torch.stack(found).sum() if found else torch.zeros((), device=device)
        for axis in [*self._batch, *([STAGES] if self._pipeline is not None else [])]:
            dist.all_reduce(loss, group=self.mesh.get_group(axis))
        return loss

    def _pass(self, parts: Sequence[Given]) -> None:
        (root,) = self._roots
        for number, part in enumerate(parts):
            if isinstance(root, FSDPModule):
                is_last = number + 1 == len(parts)
                root.set_is_last_backward(is_last)
                root.set_requires_gradient_sync(is_last)
            self._loss.forward(root, part).backward()

    def _parts(self, given: Given) -> list[Given]:
        """The parts of a batch that this rank computes. E394 if its rows cannot be divided."""
        ranks = ranks_of(self.mesh)
        count = ranks * self.microbatches
        if count == 1:
            return [given]
        rows, first = rows_of(given), self._place() * self.microbatches
        check_rows(rows, ranks, self.microbatches)
        return [part_of(given, rows, count, first + number) for number in range(self.microbatches)]

    def _shares(self, given: Given, parts: Sequence[Given]) -> list[float]:
        """The shares in the loss of the parts of this rank. What refuses one rank refuses all."""
        count = ranks_of(self.mesh) * self.microbatches
        if count == 1:
            return [1.0]
        shares = self._one_device.shares(given, parts[0], count)
        found: list[float] = []
        refused: Unshared | None = None
        try:
            found = shares.compute(pytree.tree_leaves(given), [pytree.tree_leaves(part) for part in parts])
        except Unshared as reason:
            refused = reason
        # Programs are alike on all ranks, numbers are not.
        if not shares.are_equal:
            state = torch.tensor([float(refused is not None), sum(found)], dtype=torch.float64, device=self.mesh.device_type)
            for axis in self._batch:
                dist.all_reduce(state, group=self.mesh.get_group(axis))
            if refused is None and state[0] > 0:
                refused = Unshared("a part of another rank has several shares, in several terms of the loss")
            elif refused is None and shares.has_constants and abs(state[1] - 1) > 1e-6:
                refused = Unshared(f"a term is the same in each part, whose shares sum to {float(state[1]):.6g}")
        elif shares.has_constants and abs(found[0] * count - 1) > 1e-6:
            refused = Unshared(f"a term is the same in each part, whose shares sum to {found[0] * count:.6g}")
        if refused is not None:
            raise unshared(refused, count)
        return found

    def _verify(self, given: Given, limit: float) -> None:
        """Compares the loss and the gradients of a batch, cut to what one device computes within a limit, with those of one
        device. The parameters, their gradients, buffers and random numbers are as before."""
        # What is wrong with its rows is told before the module is exported with them.
        self._parts(given)
        digests: list[Any] = [None] * dist.get_world_size(self._world)
        dist.all_gather_object(digests, digest(given), group=self._world)
        if len(set(digests)) > 1:
            raise refuse(
                "E394",
                "ranks are given different batches",
                expected="the whole batch on every rank, which takes its rows of it",
                found=f"{len(set(digests))} batches on {len(digests)} ranks",
                help="draw it from a generator of one seed, or broadcast it",
            )
        cut, operations = self._cut(given, limit)
        values = self.state_dict()
        buffers = [(buffer, buffer.clone()) for root in self._roots for buffer in root.buffers()]
        before = [(parameter, parameter.grad) for parameter in self.parameters()]
        is_first = dist.get_rank(self._world) == 0
        if is_first and operations > _TOLD:
            print(f"comparing the first step with one device: {operations:.1e} operations", file=sys.stderr, flush=True)
        try:
            for parameter, _ in before:
                parameter.grad = None
            with without_dropout(), self._draws.kept():
                loss = self._both_passes(cut)
            gradients = {name: value.grad for name, value in self.named_parameters() if value.grad is not None}
            found = (loss, self.whole(gradients))
        finally:
            for parameter, gradient in before:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
        verdict: list[dict[str, Any] | None] = [None]
        if is_first:
            try:
                expected = self._one_device.first_step(cut, values)
                error = difference(self._one_device.name, found, expected)
            except PartitaError as refused:
                error = refuse(
                    "E394",
                    f"the first step of {self._one_device.name} cannot be compared with one device",
                    expected="a module that the native engine takes",
                    found=str(refused),
                    help="change what it names, or pass check=False to run without the comparison",
                )
            verdict = [None if error is None else fields(error)]
        first = dist.get_global_rank(self._world, 0)
        dist.broadcast_object_list(verdict, src=first, group=self._world)
        if verdict[0] is not None:
            raise refuse(verdict[0].pop("code"), verdict[0].pop("message"), **verdict[0])

    def _cut(self, given: Given, limit: float) -> tuple[Given, float]:
        """The first rows of a batch that one device computes within a limit, and about how many operations they take."""
        operations = self._one_device.operations(given)
        if operations <= limit:
            return given, operations
        rows, parts = rows_of(given), ranks_of(self.mesh) * self.microbatches
        fitting = int(rows * limit / operations) // parts * parts
        # Stages are for batches of one size.
        if fitting == 0 or self._pipeline is not None:
            raise refuse(
                "E394",
                "one device cannot compute the first step of this run within the limit",
                expected=f"at most {limit:.1e} operations on elements",
                found=f"{operations if self._pipeline is not None else operations * parts / rows:.1e} for "
                f"{rows if self._pipeline is not None else parts} rows",
                help="pass a larger verify_limit, or check=False to run without the comparison",
            )
        return part_of(given, rows, rows, 0, fitting), operations * fitting / rows

    def clip_grad_norm_(self, norm: float) -> torch.Tensor:
        """Scales the gradients down to a norm over all parameters of all ranks; returns the norm that they had."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        squares = [gradient.detach().float().square().sum() for gradient in gradients]
        total = sum(square.full_tensor() if isinstance(square, DTensor) else square for square in squares)
        found = torch.as_tensor(total)
        if self.schedule is not None:
            dist.all_reduce(found, group=self.mesh.get_group(STAGES))
        found = found.sqrt()
        for gradient in gradients:
            gradient.detach().mul_((norm / (found + 1e-6)).clamp(max=1.0).item())
        return found

    def whole(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of the parameters of this rank, each gathered whole, and those of all stages together. Every rank must
        call it."""
        mine = {name: _full(value).detach().clone() for name, value in values.items()}
        if self.schedule is None:
            return mine
        others: list[Any] = [None] * self.mesh[STAGES].size()
        dist.all_gather_object(others, mine, group=self.mesh.get_group(STAGES))
        return {name: value for each in others for name, value in each.items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, whole, by the names that they have in the user's module. Every rank must call it."""
        return self.whole({name: value for root in self._roots for name, value in root.state_dict().items()})

    def load_state_dict(self, values: Mapping[str, torch.Tensor]) -> None:
        """Sets parameters and buffers from whole tensors; each rank keeps its part. ``KeyError`` names what is missing."""
        own = {name: value for root in self._roots for name, value in root.state_dict(keep_vars=True).items()}
        missing = [name for name in own if name not in values]
        if missing:
            raise KeyError(f"missing: {', '.join(missing)}")
        with torch.no_grad():
            for name, tensor in own.items():
                set_whole(tensor, values[name])

    def __repr__(self) -> str:
        what = f"{len(self.stages)} stages" if self.schedule is not None else type(self.module).__name__
        return f"Parallel({what} of this rank on {self.mesh})"


def _full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def set_whole(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Sets a tensor, or this rank's part of it, from the whole one."""
    if isinstance(tensor, DTensor):
        whole = torch.as_tensor(value).to(tensor.device)
        replicated = DTensor.from_local(whole, tensor.device_mesh, run_check=False)
        tensor.detach().copy_(replicated.redistribute(placements=tensor.placements))
    else:
        tensor.detach().copy_(torch.as_tensor(value))


def rows_of(given: Given) -> int:
    """The rows of a batch. E394 if its tensors have different numbers of rows, or there are none."""
    tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.ndim > 0]
    sizes = sorted({tensor.shape[0] for tensor in tensors})
    if len(sizes) != 1:
        raise refuse(
            "E394",
            "the tensors of a batch have different numbers of rows",
            expected="the rows of the batch as the first dimension of each tensor that is no scalar",
            found=", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensor",
            help="make what is the same for all rows, such as a mask of positions, a buffer of the module, or expand it",
        )
    return sizes[0]


def check_rows(rows: int, ranks: int, microbatches: int) -> None:
    """E394 if the ranks, and the microbatches of each, do not divide the rows of a batch."""
    if rows % (ranks * microbatches) != 0 or rows == 0:
        raise refuse(
            "E394",
            "the rows of a batch cannot be split evenly",
            expected=f"a multiple of {ranks * microbatches} rows: {ranks} ranks with {microbatches} microbatches",
            found=f"{rows} rows",
        )


def part_of(given: Any, rows: int, count: int, number: int, parts: int = 1) -> Any:
    """Some of the ``count`` equal parts of the rows of a batch, or of a tensor, from the one of a number."""
    size = rows // count

    def cut(leaf: Any) -> Any:
        has_rows = isinstance(leaf, torch.Tensor) and leaf.ndim > 0
        return leaf[size * number : size * (number + parts)] if has_rows else leaf

    return pytree.tree_map(cut, given)
