//! Passes over the graph of one device: its forward pass and its gradients.

use super::building::Building;
use crate::differentiated::loss_of_step;
use crate::pipeline::Pipeline;
use crate::request::{BuildOptions, BuildRequest, Source, StepKind};
use crate::structure::Structured;
use partita_base::{Diagnostic, Result};
use partita_ir::composites::DROPOUT;
use partita_ir::ops::Composite;
use partita_ir::port::LOSS;
use partita_ir::{
    Attribute, F8, Graph, Node, Role, Target, TensorType, Value, graph_edit, precision, quantise,
};
use partita_nn::{Model, differentiate};
use partita_pipeline::mark::{by_scopes, without_scopes};

impl Building {
    pub(super) fn without_dropout(self, request: &BuildRequest) -> Result<Building> {
        self.rewritten(|graph| match request.is_step() {
            true => without_dropout(&loss_of_step(&graph)),
            false => without_dropout(&graph),
        })
    }

    pub(super) fn restructured(self, request: &BuildRequest) -> Result<Building> {
        let Source::Model(model) = request.source else { return Ok(self) };
        let model = Model {
            forward: self.graph,
            params: model.params.clone(),
            states: model.states.clone(),
            ties: model.ties.clone(),
            modules: model.modules.clone(),
        };
        let structured = Structured::from_model(model).with_lines(request.plan, &request.context)?;
        Ok(Building { graph: structured.model.forward.clone(), structured: Some(structured), ..self })
    }

    pub(super) fn sliced(mut self, request: &BuildRequest) -> Result<Building> {
        self.pipeline = match self.structured(request) {
            Some(structured) => structured.pipeline(request.mesh, request.options)?,
            None => Pipeline::of(&[], false, request.mesh, &request.options.timetable)?,
        };
        Ok(self)
    }

    pub(super) fn in_precision(mut self, request: &BuildRequest) -> Result<Building> {
        let (graph, options) = (std::mem::take(&mut self.graph), &request.options.step);
        self.graph = match (self.structured(request), options.precision) {
            (Some(structured), _) => structured.in_precision(graph, options)?,
            (None, Some(compute)) => precision::mixed(&graph, compute, &|_| false)?,
            (None, None) => graph,
        };
        Ok(self)
    }

    /// A part without an update has no history of magnitudes to scale by.
    pub(super) fn quantised(mut self, request: &BuildRequest) -> Result<Building> {
        let f8 = match request.part {
            StepKind::Step => request.options.step.f8,
            _ => request.options.step.f8.map(F8::without_states),
        };
        if let Some(f8) = f8 {
            let structured = self.structured(request);
            let keeps = |node: &Node| structured.is_some_and(|structured| structured.keeps_type(node));
            self.graph = quantise::quantised(&self.graph, f8, self.seed, &keeps)?;
        }
        Ok(self)
    }

    pub(super) fn differentiated(self, request: &BuildRequest) -> Result<Building> {
        let BuildOptions { step, input_gradient, input_gradients, .. } = request.options;
        let mut inputs: Vec<&str> = input_gradients.iter().map(String::as_str).collect();
        if *input_gradient {
            inputs.push(first_real_input(&self.graph)?);
        }
        let scaling = step.loss_scaling.filter(|_| request.part == StepKind::Step);
        let (graph, seed) = differentiate(&self.graph, &inputs, scaling)?;
        Ok(Building { graph, seed: Some(seed), ..self })
    }

    /// Lists the outputs that the request leaves out.
    pub(super) fn hiding(mut self, request: &BuildRequest) -> Building {
        self.hidden = predictions(&self.graph, request);
        let has_cotangents = self.graph.inputs.iter().any(|&input| self.graph.value(input).is_cotangent());
        if request.part == StepKind::Gradients && has_cotangents {
            self.hidden.push(LOSS.to_string());
        }
        self
    }

