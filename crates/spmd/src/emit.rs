//! Emission: walks the global graph once and writes the local graphs of all classes side by side.
//!
//! A value is held in one or more layouts. An operand that an op requires in another layout is
//! fetched from the cheapest held layout by the steps that [`partita_mesh::reshard`] plans. A
//! partial value stays partial until a reader needs the complete value; it is then resharded once
//! to its propagated layout. A gathered copy is not kept beyond its phase (forward, backward,
//! update): to gather again is cheaper than to hold the copy.

mod context;
mod fetch;
mod routes;
mod shards;
mod steps;

use crate::assign::{Assignment, Situation, assign, fixed};
use crate::partition::{Move, Options, Placement};
use crate::propagate::{Layouts, over_manual_axes};
use crate::units::Units;
use context::NodeContext;
use fetch::NodeReshards;
use partita_base::{DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_ir::{
    Graph, GraphBuilder, HaloPiece, Node, NodeId, Op, Operation, Phase, Role, Rule, TensorType, ValueId,
};
use partita_mesh::{AxisList, LinkCost, Mesh, Sharding};
use routes::Routes;
use shards::{ShardTable, Shards};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Why emission stopped early.
pub enum Stop {
    /// Members of a class differ; these are finer classes.
    Refine(Vec<Vec<usize>>),
    /// An error for the user.
    Error(Box<Diagnostic>),
}

impl From<Box<Diagnostic>> for Stop {
    fn from(error: Box<Diagnostic>) -> Stop {
        Stop::Error(error)
    }
}

/// The local graphs, and where global values are found in them.
pub struct Emitted {
    /// Members of each class.
    pub classes: Vec<Vec<usize>>,
    /// The graph of each class.
    pub locals: Vec<Graph>,
    /// Layout of each input.
    pub inputs: Vec<Sharding>,
    /// Layout of each output.
    pub outputs: Vec<Sharding>,
    /// The local counterpart of each value.
    pub placements: Vec<Placement>,
    /// The reshard steps of all values.
    pub moves: Vec<Move>,
    /// Number of tables with one entry per rank.
    pub rank_tables: usize,
    /// The values that were completed after a reader had passed their terms on.
    pub late: BTreeSet<ValueId>,
}

impl Emitted {
    /// Seconds of all reshard steps.
    pub fn moves_s(&self, graph: &Graph, mesh: &Mesh, cluster: &Cluster) -> f64 {
        let seconds = |moved: &Move| {
            let ty = graph.ty(moved.value);
            let cost = cluster.reshard_cost(mesh, &ty.shape, ty.dtype.size_bytes());
            cost.step_s(&moved.before, &moved.step)
        };
        self.moves.iter().map(seconds).sum()
    }
}

/// A part of the step beyond which gathered copies are not kept: phase group and microbatch.
type Span = (u8, Option<usize>);

fn span_of(phase: Phase, microbatch: Option<usize>) -> Span {
    let part = match phase {
        Phase::Forward => 0,
        Phase::InputGrad | Phase::WeightGrad => 1,
        Phase::Update => 2,
    };
    (part, microbatch)
}

/// One layout in which a value is held. Local ids are the same in every class.
#[derive(Clone)]
struct Held {
    sharding: Sharding,
    local: ValueId,
    /// If set, the copy may only be used within this span.
    only: Option<Span>,
}

/// The module path, phase, microbatch and stage of emitted nodes.
#[derive(Clone, Default)]
struct Place {
    path: String,
    phase: Phase,
    location: Option<partita_ir::Location>,
    microbatch: Option<usize>,
    stage: usize,
}

/// The state of one emission.
pub struct Emitter<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    cluster: &'a Cluster,
    layouts: &'a Layouts,
    rules: &'a [Rule],
    units: &'a Units,
    classes: Vec<Vec<usize>>,
    builders: Vec<GraphBuilder>,
    /// For each class, values looked up by rank: the scalar for each type and table id.
    tables: Vec<BTreeMap<(DType, usize), ValueId>>,
    /// For each class, what ops received of halos.
    halos: Vec<BTreeMap<HaloPiece, ValueId>>,
    held: Vec<Vec<Held>>,
    /// For each value, the number of nodes of each span that read it.
    readers: Vec<BTreeMap<Span, usize>>,
    /// The values that are completed before their first reader.
    completed: BTreeSet<ValueId>,
    /// For each value, whether a reader passed its terms on.
    passed: Vec<bool>,
    /// The values that were completed after a reader had passed their terms on.
    late: BTreeSet<ValueId>,
    placements: Vec<Placement>,
    moves: Vec<Move>,
    /// The node being emitted; `None` before the first and after the last.
    current: Option<NodeId>,
    routes: Routes,
    #[cfg(feature = "testing")]
    break_rule_at: Option<String>,
    fixed: &'a BTreeMap<String, Vec<AxisList>>,
    arrivals: &'a BTreeMap<String, Sharding>,
    returned: &'a BTreeMap<String, Sharding>,
    unreduced: bool,
    shards: Shards<'a>,
    /// The microbatches of the step.
    microbatches: usize,
    /// For each value of the backward pass of a microbatch, the gradient to which it is summed up.
    summed_to: Vec<Option<fetch::Gradient>>,
}

