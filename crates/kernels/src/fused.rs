//! Chains of elementwise functions run tile by tile: a value between two functions lives in a scratch tile
//! that never leaves the cache, so a chain reads its inputs and writes its outputs once. Each function runs
//! the same loop as its stand-alone kernel, so the bits are the same as well.

use bytemuck::cast_slice_mut;
use partita_base::{DType, Diagnostic, Result};

use crate::binary::binary_tile;
use crate::compare::{clamp_tile, compare_tile, select_tile};
use crate::convert::convert_tile;
use crate::copy::{fill_tile, iota_tile};
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::unary::unary_tile;
use crate::workspace::{Workspace, piece_bytes};
use crate::{Binary, Direction, Scalar, Unary, View, ViewMut};

/// What one instruction of an [`ElementwiseProgram`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EwOp {
    /// A function of one argument.
    Unary(Unary),
    /// A function of two arguments of one type.
    Binary(Binary),
    /// Two arguments of one type give bool; `total_order` as for [`crate::compare`].
    Compare {
        /// The relation.
        direction: Direction,
        /// Whether floats compare by the total order.
        total_order: bool,
    },
    /// Predicate, value where true, value where false.
    Select,
    /// Lower bound, value, upper bound.
    Clamp,
    /// The argument in the type of the result.
    Convert,
    /// The argument's bits in the type of the result, of the same size.
    Bitcast,
    /// No arguments; one value everywhere.
    Constant(Scalar),
    /// No arguments; the index along a dimension of the program's shape.
    Iota {
        /// The dimension.
        dim: usize,
    },
}

impl EwOp {
    fn argument_count(self) -> usize {
        match self {
            EwOp::Constant(_) | EwOp::Iota { .. } => 0,
            EwOp::Unary(_) | EwOp::Convert | EwOp::Bitcast => 1,
            EwOp::Binary(_) | EwOp::Compare { .. } => 2,
            EwOp::Select | EwOp::Clamp => 3,
        }
    }

    /// Whether the op takes these types to that one.
    fn accepts(self, args: &[DType], out: DType) -> bool {
        match (self, args) {
            (EwOp::Unary(op), &[x]) => op.result_dtype(x) == Some(out),
            (EwOp::Binary(op), &[a, b]) => a == b && out == a && op.supports(a),
            (EwOp::Compare { .. }, &[a, b]) => a == b && out == DType::Bool,
            (EwOp::Select, &[pred, a, b]) => pred == DType::Bool && a == b && out == a,
            (EwOp::Clamp, &[low, x, high]) => low == x && high == x && out == x,
            (EwOp::Convert, &[_]) => true,
            (EwOp::Bitcast, &[x]) => x.size_bytes() == out.size_bytes(),
            (EwOp::Constant(value), &[]) => value.dtype() == out,
            (EwOp::Iota { .. }, &[]) => true,
            _ => false,
        }
    }
}

/// One step: registers in, register out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EwInstr {
    /// What to compute.
    pub op: EwOp,
    /// The registers it reads.
    pub args: Vec<usize>,
    /// The register it writes.
    pub out: usize,
}

/// Where a register's tile lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// In the memory of an output.
    Output(usize),
    /// In a tile of the workspace; inputs `i` own slot `i`.
    Slot(usize),
}

/// A chain of elementwise functions over one shape, as data. Registers hold tensors of that shape; the first
/// `input_count` are the inputs, every other is written by one instruction before it is read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElementwiseProgram {
    registers: Vec<DType>,
    input_count: usize,
    instructions: Vec<EwInstr>,
    outputs: Vec<usize>,
    places: Vec<Place>,
    slots: usize,
}

impl ElementwiseProgram {
    /// The most inputs a program can have.
    pub const MAX_INPUTS: usize = 32;
    /// The most outputs a program can have.
    pub const MAX_OUTPUTS: usize = 16;

    /// A program over registers of these types; `outputs` are the registers to keep.
    ///
    /// # Errors
    /// E421 where a register is read before it is written, written twice, or of a type its op does not give,
    /// or there are too many inputs or outputs.
    pub fn new(
        registers: Vec<DType>,
        input_count: usize,
        instructions: Vec<EwInstr>,
        outputs: Vec<usize>,
    ) -> Result<Self> {
        let wrong = |text: String| Diagnostic::new("E421", format!("malformed elementwise program: {text}"));
        if input_count > Self::MAX_INPUTS.min(registers.len()) || outputs.len() > Self::MAX_OUTPUTS {
            return Err(wrong(format!("{input_count} inputs and {} outputs", outputs.len()))
                .expected(format!("at most {} inputs and {} outputs", Self::MAX_INPUTS, Self::MAX_OUTPUTS)));
        }
        let mut written = vec![false; registers.len()];
        written[..input_count].fill(true);
        for instruction in &instructions {
            let EwInstr { op, args, out } = instruction;
            if let Some(arg) = args.iter().find(|&&arg| !written.get(arg).is_some_and(|&w| w)) {
                return Err(wrong(format!("{op:?} reads register {arg} before it is written")));
            }
            if *out >= registers.len() || written[*out] {
                return Err(wrong(format!("{op:?} cannot write register {out}")));
            }
            let types: Vec<DType> = args.iter().map(|&arg| registers[arg]).collect();
            if args.len() != op.argument_count() || !op.accepts(&types, registers[*out]) {
                return Err(wrong(format!("{op:?} does not take {types:?} to {}", registers[*out])));
            }
            written[*out] = true;
        }
        if let Some(out) = outputs.iter().find(|&&out| !written.get(out).is_some_and(|&w| w)) {
            return Err(wrong(format!("output register {out} is never written")));
        }
        let (places, slots) = place(&registers, input_count, &instructions, &outputs);
        Ok(ElementwiseProgram { registers, input_count, instructions, outputs, places, slots })
    }

