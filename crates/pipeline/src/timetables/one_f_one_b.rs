//! 1F1B (Narayanan et al., 2019, PipeDream; 2021, Megatron-LM, without interleaving).

use crate::{Task, TaskKind, Timetable};

/// The timetable of 1F1B. Stage `s` of `p` runs `min(p - s, m)` forward passes, then alternates one
/// backward and one forward pass. So it stores the activations of at most `min(p - s, m)`
/// microbatches.
pub fn one_f_one_b(stages: usize, microbatches: usize) -> Timetable {
    let of_stage = |stage: usize| {
        let warm_up = (stages - stage).min(microbatches);
        let task = |kind, microbatch| Task { stage, kind, microbatch };
        let mut tasks: Vec<Task> = (0..warm_up).map(|m| task(TaskKind::Forward, m)).collect();
        for microbatch in 0..microbatches {
            tasks.push(task(TaskKind::Backward, microbatch));
            if warm_up + microbatch < microbatches {
                tasks.push(task(TaskKind::Forward, warm_up + microbatch));
            }
        }
        tasks
    };
    Timetable { stages, microbatches, slices: (0..stages).map(of_stage).collect() }
}
