//! Rejections of a schedule: each mistake has a code, a message in global shapes, and a suggestion,
//! and leaves the schedule unchanged.

use crate::common::{block, ok};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::SOFTMAX;
use partita_ir::custom::CustomOp;
use partita_ir::ops::DotGeneral;
use partita_ir::{GraphBuilder, Registry, ValueId, evaluate, text};
use partita_mesh::Mesh;
use partita_nn::modules::GELU;
use partita_nn::{Context, Dropout, Linear, Model, MultiheadAttention, Optimizer, StepOptions, losses};
use partita_schedule::feed::random_feed;
use partita_schedule::tensors::inputs_of;
use partita_schedule::verify::{Interpreter, StepRunner};
use partita_schedule::{
    Argument, BuildContext, BuildOptions, BuildRequest, Pattern, Plan, Schedule, StepKind,
};

fn schedule(model: &Model) -> Schedule {
    Schedule::new(model, &Mesh::new("mesh", &[("tp", 2)])).unwrap()
}

/// A schedule after these calls.
fn after(calls: &str) -> Schedule {
    let mut sch = schedule(&block());
    ok(sch.extend(&ok(Plan::from_calls(calls, "before"))));
    sch
}

/// The error of a rejected call; the schedule is unchanged.
fn refused<T>(sch: &mut Schedule, call: impl FnOnce(&mut Schedule) -> Result<T>) -> Box<Diagnostic> {
    let state = |sch: &Schedule| (sch.plan().clone(), text::print(sch.graph()), sch.to_string());
    let before = state(sch);
    let Err(error) = call(sch) else { panic!("accepted:\n{sch}") };
    assert!(state(sch) == before, "something changed: {sch}");
    error
}

