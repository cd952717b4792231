//! `partita bench`: how fast steps, matrix products and collectives are here, in the sizes others are measured in.
//!
//! Everything runs as training does: planned, lowered, run by the executor. Cases that are compared with each other
//! are prepared together and then take turns, so that a change of the machine's speed affects all of them.

pub mod exchange;
pub mod fused;
pub mod measurement;
pub mod models;
pub mod profile;
pub mod schedules;
pub mod suites;

pub use suites::Suite;

use crate::command::{Application, Command};
use crate::files::{check_new, write_new};
use crate::output::Output;
use crate::run::{Ending, answer};
use clap::Args;
use exchange::Traffic;
use measurement::{MIB, Measurement};
use models::Step;
use partita::engines::xla::python;
use partita::session::{Execution, Session};
use partita::{Config, execution};
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_cost::Cluster;
use partita_ir::port::LOSS;
use partita_nn::Model;
use partita_runtime::{AWAKE, KernelChoice, MemoryLimit, Runner, TrainLoop};
use partita_schedule::{Plan, feed, ready_plan};
use partita_simulate::simulate;
use profile::{InstructionTimes, Profile, clocks};
use schedules::Rungs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use suites::{Case, Work, cases};

/// Flags of `bench`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct BenchArgs {
    /// Only this suite.
    #[arg(value_enum)]
    pub suite: Option<Suite>,
    /// Only cases whose name `suite/case` contains this text.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Timed runs of each case.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Untimed runs before the timed ones.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub warmup: u32,
    /// The mesh of the suites mlp and gpt.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// Threads in all, for cases without a number of their own; one per core by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The machine code of the kernels: portable, avx2, avx512 or native, which uses everything the machine has.
    #[arg(long, value_name = "LEVEL", default_value = "native", hide_default_value = true, value_parser = kernels)]
    pub kernels: KernelChoice,
    /// The most memory that the process takes: a percentage such as 80%, the default, or bytes such as 8G.
    #[arg(long, value_name = "LIMIT")]
    pub memory_limit: Option<String>,
    /// Also print the time per kind of instruction.
    #[arg(long)]
    pub profile: bool,
    /// Print the names of the cases and measure nothing.
    #[arg(long)]
    pub list: bool,
    /// With the suite schedules: also draw the speeds to a new SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// The kernels of `bench`, which has no config to refuse a name.
fn kernels(text: &str) -> Result<KernelChoice, String> {
    text.parse().map_err(|error: Box<Diagnostic>| match &error.expected {
        Some(known) => format!("{}; there are {known}", error.message),
        None => error.message.clone(),
    })
}

impl Command for BenchArgs {
    const NAME: &'static str = "bench";
    const ABOUT: &'static str =
        "Measure training steps, matmuls and collectives in the sizes of published benchmarks";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        bench(self, output)?;
        Ok(Ending::Done)
    }
}

/// Seed of weights and data.
const SEED: u64 = 1;
/// Runs of a measurement, however long they take.
const FEWEST_RUNS: u32 = 3;
/// Losses told.
const LOSSES: usize = 3;

