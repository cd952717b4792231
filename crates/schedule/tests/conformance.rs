//! Layouts written by hand, as schedule languages write them, against one device: loss, outputs, and the gradients of
//! parameters and of the input, on 2, 3 and 4 ranks. Case numbers (L1, ..) are those of the conformance list drawn from
//! Slapo's tests, which check the forward pass alone; D numbers are defects found there that must not be found here.

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Graph, Literal, Operation, Role, ValueId, evaluate};
use partita_mesh::Mesh;
use partita_nn::{Context, Embedding, GELU, Init, Linear, Model, Module, ReLU, losses};
use partita_nn::{Optimizer, StepOptions, gradient_graph_wrt, train_step};
use partita_schedule::verify::{self, Interpreter, StepRunner};
use partita_schedule::{Applied, ApplyOptions, Plan, apply};
use partita_spmd::{Options, Partitioned, partition};

const RANKS: [usize; 3] = [2, 3, 4];

fn tp(ranks: usize) -> Mesh {
    Mesh::new("mesh", &[("tp", ranks)])
}

/// A model in f64 fed `x` of this shape; outputs `prediction`, and a loss that no rank's share of it hides in.
fn model(shape: &[usize], body: impl FnOnce(&mut Context, ValueId) -> Result<ValueId>) -> Model {
    let mut cx = Context::new("case", DType::F64, true);
    let x = cx.input("x", DType::F64, shape);
    let y = body(&mut cx, x).unwrap();
    let shape = cx.shape(y);
    let target = cx.input("target", DType::F64, &shape);
    let loss = losses::mse(&mut cx, y, target).unwrap();
    cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)])
}

/// Two linear layers, an activation between them.
fn pair(shape: &[usize], sizes: [usize; 3], activation: &dyn Module) -> Model {
    model(shape, |cx, x| {
        let h = cx.call("linear1", &Linear::new(sizes[0], sizes[1]), x)?;
        let h = cx.call("activation", activation, h)?;
        cx.call("linear2", &Linear::new(sizes[1], sizes[2]), h)
    })
}

/// Inputs by the shape of the graph: parameters as initialised, real numbers that differ, whole numbers 0.
fn inputs_of(model: &Model, graph: &Graph) -> Vec<Literal> {
    let start = model.initial(7);
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

/// Holds the planned graph on a mesh against one device, twice on the same inputs: nothing they hold may change.
fn hold_against_one_device(graph: &Graph, inputs: &[Literal], mesh: &Mesh, calls: &str) -> Partitioned {
    let partitioned = cut(graph, mesh, calls);
    let reference = named(graph, evaluate(graph, inputs).unwrap());
    let first = Interpreter.run(&partitioned, inputs).unwrap_or_else(|error| panic!("{mesh}: {error}"));
    let again = Interpreter.run(&partitioned, inputs).unwrap();
    assert_eq!(first, again, "D6: inputs stay as they are");
    let report = verify::compare(&reference, &named(graph, first), None, DType::F64);
    assert!(report.ok, "{mesh}: {:?}\n{calls}", report.worst());
    partitioned
}

/// The same on every number of ranks, and the plan also applies where there are no gradients.
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

/// How often each collective is run in the forward pass of rank 0.
fn collectives(partitioned: &Partitioned) -> Vec<(String, usize)> {
    let mut counts: IndexMap<String, usize> = IndexMap::new();
    for node in &partitioned.local(0).nodes {
        if ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"].contains(&node.op.name()) {
            *counts.entry(format!("{} {}", node.phase.name(), node.op.name())).or_default() += 1;
        }
    }
    counts.into_iter().collect()
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
