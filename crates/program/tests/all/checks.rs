//! Tests every static check with a program that is correct except for one change made by the test.

use crate::common::*;
use partita_ir::{ClassGraph, Graph, Role};
use partita_program::*;
use std::sync::Arc;

/// Two consecutive collectives between two ranks, then a permutation.
fn sound() -> ProgramSet {
    let graphs: Vec<Graph> = build(2, |_, b| {
        let x = b.input("x", f32s(&[8]), Role::Param);
        let y = b.negate(x).unwrap();
        let first = all_reduce(b, y, &[&[0, 1]]);
        let first = b.scale(first, 0.5).unwrap();
        let second = permute(b, first, &[(0, 1), (1, 0)]);
        let sum = b.add(second, first).unwrap();
        vec![("sum".into(), sum)]
    });
    lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap()
}

fn code(set: &ProgramSet) -> &'static str {
    check(set).expect_err("the program is broken").code
}

fn find(program: &Program, test: impl Fn(&Action) -> bool) -> usize {
    program.instructions.iter().position(|i| test(&i.action)).expect("there is one")
}

fn is_start(action: &Action) -> bool {
    matches!(action, Action::Start(_))
}

fn is_wait(action: &Action) -> bool {
    matches!(action, Action::Wait(_))
}

#[test]
fn a_sound_set_passes_and_reports_its_peaks() {
    let set = sound();
    let report = check(&set).unwrap();
    assert_eq!(report.meetings, 2);
    assert_eq!(report.peak_bytes, [set.programs[0].arena_bytes, set.programs[1].arena_bytes]);
    assert_eq!(report.persistent_bytes, [32, 32]);
}

#[test]
fn ranks_that_meet_in_another_order_are_found() {
    let graphs: Vec<Graph> = build(2, |_, b| {
        let x = b.input("x", f32s(&[8]), Role::Param);
        let first = all_reduce(b, x, &[&[0, 1]]);
        let second = permute(b, x, &[(0, 1), (1, 0)]);
        vec![("first".into(), first), ("second".into(), second)]
    });
    let mut set = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap();
    let starts: Vec<usize> = (0..4).filter(|&i| is_start(&set.programs[1].instructions[i].action)).collect();
    set.programs[1].instructions.swap(starts[0], starts[1]);
    assert_eq!(code(&set), "E401");
}

#[test]
fn a_missing_or_uninvited_rank_is_found() {
    let mut set = sound();
    set.collectives[0].members = vec![0, 2].into();
    assert_eq!(code(&set), "E402");
    let mut set = sound();
    set.programs[1].instructions.retain(|i| !is_start(&i.action) && !is_wait(&i.action));
    assert_eq!(code(&set), "E402");
}

#[test]
fn shapes_that_do_not_fit_are_found() {
    let mut set = sound();
    let transfer = &mut Arc::make_mut(&mut set.collectives[0].transfers)[0];
    transfer.inputs = [&transfer.inputs[..1], &[f32s(&[7])], &transfer.inputs[2..]].concat().into();
    assert_eq!(code(&set), "E403");
    let mut set = sound();
    let start = find(&set.programs[0], is_start);
    let Action::Start(start) = &mut set.programs[0].instructions[start].action else { unreachable!() };
    start.inputs[0].shape = vec![4];
    assert_eq!(code(&set), "E403");
    let mut set = sound();
    let Action::Compute(compute) = &mut set.programs[0].instructions[0].action else { unreachable!() };
    compute.inputs[0].offset_elements = 1;
    assert_eq!(code(&set), "E403");
}

#[test]
fn a_start_without_a_wait_and_a_wait_without_a_start_are_found() {
    for gone in [is_start, is_wait] {
        let mut set = sound();
        let at = find(&set.programs[0], gone);
        set.programs[0].instructions.remove(at);
        assert_eq!(code(&set), "E404");
    }
    let mut set = sound();
    let at = find(&set.programs[0], is_start);
    let again = set.programs[0].instructions[at].clone();
    set.programs[0].instructions.insert(at, again);
    assert_eq!(code(&set), "E404");
}

