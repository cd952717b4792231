//! Tests of chains: the meaning of each action at every level, and compiled code against the interpreter.

use super::random::{generator, random_chain, sum_of};
use super::steps::Kind;
use super::*;
use crate::native::{NativeBackend, backend};
use crate::stream::{STREAM_ALIGNMENT, Streaming};

/// The meaning of an action, spelled out.
fn one(action: Action, x: f32, y: f32) -> f32 {
    match action {
        Action::Add => x + y,
        Action::Sub => x - y,
        Action::SubFrom => y - x,
        Action::Mul => x * y,
        Action::Div => x / y,
        Action::DivFrom => y / x,
        Action::Max => x.max(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
        Action::Min => x.min(y) + if x.is_nan() || y.is_nan() { f32::NAN } else { 0.0 },
        Action::Square => x * x,
        Action::Neg => -x,
        Action::Abs => x.abs(),
        Action::Sqrt => x.sqrt(),
        Action::Rsqrt => 1.0 / x.sqrt(),
        Action::Exp => math::exp(x),
        Action::Log => math::ln(x),
        Action::Tanh => math::tanh(x),
        Action::Logistic => math::logistic(x),
    }
}

fn levels() -> Vec<Level> {
    KernelOptions::levels().into_iter().map(KernelOptions::level).collect()
}

#[test]
fn every_action_means_the_same_at_every_level_and_length() {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 3e38, -1.5];
    let number = |i: usize| {
        if i.is_multiple_of(5) { special[i / 5 % 8] } else { (i * 37 % 101) as f32 * 0.1 - 5.0 }
    };
    for count in [0, 1, 15, 16, 17, 63, 128, 130, 300, 1024] {
        let mut x: Vec<f32> = (0..count).map(number).collect();
        let mut y: Vec<f32> = (0..count).map(|i| number(3 * i + 1)).collect();
        let mut chunk = [0.75f32; CHUNK];
        let cases = Action::ALL.into_iter().flat_map(|a| [false, true].map(|number| (a, number)));
        let cases = cases.filter(|&(action, number)| !number || (action as u8) < Action::Square as u8);
        for ((action, number), level) in cases.flat_map(|c| levels().into_iter().map(move |l| (c, l))) {
            let mut out = vec![0f32; 3 * count + STREAM_ALIGNMENT];
            let (direct, rest) = out.split_at_mut(count);
            let (halved, rest) = rest.split_at_mut(count);
            let streamed = rest.as_ptr().align_offset(STREAM_ALIGNMENT);
            let mut operands = Operands::new();
            operands.push(x.as_mut_ptr(), 1, false, 0);
            if number {
                operands.push(chunk.as_mut_ptr(), 0, false, 0);
            } else {
                operands.push(y.as_mut_ptr(), 1, false, 0);
            }
            operands.push(direct.as_mut_ptr(), 1, false, 0);
            operands.push(chunk.as_mut_ptr(), 0, false, 0);
            operands.push(halved.as_mut_ptr(), 1, false, 0);
            operands.push(rest[streamed..].as_mut_ptr(), 1, true, 0);
            let steps = [
                Step::new(0, action, 1, number, 2),
                Step::new(Step::NOTHING, Action::Mul, 3, false, 4),
                Step::new(2, Action::Mul, 3, true, 5),
            ];
            let streaming = Streaming;
            // SAFETY: all operands have `count` elements, except the chunk; the machine has the level.
            unsafe { run_at(level, &steps, &mut operands, count) };
            drop(streaming);
            for i in 0..count {
                let y = if number { chunk[0] } else { y[i] };
                let right = one(action, x[i], y);
                let half = right * 0.75;
                let streamed = out[2 * count + streamed + i];
                for (found, right) in [(out[i], right), (out[count + i], half), (streamed, half)] {
                    let zeros = matches!(action, Action::Max | Action::Min) && found == right;
                    assert!(
                        found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan()) || zeros,
                        "{action:?}({:e}, {y:e}) at {i} of {count}, {level:?}: {found:e}, not {right:e}",
                        x[i]
                    );
                }
            }
        }
    }
}

/// The levels of this machine for which its system allows compiled code, each with its number of vector
/// registers.
fn levels_of_code() -> Vec<(KernelOptions, usize)> {
    let is_possible = |options: &KernelOptions| {
        let negation = [Step::new(0, Action::Neg, Step::NOTHING, false, 0)];
        backend(*options).compile(&negation, &[Kind::Memory], false).is_some()
    };
    let registers = |options: KernelOptions| match options.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (options, 32),
        _ => (options, 16),
    };
    KernelOptions::levels().into_iter().filter(is_possible).map(registers).collect()
}

#[test]
fn without_just_in_time_compilation_nothing_is_compiled() {
    let (steps, kinds) = sum_of(2);
    for options in KernelOptions::levels() {
        assert!(backend(options.without_jit()).compile(&steps, &kinds, false).is_none());
    }
}

