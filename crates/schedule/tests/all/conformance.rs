//! Hand-written layouts, as in other schedule languages, compared with one device: loss, outputs,
//! and the gradients of parameters and of the input, on 2, 3 and 4 ranks. Case numbers (L1, ..) are
//! those of a conformance list drawn from Slapo's tests, which check the forward pass alone; D
//! numbers are defects known from there.

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Graph, Literal, Op, Operation, Role, ValueId, evaluate};
use partita_mesh::Mesh;
use partita_nn::{
    Context, Dropout, Embedding, GELU, Init, Linear, Model, Module, Optimizer, ReLU, StepOptions,
    gradient_graph_wrt, losses, train_step,
};
use partita_schedule::verify::{self, Interpreter, StepRunner};
use partita_schedule::{Applied, ApplyOptions, Built, Plan, apply};
use partita_spmd::{Options, Partitioned, partition};

const RANKS: [usize; 3] = [2, 3, 4];

fn tp(ranks: usize) -> Mesh {
    Mesh::new("mesh", &[("tp", ranks)])
}

/// A model in f64 with input `x` of this shape; outputs `prediction`, and a loss that exposes any
/// rank's error.
fn model(shape: &[usize], body: impl FnOnce(&mut Context, ValueId) -> Result<ValueId>) -> Model {
    let mut cx = Context::new("case", DType::F64, true);
    let x = cx.input("x", DType::F64, shape);
    let y = body(&mut cx, x).unwrap();
    let shape = cx.shape(y);
    let target = cx.input("target", DType::F64, &shape);
    let loss = losses::mse(&mut cx, y, target).unwrap();
    cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)]).unwrap()
}

/// Two linear layers, an activation between them.
fn pair(shape: &[usize], sizes: [usize; 3], activation: &dyn Module) -> Model {
    model(shape, |cx, x| {
        let h = cx.call("linear1", &Linear::new(sizes[0], sizes[1]), x)?;
        let h = cx.call("activation", activation, h)?;
        cx.call("linear2", &Linear::new(sizes[1], sizes[2]), h)
    })
}

/// Inputs by the shape of the graph: parameters as initialised, distinct floats, integers 0.
fn inputs_of(model: &Model, graph: &Graph) -> Vec<Literal> {
    let start = model.initial(7).unwrap();
    let value = |(number, &input): (usize, &ValueId)| {
        let value = graph.value(input);
        if let Some(literal) = start.get(&value.name) {
            return literal.clone();
        }
        match (value.ty.dtype.is_float(), value.name.as_str()) {
            (true, "learning_rate") => Literal::splat(&value.ty, 0.01),
            (true, _) if matches!(value.role, Role::StateOf(_)) => Literal::zeros(&value.ty),
            (true, _) => {
                let wave = |i: usize| ((i * 7 + number * 3 + 1) as f64 * 0.37).sin();
                let all: Vec<f64> = (0..value.ty.element_count()).map(wave).collect();
                Literal::from_f64(&value.ty, all.into_iter())
            }
            (false, name) => Literal::splat(&value.ty, if name == "step" { 1.0 } else { 0.0 }),
        }
    };
    graph.inputs.iter().enumerate().map(value).collect()
}

fn named(graph: &Graph, outputs: Vec<Literal>) -> IndexMap<String, Literal> {
    graph.output_names.iter().cloned().zip(outputs).collect()
}

fn lines(calls: &str) -> Plan {
    Plan::from_calls(calls, "case").unwrap_or_else(|error| panic!("{error}"))
}

/// Loss, prediction and all gradients, those of these inputs too.
fn differentiated(model: &Model, inputs: &[&str]) -> Graph {
    gradient_graph_wrt(&model.forward, inputs).unwrap()
}

