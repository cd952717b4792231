"""The values in a module beside its trainer. Steps change those on the ranks, and leave the module as it is.

Values that a program gives the module are noticed by the version counters and places of tensors, and by some elements of each:
``value.data`` and arrays of NumPy over the same memory have no counters. So a change of single elements in such ways may go
unseen; a change of a whole tensor is seen.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from partita._devices import is_away
from partita._error import refuse
from partita._tensors import pack
from partita._told import warn
from partita._watched import Tree, has_memory

# How many elements of a tensor are looked at in each step, about.
_ELEMENTS = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_VERSION = operator.attrgetter("_version")


class _Value:
    """A tensor as it was seen."""

    def __init__(self, tensor: torch.Tensor, digest: bytes | None = None) -> None:
        self.tensor, self.digest = tensor, digest or _digest(tensor)
        self.version, self.pointer, self.elements = tensor._version, tensor.data_ptr(), _elements(tensor)
        self.seen = self.elements.tobytes()

    def is_untouched(self, tensor: torch.Tensor) -> bool:
        """Whether nothing speaks for other values in it."""
        is_same = tensor is self.tensor and tensor._version == self.version and tensor.data_ptr() == self.pointer
        return is_same and self.elements.tobytes() == self.seen


def _digest(tensor: torch.Tensor) -> bytes:
    kind, shape, values = pack(tensor)
    return hashlib.blake2b(values.data, digest_size=16, person=kind.encode()).digest() + repr(shape).encode()


def _elements(tensor: torch.Tensor) -> memoryview:
    """Some elements, in the memory of the tensor."""
    value = tensor.detach()
    integer = _INTEGERS.get(value.element_size())
    if integer is None or is_away(value) or not has_memory(value):
        return memoryview(b"")
    value = value.view(-1)[:: max(1, value.numel() // _ELEMENTS)] if value.is_contiguous() else value[(0,) * value.dim()]
    return value.view(integer).numpy().data


# When optimizers of PyTorch have taken their last step, in the count of all of their steps.
_STEPPED: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
_COUNT = itertools.count(1)
_HOOKED: list[Any] = []


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _STEPPED[optimizer] = next(_COUNT)


class Values:
    """The values of a module as its trainer has seen them last."""

    def __init__(self, module: torch.nn.Module, names: Iterable[str], tree: Tree) -> None:
        if not _HOOKED:
            _HOOKED.append(register_optimizer_step_post_hook(_stepped))
        self._module, self._has_warned = module, False
        self._steps = max(_STEPPED.values(), default=0)
        # Names of values that steps have changed since the module had those of the ranks.
        self._behind: set[str] = set()
        self._last: Any = None
        self._values: dict[str, _Value] = {}
        self._tree: Tree | None = None
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._elements: list[memoryview] = []
        self._seen: list[bytes] = []
        self._look(names, tree)

    def _look(self, names: Iterable[str], tree: Tree) -> dict[str, _Value]:
        """The values that are others than those that were seen. Of new names, the values are those of the ranks."""
        if tree is self._tree:
            is_same = [*map(_VERSION, self._tensors)] == self._versions
            if is_same and [*map(memoryview.tobytes, self._elements)] == self._seen:
                return {}
        tensors: dict[str, torch.Tensor] = dict(self._module.named_parameters(remove_duplicate=False))
        tensors |= dict(self._module.named_buffers(remove_duplicate=False))
        found: dict[str, _Value] = {}
        for name in names:
            known, tensor = self._values.get(name), tensors.get(name)
            if tensor is None or (known is not None and known.is_untouched(tensor)):
                continue
            now = _Value(tensor)
            if known is not None and known.digest != now.digest:
                found[name] = now
            else:
                self._values[name] = now
        if not found:
            values = list(self._values.values())
            self._tree, self._tensors, self._elements = tree, [v.tensor for v in values], [v.elements for v in values]
            self._versions, self._seen = [v.version for v in values], [v.seen for v in values]
        return found

    def take(self, names: Iterable[str], tree: Tree, ranks: Any) -> None:
        """Gives the ranks what a program has put into the module. E399 for values that were put over old ones, while those of
        the ranks have been trained; for steps of an optimizer of PyTorch, and for buffers, which passes of the module change, a
        warning."""
        found = self._look(names, tree)
        if not found:
            return
        other = {name: value for name, value in found.items() if not _is_equal(value.tensor, ranks.get(name))}
        lost = [name for name in other if name in self._behind]
        own = [name for name in lost if not self._is_passing(other[name].tensor)]
        if own:
            raise refuse(
                "E399",
                f"values of {type(self._module).__name__} were changed, while those that its trainer trains are on the ranks",
                at=own[0],
                expected="the values that the module had before, or those of the trainer",
                found=f"other values in {', '.join(own[:4])}" + (f" and {len(own) - 4} more" if len(own) > 4 else ""),
                help="trainer.load_state_dict(module.state_dict()) trains on from these; "
                "module.load_state_dict(trainer.state_dict()) goes back to those of the trainer",
            )
        if lost and not self._has_warned:
            self._has_warned = True
            kind = type(self._module).__name__
            warn(
                f"{kind} trains beside its trainer: {lost[0]} was changed by an optimizer of PyTorch, or by a pass of {kind}. "
                "The values that the trainer trains are on its ranks, and stay: trainer.state_dict() has them"
            )
        for name, value in other.items():
            if name not in lost:
                ranks.set(name, pack(value.tensor))
        self._behind -= found.keys() - set(lost)
        self._last = None
        self._values |= found
        self._steps = max(_STEPPED.values(), default=0)
        self._look(names, tree)

    def _is_passing(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may have changed because the module was trained by PyTorch since the last look."""
        if not isinstance(tensor, torch.nn.Parameter):
            return True
        stepped = [optimizer for optimizer, count in _STEPPED.items() if count > self._steps]
        groups = [group["params"] for optimizer in stepped for group in optimizer.param_groups]
        return any(value is tensor for group in groups for value in group)

    def fall_behind(self, names: Iterable[str]) -> None:
        """The ranks have other values of these names now."""
        if names is not self._last:
            self._behind.update(names)
            self._last = names


def _is_equal(tensor: torch.Tensor, packed: Any) -> bool:
    kind, shape, values = pack(tensor)
    return kind == packed[0] and shape == list(packed[1]) and bool((values == packed[2]).all())
