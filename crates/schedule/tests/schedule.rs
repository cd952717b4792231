//! The schedule language, call by call: structural primitives, what they refuse, and the scope that verifies them.

mod common;

use common::{block, ok};
use partita_base::{DType, Result};
use partita_mesh::Mesh;
use partita_schedule::{Argument, Pattern, Plan, Schedule};

fn schedule(mesh: &str) -> Schedule {
    Schedule::new(&block(), &Mesh::parse(mesh, None).unwrap()).unwrap()
}

/// The forward graph as text, whatever the numbers of its values.
fn graph(sch: &Schedule) -> String {
    partita_ir::text::print(sch.graph())
}

fn code<T>(result: Result<T>) -> &'static str {
    match result {
        Ok(_) => "accepted",
        Err(error) => error.code,
    }
}

#[test]
fn a_bias_and_a_gelu_become_one_composite_once_the_layer_is_open() {
    let mut sch = schedule("tp=2");
    let pattern = ok(Pattern::parse("gelu(x + bias)"));
    let error = sch.root().find(&pattern).unwrap_err();
    assert_eq!(error.code, "E248");
    assert!(error.help.as_deref().unwrap().contains("decompose"), "{error}");
    ok(sch.at("linear1").unwrap().decompose());
    let found = ok(sch.root().find(&pattern));
    assert_eq!(found.count(), 1);
    ok(sch.verify(|s| s.root().fuse(&found, "mine.bias_gelu", None).map(|_| ())));
    let ops = sch.root().forward_ops();
    assert!(ops.iter().any(|(_, op)| op == "bias_gelu"), "{ops:?}");
    // The gradient and the rule follow from the decomposition: the plan still cuts the layers.
    ok(sch.verify(|s| {
        s.at("linear1")?.style("colwise")?;
        s.at("linear2")?.style("rowwise").map(|_| ())
    }));
    let text = sch.to_string();
    assert!(text.contains("> decompose()") && text.contains("weight: tensor<12x4xf64>"), "{text}");
}

#[test]
fn undo_takes_lines_back_one_by_one() {
    let mut sch = schedule("tp=2");
    let before = graph(&sch);
    ok(sch.at("linear1").unwrap().decompose());
    let found = ok(sch.root().find(&ok(Pattern::parse("gelu(x + bias)"))));
    ok(sch.root().fuse(&found, "mine.bias_gelu", None));
    assert!(graph(&sch) != before);
    assert_eq!(ok(sch.undo()).unwrap().primitive.to_call().name, "fuse");
    assert!(graph(&sch) == before, "{}", graph(&sch));
    assert_eq!(ok(sch.undo()).unwrap().primitive.to_string(), "decompose");
    assert!(ok(sch.undo()).is_none());
    assert_eq!(sch.plan(), &Plan::default());
}

#[test]
fn what_is_refused_leaves_the_schedule_as_it_was() {
    let mut sch = schedule("tp=2");
    ok(sch.at("linear1").unwrap().decompose());
    let (plan, text) = (sch.plan().clone(), graph(&sch));
    let epsilon = [("epsilon", Argument::Float(1e-5))];
    let other_epsilon = [("epsilon", Argument::Float(1e-1))];
    let swapped =
        [("weight", Argument::text("bias")), ("bias", Argument::text("weight")), epsilon[0].clone()];
    let unknown = [("weight", Argument::text("wieght")), epsilon[0].clone()];
    let cases = [
        ("E221", code(sch.at("linaer1").map(|_| ()))),
        ("E242", code(sch.root().find(&ok(Pattern::parse("tanh(x)"))).map(|_| ()))),
        ("E250", code(sch.at("norm").unwrap().replace("partita.attention", &[]).map(|_| ()))),
        ("E250", code(sch.at("norm").unwrap().replace("partita.layer_norm", &unknown).map(|_| ()))),
        ("E244", code(sch.at("norm").unwrap().replace("partita.layernorm", &epsilon).map(|_| ()))),
        ("E251", code(sch.at("norm").unwrap().replace("partita.layer_norm", &other_epsilon).map(|_| ()))),
        ("E251", code(sch.at("norm").unwrap().replace("partita.layer_norm", &swapped).map(|_| ()))),
        ("E255", code(sch.at("linear1").unwrap().decompose().map(|_| ()))),
        ("E256", code(sch.root().pipeline_split().map(|_| ()))),
        ("E232", code(sch.at("linear1").unwrap().annotate("wieght", "a", Argument::Int(1)).map(|_| ()))),
        ("E221", code(sch.root().replace_all("LayerNrom", "partita.layer_norm", &epsilon).map(|_| ()))),
        ("E222", code(sch.at("linear1").unwrap().style("colwse").map(|_| ()))),
        ("E223", code(sch.at("linear1").unwrap().style("colwise(axis=ep)").map(|_| ()))),
    ];
    for (number, (expected, found)) in cases.iter().enumerate() {
        assert_eq!(expected, found, "case {number}");
    }
    assert_eq!(sch.plan(), &plan);
    assert!(graph(&sch) == text);
}

#[test]
fn a_norm_is_replaced_by_an_equal_one_and_nothing_else_changes() {
    let mut sch = schedule("tp=2");
    let epsilon = [("epsilon", Argument::Float(1e-5))];
    // Opened into primitives first, so that there is something to replace.
    ok(sch.at("norm").unwrap().decompose());
    let opened = sch.at("norm").unwrap().forward_ops().len();
    ok(sch.verify(|s| s.root().replace_all("LayerNorm", "partita.layer_norm", &epsilon).map(|_| ())));
    assert!(opened > 3);
    assert_eq!(sch.at("norm").unwrap().forward_ops(), [("norm".to_string(), "layer_norm".to_string())]);
}

#[test]
fn precision_is_part_of_what_a_step_is_compared_with() {
    let mut sch = schedule("tp=2");
    let report = ok(sch.verify(|s| {
        s.at("linear1")?.precision(DType::F32)?.style("colwise")?;
        s.at("linear2")?.style("rowwise").map(|_| ())
    }));
    assert_eq!(report.tolerance, 1e-4);
    let converts = sch.at("linear1").unwrap().forward_ops().iter().filter(|(_, op)| op == "convert").count();
    assert!(converts >= 3, "into f32 and back: {converts}");
}

#[test]
fn a_checkpoint_is_verified_and_recorded_splits_and_notes_change_nothing() {
    let mut sch = schedule("dp=2,tp=2");
    ok(sch.verify(|s| {
        s.at("linear1")?.style("colwise")?.pipeline_split()?.fork_rng()?;
        s.at("linear1")?.annotate("weight", "tag", Argument::text("kept"))?;
        s.at("linear2")?.style("rowwise").map(|_| ())
    }));
    assert_eq!(sch.notes().len(), 1, "{:?}", sch.notes());
    ok(sch.verify(|s| s.at("activation")?.checkpoint().map(|_| ())));
    assert_eq!(code(sch.at("activation").unwrap().checkpoint().map(|_| ())), "E136");
    for text in [sch.plan().to_calls(), sch.plan().to_toml(), sch.plan().to_dict_toml()] {
        let plan = ok(Plan::parse(&text, "again"));
        assert_eq!(&plan, sch.plan(), "{text}");
        let mut again = schedule("dp=2,tp=2");
        ok(again.extend(&plan));
        assert!(graph(&again) == graph(&sch));
    }
}
