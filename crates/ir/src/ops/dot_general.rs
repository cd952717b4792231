//! The generalised matmul.

use super::checks::{distinct_dims, operand_count, same_dtype, shapes};
use super::reduce::Numbers;
use crate::builder::GraphBuilder;
use crate::complex::{self, Complex};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// Contracts the contracting dimensions: result dimensions are batch, lhs free, rhs free.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DotGeneral {
    /// Batch dimensions of the left operand.
    pub lhs_batch: Vec<usize>,
    /// Batch dimensions of the right operand, in the same order.
    pub rhs_batch: Vec<usize>,
    /// Contracting dimensions of the left operand.
    pub lhs_contracting: Vec<usize>,
    /// Contracting dimensions of the right operand, in the same order.
    pub rhs_contracting: Vec<usize>,
    /// Element type of the result, if it differs from the operands'.
    pub result_dtype: Option<DType>,
}

const NAME: &str = "stablehlo.dot_general";

/// The dimensions of one operand by their kind.
struct Side {
    batch: Vec<usize>,
    contracting: Vec<usize>,
    /// The others, ascending.
    free: Vec<usize>,
}

impl Side {
    fn new(batch: &[usize], contracting: &[usize], rank: usize) -> Side {
        let free = (0..rank).filter(|d| !batch.contains(d) && !contracting.contains(d)).collect();
        Side { batch: batch.to_vec(), contracting: contracting.to_vec(), free }
    }
}

impl DotGeneral {
    fn lhs(&self, rank: usize) -> Side {
        Side::new(&self.lhs_batch, &self.lhs_contracting, rank)
    }

    fn rhs(&self, rank: usize) -> Side {
        Side::new(&self.rhs_batch, &self.rhs_contracting, rank)
    }

    /// The number of terms in the sum for each element of the result, for a left operand of this
    /// shape.
    pub fn terms(&self, lhs: &[usize]) -> usize {
        extents(lhs, &self.lhs_contracting).iter().product()
    }
}

/// The extents of these dimensions.
fn extents(shape: &[usize], dims: &[usize]) -> Vec<usize> {
    dims.iter().map(|&d| shape[d]).collect()
}

/// Positions of all elements in the order given by these dimension groups.
fn positions(ty: &TensorType, order: &[&[usize]]) -> Vec<usize> {
    let dims = order.concat();
    let strides = extents(&ty.strides(), &dims);
    indices(&extents(&ty.shape, &dims))
        .map(|index| index.iter().zip(&strides).map(|(i, s)| i * s).sum())
        .collect()
}

/// `[b, m, k] x [b, k, n] -> [b, m, n]`.
fn batched_product<T: Copy>(
    sizes: [usize; 4],
    a: &[T],
    b: &[T],
    zero: T,
    multiply_add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let [batch, rows, inner, columns] = sizes;
    let mut out = vec![zero; batch * rows * columns];
    for (row, out) in out.chunks_mut(columns.max(1)).enumerate() {
        for k in 0..inner {
            let a = a[row * inner + k];
            let b = &b[(row / rows * inner + k) * columns..][..columns];
            for (out, &b) in out.iter_mut().zip(b) {
                *out = multiply_add(a, b, *out);
            }
        }
    }
    out
}

/// The cotangent of the operand `own`: the result's cotangent times the other operand, contracted
/// over the other operand's free dimensions: the dimensions `other_free` of the cotangent.
fn operand_cotangent(
    builder: &mut GraphBuilder,
    cotangent: ValueId,
    other_value: ValueId,
    own: &Side,
    other: &Side,
    other_free: Vec<usize>,
) -> Result<ValueId> {
    let batch: Vec<usize> = (0..own.batch.len()).collect();
    let mut order: Vec<usize> = (0..other.contracting.len()).collect();
    order.sort_by_key(|&i| other.contracting[i]);
    let contracting: Vec<usize> = order.iter().map(|&i| own.contracting[i]).collect();
    // The operand order decides the dimension order of the result: take the order that needs no
    // transpose, if there is one.
    let cotangent_first = [own.batch.clone(), own.free.clone(), contracting.clone()].concat();
    let other_first = [own.batch.clone(), contracting, own.free.clone()].concat();
    let swap = !cotangent_first.is_sorted() && other_first.is_sorted();
    let dims = DotGeneral {
        lhs_batch: batch,
        rhs_batch: other.batch.clone(),
        lhs_contracting: other_free,
        rhs_contracting: other.free.clone(),
        result_dtype: None,
    };
    let (product, dim_of) = if swap {
        let dims = DotGeneral {
            lhs_batch: dims.rhs_batch,
            rhs_batch: dims.lhs_batch,
            lhs_contracting: dims.rhs_contracting,
            rhs_contracting: dims.lhs_contracting,
            result_dtype: None,
        };
        (builder.dot_general(other_value, cotangent, dims)?, other_first)
    } else {
        (builder.dot_general(cotangent, other_value, dims)?, cotangent_first)
    };
    if dim_of.is_sorted() {
        return Ok(product);
    }
    let mut permutation = vec![0; dim_of.len()];
    for (position, &dim) in dim_of.iter().enumerate() {
        permutation[dim] = position;
    }
    builder.transpose(product, &permutation)
}

