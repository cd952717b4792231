//! `eval`, `generate` and `export` on saved runs, and `show --keys`.

use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, import_weights, load};
use partita_testkit::{Place, TINY, newest};
use serde_json::Value;
use std::fs;

/// A folder with a run of a tiny model in `saved`, and the events of that run.
fn trained(model: &str, mesh: &str, more: &[&str]) -> (Place, partita_testkit::Outcome) {
    let place = crate::place();
    let outcome = place.train(model, mesh, &[&["--checkpoint-dir", "saved"], more].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    (place, outcome)
}

/// A number of the only event of this kind.
fn number(outcome: &partita_testkit::Outcome, event: &str, key: &str) -> f64 {
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let events = outcome.of(event);
    assert_eq!(events.len(), 1, "{}", outcome.out);
    events[0][key].as_f64().unwrap_or_else(|| panic!("{key}: {}", events[0]))
}

#[test]
fn eval_gives_the_validation_loss_of_the_run_on_any_mesh() {
    let (place, run) = trained("gpt", "tp=2", &["--set", "train.validate_batches=2"]);
    let expected = number(&run, "validation", "loss");
    let eval = |more: &[&str]| place.run(&[&["eval", "saved", "--json"], more].concat());
    let loss = |more: &[&str]| number(&eval(more), "evaluation", "loss");
    assert_eq!(loss(&[]).to_bits(), expected.to_bits(), "the same mesh and batches give the same bits");
    assert_eq!(loss(&["--mesh", "tp=2", "--kernels", "native"]).to_bits(), expected.to_bits());
    for mesh in ["dp=1", "dp=2,tp=2", "fsdp=3", "sp=2"] {
        let found = loss(&["--mesh", mesh]);
        assert!((found - expected).abs() < 1e-5 * expected, "{mesh}: {found} and {expected}");
    }
    // The folder of a checkpoint, a config with `--from`, and more batches.
    let folder = newest(&place.path("saved"));
    let by_folder = place.run(&["eval", folder.to_str().unwrap(), "--json"]);
    assert_eq!(number(&by_folder, "evaluation", "loss").to_bits(), expected.to_bits());
    assert_eq!(number(&by_folder, "evaluation", "step"), 6.0);
    let mut items: Vec<&str> = vec!["eval", "gpt", "--from", "saved", "--json", "--mesh", "tp=2"];
    for item in TINY {
        items.extend(["--set", item]);
    }
    items.extend(["--set", "train.validate_batches=2"]);
    assert_eq!(number(&place.run(&items), "evaluation", "loss").to_bits(), expected.to_bits());
    assert_ne!(loss(&["--batches", "1"]).to_bits(), expected.to_bits());
    assert_eq!(number(&eval(&["--batches", "3"]), "evaluation", "batches"), 3.0);

    let beyond = eval(&["--batches", "100000"]);
    let note = beyond.of("note")[0]["message"].as_str().unwrap().to_string();
    let held_out = number(&beyond, "evaluation", "batches");
    assert!(note.contains(&format!("the data has {held_out} validation batches, not 100000")), "{note}");

    let text = place.run(&["eval", "saved"]).out;
    for word in ["validation loss", "nats/byte", "after step 6", "2 batches of 8 rows", "bigram counts"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn eval_of_a_model_without_text() {
    let (place, run) = trained("mlp", "dp=2", &[]);
    let found = place.run(&["eval", "saved", "--json", "--mesh", "tp=2"]);
    let (found, expected) = (number(&found, "evaluation", "loss"), number(&run, "validation", "loss"));
    assert!((found - expected).abs() < 1e-5 * expected, "{found} and {expected}");
    // Without a name of a checkpoint, the newest run of the model.
    place.run(&["eval", "mlp", "--json"]).refuses("E311", &["runs/mlp"]);
}

#[test]
fn generate_continues_a_text_as_training_does_at_its_end() {
    let (place, run) = trained("gpt", "tp=2", &["--set", "train.sample_bytes=20", "--set", "train.seed=5"]);
    let sample = &run.of("sample")[0];
    let generate = |more: &[&str]| {
        let outcome = place
            .run(&[&["generate", "saved", "--json", "--prompt", "fn ", "--tokens", "20"], more].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        outcome.of("sample")[0]["text"].as_str().unwrap().to_string()
    };
    assert_eq!(generate(&["--seed", "5"]), sample["text"].as_str().unwrap());
    assert_eq!(generate(&["--seed", "5", "--mesh", "tp=2"]), sample["text"].as_str().unwrap());
    assert_ne!(
        generate(&["--seed", "6", "--temperature", "3"]),
        generate(&["--seed", "7", "--temperature", "3"])
    );
    // The likeliest token does not depend on the seed.
    assert_eq!(
        generate(&["--seed", "6", "--temperature", "0"]),
        generate(&["--seed", "7", "--temperature", "0"])
    );
    assert_eq!(generate(&["--temperature", "3", "--top-k", "1"]), generate(&["--temperature", "0"]));
    let text = place.run(&["generate", "saved", "--prompt", "fn ", "--tokens", "20", "--seed", "5"]);
    assert_eq!(text.out, format!("fn {}\n", sample["text"].as_str().unwrap()));
}

/// The header of a safetensors file, read by its specification: eight bytes of length, JSON, tensors.
fn header(bytes: &[u8]) -> (serde_json::Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let Value::Object(header) = serde_json::from_slice(&bytes[8..8 + length]).unwrap() else {
        panic!("an object")
    };
    (header, &bytes[8 + length..])
}

#[test]
fn exported_weights_are_those_of_the_checkpoint_without_the_optimizer() {
    let (place, _) = trained("gpt", "fsdp=2,tp=2", &["--set", "model.fused_qkv=true", "--dtype", "bf16"]);
    let outcome =
        place.run(&["export", "saved", "--for", "safetensors", "--out", "weights.safetensors", "--json"]);
    assert_eq!(
        number(&outcome, "export", "tensors"),
        17.0,
        "6 matrices and biases of a layer, 3 norms, 2 embeddings, the tied head"
    );
    let checkpoint = load(&place.path("saved")).unwrap();
    let bytes = fs::read(place.path("weights.safetensors")).unwrap();
    let (mut header, data) = header(&bytes);
    assert_eq!(header.remove("__metadata__").unwrap()["format"], "pt");
    let mut total = 0;
    for (name, entry) in &header {
        assert!(!name.starts_with("optimizer.") && !name.contains('#'), "{name}");
        let own = if name == "lm_head.weight" { "embed_tokens.weight" } else { name.as_str() };
        let tensor = &checkpoint.tensors[own];
        assert_eq!(entry["dtype"], "BF16", "{name}");
        let shape: Vec<u64> = tensor.shape.iter().map(|&extent| extent as u64).collect();
        assert_eq!(entry["shape"], serde_json::json!(shape), "{name}");
        let [begin, end] = [0, 1].map(|at| entry["data_offsets"][at].as_u64().unwrap() as usize);
        assert!(data[begin..end] == tensor.bytes, "{name}");
        total += end - begin;
    }
    assert_eq!(total, data.len());
    assert!(header.contains_key("layers.0.attn.qkv_proj.weight"), "a fused projection is one tensor");

    // A config alone gives its initial weights, under the same names.
    let mut items: Vec<&str> =
        vec!["export", "gpt", "--for", "safetensors", "--set", "model.fused_qkv=true", "--dtype", "bf16"];
    for item in TINY {
        items.extend(["--set", item]);
    }
    let initial = place.run(&items);
    assert_eq!(initial.code, Some(0), "{}", initial.err);
    let initial = import_weights(&place.path("gpt.safetensors")).unwrap();
    assert!(initial.keys().eq(import_weights(&place.path("weights.safetensors")).unwrap().keys()));
    assert!(initial["embed_tokens.weight"] != checkpoint.tensors["embed_tokens.weight"]);
}

#[test]
fn a_plan_is_exported_in_each_of_its_forms() {
    let place = crate::place();
    fs::write(place.path("plan.py"), "sch[\"layers.*.mlp.up_proj\"].colwise()\n").unwrap();
    let export = |source: &str, form: &str| {
        let outcome = place.run(&["export", source, "--for", form]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        outcome.out
    };
    assert!(export("plan.py", "toml").contains("layers.*.mlp.up_proj"));
    assert_eq!(export("plan.py", "dict"), "[plan]\n\"layers.*.mlp.up_proj\" = \"colwise\"\n");
    fs::write(place.path("plan.toml"), export("plan.py", "toml")).unwrap();
    assert_eq!(export("plan.toml", "calls"), export("plan.py", "slapo"));
    let shown = place.run(&["show", "mlp", "--mesh", "tp=2", "--as", "dict"]).out;
    let exported = place.run(&["export", "mlp", "--mesh", "tp=2", "--for", "dict"]).out;
    assert_eq!(shown, exported);
    let written = place.run(&["export", "plan.py", "--for", "dict", "--out", "dict.toml"]);
    assert_eq!((written.code, written.out.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(place.path("dict.toml")).unwrap(), export("plan.py", "dict"));
}

#[test]
fn a_step_for_xla_is_a_folder_with_its_runner() {
    let place = crate::place();
    let export = |line: &str| place.run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--json"]].concat());
    let outcome = export("export mlp --for xla --mesh fsdp=2 --steps 3 --out step");
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert_eq!(number(&outcome, "export", "tensors"), 4.0, "two weights and two biases");
    let text = |name: &str| fs::read_to_string(place.path("step").join(name)).unwrap();
    let manifest: Value = serde_json::from_str(&text("manifest.json")).unwrap();
    assert_eq!((&manifest["format"], &manifest["form"]), (&"partita-xla-1".into(), &"uniform".into()));
    assert_eq!(manifest["mesh"], serde_json::json!([["fsdp", 2]]));
    let module = &manifest["modules"][0];
    assert_eq!(module["ranks"], serde_json::json!([0, 1]));
    let step = text(module["file"].as_str().unwrap());
    assert!(
        step.starts_with("module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {")
    );
    assert!(step.contains("func.func public @main(") && step.contains("stablehlo.reduce_scatter"));
    assert!(text("run.py").contains("def main()"));
    let feeds = fs::read(place.path("step").join("feeds.safetensors")).unwrap();
    let names = ["1/inputs", "1/targets", "2/inputs", "2/targets", "3/inputs", "3/targets"];
    assert!(names.iter().all(|name| header(&feeds).0.contains_key(*name)), "a batch for each step");
    let outcome = export("export mlp --for xla --form global --mesh fsdp=2 --steps 1 --out global");
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let global = fs::read_to_string(place.path("global").join("step.mlir")).unwrap();
    assert!(
        global
            .starts_with("module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {")
    );
    assert!(global.contains("sdy.sharding") && !global.contains("stablehlo.reduce_scatter"));

    export("export mlp --for xla --out step").refuses("E043", &["step", "--out"]);
    export("export mlp --for xla --from step").refuses("E313", &[]);
    export("export gpt --for xla --form global --mesh pp=2 --microbatches 2").refuses("E276", &["2 stages"]);
    fs::write(place.path("plan.toml"), "[plan]\n").unwrap();
    export("export plan.toml --for xla").refuses("E038", &["plan.toml"]);
    export("export mlp --for torch")
        .refuses("E060", &["partita.torch.apply", "python/docs/torch.md", "--for xla"]);
}

#[test]
fn what_cannot_be_evaluated_generated_or_exported_is_refused() {
    let (place, _) = trained("gpt", "dp=1", &["--steps", "1"]);
    fs::create_dir(place.path("empty")).unwrap();
    let run = |line: &str| place.run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--json"]].concat());
    run("eval nowhere").refuses("E005", &["no config `nowhere`"]);
    run("eval empty").refuses("E311", &["empty"]);
    run("eval saved --from nowhere").refuses("E311", &["nowhere"]);
    // The run of a program with a model of its own.
    let whole = load(&place.path("saved")).unwrap();
    let config = "[model]\nkind = \"towers\"\n".to_string();
    let towers = RunFolder::create(&place.path("towers"), 1).unwrap();
    let beside = [("config.toml".to_string(), config)].into();
    towers.save(&FileStorage, Checkpoint { beside, ..whole }).unwrap();
    for command in ["eval towers", "generate towers --prompt a", "export towers --for safetensors"] {
        run(command).refuses("E004", &["`towers`", "a program with a model of its own"]);
    }
    run("eval saved --set model.dim=48").refuses("E314", &["expected f32[48", "saved"]);
    run("eval saved --set data.validation_fraction=0").refuses("E303", &["held out"]);
    run("eval saved --batches 0").refuses("E033", &["--batches"]);
    run("eval saved --mesh dp=300").refuses("E007", &["at most 256"]);
    run("generate saved --prompt a --temperature -1").refuses("E033", &["at least 0"]);
    run("generate saved --prompt a --temperature nan").refuses("E033", &["at least 0"]);
    run("generate saved --prompt a --tokens 0").refuses("E033", &["--tokens"]);
    run("generate saved").refuses("E033", &["--prompt"]);
    run("generate saved --prompt a --set model.layers=2").refuses("E314", &["layers.1"]);
    run("generate mlp --from saved --prompt a").refuses("E011", &["does not generate text", "gpt or llama"]);
    run("generate bert --from saved --prompt a").refuses("E011", &["does not generate text"]);
    run("export saved --for safetensors --out text.txt").refuses("E316", &["text.txt", "--out"]);
    run("export saved --for safetensors --out nowhere/w.safetensors").refuses("E316", &["nowhere"]);
    run("export saved --for safetensors --set model.dim=48").refuses("E314", &["expected f32[48"]);
    run("export text.txt --for safetensors").refuses("E038", &["a plan has no weights"]);
    run("export saved --for onnx").refuses("E033", &["safetensors"]);
    run("export saved --for dict --out text.txt").refuses("E043", &["text.txt", "--out"]);
    assert!(!place.path("gpt.safetensors").exists());
}

#[test]
fn every_key_is_listed_with_its_type_default_and_meaning() {
    let place = crate::place();
    let outcome = place.run(&["show", "--keys", "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let keys = outcome.of("keys")[0]["keys"].as_array().unwrap().clone();
    for key in &keys {
        for field in ["key", "takes", "default", "about"] {
            assert!(!key[field].as_str().unwrap().is_empty(), "{key}");
        }
    }
    let steps = keys.iter().find(|key| key["key"] == "train.steps").unwrap();
    assert_eq!((&steps["takes"], &steps["default"]), (&Value::from("count"), &Value::from("100")));
    let text = place.run(&["show", "--keys"]).out;
    assert!(text.lines().all(|line| line.len() <= 180), "{text}");
    for key in &keys {
        assert!(text.contains(key["key"].as_str().unwrap()), "{key}");
    }
    place.run(&["show", "--json"]).refuses("E033", &["needs a config", "--keys"]);
}
