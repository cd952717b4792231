//! `partita report`: a page about a step.

use crate::cli::{ReportArgs, ReportForm};
use crate::files::{check_new, write_new};
use crate::output::Output;
use partita::profile::{self, Cycle};
use partita::report::{self, Measured};
use partita::session::Session;
use partita_base::{Diagnostic, Result};

/// Runs the command.
///
/// # Errors
/// E043 for a file that cannot be written, E033 for a name that does not say its form, E531 for a log without losses; what
/// building, lowering, simulating and running refuse.
pub fn report(args: &ReportArgs, session: &Session, output: &mut Output) -> Result<()> {
    let form = form(args)?;
    check_new(&args.out, "the report", "--out")?;
    let cycle = Cycle::parse(&args.cycle)?;
    let name = |path: &std::path::PathBuf| path.display().to_string();
    let losses =
        args.losses.iter().map(|path| Ok((name(path), report::losses(path)?))).collect::<Result<_>>()?;
    let profiled = match args.measured {
        true => Some(output.during("running steps", || profile::profile(session, cycle, &mut |_, _| {}))?),
        false => None,
    };
    let measured = Measured { profiled: profiled.as_ref(), losses };
    let report = output.during("writing the report", || report::report(session, &measured))?;
    let text = match form {
        ReportForm::Html => report.html(),
        ReportForm::Md => report.markdown(),
        ReportForm::Json => report.json(),
    };
    write_new(&args.out, "the report", "--out", |file| file.write_all(text.as_bytes()))?;
    output.note(format!("the report is in {}", args.out.display()));
    Ok(())
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