/// Checks the code, parts of the message, and the suggestion.
fn says(error: &Diagnostic, code: &str, parts: &[&str], help: &str) {
    assert_eq!(error.code, code, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(error.help.as_ref().is_some_and(|h| h.contains(help)), "no help {help:?} in\n{text}");
}

#[test]
fn d2_double_sharding() {
    let mut sch = after("sch['linear1'].shard('weight', 0)");
    for dim in [0, 1] {
        let error = refused(&mut sch, |s| s.at("linear1")?.shard("weight", dim).map(|_| ()));
        let parts = ["`linear1.weight` is already sharded along `tp`", "[12, 4]", "shard(weight, 0)"];
        says(&error, "E231", &parts, "another dimension can be sharded along another axis");
    }
    // A style and a call, in either order.
    let error = refused(&mut sch, |s| s.at("linear1")?.style("rowwise").map(|_| ()));
    says(&error, "E231", &["`linear1.weight`", "[12, 4]"], "remove one of the lines");
    // Inputs and outputs.
    for tensor in ["input", "output"] {
        let mut sch = after(&format!("sch['activation'].shard('{tensor}', 0)"));
        let error = refused(&mut sch, |s| s.at("activation")?.shard(tensor, 1).map(|_| ()));
        says(&error, "E231", &["is already sharded along `tp`", "[6, 12]"], "remove one");
    }
}

#[test]
fn a_dimension_that_does_not_exist() {
    let mut sch = after("");
    for (module, tensor, dim, shape) in [
        ("linear1", "weight", 2, "12x4"),
        ("linear1", "bias", 1, "12"),
        ("linear1", "bias", -2, "12"),
        ("activation", "output", 5, "6x12"),
        ("activation", "input", -3, "6x12"),
    ] {
        let error = refused(&mut sch, |s| s.at(module)?.shard(tensor, dim).map(|_| ()));
        let parts = [format!("has no dimension {dim}"), format!("tensor<{shape}xf64>")];
        assert_eq!(error.code, "E224", "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        assert!(error.expected.is_some(), "which dimensions there are: {error}");
    }
    let mut sch = after("sch['linear1'].shard('weight', 1)");
    let error =
        refused(&mut sch, |s| s.at("linear1")?.sync_along("fwd_post", "reduce_scatter", 3).map(|_| ()));
    assert_eq!(error.code, "E224", "{error}");
    assert!(error.to_string().contains("tensor<6x12xf64>"), "{error}");
}

#[test]
fn contradictory_and_doubled_sync_in_every_combination() {
    let cut = "sch['linear1'].shard('weight', 0)";
    let partial = "sch['linear1'].shard('weight', 1)";
    let (fine, whole, other) = ("accepted", "E233", "E234");
    let ops = [
        ("all_reduce", None),
        ("all_gather", None),
        ("all_gather", Some(0)),
        ("reduce_scatter", Some(0)),
        ("scatter", Some(0)),
        ("RS->SR", None),
        ("SR->RR", None),
        ("RR->RS", None),
    ];
    let forward = [
        ("", [whole, whole, whole, whole, fine, whole, whole, fine]),
        (cut, [other, fine, other, other, other, fine, other, other]),
        (partial, [fine, other, other, fine, other, other, other, fine]),
    ];
    for (mode, module) in [("fwd_post", "linear1"), ("fwd_pre", "activation")] {
        for (before, expected) in forward {
            for ((op, dim), expected) in ops.iter().zip(expected) {
                sync(before, module, mode, op, *dim, expected, "tensor<6x12xf64>");
            }
        }
    }
    // The gradient of the input of `linear1`: replicated if nothing is sharded, a sum if its
    // columns are; and that of the input of `linear2`, sharded if its rows are.
    let rows = format!("{cut}\nsch['linear2'].shard('weight', 1)");
    let backward = [
        ("", "linear1", "tensor<6x4xf64>", [whole, other, other, whole, other, other, other, other]),
        (cut, "linear1", "tensor<6x4xf64>", [fine, other, other, fine, other, other, other, other]),
        (&rows, "linear2", "tensor<6x12xf64>", [other; 8]),
    ];
    for (before, module, shape, expected) in backward {
        for ((op, dim), expected) in ops.iter().zip(expected) {
            sync(before, module, "bwd_post", op, *dim, expected, shape);
        }
    }
}

/// Requests a `sync` after these lines.
fn sync(before: &str, module: &str, mode: &str, op: &str, dim: Option<isize>, expected: &str, shape: &str) {
    let what = format!("{before} then {module} {mode} {op} {dim:?}");
    let call = |s: &mut Schedule| -> Result<()> {
        let mut at = s.at(module)?;
        match dim {
            Some(dim) => at.sync_along(mode, op, dim).map(|_| ()),
            None => at.sync(mode, op).map(|_| ()),
        }
    };
    let mut sch = after(before);
    if expected == "accepted" {
        call(&mut sch).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(ok(sch.compare()).ok, "{what}");
        return;
    }
    let error = refused(&mut sch, call);
    assert_eq!(error.code, expected, "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains(shape) && text.contains("why: ") && error.help.is_some(), "{what}: {text}");
    let name = match (mode, module) {
        ("bwd_post", _) => "the gradient of `",
        _ => " in linear1 (forward)`",
    };
    assert!(error.message.contains(name), "{what}: {text}");
    let doubled = error.message.contains("is already replicated over `tp`");
    assert_eq!(doubled, expected == "E233", "{what}: {text}");
}

#[test]
fn a_doubled_collective_names_the_value_and_the_line_that_made_it_whole() {
    let calls =
        "sch['linear1'].style('colwise')\nsch['linear2'].shard('weight', 1).sync('fwd_post', 'all_reduce')";
    let calls = calls.replace("style('colwise')", "shard('weight', 0)");
    let mut sch = after(&calls);
    let error = refused(&mut sch, |s| s.at("linear2")?.sync("fwd_post", "all_reduce").map(|_| ()));
    let parts = [
        "in linear2 (forward)` is already replicated over `tp`",
        "tensor<6x4xf64>",
        "\"linear2\" = \"sync(fwd_post, all_reduce)\"",
    ];
    says(&error, "E233", &parts, "remove this line");
}

#[test]
fn a_pattern_that_matches_nothing() {
    let mut sch = after("");
    let pattern = ok(Pattern::parse("tanh(x)"));
    let parts = ["the pattern matches nothing", "`tanh(x)`", "gelu"];
    let help = "print the ops of a module with `forward_ops()`";
    says(&refused(&mut sch, |s| s.root().find(&pattern)), "E242", &parts, help);
    says(&refused(&mut sch, |s| s.root().checkpoint_subgraph("tanh(x)").map(|_| ())), "E242", &parts, help);
    let missing = ok(sch.root().find(&ok(Pattern::parse("gelu(x)")))).only(&[1]);
    let error = refused(&mut sch, |s| s.root().fuse(&missing, "mine.gelu", None).map(|_| ()));
    assert_eq!((error.code, error.expected.as_deref()), ("E243", Some("numbers from 0 to 0")), "{error}");
}

#[test]
fn d5_nothing_found_is_never_an_empty_list() {
    let mut sch = after("");
    for module in ["norm", "linear2"] {
        let error = refused(&mut sch, |s| s.at(module)?.find(&ok(Pattern::parse("gelu(x)"))));
        says(&error, "E242", &["the pattern matches nothing", module], "forward_ops()");
    }
    let error = refused(&mut sch, |s| s.at("activatoin")?.trace(true).map(|_| ()));
    says(&error, "E221", &["`activatoin`"], "did you mean `activation`");
}

#[test]
fn d6_neither_model_nor_inputs_change() {
    let model = block();
    let (graph, start) = (text::print(&model.forward), model.initial(1).unwrap());
    let mut sch = schedule(&model);
    let (first, second) = (ok(sch.compare()), ok(sch.compare()));
    assert_eq!(first, second);
    let all = "sch['linear1'].decompose()\nsch.fuse('gelu(x + b)', name='mine.gelu')\n\
               sch['linear2'].shard('weight', 1).sync('fwd_post', 'all_reduce')\nsch['norm'].checkpoint()";
    ok(sch.extend(&ok(Plan::from_calls(all, "case"))));
    assert_eq!(ok(sch.compare()), ok(sch.compare()));
    while ok(sch.undo()).is_some() {}
    assert_eq!(ok(sch.compare()), first);
    assert!(text::print(sch.graph()) == graph && text::print(&model.forward) == graph);
    assert_eq!(model.initial(1).unwrap(), start);
}

#[test]
fn d7_a_name_is_taken_once() {
    let op = |name: &str| CustomOp::new(name, &["x"], |_, x| Ok(x.to_vec()));
    let mut registry = Registry::default();
    ok(registry.add_custom(op("mine.same")));
    ok(registry.add_custom(op("mine.other")));
    for name in ["mine.same", "partita.gelu"] {
        let error = registry.add_custom(op(name)).unwrap_err();
        says(&error, "E247", &[&format!("`{name}` is the name of another")], "choose a name of your own");
    }
    // A subgraph cannot take the name of an op either.
    let mut sch = schedule(&block()).with_registry(registry);
    let found = ok(sch.root().find(&ok(Pattern::parse("gelu(x)"))));
    let error = refused(&mut sch, |s| s.root().fuse(&found, "mine.same", None).map(|_| ()));
    says(&error, "E254", &["`mine.same`"], "choose one such as");
}

#[test]
fn fuse_over_a_boundary() {
    let mut sch = after("");
    let pattern = ok(Pattern::parse("gelu(x + bias)"));
    let error = refused(&mut sch, |s| s.root().find(&pattern));
    let parts = ["crosses the boundary of the layer `linear1`"];
    says(&error, "E248", &parts, "inline it first: sch[\"linear1\"].decompose()");

    // `trace` makes a module around layers transparent.
    let mut cx = Context::new("nested", DType::F64, true);
    let x = cx.input("inputs", DType::F64, &[6, 4]);
    let h = ok(cx.scope("around", |cx| {
        let h = cx.call("linear", &Linear::new(4, 4), x)?;
        cx.builder.unary(partita_ir::ops::UnaryKind::Tanh, h)
    }));
    let y = ok(cx.call("activation", &GELU::default(), h));
    let loss = ok(losses::mse(&mut cx, y, x));
    let mut sch = schedule(&cx.finish(vec![("loss".to_string(), loss)]).unwrap());
    let pattern = ok(Pattern::parse("gelu(tanh(x))"));
    let error = refused(&mut sch, |s| s.root().find(&pattern));
    says(&error, "E248", &["boundary of the module `around`"], "sch.trace(flatten=True)");
    ok(sch.root().trace(true).map(|_| ()));
    assert_eq!(ok(sch.root().find(&pattern)).count(), 1);
}

#[test]
fn fuse_with_something_between() {
    // x + tanh(h) and h = x * x: what is between the two additions of the pattern is computed outside.
    let mut cx = Context::new("between", DType::F64, true);
    let x = cx.input("inputs", DType::F64, &[6, 4]);
    let h = ok(cx.call("linear", &Linear::new(4, 4), x));
    let outputs = ok(cx.scope("body", |cx| -> Result<ValueId> {
        let a = cx.builder.multiply(h, h)?;
        let between = cx.builder.unary(partita_ir::ops::UnaryKind::Tanh, a)?;
        cx.builder.add(a, between)
    }));
    let loss = ok(losses::mse(&mut cx, outputs, x));
    let mut sch = schedule(&cx.finish(vec![("loss".to_string(), loss)]).unwrap());
    let found = ok(sch.at("body").unwrap().find(&ok(Pattern::parse("a = x * x; a + y"))));
    let error = refused(&mut sch, |s| s.at("body")?.fuse(&found, "mine.sum", None).map(|_| ()));
    let parts = ["`mine.sum` would depend on its own results", "body"];
    says(&error, "E135", &parts, "include the nodes in between");
}

#[test]
fn replace_with_a_wrong_arity() {
    let mut sch = after("");
    let error = refused(&mut sch, |s| s.at("linear1")?.replace("partita.gelu", &[]).map(|_| ()));
    assert_eq!(error.code, "E250", "{error}");
    for part in ["it does not read `weight`", "arguments x", "weight: tensor<12x4xf64>", "`linear1`"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let error = refused(&mut sch, |s| s.at("norm")?.replace("partita.attention", &[]).map(|_| ()));
    let parts = ["its argument `k` is not bound", "x: tensor<6x4xf64>"];
    says(&error, "E250", &parts, "bind it by name: replace(\"partita.attention\", k=");
    let typo = [("weight", Argument::text("wieght")), ("epsilon", Argument::Float(1e-5))];
    let error = refused(&mut sch, |s| s.at("norm")?.replace("partita.layer_norm", &typo).map(|_| ()));
    says(
        &error,
        "E250",
        &["nothing has the name `wieght`", "weight: tensor<4xf64>"],
        "did you mean `weight`",
    );
    let error = refused(&mut sch, |s| s.at("norm")?.replace("partita.layernorm", &[]).map(|_| ()));
    says(&error, "E244", &["no composite is named `partita.layernorm`"], "`partita.layer_norm`");
}

/// Attention in primitives that reads its keys first.
fn attention(b: &mut GraphBuilder, [q, k, v]: [ValueId; 3]) -> Result<ValueId> {
    let product = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![1],
        result_dtype: None,
    };
    let k = b.transpose(k, &[0, 2, 1])?;
    let scores = b.dot_general(q, k, product.clone())?;
    let scores = b.scale(scores, 0.5)?;
    let weights = b.composite(&SOFTMAX, &[], &[scores])?;
    b.dot_general(weights, v, product)
}

#[test]
fn l5_replace_with_wrong_maths() {
    let mut cx = Context::new("attention", DType::F64, true);
    let x = cx.input("inputs", DType::F64, &[2, 3, 4]);
    let [q, k, v] = ["q", "k", "v"].map(|name| ok(cx.call(name, &Linear::new(4, 4), x)));
    let y = ok(cx.scope("core", |cx| attention(&mut cx.builder, [q, k, v])));
    let loss = ok(losses::mse(&mut cx, y, x));
    let model = cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)]).unwrap();
    let mut registry = Registry::default();
    let kernel =
        CustomOp::new("mine.attention", &["q", "k", "v"], |b, v| Ok(vec![attention(b, [v[0], v[1], v[2]])?]));
    ok(registry.add_custom(kernel));
    let mut sch = schedule(&model).with_registry(registry);

    // By position: what the module reads arrives as k, q, v.
    let order = |names: [&str; 3]| ["q", "k", "v"].into_iter().zip(names.map(Argument::text));
    let by_position: Vec<_> = order(["x0", "x1", "x2"]).collect();
    let error = refused(&mut sch, |s| s.at("core")?.replace("mine.attention", &by_position).map(|_| ()));
    let parts = ["`mine.attention` does not compute what it replaces", "tensor<2x3x4xf64>", "off by"];
    says(&error, "E251", &parts, "which operand each argument is bound to");
    let right: Vec<_> = order(["x1", "x0", "x2"]).collect();
    ok(sch.verify(|s| s.at("core")?.replace("mine.attention", &right).map(|_| ())));
    ok(sch.undo());

    // By name: the pattern names its inputs.
    let pattern = Pattern::parse("dot_general(softmax(dot_general(q, transpose(k)) * 0.5), v)");
    let found = ok(sch.at("core").unwrap().find(&ok(pattern)));
    ok(sch.verify(|s| s.at("core")?.replace_subgraphs(&found, "mine.attention", &[]).map(|_| ())));
    assert!(sch.at("core").unwrap().forward_ops().iter().any(|(_, op)| op == "attention"), "{sch}");
}

