//! Chains of f32 arithmetic as a machine with one accumulator of a few vectors: a value that only the next step
//! needs never leaves its registers, others rest in chunks of the first cache. Every step rounds as the function
//! does by itself, so the bits are the same, at every vector width.
//!
//! Where it can be, a chain is made into machine code ([`Code`]), in which no value rests in memory at all: half the time
//! of a chain that computes more than it reads. The steps remain for the other machines and for what is left over of a
//! vector.

#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_code.rs"]
mod code;
#[cfg(target_arch = "x86_64")]
mod tape;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use code::Code;

use smallvec::SmallVec;

use crate::math;
use crate::reduce::LANES;
use crate::simd::{Ahead, Level, level};
use crate::vector::Vector;

/// Elements that a value between two steps takes at most: the accumulator's.
pub(crate) const CHUNK: usize = 128;

/// What a step does to the accumulator. The first ones have an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Action {
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
const ACTIONS: u8 = Action::Logistic as u8 + 1;

/// One step: the accumulator may be loaded, is changed, and may be stored. Memory is meant by its number among the
/// [`Operands`]. All in one word: reading memory is what bounds a chain, its steps included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Step(u32);

impl Step {
    /// Where nothing is loaded or stored, or an action has no operand.
    pub(crate) const NOTHING: u8 = u8::MAX;

    /// `number` says that the operand is one number for all elements.
    pub(crate) fn new(load: u8, action: Action, operand: u8, number: bool, store: u8) -> Self {
        Step(u32::from_le_bytes([load, code(action, u8::from(number)), operand, store]))
    }
}

impl Action {
    const ALL: [Action; ACTIONS as usize] = [
        Action::Add,
        Action::Sub,
        Action::SubFrom,
        Action::Mul,
        Action::Div,
        Action::DivFrom,
        Action::Max,
        Action::Min,
        Action::Square,
        Action::Neg,
        Action::Abs,
        Action::Sqrt,
        Action::Rsqrt,
        Action::Exp,
        Action::Log,
        Action::Tanh,
        Action::Logistic,
    ];

    /// The action of a step's code.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn of_code(code: u8) -> Action {
        Action::ALL[usize::from(code % ACTIONS)]
    }
}

const fn code(action: Action, number: u8) -> u8 {
    action as u8 + number * ACTIONS
}

/// Where an operand of a chain is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    /// In memory, which may be anybody's.
    Memory,
    /// Nowhere but between two steps.
    Between,
    /// This number everywhere.
    Number(f32),
}

/// An operand that is one value in each row.
#[derive(Clone, Copy)]
struct OfRow {
    chunk: *mut [f32; CHUNK],
    element: *const f32,
    step: isize,
}

/// Memory at hand for an operand of steps.
#[derive(Clone, Copy)]
struct Operand {
    /// Its element that is next.
    pointer: *mut f32,
    /// Its elements per element of the chain: one, or zero where a chunk serves all.
    stride: usize,
    /// From a row to the next, in elements.
    step: isize,
    /// Whether stores go past the caches.
    streams: bool,
}

/// Memory at hand for the operands of steps.
pub(crate) struct Operands {
    all: SmallVec<[Operand; Self::MOST]>,
    of_rows: SmallVec<[OfRow; Self::MOST_INPUTS]>,
    /// What is asked for meanwhile, in chunks of [`LANES`] elements.
    ahead: SmallVec<[Ahead; Self::MOST_INPUTS]>,
    done: usize,
}

impl Operands {
    /// As many as there can be.
    pub(crate) const MOST: usize = 112;
    /// As many as can be asked for, or be one value in each row.
    pub(crate) const MOST_INPUTS: usize = 32;

