//! Tensor values in memory, for constants, the interpreter and tests.

use crate::inert;
use crate::types::TensorType;
use half::{bf16, f16};
use partita_base::{DType, InertType};
use std::borrow::Cow;
use std::fmt;

/// Messages list up to this many equal elements one by one.
const SHOWN: usize = 1024;

macro_rules! storage {
    ($($variant:ident($ty:ty)),*) => {
        /// Row-major elements of one type.
        #[derive(Clone)]
        pub enum Storage {
            $(#[allow(missing_docs)] $variant(Vec<$ty>),)*
            /// One element, repeated: it is expanded only when single elements are changed.
            Splat(Box<Storage>, usize),
            /// Elements of a type that only the interpreter knows: the number, or real and
            /// imaginary part.
            Inert(InertType, Vec<[f64; 2]>),
        }

        impl Storage {
            /// The element type.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Storage::$variant(_) => DType::$variant,)*
                    Storage::Splat(one, _) => one.dtype(),
                    Storage::Inert(inert, _) => DType::Inert(*inert),
                }
            }
            /// The number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Storage::$variant(v) => v.len(),)*
                    Storage::Splat(_, count) => *count,
                    Storage::Inert(_, elements) => elements.len(),
                }
            }
            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool { self.len() == 0 }
            /// `count` default elements (zero, false).
            pub fn zeros(dtype: DType, count: usize) -> Storage {
                match dtype {
                    $(DType::$variant => Storage::$variant(vec![<$ty>::default(); count]),)*
                    DType::Inert(_) => Storage::from_f64(dtype, std::iter::repeat_n(0.0, count)),
                }
            }
            /// Elements converted from f64, each [rounded](Rounded) once.
            pub fn from_f64(dtype: DType, values: impl Iterator<Item = f64>) -> Storage {
                match dtype {
                    $(DType::$variant => Storage::$variant(values.map(<$ty>::rounded).collect()),)*
                    DType::Inert(inert) => Storage::from_complex(inert, values.map(|v| [v, 0.0])),
                }
            }
            /// The elements, expanded.
            pub fn filled(&self) -> Cow<'_, Storage> {
                let Storage::Splat(one, count) = self else { return Cow::Borrowed(self) };
                Cow::Owned(match &**one {
                    $(Storage::$variant(v) => Storage::$variant(vec![v[0]; *count]),)*
                    Storage::Inert(inert, v) => Storage::Inert(*inert, vec![v[0]; *count]),
                    Storage::Splat(..) => unreachable!("a splat repeats an element"),
                })
            }
            /// Little-endian bytes, booleans as 0 and 1.
            pub fn bytes(&self) -> Cow<'_, [u8]> {
                match self {
                    $(Storage::$variant(v) => Cow::Borrowed(bytemuck::cast_slice(v)),)*
                    Storage::Splat(one, count) => Cow::Owned(one.bytes().repeat(*count)),
                    Storage::Inert(inert, v) => {
                        Cow::Owned(v.iter().flat_map(|&v| inert::to_bytes(*inert, v)).collect())
                    }
                }
            }
            /// The elements at these positions.
            pub fn pick(&self, mut positions: impl Iterator<Item = usize>) -> Storage {
                match self {
                    $(Storage::$variant(v) => Storage::$variant(positions.map(|p| v[p]).collect()),)*
                    Storage::Inert(inert, v) => {
                        Storage::Inert(*inert, positions.map(|p| v[p]).collect())
                    }
                    Storage::Splat(one, count) => {
                        let picked = positions.by_ref().inspect(|p| assert!(p < count)).count();
                        one.repeated(picked)
                    }
                }
            }
            /// The first element, repeated.
            pub fn repeated(&self, count: usize) -> Storage {
                match self {
                    Storage::Splat(one, _) => one.repeated(count),
                    _ if count < 2 => self.pick(std::iter::repeat_n(0, count)),
                    _ => Storage::Splat(Box::new(self.pick(std::iter::once(0))), count),
                }
            }
            /// Copies element `from` of `source` to position `to`. The types must agree.
            pub fn put(&mut self, to: usize, source: &Storage, from: usize) {
                if let Storage::Splat(..) = self {
                    *self = self.filled().into_owned();
                }
                match (self, source) {
                    $((Storage::$variant(d), Storage::$variant(s)) => d[to] = s[from],)*
                    (Storage::Inert(_, d), Storage::Inert(_, s)) => d[to] = s[from],
                    (d, Storage::Splat(one, _)) => d.put(to, one, 0),
                    (d, s) => panic!("put of {} into {}", s.dtype(), d.dtype()),
                }
            }
        }

        impl PartialEq for Storage {
            /// Compares element by element: a splat equals its expanded form.
            fn eq(&self, other: &Storage) -> bool {
                match (self, other) {
                    $((Storage::$variant(a), Storage::$variant(b)) => a == b,)*
                    (Storage::Splat(a, n), Storage::Splat(b, m)) => n == m && a == b,
                    (Storage::Inert(a, v), Storage::Inert(b, w)) => a == b && v == w,
                    (Storage::Inert(..), Storage::Splat(..)) => *self == *other.filled(),
                    (Storage::Splat(..), Storage::Inert(..)) => *self.filled() == *other,
                    $((Storage::$variant(v), Storage::Splat(one, n)) | (Storage::Splat(one, n), Storage::$variant(v)) => {
                        v.len() == *n && matches!(&**one, Storage::$variant(o) if v.iter().all(|x| *x == o[0]))
                    })*
                    _ => false,
                }
            }
        }

        impl fmt::Debug for Storage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Storage::$variant(v) => f.debug_tuple(stringify!($variant)).field(v).finish(),)*
                    Storage::Inert(inert, v) => f.debug_tuple(inert.name()).field(v).finish(),
                    Storage::Splat(_, count) if *count <= SHOWN => self.filled().fmt(f),
                    Storage::Splat(one, count) => f.debug_tuple("Splat").field(one).field(count).finish(),
                }
            }
        }

        $(impl From<Vec<$ty>> for Storage {
            fn from(v: Vec<$ty>) -> Storage { Storage::$variant(v) }
        })*
    };
}
storage!(
    Bool(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    F16(f16),
    BF16(bf16),
    F32(f32),
    F64(f64)
);

impl Storage {
    /// Elements of a type that only the interpreter knows, each rounded once. Only complex types
    /// have a second part.
    pub fn from_complex(inert: InertType, values: impl Iterator<Item = [f64; 2]>) -> Storage {
        let (round, is_complex) = (inert::rounding(inert), DType::Inert(inert).is_complex());
        let element = |[re, im]: [f64; 2]| [round(re), if is_complex { round(im) } else { 0.0 }];
        Storage::Inert(inert, values.map(element).collect())
    }
}

/// A tensor value: type and elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Literal {
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements, row-major.
    pub data: Storage,
}

