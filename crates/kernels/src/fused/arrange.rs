//! Arranges the instructions of an elementwise program: chains, passes over tiles, and the place of every register.

use super::*;

/// How the instructions and the registers of a program depend on each other.
struct Links {
    /// The chain that each instruction belongs to.
    chain: Vec<Option<usize>>,
    /// The instruction whose result each one reads from the accumulator.
    previous: Vec<Option<usize>>,
    /// The instruction that writes each register; `None` for inputs.
    writer: Vec<Option<usize>>,
    /// The instructions that read each register.
    readers: Vec<Vec<usize>>,
    /// Whether anything but a chain reads each register.
    tiled: Vec<bool>,
}

impl Links {
    fn of(program: &ElementwiseProgram) -> Links {
        let registers = program.registers.len();
        let (chain, previous) = chained(program);
        let mut writer: Vec<Option<usize>> = vec![None; registers];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); registers];
        for (number, instruction) in program.instructions.iter().enumerate() {
            writer[instruction.out] = Some(number);
            instruction.args.iter().for_each(|&arg| readers[arg].push(number));
        }
        let is_tiled = |(register, readers): (usize, &Vec<usize>)| {
            program.outputs.contains(&register)
                || program.is_folded_later(register)
                || readers.iter().any(|&reader| chain[reader].is_none())
        };
        let tiled: Vec<bool> = readers.iter().enumerate().map(is_tiled).collect();
        Links { chain, previous, writer, readers, tiled }
    }

    /// Whether a register holds an input or a constant, which is the same in every tile.
    fn is_given(&self, program: &ElementwiseProgram, register: usize) -> bool {
        self.writer[register].is_none_or(|number| program.is_constant(number))
    }

    /// Whether one instruction is in the chain of another one.
    fn within(&self, reader: usize, number: usize) -> bool {
        self.chain[number].is_some() && self.chain[reader] == self.chain[number]
    }
}

/// The chain that each instruction belongs to, and the instruction whose result it reads from the accumulator.
fn chained(program: &ElementwiseProgram) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
    let count = program.instructions.len();
    let mut chain: Vec<Option<usize>> = vec![None; count];
    let mut previous: Vec<Option<usize>> = vec![None; count];
    let (mut chains, mut length, mut last) = (0, 0, None);
    for number in (0..count).filter(|&number| !program.is_constant(number)) {
        if !program.chains(&program.instructions[number]) {
            last = None;
            continue;
        }
        if last.is_none() || length == CHAIN {
            (chains, length, last) = (chains + 1, 0, None);
        }
        (chain[number], previous[number]) = (Some(chains), last);
        (last, length) = (Some(number), length + 1);
    }
    (chain, previous)
}

/// Slots and chunks whose last reader has run.
#[derive(Default)]
struct Free {
    slots: Vec<usize>,
    chunks: Vec<usize>,
}

/// A free slot or chunk, or one more.
fn take(free: &mut Vec<usize>, count: &mut usize) -> usize {
    free.pop().unwrap_or_else(|| {
        *count += 1;
        *count - 1
    })
}

impl ElementwiseProgram {
    /// Groups the instructions into passes and assigns every register a place; slots and chunks are reused
    /// after the last reader.
    pub(super) fn arrange(&mut self) {
        let links = Links::of(self);
        self.tiled = links.tiled[..self.input_count].to_vec();
        for register in 0..self.registers.len() {
            let mut readers = links.readers[register].iter();
            if links.is_given(self, register) && readers.any(|&reader| links.chain[reader].is_some()) {
                self.filled[register] = Some(self.chunks);
                self.chunks += 1;
            }
        }
        let mut free = Free::default();
        for number in 0..self.instructions.len() {
            self.places[self.instructions[number].out] = self.place(number, &links, &mut free);
            self.add_to_passes(number, &links);
            self.release(number, &links, &mut free);
        }
    }

    fn is_constant(&self, number: usize) -> bool {
        matches!(self.instructions[number].op, ElementwiseOp::Constant(_))
    }

    /// The place of the result of an instruction.
    fn place(&mut self, number: usize, links: &Links, free: &mut Free) -> Place {
        let out = self.instructions[number].out;
        let readers = &links.readers[out];
        // A register that is folded later is read as a tile.
        let local = readers.iter().all(|&reader| links.within(reader, number)) && !self.is_folded_later(out);
        let kept = self.outputs.iter().position(|&register| register == out);
        match kept {
            _ if self.is_constant(number) => {
                // A constant: filled once, in its own tile if anything reads it as a tile.
                if links.tiled[out] {
                    Place::Slot(take(&mut Vec::new(), &mut self.slots))
                } else {
                    Place::Passing
                }
            }
            // Written directly to the output, if nothing reads it from a slot.
            Some(output) if local => Place::Output(output),
            None if local && links.chain[number].is_some() => {
                if readers.iter().all(|&reader| self.passes_to(reader, number, links)) {
                    Place::Passing
                } else {
                    Place::Chunk(take(&mut free.chunks, &mut self.chunks))
                }
            }
            _ => Place::Slot(take(&mut free.slots, &mut self.slots)),
        }
    }

