//! Programs in text on a mesh, from the tensors of ranks to the tensors of ranks.
//!
//! A program is a graph as StableHLO text. Its inputs and outputs may have layouts, given beside the text or written in it;
//! all other layouts, and so every collective, follow by propagation. It is partitioned, lowered and compiled once, and
//! runs any number of times. An output without a layout is returned as it is computed: a sum over ranks that nothing in
//! the program needs complete stays partial.

use crate::error::{OrRaise, detached};
use crate::mesh::{Described, Dims, Mesh, described, layout};
use crate::running::OfProcess;
use crate::tensors::{Given, Returned, dtype, returned};
use indexmap::IndexMap;
use partita::execution::{CpuStep, stages};
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, Registry, TensorType, ValueId, autodiff, text};
use partita_mesh::Sharding;
use partita_program::{LowerOptions, counts, lower_stages};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{Runner, RunnerOptions};
use partita_schedule::verify::StepRunner;
use partita_schedule::{Built, open_composites};
use partita_spmd::{Options, Partitioned, partition};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::MutexGuard;

/// A planned program in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Placed {
    built: Built,
    runner: OfProcess<Runner>,
}

/// One rank's tensor from Python: element type, shape, bytes.
type Piece<'a> = (&'a str, &'a [usize], &'a [u8]);

/// What crosses to a run; bytes that are not contiguous, which the Python side never passes, are taken for none.
fn piece<'a>((ty, shape, bytes): &'a Given<'_>) -> Piece<'a> {
    (ty, shape, bytes.as_slice().unwrap_or_default())
}

/// The graph of a text, each input and output with a name.
fn parsed(source: &str) -> Result<Graph> {
    let mut graph = text::parse_with(source, "<program>", &Registry::default())?;
    for (position, value) in graph.inputs.clone().into_iter().enumerate() {
        let name = &mut graph.value_mut(value).name;
        if name.is_empty() {
            *name = format!("input_{position}");
        }
    }
    graph.output_names = (0..graph.outputs.len()).map(|position| format!("output_{position}")).collect();
    Ok(graph)
}

/// The layouts of the inputs, or outputs, from what Python gives. E415 for another number of them.
fn layouts(
    graph: &Graph,
    values: &[ValueId],
    given: &[Option<Dims>],
    mesh: &partita_mesh::Mesh,
    what: &str,
) -> Result<Vec<Option<Sharding>>> {
    if given.len() != values.len() {
        return Err(Diagnostic::new(
            "E415",
            format!("a layout, or none, is needed for each {what} of a program"),
        )
        .expected(format!("{} layouts", values.len()))
        .found(given.len().to_string()));
    }
    let read = |(value, dims): (&ValueId, &Option<Dims>)| {
        dims.as_ref().map(|dims| layout(mesh, &graph.ty(*value).shape, dims)).transpose()
    };
    values.iter().zip(given).map(read).collect()
}

/// The same layout in whole axes and single elements, as Python writes it.
fn plain(sharding: &Sharding, mesh: &partita_mesh::Mesh) -> Sharding {
    let mut plain = Sharding::replicated(sharding.dims.len());
    for (dim, entry) in sharding.dims.iter().enumerate() {
        let is_whole = |axis: &&partita_mesh::AxisRef| **axis == mesh.full_axis(axis.axis);
        plain.dims[dim].axes = entry.axes.iter().take_while(is_whole).copied().collect();
    }
    plain
}

