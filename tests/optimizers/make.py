"""Records three steps of optimizers: `python make.py > recorded.txt`, with PyTorch 2.9 or newer.

Each line is `case tensor number number ..`: a parameter after three steps. Parameters begin as `cos(0.37 i + k)` and
gradients are `sin(0.71 i + 1.3 step + k)`, for element i of parameter number k. Adafactor, Muon and AdamW are PyTorch's
own; LAMB and the 8-bit states are written here as their papers state them, the code book as a list that is searched for
the nearest number. Everything is in double precision, Muon's iteration included.
"""

import bisect
import math

import torch

SHAPES = {
    "layers.0.weight": [3, 64],
    "layers.1.weight": [5, 3],
    "experts.weight": [2, 3, 4],
    "embed_tokens.weight": [4, 3],
    "layers.0.bias": [4],
}
RATES = [0.1, 0.05, 0.02]


def initial(k, shape):
    count = math.prod(shape)
    return torch.tensor([math.cos(0.37 * i + k) for i in range(count)], dtype=torch.float64).reshape(shape)


def gradient(k, shape, step):
    count = math.prod(shape)
    numbers = [math.sin(0.71 * i + 1.3 * step + k) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def run(make):
    """Three steps; `make(name, parameter)` gives a function of (parameter, gradient, rate, step)."""
    out = {}
    for k, (name, shape) in enumerate(SHAPES.items()):
        p = torch.nn.Parameter(initial(k, shape))
        step = make(name, p)
        for number, rate in enumerate(RATES, 1):
            with torch.no_grad():
                step(p, gradient(k, shape, number), rate, number)
        out[name] = p.detach()
    return out


def of_torch(cls, decay, **options):
    def make(name, p):
        own = cls([p], lr=1.0, weight_decay=decay if p.ndim > 1 else 0.0, **options)

        def step(p, g, rate, _):
            own.param_groups[0]["lr"] = rate
            p.grad = g
            own.step()

        return step

    return make


def muon(adjust):
    def make(name, p):
        if p.ndim == 1 or "embed" in name:
            return of_torch(torch.optim.AdamW, 0.1, betas=(0.9, 0.95))(name, p)
        matrices = list(p.unbind(0)) if p.ndim == 3 else [p]
        matrices = [torch.nn.Parameter(matrix.detach().clone()) for matrix in matrices]
        own = torch.optim.Muon(matrices, lr=1.0, weight_decay=0.1, adjust_lr_fn=adjust)

        def step(p, g, rate, _):
            own.param_groups[0]["lr"] = rate
            for matrix, part in zip(matrices, g.unbind(0) if p.ndim == 3 else [g]):
                matrix.grad = part.clone()
            narrow, torch.bfloat16 = torch.bfloat16, torch.float64
            try:
                own.step()
            finally:
                torch.bfloat16 = narrow
            p.copy_(torch.stack([m.detach() for m in matrices]) if p.ndim == 3 else matrices[0].detach())

        return step

    return make


def lamb(name, p):
    m, v = torch.zeros_like(p), torch.zeros_like(p)

    def step(p, g, rate, number):
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        direction = (m / (1 - 0.9**number)) / ((v / (1 - 0.999**number)).sqrt() + 1e-6)
        if p.ndim > 1:
            direction = direction + 0.01 * p
            direction = direction * (p.norm() / direction.norm())
        p.sub_(rate * direction)

    return step


def book(decades):
    """0, then in each decade up to 10^(i + 1 - decades) a linear fraction of 2^i numbers."""
    numbers = [0.0]
    for i in range(decades):
        numbers += [10.0 ** (i + 1 - decades) * (0.1 + 0.9 * (j + 1) / 2**i) for j in range(2**i)]
    return numbers


def nearest(numbers, x):
    at = bisect.bisect_left(numbers, x)
    return min(range(max(at - 1, 0), min(at + 1, len(numbers) - 1) + 1), key=lambda i: abs(numbers[i] - x))


def rounded(x, decades):
    """Each row, which is one block here, through the codes and back."""
    numbers = book(decades)
    rows = []
    for row in x.reshape(-1, x.shape[-1]).tolist():
        scale = max(abs(number) for number in row)
        for number in row:
            code = nearest(numbers, abs(number) / (scale or 1.0))
            if decades == 8 and number > 0:
                code = max(code, 1)
            rows.append(math.copysign(numbers[code] * scale, number))
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


def adam8bit(name, p):
    m, v = torch.zeros_like(p), torch.zeros_like(p)

    def step(p, g, rate, number):
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        direction = (m / (1 - 0.9**number)) / ((v / (1 - 0.999**number)).sqrt() + 1e-8)
        p.mul_(1 - rate * (0.01 if p.ndim > 1 else 0.0)).sub_(rate * direction)
        if p.ndim > 1:
            m, v = rounded(m, 7), rounded(v, 8)

    return step


CASES = {
    "adafactor": of_torch(torch.optim.Adafactor, 0.0, foreach=False),
    "adafactor_decay": of_torch(torch.optim.Adafactor, 0.1, foreach=False),
    "lamb": lamb,
    "muon": muon("match_rms_adamw"),
    "muon_original": muon("original"),
    "adam8bit": adam8bit,
}

for case, make in CASES.items():
    for name, value in run(make).items():
        print(case, name, *[repr(number) for number in value.flatten().tolist()])
