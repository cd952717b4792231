//! Composites: named subgraphs with a decomposition into primitives, which defines their meaning.
//!
//! A composite may have a fast kernel (found by name during lowering) and its own rule; otherwise
//! its rule is derived from the decomposition. Its gradient is a composite too, `<name>.vjp`,
//! unless it must be inlined.

use crate::autodiff;
use crate::custom::CustomOp;
use crate::graph::{Graph, Role, ValueId};
use crate::op::Operation;
use crate::rule::{FactorKind, Rule};
use crate::traits::{ConstantOp, Traits};
use crate::{GraphBuilder, TensorType};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;
use std::sync::Arc;

/// A composite attribute.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Ints(Vec<i64>),
    DType(DType),
}

/// Attributes by name, in order.
pub type Attributes = IndexMap<String, Attribute>;

/// Access to attributes with a clear error: E132.
pub trait AttributesExt {
    /// A float; an integer counts as one.
    fn float(&self, name: &str) -> Result<f64>;
    /// An integer.
    fn int(&self, name: &str) -> Result<i64>;
    /// A boolean; absent is false.
    fn flag(&self, name: &str) -> bool;
    /// A list of integers; absent is empty.
    fn ints(&self, name: &str) -> Vec<i64>;
}

impl AttributesExt for Attributes {
    fn float(&self, name: &str) -> Result<f64> {
        match self.get(name) {
            Some(Attribute::Float(v)) => Ok(*v),
            Some(Attribute::Int(v)) => Ok(*v as f64),
            other => Err(missing(name, "a number", other)),
        }
    }
    fn int(&self, name: &str) -> Result<i64> {
        match self.get(name) {
            Some(Attribute::Int(v)) => Ok(*v),
            other => Err(missing(name, "an integer", other)),
        }
    }
    fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Attribute::Bool(true)))
    }
    fn ints(&self, name: &str) -> Vec<i64> {
        match self.get(name) {
            Some(Attribute::Ints(v)) => v.clone(),
            _ => Vec::new(),
        }
    }
}

fn missing(name: &str, expected: &str, found: Option<&Attribute>) -> Box<Diagnostic> {
    Diagnostic::new("E132", format!("composite attribute `{name}` is missing or has the wrong kind"))
        .expected(expected)
        .found(found.map_or("nothing".to_string(), |a| format!("{a:?}")))
}

/// Builds a template's gradient: attributes, builder, operands, the results' cotangents.
pub type Gradient =
    fn(&Attributes, &mut GraphBuilder, &[ValueId], &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>>;

/// A kind of composite that can be built for any operand types: its decomposition written as model code.
#[derive(Debug)]
pub struct Template {
    /// `partita.softmax`.
    pub name: &'static str,
    /// Names of the operands, in order.
    pub arguments: &'static [&'static str],
    /// The number of trailing arguments that are optional.
    pub optional: usize,
    /// Builds the decomposition over the operands.
    pub build: fn(&Attributes, &mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
    /// Builds the cotangents of all operands from the operands and the results' cotangents, some of
    /// which may be missing. It is given if it is shorter than the derivative of the decomposition;
    /// `None` differentiates the decomposition.
    pub gradient: Option<Gradient>,
    /// Its own rule; `None` derives one.
    pub rule: Option<fn(&Attributes, &[&TensorType], &[&TensorType]) -> Rule>,
    /// The position of the operand that holds the offset of each dimension of result 0 in the
    /// global tensor, if there is one.
    pub offsets_operand: Option<usize>,
}

/// The origin of a composite, from which it is rebuilt for other shapes.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A template, applied to operand types and attributes.
    Template(&'static Template),
    /// A subgraph outlined by a schedule or read from text.
    Outlined,
    /// The gradient of another composite: operands are its operands, then the cotangents of the results `seeded`;
    /// results are the cotangents of the operands `wanted`.
    Vjp {
        /// The composite that is differentiated.
        base: Arc<CompositeDefinition>,
        /// Result positions with a cotangent.
        seeded: Vec<usize>,
        /// Operand positions whose cotangent is produced.
        wanted: Vec<usize>,
    },
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Origin::Template(a), Origin::Template(b)) => a.name == b.name,
            (Origin::Outlined, Origin::Outlined) => true,
            (
                Origin::Vjp { base: a, seeded: s, wanted: w },
                Origin::Vjp { base: b, seeded: t, wanted: x },
            ) => a == b && s == t && w == x,
            _ => false,
        }
    }
}