impl Operation for DotGeneral {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 2)?;
        let (a, b) = (operands[0], operands[1]);
        same_dtype(NAME, a, b)?;
        for (attribute, left, right) in [
            ("batching dimensions", &self.lhs_batch, &self.rhs_batch),
            ("contracting dimensions", &self.lhs_contracting, &self.rhs_contracting),
        ] {
            if left.len() != right.len() {
                return Err(Diagnostic::new("E105", format!("{attribute} of `{NAME}` differ in number"))
                    .expected(format!("as many as {left:?}"))
                    .found(format!("{right:?}")));
            }
        }
        let left = [&self.lhs_batch[..], &self.lhs_contracting].concat();
        let right = [&self.rhs_batch[..], &self.rhs_contracting].concat();
        distinct_dims(NAME, "lhs batching and contracting dimensions", &left, a.rank())?;
        distinct_dims(NAME, "rhs batching and contracting dimensions", &right, b.rank())?;
        for (&l, &r) in left.iter().zip(&right) {
            shapes(
                a.shape[l] == b.shape[r],
                format!("dimension {l} of the lhs and {r} of the rhs of `{NAME}` must have one extent"),
                format!("extent {} in {b}", a.shape[l]),
                format!("extent {}", b.shape[r]),
            )?;
        }
        let shape = [
            extents(&a.shape, &self.lhs_batch),
            extents(&a.shape, &self.lhs(a.rank()).free),
            extents(&b.shape, &self.rhs(b.rank()).free),
        ]
        .concat();
        Ok(vec![TensorType::new(self.result_dtype.unwrap_or(a.dtype), shape)])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let (a, b) = (operands[0], operands[1]);
        let mut rule = Rule::default();
        let mut left = vec![Vec::new(); a.rank()];
        let mut right = vec![Vec::new(); b.rank()];
        let mut result = Vec::new();
        for (&l, &r) in self.lhs_batch.iter().zip(&self.rhs_batch) {
            let factor = rule.factor(a.shape[l], FactorKind::Pass);
            (left[l], right[r]) = (vec![factor], vec![factor]);
            result.push(vec![factor]);
        }
        for d in self.lhs(a.rank()).free {
            left[d] = vec![rule.factor(a.shape[d], FactorKind::Pass)];
            result.push(left[d].clone());
        }
        for d in self.rhs(b.rank()).free {
            right[d] = vec![rule.factor(b.shape[d], FactorKind::Pass)];
            result.push(right[d].clone());
        }
        for (&l, &r) in self.lhs_contracting.iter().zip(&self.rhs_contracting) {
            let factor = rule.factor(a.shape[l], FactorKind::Reduce(Combiner::Sum));
            (left[l], right[r]) = (vec![factor], vec![factor]);
        }
        rule.operands = vec![left, right];
        rule.results = vec![result];
        rule.linear_in(&[0]).linear_in(&[1])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let terms = self.terms(&operands[0].shape);
        Cost { flops: 2.0 * results[0].element_count() as f64 * terms as f64, bytes: bytes as f64 }
    }

    /// One matmul per operand, in the result's element type.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(cotangent) = context.cotangents[0] else { return Ok(vec![None, None]) };
        let builder = &mut *context.builder;
        let dtype = builder.ty(cotangent).dtype;
        let types: Vec<TensorType> = context.operands.iter().map(|&v| builder.ty(v).clone()).collect();
        let (lhs, rhs) = (self.lhs(types[0].rank()), self.rhs(types[1].rank()));
        let lhs_free: Vec<usize> = (lhs.batch.len()..).take(lhs.free.len()).collect();
        let rhs_free: Vec<usize> = (lhs.batch.len() + lhs.free.len()..).take(rhs.free.len()).collect();
        let mut gradients = vec![None, None];
        let sides = [(&lhs, &rhs, rhs_free), (&rhs, &lhs, lhs_free)];
        for (number, (own, other, other_free)) in sides.into_iter().enumerate() {
            if context.wanted[number] {
                let other_value = builder.convert(context.operands[1 - number], dtype)?;
                let product = operand_cotangent(builder, cotangent, other_value, own, other, other_free)?;
                gradients[number] = Some(builder.convert(product, types[number].dtype)?);
            }
        }
        Ok(gradients)
    }

    /// Sums in f64 (integers exactly) and rounds (wraps) once.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (a, b) = (operands[0], operands[1]);
        let (lhs, rhs) = (self.lhs(a.ty.rank()), self.rhs(b.ty.rank()));
        let size = |ty: &TensorType, dims: &[usize]| extents(&ty.shape, dims).iter().product::<usize>();
        let sizes = [
            size(&a.ty, &lhs.batch),
            size(&a.ty, &lhs.free),
            size(&a.ty, &lhs.contracting),
            size(&b.ty, &rhs.free),
        ];
        let left = positions(&a.ty, &[&lhs.batch, &lhs.free, &lhs.contracting]);
        let right = positions(&b.ty, &[&rhs.batch, &rhs.contracting, &rhs.free]);
        let numbers = match (Numbers::of(a), Numbers::of(b)) {
            (Numbers::Floats(a), Numbers::Floats(b)) => {
                let a: Vec<f64> = left.iter().map(|&p| a[p]).collect();
                let b: Vec<f64> = right.iter().map(|&p| b[p]).collect();
                Numbers::Floats(batched_product(sizes, &a, &b, 0.0, |a, b, sum| sum + a * b))
            }
            (Numbers::Ints(a), Numbers::Ints(b)) => {
                let a: Vec<i128> = left.iter().map(|&p| a[p]).collect();
                let b: Vec<i128> = right.iter().map(|&p| b[p]).collect();
                let multiply_add = |a: i128, b: i128, sum: i128| sum.wrapping_add(a.wrapping_mul(b));
                Numbers::Ints(batched_product(sizes, &a, &b, 0, multiply_add))
            }
            (Numbers::Complex(a), Numbers::Complex(b)) => {
                let a: Vec<Complex> = left.iter().map(|&p| a[p]).collect();
                let b: Vec<Complex> = right.iter().map(|&p| b[p]).collect();
                let multiply_add = |a, b, sum| complex::add(sum, complex::multiply(a, b));
                Numbers::Complex(batched_product(sizes, &a, &b, [0.0, 0.0], multiply_add))
            }
            _ => unreachable!("operands have one element type"),
        };
        Ok(vec![numbers.literal(&results[0])])
    }

    /// A result of another type is a choice of the model.
    fn precision(&self) -> Precision {
        if self.result_dtype.is_none() { Precision::Product } else { Precision::Own }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::DotGeneral(other)
            if *self == DotGeneral { result_dtype: self.result_dtype, ..other.clone() }))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{Kind, OpParser, OpPrinter, join};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.dot_general", parse_dot_general), ("stablehlo.dot", parse_dot)];

