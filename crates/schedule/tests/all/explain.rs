//! `explain` on built steps: chains of causes, and the cost of other layouts, counted by hand or by
//! building the plan with that layout.

use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Operation, Registry};
use partita_mesh::Mesh;
use partita_nn::{GptConfig, LlamaConfig, MlpConfig, Model, ModelConfig, Optimizer, StepOptions};
use partita_schedule::explain::{Choice, Collective, Explain, Over, Subject, Tensor, lines};
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, Plan, restructure};

fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error: Box<Diagnostic>| panic!("{error}"))
}

/// Weights `[8, 4]` and `[4, 8]`, rows of 4 numbers, a batch of 6.
fn mlp() -> Model {
    let config = MlpConfig { dims: vec![4, 8, 4], ..MlpConfig::default() };
    ok(ModelConfig::Mlp(config).build(6, DType::F64, true))
}

fn gpt() -> Model {
    let config = GptConfig { vocab: 16, dim: 8, layers: 1, heads: 2, sequence: 4, ..GptConfig::default() };
    ok(ModelConfig::Gpt(config).build(4, DType::F64, true))
}

fn plan(text: &str) -> Plan {
    ok(Plan::parse(text, "plan.py"))
}

fn built(model: &Model, mesh: &str, plan: &Plan) -> Built {
    let mesh = ok(Mesh::parse(mesh, None));
    let options = BuildOptions::new(StepOptions::new(Optimizer::from_name("sgd").unwrap()));
    let context = BuildContext { registry: &Registry::default(), runner: &Interpreter };
    ok(BuildRequest::new(model, plan, &mesh, &options, context).build())
}

fn tensor(built: &Built, name: &str) -> Tensor {
    match ok(Explain::new(built, 0).subject(name)) {
        Subject::Tensor(tensor) => tensor,
        Subject::Collective(collective) => panic!("{}", collective.name),
    }
}

fn collective(built: &Built, name: &str) -> Collective {
    match ok(Explain::new(built, 0).subject(name)) {
        Subject::Collective(collective) => collective,
        Subject::Tensor(tensor) => panic!("{}", tensor.name),
    }
}

fn over<'t>(tensor: &'t Tensor, axis: &str) -> &'t Over {
    tensor.over.iter().find(|over| over.axis == axis).expect("the mesh has the axis")
}

fn choices(built: &Built, name: &str) -> Vec<Choice> {
    let explain = Explain::new(built, 0);
    explain.choices(&ok(explain.subject(name)), &mut |_, _| {})
}

const PAIR: &str = "sch[\"layers.0\"].shard(\"weight\", 0)\n\
                    sch[\"layers.0\"].shard(\"bias\", 0)\n\
                    sch[\"layers.1\"].shard(\"weight\", 1)\n";

/// The bytes that a rank's collectives carry, and those of its parameters, read off its graph.
fn counted(built: &Built) -> (usize, usize) {
    let local = &built.stages[0].classes[0].graph;
    let carried = |node: &partita_ir::Node| match node.op.short_name() {
        "all_reduce" | "reduce_scatter" | "all_to_all" => local.ty(node.operands[0]).bytes(),
        "all_gather" => local.ty(node.results[0]).bytes(),
        _ => 0,
    };
    let parameters = local.params().into_iter().map(|p| local.ty(p).bytes()).sum();
    (local.nodes.iter().map(carried).sum(), parameters)
}

#[test]
fn a_parameter_that_a_line_names_says_the_line_with_its_place() {
    let built = built(&mlp(), "tp=2", &plan(PAIR));
    let weight = tensor(&built, "layers.1.weight");
    assert_eq!((weight.role.as_str(), weight.layout.as_str()), ("parameter", "[{}, {tp}]"));
    assert_eq!((&weight.shape, weight.bytes), (&vec![4, 8], 4 * 8 * 8));
    let [held] = &weight.held[..] else { panic!("all ranks hold alike: {:?}", weight.held) };
    assert_eq!((&held.ranks, &held.shape, held.bytes), (&vec![0, 1], &vec![4, 4], 128));
    let [link] = &over(&weight, "tp").chain[..] else { panic!("one cause") };
    assert!(
        link.starts_with("\"layers.1\" = \"shard(weight, 1)\" (plan.py:3): shards `layers.1.weight`"),
        "{link}"
    );
}

#[test]
fn what_only_follows_names_each_op_on_the_way() {
    // No line names the bias: it follows the weight through the matmul and the addition.
    let built = built(&mlp(), "tp=2", &plan("sch[\"layers.0\"].shard(\"weight\", 0)\n"));
    let bias = tensor(&built, "layers.0.bias");
    assert_eq!((bias.layout.as_str(), over(&bias, "tp").dim), ("[{tp}]", Some(0)));
    let chain = &over(&bias, "tp").chain;
    assert!(chain.len() >= 3, "{chain:?}");
    assert!(chain[0].contains("(plan.py:1): shards `layers.0.weight`"), "{chain:?}");
    assert!(chain[1].contains("dot_general of layers.0"), "{chain:?}");
    assert!(chain.last().unwrap().contains("`layers.0.bias` is sharded along dimension 0"), "{chain:?}");
}

