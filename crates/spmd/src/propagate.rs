//! Sharding propagation: derives the layout of every value from a few annotations.
//!
//! The algorithm is Shardy's: dimensions are projected to factors, axes spread along factors as far
//! as all tensors of an op agree, and are projected back to dimensions, in both directions to a
//! fixed point. Stages order the propagation so that a sharded optimizer state never reshapes the
//! model: the forward pass settles first, recomputed values take the layout of the originals,
//! gradients start from the layout of their parameters or activations, and the optimizer comes
//! last.

mod groups;

use crate::factors::{axes_of_factors, dim_sharding, may_split};
use crate::meshes::on_mesh;
use crate::units::{Units, rules_of};
use partita_base::{Diagnostic, Result};
use partita_ir::ops::ManualComputation;
use partita_ir::{Annotation, FactorKind, Graph, NodeId, Op, Phase, Role, Rule, ValueId};
use partita_mesh::{AxisList, AxisRef, Combiner, Mesh, Sharding};
use std::collections::BTreeMap;

/// Why a dimension of a value has its axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An annotation, with its origin.
    Pinned(String),
    /// Spread through this node from another value.
    Through {
        /// The node that relates both values.
        node: NodeId,
        /// The value from which the axes came.
        from: ValueId,
    },
    /// A gradient that follows the value it belongs to.
    GradientOf(ValueId),
    /// A recomputation of that value.
    RematOf(ValueId),
    /// The value replaces that input at the next step, or is the input that the other value replaces.
    Alias(ValueId),
    /// The value is in a sharding group with that value.
    Group(ValueId),
}

/// A layout for every value of a graph, with its causes.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// The mesh of all layouts.
    pub mesh: Mesh,
    /// The layout of each value, by id; never partial.
    pub shardings: Vec<Sharding>,
    /// The layout in which each input arrives, by position: that of its value, partial if its annotation says so.
    pub inputs: Vec<Sharding>,
    /// The layout in which each output is returned, by position: that of its value, unless an
    /// output annotation requests another one.
    pub outputs: Vec<Sharding>,
    /// The cause of the axes, for each value and dimension.
    pub causes: Vec<Vec<Option<Cause>>>,
    /// For each value, the axes that split it by single elements instead of by units. The value is
    /// only stored in this layout; no op needs complete units of it there.
    pub by_element: Vec<AxisList>,
}

impl Layouts {
    /// The layout of a value.
    pub fn sharding(&self, value: ValueId) -> &Sharding {
        &self.shardings[value.index()]
    }

    /// Whether an axis splits a value by single elements.
    pub fn cuts_by_element(&self, value: ValueId, axis: AxisRef) -> bool {
        self.by_element[value.index()].iter().any(|known| known.overlaps(axis))
    }
}

/// The axes over which a value is still to be combined.
type PartialAxes = Vec<(AxisRef, Combiner)>;

struct State<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    rules: &'a [Rule],
    axes: Vec<Vec<AxisList>>,
    open: Vec<Vec<bool>>,
    blocked: Vec<Vec<AxisRef>>,
    /// As [`Layouts::by_element`]. An axis keeps this property as it spreads.
    by_element: Vec<AxisList>,
    causes: Vec<Vec<Option<Cause>>>,
    uses: Vec<Vec<(NodeId, usize)>>,
    /// The values of each sharding group.
    groups: BTreeMap<u64, Vec<ValueId>>,
    /// For each node, whether the layout of one of its values has changed since the last visit.
    stale: Vec<bool>,
}

/// Gives every value of `graph` a layout on `mesh`. Fixed layouts come from value annotations,
/// sharding constraints and output annotations. E210 if an annotation does not fit its value, E215
/// if two annotations of one value contradict each other, E216 if an annotation names a mesh that
/// does not exist or whose layouts cannot be expressed in the axes of this mesh.
pub fn propagate(graph: &Graph, mesh: &Mesh) -> Result<Layouts> {
    let rules = rules_of(graph);
    let units = Units::of(graph, &rules);
    propagate_with(graph, mesh, &rules, &units)
}

