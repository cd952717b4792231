"""Calls of ops on rows: reductions, sorting, softmax, norms, losses and attention."""

import torch
from points import BF16, F16, F32, FLOATS, INF, NAN, TWO, case, i, nasty, plain, points, rows, t


def reductions():
    empty = t([], F32, [2, 0])
    for name, dtype in FLOATS.items():
        x, y = rows(dtype), rows(dtype)[:4]
        for op in ("sum", "mean"):
            overload = "dim_IntList" if op == "sum" else "dim"
            case(f"aten.{op}.{overload}", name, x, [1])
            case(f"aten.{op}.{overload}", f"kept {name}", x, [0], True)
            case(f"aten.{op}.default", name, y)
            case(f"aten.{op}.default", f"nasty {name}", x)
        case("aten.prod.dim_int", name, x, 1)
        case("aten.prod.default", name, t([2.0, 0.0, -1.5, 3.0], dtype))
        case("aten.prod.default", f"two zeros {name}", t([2.0, 0.0, 0.0, 3.0], dtype))
        case("aten.prod.default", f"nasty {name}", nasty(7, dtype=dtype))
        for op in ("amax", "amin"):
            case(f"aten.{op}.default", name, x, [1])
            case(f"aten.{op}.default", f"all {name}", y, [0, 1], True)
        for op in ("max", "min"):
            case(f"aten.{op}.default", name, y)
            case(f"aten.{op}.default", f"nasty {name}", x)
            case(f"aten.{op}.dim", name, x, 1)
            case(f"aten.{op}.dim", f"kept {name}", x, 0, True)
            case(f"aten.arg{op}.default", name, x, 1)
            case(f"aten.arg{op}.default", f"all {name}", x)
            case(f"aten.arg{op}.default", f"ties {name}", y, 0, True)
        for op in ("var", "std"):
            case(f"aten.{op}.correction", name, x, [1], correction=1)
            case(f"aten.{op}.correction", f"population {name}", x, [1], correction=0, keepdim=True)
            case(f"aten.{op}.correction", f"one {name}", x[:, :1].contiguous(), [1], correction=1)
            case(f"aten.{op}.dim", name, x, [1], False)
            case(f"aten.{op}.default", name, y)
            case(f"aten.{op}_mean.correction", name, x, [1], correction=1)
        case("aten.var_mean.dim", name, x, [1], False)
        case("aten.logsumexp.default", name, x, [1])
        case("aten.logsumexp.default", f"two {name}", y, [0, 1], True)
        case("aten.logsumexp.default", f"nothing {name}", torch.full((2, 3), -INF, dtype=dtype), [0, 1])
        case("aten.logsumexp.default", f"large {name}", t([[600.0, 600.0], [-600.0, -601.0]], dtype), [1],
             tolerance=1e-4 if dtype == F32 else None)
        for p in (1, 2, INF):
            case("aten.linalg_vector_norm.default", f"{p} {name}", x, float(p), [1])
            case("aten.norm.ScalarOpt_dim", f"{p} {name}", x, float(p), [1])
        case("aten.norm.Scalar", name, y, 2.0)
        case("aten.norm.Scalar", f"zeros {name}", torch.zeros(3, dtype=dtype), 2.0)
        case("aten.cumsum.default", name, x, 1)
        case("aten.logcumsumexp.default", name, x, 1)
        case("aten.logcumsumexp.default", f"nothing first {name}", t([-INF, -INF, 0.0, -INF, 2.0], dtype), 0)
        case("aten.cosine_similarity.default", name, x, x.flip(1).contiguous(), 1)
        case("aten.cosine_similarity.default", f"equal {name}", y.clone(), y.clone(), 1)
    for op, overload in (("sum", "dim_IntList"), ("logsumexp", "default"), ("prod", "dim_int")):
        case(f"aten.{op}.{overload}", "an empty dimension", empty, 1 if op == "prod" else [1])
    case("aten.sum.dim_IntList", "nothing left", empty, [0])
    case("aten.amax.default", "nothing left", empty, [0])
    case("aten.max.dim", "nothing left", empty, 0)
    case("aten.cumsum.default", "empty", empty, 1)
    case("aten.linalg_vector_norm.default", "empty", empty, 2.0, [1])
    for op in ("cdist", "_cdist_forward", "_euclidean_dist"):
        a, b = t([[0.0, 0.0], [1.0, -2.0], [3.0, 4.0]]), t([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])
        more = () if op == "_euclidean_dist" else (2.0, 2)
        case(f"aten.{op}.default", "f32", a, b, *more)
        case(f"aten.{op}.default", "nasty", nasty(4, 2), b.clone(), *more)
    for op in ("any", "all"):
        case(f"aten.{op}.default", "f32", rows())
        case(f"aten.{op}.dim", "f32", rows(), 1)
        case(f"aten.{op}.dims", "f32", rows(), [1])
        case(f"aten.{op}.dim", "an empty dimension", empty, 1)