/// Calls a macro with each storage variant bound to its vector: `with_storage!(&lit.data, v => expression)`.
#[macro_export]
macro_rules! with_storage {
    ($storage:expr, $v:ident => $body:expr) => {
        match $storage {
            $crate::Storage::Bool($v) => $body,
            $crate::Storage::I8($v) => $body,
            $crate::Storage::I16($v) => $body,
            $crate::Storage::I32($v) => $body,
            $crate::Storage::I64($v) => $body,
            $crate::Storage::U8($v) => $body,
            $crate::Storage::U16($v) => $body,
            $crate::Storage::U32($v) => $body,
            $crate::Storage::U64($v) => $body,
            $crate::Storage::F16($v) => $body,
            $crate::Storage::BF16($v) => $body,
            $crate::Storage::F32($v) => $body,
            $crate::Storage::F64($v) => $body,
            $crate::Storage::Splat(..) | $crate::Storage::Inert(..) => {
                unreachable!("elements are numbers, and filled in, before they are changed")
            }
        }
    };
}

impl Literal {
    /// A value from its elements. Panics when the count does not fit the shape: callers check input first.
    pub fn new(shape: impl Into<Vec<usize>>, data: impl Into<Storage>) -> Literal {
        let data = data.into();
        let ty = TensorType::new(data.dtype(), shape);
        assert_eq!(ty.element_count(), data.len(), "elements of {ty}");
        Literal { ty, data }
    }

