//! Matmuls in which each row has its own matrix of a stack, as layers of experts need them: the rows of each matrix are
//! packed and multiplied together.
//!
//! `own[.., g]` says how much of matrix g a row gets, usually 1 for one matrix and 0 for all others, whose work is left out.
//! A row is computed alike whatever rows are packed with it, so splitting rows or columns over threads changes no bit.

use bytemuck::{cast_slice, cast_slice_mut};
use partita_base::DType;

use crate::element::{Element, Number, dispatch};
use crate::matmul::{matmul, matmul_workspace_bytes};
use crate::options::KernelOptions;
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::view::{View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};

/// Bytes of workspace that [`grouped_matmul`] needs for so many rows from `k` to `n` features.
pub fn grouped_matmul_workspace_bytes(dtype: DType, rows: usize, k: usize, n: usize) -> usize {
    dispatch!(float dtype, T => {
        2 * piece_bytes::<u64>(rows)
            + piece_bytes::<T>(rows)
            + piece_bytes::<T>(rows * k)
            + piece_bytes::<T>(rows * n)
            + matmul_workspace_bytes(dtype, rows, k, n)
    })
}

/// Bytes of workspace that [`grouped_outer`] needs for so many rows from `k` to `n` features.
pub fn grouped_outer_workspace_bytes(dtype: DType, rows: usize, k: usize, n: usize) -> usize {
    dispatch!(float dtype, T => {
        piece_bytes::<u64>(rows)
            + piece_bytes::<T>(rows)
            + piece_bytes::<T>(rows * k)
            + piece_bytes::<T>(rows * n)
            + matmul_workspace_bytes(dtype, n, rows, k)
    })
}

/// `out[.., n]` is the sum over g of `own[.., g] x[.., k] weight[g, n, k]^T`, in the order of g.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn grouped_matmul(
    options: KernelOptions,
    x: &View<'_>,
    weight: &View<'_>,
    own: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    dispatch!(float out.dtype(), T => forward::<T>(options, x, weight, own, out, workspace))
}

/// `out[g, n, k]` is the sum over rows of `own[.., g] y[.., n] x[.., k]`, in the order of rows: the gradient of the matrices
/// of [`grouped_matmul`], if `y` is that of its result. A group without rows gets zeros.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn grouped_outer(
    options: KernelOptions,
    x: &View<'_>,
    y: &View<'_>,
    own: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    dispatch!(float out.dtype(), T => outer::<T>(options, x, y, own, out, workspace))
}

/// The rows of one group: numbers and shares.
struct Members<'w, T> {
    rows: &'w mut [u64],
    shares: &'w mut [T],
    count: usize,
}

