"""Fusion definitions: statements, their schedule, the program of the whole mesh, and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from partita import _partita
from partita._devices import brought, is_away, tell_of
from partita._error import refuse
from partita._function import cut, joined
from partita._tensors import pack, to_torch
from partita._told import Told
from partita.distributed.device_mesh import DeviceMesh
from partita.nvfuser import _mesh
from partita.nvfuser._collectives import create_dtensor
from partita.nvfuser._ops import DataType, Ops
from partita.nvfuser._schedule import Scheduler
from partita.nvfuser._text import Text
from partita.nvfuser._value import Statement, Tensor, tensor_of

__all__ = ["FusionDefinition"]


class FusionDefinition:
    """A program of tensors. Subclasses write it in ``definition`` and lay it out in ``multidevice_schedule``; or

        with FusionDefinition() as fd:
            a = fd.from_pytorch(pt_a)
            fd.add_output(fd.ops.relu(a))

    Statements raise ``PartitaError``: E382 for a statement that does not fit, E415 for shapes and types that do not, E390
    for what PyTorch cannot trace.
    """

    ops: Ops
    sched: Scheduler
    schedule: Scheduler
    _tensors: list[Tensor]
    _statements: list[Statement]
    _inputs: list[Tensor]
    _outputs: list[Tensor]
    _whole: list[Tensor]
    # The results of statements on pieces, which every rank makes once.
    _per_rank: dict[Any, Any]
    _device_mesh: DeviceMesh | None
    _program: _partita.Placed | None
    _told: Told
    _is_defined: bool
    _is_scheduled: bool

    def __new__(cls, *_: Any, **__: Any) -> FusionDefinition:
        # Not in `__init__`, which subclasses may have without calling this one.
        self = super().__new__(cls)
        self._tensors, self._statements = [], []
        self._inputs, self._outputs, self._whole = [], [], []
        self._per_rank = {}
        self._device_mesh = self._program = None
        self._told = Told()
        self._is_defined = self._is_scheduled = False
        self.ops = Ops(self)
        self.sched = self.schedule = Scheduler(self)
        return self

    def definition(self) -> None:
        """The statements; overridden by subclasses."""

    def multidevice_schedule(self) -> None:
        """The layouts; overridden by subclasses. ``multigpu_schedule`` is another name for it."""

    def __repr__(self) -> str:
        counts = f"{len(self._inputs)} inputs, {len(self._statements)} statements, {len(self._outputs)} outputs"
        return f"{type(self).__name__}({counts})"

    def __enter__(self) -> FusionDefinition:
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_defined = True

    def from_pytorch(self, tensor: torch.Tensor) -> Tensor:
        """An input with the shape and type of a tensor, which is global."""
        if not isinstance(tensor, torch.Tensor):
            raise refuse("E382", "from_pytorch takes a tensor", expected="a torch.Tensor", found=type(tensor).__name__)
        return self.define_tensor(tuple(tensor.shape), dtype=tensor.dtype)

    def define_tensor(self, shape: Sequence[int], dtype: DataType | torch.dtype = DataType.Float) -> Tensor:
        """An input of this shape and type."""
        element: torch.dtype = dtype.value if isinstance(dtype, DataType) else dtype
        made = Tensor(self, tuple(shape), element, None)
        self._inputs.append(made)
        self._statements.append(Statement([made]))
        return made

    def add_output(self, value: Any) -> None:
        """Makes a tensor, or the pieces of all ranks, an output. Pieces come back as one tensor for each rank."""
        tensor = tensor_of(value, "add_output")
        if tensor._fd is not self:
            raise refuse("E382", "a tensor of another definition", expected="a tensor of this one", found=repr(tensor))
        if not isinstance(value, Tensor) and not tensor.is_local:
            tensor = tensor.to_local()
        self._outputs.append(tensor)

    def create_mesh(self, shape: int | Sequence[int], names: Sequence[str] | None = None) -> _mesh.DeviceMesh:
        """A mesh of this shape, with dimensions ``x``, ``y``, ``z`` or of these names."""
        return _mesh.create_mesh(shape, names)

    def create_dtensor(self, tensor: Tensor, mesh: DeviceMesh, placements: Any) -> Tensor:
        """See ``ops.create_dtensor``."""
        return create_dtensor(tensor, mesh, placements)

    def all_tensors(self) -> list[Tensor]:
        """Every tensor of the definition."""
        return self.sched.all_tensors()

    def execute(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Runs the definition on global tensors, in the order of ``from_pytorch``, and returns the outputs: a tensor each,
        or for a local one the list of all ranks' tensors.

        Raises ``PartitaError``: E382 for other tensors than the definition has inputs, and what planning refuses.
        """
        program = self._planned()
        given = list(inputs)
        wanted = [(tensor.dtype, tensor.shape) for tensor in self._inputs]
        found = [(tensor.dtype, tuple(tensor.shape)) for tensor in given]
        if wanted != found:
            raise refuse("E382", "the inputs are not those of the definition", expected=str(wanted), found=str(found))
        pieces = [cut(tensor.detach(), described[5]) for tensor, described in zip(given, program.inputs())]
        device = next((tensor.device for tensor in given if is_away(tensor)), None)
        if device is not None:
            tell_of(self._told, type(self).__name__, device)
        results = program.run([[pack(piece) for piece in each] for each in pieces])
        outputs: list[Any] = []
        for tensor, locals, described in zip(self._outputs, results, program.outputs()):
            parts = [brought(to_torch(local), device) for local in locals]
            outputs.append(parts if tensor.is_local else joined(parts, described[5], described[2]))
        return outputs

    def host_ir(self, rank: int = 0) -> str:
        """The program of a rank: compute, and apart from it the collectives, one line each. E014 for no such rank."""
        return self._planned().host_ir(rank)

    def local_ir(self, rank: int = 0) -> str:
        """The graph of a rank as StableHLO text. E014 for no such rank."""
        return self._planned().local_text(rank)

    def global_ir(self) -> str:
        """The definition as StableHLO text with the layouts it asks for."""
        self._define()
        return self._text()

    def collectives(self) -> list[tuple[str, int, int]]:
        """The collectives of a run: kind, how often, bytes."""
        return self._planned().collectives()

    def _use(self, mesh: DeviceMesh) -> None:
        """E382 for a second mesh."""
        if self._device_mesh is not None and self._device_mesh != mesh._root:
            raise refuse(
                "E382", "a definition on two meshes", expected=repr(self._device_mesh), found=repr(mesh._root),
                help='make one mesh, and name its dimensions: mesh["x"]',
            )  # fmt: skip
        self._device_mesh = mesh._root

    def _keep_whole(self, tensor: Tensor) -> None:
        if tensor not in self._whole:
            self._whole.append(tensor)

    def _producer(self, tensor: Tensor) -> Statement:
        return next(statement for statement in self._statements if tensor in statement.results)

    def _define(self) -> None:
        """Writes the definition and its schedule, once."""
        if not self._is_defined:
            self._is_defined = True
            self.definition()
        if not self._is_scheduled:
            self._is_scheduled = True
            getattr(self, "multigpu_schedule", self.multidevice_schedule)()
        if not self._outputs:
            raise refuse("E382", "a definition without outputs", expected="add_output", found=type(self).__name__)

    def _planned(self) -> _partita.Placed:
        if self._program is None:
            self._define()
            mesh = self._device_mesh or _mesh.create_mesh(1)
            text, inputs = self._text(), [None] * len(self._inputs)
            wanted: list[Any] = [None] * len(self._outputs)
            program = _partita.Placed(text, mesh._native, inputs, wanted)
            for number, (tensor, described) in enumerate(zip(self._outputs, program.outputs())):
                if described[4] and not tensor.is_local:
                    # A global output is complete.
                    wanted[number] = described[3]
            if any(dims is not None for dims in wanted):
                program = _partita.Placed(text, mesh._native, inputs, wanted)
            self._program = program
        return self._program

    def _text(self) -> str:
        return Text(self).text
