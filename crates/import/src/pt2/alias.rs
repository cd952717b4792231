//! Tensors that share storage, made functional.
//!
//! ATen ops may change a tensor in place, and views of it change with it. Here a storage has a
//! current value and a version. A view remembers how it derives from its storage; a read after a
//! change derives it again, and a write puts the new elements back through the chain of views.
//!
//! A tensor that is computed while gradients are disabled, or is detached, is read through
//! `stop_gradient` wherever gradients are enabled.

use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{Pad, Slice, Special, SpecialKind};
use partita_ir::{GraphBuilder, TensorType, ValueId};

/// Names a tensor: a view of a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorRef(usize);

/// How a view derives from what it is a view of.
#[derive(Clone, PartialEq, Debug)]
pub enum View {
    /// The same elements under another shape.
    Reshape(Vec<usize>),
    /// Dimension `d` is dimension `order[d]` of the viewed tensor.
    Permute(Vec<usize>),
    /// Every `step`-th index from `start` below `limit` of a dimension.
    Slice {
        /// The dimension.
        dim: usize,
        /// First index.
        start: usize,
        /// One past the last index.
        limit: usize,
        /// Step, at least 1.
        step: usize,
    },
    /// Repeated elements: dimension `d` becomes dimension `dims[d]`.
    Broadcast {
        /// Shape of the view.
        shape: Vec<usize>,
        /// For each dimension of the viewed tensor, the one it becomes.
        dims: Vec<usize>,
    },
    /// Complex numbers as real ones with a last dimension of 2.
    Pairs,
    /// Real numbers with a last dimension of 2 as complex ones.
    Complex,
    /// The real or the imaginary parts.
    Part {
        /// Whether they are the imaginary ones.
        is_imaginary: bool,
    },
    /// The complex conjugates.
    Conjugate,
    /// Windows of a dimension, which becomes their number; their elements are a new last dimension.
    Windows {
        /// The dimension.
        dim: usize,
        /// Elements of a window; there is at least one window.
        size: usize,
        /// From one window to the next, at least 1.
        step: usize,
        /// From one element of a window to the next, at least 1.
        dilation: usize,
    },
}

#[derive(Debug)]
struct Storage {
    value: ValueId,
    version: usize,
    /// Whether a gradient may reach parameters or inputs through it.
    tracked: bool,
    /// Whether `value` was computed while gradients were disabled.
    detached: bool,
}

#[derive(Debug)]
struct Entry {
    storage: usize,
    views: Vec<View>,
    value: ValueId,
    version: usize,
    tracked: bool,
    detached: bool,
    /// Whether `value` already has its `stop_gradient`.
    stopped: bool,
}

/// All tensors of a program.
#[derive(Debug, Default)]
pub struct Tensors {
    storages: Vec<Storage>,
    entries: Vec<Entry>,
}

impl Tensors {
    /// A tensor with a storage of its own. `detached`: it was computed while gradients were
    /// disabled, from tracked tensors.
    pub fn fresh(&mut self, value: ValueId, tracked: bool, detached: bool) -> TensorRef {
        let storage = self.storages.len();
        self.storages.push(Storage { value, version: 0, tracked, detached });
        self.add(Entry { storage, views: Vec::new(), value, version: 0, tracked, detached, stopped: false })
    }

    fn add(&mut self, entry: Entry) -> TensorRef {
        self.entries.push(entry);
        TensorRef(self.entries.len() - 1)
    }

    /// A view of a tensor; without `views` another name of it. `detach`: no gradient flows through it.
    pub fn view(
        &mut self,
        b: &mut GraphBuilder,
        of: TensorRef,
        views: Vec<View>,
        detach: bool,
    ) -> Result<TensorRef> {
        let mut value = self.current(b, of)?;
        for view in &views {
            value = view.apply(b, value)?;
        }
        let source = &self.entries[of.0];
        let (storage, version) = (source.storage, source.version);
        let tracked = source.tracked && !detach;
        let detached = source.detached || (detach && source.tracked);
        let stopped = source.stopped && !(detach && source.tracked);
        let views = source.views.iter().cloned().chain(views).collect();
        Ok(self.add(Entry { storage, views, value, version, tracked, detached, stopped }))
    }

    /// Whether a gradient may flow through a tensor.
    pub fn is_tracked(&self, tensor: TensorRef) -> bool {
        self.entries[tensor.0].tracked
    }

    /// Whether a gradient flows through a tensor, or would if it were not stopped where it is read.
    pub fn carries(&self, tensor: TensorRef) -> bool {
        self.entries[tensor.0].tracked || self.entries[tensor.0].detached
    }

    /// A value of the tensor's type: its elements when it was last derived.
    pub fn last_value(&self, tensor: TensorRef) -> ValueId {
        self.entries[tensor.0].value
    }