#[test]
fn a_typo() {
    let mut sch = after("");
    let error = refused(&mut sch, |s| s.at("linaer1").map(|_| ()));
    says(&error, "E221", &["`linaer1` matches no module and no parameter"], "did you mean `linear1`");
    let error = refused(&mut sch, |s| s.at("linear1")?.shard("wieght", 0).map(|_| ()));
    says(&error, "E232", &["`linear1` has no tensor `wieght`", "weight, bias"], "did you mean `weight`");
    let error = refused(&mut sch, |s| s.at("linear1")?.over("pt").shard("weight", 0).map(|_| ()));
    says(&error, "E223", &["the mesh has no axis `pt`", "an axis of tp=2"], "did you mean `tp`?");
    let error = refused(&mut sch, |s| s.at("linear1")?.over("model").shard("weight", 0).map(|_| ()));
    says(&error, "E223", &["no axis `model`", "an axis of tp=2"], "name one of its axes with `axis=`");
    // No axis shares the batch, so that `tp` is no answer.
    for style in ["zero1", "zero2", "fsdp"] {
        let error = refused(&mut sch, |s| s.at("linear1")?.style(style).map(|_| ()));
        let added =
            format!("no axis of tp=2 shares it: add `{}`", if style == "fsdp" { "fsdp" } else { "dp" });
        says(&error, "E223", &["an axis of tp=2"], &added);
    }
    let error = refused(&mut sch, |s| s.at("linear1")?.style("zero1(axis=pt)").map(|_| ()));
    says(&error, "E223", &["the mesh has no axis `pt`"], "did you mean `tp`?");
    let error = refused(&mut sch, |s| s.at("linear1")?.sync("fwd_psot", "all_reduce").map(|_| ()));
    says(&error, "E222", &["no mode of sync `fwd_psot`"], "fwd_post");
    let error = refused(&mut sch, |s| s.at("linear1")?.sync("fwd_post", "allreduce").map(|_| ()));
    says(&error, "E222", &["no op of sync `allreduce`"], "all_reduce");
    let error = refused(&mut sch, |s| s.at("linear1")?.style("colwse").map(|_| ()));
    says(&error, "E222", &["colwse"], "colwise");
    let error =
        refused(&mut sch, |s| s.root().replace_all("LayerNrom", "partita.layer_norm", &[]).map(|_| ()));
    says(&error, "E221", &["no module of kind `LayerNrom`"], "`LayerNorm`");
    let error = refused(&mut sch, |s| s.at("norm")?.annotate("wieght", "a", Argument::Int(1)).map(|_| ()));
    says(&error, "E232", &["`norm.wieght`"], "`norm.weight`");
}

