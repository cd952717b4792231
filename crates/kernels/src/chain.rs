//! Chains of f32 arithmetic as a machine with one accumulator of a few vectors: a value that only the next step
//! needs never leaves its registers, others rest in chunks of the first cache. Every step rounds as the function
//! does by itself, so the bits are the same, at every vector width.

use crate::Number;
use crate::math;
use crate::simd::{Level, level};

/// Elements that a value between two steps takes at most: the accumulator's.
pub(crate) const CHUNK: usize = 128;

/// Where an operand of [`Step::Stream`] begins: at a cache line.
pub(crate) const STREAM_ALIGNMENT: usize = 64;

/// What one step does to the accumulator. The first ones have an operand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    Load,
    Store,
    /// A store past the caches, to memory aligned to [`STREAM_ALIGNMENT`]; [`finish_streams`] has to follow.
    Stream,
    Add,
    Sub,
    /// The operand less the accumulator.
    SubFrom,
    Mul,
    Div,
    /// The operand over the accumulator.
    DivFrom,
    Max,
    Min,
    Square,
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Exp,
    Log,
    Tanh,
    Logistic,
}

/// A step on memory at hand.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub step: Step,
    /// The operand's first element; dangling where there is no operand.
    pub pointer: *mut f32,
    /// Elements of the operand per element of the chain: one, or zero where a chunk serves all.
    pub stride: usize,
}

