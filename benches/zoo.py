"""Steps of models of the zoo beside PyTorch, eager and compiled: in turn, one process each, round by round.

    python benches/zoo.py target/release/partita --python VENV/bin/python --rounds 3

Both train in f32 with AdamW on the threads of `--threads`, without clipping. Each row: the shortest step in milliseconds, the
better peer's over Partita's (above one, Partita is ahead), and the same of processor time, which a busy machine disturbs
least. `--profile CASE` shows instead where Partita's step spends its time.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

# Kind, keys of the model, rows of a batch, tokens (or images) of a row.
CASES = {
    "moe-gpt": (
        dict(vocab=256, dim=256, layers=4, heads=4, sequence=256, experts=8, top_k=2, every=2, capacity=0.0),
        8,
        256,
    ),
    "vit": (dict(image=64, patch=8, dim=192, layers=6, heads=3, classes=10), 16, 1),
    "wide-resnet": (
        dict(image=64, stem=7, blocks=[2, 2, 2, 2], dim=32, width=2, expansion=4, classes=10),
        8,
        1,
    ),
}


def torch_model(kind, keys):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Attention(nn.Module):
        def __init__(self, dim, heads, causal):
            super().__init__()
            self.qkv, self.o, self.heads, self.causal = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads, causal

        def forward(self, x):
            batch, sequence, dim = x.shape
            parts = self.qkv(x).split(dim, dim=-1)
            parts = [part.reshape(batch, sequence, self.heads, -1).transpose(1, 2) for part in parts]
            y = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
            return self.o(y.transpose(1, 2).flatten(2))

    class Mlp(nn.Module):
        def __init__(self, dim, approximate):
            super().__init__()
            self.up, self.down, self.approximate = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim), approximate

        def forward(self, x):
            return self.down(F.gelu(self.up(x), approximate=self.approximate)), 0.0

    class Experts(nn.Module):
        """Rows sorted by expert, one pair of products for each: no token is dropped."""

        def __init__(self, dim, count, top_k):
            super().__init__()
            self.gate, self.count, self.top_k = nn.Linear(dim, count, bias=False), count, top_k
            self.up = nn.Parameter(0.02 * torch.randn(count, dim, 4 * dim))
            self.down = nn.Parameter(0.02 * torch.randn(count, 4 * dim, dim))

        def forward(self, x):
            rows = x.flatten(0, 1)
            shares = self.gate(rows).softmax(-1)
            weights, chosen = shares.topk(self.top_k, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
            order = chosen.flatten().argsort(stable=True)
            counts = chosen.flatten().bincount(minlength=self.count)
            taken = rows[order // self.top_k].split(counts.tolist())
            made = [F.gelu(part @ up, approximate="tanh") @ down for part, up, down in zip(taken, self.up, self.down)]
            made = torch.cat(made) * weights.flatten()[order, None]
            y = torch.zeros_like(rows).index_add(0, order // self.top_k, made)
            balance = self.count * (counts / order.numel() * shares.mean(0)).sum()
            return y.reshape(x.shape), balance

    class Block(nn.Module):
        def __init__(self, dim, heads, causal, feed_forward):
            super().__init__()
            self.attn_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attn, self.mlp = Attention(dim, heads, causal), feed_forward

        def forward(self, x):
            x = x + self.attn(self.attn_norm(x))
            y, balance = self.mlp(self.mlp_norm(x))
            return x + y, balance

    class MoeGpt(nn.Module):
        def __init__(self, vocab, dim, layers, heads, sequence, experts, top_k, every, capacity):
            super().__init__()
            self.tokens = nn.Parameter(0.02 * torch.randn(vocab, dim))
            self.positions = nn.Parameter(0.02 * torch.randn(sequence, dim))
            of = lambda n: Experts(dim, experts, top_k) if n % every == every - 1 else Mlp(dim, "tanh")
            self.layers = nn.ModuleList(Block(dim, heads, True, of(n)) for n in range(layers))
            self.norm = nn.LayerNorm(dim)

        def forward(self, tokens, labels):
            x, balance = F.embedding(tokens, self.tokens) + self.positions, 0.0
            for layer in self.layers:
                x, own = layer(x)
                balance = balance + own
            logits = F.linear(self.norm(x), self.tokens)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * balance

    class Vit(nn.Module):
        def __init__(self, image, patch, dim, layers, heads, classes):
            super().__init__()
            self.patches = nn.Conv2d(3, dim, patch, patch)
            self.positions = nn.Parameter(0.02 * torch.randn((image // patch) ** 2, dim))
            self.layers = nn.ModuleList(Block(dim, heads, False, Mlp(dim, "none")) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

        def forward(self, images, labels):
            x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
            for layer in self.layers:
                x, _ = layer(x)
            return F.cross_entropy(self.head(self.norm(x).mean(1)), labels)

    def conv(inner, out, kernel, stride=1):
        layer = nn.Conv2d(inner, out, kernel, stride, kernel // 2, bias=False)
        # Statistics of the batch alone, as there.
        return nn.Sequential(layer, nn.BatchNorm2d(out, track_running_stats=False))

    class Bottleneck(nn.Module):
        def __init__(self, features, inner, middle, out, stride):
            super().__init__()
            self.one, self.two, self.three = conv(features, inner, 1), conv(inner, middle, 3, stride), conv(middle, out, 1)
            self.proj = conv(features, out, 1, stride) if features != out or stride > 1 else nn.Identity()

        def forward(self, x):
            return F.relu(self.proj(x) + self.three(F.relu(self.two(F.relu(self.one(x))))))

    class WideResnet(nn.Module):
        def __init__(self, image, stem, blocks, dim, width, expansion, classes):
            super().__init__()
            self.stem, layers, features = conv(3, dim, stem, 2), [], dim
            for stage, count in enumerate(blocks):
                for place in range(count):
                    inner = dim << stage
                    stride = 2 if stage > 0 and place == 0 else 1
                    layers.append(Bottleneck(features, inner, inner * width, inner * expansion, stride))
                    features = inner * expansion
            self.layers, self.head = nn.Sequential(*layers), nn.Linear(features, classes)

        def forward(self, images, labels):
            x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
            return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), labels)

    torch.manual_seed(1)
    return {"moe-gpt": MoeGpt, "vit": Vit, "wide-resnet": WideResnet}[kind](**keys)


def run_torch(kind, mode, steps, threads):
    """Trains; prints milliseconds of the shortest step, and of processor time in the later steps."""
    import torch

    torch.set_num_threads(threads)
    keys, rows, _ = CASES[kind]
    model = torch_model(kind, keys)
    if kind == "moe-gpt":
        batch = [torch.randint(keys["vocab"], (rows, keys["sequence"])) for _ in range(2)]
    else:
        images = torch.randn(rows, 3, keys["image"], keys["image"])
        if kind == "wide-resnet":
            # The layout of images in which its convolutions are fastest.
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        batch = [images, torch.randint(keys["classes"], (rows,))]
    forward = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    times, warm = [], steps // 2
    for step in range(steps):
        if step == warm:
            cpu = time.process_time()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    cpu = (time.process_time() - cpu) / (steps - warm)
    print(json.dumps({"ms": 1e3 * min(times[warm:]), "cpu_ms": 1e3 * cpu}))


def config(kind, folder):
    """A file with the case's model."""
    keys, rows, _ = CASES[kind]
    value = lambda of: json.dumps(of) if not isinstance(of, float) else repr(of)
    lines = ["[model]", f'kind = "{kind}"', *(f"{key} = {value(of)}" for key, of in keys.items())]
    lines += ["[mesh]", 'shape = "dp=1"', "[train]", f"batch = {rows}", "validate_batches = 1"]
    lines += ["[optimizer]", 'kind = "adamw"', "clip_grad_norm = 0"]
    path = pathlib.Path(folder) / f"{kind}.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run_partita(options, kind, folder):
    """As [`run_torch`]; processor time is what more steps take beyond fewer."""
    _, rows, tokens = CASES[kind]
    path, cpu, shortest = config(kind, folder), [], float("inf")
    for steps in (options.steps // 2, options.steps):
        command = [options.partita, "train", path, "--steps", str(steps), "--json", "--no-verify", "--no-sample"]
        command += ["--log-every", "1", "--workers", str(options.threads)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-500:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event":"step"')]
        rates = [event["tokens_per_s"] for event in events[len(events) // 2 :]]
        shortest = min(shortest, rows * tokens / max(rates))
    return {"ms": 1e3 * shortest, "cpu_ms": 1e3 * (cpu[1] - cpu[0]) / (options.steps - options.steps // 2)}


def run_peer(options, kind, mode):
    command = [options.python, __file__, options.partita, "--child", kind, mode, "--steps", str(options.steps)]
    done = subprocess.run([*command, "--threads", str(options.threads)], capture_output=True, text=True)
    if done.returncode:
        print(f"{kind} {mode} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {"ms": float("inf"), "cpu_ms": float("inf")}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partita")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", choices=CASES)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.partita = os.path.abspath(options.partita)
    if options.child:
        return run_torch(*options.child, options.steps, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        if options.profile:
            command = [options.partita, "profile", config(options.profile, folder)]
            return subprocess.run(command, cwd=folder, check=True) and None
        print("| case | partita ms | torch eager ms | torch compile ms | x | x cpu |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        for kind in options.cases:
            runs = {"partita": [], "eager": [], "compile": []}
            for _ in range(options.rounds):
                runs["partita"].append(run_partita(options, kind, folder))
                for mode in ("eager", "compile"):
                    runs[mode].append(run_peer(options, kind, mode))
            best = lambda who, key: min(run[key] for run in runs[who])
            ratio = lambda key: min(best("eager", key), best("compile", key)) / best("partita", key)
            times = " | ".join(f"{best(who, 'ms'):.1f}" for who in runs)
            print(f"| {kind} | {times} | {ratio('ms'):.2f} | {ratio('cpu_ms'):.2f} |", flush=True)


if __name__ == "__main__":
    main()
