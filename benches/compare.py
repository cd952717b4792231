"""Partita and its peers side by side, on any machine with PyTorch and JAX: in turn, one process each, round by round.

    python3 benches/compare.py --python VENV/bin/python --filter gpt/ --rounds 3

Prints a table of ratios, writes every measurement to benches/results.jsonl, a chart to benches/chart.svg and both to
BENCHMARKS.md. `--from FILE` measures nothing and writes them again. Needs Python 3 alone; the peers run in the Python
that --python names."""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = {
    "torch eager": ("peers_torch.py", ["--mode", "eager"]),
    "torch compile": ("peers_torch.py", ["--mode", "compile"]),
    "jax": ("peers_jax.py", []),
}
COLOURS = {"torch eager": "#d9822b", "torch compile": "#a85a10", "torch gloo": "#d9822b", "jax": "#3b7dd8"}


def call(command, limit):
    """The JSON lines of a command; none, and a word on standard error, where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        print(f"  gave up after {limit} s: {' '.join(command)}", file=sys.stderr)
        return []
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"  failed: {' '.join(command)}\n  {last}", file=sys.stderr)
        return []
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] in ("bench", "env", "text")]


def bare_rss_mb(command):
    """The resident peak of a command that does nothing but start."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(child.pid, 0)
    return usage.ru_maxrss / 1024


def busy_cores(seconds=1.0):
    """Cores that others keep busy while nothing of ours runs; None where the system does not tell."""

    def clocks():
        times = [int(time) for time in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]

    try:
        total, idle = clocks()
        time.sleep(seconds)
        later, idler = clocks()
    except OSError:
        return None
    return (1 - (idler - idle) / max(later - total, 1)) * os.cpu_count()


def path(line):
    return f"{line['suite']}/{line['case']}"


def suits(peer, case):
    """Whether a peer can run a case, and in a way of its own."""
    suite, *rest = case.split("/")
    if suite == "fused" or rest[-1] == "sequence":
        return False
    if suite == "collectives":
        own = rest[0] == "exchange" or (peer == "jax" and rest[0] == "copy")
        return peer != "torch compile" and not own
    return peer != "torch compile" or suite in ("mlp", "gpt")


def run_partita(options, case):
    suite, *rest = case.split("/")
    # A collective is held against the copy of its size, which has to run beside it.
    text = "/" + "/".join(rest[1:]) if suite == "collectives" else case
    command = [options.partita, "bench", suite, "--json", "--filter", text]
    command += ["--repeats", str(options.repeats), "--warmup", str(options.warmup)]
    command += ["--threads", str(options.threads)]
    if options.mesh and suite in ("mlp", "gpt"):
        command += ["--mesh", options.mesh]
    return [line | {"peer": "partita"} for line in call(command, options.limit) if path(line) == case]


def run_peer(options, peer, case):
    script, extra = PEERS[peer]
    command = [options.python, str(HERE / script), case, *extra, "--threads", str(options.threads)]
    command += ["--repeats", str(options.repeats), "--warmup", str(options.warmup)]
    return call(command, options.limit)


def measure(options):
    listed = [options.partita, "bench", "--list", "--json"]
    cases = call(listed + (["--filter", options.filter] if options.filter else []), options.limit)
    cases = cases[0]["text"].splitlines() if cases else []
    imports = {peer: [options.python, "-c", f"import {peer.split()[0]}"] for peer in options.peers}
    bare = {peer: bare_rss_mb(command) for peer, command in imports.items() if cases}
    bare["partita"] = bare_rss_mb([options.partita, "--version"])
    lines = []
    for case in cases:
        for number in range(options.rounds):
            busy = busy_cores()
            print(f"{case}, round {number + 1} of {options.rounds}, {busy or 0:.1f} cores busy", file=sys.stderr)
            measured = run_partita(options, case)
            for peer in options.peers:
                if suits(peer, case):
                    measured += run_peer(options, peer, case)
            found = lambda line: {"busy_cores": busy, "bare_rss_mb": bare.get(line["peer"])}
            lines += [line | found(line) for line in measured]
    return lines


