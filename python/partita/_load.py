"""Models: a file of ``torch.export``, or a module of PyTorch that is exported on the way."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partita import _partita
from partita._devices import at_home
from partita._error import refuse
from partita._spelled import spelled
from partita._tensors import to_numpy, to_torch
from partita._told import Told

if TYPE_CHECKING:
    import torch

    from partita._loaded import Taken
    from partita._reached import Reached
    from partita._rows import Range

__all__ = ["Model", "load"]


class Model:
    """A model with its weights: what ``load`` returns. It never changes; training happens in a ``Trainer``.

    A ``Trainer`` or ``Schedule`` of a module that has changed since is that of the module as it is then."""

    def __init__(
        self,
        native: _partita.Model,
        module: torch.nn.Module | None = None,
        returned: Callable[[Sequence[Any]], Any] | None = None,
        file: str | Callable[[str], object] = "",
        loss: Callable[..., Any] | None = None,
        reached: Reached | None = None,
        ranges: dict[str, list[Range]] | None = None,
        kinds: Sequence[tuple[torch.device | None, bool]] = (),
        form: tuple[Any, tuple[Any, ...]] | None = None,
    ) -> None:
        self._native = native
        # Which parameters and inputs gradients of the outputs reach, of a module.
        self._reached = reached
        # The indices that inputs may contain.
        self._ranges = ranges or {}
        # Where its outputs lie, of a module, and whether they are complex.
        self._kinds = kinds
        # The tree of its arguments, of a module, and the names of the tensors in it.
        self._form = form
        # The file that it came from, or what writes one.
        self._file = file
        self._module = module
        # The function that `load` took as the loss.
        self._loss = loss
        self._taken: Taken | None = None
        # The arguments and keyword arguments that a module was loaded with, and the target of a loss.
        self._example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # What the module returns, as a function of the tensors in it.
        self._returned = returned
        # What was said about all that is made of it.
        self._told = Told()
        self._types = {name: (dtype, tuple(shape)) for name, dtype, shape in native.inputs()}

    def _current(self) -> Model:
        """This model; or, if the module that it came from has changed since, one of the module as it is now."""
        return self if self._taken is None else self._taken.current(self)

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The fed tensors by name: element type and shape. The rows of the batch are dimension 0."""
        return dict(self._types)

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The outputs by name: element type and shape. The loss, if there is one, is called ``loss``."""
        return {name: (dtype, tuple(shape)) for name, dtype, shape in self._native.outputs()}

    @property
    def parameters(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The trained tensors by name: element type and shape. Parameters that no output depends on are not trained."""
        return {name: (dtype, tuple(shape)) for name, dtype, shape in self._native.parameters()}

    @property
    def modules(self) -> dict[str, str]:
        """The paths of modules, with their classes."""
        return dict(self._native.modules())

    @property
    def has_loss(self) -> bool:
        """Whether an output is the loss."""
        return self._native.has_loss()

    @property
    def notes(self) -> list[str]:
        """Remarks of the import, such as random numbers that differ from PyTorch's."""
        return [*self._native.notes(), *self._told.notes]

    def state_dict(self) -> dict[str, Any]:
        """Parameters and changing buffers by name, with further names of shared ones: tensors of PyTorch if the model
        came from a module, arrays of numpy otherwise."""
        unpack = to_numpy if self._module is None else to_torch
        names = [name for name, _, _ in self._native.parameters() + self._native.states()]
        found = [(name, self._native.value(name)) for name in names]
        values = {name: unpack(value) for name, value in found if value is not None}
        values = at_home(values, self._module)
        return values | {alias: values[name] for alias, name in self._native.ties()}

    def text(self) -> str:
        """The forward graph as StableHLO text."""
        return self._native.text()

    def _repr_html_(self) -> str:
        """The tensors as tables, and the graph as text, for notebooks."""
        from partita import _drawn

        tensors = {"inputs": self.inputs, "outputs": self.outputs, "parameters": self.parameters}
        return _drawn.model("Model", tensors, self.text())

    def __repr__(self) -> str:
        def shown(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> str:
            return ", ".join(f"{name}: {dtype}{list(shape)}" for name, (dtype, shape) in tensors.items())

        return f"Model({shown(self.inputs)} -> {shown(self.outputs)}; {len(self.parameters)} parameters)"


@spelled
def load(
    model: Any,
    example_inputs: Any = None,
    *,
    loss: Callable[..., Any] | str | None = None,
    batch: int | None = None,
    ranks: int | None = None,
) -> Any:
    """A ``Model`` from a module of PyTorch, a ``torch.export.ExportedProgram``, or a ``.pt2`` file; a ``Program`` from
    StableHLO text, a ``.mlir`` file, or a function of JAX, lowered or jitted.

    ``example_inputs`` of a module are a tensor, a tuple, or a dictionary of keyword arguments; their shapes are those
    of every batch. With a function as ``loss``, the last example input is the target, and the model that is loaded
    computes ``loss(module(*inputs), target)``. A text as ``loss`` names the output that is the loss, where several
    could be. ``batch`` is the number of rows, where the file leaves it open; ``ranks`` the number of ranks that a program
    with collectives of ``torch.distributed`` is one of, where its collectives do not say it. A jitted function is lowered for
    ``example_inputs``, a tuple of its arguments; ``jax.ShapeDtypeStruct`` will do.

    Raises ``PartitaError``: E350 to E354 for a file that cannot be read, E355 and E356 for what a step cannot have,
    E360 for an unclear loss, E390 for a module that PyTorch cannot export, E391 for a custom ``autograd.Function`` or a hook
    on a tensor in it, E414, E415 and E430 for example inputs that the module does not take, E140 to E149 for a text that
    cannot be read.
    """
    from partita._program import Program, is_text, lowered_text

    for what, count in (("batch", batch), ("ranks", ranks)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise refuse("E415", f"`{what}` is no number of {'rows' if what == 'batch' else what}", expected="1 or more", found=repr(count))
    name = loss if isinstance(loss, str) else None
    if is_text(model):
        return Program(model)
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not path.endswith(".mlir"):
            return Model(_partita.Model(path, name, batch, ranks), file=path)
        with open(path, encoding="utf-8") as file:
            return Program(file.read(), path)
    text = lowered_text(model, example_inputs)
    if text is not None:
        return Program(text, getattr(model, "__name__", "<jax>"))
    from partita import _loaded

    function = loss if callable(loss) else None
    return _loaded.load(model, example_inputs, function, name, batch, ranks)


def _in_its_form(model: Model, given: Any) -> Mapping[str, Any] | None:
    """The tensors of a batch that has the form of the module's arguments, with tensors in dictionaries, tuples or lists:
    all arguments, the only one, or those by name. ``None`` for one of another form, and for one without anything nested."""
    if model._form is None or model._module is None or not _is_nested(given):
        return None
    tree, leaves = model._form
    parameters = list(inspect.signature(model._module.forward).parameters)
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((given,), {})]
    if isinstance(given, (tuple, list)):
        forms.append((tuple(given), {}))
    elif all(name in parameters for name in given):
        forms += [((), dict(given)), (tuple(given[name] for name in parameters if name in given), {})]
    for arguments in forms:
        try:
            found = tree.flatten_up_to(arguments)
        except ValueError:
            continue
        if not any(isinstance(value, Mapping) for value in found):
            by_name = {_partita.name_of_user(name): value for name, value in zip(leaves, found) if isinstance(name, str)}
            return {name: value for name, value in by_name.items() if name in model.inputs}
    return None


def _is_nested(given: Any) -> bool:
    """Whether a value of a batch is a dictionary, or has tensors in it. Lists of numbers are tensors."""
    values = given.values() if isinstance(given, Mapping) else given if isinstance(given, (tuple, list)) else ()
    return any(
        isinstance(value, Mapping) or (isinstance(value, (tuple, list)) and any(hasattr(part, "shape") for part in value))
        for value in values
    )


def named_inputs(model: Model, given: Any) -> Mapping[str, Any]:
    """The tensors of a batch by input name; a tuple is in the order of the inputs, and one with dictionaries has the form of
    the module's arguments.

    Raises ``PartitaError`` for another number of tensors: E430 for too few, E414 for too many.
    """
    names = list(model.inputs)
    nested = _in_its_form(model, given)
    if nested is not None:
        return nested
    if isinstance(given, Mapping):
        # An input whose name has a meaning in a step has another one there; the caller may use either.
        return {name if name in names else _partita.name_of_user(name): value for name, value in given.items()}
    values = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(values) != len(names):
        missing = len(values) < len(names)
        raise refuse(
            "E430" if missing else "E414",
            f"the batch has {'too few' if missing else 'too many'} tensors",
            expected=f"{len(names)} tensors: {', '.join(names)}",
            found=str(len(values)),
        )
    return dict(zip(names, values))
