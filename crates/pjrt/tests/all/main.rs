//! Every integration test of the crate in one binary, which links once.
//!
//! Tests in `cpu` and `mistakes` run on a plugin: the path of one for CPUs, such as `pjrt_c_api_cpu_plugin.so` in the
//! wheel `lammps-jax-pjrt-cpu` 0.11.2, is in the environment variable `PARTITA_PJRT_PLUGIN`. Without it they say that
//! they are skipped. `TF_CPP_MIN_LOG_LEVEL=3` silences what a plugin itself prints.

mod absent;
mod cpu;
mod libraries;
mod mistakes;
mod standin;

use partita_base::DType;
use partita_pjrt::{Buffer, Client, Device, Plugin, Value};

/// The plugin whose path is in this environment variable. `None` without one: the test `name` is skipped, and says so.
fn load(variable: &str, name: &str) -> Option<Plugin> {
    let Some(path) = std::env::var_os(variable) else {
        eprintln!("skipped: {name}: {variable} is not set");
        return None;
    };
    Some(Plugin::load(path).unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// The plugin for CPUs under test.
fn plugin(name: &str) -> Option<Plugin> {
    load("PARTITA_PJRT_PLUGIN", name)
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
