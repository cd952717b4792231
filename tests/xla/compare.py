"""Compares training under XLA with training by `partita train`: losses of every step, and the state after the last.

For each model and mesh it exports the step in both forms, runs it through jaxlib on as many CPU devices as the mesh has
ranks, and trains the same config natively. After one step the states of the optimizer show every gradient (the first
average of Adam is a multiple of it), so equal states after one and after many steps mean equal gradients.

    python tests/xla/compare.py [--partita COMMAND] [--steps N] [--only MODEL:MESH]

Without --partita the command is that of the Python package, `python -m partita`. Without jax it says so and ends well.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = [
    ("mlp", "tp=2"), ("mlp", "dp=2"), ("mlp", "dp=2,tp=2"), ("mlp", "fsdp=4"), ("mlp", "dp=3"),
    ("gpt", "tp=2"), ("gpt", "dp=2"), ("gpt", "dp=2,tp=2"), ("gpt", "fsdp=4"), ("gpt", "dp=3"), ("gpt", "fsdp=3"),
    ("gpt", "fsdp=2,tp=2"),
]
SETTINGS = {"mlp": [], "gpt": ["model.layers=2", "model.dim=64", "model.heads=4", "model.sequence=32", "train.batch=8"]}
TOLERANCE = 1e-4


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def tensors(runner, path):
    import numpy as np

    return {name: np.asarray(value, np.float64) for name, value in runner.read_safetensors(path).items()}


def largest_difference(expected, found):
    """The largest difference of optimizer states, relative to the largest state of their slot, and of parameters, relative to
    the largest parameter.

    Adam divides a gradient by its own size. Of a gradient that is zero but for rounding, such as that of the bias of the
    keys of attention, it makes an update of full size and random sign: such elements of parameters are not compared.
    """
    import numpy as np

    slots = {}
    for name in expected:
        slot = name.split(".")[1] if name.startswith("optimizer.") else ""
        slots.setdefault(slot, []).append(name)
    largest = {slot: max(abs(expected[name]).max(initial=0.0) for name in names) for slot, names in slots.items()}
    worst = 0.0
    for slot, names in slots.items():
        for name in names:
            difference = abs(found[name] - expected[name]) / largest[slot]
            if not slot:
                average = abs(expected[f"optimizer.exp_avg.{name}"])
                difference = np.where(average > 1e-5 * largest["exp_avg"], difference, 0.0)
            worst = max(worst, difference.max(initial=0.0))
    return worst


def compare(partita: list, model, mesh, steps, form, folder):
    """The largest relative difference of losses, that of states after the last step, and the counts of collectives."""
    settings = [f"train.steps={steps}", f"mesh.shape={mesh}", *SETTINGS[model]]
    flags = [part for setting in settings for part in ("--set", setting)]
    exported = folder / f"{form}-{steps}"
    run(*partita, "export", model, "--for", "xla", "--form", form, "--out", exported, *flags)
    spec = importlib.util.spec_from_file_location("run", exported / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    state = exported / "after.safetensors"
    printed = lines(run(sys.executable, exported / "run.py", "--json", "--collectives", "--save", state))
    theirs = [line["loss"] for line in printed if "loss" in line]
    counts = {line.pop("kind"): line for line in printed if "kind" in line}
    native = folder / f"native-{form}-{steps}"
    trained = lines(run(*partita, "train", model, "--json", "--no-verify", "--checkpoint-dir", native, *flags))
    ours = [line["loss"] for line in trained if line.get("event") == "step"]
    assert len(ours) == len(theirs) == steps, (len(ours), len(theirs))
    losses = max(abs(a - b) / abs(a) for a, b in zip(ours, theirs))
    files = sorted(native.glob(f"step-*{steps}/*.safetensors"))
    assert len(files) == 2, "parameters and states of the optimizer"
    expected = {name: value for file in files for name, value in tensors(runner, file).items()}
    found = tensors(runner, state)
    missing = set(expected) ^ set(found)
    assert not missing, missing
    return losses, largest_difference(expected, found), counts


def compare_engine(partita: list, model, mesh, steps, folder):
    """The largest relative difference of losses between `train --engine xla` and the native engine: of a run from the
    beginning, and of one that continues it under XLA, and one natively, from its checkpoint in the middle."""
    half = steps // 2
    settings = [f"train.steps={steps}", f"mesh.shape={mesh}", f"checkpoint.every={half}", *SETTINGS[model]]
    flags = [part for setting in settings for part in ("--set", setting)]

    def train(name, *more):
        command = [*partita, "train", model, "--json", "--no-verify", "--checkpoint-dir", folder / name, *flags, *more]
        events = lines(run(*command))
        assert [event for event in events if event["event"] == "summary"], name
        return [event["loss"] for event in events if event.get("event") == "step"]

    expected = train("native")
    (folder / "xla").mkdir()
    whole = train("xla/whole", "--engine", "xla")
    middle = folder / "xla" / "whole" / f"step-{half:08}"
    resumed = train("xla/resumed", "--engine", "xla", "--resume", middle)
    back = train("xla/back", "--resume", middle)
    assert (len(whole), len(resumed), len(back)) == (steps, steps - half, steps - half)
    pairs = [*zip(expected, whole), *zip(expected[half:], resumed), *zip(expected[half:], back)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", type=Path, help="the command; python -m partita by default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", help="one case, such as gpt:fsdp=4")
    options = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: this Python has no jax")
        return
    partita = [options.partita] if options.partita else [sys.executable, "-m", "partita"]
    failed = 0
    for model, mesh in CASES:
        if options.only not in (None, f"{model}:{mesh}"):
            continue
        for form in ("uniform", "global"):
            with tempfile.TemporaryDirectory() as folder:
                first = compare(partita, model, mesh, 1, form, Path(folder))
                all_steps = compare(partita, model, mesh, options.steps, form, Path(folder))
                engine = compare_engine(partita, model, mesh, options.steps, Path(folder)) if form == "uniform" else 0.0
            is_equal = max(*first[:2], all_steps[0], engine) <= TOLERANCE
            kinds = [f"{kind} {c['module']} -> {c['compiled']} of {c['tensors']} tensors" for kind, c in first[2].items()]
            failed += not is_equal
            print(
                f"{model} {mesh} {form}: losses of {options.steps} steps within {all_steps[0]:.1e}; state after 1 step "
                f"within {first[1]:.1e}, after {options.steps} within {all_steps[1]:.1e}; "
                f"train --engine xla within {engine:.1e}; collectives of the module -> as compiled: {', '.join(kinds)}{'' if is_equal else '  DIFFERS'}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