fn applied(graph: &Graph, mesh: &Mesh, calls: &str) -> Applied {
    apply(&lines(calls), graph, mesh, &ApplyOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn cut(graph: &Graph, mesh: &Mesh, calls: &str) -> Partitioned {
    partition(&applied(graph, mesh, calls).graph, mesh, &Options::default())
        .unwrap_or_else(|error| panic!("{mesh}: {error}\n{calls}"))
}

/// Compares the planned graph on a mesh with one device, twice on the same inputs: the runs must
/// not change them.
fn hold_against_one_device(graph: &Graph, inputs: &[Literal], mesh: &Mesh, calls: &str) -> Partitioned {
    let partitioned = cut(graph, mesh, calls);
    let reference = named(graph, evaluate(graph, inputs).unwrap());
    let first = Interpreter
        .run(&Built::of(partitioned.clone()).unwrap(), inputs)
        .unwrap_or_else(|error| panic!("{mesh}: {error}"));
    let again = Interpreter.run(&Built::of(partitioned.clone()).unwrap(), inputs).unwrap();
    assert_eq!(first, again, "D6: inputs stay as they are");
    let report = verify::compare(&reference, &named(graph, first), None, None, DType::F64);
    assert!(report.ok, "{mesh}: {:?}\n{calls}", report.worst());
    partitioned
}

/// The same on every number of ranks; the plan also applies without gradients.
fn holds_on_all_ranks(model: &Model, inputs: &[&str], calls: &str) {
    let graph = differentiated(model, inputs);
    for name in inputs {
        assert!(graph.output_named(&format!("grad.{name}")).is_some(), "the gradient of {name} is checked");
    }
    let values = inputs_of(model, &graph);
    for ranks in RANKS {
        applied(&model.forward, &tp(ranks), calls);
        hold_against_one_device(&graph, &values, &tp(ranks), calls);
    }
}

fn refused(graph: &Graph, mesh: &Mesh, calls: &str) -> Box<Diagnostic> {
    match apply(&lines(calls), graph, mesh, &ApplyOptions::default()) {
        Ok(_) => panic!("accepted:\n{calls}"),
        Err(error) => error,
    }
}

/// The op and phase of each collective of rank 0 under a module, in order.
fn collectives(partitioned: &Partitioned, module: &str) -> Vec<String> {
    let exchanges = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
    let nodes = partitioned.local(0).nodes.iter().filter(|n| n.path.starts_with(module));
    let kind = |name: &str| exchanges.into_iter().find(|e| name.ends_with(e)).map(str::to_string);
    nodes.filter_map(|n| Some(format!("{} {}", n.phase.name(), kind(n.op.name())?))).collect()
}

/// The shape of a parameter on each rank.
fn local_shapes(partitioned: &Partitioned, name: &str) -> Vec<Vec<usize>> {
    let graph = &partitioned.graph;
    let position = graph.inputs.iter().position(|&v| graph.value(v).name == name).unwrap();
    let shape = &graph.ty(graph.inputs[position]).shape;
    let ranks = 0..partitioned.mesh.rank_count();
    ranks.map(|r| partitioned.inputs[position].local_shape(&partitioned.mesh, shape, r)).collect()
}

#[test]
fn l1_eight_layouts_of_one_mlp_are_equal() {
    let mlp = pair(&[8, 8, 8], [8, 32, 8], &GELU::default());
    let col = "sch['linear1'].shard('weight', 0).shard('bias', 0)\n";
    let row = "sch['linear2'].shard('weight', 1).sync('fwd_post', 'all_reduce')\n";
    let layouts = [
        String::new(),
        format!("{col}sch['linear1'].sync('fwd_post', 'RS->SR')\nsch['linear2'].sync('fwd_post', 'SR->RR')"),
        format!(
            "{col}sch['linear1'].sync('fwd_post', 'RS->SR')\nsch['linear2'].sync('fwd_pre', 'SR->RS')\n{row}"
        ),
        format!("{col}{row}sch['linear1'].sync('bwd_post', 'all_reduce')"),
        format!(
            "{col}sch['linear1'].sync('fwd_post', 'all_gather', dim=-1)\n\
             sch['linear2'].shard('weight', 0).shard('bias', 0).sync('fwd_post', 'all_gather')"
        ),
        format!("sch['linear1'].sync('fwd_post', 'RR->RS')\n{row}"),
        "sch['linear1'].sync('fwd_post', 'RR->SR')\nsch['linear2'].sync('fwd_post', 'SR->RR')".to_string(),
        "sch['linear1'].sync('fwd_pre', 'RR->SR')\nsch['linear2'].sync('fwd_post', 'SR->RR')".to_string(),
    ];
    for layout in &layouts {
        holds_on_all_ranks(&mlp, &["x"], layout);
    }
}

/// Megatron's pair: columns, then rows.
const MEGATRON: &str = "sch['linear1'].shard('weight', 0).shard('bias', 0)\n\
                        sch['linear2'].shard('weight', 1).sync('fwd_post', 'all_reduce')\n\
                        sch['linear1'].sync('bwd_post', 'all_reduce')";

#[test]
fn l2_sequence_parallel_with_the_gradient_of_the_input_and_of_the_row_bias() {
    let mlp = pair(&[3, 16, 30], [30, 30, 30], &ReLU);
    let calls = "sch.shard('input', 1)\n\
                 sch['linear1'].shard('weight', 0).shard('bias', 0).sync('fwd_pre', 'all_gather', dim=1)\n\
                 sch['linear2'].shard('weight', 1).sync('fwd_post', 'reduce_scatter', dim=1)\n\
                 sch['linear2'].sync('fwd_post', 'all_gather', dim=1)";
    holds_on_all_ranks(&mlp, &["x"], calls);
    let graph = differentiated(&mlp, &["x"]);
    let partitioned = cut(&graph, &tp(2), calls);
    assert_eq!(
        local_shapes(&partitioned, "x"),
        vec![vec![3, 8, 30]; 2],
        "the input is sharded along the sequence"
    );
    let forward = collectives(&partitioned, "").into_iter().filter(|c| c.starts_with("forward"));
    let expected = ["all_gather", "reduce_scatter", "all_gather", "all_reduce"];
    let expected = expected.map(|op| format!("forward {op}"));
    assert_eq!(forward.collect::<Vec<String>>(), expected, "the last one is the loss's");
    // The backward pass of the gather already sums the gradient of the input. Another sum would
    // multiply it by the number of ranks.
    let error = refused(&graph, &tp(2), &format!("{calls}\nsch['linear1'].sync('bwd_post', 'all_reduce')"));
    assert_eq!(error.code, "E233", "{error}");
    assert!(error.message.contains("the gradient of `x` is already reduced"), "{error}");
}

#[test]
fn l3_each_doubled_collective_is_refused_by_name() {
    let mlp = pair(&[4, 8], [8, 8, 8], &GELU::default());
    let graph = differentiated(&mlp, &["x"]);
    let gather = "sch['linear1'].shard('weight', 0).sync('fwd_post', 'all_gather')\n";
    let twice = |calls: &str, line: &str| format!("{calls}\n{line}");
    for (calls, what) in [
        // Slapo's three, on layers that nothing shards.
        ("sch['linear1'].sync('fwd_post', 'all_reduce')".to_string(), "in linear1 (forward)` is already"),
        (
            "sch['linear1'].sync('fwd_post', 'reduce_scatter').sync('fwd_post', 'all_gather')".to_string(),
            "in linear1 (forward)` is already",
        ),
        ("sch['linear1'].sync('bwd_post', 'all_reduce')".to_string(), "the gradient of `x` is already"),
        // After a line that replicated it; the error names that line.
        (
            twice(MEGATRON, "sch['linear2'].sync('fwd_post', 'all_reduce')"),
            "\"linear2\" = \"sync(fwd_post, all_reduce)\"",
        ),
        (twice(gather, "sch['linear1'].sync('fwd_post', 'all_gather')"), "has this layout by"),
        (twice(gather, "sch['activation'].sync('fwd_pre', 'all_gather')"), "replicated by"),
        (twice(MEGATRON, "sch['linear2'].sync('bwd_post', 'all_reduce')"), ""),
        ("sch['linear1'].sync('fwd_post', 'SR->RR')".to_string(), "in linear1 (forward)` is already"),
    ] {
        for ranks in RANKS {
            for graph in [&graph, &mlp.forward] {
                let error = refused(graph, &tp(ranks), &calls);
                // The gradient of a value sharded along its features is sharded, not partial.
                let expected = if what.is_empty() { "E234" } else { "E233" };
                assert_eq!(error.code, expected, "{calls}\n{error}");
                assert!(error.to_string().contains(what), "{calls}\n{error}");
                assert!(error.code != "E233" || error.message.contains("replicated over `tp`"), "{error}");
            }
        }
    }
}

#[test]
fn l6_a_missing_sync_is_none_and_a_broken_rule_is_noticed() {
    let mlp = pair(&[4, 20], [20, 30, 40], &GELU::default());
    let bare = "sch['linear1'].shard('weight', 0).shard('bias', 0)\nsch['linear2'].shard('weight', 1)";
    holds_on_all_ranks(&mlp, &["x"], MEGATRON);
    holds_on_all_ranks(&mlp, &["x"], bare);
    let graph = differentiated(&mlp, &["x"]);
    let inputs = inputs_of(&mlp, &graph);
    let reference = named(&graph, evaluate(&graph, &inputs).unwrap());
    for calls in [MEGATRON, bare] {
        let options = Options { break_rule_at: Some("linear2".to_string()), ..Options::default() };
        let broken = partition(&applied(&graph, &tp(2), calls).graph, &tp(2), &options).unwrap();
        let same = match Interpreter.run(&Built::of(broken.clone()).unwrap(), &inputs) {
            Ok(outputs) => verify::compare(&reference, &named(&graph, outputs), None, None, DType::F64).ok,
            // Copies that should be equal are not.
            Err(error) => error.code != "E230",
        };
        assert!(!same, "a sum left out must be noticed");
    }
}

#[test]
fn l10_d1_every_id_of_a_cut_vocabulary_finds_its_row() {
    // The first and last id of every shard on 2, 3 and 4 ranks: 50 + 50, 34 + 33 + 33, 4 of 25.
    let ids = [0, 49, 50, 99, 33, 34, 66, 67, 24, 25, 74, 75];
    let mut cx = Context::new("embedding", DType::F64, true);
    let x = cx.input("ids", DType::I64, &[ids.len()]);
    let rows = cx.call("embed", &Embedding::new(100, 6), x).unwrap();
    let target = cx.input("target", DType::F64, &[ids.len(), 6]);
    let loss = losses::mse(&mut cx, rows, target).unwrap();
    let model = cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), rows)]).unwrap();
    let graph = differentiated(&model, &[]);
    let mut inputs = inputs_of(&model, &graph);
    inputs[0] = Literal::from_f64(&inputs[0].ty, ids.iter().map(|&id| id as f64));
    let table = model.initial(7).unwrap()["embed.weight"].to_f64();
    for ranks in RANKS {
        for sync in ["all_reduce", "reduce_scatter"] {
            let calls = format!("sch['embed'].shard('weight', 0).sync('fwd_post', '{sync}')");
            let partitioned = hold_against_one_device(&graph, &inputs, &tp(ranks), &calls);
            let outputs =
                named(&graph, Interpreter.run(&Built::of(partitioned.clone()).unwrap(), &inputs).unwrap());
            for (row, &id) in outputs["prediction"].to_f64().chunks(6).zip(&ids) {
                assert_eq!(row, &table[id * 6..][..6], "id {id} on {ranks} ranks");
            }
        }
    }
}

