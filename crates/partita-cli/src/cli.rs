//! The commands with their flags, and how flags become config overrides.

mod checkpoint;
mod flags;
mod install;
mod launch;
mod predict;
mod profile;
mod train;
mod unread;

pub use checkpoint::{CheckpointArgs, CheckpointCommand};
pub use flags::ConfigFlags;
pub use install::{CompletionsArgs, EnvArgs, ManArgs, NewArgs};
pub use launch::LaunchArgs;
pub use predict::{CalibrateArgs, CostModel, EstimateArgs, PlanArgs, SimulateArgs};
pub use profile::{Grouping, Order, ProfileArgs, ProfileTable, ReportArgs, ReportForm};
pub use train::TrainArgs;
pub(crate) use unread::OF_A_PLAN_FILE;

use crate::commands::bench::Suite;
use crate::commands::explain::is_code;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flags::item;
use partita::engine::Engine;
use partita_base::Diagnostic;
use partita_runtime::KernelChoice;
use std::path::PathBuf;

/// Train models on a mesh of devices, from code written for one device and a plan that says what is sharded.
#[derive(Clone, Debug, Parser)]
#[command(name = "partita", version, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Print one JSON object per line on standard output.
    #[arg(long, global = true)]
    pub json: bool,
}

const AFTER_HELP: &str = "CONFIG is a TOML file, a file with a model (.pt2, .mlir), one of mlp, gpt, llama, bert, moe-gpt, mixtral, deepseek, wide-resnet, vit, unet, t5, or a model by name, such as \
    gpt3-13b.\n\
    Exit codes: 0 done, 1 the check failed, 2 bad input or a failed run, 130 stopped by Ctrl-C.";

/// The error of a command line; `Err` returns what is no error, such as `--help`.
pub fn usage_error(error: clap::Error) -> Result<Box<Diagnostic>, clap::Error> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(error);
    }
    let text = error.render().to_string();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().unwrap_or_default().trim_start_matches("error: ").to_string();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let mut diagnostic = Diagnostic::new("E033", head);
    diagnostic.at = context(ContextKind::InvalidArg);
    diagnostic.expected = context(ContextKind::ValidValue).or(context(ContextKind::ValidSubcommand));
    diagnostic.found = context(ContextKind::InvalidValue).or(context(ContextKind::InvalidSubcommand));
    let mut help = None;
    for line in lines {
        match line.trim() {
            line if line.starts_with("tip: ") => help = Some(line.trim_start_matches("tip: ").to_string()),
            line if line.starts_with("Usage: ") => diagnostic.notes.push(line.to_string()),
            // The names of missing arguments, one per line.
            line if line.starts_with(['<', '-']) => diagnostic.notes.push(line.to_string()),
            _ => {}
        }
    }
    if diagnostic.at.as_deref() == Some("--portable") {
        help = Some(
            "`--kernels portable`, or `--kernels avx2` or `avx512`: faster, to the same bits".to_string(),
        );
    }
    diagnostic.help = help.or(Some("`partita COMMAND --help` lists all flags of a command".to_string()));
    Ok(instead_of_torch(&diagnostic).unwrap_or(diagnostic))
}

