"""Processes that judge modules one after another. One that hangs or dies takes nothing with it but the case it was at."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from judge import Verdict

START = 120.0
"""Seconds for a process to import what it needs, beside the limit of a case."""


@dataclass(frozen=True)
class Job:
    """A module of the sweep, by its name; and the seed."""

    name: str
    seed: int


@dataclass
class Told:
    """What a process says of a module on a mesh, or of the module itself, before any mesh."""

    about: str = ""
    meshes: tuple[str, ...] = ()
    verdict: Verdict | None = None


class Worker:
    """A process, and a thread that reads what it writes."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("modules.py")), "--worker"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, job: Job, meshes: Sequence[str]) -> None:
        """Has a module judged on these meshes, or on its own ones if there are none."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**asdict(job), "meshes": list(meshes)}) + "\n")
        self.process.stdin.flush()

    def answer(self, limit: float) -> dict[str, Any] | None:
        """The next answer; None if there was none in time, or if the process has ended."""
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            return None
        return None if line is None else dict(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Pool:
    """Runs jobs in a few processes, and hands on what they say as it comes."""

    def __init__(
        self, count: int, limit: float, tell: Callable[[Job, Told], None], meshes: Sequence[str] = ()
    ) -> None:
        self.count, self.limit, self.tell, self.meshes = count, limit, tell, list(meshes)
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.lock = threading.Lock()

    def run(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.jobs.put(job)
        threads = [threading.Thread(target=self._work) for _ in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        worker: Worker | None = None
        while True:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                break
            worker = self._judge(worker, job)
        if worker is not None:
            worker.end()

    def _judge(self, worker: Worker | None, job: Job) -> Worker | None:
        """One module on all its meshes, in as many processes as that takes."""
        left: list[str] | None = None
        while left is None or left:
            is_new = worker is None
            worker = worker or Worker()
            worker.ask(job, left or self.meshes)
            head = worker.answer(self.limit + (START if is_new else 0.0))
            if head is None or "meshes" not in head:
                found = "ended" if worker.process.poll() is not None else "was not ready"
                worker.end()
                self._say(job, Told(about="", meshes=("-",)))
                why = head["failed"] if head else f"the process {found} before the first mesh"
                self._say(job, Told(verdict=Verdict("-", "crashed", float("inf"), "", why)))
                return None
            if left is None:
                left = [str(mesh) for mesh in head["meshes"]]
                self._say(job, Told(about=str(head["about"]), meshes=tuple(left)))
            while left:
                answer = worker.answer(self.limit)
                if answer is not None:
                    self._say(job, Told(verdict=Verdict(**answer)))
                    left.pop(0)
                    continue
                ended = worker.process.poll()
                why = f"no answer in {self.limit:.0f} s" if ended is None else f"the process ended with {ended}"
                kind = "hung" if ended is None else "crashed"
                self._say(job, Told(verdict=Verdict(left.pop(0), kind, float("inf"), "", why)))
                worker.end()
                worker = None
                break
        return worker

    def _say(self, job: Job, told: Told) -> None:
        with self.lock:
            self.tell(job, told)


def serve(judge: Callable[[Job, Sequence[str]], Any]) -> None:
    """The loop of a process: a job a line, then a line for the module and a line for each mesh."""
    # What libraries print is no answer.
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            for answer in judge(Job(asked["name"], asked["seed"]), asked["meshes"]):
                print(json.dumps(answer), file=answers, flush=True)
        except Exception as error:
            print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:400]}), file=answers, flush=True)