    /// Zeros (or false) of a type.
    pub fn zeros(ty: &TensorType) -> Literal {
        Literal { ty: ty.clone(), data: Storage::zeros(ty.dtype, ty.element_count()) }
    }

    /// A type filled with one number, converted from f64 (saturating for integers, nonzero is true).
    pub fn splat(ty: &TensorType, value: f64) -> Literal {
        let data = Storage::from_f64(ty.dtype, std::iter::once(value)).repeated(ty.element_count());
        Literal { ty: ty.clone(), data }
    }

    /// A type filled with one integer: exact for 64-bit values, which f64 is not.
    pub fn splat_int(ty: &TensorType, value: i128) -> Literal {
        let one = match ty.dtype {
            DType::I64 => Storage::I64(vec![value as i64]),
            DType::U64 => Storage::U64(vec![value as u64]),
            _ => return Literal::splat(ty, value as f64),
        };
        Literal { ty: ty.clone(), data: one.repeated(ty.element_count()) }
    }

    /// A value whose elements are converted from f64, rounded once.
    pub fn from_f64(ty: &TensorType, values: impl Iterator<Item = f64>) -> Literal {
        let data = Storage::from_f64(ty.dtype, values);
        let literal = Literal { ty: ty.clone(), data };
        assert_eq!(literal.data.len(), ty.element_count(), "elements of {ty}");
        literal
    }

    /// A scalar from f64.
    pub fn scalar(dtype: DType, value: f64) -> Literal {
        Literal::splat(&TensorType::scalar(dtype), value)
    }

