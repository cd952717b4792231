"""Calls of ops on whole tensors: shapes, indices, products, convolutions, pools, recurrences and embeddings."""

import torch
from points import F16, F32, INF, NAN, case, i, nasty, plain, t



def shapes():
    def both(op, *args, shape=(2, 3, 4), **kwargs):
        case(f"aten.{op}", "f32", nasty(*shape), *args, **kwargs)

    both("view.default", [6, 4])
    both("_unsafe_view.default", [6, 4])
    both("reshape.default", [4, -1])
    both("view_as.default", torch.zeros(24))
    both("reshape_as.default", torch.zeros(24))
    both("flatten.using_ints", 1)
    both("unflatten.int", 2, [2, 2])
    both("squeeze.default", shape=(1, 3, 1))
    both("squeeze.dim", 0, shape=(1, 3, 1))
    both("squeeze.dims", [0, 2], shape=(1, 3, 1))
    both("unsqueeze.default", 1)
    both("transpose.int", 0, 2)
    both("swapaxes.default", 0, 1)
    both("t.default", shape=(3, 4))
    both("numpy_T.default", shape=(3, 4))
    both("mT.default")
    both("permute.default", [2, 0, 1])
    both("movedim.int", 0, 2)
    both("expand.default", [2, 3, 4], shape=(3, 1))
    both("expand_as.default", torch.zeros(2, 3, 4), shape=(3, 1))
    both("broadcast_to.default", [2, 3, 4], shape=(3, 1))
    case("aten.broadcast_tensors.default", "f32", [nasty(3, 1), nasty(4, start=2)])
    both("slice.Tensor", 1, 0, 3, 2)
    case("aten.slice.Tensor", "nothing", nasty(3, 4), 0, 2, 2)
    both("select.int", 1, -1)
    both("narrow.default", 2, 1, 2)
    both("split.Tensor", 3, 2)
    both("split_with_sizes.default", [1, 3], 2)
    both("split.sizes", [1, 3], 2)
    both("unsafe_split.Tensor", 3, 2)
    both("unsafe_split_with_sizes.default", [1, 3], 2)
    both("chunk.default", 3, 2)
    both("unbind.int", 1)
    case("aten.cat.default", "f32", [nasty(2, 3), nasty(1, 3, start=1), t([], F32, [0, 3])])
    x = nasty(2, 2)
    case("aten.cat.default", "itself", [x, x], 1)
    case("aten.stack.default", "f32", [nasty(2, 3), nasty(2, 3, start=1)], 1)
    both("repeat.default", [2, 1, 3], shape=(2, 2))
    both("tile.default", [2, 3], shape=(2, 2))
    both("repeat_interleave.self_int", 2, 1)
    both("flip.default", [0, 2])
    both("roll.default", [1, -2], [0, 2])
    both("pad.default", [1, 2, -1, 0], "constant", NAN)
    both("constant_pad_nd.default", [1, 2], INF)
    both("pixel_shuffle.default", 2, shape=(1, 4, 2, 2))
    case("aten.slice_scatter.default", "f32", nasty(3, 4), nasty(3, 2, start=2), 1, 1, 3)
    case("aten.select_scatter.default", "f32", nasty(3, 4), nasty(3, start=2), 1, 1)
    both("tril.default", shape=(3, 4))
    both("triu.default", 1, shape=(3, 4))
    for op in ("clone", "lift_fresh_copy", "alias", "contiguous", "detach"):
        both(f"{op}.default")
    for op in ("zeros_like", "ones_like", "zero"):
        both(f"{op}.default")
    both("full_like.default", NAN)
    both("fill.Scalar", 2.5)
    case("aten.fill.Tensor", "f32", nasty(2, 3), t(1.5))
    case("aten.copy.default", "f32", nasty(2, 3), nasty(3, start=1))
    wide = t([0.0, -0.0, 1.0, 65504.0, 65519.0, 65520.0, 1e-8, 6e-8, -1e5, INF, -INF, NAN, 1e-40], F32)
    for name, dtype in (("f16", F16), ("bf16", torch.bfloat16)):
        case("aten.to.dtype", name, wide, dtype)
        case("aten._to_copy.default", name, wide, dtype=dtype)
        case("aten.to.dtype_layout", name, wide, dtype=dtype, layout=None)
        case("aten.to.device", name, wide, torch.device("cpu"), dtype)
        case("aten.to.other", name, wide, torch.zeros(1, dtype=dtype))
        case("aten.type_as.default", name, wide, torch.zeros(1, dtype=dtype))


