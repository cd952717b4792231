//! A step that arrives already differentiated, such as a training step of JAX as StableHLO text:
//! microbatches and pipeline stages for it.
//!
//! Such a step is one flat function. Its gradients are marked (role `grad_of`) or named, and the loss
//! is named. Everything else follows by dataflow (Zheng et al., *Alpa*, 2022, section 5):
//!
//! - What the loss, a marked gradient, or another result of a sample depends on is the *accumulation*
//!   part, which runs once for each microbatch. The rest, which only reads the sums, is the update.
//! - Of the accumulation part, what the loss depends on is the forward pass. The other ops are backward
//!   ones: those that lead to a single gradient belong to the gradients of parameters, the others to
//!   those of activations.
//! - Stages are marked on the forward pass. A backward op joins the stage of its forward op: a
//!   cotangent never moves to a later stage, and stays in the last stage that has the forward values or
//!   parameters that the op reads. An update joins the stage of its gradient.

use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::port::{LOSS, gradient_name};
use partita_ir::{Graph, GraphBuilder, NodeId, Op, Phase, Role, ValueId, graph_edit};
use partita_pipeline::from_feed;
use partita_spmd::{check_sums, microbatch_inputs};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a step beside its text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differentiated {
    /// The name of the loss: an output or another value.
    pub loss: String,
    /// The names of gradients, outputs or other values, beside the values with the role `grad_of`.
    pub gradients: Vec<String>,
    /// Positions of the inputs whose dimension 0 is the batch.
    pub batched: Vec<usize>,
    /// Pairs (input, output) of parameters and states: the output is the input of the next step.
    pub carried: Vec<(usize, usize)>,
}

impl Differentiated {
    /// The same step in `microbatches` microbatches, with phases. `mark` assigns the nodes of the
    /// forward pass to stages: [`partita_pipeline::mark::evenly`], for instance. Inputs of a batch are
    /// replaced by one for each microbatch, inputs without a name are called `arg0`, ..; outputs keep their
    /// order, names and types. The carried inputs that the loss depends on get the role of a parameter, and those
    /// that its gradient updates element by element the role of its state.
    ///
    /// # Errors
    /// E265 if there is no value of a name, no input or output at a position, or no gradient, E266 if a
    /// carried output depends on samples other than through marked gradients or changes its type, E476 if a
    /// gradient is no sum over the samples, and the errors of [`microbatch_inputs`] and of `mark`.
    pub fn microbatched(
        &self,
        step: &Graph,
        microbatches: usize,
        mark: &dyn Fn(&mut Graph) -> Result<()>,
    ) -> Result<Graph> {
        let mut step = self.named(step)?;
        let parts = Parts::of(self, &step)?;
        parts.name_roles(self, &mut step);
        parts.set_phases(&mut step);
        parts.set_stages(&mut step, mark)?;
        let accumulation = parts.accumulation(&step);
        let batched: Vec<ValueId> = self.batched.iter().map(|&position| step.inputs[position]).collect();
        if microbatches > 1 {
            check_sums(&accumulation, microbatches, &batched, parts.gradients.len())?;
        }
        let split = microbatch_inputs(&accumulation, microbatches, &batched)?;
        let copies = |input: &ValueId| if batched.contains(input) { microbatches } else { 1 };
        parts.with_update(&step, split, &step.inputs.iter().map(copies).collect::<Vec<_>>())
    }

    /// The step as it is, with its carried pairs. Inputs without a name are called `arg0`, ..
    ///
    /// # Errors
    /// E265 for a position that the step does not have, E266 for a carried output of another type or a sample that is
    /// returned.
    pub(crate) fn named(&self, step: &Graph) -> Result<Graph> {
        self.check(step)?;
        let mut step = step.clone();
        step.aliases.clone_from(&self.carried);
        for (position, input) in step.inputs.clone().into_iter().enumerate() {
            let value = step.value_mut(input);
            if value.name.is_empty() {
                value.name = format!("arg{position}");
            }
        }
        Ok(step)
    }

