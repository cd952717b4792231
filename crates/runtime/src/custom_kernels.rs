//! Custom kernels of the user for the CPU device: a table that is passed to lowering and to the
//! runner, never a global.
//!
//! A kernel belongs to a [`CustomOp`], whose decomposition defines its results. Registering a
//! kernel compares it with the decomposition. The kernel then runs for every composite that has the
//! op's name and computes what the op builds for its types, if the kernel supports those; otherwise
//! the decomposition runs.

use std::fmt;
use std::sync::Arc;

use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::Composite;
use partita_ir::{CustomOp, Graph, Literal, TensorType, evaluate, literal::indices};
use partita_kernels::{self as kernels, MAX_RANK};
pub use partita_kernels::{Bool, Element};
use smallvec::SmallVec;

use crate::arena::{Arena, Memory, Place, Span};
use crate::cpu::{Kernel, Value};

/// Maximum number of operands, and of results, of a custom kernel.
const MAX_TENSORS: usize = 32;

/// A custom kernel. It runs on one thread of its rank, because the library does not know how its
/// work may be split.
pub trait CpuKernel: Send + Sync {
    /// Whether it supports these types, which are those of one rank's shards.
    fn supports(&self, operands: &[TensorType], results: &[TensorType]) -> bool;

    /// Scratch memory it needs, in bytes.
    fn workspace_bytes(&self, _operands: &[TensorType], _results: &[TensorType]) -> usize {
        0
    }

    /// Writes every element of every result. It may run on any thread, concurrently with other
    /// calls; the contents of the workspace are undefined. It should not allocate.
    ///
    /// # Errors
    /// Invalid data; the error ends the run.
    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<()>;
}

/// A tensor for reading, in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a [u8],
}

/// A tensor for writing, in row-major order.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a mut [u8],
}

impl<'a> TensorView<'a> {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements; booleans as [`Bool`].
    ///
    /// # Errors
    /// E425 if they are not of type `T`.
    pub fn elements<T: Element>(&self) -> Result<&'a [T]> {
        check_type::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice(self.bytes))
    }
}

impl TensorViewMut<'_> {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        self.shape
    }

    /// The elements; booleans as [`Bool`].
    ///
    /// # Errors
    /// E425 if they are not of type `T`.
    pub fn elements<T: Element>(&mut self) -> Result<&mut [T]> {
        check_type::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice_mut(self.bytes))
    }
}

fn check_type<T: Element>(dtype: DType) -> Result<()> {
    if dtype == T::DTYPE {
        return Ok(());
    }
    Err(Diagnostic::new("E425", "a kernel reads a tensor as another element type")
        .expected(dtype.to_string())
        .found(T::DTYPE.to_string())
        .help("return false from `supports` for types that the kernel does not support"))
}

#[derive(Clone)]
struct Entry {
    op: CustomOp,
    kernel: Arc<dyn CpuKernel>,
}

/// Kernels by the ops they compute.
#[derive(Clone, Default)]
pub struct CpuKernels {
    entries: Vec<Entry>,
}

impl fmt::Debug for CpuKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| &entry.op)).finish()
    }
}

impl CpuKernels {
    /// Adds a kernel for an op, after comparing it with the decomposition on each example (a list
    /// of operand types): floats are drawn from (-2, 2), integers from 0 to 3, the same in every
    /// run. An op may have several kernels; the latest one that supports the types runs.
    ///
    /// # Errors
    /// E246 if the numbers differ, E247 without an example that the kernel supports, E245 if an
    /// example has a wrong number of operands; also errors of the decomposition or the kernel.
    pub fn register(
        &mut self,
        op: &CustomOp,
        kernel: Arc<dyn CpuKernel>,
        examples: &[Vec<TensorType>],
    ) -> Result<()> {
        let entry = Entry { op: op.clone(), kernel };
        if examples.is_empty() {
            return Err(Diagnostic::new(
                "E247",
                format!("no example to check the kernel of `{}` on", op.name),
            )
            .expected("operand types to run it with, at least once"));
        }
        for types in examples {
            check(&entry, types).map_err(|error| {
                let types: Vec<String> = types.iter().map(TensorType::to_string).collect();
                error.note(format!("kernel of `{}` on operands {}", op.name, types.join(", ")))
            })?;
        }
        self.entries.push(entry);
        Ok(())
    }

    /// The kernel for a composite.
    pub(crate) fn find(&self, composite: &Composite) -> Option<&Arc<dyn CpuKernel>> {
        let graph = &composite.definition.decomposition;
        let fits =
            |list: &[_]| list.len() <= MAX_TENSORS && list.iter().all(|&v| graph.ty(v).rank() <= MAX_RANK);
        let (operands, results) = types(graph);
        if !fits(&graph.inputs) || !fits(&graph.outputs) {
            return None;
        }
        let takes =
            |entry: &&Entry| entry.op.describes(composite) && entry.kernel.supports(&operands, &results);
        self.entries.iter().rev().find(takes).map(|entry| &entry.kernel)
    }

