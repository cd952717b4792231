"""What it takes to plan and lower a step as meshes and models grow: CPU seconds and the most resident memory.

    cargo build --release && python3 benches/scale.py [--command target/release/partita] [--write]

Needs Python 3 alone. Prints two tables: the bundled GPT on meshes of 2 to 16,384 ranks, and the bundled Llama of 32 to
1,000 layers on two ranks, with a 7B Llama on 1,024 ranks. With `--write` they replace the section of BENCHMARKS.md."""

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADING = "## Planning at scale\n"
MESHES = ["dp=1,tp=2", "dp=2,tp=2", "dp=2,tp=8", "dp=8,tp=8", "dp=32,tp=8", "dp=128,tp=8", "fsdp=128,tp=8", "fsdp=512,tp=8",
          "dp=2048,tp=8", "fsdp=2048,tp=8"]
LAYERS = [32, 64, 125, 250, 500, 1000]
LARGE = ["--mesh", "fsdp=128,tp=8"]
LARGE += [f"--set=model.{size}" for size in ("layers=32", "dim=4096", "heads=32", "kv_heads=32")]


def measured(command):
    """CPU seconds (user and system) and peak resident MB of one run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)}\n{said}")
    unit = 1 if platform.system() == "Darwin" else 1024
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6


def table(title, cases, runs):
    """The least of several runs of each case, as lines of a table, with how it compares with the first."""
    yield f"| {title} | CPU s | MB |"
    yield "| --- | ---: | ---: |"
    for name, command in cases:
        results = [measured(command) for _ in range(runs)]
        seconds, megabytes = (min(column) for column in zip(*results))
        yield f"| {name} | {seconds:.2f} | {megabytes:.0f} |"


def ranks(mesh):
    count = 1
    for axis in mesh.split(","):
        count *= int(axis.split("=")[1])
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into BENCHMARKS.md")
    options = parser.parse_args()
    partita = options.command
    lower = [(f"{mesh} ({ranks(mesh):,} ranks)", [partita, "lower", "gpt", "--mesh", mesh, "--counts"]) for mesh in MESHES]
    show = [(f"{n} layers, tp=2", [partita, "show", "llama", "--mesh", "tp=2", f"--set=model.layers={n}"]) for n in LAYERS]
    show += [("32 layers x 4096, fsdp=128,tp=8", [partita, "show", "llama", *LARGE])]
    lines = [time.strftime("%Y-%m-%d. ", time.gmtime()) + f"{platform.machine()}, {os.cpu_count()} cores, {platform.system().lower()}. "
             f"Written by `benches/scale.py --write`; the least of {options.runs} runs.", ""]
    print(lines[0], flush=True)
    for title, cases in (("`lower gpt --counts` on", lower), ("`show llama`", show)):
        for line in table(title, cases, options.runs):
            lines.append(line)
            print(line, flush=True)
        lines.append("")
    if options.write:
        page = ROOT / "BENCHMARKS.md"
        before, _, section = page.read_text().partition(HEADING)
        _, mark, after = section.partition("\n## ")
        text = before if before.endswith("\n\n") else before + "\n"
        page.write_text(text + HEADING + "\n" + "\n".join(lines).rstrip() + "\n" + mark + after)


if __name__ == "__main__":
    main()
