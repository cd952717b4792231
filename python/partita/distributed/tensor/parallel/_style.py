"""Styles: how a module's parameters and activations lie over a mesh axis. Each is a line of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita._error import refuse
from partita.distributed.tensor._placement import Placement, Replicate, Shard

Layouts = Placement | Sequence[Placement | None]


class ParallelStyle:
    """A style: its name in a plan, and its options as text."""

    name = ""

    def __init__(self) -> None:
        self.options: tuple[str, ...] = ()

    def check(self, module: torch.nn.Module) -> None:
        """E380 for a module that the style does not fit."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.options)})"


def _layout(placement: Placement | None, what: str) -> str:
    """A placement as a plan spells it. E380 for a partial one."""
    if placement is None:
        return "none"
    if isinstance(placement, Replicate):
        return "replicate"
    if isinstance(placement, Shard):
        return f"shard({placement.dim})"
    raise refuse("E380", f"`{what}` is no layout of an activation", expected="Shard or Replicate", found=repr(placement))


def _options(**layouts: Placement | None) -> tuple[str, ...]:
    return tuple(f"{key}={_layout(value, key)}" for key, value in layouts.items() if value is not None)


def _list(layouts: Layouts, what: str) -> str:
    each = [layouts] if isinstance(layouts, Placement) else list(layouts)
    return f"[{', '.join(_layout(layout, what) for layout in each)}]"


class _OfLayer(ParallelStyle):
    _kinds: tuple[type[torch.nn.Module], ...] = (torch.nn.Linear, torch.nn.Embedding)

    def check(self, module: torch.nn.Module) -> None:
        if not isinstance(module, self._kinds):
            raise refuse(
                "E380",
                f"{type(self).__name__} does not fit a {type(module).__name__}",
                expected="nn.Linear or nn.Embedding",
                found=type(module).__name__,
                help="name the layers inside",
            )


class ColwiseParallel(_OfLayer):
    """The output features of a linear layer, or the features of an embedding, are sharded.

    ``input_layouts`` is how the input arrives; it is read replicated. ``output_layouts`` is the layout of the output, by
    default sharded along the features. ``use_local_output`` has no effect: what follows sees the global tensor.
    """

    name = "colwise"

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.options = _options(input_from=input_layouts, output=output_layouts)


class RowwiseParallel(_OfLayer):
    """The input features of a linear layer, or the rows of an embedding, are sharded.

    ``input_layouts`` is how the input arrives; it is read sharded along the features. ``output_layouts`` is the layout of
    the output, by default replicated: after an all_reduce, or a reduce_scatter for ``Shard``.
    """

    name = "rowwise"

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.options = _options(input_from=input_layouts, output=output_layouts)


class SequenceParallel(ParallelStyle):
    """Activations ``[batch, sequence, features]`` are sharded along the sequence; parameters are replicated."""

    name = "sequence"

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.options = () if sequence_dim == 1 else (f"output=shard({sequence_dim})",)


class PrepareModuleInput(ParallelStyle):
    """The inputs of a module arrive in ``input_layouts`` and are read in ``desired_input_layouts``, by position."""

    name = "prepare"

    def __init__(
        self,
        *,
        input_layouts: Layouts | None = None,
        desired_input_layouts: Layouts | None = None,
        use_local_output: bool = False,
    ) -> None:
        if desired_input_layouts is None:
            raise refuse("E380", "PrepareModuleInput needs the layout to convert to", expected="desired_input_layouts")
        given = () if input_layouts is None else (f"input_from={_list(input_layouts, 'input_layouts')}",)
        self.options = (*given, f"input={_list(desired_input_layouts, 'desired_input_layouts')}")


class PrepareModuleOutput(ParallelStyle):
    """The outputs of a module are computed in ``output_layouts`` and read in ``desired_output_layouts``, by position."""

    name = "prepare"

    def __init__(
        self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True
    ) -> None:
        before = _list(output_layouts, "output_layouts")
        self.options = (f"output_from={before}", f"output={_list(desired_output_layouts, 'desired_output_layouts')}")
