//! Microbatching: splits the batch into parts that run one after another and accumulates gradients.
//!
//! This is partitioning over an axis that is unrolled in time instead of over ranks, by the same
//! factor rules. Every value is whole (the same for all microbatches), split (one dimension is the
//! batch), or partial (the sum, or another combination, of one contribution per microbatch). A
//! partial value passes through ops that are linear in it and is combined once, when another op
//! needs it. Counts over the whole batch, such as a mean's denominator, are therefore computed over
//! the whole batch, and the result does not depend on the number of microbatches.

mod coupled;
mod emit;

pub use coupled::coupled_op;

use crate::units::rules_of;
use partita_base::{Diagnostic, Result};
use partita_ir::graph_edit::open_composites;
use partita_ir::{FactorId, FactorKind, Graph, Node, NodeId, Op, Operation, Role, Rule, TensorType, ValueId};
use partita_mesh::Combiner;

/// Splits the batch, dimension 0 of every [`Role::Input`] of rank 1 or more that is no state, into `count`
/// microbatches. An input with another extent there, such as a mask of `[T, T]` or positions of `[1, T]`, is shared by all
/// microbatches: see [`microbatch_of`].
///
/// The graph has no optimizer yet: forward and backward, with outputs such as the loss and the
/// gradients. A batched input `tokens` is replaced by `count` inputs `tokens.micro0`,
/// `tokens.micro1`, .. with extents as equal as possible, larger ones first. Outputs keep their
/// types: contributions are combined, split values concatenated. Nodes of one microbatch carry its
/// number and are adjacent, so that its activations are freed before the next one starts. With
/// `count` 1 the graph is returned unchanged.
///
/// # Errors
/// E220 if an op needs the full batch (the message names the op, its module and the reason), E225
/// if there are more microbatches than samples, E226 if inputs have different extents and several of them could be the
/// batch.
pub fn microbatch(graph: &Graph, count: usize) -> Result<Graph> {
    microbatch_of(graph, count, None)
}

/// As [`microbatch`], of a batch of `rows` where that is known. Else the batch is the extent with which every op sees each
/// sample on its own.
pub fn microbatch_of(graph: &Graph, count: usize, rows: Option<usize>) -> Result<Graph> {
    if count == 1 {
        return Ok(graph.clone());
    }
    let batched = batched_inputs(graph, count, rows)?;
    microbatch_inputs(graph, count, &batched)
}

/// The inputs that have a row for each sample.
fn batched_inputs(graph: &Graph, count: usize, rows: Option<usize>) -> Result<Vec<ValueId>> {
    // What an output replaces is a state.
    let is_state = |position: usize| graph.aliases.iter().any(|&(input, _)| input == position);
    let is_fed = |&(position, v): &(usize, &ValueId)| {
        graph.value(*v).role == Role::Input && graph.ty(*v).rank() > 0 && !is_state(position)
    };
    let fed: Vec<ValueId> = graph.inputs.iter().enumerate().filter(is_fed).map(|(_, &v)| v).collect();
    let extent = |v: &ValueId| graph.ty(*v).shape[0];
    let with = |rows: usize| fed.iter().copied().filter(|v| extent(v) == rows).collect::<Vec<_>>();
    let mut sizes: Vec<usize> = Vec::new();
    for rows in fed.iter().map(extent) {
        if !sizes.contains(&rows) {
            sizes.push(rows);
        }
    }
    if sizes.len() > 1 {
        sizes.retain(|&rows| rows != 1);
    }
    if let Some(rows) = rows.filter(|rows| sizes.contains(rows)) {
        sizes = vec![rows];
    }
    let &[first, ..] = &sizes[..] else { return Ok(fed) };
    let tried = |batched: Vec<ValueId>| -> Result<Vec<ValueId>> {
        let cuts = Cuts::of(graph, count, &batched)?;
        analysed(graph, &cuts, &batched).map(|_| batched)
    };
    // The usual case needs no trial: an op that cannot be split is found when the step is split.
    let whole = with(first);
    if sizes.len() == 1 && whole.iter().all(|&v| !is_square(graph.ty(v))) {
        return Ok(whole);
    }
    let (found, refused): (Vec<_>, Vec<_>) =
        sizes.iter().map(|&rows| tried(with(rows))).partition(|found| found.is_ok());
    let mut found: Vec<Vec<ValueId>> = found.into_iter().flatten().collect();
    if found.is_empty() {
        // A mask of `[T, T]` where the batch has T rows too.
        let without = |&rows: &usize| {
            let batched = with(rows);
            let squares: Vec<ValueId> = batched.iter().copied().filter(|&v| is_square(graph.ty(v))).collect();
            let less =
                squares.into_iter().map(move |v| batched.iter().copied().filter(|&o| o != v).collect());
            less.filter(|less: &Vec<ValueId>| !less.is_empty()).collect::<Vec<_>>()
        };
        found = sizes.iter().flat_map(without).filter_map(|batched| tried(batched).ok()).collect();
    }
    match (found.len(), refused.into_iter().find_map(|refused| refused.err())) {
        (1, _) => Ok(found.remove(0)),
        (0, Some(error)) => Err(error),
        _ => Err(several_batches(graph, &fed, &sizes)),
    }
}

