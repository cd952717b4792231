//! The instructions of compiled chains as data, and their encoding: x86-64 with AVX2 (three-byte VEX prefix)
//! or AVX-512 (four-byte EVEX prefix), after Intel's manual, volume 2, sections 2.3 and 2.7.
//!
//! Addresses always have a 32-bit displacement, which no prefix scales.

use super::tape::Pair;

/// A vector instruction set. An instruction that both have differs only in its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Machine {
    Avx2,
    Avx512,
}

impl Machine {
    /// Bytes of a vector.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Machine::Avx2 => 32,
            Machine::Avx512 => 64,
        }
    }

    /// The number of vector registers.
    pub(super) const fn vectors(self) -> u8 {
        match self {
            Machine::Avx2 => 16,
            Machine::Avx512 => 32,
        }
    }

    /// The number of usable mask registers: k1 and up, because k0 encodes "no mask". Without mask registers
    /// (AVX2), masks are in vector registers.
    pub(super) const fn masks(self) -> u8 {
        match self {
            Machine::Avx2 => 0,
            Machine::Avx512 => 7,
        }
    }

    /// Bytes of a constant in the pool: as many as an instruction reads. AVX-512 can broadcast one number.
    pub(super) const fn number_bytes(self) -> usize {
        match self {
            Machine::Avx2 => self.bytes(),
            Machine::Avx512 => size_of::<u32>(),
        }
    }
}

/// The general registers that hold the address of the table and the number of rounds left.
pub(super) const TABLE: u8 = 7;
pub(super) const ROUNDS: u8 = 6;

/// The second source operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Register(u8),
    /// A constant of the pool, for all elements.
    Pool(u32),
    /// Memory at a pointer plus an offset in bytes.
    Memory {
        base: u8,
        offset: i32,
    },
}

/// The opcode of a vector instruction: its map (1: 0F, 2: 0F38, 3: 0F3A), its prefix (0: none, 1: 66) and its
/// byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opcode(u8, u8, u8);

impl Opcode {
    pub(super) const LOAD: Opcode = Opcode(1, 0, 0x10);
    pub(super) const STORE: Opcode = Opcode(1, 0, 0x11);
    pub(super) const COPY: Opcode = Opcode(1, 0, 0x28);
    pub(super) const ROOT: Opcode = Opcode(1, 0, 0x51);
    pub(super) const FROM_WHOLE: Opcode = Opcode(1, 0, 0x5b);
    pub(super) const SHIFT: Opcode = Opcode(1, 1, 0x72);
    pub(super) const COMPARE: Opcode = Opcode(1, 0, 0xc2);
    pub(super) const SPREAD: Opcode = Opcode(2, 1, 0x18);
    /// Selects by a mask register.
    pub(super) const BLEND: Opcode = Opcode(2, 1, 0x65);
    /// Selects by a vector register.
    pub(super) const BLEND_BY: Opcode = Opcode(3, 1, 0x4a);
    /// `to = to * source + first`
    pub(super) const MUL_ADD_132: Opcode = Opcode(2, 1, 0x98);
    /// `to = first * to + source`
    pub(super) const MUL_ADD_213: Opcode = Opcode(2, 1, 0xa8);
    /// `to = first * source + to`
    pub(super) const MUL_ADD_231: Opcode = Opcode(2, 1, 0xb8);

    pub(super) fn of(pair: Pair) -> Opcode {
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

/// An instruction. Registers are given by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Instruction {
    Push(u8),
    Pop(u8),
    /// `to = table[word]`
    LoadWord {
        to: u8,
        word: usize,
    },
    /// `to += table[word]`
    AddWord {
        to: u8,
        word: usize,
    },
    Move {
        to: u8,
        from: u8,
    },
    ShiftRight(u8, u8),
    ShiftLeft(u8, u8),
    /// Rotates the lowest byte of a register right.
    RotateByteRight(u8, u8),
    /// Prefetches a cache line into L2: `prefetcht1`.
    Prefetch {
        base: u8,
        offset: i32,
    },
    /// A vector instruction, under a mask register unless that is zero. Without `first`, that field of the
    /// encoding is empty.
    Vector {
        opcode: Opcode,
        to: u8,
        first: Option<u8>,
        source: Source,
        mask: u8,
        immediate: Option<u8>,
    },
    /// Emits nothing: marks the beginning of a round.
    Round,
    /// Decrements the number of rounds, and jumps to [`Instruction::Round`] unless it is zero.
    Repeat,
    ZeroUpper,
    Return,
}

/// The constants that instructions read from the pool, in the order of their first use.
pub(super) fn pool(instructions: &[Instruction]) -> Vec<u32> {
    let mut pool = Vec::new();
    for number in read_numbers(instructions) {
        if !pool.contains(&number) {
            pool.push(number);
        }
    }
    pool
}

/// The pool constant of each instruction that reads one.
pub(super) fn read_numbers(instructions: &[Instruction]) -> impl Iterator<Item = u32> {
    instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Vector { source: Source::Pool(bits), .. } => Some(*bits),
        _ => None,
    })
}

/// The bytes of the instructions, followed by the pool.
pub(super) fn encode(machine: Machine, instructions: &[Instruction]) -> Vec<u8> {
    let mut encoder = Encoder { machine, bytes: Vec::new(), distances: Vec::new(), round: 0 };
    instructions.iter().for_each(|instruction| encoder.instruction(instruction));
    encoder.append_pool(&pool(instructions));
    encoder.bytes
}

