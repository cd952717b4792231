//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon>) in the form of `torch.optim.Muon`.
//!
//! The momentum `U S V^T` of a matrix becomes nearly `U V^T` by a quintic Newton-Schulz iteration. It is computed in the
//! type of the arithmetic, where PyTorch uses bfloat16. The matmuls are ops like any other: a matrix that is sharded along
//! its longer side is multiplied by itself into a partial sum of the shorter side squared.

use super::{Shared, Subject, blend, step_by, sum_of_squares};
use partita_base::Result;
use partita_ir::ops::{DotGeneral, UnaryKind};
use partita_ir::{GraphBuilder, TensorType, ValueId};

/// The coefficients of `a X + (b X X^T + c (X X^T)^2) X`, which has the steepest slope at 0.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];
/// The number of iterations.
const ITERATIONS: usize = 5;
/// The least norm by which a momentum is divided.
const EPSILON: f64 = 1e-7;
/// The root mean square of AdamW's updates, as measured by Liu et al. 2025.
const ADAMW_RMS: f64 = 0.2;

/// Whether a parameter is a matrix (or, with three dimensions, a stack of them) between hidden features: not an embedding
/// and not the head, whose rows are tokens.
pub(super) fn is_hidden_matrix(name: &str, ty: &TensorType) -> bool {
    let is_table = |part: &str| part.contains("embed") || matches!(part, "lm_head" | "wte" | "wpe");
    matches!(ty.rank(), 2 | 3) && !name.split('.').any(is_table)
}

pub(super) fn update(
    b: &mut GraphBuilder,
    shared: &Shared,
    subject: &Subject,
    momentum: f64,
    nesterov: bool,
    match_rms: bool,
) -> Result<(ValueId, Vec<ValueId>)> {
    let buffer = blend(b, subject.states[0], subject.g, momentum)?;
    let direction = if nesterov { blend(b, buffer, subject.g, momentum)? } else { buffer };
    let direction = orthogonal(b, direction)?;
    let shape = b.shape(subject.p);
    let [.., rows, columns] = shape[..] else { unreachable!("a matrix has two dimensions") };
    let factor = match match_rms {
        true => ADAMW_RMS * (rows.max(columns) as f64).sqrt(),
        false => (rows as f64 / columns as f64).max(1.0).sqrt(),
    };
    let size = b.scale(shared.rate, factor)?;
    let p = subject.decayed(b, shared)?;
    Ok((step_by(b, p, direction, size)?, vec![buffer]))
}

/// The iteration on `x[.., rows, columns]`, for each matrix of a stack.
fn orthogonal(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let rank = shape.len();
    let [rows, columns] = [rank - 2, rank - 1];
    let batch: Vec<usize> = (0..rows).collect();
    let norm = match batch.is_empty() {
        true => sum_of_squares(b, x)?,
        false => {
            let squares = b.multiply(x, x)?;
            b.reduce_sum(squares, &[rows, columns])?
        }
    };
    let norm = b.unary(UnaryKind::Sqrt, norm)?;
    let least = b.full_like(norm, EPSILON)?;
    let norm = b.maximum(norm, least)?;
    let norm = b.broadcast_in_dim(norm, &shape, &batch)?;
    let mut x = b.divide(x, norm)?;
    // The Gram matrix is that of the shorter side, so tall matrices are multiplied from the right.
    let tall = shape[rows] > shape[columns];
    let long = if tall { rows } else { columns };
    let dims = |lhs: usize, rhs: usize| DotGeneral {
        lhs_batch: batch.clone(),
        rhs_batch: batch.clone(),
        lhs_contracting: vec![lhs],
        rhs_contracting: vec![rhs],
        ..DotGeneral::default()
    };
    let [of_x, of_gram, of_square] = COEFFICIENTS;
    for _ in 0..ITERATIONS {
        let gram = b.dot_general(x, x, dims(long, long))?;
        let square = b.dot_general(gram, gram, dims(columns, rows))?;
        let gram = b.scale(gram, of_gram)?;
        let square = b.scale(square, of_square)?;
        let polynomial = b.add(gram, square)?;
        let change = match tall {
            true => b.dot_general(x, polynomial, dims(columns, rows))?,
            false => b.dot_general(polynomial, x, dims(columns, rows))?,
        };
        let kept = b.scale(x, of_x)?;
        x = b.add(kept, change)?;
    }
    Ok(x)
}