/// Partitions a graph whose inputs arrive, and whose outputs are returned, in these layouts.
fn partitioned(
    mut graph: Graph,
    mesh: &partita_mesh::Mesh,
    inputs: Vec<Option<Sharding>>,
    outputs: Vec<Option<Sharding>>,
) -> Result<Partitioned> {
    let table = graph.meshes.iter().position(|known| known == mesh).unwrap_or(graph.meshes.len());
    if table == graph.meshes.len() {
        graph.meshes.push(mesh.clone());
    }
    let annotation = |sharding: &Sharding, origin: &str| {
        let open = vec![false; sharding.dims.len()];
        Annotation {
            mesh: table,
            sharding: sharding.clone(),
            open,
            replicated: vec![],
            origin: origin.to_string(),
        }
    };
    let mut options = Options { unreduced: true, ..Options::default() };
    for (value, sharding) in graph.inputs.clone().into_iter().zip(inputs) {
        let Some(sharding) = sharding else { continue };
        let value = graph.value_mut(value);
        value.annotation = Some(annotation(&sharding, "the layout of an input"));
        options.arrivals.insert(value.name.clone(), sharding);
    }
    graph.output_annotations.resize(graph.outputs.len(), None);
    for (position, sharding) in outputs.into_iter().enumerate() {
        let Some(sharding) = sharding else { continue };
        graph.output_annotations[position] = Some(annotation(&sharding, "the layout of an output"));
        options.returned.insert(graph.output_names[position].clone(), sharding);
    }
    let found = partition(&graph, mesh, &options)?;
    // Python's layouts have neither parts of axes nor units.
    let mut other: BTreeMap<String, Sharding> = BTreeMap::new();
    for (position, sharding) in found.outputs.iter().enumerate() {
        let plain = Sharding { partial: sharding.partial.clone(), ..plain(sharding, mesh) };
        if !sharding.same_layout(&plain, mesh, &found.graph.ty(found.graph.outputs[position]).shape) {
            other.insert(graph.output_names[position].clone(), Sharding { partial: vec![], ..plain });
        }
    }
    if other.is_empty() {
        return Ok(found);
    }
    options.returned.extend(other);
    partition(&graph, mesh, &options)
}

impl Placed {
    fn locked(&self) -> MutexGuard<'_, Runner> {
        self.runner.lock()
    }

    fn partitioned(&self) -> &Partitioned {
        &self.built.stages[0].partitioned
    }

    /// The tensors with these values: name, type, layout, and the part of each rank.
    fn describe(&self, values: &[ValueId], names: &[String], layouts: &[Sharding]) -> Vec<Described> {
        let Partitioned { graph, mesh, .. } = self.partitioned();
        let each = values.iter().zip(names).zip(layouts);
        each.map(|((&value, name), sharding)| described(mesh, name, graph.ty(value), sharding)).collect()
    }

    fn input_names(&self) -> Vec<String> {
        let graph = &self.partitioned().graph;
        graph.inputs.iter().map(|&value| graph.value(value).name.clone()).collect()
    }

    /// E415 unless a rank's tensor is the part that its layout says.
    fn check(&self, position: usize, rank: usize, piece: &Piece<'_>) -> Result<()> {
        let Partitioned { graph, mesh, inputs, .. } = self.partitioned();
        let value = graph.value(graph.inputs[position]);
        let (given, shape, bytes) = piece;
        let wanted =
            TensorType::new(value.ty.dtype, inputs[position].local_shape(mesh, &value.ty.shape, rank));
        let found = TensorType::new(dtype(given, &value.name)?, shape.to_vec());
        if wanted == found && wanted.bytes() == bytes.len() {
            return Ok(());
        }
        Err(Diagnostic::new("E415", format!("rank {rank} has a wrong part of `{}`", value.name))
            .expected(wanted.to_string())
            .found(found.to_string()))
    }

    fn run_on(&self, inputs: &[Vec<Piece<'_>>]) -> Result<Vec<Vec<TensorData>>> {
        let Partitioned { graph, mesh, outputs, .. } = self.partitioned();
        let names = self.input_names();
        let ranks = mesh.rank_count();
        if inputs.len() != names.len() || inputs.iter().any(|pieces| pieces.len() != ranks) {
            return Err(Diagnostic::new("E415", "a program takes one tensor of each rank for each input")
                .expected(format!("{} inputs, {ranks} ranks", names.len()))
                .found(format!("{:?}", inputs.iter().map(Vec::len).collect::<Vec<usize>>())));
        }
        let mut runner = self.locked();
        for (position, (name, pieces)) in names.iter().zip(inputs).enumerate() {
            for (rank, piece) in pieces.iter().enumerate() {
                self.check(position, rank, piece)?;
                runner.write_input(rank, name, piece.2)?;
            }
        }
        runner.step()?;
        let output = |(position, sharding): (usize, &Sharding)| {
            let ty = graph.ty(graph.outputs[position]);
            let of_rank = |rank: usize| {
                let bytes = runner.read_output(rank, &graph.output_names[position])?;
                Ok(TensorData::new(ty.dtype, sharding.local_shape(mesh, &ty.shape, rank), bytes))
            };
            (0..ranks).map(of_rank).collect::<Result<Vec<TensorData>>>()
        };
        outputs.iter().enumerate().map(output).collect()
    }
}

