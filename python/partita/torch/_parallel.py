"""A module under a plan, as the ranks of PyTorch's runtime hold it: passes over whole batches, whole states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from partita._error import refuse

from . import _stages
from ._agreement import Agreement
from ._batch import Draws, batch_axes, device_of, place_in, ranks_of, world_of
from ._layouts import running
from ._lines import STAGES
from ._one_device import Given, OneDevice, loss_in, without_dropout
from ._rows import Unshared
from ._shares import unshared


_TOLD = 1e10
"""Operations on elements that may take more than a second, so that a line tells of them."""


class PartLoss:
    """The loss of a part of the batch, times its share and the number of ranks whose gradients PyTorch averages."""

    def __init__(self, loss: Callable[..., Any] | None, ranks: int) -> None:
        self._loss, self._ranks = loss, ranks
        self._shares: list[float] = []
        self._targets: list[Any] | None = None
        self.found: list[torch.Tensor] = []
        """The losses of parts, times their shares."""

    def begin(self, shares: Sequence[float], targets: Sequence[Any] | None = None) -> None:
        """The shares of the parts that follow, in the order of their forward passes, and their targets, where those are not
        given with the outputs."""
        self._shares, self.found = list(shares), []
        self._targets = None if targets is None else list(targets)

    def forward(self, root: Callable[..., Any], part: Given) -> torch.Tensor:
        """The loss of a module for a part."""
        args, kwargs = part
        return self(root(*args, **kwargs)) if self._loss is None else self(root(*args[:-1], **kwargs), args[-1])

    def __call__(self, output: Any, target: Any = None) -> torch.Tensor:
        share = self._shares.pop(0)
        if self._targets is not None:
            target = self._targets.pop(0)
        if self._loss is None:
            loss = loss_in(output)
        elif share == 0.0:
            # Nothing counts in this part, and a mean over nothing is no number. Outputs need not be finite.
            leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            loss = sum(torch.where(torch.zeros_like(leaf, dtype=torch.bool), leaf, 0.0).sum() for leaf in leaves)
        else:
            loss = self._loss(output, target)
        self.found.append(loss.detach() * share)
        scaled: torch.Tensor = loss * (share * self._ranks)
        return scaled


@dataclass(frozen=True)
class _Step:
    """A batch that is ready for both passes on this rank."""

    given: Given
    parts: Sequence[Given]
    """The parts of this rank."""
    shares: Sequence[float]
    """Their shares in the loss."""
    all_shares: Sequence[float]
    """Those of the parts of all ranks."""


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
        self._one_device, self._verify_limit = one_device, verify_limit
        self._batch = batch_axes(mesh)
        self._place = place_in(mesh, self._batch)
        """Which of the ranks that divide the rows this one is."""
        self._world, self._draws = world_of(mesh), Draws(mesh)
        self._agreement = Agreement(self._world, device_of(mesh))
        self._scalars = [value for value in self.parameters() if value.ndim == 0] if self._batch else []
        """The parameters whose gradients are averaged here."""
        self._verified = -1
        one_device.is_cut = pipeline is not None
        one_device.mark()

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
        if torch.is_grad_enabled() and (self._batch or self._is_unverified):
            raise refuse(
                "E394",
                "the gradients of a pass of one's own are not compared with those of one device",
                expected="torch.no_grad(); or a mesh without dp and fsdp, after a first step of backward() or with check=False",
                found=str(self.mesh),
                help="use parallel.backward(*batch)",
            )
        with running(self._layouts):
            yield

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a batch. E394 if the ranks, and the microbatches of each, do not divide them."""
        rows, ranks = tensor.shape[0], ranks_of(self.mesh)
        check_rows(rows, ranks, self.microbatches)
        found: torch.Tensor = part_of(tensor, rows, ranks, self._place)
        return found

    def backward(self, *batch: Any, **named: Any) -> torch.Tensor:
        """Both passes over a whole batch, which every rank is given; gradients are added to those of the parameters.

        With a function as loss, the last positional argument is the target. Returns the loss, the same on every rank, without a
        gradient. The first call compares loss and gradients with those of one device.

        Raises ``PartitaError``, on all ranks: E394 for a loss or a module whose parts do not make up the batch, and for a first
        step that is not that of one device; E414 and E430 for other arguments than the module takes.
        """
        step = self._agreement.all(
            (batch, named),
            lambda: self._prepared(batch, named),
            lambda made: (self._one_device.kind(made.given), made.all_shares),
        )
        if self._is_unverified:
            self._verify(step)
            self._verified = self._one_device.version
        with self._agreement.passing():
            loss = self._both_passes(step)
        # What forward() itself sets is no change.
        self._one_device.mark()
        return loss

    @property
    def _is_unverified(self) -> bool:
        """Whether the first step with the module and loss as they are now is still to be compared."""
        return self._verify_limit is not None and self._verified != self._one_device.version

    def _prepared(self, batch: Sequence[Any], named: Mapping[str, Any]) -> _Step:
        """A batch, looked at on this rank alone. Raises what ``backward`` raises."""
        given = self._one_device.bound(batch, named)
        self._one_device.follow()
        if self._pipeline is not None:
            self._pipeline.check(given, rows_of(given) // ranks_of(self.mesh), self._one_device.name)
        step = self._divided(given)
        if self._verify_limit is not None:
            self._one_device.operations(given)
        return step

    def _divided(self, given: Given) -> _Step:
        """A batch with the parts of this rank and their shares. E394 if its rows, or its loss, cannot be divided."""
        ranks = ranks_of(self.mesh)
        count = ranks * self.microbatches
        if count == 1:
            return _Step(given, [given], [1.0], [1.0])
        rows, first = rows_of(given), self._place * self.microbatches
        check_rows(rows, ranks, self.microbatches)
        parts = [part_of(given, rows, count, number) for number in range(count)]
        shares = self._one_device.shares(given, parts[0], count)
        try:
            leaves = [pytree.tree_leaves(part) for part in parts]
            found = shares.compute(pytree.tree_leaves(given), leaves, self._one_device.buffers())
        except Unshared as reason:
            raise unshared(reason, count) from None
        own = slice(first, first + self.microbatches)
        return _Step(given, parts[own], found[own], found)

    def _both_passes(self, step: _Step) -> torch.Tensor:
        before = [(value, value.grad) for value in self._scalars]
        for value, _ in before:
            value.grad = None
        with running(self._layouts), self._draws.of_this_rank():
            if self._pipeline is None:
                self._loss.begin(step.shares)
                self._pass(step.parts)
            else:
                order = self._pipeline.order
                self._loss.begin(
                    [step.shares[number] for number in order], [step.parts[number][0][-1] for number in order]
                )
                ranks = ranks_of(self.mesh)
                mine = part_of(step.given, rows_of(step.given), ranks, self._place) if ranks > 1 else step.given
                self._pipeline.step(mine)
        self._average(before)
        device = next((value.device for value in self.parameters()), torch.device("cpu"))
        # Stages but the last one add nothing.
        is_double = any(value.dtype == torch.float64 for value in self.parameters())
        kind = torch.float64 if is_double else torch.float32
        found = [value.to(device, kind) for value in self._loss.found]
        loss = torch.stack(found).sum() if found else torch.zeros((), dtype=kind, device=device)
        for axis in [*self._batch, *([STAGES] if self._pipeline is not None else [])]:
            dist.all_reduce(loss, group=self.mesh.get_group(axis))
        return loss

    def _average(self, before: Sequence[tuple[torch.nn.Parameter, torch.Tensor | None]]) -> None:
        """Averages the gradients of scalars over the ranks that divide the rows, and adds those of before. ``fully_shard`` takes
        no scalars."""
        for value, earlier in before:
            gradient = value.grad
            if gradient is None:
                value.grad = earlier
            else:
                for axis in self._batch:
                    dist.all_reduce(gradient, group=self.mesh.get_group(axis))
                gradient /= ranks_of(self.mesh)
                value.grad = gradient if earlier is None else earlier + gradient

    def _pass(self, parts: Sequence[Given]) -> None:
        (root,) = self._roots
        for number, part in enumerate(parts):
            if isinstance(root, FSDPModule):
                is_last = number + 1 == len(parts)
                root.set_is_last_backward(is_last)
                root.set_requires_gradient_sync(is_last)
            self._loss.forward(root, part).backward()

    def _verify(self, step: _Step) -> None:
        """Compares the loss and the gradients of a batch, cut to what one device computes within a limit, with those of one
        device. The parameters, their gradients, buffers and random numbers are as before."""
        cut, operations = self._cut(step)
        values = self.state_dict()
        buffers = [(buffer, buffer.clone()) for root in self._roots for buffer in root.buffers()]
        before = [(parameter, parameter.grad) for parameter in self.parameters()]
        if dist.get_rank(self._world) == 0 and operations > _TOLD:
            print(f"comparing the first step with one device: {operations:.1e} operations", file=sys.stderr, flush=True)
        try:
            for parameter, _ in before:
                parameter.grad = None
            with self._agreement.passing(), without_dropout(), self._draws.kept():
                loss = self._both_passes(cut)
            gradients = {name: value.grad for name, value in self.named_parameters() if value.grad is not None}
            found = (loss, self.whole(gradients))
        finally:
            for parameter, gradient in before:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
        self._agreement.on_first(lambda: self._one_device.compare(found, cut.given, values))

    def _cut(self, step: _Step) -> tuple[_Step, float]:
        """The first rows of a batch that one device computes within a limit, and about how many operations they take."""
        given, limit = step.given, self._verify_limit or 0.0
        operations = self._one_device.operations(given)
        if operations <= limit:
            return step, operations
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
        cut = part_of(given, rows, rows, 0, fitting)
        return self._agreement.all(cut, lambda: self._divided(cut)), operations * fitting / rows

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