    /// Whether an instruction reads the result of another one from the accumulator alone.
    fn passes_to(&self, reader: usize, number: usize, links: &Links) -> bool {
        let next = &self.instructions[reader];
        // If the chain sums rows, the sum takes the reader's place in the accumulator.
        links.within(reader, number)
            && links.previous[reader] == Some(number)
            && self.fold_in_chain(self.instructions[number].out).is_none()
            && (next.args.len() < 2
                || next.args[0] != next.args[1]
                || next.op == ElementwiseOp::Binary(Binary::Mul))
    }

    /// Adds an instruction to the last pass or to a new one; constants are made beforehand.
    fn add_to_passes(&mut self, number: usize, links: &Links) {
        let previous = links.previous[number];
        let is_constant = self.is_constant(number);
        match (links.chain[number], self.passes.last_mut()) {
            _ if is_constant => {}
            (None, _) => self.passes.push(Pass::Single(number)),
            (Some(_), Some(Pass::Chain(_))) if previous.is_some() => {}
            (Some(_), _) => self.passes.push(Pass::Chain(Chain::default())),
        }
        if links.chain[number].is_some() {
            let held = previous.map(|number| self.instructions[number].out);
            let held = held.filter(|&register| self.fold_in_chain(register).is_none());
            let EwInstr { op, args, out } = self.instructions[number].clone();
            self.extend(op, &args, out, held);
        }
    }

    /// Frees the places of registers that an instruction reads last.
    fn release(&self, number: usize, links: &Links, free: &mut Free) {
        let lasting = |register: usize| {
            links.is_given(self, register) || self.outputs.contains(&register) || self.is_folded(register)
        };
        let args = &self.instructions[number].args;
        for (i, &arg) in args.iter().enumerate() {
            if links.readers[arg].last() == Some(&number) && !args[..i].contains(&arg) && !lasting(arg) {
                match self.places[arg] {
                    Place::Slot(slot) => free.slots.push(slot),
                    Place::Chunk(chunk) => free.chunks.push(chunk),
                    Place::Output(_) | Place::Passing => {}
                }
            }
        }
    }

    /// Whether no register needs a slot that is written or read as a tile: then a tile may have any length.
    pub(super) fn has_chains_only(&self) -> bool {
        let is_made_there =
            |(output, &register): (usize, &usize)| self.places[register] == Place::Output(output);
        self.passes.iter().all(|pass| matches!(pass, Pass::Chain(_)))
            && self.slots == self.input_count
            && self.row.is_none()
            && self.in_chain.iter().all(|&in_chain| in_chain)
            && self.outputs.iter().enumerate().all(is_made_there)
    }

    /// Whether the program is a single chain, which may then process several rows per call.
    pub(super) fn has_one_chain(&self) -> bool {
        self.has_chains_only() && self.passes.len() == 1
    }

    /// Whether all readers of an input run before an output is written, chunk by chunk: then the output may
    /// overwrite the input.
    pub(super) fn reads_first(&self, input: usize, output: usize) -> bool {
        let register = self.outputs[output];
        let Some(writer) = self.instructions.iter().position(|instruction| instruction.out == register)
        else {
            return false;
        };
        match self.places[register] {
            // Copied there at the end of a tile.
            Place::Slot(_) => !self.outputs.contains(&input),
            _ if self.is_folded(input) => false,
            Place::Output(first) => {
                let after = &self.instructions[writer + 1..];
                first == output
                    && self.chains(&self.instructions[writer])
                    && !self.outputs.contains(&input)
                    && after.iter().all(|instruction| !instruction.args.contains(&input))
            }
            Place::Chunk(_) | Place::Passing => false,
        }
    }

