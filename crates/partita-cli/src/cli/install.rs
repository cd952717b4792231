//! Flags of `new`, `env`, `completions` and `man`.

use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

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

/// Flags of `env`.
#[derive(Args, Clone, Debug)]
pub struct EnvArgs {
    /// Look for what is wrong, and run a small step; exit with 1 if something does not work.
    #[arg(long)]
    pub check: bool,
}

/// Flags of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Flags of `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The folder for the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}
