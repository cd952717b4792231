//! Factorisation of matrices, and systems of equations with a triangular matrix. They are evaluated
//! on the interpreter; their gradients are left to programs that come differentiated.

use super::ParseOp;
use super::checks::{element_type, operand_count, same_dtype, shapes};
use super::reduce::refused;
use crate::complex::{self, Complex};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::text::{OpParser, OpPrinter, Value};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::Result;

/// The triangular factor of each positive definite matrix: `a = l l^H`, or `a = u^H u`. Only that
/// triangle of the operand is read; the other half of the result is zero. A matrix that is not positive
/// definite gives NaN.
#[derive(Clone, PartialEq, Debug)]
pub struct Cholesky {
    /// Whether the factor is the lower triangle.
    pub lower: bool,
}

/// What is done to the matrix of a triangular system first.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransposeKind {
    None,
    Transpose,
    Adjoint,
}

/// `x` with `op(a) x = b`, or with `x op(a) = b`, for each triangular matrix. Operands: a, b.
#[derive(Clone, PartialEq, Debug)]
pub struct TriangularSolve {
    /// Whether the matrix is on the left of `x`.
    pub left_side: bool,
    /// Which triangle of the matrix is read.
    pub lower: bool,
    /// Whether its diagonal counts as ones.
    pub unit_diagonal: bool,
    /// What is done to the matrix first.
    pub transpose: TransposeKind,
}

const CHOLESKY: &str = "stablehlo.cholesky";
const SOLVE: &str = "stablehlo.triangular_solve";

const TRANSPOSES: [(&str, TransposeKind); 3] = [
    ("NO_TRANSPOSE", TransposeKind::None),
    ("TRANSPOSE", TransposeKind::Transpose),
    ("ADJOINT", TransposeKind::Adjoint),
];

/// E103, E104 unless it holds square matrices of floats.
fn square_matrices(name: &str, ty: &TensorType) -> Result<()> {
    element_type(name, ty.dtype.is_float() || ty.dtype.is_complex(), "a float or complex number", ty.dtype)?;
    let is_square = ty.rank() >= 2 && ty.shape[ty.rank() - 1] == ty.shape[ty.rank() - 2];
    shapes(is_square, format!("`{name}` needs square matrices"), "two equal last extents", ty.to_string())
}

/// E120 if a cotangent is wanted.
fn no_gradient(name: &str, context: &GradientContext) -> Result<Vec<Option<ValueId>>> {
    match context.cotangents[0].is_some() && context.wanted.contains(&true) {
        true => Err(refused(name, "differentiated operands")),
        false => Ok(vec![None; context.operands.len()]),
    }
}

/// The elements as a literal of the type.
fn literal(ty: &TensorType, values: Vec<Complex>) -> Literal {
    match ty.dtype.is_complex() {
        true => Literal::from_complex(ty, values.into_iter()),
        false => Literal::from_f64(ty, values.into_iter().map(|[re, _]| re)),
    }
}

impl Operation for Cholesky {
    fn name(&self) -> &str {
        CHOLESKY
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(CHOLESKY, operands, 1)?;
        square_matrices(CHOLESKY, operands[0])?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let mut rule = Rule::pointwise(&operands[0].shape, 1, 1);
        let rank = operands[0].rank();
        rule.factors[rank - 2..].iter_mut().for_each(|factor| factor.kind = FactorKind::Whole);
        rule
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let extent = operands[0].shape[operands[0].rank() - 1];
        Cost { flops: (operands[0].element_count() * extent) as f64 / 3.0, bytes: bytes as f64 }
    }

