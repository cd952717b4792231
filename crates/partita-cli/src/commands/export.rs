//! `partita export`: weights, plans and steps in the forms of other programs.

use crate::command::{Application, Command, ConfigFlags, Unread, of_no_run};
use crate::commands::saved::Source;
use crate::commands::show::{PlanForm, plan_text};
use crate::files::{fill_new_folder, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::bytes;
use crate::run::{Ending, answer};
use clap::{Args, ValueEnum};
use indexmap::IndexMap;
use partita::Session;
use partita::execution::tensor_data;
use partita::xla::{self, Form};
use partita_base::{Diagnostic, Result};
use partita_nn::Model;
use partita_runtime::checkpoint::{TensorData, export_weights};
use partita_schedule::Plan;
use serde::Serialize;
use std::path::PathBuf;

/// `export` with a plan file reads no key.
const OF_A_PLAN_FILE: Unread = of_no_run(&[("", "the plan is converted as it is, without a model")]);

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

impl Command for ExportArgs {
    const NAME: &'static str = "export";
    const ABOUT: &'static str = "Write the weights of a run, or a plan, in another format";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        export(self, output)?;
        Ok(Ending::Done)
    }
}

/// A file of weights that was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Exported {
    /// The file.
    pub file: String,
    /// Tensors in it.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
    /// The checkpoint that they come from; `None` for initial values.
    pub checkpoint: Option<String>,
}

impl Event for Exported {
    const NAME: &'static str = "export";
}

/// Runs the command.
///
/// # Errors
/// E038 for a form that the source does not have, E275 and E276 for a step that XLA cannot run, E311 to E314 for a
/// checkpoint that is not there or does not fit, E043 and E316 for a file that exists or cannot be written.
fn export(args: &ExportArgs, output: &mut Output) -> Result<()> {
    let form = match args.purpose {
        ExportForm::Safetensors => return export_model(args, output),
        ExportForm::Xla => return export_step(args, output),
        ExportForm::Calls => PlanForm::Calls,
        ExportForm::Dict => PlanForm::Dict,
        ExportForm::Toml => PlanForm::Toml,
    };
    let text = plan_text(&plan(args)?, form);
    match &args.out {
        None => output.text(text),
        Some(path) => write_new(path, "the plan", "--out", |file| file.write_all(text.as_bytes()))?,
    }
    Ok(())
}

/// The plan of a plan file, or that of a run or a config.
fn plan(args: &ExportArgs) -> Result<Plan> {
    if let Some(text) = plan_file(&args.source) {
        args.flags.refuse("export", OF_A_PLAN_FILE)?;
        return Plan::parse(&text, &args.source);
    }
    let Source { session, .. } = Source::open(&args.source, args.from.as_deref(), &args.flags.overrides()?)?;
    session.plan(&session.model()?)
}

/// The text of a file that is no config: one without a section `[model]`.
pub(super) fn plan_file(name: &str) -> Option<String> {
    let text = partita_base::read_text(name).ok()?;
    let is_config = text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("model"));
    (!is_config).then_some(text)
}

/// Writes the parameters of a run, or the initial ones of a config.
fn export_model(args: &ExportArgs, output: &mut Output) -> Result<()> {
    if plan_file(&args.source).is_some() {
        return Err(Diagnostic::new("E038", "a plan has no weights")
            .at("--for safetensors")
            .expected("the folder of a run, or a config")
            .found(args.source.clone())
            .help("a plan is exported with --for toml, dict or calls"));
    }
    let Source { session, saved } =
        Source::open(&args.source, args.from.as_deref(), &args.flags.overrides()?)?;
    session.check_sizes(1)?;
    let model = session.model()?;
    asks_for_values(&session, &model)?;
    let mut weights: IndexMap<String, TensorData> = output.during("the weights", || match &saved {
        None => {
            let initial = model.initial(session.config().train.seed)?;
            Ok(initial.into_iter().map(|(name, value)| (name, tensor_data(&value))).collect())
        }
        Some(saved) => saved.weights(&model),
    })?;
    // Tied parameters under all their names, as `load_state_dict` wants them.
    for (alias, of) in &model.ties {
        if let Some(tensor) = weights.get(of).cloned() {
            weights.insert(alias.clone(), tensor);
        }
    }
    let name = session.config().model.name();
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.safetensors")));
    output.during("writing them", || export_weights(&path, &weights))?;
    let exported = Exported {
        file: path.display().to_string(),
        tensors: weights.len(),
        bytes: weights.values().map(|tensor| tensor.bytes.len() as u64).sum(),
        checkpoint: saved.map(|saved| saved.path.display().to_string()),
    };
    answer(&exported, Exported::text, output);
    Ok(())
}

/// E040 if the values of a model's parameters and states do not fit into memory.
fn asks_for_values(session: &Session, model: &Model) -> Result<()> {
    let bytes: u64 = model.kept().map(|(_, spec)| spec.ty.bytes() as u64).sum();
    session.config().train.memory_limit.request(bytes, "the values of the model")
}

/// Writes the step of a config as a folder that a script runs.
fn export_step(args: &ExportArgs, output: &mut Output) -> Result<()> {
    if plan_file(&args.source).is_some() {
        return Err(Diagnostic::new("E038", "a plan has no step")
            .at("--for xla")
            .expected("a config, or the folder of a run")
            .found(format!("the plan {}", args.source)));
    }
    let Source { session, saved } =
        Source::open(&args.source, args.from.as_deref(), &args.flags.overrides()?)?;
    let form = match args.form {
        XlaForm::Uniform => Form::Uniform,
        XlaForm::Global => Form::Global,
    };
    asks_for_values(&session, &session.model()?)?;
    let step = output.during("the step", || xla::export(&session, form, saved.as_ref()))?;
    let folder = args.out.clone().unwrap_or_else(|| format!("{}-xla", session.config().model.name()).into());
    output.during("writing it", || {
        fill_new_folder(&folder, "the folder of the step", "--out", |made| step.write(made))
    })?;
    let exported = Exported {
        file: folder.display().to_string(),
        tensors: step.state.len(),
        bytes: step.state.values().map(|tensor| tensor.bytes.len() as u64).sum(),
        checkpoint: saved.map(|saved| saved.path.display().to_string()),
    };
    answer(&exported, Exported::text, output);
    Ok(())
}

impl Exported {
    /// The result for people.
    pub fn text(&self) -> String {
        let from =
            self.checkpoint.as_ref().map_or("initial values".to_string(), |path| format!("from {path}"));
        format!("{}: {} tensors, {}, {from}", self.file, self.tensors, bytes(self.bytes))
    }
}
