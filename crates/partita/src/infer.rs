//! Forward-only runs of a model on a mesh.
//!
//! A model may have any inputs and outputs, with or without a loss. What runs is the part of its forward graph that
//! follows from the given inputs, without dropout: of a language model that is fed `tokens` but no `labels`, the logits
//! and not the loss.

use crate::execution;
use crate::planned_step::PlannedStep;
use crate::session::Session;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, InputKind, Role, ValueId, graph_edit};
use partita_nn::{Model, ParamSpec};
use partita_runtime::checkpoint::Checkpoint;
use partita_schedule::feed::Fed;
use partita_schedule::{Plan, StepKind};

/// A forward pass in memory on its mesh, ready to run again and again.
pub struct Inference {
    step: PlannedStep,
    outputs: Vec<String>,
}

impl Inference {
    /// The forward pass of a model under a plan, from these inputs. Parameters have their initial values.
    ///
    /// # Errors
    /// E037 if no output follows from the inputs; what building and lowering refuse.
    pub fn new(session: &Session, model: &Model, plan: &Plan, inputs: &[&str]) -> Result<Inference> {
        let model = following_from(model, inputs)?;
        let built = session.build_part(&model, plan, StepKind::Outputs)?;
        let mut step = session.prepare(&built)?;
        step.initialize(&model, session.config().train.seed)?;
        let graph = &model.forward;
        let is_new = |place: usize| graph.aliases.iter().any(|&(_, output)| output == place);
        let outputs = graph.output_names.iter().enumerate().filter(|(place, _)| !is_new(*place));
        Ok(Inference { step, outputs: outputs.map(|(_, name)| name.clone()).collect() })
    }

    /// The names of the outputs.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Takes the parameters of a checkpoint of the same model, made on any mesh.
    ///
    /// # Errors
    /// E314 with a table if a parameter is missing or has another shape or type.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.step.restore_parameters(checkpoint)
    }

    /// The outputs for global inputs by name.
    ///
    /// # Errors
    /// E414, E415 and E430 for inputs that are unknown, of another shape or type, or missing.
    pub fn run(&mut self, inputs: &Fed) -> Result<Fed> {
        let train_loop = &mut self.step.train_loop;
        execution::with_batch(inputs, |batch| train_loop.feed(batch, 0.0))?;
        train_loop.runner_mut().step()?;
        let output = |name: &String| Ok((name.clone(), execution::literal(&train_loop.output(name)?)));
        self.outputs.iter().map(output).collect()
    }
}

/// The model with the outputs that follow from these inputs alone.
fn following_from(model: &Model, inputs: &[&str]) -> Result<Model> {
    let forward = &model.forward;
    let kept: Vec<usize> =
        (0..forward.outputs.len()).filter(|&place| missing(forward, place, inputs).is_empty()).collect();
    if kept.is_empty() {
        let lacks = (0..forward.outputs.len()).map(|place| {
            format!("{}: {}", forward.output_names[place], missing(forward, place, inputs).join(", "))
        });
        let lacks: Vec<String> = lacks.collect();
        return Err(Diagnostic::new(
            "E037",
            format!("no output of `{}` follows from these inputs", forward.name),
        )
        .expected(format!("the missing inputs of an output: {}", lacks.join("; ")))
        .found(if inputs.is_empty() { "no inputs".to_string() } else { inputs.join(", ") }));
    }
    let pruned = with_outputs(forward, &kept);
    let has = |name: &String| pruned.input_named(name).is_some();
    let read = |specs: &IndexMap<String, ParamSpec>| -> IndexMap<String, ParamSpec> {
        specs.iter().filter(|(name, _)| has(name)).map(|(name, spec)| (name.clone(), spec.clone())).collect()
    };
    let (params, states) = (read(&model.params), read(&model.states));
    Ok(Model { forward: pruned, params, states, ..model.clone() })
}

/// The graph of these outputs, with the inputs that they read.
fn with_outputs(forward: &Graph, places: &[usize]) -> Graph {
    let mut graph = forward.clone();
    graph.outputs = places.iter().map(|&place| forward.outputs[place]).collect();
    graph.output_names = places.iter().map(|&place| forward.output_names[place].clone()).collect();
    graph.output_annotations =
        places.iter().filter_map(|&place| forward.output_annotations.get(place).cloned()).collect();
    // Places change below; names do not.
    let pairs: Vec<(ValueId, usize)> = std::mem::take(&mut graph.aliases)
        .into_iter()
        .map(|(input, output)| (forward.inputs[input], output))
        .collect();
    let mut graph = graph_edit::prune(graph);
    let mut is_read = vec![false; graph.values.len()];
    let operands = graph.nodes.iter().flat_map(|node| &node.operands);
    operands.chain(&graph.outputs).for_each(|value| is_read[value.index()] = true);
    graph.inputs.retain(|input| is_read[input.index()]);
    let mut graph = graph_edit::prune(graph);
    let place = |name: &str| graph.inputs.iter().position(|&input| graph.value(input).name == name);
    let replaced = pairs.iter().filter_map(|&(input, output)| {
        let output = places.iter().position(|&place| place == output)?;
        Some((place(&forward.value(input).name)?, output))
    });
    graph.aliases = replaced.collect();
    graph
}

/// The batch inputs that an output reads and that are not among `inputs`.
fn missing(forward: &Graph, output: usize, inputs: &[&str]) -> Vec<String> {
    let read = with_outputs(forward, &[output]);
    let is_state = |name: &str| {
        forward.aliases.iter().any(|&(input, _)| forward.value(forward.inputs[input]).name == name)
    };
    let is_missing = |name: &str, role: &Role| {
        matches!(InputKind::of(name, role, is_state(name)), InputKind::Batch { .. })
            && !inputs.contains(&name)
    };
    let values = read.inputs.iter().map(|&input| read.value(input));
    values.filter(|value| is_missing(&value.name, &value.role)).map(|value| value.name.clone()).collect()
}