#[test]
fn verification_that_fails_names_the_value_and_the_line() {
    let mut sch = after("sch['norm'].fork_rng()");
    sch.options().break_rule_at = Some("linear2".to_string());
    let error = refused(&mut sch, |s| {
        s.verify(|s| {
            s.at("linear1")?.shard("weight", 0)?;
            s.at("linear2")?.shard("weight", 1)?.sync("fwd_post", "all_reduce").map(|_| ())
        })
    });
    let parts = ["in linear2 (forward)", "tensor<6x4xf64>", "\"linear2\" = \"sync(fwd_post, all_reduce)\""];
    says(&error, "E253", &parts, "the schedule is back in its state");
    assert_eq!(sch.plan().entries.len(), 1);
    sch.options().break_rule_at = None;
    ok(sch.verify(|s| s.at("linear2")?.shard("weight", 1).map(|_| ())));
    // A body that fails half-way changes nothing either.
    let error = refused(&mut sch, |s| {
        s.verify(|s| {
            s.at("linear1")?.shard("weight", 0)?;
            s.at("linear1")?.shard("weight", 1).map(|_| ())
        })
    });
    assert_eq!(error.code, "E231", "{error}");
}

#[test]
fn what_cannot_be_built_is_refused_when_it_is_asked_for() {
    // The rows of a fused projection become parts with their own optimizer states: detected only in the whole step.
    let mut cx = Context::new("fused", DType::F64, true);
    let x = cx.input("inputs", DType::F64, &[2, 3, 4]);
    let attention = MultiheadAttention { fused_qkv: true, ..MultiheadAttention::new(4, 2) };
    let y = ok(cx.call("attention", &attention, x));
    let loss = ok(losses::mse(&mut cx, y, x));
    let model = cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)]).unwrap();
    let mut sch = schedule(&model);
    ok(sch.at("attention").unwrap().style("fsdp(axis=tp)"));
    let error = refused(&mut sch, |s| s.at("attention.qkv_proj")?.style("rowwise").map(|_| ()));
    says(
        &error,
        "E227",
        &["qkv_proj.bias#0", "tensor<4xf64>"],
        "change the axis or the modules of one of the lines",
    );
    ok(sch.build());

    // Outputs beside the loss get layouts even if they were not requested.
    let mut sch = schedule(&model);
    ok(sch.root().shard("output", -1));
    assert_eq!(ok(sch.build()).step.output_position("prediction"), None);
    assert!(ok(sch.compare()).ok);
}

