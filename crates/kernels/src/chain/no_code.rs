//! What stands for [`Code`] on machines that no code is made for.

use super::{Kind, Operands, Step};
#[cfg(test)]
use crate::simd::Level;

/// There is none.
pub(crate) enum Code {}

impl Code {
    /// `None`: the steps have to do.
    pub(crate) fn new(_: &[Step], _: &[Kind], _: bool) -> Option<Code> {
        None
    }

    /// Likewise, whatever the level.
    #[cfg(test)]
    pub(super) fn at(_: Level, _: &[Step], _: &[Kind], _: bool) -> Option<Code> {
        None
    }

    /// # Safety
    /// Nobody can call it.
    pub(crate) unsafe fn run(&self, _: &mut Operands, _: usize) -> usize {
        match *self {}
    }
}
