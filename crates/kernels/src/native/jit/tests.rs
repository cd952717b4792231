//! Decodes every compiled function with an independent decoder (`iced-x86`) and compares the result with the
//! intended instructions: mnemonics, registers, masks, displacements, constants and the jump. This needs no
//! machine with AVX-512.

use iced_x86::{Code as Kind, Decoder, DecoderOptions, Instruction as Decoded, Mnemonic, OpKind, Register};

use super::encode::{Instruction, Machine, Opcode, ROUNDS, Source, TABLE, encode, pool};
use super::select::{Assembled, assemble};
use super::tape::{Pair, Tape};
use crate::chain::random::{generator, random_chain, sum_of};

/// The general registers by number, and their lowest bytes.
const GENERAL: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
const LOWEST_BYTES: [Register; 16] = [
    Register::AL,
    Register::CL,
    Register::DL,
    Register::BL,
    Register::SPL,
    Register::BPL,
    Register::SIL,
    Register::DIL,
    Register::R8L,
    Register::R9L,
    Register::R10L,
    Register::R11L,
    Register::R12L,
    Register::R13L,
    Register::R14L,
    Register::R15L,
];
/// Callee-saved registers.
const KEPT: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// The expected form of a decoded operand.
#[derive(Debug)]
enum Operand {
    Register(Register),
    /// A vector register, by its number.
    Vector(u8),
    Mask(u8),
    /// Memory at a pointer plus an offset.
    Memory {
        base: u8,
        offset: i64,
        bytes: usize,
    },
    /// A pool constant, for all elements.
    Pool(u32),
    Immediate(u8),
}

/// The expected mnemonic of an opcode; `to` distinguishes the directions of a shift.
fn mnemonic(machine: Machine, opcode: Opcode, to: u8) -> Mnemonic {
    let either = |avx2, avx512| match machine {
        Machine::Avx2 => avx2,
        Machine::Avx512 => avx512,
    };
    let named = [
        (Opcode::LOAD, Mnemonic::Vmovups),
        (Opcode::STORE, Mnemonic::Vmovups),
        (Opcode::COPY, Mnemonic::Vmovaps),
        (Opcode::ROOT, Mnemonic::Vsqrtps),
        (Opcode::FROM_WHOLE, Mnemonic::Vcvtdq2ps),
        // The register field selects the direction.
        (Opcode::SHIFT, if to == 6 { Mnemonic::Vpslld } else { Mnemonic::Vpsrad }),
        (Opcode::COMPARE, Mnemonic::Vcmpps),
        (Opcode::SPREAD, Mnemonic::Vbroadcastss),
        (Opcode::BLEND, Mnemonic::Vblendmps),
        (Opcode::BLEND_BY, Mnemonic::Vblendvps),
        (Opcode::MUL_ADD_132, Mnemonic::Vfmadd132ps),
        (Opcode::MUL_ADD_213, Mnemonic::Vfmadd213ps),
        (Opcode::MUL_ADD_231, Mnemonic::Vfmadd231ps),
        (Opcode::of(Pair::Add), Mnemonic::Vaddps),
        (Opcode::of(Pair::Sub), Mnemonic::Vsubps),
        (Opcode::of(Pair::Mul), Mnemonic::Vmulps),
        (Opcode::of(Pair::Div), Mnemonic::Vdivps),
        (Opcode::of(Pair::Larger), Mnemonic::Vmaxps),
        (Opcode::of(Pair::Smaller), Mnemonic::Vminps),
        (Opcode::of(Pair::WholeSub), Mnemonic::Vpsubd),
        (Opcode::of(Pair::And), either(Mnemonic::Vpand, Mnemonic::Vpandd)),
        (Opcode::of(Pair::Or), either(Mnemonic::Vpor, Mnemonic::Vpord)),
        (Opcode::of(Pair::Xor), either(Mnemonic::Vpxor, Mnemonic::Vpxord)),
    ];
    let found = named.iter().find(|(known, _)| *known == opcode);
    found.unwrap_or_else(|| panic!("no intended instruction has {opcode:?}")).1
}