    pub(crate) fn new() -> Self {
        Operands { all: SmallVec::new(), of_rows: SmallVec::new(), ahead: SmallVec::new(), done: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.of_rows.clear();
        self.ahead.clear();
        self.done = 0;
    }

    /// Memory to be asked for while the chain runs.
    pub(crate) fn ask(&mut self, ahead: Ahead) {
        self.ahead.push(ahead);
    }

    /// Adds the next operand, whose rows are so many elements from one another. Where it `streams`, stores go past the
    /// caches, to memory aligned to [`crate::stream::STREAM_ALIGNMENT`], and the caller holds a
    /// [`crate::stream::Streaming`] until the last of them.
    pub(crate) fn push(&mut self, pointer: *mut f32, stride: usize, streams: bool, step: isize) {
        self.all.push(Operand { pointer, stride, step, streams });
    }

    /// Adds the next operand, which is one value in each row: `element`, which is in the chunk already, and those that many
    /// elements from one another.
    pub(crate) fn push_of_row(&mut self, chunk: *mut [f32; CHUNK], element: *const f32, step: isize) {
        self.of_rows.push(OfRow { chunk, element, step });
        self.push(chunk.cast(), 0, false, 0);
    }

    /// Moves all from the end of a row of so many elements to the next.
    ///
    /// # Safety
    /// There is one, and what is one value there may be read and its chunk written.
    unsafe fn turn(&mut self, elements: usize) {
        for Operand { pointer, stride, step, .. } in &mut self.all {
            *pointer = pointer.wrapping_offset(*step - (elements * *stride) as isize);
        }
        for OfRow { chunk, element, step } in &mut self.of_rows {
            *element = element.wrapping_offset(*step);
            // SAFETY: the caller's.
            unsafe { (**chunk).fill(**element) };
        }
    }

    /// Moves all on by so many elements.
    #[inline(always)]
    fn skip(&mut self, elements: usize) {
        for Operand { pointer, stride, .. } in &mut self.all {
            *pointer = pointer.wrapping_add(elements * *stride);
        }
    }

    /// The same, and asks for what comes later.
    #[inline(always)]
    fn advance(&mut self, elements: usize) {
        self.skip(elements);
        let chunks = self.done / LANES..(self.done + elements) / LANES;
        for ahead in &self.ahead {
            chunks.clone().for_each(|chunk| ahead.fetch(chunk));
        }
        self.done += elements;
    }
}

/// An accumulator of `N` vectors.
#[derive(Clone, Copy)]
struct Accumulator<V, const N: usize>([V; N]);

/// Loops over indices, which the compiler unrolls wherever it stands: the vectors have to end up in registers.
impl<V: Vector, const N: usize> Accumulator<V, N> {
    /// # Safety
    /// The accumulator's elements can be read here.
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        let mut x = Self::splat(0.0);
        for i in 0..N {
            // SAFETY: the caller's.
            x.0[i] = unsafe { V::load(from.add(i * V::WIDTH)) };
        }
        x
    }

    /// # Safety
    /// The accumulator's elements can be written here.
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for i in 0..N {
            // SAFETY: the caller's.
            unsafe { self.0[i].store(to.add(i * V::WIDTH)) };
        }
    }

    /// # Safety
    /// The accumulator's elements can be written here, at a place for them to be streamed to.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        for i in 0..N {
            // SAFETY: the caller's.
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

    /// Element by element, for functions that the compiler vectorises.
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

/// The codes of actions on an operand in memory, or on a number.
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
/// And those of actions without.
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