/// Whether a tensor could be a mask of positions by positions.
fn is_square(ty: &TensorType) -> bool {
    matches!(ty.shape[..], [rows, columns] if rows == columns)
}

/// E226: more than one extent could be the batch.
fn several_batches(graph: &Graph, fed: &[ValueId], sizes: &[usize]) -> Box<Diagnostic> {
    let list: Vec<String> = fed.iter().map(|&v| format!("{} {}", graph.describe(v), graph.ty(v))).collect();
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    Diagnostic::new("E226", "inputs have different numbers of rows, and more than one could be the batch")
        .at(list.join(", "))
        .expected("one number of rows, or the batch size")
        .found(format!("{} rows", sizes.join(" or ")))
        .help("name the batch size by `batch=` of `partita.load`, or export the model with a dynamic batch")
}

/// As [`microbatch`], with the inputs whose dimension 0 is the batch given by the caller.
pub fn microbatch_inputs(graph: &Graph, count: usize, batched: &[ValueId]) -> Result<Graph> {
    if count == 1 {
        return Ok(graph.clone());
    }
    let cuts = Cuts::of(graph, count, batched)?;
    let (graph, batched, analysis) = analysed(graph, &cuts, batched)?;
    emit::Emitter::run(&graph, &batched, &cuts, &analysis)
}

/// Checks that each of the first `outputs` outputs, the gradients of a step, is a sum over the samples
/// or does not depend on them.
///
/// # Errors
/// E476 with the op that computes another one, and the errors of [`microbatch_inputs`].
pub fn check_sums(graph: &Graph, count: usize, batched: &[ValueId], outputs: usize) -> Result<()> {
    let cuts = Cuts::of(graph, count, batched)?;
    let (graph, _, analysis) = analysed(graph, &cuts, batched)?;
    for &output in &graph.outputs[..outputs] {
        let found = match analysis.states[output.index()] {
            State::Whole | State::Partial(Combiner::Sum) => continue,
            State::Split(place) => format!("one entry for each sample along dimension {}", place.dim),
            State::Partial(combiner) => format!("another combination of the samples: {combiner:?}"),
        };
        let op = graph.value(output).definition.map_or("an input", |(id, _)| graph.node(id).op.name());
        return Err(Diagnostic::new(
            "E476",
            format!("the gradient that `{op}` computes is no sum over samples"),
        )
        .at(graph.describe(output))
        .expected("a sum over the batch, which microbatches can add up")
        .found(found));
    }
    Ok(())
}

/// The analysis of a graph in which composites that cannot be split as one op are inlined.
fn analysed(graph: &Graph, cuts: &Cuts, batched: &[ValueId]) -> Result<(Graph, Vec<ValueId>, Analysis)> {
    // Inlining composites renumbers values; inputs keep their order.
    let is_batched: Vec<bool> = graph.inputs.iter().map(|input| batched.contains(input)).collect();
    let batched = |graph: &Graph| -> Vec<ValueId> {
        graph.inputs.iter().zip(&is_batched).filter(|(_, is_batched)| **is_batched).map(|(&v, _)| v).collect()
    };
    // A composite that cannot be split as one op may be split after inlining. A random number
    // generator, for instance, takes the offset of its part as an operand, which an enclosing
    // composite does not pass on.
    let mut graph = open_composites(graph, &|c| holds_random_numbers(&c.definition.decomposition))?;
    loop {
        let batched = batched(&graph);
        match Analysis::of(&graph, &batched, cuts) {
            Ok(analysis) => return Ok((graph, batched, analysis)),
            Err(blocked) => {
                let Some(composite) = graph.node(blocked.node).op.composite() else {
                    return Err(blocked.error);
                };
                let name = composite.definition.name.clone();
                graph = open_composites(&graph, &|c| c.definition.name == name)?;
            }
        }
    }
}

