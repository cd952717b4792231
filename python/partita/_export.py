"""Modules of PyTorch as models: ``torch.export``, a temporary file, the import. Needs PyTorch 2.9 or newer."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _partita
from partita._apart import apart, separate
from partita._averaged import captured
from partita._decomposed import MAX_ROUNDS, decomposed
from partita._error import near_names, refuse
from partita._load import Model
from partita._origin import place, raised_in
from partita._reached import Reached, only_trained
from partita._rows import Range, ranges_of


def check_loss(exported: Any, loss: Callable[..., Any]) -> None:
    """E360 unless the function returns one float scalar."""
    (output,) = exported.graph.find_nodes(op="output")
    values = [value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in output.args[0]]
    # Buffers that change are outputs too, before that of the user.
    (*_, value) = values or [None]
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point():
        return
    found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    raise refuse(
        "E360",
        f"the loss {_name_of(loss)} is no float scalar",
        expected="one number: a tensor of shape []",
        found=found,
        help="take the mean, or the sum, of the losses of the rows",
    )


def _name_of(loss: Any) -> str:
    """What a message calls a loss: of ``functools.partial``, its function."""
    inner = getattr(loss, "func", loss)
    return str(getattr(inner, "__name__", type(inner).__name__))


# PyTorch patches its modules while it exports one: one at a time, in the whole process.
_LOCK = threading.Lock()
_TURN = threading.local()


@contextmanager
def turn() -> Iterator[None]:
    """Inside, no other thread exports a module. It may be nested."""
    if has_turn():
        yield
        return
    with _LOCK:
        _TURN.is_here = True
        try:
            yield
        finally:
            _TURN.is_here = False


def has_turn() -> bool:
    """Whether this thread is inside a ``turn``."""
    return getattr(_TURN, "is_here", False)


def share_turn(has: bool) -> None:
    """Called first in a thread that a waiting thread has started, with what ``has_turn`` said there."""
    _TURN.is_here = has


def _exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program of a module. E390, E391 as ``load``; E415 if the module does not take these arguments."""
    check_arguments(module, args, kwargs)
    # Two arguments are two inputs, also where they are one tensor.
    args, kwargs = pytree.tree_map(separate, (args, kwargs))
    with turn(), _gradients_of_their_own() as found, _quiet(), _lines_of_user(), captured():
        try:
            exported = torch.export.export(module, args, kwargs, strict=False)
        except _partita.PartitaError:
            raise
        except Exception as error:
            raise _reason(module, args, kwargs, error) from error
    if _mixes_types(exported) and (own := _error_of_module(module, args, kwargs)) is not None:
        raise _not_taken(module, args, kwargs, own)
    for name, part in module.named_modules():
        # Those of the module itself run around its passes.
        if name and (part._backward_hooks or part._backward_pre_hooks):
            found.append(f"a backward hook of the module {name}")
    if found:
        raise refuse(
            "E391",
            f"{type(module).__name__} has gradients that do not follow from its forward pass",
            expected="modules whose gradients follow from their forward pass",
            found="; ".join(found),
            help="torch.export loses them; write the function with differentiable ops, and put hooks on what the "
            "planned module returns or on its parameters",
        )
    return exported


