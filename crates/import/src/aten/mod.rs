//! The ATen ops that `torch.export` makes of models, before and after `run_decompositions()`: one
//! row for each overload, in the file of its family.
//!
//! A row names an op and the function that builds it. That function reads the arguments by the names
//! of the op's schema (`native_functions.yaml`) and returns the results. An op in place,
//! `aten.add_.Tensor`, is the row of `aten.add.Tensor` followed by a write to its first argument.

mod activation;
mod arithmetic;
mod attention;
mod collective;
mod compare;
mod complex;
mod composed;
mod contract;
mod convolution;
mod create;
mod embedding;
mod fourier;
mod grouped;
mod index;
mod loss;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod shape;
mod size;
mod sort;
mod windows;

use crate::pt2::call::{Call, Out, Outs, Scalar};
use partita_base::{DType, InertType, Result};
use partita_ir::{Literal, TensorType, ValueId};

/// Builds one op.
pub type Build = fn(&mut Call) -> Outs;

/// The rows of a family.
type Rows = &'static [(&'static str, Build)];

const FAMILIES: &[Rows] = &[
    activation::ROWS,
    arithmetic::ROWS,
    attention::ROWS,
    collective::ROWS,
    compare::ROWS,
    complex::ROWS,
    composed::ROWS,
    contract::ROWS,
    convolution::ROWS,
    create::ROWS,
    embedding::ROWS,
    fourier::ROWS,
    grouped::ROWS,
    index::ROWS,
    loss::ROWS,
    norm::ROWS,
    pool::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    shape::ROWS,
    size::ROWS,
    sort::ROWS,
    windows::ROWS,
];

/// How a call is built.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its builder function.
    pub build: Build,
    /// Whether the result replaces the elements of `self`.
    pub in_place: bool,
}

/// The row of a call's target, `torch.ops.aten.add.Tensor`.
pub fn find(target: &str) -> Option<Row> {
    let name = target.strip_prefix("torch.ops.").unwrap_or(target);
    if let Some(build) = build(name) {
        return Some(Row { build, in_place: false });
    }
    let build = build(&functional(name)?)?;
    Some(Row { build, in_place: true })
}

fn build(name: &str) -> Option<Build> {
    FAMILIES.iter().copied().flatten().find(|(row, _)| *row == name).map(|(_, build)| *build)
}

/// The op whose result an op in place writes: `aten.add.Tensor` for `aten.add_.Tensor`.
fn functional(name: &str) -> Option<String> {
    let (base, overload) = name.strip_prefix("aten.")?.split_once('.')?;
    let base = match base.strip_prefix("__i") {
        Some(rest) => format!("__{rest}"),
        None => base.strip_suffix('_')?.to_string(),
    };
    Some(format!("aten.{base}.{overload}"))
}

/// The number of rows.
pub fn count() -> usize {
    FAMILIES.iter().map(|rows| rows.len()).sum()
}

/// The names of all rows.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().copied().flatten().map(|(name, _)| *name)
}

/// One new tensor as the only result.
fn one(value: ValueId) -> Outs {
    Ok(vec![Out::Value(value)])
}

/// A number as a scalar tensor.
fn constant(call: &mut Call, dtype: DType, value: Scalar) -> ValueId {
    let ty = TensorType::scalar(dtype);
    let literal = match value {
        Scalar::Complex(value) if dtype.is_complex() => Literal::from_complex(&ty, [value].into_iter()),
        Scalar::Int(value) if !dtype.is_float() && !dtype.is_complex() => {
            Literal::splat_int(&ty, value.into())
        }
        value => Literal::splat(&ty, value.as_f64()),
    };
    call.b().constant(literal)
}

/// An argument that is a tensor or a number, in this element type; a number is a scalar.
fn operand(call: &mut Call, name: &str, dtype: DType) -> Result<ValueId> {
    if call.is_tensor(name) {
        let value = call.tensor(name)?;
        return convert(call, value, dtype);
    }
    let value = call.number(name)?;
    Ok(constant(call, dtype, value))
}

/// Two arguments, tensors or numbers, in one element type and broadcast to one shape.
fn operands(call: &mut Call, names: [&str; 2], dtype: DType) -> Result<[ValueId; 2]> {
    let [a, b] = [operand(call, names[0], dtype)?, operand(call, names[1], dtype)?];
    broadcast_pair(call, a, b)
}

fn broadcast_pair(call: &mut Call, a: ValueId, b: ValueId) -> Result<[ValueId; 2]> {
    let shape = call.joint_shape(&call.shape(a), &call.shape(b))?;
    Ok([call.spread(a, &shape)?, call.spread(b, &shape)?])
}

/// Another element type; a boolean is whether a number is not 0. E356 for a real type of complex numbers: an op that takes
/// them does not lose their imaginary parts.
fn convert(call: &mut Call, value: ValueId, dtype: DType) -> Result<ValueId> {
    let from = call.ty(value);
    if from.dtype.is_complex() && !dtype.is_complex() {
        return Err(call.unsupported("real numbers", from.to_string()));
    }
    call.b().convert(value, dtype)
}

/// The type of sums: f32 for narrower floats.
fn wide(dtype: DType) -> DType {
    partita_nn::accumulation_dtype(dtype)
}