    /// Checks the positions.
    fn check(&self, step: &Graph) -> Result<()> {
        let inputs = self.batched.iter().copied().chain(self.carried.iter().map(|pair| pair.0));
        let outputs = self.carried.iter().map(|pair| pair.1);
        for (what, mut positions, count) in [
            ("input", inputs.collect::<Vec<usize>>(), step.inputs.len()),
            ("output", outputs.collect(), step.outputs.len()),
        ] {
            positions.retain(|&position| position >= count);
            if let Some(position) = positions.first() {
                return Err(Diagnostic::new("E265", format!("the step has no {what} {position}"))
                    .at(step.name.clone())
                    .expected(format!("a position below {count}")));
            }
        }
        for &(input, output) in &self.carried {
            let (old, new) = (step.ty(step.inputs[input]), step.ty(step.outputs[output]));
            if old != new {
                return Err(Diagnostic::new("E266", "a carried value does not keep its type")
                    .at(format!("input {input} and output {output}"))
                    .expected(old.to_string())
                    .found(new.to_string()));
            }
        }
        let is_returned = |position: &&usize| step.outputs.contains(&step.inputs[**position]);
        match self.batched.iter().find(is_returned) {
            None => Ok(()),
            Some(position) => Err(Diagnostic::new("E266", "a step returns its samples")
                .at(format!("input {position}"))
                .expected("outputs that are computed")),
        }
    }
}

/// A whole step of a model in `microbatches` microbatches, with stages. Its loss is the output `loss`; its gradients are
/// marked (role `grad_of`) or named `grad.<parameter>`; its batch are the inputs that have as many rows as the first one
/// that is fed. A step in one microbatch and one stage needs no gradients, and stays as it is.
///
/// # Errors
/// Those of [`Differentiated::microbatched`].
pub(crate) fn split_step(
    step: &Graph,
    microbatches: usize,
    mark: &dyn Fn(&mut Graph) -> Result<()>,
) -> Result<Graph> {
    // Whether there are several stages shows on a copy: a mark leaves a single stage at 0.
    let mut marked = step.clone();
    mark(&mut marked)?;
    if microbatches == 1 && marked.nodes.iter().all(|node| node.stage == 0) {
        return Ok(step.clone());
    }
    // Of the marked gradients, those of activations are only steps on the way.
    let mut step = step.clone();
    for value in step.value_ids().collect::<Vec<_>>() {
        if let Role::GradOf(of) = step.value(value).role
            && step.value(of).role != Role::Param
        {
            step.value_mut(value).role = Role::Activation;
        }
    }
    let step = &step;
    let is_kept = |place: usize| step.aliases.iter().any(|&(input, _)| input == place);
    let rows = |place: usize| step.ty(step.inputs[place]).shape.first().copied();
    let fed: Vec<usize> =
        (0..step.inputs.len()).filter(|&place| !is_kept(place) && rows(place).is_some()).collect();
    let batch = fed.first().and_then(|&place| rows(place));
    let is_gradient = |name: &&String| name.starts_with(&gradient_name(""));
    let gradients: Vec<String> =
        step.values.iter().map(|value| &value.name).filter(is_gradient).cloned().collect();
    let known = Differentiated {
        loss: LOSS.to_string(),
        gradients,
        batched: fed.into_iter().filter(|&place| rows(place) == batch).collect(),
        carried: step.aliases.clone(),
    };
    known.microbatched(step, microbatches, mark)
}

/// The loss of a whole step alone, with the states that are no numbers to train, such as a count of steps: they stay
/// inputs that an output replaces. Parameters are not replaced.
pub(crate) fn loss_of_step(step: &Graph) -> Graph {
    let mut graph = step.clone();
    let position = |name: &str| step.output_names.iter().position(|own| own == name);
    let Some(loss) = position(LOSS) else { return graph };
    let read = {
        let (mut read, value) = (vec![false; step.values.len()], step.outputs[loss]);
        read[value.index()] = true;
        for node in step.nodes.iter().rev() {
            if node.results.iter().any(|result| read[result.index()]) {
                node.operands.iter().for_each(|operand| read[operand.index()] = true);
            }
        }
        read
    };
    let stays = |&&(input, _): &&(usize, usize)| {
        let value = step.inputs[input];
        read[value.index()] && step.value(value).role != Role::Param
    };
    let kept: Vec<(usize, usize)> = step.aliases.iter().filter(stays).copied().collect();
    let places: Vec<usize> = std::iter::once(loss).chain(kept.iter().map(|&(_, output)| output)).collect();
    graph.outputs = places.iter().map(|&place| step.outputs[place]).collect();
    graph.output_names = places.iter().map(|&place| step.output_names[place].clone()).collect();
    graph.output_annotations = Vec::new();
    // An input of the batch stays even where only the update reads it: it is fed all the same.
    let is_kept = |place: usize| step.aliases.iter().any(|&(input, _)| input == place);
    let inputs: Vec<usize> =
        (0..step.inputs.len()).filter(|&place| !is_kept(place) || read[step.inputs[place].index()]).collect();
    graph.inputs = inputs.iter().map(|&place| step.inputs[place]).collect();
    let place = |input: usize| inputs.iter().position(|&own| own == input);
    graph.aliases = kept
        .iter()
        .enumerate()
        .filter_map(|(number, &(input, _))| Some((place(input)?, number + 1)))
        .collect();
    graph_edit::prune(graph)
}

