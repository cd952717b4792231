"""What the recorder of `--profile` costs: `python benches/recorder.py [--partita PATH] [--rounds 7] [--steps 200] [--write]`.

Runs of `partita train gpt` with and without `--profile` alternate. Of each kind one is short and one long, so that building,
verifying and printing, which both have, cancel: the processor time of a step is the difference over the steps between. In one
further run every other step is recorded, and the middle times of the two kinds are compared. `--write` puts the figures into
BENCHMARKS.md.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TITLE = "## The recorder"
SHORT = 20


def cpu_s(partita, steps, more, folder):
    """Seconds of all threads of a run."""
    command = [partita, "train", "gpt", "--steps", str(steps), "--no-verify", "--no-sample", "--set", "checkpoint.every=0"]
    command += ["--checkpoint-dir", tempfile.mkdtemp(dir=folder), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    return used.ru_utime + used.ru_stime


def step_ms(partita, steps, recorded, folder):
    """Milliseconds of processor time of a step."""
    cycle = ["--profile", "--cycle", "wait=0,warmup=0,active=1,repeat=0"] if recorded else []
    long, short = (cpu_s(partita, count, cycle, folder) for count in (SHORT + steps, SHORT))
    return 1e3 * (long - short) / steps


def alternated(partita, steps, folder):
    """The middle time of recorded steps over that of the steps between them, less one."""
    log = Path(folder) / "m.jsonl"
    cycle = ["--profile", "--cycle", "wait=1,warmup=0,active=1,repeat=0", "--metrics", str(log)]
    cpu_s(partita, 4 * steps, cycle, folder)
    events = map(json.loads, log.read_text().splitlines())
    speeds = [event["tokens_per_s"] for event in events if event["event"] == "step"]
    return statistics.median(speeds[2::2]) / statistics.median(speeds[3::2]) - 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--partita", default=str(ROOT / "target" / "release" / "partita"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    partita = str(Path(options.partita).resolve())
    with tempfile.TemporaryDirectory() as folder:
        rounds = [[step_ms(partita, options.steps, on, folder) for on in (False, True)] for _ in range(options.rounds)]
        by_step = alternated(partita, options.steps, folder)
    off, on = ([pair[kind] for pair in rounds] for kind in (0, 1))
    spread = 100 * (max(off) - min(off)) / statistics.median(off)
    ratio = statistics.median(b / a for a, b in rounds) - 1
    text = (
        f"{date.today()}. `python benches/recorder.py`, {options.rounds} rounds of {options.steps} steps of `gpt`. Processor time "
        f"of a step:\n{min(off):.2f} ms without the recorder, {min(on):.2f} ms with it (the least of the rounds); of pairs the "
        f"middle is {100 * ratio:+.1f} %,\nwhere the spread of runs without it is {spread:.0f} %. By wall time, every other "
        f"step of one run: {100 * by_step:+.1f} %.\n"
    )
    print(text)
    if options.write:
        page = ROOT / "BENCHMARKS.md"
        kept = re.sub(rf"\n{TITLE}\n.*?(?=\n## |\Z)", "", page.read_text(), flags=re.DOTALL).rstrip("\n")
        page.write_text(f"{kept}\n\n{TITLE}\n\n{text}")


main()
