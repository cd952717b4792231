//! Elementwise functions of two tensors of one type.

use crate::options::KernelOptions;
use bytemuck::cast_slice;
use partita_base::DType;

use crate::element::Element;
use crate::element::{Bits, Number, Real, dispatch};
use crate::native::levels::multiversion;
use crate::tiles::map_tiles;
use crate::view::{View, ViewMut};

/// An elementwise function of two arguments of one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Binary {
    /// Sum; integers wrap; *or* of bools.
    Add,
    /// Difference; any type but bool.
    Sub,
    /// Product; integers wrap; *and* of bools.
    Mul,
    /// Quotient, truncated for integers, all ones where they divide by zero; any type but bool.
    Div,
    /// The larger argument; NaN if either is; *or* of bools.
    Max,
    /// The smaller argument; NaN if either is; *and* of bools.
    Min,
    /// Remainder with the sign of the dividend; for integer division by zero, the dividend; any type but
    /// bool.
    Rem,
    /// Power; integers wrap, and a negative exponent truncates; any type but bool.
    Pow,
    /// The angle of the point (second, first); floats.
    Atan2,
    /// Bitwise and; integers and bool, as for `Or` and `Xor`.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Shift left; a count outside `0..bits` gives 0; integers, as for the other shifts.
    ShiftLeft,
    /// Shift right with zeros; a count outside `0..bits` gives 0.
    ShiftRightLogical,
    /// Shift right with the sign; a count outside `0..bits` gives only copies of the sign.
    ShiftRightArithmetic,
}

impl Binary {
    /// Every function, in declaration order.
    pub const ALL: [Binary; 15] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Rem,
        Binary::Pow,
        Binary::Atan2,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::ShiftLeft,
        Binary::ShiftRightLogical,
        Binary::ShiftRightArithmetic,
    ];

    /// Whether the function is defined on a type.
    pub fn supports(self, dtype: DType) -> bool {
        match self {
            Binary::Add | Binary::Mul | Binary::Max | Binary::Min => true,
            Binary::Sub | Binary::Div | Binary::Rem | Binary::Pow => dtype != DType::Bool,
            Binary::Atan2 => dtype.is_float(),
            Binary::And | Binary::Or | Binary::Xor => !dtype.is_float(),
            Binary::ShiftLeft | Binary::ShiftRightLogical | Binary::ShiftRightArithmetic => {
                dtype.is_integer()
            }
        }
    }
}

/// A function of two elements as a type, so that its loop is compiled for it alone.
trait Zip<T> {
    fn apply(a: T, b: T) -> T;
}

multiversion! {
    fn zip[T: Element, F: Zip<T>; T](a: &[u8], b: &[u8], out: &mut [u8]) {
        let (a, b, out): (&[T], &[T], &mut [T]) = (cast_slice(a), cast_slice(b), bytemuck::cast_slice_mut(out));
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = F::apply(a, b);
        }
    }
}

macro_rules! functions {
    ($bound:ident: $($name:ident = $method:ident;)*) => {$(
        struct $name;
        impl<T: Element<Compute: $bound>> Zip<T> for $name {
            #[inline(always)]
            fn apply(a: T, b: T) -> T {
                T::store(a.load().$method(b.load()))
            }
        }
    )*};
}
functions! { Number: Add = plus; Sub = minus; Mul = times; Div = over; Max = maximum; Min = minimum; Rem = rem; Pow = pow; }
functions! { Real: Atan2 = atan2; }
functions! { Bits:
    And = and;
    Or = or;
    Xor = xor;
    ShiftLeft = shift_left;
    ShiftRightLogical = shift_right_logical;
    ShiftRightArithmetic = shift_right_arithmetic;
}

/// `out[i] = op(a[i], b[i])` over the bytes of one tile.
pub(crate) fn binary_tile(
    options: KernelOptions,
    op: Binary,
    dtype: DType,
    a: &[u8],
    b: &[u8],
    out: &mut [u8],
) {
    macro_rules! arms {
        ($T:ty: $($name:ident)*) => {
            match op {
                $(Binary::$name => zip::<$T, $name>(options, a, b, out),)*
                _ => unreachable!("the arms cover the family"),
            }
        };
    }
    match op {
        Binary::Atan2 => dispatch!(float dtype, T => zip::<T, Atan2>(options, a, b, out)),
        Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::ShiftLeft
        | Binary::ShiftRightLogical
        | Binary::ShiftRightArithmetic => {
            dispatch!(bits dtype, T => arms!(T: And Or Xor ShiftLeft ShiftRightLogical ShiftRightArithmetic))
        }
        _ => dispatch!(dtype, T => arms!(T: Add Sub Mul Div Max Min Rem Pow)),
    }
}

/// `out = op(a, b)`, elementwise; a stride of zero broadcasts. f16 and bf16 compute in f32 and round once.
///
/// # Panics
/// Where shapes or types differ or the function is not defined on the type ([`Binary::supports`]).
pub fn binary(options: KernelOptions, op: Binary, a: &View<'_>, b: &View<'_>, out: &mut ViewMut<'_>) {
    let dtype = a.dtype();
    assert!(op.supports(dtype), "{op:?} is not defined on {dtype}");
    assert!(
        b.dtype() == dtype && out.dtype() == dtype,
        "{op:?} needs one type, not {dtype} and {}",
        b.dtype()
    );
    map_tiles([a, b], out, |[a, b], out| binary_tile(options, op, dtype, a, b, out));
}
