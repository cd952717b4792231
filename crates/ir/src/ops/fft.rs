//! Discrete Fourier transforms.

use super::ParseOp;
use super::checks::{element_type, operand_count, sizes};
use super::reduce::refused;
use crate::complex::{self, Complex};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::text::{OpParser, OpPrinter, join};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, InertType, Result};

/// The direction of a transform, and whether one side is real.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FftKind {
    /// From complex to complex numbers.
    Fft,
    /// Its inverse.
    Ifft,
    /// From real numbers: of the last dimension only half of the result is kept.
    Rfft,
    /// Its inverse.
    Irfft,
}

/// The Fourier transform over the last dimensions.
#[derive(Clone, PartialEq, Debug)]
pub struct Fft {
    /// The direction.
    pub kind: FftKind,
    /// The extents of the transformed dimensions, on the side that has them in full.
    pub length: Vec<usize>,
}

const NAME: &str = "stablehlo.fft";

const KINDS: [(&str, FftKind); 4] =
    [("FFT", FftKind::Fft), ("IFFT", FftKind::Ifft), ("RFFT", FftKind::Rfft), ("IRFFT", FftKind::Irfft)];

impl Fft {
    /// The text of the direction.
    fn word(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).expect("all directions have a name").0
    }

    /// The extents of the complex side.
    fn halved(&self) -> Vec<usize> {
        let mut length = self.length.clone();
        if let (FftKind::Rfft | FftKind::Irfft, Some(last)) = (self.kind, length.last_mut()) {
            *last = if *last == 0 { 0 } else { *last / 2 + 1 };
        }
        length
    }
}

/// The transform of the lines along one dimension, by its definition.
fn transform(values: &[Complex], shape: &[usize], dim: usize, inverse: bool) -> Vec<Complex> {
    let strides = crate::types::row_major_strides(shape);
    let extent = shape[dim];
    let turns: Vec<Complex> = (0..extent)
        .map(|part| complex::turn(part, extent))
        .map(|turn| if inverse { turn } else { complex::conjugate(turn) })
        .collect();
    let mut lines = shape.to_vec();
    lines[dim] = 1;
    let mut result = vec![[0.0, 0.0]; values.len()];
    for line in indices(&lines) {
        let start: usize = line.iter().zip(&strides).map(|(i, s)| i * s).sum();
        for out in 0..extent {
            let terms = (0..extent).map(|at| {
                complex::multiply(values[start + at * strides[dim]], turns[(at * out) % extent])
            });
            let sum = terms.fold([0.0, 0.0], complex::add);
            let scale = if inverse { extent as f64 } else { 1.0 };
            result[start + out * strides[dim]] = [sum[0] / scale, sum[1] / scale];
        }
    }
    result
}

/// The elements that a tensor of another last extent has at the same places; `filled` for others.
fn resized(
    values: &[Complex],
    shape: &[usize],
    last: usize,
    filled: impl Fn(&[usize]) -> Complex,
) -> Vec<Complex> {
    let strides = crate::types::row_major_strides(shape);
    let mut target = shape.to_vec();
    *target.last_mut().expect("a transformed dimension") = last;
    let element = |index: Vec<usize>| match index[index.len() - 1] < shape[shape.len() - 1] {
        true => values[index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>()],
        false => filled(&index),
    };
    indices(&target).map(element).collect()
}