#[test]
fn activations_are_asked_for_by_module_and_side() {
    let built = built(&mlp(), "dp=2,tp=2", &plan(PAIR));
    let hidden = tensor(&built, "layers.0");
    assert_eq!((hidden.role.as_str(), hidden.layout.as_str()), ("output", "[{dp}, {tp}]"));
    let (dp, tp) = (&over(&hidden, "dp").chain, &over(&hidden, "tp").chain);
    assert!(dp[0].contains("default layout of the batch: shards `inputs`"), "{dp:?}");
    assert!(tp[0].contains("(plan.py:1)") || tp[0].contains("(plan.py:2)"), "{tp:?}");
    let entering = tensor(&built, "layers.1.input");
    assert_eq!((entering.role.as_str(), entering.layout.as_str()), ("input", "[{dp}, {tp}]"));
    let fed = tensor(&built, "inputs");
    assert_eq!((fed.role.as_str(), over(&fed, "tp").dim), ("input of the step", None));
    assert_eq!(over(&fed, "tp").chain, ["default layout of the batch: replicates `inputs` over `tp`"]);
}

#[test]
fn a_tied_weight_is_the_parameter_it_is_tied_to() {
    let mut plan = Plan::default();
    ok(plan.add("embed_tokens", "rowwise", "hand"));
    let built = built(&gpt(), "tp=2", &plan);
    let (head, table) = (tensor(&built, "lm_head.weight"), tensor(&built, "embed_tokens.weight"));
    assert_eq!((head.role.as_str(), head.value.as_str()), ("tied parameter", "embed_tokens.weight"));
    assert_eq!((&head.layout, &head.over), (&table.layout, &table.over));
    assert!(over(&head, "tp").chain[0].starts_with("\"embed_tokens\" = \"rowwise\" (hand): shards"));
}

#[test]
fn of_several_lines_each_axis_names_its_own() {
    let mut plan = Plan::default();
    ok(plan.add("layers.0", "colwise", "hand"));
    ok(plan.add("**", "fsdp", "hand"));
    let built = built(&mlp(), "fsdp=2,tp=2", &plan);
    let weight = tensor(&built, "layers.0.weight");
    assert_eq!(weight.layout, "[{tp, fsdp}, {}]");
    let first = |axis: &str| over(&weight, axis).chain[0].clone();
    assert!(first("tp").starts_with("\"layers.0\" = \"colwise\" (hand): shards"), "{}", first("tp"));
    assert!(first("fsdp").starts_with("\"**\" = \"fsdp\" (hand): shards"), "{}", first("fsdp"));
    // Each use gathers it, because the line says so.
    let gathers: Vec<Collective> =
        Explain::new(&built, 0).collectives().into_iter().filter(|c| c.kind == "all_gather").collect();
    assert!(!gathers.is_empty() && gathers.iter().any(|c| c.value == "layers.0.weight"));
    assert!(gathers.iter().all(|c| c.because == "\"**\" = \"fsdp\" (hand)"), "{gathers:?}");
}

#[test]
fn a_collective_says_what_was_cut_who_wants_it_and_what_it_costs() {
    let built = built(&mlp(), "tp=2", &plan(PAIR));
    let sum = collective(&built, "all_reduce:1");
    assert_eq!((sum.module.as_str(), sum.phase.as_str()), ("layers.1", "forward"));
    assert_eq!((sum.before.as_str(), sum.after.as_str()), ("[{}, {}] partial={tp: sum}", "[{}, {}]"));
    // 6 x 4 numbers of 8 bytes. Two trips around a ring of two: 5 us, and half the bytes at 4 GB/s, each.
    assert_eq!(sum.bytes, 192);
    assert!((sum.cost_us - 2.0 * (5.0 + 96.0 / 4e3)).abs() < 1e-9, "{}", sum.cost_us);
    assert!(sum.chain[0].contains("(plan.py:"), "{:?}", sum.chain);
    let combines = "dot_general of layers.1 reduces that dimension";
    assert!(sum.chain.iter().any(|link| link.starts_with(combines)), "{:?}", sum.chain);
    assert_eq!(sum.chain.last().unwrap(), "so each rank gets the complete sum over `tp`");
    let of_the_norm = collective(&built, "all_reduce:2");
    assert_eq!((of_the_norm.phase.as_str(), of_the_norm.bytes), ("update", 8));
}

