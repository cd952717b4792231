//! Turns the layout lines of a plan into layout annotations on a step graph.
//!
//! The graph is the whole step, after autodiff and optimizer. This file gives the meaning of each
//! line; propagation derives the layouts of all other values.

use crate::contradictions::{Claim, overruled};
use crate::modules::{Modules, is_inside, owner};
use crate::pins::{Constraints, Pin, Pins};
use crate::plan::{Entry, Plan};
use crate::sides::Side;
use crate::style::{Kind, Layout, Layouts, Style};
use crate::ulysses::exchange_heads;
use crate::weights::{matrix_dims, weights_of};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Note, Result, did_you_mean};
use partita_ir::ops::{BinaryKind, ShardingConstraint};
use partita_ir::{Annotation, Graph, GraphBuilder, NodeId, Op, Operation, Phase, Role, ValueId, graph_edit};
use partita_mesh::{AxisRef, AxisRole, Mesh};
use std::collections::{BTreeMap, BTreeSet};

/// Options that complement the lines of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApplyOptions {
    /// Shards the residual stream along the sequence over `tp` (sequence parallelism, Megatron-LM).
    /// Where no line says otherwise, the input of a `colwise` module is gathered, the output of a
    /// `rowwise` module is scattered, and norms and residual sums stay sharded.
    pub sequence_parallel: bool,
}

/// A planned step.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The step with annotations and sharding constraints.
    pub graph: Graph,
    /// Notes for the user: options without effect.
    pub notes: Vec<Note>,
}

/// The axis that [`ApplyOptions::sequence_parallel`] shards over.
const SEQUENCE_PARALLEL_AXIS: &str = AxisRole::Model.axis();

/// Applies the layout lines of a plan to a step.
///
/// The batch (dimension 0 of every fed tensor) is sharded over `dp`, `fsdp` and `ep`, token sequences
/// `[batch, sequence]` and the height of images `[batch, height, width, channels]` over `sp` and `cp`, in mesh order. Styles
/// apply first, then primitives in order; if several layer styles
/// match one module, the last one counts. Optimizer states follow their parameters. Primitives
/// other than `shard` and `sync` do not concern layouts and are skipped.
///
/// Errors: E221 a pattern that matches nothing, E223 an axis that the mesh does not have, E224 a
/// dimension that a tensor does not have, E227 two lines that contradict each other, E231 a tensor
/// that is sharded twice along one axis, E232 a tensor that a module does not have, E233 a `sync`
/// of a value that is already replicated, E234 a `sync` that does not suit the layout of the value.
pub fn apply(plan: &Plan, step: &Graph, mesh: &Mesh, options: &ApplyOptions) -> Result<Applied> {
    let mut graph = step.clone();
    let mesh_index = graph.meshes.iter().position(|m| m == mesh).unwrap_or(graph.meshes.len());
    if mesh_index == graph.meshes.len() {
        graph.meshes.push(mesh.clone());
    }
    let modules = Modules::of(&graph);
    let mut planner = LayoutAnnotator {
        graph: &graph,
        mesh,
        pins: Pins { graph: &graph, mesh, mesh_index, of: BTreeMap::new(), sequence: Default::default() },
        modules: &modules,
        sequence_parallel: options.sequence_parallel,
        constraints: Constraints::default(),
        notes: Vec::new(),
    };
    planner.feed()?;
    let declared: Vec<Declared> = plan.entries.iter().filter_map(Declared::of).collect();
    declared.iter().for_each(|line| planner.note_options(line));
    let (lines, told) = layer_lines(&graph, &modules, &declared)?;
    planner.notes.extend(told);
    if options.sequence_parallel {
        planner.note_sequence_parallel();
    }
    for module in lines.keys() {
        planner.layer(module, &lines)?;
    }
    for &line in declared.iter().filter(|line| line.style.kind == Kind::Prepare) {
        planner.prepared(line)?;
    }
    for &line in &declared {
        planner.parameters(line)?;
    }
    if options.sequence_parallel {
        planner.residual_stream()?;
    }
    planner.placements(plan)?;
    planner.states_follow();
    let kept = planner.storage_lines(&declared);
    for &line in declared.iter().filter(|line| line.style.is_storage()) {
        planner.storage(line, &kept)?;
    }
    let attention = planner.attention_lines(&declared)?;
    let LayoutAnnotator { pins, constraints, notes, .. } = planner;
    let pinned = pins.of;
    let mut graph = write(&graph, mesh_index, &pinned, &constraints)?;
    if !attention.is_empty() {
        let (pinned, constraints) = exchange_heads(&graph, mesh, &attention)?;
        graph = write(&graph, mesh_index, &pinned, &constraints)?;
    }
    Ok(Applied { graph, notes })
}

