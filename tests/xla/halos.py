"""The halos of convolutions and pools beside XLA's: the bytes that move for the same program, sharded alike.

    python tests/xla/halos.py [--partita COMMAND] [--only WORDS] [--json]

Each case is a function of JAX over images `[batch, height, width, channels]` whose height is sharded over 2 and over 4
devices: convolutions of several windows, strides, paddings and dilations, pools, and small networks, forward and with
gradients of images and kernels. Arguments and results have layouts, and nothing between them. `jax.jit` compiles it for as
many CPU devices, and the compiled program is read; the text that JAX lowered goes through `partita opt`, with what reading
such a program does to padding, and the local graphs are read. In both, counted are the bytes that all devices together
receive from others: of halos (permutes, gathers, all-to-alls), and of sums (all-reduces as two, reduce-scatters as one pass
around a ring). Prints a table, and ends with 1 if a case of ours moves more than XLA's."""

import argparse
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS, CHANNELS, WIDTH = 2, 4, 16
DEVICES = [2, 4]
HALOS = ["collective_permute", "all_gather", "all_to_all"]
SUMS = ["all_reduce", "reduce_scatter"]


def convolved(x, w, stride=1, padding="SAME", dilation=1):
    from jax import lax

    pads = padding if isinstance(padding, str) else [padding, padding]
    return lax.conv_general_dilated(
        x, w, (stride, stride), pads, rhs_dilation=(dilation, dilation), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pooled(x, kind, size, stride, padding="VALID"):
    import numpy as np
    from jax import lax

    windows = ((1, size, size, 1), (1, stride, stride, 1), padding)
    if kind == "largest":
        return lax.reduce_window(x, -np.inf, lax.max, *windows)
    return lax.reduce_window(x, 0.0, lax.add, *windows) / size**2


def network(x, first, second, third):
    """Three convolutions, the second with stride 2, a residual sum and a pool; the mean of squares."""
    import jax.numpy as jnp
    from jax import nn

    hidden = nn.relu(convolved(x, first))
    hidden = nn.relu(hidden + convolved(hidden, third))
    hidden = nn.relu(convolved(hidden, second, stride=2))
    hidden = pooled(hidden, "mean", 2, 2)
    return jnp.mean(hidden**2)


def cases():
    """For each name: a function, the shapes of images with the height given first, and those of kernels."""
    found = {}

    def case(name, function, height, *kernels):
        found[name] = (function, height, kernels)

    square = lambda size, to=CHANNELS: (size, size, CHANNELS, to)
    for name, size, options in [
        ("3 x 3", 3, {}),
        ("5 x 5", 5, {}),
        ("3 x 3, stride 2", 3, {"stride": 2}),
        ("3 x 3, stride 2, padding 1", 3, {"stride": 2, "padding": (1, 1)}),
        ("7 x 7, stride 2, padding 3", 7, {"stride": 2, "padding": (3, 3)}),
        ("3 x 3, dilation 2", 3, {"dilation": 2}),
        ("2 x 2, stride 2", 2, {"stride": 2, "padding": "VALID"}),
    ]:
        case(f"convolution {name}", lambda x, w, options=options: convolved(x, w, **options), 32, square(size))
    for kind, size, stride, padding in [
        ("mean", 2, 2, "VALID"), ("mean", 3, 2, "SAME"), ("mean", 3, 1, "SAME"),
        ("largest", 2, 2, "VALID"), ("largest", 3, 2, "SAME"), ("largest", 3, 1, "SAME"),
    ]:
        pool = lambda x, given=(kind, size, stride, padding): pooled(x, *given)
        case(f"pool, {kind} of {size} x {size}, stride {stride}", pool, 32)
    case("two convolutions", lambda x, v, w: convolved(convolved(x, v), w), 32, square(3), square(3))
    case("network", network, 32, square(3), square(3, 2 * CHANNELS), square(3))
    return found


def lowered(function, height, kernels, count, is_gradient):
    """A case, lowered by JAX for so many devices: its own result, or the gradients of all arguments, and for a function of
    images the result's cotangent as the last argument."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:count]), ("sp",))
    whole = NamedSharding(mesh, PartitionSpec())
    images = NamedSharding(mesh, PartitionSpec(None, "sp", None, None))
    of = lambda shape, dtype=np.float32: jax.ShapeDtypeStruct(shape, dtype)
    arguments = [of((ROWS, height, WIDTH, CHANNELS)), *map(of, kernels)]
    layouts = [images, *[whole for _ in kernels]]
    result = jax.eval_shape(function, *arguments)
    given = layouts_of_result = images if result.shape else whole
    if is_gradient:
        layouts_of_result = (given, tuple(layouts))

        def run(cotangent, *values):
            results, back = jax.vjp(function, *values)
            return results, back(cotangent)

        arguments, layouts = [result, *arguments], [given, *layouts]
    else:
        run = function
    return jax.jit(run, in_shardings=layouts, out_shardings=layouts_of_result).lower(*arguments)


def counted(calls):
    """Bytes that devices receive for halos and for sums, of calls (kind, bytes of the result on one device, pairs that receive
    it or the sizes of the groups of devices that take part)."""
    totals = {"halos": 0, "sums": 0}
    for kind, size, among in calls:
        if kind == "collective_permute":
            moved = size * sum(source != target for source, target in among)
        elif kind == "reduce_scatter":
            moved = sum(size * (group - 1) for group in among)
        else:
            moved = sum(size * (group - 1) // group for group in among) * (2 if kind == "all_reduce" else 1)
        totals["halos" if kind in HALOS else "sums"] += moved
    return totals


def pairs(text):
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return list(zip(numbers[::2], numbers[1::2]))


def bits(dtype):
    return 8 if dtype in ("pred", "i1") else int(re.search(r"\d+", dtype)[0])


def of_xla(text, count):
    """The collectives of a compiled program."""
    assert " while(" not in text, "a loop would run its collectives more than once"
    calls = []
    for line in text.splitlines():
        found = re.match(r"\s*(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z-]+?)(-start)?\(", line)
        kind = found and found[2].replace("-", "_")
        if kind not in (*HALOS, *SUMS):
            continue
        assert not found[3], f"a collective in two parts: {line}"
        tensors = re.findall(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]", found[1])
        size = sum(bits(dtype) * math.prod(int(n) for n in dims.split(",") if n) for dtype, dims in tensors) // 8
        if kind == "collective_permute":
            among = pairs(re.search(r"source_target_pairs=\{(.*?)\}\}", line)[1])
        elif listed := re.search(r"replica_groups=\{(\{.*?\})\}", line):
            groups = [group.count(",") + 1 for group in re.findall(r"\{(.*?)\}", listed[1])]
            among = [group for group in groups for _ in range(group)]
        elif ranged := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
            among = [int(ranged[1])] * count
        else:
            among = [count] * count
        calls.append((kind, size, among))
    return calls


def of_partita(text, count):
    """The collectives of the local graphs: one for all ranks, or one behind each list of ranks."""
    # Without the bodies of sums.
    text = re.sub(r" \(\{\s*\^bb.*?\}\)", "", text, flags=re.DOTALL)
    graphs = re.split(r"^// ranks \[(.*)\]$", text, flags=re.MULTILINE)
    classes = list(zip(graphs[1::2], graphs[2::2])) or [(",".join(map(str, range(count))), text)]
    calls = []
    for listed, graph in classes:
        ranks = [int(rank) for rank in re.findall(r"\d+", listed)]
        for kind, attributes, results in re.findall(r'"stablehlo\.(\w+)"\(.*?\) <\{(.*?)\}> : \(.*?\) -> (.*)', graph):
            if kind not in (*HALOS, *SUMS):
                continue
            shapes = re.findall(r"tensor<((?:\d+x)*)(\w+)>", results)
            size = sum(bits(dtype) * math.prod(int(n) for n in dims.split("x") if n) for dims, dtype in shapes) // 8
            if kind == "collective_permute":
                every = pairs(re.search(r"source_target_pairs = dense<(.*?)>", attributes)[1])
                among = [(source, target) for source, target in every if target in ranks]
            else:
                group = re.search(r"replica_groups = dense<.*?> : tensor<\d+x(\d+)xi64>", attributes)[1]
                among = [int(group)] * len(ranks)
            calls.append((kind, size, among))
    return calls


def partitioned(partita, text):
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        command = [*partita, "opt", file.name, "--pass", "padding,propagate,partition"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def kinds(calls):
    names = [kind for kind, *_ in calls]
    return ", ".join(f"{names.count(kind)} {kind}" for kind in (*HALOS, *SUMS) if kind in names) or "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", type=Path, help="the command; python -m partita by default")
    parser.add_argument("--only", default="", help="cases whose names contain these words")
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="write both programs of each case to this folder")
    options = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: this Python has no jax")
        return
    # Both are read when jax is imported.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(DEVICES)}".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    partita = [str(options.partita)] if options.partita else [sys.executable, "-m", "partita"]
    if not options.json:
        print("| case | devices | ours | halos | sums | XLA's | halos | sums |")
        print("|---|---:|---|---:|---:|---|---:|---:|", flush=True)
    failed = 0
    for name, (function, height, kernels) in cases().items():
        for is_gradient in (False, True):
            title = f"{name}, with gradients" if is_gradient else name
            if options.only not in title:
                continue
            for count in DEVICES:
                program = lowered(function, height, kernels, count, is_gradient)
                texts = [partitioned(partita, program.as_text()), program.compile().as_text()]
                if options.texts:
                    options.texts.mkdir(parents=True, exist_ok=True)
                    for whose, text in zip(["ours", "xla", "global"], [*texts, program.as_text()]):
                        (options.texts / f"{title}-{count}-{whose}.txt").write_text(text)
                calls = [of_partita(texts[0], count), of_xla(texts[1], count)]
                ours, theirs = map(counted, calls)
                is_more = ours["halos"] > theirs["halos"] or ours["sums"] > theirs["sums"]
                failed += is_more
                if options.json:
                    row = {"case": title, "devices": count, "ours": ours, "xla": theirs}
                    print(json.dumps(row), flush=True)
                    continue
                print(
                    f"| {title} | {count} | {kinds(calls[0])} | {ours['halos']} | {ours['sums']} "
                    f"| {kinds(calls[1])} | {theirs['halos']} | {theirs['sums']} |{' MORE' if is_more else ''}",
                    flush=True,
                )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
