//! `partita plan`, and `--plan auto`.

use partita_testkit::Place;
use serde_json::Value;
use std::process::{Command, Output};

fn partita(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partita")).args(arguments).output().unwrap()
}

/// The event `plan` of a command.
fn found(arguments: &[&str]) -> Value {
    let output = partita(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    events.into_iter().find(|event| event["event"] == "plan").unwrap()
}

#[test]
fn the_plan_found_is_the_fastest_and_the_bound_is_below_it() {
    let event = found(&["plan", "mlp", "--mesh", "dp=2,tp=2", "--why"]);
    let seconds: Vec<f64> =
        event["candidates"].as_array().unwrap().iter().map(|row| row["step_s"].as_f64().unwrap()).collect();
    assert!(seconds.len() >= 2 && seconds.iter().all(|&other| seconds[0] <= other), "{event}");
    assert!(
        event["candidates"].as_array().unwrap().iter().any(|row| row["source"] == "ready plan"),
        "{event}"
    );
    let search = &event["searches"][0];
    let cost_s = search["cost_s"].as_f64().unwrap();
    assert!(search["bound_s"].as_f64().unwrap() <= cost_s, "{event}");
    let without = search["without"].as_array().unwrap();
    assert!(!without.is_empty(), "{event}");
    for line in without {
        assert!(line[1].as_f64().is_none_or(|other_s| other_s >= cost_s * (1.0 - 1e-9)), "{line}");
    }
}

/// What searches found, which is in other terms than the table, is told where it is requested.
#[test]
fn searches_are_told_of_with_why() {
    let printed = |more: &[&str]| {
        let output = partita(&[&["plan", "mlp", "--mesh", "dp=2,tp=2"][..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (short, long) = (printed(&[]), printed(&["--why"]));
    assert!(short.contains("`--why` tells of 1 search") && !short.contains("search on "), "{short}");
    assert!(!short.contains("refused: "), "{short}");
    assert!(long.contains("search on dp=2,tp=2: the layouts found") && !long.contains("`--why`"), "{long}");
}

#[test]
fn every_mesh_of_the_devices_is_tried_and_the_plan_reads_back() {
    let place = Place::of(env!("CARGO_BIN_EXE_partita"));
    let file = place.path("found.toml");
    let path = file.to_str().unwrap();
    let event = found(&["plan", "mlp", "--devices", "2", "--batch", "8", "--out", path]);
    let meshes: Vec<&str> =
        event["candidates"].as_array().unwrap().iter().map(|row| row["mesh"].as_str().unwrap()).collect();
    for mesh in ["tp=2", "dp=2", "pp=2"] {
        assert!(meshes.contains(&mesh), "{meshes:?}");
    }
    let best = &event["candidates"][0];
    let (mesh, microbatches) = (best["mesh"].as_str().unwrap(), best["microbatches"].to_string());
    // The file says for which mesh it is; another one may be given.
    let told = std::fs::read_to_string(&file).unwrap();
    assert!(told.starts_with(&format!("mesh = \"{mesh}\"\nmicrobatches = {microbatches}\n")), "{told}");
    let other = format!("{mesh},zz=1");
    let other = other.as_str();
    for (more, used) in [(vec![], mesh), (vec!["--mesh", other], other)] {
        let run = partita(&[&["show", "mlp", "--batch", "8", "--plan", path][..], &more].concat());
        let (shown, notes) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(shown.starts_with(&format!("model mlp on mesh {used} (")), "{shown}{notes}");
        assert_eq!(notes.contains(&format!("was made for mesh = \"{mesh}\"")), used != mesh, "{notes}");
    }
    let verify = partita(&["verify", "mlp", "--batch", "8", "--plan", path]);
    assert_eq!(verify.status.code(), Some(0), "{}", String::from_utf8_lossy(&verify.stderr));
}

/// Stages on slices of two ranks and one: the plan file runs as it is, costs what was predicted, and changes no number.
#[test]
fn a_plan_with_slices_of_different_sizes_reads_back() {
    let place = Place::of(env!("CARGO_BIN_EXE_partita"));
    let file = place.path("found.toml");
    let path = file.to_str().unwrap();
    let links = "cluster.links=[{ranks=2,latency_s=1e-6,bytes_per_s=3e10},{latency_s=5e-6,bytes_per_s=5e8}]";
    let sets = [
        "model.layers=4",
        "model.dim=128",
        "model.sequence=16",
        "model.dropout=0.0",
        "cluster.name=a100-8",
        "cluster.flops_per_s=1e11",
        "cluster.flops_efficiency=1.0",
        "cluster.memory_efficiency=1.0",
        "cluster.memory_bytes_per_s=1e12",
        links,
    ];
    let sets = sets.map(|item| ["--set", item]).concat();
    let model = [&["gpt", "--batch", "16"][..], &sets].concat();
    let search = ["--devices", "3", "--microbatches", "4", "--timetable", "1f1b", "--out", path];
    let event = found(&[&["plan"][..], &model, &search].concat());
    let best = &event["candidates"][0];
    let slices: Vec<&str> =
        best["slices"].as_array().unwrap().iter().map(|mesh| mesh.as_str().unwrap()).collect();
    assert!(slices.len() == 2 && slices[0] != slices[1], "{best}");
    let told = std::fs::read_to_string(&file).unwrap();
    assert!(told.starts_with("mesh = \"pp=3\"\nmicrobatches = 4\n"), "{told}");
    let simulate = partita(&[&["simulate"][..], &model, &["--plan", path, "--json"]].concat());
    let simulated = String::from_utf8(simulate.stdout).unwrap();
    let simulated: Value = serde_json::from_str(simulated.lines().last().unwrap()).unwrap();
    assert_eq!(simulated["step_s"], best["step_s"]);
    let verify = partita(&[&["verify"][..], &model, &["--plan", path]].concat());
    assert_eq!(verify.status.code(), Some(0), "{}", String::from_utf8_lossy(&verify.stderr));
    let run = place.path("run");
    let steps = ["--plan", path, "--steps", "2", "--checkpoint-dir", run.to_str().unwrap()];
    let train = partita(&[&["train"][..], &model, &steps].concat());
    assert_eq!(train.status.code(), Some(0), "{}", String::from_utf8_lossy(&train.stderr));
}

#[test]
fn a_searched_plan_changes_no_number() {
    for mesh in ["tp=4", "dp=2,tp=2"] {
        let verify = partita(&["verify", "mlp", "--mesh", mesh, "--plan", "auto"]);
        assert_eq!(verify.status.code(), Some(0), "{mesh}: {}", String::from_utf8_lossy(&verify.stderr));
    }
}

#[test]
fn a_device_that_is_too_small_says_by_how_much() {
    let output = partita(&["plan", "mlp", "--mesh", "tp=2", "--set", "cluster.memory_bytes=1000"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(error.contains("E520") && error.contains("too many"), "{error}");
}

/// The array of a file that `numpy.save` might have written: its shape, and the bytes of its values.
fn array(path: &str) -> (Vec<usize>, Vec<[u8; 8]>) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{path}");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0, "{path}");
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let shape: Vec<usize> = shape.split(',').filter_map(|extent| extent.trim().parse().ok()).collect();
    let values: Vec<[u8; 8]> =
        bytes[10 + length..].chunks(8).map(|value| value.try_into().unwrap()).collect();
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{path}");
    (shape, values)
}

/// The costs of stages: more layers cost more and let fewer stages follow, and more devices less; the stages of the chosen
/// plan are printed as Alpa prints them.
#[test]
fn the_costs_of_stages_read_back_as_arrays() {
    let place = Place::of(env!("CARGO_BIN_EXE_partita"));
    let folder = place.path("tables");
    let more = ["model.layers=4", "model.dim=64", "model.sequence=32"].map(|item| ["--set", item]).concat();
    let fixed = [
        "plan",
        "gpt",
        "--mesh",
        "pp=2,dp=2",
        "--cluster",
        "a100-80g:1x4",
        "--batch",
        "8",
        "--microbatches",
        "2",
    ];
    let event = found(&[&fixed[..], &more, &["--tables", folder.to_str().unwrap()]].concat());
    let tables = &event["tables"];
    let files: Vec<&str> =
        tables["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    for (file, name) in files.iter().zip(["compute-cost-", "max-n-succ-stage-", "memory-"]) {
        assert!(file.rsplit('/').next().unwrap().starts_with(name), "{file}");
    }
    let submeshes: Vec<[u64; 2]> = serde_json::from_value(tables["submeshes"].clone()).unwrap();
    assert_eq!(submeshes, [[1, 1], [1, 2], [1, 4]]);
    let (shape, costs) = array(files[0]);
    let costs: Vec<f64> = costs.into_iter().map(f64::from_le_bytes).collect();
    let (of_successors, successors) = array(files[1]);
    let successors: Vec<i64> = successors.into_iter().map(i64::from_le_bytes).collect();
    let (of_memory, memory) = array(files[2]);
    let memory: Vec<f64> = memory.into_iter().map(f64::from_le_bytes).collect();
    assert_eq!(
        (&shape[..], &of_successors[..], &of_memory[..]),
        (&[4, 4, 3][..], &[4, 4, 3][..], &[4, 4, 3, 3][..])
    );
    let at = |first: usize, last: usize, submesh: usize| (first * 4 + last) * 3 + submesh;
    for first in 0..4 {
        for last in 0..4 {
            for submesh in 0..3 {
                let own = at(first, last, submesh);
                // No stage ends before it begins.
                assert_eq!(costs[own].is_finite(), first <= last, "{first} {last} {submesh}");
                if first < last {
                    let shorter = at(first, last - 1, submesh);
                    assert!(costs[own] > costs[shorter], "{first} {last} {submesh}");
                    assert!(successors[own] <= successors[shorter], "{first} {last} {submesh}");
                    assert!(memory[3 * own] > memory[3 * shorter], "{first} {last} {submesh}");
                }
            }
        }
    }
    // Layers in the middle cost the same wherever they are.
    assert!((costs[at(1, 1, 0)] / costs[at(2, 2, 0)] - 1.0).abs() < 1e-9);
    let result: Vec<&str> = tables["result"].as_str().unwrap().lines().collect();
    let expected = [
        "Result forward_stage_layer_ids: [[0, 1], [2, 3]]",
        "Result meshes: [(1, 2), (1, 2)]",
        "Result logical_mesh_shapes: [(2, 1), (2, 1)]",
        "Result autosharding_option_dicts: [{}, {}]",
    ];
    assert_eq!(result, expected);
}

/// Each kind of device has its row; MFU counts the peaks of all devices.
#[test]
fn a_cluster_of_two_devices_says_what_each_of_them_does() {
    let json = |args: &[&str]| -> Value {
        let output = partita(&[args, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.into_iter().find(|event| event["event"] == "simulate").unwrap()
    };
    let both = ["simulate", "gpt", "--mesh", "dp=4", "--cluster", "a100-80g:1x2+v100-32g:1x2"];
    let predicted = json(&both);
    let of = |class: usize| &predicted["classes"][class];
    let bytes = [0, 1].map(|class| of(class)["device_bytes"].as_u64().unwrap() >> 30);
    assert_eq!((&of(0)["ranks"], &of(1)["ranks"], bytes), (&[0, 1].into(), &[2, 3].into(), [80, 32]));
    let text = String::from_utf8(partita(&both).stdout).unwrap();
    assert!(text.contains("NVIDIA A100") && text.contains("NVIDIA V100"), "{text}");
    let shown = partita(&[&["show"], &both[1..]].concat());
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("NVIDIA A100 SXM 80 GB with 80.0 GiB") && text.contains("with 32.0 GiB"), "{text}");
    // 312 and 125 TFLOP/s in half precision on two ranks each.
    let large = [
        "simulate",
        "gpt2-124m",
        "--mesh",
        "pp=2,dp=2",
        "--microbatches",
        "8",
        "--dtype",
        "f16",
        "--cluster",
        "a100-80g:1x2+v100-32g:1x2",
    ];
    let folded = json(&large);
    let per_rank = folded["tflops_per_rank"].as_f64().unwrap();
    let mfu = folded["mfu"].as_f64().unwrap();
    assert!((mfu - 4.0 * per_rank / (2.0 * 312.0 + 2.0 * 125.0)).abs() < 1e-9, "{mfu} {per_rank}");
    assert_eq!(folded["devices"].as_array().unwrap().len(), 2);
    let error = partita(&["simulate", "gpt", "--cluster", "a100-80g:1x8+v100-32g:1x4"]);
    assert!(String::from_utf8_lossy(&error.stderr).contains("E471"));
}

/// Bytes are whole numbers: those of the kinds sum to the peak, and `plan` says the same ones for its own plan.
#[test]
fn bytes_of_a_folded_step_are_whole_numbers() {
    let place = Place::of(env!("CARGO_BIN_EXE_partita"));
    let file = place.path("found.toml");
    let path = file.to_str().unwrap();
    let of = ["--cluster", "a100-80g:1x8", "--batch", "48", "--dtype", "bf16", "--mesh", "pp=2,fsdp=3"];
    let event = found(&[&["plan", "gpt2-124m"], &of[..], &["--microbatches", "8", "--out", path]].concat());
    let planned = event["candidates"][0]["bytes"].as_u64().unwrap();
    let best = event["candidates"][0]["flags"].as_str().unwrap();
    let flags: Vec<&str> = best.split_whitespace().collect();
    let more = ["--json", "--plan", path, "--cluster", "a100-80g:1x8", "--batch", "48", "--dtype", "bf16"];
    let run = partita(&[&["simulate", "gpt2-124m"], &flags[..], &more].concat());
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    let lines = String::from_utf8(run.stdout).unwrap();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let simulated = events.into_iter().find(|event| event["event"] == "simulate").unwrap();
    let peak = simulated["peak_bytes"].as_u64().unwrap();
    assert_eq!(peak, planned);
    assert_eq!(simulated["exceeds_bytes"].as_i64().unwrap(), peak as i64 - (80 << 30));
    let sum = |slice: &Value| slice.as_object().unwrap().values().map(|of| of.as_u64().unwrap()).sum::<u64>();
    let slices = simulated["slices"].as_array().unwrap();
    assert_eq!(slices.iter().map(sum).max(), Some(peak));
}

/// V100 has matrix units for f16 alone; a rank without one says nothing.
#[test]
fn a_type_without_matrix_units_is_told_once() {
    let noted = |arguments: &[&str], what: &str| -> usize {
        let run = partita(arguments);
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8_lossy(&run.stdout).lines().filter(|line| line.contains(what)).count()
    };
    let note = "matmuls in bf16 run at 15.7 TFLOP/s, that of f32: f16 is 8.0 times faster";
    let v100 = ["--cluster", "v100-16g:1x2", "--mesh", "dp=2"];
    let both = ["--cluster", "a100-80g:1x2+v100-16g:1x2", "--mesh", "dp=2"];
    for (command, at, dtype, times) in [
        ("simulate", v100, "bf16", 1),
        ("plan", v100, "bf16", 1),
        ("simulate", v100, "f16", 0),
        ("simulate", both, "bf16", 0),
    ] {
        let arguments = [&[command, "gpt"][..], &at, &["--dtype", dtype]].concat();
        assert_eq!(noted(&arguments, note), times, "{arguments:?}");
    }
    assert_eq!(noted(&["estimate", "gpt", "--cluster", "v100-16g"], "half precision is f16 here"), 1);
    assert_eq!(noted(&["estimate", "gpt", "--cluster", "a100-80g"], "half precision"), 0);
}
