//! Code for what a [`Tape`](super::tape::Tape) says, with AVX-512 or AVX2: a loop whose values are in registers from the
//! first load to the last store. Encodings are those of Intel's manual, volume 2, sections 2.3 and 2.7 for the prefixes of
//! three bytes and of four.

use super::tape::{Entry, Name, Pair, Relation};
use crate::simd::{BLOCK_BYTES, PAGE_BITS, PAGE_BYTES, PIECE_BYTES};

/// The vectors of a machine. Whatever both have is written in one way, but for the prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Machine {
    Avx2,
    Avx512,
}

impl Machine {
    /// Bytes of a vector.
    const fn bytes(self) -> usize {
        match self {
            Machine::Avx2 => 32,
            Machine::Avx512 => 64,
        }
    }

    /// Vector registers.
    const fn vectors(self) -> u8 {
        match self {
            Machine::Avx2 => 16,
            Machine::Avx512 => 32,
        }
    }

    /// Mask registers: from one on, as the first means that there is no mask. Where there are none, truths are in vector
    /// registers.
    const fn masks(self) -> u8 {
        match self {
            Machine::Avx2 => 0,
            Machine::Avx512 => 7,
        }
    }

    /// Bytes of a number of the pool: as many as an instruction reads, which with AVX-512 may be one for all elements.
    const fn number_bytes(self) -> usize {
        match self {
            Machine::Avx2 => self.bytes(),
            Machine::Avx512 => size_of::<u32>(),
        }
    }
}

/// How many vectors are computed side by side, where there are registers for it and they are no more than is asked for at
/// a time: the most first.
const SIDE_BY_SIDE: [u8; 3] = [4, 2, 1];
/// Where no more operands than these are read, what is asked for goes round several pages. More are on as many pages anyway.
const MOST_SPREAD: usize = 3;

/// What a request for memory brings.
const LINE_BYTES: usize = 64;

/// Where the table lies and how many rounds are left.
const TABLE: u8 = 7;
const ROUNDS: u8 = 6;
/// Operands in memory.
pub(super) const MOST_OPERANDS: usize = 13;
/// Registers for pointers to them: those that nobody wants back, then those to be given back.
const POINTERS: [u8; MOST_OPERANDS] = [0, 1, 2, 8, 9, 10, 11, 3, 5, 12, 13, 14, 15];
const FREE_POINTERS: usize = 7;

/// A loop over vectors as machine code.
///
/// It takes, as on Unix, a table and a number of rounds, at least one. The table holds a pointer for each of `memory` and
/// then, for each, by how many bytes it moves on every round.
pub(super) struct Assembled {
    pub bytes: Vec<u8>,
    /// The numbers of the operands in memory.
    pub memory: Vec<u8>,
    /// Elements of a round.
    pub elements: usize,
}

