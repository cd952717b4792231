//! Checks shared by the type inference of several ops, with one wording.

use crate::op::Cost;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::fmt::Debug;

/// E101 unless there are `count` operands.
pub(crate) fn operand_count(name: &str, operands: &[&TensorType], count: usize) -> Result<()> {
    check(operands.len() == count, || {
        Diagnostic::new("E101", format!("`{name}` has a wrong number of operands"))
            .expected(count.to_string())
            .found(operands.len().to_string())
    })
}

/// E102 unless both types are the same.
pub(crate) fn same_type(name: &str, expected: &TensorType, found: &TensorType) -> Result<()> {
    check(expected == found, || {
        Diagnostic::new("E102", format!("operands of `{name}` must have one type"))
            .expected(expected.to_string())
            .found(found.to_string())
    })
}

/// E102 unless both element types are the same.
pub(crate) fn same_dtype(name: &str, expected: &TensorType, found: &TensorType) -> Result<()> {
    check(expected.dtype == found.dtype, || {
        Diagnostic::new("E102", format!("operands of `{name}` must have one element type"))
            .expected(expected.dtype.name())
            .found(found.dtype.name())
    })
}

/// E103 unless `allowed`; `expected` describes what is.
pub(crate) fn element_type(name: &str, allowed: bool, expected: &str, found: DType) -> Result<()> {
    check(allowed, || {
        Diagnostic::new("E103", format!("`{name}` is not defined for this element type"))
            .expected(expected)
            .found(found.name())
    })
}

/// E104 with this message unless `fits`.
pub(crate) fn shapes(
    fits: bool,
    message: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Result<()> {
    check(fits, || Diagnostic::new("E104", message).expected(expected).found(found))
}

/// E105 unless the attribute has one entry per dimension.
pub(crate) fn one_per_dim<T: Debug>(name: &str, attribute: &str, list: &[T], rank: usize) -> Result<()> {
    check(list.len() == rank, || {
        Diagnostic::new("E105", format!("`{attribute}` of `{name}` must have one entry per dimension"))
            .expected(format!("{rank} entries"))
            .found(format!("{list:?}"))
    })
}

/// E105 unless the dimensions are different and exist.
pub(crate) fn distinct_dims(name: &str, attribute: &str, dims: &[usize], rank: usize) -> Result<()> {
    let fits = dims.iter().enumerate().all(|(i, dim)| *dim < rank && !dims[..i].contains(dim));
    check(fits, || {
        Diagnostic::new("E105", format!("`{attribute}` of `{name}` must be different dimensions"))
            .expected(format!("numbers below {rank}, each at most once"))
            .found(format!("{dims:?}"))
    })
}

/// E106 with this message unless `fits`.
pub(crate) fn sizes(
    fits: bool,
    message: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Result<()> {
    check(fits, || Diagnostic::new("E106", message).expected(expected).found(found))
}

/// Returns the failure if the condition does not hold.
fn check(holds: bool, failure: impl FnOnce() -> Box<Diagnostic>) -> Result<()> {
    if holds { Ok(()) } else { Err(failure()) }
}

/// The cost of an op that only moves elements.
pub(crate) fn movement_cost(operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: 0.0, bytes: bytes as f64 }
}
