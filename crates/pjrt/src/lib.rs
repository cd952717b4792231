//! The C interface of PJRT: XLA as a shared library that is loaded at run time.
//!
//! Knows bytes and the text of StableHLO. Must not know: graphs, ops, meshes, plans, or how a text was made.
//!
//! - [`Plugin`]: a library such as XLA for CPUs or for CUDA, with its version checked.
//! - [`Client`], [`Device`]: the devices that this process uses.
//! - [`Store`]: what clients of several processes share to become one run.
//! - [`Buffer`]: a tensor on a device. Runs may take over the memory of their arguments (donation).
//! - [`CompileOptions`], [`Executable`]: a text compiled for devices, and running it on all of them.
//! - [`Topology`], [`Compiled`]: compiling for devices that are not there.
//! - [`Value`]: options of all of these.
//!
//! ```no_run
//! use partita_base::{DType, Result};
//! use partita_pjrt::{CompileOptions, Plugin};
//!
//! fn double(x: f32) -> Result<Vec<u8>> {
//!     let text = "func.func @main(%x: tensor<f32>) -> tensor<f32> {
//!         %y = stablehlo.add %x, %x : tensor<f32>
//!         return %y : tensor<f32>
//!     }";
//!     let client = Plugin::load("pjrt_c_api_cpu_plugin.so")?.client(&[])?;
//!     let device = &client.devices()[0];
//!     let program = client.compile(text, &CompileOptions::replicas(&[device.id()]))?;
//!     let x = client.upload(DType::F32, &[], &x.to_ne_bytes(), device)?;
//!     program.run(&[[&x]])?[0][0].download()
//! }
//! ```
//!
//! Objects may be shared between threads, and sent to others. An object keeps what it belongs to alive: a buffer its
//! client, a client its plugin, which is never unloaded.
//!
//! XLA itself prints to the standard error of the process; the environment variable `TF_CPP_MIN_LOG_LEVEL=3` silences most
//! of it.
//!
//! What XLA refuses is a [`Diagnostic`](partita_base::Diagnostic) with its text as a note. Failed checks inside a plugin
//! end the process, which no caller can prevent: programs of unknown origin belong into a process of their own.

mod api;
mod buffer;
mod client;
mod element;
mod executable;
mod hlo;
mod layout;
mod options;
mod plugin;
mod saved;
mod store;
mod topology;
mod value;

pub use buffer::Buffer;
pub use client::{Client, Device, DeviceMemory};
pub use executable::{Compiled, Executable, ExecutableMemory};
pub use options::CompileOptions;
pub use plugin::Plugin;
pub use store::Store;
pub use topology::Topology;
pub use value::Value;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_shared_between_threads() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Plugin>();
        is_shared::<Client>();
        is_shared::<Device>();
        is_shared::<Buffer>();
        is_shared::<Executable>();
        is_shared::<Compiled>();
        is_shared::<Topology>();
    }
}
