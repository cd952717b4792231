//! Verification: the planned step on a mesh against the original step on one device.
//!
//! Both run on the same inputs. Loss, outputs, every gradient, every parameter and every optimizer state after the
//! step are compared; where something differs, the first value that diverges is named.

use crate::build::{BuildOptions, build, reference_step};
use crate::feed::{Fed, random_feed, scalars};
use crate::plan::Plan;
use crate::structure::{Tools, reference_model};
use crate::tensors::{inputs_of, outputs_by_name, zero_states};
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_ir::ops::Composite;
use partita_ir::{Graph, Literal, evaluate, interpret};
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_spmd::Partitioned;
use partita_spmd::virtual_ranks;

/// What runs a partitioned step on global inputs and gives global outputs.
pub trait StepRunner {
    /// A name for messages: `interpreter`, `cpu`.
    fn name(&self) -> &str;
    /// One step.
    fn run(&self, partitioned: &Partitioned, inputs: &[Literal]) -> Result<Vec<Literal>>;
    /// Whether it runs a composite as it is; others are opened before they are laid out.
    fn has_kernel(&self, _composite: &Composite) -> bool {
        true
    }
    /// Why it does not run a composite that a schedule made as one kernel.
    fn fusible(&self, _composite: &Composite) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// The reference interpreter on virtual ranks in lock step: slow and plain.
pub struct Interpreter;

impl StepRunner for Interpreter {
    fn name(&self) -> &str {
        "interpreter"
    }
    fn run(&self, partitioned: &Partitioned, inputs: &[Literal]) -> Result<Vec<Literal>> {
        virtual_ranks::interpret(partitioned, inputs)
    }
}

/// How one tensor compares.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorError {
    /// Name: an output, `grad.<parameter>`, a parameter or a state.
    pub tensor: String,
    /// The largest difference over the tensor's largest magnitude.
    pub rel_error: f64,
    /// Elements beyond the tolerance that rounding explains: the gradient there is below ten times the gradient error
    /// that the element type itself makes.
    pub excused: usize,
    /// Elements beyond the tolerance that nothing explains.
    pub wrong: usize,
}

/// The outcome of a verification.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Nothing unexplained.
    pub ok: bool,
    /// Every compared tensor, in output order.
    pub tensors: Vec<TensorError>,
    /// The tolerance used.
    pub tolerance: f64,
    /// The first value that differs, where something does: its description and error.
    pub first_diverging: Option<String>,
}

impl Report {
    /// The tensor with the largest error; unexplained ones first.
    pub fn worst(&self) -> Option<&TensorError> {
        self.tensors
            .iter()
            .max_by(|a, b| (a.wrong > 0).cmp(&(b.wrong > 0)).then(a.rel_error.total_cmp(&b.rel_error)))
    }

    /// Elements that only rounding separates.
    pub fn excused(&self) -> usize {
        self.tensors.iter().map(|t| t.excused).sum()
    }
}

/// One step of a model, to be compared under any plan with the same step on one device.
pub struct Verification<'a> {
    /// The model.
    pub model: &'a Model,
    /// The same model in f64, where it is of a narrower type: tells rounding from errors.
    pub precise: Option<&'a Model>,
    /// The step; see [`BuildOptions::for_verification`].
    pub options: &'a BuildOptions,
    /// What the plan's names stand for, and what runs the planned step.
    pub tools: Tools<'a>,
    /// Seed of parameters, inputs and dropout.
    pub seed: u64,
    /// The step's learning rate.
    pub learning_rate: f64,
}

/// The outcome, with what a reader wants to know of the two sides.
#[derive(Clone, PartialEq, Debug)]
pub struct Verified {
    /// The comparison.
    pub report: Report,
    /// Facts worth telling.
    pub notes: Vec<String>,
}

