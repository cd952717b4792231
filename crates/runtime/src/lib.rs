//! The CPU device, training loop, data and checkpoints. Knows programs, kernels and transports;
//! must not know how plans are found.
// Two modules are unsafe, and document why they are sound: `arena` hands out views of a rank's memory, `allocator` passes
// requests on to the system.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod allocator;
#[allow(unsafe_code)]
mod arena;
pub mod checkpoint;
mod collectives;
pub mod cpu;
pub mod custom_kernels;
pub mod data;
pub mod digest;
pub mod executor;
pub mod memory;
pub mod sharded;
pub mod train;

pub use allocator::Allocator;
pub use collectives::collective_specs;
pub use cpu::{Cpu, CpuRank, SlowOp};
pub use custom_kernels::{CpuKernel, CpuKernels, TensorView, TensorViewMut};
pub use executor::{
    AWAKE, DIVERGED, Fault, Interrupter, Lent, MAX_WORKERS, PEER_FAILED, Runner, RunnerOptions,
};
pub use memory::{Machine, MemoryLimit, check_address_space};
pub use partita_comm::{HostProcesses, PROCESS_ENDED, Patience, Processes, World};
pub use partita_kernels::{KernelChoice, KernelOptions};
pub use train::{BatchTensor, Scaling, StateLayout, StepReport, TensorLayout, TrainLoop};