impl<'a> Emitter<'a> {
    /// Starts an emission for these classes.
    pub fn new(
        graph: &'a Graph,
        mesh: &'a Mesh,
        layouts: &'a Layouts,
        rules: &'a [Rule],
        units: &'a Units,
        classes: Vec<Vec<usize>>,
        options: &'a Options,
    ) -> Self {
        let builders = classes
            .iter()
            .map(|_| {
                let mut builder = GraphBuilder::new(&graph.name);
                let local = builder.graph_mut();
                local.meshes = vec![mesh.clone()];
                local.values.reserve(graph.values.len());
                local.nodes.reserve(graph.nodes.len());
                builder
            })
            .collect::<Vec<_>>();
        let mut readers: Vec<BTreeMap<Span, usize>> = vec![BTreeMap::new(); graph.values.len()];
        for node in &graph.nodes {
            for &operand in &node.operands {
                *readers[operand.index()].entry(span_of(node.phase, node.microbatch)).or_default() += 1;
            }
        }
        Emitter {
            graph,
            mesh,
            cluster: &options.cluster,
            layouts,
            rules,
            units,
            tables: vec![BTreeMap::new(); classes.len()],
            halos: vec![BTreeMap::new(); classes.len()],
            shards: Shards::new(mesh, &classes),
            classes,
            builders,
            held: vec![Vec::new(); graph.values.len()],
            readers,
            completed: BTreeSet::new(),
            passed: vec![false; graph.values.len()],
            late: BTreeSet::new(),
            placements: Vec::new(),
            moves: Vec::new(),
            current: None,
            routes: Routes::default(),
            #[cfg(feature = "testing")]
            break_rule_at: options.break_rule_at.clone(),
            fixed: &options.fixed,
            arrivals: &options.arrivals,
            returned: &options.returned,
            unreduced: options.unreduced,
            microbatches: graph
                .nodes
                .iter()
                .filter_map(|node| node.microbatch)
                .max()
                .map_or(1, |last| last + 1),
            summed_to: fetch::summed_to(graph),
        }
    }

    /// The same emission with these values completed before their first reader.
    pub fn completing(mut self, values: BTreeSet<ValueId>) -> Self {
        self.completed = values;
        self
    }

    /// Emits everything.
    pub fn run(mut self) -> std::result::Result<Emitted, Stop> {
        let inputs = self.emit_inputs()?;
        for id in self.graph.node_ids() {
            self.current = Some(id);
            self.gather_arrivals(id)?;
            let op = &self.graph.node(id).op;
            if matches!(op, Op::ShardingConstraint(_) | Op::PropagationBarrier(_)) {
                self.emit_constraint(id)?;
            } else if matches!(op, Op::ManualComputation(_)) {
                self.emit_manual(id)?;
            } else {
                self.emit_node(id)?;
            }
        }
        self.current = None;
        let outputs = self.emit_outputs(&inputs)?;
        let locals = self.builders.into_iter().map(|b| b.finish(Vec::new())).collect::<Vec<Graph>>();
        let locals: Vec<Graph> = locals
            .into_iter()
            .map(|mut local| {
                local.outputs = outputs.iter().map(|(v, _)| *v).collect();
                local.output_names = self.graph.output_names.clone();
                local.aliases = self.graph.aliases.clone();
                local
            })
            .collect();
        same_structure(&locals)?;
        Ok(Emitted {
            classes: self.classes,
            locals,
            inputs,
            outputs: outputs.into_iter().map(|(_, s)| s).collect(),
            placements: self.placements,
            moves: self.moves,
            rank_tables: self.shards.made(),
            late: self.late,
        })
    }

