//! Recorded steps as a table: one row per op, module, phase, stage, collective, rank or wait.

use super::{Ranks, Recording, collective_of, waits};
use indexmap::IndexMap;
use partita_cost::Cluster;
use partita_program::{Action, Instruction, Program, RegionKind};
use partita_simulate::computing_s;
use serde::Serialize;

/// What makes a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The op or the fused ops; matmuls with the shapes of their operands.
    Op,
    /// The module path, cut after so many names.
    Module(usize),
    /// Forward, backward or update.
    Phase,
    /// The pipeline stage.
    Stage,
    /// The collective; compute is left out.
    Collective,
    /// The rank.
    Rank,
    /// Who waited for whom: the rank that waited, with the rank that started a collective last or the data.
    Wait,
}

/// The column that orders the table, largest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Time.
    Time,
    /// Instructions.
    Calls,
    /// Floating-point operations.
    Flops,
    /// Bytes read and written.
    Bytes,
    /// Share of the roofline, smallest first: where there is most to win.
    Roofline,
}

/// A row: means per step over the recorded steps, sums over the ranks of the recording.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Row {
    /// What it sums.
    pub what: String,
    /// Instructions, or waits.
    pub calls: f64,
    /// Seconds, summed over threads: of two threads that share a matmul for 1 s, 2 s.
    pub seconds: f64,
    /// The part of the time of all instructions.
    pub share: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Seconds that compute would take on one device of the cluster by its roofline, by this time; 0 without compute.
    pub of_roofline: f64,
}

/// What a table leaves out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Totals {
    /// Recorded steps.
    pub steps: usize,
    /// Seconds of a step on average.
    pub step_s: f64,
    /// Threads that share the ranks.
    pub threads: usize,
    /// Seconds of threads per step in which no instruction ran.
    pub idle_s: f64,
}

/// Rows that still grow, by their names, with the seconds of their rooflines.
pub(super) type Sums = IndexMap<String, (Row, f64)>;

/// The table, and what no instruction of it explains.
pub fn rows(recording: &Recording, cluster: &Cluster, by: By, sort: Sort) -> (Vec<Row>, Totals) {
    let steps = recording.steps.len().max(1) as f64;
    let ranks = &recording.ranks;
    let mut sums = Sums::new();
    let mut busy_ns = 0;
    let priced: Vec<Vec<f64>> = ranks
        .programs
        .iter()
        .map(|program| computing_s(program, cluster.device_of(program.rank())))
        .collect();
    for step in &recording.steps {
        for done in step.instructions(ranks).into_iter().flatten() {
            busy_ns += done.thread_ns;
            let program = &ranks.programs[done.rank];
            let instruction = &program.instructions[done.instruction];
            let Some(name) = name(ranks, program, done.instruction, by, ranks.numbers[done.rank]) else {
                continue;
            };
            let (row, roofline_s) = sums
                .entry(name)
                .or_insert_with_key(|what| (Row { what: what.clone(), ..Row::default() }, 0.0));
            row.calls += 1.0;
            row.seconds += done.thread_ns as f64 / 1e9;
            row.bytes += done.bytes as f64;
            if let Action::Compute(compute) = &instruction.action {
                row.flops += program.region(compute.region).cost().flops;
                *roofline_s += priced[done.rank][done.instruction];
            }
        }
    }
    if by == By::Wait {
        waits::rows(recording, &mut sums);
    }
    let all_s: f64 = sums.values().map(|(row, _)| row.seconds).sum();
    let mean = |(mut row, roofline_s): (Row, f64)| {
        row.share = row.seconds / all_s.max(f64::MIN_POSITIVE);
        row.of_roofline = roofline_s / row.seconds.max(f64::MIN_POSITIVE);
        for sum in [&mut row.calls, &mut row.seconds, &mut row.flops, &mut row.bytes] {
            *sum /= steps;
        }
        row
    };
    let mut rows: Vec<Row> = sums.into_values().map(mean).collect();
    rows.sort_by(|a, b| match sort {
        Sort::Time => b.seconds.total_cmp(&a.seconds),
        Sort::Calls => b.calls.total_cmp(&a.calls),
        Sort::Flops => b.flops.total_cmp(&a.flops),
        Sort::Bytes => b.bytes.total_cmp(&a.bytes),
        Sort::Roofline => {
            let key = |row: &Row| if row.of_roofline > 0.0 { row.of_roofline } else { f64::INFINITY };
            key(a).total_cmp(&key(b))
        }
    });
    let step_s = recording.steps.iter().map(|step| step.seconds()).sum::<f64>() / steps;
    let threads = ranks.threads;
    let idle_s = (threads as f64 * step_s - busy_ns as f64 / 1e9 / steps).max(0.0);
    (rows, Totals { steps: recording.steps.len(), step_s, threads, idle_s })
}

/// The row of an instruction; `None` if the table leaves it out.
fn name(ranks: &Ranks, program: &Program, index: usize, by: By, rank: usize) -> Option<String> {
    let instruction = &program.instructions[index];
    let origin = &instruction.origin;
    Some(match by {
        By::Op => label(program, instruction, " x "),
        By::Module(depth) => {
            let names: Vec<&str> = origin.path.split('.').take(depth.max(1)).collect();
            match names.join(".") {
                path if path.is_empty() => "(no module)".to_string(),
                path => path,
            }
        }
        By::Phase => origin.phase.name().to_string(),
        By::Stage => format!("stage {}", origin.stage),
        By::Rank => format!("rank {rank}"),
        By::Collective => {
            let collective = collective_of(program, index)?;
            ranks.collectives[collective.index()].label.clone()
        }
        // A wait is of two ranks: it is no row of an instruction.
        By::Wait => return None,
    })
}

/// What an instruction does, so that like is counted with like; of matmuls with the shapes of their operands, and `between`
/// them.
pub fn label(program: &Program, instruction: &Instruction, between: &str) -> String {
    let what = &instruction.origin.what;
    match &instruction.action {
        Action::Start(_) => format!("start {what}"),
        Action::Wait(_) => format!("wait {what}"),
        Action::Move(moved) => format!("start {} {what}", moved.kind.name()),
        Action::Moved(moved) => format!("wait {} {what}", moved.kind.name()),
        Action::Compute(compute) => {
            let is_matmul = program.region(compute.region).kind == RegionKind::Single && what.contains("dot");
            if !is_matmul {
                return what.clone();
            }
            let shapes: Vec<String> = compute.inputs.iter().map(|view| format!("{:?}", view.shape)).collect();
            format!("{what} {}", shapes.join(between))
        }
    }
}