#[test]
fn l11_masks_follow_the_global_index_in_every_layout() {
    let drop = |shape: &[usize]| {
        model(shape, |cx, x| {
            let h = cx.call("linear1", &Linear::new(6, 12), x)?;
            let h = cx.call("dropout", &Dropout { rate: 0.5 }, h)?;
            cx.call("linear2", &Linear::new(12, 6), h)
        })
    };
    let model = drop(&[4, 5, 6]);
    let mut graph = differentiated(&model, &["x"]);
    let dropped = graph.nodes.iter().find(|n| n.path == "dropout" && matches!(n.op, Op::Composite(_)));
    graph.outputs.push(dropped.expect("dropout is one op").results[0]);
    graph.output_names.push("dropped".to_string());
    let inputs = inputs_of(&model, &graph);
    let reference = named(&graph, evaluate(&graph, &inputs).unwrap());
    let zeros = reference["dropped"].to_f64().iter().filter(|v| **v == 0.0).count();
    assert!((60..180).contains(&zeros), "about half of 240 are dropped: {zeros}");
    for layout in [
        MEGATRON,
        "sch['dropout'].shard('output', 1)",
        "sch['linear1'].sync('fwd_post', 'RR->SR')\nsch['dropout'].sync('fwd_post', 'SR->RS')",
        "sch['linear1'].shard('output', 0)",
    ] {
        for ranks in RANKS {
            for fork in ["", "\nsch['dropout'].fork_rng()"] {
                hold_against_one_device(&graph, &inputs, &tp(ranks), &format!("{layout}{fork}"));
            }
        }
        let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
        hold_against_one_device(&graph, &inputs, &mesh, layout);
    }
}

