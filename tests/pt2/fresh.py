#!/usr/bin/env python3
"""Exports models with the installed PyTorch and compares what meshes compute with what PyTorch computed.

    python3 fresh.py FOLDER PARTITA [NAME..]

For each model of `MODELS` (or those named) and each mesh: outputs, loss and all gradients by `partita verify --against`, and the
losses of five steps of SGD and of AdamW by `partita train`, all against the numbers that `make.py` records. Prints a table of
the largest relative differences and fails if one is above its bound. Needs torch, safetensors and, for `hf_*`, transformers.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import make

# The modules that tensor-parallel plans split: columns, then rows. A model without them is replicated over `tp`.
MODELS = {
    "mlp": (["model.0"], ["model.2"]),
    "mlp_uneven": (["model.0"], ["model.3"]),
    "mlp_bf16": (["model.0"], ["model.2"]),
    "mlp_dynamic": (["model.0"], ["model.2"]),
    "gpt": (["h.*.attn.qkv", "h.*.mlp.0"], ["h.*.attn.out", "h.*.mlp.2"]),
    "gpt_manual": (["h.*.attn.qkv", "h.*.mlp.0"], ["h.*.attn.out", "h.*.mlp.2"]),
    "bert": (["layer.linear1"], ["layer.linear2"]),
    "llama": (["layers.*.gate", "layers.*.up"], ["layers.*.down"]),
    "conv": ([], []),
    "lstm": ([], []),
    "hf_gpt2": (["transformer.h.*.mlp.c_fc"], ["transformer.h.*.mlp.c_proj"]),
    "hf_gpt2_eager": (["transformer.h.*.mlp.c_fc"], ["transformer.h.*.mlp.c_proj"]),
    "hf_bert": (["bert.encoder.layer.*.intermediate.dense"], ["bert.encoder.layer.*.output.dense"]),
    "hf_llama": (["model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj"], ["model.layers.*.mlp.down_proj"]),
    "hf_mixtral": (["model.layers.*.self_attn.q_proj"], ["model.layers.*.self_attn.o_proj"]),
    "hf_mixtral_grouped": (["model.layers.*.self_attn.q_proj"], ["model.layers.*.self_attn.o_proj"]),
}
# As recorded, but with a block for each of two stages.
make.CASES["gpt_manual"] = lambda: (make.Gpt(manual=True, tied=False), make.tokens(), {})
make.CASES["llama"] = lambda: (make.Llama(layers=2), make.tokens(ignored=False), {})
MESHES = ("dp=1", "tp=2", "dp=2,tp=2", "fsdp=4", "pp=2")
STEPS = {
    "sgd": ["optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.05"],
    "adamw": ["optimizer.kind=adamw", "optimizer.weight_decay=0.1", "optimizer.learning_rate=0.01", "optimizer.decay_1d=true"],
}


def plan_of(name, mesh):
    columns, rows = MODELS[name]
    lines = [f'"{module}" = "colwise"' for module in columns] + [f'"{module}" = "rowwise"' for module in rows]
    lines = lines if "tp" in mesh else ['"*" = "fsdp"'] if "fsdp" in mesh else []
    return "\n".join(["[plan]", *lines, ""])


def events(partita, *arguments):
    """What a command prints, and why it fails if it does."""
    run = subprocess.run([partita, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return run.returncode, found, run.stderr.strip()


def compare(partita, folder, name, mesh):
    """The largest relative differences: of tensors, and of the losses of each optimizer."""
    model, record = folder / f"{name}.pt2", load_file(folder / f"{name}.safetensors")
    plan, data = folder / "plan.toml", folder / "data.safetensors"
    plan.write_text(plan_of(name, mesh))
    save_file({key.removeprefix("input."): value for key, value in record.items() if key.startswith("input.")}, data)
    common = [model, "--mesh", mesh, "--plan", plan]
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        outputs = file.metadata()["outputs"].split(",")
    # Outputs by the names that the model gives them; the loss has its own entry.
    named = {key: value for key, value in record.items() if not key.startswith(("output.", "steps.", "buffer.", "other."))}
    returned = {output: record[f"output.{i}"] for i, output in enumerate(outputs)}
    named |= {output: value for output, value in returned.items() if not value.equal(record["loss"])}
    save_file(named, folder / "record.safetensors")
    code, found, error = events(partita, "verify", *common, "--against", folder / "record.safetensors")
    skipped = [event["message"] for event in found if "not compared" in event.get("message", "")]
    if skipped:
        raise RuntimeError("\n".join(skipped))
    verified = [event for event in found if event["event"] == "verify"]
    if code not in (0, 1) or not verified:
        raise RuntimeError(error[:1000])
    differences = [verified[-1]["worst"]["rel_error"]]
    for optimizer, settings in STEPS.items():
        checkpoint = folder / "run"
        shutil.rmtree(checkpoint, ignore_errors=True)
        settings = [item for setting in [*settings, f"data.path={data}"] for item in ("--set", setting)]
        code, found, error = events(partita, "train", *common, "--steps", 5, "--checkpoint-dir", checkpoint, *settings)
        losses = [event["loss"] for event in found if event["event"] == "step"]
        if code != 0 or len(losses) != 5:
            raise RuntimeError(error[:1000])
        expected = record[f"steps.{optimizer}"].double().tolist()
        differences.append(max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(losses, expected)))
    return differences


def decomposed(partita, folder):
    """A model with an unknown op is refused with the call of PyTorch that makes it known."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.w = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.randn(4))

        def forward(self, x, y):
            out = torch.sinc(torch.addr(self.a(x), self.w, self.w))
            return {"loss": torch.nn.functional.mse_loss(out, y), "out": out}

    torch.manual_seed(7)
    model, inputs, file = Net(), {"x": torch.randn(4, 4), "y": torch.randn(4, 4)}, folder / "decomposed.pt2"
    program = torch.export.export(model, (), kwargs=inputs)
    torch.export.save(program, file)
    _, _, error = events(partita, "show", file)
    calls = [part for part in error.split("`") if part.startswith("table = torch.export.")]
    if len(calls) != 1 or "E355" not in error:
        raise RuntimeError(f"no call that decomposes: {error[:1000]}")
    names = {"torch": torch, "program": program}
    exec(calls[0], names)
    torch.export.save(names["program"], file)
    returned = model(**inputs)
    returned["loss"].backward()
    record = {f"input.{key}": value for key, value in inputs.items()} | {key: v.detach() for key, v in returned.items()}
    record |= {f"grad.{key}": value.grad for key, value in model.named_parameters()}
    save_file({key: value.contiguous() for key, value in record.items()}, folder / "decomposed.safetensors")
    code, _, error = events(partita, "verify", file, "--against", folder / "decomposed.safetensors")
    if code != 0:
        raise RuntimeError(f"the decomposed model: {error[:1000]}")


def main(folder, partita, *names):
    folder = Path(folder)
    names = names or tuple(MODELS)
    make.main(folder, *[name for name in names if not name.startswith("hf_")])
    if any(name.startswith("hf_") for name in names):
        make.main(folder, "--hugging-face", *[name for name in names if name.startswith("hf_")])
    failures = []
    try:
        decomposed(partita, folder)
    except RuntimeError as error:
        failures.append(str(error))
    print("| model |", " | ".join(MESHES), "|")
    print("|---" * (len(MESHES) + 1) + "|")
    for name in names:
        bound, cells = 2e-2 if "bf16" in name else 1e-4, []
        for mesh in MESHES:
            try:
                differences = compare(partita, folder, name, mesh)
                cells.append(" ".join(f"{difference:.0e}" for difference in differences))
                # Five steps multiply the rounding errors of one.
                if not all(d <= b for d, b in zip(differences, (bound, 10 * bound, 10 * bound))):
                    failures.append(f"{name} on {mesh}: {cells[-1]}")
            except RuntimeError as error:
                cells.append("refused")
                failures.append(f"{name} on {mesh}: {error}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    print("\n".join(failures), file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
