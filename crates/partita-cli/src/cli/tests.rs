//! Tests of flags and of the config keys that they set.

use super::*;
use partita::config::Config;
use partita_base::DType;
use partita_runtime::MemoryLimit;
use std::path::Path;

fn parse(line: &str) -> Command {
    Cli::read(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}")).command
}

/// The config that a command is about, and the overrides of its flags.
fn overridden(line: &str) -> (String, Vec<String>) {
    let (name, overrides) = match parse(line) {
        Command::Train(args) => (args.config.clone(), args.overrides()),
        Command::Verify(args) => (args.config.clone(), args.flags.overrides()),
        Command::Lower(args) => (args.config.clone(), args.flags.overrides()),
        other => panic!("{other:?}"),
    };
    (name, overrides.unwrap())
}

fn config(line: &str) -> Config {
    let (name, overrides) = overridden(line);
    Config::load(&name, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_definition_is_sound() {
    Cli::command_line().debug_assert();
}

#[test]
fn every_flag_reaches_its_key() {
    let config = config(
        "partita train bert --mesh dp=-1,tp=2 --cluster h100-8 --steps 7 --seed 9 --batch 16 --microbatches 4 --dtype f64 \
         --data 1.5 --plan true --sequence-parallel --vocab-parallel --strict --checkpoint-dir out \
         --checkpoint-every 3 --checkpoint-keep 5 --no-sample --memory-limit 8G --verify-limit 1e6 --kernels avx2 \
         --set train.validate_every=2",
    );
    assert_eq!((config.model.name(), config.mesh.as_str()), ("bert", "dp=-1,tp=2"));
    assert_eq!(config.cluster.name, "h100-8");
    let train = &config.train;
    assert_eq!((train.steps, train.seed, train.batch, train.microbatches), (7, 9, 16, 4));
    assert_eq!((train.dtype, train.sample_bytes, train.validate_every), (DType::F64, 0, 2));
    assert_eq!((train.memory_limit, train.verify_limit), (MemoryLimit::Bytes(8 << 30), 1e6));
    assert_eq!(train.kernels, KernelChoice::Avx2);
    // Paths stay paths, whatever they look like.
    assert_eq!(config.data.path.as_deref(), Some(Path::new("1.5")));
    assert_eq!(config.plan.file.as_deref(), Some(Path::new("true")));
    assert!(config.plan.sequence_parallel && config.plan.vocab_parallel && config.plan.strict);
    assert_eq!(config.checkpoint.dir.as_deref(), Some(Path::new("out")));
    assert_eq!((config.checkpoint.every, config.checkpoint.keep), (3, 5));
}

#[test]
fn without_flags_nothing_is_overridden_and_set_wins() {
    assert_eq!(overridden("partita train"), ("gpt".to_string(), Vec::new()));
    assert_eq!(config("partita verify mlp --set train.steps=3 --steps 2").train.steps, 3);
    assert_eq!(config("partita lower mlp --set train.steps=3 --set train.steps=4").train.steps, 4);
}

#[test]
fn strings_with_quotes_and_newlines_survive() {
    let flags = ConfigFlags { data: Some("a \"b\"\\c\n'd'".into()), ..Default::default() };
    let config = Config::load("gpt", &flags.overrides().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.data.path.as_deref(), Some(Path::new("a \"b\"\\c\n'd'")));
}

#[test]
fn resume_takes_a_path_or_none() {
    let resume = |line: &str| match parse(line) {
        Command::Train(args) => args.resume,
        _ => panic!("train"),
    };
    assert_eq!(resume("partita train gpt"), None);
    assert_eq!(resume("partita train gpt --resume"), Some(None));
    assert_eq!(resume("partita train gpt --resume --json"), Some(None));
    assert_eq!(resume("partita train gpt --resume out/step-5"), Some(Some("out/step-5".into())));
}

#[test]
fn json_may_stand_anywhere_and_mistakes_are_usage_errors() {
    for line in ["partita --json env", "partita env --json", "partita train gpt --json"] {
        assert!(Cli::read(line.split_whitespace()).unwrap().json);
    }
    for line in [
        "partita",
        "partita verify",
        "partita show gpt --as yaml",
        "partita train --workers 2 --deterministic",
        "partita lower gpt --stage remote",
        "partita train --steps many",
    ] {
        let error = Cli::read(line.split_whitespace()).map(|_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn the_flag_that_kernels_replaced_says_what_to_write() {
    for line in ["partita train gpt --portable", "partita bench --portable"] {
        let error = Cli::read(line.split_whitespace()).map(|_| ()).unwrap_err();
        let diagnostic = usage_error(error).unwrap_or_else(|error| panic!("{error}"));
        let help = diagnostic.help.as_deref().unwrap_or_default();
        assert!(diagnostic.code == "E033" && help.contains("--kernels portable"), "{diagnostic}");
        let mut command = Cli::command_line();
        let name = line.split_whitespace().nth(1).unwrap();
        let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        assert!(help.contains("--kernels") && !help.contains("--portable"), "{help}");
    }
}

#[test]
fn hidden_flags_parse_but_are_not_shown() {
    let Command::Verify(args) = parse("partita verify gpt --runner cpu --break-rule layers.0.mlp") else {
        panic!("verify")
    };
    assert_eq!((args.runner, args.break_rule.as_deref()), (Some(Runner::Cpu), Some("layers.0.mlp")));
    let mut command = Cli::command_line();
    let help = command.find_subcommand_mut("verify").unwrap().render_long_help().to_string();
    assert!(help.contains("--runner") && !help.contains("break-rule"), "{help}");
}

#[test]
fn help_leaves_out_what_a_command_refuses() {
    let help = |name: &str| {
        let mut commands = Cli::command_line();
        commands.find_subcommand_mut(name).unwrap().render_long_help().to_string()
    };
    assert!(help("train").contains("--steps") && help("train").contains("--data"));
    assert!(!help("profile").contains("--steps <") && help("profile").contains("--data <"));
    assert!(!help("estimate").contains("--mesh <") && help("estimate").contains("--cluster <"));
    let Command::Show(args) = parse("partita show gpt --seed 3") else { panic!("show") };
    assert_eq!(args.flags.seed, Some(3));
}