def check_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """E430 and E414 unless ``forward`` takes so many arguments with these names; E415 for arrays of other libraries."""
    kind = type(module).__name__
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise refuse(
            "E430" if "missing" in str(error) else "E414",
            f"{kind} is called with other arguments than it takes",
            expected=f"{kind}{signature}",
            found=f"{_shown(args, kwargs)}: {error}",
            help=near_names([name for name in kwargs if name not in signature.parameters], signature.parameters),
        ) from None
    foreign = [value for value in pytree.tree_leaves((args, kwargs)) if type(value).__name__ in ("ndarray", "ArrayImpl")]
    if foreign:
        raise refuse(
            "E415",
            f"{kind} is called with arrays",
            expected="tensors of PyTorch",
            found=_shown(args, kwargs),
            help="torch.as_tensor(array) shares the memory of an array",
        )


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call, tensors as their types."""

    def shown(value: Any) -> str:
        if isinstance(value, torch.Tensor) or type(value).__name__ in ("ndarray", "ArrayImpl"):
            prefix = "" if isinstance(value, torch.Tensor) else f"{type(value).__name__} "
            return f"{prefix}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        text = repr(value)
        return text if len(text) <= 40 else f"a {type(value).__name__}"

    return "(" + ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())]) + ")"


def _reason(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Exception:
    """Why a module was not exported: it does not take such arguments at all, or PyTorch cannot trace it."""
    kind = type(module).__name__
    own = _error_of_module(module, args, kwargs)
    if own is not None:
        return _not_taken(module, args, kwargs, own)
    reason = str(error).strip() or type(error).__name__
    line, loss = raised_in(error)
    return refuse(
        "E390",
        f"PyTorch cannot export {kind}" if loss is None else f"PyTorch cannot export the loss {_name_of(loss)}",
        at=line,
        expected=f"a {'module' if loss is None else 'loss'} that torch.export captures: no branches on values of tensors",
        found=f"{type(error).__name__}: {reason}",
        help="change the line that PyTorch names, or export a part of the module",
    )


def _not_taken(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], own: Exception) -> Exception:
    line, loss = raised_in(own)
    if loss is not None:
        return refuse(
            "E415",
            f"the loss {_name_of(loss)} fails on what {type(module).__name__} returns",
            at=line,
            expected="a function of the result and the target",
            found=f"{type(own).__name__}: {str(own).strip()}",
        )
    return refuse(
        "E415",
        f"{type(module).__name__} does not take these inputs",
        at=line,
        expected="inputs that the module itself takes",
        found=f"{_shown(args, kwargs)}: {type(own).__name__}: {str(own).strip()}",
    )


# Ops that take tensors of one type. Without values, PyTorch lets others pass.
_OF_ONE_TYPE = {"addmm", "bmm", "conv1d", "conv2d", "conv3d", "linear", "matmul", "mm"}


def _mixes_types(exported: Any) -> bool:
    """Whether an op that takes tensors of one type is given several, so that the module itself may refuse its inputs."""
    for node in exported.graph.nodes:
        name = str(node.target).split(".")
        if node.op == "call_function" and name[0] == "aten" and name[1] in _OF_ONE_TYPE:
            values = [other.meta.get("val") for other in node.all_input_nodes]
            if len({value.dtype for value in values if isinstance(value, torch.Tensor)}) > 1:
                return True
    return False


def _error_of_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What the module itself says to these arguments, as if it were called. Its buffers stay, and random numbers too."""
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.func.functional_call(module, buffers, args, kwargs)
    except Exception as error:
        return error
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch logs and prints of an op that does not fit: the error that follows says the same."""
    loggers = [logging.getLogger(f"torch.{name}") for name in ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    # The graph up to the op is printed by a function of this module.
    exporting: Any = importlib.import_module("torch.export._trace")
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    exporting.print = lambda *args, **kwargs: None
    try:
        yield
    finally:
        vars(exporting).pop("print", None)
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


@contextmanager
def _lines_of_user() -> Iterator[None]:
    """Inside, ops of functions that are not called forward have places too: those of a loss, or of a hook. PyTorch notes the
    lines of functions with this name alone, and so that of this package."""
    tracer: Any = torch.fx.proxy.TracerBase
    original: Any = getattr(tracer, "_filter_traceback_frames", None)
    own = os.path.dirname(__file__)

    def is_own(frame: Any) -> bool:
        return str(frame.filename).startswith(own)

    def is_of_user(frame: Any) -> bool:
        return not is_own(frame) and not any(part in frame.filename for part in ("site-packages", "dist-packages"))

    def frames_of(self: Any, summary: Any) -> Any:
        found = [frame for frame in original(self, summary) if not is_own(frame)]
        if not any(map(is_of_user, found)):
            last = max((number for number, frame in enumerate(summary) if is_own(frame)), default=-1)
            found = [*filter(is_of_user, summary[last + 1 :])] or found
        return traceback.StackSummary.from_list(found)

    if original is None:
        yield
        return
    tracer._filter_traceback_frames = frames_of
    try:
        yield
    finally:
        tracer._filter_traceback_frames = original


@contextmanager
def _gradients_of_their_own() -> Iterator[list[str]]:
    """What is met inside, in words, that changes gradients and is lost: custom classes of ``autograd.Function`` that are
    applied under whatever name, and hooks that are registered on tensors."""
    found: list[str] = []
    node = torch.autograd.function.BackwardCFunction
    thread = threading.get_ident()

    def is_own(module: str) -> bool:
        return threading.get_ident() == thread and not (module + ".").startswith("torch.")

    def note(text: str) -> None:
        if text not in found:
            found.append(text)

    # Each application makes a node of the graph of autograd, even where nothing requires a gradient.
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        cls = getattr(type(self), "_forward_cls", type(self))
        if is_own(cls.__module__):
            note(f"the custom autograd.Function {cls.__module__}.{cls.__qualname__}")
        original_init(self, *args, **kwargs)

    def hooked(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def register(self: Any, hook: Any) -> Any:
            frame = sys._getframe(1)
            if is_own(frame.f_globals.get("__name__", "")):
                note(f"{name} at {place(frame)}")
            return original(self, hook)

        return register

    original_init = node.__init__
    kept: list[tuple[Any, str, Any, Any]] = []
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        kept.append((torch.Tensor, name, torch.Tensor.__dict__.get(name), hooked(name)))
    kept.append((node, "__init__", node.__dict__.get("__init__"), init))
    try:
        for owner, name, _, patched in kept:
            setattr(owner, name, patched)
        yield found
    finally:
        for owner, name, before, _ in kept:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _imported(
    exported: Any,
    module: torch.nn.Module | None,
    loss: str | None = None,
    batch: int | None = None,
    ranks: int | None = None,
    function: Callable[..., Any] | None = None,
) -> Model:
    unknown: _partita.PartitaError | None = None
    # Of the ops that the module calls: those of a decomposition may take any index.
    ranges = ranges_of(exported)
    for _ in range(MAX_ROUNDS):
        try:
            return _imported_as_it_is(exported, module, loss, batch, ranks, function, ranges)
        except _partita.PartitaError as error:
            # E356: an op that is known, called in a way that is not.
            if error.code not in ("E355", "E356"):
                raise
            unknown = unknown or error
            named = (error.found or "").split(", ") if error.code == "E355" else error.message.split("`")[1:2]
            with turn(), _quiet():
                simpler = decomposed(exported, named)
            if simpler is None:
                raise _of_a_module(error) from None
            exported = simpler
    assert unknown is not None
    raise _of_a_module(unknown)


def _of_a_module(error: _partita.PartitaError) -> _partita.PartitaError:
    """The error of an unknown op with advice for a module: what PyTorch decomposes is decomposed already."""
    if error.code != "E355":
        return error
    return refuse(
        error.code,
        error.message,
        at=error.at,
        expected=error.expected,
        found=error.found,
        notes=error.notes,
        help="write these calls in terms of other ops; what PyTorch decomposes into known ops is taken",
    )


def _imported_as_it_is(
    exported: Any,
    module: torch.nn.Module | None,
    loss: str | None,
    batch: int | None,
    ranks: int | None,
    function: Callable[..., Any] | None,
    ranges: dict[str, list[Range]],
) -> Model:
    """The model of a program. E355 for ops that the import does not know."""
    reached = Reached(exported)

    def save(path: str) -> None:
        tensors = list(exported.state_dict.values())
        with turn(), only_trained(exported, reached.trained(loss)), apart(tensors), _plain_containers(exported):
            torch.export.save(exported, path)

    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, "model.pt2")
        save(path)
        # The file is kept open: its bytes stay after its name is gone.
        native = _partita.Model(path, loss, batch, ranks)

    form = (exported.call_spec.in_spec, tuple(exported.graph_signature.user_inputs))
    return Model(native, module, _returning(exported), save, function, reached, ranges, _kinds(exported), form)


def _kinds(exported: Any) -> list[tuple[torch.device | None, bool]]:
    """The devices of the tensors that a module returns, where the export knows them, and whether they are complex."""
    (output,) = exported.graph.find_nodes(op="output")
    names = [spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    values = {node.name: node.meta.get("val") for node in output.all_input_nodes}
    found = [values[name] for name in names if name in values]
    return [(getattr(value, "device", None), isinstance(value, torch.Tensor) and value.is_complex()) for value in found]


@contextmanager
def _plain_containers(exported: Any) -> Iterator[None]:
    """Inside, named tuples in the arguments and results are dictionaries of their fields: files have no names of classes."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {name: plain(part) for name, part in zip(value._fields, value)}
        if type(value) in (tuple, list):
            return type(value)(plain(part) for part in value)
        return {key: plain(part) for key, part in value.items()} if type(value) is dict else value

    def without(spec: Any) -> Any:
        return pytree.tree_structure(plain(pytree.tree_unflatten(list(range(spec.num_leaves)), spec)))

    signature = exported.module_call_graph[0].signature
    before = signature.in_spec, signature.out_spec
    try:
        signature.in_spec, signature.out_spec = without(before[0]), without(before[1])
        yield
    finally:
        signature.in_spec, signature.out_spec = before


def _returning(exported: Any) -> Callable[[Sequence[Any]], Any]:
    """What a module returns, as a function of the tensors in it."""
    outputs = [spec.arg for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    spec = exported.call_spec.out_spec

    def returned(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        leaves = [output.value if hasattr(output, "value") else next(rest) for output in outputs]
        return pytree.tree_unflatten(leaves, spec)

    return returned