#[test]
fn l12_d3_ranks_start_from_exact_slices_and_global_shapes_stay_known() {
    for init in [Init::Zeros, Init::Normal { std: 1.0 }] {
        let model = model(&[4, 20], |cx, x| {
            let h = cx.call("linear1", &Linear::new(20, 20).init(init), x)?;
            cx.call("linear2", &Linear::new(20, 40).init(init), h)
        });
        let step = train_step(&model.forward, &StepOptions::new(Optimizer::adamw())).unwrap();
        for ranks in RANKS {
            let mesh = tp(ranks);
            let partitioned = cut(&step, &mesh, MEGATRON);
            let graph = &partitioned.graph;
            for (name, spec) in &model.params {
                let position = graph.inputs.iter().position(|&v| graph.value(v).name == *name).unwrap();
                assert_eq!(*graph.ty(graph.inputs[position]), spec.ty, "the global shape of {name}");
                let (sharding, whole) = (&partitioned.inputs[position], spec.initial(3).unwrap());
                for rank in 0..ranks {
                    let extent = sharding.local_shape(&mesh, &spec.ty.shape, rank);
                    let offset = sharding.local_offset(&mesh, &spec.ty.shape, rank);
                    let shard = spec.initial_shard(3, &offset, &extent).unwrap();
                    assert_eq!(shard, whole.window(&offset, &extent), "{name} on rank {rank}");
                }
            }
        }
        // Sharding dimension 0 leaves the other one: 20 outputs in shards, 20 inputs each.
        let partitioned = cut(&step, &tp(3), MEGATRON);
        let slot = Optimizer::adamw().slots()[0];
        for prefix in ["".to_string(), format!("optimizer.{slot}.")] {
            let shapes = |name: &str| local_shapes(&partitioned, &format!("{prefix}{name}"));
            assert_eq!(shapes("linear1.weight"), [[7, 20], [7, 20], [6, 20]]);
            assert_eq!(shapes("linear1.bias"), [[7], [7], [6]]);
            assert_eq!(shapes("linear2.weight"), [[40, 7], [40, 7], [40, 6]]);
            assert_eq!(shapes("linear2.bias"), [[40], [40], [40]]);
        }
    }
}

