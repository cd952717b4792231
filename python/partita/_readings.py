"""Settings of PyTorch for the whole process, or for a thread, that code may ask for: switches of ``torch.backends``, the
default type, deterministic algorithms, the number of threads, inference mode.

What is asked during an export is asked again before each call, and an export with other answers is another one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Reading = tuple[Hashable, str, Callable[[], Any]]
"""What tells it from others, its name, and what asks."""

PREFIXES = ("get_", "is_", "are_")
_PREFIXES = (*PREFIXES, *(f"_{prefix}" for prefix in PREFIXES))

# Modules of PyTorch whose functions answer such questions.
_ANSWERING = ("torch.amp.autocast_mode", "torch.backends", "torch.cuda", "torch.distributed", "torch.random")

# Functions of C, and a method of generators of random numbers.
_OF_C = {name: getattr(torch._C, name) for name in dir(torch._C) if name.startswith(_PREFIXES)}
NAMES = frozenset({"initial_seed", "is_inference", *_OF_C})

_PLAIN = (bool, int, float, str, torch.dtype, torch.device)


def answer(asked: Callable[[], Any]) -> Any:
    """What a function without arguments says, if that is a plain value."""
    try:
        value = asked()
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return None
    if isinstance(value, (tuple, list)) and all(isinstance(part, _PLAIN) for part in value):
        return tuple(value)
    # Those of enumerations of PyTorch have names.
    is_named = type(value).__module__.startswith("torch.") and hasattr(type(value), "__members__")
    return str(value) if is_named else value if isinstance(value, _PLAIN) else None


def casts() -> tuple[Any, Any]:
    """The types that PyTorch casts to, and makes tensors of: they are a part of each export."""
    if not torch._C._is_any_autocast_enabled():
        return None, torch.get_default_dtype()
    devices = torch._C._autocast_supported_devices()
    cast = tuple((device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device))
    return cast, torch.get_default_dtype()


def _is_asked(frame: types.FrameType | None) -> bool:
    """Whether what runs in a frame asks for other code than PyTorch's."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in ("torch", __name__) and not f"{name}.".startswith(tuple(f"{known}." for known in _ANSWERING)):
            return name.partition(".")[0] not in ("torch", "partita")
        frame = frame.f_back
    return False


def of_call(frame: types.FrameType, function: Any) -> Reading | None:
    """What a call of C in a frame asks for."""
    name = function.__name__
    if (name != "initial_seed" and _OF_C.get(name) is not function) or not _is_asked(frame):
        return None
    ask = functools.partial(answer, _is_inference if name == "is_inference_mode_enabled" else function)
    return None if ask() is None else (function, f"torch.{name.lstrip('_')}", ask)


def is_unanswered(frame: types.FrameType, function: Any) -> bool:
    """Whether a call of C in a frame asks for inference mode, and is told of the export."""
    name = function.__name__
    is_direct = name == "is_inference" or (name == "is_inference_mode_enabled" and frame.f_globals.get("__name__") != __name__)
    return is_direct and _Outer.thread == threading.get_ident() and _is_asked(frame)


@functools.lru_cache(maxsize=None)
def of_python() -> dict[types.CodeType, Any]:
    """Functions of PyTorch in Python that answer, by their code; None for the attributes of ``torch.backends``."""
    found: dict[types.CodeType, Any] = {torch.backends.ContextProp.__get__.__code__: None}
    for name, module in list(sys.modules.items()):
        if name == "torch" or f"{name}.".startswith(tuple(f"{known}." for known in _ANSWERING)):
            for function in vars(getattr(module, "m", module)).values():
                if type(function) is types.FunctionType and function.__name__.startswith(_PREFIXES):
                    needed = [part for part in inspect.signature(function).parameters.values() if part.default is part.empty]
                    if all(part.kind in (part.VAR_POSITIONAL, part.VAR_KEYWORD) for part in needed):
                        found[function.__code__] = function
    return found


def of_frame(frame: types.FrameType) -> Reading | None:
    """What a function of ``of_python`` that begins in a frame asks for."""
    if not _is_asked(frame):
        return None
    function = of_python()[frame.f_code]
    if function is None:
        getter = frame.f_locals["self"].getter
        function = getattr(getter, "outside", getter)
    ask = functools.partial(answer, function)
    return None if ask() is None else (function, f"{function.__module__}.{function.__name__}", ask)


class _Outer:
    """The thread that exports in inference mode; the export itself runs without."""

    thread: int | None = None


def _is_inference() -> bool:
    return torch._C.is_inference_mode_enabled() or _Outer.thread == threading.get_ident()


@contextmanager
def as_outside() -> Iterator[None]:
    """A context for an export, without inference mode. Code that is not PyTorch's is told what holds outside: whether inference
    mode is on, and switches of mkldnn, which ``torch.export`` turns off."""
    is_on, enabled, before = _is_inference(), torch.is_inference_mode_enabled, _Outer.thread
    switches = [value for value in vars(type(torch.backends.mkldnn)).values() if isinstance(value, torch.backends.ContextProp)]
    getters = [switch.getter for switch in switches]

    def is_inference_mode_enabled() -> bool:
        asks = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        return enabled() if asks == "torch" else _is_inference()

    _Outer.thread = threading.get_ident() if is_on else None
    if is_on:
        setattr(torch, "is_inference_mode_enabled", is_inference_mode_enabled)
    for switch in switches:
        switch.getter = _told(switch.getter)
    try:
        with torch.inference_mode(False):
            yield
    finally:
        for switch, getter in zip(switches, getters):
            switch.getter = getter
        setattr(torch, "is_inference_mode_enabled", enabled)
        _Outer.thread = before


def _told(getter: Any) -> Callable[[], Any]:
    """A switch of ``torch.backends``: for other code than PyTorch's, what it is now."""
    value, thread = getter(), threading.get_ident()

    def told() -> Any:
        return value if thread == threading.get_ident() and _is_asked(sys._getframe(1)) else getter()

    setattr(told, "outside", getter)
    return told
