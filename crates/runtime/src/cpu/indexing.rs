//! Gather and scatter.

use partita_ir::ops::{Gather, Scatter, Update};
use partita_kernels::{self as kernels, Binary, KernelOptions, MAX_RANK, Scalar, View, ViewMut};
use partita_mesh::Combiner;

use super::{Kernel, Value, integer};
use crate::arena::{Memory, Place, Span, dense_strides};

/// The index vectors of a gather or scatter, by their position among the batch dimensions.
struct IndexVectors {
    indices: Value,
    /// The dimension of the index vector; the rank if it is implicit.
    vector_dim: usize,
    /// The other dimensions.
    batch_dims: Vec<usize>,
    /// Operand dimension of each component.
    map: Vec<usize>,
    /// (operand dimension, position among the batch dimensions) of batching dimensions.
    paired: Vec<(usize, usize)>,
}

impl IndexVectors {
    fn new(
        indices: Value,
        vector_dim: usize,
        map: &[usize],
        operand_dims: &[usize],
        index_dims: &[usize],
    ) -> Self {
        let batch_dims: Vec<usize> = (0..indices.shape().len()).filter(|&d| d != vector_dim).collect();
        let paired = operand_dims.iter().zip(index_dims).map(|(&operand, index)| {
            (
                operand,
                batch_dims
                    .iter()
                    .position(|d| d == index)
                    .expect("a batching dimension is a batch dimension"),
            )
        });
        let paired = paired.collect();
        IndexVectors { indices, vector_dim, batch_dims, map: map.to_vec(), paired }
    }

    fn batch_shape(&self) -> impl Iterator<Item = usize> + '_ {
        self.batch_dims.iter().map(|&d| self.indices.shape()[d])
    }

    fn count(&self) -> usize {
        self.batch_shape().product()
    }

    /// The batch index of a position, and the unclamped start of its window in the operand.
    fn at(&self, memory: &Memory<'_>, position: usize) -> ([usize; MAX_RANK], [i64; MAX_RANK]) {
        let (mut batch, mut start, mut rest) = ([0; MAX_RANK], [0; MAX_RANK], position);
        let mut offset = 0;
        for (i, &d) in self.batch_dims.iter().enumerate().rev() {
            let size = self.indices.shape()[d];
            (batch[i], rest) = (rest % size, rest / size);
            offset += batch[i] as isize * self.indices.stride(d);
        }
        let step = if self.vector_dim < self.indices.shape().len() {
            self.indices.stride(self.vector_dim)
        } else {
            0
        };
        for (component, &d) in self.map.iter().enumerate() {
            start[d] = integer(self.indices.element(memory, offset + component as isize * step));
        }
        for &(d, i) in &self.paired {
            start[d] = batch[i] as i64;
        }
        (batch, start)
    }
}

/// The number of elements of a row, if all dimensions but the first are dense.
fn row_elements(place: &Place) -> Option<usize> {
    let row = &place.shape[1..];
    let dense = dense_strides(row);
    let same = |d: usize| row[d] == 1 || place.strides[d + 1] == dense[d];
    (0..row.len()).all(same).then(|| row.iter().product())
}

pub(super) fn gather(op: &Gather, operands: Vec<Value>, out: Place) -> Option<Kernel> {
    let dims = op.dims.clone();
    let operand = operands[0].place()?.clone();
    if operand.shape.contains(&0) {
        // An empty shard has no window, and contributes zeros to the sum over the shards.
        let zero = Scalar::from_f64(out.dtype, 0.0);
        return Some(Kernel::plain(move |memory| kernels::fill(&mut memory.view_mut(&out), &zero)));
    }
    let vectors = IndexVectors::new(
        operands[1].clone(),
        dims.index_vector_dim,
        &dims.start_index_map,
        &dims.operand_batching_dims,
        &dims.start_indices_batching_dims,
    );
    let sizes = op.slice_sizes.clone();
    let limits: Vec<i64> =
        operand.shape.iter().zip(&sizes).map(|(&all, &some)| all as i64 - some as i64).collect();
    let batch_rank = vectors.batch_dims.len();
    let trailing = dims.offset_dims.iter().copied().eq(batch_rank..out.shape.len());
    let whole_rows = dims.collapsed_slice_dims == [0]
        && dims.start_index_map == [0]
        && sizes[1..] == operand.shape[1..]
        && sizes[0] == 1;
    if let (true, true, Some(row)) =
        (trailing, whole_rows, operand.shape.first().and_then(|_| row_elements(&operand)))
    {
        let size = operand.dtype.size_bytes();
        return Some(Kernel::plain(move |memory| {
            let bytes = row * size;
            for position in 0..vectors.count() {
                let (_, start) = vectors.at(memory, position);
                let from = start[0].clamp(0, limits[0]) as isize * operand.strides[0] * size as isize;
                let from = operand.offset_bytes.checked_add_signed(from).expect("a row lies in its arena");
                let to = out.offset_bytes + position * bytes;
                let row = memory.bytes(Span { offset: from, bytes });
                memory.bytes_mut(Span { offset: to, bytes }).copy_from_slice(row);
            }
        }));
    }
    // In descending order, so that the positions of earlier dimensions stay valid.
    let dropped = descending(dims.collapsed_slice_dims.iter().chain(&dims.operand_batching_dims));
    let batch_of_out: Vec<usize> = (0..out.shape.len()).filter(|d| !dims.offset_dims.contains(d)).collect();
    Some(Kernel::plain(move |memory| {
        for position in 0..vectors.count() {
            let (batch, start) = vectors.at(memory, position);
            let mut window = memory.view(&operand);
            for (d, &size) in sizes.iter().enumerate() {
                let start = start[d].clamp(0, limits[d]) as usize;
                window = window.slice(d, start, start + size, 1);
            }
            for &d in &dropped {
                window = window.index(d, 0);
            }
            let mut target = memory.view_mut(&out);
            for (i, &d) in batch_of_out.iter().enumerate().rev() {
                target = target.index(d, batch[i]);
            }
            kernels::copy(&window, &mut target);
        }
    }))
}