/// As [`propagate`], with the rules and units given.
pub fn propagate_with(graph: &Graph, mesh: &Mesh, rules: &[Rule], units: &Units) -> Result<Layouts> {
    let mut state = State::of(graph, mesh, rules)?;
    let unreduced = state.pin_values()?;
    state.pin_nodes()?;
    let own = state.pin_outputs()?;
    state.settle_by_phase();
    Ok(state.layouts(units, &unreduced, &own))
}

/// The code of two contradicting annotations.
const CONTRADICTION: &str = "E215";

/// A layout of a manual computation as its body sees it: only the manual axes.
pub(crate) fn over_manual_axes(manual: &ManualComputation, sharding: &Sharding) -> Sharding {
    let is_manual = |axis: &AxisRef| manual.manual_axes.contains(&manual.mesh_value.axes[axis.axis].name);
    let mut sharding = sharding.clone();
    for dim in &mut sharding.dims {
        dim.axes.retain(|axis| is_manual(axis));
    }
    sharding.partial.retain(|(axis, _)| is_manual(axis));
    sharding
}

/// Whether all factors of an op pass, as in elementwise functions and views. Such ops spread
/// layouts first.
fn is_view(rule: &Rule) -> bool {
    rule.factors.iter().all(|f| f.kind == FactorKind::Pass) && rule.operands.len() <= 3
}

