"""Devices of a Ray cluster: an actor for each, which run every step together.

The driver sends each step to all actors, and every call of it; the first actor answers. With the engine ``xla`` they are
processes of jax.distributed, on any nodes (see ``_ray_xla``). With the engine ``native`` they share the ranks of a step as
launched processes do: on one host, for they exchange tensors in mapped files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

from partita import _partita, _ray_xla
from partita._error import refuse


class Device:
    """What an actor does: one of ``count`` processes that run each step together."""

    def __init__(self, place: str) -> None:
        # A launched process ends when its standard input does; this one ends with its actor.
        reading, self._open = os.pipe()
        os.dup2(reading, 0)
        os.environ["PARTITA_LAUNCH"] = place
        self._is_first = place.startswith("0/")
        self._steps: dict[int, Any] = {}

    def make(self, key: int, text: str, name: str, known: dict[str, Any], plan: Any, mesh: str) -> None:
        """Plans a step, which ``call`` then names."""
        program = _partita.Program(text, name)
        self._steps[key] = _partita.Step(program, known, plan, _partita.Mesh(mesh))

    def forget(self, key: int) -> None:
        """Frees a step."""
        self._steps.pop(key, None)

    def call(self, key: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """A method of a step; only the first device returns what it gives."""
        found = getattr(self._steps[key], method)(*arguments)
        if isinstance(found, _partita.Report):
            found = Report(found)
        return found if self._is_first else None


class Report:
    """A report of a verification on the cluster, with the names of ``partita.Report``."""

    def __init__(self, of: _partita.Report) -> None:
        self.ok, self.tolerance, self.first_diverging = of.ok, of.tolerance, of.first_diverging
        self.tensors, self.largest_difference, self._text = of.tensors, of.largest_difference, str(of)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self._text


class Cluster:
    """The actors on a Ray cluster: as many as there are CPUs, or ``count``.

    Raises ``PartitaError``: E385 without Ray, for fewer CPUs than devices, or for several nodes of native ones.
    """

    def __init__(self, count: int | None, engine: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise refuse("E385", "Ray is not installed", expected="the package ray", help="pip install ray") from error
        self._ray: Any = ray
        self._begun = not self._ray.is_initialized()
        if self._begun:
            self._ray.init(include_dashboard=False)
        available = int(self._ray.cluster_resources().get("CPU", 0))
        count = available if count is None else count
        if count > available or count < 1:
            raise refuse(
                "E385",
                "the Ray cluster has fewer CPUs than devices were asked for",
                expected=f"at most {available}",
                found=str(count),
                help="ray.init(num_cpus=4) starts a cluster of this machine with four",
            )
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self._made, self._folder, self._engine = 0, None, engine
        self.devices: list[Any]
        if engine == "xla":
            actor = self._ray.remote(num_cpus=1)(_ray_xla.Device)
            self.devices = [actor.remote(number, count) for number in range(count)]
            self.ask("join", *self._ray.get(self.devices[0].address.remote(len(nodes) == 1)))
            return
        if len(nodes) != 1:
            raise refuse(
                "E385",
                "native devices on several nodes of a Ray cluster",
                expected="one node: the ranks exchange tensors in files that they all map",
                found=f"{len(nodes)} nodes",
                help='`engine="xla"` runs on several nodes',
            )
        memory = "/dev/shm" if os.path.isdir("/dev/shm") and "TMPDIR" not in os.environ else None
        self._folder = tempfile.mkdtemp(prefix="partita-launch-", dir=memory)
        actor = self._ray.remote(num_cpus=1)(Device)
        self.devices = [actor.remote(f"{number}/{count}:{self._folder}") for number in range(count)]

    def step(self, text: str, name: str, known: dict[str, Any], plan: Any, mesh: Any) -> Step | _ray_xla.Step:
        """A planned step on the devices."""
        self._made += 1
        if self._engine == "xla":
            planned = _partita.Step(_partita.Program(text, name), known, plan, mesh)
            manifest, texts = planned.xla()
            self.ask("make", self._made, manifest, dict(texts))
            step = _ray_xla.Step(self, self._made, planned)
            weakref.finalize(step, _forget, self, self._made)
            return step
        self.ask("make", self._made, text, name, known, plan, str(mesh))
        return Step(self, self._made)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of every device with the same arguments, and returns what the first one does.

        Raises what a device raises; E385 if one has ended, which ends all.
        """
        if not self.devices:
            raise refuse("E385", "the devices of the Ray cluster have ended", expected="alpa.init before")
        exceptions = self._ray.exceptions
        sent = [self._ray.put(argument) for argument in arguments]
        pending = [getattr(device, method).remote(*sent) for device in self.devices]
        first, answer, error, lost = pending[0], None, None, None
        while pending and lost is None:
            (ready,), pending = self._ray.wait(pending, num_returns=1)
            try:
                found = self._ray.get(ready)
                answer = found if ready == first else answer
            except exceptions.RayTaskError as raised:
                error = error or raised.cause
            except exceptions.RayActorError as raised:
                lost = lost or raised
        if lost is not None:
            self.close()
            raise refuse(
                "E385",
                "a device of the Ray cluster has ended",
                expected=f"{method} on every device",
                found=str(lost).splitlines()[0],
                help="call alpa.init again, and continue from the last saved state",
            )
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Ends the devices, and Ray if it was started for them."""
        for device in self.devices:
            self._ray.kill(device)
        self.devices = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._begun and self._ray.is_initialized():
            self._ray.shutdown()


class Step:
    """A step on the devices of a cluster, with the methods of the native one."""

    def __init__(self, cluster: Cluster, key: int) -> None:
        self._cluster, self._key = cluster, key
        weakref.finalize(self, _forget, cluster, key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._cluster.ask("call", self._key, name, arguments)


def _forget(cluster: Cluster, key: int) -> None:
    if cluster.devices and cluster._ray.is_initialized():
        for device in cluster.devices:
            device.forget.remote(key)
