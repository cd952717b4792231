//! Instruction selection and register allocation for a [`Tape`](super::tape::Tape): a loop whose values stay
//! in vector registers from the first load to the last store, with several vectors per round.

use super::encode::{Instruction, Machine, Opcode, Source, encode, pool, read_numbers};
use super::tape::{Entry, Name, Pair, Relation};
use crate::native::prefetch::{BLOCK_BYTES, PAGE_BITS, PAGE_BYTES, PIECE_BYTES};

/// Candidate numbers of vectors per round, the largest first. A round must have enough registers, and be no
/// longer than one prefetch request.
const SIDE_BY_SIDE: [u8; 3] = [4, 2, 1];
/// Up to this many operands, prefetch requests rotate over several pages. More operands use as many pages
/// anyway.
const MAX_SPREAD: usize = 3;

/// Bytes that one prefetch fetches.
const LINE_BYTES: usize = 64;

/// Maximum number of operands in memory.
pub(super) const MAX_OPERANDS: usize = 13;
/// Pointer registers: caller-saved registers first, then callee-saved ones.
const POINTERS: [u8; MAX_OPERANDS] = [0, 1, 2, 8, 9, 10, 11, 3, 5, 12, 13, 14, 15];
const FREE_POINTERS: usize = 7;

/// A loop over vectors as machine code.
///
/// It is a function in the System V calling convention of a table and a number of rounds, at least one. The
/// table holds a pointer for each of `memory`, and then for each the bytes by which it advances every round.
pub(super) struct Assembled {
    /// The instructions that the bytes encode.
    #[cfg(test)]
    pub instructions: Vec<Instruction>,
    pub bytes: Vec<u8>,
    /// The indices of the operands in memory.
    pub memory: Vec<u8>,
    /// Elements per round.
    pub elements: usize,
}

/// The code of `entries` for a machine. If `asks`, it prefetches memory that is only read, in the order of
/// [`crate::native::prefetch::Ahead`]. `None` if there are more live values than registers.
pub(super) fn assemble(machine: Machine, entries: &[Entry], asks: bool) -> Option<Assembled> {
    // Code for one vector shows how many registers it needs: the others are for more vectors, then for
    // constants.
    let all = Share { vectors: 1, registers: machine.vectors(), masks: machine.masks() };
    let mut alone = Assembler::new(machine, entries, all, Vec::new())?;
    alone.round(entries)?;
    let taken = alone.taken;
    let fits = |vectors: &u8| {
        usize::from(*vectors) * machine.bytes() <= PIECE_BYTES
            && vectors * taken.registers <= machine.vectors()
            && vectors * taken.masks <= machine.masks()
    };
    let vectors = SIDE_BY_SIDE.into_iter().find(fits).expect("the code of one was written");
    let mut constants = alone.constants();
    constants.truncate(usize::from(machine.vectors() - vectors * taken.registers));
    Assembler::new(machine, entries, Share { vectors, ..taken }, constants)?.assemble(entries, asks)
}

/// The number of vectors per round, and the registers that each has to itself.
#[derive(Clone, Copy)]
struct Share {
    vectors: u8,
    registers: u8,
    masks: u8,
}

/// The location of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In this vector register of the first vector of the round.
    Vector(u8),
    /// In this mask register of the first vector of the round.
    Mask(u8),
    /// In the constant pool behind the code.
    Constant(u32),
    Nowhere,
}

fn commutes(pair: Pair) -> bool {
    matches!(pair, Pair::Add | Pair::Mul | Pair::And | Pair::Or | Pair::Xor)
}

struct Assembler {
    machine: Machine,
    instructions: Vec<Instruction>,
    memory: Vec<u8>,
    share: Share,
    /// The maximum number of registers that were in use.
    taken: Share,
    /// Constants that stay in a register throughout: in the last register, the one before it, ...
    resting: Vec<u32>,
    /// The free vector and mask registers of the first vector of the round.
    free_vectors: Vec<u8>,
    free_masks: Vec<u8>,
    places: Vec<Place>,
    /// The last entry that reads each value.
    last_reader: Vec<usize>,
}

impl Assembler {
    /// `None` if more operands are in memory than there are pointer registers.
    fn new(machine: Machine, entries: &[Entry], share: Share, resting: Vec<u32>) -> Option<Assembler> {
        let mut memory: Vec<u8> = Vec::new();
        let mut last_reader = vec![0; entries.len()];
        for (index, entry) in entries.iter().enumerate() {
            if let Entry::Load(number) | Entry::Store(number, _) = *entry
                && !memory.contains(&number)
            {
                memory.push(number);
            }
            entry.reads().for_each(|name| last_reader[name] = index);
        }
        (memory.len() <= POINTERS.len()).then(|| Assembler {
            machine,
            instructions: Vec::new(),
            memory,
            share,
            taken: Share { registers: 0, masks: 0, ..share },
            resting,
            free_vectors: (0..share.registers).rev().collect(),
            free_masks: (1..=share.masks).rev().collect(),
            places: vec![Place::Nowhere; entries.len()],
            last_reader,
        })
    }

