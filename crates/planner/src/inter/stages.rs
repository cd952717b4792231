//! The dynamic program over stages, and the time of stages on a timetable.

use partita_base::Result;
use partita_pipeline::{Order, Task, TaskKind};

/// A kind of slice: so many consecutive devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SliceKind {
    /// The devices.
    pub devices: usize,
    /// The first devices that slices of this kind may have, in order; `None` for any. Slices of as many devices elsewhere
    /// are other kinds, where devices or links differ.
    pub begins: Option<Vec<usize>>,
}

impl SliceKind {
    /// So many devices anywhere.
    pub fn anywhere(devices: usize) -> SliceKind {
        SliceKind { devices, begins: None }
    }

    /// Whether a slice of this kind may begin at a device.
    pub fn may_begin(&self, device: usize) -> bool {
        self.begins.as_ref().is_none_or(|begins| begins.binary_search(&device).is_ok())
    }
}

/// What each range of layers costs on each kind of slice.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StageTable {
    /// The number of layers.
    pub layers: usize,
    /// The kinds of slices.
    pub slices: Vec<SliceKind>,
    /// Seconds of one microbatch, forward and backward, by first layer, last layer and kind of slice; infinite where a range
    /// does not run.
    pub seconds: Vec<Vec<Vec<f64>>>,
    /// The most stages that may follow; -1 where not even one microbatch fits.
    pub successors: Vec<Vec<Vec<i64>>>,
    /// Seconds that a stage needs once in a step: the synchronisation of its gradients and its update.
    pub once: Vec<Vec<Vec<f64>>>,
    /// Seconds to send a microbatch's activations over the cut after each layer, and its gradients back: by the devices of
    /// the stages before the cut, or one number for any cut.
    pub cut: Vec<Vec<f64>>,
}

/// One stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Its first layer.
    pub first: usize,
    /// Its last layer.
    pub last: usize,
    /// The kind of its slice.
    pub slice: usize,
    /// The first device of its slice.
    pub begin: usize,
}

/// A division into stages.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// Predicted seconds of a step: those of all stages one after another, and of the slowest stage for every other
    /// microbatch.
    pub seconds: f64,
}

impl StageTable {
    /// A table in which nothing is sent and nothing is done once, as Alpa's.
    pub fn of_costs(
        devices: Vec<usize>,
        seconds: Vec<Vec<Vec<f64>>>,
        successors: Vec<Vec<Vec<i64>>>,
    ) -> StageTable {
        let layers = seconds.len();
        let once = vec![vec![vec![0.0; devices.len()]; layers]; layers];
        let slices = devices.into_iter().map(SliceKind::anywhere).collect();
        StageTable { layers, slices, seconds, successors, once, cut: vec![vec![0.0]; layers] }
    }

    /// The seconds of a stage for each microbatch, with what it sends.
    pub fn stage_s(&self, stage: &Stage) -> f64 {
        let before = stage.begin + self.slices[stage.slice].devices;
        let cut = &self.cut[stage.last];
        let sent = cut.get(before).or(cut.last()).copied().filter(|_| stage.last + 1 < self.layers);
        self.seconds[stage.first][stage.last][stage.slice] + sent.unwrap_or(0.0)
    }

    /// [`StageTable::stage_s`], with its share of what is done once.
    fn slowest_s(&self, stage: &Stage, microbatches: usize) -> f64 {
        match microbatches {
            0 | 1 => self.stage_s(stage),
            many => self.stage_s(stage) + self.once[stage.first][stage.last][stage.slice] / (many - 1) as f64,
        }
    }

    /// The seconds of a step: the sum of all stages and `microbatches - 1` times the slowest.
    pub fn step_s(&self, stages: &[Stage], microbatches: usize) -> f64 {
        let sum: f64 = stages.iter().map(|stage| self.stage_s(stage)).sum();
        let slowest = stages.iter().map(|stage| self.slowest_s(stage, microbatches)).fold(0.0, f64::max);
        sum + microbatches.saturating_sub(1) as f64 * slowest
    }
}