#[pymethods]
impl Placed {
    /// Plans the program. `inputs` and `outputs` have a layout each: the mesh axes of every dimension, or None where the
    /// text or propagation decides. `workers` is the number of threads.
    #[new]
    #[pyo3(signature = (source, mesh, inputs, outputs, workers = None))]
    fn new(
        py: Python<'_>,
        source: &str,
        mesh: &Mesh,
        inputs: Vec<Option<Dims>>,
        outputs: Vec<Option<Dims>>,
        workers: Option<usize>,
    ) -> PyResult<Placed> {
        detached(py, || {
            let mesh = &mesh.mesh;
            let options = RunnerOptions { workers, nan_guard: false, ..RunnerOptions::default() };
            let options = options.sharing(mesh.rank_count());
            let target = CpuStep { options: options.clone() };
            let mut graph = open_composites(&parsed(source)?, target.target())?;
            graph.aliases.clear();
            let inputs = layouts(&graph, &graph.inputs, &inputs, mesh, "input")?;
            let outputs = layouts(&graph, &graph.outputs, &outputs, mesh, "output")?;
            let built = Built::of(partitioned(graph, mesh, inputs, outputs)?)?;
            let lowering = LowerOptions { guard: false, ..LowerOptions::default() };
            let set = lower_stages(&stages(&built), &lowering, &options.cpu)?;
            let world = options.world(&set)?;
            Ok(Placed { built, runner: OfProcess::new(Runner::new(set, world, options)?) })
        })
    }

    /// The inputs: name, element type, shape, layout, and the offset and shape of each rank's part.
    fn inputs(&self) -> Vec<Described> {
        let Partitioned { graph, inputs, .. } = self.partitioned();
        self.describe(&graph.inputs, &self.input_names(), inputs)
    }

    /// The outputs, in the same form.
    fn outputs(&self) -> Vec<Described> {
        let Partitioned { graph, outputs, .. } = self.partitioned();
        self.describe(&graph.outputs, &graph.output_names, outputs)
    }

    /// Runs once: for each input the tensors of all ranks, for each output the tensors of all ranks.
    fn run(&self, py: Python<'_>, inputs: Vec<Vec<Given<'_>>>) -> PyResult<Vec<Vec<Returned>>> {
        let pieces: Vec<Vec<Piece<'_>>> =
            inputs.iter().map(|ranks| ranks.iter().map(piece).collect()).collect();
        let found = detached(py, || self.run_on(&pieces))?;
        let of_ranks = |ranks: Vec<TensorData>| ranks.into_iter().map(|data| returned(py, data)).collect();
        Ok(found.into_iter().map(of_ranks).collect())
    }

    /// The program of a rank: one line per instruction, collectives apart from the compute.
    fn host_ir(&self, py: Python<'_>, rank: usize) -> PyResult<String> {
        self.built.place_of(rank).or_raise(py)?;
        Ok(self.locked().program_set().display(rank).to_string())
    }

    /// The graph of a rank as StableHLO text, with its collectives.
    fn local_text(&self, py: Python<'_>, rank: usize) -> PyResult<String> {
        detached(py, || Ok(text::print(&self.built.local(rank)?)))
    }

    /// The collectives in which the first rank takes part: kind, how often, bytes.
    fn collectives(&self) -> Vec<(String, usize, usize)> {
        let counted = counts(self.locked().program_set(), 0);
        let mut sums: IndexMap<String, (usize, usize)> = IndexMap::new();
        for (_, counts) in counted.phases() {
            for (kind, count) in counts.kinds.iter().filter(|(_, count)| count.count > 0) {
                let sum = sums.entry(kind.to_string()).or_default();
                *sum = (sum.0 + count.count, sum.1 + count.bytes);
            }
        }
        sums.into_iter().map(|(kind, (count, bytes))| (kind, count, bytes)).collect()
    }
}

/// The program that computes, from the inputs of another and cotangents of its outputs at `seeded`, the cotangents of its
/// inputs at `wanted`.
#[pyfunction]
pub fn vjp(py: Python<'_>, source: &str, seeded: Vec<usize>, wanted: Vec<usize>) -> PyResult<String> {
    detached(py, || {
        let graph = parsed(source)?;
        let (inputs, outputs) = (graph.inputs.len(), graph.outputs.len());
        if seeded.iter().any(|&place| place >= outputs) || wanted.iter().any(|&place| place >= inputs) {
            return Err(Diagnostic::new("E415", "a cotangent of a tensor that the program does not have")
                .expected(format!("numbers below {outputs} and {inputs}"))
                .found(format!("{seeded:?} and {wanted:?}")));
        }
        Ok(text::print(&autodiff::vjp(&graph, &seeded, &wanted)?))
    })
}
