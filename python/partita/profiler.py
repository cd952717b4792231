"""What a program does and when, in the form of ``torch.profiler``, recorded by the ranks themselves.

    from partita.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    with profile(
        schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=tensorboard_trace_handler("log"),
    ) as prof:
        for batch in batches:
            trainer.step(batch)
            prof.step()
    print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=10))

The host is the thread that calls passes; the device is the ranks, which run on the cores of this machine. A row of the
host is a pass (``partita::forward``, ``partita::backward``, ``partita::step``), the step of an optimizer of PyTorch, a
``record_function``, or a step of the profiler. A row of the device is an instruction of the ranks' programs.
"""

from __future__ import annotations

import contextlib
import enum
import gzip
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from partita._averages import Average, Averages, shapes_text
from partita._observed import observe, observe_with
from partita._origin import place

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """What is recorded. The device of a program for ``CUDA`` is the CPU here, so both are recorded whichever is named."""

    CPU = "CPU"
    CUDA = "CUDA"


class ProfilerAction(enum.Enum):
    """What a profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerAction]:
    """Which steps are recorded: after ``skip_first``, cycles of ``wait`` steps that are not, ``warmup`` steps that are
    thrown away, and ``active`` ones; ``repeat`` cycles, or without end if it is 0."""
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ValueError("expected counts of steps that are not negative, and at least one active step")

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise ValueError("steps count from 0")
        step -= skip_first
        cycle, place = divmod(step, wait + warmup + active)
        if step < 0 or (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = place == wait + warmup + active - 1
        return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Writes the trace of each cycle to ``<dir_name>/<worker_name>.<time>.pt.trace.json``: Chrome's format, which Perfetto
    and ``chrome://tracing`` open."""

    def handle(prof: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json" + (".gz" if use_gzip else "")
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handle


@contextmanager
def record_function(name: str) -> Iterator[None]:
    """A context whose time is a row of its own."""
    with observe(name):
        yield


@dataclass
class Span:
    """Work on the host."""

    name: str
    begin_ns: int
    depth: int
    stack: str | None = None
    end_ns: int = 0
    inner_ns: int = 0
    """The part that is in spans inside."""
    device_ns: int = 0
    device_bytes: int = 0


@dataclass
class Work:
    """An instruction that a rank has run: one or several pieces on threads."""

    name: str
    kind: str
    phase: str
    path: str
    rank: int
    shapes: list[tuple[str, list[int]]]
    allocated: int
    """Bytes of memory live from it on, less those live no longer."""
    traffic: int
    """Bytes read and written."""
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    """Thread, begin and duration in nanoseconds."""

    @property
    def nanos(self) -> int:
        """Its time, summed over threads."""
        return sum(duration for _, _, duration in self.pieces)


@dataclass
class Recording:
    """What was seen in a cycle."""

    spans: list[Span] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)