    fn emit_inputs(&mut self) -> std::result::Result<Vec<Sharding>, Stop> {
        let mut shardings = Vec::new();
        for (&input, arriving) in self.graph.inputs.iter().zip(&self.layouts.inputs) {
            let value = self.graph.value(input);
            let sharding = self.arrivals.get(&value.name).unwrap_or(arriving).clone();
            let types = self.local_types(&sharding, &value.ty)?;
            let mut local = ValueId::new(0);
            for (builder, ty) in self.builders.iter_mut().zip(types) {
                local = builder.input(&value.name, ty, Role::Activation);
            }
            self.hold(input, sharding.clone(), local, None);
            shardings.push(sharding);
        }
        for &input in &self.graph.inputs {
            let role = match &self.graph.value(input).role {
                Role::StateOf(of) => match self.held[of.index()].first() {
                    Some(parameter) => Role::StateOf(parameter.local),
                    None => Role::Activation,
                },
                other => other.clone(),
            };
            let local = self.held[input.index()][0].local;
            for builder in &mut self.builders {
                builder.graph_mut().value_mut(local).role = role.clone();
            }
        }
        Ok(shardings)
    }

    /// Treats the partial results of a node below [`Options::break_rule_at`] as complete, once.
    #[cfg(feature = "testing")]
    fn break_rule(&mut self, id: NodeId, mut assignment: Assignment) -> Assignment {
        let is_below = |path: &String| self.graph.node(id).path.starts_with(path.as_str());
        let is_broken = self.break_rule_at.as_ref().is_some_and(is_below)
            && assignment.produced.iter().any(Sharding::is_partial);
        if is_broken {
            assignment.produced.iter_mut().for_each(|sharding| sharding.partial.clear());
            self.break_rule_at = None;
        }
        assignment
    }

    /// Gathers the operands that arrive in another layout than that in which they are used.
    fn gather_arrivals(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        for &value in &node.operands {
            let used = self.layouts.sharding(value).clone();
            let is_input = self.graph.value(value).definition.is_none();
            if is_input && self.held[value.index()][0].sharding != used {
                self.move_to(value, 0, &used, &place_of(node), None)?;
                self.held[value.index()].swap(0, 1);
            }
        }
        Ok(())
    }

    /// Completes the partial operands that another reader completes anyway. This node may then read the complete value too,
    /// instead of passing the terms on to results that would have to be combined once more.
    fn complete_early(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        for &value in &node.operands {
            let held = &self.held[value.index()];
            if self.completed.contains(&value) && held.iter().all(|held| held.sharding.is_partial()) {
                let wanted = self.layouts.sharding(value).clone();
                let place = self.place_of_resolution(value, &place_of(node));
                self.move_to(value, 0, &wanted, &place, None)?;
            }
        }
        Ok(())
    }

