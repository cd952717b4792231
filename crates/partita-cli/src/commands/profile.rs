//! `partita profile`: where the time of a step goes.

use crate::command::{Application, Command, ConfigFlags, Unread, of_run};
use crate::commands::launch;
use crate::files::{check_folder, check_new, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{seconds, short, table};
use crate::run::{Ending, answer, session};
use clap::{Args, ValueEnum};
use partita::engines::Engine;
use partita::engines::native::Native;
use partita::profile::{self, By, Cycle, Recording, Row, Sort, Totals, Waits};
use partita::session::{Execution, Session};
use partita_base::{Diagnostic, Result};
use partita_cost::Cluster;
use partita_program::ProgramSet;
use partita_simulate::simulate;
use partita_trace::Trace;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What commands that run some steps here do not read.
pub(super) const OF_PROFILE: Unread = of_run(&[
    ("train.steps", "--cycle says how many steps run"),
    ("train.verify_limit", "nothing is verified"),
]);

/// Flags of `profile`.
#[derive(Args, Clone, Debug)]
pub struct ProfileArgs {
    /// A config file or a bundled config.
    #[arg(default_value = "gpt")]
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub table: ProfileTable,
    /// Write the timeline to a new file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// With --trace: also draw the step as `partita simulate` predicts it, on the same clock.
    #[arg(long, requires = "trace")]
    pub predicted: bool,
    /// Write the work of each rank to a new folder below DIR/plugins/profile, in the words of PyTorch's profiler, for the
    /// profiler plugin of TensorBoard and HolisticTraceAnalysis.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Threads in all, one per core by default. With fewer ranks than threads, each rank has several.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
}

/// Names of a module path that a table keeps, unless the user says how many.
const DEPTH: usize = 8;

/// Which steps are recorded, and how their table looks.
#[derive(Args, Clone, Debug)]
pub struct ProfileTable {
    /// The steps that are recorded: wait=1,warmup=1,active=3,repeat=1 is the default. The recorder is off for `wait` steps,
    /// and drops what it sees in `warmup` steps.
    #[arg(long, value_name = "COUNTS", default_value = "")]
    pub cycle: String,
    /// What makes a row of the table.
    #[arg(long, value_enum, default_value_t = Grouping::Op)]
    pub by: Grouping,
    /// With --by module: names of a path that are kept, so that layers.0.mlp.up is layers.0 with 2; 8 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// The column that orders the table.
    #[arg(long, value_enum, default_value_t = Order::Time)]
    pub sort: Order,
    /// Rows that are shown; --json has all.
    #[arg(long, value_name = "N", default_value_t = ROWS_SHOWN, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
}

impl ProfileTable {
    /// The steps that are recorded.
    ///
    /// # Errors
    /// E530 for a text that does not say so.
    pub fn cycle(&self) -> Result<Cycle> {
        Cycle::parse(&self.cycle)
    }

    /// What makes a row.
    ///
    /// # Errors
    /// E033 for a depth of what has none.
    pub fn by(&self) -> Result<By> {
        if let (Some(depth), true) = (self.depth, self.by != Grouping::Module) {
            return Err(Diagnostic::new("E033", "only modules have a depth")
                .at("--depth")
                .expected("--depth together with --by module")
                .found(depth.to_string())
                .help("add --by module, or leave --depth away"));
        }
        Ok(match self.by {
            Grouping::Op => By::Op,
            Grouping::Module => By::Module(self.depth.map_or(DEPTH, |depth| depth as usize)),
            Grouping::Phase => By::Phase,
            Grouping::Stage => By::Stage,
            Grouping::Collective => By::Collective,
            Grouping::Rank => By::Rank,
            Grouping::Wait => By::Wait,
        })
    }

    /// What orders the rows.
    pub fn sort(&self) -> Sort {
        match self.sort {
            Order::Time => Sort::Time,
            Order::Calls => Sort::Calls,
            Order::Flops => Sort::Flops,
            Order::Bytes => Sort::Bytes,
            Order::Roofline => Sort::Roofline,
        }
    }
}

/// What makes a row of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Grouping {
    /// The op or the fused ops.
    Op,
    /// The module path.
    Module,
    /// Forward, backward or update.
    Phase,
    /// The pipeline stage.
    Stage,
    /// The collective; compute is left out.
    Collective,
    /// The rank.
    Rank,
    /// Which rank waited for which, or for data.
    Wait,
}

