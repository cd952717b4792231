//! Strided views of memory: shape, strides, element type and pointer, without ownership.

use std::marker::PhantomData;

use partita_base::DType;

use crate::element::Element;

/// The most dimensions a view can have.
pub const MAX_RANK: usize = 8;

/// Shape and strides, not yet checked against memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Geometry {
    dtype: DType,
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
}

impl Geometry {
    fn new(dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        assert!(shape.len() <= MAX_RANK, "a view has at most {MAX_RANK} dimensions, not {}", shape.len());
        assert_eq!(shape.len(), strides.len(), "a view needs one stride for each dimension");
        let mut geometry =
            Geometry { dtype, rank: shape.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        geometry.shape[..shape.len()].copy_from_slice(shape);
        geometry.strides[..shape.len()].copy_from_slice(strides);
        geometry
    }

    fn contiguous(dtype: DType, shape: &[usize]) -> Self {
        let mut strides = [0; MAX_RANK];
        let mut stride = 1isize;
        for d in (0..shape.len().min(MAX_RANK)).rev() {
            strides[d] = stride;
            stride = stride.saturating_mul(shape[d] as isize);
        }
        Geometry::new(dtype, shape, &strides[..shape.len().min(MAX_RANK)])
    }

    fn len(&self) -> usize {
        self.shape[..self.rank].iter().product()
    }

    /// Offsets of the first and last element in memory order, in elements; `None` if there are no elements.
    fn extent(&self) -> Option<(isize, isize)> {
        let (mut low, mut high) = (0isize, 0isize);
        for d in 0..self.rank {
            let last = isize::try_from(self.shape[d].checked_sub(1)?).expect("a dimension fits in isize");
            let reach = last.checked_mul(self.strides[d]).expect("a view's extent fits in isize");
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.checked_add(reach).expect("a view's extent fits in isize");
        }
        Some((low, high))
    }

    /// Panics unless every element is inside; element 0 is `offset` elements into the `length_bytes` at
    /// `address`.
    fn check(&self, address: usize, length_bytes: usize, offset: usize) {
        let Some((low, high)) = self.extent() else { return };
        let size = self.dtype.size_bytes();
        assert!(address.is_multiple_of(size), "memory of {} must be aligned to {size} bytes", self.dtype);
        let first = (offset as isize).checked_add(low).expect("a view's extent fits in isize");
        let last = (offset as isize).checked_add(high).expect("a view's extent fits in isize");
        let elements = length_bytes / size;
        assert!(
            first >= 0 && (last as usize) < elements,
            "a view of elements {first}..={last} does not fit in memory of {elements} elements of {}",
            self.dtype
        );
    }
}

/// Strided elements to be read. Strides count elements and may be zero (broadcast) or negative.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    geometry: Geometry,
    pointer: *const u8,
    lifetime: PhantomData<&'a [u8]>,
}

/// Strided elements to be written. No two indices may name the same element.
#[derive(Debug)]
pub struct ViewMut<'a> {
    geometry: Geometry,
    pointer: *mut u8,
    lifetime: PhantomData<&'a mut [u8]>,
}

macro_rules! shared {
    () => {
        /// The element type.
        pub fn dtype(&self) -> DType {
            self.geometry.dtype
        }

        /// The number of dimensions.
        pub fn rank(&self) -> usize {
            self.geometry.rank
        }

        /// The size of each dimension.
        pub fn shape(&self) -> &[usize] {
            &self.geometry.shape[..self.geometry.rank]
        }

        /// Elements between neighbours along each dimension, in memory.
        pub fn strides(&self) -> &[isize] {
            &self.geometry.strides[..self.geometry.rank]
        }

        /// The number of elements.
        pub fn len(&self) -> usize {
            self.geometry.len()
        }

        /// Whether there are no elements.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// The view with its dimensions reordered: dimension `d` of the result is dimension `order[d]`.
        pub fn permute(mut self, order: &[usize]) -> Self {
            assert_eq!(order.len(), self.rank(), "a permutation names every dimension once");
            let from = self.geometry;
            let mut seen = [false; MAX_RANK];
            for (d, &source) in order.iter().enumerate() {
                assert!(
                    !std::mem::replace(&mut seen[source], true),
                    "a permutation names every dimension once"
                );
                self.geometry.shape[d] = from.shape[source];
                self.geometry.strides[d] = from.strides[source];
            }
            self
        }

        /// The indices `start, start + step, ...` below `limit` of one dimension.
        pub fn slice(mut self, dim: usize, start: usize, limit: usize, step: usize) -> Self {
            let size = self.shape()[dim];
            assert!(start <= limit && limit <= size && step > 0, "slice {start}..{limit} of {size}");
            self.geometry.shape[dim] = (limit - start).div_ceil(step);
            self.advance(dim, start);
            self.geometry.strides[dim] *= step as isize;
            self
        }

        /// The view at one index of a dimension, which is removed.
        pub fn index(mut self, dim: usize, index: usize) -> Self {
            assert!(index < self.shape()[dim], "index {index} of {}", self.shape()[dim]);
            self.advance(dim, index);
            let rank = self.geometry.rank;
            self.geometry.shape.copy_within(dim + 1..rank, dim);
            self.geometry.strides.copy_within(dim + 1..rank, dim);
            self.geometry.rank -= 1;
            self
        }

        /// Moves the first element along a dimension.
        fn advance(&mut self, dim: usize, index: usize) {
            let elements = (index as isize).wrapping_mul(self.geometry.strides[dim]);
            self.pointer =
                self.pointer.wrapping_offset(elements.wrapping_mul(self.dtype().size_bytes() as isize));
        }

        /// Addresses of the first byte and of the byte after the last; equal if there are no elements.
        pub(crate) fn address_range(&self) -> (usize, usize) {
            let base = self.pointer as usize;
            let Some((low, high)) = self.geometry.extent() else { return (base, base) };
            let size = self.dtype().size_bytes() as isize;
            (base.wrapping_add_signed(low * size), base.wrapping_add_signed((high + 1) * size))
        }
    };
}