fn holds_random_numbers(graph: &Graph) -> bool {
    graph.nodes.iter().filter_map(|node| node.op.composite()).any(|inner| {
        let own = matches!(&inner.definition.origin,
            partita_ir::composite::Origin::Template(t) if t.offsets_operand.is_some());
        own || holds_random_numbers(&inner.definition.decomposition)
    })
}

/// The split of the batch.
struct Cuts {
    batch: usize,
    sizes: Vec<usize>,
    offsets: Vec<usize>,
}

impl Cuts {
    fn of(graph: &Graph, count: usize, batched: &[ValueId]) -> Result<Cuts> {
        let Some(&first) = batched.first() else {
            return Err(Diagnostic::new("E226", "microbatches need an input with a batch dimension")
                .expected("an input of rank 1 or more, the batch in dimension 0")
                .found("none"));
        };
        let batch = graph.ty(first).shape[0];
        for &other in batched {
            if graph.ty(other).shape[0] != batch {
                return Err(Diagnostic::new("E226", "inputs have different batch sizes")
                    .at(graph.describe(other))
                    .expected(format!("{batch} samples, as `{}` has", graph.describe(first)))
                    .found(graph.ty(other).to_string()));
            }
        }
        if count == 0 || batch < count {
            return Err(Diagnostic::new("E225", format!("{count} microbatches of a batch of {batch}"))
                .expected(format!("1 to {batch} microbatches"))
                .found(count.to_string())
                .help("use fewer microbatches or a larger batch"));
        }
        let sizes: Vec<usize> = (0..count).map(|i| batch / count + usize::from(i < batch % count)).collect();
        let offsets = sizes.iter().scan(0, |offset, size| Some((*offset, *offset += size).0)).collect();
        Ok(Cuts { batch, sizes, offsets })
    }

    fn count(&self) -> usize {
        self.sizes.len()
    }

    /// The factor of a dimension of `[major, batch, minor]` elements that holds the batch, if it holds all of it.
    fn part(&self, rule: &Rule, factors: &[FactorId], major: usize) -> Option<Part> {
        let mut before = 1;
        for &factor in factors.iter().filter(|&&factor| rule.factors[factor].size != 1) {
            let size = rule.factors[factor].size;
            let own = major / before;
            if own * before != major {
                return None;
            }
            if size.is_multiple_of(own * self.batch) {
                return Some(Part { factor, major: own });
            }
            before *= size;
        }
        None
    }

    /// The type of part `index` of a value split along `dim`.
    fn piece_type(&self, ty: &TensorType, dim: usize, index: usize) -> TensorType {
        let mut shape = ty.shape.clone();
        shape[dim] = shape[dim] / self.batch * self.sizes[index];
        ty.with_shape(shape)
    }

    /// The start of part `index` in a dimension of this extent whose major elements are the batch.
    fn start(&self, extent: usize, index: usize) -> usize {
        extent / self.batch * self.offsets[index]
    }
}

/// Where the batch is in a tensor: a dimension of `[major, batch, minor]` elements. Of tokens that were flattened,
/// `[T * B]`, the major ones are the positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    dim: usize,
    major: usize,
}

/// Where the batch is in a factor of `[major, batch, minor]` elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    factor: FactorId,
    major: usize,
}

