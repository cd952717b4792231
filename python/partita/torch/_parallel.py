"""A module under a plan, as the ranks of PyTorch's runtime hold it: passes over whole batches, whole states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from ._batch import batch_axes
from ._layouts import running
from ._lines import STAGES
from ._needs import refuse


def _halves(values: Any) -> list[Any]:
    """The halves of tensors along their rows, those of the first one; none where there are no two even halves."""
    tensors = [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor) and value.ndim]
    rows = tensors[0].shape[0] if tensors else 0
    if rows < 2 or rows % 2 != 0:
        return []

    def half(number: int, value: Any) -> Any:
        has_rows = isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == rows
        return value.detach().chunk(2)[number] if has_rows else value

    return [pytree.tree_map(partial(half, number), values) for number in range(2)]


def _check_mean(whole: torch.Tensor, halves: Sequence[torch.Tensor]) -> None:
    """E394 if a loss is not the mean of those of the halves of the rows."""
    if not halves:
        return
    mean = torch.stack(list(halves)).mean()
    if not torch.allclose(mean, whole, rtol=1e-3, atol=1e-6):
        raise refuse(
            "E394",
            "the loss of a batch is not the mean of the losses of its halves",
            expected="a mean over rows: PyTorch averages the gradients of ranks and microbatches",
            found=f"{float(whole):.6g} of the whole, {float(mean):.6g} of the halves",
            help="divide a sum by the number of rows, or use a mesh without dp and fsdp and one microbatch",
        )


class MeanLoss:
    """The loss of a part of the batch. The whole one is the mean over the parts; where there are several, that is checked
    on the first batch."""

    def __init__(self, loss: Callable[..., Any], parts: int) -> None:
        self.loss, self._is_unchecked = loss, parts > 1

    def __call__(self, output: Any, target: Any) -> torch.Tensor:
        found: torch.Tensor = self.loss(output, target)
        if self._is_unchecked:
            self._is_unchecked = False
            with torch.no_grad():
                _check_mean(found.detach(), [self.loss(*half[::-1]) for half in _halves((target, output))])
        return found


class ModuleLoss:
    """The loss that a module returns: a scalar, or an attribute ``loss`` as in models of Hugging Face. Checked as
    ``MeanLoss``, without dropout."""

    def __init__(self, parts: int) -> None:
        self._is_unchecked = parts > 1

    def __call__(self, module: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]) -> torch.Tensor:
        if self._is_unchecked:
            self._is_unchecked = False
            modes = [inner for inner in module.modules() if inner.training]
            module.eval()
            with torch.no_grad():
                whole, *halves = [self._of(module(*i, **n)) for i, n in [(inputs, named), *_halves((inputs, named))]]
            for inner in modes:
                inner.training = True
            _check_mean(whole, halves)
        return self._of(module(*inputs, **named))

    @staticmethod
    def _of(output: Any) -> torch.Tensor:
        loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
        if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
            raise refuse(
                "E394",
                "the module returns no loss",
                expected="a scalar, or a result with a scalar `loss`",
                found=type(output).__name__ if loss is None else f"a tensor of shape {list(loss.shape)}",
                help="give apply a function: loss=torch.nn.functional.cross_entropy",
            )
        return loss


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
        loss: MeanLoss | ModuleLoss,
        schedule: Any = None,
        stages: Sequence[Any] = (),
    ) -> None:
        self.mesh, self.microbatches = mesh, microbatches
        self.module = None if schedule is not None else roots[0]
        self.schedule, self.stages = schedule, list(stages)
        self._roots, self._layouts, self._loss = list(roots), layouts, loss
        self._batch = batch_axes(mesh)

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The parameters that this rank holds a part of, by the names that they have in the user's module."""
        for root in self._roots:
            yield from root.named_parameters()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of ``named_parameters``, for an optimizer of PyTorch."""
        for _, parameter in self.named_parameters():
            yield parameter

    def running(self) -> AbstractContextManager[None]:
        """What a hand-written loop runs in, both passes: ``with parallel.running(): f(parallel.module(x)).backward()``."""
        return running(self._layouts)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a batch. E394 if the ranks, and the microbatches of each, do not divide them."""
        shards, place = 1, 0
        for axis in self._batch:
            size = self.mesh[axis].size()
            shards, place = shards * size, place * size + self.mesh.get_local_rank(axis)
        rows = tensor.shape[0]
        if rows % (shards * self.microbatches) != 0:
            raise refuse(
                "E394",
                "the rows of a batch cannot be split evenly",
                expected=f"a multiple of {shards * self.microbatches} rows: {shards} ranks with {self.microbatches} microbatches",
                found=f"{rows} rows",
            )
        return tensor[rows // shards * place : rows // shards * (place + 1)]

    def backward(self, *batch: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Both passes over a whole batch, which every rank is given; gradients are added to those of the parameters.

        With a function as loss, the last tensor is the target. Named tensors are arguments of the module; stages take none.
        Returns the loss, the same on every rank, without a gradient.
        """
        if self.schedule is not None and named:
            raise TypeError(f"stages take tensors by position, found {', '.join(named)}")
        mine, own = [self.local(tensor) for tensor in batch], {name: self.local(value) for name, value in named.items()}
        with self.running():
            loss = self._pass(mine, own) if self.schedule is None else self._scheduled(mine)
        for axis in self._batch:
            dist.all_reduce(loss, group=self.mesh.get_group(axis))
            loss /= self.mesh[axis].size()
        return loss

    def _pass(self, batch: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        (root,) = self._roots
        losses = []
        for number in range(self.microbatches):
            part = [tensor.chunk(self.microbatches)[number] for tensor in batch]
            own = {name: tensor.chunk(self.microbatches)[number] for name, tensor in named.items()}
            if isinstance(root, FSDPModule):
                is_last = number + 1 == self.microbatches
                root.set_is_last_backward(is_last)
                root.set_requires_gradient_sync(is_last)
            if isinstance(self._loss, MeanLoss):
                loss = self._loss(root(*part[:-1], **own), part[-1])
            else:
                loss = self._loss(root, part, own)
            (loss / self.microbatches).backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _scheduled(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        first, last = (any(getattr(stage, end) for stage in self.stages) for end in ("is_first", "is_last"))
        inputs = batch[:-1] if first else ()
        named = {"target": batch[-1], "losses": losses} if last else {}
        self.schedule.step(*inputs, **named)
        device = batch[0].device
        loss = torch.stack([each.detach() for each in losses]).mean() if last else torch.zeros((), device=device)
        # Every other stage adds nothing.
        dist.all_reduce(loss, group=self.mesh.get_group(STAGES))
        return loss

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