    /// How often the storage of a tensor was changed.
    pub fn changes(&self, tensor: TensorRef) -> usize {
        self.storages[self.entries[tensor.0].storage].version
    }

    /// Stops gradients through a tensor from here on.
    pub fn detach(&mut self, tensor: TensorRef) {
        let entry = &mut self.entries[tensor.0];
        entry.stopped &= !entry.tracked;
        entry.detached |= entry.tracked;
        entry.tracked = false;
    }

    /// The value of a tensor, derived again if its storage changed.
    fn current(&mut self, b: &mut GraphBuilder, tensor: TensorRef) -> Result<ValueId> {
        let entry = &self.entries[tensor.0];
        let storage = &self.storages[entry.storage];
        if entry.version == storage.version {
            return Ok(entry.value);
        }
        let (mut value, version, tracked) = (storage.value, storage.version, storage.tracked);
        for view in entry.views.clone() {
            value = view.apply(b, value)?;
        }
        let entry = &mut self.entries[tensor.0];
        entry.tracked = tracked && !entry.detached;
        (entry.value, entry.version, entry.stopped) = (value, version, false);
        Ok(value)
    }

    /// The value of a tensor as an operand; `grad`: gradients are enabled.
    pub fn read(&mut self, b: &mut GraphBuilder, tensor: TensorRef, grad: bool) -> Result<ValueId> {
        let value = self.current(b, tensor)?;
        let entry = &mut self.entries[tensor.0];
        if grad && entry.detached && !entry.stopped && has_gradient(b.ty(value).dtype) {
            entry.value = b.stop_gradient(value)?;
            entry.stopped = true;
        }
        Ok(entry.value)
    }

    /// Replaces the elements of a tensor, and so of everything that shares its storage. `tracked`:
    /// gradients may flow into `new`. E356 if the gradients of PyTorch cannot be expressed, or for
    /// a view that cannot be written through.
    pub fn write(
        &mut self,
        b: &mut GraphBuilder,
        tensor: TensorRef,
        new: ValueId,
        grad: bool,
        tracked: bool,
    ) -> Result<()> {
        let entry = &self.entries[tensor.0];
        let storage = &self.storages[entry.storage];
        if storage.tracked && (!grad || entry.detached) {
            return Err(Diagnostic::new(
                "E356",
                "a tensor with a gradient is changed where gradients are disabled",
            )
            .expected("a new tensor instead: autograd keeps the gradient of the old values")
            .found("an op in place under `no_grad` or on a detached tensor"));
        }
        let (index, views) = (entry.storage, entry.views.clone());
        let mut base = storage.value;
        if storage.detached && grad && has_gradient(b.ty(base).dtype) {
            base = b.stop_gradient(base)?;
        }
        let whole = put_back(b, base, &views, new)?;
        let storage = &mut self.storages[index];
        storage.value = whole;
        storage.version += 1;
        storage.tracked |= tracked && grad;
        storage.detached &= !grad;
        let (version, is_tracked, detached) = (storage.version, storage.tracked, storage.detached);
        let entry = &mut self.entries[tensor.0];
        (entry.value, entry.version, entry.tracked, entry.stopped) = (new, version, is_tracked, false);
        entry.detached = detached || (!grad && tracked);
        self.storages[index].detached |= !grad && tracked;
        Ok(())
    }
}

/// Whether a gradient may flow through a tensor of this type.
pub(super) fn has_gradient(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_complex()
}

/// A function of complex numbers.
fn special(b: &mut GraphBuilder, kind: SpecialKind, operands: &[ValueId]) -> Result<ValueId> {
    b.push1(Special { kind }, operands)
}

