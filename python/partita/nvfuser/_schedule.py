"""``multidevice_schedule``: layouts of tensors that a definition has already, and copies to give layouts to."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from partita._error import refuse
from partita.distributed.device_mesh import DeviceMesh
from partita.nvfuser._value import Layout, Statement, Tensor

if TYPE_CHECKING:
    from partita.nvfuser._definition import FusionDefinition


class ParallelType(enum.Enum):
    """The first, second and third dimension of the mesh of a tensor; ``serial`` is none."""

    mesh_x = 0
    mesh_y = 1
    mesh_z = 2
    serial = -1


class LoadStoreOpType(enum.Enum):
    """What a copy does: ``scatter`` from a whole tensor, ``gather`` into one, ``set`` neither."""

    set = "set"
    scatter = "scatter"
    gather = "gather"


class Scheduler:
    """The schedule of a definition: ``self.sched`` in ``multidevice_schedule``."""

    def __init__(self, fd: FusionDefinition) -> None:
        self._fd = fd

    def _set_device_mesh(self, tensor: Tensor, mesh: DeviceMesh) -> None:
        """Gives a tensor a mesh; it is replicated until ``parallelize`` splits it. E382 if the definition has another."""
        self._own(tensor)
        self._fd._use(mesh)
        tensor._mesh = mesh
        tensor._annotation = Layout(((),) * tensor.ndim, is_open=mesh._root != mesh, replicated=mesh._axes)

    set_device_mesh = _set_device_mesh

    def parallelize(self, tensor: Tensor, axis: int, parallel_type: ParallelType) -> None:
        """Splits dimension ``axis`` of a tensor over a dimension of its mesh, after those that split it already.

        Raises ``PartitaError``: E382 for a tensor without a mesh, a dimension that there is not, or a mesh dimension that
        splits the tensor already.
        """
        self._own(tensor)
        if tensor._mesh is None or tensor._annotation is None:
            raise refuse("E382", "a tensor without a mesh", expected="_set_device_mesh first", found=repr(tensor))
        if not -tensor.ndim <= axis < tensor.ndim:
            raise refuse(
                "E382", f"no dimension {axis}", expected=f"a dimension of {list(tensor.shape)}", found=repr(tensor)
            )
        if parallel_type is ParallelType.serial:
            return
        if parallel_type.value >= tensor._mesh.ndim:
            raise refuse(
                "E382", f"no mesh dimension {parallel_type.name}", expected=repr(tensor._mesh), found=parallel_type.name
            )
        name = tensor._mesh._axes[parallel_type.value]
        before = tensor._annotation
        if name not in before.replicated:
            raise refuse(
                "E382",
                f"{parallel_type.name} splits a tensor twice",
                expected="another dimension of the mesh",
                found=f"{name} in {list(map(list, before.dims))}",
            )
        dims = list(before.dims)
        dims[axis] = (*dims[axis], name)
        rest = tuple(other for other in before.replicated if other != name)
        tensor._annotation = Layout(tuple(dims), before.is_open, rest)

    def cache_after(self, tensor: Tensor, op_type: LoadStoreOpType = LoadStoreOpType.set) -> Tensor:
        """A copy of a tensor, which its readers read instead. With ``scatter``, the tensor itself is whole on every rank."""
        self._own(tensor)
        if op_type is LoadStoreOpType.scatter:
            self._fd._keep_whole(tensor)
        made = Tensor(self._fd, tensor.shape, tensor.dtype, tensor._spec, tensor.is_local)
        for statement in self._fd._statements:
            statement.operands = [made if operand is tensor else operand for operand in statement.operands]
        self._fd._statements.append(Statement([made], [tensor]))
        return made

    def cache_before(self, tensor: Tensor, op_type: LoadStoreOpType = LoadStoreOpType.set) -> Tensor:
        """What computes a tensor computes the copy that is returned, and the tensor is a copy of it. With ``gather``, the
        tensor itself is whole on every rank. E382 for an input."""
        self._own(tensor)
        producer = self._fd._producer(tensor)
        if not producer.operands and producer.function is None:
            raise refuse("E382", "an input has no producer", expected="cache_after", found=repr(tensor))
        if op_type is LoadStoreOpType.gather:
            self._fd._keep_whole(tensor)
        made = Tensor(self._fd, tensor.shape, tensor.dtype, tensor._spec, tensor.is_local)
        producer.results = [made if result is tensor else result for result in producer.results]
        self._fd._statements.append(Statement([tensor], [made]))
        return made

    cacheAfter, cacheBefore = cache_after, cache_before

    def all_tensors(self) -> list[Tensor]:
        """Every tensor of the definition, in the order in which they were made."""
        return list(self._fd._tensors)

    def __getattr__(self, name: str) -> Any:
        """Only for names that there are not."""
        raise AttributeError(
            f"a schedule has no `{name}`: it says where tensors are, with _set_device_mesh, parallelize, cache_after and "
            "cache_before; loops inside a kernel are chosen by the engine"
        )

    def _own(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor) or tensor._fd is not self._fd:
            raise refuse("E382", "a tensor of another definition", expected="a tensor of this one", found=repr(tensor))