/// The accumulation part and the update of a step.
struct Parts {
    loss: ValueId,
    gradients: Vec<ValueId>,
    /// For each node, whether it is part of the accumulation.
    accumulates: Vec<bool>,
    /// For each node, whether the loss depends on it.
    is_forward: Vec<bool>,
    /// For each gradient, the carried input that its update replaces.
    parameter_of: Vec<Option<ValueId>>,
}

impl Parts {
    fn of(known: &Differentiated, step: &Graph) -> Result<Parts> {
        let loss = named(step, &known.loss)?;
        let marked = |value: &ValueId| matches!(step.value(*value).role, Role::GradOf(_));
        let mut gradients: Vec<ValueId> = step.value_ids().filter(marked).collect();
        for name in &known.gradients {
            let value = named(step, name)?;
            if !gradients.contains(&value) {
                gradients.push(value);
            }
        }
        if gradients.is_empty() {
            return Err(Diagnostic::new("E265", "the step has no marked or named gradient")
                .at(step.name.clone())
                .expected("a value with `partita.role = \"grad_of %arg0\"`, or the names of gradients"));
        }
        // What depends on samples, except through gradients and the loss.
        let ends: BTreeSet<ValueId> = gradients.iter().copied().chain([loss]).collect();
        let mut of_samples = vec![false; step.values.len()];
        for &position in &known.batched {
            of_samples[step.inputs[position].index()] = true;
        }
        let mut wanted: Vec<ValueId> = ends.iter().copied().collect();
        for node in &step.nodes {
            let reads = |v: &ValueId| of_samples[v.index()] && !ends.contains(v);
            if node.operands.iter().any(reads) {
                node.results.iter().for_each(|result| of_samples[result.index()] = true);
                wanted.extend(&node.results);
            }
        }
        let accumulates = ancestors(step, &wanted);
        for &(input, output) in &known.carried {
            let value = step.outputs[output];
            if of_samples[value.index()] && !ends.contains(&value) {
                return Err(Diagnostic::new("E266", "a carried value is updated without a marked gradient")
                    .at(step.describe(step.inputs[input]))
                    .expected("an update that reads samples through marked gradients alone")
                    .found(step.describe(value))
                    .help("mark or name the gradient that this update reads"));
            }
        }
        let is_forward = ancestors(step, &[loss]);
        let of_gradient = followed(step, &gradients, &accumulates);
        let mut parameter_of = vec![None; gradients.len()];
        let mut read_forward = vec![false; step.values.len()];
        for (node, _) in step.nodes.iter().zip(&is_forward).filter(|(_, is_forward)| **is_forward) {
            node.operands.iter().for_each(|operand| read_forward[operand.index()] = true);
        }
        for (number, &gradient) in gradients.iter().enumerate() {
            if let Role::GradOf(of) = step.value(gradient).role {
                parameter_of[number] = Some(of);
            }
        }
        for &(input, output) in &known.carried {
            let (old, new) = (step.inputs[input], step.outputs[output]);
            if let (Some(number), true) = (of_gradient.get(&new).copied(), read_forward[old.index()]) {
                parameter_of[number].get_or_insert(old);
            }
        }
        Ok(Parts { loss, gradients, accumulates, is_forward, parameter_of })
    }

    /// Carried inputs that the forward pass reads are parameters; gradients know theirs.
    fn name_roles(&self, known: &Differentiated, step: &mut Graph) {
        for node in 0..step.nodes.len() {
            for operand in step.nodes[node].operands.clone().into_iter().filter(|_| self.is_forward[node]) {
                let is_carried = known.carried.iter().any(|&(input, _)| step.inputs[input] == operand);
                if is_carried && step.ty(operand).dtype.is_float() {
                    step.value_mut(operand).role = Role::Param;
                }
            }
        }
        for (&gradient, parameter) in self.gradients.iter().zip(&self.parameter_of) {
            if let Some(parameter) = *parameter
                && step.value(gradient).definition.is_some()
            {
                step.value_mut(gradient).role = Role::GradOf(parameter);
            }
        }
        // What else is updated by the gradient of a parameter, such as its moments, has its layout.
        let of_gradient = followed(step, &self.gradients, &self.accumulates);
        for &(input, output) in &known.carried {
            let (old, number) = (step.inputs[input], of_gradient.get(&step.outputs[output]));
            if let Some(parameter) = number.and_then(|&number| self.parameter_of[number])
                && step.value(old).role != Role::Param
            {
                step.value_mut(old).role = Role::StateOf(parameter);
            }
        }
    }