/// Runs the steps over as many whole accumulators as fit into `count` elements; returns how many elements are left.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn sweep<V: Vector, const N: usize>(steps: &[Step], operands: &mut Operands, count: usize) -> usize {
    const { assert!(N * V::WIDTH <= CHUNK) };
    let mut left = count;
    while left >= N * V::WIDTH {
        let mut x = Accumulator::<V, N>::splat(0.0);
        let all = operands.all.as_slice();
        for &Step(step) in steps {
            let [load, code, operand, store] = step.to_le_bytes();
            // SAFETY: the steps' operands are there; where one is in memory, these elements of it are the caller's to
            // vouch for.
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
    use std::arch::x86_64::__m512;
    // SAFETY: the caller's.
    unsafe {
        let left = sweep::<__m512, 8>(steps, operands, count);
        let left = sweep::<__m512, 1>(steps, operands, left);
        sweep::<f32, 1>(steps, operands, left);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(steps: &[Step], operands: &mut Operands, count: usize) {
    use std::arch::x86_64::__m256;
    // SAFETY: the caller's.
    unsafe {
        let left = sweep::<__m256, 8>(steps, operands, count);
        sweep::<f32, 1>(steps, operands, left);
    }
}

unsafe fn baseline(steps: &[Step], operands: &mut Operands, count: usize) {
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    use f32 as Vector;
    #[cfg(target_arch = "aarch64")]
    use std::arch::aarch64::float32x4_t as Vector;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::__m128 as Vector;
    // SAFETY: the caller's.
    unsafe {
        let left = sweep::<Vector, 8>(steps, operands, count);
        sweep::<f32, 1>(steps, operands, left);
    }
}

/// Runs the steps over rows of `count` elements, by their code if there is one.
///
/// # Safety
/// The steps' operands are among these. In each row, each has `count` elements, or a chunk of equal or scratch ones where
/// its stride is zero, that may be read or, where a step stores, written. What a step stores is read again at the same
/// place or not at all, or in the next row; what it streams, not at all.
pub(crate) unsafe fn run(
    steps: &[Step],
    code: Option<&Code>,
    operands: &mut Operands,
    rows: usize,
    count: usize,
) {
    for row in 0..rows {
        // SAFETY: the caller's; `level` found the features on this machine.
        unsafe {
            if row > 0 {
                operands.turn(count);
            }
            let left = code.map_or(count, |code| code.run(operands, count));
            if left > 0 {
                run_at(level(), steps, operands, left);
            }
        }
    }
}

/// # Safety
/// As for [`run`], on a machine of this level.
unsafe fn run_at(level: Level, steps: &[Step], operands: &mut Operands, count: usize) {
    // SAFETY: the caller's.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(steps, operands, count),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(steps, operands, count),
            Level::Baseline => baseline(steps, operands, count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{STREAM_ALIGNMENT, Streaming};

    /// The meaning of an action, spelled out.
    fn one(action: Action, x: f32, y: f32) -> f32 {
        match action {
            Action::Add => x + y,
            Action::Sub => x - y,
            Action::SubFrom => y - x,
            Action::Mul => x * y,
            Action::Div => x / y,
            Action::DivFrom => y / x,
            Action::Max => x.max(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
            Action::Min => x.min(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
            Action::Square => x * x,
            Action::Neg => -x,
            Action::Abs => x.abs(),
            Action::Sqrt => x.sqrt(),
            Action::Rsqrt => 1.0 / x.sqrt(),
            Action::Exp => math::exp(x),
            Action::Log => math::ln(x),
            Action::Tanh => math::tanh(x),
            Action::Logistic => math::logistic(x),
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
    fn every_action_means_the_same_at_every_level_and_length() {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 3e38, -1.5];
        let number = |i: usize| {
            if i.is_multiple_of(5) { special[i / 5 % 8] } else { (i * 37 % 101) as f32 * 0.1 - 5.0 }
        };
        for count in [0, 1, 15, 16, 17, 63, 128, 130, 300, 1024] {
            let mut x: Vec<f32> = (0..count).map(number).collect();
            let mut y: Vec<f32> = (0..count).map(|i| number(3 * i + 1)).collect();
            let mut chunk = [0.75f32; CHUNK];
            let cases = Action::ALL.into_iter().flat_map(|a| [false, true].map(|number| (a, number)));
            let cases = cases.filter(|&(action, number)| !number || (action as u8) < Action::Square as u8);
            for ((action, number), level) in cases.flat_map(|c| levels().into_iter().map(move |l| (c, l))) {
                let mut out = vec![0f32; 3 * count + STREAM_ALIGNMENT];
                let (direct, rest) = out.split_at_mut(count);
                let (halved, rest) = rest.split_at_mut(count);
                let streamed = rest.as_ptr().align_offset(STREAM_ALIGNMENT);
                let mut operands = Operands::new();
                operands.push(x.as_mut_ptr(), 1, false, 0);
                if number {
                    operands.push(chunk.as_mut_ptr(), 0, false, 0);
                } else {
                    operands.push(y.as_mut_ptr(), 1, false, 0);
                }
                operands.push(direct.as_mut_ptr(), 1, false, 0);
                operands.push(chunk.as_mut_ptr(), 0, false, 0);
                operands.push(halved.as_mut_ptr(), 1, false, 0);
                operands.push(rest[streamed..].as_mut_ptr(), 1, true, 0);
                let steps = [
                    Step::new(0, action, 1, number, 2),
                    Step::new(Step::NOTHING, Action::Mul, 3, false, 4),
                    Step::new(2, Action::Mul, 3, true, 5),
                ];
                let streaming = Streaming;
                // SAFETY: all have `count` elements, but for the chunk; the level is the machine's or below.
                unsafe { run_at(level, &steps, &mut operands, count) };
                drop(streaming);
                for i in 0..count {
                    let y = if number { chunk[0] } else { y[i] };
                    let right = one(action, x[i], y);
                    let half = right * 0.75;
                    let streamed = out[2 * count + streamed + i];
                    for (found, right) in [(out[i], right), (out[count + i], half), (streamed, half)] {
                        let zeros = matches!(action, Action::Max | Action::Min) && found == right;
                        assert!(
                            found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan()) || zeros,
                            "{action:?}({:e}, {y:e}) at {i} of {count}, {level:?}: {found:e}, not {right:e}",
                            x[i]
                        );
                    }
                }
            }
        }
    }

    /// A chain drawn at random: steps, what kinds of operands they have, and how many.
    fn random_chain(random: &mut impl FnMut(usize) -> usize) -> (Vec<Step>, Vec<Kind>) {
        // Two inputs, one that is the same everywhere, a number, two between steps, two outputs.
        let number = [0.5, -1.25, 3.0][random(3)];
        let mut kinds = vec![Kind::Memory; 3];
        kinds.extend([Kind::Number(number), Kind::Between, Kind::Between, Kind::Memory, Kind::Memory]);
        let mut there: Vec<u8> = (0..4).collect();
        let mut steps = Vec::new();
        let length = 1 + random(14);
        for i in 0..length {
            let load = if i == 0 || random(3) == 0 { there[random(there.len())] } else { Step::NOTHING };
            let action = Action::ALL[random(Action::ALL.len())];
            let operand = there[random(there.len())];
            let operand = if (action as u8) < Action::Square as u8 { operand } else { Step::NOTHING };
            let store = match random(3) {
                _ if i + 1 == length => 7,
                0 => 4 + random(3) as u8,
                _ => Step::NOTHING,
            };
            steps.push(Step::new(load, action, operand, operand == 3, store));
            if store != Step::NOTHING && !there.contains(&store) {
                there.push(store);
            }
        }
        (steps, kinds)
    }

    /// The levels of this machine at which its system allows code, with how many registers for vectors each has.
    fn levels_of_code() -> Vec<(Level, usize)> {
        let is_possible = |level: &Level| {
            let negation = [Step::new(0, Action::Neg, Step::NOTHING, false, 0)];
            Code::at(*level, &negation, &[Kind::Memory], false).is_some()
        };
        let registers = |level: Level| match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => (level, 32),
            _ => (level, 16),
        };
        levels().into_iter().filter(is_possible).map(registers).collect()
    }

    #[test]
    fn code_gives_the_bits_of_the_steps() {
        let mut state = 7u64;
        let mut random = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -1e-40, 3e38, 88.9, -104.0, 1.0];
        const ROUNDS: usize = 2000;
        let levels = levels_of_code();
        let mut without_code = vec![0; levels.len()];
        for round in 0..ROUNDS {
            let (steps, kinds) = random_chain(&mut random);
            let asks = round % 2 == 0;
            let count = [0, 5, 32, 64, 100, 256][random(6)];
            let mut draw = |len: usize| -> Vec<f32> {
                let mut number = || match random(6) {
                    0 => special[random(special.len())],
                    _ => (random(20_000) as f32 - 10_000.0) * [1e-3, 1e-4, 1e-2][random(3)],
                };
                (0..len).map(|_| number()).collect()
            };
            let (x, y, same) = (draw(count), draw(count), draw(1)[0]);
            let run = |code: Option<&Code>| {
                let (mut x, mut y) = (x.clone(), y.clone());
                let mut chunks = [[same; CHUNK], [0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]];
                if let Kind::Number(number) = kinds[3] {
                    chunks[1].fill(number);
                }
                let mut outputs = [vec![0f32; count], vec![0f32; count]];
                let mut operands = Operands::new();
                operands.push(x.as_mut_ptr(), 1, false, 0);
                operands.push(y.as_mut_ptr(), 1, false, 0);
                chunks.iter_mut().for_each(|chunk| operands.push(chunk.as_mut_ptr(), 0, false, 0));
                outputs.iter_mut().for_each(|output| operands.push(output.as_mut_ptr(), 1, false, 0));
                // SAFETY: all have `count` elements, but for the chunks.
                unsafe { run(&steps, code, &mut operands, 1, count) };
                outputs
            };
            let right = run(None);
            for (&(level, _), without_code) in levels.iter().zip(&mut without_code) {
                let Some(code) = Code::at(level, &steps, &kinds, asks) else {
                    *without_code += 1;
                    continue;
                };
                for (found, right) in run(Some(&code)).iter().flatten().zip(right.iter().flatten()) {
                    let are_equal = found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan());
                    assert!(are_equal, "{found:e}, not {right:e}, of {steps:?} over {kinds:?}, {level:?}");
                }
            }
        }
        for (&(level, registers), without_code) in levels.iter().zip(without_code) {
            // Few chains have more values at a time than fit into half as many registers.
            let most = if registers == 32 { 0 } else { ROUNDS / 20 };
            assert!(without_code <= most, "{without_code} chains of {ROUNDS} have no code, {level:?}");
        }
    }

    /// Runs steps on chunks of one number each, `outputs` of them zero, and gives these.
    fn on_chunks(steps: &[Step], code: Option<&Code>, inputs: usize, outputs: usize) -> Vec<f32> {
        let mut chunks: Vec<[f32; CHUNK]> = (0..inputs).map(|i| [0.3 * i as f32 + 0.7; CHUNK]).collect();
        chunks.resize(inputs + outputs, [0.0; CHUNK]);
        let mut operands = Operands::new();
        chunks.iter_mut().for_each(|chunk| operands.push(chunk.as_mut_ptr(), 1, false, 0));
        // SAFETY: all have as many elements.
        unsafe { run(steps, code, &mut operands, 1, CHUNK) };
        chunks[inputs..].iter().map(|chunk| chunk[CHUNK - 1]).collect()
    }

    #[test]
    fn code_needs_a_register_for_each_operand_in_memory() {
        for (level, _) in levels_of_code() {
            for inputs in 2..20u8 {
                let mut steps = vec![Step::new(0, Action::Mul, 1, false, inputs)];
                steps.extend((1..inputs).map(|i| Step::new(Step::NOTHING, Action::Add, i, false, inputs)));
                let kinds = vec![Kind::Memory; usize::from(inputs) + 1];
                let code = Code::at(level, &steps, &kinds, true);
                assert_eq!(code.is_some(), inputs < 13, "{inputs} inputs, {level:?}");
                let run = |code| on_chunks(&steps, code, usize::from(inputs), 1);
                assert_eq!(run(code.as_ref()), run(None), "{inputs} inputs, {level:?}");
            }
        }
    }

    #[test]
    fn code_takes_fewer_vectors_side_by_side_where_many_values_are_alive() {
        for (level, registers) in levels_of_code() {
            for kept in [1u8, 2, 3, 5, 6, 12, 13, 14, 15, 16, 20, 28, 29, 30, 31, 32, 40] {
                // Powers of the input by the number of their root, which then are subtracted from one another.
                let root = |i: u8, load| Step::new(load, Action::Sqrt, Step::NOTHING, false, 2 + i);
                let mut steps = vec![Step::new(0, Action::Abs, Step::NOTHING, false, 2)];
                steps.extend((1..kept).map(|i| root(i, Step::NOTHING)));
                steps.extend((0..kept).map(|i| Step::new(Step::NOTHING, Action::SubFrom, 2 + i, false, 1)));
                let mut kinds = vec![Kind::Memory; 2];
                kinds.resize(2 + usize::from(kept), Kind::Between);
                let code = Code::at(level, &steps, &kinds, false);
                let (few, many) = (usize::from(kept) <= registers - 4, usize::from(kept) >= registers);
                if few || many {
                    assert_eq!(code.is_some(), few, "{kept} values, {level:?}");
                }
                let run = |code| on_chunks(&steps, code, 1, 1 + usize::from(kept))[0];
                assert_eq!(run(code.as_ref()).to_bits(), run(None).to_bits(), "{kept} values, {level:?}");
            }
        }
    }
}
