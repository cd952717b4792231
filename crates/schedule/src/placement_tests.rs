//! Tests of the primitives `shard` and `sync`: accepted layouts, rejected lines, no effects of
//! rejections.

use crate::{Applied, ApplyOptions, Plan, apply};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Graph, Literal, Op, Role, TensorType, ValueId};
use partita_mesh::Mesh;
use partita_nn::{Context, GptConfig, Linear, ModelConfig, Optimizer, StepOptions, losses, train_step};
use partita_spmd::split_fused;

fn tp() -> Mesh {
    Mesh::new("mesh", &[("tp", 2)])
}

fn planned(graph: &Graph, mesh: &Mesh, calls: &str) -> Result<Applied> {
    apply(&Plan::from_calls(calls, "test").unwrap(), graph, mesh, &ApplyOptions::default())
}

fn accepted(graph: &Graph, mesh: &Mesh, calls: &str) -> Graph {
    planned(graph, mesh, calls).unwrap_or_else(|error| panic!("{calls}\n{error}")).graph
}

fn refused(graph: &Graph, mesh: &Mesh, calls: &str) -> Box<Diagnostic> {
    match planned(graph, mesh, calls) {
        Ok(_) => panic!("accepted: {calls}"),
        Err(error) => error,
    }
}

/// A requested layout as text: sharded dimensions, replicated axes.
fn shown(graph: &Graph, value: ValueId) -> String {
    let constraint = graph.value(value).definition.and_then(|(id, _)| graph.node(id).op.constraint());
    let annotation = constraint.or(graph.value(value).annotation.as_ref());
    let Some(a) = annotation else { return "nothing".to_string() };
    let mesh = &graph.meshes[a.mesh];
    let whole = mesh.display_axes(&a.replicated);
    format!("{}{}{whole}", a.sharding.display(mesh), if whole.is_empty() { "" } else { " whole:" })
}

fn input(graph: &Graph, name: &str) -> String {
    shown(graph, graph.input_named(name).unwrap_or_else(|| panic!("{name}")))
}

/// `x [2, 4, 6]` through `linear1` (6 to 8), a scale by the buffer `scale.factor`, `linear2` (8 to 6) with its bias.
fn model() -> Graph {
    let mut cx = Context::new("model", DType::F64, true);
    let x = cx.input("x", DType::F64, &[2, 4, 6]);
    let h = cx.call("linear1", &Linear::new(6, 8), x).unwrap();
    let h = cx.scope("scale", |cx| {
        let ty = TensorType::new(DType::F64, [8]);
        let factor = cx.buffer("factor", Literal::from_f64(&ty, (1..9).map(f64::from)));
        let shape = cx.shape(h);
        let factor = cx.builder.broadcast_trailing(factor, &shape).unwrap();
        cx.builder.multiply(h, factor).unwrap()
    });
    let y = cx.call("linear2", &Linear::new(8, 6), h).unwrap();
    let target = cx.input("target", DType::F64, &[2, 4, 6]);
    let loss = losses::mse(&mut cx, y, target).unwrap();
    cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)]).unwrap().forward
}

fn gpt(config: GptConfig) -> Graph {
    let forward = ModelConfig::Gpt(config).build(4, DType::F32, true).unwrap().forward;
    let (forward, _) = split_fused(&forward).unwrap();
    train_step(&forward, &StepOptions::new(Optimizer::adamw())).unwrap()
}

#[test]
fn shard_finds_pieces_buffers_tied_names_and_activations() {
    let step = gpt(GptConfig { fused_qkv: true, ..GptConfig::default() });
    let graph = accepted(&step, &tp(), "sch['**.qkv_proj'].shard('weight', 0).shard('bias', -1)");
    let slot = Optimizer::adamw().slots()[0];
    for piece in 0..3 {
        let name = format!("layers.1.attn.qkv_proj.weight#{piece}");
        assert_eq!(input(&graph, &name), "[{tp}, {}]");
        assert_eq!(input(&graph, &format!("optimizer.{slot}.{name}")), "[{tp}, {}]", "states follow");
        assert_eq!(input(&graph, &format!("layers.1.attn.qkv_proj.bias#{piece}")), "[{tp}]");
    }
    let forward = model();
    let graph = accepted(&forward, &tp(), "sch['scale'].shard('factor', 0)");
    let factor = graph.value_ids().find(|&v| graph.value(v).name == "scale.factor").unwrap();
    assert_eq!(shown(&graph, factor), "[{tp}]");
    let graph =
        accepted(&forward, &tp(), "sch['linear1'].shard('output', 1)\nsch['linear1'].shard('input', 0)");
    assert_eq!(input(&graph, "x"), "[{tp}, {}, {}]", "fed to this module alone: fed in shards");
    let dot = |graph: &Graph, path: &str| {
        let node = graph.nodes.iter().find(|n| n.path == path && matches!(n.op, Op::DotGeneral(_)));
        node.unwrap().operands[0]
    };
    let graph = accepted(&forward, &tp(), "sch['linear2'].shard('input', 1)");
    assert_eq!(shown(&graph, dot(&graph, "linear2")), "[{}, {tp}, {}]", "for its readers alone");
}

