//! Programs lowered by JAX, with inputs and results recorded from JAX (tests/jax/README.md):
//! parsed, verified and interpreted on one device, then partitioned and interpreted on several.

use partita_base::DType;
use partita_ir::{
    Annotation, Graph, Literal, Op, Operation, TensorType, evaluate, text, unroll_loops, verify,
};
use partita_mesh::{Mesh, Sharding};
use partita_spmd::{Options, Partitioned, partition, virtual_ranks};
use serde_json::Value;

// ---- recorded cases ----

/// A recorded tensor: every `every`-th element of `ty` in row-major order.
struct Recorded {
    name: String,
    ty: TensorType,
    every: usize,
    values: Vec<f64>,
}

struct Case {
    name: String,
    text: String,
    tolerance: f64,
    inputs: Vec<Recorded>,
    outputs: Vec<Recorded>,
    /// Number of outputs that are the first inputs of the next step.
    carry: usize,
    /// The last output of each consecutive step.
    scalars: Vec<f64>,
}

fn count(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().expect("nan, inf or -inf"),
        Value::Bool(value) => *value as u8 as f64,
        value => value.as_f64().expect("a number"),
    }
}

impl Recorded {
    fn read(entry: &Value) -> Recorded {
        let dtype = entry["dtype"].as_str().expect("a dtype");
        let dtype = DType::ALL.into_iter().find(|d| d.name() == dtype).expect("a known dtype");
        let shape: Vec<usize> = entry["shape"].as_array().expect("a shape").iter().map(count).collect();
        let ty = TensorType::new(dtype, shape);
        let values: Vec<f64> = match entry.get("fill") {
            None => entry["data"].as_array().expect("data").iter().map(number).collect(),
            Some(fill) => filled(fill, ty.element_count()),
        };
        // JAX writes only as many digits as the type needs: rounded to the type, they give the
        // exact value.
        let round = |value| Literal::scalar(dtype, value).to_f64()[0];
        let values = values.into_iter().map(round).collect();
        let name = entry.get("name").and_then(Value::as_str).unwrap_or("").to_string();
        Recorded { name, ty, every: entry.get("every").map_or(1, count), values }
    }

    fn literal(&self) -> Literal {
        assert_eq!(self.every, 1);
        Literal::from_f64(&self.ty, self.values.iter().copied())
    }
}

/// The elements of an input that is described instead of listed.
fn filled(fill: &Value, elements: usize) -> Vec<f64> {
    if let Some(constant) = fill.get("constant") {
        return vec![number(constant); elements];
    }
    let mut state = fill["seed"].as_u64().expect("a seed");
    let draws = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 40
    });
    let draws = draws.take(elements);
    match fill.get("below") {
        Some(below) => draws.map(|top| (top % below.as_u64().expect("a bound")) as f64).collect(),
        None => {
            let scale = number(&fill["scale"]);
            draws.map(|top| (top as f64 / 2f64.powi(24) - 0.5) * scale).collect()
        }
    }
}

fn cases(file: &str) -> Vec<Case> {
    let path = |ending| format!("{}/../../tests/jax/{file}.{ending}", env!("CARGO_MANIFEST_DIR"));
    let read =
        |ending| std::fs::read_to_string(path(ending)).expect("the recorded programs stand in tests/jax");
    let record: Value = serde_json::from_str(&read("json")).expect("valid JSON");
    let texts = read("mlir");
    let texts: Vec<&str> = texts.split("// -----\n").collect();
    let entries = record["cases"].as_array().expect("cases");
    assert_eq!(texts.len(), entries.len(), "one module per case in {file}");
    let list =
        |entry: &Value, key| entry[key].as_array().expect("a list").iter().map(Recorded::read).collect();
    let case = |(entry, text): (&Value, &str)| Case {
        name: entry["name"].as_str().expect("a name").to_string(),
        text: text.to_string(),
        tolerance: number(&entry["tolerance"]),
        inputs: list(entry, "inputs"),
        outputs: list(entry, "outputs"),
        carry: entry.get("carry").map_or(0, count),
        scalars: entry
            .get("scalars")
            .map_or(vec![], |scalars| scalars.as_array().expect("a list").iter().map(number).collect()),
    };
    entries.iter().zip(texts).map(case).collect()
}