impl Verification<'_> {
    /// Runs the planned step and, through the interpreter, the plain one, on random inputs with labels to ignore spread
    /// unevenly, and compares everything both return. Precision that the plan asks for is part of the plain step too.
    pub fn run(&self, plan: &Plan, mesh: &Mesh) -> Result<Verified> {
        let plain = reference_model(plan, self.model, &self.tools)?;
        let reference = reference_step(&plain.model, &self.options.step)?;
        let built = build(self.model, plan, mesh, self.options, &self.tools)?;
        let of_params = self.model.params.values().map(|p| p.ty.dtype).next();
        let dtype = plain.precision.or(of_params).unwrap_or(DType::F64);

        let mut tensors: Fed = self.model.initial(self.seed);
        tensors.extend(zero_states(&reference));
        tensors.extend(random_feed(self.model, self.seed, 0.3));
        tensors.extend(scalars(&reference, self.seed, 1, self.learning_rate));
        let by_name = |graph: &Graph, outputs: Vec<Literal>| -> Fed {
            graph.output_names.iter().cloned().zip(outputs).collect()
        };
        let inputs = inputs_of(&reference, &[], &tensors)?;
        let expected = by_name(&reference, evaluate(&reference, &inputs)?);
        let precise = match self.precise {
            None => None,
            Some(model) => {
                let step = reference_step(model, &self.options.step)?;
                let inputs: Vec<Literal> = inputs_of(&step, &[], &tensors)?
                    .into_iter()
                    .zip(&step.inputs)
                    .map(|(value, &input)| Literal::from_f64(step.ty(input), value.to_f64().into_iter()))
                    .collect();
                Some(by_name(&step, evaluate(&step, &inputs)?))
            }
        };
        let inputs = inputs_of(&built.step, &built.pieces, &tensors)?;
        let outputs = match self.tools.runner.run(&built.partitioned, &inputs) {
            Ok(outputs) => outputs,
            // Ranks that should agree and do not: let the trace below say where.
            Err(error) if error.code == "E230" => {
                let tolerance = tolerance(dtype);
                let first = first_diverging(&built.partitioned, &inputs, tolerance)?;
                let report = Report { ok: false, tensors: Vec::new(), tolerance, first_diverging: first };
                return Ok(Verified { report, notes: built.notes });
            }
            Err(error) => return Err(error),
        };
        let actual = outputs_by_name(&built.step, &built.pieces, outputs);
        let mut report = compare(&expected, &actual, precise.as_ref(), dtype);
        if !report.ok {
            report.first_diverging = first_diverging(&built.partitioned, &inputs, report.tolerance)?;
        }
        Ok(Verified { report, notes: built.notes })
    }
}

/// The tolerance for an element type, relative to a tensor's largest magnitude: 1e-9 for f64, 1e-4 for f32.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        _ => 3e-2,
    }
}

/// Below this magnitude a tensor counts as zero: the difference is then measured against it.
const TINY: f64 = 1e-6;
/// The same for parameters. Where a gradient is zero but for round-off, as for key biases, Adam makes steps of
/// round-off over epsilon of it, and a bias that starts at zero has no other magnitude.
const TINY_PARAMETER: f64 = 1e-3;

/// Compares the planned outputs with the reference, by name. `precise` are the reference's outputs in f64 where both
/// sides ran in a narrower type: they tell how large the rounding error of each gradient is.
pub fn compare(
    reference: &IndexMap<String, Literal>,
    planned: &IndexMap<String, Literal>,
    precise: Option<&IndexMap<String, Literal>>,
    dtype: DType,
) -> Report {
    let tolerance = tolerance(dtype);
    let mut tensors = Vec::new();
    for (name, expected) in reference {
        let Some(actual) = planned.get(name) else {
            let count = expected.ty.element_count().max(1);
            tensors.push(TensorError {
                tensor: name.clone(),
                rel_error: f64::INFINITY,
                excused: 0,
                wrong: count,
            });
            continue;
        };
        let noise = precise.and_then(|p| gradient_noise(reference, planned, p, name, tolerance));
        let is_parameter = reference.contains_key(&format!("grad.{name}"));
        tensors.push(compare_tensor(name, expected, actual, noise.as_ref(), is_parameter, tolerance));
    }
    let ok = tensors.iter().all(|t| t.wrong == 0);
    Report { ok, tensors, tolerance, first_diverging: None }
}

/// The gradient that drives a tensor's elements, and ten times the error the element type makes in it.
struct Noise {
    gradient: Vec<f64>,
    below: f64,
}