def sorts():
    for name, dtype in FLOATS.items():
        x = rows(dtype)
        for descending in (False, True):
            how = "down" if descending else "up"
            case("aten.sort.stable", f"{how} {name}", x, stable=True, dim=1, descending=descending)
            case("aten.argsort.stable", f"{how} {name}", x, stable=True, dim=1, descending=descending)
            # Order of equal elements is free here: values only, and rows without ties.
            apart = t([[1.0, -2.0, NAN, 3.0], [INF, 2.0, -INF, 0.5]], dtype)
            case("aten.sort.default", f"{how} {name}", apart, 1, descending)
            case("aten.argsort.default", f"{how} {name}", apart, 1, descending)
            case("aten.topk.default", f"{how} {name}", apart, 2, 1, descending)
            case("aten.topk.default", f"{how}, one {name}", apart, 1, 1, descending)
        case("aten.median.default", name, t([3.0, 1.0, 2.0, 5.0], dtype))
        case("aten.median.default", f"ties {name}", t([3.0, 1.0, 3.0, 5.0, 3.0], dtype))
        case("aten.median.default", f"equal {name}", t([2.0, 2.0, 2.0, 2.0], dtype))
        case("aten.median.default", f"not a number {name}", t([3.0, NAN, 3.0, NAN, 3.0], dtype))
        case("aten.median.dim", name, t([[3.0, 1.0, 2.0, 5.0], [INF, 0.0, -INF, 1.0]], dtype), 1)
        case("aten.median.dim", f"not a number {name}", t([[3.0, NAN, 2.0, 5.0], [1.0, 2.0, 0.5, NAN]], dtype), 1, True)
    case("aten.median.dim", "ties", t([[3.0, 1.0, 3.0, 5.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0]]), 1, keep=1)
    ties = t([[2.0, 1.0, 2.0, 2.0], [0.0, -0.0, 0.0, -0.0]])
    case("aten.topk.default", "ties", ties, 4, 1, True, keep=1, fixed=[ties])


def softmaxes():
    for name, dtype in FLOATS.items():
        x = rows(dtype)
        for op in ("softmax", "log_softmax"):
            case(f"aten.{op}.int", name, x, 1, tolerance=2e-5 if dtype == F32 else None)
            case(f"aten.{op}.int", f"large {name}", t([[600.0, 601.0, -600.0], [1e4, -1e4, 1e4]], dtype), -1)
            case(f"aten._{op}.default", name, x, 0, False)
            case(f"aten.{op}.int", f"empty {name}", t([], dtype, [0, 3]), 1)
        large = [-INF, 0.0, 1.0, 2.0]
        case("aten.softmax.int", f"hidden {name}", t([large, [-INF] * 3 + [1.0], [-INF] * 4], dtype), -1)