def summarise(lines):
    """Per case and peer: minima of minima, medians of medians; of memory the most, of first steps the median, of limits both."""
    cases = {}
    for line in lines:
        cases.setdefault(path(line), {}).setdefault(line["peer"], []).append(line)

    def merge(rounds):
        every = lambda key: [line[key] for line in rounds if line.get(key) is not None]
        middle = lambda key: statistics.median(every(key)) if every(key) else None
        return {
            "min": min(every("min_ms")),
            "median": middle("median_ms"),
            "cpu": middle("cpu_ms"),
            "first": middle("first_step_ms"),
            "memory": max(every("peak_rss_mb"), default=None),
            "net": max((line["peak_rss_mb"] - (line.get("bare_rss_mb") or 0) for line in rounds), default=None),
            "limit": max(every("of_limit"), default=None),
            "middle limit": middle("of_limit"),
            "rounds": len(rounds),
        }

    return {case: {peer: merge(rounds) for peer, rounds in peers.items()} for case, peers in cases.items()}


def ratios(peers, key):
    """The best peer's figure over Partita's: above 1, Partita is ahead."""
    own = peers.get("partita", {}).get(key)
    # Who took no more than its bare import has no net memory to compare.
    others = [figures[key] for peer, figures in peers.items() if peer != "partita" and (figures[key] or 0) > 0]
    return min(others) / own if (own or 0) > 0 and others else None