/// Runs the command.
///
/// # Errors
/// E020 where no case matches, E021 for a mesh where it has no meaning, E033 and E043 for a picture that cannot be drawn or
/// written; whatever a mesh does not suit.
fn bench(args: &BenchArgs, output: &mut Output) -> Result<()> {
    let groups = selected(args)?;
    if args.list {
        let paths: Vec<String> = groups.concat().iter().map(Case::path).collect();
        output.text(paths.join("\n"));
        return Ok(());
    }
    if let Some(path) = &args.svg {
        if !groups.iter().flatten().any(|case| case.suite == Suite::Schedules) {
            return Err(Diagnostic::new("E033", "only the suite schedules is drawn")
                .at("--svg")
                .expected("`partita bench schedules --svg FILE.svg`")
                .found("cases of other suites")
                .help("leave --svg away"));
        }
        check_new(path, "the picture", "--svg")?;
    }
    let mut rungs = Vec::new();
    let runs = u64::from(args.warmup + args.repeats);
    output.begin(1, runs * groups.iter().map(Vec::len).sum::<usize>() as u64);
    let mut done = 0;
    for group in &groups {
        let mut prepared = Vec::new();
        for case in group {
            let mut entry = Prepared::new(case, args)?;
            for _ in 1..args.warmup {
                entry.run()?;
            }
            entry.seconds.clear();
            entry.cpu_ms.clear();
            entry.instructions.restart();
            prepared.push(entry);
            done += u64::from(args.warmup);
            output.progress(done);
        }
        let takes_turns = prepared.len() > 1;
        for _ in 0..args.repeats {
            for entry in &mut prepared {
                if takes_turns {
                    // The threads of the case before look out for a next step of theirs.
                    std::thread::sleep(2 * AWAKE);
                }
                entry.run()?;
                done += 1;
                output.progress(done);
            }
        }
        let mut measured: Vec<Measurement> =
            prepared.iter().zip(group).map(|(entry, case)| entry.measurement(case)).collect();
        compare_with_copy(group, &mut measured);
        compare_with_one_rank(&prepared, &mut measured);
        rungs.extend(measured.iter().filter(|m| m.suite == Suite::Schedules.name()).cloned());
        for ((entry, case), measurement) in prepared.iter().zip(group).zip(&measured) {
            answer(measurement, Measurement::text, output);
            if args.profile {
                let profile = Profile::new(
                    case.path(),
                    entry.runner(),
                    entry.instructions.fastest(),
                    measurement.min_ms,
                );
                answer(&profile, Profile::text, output);
            }
        }
    }
    output.end();
    if rungs.is_empty() {
        return Ok(());
    }
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let rungs = output.during("running PyTorch", || Rungs::new(&rungs, &python(), threads, args.repeats));
    answer(&rungs, Rungs::text, output);
    if let Some(path) = &args.svg {
        write_new(path, "the picture", "--svg", |file| rungs.svg(file))?;
        output.note(format!("the picture is in {}", path.display()));
    }
    Ok(())
}

/// The selected cases, in groups that take turns.
fn selected(args: &BenchArgs) -> Result<Vec<Vec<Case>>> {
    let takes_mesh = |suite: Suite| matches!(suite, Suite::Mlp | Suite::Gpt);
    if let (Some(suite), Some(mesh)) = (args.suite, &args.mesh)
        && !takes_mesh(suite)
    {
        return Err(Diagnostic::new(
            "E021",
            format!("the cases of `{}` have meshes of their own", suite.name()),
        )
        .at("--mesh")
        .expected("a mesh for the suites mlp or gpt only")
        .found(mesh.clone())
        .help("choose cases by --filter"));
    }
    let suites = args.suite.map_or(Suite::ALL.to_vec(), |suite| vec![suite]);
    let mut all: Vec<Vec<Case>> =
        suites.iter().flat_map(|&suite| cases(suite, args.mesh.as_deref())).collect();
    for case in all.iter_mut().flatten() {
        case.threads = case.threads.or(args.threads);
    }
    let Some(filter) = &args.filter else { return Ok(all) };
    let matching = |group: &Vec<Case>| -> Vec<Case> {
        group.iter().filter(|case| case.path().contains(filter.as_str())).cloned().collect()
    };
    let groups: Vec<Vec<Case>> = all.iter().map(matching).filter(|group| !group.is_empty()).collect();
    if groups.is_empty() {
        let paths: Vec<String> = all.concat().iter().map(Case::path).collect();
        let mut error = Diagnostic::new("E020", format!("no case contains `{filter}`")).at("--filter");
        error.help = did_you_mean(filter, paths.iter().map(String::as_str))
            .or(Some("`partita bench --list` names all cases".to_string()));
        return Err(error);
    }
    Ok(groups)
}

