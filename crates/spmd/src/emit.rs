//! Emission: walking the global graph once and writing every class's local graph side by side.
//!
//! Each value is held in one or more layouts. An operand is fetched in the layout its op requires: from a layout
//! already at hand, else by the steps [`partita_mesh::reshard`] plans. A partial value stays partial until somebody
//! needs it whole; then it goes to the layout propagation wants for it, once. What a gather produced for one phase
//! (forward, backward, update) is not kept for the next: it is cheaper to gather again than to hold it.

use crate::assign::{Assignment, Situation, assign, fixed};
use crate::partition::{Options, Placement};
use crate::propagate::Layouts;
use crate::units::Units;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::builder::identity;
use partita_ir::ops::{
    AllGather, AllReduce, AllToAll, BroadcastInDim, CollectivePermute, Constant, DynamicSlice, PartitionId,
    ReduceScatter, Select,
};
use partita_ir::{
    FactorId, Graph, GraphBuilder, Literal, LocalContext, NodeId, Op, Operation, Phase, Role, Rule,
    TensorType, ValueId,
};
use partita_mesh::{
    AxisList, AxisRef, Cluster, Combiner, Mesh, ReshardStep, Sharding, Step, permute_pairs, reshard,
};
use std::collections::BTreeMap;

/// Why emission ended early.
pub enum Stop {
    /// Members of a class turned out to differ; these are finer classes.
    Refine(Vec<Vec<usize>>),
    /// The user must hear of it.
    Error(Box<Diagnostic>),
}

impl From<Box<Diagnostic>> for Stop {
    fn from(error: Box<Diagnostic>) -> Stop {
        Stop::Error(error)
    }
}

/// The local graphs and where things are.
pub struct Emitted {
    /// Members of each class.
    pub classes: Vec<Vec<usize>>,
    /// The graph of each class.
    pub locals: Vec<Graph>,
    /// Layout of each input.
    pub inputs: Vec<Sharding>,
    /// Layout of each output.
    pub outputs: Vec<Sharding>,
    /// Where each value stands.
    pub placements: Vec<Placement>,
}

/// A part of the step across which gathered copies are not kept.
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
    /// Where set, good only within this span.
    only: Option<Span>,
}

/// Module path, phase and microbatch under which nodes are emitted.
#[derive(Clone)]
struct Place {
    path: String,
    phase: Phase,
    location: Option<partita_ir::Location>,
    microbatch: Option<usize>,
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
    /// For each class, values looked up by rank: from the table to the scalar.
    tables: Vec<BTreeMap<(DType, Vec<i64>), ValueId>>,
    held: Vec<Vec<Held>>,
    placements: Vec<Placement>,
    prices: BTreeMap<(Vec<usize>, usize, String, String), f64>,
    break_rule_at: Option<String>,
    fixed: &'a BTreeMap<usize, Vec<AxisList>>,
}

