//! Tests of applying styles and storage lines: annotations and constraints on step graphs.

use super::*;
use crate::ready::{ReadyOptions, ready_plan};
use crate::storage::storage_dim;
use partita_base::DType;
use partita_ir::{Operation, TensorType};
use partita_nn::{BertConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig, Optimizer, StepOptions};
use partita_nn::{gradient_graph, train_step};
use partita_spmd::{microbatch, split_fused};

fn step_of(config: ModelConfig) -> Graph {
    let forward = config.build(4, DType::F32, true).unwrap().forward;
    train_step(&forward, &StepOptions::new(Optimizer::adamw())).unwrap()
}

fn gpt() -> Graph {
    step_of(ModelConfig::Gpt(GptConfig { tied: false, ..GptConfig::default() }))
}

fn plan(lines: &[(&str, &str)]) -> Plan {
    let mut plan = Plan::default();
    for (modules, style) in lines {
        plan.add(modules, style, "test").unwrap();
    }
    plan
}

fn applied(graph: &Graph, mesh: &Mesh, lines: &[(&str, &str)]) -> Graph {
    apply(&plan(lines), graph, mesh, &ApplyOptions::default()).unwrap_or_else(|e| panic!("{e}")).graph
}

/// The annotation of a value as text: layout, open dimensions, replicated axes.
fn shown(graph: &Graph, value: ValueId) -> String {
    let Some(a) = &graph.value(value).annotation else { return "nothing".to_string() };
    let mesh = &graph.meshes[a.mesh];
    let open: String = a.open.iter().map(|&o| if o { '?' } else { '.' }).collect();
    let whole = mesh.display_axes(&a.replicated);
    format!("{} {open}{}{whole}", a.sharding.display(mesh), if whole.is_empty() { "" } else { " whole:" })
}

fn input(graph: &Graph, name: &str) -> String {
    shown(graph, graph.input_named(name).unwrap_or_else(|| panic!("{name}")))
}

/// The outputs of a module in the forward pass.
fn leaving(graph: &Graph, module: &str) -> Vec<String> {
    Modules::of(graph).outputs_of(module).into_iter().map(|v| shown(graph, v)).collect()
}

fn constraints(graph: &Graph) -> Vec<&partita_ir::Node> {
    graph.nodes.iter().filter(|n| matches!(n.op, Op::ShardingConstraint(_))).collect()
}

#[test]
fn the_batch_lies_over_the_data_axes_and_tokens_over_the_sequence_axis() {
    let mesh = Mesh::new("mesh", &[("fsdp", 2), ("sp", 2), ("dp", 2)]);
    let graph = applied(&gpt(), &mesh, &[]);
    assert_eq!(input(&graph, "tokens"), "[{fsdp, dp}, {sp}] ..");
    assert_eq!(input(&graph, "labels"), "[{fsdp, dp}, {sp}] ..");
    assert_eq!(input(&graph, "learning_rate"), "nothing");
    // Features are no sequence.
    let graph = applied(&step_of(ModelConfig::Mlp(MlpConfig::default())), &mesh, &[]);
    assert_eq!(input(&graph, "inputs"), "[{fsdp, dp}, {}] ..");
}

