"""What a sweep runs: a module, its batches, what is differentiated in each step, and the plans of its meshes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

PATTERNS = ("plain", "joint", "reversed", "first", "accumulate", "evaluated", "retained", "dropped")
"""How forward and backward passes follow one another in a step:

- ``plain``: a forward pass, its backward pass
- ``joint``: two forward passes, one backward pass through both
- ``reversed``: two forward passes, the backward pass of the second, then that of the first
- ``first``: two forward passes, the backward pass of the first
- ``accumulate``: a forward and a backward pass, twice
- ``evaluated``: another forward pass in ``eval()`` without gradients, then as ``plain``
- ``retained``: a forward pass, its backward pass twice
- ``dropped``: as ``plain``, but the second step has a forward pass alone
"""

COTANGENTS = ("random", "zero", "one", "other", "large", "some", "all")
"""What the backward pass of a step is given: for one output or for several, and of which values."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call: tensors, in tuples and dictionaries too."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def of(self, dtype: torch.dtype, differentiated: bool) -> Arguments:
        """Copies, whose floats have a type of their own and, if they are differentiated, need gradients."""

        def copied(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if not value.is_floating_point():
                return value.clone()
            return value.to(dtype, copy=True).requires_grad_(differentiated)

        args, kwargs = pytree.tree_map(copied, (self.args, self.kwargs))
        return Arguments(args, kwargs)

    def floats(self) -> list[torch.Tensor]:
        """The tensors of floats, in order."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


Objective = Callable[[Any, Arguments], torch.Tensor]


@dataclass
class Case:
    """One module of a sweep, and how it is trained."""

    name: str
    about: str
    module: nn.Module
    batch: Callable[[int], Arguments]
    objective: Objective | None = None
    """The loss, from outputs and arguments. Without one, outputs are given cotangents."""

    pattern: str = "plain"
    cotangents: tuple[str, str, str] = ("random", "random", "random")
    optimizer: str = "sgd"
    rate: float = 0.05
    needs_input_gradients: bool = False
    seed: int = 0
    meshes: tuple[str, ...] = ("dp=2", "tp=2", "pp=2")
    plan: Callable[[str], dict[str, Any] | None] | None = None
    """The plan of a mesh; without one, that of ``plan_of``."""

    def draw(self, *place: int | str) -> random.Random:
        """Numbers that depend on the case and on nothing but the place they are drawn for."""
        return random.Random(f"{self.name} {self.seed} {place}")


_ROWWISE = ("o_proj", "out_proj", "down_proj", "fc2", "c_proj", "wo", "dense_4h_to_h", "output.dense", "lin2", "out_lin", "w2")


def plan_of(module: nn.Module, trained: set[str], mesh: str, draw: random.Random) -> dict[str, Any] | None:
    """A plan that shards what the axes of a mesh can shard: over ``tp`` linear layers, convolutions and tables whose weights
    are trained, over ``fsdp`` all parameters. Where nothing is sharded over ``tp``, it says that ranks repeat work."""
    lines: dict[str, Any] = {}
    if "tp=" in mesh:
        inside = [f"{name}." for name, part in module.named_modules() if isinstance(part, nn.MultiheadAttention)]
        for name, part in module.named_modules():
            if not name or any(name.startswith(prefix) for prefix in inside) or not _is_sharded(part):
                continue
            if f"{name}.weight" not in trained:
                continue
            if isinstance(part, nn.Linear):
                usual = "rowwise" if name.endswith(_ROWWISE) else "colwise"
                style = draw.choice([usual, usual, usual, "colwise(output=replicate)", "rowwise", None])
            elif isinstance(part, nn.Embedding):
                style = draw.choice(["shard(weight, 0)", "shard(weight, 1)", None])
            else:
                style = draw.choice(["shard(weight, 0)", None])
            if style is not None:
                lines[name] = style
    whole = ["replicate(axis=tp)"] if "tp=" in mesh and not lines else []
    if "fsdp=" in mesh:
        whole.append("fsdp")
    if whole:
        lines["**"] = whole
    return lines or None


def _is_sharded(part: nn.Module) -> bool:
    weight = getattr(part, "weight", None)
    kinds = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)
    return isinstance(part, kinds) and isinstance(weight, nn.Parameter) and weight.shape[0] % 2 == 0
