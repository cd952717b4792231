"""XLA on the actors of a Ray cluster: each is a process of jax.distributed with one device.

The driver plans a step and sends its modules, the texts of ``partita export --for xla``, to all actors; each compiles them
for its device and keeps its shards of the state. Every call goes to all of them, and the first one answers.
"""

from __future__ import annotations

import json
import os
import socket
import types
from typing import Any

from partita import _partita
from partita._tensors import Packed, long_dtype, pack


class Device:
    """What an actor does: one of ``count`` devices."""

    def __init__(self, index: int, count: int) -> None:
        # Read when jax is imported: one device if it is a CPU.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1".strip()
        self._index, self._count = index, count
        self._runner: Any = types.ModuleType("partita_xla_runner")
        exec(compile(_partita.Step.xla_runner(), "run.py", "exec"), self._runner.__dict__)
        self._steps: dict[int, Any] = {}

    def address(self, is_one_node: bool) -> tuple[str, int]:
        """A host and a free port of it, where the devices meet: loopback if they are all on one node."""
        import ray

        nodes: Any = ray.util
        host = "127.0.0.1" if is_one_node else str(nodes.get_node_ip_address())
        with socket.socket() as found:
            found.bind((host, 0))
            return host, found.getsockname()[1]

    def join(self, host: str, port: int) -> None:
        """Connects the devices; all call it."""
        import jax

        jax.config.update("jax_enable_x64", True)
        self._runner.join_processes(host, port, self._count, self._index)
        jax.devices()

    def make(self, key: int, manifest: str, texts: dict[str, str]) -> None:
        """Compiles a step, which ``call`` then names. Its state starts at zero."""
        self._steps[key] = self._runner.Run(json.loads(manifest), texts.__getitem__, {})

    def forget(self, key: int) -> None:
        """Frees a step."""
        self._steps.pop(key, None)

    def call(self, key: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """``run``, ``get`` or ``set`` of a step; only the first device returns what it gives."""
        found = getattr(self, f"_{method}")(self._steps[key], *arguments)
        return found if self._index == 0 else None

    def _run(self, step: Any, fed: list[tuple[str, Packed]], outputs: list[str]) -> list[Packed]:
        found = step.step({name: self._array(value) for name, value in fed})
        return [pack(found[name]) for name in outputs]

    def _get(self, step: Any, name: str) -> Packed:
        return pack(step.get(name))

    def _set(self, step: Any, name: str, value: Packed) -> None:
        step.set(name, self._array(value))

    def _array(self, packed: Packed) -> Any:
        name, shape, data = packed
        return data.view(self._runner.element_type(long_dtype(name))).reshape(shape)


class Step:
    """A step on the devices, with the methods of the native one, which answers what needs no device."""

    def __init__(self, cluster: Any, key: int, planned: _partita.Step) -> None:
        self._cluster, self._key, self._planned = cluster, key, planned

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "get", "set"):
            return lambda *arguments: self._cluster.ask("call", self._key, name, arguments)
        return getattr(self._planned, name)