#[test]
fn a_deadlock_is_found() {
    // Three collectives over pairs of three ranks; each rank waits for one before it starts the
    // other.
    let graphs: Vec<Graph> = build(3, |_, b| {
        let x = b.input("x", f32s(&[8]), Role::Param);
        let pairs: [&[usize]; 3] = [&[0, 1], &[1, 2], &[2, 0]];
        let sums: Vec<_> = pairs.iter().map(|pair| all_reduce(b, x, &[pair])).collect();
        sums.iter().enumerate().map(|(i, &v)| (format!("out{i}"), v)).collect()
    });
    let mut set = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap();
    let meeting = |a, b| {
        let id = set.collectives.iter().position(|c| c.members[..] == [a, b]).expect("they meet");
        CollectiveId::new(id)
    };
    let (ab, bc, ca) = (meeting(0, 1), meeting(1, 2), meeting(2, 0));
    for (program, [first, second]) in set.programs.iter_mut().zip([[ab, ca], [bc, ab], [ca, bc]]) {
        let of = |id: CollectiveId| {
            let is_of = move |i: &&Instruction| match &i.action {
                Action::Start(start) => start.collective == id,
                Action::Wait(other) => *other == id,
                _ => false,
            };
            program.instructions.iter().filter(is_of).cloned().collect::<Vec<_>>()
        };
        let (one, other) = (of(first), of(second));
        let rest: Vec<Instruction> =
            program.instructions.iter().filter(|i| !one.contains(i) && !other.contains(i)).cloned().collect();
        program.instructions = [one, other, rest].concat();
    }
    assert_eq!(code(&set), "E405");
}

#[test]
fn reading_too_early_is_found() {
    let mut set = sound();
    for program in &mut set.programs {
        program.instructions.swap(0, 1);
        program.buffers.iter_mut().for_each(|b| (b.first, b.last) = (0, 10));
    }
    assert_eq!(code(&set), "E406");
}

#[test]
fn using_what_a_collective_owns_is_found() {
    let mut set = sound();
    for program in &mut set.programs {
        let wait = find(program, is_wait);
        program.instructions.swap(wait, wait + 1);
        program.buffers.iter_mut().for_each(|b| (b.first, b.last) = (0, 10));
    }
    assert_eq!(code(&set), "E407");
}

#[test]
fn using_a_buffer_after_its_end_is_found() {
    let mut set = sound();
    let wait = find(&set.programs[0], is_wait);
    // The input of the all_reduce must be live until the wait.
    let buffer = set.programs[0].buffers.iter_mut().find(|b| b.last == wait).expect("it does");
    buffer.last -= 1;
    assert_eq!(code(&set), "E407");
}

#[test]
fn overlapping_buffers_are_found() {
    let mut set = sound();
    let start = find(&set.programs[0], is_start);
    let Action::Start(start) = set.programs[0].instructions[start].action.clone() else { unreachable!() };
    let input = set.programs[0].buffer(start.inputs[0].buffer).offset_bytes;
    set.programs[0].buffers[start.outputs[0].index()].offset_bytes = input;
    assert_eq!(code(&set), "E408");
    let mut set = sound();
    set.programs[0].arena_bytes -= 1;
    assert_eq!(code(&set), "E408");
    let mut set = sound();
    set.programs[0].arena_bytes += 64;
    set.programs[0].buffers[1].offset_bytes += 4;
    assert_eq!(code(&set), "E408");
}

#[test]
fn a_permutation_with_two_senders_is_found() {
    let mut set = sound();
    Arc::make_mut(&mut set.collectives[1].transfers)[0].exchange =
        CollectiveOp::CollectivePermute { pairs: vec![(0, 1), (1, 1)] };
    assert_eq!(code(&set), "E409");
}