impl Case {
    fn only(file: &str) -> Case {
        cases(file).pop().expect("one case")
    }

    fn graph(&self) -> Graph {
        let graph = text::parse(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        verify::verify(&graph).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        graph
    }

    fn literals(&self) -> Vec<Literal> {
        self.inputs.iter().map(Recorded::literal).collect()
    }

    /// Compares these outputs with the recorded ones and describes the difference, if any.
    fn complaint(&self, outputs: &[Literal]) -> Option<String> {
        if outputs.len() != self.outputs.len() {
            return Some(format!("{}: {} outputs", self.name, outputs.len()));
        }
        for (position, (got, want)) in outputs.iter().zip(&self.outputs).enumerate() {
            if got.ty != want.ty {
                return Some(format!("{}: output {position} is {}, not {}", self.name, got.ty, want.ty));
            }
            let picked: Vec<f64> = got.to_f64().into_iter().step_by(want.every).collect();
            assert_eq!(picked.len(), want.values.len(), "{}: output {position}", self.name);
            for (index, (&got, &want)) in picked.iter().zip(&want.values).enumerate() {
                if !self.agree(got, want) {
                    let off = (got - want).abs();
                    return Some(format!(
                        "{}: output {position}, recorded element {index}: {got} instead of {want}, off by {off:e}",
                        self.name
                    ));
                }
            }
        }
        None
    }

    fn agree(&self, got: f64, want: f64) -> bool {
        if self.tolerance == 0.0 || !want.is_finite() {
            return got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        }
        (got - want).abs() <= self.tolerance * want.abs().max(1.0)
    }

    fn check(&self, outputs: &[Literal]) {
        if let Some(complaint) = self.complaint(outputs) {
            panic!("{complaint}");
        }
    }

    /// Runs all recorded steps, each on the outputs of the previous one. Compares all outputs of
    /// the first step and the last output of every step.
    fn check_steps(&self, mut step: impl FnMut(&[Literal]) -> Vec<Literal>) {
        assert!(self.carry > 0 && self.scalars.len() == 3);
        let mut inputs = self.literals();
        for (number, &want) in self.scalars.iter().enumerate() {
            let outputs = step(&inputs);
            if number == 0 {
                self.check(&outputs);
            }
            let got = outputs.last().expect("a loss").to_f64()[0];
            assert!(self.agree(got, want), "{}: step {number} has loss {got}, not {want}", self.name);
            inputs.splice(..self.carry, outputs.into_iter().take(self.carry));
        }
    }
}

// ---- one device ----

/// Every case of a file must compute what JAX computed.
fn check_file(file: &str) {
    let mut complaints = Vec::new();
    for case in cases(file) {
        match evaluate(&case.graph(), &case.literals()) {
            Ok(outputs) => complaints.extend(case.complaint(&outputs)),
            Err(error) => complaints.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn the_common_ops_compute_what_jax_computes() {
    check_file("ops_tier1");
}

#[test]
fn indexing_control_flow_and_special_functions_compute_what_jax_computes() {
    check_file("ops_tier2");
}

#[test]
fn convolutions_and_rare_ops_compute_what_jax_computes() {
    check_file("ops_tier3");
}

#[test]
fn threefry_draws_the_bits_that_jax_draws() {
    check_file("dropout_threefry");
}

#[test]
fn training_steps_follow_jax_for_three_steps() {
    for file in ["mlp_adam_step", "transformer_step", "transformer_adam_step"] {
        let case = Case::only(file);
        let graph = case.graph();
        case.check_steps(|inputs| evaluate(&graph, inputs).unwrap_or_else(|error| panic!("{file}: {error}")));
    }
}

#[test]
fn whole_steps_of_optax_flax_and_haiku_follow_jax_for_three_steps() {
    for case in cases("models") {
        let graph = case.graph();
        case.check_steps(|inputs| {
            evaluate(&graph, inputs).unwrap_or_else(|error| panic!("{}: {error}", case.name))
        });
    }
}

// ---- several devices ----

fn cut(case: &Case, graph: &Graph, mesh: &Mesh) -> Partitioned {
    let partitioned = partition(graph, mesh, &Options::default());
    let partitioned = partitioned.unwrap_or_else(|error| panic!("{} on {mesh}: {error}", case.name));
    for local in &partitioned.locals {
        verify::verify(local).unwrap_or_else(|error| panic!("{} on {mesh}: {error}", case.name));
    }
    partitioned
}

fn run(case: &Case, partitioned: &Partitioned, inputs: &[Literal]) -> Vec<Literal> {
    let mesh = &partitioned.mesh;
    virtual_ranks::interpret(partitioned, inputs)
        .unwrap_or_else(|error| panic!("{} on {mesh}: {error}", case.name))
}

/// The layout of an input of a training step, from its name: batches along the data axes; weights
/// (input features first) by columns or rows along `tp`, and along `fsdp` in a free dimension.
/// Optimizer state has the layout of its parameter.
fn layout(name: &str, ty: &TensorType, mesh: &Mesh) -> Sharding {
    let rank = ty.rank();
    let mut sharding = Sharding::replicated(rank);
    if rank == 0 {
        return sharding;
    }
    if ["x", "y", "tokens", "labels"].contains(&name) {
        let axes: Vec<_> = ["dp", "fsdp"].iter().filter_map(|axis| mesh.axis_named(axis)).collect();
        return sharding.with_dim(0, axes);
    }
    let columns = ["q", "k", "v", "up", "head", "layers.0.weight", "layers.0.bias", "layers.2.weight"];
    let rows = ["o", "down", "embedding", "layers.1.weight"];
    let leaf = name.rsplit('.').next().expect("a name");
    let named = |names: &[&str]| names.iter().any(|n| leaf == *n || name.ends_with(n));
    let tp = mesh.axis_named("tp");
    let cut = if named(&columns) {
        Some(rank - 1)
    } else if named(&rows) {
        Some(0)
    } else {
        None
    };
    if let Some(dim) = cut {
        sharding = sharding.with_dim(dim, tp);
    }
    if let Some(fsdp) = mesh.axis_named("fsdp")
        && let Some(free) = (0..rank).find(|&dim| sharding.dims[dim].axes.is_empty())
    {
        sharding = sharding.with_dim(free, [fsdp]);
    }
    sharding
}

/// The step with annotated inputs. Values carried to the next step keep the layout of their inputs.
fn laid_out(case: &Case, mesh: &Mesh) -> Graph {
    let mut graph = case.graph();
    graph.meshes = vec![mesh.clone()];
    for (id, input) in graph.inputs.clone().into_iter().zip(&case.inputs) {
        let sharding = layout(&input.name, &input.ty, mesh);
        let open = vec![false; sharding.dims.len()];
        graph.value_mut(id).annotation =
            Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
    }
    graph.aliases = (0..case.carry).map(|position| (position, position)).collect();
    graph
}

/// Tolerance between a partitioned step and the same step on one device, relative to the largest
/// element of a tensor. Sums in another order differ by about 4e-7. Adam divides by the root of the
/// squared gradient, so its first step amplifies the difference 30-fold where a gradient is almost
/// zero.
const ONE_DEVICE_TOLERANCE: f64 = 2e-5;

fn relative_error(got: &Literal, want: &Literal) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let magnitude = want.iter().fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    got.iter().zip(&want).map(|(a, b)| (a - b).abs() / magnitude).fold(0.0, f64::max)
}

/// Checks that every axis shards some input and that ranks communicate.
fn check_really_cut(case: &Case, partitioned: &Partitioned) {
    let mesh = &partitioned.mesh;
    for axis in &mesh.axes {
        let axis = mesh.axis_named(&axis.name).expect("an axis of the mesh");
        let uses = partitioned.inputs.iter().filter(|sharding| sharding.uses_axis(axis)).count();
        assert!(uses > 0, "{} on {mesh}: nothing lies along {}", case.name, mesh.display_axis(axis));
    }
    let collectives = partitioned.locals[0].nodes.iter().filter(|node| node.op.is_collective()).count();
    assert!(collectives > 0, "{} on {mesh}: no collectives", case.name);
}

fn check_partitioned_steps(file: &str, meshes: &[&[(&str, usize)]]) {
    let case = Case::only(file);
    for axes in meshes {
        let mesh = Mesh::new("mesh", axes);
        let graph = laid_out(&case, &mesh);
        let partitioned = cut(&case, &graph, &mesh);
        check_really_cut(&case, &partitioned);
        for (input, output) in &graph.aliases {
            let (input, output) = (&partitioned.inputs[*input], &partitioned.outputs[*output]);
            assert_eq!(input, output, "{file} on {mesh}: state must lie as it came");
        }
        let single = case.graph();
        case.check_steps(|inputs| {
            let outputs = run(&case, &partitioned, inputs);
            let expected = evaluate(&single, inputs).unwrap_or_else(|error| panic!("{file}: {error}"));
            for (position, (got, want)) in outputs.iter().zip(&expected).enumerate() {
                let off = relative_error(got, want);
                assert!(off < ONE_DEVICE_TOLERANCE, "{file} on {mesh}: output {position} is off by {off:e}");
            }
            outputs
        });
    }
}

#[test]
fn a_partitioned_mlp_follows_jax_for_three_steps() {
    check_partitioned_steps(
        "mlp_adam_step",
        &[
            &[("dp", 2)],
            &[("tp", 2)],
            &[("tp", 3)],
            &[("dp", 2), ("tp", 2)],
            &[("fsdp", 4)],
            &[("fsdp", 2), ("tp", 2)],
        ],
    );
}

#[test]
fn a_partitioned_transformer_follows_jax_for_three_steps() {
    let meshes: &[&[(&str, usize)]] =
        &[&[("dp", 2)], &[("tp", 2)], &[("dp", 2), ("tp", 2)], &[("fsdp", 2)], &[("fsdp", 2), ("tp", 2)]];
    check_partitioned_steps("transformer_step", meshes);
}

#[test]
fn a_partitioned_transformer_with_adam_follows_jax_for_three_steps() {
    check_partitioned_steps("transformer_adam_step", &[&[("dp", 2), ("tp", 2)], &[("fsdp", 2), ("tp", 2)]]);
}

/// Every model with its batch split over `dp`, or the last dimension of its weights and their optimizer states over `tp`;
/// loops are unrolled first, as imports are.
#[test]
fn partitioned_models_follow_jax_for_three_steps() {
    for case in cases("models") {
        for axis in ["dp", "tp"] {
            let mesh = Mesh::new("mesh", &[(axis, 2)]);
            let whole = case.graph();
            let mut graph =
                unroll_loops(&whole, 1 << 15).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::While(_))), "{}", case.name);
            graph.meshes = vec![mesh.clone()];
            for (id, input) in graph.inputs.clone().into_iter().zip(&case.inputs) {
                let rank = input.ty.rank();
                let dim = match (axis, input.name.starts_with("batch.")) {
                    ("dp", true) => Some(0),
                    ("tp", false) if rank > 1 => Some(rank - 1),
                    _ => None,
                };
                let axes = dim.map(|dim| (dim, [mesh.full_axis(0)]));
                let sharding = Sharding::replicated(rank);
                let sharding = axes.map_or(sharding.clone(), |(dim, axes)| sharding.with_dim(dim, axes));
                let open = vec![false; rank];
                graph.value_mut(id).annotation =
                    Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
            }
            graph.aliases = (0..case.carry).map(|position| (position, position)).collect();
            let partitioned = cut(&case, &graph, &mesh);
            check_really_cut(&case, &partitioned);
            case.check_steps(|inputs| run(&case, &partitioned, inputs));
        }
    }
}

#[test]
fn programs_that_jax_sharded_compute_what_jax_computes_on_their_own_mesh() {
    for (file, ranks) in
        [("sharded_mlp", 4), ("sharded_attention", 4), ("sharded_manual", 4), ("sharded_decoder", 8)]
    {
        for case in cases(file) {
            let graph = case.graph();
            let [mesh] = &graph.meshes[..] else { panic!("{}: one mesh", case.name) };
            assert_eq!(mesh.rank_count(), ranks, "{}", case.name);
            let partitioned = cut(&case, &graph, mesh);
            check_really_cut(&case, &partitioned);
            case.check(&run(&case, &partitioned, &case.literals()));
        }
    }
}
