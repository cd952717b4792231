"""Ops that the import does not know, in terms of ops that it knows: by the decompositions of PyTorch, or those below."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

_ATEN = torch.ops.aten

MAX_ROUNDS = 4
"""A decomposition may use ops that are not known either."""

_MAX_SQUARED = 4096
"""Elements of a row up to which ``cummax`` is written as a triangle of comparisons."""


def decomposed(exported: Any, unknown: Iterable[str]) -> Any:
    """The exported program without the ops of these names, such as ``aten.trace.default``; ``None`` if nothing decomposes
    any of them.

    Each call is replaced where it is. ``run_decompositions`` traces the program anew, and loses ``detach`` and the regions of
    ``no_grad``, so gradients would be others.
    """
    composites = torch.export.default_decompositions()
    ops = [op for name in unknown if (op := _op(name)) is not None]
    table = {op: way for op in ops if (way := _OWN.get(str(op)) or decomposition_table.get(op)) is not None}
    table.update({op: composites[op] for op in ops if op not in table and op in composites})
    if not table:
        return None
    table |= {op: _OWN[str(op)] for name in _READ_IN_FULL if (op := _op(name)) is not None}
    module = copy.deepcopy(exported.graph_module)
    replaced = 0
    for part, own in zip(module.modules(), exported.graph_module.modules()):
        if isinstance(part, torch.fx.GraphModule):
            # A copy calls `input` `input_1`; the signature of the program has the first name.
            for node, named in zip(part.graph.nodes, own.graph.nodes):
                node.name = named.name
            calls = [node for node in part.graph.nodes if node.op == "call_function" and node.target in table]
            calls = [node for node in calls if str(node.target) not in _READ_IN_FULL or _is_read_in_full(node)]
            replaced += sum(_replace(part, node, table[node.target]) for node in calls)
            part.graph.lint()
            part.recompile()
    return exported._update(module, exported.graph_signature) if replaced else None


def _replace(module: torch.fx.GraphModule, call: torch.fx.Node, way: Callable[..., Any]) -> bool:
    """Writes the decomposition of a call in its place; ``False`` where it has none for these arguments."""
    graph, given = module.graph, []

    def value(node: torch.fx.Node) -> Any:
        given.append(node)
        return node.meta["val"]

    args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), value)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    nodes = [node for node in given if isinstance(node.meta["val"], torch.Tensor)]
    if len(places) != len(nodes):
        return False

    def run(*tensors: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        found = way(*args, **kwargs)
        # Some return tuples with names, of a class of their own.
        return tuple(found) if isinstance(found, tuple) else found

    try:
        # What a decomposition makes anew belongs to the mode of the program.
        with detect_fake_mode(leaves) or nullcontext():
            traced = make_fx(torch.func.functionalize(run))(*[leaves[place] for place in places])
    except Exception:
        # A decomposition that cannot be traced is none: the caller reports the op as unknown.
        return False
    in_place = [node.all_input_nodes[0] for node in traced.graph.nodes if node.target in _IN_PLACE]
    if any(node.op == "get_attr" for node in traced.graph.nodes) or any(len(node.users) > 1 for node in in_place):
        return False
    (output,) = traced.graph.find_nodes(op="output")
    if not all(isinstance(leaf, (torch.fx.Node, type(None))) for leaf in pytree.tree_leaves(output.args[0])):
        return False
    results = output.args[0]
    if isinstance(results, (tuple, list)) and any(user.target is not operator.getitem for user in call.users):
        return False
    told = {key: value for key, value in call.meta.items() if key in ("nn_module_stack", "stack_trace", "torch_fn", "custom")}
    copies: dict[torch.fx.Node, torch.fx.Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes))
    with graph.inserting_before(call):
        for node in traced.graph.nodes:
            if node.op == "call_function":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {**told, "val": node.meta.get("val")}
                # A result of its own: nothing else reads the tensor whose shape changes in place.
                copies[node].target = _IN_PLACE.get(node.target, node.target)

        def own(found: Any) -> torch.fx.Node:
            # What a decomposition returns as it was given has a name of its own too.
            node = copies[found]
            if found.op == "call_function":
                return node
            same = graph.call_function(_ATEN.clone.default, (node,))
            same.meta = {**told, "val": node.meta["val"]}
            return same

        if isinstance(results, (tuple, list)):
            for user in list(call.users):
                _take_over(graph, user, own(results[cast(int, user.args[1])]))
            graph.erase_node(call)
        else:
            _take_over(graph, call, own(results))
    return True


_READ_IN_FULL = ("aten.max_pool2d_with_indices.default",)
"""Ops of which the import knows the first result alone: they are replaced where another one is read."""


def _is_read_in_full(call: torch.fx.Node) -> bool:
    return any(user.users and user.args[1] != 0 for user in call.users)


_IN_PLACE = {
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
}
"""Changes of a shape in place."""


def _take_over(graph: torch.fx.Graph, old: torch.fx.Node, new: torch.fx.Node) -> None:
    """A node in the place of another one, under its name, by which the signature of the program knows it."""
    name = old.name
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    new.name = name


def _op(name: str) -> Any:
    """``aten.trace.default`` as an op of PyTorch."""
    found: Any = torch.ops
    for part in name.removeprefix("torch.ops.").split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, indices = torch.sort(x, dim=dim)
    part = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return part if keepdim else tuple(each.squeeze(dim) for each in part)


def _running(greatest: bool) -> Callable[..., Any]:
    """``cummax`` and ``cummin``: the last of equal elements counts, as in PyTorch."""

    def way(x: Any, dim: int) -> Any:
        if x.dim() == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        size = x.shape[dim]
        if size > _MAX_SQUARED:
            raise NotImplementedError
        rows = x.movedim(dim, -1)
        places = torch.arange(size, device=x.device)
        is_before = places[None, :] <= places[:, None]
        # Of each place: the elements up to it, in reverse order, so that the first of equal ones is the last in x.
        bound = float("-inf") if greatest else float("inf")
        if not x.is_floating_point():
            info = torch.iinfo(x.dtype)
            bound = info.min if greatest else info.max
        up_to = torch.where(is_before, rows.unsqueeze(-2), bound).flip(-1)
        found = up_to.argmax(-1) if greatest else up_to.argmin(-1)
        last = size - 1 - found
        values = torch.gather(rows.unsqueeze(-2).expand(up_to.shape), -1, last.unsqueeze(-1)).squeeze(-1)
        return values.movedim(-1, dim), last.movedim(-1, dim)

    return way


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[place].reshape(x.shape), x)


def _searchsorted(
    sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    right = right if side is None else side == "right"
    if sequence.dim() > 1:
        bounds, given = sequence.unsqueeze(-2), values.unsqueeze(-1)
    else:
        bounds, given = sequence, values.unsqueeze(-1)
    below = bounds <= given if right else bounds < given
    return below.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _cumprod(x: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Products of twice as many elements in each round."""
    x = x if dtype is None else x.to(dtype)
    if x.dim() == 0:
        return x.clone()
    size, shift = x.shape[dim], 1
    while shift < size:
        before = torch.cat([torch.ones_like(x.narrow(dim, 0, shift)), x.narrow(dim, 0, size - shift)], dim)
        x, shift = x * before, 2 * shift
    return x