#[test]
fn choices_count_what_the_plan_that_says_so_would() {
    let model = mlp();
    let present = built(&model, "tp=2", &plan(PAIR));
    let all = choices(&present, "layers.1.weight");
    let dims: Vec<Option<usize>> = all.iter().map(|choice| choice.dim).collect();
    assert_eq!(dims, [Some(1), Some(0), None]);
    // Weights of 32 numbers in two shards, a bias of 8 in two shards, one of 4 replicated. The
    // output's sum, and one number of the norm.
    let now = &all[0];
    assert!(now.present);
    assert_eq!((now.moved_bytes, now.parameter_bytes), (192 + 8, (16 + 4 + 16 + 4) * 8));
    let others = [
        PAIR.replace("sch[\"layers.1\"].shard(\"weight\", 1)", "sch[\"layers.1\"].shard(\"weight\", 0)"),
        PAIR.replace("sch[\"layers.1\"].shard(\"weight\", 1)", "sch[\"layers.1.weight\"].replicate()"),
    ];
    for (choice, text) in all[1..].iter().zip(&others) {
        let figures = counted(&built(&model, "tp=2", &plan(text)));
        assert_eq!((choice.moved_bytes, choice.parameter_bytes), figures, "{text}");
        assert_eq!(choice.more_moved_bytes, figures.0 as i64 - 200, "{text}");
        assert_eq!(choice.more_parameter_bytes, figures.1 as i64 - 320, "{text}");
        assert!(!choice.present && choice.refused.is_none());
    }
    // Replicated, the weight takes 128 bytes more on each rank.
    assert_eq!(all[2].more_parameter_bytes, 128);
}

#[test]
fn of_what_enters_a_module_the_largest_is_meant() {
    let config =
        LlamaConfig { vocab: 16, dim: 8, layers: 1, heads: 2, sequence: 4, ..LlamaConfig::default() };
    let model = ok(ModelConfig::Llama(config).build(4, DType::F64, true));
    let built = built(&model, "tp=2", &Plan::default());
    // Tables of rotary positions enter beside the residual stream.
    let stream = tensor(&built, "layers.0.input");
    assert_eq!((&stream.shape, stream.tensors), (&vec![4, 4, 8], 1));
    assert_eq!(choices(&built, "layers.0.input").len(), 4);
}

#[test]
fn the_present_layout_partitions_to_itself() {
    let model = mlp();
    for mesh in ["tp=3", "dp=2,tp=2"] {
        let built = built(&model, mesh, &plan(PAIR));
        for name in ["layers.0.weight", "layers.0", "layers.1.input", "all_reduce:1"] {
            let all = choices(&built, name);
            let counted = counted(&built);
            for now in all.iter().filter(|choice| choice.present) {
                assert_eq!((now.moved_bytes, now.parameter_bytes), counted, "{name} on {mesh}");
            }
            let axes = mesh.split(',').count();
            assert_eq!(all.iter().filter(|choice| choice.present).count(), axes, "{name} on {mesh}");
        }
    }
}

#[test]
fn lines_say_what_they_did() {
    let model = gpt();
    let mut plan = Plan::default();
    for (modules, primitive) in [
        ("layers.*.mlp.up_proj", "colwise"),
        ("layers.*.mlp", "checkpoint"),
        ("layers.*", "fork_rng"),
        ("layers.0.attn", "pipeline_split"),
        ("layers.*.mlp.up_proj", "annotate(weight, owner, \"me\")"),
    ] {
        ok(plan.add(modules, primitive, "hand"));
    }
    let mesh = ok(Mesh::parse("tp=2", None));
    let options = BuildOptions::new(StepOptions::new(Optimizer::from_name("adam").unwrap()));
    let context = BuildContext { registry: &Registry::default(), runner: &Interpreter };
    let built = ok(BuildRequest::new(&model, &plan, &mesh, &options, context).build());
    let forward = ok(restructure(&plan, &model, &context)).model.forward;
    let lines = lines(&built, &forward);
    let [style, checkpoint, fork, split, annotate] = &lines[..] else { panic!("five lines") };
    // Weight and bias with two states each; the module's output, and its recomputed copy.
    assert_eq!((style.parameters, style.states), (2, 4));
    assert!(style.activations >= 1, "{style:?}");
    // The backward pass reads the input and the output of the GELU: 4 x 4 rows of 32 features, half
    // of them here.
    assert_eq!(checkpoint.recomputed_bytes, 2 * (4 * 4 * 16 * 8), "{checkpoint:?}");
    assert!(fork.note.as_ref().is_some_and(|note| note.starts_with("changes nothing")), "{fork:?}");
    assert!(
        split.note.as_ref().is_some_and(|note| note.starts_with("a pipeline stage ends here on")),
        "{split:?}"
    );
    assert_eq!((split.stages, annotate.annotations), (1, 1));
    assert!(
        built.notes.iter().any(|note| note.text.contains("fork_rng changes nothing")),
        "{:?}",
        built.notes
    );
}

#[test]
fn a_name_that_is_nothing_gets_the_nearest_and_a_number_its_range() {
    let built = built(&mlp(), "tp=2", &plan(PAIR));
    let explain = Explain::new(&built, 0);
    let error = explain.subject("layers.1.wieght").unwrap_err();
    assert_eq!(error.code, "E257");
    assert!(error.help.as_deref().unwrap().contains("`layers.1.weight`"), "{error}");
    for (name, expected) in [
        ("all_reduce:0", "a number from 1 to 2"),
        ("all_gather:1", "another kind: this step has no all_gather"),
    ] {
        let error = explain.subject(name).unwrap_err();
        assert_eq!((error.code, error.expected.as_deref()), ("E258", Some(expected)));
    }
}
