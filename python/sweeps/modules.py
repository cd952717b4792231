"""Trains random and real modules under plans and compares them with PyTorch in f64. See ``scripts/sweep``."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import judge
import torch
from case import Case
from judge import Verdict
from workers import Job, Pool, Told, serve

RANDOM = 200


def names(count: int) -> list[str]:
    """The names of all modules: so many random ones, then the real ones."""
    import real_modules

    return [*(f"random-{index}" for index in range(count)), *real_modules.MODULES]


def case(job: Job) -> Case:
    """The module of a job."""
    if job.name.startswith("random-"):
        import random_modules

        return random_modules.case_of(job.seed, int(job.name.removeprefix("random-")))
    import real_modules

    return real_modules.case_of(job.seed, job.name)


def judged(job: Job, meshes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What a process answers: the module's description and its meshes, then a verdict for each."""
    one = case(job)
    beside = judge.reference(one)
    chosen = list(meshes) or list(one.meshes)
    yield {"about": one.about, "meshes": chosen}
    for mesh in chosen:
        yield asdict(judge.judged(one, mesh, beside))


@dataclass
class Report:
    """What is printed: a line for each module, then a table."""

    as_json: bool
    total: int
    about: dict[str, str] = field(default_factory=dict)
    meshes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found: dict[str, list[Verdict]] = field(default_factory=dict)

    def take(self, job: Job, told: Told) -> None:
        if told.verdict is None:
            self.about[job.name], self.meshes[job.name] = told.about, told.meshes
            return
        verdicts = self.found.setdefault(job.name, [])
        verdicts.append(told.verdict)
        if self.as_json:
            line = {"name": job.name, "seed": job.seed, "about": self.about[job.name], **asdict(told.verdict)}
            if line["error"] == float("inf"):
                line["error"] = None
            print(json.dumps(line), flush=True)
        elif len(verdicts) == len(self.meshes[job.name]):
            self._line(job.name, verdicts)

    def _line(self, name: str, verdicts: list[Verdict]) -> None:
        done = len([each for each in self.found if len(self.found[each]) == len(self.meshes[each])])
        error = max((each.error for each in verdicts if each.verdict == "right"), default=0.0)
        where = " ".join(each.mesh for each in verdicts)
        print(f"[{done}/{self.total}] {name}: {total(verdicts)}, {error:.1e} on {where} ({self.about[name]})")
        for each in verdicts:
            if each.verdict != "right":
                size = "" if each.error == float("inf") else f" by {each.error:.1e}"
                print(f"    {each.mesh}: {each.verdict}{size} {each.code} {each.where}".rstrip())
        sys.stdout.flush()

    def table(self) -> str:
        """Verdicts by mesh, then those of whole modules."""
        lines = [f"{'':<22} {'right':>6} {'refused':>8} {'wrong':>6}  worst error of the right ones"]
        by_mesh: dict[str, list[Verdict]] = {}
        for verdicts in self.found.values():
            for each in verdicts:
                by_mesh.setdefault(each.mesh, []).append(each)
        for mesh in sorted(by_mesh, key=lambda mesh: (-len(by_mesh[mesh]), mesh)):
            lines.append(self._row(mesh, by_mesh[mesh]))
        for title, is_random in (("random modules", True), ("real modules", False)):
            whole = [v for name, v in self.found.items() if name.startswith("random-") == is_random]
            if whole:
                lines.append(self._row(title, [worst_of(verdicts) for verdicts in whole]))
        lines.append(self._row("all modules", [worst_of(verdicts) for verdicts in self.found.values()]))
        codes: dict[str, int] = {}
        for verdicts in self.found.values():
            for each in verdicts:
                if each.verdict == "refused":
                    codes[each.code] = codes.get(each.code, 0) + 1
        if codes:
            told = (f"{code} {count}" for code, count in sorted(codes.items(), key=lambda pair: -pair[1]))
            lines.append("refused, by code and mesh: " + ", ".join(told))
        flags = [name for name, verdicts in self.found.items() if any(each.notes for each in verdicts)]
        if flags:
            lines.append(f"modules with an output whose requires_grad is not PyTorch's: {len(flags)}")
        return "\n".join(lines)

    def _row(self, title: str, verdicts: list[Verdict]) -> str:
        right = [each for each in verdicts if each.verdict == "right"]
        refused = [each for each in verdicts if each.verdict == "refused"]
        error = max((each.error for each in right), default=0.0)
        wrong = len(verdicts) - len(right) - len(refused)
        return f"{title:<22} {len(right):>6} {len(refused):>8} {wrong:>6}  {error:.1e}"


def total(verdicts: list[Verdict]) -> str:
    return worst_of(verdicts).verdict


def worst_of(verdicts: list[Verdict]) -> Verdict:
    """Of a module on several meshes: wrong if it is wrong on one, refused if it is refused on one."""
    order = {"right": 0, "refused": 1}
    return max(verdicts, key=lambda each: (order.get(each.verdict, 2), each.error))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sweep modules", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the random modules, weights and batches come from")
    parser.add_argument("--count", type=int, default=RANDOM, help="how many random modules")
    parser.add_argument("--only", action="append", default=[], help="a module by name, or all whose name begins so with *")
    parser.add_argument("--mesh", action="append", default=[], help="a mesh instead of those that each module has")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a module on a mesh hangs")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each module and mesh")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        serve(judged)
        return 0
    chosen = names(options.count)
    if options.only:
        chosen = [name for name in chosen if any(_fits(name, pattern) for pattern in options.only)]
    if not chosen:
        parser.error(f"no module of this name: {', '.join(options.only)}")
    began = time.monotonic()
    report = Report(options.json, len(chosen))
    Pool(options.workers, options.limit, report.take, options.mesh).run([Job(name, options.seed) for name in chosen])
    print(report.table(), file=sys.stderr if options.json else sys.stdout)
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s", file=sys.stderr if options.json else sys.stdout)
    return 1 if any(each.is_wrong for verdicts in report.found.values() for each in verdicts) else 0


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


if __name__ == "__main__":
    sys.exit(main())
