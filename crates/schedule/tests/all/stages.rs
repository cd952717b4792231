//! Plans with pipeline stages: what is refused, with the figures that the message needs, and the mesh
//! that listed stages make up.

use crate::common::ok;
use partita_base::{DType, Diagnostic};
use partita_ir::{Registry, Role, ValueId};
use partita_mesh::Mesh;
use partita_nn::{GptConfig, Model, ModelConfig, Optimizer, StepOptions};
use partita_schedule::explain::lines;
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, Plan, mesh_of_stages, restructure};
use std::collections::BTreeSet;

/// Two layers of 8 features, on 3 sequences of 4 tokens in f64: the residual stream has 768 bytes.
fn gpt() -> Model {
    let config = GptConfig { vocab: 10, dim: 8, layers: 2, heads: 2, sequence: 4, ..GptConfig::default() };
    ok(ModelConfig::Gpt(config).build(3, DType::F64, true))
}

fn built(plan: &Plan, mesh: &Mesh) -> partita_base::Result<Built> {
    let context = BuildContext { registry: &Registry::default(), runner: &Interpreter };
    BuildRequest::new(&gpt(), plan, mesh, &BuildOptions::new(StepOptions::new(Optimizer::sgd())), context)
        .build()
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
        ([("tp=2", ""), ("pp=2", "")], "pp=4", "pp=2"),
    ] {
        let error = refused(&listed(stages), mesh);
        assert_eq!(error.code, "E467", "{error}");
        // Where one stage is wrong, its table is named.
        let table = if found.ends_with("slice") { "pipeline_split" } else { "plan.toml, [[stages]] table " };
        assert!(error.at.as_deref().unwrap().contains(table), "{error}");
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

/// Two stages, until `layers.0` and to the end, with these meshes and lines.
fn with_lines(first: (&str, &str), last: (&str, &str)) -> Plan {
    let table = |until: &str, (mesh, lines): (&str, &str)| {
        format!("[[stages]]\n{until}mesh = \"{mesh}\"\nplan = {{ {lines} }}\n")
    };
    let text = table("until = \"layers.0\"\n", first) + &table("", last);
    ok(Plan::from_toml(&text, "plan.toml"))
}

const UP: [&str; 2] = ["layers.0.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"];

#[test]
fn lines_of_a_stage_are_for_its_modules_on_its_mesh() {
    let (tp, fsdp) = ("\"layers.*.mlp.up_proj\" = \"colwise\"", "\"**\" = \"fsdp\"");
    for (first, last, mesh, shapes) in [
        // The same pattern in one stage, in the other, in both, and another axis in each.
        (("tp=2", tp), ("tp=2", ""), "pp=2,tp=2", [vec![[16, 8]; 2], vec![[32, 8]; 2]]),
        (("tp=2", ""), ("tp=2", tp), "pp=2,tp=2", [vec![[32, 8]; 2], vec![[16, 8]; 2]]),
        (("tp=2", tp), ("tp=4", tp), "pp=6", [vec![[16, 8]; 2], vec![[8, 8]; 4]]),
        (("tp=2", tp), ("fsdp=2", fsdp), "pp=4", [vec![[16, 8]; 2], vec![[16, 8]; 2]]),
        (("tp=2", ""), ("fsdp=2", fsdp), "pp=4", [vec![[32, 8]; 2], vec![[16, 8]; 2]]),
    ] {
        let plan = with_lines(first, last);
        for plan in [
            plan.clone(),
            ok(Plan::from_toml(&plan.to_dict_toml(), "again")),
            ok(Plan::from_calls(&plan.to_calls(), "")),
        ] {
            let built = ok(built(&plan, &ok(Mesh::parse(mesh, None))));
            for (name, shapes) in UP.iter().zip(&shapes) {
                let expected: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
                assert_eq!(built.local_shapes(name), Some(expected), "{name} of {plan:?}");
            }
        }
    }
}

#[test]
fn structural_lines_of_a_stage_are_for_its_modules() {
    let plan = with_lines(("dp=1", "\"\" = \"checkpoint\""), ("dp=1", ""));
    let built = ok(built(&plan, &ok(Mesh::parse("pp=2", None))));
    let recomputed = |value: &ValueId| matches!(built.step.value(*value).role, Role::RematOf(_));
    let made_by = |value: ValueId| built.step.value(value).definition.map(|(node, _)| built.step.node(node));
    let again = built.step.value_ids().filter(recomputed).filter_map(made_by);
    let layers = again.filter(|node| node.path.starts_with("layers."));
    let modules: BTreeSet<&str> = layers.map(|node| &node.path[..8]).collect();
    assert_eq!(modules, BTreeSet::from(["layers.0"]));
    let forward = ok(restructure(
        &plan,
        &gpt(),
        &BuildContext { registry: &Registry::default(), runner: &Interpreter },
    ));
    let told = lines(&built, &forward.model.forward);
    let line = told.iter().find(|line| line.line.contains("checkpoint")).expect("it is told");
    assert_eq!(line.line, "\"\" = \"checkpoint(stage=0)\"");
    assert!(line.recomputed_bytes > 0, "{line:?}");
}

#[test]
fn a_line_that_does_not_fit_its_stage_is_refused() {
    let up = "\"layers.1.mlp.up_proj\" = \"colwise\"";
    let error = refused(&with_lines(("tp=2", up), ("tp=2", "")), "pp=2,tp=2");
    assert_eq!(error.code, "E221", "{error}");
    assert!(
        error.message.ends_with("of stage 0") && error.help.as_deref().unwrap().contains("move the line"),
        "{error}"
    );
    // The message names the mesh of the line's stage.
    for (first, last, expected) in [
        (("tp=2", "\"**\" = \"fsdp\""), ("fsdp=3", ""), "an axis of tp=2"),
        (("tp=2", ""), ("fsdp=3", up), "an axis of fsdp=3"),
    ] {
        let error = refused(&with_lines(first, last), "pp=5");
        assert_eq!((error.code, error.expected.as_deref()), ("E223", Some(expected)), "{error}");
    }
    let mut plan = Plan::default();
    ok(plan.add("layers.1", "checkpoint(stage=2)", "test"));
    assert_eq!(refused(&plan, "pp=2").code, "E221");
    ok(plan.add("layers.1", "checkpoint", "test"));
    plan.entries.remove(0);
    ok(plan.add("layers.1.mlp.up_proj", "replicate(stage=2)", "test"));
    let error = refused(&plan, "pp=2");
    assert_eq!((error.code, error.expected.as_deref()), ("E463", Some("a stage below 2")), "{error}");
    // Without a pipeline, the line would be for the whole model.
    let text =
        "[[stages]]\nuntil = \"layers.0\"\nplan = { \"layers.*.mlp.up_proj\" = \"colwise\" }\n[[stages]]\n";
    let error = refused(&ok(Plan::from_toml(text, "plan.toml")), "tp=2");
    assert_eq!(error.code, "E463", "{error}");
    assert!(error.expected.as_deref().unwrap().contains("the axis `pp`"), "{error}");
    // Numbers of stages would be ambiguous.
    let text = "[[stages]]\nuntil = \"layers.0\"\n[[stages]]\nuntil = \"layers.0.attn\"\n[[stages]]\nplan = { \"lm_head\" = \"replicate\" }\n";
    assert_eq!(refused(&ok(Plan::from_toml(text, "plan.toml")), "pp=3").code, "E463");
}

#[test]
fn idle_ranks_have_their_numbers_in_the_whole_mesh() {
    let mut plan = Plan::default();
    ok(plan.add("layers.*.attn.*_proj", "colwise", "test"));
    let notes = ok(built(&plan, &ok(Mesh::parse("pp=2,tp=3", None)))).notes;
    for rank in [2, 5] {
        let idle = format!("rank {rank} is idle");
        assert_eq!(notes.iter().filter(|note| note.text.contains(&idle)).count(), 1, "{notes:?}");
    }
}

#[test]
fn each_stage_names_the_line_that_ends_it() {
    let built = ok(built(&listed([("tp=2", ""), ("dp=1", "")]), &ok(Mesh::parse("pp=3", None))));
    assert_eq!(built.ending_lines.len(), 1);
    assert!(built.ending_lines[0].contains("[[stages]] table 1"), "{:?}", built.ending_lines);
}