#[test]
fn d2_a_tensor_is_cut_once_along_an_axis() {
    let mlp = pair(&[4, 8], [8, 8, 8], &ReLU);
    let error = refused(&mlp.forward, &tp(2), "sch['linear1'].shard('weight', 0).shard('weight', 1)");
    assert_eq!(error.code, "E231", "{error}");
    let text = error.to_string();
    for part in [
        "`linear1.weight` is already sharded along `tp`",
        "[8, 8] sharded once along `tp`",
        "[{tp}, {}]",
        "shard(weight, 0)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn d4_every_reshard_carries_gradients() {
    let mlp = pair(&[4, 6, 10], [10, 10, 10], &GELU::default());
    let produced = [
        ("RR", ""),
        ("RS", "sch['linear1'].shard('weight', 0).shard('bias', 0)\n"),
        ("SR", "sch['linear1'].sync('fwd_pre', 'scatter', dim=1)\n"),
    ];
    for (from, before) in produced {
        for (to, _) in produced {
            let arrow = format!("{from}->{to}");
            holds_on_all_ranks(&mlp, &["x"], &format!("{before}sch['linear1'].sync('fwd_post', '{arrow}')"));
            holds_on_all_ranks(
                &mlp,
                &["x"],
                &format!("{before}sch['activation'].sync('fwd_pre', '{arrow}')"),
            );
        }
    }
}

#[test]
fn d5_what_enters_is_gathered_whatever_its_number() {
    let model = model(&[4, 6], |cx, x| {
        let a = cx.call("a", &Linear::new(6, 8), x)?;
        let b = cx.call("b", &Linear::new(6, 8), x)?;
        cx.scope("mix", |cx| {
            let product = cx.builder.multiply(a, b)?;
            cx.call("out", &Linear::new(8, 6), product)
        })
    });
    let calls = "sch['a'].shard('weight', 0)\nsch['b'].shard('weight', 0)\n\
                 sch['mix'].sync('fwd_pre', 'all_gather', dim=-1)";
    holds_on_all_ranks(&model, &["x"], calls);
    let graph = applied(&model.forward, &tp(2), calls).graph;
    let product = graph.nodes.iter().find(|n| n.path == "mix" && n.op.name().contains("multiply")).unwrap();
    for &operand in &product.operands {
        let (id, _) = graph.value(operand).definition.unwrap();
        assert!(graph.node(id).op.name().contains("constraint"), "{} is read whole", graph.describe(operand));
    }
}

#[test]
fn a_row_parallel_layer_adds_its_bias_once() {
    // No weight, so that the prediction is the bias alone.
    let model = model(&[3, 12], |cx, x| {
        let layer = Linear { bias_init: Init::Ones, ..Linear::new(12, 5).init(Init::Zeros) };
        cx.call("linear", &layer, x)
    });
    let graph = differentiated(&model, &["x"]);
    let inputs = inputs_of(&model, &graph);
    for ranks in RANKS {
        for sync in ["", ".sync('fwd_post', 'all_reduce')", ".sync('fwd_post', 'reduce_scatter', dim=-1)"] {
            let calls = format!("sch['linear'].shard('weight', 1){sync}");
            let partitioned = hold_against_one_device(&graph, &inputs, &tp(ranks), &calls);
            let outputs =
                named(&graph, Interpreter.run(&Built::of(partitioned.clone()).unwrap(), &inputs).unwrap());
            assert_eq!(outputs["prediction"].to_f64(), vec![1.0; 15], "{calls} on {ranks} ranks");
        }
    }
}

/// Every all-reduce of rank 0 but the loss's: phase, module and shape.
fn sums(partitioned: &Partitioned) -> Vec<String> {
    let local = partitioned.local(0);
    let sums = local.nodes.iter().filter(|n| n.op.name().ends_with("all_reduce") && n.path != "loss");
    sums.map(|n| format!("{} {} {:?}", n.phase.name(), n.path, local.ty(n.results[0]).shape)).collect()
}

#[test]
fn a_sum_is_made_where_a_line_says() {
    // Only linear layers: the reduction could wait, and would be smaller later.
    let model = model(&[8, 6], |cx, x| {
        let h = cx.call("linear1", &Linear::new(6, 16).bias(false), x)?;
        let h = cx.call("linear2", &Linear::new(16, 12).bias(false), h)?;
        cx.call("linear3", &Linear::new(12, 2).bias(false), h)
    });
    let graph = differentiated(&model, &["x"]);
    let inputs = inputs_of(&model, &graph);
    let sums = |calls: &str| sums(&hold_against_one_device(&graph, &inputs, &tp(2), calls));
    let row = "sch['linear2'].shard('weight', 1)";
    let forward = |calls: &str| sums(calls).into_iter().find(|sum| sum.starts_with("forward")).unwrap();
    assert_eq!(forward(row), "forward linear3 [8, 2]");
    assert_eq!(forward(&format!("{row}.sync('fwd_post', 'all_reduce')")), "forward linear2 [8, 12]");
    let next = format!("{row}\nsch['linear3'].sync('fwd_pre', 'all_reduce')");
    assert_eq!(forward(&next), "forward linear2 [8, 12]");
    let column = "sch['linear2'].shard('weight', 0)";
    let backward = |calls: &str| -> Vec<String> {
        sums(calls).into_iter().filter(|sum| sum.starts_with("input_grad")).collect()
    };
    let asked = format!("{column}.sync('bwd_post', 'all_reduce')");
    assert_eq!(backward(&asked), ["input_grad linear2 [8, 16]"]);
    assert_ne!(backward(column), backward(&asked), "without the line the sum waits");
}

#[test]
fn lines_hold_beside_data_parallelism_and_microbatches() {
    let mlp = pair(&[6, 5, 12], [12, 16, 8], &GELU::default());
    let step = partita_spmd::microbatch(&differentiated(&mlp, &[]), 3).unwrap();
    let sequence = "sch.shard('input', 1)\n\
                    sch['linear1'].shard('weight', 0).sync('fwd_pre', 'all_gather')\n\
                    sch['linear2'].shard('weight', 1).sync('fwd_post', 'reduce_scatter', dim=1)";
    let deep = "sch['linear2'].shard('weight', 0).sync('bwd_post', 'reduce_scatter', dim=1)";
    for calls in [MEGATRON, sequence, deep] {
        for mesh in [tp(2), tp(1), Mesh::new("mesh", &[("dp", 2), ("tp", 3)])] {
            let values = inputs_of(&mlp, &step);
            hold_against_one_device(&step, &values, &mesh, calls);
        }
    }
    // Both axes shard one weight.
    let both = "sch['linear1'].shard('weight', 0).shard('weight', 1, axis='dp')\n\
                sch['linear2'].shard('weight', 0).shard('bias', 0, axis='tp')";
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 3)]);
    let graph = differentiated(&mlp, &["x"]);
    let partitioned = hold_against_one_device(&graph, &inputs_of(&mlp, &graph), &mesh, both);
    assert_eq!(local_shapes(&partitioned, "linear1.weight")[..3], [[6, 6], [5, 6], [5, 6]]);
}