    /// E120.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        no_gradient(CHOLESKY, context)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let n = results[0].shape[results[0].rank() - 1];
        let mut values = operands[0].to_complex();
        for matrix in values.chunks_mut((n * n).max(1)) {
            // As a lower triangle: of the upper one, rows and columns are exchanged.
            let at = |row: usize, column: usize| if self.lower { row * n + column } else { column * n + row };
            let mut factor = vec![[0.0, 0.0]; n * n];
            for column in 0..n {
                let known = |row: usize, factor: &[Complex]| {
                    (0..column).fold([0.0, 0.0], |sum, k| {
                        let other = complex::conjugate(factor[at(column, k)]);
                        complex::add(sum, complex::multiply(factor[at(row, k)], other))
                    })
                };
                let diagonal = (matrix[at(column, column)][0] - known(column, &factor)[0]).sqrt();
                factor[at(column, column)] = [diagonal, 0.0];
                for row in column + 1..n {
                    // The upper triangle is the conjugate of the lower one: so are both factors.
                    let rest = complex::subtract(matrix[at(row, column)], known(row, &factor));
                    factor[at(row, column)] = [rest[0] / diagonal, rest[1] / diagonal];
                }
            }
            matrix.copy_from_slice(&factor);
        }
        Ok(vec![literal(&results[0], values)])
    }

    fn precision(&self) -> Precision {
        Precision::Own
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

impl TriangularSolve {
    /// Solves `l x = b` in place for one column, where `l(row, column)` is a lower triangle.
    fn substitute(&self, n: usize, l: impl Fn(usize, usize) -> Complex, x: &mut [Complex]) {
        for row in 0..n {
            let known = (0..row)
                .fold([0.0, 0.0], |sum, k| complex::add(sum, complex::multiply(l(row, k), x[k])));
            let rest = complex::subtract(x[row], known);
            x[row] = if self.unit_diagonal { rest } else { complex::divide(rest, l(row, row)) };
        }
    }
}

impl Operation for TriangularSolve {
    fn name(&self) -> &str {
        SOLVE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(SOLVE, operands, 2)?;
        let (a, b) = (operands[0], operands[1]);
        same_dtype(SOLVE, a, b)?;
        square_matrices(SOLVE, a)?;
        let rank = a.rank();
        let side = if self.left_side { rank - 2 } else { rank - 1 };
        let fits = b.rank() == rank && b.shape[..rank - 2] == a.shape[..rank - 2] && b.shape[side] == a.shape[side];
        shapes(
            fits,
            format!("operands of `{SOLVE}` do not fit together"),
            format!("the batch of {a}, and its extent in dimension {side}"),
            b.to_string(),
        )?;
        Ok(vec![b.clone()])
    }

    /// The columns of `b` are systems of their own.
    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let rank = operands[0].rank();
        let mut rule = Rule::pointwise(&operands[0].shape[..rank - 2], 2, 1);
        let n = operands[0].shape[rank - 1];
        let columns = operands[1].shape[if self.left_side { rank - 1 } else { rank - 2 }];
        let (row, other) = (rule.factor(n, FactorKind::Whole), rule.factor(n, FactorKind::Whole));
        let free = rule.factor(columns, FactorKind::Pass);
        rule.operands[0].extend([vec![row], vec![other]]);
        let dims = if self.left_side { [vec![row], vec![free]] } else { [vec![free], vec![row]] };
        rule.operands[1].extend(dims.clone());
        rule.results[0].extend(dims);
        rule.linear_in(&[1])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let extent = operands[0].shape[operands[0].rank() - 1];
        Cost { flops: (operands[1].element_count() * extent) as f64, bytes: bytes as f64 }
    }

    /// E120.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        no_gradient(SOLVE, context)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let rank = results[0].rank();
        let n = operands[0].ty.shape[rank - 1];
        let a = operands[0].to_complex();
        let mut values = operands[1].to_complex();
        let columns = results[0].shape[if self.left_side { rank - 1 } else { rank - 2 }];
        let transposed = self.transpose != TransposeKind::None;
        let turn = |z: Complex| if self.transpose == TransposeKind::Adjoint { complex::conjugate(z) } else { z };
        // x op(a) = b is op(a)^T x^T = b^T; and a lower triangle read backwards is an upper one.
        let flip = transposed == self.left_side;
        let is_lower = self.lower != flip;
        let order = |k: usize| if is_lower { k } else { n - 1 - k };
        for (matrix, block) in a.chunks((n * n).max(1)).zip(values.chunks_mut((n * columns).max(1))) {
            let l = |row: usize, column: usize| {
                let (row, column) = (order(row), order(column));
                turn(if flip { matrix[column * n + row] } else { matrix[row * n + column] })
            };
            for column in 0..columns {
                let at = |k: usize| match self.left_side {
                    true => order(k) * columns + column,
                    false => column * n + order(k),
                };
                let mut x: Vec<Complex> = (0..n).map(|k| block[at(k)]).collect();
                self.substitute(n, l, &mut x);
                x.into_iter().enumerate().for_each(|(k, x)| block[at(k)] = x);
            }
        }
        Ok(vec![literal(&results[0], values)])
    }

    fn precision(&self) -> Precision {
        Precision::Own
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(CHOLESKY, parse_cholesky), (SOLVE, parse_triangular_solve)];