    /// A program that arrives differentiated, in stages and microbatches.
    pub(super) fn arrived(mut self, request: &BuildRequest) -> Result<Building> {
        let Source::Differentiated { known, is_returned, .. } = request.source else { return Ok(self) };
        let (stages, microbatches) = (self.pipeline.slice_of_stage.len(), request.options.microbatches);
        let mut graph = if known.gradients.is_empty() && stages == 1 && microbatches == 1 {
            known.named(&self.graph)?
        } else {
            known.microbatched(&self.graph, microbatches, &|forward| by_scopes(forward, stages))?
        };
        for node in &mut graph.nodes {
            node.path = without_scopes(&node.path);
        }
        let names = graph.output_names.iter().enumerate();
        self.hidden = names.filter(|(place, _)| !is_returned(*place)).map(|(_, name)| name.clone()).collect();
        Ok(Building { graph, ..self })
    }
}

/// The forward graph with every dropout kept as a node but with probability zero.
fn without_dropout(forward: &Graph) -> Result<Graph> {
    graph_edit::rebuild(forward, |builder, _, index, operands| {
        let node = &forward.nodes[index];
        let Some(composite) = node.op.composite().filter(|c| c.definition.name == DROPOUT.name) else {
            return Ok(Some(graph_edit::push_copy(builder, forward, index, operands)));
        };
        let mut attributes = composite.attributes.clone();
        attributes.insert("rate".to_string(), Attribute::Float(0.0));
        let types: Vec<TensorType> = forward.operand_types(node).into_iter().cloned().collect();
        builder.enter(node);
        Ok(Some(builder.push(Composite::new(&DROPOUT, attributes, &types)?, operands)?))
    })
}

/// The outputs of a forward graph beside its loss that were not requested. As outputs they would stay in memory until the
/// end of the step. An output that replaces an input is no prediction: the input would otherwise have to be fed.
fn predictions(forward: &Graph, request: &BuildRequest) -> Vec<String> {
    let is_asked = request.options.output_predictions || request.part == StepKind::Outputs;
    if is_asked || forward.output_position(LOSS).is_none() {
        return Vec::new();
    }
    let replaces = |place: usize| forward.aliases.iter().any(|&(_, output)| output == place);
    let is_dropped = |(place, name): &(usize, &String)| *name != LOSS && !replaces(*place);
    forward.output_names.iter().enumerate().filter(is_dropped).map(|(_, name)| name.clone()).collect()
}

/// The graph without these outputs.
pub(super) fn without_outputs(mut graph: Graph, names: &[String]) -> Graph {
    let is_kept = |place: &usize| graph.output_names.get(*place).is_none_or(|name| !names.contains(name));
    let kept: Vec<usize> = (0..graph.outputs.len()).filter(is_kept).collect();
    fn pick<T: Clone>(list: &[T], kept: &[usize]) -> Vec<T> {
        kept.iter().filter_map(|&place| list.get(place).cloned()).collect()
    }
    graph.outputs = pick(&graph.outputs, &kept);
    graph.output_annotations = pick(&graph.output_annotations, &kept);
    graph.output_names = pick(&graph.output_names, &kept);
    let now = |(input, output): &(usize, usize)| Some((*input, kept.binary_search(output).ok()?));
    graph.aliases = graph.aliases.iter().filter_map(now).collect();
    graph
}

/// The name of the first fed tensor with a float element type.
fn first_real_input(forward: &Graph) -> Result<&str> {
    let real = |value: &&Value| value.role == Role::Input && value.ty.rank() > 0 && value.ty.dtype.is_float();
    forward.inputs.iter().map(|&v| forward.value(v)).find(real).map(|value| value.name.as_str()).ok_or_else(
        || {
            Diagnostic::new("E013", format!("`{}` has no input with a gradient", forward.name))
                .expected("an input with a float type")
        },
    )
}

/// Inlines every composite that the device has no kernel for, and removes dead nodes: an inlined
/// gradient composite may turn out not to read a weight, which then need not be gathered.
pub fn open_composites(graph: &Graph, target: &dyn Target) -> Result<Graph> {
    Ok(graph_edit::prune(graph_edit::open_composites(graph, &|c| !target.has_kernel(c))?))
}
