"""Convolutions of a residual network and their gradients, here and in PyTorch, alternated in one run.

    cargo build --release -p partita-kernels --example convolution
    python benches/convolution.py target/release/examples/convolution

Both use two threads. Each row: the shortest times in milliseconds, their ratio (above one: faster than PyTorch), and the
spread of the alternations. With `--write` the table replaces the section of BENCHMARKS.md.
"""

import argparse
import os
import pathlib
import platform
import subprocess
import time

import torch
from torch.nn import functional

BATCH, SECONDS = 8, 0.25
HEADING = "\n## Convolutions\n"
PAGE = pathlib.Path(__file__).parent.parent / "BENCHMARKS.md"
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into BENCHMARKS.md")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    busy = os.getloadavg()[0]
    rows = [
        "| case | | ours ms | torch ms | x | spread of ours | of torch |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(rows), flush=True)
    for name, case in CASES.items():
        if options.filter not in name:
            continue
        for what in ("forward", "input", "kernel"):
            step = peer(case, what)
            ours, theirs = [], []
            for _ in range(options.turns):
                command = [options.example, name, what]
                ours.append(float(subprocess.run(command, check=True, capture_output=True).stdout))
                theirs.append(shortest(step))
            spread = [f"{(max(times) / min(times) - 1) * 100:.0f} %" for times in (ours, theirs)]
            ratio = min(theirs) / min(ours)
            rows.append(f"| {name} | {what} | {min(ours):.3f} | {min(theirs):.3f} | {ratio:.2f} | {' | '.join(spread)} |")
            print(rows[-1], flush=True)
    if options.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system().lower()}"
        about = [
            time.strftime("%Y-%m-%d. ", time.gmtime()) + f"{machine}; about {busy:.1f} cores were busy with other work.",
            f"torch {torch.__version__}. Written by `benches/convolution.py --write`: the shortest of {options.turns} turns",
            f"that alternate, f32, a batch of {BATCH}, two threads each. `x`: PyTorch's time over ours; above 1, Partita is",
            "ahead. *input* and *kernel* are the gradients.",
            "",
            *rows,
        ]
        before, _, section = PAGE.read_text().partition(HEADING)
        _, mark, after = section.partition("\n## ")
        PAGE.write_text(before.rstrip("\n") + "\n" + HEADING + "\n" + "\n".join(about) + "\n" + mark + after)


if __name__ == "__main__":
    main()