#[test]
fn a_step_of_the_optimizer_ends_where_one_device_ends() {
    let mlp = pair(&[4, 10], [10, 12, 6], &ReLU);
    let options = StepOptions { output_gradients: true, ..StepOptions::new(Optimizer::adamw()) };
    let step = train_step(&mlp.forward, &options).unwrap();
    let inputs = inputs_of(&mlp, &step);
    for ranks in RANKS {
        hold_against_one_device(&step, &inputs, &tp(ranks), MEGATRON);
    }
}

/// The collectives of rank 0 outside of the loss, in the forward pass and in the backward pass.
fn exchanged(partitioned: &Partitioned) -> (Vec<String>, Vec<String>) {
    let local = partitioned.local(0);
    let exchanges = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
    let mut found = (Vec::new(), Vec::new());
    for node in local.nodes.iter().filter(|node| node.path != "loss") {
        let name = exchanges.into_iter().find(|exchange| node.op.name().ends_with(exchange));
        let of = if node.phase.is_backward() { &mut found.1 } else { &mut found.0 };
        of.extend(name.map(str::to_string));
    }
    found
}

#[test]
fn pytorchs_sequence_parallel_toy_gathers_once_and_scatters_once() {
    let toy = pair(&[8, 10], [10, 32, 5], &ReLU);
    let plan = "sch['linear1'].ColwiseParallel(input_layouts=Shard(0))\n\
                sch['linear2'].RowwiseParallel(output_layouts=Shard(0))";
    holds_on_all_ranks(&toy, &["x"], plan);
    let graph = differentiated(&toy, &[]);
    let partitioned = hold_against_one_device(&graph, &inputs_of(&toy, &graph), &tp(2), plan);
    assert_eq!(local_shapes(&partitioned, "x"), vec![vec![4, 10]; 2], "the input is sharded");
    assert_eq!(local_shapes(&partitioned, "linear1.weight"), vec![vec![16, 10]; 2]);
    assert_eq!(local_shapes(&partitioned, "linear2.weight"), vec![vec![5, 16]; 2]);
    let (forward, backward) = exchanged(&partitioned);
    assert_eq!(forward, ["all_gather", "reduce_scatter"]);
    // The backward of the scatter, and the sum of the bias gradient, whose rows are sharded.
    assert_eq!(backward, ["all_gather", "all_reduce"]);
    // The backward of the gather, if the input has a gradient.
    let graph = differentiated(&toy, &["x"]);
    let (_, backward) = exchanged(&cut(&graph, &tp(2), plan));
    assert_eq!(backward, ["all_gather", "all_reduce", "reduce_scatter"]);
    // With data parallelism, the rows of a `dp` rank are sharded over its `tp` ranks.
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let partitioned = hold_against_one_device(&graph, &inputs_of(&toy, &graph), &mesh, plan);
    assert_eq!(local_shapes(&partitioned, "x"), vec![vec![2, 10]; 4]);
}

