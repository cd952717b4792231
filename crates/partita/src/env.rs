//! What `partita env` reports: the build, the machine, and what a run would find on it.

use crate::feeds::bundled_corpus;
use crate::output::events::Event;
use crate::output::format::bytes;
use partita_runtime::Machine;
use serde::Serialize;
use std::collections::BTreeMap;

/// Variables by which launchers tell a process its place.
const LAUNCHER_VARIABLES: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
];

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
    /// Vector width of the kernels: `avx512`, `avx2` or `baseline`.
    pub kernels: String,
    /// Processor features that kernels and matrix products choose by, as found.
    pub features: Vec<String>,
    /// Memory this process may use, in bytes: the machine's, or a smaller limit of the container.
    pub memory_bytes: Option<u64>,
    /// The text without `--data`.
    pub data: String,
    /// Launcher variables that are set.
    pub launcher: BTreeMap<String, String>,
}

impl Event for Environment {
    const NAME: &'static str = "env";
}

impl Environment {
    /// Looks around.
    pub fn detect() -> Environment {
        let features = features();
        let launcher = LAUNCHER_VARIABLES
            .iter()
            .filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?)))
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
            cpu: read("/proc/cpuinfo").and_then(|text| cpu_model(&text)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernels: kernel_level(&features).to_string(),
            features,
            memory_bytes: Machine::now().total,
            data: bundled_corpus().describe(),
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
            ("kernels", format!("{} ({})", self.kernels, self.features.join(" "))),
            ("memory", self.memory_bytes.map_or("unknown".to_string(), bytes)),
            ("data", self.data.clone()),
        ];
        let set: Vec<String> = self.launcher.iter().map(|(name, value)| format!("{name}={value}")).collect();
        rows.push(("launcher", if set.is_empty() { "none".to_string() } else { set.join(" ") }));
        rows.iter().map(|(label, value)| format!("{label:<9} {}\n", value.trim())).collect()
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The features that `partita-kernels` and the matrix product dispatch on.
fn features() -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! detect {
            ($($name:tt)*) => { $(if is_x86_feature_detected!($name) { found.push($name.to_string()); })* };
        }
        detect!("avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl");
        if partita_kernels::has_matrix_unit() {
            found.push("amx-bf16".to_string());
        }
    }
    #[cfg(target_arch = "aarch64")]
    found.push("neon".to_string());
    found
}

/// As the kernels choose: AVX-512 needs four parts of it, a matrix unit stands beside it.
fn kernel_level(features: &[String]) -> &'static str {
    let has = |name: &str| features.iter().any(|feature| feature == name);
    match () {
        _ if has("amx-bf16") => "avx512 and amx",
        _ if ["avx512f", "avx512bw", "avx512dq", "avx512vl"].into_iter().all(has) => "avx512",
        _ if has("avx2") => "avx2",
        _ => "baseline",
    }
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
    fn avx512_needs_all_its_parts() {
        let named = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let all = named(&["avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"]);
        assert_eq!(kernel_level(&all), "avx512");
        assert_eq!(kernel_level(&[all.clone(), named(&["amx-bf16"])].concat()), "avx512 and amx");
        assert_eq!(kernel_level(&all[..4]), "avx2");
        assert_eq!(kernel_level(&[]), "baseline");
    }

    #[test]
    fn the_report_names_this_build_and_hides_nothing_that_is_missing() {
        let found = Environment::detect();
        assert!(
            found.text().starts_with(&format!("partita   {}", env!("CARGO_PKG_VERSION"))),
            "{}",
            found.text()
        );
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