    fn assemble(mut self, entries: &[Entry], asks: bool) -> Option<Assembled> {
        let (pointers, others) = POINTERS.split_at(self.memory.len());
        let asked = if asks { self.only_read(entries) } else { Vec::new() };
        // One more register for prefetch addresses, if it is useful and one is left.
        let is_spread = (1..=MAX_SPREAD).contains(&asked.len());
        let asking = others.first().copied().filter(|_| is_spread);
        let lent = POINTERS.get(FREE_POINTERS..pointers.len() + usize::from(asking.is_some())).unwrap_or(&[]);
        self.instructions.extend(lent.iter().map(|&register| Instruction::Push(register)));
        for (index, &pointer) in pointers.iter().enumerate() {
            self.instructions.push(Instruction::LoadWord { to: pointer, word: index });
        }
        for (index, bits) in self.resting.clone().into_iter().enumerate() {
            let to = self.resting_place(index);
            self.instruction(Opcode::SPREAD, to, None, Source::Pool(bits), 0, None);
        }
        self.instructions.push(Instruction::Round);
        self.ask_ahead(&asked, asking);
        self.round(entries)?;
        for (index, &pointer) in pointers.iter().enumerate() {
            self.instructions.push(Instruction::AddWord { to: pointer, word: pointers.len() + index });
        }
        self.instructions.extend([Instruction::Repeat, Instruction::ZeroUpper]);
        self.instructions.extend(lent.iter().rev().map(|&register| Instruction::Pop(register)));
        self.instructions.push(Instruction::Return);
        let elements = usize::from(self.share.vectors) * self.machine.bytes() / size_of::<f32>();
        Some(Assembled {
            bytes: encode(self.machine, &self.instructions),
            #[cfg(test)]
            instructions: self.instructions,
            memory: self.memory,
            elements,
        })
    }

    /// Emits the instructions of one round; `None` if they need more registers than there are.
    fn round(&mut self, entries: &[Entry]) -> Option<()> {
        for (index, entry) in entries.iter().enumerate() {
            self.entry(index, entry)?;
            let mut gone: Vec<Name> = entry.reads().filter(|&name| self.last_reader[name] == index).collect();
            // A store has no result, and a value without readers is dropped.
            if self.last_reader[index] == 0 && !matches!(entry, Entry::Store(..)) {
                gone.push(index);
            }
            gone.sort_unstable();
            gone.dedup();
            gone.into_iter().for_each(|name| self.release(name));
        }
        Some(())
    }

    /// The pool constants, most frequently read first.
    fn constants(&self) -> Vec<u32> {
        let readers = |number: u32| read_numbers(&self.instructions).filter(|&read| read == number).count();
        let mut numbers = pool(&self.instructions);
        numbers.sort_by_key(|&number| std::cmp::Reverse(readers(number)));
        numbers
    }

    /// The pointers to operands that are not stored to.
    fn only_read(&self, entries: &[Entry]) -> Vec<u8> {
        let is_stored = |number| entries.iter().any(|e| matches!(e, Entry::Store(to, _) if *to == number));
        let places = self.memory.iter().zip(POINTERS).filter(|&(&number, _)| !is_stored(number));
        places.map(|(_, base)| base).collect()
    }

    /// Prefetches ahead of each of these pointers: one request of a block further on, which
    /// [`crate::native::prefetch::Ahead`] chooses; without a free register, what is one page further on.
    fn ask_ahead(&mut self, bases: &[u8], register: Option<u8>) {
        let Some(register) = register else {
            let lines = (0..usize::from(self.share.vectors) * self.machine.bytes()).step_by(LINE_BYTES);
            let lines = lines.map(|line| (PAGE_BYTES + line) as i32);
            return lines.for_each(|line| bases.iter().for_each(|&base| self.prefetch(base, line)));
        };
        let shift = PIECE_BYTES.trailing_zeros() as u8;
        for &base in bases {
            self.instructions.extend([
                Instruction::Move { to: register, from: base },
                Instruction::ShiftRight(register, shift),
                Instruction::RotateByteRight(register, PAGE_BITS as u8),
                Instruction::ShiftLeft(register, shift),
            ]);
            let lines = (0..PIECE_BYTES).step_by(LINE_BYTES);
            lines.for_each(|line| self.prefetch(register, (BLOCK_BYTES + line) as i32));
        }
    }

    fn prefetch(&mut self, base: u8, offset: i32) {
        self.instructions.push(Instruction::Prefetch { base, offset });
    }

