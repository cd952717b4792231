//! `partita env --check`: what is wrong with this machine for Partita, and what to do about it.

use super::Environment;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::bytes;
use partita::session::Session;
use partita_base::Result;
use partita_runtime::Machine;
use partita_schedule::verify::Unwatched;
use serde::Serialize;
use std::path::Path;

/// Less memory than this is little for training.
const LITTLE_BYTES: u64 = 2 << 30;

/// Room that the files of a launch and of checkpoints need at least.
const ROOM_BYTES: u64 = 64 << 20;

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Good,
    /// It works, but is slow or limited.
    Slow,
    /// It does not work.
    Wrong,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; `None` if all is well.
    pub help: Option<&'static str>,
}

/// All checks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checks {
    /// Whether nothing is wrong.
    pub ok: bool,
    /// Each of them.
    pub checks: Vec<Check>,
}

impl Event for Checks {
    const NAME: &'static str = "env_check";
}

impl Checks {
    /// Looks at this machine, and runs one small step on it.
    pub fn run(environment: &Environment, output: &Output) -> Checks {
        let mut checks = vec![
            build(environment.optimised),
            kernels(&environment.kernels),
            cores(environment.cores),
            memory(&Machine::now()),
            folder("temporary files", &std::env::temp_dir(), "set TMPDIR to a folder that can be written"),
            folder(
                "this folder",
                Path::new("."),
                "runs are saved to ./runs: go to a folder that can be written",
            ),
        ];
        let shared = Path::new("/dev/shm");
        if shared.is_dir() {
            let help =
                "`partita launch` meets in /dev/shm: mount it larger (docker run --shm-size), or set TMPDIR";
            checks.push(folder("shared memory", shared, help));
        }
        checks.push(step(output.during("running a step on two ranks", verified)));
        Checks { ok: checks.iter().all(|check| check.verdict != Verdict::Wrong), checks }
    }

    /// The checks for people: a line each, with what to do below.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Check { name, verdict, found, help } in &self.checks {
            let verdict = match verdict {
                Verdict::Good => "good",
                Verdict::Slow => "slow",
                Verdict::Wrong => "WRONG",
            };
            text += &format!("{verdict:<6} {name:<16} {found}\n");
            if let Some(help) = help {
                text += &format!("{:24}{help}\n", "");
            }
        }
        text + if self.ok {
            "this machine runs Partita\n"
        } else {
            "this machine does not run Partita as it is\n"
        }
    }
}

fn good(name: &'static str, found: String) -> Check {
    Check { name, verdict: Verdict::Good, found, help: None }
}

fn build(is_optimised: bool) -> Check {
    match is_optimised {
        true => good("build", "optimised".to_string()),
        false => Check {
            name: "build",
            verdict: Verdict::Slow,
            found: "a debug build, many times slower".to_string(),
            help: Some("cargo install --path crates/partita-cli, or cargo build --release"),
        },
    }
}

fn kernels(levels: &[String]) -> Check {
    match levels.iter().any(|level| level.starts_with("avx")) {
        true => good("kernels", levels.join(" ")),
        false => Check {
            name: "kernels",
            verdict: Verdict::Slow,
            found: "portable code: no AVX2 on this processor".to_string(),
            help: Some(
                "a processor with AVX2 or AVX-512 is several times faster; a virtual machine may hide them",
            ),
        },
    }
}

fn cores(count: usize) -> Check {
    match count {
        2.. => good("cores", count.to_string()),
        _ => Check {
            name: "cores",
            verdict: Verdict::Slow,
            found: "one core: ranks take turns on it".to_string(),
            help: Some("allow the process more cores (taskset, cgroups, docker run --cpus)"),
        },
    }
}

fn memory(machine: &Machine) -> Check {
    let (total, available) = (machine.total, machine.available);
    let found = match (total, available) {
        (Some(total), Some(available)) => format!("{} of {} available", bytes(available), bytes(total)),
        (Some(total), None) => bytes(total),
        _ => "unknown".to_string(),
    };
    match available.or(total).is_some_and(|bytes| bytes < LITTLE_BYTES) {
        false => good("memory", found),
        true => Check {
            name: "memory",
            verdict: Verdict::Slow,
            found,
            help: Some(
                "small models fit; raise the limit of the container, or see `partita show CONFIG` for what a rank needs",
            ),
        },
    }
}

/// Whether a folder takes a file of some size.
fn folder(name: &'static str, path: &Path, help: &'static str) -> Check {
    let probe = path.join(format!(".partita-check-{}", std::process::id()));
    let written = write(&probe);
    let _ = std::fs::remove_file(&probe);
    match written {
        Ok(()) => good(name, format!("{} takes {}", path.display(), bytes(ROOM_BYTES))),
        Err(error) => Check {
            name,
            verdict: Verdict::Wrong,
            found: format!("{} does not take {}: {error}", path.display(), bytes(ROOM_BYTES)),
            help: Some(help),
        },
    }
}

/// Writes a new file in pieces, so that the room is there and not only promised.
fn write(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create_new(path)?;
    let piece = vec![1u8; 1 << 20];
    (0..ROOM_BYTES >> 20).try_for_each(|_| std::io::Write::write_all(&mut file, &piece))
}

/// A planned step on two ranks beside one device, on the CPU device: whether their numbers agree.
fn verified() -> Result<bool> {
    let overrides = ["mesh.shape=tp=2", "train.batch=4", "model.dims=[16,32,16]"].map(String::from);
    let session = Session::load("mlp", &overrides)?;
    Ok(session.verify(session.verification_rows(), &session.step_runner(), &Unwatched)?.report.ok)
}

fn step(outcome: Result<bool>) -> Check {
    let help = "please report this, with what `partita env` prints";
    match outcome {
        Ok(true) => good("a step", "two ranks compute what one device computes".to_string()),
        Ok(false) => Check {
            name: "a step",
            verdict: Verdict::Wrong,
            found: "two ranks compute other numbers than one device".to_string(),
            help: Some(help),
        },
        Err(error) => {
            Check { name: "a step", verdict: Verdict::Wrong, found: error.message.clone(), help: Some(help) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::Diagnostic;

    #[test]
    fn what_is_slow_is_no_failure_and_what_is_wrong_says_what_to_do() {
        let small = Machine { total: Some(4 << 30), available: Some(1 << 30), resident: None };
        let slow = [build(false), kernels(&["portable".to_string()]), cores(1), memory(&small)];
        assert!(slow.iter().all(|check| check.verdict == Verdict::Slow && check.help.is_some()), "{slow:?}");
        let kernels = kernels(&["portable".to_string(), "avx2".to_string()]);
        assert_eq!([build(true).verdict, kernels.verdict, cores(2).verdict], [Verdict::Good; 3]);
        let missing = folder("a folder", Path::new("/no/such/folder"), "make it");
        let failed = step(Err(Diagnostic::new("E040", "too little memory")));
        assert_eq!([missing.verdict, failed.verdict, step(Ok(false)).verdict], [Verdict::Wrong; 3]);
        let text = Checks { ok: false, checks: vec![missing] }.text();
        assert!(
            text.starts_with("WRONG  a folder") && text.contains("\n                        make it\n"),
            "{text}"
        );
    }
}
