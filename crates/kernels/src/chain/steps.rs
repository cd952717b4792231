//! A chain of f32 arithmetic as data: steps on one accumulator, and the memory of their operands.

use smallvec::SmallVec;

use crate::native::prefetch::Ahead;
use crate::native::vector::LANES;

/// Maximum number of elements of an intermediate value: the accumulator's.
pub(crate) const CHUNK: usize = 128;

/// What a step does to the accumulator. The first actions take an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Action {
    Add,
    Sub,
    /// The operand minus the accumulator.
    SubFrom,
    Mul,
    Div,
    /// The operand divided by the accumulator.
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

/// One step: optionally loads the accumulator, changes it, and optionally stores it. Memory operands are
/// numbered by their place in [`Operands`]. A step is packed into one word, because a chain is bound by
/// memory reads, and the interpreter reads its steps too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Step(pub(crate) u32);

impl Step {
    /// Marks a missing load, store or operand.
    pub(crate) const NOTHING: u8 = u8::MAX;

    /// `number` says that the operand is one constant for all elements.
    pub(crate) fn new(load: u8, action: Action, operand: u8, number: bool, store: u8) -> Self {
        Step(u32::from_le_bytes([load, code(action, u8::from(number)), operand, store]))
    }
}

impl Action {
    pub(crate) const ALL: [Action; ACTIONS as usize] = [
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

    /// The action with this opcode.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) fn of_code(code: u8) -> Action {
        Action::ALL[usize::from(code % ACTIONS)]
    }
}

pub(crate) const fn code(action: Action, number: u8) -> u8 {
    action as u8 + number * ACTIONS
}

/// Where an operand of a chain is stored.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    /// In memory that other code may read or write.
    Memory,
    /// Only between two steps: no memory.
    Between,
    /// This constant in every element.
    Number(f32),
}

/// An operand with one value per row.
#[derive(Clone, Copy)]
struct OfRow {
    chunk: *mut [f32; CHUNK],
    element: *const f32,
    step: isize,
}

/// The memory of one operand.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// Its next element.
    pub pointer: *mut f32,
    /// Its elements per element of the chain: 1, or 0 where one chunk of equal values serves all elements.
    pub stride: usize,
    /// Elements from one row to the next.
    step: isize,
    /// Whether stores are non-temporal.
    pub streams: bool,
}

/// The memory of the operands of steps.
pub(crate) struct Operands {
    pub all: SmallVec<[Operand; Self::MOST]>,
    of_rows: SmallVec<[OfRow; Self::MOST_INPUTS]>,
    /// What is prefetched meanwhile, in chunks of [`LANES`] elements.
    ahead: SmallVec<[Ahead; Self::MOST_INPUTS]>,
    done: usize,
}

impl Operands {
    /// Maximum number of operands.
    pub(crate) const MOST: usize = 112;
    /// Maximum number of operands that are prefetched, or that have one value per row.
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

    /// Adds memory that is prefetched while the chain runs.
    pub(crate) fn ask(&mut self, ahead: Ahead) {
        self.ahead.push(ahead);
    }

    /// Adds the next operand; its rows are `step` elements apart. If it `streams`, stores are non-temporal:
    /// the memory is aligned to [`crate::stream::STREAM_ALIGNMENT`], and the caller holds a
    /// [`crate::stream::Streaming`] until after the last store.
    pub(crate) fn push(&mut self, pointer: *mut f32, stride: usize, streams: bool, step: isize) {
        self.all.push(Operand { pointer, stride, step, streams });
    }

    /// Adds the next operand, which has one value per row: `chunk` already holds the first row's `element`,
    /// and the other rows' elements follow `step` elements apart.
    pub(crate) fn push_of_row(&mut self, chunk: *mut [f32; CHUNK], element: *const f32, step: isize) {
        self.of_rows.push(OfRow { chunk, element, step });
        self.push(chunk.cast(), 0, false, 0);
    }

    /// Moves all operands from the end of a row of `elements` elements to the next row.
    ///
    /// # Safety
    /// There is a next row; operands with one value per row are readable there, and their chunks are
    /// writable.
    pub(crate) unsafe fn turn(&mut self, elements: usize) {
        for Operand { pointer, stride, step, .. } in &mut self.all {
            *pointer = pointer.wrapping_offset(*step - (elements * *stride) as isize);
        }
        for OfRow { chunk, element, step } in &mut self.of_rows {
            *element = element.wrapping_offset(*step);
            // SAFETY: the caller upholds the contract.
            unsafe { (**chunk).fill(**element) };
        }
    }

    /// Moves all operands on by so many elements.
    #[inline(always)]
    pub(crate) fn skip(&mut self, elements: usize) {
        for Operand { pointer, stride, .. } in &mut self.all {
            *pointer = pointer.wrapping_add(elements * *stride);
        }
    }

    /// The same, and prefetches.
    #[inline(always)]
    pub(crate) fn advance(&mut self, elements: usize) {
        self.skip(elements);
        let chunks = self.done / LANES..(self.done + elements) / LANES;
        for ahead in &self.ahead {
            chunks.clone().for_each(|chunk| ahead.fetch(chunk));
        }
        self.done += elements;
    }
}
