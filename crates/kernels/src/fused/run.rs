//! Runs a fused elementwise program: tile by tile, or several rows per call if it is a single chain.

use crate::options::KernelOptions;
use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use super::{
    CHAIN_TILE, Chain, ElementwiseOp, ElementwiseProgram, EwFold, EwInstr, FoldDirection, Pass, Place,
};
use crate::binary::binary_tile;
use crate::chain;
use crate::chain::steps::{CHUNK, Operands};
use crate::compare::{clamp_tile, compare_tile, select_tile};
use crate::convert::convert_tile;
use crate::copy::{fill_tile, iota_tile};
use crate::reduce::{Carried, REDUCE_BLOCK_ROWS, Stretch, Sum, block_results, fold_along, fold_rows};
use crate::stream::{Streaming, stream};
use crate::tiles::{Found, Reader, SHORTEST_TILE, TILE, TileBytes, Writer};
use crate::unary::unary_tile;
use crate::view::{View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};

/// Bytes of workspace that [`run_elementwise`] needs.
pub fn elementwise_workspace_bytes(program: &ElementwiseProgram) -> usize {
    piece_bytes::<f32>(program.chunks * CHUNK) + piece_bytes::<u64>(program.slots * TILE)
}

/// A part of a longer run of a program.
pub struct Part<'a, 'b> {
    /// Elements that were processed before this part, since the results of the folds were started.
    pub before: usize,
    /// Elements that all parts write before any of them is read: decides on non-temporal stores and prefetch.
    pub elements: usize,
    /// The results of each fold. Across rows: shared by all parts, [`crate::block_results_bytes`] bytes.
    /// Along rows: this part's own.
    pub folded: &'a mut [&'b mut [u8]],
}

/// Runs a program over `shape`. Inputs have that shape and any strides (zero broadcasts); outputs are
/// contiguous. An output may overwrite an input of the same layout.
///
/// # Panics
/// If shapes or types are not the program's, an output is not contiguous, the workspace is too small, or the
/// program has folds.
pub fn run_elementwise(
    options: KernelOptions,
    program: &ElementwiseProgram,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    shape: &[usize],
    workspace: &mut [u8],
) {
    let whole = Part { before: 0, elements: shape.iter().product(), folded: &mut [] };
    run_elementwise_part(options, program, inputs, outputs, shape, whole, workspace);
}