    /// All elements as f64; 64-bit integers may round.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Storage::Bool(v) => v.iter().map(|&x| x as u8 as f64).collect(),
            Storage::I8(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::I16(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::I32(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::U8(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::U16(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::U32(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::U64(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Storage::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Storage::F32(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::F64(v) => v.clone(),
            Storage::Splat(one, count) => vec![self.one(one).to_f64()[0]; *count],
            Storage::Inert(_, v) => v.iter().map(|&[re, _]| re).collect(),
        }
    }

    /// All elements as real and imaginary parts.
    pub fn to_complex(&self) -> Vec<[f64; 2]> {
        match &self.data {
            Storage::Inert(_, v) => v.clone(),
            Storage::Splat(one, count) => vec![self.one(one).to_complex()[0]; *count],
            _ => self.to_f64().into_iter().map(|re| [re, 0.0]).collect(),
        }
    }

    /// A value of a complex type from real and imaginary parts, rounded once.
    ///
    /// # Panics
    /// When the type is not complex, or the number of elements does not fit.
    pub fn from_complex(ty: &TensorType, values: impl Iterator<Item = [f64; 2]>) -> Literal {
        let DType::Inert(inert) = ty.dtype else { panic!("complex elements of {ty}") };
        let literal = Literal { ty: ty.clone(), data: Storage::from_complex(inert, values) };
        assert_eq!(literal.data.len(), ty.element_count(), "elements of {ty}");
        literal
    }

    /// The element of a splat.
    fn one(&self, element: &Storage) -> Literal {
        Literal { ty: TensorType::scalar(self.ty.dtype), data: element.clone() }
    }

    /// A value whose elements are converted from integers: wrapped to integer types, rounded once to float
    /// types, nonzero is true.
    pub fn from_i128(ty: &TensorType, values: impl Iterator<Item = i128>) -> Literal {
        let data = match ty.dtype {
            DType::Bool => Storage::Bool(values.map(|v| v != 0).collect()),
            DType::I8 => Storage::I8(values.map(|v| v as i8).collect()),
            DType::I16 => Storage::I16(values.map(|v| v as i16).collect()),
            DType::I32 => Storage::I32(values.map(|v| v as i32).collect()),
            DType::I64 => Storage::I64(values.map(|v| v as i64).collect()),
            DType::U8 => Storage::U8(values.map(|v| v as u8).collect()),
            DType::U16 => Storage::U16(values.map(|v| v as u16).collect()),
            DType::U32 => Storage::U32(values.map(|v| v as u32).collect()),
            DType::U64 => Storage::U64(values.map(|v| v as u64).collect()),
            // What f32 cannot hold exactly is infinite in f16.
            DType::F16 => Storage::F16(values.map(|v| f16::from_f32(v as f32)).collect()),
            DType::BF16 => Storage::BF16(values.map(bf16_from_i128).collect()),
            DType::F32 => Storage::F32(values.map(|v| v as f32).collect()),
            DType::F64 => Storage::F64(values.map(|v| v as f64).collect()),
            DType::Inert(inert) => {
                Storage::from_f64(ty.dtype, values.map(|v| inert::wrapped(inert, v) as f64))
            }
        };
        let literal = Literal { ty: ty.clone(), data };
        assert_eq!(literal.data.len(), ty.element_count(), "elements of {ty}");
        literal
    }

    /// All elements as integers, exactly. Floats truncate, booleans are 0 and 1.
    pub fn to_i128(&self) -> Vec<i128> {
        match &self.data {
            Storage::I64(v) => v.iter().map(|&x| x.into()).collect(),
            Storage::U64(v) => v.iter().map(|&x| x.into()).collect(),
            Storage::Splat(one, count) => vec![self.one(one).to_i128()[0]; *count],
            _ => self.to_f64().into_iter().map(|v| v as i128).collect(),
        }
    }

    /// All elements as i64, for index operands. Floats truncate, booleans are 0 and 1.
    pub fn to_i64(&self) -> Vec<i64> {
        match &self.data {
            Storage::I64(v) => v.clone(),
            Storage::U64(v) => v.iter().map(|&x| i64::try_from(x).unwrap_or(i64::MAX)).collect(),
            Storage::Splat(one, count) => vec![self.one(one).to_i64()[0]; *count],
            _ => self.to_f64().into_iter().map(|v| v as i64).collect(),
        }
    }

    /// Whether every element equals the first, bit for bit; true for fewer than two elements.
    pub fn is_splat(&self) -> bool {
        if let Storage::Splat(..) = self.data {
            return true;
        }
        let size = self.ty.dtype.size_bytes();
        let bytes = self.bytes();
        bytes.chunks(size).all(|c| c == &bytes[..size])
    }

    /// Little-endian bytes, booleans as 0 and 1.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        self.data.bytes()
    }

    /// [`Literal::bytes`], owned.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes().into_owned()
    }

    /// The inverse of [`Literal::to_bytes`]; `None` when the byte count does not fit the type.
    pub fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Option<Literal> {
        if bytes.len() != ty.bytes() {
            return None;
        }
        fn cast<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
            bytemuck::allocation::pod_collect_to_vec(bytes)
        }
        let data = match ty.dtype {
            DType::Bool => Storage::Bool(bytes.iter().map(|&b| b != 0).collect()),
            DType::I8 => Storage::I8(cast(bytes)),
            DType::I16 => Storage::I16(cast(bytes)),
            DType::I32 => Storage::I32(cast(bytes)),
            DType::I64 => Storage::I64(cast(bytes)),
            DType::U8 => Storage::U8(bytes.to_vec()),
            DType::U16 => Storage::U16(cast(bytes)),
            DType::U32 => Storage::U32(cast(bytes)),
            DType::U64 => Storage::U64(cast(bytes)),
            DType::F16 => Storage::F16(cast(bytes)),
            DType::BF16 => Storage::BF16(cast(bytes)),
            DType::F32 => Storage::F32(cast(bytes)),
            DType::F64 => Storage::F64(cast(bytes)),
            DType::Inert(inert) => {
                let elements = bytes.chunks(inert.size_bytes());
                Storage::Inert(inert, elements.map(|bytes| inert::from_bytes(inert, bytes)).collect())
            }
        };
        Some(Literal { ty: ty.clone(), data })
    }

    /// As [`Literal::from_bytes`], of bytes that `write` puts where the elements are: it gets zeros, [`TensorType::bytes`]
    /// of them.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn written<E>(ty: &TensorType, write: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Literal, E> {
        fn fill<T: bytemuck::Pod, E>(
            count: usize,
            write: impl FnOnce(&mut [u8]) -> Result<(), E>,
        ) -> Result<Vec<T>, E> {
            let mut elements = vec![T::zeroed(); count];
            write(bytemuck::cast_slice_mut(&mut elements))?;
            Ok(elements)
        }
        let count = ty.element_count();
        let data = match ty.dtype {
            DType::I8 => Storage::I8(fill(count, write)?),
            DType::I16 => Storage::I16(fill(count, write)?),
            DType::I32 => Storage::I32(fill(count, write)?),
            DType::I64 => Storage::I64(fill(count, write)?),
            DType::U8 => Storage::U8(fill(count, write)?),
            DType::U16 => Storage::U16(fill(count, write)?),
            DType::U32 => Storage::U32(fill(count, write)?),
            DType::U64 => Storage::U64(fill(count, write)?),
            DType::F16 => Storage::F16(fill(count, write)?),
            DType::BF16 => Storage::BF16(fill(count, write)?),
            DType::F32 => Storage::F32(fill(count, write)?),
            DType::F64 => Storage::F64(fill(count, write)?),
            // Their elements are no numbers as they are in bytes.
            DType::Bool | DType::Inert(_) => {
                let bytes: Vec<u8> = fill(ty.bytes(), write)?;
                return Ok(Literal::from_bytes(ty, &bytes).expect("the bytes of the type"));
            }
        };
        Ok(Literal { ty: ty.clone(), data })
    }

    /// The box of extents `shape` at `offset`.
    pub fn window(&self, offset: &[usize], shape: &[usize]) -> Literal {
        let strides = self.ty.strides();
        let data = self.data.pick(indices(shape).map(|index| {
            index.iter().zip(offset).zip(&strides).map(|((i, o), s)| (i + o) * s).sum::<usize>()
        }));
        Literal { ty: self.ty.with_shape(shape), data }
    }

    /// Writes `piece` into the box at `offset`.
    pub fn set_window(&mut self, offset: &[usize], piece: &Literal) {
        let strides = self.ty.strides();
        for (from, index) in indices(&piece.ty.shape).enumerate() {
            let to = index.iter().zip(offset).zip(&strides).map(|((i, o), s)| (i + o) * s).sum();
            self.data.put(to, &piece.data, from);
        }
    }
}

/// Conversion of an f64 to an element: rounded once to floats, saturated to integers; nonzero is
/// true.
pub trait Rounded: Copy + PartialEq {
    /// The element nearest to `value`.
    fn rounded(value: f64) -> Self;
}

macro_rules! rounded {
    ($($ty:ty: $v:ident => $element:expr),* $(,)?) => {
        $(impl Rounded for $ty {
            fn rounded($v: f64) -> $ty { $element }
        })*
    };
}
rounded!(
    bool: v => v != 0.0,
    i8: v => v as i8,
    i16: v => v as i16,
    i32: v => v as i32,
    i64: v => v as i64,
    u8: v => v as u8,
    u16: v => v as u16,
    u32: v => v as u32,
    u64: v => v as u64,
    f16: v => f16::from_f32(round_to_odd(v)),
    bf16: v => bf16::from_f32(round_to_odd(v)),
    f32: v => v as f32,
    f64: v => v,
);

/// Rounds to odd: the f32 toward zero, with its last bit set if precision was lost. Rounding the
/// result again to a type of at most 22 significant bits equals rounding `value` once.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if nearest as f64 == value || !nearest.is_finite() {
        return nearest;
    }
    let away = (nearest.abs() as f64) > value.abs();
    f32::from_bits((nearest.to_bits() - away as u32) | 1)
}

