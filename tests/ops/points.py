"""Points where gradients go wrong, and how a case is written."""

import dataclasses

import torch

INF, NAN = float("inf"), float("nan")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}
# bf16 has the range of f32 and rounds as f16 does: where many points are tried, these two are enough.
TWO = {"f32": F32, "f16": F16}

# Zeros, ordinary numbers, where functions saturate, the limits of each type.
SMALL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0]
SATURATED = [9.0, -9.0, 12.0, -12.0, 16.0, -16.0, 19.5, 20.0, -20.0, 20.5, 40.0, -40.0]
SATURATED += [88.0, -88.0, 90.0, -90.0, 104.0, -104.0]
LIMITS = {
    F32: [1e-3, 1e-20, -1e-20, 1.17549435e-38, 1e4, -1e4, 3.4028235e38, -3.4028235e38],
    F16: [6e-5, -6e-5, 6e-8, 300.0, -300.0, 65504.0, -65504.0],
    BF16: [1e-20, -1e-20, 1e4, -1e4, 3.38e38, -3.38e38],
}
NASTY = [INF, -INF, NAN]


@dataclasses.dataclass
class Case:
    op: str
    name: str
    args: list
    kwargs: dict
    keep: int | None
    tolerance: float | None
    fixed: list


CASES = []


def case(op, name, *args, keep=None, tolerance=None, fixed=(), **kwargs):
    """A call; `keep` is how many of its results are compared, `fixed` the tensors without a gradient."""
    CASES.append(Case(op, name, list(args), kwargs, keep, tolerance, list(fixed)))


def t(values, dtype=F32, shape=None):
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.reshape(shape) if shape is not None else tensor


def i(values, shape=None):
    return t(values, torch.int64, shape)


def points(dtype):
    """Points for a function of one number."""
    return t(SMALL + SATURATED + LIMITS[dtype] + NASTY, dtype)


def few(dtype):
    """Fewer points, for pairs of them."""
    most = torch.finfo(dtype).max
    return [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, most, INF, -INF, NAN]


def pairs(dtype, left=None, right=None):
    left, right = left or few(dtype), right or few(dtype)
    return t([a for a in left for _ in right], dtype), t([b for _ in left for b in right], dtype)


def rows(dtype=F32):
    """Rows of four: ordinary, ties, equal, zeros of both signs, and with what is not a number."""
    return t([
        [1.0, -2.0, 0.5, 3.0],
        [2.0, 1.0, 2.0, 2.0],
        [0.1, 0.1, 0.1, 0.1],
        [0.0, -0.0, 0.0, -0.0],
        [-1.0, NAN, 2.0, 0.5],
        [INF, 1.0, INF, 0.0],
        [-INF, -INF, 1.0, -INF],
        [-INF, -INF, -INF, -INF],
        [INF, -INF, 0.0, NAN],
    ], dtype)


def plain(*shape, dtype=F32, start=0):
    """Ordinary numbers without ties."""
    count = 1
    for extent in shape:
        count *= extent
    values = [((start + 7 * at) * 37 % 101 - 50) / 16 for at in range(count)]
    return t(values, dtype, shape)


def nasty(*shape, dtype=F32, start=0):
    """Ordinary numbers with a zero, both infinities and one that is not a number among them."""
    x = plain(*shape, dtype=dtype, start=start)
    flat = x.reshape(-1)
    for at, value in zip((1, 3, 5, 6), (0.0, INF, -INF, NAN)):
        if at < flat.numel():
            flat[at] = value
    return x
