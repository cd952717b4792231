//! Inference: forward tasks alone, as in Alpa (Zheng et al., 2022).

use crate::{Task, TaskKind, Timetable};

/// The timetable of a pipeline that only infers: each slice runs the forward tasks of its stage in
/// order, in `m + p - 1` slots. Nothing is held for a backward pass.
pub fn inference(slices: usize, microbatches: usize) -> Timetable {
    let of_stage = |stage| {
        (0..microbatches).map(|microbatch| Task { stage, kind: TaskKind::Forward, microbatch }).collect()
    };
    Timetable::new(slices, microbatches, (0..slices).map(of_stage).collect())
}
