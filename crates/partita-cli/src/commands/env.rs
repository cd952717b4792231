//! `partita env`: the build, the machine, and what a run would find on it.

pub mod check;

use crate::command::{Application, Command};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::bytes;
use crate::run::{Ending, answer};
use check::Checks;
use clap::Args;
use indexmap::IndexMap;
use partita::engines::{Engine, EngineState, Engines};
use partita::feeds::bundled_corpus;
use partita::launcher::Place;
use partita::xla::plugins::PluginState;
use partita_base::Result;
use partita_runtime::{KernelChoice, KernelOptions, Machine};
use serde::Serialize;
use std::collections::BTreeMap;

/// Flags of `env`.
#[derive(Args, Clone, Debug)]
pub struct EnvArgs {
    /// Look for what is wrong, and run a small step; exit with 1 if something does not work.
    #[arg(long)]
    pub check: bool,
}

impl Command for EnvArgs {
    const NAME: &'static str = "env";
    const ABOUT: &'static str =
        "Describe this build and this machine; with --check, say what is wrong with it";

    fn run(&self, application: &Application, output: &mut Output) -> Result<Ending> {
        let environment = Environment::detect(&application.engines);
        if !self.check {
            answer(&environment, Environment::text, output);
            return Ok(Ending::Done);
        }
        let checks = Checks::run(&environment, output);
        answer(&checks, Checks::text, output);
        Ok(if checks.ok { Ending::Done } else { Ending::CheckFailed })
    }
}

/// Variables beside [`Place::variables`] by which launchers tell a process its place.
const MORE_VARIABLES: &[&str] = &["LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// The report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Environment {
    /// Partita's version.
    pub version: String,
    /// The oldest compiler it can be built with, and the toolchain it was built with, where the build knew.
    pub rustc: String,
    /// Whether the build is optimised.
    pub optimised: bool,
    /// Operating system.
    pub os: String,
    /// Instruction set.
    pub arch: String,
    /// The processor's name, where the system tells.
    pub cpu: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    /// The levels of `--kernels` that this machine can run, the slowest first.
    pub kernels: Vec<String>,
    /// The meaning of `native`: its vectors, and with it `jit` and `amx` where it has them.
    pub features: Vec<String>,
    /// Memory this process may use, in bytes: the machine's, or a smaller limit of the container.
    pub memory_bytes: Option<u64>,
    /// The text without `--data`.
    pub data: String,
    /// The engines.
    pub engines: Vec<EngineState>,
    /// The launcher that started this process, and its place.
    pub launched_by: Option<String>,
    /// Launcher variables that are set.
    pub launcher: BTreeMap<String, String>,
}

impl Event for Environment {
    const NAME: &'static str = "env";
}

impl Environment {
    /// Looks around.
    pub fn detect(engines: &Engines) -> Environment {
        let variable = |name: &str| std::env::var(name).ok();
        let launcher = Place::variables()
            .chain(MORE_VARIABLES.iter().copied())
            .filter_map(|name| Some((name.to_string(), variable(name)?)))
            .collect();
        Environment {
            version: env!("CARGO_PKG_VERSION").to_string(),
            rustc: match option_env!("RUSTUP_TOOLCHAIN") {
                Some(toolchain) => format!("{} or newer ({toolchain})", env!("CARGO_PKG_RUST_VERSION")),
                None => format!("{} or newer", env!("CARGO_PKG_RUST_VERSION")),
            },
            optimised: !cfg!(debug_assertions),
            os: std::env::consts::OS.to_string(),
            arch: std::env::consts::ARCH.to_string(),
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernels: KernelChoice::available().iter().map(KernelChoice::to_string).collect(),
            features: features(KernelOptions::native()),
            memory_bytes: Machine::now().total,
            data: bundled_corpus().describe(),
            engines: engines.iter().map(Engine::state).collect(),
            launched_by: Place::find(variable).map(|place| place.to_string()),
            launcher,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_string());
        let build = if self.optimised { "" } else { " (debug build: slow)" };
        let mut rows = vec![
            ("partita", format!("{}{build}", self.version)),
            ("rustc", self.rustc.clone()),
            ("system", format!("{} {}", self.os, self.arch)),
            ("cpu", or_unknown(&self.cpu)),
            ("cores", self.cores.to_string()),
            ("kernels", format!("{} ({})", self.kernels.join(" "), self.features.join(" "))),
            ("memory", self.memory_bytes.map_or("unknown".to_string(), bytes)),
            ("data", self.data.clone()),
        ];
        let label = |place: usize| if place == 0 { "engines" } else { "" };
        let state = |(place, engine): (usize, &EngineState)| {
            let missing = if engine.ready { "" } else { "not here: " };
            (label(place), format!("{:<7} {missing}{}", engine.name, engine.about))
        };
        rows.extend(self.engines.iter().enumerate().map(state));
        let plugins = self.engines.iter().flat_map(|engine| &engine.plugins).enumerate();
        rows.extend(plugins.map(|(place, found)| (if place == 0 { "plugins" } else { "" }, plugin(found))));
        rows.extend(self.launched_by.iter().map(|place| ("started", format!("by {place}"))));
        let set: Vec<String> = self.launcher.iter().map(|(name, value)| format!("{name}={value}")).collect();
        rows.push(("launcher", if set.is_empty() { "none".to_string() } else { set.join(" ") }));
        rows.iter().map(|(label, value)| format!("{label:<9} {}\n", value.trim())).collect()
    }
}

