"""The environment of a program in Slapo's language: starts ``torch.distributed``.

All ranks of a mesh run in this process. With one rank the process group is a real one; with several it is PyTorch's fake
group, which answers ``get_rank()`` and ``get_world_size()`` and moves no data: Partita moves it.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from partita._error import refuse


def setup(rank: int = 0, world_size: int = 1, backend: str = "gloo") -> None:
    """Starts ``torch.distributed`` with ``world_size`` ranks, which all run in this process. A schedule that is created
    later shards over a mesh ``tp=world_size`` unless it is given another one.

    Does nothing if a process group exists. Raises ``PartitaError``: E393 for a rank other than 0, or under a launcher.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if rank != 0 or launched > 1:
        raise refuse(
            "E393",
            "all ranks run in one process",
            expected="rank 0, without a launcher",
            found=f"rank {rank} of {max(world_size, launched)}",
            help="run the script once, with python",
        )
    if dist.is_initialized():
        return
    if world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        # A private name of PyTorch, tried with 2.15.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def world_size() -> int:
    """The ranks that ``setup`` announced; 1 before it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