/// What to use instead of `--engine torch` and `--for torch`.
fn instead_of_torch(usage: &Diagnostic) -> Option<Box<Diagnostic>> {
    let flag = usage.at.as_deref()?.split(' ').next()?;
    let (asked, other) = match flag {
        "--engine" => ("train", "`--engine native` or `--engine xla` here"),
        "--for" => ("export", "`--for xla` here"),
        _ => return None,
    };
    let expected = usage.expected.as_deref().filter(|_| usage.found.as_deref() == Some("torch"))?;
    let error = Diagnostic::new("E060", format!("`partita {asked}` has no models for PyTorch"));
    let instead = "use `partita.torch.apply` on a module of your own, from Python (python/docs/torch.md)";
    Some(error.at(flag).expected(expected).found("torch").help(format!("{instead}, or {other}")))
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Train a model on a mesh.
    Train(TrainArgs),
    /// Compare one planned step with the same step on one device.
    Verify(VerifyArgs),
    /// Show the model, the layout of its parameters on the mesh, its plan and its memory.
    Show(ShowArgs),
    /// Explain a step: its plan and collectives, the layout of a tensor, or a code such as E231.
    Explain(ExplainArgs),
    /// Print a step as a graph or as programs, or count its collectives.
    Lower(LowerArgs),
    /// Compute the loss of a saved run on its validation data, on any mesh.
    Eval(EvalArgs),
    /// Continue a text with a saved run.
    Generate(GenerateArgs),
    /// Write the weights of a run, or a plan, in another format.
    Export(ExportArgs),
    /// Predict the time and memory of a step on a cluster, from the programs that would run.
    Simulate(SimulateArgs),
    /// Estimate how many devices a model needs, for each strategy and optimizer.
    Estimate(EstimateArgs),
    /// Find the mesh, the layouts and the stages of a step by search, and say why.
    Plan(PlanArgs),
    /// Run some steps and show where their time goes: a table, who waited for whom, a timeline for Perfetto.
    Profile(ProfileArgs),
    /// Write a page about a step: mesh, timeline, memory, communication, roofline, plan.
    Report(ReportArgs),
    /// Draw the order in which pipeline stages work on microbatches, or list the orders.
    Timetable(TimetableArgs),
    /// Run named passes on a program in StableHLO text and print it.
    Opt(OptArgs),
    /// Run a function of MLIR once, on any mesh.
    Run(RunArgs),
    /// List, show, convert or verify the checkpoints of a run.
    Checkpoint(CheckpointArgs),
    /// Measure training steps, matmuls and collectives in the sizes of published benchmarks.
    Bench(BenchArgs),
    /// Measure this machine and write a cluster file for --cluster.
    Calibrate(CalibrateArgs),
    /// Run a command in several processes of this host that share the ranks.
    Launch(LaunchArgs),
    /// Make a folder to begin from: a config, a plan and the commands that use them.
    New(NewArgs),
    /// Describe this build and this machine; with --check, say what is wrong with it.
    Env(EnvArgs),
    /// Print the completions of this command for a shell.
    Completions(CompletionsArgs),
    /// Write the manual, a page for each command.
    Man(ManArgs),
}

/// Flags of `verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// What runs the planned step: by default the CPU device, as training does, if the mesh fits here, else the interpreter.
    /// The step of one device always runs on the interpreter.
    #[arg(long, value_enum)]
    pub runner: Option<Runner>,
    /// Compare with what a framework recorded, not with one device: a .npz or .safetensors file with inputs, outputs (by
    /// name, or as output.0, output.1, ..), loss and grad.PARAMETER.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// For tests: forgets one reduction in the modules below this path.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "PATH", hide = true)]
    pub break_rule: Option<String>,
}

/// Flags of `show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: Option<String>,
    /// List every key of configs with its type, default and meaning.
    #[arg(long, conflicts_with_all = ["form", "stage"])]
    pub keys: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Print only the plan, in this format.
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: Option<PlanForm>,
    /// Print only the step, lowered so far.
    #[arg(long, value_enum)]
    pub stage: Option<Stage>,
}

/// Flags of `explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// A config, as for other commands; or the code of a message.
    pub config: String,
    /// A parameter, a module (its output), `module.input`, a collective such as all_reduce:3, or a code.
    pub name: Option<String>,
    /// The rank whose collectives are counted.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "name")]
    pub rank: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