/// The best stages for each number of them, the fastest first; all devices are used. Ties go to fewer stages.
pub fn stages(table: &StageTable, devices: usize, microbatches: usize) -> Vec<Stages> {
    let mut limits: Vec<f64> = Vec::new();
    for (slice, kind) in table.slices.iter().enumerate().filter(|(_, kind)| kind.devices <= devices) {
        let begins = (0..=devices - kind.devices).filter(|&begin| kind.may_begin(begin));
        for begin in begins {
            for first in 0..table.layers {
                for last in first..table.layers {
                    let slowest = table.slowest_s(&Stage { first, last, slice, begin }, microbatches);
                    if slowest.is_finite() && table.successors[first][last][slice] >= 0 {
                        limits.push(slowest);
                    }
                }
            }
        }
    }
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    // Below some limit there are no stages at all. With one microbatch, the sum alone counts.
    let is_vain = |&limit: &f64| within(table, devices, microbatches, limit).iter().all(Option::is_none);
    let from = match microbatches {
        0 | 1 => limits.len().saturating_sub(1),
        _ => limits.partition_point(is_vain),
    };
    let mut best: Vec<Option<Stages>> = vec![None; table.layers.min(devices) + 1];
    for &limit in &limits[from..] {
        let others = microbatches.saturating_sub(1) as f64 * limit;
        if best.iter().flatten().map(|found| found.seconds).fold(f64::INFINITY, f64::min) <= others
            && microbatches > 1
        {
            break;
        }
        for (count, found) in within(table, devices, microbatches, limit).into_iter().enumerate() {
            let Some(stages) = found else { continue };
            let seconds = table.step_s(&stages, microbatches);
            if best[count].as_ref().is_none_or(|best| seconds < best.seconds) {
                best[count] = Some(Stages { stages, seconds });
            }
        }
    }
    let mut found: Vec<Stages> = best.into_iter().flatten().collect();
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found
}

/// For each number of stages, those with the least sum of seconds of which none takes more than `limit`.
fn within(table: &StageTable, devices: usize, microbatches: usize, limit: f64) -> Vec<Option<Vec<Stage>>> {
    let most = table.layers.min(devices);
    let sizes = || table.slices.iter().map(|slice| slice.devices);
    let (least, largest) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    // best[count][first][left]: the least sum for the layers from `first` in `count` stages on the last `left` devices, and
    // the first of these stages.
    let mut best: Vec<Vec<Vec<Option<(f64, Stage)>>>> =
        vec![vec![vec![None; devices + 1]; table.layers + 1]; most + 1];
    for count in 1..=most {
        for first in (0..table.layers).rev() {
            for last in first..table.layers {
                if (count == 1) != (last + 1 == table.layers) {
                    continue;
                }
                for (slice, SliceKind { devices: own, .. }) in table.slices.iter().enumerate() {
                    if table.successors[first][last][slice] < count as i64 - 1 {
                        continue;
                    }
                    // The stages behind this one have at least so many devices, and at most so many.
                    let [few, many] = [least, largest].map(|size| own + (count - 1) * size);
                    for left in few..=many.min(devices) {
                        let stage = Stage { first, last, slice, begin: devices - left };
                        let rest = match count {
                            1 if left == *own => 0.0,
                            1 => continue,
                            _ => match best[count - 1][last + 1][left - own] {
                                Some((rest, _)) => rest,
                                None => continue,
                            },
                        };
                        if !table.slices[slice].may_begin(stage.begin)
                            || table.slowest_s(&stage, microbatches) > limit
                        {
                            continue;
                        }
                        let seconds = table.stage_s(&stage);
                        let entry = &mut best[count][first][left];
                        if entry.is_none_or(|(known, _)| seconds + rest < known) {
                            *entry = Some((seconds + rest, stage));
                        }
                    }
                }
            }
        }
    }
    let read = |count: usize| {
        let (mut stages, mut first, mut left) = (Vec::new(), 0, devices);
        for count in (1..=count).rev() {
            let (_, stage) = best[count][first][left]?;
            stages.push(stage);
            (first, left) = (stage.last + 1, left - table.slices[stage.slice].devices);
        }
        (!stages.is_empty()).then_some(stages)
    };
    (0..=most).map(read).collect()
}

/// The share of a microbatch's work that is the forward pass.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// Seconds of a step on a timetable, task by task: a third of a stage's seconds is its forward pass, and the gradients of
/// activations and of parameters are a third each.
///
/// # Errors
/// Those of [`Order::timetable`].
pub fn makespan_s(table: &StageTable, stages: &[Stage], order: &Order, microbatches: usize) -> Result<f64> {
    let slices = order.slice_of_stage(stages.len())?;
    let timetable = order.timetable(stages.len(), microbatches)?;
    let chunks = slices.len() / stages.len().max(1);
    // Durations are whole numbers: a billionth of the longest possible step.
    let total: f64 = stages.iter().map(|stage| table.stage_s(stage)).sum::<f64>() * microbatches as f64;
    let unit = total / 1e9;
    let duration = |task: Task| {
        let seconds = table.stage_s(&stages[slices[task.stage]]) / chunks.max(1) as f64;
        let share = match task.kind {
            TaskKind::Backward => 1.0 - FORWARD_SHARE,
            TaskKind::Forward | TaskKind::InputGrad | TaskKind::WeightGrad => FORWARD_SHARE,
        };
        (seconds * share / unit).round() as usize
    };
    let times = timetable.times(duration)?;
    let once = |(slice, ends): (usize, &Vec<usize>)| {
        let stage = &stages[slice];
        ends.last().copied().unwrap_or(0) as f64 * unit + table.once[stage.first][stage.last][stage.slice]
    };
    Ok(times.ends.iter().enumerate().map(once).fold(0.0, f64::max))
}
