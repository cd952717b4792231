//! Meshes.

use crate::error::OrRaise;
use pyo3::prelude::*;

/// Ranks on named axes: ``Mesh("dp=2,tp=2")``.
#[pyclass(frozen, eq, hash, module = "partita")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    pub mesh: partita_mesh::Mesh,
}

#[pymethods]
impl Mesh {
    #[new]
    fn new(py: Python<'_>, axes: &str) -> PyResult<Mesh> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Mesh { mesh: partita_mesh::Mesh::parse(axes, Some(cores)).or_raise(py)? })
    }

    #[getter]
    fn axis_names(&self) -> Vec<String> {
        self.mesh.axes.iter().map(|axis| axis.name.clone()).collect()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.mesh.axes.iter().map(|axis| axis.size).collect()
    }

    #[getter]
    fn size(&self) -> usize {
        self.mesh.rank_count()
    }

    fn __len__(&self) -> usize {
        self.mesh.rank_count()
    }

    fn __str__(&self) -> String {
        self.mesh.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Mesh(\"{}\")", self.mesh)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> (Py<PyAny>, (String,)) {
        (slf.get_type().into_any().unbind(), (slf.get().mesh.to_string(),))
    }
}
