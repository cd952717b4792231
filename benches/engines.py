"""The same training step on every engine of this machine, in turn, round by round.

    python3 benches/engines.py --partita target/release/partita --mpi crates/mpi/target/release/partita-mpi \
        --python VENV/bin/python [--mesh dp=2] [--rounds 3] [--only native mpi2 mpi4 xla]

For each mesh it trains a GPT (6 layers of width 384, 8 heads, 8 rows of 256) in one process, under MPI in 2 and 4 processes,
and under XLA in one process. Prints the least and the median time of a
step, the CPU time of a step over all processes, and each as a multiple of the native engine's. CPU time is that of a run
minus that of one of two steps, so that starting is not in it. Needs Python 3 alone; engines that are missing are skipped."""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = {"layers": 6, "dim": 384, "heads": 8, "sequence": 256, "dropout": 0.0}
ROWS = 8
MPI = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]


def commands(options):
    """The start of the command of each engine, and its name."""
    found = {"native": ([options.partita], "native")}
    if options.mpi and shutil.which("mpirun"):
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        for count in (2, 4):
            found[f"mpi{count}"] = (["mpirun", *root, *MPI, "-n", str(count), options.mpi], "mpi")
    found["xla"] = ([options.partita], "xla")
    return {name: command for name, command in found.items() if options.only is None or name in options.only}


def run(command, steps, options, mesh):
    """The seconds of each step but the first two, and the CPU seconds of all processes; None where it fails."""
    settings = [f"model.{key}={value}" for key, value in SMALL.items()]
    settings += [f"train.batch={ROWS}", f"train.steps={steps}", "train.validate_every=0", f"mesh.shape={mesh}"]
    start, engine = command
    with tempfile.TemporaryDirectory() as folder:
        flags = [part for setting in settings for part in ("--set", setting)]
        flags += ["--json", "--no-verify", "--no-sample", "--checkpoint-dir", f"{folder}/run"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*start, "train", "gpt", "--engine", engine, *flags],
            capture_output=True,
            text=True,
            env=os.environ | {"PARTITA_PYTHON": options.python, "JAX_PLATFORMS": "cpu"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        print(f"skipped: {engine}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
        return None
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    seconds = [ROWS * SMALL["sequence"] / event["tokens_per_s"] for event in events if event["event"] == "step"]
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds[2:], cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--mpi", help="the command partita-mpi")
    parser.add_argument("--python", default=sys.executable, help="a Python with jax")
    parser.add_argument("--mesh", nargs="+", default=["dp=4", "fsdp=4", "tp=4"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", nargs="+", help="engines: native, mpi2, mpi4, xla")
    options = parser.parse_args()
    print("| mesh | engine | least ms | median ms | CPU ms | x least | x CPU |\n|---|---|---:|---:|---:|---:|---:|")
    for mesh in options.mesh:
        engines = commands(options)
        steps, cpu = {name: [] for name in engines}, {name: [] for name in engines}
        for _ in range(options.rounds):
            for name, command in list(engines.items()):
                short = run(command, 2, options, mesh)
                long = short and run(command, options.steps, options, mesh)
                if long is None:
                    del engines[name]
                    continue
                steps[name] += long[0]
                cpu[name].append((long[1] - short[1]) / (options.steps - 2))
        base = min(steps.get("native") or [float("nan")]), min(cpu.get("native") or [float("nan")])
        for name in engines:
            least, busy = min(steps[name]), min(cpu[name])
            print(
                f"| {mesh} | {name} | {1000 * least:.0f} | {1000 * statistics.median(steps[name]):.0f} | {1000 * busy:.0f} "
                f"| {least / base[0]:.2f} | {busy / base[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
