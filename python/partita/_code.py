"""What the code of a module reads beside the values that it is given: the names in it, and the functions that ran.

Code of the user is followed, that of installed packages is not. ``CallRecorder`` notes which code ran during a forward pass: that is
how functions are found that no name leads to, such as a method chosen by ``getattr(self, "_" + kind)``.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from partita._readings import NAMES, PREFIXES, Reading, answer, is_unanswered, of_call, of_frame, of_python

LIBRARIES = frozenset(sys.stdlib_module_names) | {"jax", "numpy", "partita", "torch"}

# Code with these names may read any global by a name that it computes; with the others, any attribute of a module.
_ANY_GLOBAL = frozenset({"globals", "locals", "vars", "eval", "exec", "modules", "__dict__", "__globals__"})
_ANY_ATTRIBUTE = _ANY_GLOBAL | {"getattr", "hasattr", "dir", "attrgetter", "__getattribute__"}

_OF_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "expandvars"})

# Calls of C that give another value each time, by the name of their module or class.
_CLOCKS = frozenset(
    [("time", name + unit) for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time") for unit in ("", "_ns")]
    + [("posix", "urandom"), ("nt", "urandom"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")]
)
_FILES = frozenset(
    [(system, name) for system in ("posix", "nt") for name in ("stat", "lstat", "listdir", "scandir", "open")]
    + [("io", "open"), ("_io", "open"), ("builtins", "input"), ("_socket", "socket")]
)

_NOTED = NAMES | {name for _, name in _CLOCKS | _FILES}

# Parts of the standard library that read files for their own sake.
_THEIR_OWN = frozenset({"importlib", "inspect", "linecache", "logging", "tokenize", "traceback", "warnings"})


def is_library(name: object) -> bool:
    """Whether objects of the classes of a module of Python count by their identity."""
    return not isinstance(name, str) or name.partition(".")[0] in LIBRARIES


def is_cache(value: Any) -> bool:
    """Whether this is a function under ``functools.lru_cache`` or ``functools.cache``."""
    return isinstance(value, functools._lru_cache_wrapper)


@functools.lru_cache(maxsize=None)
def is_installed(name: object) -> bool:
    """Whether the code of a module of Python is not followed."""
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return is_library(name) or (file is not None and ("site-packages" in file or "dist-packages" in file))


@functools.lru_cache(maxsize=None)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals and attributes that a function uses, and those inside it; and texts that may be such names."""
    texts = [text for constant in code.co_consts for text in _texts(constant)]
    inner = [names_in(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return tuple(dict.fromkeys(chain(code.co_names, texts, *inner)))


def _texts(constant: Any) -> Iterator[str]:
    if isinstance(constant, str) and constant.replace(".", "_").isidentifier():
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for part in constant:
            yield from _texts(part)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of all functions inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from nested(part)


def globals_of(names: tuple[str, ...], outer: dict[str, Any]) -> tuple[str, ...]:
    """The globals that code with these names may read."""
    chosen = outer if not _ANY_GLOBAL.isdisjoint(names) else names
    return tuple(name for name in chosen if name in outer and not name.startswith("__"))


def attributes_of(names: tuple[str, ...], module: types.ModuleType) -> tuple[str, ...]:
    """The attributes of a module of Python that code with these names may read."""
    own = vars(module)
    chosen = own if not _ANY_ATTRIBUTE.isdisjoint(names) else names
    return tuple(name for name in chosen if name in own and not name.startswith("__"))


def modules_of(names: tuple[str, ...], package: object) -> list[types.ModuleType]:
    """The modules of Python that code of a package with these names imports, or finds in ``sys.modules``."""
    parts = package.split(".") if isinstance(package, str) and package else []
    prefixes = ["", *(".".join(parts[: count + 1]) + "." for count in range(len(parts)))]
    found = [sys.modules.get(prefix + name) for name in names for prefix in prefixes]
    return [module for module in found if isinstance(module, types.ModuleType) and not is_installed(module.__name__)]


def queries(names: tuple[str, ...]) -> list[tuple[str, Callable[[], Any]]]:
    """Settings of the process that code with these names may ask for: the environment, and settings of PyTorch."""
    found: list[tuple[str, Callable[[], Any]]] = []
    if not _OF_ENVIRONMENT.isdisjoint(names):
        found.append(("os.environ", os.environ.copy))
    if "argv" in names:
        found.append(("sys.argv", lambda: tuple(sys.argv)))
    for name in names:
        asked = getattr(torch, name, None) if name.startswith(PREFIXES) else None
        if asked is not None and answer(asked) is not None:
            found.append((f"torch.{name}", functools.partial(answer, asked)))
    if "opt_einsum" in names:
        found.append(("torch.backends.opt_einsum", functools.partial(_values, torch.backends.opt_einsum)))
    return found


def _values(module: types.ModuleType) -> dict[str, Any]:
    """The plain values in a module of Python."""
    own = {**vars(getattr(module, "m", module)), **vars(module)}
    return {name: value for name, value in own.items() if isinstance(value, (bool, str)) and not name.startswith("__")}


RanCode = tuple[types.CodeType, dict[str, Any], dict[str, Any]]
"""Code that ran, with its globals and the values of its free variables."""


@dataclass(frozen=True)
class Ran:
    """What ran, and was asked, during exports before, and that no walk reaches."""

    code: tuple[RanCode, ...] = ()
    readings: tuple[Reading, ...] = ()


@dataclass
class CallRecorder:
    """A context: the code of the user that runs inside, and what it asks of the machine."""

    code: dict[types.CodeType, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    """With the globals of each, and the values of its free variables."""
    clocks: list[str] = field(default_factory=list)
    """Calls that give another value each time."""
    files: list[str] = field(default_factory=list)
    """Calls that read a file, or wait for a person or another process."""
    readings: dict[Hashable, Reading] = field(default_factory=dict)
    """Settings of PyTorch that were asked for."""
    unanswered: list[str] = field(default_factory=list)
    """Calls that ask for inference mode, which an export does not run in."""

    def __enter__(self) -> CallRecorder:
        self._before = sys.getprofile()
        sys.setprofile(self._watch())
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(self._before)

    def _watch(self) -> Callable[[types.FrameType, Any, Any], None]:
        # Called at each call of all code that runs, that of PyTorch too: what is looked at most often comes first.
        seen: set[types.CodeType] = set()
        before, answering = self._before, of_python()

        def watch(frame: types.FrameType, event: Any, argument: Any) -> None:
            if event == "call":
                if frame.f_code not in seen:
                    seen.add(frame.f_code)
                    self._called(frame)
                if frame.f_code in answering:
                    self._note(of_frame(frame))
            elif event == "c_call" and argument.__name__ in _NOTED:
                self._called_c(frame, argument)
            if before is not None:
                before(frame, event, argument)

        return watch

    def _called(self, frame: types.FrameType) -> None:
        code, name = frame.f_code, frame.f_globals.get("__name__")
        # Code of named tuples is in no module.
        if name in sys.modules and not is_installed(name):
            values = frame.f_locals if code.co_freevars else {}
            free = {name: values[name] for name in code.co_freevars if name in values}
            self.code[code] = (frame.f_globals, free)

    def _note(self, reading: Reading | None) -> None:
        if reading is not None:
            self.readings[reading[0]] = reading

    def _called_c(self, frame: types.FrameType, function: Any) -> None:
        if function.__name__ in NAMES:
            if is_unanswered(frame, function):
                self.unanswered.append(f"{function.__name__}()")
            self._note(of_call(frame, function))
        called = (getattr(getattr(function, "__self__", None), "__name__", None), function.__name__)
        if (called in _CLOCKS or called in _FILES) and _is_for_user(frame):
            (self.clocks if called in _CLOCKS else self.files).append(f"{called[0]}.{called[1]}".lstrip("_"))


def _is_for_user(frame: types.FrameType | None) -> bool:
    """Whether code of the user called what runs in a frame, perhaps through the standard library."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        first = name.partition(".")[0]
        if first in _THEIR_OWN or first == "_frozen_importlib" or (is_installed(name) and first not in sys.stdlib_module_names):
            return False
        if not is_installed(name):
            return True
        frame = frame.f_back
    return False
