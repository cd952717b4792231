//! One number of any element type, as bytes.

use bytemuck::{Pod, Zeroable};
use partita_base::DType;

use crate::convert::Cast;
use crate::element::Element;
use crate::element::dispatch;
use crate::view::View;

/// One value of some element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scalar {
    dtype: DType,
    /// The value's bytes, followed by zeros.
    bytes: Aligned,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Pod, Zeroable)]
#[repr(C, align(8))]
struct Aligned([u8; 8]);

impl Scalar {
    /// A value of a Rust type.
    pub fn new<T: Element>(value: T) -> Self {
        let mut bytes = Aligned([0; 8]);
        bytes.0[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Scalar { dtype: T::DTYPE, bytes }
    }

    /// The value with these bytes.
    ///
    /// # Panics
    /// If their number is not the element size.
    pub fn from_bytes(dtype: DType, value: &[u8]) -> Self {
        let mut bytes = Aligned([0; 8]);
        bytes.0[..dtype.size_bytes()].copy_from_slice(value);
        Scalar { dtype, bytes }
    }

    /// `value` converted to `dtype` as [`crate::convert()`] does.
    pub fn from_f64(dtype: DType, value: f64) -> Self {
        dispatch!(dtype, T => Scalar::new::<T>(value.cast()))
    }

    /// The value as a double.
    pub fn to_f64(self) -> f64 {
        dispatch!(self.dtype, T => self.get::<T>().cast())
    }

    /// The value as a Rust type.
    ///
    /// # Panics
    /// If the value has another type.
    pub fn get<T: Element>(&self) -> T {
        assert_eq!(T::DTYPE, self.dtype, "a scalar is read as what it is");
        *bytemuck::from_bytes(self.bytes())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The value's bytes, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.0[..self.dtype.size_bytes()]
    }

    /// The value repeated over a shape.
    pub fn view(&self, shape: &[usize]) -> View<'_> {
        View::contiguous(self.bytes(), self.dtype, &[]).broadcast_to(shape)
    }
}
