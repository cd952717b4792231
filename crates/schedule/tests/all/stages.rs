//! Plans with pipeline stages: what is refused, with the figures that the message needs, and the mesh
//! that listed stages make up.

use crate::common::ok;
use partita_base::{DType, Diagnostic};
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_nn::{GptConfig, Model, ModelConfig, Optimizer, StepOptions};
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildOptions, Built, Plan, Tools, build, mesh_of_stages};

/// Two layers of 8 features, on 3 sequences of 4 tokens in f64: the residual stream has 768 bytes.
fn gpt() -> Model {
    let config = GptConfig { vocab: 10, dim: 8, layers: 2, heads: 2, sequence: 4, ..GptConfig::default() };
    ok(ModelConfig::Gpt(config).build(3, DType::F64, true))
}

fn built(plan: &Plan, mesh: &Mesh) -> partita_base::Result<Built> {
    let tools = Tools { registry: &Registry::default(), runner: &Interpreter };
    build(&gpt(), plan, mesh, &BuildOptions::new(StepOptions::new(Optimizer::sgd())), &tools)
}

fn refused(plan: &Plan, mesh: &str) -> Box<Diagnostic> {
    match built(plan, &ok(Mesh::parse(mesh, None))) {
        Err(error) => error,
        Ok(_) => panic!("{plan:?} on {mesh} is accepted"),
    }
}

fn split_after(module: &str) -> Plan {
    let mut plan = Plan::default();
    ok(plan.add(module, "pipeline_split", "test"));
    plan
}

#[test]
fn a_stage_does_not_end_where_everything_crosses() {
    let two = ok(Mesh::parse("pp=2", None));
    // After a block one tensor crosses, between attention and feed-forward block two of them.
    for module in ["layers.0", "layers.0.attn"] {
        ok(built(&split_after(module), &two));
    }
    let error = refused(&split_after("layers.0.attn.q_proj"), "pp=2");
    assert_eq!(error.code, "E468");
    assert_eq!(
        error.to_string(),
        "error[E468]: a pipeline stage ends inside the block `layers.0`\n        \
         at: pipeline_split of `layers.0.attn.q_proj`\n  \
         expected: a boundary such as that after `layers.0`: 768 bytes cross in a step\n     \
         found: 2304 bytes after `layers.0.attn.q_proj`\n      \
         help: end the stage after `layers.0`"
    );
}

#[test]
fn more_stages_than_blocks_are_refused() {
    let error = refused(&Plan::default(), "pp=3");
    assert_eq!(error.code, "E460");
    assert!(error.to_string().contains("at most 2 stages"), "{error}");
}

/// Stages until `layers.0` and to the end, with these meshes and ranks.
fn listed(stages: [(&str, &str); 2]) -> Plan {
    let [first, second] = stages.map(|(mesh, ranks)| format!("mesh = \"{mesh}\"\n{ranks}\n"));
    let text = format!("[[stages]]\nuntil = \"layers.0\"\n{first}[[stages]]\n{second}");
    ok(Plan::from_toml(&text, "plan.toml"))
}

#[test]
fn slices_that_overlap_or_leave_ranks_over_are_refused() {
    for (stages, mesh, found) in [
        ([("tp=2", "ranks = [0, 1]"), ("dp=2", "ranks = [1, 2]")], "pp=3", "rank 1 in slices 0 and 1"),
        ([("tp=2", ""), ("dp=1", "")], "pp=4", "ranks [3] in no slice"),
        ([("tp=2", ""), ("dp=2", "")], "pp=3", "rank 3"),
        ([("tp=2", "ranks = [0]"), ("dp=1", "")], "pp=3", "[0]"),
    ] {
        let error = refused(&listed(stages), mesh);
        assert_eq!(error.code, "E467", "{error}");
        assert_eq!(error.found.as_deref(), Some(found), "{error}");
    }
}