impl Operation for Fft {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 1)?;
        let ty = operands[0];
        let from_real = self.kind == FftKind::Rfft;
        let fits = if from_real { matches!(ty.dtype, DType::F32 | DType::F64) } else { ty.dtype.is_complex() };
        element_type(NAME, fits, if from_real { "f32 or f64" } else { "a complex type" }, ty.dtype)?;
        let given = if self.kind == FftKind::Irfft { self.halved() } else { self.length.clone() };
        let leading = ty.rank().checked_sub(given.len()).filter(|_| (1..=3).contains(&given.len()));
        let Some(leading) = leading.filter(|&leading| ty.shape[leading..] == given) else {
            return sizes(
                false,
                format!("`length` of `{NAME}` must be the extents of the last one to three dimensions"),
                format!("extents {given:?} at the end"),
                ty.to_string(),
            )
            .map(|()| Vec::new());
        };
        let dtype = match (self.kind, ty.dtype) {
            (FftKind::Rfft, DType::F32) => DType::Inert(InertType::Complex64),
            (FftKind::Rfft, _) => DType::Inert(InertType::Complex128),
            (FftKind::Irfft, DType::Inert(InertType::Complex64)) => DType::F32,
            (FftKind::Irfft, _) => DType::F64,
            (_, dtype) => dtype,
        };
        let last = if self.kind == FftKind::Rfft { self.halved() } else { self.length.clone() };
        Ok(vec![TensorType::new(dtype, [&ty.shape[..leading], &last].concat())])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let leading = operands[0].rank() - self.length.len();
        let mut rule = Rule::pointwise(&operands[0].shape[..leading], 1, 1);
        for dim in leading..operands[0].rank() {
            let factor = rule.factor(operands[0].shape[dim], FactorKind::Whole);
            rule.operands[0].push(vec![factor]);
            let factor = rule.factor(results[0].shape[dim], FactorKind::Whole);
            rule.results[0].push(vec![factor]);
        }
        rule
    }

    /// Five operations per element and halving.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let rounds = (self.length.iter().product::<usize>().max(2) as f64).log2();
        let elements = operands[0].element_count().max(results[0].element_count());
        Cost { flops: 5.0 * rounds * elements as f64, bytes: bytes as f64 }
    }

    /// E120: complex numbers have no gradient here.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        match context.wanted[0] && context.cotangents[0].is_some() {
            true => Err(refused(NAME, "a differentiated operand")),
            false => Ok(vec![None]),
        }
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        if results[0].element_count() == 0 {
            return Ok(vec![Literal::zeros(&results[0])]);
        }
        let rank = x.ty.rank();
        let leading = rank - self.length.len();
        let mut shape = x.ty.shape.clone();
        let mut values = x.to_complex();
        let inverse = matches!(self.kind, FftKind::Ifft | FftKind::Irfft);
        // The inverse of a real transform undoes its last step last, on the completed half.
        let mut dims: Vec<usize> = (leading..rank).rev().collect();
        if inverse {
            dims.reverse();
        }
        for dim in dims {
            if self.kind == FftKind::Irfft && dim == rank - 1 {
                let full = *self.length.last().expect("a transformed dimension");
                let strides = crate::types::row_major_strides(&shape);
                values = resized(&values, &shape, full, |index| {
                    let (last, line) = index.split_last().expect("a transformed dimension");
                    let start: usize = line.iter().zip(&strides).map(|(i, s)| i * s).sum();
                    complex::conjugate(values[start + full - last])
                });
                shape[dim] = full;
            }
            values = transform(&values, &shape, dim, inverse);
            if self.kind == FftKind::Rfft && dim == rank - 1 {
                let half = *self.halved().last().expect("a transformed dimension");
                values = resized(&values, &shape, half, |_| unreachable!("a half is smaller"));
                shape[dim] = half;
            }
        }
        Ok(vec![match self.kind {
            FftKind::Irfft => Literal::from_f64(&results[0], values.into_iter().map(|[re, _]| re)),
            _ => Literal::from_complex(&results[0], values.into_iter()),
        }])
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

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_fft)];

impl TextForm for Fft {
    /// `stablehlo.fft %0, type = FFT, length = [4] : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        let clauses = format!(", type = {}, length = [{}]", self.word(), join(&self.length));
        printer.pretty(NAME, &clauses);
    }
}

