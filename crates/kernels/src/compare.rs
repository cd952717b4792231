//! Elementwise comparisons, `select` and `clamp`.

use crate::options::KernelOptions;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use partita_base::DType;

use crate::element::{Bool, Element};
use crate::element::{Float, Number, Real, dispatch};
use crate::native::levels::multiversion;
use crate::tiles::map_tiles;
use crate::view::{View, ViewMut};

/// Which relation a comparison tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Direction {
    /// Every relation, in declaration order.
    pub const ALL: [Direction; 6] =
        [Direction::Eq, Direction::Ne, Direction::Lt, Direction::Le, Direction::Gt, Direction::Ge];
}

/// What is compared: the number itself, or its position in the total order.
trait Key<T> {
    type Key: PartialOrd;
    fn key(x: T) -> Self::Key;
}
struct Value;
impl<T: Element> Key<T> for Value {
    type Key = T::Compute;
    #[inline(always)]
    fn key(x: T) -> T::Compute {
        x.load()
    }
}
struct TotalOrder;
impl<T: Float> Key<T> for TotalOrder {
    type Key = i64;
    #[inline(always)]
    fn key(x: T) -> i64 {
        x.load().total_order_key()
    }
}

trait Relation {
    fn holds<K: PartialOrd>(a: K, b: K) -> bool;
}
macro_rules! relations {
    ($($name:ident($a:ident, $b:ident) = $body:expr;)*) => {$(
        struct $name;
        impl Relation for $name {
            #[inline(always)]
            fn holds<K: PartialOrd>($a: K, $b: K) -> bool {
                $body
            }
        }
    )*};
}
relations! {
    Eq(a, b) = a == b;
    Ne(a, b) = a != b;
    Lt(a, b) = a < b;
    Le(a, b) = a <= b;
    Gt(a, b) = a > b;
    Ge(a, b) = a >= b;
}

multiversion! {
    fn relate[T: Element, K: Key<T>, R: Relation; T](a: &[u8], b: &[u8], out: &mut [u8]) {
        let (a, b, out): (&[T], &[T], &mut [Bool]) = (cast_slice(a), cast_slice(b), cast_slice_mut(out));
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = Bool::from(R::holds(K::key(a), K::key(b)));
        }
    }
}

/// `out[i] = a[i] ~ b[i]` over the bytes of one tile.
pub(crate) fn compare_tile(
    options: KernelOptions,
    direction: Direction,
    total_order: bool,
    dtype: DType,
    a: &[u8],
    b: &[u8],
    out: &mut [u8],
) {
    macro_rules! arms {
        ($T:ty, $K:ty: $($name:ident)*) => {
            match direction { $(Direction::$name => relate::<$T, $K, $name>(options, a, b, out),)* }
        };
    }
    if total_order && dtype.is_float() {
        dispatch!(float dtype, T => arms!(T, TotalOrder: Eq Ne Lt Le Gt Ge))
    } else {
        dispatch!(dtype, T => arms!(T, Value: Eq Ne Lt Le Gt Ge))
    }
}

/// `out = a ~ b`, elementwise, as bool. Floats compare by IEEE 754 (NaN is unequal to everything); with
/// `total_order`, by bits: -NaN < -inf < .. < -0 < +0 < .. < inf < NaN.
///
/// # Panics
/// Where shapes or types differ, or `out` is not bool.
pub fn compare(
    options: KernelOptions,
    direction: Direction,
    total_order: bool,
    a: &View<'_>,
    b: &View<'_>,
    out: &mut ViewMut<'_>,
) {
    let dtype = a.dtype();
    assert!(b.dtype() == dtype, "a comparison needs one type, not {dtype} and {}", b.dtype());
    assert!(out.dtype() == DType::Bool, "a comparison gives bool, not {}", out.dtype());
    map_tiles([a, b], out, |[a, b], out| compare_tile(options, direction, total_order, dtype, a, b, out));
}

multiversion! {
    fn choose[W: Pod](pred: &[u8], a: &[u8], b: &[u8], out: &mut [u8]) {
        let (a, b, out): (&[W], &[W], &mut [W]) = (cast_slice(a), cast_slice(b), cast_slice_mut(out));
        for (((out, &a), &b), &pred) in out.iter_mut().zip(a).zip(b).zip(pred) {
            *out = if pred != 0 { a } else { b };
        }
    }
}

/// `out[i] = if pred[i] { a[i] } else { b[i] }` over the bytes of one tile.
pub(crate) fn select_tile(
    options: KernelOptions,
    dtype: DType,
    pred: &[u8],
    a: &[u8],
    b: &[u8],
    out: &mut [u8],
) {
    match dtype.size_bytes() {
        1 => choose::<u8>(options, pred, a, b, out),
        2 => choose::<u16>(options, pred, a, b, out),
        4 => choose::<u32>(options, pred, a, b, out),
        _ => choose::<u64>(options, pred, a, b, out),
    }
}

/// `out = if pred { a } else { b }`, elementwise; `pred` may also be a scalar (rank 0).
///
/// # Panics
/// Where shapes differ, `pred` is not bool, or the types of `a`, `b` and `out` differ.
pub fn select(options: KernelOptions, pred: &View<'_>, a: &View<'_>, b: &View<'_>, out: &mut ViewMut<'_>) {
    let dtype = a.dtype();
    assert!(pred.dtype() == DType::Bool, "select chooses by bool, not {}", pred.dtype());
    assert!(b.dtype() == dtype && out.dtype() == dtype, "select needs one type");
    let pred = if pred.rank() == 0 { pred.broadcast_to(out.shape()) } else { *pred };
    map_tiles([&pred, a, b], out, |[pred, a, b], out| select_tile(options, dtype, pred, a, b, out));
}

multiversion! {
    fn bound[T: Element; T](low: &[u8], x: &[u8], high: &[u8], out: &mut [u8]) {
        let (low, x): (&[T], &[T]) = (cast_slice(low), cast_slice(x));
        let (high, out): (&[T], &mut [T]) = (cast_slice(high), cast_slice_mut(out));
        for (((out, &x), &low), &high) in out.iter_mut().zip(x).zip(low).zip(high) {
            *out = T::store(x.load().maximum(low.load()).minimum(high.load()));
        }
    }
}

/// `out[i] = min(max(x[i], low[i]), high[i])` over the bytes of one tile.
pub(crate) fn clamp_tile(
    options: KernelOptions,
    dtype: DType,
    low: &[u8],
    x: &[u8],
    high: &[u8],
    out: &mut [u8],
) {
    dispatch!(dtype, T => bound::<T>(options, low, x, high, out))
}

/// `out = min(max(x, low), high)`, elementwise; NaN if any argument is. `low` and `high` may also be scalars
/// (rank 0).
///
/// # Panics
/// Where shapes or types differ.
pub fn clamp(options: KernelOptions, low: &View<'_>, x: &View<'_>, high: &View<'_>, out: &mut ViewMut<'_>) {
    let dtype = x.dtype();
    assert!(low.dtype() == dtype && high.dtype() == dtype && out.dtype() == dtype, "clamp needs one type");
    let spread = |view: &View<'_>| view.rank() == 0;
    let low = if spread(low) { low.broadcast_to(out.shape()) } else { *low };
    let high = if spread(high) { high.broadcast_to(out.shape()) } else { *high };
    map_tiles([&low, x, &high], out, |[low, x, high], out| clamp_tile(options, dtype, low, x, high, out));
}