/// The decoded instructions that an intended one should become: mnemonic and operands.
fn intended(machine: Machine, instruction: &Instruction) -> Vec<(Mnemonic, Vec<Operand>)> {
    let general = |register: u8| Operand::Register(GENERAL[usize::from(register)]);
    let word = |word: usize| Operand::Memory { base: TABLE, offset: 8 * word as i64, bytes: 8 };
    match *instruction {
        Instruction::Push(register) => vec![(Mnemonic::Push, vec![general(register)])],
        Instruction::Pop(register) => vec![(Mnemonic::Pop, vec![general(register)])],
        Instruction::LoadWord { to, word: at } => vec![(Mnemonic::Mov, vec![general(to), word(at)])],
        Instruction::AddWord { to, word: at } => vec![(Mnemonic::Add, vec![general(to), word(at)])],
        Instruction::Move { to, from } => vec![(Mnemonic::Mov, vec![general(to), general(from)])],
        Instruction::ShiftRight(register, bits) => {
            vec![(Mnemonic::Shr, vec![general(register), Operand::Immediate(bits)])]
        }
        Instruction::ShiftLeft(register, bits) => {
            vec![(Mnemonic::Shl, vec![general(register), Operand::Immediate(bits)])]
        }
        Instruction::RotateByteRight(register, bits) => {
            let byte = Operand::Register(LOWEST_BYTES[usize::from(register)]);
            vec![(Mnemonic::Ror, vec![byte, Operand::Immediate(bits)])]
        }
        Instruction::Prefetch { base, offset } => {
            // A prefetched operand has no size.
            let at = Operand::Memory { base, offset: offset.into(), bytes: 1 };
            vec![(Mnemonic::Prefetcht1, vec![at])]
        }
        Instruction::Round => Vec::new(),
        // The target of the jump is compared separately.
        Instruction::Repeat => vec![(Mnemonic::Dec, vec![general(ROUNDS)]), (Mnemonic::Jne, Vec::new())],
        Instruction::ZeroUpper => vec![(Mnemonic::Vzeroupper, Vec::new())],
        Instruction::Return => vec![(Mnemonic::Ret, Vec::new())],
        Instruction::Vector { opcode, to, first, source, immediate, .. } => {
            let source = match source {
                Source::Register(register) => Operand::Vector(register),
                Source::Pool(bits) => Operand::Pool(bits),
                Source::Memory { base, offset } => {
                    Operand::Memory { base, offset: offset.into(), bytes: machine.bytes() }
                }
            };
            let of_mask = opcode == Opcode::COMPARE && machine == Machine::Avx512;
            let to_operand = if of_mask { Operand::Mask(to) } else { Operand::Vector(to) };
            let mut operands = match opcode {
                Opcode::STORE => vec![source, to_operand],
                Opcode::SHIFT => vec![Operand::Vector(first.expect("a shift has a target")), source],
                _ => [Some(to_operand), first.map(Operand::Vector), Some(source)]
                    .into_iter()
                    .flatten()
                    .collect(),
            };
            operands.extend(immediate.map(|immediate| match opcode {
                // Four bits of the immediate name a register.
                Opcode::BLEND_BY => Operand::Vector(immediate >> 4),
                _ => Operand::Immediate(immediate),
            }));
            vec![(mnemonic(machine, opcode, to), operands)]
        }
    }
}

