"""Calls of elementwise ops: functions of one, two and three numbers, comparisons, limits and activations."""

import torch
from points import CASES, F32, FLOATS, INF, NAN, TWO, case, i, nasty, pairs, plain, points, t

UNARY = (
    "abs neg exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan tanh sigmoid erf erfc erfinv square sign sgn floor "
    "ceil round trunc reciprocal"
).split()
ACTIVATIONS = "silu selu softplus log_sigmoid mish hardsigmoid hardswish relu relu6 leaky_relu elu celu hardtanh".split()


def elementwise():
    for op in UNARY:
        for name, dtype in FLOATS.items():
            x = points(dtype)
            if op in ("sin", "cos", "tan"):
                # Far from 0 the last bits of an argument decide.
                x = t([v for v in x.tolist() if not 100 < abs(v) < INF], dtype)
            loose = {"tan": 4e-5, "erfinv": 1e-4, "erfc": 2e-5}.get(op) if dtype == F32 else None
            case(f"aten.{op}.default", name, x, tolerance=loose)
    case("aten.sqrt.default", "empty", t([], F32, [0, 2]))
    case("aten.erfinv.default", "near one", t([0.9, -0.9, 0.999, 0.999999, 1.0, -1.0, 1.5, 0.1], F32), tolerance=1e-4)
    for name, dtype in TWO.items():
        case("aten.atan2.default", name, *pairs(dtype))
        for op in ("maximum", "minimum"):
            case(f"aten.{op}.default", name, *pairs(dtype))
        for op in ("max", "min"):
            case(f"aten.{op}.other", name, *pairs(dtype))
        for op in ("add", "sub", "rsub", "mul", "div"):
            case(f"aten.{op}.Tensor", name, *pairs(dtype))
        case("aten.true_divide.Tensor", name, *pairs(dtype))
        signed = [0.0, -0.0, 1.0, -1.0, 2.5, -7.0, 3.0, 0.75, INF, -INF, NAN]
        for mode in ("floor", "trunc"):
            case("aten.div.Tensor_mode", f"{mode} {name}", *pairs(dtype, signed, signed), rounding_mode=mode)
            case("aten.div.Scalar_mode", f"{mode} {name}", points(dtype), -2.5, rounding_mode=mode)
        case("aten.floor_divide.default", name, *pairs(dtype, signed, signed))
        for op in ("remainder", "fmod"):
            case(f"aten.{op}.Tensor", name, *pairs(dtype, signed, signed))
        based = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.5, INF, -INF, NAN]
        exponents = [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 2.5, INF, -INF, NAN]
        case("aten.pow.Tensor_Tensor", name, *pairs(dtype, based, exponents))
        x = points(dtype)
        for exponent in (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 0.0, -1.5):
            case("aten.pow.Tensor_Scalar", f"{exponent} {name}", x, exponent)
        for base in (0.0, 1.0, 2.0, -1.5, 0.5):
            case("aten.pow.Scalar", f"{base} {name}", base, x)
        a, b = pairs(dtype)
        c = t(([1.0, 0.0, -2.0, INF, NAN, 3.0, -0.5] * 20)[: a.numel()], dtype)
        case("aten.addcmul.default", name, c, a, b, value=0.5)
        case("aten.addcdiv.default", name, c, a, b, value=0.5)
        case("aten.lerp.Scalar", name, a, b, 0.25)
        case("aten.lerp.Scalar", f"beyond the middle {name}", a, b, 0.75)
        case("aten.lerp.Tensor", name, a, b, t(([0.0, 0.25, 0.5, 0.75, 1.0, -1.0, 2.0] * 20)[: a.numel()], dtype))
        for op in ("add", "sub", "rsub"):
            case(f"aten.{op}.Scalar", name, x, 2.5, 2)
        for op in ("mul", "div"):
            case(f"aten.{op}.Scalar", name, x, 0.0)
            case(f"aten.{op}.Scalar", f"-2.5 {name}", x, -2.5)
        for op in ("remainder", "fmod", "floor_divide"):
            case(f"aten.{op}.Scalar", name, x, -2.5)
    case("aten.add.Tensor", "broadcast", nasty(2, 3), nasty(3, start=2), alpha=2)
    case("aten.mul.Tensor", "broadcast", nasty(2, 1), nasty(2, 4, start=2))
    case("aten.div.Tensor", "a number", nasty(2, 3), t(0.0, F32))
    case("aten.diff.default", "f32", nasty(3, 5))
    case("aten.diff.default", "first dimension", plain(3, 4), 1, 0)
    case("aten.floor_divide.default", "i64", *[i([7, -7, 7, -7, 0, 1]), i([2, 2, -2, -2, 3, -1])])
    case("aten.remainder.Tensor", "i64", *[i([7, -7, 7, -7, 0, 1]), i([2, 2, -2, -2, 3, -1])])


