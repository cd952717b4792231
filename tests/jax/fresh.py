"""Compares what Partita computes for the steps of `models.py` with what JAX computes.

    python tests/jax/fresh.py FOLDER PARTITA [NAME..]

Lowers each step into FOLDER anew and, on each mesh, compares all results of one step by `partita verify --against`, on the
interpreter and on the CPU device, and the losses of three steps by `partita train`. Prints a table of the largest relative
differences, and for steps with layouts of their own the collectives of a rank, in number and bytes, beside those that XLA
compiles. Fails if a difference is above the tolerance of the step.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
from safetensors.numpy import save_file

# Of each step, what `tp` shards: by module, parameters and the dimension of each.
DECODER = {"state.params.layers.0": {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "down": 0}, "state.params": {"head": 1}}
PLANS = {
    "mlp_adam": {"state.params.layer0": {"w": 1, "b": 0}, "state.params.layer1": {"w": 0}},
    "decoder_adamw_clipped": DECODER,
    "decoder_bf16": DECODER,
    "cnn_batch_norm": {"state.params": {"conv2": 3, "head": 0}},
    "scan_remat_dropout": {"state.params": {"up": 2, "down": 1}},
    "mixture_of_experts": {"state.params": {"up": 0, "down": 0}},
    "flax_module": {"state.params.params.Dense_1": {"kernel": 1, "bias": 0}, "state.params.params.Dense_0": {"kernel": 0}},
    "haiku_module": {"state.params.net/~/linear_0": {"w": 1, "b": 0}, "state.params.net/~/linear_1": {"w": 0}},
}


def plan_of(name, mesh):
    lines = ["[plan]"]
    for module, shards in PLANS.get(name, {}).items() if mesh == "tp=2" else ():
        styles = [f"shard({parameter}, {dim})" for parameter, dim in shards.items()]
        lines.append(f'"{module}" = {json.dumps(styles)}')
    return "\n".join([*lines, ""])


def events(partita, *arguments):
    """What a command prints, and why it fails if it does."""
    run = subprocess.run([partita, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=900)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode not in (0, 1) or not found:
        raise RuntimeError(run.stderr.strip()[:2000])
    return found


def collectives(partita, model, mesh):
    """The collectives of rank 0 and the bytes of their results."""
    run = subprocess.run([partita, "lower", model, "--mesh", mesh, "--stage", "program"], capture_output=True, text=True)
    sizes = {"f32": 4, "bf16": 2, "i32": 4, "u32": 4, "f64": 8, "bool": 1}
    started = [re.sub(" <- .*", "", line) for line in run.stdout.splitlines() if re.search(r"\bstart #", line)]
    tensors = [tensor for line in started for tensor in re.findall(r"@\d+:(\w+)\[([\d,]*)\]", line)]
    return len(started), sum(sizes[ty] * int(np.prod([int(n) for n in dims.split(",") if n])) for ty, dims in tensors)


def compare(partita, folder, name, mesh, losses):
    """The largest differences of one step's results, by runner, and of the losses of three steps."""
    model, record, plan = (folder / f"{name}.{ending}" for ending in ("mlir", "npz", "toml"))
    plan.write_text(plan_of(name, mesh))
    common = [model, "--mesh", mesh, "--plan", plan]
    found = []
    for runner in ("interpreter", "cpu"):
        told = events(partita, "verify", *common, "--runner", runner, "--against", record)
        skipped = [event["message"] for event in told if "not compared" in event.get("message", "")]
        verified = [event for event in told if event["event"] == "verify"]
        if skipped or not verified:
            raise RuntimeError("\n".join(skipped) or f"{runner}: no result")
        found.append(verified[-1]["worst"]["rel_error"])
    start = np.load(record)
    data, weights = folder / "data.npz", folder / "start.safetensors"
    np.savez(data, **{key: start[key] for key in start if key.startswith("batch.")})
    save_file({key: start[key] for key in start if key.startswith("state.")}, weights)
    settings = ["--data", data, "--steps", len(losses), "--set", f"model.weights={weights}"]
    told = events(partita, "train", *common, *settings)
    trained = [event["loss"] for event in told if event["event"] == "step"]
    if len(trained) != len(losses):
        raise RuntimeError(f"trained {len(trained)} steps of {len(losses)}: {told[-1]}")
    found.append(max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(trained, losses, strict=True)))
    return found


def main(folder, partita, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    print("| step | mesh | interpreter | CPU | three losses | within | collectives | XLA |")
    print("|---" * 8 + "|")
    for make in models.STEPS + models.SHARDED:
        if names and make.__name__ not in names:
            continue
        make().files(folder)
        name = make.__name__
        facts = json.loads((folder / f"{name}.json").read_text())
        for mesh in [facts["mesh"]] if facts["mesh"] else ["dp=1", "dp=2", "tp=2"]:
            cells = [name, mesh]
            try:
                found = compare(partita, folder, name, mesh, facts["losses"])
                cells += [f"{difference:.0e}" for difference in found] + [f"{facts['tolerance']:.0e}"]
                if max(found) > facts["tolerance"]:
                    failures.append(f"{name} on {mesh}: {found}")
                if facts["mesh"]:
                    own = collectives(partita, folder / f"{name}.mlir", mesh)
                    cells += ["{}, {} bytes".format(*counts) for counts in (own, facts["collectives"])]
            except RuntimeError as error:
                cells.append("refused")
                failures.append(f"{name} on {mesh}: {error}")
            print("|", " | ".join(cells + [""] * (8 - len(cells))), "|", flush=True)
    print("\n".join(failures), file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
