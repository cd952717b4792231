"""The plan found beside every other plan, measured: `python3 benches/planner.py [--partita PATH] [--rounds 3] [--only CASE]`.

For each model and number of ranks it measures this machine (`partita calibrate`), lets `partita plan` find a plan with these
figures, and trains with it and with every plan of an exhaustive list: each mesh over `dp`, `fsdp`, `tp` and `pp` of so many
ranks, with 1, 2 or 4 microbatches (pipelines: 2, 4 or 8, under each of three timetables), and with `tp` also sequence-parallel,
vocab-parallel and both. All are tried once; the best eight and the plan found then run in turn, round by round. Prints the
shortest step of the plan found over that of the best plan, the same by processor time, which a busy machine disturbs least, and
the spread: the largest of the shortest steps of the rounds over the smallest, for the plan found.
"""

import argparse
import itertools
import json
import pathlib
import resource
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEEP = {"model.layers": 4, "model.dim": 256, "model.heads": 4, "model.sequence": 128, "model.dropout": 0.0}
# Name: config, number of ranks, keys.
CASES = {
    "mlp": ("mlp", 2, {"model.dims": [512, 2048, 512, 2048, 512], "train.batch": 512}),
    "gpt": ("gpt", 2, DEEP | {"train.batch": 16}),
    "bert": ("bert", 2, DEEP | {"train.batch": 16}),
    "gpt4": ("gpt", 4, DEEP | {"train.batch": 16}),
    "llama4": ("llama", 4, DEEP | {"train.batch": 16}),
}
KEPT = 8


def meshes(ranks, has_layers):
    axes = ["pp", "dp", "fsdp", "tp"] if has_layers else ["dp", "fsdp", "tp"]
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for shape in itertools.product(sizes, repeat=len(axes)):
        product = 1
        for size in shape:
            product *= size
        if product == ranks:
            yield {axis: size for axis, size in zip(axes, shape) if size > 1}


def plans(ranks, kind):
    """The flags of every plan of the list."""
    for mesh in meshes(ranks, kind != "mlp"):
        shape = ["--mesh", ",".join(f"{axis}={size}" for axis, size in mesh.items())]
        styles = [[]]
        if "tp" in mesh and kind != "mlp":
            styles += [["--sequence-parallel"], ["--vocab-parallel"], ["--sequence-parallel", "--vocab-parallel"]]
        counts, timetables = ((2, 4, 8), ("1f1b", "gpipe", "zb-h1")) if "pp" in mesh else ((1, 2, 4), (None,))
        for style, count, timetable in itertools.product(styles, counts, timetables):
            order = ["--timetable", timetable] if timetable else []
            yield [*shape, "--microbatches", str(count), *style, *order]


def train(options, case, flags):
    """Milliseconds of the shortest step, and of processor time in a step; None if the plan is refused."""
    kind, _, keys = CASES[case]
    settings = [part for key, value in keys.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    shortest, cpu = float("inf"), []
    for steps in (3, 3 + options.steps):
        with tempfile.TemporaryDirectory() as folder:
            command = [options.partita, "train", kind, *settings, *flags, "--steps", str(steps), "--json", "--no-verify"]
            command += ["--no-sample", "--log-every", "1", "--set", "train.validate_every=0", "--checkpoint-dir", f"{folder}/run"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return None
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event":"step"')]
        tokens = keys["train.batch"] * keys.get("model.sequence", 1)
        shortest = min(shortest, *(1e3 * tokens / event["tokens_per_s"] for event in events[2:]))
    return shortest, 1e3 * (cpu[1] - cpu[0]) / options.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--all", action="store_true", help="print every plan")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster, found = f"{folder}/here.toml", f"{folder}/plan.toml"
        subprocess.run([options.partita, "calibrate", "--out", cluster], check=True, capture_output=True)
        print("| case | plans | plan found | ms | best plan | ms | found / best | by CPU | spread |\n|---|---:|---|---:|---|---:|---:|---:|---:|")
        for case in options.only:
            kind, ranks, keys = CASES[case]
            settings = [part for key, value in keys.items() for part in ("--set", f"{key}={json.dumps(value)}")]
            pathlib.Path(found).unlink(missing_ok=True)
            command = [options.partita, "plan", kind, *settings, "--cluster", cluster, "--devices", str(ranks), "--json"]
            done = subprocess.run([*command, "--out", found], check=True, capture_output=True, text=True)
            answer = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event":"plan"'))
            flags = [*answer["candidates"][0]["flags"].split(), "--plan", found]
            runs = {tuple(flags): []} | {tuple(other): [] for other in plans(ranks, kind)}
            for other in runs:
                measured = train(options, case, other)
                runs[other] += [measured] if measured else []
            runs = {other: rows for other, rows in runs.items() if rows}
            order = sorted(runs, key=lambda other: runs[other][0])
            for other in order if options.all else []:
                print(f"{' '.join(other)}: {runs[other][0][0]:.2f} ms, CPU {runs[other][0][1]:.2f} ms", flush=True)
            kept = [tuple(flags), *(other for other in order[:KEPT] if other != tuple(flags))]
            for _ in range(options.rounds):
                for other in kept:
                    runs[other].append(train(options, case, other))
            least = lambda other, place: min(row[place] for row in runs[other])
            best = min(kept, key=lambda other: least(other, 0))
            ratio = [least(tuple(flags), place) / min(least(other, place) for other in kept) for place in (0, 1)]
            tries = [row[0] for row in runs[tuple(flags)]]
            name = lambda of: " ".join(of).replace(f" --plan {found}", "")
            print(
                f"| {case} | {len(runs)} | {name(flags)} | {least(tuple(flags), 0):.2f} | {name(best)} | {least(best, 0):.2f} "
                f"| {ratio[0]:.3f} | {ratio[1]:.3f} | {max(tries) / min(tries):.3f} |",
                flush=True,
            )


main()
