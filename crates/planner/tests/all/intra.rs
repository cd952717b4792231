//! The intra-operator search: what costs less than Alpa's layouts, views, attention, and plans on a cluster.

use partita_base::{DType, Result};
use partita_cost::Cluster;
use partita_ir::ops::DotGeneral;
use partita_ir::{Annotation, Graph, GraphBuilder, Registry, Role, TensorType, ValueId};
use partita_mesh::{Mesh, Sharding, Step};
use partita_nn::{Context, Linear, Model, Optimizer, StepOptions, losses, train_step};
use partita_planner::intra::{Found, Options, Prices, Table};
use partita_planner::solver::Effort;
use partita_planner::{Pins, plan_of};
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Plan};
use partita_spmd::step_s;

/// Linear layers of one width, a mean squared error, in f32.
fn mlp(batch: usize, width: usize, layers: usize, bias: bool) -> Model {
    let mut cx = Context::new("mlp", DType::F32, true);
    let mut outputs = || -> Result<Vec<_>> {
        let mut x = cx.input("inputs", DType::F32, &[batch, width]);
        let goal = cx.input("targets", DType::F32, &[batch, width]);
        for layer in 0..layers {
            x = cx.call(&format!("layers.{layer}"), &Linear::new(width, width).bias(bias), x)?;
        }
        Ok(vec![("loss".to_string(), losses::mse(&mut cx, x, goal)?)])
    };
    let outputs = outputs().unwrap();
    cx.finish(outputs).unwrap()
}

fn step_options() -> StepOptions {
    StepOptions { grad_norm: false, ..StepOptions::new(Optimizer::sgd()) }
}

/// The search under Alpa's formula, on axes that are all free.
fn alpa(step: &Graph, sizes: [usize; 2], beta: [f64; 2]) -> Found {
    let mesh = Mesh::new("mesh", &[("x", sizes[0]), ("y", sizes[1])]);
    let mut options = Options::new(Prices::Alpa { alpha: vec![1.0; 2], beta: beta.to_vec() });
    options.batch_axes.clear();
    options.forbidden.reduce_scatter = true;
    options.mixed_axes = false;
    options.effort = Effort { most_entries: 1 << 22, most_branches: 1 };
    Table::new(step, &mesh, &options).unwrap().solve().unwrap()
}

/// The all_reduces of tensors that are no scalars; any other collective fails.
fn reductions(step: &Graph, found: &Found) -> usize {
    let tensors = found.exchanges.iter().filter(|exchange| step.ty(exchange.value).element_count() > 1);
    tensors.map(|exchange| assert!(matches!(exchange.step, Step::AllReduce { .. }), "{exchange:?}")).count()
}

/// Rows over one axis and features over the other: five activations, and the gradients, which Alpa reduces as one. Without
/// Alpa's penalty the formula gives 21074.7 for its layouts; a layout that costs less is found.
#[test]
fn alpas_objective_of_a_compiled_program_on_two_axes_is_beaten() {
    let options = StepOptions { grad_norm: false, ..StepOptions::new(Optimizer::adam()) };
    let step = train_step(&mlp(256, 32, 6, true).forward, &options).unwrap();
    let found = alpa(&step, [2, 2], [1.0, 0.1]);
    let cost = found.solution.cost;
    let activation = 5.0 * (1.0 + 0.1 * 16384.0 + 0.1);
    let kernels = 6.0 * (1.0 + 2048.0 + 0.1);
    let biases = 3.0 * (1.0 + 64.0 + 0.1) + 3.0 * (1.0 + 128.0 + 0.1);
    let published = activation + kernels + biases;
    assert!((published - 21265.2f64).abs() < 1e-2 * 21265.2, "{published}");
    assert!(cost <= published && cost > 0.98 * published, "{cost} instead of {published}");
    assert!(found.solution.bound >= cost * (1.0 - 1e-9), "{cost}, bound {}", found.solution.bound);
    let over = |axis: usize| {
        found.exchanges.iter().filter(
            move |e| matches!(&e.step, Step::AllReduce { axes, .. } if axes.iter().any(|a| a.axis == axis)),
        )
    };
    println!("{} {}", over(0).count(), over(1).count());
}

