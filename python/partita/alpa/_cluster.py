"""The devices: so many ranks, all in this process, or actors of a Ray cluster."""

from __future__ import annotations

import os
from typing import Any, cast

from partita import _partita
from partita._error import refuse
from partita._partita import Mesh, Plan
from partita._ray import Cluster

__all__ = ["device_count", "init", "make_step", "shutdown"]


class _Devices:
    """What ``init`` was told; ranks are made by each executable."""

    count: int | None = None
    ray: Cluster | None = None


_devices = _Devices()


def init(
    cluster: str = "local",
    num_nodes: int | None = None,
    num_devices_per_node: int | None = None,
    engine: str | None = None,
) -> None:
    """Says on how many devices functions are parallelized: ranks of this process, by default one for each core.

    With ``cluster="ray"`` each device is an actor of the Ray cluster that ``ray.init`` has joined, by default one for each
    of its CPUs; a cluster of this machine is started where there is none. The actors run steps under XLA, connected by
    jax.distributed, or with ``engine="native"`` as launched processes of Partita do, on one node.

    Raises ``PartitaError``: E385 for another cluster or engine, several nodes, or more devices than there are.
    """
    _partita.check_alone()
    if cluster not in ("local", "ray"):
        raise refuse(
            "E385", f'partita.alpa has no cluster "{cluster}"', expected='"local" or "ray"', found=repr(cluster)
        )
    if num_nodes not in (None, 1):
        raise refuse("E385", "partita.alpa runs on one node", expected="num_nodes=1", found=f"num_nodes={num_nodes}")
    count = num_devices_per_node
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise refuse(
            "E385", "the number of devices is no positive number", expected="an int of at least 1", found=repr(count)
        )
    engines = ("xla", "native") if cluster == "ray" else ("native",)
    if engine is not None and engine not in engines:
        raise refuse(
            "E385", f'the cluster "{cluster}" has no engine "{engine}"', expected=" or ".join(engines), found=repr(engine)
        )
    shutdown()
    if cluster == "ray":
        _devices.ray = Cluster(count, engine or "xla")
        count = len(_devices.ray.devices)
    _devices.count = count


def shutdown() -> None:
    """Forgets what ``init`` was told, and ends the actors of a Ray cluster. Executables of this process and their state live
    as long as the functions and arrays that own them."""
    if _devices.ray is not None:
        _devices.ray.close()
    _devices.count, _devices.ray = None, None


def device_count() -> int:
    """The number of devices."""
    return _devices.count or os.cpu_count() or 1


def make_step(text: str, name: str, known: dict[str, Any], plan: Plan, mesh: Mesh) -> _partita.Step:
    """A planned step of a program on the devices."""
    if _devices.ray is not None:
        # It has the methods of a native step.
        return cast(_partita.Step, _devices.ray.step(text, name, known, plan, mesh))
    return _partita.Step(_partita.Program(text, name), known, plan, mesh)
