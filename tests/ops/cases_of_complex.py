"""Calls of ops on complex numbers, and Fourier transforms."""

import torch
from points import F32, INF, NAN, case, nasty, pairs, plain, t

NORMS = ("backward", "ortho", "forward")


def numbers(*shape, start=0):
    """Ordinary complex numbers."""
    return torch.view_as_complex(plain(*shape, 2, start=start))


def planes(values=(0.0, 1.0, -1.0, 0.5, -2.5, 1e-20, 1e20)):
    """Pairs of real and imaginary parts."""
    return torch.complex(*pairs(F32, list(values), list(values)))


def parts():
    x = nasty(3, 2)
    case("aten.view_as_real.default", "c64", torch.view_as_complex(nasty(3, 2)))
    case("aten.view_as_complex.default", "f32", x)
    for op in ("real", "imag", "_conj", "conj_physical", "resolve_conj", "resolve_neg"):
        case(f"aten.{op}.default", "c64", planes())
    for op in ("real", "conj_physical"):
        case(f"aten.{op}.default", "f32", plain(5))
    case("aten.complex.default", "f32", *pairs(F32))
    case("aten.complex.default", "broadcast", plain(2, 1), plain(3))
    # The gradient of a size of 0 is 0 in PyTorch, and that of a negative one has the other sign.
    case("aten.polar.default", "f32", *pairs(F32, [1.0, 2.5, 1e20], [0.0, 1.0, -3.0, 50.0]))
    # The square of a smaller size is 0 in PyTorch.
    case("aten.angle.default", "c64", planes((0.0, 1.0, -1.0, 0.5, -2.5, 1e10)))
    case("aten.angle.default", "f32", t([0.0, 1.0, -1.0, -2.5, INF, -INF, NAN], F32))
    case("aten.vdot.default", "c64", numbers(5), numbers(5, start=3))
    case("aten.vdot.default", "f32", plain(5), plain(5, start=3))


def arithmetic():
    small = (0.0, 1.0, -1.0, 0.5, -2.5)
    for op in ("abs", "neg", "sgn"):
        case(f"aten.{op}.default", "c64", planes())
    for op in ("exp", "sin", "cos", "tanh", "square"):
        case(f"aten.{op}.default", "c64", planes(small), tolerance=1e-4)
    away = planes((0.25, 1.0, -1.0, 0.5, -2.5))
    for op in ("log", "sqrt", "reciprocal"):
        case(f"aten.{op}.default", "c64", away)
    for op in ("add", "sub", "mul", "div", "rsub"):
        case(f"aten.{op}.Tensor", "c64", numbers(4, 3), numbers(3, start=5))
        case(f"aten.{op}.Tensor", "c64 and f32", numbers(4, 3), plain(3, start=5))
    case("aten.mul.Tensor", "a complex number", plain(3), 2 - 1j)
    case("aten.div.Tensor", "large and small", planes((1e20, -1e-20)), planes((1e20, 1e-20)))
    for exponent in (2, 3, 0.5, -1):
        case("aten.pow.Tensor_Scalar", f"{exponent} c64", away, exponent)
    case("aten.matmul.default", "c64", numbers(2, 3, 4), numbers(4, 2, start=5))
    case("aten.sum.dim_IntList", "c64", numbers(3, 4), [1])
    case("aten.mean.default", "c64", numbers(3, 4))
    case("aten.linalg_vector_norm.default", "c64", numbers(3, 4), 2, [1])


def transforms():
    # Where terms cancel, what is left is of their size.
    for norm in NORMS:
        for op, x in (("fft", plain(2, 5)), ("ifft", numbers(2, 5)), ("rfft", plain(2, 6)), ("irfft", numbers(2, 4))):
            case(f"aten.fft_{op}.default", norm, x, None, -1, norm, tolerance=3e-4)
        for op, x in (("fft", plain(2, 3, 5)), ("ifft", numbers(2, 3, 5)), ("rfft", plain(2, 3, 4)), ("irfft", numbers(2, 3, 4))):
            case(f"aten.fft_{op}2.default", norm, x, None, [-2, -1], norm, tolerance=3e-4)
            case(f"aten.fft_{op}n.default", norm, x, None, None, norm, tolerance=3e-4)
    case("aten.fft_fft.default", "cut", numbers(2, 5), 3)
    case("aten.fft_fft.default", "longer", numbers(2, 5), 8, 0)
    case("aten.fft_irfft.default", "odd", numbers(2, 4), 5)
    case("aten.fft_irfft.default", "longer", numbers(2, 4), 12)
    case("aten.fft_fft.default", "of 130", numbers(130), tolerance=1e-3)
    case("aten.fft_fftn.default", "sizes", plain(2, 3, 5), [4, 4])
    for scale in range(3):
        case("aten._fft_r2c.default", f"{scale}", plain(2, 3, 4), [1, 2], scale, True, tolerance=3e-4)
        case("aten._fft_r2c.default", f"whole {scale}", plain(2, 3, 4), [1, 2], scale, False, tolerance=3e-4)
        case("aten._fft_c2c.default", f"{scale}", numbers(2, 3, 4), [0, 2], scale, True, tolerance=3e-4)
        case("aten._fft_c2c.default", f"inverse {scale}", numbers(2, 3, 4), [0, 2], scale, False, tolerance=3e-4)
        case("aten._fft_c2r.default", f"{scale}", numbers(2, 3, 4), [1, 2], scale, 7, tolerance=3e-4)


PARTS = (parts, arithmetic, transforms)