    /// Whether a long output should be written with non-temporal stores: nothing reads it from that memory,
    /// and no input shares the memory (the caches would already hold it).
    pub(super) fn streams(
        &self,
        output: usize,
        view: &ViewMut<'_>,
        inputs: &[View<'_>],
        elements: usize,
    ) -> bool {
        let register = self.outputs[output];
        let is_made_there = self.places[register] == Place::Output(output);
        let is_read = || self.instructions.iter().any(|instruction| instruction.args.contains(&register));
        elements * self.registers[register].size_bytes() >= STREAM_BYTES
            && self.registers[register] == DType::F32
            && self.row.is_none_or(|row| (row * size_of::<f32>()).is_multiple_of(STREAM_ALIGNMENT))
            && view.as_view().as_ptr().addr().is_multiple_of(STREAM_ALIGNMENT)
            && self.outputs.iter().filter(|&&other| other == register).count() == 1
            && !(is_made_there && is_read())
            && !inputs.iter().any(|input| overlap(input.address_range(), view.address_range()))
    }

    /// Whether an instruction may be part of a chain.
    pub(super) fn chains(&self, instruction: &EwInstr) -> bool {
        let EwInstr { op, args, out } = instruction;
        let f32s = args.iter().chain([out]).all(|&register| self.registers[register] == DType::F32);
        f32s && matches!(
            op,
            ElementwiseOp::Unary(
                Unary::Neg
                    | Unary::Abs
                    | Unary::Sqrt
                    | Unary::Rsqrt
                    | Unary::Exp
                    | Unary::Log
                    | Unary::Tanh
                    | Unary::Logistic
            ) | ElementwiseOp::Binary(
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min
            )
        )
    }

    /// Whether a chain over tensors of `elements` elements prefetches its inputs. If rows are reduced along,
    /// the first chain of a row waits for memory anyway and the last one finds everything in cache, so only
    /// the last one prefetches.
    pub(super) fn asks(&self, chain: &Chain, elements: usize) -> bool {
        let is_last = || matches!(self.passes.last(), Some(Pass::Chain(last)) if std::ptr::eq(last, chain));
        elements * size_of::<f32>() >= MIN_ASKED && (self.row.is_none() || is_last())
    }

    /// The machine code of a chain, with or without prefetch, if there can be any.
    pub(super) fn code<'a>(
        &self,
        options: KernelOptions,
        chain: &'a Chain,
        prefetches: bool,
    ) -> Option<&'a dyn CompiledChain> {
        if !options.jit() {
            return None;
        }
        let kind = |&register: &usize| {
            let number = self.instructions.iter().find_map(|instruction| match instruction.op {
                ElementwiseOp::Constant(value) if instruction.out == register => Some(value.get()),
                _ => None,
            });
            match (number, self.places.get(register)) {
                (Some(number), _) => Kind::Number(number),
                (None, Some(Place::Chunk(_))) => Kind::Between,
                (None, _) => Kind::Memory,
            }
        };
        let make = || {
            let kinds: Vec<Kind> = chain.registers.iter().map(kind).collect();
            backend(options).compile(&chain.steps, &kinds, prefetches)
        };
        let number = 2 * options.level() as usize + usize::from(prefetches);
        chain.code.0[number].get_or_init(make).as_deref()
    }

    /// Adds an instruction to the last chain, whose accumulator holds the register `held`.
    pub(super) fn extend(&mut self, op: ElementwiseOp, args: &[usize], out: usize, held: Option<usize>) {
        let sum = self.fold_in_chain(out).map(|fold| self.registers.len() + fold);
        let Some(Pass::Chain(chain)) = self.passes.last_mut() else { unreachable!("a chain was begun") };
        let mut number = |register: usize| {
            let known = chain.registers.iter().position(|&known| known == register);
            known.unwrap_or_else(|| {
                chain.registers.push(register);
                chain.registers.len() - 1
            }) as u8
        };
        let swapped = args.len() == 2 && held == Some(args[1]) && held != Some(args[0]);
        let action = match op {
            ElementwiseOp::Binary(Binary::Add) => Action::Add,
            ElementwiseOp::Binary(Binary::Sub) if swapped => Action::SubFrom,
            ElementwiseOp::Binary(Binary::Sub) => Action::Sub,
            ElementwiseOp::Binary(Binary::Mul) if args[0] == args[1] => Action::Square,
            ElementwiseOp::Binary(Binary::Mul) => Action::Mul,
            ElementwiseOp::Binary(Binary::Div) if swapped => Action::DivFrom,
            ElementwiseOp::Binary(Binary::Div) => Action::Div,
            ElementwiseOp::Binary(Binary::Max) => Action::Max,
            ElementwiseOp::Binary(Binary::Min) => Action::Min,
            ElementwiseOp::Unary(Unary::Neg) => Action::Neg,
            ElementwiseOp::Unary(Unary::Abs) => Action::Abs,
            ElementwiseOp::Unary(Unary::Sqrt) => Action::Sqrt,
            ElementwiseOp::Unary(Unary::Rsqrt) => Action::Rsqrt,
            ElementwiseOp::Unary(Unary::Exp) => Action::Exp,
            ElementwiseOp::Unary(Unary::Log) => Action::Log,
            ElementwiseOp::Unary(Unary::Tanh) => Action::Tanh,
            ElementwiseOp::Unary(Unary::Logistic) => Action::Logistic,
            _ => unreachable!("no part of a chain"),
        };
        let load = if held == Some(args[0]) || swapped { Step::NOTHING } else { number(args[0]) };
        let other = args.get(1).filter(|_| action != Action::Square);
        let other = other.map(|&second| if swapped { args[0] } else { second });
        let constant =
            other.is_some_and(|register| register >= self.input_count && self.filled[register].is_some());
        let operand = other.map_or(Step::NOTHING, &mut number);
        let store = if self.places[out] == Place::Passing { Step::NOTHING } else { number(out) };
        let sum = sum.map(&mut number);
        chain.steps.push(Step::new(load, action, operand, constant, store));
        if let Some(sum) = sum {
            chain.steps.push(Step::new(Step::NOTHING, Action::Add, sum, false, sum));
        }
    }
}
