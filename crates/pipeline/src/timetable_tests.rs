//! Tests of timetables: slots, stored microbatches, and rejected orders.

use super::*;
use crate::timetables;

fn code(timetable: &Timetable) -> &'static str {
    timetable.slots().unwrap_err().code
}

#[test]
fn known_timetables_have_the_slots_of_their_papers() {
    // GPipe and 1F1B take (m + p - 1) slots for each of the forward and backward halves.
    for stages in 1..6 {
        for microbatches in 1..9 {
            for timetable in
                [timetables::gpipe(stages, microbatches), timetables::one_f_one_b(stages, microbatches)]
            {
                let slots = timetable.slots().unwrap();
                let length = slots.iter().flatten().max().unwrap() + 1;
                assert_eq!(
                    length,
                    2 * (microbatches + stages - 1),
                    "{stages} stages, {microbatches} microbatches"
                );
            }
        }
    }
}

#[test]
fn one_f_one_b_holds_as_many_microbatches_as_stages_follow() {
    let timetable = timetables::one_f_one_b(4, 8);
    for (stage, tasks) in timetable.slices.iter().enumerate() {
        let mut held = 0usize;
        let mut most = 0;
        for task in tasks {
            if task.kind == TaskKind::Forward {
                held += 1
            } else {
                held -= 1
            }
            most = most.max(held);
        }
        assert_eq!(most, 4 - stage);
    }
    assert_eq!(timetable.line(3), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7");
}

#[test]
fn timetables_that_cannot_be_are_refused() {
    let good = timetables::one_f_one_b(2, 2);
    let with = |change: &dyn Fn(&mut Vec<Vec<Task>>)| {
        let mut timetable = good.clone();
        change(&mut timetable.slices);
        timetable
    };
    assert_eq!(code(&with(&|slices| _ = slices[0].remove(1))), "E461");
    assert_eq!(
        code(&with(&|slices| slices[0].push(Task { stage: 0, kind: TaskKind::Forward, microbatch: 0 }))),
        "E461"
    );
    assert_eq!(code(&with(&|slices| slices[1][0].microbatch = 2)), "E461");
    assert_eq!(code(&with(&|slices| slices[1].swap(0, 1))), "E461");
    let moved = with(&|slices| {
        let task = slices[0].remove(0);
        slices[1].insert(0, task);
    });
    assert_eq!(code(&moved), "E461");
    // Each stage waits for the other.
    let error = with(&|slices| slices[0].swap(1, 2)).slots().err();
    assert!(error.is_none(), "B0 before F1 is slow, and legal: {error:?}");
    let halves = with(&|slices| slices[1][1].kind = TaskKind::InputGrad);
    assert_eq!(code(&halves), "E461");
}