    fn set_phases(&self, step: &mut Graph) {
        let leads_to = self.leads_to(step);
        for (index, node) in step.nodes.iter_mut().enumerate() {
            node.phase = match (self.accumulates[index], self.is_forward[index], leads_to[index]) {
                (false, ..) => Phase::Update,
                // Other results of the samples, such as an accuracy, are computed with the loss.
                (true, true, _) | (true, false, Reached::None) => Phase::Forward,
                (true, false, Reached::One(_)) => Phase::WeightGrad,
                (true, false, Reached::Several) => Phase::InputGrad,
            };
        }
    }

    /// For each node, the gradients that depend on it.
    fn leads_to(&self, step: &Graph) -> Vec<Reached> {
        let mut of_value = vec![Reached::None; step.values.len()];
        for (number, gradient) in self.gradients.iter().enumerate() {
            of_value[gradient.index()] = of_value[gradient.index()].and(Reached::One(number));
        }
        let mut of_node = vec![Reached::None; step.nodes.len()];
        for id in step.node_ids().rev().filter(|id| self.accumulates[id.index()]) {
            let node = step.node(id);
            let of_results = node.results.iter().map(|result| of_value[result.index()]);
            of_node[id.index()] = of_results.fold(Reached::None, Reached::and);
            for operand in &node.operands {
                of_value[operand.index()] = of_value[operand.index()].and(of_node[id.index()]);
            }
        }
        of_node
    }

    /// Marks the forward pass, and lets the other ops follow.
    fn set_stages(&self, step: &mut Graph, mark: &dyn Fn(&mut Graph) -> Result<()>) -> Result<()> {
        let (mut forward, nodes) = part(step, &self.is_forward, &[self.loss]);
        mark(&mut forward)?;
        for (node, id) in forward.nodes.iter().zip(nodes) {
            step.nodes[id.index()].stage = node.stage;
        }
        let stages = Followers::of(self, step).run();
        for (node, stage) in step.nodes.iter_mut().zip(stages) {
            node.stage = stage;
        }
        Ok(())
    }

    /// The accumulation part as a graph of its own. Its outputs are the gradients, then the other
    /// values that the update or the caller reads. All inputs stay.
    fn accumulation(&self, step: &Graph) -> Graph {
        part(step, &self.accumulates, &self.handed_over(step)).0
    }

    /// The values of the accumulation part that are read outside of it: the gradients first.
    fn handed_over(&self, step: &Graph) -> Vec<ValueId> {
        let mut read = vec![false; step.values.len()];
        step.outputs.iter().for_each(|output| read[output.index()] = true);
        for (node, _) in step.nodes.iter().zip(&self.accumulates).filter(|(_, accumulates)| !**accumulates) {
            node.operands.iter().for_each(|operand| read[operand.index()] = true);
        }
        let is_made = |value: &ValueId| {
            step.value(*value).definition.is_some_and(|(node, _)| self.accumulates[node.index()])
        };
        let others =
            step.value_ids().filter(|v| read[v.index()] && is_made(v) && !self.gradients.contains(v));
        self.gradients.iter().copied().chain(others).collect()
    }

