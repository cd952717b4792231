"""Modules that carry lines of a plan: what ``parallelize_module`` and ``fully_shard`` make of a module.

A module that is declared parallel changes its class, in place, to one whose ``forward`` runs planned. Its lines apply to
itself and the modules below; a declared module inside another one is planned as a part of it. So the calls may come in any
order, for any modules, as in PyTorch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

from partita import Mesh, Plan
from partita._axes import DENSE_BATCH_AXES
from partita._error import refuse
from partita._lent import Homes
from partita._module import Call, Entry, Planning, planned_forward
from partita._origins import Passed
from partita.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Line:
    """A style for the modules of a path, over an axis of the mesh; ``options`` are those of the style, as text."""

    path: str
    style: str
    axis: str
    options: tuple[str, ...] = ()

    @property
    def shards_batch(self) -> bool:
        """Whether the ranks along its axis compute different rows of the batch."""
        return self.style == "fsdp"

    def below(self, prefix: str) -> Line:
        """The same line, of a module that is called ``prefix``."""
        return Line(".".join(part for part in (prefix, self.path) if part), self.style, self.axis, self.options)

    def entries(self, names: dict[str, str], root: torch.nn.Module) -> list[tuple[str, str]]:
        """The lines of a plan for the model ``root``: module patterns and requests.

        A style is for a module inside a model. Where the line is about the model itself, a linear layer or embedding has its
        parameters named; and ``fsdp`` is for every module, where the backward pass comes at once, so that the gathered
        parameters are kept by default.
        """
        axis = f"axis={names[self.axis]}"
        if self.path:
            return [(self.path, f"{self.style}({', '.join([*self.options, axis])})")]
        if self.style == "fsdp":
            return [("**", f"fsdp({', '.join([*(self.options or ('reshard_after_forward=false',)), axis])})")]
        if self.style not in ("colwise", "rowwise"):
            raise refuse(
                "E380",
                f"the style {self.style} of a model as a whole",
                expected="the path of a module inside",
                found=type(root).__name__,
                help="make the module that contains it parallel too",
            )
        is_rows = (self.style == "rowwise") == isinstance(root, torch.nn.Embedding)
        lines = [("", f"shard(weight, {0 if is_rows else 1}, {axis})")]
        if self.style == "colwise" and getattr(root, "bias", None) is not None:
            lines.append(("", f"shard(bias, 0, {axis})"))
        return lines


class Declared(Planning):
    """The lines of a declared module, on the whole mesh that their axes belong to."""

    def __init__(self, kind: type[torch.nn.Module], mesh: DeviceMesh) -> None:
        self.kind, self.whole = kind, mesh
        self.lines: list[Line] = []
        self.homes, self.lock, self.passed, self.told = Homes(), threading.RLock(), Passed(), mesh._told
        self._begin()
        self._planned: list[Line] = []

    def original(self, module: torch.nn.Module) -> torch.nn.Module:
        """The user's module with the tensors of this one; declared modules inside are the user's too."""
        return _plain(module)

    def entry(self, call: Call) -> Entry:
        """The programs for these inputs, planned anew when a module was declared since."""
        lines = _lines(call.module, self.whole)
        if lines != self._planned or not self.programs:
            self.plan, self.mesh = _plan(call.module, lines, self.whole)
            self.forget()
            self._planned = lines
        return super().entry(call)


def plan_of(module: torch.nn.Module) -> Plan:
    """The plan that ``parallelize_module`` and ``fully_shard`` have written for a module. ``TypeError`` for another one."""
    planning = module.__dict__.get("_planning")
    if not isinstance(planning, Declared):
        raise TypeError(f"{type(module).__name__} is not parallel")
    return _plan(module, _lines(module, planning.whole), planning.whole)[0]


def lines_of(module: Any) -> list[Line]:
    """The lines that a module carries itself."""
    planning = getattr(module, "__dict__", {}).get("_planning")
    return planning.lines if isinstance(planning, Declared) else []


def check_module(module: Any) -> None:
    """``TypeError`` for what is no module."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a module of PyTorch, found {type(module).__name__}")


