//! Stages on slices of different sizes that the planner finds: against every division by brute force.

use partita::Session;
use partita::auto_plan::{AutoPlan, Freedom};
use partita::session::Part;
use partita_mesh::Mesh;
use partita_schedule::Plan;

/// A GPT of four layers on three devices, of which two are near each other: gradients that all three exchange take longer
/// than what stages send.
fn session(more: &[&str]) -> Session {
    let model = ["layers=4", "dim=128", "sequence=16", "heads=4", "vocab=64", "dropout=0.0"]
        .map(|s| format!("model.{s}"));
    let cluster = [
        "name=a100-8",
        "flops_per_s=1e11",
        "flops_efficiency=1.0",
        "memory_efficiency=1.0",
        "memory_bytes_per_s=1e12",
        "links=[{ranks=2,latency_s=1e-6,bytes_per_s=3e10},{latency_s=5e-6,bytes_per_s=5e8}]",
    ];
    let cluster = cluster.map(|s| format!("cluster.{s}"));
    let more = more.iter().map(|item| item.to_string());
    let overrides: Vec<String> =
        model.into_iter().chain(cluster).chain(["train.batch=16".to_string()]).chain(more).collect();
    Session::load("gpt", &overrides).unwrap()
}

fn found(session: &Session, devices: usize, freedom: Freedom) -> AutoPlan {
    session.auto_plan_over(None, &session.meshes(devices, 8), freedom, &|_| {}).unwrap()
}

/// The lines of Megatron-LM in a stage whose ranks share layers over `tp`.
const SHARED: [(&str, &str); 6] = [
    ("layers.*.attn.q_proj", "colwise"),
    ("layers.*.attn.k_proj", "colwise"),
    ("layers.*.attn.v_proj", "colwise"),
    ("layers.*.attn.o_proj", "rowwise"),
    ("layers.*.mlp.up_proj", "colwise"),
    ("layers.*.mlp.down_proj", "rowwise"),
];

/// Every division of four layers into two stages on one rank and two, which share rows or layers: seconds of a step.
fn every_division(session: &Session) -> Vec<(String, f64)> {
    let model = session.model().unwrap();
    let mut all = Vec::new();
    for last in 0..3 {
        for meshes in [["dp=1", "dp=2"], ["dp=2", "dp=1"], ["dp=1", "tp=2"], ["tp=2", "dp=1"]] {
            let mut plan = Plan::default();
            let ends = [format!("layers.{last}"), String::new()];
            for (stage, (end, mesh)) in ends.iter().zip(meshes).enumerate() {
                plan.add(end, &format!("pipeline_split(mesh=\"{mesh}\")"), "test").unwrap();
                for (modules, style) in SHARED.iter().filter(|_| mesh == "tp=2") {
                    plan.add(modules, &format!("{style}(stage={stage})"), "test").unwrap();
                }
            }
            let built = session.build_part(&model, &plan, Part::Step).unwrap();
            let step_s = session.price_of(&built).unwrap().step_s();
            all.push((format!("stages after layers.{last} on {meshes:?}"), step_s));
        }
    }
    all
}

#[test]
fn slices_of_different_sizes_win_where_links_are_slow() {
    let session = session(&["train.microbatches=4"]);
    let found = found(&session, 3, Freedom { slices: true, ..Freedom::default() });
    let best = &found.best;
    assert!(best.has_slices(), "{} {}", best.flags(), best.plan.to_toml());
    let equal = found.others.iter().filter(|other| !other.has_slices() && other.idle.is_none());
    let equal_s: Vec<f64> = equal.map(|other| other.step_s).collect();
    assert!(!equal_s.is_empty() && equal_s.iter().all(|other| best.step_s < 0.9 * other), "{equal_s:?}");
    assert_eq!(best.slices.iter().map(Mesh::rank_count).sum::<usize>(), 3);
    assert_eq!(best.stages[0].0, "layers.0");
    // Divisions are chosen by the estimate of the search: none by hand is simulated to be more than 2 % faster.
    let session = session.with_mesh(Mesh::parse("pp=3", None).unwrap());
    for (what, step_s) in every_division(&session) {
        assert!(best.step_s <= 1.02 * step_s, "{what}: {step_s}, found {}", best.step_s);
    }
    let reasons = found.reasons();
    assert!(
        reasons
            .iter()
            .any(|reason| reason.starts_with("slices (stages are on slices of different sizes) pays"))
    );
    // The tables say the same of each stage.
    let result = session.alpa_result(best);
    let of = |end: &str| best.stages.iter().position(|stage| stage.1 == end);
    assert_eq!(of("layers.3"), Some(best.stages.len() - 1));
    let shapes: Vec<String> =
        best.slices.iter().map(|slice| format!("(1, {})", slice.rank_count())).collect();
    assert!(result.contains(&format!("Result meshes: [{}]\n", shapes.join(", "))), "{result}");
}

/// On devices that are near each other, the search says what slices of different sizes would cost.
#[test]
fn slices_of_different_sizes_that_do_not_pay_say_so() {
    for (model, devices) in [("mlp", 3), ("gpt", 5)] {
        let session = Session::load(model, &["cluster.name=a100-80g:1x8".to_string()]).unwrap();
        let freedom = Freedom { microbatches: true, flags: true, slices: true, ..Freedom::default() };
        let found = found(&session, devices, freedom);
        let reasons = found.reasons().join("\n");
        assert!(!found.best.has_slices(), "{}", found.best.flags());
        let told = "slices (stages are on slices of different sizes) does not pay: with it, the best candidate that was \
                    priced, pp=";
        assert!(
            reasons.contains(told) && reasons.contains(" of the time, and in the chosen plan "),
            "{reasons}"
        );
    }
}

/// Angles of rotary embeddings follow from constants, so both stages compute them; they are of the first layer all the same.
#[test]
fn stages_name_the_blocks_that_they_run() {
    let overrides = ["model.layers=2", "model.dim=32", "model.heads=4", "mesh.shape='pp=2'", "train.batch=4"];
    let session = Session::load("llama", &overrides.map(str::to_string)).unwrap();
    let found = session.auto_plan(&session.model().unwrap(), session.mesh()).unwrap();
    let of = |layer: usize| (format!("layers.{layer}"), format!("layers.{layer}"));
    for candidate in [&found.best].into_iter().chain(&found.others) {
        assert_eq!(candidate.stages, [of(0), of(1)], "{}", candidate.source);
    }
}
