//! Just-in-time compilation of chains, where the machine has AVX-512 or AVX2 and the system lets a program write code: from
//! steps to single values (`tape.rs`), from values to instructions in registers (`select.rs`), from instructions to bytes
//! (`encode.rs`).

mod encode;
mod select;
mod tape;
#[cfg(test)]
mod tests;

use memmap2::{Mmap, MmapMut};

use super::CompiledChain;
use crate::chain::steps::{Kind, Operands, Step};
use crate::options::Level;
use encode::Machine;
use select::{MOST_OPERANDS, assemble};
use tape::Tape;

/// A chain as code.
pub(super) struct Code {
    /// Can be run, and no longer be written.
    pages: Mmap,
    /// The numbers of the operands in memory.
    memory: Vec<u8>,
    /// Elements of one round.
    elements: usize,
}

impl Code {
    /// The code of steps on operands of these kinds, for a machine of this level; with `prefetches`, it prefetches what it
    /// will read later. `None` where the steps have to do.
    pub(super) fn new(level: Level, steps: &[Step], kinds: &[Kind], prefetches: bool) -> Option<Code> {
        let machine = match level {
            Level::Avx512 => Machine::Avx512,
            Level::Avx2 => Machine::Avx2,
            Level::Portable => return None,
        };
        let assembled = assemble(machine, &Tape::of(steps, kinds), prefetches)?;
        let mut pages = MmapMut::map_anon(assembled.bytes.len()).ok()?;
        pages[..assembled.bytes.len()].copy_from_slice(&assembled.bytes);
        // A hardened system may refuse this.
        let pages = pages.make_exec().ok()?;
        Some(Code { pages, memory: assembled.memory, elements: assembled.elements })
    }
}

impl CompiledChain for Code {
    unsafe fn run(&self, operands: &mut Operands, count: usize) -> usize {
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