/// The layer line of each module: the last one that matches; and notes of lines that a later one overrides.
fn layer_lines<'p>(
    graph: &Graph,
    modules: &Modules,
    declared: &[Declared<'p>],
) -> Result<(IndexMap<String, Declared<'p>>, Vec<Note>)> {
    let mut lines: IndexMap<String, Declared> = IndexMap::new();
    let mut claims: Vec<Claim<&Style>> = Vec::new();
    for &entry in declared.iter().filter(|line| line.style.is_layer()) {
        let matching = modules.matching(entry.entry.scope());
        if matching.is_empty() && modules.parameters_named(entry.entry.scope()).is_empty() {
            return Err(modules.unmatched(entry.entry.scope(), &entry.describe()));
        }
        let weighted = |m: &&str| !weights_of(graph, modules, m).is_empty();
        let needs_weight = matches!(entry.style.kind, Kind::Colwise | Kind::Rowwise);
        let acting: Vec<&str> = matching.iter().copied().filter(|m| !needs_weight || weighted(m)).collect();
        if needs_weight && acting.is_empty() {
            let first = matching.first().copied().unwrap_or(entry.modules);
            let inside = modules.paths.iter().filter(|p| weighted(&p.as_str()));
            let inside: Vec<&str> =
                inside.map(String::as_str).filter(|p| p.starts_with(&format!("{first}."))).collect();
            let mut error =
                Diagnostic::new("E221", format!("`{}` matches no module with a weight", entry.modules))
                    .at(entry.describe())
                    .expected("linear layers or embeddings")
                    .found(format!("`{first}`, which has no weight itself"));
            if !inside.is_empty() {
                error.help = Some(format!("its layers are `{}`", inside.join("`, `")));
            }
            return Err(error);
        }
        for module in &acting {
            lines.insert(module.to_string(), entry);
        }
        let about = acting.into_iter().collect();
        claims.push(Claim { line: entry.describe(), about, asks: entry.style });
    }
    let notes = overruled(&claims);
    Ok((lines, notes))
}

/// The layer lines of a plan that a later line overrides, on the forward pass of a model: a note for each names the pair.
///
/// # Errors
/// E221 for a pattern that matches nothing.
pub fn overruled_lines(plan: &Plan, forward: &Graph) -> Result<Vec<Note>> {
    let declared: Vec<Declared> = plan.entries.iter().filter_map(Declared::of).collect();
    Ok(layer_lines(forward, &Modules::of(forward), &declared)?.1)
}

/// A line of a plan that declares a style.
#[derive(Clone, Copy)]
pub(crate) struct Declared<'p> {
    pub modules: &'p str,
    pub style: &'p Style,
    pub entry: &'p Entry,
}

impl<'p> Declared<'p> {
    fn of(entry: &'p Entry) -> Option<Declared<'p>> {
        entry.primitive.style().map(|style| Declared { modules: &entry.modules, style, entry })
    }

    pub fn describe(&self) -> String {
        self.entry.describe()
    }
}

/// The state of applying a plan.
pub(crate) struct LayoutAnnotator<'a> {
    pub graph: &'a Graph,
    pub mesh: &'a Mesh,
    pub pins: Pins<'a>,
    pub modules: &'a Modules<'a>,
    pub sequence_parallel: bool,
    pub constraints: Constraints,
    pub notes: Vec<Note>,
}

impl<'a> LayoutAnnotator<'a> {
    pub(crate) fn axis(&mut self, entry: Declared) -> Result<AxisRef> {
        let found = self.axis_named(entry.style.axis_name(), entry.entry);
        found.map_err(|error| match entry.style.is_storage() && entry.style.axis.is_none() {
            true => error.help(self.axes_of_storage(entry.style)),
            false => error,
        })
    }

    /// What to write instead of a storage style whose usual axis the mesh does not have: ranks that share the batch, or its
    /// sequences, hold the same parameters and states, which they can divide.
    fn axes_of_storage(&self, style: &Style) -> String {
        let shares = |role: &AxisRole| role.shards_data() && self.mesh.size_of(*role) > 1;
        let roles = AxisRole::ALL.into_iter().filter(shares);
        let written: Vec<String> =
            roles.map(|role| format!("`{}`", style.clone().over(role.axis()))).collect();
        let what = format!("`{style}` divides what ranks that share the batch hold alike");
        match &written[..] {
            [] => format!("{what}, and no axis of {} shares it: add `{}`", self.mesh, style.axis_name()),
            some => format!("{what}: write {}", some.join(" or ")),
        }
    }