/// The column that orders a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Order {
    /// Time, largest first.
    Time,
    /// Instructions, most first.
    Calls,
    /// Floating-point operations, most first.
    Flops,
    /// Bytes read and written, most first.
    Bytes,
    /// Share of the roofline, smallest first: where there is most to win.
    Roofline,
}

impl Command for ProfileArgs {
    const NAME: &'static str = "profile";
    const ABOUT: &'static str = "Run some steps and show where their time goes: a table, who waited for whom, a timeline for Perfetto";
    const UNREAD: Unread = OF_PROFILE;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        profile(self, &session(&self.config, self.flags.overrides()?, output)?, output)?;
        Ok(Ending::Done)
    }
}

/// What follows the names of hosts in traces.
const MEASURED: &str = "measured";

/// Where the profiler plugin of TensorBoard looks for runs, below the folder of a log.
const PLUGIN: &str = "plugins/profile";

/// Rows of the table that people see, unless they say how many.
pub const ROWS_SHOWN: u32 = 20;

/// Where the time of recorded steps went.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recorded {
    /// The mesh.
    pub mesh: String,
    /// The cluster whose roofline is used.
    pub cluster: String,
    /// Steps, threads and idle time.
    #[serde(flatten)]
    pub totals: Totals,
    /// The table.
    pub rows: Vec<Row>,
    /// Which rank waited for which.
    pub waits: Waits,
}

impl Event for Recorded {
    const NAME: &'static str = "recorded";
}

/// Runs the command. Of several processes of a launch, the first one prints and writes for all.
///
/// # Errors
/// E530 for a wrong cycle, E033 for flags that do not suit each other, E043 for a trace that cannot be written; what
/// building, lowering and running refuse.
fn profile(args: &ProfileArgs, session: &Session, output: &mut Output) -> Result<()> {
    let (cycle, by, sort) = (args.table.cycle()?, args.table.by()?, args.table.sort());
    let execution = Execution { workers: args.workers, ..Execution::default() };
    let execution = Native.share(execution, session.mesh().rank_count())?;
    let session = session.clone().with_execution(execution)?;
    if launch::is_first() {
        args.trace.as_ref().map(|path| check_new(path, "the trace", "--trace")).transpose()?;
        let folder = args.tensorboard.as_ref();
        folder.map(|path| check_folder(path, "the log of TensorBoard", "--tensorboard")).transpose()?;
    }
    let what = format!("profiling {} on mesh {}", session.config().model.name(), session.mesh());
    let profiled = output.during(&what, || profile::profile(&session, cycle, &mut |_, _| {}))?;
    let runner = profiled.step.train_loop.runner();
    if !runner.world().is_first() {
        return Ok(());
    }
    let recorded = Recorded::of(&session, &profiled.recording, by, sort);
    answer(&recorded, |recorded| recorded.text(args.table.rows as usize), output);
    if let Some(path) = &args.trace {
        let predicted = args.predicted.then_some((&session.config().cluster, runner.program_set()));
        write_trace(path, "--trace", &profiled.recording, profiled.tokens, predicted)?;
        output.note(written(path));
    }
    if let Some(folder) = &args.tensorboard {
        let written = write_ranks(folder, &profiled.recording)?;
        output.note(for_tensorboard(folder, &written));
    }
    Ok(())
}

/// Writes the timeline of recorded steps, with the predicted step of a cluster beside it if one is given.
pub fn write_trace(
    path: &Path,
    flag: &str,
    recording: &Recording,
    tokens: usize,
    predicted: Option<(&Cluster, &ProgramSet)>,
) -> Result<()> {
    let mut trace: Trace = profile::timeline(recording, MEASURED, tokens);
    if let Some((cluster, set)) = predicted {
        trace.append(simulate(set, cluster)?.trace(set));
    }
    write_new(path, "the trace", flag, |file| trace.chrome(file))
}

