//! What is refused, by us or by XLA, on a plugin for CPUs.

use crate::{ADD, DONATE, SUM, client, ids, plugin, upload};
use partita_base::{DType, Diagnostic};
use partita_pjrt::{CompileOptions, Value};

/// The diagnostic has this code, and says all of this.
fn says(error: Box<Diagnostic>, code: &str, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.code, code, "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in\n{text}");
    }
}

#[test]
fn options_of_clients_are_refused() {
    let Some(plugin) = plugin("options_of_clients_are_refused") else { return };
    let refused = |options: &[(&str, Value)]| plugin.client(options).unwrap_err();
    says(
        refused(&[("no_such_option", Value::from(3))]),
        "E064",
        &["no_such_option = 3 (integer)", "XLA says"],
    );
    says(refused(&[("cpu_device_count", Value::from(true))]), "E064", &["cpu_device_count = true (boolean)"]);
    says(refused(&[("cpu_device_count", Value::from("four"))]), "E064", &["cpu_device_count = four (text)"]);
    says(refused(&[("", Value::from(""))]), "E064", &["XLA says"]);
}

#[test]
fn devices_that_are_not_there_cannot_be_described() {
    let Some(plugin) = plugin("devices_that_are_not_there_cannot_be_described") else { return };
    says(
        plugin.topology("", &[("topology", Value::from("1x1x4"))]).unwrap_err(),
        "E064",
        &["topology = 1x1x4"],
    );
}

#[test]
fn programs_are_refused() {
    let Some(plugin) = plugin("programs_are_refused") else { return };
    let client = client(&plugin, 2);
    let one = CompileOptions::replicas(&[0]);
    let refused = |text: &str, options: &CompileOptions| client.compile(text, options).unwrap_err();
    let wrong = "module {\n  func.func @main() -> tensor<f32> { return }\n}";
    says(refused(wrong, &one), "E065", &["XLA says", "2:38: error: 'func.return' op has 0 operands"]);
    says(refused("", &one), "E065", &["XLA says"]);
    says(refused("no module", &one), "E065", &["XLA says"]);
    says(refused("module { }", &one), "E065", &["XLA says"]);
    says(refused(ADD, &CompileOptions::replicas(&[])), "E065", &["no devices"]);
    says(refused(ADD, &CompileOptions::replicas(&[0, 9])), "E065", &["XLA says", "9"]);
    says(refused(ADD, &CompileOptions::replicas(&[1, 1])), "E065", &["device 1"]);
    says(refused(ADD, &one.clone().flag("no_such_flag", true)), "E065", &["no_such_flag"]);
    says(refused(ADD, &one.clone().flag("xla_cpu_enable_fast_math", "perhaps")), "E065", &["XLA says"]);
    // The copy to a device is row-major, and XLA does not compare layouts: sums would be in another order.
    for place in ["%b: tensor<2x3xf32>", "-> tensor<2x3xf32>"] {
        let layout = "{mhlo.layout_mode = \"{0,1}\"}";
        let result = format!("-> (tensor<2x3xf32> {layout})");
        let with = if place.starts_with('%') { format!("{place} {layout}") } else { result };
        says(refused(&ADD.replacen(place, &with, 1), &one), "E065", &["not row-major"]);
    }
    client.compile(ADD, &one.flag("xla_cpu_enable_fast_math", false)).unwrap();
}

#[test]
fn saved_executables_are_refused() {
    let Some(plugin) = plugin("saved_executables_are_refused") else { return };
    let client = client(&plugin, 4);
    let program = client.compile(SUM, &CompileOptions::replicas(&ids(&client))).unwrap();
    let saved = program.serialize().unwrap();
    says(client.load(&[]).unwrap_err(), "E066", &["0 bytes"]);
    says(client.load(b"this is no saved executable").unwrap_err(), "E066", &["these bytes are none"]);
    says(client.load(&saved[..saved.len() / 2]).unwrap_err(), "E066", &["damaged"]);
    let few = crate::client(&plugin, 2);
    says(few.load(&saved).unwrap_err(), "E066", &["XLA says"]);
}

