"""Records losses of training in mixed precision: `python make.py > recorded.txt`, with PyTorch 2.9 or newer.

Each line is `case what number number ..` over 20 steps of SGD with momentum on a small classifier: `loss`, and with a scaled
loss `scale`, the factor after each step. Parameters keep f32; `torch.autocast` computes in bf16 or f16, `GradScaler` scales the
loss. Initial values and the one batch are formulas of the element's number i and the tensor's number k.
"""

import math
import warnings

import torch

warnings.simplefilter("ignore")
SHAPES = [[16, 8], [16], [16], [16], [16, 16], [16], [4, 16], [4]]
ROWS, STEPS, RATE = 24, 20, 0.05


def wave(k, shape, scale):
    count = math.prod(shape)
    numbers = [scale * math.sin(0.37 * i * i + 0.9 * i + k) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).to(torch.float32).reshape(shape)


def forward(p, x, labels):
    h = torch.nn.functional.linear(x, p[0], p[1])
    n = torch.nn.functional.layer_norm(torch.nn.functional.gelu(h), [16], p[2], p[3], 1e-5)
    h = h + torch.nn.functional.gelu(torch.nn.functional.linear(n, p[4], p[5]))
    logits = torch.nn.functional.linear(h, p[6], p[7])
    return torch.nn.functional.cross_entropy(logits, labels)


def run(dtype, initial=None, interval=2000):
    p = [torch.nn.Parameter(wave(k, shape, 0.4) + (1.0 if k == 2 else 0.0)) for k, shape in enumerate(SHAPES)]
    x = wave(20, [ROWS, 8], 1.0)
    labels = torch.tensor([(7 * i + i * i) % 4 for i in range(ROWS)])
    rule = torch.optim.SGD(p, lr=RATE, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=initial or 1.0, growth_interval=interval, enabled=initial is not None)
    losses, scales = [], []
    for _ in range(STEPS):
        rule.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = forward(p, x, labels)
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def main():
    for case, arguments in {
        "f32": (None,),
        "bf16": (torch.bfloat16,),
        "f16": (torch.float16, 65536.0),
        # The first steps overflow, and the factor grows again after every three finite steps.
        "f16-overflow": (torch.float16, 2.0**24, 3),
    }.items():
        losses, scales = run(*arguments)
        print(case, "loss", *losses)
        if case.startswith("f16"):
            print(case, "scale", *scales)


main()