def norms():
    for name, dtype in FLOATS.items():
        tiny, large = [1e-3, 2e-3, -1e-3, 0.0], [200.0, 200.0, 201.0, 199.0]
        x = t([[1.0, -2.0, 0.5, 3.0], [0.1, 0.1, 0.1, 0.1], [0.0] * 4, tiny, large], dtype)
        bad = rows(dtype)[4:]
        w, b = t([1.0, -0.5, 0.0, 2.0], dtype), t([0.5, 0.0, -1.0, 1.0], dtype)
        loose = {F32: 5e-4, F16: 2e-2, BF16: 6e-2}[dtype]
        case("aten.layer_norm.default", name, x, [4], w, b, 1e-5, tolerance=loose)
        case("aten.layer_norm.default", f"nasty {name}", bad, [4], w.clone(), b.clone(), 1e-5)
        case("aten.layer_norm.default", f"plain {name}", x, [4], tolerance=2 * loose)
        case("aten.native_layer_norm.default", name, x, [4], w.clone(), b.clone(), 1e-5, keep=1, tolerance=loose)
        case("aten.rms_norm.default", name, x, [4], w.clone(), 1e-6, tolerance=loose)
        case("aten.rms_norm.default", f"own epsilon {name}", x[:1].clone(), [4], tolerance=loose)
        case("aten._fused_rms_norm.default", name, x, [4], w.clone(), 1e-6, keep=1, tolerance=loose)
    x = t([[1.0, -2.0, 0.5], [0.25, 0.5, 0.5], [0.5, 0.0, 0.5], [3.0, 1.0, 0.5]])
    w, b = t([1.0, -0.5, 2.0]), t([0.5, 0.0, -1.0])
    for training in (True, False):
        how = "training" if training else "evaluation"
        mean, variance = t([0.5, 0.0, 0.5]), t([1.0, 0.0, 0.25])
        more = dict(fixed=[mean, variance], tolerance=5e-4)
        case("aten.batch_norm.default", how, x, w, b, mean, variance, training, 0.1, 1e-5, False, **more)
        mean, variance = mean.clone(), variance.clone()
        more = dict(fixed=[mean, variance], tolerance=5e-4)
        case("aten.native_batch_norm.default", how, x, w, b, mean, variance, training, 0.1, 1e-5, keep=1, **more)
    mean, variance = t([0.5, 0.0, 0.5]), t([1.0, 0.0, 0.25])
    more = dict(keep=1, fixed=[mean, variance], tolerance=5e-4)
    case("aten._native_batch_norm_legit_functional.default", "f32", x, w, b, mean, variance, True, 0.1, 1e-5, **more)
    case("aten._native_batch_norm_legit_no_training.default", "f32", x, w, b, mean, variance, 0.1, 1e-5, **more)
    case("aten._native_batch_norm_legit.no_stats", "f32", x, w, b, True, 0.1, 1e-5, keep=1, tolerance=5e-4)
    mean, variance = mean.clone(), variance.clone()
    case("aten._native_batch_norm_legit.default", "f32", x, w, b, mean, variance, True, 0.1, 1e-5, keep=1,
         fixed=[mean, variance], tolerance=5e-4)
    y = torch.cat([plain(2, 4, 3), torch.full((1, 4, 3), 0.5)])
    w, b = t([1.0, -0.5, 0.0, 2.0]), t([0.5, 0.0, -1.0, 1.0])
    case("aten.group_norm.default", "f32", y, 2, w, b, 1e-5, tolerance=5e-4)
    case("aten.native_group_norm.default", "f32", y, w, b, 3, 4, 3, 2, 1e-5, keep=1, tolerance=5e-4)
    case("aten.instance_norm.default", "f32", y, w, b, None, None, True, 0.1, 1e-5, False, tolerance=5e-4)
    case("aten._weight_norm.default", "f32", t([[1.0, 2.0], [0.5, -0.5], [3.0, 0.0]]), t([[1.0], [0.0], [-2.0]]), 0)
    case("aten._weight_norm.default", "a row of zeros", t([[1.0, 2.0], [0.0, 0.0]]), t([[1.0], [2.0]]), 0)