def indices():
    x = nasty(3, 4)
    case("aten.index.Tensor", "f32", x, [i([0, 2, 0]), i([1, 1, 1])])
    case("aten.index.Tensor", "second", nasty(3, 4), [None, i([3, 0, 3])])
    case("aten.index_select.default", "f32", nasty(3, 4), 0, i([2, 0, 2]))
    case("aten.index_select.default", "nothing", nasty(3, 4), 0, i([]))
    case("aten.gather.default", "f32", nasty(3, 4), 1, i([[0, 0], [3, 1], [2, 2]]))
    case("aten.take_along_dim.default", "f32", nasty(3, 4), i([[0, 0], [3, 1], [2, 2]]), 1)
    case("aten.index_put.default", "f32", nasty(3, 4), [i([0, 2]), i([1, 3])], nasty(2, start=2))
    case("aten.index_put.default", "added", nasty(3, 4), [i([0, 0, 2])], plain(3, 4, start=2), True)
    case("aten.index_add.default", "f32", nasty(3, 4), 0, i([0, 0, 2]), plain(3, 4, start=2), alpha=2.0)
    case("aten.scatter.src", "f32", nasty(3, 4), 1, i([[0, 1], [3, 2], [0, 2]]), nasty(3, 2, start=2))
    case("aten.scatter.value", "f32", nasty(3, 4), 1, i([[0, 1], [3, 2], [0, 0]]), NAN)
    case("aten.scatter_add.default", "f32", nasty(3, 4), 1, i([[0, 0], [3, 2], [1, 1]]), plain(3, 2, start=2))
    w = nasty(4, 3)
    case("aten.embedding.default", "f32", w, i([[0, 3], [1, 0]]))
    case("aten.embedding.default", "padding", nasty(4, 3), i([[0, 3], [1, 0]]), 0)
    bags = (i([0, 3, 1, 0, 2]), i([0, 2, 2]))
    for mode, how in ((0, "sum"), (1, "mean")):
        case("aten.embedding_bag.default", how, plain(4, 3), *bags, False, mode, keep=1)
        case("aten.embedding_bag.padding_idx", how, plain(4, 3), *bags, False, mode, False, None, False, 0, keep=1)
        case("aten._embedding_bag.default", how, plain(4, 3), *bags, False, mode, keep=1)


def products():
    def pair(op, *shapes, **kwargs):
        tensors = [plain(*shape, start=3 * at) for at, shape in enumerate(shapes)]
        case(f"aten.{op}", "f32", *tensors, **kwargs)
        tensors = [plain(*shape, start=3 * at) for at, shape in enumerate(shapes)]
        tensors[0].reshape(-1)[0], tensors[-1].reshape(-1)[-1] = NAN, INF
        case(f"aten.{op}", "nasty", *tensors, **kwargs)
        case(f"aten.{op}", "zeros", *[torch.zeros(shape) for shape in shapes], **kwargs)

    pair("linear.default", (2, 3), (4, 3), (4,))
    pair("addmm.default", (4,), (2, 3), (3, 4), beta=0.5, alpha=2.0)
    pair("baddbmm.default", (2, 2, 4), (2, 2, 3), (2, 3, 4))
    pair("mm.default", (2, 3), (3, 4))
    pair("bmm.default", (2, 2, 3), (2, 3, 4))
    pair("matmul.default", (2, 2, 3), (3, 4))
    pair("mv.default", (2, 3), (3,))
    pair("dot.default", (3,), (3,))
    pair("outer.default", (2,), (3,))
    pair("bilinear.default", (2, 3), (2, 4), (5, 3, 4), (5,))
    a, b, c = plain(2, 3), plain(5, 3, 4, start=1), plain(2, 4, start=2)
    case("aten._trilinear.default", "f32", a, b, c, [1, 3], [0], [1, 2], [2, 3])
    case("aten.einsum.default", "f32", "ij,jk->ik", [plain(2, 3), plain(3, 4, start=2)])
    case("aten.mm.default", "an empty sum", t([], F32, [2, 0]), t([], F32, [0, 3]))
    case("aten.linear.default", "no rows", t([], F32, [0, 3]), plain(4, 3), plain(4))


