//! Composites: named subgraphs with a decomposition into primitives, which defines their meaning.
//!
//! A composite may have a fast kernel (found by name during lowering) and its own rule; otherwise
//! its rule is derived from the decomposition. Its gradient is a composite too, `<name>.vjp`,
//! unless it must be inlined or is written as nodes ([`Gradient`]).

use crate::autodiff;
use crate::custom::CustomOp;
use crate::graph::{Graph, Role, ValueId};
use crate::op::GradientContext;
use crate::rule::{FactorKind, Rule};
use crate::{GraphBuilder, TensorType};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;
use std::sync::Arc;

mod derived;

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

/// The gradient of a template, written out.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    /// One composite. The function builds the cotangents of all operands from attributes, operands and the results'
    /// cotangents, some of which may be missing.
    Composite(GradientComposite),
    /// Nodes of their own for each operand whose cotangent is wanted, as for a primitive. This suits products, whose
    /// cotangents share no work: those of weights can be computed later.
    Nodes(NodeGradients),
}

/// The gradient of an op with these attributes.
pub type NodeGradients = fn(&Attributes, &mut GradientContext) -> Result<Vec<Option<ValueId>>>;

/// Attributes, builder, operands and the results' cotangents to the operands' cotangents.
pub type GradientComposite =
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
    /// It is given if it is shorter than the derivative of the decomposition; `None` differentiates
    /// the decomposition.
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
            Origin::Template(Template { gradient: Some(Gradient::Composite(gradient)), .. }) => {
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

    /// Whether its operands have these types.
    fn takes(&self, operands: &[TensorType]) -> bool {
        let graph = &self.decomposition;
        graph.inputs.len() == operands.len()
            && graph.inputs.iter().zip(operands).all(|(&input, ty)| graph.ty(input) == ty)
    }

    /// The same composite over other operand types: the local version for a shard.
    pub fn resized(
        &self,
        attributes: &Attributes,
        operands: &[TensorType],
    ) -> Result<Arc<CompositeDefinition>> {
        Definitions::default().resized(self, attributes, operands)
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

/// The definitions of the composites of one graph: alike ones, such as those of the layers of a model, share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    known: Vec<(Attributes, Arc<CompositeDefinition>)>,
}

impl Definitions {
    /// A template applied to operand types.
    pub fn of_template(
        &mut self,
        template: &'static Template,
        attributes: &Attributes,
        operands: &[TensorType],
    ) -> Result<Arc<CompositeDefinition>> {
        let is_alike = |known: &CompositeDefinition| {
            matches!(known.origin, Origin::Template(other) if std::ptr::eq(other, template))
                && known.takes(operands)
        };
        self.known_or(attributes, is_alike, || {
            CompositeDefinition::from_template(template, attributes, operands).map(Arc::new)
        })
    }

    /// [`CompositeDefinition::vjp`].
    pub fn vjp(
        &mut self,
        base: &Arc<CompositeDefinition>,
        attributes: &Attributes,
        seeded: &[usize],
        wanted: &[usize],
    ) -> Result<Arc<CompositeDefinition>> {
        let is_alike = |known: &CompositeDefinition| match &known.origin {
            Origin::Vjp { base: other, seeded: own_seeded, wanted: own_wanted } => {
                Arc::ptr_eq(base, other) && own_seeded == seeded && own_wanted == wanted
            }
            Origin::Template(_) | Origin::Outlined => false,
        };
        self.known_or(attributes, is_alike, || base.vjp(attributes, seeded, wanted).map(Arc::new))
    }

    /// [`CompositeDefinition::resized`].
    pub fn resized(
        &mut self,
        definition: &CompositeDefinition,
        attributes: &Attributes,
        operands: &[TensorType],
    ) -> Result<Arc<CompositeDefinition>> {
        match &definition.origin {
            Origin::Template(template) => self.of_template(template, attributes, operands),
            Origin::Vjp { base, seeded, wanted } => {
                let count = base.decomposition.inputs.len();
                let base = self.resized(base, attributes, &operands[..count])?;
                self.vjp(&base, attributes, seeded, wanted)
            }
            Origin::Outlined => Ok(Arc::new(CompositeDefinition {
                name: definition.name.clone(),
                decomposition: derived::resize(&definition.decomposition, operands)?,
                origin: Origin::Outlined,
            })),
        }
    }

    fn known_or(
        &mut self,
        attributes: &Attributes,
        is_alike: impl Fn(&CompositeDefinition) -> bool,
        make: impl FnOnce() -> Result<Arc<CompositeDefinition>>,
    ) -> Result<Arc<CompositeDefinition>> {
        let alike = self.known.iter().find(|(own, known)| is_alike(known) && own == attributes);
        if let Some((_, known)) = alike {
            return Ok(known.clone());
        }
        let made = make()?;
        self.known.push((attributes.clone(), made.clone()));
        Ok(made)
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