#[test]
fn a_tied_parameter_is_cut_once_by_each_of_its_names() {
    let step = gpt(GptConfig { tied: true, ..GptConfig::default() });
    let table = "sch['embed_tokens'].shard('weight', 0)\n";
    let graph = accepted(&step, &tp(), &format!("{table}sch['lm_head'].shard('weight', 0)"));
    assert_eq!(input(&graph, "embed_tokens.weight"), "[{tp}, {}]");
    assert_eq!(refused(&step, &tp(), &format!("{table}{table}")).code, "E231");
    assert_eq!(refused(&step, &tp(), &format!("{table}sch['lm_head'].shard('weight', 1)")).code, "E227");
    let head = "sch['lm_head'].shard('weight', 0)\n";
    assert_eq!(refused(&step, &tp(), &format!("{table}{head}{head}")).code, "E231");
    // One rank behaves like two: the validity of a plan does not depend on the mesh.
    assert_eq!(refused(&step, &Mesh::new("one", &[("tp", 1)]), &format!("{table}{table}")).code, "E231");
}

#[test]
fn the_axis_is_the_named_one_or_tp_or_the_only_one() {
    let forward = model();
    let weight = |mesh: &Mesh, call: &str| input(&accepted(&forward, mesh, call), "linear1.weight");
    let plain = "sch['linear1'].shard('weight', 0)";
    assert_eq!(weight(&Mesh::new("mesh", &[("model", 2)]), plain), "[{model}, {}]");
    let both = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    assert_eq!(weight(&both, plain), "[{tp}, {}]");
    assert_eq!(weight(&both, "sch['linear1'].shard('weight', 0, axis='dp')"), "[{dp}, {}]");
    assert_eq!(weight(&both, "sch['linear1'].shard('weight', 0).shard('weight', 1, 'dp')"), "[{tp}, {dp}]");
    let neither = Mesh::new("mesh", &[("a", 2), ("b", 2)]);
    assert_eq!(refused(&forward, &neither, plain).code, "E223");
    let typo = refused(&forward, &both, "sch['linear1'].sync('fwd_post', 'all_reduce', axis='pt')");
    assert_eq!(typo.code, "E223");
}

