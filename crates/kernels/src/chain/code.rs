//! Machine code for chains, where the machine has AVX-512 or AVX2 and the system lets a program write code.

use memmap2::{Mmap, MmapMut};

use super::tape::Tape;
use super::x86::{MOST_OPERANDS, Machine, assemble};
use super::{Kind, Operands, Step};
use crate::simd::{Level, level};

/// A chain as code. Its bits are those of the steps.
pub(crate) struct Code {
    /// Can be run, and no longer be written.
    pages: Mmap,
    /// The numbers of the operands in memory.
    memory: Vec<u8>,
    /// Elements of one round.
    elements: usize,
}

impl Code {
    /// The code of steps on operands of these kinds; where it `asks`, for what will be read later. `None` where the steps
    /// have to do.
    pub(crate) fn new(steps: &[Step], kinds: &[Kind], asks: bool) -> Option<Code> {
        Self::at(level(), steps, kinds, asks)
    }

    /// [`Code::new`] on a machine of this level.
    pub(super) fn at(level: Level, steps: &[Step], kinds: &[Kind], asks: bool) -> Option<Code> {
        let machine = match level {
            Level::Avx512 => Machine::Avx512,
            Level::Avx2 => Machine::Avx2,
            Level::Baseline => return None,
        };
        let assembled = assemble(machine, &Tape::of(steps, kinds), asks)?;
        let mut pages = MmapMut::map_anon(assembled.bytes.len()).ok()?;
        pages[..assembled.bytes.len()].copy_from_slice(&assembled.bytes);
        // A hardened system may refuse this.
        let pages = pages.make_exec().ok()?;
        Some(Code { pages, memory: assembled.memory, elements: assembled.elements })
    }

    /// Runs as many whole rounds as fit into `count` elements; returns how many elements are left.
    ///
    /// # Safety
    /// As for [`super::run`], for the steps and kinds of operands that this was made of.
    pub(crate) unsafe fn run(&self, operands: &mut Operands, count: usize) -> usize {
        let rounds = count / self.elements;
        if rounds == 0 {
            return count;
        }
        let mut table = [0usize; 2 * MOST_OPERANDS];
        let (pointers, steps) = table.split_at_mut(self.memory.len());
        for ((pointer, step), &number) in pointers.iter_mut().zip(steps).zip(&self.memory) {
            let operand = operands.all[usize::from(number)];
            *pointer = operand.pointer.expose_provenance();
            *step = operand.stride * self.elements * size_of::<f32>();
        }
        // SAFETY: the pages hold a function of this signature that was assembled for this machine's level.
        unsafe {
            let function: unsafe extern "sysv64" fn(*const usize, usize) =
                std::mem::transmute(self.pages.as_ptr());
            // SAFETY: the table has a pointer and a step for each operand in memory; it touches what the steps would.
            function(table.as_ptr(), rounds);
        }
        operands.skip(rounds * self.elements);
        count - rounds * self.elements
    }
}
