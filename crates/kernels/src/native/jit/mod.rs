//! Just-in-time compilation of chains, if the machine has AVX2 or AVX-512 and the system allows executable
//! pages: steps to SSA form (`tape.rs`), SSA to instructions with registers (`select.rs`), instructions to
//! bytes (`encode.rs`).

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
use select::{MAX_OPERANDS, assemble};
use tape::Tape;

/// The machine code of a chain.
pub(super) struct Code {
    /// Executable and not writable.
    pages: Mmap,
    /// The indices of the operands in memory.
    memory: Vec<u8>,
    /// Elements per round.
    elements: usize,
}

impl Code {
    /// The code of steps on operands of these kinds, for a machine of this level; with `prefetches`, it also
    /// prefetches what it will read later. `None` if the chain has to be interpreted.
    pub(super) fn new(level: Level, steps: &[Step], kinds: &[Kind], prefetches: bool) -> Option<Code> {
        let machine = match level {
            Level::Avx512 => Machine::Avx512,
            Level::Avx2 => Machine::Avx2,
            Level::Portable => return None,
        };
        let assembled = assemble(machine, &Tape::of(steps, kinds), prefetches)?;
        let mut pages = MmapMut::map_anon(assembled.bytes.len()).ok()?;
        pages[..assembled.bytes.len()].copy_from_slice(&assembled.bytes);
        // A hardened system may refuse executable pages.
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
        let mut table = [0usize; 2 * MAX_OPERANDS];
        let (pointers, steps) = table.split_at_mut(self.memory.len());
        for ((pointer, step), &number) in pointers.iter_mut().zip(steps).zip(&self.memory) {
            let operand = operands.all[usize::from(number)];
            *pointer = operand.pointer.expose_provenance();
            *step = operand.stride * self.elements * size_of::<f32>();
        }
        // SAFETY: the pages hold a function of this signature, assembled for this machine's level.
        unsafe {
            let function: unsafe extern "sysv64" fn(*const usize, usize) =
                std::mem::transmute(self.pages.as_ptr());
            // SAFETY: the table has a pointer and a stride for each operand in memory; the code touches what
            // the steps would.
            function(table.as_ptr(), rounds);
        }
        operands.skip(rounds * self.elements);
        count - rounds * self.elements
    }
}
