//! Runs an exported step through a PJRT plugin, in a process of its own: a failed check inside XLA ends a process.
//!
//! The program that trains starts itself with the word [`COMMAND`], which calls [`main`]. It prints lines of JSON, those of
//! the script [`RUNNER`](super::RUNNER), and reads from its standard input: [`STOP`] asks to stop after the current step,
//! and the end of the input ends the process at once.

mod shards;
mod steps;
mod wiring;

use crate::xla::Manifest;
use crate::xla::cache::Cache;
use crate::xla::manifest::{FEEDS_FILE, MANIFEST_FILE, STATE_FILE};
use crate::xla::plugins::NUMBER_OF_CPUS;
pub use crate::xla::protocol::{COMMAND, DEVICES, Line, STOP, TRAIN};
use crate::xla::protocol::{Failure, Found};
use partita_base::{Diagnostic, Result};
use partita_pjrt::{Client, Plugin, Value};
use partita_runtime::checkpoint::{export_weights, import_weights};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use steps::{Fed, Run, rank_count, unreadable};

/// Does what the arguments after [`COMMAND`] say, and returns the exit code of the process.
pub fn main(arguments: &[OsString]) -> u8 {
    let out = own_stdout();
    let done = match arguments {
        [word, plugin] if word == DEVICES => list_devices(Path::new(plugin), &out),
        [word, plugin, folder, every] if word == TRAIN => {
            match every.to_str().and_then(|every| every.parse().ok()) {
                Some(every) => train(Path::new(plugin), Path::new(folder), every, &out),
                None => Err(not_for_people(arguments)),
            }
        }
        _ => Err(not_for_people(arguments)),
    };
    let Err(error) = done else { return 0 };
    eprintln!("{error}");
    let _ = say(&out, &Line { error: Some(Failure::from(&*error)), ..Line::default() });
    1
}

fn not_for_people(arguments: &[OsString]) -> Box<Diagnostic> {
    Diagnostic::new("E061", format!("`{COMMAND}` is started by the engine `xla` alone"))
        .expected(format!("{TRAIN} PLUGIN FOLDER STEPS, or {DEVICES} PLUGIN"))
        .found(format!("{arguments:?}"))
        .help("`partita train --engine xla` starts it")
}

/// The devices of a plugin.
fn list_devices(plugin: &Path, out: &Out) -> Result<()> {
    let plugin = Plugin::load(plugin)?;
    let client = client(&plugin, 1)?;
    let (major, minor) = plugin.api_version();
    let found = Found {
        version: format!("{major}.{minor}"),
        platform: client.platform().to_string(),
        devices: client.devices().iter().map(|device| device.kind().to_string()).collect(),
    };
    say(out, &found)
}

/// Trains the steps that there are batches for, and saves the state after every `every`-th and the last one.
fn train(plugin: &Path, folder: &Path, every: u64, out: &Out) -> Result<()> {
    let stop = stop_with_stdin();
    let path = folder.join(MANIFEST_FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error.to_string()))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| unreadable(&path, &error.to_string()))?;
    let plugin = Plugin::load(plugin)?;
    let client = client(&plugin, rank_count(&manifest))?;
    let cache = Cache::of_user(&plugin, &client);
    let initial = import_weights(&folder.join(STATE_FILE))?;
    let began = Instant::now();
    let mut run = Run::new(&manifest, folder, &client, &cache, &initial)?;
    drop(initial);
    let (step, seconds) = (manifest.first, Some(began.elapsed().as_secs_f64()));
    say(out, &Line { step, seconds, programs: Some(run.compiled), ..Line::default() })?;
    let feeds = import_weights(&folder.join(FEEDS_FILE))?;
    let planned_bytes = run.planned_bytes()?;
    let last = manifest.learning_rates.len() as u64;
    for (step, &rate) in
        (1..).zip(&manifest.learning_rates).skip(usize::try_from(manifest.first).unwrap_or(usize::MAX))
    {
        let began = Instant::now();
        let tensor = |name: &str| feeds.get(&format!("{step}/{name}"));
        let figures = run.step(&Fed { tensor: &tensor, rate, step })?;
        let line = Line {
            step,
            seconds: Some(began.elapsed().as_secs_f64()),
            planned_bytes,
            used_bytes: run.used_bytes()?,
            figures: figures
                .into_iter()
                .map(|(name, value)| (name, value.is_finite().then_some(value)))
                .collect(),
            ..Line::default()
        };
        say(out, &line)?;
        let is_asked = stop.load(Ordering::SeqCst);
        if step == last || is_asked || (every > 0 && step.is_multiple_of(every)) {
            let file = folder.join(format!("state-{step}.safetensors"));
            export_weights(&file, &run.state()?)?;
            say(out, &Line { step, saved: Some(file), ..Line::default() })?;
        }
        if is_asked {
            break;
        }
    }
    Ok(())
}

/// A client. Of the plugin for CPUs it has so many devices, of others those of the machine.
fn client(plugin: &Plugin, devices: usize) -> Result<Client> {
    let name = plugin.path().file_name().unwrap_or_default().to_string_lossy();
    match name.contains("cpu") {
        true => {
            plugin.client(&[(NUMBER_OF_CPUS, Value::Integer(i64::try_from(devices).unwrap_or(i64::MAX)))])
        }
        false => plugin.client(&[]),
    }
}

/// Where lines go.
type Out = std::fs::File;

/// The standard output for lines alone: what libraries print there goes to the standard error.
#[cfg(unix)]
fn own_stdout() -> Out {
    let own = rustix::io::dup(std::io::stdout()).map(Out::from);
    let _ = rustix::stdio::dup2_stdout(std::io::stderr());
    own.unwrap_or_else(|_| no_output())
}

#[cfg(not(unix))]
fn own_stdout() -> Out {
    no_output()
}

/// Says that there is no output, and ends the process.
fn no_output() -> Out {
    eprintln!("{}", Diagnostic::new("E061", "the runner of the engine xla has no standard output"));
    std::process::exit(1)
}

fn say(mut out: &Out, line: &impl Serialize) -> Result<()> {
    let refused = |error: String| Diagnostic::new("E061", "the runner cannot print its lines").found(error);
    let mut text = serde_json::to_string(line).map_err(|error| refused(error.to_string()))?;
    text.push('\n');
    out.write_all(text.as_bytes()).map_err(|error| refused(error.to_string()))
}

/// The flag that [`STOP`] on the standard input sets. The process ends when the input does: the program that started it has
/// ended.
fn stop_with_stdin() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            if line.trim() == STOP {
                flag.store(true, Ordering::SeqCst);
            }
        }
        end_now();
    });
    stop
}

/// Ends the process without the handlers of libraries, whose threads still run.
#[cfg(unix)]
fn end_now() -> ! {
    use rustix::process::{Signal, getpid, kill_process};
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::exit(1)
}

#[cfg(not(unix))]
fn end_now() -> ! {
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_order_are_refused() {
        for words in [&[][..], &["train"], &["train", "p", "f", "x"], &["fly", "p"]] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(not_for_people(&words).code, "E061");
        }
    }
}
