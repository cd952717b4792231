//! Moves between an arena and host memory, on the reference executor, which copies as late as the program allows and poisons
//! what must not be read; and each check of a program that moves wrongly.

use crate::common::*;
use partita_ir::{ClassGraph, Graph, Literal, Phase, Role};
use partita_program::*;
use std::collections::BTreeSet;

const WEIGHTS: usize = 6;

/// Weights with a state each: negated products with all of them, one after another, then for each weight `m := m / 2 + w`, `w := w - m`.
fn step() -> Graph {
    let mut graph = build(1, |_, b| {
        let x = b.input("x", f32s(&[4, 4]), Role::Input);
        let weights: Vec<_> =
            (0..WEIGHTS).map(|n| b.input(&format!("layers.{n}.w"), f32s(&[4, 4]), Role::Param)).collect();
        let state = |b: &mut partita_ir::GraphBuilder, n: usize| {
            b.input(&format!("m.layers.{n}.w"), f32s(&[4, 4]), Role::StateOf(weights[n]))
        };
        let states: Vec<_> = (0..WEIGHTS).map(|n| state(b, n)).collect();
        let mut kept = vec![x];
        for (n, &w) in weights.iter().enumerate() {
            b.path = format!("layers.{n}");
            let y = matmul(b, kept[n], w);
            kept.push(b.negate(y).unwrap());
        }
        b.phase = Phase::InputGrad;
        let mut gradient = kept[WEIGHTS];
        for n in (0..WEIGHTS).rev() {
            b.path = format!("layers.{n}");
            let y = b.multiply(gradient, kept[n]).unwrap();
            gradient = matmul(b, y, weights[n]);
        }
        b.phase = Phase::Update;
        let mut outputs = vec![("y".to_string(), gradient)];
        for n in 0..WEIGHTS {
            b.path = format!("layers.{n}");
            let half = b.scale(states[n], 0.5).unwrap();
            let m = b.add(half, weights[n]).unwrap();
            let w = b.subtract(weights[n], m).unwrap();
            outputs.push((format!("w{n}"), w));
            outputs.push((format!("m{n}"), m));
        }
        outputs
    })
    .remove(0);
    for n in 0..WEIGHTS {
        graph.aliases.push((1 + n, 1 + 2 * n));
        graph.aliases.push((1 + WEIGHTS + n, 2 + 2 * n));
    }
    graph
}

fn lowered(offload: Offload) -> ProgramSet {
    let classes = ClassGraph::each(vec![step()]);
    let stages = Stages { offload, ..Stages::one(&classes) };
    lower_stages(&stages, &LowerOptions::default(), &Sizes).unwrap_or_else(|error| panic!("{error}"))
}

fn states() -> BTreeSet<String> {
    (0..WEIGHTS).map(|n| format!("m.layers.{n}.w")).collect()
}

fn everywhere() -> BTreeSet<String> {
    BTreeSet::from([String::new()])
}

/// Outputs of three steps.
fn run(set: &ProgramSet) -> Vec<Vec<Literal>> {
    let mut reference = Reference::new(set);
    let mut random = Random(3);
    let program = &set.programs[0];
    for position in 0..program.inputs.len() {
        // Small, so that products of products stay finite.
        let values: Vec<f64> = (0..16).map(|_| (random.below(33) as f64 - 16.0) / 64.0).collect();
        let literal = Literal::from_f64(&f32s(&[4, 4]), values.into_iter());
        reference.write_input(0, position, &literal).unwrap();
    }
    let mut step = || {
        reference.step().unwrap();
        (0..program.outputs.len()).map(|output| reference.output(0, output)).collect()
    };
    (0..3).map(|_| step()).collect()
}

#[test]
fn moves_change_no_number() {
    let expected = run(&lowered(Offload::default()));
    for ahead in [1, 2, 5, 100] {
        for (states, activations) in
            [(states(), BTreeSet::new()), (BTreeSet::new(), everywhere()), (states(), everywhere())]
        {
            let set = lowered(Offload { states, activations, ahead });
            assert_eq!(run(&set), expected, "{ahead} ahead");
            let [loaded, stored] =
                [MoveKind::Load, MoveKind::Store].map(|kind| set.programs[0].moved_bytes(kind));
            assert_eq!(loaded, stored);
            assert!(loaded >= if ahead < 3 { 64 } else { 0 }, "{ahead}: {loaded}");
        }
    }
}

#[test]
fn the_window_has_as_many_states_as_it_says() {
    let state = 64;
    for ahead in [1, 2] {
        let set = lowered(Offload { states: states(), ahead, ..Offload::default() });
        let program = &set.programs[0];
        assert_eq!(
            (program.host_bytes, program.moved_bytes(MoveKind::Load)),
            (WEIGHTS * state, WEIGHTS * state)
        );
        let of_state = |buffer: &&Buffer| buffer.what.starts_with("m.") && buffer.kind != BufferKind::Host;
        let live = |at: usize| {
            program.buffers.iter().filter(of_state).filter(|b| (b.first..=b.last).contains(&at)).count()
        };
        let most = (0..program.instructions.len()).map(live).max();
        assert_eq!(most, Some(2 * ahead + 1));
    }
}

#[test]
fn wrong_moves_are_found() {
    let set = lowered(Offload { states: states(), ..Offload::default() });
    let place =
        |is: fn(&Action) -> bool| set.programs[0].instructions.iter().position(|i| is(&i.action)).unwrap();
    let is_load = |action: &Action| matches!(action, Action::Move(Move { kind: MoveKind::Load, .. }));
    let is_loaded = |action: &Action| matches!(action, Action::Moved(Move { kind: MoveKind::Load, .. }));
    let is_stored = |action: &Action| matches!(action, Action::Moved(Move { kind: MoveKind::Store, .. }));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut set = set.clone();
        change(&mut set.programs[0]);
        check(&set).expect_err("the program is broken").code
    };
    let (load, loaded, stored) = (place(is_load), place(is_loaded), place(is_stored));
    let wait = set.programs[0].instructions[loaded].clone();
    let replaced = |at: usize| {
        let other = wait.clone();
        move |program: &mut Program| program.instructions[at] = other.clone()
    };
    // Never begun, waited for twice, never waited for.
    assert_eq!(broken(&replaced(load)), "E404");
    assert_eq!(broken(&replaced(stored)), "E404");
    // Used before it has arrived: the wait comes behind the update.
    assert_eq!(
        broken(&|program: &mut Program| program.instructions[loaded..=loaded + 2].rotate_left(1)),
        "E407"
    );
    // Used where it is in host memory.
    let Action::Moved(moved) = wait.action else { panic!("it is a wait") };
    let host = |program: &mut Program| {
        let computes =
            program.instructions.iter_mut().filter_map(|instruction| match &mut instruction.action {
                Action::Compute(compute) => Some(compute),
                _ => None,
            });
        for compute in computes {
            compute
                .inputs
                .iter_mut()
                .filter(|view| view.buffer == moved.buffer)
                .for_each(|v| v.buffer = moved.host);
        }
    };
    assert_eq!(broken(&host), "E407");
    // Between two places of the arena.
    let near = |program: &mut Program| program.buffers[moved.host.index()].kind = BufferKind::Persistent;
    assert_eq!(broken(&near), "E403");
    // Host memory that is too small.
    assert_eq!(broken(&|program: &mut Program| program.host_bytes -= 1), "E408");
}
