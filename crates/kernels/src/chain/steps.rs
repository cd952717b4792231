//! A chain of f32 arithmetic as data: steps on an accumulator, and the memory of their operands.

use smallvec::SmallVec;

use crate::native::prefetch::Ahead;
use crate::native::vector::LANES;

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
pub(crate) struct Step(pub(crate) u32);

impl Step {
    /// Where nothing is loaded or stored, or an action has no operand.
    pub(crate) const NOTHING: u8 = u8::MAX;

    /// `number` says that the operand is one number for all elements.
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

    /// The action of a step's code.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) fn of_code(code: u8) -> Action {
        Action::ALL[usize::from(code % ACTIONS)]
    }
}

pub(crate) const fn code(action: Action, number: u8) -> u8 {
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
pub(crate) struct Operand {
    /// Its element that is next.
    pub pointer: *mut f32,
    /// Its elements per element of the chain: one, or zero where a chunk serves all.
    pub stride: usize,
    /// From a row to the next, in elements.
    step: isize,
    /// Whether stores go past the caches.
    pub streams: bool,
}

/// Memory at hand for the operands of steps.
pub(crate) struct Operands {
    pub all: SmallVec<[Operand; Self::MOST]>,
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
    pub(crate) unsafe fn turn(&mut self, elements: usize) {
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
    pub(crate) fn skip(&mut self, elements: usize) {
        for Operand { pointer, stride, .. } in &mut self.all {
            *pointer = pointer.wrapping_add(elements * *stride);
        }
    }

    /// The same, and asks for what comes later.
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
