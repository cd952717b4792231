"""Our partition against XLA's own: the same step, the same devices, the same compiler, who partitions differs.

    python tests/xla/sharding.py [--partita COMMAND] [--rounds N] [--only MODEL:MESH] [--hlo DIR]

For each model and mesh the step is exported three times. `uniform`: we partition, XLA compiles one local program.
`global`: XLA partitions with our layout on every value. `propagated`: as `global`, but annotations are left on the
arguments and results alone, that is on parameters, state and batch, as a user of jax.jit gives them; XLA's propagation
finds the others. All three are compiled in one process with a CPU device for each rank, and run in turn, some steps of each
in every round. Prints a table of the collectives that run, the bytes of their results on one device, and the medians of the
CPU time and the wall time of a step, each also relative to `propagated` in the same round. Losses of all three must agree.
With --hlo the compiled programs are written to a folder."""

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = ["model.layers=2", "model.dim=128", "model.heads=4", "model.sequence=64", "train.batch=8", "model.dropout=0.0"]
CASES = [
    ("mlp", "dp=4", "model.dims=[256,1024,1024,256]", "train.batch=64"),
    ("mlp", "tp=4", "model.dims=[256,1024,1024,256]", "train.batch=64"),
    ("gpt", "dp=4", *SMALL), ("gpt", "fsdp=4", *SMALL), ("gpt", "tp=4", *SMALL), ("gpt", "dp=2,tp=2", *SMALL),
    ("llama", "dp=2,tp=2", *SMALL), ("llama", "fsdp=4", *SMALL), ("bert", "dp=2,tp=2", *SMALL), ("vit", "dp=4"),
    ("wide-resnet", "sp=4", "train.batch=4"), ("unet", "sp=4", "train.batch=4"),
]
DEVICES = 4
FORMS = ["uniform", "global", "propagated"]
# Steps of a form in a round, after one that is not timed.
STEPS = 5


def propagated(text):
    """A module without the annotations and constraints of its body."""
    body = re.compile(r",? ?sdy\.sharding = #sdy\.sharding_per_value<\[.*?>\]>")
    constraint = re.compile(r"\s*(%\w+) = sdy\.sharding_constraint (%\w+) ")
    kept, same = [], {}
    for line in text.split("\n"):
        if "func.func" in line:
            same = {}
        elif "sdy." in line and "sdy.mesh" not in line:
            if found := constraint.match(line):
                same[found[1]] = same.get(found[2], found[2])
                continue
            line = body.sub("", line)
            assert "sdy." not in line, f"an annotation is left in the body: {line}"
        kept.append(re.sub(r"%\w+", lambda name: same.get(name[0], name[0]), line))
    return "\n".join(kept)


def exported(partita, case, steps, folder):
    """The folders of a step by form."""
    model, mesh, *settings = case
    settings = [*settings, f"mesh.shape={mesh}", f"train.steps={steps}"]
    flags = [part for setting in settings for part in ("--set", setting)]
    folders = {form: folder / form for form in FORMS}
    for form, out in folders.items():
        as_form = "global" if form == "propagated" else form
        command = [*partita, "export", model, "--for", "xla", "--form", as_form, "--out", str(out), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    file = folders["propagated"] / "step.mlir"
    whole = file.read_text()
    file.write_text(propagated(whole))
    assert file.read_text() != whole, f"{model} {mesh} has no annotations in its body"
    return folders


class Step:
    """An exported step, compiled, with its batches."""

    def __init__(self, folder):
        specification = importlib.util.spec_from_file_location("run", folder / "run.py")
        runner = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(runner)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.feeds = runner.read_safetensors(folder / "feeds.safetensors")
        initial = runner.read_safetensors(folder / "state.safetensors")
        self.run = runner.Run(self.manifest, lambda file: (folder / file).read_text(), initial)
        self.losses = []

    def step(self):
        """Runs the next step to its end. Its CPU seconds, of all threads, and its wall seconds."""
        import jax

        number = self.run.steps + 1
        batch = f"{number}/"
        fed = {name.removeprefix(batch): value for name, value in self.feeds.items() if name.startswith(batch)}
        fed |= {"learning_rate": self.manifest["learning_rates"][number - 1], "step": number, "seed": self.manifest["seed"]}
        cpu, wall = time.process_time(), time.perf_counter()
        values = self.run.step(fed)
        jax.block_until_ready([array for _, _, array in self.run.kept.values()])
        times = time.process_time() - cpu, time.perf_counter() - wall
        self.losses.append(float(values["loss"]))
        return times

    def hlo(self):
        return "".join(module.to_string() for program in self.run.programs for module in program.executable.hlo_modules())


def measure(steps, rounds):
    """For each form the medians of CPU and wall seconds of a step; and the medians over rounds of both relative to the last
    form in the same round."""
    medians = {form: [] for form in steps}
    for _ in range(rounds):
        for form, step in steps.items():
            step.step()
            medians[form].append([statistics.median(times) for times in zip(*(step.step() for _ in range(STEPS)))])
    base = medians[FORMS[-1]]
    found = {}
    for form, rows in medians.items():
        times = [statistics.median(column) for column in zip(*rows)]
        ratios = [[own / other for own, other in zip(*pair)] for pair in zip(rows, base)]
        found[form] = times, [statistics.median(column) for column in zip(*ratios)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", type=Path, help="the command; python -m partita by default")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", help="one case, such as gpt:fsdp=4")
    parser.add_argument("--hlo", type=Path, metavar="DIR", help="write the compiled programs to this folder")
    options = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: this Python has no jax")
        return
    # Read when jax is imported.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
    import jax

    jax.config.update("jax_enable_x64", True)
    partita = [str(options.partita)] if options.partita else [sys.executable, "-m", "partita"]
    failed = 0
    print("| model | who partitions | collectives | bytes | CPU ms | ms | x CPU of propagated | x ms of propagated |")
    print("|---|---|---|---:|---:|---:|---:|---:|", flush=True)
    for case in CASES:
        name = f"{case[0]}:{case[1]}"
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folders = exported(partita, case, options.rounds * (STEPS + 1), Path(temporary))
            steps = {form: Step(folder) for form, folder in folders.items()}
            found = measure(steps, options.rounds)
        for form, step in steps.items():
            (cpu, wall), ratios = found[form]
            expected = steps[FORMS[0]].losses
            is_equal = all(abs(a - b) <= 1e-4 * abs(a) for a, b in zip(expected, step.losses, strict=True))
            failed += not is_equal
            kinds = step.run.collectives()
            counts = ", ".join(f"{count['compiled']} {kind}" for kind, count in kinds.items()) or "none"
            total = sum(count["bytes"] for count in kinds.values())
            print(
                f"| {name.replace(':', ' ')} | {form} | {counts} | {total} | {1000 * cpu:.1f} | {1000 * wall:.1f} "
                f"| {ratios[0]:.2f} | {ratios[1]:.2f} |{'' if is_equal else ' OTHER LOSSES'}",
                flush=True,
            )
            if options.hlo:
                options.hlo.mkdir(parents=True, exist_ok=True)
                (options.hlo / f"{name.replace(':', '-')}-{form}.txt").write_text(step.hlo())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