impl<'a> View<'a> {
    /// Row-major elements at the start of `bytes`.
    ///
    /// # Panics
    /// Where `bytes` is too short or not aligned to the element size.
    pub fn contiguous(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Self {
        let geometry = Geometry::contiguous(dtype, shape);
        geometry.check(bytes.as_ptr() as usize, bytes.len(), 0);
        View { geometry, pointer: bytes.as_ptr(), lifetime: PhantomData }
    }

    /// Elements whose first is `offset` elements into `bytes`.
    ///
    /// # Panics
    /// Where an element is outside `bytes`, or `bytes` is not aligned to the element size.
    pub fn strided(bytes: &'a [u8], offset: usize, dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        let geometry = Geometry::new(dtype, shape, strides);
        geometry.check(bytes.as_ptr() as usize, bytes.len(), offset);
        let pointer = bytes.as_ptr().wrapping_add(offset.wrapping_mul(dtype.size_bytes()));
        View { geometry, pointer, lifetime: PhantomData }
    }

    /// Row-major elements of a Rust type.
    ///
    /// # Panics
    /// Where `elements` is too short.
    pub fn of<T: Element>(elements: &'a [T], shape: &[usize]) -> Self {
        View::contiguous(bytemuck::cast_slice(elements), T::DTYPE, shape)
    }

    /// A view of memory that the caller guarantees.
    ///
    /// # Safety
    /// Every element `pointer + dtype size * sum(index * stride)` must be aligned and readable for `'a`, and
    /// must not be written during a kernel that reads it. (An elementwise kernel may write its output over an
    /// input that has the same shape and strides.)
    ///
    /// # Panics
    /// Where the rank exceeds [`MAX_RANK`] or differs between shape and strides.
    pub unsafe fn from_raw(pointer: *const u8, dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        View { geometry: Geometry::new(dtype, shape, strides), pointer, lifetime: PhantomData }
    }

    shared!();

    /// The view repeated to a larger shape: dimensions align at the end, and those of size one repeat.
    ///
    /// # Panics
    /// Where a dimension has neither size one nor the requested size.
    pub fn broadcast_to(&self, shape: &[usize]) -> Self {
        assert!(shape.len() >= self.rank(), "broadcast {:?} to {shape:?}", self.shape());
        let mut strides = [0; MAX_RANK];
        let lead = shape.len() - self.rank();
        for d in 0..self.rank() {
            let (have, want) = (self.shape()[d], shape[lead + d]);
            assert!(have == want || have == 1, "broadcast {:?} to {shape:?}", self.shape());
            strides[lead + d] = if have == 1 { 0 } else { self.strides()[d] };
        }
        View { geometry: Geometry::new(self.dtype(), shape, &strides[..shape.len()]), ..*self }
    }

    /// The address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }
}

impl<'a> ViewMut<'a> {
    /// Row-major elements at the start of `bytes`.
    ///
    /// # Panics
    /// Where `bytes` is too short or not aligned to the element size.
    pub fn contiguous(bytes: &'a mut [u8], dtype: DType, shape: &[usize]) -> Self {
        let geometry = Geometry::contiguous(dtype, shape);
        geometry.check(bytes.as_ptr() as usize, bytes.len(), 0);
        ViewMut { geometry, pointer: bytes.as_mut_ptr(), lifetime: PhantomData }
    }

    /// Elements whose first is `offset` elements into `bytes`.
    ///
    /// # Panics
    /// Where an element is outside `bytes`, `bytes` is not aligned to the element size, or a dimension
    /// larger than one has stride zero.
    pub fn strided(
        bytes: &'a mut [u8],
        offset: usize,
        dtype: DType,
        shape: &[usize],
        strides: &[isize],
    ) -> Self {
        let geometry = Geometry::new(dtype, shape, strides);
        geometry.check(bytes.as_ptr() as usize, bytes.len(), offset);
        let repeats =
            !shape.contains(&0) && shape.iter().zip(strides).any(|(&size, &stride)| size > 1 && stride == 0);
        assert!(!repeats, "a view to be written must not repeat elements");
        let pointer = bytes.as_mut_ptr().wrapping_add(offset.wrapping_mul(dtype.size_bytes()));
        ViewMut { geometry, pointer, lifetime: PhantomData }
    }

    /// Row-major elements of a Rust type.
    ///
    /// # Panics
    /// Where `elements` is too short.
    pub fn of<T: Element>(elements: &'a mut [T], shape: &[usize]) -> Self {
        ViewMut::contiguous(bytemuck::cast_slice_mut(elements), T::DTYPE, shape)
    }

    /// A view of memory that the caller guarantees.
    ///
    /// # Safety
    /// Every element must be aligned and writable for `'a`, and none may be read or written by others during
    /// a kernel. (An elementwise kernel may write its output over an input that has the same shape and
    /// strides.) No two indices may name the same element.
    ///
    /// # Panics
    /// Where the rank exceeds [`MAX_RANK`] or differs between shape and strides.
    pub unsafe fn from_raw(pointer: *mut u8, dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        ViewMut { geometry: Geometry::new(dtype, shape, strides), pointer, lifetime: PhantomData }
    }

    shared!();

    /// The same elements, to be read.
    pub fn as_view(&self) -> View<'_> {
        View { geometry: self.geometry, pointer: self.pointer, lifetime: PhantomData }
    }

    /// The same elements for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { geometry: self.geometry, pointer: self.pointer, lifetime: PhantomData }
    }

    /// The address of the first element.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer
    }
}
