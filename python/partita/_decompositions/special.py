"""Elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

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
    # Near 1 and 2, where it is 0, digits would be lost.
    dtype, x = x.dtype, x.to(torch.float64)
    is_infinite = x.isinf()
    finite = torch.where(is_infinite, 1.0, x)
    is_left = finite < 0.5
    # gamma(x) gamma(1 - x) = pi / sin(pi x).
    mirrored = torch.where(is_left, finite, 0.25)
    sine = torch.sin(math.pi * (mirrored - mirrored.round())).abs()
    right = right_half(torch.where(is_left, 1 - finite, finite))
    found = torch.where(is_left, math.log(math.pi) - sine.log() - right, right)
    return torch.where(is_infinite, math.inf, found).to(dtype)


def _hypot(x: Any, y: Any) -> Any:
    """Scaled, so that squares neither overflow nor vanish."""
    x, y = torch.broadcast_tensors(x, y)
    size = torch.maximum(x.abs(), y.abs())
    is_plain = (size > 0) & ~size.isinf()
    scale = torch.where(is_plain, size, 1.0)
    right, up = torch.where(is_plain, x, 0.0) / scale, torch.where(is_plain, y, 1.0) / scale
    found = torch.where(is_plain, scale * (right * right + up * up).sqrt(), size)
    return torch.where(x.isinf() | y.isinf(), math.inf, found)


def _sinc(x: Any) -> Any:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    is_zero = x == 0
    angle = math.pi * torch.where(is_zero, 1.0, x)
    return torch.where(is_zero, 1.0, torch.sin(angle) / angle)


def _times_log_of_more(x: Any, y: Any) -> Any:
    """``x log(1 + y)``; 0 where ``x`` is 0, also where the logarithm is none."""
    log = torch.log1p(y)
    is_nothing = (x == 0) & ~log.isfinite() & ~y.isnan()
    return x * torch.where(is_nothing, 0.0, log)


def _greater(a: Any, b: Any) -> Any:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.maximum(a, b)))


def _lesser(a: Any, b: Any) -> Any:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.minimum(a, b)))


def _rounded(x: Any, *, decimals: int) -> Any:
    factor = 10.0 ** abs(decimals)
    return (x * factor).round() / factor if decimals > 0 else (x / factor).round() * factor


def _rrelu(x: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
    # In training, slopes are drawn: another generator would give other ones.
    return NotImplemented if training else torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def _of_magnitude(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An odd function, by its values for positive numbers."""

    def odd(x: Any) -> Any:
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        is_negative = x < 0
        found = way(torch.where(is_negative, -x, x))
        return torch.where(is_negative, -found, found)

    return odd


_LARGE = 1e4
"""Above it, 1 beside the square of a number is lost in float32."""


def _asinh(x: Any) -> Any:
    is_large = x > _LARGE
    small = torch.where(is_large, 1.0, x)
    found = torch.log1p(small + small * small / (1 + (1 + small * small).sqrt()))
    return torch.where(is_large, torch.where(is_large, x, 1.0).log() + math.log(2), found)


def _acosh(x: Any) -> Any:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    is_large = x > _LARGE
    beyond = torch.where(is_large, 2.0, x) - 1
    found = torch.log1p(beyond + (beyond * (2 + beyond)).sqrt())
    found = torch.where(is_large, torch.where(is_large, x, 1.0).log() + math.log(2), found)
    return torch.where(x < 1, math.nan, found)


def _atanh(x: Any) -> Any:
    return 0.5 * torch.log1p(2 * x / (1 - x))


_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
"""Of the series of the digamma function, in even powers of 1 / x (Abramowitz and Stegun, 6.3.18)."""