/// A value that must be whole on every rank.
fn whole(b: &mut GraphBuilder, value: ValueId) {
    let rank = b.ty(value).rank();
    let sharding = Sharding::replicated(rank);
    let origin = "test".to_string();
    b.annotate(value, Annotation { mesh: 0, sharding, open: vec![false; rank], replicated: vec![], origin });
}

fn input(b: &mut GraphBuilder, name: &str, shape: &[usize]) -> ValueId {
    b.input(name, TensorType::new(DType::F32, shape.to_vec()), Role::Input)
}

#[test]
fn layouts_survive_views() {
    // The product of two transposed matrices over 2048 elements: one reduction of 128 x 128.
    for views in 0..3 {
        let mut b = GraphBuilder::new("main");
        let (x, y) = (input(&mut b, "x", &[2048, 128]), input(&mut b, "y", &[128, 2048]));
        let (mut x, mut y) = (b.transpose(x, &[1, 0]).unwrap(), b.transpose(y, &[1, 0]).unwrap());
        if views == 1 {
            for _ in 0..2 {
                (x, y) = (b.transpose(x, &[1, 0]).unwrap(), b.transpose(y, &[1, 0]).unwrap());
            }
        }
        if views == 2 {
            x = b.reshape(x, &[128, 64, 32]).unwrap();
            x = b.reshape(x, &[128, 2048]).unwrap();
            y = b.reshape(y, &[64, 32, 128]).unwrap();
            y = b.reshape(y, &[2048, 128]).unwrap();
        }
        let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
        let z = b.dot_general(x, y, dims).unwrap();
        whole(&mut b, z);
        let graph = b.finish(vec![z]);
        for sizes in [[4, 1], [1, 4]] {
            let found = alpa(&graph, sizes, [1.0, 1.0]);
            assert!(
                (found.solution.cost - 98305.01).abs() < 1.0,
                "{views}, {sizes:?}: {}",
                found.solution.cost
            );
            assert_eq!(reductions(&graph, &found), 1);
        }
    }
}

#[test]
fn attention_is_sharded_by_heads() {
    let (batch, sequence, heads, size) = (4, 128, 16, 32);
    let width = heads * size;
    let mut b = GraphBuilder::new("main");
    let x = input(&mut b, "x", &[batch * sequence, width]);
    let weight = |b: &mut GraphBuilder, name: &str| {
        b.input(name, TensorType::new(DType::F32, vec![width, width]), Role::Param)
    };
    let matmul = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
    let mut projected: Vec<ValueId> = Vec::new();
    for name in ["q", "k", "v"] {
        let w = weight(&mut b, name);
        let y = b.dot_general(x, w, matmul.clone()).unwrap();
        let y = b.reshape(y, &[batch, sequence, heads, size]).unwrap();
        projected.push(b.transpose(y, &[0, 2, 1, 3]).unwrap());
    }
    let of = |lhs: usize, rhs: usize| DotGeneral {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: vec![lhs],
        rhs_contracting: vec![rhs],
        ..DotGeneral::default()
    };
    let scores = b.dot_general(projected[0], projected[1], of(3, 3)).unwrap();
    let weights = b.exponential(scores).unwrap();
    let sums = b.reduce_sum(weights, &[3]).unwrap();
    let sums = b.broadcast_in_dim(sums, &[batch, heads, sequence, sequence], &[0, 1, 2]).unwrap();
    let weights = b.divide(weights, sums).unwrap();
    let mixed = b.dot_general(weights, projected[2], of(3, 2)).unwrap();
    let mixed = b.transpose(mixed, &[0, 2, 1, 3]).unwrap();
    let mixed = b.reshape(mixed, &[batch * sequence, width]).unwrap();
    let w = weight(&mut b, "o");
    let out = b.dot_general(mixed, w, matmul).unwrap();
    whole(&mut b, out);
    let graph = b.finish(vec![out]);
    for sizes in [[4, 1], [1, 4]] {
        let found = alpa(&graph, sizes, [1.0, 1.0]);
        assert!((found.solution.cost - 1572871.0).abs() < 1572.0, "{sizes:?}: {}", found.solution.cost);
    }
}

