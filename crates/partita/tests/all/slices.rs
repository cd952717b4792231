//! Stages on slices of different sizes that the planner finds: against every division by brute force.

use partita::Session;
use partita::auto_plan::{AutoPlan, Freedom};
use partita_mesh::Mesh;
use partita_schedule::{Plan, StepKind};

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
            let built = session.build_part(&model, &plan, StepKind::Step).unwrap();
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

/// A cluster whose ranks from this one on are half as fast as the others.
fn half_as_fast(first: usize) -> Vec<String> {
    let fast = ["name=a100-8", "flops_per_s=2e11", "flops_per_s_by_type={}", "memory_bytes_per_s=1e12"];
    let even = ["flops_efficiency=1.0", "memory_efficiency=1.0"];
    let slow = format!(
        "devices=[{{first={first},flops_per_s=1e11,flops_per_s_by_type={{}},memory_bytes_per_s=5e11}}]"
    );
    let keys = fast.iter().chain(&even).copied().chain([slow.as_str()]);
    keys.map(|key| format!("cluster.{key}")).collect()
}

/// The number of the last layer of the first stage.
fn end_of_first(found: &AutoPlan) -> usize {
    let (_, last) = &found.best.stages[0];
    last.strip_prefix("layers.").and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{last}"))
}

#[test]
fn slow_devices_get_fewer_layers() {
    let gpt = |layers: usize, batch: usize| {
        let model = ["dim=64", "sequence=32", "heads=4", "dropout=0.0"].map(|key| format!("model.{key}"));
        let more = [format!("model.layers={layers}"), format!("train.batch={batch}")];
        let keys = ["train.microbatches=8".to_string(), "mesh.shape='pp=2'".to_string()];
        let all: Vec<String> = model.into_iter().chain(more).chain(keys).chain(half_as_fast(1)).collect();
        Session::load("gpt", &all).unwrap()
    };
    // Two thirds of the layers are on the first half of the devices.
    let session = gpt(6, 8);
    let whole = session.auto_plan(&session.model().unwrap(), session.mesh()).unwrap();
    assert_eq!(end_of_first(&whole), 3, "{:?}", whole.best.stages);
    assert_eq!(whole.best.stages[1].0, "layers.4");
    let session = gpt(60, 16);
    assert!(session.is_folded());
    let folded =
        session.auto_plan_over(None, &[session.mesh().clone()], Freedom::default(), &|_| {}).unwrap();
    assert!((38..=41).contains(&end_of_first(&folded)), "{:?}", folded.best.stages);
    let split = Plan::from_toml("plan = { \"layers.29\" = \"pipeline_split\" }", "test").unwrap();
    let even_s = session.price_folded(Some(&split)).unwrap().step_s();
    assert!(folded.best.step_s < 0.8 * even_s, "{} {even_s}", folded.best.step_s);
    // What was found is priced as any other plan.
    assert_eq!(session.price_folded(Some(&folded.best.plan)).unwrap().step_s(), folded.best.step_s);
}
