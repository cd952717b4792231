#!/usr/bin/env python3
"""A GPT-2 of Hugging Face from PyTorch to four ranks and back.

    python3 hugging_face.py FOLDER PARTITA

Exports `GPT2LMHeadModel` with a tiny random config, trains it by `partita train` on `dp=2,tp=2` under the plan below, writes its
weights by `partita export`, loads them with `load_state_dict(strict=True)`, and compares them and the loss with what PyTorch
gets by the same steps of AdamW on one device. Fails if they differ. Needs torch, transformers and safetensors.
"""

import copy
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import make
from fresh import events

PLAN = """[plan]
"transformer.wte" = "rowwise"
"transformer.h.*.attn.c_attn" = "colwise"
"transformer.h.*.attn.c_proj" = "rowwise"
"transformer.h.*.mlp.c_fc" = "colwise"
"transformer.h.*.mlp.c_proj" = "rowwise"
"transformer.h.*" = "checkpoint"
"*" = "zero1(axis='dp')"
"""
STEPS, ROWS = 20, 4
SETTINGS = ["optimizer.kind=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=0.1", "optimizer.decay_1d=true",
            "data.validation_fraction=0"]


def run(partita, *arguments):
    code, found, error = events(partita, *arguments)
    if code != 0:
        sys.exit(f"{arguments}: {error}")
    return found


def main(folder, partita):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    model, _, _ = dict(make.hugging_face())["hf_gpt2"]()
    # Each token is the one before it plus 1: something that can be learnt.
    ids = (torch.randint(31, (STEPS * ROWS, 1)) + torch.arange(8)) % 31
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    save_file(data, folder / "data.safetensors")
    batch = lambda step: {key: value[step * ROWS : (step + 1) * ROWS] for key, value in data.items()}
    torch.export.save(torch.export.export(model, (), kwargs=batch(0)), folder / "gpt2.pt2")
    (folder / "plan.toml").write_text(PLAN)

    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = reference(**batch(step)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "trained.safetensors").unlink(missing_ok=True)
    settings = [item for setting in SETTINGS for item in ("--set", setting)]
    mesh = ["--mesh", "dp=2,tp=2", "--plan", folder / "plan.toml", "--data", folder / "data.safetensors"]
    trained = run(partita, "train", folder / "gpt2.pt2", *mesh, *settings, "--steps", STEPS, "--checkpoint-dir", folder / "run")
    found = [event["loss"] for event in trained if event["event"] == "step"]
    run(partita, "export", folder / "run", "--for", "safetensors", "--out", folder / "trained.safetensors")
    model.load_state_dict(load_file(folder / "trained.safetensors"), strict=True)

    of_losses = max(abs(a - b) for a, b in zip(found, losses, strict=True))
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    of_weights = max((a - b).abs().max().item() for a, b in pairs)
    with torch.no_grad():
        of_loaded = abs(model(**batch(0)).loss.item() - reference(**batch(0)).loss.item())
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f} in {STEPS} steps on 4 ranks under a plan of {len(PLAN.splitlines())} lines")
    print(f"apart from PyTorch: losses {of_losses:.1e}, weights {of_weights:.1e}, loss of the loaded model {of_loaded:.1e}")
    sys.exit(not (losses[-1] < losses[0] and of_losses < 1e-3 and of_weights < 1e-2 and of_loaded < 1e-3))


if __name__ == "__main__":
    main(*sys.argv[1:])
