//! The calls that `tests/ops` records, as programs of one op, and the comparison of what is computed with what is
//! expected. The tests of the runtime read them too.

use super::{Entry, zip};
use partita_base::{DType, Result};
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2};
use partita_ir::autodiff::vjp;
use partita_ir::{Graph, Literal, TensorType};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Where the recorded calls are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ops")
}

/// One recorded call.
pub struct Case(Value);

/// All recorded calls whose op or name has the word in the variable `PARTITA_POINTS`.
pub fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("cases.jsonl")).expect("recorded cases");
    let only = std::env::var("PARTITA_POINTS").unwrap_or_default();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let shared = lines.next().expect("the texts of several cases")["texts"].clone();
    let all = lines.map(|mut case| {
        put_back(&mut case, &shared);
        Case(case)
    });
    all.filter(|case| case.op().contains(&only) || case.name().contains(&only)).collect()
}

/// A program of one call with its inputs, and that of its gradients.
pub struct Programs {
    pub forward: Graph,
    pub inputs: Vec<Literal>,
    /// The outputs that are the results of the call, by position.
    pub results: Vec<usize>,
    /// The gradients, of inputs and cotangents, if there are any.
    pub backward: Option<(Graph, Vec<Literal>)>,
    /// The tensors of the call that the gradients belong to.
    pub trained: Vec<usize>,
}

impl Case {
    pub fn op(&self) -> &str {
        self.0["op"].as_str().expect("an op")
    }

    pub fn name(&self) -> &str {
        self.0["name"].as_str().expect("a name")
    }

    fn list(&self, key: &str) -> &[Value] {
        self.0[key].as_array().expect("a list")
    }

    /// What PyTorch computed.
    pub fn result(&self, at: usize) -> Literal {
        literal(&self.list("results")[at])
    }

    /// The gradient of a tensor of the call that PyTorch computed.
    pub fn gradient(&self, at: usize) -> Literal {
        let [dtype, shape, _] = &self.list("inputs")[at].as_array().expect("a tensor")[..] else {
            panic!("three parts")
        };
        literal(&json!([dtype, shape, self.0["gradients"][format!("x{at}")]]))
    }

    /// Where two tensors differ by more than `slack` times what the case allows. NaN and infinities have to
    /// be in the same places.
    pub fn apart(&self, what: &str, slack: f64, found: &Literal, expected: &Literal) -> Option<String> {
        apart(&self.0, what, slack, found, expected)
    }

    pub fn programs(&self) -> Result<Programs> {
        let imported = import(&self.0)?;
        let forward = imported.model.forward;
        let recorded: Vec<Literal> = self.list("inputs").iter().map(literal).collect();
        // The graph has its inputs by name; it may lack those that nothing reads.
        let position =
            |at: usize| forward.inputs.iter().position(|&v| forward.value(v).name == format!("x{at}"));
        let mut inputs: Vec<Literal> =
            forward.inputs.iter().map(|&v| Literal::zeros(forward.ty(v))).collect();
        for (at, input) in recorded.iter().enumerate() {
            if let Some(position) = position(at) {
                inputs[position] = input.clone();
            }
        }
        let results: Vec<usize> =
            imported.outputs.iter().map(|name| forward.output_position(name).expect("an output")).collect();
        let followed: Vec<usize> =
            self.list("followed").iter().map(|at| results[at.as_u64().unwrap() as usize]).collect();
        let gradients = self.0["gradients"].as_object().expect("gradients");
        let (trained, wanted): (Vec<usize>, Vec<usize>) = (0..recorded.len())
            .filter(|at| gradients.contains_key(&format!("x{at}")))
            .filter_map(|at| Some((at, position(at)?)))
            .unzip();
        let backward = match followed.is_empty() {
            true => None,
            false => {
                let mut fed = inputs.clone();
                fed.extend(followed.iter().map(|&at| cotangent(forward.ty(forward.outputs[at]))));
                Some((vjp(&forward, &followed, &wanted)?, fed))
            }
        };
        Ok(Programs { forward, inputs, results, backward, trained })
    }
}

/// Puts the texts that several cases share, `@3` for the fourth, where they belong.
fn put_back(value: &mut Value, shared: &Value) {
    match value {
        Value::String(word) => {
            if let Some(at) = word.strip_prefix('@') {
                *value = shared[at.parse::<usize>().expect("a number")].clone();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| put_back(item, shared)),
        Value::Object(items) => items.values_mut().for_each(|item| put_back(item, shared)),
        _ => {}
    }
}

fn element(name: &str) -> (DType, u64) {
    match name {
        "f32" => (DType::F32, 7),
        "f16" => (DType::F16, 6),
        "bf16" => (DType::BF16, 13),
        "f64" => (DType::F64, 8),
        "c64" => (DType::F32, 10),
        "c128" => (DType::F64, 11),
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

/// A recorded tensor `[element type, extents, elements]`; one of complex numbers as pairs, which the import makes of them.
fn literal(recorded: &Value) -> Literal {
    let (dtype, code) = element(recorded[0].as_str().unwrap());
    let mut shape: Vec<usize> =
        recorded[1].as_array().unwrap().iter().map(|e| e.as_u64().unwrap() as usize).collect();
    if matches!(code, 10 | 11) {
        shape.push(2);
    }
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

fn import(case: &Value) -> Result<ImportedModel> {
    let json = serde_json::to_vec(&program(case)).unwrap();
    let bytes = zip(&[Entry::new("m/models/model.json", json), Entry::new("m/byteorder", "little")]);
    Pt2::read(bytes.into(), None, &Limits::default())?.import(&ImportOptions::default())
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

/// Where two tensors differ. NaN and infinities have to be where PyTorch has them.
fn apart(case: &Value, what: &str, slack: f64, found: &Literal, expected: &Literal) -> Option<String> {
    if found.ty != expected.ty {
        return Some(format!("{what} is {}, not {}", found.ty, expected.ty));
    }
    let most = slack * tolerance(case, expected.ty.dtype);
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