#[test]
fn colwise_and_rowwise_cut_weights_biases_states_and_outputs() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let lines = [("layers.*.mlp.up_proj", "colwise"), ("layers.*.mlp.down_proj", "rowwise")];
    let graph = applied(&gpt(), &mesh, &lines);
    for layer in ["layers.0", "layers.1"] {
        assert_eq!(input(&graph, &format!("{layer}.mlp.up_proj.weight")), "[{tp}, {}] ..");
        assert_eq!(input(&graph, &format!("{layer}.mlp.up_proj.bias")), "[{tp}] .");
        assert_eq!(input(&graph, &format!("{layer}.mlp.down_proj.weight")), "[{}, {tp}] ..");
        assert_eq!(input(&graph, &format!("{layer}.mlp.down_proj.bias")), "[{}] . whole:tp");
        assert_eq!(leaving(&graph, &format!("{layer}.mlp.up_proj")), ["[{}, {}, {tp}] ??."]);
        assert_eq!(leaving(&graph, &format!("{layer}.mlp.down_proj")), ["[{}, {}, {}] ??? whole:tp"]);
    }
    let slot = Optimizer::adamw().slots()[0];
    assert_eq!(input(&graph, &format!("optimizer.{slot}.layers.0.mlp.down_proj.weight")), "[{}, {tp}] ..");
    assert_eq!(input(&graph, "layers.0.attn.q_proj.weight"), "nothing");
    let weight = graph.input_named("layers.0.mlp.up_proj.weight").unwrap();
    let origin = &graph.value(weight).annotation.as_ref().unwrap().origin;
    assert_eq!(origin, r#""layers.*.mlp.up_proj" = "colwise" (test)"#);
    assert!(constraints(&graph).is_empty());
}

#[test]
fn options_say_what_enters_and_leaves() {
    let mesh = Mesh::new("mesh", &[("model", 2)]);
    let lines = [
        ("layers.0.attn.q_proj", "colwise(input=replicate, output=replicate, axis=model)"),
        ("layers.0.attn.k_proj", "colwise(input=replicate, axis=model)"),
        ("layers.0.attn.o_proj", "rowwise(input=shard(-1), output=shard(1), axis=model)"),
    ];
    let graph = applied(&gpt(), &mesh, &lines);
    assert_eq!(leaving(&graph, "layers.0.attn.q_proj"), ["[{}, {}, {}] ??? whole:model"]);
    assert_eq!(leaving(&graph, "layers.0.attn.o_proj"), ["[{}, {model}, {}] ?.?"]);
    let found = constraints(&graph);
    assert_eq!(found.len(), 2, "q and k share what they read");
    assert_eq!(shown(&graph, found[0].results[0]), "nothing", "the op itself carries it");
    let readers = graph.uses()[found[0].results[0].index()].len();
    assert_eq!((found[0].path.as_str(), readers), ("layers.0.attn", 2));
}

#[test]
fn embeddings_are_cut_by_their_own_sense_of_rows_and_columns() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let graph = applied(&gpt(), &mesh, &[("embed_tokens", "colwise")]);
    assert_eq!(input(&graph, "embed_tokens.weight"), "[{}, {tp}] ..");
    let graph = applied(&gpt(), &mesh, &[("embed_tokens", "rowwise")]);
    assert_eq!(input(&graph, "embed_tokens.weight"), "[{tp}, {}] ..");
    // One table looked up and multiplied: vocabulary-parallel on both sides is one layout.
    let tied = step_of(ModelConfig::Gpt(GptConfig { tied: true, ..GptConfig::default() }));
    let graph = applied(&tied, &mesh, &[("embed_tokens", "rowwise"), ("lm_head", "colwise")]);
    assert_eq!(input(&graph, "embed_tokens.weight"), "[{tp}, {}] ..");
    assert_eq!(leaving(&graph, "lm_head"), ["[{}, {}, {tp}] ??."]);
    let error = apply(
        &plan(&[("embed_tokens", "colwise"), ("lm_head", "colwise")]),
        &tied,
        &mesh,
        &ApplyOptions::default(),
    );
    assert_eq!(error.unwrap_err().code, "E227");
}

#[test]
fn pieces_of_a_fused_projection_get_its_style_each() {
    let config = GptConfig { fused_qkv: true, ..GptConfig::default() };
    let forward = ModelConfig::Gpt(config).build(4, DType::F32, true).unwrap().forward;
    let (forward, _) = split_fused(&forward).unwrap();
    let step = train_step(&forward, &StepOptions::new(Optimizer::adamw())).unwrap();
    let graph = applied(&step, &Mesh::new("mesh", &[("tp", 2)]), &[("**.qkv_proj", "colwise")]);
    for piece in 0..3 {
        assert_eq!(input(&graph, &format!("layers.1.attn.qkv_proj.weight#{piece}")), "[{tp}, {}] ..");
        assert_eq!(input(&graph, &format!("layers.1.attn.qkv_proj.bias#{piece}")), "[{tp}] .");
    }
    assert_eq!(leaving(&graph, "layers.1.attn.qkv_proj"), ["[{}, {}, {tp}] ??."; 3]);
}