/// Flags of `lower`.
#[derive(Args, Clone, Debug)]
pub struct LowerArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Count the collectives of a rank, and what crosses between pipeline stages, instead of printing the step.
    #[arg(long)]
    pub counts: bool,
    /// How far the step is lowered.
    #[arg(long, value_enum, default_value_t = Stage::Local)]
    pub stage: Stage,
    /// The rank whose step is printed, or whose collectives are counted.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: usize,
    /// Also compute the gradient with respect to the first input with a float type.
    #[arg(long)]
    pub input_gradient: bool,
    /// With `--stage program`: also explain which elementwise ops were not fused with the ops whose results they read, and
    /// into how many chunks the logits are split.
    #[arg(long, conflicts_with = "counts")]
    pub why: bool,
    /// Instead of printing the step, list how many bytes of activations a rank keeps for the backward pass of a microbatch,
    /// and how much work is done again for it: the choices of --activation-limit.
    #[arg(long, conflicts_with_all = ["counts", "stage", "why"])]
    pub kept: bool,
    /// Print the rank's graph after the named passes of lowering; `all` for every pass. `partita opt --list` lists the
    /// names.
    #[arg(long, value_name = "PASS,..", value_delimiter = ',', conflicts_with_all = ["counts", "stage"])]
    pub print_after: Vec<String>,
}

/// Flags of `timetable`.
#[derive(Args, Clone, Debug)]
pub struct TimetableArgs {
    /// The name of a timetable, such as 1f1b, or a file in the CSV format of torch.distributed.pipelining; without it,
    /// all names are listed.
    #[arg(value_name = "NAME|FILE.csv")]
    pub name: Option<String>,
    /// Slices of the mesh along pp, 4 by default; a CSV file has its own number.
    #[arg(long, value_name = "N", requires = "name", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub slices: Option<u32>,
    /// Microbatches of a step, 8 by default; a CSV file has its own number.
    #[arg(long, value_name = "N", requires = "name", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub microbatches: Option<u32>,
    /// Draw the forward passes alone, as inference runs them.
    #[arg(long, requires = "name")]
    pub forward: bool,
    /// Also write the picture to a new SVG file.
    #[arg(long, value_name = "FILE.svg", requires = "name")]
    pub svg: Option<PathBuf>,
    /// Also write the tasks to a new CSV file, which --timetable and PyTorch read.
    #[arg(long, value_name = "FILE.csv", requires = "name")]
    pub csv: Option<PathBuf>,
}

/// Flags of `eval`.
#[derive(Args, Clone, Debug)]
pub struct EvalArgs {
    /// The folder of a run or of one of its checkpoints; or a config, for a checkpoint named by --from.
    #[arg(value_name = "RUN|CONFIG")]
    pub source: String,
    /// The folder of a run or of a checkpoint with the parameters; by default RUN, or the newest run of the config's model.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// Validation batches; by default train.validate_batches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

/// Flags of `generate`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct GenerateArgs {
    /// The folder of a run or of one of its checkpoints; or a config, for a checkpoint named by --from.
    #[arg(value_name = "RUN|CONFIG")]
    pub source: String,
    /// The folder of a run or of a checkpoint with the parameters; by default RUN, or the newest run of the config's model.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// The number of tokens to generate; a token is a byte.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: u32,
    /// Divides the logits: below 1 makes likely tokens likelier; 0 always takes the likeliest.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    pub temperature: f64,
    /// Draw from this many of the likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The mesh, for instance tp=2; by default one rank.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// Set any key of the config: train.kernels=portable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Flags of `export`.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// The folder of a run or of one of its checkpoints, a config, or a plan file.
    #[arg(value_name = "RUN|CONFIG|PLAN")]
    pub source: String,
    /// The format: safetensors for the weights; toml, dict or calls for the plan; xla for the step as a program.
    #[arg(long = "for", value_enum, value_name = "FORM")]
    pub purpose: ExportForm,
    /// With --for xla: who inserts the collectives.
    #[arg(long, value_enum, value_name = "FORM", default_value = "uniform")]
    pub form: XlaForm,
    /// A new file; by default MODEL.safetensors for weights, and standard output for plans. For xla a new folder,
    /// by default MODEL-xla.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The folder of a run or of a checkpoint with the weights; by default RUN. A config alone exports its initial weights.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

/// Flags of `opt`.
#[derive(Args, Clone, Debug)]
pub struct OptArgs {
    /// A file of StableHLO text; `-` reads standard input.
    #[arg(required_unless_present = "list")]
    pub file: Option<PathBuf>,
    /// The passes to run, in the order given: for instance propagate,partition,simplify.
    #[arg(long = "pass", value_name = "NAME,..", value_delimiter = ',')]
    pub passes: Vec<String>,
    /// The mesh, if the text declares none.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// Read the text as the local graph of this many equal ranks.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Print the program after each pass, not only after the last.
    #[arg(long)]
    pub each: bool,
    /// List the passes and what they do.
    #[arg(long)]
    pub list: bool,
}

/// Flags of `run`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// A file of MLIR text: StableHLO, or func, arith, math, tensor, linalg and scf on tensors.
    #[arg(value_name = "FILE.mlir")]
    pub file: PathBuf,
    /// The function; by default main, or the only public one.
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// An argument, in order: numbers with commas between (one number fills a tensor), a .npy file, or a .npz or
    /// .safetensors file with arguments by name. Arguments that are not given are random.
    #[arg(long, value_name = "1,2,3|FILE", allow_hyphen_values = true)]
    pub input: Vec<String>,
    /// The mesh, for instance dp=2.
    #[arg(long, value_name = "AXES", default_value = "dp=1")]
    pub mesh: String,
    /// Seed of random arguments.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

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

/// The runner of a planned step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Runner {
    /// The reference interpreter, on virtual ranks in lock step.
    Interpreter,
    /// The CPU device, as in training.
    Cpu,
}

