//! `partita report`: a page about a step, a run, or two runs.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread};
use crate::commands::export::plan_file;
use crate::commands::profile::OF_PROFILE;
use crate::commands::saved::Source;
use crate::commands::simulate::note_on_devices;
use crate::files::{check_new, write_new};
use crate::output::Output;
use crate::run::Ending;
use clap::{Args, ValueEnum};
use partita::profile::{self, Cycle};
use partita::report::{self, Measured, Run};
use partita_base::{Diagnostic, Result};
use std::path::{Path, PathBuf};

/// Flags of `report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// A config file or a bundled config; the folder of a run, whose logs (*.jsonl) are drawn; or a plan file.
    #[arg(default_value = "gpt", value_name = "RUN|CONFIG|PLAN")]
    pub source: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// With a plan file: the config of the model that it plans.
    #[arg(long, value_name = "CONFIG")]
    pub model: Option<String>,
    /// Put another run, or config, beside it.
    #[arg(long, value_name = "RUN|CONFIG")]
    pub against: Option<String>,
    /// The new file that is written.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The form of the file; by default that of its name's end, .html, .md or .json.
    #[arg(long, value_enum, value_name = "FORM")]
    pub format: Option<ReportForm>,
    /// Also run some steps here, and show them beside the prediction.
    #[arg(long)]
    pub measured: bool,
    /// With --measured: the steps that are recorded, by default wait=1,warmup=1,active=3,repeat=1.
    #[arg(long, value_name = "COUNTS", requires = "measured", default_value = "")]
    pub cycle: String,
    /// A log of `partita train`, by --metrics or --json, whose losses are drawn; several logs are compared.
    #[arg(long, value_name = "LOG")]
    pub losses: Vec<PathBuf>,
}

/// The form of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReportForm {
    /// A page for a browser, which needs nothing else.
    Html,
    /// Markdown.
    Md,
    /// JSON.
    Json,
}

impl Command for ReportArgs {
    const NAME: &'static str = "report";
    const ABOUT: &'static str =
        "Write a page about a step: mesh, timeline, memory, communication, roofline, plan";

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, if self.measured { OF_PROFILE } else { OF_A_STEP }))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        report(self, output)?;
        Ok(Ending::Done)
    }
}

/// Runs the command.
///
/// # Errors
/// E043 for a file that cannot be written, E033 for a name that does not say its form and a plan without its model, E531 for
/// a log without losses; what building, lowering, simulating and running refuse.
fn report(args: &ReportArgs, output: &mut Output) -> Result<()> {
    let form = form(args)?;
    check_new(&args.out, "the report", "--out")?;
    let cycle = Cycle::parse(&args.cycle)?;
    let (config, overrides) = config(args)?;
    let run = open(config, &overrides, output)?;
    let mut logs = args.losses.iter().map(|path| report::log(path)).collect::<Result<Vec<_>>>()?;
    let session = run.session.clone();
    // A config alone is no run: it has a column only beside another.
    let is_run = run.steps.is_some() || args.against.is_some();
    let mut runs = if is_run { vec![run] } else { Vec::new() };
    if let Some(other) = &args.against {
        runs.push(open(other, &[], output)?);
    }
    logs.extend(runs.iter().flat_map(|run| run.logs.clone()));
    let profiled = match args.measured {
        true => Some(output.during("running steps", || profile::profile(&session, cycle, &mut |_, _| {}))?),
        false => None,
    };
    let of_price = session.config().notes_on_price(session.mesh().rank_count());
    of_price.into_iter().chain(note_on_devices(&args.flags, &session)).for_each(|note| output.note(note));
    let measured = Measured { profiled: profiled.as_ref(), logs, runs };
    let report = output.during("writing the report", || report::report(&session, &measured))?;
    let text = match form {
        ReportForm::Html => report.html(),
        ReportForm::Md => report.markdown(),
        ReportForm::Json => report.json(),
    };
    write_new(&args.out, "the report", "--out", |file| file.write_all(text.as_bytes()))?;
    output.note(format!("the report is in {}", args.out.display()));
    Ok(())
}

/// The config that is reported, and its overrides: of a plan file, that of --model with this plan.
fn config(args: &ReportArgs) -> Result<(&str, Vec<String>)> {
    let mut overrides = args.flags.overrides()?;
    let is_plan = plan_file(&args.source).is_some_and(|_| args.source.ends_with(".toml"));
    match (&args.model, is_plan) {
        (Some(model), true) => {
            overrides.insert(0, format!("plan.file={}", toml::Value::from(args.source.as_str())));
            Ok((model, overrides))
        }
        (None, true) => Err(Diagnostic::new("E033", "a plan file does not say which model it plans")
            .at(args.source.clone())
            .expected("--model with a config, such as --model gpt")
            .found("a plan alone")
            .help(format!("partita report {} --model gpt --out {}", args.source, args.out.display()))),
        (Some(_), false) if args.source.ends_with(".toml") && !Path::new(&args.source).exists() => {
            Err(Diagnostic::new("E005", "there is no such plan file")
                .at(args.source.clone())
                .expected("a plan file, such as `partita plan --out` writes")
                .help("`partita export CONFIG --for toml --out plan.toml` writes the plan of a config"))
        }
        (Some(model), false) => {
            Err(Diagnostic::new("E033", "only a plan file is reported for a model of another config")
                .at("--model")
                .expected("a plan file in the place of the config")
                .found(format!("--model {model} with `{}`", args.source))
                .help("leave --model away"))
        }
        (None, false) => Ok((&args.source, overrides)),
    }
}

/// A run with its logs, or a config without.
fn open(name: &str, overrides: &[String], output: &mut Output) -> Result<Run> {
    let Source { session, saved } = Source::open(name, None, overrides)?;
    for note in &session.config().notes {
        output.waiting(note);
    }
    let folder = saved.as_ref().map(|_| Path::new(name));
    Ok(Run {
        name: name.to_string(),
        session,
        steps: saved.as_ref().map(|saved| saved.step()),
        logs: folder.map(report::logs).transpose()?.unwrap_or_default(),
    })
}

/// The form of --format, or that of the file's name.
fn form(args: &ReportArgs) -> Result<ReportForm> {
    let end = args.out.extension().and_then(|end| end.to_str()).unwrap_or_default().to_ascii_lowercase();
    match (args.format, end.as_str()) {
        (Some(form), _) => Ok(form),
        (None, "html" | "htm") => Ok(ReportForm::Html),
        (None, "md") => Ok(ReportForm::Md),
        (None, "json") => Ok(ReportForm::Json),
        _ => Err(Diagnostic::new("E033", "the form of the report is not known")
            .at("--out")
            .expected("a name that ends in .html, .md or .json")
            .found(args.out.display().to_string())
            .help("say it with --format html, md or json")),
    }
}
