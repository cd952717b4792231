//! Custom composites of the user, and lookup by name of all composites.
//!
//! The meaning of a custom op is its decomposition: model code that works for any operand types. So
//! it has a gradient, a factor rule and a result on every device before it has a kernel.

use crate::composite::{Attributes, CompositeDefinition, Origin, Registry, Template, check_arguments};
use crate::graph::{Graph, Role, ValueId};
use crate::ops::Composite;
use crate::{GraphBuilder, TensorType, autodiff, graph_edit};
use partita_base::{Diagnostic, Result, did_you_mean};
use std::fmt;
use std::sync::Arc;

/// Builds a decomposition over operands of any types.
pub type Build = dyn Fn(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>> + Send + Sync;

/// A named custom composite.
#[derive(Clone)]
pub struct CustomOp {
    /// `mine.bias_gelu`.
    pub name: String,
    /// Names of the operands, in order.
    pub arguments: Vec<String>,
    /// The decomposition.
    pub build: Arc<Build>,
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, self.arguments.join(", "))
    }
}

impl CustomOp {
    /// An op of this name over these operands.
    pub fn new(
        name: impl Into<String>,
        arguments: &[&str],
        build: impl Fn(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>> + Send + Sync + 'static,
    ) -> CustomOp {
        let arguments = arguments.iter().map(|name| name.to_string()).collect();
        CustomOp { name: name.into(), arguments, build: Arc::new(build) }
    }

    /// The op on operands of these types. A shard of it is derived from this decomposition and not
    /// built again, so a number that depends on the full size, such as the count in a mean, keeps
    /// the full size.
    ///
    /// # Errors
    /// E245 for a wrong number of operands, and any error of `build`.
    pub fn instantiate(&self, operands: &[TensorType]) -> Result<Composite> {
        let names: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        check_arguments(&self.name, &names, 0, operands)?;
        let mut builder = GraphBuilder::new(&self.name);
        let inputs: Vec<ValueId> = names
            .iter()
            .zip(operands)
            .map(|(name, ty)| builder.input(name, ty.clone(), Role::Activation))
            .collect();
        let outputs = (self.build)(&mut builder, &inputs)?;
        builder.check(&outputs)?;
        let decomposition = graph_edit::prune(builder.finish(outputs));
        let definition =
            CompositeDefinition { name: self.name.clone(), decomposition, origin: Origin::Outlined };
        Ok(Composite { attributes: Attributes::new(), definition: Arc::new(definition) })
    }

    /// Appends the op to a graph.
    ///
    /// # Errors
    /// As [`CustomOp::instantiate`].
    pub fn apply(&self, builder: &mut GraphBuilder, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        builder.check(operands)?;
        let types: Vec<TensorType> = operands.iter().map(|&v| builder.ty(v).clone()).collect();
        builder.push(self.instantiate(&types)?, operands)
    }

    /// Whether a composite of this name computes what `build` builds for its operand types. A shard
    /// may not: its part of a mean divides by the full count.
    pub fn describes(&self, composite: &Composite) -> bool {
        if composite.definition.name != self.name {
            return false;
        }
        let found = &composite.definition.decomposition;
        let types: Vec<TensorType> = found.inputs.iter().map(|&v| found.ty(v).clone()).collect();
        self.instantiate(&types).is_ok_and(|built| computes_alike(&built.definition.decomposition, found))
    }

    /// The gradient for reverse mode: its operands are this op's, then the cotangents of the
    /// results `seeded`; its results are the cotangents of the operands `wanted`. Register a kernel
    /// for it to run it as one.
    pub fn gradient(&self, seeded: &[usize], wanted: &[usize]) -> CustomOp {
        let cotangents = seeded.iter().map(|result| format!("cotangent{result}"));
        let (base, seeded, wanted) = (self.clone(), seeded.to_vec(), wanted.to_vec());
        CustomOp {
            name: format!("{}.vjp", self.name),
            arguments: self.arguments.iter().cloned().chain(cotangents).collect(),
            build: Arc::new(move |builder, operands| {
                let own = &operands[..base.arguments.len()];
                let types: Vec<TensorType> = own.iter().map(|&v| builder.ty(v).clone()).collect();
                let composite = base.instantiate(&types)?;
                let gradient = autodiff::vjp(&composite.definition.decomposition, &seeded, &wanted)?;
                builder.inline(&gradient, operands, false)
            }),
        }
    }
}

/// Whether two graphs are the same ops on the same types, regardless of names.
fn computes_alike(a: &Graph, b: &Graph) -> bool {
    let types = |graph: &Graph| -> Vec<TensorType> { graph.values.iter().map(|v| v.ty.clone()).collect() };
    (&a.inputs, &a.outputs, types(a)) == (&b.inputs, &b.outputs, types(b))
        && a.nodes.len() == b.nodes.len()
        && a.nodes
            .iter()
            .zip(&b.nodes)
            .all(|(a, b)| (&a.operands, &a.results, &a.op) == (&b.operands, &b.results, &b.op))
}

/// A composite found by name.
#[derive(Clone, Copy, Debug)]
pub enum Named<'a> {
    /// A bundled template.
    Template(&'static Template),
    /// A custom op.
    Custom(&'a CustomOp),
}

impl Named<'_> {
    /// Names of the operands, in order.
    pub fn arguments(&self) -> Vec<&str> {
        match self {
            Named::Template(template) => template.arguments.to_vec(),
            Named::Custom(op) => op.arguments.iter().map(String::as_str).collect(),
        }
    }

    /// The number of trailing arguments that are optional.
    pub fn optional(&self) -> usize {
        match self {
            Named::Template(template) => template.optional,
            Named::Custom(_) => 0,
        }
    }

    /// The composite on operands of these types. Custom ops have no attributes.
    ///
    /// # Errors
    /// E245 for a wrong number of operands, and any error of the decomposition.
    pub fn instantiate(&self, attributes: &Attributes, operands: &[TensorType]) -> Result<Composite> {
        match self {
            Named::Template(template) => Composite::new(template, attributes.clone(), operands),
            Named::Custom(op) => op.instantiate(operands),
        }
    }
}

impl Registry {
    /// Adds a custom op.
    ///
    /// # Errors
    /// E247 if a template or another op has the name already: a plan with this name would be
    /// ambiguous.
    pub fn add_custom(&mut self, op: CustomOp) -> Result<()> {
        if self.lookup(&op.name).is_ok() {
            return Err(Diagnostic::new("E247", format!("`{}` is the name of another composite", op.name))
                .help("choose a name of your own, such as `mine.<what>`"));
        }
        self.custom.insert(op.name.clone(), op);
        Ok(())
    }

