//! Strided views: which ops can be expressed as another view of their operand's buffer, without a
//! copy.

use crate::program::{BufferId, View};
use partita_ir::TensorType;
use partita_ir::traits::ViewMap;
use partita_ir::types::row_major_strides;
use std::sync::Arc;

impl View {
    /// A view of all of a dense buffer of this shape.
    pub fn whole(buffer: BufferId, shape: &[usize]) -> View {
        let strides = row_major_strides(shape).into_iter().map(|s| s as isize).collect();
        View { buffer, offset_elements: 0, offsets_by_rank: None, shape: shape.to_vec(), strides }
    }

    /// Number of elements of the view.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_dense(&self) -> bool {
        let dense = row_major_strides(&self.shape);
        self.element_count() == 0
            || self.shape.iter().zip(&self.strides).zip(dense).all(|((&n, &s), d)| n == 1 || s == d as isize)
    }

    /// Whether the view covers a whole buffer of this type, in the buffer's shape.
    pub fn is_whole(&self, ty: &TensorType) -> bool {
        self.offset_elements == 0
            && self.offsets_by_rank.is_none()
            && self.shape == ty.shape
            && self.is_dense()
    }

    /// Buffer positions of all elements, in row-major order of the view.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        partita_ir::literal::indices(&self.shape).map(|index| {
            let steps = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s);
            (self.offset_elements as isize + steps.sum::<isize>()) as usize
        })
    }

    /// The smallest and largest buffer position in the view of a rank; `None` for a view without
    /// elements.
    pub fn bounds(&self) -> Option<(usize, usize)> {
        if self.element_count() == 0 {
            return None;
        }
        let reach = |sign: isize| -> isize {
            let steps = self.shape.iter().zip(&self.strides).map(|(&n, &s)| (n as isize - 1) * s);
            steps.filter(|step| step * sign > 0).sum()
        };
        let offsets = self.offsets_by_rank.as_deref().unwrap_or(std::slice::from_ref(&self.offset_elements));
        let (low, high) = (offsets.iter().min()?, offsets.iter().max()?);
        Some(((*low as isize + reach(-1)).max(0) as usize, (*high as isize + reach(1)) as usize))
    }

    /// Broadcasts one number to a shape, with strides of 0.
    pub fn broadcast(&self, shape: &[usize], dims: &[usize]) -> View {
        let mut strides = vec![0; shape.len()];
        for ((&dim, &extent), &stride) in dims.iter().zip(&self.shape).zip(&self.strides) {
            strides[dim] = if extent == 1 { 0 } else { stride };
        }
        View { strides, shape: shape.to_vec(), ..self.clone() }
    }

    fn slice(&self, start: &[usize], steps: &[usize], shape: &[usize]) -> View {
        let mut view = View { shape: shape.to_vec(), ..self.clone() };
        let mut offset = 0;
        for (dim, stride) in view.strides.iter_mut().enumerate() {
            offset += start[dim] as isize * *stride;
            *stride *= steps[dim] as isize;
        }
        view.moved(|_| offset)
    }

    /// This view with its offset moved, separately for the rank at each position of the class. A
    /// view without elements stays as it is.
    fn moved(mut self, by: impl Fn(usize) -> isize) -> View {
        if self.element_count() == 0 {
            return self;
        }
        let moved = |position: usize, offset: usize| (offset as isize + by(position)) as usize;
        self.offset_elements = moved(0, self.offset_elements);
        if let Some(offsets) = &self.offsets_by_rank {
            let offsets: Arc<[usize]> = offsets.iter().enumerate().map(|(p, &o)| moved(p, o)).collect();
            self.offset_elements = offsets[0];
            self.offsets_by_rank = offsets.iter().any(|&offset| offset != offsets[0]).then_some(offsets);
        }
        self
    }

    /// A window of this shape whose start may differ between the ranks of the class.
    fn slice_by_rank(&self, starts: &[Vec<usize>], shape: &[usize]) -> View {
        let view = View { shape: shape.to_vec(), ..self.clone() };
        let by = |position: usize| -> isize {
            starts[position].iter().zip(&self.strides).map(|(&start, &stride)| start as isize * stride).sum()
        };
        let is_one = (1..starts.len()).all(|position| by(position) == by(0));
        let count = if is_one { 0 } else { starts.len() };
        let known = view.offsets_by_rank.clone();
        let spread = known.or_else(|| (count > 0).then(|| vec![view.offset_elements; count].into()));
        View { offsets_by_rank: spread, ..view }.moved(by)
    }

    fn reverse(&self, dims: &[usize]) -> View {
        let mut view = self.clone();
        if view.element_count() == 0 {
            return view;
        }
        let mut offset = 0;
        for &dim in dims {
            offset += (view.shape[dim] as isize - 1) * view.strides[dim];
            view.strides[dim] = -view.strides[dim];
        }
        view.moved(|_| offset)
    }

    /// Reshapes the view without a copy; `None` if no strides can express the new shape.
    pub fn reshape(&self, shape: &[usize]) -> Option<View> {
        let dense: Vec<isize> = row_major_strides(shape).into_iter().map(|s| s as isize).collect();
        let with = |strides| Some(View { shape: shape.to_vec(), strides, ..self.clone() });
        if self.is_dense() {
            return with(dense);
        }
        // Groups old and new dimensions with equal element counts; within a group the old strides
        // must nest.
        let old: Vec<(usize, isize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|(n, _)| *n != 1).collect();
        let mut strides = vec![0; shape.len()];
        let (mut o, mut n) = (0, 0);
        while n < shape.len() {
            if shape[n] == 1 {
                n += 1;
                continue;
            }
            let (first_old, first_new) = (o, n);
            let (mut old_count, mut new_count) = (old[o].0, shape[n]);
            (o, n) = (o + 1, n + 1);
            while old_count != new_count {
                if old_count < new_count {
                    old_count *= old[o].0;
                    o += 1;
                } else {
                    new_count *= shape[n];
                    n += 1;
                }
            }
            if old[first_old..o].windows(2).any(|w| w[0].1 != w[1].0 as isize * w[1].1) {
                return None;
            }
            let mut stride = old[o - 1].1;
            for dim in (first_new..n).rev() {
                strides[dim] = stride;
                stride *= shape[dim] as isize;
            }
        }
        with(strides)
    }

    /// Applies a view op to the view of its operand; the result has this shape. `None` if the
    /// elements must be copied first. `starts` are the starts of a window for each rank of the
    /// class.
    pub(crate) fn apply(&self, map: ViewMap, shape: &[usize], starts: &[Vec<usize>]) -> Option<View> {
        match map {
            ViewMap::Identity => Some(self.clone()),
            ViewMap::Broadcast { dims } => Some(self.broadcast(shape, dims)),
            ViewMap::Reshape => self.reshape(shape),
            ViewMap::Transpose { permutation } => {
                let strides = permutation.iter().map(|&d| self.strides[d]).collect();
                Some(View { shape: shape.to_vec(), strides, ..self.clone() })
            }
            ViewMap::Slice { start, stride } => Some(self.slice(start, stride, shape)),
            ViewMap::Reverse { dims } => Some(self.reverse(dims)),
            ViewMap::Window { sizes } => Some(self.slice_by_rank(starts, sizes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_ir::ops::{BroadcastInDim, Reshape, Reverse, Slice, Transpose};
    use partita_ir::{GraphBuilder, Literal, Op, Operation, Role, Traits};

    /// Applies random view ops to a view and to the literal it shows; both must show the same
    /// elements.
    #[test]
    fn views_show_what_the_ops_compute() {
        let mut state = 7u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut copies = 0;
        for _ in 0..400 {
            let shape: Vec<usize> =
                (0..1 + random(4)).map(|_| [1, 2, 3, 4, 6, 0][random(16).min(random(6))]).collect();
            let count: usize = shape.iter().product();
            let base = Literal::new(shape.clone(), (0..count as i32).collect::<Vec<_>>());
            let mut literal = base.clone();
            let mut view = View::whole(BufferId::new(0), &shape);
            for _ in 0..4 {
                let shape = literal.ty.shape.clone();
                let rank = shape.len();
                let op: Op = match random(5) {
                    0 => {
                        let mut permutation: Vec<usize> = (0..rank).collect();
                        (0..rank).for_each(|d| permutation.swap(d, random(rank)));
                        Transpose { permutation }.into()
                    }
                    1 => {
                        let start: Vec<usize> = shape.iter().map(|&n| random(n + 1).min(1)).collect();
                        let stride = (0..rank).map(|_| 1 + random(2)).collect();
                        Slice { start, limit: shape.clone(), stride }.into()
                    }
                    2 => Reverse { dims: (0..rank).filter(|_| random(2) == 0).collect() }.into(),
                    3 => {
                        let mut shape = shape.clone();
                        shape.push(2);
                        BroadcastInDim { shape, dims: (0..rank).collect() }.into()
                    }
                    _ => {
                        let mut shape: Vec<usize> = shape.clone();
                        let at = random(rank + 1);
                        shape.insert(at, 1);
                        if random(2) == 0 && rank > 1 {
                            let merged = shape.remove(rank);
                            shape[rank - 1] *= merged;
                        }
                        Reshape { shape }.into()
                    }
                };
                let ty = op.infer(&[&literal.ty]).unwrap();
                literal = op.evaluate(&[&literal], &ty).unwrap().remove(0);
                let mut builder = GraphBuilder::new("one");
                let input = builder.input("x", base.ty.with_shape(shape), Role::Activation);
                let result = builder.push(op.clone(), &[input]).unwrap();
                let graph = builder.finish(result);
                let Traits::View(map) = graph.traits(&graph.nodes[0]) else { panic!("{op:?} is a view") };
                match view.apply(map, &ty[0].shape, &[]) {
                    Some(next) => view = next,
                    None => {
                        copies += 1;
                        break;
                    }
                }
                assert_eq!(view.shape, literal.ty.shape);
                let shown = base.data.pick(view.positions());
                assert_eq!(shown, literal.data, "{op:?}");
                let (low, high) = view.bounds().unwrap_or((0, 0));
                assert!(view.positions().all(|p| low <= p && p <= high));
            }
        }
        assert!((1..200).contains(&copies), "{copies} reshapes need a copy");
    }
}