    /// The axis that a line names. E223 when the mesh does not have it.
    pub(crate) fn axis_named(&mut self, name: &str, entry: &Entry) -> Result<AxisRef> {
        let Some(axis) = self.mesh.axis_named(name) else {
            let mesh = match entry.stage {
                Some(stage) => format!("the mesh of stage {stage}"),
                None => "the mesh".to_string(),
            };
            let mut error = Diagnostic::new("E223", format!("{mesh} has no axis `{name}`"))
                .at(entry.describe())
                .expected(format!("an axis of {}", self.mesh))
                .found(name)
                .help(format!("add the axis `{name}` to {mesh}, or name one of its axes with `axis=`"));
            if let Some(near) = did_you_mean(name, self.mesh.axes.iter().map(|a| a.name.as_str())) {
                error.help = Some(near);
            }
            return Err(error);
        };
        Ok(axis)
    }

    /// Annotates fed tensors: the batch over the data axes, token sequences over the sequence axis.
    fn feed(&mut self) -> Result<()> {
        let data = self.mesh.axes_where(AxisRole::shards_batch);
        let sequence = self.mesh.axes_where(AxisRole::shards_sequence);
        self.pins.sequence.0.clone_from(&sequence);
        // What an output replaces, such as a state of an imported step, is no part of the batch.
        let replaced: BTreeSet<usize> = self.graph.aliases.iter().map(|&(input, _)| input).collect();
        for (place, &input) in self.graph.inputs.iter().enumerate() {
            let value = self.graph.value(input);
            if value.role != Role::Input || value.ty.rank() == 0 || replaced.contains(&place) {
                continue;
            }
            for &axis in &data {
                self.pins.shard(input, 0, axis, "default layout of the batch")?;
            }
            let is_tokens = value.ty.rank() == 2 && !value.ty.dtype.is_float();
            let is_image = value.ty.rank() == 4 && value.ty.dtype.is_float();
            for &axis in sequence.iter().filter(|_| is_tokens || is_image) {
                self.pins.shard(input, 1, axis, "default layout of sequences and images")?;
                if is_tokens {
                    self.pins.sequence.1.insert(value.ty.shape[1]);
                }
            }
            self.pins.at(input).close();
        }
        Ok(())
    }

    /// Applies a layer style to one module.
    fn layer(&mut self, module: &str, lines: &IndexMap<String, Declared>) -> Result<()> {
        let entry = lines[module];
        let axis = self.axis(entry)?;
        let origin = entry.describe();
        let style = &entry.style;
        let (mut input, mut output) = (style.input.clone(), style.output.clone());
        if input.is_none() && style.input_from.is_some() {
            input = self.read_by(style.kind, module);
        }
        match style.kind {
            Kind::Colwise | Kind::Rowwise => {
                let colwise = style.kind == Kind::Colwise;
                for weight in weights_of(self.graph, self.modules, module) {
                    let dims = matrix_dims(self.graph, self.modules, weight, module);
                    let (out, into) = dims.ok_or_else(|| self.no_matrix(weight, &origin))?;
                    self.pins.shard(weight, if colwise { out } else { into } as isize, axis, &origin)?;
                    self.pins.at(weight).close();
                }
                for bias in self.modules.parameters_of(module) {
                    if owner(&self.graph.value(bias).name).1 != "bias" {
                        continue;
                    }
                    match colwise {
                        true => self.pins.shard(bias, 0, axis, &origin)?,
                        false => self.pins.replicate(bias, axis, &origin)?,
                    }
                    self.pins.at(bias).close();
                }
                let sequence = self.sequence_parallel && self.is_sequence(module);
                if sequence {
                    self.note_against_sequence(&entry, colwise);
                }
                let own: Layout = match (colwise, sequence) {
                    (true, _) => Layout::Shard(-1),
                    (false, true) => Layout::Shard(1),
                    (false, false) => Layout::Replicate,
                };
                output = output.or(Some(own.into()));
                if colwise && sequence {
                    input = input.or(Some(Layout::Replicate.into()));
                }
            }
            Kind::Sequence => {
                for parameter in self.parameters_under(module, lines) {
                    self.pins.replicate(parameter, axis, &origin)?;
                }
                for value in self.modules.outputs_of(module) {
                    if output.is_none() && self.graph.ty(value).rank() < 3 {
                        return Err(Diagnostic::new("E224", format!("`{module}` has no sequence dimension"))
                            .at(origin)
                            .expected("activations [batch, sequence, features]")
                            .found(self.graph.ty(value).to_string()));
                    }
                }
                output = output.or(Some(Layout::Shard(1).into()));
            }
            Kind::Replicate => {
                for parameter in self.parameters_under(module, lines) {
                    // A tied parameter may already be sharded by its other module.
                    if !self.pins.at(parameter).uses(axis) {
                        self.pins.replicate(parameter, axis, &origin)?;
                    }
                }
            }
            Kind::Shard(dim) => {
                for parameter in self.modules.parameters_of(module) {
                    self.pins.shard(parameter, dim, axis, &origin)?;
                    self.pins.at(parameter).close();
                }
            }
            Kind::Prepare
            | Kind::Fsdp
            | Kind::Zero1
            | Kind::Zero2
            | Kind::Ulysses
            | Kind::Ring
            | Kind::Auto
            | Kind::Dispatch => {
                unreachable!("these are no layer styles")
            }
        }
        if let Some(layouts) = &output {
            self.pin_boundary(module, Side::Leaves, layouts, axis, &origin)?;
        }
        if let Some(layouts) = &style.input_from {
            self.pin_boundary(module, Side::Enters, layouts, axis, &origin)?;
        }
        if let Some(layouts) = &input {
            self.pin_input(module, Side::Enters, layouts, axis, &origin)?;
        }
        Ok(())
    }