    fn emit_node(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let rule = &self.rules[id.index()];
        self.gather_arrivals(id)?;
        self.complete_early(id)?;
        let assignment = self.assign_node(id)?;
        #[cfg(feature = "testing")]
        let assignment = self.break_rule(id, assignment);
        let mut operands = Vec::with_capacity(node.operands.len());
        for (&value, required) in node.operands.iter().zip(&assignment.required) {
            operands.push(self.fetch(value, required, &place_of(node))?);
            self.passed[value.index()] |= required.is_partial();
        }
        let mut local_types: Vec<Vec<TensorType>> = Vec::new();
        for (&value, produced) in node.results.iter().zip(&assignment.produced) {
            local_types.push(self.local_types(produced, self.graph.ty(value))?);
        }
        self.enter(&place_of(node));
        let mut results: Vec<ValueId> = Vec::new();
        for class in 0..self.classes.len() {
            let mut context = NodeContext {
                graph: self.graph,
                node: id,
                rule,
                shards: &self.shards,
                assignment: &assignment,
                members: &self.classes[class],
                parts: None,
                builder: &mut self.builders[class],
                halos: &mut self.halos[class],
                tables: &mut self.tables[class],
                operands: operands.clone(),
                local_results: local_types.iter().map(|types| types[class].clone()).collect(),
            };
            let local = node.op.localise(&mut context);
            if let Some(parts) = context.parts.take() {
                let mut classes = self.classes.clone();
                classes.splice(class..=class, parts);
                classes.sort();
                return Err(Stop::Refine(classes));
            }
            let local = local?;
            if class > 0 && local != results {
                return Err(Stop::Error(
                    Diagnostic::new("E219", "the ranks' programs differ in structure")
                        .at(self.graph.describe(node.results[0]))
                        .help("this is a bug in partita; please report it"),
                ));
            }
            results = local;
        }
        for (position, (&value, produced)) in node.results.iter().zip(&assignment.produced).enumerate() {
            let local = results[position];
            self.hold(value, produced.clone(), local, None);
            // If propagation requests another layout, reshard at once.
            let kept = self.kept(value, produced);
            if *produced != kept {
                let place = match produced.is_partial() {
                    true => self.place_of_resolution(value, &place_of(node)),
                    false => place_of(node),
                };
                self.move_to(value, 0, &kept, &place, None)?;
                self.held[value.index()].swap(0, 1);
            }
            let main = &self.held[value.index()][0];
            self.placements.push(Placement {
                global: value,
                local: main.local,
                sharding: main.sharding.clone(),
            });
        }
        Ok(())
    }

    fn assign_node(&mut self, id: NodeId) -> Result<Assignment> {
        let node = self.graph.node(id);
        let span = span_of(node.phase, node.microbatch);
        let situation = Situation {
            graph: self.graph,
            node,
            rule: &self.rules[id.index()],
            mesh: self.mesh,
            cluster: self.cluster,
            units: self.units,
            layouts: self.layouts,
            held: node.operands.iter().map(|v| self.held[v.index()][0].sharding.clone()).collect(),
            wanted: node.results.iter().map(|&v| self.layouts.sharding(v).clone()).collect(),
        };
        let pin = |&result: &ValueId| self.fixed.get(&self.graph.value(result).name);
        if let Some(factors) = node.results.iter().find_map(pin) {
            return fixed(&situation, factors).ok_or_else(|| {
                Diagnostic::new("E218", "the split fixed for an op cannot be expressed")
                    .at(self.graph.describe(node.results[0]))
                    .found(format!("{factors:?}"))
            });
        }
        Ok(assign(&situation, &mut NodeReshards { emitter: self, node, span }))
    }

    /// An identity: the result is the operand in the requested layout.
    fn emit_constraint(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let wanted = self.layouts.sharding(node.results[0]).clone();
        let local = self.fetch(node.operands[0], &wanted, &place_of(node))?;
        self.hold(node.results[0], wanted.clone(), local, None);
        self.placements.push(Placement { global: node.results[0], local, sharding: wanted });
        Ok(())
    }

    /// The body is written for one shard and goes into the local graphs unchanged.
    fn emit_manual(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let Op::ManualComputation(manual) = &node.op else { unreachable!("called for manual computations") };
        let mut operands = Vec::new();
        for (&value, sharding) in node.operands.iter().zip(&manual.in_shardings) {
            let mut required = over_manual_axes(manual, sharding);
            required.normalise(self.mesh, &self.graph.ty(value).shape);
            operands.push(self.fetch(value, &required, &place_of(node))?);
        }
        self.enter(&place_of(node));
        let body = partita_ir::graph_edit::unroll_collective_loops(&manual.body)?;
        let mut results = Vec::new();
        for builder in &mut self.builders {
            results = builder.inline(&body, &operands, false)?;
        }
        for ((&value, sharding), local) in node.results.iter().zip(&manual.out_shardings).zip(results) {
            let mut sharding = over_manual_axes(manual, sharding);
            sharding.normalise(self.mesh, &self.graph.ty(value).shape);
            self.hold(value, sharding.clone(), local, None);
            self.placements.push(Placement { global: value, local, sharding });
        }
        Ok(())
    }