    /// The composite of this name.
    ///
    /// # Errors
    /// E244 for an unknown name, with the nearest names.
    pub fn lookup(&self, name: &str) -> Result<Named<'_>> {
        let template = self.template(name).map(Named::Template);
        template.or_else(|| self.custom.get(name).map(Named::Custom)).ok_or_else(|| {
            let error = Diagnostic::new("E244", format!("no composite is named `{name}`"));
            match did_you_mean(name, self.names()) {
                Some(help) => error.help(help),
                None => error.note(format!("known: {}", self.names().collect::<Vec<_>>().join(", "))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, Literal, evaluate};
    use partita_base::DType;

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    fn mean() -> CustomOp {
        CustomOp::new("mine.mean", &["x"], |b, x| {
            let shape = b.shape(x[0]);
            let sum = b.reduce_sum(x[0], &[1])?;
            Ok(vec![b.scale(sum, 1.0 / shape[1] as f64)?])
        })
    }

    #[test]
    fn both_kinds_are_found_by_name() {
        let mut registry = Registry::default();
        registry.add_custom(mean()).unwrap();
        let found = registry.lookup("mine.mean").unwrap();
        assert_eq!((found.arguments(), found.optional()), (vec!["x"], 0));
        let composite = found.instantiate(&Attributes::new(), &[f32s(&[2, 4])]).unwrap();
        let x = Literal::new([2, 4], vec![1f32, 2.0, 3.0, 6.0, 0.0, 0.0, 2.0, 2.0]);
        let mean = evaluate(&composite.definition.decomposition, &[x]).unwrap();
        assert_eq!(mean[0].to_f64(), [3.0, 1.0]);

        let norm = registry.lookup("partita.layer_norm").unwrap();
        assert_eq!((norm.arguments(), norm.optional()), (vec!["x", "weight", "bias"], 2));
        let epsilon: Attributes = [("epsilon".to_string(), Attribute::Float(1e-5))].into_iter().collect();
        for count in 1..=3 {
            let types = [f32s(&[2, 4]), f32s(&[4]), f32s(&[4])];
            assert!(norm.instantiate(&epsilon, &types[..count]).is_ok(), "{count} operands");
        }
        let error = registry.lookup("mine.maen").unwrap_err();
        assert_eq!(error.code, "E244");
        assert!(error.help.as_ref().unwrap().contains("`mine.mean`"), "{error}");
    }

    #[test]
    fn every_template_names_its_operands() {
        let none = Attributes::new();
        for template in crate::composites::ALL {
            assert!(template.optional < template.arguments.len(), "{}", template.name);
            let many = vec![f32s(&[2]); template.arguments.len() + 1];
            for types in [&[][..], &many] {
                assert_eq!(Composite::new(template, none.clone(), types).unwrap_err().code, "E245");
            }
        }
    }

    #[test]
    fn names_and_numbers_of_operands_are_checked() {
        let error = mean().instantiate(&[]).unwrap_err();
        assert_eq!((error.code, error.expected.as_deref()), ("E245", Some("1 operands: x")));
        let own = CustomOp::new("partita.softmax", &["x"], |_, x| Ok(x.to_vec()));
        assert_eq!(Registry::default().add_custom(own).unwrap_err().code, "E247");
    }

    #[test]
    fn the_share_of_a_mean_is_no_mean() {
        let op = mean();
        let whole = op.instantiate(&[f32s(&[6, 8])]).unwrap();
        let shard = |shape: &[usize]| {
            let definition = whole.definition.resized(&whole.attributes, &[f32s(shape)]).unwrap();
            Composite { definition, ..whole.clone() }
        };
        assert!(op.describes(&whole) && op.describes(&shard(&[3, 8])));
        // Half of each row: an eighth of their sum, not a quarter.
        let half = shard(&[6, 4]);
        assert!(!op.describes(&half));
        let ones = Literal::splat(&f32s(&[6, 4]), 1.0);
        assert_eq!(evaluate(&half.definition.decomposition, &[ones]).unwrap()[0].to_f64(), [0.5; 6]);
    }

    #[test]
    fn a_gradient_is_an_op_too() {
        let op = mean();
        let gradient = op.gradient(&[0], &[0]);
        assert_eq!(gradient.arguments, ["x", "cotangent0"]);
        let built = gradient.instantiate(&[f32s(&[2, 4]), f32s(&[2])]).unwrap();
        let vjp =
            op.instantiate(&[f32s(&[2, 4])]).unwrap().definition.vjp(&Attributes::new(), &[0], &[0]).unwrap();
        assert!(gradient.describes(&Composite { definition: Arc::new(vjp), ..built.clone() }));
        let inputs = [Literal::zeros(&f32s(&[2, 4])), Literal::new([2], vec![4f32, 8.0])];
        let result = evaluate(&built.definition.decomposition, &inputs).unwrap();
        assert_eq!(result[0].to_f64(), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
    }
}
