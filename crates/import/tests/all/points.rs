//! One op at a time, at points where values and gradients go wrong: what the import makes of it, on the reference
//! interpreter, beside what PyTorch recorded (`tests/ops`).
//!
//! `PARTITA_POINTS=WORD` compares only the cases whose op or name has that word, and prints each difference in full.

use crate::common::{Entry, zip};
use partita_base::DType;
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2};
use partita_ir::autodiff::vjp;
use partita_ir::{Literal, TensorType, evaluate};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ops")
}

fn element(name: &str) -> (DType, u64) {
    match name {
        "f32" => (DType::F32, 7),
        "f16" => (DType::F16, 6),
        "bf16" => (DType::BF16, 13),
        "f64" => (DType::F64, 8),
        "i64" => (DType::I64, 5),
        "i32" => (DType::I32, 4),
        "u8" => (DType::U8, 1),
        "bool" => (DType::Bool, 12),
        _ => panic!("element type `{name}`"),
    }
}

fn numbers(text: &Value) -> Vec<f64> {
    let words = text.as_str().expect("numbers").split_whitespace();
    words.map(|word| word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number"))).collect()
}

/// A recorded tensor `[element type, extents, elements]`.
fn literal(recorded: &Value) -> Literal {
    let (dtype, _) = element(recorded[0].as_str().unwrap());
    let shape: Vec<usize> =
        recorded[1].as_array().unwrap().iter().map(|e| e.as_u64().unwrap() as usize).collect();
    Literal::from_f64(&TensorType::new(dtype, shape), numbers(&recorded[2]).into_iter())
}

/// The type of a tensor as the schema has it.
fn meta(recorded: &Value) -> Value {
    let shape: Vec<i64> = recorded[1].as_array().unwrap().iter().map(|e| e.as_i64().unwrap()).collect();
    let strides = |at: usize| shape[at + 1..].iter().product::<i64>();
    let ints = |list: Vec<i64>| -> Vec<Value> { list.into_iter().map(|i| json!({ "as_int": i })).collect() };
    json!({"dtype": element(recorded[0].as_str().unwrap()).1, "sizes": ints(shape.clone()),
           "strides": ints((0..shape.len()).map(strides).collect()), "storage_offset": {"as_int": 0}, "layout": 7})
}

/// The program of one call: its tensors are the inputs, its results the outputs.
fn program(case: &Value) -> Value {
    let list = |key: &str| case[key].as_array().unwrap().clone();
    let [inputs, results, unread] = ["inputs", "results", "unread"].map(list);
    let named = |prefix: &str, count: usize| -> Vec<Value> {
        (0..count).map(|at| json!({ "as_tensor": { "name": format!("{prefix}{at}") } })).collect()
    };
    let mut values = serde_json::Map::new();
    for (prefix, tensors) in [("x", &inputs), ("y", &results), ("unread", &unread)] {
        for (at, tensor) in tensors.iter().enumerate() {
            values.insert(format!("{prefix}{at}"), meta(tensor));
        }
    }
    let (leaves, outputs) = (named("x", inputs.len()), named("y", results.len()));
    let mut declared = outputs.clone();
    declared.extend(named("unread", unread.len()));
    let declared = match case["list"].as_bool().unwrap() {
        true => json!([{"as_tensors": declared.iter().map(|y| y["as_tensor"].clone()).collect::<Vec<_>>()}]),
        false => Value::Array(declared),
    };
    let arguments: Vec<Value> =
        list("arguments").iter().map(|a| json!({"name": a[0], "arg": a[1], "kind": 1})).collect();
    let target = format!("torch.ops.{}", case["op"].as_str().unwrap());
    let node = json!({"target": target, "inputs": arguments, "outputs": declared, "metadata": {}});
    let spec = |kind: &str, list: &[Value]| -> Vec<Value> {
        list.iter().map(|a| json!({kind: {"arg": a}})).collect()
    };
    json!({"schema_version": {"major": 8, "minor": 20}, "graph_module": {
        "graph": {"inputs": leaves, "outputs": outputs, "nodes": [node], "tensor_values": values},
        "signature": {"input_specs": spec("user_input", &leaves), "output_specs": spec("user_output", &outputs)}}})
}

fn import(case: &Value) -> partita_base::Result<ImportedModel> {
    let json = serde_json::to_vec(&program(case)).unwrap();
    let bytes = zip(&[Entry::new("m/models/model.json", json), Entry::new("m/byteorder", "little")]);
    Pt2::read(Arc::new(bytes), None, &Limits::default())?.import(&ImportOptions::default())
}

/// The cotangent of a result, as `make.py` has it.
fn cotangent(ty: &TensorType) -> Literal {
    let count: usize = ty.shape.iter().product();
    Literal::from_f64(ty, (0..count).map(|at| (at * 3 % 4 + 1) as f64 / 2.0))
}

/// How far apart two numbers of this type may be, relative to their size, or to a size that smaller ones are left over
/// from: what is left of 1 by a rounded number is exact to about 1e-7 in f32. PyTorch rounds steps to f16 and bf16.
fn tolerance(case: &Value, dtype: DType) -> f64 {
    case["tolerance"].as_f64().unwrap_or(match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 1e-5,
    })
}