impl<'a> Emitter<'a> {
    /// A fresh emission for these classes.
    pub fn new(
        graph: &'a Graph,
        mesh: &'a Mesh,
        cluster: &'a Cluster,
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
                builder.graph_mut().meshes = vec![mesh.clone()];
                builder
            })
            .collect::<Vec<_>>();
        Emitter {
            graph,
            mesh,
            cluster,
            layouts,
            rules,
            units,
            tables: vec![BTreeMap::new(); classes.len()],
            classes,
            builders,
            held: vec![Vec::new(); graph.values.len()],
            placements: Vec::new(),
            prices: BTreeMap::new(),
            break_rule_at: options.break_rule_at.clone(),
            fixed: &options.fixed,
        }
    }

    /// Emits everything.
    pub fn run(mut self) -> std::result::Result<Emitted, Stop> {
        let inputs = self.emit_inputs()?;
        for id in self.graph.node_ids() {
            match &self.graph.node(id).op {
                Op::ShardingConstraint(_) => self.emit_constraint(id)?,
                Op::ManualComputation(_) => self.emit_manual(id)?,
                _ => self.emit_node(id)?,
            }
        }
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
        })
    }

    fn emit_inputs(&mut self) -> std::result::Result<Vec<Sharding>, Stop> {
        let mut shardings = Vec::new();
        for &input in &self.graph.inputs {
            let value = self.graph.value(input);
            let sharding = self.layouts.sharding(input).clone();
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
                Role::StateOf(of) => Role::StateOf(self.held[of.index()][0].local),
                other => other.clone(),
            };
            let local = self.held[input.index()][0].local;
            for builder in &mut self.builders {
                builder.graph_mut().value_mut(local).role = role.clone();
            }
        }
        Ok(shardings)
    }

    fn emit_node(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let rule = &self.rules[id.index()];
        let mut assignment = self.assign_node(id)?;
        if let Some(path) = &self.break_rule_at
            && node.path.starts_with(path.as_str())
            && assignment.produced.iter().any(Sharding::is_partial)
        {
            for sharding in &mut assignment.produced {
                sharding.partial.clear();
            }
            self.break_rule_at = None;
        }
        let mut operands = Vec::with_capacity(node.operands.len());
        for (&value, required) in node.operands.iter().zip(&assignment.required) {
            operands.push(self.fetch(value, required, id)?);
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
                mesh: self.mesh,
                assignment: &assignment,
                rank: self.classes[class][0],
                builder: &mut self.builders[class],
                tables: &mut self.tables[class],
                operands: operands.clone(),
                local_results: local_types.iter().map(|types| types[class].clone()).collect(),
            };
            let local = node.op.localise(&mut context)?;
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
            // Where propagation wants another layout, go there at once; only partial values wait for a reader, unless
            // they are gradients that a plan keeps in pieces: those are never to lie whole for long.
            let partial = produced.is_partial();
            let wanted = self.layouts.sharding(value).clone();
            if *produced != wanted && (!partial || self.is_pinned_gradient(value)) {
                let place = if partial { self.place_of_resolution(value, node) } else { place_of(node) };
                self.move_to(value, 0, &wanted, &place, None)?;
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

    fn is_pinned_gradient(&self, value: ValueId) -> bool {
        let value = self.graph.value(value);
        value.annotation.is_some()
            && matches!(value.role, Role::GradOf(of) if self.graph.value(of).role == Role::Param)
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
            held: node.operands.iter().map(|v| self.held[v.index()][0].sharding.clone()).collect(),
            wanted: node.results.iter().map(|&v| self.layouts.sharding(v).clone()).collect(),
        };
        if let Some(factors) = self.fixed.get(&id.index()) {
            return fixed(&situation, factors).ok_or_else(|| {
                Diagnostic::new("E218", "the split fixed for an op cannot be expressed")
                    .at(self.graph.describe(node.results[0]))
                    .found(format!("{factors:?}"))
            });
        }
        Ok(assign(&situation, &mut |operand, required| self.fetch_s(node.operands[operand], required, span)))
    }

    /// An identity: the result is the operand in the layout asked for.
    fn emit_constraint(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let wanted = self.layouts.sharding(node.results[0]).clone();
        let local = self.fetch(node.operands[0], &wanted, id)?;
        self.hold(node.results[0], wanted.clone(), local, None);
        self.placements.push(Placement { global: node.results[0], local, sharding: wanted });
        Ok(())
    }

    /// The body is written for one shard: it goes into the local graphs as it is.
    fn emit_manual(&mut self, id: NodeId) -> std::result::Result<(), Stop> {
        let node = self.graph.node(id);
        let Op::ManualComputation(manual) = &node.op else { unreachable!("called for manual computations") };
        let mut operands = Vec::new();
        for (&value, sharding) in node.operands.iter().zip(&manual.in_shardings) {
            let mut required = sharding.clone();
            required.normalise(self.mesh, &self.graph.ty(value).shape);
            operands.push(self.fetch(value, &required, id)?);
        }
        self.enter(&place_of(node));
        let mut results = Vec::new();
        for builder in &mut self.builders {
            results = builder.inline(&manual.body, &operands, false)?;
        }
        for ((&value, sharding), local) in node.results.iter().zip(&manual.out_shardings).zip(results) {
            let mut sharding = sharding.clone();
            sharding.normalise(self.mesh, &self.graph.ty(value).shape);
            self.hold(value, sharding.clone(), local, None);
            self.placements.push(Placement { global: value, local, sharding });
        }
        Ok(())
    }

    fn emit_outputs(&mut self, inputs: &[Sharding]) -> std::result::Result<Vec<(ValueId, Sharding)>, Stop> {
        let mut targets: Vec<Sharding> =
            self.graph.outputs.iter().map(|&v| self.layouts.sharding(v).clone()).collect();
        for &(input, output) in &self.graph.aliases {
            targets[output] = inputs[input].clone();
        }
        let mut outputs = Vec::new();
        for (&value, target) in self.graph.outputs.iter().zip(targets) {
            let local = match self.graph.value(value).definition {
                Some((node, _)) => self.fetch(value, &target, node)?,
                None => self.held[value.index()][0].local,
            };
            outputs.push((local, target));
        }
        Ok(outputs)
    }

    // ---- holding and fetching --------------------------------------------------------------------------

    fn hold(&mut self, value: ValueId, sharding: Sharding, local: ValueId, only: Option<Span>) {
        let source = self.graph.value(value);
        for builder in &mut self.builders {
            let target = builder.graph_mut().value_mut(local);
            if target.name.is_empty() {
                target.name = source.name.clone();
            }
        }
        self.held[value.index()].push(Held { sharding, local, only });
    }

    /// Which held layout to start from for `required`, and whether to pass through the wanted layout first.
    fn route(&mut self, value: ValueId, required: &Sharding, span: Span) -> (usize, Option<Sharding>, f64) {
        let wanted = self.layouts.sharding(value).clone();
        let mut best: Option<(usize, Option<Sharding>, f64)> = None;
        for index in 0..self.held[value.index()].len() {
            let held = self.held[value.index()][index].clone();
            if held.only.is_some_and(|only| only != span) {
                continue;
            }
            // A partial value is made whole in its wanted layout, so that later readers find it there.
            let via = (held.sharding.is_partial() && !required.is_partial()).then(|| wanted.clone());
            let seconds = match &via {
                Some(via) => self.price(value, &held.sharding, via) + self.price(value, via, required),
                None => self.price(value, &held.sharding, required),
            };
            if best.as_ref().is_none_or(|b| seconds < b.2) {
                best = Some((index, via, seconds));
            }
        }
        best.expect("the main layout is always usable")
    }

    fn price(&mut self, value: ValueId, from: &Sharding, to: &Sharding) -> f64 {
        if from == to {
            return 0.0;
        }
        let ty = self.graph.ty(value);
        let bytes = ty.dtype.size_bytes();
        let key = (ty.shape.clone(), bytes, format!("{from:?}"), format!("{to:?}"));
        if let Some(&price) = self.prices.get(&key) {
            return price;
        }
        let price = self.cluster.reshard_s(self.mesh, &ty.shape, bytes, from, to);
        self.prices.insert(key, price);
        price
    }

    fn fetch_s(&mut self, value: ValueId, required: &Sharding, span: Span) -> f64 {
        if self.held[value.index()][0].sharding == *required || self.is_fill(value, required) {
            return 0.0;
        }
        self.route(value, required, span).2
    }

    /// The local value that holds `value` in the `required` layout, moved there where needed.
    fn fetch(
        &mut self,
        value: ValueId,
        required: &Sharding,
        reader: NodeId,
    ) -> std::result::Result<ValueId, Stop> {
        let reader = self.graph.node(reader);
        let span = span_of(reader.phase, reader.microbatch);
        if self.held[value.index()].iter().all(|held| held.sharding != *required)
            && self.is_fill(value, required)
        {
            return self.fill(value, required, reader);
        }
        let (mut from, via, _) = self.route(value, required, span);
        if let Some(via) = via {
            let place = self.place_of_resolution(value, reader);
            from = self.move_to(value, from, &via, &place, None)?;
        }
        if self.held[value.index()][from].sharding == *required {
            return Ok(self.held[value.index()][from].local);
        }
        let mut place = place_of(reader);
        if let (Some((node, _)), false) = (self.graph.value(value).definition, required.is_partial()) {
            place.path = self.graph.node(node).path.clone();
        }
        let index = self.move_to(value, from, required, &place, Some(span))?;
        Ok(self.held[value.index()][index].local)
    }

    /// Whether a value is one number in every element: it can be made anywhere, in any layout, for nothing.
    fn is_fill(&self, value: ValueId, required: &Sharding) -> bool {
        let Some((node, _)) = self.graph.value(value).definition else { return false };
        let node = self.graph.node(node);
        let fills = match &node.op {
            Op::Constant(constant) => constant.value.is_splat(),
            Op::BroadcastInDim(_) => {
                let scalar = node.operands[0];
                self.graph.ty(scalar).rank() == 0 && !self.held[scalar.index()][0].sharding.is_partial()
            }
            _ => false,
        };
        fills && !required.is_partial()
    }

    /// Makes such a value once more.
    fn fill(
        &mut self,
        value: ValueId,
        required: &Sharding,
        reader: &partita_ir::Node,
    ) -> std::result::Result<ValueId, Stop> {
        let ty = self.graph.ty(value);
        let types = self.local_types(required, ty)?;
        let (node, _) = self.graph.value(value).definition.expect("fills are computed");
        let node = self.graph.node(node);
        self.enter(&Place { path: node.path.clone(), ..place_of(reader) });
        let mut local = ValueId::new(0);
        for (class, ty) in types.into_iter().enumerate() {
            let (op, operands): (Op, Vec<ValueId>) = match &node.op {
                Op::Constant(constant) => {
                    let value = constant.value.window(&vec![0; ty.rank()], &ty.shape);
                    (Constant { value }.into(), Vec::new())
                }
                _ => {
                    let scalar = self.held[node.operands[0].index()][0].local;
                    (BroadcastInDim { shape: ty.shape.clone(), dims: vec![] }.into(), vec![scalar])
                }
            };
            local = self.builders[class].push_typed(op, &operands, vec![ty])[0];
        }
        self.hold(value, required.clone(), local, None);
        Ok(local)
    }

    /// A sum is completed where it was made; that of a parameter's gradient belongs to the weight gradients.
    fn place_of_resolution(&self, value: ValueId, reader: &partita_ir::Node) -> Place {
        let mut place = match self.graph.value(value).definition {
            Some((node, _)) => place_of(self.graph.node(node)),
            None => place_of(reader),
        };
        if let Role::GradOf(of) = self.graph.value(value).role
            && self.graph.value(of).role == Role::Param
            && place.phase.is_backward()
        {
            place.phase = Phase::WeightGrad;
        }
        place
    }

    /// Moves a value from one held layout to another and holds the outcome. A copy that grew by a gather is kept
    /// within `span` only.
    fn move_to(
        &mut self,
        value: ValueId,
        from: usize,
        to: &Sharding,
        place: &Place,
        span: Option<Span>,
    ) -> std::result::Result<usize, Stop> {
        let start = self.held[value.index()][from].clone();
        if start.sharding == *to {
            return Ok(from);
        }
        let ty = self.graph.ty(value).clone();
        self.enter(place);
        let mut before = start.sharding;
        let mut local = start.local;
        let mut gathered = start.only.is_some();
        for step in reshard(self.mesh, &before, to, &ty.shape) {
            gathered |= matches!(step.step, Step::AllGather { .. });
            local = self.emit_step(&before, &step, &ty, local)?;
            before = step.after;
        }
        debug_assert!(before.same_layout(to, self.mesh, &ty.shape), "reshard ends where it should");
        let only = span.filter(|_| gathered);
        let index = self.held[value.index()].len();
        self.hold(value, to.clone(), local, only);
        Ok(index)
    }

    // ---- steps -----------------------------------------------------------------------------------------

    fn emit_step(
        &mut self,
        before: &Sharding,
        step: &ReshardStep,
        ty: &TensorType,
        local: ValueId,
    ) -> std::result::Result<ValueId, Stop> {
        let mesh = self.mesh;
        let after = &step.after;
        let types = self.local_types(after, ty)?;
        let extents = |sharding: &Sharding, dim: usize, axes: &[AxisRef], rank: usize| -> Vec<usize> {
            let group = mesh.group_of(rank, axes);
            group.into_iter().map(|m| sharding.local_shape(mesh, &ty.shape, m)[dim]).collect()
        };
        let mut result = local;
        for class in 0..self.classes.len() {
            let local_type = types[class].clone();
            let op: Op = match &step.step {
                Step::Slice { dim, .. } => {
                    let table: Vec<i64> = (0..mesh.rank_count())
                        .map(|r| {
                            let start = after.local_offset(mesh, &ty.shape, r)[*dim];
                            (start - before.local_offset(mesh, &ty.shape, r)[*dim]) as i64
                        })
                        .collect();
                    let rank_of_tensor = ty.rank();
                    let start =
                        lookup(&mut self.builders[class], &mut self.tables[class], DType::I64, &table)?;
                    let zero = self.builders[class].scalar(DType::I64, 0.0);
                    let mut operands = vec![local];
                    operands.extend((0..rank_of_tensor).map(|d| if d == *dim { start } else { zero }));
                    let op = DynamicSlice { sizes: local_type.shape.clone() };
                    result = self.builders[class].push_typed(op, &operands, vec![local_type])[0];
                    continue;
                }
                Step::ToPartial { axes, combiner } => {
                    let table: Vec<i64> =
                        (0..mesh.rank_count()).map(|r| (mesh.position(r, axes) == 0) as i64).collect();
                    let builder = &mut self.builders[class];
                    let leader = lookup(builder, &mut self.tables[class], DType::Bool, &table)?;
                    result = leader_or_identity(builder, leader, local, *combiner)?;
                    continue;
                }
                Step::AllReduce { axes, combiner } => {
                    AllReduce { groups: mesh.groups(axes), combiner: *combiner }.into()
                }
                Step::AllGather { dim, axes } => {
                    let mine = self.same_for_class(class, |r| extents(before, *dim, axes, r))?;
                    AllGather { dim: *dim, groups: mesh.groups(axes), extents: mine }.into()
                }
                Step::ReduceScatter { dim, axes, combiner } => {
                    let mine = self.same_for_class(class, |r| extents(after, *dim, axes, r))?;
                    let groups = mesh.groups(axes);
                    ReduceScatter { dim: *dim, groups, combiner: *combiner, extents: mine }.into()
                }
                Step::AllToAll { from_dim, to_dim, axes } => {
                    let cut = self.same_for_class(class, |r| extents(after, *to_dim, axes, r))?;
                    let join = self.same_for_class(class, |r| extents(before, *from_dim, axes, r))?;
                    AllToAll {
                        split_dim: *to_dim,
                        concat_dim: *from_dim,
                        groups: mesh.groups(axes),
                        split_extents: cut,
                        concat_extents: join,
                    }
                    .into()
                }
                Step::Permute {} => {
                    CollectivePermute { pairs: permute_pairs(mesh, before, after, &ty.shape) }.into()
                }
            };
            result = self.builders[class].push_typed(op, &[local], vec![local_type])[0];
        }
        Ok(result)
    }

    // ---- classes ---------------------------------------------------------------------------------------

    /// The local type of a value in each class; refines the classes where members differ.
    fn local_types(
        &self,
        sharding: &Sharding,
        ty: &TensorType,
    ) -> std::result::Result<Vec<TensorType>, Stop> {
        (0..self.classes.len())
            .map(|class| {
                let shape = self.same_for_class(class, |r| sharding.local_shape(self.mesh, &ty.shape, r))?;
                Ok(ty.with_shape(shape))
            })
            .collect()
    }

    /// What `of` says of every member of a class, which must be the same; else the class is split by it.
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
        }
    }
}

