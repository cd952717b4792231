"""Models under a plan that are called: forward passes on the ranks."""

from __future__ import annotations

from typing import Any

from partita import _partita
from partita._load import Model, named_inputs
from partita._observed import observe
from partita._partita import Mesh, Plan
from partita._rows import check_rows
from partita._spelled import spelled
from partita._tensors import pack, to_numpy

__all__ = ["Planned", "planned"]


class Planned:
    """A model under a plan, as a function from global inputs to global outputs, without dropout."""

    @spelled
    def __init__(self, model: Model, plan: Plan, mesh: Mesh) -> None:
        self.model, self.plan, self.mesh = model, plan, mesh
        self._native = _partita.Executable(model._native, plan, mesh, "evaluation")

    @spelled
    def __call__(self, *inputs: Any, **named: Any) -> dict[str, Any]:
        """The outputs by name, as arrays. The inputs are those of the model, in their order or by name.

        Raises ``PartitaError``: E414, E415 and E430 for tensors that are unknown, of another shape or type, or missing.
        """
        given = named_inputs(self.model, inputs[0] if len(inputs) == 1 else inputs) if inputs else named
        types = self.model.inputs
        packed = [(name, pack(value, types[name][0] if name in types else None)) for name, value in given.items()]
        check_rows(self.model, packed)
        outputs = list(self.model.outputs)
        with observe("partita::forward", self._native):
            found = self._native.run(packed, outputs, 0)
        return dict(zip(outputs, map(to_numpy, found)))


def planned(model: Model, plan: Plan, mesh: Mesh) -> Any:
    """See ``Schedule.build``."""
    if model._module is None:
        _partita.check_alone()
        return Planned(model, plan, mesh)
    from partita._module import planned_module

    made = planned_module(model._module, plan, mesh)
    made._planning.told = model._told
    return made