/// The error is measured on both sides: the reference may round less often than a device does. What the planned side
/// adds counts for parameters and states only, and only up to the tolerance its gradient is held to, so that a wrong
/// gradient never excuses itself.
fn gradient_noise(
    reference: &IndexMap<String, Literal>,
    planned: &IndexMap<String, Literal>,
    precise: &IndexMap<String, Literal>,
    name: &str,
    tolerance: f64,
) -> Option<Noise> {
    let (parameter, is_gradient) = match (name.strip_prefix("optimizer."), name.strip_prefix("grad.")) {
        (Some(rest), _) => (rest.split_once('.')?.1, false),
        (None, Some(parameter)) => (parameter, true),
        (None, None) => (name, false),
    };
    let key = format!("grad.{parameter}");
    let gradient = precise.get(&key)?.to_f64();
    let error = |side: &IndexMap<String, Literal>| -> Option<f64> {
        let rounded = side.get(&key)?.to_f64();
        Some(rounded.iter().zip(&gradient).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max))
    };
    let mut largest = error(reference)?;
    if !is_gradient {
        let magnitude = gradient.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        largest = largest.max(error(planned)?.min(tolerance * magnitude));
    }
    Some(Noise { gradient, below: 10.0 * largest })
}

fn compare_tensor(
    name: &str,
    expected: &Literal,
    actual: &Literal,
    noise: Option<&Noise>,
    is_parameter: bool,
    tolerance: f64,
) -> TensorError {
    let (e, a) = (expected.to_f64(), actual.to_f64());
    let floor = if is_parameter { TINY_PARAMETER } else { TINY };
    let magnitude = e.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(floor);
    let mut error = TensorError { tensor: name.to_string(), rel_error: 0.0, excused: 0, wrong: 0 };
    if expected.ty != actual.ty {
        error.rel_error = f64::INFINITY;
        error.wrong = e.len().max(1);
        return error;
    }
    for (index, (x, y)) in e.iter().zip(&a).enumerate() {
        let difference = if x.to_bits() == y.to_bits() { 0.0 } else { (x - y).abs() / magnitude };
        // NaN compares false with everything: it must not pass.
        if difference <= tolerance {
            error.rel_error = error.rel_error.max(difference);
            continue;
        }
        let explained = noise.is_some_and(|n| n.gradient.get(index).is_some_and(|g| g.abs() < n.below));
        if explained {
            error.excused += 1;
        } else {
            error.wrong += 1;
            error.rel_error =
                if difference.is_nan() { f64::INFINITY } else { error.rel_error.max(difference) };
        }
    }
    error
}

/// The first value, in execution order, whose shards do not make up what one device computes; with the node that
/// computes it. Runs both sides on the interpreter.
pub fn first_diverging(
    partitioned: &Partitioned,
    inputs: &[Literal],
    tolerance: f64,
) -> Result<Option<String>> {
    let graph: &Graph = &partitioned.graph;
    let mesh = &partitioned.mesh;
    let whole = interpret::evaluate_ranks_all(&[graph], &[inputs.to_vec()])?.remove(0);
    let ranks = mesh.rank_count();
    let locals: Vec<Vec<Literal>> = (0..ranks)
        .map(|rank| {
            inputs
                .iter()
                .zip(&partitioned.inputs)
                .map(|(value, sharding)| virtual_ranks::distribute(value, sharding, mesh, rank))
                .collect()
        })
        .collect();
    let graphs: Vec<&Graph> = (0..ranks).map(|r| partitioned.local(r)).collect();
    let environments = interpret::evaluate_ranks_all(&graphs, &locals)?;
    for placement in &partitioned.placements {
        let Some(expected) = &whole[placement.global.index()] else { continue };
        let shards: Vec<&Literal> = environments
            .iter()
            .map(|environment| {
                environment[placement.local.index()].as_ref().expect("every node was evaluated")
            })
            .collect();
        let name = graph.describe(placement.global);
        let laid = format!("{}, laid out {}", expected.ty, placement.sharding.display(mesh));
        let actual = match virtual_ranks::collect(&expected.ty, &placement.sharding, mesh, &shards) {
            Ok(actual) => actual,
            Err(error) => return Ok(Some(format!("{name}: {laid}: {}", error.message))),
        };
        let error = compare_tensor(&name, expected, &actual, None, false, tolerance);
        if error.wrong > 0 {
            return Ok(Some(format!("{name}: {laid}: off by {:.1e}", error.rel_error)));
        }
    }
    Ok(None)
}