/// A vector of f32.
trait Lanes: Copy {
    const WIDTH: usize;
    /// # Safety
    /// `WIDTH` elements can be read here.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `WIDTH` elements can be written here.
    unsafe fn store(self, to: *mut f32);
    /// # Safety
    /// `WIDTH` elements can be written here, which is aligned to as many.
    unsafe fn stream(self, to: *mut f32);
    fn splat(x: f32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn root(self) -> Self;
}

/// One element: ends of chains, and machines without the vectors below.
impl Lanes for f32 {
    const WIDTH: usize = 1;
    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        // SAFETY: the caller's.
        unsafe { from.read() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { to.write(self) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    fn times(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    fn over(self, other: f32) -> f32 {
        self / other
    }
    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
    }
}

/// A machine's vector type; its functions are called only where the machine was found to have them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! lanes {
    ($arch:ident, $type:ident, $width:literal: $load:ident $store:ident $stream:ident $splat:ident $add:ident $sub:ident $mul:ident $div:ident $sqrt:ident) => {
        #[allow(unused_unsafe)]
        impl Lanes for std::arch::$arch::$type {
            const WIDTH: usize = $width;
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller's; this code runs only on machines with the instruction, as all below.
                unsafe { std::arch::$arch::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller's.
                unsafe { std::arch::$arch::$store(to, self) }
            }
            #[inline(always)]
            unsafe fn stream(self, to: *mut f32) {
                // SAFETY: the caller's.
                unsafe { std::arch::$arch::$stream(to, self) }
            }
            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: no memory is touched, as in all below.
                unsafe { std::arch::$arch::$splat(x) }
            }
            lanes! { @pairs $arch: plus $add, minus $sub, times $mul, over $div }
            #[inline(always)]
            fn root(self) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::$arch::$sqrt(self) }
            }
        }
    };
    (@pairs $arch:ident: $($name:ident $function:ident),*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { std::arch::$arch::$function(self, other) }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
lanes! { x86_64, __m512, 16: _mm512_loadu_ps _mm512_storeu_ps _mm512_stream_ps _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_sqrt_ps }
#[cfg(target_arch = "x86_64")]
lanes! { x86_64, __m256, 8: _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_sqrt_ps }
#[cfg(target_arch = "x86_64")]
lanes! { x86_64, __m128, 4: _mm_loadu_ps _mm_storeu_ps _mm_stream_ps _mm_set1_ps _mm_add_ps _mm_sub_ps _mm_mul_ps _mm_div_ps _mm_sqrt_ps }
#[cfg(target_arch = "aarch64")]
lanes! { aarch64, float32x4_t, 4: vld1q_f32 vst1q_f32 vst1q_f32 vdupq_n_f32 vaddq_f32 vsubq_f32 vmulq_f32 vdivq_f32 vsqrtq_f32 }

/// An accumulator of `N` vectors.
#[derive(Clone, Copy)]
struct Accumulator<V, const N: usize>([V; N]);

impl<V: Lanes, const N: usize> Accumulator<V, N> {
    /// # Safety
    /// The accumulator's elements can be read here.
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's.
        Accumulator(std::array::from_fn(|i| unsafe { V::load(from.add(i * V::WIDTH)) }))
    }

    /// # Safety
    /// The accumulator's elements can be written here.
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, vector) in self.0.into_iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { vector.store(to.add(i * V::WIDTH)) };
        }
    }

    /// # Safety
    /// The accumulator's elements can be written here, at a place for them to be streamed to.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        for (i, vector) in self.0.into_iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { vector.stream(to.add(i * V::WIDTH)) };
        }
    }

    /// # Safety
    /// The accumulator's elements can be read at `operand`.
    #[inline(always)]
    unsafe fn with(self, operand: *const f32, f: impl Fn(V, V) -> V) -> Self {
        // SAFETY: the caller's.
        let operand = unsafe { Self::load(operand) };
        Accumulator(std::array::from_fn(|i| f(self.0[i], operand.0[i])))
    }

    #[inline(always)]
    fn map(self, f: impl Fn(V) -> V) -> Self {
        Accumulator(self.0.map(f))
    }

    /// Element by element, for functions that the compiler vectorises; `operand` as for [`Self::with`].
    ///
    /// # Safety
    /// The accumulator's elements can be read at `operand`.
    #[inline(always)]
    unsafe fn each_with(self, operand: *const f32, f: impl Fn(f32, f32) -> f32) -> Self {
        let (mut own, mut other) = ([0f32; CHUNK], [0f32; CHUNK]);
        // SAFETY: an accumulator is no longer than a chunk; the operand is the caller's.
        unsafe {
            self.store(own.as_mut_ptr());
            Self::load(operand).store(other.as_mut_ptr());
        }
        for (x, &y) in own[..N * V::WIDTH].iter_mut().zip(&other) {
            *x = f(*x, y);
        }
        // SAFETY: as above.
        unsafe { Self::load(own.as_ptr()) }
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

/// Runs the steps over as many whole accumulators as fit into `from..to`; returns where it stopped.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn sweep<V: Lanes, const N: usize>(steps: &[Bound], from: usize, to: usize) -> usize {
    const { assert!(N * V::WIDTH <= CHUNK) };
    let mut at = from;
    while at + N * V::WIDTH <= to {
        let mut x = Accumulator([V::splat(0.0); N]);
        for &Bound { step, pointer, stride } in steps {
            let operand = pointer.wrapping_add(at * stride);
            // SAFETY: where a step has an operand, these elements of it are the caller's to vouch for.
            unsafe {
                x = match step {
                    Step::Load => Accumulator::load(operand),
                    Step::Store => {
                        x.store(operand);
                        x
                    }
                    Step::Stream => {
                        x.stream(operand);
                        x
                    }
                    Step::Add => x.with(operand, V::plus),
                    Step::Sub => x.with(operand, V::minus),
                    Step::SubFrom => x.with(operand, |x, y| y.minus(x)),
                    Step::Mul => x.with(operand, V::times),
                    Step::Div => x.with(operand, V::over),
                    Step::DivFrom => x.with(operand, |x, y| y.over(x)),
                    Step::Max => x.each_with(operand, Number::maximum),
                    Step::Min => x.each_with(operand, Number::minimum),
                    Step::Square => x.map(|x| x.times(x)),
                    Step::Neg => x.each(|x| -x),
                    Step::Abs => x.each(f32::abs),
                    Step::Sqrt => x.map(V::root),
                    Step::Rsqrt => x.map(|x| V::splat(1.0).over(x.root())),
                    Step::Exp => x.each(math::exp),
                    Step::Log => x.each(math::ln),
                    Step::Tanh => x.each(math::tanh),
                    Step::Logistic => x.each(math::logistic),
                }
            };
        }
        at += N * V::WIDTH;
    }
    at
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(steps: &[Bound], count: usize) {
    use std::arch::x86_64::__m512;
    // SAFETY: the caller's.
    unsafe {
        let at = sweep::<__m512, 8>(steps, 0, count);
        let at = sweep::<__m512, 1>(steps, at, count);
        sweep::<f32, 1>(steps, at, count);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(steps: &[Bound], count: usize) {
    use std::arch::x86_64::__m256;
    // SAFETY: the caller's.
    unsafe {
        let at = sweep::<__m256, 8>(steps, 0, count);
        sweep::<f32, 1>(steps, at, count);
    }
}

unsafe fn baseline(steps: &[Bound], count: usize) {
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    use f32 as Vector;
    #[cfg(target_arch = "aarch64")]
    use std::arch::aarch64::float32x4_t as Vector;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::__m128 as Vector;
    // SAFETY: the caller's.
    unsafe {
        let at = sweep::<Vector, 8>(steps, 0, count);
        sweep::<f32, 1>(steps, at, count);
    }
}

/// Runs the steps over `count` elements.
///
/// # Safety
/// Every operand has `count` elements, or a chunk of equal or scratch ones where its stride is zero, that may
/// be read or, by [`Step::Store`] and [`Step::Stream`], written. What a step stores is read again at the same place or
/// not at all; what it streams, not at all.
pub(crate) unsafe fn run(steps: &[Bound], count: usize) {
    // SAFETY: the caller's; `level` found the features on this machine.
    unsafe { run_at(level(), steps, count) }
}

/// # Safety
/// As for [`run`], on a machine of this level.
unsafe fn run_at(level: Level, steps: &[Bound], count: usize) {
    // SAFETY: the caller's.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(steps, count),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(steps, count),
            Level::Baseline => baseline(steps, count),
        }
    }
}

/// Copies past the caches, to memory aligned to [`STREAM_ALIGNMENT`]; [`finish_streams`] has to follow.
///
/// # Safety
/// As many elements can be written at `to`, where those that are read do not lie.
pub(crate) unsafe fn stream(from: &[f32], to: *mut f32) {
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    #[cfg(target_arch = "x86_64")]
    let done = {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
        let (vectors, _) = from.as_chunks::<4>();
        for (i, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller's; every x86-64 processor has these vectors.
            unsafe { _mm_stream_ps(to.add(4 * i), _mm_loadu_ps(vector.as_ptr())) };
        }
        4 * vectors.len()
    };
    let rest = &from[done..];
    // SAFETY: the caller's.
    unsafe { to.add(done).copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
}

/// Orders what was streamed before whatever is written next.
pub(crate) fn finish_streams() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 17] = [
        Step::Add,
        Step::Sub,
        Step::SubFrom,
        Step::Mul,
        Step::Div,
        Step::DivFrom,
        Step::Max,
        Step::Min,
        Step::Square,
        Step::Neg,
        Step::Abs,
        Step::Sqrt,
        Step::Rsqrt,
        Step::Exp,
        Step::Log,
        Step::Tanh,
        Step::Logistic,
    ];

    /// The meaning of a step, spelled out.
    fn one(step: Step, x: f32, y: f32) -> f32 {
        match step {
            Step::Load | Step::Store | Step::Stream => unreachable!(),
            Step::Add => x + y,
            Step::Sub => x - y,
            Step::SubFrom => y - x,
            Step::Mul => x * y,
            Step::Div => x / y,
            Step::DivFrom => y / x,
            Step::Max => x.max(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
            Step::Min => x.min(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
            Step::Square => x * x,
            Step::Neg => -x,
            Step::Abs => x.abs(),
            Step::Sqrt => x.sqrt(),
            Step::Rsqrt => 1.0 / x.sqrt(),
            Step::Exp => math::exp(x),
            Step::Log => math::ln(x),
            Step::Tanh => math::tanh(x),
            Step::Logistic => math::logistic(x),
        }
    }

    fn levels() -> Vec<Level> {
        match level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => vec![Level::Baseline, Level::Avx2, Level::Avx512],
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => vec![Level::Baseline, Level::Avx2],
            Level::Baseline => vec![Level::Baseline],
        }
    }

    #[test]
    fn every_step_means_the_same_at_every_level_and_length() {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 3e38, -1.5];
        let number = |i: usize| {
            if i.is_multiple_of(5) { special[i / 5 % 8] } else { (i * 37 % 101) as f32 * 0.1 - 5.0 }
        };
        for count in [0, 1, 15, 16, 17, 63, 128, 130, 300, 1024] {
            let mut x: Vec<f32> = (0..count).map(number).collect();
            let mut y: Vec<f32> = (0..count).map(|i| number(3 * i + 1)).collect();
            let mut chunk = [0.75f32; CHUNK];
            for (step, level) in STEPS.into_iter().flat_map(|s| levels().into_iter().map(move |l| (s, l))) {
                let mut out = vec![0f32; 3 * count + STREAM_ALIGNMENT];
                let (direct, rest) = out.split_at_mut(count);
                let (halved, rest) = rest.split_at_mut(count);
                let streamed = rest.as_ptr().align_offset(STREAM_ALIGNMENT);
                let at = |step: Step, of: &mut [f32], stride: usize| Bound {
                    step,
                    pointer: of.as_mut_ptr(),
                    stride,
                };
                let steps = [
                    at(Step::Load, &mut x, 1),
                    at(step, &mut y, 1),
                    at(Step::Store, direct, 1),
                    at(Step::Mul, &mut chunk, 0),
                    at(Step::Store, halved, 1),
                    at(Step::Stream, &mut rest[streamed..], 1),
                ];
                // SAFETY: all have `count` elements, but for the chunk; the level is the machine's or below.
                unsafe { run_at(level, &steps, count) };
                finish_streams();
                for i in 0..count {
                    let right = one(step, x[i], y[i]);
                    let half = right * 0.75;
                    let streamed = out[2 * count + streamed + i];
                    for (found, right) in [(out[i], right), (out[count + i], half), (streamed, half)] {
                        let zeros = matches!(step, Step::Max | Step::Min) && found == right;
                        assert!(
                            found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan()) || zeros,
                            "{step:?}({:e}, {:e}) at {i} of {count}, {level:?}: {found:e}, not {right:e}",
                            x[i],
                            y[i]
                        );
                    }
                }
            }
        }
    }
}