    /// Puts the update behind the microbatches. Each input has become so many copies.
    fn with_update(&self, step: &Graph, split: Graph, copies: &[usize]) -> Result<Graph> {
        let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        map.extend(self.handed_over(step).into_iter().zip(split.outputs.iter().copied()));
        let mut place = 0;
        for (&input, count) in step.inputs.iter().zip(copies) {
            if *count == 1 {
                map.insert(input, split.inputs[place]);
            }
            place += count;
        }
        let mut builder = GraphBuilder::from_graph(split);
        for (id, node) in step.node_ids().zip(&step.nodes) {
            if self.accumulates[id.index()] {
                continue;
            }
            builder.enter(node);
            let operands: Vec<ValueId> = node.operands.iter().map(|operand| map[operand]).collect();
            let types = node.results.iter().map(|&result| step.ty(result).clone()).collect();
            let results = builder.push_typed(node.op.clone(), &operands, types);
            for (&old, new) in node.results.iter().zip(results) {
                builder.graph_mut().value_mut(new).name.clone_from(&step.value(old).name);
                map.insert(old, new);
            }
        }
        let mut graph = builder.finish(Vec::new());
        graph.outputs = step.outputs.iter().map(|output| map[output]).collect();
        graph.output_names.clone_from(&step.output_names);
        graph.output_annotations = Vec::new();
        let position = |value: ValueId| graph.inputs.iter().position(|&input| input == value);
        let alias =
            |&(input, output): &(usize, usize)| Some((position(*map.get(&step.inputs[input])?)?, output));
        graph.aliases = step.aliases.iter().filter_map(alias).collect();
        Ok(graph_edit::prune(graph))
    }
}

/// How many gradients depend on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reached {
    None,
    One(usize),
    Several,
}

impl Reached {
    fn and(self, other: Reached) -> Reached {
        match (self, other) {
            (Reached::None, one) | (one, Reached::None) => one,
            (one, two) if one == two => one,
            _ => Reached::Several,
        }
    }
}

/// The stages of backward and update ops, from those of the forward pass.
struct Followers<'a> {
    parts: &'a Parts,
    step: &'a Graph,
    /// Values that every stage computes itself.
    is_local: Vec<bool>,
    /// For each value, the stages of the forward ops that make or read it, ascending.
    forward_stages: Vec<BTreeSet<usize>>,
    /// The stage of each node.
    stages: Vec<usize>,
}

impl<'a> Followers<'a> {
    fn of(parts: &'a Parts, step: &'a Graph) -> Followers<'a> {
        let is_local = from_feed(step, |_| false);
        let mut forward_stages = vec![BTreeSet::new(); step.values.len()];
        for (node, _) in step.nodes.iter().zip(&parts.is_forward).filter(|(_, is_forward)| **is_forward) {
            if node.results.iter().all(|result| is_local[result.index()]) {
                continue;
            }
            for value in node.operands.iter().chain(&node.results) {
                forward_stages[value.index()].insert(node.stage);
            }
        }
        let stages = step.nodes.iter().map(|node| node.stage).collect();
        Followers { parts, step, is_local, forward_stages, stages }
    }

    fn run(mut self) -> Vec<usize> {
        let leads_to = self.parts.leads_to(self.step);
        for id in self.step.node_ids() {
            if self.parts.accumulates[id.index()] && !self.parts.is_forward[id.index()] {
                self.stages[id.index()] = self.backward(id, leads_to[id.index()]);
            }
        }
        self.update();
        self.stages
    }

    /// The stage of a backward op: the last one that has what it reads, no later than its cotangents.
    fn backward(&self, id: NodeId, leads_to: Reached) -> usize {
        let node = self.step.node(id);
        let (mut limit, mut reads): (Option<usize>, Vec<ValueId>) = (None, Vec::new());
        for &operand in node.operands.iter().filter(|operand| !self.is_local[operand.index()]) {
            match self.step.value(operand).definition {
                Some((maker, _)) if !self.parts.is_forward[maker.index()] => {
                    let stage = self.stages[maker.index()];
                    limit = Some(limit.map_or(stage, |limit: usize| limit.min(stage)));
                }
                _ => reads.push(operand),
            }
        }
        let Some(limit) = limit else {
            // What only forward values lead to, such as a mask, is computed where they are.
            let first = |value: &ValueId| self.forward_stages[value.index()].first().copied();
            return reads.iter().filter_map(first).max().unwrap_or(0);
        };
        let until = |value: ValueId| self.forward_stages[value.index()].range(..=limit).next_back().copied();
        let of_reads = reads.into_iter().filter_map(until).max();
        let of_parameter = || match leads_to {
            Reached::One(number) => self.parts.parameter_of[number].and_then(until),
            _ => None,
        };
        of_reads.or_else(of_parameter).unwrap_or(limit)
    }

    /// Updates join the stage of the gradient whose shape they have; what is left, such as powers of a
    /// decay, that of its first reader.
    fn update(&mut self) {
        let step = self.step;
        let of_gradient = followed(step, &self.parts.gradients, &self.parts.accumulates);
        let stage_of = |value: ValueId, stages: &[usize], known: &[bool]| {
            let (maker, _) = step.value(value).definition?;
            known[maker.index()].then(|| stages[maker.index()])
        };
        let mut known = self.parts.accumulates.clone();
        for id in step.node_ids().filter(|id| !self.parts.accumulates[id.index()]) {
            let node = step.node(id);
            let own = node.results.iter().find_map(|result| of_gradient.get(result));
            let of_own = own.and_then(|&number| stage_of(self.parts.gradients[number], &self.stages, &known));
            let of_operands = node.operands.iter().filter_map(|&v| stage_of(v, &self.stages, &known)).max();
            if let Some(stage) = of_own.or(of_operands) {
                (self.stages[id.index()], known[id.index()]) = (stage, true);
            }
        }
        let mut first_reader: Vec<Option<usize>> = vec![None; step.values.len()];
        for id in step.node_ids().rev().filter(|id| !self.parts.accumulates[id.index()]) {
            if !known[id.index()] {
                let readers = step.node(id).results.iter().filter_map(|result| first_reader[result.index()]);
                self.stages[id.index()] = readers.min().unwrap_or(0);
            }
            let stage = self.stages[id.index()];
            for operand in &step.node(id).operands {
                let first = &mut first_reader[operand.index()];
                *first = Some(first.map_or(stage, |other| other.min(stage)));
            }
        }
    }
}