def _hypot(x: Any, y: Any) -> Any:
    return (x * x + y * y).sqrt()


def _rrelu(x: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
    # In training, slopes are drawn: another generator would give other ones.
    return NotImplemented if training else torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def _eliminated(matrix: Any, beside: Any) -> tuple[Any, Any]:
    """``beside`` multiplied with the inverse of a matrix, and its determinant: by Gauss and Jordan, with the greatest pivot
    of each column."""
    size = matrix.shape[-1]
    both = torch.cat([matrix, beside], -1)
    places = torch.arange(size, device=matrix.device)
    determinant = torch.ones_like(matrix[..., 0, 0])
    for column in range(size):
        candidates = torch.where(places >= column, both[..., column].abs(), -1.0)
        place = candidates.argmax(-1, keepdim=True)
        is_pivot = (places == place).to(matrix.dtype).unsqueeze(-1)
        pivot, own = (both * is_pivot).sum(-2, keepdim=True), both[..., column : column + 1, :]
        is_own = (places == column).to(matrix.dtype).unsqueeze(-1)
        # The two rows change places.
        both = both + is_pivot * (own - pivot) + is_own * (pivot - own)
        sign = torch.where(place.squeeze(-1) == column, 1.0, -1.0).to(matrix.dtype)
        determinant = determinant * sign * pivot[..., 0, column]
        row = pivot / pivot[..., column : column + 1]
        both = torch.where(is_own > 0, row, both - both[..., column : column + 1] * row)
    return both[..., size:], determinant


def _inverse(matrix: Any) -> Any:
    if matrix.shape[-1] > MAX_ELIMINATED:
        return NotImplemented
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return _eliminated(matrix, eye.expand(matrix.shape))[0]


def _solve(matrix: Any, right: Any, *, left: bool = True) -> Any:
    if matrix.shape[-1] > MAX_ELIMINATED or right.dim() != matrix.dim() or not left:
        return NotImplemented
    return _eliminated(matrix, right)[0]


def _determinant(matrix: Any) -> Any:
    return NotImplemented if matrix.shape[-1] > MAX_ELIMINATED else _eliminated(matrix, matrix[..., :0])[1]


def _cholesky(matrix: Any) -> Any:
    """The lower factor, a column at a time (Golub and Van Loan, Matrix Computations, section 4.2)."""
    size = matrix.shape[-1]
    columns: list[Any] = []
    for place in range(size):
        below = matrix[..., place:, place]
        if columns:
            # What the columns before account for.
            before = torch.stack(columns, -1)[..., place:, :]
            below = below - (before * before[..., :1, :]).sum(-1)
        column = below / below[..., :1].sqrt()
        columns.append(torch.nn.functional.pad(column, (place, 0)))
    return torch.stack(columns, -1)


def _cholesky_upper(matrix: Any, upper: bool = False) -> Any:
    if matrix.shape[-1] > MAX_ELIMINATED or matrix.shape[-1] == 0:
        return NotImplemented
    return _cholesky(matrix.mT).mT if upper else _cholesky(matrix)


def _cholesky_ex(matrix: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    factor = _cholesky_upper(matrix, upper)
    if factor is NotImplemented:
        return NotImplemented
    return factor, torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)


def _solve_triangular(matrix: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """By substitution, a row at a time."""
    size = matrix.shape[-1]
    if size > MAX_ELIMINATED or size == 0 or right.dim() != matrix.dim():
        return NotImplemented
    if not left:
        found = _solve_triangular(matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular)
        return found.mT
    if upper:
        matrix, right = matrix.flip(-1, -2), right.flip(-2)
    rows: list[Any] = []
    for place in range(size):
        row = right[..., place : place + 1, :]
        if rows:
            row = row - matrix[..., place : place + 1, :place] @ torch.cat(rows, -2)
        rows.append(row if unitriangular else row / matrix[..., place : place + 1, place : place + 1])
    found = torch.cat(rows, -2)
    return found.flip(-2) if upper else found


def _cholesky_solve(right: Any, factor: Any, upper: bool = False) -> Any:
    factor = factor.mT if upper else factor
    half = _solve_triangular(factor, right, upper=False)
    return NotImplemented if half is NotImplemented else _solve_triangular(factor.mT, half, upper=True)


MAX_ELIMINATED = 32
"""Rows of a matrix up to which its elimination is written out."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
"""Of the series of the logarithm of the gamma function, in odd powers of 1 / x (Abramowitz and Stegun, 6.1.41)."""


def _lgamma(x: Any) -> Any:
    def right_half(x: Any) -> Any:
        # The series is for large arguments: gamma(x) = gamma(x + 7) / (x (x + 1) .. (x + 6)).
        is_small = x < 7
        small = torch.where(is_small, x, 1.0)
        product = small
        for place in range(1, 7):
            product = product * (small + place)
        large = torch.where(is_small, x + 7, x)
        inverse, series = 1 / large, torch.zeros_like(x)
        for factor in reversed(_STIRLING):
            series = series * inverse * inverse + factor
        stirling = (large - 0.5) * large.log() - large + 0.5 * math.log(2 * math.pi) + series * inverse
        return stirling - torch.where(is_small, product.log(), 0.0)

    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    is_left = x < 0.5
    # gamma(x) gamma(1 - x) = pi / sin(pi x).
    mirrored = torch.where(is_left, x, 0.25)
    sine = torch.sin(math.pi * (mirrored - mirrored.floor()))
    right = right_half(torch.where(is_left, 1 - x, x))
    return torch.where(is_left, math.log(math.pi) - sine.log() - right, right)


def _scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Every element against every place, so that equal ones share the gradient of ``amax`` and ``amin``."""
    dim = dim % x.dim() if x.dim() else 0
    others = [extent for place, extent in enumerate(x.shape) if place != dim]
    given = [extent for place, extent in enumerate(index.shape) if place != dim]
    neutral = {"amax": float("-inf"), "amin": float("inf"), "prod": 1.0}.get(reduce, 0.0)
    if others != given or not x.is_floating_point() or x.shape[dim] * index.shape[dim] > _MAX_SQUARED**2:
        return NotImplemented
    source = source.narrow(dim, 0, index.shape[dim])
    rows, index, source = (each.movedim(dim, -1) for each in (x, index, source))
    is_there = index.unsqueeze(-2) == torch.arange(x.shape[dim], device=x.device).unsqueeze(-1)
    values = torch.where(is_there, source.unsqueeze(-2), neutral)
    own = rows.unsqueeze(-1)
    if not include_self:
        own = torch.where(is_there.any(-1, keepdim=True), neutral, own)
    values = torch.cat([own, values], -1)
    if reduce == "mean":
        count = is_there.sum(-1) + (1 if include_self else 0)
        found = values.sum(-1) / count.clamp(min=1).to(x.dtype)
    else:
        found = getattr(values, reduce)(-1)
    return found.movedim(-1, dim)


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """The begin and end of each window of an adaptive pooling."""
    return [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]


MAX_WINDOWS = 256
"""Windows of an adaptive pooling up to which each is written out."""


def _adaptive_max_pool2d(x: Any, output_size: Any) -> Any:
    """The greatest element of each window, the first of equal ones, and its place in its image."""
    height, width = x.shape[-2:]
    rows, columns = _windows(height, output_size[0]), _windows(width, output_size[1])
    if len(rows) * len(columns) > MAX_WINDOWS:
        return NotImplemented
    values, places = [], []
    for top, bottom in rows:
        for left, right in columns:
            value, place = x[..., top:bottom, left:right].flatten(-2).max(-1)
            across = right - left
            values.append(value)
            places.append((top + place // across) * width + left + place % across)
    shape = (*x.shape[:-2], len(rows), len(columns))
    return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)


def _max_pool2d(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """The greatest element of each window, the first of equal ones, and its place in its image."""
    kernel, padding, dilation = (_pairs(value, 2) for value in (kernel, padding, dilation))
    stride = _pairs(stride, 2) if stride else kernel
    if ceil_mode:
        return NotImplemented
    height, width = x.shape[-2:]
    bound = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    wide = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]), value=bound)
    reach = [step * (size - 1) + 1 for size, step in zip(kernel, dilation)]
    counts = [(extent - across) // jump + 1 for extent, across, jump in zip(wide.shape[-2:], reach, stride)]
    values, places = [], []
    # The elements of all windows at the same place within them.
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            below = torch.arange(counts[0], device=x.device)[:, None] * stride[0] + top - padding[0]
            across = torch.arange(counts[1], device=x.device) * stride[1] + left - padding[1]
            part = wide[..., top : top + stride[0] * (counts[0] - 1) + 1 : stride[0], :]
            values.append(part[..., left : left + stride[1] * (counts[1] - 1) + 1 : stride[1]])
            places.append(below * width + across)
    value, first = torch.stack(values, -1).max(-1)
    place = torch.stack(places, -1).expand(*first.shape, len(places)).gather(-1, first.unsqueeze(-1)).squeeze(-1)
    return value, place


def _pooling(size: int, count: int, like: Any) -> Any:
    """The matrix of an adaptive mean over a dimension."""
    places = torch.arange(size, device=like.device)
    rows = [((places >= begin) & (places < end)).to(like.dtype) / (end - begin) for begin, end in _windows(size, count)]
    return torch.stack(rows)


def _adaptive_avg_pool2d_backward(grad: Any, x: Any) -> Any:
    down = _pooling(x.shape[-2], grad.shape[-2], grad)
    across = _pooling(x.shape[-1], grad.shape[-1], grad)
    return down.T @ grad @ across


def _pairs(value: Any, count: int) -> list[int]:
    """An option of each dimension, of which one may stand for all."""
    values: list[int] = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _input_gradient(grad: Any, shape: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Of a convolution: the convolution with its weight, transposed. What no window reached takes no gradient."""
    count = len(shape) - 2
    missing = [
        shape[2 + d] - ((grad.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1)
        for d in range(count)
    ]
    return _ATEN.convolution.default(grad, weight, None, stride, padding, dilation, True, missing, groups)


def _weight_gradient(grad: Any, x: Any, shape: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Of a convolution: that of the inputs with the gradients as weight, where rows and channels have changed places."""
    rows, count = x.shape[0], len(shape) - 2
    per, out = x.shape[1] // groups, grad.shape[1]
    inputs = x.reshape(rows, groups, per, *x.shape[2:]).movedim(2, 0).transpose(1, 2).reshape(per, groups * rows, *x.shape[2:])
    weights = grad.movedim(0, 1)
    found = _ATEN.convolution.default(inputs, weights, None, dilation, padding, stride, False, [0] * count, groups)
    for d in range(count):
        # Elements behind the last window belong to no place of the weight.
        found = found.narrow(2 + d, 0, shape[2 + d])
    return found.movedim(0, 1).reshape(out, per, *shape[2:])


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> Any:
    count = x.dim() - 2
    stride, padding, dilation = (_pairs(value, count) for value in (stride, padding, dilation))
    if transposed:
        to_input = _ATEN.convolution.default(grad, weight, None, stride, padding, dilation, False, [0] * count, groups)
        # The convolution whose transpose this is takes the gradient and gives the input.
        to_weight = _weight_gradient(x, grad, weight.shape, stride, padding, dilation, groups)
    else:
        to_input = _input_gradient(grad, x.shape, weight, stride, padding, dilation, groups)
        to_weight = _weight_gradient(grad, x, weight.shape, stride, padding, dilation, groups)
    to_bias = grad.sum([0, *range(2, grad.dim())])
    return tuple(part if asked else None for part, asked in zip((to_input, to_weight, to_bias), output_mask))


def _max_pool_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Any
) -> Any:
    zeros = torch.zeros_like(x).flatten(-2)
    return zeros.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(x.shape)


def _avg_pool_backward(
    grad: Any,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    kernel = _pairs(kernel, 2)
    stride, padding = _pairs(stride, 2) if stride else kernel, _pairs(padding, 2)
    if ceil_mode or (any(padding) and not count_include_pad and divisor_override is None):
        return NotImplemented
    channels = x.shape[-3]
    ones = torch.ones((channels, 1, *kernel), dtype=grad.dtype, device=grad.device)
    spread = _input_gradient(
        grad.reshape(-1, channels, *grad.shape[-2:]),
        (1, channels, *x.shape[-2:]),
        ones,
        stride,
        padding,
        [1, 1],
        channels,
    )
    return (spread / (divisor_override or kernel[0] * kernel[1])).reshape(x.shape)


# By name: not every version of PyTorch has every op.
_OWN: dict[str, Callable[..., Any]] = {
    "aten.kthvalue.default": _kthvalue,
    "aten.cummax.default": _running(greatest=True),
    "aten.cummin.default": _running(greatest=False),
    "aten.cumprod.default": _cumprod,
    "aten.hypot.default": _hypot,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.searchsorted.Tensor": _searchsorted,
    "aten.rrelu.default": _rrelu,
    "aten.linalg_inv.default": _inverse,
    "aten.inverse.default": _inverse,
    "aten.linalg_solve.default": _solve,
    "aten.linalg_det.default": _determinant,
    "aten.det.default": _determinant,
    "aten.cholesky.default": _cholesky_upper,
    "aten.linalg_cholesky.default": lambda matrix, *, upper=False: _cholesky_upper(matrix, upper),
    "aten.linalg_cholesky_ex.default": _cholesky_ex,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten.cholesky_solve.default": _cholesky_solve,
    "aten.lgamma.default": _lgamma,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten._is_all_true.default": lambda x: x.all(),
    "aten.max_pool2d_with_indices.default": _max_pool2d,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool2d,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_avg_pool2d_backward,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    "aten.avg_pool2d_backward.default": _avg_pool_backward,
}
