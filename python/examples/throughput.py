"""Training throughput of BERT and GPT-2 as Hugging Face writes them: PyTorch, torch.compile, and Partita without a schedule
and with one.

    python python/examples/throughput.py [tiny mini small] [--rounds 5]

A step is a forward pass, a backward pass and an update with AdamW, on two threads. Arithmetic is that of the matmuls of
both passes, as PyTorch counts it. The ways take turns; the fastest step of each counts. Needs PyTorch and transformers.
"""

import argparse
import time

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import partita

THREADS = 2
RATE = 1e-4

# layers, heads, features, vocabulary, rows, tokens
SIZES = {"tiny": (2, 2, 128, 1024, 8, 128), "mini": (4, 4, 256, 4096, 8, 128), "small": (6, 6, 384, 8192, 8, 128)}

# A schedule: the mesh, and styles by module.
SCHEDULES = {
    "BERT": (
        "tp=2",
        {
            "bert.encoder.layer.*.attention.self.query": "colwise",
            "bert.encoder.layer.*.attention.self.key": "colwise",
            "bert.encoder.layer.*.attention.self.value": "colwise",
            "bert.encoder.layer.*.attention.output.dense": "rowwise",
            "bert.encoder.layer.*.intermediate.dense": "colwise",
            "bert.encoder.layer.*.output.dense": "rowwise",
        },
    ),
    "GPT-2": ("dp=2", {}),
}


def bert(layers, heads, features, vocabulary, tokens):
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=features,
        intermediate_size=4 * features,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def gpt2(layers, heads, features, vocabulary, tokens):
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=features,
        vocab_size=vocabulary,
        n_positions=tokens,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


MODELS = {"BERT": bert, "GPT-2": gpt2}


def arithmetic(module, batch):
    """Floating-point operations of the matmuls of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        module(**batch).loss.backward()
    module.zero_grad()
    return counter.get_total_flops()


def loop(forward, parameters, batch):
    optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)

    def step():
        optimizer.zero_grad()
        loss = forward(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def trained(module, batch, mesh, plan):
    """A step of ``Trainer``; the plan is verified first."""
    model = partita.load(module, batch)
    sch = partita.Schedule(model, mesh, plan)
    assert sch.verify()
    trainer = partita.Trainer(model, sch.plan, mesh, torch.optim.AdamW(module.parameters(), lr=RATE))
    return lambda: trainer.step(batch)


def row(name, size, rounds):
    """GFLOP/s of each way."""
    *shape, rows, tokens = SIZES[size]
    torch.manual_seed(0)
    ids = torch.randint(shape[-1], (rows, tokens))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    def make():
        torch.manual_seed(0)
        return MODELS[name](*shape, tokens).train()

    eager, compiled = make(), make()
    operations = arithmetic(make(), batch)
    mesh, plan = SCHEDULES[name]
    steps = {
        "eager": loop(eager, eager.parameters(), batch),
        "compile": loop(torch.compile(compiled), compiled.parameters(), batch),
        "unscheduled": trained(make(), batch, "dp=1", {}),
        "scheduled": trained(make(), batch, mesh, plan),
    }
    losses = {way: [step() for _ in range(2)] for way, step in steps.items()}
    for way in steps:
        torch.testing.assert_close(torch.tensor(losses[way]), torch.tensor(losses["eager"]), rtol=1e-4, atol=1e-4)
    fastest = {}
    for _ in range(rounds):
        for way, step in steps.items():
            # Threads of the way before still look for work for a while.
            time.sleep(0.12)
            step()
            for _ in range(3):
                begin = time.perf_counter()
                step()
                fastest[way] = min(fastest.get(way, float("inf")), time.perf_counter() - begin)
    return operations, {way: operations / seconds / 1e9 for way, seconds in fastest.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=["tiny"], help=f"of {', '.join(SIZES)}; tiny by default")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    transformers.utils.logging.set_verbosity_error()
    print("GFLOP/s of a training step")
    print(f"{'model':<12}{'GFLOP':>8}{'eager':>9}{'compile':>9}{'unscheduled':>13}{'scheduled':>11}  on    to PyTorch's best")
    for name in MODELS:
        for size in options.sizes:
            operations, speed = row(name, size, options.rounds)
            gain = max(speed["unscheduled"], speed["scheduled"]) / max(speed["eager"], speed["compile"])
            print(
                f"{name + ' ' + size:<12}{operations / 1e9:>8.2f}{speed['eager']:>9.1f}{speed['compile']:>9.1f}"
                f"{speed['unscheduled']:>13.1f}{speed['scheduled']:>11.1f}  {SCHEDULES[name][0]:<6}{gain:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
