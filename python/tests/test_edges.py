"""Functions at the edges of what they take: infinities, NaN, zeros, extremes of a type, indices out of range; values and
gradients are PyTorch's, or the call is refused where PyTorch raises."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError  # noqa: E402

INF, NAN = math.inf, math.nan


class Function(nn.Module):
    """The results of a function; floats times a weight of 1, so that there is something to train."""

    def __init__(self, function):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(()))

    def forward(self, *args):
        found = self.function(*args)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(x * self.w if x.is_floating_point() or x.is_complex() else x for x in results)


def is_inexact(x):
    return x.is_floating_point() or x.is_complex()


def passed(module, args, has_gradients):
    """Results, and gradients of the arguments where asked for."""
    args = [x.clone().requires_grad_(has_gradients and is_inexact(x)) for x in args]
    results = module(*args)
    found = [x.detach().clone() for x in results]
    if has_gradients and any(map(is_inexact, results)):
        draws, loss = torch.Generator().manual_seed(1), 0.0
        for x in filter(is_inexact, results):
            x = torch.view_as_real(torch.resolve_conj(x)) if x.is_complex() else x
            loss = loss + (x * torch.randn(x.shape, generator=draws)).sum()
        loss.backward()
        found += [x.grad for x in args if x.requires_grad]
    return found


def compare(function, *args, gradients=True):
    expected = passed(Function(function), args, gradients)
    planned = partita.Schedule(partita.load(Function(function), args), "dp=1").build()
    for own, theirs in zip(passed(planned, args, gradients), expected, strict=True):
        if own is None or theirs is None:
            # No gradient is one of zeros.
            assert all(x is None or not x.any() for x in (own, theirs))
            continue
        within = {} if theirs.dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(own, theirs, **within, equal_nan=True)


def of(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype)


EXTREMES = {
    "infinities": of((-INF, 1, 3.0), (INF, 2, 2), (2, 2, INF)),
    "NaN": of((1, NAN, 3.0, NAN, 2), (NAN, 2, 2, 3, 1)),
    "equal ones": of((1.0, 1, 2, 2, 1, 0, 0)),
    "uint8": of((0, 1, 3), (255, 0, 1), dtype=torch.uint8),
    "int64": of((-(2**63), 1, 3), (2**63 - 1, 0, 1), dtype=torch.int64),
    "booleans": of((False, True, False, True), dtype=torch.bool),
    "a long row": torch.randn(1, 5000, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_running_extremes(name):
    rows = EXTREMES[name]
    compare(lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1)), rows, gradients=name == "equal ones")


def varied(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(*shape):
    return torch.complex(varied(shape), varied(shape, 1))


# Imaginary, real and negative numbers, and both sides of the cut.
CUT = of(2j, -2j, -3 + 0j, 3 + 0j, complex(-3, -0.0), 1 + 1j, -1 - 1j, -1 + 1j, dtype=torch.cfloat)
X, SQUARE, Z = varied((4, 6)), varied((4, 4)), turned(3, 3)
SINGULAR = SQUARE.clone()
SINGULAR[:, 0] = 0
CASES = {
    "cumprod of narrow integers": (lambda x, y: (x.cumprod(0), y.cumprod(0)), of(200, 3, 5, dtype=torch.uint8), of(300, 300, 2, dtype=torch.int16)),
    "cumprod of booleans": (lambda x: x.cumprod(0), of(True, True, False, dtype=torch.bool)),
    "lgamma in float16": (torch.lgamma, of(100.0, 0.5, -2.5, 1.0, dtype=torch.float16)),
    "lgamma in bfloat16": (torch.lgamma, of(100.0, 0.5, -2.5, 1.0, dtype=torch.bfloat16)),
    "asinh": (torch.asinh, of(0.0, 1e-9, -1e-9, 3.0, -3.0, 0.5)),
    "acosh": (torch.acosh, of(1.0001, 2.0, 50.0)),
    "atanh": (torch.atanh, of(0.0, 0.5, -0.99, 1e-8)),
    "digamma": (torch.digamma, of(1.0, 0.5, -3.3, 1e4, -0.7, 7.0)),
    "copysign": (torch.copysign, X, X.flip(0)),
    "copysign of -0": (lambda x: torch.copysign(x, torch.tensor(-0.0)), X),
    "det of 1 row": (torch.linalg.det, varied((2, 1, 1))),
    "det of 3 rows": (torch.linalg.det, varied((2, 3, 3))),
    "det of 4 rows": (torch.linalg.det, varied((2, 4, 4))),
    "slogdet": (lambda x: tuple(torch.linalg.slogdet(x)), SQUARE),
    "solve for a vector": (torch.linalg.solve, SQUARE + 3 * torch.eye(4), X[:, 0]),
    "solve from the right": (lambda a, b: torch.linalg.solve(a, b, left=False), SQUARE + 3 * torch.eye(4), X[:, :4]),
    "addbmm": (lambda x: torch.addbmm(torch.ones(2, 2), x.reshape(2, 2, 6), x.reshape(2, 6, 2), beta=2, alpha=3), X),
    "cdist, p=1": (lambda x: torch.cdist(x, x + 1, p=1), X),
    "repeat_interleave": (lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1, 1, 1]), dim=1, output_size=6), X),
    "avg_pool3d": (lambda x: F.avg_pool3d(x.reshape(1, 2, 1, 2, 6), (1, 2, 3), stride=(1, 1, 2), padding=(0, 1, 1)), X),
    "avg_pool3d without padding": (lambda x: F.avg_pool3d(x.reshape(1, 1, 2, 2, 6), 2, 1, 1, count_include_pad=False), X),
    "avg_pool1d beyond the end": (lambda x: F.avg_pool1d(x[None], 4, 3, 1, ceil_mode=True), X),
    "avg_pool2d beyond the end": (lambda x: F.avg_pool2d(x[None, None], (3, 2), (2, 3), 1, ceil_mode=True, count_include_pad=False), X),
    "avg_pool2d without padding": (lambda x: F.avg_pool2d(x[None, None], 3, 2, 1, count_include_pad=False), X),
    "avg_pool3d beyond the end": (lambda x: F.avg_pool3d(x.reshape(1, 1, 2, 2, 6), 2, (1, 2, 3), (0, 1, 1), ceil_mode=True), X),
    "sinc": (torch.sinc, of(0.0, 0.25, -1.5, 3.0)),
    "hypot": (torch.hypot, of(1e20, 1e-30, 3.0, -3.0, 3e38), of(1e20, 1e-30, 4.0, 0.0, 1.0)),
    "xlog1py": (torch.special.xlog1py, of(0.0, 2.0, 1.0), of(2.0, 3.0, -0.5)),
    "cosh": (torch.cosh, of(0.0, 1e-3, -1e-4, 1.5, -20.0)),
    "fmax and fmin": (lambda x: (torch.fmax(x, x.flip(0)), torch.fmin(x, x * 0.5)), X),
    "round to decimals": (lambda x: x * torch.round(x, decimals=1) + torch.round(x * 50, decimals=-1), X),
    "power of a matrix": (lambda x: torch.linalg.matrix_power(x + 3 * torch.eye(4), -2), SQUARE),
    "embedding, gradients by frequency": (lambda w: F.embedding(torch.tensor([[0, 1, 1], [1, 3, 0]]), w, scale_grad_by_freq=True), X),
    "embedding_bag, gradients by frequency": (lambda w: F.embedding_bag(torch.tensor([[0, 1, 1], [1, 3, 0]]), w, mode="sum", scale_grad_by_freq=True), X),
    "a window that is made in forward": (lambda x: x * torch.hann_window(6), X),
    "tril_indices": (lambda x: x[:, :4][tuple(torch.tril_indices(4, 4))], X),
    "pdist": (F.pdist, X),
    "stft": (lambda x: torch.stft(x.flatten(), 8, window=torch.hann_window(8), return_complex=True), X),
    "stft of rows": (lambda x: torch.stft(x, 4, 2, 3, torch.ones(3), center=False, normalized=True, onesided=False, return_complex=True), X),
    "hfft": (lambda z: torch.fft.hfft(z, n=5, norm="ortho"), Z),
    "ihfft": (torch.fft.ihfft, X),
    "addcmul of a complex factor": (lambda x, y, z: torch.addcmul(x, y, z, value=1 + 2j), Z, Z.mT, Z.flip(0)),
    "addcdiv of a complex factor": (lambda x, y, z: torch.addcdiv(x, y, z, value=2j), Z, Z.mT, Z.flip(0)),
    "add of a complex factor": (lambda x, y: torch.add(x, y, alpha=1 + 2j), Z, Z.mT),
    "roots": (lambda z: (z.sqrt(), z**0.5, z**-0.5), CUT),
    "whole powers": (lambda z: (z**4, z**-2, z**0, z**7), Z),
    "other powers": (lambda z: (z**2.5, z**-0.3), Z),
    "variance": (lambda z: (z.var(), z.std(), z.var(1, unbiased=False)), Z),
    "conjugate transposes": (lambda z: (z.mH @ z, z.H + z, z.adjoint() - z), Z),
    "cross_entropy with weights": (lambda x: F.cross_entropy(x, of(0, 1, -100, 4, dtype=torch.int64), weight=torch.arange(1.0, 7.0)), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, *args = CASES[name]
    compare(function, *args)


VALUES = {
    "lgamma": (torch.lgamma, of(INF, -INF, -1e-10, 1e-10, 0.0, -1.0, -2.5, 3.3, 100.0, NAN, 1.0, 2.0)),
    "digamma": (torch.digamma, of(INF, NAN, 0.0, -0.0, -1.0, -7.0, 1e-6, -1e-6, 1e30)),
    "asinh": (torch.asinh, of(INF, -INF, NAN, 1e30, -1e30)),
    "acosh": (torch.acosh, of(INF, -INF, NAN, 1e30, 1.0, 0.5, -3.0)),
    "atanh": (torch.atanh, of(1.0, -1.0, 3.0, -3.0, INF, NAN)),
    "det of a singular matrix": (lambda a, b: (torch.linalg.det(a), torch.linalg.det(b)), SINGULAR, SINGULAR[:3, :3]),
    "lgamma near its zeros": (lambda x: torch.lgamma(x) * 1e6, of(0.99, 1.001, 0.9999999, 1.5, 2.001)),
    "hypot of infinities": (torch.hypot, of(INF, -INF, 0.0, 1.0), of(1.0, NAN, 0.0, NAN)),
    "searchsorted of NaN": (lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 2.0]), x), of(NAN, 0.5, INF)),
    "xlog1py of nothing": (torch.special.xlog1py, of(0.0, 0.0, 0.0, NAN), of(-1.0, -3.0, NAN, 0.0)),
    "fmax of NaN": (torch.fmax, of(NAN, 1.0, NAN), of(1.0, NAN, NAN)),
    "a root of 0": (lambda z: (z.sqrt(), z**2.5), of(0j, 1e-20 + 1e-20j, dtype=torch.cfloat)),
    "losses of nothing": (lambda x: (F.mse_loss(x, x), F.l1_loss(x, x)), torch.zeros(0, 3)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    function, *args = VALUES[name]
    compare(function, *args, gradients=False)


def unpooled(i, x):
    return F.max_unpool2d(x[:, :4].reshape(1, 4, 2, 2), i[None, :, None, None].expand(1, 4, 2, 2), 2)


INDEXED = {
    "scatter": lambda i, x: torch.zeros(4, 6).scatter(0, i[:, None].expand(4, 6), x),
    "scatter_": lambda i, x: torch.zeros(4, 6).scatter_(0, i[:, None].expand(4, 6), x),
    "scatter of a number": lambda i, x: x.scatter(0, i[:, None].expand(4, 6), 1.5),
    "scatter_add": lambda i, x: torch.zeros(4, 6).scatter_add(0, i[:, None].expand(4, 6), x),
    "scatter_reduce": lambda i, x: torch.zeros(4, 6).scatter_reduce(0, i[:, None].expand(4, 6), x, "amax"),
    "index_add": lambda i, x: torch.zeros(4, 6).index_add(0, i, x),
    "index_put": lambda i, x: x.index_put((i,), torch.tensor(1.0)),
    "index_fill": lambda i, x: x.index_fill(0, i, 1.0),
    "index_copy": lambda i, x: torch.zeros(4, 6).index_copy(0, i, x),
    "index_select": lambda i, x: torch.index_select(x, 0, i),
    "gather": lambda i, x: torch.gather(x, 0, i[:, None]),
    "take": lambda i, x: torch.take(x[0, :4], i),
    "one_hot": lambda i, x: F.one_hot(i, 4) * x[:, :4],
    "embedding": lambda i, x: F.embedding(i, x),
    "embedding_bag": lambda i, x: F.embedding_bag(i, x, torch.tensor([0, 2])),
    "cross_entropy": lambda i, x: F.cross_entropy(x[:, :4], i),
    "cross_entropy with weights": lambda i, x: F.cross_entropy(x[:, :4], i, weight=torch.arange(1.0, 5.0)),
    "nll_loss with weights": lambda i, x: F.nll_loss(x[:, :4], i, weight=torch.arange(1.0, 5.0)),
    "multilabel_margin_loss": lambda i, x: F.multilabel_margin_loss(x[0, :4], i),
    "multi_margin_loss": lambda i, x: F.multi_margin_loss(x[:, :4], i),
    "max_unpool2d": unpooled,
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_that_pytorch_refuses_is_refused(name):
    function, good = INDEXED[name], torch.tensor([0, 1, 2, 3])
    planned = partita.Schedule(partita.load(Function(function), (good, X)), "dp=1").build()
    torch.testing.assert_close(planned(good, X), Function(function)(good, X))
    for index in ([0, 1, 2, 90], [0, 1, -90, 2], [0, 1, 2, -1]):
        index = torch.tensor(index)
        try:
            expected = Function(function)(index, X)
        except (IndexError, RuntimeError):
            with pytest.raises(PartitaError) as raised:
                planned(index, X)
            assert raised.value.code == "E423" and str(raised.value.found), index
        else:
            torch.testing.assert_close(planned(index, X), expected)
