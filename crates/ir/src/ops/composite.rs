//! A named subgraph with a meaning of its own.

use crate::composite::{Attribute, Attributes, CompositeDefinition, Origin, Template};
use crate::graph::{Graph, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::sync::Arc;

/// An application of a composite: what it computes is its definition's decomposition, always.
#[derive(Clone, PartialEq, Debug)]
pub struct Composite {
    /// Attributes, as text shows them and kernels read them.
    pub attributes: Attributes,
    /// Name, decomposition and origin.
    pub definition: Arc<CompositeDefinition>,
}

impl Composite {
    /// A template applied to operand types.
    pub fn new(
        template: &'static Template,
        attributes: Attributes,
        operands: &[TensorType],
    ) -> Result<Composite> {
        let definition = CompositeDefinition::from_template(template, &attributes, operands)?;
        Ok(Composite { attributes, definition: Arc::new(definition) })
    }

    /// The operand that holds the place of result 0 in the global tensor, for composites that depend on it.
    pub(crate) fn offsets_operand(&self) -> Option<usize> {
        match &self.definition.origin {
            Origin::Template(template) => template.offsets_operand,
            Origin::Outlined | Origin::Vjp { .. } => None,
        }
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
            return Err(Diagnostic::new("E117", format!("operands of composite `{}`", self.name()))
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
        let flops = graph
            .nodes
            .iter()
            .map(|n| n.op.cost(&graph.operand_types(n), &graph.result_types(n)).flops)
            .sum();
        let bytes: usize = operands.iter().chain(results).map(|t| t.bytes()).sum();
        Cost { flops, bytes: bytes as f64 }
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let present = |flags: Vec<bool>| {
            flags.iter().enumerate().filter(|(_, f)| **f).map(|(i, _)| i).collect::<Vec<usize>>()
        };
        let seeded = present(context.cotangents.iter().map(Option::is_some).collect());
        let wanted = present(context.wanted.to_vec());
        let definition = self.definition.vjp(&seeded, &wanted)?;
        let mut operands = context.operands.to_vec();
        operands.extend(context.cotangents.iter().flatten());
        let mut attributes = self.attributes.clone();
        let list = |positions: &[usize]| Attribute::Ints(positions.iter().map(|&p| p as i64).collect());
        attributes.insert("wanted".into(), list(&wanted));
        attributes.insert("seeded".into(), list(&seeded));
        let gradient = Composite { attributes, definition: Arc::new(definition) };
        let results = context.builder.push(gradient, &operands)?;
        let mut gradients = vec![None; context.operands.len()];
        for (&operand, result) in wanted.iter().zip(results) {
            gradients[operand] = Some(result);
        }
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let operands: Vec<Literal> = operands.iter().map(|&l| l.clone()).collect();
        interpret::evaluate(&self.definition.decomposition, &operands)
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
        let definition = Arc::new(self.definition.resized(&attributes, &types)?);
        context.builder().push(Composite { attributes, definition }, &operands)
    }

    fn regions(&self) -> Vec<&Graph> {
        vec![&self.definition.decomposition]
    }
}
