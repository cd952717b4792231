"""Records rounding and training in 8 bits: `python make_f8.py > recorded_f8.txt`, with PyTorch 2.9 or newer.

Each line is `case what number number ..`. Cases `e4m3` and `e5m2` are numbers rounded by PyTorch's own types. `blocks` are
matrices in blocks with scales in f32, or with powers of two. The others are 20 losses of SGD with momentum on a small
classifier whose matmuls are in 8 bits, forward and backward. Numbers are formulas of the element's number i and the tensor's
number k.
"""

import math

import numpy
import torch

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SHAPES = [[96, 64], [96], [8, 96], [8]]
ROWS, STEPS, RATE = 64, 20, 0.05
HISTORY = 16


def wave(k, shape, scale):
    count = math.prod(shape)
    numbers = [scale * math.sin(0.37 * i * i + 0.9 * i + k) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).to(torch.float32).reshape(shape)


def narrow(x, name):
    largest = torch.finfo(TYPES[name]).max
    return x.clamp(-largest, largest).to(TYPES[name]).to(torch.float32)


def blocked(x, blocks, power, name):
    """A matrix in blocks of these extents, the last ones smaller."""
    largest = torch.finfo(TYPES[name]).max
    y = torch.empty_like(x)
    for top in range(0, x.shape[0], blocks[0]):
        for left in range(0, x.shape[1], blocks[1]):
            at = (slice(top, top + blocks[0]), slice(left, left + blocks[1]))
            amax = x[at].abs().max()
            scale = amax / largest
            if power:
                exponent = torch.frexp(amax).exponent - 1 - (math.frexp(largest)[1] - 1)
                scale = torch.ldexp(torch.tensor(1.0), exponent)
            scale = scale.clamp(min=2.0**-126)
            y[at] = narrow(x[at] / scale, name) * scale
    return y


class Blocks:
    def __init__(self, extent, power, backward):
        self.extent, self.power, self.backward = extent, power, backward

    def __call__(self, x, along, kind):
        blocks = [1, 1]
        blocks[along] = self.extent
        if kind == "weight" and not self.power:
            blocks = [self.extent, self.extent]
        return blocked(x, blocks, self.power, self.backward if kind == "gradient" else "e4m3")


class Delayed:
    """One scale for a tensor, from the largest magnitudes of earlier steps."""

    def __init__(self):
        self.histories = {}
        self.seen = {}

    def __call__(self, x, along, kind):
        name = "e5m2" if kind == "gradient" else "e4m3"
        site = (self.layer, kind)
        history = self.histories.get(site, torch.zeros(HISTORY))
        largest = torch.finfo(TYPES[name]).max / history.max()
        scale = largest if torch.isfinite(largest) else torch.tensor(1.0)
        self.seen[site] = x.abs().max()
        return narrow(x * scale, name) * (1.0 / scale)

    def end(self):
        for site, amax in self.seen.items():
            history = self.histories.get(site, torch.zeros(HISTORY))
            self.histories[site] = torch.cat([amax.reshape(1), history[:-1]])


class Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, quantise, layer):
        ctx.save_for_backward(x, w)
        ctx.quantise, ctx.layer = quantise, layer
        quantise.layer = layer
        return quantise(x, 1, "input") @ quantise(w, 1, "weight").T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        q = ctx.quantise
        q.layer = ctx.layer
        dx = q(g, 1, "gradient") @ q(w, 0, "weight")
        dw = q(g, 0, "gradient").T @ q(x, 0, "input")
        return dx, dw, None, None


def forward(p, x, labels, quantise):
    product = lambda x, w, layer: Matmul.apply(x, w, quantise, layer) if quantise else x @ w.T
    h = torch.nn.functional.gelu(product(x, p[0], 0) + p[1])
    return torch.nn.functional.cross_entropy(product(h, p[2], 1) + p[3], labels)


def run(quantise):
    p = [torch.nn.Parameter(wave(k, shape, 0.2)) for k, shape in enumerate(SHAPES)]
    x = wave(20, [ROWS, 64], 1.0)
    labels = torch.tensor([(7 * i + i * i) % 8 for i in range(ROWS)])
    rule = torch.optim.SGD(p, lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        rule.zero_grad()
        loss = forward(p, x, labels, quantise)
        loss.backward()
        rule.step()
        if isinstance(quantise, Delayed):
            quantise.end()
        losses.append(loss.item())
    return losses


def show(case, what, numbers):
    print(case, what, *[str(numpy.float32(number)) for number in numbers])


def main():
    for name, dtype in TYPES.items():
        # Every number of the format, numbers a little beside the middle between two of them, and the middles.
        codes = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32)
        codes = codes[torch.isfinite(codes)].unique()
        middles = (codes[1:] + codes[:-1]) / 2
        x = torch.cat([codes, middles, middles * (1 + 2.0**-20), middles * (1 - 2.0**-20), wave(1, [50], 1e3)])
        show(name, "x", x.tolist())
        show(name, "rounded", narrow(x, name).tolist())
    x = wave(3, [5, 70], 1.0) * torch.exp(6 * wave(4, [5, 1], 1.0)) * torch.exp(3 * wave(5, [1, 70], 1.0))
    x[1, :40] = 0
    x[2, 3] = 1e-38
    show("blocks", "x", x.flatten().tolist())
    for power in [False, True]:
        for name in TYPES:
            for blocks in [[1, 32], [3, 35], [5, 70]]:
                what = f"{name}-{'power' if power else 'float'}-{blocks[0]}x{blocks[1]}"
                show("blocks", what, blocked(x, blocks, power, name).flatten().tolist())
    recipes = {"f32": None, "mxfp8": Blocks(32, True, "e5m2"), "f8-block": Blocks(128, False, "e4m3"), "f8-delayed": Delayed()}
    for case, quantise in recipes.items():
        show(case, "loss", run(quantise))


if __name__ == "__main__":
    main()
