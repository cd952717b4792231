//! What a whole run holds in memory is what was planned. One test: it measures its own process.
#![cfg(target_os = "linux")]

mod common;

use clap::Parser;
use common::Place;
use partita::cli::{Cli, Command};
use partita::compile::{self, Build};
use partita::config::Config;
use partita::output::Output;
use partita::play::CpuStep;
use partita::run::Ending;
use partita_ir::Registry;
use partita_runtime::Cpu;
use partita_schedule::Tools;

/// What the process may hold beside the arenas: the text, graphs, tensors on their way, thread stacks.
const BESIDE_BYTES: u64 = 64 << 20;

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a known line");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024
}

/// The arenas of all ranks, of the training step and of the validation step.
fn planned_bytes(config: &Config) -> u64 {
    let mesh = compile::mesh(config).unwrap();
    let build = Build::from_config(config);
    let model = compile::model(config, &build).unwrap();
    let planned = compile::plan_step(config, &model, &mesh, &build).unwrap();
    let quiet = config.model.build(config.train.batch, config.train.dtype, false).unwrap();
    let options = compile::build_options(config, &build);
    let tools = Tools { registry: &Registry::default(), runner: &CpuStep::default() };
    let validation =
        partita_schedule::build_evaluation(&quiet, &planned.plan, &mesh, &options, &tools).unwrap();
    [planned, validation]
        .iter()
        .flat_map(|placed| compile::lower(placed, &Cpu::default()).unwrap().programs)
        .map(|program| (program.arena_bytes * program.ranks.len()) as u64)
        .sum()
}

#[test]
fn a_run_stays_within_its_planned_memory() {
    let place = Place::new();
    let (data, saved) = (place.path("text.txt"), place.path("saved"));
    let line = [
        "partita",
        "train",
        "gpt",
        "--no-verify",
        "--no-sample",
        "--json",
        "--mesh",
        "dp=2,tp=2",
        "--steps",
        "3",
        "--batch",
        "96",
        "--set",
        "train.validate_batches=1",
        "--data",
        data.to_str().unwrap(),
        "--checkpoint-dir",
        saved.to_str().unwrap(),
    ];
    let cli = Cli::parse_from(line);
    let (name, overrides) = cli.command.config().unwrap();
    let config = Config::load(name, &overrides.unwrap()).unwrap();
    let Command::Train(arguments) = &cli.command else { panic!("train") };

    let before = status_bytes("VmRSS");
    let mut output = Output::to(Box::new(std::io::sink()), Box::new(std::io::sink()), true, None);
    assert_eq!(partita::commands::train::train(arguments, &config, &mut output).unwrap(), Ending::Done);
    let held = status_bytes("VmHWM") - before;

    let planned = planned_bytes(&config);
    let mib = |bytes: u64| bytes >> 20;
    println!("planned {} MiB, held {} MiB", mib(planned), mib(held));
    // Enough that holding anything large twice would show.
    assert!(planned > 2 * BESIDE_BYTES, "{} MiB", mib(planned));
    assert!(held <= planned + BESIDE_BYTES, "held {} MiB, planned {} MiB", mib(held), mib(planned));
    // And the measurement sees the arenas.
    assert!(held >= planned / 2, "held {} MiB, planned {} MiB", mib(held), mib(planned));
}