/// Writes a file for each rank to a new folder of a log, which is returned.
///
/// # Errors
/// E043 if it cannot be written.
pub fn write_ranks(log: &Path, recording: &Recording) -> Result<PathBuf> {
    let trace = profile::timeline(recording, MEASURED, 0);
    let folder = new_run(&log.join(PLUGIN)).map_err(|error| {
        Diagnostic::new("E043", "the work of ranks cannot be written")
            .at(log.display().to_string())
            .expected("a folder that can be written")
            .found(error.to_string())
            .help("name another folder with --tensorboard")
    })?;
    for &rank in &recording.ranks.numbers {
        let path = folder.join(format!("rank-{rank}.pt.trace.json"));
        let write = |file: &mut dyn std::io::Write| trace.kineto(rank, recording.ranks.of, file);
        write_new(&path, "the work of a rank", "--tensorboard", write)?;
    }
    Ok(folder)
}

/// Makes the first of `run-1`, `run-2`, .. that does not exist.
fn new_run(parent: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(parent)?;
    for number in 1.. {
        let folder = parent.join(format!("run-{number}"));
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder),
        }
    }
    unreachable!("some number is free")
}

/// Says where the work of ranks is.
pub fn for_tensorboard(log: &Path, folder: &Path) -> String {
    format!(
        "the work of each rank is in {}: tensorboard --logdir {} shows it with torch-tb-profiler",
        folder.display(),
        log.display()
    )
}

/// Says where the timeline is.
pub fn written(path: &Path) -> String {
    format!("the timeline is in {}: open it at ui.perfetto.dev", path.display())
}

impl Recorded {
    /// The table of a recording.
    pub fn of(session: &Session, recording: &Recording, by: By, sort: Sort) -> Recorded {
        let cluster = &session.config().cluster;
        let (rows, totals) = profile::rows(recording, cluster, by, sort);
        let waits = profile::waits(recording);
        Recorded { mesh: session.mesh().to_string(), cluster: cluster.name.clone(), totals, rows, waits }
    }

    /// For people: the first `most` rows.
    pub fn text(&self, most: usize) -> String {
        let Totals { steps, step_s, threads, idle_s } = self.totals;
        let mut text = format!(
            "{} a step on mesh {}, mean of {steps} recorded steps; {threads} threads, idle {:.0}% of the time\n\n",
            seconds(step_s),
            self.mesh,
            100.0 * idle_s / (threads as f64 * step_s).max(f64::MIN_POSITIVE)
        );
        let rate = |amount: f64, row: &Row| match amount > 0.0 {
            true => short(amount / row.seconds.max(f64::MIN_POSITIVE)),
            false => String::new(),
        };
        let cells = |row: &Row| {
            vec![
                row.what.clone(),
                format!("{:.0}", row.calls),
                seconds(row.seconds),
                format!("{:.1}%", 100.0 * row.share),
                rate(row.flops, row),
                rate(row.bytes, row),
                if row.of_roofline > 0.0 {
                    format!("{:.0}%", 100.0 * row.of_roofline)
                } else {
                    String::new()
                },
            ]
        };
        let lines: Vec<Vec<String>> = self.rows.iter().take(most).map(cells).collect();
        text += &table(&["", "calls", "time", "share", "FLOP/s", "bytes/s", "of roofline"], &lines);
        if let Some(rest) = self.rows.get(most..).filter(|rest| !rest.is_empty()) {
            let rest_s: f64 = rest.iter().map(|row| row.seconds).sum();
            text += &format!(
                "and {} more rows with {}: --rows {}\n",
                rest.len(),
                seconds(rest_s),
                self.rows.len()
            );
        }
        text += &format!(
            "\ntime: seconds of all threads in a step; of roofline: the time that the cluster `{}` predicts, by the time \
             taken; the time of a wait is that of a thread that looks whether the data is there, not that in which it ran other ranks\n",
            self.cluster
        );
        if self.waits.ranks.len() > 1 {
            text += &self.waits_text();
        }
        text
    }

    /// Who waited for whom.
    fn waits_text(&self) -> String {
        let Waits { ranks, for_rank, rest_s } = &self.waits;
        let mut header = vec!["waits in a step".to_string()];
        header.extend(ranks.iter().map(|rank| format!("for rank {rank}")));
        header.push("for data".to_string());
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let waited = |&waited: &f64| if waited > 0.0 { seconds(waited) } else { "-".to_string() };
        let lines = ranks.iter().zip(for_rank).zip(rest_s).map(|((rank, waits), rest)| {
            let mut line = vec![format!("rank {rank}")];
            line.extend(waits.iter().chain([rest]).map(waited));
            line
        });
        format!("\n{}", table(&header, &lines.collect::<Vec<_>>()))
    }
}