#[test]
fn listed_stages_make_up_a_mesh() {
    for (stages, mesh) in [
        ([("tp=2", ""), ("tp=2", "")], "pp=2,tp=2"),
        ([("dp=1", ""), ("dp=1", "")], "pp=2"),
        ([("tp=2", ""), ("dp=1", "")], "pp=3"),
        ([("dp=2,tp=2", ""), ("dp=3", "")], "pp=7"),
        ([("tp=2", "ranks = [1, 3]"), ("dp=2", "ranks = [0, 2]")], "pp=4"),
    ] {
        let plan = listed(stages);
        let found = ok(mesh_of_stages(&plan)).expect("the stages name meshes");
        assert_eq!(found.to_string(), mesh);
        let built = ok(built(&plan, &found));
        assert_eq!(built.stages.len(), 2);
        assert_eq!(
            built.mesh.rank_count(),
            built.stages.iter().map(|stage| stage.ranks.len()).sum::<usize>()
        );
    }
    assert_eq!(ok(mesh_of_stages(&split_after("layers.0"))), None);
    assert_eq!(ok(mesh_of_stages(&Plan::default())), None);
    let wrong = mesh_of_stages(&listed([("tp=2", ""), ("tp=zero", "")]));
    assert!(wrong.is_err(), "{wrong:?}");
}

#[test]
fn stages_out_of_model_order_are_refused() {
    let table = |until: &str, mesh: &str| format!("[[stages]]\nuntil = \"{until}\"\nmesh = \"{mesh}\"\n");
    let text = table("layers.0", "dp=2") + &table("layers.0.attn", "tp=2") + "[[stages]]\n";
    let plan = ok(Plan::from_toml(&text, "plan.toml"));
    let error = refused(&plan, "pp=5");
    assert_eq!(error.code, "E463", "{error}");
    assert_eq!(error.found.as_deref(), Some("stage 1 ends after `layers.0.attn`"), "{error}");
    for place in ["[[stages]] table 1", "[[stages]] table 2"] {
        assert!(error.to_string().contains(place), "{error}");
    }
    let in_order = table("layers.0.attn", "tp=2") + &table("layers.0", "dp=2") + "[[stages]]\n";
    assert_eq!(
        ok(built(&ok(Plan::from_toml(&in_order, "plan.toml")), &ok(Mesh::parse("pp=5", None)))).stages.len(),
        3
    );
}

#[test]
fn the_last_stage_needs_no_keys() {
    for (first, last, mesh, ranks) in [
        ("", "", "pp=2", vec![1]),
        ("mesh = \"tp=2\"\n", "", "pp=3", vec![2]),
        ("mesh = \"tp=2\"\nranks = [0, 2]\n", "ranks = [1, 3]\n", "pp=4", vec![1, 3]),
    ] {
        let text = format!("[[stages]]\nuntil = \"layers.0\"\n{first}[[stages]]\n{last}");
        let built = ok(built(&ok(Plan::from_toml(&text, "plan.toml")), &ok(Mesh::parse(mesh, None))));
        assert_eq!(built.stages.len(), 2);
        assert_eq!(built.stages[1].ranks, ranks, "{text}");
    }
}

#[test]
fn wrong_ranks_of_stages_are_named() {
    let empty =
        "[[stages]]\nuntil = \"layers.0\"\nmesh = \"tp=2\"\n[[stages]]\nmesh = \"dp=1\"\nranks = []\n";
    let error = Plan::from_toml(empty, "plan.toml").unwrap_err();
    assert_eq!(error.code, "E467", "{error}");
    assert!(error.to_string().contains("plan.toml, [[stages]] table 2"), "{error}");
    let error = refused(&listed([("tp=2", "ranks = [0, 1]"), ("tp=2", "ranks = [0, 1]")]), "pp=2");
    assert_eq!(error.code, "E463", "{error}");
    assert_eq!(error.found.as_deref(), Some("ranks: stage 0 on [0, 1], stage 1 on [0, 1]"), "{error}");
}