impl Part {
    /// Its place in a tensor with these factors.
    fn place(self, rule: &Rule, dims: &[Vec<FactorId>]) -> Option<Place> {
        let dim = dims.iter().position(|factors| factors.contains(&self.factor))?;
        let before = dims[dim].iter().take_while(|&&factor| factor != self.factor);
        let before: usize = before.map(|&factor| rule.factors[factor].size).product();
        Some(Place { dim, major: before * self.major })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The same for every microbatch.
    Whole,
    /// The batch is here.
    Split(Place),
    /// Every microbatch contributes.
    Partial(Combiner),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Run {
    /// Once, for all microbatches.
    Once,
    /// For each microbatch, on its part of this factor.
    Pieces(Part),
    /// For each microbatch, on its contribution, in which the op is linear.
    Contributions,
}

/// An op that cannot be split into microbatches.
struct Blocked {
    node: NodeId,
    error: Box<Diagnostic>,
}

/// The state of each value and the mode of each node, computed before emission.
struct Analysis {
    rules: Vec<Rule>,
    states: Vec<State>,
    runs: Vec<Run>,
    /// For each partial value, whether its combination is needed.
    combined: Vec<bool>,
    /// For each node, the number of rounds of combination that must come before it.
    stages: Vec<usize>,
}

impl Analysis {
    fn of(graph: &Graph, batched: &[ValueId], cuts: &Cuts) -> std::result::Result<Analysis, Blocked> {
        let mut analysis = Analysis {
            rules: rules_of(graph),
            states: vec![State::Whole; graph.values.len()],
            runs: Vec::with_capacity(graph.nodes.len()),
            combined: vec![false; graph.values.len()],
            stages: Vec::new(),
        };
        for &input in batched {
            analysis.states[input.index()] = State::Split(Place { dim: 0, major: 1 });
        }
        for id in graph.node_ids() {
            let run = analysis.visit(graph, id, cuts)?;
            analysis.runs.push(run);
        }
        for &output in &graph.outputs {
            analysis.need_whole(output);
        }
        analysis.stages = analysis.schedule(graph);
        Ok(analysis)
    }

    fn need_whole(&mut self, value: ValueId) {
        if matches!(self.states[value.index()], State::Partial(_)) {
            self.combined[value.index()] = true;
        }
    }

    fn visit(&mut self, graph: &Graph, id: NodeId, cuts: &Cuts) -> std::result::Result<Run, Blocked> {
        let node = graph.node(id);
        let rule = &self.rules[id.index()];
        let blocked = |why: String| Blocked { node: id, error: refusal(graph, node, cuts, &why) };
        let mut part: Option<Part> = None;
        for (position, &operand) in node.operands.iter().enumerate() {
            let State::Split(Place { dim, major }) = self.states[operand.index()] else { continue };
            let own = cuts.part(rule, &rule.operands[position][dim], major).ok_or_else(|| {
                blocked(format!("dimension {dim} of operand {position} is rearranged across samples"))
            })?;
            match rule.factors[own.factor].kind {
                FactorKind::Pass | FactorKind::Reduce(_) => {}
                FactorKind::Exchange | FactorKind::Window(_) | FactorKind::Shift | FactorKind::Whole => {
                    return Err(blocked(format!("it needs dimension {dim} of operand {position} in full")));
                }
            }
            if part.is_some_and(|other| other != own) {
                return Err(blocked("it combines different samples".to_string()));
            }
            part = Some(own);
        }
        if let Some(part) = part {
            if !is_held_once(rule, part.factor) {
                return Err(blocked("its result mixes samples".to_string()));
            }
            for (number, &result) in node.results.iter().enumerate() {
                self.states[result.index()] =
                    match (part.place(rule, &rule.results[number]), rule.factors[part.factor].kind) {
                        (Some(place), _) => State::Split(place),
                        (None, FactorKind::Reduce(combiner)) => State::Partial(combiner),
                        (None, _) => {
                            return Err(blocked(format!(
                                "it is unknown how to combine result {number} over microbatches"
                            )));
                        }
                    };
            }
            for &operand in &node.operands {
                self.need_whole(operand);
            }
            return Ok(Run::Pieces(part));
        }
        if let Some(combiner) = self.flowing(graph, node, rule) {
            for result in &node.results {
                self.states[result.index()] = State::Partial(combiner);
            }
            return Ok(Run::Contributions);
        }
        for &operand in &node.operands {
            self.need_whole(operand);
        }
        Ok(Run::Once)
    }

    /// The combiner with which the partial operands of a node pass through it uncombined, if they
    /// do. They are combined earlier if the op would make them larger or less precise, if it only
    /// gives them another form, such as a transpose, which then runs once, or if it belongs to
    /// another pipeline stage, to which one combination is then sent instead of every contribution.
    fn flowing(&self, graph: &Graph, node: &Node, rule: &Rule) -> Option<Combiner> {
        let partial: Vec<usize> = (0..node.operands.len())
            .filter(|&p| matches!(self.states[node.operands[p].index()], State::Partial(_)))
            .collect();
        let first = node.operands[*partial.first()?];
        let State::Partial(combiner) = self.states[first.index()] else { return None };
        let alike =
            partial.iter().all(|&p| self.states[node.operands[p].index()] == State::Partial(combiner));
        let linear = rule
            .linear
            .iter()
            .any(|group| group.operands == partial && (group.any_combiner || combiner == Combiner::Sum));
        let elsewhere = partial.iter().any(|&p| {
            let definition = graph.value(node.operands[p]).definition;
            definition.is_some_and(|(made, _)| graph.node(made).stage != node.stage)
        });
        let grows =
            node.results.iter().any(|&r| graph.ty(r).element_count() > graph.ty(first).element_count());
        let narrows =
            node.results.iter().any(|&r| graph.ty(r).dtype.size_bytes() < graph.ty(first).dtype.size_bytes());
        let reforms = node.operands.len() == 1
            && node.results.iter().all(|&r| {
                let (result, operand) = (graph.ty(r), graph.ty(first));
                result.dtype == operand.dtype && result.element_count() == operand.element_count()
            });
        (alike && linear && !elsewhere && !grows && !narrows && !reforms).then_some(combiner)
    }

    fn uses_contribution(&self, run: Run, operand: ValueId) -> bool {
        run == Run::Contributions && matches!(self.states[operand.index()], State::Partial(_))
    }

    fn is_per_piece(&self, value: ValueId) -> bool {
        self.states[value.index()] != State::Whole
    }

    /// The stage of each node: the number of rounds of combination before it. Nodes that run once
    /// come as early as possible. Nodes that run for each microbatch come as late as possible, so
    /// that a forward pass is adjacent to its backward pass even if only the latter waits for the
    /// count of the whole batch.
    fn schedule(&self, graph: &Graph) -> Vec<usize> {
        let mut earliest = vec![0usize; graph.nodes.len()];
        let mut ready = vec![0usize; graph.values.len()];
        for id in graph.node_ids() {
            let (node, run) = (graph.node(id), self.runs[id.index()]);
            let after = |&v: &ValueId| {
                let partial = matches!(self.states[v.index()], State::Partial(_));
                ready[v.index()] + usize::from(partial && !self.uses_contribution(run, v))
            };
            let stage = node.operands.iter().map(after).max().unwrap_or(0);
            earliest[id.index()] = stage;
            for result in &node.results {
                ready[result.index()] = stage;
            }
        }
        let repeated = |id: &NodeId| self.runs[id.index()] != Run::Once;
        let last = graph.node_ids().filter(repeated).map(|id| earliest[id.index()]).max().unwrap_or(0);
        let mut due = vec![last; graph.values.len()];
        let mut stages = earliest;
        for id in graph.node_ids().rev() {
            let (node, run) = (graph.node(id), self.runs[id.index()]);
            if run != Run::Once {
                stages[id.index()] = node.results.iter().map(|v| due[v.index()]).min().unwrap_or(last);
            }
            let stage = stages[id.index()];
            for &operand in node.operands.iter().filter(|&&v| self.is_per_piece(v)) {
                let partial = matches!(self.states[operand.index()], State::Partial(_));
                let waits = partial && !self.uses_contribution(run, operand);
                let slot = &mut due[operand.index()];
                *slot = (*slot).min(stage - usize::from(waits));
            }
        }
        stages
    }
}

/// Whether every tensor holds the factor at most once.
fn is_held_once(rule: &Rule, factor: FactorId) -> bool {
    let mut tensors = rule.operands.iter().chain(&rule.results);
    tensors.all(|dims| dims.iter().flatten().filter(|&&own| own == factor).count() <= 1)
}

/// Whether a part is a range of each tensor that holds its factor.
fn is_range(rule: &Rule, part: Part) -> bool {
    let mut tensors = rule.operands.iter().chain(&rule.results);
    is_held_once(rule, part.factor)
        && tensors.all(|dims| part.place(rule, dims).is_none_or(|place| place.major == 1))
}

fn refusal(graph: &Graph, node: &Node, cuts: &Cuts, why: &str) -> Box<Diagnostic> {
    let types: Vec<String> = graph.operand_types(node).iter().map(|ty| ty.to_string()).collect();
    let path = if node.path.is_empty() { "<root>" } else { &node.path };
    let place = match &node.location {
        Some(location) => format!("{path} at {location}"),
        None => path.to_string(),
    };
    // Which tokens an expert gets is decided over all samples.
    let help = if let Op::Sort(_) = node.op {
        "train with one microbatch. Tokens that are sorted by expert mix samples; a model of transformers computes each token \
         on its own after `model.set_experts_implementation(\"batched_mm\")`"
    } else {
        "train with one microbatch, or change the model so that this op sees each sample on its own"
    };
    Diagnostic::new(
        "E220",
        format!("`{}` cannot be split into {} microbatches: {why}", node.op.name(), cuts.count()),
    )
    .at(place)
    .expected("samples that are independent, except in the sums for the loss and the gradients")
    .found(format!("{}({})", node.op.name(), types.join(", ")))
    .help(help)
}

#[cfg(test)]
#[path = "microbatch_tests.rs"]
mod tests;
