//! Tests of the list of commands, of their flags and of the config keys that these set.

use super::lower::LowerArgs;
use super::show::ShowArgs;
use super::train::TrainArgs;
use super::verify::{Runner, VerifyArgs};
use super::*;
use crate::cli::{Cli, usage_error};
use crate::command::{Application, Command, ConfigFlags};
use crate::output::Output;
use partita::config::Config;
use partita::engines::{Engine, EngineState, EngineTrainer, Engines, TrainingRun};
use partita::session::Session;
use partita::trainer::Observer;
use partita_base::{DType, Diagnostic};
use partita_runtime::{KernelChoice, MemoryLimit};
use std::path::Path;

fn application() -> Application {
    crate::application(Engines::bundled())
}

fn command_line() -> clap::Command {
    application().command_line()
}

fn read(line: &str) -> Result<Cli, clap::Error> {
    application().read(line.split_whitespace())
}

/// The arguments of a command.
fn parse<C: Command>(line: &str) -> C {
    let matches = command_line().try_get_matches_from(line.split_whitespace());
    let matches = matches.unwrap_or_else(|error| panic!("{error}"));
    let (name, arguments) = matches.subcommand().unwrap();
    assert_eq!(name, C::NAME);
    C::from_arg_matches(arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// The config that a command is about, and the overrides of its flags.
fn overridden(line: &str) -> (String, Vec<String>) {
    let (name, overrides) = match line.split_whitespace().nth(1) {
        Some("train") => {
            let args: TrainArgs = parse(line);
            (args.config.clone(), args.overrides())
        }
        Some("verify") => {
            let args: VerifyArgs = parse(line);
            (args.config.clone(), args.flags.overrides())
        }
        _ => {
            let args: LowerArgs = parse(line);
            (args.config.clone(), args.flags.overrides())
        }
    };
    (name, overrides.unwrap())
}

fn config(line: &str) -> Config {
    let (name, overrides) = overridden(line);
    Config::load(&name, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_definition_is_sound() {
    command_line().debug_assert();
    application().definition().debug_assert();
}

/// What `partita completions` prints for a shell.
fn completions(shell: &str) -> String {
    let mut text = Vec::new();
    let shell: clap_complete::Shell = shell.parse().unwrap();
    clap_complete::generate(shell, &mut command_line(), "partita", &mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn every_row_is_in_help_in_completions_and_in_the_manual() {
    let help = command_line().render_long_help().to_string();
    let (bash, fish) = (completions("bash"), completions("fish"));
    let mut names = Vec::new();
    for row in COMMANDS {
        let Row { name, about, .. } = *row;
        assert!(!name.is_empty() && !names.contains(&name), "{name} is a name of its own");
        names.push(name);
        assert!(!about.is_empty() && !about.ends_with('.'), "{name}: {about}");
        let first: String = about.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        let line = help.lines().find(|line| line.split_whitespace().next() == Some(name));
        assert!(line.is_some_and(|line| line.contains(&first)), "{name}: {help}");
        assert!(bash.contains(&format!("partita,{name})")), "{name} in bash");
        assert!(fish.contains(&format!("-a \"{name}\"")), "{name} in fish");
        let of_command = row.definition(&application()).render_long_help().to_string();
        assert!(of_command.contains(&first) && !of_command.contains("Flags of `"), "{of_command}");
    }
    let mut listed: Vec<String> =
        command_line().get_subcommands().map(|command| command.get_name().to_string()).collect();
    names.sort_unstable();
    listed.sort_unstable();
    assert_eq!(names, listed);
}

/// An engine that another program brings.
#[derive(Debug)]
struct Abacus;

impl Engine for Abacus {
    fn name(&self) -> &'static str {
        "abacus"
    }

    fn about(&self) -> &'static str {
        "beads on wires"
    }

    fn state(&self) -> EngineState {
        EngineState { name: self.name(), ready: true, about: "13 wires".to_string(), plugins: Vec::new() }
    }

    fn devices(&self) -> Option<usize> {
        Some(4)
    }

    fn check(&self, _: &Session) -> partita_base::Result<()> {
        Err(Diagnostic::new("E060", "the engine abacus cannot run this: nobody counts"))
    }

    fn trainer(&self, _: &TrainingRun, _: &mut dyn Observer) -> partita_base::Result<Box<dyn EngineTrainer>> {
        unreachable!("it refuses every session")
    }
}

#[test]
fn an_engine_of_the_program_is_in_help_in_env_and_trains() {
    let application = crate::application(Engines::bundled().with(Abacus));
    let mut commands = application.command_line();
    let help = commands.find_subcommand_mut("train").unwrap().render_help().to_string();
    assert!(
        help.contains(
            "XLA through a PJRT plugin or jaxlib; abacus, beads on wires [possible values: native, mpi, xla, abacus]"
        ),
        "{help}"
    );
    let found = env::Environment::detect(&application.engines).text();
    assert!(found.contains("\n          abacus  13 wires\n"), "{found}");
    let cli = application.read(["partita", "train", "mlp", "--engine", "abacus"]);
    let cli = cli.unwrap_or_else(|error| panic!("{error}"));
    let error = cli.command.call(&application, &mut Output::silent(false)).unwrap_err();
    assert_eq!(error.message, "the engine abacus cannot run this: nobody counts");
    assert!(read("partita train mlp --engine abacus").is_err());
}

#[test]
fn the_mesh_of_a_bundled_config_fits_the_devices_unless_the_user_chooses_one() {
    let mesh = |config: &str, items: &[&str]| {
        let items: Vec<String> = items.iter().map(|item| item.to_string()).collect();
        train::mesh_of_devices(config, &items, &Abacus)
    };
    assert_eq!(mesh("gpt", &["train.steps=5"]).as_deref(), Some("mesh.shape=dp=4"));
    assert_eq!(mesh("gpt", &["mesh.shape=tp=2"]), None);
    assert_eq!(mesh("gpt", &["plan.file=\"auto\""]), None);
    assert_eq!(mesh("gpt.toml", &[]), None);
    assert_eq!(train::mesh_of_devices("gpt", &[], &partita::engines::native::Native), None);
}

#[derive(clap::Args)]
struct Greet {
    #[arg(long)]
    whom: String,
}

impl Command for Greet {
    const NAME: &'static str = "greet";
    const ABOUT: &'static str = "Greet somebody";

    fn run(&self, _: &Application, output: &mut Output) -> partita_base::Result<crate::run::Ending> {
        output.note(format!("hello {}", self.whom));
        Ok(crate::run::Ending::Done)
    }
}

/// A struct and a row suffice for a command of another program.
#[test]
fn a_program_may_have_other_commands() {
    let application = Application { commands: const { &[row::<Greet>()] }, ..application() };
    let cli =
        application.read(["partita", "greet", "--whom", "you"]).unwrap_or_else(|error| panic!("{error}"));
    let mut output = Output::silent(cli.json);
    assert_eq!(cli.command.call(&application, &mut output).unwrap(), crate::run::Ending::Done);
    assert!(application.read(["partita", "train"]).is_err());
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
    let resume = |line: &str| parse::<TrainArgs>(line).resume;
    assert_eq!(resume("partita train gpt"), None);
    assert_eq!(resume("partita train gpt --resume"), Some(None));
    assert_eq!(resume("partita train gpt --resume --json"), Some(None));
    assert_eq!(resume("partita train gpt --resume out/step-5"), Some(Some("out/step-5".into())));
}

#[test]
fn json_may_stand_anywhere_and_mistakes_are_usage_errors() {
    for line in ["partita --json env", "partita env --json", "partita train gpt --json"] {
        assert!(read(line).unwrap().json);
    }
    for line in [
        "partita",
        "partita verify",
        "partita show gpt --as yaml",
        "partita train --workers 2 --deterministic",
        "partita lower gpt --stage remote",
        "partita train --steps many",
    ] {
        let error = read(line).map(|_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn the_flag_that_kernels_replaced_says_what_to_write() {
    for line in ["partita train gpt --portable", "partita bench --portable"] {
        let error = read(line).map(|_| ()).unwrap_err();
        let diagnostic = usage_error(error).unwrap_or_else(|error| panic!("{error}"));
        let help = diagnostic.help.as_deref().unwrap_or_default();
        assert!(diagnostic.code == "E033" && help.contains("--kernels portable"), "{diagnostic}");
        let mut command = command_line();
        let name = line.split_whitespace().nth(1).unwrap();
        let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        assert!(help.contains("--kernels") && !help.contains("--portable"), "{help}");
    }
}

#[test]
fn hidden_flags_parse_but_are_not_shown() {
    let args: VerifyArgs = parse("partita verify gpt --runner cpu --break-rule layers.0.mlp");
    assert_eq!((args.runner, args.break_rule.as_deref()), (Some(Runner::Cpu), Some("layers.0.mlp")));
    let mut command = command_line();
    let help = command.find_subcommand_mut("verify").unwrap().render_long_help().to_string();
    assert!(help.contains("--runner") && !help.contains("break-rule"), "{help}");
}

#[test]
fn help_leaves_out_what_a_command_refuses() {
    let help = |name: &str| {
        let mut commands = command_line();
        commands.find_subcommand_mut(name).unwrap().render_long_help().to_string()
    };
    assert!(help("train").contains("--steps") && help("train").contains("--data"));
    assert!(!help("profile").contains("--steps <") && help("profile").contains("--data <"));
    assert!(!help("estimate").contains("--mesh <") && help("estimate").contains("--cluster <"));
    let args: ShowArgs = parse("partita show gpt --seed 3");
    assert_eq!(args.flags.seed, Some(3));
}
