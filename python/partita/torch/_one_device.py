"""The module as it was given, on one device: its programs, and its first step on the native engine.

A plan on PyTorch's runtime changes a module in place. What it was before is kept here without its values, so that its loss
can be divided into parts (``_shares``) and the first step of a run can be compared with that of one device.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from partita import _launched
from partita._error import refuse
from partita._partita import PartitaError
from partita.torch._shares import Shares, Unshared, changed_buffers, operations, unshared

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""A batch, or a part of one: arguments and named arguments."""

VERIFY_LIMIT = 1e13
"""Operations on elements that the first step on one device may take: about a minute on sixteen cores."""


class OneDevice:
    """A module and its loss as they were given, without the values of parameters."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any] | None) -> None:
        self.signature = inspect.signature(module.forward)
        self.name = type(module).__name__
        self._module = _emptied(module, "meta")
        self._loss = copy.deepcopy(loss).cpu() if isinstance(loss, torch.nn.Module) else loss
        self._programs: dict[Any, Any] = {}
        self._shares: dict[Any, Shares] = {}

    def bound(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Given:
        """The arguments of ``forward`` by its signature; with a loss, the target is the last of the positional ones.

        Raises ``PartitaError``: E430 for missing ones, E414 for unknown ones.
        """
        own, target = (batch, ()) if self._loss is None else (batch[:-1], batch[-1:])
        if self._loss is not None and not batch:
            raise refuse("E430", "a batch has no target", expected="the arguments of forward(), then the target", found="nothing")
        try:
            bound = self.signature.bind(*own, **named)
        except TypeError as error:
            raise refuse(
                "E430" if "missing" in str(error) else "E414",
                f"{self.name} is called with other arguments than it takes",
                expected=f"{self.name}{self.signature}" + ("" if self._loss is None else ", then the target"),
                found=str(error),
            ) from None
        return (*bound.args, *target), bound.kwargs

    def shares(self, batch: Given, part: Given, count: int) -> Shares:
        """The shares that equal parts of a batch have in its loss.

        Raises ``PartitaError``: E394 if the parts have none or the module changes buffers, E390 and others of ``load`` if it
        cannot be exported.
        """
        key = _shapes(batch)
        if key not in self._shares:
            whole = self._program(batch)
            changed = changed_buffers(whole)
            if changed:
                raise refuse(
                    "E394",
                    f"`{changed[0].removeprefix('module.')}` changes in each forward pass",
                    expected="modules without state over the batch, of which each rank and microbatch would have its own",
                    found=", ".join(name.removeprefix("module.") for name in changed),
                    help="put normalisation by statistics of the batch in eval mode, replace it by LayerNorm or GroupNorm, or "
                    "use a mesh without dp and fsdp and one microbatch",
                )
            try:
                self._shares[key] = Shares(whole, self._program(part), count)
            except Unshared as reason:
                raise unshared(reason, count) from None
        return self._shares[key]

    def operations(self, batch: Given) -> float:
        """About how many operations on elements both passes of a batch take."""
        return operations(self._program(batch))

    def _program(self, batch: Given) -> Any:
        """The exported program of the module and its loss for a batch of these shapes."""
        from partita._traced import traced
        from partita._watched import Tree

        key = _shapes(batch)
        if key not in self._programs:
            batch = pytree.tree_map(_on_cpu, batch)
            module = _WithLoss(self._with({}), self._loss)
            # Shares do not depend on dropout.
            with without_dropout():
                self._programs[key] = traced(module, batch, {}, Tree(module, also=self._loss)).program
        return self._programs[key]

    def _with(self, values: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        """The module with values of parameters and buffers; those that are not given have none."""
        module = _emptied(self._module, "cpu")
        for part in module.modules():
            for name, buffer in part._buffers.items():
                part._buffers[name] = buffer if buffer is None else buffer.cpu()
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if name in values:
                    tensor.copy_(values[name])
        return module

    def first_step(
        self, batch: Given, values: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss and the gradients of a batch on one device of the native engine, without dropout.

        Raises ``PartitaError`` if the native engine does not take the module, or draws random numbers that are not those of
        dropout.
        """
        from partita import Schedule, load

        args, kwargs = pytree.tree_map(_on_cpu, batch)
        with _launched.alone(), without_dropout():
            built = Schedule(load(_WithLoss(self._with(values), self._loss), (args, kwargs)), "dp=1", {}).build()
            state = torch.get_rng_state()
            loss = built(args, kwargs)
            if not torch.equal(state, torch.get_rng_state()):
                raise refuse(
                    "E394",
                    f"{self.name} draws random numbers that are not those of dropout",
                    expected="a module whose numbers do not depend on draws",
                    found="a pass that draws",
                )
            loss.backward()
        found = ((name.removeprefix("module."), value.grad) for name, value in built.named_parameters())
        gradients = {name: gradient for name, gradient in found if gradient is not None}
        return loss.detach(), gradients