impl TextForm for DotGeneral {
    /// `stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (T, U) -> V`.
    fn print(&self, printer: &mut OpPrinter) {
        let pair = |lhs: &[usize], rhs: &[usize]| format!("[{}] x [{}]", join(lhs), join(rhs));
        let mut clauses = String::new();
        if !self.lhs_batch.is_empty() {
            clauses = format!(", batching_dims = {}", pair(&self.lhs_batch, &self.rhs_batch));
        }
        clauses.push_str(&format!(
            ", contracting_dims = {}",
            pair(&self.lhs_contracting, &self.rhs_contracting)
        ));
        printer.pretty("stablehlo.dot_general", &clauses);
    }
}

fn parse_dot_general(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let mut dot = DotGeneral::default();
    if op.generic()? {
        let dims = op.record_of("dot_dimension_numbers")?;
        dot.lhs_batch = op.field(&dims, "lhs_batching_dimensions")?;
        dot.rhs_batch = op.field(&dims, "rhs_batching_dimensions")?;
        dot.lhs_contracting = op.field(&dims, "lhs_contracting_dimensions")?;
        dot.rhs_contracting = op.field(&dims, "rhs_contracting_dimensions")?;
    } else {
        op.operands()?;
        if op.optional_clause("batching_dims")? {
            dot.lhs_batch = op.index_list()?;
            op.parser.keyword("x")?;
            dot.rhs_batch = op.index_list()?;
        }
        if op.optional_clause("contracting_dims")? {
            dot.lhs_contracting = op.index_list()?;
            op.parser.keyword("x")?;
            dot.rhs_contracting = op.index_list()?;
        }
        skip_precision(op)?;
        if op.optional_clause("algorithm")? {
            op.parser.mark('<')?;
            op.parser.skip_angle()?;
        }
        op.types()?;
    }
    finish_dot(op, dot)
}