#[test]
fn what_pytorch_says_of_inputs_and_outputs_is_what_is_exchanged() {
    let three = model(&[6, 4, 12], |cx, x| {
        let h = cx.call("linear1", &Linear::new(12, 12), x)?;
        let h = cx.call("activation", &GELU::default(), h)?;
        let h = cx.call("linear2", &Linear::new(12, 12), h)?;
        cx.call("next", &Linear::new(12, 12), h)
    });
    let graph = differentiated(&three, &["x"]);
    let values = inputs_of(&three, &graph);
    let pair = "sch['linear1'].ColwiseParallel()\nsch['linear2'].RowwiseParallel()\n";
    for (plan, expected) in [
        (pair.to_string(), &["all_reduce"][..]),
        // Arrives replicated: nothing to gather.
        (format!("{pair}sch['linear1'].ColwiseParallel(input_layouts=Replicate())"), &["all_reduce"]),
        ("sch['next'].ColwiseParallel(output_layouts=Replicate())".to_string(), &["all_gather"]),
        // From rows to features.
        ("sch['linear2'].RowwiseParallel(input_layouts=Shard(0))".to_string(), &["all_to_all", "all_reduce"]),
        (
            "sch['linear2'].RowwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(1))".to_string(),
            &["reduce_scatter"],
        ),
        (
            format!(
                "{pair}sch['next'].PrepareModuleInput(input_layouts=(Shard(1),), \
                 desired_input_layouts=(Replicate(),))\nsch['linear2'].RowwiseParallel(output_layouts=Shard(1))"
            ),
            &["reduce_scatter", "all_gather"],
        ),
        (
            "sch['activation'].PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate())"
                .to_string(),
            &["all_gather"],
        ),
        (
            "sch['activation'].PrepareModuleInputOutput(input_layouts=Shard(0), desired_input_layouts=Shard(1), \
             output_layouts=Shard(1), desired_output_layouts=Replicate())"
                .to_string(),
            &["all_to_all", "all_gather"],
        ),
        ("sch['activation'].SequenceParallel()\nsch['linear2'].prepare(input=replicate)".to_string(), &[
            "all_gather",
        ]),
        ("sch['activation'].SequenceParallel(sequence_dim=0)\nsch['linear2'].prepare(input=replicate)".to_string(), &[
            "all_gather",
        ]),
    ] {
        holds_on_all_ranks(&three, &["x"], &plan);
        let (forward, _) = exchanged(&hold_against_one_device(&graph, &values, &tp(2), &plan));
        assert_eq!(forward, expected, "{plan}");
    }
}