/// `round_to_odd` for an integer that f64 may not hold.
fn bf16_from_i128(value: i128) -> bf16 {
    let nearest = value as f32;
    if nearest as i128 == value {
        return bf16::from_f32(nearest);
    }
    let away = (nearest as i128).abs() > value.abs();
    bf16::from_f32(f32::from_bits((nearest.to_bits() - away as u32) | 1))
}

/// Every index of `shape` in row-major order; one empty index for a scalar, none when an extent is 0.
pub fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let total: usize = shape.iter().product();
    let mut index = vec![0usize; shape.len()];
    (0..total).map(move |position| {
        if position > 0 {
            for dim in (0..shape.len()).rev() {
                index[dim] += 1;
                if index[dim] < shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
        index.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        let round = |dtype, value| Literal::scalar(dtype, value).to_f64()[0];
        // Just above the middle between 1 and the next f16: rounding through f32 would return to 1.
        assert_eq!(round(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 1.0 + 2f64.powi(-10));
        assert_eq!(round(DType::F16, 1.0 + 2f64.powi(-11)), 1.0);
        assert_eq!(round(DType::BF16, -(1.0 + 2f64.powi(-8) + 2f64.powi(-40))), -(1.0 + 2f64.powi(-7)));
        assert_eq!(round(DType::BF16, 1.0 + 2f64.powi(-8) - 2f64.powi(-40)), 1.0);
        assert_eq!(round(DType::F16, 1e30), f64::INFINITY);
        assert!(round(DType::BF16, f64::NAN).is_nan());
        assert_eq!(round(DType::F16, -1e-300), 0.0);
        let from_int = |value| Literal::from_i128(&TensorType::scalar(DType::BF16), [value].into_iter());
        assert_eq!(from_int((1 << 40) + (1 << 32) + 1).to_f64(), [(1u64 << 40) as f64 + (1u64 << 33) as f64]);
        assert_eq!(from_int((1 << 40) + (1 << 32)).to_f64(), [(1u64 << 40) as f64]);
    }

    #[test]
    fn elements_that_are_written_in_place_are_those_of_their_bytes() {
        for dtype in DType::ALL {
            let ty = TensorType::new(dtype, [3, 2]);
            let value = Literal::from_f64(&ty, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0].into_iter());
            let written = Literal::written(&ty, |into| {
                assert!(into.len() == ty.bytes() && into.iter().all(|&byte| byte == 0));
                into.copy_from_slice(&value.bytes());
                Ok::<(), ()>(())
            });
            assert_eq!(written, Ok(value));
            assert_eq!(Literal::written(&ty, |_| Err("refused")), Err("refused"));
        }
    }

    #[test]
    fn a_splat_is_what_it_stands_for() {
        for dtype in DType::ALL {
            let ty = TensorType::new(dtype, [3, 2]);
            let (splat, full) = (Literal::splat(&ty, 1.0), Literal::from_f64(&ty, [1.0; 6].into_iter()));
            assert!(matches!(splat.data, Storage::Splat(..)) && !matches!(full.data, Storage::Splat(..)));
            assert_eq!(splat, full);
            assert_eq!((splat.to_bytes(), splat.to_f64()), (full.to_bytes(), full.to_f64()));
            assert_eq!((splat.to_i64(), splat.to_i128()), (full.to_i64(), full.to_i128()));
            assert_eq!((splat.data.len(), splat.data.dtype(), splat.is_splat()), (6, dtype, true));
            assert_eq!(format!("{splat:?}"), format!("{full:?}"));
            assert_eq!(splat.window(&[1, 0], &[2, 1]), full.window(&[1, 0], &[2, 1]));
            let mut changed = splat.clone();
            changed.set_window(&[1, 1], &Literal::splat(&ty.with_shape([1, 1]), 0.0));
            assert_eq!(changed.to_f64(), [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
            assert!(changed != splat && !changed.is_splat());
        }
        // With zero or one elements a splat saves nothing.
        let small = |shape: &[usize]| Literal::splat(&TensorType::new(DType::F32, shape), 2.0).data;
        assert_eq!(format!("{:?} {:?}", small(&[]), small(&[0, 4])), "F32([2.0]) F32([])");
        assert!(matches!(small(&[]), Storage::F32(_)) && matches!(small(&[0, 4]), Storage::F32(_)));
        let largest = Literal::splat_int(&TensorType::new(DType::U64, [1 << 40]), u64::MAX as i128);
        assert_eq!(largest.data.pick([0, 1 << 39].into_iter()), vec![u64::MAX; 2].into());
    }

    #[test]
    fn integers_keep_all_their_bits() {
        let ty = TensorType::new(DType::U64, [2]);
        let literal = Literal::from_i128(&ty, [u64::MAX as i128, -1].into_iter());
        assert_eq!(literal.to_i128(), [u64::MAX as i128; 2]);
        let wrapped = Literal::from_i128(&TensorType::new(DType::I8, [2]), [130, -129].into_iter());
        assert_eq!(wrapped.to_i128(), [-126, 127]);
    }
}
