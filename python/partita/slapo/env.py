"""The environment of a program in Slapo's language: starts ``torch.distributed``.

By default all ranks of a mesh run in this process. With one rank the process group is a real one; with several it is
PyTorch's fake group, which answers ``get_rank()`` and ``get_world_size()`` and moves no data: Partita moves it. Under
``python -m partita.launch`` each process is a rank, and the group is a real one.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from partita import _partita
from partita._error import refuse


def setup(rank: int | None = None, world_size: int | None = None, backend: str = "gloo") -> None:
    """Starts ``torch.distributed`` with ``world_size`` ranks, which all run in this process; 1 by default. Under
    ``python -m partita.launch`` it joins the other processes. A schedule that is created later shards over a mesh
    ``tp=world_size`` unless it is given another one.

    Does nothing if a process group exists. Raises ``PartitaError``: E393 for a place that is not this process's.
    """
    place = (0, world_size or 1)
    if "PARTITA_LAUNCH" in os.environ:
        place = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    check_place(place[0] if rank is None else rank, place[1] if world_size is None else world_size)
    if dist.is_initialized():
        return
    if "PARTITA_LAUNCH" in os.environ:
        # nccl and others have no devices here.
        dist.init_process_group("gloo")
    elif place[1] == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        # A private name of PyTorch, tried with 2.15.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=place[1])


def check_place(rank: int, world_size: int) -> None:
    """E393 unless this process is that rank of so many: rank 0 of any number, or what a launcher says."""
    found = f"rank {rank} of {world_size}"
    if "PARTITA_LAUNCH" in os.environ:
        expected = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        if found != expected:
            raise refuse("E393", "the launcher gave this process another place", expected=expected, found=found)
        return
    _partita.check_alone()
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if rank != 0 or launched > 1:
        raise refuse(
            "E393",
            "all ranks run in one process",
            expected="rank 0, without a launcher or under python -m partita.launch",
            found=f"rank {rank} of {max(world_size, launched)}",
            help="run the script once, with python; or with python -m partita.launch -n N",
        )


def world_size() -> int:
    """The ranks that ``setup`` announced; 1 before it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