def _emptied(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """A copy of a module with parameters of a device that have no values. What is shared is shared in the copy."""
    empty = {
        id(value): torch.nn.Parameter(torch.empty_like(value, device=device), value.requires_grad)
        for value in module.parameters()
    }
    return copy.deepcopy(module, empty)


class _WithLoss(torch.nn.Module):
    """A module with its loss, called with the arguments and the named arguments; the last argument is the target."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.loss is None:
            return loss_in(self.module(*args, **kwargs))
        return self.loss(self.module(*args[:-1], **kwargs), args[-1])


def loss_in(output: Any) -> Any:
    """The loss that a module returns: a scalar, or an attribute ``loss`` as in models of Hugging Face. E394 without one."""
    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
        raise refuse(
            "E394",
            "the module returns no loss",
            expected="a scalar, or a result with a scalar `loss`",
            found=type(output).__name__ if loss is None else f"a tensor of shape {list(loss.shape)}",
            help="give apply a function: loss=torch.nn.functional.cross_entropy",
        )
    return loss


class _WithoutDropout(TorchFunctionMode):
    """Dropout returns what it is given."""

    _NONE = {
        F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
        torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_, torch.feature_dropout, torch.feature_dropout_,
        torch.feature_alpha_dropout, torch.feature_alpha_dropout_, torch.ops.aten.dropout.default,
        torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default, torch.ops.aten.alpha_dropout.default,
        torch.ops.aten.feature_alpha_dropout.default,
    }  # fmt: skip
    _ATTENTION = {F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._NONE:
            return args[0] if args else kwargs["input"]
        if func is F.multi_head_attention_forward:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.arguments["dropout_p"] = 0.0
            args, kwargs = bound.args, bound.kwargs
        elif func in self._ATTENTION:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        return func(*args, **kwargs)


@contextmanager
def without_dropout() -> Iterator[None]:
    """Inside, dropout drops nothing."""
    with _WithoutDropout():
        yield


def digest(batch: Any) -> str:
    """What tells batches apart."""
    found = hashlib.sha256()
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            found.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if leaf.numel() else b"")
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()


def difference(
    name: str,
    found: tuple[torch.Tensor, Mapping[str, torch.Tensor]],
    expected: tuple[torch.Tensor, Mapping[str, torch.Tensor]],
) -> PartitaError | None:
    """E394 if the loss or a gradient of the ranks is not that of one device, with the tensor that differs most."""
    from partita._verified import _compared

    def named(loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"the loss": loss.cpu()} | {f"step, grad.{name}": value.cpu() for name, value in gradients.items()}

    tolerance, compared = _compared(named(*found), named(*expected), None)
    wrong = [each for each in compared if each[2]]
    if not wrong:
        return None
    worst, relative, _ = max(wrong, key=lambda each: each[1])
    shown = worst.removeprefix("step, grad.")
    return refuse(
        "E394",
        f"the first step of {name} on these ranks is not that of one device",
        expected=f"the loss and gradients of one device, within {tolerance:.1e}",
        found=f"{shown if worst == 'the loss' else f'the gradient of `{shown}`'} differs by {relative:.1e} of its largest "
        f"element; {len(wrong)} of {len(compared)} tensors differ; the loss is {float(found[0]):.6g} in place of "
        f"{float(expected[0]):.6g}",
        help="a module that combines rows of the batch, or computes otherwise on each rank, cannot run so; use the native "
        "engine, partita.Trainer, or a mesh without the axis that divides its rows",
    )


def fields(error: PartitaError) -> dict[str, Any]:
    """The parts of an error, for other processes."""
    return {name: getattr(error, name) for name in ("code", "message", "at", "expected", "found", "help")}


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _shapes(batch: Any) -> Any:
    leaves, spec = pytree.tree_flatten(batch)
    described = [(leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return str(spec), tuple(described)
