"""The models of `partita bench schedules` in PyTorch: prints the milliseconds of each timed step.

Arguments: the model, `eager` or `compile`, the number of threads, and that of timed steps."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional

# vocabulary, features, layers, heads, positions, rows, causal
SIZES = {"gpt2": (50257, 768, 12, 12, 256, 2, True), "bert": (30522, 768, 12, 12, 128, 4, False)}


class Layer(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attn_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        if self.causal:
            x = x + self.attend(self.attn_norm(x))
            return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))
        x = self.attn_norm(x + self.attend(x))
        return self.mlp_norm(x + self.down(functional.gelu(self.up(x))))


class Transformer(nn.Module):
    def __init__(self, vocab, dim, layers, heads, positions, rows, causal):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, dim), nn.Embedding(positions, dim)
        self.layers = nn.Sequential(*(Layer(dim, heads, causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens, targets):
        x = self.norm(self.layers(self.words(tokens) + self.places.weight))
        return functional.cross_entropy((x @ self.words.weight.T).flatten(0, 1), targets.flatten())


def step_of(name, compiled):
    torch.manual_seed(1)
    if name == "mlp4":
        sizes = [1024, 4096, 1024, 4096, 1024]
        layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
        model = compiled(nn.Sequential(*layers))
        inputs, targets = torch.randn(1024, 1024), torch.randn(1024, 1024)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def adam():
            optimizer.zero_grad(set_to_none=True)
            functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()

        return adam
    if name == "mlp":
        model = compiled(nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)))
        inputs, targets = torch.randn(2, 512, 1024), torch.randn(2, 512, 1024)

        def step():
            model.zero_grad(set_to_none=True)
            functional.mse_loss(model(inputs), targets).backward()

        return step
    sizes = SIZES[name]
    model = compiled(Transformer(*sizes))
    tokens, targets = (torch.randint(sizes[0], (sizes[5], sizes[4])) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1)

    def train():
        optimizer.zero_grad(set_to_none=True)
        model(tokens, targets).backward()
        optimizer.step()

    return train


name, mode, threads, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
step = step_of(name, torch.compile if mode == "compile" else lambda model: model)
for _ in range(2):
    step()
for _ in range(repeats):
    begin = time.perf_counter()
    step()
    print(1e3 * (time.perf_counter() - begin))