#[test]
fn layouts_by_place_speak_of_each_microbatch() {
    let model = model(&[6, 4], |cx, x| {
        let a = cx.call("a", &Linear::new(4, 8), x)?;
        let b = cx.call("b", &Linear::new(4, 8), x)?;
        cx.scope("mix", |cx| {
            let h = cx.builder.multiply(b, a)?;
            cx.call("out", &Linear::new(8, 4), h)
        })
    });
    let step = partita_spmd::microbatch(&differentiated(&model, &[]), 2).unwrap();
    // In order of use, which is not that of computation: `b` is the first.
    let calls = "sch['a'].shard('weight', 0)\nsch['b'].shard('weight', 0)\n\
                 sch['mix'].PrepareModuleInput(input_layouts=(Shard(-1), Shard(1)), \
                 desired_input_layouts=(Replicate(), None))";
    let planned = applied(&step, &tp(2), calls).graph;
    let constraints: Vec<&partita_ir::Node> =
        planned.nodes.iter().filter(|n| n.op.name().contains("constraint")).collect();
    let of: Vec<&str> = constraints
        .iter()
        .map(|n| planned.node(planned.value(n.operands[0]).definition.unwrap().0).path.as_str())
        .collect();
    assert_eq!(of, ["b", "b"], "one for each microbatch");
    hold_against_one_device(&step, &inputs_of(&model, &step), &tp(2), calls);
    let more = calls.replace("(Replicate(), None)", "(Replicate(), None, Shard(0))");
    let error = refused(&step, &tp(2), &more);
    assert_eq!(error.code, "E262", "{error}");
    assert!(error.to_string().contains("you gave 3 layouts, but `mix` has 2 inputs"), "{error}");
    // One line cannot shard an input that another replicates.
    let against = format!(
        "{calls}\nsch['mix.out'].RowwiseParallel(input_layouts=Replicate())\n\
                           sch['mix.out'].prepare(input_from=shard(0), input=replicate)"
    );
    assert_eq!(refused(&step, &tp(2), &against).code, "E227");
}

#[test]
fn a_layer_norm_over_two_dimensions_holds_in_every_layout() {
    let model = model(&[4, 6, 8], |cx, x| {
        let h = cx.call("norm", &partita_nn::LayerNorm::over(&[6, 8]), x)?;
        cx.call("linear1", &Linear::new(8, 8), h)
    });
    for plan in [
        "sch['norm'].shard('output', 0)",
        "sch['norm'].shard('output', 1)",
        "sch['norm'].shard('output', -1)",
        "sch['norm'].shard('weight', 0).shard('bias', 1)",
        "sch.shard('input', 1)",
    ] {
        holds_on_all_ranks(&model, &["x"], plan);
    }
}

/// Numbers from 0 to below `n`, always the same: an xorshift generator (Marsaglia).
fn draw(state: &mut u64, n: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % n as u64) as usize
}

#[test]
fn whatever_lines_are_accepted_the_numbers_are_those_of_one_device() {
    let model = model(&[4, 5, 6], |cx, x| {
        let h = cx.call("linear1", &Linear::new(6, 9), x)?;
        let h = cx.call("activation", &GELU::default(), h)?;
        let h = cx.call("linear2", &Linear::new(9, 6), h)?;
        let h = cx.builder.add(h, x)?;
        cx.call("linear3", &Linear::new(6, 7), h)
    });
    let graph = differentiated(&model, &["x"]);
    let inputs = inputs_of(&model, &graph);
    let modules = ["['linear1']", "['activation']", "['linear2']", "['linear3']", "['linear*']", ""];
    let modes = ["fwd_pre", "fwd_post", "bwd_post"];
    let ops =
        ["all_reduce", "all_gather", "reduce_scatter", "scatter", "RS->SR", "SR->RS", "SR->RR", "RR->SR"];
    let (mut accepted, mut syncs) = (0, 0);
    for seed in 1..=60u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mesh = if seed % 3 == 0 {
            Mesh::new("mesh", &[("dp", 2), ("tp", 2)])
        } else {
            tp(1 + (seed % 3) as usize)
        };
        let mut plan = String::new();
        for _ in 0..12 {
            let mut pick = |of: &[&'static str]| of[draw(&mut state, of.len())];
            let module = pick(&modules);
            let sync = pick(&["shard", "sync", "sync"]) == "sync";
            let dim = pick(&["0", "1", "-1"]);
            let line = match sync {
                false => {
                    format!("shard('{}', {dim})", pick(&["weight", "weight", "bias", "input", "output"]))
                }
                true => format!("sync('{}', '{}', dim={dim})", pick(&modes), pick(&ops)),
            };
            let longer = format!("{plan}sch{module}.{line}\n");
            let verdict =
                |graph: &Graph| apply(&lines(&longer), graph, &mesh, &ApplyOptions::default()).err();
            let (forward, whole) = (verdict(&model.forward), verdict(&graph));
            assert_eq!(forward.as_ref().map(|e| e.code), whole.map(|e| e.code), "{longer}");
            if forward.is_none() {
                (plan, accepted, syncs) = (longer, accepted + 1, syncs + usize::from(sync));
            }
        }
        hold_against_one_device(&graph, &inputs, &mesh, &plan);
    }
    assert!(accepted > 150 && syncs > 40, "the draw is no empty one: {accepted}, {syncs}");
}
