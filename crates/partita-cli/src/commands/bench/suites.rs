//! The suites: which cases there are, and which of them are compared with each other.

use super::exchange::Traffic;
use super::fused::Pass;
use super::models::Step;
use super::schedules;
use clap::ValueEnum;
use partita_schedule::ReadyOptions;

/// A set of measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Suite {
    /// Matrix products, on one thread and on two.
    Gemm,
    /// The MLPs of Slapo and Alpa.
    Mlp,
    /// Training steps of GPTs.
    Gpt,
    /// The same step on one rank, two and four.
    Dist,
    /// Collectives, with plain copies and exchanges of the same bytes for comparison.
    Collectives,
    /// Fused ops that memory bandwidth limits, with a plain copy for comparison.
    Fused,
    /// MLP, GPT-2 and BERT, unscheduled and scheduled line by line, with eager PyTorch beside them.
    Schedules,
}

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 7] = [
        Suite::Gemm,
        Suite::Mlp,
        Suite::Gpt,
        Suite::Dist,
        Suite::Collectives,
        Suite::Fused,
        Suite::Schedules,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Gemm => "gemm",
            Suite::Mlp => "mlp",
            Suite::Gpt => "gpt",
            Suite::Dist => "dist",
            Suite::Collectives => "collectives",
            Suite::Fused => "fused",
            Suite::Schedules => "schedules",
        }
    }
}

/// What a case runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// A model's step, or a part of it.
    Step(Step),
    /// A tensor of so many bytes, exchanged so many times in one run.
    Traffic {
        /// What happens to it.
        traffic: Traffic,
        /// Its size.
        bytes: usize,
        /// How often in one run: a wake-up is not to be measured.
        times: usize,
    },
}

/// One measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Its suite.
    pub suite: Suite,
    /// Its name within the suite.
    pub name: String,
    /// The mesh it runs on.
    pub mesh: String,
    /// Lines of its plan, as calls, before those of its ready plan.
    pub calls: String,
    /// Choices of its ready plan.
    pub ready: ReadyOptions,
    /// Threads in all; as many as cores where none is said.
    pub threads: Option<usize>,
    /// What it runs.
    pub work: Work,
}

impl Case {
    /// `suite/name`: what filters are looked for in.
    pub fn path(&self) -> String {
        format!("{}/{}", self.suite.name(), self.name)
    }
}

/// Rows, sum length and columns of the products.
const PRODUCTS: [[usize; 3]; 7] =
    [[256; 3], [512; 3], [1024; 3], [2048; 3], [4096; 3], [2048, 768, 3072], [2048, 3072, 768]];

/// Meshes of `dist`, one rank with all threads first.
const MESHES: [&str; 6] = ["dp=1", "tp=2", "dp=2", "fsdp=2", "dp=4", "fsdp=4"];

/// The mesh of the suites `mlp` and `gpt` if the user names none: one rank, with all threads.
const ONE: &str = "dp=1";

/// The mesh of the suite `fused`: the copy beside it runs on two ranks.
const TWO: &str = "dp=2";

/// The cases of a suite, `mesh` in place of the usual one where it has one. Those in one list are compared with each
/// other: they take turns.
pub fn cases(suite: Suite, mesh: Option<&str>) -> Vec<Vec<Case>> {
    let case = |name: String, mesh: &str, work: Work| Case {
        suite,
        name,
        mesh: mesh.to_string(),
        calls: String::new(),
        ready: ReadyOptions::default(),
        threads: None,
        work,
    };
    let step = |name: &str, step: Step| vec![case(name.to_string(), mesh.unwrap_or(ONE), Work::Step(step))];
    match suite {
        Suite::Gemm => PRODUCTS
            .iter()
            .map(|sizes| {
                let [m, k, n] = sizes;
                let on = |threads: usize| {
                    let name = format!("{m}x{k}x{n}/{threads}");
                    Case { threads: Some(threads), ..case(name, ONE, Work::Step(Step::Product(*sizes))) }
                };
                vec![on(1), on(2)]
            })
            .collect(),
        Suite::Mlp => vec![step("slapo", Step::Slapo), step("alpa", Step::Alpa)],
        Suite::Gpt => ["tiny", "small", "gpt2"].iter().map(|name| step(name, Step::gpt(name))).collect(),
        Suite::Dist => {
            let on = |size: &str, meshes: &[&str]| -> Vec<Case> {
                let on = |mesh: &&str| case(format!("{size}/{mesh}"), mesh, Work::Step(Step::gpt(size)));
                meshes.iter().map(on).collect()
            };
            // The residual stream cut along the sequence, so that no rank repeats another's norms.
            let sequence = |size: &str, mesh: &str| {
                let work = Work::Step(Step::gpt(size));
                let ready = ReadyOptions { sequence_parallel: true, ..ReadyOptions::default() };
                Case { ready, ..case(format!("{size}/{mesh}/sequence"), mesh, work) }
            };
            let mut eight_heads = on("small8h", &["dp=1", "tp=4"]);
            eight_heads.push(sequence("small8h", "tp=4"));
            vec![on("tiny", &MESHES), on("small", &MESHES), eight_heads]
        }
        Suite::Collectives => [(4 << 10, "4KiB", 64), (1 << 20, "1MiB", 16), (64 << 20, "64MiB", 1)]
            .iter()
            .flat_map(|&(bytes, size, times)| [2, 4].map(|ranks| (bytes, size, times, ranks)))
            .map(|(bytes, size, times, ranks)| {
                let of = |traffic: Traffic| {
                    let name = format!("{}/{size}/{ranks}", traffic.name());
                    case(name, &format!("dp={ranks}"), Work::Traffic { traffic, bytes, times })
                };
                Traffic::ALL.map(of).to_vec()
            })
            .collect(),
        Suite::Schedules => schedules::cases(),
        // Pair by pair: a dozen of them side by side would be gigabytes.
        Suite::Fused => Pass::ALL
            .map(|pass| {
                let copy = Work::Traffic { traffic: Traffic::Copy, bytes: 64 << 20, times: 1 };
                let name = pass.name();
                let beside = case(format!("{name}/copy"), TWO, copy);
                vec![beside, case(name.to_string(), TWO, Work::Step(Step::Pass(pass)))]
            })
            .to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_path_of_its_own() {
        let all: Vec<String> = Suite::ALL
            .iter()
            .flat_map(|&suite| cases(suite, None).concat())
            .map(|case| case.path())
            .collect();
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (14 + 2 + 3 + 15 + 30 + 18 + 20, all.len()));
        assert!(distinct.contains(&"gemm/2048x768x3072/2".to_string()), "{all:?}");
        assert!(distinct.contains(&"collectives/all_reduce/64MiB/4".to_string()), "{all:?}");
        assert!(cases(Suite::Gpt, Some("tp=2")).concat().iter().all(|case| case.mesh == "tp=2"));
    }
}
