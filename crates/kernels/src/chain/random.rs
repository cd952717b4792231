//! Random chains, for tests.

use super::steps::{Action, Kind, Step};

/// A generator of numbers below a bound, with a fixed seed.
pub(crate) fn generator() -> impl FnMut(usize) -> usize {
    let mut state = 7u64;
    move |bound| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    }
}

/// A random chain: its steps, the kinds of their operands, and how many there are.
pub(crate) fn random_chain(random: &mut impl FnMut(usize) -> usize) -> (Vec<Step>, Vec<Kind>) {
    // Two inputs, one uniform input, a constant, two intermediate values, two outputs.
    let number = [0.5, -1.25, 3.0][random(3)];
    let mut kinds = vec![Kind::Memory; 3];
    kinds.extend([Kind::Number(number), Kind::Between, Kind::Between, Kind::Memory, Kind::Memory]);
    let mut there: Vec<u8> = (0..4).collect();
    let mut steps = Vec::new();
    let length = 1 + random(14);
    for i in 0..length {
        let load = if i == 0 || random(3) == 0 { there[random(there.len())] } else { Step::NOTHING };
        let action = Action::ALL[random(Action::ALL.len())];
        let operand = there[random(there.len())];
        let operand = if (action as u8) < Action::Square as u8 { operand } else { Step::NOTHING };
        let store = match random(3) {
            _ if i + 1 == length => 7,
            0 => 4 + random(3) as u8,
            _ => Step::NOTHING,
        };
        steps.push(Step::new(load, action, operand, operand == 3, store));
        if store != Step::NOTHING && !there.contains(&store) {
            there.push(store);
        }
    }
    (steps, kinds)
}

/// The sum of `inputs` inputs.
pub(crate) fn sum_of(inputs: u8) -> (Vec<Step>, Vec<Kind>) {
    let mut steps = vec![Step::new(0, Action::Mul, 1, false, inputs)];
    steps.extend((1..inputs).map(|i| Step::new(Step::NOTHING, Action::Add, i, false, inputs)));
    (steps, vec![Kind::Memory; usize::from(inputs) + 1])
}