#[test]
fn fsdp_keeps_pieces_and_gathers_for_each_use() {
    let mesh = Mesh::new("mesh", &[("fsdp", 2), ("tp", 2)]);
    let lines = [("layers.*.mlp.up_proj", "colwise"), ("layers.*.mlp.down_proj", "rowwise"), ("**", "fsdp")];
    let graph = applied(&gpt(), &mesh, &lines);
    let slot = Optimizer::adamw().slots()[0];
    let up = "layers.0.mlp.up_proj.weight";
    for name in [up.to_string(), format!("optimizer.{slot}.{up}")] {
        assert_eq!(input(&graph, &name), "[{tp, fsdp}, {}] ..");
    }
    assert_eq!(input(&graph, "layers.0.mlp.down_proj.weight"), "[{fsdp}, {tp}] ..");
    assert_eq!(input(&graph, "norm.weight"), "[{fsdp}] .");
    // One for the forward and one for the backward matmul; `tp` is unchanged.
    let of_up: Vec<_> = constraints(&graph)
        .into_iter()
        .filter(|n| graph.value(n.results[0]).name == up)
        .map(|n| (n.phase.is_backward(), n.path.as_str()))
        .collect();
    assert_eq!(of_up, [(false, "layers.0.mlp.up_proj"), (true, "layers.0.mlp.up_proj")]);
    for node in constraints(&graph).into_iter().filter(|n| graph.value(n.results[0]).name == up) {
        let Op::ShardingConstraint(constraint) = &node.op else { unreachable!() };
        let a = &constraint.annotation;
        assert_eq!(
            (a.sharding.display(&mesh), mesh.display_axes(&a.replicated)),
            ("[{tp}, {}]".into(), "fsdp".into())
        );
        assert_eq!(a.open, [false, true]);
    }
    // A constraint comes right before its reader, and only the update reads the shards.
    let weight = graph.input_named(up).unwrap();
    for &(id, _) in &graph.uses()[weight.index()] {
        let node = graph.node(id);
        let constraint = matches!(node.op, Op::ShardingConstraint(_));
        assert!(constraint || node.phase == Phase::Update, "{} reads {up}", node.op.name());
        if constraint {
            assert!(graph.node(NodeId::new(id.index() + 1)).operands.contains(&node.results[0]));
        }
    }
    let gradient = graph.value_ids().find(|&v| graph.value(v).role == Role::GradOf(weight)).unwrap();
    assert_eq!(shown(&graph, gradient), "[{tp, fsdp}, {}] ..");
}

#[test]
fn storage_takes_a_dimension_that_divides() {
    let axis = AxisRef { axis: 0, pre: 1, size: 4 };
    let tp = AxisRef { axis: 1, pre: 1, size: 2 };
    let dim = |shape: &[usize], cut: Option<usize>| {
        let mut pin = Pin::free(shape.len());
        if let Some(cut) = cut {
            pin.axes[cut].push(tp);
        }
        storage_dim(&pin, shape, axis)
    };
    assert_eq!(dim(&[8, 16], None), 0);
    assert_eq!(dim(&[6, 8, 16], None), 2);
    assert_eq!(dim(&[6, 8, 8], None), 1);
    assert_eq!(dim(&[4, 16], Some(0)), 1, "two rows are left for four");
    assert_eq!(dim(&[5, 7], None), 0, "uneven is fine");
}

