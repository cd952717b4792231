//! `partita opt`: named passes on a program in text.

use crate::cli::OptArgs;
use partita::opt::{OptOptions, Unit, passes};
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_runtime::Cpu;
use std::io::Read;
use std::path::Path;

/// Runs the passes of the arguments, between which choices of lowering such as `prefetch=false` may stand; what is to be
/// printed.
///
/// # Errors
/// E005 for a file that cannot be read, E017 for a pass that cannot run, and what reading and the passes find.
pub fn opt(args: &OptArgs) -> Result<String> {
    let Some(file) = args.file.as_ref().filter(|_| !args.list) else {
        let passes = passes();
        let width = passes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let line = |(name, about): &(&str, &str)| format!("{name:width$}  {about}\n");
        let list: String = [("pass", "what it does")].iter().chain(&passes).map(line).collect();
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
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(file),
    };
    text.map_err(|error| {
        Diagnostic::new("E005", format!("cannot read `{}`", file.display()))
            .expected("a file of StableHLO text")
            .found(error.to_string())
    })
}
