//! Every integration test of the crate in one binary, which links once.
//!
//! Tests in `cpu` and `mistakes` run on a plugin: the path of one for CPUs, such as `pjrt_c_api_cpu_plugin.so` in the
//! wheel `lammps-jax-pjrt-cpu` 0.11.2, is in the environment variable `PARTITA_PJRT_PLUGIN`. Without it they say that
//! they are skipped.

mod cpu;
mod libraries;
mod mistakes;
mod standin;

use partita_base::DType;
use partita_pjrt::{Buffer, Client, Device, Plugin, Value};
use std::sync::OnceLock;

/// The plugin under test, loaded once. `None` without one: the test `name` is skipped, and says so.
fn plugin(name: &str) -> Option<Plugin> {
    static PLUGIN: OnceLock<Option<Plugin>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os("PARTITA_PJRT_PLUGIN")?;
        // Failed runs print to the standard error of the process too; the first call of the plugin reads this.
        Some(Plugin::load(path).expect("PARTITA_PJRT_PLUGIN is the path of a plugin"))
    };
    let plugin = PLUGIN.get_or_init(load).clone();
    if plugin.is_none() {
        eprintln!("skipped: {name}: PARTITA_PJRT_PLUGIN is not set");
    }
    plugin
}

/// A client with so many devices.
fn client(plugin: &Plugin, devices: i64) -> Client {
    plugin.client(&[("cpu_device_count", Value::from(devices))]).expect("the plugin is one for CPUs")
}

/// The ids of all devices.
fn ids(client: &Client) -> Vec<i32> {
    client.devices().iter().map(Device::id).collect()
}

/// Singles on a device.
fn upload(device: &Device, shape: &[usize], values: &[f32]) -> Buffer {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    device.client().upload(DType::F32, shape, &data, device).expect("it fits")
}

/// The singles of a buffer.
fn download(buffer: &Buffer) -> Vec<f32> {
    let data = buffer.download().expect("it can be read");
    data.chunks(4).map(|value| f32::from_ne_bytes(value.try_into().expect("four bytes"))).collect()
}

/// Adds two matrices.
const ADD: &str = "module @add {
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %c = stablehlo.add %a, %b : tensor<2x3xf32>
    return %c : tensor<2x3xf32>
  }
}";

/// Sums over four replicas; the argument is donated to the first result, the second counts the replica.
const SUM: &str = "module @sum {
  func.func public @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<4xf32>, tensor<ui32>) {
    %y = \"stablehlo.all_reduce\"(%x) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.replica_id : tensor<ui32>
    return %y, %r : tensor<4xf32>, tensor<ui32>
  }
}";

/// Returns the argument plus one, in its memory.
const DONATE: &str = "module @donate {
  func.func public @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<f32>) -> tensor<4xf32> {
    %z = stablehlo.broadcast_in_dim %y, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %r = stablehlo.add %x, %z : tensor<4xf32>
    return %r : tensor<4xf32>
  }
}";
