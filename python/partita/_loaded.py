"""Models from modules of PyTorch, and whether they are still what the modules are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from partita import _caches, _export
from partita._apart import separate
from partita._load import Model
from partita._readings import casts
from partita._tensors import pack
from partita._told import Told
from partita._traced import Constants, Traced, traced
from partita._watched import Tree
from partita._working import working


def load(
    module: Any,
    example_inputs: Any,
    loss: Callable[..., Any] | None,
    loss_name: str | None,
    batch: int | None,
    ranks: int | None,
) -> Model:
    """See ``partita.load``."""
    if isinstance(module, torch.export.ExportedProgram):
        return _export._imported(module, None, loss_name, batch, ranks)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a module, an exported program or a path, found {type(module).__name__}")
    if example_inputs is None:
        raise TypeError("a module needs example_inputs: tensors with the shapes of a batch")
    if isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    else:
        args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        kwargs = {}

    told = Told()

    def make() -> Model:
        found = traced(module, args, kwargs, Tree(module, also=loss), loss=loss)
        if found.cache is not None:
            told.say("cache", _caches.note(type(module).__name__, found.cache))
        if loss is not None:
            _export.check_loss(found.program, loss)
        model = _export._imported(found.program, module, loss_name, batch, ranks, loss)
        model._taken, model._example, model._told = Taken(module, found, model, make), (args, kwargs), told
        return model

    with working(f"exporting {type(module).__name__}"):
        made = make()
    args, kwargs = made._example = pytree.tree_map(separate, (args, kwargs))
    return made


class Taken:
    """What a model has taken from a module: all but the values that its file contains."""

    def __init__(self, module: torch.nn.Module, found: Traced, model: Model, make: Callable[[], Model]) -> None:
        self._module, self.tree, self.made = module, found.tree, make
        self.refused = found.refused
        """Why no step trains the module: it depends on what a pass before has left behind."""
        self._casts = casts()
        self._trained, self._modes = self._flags(), [part.training for part in module.modules()]
        self._constants = Constants(module, found.tree, found.constants, model)
        self.text = found.text + self._constants.digest()
        """Equal for models of one program."""

    def _flags(self) -> list[bool]:
        return [value.requires_grad for value in self._module.parameters()]

    def _is_same(self, tree: Tree) -> bool:
        return tree.key == self.tree.key and casts() == self._casts and self._constants.are_current(self._module, tree)

    def _look(self) -> Tree:
        """The module as it is now."""
        if self.tree.is_current():
            return self.tree
        tree = Tree(self._module, ran=self.tree.ran, also=self.tree.also)
        if tree.key == self.tree.key:
            # Tensors have the same numbers in it.
            self.tree = tree
        return tree

    def followed(self, model: Model) -> Model:
        """The model, or another one if what the code of the module and its loss reads has changed since. The values of
        parameters and of changing buffers, and the mode, are not looked at: they are those of a trainer."""
        parts = list(self._module.modules())
        modes = [part.training for part in parts]
        had = modes if len(parts) != len(self._modes) else self._modes
        others = [] if had == modes else list(zip(parts, modes))
        try:
            for (part, _), mode in zip(others, had):
                part.training = mode
            tree = self._look()
            return model if self._is_same(tree) else self.made()
        finally:
            for part, mode in others:
                part.training = mode

    def current(self, model: Model) -> Model:
        """The model, or another one if the module has changed since."""
        tree = self._look()
        is_same = self._is_same(tree) and self._trained == self._flags()
        return model if is_same and self._has_values(model) else self.made()

    def _has_values(self, model: Model) -> bool:
        native, module = model._native, self._module
        tensors: dict[str, torch.Tensor] = {}
        tensors |= dict(module.named_parameters(remove_duplicate=False))
        tensors |= dict(module.named_buffers(remove_duplicate=False))
        for name, _, _ in native.parameters() + native.states():
            value = native.value(name)
            if value is not None and (name not in tensors or not (value[2] == pack(tensors[name])[2]).all()):
                return False
        return True
