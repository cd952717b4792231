//! `partita new DIR`: a folder to begin from, with a config, a plan and the commands that use them.

use crate::command::{Application, Command};
use crate::files::write_new;
use crate::output::Output;
use crate::run::Ending;
use clap::Args;
use partita::config::bundled;
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use std::path::{Path, PathBuf};

/// Flags of `new`.
#[derive(Args, Clone, Debug)]
pub struct NewArgs {
    /// The folder that is made.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The bundled config to begin from: mlp, gpt, llama, bert, moe-gpt, mixtral, deepseek, wide-resnet, vit, unet or t5.
    #[arg(long, value_name = "NAME", default_value = "gpt")]
    pub model: String,
}

impl Command for NewArgs {
    const NAME: &'static str = "new";
    const ABOUT: &'static str =
        "Make a folder to begin from: a config, a plan and the commands that use them";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        new(self, output)?;
        Ok(Ending::Done)
    }
}

/// The mesh for which the plan is written.
const MESH: &str = "dp=2,tp=2";

/// Runs the command.
///
/// # Errors
/// E005 for a model that is not bundled; E043 if the folder exists or cannot be made.
fn new(args: &NewArgs, output: &mut Output) -> Result<()> {
    let config = bundled(&args.model)?;
    let session = Session::load(&args.model, &[format!("mesh.shape={MESH}")])?;
    let plan = session.plan(&session.model()?)?.to_dict_toml();
    let folder = &args.folder;
    std::fs::create_dir(folder).map_err(|error| {
        Diagnostic::new("E043", "the folder cannot be made")
            .at(folder.display().to_string())
            .expected("a new name in an existing folder")
            .found(error.to_string())
            .help("choose another name: what is in a folder is never overwritten")
    })?;
    let write = |name: &str, text: &str| {
        let path: &Path = &folder.join(name);
        write_new(path, "the file", "DIR", |file| file.write_all(text.as_bytes()))
    };
    write("config.toml", &configured(config))?;
    write(
        "plan.toml",
        &format!(
            "# For meshes with dp and tp. `partita show config.toml --as dict` prints the plan in use.\n{plan}"
        ),
    )?;
    write("run.sh", &script())?;
    output.note(format!(
        "{} has config.toml, plan.toml and run.sh; begin with: cd {} && sh run.sh",
        folder.display(),
        folder.display()
    ));
    Ok(())
}

/// The bundled config with what a user changes first.
fn configured(bundled: &str) -> String {
    let mesh = bundled.find("[mesh]").unwrap_or(bundled.len());
    format!(
        "# `partita show --keys` lists every key with its meaning and default.\n{}[mesh]\nshape = \"{MESH}\"\n\n\
         # [data]\n# path = \"books\"          # a file or folder of text; the bundled text otherwise\n\n\
         [checkpoint]\nevery = 100\n",
        &bundled[..mesh]
    )
}

/// The commands, in the order in which a plan is made.
fn script() -> String {
    let line = |command: &str, about: &str| format!("# {about}\npartita {command}\n");
    format!(
        "#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\n{}{}{}{}",
        line("verify config.toml --plan plan.toml", "The sharded step gives the numbers of one device."),
        line(
            "explain config.toml --plan plan.toml",
            "Every collective, and the line of the plan that causes it."
        ),
        line("simulate config.toml --plan plan.toml", "Predicted time and memory."),
        line("train config.toml --plan plan.toml", "Trains, and saves to runs/.")
    )
}