/// The forms of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PlanForm {
    /// Calls, as Slapo writes schedules.
    #[value(alias = "slapo")]
    Calls,
    /// A TOML table: pattern = style.
    Dict,
    /// A plan file with a TOML table for each line, which keeps its source.
    Toml,
}

/// The forms of `export`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ExportForm {
    /// Weights under their global names, as safetensors.torch.load_file reads them.
    Safetensors,
    /// A plan as calls, in the style of Slapo.
    #[value(alias = "slapo")]
    Calls,
    /// A plan as a TOML table: pattern = style.
    Dict,
    /// A plan as a file with a TOML table for each line, which keeps its source.
    Toml,
    /// The training step as StableHLO with its initial state, its batches and a script that runs it through jaxlib.
    Xla,
}

/// Who partitions a program for XLA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum XlaForm {
    /// Partita: one local program with its collectives, which all ranks run.
    Uniform,
    /// XLA, by the layouts of all values.
    Global,
}

/// The stages of lowering.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stage {
    /// The step as written for one device.
    Global,
    /// With a layout on every value.
    Sharded,
    /// One rank's graph, with its collectives.
    Local,
    /// One rank's instructions, with their memory.
    Program,
}

/// The engines by name.
fn engine() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).map(|name| {
        Engine::ALL.into_iter().find(|engine| engine.name() == name).expect("one of the possible values")
    })
}

/// The kernels of `bench`, which has no config to refuse a name.
fn kernels(text: &str) -> Result<KernelChoice, String> {
    text.parse().map_err(|error: Box<Diagnostic>| match &error.expected {
        Some(known) => format!("{}; there are {known}", error.message),
        None => error.message.clone(),
    })
}

/// A temperature of `generate`.
fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(temperature) if temperature.is_finite() && temperature >= 0.0 => Ok(temperature),
        _ => Err("expected a finite number of at least 0".to_string()),
    }
}

impl GenerateArgs {
    /// The overrides these flags stand for: `--set` last.
    pub fn overrides(&self) -> Vec<String> {
        let mesh = self.mesh.clone().map(|mesh| item("mesh.shape", mesh));
        mesh.into_iter().chain(self.set.iter().cloned()).collect()
    }
}

impl ExplainArgs {
    /// The code of a message, if the name is one.
    pub fn code(&self) -> Option<&str> {
        let asked = self.name.as_ref().unwrap_or(&self.config);
        is_code(asked).then_some(asked)
    }
}

impl Command {
    /// `--log-every`.
    pub fn log_every(&self) -> Option<u64> {
        match self {
            Command::Train(args) => args.log_every,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
