"""Convolutions of a residual network and their gradients, here and in PyTorch, alternated in one run.

    cargo build --release -p partita-kernels --example convolution
    python benches/convolution.py target/release/examples/convolution

Both use two threads. Each row: the shortest times in milliseconds, their ratio (above one: faster than PyTorch), and the
spread of the ten alternations.
"""

import subprocess
import sys
import time

import torch
from torch.nn import functional

BATCH, TURNS, SECONDS = 8, 10, 0.25
CASES = {
    "3x3-64": (64, 56, 64, 3, 1, 1),
    "3x3-128-stride-2": (128, 28, 128, 3, 2, 1),
    "3x3-256": (256, 14, 256, 3, 1, 1),
    "1x1-256-64": (256, 56, 64, 1, 1, 1),
    "7x7-3-stride-2": (3, 224, 64, 7, 2, 1),
    "depthwise-3x3": (96, 56, 96, 3, 1, 96),
}


def peer(case, what):
    channels, extent, features, entries, stride, groups = case
    x = torch.rand(BATCH, channels, extent, extent) - 0.5
    w = torch.rand(features, channels // groups, entries, entries) - 0.5
    options = {"stride": stride, "padding": entries // 2, "groups": groups}
    y = functional.conv2d(x, w, **options)
    if what == "forward":
        return lambda: functional.conv2d(x, w, **options)
    wanted = [what == "input", what == "kernel", False]
    pair = [stride, stride], [entries // 2] * 2, [1, 1]
    return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *pair, False, [0, 0], groups, wanted)


def shortest(step):
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    binary = sys.argv[1]
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    print(f"{'case':18} {'':8} {'ours':>8} {'torch':>8} {'ratio':>6}  spread of ours and PyTorch")
    for name, case in CASES.items():
        for what in ("forward", "input", "kernel"):
            step = peer(case, what)
            ours, theirs = [], []
            for _ in range(TURNS):
                ours.append(float(subprocess.run([binary, name, what], check=True, capture_output=True).stdout))
                theirs.append(shortest(step))
            spread = [f"{(max(times) / min(times) - 1) * 100:.0f} %" for times in (ours, theirs)]
            ratio = min(theirs) / min(ours)
            print(f"{name:18} {what:8} {min(ours):8.3f} {min(theirs):8.3f} {ratio:6.2f}  {', '.join(spread)}", flush=True)


if __name__ == "__main__":
    main()
