"""A case of `partita bench` in PyTorch: eager or compiled; over gloo processes where it has several ranks.

    python benches/peers_torch.py gpt/small --mode compile
    python benches/peers_torch.py dist/small/tp=2
"""

import math
import os
import socket

from measure import BETAS, GPT, LEARNING_RATE, MLP, SIZES, WEIGHT_DECAY, arguments, limit_threads, measure, tell


def product(sizes):
    import torch

    m, k, n = (int(size) for size in sizes.split("x"))
    lhs, rhs, out = torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)

    def step():
        torch.mm(lhs, rhs, out=out)

    return step


def mlp(name, compiled):
    import torch
    from torch import nn

    features, rows = MLP[name]
    layers = []
    for index, (inner, outer) in enumerate(zip(features, features[1:])):
        layers.append(nn.Linear(inner, outer))
        if name == "alpa":
            layers.append(nn.ReLU())
        elif index + 2 < len(features):
            layers.append(nn.GELU())
    model = nn.Sequential(*layers)
    forward = torch.compile(model) if compiled else model
    inputs, targets = torch.randn(*rows, features[0]), torch.randn(*rows, features[-1])
    rate = LEARNING_RATE[name]
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=True) if rate else None

    def step():
        model.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(forward(inputs), targets)
        loss.backward()
        if optimizer:
            optimizer.step()
        return loss.item()

    return step


def gpt_model(size, separate):
    """`separate`: q, k and v are three layers, as tensor parallelism needs them."""
    import torch
    from torch import nn
    from torch.nn import functional

    vocab, dim, layers, heads, positions, _ = GPT[size]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
            if separate:
                self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
            else:
                self.qkv = nn.Linear(dim, 3 * dim)
            self.o, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, sequence, _ = x.shape
            h = self.attn_norm(x)
            qkv = (self.q(h), self.k(h), self.v(h)) if separate else self.qkv(h).split(dim, dim=-1)
            # The number of heads is left open: a rank of tensor parallelism has a part of them.
            qkv = [part.reshape(batch, sequence, -1, dim // heads).transpose(1, 2) for part in qkv]
            attended = functional.scaled_dot_product_attention(*qkv, is_causal=True)
            x = x + self.o(attended.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Parameter(0.02 * torch.randn(vocab, dim))
            self.positions = nn.Parameter(0.02 * torch.randn(positions, dim))
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.LayerNorm(dim)
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear):
                    # As GPT-2: what writes to the residual stream starts smaller.
                    writes = name.endswith((".o", ".down"))
                    nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers) if writes else 0.02)
                    nn.init.zeros_(module.bias)

        def forward(self, tokens, labels):
            x = functional.embedding(tokens, self.tokens) + self.positions
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.norm(x), self.tokens)
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(1)
    return Gpt()


def gpt_step(model, forward, tokens, labels, fused=True):
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE["gpt"], betas=BETAS, weight_decay=WEIGHT_DECAY, fused=fused
    )

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(tokens, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def gpt_batch(size):
    import torch

    vocab, _, _, _, positions, rows = GPT[size]
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(vocab, (rows, positions), generator=generator) for _ in range(2))


def gpt(size, compiled):
    import torch

    model = gpt_model(size, separate=False)
    return gpt_step(model, torch.compile(model) if compiled else model, *gpt_batch(size))


def parallel_gpt(size, kind, rank, ranks):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    model = gpt_model(size, separate=True)
    tokens, labels = gpt_batch(size)
    mesh = init_device_mesh("cpu", (ranks,))
    forward = model
    if kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        styles = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        styles |= {name: RowwiseParallel() for name in ("o", "down")}
        for layer in model.layers:
            parallelize_module(layer, mesh, styles)
    else:
        tokens, labels = (part.chunk(ranks)[rank].contiguous() for part in (tokens, labels))
        if kind == "dp":
            from torch.nn.parallel import DistributedDataParallel

            forward = DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard

            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
    # The fused update refuses a mix of sharded and whole tensors.
    return gpt_step(model, forward, tokens, labels, fused=kind != "tp"), dist.barrier


def collective(name, size, ranks):
    import torch
    import torch.distributed as dist

    elements = SIZES[size] // 4
    whole, part = torch.ones(elements), torch.ones(elements // ranks)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "copy": lambda: part.copy_(whole[: elements // ranks]),
    }

    def step():
        calls[name]()
        # Sums of sums would overflow in the end.
        whole.fill_(1) if name == "all_reduce" and whole[0] > 1e30 else None

    return step, dist.barrier


def run_rank(rank, ranks, port, options):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    threads = max(1, options.threads // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    suite, *rest = options.case.split("/")
    if suite == "dist":
        step, before = parallel_gpt(rest[0], rest[1].split("=")[0], rank, ranks)
    else:
        step, before = collective(rest[0], rest[1], ranks)
    result = measure(step, options, before=before)
    results = [None] * ranks
    dist.all_gather_object(results, result)
    if rank == 0:
        # A rank of data parallelism sees a part of the batch.
        for key in ("cpu_ms", "peak_rss_mb", "ready_rss_mb"):
            result[key] = sum(other[key] for other in results)
        result["losses"] = [sum(losses) / ranks for losses in zip(*(other["losses"] for other in results))]
        tell(options, "torch gloo", torch.__version__, result)
    dist.destroy_process_group()


def main():
    options = arguments(__doc__, ["eager", "compile"])
    suite, *rest = options.case.split("/")
    if suite == "gemm":
        options.threads = int(rest[1])
    limit_threads(options.threads)
    ranks = 1
    if suite == "dist":
        ranks = int(rest[1].split("=")[1])
    elif suite == "collectives":
        ranks = int(rest[2])
    if ranks > 1:
        import torch.multiprocessing as processes

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes.spawn(run_rank, (ranks, port, options), nprocs=ranks)
        return
    import torch

    torch.set_num_threads(options.threads)
    compiled = options.mode == "compile"
    if suite == "gemm":
        step = product(rest[0])
    elif suite == "mlp":
        step = mlp(rest[0], compiled)
    else:
        step = gpt(rest[0], compiled)
    tell(options, f"torch {options.mode}", torch.__version__, measure(step, options))


if __name__ == "__main__":
    main()