struct Encoder {
    machine: Machine,
    bytes: Vec<u8>,
    /// The places that need the distance to a pool constant: (position of the displacement, end of the
    /// instruction, constant).
    distances: Vec<(usize, usize, u32)>,
    /// The position where a round begins.
    round: usize,
}

impl Encoder {
    fn instruction(&mut self, instruction: &Instruction) {
        match *instruction {
            Instruction::Push(register) => self.on_stack(0x50, register),
            Instruction::Pop(register) => self.on_stack(0x58, register),
            Instruction::LoadWord { to, word } => self.word_of_table(0x8b, to, word),
            Instruction::AddWord { to, word } => self.word_of_table(0x03, to, word),
            Instruction::Move { to, from } => {
                let rex = 0x48 | (from >> 3) << 2 | to >> 3;
                self.bytes.extend([rex, 0x89, 0xc0 | (from & 7) << 3 | to & 7]);
            }
            Instruction::ShiftRight(register, bits) => {
                self.bytes.extend([0x48 | register >> 3, 0xc1, 0xe8 | register & 7, bits]);
            }
            Instruction::ShiftLeft(register, bits) => {
                self.bytes.extend([0x48 | register >> 3, 0xc1, 0xe0 | register & 7, bits]);
            }
            Instruction::RotateByteRight(register, bits) => {
                self.bytes.extend([0x40 | register >> 3, 0xc0, 0xc8 | register & 7, bits]);
            }
            Instruction::Prefetch { base, offset } => {
                self.bytes.extend((base > 7).then_some(0x41));
                self.bytes.extend([0x0f, 0x18]);
                self.address(2, base, offset);
            }
            Instruction::Vector { opcode, to, first, source, mask, immediate } => {
                self.vector(opcode, to, first.unwrap_or(0), source, mask, immediate);
            }
            Instruction::Round => self.round = self.bytes.len(),
            Instruction::Repeat => {
                // dec, jnz
                self.bytes.extend([0x48, 0xff, 0xc8 | ROUNDS, 0x0f, 0x85]);
                let back = self.round as i64 - (self.bytes.len() + 4) as i64;
                self.bytes.extend((back as i32).to_le_bytes());
            }
            Instruction::ZeroUpper => self.bytes.extend([0xc5, 0xf8, 0x77]),
            Instruction::Return => self.bytes.push(0xc3),
        }
    }

    fn vector(
        &mut self,
        Opcode(map, prefix, opcode): Opcode,
        to: u8,
        first: u8,
        source: Source,
        mask: u8,
        immediate: Option<u8>,
    ) {
        // The fourth and fifth bits of the second source register's number; for a constant, the broadcast
        // bit.
        let (fourth, fifth, broadcast) = match source {
            Source::Register(register) => (register >> 3 & 1, register >> 4 & 1, 0),
            Source::Memory { base, .. } => (base >> 3 & 1, 0, 0),
            // A broadcast instruction broadcasts without that bit.
            Source::Pool(_) => (0, 0, u8::from((map, opcode) != (Opcode::SPREAD.0, Opcode::SPREAD.2))),
        };
        let inverted = |bit: u8, place: u8| (bit & 1 ^ 1) << place;
        let registers = inverted(to >> 3, 7) | inverted(fifth, 6) | inverted(fourth, 5);
        // The bit that is always set in an EVEX prefix selects 256 bits in a VEX prefix.
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
                self.bytes.push((to & 7) << 3 | 0b101);
                let place = self.bytes.len();
                self.distances.push((place, place + 4 + usize::from(immediate.is_some()), bits));
                self.bytes.extend([0; 4]);
            }
        }
        self.bytes.extend(immediate);
    }

    /// The bytes of a memory operand: a base register and a 32-bit displacement.
    fn address(&mut self, register: u8, base: u8, offset: i32) {
        self.bytes.push(0x80 | register << 3 | base & 7);
        // Base registers 4 and 12 need an extra byte (SIB).
        self.bytes.extend((base & 7 == 4).then_some(0x24));
        self.bytes.extend(offset.to_le_bytes());
    }

    /// An instruction on a pointer register and a word of the table.
    fn word_of_table(&mut self, opcode: u8, register: u8, word: usize) {
        self.bytes.extend([0x48 | (register >> 3) << 2, opcode]);
        self.address(register & 7, TABLE, (word * size_of::<usize>()) as i32);
    }

    /// Pushes a register to the stack (0x50) or pops it (0x58).
    fn on_stack(&mut self, opcode: u8, register: u8) {
        self.bytes.extend((register > 7).then_some(0x41));
        self.bytes.push(opcode | register & 7);
    }

    /// Appends the pool to the code, and fills in the displacements.
    fn append_pool(&mut self, pool: &[u32]) {
        let width = self.machine.number_bytes();
        self.bytes.resize(self.bytes.len().next_multiple_of(width), 0xcc);
        let start = self.bytes.len();
        for &(place, end, bits) in &self.distances {
            let number = pool.iter().position(|&known| known == bits).expect("the pool has what is read");
            let distance = (start + width * number - end) as u32;
            self.bytes[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let repeated = |number: &u32| std::iter::repeat_n(number.to_le_bytes(), width / size_of::<u32>());
        self.bytes.extend(pool.iter().flat_map(repeated).flatten());
    }
}
