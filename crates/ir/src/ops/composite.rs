//! The op that applies a composite.

use crate::composite::{Attribute, Attributes, CompositeDefinition, Gradient, NodeGradients, Origin, Template};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::rule::Rule;
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::sync::Arc;

/// An application of a composite; its definition's decomposition defines the meaning.
#[derive(Clone, PartialEq, Debug)]
pub struct Composite {
    /// Attributes, shown in text and read by kernels.
    pub attributes: Attributes,
    /// Name, decomposition and origin.
    pub definition: Arc<CompositeDefinition>,
}

/// The attribute of a composite in which each row belongs to one of so many groups: a kernel does that part of the
/// arithmetic that its decomposition writes down.
pub const GROUPS: &str = "groups";

impl Composite {
    /// The part of the decomposition's arithmetic that is done: one in [`GROUPS`], all without that attribute.
    pub fn share(&self) -> f64 {
        match self.attributes.get(GROUPS) {
            Some(&Attribute::Int(groups)) if groups > 0 => 1.0 / groups as f64,
            _ => 1.0,
        }
    }

    fn node_gradients(&self) -> Option<NodeGradients> {
        match &self.definition.origin {
            Origin::Template(Template { gradient: Some(Gradient::Nodes(gradient)), .. }) => Some(*gradient),
            _ => None,
        }
    }

    /// A template applied to operand types.
    pub fn new(
        template: &'static Template,
        attributes: Attributes,
        operands: &[TensorType],
    ) -> Result<Composite> {
        let definition = CompositeDefinition::from_template(template, &attributes, operands)?;
        Ok(Composite { attributes, definition: Arc::new(definition) })
    }

    /// The operand that holds the offset of result 0 in the global tensor, for composites that
    /// depend on it.
    pub(crate) fn offsets_operand(&self) -> Option<usize> {
        match &self.definition.origin {
            Origin::Template(template) => template.offsets_operand,
            Origin::Outlined | Origin::Vjp { .. } => None,
        }
    }
}

impl Op {
    /// The composite, if the op is one.
    pub fn composite(&self) -> Option<&Composite> {
        if let Op::Composite(composite) = self { Some(composite) } else { None }
    }
}

impl Operation for Composite {
    fn name(&self) -> &str {
        &self.definition.name
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        let graph = &self.definition.decomposition;
        let expected: Vec<&TensorType> = graph.inputs.iter().map(|&v| graph.ty(v)).collect();
        if expected != operands {
            let list =
                |types: &[&TensorType]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
            return Err(Diagnostic::new("E117", format!("operands of composite `{}` have wrong types", self.name()))
                .expected(list(&expected))
                .found(list(operands)));
        }
        Ok(graph.outputs.iter().map(|&v| graph.ty(v).clone()).collect())
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        self.definition.rule(&self.attributes, operands, results)
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let graph = &self.definition.decomposition;
        let of_node = |n: &Node| n.op.cost(&graph.operand_types(n), &graph.result_types(n)).flops;
        let flops = graph.nodes.iter().map(of_node).sum::<f64>() * self.share();
        let bytes: usize = operands.iter().chain(results).map(|t| t.bytes()).sum();
        Cost { flops, bytes: bytes as f64 }
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        if let Some(gradient) = self.node_gradients() {
            return gradient(&self.attributes, context);
        }
        let present = |flags: Vec<bool>| {
            flags.iter().enumerate().filter(|(_, f)| **f).map(|(i, _)| i).collect::<Vec<usize>>()
        };
        let seeded = present(context.cotangents.iter().map(Option::is_some).collect());
        let wanted = present(context.wanted.to_vec());
        let definition =
            context.builder.definitions.vjp(&self.definition, &self.attributes, &seeded, &wanted)?;
        let mut operands = context.operands.to_vec();
        operands.extend(context.cotangents.iter().flatten());
        let mut attributes = self.attributes.clone();
        let list = |positions: &[usize]| Attribute::Ints(positions.iter().map(|&p| p as i64).collect());
        attributes.insert("wanted".into(), list(&wanted));
        attributes.insert("seeded".into(), list(&seeded));
        let gradient = Composite { attributes, definition };
        let results = context.builder.push(gradient, &operands)?;
        let mut gradients = vec![None; context.operands.len()];
        for (&operand, result) in wanted.iter().zip(results) {
            gradients[operand] = Some(result);
        }
        Ok(gradients)
    }

