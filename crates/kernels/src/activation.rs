//! Activation functions (GELU, SiLU, ..) and their gradients, element by element.

use crate::options::KernelOptions;
use bytemuck::{cast_slice, cast_slice_mut};

use crate::element::Float;
use crate::element::{Real, dispatch};
use crate::native::levels::multiversion;
use crate::tiles::map_tiles;
use crate::view::{View, ViewMut};

/// An activation function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Activation {
    /// x Phi(x), where Phi is the normal distribution function, computed with `erf`.
    Gelu,
    /// x Phi(x), with Phi approximated by `tanh`: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
    GeluTanh,
    /// x / (1 + e^-x)
    Silu,
}

trait Gate<C> {
    fn value(x: C) -> C;
    fn derivative(x: C) -> C;
}

struct Gelu;
impl<C: Real> Gate<C> for Gelu {
    #[inline(always)]
    fn value(x: C) -> C {
        let half = C::from_f64(0.5);
        half * x * (C::ONE + (x * C::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
    }
    #[inline(always)]
    fn derivative(x: C) -> C {
        let half = C::from_f64(0.5);
        let distribution = half * (C::ONE + (x * C::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf());
        let density = C::from_f64(0.398_942_280_401_432_7) * (-(half * x * x)).exp();
        distribution + x * density
    }
}

/// sqrt(2 / pi)
const SLOPE: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

struct GeluTanh;
impl<C: Real> Gate<C> for GeluTanh {
    // 0.5 (1 + tanh(u)) is the logistic function of 2 u, which is cheaper, and accurate in the tail.
    #[inline(always)]
    fn value(x: C) -> C {
        let inner = C::from_f64(2.0 * SLOPE) * x * (C::ONE + C::from_f64(CUBIC) * x * x);
        x * inner.logistic()
    }
    #[inline(always)]
    fn derivative(x: C) -> C {
        let gate = (C::from_f64(2.0 * SLOPE) * x * (C::ONE + C::from_f64(CUBIC) * x * x)).logistic();
        let slope = C::from_f64(2.0 * SLOPE) * (C::ONE + C::from_f64(3.0 * CUBIC) * x * x);
        gate + x * gate * (C::ONE - gate) * slope
    }
}

struct Silu;
impl<C: Real> Gate<C> for Silu {
    #[inline(always)]
    fn value(x: C) -> C {
        x * x.logistic()
    }
    #[inline(always)]
    fn derivative(x: C) -> C {
        let gate = x.logistic();
        gate * (C::ONE + x * (C::ONE - gate))
    }
}

multiversion! {
    fn values[T: Float, G: Gate<T::Compute>; T](x: &[u8], out: &mut [u8]) {
        let (x, out): (&[T], &mut [T]) = (cast_slice(x), cast_slice_mut(out));
        for (out, &x) in out.iter_mut().zip(x) {
            *out = T::store(G::value(x.load()));
        }
    }
}

multiversion! {
    fn gradients[T: Float, G: Gate<T::Compute>; T](x: &[u8], dy: &[u8], dx: &mut [u8]) {
        let (x, dy, dx): (&[T], &[T], &mut [T]) = (cast_slice(x), cast_slice(dy), cast_slice_mut(dx));
        for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
            *dx = T::store(dy.load() * G::derivative(x.load()));
        }
    }
}

/// `out = activation(x)`, elementwise. Float types; f16 and bf16 compute in f32 and round once.
///
/// # Panics
/// Where shapes or types differ.
pub fn activation(options: KernelOptions, kind: Activation, x: &View<'_>, out: &mut ViewMut<'_>) {
    assert_eq!(x.dtype(), out.dtype(), "an activation keeps the type");
    dispatch!(float x.dtype(), T => match kind {
        Activation::Gelu => map_tiles([x], out, |[x], out| values::<T, Gelu>(options, x, out)),
        Activation::GeluTanh => map_tiles([x], out, |[x], out| values::<T, GeluTanh>(options, x, out)),
        Activation::Silu => map_tiles([x], out, |[x], out| values::<T, Silu>(options, x, out)),
    })
}

/// `dx = dy activation'(x)`, elementwise.
///
/// # Panics
/// Where shapes or types differ.
pub fn activation_backward(
    options: KernelOptions,
    kind: Activation,
    x: &View<'_>,
    dy: &View<'_>,
    dx: &mut ViewMut<'_>,
) {
    assert!(x.dtype() == dx.dtype() && dy.dtype() == dx.dtype(), "an activation keeps the type");
    dispatch!(float x.dtype(), T => match kind {
        Activation::Gelu => map_tiles([x, dy], dx, |[x, dy], dx| gradients::<T, Gelu>(options, x, dy, dx)),
        Activation::GeluTanh => map_tiles([x, dy], dx, |[x, dy], dx| gradients::<T, GeluTanh>(options, x, dy, dx)),
        Activation::Silu => map_tiles([x, dy], dx, |[x, dy], dx| gradients::<T, Silu>(options, x, dy, dx)),
    })
}