impl<'w, T: Element> Members<'w, T> {
    fn new(workspace: &mut Workspace<'w>, rows: usize) -> Members<'w, T> {
        Members { rows: workspace.take(rows), shares: workspace.take(rows), count: 0 }
    }

    /// Finds the rows with a share of this group.
    fn find(&mut self, own: &View<'_>, group: usize) {
        let column = own.index(own.rank() - 1, group);
        let reader = Reader::new(&column);
        let mut scratch: TileBytes = [0; TILE];
        let nothing = T::default().load();
        self.count = 0;
        for (start, count) in tiles(column.len()) {
            for (place, &share) in reader.typed::<T>(start, count, &mut scratch).iter().enumerate() {
                if share.load() != nothing {
                    self.rows[self.count] = (start + place) as u64;
                    self.shares[self.count] = share;
                    self.count += 1;
                }
            }
        }
    }

    /// Row by row, with its share.
    fn iter(&self) -> impl Iterator<Item = (usize, T)> {
        self.rows[..self.count].iter().map(|&row| row as usize).zip(self.shares.iter().copied())
    }

    /// Copies these rows of `x[.., width]`, one behind the other.
    fn pack(&self, x: &View<'_>, width: usize, packed: &mut [T]) {
        let reader = Reader::new(x);
        let mut scratch: TileBytes = [0; TILE];
        for ((row, _), into) in self.iter().zip(packed.chunks_exact_mut(width.max(1))) {
            for (start, count) in tiles(width) {
                let tile = reader.typed::<T>(row * width + start, count, &mut scratch);
                into[start..start + count].copy_from_slice(tile);
            }
        }
    }
}

/// The extents of rows, groups, and features before and behind the matrices.
fn extents(x: &[usize], weight: &[usize], own: &[usize], y: &[usize]) -> [usize; 4] {
    let fits = match (x, weight, own, y) {
        ([rows @ .., k], [g, n, inner], [own @ .., groups], [out @ .., m]) => {
            rows == own && rows == out && k == inner && g == groups && n == m
        }
        _ => false,
    };
    assert!(fits, "rows {x:?} of {weight:?} by shares {own:?} to {y:?}");
    [x[..x.len() - 1].iter().product(), weight[0], weight[2], weight[1]]
}

fn forward<T: Element>(
    options: KernelOptions,
    x: &View<'_>,
    weight: &View<'_>,
    own: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let [rows, groups, k, n] = extents(x.shape(), weight.shape(), own.shape(), out.shape());
    let mut workspace = Workspace::new(workspace);
    let mut members = Members::<T>::new(&mut workspace, rows);
    // How many groups each row has met.
    let met = workspace.take::<u64>(rows);
    met.fill(0);
    let (packed, products) = (workspace.take::<T>(rows * k), workspace.take::<T>(rows * n));
    let rest = workspace.take::<u8>(matmul_workspace_bytes(T::DTYPE, rows, k, n));
    for group in 0..groups {
        members.find(own, group);
        let count = members.count;
        if count == 0 {
            continue;
        }
        members.pack(x, k, packed);
        let lhs = View::of(&packed[..count * k], &[count, k]);
        let rhs = weight.index(0, group).permute(&[1, 0]);
        let mut product = ViewMut::of(&mut products[..count * n], &[count, n]);
        matmul(options, &lhs, &rhs, &mut product, false, rest);
        for ((row, share), product) in members.iter().zip(products.chunks_exact(n.max(1))) {
            put_row(out, row * n, share, product, met[row] == 0);
            met[row] += 1;
        }
    }
    for row in (0..rows).filter(|&row| met[row] == 0) {
        fill(out, row * n, n);
    }
}

fn outer<T: Element>(
    options: KernelOptions,
    x: &View<'_>,
    y: &View<'_>,
    own: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let [rows, groups, k, n] = extents(x.shape(), out.shape(), own.shape(), y.shape());
    let mut workspace = Workspace::new(workspace);
    let mut members = Members::<T>::new(&mut workspace, rows);
    let (of_x, of_y) = (workspace.take::<T>(rows * k), workspace.take::<T>(rows * n));
    let rest = workspace.take::<u8>(matmul_workspace_bytes(T::DTYPE, n, rows, k));
    for group in 0..groups {
        members.find(own, group);
        let count = members.count;
        let mut target = out.reborrow().index(0, group);
        if count == 0 {
            fill(&mut target, 0, n * k);
            continue;
        }
        members.pack(x, k, of_x);
        members.pack(y, n, of_y);
        for ((_, share), row) in members.iter().zip(of_y.chunks_exact_mut(n.max(1))) {
            row.iter_mut().for_each(|value| *value = T::store(value.load().times(share.load())));
        }
        let lhs = View::of(&of_y[..count * n], &[count, n]).permute(&[1, 0]);
        let rhs = View::of(&of_x[..count * k], &[count, k]);
        matmul(options, &lhs, &rhs, &mut target, false, rest);
    }
}

/// Sets `count` elements from `begin` on to zero.
fn fill(out: &mut ViewMut<'_>, begin: usize, count: usize) {
    let size = out.dtype().size_bytes();
    let zeros: TileBytes = [0; TILE];
    let mut writer = Writer::new(out);
    for (start, count) in tiles(count) {
        let zeros = &cast_slice(&zeros)[..count * size];
        match writer.tile(begin + start, count) {
            Some(into) => into.copy_from_slice(zeros),
            None => writer.store(begin + start, zeros),
        }
    }
}

/// Writes `share * row` to the elements of `out` from `begin` on; adds it to them unless it is the first.
fn put_row<T: Element>(out: &mut ViewMut<'_>, begin: usize, share: T, row: &[T], is_first: bool) {
    let mut scratch: TileBytes = [0; TILE];
    let share = share.load();
    let put = |sum: &mut [T], row: &[T]| {
        for (sum, value) in sum.iter_mut().zip(row) {
            let term = value.load().times(share);
            *sum = T::store(if is_first { term } else { sum.load().plus(term) });
        }
    };
    for (start, count) in tiles(row.len()) {
        let update = &row[start..start + count];
        let mut writer = Writer::new(out);
        if let Some(tile) = writer.tile(begin + start, count) {
            put(cast_slice_mut(tile), update);
            continue;
        }
        let sum: &mut [u8] = &mut cast_slice_mut(&mut scratch)[..count * size_of::<T>()];
        if !is_first {
            let view = out.as_view();
            Reader::new(&view).tile(begin + start, count, sum);
        }
        put(cast_slice_mut(sum), update);
        Writer::new(out).store(begin + start, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that binary fractions hold exactly, so that sums do not round.
    fn numbers(seed: usize, count: usize) -> Vec<f64> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 17) as f64 / 4.0 - 2.0).collect()
    }