def limits():
    for name, dtype in TWO.items():
        x = t([0.0, -0.0, 1.0, -1.0, 1.0 + 2**-6, 0.5, -2.0, 3.0, 6.0, 7.0, INF, -INF, NAN], dtype)
        case("aten.clamp.default", name, x, -1.0, 1.0)
        case("aten.clamp.default", f"zeros {name}", x, 0.0, 0.0)
        case("aten.clamp.default", f"crossed {name}", x, 2.0, -1.0)
        case("aten.clamp.default", f"not a number {name}", x, NAN, 1.0)
        case("aten.clamp.default", f"infinite {name}", x, -INF, INF)
        case("aten.clip.default", name, x, -1.0, 1.0)
        case("aten.clamp_min.default", name, x, 0.0)
        case("aten.clamp_max.default", name, x, 6.0)
        a, b = pairs(dtype)
        top = t(([1.0, 0.0, -1.0, INF, NAN, 2.0] * 20)[: a.numel()], dtype)
        case("aten.clamp.Tensor", name, a, b, top)
        case("aten.clamp.Tensor", f"max {name}", a, None, b)
        case("aten.clamp_min.Tensor", name, a, b)
        case("aten.clamp_max.Tensor", name, a, b)
        case("aten.hardtanh.default", f"limits {name}", x, -1.0, 1.0)
        case("aten.hardtanh.default", f"at points {name}", points(dtype), -2.0, 3.0)
        case("aten.relu6.default", f"limits {name}", x)
        a, b = pairs(dtype)
        mask = t([at % 3 == 0 for at in range(a.numel())], torch.bool)
        case("aten.where.self", name, mask, a, b)
        case("aten.where.ScalarOther", name, mask, a, 0.0)
        case("aten.where.ScalarSelf", name, mask, NAN, b)
        case("aten.masked_fill.Scalar", name, a, mask, -INF)
        case("aten.masked_fill.Tensor", name, a, mask, t(2.0, dtype))
        for op in ("eq", "ne", "lt", "le", "gt", "ge"):
            case(f"aten.{op}.Tensor", name, a, b)
            case(f"aten.{op}.Scalar", name, points(dtype), 0.0)
        for op in ("isnan", "isinf", "isfinite", "logical_not"):
            case(f"aten.{op}.default", name, points(dtype))
        for op in ("logical_and", "logical_or", "logical_xor"):
            case(f"aten.{op}.default", name, a, b)
    case("aten.clamp.Tensor", "broadcast limits", plain(3, 4), plain(4, start=3), plain(3, 1, start=5))


def activations():
    for name, dtype in FLOATS.items():
        x = points(dtype)
        for op in ACTIVATIONS:
            case(f"aten.{op}.default", name, x)
        case("aten.log_sigmoid_forward.default", name, x, keep=1)
        for how in ("none", "tanh"):
            case("aten.gelu.default", f"{how} {name}", x, approximate=how, tolerance=5e-5 if dtype == F32 else None)
        case("aten.elu.default", f"alpha, scale {name}", x, 0.5, 2.0, 1.5)
        case("aten.elu.default", f"alpha 0 {name}", x, 0.0)
        case("aten.celu.default", f"alpha {name}", x, 0.5)
        case("aten.softplus.default", f"beta, threshold {name}", x, 2.0, 10.0)
        case("aten.leaky_relu.default", f"slope 0 {name}", x, 0.0)
        case("aten.leaky_relu.default", f"slope -1 {name}", x, -1.0)
        case("aten.softshrink.default", name, x, 0.5)
        case("aten.hardshrink.default", name, x, 0.5)
        case("aten.threshold.default", name, x, 1.0, 20.0)
        case("aten.glu.default", name, x[: len(x) // 2 * 2].reshape(-1, 2), -1, tolerance=5e-5 if dtype == F32 else None)
        case("aten.glu.default", f"halves {name}", nasty(8, dtype=dtype), 0)
        case("aten.prelu.default", name, nasty(3, 4, dtype=dtype), t([0.0, -1.0, 0.5, INF], dtype))
        case("aten.prelu.default", f"one slope {name}", x, t([0.25], dtype))
        case("aten._prelu_kernel.default", name, x, t([0.25], dtype).expand(len(x)).contiguous())


def composed():
    unit = [0.0, -0.0, 0.5, -0.5, 0.75, 1.0, -1.0, 1.5, 1e-3, -0.25, INF, -INF, NAN]
    for name, dtype in TWO.items():
        x = points(dtype)
        for op in ("exp2", "sinh", "cosh", "atan"):
            case(f"aten.{op}.default", name, x)
        for op in ("asin", "acos"):
            case(f"aten.{op}.default", name, t(unit, dtype))
        case("aten.logaddexp.default", name, *pairs(dtype))
        case("aten.xlogy.Tensor", name, *pairs(dtype))
        case("aten.nan_to_num.default", name, x)
        case("aten.nan_to_num.default", f"others {name}", x, 1.0, 2.0, -3.0)


def all_cases():
    import cases_of_complex
    import cases_of_rows
    import cases_of_tensors

    others = (*cases_of_rows.PARTS, *cases_of_tensors.PARTS, *cases_of_complex.PARTS)
    for part in (elementwise, limits, activations, composed, *others):
        part()
    return CASES
