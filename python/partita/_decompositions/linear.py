"""Linear algebra of small matrices, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

def _eliminated(matrix: Any, beside: Any) -> tuple[Any, Any, list[Any]]:
    """``beside`` multiplied with the inverse of a matrix, the sign of the exchanges of rows, and the pivots: by Gauss and
    Jordan, with the greatest pivot of each column."""
    size = matrix.shape[-1]
    both = torch.cat([matrix, beside], -1)
    places = torch.arange(size, device=matrix.device)
    sign, pivots = torch.ones_like(matrix[..., 0, 0]), []
    for column in range(size):
        candidates = torch.where(places >= column, both[..., column].abs(), -1.0)
        place = candidates.argmax(-1, keepdim=True)
        is_pivot = (places == place).to(matrix.dtype).unsqueeze(-1)
        pivot, own = (both * is_pivot).sum(-2, keepdim=True), both[..., column : column + 1, :]
        is_own = (places == column).to(matrix.dtype).unsqueeze(-1)
        # The two rows change places.
        both = both + is_pivot * (own - pivot) + is_own * (pivot - own)
        sign = sign * torch.where(place.squeeze(-1) == column, 1.0, -1.0).to(matrix.dtype)
        pivots.append(pivot[..., 0, column])
        row = pivot / pivot[..., column : column + 1]
        both = torch.where(is_own > 0, row, both - both[..., column : column + 1] * row)
    return both[..., size:], sign, pivots


def _inverse(matrix: Any) -> Any:
    if matrix.shape[-1] > MAX_ELIMINATED:
        return NotImplemented
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return _eliminated(matrix, eye.expand(matrix.shape))[0]


def _inverse_ex(matrix: Any, *, check_errors: bool = False) -> Any:
    found = _inverse(matrix)
    if found is NotImplemented:
        return NotImplemented
    return found, torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)


def _solve(matrix: Any, right: Any, *, left: bool = True) -> Any:
    if matrix.shape[-1] > MAX_ELIMINATED:
        return NotImplemented
    if right.dim() == 1 or right.shape == matrix.shape[:-1]:
        return _eliminated(matrix, right.unsqueeze(-1).expand(*matrix.shape[:-1], 1))[0].squeeze(-1)
    if right.dim() != matrix.dim():
        return NotImplemented
    return _eliminated(matrix, right)[0] if left else _eliminated(matrix.mT, right.mT)[0].mT


def _determinant(matrix: Any) -> Any:
    size = matrix.shape[-1]
    if size > MAX_ELIMINATED:
        return NotImplemented
    if size == 0:
        return torch.ones(matrix.shape[:-2], dtype=matrix.dtype, device=matrix.device)
    if size <= 3:
        return _by_first_row(matrix)
    # A pivot of 0 ends the elimination. The gradient is NaN then: it takes another way in PyTorch.
    _, found, pivots = _eliminated(matrix, matrix[..., :0])
    for pivot in pivots:
        found = found * pivot
    is_singular = found.isnan() & ~matrix.isnan().any(-1).any(-1)
    return torch.where(is_singular, 0.0, found)


def _sign_and_log_of_determinant(matrix: Any) -> Any:
    if not 0 < matrix.shape[-1] <= MAX_ELIMINATED:
        return NotImplemented
    _, sign, pivots = _eliminated(matrix, matrix[..., :0])
    log = torch.zeros_like(sign)
    for pivot in pivots:
        sign, log = sign * pivot.sign(), log + pivot.abs().log()
    # The factorization that the op returns beside them is not computed.
    return sign, log, None, None


def _by_first_row(matrix: Any) -> Any:
    """The determinant of a small matrix by expansion, which has a gradient where it is 0 too."""
    size = matrix.shape[-1]
    if size == 1:
        return matrix[..., 0, 0]
    terms = []
    for place in range(size):
        others = [column for column in range(size) if column != place]
        minor = torch.stack([matrix[..., 1:, column] for column in others], -1)
        terms.append((-1) ** place * matrix[..., 0, place] * _by_first_row(minor))
    return torch.stack(terms, -1).sum(-1)


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


def _conjugate_transpose(matrix: Any) -> Any:
    return matrix.transpose(-2, -1).conj() if matrix.dim() else matrix.conj()


def _sum_of_products(x: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return beta * x + alpha * torch.bmm(left, right).sum(0)


def _distances(left: Any, right: Any, p: float, compute_mode: int | None = None) -> Any:
    if p != 1:
        return NotImplemented
    return (left.unsqueeze(-2) - right.unsqueeze(-3)).abs().sum(-1)


LINEAR: dict[str, Callable[..., Any]] = {
    "aten.linalg_inv.default": _inverse,
    "aten.inverse.default": _inverse,
    "aten.linalg_inv_ex.default": _inverse_ex,
    # What PyTorch refuses is infinite or NaN here.
    "aten._linalg_check_errors.default": lambda info, name, *, is_matrix: None,
    "aten.linalg_solve.default": _solve,
    "aten.linalg_det.default": _determinant,
    "aten.det.default": _determinant,
    "aten._linalg_slogdet.default": _sign_and_log_of_determinant,
    "aten.cholesky.default": _cholesky_upper,
    "aten.linalg_cholesky.default": lambda matrix, *, upper=False: _cholesky_upper(matrix, upper),
    "aten.linalg_cholesky_ex.default": _cholesky_ex,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten.cholesky_solve.default": _cholesky_solve,
    "aten.mH.default": _conjugate_transpose,
    "aten.matrix_H.default": _conjugate_transpose,
    "aten.adjoint.default": _conjugate_transpose,
    "aten.addbmm.default": _sum_of_products,
    "aten._cdist_forward.default": _distances,
}