#[test]
fn zero_cuts_states_and_keeps_parameters_whole() {
    let mesh = Mesh::new("mesh", &[("dp", 2)]);
    let slot = Optimizer::adamw().slots()[0];
    let name = "layers.0.mlp.up_proj.weight";
    for (style, cut) in [("zero1", false), ("zero2", true)] {
        let graph = applied(&gpt(), &mesh, &[("**", style)]);
        assert_eq!(input(&graph, name), "[{}, {}] ?? whole:dp");
        assert_eq!(input(&graph, &format!("optimizer.{slot}.{name}")), "[{dp}, {}] ..");
        let weight = graph.input_named(name).unwrap();
        let gradient = graph.value_ids().find(|&v| graph.value(v).role == Role::GradOf(weight)).unwrap();
        assert_eq!(shown(&graph, gradient), if cut { "[{dp}, {}] .." } else { "nothing" });
        assert!(constraints(&graph).is_empty());
    }
}

#[test]
fn zero2_cuts_the_contribution_of_every_microbatch() {
    let forward = ModelConfig::Mlp(MlpConfig::default()).build(4, DType::F32, true).unwrap().forward;
    let gradients = microbatch(&gradient_graph(&forward).unwrap(), 2).unwrap();
    let options = StepOptions::new(Optimizer::adamw());
    let step = partita_nn::append_update(&gradients, &options).unwrap();
    let mesh = Mesh::new("mesh", &[("dp", 2)]);
    let graph = applied(&step, &mesh, &[("**", "zero2")]);
    let weight = graph.input_named("layers.0.weight").unwrap();
    let of_weight = graph.value_ids().filter(|&v| graph.value(v).role == Role::GradOf(weight));
    let shown: Vec<String> = of_weight.map(|v| shown(&graph, v)).collect();
    assert_eq!(shown, ["[{dp}, {}] .."; 3], "two contributions and their sum");
    assert_eq!(input(&graph, "inputs.micro1"), "[{dp}, {}] ..");
    // FSDP gathers again for each microbatch.
    let mesh = Mesh::new("mesh", &[("fsdp", 2)]);
    let graph = applied(&step, &mesh, &[("**", "fsdp")]);
    let gathers =
        constraints(&graph).into_iter().filter(|n| graph.value(n.results[0]).name == "layers.1.weight");
    let places: Vec<_> = gathers.map(|n| (n.microbatch, n.phase.is_backward())).collect();
    assert_eq!(places, [(Some(0), false), (Some(0), true), (Some(1), false), (Some(1), true)]);
}

#[test]
fn sequence_parallelism_cuts_the_residual_stream() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let lines = [
        ("layers.*.attn.*_proj", "colwise"),
        ("layers.*.attn.o_proj", "rowwise"),
        ("layers.*.mlp.up_proj", "colwise"),
        ("layers.*.mlp.down_proj", "rowwise"),
    ];
    let options = ApplyOptions { sequence_parallel: true };
    let graph = apply(&plan(&lines), &gpt(), &mesh, &options).unwrap().graph;
    for module in
        ["layers.0", "layers.1", "layers.0.attn_norm", "layers.1.mlp_norm", "norm", "layers.0.attn.o_proj"]
    {
        assert_eq!(leaving(&graph, module), ["[{}, {tp}, {}] ?.?"], "{module}");
    }
    assert_eq!(leaving(&graph, "layers.0.mlp.up_proj"), ["[{}, {}, {tp}] ??."]);
    // Per layer one gather for q, k and v, and one for up.
    assert_eq!(constraints(&graph).len(), 2 * 2);
    // The ready plan has the same effect line by line.
    let options = ReadyOptions { sequence_parallel: true, ..ReadyOptions::default() };
    let ready = ready_plan("gpt", &gpt(), &mesh, &options).unwrap();
    let graph = apply(&ready, &gpt(), &mesh, &ApplyOptions::default()).unwrap().graph;
    for module in ["embed_tokens", "layers.0.attn_norm", "norm", "layers.0.attn.o_proj"] {
        assert_eq!(leaving(&graph, module), ["[{}, {tp}, {}] ?.?"], "{module}");
    }
    assert_eq!(constraints(&graph).len(), 2 * 2);
}