def losses():
    for name, dtype in TWO.items():
        x = t([[1.0, -2.0, 0.5], [0.5, 0.5, 0.5], [50.0, -50.0, 0.0], [0.0, -0.0, 100.0]], dtype)
        hard = t([[-INF, 1.0, 0.0], [INF, 1.0, 0.0], [NAN, 1.0, 0.0], [-INF, -INF, 2.0], [-INF, -INF, -INF]], dtype)
        labels, few, none = i([0, 2, 1, 2]), i([0, -100, 1, -100]), i([-100] * 4)
        for reduction, how in ((0, "none"), (1, "mean"), (2, "sum")):
            case("aten.cross_entropy_loss.default", f"{how} {name}", x, labels, None, reduction)
            case("aten.cross_entropy_loss.default", f"{how}, some ignored {name}", x, few, None, reduction)
            case("aten.cross_entropy_loss.default", f"{how}, all ignored {name}", x, none, None, reduction)
            smooth = f"{how}, all ignored, smooth {name}"
            case("aten.cross_entropy_loss.default", smooth, x, none, None, reduction, -100, 0.1)
            case("aten.nll_loss.default", f"{how} {name}", x, labels, None, reduction)
            case("aten.nll_loss.default", f"{how}, all ignored {name}", x, none, None, reduction)
            for op in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits"):
                y = t([[0.0, 1.0, 0.5], [0.5, 0.5, 0.5], [1.0, 0.0, 0.25], [1.0, 0.0, 1.0]], dtype)
                more = (None, None, reduction) if op.startswith("binary") else (reduction,)
                case(f"aten.{op}.default", f"{how} {name}", x.clone(), y, *more)
        case("aten.cross_entropy_loss.default", f"smooth {name}", x, few, None, 1, -100, 0.1)
        case("aten.cross_entropy_loss.default", f"nasty {name}", hard, i([0, 1, 2, 1, 0]), None, 0)
        case("aten.cross_entropy_loss.default", f"probabilities {name}", x, t([[0.0, 1.0, 0.0]] * 4, dtype), None, 1)
        case("aten.nll_loss.default", f"nasty {name}", hard, i([0, 1, 2, 1, 0]), None, 0)
        case("aten.nll_loss_nd.default", f"{name}", x, few, None, 1)
        case("aten.nll_loss_forward.default", f"{name}", x, few, None, 1, -100, keep=1)
        case("aten.nll_loss_forward.default", f"all ignored {name}", x, i([-100] * 4), None, 1, -100, keep=1)
        for op in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            a = t([0.0, 1.0, -1.0, 2.0, INF, -INF, NAN, INF, 3.0], dtype)
            b = t([0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, INF, 5.0], dtype)
            case(f"aten.{op}.default", f"nasty {name}", a, b, 0)
        case("aten.smooth_l1_loss.default", f"width 0 {name}", t([0.0, 1.0, -1.0], dtype), t([0.0, 0.0, 1.0], dtype), 0, 0.0)
        logits, y = points(dtype), t(([0.0, 1.0, 0.5] * 40)[: points(dtype).numel()], dtype)
        case("aten.binary_cross_entropy_with_logits.default", f"points {name}", logits, y, None, None, 0)
        weight, positive = y.clone(), t([2.0], dtype)
        case("aten.binary_cross_entropy_with_logits.default", f"weights {name}", logits, y, weight, positive, 0,
             fixed=[weight, positive])
        x, target = t([-1.0, -INF, 0.0, -INF], dtype), t([0.0, 0.0, 1.0, 0.5], dtype)
        case("aten.kl_div.default", f"zero targets {name}", x, target, 0)
        x, target = t([-1.0, -2.0, 0.0, -1.0], dtype), t([-INF, -1.0, 0.0, -0.5], dtype)
        case("aten.kl_div.default", f"logarithms {name}", x, target, 0, log_target=True)
        p = [0.0, 1.0, 0.5, 0.25, 1.0, 0.0, 1.0 - 2**-7, 2**-10, 0.0, 1.0]
        y = [0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.5]
        for reduction, how in ((0, "none"), (1, "mean"), (2, "sum")):
            target = t(y, dtype)
            case("aten.binary_cross_entropy.default", f"{how} {name}", t(p, dtype), target, None, reduction, fixed=[target])
    target = t([0.0, 1.0, 0.5, 1.0])
    weight = t([1.0, 2.0, 0.0, 1.0])
    tiny = t([1e-20, 1e-44, 1e-38, 1e-12])
    case("aten.binary_cross_entropy.default", "tiny", tiny, target, weight, 0, fixed=[target, weight])
    target = t([0.0, 1.0, 0.5, 1.0])
    case("aten.binary_cross_entropy.default", "targets", t([0.25, 0.5, 0.75, 0.5]), target, None, 0)
    case("aten.nll_loss2d_forward.default", "f32", plain(2, 3, 1, 2), i([[[0, 2]], [[1, -100]]]), None, 1, -100, keep=1)