fn descending<'a>(dims: impl Iterator<Item = &'a usize>) -> Vec<usize> {
    let mut dims: Vec<usize> = dims.copied().collect();
    dims.sort_unstable_by(|a, b| b.cmp(a));
    dims
}

fn combination(combiner: Combiner) -> Binary {
    match combiner {
        Combiner::Sum => Binary::Add,
        Combiner::Prod => Binary::Mul,
        Combiner::Max => Binary::Max,
        Combiner::Min => Binary::Min,
        Combiner::And => Binary::And,
        Combiner::Or => Binary::Or,
    }
}

pub(super) fn scatter(
    options: KernelOptions,
    op: &Scatter,
    operands: Vec<Value>,
    outputs: &[Place],
) -> Option<Kernel> {
    let ([operand, indices, updates], [out]) = (operands.as_slice(), outputs) else { return None };
    let combine = match &op.update {
        Update::Assign => None,
        Update::Combine(partita_ir::ops::Reducer::Combiner(combiner)) => Some(combination(*combiner)),
        Update::Combine(partita_ir::ops::Reducer::Body(_)) => return None,
    };
    if combine.is_some_and(|op| !op.supports(out.dtype)) {
        return None;
    }
    let (operand, updates, out, dims) = (operand.clone(), updates.clone(), out.clone(), op.dims.clone());
    let prepare = move |memory: &Memory<'_>, out: &Place| {
        if operand.place() != Some(out) {
            kernels::copy(&operand.view(memory), &mut memory.view_mut(out));
        }
    };
    let rows = op.dims.inserted_window_dims == [0]
        && dims.scatter_dims_to_operand_dims == [0]
        && dims.input_batching_dims.is_empty()
        && out.shape.len() == 2
        && updates.shape().last() == Some(&out.shape[1])
        && dims.update_window_dims == [updates.shape().len() - 1];
    let is_index = matches!(indices.place().map(|p| p.dtype.size_bytes()), Some(4 | 8));
    if let (true, true, Some(Binary::Add), Some(ids)) = (rows, is_index, combine, indices.place()) {
        // The kernel takes ids without an index vector dimension.
        let mut ids = ids.clone();
        if dims.index_vector_dim < ids.shape.len() {
            ids.shape.remove(dims.index_vector_dim);
            ids.strides.remove(dims.index_vector_dim);
        }
        return Some(Kernel::plain(move |memory| {
            prepare(memory, &out);
            kernels::scatter_add_rows(&updates.view(memory), &memory.view(&ids), &mut memory.view_mut(&out));
        }));
    }
    let vectors = IndexVectors::new(
        indices.clone(),
        dims.index_vector_dim,
        &dims.scatter_dims_to_operand_dims,
        &dims.input_batching_dims,
        &dims.scatter_indices_batching_dims,
    );
    let dropped = descending(dims.inserted_window_dims.iter().chain(&dims.input_batching_dims));
    let window_dims: Vec<usize> = (0..out.shape.len()).filter(|d| !dropped.contains(d)).collect();
    let batch_of_updates: Vec<usize> =
        (0..updates.shape().len()).filter(|d| !dims.update_window_dims.contains(d)).collect();
    Some(Kernel::plain(move |memory| {
        prepare(memory, &out);
        for position in 0..vectors.count() {
            let (batch, start) = vectors.at(memory, position);
            let mut update: View<'_> = updates.view(memory);
            for (i, &d) in batch_of_updates.iter().enumerate().rev() {
                update = update.index(d, batch[i]);
            }
            let (mut old, mut new) = (memory.view(&out), memory.view_mut(&out));
            let mut inside = true;
            for (d, &size) in out.shape.iter().enumerate() {
                // The part of the window that is inside the operand.
                let window = window_dims.iter().position(|&w| w == d);
                let extent = window.map_or(1, |w| update.shape()[w] as i64);
                let low = start[d].clamp(0, size as i64);
                let high = start[d].saturating_add(extent).clamp(low, size as i64);
                inside &= low < high;
                if !inside {
                    break;
                }
                old = old.slice(d, low as usize, high as usize, 1);
                new = new.slice(d, low as usize, high as usize, 1);
                if let Some(w) = window {
                    update = update.slice(w, (low - start[d]) as usize, (high - start[d]) as usize, 1);
                }
            }
            if inside {
                apply(options, combine, &dropped, &update, old, new);
            }
        }
    }))
}

/// Combines one window.
fn apply(
    options: KernelOptions,
    combine: Option<Binary>,
    dropped: &[usize],
    update: &View<'_>,
    mut old: View<'_>,
    mut new: ViewMut<'_>,
) {
    for &d in dropped {
        old = old.index(d, 0);
        new = new.index(d, 0);
    }
    match combine {
        None => kernels::copy(update, &mut new),
        Some(op) => kernels::binary(options, op, &old, update, &mut new),
    }
}
