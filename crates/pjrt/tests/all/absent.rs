//! Compiling for GPUs that are not there, on a plugin for CUDA such as `xla_cuda_plugin.so` in the wheel `jax-cuda13-pjrt`
//! 0.12.0.1, whose path is in the environment variable `PARTITA_PJRT_CUDA_PLUGIN`. It needs no GPU and no driver.

use crate::{ADD, SUM, load};
use partita_base::DType;
use partita_pjrt::{CompileOptions, Plugin, Topology, Value};

/// An H100, as a text of `GpuTargetConfigProto`.
const H100: &str = include_str!("../h100.txtpb");

fn plugin(name: &str) -> Option<Plugin> {
    load("PARTITA_PJRT_CUDA_PLUGIN", name)
}

fn four(plugin: &Plugin) -> Topology {
    let options = [("target_config", Value::from(H100)), ("topology", Value::from("1x1x4"))];
    plugin.topology("", &options).unwrap()
}

#[test]
fn four_h100_are_described() {
    let Some(plugin) = plugin("four_h100_are_described") else { return };
    let topology = four(&plugin);
    assert_eq!(topology.platform().unwrap(), "cuda");
    let devices: Vec<(i32, String)> = (0..4).map(|id| (id, "NVIDIA H100 80GB HBM3".to_string())).collect();
    assert_eq!(topology.devices().unwrap(), devices);
    assert_eq!(plugin.attribute("xla_version"), Some(&Value::from(2)));
}

#[test]
fn programs_are_compiled_for_them_and_saved() {
    let Some(plugin) = plugin("programs_are_compiled_for_them_and_saved") else { return };
    let compiled = four(&plugin).compile(SUM, &CompileOptions::replicas(&[0, 1, 2, 3])).unwrap();
    assert_eq!(compiled.inputs(), Some(&[(DType::F32, vec![4])][..]));
    assert_eq!(compiled.outputs().unwrap(), [(DType::F32, vec![4]), (DType::U32, vec![])]);
    let memory = compiled.memory().unwrap().expect("it is counted");
    assert_eq!((memory.arguments, memory.aliased), (16, 16));
    let saved = compiled.serialize().unwrap();
    let build = plugin.build();
    assert!(saved.windows(build.len()).any(|part| part == build.as_bytes()));
}

#[test]
fn descriptions_and_programs_are_refused() {
    let Some(plugin) = plugin("descriptions_and_programs_are_refused") else { return };
    let refused = |target: &str, topology: &str| {
        let options = [("target_config", Value::from(target)), ("topology", Value::from(topology))];
        let error = plugin.topology("", &options).unwrap_err();
        assert_eq!(error.code, "E064");
        error.to_string()
    };
    assert!(refused("no card", "1x1x4").contains("Failed to parse GpuTargetConfigProto"));
    let text = refused(H100, "four");
    assert!(text.contains("topology must be of shape"), "{text}");
    assert!(text.contains("target_config = gpu_device_info {.. (text), topology = four (text)"), "{text}");
    let error = four(&plugin).compile("no module", &CompileOptions::replicas(&[0])).unwrap_err();
    assert_eq!(error.code, "E065");
    let error = four(&plugin).compile(ADD, &CompileOptions::replicas(&[])).unwrap_err();
    assert_eq!(error.code, "E065");
}
