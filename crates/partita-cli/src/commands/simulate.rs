//! `partita simulate`: the predicted time and memory of a step, from the programs that would run.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread, of_no_run};
use crate::commands::folded::answer_folded;
use crate::commands::rows::rows;
use crate::files::{check_new, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, seconds, table};
use crate::run::{Ending, answer, session};
use clap::Args;
use partita::figures::Figures;
use partita::price::Price;
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use partita_cost::Fill;
use partita_mesh::rank_list;
use partita_simulate::{ClassRun, MemoryKind, Simulation};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `--validate` reads no key.
const OF_VALIDATION: Unread = of_no_run(&[("", "the table says all about its runs")]);

/// Flags of `simulate`.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// A config file, a bundled config, a model by name such as gpt3-175b, or a config.json of Hugging Face.
    #[arg(value_name = "CONFIG|MODEL")]
    pub config: Option<String>,
    /// Predict every run of a table of measured runs, and compare.
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["config", "trace"])]
    pub validate: Option<PathBuf>,
    /// With --validate: only runs whose names begin with this text.
    #[arg(long, value_name = "TEXT", requires = "validate")]
    pub only: Option<String>,
    /// With --validate: fit a factor of compute, and one of communication or the seconds of a launch, to each source of
    /// runs, and write them to a new file.
    #[arg(long, value_name = "FILE.toml", requires = "validate")]
    pub fit: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Write the timeline to a new file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
}

impl Command for SimulateArgs {
    const NAME: &'static str = "simulate";
    const ABOUT: &'static str =
        "Predict the time and memory of a step on a cluster, from the programs that would run";
    const UNREAD: Unread = OF_A_STEP;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, self.validate.as_ref().map_or(Self::UNREAD, |_| OF_VALIDATION)))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        match (&self.validate, &self.config) {
            (Some(file), _) => rows(self, file, output)?,
            (None, config) => {
                let config = config.as_deref().ok_or_else(|| {
                    Diagnostic::new("E033", "`partita simulate` needs a model or a table of runs")
                        .expected("a config, a model by name, or --validate FILE.csv")
                        .help("`partita simulate gpt3-175b --cluster a100-80g:128x8 ..`; docs/COST.md has examples")
                })?;
                simulate(self, &session(config, self.flags.overrides()?, output)?, output)?;
            }
        }
        Ok(Ending::Done)
    }
}

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
    /// Parameters of the model.
    pub parameters: f64,
    /// Tokens of the batch per second, of a model whose rows are tokens.
    pub tokens_per_s: Option<f64>,
    /// Model FLOPs for each rank, in 10^12 a second.
    pub tflops_per_rank: f64,
    /// The part of the peak of all devices that this is.
    pub mfu: f64,
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
    /// What the text says of the step.
    #[serde(skip)]
    figures: Figures,
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
fn simulate(args: &SimulateArgs, session: &Session, output: &mut Output) -> Result<()> {
    if let Some(path) = &args.trace {
        check_new(path, "the trace", "--trace")?;
    }
    let is_folded = args.trace.is_none() && session.is_folded();
    let (price, figures, notes) =
        output.during("simulating the step", || -> Result<(Price, Figures, Vec<String>)> {
            let (price, notes) = if is_folded {
                (session.price()?, Vec::new())
            } else {
                let model = session.model()?;
                let built = session.build_model(&model)?;
                let price = session.price_of(&built)?;
                let idle_share = match &price {
                    Price::Whole(whole) => Some(whole.1.idle_share()),
                    Price::Folded(_) => None,
                };
                let notes = session.notes_with(&model, &built, idle_share);
                (price, notes)
            };
            let figures = session.figures(&price)?;
            Ok((price, figures, notes))
        })?;
    let ranks = session.mesh().rank_count();
    let of_price = session.config().notes_on_price(ranks).into_iter().chain(note_on_cores(session));
    for note in of_price.chain(note_on_devices(&args.flags, session)).chain(notes) {
        output.note(note);
    }
    let (set, simulation) = match price {
        Price::Whole(whole) => *whole,
        Price::Folded(folded) => {
            answer_folded(session, &folded, figures, output);
            return Ok(());
        }
    };
    if let Some(path) = &args.trace {
        write_new(path, "the trace", "--trace", |file| simulation.trace(&set).chrome(file))?;
    }
    answer(&Predicted::of(session, &simulation, figures), Predicted::text, output);
    Ok(())
}

/// That ranks share cores, if they do.
fn note_on_cores(session: &Session) -> Option<String> {
    let (cluster, ranks) = (&session.config().cluster, session.mesh().rank_count());
    let cores = cluster.cores.filter(|&cores| cores < ranks)?;
    Some(format!("{ranks} ranks take turns on the cores of cluster `{}` (cores = {cores})", cluster.name))
}

/// That the mesh of a config uses few devices of a cluster that is named for it.
pub(crate) fn note_on_devices(flags: &ConfigFlags, session: &Session) -> Option<String> {
    let (cluster, mesh) = (&session.config().cluster, session.mesh());
    let is_named = flags.cluster.is_some() || flags.gives("cluster.name");
    let devices = cluster.levels.last()?.ranks.filter(|&devices| devices > mesh.rank_count())?;
    // A plan file says for which mesh it is.
    let has_plan = session.config().plan.file.is_some();
    (is_named && !has_plan && !flags.gives("mesh.shape")).then(|| {
        format!(
            "mesh {mesh} uses {} of the {devices} devices of cluster `{}`: `--mesh dp=-1` uses all of them",
            mesh.rank_count(),
            cluster.name
        )
    })
}

impl Predicted {
    fn of(session: &Session, simulation: &Simulation, figures: Figures) -> Predicted {
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
            rows_per_s: figures.rows_per_s,
            parameters: figures.parameters,
            tokens_per_s: figures.tokens_per_s,
            tflops_per_rank: figures.flops_per_s / 1e12,
            mfu: figures.mfu,
            idle_share: simulation.idle_share(),
            threads: session.config().cluster.is_one_machine().then(|| session.cores().threads),
            classes: simulation.classes.iter().map(class).collect(),
            figures,
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "predicted on {} for mesh {}: {} parameters, {}, ranks compute {:.0}% of the time\n\n",
            self.cluster,
            self.mesh,
            self.figures.parameters_text(),
            self.figures.speed(),
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