/// A case that is ready to run again and again.
struct Prepared {
    player: Player,
    /// What is fed before every run, untimed.
    fed: feed::Fed,
    learning_rate: f64,
    compile_ms: f64,
    initialize_ms: f64,
    first_step_ms: f64,
    losses: Vec<f64>,
    /// Of each run; where a run does a thing several times, of one time.
    seconds: Vec<f64>,
    /// Processor time of each run, likewise.
    cpu_ms: Vec<f64>,
    /// How often a run does what is measured.
    times: usize,
    /// Of each instruction.
    instructions: InstructionTimes,
}

/// What runs a case.
enum Player {
    Steps(Box<TrainLoop>),
    Programs(Runner),
}

impl Prepared {
    /// Plans, lowers and runs it once.
    fn new(case: &Case, args: &BenchArgs) -> Result<Prepared> {
        let session = session(case, args)?;
        let mut prepared = match &case.work {
            Work::Step(step) => prepare_step(step, &session, case)?,
            Work::Traffic { traffic, bytes, times } => {
                let begin = Instant::now();
                let options = session.runner_options();
                let set = exchange::programs(*traffic, *bytes, session.mesh().rank_count(), *times);
                let world = options.world(&set)?;
                let runner = Runner::new(set, world, options)?;
                let compile_ms = 1e3 * begin.elapsed().as_secs_f64();
                Prepared::ready(Player::Programs(runner), compile_ms, *times)
            }
        };
        prepared.run()?;
        prepared.first_step_ms = prepared.compile_ms + 1e3 * prepared.seconds[0];
        Ok(prepared)
    }

    fn ready(player: Player, compile_ms: f64, times: usize) -> Prepared {
        Prepared {
            player,
            fed: feed::Fed::new(),
            learning_rate: 0.0,
            compile_ms,
            initialize_ms: 0.0,
            first_step_ms: 0.0,
            losses: Vec::new(),
            seconds: Vec::new(),
            cpu_ms: Vec::new(),
            times,
            instructions: InstructionTimes::default(),
        }
    }

    fn runner(&self) -> &Runner {
        match &self.player {
            Player::Steps(trainer) => trainer.runner(),
            Player::Programs(runner) => runner,
        }
    }

    /// One run: the step itself is timed, with its loss; the batch is in place before.
    fn run(&mut self) -> Result<()> {
        if let Player::Steps(trainer) = &mut self.player {
            execution::with_batch(&self.fed, |batch| trainer.feed(batch, self.learning_rate))?;
        }
        let cpu_before = cpu_ms();
        let begin = Instant::now();
        match &mut self.player {
            Player::Steps(trainer) if trainer.runner().has_output(0, LOSS) => {
                let (loss, _) = trainer.run()?;
                if self.losses.len() < LOSSES {
                    self.losses.push(loss);
                }
            }
            Player::Steps(trainer) => trainer.runner_mut().step()?,
            Player::Programs(runner) => runner.step()?,
        }
        self.seconds.push(begin.elapsed().as_secs_f64() / self.times as f64);
        let cpu = cpu_before.zip(cpu_ms()).map(|(before, after)| (after - before) / self.times as f64);
        self.cpu_ms.extend(cpu);
        let clocks = clocks(self.runner())?;
        self.instructions.note(clocks);
        Ok(())
    }

