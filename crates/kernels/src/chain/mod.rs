//! Chains: fused elementwise f32 expressions. The interpreter here is a machine with one accumulator of a few
//! vectors: a value that only the next step reads never leaves its registers, other values spill to buffers
//! in L1. Every step rounds exactly as the stand-alone function does, so the bits are the same, at every
//! vector width.
//!
//! Where possible, a chain is compiled to machine code instead
//! ([`NativeBackend::compile`](crate::native::NativeBackend)), which keeps all intermediate values in
//! registers: that halves the time of chains that are bound by arithmetic. The interpreter runs chains on
//! other machines, and the elements at the end that do not fill a vector.

#[cfg(test)]
pub(crate) mod random;
pub(crate) mod steps;
#[cfg(test)]
mod tests;

use crate::math;
use crate::native::CompiledChain;
#[cfg(target_arch = "x86_64")]
use crate::native::levels::{Avx2, Avx512};
use crate::native::levels::{Baseline, Machine};
use crate::native::vector::Vector;
use crate::options::{KernelOptions, Level};
use steps::{Action, CHUNK, Operands, Step, code};

/// An accumulator of `N` vectors.
#[derive(Clone, Copy)]
struct Accumulator<V, const N: usize>([V; N]);

/// All loops run over indices, which the compiler unrolls: the vectors have to stay in registers.
impl<V: Vector, const N: usize> Accumulator<V, N> {
    /// # Safety
    /// The accumulator's elements are readable at `from`.
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        let mut x = Self::splat(0.0);
        for i in 0..N {
            // SAFETY: the caller upholds the contract.
            x.0[i] = unsafe { V::load(from.add(i * V::WIDTH)) };
        }
        x
    }

    /// # Safety
    /// The accumulator's elements are writable at `to`.
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for i in 0..N {
            // SAFETY: the caller upholds the contract.
            unsafe { self.0[i].store(to.add(i * V::WIDTH)) };
        }
    }

    /// # Safety
    /// The accumulator's elements are writable at `to`, which is aligned for non-temporal stores.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        for i in 0..N {
            // SAFETY: the caller upholds the contract.
            unsafe { self.0[i].stream(to.add(i * V::WIDTH)) };
        }
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Accumulator([V::splat(x); N])
    }

    #[inline(always)]
    fn with(mut self, operand: Self, f: impl Fn(V, V) -> V) -> Self {
        for i in 0..N {
            self.0[i] = f(self.0[i], operand.0[i]);
        }
        self
    }

    #[inline(always)]
    fn map(mut self, f: impl Fn(V) -> V) -> Self {
        for i in 0..N {
            self.0[i] = f(self.0[i]);
        }
        self
    }

    /// Applies a function element by element, for functions that the compiler vectorises.
    #[inline(always)]
    fn each_with(self, operand: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let (mut own, mut other) = ([0f32; CHUNK], [0f32; CHUNK]);
        // SAFETY: an accumulator is no longer than a chunk.
        unsafe {
            self.store(own.as_mut_ptr());
            operand.store(other.as_mut_ptr());
            for (x, &y) in own[..N * V::WIDTH].iter_mut().zip(&other) {
                *x = f(*x, y);
            }
            Self::load(own.as_ptr())
        }
    }

    #[inline(always)]
    fn each(self, f: impl Fn(f32) -> f32) -> Self {
        let mut own = [0f32; CHUNK];
        // SAFETY: an accumulator is no longer than a chunk.
        unsafe {
            self.store(own.as_mut_ptr());
            for x in &mut own[..N * V::WIDTH] {
                *x = f(*x);
            }
            Self::load(own.as_ptr())
        }
    }
}

/// The opcodes of actions whose operand is in memory or a constant.
macro_rules! codes {
    ($($source:ident $number:literal)*) => {$(
        mod $source {
            use super::{Action, code};
            pub(super) const ADD: u8 = code(Action::Add, $number);
            pub(super) const SUB: u8 = code(Action::Sub, $number);
            pub(super) const SUB_FROM: u8 = code(Action::SubFrom, $number);
            pub(super) const MUL: u8 = code(Action::Mul, $number);
            pub(super) const DIV: u8 = code(Action::Div, $number);
            pub(super) const DIV_FROM: u8 = code(Action::DivFrom, $number);
            pub(super) const MAX: u8 = code(Action::Max, $number);
            pub(super) const MIN: u8 = code(Action::Min, $number);
        }
    )*};
}
codes! { memory 0 number 1 }
/// The opcodes of actions without an operand.
mod alone {
    use super::{Action, code};
    pub(super) const SQUARE: u8 = code(Action::Square, 0);
    pub(super) const NEG: u8 = code(Action::Neg, 0);
    pub(super) const ABS: u8 = code(Action::Abs, 0);
    pub(super) const SQRT: u8 = code(Action::Sqrt, 0);
    pub(super) const RSQRT: u8 = code(Action::Rsqrt, 0);
    pub(super) const EXP: u8 = code(Action::Exp, 0);
    pub(super) const LOG: u8 = code(Action::Log, 0);
    pub(super) const TANH: u8 = code(Action::Tanh, 0);
    pub(super) const LOGISTIC: u8 = code(Action::Logistic, 0);
}

