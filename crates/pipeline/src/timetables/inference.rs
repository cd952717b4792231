//! Inference: forward tasks alone, as in Alpa (Zheng et al., 2022).

use crate::{Task, TaskKind, Timetable};

/// The timetable of a pipeline that only infers: each slice runs the forward tasks of its stage in
/// order, in `m + p - 1` slots. Nothing is held for a backward pass.
pub fn inference(slices: usize, microbatches: usize) -> Timetable {
    let slice_of_stage: Vec<usize> = (0..slices).collect();
    forward(&slice_of_stage, slices, microbatches)
}

/// Forward tasks alone, for stages on these slices: a slice runs all microbatches through its first
/// stage, then through the next one.
pub(crate) fn forward(slice_of_stage: &[usize], slices: usize, microbatches: usize) -> Timetable {
    let mut tasks = vec![Vec::new(); slices];
    for (stage, &slice) in slice_of_stage.iter().enumerate() {
        let of = |microbatch| Task { stage, kind: TaskKind::Forward, microbatch };
        tasks[slice].extend((0..microbatches).map(of));
    }
    Timetable::new(slice_of_stage.len(), microbatches, tasks)
}
