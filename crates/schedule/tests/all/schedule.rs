//! The schedule language, call by call: structural primitives, their errors, and the scope that
//! verifies them.

use crate::common::{block, ok, unchecked};
use partita_base::{DType, Result};
use partita_ir::composites::GELU;
use partita_ir::custom::CustomOp;
use partita_ir::{Attribute, GraphBuilder, Registry, ValueId};
use partita_mesh::Mesh;
use partita_schedule::{Argument, Pattern, Plan, Schedule};

fn schedule(mesh: &str) -> Schedule {
    Schedule::new(&block(), &Mesh::parse(mesh, None).unwrap()).unwrap()
}

/// The forward graph as text, independent of value numbers.
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
    // The gradient and the rule follow from the decomposition: the plan still shards the layers.
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
    // Inlined into primitives first, so that there is something to replace.
    ok(sch.at("norm").unwrap().decompose());
    let opened = sch.at("norm").unwrap().forward_ops().len();
    ok(sch.verify(|s| s.root().replace_all("LayerNorm", "partita.layer_norm", &epsilon).map(|_| ())));
    assert!(opened > 3);
    assert_eq!(sch.at("norm").unwrap().forward_ops()[..], [("norm".to_string(), "layer_norm".to_string())]);
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
    let mut sch = schedule("dp=2,tp=2,pp=1");
    ok(sch.verify(|s| {
        s.at("linear1")?.style("colwise")?.pipeline_split()?.fork_rng()?;
        s.at("linear1")?.annotate("weight", "tag", Argument::text("kept"))?;
        s.at("linear2")?.style("rowwise").map(|_| ())
    }));
    let [pipeline, fork] = sch.notes() else { panic!("{:?}", sch.notes()) };
    assert!(
        pipeline.text.contains("pipeline_split") && pipeline.text.contains("a pipeline stage ends here on"),
        "{pipeline}"
    );
    assert!(fork.text.contains("fork_rng"), "{fork}");
    let built = ok(sch.build());
    assert!(sch.notes().iter().all(|note| built.notes.contains(note)), "{:?}", built.notes);
    ok(sch.verify(|s| s.at("activation")?.checkpoint().map(|_| ())));
    assert_eq!(code(sch.at("activation").unwrap().checkpoint().map(|_| ())), "E136");
    for text in [sch.plan().to_calls(), sch.plan().to_toml(), sch.plan().to_dict_toml()] {
        let plan = ok(Plan::parse(&text, "again"));
        assert_eq!(&plan, sch.plan(), "{text}");
        let mut again = schedule("dp=2,tp=2,pp=1");
        ok(again.extend(&plan));
        assert!(graph(&again) == graph(&sch));
    }
}

#[test]
fn what_was_found_is_printed_with_modules_ops_and_results() {
    let mut sch = schedule("tp=2");
    ok(sch.at("linear1").unwrap().decompose());
    let found = ok(sch.root().find(&ok(Pattern::parse("gelu(x + bias)"))));
    assert_eq!(
        found.to_string(),
        "   0  linear1: broadcast_in_dim add; activation: gelu -> tensor<6x12xf64>\n"
    );
    let linears = ok(sch.root().find(&ok(Pattern::parse("linear(x, w)"))));
    assert_eq!(linears.count(), 2);
    let second = "   1  linear2: dot_general -> tensor<6x4xf64>\n";
    assert_eq!(linears.to_string(), format!("   0  linear1: dot_general -> tensor<6x12xf64>\n{second}"));
    assert_eq!(linears.only(&[1]).to_string(), second);
}

/// Composites that compute the same as ops of the block.
fn registry() -> Registry {
    let mut registry = Registry::default();
    let layer = |b: &mut GraphBuilder, x: ValueId, w: ValueId, bias: ValueId| -> Result<ValueId> {
        let y = b.linear(x, w)?;
        let shape = b.shape(y);
        let bias = b.broadcast_trailing(bias, &shape)?;
        b.add(y, bias)
    };
    let gelu =
        |b: &mut GraphBuilder, x: ValueId| b.composite(&GELU, &[("tanh", Attribute::Bool(false))], &[x]);
    for op in [
        CustomOp::new("mine.linear", &["x", "weight", "bias"], move |b, v| {
            Ok(vec![layer(b, v[0], v[1], v[2])?])
        }),
        CustomOp::new("mine.block", &["x", "w1", "b1", "w2", "b2"], move |b, v| {
            let h = layer(b, v[0], v[1], v[2])?;
            let h = gelu(b, h)?;
            Ok(vec![layer(b, h, v[3], v[4])?])
        }),
        CustomOp::new("mine.negate", &["x"], |b, v| Ok(vec![b.negate(v[0])?])),
    ] {
        ok(registry.add_custom(op));
    }
    registry
}