    fn emit_outputs(&mut self, inputs: &[Sharding]) -> std::result::Result<Vec<(ValueId, Sharding)>, Stop> {
        let target = |(position, value): (usize, &ValueId)| {
            let held = &self.held[value.index()][0].sharding;
            match self.graph.output_names.get(position).and_then(|name| self.returned.get(name)) {
                Some(returned) => returned.clone(),
                None if self.unreduced && held.is_partial() => held.clone(),
                None => self.layouts.outputs[position].clone(),
            }
        };
        let mut targets: Vec<Sharding> = self.graph.outputs.iter().enumerate().map(target).collect();
        for &(input, output) in &self.graph.aliases {
            targets[output] = inputs[input].clone();
        }
        let mut outputs = Vec::new();
        for (&value, target) in self.graph.outputs.iter().zip(targets) {
            let place = match self.graph.value(value).definition {
                Some((node, _)) => place_of(self.graph.node(node)),
                None => Place::default(),
            };
            outputs.push((self.fetch(value, &target, &place)?, target));
        }
        Ok(outputs)
    }

    /// The local type of a value in each class. Refines a class whose members differ.
    fn local_types(
        &self,
        sharding: &Sharding,
        ty: &TensorType,
    ) -> std::result::Result<Vec<TensorType>, Stop> {
        let dims = sharding.dims.iter().zip(&ty.shape);
        let pieces: Vec<Rc<ShardTable>> = dims.map(|(dim, &size)| self.shards.pieces(dim, size)).collect();
        let of_class = |class: usize| {
            let known: Option<Vec<usize>> = pieces.iter().map(|dim| dim.of_class[class]).collect();
            let shape = match known {
                Some(shape) => shape,
                None => self.same_for_class(class, |rank| -> Vec<usize> {
                    pieces.iter().map(|dim| dim.extents[rank]).collect()
                })?,
            };
            Ok(ty.with_shape(shape))
        };
        (0..self.classes.len()).map(of_class).collect()
    }

    /// The value of `of` that all members of a class share; if they differ, the class is split by
    /// it.
    fn same_for_class<T: Ord + Clone>(
        &self,
        class: usize,
        of: impl Fn(usize) -> T,
    ) -> std::result::Result<T, Stop> {
        let mut parts: BTreeMap<T, Vec<usize>> = BTreeMap::new();
        for &rank in &self.classes[class] {
            parts.entry(of(rank)).or_default().push(rank);
        }
        if parts.len() > 1 {
            let mut classes = self.classes.clone();
            classes.splice(class..=class, parts.into_values());
            classes.sort();
            return Err(Stop::Refine(classes));
        }
        Ok(parts.into_keys().next().expect("a class has members"))
    }

    fn enter(&mut self, place: &Place) {
        for builder in &mut self.builders {
            builder.path = place.path.clone();
            builder.phase = place.phase;
            builder.location = place.location.clone();
            builder.microbatch = place.microbatch;
            builder.stage = place.stage;
        }
    }
}

/// Checks after emission that all local graphs have one structure, on which lock-step evaluation
/// and matching collectives depend.
pub(crate) fn same_structure(locals: &[Graph]) -> Result<()> {
    let first = &locals[0];
    for other in &locals[1..] {
        let differs =
            first.nodes.iter().zip(&other.nodes).find(|(a, b)| {
                a.op.name() != b.op.name() || a.operands != b.operands || a.results != b.results
            });
        let missing = first.nodes.len() != other.nodes.len();
        if differs.is_some() || missing {
            let (a, b) = match differs {
                Some((a, b)) => {
                    (format!("{} in {}", a.op.name(), a.path), format!("{} in {}", b.op.name(), b.path))
                }
                None => (format!("{} nodes", first.nodes.len()), format!("{} nodes", other.nodes.len())),
            };
            return Err(Diagnostic::new("E219", "the ranks' programs differ in structure")
                .expected(a)
                .found(b)
                .help("this is a bug in partita; please report it"));
        }
    }
    Ok(())
}

fn place_of(node: &Node) -> Place {
    Place {
        path: node.path.clone(),
        phase: node.phase,
        location: node.location.clone(),
        microbatch: node.microbatch,
        stage: node.stage,
    }
}
