"""The lines of a plan as requests for modules of PyTorch, and the refusal of those that it cannot express.

Each request is looked up in one table, which says what it becomes or why it cannot; all refused lines are reported at
once, with the nearest plan that has none of them.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from partita._error import refuse

from ._needs import spelled

STAGES = "pp"
"""The axis of pipeline stages."""


@dataclass(frozen=True)
class Call:
    """A request as a plan spells it: ``rowwise(output=shard(1))``. A word is a text, a layout a call."""

    name: str
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    def take(self, key: str, place: int | None = None, default: Any = None) -> Any:
        """An argument by name, or by its place."""
        if place is not None and place < len(self.positional):
            return self.positional[place]
        return self.named.get(key, default)

    def __str__(self) -> str:
        arguments = [_spelled(value) for value in self.positional]
        arguments += [f"{key}={_spelled(value)}" for key, value in self.named.items()]
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name

    def without(self, *keys: str, **instead: Any) -> Call:
        """The same call with other named arguments."""
        return Call(self.name, self.positional, {k: v for k, v in self.named.items() if k not in keys} | instead)


@dataclass(frozen=True)
class Line:
    """A line of a plan with the modules that it matches."""

    pattern: str
    call: Call
    origin: str
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"`{self.pattern}`: {self.call}"


class Refusals:
    """Lines that PyTorch cannot express, each with the reason and what is nearest: calls, or none to leave it out."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._refused: dict[int, tuple[str, tuple[Call, ...]]] = {}
        self._added: list[tuple[str, str]] = []

    def add(self, line: Line, why: str, *nearest: Call) -> None:
        """Refuses a line. The first reason counts."""
        self._refused.setdefault(self._lines.index(line), (why, nearest))

    def missing(self, why: str, lines: Iterable[tuple[str, str]]) -> None:
        """Refuses the plan for lines that it does not have."""
        self._added = list(lines)
        raise self._error("a plan lacks lines that PyTorch needs", why, None)

    def check(self) -> None:
        """E394 if a line was refused."""
        if not self._refused:
            return
        found = [f"{self._lines[place]}: {why}" for place, (why, _) in sorted(self._refused.items())]
        first = self._lines[min(self._refused)]
        count = len(found)
        message = f"PyTorch cannot run {'a line' if count == 1 else f'{count} lines'} of the plan"
        raise self._error(message, "\n".join(found), first.origin)

    def _error(self, message: str, found: str, at: str | None) -> Exception:
        return refuse(
            "E394",
            message,
            expected="lines that its styles, fully_shard, checkpoint and pipeline stages express",
            found=found,
            at=at,
            help=f"the nearest plan that it runs:\n{self.nearest().strip() or '(no lines)'}",
        )

    def nearest(self) -> str:
        """The plan with each refused line changed or left out, as calls."""
        text: dict[str, list[str]] = {}
        for place, line in enumerate(self._lines):
            calls = self._refused[place][1] if place in self._refused else (line.call,)
            text.setdefault(line.pattern, []).extend(str(call) for call in calls)
        for pattern, request in self._added:
            text.setdefault(pattern, []).append(request)
        return spelled({pattern: calls for pattern, calls in text.items() if calls})


def read(plan: Sequence[tuple[str, str, str]], module: torch.nn.Module) -> list[Line]:
    """The lines of a plan, each with its pattern, request and origin, for a module.

    Raises ``PartitaError``: E221 for a pattern that matches no module, with those that are near.
    """
    paths = [path for path, _ in module.named_modules()]
    lines = []
    for pattern, request, origin in plan:
        found = tuple(path for path in paths if matches(pattern, path))
        if not found:
            near = difflib.get_close_matches(pattern, paths, 3)
            raise refuse(
                "E221",
                f"`{pattern}` matches no module",
                expected=", ".join(path for path in paths if path)[:200] or "the model as a whole",
                found=pattern,
                at=origin,
                help=f"did you mean `{near[0]}`?" if near else None,
            )
        lines.append(Line(pattern, parse(request), origin, found))
    return lines


def matches(pattern: str, path: str) -> bool:
    """Whether a path matches a pattern: ``*`` is one name or a part of one, ``**`` any number of names."""
    return _names_match(pattern.split("."), path.split(".") if path else [])


def _names_match(pattern: list[str], path: list[str]) -> bool:
    if not pattern or pattern == [""]:
        return not path
    if pattern[0] == "**":
        return any(_names_match(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and _letters_match(pattern[0], path[0]) and _names_match(pattern[1:], path[1:])


def _letters_match(pattern: str, name: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    name = name[len(first) :]
    for part in rest[:-1]:
        place = name.find(part)
        if place < 0:
            return False
        name = name[place + len(part) :]
    return name.endswith(rest[-1])


# A quoted text, or a word with what follows it: of a name `(`, of a key `=`.
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|([^\W\d][\w./]*)(\s*[(=])?')


def parse(request: str) -> Call:
    """A request as ``Plan.lines`` prints it."""

    def as_python(found: re.Match[str]) -> str:
        word, follows = found.group(1), (found.group(2) or "").strip()
        if word is None or follows == "(":
            return found.group()
        if follows == "=":
            # Keys may be words of Python, such as `with`.
            return f"_{word}="
        return {"true": "True", "false": "False"}.get(word, json.dumps(word))

    call = _value(ast.parse(_WORD.sub(as_python, request), mode="eval").body)
    return call if isinstance(call, Call) else Call(str(call))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        named = {(keyword.arg or "_")[1:]: _value(keyword.value) for keyword in node.keywords}
        return Call(ast.unparse(node.func), tuple(_value(argument) for argument in node.args), named)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element) for element in node.elts]
    return ast.literal_eval(node)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_spelled(element) for element in value)}]"
    if isinstance(value, str) and not value.replace(".", "_").replace("/", "_").isidentifier():
        return json.dumps(value, ensure_ascii=False)
    return str(value)
