//! Memory of ranks as arrays of Python, not copied.
//!
//! An array has a lease as its base object. The lease keeps the ranks alive, and the step that lends counts the leases
//! that are left, so that nothing is overwritten that a program still sees.

use crate::executable::Executable;
use crate::tensors::Returned;
use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use partita_runtime::Lent;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What arrays over memory of ranks are based on.
#[pyclass(frozen, module = "partita._partita")]
pub struct Lease {
    _of: Py<Executable>,
    _count: Arc<()>,
}

/// The leases that a step has given, by the name of what it lent.
#[derive(Default)]
pub struct Leases(Mutex<Vec<(String, Weak<()>)>>);

impl Leases {
    /// Whether an array over what has this name is left.
    pub fn is_lent(&self, name: &str) -> bool {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|(_, lease)| lease.strong_count() > 0);
        given.iter().any(|(other, _)| other == name)
    }

    /// A lease of what has this name, for any number of arrays.
    pub fn give(&self, py: Python<'_>, of: Py<Executable>, name: &str) -> PyResult<Py<Lease>> {
        let count = Arc::new(());
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|(_, lease)| lease.strong_count() > 0);
        given.push((name.to_string(), Arc::downgrade(&count)));
        // Making an object of Python may run code of Python that asks for leases.
        drop(given);
        Py::new(py, Lease { _of: of, _count: count })
    }
}

/// Memory of a rank of the step that gave the lease, as an array.
pub fn array(py: Python<'_>, lent: Lent, lease: &Py<Lease>) -> Returned {
    let address = std::ptr::with_exposed_provenance(lent.address);
    // SAFETY: the bytes are in the arena of a rank, initialised, and stay there as long as its runner, which the step owns
    // for its whole life, and the lease keeps the step alive. No Rust reference to them exists between passes, and Python
    // code runs no pass while it uses them in another thread, as PyTorch demands for tensors that are changed in place.
    let view = unsafe { ArrayView1::from_shape_ptr(lent.bytes, address) };
    // SAFETY: as above; the array is based on the lease.
    let array = unsafe { PyArray1::borrow_from_array(&view, lease.bind(py).clone().into_any()) };
    (lent.dtype.name(), lent.shape, array.unbind())
}