/// [`run_elementwise`] for a part of the elements.
///
/// # Panics
/// As [`run_elementwise`], and if the results of folds are too small.
pub fn run_elementwise_part(
    options: KernelOptions,
    program: &ElementwiseProgram,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    shape: &[usize],
    part: Part<'_, '_>,
    workspace: &mut [u8],
) {
    assert_eq!(part.folded.len(), program.folds.len(), "a program gets the results of all its folds");
    assert_eq!(inputs.len(), program.input_count, "a program gets all its inputs");
    assert_eq!(outputs.len(), program.outputs.len(), "a program gets all its outputs");
    // Built in place: these arrays are long compared with the work of a small program on one block.
    let mut readers = SmallVec::<[Reader<'_>; ElementwiseProgram::MAX_INPUTS]>::new();
    for (i, view) in inputs.iter().enumerate() {
        assert_eq!((view.dtype(), view.shape()), (program.registers[i], shape), "input {i} of the program");
        readers.push(reader_beside(program, i, view, outputs));
    }
    let mut streaming = [const { None }; ElementwiseProgram::MAX_OUTPUTS];
    for (output, (streaming, view)) in streaming.iter_mut().zip(&*outputs).enumerate() {
        *streaming = program.streams(output, view, inputs, part.elements).then_some(Streaming);
    }
    let mut writers = SmallVec::<[Writer<'_>; ElementwiseProgram::MAX_OUTPUTS]>::new();
    for (i, view) in outputs.iter_mut().enumerate() {
        let dtype = program.registers[program.outputs[i]];
        assert_eq!((view.dtype(), view.shape()), (dtype, shape), "output {i} of the program");
        let writer = Writer::new(view);
        assert!(writer.is_direct(), "output {i} of the program is contiguous");
        writers.push(writer);
    }
    let mut workspace = Workspace::new(workspace);
    let (chunks, _) = workspace.take::<f32>(program.chunks * CHUNK).as_chunks_mut::<CHUNK>();
    let (slots, _) = workspace.take::<u64>(program.slots * TILE).as_chunks_mut::<TILE>();
    let len: usize = shape.iter().product();
    if len == 0 {
        return;
    }
    let mut run = Run {
        options,
        program,
        shape,
        readers: &readers,
        writers: &mut writers,
        streaming: &streaming,
        slots,
        chunks,
        found: &mut [Found::Scattered; ElementwiseProgram::MAX_INPUTS],
        in_chunk: &mut [false; ElementwiseProgram::MAX_INPUTS],
        before: part.before,
        elements: part.elements,
        folded: part.folded,
        operands: &mut Operands::new(),
        carried: &mut <[Carried; ElementwiseProgram::MAX_OUTPUTS]>::default(),
    };
    run.prepare(len.min(TILE));
    // Inputs that repeat along rows, such as a bias, are read in place if no tile crosses the end of a row.
    let most = if program.has_chains_only() { CHAIN_TILE } else { TILE };
    let even = readers.iter().filter_map(|reader| reader.even_tile(most)).min().unwrap_or(most);
    let has_one_chain = program.has_one_chain();
    let mut next = 0;
    while next < len {
        let tile = run.find(next, even, len, has_one_chain);
        next = tile.start + tile.rows * tile.count;
        run.compute(tile);
    }
}

/// Gives tiles of an input, which are copied before an output overwrites the memory that is still to be read.
#[inline]
fn reader_beside<'a>(
    program: &ElementwiseProgram,
    input: usize,
    view: &View<'a>,
    outputs: &[ViewMut<'_>],
) -> Reader<'a> {
    let mut reader = Reader::new(view);
    for (number, out) in outputs.iter().enumerate() {
        let same = view.as_ptr() == out.as_view().as_ptr() && reader.is_direct();
        if !(same && program.reads_first(input, number)) {
            reader.keep_apart_from(view, out);
        }
    }
    reader
}

/// The elements that are computed at once: `rows` times `count` from `start` on.
#[derive(Clone, Copy)]
struct Tile {
    start: usize,
    count: usize,
    rows: usize,
}

/// A program with the memory of its registers.
struct Run<'a, 'b, 'c> {
    options: KernelOptions,
    program: &'a ElementwiseProgram,
    shape: &'a [usize],
    readers: &'a [Reader<'a>],
    writers: &'a mut [Writer<'c>],
    streaming: &'a [Option<Streaming>],
    slots: &'a mut [TileBytes],
    chunks: &'a mut [[f32; CHUNK]],
    /// The location of the inputs' tiles.
    found: &'a mut [Found],
    /// Inputs that are uniform over this tile, whose chunk is filled.
    in_chunk: &'a mut [bool],
    /// As in [`Part`].
    before: usize,
    elements: usize,
    folded: &'a mut [&'b mut [u8]],
    /// Reused space for the operands of a chain.
    operands: &'a mut Operands,
    /// What folds along rows carry from tile to tile.
    carried: &'a mut [Carried],
}