    /// The type of every register.
    pub fn registers(&self) -> &[DType] {
        &self.registers
    }

    /// How many registers, the first ones, are inputs.
    pub fn input_count(&self) -> usize {
        self.input_count
    }

    /// The steps, in order.
    pub fn instructions(&self) -> &[EwInstr] {
        &self.instructions
    }

    /// The registers that are kept, in the order of the outputs.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }
}

/// Gives every register a place; slots are reused once the last reader has run.
fn place(
    registers: &[DType],
    input_count: usize,
    instructions: &[EwInstr],
    outputs: &[usize],
) -> (Vec<Place>, usize) {
    let mut last_read = vec![0; registers.len()];
    for (step, instruction) in instructions.iter().enumerate() {
        for &arg in &instruction.args {
            last_read[arg] = step + 1;
        }
    }
    let mut places: Vec<Place> = (0..registers.len()).map(Place::Slot).collect();
    let mut slots = input_count;
    let mut free: Vec<usize> = Vec::new();
    for (step, instruction) in instructions.iter().enumerate() {
        let (out, args) = (instruction.out, &instruction.args);
        let constant = matches!(instruction.op, EwOp::Constant(_));
        // Nobody reads it again: it is made where it must end. A constant is made once, so not there.
        let kept = outputs.iter().position(|&register| register == out);
        places[out] = match kept {
            Some(output) if last_read[out] == 0 && !constant => Place::Output(output),
            _ => Place::Slot(match free.pop().filter(|_| !constant) {
                Some(slot) => slot,
                None => {
                    slots += 1;
                    slots - 1
                }
            }),
        };
        for (i, &arg) in args.iter().enumerate() {
            let done = last_read[arg] == step + 1 && !args[..i].contains(&arg);
            let lasting = arg < input_count
                || outputs.contains(&arg)
                || instructions.iter().any(|i| i.out == arg && matches!(i.op, EwOp::Constant(_)));
            if let Place::Slot(slot) = places[arg]
                && done
                && !lasting
            {
                free.push(slot);
            }
        }
    }
    (places, slots)
}

/// Bytes of workspace that [`run_elementwise`] needs.
pub fn elementwise_workspace_bytes(program: &ElementwiseProgram) -> usize {
    piece_bytes::<u64>(program.slots * TILE)
}

/// Runs a program over `shape`. Inputs have that shape and any strides (zero broadcasts); outputs are
/// contiguous. An output may be written over an input with the same layout.
///
/// # Panics
/// Where shapes or types are not the program's, an output is not contiguous, or the workspace is too small.
pub fn run_elementwise(
    program: &ElementwiseProgram,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    shape: &[usize],
    workspace: &mut [u8],
) {
    assert_eq!(inputs.len(), program.input_count, "a program gets all its inputs");
    assert_eq!(outputs.len(), program.outputs.len(), "a program gets all its outputs");
    let readers: [Option<Reader<'_>>; ElementwiseProgram::MAX_INPUTS] = std::array::from_fn(|i| {
        let view = inputs.get(i)?;
        assert_eq!((view.dtype(), view.shape()), (program.registers[i], shape), "input {i} of the program");
        let mut reader = Reader::new(view);
        for out in outputs.iter() {
            reader.keep_apart_from(view, out);
        }
        Some(reader)
    });
    let mut views = outputs.iter_mut();
    let mut writers: [Option<Writer<'_>>; ElementwiseProgram::MAX_OUTPUTS] = std::array::from_fn(|i| {
        let view = views.next()?;
        let dtype = program.registers[program.outputs[i]];
        assert_eq!((view.dtype(), view.shape()), (dtype, shape), "output {i} of the program");
        let writer = Writer::new(view);
        assert!(writer.is_direct(), "output {i} of the program is contiguous");
        Some(writer)
    });
    let memory: &mut [u64] = Workspace::new(workspace).take(program.slots * TILE);
    let (slots, _) = memory.as_chunks_mut::<TILE>();
    let len: usize = shape.iter().product();
    prepare(program, &readers, slots, len.min(TILE));
    for (start, count) in tiles(len) {
        for (slot, reader) in slots.iter_mut().zip(readers.iter().flatten()) {
            if !reader.is_direct() && !reader.is_uniform() {
                reader.tile(start, count, cast_slice_mut(slot));
            }
        }
        for instruction in &program.instructions {
            step(program, instruction, &readers, &mut writers, slots, shape, start, count);
        }
        for (output, &register) in program.outputs.iter().enumerate() {
            if program.places[register] != Place::Output(output) {
                finish(program, register, output, &readers, &mut writers, slots, start, count);
            }
        }
    }
}