/// Whether operand `number` is the intended one.
fn is_operand(
    machine: Machine,
    found: &Decoded,
    number: u32,
    meant: &Operand,
    bytes: &[u8],
    end: usize,
) -> bool {
    let kind = found.op_kind(number);
    let is = |register: Register, first: Register, number: u8| {
        kind == OpKind::Register && register as usize == first as usize + usize::from(number)
    };
    let first_vector = match machine {
        Machine::Avx2 => Register::YMM0,
        Machine::Avx512 => Register::ZMM0,
    };
    let has_size =
        |size: usize| found.mnemonic() == Mnemonic::Prefetcht1 || found.memory_size().size() == size;
    match *meant {
        Operand::Register(register) => kind == OpKind::Register && found.op_register(number) == register,
        Operand::Vector(register) => is(found.op_register(number), first_vector, register),
        Operand::Mask(register) => is(found.op_register(number), Register::K0, register),
        Operand::Immediate(immediate) => kind == OpKind::Immediate8 && found.immediate8() == immediate,
        Operand::Memory { base, offset, bytes } => {
            kind == OpKind::Memory
                && found.memory_base() == GENERAL[usize::from(base)]
                && found.memory_index() == Register::None
                && found.memory_displacement64() as i64 == offset
                && !found.is_broadcast()
                && has_size(bytes)
        }
        Operand::Pool(bits) => {
            // Every instruction except a broadcast reads as many elements as it computes.
            let spreads = found.mnemonic() == Mnemonic::Vbroadcastss;
            let repeats = machine == Machine::Avx2 && !spreads;
            let width = if repeats { machine.bytes() } else { 4 };
            let at = found.ip_rel_memory_address() as usize;
            kind == OpKind::Memory
                && found.is_ip_rel_memory_operand()
                && found.is_broadcast() == (machine == Machine::Avx512 && !spreads)
                && has_size(width)
                && at >= end
                && at.is_multiple_of(width)
                && bytes
                    .get(at..at + width)
                    .is_some_and(|found| found.chunks(4).all(|number| number == bits.to_le_bytes()))
        }
    }
}

/// How the bytes differ from the intended instructions; `None` if they agree.
fn difference(machine: Machine, instructions: &[Instruction], bytes: &[u8]) -> Option<String> {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let (mut decoded, mut round) = (Vec::new(), None);
    // The end of the code is known only after decoding, and reads past it are differences.
    for instruction in instructions {
        if *instruction == Instruction::Round {
            round = Some(decoder.position() as u64);
        }
        for (mnemonic, operands) in intended(machine, instruction) {
            if !decoder.can_decode() {
                return Some(format!("nothing where {instruction:?} was meant"));
            }
            decoded.push((decoder.decode(), instruction, mnemonic, operands));
        }
    }
    let end = decoder.position();
    let mut pushed = Vec::new();
    for (found, instruction, mnemonic, operands) in &decoded {
        let wrong = |what: &str| Some(format!("{what}: {:?} where {instruction:?} was meant", found.code()));
        let (mask, registers) = match instruction {
            Instruction::Vector { mask, opcode, .. } => (*mask, *opcode == Opcode::BLEND),
            _ => (0, false),
        };
        let found_mask = match mask {
            0 => Register::None,
            _ => [
                Register::K1,
                Register::K2,
                Register::K3,
                Register::K4,
                Register::K5,
                Register::K6,
                Register::K7,
            ][usize::from(mask) - 1],
        };
        if found.code() == Kind::INVALID || found.mnemonic() != *mnemonic {
            return wrong("another kind");
        }
        if found.op_mask() != found_mask || (mask != 0) != (registers && machine == Machine::Avx512) {
            return wrong("another mask");
        }
        if found.zeroing_masking() || found.suppress_all_exceptions() || found.has_lock_prefix() {
            return wrong("a prefix");
        }
        match instruction {
            Instruction::Repeat if *mnemonic == Mnemonic::Jne => {
                if Some(found.near_branch_target()) != round {
                    return wrong("a jump elsewhere");
                }
                continue;
            }
            Instruction::Push(register) => pushed.push(*register),
            Instruction::Pop(register) if pushed.pop() != Some(*register) => return wrong("not pushed last"),
            _ => {}
        }
        if found.op_count() as usize != operands.len() {
            return wrong("more operands, or fewer");
        }
        for (number, operand) in operands.iter().enumerate() {
            if !is_operand(machine, found, number as u32, operand, bytes, end) {
                return wrong(&format!("operand {number} is not {operand:?}"));
            }
        }
    }
    if instructions.last() != Some(&Instruction::Return) || !pushed.is_empty() {
        return Some("it does not end by giving all back".to_string());
    }
    let pool = end.next_multiple_of(match machine {
        Machine::Avx2 => machine.bytes(),
        Machine::Avx512 => 4,
    });
    let between = bytes.get(end..pool.min(bytes.len()))?;
    (between.iter().any(|&byte| byte != 0xcc)).then(|| "code behind the end".to_string())
}