/// A plugin in a line: what it is for, its version and devices, and its file.
fn plugin(found: &PluginState) -> String {
    let PluginState { name, path, version, devices, error } = found;
    let mut kinds: IndexMap<&str, usize> = IndexMap::new();
    devices.iter().for_each(|kind| *kinds.entry(kind).or_default() += 1);
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} x {kind}")).collect();
    let state = match (error, version) {
        (Some(error), _) => format!("not usable: {error}"),
        (None, Some(version)) => format!("PJRT {version}, {}", kinds.join(", ")),
        (None, None) => "not loaded by this program".to_string(),
    };
    format!("{name:<7} {state}, {path}")
}

/// The processor's name, where the system tells.
pub fn cpu_name() -> Option<String> {
    read("/proc/cpuinfo").and_then(|text| cpu_model(&text))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// What kernels with these options use.
fn features(options: KernelOptions) -> Vec<String> {
    let used = [(options.jit(), "jit"), (options.matrix_unit(), "amx"), (options.bf16_unit(), "bf16")];
    let used = used.into_iter().filter(|(used, _)| *used).map(|(_, name)| name);
    std::iter::once(options.level_name()).chain(used).map(str::to_string).collect()
}

/// The first `model name` of `/proc/cpuinfo`.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_files_are_understood() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: A CPU: 2\nmodel name\t: B").as_deref(),
            Some("A CPU: 2")
        );
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn the_levels_of_this_machine_are_told() {
        let found = Environment::detect(&Engines::bundled());
        assert_eq!(
            (found.kernels.first(), found.kernels.last()),
            (Some(&"portable".into()), Some(&"native".into()))
        );
        assert!(
            found.text().contains(&format!("\nkernels   {} (", found.kernels.join(" "))),
            "{}",
            found.text()
        );
        assert_eq!(features(KernelOptions::portable()), ["portable"]);
    }

    #[test]
    fn a_plugin_is_a_line_with_its_devices_or_with_what_is_wrong() {
        let found = PluginState {
            name: "cuda".to_string(),
            path: "/p.so".to_string(),
            version: Some("0.115".to_string()),
            devices: ["H200", "H200", "A100"].map(String::from).to_vec(),
            error: None,
        };
        assert_eq!(plugin(&found), "cuda    PJRT 0.115, 2 x H200, 1 x A100, /p.so");
        let broken = PluginState { error: Some("no devices".to_string()), ..found.clone() };
        assert_eq!(plugin(&broken), "cuda    not usable: no devices, /p.so");
        let unknown = PluginState { version: None, ..found };
        assert_eq!(plugin(&unknown), "cuda    not loaded by this program, /p.so");
    }

    #[test]
    fn the_report_names_this_build_and_hides_nothing_that_is_missing() {
        let found = Environment::detect(&Engines::bundled());
        assert!(
            found.text().starts_with(&format!("partita   {}", env!("CARGO_PKG_VERSION"))),
            "{}",
            found.text()
        );
        let engines: Vec<&str> = found.engines.iter().map(|engine| engine.name).collect();
        assert_eq!(engines, ["native", "mpi", "xla"]);
        assert!(found.text().contains("\nengines   native  CPU cores"), "{}", found.text());
        assert!(found.text().contains("\n          mpi     not here: "), "{}", found.text());
        let bare = Environment { cpu: None, launcher: BTreeMap::new(), ..found };
        assert!(bare.text().contains("cpu       unknown\n"), "{}", bare.text());
        assert!(
            bare.text().contains("\ndata      partita-corpus-1, 3786429 bytes, sha256:"),
            "{}",
            bare.text()
        );
        assert!(bare.text().ends_with("launcher  none\n"));
    }
}
