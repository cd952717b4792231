//! Sorting along a dimension.

use super::checks::{operand_count, shapes};
use super::reduce::{element, refused, region_signature};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};

/// Sorts all operands together along `dim` by a comparator over (a_0, b_0, a_1, b_1, ...) scalars.
#[derive(Clone, PartialEq, Debug)]
pub struct Sort {
    /// The dimension.
    pub dim: usize,
    /// Keep the order of equals.
    pub is_stable: bool,
    /// A graph to an i1 scalar: whether a comes before b.
    pub comparator: Box<Graph>,
}

const NAME: &str = "stablehlo.sort";

impl Sort {
    /// Whether the elements at position `a` come before those at `b`.
    fn before(&self, operands: &[&Literal], a: usize, b: usize) -> Result<bool> {
        let pair = |x: &&Literal| [element(x, a), element(x, b)];
        let arguments: Vec<Literal> = operands.iter().flat_map(pair).collect();
        Ok(interpret::evaluate(&self.comparator, &arguments)?[0].to_i64() == [1])
    }

    /// The positions in sorted order, equals in their original order. Terminates for any
    /// comparator.
    fn sorted(&self, operands: &[&Literal], positions: &[usize]) -> Result<Vec<usize>> {
        if positions.len() < 2 {
            return Ok(positions.to_vec());
        }
        let (left, right) = positions.split_at(positions.len() / 2);
        let (left, right) = (self.sorted(operands, left)?, self.sorted(operands, right)?);
        let (mut i, mut j, mut merged) = (0, 0, Vec::with_capacity(positions.len()));
        while i < left.len() && j < right.len() {
            if self.before(operands, right[j], left[i])? {
                merged.push(right[j]);
                j += 1;
            } else {
                merged.push(left[i]);
                i += 1;
            }
        }
        merged.extend_from_slice(&left[i..]);
        merged.extend_from_slice(&right[j..]);
        Ok(merged)
    }
}

impl Operation for Sort {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        if operands.is_empty() {
            operand_count(NAME, operands, 1)?;
        }
        for ty in operands {
            shapes(
                ty.shape == operands[0].shape,
                format!("operands of `{NAME}` must have one shape"),
                format!("{:?}", operands[0].shape),
                format!("{:?}", ty.shape),
            )?;
        }
        if self.dim >= operands[0].rank() {
            return Err(Diagnostic::new("E105", format!("`{NAME}` along a dimension that does not exist"))
                .expected(format!("a dimension of {}", operands[0]))
                .found(self.dim.to_string()));
        }
        let pairs: Vec<TensorType> = operands
            .iter()
            .flat_map(|ty| [TensorType::scalar(ty.dtype), TensorType::scalar(ty.dtype)])
            .collect();
        region_signature(NAME, "comparator", &self.comparator, &pairs, &[TensorType::scalar(DType::Bool)])?;
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let mut rule = Rule::pointwise(&operands[0].shape, operands.len(), operands.len());
        // Dimension d is factor d.
        rule.factors[self.dim].kind = FactorKind::Whole;
        rule
    }

    /// Comparisons of a merge sort.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let rounds = (operands[0].shape[self.dim].max(2) as f64).log2();
        Cost { flops: operands[0].element_count() as f64 * rounds, bytes: bytes as f64 }
    }

    /// E120: gather by the sorted indices instead.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(NAME, "differentiated operands"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let ty = &operands[0].ty;
        let strides = ty.strides();
        let mut lines = ty.shape.clone();
        lines[self.dim] = 1;
        let mut source: Vec<usize> = (0..ty.element_count()).collect();
        for line in indices(&lines) {
            let start: usize = line.iter().zip(&strides).map(|(i, s)| i * s).sum();
            let places: Vec<usize> = (0..ty.shape[self.dim]).map(|i| start + i * strides[self.dim]).collect();
            for (place, from) in places.iter().zip(self.sorted(operands, &places)?) {
                source[*place] = from;
            }
        }
        let pick = |x: &&Literal| Literal { ty: x.ty.clone(), data: x.data.pick(source.iter().copied()) };
        Ok(operands.iter().map(pick).collect())
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let results = context.operands().len();
        localise_same(self.clone(), context, results)
    }

    fn regions(&self) -> Vec<&Graph> {
        vec![&self.comparator]
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.sort", parse_sort)];

impl TextForm for Sort {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let properties =
            [("dimension", format!("{} : i64", self.dim)), ("is_stable", self.is_stable.to_string())];
        printer.generic("stablehlo.sort", &properties, &[&self.comparator]);
    }
}

