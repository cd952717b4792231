"""Plans that are searched for, and predictions without running: what the command line answers, as values of Python.

A model is one of ``partita.load``, or what the command line takes: a config file, a bundled config (``gpt``), a model file,
a model by name (``gpt3-13b``). ``settings`` are keys of the config, ``{"train.batch": 64}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partita import _partita
from partita._load import Model
from partita._partita import Mesh, Plan
from partita._spelled import spelled

if TYPE_CHECKING:
    import tempfile

__all__ = ["Choice", "Estimate", "Found", "Predicted", "estimate", "plan", "simulate"]


@dataclass(frozen=True)
class Found:
    """A plan that was found by search, and what it is predicted to cost."""

    mesh: Mesh
    """Where the lines of the plan name the mesh of each stage, ``pp`` is the number of all ranks."""
    plan: Plan
    microbatches: int
    step_s: float
    """Predicted seconds of a step."""
    bytes: int | None
    """Bytes of the fullest rank, where they were computed."""
    event: Mapping[str, Any] = field(repr=False)
    """What ``partita plan --json`` prints: other candidates, the searches, what was refused."""


@dataclass(frozen=True)
class Predicted:
    """A predicted step."""

    step_s: float
    """Seconds of a step."""
    fits: bool
    """Whether the memory of every rank fits on a device."""
    bytes: int
    """Bytes of the fullest rank."""
    event: Mapping[str, Any] = field(repr=False)
    """What ``partita simulate --json`` prints: time and memory of each class of ranks."""


@dataclass(frozen=True)
class Choice:
    """A strategy with an optimizer, and what it needs. None where it does not fit."""

    strategy: str
    optimizer: str
    recompute: bool
    offload: bool
    """Whether optimizer states are in the memory of the host."""
    devices: int | None
    """The fewest devices."""
    state_bytes: int | None
    """Parameters, gradients and optimizer states of each device."""
    activation_bytes: int | None
    workspace_bytes: int | None
    rows: int | None
    """The largest microbatch."""
    rows_per_day: float | None
    tokens_per_day: float | None
    """Of a model of tokens."""
    missing_bytes: int | None
    """What is missing on each device at the largest number that was tried."""


@dataclass(frozen=True)
class Estimate:
    """How many devices a model needs."""

    parameters: float
    memory_bytes: int
    """Memory of a device."""
    choices: tuple[Choice, ...]
    event: Mapping[str, Any] = field(repr=False)
    """What ``partita estimate --json`` prints."""


def plan(
    model: Model | str | os.PathLike[str],
    mesh: Mesh | str | None = None,
    *,
    devices: int | None = None,
    cluster: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    microbatches: int | None = None,
    why: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Found:
    """Finds the layouts and stages of a step by search, on a mesh or on every mesh of so many devices. With ``why``, the
    event has the cost of the best layouts without each line.

    Raises ``PartitaError``: what the command ``partita plan`` refuses.
    """
    flags = _flags({"mesh": mesh, "cluster": cluster, "batch": batch, "microbatches": microbatches}, settings)
    flags += [] if devices is None else ["--devices", str(devices)]
    event = _ask("plan", model, flags + (["--why"] if why else []))
    best = event["candidates"][0]
    lines = Plan(event["plan"]) if event["plan"].strip() else Plan()
    return Found(Mesh(best["mesh"]), lines, best["microbatches"], best["step_s"], best["bytes"], event)


def simulate(
    model: Model | str | os.PathLike[str],
    mesh: Mesh | str | None = None,
    plan: Plan | None = None,
    *,
    cluster: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    microbatches: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Predicted:
    """The predicted time and memory of a step under a plan, by default that of the config. A large model is folded to its
    repeated layer.

    Raises ``PartitaError``: what the command ``partita simulate`` refuses.
    """
    flags = _flags({"mesh": mesh, "cluster": cluster, "batch": batch, "microbatches": microbatches}, settings)
    with _file(None if plan is None else plan.to_tables()) as path:
        event = _ask("simulate", model, flags + ([] if path is None else ["--plan", path]))
    if "exceeds_bytes" in event:
        return Predicted(event["step_s"], event["exceeds_bytes"] <= 0, event["peak_bytes"], event)
    return Predicted(event["step_s"], event["fits"], max(of["peak_bytes"] for of in event["classes"]), event)


def estimate(
    model: Model | str | os.PathLike[str],
    *,
    cluster: str | os.PathLike[str] | None = None,
    most: int = 1024,
    settings: Mapping[str, Any] | None = None,
) -> Estimate:
    """How many devices a model needs, of at most ``most``: bytes by strategy, the largest microbatch, rows a day.

    Raises ``PartitaError``: E511 for a model without a loss, or a training step with its own update.
    """
    event = _ask("estimate", model, _flags({"cluster": cluster}, settings) + ["--most", str(most)])
    choices = tuple(Choice(**choice) for choice in event["choices"])
    return Estimate(event["parameters"], event["memory_bytes"], choices, event)


def _flags(named: Mapping[str, Any], settings: Mapping[str, Any] | None) -> list[str]:
    flags = [f"--{name}={value}" for name, value in named.items() if value is not None]
    for key, value in (settings or {}).items():
        flags += ["--set", f"{key}={json.dumps(value)}"]
    return flags


def _folder() -> tempfile.TemporaryDirectory[str]:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="partita-")


@contextmanager
def _file(text: str | None) -> Iterator[str | None]:
    """A plan file of this text, while it is needed."""
    if text is None:
        yield None
        return
    with _folder() as folder:
        path = os.path.join(folder, "plan.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        yield path


@spelled
def _ask(command: str, model: Model | str | os.PathLike[str], flags: list[str]) -> dict[str, Any]:
    """The event that a command prints with ``--json``."""
    with _named(model) as path:
        lines = _partita.ask(["partita", command, path, "--json", *flags]).splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return next(event for event in events if event["event"] == command)


@contextmanager
def _named(model: Model | str | os.PathLike[str]) -> Iterator[str]:
    """What the command line calls a model."""
    if not isinstance(model, Model):
        yield os.fspath(model)
    elif isinstance(model._file, str):
        yield model._file
    else:
        with _folder() as folder:
            path = os.path.join(folder, "model.pt2")
            model._file(path)
            yield path
