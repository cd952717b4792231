//! Adafactor (Shazeer and Stern 2018, <https://arxiv.org/abs/1804.04235>) in the form of `torch.optim.Adafactor`.
//!
//! The second moments of a matrix are stored as the means of its rows and of its columns. Of tensors of more dimensions,
//! the last two are the matrix.

use super::{Shared, Subject, spread_over, step_by, sum_of_squares};
use partita_base::Result;
use partita_ir::ops::UnaryKind;
use partita_ir::{GraphBuilder, TensorType, ValueId};

/// Means of rows `[.., rows]` and of columns `[.., columns]`; of a vector, all second moments.
pub(super) fn states(ty: &TensorType) -> Vec<(&'static str, TensorType)> {
    let Some([rows, columns]) = matrix_dims(ty.rank()) else { return vec![("variance", ty.clone())] };
    let without = |dim: usize| {
        let mut shape = ty.shape.clone();
        shape.remove(dim);
        ty.with_shape(shape)
    };
    vec![("row_var", without(columns)), ("col_var", without(rows))]
}

/// The dimensions of the rows and of the columns.
fn matrix_dims(rank: usize) -> Option<[usize; 2]> {
    (rank >= 2).then(|| [rank - 2, rank - 1])
}

pub(super) fn update(
    b: &mut GraphBuilder,
    shared: &Shared,
    subject: &Subject,
    [epsilon1, epsilon2]: [f64; 2],
    clip: f64,
) -> Result<(ValueId, Vec<ValueId>)> {
    let (p, g) = (subject.p, subject.g);
    let ty = b.ty(p).clone();
    let [fresh, relative] = shared.relative.expect("Adafactor has a relative step");
    let squares = b.multiply(g, g)?;
    let (moments, states) = match matrix_dims(ty.rank()) {
        None => {
            let variance = towards(b, subject.states[0], squares, fresh)?;
            (variance, vec![variance])
        }
        Some([rows, columns]) => {
            let row = mean(b, squares, columns)?;
            let row = towards(b, subject.states[0], row, fresh)?;
            let column = mean(b, squares, rows)?;
            let column = towards(b, subject.states[1], column, fresh)?;
            let batch: Vec<usize> = (0..rows).collect();
            let overall = mean(b, row, rows)?;
            let least = b.full_like(overall, epsilon1)?;
            let overall = b.maximum(overall, least)?;
            let mut of_rows = batch.clone();
            of_rows.push(rows);
            let mut of_columns = batch.clone();
            of_columns.push(columns);
            let spread_row = b.broadcast_in_dim(row, &ty.shape, &of_rows)?;
            let spread_column = b.broadcast_in_dim(column, &ty.shape, &of_columns)?;
            let overall = b.broadcast_in_dim(overall, &ty.shape, &batch)?;
            let product = b.multiply(spread_row, spread_column)?;
            (b.divide(product, overall)?, vec![row, column])
        }
    };
    let least = b.full_like(moments, epsilon1 * epsilon1)?;
    let moments = b.maximum(moments, least)?;
    let inverse = b.unary(UnaryKind::Rsqrt, moments)?;
    let direction = b.multiply(inverse, g)?;

    // The step is relative to the root mean square of the parameter; a direction beyond `clip` is scaled down.
    let of_parameter = root_mean_square(b, p)?;
    let least = b.full_like(of_parameter, epsilon2)?;
    let of_parameter = b.maximum(of_parameter, least)?;
    let of_direction = root_mean_square(b, direction)?;
    let excess = b.scale(of_direction, 1.0 / clip)?;
    let one = b.full_like(excess, 1.0)?;
    let excess = b.maximum(excess, one)?;
    let relative = b.convert(relative, ty.dtype)?;
    let size = b.multiply(of_parameter, relative)?;
    let size = b.divide(size, excess)?;
    let p = subject.decayed(b, shared)?;
    Ok((step_by(b, p, direction, size)?, states))
}

/// The mean along a dimension, which the result lacks.
fn mean(b: &mut GraphBuilder, x: ValueId, dim: usize) -> Result<ValueId> {
    let count = b.ty(x).shape[dim];
    let sum = b.reduce_sum(x, &[dim])?;
    b.scale(sum, 1.0 / count as f64)
}

/// `old + (new - old) * share`.
fn towards(b: &mut GraphBuilder, old: ValueId, new: ValueId, share: ValueId) -> Result<ValueId> {
    let difference = b.subtract(new, old)?;
    let share = spread_over(b, share, difference)?;
    let moved = b.multiply(difference, share)?;
    b.add(old, moved)
}

fn root_mean_square(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let count = b.ty(x).element_count();
    let sum = sum_of_squares(b, x)?;
    let mean = b.scale(sum, 1.0 / count as f64)?;
    b.unary(UnaryKind::Sqrt, mean)
}