fn parse_fft(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (word, length) = if op.generic()? {
        let word = op.keyword_of("fft_type").unwrap_or_default().to_string();
        (word, op.indices_of("fft_length")?)
    } else {
        op.operands()?;
        op.clause("type")?;
        let word = op.parser.text().to_string();
        op.parser.advance();
        op.clause("length")?;
        let length = op.index_list()?;
        op.types()?;
        (word, length)
    };
    op.arity(1)?;
    let Some((_, kind)) = KINDS.into_iter().find(|(name, _)| *name == word) else {
        let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        return Err(op
            .error("E147", format!("unknown type of `{NAME}`"))
            .expected(known.join(", "))
            .found(format!("`{word}`")));
    };
    op.finish(Fft { kind, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, refusal};

    fn complex128(shape: &[usize], seed: u64) -> Literal {
        let ty = TensorType::new(DType::Inert(InertType::Complex128), shape);
        let parts = crate::testing::random(seed, &[ty.element_count(), 2]).to_f64();
        Literal::from_complex(&ty, parts.chunks(2).map(|pair| [pair[0], pair[1]]))
    }

    fn assert_near(found: &Literal, expected: &Literal) {
        assert_eq!(found.ty, expected.ty);
        for (f, e) in found.to_complex().iter().zip(expected.to_complex()) {
            assert!((f[0] - e[0]).abs() < 1e-12 && (f[1] - e[1]).abs() < 1e-12, "{f:?} {e:?}");
        }
    }

    #[test]
    fn a_transform_of_four_is_known_and_inverses_undo_it() {
        let x = Literal::new([4], vec![1f64, 2.0, 4.0, 8.0]);
        let half = apply(Fft { kind: FftKind::Rfft, length: vec![4] }, std::slice::from_ref(&x)).remove(0);
        let expected = Literal::from_complex(&half.ty, [[15.0, 0.0], [-3.0, 6.0], [-5.0, 0.0]].into_iter());
        assert_near(&half, &expected);
        for length in [4, 5] {
            let x = crate::testing::random(2, &[3, length]);
            let half = apply(Fft { kind: FftKind::Rfft, length: vec![length] }, std::slice::from_ref(&x));
            let back = apply(Fft { kind: FftKind::Irfft, length: vec![length] }, &half).remove(0);
            assert_near(&back, &x);
        }
        for length in [vec![5], vec![3, 5], vec![2, 3, 5]] {
            let x = complex128(&[2, 3, 5], 1);
            let there = apply(Fft { kind: FftKind::Fft, length: length.clone() }, std::slice::from_ref(&x));
            assert_near(&apply(Fft { kind: FftKind::Ifft, length }, &there).remove(0), &x);
        }
        let x = crate::testing::random(3, &[2, 3, 4]);
        let length = vec![3, 4];
        let half = apply(Fft { kind: FftKind::Rfft, length: length.clone() }, std::slice::from_ref(&x));
        assert_near(&apply(Fft { kind: FftKind::Irfft, length }, &half).remove(0), &x);
    }

    #[test]
    fn only_the_last_dimensions_are_whole() {
        let op = Fft { kind: FftKind::Rfft, length: vec![4] };
        crate::testing::check_rule(op.clone(), &[crate::testing::random(1, &[2, 4])]);
        let ty = TensorType::new(DType::F64, [4, 4]);
        let result = op.infer(&[&ty]).unwrap().remove(0);
        assert_eq!(result.to_string(), "tensor<4x3xcomplex<f64>>");
        let rule = op.rule(&[&ty], &[&result]);
        assert_eq!(rule.factors[0].kind, FactorKind::Pass);
        assert!(rule.factors[1..].iter().all(|factor| factor.kind == FactorKind::Whole));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ty = TensorType::new(DType::F32, [4, 4]);
        let fft = |kind, length: &[usize]| Fft { kind, length: length.to_vec() };
        assert!(refusal(fft(FftKind::Fft, &[4]), std::slice::from_ref(&ty)).contains("E103"));
        assert!(refusal(fft(FftKind::Rfft, &[3]), std::slice::from_ref(&ty)).contains("E106"));
        assert!(refusal(fft(FftKind::Rfft, &[]), std::slice::from_ref(&ty)).contains("E106"));
        assert!(refusal(fft(FftKind::Rfft, &[4, 4, 4]), &[ty]).contains("E106"));
    }
}
