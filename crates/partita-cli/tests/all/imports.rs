//! Files with models on the command line, and `partita run`.

use partita_testkit::Place;
use std::fs;
use std::path::Path;

fn model(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2");
    folder.join(name).to_string_lossy().into_owned()
}

/// What a command prints, which must succeed.
#[track_caller]
fn printed(place: &Place, items: &[&str]) -> String {
    let outcome = place.run(items);
    assert_eq!(outcome.code, Some(0), "{items:?}: {}{}", outcome.out, outcome.err);
    outcome.out
}

#[test]
fn every_command_takes_a_model_of_pytorch() {
    let place = crate::place();
    let (gpt, record) = (model("gpt.pt2"), model("gpt.safetensors"));
    assert!(printed(&place, &["show", &gpt, "--mesh", "dp=2"]).starts_with("model gpt on mesh dp=2"));
    place.run(&["verify", &gpt, "--mesh", "dp=2,tp=2", "--json"]).refuses("E009", &["replicate(axis=tp)"]);
    let repeats = ["verify", &gpt, "--mesh", "dp=2,tp=2", "--set", "plan.\"**\"=replicate(axis=tp)"];
    assert!(printed(&place, &repeats).contains("verified"));
    assert!(printed(&place, &["verify", &gpt, "--against", &record]).contains("verified"));
    assert!(printed(&place, &["explain", &gpt, "--mesh", "dp=2"]).contains("only the batch is sharded"));
    assert!(printed(&place, &["lower", &gpt, "--counts", "--mesh", "dp=2"]).contains("all_reduce"));
    assert!(printed(&place, &["simulate", &gpt, "--mesh", "pp=2"]).contains("predicted"));
    let run = ["train", &gpt, "--mesh", "dp=2", "--steps", "2", "--checkpoint-dir", "saved"];
    assert!(printed(&place, &run).contains("random numbers for"));
    // A path that is no file of tensors would change nothing.
    let fed_text = ["train", &gpt, "--mesh", "dp=2", "--steps", "2", "--data", ".", "--json"];
    place.run(&fed_text).refuses("E036", &["--data"]);
    place.run(&["train", "mlp", "--steps", "2", "--data", ".", "--json"]).refuses("E036", &["--data"]);
    let more = ["train", &gpt, "--mesh", "dp=1", "--steps", "3", "--checkpoint-dir", "saved", "--resume"];
    assert!(printed(&place, &more).contains("after step 2"));
    assert!(printed(&place, &["eval", "saved", "--mesh", "tp=2"]).contains("after step 3"));
    let weights = ["export", "saved", "--for", "safetensors", "--out", "w.safetensors"];
    assert!(printed(&place, &weights).contains("29 tensors"));
    let from = printed(&place, &["verify", &gpt, "--set", "model.weights=w.safetensors"]);
    assert!(from.contains("verified"), "{from}");
    assert!(place.run(&["generate", "saved", "--prompt", "a"]).err.contains("E011"));
}

/// Models without blocks that repeat are cut along their dataflow, and models whose file fixes the batch are searched as a
/// whole: 2 of 12 could not be cut before, and plans of a pipeline had no lines.
#[test]
fn any_model_is_cut_into_stages_and_planned() {
    let place = crate::place();
    for name in ["mlp", "conv", "lstm", "gru", "cells", "bert", "gpt", "elementwise", "attentions", "experts"]
    {
        let path = model(&format!("{name}.pt2"));
        let shown = printed(&place, &["show", &path, "--mesh", "pp=2"]);
        let because = ["stage 0 ends there: chosen automatically"];
        assert!(because.iter().all(|words| shown.contains(words)), "{name}: {shown}");
        printed(&place, &["verify", &path, "--mesh", "pp=2"]);
    }
    let shown = printed(&place, &["show", &model("lstm.pt2"), "--mesh", "pp=2"]);
    assert!(shown.contains("no blocks repeat") && shown.contains("`\"\" = \"layers(2)\"`"), "{shown}");
    // The batch of this file is fixed.
    let found = place.run(&["plan", &model("gpt.pt2"), "--mesh", "pp=2,tp=2", "--json"]);
    assert_eq!(found.code, Some(0), "{}", found.err);
    let plan = found.of("plan").remove(0);
    assert!(plan["plan"].as_str().unwrap().contains("axis=tp"), "{plan}");
    assert_eq!(plan["refused"], serde_json::json!([]), "{plan}");
    // A step of a model without a loss, on slices of different sizes.
    let forward = printed(&place, &["plan", &model("conv_eval.pt2"), "--devices", "3"]);
    assert!(forward.contains("a step takes"), "{forward}");
}

#[test]
fn a_function_prints_each_step_and_its_results() {
    let place = crate::place();
    let text = "func.func @simple_add(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {\n  \
                %0 = arith.addf %arg0, %arg1 : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n";
    fs::write(place.path("add.mlir"), text).unwrap();
    let run = ["run", "add.mlir", "--input", "1,2,3,4", "--input", "5,6,7,8"];
    assert_eq!(
        printed(&place, &run),
        "read @simple_add(arg0: tensor<4xf32>, arg1: tensor<4xf32>) -> (tensor<4xf32>), 1 ops\n\
         arg0 = [1. 2. 3. 4.]\narg1 = [5. 6. 7. 8.]\nrun on mesh dp=1\n[6. 8. 10. 12.]\n"
    );
    let events = place.run(&[&run[..], &["--mesh", "dp=2", "--json"]].concat()).of("results");
    assert_eq!(events[0]["results"][0]["values"], serde_json::json!([6.0, 8.0, 10.0, 12.0]));
    let refused = place.run(&["run", &model("gpt.pt2")]);
    assert!(
        refused.code == Some(2) && refused.err.contains("an exported program of PyTorch"),
        "{}",
        refused.err
    );
    fs::write(place.path("load.mlir"), text.replace("arith.addf %arg0, %arg1", "memref.load %arg0")).unwrap();
    let refused = place.run(&["run", "load.mlir"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("E144") && refused.err.contains("load.mlir:2:8"), "{}", refused.err);
}