    /// The kernel as an instruction; `None` also if the elements of an operand are not contiguous.
    pub(crate) fn compile(
        &self,
        composite: &Composite,
        operands: &[Value],
        outputs: &[Place],
    ) -> Option<Kernel> {
        let kernel = self.find(composite)?.clone();
        let is_dense = |value: &Value| match value {
            Value::Place(place) => place.is_dense(),
            Value::Number(_, shape) => shape.is_empty(),
        };
        if !operands.iter().all(is_dense) {
            return None;
        }
        let (operand_types, result_types) = types(&composite.definition.decomposition);
        let bytes = kernel.workspace_bytes(&operand_types, &result_types);
        let (operands, outputs) = (operands.to_vec(), outputs.to_vec());
        Some(Kernel::new(bytes, move |memory: &Memory<'_>, workspace: Span| {
            let mut views = SmallVec::<[TensorView<'_>; MAX_TENSORS]>::new();
            views.extend(operands.iter().map(|operand| match operand {
                Value::Place(place) => {
                    TensorView { dtype: place.dtype, shape: &place.shape, bytes: memory.bytes(place.span()) }
                }
                Value::Number(scalar, shape) => {
                    TensorView { dtype: scalar.dtype(), shape, bytes: scalar.bytes() }
                }
            }));
            let mut results = SmallVec::<[TensorViewMut<'_>; MAX_TENSORS]>::new();
            results.extend(outputs.iter().map(|place| TensorViewMut {
                dtype: place.dtype,
                shape: &place.shape,
                bytes: memory.bytes_mut(place.span()),
            }));
            let scratch = memory.bytes_mut(Span { bytes, ..workspace });
            kernel.run(&views, &mut results, scratch)
        }))
    }
}

fn types(graph: &Graph) -> (Vec<TensorType>, Vec<TensorType>) {
    let of = |values: &[partita_ir::ValueId]| values.iter().map(|&v| graph.ty(v).clone()).collect();
    (of(&graph.inputs), of(&graph.outputs))
}

/// Runs a kernel on random operands of these types and compares with the decomposition.
fn check(entry: &Entry, example: &[TensorType]) -> Result<()> {
    let composite = entry.op.instantiate(example)?;
    let graph = &composite.definition.decomposition;
    let inputs: Vec<Literal> = example.iter().enumerate().map(|(i, ty)| random(i as u64, ty)).collect();
    let expected = evaluate(graph, &inputs)?;
    let mut end = 0;
    let mut place = |ty: &TensorType| {
        let place = Place::dense(end, ty.dtype, &ty.shape);
        end = (end + ty.bytes()).next_multiple_of(partita_program::ALIGNMENT_BYTES);
        place
    };
    let (operand_types, result_types) = types(graph);
    let operands: Vec<Place> = operand_types.iter().map(&mut place).collect();
    let outputs: Vec<Place> = result_types.iter().map(&mut place).collect();
    let alone = CpuKernels { entries: vec![entry.clone()] };
    let values: Vec<Value> = operands.iter().cloned().map(Value::Place).collect();
    let kernel = alone.compile(&composite, &values, &outputs).ok_or_else(|| {
        Diagnostic::new("E247", format!("the kernel of `{}` does not support its own example", entry.op.name))
            .help("give examples that `supports` accepts")
    })?;
    let workspace = Span { offset: end, bytes: kernel.workspace_bytes() };
    let arena = Arena::new(end + workspace.bytes)?;
    let memory = arena.memory();
    // Elements that the kernel does not write differ in one of the two.
    for background in [0xff, 0x00] {
        memory.bytes_mut(Span { offset: 0, bytes: end + workspace.bytes }).fill(background);
        for (place, literal) in operands.iter().zip(&inputs) {
            memory.bytes_mut(place.span()).copy_from_slice(&literal.to_bytes());
        }
        kernel.run(&memory, workspace)?;
        for (number, (place, expected)) in outputs.iter().zip(&expected).enumerate() {
            let found = Literal::from_bytes(&expected.ty, memory.bytes(place.span()))
                .expect("a place has the bytes of its type");
            compare(&entry.op.name, number, expected, &found)?;
        }
    }
    Ok(())
}

fn compare(name: &str, number: usize, expected: &Literal, found: &Literal) -> Result<()> {
    let tolerance = tolerance(expected.ty.dtype);
    let near = |e: f64, f: f64| {
        e == f || (e.is_nan() && f.is_nan()) || (e - f).abs() <= tolerance * (1.0 + e.abs().min(f64::MAX))
    };
    let pairs = expected.to_f64().into_iter().zip(found.to_f64());
    match indices(&expected.ty.shape).zip(pairs).find(|(_, (e, f))| !near(*e, *f)) {
        None => Ok(()),
        Some((index, (e, f))) => Err(Diagnostic::new(
            "E246",
            format!("the kernel of `{name}` and its decomposition give different results"),
        )
        .at(format!("result {number}, index {index:?}"))
        .expected(e.to_string())
        .found(f.to_string())),
    }
}

/// The permitted absolute and relative difference between a kernel and the decomposition: another
/// summation order or approximation passes, another function does not.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 1e-2,
        DType::BF16 => 5e-2,
        _ => 0.0,
    }
}

/// Random numbers that depend only on the operand's position.
fn random(stream: u64, ty: &TensorType) -> Literal {
    let key = kernels::random_key(0, stream);
    let number = |i: usize| {
        let bits = kernels::random_bits_at(key, i as u64) >> 32;
        match ty.dtype {
            dtype if dtype.is_float() => bits as f64 / (1u64 << 30) as f64 - 2.0,
            DType::Bool => (bits % 2) as f64,
            _ => (bits % 4) as f64,
        }
    };
    Literal::from_f64(ty, (0..ty.element_count()).map(number))
}