def _digamma(x: Any) -> Any:
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    x = x.to(torch.float64)
    # psi(1 - x) - psi(x) = pi / tan(pi x).
    is_left = x < 0.5
    right = torch.where(is_left, 1 - x, x)
    is_small = right < 7
    small = torch.where(is_small, right, 1.0)
    steps = torch.zeros_like(x)
    for place in range(7):
        # psi(x) = psi(x + 7) - 1 / x - .. - 1 / (x + 6).
        steps = steps + 1 / (small + place)
    large = torch.where(is_small, right + 7, right)
    inverse, series = 1 / (large * large), torch.zeros_like(x)
    for factor in reversed(_BERNOULLI):
        series = (series + factor) * inverse
    found = large.log() - 0.5 / large - series - torch.where(is_small, steps, 0.0)
    mirrored = torch.where(is_left, x, 0.25)
    turn = math.pi / torch.tan(math.pi * (mirrored - mirrored.round()))
    found = torch.where(is_left, found - turn, found)
    is_pole = (x < 0) & (x == x.floor())
    found = torch.where(is_pole, math.nan, found)
    return torch.where(x == 0, -1 / x, found).to(dtype)


def _copysign(x: Any, other: Any) -> Any:
    # Also of -0. Only the sign of a NaN is not seen.
    is_negative = other < 0
    if isinstance(other, torch.Tensor) and other.is_floating_point():
        is_negative = is_negative | (1 / other < 0)
    elif isinstance(other, float):
        is_negative = math.copysign(1.0, other) < 0
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    magnitude = x.abs()
    if isinstance(is_negative, bool):
        return -magnitude if is_negative else magnitude
    return torch.where(is_negative, -magnitude, magnitude)


def _complex_variance(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The sum of the variances of the real and the imaginary parts."""
    if not x.is_complex():
        return NotImplemented
    parts = torch.view_as_real(x)
    dims = list(range(x.dim())) if not dim else [place % x.dim() for place in dim]
    return parts.var(dims, correction=1 if correction is None else correction, keepdim=keepdim).sum(-1)


def _complex_variance_along(x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _complex_variance(x, dim, correction=int(unbiased), keepdim=keepdim)


_OTHER_NORM = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _hermitian(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    return torch.fft.irfft(x.conj(), n, dim, _OTHER_NORM[norm])


def _inverse_hermitian(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    return torch.fft.rfft(x, n, dim, _OTHER_NORM[norm]).conj()


def _short_time(
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """A Fourier transform of each frame of a signal, times the window."""
    if not return_complex or align_to_window or x.is_complex():
        return NotImplemented
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    frames = x.unfold(-1, n_fft, hop)
    if window is None and width < n_fft:
        window = torch.ones(width, dtype=x.dtype, device=x.device)
    if window is not None:
        before = (n_fft - width) // 2
        frames = frames * torch.nn.functional.pad(window, [before, n_fft - width - before])
    transform = torch.fft.rfft if onesided is None or onesided else torch.fft.fft
    return transform(frames, norm="ortho" if normalized else "backward").transpose(-2, -1)


SPECIAL: dict[str, Callable[..., Any]] = {
    "aten.hypot.default": _hypot,
    "aten.sinc.default": _sinc,
    "aten.special_sinc.default": _sinc,
    "aten.special_xlog1py.default": _times_log_of_more,
    "aten.fmax.default": _greater,
    "aten.fmin.default": _lesser,
    "aten.positive.default": lambda x: x.clone(),
    "aten.round.decimals": _rounded,
    "aten.rrelu.default": _rrelu,
    "aten.lgamma.default": _lgamma,
    "aten.digamma.default": _digamma,
    "aten.asinh.default": _of_magnitude(_asinh),
    "aten.acosh.default": _acosh,
    "aten.atanh.default": _of_magnitude(_atanh),
    "aten.copysign.Tensor": _copysign,
    "aten.copysign.Scalar": _copysign,
    "aten.var.correction": _complex_variance,
    "aten.var.dim": _complex_variance_along,
    "aten.var.default": lambda x, unbiased=True: _complex_variance_along(x, None, unbiased),
    "aten.fft_hfft.default": _hermitian,
    "aten.fft_ihfft.default": _inverse_hermitian,
    "aten.stft.default": _short_time,
    "aten._is_all_true.default": lambda x: x.all(),
}