/// E245 unless the number of operands fits the arguments, of which some at the end are optional.
pub(crate) fn check_arguments(
    name: &str,
    arguments: &[&str],
    optional: usize,
    operands: &[TensorType],
) -> Result<()> {
    let required = arguments.len() - optional;
    if (required..=arguments.len()).contains(&operands.len()) {
        return Ok(());
    }
    let least = if optional > 0 { format!("{required} to ") } else { String::new() };
    Err(Diagnostic::new("E245", format!("a wrong number of operands for `{name}`"))
        .expected(format!("{least}{} operands: {}", arguments.len(), arguments.join(", ")))
        .found(operands.len().to_string()))
}

/// A composite's definition for given operand types.
#[derive(Clone, Debug)]
pub struct CompositeDefinition {
    /// `partita.softmax`.
    pub name: String,
    /// The subgraph that defines its meaning.
    pub decomposition: Graph,
    /// Its origin.
    pub origin: Origin,
}

impl PartialEq for CompositeDefinition {
    /// Equal if shared: decompositions that apply composites are not compared as expanded trees.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.name == other.name
                && self.origin == other.origin
                && self.decomposition == other.decomposition)
    }
}

impl CompositeDefinition {
    /// A template applied to operand types. E245 for a wrong number of them.
    pub fn from_template(
        template: &'static Template,
        attributes: &Attributes,
        operands: &[TensorType],
    ) -> Result<CompositeDefinition> {
        check_arguments(template.name, template.arguments, template.optional, operands)?;
        let mut builder = GraphBuilder::new(template.name);
        let inputs: Vec<ValueId> = operands
            .iter()
            .enumerate()
            .map(|(i, ty)| builder.input(&format!("arg{i}"), ty.clone(), Role::Activation))
            .collect();
        let outputs = (template.build)(attributes, &mut builder, &inputs)?;
        let decomposition = crate::graph_edit::prune(builder.finish(outputs));
        Ok(CompositeDefinition {
            name: template.name.to_string(),
            decomposition,
            origin: Origin::Template(template),
        })
    }

    /// The gradient composite for these results and operands.
    pub fn vjp(
        self: &Arc<Self>,
        attributes: &Attributes,
        seeded: &[usize],
        wanted: &[usize],
    ) -> Result<CompositeDefinition> {
        let decomposition = match &self.origin {
            Origin::Template(Template { gradient: Some(gradient), .. }) => {
                autodiff::vjp_by(&self.decomposition, seeded, wanted, |builder, operands, cotangents| {
                    let all = gradient(attributes, builder, operands, cotangents)?;
                    Ok(wanted.iter().map(|&operand| all[operand]).collect())
                })?
            }
            _ => autodiff::vjp(&self.decomposition, seeded, wanted)?,
        };
        Ok(CompositeDefinition {
            name: format!("{}.vjp", self.name),
            decomposition,
            origin: Origin::Vjp { base: self.clone(), seeded: seeded.to_vec(), wanted: wanted.to_vec() },
        })
    }

    /// The same composite over other operand types: the local version for a shard.
    pub fn resized(&self, attributes: &Attributes, operands: &[TensorType]) -> Result<CompositeDefinition> {
        match &self.origin {
            Origin::Template(template) => CompositeDefinition::from_template(template, attributes, operands),
            Origin::Vjp { base, seeded, wanted } => {
                let count = base.decomposition.inputs.len();
                Arc::new(base.resized(attributes, &operands[..count])?).vjp(attributes, seeded, wanted)
            }
            Origin::Outlined => Ok(CompositeDefinition {
                name: self.name.clone(),
                decomposition: derived::resize(&self.decomposition, operands)?,
                origin: Origin::Outlined,
            }),
        }
    }

    /// The factor rule: the template's own, the transposed rule of the base for a gradient, or a
    /// derived one.
    pub fn rule(&self, attributes: &Attributes, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        match &self.origin {
            Origin::Template(Template { rule: Some(rule), .. }) => rule(attributes, operands, results),
            Origin::Template(_) | Origin::Outlined => derived::rule(&self.decomposition),
            Origin::Vjp { base, seeded, wanted } => {
                let base_results: Vec<&TensorType> =
                    base.decomposition.outputs.iter().map(|&v| base.decomposition.ty(v)).collect();
                let count = base.decomposition.inputs.len();
                let rule = base.rule(attributes, &operands[..count], &base_results);
                transposed_rule(&rule, seeded, wanted)
            }
        }
    }
}

