"""The module as it was given, on one device: its programs, and its first step on the native engine.

A plan on PyTorch's runtime changes a module in place. What it was before is kept here without its values, so that its loss
can be divided into parts (``_shares``) and the first step of a run can be compared with that of one device.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from partita import _launched
from partita._error import near_names, refuse
from partita._partita import PartitaError
from partita._traced import Traced, traced
from partita._watched import Tree, described
from partita.torch._rows import Unshared, normalize
from partita.torch._shares import Shares, operations, unshared

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""A batch, or a part of one: arguments and named arguments."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_OF_FSDP = ("_fsdp", "_is_fsdp")
_OF_PYTORCH = frozenset(vars(torch.nn.Module())) - {"training"}

VERIFY_LIMIT = 1e13
"""Operations on elements that the first step on one device may take: about a minute on sixteen cores."""


class OneDevice:
    """A module and its loss as they were given, without the values of parameters."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any] | None) -> None:
        self.signature = inspect.signature(module.forward)
        self.name = type(module).__name__
        self._live, self._module = module, _emptied(module, "meta")
        self._loss = loss
        self._attributes: dict[tuple[str, str], Any] = {}
        self._is_stale = False
        self._programs: dict[Any, tuple[Any, Tree, str]] = {}
        self.is_cut = False
        """Whether stages were cut from the module, so that it must not change."""
        self._shares: dict[Any, tuple[Any, Any, Shares]] = {}
        self.version = 0
        """How often a change of code or settings has made another program of the module and its loss."""

    def bound(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Given:
        """The arguments of ``forward`` by its signature; with a loss, the target is the last of the positional ones.

        Raises ``PartitaError``: E430 for missing ones, E414 for unknown ones.
        """
        own, target = (batch, ()) if self._loss is None else (batch[:-1], batch[-1:])
        if self._loss is not None and not batch:
            raise refuse(
                "E430", "a batch has no target", expected="the arguments of forward(), then the target", found="nothing"
            )
        for leaf in pytree.tree_leaves((batch, named)):
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise refuse(
                    "E394", "a batch has something else than tensors", expected="tensors, numbers, texts and flags",
                    found=f"{type(leaf).__module__}.{type(leaf).__qualname__}", help="torch.as_tensor makes one of an array",
                )
        try:
            bound = self.signature.bind(*own, **named)
        except TypeError as error:
            raise refuse(
                "E430" if "missing" in str(error) else "E414",
                f"{self.name} is called with other arguments than it takes",
                expected=f"{self.name}{self.signature}" + ("" if self._loss is None else ", then the target"),
                found=str(error),
                help=near_names([name for name in named if name not in self.signature.parameters], self.signature.parameters),
            ) from None
        return (*bound.args, *target), bound.kwargs

    def mark(self) -> None:
        """Notes the settings of the module, of which ``follow`` finds changes."""
        self._attributes = _attributes(self._live)

    def follow(self) -> None:
        """Takes over what was set in the module since. Of stages, which were cut from the module as it was, that is refused.

        Raises ``PartitaError``: E394 for what cannot be taken over.
        """
        now = _attributes(self._live)
        changed = [key for key in {**now, **self._attributes} if now.get(key, key) != self._attributes.get(key, key)]
        if not changed:
            return
        modules = [dict(module.named_modules()) for module in (self._live, self._module)]
        for path, name in changed:
            value = vars(modules[0][path]).get(name, _attributes) if path in modules[0] else _attributes
            if self.is_cut or not isinstance(value, _PLAIN) or path not in modules[1]:
                raise refuse(
                    "E394",
                    f"`{name}` of {path or self.name} was changed after apply()",
                    expected="the module from which the stages were cut"
                    if self.is_cut
                    else "another number, text or flag, if any",
                    found="nothing" if value is _attributes else repr(value),
                    help="set it before apply()",
                )
            setattr(modules[1][path], name, value)
        self._attributes = now
        self._is_stale = True

    def shares(self, batch: Given, part: Given, count: int) -> Shares:
        """The shares that equal parts of a batch have in its loss.

        Raises ``PartitaError``: E394 if the parts have none or the module changes buffers, E390 and others of ``load`` if it
        cannot be exported.
        """
        key = _shapes(batch)
        programs = self._program(batch), self._program(part)
        known = self._shares.get(key)
        if known is not None and (known[0], known[1]) == programs:
            return known[2]
        changed = list(programs[0].graph_signature.buffers_to_mutate.values())
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
            shares = Shares(*programs, count, self._loss is None)
        except Unshared as reason:
            raise unshared(reason, count) from None
        self._shares[key] = (*programs, shares)
        return shares

    def operations(self, batch: Given) -> float:
        """About how many operations on elements both passes of a batch take."""
        return operations(self._program(batch))

    def _program(self, batch: Given) -> Any:
        """The exported program of the module and its loss for a batch of these shapes, without writes in place."""
        key = _shapes(batch)
        before, tree, text = self._programs.get(key, (None, None, ""))
        if before is not None and tree is not None and not self._is_stale and tree.is_current():
            return before
        if tree is not None:
            # A setting, or a function or value that the module or the loss reads, is another one.
            self._programs, self._is_stale = {}, False
        found = self._exported(pytree.tree_map(_on_cpu, batch))
        program = normalize(found.program.run_decompositions({}))
        written = list(program.graph_signature.user_inputs_to_mutate.values())
        if written:
            raise refuse(
                "E394",
                f"{self.name} or its loss writes into its arguments",
                expected="a module that leaves its batch as it is: each rank would change its own rows",
                found=", ".join(written),
                help="write `x = x * 2` in place of `x *= 2`",
            )
        if before is not None and found.text != text:
            self.version += 1
            if self.is_cut:
                raise refuse(
                    "E394",
                    f"a value that forward() of {self.name} or its loss reads was changed after apply()",
                    expected="the module from which the stages were cut",
                    found="another program",
                    help="set it before apply()",
                )
        self._programs[key] = program, found.tree, found.text
        return program

    def _exported(self, batch: Given) -> Traced:
        """The export of the module and its loss. E394 for a loss that reads sharded parameters."""
        module = self._with_loss({})
        reached = Tree(module, also=self._loss)
        try:
            # Shares do not depend on dropout.
            with without_dropout():
                return traced(module, batch, {}, reached)
        except PartitaError:
            placed = [name for name, value in zip(reached.places, reached.tensors) if isinstance(value, DTensor)]
            if placed:
                raise refuse(
                    "E394",
                    "the loss reads parameters that are sharded over the ranks",
                    expected="a loss of the output and the target: forward() returns what the loss needs of parameters",
                    found=", ".join(placed[:3]),
                ) from None
            raise

    def kind(self, batch: Given) -> str:
        """What must be alike on all ranks: the program of a batch, and how often it has changed."""
        known = self._programs.get(_shapes(batch))
        return f"{self.version} {known[2] if known else ''}"

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers of the module as they are now, by their names in programs."""
        return {f"module.{name}": value for name, value in self._live.named_buffers()}

    def _with_loss(self, values: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        """The module of ``_with`` and its loss, under its name."""
        kind = type(self.name, (_WithLoss,), {"__module__": type(self._module).__module__})
        made: torch.nn.Module = kind(self._with(values), _on_host(self._loss))
        return made

    def _with(self, values: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        """The module with values of parameters and buffers; those that are not given have none."""
        module = _emptied(self._module, "cpu")
        live = dict(self._live.named_buffers())
        for path, part in module.named_modules():
            for name, buffer in part._buffers.items():
                now = live.get(f"{path}.{name}".lstrip("."), buffer)
                part._buffers[name] = now if now is None else now.detach().cpu().clone()
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if name in values:
                    tensor.copy_(values[name])
        return module

    def compare(
        self, found: tuple[torch.Tensor, Mapping[str, torch.Tensor]], batch: Given, values: Mapping[str, torch.Tensor]
    ) -> None:
        """Compares the loss and the gradients of a batch with those of one device.

        Raises ``PartitaError``: E394 if they differ, or one device does not take the module.
        """
        try:
            expected = self._first_step(batch, values)
        except Exception as refused:
            raise refuse(
                "E394",
                f"the first step of {self.name} cannot be compared with one device",
                expected="a module that the native engine takes",
                found=str(refused) if isinstance(refused, PartitaError) else f"{type(refused).__name__}: {refused}",
                help="change what it names, or pass check=False to run without the comparison",
            ) from None
        _check_equal(self.name, found, expected)

    def _first_step(
        self, batch: Given, values: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss and the gradients of a batch on one device of the native engine, without dropout.

        Raises ``PartitaError`` if the native engine does not take the module, or draws random numbers that are not those of
        dropout.
        """
        from partita import Schedule, load

        args, kwargs = pytree.tree_map(_on_cpu, batch)
        with _launched.alone(), without_dropout():
            built = Schedule(load(self._with_loss(values), (args, kwargs)), "dp=1", {}).build()
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


def _attributes(module: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """The attributes of a module and of those inside: numbers, texts and flags as they are, other objects by what a walk from
    them reaches. Attributes of PyTorch, tensors and modules are left out."""
    return {
        (path, name): (type(value), value) if isinstance(value, _PLAIN) else described(value)
        for path, inner in module.named_modules()
        for name, value in vars(inner).items()
        if name not in _OF_PYTORCH
        and not name.startswith(_OF_FSDP)
        and not isinstance(value, (torch.Tensor, torch.nn.Module))
    }


def _on_host(loss: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """A loss whose tensors are in memory of the host."""
    if not isinstance(loss, torch.nn.Module) or all(value.device.type == "cpu" for value in loss.state_dict().values()):
        return loss
    return copy.deepcopy(loss).cpu()


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


def _check_equal(
    name: str,
    found: tuple[torch.Tensor, Mapping[str, torch.Tensor]],
    expected: tuple[torch.Tensor, Mapping[str, torch.Tensor]],
) -> None:
    """E394 if the loss or a gradient of the ranks is not that of one device, with the tensor that differs most."""
    from partita._verified import _compared

    def named(loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"the loss": loss.cpu()} | {f"step, grad.{name}": value.cpu() for name, value in gradients.items()}

    tolerance, compared = _compared(named(*found), named(*expected), None)
    wrong = [each for each in compared if each[2]]
    if not wrong:
        return
    worst, relative, _ = max(wrong, key=lambda each: each[1])
    shown = worst.removeprefix("step, grad.")
    raise refuse(
        "E394",
        f"the first step of {name} on these ranks is not that of one device",
        expected=f"the loss and gradients of one device, within {tolerance:.1e}",
        found=f"{shown if worst == 'the loss' else f'the gradient of `{shown}`'} differs by {relative:.1e} of its largest "
        f"element; {len(wrong)} of {len(compared)} tensors differ; the loss is {float(found[0]):.6g} in place of "
        f"{float(expected[0]):.6g}",
        help="a module that combines rows of the batch, or computes otherwise on each rank, cannot run so; use the native "
        "engine, partita.Trainer, or a mesh without the axis that divides its rows",
    )


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _shapes(batch: Any) -> Any:
    leaves, spec = pytree.tree_flatten(batch)
    described = [(leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return str(spec), tuple(described)
