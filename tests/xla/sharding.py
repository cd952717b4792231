"""Our partition against XLA's own: the same step, the same devices, the same compiler, who partitions differs.

    python tests/xla/sharding.py [--partita COMMAND] [--rounds N] [--only MODEL:MESH]

For each model and mesh the step is exported three times. `uniform`: we partition, XLA compiles one local program.
`global`: XLA partitions with our layout on every value. `propagated`: as `global`, but annotations are left on the
arguments and results alone, that is on parameters, state and batch, as a user of jax.jit gives them; XLA's propagation
finds the others. Each runs on as many CPU devices of one process as the mesh has ranks, in turn, round by round. Prints a
table of the collectives that run, the bytes of their results on one device, and the CPU time and wall time of a step.
Losses of all three must agree."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["model.layers=2", "model.dim=128", "model.heads=4", "model.sequence=64", "train.batch=8", "model.dropout=0.0"]
CASES = [
    ("mlp", "dp=4", "model.dims=[256,1024,1024,256]", "train.batch=64"),
    ("mlp", "tp=4", "model.dims=[256,1024,1024,256]", "train.batch=64"),
    ("gpt", "dp=4", *SMALL), ("gpt", "fsdp=4", *SMALL), ("gpt", "tp=4", *SMALL), ("gpt", "dp=2,tp=2", *SMALL),
    ("llama", "dp=2,tp=2", *SMALL), ("llama", "fsdp=4", *SMALL), ("bert", "dp=2,tp=2", *SMALL), ("vit", "dp=4"),
]
FORMS = ["uniform", "global", "propagated"]


def propagated(text):
    """A module without the annotations of its body."""
    body = re.compile(r",? ?sdy\.sharding = #sdy\.sharding_per_value<\[.*?>\]>")
    return "\n".join(line if "func.func" in line else body.sub("", line) for line in text.split("\n"))


def measure(python, folder, steps):
    """The losses, the counts of collectives, the least seconds of a step, and CPU seconds of a step."""
    found = {}
    for count in (2, steps):
        before = os.times()
        command = [python, str(folder / "run.py"), "--json", "--collectives", "--steps", str(count)]
        done = subprocess.run(command, capture_output=True, text=True)
        after = os.times()
        if done.returncode != 0:
            raise SystemExit(f"{folder}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        found[count] = (lines, cpu)
    lines = found[steps][0]
    kinds = [line for line in lines if "kind" in line]
    seconds = [line["seconds"] for line in lines if "loss" in line][1:]
    losses = [line["loss"] for line in lines if "loss" in line]
    return losses, kinds, min(seconds), (found[steps][1] - found[2][1]) / (steps - 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", type=Path, help="the command; python -m partita by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", help="one case, such as gpt:fsdp=4")
    options = parser.parse_args()
    partita = [str(options.partita)] if options.partita else [sys.executable, "-m", "partita"]
    failed = 0
    print("| model | who partitions | collectives | bytes | CPU ms | ms | x CPU of uniform | x ms of uniform |")
    print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for model, mesh, *settings in CASES:
        if options.only not in (None, f"{model}:{mesh}"):
            continue
        settings = [*settings, f"mesh.shape={mesh}", f"train.steps={options.steps}"]
        flags = [part for setting in settings for part in ("--set", setting)]
        with tempfile.TemporaryDirectory() as temporary:
            folders = {form: Path(temporary) / form for form in FORMS}
            for form, folder in folders.items():
                as_form = "global" if form == "propagated" else form
                command = [*partita, "export", model, "--for", "xla", "--form", as_form, "--out", str(folder), *flags]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0:
                    raise SystemExit(done.stderr)
            file = folders["propagated"] / "step.mlir"
            file.write_text(propagated(file.read_text()))
            found = {form: [] for form in FORMS}
            for _ in range(options.rounds):
                for form in FORMS:
                    found[form].append(measure(sys.executable, folders[form], options.steps))
        base = [min(row[place] for row in found["uniform"]) for place in (2, 3)]
        expected = found["uniform"][0][0]
        for form in FORMS:
            losses, kinds, *_ = found[form][0]
            seconds, cpu = (min(row[place] for row in found[form]) for place in (2, 3))
            is_equal = all(abs(a - b) <= 1e-4 * abs(a) for a, b in zip(expected, losses))
            failed += not is_equal
            counts = ", ".join(f"{kind['compiled']} {kind['kind']}" for kind in kinds) or "none"
            total = sum(kind["bytes"] for kind in kinds)
            print(
                f"| {model} {mesh} | {form} | {counts} | {total} | {1000 * cpu:.1f} | {1000 * seconds:.1f} "
                f"| {cpu / base[1]:.2f} | {seconds / base[0]:.2f} |{'' if is_equal else ' OTHER LOSSES'}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