def declare(module: torch.nn.Module, mesh: DeviceMesh, lines: list[Line]) -> torch.nn.Module:
    """Adds lines to a module, which changes in place, and returns it.

    E381 if it has lines on another mesh already; ``TypeError`` for what is no module.
    """
    check_module(module)
    whole = mesh._root
    planning = module.__dict__.get("_planning")
    if isinstance(planning, Declared):
        if planning.whole != whole:
            raise _other_mesh(planning.whole, whole)
    elif planning is not None:
        raise refuse("E381", "a module is planned already", expected="a module of PyTorch", found=type(module).__name__)
    else:
        kind = type(module)
        planning = Declared(kind, whole)
        module.__dict__["_planning"] = planning
        module.__class__ = type(kind.__name__, (kind,), {"forward": planned_forward(), "__reduce_ex__": _reduce})
    planning.lines += lines
    return module


def _reduce(self: Any, protocol: int) -> Any:
    plain = object.__new__(self._planning.kind_of(self))
    plain.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_planning"})
    return declare, (plain, self._planning.whole, list(self._planning.lines))


def _other_mesh(expected: DeviceMesh, found: DeviceMesh) -> Exception:
    return refuse(
        "E381",
        "a module is parallel on two meshes",
        expected=repr(expected),
        found=repr(found),
        help='make one mesh, and name its dimensions: mesh["tp"]',
    )


def _plain(module: torch.nn.Module) -> torch.nn.Module:
    children = {name: None if child is None else _plain(child) for name, child in module._modules.items()}
    planning = module.__dict__.get("_planning")
    is_same = all(children[name] is child for name, child in module._modules.items())
    if is_same and not isinstance(planning, Declared):
        return module
    kind = planning.kind_of(module) if isinstance(planning, Declared) else type(module)
    plain: torch.nn.Module = object.__new__(kind)
    plain.__dict__.update({name: value for name, value in module.__dict__.items() if name != "_planning"})
    plain.__dict__["_modules"] = children
    return plain


def _lines(module: torch.nn.Module, whole: DeviceMesh) -> list[Line]:
    """The lines of a module and of those inside, the outer ones first: of two for one parameter, the later one counts."""
    found: list[Line] = []
    for path, child in module.named_modules():
        planning = child.__dict__.get("_planning")
        if isinstance(planning, Declared):
            if planning.whole != whole:
                raise _other_mesh(whole, planning.whole)
            found += [line.below(path) for line in planning.lines]
    return found


def _is_left_nothing(line: Line, lines: list[Line], parameters: list[str]) -> bool:
    """Whether ``fully_shard`` of modules inside has taken all parameters of a module: its own call then changes nothing."""
    if line.style != "fsdp":
        return False
    inside = f"{line.path}." if line.path else ""
    inner = [
        f"{other.path}."
        for other in lines
        if (other.style, other.axis) == (line.style, line.axis) and other.path != line.path and other.path.startswith(inside)
    ]
    own = [name for name in parameters if name.startswith(inside)]
    return bool(own) and all(any(name.startswith(path) for path in inner) for name in own)


def _plan(module: torch.nn.Module, lines: list[Line], whole: DeviceMesh) -> tuple[Plan, Mesh]:
    """The plan, and the mesh, on which an axis that shards the batch has a name that says so."""
    names = {axis: axis for axis in whole._axes}
    for line in lines:
        if line.shards_batch and names[line.axis] not in DENSE_BATCH_AXES:
            free = [name for name in DENSE_BATCH_AXES if name not in names.values()]
            if not free:
                raise refuse("E381", "no name is left for an axis that shards the batch", found=", ".join(whole._axes))
            names[line.axis] = free[-1]
    mesh = Mesh(",".join(f"{names[axis]}={size}" for axis, size in zip(whole._axes, whole._shape)))
    text: dict[str, list[str]] = {}
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for line in lines:
        if _is_left_nothing(line, lines, parameters):
            continue
        for path, request in line.entries(names, module):
            text.setdefault(path, []).append(request)
    return Plan(text), mesh
