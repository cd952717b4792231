"""What the Python surface costs: steps of GPT small, a call of a small built model, the import.

    python python/benches/surface.py [--rounds 10] [--steps 3]

The ways to train take turns, so that a change of the machine's speed affects all of them. Threads: 2 each. A line of JSON
for each way with the fastest and the middle step, then the ratios beside what is wanted. The Rust steps are those of
``partita bench``, and the sizes and PyTorch's module those of ``benches/`` at the root.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benches"))

from measure import BETAS, LEARNING_RATE, WEIGHT_DECAY, limit_threads  # noqa: E402

THREADS = 2
# A waiting thread of a step spins this long before it sleeps; the next way must not pay for it.
QUIET = 0.12


def ways():
    """The ways to train GPT small: name, a function that does a step."""
    import torch
    from peers_torch import gpt_batch, gpt_model

    import partita

    torch.set_num_threads(THREADS)
    batch = tuple(gpt_batch("small"))
    constants = {"lr": LEARNING_RATE["gpt"], "betas": BETAS, "weight_decay": WEIGHT_DECAY}
    model = partita.load(gpt_model("small", separate=False), batch)
    rule = partita.optim.AdamW(**constants)
    trainer = partita.Trainer(model, None, "dp=1", rule)

    def loop(module, fused):
        optimizer = torch.optim.AdamW(module.parameters(), **constants, fused=fused)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def built():
        return partita.Schedule(partita.load(gpt_model("small", separate=False), batch), "dp=1").build()

    return {
        "Trainer": lambda: trainer.step(batch),
        "backward, AdamW fused": loop(built(), True),
        "backward, AdamW": loop(built(), None),
        "PyTorch eager, AdamW fused": loop(gpt_model("small", separate=False), True),
        "PyTorch eager, AdamW": loop(gpt_model("small", separate=False), None),
    }


def rust(steps):
    """Seconds of the fastest step of ``partita bench`` in a process of its own."""
    command = [sys.executable, "-m", "partita", "bench", "gpt", "--filter", "gpt/small", "--mesh", "dp=1", "--json"]
    command += ["--threads", str(THREADS), "--warmup", "2", "--repeats", str(steps)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (found,) = [event for event in map(json.loads, printed) if event["event"] == "bench" and event["case"] == "small"]
    return [found["min_ms"] / 1e3]


def timed(step, count):
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def call():
    """Seconds of a call of Slapo's MLP with a batch of 2, and of the program in it: the fastest and the middle of many."""
    import torch

    import partita

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256))
    x = torch.randn(2, 256)
    built = partita.Schedule(partita.load(module, x), "dp=1").build()
    found = {}
    for name, context in (("inference", torch.no_grad), ("training", torch.enable_grad)):
        with context():
            timed(lambda: built(x), 200)
            calls = timed(lambda: built(x), 2000)
            (programs,) = built._planning.programs.values()
            native = programs._passes[("forward",) if name == "inference" else ("training",)].native
            native.record(True)
            own = []
            for _ in range(2000):
                built(x)
                events = native.events()[0]
                own.append((max(event[3] + event[4] for event in events) - min(event[3] for event in events)) / 1e9)
            native.record(False)
        found[name] = (calls, own)
    return found


def imported():
    """Seconds of ``import partita`` without PyTorch, less those of an interpreter that imports nothing."""

    def run(code):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begin

    run("import partita")
    with_it = [run("import partita, sys; assert 'torch' not in sys.modules") for _ in range(10)]
    return min(with_it) - min(run("pass") for _ in range(10))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    limit_threads(THREADS)
    print(json.dumps({"import_s": round(imported(), 4), "wanted": 0.15}), flush=True)
    for name, (calls, own) in call().items():
        over = [1e6 * (pick(calls) - pick(own)) for pick in (min, statistics.median)]
        line = {"call": name, "min_us": round(1e6 * min(calls), 1), "program_us": round(1e6 * min(own), 1)}
        print(json.dumps(line | {"over_us": [round(us, 1) for us in over], "wanted": 100}), flush=True)
    steps = ways()
    seconds = {name: [] for name in ["Rust", *steps]}
    for step in steps.values():
        timed(step, 2)
    for _ in range(options.rounds):
        seconds["Rust"] += rust(options.steps)
        for name, step in steps.items():
            time.sleep(QUIET)
            timed(step, 1)
            seconds[name] += timed(step, options.steps)
    for name, found in seconds.items():
        figures = [round(1e3 * pick(found), 2) for pick in (min, statistics.median, max)]
        print(json.dumps({"way": name, "min_median_max_ms": figures}), flush=True)
    for name, other, wanted in (
        ("Trainer", "Rust", "at most 1.02"),
        ("backward, AdamW fused", "Rust", "at most 1.15"),
        ("backward, AdamW", "Rust", ""),
        ("PyTorch eager, AdamW fused", "backward, AdamW fused", "at least 1.5"),
        ("PyTorch eager, AdamW", "backward, AdamW", "at least 1.5"),
    ):
        ratio = min(seconds[name]) / min(seconds[other])
        print(json.dumps({"ratio": f"{name} / {other}", "of_minima": round(ratio, 3), "wanted": wanted}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