/// The element type that two operands are promoted to: the higher category (boolean, integer,
/// float) decides, then the wider type. A number or a tensor without dimensions only counts if its
/// category is higher (`torch.result_type`).
fn promoted(call: &Call, names: [&str; 2]) -> Result<DType> {
    let mut kinds = Vec::new();
    for name in names {
        kinds.push(if call.is_tensor(name) {
            let tensor = call.reference(name)?;
            let ty = call.type_of(tensor);
            (ty.dtype, if ty.rank() == 0 { 1 } else { 0 })
        } else {
            let dtype = match call.number(name)? {
                Scalar::Bool(_) => DType::Bool,
                Scalar::Int(_) => DType::I64,
                Scalar::Float(_) => DType::F32,
                Scalar::Complex(_) => DType::Inert(InertType::Complex64),
            };
            (dtype, 2)
        });
    }
    let category = |dtype: DType| match dtype {
        DType::Bool => 0,
        dtype if dtype.is_complex() => 3,
        dtype => 1 + u8::from(dtype.is_float()),
    };
    let [(a, rank_a), (b, rank_b)] = kinds[..] else { unreachable!("two operands") };
    Ok(match (category(a).cmp(&category(b)), rank_a.cmp(&rank_b)) {
        (std::cmp::Ordering::Greater, _) => a,
        (std::cmp::Ordering::Less, _) => b,
        (_, std::cmp::Ordering::Less) => a,
        (_, std::cmp::Ordering::Greater) => b,
        _ => joined(a, b),
    })
}

/// The type that holds both, of one category.
fn joined(a: DType, b: DType) -> DType {
    match (a, b) {
        (a, b) if a == b => a,
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        (a, b) if a.size_bytes() >= b.size_bytes() => a,
        (_, b) => b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Rows that no exporter calls for the recorded models: `tests/bad_files.rs` calls them.
    const ELSEWHERE: &[&str] = &[
        "_operator.eq",
        "_operator.ne",
        "_operator.lt",
        "_operator.le",
        "_operator.gt",
        "_operator.ge",
        "aten._assert_scalar.default",
    ];

    #[test]
    fn every_row_is_called_by_a_recorded_model() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2");
        let mut called = BTreeSet::new();
        for entry in std::fs::read_dir(folder).expect("recorded models") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|extension| extension == "pt2") {
                called.extend(crate::Pt2::open(&path, &crate::Limits::default()).expect("a model").targets());
            }
        }
        called.extend(recorded_ops());
        let is_called = |row: &str| {
            let target = |target: &String| {
                let name = target.strip_prefix("torch.ops.").unwrap_or(target);
                name == row || (build(name).is_none() && functional(name).as_deref() == Some(row))
            };
            called.iter().any(target)
        };
        let missing: Vec<&str> = names().filter(|row| !is_called(row)).collect();
        assert_eq!(missing.iter().copied().collect::<BTreeSet<_>>(), ELSEWHERE.iter().copied().collect());
    }

    fn of_ops(file: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ops").join(file);
        std::fs::read_to_string(path).expect("a file of tests/ops")
    }

    /// The ops that `tests/ops` compares with PyTorch at nasty points (`tests/all/points.rs`).
    fn recorded_ops() -> BTreeSet<String> {
        let op = |line: &str| {
            let case: serde_json::Value = serde_json::from_str(line).expect("a case");
            case["op"].as_str().expect("an op").to_string()
        };
        of_ops("cases.jsonl").lines().skip(1).map(op).collect()
    }

    #[test]
    fn every_row_is_compared_at_nasty_points_or_left_out_for_a_reason() {
        let text = of_ops("left_out.txt");
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let left_out: Vec<Vec<&str>> = lines.map(|line| line.split('|').map(str::trim).collect()).collect();
        let recorded = recorded_ops();
        let mut of_gradients = 0;
        for line in &left_out {
            let [op, kind, why] = line[..] else { panic!("{line:?} is not `op | kind | why`") };
            assert!(names().any(|row| row == op), "`{op}` is no row");
            assert!(!recorded.contains(op), "`{op}` is left out and recorded");
            assert!(!why.is_empty() && ["constant", "gradient"].contains(&kind), "{line:?}");
            of_gradients += usize::from(kind == "gradient");
        }
        let missing: Vec<&str> = names()
            .filter(|row| !recorded.contains(*row) && !left_out.iter().any(|line| line[0] == *row))
            .collect();
        assert_eq!(missing, [""; 0], "rows that no case calls");
        assert!(10 * of_gradients <= count(), "{of_gradients} of {} rows are left out", count());
    }

    #[test]
    fn rows_are_distinct_and_ops_in_place_are_found() {
        let mut all: Vec<&str> = names().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a row is there twice");
        assert!(!find("torch.ops.aten.add.Tensor").unwrap().in_place);
        assert!(find("torch.ops.aten.add_.Tensor").unwrap().in_place);
        assert!(find("torch.ops.aten.__iand__.Tensor").unwrap().in_place);
        assert!(find("torch.ops.aten.fft_hfft.default").is_none());
        assert!(find("torch.ops.mine.op.default").is_none());
    }
}
