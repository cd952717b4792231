"""A process of ``python -m partita.launch``: it tells the launcher of an error at once, and compares with the other
processes what all must have in common.

Both go through files in the folder of the launch. An interpreter that has failed may take many seconds to end, so that the
launcher would learn of it too late from its end alone.
"""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from partita._error import refuse
from partita._partita import PartitaError

if TYPE_CHECKING:
    from partita._tensors import Packed

# What a process is refused because another one has gone.
_SECONDARY = ("E418", "E443", "E447")
# A record of what was compared: what it is and its sum, both in hexadecimal.
_RECORD = 18


def report_of(folder: str, rank: int) -> pathlib.Path:
    """The file in which a process says that it has failed: empty for a reason of its own, a traceback for another's."""
    return pathlib.Path(folder) / f"python-failed-{rank}"


class Place:
    """Which process of a launch this one is."""

    def __init__(self, text: str) -> None:
        numbers, self.folder = text.split(":", 1)
        self.rank, self.count = (int(number) for number in numbers.split("/"))
        self._records = 0

    def tell_errors(self) -> None:
        """From now on an exception that ends this process is told to the launcher."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            text = ""
            if isinstance(error, PartitaError) and error.code in _SECONDARY:
                text = "".join(traceback.format_exception(kind, error, trace))
            else:
                before(kind, error, trace)
            if not isinstance(error, KeyboardInterrupt):
                sys.stdout.flush()
                sys.stderr.flush()
                self._tell(text)

        sys.excepthook = hook

    def _tell(self, text: str) -> None:
        report = report_of(self.folder, self.rank)
        try:
            # Whole, or not there.
            part = report.with_suffix(".part")
            part.write_text(text)
            part.rename(report)
        except OSError:
            # The launcher has gone, and its folder with it.
            pass

    def compare(self, what: str, tensors: Iterable[tuple[str, Packed]]) -> None:
        """E395 if another process has other tensors at this place of its program. Does not wait: of two processes that
        differ, the later one is told."""
        total = 0
        for name, (dtype, shape, data) in tensors:
            total = zlib.crc32(f"{name} {dtype} {shape}".encode(), total)
            total = zlib.crc32(data.data, total)
        own = f"{zlib.crc32(what.encode()):08x} {total:08x}\n".encode()
        place, self._records = self._records * _RECORD, self._records + 1
        with open(self._sums(self.rank), "ab") as file:
            file.write(own)
        for rank in range(self.count):
            if rank == self.rank or not self._sums(rank).exists():
                continue
            with open(self._sums(rank), "rb") as file:
                file.seek(place)
                other = file.read(_RECORD)
            if len(other) == _RECORD and other != own:
                raise refuse(
                    "E395",
                    f"processes {min(rank, self.rank)} and {max(rank, self.rank)} of the launch have different {what}",
                    expected="the same in every process: a plain tensor is global, and each process has all of it",
                    found="other values" if other[:8] == own[:8] else "another step of the program",
                    help="call torch.manual_seed(0) before the model and the inputs are made, and read the same data in "
                    "the same order; or run without the launcher",
                )

    def _sums(self, rank: int) -> pathlib.Path:
        return pathlib.Path(self.folder) / f"python-sums-{rank}"


_PLACE = Place(os.environ["PARTITA_LAUNCH"]) if "PARTITA_LAUNCH" in os.environ else None
_CHECKS_INPUTS = os.environ.get("PARTITA_CHECK", "0") not in ("", "0")


def start() -> None:
    """What the package does when it is imported."""
    if _PLACE is not None:
        _PLACE.tell_errors()


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process runs all ranks of a plan by itself, whatever has started it."""
    global _PLACE
    names = ("PARTITA_LAUNCH", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    place, _PLACE = _PLACE, None
    try:
        yield
    finally:
        _PLACE = place
        os.environ.update(hidden)


def is_launched() -> bool:
    """Whether other processes run the same program."""
    return _PLACE is not None


def checks_inputs() -> bool:
    """Whether inputs are compared too: in a launched process with ``PARTITA_CHECK=1``."""
    return _PLACE is not None and _CHECKS_INPUTS


def compare(what: str, tensors: Iterable[tuple[str, Packed]]) -> None:
    """See ``Place.compare``; nothing in a process that is alone."""
    if _PLACE is not None:
        _PLACE.compare(what, tensors)
