//! GPipe (Huang et al., 2019): all forward passes, then all backward passes.

use crate::{Task, TaskKind, Timetable};

/// The timetable of GPipe. Each stage stores the activations of all microbatches.
pub fn gpipe(stages: usize, microbatches: usize) -> Timetable {
    let of_stage = |stage| {
        let forward = (0..microbatches).map(|microbatch| Task { stage, kind: TaskKind::Forward, microbatch });
        let backward =
            (0..microbatches).map(|microbatch| Task { stage, kind: TaskKind::Backward, microbatch });
        forward.chain(backward).collect()
    };
    Timetable { stages, microbatches, slices: (0..stages).map(of_stage).collect() }
}