#[test]
fn ops_are_replaced_by_their_numbers() {
    let mut sch = schedule("tp=2").with_registry(registry());
    let ops = sch.root().forward_ops();
    let shown = ops.to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), ops.len());
    assert_eq!(lines[0], "   0  norm        layer_norm        tensor<6x4xf64>");
    assert_eq!(lines[1], "   1  linear1     dot_general       tensor<6x12xf64>");
    // One op, by its name.
    ok(sch.verify(|s| {
        let epsilon = ("epsilon", Argument::Float(1e-5));
        s.root().replace_ops(0..1, "partita.layer_norm", &[epsilon]).map(|_| ())
    }));
    // The ops of one layer, then of three: names that two parameters share are said in full.
    let mut one = schedule("tp=2").with_registry(registry());
    ok(one.verify(|s| s.root().replace_ops(1..4, "mine.linear", &[]).map(|_| ())));
    assert_eq!(one.root().forward_ops()[1], ("linear1".to_string(), "linear".to_string()));
    let names = |pairs: [(&'static str, &str); 4]| pairs.map(|(key, name)| (key, Argument::text(name)));
    let bindings = names([
        ("w1", "linear1.weight"),
        ("b1", "linear1.bias"),
        ("w2", "linear2.weight"),
        ("b2", "linear2.bias"),
    ]);
    ok(sch.verify(|s| s.root().replace_ops(1..8, "mine.block", &bindings).map(|_| ())));
    assert_eq!(sch.root().forward_ops()[1].1, "block");
    // Op numbers count within the selected modules.
    let mut inner = schedule("tp=2").with_registry(registry());
    ok(inner.at("linear2").unwrap().replace_ops(0..3, "mine.linear", &[]));
    assert_eq!(inner.at("linear2").unwrap().forward_ops().len(), 1);
    for plan in [sch.plan(), inner.plan()] {
        for text in [plan.to_calls(), plan.to_toml(), plan.to_dict_toml()] {
            assert_eq!(&ok(Plan::parse(&text, "again")), plan, "{text}");
        }
    }
    let before = (inner.plan().clone(), graph(&inner));
    let count = inner.root().forward_ops().len();
    for (ops, with, expected) in [
        (count..count + 1, "mine.linear", "E264"),
        (2..2, "mine.linear", "E264"),
        (0..usize::MAX, "mine.linear", "E264"),
        (4..5, "mine.negate", "E251"),
        (1..3, "mine.linear", "E250"),
        (1..2, "mine.nothing", "E244"),
    ] {
        let result = inner.root().replace_ops(ops.clone(), with, &[]).map(|_| ());
        assert_eq!(code(result), expected, "{ops:?} {with}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = inner.root().replace_ops(3..1, "mine.linear", &[]).map(|_| ());
    assert_eq!(code(backwards), "E264");
    assert!(before == (inner.plan().clone(), graph(&inner)));
}

#[test]
fn compilers_of_pytorch_stand_for_our_kernels_and_a_note_says_so() {
    for compiler in ["TorchScript", "TorchInductor"] {
        let mut sch = schedule("tp=2");
        ok(sch.at("linear1").unwrap().decompose());
        let found = ok(sch.root().find(&ok(Pattern::parse("gelu(x + bias)"))));
        ok(sch.verify(|s| s.root().fuse(&found, "BiasGeLU", Some(compiler)).map(|_| ())));
        let [note] = sch.notes() else { panic!("{:?}", sch.notes()) };
        assert!(note.text.contains(&format!("{compiler} is not used")), "{note}");
        assert!(note.text.contains("one kernel of `interpreter`"), "{note}");
        let called = format!("sch.fuse('gelu(x + bias)', compiler='{compiler}', name='BiasGeLU')");
        assert_eq!(ok(Plan::from_calls(&called, "case")).entries[0], sch.plan().entries[1]);
    }
    let mut sch = schedule("tp=2");
    let found = ok(sch.root().find(&ok(Pattern::parse("gelu(x)"))));
    let error = sch.root().fuse(&found, "mine.gelu", Some("nvfuser")).map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E252");
    assert!(error.to_string().contains("TorchScript, TorchInductor"), "{error}");
}

#[test]
fn options_without_effect_are_noted_and_a_sync_by_a_function_is_refused() {
    let mut sch = schedule("tp=2");
    ok(sch.verify(|s| s.at("linear1")?.style("ColwiseParallel(use_local_output=False)").map(|_| ())));
    let built = ok(sch.build());
    let [note] = &built.notes[..] else { panic!("{:?}", built.notes) };
    assert!(
        note.text.contains("\"linear1\"") && note.text.contains("`use_local_output` changes nothing"),
        "{note}"
    );
    let before = sch.plan().clone();
    let error = sch.at("linear2").unwrap().sync("fwd_post", "sync_fn").map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E263");
    let plan = "sch['linear2'].sync('fwd_post', sync_op_or_fn=lambda module, x, y: reduce(y))";
    let error = Plan::from_calls(plan, "plan.py").unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E263", Some("plan.py:1")));
    assert_eq!(error.found.as_deref(), Some("lambda module, x, y: reduce(y)"));
    assert_eq!(sch.plan(), &before);
}

/// The notes of a plan.
fn notes(mesh: &str, calls: &str, sequence_parallel: bool) -> Vec<String> {
    let mut sch = schedule(mesh);
    sch.options().sequence_parallel = sequence_parallel;
    ok(sch.extend(&ok(Plan::from_calls(calls, "plan"))));
    assert!(ok(sch.compare()).ok, "{calls}");
    ok(unchecked(&mut sch, &block(), &Registry::default())).notes.into_iter().map(|note| note.text).collect()
}

#[test]
fn lines_that_undo_others_are_noted_with_both_and_which_one_holds() {
    let single = |mesh: &str, calls: &str, parts: &[&str]| {
        let notes = notes(mesh, calls, false);
        let [note] = &notes[..] else { panic!("{calls}: {notes:?}") };
        assert!(parts.iter().all(|part| note.contains(part)), "{calls}: {note}");
    };
    let holds = "(plan:2) overrides";
    // Two styles for one module, and a default that comes last.
    single(
        "tp=2",
        "sch['linear1'].colwise()\nsch['linear1'].rowwise()",
        &["`linear1`: ", "overrides \"linear1\" = \"colwise\" (plan:1)", "\"rowwise\"", holds],
    );
    single("tp=2", "sch['linear1'].colwise()\nsch['**'].replicate()", &["`linear1`: ", holds]);
    // A default with an exception is no contradiction, nor is a line twice.
    assert!(notes("tp=2", "sch['**'].replicate()\nsch['linear1'].colwise()", false).is_empty());
    assert!(notes("tp=2", "sch['linear1'].colwise()\nsch['linear1'].colwise()", false).is_empty());
    // How parameters are kept.
    single("dp=2", "sch['**'].zero1()\nsch['**'].zero2()", &["linear1.bias` and ", "\"zero2\"", holds]);
    assert!(notes("dp=2", "sch['**'].zero1()\nsch['linear1'].zero2()", false).is_empty());
    single(
        "tp=2",
        "sch['linear1'].colwise()\nsch['linear1'].fsdp(axis='tp')",
        &["\"fsdp(axis=tp)\" (plan:2): no effect on", "which another line shards along `tp`"],
    );
    // Notes on a parameter, and the element type of a module.
    single(
        "tp=1",
        "sch['linear1'].annotate('weight', 'tag', 1)\nsch['linear1'].annotate('weight', 'tag', 2)",
        &["replaces `tag` of `linear1.weight`, which was 1", "(plan:2)"],
    );
    single(
        "tp=1",
        "sch['linear1'].precision('f32')\nsch['linear1'].precision('f64')",
        &["\"precision(f64)\" (plan:2) replaces", "\"precision(f32)\" (plan:1)"],
    );
}

#[test]
fn the_last_line_holds_for_how_a_parameter_is_kept() {
    let mut sch = schedule("dp=2");
    ok(sch.extend(&ok(Plan::from_calls("sch['**'].zero1()\nsch['linear1'].fsdp(axis='dp')", "plan"))));
    let built = ok(sch.build());
    assert_eq!(built.local_shapes("linear1.weight").unwrap(), vec![vec![6, 4]; 2]);
    assert_eq!(built.local_shapes("linear2.weight").unwrap(), vec![vec![4, 12]; 2]);
    assert!(ok(sch.compare()).ok);
}