    fn measurement(&self, case: &Case) -> Measurement {
        let (fastest, slowest) = self
            .seconds
            .iter()
            .fold((f64::INFINITY, 0.0), |(fastest, slowest), &run| (run.min(fastest), run.max(slowest)));
        let median = middle(self.seconds.clone());
        let (gflops, gbytes_per_s) = match &case.work {
            Work::Step(step) => match step.least_traffic_bytes() {
                Some(bytes) => (None, Some(bytes as f64 / fastest / 1e9)),
                None => (Some(step.flops() / fastest / 1e9), None),
            },
            Work::Traffic { bytes, .. } => (None, Some(*bytes as f64 / fastest / 1e9)),
        };
        Measurement {
            suite: case.suite.name(),
            case: case.name.clone(),
            mesh: case.mesh.clone(),
            ranks: self.runner().rank_count(),
            threads: self.runner().thread_count(),
            repeats: self.seconds.len(),
            median_ms: 1e3 * median,
            min_ms: 1e3 * fastest,
            spread: (slowest - fastest) / median,
            cpu_ms: (!self.cpu_ms.is_empty()).then(|| mean(&self.cpu_ms)),
            gflops,
            gbytes_per_s,
            of_limit: None,
            of_exchange: None,
            of_one_rank: None,
            compile_ms: self.compile_ms,
            initialize_ms: self.initialize_ms,
            first_step_ms: self.first_step_ms,
            peak_rss_mb: peak_rss_mb(),
            planned_mb: self.runner().planned_bytes().iter().sum::<usize>() as f64 / MIB,
            losses: self.losses.clone(),
        }
    }
}

/// The session of a case.
fn session(case: &Case, args: &BenchArgs) -> Result<Session> {
    let source: Arc<dyn partita::models::ModelSource> = match &case.work {
        Work::Step(step) => Arc::new(step.clone()),
        Work::Traffic { .. } => partita::models::from_fn("collective", |_, _| Ok(Vec::new())),
    };
    let mut config = Config { mesh: case.mesh.clone(), ..Config::of(source) };
    config.train.seed = SEED;
    config.train.kernels = args.kernels;
    if let Some(limit) = &args.memory_limit {
        config.train.memory_limit = MemoryLimit::parse(limit)?;
    }
    if let Work::Step(step) = &case.work {
        (config.step, config.schedule.peak) = step.update();
    }
    let execution = Execution { record: args.profile, workers: case.threads, ..Execution::default() };
    Session::new(config)?.with_execution(execution)
}

/// What runs of a case took.
pub(crate) struct Taken {
    /// Seconds of the fastest run.
    pub fastest_s: f64,
    /// Seconds of the median run.
    pub median_s: f64,
    /// Bytes that the rank with most has used.
    pub bytes: usize,
}

/// What so many runs of a case take, on as many threads as it has; fewer runs where they take longer than `most` together,
/// but at least three.
///
/// # Errors
/// As [`bench`].
pub(crate) fn taken(case: &Case, repeats: u32, most: Duration) -> Result<Taken> {
    let mut prepared = Prepared::new(case, &plain())?;
    let begin = Instant::now();
    for run in 0..repeats {
        if run >= FEWEST_RUNS && begin.elapsed() > most {
            break;
        }
        prepared.run()?;
    }
    let bytes = prepared.runner().peak_bytes_used().into_iter().max().unwrap_or(0);
    let mut seconds = prepared.seconds;
    seconds.sort_by(f64::total_cmp);
    Ok(Taken { fastest_s: seconds[0], median_s: seconds[seconds.len() / 2], bytes })
}

/// Seconds that the simulator predicts for a step of a case, and bytes of the rank with most.
///
/// # Errors
/// What building and lowering refuse.
pub(crate) fn predicted(case: &Case, step: &Step, cluster: &Cluster) -> Result<(f64, usize)> {
    let session = session(case, &plain())?;
    let model = session.model()?;
    let plan = plan(case, step, &model, &session)?;
    let set = session.lower(&session.build_part(&model, &plan, step.part())?)?;
    let simulation = simulate(&set, cluster)?;
    let bytes = simulation.classes.iter().map(|class| class.memory.arena_bytes).max();
    Ok((simulation.step_s, bytes.unwrap_or(0)))
}