/// Fills what is the same in every tile: constants, and inputs that are one value everywhere.
fn prepare(
    program: &ElementwiseProgram,
    readers: &[Option<Reader<'_>>],
    slots: &mut [TileBytes],
    count: usize,
) {
    for (slot, reader) in slots.iter_mut().zip(readers.iter().flatten()) {
        if !reader.is_direct() && reader.is_uniform() {
            reader.tile(0, count, cast_slice_mut(slot));
        }
    }
    for instruction in &program.instructions {
        if let (EwOp::Constant(value), Place::Slot(slot)) = (instruction.op, program.places[instruction.out])
        {
            let bytes = count * value.dtype().size_bytes();
            fill_tile(&value, &mut cast_slice_mut(&mut slots[slot])[..bytes]);
        }
    }
}

/// The bytes of a register: lent by its input, or in its slot, which is not the one at `hole`.
fn read<'b>(
    program: &ElementwiseProgram,
    register: usize,
    readers: &'b [Option<Reader<'_>>],
    before: &'b [TileBytes],
    after: &'b [TileBytes],
    start: usize,
    count: usize,
) -> &'b [u8] {
    if let Some(reader) = readers.get(register).and_then(Option::as_ref)
        && reader.is_direct()
    {
        return reader.tile(start, count, &mut []);
    }
    let Place::Slot(slot) = program.places[register] else {
        unreachable!("a register that is read has a slot")
    };
    let tile = before.get(slot).unwrap_or_else(|| &after[slot - before.len() - 1]);
    &bytemuck::cast_slice(tile)[..count * program.registers[register].size_bytes()]
}

fn step(
    program: &ElementwiseProgram,
    instruction: &EwInstr,
    readers: &[Option<Reader<'_>>],
    writers: &mut [Option<Writer<'_>>],
    slots: &mut [TileBytes],
    shape: &[usize],
    start: usize,
    count: usize,
) {
    let EwInstr { op, args, out: register } = instruction;
    if matches!(op, EwOp::Constant(_)) {
        return;
    }
    let to = program.registers[*register];
    let (before, out, after): (&[TileBytes], &mut [u8], &[TileBytes]) = match program.places[*register] {
        Place::Output(output) => {
            let writer = writers[output].as_mut().expect("every output has a writer");
            (slots, writer.tile(start, count).expect("outputs are contiguous"), &[])
        }
        Place::Slot(slot) => {
            let (before, rest) = slots.split_at_mut(slot);
            let (tile, after) = rest.split_first_mut().expect("every slot exists");
            (before, &mut cast_slice_mut(tile)[..count * to.size_bytes()], after)
        }
    };
    let arg = |i: usize| read(program, args[i], readers, before, after, start, count);
    let from = args.first().map_or(to, |&register| program.registers[register]);
    match *op {
        EwOp::Unary(op) => unary_tile(op, from, arg(0), out),
        EwOp::Binary(op) => binary_tile(op, from, arg(0), arg(1), out),
        EwOp::Compare { direction, total_order } => {
            compare_tile(direction, total_order, from, arg(0), arg(1), out)
        }
        EwOp::Select => select_tile(to, arg(0), arg(1), arg(2), out),
        EwOp::Clamp => clamp_tile(to, arg(0), arg(1), arg(2), out),
        EwOp::Convert => convert_tile(from, to, arg(0), out),
        EwOp::Bitcast => out.copy_from_slice(arg(0)),
        EwOp::Constant(_) => unreachable!("constants are made beforehand"),
        EwOp::Iota { dim } => {
            iota_tile(to, shape[dim], shape[dim + 1..].iter().product(), start, out);
        }
    }
}

/// Copies a register that lives elsewhere to its output.
fn finish(
    program: &ElementwiseProgram,
    register: usize,
    output: usize,
    readers: &[Option<Reader<'_>>],
    writers: &mut [Option<Writer<'_>>],
    slots: &[TileBytes],
    start: usize,
    count: usize,
) {
    let (first, rest) = writers.split_at_mut(output);
    let writer = rest[0].as_mut().expect("every output has a writer");
    let into = writer.tile(start, count).expect("outputs are contiguous");
    match program.places[register] {
        Place::Output(other) => {
            let other = first[other].as_mut().expect("an output is made at its first place");
            into.copy_from_slice(other.tile(start, count).expect("outputs are contiguous"));
        }
        Place::Slot(_) => into.copy_from_slice(read(program, register, readers, slots, &[], start, count)),
    }
}