    fn entry(&mut self, index: usize, entry: &Entry) -> Option<()> {
        match *entry {
            Entry::Constant(bits) => self.places[index] = Place::Constant(bits),
            Entry::Load(number) => {
                let to = self.take()?;
                self.all(Opcode::LOAD, to, None, self.memory(number));
                self.places[index] = Place::Vector(to);
            }
            Entry::Store(number, value) => {
                let (from, own) = self.register(value)?;
                self.all(Opcode::STORE, from, None, self.memory(number));
                self.give_back(own);
            }
            Entry::Pair(pair, a, b) => {
                let swap = commutes(pair) && matches!(self.places[a], Place::Constant(_));
                let (a, b) = if swap { (b, a) } else { (a, b) };
                let (first, own) = self.register(a)?;
                let (to, source) = (self.take()?, self.source(b));
                self.all(Opcode::of(pair), to, Some(first), source);
                self.give_back(own);
                self.places[index] = Place::Vector(to);
            }
            Entry::MulAdd(a, b, c) => self.mul_add(index, a, b, c)?,
            Entry::Root(a) => self.single(index, Opcode::ROOT, a)?,
            Entry::FromWhole(a) => self.single(index, Opcode::FROM_WHOLE, a)?,
            Entry::Left(a, bits) => self.shift(index, 6, a, bits)?,
            Entry::Right(a, bits) => self.shift(index, 4, a, bits)?,
            Entry::Compare(relation, a, b) => {
                let (first, own) = self.register(a)?;
                let (to, source) = (self.take_truth()?, self.source(b));
                let relation = match relation {
                    Relation::Less => 0x11,
                    Relation::AtMost => 0x12,
                    Relation::Equal => 0x00,
                    Relation::Unordered => 0x03,
                };
                for vector in 0..self.share.vectors {
                    let (to, first) = (self.truth(vector, to), self.side(vector, first));
                    let source = self.of_side(vector, source);
                    self.instruction(Opcode::COMPARE, to, Some(first), source, 0, Some(relation));
                }
                self.give_back(own);
                self.places[index] = to;
            }
            Entry::Select(truth, yes, no) => {
                let truth = self.places[truth];
                let (first, own) = self.register(no)?;
                let (to, source) = (self.take()?, self.source(yes));
                for vector in 0..self.share.vectors {
                    let (truth_here, first) = (self.truth(vector, truth), self.side(vector, first));
                    let (to, source) = (self.side(vector, to), self.of_side(vector, source));
                    if let Place::Mask(_) = truth {
                        self.instruction(Opcode::BLEND, to, Some(first), source, truth_here, None);
                    } else {
                        self.instruction(Opcode::BLEND_BY, to, Some(first), source, 0, Some(truth_here << 4));
                    }
                }
                self.give_back(own);
                self.places[index] = Place::Vector(to);
            }
        }
        Some(())
    }

