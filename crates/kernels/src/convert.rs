//! Conversion between element types, and reinterpretation of bits.

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};
use partita_base::DType;

use crate::element::dispatch;
use crate::element::{Bool, Element, Float};
use crate::native::levels::multiversion;
use crate::options::KernelOptions;
use crate::tiles::map_tiles;
use crate::view::{View, ViewMut};

/// Conversion of one element type to another.
pub(crate) trait Cast<T> {
    /// Integers wrap. Floats become integers by truncation towards zero, saturated, with NaN as 0. Conversion
    /// to a float rounds to nearest. Conversion to bool is `x != 0`.
    fn cast(self) -> T;
}

/// Conversions for which Rust's `as` does what [`Cast`] promises.
macro_rules! native {
    ($from:ty: $($to:ty)*) => {$(
        impl Cast<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
        }
    )*};
}
/// Conversions of a native type to and from the other types.
macro_rules! all {
    ($($from:ident)*) => {$(
        native!($from: i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
        impl Cast<Bool> for $from {
            #[inline(always)]
            fn cast(self) -> Bool {
                Bool::from(self != 0 as $from)
            }
        }
        impl Cast<$from> for Bool {
            #[inline(always)]
            fn cast(self) -> $from {
                u8::from(self.get()) as $from
            }
        }
        impl Cast<$from> for f16 {
            #[inline(always)]
            fn cast(self) -> $from {
                self.load() as $from
            }
        }
        impl Cast<$from> for bf16 {
            #[inline(always)]
            fn cast(self) -> $from {
                self.load() as $from
            }
        }
    )*};
}
all!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);

/// Rounds to odd: the f32 next to `x` whose last bit is odd, or `x` itself if it has one. Rounding that to
/// f16 or bf16 equals rounding `x` directly, because the first rounding creates no ties.
#[inline(always)]
fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let wide = f64::from(nearest);
    let bits = nearest.to_bits();
    if wide == x || bits & 1 == 1 || x.is_nan() {
        return nearest;
    }
    f32::from_bits(if wide.abs() > x.abs() { bits - 1 } else { bits + 1 })
}

/// Conversions to f16 and bf16, each by one rounding from a type that holds the source exactly (except
/// integers above 2^53).
macro_rules! to_halves {
    ($($half:ident)*: $from:ident via $via:ident $to_f32:expr) => {$(
        impl Cast<$half> for $from {
            #[inline(always)]
            fn cast(self) -> $half {
                let wide: $via = self.cast();
                $half::store($to_f32(wide))
            }
        }
    )*};
    (via f32: $($from:ident)*) => {$( to_halves! { f16 bf16: $from via f32 |x| x } )*};
    (via f64: $($from:ident)*) => {$( to_halves! { f16 bf16: $from via f64 round_to_odd } )*};
}
to_halves! { via f32: Bool i8 u8 i16 u16 f32 bf16 f16 }
to_halves! { via f64: i32 u32 i64 u64 f64 }
macro_rules! same_truth {
    ($($from:ident: $x:ident => $value:expr;)*) => {$(
        impl Cast<Bool> for $from {
            #[inline(always)]
            fn cast(self) -> Bool {
                let $x = self;
                $value
            }
        }
    )*};
}
same_truth! {
    Bool: x => Bool::from(x.get());
    f16: x => Bool::from(x.load() != 0.0);
    bf16: x => Bool::from(x.load() != 0.0);
}

fn cast_all<A: Element + Cast<B>, B: Element>(x: &[u8], out: &mut [u8]) {
    let (x, out): (&[A], &mut [B]) = (cast_slice(x), cast_slice_mut(out));
    for (out, &x) in out.iter_mut().zip(x) {
        *out = x.cast();
    }
}

multiversion! {
    /// [`cast_all`] compiled for each level: between f32 and the types of half its size, which mixed precision converts
    /// all the time.
    fn cast_halves[A: Float<Compute = f32>, B: Float<Compute = f32>](x: &[u8], out: &mut [u8]) {
        let (x, out): (&[A], &mut [B]) = (cast_slice(x), cast_slice_mut(out));
        for (out, &x) in out.iter_mut().zip(x) {
            *out = B::store(x.load());
        }
    }
}

/// `out[i] = x[i]` in another type, over the bytes of one tile.
pub(crate) fn convert_tile(options: KernelOptions, from: DType, to: DType, x: &[u8], out: &mut [u8]) {
    match (from, to) {
        (from, to) if from == to && from != DType::Bool => out.copy_from_slice(x),
        (DType::BF16, DType::F32) => cast_halves::<bf16, f32>(options, x, out),
        (DType::F32, DType::BF16) => cast_halves::<f32, bf16>(options, x, out),
        (DType::F16, DType::F32) => cast_halves::<f16, f32>(options, x, out),
        (DType::F32, DType::F16) => cast_halves::<f32, f16>(options, x, out),
        _ => dispatch!(from, A => dispatch!(to, B => cast_all::<A, B>(x, out))),
    }
}

/// `out = x` in the type of `out`. Integers wrap; floats become integers by truncation, saturated, with NaN
/// as 0; floats round to nearest even; conversion to bool is `x != 0`.
///
/// # Panics
/// Where shapes differ.
pub fn convert(options: KernelOptions, x: &View<'_>, out: &mut ViewMut<'_>) {
    let (from, to) = (x.dtype(), out.dtype());
    map_tiles([x], out, |[x], out| convert_tile(options, from, to, x, out));
}

/// Reinterprets the bits of `x` in the type of `out`, which has the same size.
///
/// # Panics
/// Where shapes or element sizes differ.
pub fn bitcast(x: &View<'_>, out: &mut ViewMut<'_>) {
    let (from, to) = (x.dtype(), out.dtype());
    assert_eq!(from.size_bytes(), to.size_bytes(), "a bitcast keeps the size: {from} to {to}");
    map_tiles([x], out, |[x], out| out.copy_from_slice(x));
}