    /// The parameters in a module that no line for an inner module mentions.
    fn parameters_under(&self, module: &str, lines: &IndexMap<String, Declared>) -> Vec<ValueId> {
        let closer = |parameter: &ValueId| {
            let name = &self.graph.value(*parameter).name;
            lines.keys().any(|m| m.len() > module.len() && is_inside(owner(name).0, m))
        };
        let mut parameters = self.modules.parameters_inside(module);
        parameters.retain(|p| !closer(p));
        parameters
    }

    fn no_matrix(&self, weight: ValueId, origin: &str) -> Box<Diagnostic> {
        let ty = self.graph.ty(weight);
        Diagnostic::new(
            "E224",
            format!("`{}` has no input and output dimension", self.graph.describe(weight)),
        )
        .at(origin)
        .expected("a weight of at least 2 dimensions")
        .found(ty.to_string())
        .help("use `sequence` or `replicate` for norms, `shard(0)` for a vector")
    }

    /// Whether a module works on `[batch, sequence, features]`.
    fn is_sequence(&self, module: &str) -> bool {
        self.modules.outputs_of(module).iter().any(|&v| self.graph.ty(v).rank() == 3)
    }

    /// Applies a line that names parameters.
    fn parameters(&mut self, entry: Declared) -> Result<()> {
        let named = self.modules.parameters_named(entry.entry.scope());
        let origin = entry.describe();
        let wrong = |style: &str| {
            Diagnostic::new(
                "E221",
                format!("`{}` matches parameters, but `{style}` is for modules", entry.modules),
            )
            .at(entry.describe())
            .expected("the path of a module, or `shard(dim)` or `replicate`")
        };
        if named.is_empty() || !entry.style.is_layer() {
            return Ok(());
        }
        for parameter in named {
            match entry.style.kind {
                Kind::Shard(dim) => {
                    let axis = self.axis(entry)?;
                    self.pins.shard(parameter, dim, axis, &origin)?;
                    self.pins.at(parameter).close();
                }
                Kind::Replicate => {
                    let axis = self.axis(entry)?;
                    // A pattern that also matches modules (`**`) covers only the parameters that
                    // nothing else shards.
                    let wide = !self.modules.matching(entry.entry.scope()).is_empty();
                    if !(wide && self.pins.at(parameter).uses(axis)) {
                        self.pins.replicate(parameter, axis, &origin)?;
                    }
                }
                // A wide pattern (`**`) matches both modules and parameters; here it meant the
                // modules.
                _ if !self.modules.matching(entry.entry.scope()).is_empty() => {}
                _ => return Err(wrong(&entry.style.to_string())),
            }
        }
        Ok(())
    }

