"""Fully sharded data parallelism of modules, as in ``torch.distributed.fsdp``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from partita._error import refuse
from partita.distributed._declared import Line, declare, lines_of
from partita.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    import torch

__all__ = ["fully_shard"]


def fully_shard(
    module: torch.nn.Module,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    **policies: Any,
) -> torch.nn.Module:
    """Shards the parameters, gradients and rows of the batch of a module over a mesh dimension, in place; returns it.

    Without a mesh, all of ``WORLD_SIZE`` ranks. ``reshard_after_forward=False`` keeps gathered parameters until the backward
    pass; by default the outermost module keeps them and others do not, as in PyTorch.

    Raises ``PartitaError``: E380 for a mesh of several dimensions, no mesh, a policy, or a second call for a module; E381 for another mesh than that of
    an earlier call.
    """
    set_policies = {name: policy for name, policy in policies.items() if policy is not None}
    if set_policies or isinstance(reshard_after_forward, int) and not isinstance(reshard_after_forward, bool):
        raise refuse(
            "E380",
            "fully_shard does not know this policy",
            expected="mesh, and reshard_after_forward as True or False",
            found=", ".join(set_policies) or f"reshard_after_forward={reshard_after_forward}",
            help="a plan line `precision(bf16)` sets the type in which modules compute",
        )
    if mesh is None:
        ranks = os.environ.get("WORLD_SIZE", "")
        if not ranks.isdecimal():
            raise refuse("E380", "fully_shard does not know how many ranks there are", expected="mesh=, or WORLD_SIZE")
        mesh = init_device_mesh("cpu", (int(ranks),))
    if mesh.ndim != 1:
        raise refuse(
            "E380",
            "a module is sharded over one dimension of a mesh",
            expected='a mesh of one dimension, such as mesh["dp"]',
            found=repr(mesh),
        )
    (axis,) = mesh._axes
    if any(line.style == "fsdp" and not line.path for line in lines_of(module)):
        raise refuse(
            "E380",
            f"fully_shard of a {type(module).__name__} that it has sharded already",
            expected="one call for each module",
            found="a second one",
        )
    options = () if reshard_after_forward is None else (f"reshard_after_forward={str(reshard_after_forward).lower()}",)
    return declare(module, mesh, [Line("", "fsdp", axis, options)])
