//! The `partita` command.
#![forbid(unsafe_code)]

use partita_runtime::Allocator;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::new();

fn main() -> ExitCode {
    partita_cli::main()
}