/// `, precision = [DEFAULT, DEFAULT]` or nothing: accumulation is always at least as precise as
/// requested.
fn skip_precision(op: &mut OpParser) -> Result<()> {
    if op.optional_clause("precision")? {
        if op.parser.kind() != Kind::Mark('[') {
            return Err(op.parser.unexpected("`[`"));
        }
        op.parser.skip_group();
    }
    Ok(())
}

fn finish_dot(op: &mut OpParser, mut dot: DotGeneral) -> Result<Vec<ValueId>> {
    op.arity(2)?;
    let result = op.result_type()?.dtype;
    dot.result_dtype = (result != op.operand_type(0).dtype).then_some(result);
    op.finish(dot)
}

/// The product of vectors and matrices: the last dimension of the first with the first of the second.
fn parse_dot(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        skip_precision(op)?;
        op.types()?;
    }
    op.arity(2)?;
    let last = op.operand_type(0).rank().checked_sub(1);
    let last = last.ok_or_else(|| op.error("E146", "`stablehlo.dot` multiplies vectors and matrices"))?;
    let dot = DotGeneral { lhs_contracting: vec![last], rhs_contracting: vec![0], ..DotGeneral::default() };
    finish_dot(op, dot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random};

    /// `[b, m, k1, k2] x [k2, n, b, k1]`, dimensions stored out of order.
    fn mixed() -> DotGeneral {
        DotGeneral {
            lhs_batch: vec![2],
            rhs_batch: vec![0],
            lhs_contracting: vec![0, 3],
            rhs_contracting: vec![3, 1],
            result_dtype: None,
        }
    }

    #[test]
    fn products_match_plain_loops() {
        // lhs, rhs [b, k2, n, k1]
        let (k1, m, b, k2, n) = (2, 3, 2, 4, 5);
        let (x, y) = (random(1, &[k1, m, b, k2]), random(2, &[b, k2, n, k1]));
        let got = apply(mixed(), &[x.clone(), y.clone()]).remove(0);
        assert_eq!(got.ty.shape, [b, m, n]);
        let (xs, ys, got) = (x.to_f64(), y.to_f64(), got.to_f64());
        for bi in 0..b {
            for mi in 0..m {
                for ni in 0..n {
                    let mut sum = 0.0;
                    for i in 0..k1 {
                        for j in 0..k2 {
                            sum +=
                                xs[((i * m + mi) * b + bi) * k2 + j] * ys[((bi * k2 + j) * n + ni) * k1 + i];
                        }
                    }
                    assert!((got[(bi * m + mi) * n + ni] - sum).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_empty_contractions_are_zero() {
        let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
        let a = Literal::new([1, 2], vec![100i8, 100]);
        let got = apply(dims.clone(), &[a.clone(), Literal::new([2, 1], vec![2i8, 1])]);
        assert_eq!(got[0], Literal::new([1, 1], vec![44i8]));
        let wide = DotGeneral { result_dtype: Some(DType::I32), ..dims.clone() };
        let got = apply(wide, &[a, Literal::new([2, 1], vec![2i8, 1])]);
        assert_eq!(got[0], Literal::new([1, 1], vec![300i32]));
        let empty =
            apply(dims, &[Literal::new([2, 0], Vec::<f32>::new()), Literal::new([0, 1], Vec::<f32>::new())]);
        assert_eq!(empty[0], Literal::new([2, 1], vec![0f32, 0.0]));
    }

    #[test]
    fn gradients_match_finite_differences() {
        check_gradient(mixed(), vec![random(3, &[2, 3, 2, 2]), random(4, &[2, 2, 3, 2])], &[true, true]);
        let linear =
            DotGeneral { lhs_contracting: vec![2], rhs_contracting: vec![1], ..DotGeneral::default() };
        check_gradient(linear, vec![random(5, &[2, 3, 4]), random(6, &[5, 4])], &[true, true]);
        let outer = DotGeneral::default();
        check_gradient(outer, vec![random(7, &[2]), random(8, &[3])], &[false, true]);
    }

    #[test]
    fn shards_combine_to_the_whole() {
        check_rule(mixed(), &[random(9, &[2, 3, 4, 5]), random(10, &[4, 5, 3, 2])]);
    }

    #[test]
    fn gradients_of_plain_products_need_no_transpose() {
        for rhs_contracting in [0, 1] {
            let dims = DotGeneral {
                lhs_contracting: vec![1],
                rhs_contracting: vec![rhs_contracting],
                ..DotGeneral::default()
            };
            let mut builder = GraphBuilder::new("f");
            let input = |b: &mut GraphBuilder, name| {
                b.input(name, TensorType::new(DType::F32, [3, 3]), crate::graph::Role::Input)
            };
            let operands = [input(&mut builder, "a"), input(&mut builder, "b")];
            let results = builder.push(dims.clone(), &operands).unwrap();
            let mut context = GradientContext {
                builder: &mut builder,
                operands: &operands,
                results: &results,
                cotangents: &[Some(operands[0])],
                wanted: &[true, true],
            };
            dims.gradient(&mut context).unwrap();
            let names: Vec<&str> = builder.graph().nodes.iter().map(|n| n.op.name()).collect();
            assert_eq!(names, [NAME; 3]);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let code = |dims: DotGeneral, a: &TensorType, b: &TensorType| dims.infer(&[a, b]).unwrap_err().code;
        let plain =
            DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
        assert_eq!(code(plain.clone(), &ty(&[2, 3]), &ty(&[4, 5])), "E104");
        assert_eq!(code(plain.clone(), &ty(&[2]), &ty(&[4, 5])), "E105");
        assert_eq!(code(plain.clone(), &ty(&[2, 3]), &ty(&[3]).with_dtype(DType::F64)), "E102");
        assert_eq!(
            code(DotGeneral { lhs_batch: vec![0], ..plain.clone() }, &ty(&[2, 3]), &ty(&[3, 4])),
            "E105"
        );
        assert_eq!(plain.infer(&[&ty(&[2, 3])]).unwrap_err().code, "E101");
    }

    #[test]
    fn contraction_reduces_and_the_rest_passes() {
        let (a, b) = (TensorType::new(DType::F32, [2, 3, 4]), TensorType::new(DType::F32, [2, 4, 5]));
        let dims = DotGeneral {
            lhs_batch: vec![0],
            rhs_batch: vec![0],
            lhs_contracting: vec![2],
            rhs_contracting: vec![1],
            result_dtype: None,
        };
        let result = dims.infer(&[&a, &b]).unwrap();
        let rule = dims.rule(&[&a, &b], &[&result[0]]);
        let kinds: Vec<FactorKind> = rule.factors.iter().map(|f| f.kind).collect();
        assert_eq!(kinds[..3], [FactorKind::Pass; 3]);
        assert_eq!(kinds[3], FactorKind::Reduce(Combiner::Sum));
        assert_eq!(rule.operands, [[[0], [1], [3]], [[0], [3], [2]]]);
        assert_eq!(rule.results, [[[0], [1], [2]]]);
        assert_eq!(dims.cost(&[&a, &b], &[&result[0]]).flops, 2.0 * 2.0 * 3.0 * 4.0 * 5.0);
    }
}
