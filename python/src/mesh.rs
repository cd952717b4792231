//! Meshes, and layouts of tensors on them.

use crate::error::OrRaise;
use partita_base::{Diagnostic, Result};
use partita_ir::TensorType;
use partita_mesh::Sharding;
use pyo3::prelude::*;

/// A layout as Python writes it: for each dimension the axes that split it, major to minor.
pub type Dims = Vec<Vec<String>>;

/// The part of a tensor that a rank holds: its offset, its shape.
pub type Part = (Vec<usize>, Vec<usize>);

/// A tensor on a mesh, for Python: name, element type, shape, layout, (axis, combiner) of those over which it is partial,
/// the part of each rank.
pub type Described = (String, &'static str, Vec<usize>, Dims, Vec<(String, String)>, Vec<Part>);

/// A layout of a tensor of this shape.
///
/// # Errors
/// E210 for another number of dimensions, E208 for an unknown axis, and what the layout's own check finds.
pub fn layout(mesh: &partita_mesh::Mesh, shape: &[usize], dims: &Dims) -> Result<Sharding> {
    if dims.len() != shape.len() {
        return Err(Diagnostic::new("E210", "a layout has axes for each dimension of its tensor")
            .expected(format!("{} dimensions", shape.len()))
            .found(dims.len().to_string()));
    }
    let mut sharding = Sharding::replicated(shape.len());
    for (dim, axes) in dims.iter().enumerate() {
        sharding.dims[dim].axes = axes.iter().map(|axis| mesh.find_axis(axis)).collect::<Result<_>>()?;
    }
    sharding.validate(mesh, shape)?;
    Ok(sharding)
}

/// The part of each rank.
fn parts(mesh: &partita_mesh::Mesh, shape: &[usize], sharding: &Sharding) -> Vec<Part> {
    let part = |rank| (sharding.local_offset(mesh, shape, rank), sharding.local_shape(mesh, shape, rank));
    (0..mesh.rank_count()).map(part).collect()
}

/// A tensor with its layout, for Python.
pub fn described(mesh: &partita_mesh::Mesh, name: &str, ty: &TensorType, sharding: &Sharding) -> Described {
    let dims = sharding.dims.iter().map(|dim| dim.axes.iter().map(|&axis| mesh.display_axis(axis)).collect());
    let partial = sharding
        .partial
        .iter()
        .map(|&(axis, combiner)| (mesh.display_axis(axis), combiner.name().to_string()));
    let parts = parts(mesh, &ty.shape, sharding);
    (name.to_string(), ty.dtype.name(), ty.shape.clone(), dims.collect(), partial.collect(), parts)
}

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

    /// The offset and the shape of each rank's part of a tensor of this shape, split along these axes.
    fn parts(&self, py: Python<'_>, shape: Vec<usize>, dims: Dims) -> PyResult<Vec<Part>> {
        let sharding = layout(&self.mesh, &shape, &dims).or_raise(py)?;
        Ok(parts(&self.mesh, &shape, &sharding))
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
