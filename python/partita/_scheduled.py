"""What all schedules of one module share: the module as it is shown and as it will be planned, and the lines of the plan.

A line is checked as far as that needs no shapes when it is added, and otherwise when the plan is applied. Modules that are
replaced are replaced in a copy with the same parameters, so that the user's module remains as it was; that the copy
computes the same is compared once for each shape, before it is planned.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from torch import nn

from partita import _module
from partita._error import refuse
from partita._partita import Mesh, PartitaError, Plan
from partita._printed import Printed, parts_of, view
from partita._replaced import Same, shared_copy
from partita._schedule import caller
from partita._told import Told

_Line = tuple[str, str, tuple[Any, ...], dict[str, Any], str]


class Scheduled:
    """A module, a mesh, and the requests so far."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        if not isinstance(model, nn.Module):
            found = f"the class {model.__name__}: call it" if isinstance(model, type) else type(model).__name__
            raise TypeError(f"create_schedule takes a module of PyTorch, found {found}")
        self.model, self.mesh = model, mesh
        self.shown: nn.Module = shared_copy(model)
        self.lines: list[_Line] = []
        self.same = Same(model, model)
        self.told = Told()
        self.structure = self._structure()

    def _structure(self) -> list[tuple[str, type]]:
        return [(path, type(module)) for path, module in self.model.named_modules()]

    @property
    def edited(self) -> nn.Module:
        """What will be planned: the module, with the parts that replace others."""
        return self.same.edited

    def edit(self, edited: nn.Module, what: str) -> None:
        """From now on this module is planned, which shares its parameters with the original."""
        self.same = Same(self.model, edited, [*self.same.replaced, f"{what} at {caller()}"])

    def module_at(self, path: str) -> nn.Module:
        """A module of what will be planned. E221 with the nearest names if there is none."""
        try:
            return self.edited.get_submodule(path)
        except AttributeError:
            known = [known for known, _ in self.edited.named_modules() if known]
            near = difflib.get_close_matches(path, known, 3)
            raise refuse(
                "E221",
                f"no module `{path}`",
                expected="the path of a module",
                found=path,
                help=f"did you mean `{'`, `'.join(near)}`?" if near else f"there are {', '.join(known[:8])}",
            ) from None

    def tensor_at(self, path: str, name: str) -> Any:
        """A parameter or buffer of a module. E232 if it has none of this name."""
        module = self.module_at(path)
        tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        if name not in tensors:
            raise refuse(
                "E232",
                f"`{path}` has no tensor `{name}`",
                expected=", ".join(tensors) or "a module with parameters of its own",
                found=name,
            )
        return tensors[name]

    def shard(self, path: str, name: str, axis: int) -> None:
        """Shards a parameter along a dimension. E231 if it is sharded already, E224 for an unknown dimension."""
        rank = self.tensor_at(path, name).dim()
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"axis is the number of a dimension, found {axis!r}")
        if not -rank <= axis < rank:
            raise refuse(
                "E224",
                f"`{path}.{name}` has no dimension {axis}",
                expected=f"a dimension from {-rank} to {rank - 1}",
                found=str(axis),
            )
        if any(line[:3] == (path, "shard", (name,)) for line in self.lines):
            raise refuse("E231", f"`{path}.{name}` is sharded already", expected="one shard() of a tensor", found="two")
        self.add(path, "shard", (name,), {"dim": axis})

    def shown_at(self, path: str) -> Any:
        """A module as it is shown."""
        return self.shown.get_submodule(path) if path else self.shown

    def view(self, path: str = "") -> Any:
        """A module as it is shown, with the sizes of a rank: for reading."""
        lines = [(of, arguments[0], named) for of, name, arguments, named, _ in self.lines if name == "shard"]
        shards = [(of, tensor, named["dim"]) for of, tensor, named in lines if tensor != "output"]
        return view(self.shown_at(path), shards, self.mesh, path)

    def show(self, path: str, module: nn.Module) -> None:
        """Shows a module in this place."""
        if path:
            self.shown.set_submodule(path, module)
        else:
            self.shown = module

    def add(self, path: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Adds a line. What can be said without shapes is checked now, the rest when the plan is applied."""
        self.lines.append((path, name, arguments, named, caller()))
        try:
            self.plan()
        except PartitaError:
            self.lines.pop()
            raise

    def plan(self) -> Plan:
        """The lines as a plan."""
        calls = []
        for path, name, arguments, named, origin in self.lines:
            texts = [json.dumps(value) for value in arguments]
            texts += [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
            place = f"sch[{json.dumps(path)}]" if path else "sch"
            calls.append(f"{place}.{name}({', '.join(texts)})  # {origin}")
        return Plan("\n".join(calls))

    def check_unchanged(self) -> None:
        """E393 if the user has changed the module since."""
        if self._structure() != self.structure:
            raise refuse(
                "E393",
                "the model was changed after its schedule was created",
                expected="the modules it had then",
                found="others",
                help="create the schedule after the model is complete",
            )

    def planned(self) -> nn.Module:
        """The module under the plan."""
        self.check_unchanged()
        planned: Any = _module.planned_module(self.edited, self.plan(), self.mesh, self.same)
        planned._planning.told = self.told
        shown = self.view()
        planned._planning.printed = Printed(repr(shown), str(shown), parts_of(planned))
        return planned  # type: ignore[no-any-return]

    def state(self) -> Any:
        """What ``restore`` takes back."""
        return list(self.lines), shared_copy(self.shown), self.same

    def restore(self, state: Any) -> None:
        """Forgets what came after ``state``."""
        self.lines, self.shown, self.same = state