#[test]
fn arguments_are_refused() {
    let Some(plugin) = plugin("arguments_are_refused") else { return };
    let (client, other) = (client(&plugin, 4), client(&plugin, 1));
    let devices = client.devices();
    let add = client.compile(ADD, &CompileOptions::replicas(&[0])).unwrap();
    let a = upload(&devices[0], &[2, 3], &[1.; 6]);
    says(add.run(&[[&a]]).unwrap_err(), "E480", &["2 arguments", "found: 1"]);
    says(add.run(&[[&a, &a, &a]]).unwrap_err(), "E480", &["2 arguments", "found: 3"]);
    says(add.run::<[_; 0]>(&[]).unwrap_err(), "E480", &["arguments for 1 devices", "for 0"]);
    says(add.run(&[[&a, &a], [&a, &a]]).unwrap_err(), "E480", &["arguments for 1 devices", "for 2"]);
    let there = upload(&devices[1], &[2, 3], &[1.; 6]);
    let words =
        ["argument 1 is on another device", "device 0 (cpu)", "tensor<2x3xf32> on device 1 (cpu)", "copy_to"];
    says(add.run(&[[&a, &there]]).unwrap_err(), "E480", &words);
    let foreign = upload(&other.devices()[0], &[2, 3], &[1.; 6]);
    says(add.run(&[[&a, &foreign]]).unwrap_err(), "E480", &["argument 1", "another client", "download it"]);

    // XLA compares sizes only: the last two of these have the same one.
    let integers = client.upload(DType::I32, &[2, 3], &[0; 24], &devices[0]).unwrap();
    for wrong in [upload(&devices[0], &[2, 4], &[1.; 8]), integers, upload(&devices[0], &[3, 2], &[1.; 6])] {
        let words =
            ["argument 1 has another type", "expected: tensor<2x3xf32>", &format!("found: {wrong:?}")];
        says(add.run(&[[&a, &wrong]]).unwrap_err(), "E480", &words);
    }

    let sum = client.compile(SUM, &CompileOptions::replicas(&ids(&client))).unwrap();
    let all: Vec<_> = devices.iter().map(|device| upload(device, &[4], &[1.; 4])).collect();
    let lists = [vec![&all[0]], vec![&all[1]], vec![&all[2], &all[2]], vec![&all[3]]];
    says(sum.run(&lists).unwrap_err(), "E480", &["on device 2 (cpu)", "1 arguments", "found: 2"]);
    assert!(all.iter().all(|buffer| !buffer.is_deleted().unwrap()), "nothing is donated by a refused run");

    let donate = client.compile(DONATE, &CompileOptions::replicas(&[0])).unwrap();
    let x = upload(&devices[0], &[4], &[1.; 4]);
    says(donate.run(&[[&x, &x]]).unwrap_err(), "E480", &["argument 1", "expected: tensor<f32>"]);
}

#[test]
fn uploads_and_copies_are_refused() {
    let Some(plugin) = plugin("uploads_and_copies_are_refused") else { return };
    let (client, other) = (client(&plugin, 1), client(&plugin, 1));
    let (device, foreign) = (&client.devices()[0], &other.devices()[0]);
    let upload = |dtype, shape: &[usize], bytes: usize| {
        client.upload(dtype, shape, &vec![0; bytes], device).unwrap_err()
    };
    says(upload(DType::F32, &[2, 3], 23), "E481", &["24 bytes for tensor<2x3xf32>", "23 bytes"]);
    says(upload(DType::F64, &[], 4), "E481", &["8 bytes for tensor<f64>", "4 bytes"]);
    for shape in
        [&[usize::MAX, 2][..], &[0, usize::MAX], &[usize::MAX, 0], &[1 << 40, 1 << 40, 0], &[1 << 61]]
    {
        says(upload(DType::F32, shape, 0), "E481", &["less than 2^63 bytes"]);
    }
    says(client.upload(DType::F32, &[], &[0; 4], foreign).unwrap_err(), "E481", &["another client"]);
    let buffer = client.upload(DType::F32, &[], &[0; 4], device).unwrap();
    says(buffer.copy_to(foreign).unwrap_err(), "E481", &["another client"]);
}
