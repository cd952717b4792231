//! Sharding propagation: from a few pinned layouts to a layout of every value.
//!
//! After Shardy: dimensions are projected to factors, axes spread along factors as far as all tensors of an op
//! agree, and are projected back, to a fixed point in both directions. Stages keep cause and effect apart: the
//! forward pass settles first, gradients start from the layout of what they are the gradient of, the optimizer
//! comes last, so that a sharded optimizer state never reshapes the model.

use crate::factors::{axes_of_factors, dim_sharding, may_split, overlaps};
use crate::units::{Units, rules_of};
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, FactorKind, Graph, NodeId, Op, Phase, Role, Rule, ValueId};
use partita_mesh::{AxisList, AxisRef, Mesh, Sharding};

/// Why a dimension of a value has its axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Asked for, with who asked.
    Pinned(String),
    /// Spread through this node from another value.
    Through {
        /// The node that ties both.
        node: NodeId,
        /// Where the axes came from.
        from: ValueId,
    },
    /// A gradient follows the value it belongs to.
    GradientOf(ValueId),
    /// The value replaces an input at the next step.
    Alias(ValueId),
}

/// A layout for every value of a graph, with its reasons.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// The mesh all layouts refer to.
    pub mesh: Mesh,
    /// The layout of each value, by id; never partial.
    pub shardings: Vec<Sharding>,
    /// For each value and dimension, what put the axes there.
    pub causes: Vec<Vec<Option<Cause>>>,
}

impl Layouts {
    /// The layout of a value.
    pub fn sharding(&self, value: ValueId) -> &Sharding {
        &self.shardings[value.index()]
    }
}

struct State<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    rules: &'a [Rule],
    axes: Vec<Vec<AxisList>>,
    open: Vec<Vec<bool>>,
    blocked: Vec<Vec<AxisRef>>,
    causes: Vec<Vec<Option<Cause>>>,
}

/// Gives every value of `graph` a layout on `mesh`. Pins come from value annotations, sharding constraints and
/// output annotations. E210 when a pin does not fit its value.
pub fn propagate(graph: &Graph, mesh: &Mesh) -> Result<Layouts> {
    let rules = rules_of(graph);
    let units = Units::of(graph, &rules);
    propagate_with(graph, mesh, &rules, &units)
}

/// As [`propagate`], with rules and units already at hand.
pub fn propagate_with(graph: &Graph, mesh: &Mesh, rules: &[Rule], units: &Units) -> Result<Layouts> {
    let count = graph.values.len();
    let mut state = State {
        graph,
        mesh,
        rules,
        axes: graph.values.iter().map(|v| vec![AxisList::new(); v.ty.rank()]).collect(),
        open: graph.values.iter().map(|v| vec![true; v.ty.rank()]).collect(),
        blocked: vec![Vec::new(); count],
        causes: graph.values.iter().map(|v| vec![None; v.ty.rank()]).collect(),
    };
    for id in graph.value_ids() {
        if let Some(annotation) = &graph.value(id).annotation {
            state.pin(id, annotation)?;
        }
    }
    for node in &graph.nodes {
        if let Op::ShardingConstraint(constraint) = &node.op {
            state.pin(node.results[0], &constraint.annotation)?;
        }
        if let Op::ManualComputation(manual) = &node.op {
            for (&result, sharding) in node.results.iter().zip(&manual.out_shardings) {
                let open = vec![false; sharding.dims.len()];
                let origin = "manual computation".to_string();
                let annotation = Annotation {
                    mesh: manual.mesh,
                    sharding: sharding.clone(),
                    open,
                    replicated: vec![],
                    origin,
                };
                state.pin(result, &annotation)?;
            }
        }
    }
    for (position, annotation) in graph.output_annotations.iter().enumerate() {
        if let Some(annotation) = annotation {
            state.pin(graph.outputs[position], annotation)?;
        }
    }
    let forward = |node: NodeId| graph.node(node).phase == Phase::Forward;
    let views = |node: NodeId| is_view(&rules[node.index()]);
    let not_update = |node: NodeId| graph.node(node).phase != Phase::Update;
    state.settle(&|node| forward(node) && views(node));
    state.settle(&forward);
    state.follow_gradients();
    state.settle(&not_update);
    state.follow_aliases();
    state.settle(&|_| true);
    state.follow_aliases();
    state.settle(&|_| true);
    let mut shardings = Vec::with_capacity(count);
    for id in graph.value_ids() {
        let mut sharding = Sharding::replicated(graph.ty(id).rank());
        for (dim, axes) in state.axes[id.index()].iter().enumerate() {
            sharding.dims[dim].axes = axes.clone();
            sharding.dims[dim].unit = units.unit(id, dim);
        }
        sharding.normalise(mesh, &graph.ty(id).shape);
        shardings.push(sharding);
    }
    Ok(Layouts { mesh: mesh.clone(), shardings, causes: state.causes })
}