def attention():
    for name, dtype in TWO.items():
        q, k, v = (plain(1, 2, 3, 4, dtype=dtype, start=start) for start in (0, 3, 5))
        op = "aten.scaled_dot_product_attention.default"
        loose = {F32: 1e-4, F16: 1e-2}[dtype]
        case(op, name, q, k, v, tolerance=loose)
        case(op, f"causal {name}", q, k, v, None, 0.0, True, tolerance=loose)
        case(op, f"mask {name}", q, k, v, t([[1, 0, 1], [0, 1, 0], [1, 1, 1]], torch.bool), tolerance=loose)
        case(op, f"a row hidden {name}", q, k, v, t([[1, 0, 1], [0, 0, 0], [1, 1, 1]], torch.bool), tolerance=loose)
        hidden = t([[0.0, -INF, 0.0], [-INF, -INF, -INF], [0.5, 0.0, 1.0]], dtype)
        case(op, f"a row hidden by sums {name}", q, k, v, hidden, fixed=[hidden], tolerance=loose)
        case(op, f"fewer queries, causal {name}", q[:, :, :2].contiguous(), k, v, None, 0.0, True, tolerance=loose)
        case(op, f"wide values, a row hidden {name}", q, k, plain(1, 2, 3, 5, dtype=dtype),
             t([[1, 0, 1], [0, 0, 0], [1, 1, 1]], torch.bool), tolerance=loose)
    q, k, v = plain(1, 2, 3, 4), plain(1, 2, 3, 4, start=3), plain(1, 2, 3, 4, start=5)
    case("aten._scaled_dot_product_flash_attention_for_cpu.default", "f32", q, k, v, keep=1, tolerance=1e-4)
    case("aten._scaled_dot_product_flash_attention_for_cpu.default", "causal", q, k, v, 0.0, True, keep=1, tolerance=1e-4)


def long_rows():
    """Rows that vector instructions take in several steps, with what is not a number at their ends and between."""
    for name, dtype in TWO.items():
        x = plain(4, 67, dtype=dtype)
        for row, at in ((0, 0), (1, 33), (2, 66)):
            x[row, at] = NAN
        turned = x.t().contiguous()
        for op in ("max", "min"):
            case(f"aten.{op}.dim", f"long {name}", x, 1)
            case(f"aten.{op}.dim", f"many {name}", turned, 0)
            case(f"aten.{op}.default", f"long {name}", x)
            case(f"aten.arg{op}.default", f"long {name}", x, 1)
        case("aten.sum.dim_IntList", f"long {name}", x, [1])
        case("aten.logsumexp.default", f"long {name}", x, [1])
        case("aten.softmax.int", f"long {name}", x, 1)
        case("aten.log_softmax.int", f"long {name}", x, 1)
        case("aten.relu.default", f"long {name}", x)
        case("aten.maximum.default", f"long {name}", x, torch.zeros(1, dtype=dtype))
    x = plain(2, 67)
    x[0, 40] = NAN
    for descending in (False, True):
        case("aten.sort.stable", f"long {'down' if descending else 'up'}", x, stable=True, dim=1, descending=descending)
    case("aten.topk.default", "long", x, 3, 1, True)
    case("aten.median.dim", "long", x, 1)


PARTS = (reductions, sorts, softmaxes, norms, losses, attention, long_rows)