#[test]
fn evaluation_drops_nothing_and_knows_every_line() {
    let model = |training: bool| -> Model {
        let mut cx = Context::new("dropping", DType::F64, training);
        let x = cx.input("inputs", DType::F64, &[6, 4]);
        let h = ok(cx.call("linear", &Linear::new(4, 4), x));
        let y = ok(cx.call("dropout", &Dropout { rate: 0.5 }, h));
        let loss = ok(losses::mse(&mut cx, y, x));
        cx.finish(vec![("loss".to_string(), loss)]).unwrap()
    };
    let lines = "sch['linear'].zero2(axis='tp')\nsch['**'].fsdp(axis='tp')\nsch['dropout'].shard('output', 0)\nsch.fuse('dropout(x, seed)', name='mine.drop')\n\
                 sch['dropout'].fork_rng()";
    let (plan, mesh) = (ok(Plan::from_calls(lines, "case")), Mesh::new("mesh", &[("tp", 2)]));
    let context = BuildContext { registry: &Registry::default(), runner: &Interpreter };
    let options = BuildOptions::new(StepOptions::new(Optimizer::adamw()));
    let built =
        ok(BuildRequest::new(&model(true), &plan, &mesh, &options, context).part(StepKind::Loss).build());
    let mut fed = model(true).initial(1).unwrap();
    fed.extend(random_feed(&model(true), 1, 0.0));
    let inputs = ok(inputs_of(&built.step, &built.pieces, &fed));
    let found = ok(Interpreter.run(&built, &inputs))[0].to_f64()[0];
    let plain = model(false).forward;
    let expected = ok(evaluate(&plain, &ok(inputs_of(&plain, &[], &fed))))[0].to_f64()[0];
    assert!((found - expected).abs() < 1e-12, "{found} and {expected}");
}