/// The code of `entries` for a machine. Where it `asks`, it does so for memory that is only read, as
/// [`crate::simd::Ahead`] does. `None` where there are more values at a time than registers.
pub(super) fn assemble(machine: Machine, entries: &[Entry], asks: bool) -> Option<Assembled> {
    // Code for one vector tells how many registers it needs: the rest is for others, then for constants.
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

/// How many vectors are computed side by side, and the registers that each has to itself.
#[derive(Clone, Copy)]
struct Share {
    vectors: u8,
    registers: u8,
    masks: u8,
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In this vector register of the first of the vectors side by side.
    Vector(u8),
    /// In this mask register, likewise.
    Mask(u8),
    /// In memory behind the code.
    Constant(u32),
    Nowhere,
}

/// The second source of an instruction.
#[derive(Clone, Copy)]
enum Source {
    Register(u8),
    /// One number of the pool for all elements.
    Pool(u32),
    /// Memory at a pointer.
    Memory {
        base: u8,
        offset: i32,
    },
}

/// An instruction on vectors: its map (1: 0F, 2: 0F38, 3: 0F3A), its prefix (0: none, 1: 66) and its opcode.
#[derive(Clone, Copy)]
struct Opcode(u8, u8, u8);

impl Opcode {
    const LOAD: Opcode = Opcode(1, 0, 0x10);
    const STORE: Opcode = Opcode(1, 0, 0x11);
    const COPY: Opcode = Opcode(1, 0, 0x28);
    const ROOT: Opcode = Opcode(1, 0, 0x51);
    const FROM_WHOLE: Opcode = Opcode(1, 0, 0x5b);
    const SHIFT: Opcode = Opcode(1, 1, 0x72);
    const COMPARE: Opcode = Opcode(1, 0, 0xc2);
    const SPREAD: Opcode = Opcode(2, 1, 0x18);
    /// By a mask register.
    const BLEND: Opcode = Opcode(2, 1, 0x65);
    /// By a vector register.
    const BLEND_BY: Opcode = Opcode(3, 1, 0x4a);
    /// `to = to * source + first`
    const MUL_ADD_132: Opcode = Opcode(2, 1, 0x98);
    /// `to = first * to + source`
    const MUL_ADD_213: Opcode = Opcode(2, 1, 0xa8);
    /// `to = first * source + to`
    const MUL_ADD_231: Opcode = Opcode(2, 1, 0xb8);

    fn of(pair: Pair) -> Opcode {
        match pair {
            Pair::Add => Opcode(1, 0, 0x58),
            Pair::Mul => Opcode(1, 0, 0x59),
            Pair::Sub => Opcode(1, 0, 0x5c),
            Pair::Div => Opcode(1, 0, 0x5e),
            Pair::Smaller => Opcode(1, 0, 0x5d),
            Pair::Larger => Opcode(1, 0, 0x5f),
            Pair::And => Opcode(1, 1, 0xdb),
            Pair::Or => Opcode(1, 1, 0xeb),
            Pair::Xor => Opcode(1, 1, 0xef),
            Pair::WholeSub => Opcode(1, 1, 0xfa),
        }
    }
}

fn commutes(pair: Pair) -> bool {
    matches!(pair, Pair::Add | Pair::Mul | Pair::And | Pair::Or | Pair::Xor)
}

struct Assembler {
    machine: Machine,
    bytes: Vec<u8>,
    memory: Vec<u8>,
    share: Share,
    /// What was taken of it at most.
    taken: Share,
    /// Numbers that rest in a register throughout: in the last one, the one before it, ...
    resting: Vec<u32>,
    /// Vector and mask registers of the first of the vectors side by side that hold nothing.
    free_vectors: Vec<u8>,
    free_masks: Vec<u8>,
    places: Vec<Place>,
    /// The entry that is the last to read each value.
    last_reader: Vec<usize>,
    pool: Vec<u32>,
    /// Where the code has to say how far away a number of the pool is: the place of the distance, the end of the
    /// instruction, the number.
    distances: Vec<(usize, usize, usize)>,
}

impl Assembler {
    /// `None` where more operands are in memory than there are registers for pointers.
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
            bytes: Vec::new(),
            memory,
            share,
            taken: Share { registers: 0, masks: 0, ..share },
            resting,
            free_vectors: (0..share.registers).rev().collect(),
            free_masks: (1..=share.masks).rev().collect(),
            places: vec![Place::Nowhere; entries.len()],
            last_reader,
            pool: Vec::new(),
            distances: Vec::new(),
        })
    }

    fn assemble(mut self, entries: &[Entry], asks: bool) -> Option<Assembled> {
        let (pointers, others) = POINTERS.split_at(self.memory.len());
        let asked = if asks { self.only_read(entries) } else { Vec::new() };
        // One more register to ask with, where it is of use and there is one.
        let is_spread = (1..=MOST_SPREAD).contains(&asked.len());
        let asking = others.first().copied().filter(|_| is_spread);
        let lent = POINTERS.get(FREE_POINTERS..pointers.len() + usize::from(asking.is_some())).unwrap_or(&[]);
        lent.iter().for_each(|&register| self.on_stack(0x50, register));
        for (index, &pointer) in pointers.iter().enumerate() {
            self.word_of_table(0x8b, pointer, index);
        }
        for (index, bits) in self.resting.clone().into_iter().enumerate() {
            let to = self.resting_place(index);
            self.instruction(Opcode::SPREAD, to, None, Source::Pool(bits), 0, &[]);
        }
        let begin = self.bytes.len();
        self.ask_ahead(&asked, asking);
        self.round(entries)?;
        for (index, &pointer) in pointers.iter().enumerate() {
            self.word_of_table(0x03, pointer, pointers.len() + index);
        }
        // dec, jnz
        self.bytes.extend([0x48, 0xff, 0xc8 | ROUNDS, 0x0f, 0x85]);
        let back = begin as i64 - (self.bytes.len() + 4) as i64;
        self.bytes.extend((back as i32).to_le_bytes());
        // vzeroupper
        self.bytes.extend([0xc5, 0xf8, 0x77]);
        lent.iter().rev().for_each(|&register| self.on_stack(0x58, register));
        self.bytes.push(0xc3);
        self.append_pool();
        let elements = usize::from(self.share.vectors) * self.machine.bytes() / size_of::<f32>();
        Some(Assembled { bytes: self.bytes, memory: self.memory, elements })
    }

    /// What is done to the elements of one round; `None` where it takes more registers than there are.
    fn round(&mut self, entries: &[Entry]) -> Option<()> {
        for (index, entry) in entries.iter().enumerate() {
            self.entry(index, entry)?;
            let mut gone: Vec<Name> = entry.reads().filter(|&name| self.last_reader[name] == index).collect();
            // Nobody reads a store, and an unread value rests nowhere.
            if self.last_reader[index] == 0 && !matches!(entry, Entry::Store(..)) {
                gone.push(index);
            }
            gone.sort_unstable();
            gone.dedup();
            gone.into_iter().for_each(|name| self.release(name));
        }
        Some(())
    }

    /// The numbers of the pool, those first that are read most.
    fn constants(&self) -> Vec<u32> {
        let readers = |number: usize| self.distances.iter().filter(|&&(_, _, read)| read == number).count();
        let mut numbers: Vec<usize> = (0..self.pool.len()).collect();
        numbers.sort_by_key(|&number| std::cmp::Reverse(readers(number)));
        numbers.into_iter().map(|number| self.pool[number]).collect()
    }

    /// The pointers to operands that nothing is stored to.
    fn only_read(&self, entries: &[Entry]) -> Vec<u8> {
        let is_stored = |number| entries.iter().any(|e| matches!(e, Entry::Store(to, _) if *to == number));
        let places = self.memory.iter().zip(POINTERS).filter(|&(&number, _)| !is_stored(number));
        places.map(|(_, base)| base).collect()
    }

    /// Asks for what comes later behind each of these pointers: a piece of a block further, of which
    /// [`crate::simd::Ahead`] says which, or where there is no register for that what is a page further.
    fn ask_ahead(&mut self, bases: &[u8], register: Option<u8>) {
        let Some(register) = register else {
            let lines = (0..usize::from(self.share.vectors) * self.machine.bytes()).step_by(LINE_BYTES);
            let lines = lines.map(|line| (PAGE_BYTES + line) as i32);
            return lines.for_each(|line| bases.iter().for_each(|&base| self.prefetch(base, line)));
        };
        let high = register >> 3;
        let shift = PIECE_BYTES.trailing_zeros() as u8;
        for &base in bases {
            // mov register, base
            self.bytes.extend([0x48 | (base >> 3) << 2 | high, 0x89, 0xc0 | (base & 7) << 3 | register & 7]);
            // shr; ror of the lowest byte; shl
            self.bytes.extend([0x48 | high, 0xc1, 0xe8 | register & 7, shift]);
            self.bytes.extend([0x40 | high, 0xc0, 0xc8 | register & 7, PAGE_BITS as u8]);
            self.bytes.extend([0x48 | high, 0xc1, 0xe0 | register & 7, shift]);
            let lines = (0..PIECE_BYTES).step_by(LINE_BYTES);
            lines.for_each(|line| self.prefetch(register, (BLOCK_BYTES + line) as i32));
        }
    }

    /// prefetcht1
    fn prefetch(&mut self, base: u8, offset: i32) {
        self.bytes.extend((base > 7).then_some(0x41));
        self.bytes.extend([0x0f, 0x18]);
        self.address(2, base, offset);
    }

    /// The numbers of the pool behind the code, and how far away they are.
    fn append_pool(&mut self) {
        let width = self.machine.number_bytes();
        self.bytes.resize(self.bytes.len().next_multiple_of(width), 0xcc);
        let start = self.bytes.len();
        for &(place, end, number) in &self.distances {
            let distance = (start + width * number - end) as u32;
            self.bytes[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let repeated = |number: &u32| std::iter::repeat_n(number.to_le_bytes(), width / size_of::<u32>());
        self.bytes.extend(self.pool.iter().flat_map(repeated).flatten());
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
                    self.instruction(Opcode::COMPARE, to, Some(first), source, 0, &[relation]);
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
                        self.instruction(Opcode::BLEND, to, Some(first), source, truth_here, &[]);
                    } else {
                        self.instruction(Opcode::BLEND_BY, to, Some(first), source, 0, &[truth_here << 4]);
                    }
                }
                self.give_back(own);
                self.places[index] = Place::Vector(to);
            }
        }
        Some(())
    }

    /// An instruction of one source.
    fn single(&mut self, index: usize, code: Opcode, a: Name) -> Option<()> {
        let (to, source) = (self.take()?, self.source(a));
        self.all(code, to, None, source);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// A shift by `bits`; `extension` says in which direction.
    fn shift(&mut self, index: usize, extension: u8, a: Name, bits: u8) -> Option<()> {
        let (from, own) = self.register(a)?;
        let to = self.take()?;
        for vector in 0..self.share.vectors {
            let (to, from) = (self.side(vector, to), Source::Register(self.side(vector, from)));
            self.instruction(Opcode::SHIFT, extension, Some(to), from, 0, &[bits]);
        }
        self.give_back(own);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// `a b + c`, over one of the three if nobody reads it any more: the instruction does not keep it.
    fn mul_add(&mut self, index: usize, a: Name, b: Name, c: Name) -> Option<()> {
        let is_constant = |of: &Self, name: Name| matches!(of.places[name], Place::Constant(_));
        let (a, b) = if is_constant(self, a) { (b, a) } else { (a, b) };
        let is_over = |of: &Self, name: Name| of.last_reader[name] == index && !is_constant(of, name);
        // Who gives up its register, and what is computed over it.
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
                // The register is the result's now.
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
        // A value that is two of the three is still there: it is read before it is written over.
        let second = if second == over { Source::Register(to) } else { self.source(second) };
        self.all(code, to, Some(first), second);
        self.give_back(own);
        self.places[index] = Place::Vector(to);
        Some(())
    }

    /// A register for a value.
    fn take(&mut self) -> Option<u8> {
        let register = self.free_vectors.pop()?;
        self.taken.registers = self.taken.registers.max(register + 1);
        Some(register)
    }

    /// A place for a truth.
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

    /// The register that a value is in, and whether it was taken for this: a constant has none of its own.
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

    /// A number where it rests, or in the pool.
    fn constant(&self, bits: u32) -> Source {
        match self.resting.iter().position(|&resting| resting == bits) {
            Some(index) => Source::Register(self.resting_place(index)),
            None => Source::Pool(bits),
        }
    }

    /// The register of a number that rests in one.
    fn resting_place(&self, index: usize) -> u8 {
        self.machine.vectors() - 1 - index as u8
    }

    /// An operand in memory, of the first of the vectors side by side.
    fn memory(&self, number: u8) -> Source {
        let place = self.memory.iter().position(|&known| known == number).expect("it is in memory");
        Source::Memory { base: POINTERS[place], offset: 0 }
    }

    /// The register of one of the vectors side by side.
    fn side(&self, vector: u8, register: u8) -> u8 {
        // Beyond are numbers that rest, which all share.
        if register < self.share.registers { register + vector * self.share.registers } else { register }
    }

    /// The register of a truth of one of the vectors side by side.
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

    /// An instruction for each of the vectors side by side.
    fn all(&mut self, opcode: Opcode, to: u8, first: Option<u8>, source: Source) {
        for vector in 0..self.share.vectors {
            let (to, first) = (self.side(vector, to), first.map(|first| self.side(vector, first)));
            self.instruction(opcode, to, first, self.of_side(vector, source), 0, &[]);
        }
    }

    /// One instruction on whole vectors, its registers as they are.
    fn instruction(
        &mut self,
        Opcode(map, prefix, opcode): Opcode,
        to: u8,
        first: Option<u8>,
        source: Source,
        mask: u8,
        immediate: &[u8],
    ) {
        let first = first.unwrap_or(0);
        // The fourth and fifth bits of the second source; of one number, that it is for all elements.
        let (fourth, fifth, broadcast) = match source {
            Source::Register(register) => (register >> 3 & 1, register >> 4 & 1, 0),
            Source::Memory { base, .. } => (base >> 3 & 1, 0, 0),
            // An instruction that only spreads a number says so by itself.
            Source::Pool(_) => (0, 0, u8::from((map, opcode) != (Opcode::SPREAD.0, Opcode::SPREAD.2))),
        };
        let inverted = |bit: u8, place: u8| (bit & 1 ^ 1) << place;
        let registers = inverted(to >> 3, 7) | inverted(fifth, 6) | inverted(fourth, 5);
        // The bit that four bytes always have says of three that it is about 256 bits.
        let others = (!first & 0xf) << 3 | 0b100 | prefix;
        match self.machine {
            Machine::Avx2 => self.bytes.extend([0xc4, registers | map, others, opcode]),
            Machine::Avx512 => self.bytes.extend([
                0x62,
                registers | inverted(to >> 4, 4) | map,
                others,
                0b10 << 5 | broadcast << 4 | inverted(first >> 4, 3) | mask,
                opcode,
            ]),
        }
        match source {
            Source::Register(register) => self.bytes.push(0xc0 | (to & 7) << 3 | register & 7),
            Source::Memory { base, offset } => self.address(to & 7, base, offset),
            Source::Pool(bits) => {
                let number = self.pool.iter().position(|&known| known == bits).unwrap_or_else(|| {
                    self.pool.push(bits);
                    self.pool.len() - 1
                });
                self.bytes.push((to & 7) << 3 | 0b101);
                let place = self.bytes.len();
                self.distances.push((place, place + 4 + immediate.len(), number));
                self.bytes.extend([0; 4]);
            }
        }
        self.bytes.extend(immediate);
    }

    /// The bytes that say where memory is: a register and a distance of 32 bits.
    fn address(&mut self, register: u8, base: u8, offset: i32) {
        self.bytes.push(0x80 | register << 3 | base & 7);
        // The registers 4 and 12 have to be named once more.
        self.bytes.extend((base & 7 == 4).then_some(0x24));
        self.bytes.extend(offset.to_le_bytes());
    }

    /// An instruction on a pointer and a word of the table.
    fn word_of_table(&mut self, opcode: u8, register: u8, word: usize) {
        self.bytes.extend([0x48 | (register >> 3) << 2, opcode]);
        self.address(register & 7, TABLE, (word * size_of::<usize>()) as i32);
    }

    /// Brings a register to the stack (0x50) or back (0x58).
    fn on_stack(&mut self, opcode: u8, register: u8) {
        self.bytes.extend((register > 7).then_some(0x41));
        self.bytes.push(opcode | register & 7);
    }
}
