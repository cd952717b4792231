//! Tensors between Python and the library: an element type, a shape, and a flat numpy array of bytes.
//!
//! The Python side makes a byte view of whatever it has (numpy, PyTorch, lists), so that one form crosses for all
//! element types, those that numpy lacks included. Python's buffer protocol would do without numpy, but is not part of
//! the stable interface of Python 3.10.

use indexmap::IndexMap;
use numpy::{PyArray1, PyReadonlyArray1};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Literal, TensorType};
use partita_runtime::BatchTensor;
use partita_runtime::checkpoint::TensorData;
use pyo3::prelude::*;

/// A tensor from Python: element type, shape, bytes.
pub type Given<'py> = (String, Vec<usize>, PyReadonlyArray1<'py, u8>);

/// A tensor for Python.
pub type Returned = (&'static str, Vec<usize>, Py<PyArray1<u8>>);

/// A name, an element type and a shape.
pub type Type = (String, &'static str, Vec<usize>);

/// The type of a tensor with its name.
pub fn type_of(name: &str, ty: &TensorType) -> Type {
    (name.to_string(), ty.dtype.name(), ty.shape.clone())
}

/// The element type of this name. E354 if there is none.
pub fn dtype(name: &str, of: &str) -> Result<DType> {
    DType::from_name(name).ok_or_else(|| {
        Diagnostic::new("E354", format!("`{of}` has an unsupported element type"))
            .expected(DType::ALL.map(DType::name).join(", "))
            .found(name)
    })
}

/// E415 unless the bytes fill the shape.
fn check(name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let count = shape.iter().try_fold(dtype.size_bytes(), |product, &extent| product.checked_mul(extent));
    if count == Some(bytes.len()) {
        return Ok(());
    }
    Err(Diagnostic::new("E415", format!("the bytes of `{name}` do not fill its shape"))
        .expected(format!("{dtype}{shape:?}"))
        .found(format!("{} bytes", bytes.len())))
}

/// Tensors by name, borrowed from Python.
pub struct Batch<'py> {
    tensors: IndexMap<String, (DType, Vec<usize>, PyReadonlyArray1<'py, u8>)>,
}

impl<'py> Batch<'py> {
    /// Checks element types and sizes.
    ///
    /// # Errors
    /// E354 for an unknown element type, E415 for bytes that do not fill a shape.
    pub fn new(given: Vec<(String, Given<'py>)>) -> Result<Batch<'py>> {
        let mut tensors = IndexMap::new();
        for (name, (ty, shape, bytes)) in given {
            let dtype = dtype(&ty, &name)?;
            check(&name, dtype, &shape, bytes.as_slice().unwrap_or_default())?;
            tensors.insert(name, (dtype, shape, bytes));
        }
        Ok(Batch { tensors })
    }

    /// The tensors as the training loop takes them, not copied.
    pub fn views(&self) -> Vec<BatchTensor<'_>> {
        let mut views = Vec::with_capacity(self.tensors.len());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            views.push(BatchTensor {
                name,
                dtype: *dtype,
                shape,
                bytes: bytes.as_slice().unwrap_or_default(),
            });
        }
        views
    }
}

/// A tensor from Python, copied.
///
/// # Errors
/// E354 for an unknown element type, E415 for bytes that do not fill the shape.
pub fn literal(name: &str, given: &Given<'_>) -> Result<Literal> {
    let (ty, shape, bytes) = given;
    let (dtype, bytes) = (dtype(ty, name)?, bytes.as_slice().unwrap_or_default());
    check(name, dtype, shape, bytes)?;
    let ty = TensorType::new(dtype, shape.clone());
    Ok(Literal::from_bytes(&ty, bytes).unwrap_or_else(|| Literal::zeros(&ty)))
}

/// A tensor for Python, its bytes moved.
pub fn returned(py: Python<'_>, data: TensorData) -> Returned {
    (data.dtype.name(), data.shape, PyArray1::from_vec(py, data.bytes).unbind())
}