    #[test]
    fn rows_meet_the_matrices_of_their_groups() {
        let (lead, groups, k, n) = ([2, 3], 4, 5, 7);
        let rows = 6;
        let (x, weight, dy) = (numbers(1, rows * k), numbers(2, groups * n * k), numbers(3, rows * n));
        // Shares of one group, of none, of two.
        let mut own = vec![0.0; rows * groups];
        for (row, group, share) in
            [(0, 1, 1.0), (1, 3, 1.0), (2, 1, 0.5), (4, 0, 1.0), (5, 0, 2.0), (5, 3, 1.0)]
        {
            own[row * groups + group] = share;
        }
        let mut expected = vec![0.0; rows * n];
        let mut expected_weight = vec![0.0; groups * n * k];
        for (row, group) in (0..rows).flat_map(|row| (0..groups).map(move |group| (row, group))) {
            let share = own[row * groups + group];
            for (j, i) in (0..n).flat_map(|j| (0..k).map(move |i| (j, i))) {
                let at = (group * n + j) * k + i;
                expected[row * n + j] += share * x[row * k + i] * weight[at];
                expected_weight[at] += share * x[row * k + i] * dy[row * n + j];
            }
        }
        let options = KernelOptions::default();
        let with_last = |last: usize| [lead[0], lead[1], last];
        let views = (
            View::of(&x, &with_last(k)),
            View::of(&weight, &[groups, n, k]),
            View::of(&own, &with_last(groups)),
            View::of(&dy, &with_last(n)),
        );
        let mut workspace = vec![0; grouped_matmul_workspace_bytes(DType::F64, rows, k, n)];
        let mut y = vec![9.0; rows * n];
        let mut out = ViewMut::of(&mut y, &with_last(n));
        grouped_matmul(options, &views.0, &views.1, &views.2, &mut out, &mut workspace);
        assert_eq!(y, expected);
        let mut workspace = vec![0; grouped_outer_workspace_bytes(DType::F64, rows, k, n)];
        let mut gradient = vec![9.0; groups * n * k];
        let mut out = ViewMut::of(&mut gradient, &[groups, n, k]);
        grouped_outer(options, &views.0, &views.3, &views.2, &mut out, &mut workspace);
        assert_eq!(gradient, expected_weight);
    }
}
