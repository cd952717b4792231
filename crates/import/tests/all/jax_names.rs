//! The paths of JAX's trees as names, and the state of a step that donates nothing.

use partita_import::{ImportOptions, ImportedModel, Limits, StableHlo};

/// A function with inputs and results of these names, with this state; the last result is the loss.
fn imported(inputs: [&str; 3], results: [&str; 3], state: &[&str]) -> Result<ImportedModel, String> {
    let text = format!(
        "func.func @main(%a: tensor<2xf32> loc(\"{}\"), %b: tensor<f32> loc(\"{}\"), %c: tensor<2xf32> loc(\"{}\")) -> \
         (tensor<2xf32> {{jax.result_info = \"{}\"}}, tensor<f32> {{jax.result_info = \"{}\"}}, \
         tensor<f32> {{jax.result_info = \"{}\"}}) {{\n\
         return %c, %b, %b : tensor<2xf32>, tensor<f32>, tensor<f32>\n}}",
        inputs[0], inputs[1], inputs[2], results[0], results[1], results[2]
    );
    let file =
        StableHlo::read(&text, "test.mlir", &Limits::default()).unwrap_or_else(|e| panic!("{text}\n{e}"));
    let options = ImportOptions {
        loss: Some(results[2].to_string()),
        state: state.iter().map(|name| name.to_string()).collect(),
        ..ImportOptions::default()
    };
    file.import(&options).map_err(|error| format!("{} {}", error.code, error.message))
}

#[test]
fn leaves_of_trees_have_dotted_paths() {
    for (name, path) in [
        ("state['params']['layers'][0]['w']", "state.params.layers.0.w"),
        ("state['optimizer'][0].mu['Dense_0']['kernel']", "state.optimizer.0.mu.Dense_0.kernel"),
        ("params['mlp/~/linear_0']['w']", "params.mlp/~/linear_0.w"),
        ("opt.nu[2]", "opt.nu.2"),
        ("tokens", "tokens"),
        ("x['a'", "x['a'"),
        ("x['a']b", "x['a']b"),
        ("x[<flat index 0>]", "x[<flat index 0>]"),
        ("x['']", "x['']"),
    ] {
        let model = imported([name, "b", "c"], ["x", "y", "loss"], &[]).expect("imports");
        assert_eq!(model.inputs.keys().map(String::as_str).collect::<Vec<_>>(), [path, "b", "c"]);
    }
    // Names that would be equal stay as they are.
    let model = imported(["x['a']", "x.a", "c"], ["x", "y", "loss"], &[]).expect("imports");
    assert_eq!(model.inputs.keys().map(String::as_str).collect::<Vec<_>>(), ["x['a']", "x.a", "c"]);
}

#[test]
fn a_state_that_is_not_donated_is_replaced_by_results_of_its_paths() {
    let (state, other) = (["s['w']", "s['opt'][0].count", "x"], ["s['w']", "y", "t['w']"]);
    let aliases = |inputs, results| imported(inputs, results, &["s"]).expect("imports").model.forward.aliases;
    let both = [(0, 0), (1, 1)];
    assert_eq!(aliases(state, ["result[0]['w']", "result[0]['opt'][0].count", "result[1]"]), both);
    assert_eq!(aliases(state, ["result['w']", "result['opt'][0].count", "result['loss']"]), both);
    assert_eq!(aliases(other, ["result[0]['w']", "result[1]", "result[2]"]), [(0, 0)]);
    for (inputs, results, complaint) in [
        (state, ["result[0]['w']", "result[0]['n']", "result[1]"], "no result replaces `s.opt.0.count`"),
        (
            state,
            ["result[0]['opt'][0].count", "result[0]['w']", "result[1]"],
            "result for `s.w` has another type",
        ),
        (
            ["s['w']", "y", "x"],
            ["result[0]['w']", "result[1]['w']", "result[2]"],
            "several results could replace `s.w`",
        ),
        (["a", "b", "c"], ["result[0]", "result[1]", "result[2]"], "no input is a leaf of it"),
    ] {
        let found = imported(inputs, results, &["s"]).map(|_| ()).unwrap_err();
        assert!(found.starts_with("E360") && found.contains(complaint), "{found}");
    }
    // Without naming it, it is a forward pass.
    let forward = imported(state, ["result['w']", "result['opt'][0].count", "loss"], &[])
        .expect("imports")
        .model
        .forward;
    assert!(forward.aliases.is_empty());
}

#[test]
fn a_pair_says_which_result_replaces_which_argument() {
    let (inputs, results) = (["a", "b", "x['w']"], ["result[0]['w']", "result[0]['n']", "result[1]"]);
    let aliases = |state: &[&str]| imported(inputs, results, state).map(|found| found.model.forward.aliases);
    assert_eq!(aliases(&["a=result[0]['w']", "b = result.0.n"]), Ok(vec![(0, 0), (1, 1)]));
    assert_eq!(aliases(&["x.w=result.0.w"]), Ok(vec![(2, 0)]));
    assert_eq!(aliases(&["x['w']=result.0.w"]), Ok(vec![(2, 0)]));
    for (state, complaint) in [
        ("a=result.0.n", "`result.0.n` cannot replace `a`"),
        ("c=result.0.w", "no argument `c`"),
        ("a=result.0.v", "no result `result.0.v`"),
    ] {
        let found = aliases(&[state]).unwrap_err();
        assert!(found.starts_with("E360") && found.contains(complaint), "{found}");
    }
}

#[test]
fn a_result_that_is_called_loss_is_the_loss() {
    let text = |first: &str, second: &str| {
        format!(
            "func.func @main(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32> {{jax.result_info = \"{first}\"}}, \
             tensor<f32> {{jax.result_info = \"{second}\"}}) {{\nreturn %a, %b : tensor<f32>, tensor<f32>\n}}"
        )
    };
    let loss = |first: &str, second: &str| {
        let file =
            StableHlo::read(&text(first, second), "test.mlir", &Limits::default()).expect("it is read");
        let model = file.import(&ImportOptions::default()).map_err(|error| error.code)?.model;
        Ok(model.forward.output_names.iter().position(|name| name == "loss"))
    };
    assert_eq!(loss("result['aux']", "result['loss']"), Ok(Some(1)));
    assert_eq!(loss("result[0]['loss']", "result[1]"), Ok(Some(0)));
    assert_eq!(loss("result[0]", "result[1]"), Err("E360"));
    assert_eq!(loss("result[0]['loss']", "result[1]['loss']"), Err("E360"));
}