#[test]
fn code_gives_the_bits_of_the_steps() {
    let mut random = generator();
    let special =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -1e-40, 3e38, 88.9, -104.0, 1.0];
    const ROUNDS: usize = 2000;
    let levels = levels_of_code();
    let mut without_code = vec![0; levels.len()];
    for round in 0..ROUNDS {
        let (steps, kinds) = random_chain(&mut random);
        let asks = round % 2 == 0;
        let count = [0, 5, 32, 64, 100, 256][random(6)];
        let mut draw = |len: usize| -> Vec<f32> {
            let mut number = || match random(6) {
                0 => special[random(special.len())],
                _ => (random(20_000) as f32 - 10_000.0) * [1e-3, 1e-4, 1e-2][random(3)],
            };
            (0..len).map(|_| number()).collect()
        };
        let (x, y, same) = (draw(count), draw(count), draw(1)[0]);
        let run = |code: Option<&dyn CompiledChain>| {
            let (mut x, mut y) = (x.clone(), y.clone());
            let mut chunks = [[same; CHUNK], [0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]];
            if let Kind::Number(number) = kinds[3] {
                chunks[1].fill(number);
            }
            let mut outputs = [vec![0f32; count], vec![0f32; count]];
            let mut operands = Operands::new();
            operands.push(x.as_mut_ptr(), 1, false, 0);
            operands.push(y.as_mut_ptr(), 1, false, 0);
            chunks.iter_mut().for_each(|chunk| operands.push(chunk.as_mut_ptr(), 0, false, 0));
            outputs.iter_mut().for_each(|output| operands.push(output.as_mut_ptr(), 1, false, 0));
            // SAFETY: all operands have `count` elements, except the chunks.
            unsafe { run(KernelOptions::native(), &steps, code, &mut operands, 1, count) };
            outputs
        };
        let right = run(None);
        for (&(level, _), without_code) in levels.iter().zip(&mut without_code) {
            let Some(code) = backend(level).compile(&steps, &kinds, asks) else {
                *without_code += 1;
                continue;
            };
            for (found, right) in run(Some(&*code)).iter().flatten().zip(right.iter().flatten()) {
                let are_equal = found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan());
                assert!(are_equal, "{found:e}, not {right:e}, of {steps:?} over {kinds:?}, {level:?}");
            }
        }
    }
    for (&(level, registers), without_code) in levels.iter().zip(without_code) {
        // Few chains have more live values than half of the registers hold.
        let most = if registers == 32 { 0 } else { ROUNDS / 20 };
        assert!(without_code <= most, "{without_code} chains of {ROUNDS} have no code, {level:?}");
    }
}

/// Runs steps on chunks of one number each and returns the last `outputs` chunks, which start as zeros.
fn on_chunks(steps: &[Step], code: Option<&dyn CompiledChain>, inputs: usize, outputs: usize) -> Vec<f32> {
    let mut chunks: Vec<[f32; CHUNK]> = (0..inputs).map(|i| [0.3 * i as f32 + 0.7; CHUNK]).collect();
    chunks.resize(inputs + outputs, [0.0; CHUNK]);
    let mut operands = Operands::new();
    chunks.iter_mut().for_each(|chunk| operands.push(chunk.as_mut_ptr(), 1, false, 0));
    // SAFETY: all operands have `CHUNK` elements.
    unsafe { run(KernelOptions::native(), steps, code, &mut operands, 1, CHUNK) };
    chunks[inputs..].iter().map(|chunk| chunk[CHUNK - 1]).collect()
}

#[test]
fn code_needs_a_register_for_each_operand_in_memory() {
    for (level, _) in levels_of_code() {
        for inputs in 2..20u8 {
            let (steps, kinds) = sum_of(inputs);
            let code = backend(level).compile(&steps, &kinds, true);
            assert_eq!(code.is_some(), inputs < 13, "{inputs} inputs, {level:?}");
            let run = |code| on_chunks(&steps, code, usize::from(inputs), 1);
            assert_eq!(run(code.as_deref()), run(None), "{inputs} inputs, {level:?}");
        }
    }
}

#[test]
fn code_takes_fewer_vectors_side_by_side_where_many_values_are_alive() {
    for (level, registers) in levels_of_code() {
        for kept in [1u8, 2, 3, 5, 6, 12, 13, 14, 15, 16, 20, 28, 29, 30, 31, 32, 40] {
            // Repeated square roots of the input, which are then subtracted from one another.
            let root = |i: u8, load| Step::new(load, Action::Sqrt, Step::NOTHING, false, 2 + i);
            let mut steps = vec![Step::new(0, Action::Abs, Step::NOTHING, false, 2)];
            steps.extend((1..kept).map(|i| root(i, Step::NOTHING)));
            steps.extend((0..kept).map(|i| Step::new(Step::NOTHING, Action::SubFrom, 2 + i, false, 1)));
            let mut kinds = vec![Kind::Memory; 2];
            kinds.resize(2 + usize::from(kept), Kind::Between);
            let code = backend(level).compile(&steps, &kinds, false);
            let (few, many) = (usize::from(kept) <= registers - 4, usize::from(kept) >= registers);
            if few || many {
                assert_eq!(code.is_some(), few, "{kept} values, {level:?}");
            }
            let run = |code| on_chunks(&steps, code, 1, 1 + usize::from(kept))[0];
            assert_eq!(run(code.as_deref()).to_bits(), run(None).to_bits(), "{kept} values, {level:?}");
        }
    }
}
