//! Tracks the layouts in which each value is materialised, and picks the cheapest source for a
//! reshard.

use super::{Emitter, Held, Place, Span, Stop, place_of, span_of};
use crate::assign::Reshards;
use crate::partition::Move;
use partita_ir::ops::{BroadcastInDim, Constant};
use partita_ir::{Graph, Node, Op, Phase, Role, ValueId};
use partita_mesh::{AxisList, AxisRef, Sharding, Step};

/// From so many microbatches on, a collective that runs once a step is priced at zero, so that layouts do not depend on the
/// number of microbatches.
const MANY: usize = 3;

/// The reshards around one node.
pub(super) struct NodeReshards<'a, 'b> {
    pub emitter: &'b mut Emitter<'a>,
    pub node: &'a Node,
    pub span: Span,
}

impl Reshards for NodeReshards<'_, '_> {
    fn fetch_s(&mut self, operand: usize, required: &Sharding) -> f64 {
        self.emitter.fetch_s(self.node.operands[operand], required, self.span)
    }

    fn settle_s(&mut self, result: usize, produced: &Sharding) -> f64 {
        let (result, layouts) = (self.node.results[result], self.emitter.layouts);
        let kept = self.emitter.kept(result, produced);
        let later_s = self.emitter.reshard_s(result, &kept, layouts.sharding(result));
        // A gradient that no plan keeps sharded is completed once, when its microbatches are summed.
        let is_completed_once =
            self.emitter.summed_to[result.index()].is_some_and(|gradient| !gradient.is_pinned);
        let share = match self.emitter.microbatches {
            _ if !is_completed_once => 1.0,
            few if few < MANY => 1.0 / few as f64,
            _ => 0.0,
        };
        self.emitter.reshard_s(result, produced, &kept) + later_s * share
    }
}

/// The gradient of a parameter, to which that of a microbatch is added.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    parameter: ValueId,
    /// Whether a plan says the layout of the sum, or that of the gradient of each microbatch.
    is_pinned: bool,
}

/// For each value of the backward pass of a microbatch, the gradient to which it is summed up.
pub(super) fn summed_to(graph: &Graph) -> Vec<Option<Gradient>> {
    let mut summed_to: Vec<Option<Gradient>> =
        graph.value_ids().map(|value| gradient(graph, value)).collect();
    for node in graph.nodes.iter().rev().filter(|node| node.phase == Phase::WeightGrad) {
        let Some(gradient) = node.results.iter().find_map(|result| summed_to[result.index()]) else {
            continue;
        };
        for &operand in &node.operands {
            summed_to[operand.index()].get_or_insert(gradient).is_pinned |= gradient.is_pinned;
        }
    }
    let is_of_microbatch = |value: ValueId| {
        let definition = graph.value(value).definition.map(|(node, _)| graph.node(node));
        definition.is_some_and(|node| node.phase == Phase::WeightGrad && node.microbatch.is_some())
    };
    graph
        .value_ids()
        .filter(|&value| !is_of_microbatch(value))
        .for_each(|value| summed_to[value.index()] = None);
    summed_to
}

/// What a value is the gradient of, as a sum or in one microbatch, if that is a parameter.
fn gradient(graph: &Graph, value: ValueId) -> Option<Gradient> {
    let value = graph.value(value);
    match value.role {
        Role::GradOf(parameter) if graph.value(parameter).role == Role::Param => {
            Some(Gradient { parameter, is_pinned: value.annotation.is_some() })
        }
        _ => None,
    }
}