impl<'a> State<'a> {
    /// Every value replicated and open.
    fn of(graph: &'a Graph, mesh: &'a Mesh, rules: &'a [Rule]) -> Result<State<'a>> {
        let count = graph.values.len();
        Ok(State {
            graph,
            mesh,
            rules,
            axes: graph.values.iter().map(|v| vec![AxisList::new(); v.ty.rank()]).collect(),
            open: graph.values.iter().map(|v| vec![true; v.ty.rank()]).collect(),
            blocked: vec![Vec::new(); count],
            by_element: vec![AxisList::new(); count],
            causes: graph.values.iter().map(|v| vec![None; v.ty.rank()]).collect(),
            uses: graph.uses(),
            groups: groups::of(graph)?,
            stale: vec![true; graph.nodes.len()],
        })
    }

    /// Pins annotated values. For each input, the axes over which it arrives partial.
    fn pin_values(&mut self) -> Result<Vec<PartialAxes>> {
        let (graph, mesh) = (self.graph, self.mesh);
        let mut unreduced = vec![Vec::new(); graph.values.len()];
        for id in graph.value_ids() {
            if let Some(annotation) = &graph.value(id).annotation {
                let annotation = on_mesh(graph, mesh, id, annotation)?;
                self.pin_group(id, &annotation)?;
                if graph.value(id).definition.is_none() {
                    self.blocked[id.index()].extend(annotation.sharding.partial_axes());
                    unreduced[id.index()].clone_from(&annotation.sharding.partial);
                }
            }
        }
        Ok(unreduced)
    }

    /// Pins the results of sharding constraints and manual computations.
    fn pin_nodes(&mut self) -> Result<()> {
        let (graph, mesh) = (self.graph, self.mesh);
        for node in &graph.nodes {
            if let Op::ShardingConstraint(constraint) = &node.op {
                let value = node.results[0];
                let annotation = on_mesh(graph, mesh, value, &constraint.annotation)?;
                self.pin_group(value, &annotation)?;
            }
            if let Op::ManualComputation(manual) = &node.op {
                if manual.mesh_value.axes != mesh.axes || !manual.mesh_value.has_devices_of(mesh) {
                    return Err(Diagnostic::new("E216", "a manual computation is written for another mesh")
                        .at(graph.describe(node.results[0]))
                        .expected(mesh.to_string())
                        .found(manual.mesh_value.to_string())
                        .help(format!("run the program on its own mesh: --mesh {}", manual.mesh_value)));
                }
                for (&result, sharding) in node.results.iter().zip(&manual.out_shardings) {
                    let mut sharding = over_manual_axes(manual, sharding);
                    sharding.partial.clear();
                    let open = vec![false; sharding.dims.len()];
                    let (replicated, origin) = (vec![], "manual computation".to_string());
                    let annotation = Annotation { mesh: manual.mesh, sharding, open, replicated, origin };
                    self.pin_group(result, &annotation)?;
                }
            }
        }
        Ok(())
    }

    /// Pins annotated outputs. An output may be returned in another layout than its value has elsewhere: for each, an
    /// annotation of its own.
    fn pin_outputs(&mut self) -> Result<Vec<Option<Annotation>>> {
        let (graph, mesh) = (self.graph, self.mesh);
        let mut own: Vec<Option<Annotation>> = vec![None; graph.outputs.len()];
        for (position, annotation) in graph.output_annotations.iter().enumerate() {
            let Some(annotation) = annotation else { continue };
            let output = graph.outputs[position];
            let annotation = on_mesh(graph, mesh, output, annotation)?;
            if let Err(error) = self.pin(output, &annotation) {
                if error.code != CONTRADICTION {
                    return Err(error);
                }
                own[position] = Some(annotation.into_owned());
            }
        }
        Ok(own)
    }

    /// The forward pass settles first, then the backward pass, the update last.
    fn settle_by_phase(&mut self) {
        let (graph, rules) = (self.graph, self.rules);
        let forward = |node: NodeId| graph.node(node).phase == Phase::Forward;
        let views = |node: NodeId| is_view(&rules[node.index()]);
        let not_update = |node: NodeId| graph.node(node).phase != Phase::Update;
        self.settle(&|node| forward(node) && views(node));
        self.settle(&forward);
        self.follow_originals();
        self.follow_gradients();
        self.settle(&not_update);
        self.follow_aliases();
        self.settle(&|_| true);
        self.follow_aliases();
        self.settle(&|_| true);
    }

    /// A value over these axes of each dimension.
    fn sharding(&self, id: ValueId, units: &Units, axes: &dyn Fn(usize) -> AxisList) -> Sharding {
        let ty = self.graph.ty(id);
        let mut sharding = Sharding::replicated(ty.rank());
        for (dim, entry) in sharding.dims.iter_mut().enumerate() {
            (entry.axes, entry.unit) = (axes(dim), units.unit(id, dim));
            let minor = entry.axes.iter().rev();
            entry.by_element = minor.take_while(|axis| self.by_element[id.index()].contains(axis)).count();
        }
        sharding.normalise(self.mesh, &ty.shape);
        sharding
    }

    /// The layouts, with the axes over which inputs arrive partial, and annotations of single outputs.
    fn layouts(self, units: &Units, unreduced: &[PartialAxes], own: &[Option<Annotation>]) -> Layouts {
        let (graph, mesh) = (self.graph, self.mesh);
        let of_value = |id: ValueId| self.sharding(id, units, &|dim| self.axes[id.index()][dim].clone());
        let shardings: Vec<Sharding> = graph.value_ids().map(of_value).collect();
        let input = |&id: &ValueId| {
            let mut sharding = shardings[id.index()].clone();
            if !unreduced[id.index()].is_empty() {
                sharding.partial.clone_from(&unreduced[id.index()]);
                sharding.normalise(mesh, &graph.ty(id).shape);
            }
            sharding
        };
        let inputs = graph.inputs.iter().map(input).collect();
        let output = |(&id, own): (&ValueId, &Option<Annotation>)| match own {
            Some(annotation) => self.sharding(id, units, &|dim| annotation.sharding.dims[dim].axes.clone()),
            None => shardings[id.index()].clone(),
        };
        let outputs = graph.outputs.iter().zip(own).map(output).collect();
        let (causes, by_element) = (self.causes, self.by_element);
        Layouts { mesh: mesh.clone(), shardings, inputs, outputs, causes, by_element }
    }

    fn pin(&mut self, value: ValueId, annotation: &Annotation) -> Result<()> {
        let ty = self.graph.ty(value);
        let sharding = &annotation.sharding;
        sharding.validate(self.mesh, &ty.shape).map_err(|error| {
            Diagnostic::new("E210", format!("layout of `{}` does not fit", self.graph.describe(value)))
                .at(annotation.origin.clone())
                .expected(error.expected.clone().unwrap_or_else(|| format!("a layout of {ty}")))
                .found(error.found.clone().unwrap_or_else(|| sharding.display(self.mesh)))
                .note(error.message.clone())
        })?;
        let tables = self.graph.meshes.len().max(1);
        if annotation.mesh >= tables {
            return Err(Diagnostic::new("E216", "a layout names a mesh that the graph does not have")
                .at(annotation.origin.clone())
                .expected(format!("a number below {tables}"))
                .found(annotation.mesh.to_string()));
        }
        let index = value.index();
        let is_open = |dim: usize| annotation.open.get(dim).copied().unwrap_or(false);
        let contradiction = |dim: usize| {
            let before = self.causes[index].iter().flatten().find_map(|cause| match cause {
                Cause::Pinned(origin) => Some(origin.clone()),
                Cause::Through { .. }
                | Cause::GradientOf(_)
                | Cause::RematOf(_)
                | Cause::Alias(_)
                | Cause::Group(_) => None,
            });
            let what =
                format!("two requested layouts of `{}` contradict each other", self.graph.describe(value));
            Diagnostic::new(CONTRADICTION, what)
                .at(annotation.origin.clone())
                .expected(format!("what {} requests", before.unwrap_or("another line".to_string())))
                .found(format!("{} on dimension {dim}", sharding.display(self.mesh)))
        };
        // Of two annotations of one dimension, the longer list extends the shorter one, which must
        // be open.
        let mut merged: Vec<AxisList> = Vec::with_capacity(ty.rank());
        for dim in 0..ty.rank() {
            let have = &self.axes[index][dim];
            let asked: AxisList = sharding.dims[dim].axes.iter().copied().filter(|a| a.size > 1).collect();
            let common = have.iter().zip(&asked).take_while(|(a, b)| a == b).count();
            let takes_all = common == have.len() && (common == asked.len() || self.open[index][dim]);
            let keeps_all = common == asked.len() && is_open(dim);
            match (takes_all, keeps_all) {
                (true, _) => merged.push(asked),
                (false, true) => merged.push(have.clone()),
                (false, false) => return Err(contradiction(dim)),
            }
        }
        let mut used: Vec<AxisRef> = self.blocked[index].clone();
        used.extend(annotation.replicated.iter().copied());
        for (dim, axes) in merged.iter().enumerate() {
            for axis in axes {
                if used.iter().any(|other| other.overlaps(*axis)) {
                    return Err(contradiction(dim));
                }
                used.push(*axis);
            }
        }
        for (dim, axes) in merged.into_iter().enumerate() {
            let grown = axes.len() > self.axes[index][dim].len();
            let closes = self.open[index][dim] && !is_open(dim);
            if grown || closes {
                self.causes[index][dim] = Some(Cause::Pinned(annotation.origin.clone()));
            }
            self.axes[index][dim] = axes;
            self.open[index][dim] &= is_open(dim);
            let (_, stored) = sharding.dims[dim].by_granularity();
            self.by_element[index].extend(stored.iter().copied());
        }
        self.blocked[index].extend(annotation.replicated.iter().copied());
        Ok(())
    }

    /// Sweeps over the nodes that `take_part`, forwards and backwards, until nothing changes. Lists
    /// of axes only grow, so this terminates. Nodes whose values did not change are skipped.
    fn settle(&mut self, take_part: &dyn Fn(NodeId) -> bool) {
        loop {
            let mut changed = false;
            for id in self.graph.node_ids().chain(self.graph.node_ids().rev()) {
                if self.stale[id.index()] && take_part(id) {
                    self.stale[id.index()] = false;
                    changed |= self.spread(id);
                }
            }
            changed |= self.unite_groups();
            if !changed {
                return;
            }
        }
    }

    /// Marks the nodes that define or read a value for another visit.
    fn touch(&mut self, value: ValueId) {
        let definition = self.graph.value(value).definition.map(|(node, _)| node);
        let readers = self.uses[value.index()].iter().map(|&(node, _)| node);
        definition.into_iter().chain(readers).for_each(|node| self.stale[node.index()] = true);
    }

    /// Propagates through one op: for each factor, the longest list of axes that no tensor
    /// contradicts is given to every tensor that can take it. Where lists conflict, larger tensors
    /// have priority.
    fn spread(&mut self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let rule = &self.rules[id.index()];
        if matches!(node.op, Op::ManualComputation(_)) {
            return false;
        }
        let operands = node.operands.iter().zip(&rule.operands);
        let results = node.results.iter().zip(&rule.results);
        let tensors = operands.clone().chain(results.clone());
        // A barrier lets layouts pass in some directions only.
        let (mut forward, mut backward) = (true, true);
        if let Op::PropagationBarrier(barrier) = &node.op {
            (forward, backward) = (barrier.forward, barrier.backward);
        }
        let sources = operands.filter(|_| forward).chain(results.filter(|_| backward));
        // The current lists as (factor, axes, tensor).
        let mut lists: Vec<(usize, AxisList, ValueId)> = Vec::new();
        for (value, dims) in sources {
            for (factors, axes) in dims.iter().zip(&self.axes[value.index()]) {
                if axes.is_empty() {
                    continue;
                }
                for (factor, list) in axes_of_factors(rule, factors, axes) {
                    if may_split(rule, factor) && !list.is_empty() {
                        lists.push((factor, list, *value));
                    }
                }
            }
        }
        if lists.is_empty() {
            return false;
        }
        let chosen = self.agreed(lists, rule.factors.len());
        let mut changed = false;
        for (factor, choice) in chosen.iter().enumerate() {
            let Some((list, from)) = choice else { continue };
            for (value, dims) in tensors.clone() {
                changed |= self.extend(id, *value, dims, factor, list, *from);
            }
        }
        changed
    }

    /// For each factor, the longest list of axes that no other contradicts, and the value it is from. Where lists
    /// conflict, those of larger tensors have priority.
    fn agreed(
        &self,
        mut lists: Vec<(usize, AxisList, ValueId)>,
        factors: usize,
    ) -> Vec<Option<(AxisList, ValueId)>> {
        lists.sort_by_key(|(_, _, value)| std::cmp::Reverse(self.graph.ty(*value).bytes()));
        let mut chosen: Vec<Option<(AxisList, ValueId)>> = vec![None; factors];
        for (factor, list, value) in lists {
            match &mut chosen[factor] {
                None => chosen[factor] = Some((list, value)),
                Some((have, from)) => {
                    let common = have.iter().zip(&list).take_while(|(a, b)| a == b).count();
                    if common < have.len() && common < list.len() {
                        have.truncate(common);
                    } else if list.len() > have.len() {
                        (*have, *from) = (list, value);
                    }
                }
            }
        }
        chosen
    }

    /// Extends the axes of the dimension of `value` that holds `factor` towards `list`, as far as
    /// possible.
    fn extend(
        &mut self,
        node: NodeId,
        value: ValueId,
        dims: &[Vec<usize>],
        factor: usize,
        list: &AxisList,
        from: ValueId,
    ) -> bool {
        let rule = &self.rules[node.index()];
        let Some(dim) = dims.iter().position(|d| d.contains(&factor)) else { return false };
        if !self.open[value.index()][dim] {
            return false;
        }
        let factors = &dims[dim];
        let current = axes_of_factors(rule, factors, &self.axes[value.index()][dim]);
        let have = current.iter().find(|(f, _)| *f == factor).map(|(_, l)| l.clone()).unwrap_or_default();
        if list.len() <= have.len() || list[..have.len()] != have[..] {
            return false;
        }
        let mut assignment = vec![AxisList::new(); rule.factors.len()];
        for (f, axes) in current {
            assignment[f] = axes;
        }
        let mut grown = false;
        for &axis in &list[have.len()..] {
            if !self.is_free(value, &[axis]) {
                break;
            }
            assignment[factor].push(axis);
            match dim_sharding(rule, factors, &assignment, 1, 0) {
                Some(sharding) => {
                    self.axes[value.index()][dim] = sharding.axes;
                    self.keep_granularity(from, value, &[axis]);
                    self.causes[value.index()][dim].get_or_insert(Cause::Through { node, from });
                    grown = true;
                }
                None => break,
            }
        }
        if grown {
            self.touch(value);
        }
        grown
    }

    /// Axes that spread from one value to another split both in the same way: by single elements or
    /// by units.
    fn keep_granularity(&mut self, from: ValueId, to: ValueId, axes: &[AxisRef]) {
        let known = &self.by_element[from.index()];
        let spread: AxisList = axes.iter().copied().filter(|axis| known.contains(axis)).collect();
        self.by_element[to.index()].extend(spread);
    }

    /// Whether a value uses none of these axes and need not stay replicated over them.
    fn is_free(&self, value: ValueId, axes: &[AxisRef]) -> bool {
        let taken = self.axes[value.index()].iter().flatten().chain(&self.blocked[value.index()]);
        !taken.into_iter().any(|taken| axes.iter().any(|axis| taken.overlaps(*axis)))
    }

    /// A recomputed value takes the layout of the original.
    fn follow_originals(&mut self) {
        for id in self.graph.value_ids() {
            let Role::RematOf(of) = self.graph.value(id).role else { continue };
            if self.graph.ty(of).shape != self.graph.ty(id).shape {
                continue;
            }
            let (to, from) = (id.index(), of.index());
            self.axes[to] = self.axes[from].clone();
            self.open[to] = self.open[from].clone();
            self.blocked[to] = self.blocked[from].clone();
            self.by_element[to] = self.by_element[from].clone();
            let cause = |axes: &AxisList| (!axes.is_empty()).then_some(Cause::RematOf(of));
            self.causes[to] = self.axes[to].iter().map(cause).collect();
            self.touch(id);
        }
    }

    /// A gradient starts from the layout of its value, unless its own layout is known. The gradient
    /// of an annotated parameter takes and keeps the layout in which the optimizer reads the
    /// parameter: that of the optimizer state, if there is one.
    fn follow_gradients(&mut self) {
        let mut read_as: Vec<ValueId> = self.graph.value_ids().collect();
        for &input in &self.graph.inputs {
            if let Role::StateOf(parameter) = self.graph.value(input).role
                && self.graph.ty(parameter).shape == self.graph.ty(input).shape
            {
                read_as[parameter.index()] = input;
            }
        }
        for id in self.graph.value_ids() {
            let Role::GradOf(of) = self.graph.value(id).role else { continue };
            let source = read_as[of.index()];
            if self.graph.ty(source).shape != self.graph.ty(id).shape {
                continue;
            }
            let of_parameter = self.graph.value(of).role == Role::Param;
            if of_parameter {
                let blocked = self.blocked[source.index()].clone();
                self.blocked[id.index()].extend(blocked);
            }
            for dim in 0..self.graph.ty(id).rank() {
                let axes = self.axes[source.index()][dim].clone();
                if self.axes[id.index()][dim].is_empty()
                    && self.open[id.index()][dim]
                    && self.is_free(id, &axes)
                {
                    if !axes.is_empty() {
                        self.keep_granularity(source, id, &axes);
                        self.axes[id.index()][dim] = axes;
                        self.causes[id.index()][dim] = Some(Cause::GradientOf(of));
                    }
                    self.open[id.index()][dim] = !of_parameter || self.open[source.index()][dim];
                }
            }
            self.touch(id);
        }
    }

    /// A value that replaces an input at the next step has the input's layout, and vice versa.
    fn follow_aliases(&mut self) {
        for &(input, output) in &self.graph.aliases {
            let (input, output) = (self.graph.inputs[input], self.graph.outputs[output]);
            for (to, from) in [(output, input), (input, output)] {
                for dim in 0..self.graph.ty(to).rank() {
                    let axes = self.axes[from.index()][dim].clone();
                    let free = self.is_free(to, &axes);
                    let take = self.open[to.index()][dim] && self.axes[to.index()][dim].is_empty() && free;
                    if take && !axes.is_empty() {
                        self.keep_granularity(from, to, &axes);
                        self.axes[to.index()][dim] = axes;
                        self.causes[to.index()][dim] = Some(Cause::Alias(from));
                        self.touch(to);
                    }
                }
            }
        }
    }
}
