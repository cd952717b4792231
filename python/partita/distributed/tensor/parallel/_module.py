"""``parallelize_module``: styles by module path, as lines of a plan."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping

import torch

from partita._error import refuse
from partita.distributed._declared import Line, check_module, declare
from partita.distributed.device_mesh import DeviceMesh
from partita.distributed.tensor.parallel._style import ParallelStyle

__all__ = ["parallelize_module"]


def parallelize_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle],
) -> torch.nn.Module:
    """Makes a module parallel over the one dimension of a mesh, in place, and returns it.

    The plan is a style for the module, or styles by the paths of modules inside; ``*`` in a path stands for any one name.
    Parameters remain whole tensors of PyTorch, for any optimizer; passes run on the ranks. Calling the module takes and
    returns whole tensors.

    Raises ``PartitaError``: E221 for a path that no module has, with those that are near; E380 for a style that does not
    fit a module, or a mesh of several dimensions; E381 for a module that is parallel on another mesh.
    """
    if device_mesh.ndim != 1:
        raise refuse(
            "E380",
            "a module is parallelized over one dimension of a mesh",
            expected='a mesh of one dimension, such as mesh["tp"]',
            found=repr(device_mesh),
        )
    styles = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else dict(parallelize_plan)
    (axis,) = device_mesh._axes
    lines = []
    for pattern, style in styles.items():
        if not isinstance(style, ParallelStyle):
            raise TypeError(f"the plan of `{pattern}` is a {type(style).__name__}, not a ParallelStyle")
        for path in _matching(module, pattern):
            style.check(module.get_submodule(path))
            lines.append(Line(path, style.name, axis, style.options))
    return declare(module, device_mesh, lines)


def _matching(module: torch.nn.Module, pattern: str) -> list[str]:
    """The paths of the modules that a pattern names; E221 if there are none."""
    check_module(module)
    paths = [path for path, _ in module.named_modules()]
    parts = pattern.split(".")
    named = [path.split(".") for path in paths]
    found = [
        ".".join(path)
        for path in named
        if len(path) == len(parts) and all(fnmatch.fnmatchcase(name, part) for name, part in zip(path, parts))
    ]
    if not found:
        near = difflib.get_close_matches(pattern, paths, 3)
        raise refuse(
            "E221",
            f"no module `{pattern}`",
            expected=", ".join(path for path in paths if path)[:200] or "a module inside",
            found=pattern,
            help=f"did you mean `{near[0]}`?" if near else None,
        )
    return found