impl Emitter<'_> {
    /// The layout in which a result is held that an op produces in this one: the propagated one. Only partial values wait
    /// for a reader. Of gradients that a plan keeps sharded each rank has its shard alone, since these must not be held in
    /// full; over other axes they stay partial too, while microbatches add up. So do other gradients over axes that do not
    /// shard their parameters, or only store them in shards: over others each microbatch adds to a shard.
    pub(super) fn kept(&self, value: ValueId, produced: &Sharding) -> Sharding {
        let mut kept = self.layouts.sharding(value).clone();
        let is_pinned = gradient(self.graph, value).is_some_and(|gradient| gradient.is_pinned);
        let reduced = match self.summed_to[value.index()] {
            _ if is_pinned => kept.sharded_axes(),
            Some(Gradient { parameter, is_pinned: false }) => {
                let sharded = self.layouts.sharding(parameter).sharded_axes().into_iter();
                sharded.filter(|&axis| !self.layouts.cuts_by_element(parameter, axis)).collect()
            }
            Some(_) | None => AxisList::new(),
        };
        let waits = |axis: AxisRef| !reduced.iter().any(|other| other.overlaps(axis));
        let waiting: Vec<_> = produced.partial.iter().copied().filter(|&(axis, _)| waits(axis)).collect();
        if produced.is_partial() && !is_pinned && waiting.len() == produced.partial.len() {
            return produced.clone();
        }
        for dim in &mut kept.dims {
            dim.axes.retain(|axis| !waiting.iter().any(|(other, _)| other.overlaps(*axis)));
        }
        kept.partial.extend(waiting);
        kept
    }

    pub(super) fn hold(&mut self, value: ValueId, sharding: Sharding, local: ValueId, only: Option<Span>) {
        let source = self.graph.value(value);
        for builder in &mut self.builders {
            let target = builder.graph_mut().value_mut(local);
            if target.name.is_empty() {
                target.name = source.name.clone();
            }
        }
        self.held[value.index()].push(Held { sharding, local, only });
    }

    /// The cheapest held layout from which to reshard to `required`, with its time in seconds, and
    /// the propagated layout if the reshard should pass through it.
    fn route(&mut self, value: ValueId, required: &Sharding, span: Span) -> (usize, Option<Sharding>, f64) {
        let wanted = self.layouts.sharding(value).clone();
        let mut best: Option<(usize, Option<Sharding>, f64)> = None;
        for index in 0..self.held[value.index()].len() {
            let held = self.held[value.index()][index].clone();
            if held.only.is_some_and(|only| only != span) {
                continue;
            }
            // A partial value is completed in its propagated layout, where later readers find it.
            let via = (held.sharding.is_partial() && !required.is_partial()).then(|| wanted.clone());
            let seconds = match &via {
                Some(via) => {
                    self.reshard_s(value, &held.sharding, via) + self.reshard_s(value, via, required)
                }
                None => self.reshard_s(value, &held.sharding, required),
            };
            if best.as_ref().is_none_or(|b| seconds < b.2) {
                best = Some((index, via, seconds));
            }
        }
        best.expect("the main layout is always usable")
    }

    /// Seconds from one layout of a value to another.
    fn reshard_s(&mut self, value: ValueId, from: &Sharding, to: &Sharding) -> f64 {
        if from == to {
            return 0.0;
        }
        self.routes.of(self.cluster, self.mesh, self.graph.ty(value), [from, to]).seconds
    }

    pub(super) fn fetch_s(&mut self, value: ValueId, required: &Sharding, span: Span) -> f64 {
        if self.held[value.index()][0].sharding == *required || self.is_fill(value, required) {
            return 0.0;
        }
        let seconds = self.route(value, required, span).2;
        // A gathered copy serves every reader of this span; a copy in another layout serves one.
        let held = &self.held[value.index()][0].sharding;
        let only_gathered = !held.is_partial()
            && held.dims.iter().zip(&required.dims).all(|(h, r)| h.axes.starts_with(&r.axes));
        let readers = self.readers[value.index()].get(&span).copied().unwrap_or(1);
        if only_gathered { seconds / readers.max(1) as f64 } else { seconds }
    }

    /// The local value that holds `value` in the `required` layout, resharded if necessary.
    pub(super) fn fetch(
        &mut self,
        value: ValueId,
        required: &Sharding,
        reader: &Place,
    ) -> Result<ValueId, Stop> {
        let span = span_of(reader.phase, reader.microbatch);
        if self.held[value.index()].iter().all(|held| held.sharding != *required)
            && self.is_fill(value, required)
        {
            return self.fill(value, required, reader);
        }
        let (mut from, via, _) = self.route(value, required, span);
        if let Some(via) = via {
            let place = self.place_of_resolution(value, reader);
            if self.passed[value.index()] {
                self.late.insert(value);
            }
            from = self.move_to(value, from, &via, &place, None)?;
        }
        if self.held[value.index()][from].sharding == *required {
            return Ok(self.held[value.index()][from].local);
        }
        let mut place = reader.clone();
        if let (Some((node, _)), false) = (self.graph.value(value).definition, required.is_partial()) {
            place.path = self.graph.node(node).path.clone();
        }
        let index = self.move_to(value, from, required, &place, Some(span))?;
        Ok(self.held[value.index()][index].local)
    }

    /// Whether all elements of a value are one number: it can be recomputed in any layout at no
    /// cost.
    fn is_fill(&self, value: ValueId, required: &Sharding) -> bool {
        let Some((node, _)) = self.graph.value(value).definition else { return false };
        let node = self.graph.node(node);
        let repeats = |scalar: ValueId| {
            self.graph.ty(scalar).rank() == 0 && !self.held[scalar.index()][0].sharding.is_partial()
        };
        let fills = matches!(&node.op, Op::Constant(constant) if constant.value.is_splat())
            || (matches!(node.op, Op::BroadcastInDim(_)) && repeats(node.operands[0]));
        fills && !required.is_partial()
    }

    /// Recomputes such a value in the required layout.
    fn fill(&mut self, value: ValueId, required: &Sharding, reader: &Place) -> Result<ValueId, Stop> {
        let types = self.local_types(required, self.graph.ty(value))?;
        let (node, _) = self.graph.value(value).definition.expect("fills are computed");
        let node = self.graph.node(node);
        self.enter(&Place { path: node.path.clone(), ..reader.clone() });
        let mut local = ValueId::new(0);
        for (class, ty) in types.into_iter().enumerate() {
            let (op, operands): (Op, Vec<ValueId>) = if let Op::Constant(constant) = &node.op {
                let value = constant.value.window(&vec![0; ty.rank()], &ty.shape);
                (Constant { value }.into(), Vec::new())
            } else {
                let scalar = self.held[node.operands[0].index()][0].local;
                (BroadcastInDim { shape: ty.shape.clone(), dims: vec![] }.into(), vec![scalar])
            };
            local = self.builders[class].push_typed(op, &operands, vec![ty])[0];
        }
        self.hold(value, required.clone(), local, None);
        Ok(local)
    }

    /// The place at which a partial value is completed: that of its node. The sum of a parameter's
    /// gradient belongs to the weight gradients.
    pub(super) fn place_of_resolution(&self, value: ValueId, reader: &Place) -> Place {
        let mut place = match self.graph.value(value).definition {
            Some((node, _)) => place_of(self.graph.node(node)),
            None => reader.clone(),
        };
        if let Role::GradOf(of) = self.graph.value(value).role
            && self.graph.value(of).role == Role::Param
            && place.phase.is_backward()
        {
            place.phase = Phase::WeightGrad;
        }
        place
    }

    /// Reshards a value from one held layout to another and holds the result. A gathered copy is
    /// kept within `span` only.
    pub(super) fn move_to(
        &mut self,
        value: ValueId,
        from: usize,
        to: &Sharding,
        place: &Place,
        span: Option<Span>,
    ) -> Result<usize, Stop> {
        let start = self.held[value.index()][from].clone();
        if start.sharding == *to {
            return Ok(from);
        }
        let ty = self.graph.ty(value).clone();
        self.enter(place);
        let mut before = start.sharding;
        let mut local = start.local;
        let mut gathered = start.only.is_some();
        let route = self.routes.of(self.cluster, self.mesh, &ty, [&before, to]);
        for step in &route.steps {
            gathered |= matches!(step.step, Step::AllGather { .. });
            local = self.emit_step(&before, step, &ty, local)?;
            let after = step.after.clone();
            let (step, to, reader) = (step.clone(), to.clone(), self.current);
            self.moves.push(Move { value, local, before, step, to, reader });
            before = after;
        }
        debug_assert!(before.same_layout(to, self.mesh, &ty.shape), "reshard ends where it should");
        let only = span.filter(|_| gathered);
        let index = self.held[value.index()].len();
        self.hold(value, to.clone(), local, only);
        Ok(index)
    }
}