/// The rule of a gradient from the rule of its base: an operand that lacks a factor is shared along
/// it, so its cotangent is summed over that factor.
fn transposed_rule(base: &Rule, seeded: &[usize], wanted: &[usize]) -> Rule {
    let mut rule = Rule {
        factors: base.factors.clone(),
        operands: base.operands.iter().chain(seeded.iter().map(|&o| &base.results[o])).cloned().collect(),
        results: wanted.iter().map(|&i| base.operands[i].clone()).collect(),
        linear: Vec::new(),
    };
    for (id, factor) in rule.factors.iter_mut().enumerate() {
        let in_all_results = rule.results.iter().all(|dims| dims.iter().any(|d| d.contains(&id)));
        factor.kind = match factor.kind {
            FactorKind::Pass | FactorKind::Reduce(Combiner::Sum) if in_all_results => FactorKind::Pass,
            FactorKind::Pass | FactorKind::Reduce(Combiner::Sum) => FactorKind::Reduce(Combiner::Sum),
            _ => FactorKind::Whole,
        };
    }
    // Linear in all cotangents together.
    rule.linear_in(&(base.operands.len()..base.operands.len() + seeded.len()).collect::<Vec<usize>>())
}

/// The composites known to a compilation, by name: used by the parser, the schedule and lowering. A
/// value, never a global.
#[derive(Clone, Debug)]
pub struct Registry {
    templates: IndexMap<&'static str, &'static Template>,
    pub(crate) custom: IndexMap<String, CustomOp>,
}

impl Registry {
    /// No composites.
    pub fn empty() -> Registry {
        Registry { templates: IndexMap::new(), custom: IndexMap::new() }
    }

    /// Adds a template, replacing one of the same name.
    pub fn add(&mut self, template: &'static Template) {
        self.templates.insert(template.name, template);
    }

    /// The template with this name.
    pub fn template(&self, name: &str) -> Option<&'static Template> {
        self.templates.get(name).copied()
    }

    /// Every name: templates, then custom ops, each in order of addition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().copied().chain(self.custom.keys().map(String::as_str))
    }
}

/// Rules and shapes of composites without a template, derived from their decomposition.
mod derived {
    use super::*;
    use crate::graph::Node;
    use crate::op::LocalContext;
    use crate::{Factor, FactorId, Op};

    /// Dimensions of values that must be sharded in the same way: (value, dim) numbered densely and
    /// joined by union-find.
    struct Slots {
        first: Vec<usize>,
        parent: Vec<usize>,
        blocked: Vec<bool>,
    }

    impl Slots {
        fn of(graph: &Graph) -> Slots {
            let mut first = Vec::with_capacity(graph.values.len());
            let mut count = 0;
            for value in &graph.values {
                first.push(count);
                count += value.ty.rank();
            }
            let mut slots = Slots { first, parent: (0..count).collect(), blocked: vec![false; count] };
            for node in &graph.nodes {
                let rule = node_rule(graph, node);
                let mut seen: Vec<Option<usize>> = vec![None; rule.factors.len()];
                for (value, dims) in tensors(node, &rule) {
                    for (dim, factors) in dims.iter().enumerate() {
                        let slot = slots.first[value.index()] + dim;
                        match factors.as_slice() {
                            [factor] => {
                                if let Some(other) = seen[*factor] {
                                    slots.unite(slot, other);
                                }
                                seen[*factor] = Some(slot);
                            }
                            // Compound or unmapped dimensions must not be sharded.
                            _ => slots.block(slot),
                        }
                    }
                }
                let has_offsets =
                    matches!(&node.op, Op::Composite(composite) if composite.offsets_operand().is_some());
                // Ops that count or choose by position need the offset of the shard.
                for &result in &node.results {
                    for dim in 0..graph.ty(result).rank() {
                        let looks_at_places = match graph.traits(node) {
                            Traits::Iota { dim: counted } => counted == dim,
                            Traits::Constant(ConstantOp::OfAll(constant)) => !constant.value.is_splat(),
                            Traits::Constant(ConstantOp::ByRank(constant)) => !constant.values.is_splat(),
                            Traits::Elementwise(_) | Traits::View(_) | Traits::Opaque => has_offsets,
                            Traits::Collective(_) | Traits::Refused => false,
                        };
                        if looks_at_places {
                            let slot = slots.first[result.index()] + dim;
                            slots.block(slot);
                        }
                    }
                }
                // So do lookups by index: dimensions that indices address, and sums over updates,
                // for which only one rank may start from the operand.
                if matches!(node.op, Op::Gather(_) | Op::Scatter(_)) {
                    let passes = |factor: &FactorId| rule.factors[*factor].kind == FactorKind::Pass;
                    let windows =
                        if matches!(node.op, Op::Gather(_)) { &rule.results[0] } else { &rule.operands[2] };
                    for (operand, (&value, dims)) in node.operands.iter().zip(&rule.operands).enumerate() {
                        for (dim, factors) in dims.iter().enumerate() {
                            let addressed = operand == 0
                                && !factors.iter().all(|f| windows.iter().any(|d| d.contains(f)));
                            if addressed || !factors.iter().all(passes) {
                                let slot = slots.first[value.index()] + dim;
                                slots.block(slot);
                            }
                        }
                    }
                }
            }
            slots
        }
        fn root(&self, mut slot: usize) -> usize {
            while self.parent[slot] != slot {
                slot = self.parent[slot];
            }
            slot
        }
        fn unite(&mut self, a: usize, b: usize) {
            let (a, b) = (self.root(a), self.root(b));
            let blocked = self.blocked[a] || self.blocked[b];
            self.parent[a.max(b)] = a.min(b);
            self.blocked[a.min(b)] = blocked;
        }
        fn block(&mut self, slot: usize) {
            let root = self.root(slot);
            self.blocked[root] = true;
        }
        fn class(&self, value: ValueId, dim: usize) -> usize {
            self.root(self.first[value.index()] + dim)
        }
    }