    /// Usually one composite, `<name>.vjp`.
    fn has_one_gradient(&self) -> bool {
        self.node_gradients().is_none()
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let operands: Vec<Literal> = operands.iter().map(|&l| l.clone()).collect();
        interpret::evaluate(&self.definition.decomposition, &operands)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Composite(other)
            if self.definition.name == other.definition.name && self.attributes == other.attributes))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        if let Some(position) = self.offsets_operand() {
            let rank = context.global_result(0).rank();
            let mut pieces = Vec::with_capacity(rank);
            for dim in 0..rank {
                let offset = context.result_offset(0, dim)?;
                pieces.push(context.builder().reshape(offset, &[1])?);
            }
            if rank > 0 {
                let dtype = DType::I64;
                let shift = context.builder().concatenate(&pieces, 0)?;
                let shift = context.builder().convert(shift, dtype)?;
                operands[position] = context.builder().add(operands[position], shift)?;
            }
        }
        let types: Vec<TensorType> = operands.iter().map(|&v| context.builder().ty(v).clone()).collect();
        let mut attributes = self.attributes.clone();
        if self.offsets_operand().is_some() {
            let shape = context.local_result(0).shape.iter().map(|&s| s as i64).collect();
            attributes.insert("shape".into(), Attribute::Ints(shape));
        }
        let definition = context.builder().definitions.resized(&self.definition, &attributes, &types)?;
        context.builder().push(Composite { attributes, definition }, &operands)
    }

    fn regions(&self) -> Vec<&Graph> {
        vec![&self.definition.decomposition]
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{
    Kind, OpParser, OpPrinter, Value, print_array, print_dictionary, print_f64, quote, unquote,
};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.composite", parse_composite)];

fn print_attribute(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Int(value) => format!("{value} : i64"),
        Attribute::Float(value) => format!("{} : f64", print_f64(*value)),
        Attribute::Bool(value) => value.to_string(),
        Attribute::Text(value) => quote(value),
        Attribute::Ints(values) => print_array(values),
        Attribute::DType(dtype) => dtype.mlir_name().to_string(),
    }
}

impl TextForm for Composite {
    /// `stablehlo.composite "partita.softmax" %0 {composite_attributes = {..}, decomposition =
    /// @softmax} : (T) -> T`. A gradient names its base: `partita.vjp = {base = @softmax, name =
    /// "partita.softmax", seeded = .., wanted = ..}`.
    fn print(&self, printer: &mut OpPrinter) {
        let symbol = printer.printer.definition_symbol(&self.definition);
        if !self.attributes.is_empty() {
            let list: Vec<String> = self
                .attributes
                .iter()
                .map(|(name, value)| format!("{} = {}", print_name(name), print_attribute(value)))
                .collect();
            printer.attributes.push(("composite_attributes".to_string(), format!("{{{}}}", list.join(", "))));
        }
        printer.attributes.push(("decomposition".to_string(), symbol));
        if let Some(vjp) = print_vjp(&self.definition.origin, printer) {
            printer.attributes.push(("partita.vjp".to_string(), vjp));
        }
        let operands = printer.operands();
        printer.push(&format!("stablehlo.composite {} {operands}", quote(&self.definition.name)));
        printer.function_type();
    }
}

fn print_name(name: &str) -> String {
    if crate::text::is_plain_symbol(name) { name.to_string() } else { quote(name) }
}

fn print_vjp(origin: &Origin, printer: &mut OpPrinter) -> Option<String> {
    let Origin::Vjp { base, seeded, wanted } = origin else { return None };
    let mut fields = vec![
        ("base".to_string(), printer.printer.definition_symbol(base)),
        ("name".to_string(), quote(&base.name)),
        ("seeded".to_string(), print_array(seeded)),
        ("wanted".to_string(), print_array(wanted)),
    ];
    fields.extend(print_vjp(&base.origin, printer).map(|inner| ("vjp".to_string(), inner)));
    Some(print_dictionary(fields).trim_start().to_string())
}

fn parse_composite(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let name = if op.generic()? {
        op.attributes.text("name").map(str::to_string)
    } else if op.parser.kind() == Kind::Text {
        let name = unquote(op.parser.text());
        op.parser.advance();
        op.operands()?;
        op.types()?;
        Some(name)
    } else {
        return Err(op.parser.unexpected("the composite's name in quotes"));
    };
    let (Some(name), Some(Value::Symbol(function))) = (name, op.attributes.get("decomposition")) else {
        return Err(op.error("E147", "a composite needs a name and `decomposition = @function`"));
    };
    let function = function.clone();
    let mut attributes = Attributes::new();
    if let Some(Value::Dictionary(given)) = op.attributes.get("composite_attributes") {
        for (key, value) in &given.list {
            let value = match value {
                Value::Int(v) => Attribute::Int(*v),
                Value::Float(v) => Attribute::Float(*v),
                Value::Bool(v) => Attribute::Bool(*v),
                Value::Text(v) => Attribute::Text(v.clone()),
                Value::Ints(v) => Attribute::Ints(v.clone()),
                Value::DType(v) => Attribute::DType(*v),
                Value::Unit => Attribute::Bool(true),
                Value::Dense(v) if v.ty.rank() == 1 && !v.ty.dtype.is_float() => Attribute::Ints(v.to_i64()),
                _ => {
                    return Err(op
                        .error(
                            "E147",
                            format!("composite attribute `{key}` has a form that is not supported"),
                        )
                        .expected("a number, a boolean, a string, a list of integers or an element type"));
                }
            };
            attributes.insert(key.clone(), value);
        }
    }
    let vjp = match op.attributes.get("partita.vjp") {
        Some(Value::Dictionary(fields)) => Some(fields.clone()),
        _ => None,
    };
    let definition = op.parser.definition(&name, &function, &attributes, vjp.as_ref(), op.at)?;
    op.finish(Composite { attributes, definition })
}