/// The values of the update that follow from a single gradient element by element: those of its shape
/// that are computed from it without a broadcast. Each with the number of the gradient.
fn followed(step: &Graph, gradients: &[ValueId], accumulates: &[bool]) -> BTreeMap<ValueId, usize> {
    let mut of: BTreeMap<ValueId, usize> =
        gradients.iter().enumerate().map(|(number, &gradient)| (gradient, number)).collect();
    for (node, _) in step.nodes.iter().zip(accumulates).filter(|(_, accumulates)| !**accumulates) {
        for &result in &node.results {
            let alike = |v: &&ValueId| step.ty(**v).shape == step.ty(result).shape;
            let own = node.operands.iter().filter(alike).filter_map(|v| of.get(v)).next().copied();
            if let Some(number) = own.filter(|_| !matches!(node.op, Op::BroadcastInDim(_))) {
                of.insert(result, number);
            }
        }
    }
    of
}

/// For each node, whether one of these values depends on it.
fn ancestors(step: &Graph, values: &[ValueId]) -> Vec<bool> {
    let mut needed = vec![false; step.values.len()];
    values.iter().for_each(|value| needed[value.index()] = true);
    let mut found = vec![false; step.nodes.len()];
    for id in step.node_ids().rev() {
        let node = step.node(id);
        if node.results.iter().any(|result| needed[result.index()]) {
            found[id.index()] = true;
            node.operands.iter().for_each(|operand| needed[operand.index()] = true);
        }
    }
    found
}

/// Some nodes of a graph with all its inputs and values, and these outputs; also which nodes they were.
fn part(step: &Graph, kept: &[bool], outputs: &[ValueId]) -> (Graph, Vec<NodeId>) {
    let mut graph = step.clone();
    let nodes: Vec<NodeId> = step.node_ids().filter(|id| kept[id.index()]).collect();
    graph.nodes = nodes.iter().map(|&id| step.node(id).clone()).collect();
    graph.values.iter_mut().for_each(|value| value.definition = None);
    for (number, node) in graph.nodes.iter().enumerate() {
        for (place, result) in node.results.iter().enumerate() {
            graph.values[result.index()].definition = Some((NodeId::new(number), place));
        }
    }
    graph.outputs = outputs.to_vec();
    graph.output_names = outputs.iter().map(|&output| step.value(output).name.clone()).collect();
    (graph.output_annotations, graph.aliases) = (Vec::new(), Vec::new());
    (graph, nodes)
}

/// The output or value with this name.
fn named(step: &Graph, name: &str) -> Result<ValueId> {
    let by_name = || step.value_ids().find(|&value| step.value(value).name == name);
    if let Some(value) = step.output_named(name).or_else(by_name).filter(|_| !name.is_empty()) {
        return Ok(value);
    }
    let values = step.values.iter().map(|value| value.name.as_str()).filter(|name| !name.is_empty());
    let names: Vec<&str> = step.output_names.iter().map(String::as_str).chain(values).collect();
    let mut error = Diagnostic::new("E265", format!("the step has no value `{name}`"))
        .at(step.name.clone())
        .expected("the name of an output, or of a value (`partita.name`)");
    error.help = did_you_mean(name, names);
    Err(error)
}