class profile:
    """A context that records passes.

    ``schedule`` says which steps are recorded; without it all are, and ``step()`` need not be called. At the end of each
    cycle ``on_trace_ready`` is called with this profiler. ``record_shapes`` keeps the shapes that instructions read,
    ``profile_memory`` the memory that they take, ``with_stack`` the calling lines of passes and the modules of
    instructions. ``acc_events`` keeps the cycles before the last one too.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        acc_events: bool = False,
    ) -> None:
        for activity in activities or ():
            if getattr(activity, "name", None) not in ProfilerActivity.__members__:
                raise ValueError(f"no activity {activity!r}: expected ProfilerActivity.CPU or .CUDA")
        self._schedule, self.on_trace_ready = schedule, on_trace_ready
        self.record_shapes, self.profile_memory, self.with_stack = record_shapes, profile_memory, with_stack
        self._accumulates = acc_events
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._seen = Recording()
        self._open: list[Span] = []
        self._before: Any = None
        self._step: Span | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Begins with step 0."""
        self._hook_optimizers()
        self._begin(self._action())

    def step(self) -> None:
        """The next step begins."""
        self._end_of_step()
        before = self.current_action
        self.step_num += 1
        after = self._action()
        if before is ProfilerAction.RECORD_AND_SAVE or (before in _RECORDING and after not in _RECORDING):
            self._finish()
            before = ProfilerAction.NONE
        self._begin(after, is_new=before not in _RECORDING)

    def stop(self) -> None:
        """Ends the recording; a cycle that is not over is complete with what it has."""
        self._end_of_step()
        if self.current_action in _RECORDING:
            self._finish()
        self.current_action = ProfilerAction.NONE
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _action(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self._schedule is None else self._schedule(self.step_num)

    def _begin(self, action: ProfilerAction, is_new: bool = True) -> None:
        self.current_action = action
        if action not in _RECORDING:
            return
        if is_new:
            if not self._accumulates:
                self._seen = Recording()
            self._before = observe_with(self)
        if self._schedule is not None:
            self._step = self._push(f"ProfilerStep#{self.step_num}")

    def _end_of_step(self) -> None:
        if self._step is not None:
            self._pop(self._step)
            self._step = None

    def _finish(self) -> None:
        observe_with(self._before)
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _hook_optimizers(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        spans: list[Span] = []

        def before(optimizer: Any, *_: Any) -> None:
            if self.current_action in _RECORDING:
                kind = type(optimizer).__name__
                spans.append(self._push(f"Optimizer.step#{kind}.step"))

        def after(*_: Any) -> None:
            if spans:
                self._pop(spans.pop())

        self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def _push(self, name: str) -> Span:
        span = Span(name, time.monotonic_ns(), len(self._open), _caller() if self.with_stack else None)
        self._open.append(span)
        return span

    def _pop(self, span: Span) -> None:
        span.end_ns = time.monotonic_ns()
        if span in self._open:
            # What is open inside is counted to what is around it.
            self._open.remove(span)
        self._seen.spans.append(span)
        if self._open:
            outer = self._open[-1]
            outer.inner_ns += span.end_ns - span.begin_ns
            outer.device_ns += span.device_ns
            outer.device_bytes += span.device_bytes

    @contextmanager
    def span(self, name: str, native: Any = None) -> Iterator[None]:
        """See ``partita._observed.Observer``."""
        span = self._push(name)
        if native is not None:
            native.record(True)
        try:
            yield
            if native is not None:
                self._take(span, native)
        finally:
            if native is not None:
                native.record(False)
            self._pop(span)

    def _take(self, span: Span, native: Any) -> None:
        """Adds what ranks did in a pass."""
        events, now_ns = native.events()
        offset = time.monotonic_ns() - now_ns
        places, lists = native.programs()
        programs = dict(places)
        works: dict[tuple[int, int], Work] = {}
        for rank, thread, instruction, begin, duration, traffic in events:
            work = works.get((rank, instruction))
            if work is None:
                what, kind, phase, path, shapes, allocated = lists[programs[rank]][instruction]
                name = what if kind == "compute" else f"{kind} {what}"
                work = works[rank, instruction] = Work(name, kind, phase, path, rank, shapes, allocated, traffic)
            work.pieces.append((thread, begin + offset, duration))
            span.device_ns += duration
        span.device_bytes += sum(work.allocated for work in works.values())
        self._seen.works.extend(works.values())

    def events(self) -> list[Span | Work]:
        """What was recorded: work on the host, then that of ranks."""
        return [*self._seen.spans, *self._seen.works]

    def key_averages(self, group_by_input_shape: bool = False) -> Averages:
        """Sums by name, of the last cycle; with ``group_by_input_shape`` by name and shapes."""
        rows: dict[tuple[str, str], Average] = {}

        def row(name: str, shapes: str = "") -> Average:
            found = rows.setdefault((name, shapes), Average(name, shapes))
            found.count += 1
            return found

        for span in self._seen.spans:
            is_step = span.name.startswith("ProfilerStep#")
            average = row("ProfilerStep*" if is_step else span.name)
            nanos = span.end_ns - span.begin_ns
            average.cpu_time_total += nanos / 1e3
            average.self_cpu_time_total += (nanos - span.inner_ns) / 1e3
            average.device_time_total += span.device_ns / 1e3
            average.device_memory_usage += span.device_bytes
        has_shapes = group_by_input_shape and self.record_shapes
        for work in self._seen.works:
            average = row(work.name, shapes_text(work.shapes) if has_shapes else "")
            average.device_time_total += work.nanos / 1e3
            average.self_device_time_total += work.nanos / 1e3
            average.device_memory_usage += work.allocated
            average.self_device_memory_usage += work.allocated
        return Averages(list(rows.values()), self.profile_memory, has_shapes)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last cycle in Chrome's trace format: a row for the host, and one for each rank and thread."""
        text = json.dumps(self._chrome())
        opened = gzip.open(path, "wt") if os.fspath(path).endswith(".gz") else open(path, "w", encoding="utf-8")
        with opened as file:
            file.write(text)

    def _chrome(self) -> dict[str, Any]:
        host, rows = os.getpid(), {(work.rank, piece[0]) for work in self._seen.works for piece in work.pieces}
        events: list[dict[str, Any]] = [_meta("process_name", host, 0, "host")]
        for rank in sorted({rank for rank, _ in rows}):
            events.append(_meta("process_name", _pid(rank), 0, f"rank {rank}"))
        for rank, thread in sorted(rows):
            events.append(_meta("thread_name", _pid(rank), thread, f"thread {thread}"))
        for span in sorted(self._seen.spans, key=lambda span: span.begin_ns):
            kind = "user_annotation" if "::" not in span.name else "cpu_op"
            args = {} if span.stack is None else {"Call stack": span.stack}
            events.append(_complete(span.name, kind, host, 0, span.begin_ns, span.end_ns - span.begin_ns, args))
        live: dict[int, int] = {}
        for work in sorted(self._seen.works, key=lambda work: work.pieces[0][1]):
            facts: dict[str, Any] = {"phase": work.phase, "bytes": work.traffic}
            if self.with_stack:
                facts["Module"] = work.path
            if self.record_shapes:
                facts["Input Dims"] = [list(shape) for _, shape in work.shapes]
                facts["Input type"] = [dtype for dtype, _ in work.shapes]
            for thread, begin, duration in work.pieces:
                events.append(_complete(work.name, "kernel", _pid(work.rank), thread, begin, duration, facts))
            if self.profile_memory:
                live[work.rank] = live.get(work.rank, 0) + work.allocated
                at = work.pieces[0][1] / 1e3
                counted = {"ph": "C", "name": "memory", "pid": _pid(work.rank), "tid": 0, "ts": at}
                events.append(counted | {"args": {"live": live[work.rank]}})
        return {
            "schemaVersion": 1,
            "record_shapes": int(self.record_shapes),
            "profile_memory": int(self.profile_memory),
            "with_stack": int(self.with_stack),
            "host_name": socket.gethostname(),
            "displayTimeUnit": "ms",
            "traceEvents": events,
        }

    def _repr_html_(self) -> str:
        """The last cycle as a drawing: a row for the host, and one for each rank."""
        from partita._drawn import timeline

        return timeline(self._seen.spans, self._seen.works)


def _pid(rank: int) -> int:
    """Ranks as processes of a trace, behind every process of the host."""
    return (1 << 30) + rank


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(
    name: str, category: str, pid: int, tid: int, begin_ns: int, nanos: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin_ns / 1e3, "dur": nanos / 1e3}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _caller() -> str:
    """``file:line`` of the nearest frame outside this package, PyTorch, and Python's contexts."""
    frame = sys._getframe(1)
    torch: Any = sys.modules.get("torch")
    roots = [os.path.dirname(os.path.abspath(__file__)) + os.sep]
    if torch is not None:
        roots.append(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
    inside = (*roots, contextlib.__file__)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(inside):
        frame = frame.f_back
    return place(frame)
