"""Programs in text: StableHLO, as JAX and other front ends lower to it, on one device or on a mesh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partita import _partita
from partita._error import near_names, refuse
from partita._partita import Mesh, Plan, Report
from partita._schedule import mesh_of, plan_of
from partita._spelled import spelled
from partita._tensors import Packed, is_complex, pack, to_numpy
from partita._working import working

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Program", "Step", "is_text", "lowered_text"]

_SCALARS = ("step", "seed", "learning_rate")


class Program:
    """A function of a module of StableHLO: what ``load`` returns for a text and for a function of JAX.

    It is a step if results replace arguments: those that were donated when it was lowered.
    """

    def __init__(self, text: str, file: str = "<text>", function: str | None = None) -> None:
        self._native = _partita.Program(text, file, function)
        self._inputs = _named("arg", self._native.inputs())
        self._outputs = _named("result", self._native.outputs())

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The arguments by name, ``arg0`` where the text has none: element type and shape."""
        return dict(self._inputs)

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The results by name, ``result0`` where the text has none: element type and shape."""
        return dict(self._outputs)

    @property
    def carried(self) -> dict[str, str]:
        """For each argument that a result replaces, that result: the state of a step."""
        inputs, outputs = list(self._inputs), list(self._outputs)
        return {inputs[argument]: outputs[result] for argument, result in self._native.carried()}

    def text(self) -> str:
        """The function as StableHLO text, everything that it calls inlined."""
        return self._native.text()

    def on(
        self,
        mesh: Mesh | str = "dp=1",
        plan: Plan | str | Mapping[str, Any] | None = None,
        *,
        batch: Sequence[str] | None = None,
        loss: str | None = None,
        gradients: Sequence[str] = (),
        microbatches: int = 1,
        timetable: str = "1f1b",
    ) -> Step:
        """The program planned for a mesh.

        ``batch`` names the arguments whose dimension 0 is the batch, by default those with a dimension that are not
        carried. ``loss`` and ``gradients`` name results, or values that the text names; microbatches and stages (an axis
        ``pp`` of the mesh) need them. Stages end at the scopes ``pp_stage_0``, .. of the ops, or divide the work evenly.

        Raises ``PartitaError``: E265 for a name that the program does not have, E266 for an update that reads samples other
        than through gradients, E220 and E225 for a batch that cannot be split, what plan and mesh refuse.
        """
        return Step(self, mesh_of(mesh), plan_of(plan), batch, loss, gradients, microbatches, timetable)

    def __repr__(self) -> str:
        def shown(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> str:
            return ", ".join(f"{name}: {dtype}{list(shape)}" for name, (dtype, shape) in tensors.items())

        return f"Program({shown(self._inputs)} -> {shown(self._outputs)})"


class Step:
    """A program on a mesh: a function of its arguments, except of those that it carries, which stay on the ranks. A name such
    as ``p['w']`` may also be spelled ``p.w``, as on the command line.

    The state starts at zero; ``set_state`` gives it other values.
    """

    @spelled
    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        plan: Plan,
        batch: Sequence[str] | None,
        loss: str | None,
        gradients: Sequence[str],
        microbatches: int,
        timetable: str,
    ) -> None:
        self.program, self.mesh, self.plan = program, mesh, plan
        inputs, outputs, carried = program.inputs, list(program.outputs), program.carried
        batch = None if batch is None else [own_name(name, inputs) for name in batch]
        if batch is None:
            batch = [name for name, (_, shape) in inputs.items() if shape and name not in carried]
        unknown = [name for name in batch if name not in inputs]
        if unknown:
            raise KeyError(f"no argument is called {', '.join(unknown)}; they are {', '.join(inputs)}")
        names = list(inputs)
        known = {
            "inputs": names,
            "outputs": outputs,
            "loss": None if loss is None else _place(loss, outputs),
            "gradients": [_place(name, outputs) for name in gradients],
            "batched": [names.index(name) for name in batch],
            "carried": [(names.index(argument), outputs.index(result)) for argument, result in carried.items()],
            "kept": [names.index(argument) for argument in carried],
            "returned": list(range(len(outputs))),
            "microbatches": microbatches,
            "timetable": timetable,
        }
        self._native = _partita.Step(program._native, known, plan, mesh)
        self._kept, self._fed = set(self._native.kept()), self._native.fed()
        self._results = [name for name in outputs if name not in carried.values()]

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, np.ndarray]:
        """One step: the results by name, without those that replace arguments. Inputs are those that are not carried, in
        their order or by name.

        Raises ``PartitaError``: E414, E415 and E430 for tensors that are unknown, of another shape or type, or missing.
        """
        types, found = self.program._outputs, self._run(inputs, named)
        return {name: to_numpy(value, is_complex(types[name][0])) for name, value in zip(self._results, found)}

    def _run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Packed]:
        types = self.program._inputs
        wanted = [name for name in types if name not in self.program.carried]
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            named, inputs = inputs[0], ()
        named = {self._own_name(name): value for name, value in named.items()}
        if inputs and len(inputs) + len(named) != len(wanted):
            raise TypeError(f"expected {len(wanted)} arguments ({', '.join(wanted)}), found {len(inputs) + len(named)}")
        given = dict(zip(wanted, inputs)) | dict(named)
        # What the program does not read is not asked for.
        unread = set(wanted) - set(self._fed)
        packed = [(name, pack(value, types[name][0] if name in types else None)) for name, value in given.items()]
        return self._native.run([item for item in packed if item[0] not in unread], self._results)

    def _own_name(self, given: str) -> str:
        """The argument that a name means. E414 with names that are near for one that the program does not have."""
        name, types = own_name(given, self.program._inputs), self.program._inputs
        if name in types or name in self._kept or name in self._fed:
            return name
        near = near_names([given], [spelling for own in types for spelling in (own, _dotted(own))])
        raise refuse("E414", f"the step has no input `{given}`", expected=", ".join(types), found=given, help=near)

    def state(self) -> dict[str, np.ndarray]:
        """The carried arguments as the last step left them, whole, by name."""
        types, held = self.program._inputs, [name for name in self.program.carried if name in self._kept]
        return {name: to_numpy(self._native.get(name), is_complex(types[name][0])) for name in held}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Sets carried arguments. E414 for an unknown name, E415 for another shape or type."""
        types = self.program._inputs
        for given, value in values.items():
            name = self._own_name(given)
            self._native.set(name, pack(value, types[name][0] if name in types else None))

    def verify(self, inputs: Mapping[str, Any]) -> Report:
        """Runs the planned program and that of one device on these values, one for each argument, and compares loss and
        gradients where they are known, all results otherwise."""
        types = self.program._inputs
        inputs = {own_name(name, types): value for name, value in inputs.items()}
        with working("comparing the plan with one device"):
            return self._native.verify([(name, pack(inputs[name], types[name][0])) for name in types])

    def explain(self, name: str | None = None) -> str:
        """Why the program is as it is on the ranks: on one screen, or for one tensor or collective."""
        known = [*self.program._inputs, *self.program._outputs]
        return self._native.explain(None if name is None else own_name(name, known))

    def collectives(self, rank: int = 0) -> list[tuple[str, str, int, int]]:
        """The collectives of a rank in a step: (phase, collective, count, bytes)."""
        return self._native.collectives(rank)

    @property
    def notes(self) -> list[str]:
        """Facts about the planned program, such as idle ranks."""
        return self._native.notes()

    def __repr__(self) -> str:
        return f"Step({self.program!r} on {self.mesh})"