#[test]
fn what_cannot_be_cut_is_refused_with_what_could_be() {
    let forward = model();
    for (calls, code, parts) in [
        ("sch['linaer1'].shard('weight', 0)", "E221", vec!["`linear1`"]),
        (
            "sch['linear1'].shard('weigth', 0)",
            "E232",
            vec!["`weigth`", "did you mean `weight`?", "input, output"],
        ),
        (
            "sch.shard('weight', 0)",
            "E232",
            vec!["the model itself", "`linear1.weight` belongs to a nested module"],
        ),
        ("sch['scale'].shard('weight', 0)", "E232", vec!["factor, input, output"]),
        ("sch['linear1'].shard('weight', 2)", "E224", vec!["0 to 1 of [8, 6]"]),
        ("sch['linear1'].shard('bias', -2)", "E224", vec!["linear1.bias"]),
        ("sch['linear1'].shard('output', 3)", "E224", vec!["0 to 2 of [2, 4, 8]"]),
        ("sch['linear1'].shard('input', 0).shard('input', 1)", "E231", vec!["`x` is already sharded"]),
        ("sch['linear2'].shard('input', 0).shard('input', 1)", "E231", vec!["already sharded along `tp`"]),
        ("sch['linear1'].colwise()\nsch['linear1'].shard('weight', 0)", "E231", vec!["\"colwise\""]),
        ("sch['linear1'].replicate()\nsch['linear1'].shard('weight', 0)", "E227", vec!["\"replicate\""]),
    ] {
        let error = refused(&forward, &tp(), calls);
        assert_eq!(error.code, code, "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn a_contradictory_sync_says_how_the_value_lies_and_why() {
    let forward = model();
    let column = "sch['linear1'].shard('weight', 0)\n";
    let row = "sch['linear2'].shard('weight', 1)\n";
    let by = |line: &str| format!("by \"{line}\" (test:1)");
    for (calls, code, parts) in [
        (
            format!("{row}sch['linear2'].sync('fwd_post', 'all_gather')"),
            "E234",
            vec![
                "partial over `tp`".to_string(),
                "dot_general in linear2 sums over a sharded dimension, because `linear2.weight` is sharded along dimension 1"
                    .to_string(),
                by("linear2\" = \"shard(weight, 1)"),
                "`all_reduce` or `reduce_scatter`".to_string(),
            ],
        ),
        (
            format!("{column}sch['linear1'].sync('fwd_post', 'all_reduce')"),
            "E234",
            vec!["sharded along dimension 2".to_string(), "`all_gather, dim=2`".to_string()],
        ),
        (
            format!("{column}sch['linear1'].sync('fwd_post', 'all_gather', dim=1)"),
            "E234",
            vec!["`all_gather` along dimension 1".to_string(), "`all_gather, dim=2`".to_string()],
        ),
        (format!("{column}sch['linear1'].sync('fwd_post', 'SR->RR')"), "E234", vec![]),
        (format!("{column}sch['linear1'].sync('fwd_post', 'scatter', dim=1)"), "E234", vec![]),
        (format!("{row}sch['linear2'].sync('fwd_post', 'scatter', dim=1)"), "E234", vec![]),
        (
            format!("{column}sch['linear1'].sync('bwd_post', 'all_gather')"),
            "E234",
            vec!["gradients are reduced".to_string()],
        ),
        (
            format!("{row}sch['linear2'].sync('bwd_post', 'all_reduce')"),
            "E234",
            vec!["`reduce_scatter, dim=2`".to_string()],
        ),
        (format!("{row}sch['linear2'].sync('fwd_post', 'reduce_scatter', dim=3)"), "E224", vec![]),
        (
            "sch['linear1'].sync('fwd_pre', 'all_gather')".to_string(),
            "E233",
            vec!["`x` is already replicated".to_string(), "none of the values it is computed from is sharded".to_string()],
        ),
        ("sch['nothing'].sync('fwd_post', 'all_reduce')".to_string(), "E221", vec![]),
    ] {
        let error = refused(&forward, &tp(), &calls);
        assert_eq!(error.code, code, "{calls}\n{error}");
        for part in parts {
            assert!(error.to_string().contains(&part), "{part}: {error}");
        }
    }
}

#[test]
fn what_flows_through_linear_ops_is_still_a_sum() {
    let forward = model();
    // From `linear1` through its bias and the scale: a multiplication by a replicated value.
    let row = "sch['linear1'].shard('weight', 1)\n";
    for calls in ["sch['linear1']", "sch['scale']", "sch['linear2']"] {
        accepted(&forward, &tp(), &format!("{row}{calls}.sync('fwd_post', 'all_reduce')"));
    }
    accepted(&forward, &tp(), &format!("{row}sch['linear2'].sync('fwd_pre', 'reduce_scatter', dim=1)"));
    // A reduced sum is not reduced again.
    let made = format!("{row}sch['linear1'].sync('fwd_post', 'all_reduce')\n");
    let error = refused(&forward, &tp(), &format!("{made}sch['linear2'].sync('fwd_post', 'all_reduce')"));
    assert_eq!(error.code, "E233");
    assert!(error.to_string().contains("\"linear1\" = \"sync(fwd_post, all_reduce)\""), "{error}");
}

#[test]
fn gradients_are_pinned_in_every_phase_where_there_are_any() {
    let step = train_step(&model(), &StepOptions::new(Optimizer::sgd())).unwrap();
    let gradient = |calls: &str| {
        let graph = accepted(&step, &tp(), calls);
        let is_entering =
            |v: ValueId| matches!(graph.value(v).definition, Some((id, _)) if graph.node(id).path == "scale");
        let of = graph.value_ids().find(|&v| {
            matches!(graph.value(v).role, Role::GradOf(of) if is_entering(of) && graph.ty(of).shape == [2, 4, 8])
                && graph.value(v).annotation.is_some()
        });
        of.map(|v| shown(&graph, v))
    };
    let column = "sch['linear2'].shard('weight', 0)";
    assert_eq!(gradient(column), None);
    let asked = gradient(&format!("{column}.sync('bwd_post', 'all_reduce')"));
    assert_eq!(asked.as_deref(), Some("[{}, {}, {}] whole:tp"));
    let asked = gradient(&format!("{column}.sync('bwd_post', 'reduce_scatter', dim=1)"));
    assert_eq!(asked.as_deref(), Some("[{}, {tp}, {}]"));
    // The gradient of a fed tensor is not requested: the line is accepted and pins nothing.
    accepted(&step, &tp(), "sch['linear1'].shard('weight', 0).sync('bwd_post', 'all_reduce')");
}