    /// An instruction with one source.
    fn single(&mut self, index: usize, code: Opcode, a: Name) -> Option<()> {
        let (to, source) = (self.take()?, self.source(a));
        self.all(code, to, None, source);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// A shift by `bits`; `extension` is the opcode extension that selects the direction.
    fn shift(&mut self, index: usize, extension: u8, a: Name, bits: u8) -> Option<()> {
        let (from, own) = self.register(a)?;
        let to = self.take()?;
        for vector in 0..self.share.vectors {
            let (to, from) = (self.side(vector, to), Source::Register(self.side(vector, from)));
            self.instruction(Opcode::SHIFT, extension, Some(to), from, 0, Some(bits));
        }
        self.give_back(own);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// `a b + c`, which overwrites one of the three operands if that is not read again.
    fn mul_add(&mut self, index: usize, a: Name, b: Name, c: Name) -> Option<()> {
        let is_constant = |of: &Self, name: Name| matches!(of.places[name], Place::Constant(_));
        let (a, b) = if is_constant(self, a) { (b, a) } else { (a, b) };
        let is_over = |of: &Self, name: Name| of.last_reader[name] == index && !is_constant(of, name);
        // The operand whose register is overwritten, and the form of the instruction that does so.
        let (over, code, first, second) = if is_over(self, c) || (is_constant(self, b) && !is_over(self, a)) {
            (c, Opcode::MUL_ADD_231, a, b)
        } else if is_constant(self, b) {
            (a, Opcode::MUL_ADD_132, c, b)
        } else if is_over(self, b) && !is_over(self, a) {
            (b, Opcode::MUL_ADD_213, a, c)
        } else {
            (a, Opcode::MUL_ADD_213, b, c)
        };
        let (first, own) = self.register(first)?;
        let to = match self.places[over] {
            Place::Vector(to) if is_over(self, over) => {
                // The register now belongs to the result.
                self.places[over] = Place::Nowhere;
                to
            }
            _ => {
                let to = self.take()?;
                let from = self.source(over);
                let code = if let Source::Pool(_) = from { Opcode::SPREAD } else { Opcode::COPY };
                self.all(code, to, None, from);
                to
            }
        };
        // An operand that occurs twice is still valid: it is read before it is overwritten.
        let second = if second == over { Source::Register(to) } else { self.source(second) };
        self.all(code, to, Some(first), second);
        self.give_back(own);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// Allocates a register for a value.
    fn take(&mut self) -> Option<u8> {
        let register = self.free_vectors.pop()?;
        self.taken.registers = self.taken.registers.max(register + 1);
        Some(register)
    }

    /// Allocates a place for a mask.
    fn take_truth(&mut self) -> Option<Place> {
        if self.machine.masks() == 0 {
            return self.take().map(Place::Vector);
        }
        let mask = self.free_masks.pop()?;
        self.taken.masks = self.taken.masks.max(mask);
        Some(Place::Mask(mask))
    }

    fn give_back(&mut self, own: Option<u8>) {
        self.free_vectors.extend(own);
    }

    fn release(&mut self, name: Name) {
        match std::mem::replace(&mut self.places[name], Place::Nowhere) {
            Place::Vector(register) => self.free_vectors.push(register),
            Place::Mask(register) => self.free_masks.push(register),
            Place::Constant(_) | Place::Nowhere => {}
        }
    }

    /// The register that holds a value, and that register again if it was allocated for this use: a constant
    /// has none.
    fn register(&mut self, name: Name) -> Option<(u8, Option<u8>)> {
        match self.places[name] {
            Place::Vector(register) => Some((register, None)),
            Place::Constant(bits) => match self.constant(bits) {
                Source::Register(register) => Some((register, None)),
                source => {
                    let to = self.take()?;
                    self.all(Opcode::SPREAD, to, None, source);
                    Some((to, Some(to)))
                }
            },
            Place::Mask(_) | Place::Nowhere => unreachable!("a value is read while it is there"),
        }
    }

    fn source(&self, name: Name) -> Source {
        match self.places[name] {
            Place::Vector(register) => Source::Register(register),
            Place::Constant(bits) => self.constant(bits),
            Place::Mask(_) | Place::Nowhere => unreachable!("a value is read while it is there"),
        }
    }

    /// A constant in its register, or in the pool.
    fn constant(&self, bits: u32) -> Source {
        match self.resting.iter().position(|&resting| resting == bits) {
            Some(index) => Source::Register(self.resting_place(index)),
            None => Source::Pool(bits),
        }
    }

    /// The register of a constant that stays in one.
    fn resting_place(&self, index: usize) -> u8 {
        self.machine.vectors() - 1 - index as u8
    }

    /// An operand in memory, for the first vector of the round.
    fn memory(&self, number: u8) -> Source {
        let place = self.memory.iter().position(|&known| known == number).expect("it is in memory");
        Source::Memory { base: POINTERS[place], offset: 0 }
    }

    /// The register of one vector of the round.
    fn side(&self, vector: u8, register: u8) -> u8 {
        // The registers beyond hold constants, which all vectors share.
        if register < self.share.registers { register + vector * self.share.registers } else { register }
    }

    /// The register of a mask for one vector of the round.
    fn truth(&self, vector: u8, truth: Place) -> u8 {
        match truth {
            Place::Mask(register) => register + vector * self.share.masks,
            Place::Vector(register) => self.side(vector, register),
            Place::Constant(_) | Place::Nowhere => unreachable!("a truth is in a register"),
        }
    }

    fn of_side(&self, vector: u8, source: Source) -> Source {
        match source {
            Source::Register(register) => Source::Register(self.side(vector, register)),
            Source::Memory { base, offset } => {
                Source::Memory { base, offset: offset + i32::from(vector) * self.machine.bytes() as i32 }
            }
            Source::Pool(bits) => Source::Pool(bits),
        }
    }

    /// Emits an instruction for each vector of the round.
    fn all(&mut self, opcode: Opcode, to: u8, first: Option<u8>, source: Source) {
        for vector in 0..self.share.vectors {
            let (to, first) = (self.side(vector, to), first.map(|first| self.side(vector, first)));
            self.instruction(opcode, to, first, self.of_side(vector, source), 0, None);
        }
    }

    /// Emits one vector instruction with the given registers.
    fn instruction(
        &mut self,
        opcode: Opcode,
        to: u8,
        first: Option<u8>,
        source: Source,
        mask: u8,
        immediate: Option<u8>,
    ) {
        self.instructions.push(Instruction::Vector { opcode, to, first, source, mask, immediate });
    }
}