    fn node_rule(graph: &Graph, node: &Node) -> Rule {
        node.op.rule(&graph.operand_types(node), &graph.result_types(node))
    }

    fn tensors<'a>(
        node: &'a Node,
        rule: &'a Rule,
    ) -> impl Iterator<Item = (ValueId, &'a Vec<Vec<FactorId>>)> {
        let operands = node.operands.iter().copied().zip(&rule.operands);
        operands.chain(node.results.iter().copied().zip(&rule.results))
    }

    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Whole,
        Sharded,
        Partial(Combiner),
    }

    /// Shards one class of dimensions symbolically and returns the effect on the outputs; `None` if
    /// impossible.
    fn shard_class(graph: &Graph, slots: &Slots, class: usize) -> Option<Vec<State>> {
        let has = |v: ValueId| (0..graph.ty(v).rank()).any(|d| slots.class(v, d) == class);
        let mut states = vec![State::Whole; graph.values.len()];
        for &input in &graph.inputs {
            if has(input) {
                states[input.index()] = State::Sharded;
            }
        }
        for node in &graph.nodes {
            let rule = node_rule(graph, node);
            let in_class = |v: ValueId, dim: usize| slots.class(v, dim) == class;
            let mut factor: Option<FactorId> = None;
            for (value, dims) in tensors(node, &rule) {
                for (dim, factors) in dims.iter().enumerate() {
                    if let ([f], true) = (factors.as_slice(), in_class(value, dim)) {
                        if factor.is_some_and(|other| other != *f) {
                            return None;
                        }
                        factor = Some(*f);
                    }
                }
            }
            let partial: Vec<usize> = (0..node.operands.len())
                .filter(|&i| matches!(states[node.operands[i].index()], State::Partial(_)))
                .collect();
            let outcome = match (factor, partial.first()) {
                (Some(_), Some(_)) => return None,
                (None, Some(&first)) => {
                    let state = states[node.operands[first].index()];
                    let sum = state == State::Partial(Combiner::Sum);
                    let same = partial.iter().all(|&i| states[node.operands[i].index()] == state);
                    let flows = |g: &crate::LinearGroup| g.operands == partial && (sum || g.any_combiner);
                    if !same || !rule.linear.iter().any(flows) {
                        return None;
                    }
                    state
                }
                (Some(f), None) => match rule.factors[f].kind {
                    FactorKind::Pass => State::Whole,
                    FactorKind::Reduce(combiner) => State::Partial(combiner),
                    FactorKind::Exchange | FactorKind::Window(_) => return None,
                    FactorKind::Shift | FactorKind::Whole => return None,
                },
                (None, None) => State::Whole,
            };
            for &result in &node.results {
                states[result.index()] = if has(result) { State::Sharded } else { outcome };
            }
        }
        Some(graph.outputs.iter().map(|v| states[v.index()]).collect())
    }

    pub(super) fn rule(graph: &Graph) -> Rule {
        let slots = Slots::of(graph);
        let mut rule = Rule::default();
        let mut factor_of_class: IndexMap<usize, FactorId> = IndexMap::new();
        let mut dims_of = |rule: &mut Rule, value: ValueId| -> Vec<Vec<FactorId>> {
            let shape = graph.ty(value).shape.clone();
            let mut dims: Vec<Vec<FactorId>> = Vec::new();
            for (dim, size) in shape.into_iter().enumerate() {
                let class = slots.class(value, dim);
                let factor = *factor_of_class.entry(class).or_insert_with(|| {
                    let kind = if slots.blocked[class] {
                        FactorKind::Whole
                    } else {
                        class_kind(graph, &slots, class)
                    };
                    rule.factors.push(Factor { size, kind });
                    rule.factors.len() - 1
                });
                // A tensor whose two dimensions move together cannot be sharded along either.
                if dims.iter().any(|d| d.contains(&factor)) {
                    rule.factors[factor].kind = FactorKind::Whole;
                }
                dims.push(vec![factor]);
            }
            dims
        };
        let operands = graph.inputs.iter().map(|&v| dims_of(&mut rule, v)).collect();
        let results = graph.outputs.iter().map(|&v| dims_of(&mut rule, v)).collect();
        Rule { operands, results, ..rule }
    }

    fn class_kind(graph: &Graph, slots: &Slots, class: usize) -> FactorKind {
        let Some(states) = shard_class(graph, slots, class) else { return FactorKind::Whole };
        let lacking: Vec<State> = states.into_iter().filter(|s| *s != State::Sharded).collect();
        match lacking.first() {
            None | Some(State::Whole) if lacking.iter().all(|s| *s == State::Whole) => FactorKind::Pass,
            Some(State::Partial(combiner)) if lacking.iter().all(|s| *s == State::Partial(*combiner)) => {
                FactorKind::Reduce(*combiner)
            }
            _ => FactorKind::Whole,
        }
    }

    /// The decomposition over smaller inputs: all dimensions of a class shrink together.
    pub(super) fn resize(graph: &Graph, operands: &[TensorType]) -> Result<Graph> {
        let slots = Slots::of(graph);
        let mut extents: IndexMap<usize, usize> = IndexMap::new();
        for (&input, ty) in graph.inputs.iter().zip(operands) {
            for (dim, &extent) in ty.shape.iter().enumerate() {
                extents.insert(slots.class(input, dim), extent);
            }
        }
        let local = |v: ValueId| {
            let ty = graph.ty(v);
            let shape: Vec<usize> = (0..ty.rank())
                .map(|d| extents.get(&slots.class(v, d)).copied().unwrap_or(ty.shape[d]))
                .collect();
            ty.with_shape(shape)
        };
        let mut builder = GraphBuilder::new(&graph.name);
        let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
        for &input in &graph.inputs {
            map[input.index()] =
                Some(builder.input(&graph.value(input).name, local(input), Role::Activation));
        }
        for node in &graph.nodes {
            let operands = node.operands.iter().map(|v| map[v.index()].expect("in order")).collect();
            let mut context = Resize {
                builder: &mut builder,
                operands,
                global_operands: node.operands.iter().map(|&v| graph.ty(v).clone()).collect(),
                global_results: node.results.iter().map(|&v| graph.ty(v).clone()).collect(),
                local_results: node.results.iter().map(|&v| local(v)).collect(),
            };
            let results = node.op.localise(&mut context)?;
            for (&old, new) in node.results.iter().zip(results) {
                map[old.index()] = Some(new);
            }
        }
        let outputs = graph.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect();
        Ok(builder.finish(outputs))
    }

    /// The local context of a resize: sizes change, positions do not (dimensions with
    /// position-dependent ops are blocked).
    struct Resize<'a> {
        builder: &'a mut GraphBuilder,
        operands: Vec<ValueId>,
        global_operands: Vec<TensorType>,
        global_results: Vec<TensorType>,
        local_results: Vec<TensorType>,
    }

    impl LocalContext for Resize<'_> {
        fn builder(&mut self) -> &mut GraphBuilder {
            self.builder
        }
        fn operands(&self) -> &[ValueId] {
            &self.operands
        }
        fn global_operand(&self, operand: usize) -> &TensorType {
            &self.global_operands[operand]
        }
        fn global_result(&self, result: usize) -> &TensorType {
            &self.global_results[result]
        }
        fn local_result(&self, result: usize) -> TensorType {
            self.local_results[result].clone()
        }
        fn is_sharded(&self, _: FactorId) -> bool {
            false
        }
        fn operand_offset(&mut self, _: usize, _: usize) -> Result<ValueId> {
            Ok(self.builder.scalar(DType::I64, 0.0))
        }
        fn result_offset(&mut self, _: usize, _: usize) -> Result<ValueId> {
            Ok(self.builder.scalar(DType::I64, 0.0))
        }
        fn leader(&mut self, _: &[FactorId]) -> Result<ValueId> {
            Ok(self.builder.scalar(DType::Bool, 1.0))
        }
    }
}
