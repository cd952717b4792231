//! Forward-only runs on meshes against the reference interpreter on the global graph.

use crate::session;
use indexmap::IndexMap;
use partita::models::from_fn;
use partita::prelude::*;
use partita_ir::evaluate;
use partita_testkit::assert_close;

/// The outputs of a model's forward graph on the interpreter, by name.
fn interpreted(model: &Model, seed: u64, fed: &Fed) -> Fed {
    let initial = model.initial(seed).unwrap();
    let graph = &model.forward;
    let inputs: Vec<Literal> = graph
        .inputs
        .iter()
        .map(|&input| {
            let value = graph.value(input);
            let found = fed.get(&value.name).or_else(|| initial.get(&value.name));
            found.cloned().unwrap_or_else(|| Literal::splat_int(&value.ty, 0))
        })
        .collect();
    let outputs = evaluate(graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
    graph.output_names.iter().cloned().zip(outputs).collect()
}

const SMALL: &[&str] =
    &["model.dim=16", "model.heads=4", "model.layers=2", "model.sequence=8", "model.dropout=0"];

fn tokens(rows: usize, sequence: usize) -> Literal {
    Literal::new([rows, sequence], (0..rows * sequence).map(|i| (i * 37 % 251) as i32).collect::<Vec<i32>>())
}

#[test]
fn logits_on_a_mesh_are_those_of_one_device() {
    for (name, mesh, rows) in [
        ("gpt", "dp=1", 4),
        ("gpt", "dp=2,tp=2", 4),
        ("gpt", "dp=3", 4),
        ("gpt", "pp=2", 3),
        ("gpt", "tp=3", 1),
        ("llama", "fsdp=2,tp=2", 2),
        ("bert", "sp=2", 5),
    ] {
        let shape = format!("mesh.shape={mesh}");
        let session = session(name, &[SMALL, &[&shape]].concat());
        let fed = IndexMap::from([("tokens".to_string(), tokens(rows, 8))]);
        let found = session.infer(None, &fed).unwrap_or_else(|error| panic!("{name} {mesh}: {error}"));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["logits"], "{name} {mesh}: no loss without labels");
        let model = session.config().model.build(rows, DType::F32, false).unwrap();
        let expected = interpreted(&model, session.config().train.seed, &fed);
        assert_close(&found["logits"], &expected["logits"], 1e-5, &format!("{name} {mesh}"));
    }
}

#[test]
fn with_labels_the_loss_is_an_output_too() {
    let session = session("gpt", &[SMALL, &["mesh.shape=tp=2"]].concat());
    let fed = IndexMap::from([
        ("tokens".to_string(), tokens(2, 8)),
        ("labels".to_string(), Literal::new([2, 8], vec![7i32; 16])),
    ]);
    let found = session.infer(None, &fed).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["loss", "logits"]);
    let model = session.config().model.build(2, DType::F32, false).unwrap();
    let expected = interpreted(&model, session.config().train.seed, &fed);
    for name in ["loss", "logits"] {
        assert_close(&found[name], &expected[name], 1e-5, name);
    }
}

/// Two inputs, two outputs, no loss: `scores = (left W' + b) * right`, `sums = left + right`.
#[test]
fn a_module_of_several_inputs_runs_on_a_mesh() {
    let source = from_fn("pair", |cx, batch| {
        let left = cx.input("left", DType::F64, &[batch, 3]);
        let right = cx.input("right", DType::F64, &[batch, 2]);
        let other = cx.input("other", DType::F64, &[batch, 3]);
        let projected = cx.call("project", &Linear::new(3, 2), left)?;
        let scores = cx.builder.multiply(projected, right)?;
        let sums = cx.builder.add(left, other)?;
        Ok(vec![("scores".to_string(), scores), ("sums".to_string(), sums)])
    });
    let f64s = |shape: [usize; 2], values: Vec<f64>| Literal::new(shape, values);
    let left: Vec<f64> = (0..15).map(|i| f64::from(i) * 0.5 - 3.0).collect();
    let right: Vec<f64> = (0..10).map(|i| 2.0 - f64::from(i)).collect();
    let mut fed = IndexMap::from([
        ("left".to_string(), f64s([5, 3], left.clone())),
        ("right".to_string(), f64s([5, 2], right.clone())),
    ]);
    for mesh in ["dp=1", "dp=2", "tp=2"] {
        let mut session = Session::of(source.clone(), mesh).unwrap().with_dtype(DType::F64);
        if mesh == "tp=2" {
            let mut config = session.config().clone();
            config.plan.styles = toml::Table::from_iter([("project".to_string(), "colwise".into())]);
            session = Session::new(config).unwrap().with_dtype(DType::F64);
        }
        fed.shift_remove("other");
        let initial = session.model().unwrap().initial(session.config().train.seed).unwrap();
        let (weight, bias) = (initial["project.weight"].to_f64(), initial["project.bias"].to_f64());
        let found = session.infer(None, &fed).unwrap_or_else(|error| panic!("{mesh}: {error}"));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["scores"], "{mesh}");
        let by_hand = (0..10).map(|at| {
            let (row, out) = (at / 2, at % 2);
            let product: f64 = (0..3).map(|k| left[3 * row + k] * weight[3 * out + k]).sum();
            (product + bias[out]) * right[at]
        });
        assert_close(&found["scores"], &f64s([5, 2], by_hand.collect()), 1e-12, mesh);

        fed.insert("other".to_string(), f64s([5, 3], vec![1.0; 15]));
        let found = session.infer(None, &fed).unwrap();
        let sums: Vec<f64> = left.iter().map(|value| value + 1.0).collect();
        assert_eq!(found["sums"].to_f64(), sums, "{mesh}");
    }
}

#[test]
fn inputs_that_lead_to_no_output_are_refused() {
    let session = session("gpt", SMALL);
    let error = session.infer(None, &Fed::new()).unwrap_err();
    assert_eq!(error.code, "E037");
    assert!(error.expected.as_deref().unwrap().contains("logits: tokens"), "{error}");
    let labels = IndexMap::from([("labels".to_string(), Literal::new([2, 8], vec![1i32; 16]))]);
    assert_eq!(session.infer(None, &labels).unwrap_err().code, "E037");

    let mut inference = session
        .clone()
        .with_batch(2)
        .inference(&session.clone().with_batch(2).model().unwrap(), &["tokens"])
        .unwrap();
    let fed = |name: &str, value| IndexMap::from([(name.to_string(), value)]);
    assert_eq!(inference.run(&fed("tokens", tokens(3, 8))).unwrap_err().code, "E415");
    assert_eq!(inference.run(&fed("token", tokens(2, 8))).unwrap_err().code, "E414");
    assert_eq!(inference.run(&Fed::new()).unwrap_err().code, "E430");
    assert!(inference.run(&fed("tokens", tokens(2, 8))).is_ok());
}
