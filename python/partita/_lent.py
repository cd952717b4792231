"""Parameters and gradients of PyTorch in the memory of ranks.

A parameter that a rank holds whole (replicated, or on one rank) lies in the memory of that rank: an optimizer that changes
it in place changes what the ranks read, and no pass copies it. Other ranks that hold it too are given it as a pass begins.
A parameter that is sharded, or stored in pieces, stays in memory of PyTorch, and each pass copies it to the ranks. There may
be several programs, for other shapes or modes; a parameter lies in that of the first one that trains.

Gradients are lent too, until the next forward pass, which uses their memory again. It moves those that are still attached
to parameters to memory of PyTorch; if a program still sees others, the pass is run in other memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from partita import _partita
from partita._devices import is_away
from partita._tensors import pack, to_torch


class Occupied(Exception):
    """A pass would overwrite memory of its ranks that someone sees."""

    def __init__(self, by_gradients: bool) -> None:
        super().__init__()
        self.by_gradients = by_gradients


class Homes:
    """Which parameter lies where: by address, the parameter, and whether the program that has the memory trains."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[weakref.ref[Any], bool]] = {}
        self.lock = threading.RLock()

    def lives_in(self, value: Any) -> bool | None:
        """Whether the program in whose memory a parameter lies trains; None if it lies in none."""
        owner, trains = self._at.get(value.data_ptr(), (None, None))
        return trains if owner is not None and owner() is value else None

    def move(self, value: Any, memory: Any, trains: bool) -> None:
        """Moves a parameter, whose value the memory has already."""
        self._at.pop(value.data_ptr(), None)
        value.data = memory
        self._at[memory.data_ptr()] = (weakref.ref(value), trains)

    def evict(self, address: int) -> None:
        """Moves the parameter that lies there, if any, to memory of PyTorch."""
        owner, _ = self._at.pop(address, (None, None))
        value = None if owner is None else owner()
        if value is not None and value.data_ptr() == address:
            value.data = value.detach().clone()


    def forget(self, addresses: Iterable[int]) -> None:
        """The program of these addresses is gone: parameters may move to another."""
        for address in addresses:
            self._at.pop(address, None)


def _is_shared(value: torch.Tensor) -> bool:
    """Whether another tensor sees the memory of a parameter, so that it must stay there."""
    storage = value.untyped_storage()
    # The parameter, and the object that was just made.
    return storage.nbytes() != value.nbytes or bool(torch._C._storage_Use_Count(storage._cdata) > 2)


class Pass:
    """A program in memory, with what it lends."""

    def __init__(self, native: _partita.Executable, trains: bool, homes: Homes) -> None:
        self.native, self.trains, self.homes = native, trains, homes
        self.read = frozenset(native.inputs())
        self.paused: object | None = None
        """Which forward pass the activations belong to."""
        # Where it has parameters; 0 for one that no rank holds whole.
        self._places: dict[str, int] = {}
        # Where the gradients are that were lent.
        self._gradients: set[int] = set()

    def settle(self, name: str, value: Any) -> None:
        """Lets the ranks have a parameter: where it lies, if that is their memory, and otherwise as a copy.

        Raises ``Occupied`` where another tensor lies that cannot be moved.
        """
        place = self._places.get(name)
        if place is not None and not is_away(value) and place == value.data_ptr():
            return
        # In inference mode no parameter could be made of new tensors.
        with self.homes.lock, torch.inference_mode(False), torch.no_grad():
            if place and self.native.is_lent(name):
                self.homes.evict(place)
                if self.native.is_lent(name):
                    raise Occupied(by_gradients=False)
            if is_away(value):
                # Its values are copied for each pass; it stays where it is.
                self.native.set(name, pack(value))
                return
            lent = None if place == 0 or value.numel() == 0 else self.native.lend(name)
            if lent is None:
                self._places[name] = 0
                self.native.set(name, pack(value))
                return
            memory = to_torch(lent, value.is_complex())
            memory.copy_(value.detach())
            self._places[name] = memory.data_ptr()
            lives_in = self.homes.lives_in(value)
            if type(value) is torch.nn.Parameter and not _is_shared(value) and (lives_in is None or (self.trains and not lives_in)):
                self.homes.move(value, memory, self.trains)

    def lending(self, gradients: Iterable[Any]) -> None:
        """These are the gradients that were lent last."""
        self._gradients = {gradient.data_ptr() for gradient in gradients}

    def close(self) -> None:
        """It will not run again."""
        self.homes.forget(self._places.values())

    def release(self, module: torch.nn.Module) -> None:
        """Moves gradients that a pass would overwrite, and that are attached to parameters, to memory of PyTorch.

        Raises ``Occupied`` if someone sees others.
        """
        if not self.trains or not self.native.is_lent():
            return
        for value in module.parameters():
            if value.grad is not None and not is_away(value.grad) and value.grad.data_ptr() in self._gradients:
                value.grad.data = value.grad.detach().clone()
        if self.native.is_lent():
            raise Occupied(by_gradients=True)