impl Run<'_, '_, '_> {
    /// Fills what is the same in every tile: constants and uniform inputs.
    fn prepare(&mut self, count: usize) {
        let Run { program, readers, slots, chunks, in_chunk, .. } = self;
        for (input, (slot, reader)) in slots.iter_mut().zip(readers.iter()).enumerate() {
            if !reader.is_direct() && reader.is_uniform() {
                let tile = reader.tile(0, count, cast_slice_mut(slot));
                if let Some(chunk) = program.filled[input] {
                    chunks[chunk].fill(bytemuck::cast_slice(tile)[0]);
                    in_chunk[input] = true;
                }
            }
        }
        for instruction in &program.instructions {
            let ElementwiseOp::Constant(value) = instruction.op else { continue };
            if let Place::Slot(slot) = program.places[instruction.out] {
                let bytes = count * value.dtype().size_bytes();
                fill_tile(&value, &mut cast_slice_mut(&mut slots[slot])[..bytes]);
            }
            if let Some(chunk) = program.filled[instruction.out] {
                chunks[chunk].fill(value.get());
            }
        }
    }

    /// The tile that begins at `start`, with the elements of all inputs; at most `even` elements in a row, and none
    /// behind `len`.
    #[inline]
    fn find(&mut self, start: usize, even: usize, len: usize, has_one_chain: bool) -> Tile {
        let Run { program, readers, .. } = *self;
        let first = self.before + start;
        let mut count = program.row.map_or(even, |row| row_tile(start, row)).min(len - start);
        for (fold, &in_chain) in program.folds.iter().zip(&program.in_chain) {
            if in_chain {
                count = count.min(fold.width - first % fold.width);
            }
        }
        find_tiles(readers, self.found, start, count);
        // An input that must be copied first is copied to a slot, which is one tile long.
        let is_at_hand = |(reader, found): (&Reader<'_>, &Found)| {
            reader.is_uniform() || !matches!(found, Found::Scattered)
        };
        if count > TILE && !readers.iter().zip(&*self.found).all(is_at_hand) {
            count = TILE;
            find_tiles(readers, self.found, start, count);
        }
        self.copy_scattered(start, count);
        let most = (len - start) / count;
        let rows = if has_one_chain { even_rows(program, readers, first, count, most) } else { 1 };
        Tile { start, count, rows }
    }

    /// Copies inputs whose elements are not together to their slots or chunks.
    #[inline]
    fn copy_scattered(&mut self, start: usize, count: usize) {
        let Run { program, readers, slots, chunks, found, in_chunk, .. } = self;
        for (input, (slot, reader)) in slots.iter_mut().zip(readers.iter()).enumerate() {
            match (found[input], program.filled[input]) {
                (Found::Together(_), _) => {}
                _ if reader.is_uniform() => {}
                (Found::Same(element), Some(chunk)) if !program.tiled[input] => {
                    // SAFETY: the element is an f32, because chains read no other type, and its view
                    // guarantees it.
                    chunks[chunk].fill(unsafe { element.cast::<f32>().read() });
                    in_chunk[input] = true;
                }
                _ => {
                    in_chunk[input] = false;
                    reader.tile(start, count, cast_slice_mut(slot));
                }
            }
        }
    }

    /// Runs all passes, then the folds, over a tile.
    #[inline]
    fn compute(&mut self, tile: Tile) {
        let program = self.program;
        for pass in &program.passes {
            match pass {
                Pass::Single(number) => self.single(&program.instructions[*number], tile),
                Pass::Chain(chain) => self.chain(chain, tile),
            }
        }
        self.fold(tile);
        for (output, &register) in program.outputs.iter().enumerate() {
            if program.places[register] != Place::Output(output) {
                self.finish(register, output, tile);
            }
        }
    }

    /// Reduces finished tiles, where no chain does.
    #[inline]
    fn fold(&mut self, tile: Tile) {
        let Run { options, program, readers, slots, before, folded, carried, .. } = self;
        let Tile { start, count, .. } = tile;
        let folds =
            program.folds.iter().zip(&program.in_chain).zip(folded.iter_mut()).zip(carried.iter_mut());
        for (((fold, _), folded), carried) in folds.filter(|(((_, in_chain), _), _)| !**in_chain) {
            let &EwFold { register, reduction, width, direction } = fold;
            let bytes = read(program, register, readers, [slots, &[]], [start, count]);
            let dtype = program.registers[register];
            let elements = |first: usize| Stretch { dtype, bytes, first, width };
            match direction {
                FoldDirection::Across => {
                    fold_rows(*options, reduction, elements(*before + start), folded);
                }
                FoldDirection::Along(init) => {
                    fold_along(*options, reduction, elements(start), &init, carried, folded);
                }
            }
        }
    }

    /// Runs a chain over one tile, or over several rows whose operands follow at fixed strides.
    fn chain(&mut self, chain: &Chain, tile: Tile) {
        let Tile { start, count, rows } = tile;
        let Run { options, program, readers, writers, streaming, found, in_chunk, operands, .. } = self;
        let (slots, chunks) = (self.slots.as_mut_ptr(), self.chunks.as_mut_ptr());
        operands.clear();
        let mut asks = program.asks(chain, self.elements);
        let code = program.code(*options, chain, asks);
        // Compiled code prefetches by itself.
        asks &= code.is_none();
        for &register in &chain.registers {
            if let Some(fold) = register.checked_sub(program.registers.len()) {
                let results = cast_slice_mut(self.folded[fold]);
                let (first, width) = (self.before + start, program.folds[fold].width);
                let results = block_results::<f32, Sum>(results, first, count, width);
                operands.push(results.as_mut_ptr(), 1, false, 0);
                continue;
            }
            let reader = readers.get(register);
            let place = match program.filled[register] {
                Some(chunk) if reader.is_none() || in_chunk[register] => Place::Chunk(chunk),
                _ => program.places[register],
            };
            if let Some(reader) = reader.filter(|reader| asks && reader.is_direct()) {
                operands.ask(reader.ahead(start, 0));
            }
            // With one row the stride is not used; uniform inputs have stride zero.
            let step = match (reader, place) {
                (Some(reader), _) => reader.row_step(count).unwrap_or(0),
                (None, Place::Output(_)) => count as isize,
                (None, _) => 0,
            };
            match (found.get(register), place) {
                (Some(Found::Together(pointer)), _) => {
                    operands.push(pointer.cast_mut().cast(), 1, false, step);
                }
                (Some(Found::Same(element)), Place::Chunk(chunk)) if step != 0 => {
                    operands.push_of_row(chunks.wrapping_add(chunk), element.cast(), step);
                }
                (_, Place::Output(output)) => {
                    let writer = &mut writers[output];
                    operands.push(writer.pointer_at(start).cast(), 1, streaming[output].is_some(), step);
                }
                (_, Place::Slot(slot)) => operands.push(slots.wrapping_add(slot).cast(), 1, false, step),
                (_, Place::Chunk(chunk)) => operands.push(chunks.wrapping_add(chunk).cast(), 0, false, step),
                (_, Place::Passing) => unreachable!("what passes has no memory"),
            }
        }
        // SAFETY: inputs and outputs have `count` elements from `start` on, and in each later row, as their views
        // guarantee; slots have a tile and chunks a chunk; inputs that an output overlaps were copied to their
        // slots.
        unsafe { chain::run(*options, &chain.steps, code, operands, rows, count) };
    }

    fn single(&mut self, instruction: &EwInstr, tile: Tile) {
        let Run { program, readers, writers, slots, shape, .. } = self;
        let (options, Tile { start, count, .. }) = (self.options, tile);
        let EwInstr { op, args, out: register } = instruction;
        let to = program.registers[*register];
        let (before, out, after): (&[TileBytes], &mut [u8], &[TileBytes]) = match program.places[*register] {
            Place::Output(output) => {
                let writer = &mut writers[output];
                (slots, writer.tile(start, count).expect("outputs are contiguous"), &[])
            }
            Place::Slot(slot) => {
                let (before, rest) = slots.split_at_mut(slot);
                let (tile, after) = rest.split_first_mut().expect("every slot exists");
                (before, &mut cast_slice_mut(tile)[..count * to.size_bytes()], after)
            }
            Place::Chunk(_) | Place::Passing => unreachable!("only chains write there"),
        };
        let arg = |i: usize| read(program, args[i], readers, [before, after], [start, count]);
        let from = args.first().map_or(to, |&register| program.registers[register]);
        match *op {
            ElementwiseOp::Unary(op) => unary_tile(options, op, from, arg(0), out),
            ElementwiseOp::Binary(op) => binary_tile(options, op, from, arg(0), arg(1), out),
            ElementwiseOp::Compare { direction, total_order } => {
                compare_tile(options, direction, total_order, from, arg(0), arg(1), out)
            }
            ElementwiseOp::Select => select_tile(options, to, arg(0), arg(1), arg(2), out),
            ElementwiseOp::Clamp => clamp_tile(options, to, arg(0), arg(1), arg(2), out),
            ElementwiseOp::Convert => convert_tile(options, from, to, arg(0), out),
            ElementwiseOp::Bitcast => out.copy_from_slice(arg(0)),
            ElementwiseOp::Constant(_) => unreachable!("constants are made beforehand"),
            ElementwiseOp::Iota { dim } => {
                iota_tile(to, shape[dim], shape[dim + 1..].iter().product(), start, out);
            }
        }
    }

    /// Copies a register that is stored elsewhere to its output.
    fn finish(&mut self, register: usize, output: usize, tile: Tile) {
        let Run { options, program, readers, writers, streaming, slots, .. } = self;
        let Tile { start, count, .. } = tile;
        let (first, rest) = writers.split_at_mut(output);
        let writer = &mut rest[0];
        if let Place::Output(other) = program.places[register] {
            let into = writer.tile(start, count).expect("outputs are contiguous");
            into.copy_from_slice(first[other].tile(start, count).expect("outputs are contiguous"));
            return;
        }
        let from = read(program, register, readers, [slots, &[]], [start, count]);
        let into = writer.tile(start, count).expect("outputs are contiguous");
        match &streaming[output] {
            Some(streaming) => stream(*options, bytemuck::cast_slice(from), cast_slice_mut(into), streaming),
            None => into.copy_from_slice(from),
        }
    }
}