#[test]
fn the_last_line_holds_and_wide_lines_leave_room() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let lines = [("**", "replicate"), ("layers.*.mlp.up_proj", "colwise")];
    let graph = applied(&gpt(), &mesh, &lines);
    assert_eq!(input(&graph, "layers.0.mlp.up_proj.weight"), "[{tp}, {}] ..");
    assert_eq!(input(&graph, "layers.0.mlp.down_proj.weight"), "[{}, {}] ?? whole:tp");
    let lines = [("layers.*.mlp.up_proj", "colwise"), ("layers.1.mlp.up_proj", "replicate")];
    let graph = applied(&gpt(), &mesh, &lines);
    assert_eq!(input(&graph, "layers.0.mlp.up_proj.weight"), "[{tp}, {}] ..");
    assert_eq!(input(&graph, "layers.1.mlp.up_proj.weight"), "[{}, {}] ?? whole:tp");
    // A parameter by its own name.
    let graph = applied(&gpt(), &mesh, &[("embed_positions.weight", "shard(1)")]);
    assert_eq!(input(&graph, "embed_positions.weight"), "[{}, {tp}] ..");
}

#[test]
fn wrong_lines_are_told_apart() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let fail = |lines: &[(&str, &str)]| {
        apply(&plan(lines), &gpt(), &mesh, &ApplyOptions::default()).expect_err("a wrong plan")
    };
    let error = fail(&[("layers.*.mlp.up_porj", "colwise")]);
    assert_eq!(error.code, "E221");
    assert!(error.help.as_deref().unwrap().contains("`layers.*.mlp.up_proj`"), "{error}");
    assert_eq!(fail(&[("layer.*", "fsdp(axis=dp)")]).code, "E221");
    let error = fail(&[("layers.0.mlp", "colwise")]);
    assert_eq!(error.code, "E221");
    assert!(error.help.as_deref().unwrap().contains("layers.0.mlp.up_proj"), "{error}");
    assert_eq!(fail(&[("norm.weight", "colwise")]).code, "E221");
    let error = fail(&[("lm_head", "colwise(axis=tpp)")]);
    assert_eq!((error.code, error.help.as_deref()), ("E223", Some("did you mean `tp`?")));
    let error = fail(&[("**", "fsdp")]);
    assert_eq!(error.code, "E223");
    assert!(error.help.as_deref().unwrap().ends_with("write `fsdp(axis=dp)`"), "{error}");
    let error = fail(&[("lm_head", "shard(2)")]);
    assert_eq!((error.code, error.found.as_deref()), ("E224", Some("tensor<256x64xf32>")));
    assert_eq!(fail(&[("lm_head", "colwise(output=shard(3))")]).code, "E224");
    assert_eq!(fail(&[("layers.0.mlp.up_proj", "colwise(input=shard(-4))")]).code, "E224");
    assert_eq!(fail(&[("norm", "colwise")]).code, "E224");
    let error = fail(&[("lm_head", "colwise"), ("lm_head.weight", "shard(1)")]);
    assert_eq!(error.code, "E227");
    assert_eq!(fail(&[("lm_head", "colwise"), ("lm_head.weight", "replicate")]).code, "E227");
}