/// An op all of whose factors pass: elementwise functions and movements. They spread layouts first.
fn is_view(rule: &Rule) -> bool {
    rule.factors.iter().all(|f| f.kind == FactorKind::Pass) && rule.operands.len() <= 3
}

impl State<'_> {
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
        for dim in 0..ty.rank() {
            let slot = &mut self.axes[value.index()][dim];
            if slot.is_empty() {
                *slot = sharding.dims[dim].axes.clone();
            }
            self.open[value.index()][dim] &= annotation.open.get(dim).copied().unwrap_or(false);
            if !slot.is_empty() || !annotation.open.get(dim).copied().unwrap_or(false) {
                self.causes[value.index()][dim] = Some(Cause::Pinned(annotation.origin.clone()));
            }
        }
        self.blocked[value.index()].extend(annotation.replicated.iter().copied());
        Ok(())
    }

    /// Sweeps over the nodes that `take_part`, forwards and backwards, until nothing changes. Lists of axes only
    /// grow, so this ends.
    fn settle(&mut self, take_part: &dyn Fn(NodeId) -> bool) {
        loop {
            let mut changed = false;
            for id in self.graph.node_ids().chain(self.graph.node_ids().rev()) {
                if take_part(id) {
                    changed |= self.spread(id);
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// One op: for each factor, the longest list of axes that no tensor contradicts, given to every tensor that
    /// can take it. Larger tensors speak first.
    fn spread(&mut self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let rule = &self.rules[id.index()];
        if matches!(node.op, Op::ManualComputation(_)) {
            return false;
        }
        let tensors: Vec<(ValueId, &Vec<Vec<usize>>)> = node
            .operands
            .iter()
            .copied()
            .zip(&rule.operands)
            .chain(node.results.iter().copied().zip(&rule.results))
            .collect();
        // (factor, axes, tensor) as each tensor has it now.
        let mut lists: Vec<(usize, AxisList, ValueId)> = Vec::new();
        for (value, dims) in &tensors {
            for (dim, factors) in dims.iter().enumerate() {
                let axes = &self.axes[value.index()][dim];
                for (factor, list) in axes_of_factors(rule, factors, axes) {
                    if may_split(rule, factor) && !list.is_empty() {
                        lists.push((factor, list, *value));
                    }
                }
            }
        }
        lists.sort_by_key(|(_, _, value)| std::cmp::Reverse(self.graph.ty(*value).bytes()));
        let mut chosen: Vec<Option<(AxisList, ValueId)>> = vec![None; rule.factors.len()];
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
        let mut changed = false;
        for (factor, choice) in chosen.iter().enumerate() {
            let Some((list, from)) = choice else { continue };
            for (value, dims) in &tensors {
                changed |= self.extend(id, *value, dims, factor, list, *from);
            }
        }
        changed
    }

    /// Gives `list` to the dimension of `value` that holds `factor`, as far as it can take it.
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
            let used = self.axes[value.index()].iter().flatten().any(|a| overlaps(a, &axis));
            let blocked = self.blocked[value.index()].iter().any(|a| overlaps(a, &axis));
            if used || blocked {
                break;
            }
            assignment[factor].push(axis);
            match dim_sharding(rule, factors, &assignment, 1) {
                Some(sharding) => {
                    self.axes[value.index()][dim] = sharding.axes;
                    self.causes[value.index()][dim].get_or_insert(Cause::Through { node, from });
                    grown = true;
                }
                None => break,
            }
        }
        grown
    }

    /// A gradient starts from the layout of its value, where nothing else is known of it. That of a pinned parameter
    /// has the layout in which the optimizer reads it, the state's where there is one, and keeps it.
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
                if self.axes[id.index()][dim].is_empty() && self.open[id.index()][dim] {
                    if !axes.is_empty() {
                        self.axes[id.index()][dim] = axes;
                        self.causes[id.index()][dim] = Some(Cause::GradientOf(of));
                    }
                    self.open[id.index()][dim] = !of_parameter || self.open[source.index()][dim];
                }
            }
        }
    }

    /// What replaces an input at the next step has the input's layout, and the other way round.
    fn follow_aliases(&mut self) {
        for &(input, output) in &self.graph.aliases {
            let (input, output) = (self.graph.inputs[input], self.graph.outputs[output]);
            for (to, from) in [(output, input), (input, output)] {
                for dim in 0..self.graph.ty(to).rank() {
                    let axes = self.axes[from.index()][dim].clone();
                    let free = !axes.iter().any(|axis| {
                        self.blocked[to.index()].iter().any(|b| overlaps(axis, b))
                            || self.axes[to.index()].iter().flatten().any(|b| overlaps(axis, b))
                    });
                    let take = self.open[to.index()][dim] && self.axes[to.index()][dim].is_empty() && free;
                    if take && !axes.is_empty() {
                        self.axes[to.index()][dim] = axes;
                        self.causes[to.index()][dim] = Some(Cause::Alias(from));
                    }
                }
            }
        }
    }
}
