"""Distributed tensors: the tensors of all ranks as one tensor of PyTorch.

``__torch_function__`` gives every function of PyTorch to the planner, with the gradients of Partita's own differentiation.
``__torch_dispatch__`` does the same for the ops that autograd and optimizers call below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from partita import _partita
from partita._devices import brought
from partita._error import refuse
from partita._function import Arguments, Function, cut, joined
from partita.distributed.device_mesh import DeviceMesh
from partita.distributed.tensor import _run
from partita.distributed.tensor._placement import Partial, Placement, Replicate, Shard, checked
from partita.distributed.tensor._run import Locals, Spec

__all__ = ["DTensor", "distribute_tensor"]

# Functions of a tensor as an object of Python: attributes, autograd, and what needs no values.
_PLAIN = {
    "__get__", "__set__", "__delete__", "__hash__", "__repr__", "backward", "detach", "dim", "element_size", "is_complex",
    "is_contiguous", "is_floating_point", "is_signed", "ndimension", "nelement", "numel", "register_hook", "requires_grad_",
    "register_post_accumulate_grad_hook", "retain_grad", "size", "storage_offset", "stride",
}  # fmt: skip

# Operators in place. They are ops below, as the methods in place whose names end in `_` are.
_IN_PLACE = {"__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"}

# Functions that read values: they are given whole tensors.
_VALUES = {"__bool__", "__complex__", "__float__", "__format__", "__index__", "__int__", "allclose", "equal", "item", "numpy",
           "tolist"}  # fmt: skip


# Functions that bring a tensor to another device.
_MOVING = {"cpu", "cuda", "to", "xpu"}


class DTensor(torch.Tensor):
    """A tensor of PyTorch that the ranks of a mesh hold in parts; its shape is global.

    Made by ``distribute_tensor`` and ``DTensor.from_local``, and by functions of PyTorch on others.
    """

    _spec: Spec
    _locals: Locals

    @staticmethod
    def __new__(cls: type[DTensor], locals: Locals, spec: Spec, requires_grad: bool = False) -> DTensor:
        made: DTensor = torch.Tensor._make_wrapper_subclass(
            cls, spec.shape, dtype=spec.dtype, device=locals[0].device, requires_grad=requires_grad
        )
        made._locals, made._spec = locals, spec
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor | Sequence[torch.Tensor],
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> DTensor:
        """A distributed tensor from the tensors of all ranks, one for each, or from a global tensor.

        ``shape`` is the global shape, where the ranks' shapes do not say it. With ``run_check``, copies that should be equal
        are compared. Raises ``PartitaError``: E380 for another number of tensors than ranks, and for other parts than
        Partita's, which are as even as possible.
        """
        given = [local_tensor] if isinstance(local_tensor, torch.Tensor) else list(local_tensor)
        if not given:
            raise refuse("E380", "a rank without a tensor", expected="one tensor for each rank", found="none")
        if any(isinstance(tensor, DTensor) for tensor in given):
            raise refuse("E381", "a tensor is distributed already", expected="plain tensors", found="DTensor")
        places = checked(placements, device_mesh, given[0].dim())
        if isinstance(local_tensor, torch.Tensor):
            spec = Spec(device_mesh, places, tuple(local_tensor.shape), local_tensor.dtype)
            return _applied(_FromGlobal, local_tensor, spec)
        spec = _spec_of(given, device_mesh, places, shape)
        if run_check:
            _check_copies(given, spec)
        return _applied(_FromLocals, spec, *given)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> list[torch.Tensor]:
        """The tensors of all ranks, in their order.

        A gradient is the sum of those of the copies, so ``grad_placements`` has no effect.
        """
        return list(_ToLocals.apply(self))

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """The whole tensor, gathered and complete."""
        whole: torch.Tensor = _ToGlobal.apply(self)
        return whole

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
    ) -> DTensor:
        """The same tensor in another layout, by the collectives that cost least.

        Raises ``PartitaError``: E380 for a layout that does not fit, and from Shard or Replicate to Partial; E381 for
        another mesh.
        """
        if device_mesh is not None and device_mesh != self._spec.mesh:
            raise _other_mesh(self._spec.mesh, device_mesh)
        return _applied(_Redistribute, self, checked(placements, self._spec.mesh, self.dim()))

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The layout: a placement for each dimension of the mesh."""
        return self._spec.placements

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        local = self._locals[0]
        return f"DTensor(local_tensor={local}, device_mesh={self._spec.mesh}, placements={self._spec.placements})"

    def __deepcopy__(self, memo: Any) -> DTensor:
        return DTensor([local.clone() for local in self._locals], self._spec, self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return DTensor, (self._locals, self._spec, self.requires_grad)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _VALUES:
            leaves, tree = pytree.tree_flatten((args, kwargs or {}))
            whole = [leaf.full_tensor() if isinstance(leaf, DTensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(whole, tree)
            return func(*args, **kwargs)
        if (name in _MOVING or name == torch._C._get_privateuse1_backend_name()) and isinstance(args[0], DTensor):
            return _moved_to(func, args[0], args[1:], kwargs or {})
        if name in _PLAIN or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _called(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return DTensor(args[0]._locals, args[0]._spec)
        if func._schema.is_mutable:
            return _changed(func, args, kwargs or {})
        return _called(func, args, kwargs or {}, is_differentiated=False)


def distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> DTensor:
    """A leaf with the values of a plain tensor, split or replicated over a mesh; replicated by default.

    Raises ``PartitaError``: E380 for a layout that does not fit or is partial, E381 for a tensor that is distributed already.
    """
    if isinstance(tensor, DTensor):
        raise refuse("E381", "a tensor is distributed already", expected="a plain tensor", found="DTensor",
                     help="call redistribute")  # fmt: skip
    places = checked(placements, device_mesh, tensor.dim())
    spec = Spec(device_mesh, places, tuple(tensor.shape), tensor.dtype)
    if spec.partial:
        raise refuse("E380", "a tensor is not distributed into terms", expected="Shard or Replicate", found=repr(places))
    return DTensor(cut(tensor.detach(), spec.parts), spec, tensor.requires_grad)


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> DTensor:
    made: DTensor = function.apply(*arguments)
    return made


def _other_mesh(expected: DeviceMesh, found: DeviceMesh) -> Exception:
    return refuse("E381", "tensors on different meshes", expected=repr(expected), found=repr(found))


def _spec_of(
    locals: Locals, mesh: DeviceMesh, placements: tuple[Placement, ...], shape: Sequence[int] | None
) -> Spec:
    """The global tensor of these parts."""
    sizes = mesh._root._shape
    ranks = range(mesh._root.size())
    if len(locals) != len(ranks):
        raise refuse(
            "E380", "a rank without a tensor", expected=f"{len(ranks)} tensors, one for each rank", found=str(len(locals))
        )
    if len({(tensor.dim(), tensor.dtype) for tensor in locals}) > 1:
        kinds = ", ".join(sorted({f"{tensor.dtype}{list(tensor.shape)}" for tensor in locals}))
        raise refuse("E380", "the ranks' tensors do not fit together", expected="one element type and rank", found=kinds)
    if shape is None:
        # Along a dimension the parts follow each other over the axes that split it.
        coordinates = [_coordinates(rank, sizes) for rank in ranks]
        found = list(locals[0].shape)
        for dim in range(locals[0].dim()):
            axes = {axis for axis, place in zip(mesh._axes, placements) if place == Shard(dim)}
            fixed = [number for number, axis in enumerate(mesh._root._axes) if axis not in axes]
            found[dim] = sum(
                local.shape[dim] for local, place in zip(locals, coordinates) if all(place[number] == 0 for number in fixed)
            )
        shape = found
    spec = Spec(mesh, placements, tuple(shape), locals[0].dtype)
    expected = [list(extent) for _, extent in spec.parts]
    if expected != [list(local.shape) for local in locals]:
        raise refuse(
            "E380",
            "the ranks' tensors are not the parts of one tensor",
            expected=f"{expected} for shape {list(spec.shape)}",
            found=str([list(local.shape) for local in locals]),
        )
    return spec


def _coordinates(rank: int, sizes: Sequence[int]) -> list[int]:
    found = []
    for size in reversed(sizes):
        rank, place = divmod(rank, size)
        found.append(place)
    return found[::-1]


def _check_copies(locals: Locals, spec: Spec) -> None:
    if spec.partial:
        return
    value = joined(locals, spec.parts, spec.shape)
    for rank, (found, expected) in enumerate(zip(locals, cut(value, spec.parts))):
        if not torch.equal(found, expected):
            raise refuse("E380", "copies of one tensor differ between ranks", expected="equal copies", found=f"rank {rank}")


def _terms_of(tensor: torch.Tensor, spec: Spec) -> Locals:
    """The parts of a global tensor: of a sum, the first rank has all of it, and the others have nothing."""
    sizes, axes = spec.mesh._root._shape, spec.mesh._root._axes
    locals = cut(tensor, spec.parts)
    for axis, _, operation in spec.partial:
        number = axes.index(axis)
        if operation in ("sum", "product"):
            nothing = 0 if operation == "sum" else 1
            for rank, local in enumerate(locals):
                if _coordinates(rank, sizes)[number] != 0:
                    local.fill_(nothing)
    return locals


def _called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_differentiated: bool = True) -> Any:
    """A function of distributed tensors."""
    name = getattr(func, "__name__", type(func).__name__)
    leaves = pytree.tree_leaves((args, kwargs))
    mesh = next(leaf._spec.mesh for leaf in leaves if isinstance(leaf, DTensor))
    arguments = Arguments(args, kwargs, lambda leaf: _distributed(leaf, mesh, name))
    tensors: list[DTensor] = arguments.tensors
    is_differentiated = is_differentiated and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if is_differentiated:
        # Gradients belong to values, not to terms.
        tensors = [_completed(tensor) if tensor._spec.partial else tensor for tensor in tensors]

    def call(*values: torch.Tensor) -> Any:
        own_args, own_kwargs = arguments.filled(values)
        return func(*own_args, **own_kwargs)

    key = (func, arguments.key)
    plan = _run.function_plan(key, call, name, [tensor._spec for tensor in tensors])
    if is_differentiated:
        found = list(_Apply.apply(plan, key, *tensors))
    else:
        found = _results(plan, tensors)
    return plan.function.returned(found)


def _moved_to(func: Any, tensor: DTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DTensor:
    """A function that brings a tensor to another device, or to the type of another one: what it does to an empty tensor."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    plain = [leaf._locals[0].new_empty(0) if isinstance(leaf, DTensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(plain, tree)
    wanted = func(tensor._locals[0].new_empty(0), *args, **kwargs)
    if wanted.device != tensor.device:
        tensor = _applied(_Moved, tensor, wanted.device)
    found: DTensor = tensor if wanted.dtype == tensor.dtype else _called(torch.Tensor.to, (tensor, wanted.dtype), {})
    return found


class _Moved(torch.autograd.Function):
    """The same tensor on another device."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor, device: torch.device) -> DTensor:
        ctx.device = tensor.device
        return DTensor([local.to(device) for local in tensor._locals], tensor._spec)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: DTensor) -> tuple[Any, None]:
        return DTensor([local.to(ctx.device) for local in cotangent._locals], cotangent._spec), None


def _distributed(leaf: Any, mesh: DeviceMesh, name: str) -> DTensor | None:
    """An argument as a tensor on a mesh; None for a constant."""
    if isinstance(leaf, DTensor):
        if leaf._spec.mesh != mesh:
            raise _other_mesh(mesh, leaf._spec.mesh)
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return None
    if leaf.dim() > 0:
        raise refuse(
            "E381",
            f"`{name}` of a plain tensor and a distributed one",
            expected="distributed tensors",
            found=f"a plain tensor of shape {list(leaf.shape)}",
            help="call distribute_tensor",
        )
    return distribute_tensor(leaf, mesh)


def _completed(tensor: DTensor) -> DTensor:
    return tensor.redistribute(placements=tensor._spec.complete().placements)


def _results(plan: _run.Planned, tensors: Sequence[DTensor]) -> list[DTensor]:
    found = plan.run([_run.stacked(tensor._locals, tensor._spec) for tensor in tensors])
    return [DTensor(locals, spec) for locals, spec in zip(found, plan.outputs)]


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op in place: the value of the first argument is replaced; its layout stays."""
    target = args[0]
    if not isinstance(target, DTensor) or "out" in kwargs:
        raise refuse("E381", f"`{func}` writes into a plain tensor or a list", expected="an op in place on a DTensor",
                     found=type(target).__name__, help="use the form that returns its result")  # fmt: skip

    found = _called(_InPlace(func), args, kwargs, is_differentiated=False)
    locals = _run.moved(found._locals, found._spec, target._spec)
    for old, new in zip(target._locals, locals):
        old.copy_(new)
    return target


class _InPlace:
    """An op in place as a function of its arguments."""

    def __init__(self, op: Any) -> None:
        self.op, self.__name__ = op, str(op)

    def __call__(self, target: torch.Tensor, /, *rest: Any, **named: Any) -> Any:
        return self.op(target.clone(), *rest, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InPlace) and self.op == other.op

    def __hash__(self) -> int:
        return hash(self.op)


class _Apply(torch.autograd.Function):
    """A planned function; its backward pass is a planned program too."""

    @staticmethod
    def forward(ctx: Any, plan: _run.Planned, key: Any, *tensors: DTensor) -> tuple[DTensor, ...]:
        ctx.plan, ctx.key = plan, key
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        # The cotangent of a partial result is complete on every rank.
        found = _results(plan, tensors)
        ctx.mark_non_differentiable(*[value for value in found if not value.is_floating_point()])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: DTensor | None) -> tuple[Any, ...]:
        plan, tensors = ctx.plan, ctx.saved_tensors
        seeded = [number for number, cotangent in enumerate(cotangents) if cotangent is not None]
        wanted = [number for number, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        specs = [tensor._spec for tensor in tensors]
        seeds = [plan.outputs[number].complete() for number in seeded]

        def function() -> Function:
            text = _partita.vjp(plan.function.text, seeded, wanted)
            inputs, outputs = plan.function.inputs, plan.function.outputs
            types = (*inputs, *[outputs[number] for number in seeded])
            return Function(text, types, tuple(inputs[number] for number in wanted), list)

        inputs = [spec.terms() for spec in [*specs, *seeds]]
        outputs = [specs[number].dims for number in wanted]
        gradient = _run.planned(plan.mesh, ("vjp", ctx.key, *seeded, -1, *wanted), function, inputs, outputs)
        given = [tensor._locals for tensor in tensors]
        for number, seed in zip(seeded, seeds):
            cotangent = cotangents[number]
            assert cotangent is not None
            given.append(_run.moved(cotangent._locals, cotangent._spec, seed))
        found = iter(gradient.run(given))
        gradients = [
            DTensor([brought(local, tensor.device) for local in next(found)], tensor._spec) if number in wanted else None
            for number, tensor in enumerate(tensors)
        ]
        return (None, None, *gradients)


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: DTensor, placements: tuple[Placement, ...]) -> DTensor:
        before = tensor._spec
        ctx.before = before.complete()
        after = Spec(before.mesh, placements, before.shape, before.dtype)
        return DTensor(_run.moved(tensor._locals, before, after), after)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: DTensor) -> tuple[Any, None]:
        return DTensor(_run.moved(cotangent._locals, cotangent._spec, ctx.before), ctx.before), None


def _whole(tensor: DTensor) -> torch.Tensor:
    spec = tensor._spec
    replicated = Spec(spec.mesh, (Replicate(),) * spec.mesh.ndim, spec.shape, spec.dtype)
    return _run.moved(tensor._locals, spec, replicated)[0].clone()


class _ToGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> torch.Tensor:
        ctx.spec = tensor._spec.complete()
        return _whole(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> DTensor:
        return DTensor(cut(cotangent, ctx.spec.parts), ctx.spec)


class _FromGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, spec: Spec) -> DTensor:
        return DTensor(_terms_of(tensor, spec), spec)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: DTensor) -> tuple[torch.Tensor, None]:
        return _whole(cotangent), None


def _first_copies(spec: Spec) -> list[int]:
    """For each rank the first one that holds the same elements: that at the beginning of the replicated axes."""
    sizes = spec.mesh._root._shape
    places = dict(zip(spec.mesh._axes, spec.placements))
    first = []
    for rank in range(spec.mesh._root.size()):
        number = 0
        for axis, size, place in zip(spec.mesh._root._axes, sizes, _coordinates(rank, sizes)):
            is_copied = isinstance(places.get(axis, Replicate()), Replicate)
            number = number * size + (0 if is_copied else place)
        first.append(number)
    return first


class _ToLocals(torch.autograd.Function):
    """The gradient of a value that ranks have copies of is the sum of the copies' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> tuple[torch.Tensor, ...]:
        ctx.spec = tensor._spec
        return tuple(local.clone() for local in tensor._locals)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor) -> DTensor:
        sums: dict[int, torch.Tensor] = {}
        first = _first_copies(ctx.spec)
        for number, cotangent in zip(first, cotangents):
            sums[number] = sums[number] + cotangent if number in sums else cotangent
        return DTensor([sums[number].clone() for number in first], ctx.spec.complete())


class _FromLocals(torch.autograd.Function):
    """Of copies, the first one is the value; of terms of a sum, each has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, *locals: torch.Tensor) -> DTensor:
        ctx.spec = spec
        return DTensor([local.detach().clone() for local in locals], spec)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: DTensor) -> tuple[Any, ...]:
        weight = 1.0
        for _, size, operation in ctx.spec.partial:
            if operation not in ("sum", "avg"):
                raise refuse("E381", f"terms of a {operation} have no gradient", expected="Partial() or Partial('avg')",
                             found=repr(ctx.spec.placements))  # fmt: skip
            weight /= size if operation == "avg" else 1
        whole = _run.moved(cotangent._locals, cotangent._spec, ctx.spec.complete())
        copies = enumerate(zip(_first_copies(ctx.spec), whole))
        return None, *[local * weight if number == rank else torch.zeros_like(local) for rank, (number, local) in copies]