#[test]
fn ready_plans_fit_their_models() {
    let configs = [
        ModelConfig::Mlp(MlpConfig::default()),
        ModelConfig::Gpt(GptConfig { tied: true, ..GptConfig::default() }),
        ModelConfig::Llama(LlamaConfig::default()),
        ModelConfig::Bert(BertConfig::default()),
    ];
    let mesh = Mesh::new("mesh", &[("dp", 2), ("fsdp", 2), ("tp", 2)]);
    for config in configs {
        let name = config.name();
        let step = step_of(config);
        for (sequence_parallel, vocab_parallel) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let options = ReadyOptions { sequence_parallel, vocab_parallel, zero: 1 };
            let plan = ready_plan(name, &step, &mesh, &options).unwrap();
            let applied = apply(&plan, &step, &mesh, &ApplyOptions::default())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(applied.notes.is_empty(), "{name}");
            let cut = |v: &ValueId| shown(&applied.graph, *v).contains("tp");
            assert!(applied.graph.params().iter().any(cut), "{name}");
        }
    }
    let error = ready_plan("gpt2", &gpt(), &mesh, &ReadyOptions::default()).unwrap_err();
    assert_eq!((error.code, error.help.as_deref()), ("E222", Some("did you mean `gpt`?")));
}

#[test]
fn an_mlp_pairs_its_layers() {
    let step = step_of(ModelConfig::Mlp(MlpConfig::default()));
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let plan = ready_plan("mlp", &step, &mesh, &ReadyOptions::default()).unwrap();
    let lines: Vec<(String, String)> =
        plan.entries.iter().map(|e| (e.modules.clone(), e.primitive.to_string())).collect();
    let expected = [("layers.0", "colwise"), ("layers.1", "rowwise"), ("layers.2", "replicate")];
    assert_eq!(lines, expected.map(|(m, s)| (m.to_string(), s.to_string())));
}

#[test]
fn what_a_graph_asks_already_stays() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let mut b = GraphBuilder::new("hand");
    let x = b.input("x", TensorType::new(DType::F32, [4, 8]), Role::Input);
    b.graph_mut().meshes.push(mesh.clone());
    let mut pin = Pin::free(2);
    pin.axes[1].push(mesh.full_axis(1));
    pin.asked_by("source");
    b.annotate(x, pin.annotation(0));
    let graph = applied(&b.finish(vec![x]), &mesh, &[]);
    assert_eq!(graph.meshes.len(), 1);
    assert_eq!(input(&graph, "x"), "[{dp}, {tp}] ..");
}

#[test]
fn sequence_parallelism_says_which_lines_hold_against_it() {
    let options = ApplyOptions { sequence_parallel: true };
    let notes = |mesh: &Mesh, lines: &[(&str, &str)]| -> Vec<String> {
        let applied = apply(&plan(lines), &gpt(), mesh, &options).unwrap();
        applied.notes.into_iter().map(|note| note.text).collect()
    };
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let lines =
        [("layers.*.mlp.up_proj", "colwise"), ("layers.*.mlp.down_proj", "rowwise(output=replicate)")];
    let [note] = &notes(&mesh, &lines)[..] else { panic!("one for both layers") };
    assert!(note.contains("\"rowwise(output=replicate)\" (test) overrides `--sequence-parallel`"), "{note}");
    assert!(note.contains("which would request shard(1)"), "{note}");
    let lines = [("layers.*.mlp.up_proj", "colwise(input=shard(1))"), ("layers.*.mlp.down_proj", "rowwise")];
    let [note] = &notes(&mesh, &lines)[..] else { panic!("one for both layers") };
    assert!(note.contains("which would request replicate"), "{note}");
    let lines = [("layers.*.mlp.down_proj", "rowwise(output=shard(1))")];
    assert!(notes(&mesh, &lines).is_empty(), "it says the same");
    let [note] = &notes(&Mesh::new("mesh", &[("dp", 2)]), &[])[..] else { panic!("one") };
    assert!(note.starts_with("`--sequence-parallel` changes nothing: mesh dp=2 has no axis `tp`"), "{note}");
    let mlp = step_of(ModelConfig::Mlp(MlpConfig::default()));
    let notes = apply(&plan(&[("layers.0", "colwise")]), &mlp, &mesh, &options).unwrap().notes;
    let texts: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(
        texts,
        ["`--sequence-parallel` changes nothing: the model has no activations [batch, sequence, features]"]
    );
}
