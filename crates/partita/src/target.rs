//! What the programs of a step are lowered for: the cores that run it here, or the GPUs of a cluster that is predicted.

use partita_base::{DType, Diagnostic, Result};
use partita_cost::DeviceTarget;
use partita_ir::ops::Composite;
use partita_ir::{Literal, Target};
use partita_program::{Region, RegionTarget, View};
use partita_runtime::Cpu;
use partita_schedule::Built;
use partita_schedule::verify::StepRunner;
use std::fmt;

/// The target of programs for a device of this kind. `cpu` says what the cores of this machine do.
pub fn target_of(kind: DeviceTarget, cpu: Cpu) -> Box<dyn RegionTarget + Send + Sync> {
    match kind {
        DeviceTarget::Cpu => Box::new(cpu),
        DeviceTarget::Gpu => Box::new(Gpu { cpu }),
    }
}

/// A GPU: one kernel for each composite that is one on the CPU, no scratch memory, and the alignment of `cudaMalloc` (CUDA
/// C++ Programming Guide, "Device Memory Accesses").
#[derive(Clone, Default)]
pub struct Gpu {
    cpu: Cpu,
}

impl Target for Gpu {
    fn has_kernel(&self, composite: &Composite) -> bool {
        self.cpu.has_kernel(composite)
    }

    fn fusible(&self, composite: &Composite) -> Result<(), String> {
        self.cpu.fusible(composite)
    }

    fn needs_dense(&self, composite: &Composite) -> bool {
        self.cpu.needs_dense(composite)
    }

    fn overwrites(&self, composite: &Composite) -> Vec<(usize, usize)> {
        self.cpu.overwrites(composite)
    }

    fn product_block(&self, dtype: DType, terms: usize) -> Option<usize> {
        self.cpu.product_block(dtype, terms)
    }
}

impl RegionTarget for Gpu {
    fn workspace_bytes(&self, _: &Region, _: &[View]) -> usize {
        0
    }

    fn alignment_bytes(&self) -> usize {
        256
    }
}

/// The runner of a build whose step is lowered and not run.
pub(crate) struct NotRun<'a>(pub &'a (dyn RegionTarget + Sync));

impl fmt::Debug for NotRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl StepRunner for NotRun<'_> {
    fn name(&self) -> &str {
        "lowering"
    }

    fn run(&self, _: &Built, _: &[Literal]) -> Result<Vec<Literal>> {
        Err(Diagnostic::new("E017", "this step is built to be lowered, not to run"))
    }

    fn target(&self) -> &dyn Target {
        self.0
    }
}
