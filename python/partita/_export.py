"""Modules of PyTorch as models: ``torch.export``, a temporary file, the import. Needs PyTorch 2.9 or newer."""

from __future__ import annotations

import copy
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _partita
from partita._error import refuse
from partita._load import Model


def load(
    model: Any,
    example_inputs: Any,
    loss: Callable[..., Any] | None,
    loss_name: str | None,
    batch: int | None,
    ranks: int | None,
) -> Model:
    """See ``partita.load``."""
    if isinstance(model, torch.export.ExportedProgram):
        return _imported(model, None, loss_name, batch, ranks)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a module, an exported program or a path, found {type(model).__name__}")
    if example_inputs is None:
        raise TypeError("a module needs example_inputs: tensors with the shapes of a batch")
    if isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    else:
        args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        kwargs = {}
    exported = _exported(model if loss is None else with_loss(model, loss, len(args)), args, kwargs)
    return _imported(exported, model, loss_name, batch, ranks, loss)


def with_loss(module: torch.nn.Module, loss: Callable[..., Any], count: int) -> torch.nn.Module:
    """The module, whose ``forward`` takes a target too and returns the loss. It shares everything with ``module``."""
    if count < 2:
        raise TypeError("with a loss, example_inputs are the inputs of the module and a target")
    names = list(inspect.signature(module.forward).parameters)[: count - 1]
    if len(names) < count - 1 or "target" in names:
        names = [f"input{number}" for number in range(count - 1)]
    kind = type(module)

    def forward(self: Any, *inputs: Any) -> Any:
        return loss(kind.forward(self, *inputs[:-1]), inputs[-1])

    named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ["self", *names, "target"]]
    setattr(forward, "__signature__", inspect.Signature(named))
    wrapped = copy.copy(module)
    wrapped.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return wrapped


def _exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _custom_functions() as functions:
        try:
            exported = torch.export.export(module, args, kwargs, strict=False)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise refuse(
                "E390",
                f"PyTorch cannot export {type(module).__name__}",
                expected="a module that torch.export captures: no branches on values of tensors",
                found=f"{type(error).__name__}: {reason}",
                help="change the line that PyTorch names, or export a part of the module",
            ) from error
    if functions:
        raise refuse(
            "E391",
            f"{type(module).__name__} uses a custom autograd.Function",
            expected="modules whose gradients follow from their forward pass",
            found=", ".join(functions),
            help="torch.export loses its backward pass; write the function with differentiable ops",
        )
    return exported


@contextmanager
def _custom_functions() -> Iterator[list[str]]:
    """The names of the custom ``autograd.Function`` classes that are applied inside."""
    found: list[str] = []
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        name = f"{cls.__module__}.{cls.__qualname__}"
        if not cls.__module__.startswith("torch.") and name not in found:
            found.append(name)
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield found
    finally:
        torch.autograd.Function.apply = original


def _imported(
    exported: Any,
    module: torch.nn.Module | None,
    loss: str | None = None,
    batch: int | None = None,
    ranks: int | None = None,
    function: Callable[..., Any] | None = None,
) -> Model:
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, "model.pt2")
        torch.export.save(exported, path)
        # The file is mapped: its bytes stay after its name is gone.
        native = _partita.Model(path, loss, batch, ranks)
    return Model(native, module, _returning(exported), lambda path: torch.export.save(exported, path), function)


def _returning(exported: Any) -> Callable[[Sequence[Any]], Any]:
    """What a module returns, as a function of the tensors in it."""
    outputs = [spec.arg for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    spec = exported.call_spec.out_spec

    def returned(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        leaves = [output.value if hasattr(output, "value") else next(rest) for output in outputs]
        return pytree.tree_unflatten(leaves, spec)

    return returned
