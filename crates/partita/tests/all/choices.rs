//! Where the planner shares experts (`ep`) and rows (`cp`) and offloads states, and what it says: the cases of
//! `tests/choices/cases.txt`.

use partita::Session;
use partita::auto_plan::{AutoPlan, Candidate, Freedom};
use partita_mesh::Mesh;
use std::path::Path;

/// A case: lines `key value` behind a line `case name`.
struct Case {
    name: String,
    lines: Vec<(String, String)>,
}

impl Case {
    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |line| line.0 == key).map(|line| line.1.as_str())
    }

    /// The session of the config with these overrides besides its own.
    fn session(&self, more: &str) -> Session {
        let overrides: Vec<String> =
            self.all("set").chain([more]).flat_map(str::split_whitespace).map(str::to_string).collect();
        let config = self.all("config").next().expect("a case has a config");
        Session::load(config, &overrides).unwrap_or_else(|error| panic!("{} {more}: {error}", self.name))
    }

    /// Seconds of a step and bytes of the fullest rank, of the whole step over the clock.
    fn simulated(&self, more: &str) -> (f64, u64) {
        let session = self.session(more);
        let built = session.build().unwrap_or_else(|error| panic!("{} {more}: {error}", self.name));
        let price = session.price_of(&built).unwrap_or_else(|error| panic!("{} {more}: {error}", self.name));
        (price.step_s(), price.bytes())
    }

    fn found(&self) -> (AutoPlan, u64) {
        let session = self.session("");
        let meshes: Vec<Mesh> = self
            .all("meshes")
            .flat_map(str::split_whitespace)
            .map(|mesh| Mesh::parse(mesh, None).unwrap_or_else(|error| panic!("{}: {error}", self.name)))
            .collect();
        let found = session
            .auto_plan_over(None, &meshes, Freedom::default(), &|_| {})
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        (found, session.config().cluster.device.memory_bytes)
    }
}

fn cases() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/choices/cases.txt");
    let text = std::fs::read_to_string(file).expect("the cases are there");
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        match (key, cases.last_mut()) {
            ("case", _) => cases.push(Case { name: value.to_string(), lines: Vec::new() }),
            (_, Some(case)) => case.lines.push((key.to_string(), value.to_string())),
            (_, None) => panic!("a line before the first case: {line}"),
        }
    }
    cases
}

#[test]
fn experts_rows_and_states_are_shared_or_offloaded_where_it_pays() {
    let cases = cases();
    assert!(cases.len() >= 10, "{} cases", cases.len());
    let mut wrong = String::new();
    for case in &cases {
        let (found, limit) = case.found();
        let reasons = found.reasons();
        // Without the figures, which are the cost model's.
        let heads: Vec<&str> =
            reasons.iter().map(|reason| reason.split(':').next().unwrap_or(reason)).collect();
        let expected: Vec<&str> = case.all("says").collect();
        let best = (found.best.mesh.to_string(), if found.best.offloads() { "yes" } else { "no" });
        let wanted = (case.all("best").next(), case.all("offload").next());
        let recomputes = found.best.plan.to_toml().contains("checkpoint");
        let recompute = case.all("recompute").next().unwrap_or("no");
        if heads != expected
            || (Some(&*best.0), Some(best.1)) != wanted
            || recompute != if recomputes { "yes" } else { "no" }
        {
            let candidates = [&found.best].into_iter().chain(&found.others).map(|c| {
                format!("  {} {} {:.3e} s {} bytes {:?}\n", c.mesh, c.source, c.step_s, c.bytes, c.idle)
            });
            wrong += &format!(
                "{}: {best:?}, recomputes {recomputes}, of {limit} bytes\n{}  {reasons:#?}\n",
                case.name,
                candidates.collect::<String>()
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Every choice has a reason outside the planner: of two plans by hand the one that it stands for fits and is faster, or is
/// the only one that fits. What the planner found is, simulated by itself, no slower than either.
#[test]
fn choices_are_the_fastest_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = String::new();
    for case in &cases() {
        let (found, limit) = case.found();
        let file = folder.path().join("plan.toml");
        std::fs::write(&file, found.best.plan.to_toml()).unwrap();
        let Candidate { mesh, microbatches, activation_limit, .. } = &found.best;
        let kept =
            activation_limit.map(|bytes| format!(" train.activation_limit={bytes}")).unwrap_or_default();
        let best = case.simulated(&format!(
            "mesh.shape={mesh} train.microbatches={microbatches} plan.sequence_parallel={} plan.file={}{kept}",
            found.best.sequence_parallel,
            file.display()
        ));
        let rather = case.all("rather").next().expect("a case has an alternative by hand");
        let by_hand = case.simulated(rather);
        let chosen = format!("mesh.shape={}", case.all("best").next().expect("a case has a mesh"));
        let is_same = rather.split_whitespace().any(|word| word == chosen)
            && rather.contains("offload") == (case.all("offload").next() == Some("yes"));
        let mut ok = is_same && by_hand.1 <= limit && best.1 <= limit && best.0 <= by_hand.0 * 1.001;
        let mut seen = format!("  found {best:?}\n  {rather} {by_hand:?}\n");
        let mut tried = 0;
        for key in ["slower", "too_large"] {
            for other in case.all(key) {
                let (step_s, bytes) = case.simulated(other);
                ok &= match key {
                    "slower" => bytes <= limit && step_s > by_hand.0,
                    _ => bytes > limit,
                };
                seen += &format!("  {key} {other} {:?}\n", (step_s, bytes));
                tried += 1;
            }
        }
        if !ok || tried == 0 {
            wrong += &format!("{}, {limit} bytes\n{seen}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
