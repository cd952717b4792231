//! What the processes of a run must have alike: settings, model, plan, data, initial values, the checkpoint they resume.
//!
//! Each process reads files of its own, on another host perhaps from a copy. Ranks that begin with different files would
//! train a mixture of both, with losses that look right; so the processes compare digests before the first step.

use crate::resume::Origin;
use crate::run_files::Saved;
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_nn::{Model, ParamSpec, Stored};
use partita_runtime::World;
use partita_runtime::digest::{Digest, of_bytes};
use partita_schedule::Plan;
use std::collections::BTreeMap;

/// Elements of stored values that are read at a time.
const AT_ONCE: usize = 1 << 20;

/// Sections of a config that may differ: where a process writes, and what predictions use.
const OWN_SECTIONS: [&str; 2] = ["checkpoint", "cluster"];

/// Keys that name files, which may be elsewhere on another host. Their contents are compared.
const PATHS: [&str; 4] = ["model.path", "model.weights", "data.path", "plan.file"];

/// The facts of one process by name. Those of the same name must be alike.
pub(crate) type Facts = BTreeMap<String, String>;

/// What one run of a session computes with.
pub(crate) fn facts(
    session: &Session,
    plan: &Plan,
    origin: &Origin,
    data: BTreeMap<String, String>,
    resumed: Option<&Saved>,
) -> Facts {
    let is_shared = |key: &String| {
        let section = key.split('.').next().unwrap_or_default();
        !OWN_SECTIONS.contains(&section) && !PATHS.contains(&key.as_str())
    };
    let mut facts = session.config().values.clone();
    facts.retain(|key, _| is_shared(key));
    facts.extend(origin.metadata());
    facts.extend(data);
    // A file is known by its digest, not by its name.
    facts.remove("data.file");
    facts.insert("the plan".to_string(), of_bytes(plan.to_toml().as_bytes()));
    facts.insert("the version of partita".to_string(), env!("CARGO_PKG_VERSION").to_string());
    if let Some(saved) = resumed {
        facts.insert("the checkpoint".to_string(), saved.opened().digest());
    }
    facts
}

/// Compares the facts of all processes. Every process calls this at the same point of the run.
///
/// # Errors
/// E434 in every process if one has other facts than the first; E447 if another process has ended.
pub(crate) fn check(world: &World, facts: &Facts) -> Result<()> {
    let own: String = facts.iter().map(|(name, value)| format!("{name}\u{1f}{value}\u{1e}")).collect();
    let all = world.gathered(own.as_bytes())?;
    let texts: Vec<String> = all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    let facts_of = |text: &str| -> Facts {
        let named = text.split('\u{1e}').filter_map(|fact| fact.split_once('\u{1f}'));
        named.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let first = facts_of(&texts[0]);
    let Some(other) = texts.iter().position(|text| *text != texts[0]) else { return Ok(()) };
    let found = facts_of(&texts[other]);
    let names = first.keys().chain(found.keys());
    let name =
        names.into_iter().find(|&name| first.get(name) != found.get(name)).cloned().unwrap_or_default();
    let value = |facts: &Facts| facts.get(&name).map_or("nothing".to_string(), |value| format!("`{value}`"));
    Err(Diagnostic::new("E434", format!("the processes of this run differ in {name}"))
        .expected(format!("{} as in process 0", value(&first)))
        .found(format!("{} in process {other}", value(&found)))
        .help("give every process the same settings and files of the same contents, or one file that all of them can read"))
}

/// Compares the initial values that are stored in files or in memory. Where all processes have opened the same files of one
/// host, nothing is read.
///
/// # Errors
/// As [`check`]; E350 if a file has changed.
pub(crate) fn check_values(world: &World, model: &Model) -> Result<()> {
    let stored =
        |(name, spec): (&String, &ParamSpec)| Some((name.clone(), spec.clone(), spec.stored.clone()?));
    let stored: Vec<(String, ParamSpec, Stored)> = model.kept().filter_map(stored).collect();
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let places = stored.iter().map(|(name, _, values)| Some(format!("{name} {}", values.place()?)));
    let place = host.and_then(|host| Some(host + &places.collect::<Option<Vec<String>>>()?.join("\n")));
    let place = place.map_or(Vec::new(), |place| of_bytes(place.as_bytes()).into_bytes());
    let all = world.gathered(&place)?;
    if !place.is_empty() && all.iter().all(|other| *other == place) {
        return Ok(());
    }
    let mut facts = Facts::new();
    for (name, spec, values) in &stored {
        facts.insert(format!("the initial value of `{name}`"), digest_of(spec, values)?);
    }
    check(world, &facts)
}

fn digest_of(spec: &ParamSpec, values: &Stored) -> Result<String> {
    let shape = &spec.ty.shape;
    let mut digest = Digest::default();
    let Some(&rows) = shape.first() else {
        digest.add(&values.window(&[], &[])?.bytes());
        return Ok(digest.finish());
    };
    let row: usize = shape[1..].iter().product();
    let step = (AT_ONCE / row.max(1)).max(1);
    for begin in (0..rows).step_by(step) {
        let (mut offset, mut extent) = (vec![0; shape.len()], shape.clone());
        (offset[0], extent[0]) = (begin, step.min(rows - begin));
        digest.add(&values.window(&offset, &extent)?.bytes());
    }
    Ok(digest.finish())
}