def convolutions():
    case("aten.conv1d.default", "f32", plain(2, 2, 6), plain(4, 1, 3), plain(4), [2], [1], [1], 2)
    case("aten.conv2d.default", "f32", plain(1, 2, 4, 4), plain(3, 2, 2, 2), plain(3), [1, 2], [1, 0], [2, 1])
    case("aten.conv3d.default", "f32", plain(1, 1, 3, 3, 3), plain(2, 1, 2, 2, 2), plain(2))
    case("aten.conv1d.padding", "f32", plain(2, 2, 6), plain(4, 2, 3), plain(4), [1], "same")
    case("aten.conv2d.padding", "f32", plain(1, 2, 4, 4), plain(3, 2, 2, 2), plain(3), [1, 1], "same")
    case("aten.conv3d.padding", "f32", plain(1, 1, 3, 3, 3), plain(2, 1, 2, 2, 2), plain(2), [1, 1, 1], "valid")
    case("aten.conv_transpose1d.default", "f32", plain(2, 4, 3), plain(4, 1, 3), plain(2), [2], [1], [1], 2, [1])
    case("aten.conv_transpose2d.input", "f32", plain(1, 2, 3, 3), plain(2, 3, 2, 2), plain(3), [2, 1])
    case("aten.conv_transpose3d.input", "f32", plain(1, 1, 2, 2, 2), plain(1, 2, 2, 2, 2), plain(2))
    case("aten.convolution.default", "f32", plain(1, 2, 5), plain(3, 2, 3), plain(3), [1], [1], [1], False, [0], 1)
    case("aten.conv1d.default", "no rows", t([], F32, [0, 2, 6]), plain(4, 2, 3), plain(4))


def pools():
    ties = t([[[1.0, 1.0, 0.0, 0.0, -0.0, 2.0, 2.0, 2.0], [-INF, -INF, NAN, 1.0, INF, INF, 3.0, NAN]]])
    case("aten.max_pool1d.default", "f32", ties, [2], [2])
    case("aten.max_pool1d.default", "overlapping", ties.clone(), [3], [1], [1])
    square = t([[[[1.0, 1.0, 0.0, -0.0], [1.0, 1.0, -1.0, 0.0], [NAN, 2.0, -INF, -INF], [3.0, INF, -INF, -INF]]]])
    case("aten.max_pool2d.default", "f32", square, [2, 2], [2, 2])
    case("aten.max_pool2d.default", "overlapping", square.clone(), [2, 2], [1, 1], [1, 1])
    case("aten.max_pool2d_with_indices.default", "f32", square, [2, 2], [2, 2], keep=1)
    case("aten.avg_pool1d.default", "f32", ties.clone(), [3], [2], [1])
    case("aten.avg_pool2d.default", "f32", square.clone(), [2, 2], [1, 1], [1, 1], False, True)
    case("aten.adaptive_avg_pool1d.default", "f32", ties.clone(), [4])
    for op in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d"):
        case(f"aten.{op}.default", "f32", square.clone(), [2, 2])
    case("aten.upsample_nearest1d.vec", "f32", ties.clone(), [16], None)
    case("aten.upsample_nearest1d.default", "f32", ties.clone(), [16])
    case("aten.upsample_nearest2d.vec", "f32", square.clone(), [8, 8], None)
    case("aten.upsample_nearest2d.default", "f32", square.clone(), [8, 8])


def recurrences():
    for kind, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        x, h = plain(3, 2, 4), torch.zeros(1, 2, 3)
        weights = [plain(3 * gates, 4, start=1), plain(3 * gates, 3, start=2), plain(3 * gates), plain(3 * gates, start=3)]
        state = [h, torch.zeros(1, 2, 3)] if kind == "lstm" else h
        case(f"aten.{kind}.input", "f32", x, state, weights, True, 1, 0.0, False, False, False, tolerance=1e-4)
        h = torch.zeros(2, 3)
        state = [h, torch.zeros(2, 3)] if kind == "lstm" else h
        more = [plain(3 * gates, 4, start=1), plain(3 * gates, 3, start=2), plain(3 * gates), plain(3 * gates, start=3)]
        case(f"aten.{kind}_cell.default", "f32", plain(2, 4), state, *more, tolerance=1e-4)


def others():
    for op in ("dropout", "feature_dropout", "native_dropout"):
        case(f"aten.{op}.default", "evaluation", nasty(2, 4), 0.5, False, keep=1)
    half = torch.bfloat16
    counts = t([3, 5], torch.int32)
    case("aten._grouped_mm.default", "bf16", plain(5, 8, dtype=half), plain(2, 8, 16, dtype=half, start=2), counts)
    case("aten.diagonal.default", "f32", nasty(3, 4), 1)
    case("aten.unfold.default", "f32", nasty(3, 5), 1, 3, 1)
    case("aten.im2col.default", "f32", nasty(1, 2, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1])
    bags = (i([0, 3, 1, 0, 2]), i([0, 2, 2]))
    table = plain(4, 3)
    case("aten._embedding_bag_forward_only.default", "sum", table, *bags, False, 0, keep=1, fixed=[table])


PARTS = (shapes, indices, products, convolutions, pools, recurrences, others)