impl View {
    /// The view of a value.
    pub fn apply(&self, b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
        match self {
            View::Reshape(shape) => b.reshape(x, shape),
            View::Permute(order) if order.is_sorted() => Ok(x),
            View::Permute(order) => b.transpose(x, order),
            View::Slice { dim, start, limit, step } => {
                let shape = b.shape(x);
                if (*start, *limit, *step) == (0, shape[*dim], 1) {
                    return Ok(x);
                }
                let mut slice =
                    Slice { start: vec![0; shape.len()], limit: shape.clone(), stride: vec![1; shape.len()] };
                (slice.start[*dim], slice.limit[*dim], slice.stride[*dim]) = (*start, *limit, *step);
                b.push1(slice, &[x])
            }
            View::Broadcast { shape, .. } if b.shape(x) == *shape => Ok(x),
            View::Broadcast { shape, dims } => b.broadcast_in_dim(x, shape, dims),
            View::Pairs => {
                let shape = b.shape(x);
                let column = [&shape[..], &[1]].concat();
                let [re, im] = [SpecialKind::Real, SpecialKind::Imag].map(|kind| special(b, kind, &[x]));
                let columns = [b.reshape(re?, &column)?, b.reshape(im?, &column)?];
                b.concatenate(&columns, shape.len())
            }
            View::Complex => {
                let mut shape = b.shape(x);
                shape.pop();
                let mut parts = [x; 2];
                for (number, part) in parts.iter_mut().enumerate() {
                    let column = b.slice_dim(x, shape.len(), number, number + 1)?;
                    *part = b.reshape(column, &shape)?;
                }
                special(b, SpecialKind::Complex, &parts)
            }
            View::Part { is_imaginary: false } => special(b, SpecialKind::Real, &[x]),
            View::Part { is_imaginary: true } => special(b, SpecialKind::Imag, &[x]),
            View::Conjugate => special(b, SpecialKind::Conj, &[x]),
            View::Windows { dim, size, step, dilation } => {
                let shape = b.shape(x);
                let count = (shape[*dim] - (size - 1) * dilation - 1) / step + 1;
                let mut column = [&shape[..], &[1]].concat();
                column[*dim] = count;
                let mut columns = Vec::with_capacity(*size);
                for at in 0..*size {
                    let start = at * dilation;
                    let limit = start + (count - 1) * step + 1;
                    let column_of = View::Slice { dim: *dim, start, limit, step: *step }.apply(b, x)?;
                    columns.push(b.reshape(column_of, &column)?);
                }
                if columns.len() == 1 { Ok(columns[0]) } else { b.concatenate(&columns, shape.len()) }
            }
        }
    }
}

/// `base` with the elements of a view of it replaced by `new`.
pub fn put_back(b: &mut GraphBuilder, base: ValueId, views: &[View], new: ValueId) -> Result<ValueId> {
    let Some((view, inner)) = views.split_first() else { return Ok(new) };
    let part = match inner {
        [] => new,
        _ => {
            let viewed = view.apply(b, base)?;
            put_back(b, viewed, inner, new)?
        }
    };
    match view {
        View::Reshape(_) => {
            let shape = b.shape(base);
            b.reshape(part, &shape)
        }
        View::Permute(order) => {
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
            if back.is_sorted() { Ok(part) } else { b.transpose(part, &back) }
        }
        &View::Slice { dim, start, limit, step: 1 } => {
            let extent = b.shape(base)[dim];
            let mut pieces = Vec::new();
            if start > 0 {
                pieces.push(b.slice_dim(base, dim, 0, start)?);
            }
            pieces.push(part);
            if limit < extent {
                pieces.push(b.slice_dim(base, dim, limit, extent)?);
            }
            if pieces.len() == 1 { Ok(part) } else { b.concatenate(&pieces, dim) }
        }
        View::Broadcast { shape, .. } if b.shape(base) == *shape => Ok(part),
        &View::Slice { dim, start, step, .. } => strided_back(b, base, part, dim, start, step),
        View::Pairs => View::Complex.apply(b, part),
        View::Complex => View::Pairs.apply(b, part),
        View::Conjugate => View::Conjugate.apply(b, part),
        &View::Part { is_imaginary } => {
            let other = View::Part { is_imaginary: !is_imaginary }.apply(b, base)?;
            let parts = if is_imaginary { [other, part] } else { [part, other] };
            special(b, SpecialKind::Complex, &parts)
        }
        View::Broadcast { .. } | View::Windows { .. } => {
            Err(Diagnostic::new("E356", "a view that cannot be changed in place")
                .expected("a view whose elements are apart")
                .found("an expanded tensor or windows that may overlap"))
        }
    }
}

/// `base` with every `step`-th element from `start` of a dimension replaced: the new elements are spread with gaps,
/// and chosen where they are.
fn strided_back(
    b: &mut GraphBuilder,
    base: ValueId,
    part: ValueId,
    dim: usize,
    start: usize,
    step: usize,
) -> Result<ValueId> {
    let ty = b.ty(base).clone();
    let (extent, count) = (ty.shape[dim], b.shape(part)[dim]);
    if count == 0 {
        return Ok(base);
    }
    let edges = |rank: usize, dim: usize| {
        let mut pad = Pad { low: vec![0; rank], high: vec![0; rank], interior: vec![0; rank] };
        pad.low[dim] = start as i64;
        pad.high[dim] = (extent - start) as i64 - ((count - 1) * step + 1) as i64;
        pad.interior[dim] = step - 1;
        pad
    };
    let zero = b.scalar(ty.dtype, 0.0);
    let spread = b.push1(edges(ty.rank(), dim), &[part, zero])?;
    let ones = b.full(&TensorType::new(DType::Bool, [count]), 1.0)?;
    let no = b.scalar(DType::Bool, 0.0);
    let is_new = b.push1(edges(1, 0), &[ones, no])?;
    let is_new = b.broadcast_in_dim(is_new, &ty.shape, &[dim])?;
    b.select(is_new, spread, base)
}
