"""Ops that the import knows only by their decompositions: a step of each is compared with PyTorch's, loss and gradient."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError, Trainer  # noqa: E402

FEATURES = 6


class Squared(nn.Module):
    """The mean square of what a function of the input and a weight returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.randn(FEATURES, FEATURES) * 0.3)

    def forward(self, x):
        return (self.function(x, self.w) ** 2).mean()


def shifted(x, w):
    """Samples an image at places that depend on the weight."""
    affine = torch.eye(2, 3).repeat(2, 1, 1) + 0.05 * w[0, 0]
    grid = F.affine_grid(affine, (2, 3, 8, 8), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def resized(**options):
    return lambda x, w: F.interpolate(x, **options) * w[0, 0]


def classes(**options):
    return lambda x, w: F.cross_entropy(x @ w, torch.tensor([0, 1, 2, 3]), **options)


def regular(w):
    return w + 3 * torch.eye(FEATURES)


def positive(w):
    return w @ w.T + torch.eye(FEATURES)


def normal(x, w):
    """The log of a density, as torch.distributions writes it."""
    return torch.distributions.MultivariateNormal(torch.zeros(FEATURES), scale_tril=torch.linalg.cholesky(positive(w))).log_prob(x)


def reduced(kind, **options):
    index = torch.tensor([[0, 1, 1, 0, 2, 2], [3, 3, 3, 3, 0, 0], [0, 1, 2, 3, 3, 3], [1, 1, 0, 2, 2, 1]])
    return lambda x, w: (x @ w)[:, :4].scatter_reduce(1, index, x @ w.T, kind, **options)


def convolved(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, transposed=False):
    """What a joint graph has: the gradients of a convolution, as ops of the graph."""
    options = [list(stride), list(padding), list(dilation), transposed, [0, 0], groups]

    def function(x, w):
        weight = w.reshape(-1)[: 3 // groups * 9].reshape(1, 3 // groups, 3, 3) * torch.arange(1.0, 4.0).view(3, 1, 1, 1)
        y = torch.ops.aten.convolution(x, weight, None, *options)
        parts = torch.ops.aten.convolution_backward(y.sin(), x, weight, [3], *options, [True, True, True])
        return torch.cat([part.flatten() for part in parts])

    return function


def unpooled(x, w):
    y, places = F.max_pool2d(x * w[0, 0], 2, return_indices=True)
    return F.max_unpool2d(y.sin(), places, 2)


def pooled(op):
    """The gradient of a pooling, as an op of the graph."""
    aten = torch.ops.aten

    def function(x, w):
        x = x * w[0, 0]
        if op is aten.max_pool2d_with_indices:
            y, places = op(x, [3, 3], [2, 2], [1, 1])
            return aten.max_pool2d_with_indices_backward(y.sin(), x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)
        if op is aten.avg_pool2d:
            y = op(x, [3, 3], [2, 2], [1, 1])
            return aten.avg_pool2d_backward(y.sin(), x, [3, 3], [2, 2], [1, 1], False, True, None)
        return aten._adaptive_avg_pool2d_backward(op(x, [3, 5]).sin(), x)

    return function


ROWS, IMAGE = (4, FEATURES), (2, 3, 8, 8)
OPS = {
    "einsum of any batch": (lambda x, w: torch.einsum("...d,do->...o", x, w), ROWS),
    "interpolate bilinear": (resized(scale_factor=2, mode="bilinear"), IMAGE),
    "interpolate to a size": (resized(size=(5, 7), mode="bilinear", align_corners=True), IMAGE),
    "interpolate bicubic": (resized(size=(5, 7), mode="bicubic"), IMAGE),
    "grid_sample": (shifted, IMAGE),
    "cross_entropy with weights": (classes(weight=torch.arange(1.0, 7.0)), ROWS),
    "cross_entropy smoothed": (classes(label_smoothing=0.1), ROWS),
    "multi_margin_loss": (lambda x, w: F.multi_margin_loss(x @ w, torch.tensor([0, 1, 2, 3])), ROWS),
    "triplet_margin_loss": (lambda x, w: F.triplet_margin_loss(x, x @ w, x + 1), ROWS),
    "nan_to_num": (lambda x, w: torch.nan_to_num(torch.where(x > 0, x @ w, float("nan"))), ROWS),
    "trace": (lambda input, w: torch.trace(w) * input, ROWS),
    "inverse": (lambda x, w: torch.linalg.inv(regular(w)) @ x.T, ROWS),
    "inverse with pivots": (lambda x, w: torch.inverse(w.flip(0) * 0.1 + torch.eye(FEATURES).flip(0)) @ x.T, ROWS),
    "solve": (lambda x, w: torch.linalg.solve(regular(w), x.T), ROWS),
    "det": (lambda x, w: torch.linalg.det(regular(w).flip(0)) * 1e-3 * x, ROWS),
    "rrelu": (lambda x, w: F.rrelu(x @ w, training=False), ROWS),
    "cumprod": (lambda x, w: torch.cumprod(x @ w, 1), ROWS),
    "cummax": (lambda x, w: torch.cummax(x @ w, 1)[0], ROWS),
    "cummin": (lambda x, w: torch.cummin(x @ w, 0)[0], ROWS),
    "cummax of equal ones": (lambda x, w: (x @ w) * torch.cummax((x > 0).long(), 1)[1], ROWS),
    "kthvalue": (lambda x, w: torch.kthvalue(x @ w, 2, 1)[0], ROWS),
    "masked_scatter": (lambda x, w: x.masked_scatter(x > 0, x @ w), ROWS),
    "channel_shuffle": (lambda x, w: F.channel_shuffle(x, 2) * w[0, 0] * torch.arange(4.0).view(4, 1, 1), (2, 4, 3, 3)),
    "renorm": (lambda x, w: torch.renorm(x @ w, 2, 0, 1.0), ROWS),
    "fold": (lambda x, w: F.fold(F.unfold(x, 3), (8, 8), 3) * w[0, 0], IMAGE),
    "diag_embed": (lambda x, w: torch.diag_embed(x @ w), ROWS),
    "searchsorted": (lambda x, w: torch.searchsorted(torch.arange(-2.0, 2.0, 0.5), x, right=True) * w[0, 0], ROWS),
    "bucketize": (lambda x, w: torch.bucketize(x, torch.arange(-2.0, 2.0, 0.5)) * w[0, 0], ROWS),
    "quantile": (lambda x, w: torch.quantile(x @ w, 0.3, dim=1), ROWS),
    "hypot": (lambda x, w: torch.hypot(x, x @ w), ROWS),
    "cross": (lambda x, w: torch.linalg.cross((x @ w).reshape(4, 2, 3), x.reshape(4, 2, 3)), ROWS),
    "kron": (lambda x, w: torch.kron(x, w), ROWS),
    "tensordot": (lambda x, w: torch.tensordot(x, w, dims=1), ROWS),
    "cholesky": (lambda x, w: torch.linalg.cholesky(positive(w)) @ x.T, ROWS),
    "cholesky, upper": (lambda x, w: torch.linalg.cholesky(positive(w), upper=True) @ x.T, ROWS),
    "cholesky_solve": (lambda x, w: torch.cholesky_solve(x.T, torch.linalg.cholesky(positive(w))), ROWS),
    "solve_triangular": (lambda x, w: torch.linalg.solve_triangular(regular(w), x.T, upper=False), ROWS),
    "solve_triangular, right": (lambda x, w: torch.linalg.solve_triangular(regular(w), x, upper=True, left=False), ROWS),
    "multivariate normal": (normal, ROWS),
    "lgamma": (lambda x, w: torch.lgamma((x @ w).exp()), ROWS),
    "lgamma of negative numbers": (lambda x, w: torch.lgamma((x @ w).tanh() * 0.4 - 1.5), ROWS),
    "lgamma of great numbers": (lambda x, w: torch.lgamma((x @ w).exp() * 1e4) * 1e-4, ROWS),
    "scatter_reduce amax": (reduced("amax"), ROWS),
    "scatter_reduce amin": (reduced("amin", include_self=False), ROWS),
    "scatter_reduce prod": (reduced("prod"), ROWS),
    "scatter_reduce mean": (reduced("mean"), ROWS),
    "adaptive_max_pool2d": (lambda x, w: F.adaptive_max_pool2d(x, (3, 5)) * w[0, 0], IMAGE),
    "adaptive_max_pool2d of equal ones": (lambda x, w: F.adaptive_max_pool2d(F.relu(x * w[0, 0]), (3, 5)), IMAGE),
    "convolution_backward": (convolved(), IMAGE),
    "convolution_backward, strided": (convolved(stride=(2, 1), padding=(1, 0), dilation=(1, 2)), IMAGE),
    "convolution_backward, groups": (convolved(groups=3, stride=(3, 2), padding=(1, 1)), IMAGE),
    "convolution_backward, transposed": (convolved(transposed=True, stride=(2, 2), padding=(1, 1)), IMAGE),
    "max_pool backward": (pooled(torch.ops.aten.max_pool2d_with_indices), IMAGE),
    "max_unpool": (unpooled, IMAGE),
    "avg_pool backward": (pooled(torch.ops.aten.avg_pool2d), IMAGE),
    "adaptive_avg_pool backward": (pooled(torch.ops.aten._adaptive_avg_pool2d), IMAGE),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_that_decomposes_is_trained_as_by_pytorch(name):
    function, shape = OPS[name]
    torch.manual_seed(0)
    module, x = Squared(function), torch.randn(shape)
    loss = module(x)
    loss.backward()
    expected = (module.w - 0.1 * module.w.grad).detach()
    module.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(partita.load(module, (x,)), None, "dp=1", partita.optim.SGD(lr=0.1))
    assert trainer.step((x,)) == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(torch.as_tensor(trainer.state_dict()["w"]), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(expected, module.w), "the test sees no gradient"


def no_grad(x, w):
    with torch.no_grad():
        scores = x @ w
    return scores * torch.trace(w)


KEPT = {
    "detach": lambda x, w: (x @ w).detach() * torch.trace(w),
    "no_grad": no_grad,
    "checkpoint": lambda x, w: checkpoint(lambda x: (x @ w) * torch.trace(w), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", KEPT)
def test_gradients_stop_where_the_module_says_so(name):
    torch.manual_seed(0)
    module, x = Squared(KEPT[name]), torch.randn(ROWS)
    module(x).backward()
    expected = (module.w - 0.1 * module.w.grad).detach()
    module.zero_grad()
    model = partita.load(module, (x,))
    trainer = Trainer(model, None, "dp=1", partita.optim.SGD(lr=0.1))
    trainer.step((x,))
    torch.testing.assert_close(torch.as_tensor(trainer.state_dict()["w"]), expected, rtol=1e-5, atol=1e-6)
    assert model.notes == []


@pytest.mark.parametrize(
    "function, op",
    [
        (lambda x, w: torch.linalg.svdvals(w) * x, "_linalg_svd"),
        (lambda x, w: F.rrelu(x @ w, training=True), "rrelu"),
        (lambda x, w: torch.linalg.inv(w.repeat(6, 6) + torch.eye(36))[:FEATURES, :FEATURES] @ x.T, "linalg_inv"),
    ],
)
def test_what_has_no_decomposition_is_named(function, op):
    with pytest.raises(PartitaError, match=op) as raised:
        partita.load(Squared(function), (torch.randn(ROWS),))
    assert raised.value.code == "E355"


def test_inputs_keep_their_names():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(FEATURES, FEATURES))

        def forward(self, input, max):
            return (torch.cumprod(input @ self.w, 1) * max).mean()

    model = partita.load(Named(), {"input": torch.randn(ROWS), "max": torch.randn(ROWS)})
    assert list(model.inputs) == ["input", "max"]
