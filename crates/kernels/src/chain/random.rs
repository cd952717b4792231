//! Chains drawn at random, for tests.

use super::steps::{Action, Kind, Step};

/// Numbers below a bound, the same ones every time.
pub(crate) fn generator() -> impl FnMut(usize) -> usize {
    let mut state = 7u64;
    move |bound| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    }
}

/// A chain drawn at random: steps, what kinds of operands they have, and how many.
pub(crate) fn random_chain(random: &mut impl FnMut(usize) -> usize) -> (Vec<Step>, Vec<Kind>) {
    // Two inputs, one that is the same everywhere, a number, two between steps, two outputs.
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

/// The sum of so many inputs.
pub(crate) fn sum_of(inputs: u8) -> (Vec<Step>, Vec<Kind>) {
    let mut steps = vec![Step::new(0, Action::Mul, 1, false, inputs)];
    steps.extend((1..inputs).map(|i| Step::new(Step::NOTHING, Action::Add, i, false, inputs)));
    (steps, vec![Kind::Memory; usize::from(inputs) + 1])
}
