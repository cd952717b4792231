//! `partita opt`: named passes on a program in text.

use crate::command::{Application, Command};
use crate::output::Output;
use crate::run::Ending;
use clap::Args;
use partita::opt::{OptOptions, Unit, passes};
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_runtime::Cpu;
use std::path::{Path, PathBuf};

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

impl Command for OptArgs {
    const NAME: &'static str = "opt";
    const ABOUT: &'static str = "Run named passes on a program in StableHLO text and print it";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        output.text(opt(self)?);
        Ok(Ending::Done)
    }
}

/// Runs the passes of the arguments, between which choices of lowering such as `prefetch=false` may stand; what is to be
/// printed.
///
/// # Errors
/// E005 for a file that cannot be read, E017 for a pass that cannot run, and what reading and the passes find.
fn opt(args: &OptArgs) -> Result<String> {
    let Some(file) = args.file.as_ref().filter(|_| !args.list) else {
        let passes = passes();
        let width = passes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let line = |(name, about): &(String, String)| format!("{name:width$}  {about}\n");
        let head = ("pass".to_string(), "what it does".to_string());
        let list: String = [head].iter().chain(&passes).map(line).collect();
        return Ok(list + "..NAME stands for all passes of lowering from the first to NAME.\n");
    };
    let mesh = args.mesh.as_ref().map(|mesh| Mesh::parse(mesh, None)).transpose()?;
    let mut options = OptOptions { mesh, ranks: args.ranks, ..OptOptions::default() };
    let mut unit = Unit::read(&read(file)?, &file.display().to_string(), &options)?;
    let mut printed = String::new();
    for item in &args.passes {
        if options.set(item)? {
            continue;
        }
        unit = unit.run(item, &options, &Cpu::default())?;
        if args.each {
            printed += &format!("// after {item}\n{}\n", unit.print().trim_end());
        }
    }
    Ok(if args.each && !args.passes.is_empty() { printed } else { unit.print() })
}

fn read(file: &Path) -> Result<String> {
    let text = match file.to_str() {
        Some("-") => partita_base::read_text_from(std::io::stdin()),
        _ => partita_base::read_text(file),
    };
    text.map_err(|error| {
        Diagnostic::new("E005", format!("cannot read `{}`", file.display()))
            .expected("a file of StableHLO text")
            .found(error.to_string())
    })
}