/// Where two tensors differ. Not a number and the infinities have to be where PyTorch has them.
fn apart(case: &Value, what: &str, found: &Literal, expected: &Literal) -> Option<String> {
    if found.ty != expected.ty {
        return Some(format!("{what} is {}, not {}", found.ty, expected.ty));
    }
    let most = tolerance(case, expected.ty.dtype);
    let least = if matches!(expected.ty.dtype, DType::F16 | DType::BF16) { 1.0 } else { 1e-2 };
    let differ = |(&a, &b): (&f64, &f64)| {
        !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= most * b.abs().max(least))
    };
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let places: Vec<usize> = (0..found.len()).filter(|&at| differ((&found[at], &expected[at]))).collect();
    let shown = if std::env::var_os("PARTITA_POINTS").is_some() { 100 } else { 3 };
    let pairs: Vec<String> =
        places.iter().take(shown).map(|&at| format!("[{at}] {} for {}", found[at], expected[at])).collect();
    (!places.is_empty()).then(|| format!("{what}: {} of {}: {}", places.len(), found.len(), pairs.join(", ")))
}

/// What differs, or why the case cannot be compared.
fn differences(case: &Value) -> Vec<String> {
    let imported = match import(case) {
        Ok(imported) => imported,
        Err(error) => {
            return vec![format!(
                "{}: {} {}",
                error.code,
                error.message,
                error.found.clone().unwrap_or_default()
            )];
        }
    };
    let graph = &imported.model.forward;
    let inputs: Vec<Literal> = case["inputs"].as_array().unwrap().iter().map(literal).collect();
    // The graph has its inputs by name; it may lack those that nothing reads.
    let position = |at: usize| graph.inputs.iter().position(|&v| graph.value(v).name == format!("x{at}"));
    let mut fed: Vec<Literal> = graph.inputs.iter().map(|&v| Literal::zeros(graph.ty(v))).collect();
    for (at, input) in inputs.iter().enumerate() {
        if let Some(position) = position(at) {
            fed[position] = input.clone();
        }
    }
    let outputs: Vec<usize> =
        imported.outputs.iter().map(|name| graph.output_position(name).expect("an output")).collect();
    let found = match evaluate(graph, &fed) {
        Ok(found) => found,
        Err(error) => return vec![format!("forward: {error}")],
    };
    let mut differing = Vec::new();
    for (at, recorded) in case["results"].as_array().unwrap().iter().enumerate() {
        differing.extend(apart(case, &format!("result {at}"), &found[outputs[at]], &literal(recorded)));
    }
    let followed: Vec<usize> = case["followed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| outputs[at.as_u64().unwrap() as usize])
        .collect();
    if followed.is_empty() {
        return differing;
    }
    let gradients = case["gradients"].as_object().unwrap();
    let trained: Vec<(usize, usize)> = (0..inputs.len())
        .filter(|at| gradients.contains_key(&format!("x{at}")))
        .filter_map(|at| Some((at, position(at)?)))
        .collect();
    let wanted: Vec<usize> = trained.iter().map(|(_, position)| *position).collect();
    let backward = match vjp(graph, &followed, &wanted) {
        Ok(backward) => backward,
        Err(error) => return vec![format!("gradient: {error}")],
    };
    fed.extend(followed.iter().map(|&at| cotangent(graph.ty(graph.outputs[at]))));
    let found = match evaluate(&backward, &fed) {
        Ok(found) => found,
        Err(error) => return vec![format!("backward: {error}")],
    };
    for ((at, _), found) in trained.iter().zip(&found) {
        let expected = Literal::from_f64(&inputs[*at].ty, numbers(&gradients[&format!("x{at}")]).into_iter());
        differing.extend(apart(case, &format!("gradient of x{at}"), found, &expected));
    }
    differing
}

/// The cases that differ from PyTorch for a reason that is written down: op, name, what differs, why.
fn known() -> Vec<[String; 4]> {
    let text = std::fs::read_to_string(folder().join("differs.txt")).expect("what differs");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = |line: &str| {
        let mut parts = line.splitn(4, '|').map(|part| part.trim().to_string());
        [0, 1, 2, 3]
            .map(|_| parts.next().unwrap_or_else(|| panic!("`{line}` is not `op | name | what | why`")))
    };
    lines.map(parts).collect()
}

/// A difference without the numbers: `result 0: 2 of 5`.
fn place(difference: &str) -> String {
    difference.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ")
}

#[test]
fn every_op_computes_values_and_gradients_of_pytorch_at_nasty_points() {
    let text = std::fs::read_to_string(folder().join("cases.jsonl")).expect("recorded cases");
    let only = std::env::var("PARTITA_POINTS").unwrap_or_default();
    let known = known();
    let mut used = vec![false; known.len()];
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).expect("a case");
        let (op, name) = (case["op"].as_str().unwrap(), case["name"].as_str().unwrap());
        if !op.contains(&only) && !name.contains(&only) {
            continue;
        }
        count += 1;
        let found = differences(&case);
        if found.is_empty() {
            continue;
        }
        let what: Vec<String> = found.iter().map(|difference| place(difference)).collect();
        let what = what.join("; ");
        match known.iter().position(|[o, n, w, _]| o == op && n == name && *w == what) {
            Some(at) => used[at] = true,
            None => {
                wrong.entry(op.to_string()).or_default().push(format!("{op} `{name}`: {}", found.join("; ")))
            }
        }
    }
    if only.is_empty() {
        for (line, used) in known.iter().zip(used) {
            if !used {
                wrong
                    .entry(line[0].clone())
                    .or_default()
                    .push(format!("{line:?} is in differs.txt and does not differ"));
            }
        }
    }
    let lines: Vec<String> = wrong.values().flatten().cloned().collect();
    assert!(
        lines.is_empty(),
        "{} of {count} cases of {} ops differ:\n{}",
        lines.len(),
        wrong.len(),
        lines.join("\n")
    );
}