    /// Sequence parallelism between modules: sums into the residual stream and norms stay sharded
    /// along the sequence.
    fn residual_stream(&mut self) -> Result<()> {
        let Some(axis) = self.mesh.axis_named(SEQUENCE_PARALLEL_AXIS) else { return Ok(()) };
        for node in self.graph.nodes.iter().filter(|n| n.phase == Phase::Forward) {
            let is_block = node.path.rsplit('.').next().is_some_and(|last| last.parse::<usize>().is_ok());
            let adds = matches!(&node.op, Op::Binary(binary) if binary.kind == BinaryKind::Add);
            let stream =
                (is_block && adds) || matches!(node.op.name(), "partita.layer_norm" | "partita.rms_norm");
            let value = node.results[0];
            let ty = self.graph.ty(value);
            let free = !self.pins.at(value).uses(axis) && !self.pins.at(value).replicated.contains(&axis);
            if stream && free && ty.rank() == 3 && ty.dtype.is_float() {
                self.pins.shard(value, 1, axis, "--sequence-parallel")?;
            }
        }
        Ok(())
    }

    /// Optimizer states start from the layout of their parameter.
    fn states_follow(&mut self) {
        for &input in &self.graph.inputs {
            let Role::StateOf(parameter) = self.graph.value(input).role else { continue };
            let same = self.graph.ty(parameter).shape == self.graph.ty(input).shape;
            if let (true, Some(pin)) = (same, self.pins.of.get(&parameter).cloned()) {
                self.pins.of.insert(input, pin);
            }
        }
    }

    /// Notes what `--sequence-parallel` cannot do here.
    fn note_sequence_parallel(&mut self) {
        let is_stream = |&v: &ValueId| {
            let ty = self.graph.ty(v);
            ty.rank() == 3 && ty.dtype.is_float()
        };
        let mut forward = self.graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
        let missing = if self.mesh.axis_named(SEQUENCE_PARALLEL_AXIS).is_none_or(|axis| axis.size == 1) {
            format!("mesh {} has no axis `{SEQUENCE_PARALLEL_AXIS}` of several ranks", self.mesh)
        } else if !forward.any(|node| node.results.iter().any(is_stream)) {
            "the model has no activations [batch, sequence, features]".to_string()
        } else {
            return;
        };
        let text = format!("`--sequence-parallel` changes nothing: {missing}");
        self.notes.push(Note::new("no-effect", text));
    }

    /// Notes a line that replicates what `--sequence-parallel` would shard, or reads sharded what
    /// it would gather.
    fn note_against_sequence(&mut self, line: &Declared, colwise: bool) {
        let (asked, would) = match colwise {
            true => (&line.style.input, Layouts::All(Layout::Replicate)),
            false => (&line.style.output, Layouts::All(Layout::Shard(1))),
        };
        let line = line.describe();
        let text = format!("{line} overrides `--sequence-parallel`, which would request {would}");
        let note = Note { code: "against-sequence", line: Some(line), text };
        if asked.as_ref().is_some_and(|asked| *asked != would) && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// The graph with annotations and constraints. The output that replaces an input at the next step
/// needs no annotation: partitioning gives it the layout of that input.
fn write(
    graph: &Graph,
    mesh_index: usize,
    pins: &BTreeMap<ValueId, Pin>,
    constraints: &Constraints,
) -> Result<Graph> {
    let mut source = graph.clone();
    for (&value, pin) in pins.iter().filter(|(_, pin)| !pin.origins.is_empty()) {
        source.value_mut(value).annotation = Some(pin.annotation(mesh_index));
    }
    // Constraints come right before their first reader.
    let mut written: Vec<Option<ValueId>> = vec![None; constraints.list.len()];
    graph_edit::rebuild(&source, |builder, map, index, operands| {
        let mut operands = operands.to_vec();
        for (position, operand) in operands.iter_mut().enumerate() {
            let Some(&place) = constraints.readers.get(&(NodeId::new(index), position)) else { continue };
            let constraint = &constraints.list[place];
            let new = match written[place] {
                Some(new) => new,
                None => {
                    let value = map[constraint.value.index()].expect("what is read is defined");
                    builder.enter(&source.nodes[index]);
                    if let Some(path) = &constraint.path {
                        builder.path = path.clone();
                    }
                    push_constraint(builder, value, constraint.pin.annotation(mesh_index), &constraint.name)
                }
            };
            written[place] = Some(new);
            *operand = new;
        }
        Ok(Some(graph_edit::push_copy(builder, &source, index, &operands)))
    })
}

fn push_constraint(
    builder: &mut GraphBuilder,
    value: ValueId,
    annotation: Annotation,
    name: &str,
) -> ValueId {
    let ty = builder.ty(value).clone();
    let new = builder.push_typed(ShardingConstraint { annotation }, &[value], vec![ty])[0];
    builder.graph_mut().value_mut(new).name = name.to_string();
    new
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