/// The flags of a plain measurement.
fn plain() -> BenchArgs {
    BenchArgs {
        suite: None,
        filter: None,
        repeats: 1,
        warmup: 1,
        mesh: None,
        threads: None,
        kernels: KernelChoice::default(),
        memory_limit: None,
        profile: false,
        list: false,
        svg: None,
    }
}

/// The lines of a case, then those of its ready plan.
fn plan(case: &Case, step: &Step, model: &Model, session: &Session) -> Result<Plan> {
    let mut plan = Plan::from_calls(&case.calls, "bench")?;
    if let Some(name) = step.plan() {
        plan.entries.extend(ready_plan(name, &model.forward, session.mesh(), &case.ready)?.entries);
    }
    Ok(plan)
}

/// A model's step on a mesh, with parameters and a batch.
fn prepare_step(step: &Step, session: &Session, case: &Case) -> Result<Prepared> {
    let begin = Instant::now();
    let model = session.model()?;
    let plan = plan(case, step, &model, session)?;
    let mut planned = session.prepare(&session.build_part(&model, &plan, step.part())?)?;
    let compile_ms = 1e3 * begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    planned.initialize(&model, SEED)?;
    let initialize_ms = 1e3 * begin.elapsed().as_secs_f64();
    let fed = feed::random_feed(&model, SEED, 0.0);
    let ready = Prepared::ready(Player::Steps(Box::new(planned.train_loop)), compile_ms, 1);
    Ok(Prepared { fed, learning_rate: session.config().schedule.peak, initialize_ms, ..ready })
}

/// Puts what memory bounds beside the copy of the same ranks, and collectives beside the exchange, where there is one.
fn compare_with_copy(group: &[Case], measured: &mut [Measurement]) {
    let is = |case: &Case, wanted: Traffic| matches!(case.work, Work::Traffic { traffic, .. } if traffic == wanted);
    let per_ms = |case: &Case, measurement: &Measurement| {
        let bytes = match &case.work {
            Work::Traffic { traffic, bytes, .. } => {
                Some(traffic.least_traffic_bytes(*bytes, measurement.ranks))
            }
            Work::Step(step) => step.least_traffic_bytes(),
        };
        bytes.map(|bytes| bytes as f64 / measurement.min_ms)
    };
    let rates: Vec<Option<f64>> = group.iter().zip(&*measured).map(|(c, m)| per_ms(c, m)).collect();
    let rate_of = |traffic: Traffic| rates[group.iter().position(|case| is(case, traffic))?];
    let (copy, exchange) = (rate_of(Traffic::Copy), rate_of(Traffic::Exchange));
    for ((case, measurement), &rate) in group.iter().zip(measured).zip(&rates) {
        let of = |limit: Option<f64>| Some(rate? / limit?);
        measurement.of_limit = of(copy).filter(|_| !is(case, Traffic::Copy));
        let is_limit = is(case, Traffic::Copy) || is(case, Traffic::Exchange);
        measurement.of_exchange = of(exchange).filter(|_| !is_limit);
    }
}

/// Puts steps on several ranks beside the one on one rank that took turns with them.
fn compare_with_one_rank(prepared: &[Prepared], measured: &mut [Measurement]) {
    let Some(alone) = prepared.iter().zip(&*measured).position(|(_, measurement)| measurement.ranks == 1)
    else {
        return;
    };
    for (entry, measurement) in prepared.iter().zip(measured).filter(|(_, measurement)| measurement.ranks > 1)
    {
        let ratios = entry.seconds.iter().zip(&prepared[alone].seconds).map(|(own, alone)| own / alone);
        measurement.of_one_rank = Some(middle(ratios.collect()));
    }
}

/// The median.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The processor time of all threads of this process, as Linux counts it.
fn cpu_ms() -> Option<f64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let nanos = |task: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let nanos = tasks.map(nanos).collect::<Option<Vec<f64>>>()?;
    Some(nanos.iter().sum::<f64>() / 1e6)
}

/// The high-water mark of this process's resident memory, as Linux counts it.
fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1024.0)
}