def table(summary):
    number = lambda value, digits=2: "-" if value is None else f"{value:.{digits}f}"
    milliseconds = lambda value: f"{value:.2f}" if value >= 1 else f"{value:.3g}"
    names = ["partita", *dict.fromkeys(peer for peers in summary.values() for peer in peers if peer != "partita")]
    head = ["case", *(f"{name} ms" for name in names)]
    head += ["x min", "x median", "x cpu", "x memory", "x net memory", "x first step", "of the limit"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for case, peers in summary.items():
        row = [case]
        for name in names:
            figures = peers.get(name)
            row.append(" / ".join(milliseconds(figures[key]) for key in ("min", "median")) if figures else "-")
        row += [number(ratios(peers, key)) for key in ("min", "median", "cpu", "memory", "net", "first")]
        own = peers.get("partita", {})
        limits = [own[key] for key in ("limit", "middle limit") if own.get(key) is not None]
        rows.append([*row, " / ".join(map(number, limits)) or "-"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def chart(summary):
    """One bar per case and peer: the peer's fastest step over Partita's, Partita being the line at 1."""
    bars = []
    for case, peers in summary.items():
        own = peers.get("partita")
        bars += [(case, peer, figures["min"] / own["min"]) for peer, figures in peers.items() if own and peer != "partita"]
    width, left, height = 460, 320, 20
    most = max([ratio for *_, ratio in bars] + [1.5])
    scale = lambda ratio: left + width * ratio / most
    parts = []
    for index, (case, peer, ratio) in enumerate(bars):
        y, colour = 50 + height * index, COLOURS.get(peer, "#888888")
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{case}, {peer}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{scale(ratio) - left:.1f}" height="15" fill="{colour}"/>')
        parts.append(f'<text x="{scale(ratio) + 5:.1f}" y="{y + 12}">{ratio:.2f}</text>')
    bottom = 50 + height * len(bars)
    one = f'x1="{scale(1):.1f}" y1="40" x2="{scale(1):.1f}" y2="{bottom}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{bottom + 15}"
 font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>
<text x="12" y="22" font-size="15">Time of a step over Partita's (fastest runs): right of the line, Partita is faster</text>
{chr(10).join(parts)}
<line {one} stroke="black" stroke-dasharray="4 3"/></svg>
"""


def describe(options, lines):
    """The machine and how it was measured, as a paragraph."""
    env = (call([options.partita, "env", "--json"], options.limit) or [{}])[0]
    versions = sorted({f"{line['peer']} {line['version']}" for line in lines if "version" in line})
    others = [line["busy_cores"] for line in lines if line.get("busy_cores") is not None]
    busy = f" Cores busy with other work before the runs: {min(others):.1f} to {max(others):.1f}." if others else ""
    if others and max(others) > (env.get("cores") or 1) / 4:
        busy += " **The machine was busy with other work: only processor time can be compared.**"
    memory = (env.get("memory_bytes") or 0) / 2**30
    threads = sorted({line["threads"] for line in lines})
    meshes = ", ".join(sorted({line["mesh"] for line in lines if "mesh" in line}))
    return (
        f"{datetime.date.today()}. {env.get('cpu')}, {env.get('cores')} cores, {memory:.0f} GiB, {env.get('os')}, "
        f"kernels {env.get('kernels')}. Partita {env.get('version')} on {meshes}; {', '.join(versions)}. "
        f"Threads: {', '.join(map(str, threads))}.{busy}"
    )


TEXT = """# Benchmarks

Partita and its peers on the same cases, in turn, one process each. Written by `benches/compare.py`; run it on your own
machine: absolute figures mean little elsewhere, and ratios only within one run.

{machine}

{table}

Milliseconds: fastest / middle run, over all rounds. `x`: the best peer's figure over Partita's; above 1, Partita is ahead.
*cpu* is processor time, which a busy machine disturbs least (a peer's threads that spin while they wait count in it);
*memory* is the resident peak of the whole process, libraries included, *net memory* less what the bare import (or a
`partita` that only tells its version) takes; *first step* is everything from the model, built
and initialised, to the end of the first step. *Of the limit*: the least traffic of a collective,
or of a pass over memory, at the bandwidth of a plain copy measured beside it, over its time (fastest runs): best / middle
round. Where the two are far apart, the copy itself had two speeds.

![Ratios](benches/chart.svg)

## What is measured

The sizes are those of `crates/partita-cli/src/commands/bench/models.rs` and `benches/measure.py`: f32, whole steps.
Where the kernels are said to have `amx`, Partita's products run on the matrix unit, as six products of `bf16` parts that
together are at least as near to the true sum as products of `f32`; peers multiply in `f32`, as they do by default.

- `gemm`: products `m x k x n`, on one thread and two.
- `mlp/slapo`: two layers of 1024 with GELU between, 1024 rows, forward and backward. `mlp/alpa`: 1024-4096-1024-4096-1024
  with ReLU, 1024 rows, a whole step of Adam.
- `gpt`: decoders with learned positions, norms first, GELU by tanh, causal attention, a tied head, AdamW with decay on all
  parameters, no clipping and no norm of the gradients. (vocabulary, features, layers, heads, positions, rows): tiny (256, 128, 4, 4, 128, 16), small
  (256, 384, 6, 6, 256, 8), gpt2 (50257, 768, 12, 12, 256, 2).
- `dist`: the tiny and small GPT on several ranks that share the same cores; small8h has 8 heads, and with
  `sequence` a residual stream that is cut along the sequence. PyTorch uses gloo
  processes (DTensor, DistributedDataParallel, fully_shard), JAX host devices of one process.
- `collectives`: one tensor of the given size: what is reduced, what is gathered, what is scattered. `copy`: every rank copies
  its share; `exchange`: it passes on to the next one what it has just been given, so that all bytes cross between cores.

The architectures are the same everywhere, and weights are drawn from the same distributions, but not the same numbers: losses
agree roughly.
Partita runs `mlp` and `gpt` on one rank whose threads share the work of each kernel (`dp=1`, unless the machine's line
says otherwise). PyTorch's q, k, v are one product in `gpt` and three in `dist`; Partita's and JAX's are three. JAX's layers are
in `lax.scan`, which was the faster way, and its Adam is written out.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and jax")
    parser.add_argument("--partita", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--filter", help="only cases whose suite/case contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs per process")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mesh", help="Partita's mesh for mlp and gpt; one rank by default")
    parser.add_argument("--limit", type=int, default=900, help="seconds for one process")
    parser.add_argument("--from", dest="source", help="results.jsonl of an earlier run")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT, help="where BENCHMARKS.md and benches/ are written")
    options = parser.parse_args()
    if options.source:
        lines = [json.loads(line) for line in pathlib.Path(options.source).read_text().splitlines()]
    else:
        lines = measure(options)
    if not lines:
        sys.exit("nothing was measured")
    summary = summarise(lines)
    print(table(summary))
    folder = options.out / "benches"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "chart.svg").write_text(chart(summary))
    text = TEXT.format(machine=describe(options, lines), table=table(summary))
    page = options.out / "BENCHMARKS.md"
    # What benches/convolution.py and benches/scale.py wrote stays.
    _, heading, others = page.read_text().partition("\n## Convolutions\n") if page.exists() else ("", "", "")
    page.write_text(text + heading + others)


if __name__ == "__main__":
    main()