/// Callee-saved registers that are written but not pushed.
fn lost(instructions: &[Instruction]) -> Vec<u8> {
    let mut saved = Vec::new();
    let mut lost = Vec::new();
    for instruction in instructions {
        match *instruction {
            Instruction::Push(register) => saved.push(register),
            Instruction::LoadWord { to, .. }
            | Instruction::AddWord { to, .. }
            | Instruction::Move { to, .. }
                if KEPT.contains(&to) && !saved.contains(&to) =>
            {
                lost.push(to);
            }
            _ => {}
        }
    }
    lost
}

fn check(machine: Machine, Assembled { instructions, bytes, .. }: &Assembled) {
    if let Some(difference) = difference(machine, instructions, bytes) {
        panic!("{difference}, {machine:?}: {instructions:?}");
    }
    assert_eq!(lost(instructions), [], "{instructions:?}");
}

#[test]
fn every_function_decodes_to_the_instructions_that_were_meant() {
    let mut random = generator();
    let (mut checked, mut masked, mut longest) = ([0, 0], 0, 0);
    for round in 0..2000 {
        let (steps, kinds) = random_chain(&mut random);
        for (machine, checked) in [Machine::Avx2, Machine::Avx512].into_iter().zip(&mut checked) {
            let Some(assembled) = assemble(machine, &Tape::of(&steps, &kinds), round % 2 == 0) else {
                continue;
            };
            check(machine, &assembled);
            *checked += 1;
            let is_masked = |i: &&Instruction| matches!(i, Instruction::Vector { mask: 1.., .. });
            masked += assembled.instructions.iter().filter(is_masked).count();
            longest = longest.max(assembled.instructions.len());
        }
    }
    // The chains cover every kind of instruction that could be encoded wrongly.
    assert!(
        checked[0] > 1900 && checked[1] == 2000 && masked > 1000 && longest > 300,
        "{checked:?} {masked} {longest}"
    );
}

#[test]
fn every_register_for_a_pointer_is_addressed_as_it_was_meant() {
    for machine in [Machine::Avx2, Machine::Avx512] {
        for inputs in 2..13 {
            let (steps, kinds) = sum_of(inputs);
            for prefetches in [false, true] {
                let assembled =
                    assemble(machine, &Tape::of(&steps, &kinds), prefetches).expect("there are registers");
                check(machine, &assembled);
            }
        }
    }
}

#[test]
fn a_wrong_bit_is_noticed() {
    let mut random = generator();
    let (steps, kinds) =
        (0..).map(|_| random_chain(&mut random)).find(|(steps, _)| steps.len() == 8).expect("one");
    for machine in [Machine::Avx2, Machine::Avx512] {
        let Assembled { instructions, bytes, .. } =
            assemble(machine, &Tape::of(&steps, &kinds), true).expect("there are registers");
        assert_eq!(bytes, encode(machine, &instructions));
        let code = bytes.len() - pool(&instructions).len() * machine.number_bytes();
        let wrong = (0..8 * code).map(|bit| {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            wrong
        });
        // A few bits have no meaning, such as those of an absent index register.
        let unnoticed = wrong.filter(|wrong| difference(machine, &instructions, wrong).is_none()).count();
        assert!(unnoticed * 20 < 8 * code, "{unnoticed} of {} bits, {machine:?}", 8 * code);
    }
}