fn parse_sort(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.sort` must be written in the generic form"));
    }
    op.at_least(1)?;
    // A negative dimension counts from the end.
    let dim = match op.optional_integers_of("dimension")?.as_deref() {
        None | Some([]) => op.operand_type(0).rank().saturating_sub(1),
        Some(&[dim, ..]) if dim < 0 => (op.operand_type(0).rank() as i64 + dim).max(0) as usize,
        Some(&[dim, ..]) => dim as usize,
    };
    let comparator = Box::new(op.region(0)?);
    let is_stable = op.flag("is_stable");
    op.finish(Sort { dim, is_stable, comparator })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::Role;
    use crate::ops::Direction;
    use crate::testing::{apply, check_rule, random};

    /// Compares the first operand's elements.
    fn by_first(direction: Direction, dim: usize, dtypes: &[DType]) -> Sort {
        let mut b = GraphBuilder::new("comparator");
        let mut inputs = Vec::new();
        for &dtype in dtypes {
            inputs.push(b.input("a", TensorType::scalar(dtype), Role::Input));
            inputs.push(b.input("b", TensorType::scalar(dtype), Role::Input));
        }
        let before = b.compare(direction, inputs[0], inputs[1]).unwrap();
        Sort { dim, is_stable: true, comparator: Box::new(b.finish(vec![before])) }
    }

    #[test]
    fn lines_are_sorted_and_equals_keep_their_order() {
        let keys = Literal::new([5, 2], vec![2i32, 9, 1, 8, 2, 7, 1, 9, 0, 8]);
        let numbers = Literal::new([5, 2], (0..10).collect::<Vec<i64>>());
        let got = apply(by_first(Direction::Lt, 0, &[DType::I32, DType::I64]), &[keys, numbers]);
        assert_eq!(got[0].to_i64(), [0, 7, 1, 8, 1, 8, 2, 9, 2, 9]);
        assert_eq!(got[1].to_i64(), [8, 5, 2, 3, 6, 9, 0, 1, 4, 7]);
    }

    /// Only wanted operands are differentiated: a sort may precede operands that are not.
    #[test]
    fn a_sorted_operand_keeps_no_gradient_from_the_others() {
        let mut b = GraphBuilder::new("main");
        let ty = TensorType::new(DType::F64, [3]);
        let [x, y] = ["x", "y"].map(|name| b.input(name, ty.clone(), Role::Input));
        let sorted = b.push1(by_first(Direction::Lt, 0, &[DType::F64]), &[y]).unwrap();
        let product = b.multiply(x, sorted).unwrap();
        let graph = b.finish(vec![product]);
        let gradient = crate::autodiff::vjp(&graph, &[0], &[0]).unwrap();
        let numbers = |values: [f64; 3]| Literal::new([3], values.to_vec());
        let inputs = [numbers([1.0, 2.0, 3.0]), numbers([7.0, 5.0, 6.0]), numbers([1.0; 3])];
        assert_eq!(interpret::evaluate(&gradient, &inputs).unwrap()[0].to_f64(), [5.0, 6.0, 7.0]);
        assert_eq!(crate::autodiff::vjp(&graph, &[0], &[1]).unwrap_err().code, "E120");
    }

    #[test]
    fn random_lines_sort_as_the_standard_library_does() {
        let x = random(1, &[3, 17]);
        let got = apply(by_first(Direction::Gt, 1, &[DType::F64]), std::slice::from_ref(&x)).remove(0);
        for (line, sorted) in x.to_f64().chunks(17).zip(got.to_f64().chunks(17)) {
            let mut expected = line.to_vec();
            expected.sort_by(|a, b| b.total_cmp(a));
            assert_eq!(sorted, expected);
        }
        // An inconsistent comparator still terminates, with the same elements.
        let odd = apply(by_first(Direction::Ne, 1, &[DType::F64]), std::slice::from_ref(&x)).remove(0);
        let all = |x: &Literal| {
            let mut values = x.to_f64();
            values.sort_by(f64::total_cmp);
            values
        };
        assert_eq!(all(&odd), all(&x));
    }

    #[test]
    fn the_other_dimensions_may_be_cut() {
        check_rule(
            by_first(Direction::Lt, 1, &[DType::F64, DType::F64]),
            &[random(1, &[5, 4]), random(2, &[5, 4])],
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (a, b) = (TensorType::new(DType::F32, [5, 2]), TensorType::new(DType::F32, [5, 3]));
        let code = |op: Sort, types: &[&TensorType]| op.infer(types).unwrap_err().code;
        let one = |dim| by_first(Direction::Lt, dim, &[DType::F32]);
        assert_eq!(code(one(0), &[]), "E101");
        assert_eq!(code(one(0), &[&a, &b]), "E104");
        assert_eq!(code(one(2), &[&a]), "E105");
        assert_eq!(code(one(0), &[&a, &a]), "E107");
        assert_eq!(code(one(0), &[&a.with_dtype(DType::I32)]), "E107");
    }
}
