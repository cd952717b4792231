"""What each line of a schedule is worth: `python benches/schedules.py [--partita PATH] [--repeats 10] [--filter TEXT]`.

Runs `partita bench schedules` with PyTorch of this interpreter beside it, and puts its table into BENCHMARKS.md and its picture
into docs/images/schedules.svg. `--dry` prints the table alone.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TITLE = "## Schedules"


def table(rungs):
    def times(value):
        return "-" if value is None else f"{value:.2f} x"

    lines = ["| model | lines | mesh | step ms | gain of these lines | over unscheduled | memory MiB |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for rung in rungs:
        memory = "-" if rung["planned_mb"] is None else f"{rung['planned_mb']:.0f}"
        figures = [f"{rung['median_ms']:.1f}", times(rung["gain"]), times(rung["over_unscheduled"]), memory]
        lines.append("| " + " | ".join([rung["model"], rung["rung"], rung["mesh"] or "-", *figures]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--partita", default=str(ROOT / "target" / "release" / "partita"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--filter")
    parser.add_argument("--note", default="", help="what else is to be known of the machine")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "schedules.svg"
        command = [options.partita, "bench", "schedules", "--json", "--repeats", str(options.repeats), "--svg", picture]
        command += ["--filter", options.filter] if options.filter else []
        environment = {"PARTITA_PYTHON": sys.executable, **os.environ}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
        drawn = picture.read_text()
    events = [json.loads(line) for line in done.stdout.splitlines()]
    found = next(event for event in events if event["event"] == "schedules")
    load = os.getloadavg()[1]
    text = (
        f"{date.today()}. {platform.machine()}, {os.cpu_count()} cores, load of the machine in the last five minutes {load:.1f}"
        f"{', ' + options.note if options.note else ''}. Written by `python\nbenches/schedules.py`: the middle of "
        f"{options.repeats} steps, f32. Each row has the lines of the one before and some more\n"
        "([docs/PROFILE.md](docs/PROFILE.md#what-a-schedule-is-worth)); PyTorch runs the same model on one device with as "
        f"many threads.\n\n{table(found['rungs'])}\n\n"
        "![steps per second over those of the unscheduled model](docs/images/schedules.svg)\n"
    )
    if found["without_torch"]:
        text += f"\nWithout PyTorch: {found['without_torch']}\n"
    print(text)
    if options.dry:
        return
    (ROOT / "docs" / "images" / "schedules.svg").write_text(drawn)
    page = ROOT / "BENCHMARKS.md"
    kept = re.sub(rf"\n{TITLE}\n.*?(?=\n## |\Z)", "", page.read_text(), flags=re.DOTALL).rstrip("\n")
    page.write_text(f"{kept}\n\n{TITLE}\n\n{text}")


main()