/// The length of the tile that begins at `start`, if rows are reduced along: some complete rows, or as many
/// elements of one row as are reduced at a time.
fn row_tile(start: usize, row: usize) -> usize {
    if row < SHORTEST_TILE { TILE / row * row } else { TILE.min(row - start % row) }
}

/// Locates the elements of all inputs from `start` on.
fn find_tiles(readers: &[Reader<'_>], found: &mut [Found], start: usize, count: usize) {
    for (found, reader) in found.iter_mut().zip(readers.iter()) {
        *found = reader.find(start, count);
    }
}

/// The number of tiles of `count` elements, at most `most`, that one call may process: rows at a fixed stride
/// in every operand, all folded into one row of results. `first` is the position of the first element in the
/// folds.
fn even_rows(
    program: &ElementwiseProgram,
    readers: &[Reader<'_>],
    first: usize,
    count: usize,
    most: usize,
) -> usize {
    if readers.iter().any(|reader| reader.row_step(count).is_none()) {
        return 1;
    }
    program.folds.iter().fold(most, |rows, fold| {
        let (row, column) = (first / fold.width, first % fold.width);
        if fold.width == count && column == 0 {
            rows.min(REDUCE_BLOCK_ROWS - row % REDUCE_BLOCK_ROWS)
        } else {
            1
        }
    })
}

/// The bytes of a register: borrowed from its input or from its slot, which is not the one between `before` and `after`.
fn read<'b>(
    program: &ElementwiseProgram,
    register: usize,
    readers: &'b [Reader<'_>],
    [before, after]: [&'b [TileBytes]; 2],
    [start, count]: [usize; 2],
) -> &'b [u8] {
    if let Some(lent) = readers.get(register).and_then(|r| r.lent(start, count)) {
        return lent;
    }
    let Place::Slot(slot) = program.places[register] else {
        unreachable!("a register that is read has a slot")
    };
    let tile = before.get(slot).unwrap_or_else(|| &after[slot - before.len() - 1]);
    &bytemuck::cast_slice(tile)[..count * program.registers[register].size_bytes()]
}