impl TextForm for Cholesky {
    /// `stablehlo.cholesky %0, lower = true : T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty_same_type(CHOLESKY, &format!(", lower = {}", self.lower));
    }
}

impl TextForm for TriangularSolve {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let found = TRANSPOSES.iter().find(|(_, kind)| *kind == self.transpose);
        let (word, _) = found.expect("all kinds have a name");
        let properties = [
            ("left_side", self.left_side.to_string()),
            ("lower", self.lower.to_string()),
            ("transpose_a", format!("#stablehlo<transpose {word}>")),
            ("unit_diagonal", self.unit_diagonal.to_string()),
        ];
        printer.generic(SOLVE, &properties, &[]);
    }
}

fn parse_cholesky(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        if op.optional_clause("lower")? {
            let lower = op.parser.at_word("true");
            op.parser.advance();
            op.attributes.list.push(("lower".to_string(), Value::Bool(lower)));
        }
        op.types()?;
    }
    op.arity(1)?;
    let lower = op.flag("lower");
    op.finish(Cholesky { lower })
}

fn parse_triangular_solve(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", format!("`{SOLVE}` must be written in the generic form")));
    }
    op.arity(2)?;
    let word = match op.attributes.get("transpose_a") {
        Some(Value::Keyword(word)) => word.clone(),
        _ => String::new(),
    };
    let Some((_, transpose)) = TRANSPOSES.into_iter().find(|(name, _)| *name == word) else {
        let known = TRANSPOSES.map(|(name, _)| name).join(", ");
        return Err(op
            .error("E147", format!("unknown `transpose_a` of `{SOLVE}`"))
            .expected(format!("`#stablehlo<transpose ..>` with one of {known}")));
    };
    let (left_side, lower, unit_diagonal) = (op.flag("left_side"), op.flag("lower"), op.flag("unit_diagonal"));
    op.finish(TriangularSolve { left_side, lower, unit_diagonal, transpose })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_rule, random, refusal};
    use partita_base::{DType, InertType};

    fn complex128(shape: &[usize], seed: u64) -> Literal {
        let ty = TensorType::new(DType::Inert(InertType::Complex128), shape);
        let parts = random(seed, &[ty.element_count(), 2]).to_f64();
        Literal::from_complex(&ty, parts.chunks(2).map(|pair| [pair[0], pair[1]]))
    }

    /// `x y` of matrices in row-major order; `adjoint` says whether x, y are taken as their adjoints.
    fn product(x: &[Complex], y: &[Complex], sizes: [usize; 3], adjoint: [bool; 2]) -> Vec<Complex> {
        let [m, k, n] = sizes;
        let x_at = |i: usize, j: usize| if adjoint[0] { complex::conjugate(x[j * m + i]) } else { x[i * k + j] };
        let y_at = |i: usize, j: usize| if adjoint[1] { complex::conjugate(y[j * k + i]) } else { y[i * n + j] };
        let element = |at: usize| {
            (0..k).fold([0.0, 0.0], |sum, j| complex::add(sum, complex::multiply(x_at(at / n, j), y_at(j, at % n))))
        };
        (0..m * n).map(element).collect()
    }

    fn assert_near(found: &[Complex], expected: &[Complex]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!(complex::absolute(complex::subtract(*f, *e)) < 1e-9, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn factors_multiply_to_the_matrix() {
        let root = complex128(&[3, 3], 1).to_complex();
        let matrix = product(&root, &root, [3, 3, 3], [false, true]);
        let ty = TensorType::new(DType::Inert(InertType::Complex128), [1, 3, 3]);
        let a = Literal::from_complex(&ty, matrix.iter().copied());
        for lower in [true, false] {
            let factor = apply(Cholesky { lower }, std::slice::from_ref(&a))[0].to_complex();
            assert_eq!(factor[if lower { 1 } else { 3 }], [0.0, 0.0]);
            assert_near(&product(&factor, &factor, [3, 3, 3], [!lower, lower]), &matrix);
        }
        let negative = Literal::new([1, 1], vec![-1f64]);
        assert!(apply(Cholesky { lower: true }, &[negative])[0].to_f64()[0].is_nan());
    }

    #[test]
    fn solutions_satisfy_their_systems() {
        let a = complex128(&[2, 3, 3], 1);
        for (number, transpose) in TRANSPOSES.iter().map(|(_, kind)| *kind).enumerate() {
            for (left_side, lower, unit_diagonal) in
                [(true, true, false), (true, false, true), (false, true, true), (false, false, false)]
            {
                let shape = if left_side { [2, 3, 4] } else { [2, 4, 3] };
                let b = complex128(&shape, 2 + number as u64);
                let op = TriangularSolve { left_side, lower, unit_diagonal, transpose };
                let x = apply(op, &[a.clone(), b.clone()])[0].to_complex();
                for batch in 0..2 {
                    // The matrix that counts: one triangle, ones on the diagonal if so, transposed if so.
                    let values = &a.to_complex()[9 * batch..9 * batch + 9];
                    let counts = |row: usize, column: usize| match row.cmp(&column) {
                        std::cmp::Ordering::Equal if unit_diagonal => [1.0, 0.0],
                        std::cmp::Ordering::Equal => values[row * 3 + column],
                        order if lower == order.is_gt() => values[row * 3 + column],
                        _ => [0.0, 0.0],
                    };
                    let matrix: Vec<Complex> = (0..9)
                        .map(|at| match transpose {
                            TransposeKind::None => counts(at / 3, at % 3),
                            TransposeKind::Transpose => counts(at % 3, at / 3),
                            TransposeKind::Adjoint => complex::conjugate(counts(at % 3, at / 3)),
                        })
                        .collect();
                    let own = &x[12 * batch..12 * batch + 12];
                    let found = match left_side {
                        true => product(&matrix, own, [3, 3, 4], [false; 2]),
                        false => product(own, &matrix, [4, 3, 3], [false; 2]),
                    };
                    assert_near(&found, &b.to_complex()[12 * batch..12 * batch + 12]);
                }
            }
        }
    }

    #[test]
    fn batches_and_columns_may_be_cut() {
        let solve = |left_side| TriangularSolve {
            left_side,
            lower: true,
            unit_diagonal: true,
            transpose: TransposeKind::None,
        };
        check_rule(solve(true), &[random(1, &[4, 3, 3]), random(2, &[4, 3, 6])]);
        check_rule(solve(false), &[random(1, &[4, 3, 3]), random(2, &[4, 6, 3])]);
        let one = Literal::new([4, 1, 1], vec![4f64, 9.0, 16.0, 25.0]);
        check_rule(Cholesky { lower: true }, &[one]);
        let ty = TensorType::new(DType::F64, [3, 3]);
        assert!(refusal(Cholesky { lower: true }, &[ty.with_shape([3, 2])]).contains("E104"));
        assert!(refusal(Cholesky { lower: true }, &[ty.with_dtype(DType::I32)]).contains("E103"));
        assert!(refusal(solve(true), &[ty.clone(), ty.with_shape([2, 3])]).contains("E104"));
        assert!(refusal(solve(false), &[ty.clone(), ty.with_dtype(DType::F32)]).contains("E102"));
    }
}
