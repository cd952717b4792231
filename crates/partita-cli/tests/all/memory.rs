//! A whole run holds in memory what was planned.
#![cfg(target_os = "linux")]

use clap::FromArgMatches;
use partita::Session;
use partita::engines::Engines;
use partita_cli::commands::train::TrainArgs;
use partita_cli::output::Output;
use partita_cli::run::Ending;
use partita_schedule::StepKind;

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
fn planned_bytes(session: &Session) -> u64 {
    let model = session.model().unwrap();
    let built = session.build_model(&model).unwrap();
    let validation = session.build_part(&model, &built.plan, StepKind::Loss).unwrap();
    [built, validation]
        .iter()
        .flat_map(|placed| session.lower(placed).unwrap().programs)
        .map(|program| (program.arena_bytes * program.ranks.len()) as u64)
        .sum()
}

/// The memory of a process is measured in a process that does nothing else.
#[test]
fn a_run_stays_within_its_planned_memory() {
    let program = std::env::current_exe().unwrap();
    let arguments =
        ["memory::this_process_stays_within_its_planned_memory", "--exact", "--ignored", "--nocapture"];
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("1 passed") && printed.contains("planned "), "{printed}");
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn this_process_stays_within_its_planned_memory() {
    let place = crate::place();
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
    let application = partita_cli::application(Engines::bundled());
    let cli = application.read(line).unwrap_or_else(|error| panic!("{error}"));
    let matches = application.command_line().get_matches_from(line);
    let arguments = TrainArgs::from_arg_matches(matches.subcommand().unwrap().1).unwrap();
    let session = Session::load(&arguments.config, &arguments.overrides().unwrap()).unwrap();

    let before = status_bytes("VmRSS");
    let mut output = Output::to(Box::new(std::io::sink()), Box::new(std::io::sink()), true);
    assert_eq!(cli.command.call(&application, &mut output).unwrap(), Ending::Done);
    let held = status_bytes("VmHWM") - before;

    let planned = planned_bytes(&session);
    let mib = |bytes: u64| bytes >> 20;
    println!("planned {} MiB, held {} MiB", mib(planned), mib(held));
    // Enough that holding anything large twice would show.
    assert!(planned > 2 * BESIDE_BYTES, "{} MiB", mib(planned));
    assert!(held <= planned + BESIDE_BYTES, "held {} MiB, planned {} MiB", mib(held), mib(planned));
    // And the measurement sees the arenas.
    assert!(held >= planned / 2, "held {} MiB, planned {} MiB", mib(held), mib(planned));
}
