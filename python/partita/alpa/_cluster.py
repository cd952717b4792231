"""The devices: so many ranks, all in this process."""

from __future__ import annotations

import os

from partita._error import refuse

__all__ = ["device_count", "init", "shutdown"]


class _Cluster:
    """What ``init`` was told; ranks are made by each executable."""

    devices: int | None = None


_cluster = _Cluster()


def init(
    cluster: str = "local",
    num_nodes: int | None = None,
    num_devices_per_node: int | None = None,
) -> None:
    """Says on how many devices functions are parallelized: ranks of this process, by default one for each core.

    ``cluster="ray"``, and more nodes than this one, are refused (E385): ranks on other machines do not exist yet.
    """
    if cluster != "local":
        raise refuse(
            "E385",
            f'partita.alpa has no cluster "{cluster}"',
            expected='"local": all ranks are in this process',
            found=repr(cluster),
            help='write `alpa.init(cluster="local", num_devices_per_node=4)`; ranks on the machines of a Ray cluster need '
            "an engine that starts them there, which does not exist yet",
        )
    if num_nodes not in (None, 1):
        raise refuse("E385", "partita.alpa runs on one node", expected="num_nodes=1", found=f"num_nodes={num_nodes}")
    count = num_devices_per_node
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise refuse("E385", "the number of devices is no positive number", expected="an int of at least 1", found=repr(count))
    _cluster.devices = count


def shutdown() -> None:
    """Forgets what ``init`` was told. Executables and their state live as long as the functions and arrays that own them."""
    _cluster.devices = None


def device_count() -> int:
    """The number of devices."""
    return _cluster.devices or os.cpu_count() or 1
