//! `partita simulate`: the predicted time and memory of a step, from the programs that would run.

use crate::cli::SimulateArgs;
use crate::commands::folded::answer_folded;
use crate::files::{check_new, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, seconds, table};
use crate::run::answer;
use partita::price::Price;
use partita::session::Session;
use partita_base::Result;
use partita_cost::Fill;
use partita_mesh::rank_list;
use partita_simulate::{ClassRun, MemoryKind, Simulation};
use serde::Serialize;
use std::collections::BTreeMap;

/// A predicted step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Predicted {
    /// The mesh.
    pub mesh: String,
    /// The cluster whose figures are used.
    pub cluster: String,
    /// Seconds of a step.
    pub step_s: f64,
    /// Rows of the batch per second.
    pub rows_per_s: f64,
    /// Memory of the device of the rank with the least room, in bytes.
    pub device_bytes: u64,
    /// Whether every rank's memory fits.
    pub fits: bool,
    /// The share of the time in which ranks do not compute, over all ranks.
    pub idle_share: f64,
    /// Threads of a rank, if the devices are the cores of this machine: the peak holds scratch memory of each.
    pub threads: Option<usize>,
    /// Ranks that execute the same program on devices of one kind, in one row.
    pub classes: Vec<Class>,
}

/// The ranks that execute one program on devices of one kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Class {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// The kind of their device, if the cluster has several.
    pub device: Option<String>,
    /// Memory of each, in bytes.
    pub device_bytes: u64,
    /// Seconds of compute.
    pub compute_s: f64,
    /// Seconds of waiting for collectives: communication that is not hidden, and bubbles.
    pub waiting_s: f64,
    /// Of these, seconds of waiting for loads from host memory and stores to it.
    pub host_waiting_s: f64,
    /// Bytes of the arena, which is all memory of a step.
    pub peak_bytes: usize,
    /// Bytes by kind when most are in use.
    pub by_kind: BTreeMap<&'static str, usize>,
}

impl Event for Predicted {
    const NAME: &'static str = "simulate";
}

/// Runs the command.
///
/// # Errors
/// What building and lowering refuse; E043 if the trace cannot be written.
pub fn simulate(args: &SimulateArgs, session: &Session, output: &mut Output) -> Result<()> {
    if let Some(path) = &args.trace {
        check_new(path, "the trace", "--trace")?;
    }
    let is_folded = args.trace.is_none() && session.is_folded();
    let (price, notes) = output.during("simulating the step", || -> Result<(Price, Vec<String>)> {
        if is_folded {
            return Ok((session.price()?, Vec::new()));
        }
        let model = session.model()?;
        let built = session.build_model(&model)?;
        Ok((session.price_of(&built)?, session.notes(&model, &built)))
    })?;
    let ranks = session.mesh().rank_count();
    for note in session.config().notes_on_price(ranks).into_iter().chain(note_on_cores(session)).chain(notes)
    {
        output.note(note);
    }
    let (set, simulation) = match price {
        Price::Whole(whole) => *whole,
        Price::Folded(folded) => {
            answer_folded(session, &folded, output);
            return Ok(());
        }
    };
    if let Some(path) = &args.trace {
        write_new(path, "the trace", "--trace", |file| simulation.trace(&set).chrome(file))?;
    }
    answer(&Predicted::of(session, &simulation), Predicted::text, output);
    Ok(())
}

/// That ranks share cores, if they do.
fn note_on_cores(session: &Session) -> Option<String> {
    let (cluster, ranks) = (&session.config().cluster, session.mesh().rank_count());
    let cores = cluster.cores.filter(|&cores| cores < ranks)?;
    Some(format!("{ranks} ranks take turns on the cores of cluster `{}` (cores = {cores})", cluster.name))
}

impl Predicted {
    fn of(session: &Session, simulation: &Simulation) -> Predicted {
        let cluster = session.config().cluster.of_first(session.mesh().rank_count());
        let kind =
            |class: &ClassRun| cluster.device_of(class.ranks.first().copied().unwrap_or(0)).kind.clone();
        let class = |class: &ClassRun| Class {
            ranks: class.ranks.clone(),
            device: cluster.is_mixed().then(|| kind(class)),
            device_bytes: class.device_bytes,
            compute_s: class.compute_s,
            waiting_s: class.waiting_s,
            host_waiting_s: class.host_waiting_s,
            peak_bytes: class.memory.arena_bytes,
            by_kind: MemoryKind::ALL.iter().map(|kind| kind.name()).zip(class.memory.peak).collect(),
        };
        let fill = simulation.fullest();
        Predicted {
            device_bytes: fill.limit,
            fits: fill.fits(),
            mesh: session.mesh().to_string(),
            cluster: session.config().cluster.name.clone(),
            step_s: simulation.step_s,
            rows_per_s: session.config().train.batch as f64 / simulation.step_s.max(f64::MIN_POSITIVE),
            idle_share: simulation.idle_share(),
            threads: session.config().cluster.is_one_machine().then(|| session.device().threads),
            classes: simulation.classes.iter().map(class).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "predicted on {} for mesh {}: {} a step, {:.1} rows/s, ranks compute {:.0}% of the time\n\n",
            self.cluster,
            self.mesh,
            seconds(self.step_s),
            self.rows_per_s,
            100.0 * (1.0 - self.idle_share)
        );
        let of = |class: &Class, kind: MemoryKind| bytes(class.by_kind[kind.name()] as u64);
        let occurs = |kind: &&MemoryKind| self.classes.iter().any(|class| class.by_kind[kind.name()] > 0);
        let shown: Vec<MemoryKind> = MemoryKind::ALL.iter().filter(occurs).copied().collect();
        let row = |class: &Class| {
            let mut row = vec![rank_list(&class.ranks)];
            row.extend(class.device.clone());
            row.extend([seconds(class.compute_s), seconds(class.waiting_s), bytes(class.peak_bytes as u64)]);
            row.extend(shown.iter().map(|&kind| of(class, kind)));
            let listed: usize = class.by_kind.values().sum();
            row.push(bytes(class.peak_bytes.saturating_sub(listed) as u64));
            row
        };
        let mut head = vec!["ranks"];
        head.extend(self.classes.iter().any(|class| class.device.is_some()).then_some("device"));
        head.extend(["compute", "waiting", "peak memory"]);
        head.extend(shown.iter().map(|kind| kind.name()));
        head.push("gaps");
        text += &table(&head, &self.classes.iter().map(row).collect::<Vec<_>>());
        text += "waiting: for collectives that no compute hides, and for other stages\n\
                 peak memory: the sum of the columns behind it, at the time when it is largest; gaps: what alignment and \
                 placement add\n";
        if let Some(threads) = self.threads {
            text += &format!(
                "this is what `partita train` allocates on this machine, with the scratch memory of {threads} {} for each rank\n",
                if threads == 1 { "thread" } else { "threads" }
            );
        }
        let host_s = self.classes.iter().map(|class| class.host_waiting_s).fold(0.0, f64::max);
        if host_s > 0.0 {
            text += &format!(
                "of this, ranks wait {} for loads from host memory and stores to it\n",
                seconds(host_s)
            );
        }
        if !self.fits {
            let fill = |class: &Class| Fill::new(class.peak_bytes as u64, class.device_bytes);
            let Fill { bytes: largest, limit } = Fill::fullest(self.classes.iter().map(fill));
            text += &format!(
                "the step does NOT fit: a rank needs {}, and a device of {} has {} (cluster.memory_bytes)\n",
                bytes(largest),
                self.cluster,
                bytes(limit)
            );
        }
        text
    }
}