def is_text(model: object) -> bool:
    """Whether this is a program and no path."""
    return isinstance(model, str) and ("\n" in model.strip() or "func.func" in model)


def lowered_text(model: Any, example_inputs: Any) -> str | None:
    """The text of a lowered or jitted function of JAX; None for anything else.

    Raises ``TypeError`` for a jitted function without arguments.
    """
    if not type(model).__module__.startswith(("jax", "jaxlib")):
        return None
    if hasattr(model, "lower") and not hasattr(model, "as_text"):
        if example_inputs is None:
            raise TypeError("a jitted function is lowered for arguments: partita.load(function, (x, y))")
        arguments = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        model = model.lower(*arguments)
    text: str = model.as_text(debug_info=True)
    return text


def _named(prefix: str, types: Sequence[tuple[str, str, list[int]]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types by name; a name that is missing, taken, or that of a scalar of the training loop is replaced by a number."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for place, (name, dtype, shape) in enumerate(types):
        usable = name and name not in found and not (prefix == "arg" and name in _SCALARS)
        found[name if usable else f"{prefix}{place}"] = (dtype, tuple(shape))
    return found


def own_name(name: str, known: Iterable[str]) -> str:
    """The one of these names that a name means: itself, or the only one that is another spelling of it. The text of a program
    has ``p['w']`` where the command line says ``p.w``."""
    known = list(known)
    if name in known or not isinstance(name, str):
        return name
    found = [other for other in known if _dotted(other) == _dotted(name)]
    return found[0] if len(found) == 1 else name


def _dotted(name: str) -> str:
    """A name with dots in the place of brackets: ``p.layers.0.w`` for ``p['layers'][0]['w']`` and for ``p.layers[0].w``."""
    return re.sub(r"""\[(?:'([^']*)'|"([^"]*)"|(\d+))\]""", lambda part: f".{part[1] or part[2] or part[3] or ''}", name)


def _place(name: str, outputs: Sequence[str]) -> int:
    name = own_name(name, outputs)
    if name not in outputs:
        raise KeyError(f"no result is called {name}; they are {', '.join(outputs)}")
    return outputs.index(name)
