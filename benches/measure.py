"""What the peers' scripts share: the sizes of the cases, and how a step is timed.

The sizes are those of `partita bench` (crates/partita-cli/src/commands/bench/models.rs), and a result has the same keys as
a line of `partita bench --json`."""

import argparse
import json
import os
import resource
import statistics
import time

# vocab, features, layers, heads, positions, rows
GPT = {
    "tiny": (256, 128, 4, 4, 128, 16),
    "small": (256, 384, 6, 6, 256, 8),
    "small8h": (256, 384, 6, 8, 256, 8),
    "gpt2": (50257, 768, 12, 12, 256, 2),
}
MLP = {  # features, shape of the rows
    "slapo": ((1024, 1024, 1024), (2, 512)),
    "alpa": ((1024, 4096, 1024, 4096, 1024), (1024,)),
}
LEARNING_RATE = {"slapo": None, "alpa": 1e-3, "gpt": 3e-4}
BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1
SIZES = {"4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}


def arguments(description, modes):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("case", help="suite/case, as `partita bench --list` prints them")
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    return parser.parse_args()


def limit_threads(count):
    """Before numpy, torch or jax are imported: their pools are made on import or take their size from the cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def peak_rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(step, options, times=1, before=lambda: None):
    """Times `step()`, which returns a loss or None once its work is done. `times`: how often it does what is measured."""
    import_rss = peak_rss_mb()
    begin = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - begin
    for _ in range(options.warmup - 1):
        losses.append(step())
    seconds, cpu = [], 0.0
    for _ in range(options.repeats):
        before()
        cpu_before, begin = time.process_time(), time.perf_counter()
        losses.append(step())
        seconds.append((time.perf_counter() - begin) / times)
        cpu += time.process_time() - cpu_before
    median = statistics.median(seconds)
    return {
        "repeats": options.repeats,
        "median_ms": 1e3 * median,
        "min_ms": 1e3 * min(seconds),
        "spread": (max(seconds) - min(seconds)) / median,
        "cpu_ms": 1e3 * cpu / options.repeats / times,
        "first_step_ms": 1e3 * first,
        "peak_rss_mb": peak_rss_mb(),
        "ready_rss_mb": import_rss,
        "losses": [loss for loss in losses[:3] if loss is not None],
    }


def tell(options, peer, version, result):
    suite, case = options.case.split("/", 1)
    line = {"event": "bench", "suite": suite, "case": case, "peer": peer, "version": version, "threads": options.threads}
    print(json.dumps(line | result), flush=True)