/// The verifier after emission: lock step and matching collectives rest on it.
fn same_structure(locals: &[Graph]) -> Result<()> {
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

fn place_of(node: &partita_ir::Node) -> Place {
    Place {
        path: node.path.clone(),
        phase: node.phase,
        location: node.location.clone(),
        microbatch: node.microbatch,
    }
}

/// The scalar of this rank in a table over all ranks; a plain constant where all agree.
fn lookup(
    builder: &mut GraphBuilder,
    tables: &mut BTreeMap<(DType, Vec<i64>), ValueId>,
    dtype: DType,
    table: &[i64],
) -> Result<ValueId> {
    let key = (dtype, table.to_vec());
    if let Some(&value) = tables.get(&key) {
        return Ok(value);
    }
    let value = if table.iter().all(|t| *t == table[0]) {
        builder.scalar(dtype, table[0] as f64)
    } else {
        let ty = TensorType::new(dtype, [table.len()]);
        let all = builder.constant(Literal::from_f64(&ty, table.iter().map(|&t| t as f64)));
        let rank = builder.push1(PartitionId, &[])?;
        let rank = builder.convert(rank, DType::I64)?;
        let mine = builder.push1(DynamicSlice { sizes: vec![1] }, &[all, rank])?;
        builder.reshape(mine, &[])?
    };
    tables.insert(key, value);
    Ok(value)
}

/// The value on the leader, the combiner's identity elsewhere.
fn leader_or_identity(
    builder: &mut GraphBuilder,
    leader: ValueId,
    value: ValueId,
    combiner: Combiner,
) -> Result<ValueId> {
    let ty = builder.ty(value).clone();
    let scalar = builder.constant(identity(combiner, ty.dtype));
    let nothing = if ty.rank() == 0 {
        scalar
    } else {
        builder.push1(BroadcastInDim { shape: ty.shape.clone(), dims: vec![] }, &[scalar])?
    };
    builder.push1(Select, &[leader, value, nothing])
}

/// What an op sees of one class while it is rewritten.
struct NodeContext<'a> {
    graph: &'a Graph,
    node: NodeId,
    rule: &'a Rule,
    mesh: &'a Mesh,
    assignment: &'a Assignment,
    rank: usize,
    builder: &'a mut GraphBuilder,
    tables: &'a mut BTreeMap<(DType, Vec<i64>), ValueId>,
    operands: Vec<ValueId>,
    local_results: Vec<TensorType>,
}