/// The plan of the search on a cluster, with its cost, and the predicted seconds of what is built from a plan.
fn searched(model: &Model, mesh: &Mesh) -> (Plan, f64) {
    let runner = Interpreter;
    let context = BuildContext { registry: &Registry::default(), runner: &runner };
    let options = BuildOptions::new(step_options());
    let steps = BuildRequest::new(model, &Plan::default(), mesh, &options, context).annotated().unwrap();
    let search = Options::new(Prices::Cluster(Cluster::default()));
    let (_, step) = &steps[0];
    let found = Table::new(step, mesh, &search).unwrap().solve().unwrap();
    (plan_of(step, mesh, &["tp".to_string()], &found, Pins::Inputs), found.solution.cost)
}

fn built_s(model: &Model, plan: &Plan, mesh: &Mesh) -> f64 {
    let runner = Interpreter;
    let context = BuildContext { registry: &Registry::default(), runner: &runner };
    let built =
        BuildRequest::new(model, plan, mesh, &BuildOptions::new(step_options()), context).build().unwrap();
    step_s(&built.stages[0].partitioned)
}

#[test]
fn what_is_built_costs_what_was_searched() {
    // The last one shards features in the first layers and rows in the others; propagation, which a plan leaves the rest
    // to, does not find all of that.
    for (batch, width, mesh, tolerance) in
        [(64, 512, "tp=4", 0.02), (64, 512, "dp=2,tp=2", 0.02), (512, 64, "tp=4", 0.1)]
    {
        let model = mlp(batch, width, 4, true);
        let mesh = Mesh::parse(mesh, None).unwrap();
        let (plan, cost) = searched(&model, &mesh);
        let seconds = built_s(&model, &plan, &mesh);
        let what = format!("{mesh}, {batch} x {width}: {seconds} {cost}\n{}", plan.to_dict_toml());
        assert!((seconds - cost).abs() <= tolerance * cost, "{what}");
    }
}

#[test]
fn a_memory_limit_is_kept_or_refused() {
    let step = train_step(&mlp(512, 64, 4, true).forward, &step_options()).unwrap();
    let mesh = Mesh::new("mesh", &[("tp", 4)]);
    let search = |limit: Option<f64>| {
        let mut options = Options::new(Prices::Cluster(Cluster::default()));
        options.memory_limit = limit;
        Table::new(&step, &mesh, &options).unwrap().solve()
    };
    let free = search(None).unwrap().solution;
    let least = 0.9 * free.memory;
    let tight = search(Some(least)).unwrap().solution;
    assert!(tight.memory <= least && tight.cost >= free.cost && tight.bound <= tight.cost, "{tight:?}");
    let error = search(Some(1000.0)).unwrap_err();
    assert_eq!(error.code, "E520");
}

#[test]
fn forbidden_collectives_do_not_occur() {
    let step = train_step(&mlp(64, 512, 4, true).forward, &step_options()).unwrap();
    let mesh = Mesh::new("mesh", &[("tp", 4)]);
    let mut options = Options::new(Prices::Cluster(Cluster::default()));
    let gathers = |found: &Found| {
        found.exchanges.iter().filter(|exchange| matches!(exchange.step, Step::AllGather { .. })).count()
    };
    let free = Table::new(&step, &mesh, &options).unwrap().solve().unwrap();
    assert!(gathers(&free) > 0);
    options.forbidden.all_gather = true;
    let found = Table::new(&step, &mesh, &options).unwrap().solve().unwrap();
    assert_eq!(gathers(&found), 0);
    assert!(found.solution.cost > free.solution.cost);
}

#[test]
fn whole_parameters_stay_whole() {
    let step = train_step(&mlp(64, 512, 2, true).forward, &step_options()).unwrap();
    let mesh = Mesh::new("mesh", &[("tp", 4)]);
    let mut options = Options::new(Prices::Cluster(Cluster::default()));
    options.whole_parameters = true;
    let found = Table::new(&step, &mesh, &options).unwrap().solve().unwrap();
    assert!(step.params().iter().all(|parameter| found.layouts[parameter.index()].is_replicated()));
}