/// Runs the steps over as many whole accumulators as fit into `count` elements; returns how many elements are
/// left.
///
/// # Safety
/// The same as for [`run`].
#[inline(always)]
unsafe fn sweep<V: Vector, const N: usize>(steps: &[Step], operands: &mut Operands, count: usize) -> usize {
    const { assert!(N * V::WIDTH <= CHUNK) };
    let mut left = count;
    while left >= N * V::WIDTH {
        let mut x = Accumulator::<V, N>::splat(0.0);
        let all = operands.all.as_slice();
        for &Step(step) in steps {
            let [load, code, operand, store] = step.to_le_bytes();
            // SAFETY: the steps' operands exist; for those in memory, the caller guarantees these elements.
            unsafe {
                let pointer = |number: u8| all.get_unchecked(usize::from(number)).pointer;
                if load != Step::NOTHING {
                    x = Accumulator::load(pointer(load));
                }
                macro_rules! arms {
                    ($($source:ident $operand:expr;)*) => {
                        match code {
                            $($source::ADD => x.with($operand, V::plus),
                            $source::SUB => x.with($operand, V::minus),
                            $source::SUB_FROM => x.with($operand, |x, y| y.minus(x)),
                            $source::MUL => x.with($operand, V::times),
                            $source::DIV => x.with($operand, V::over),
                            $source::DIV_FROM => x.with($operand, |x, y| y.over(x)),
                            $source::MAX => x.each_with($operand, math::maximum),
                            $source::MIN => x.each_with($operand, math::minimum),)*
                            alone::SQUARE => x.map(|x| x.times(x)),
                            alone::NEG => x.each(|x| -x),
                            alone::ABS => x.each(f32::abs),
                            alone::SQRT => x.map(V::root),
                            alone::RSQRT => x.map(|x| V::splat(1.0).over(x.root())),
                            alone::EXP => x.each(math::exp),
                            alone::LOG => x.each(math::ln),
                            alone::TANH => x.each(math::tanh),
                            alone::LOGISTIC => x.each(math::logistic),
                            _ => unreachable!("a step's code"),
                        }
                    };
                }
                x = arms! {
                    memory Accumulator::load(pointer(operand));
                    number Accumulator::splat(*pointer(operand));
                };
                if store != Step::NOTHING {
                    if all.get_unchecked(usize::from(store)).streams {
                        x.stream(pointer(store));
                    } else {
                        x.store(pointer(store));
                    }
                }
            };
        }
        operands.advance(N * V::WIDTH);
        left -= N * V::WIDTH;
    }
    left
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(steps: &[Step], operands: &mut Operands, count: usize) {
    type Vectors = <Avx512 as Machine>::Vector;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let left = sweep::<Vectors, 8>(steps, operands, count);
        let left = sweep::<Vectors, 1>(steps, operands, left);
        sweep::<f32, 1>(steps, operands, left);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(steps: &[Step], operands: &mut Operands, count: usize) {
    type Vectors = <Avx2 as Machine>::Vector;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let left = sweep::<Vectors, 8>(steps, operands, count);
        sweep::<f32, 1>(steps, operands, left);
    }
}

unsafe fn baseline(steps: &[Step], operands: &mut Operands, count: usize) {
    type Vectors = <Baseline as Machine>::Vector;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let left = sweep::<Vectors, 8>(steps, operands, count);
        sweep::<f32, 1>(steps, operands, left);
    }
}

/// Runs the steps over `rows` rows of `count` elements, by their machine code if there is any.
///
/// # Safety
/// The steps' operands are among `operands`. In each row, each operand has `count` elements, or, if its
/// stride is zero, a chunk of equal or scratch values; all are readable and, where a step stores, writable. A
/// stored value is read again only at the same place, or in the next row; a value stored with a non-temporal
/// store is not read again.
pub(crate) unsafe fn run(
    options: KernelOptions,
    steps: &[Step],
    code: Option<&dyn CompiledChain>,
    operands: &mut Operands,
    rows: usize,
    count: usize,
) {
    for row in 0..rows {
        // SAFETY: the caller upholds the contract; options exist only for what the machine has.
        unsafe {
            if row > 0 {
                operands.turn(count);
            }
            let left = code.map_or(count, |code| code.run(operands, count));
            if left > 0 {
                run_at(options.level(), steps, operands, left);
            }
        }
    }
}

/// # Safety
/// The same as for [`run`], on a machine of this level.
unsafe fn run_at(level: Level, steps: &[Step], operands: &mut Operands, count: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(steps, operands, count),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(steps, operands, count),
            Level::Portable => baseline(steps, operands, count),
        }
    }
}