impl NodeContext<'_> {
    fn offset(&mut self, sharding: &Sharding, shape: &[usize], dim: usize) -> Result<ValueId> {
        let table: Vec<i64> = (0..self.mesh.rank_count())
            .map(|rank| sharding.local_offset(self.mesh, shape, rank)[dim] as i64)
            .collect();
        lookup(self.builder, self.tables, DType::I64, &table)
    }
}

impl LocalContext for NodeContext<'_> {
    fn builder(&mut self) -> &mut GraphBuilder {
        self.builder
    }
    fn operands(&self) -> &[ValueId] {
        &self.operands
    }
    fn global_operand(&self, operand: usize) -> &TensorType {
        self.graph.ty(self.graph.node(self.node).operands[operand])
    }
    fn global_result(&self, result: usize) -> &TensorType {
        self.graph.ty(self.graph.node(self.node).results[result])
    }
    fn local_result(&self, result: usize) -> TensorType {
        self.local_results[result].clone()
    }
    fn is_sharded(&self, factor: FactorId) -> bool {
        debug_assert!(factor < self.rule.factors.len(), "rank {}", self.rank);
        !self.assignment.factors[factor].is_empty()
    }
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId> {
        let shape = self.global_operand(operand).shape.clone();
        let sharding = self.assignment.required[operand].clone();
        self.offset(&sharding, &shape, dim)
    }
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId> {
        let shape = self.global_result(result).shape.clone();
        let sharding = self.assignment.produced[result].clone();
        self.offset(&sharding, &shape, dim)
    }
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId> {
        let axes: Vec<AxisRef> =
            factors.iter().flat_map(|&f| self.assignment.factors[f].iter().copied()).collect();
        let table: Vec<i64> =
            (0..self.mesh.rank_count()).map(|r| (self.mesh.position(r, &axes) == 0) as i64).collect();
        lookup(self.builder, self.tables, DType::Bool, &table)
    }
}
