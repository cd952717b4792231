//! The simulator against sums by hand, against the makespan of a timetable, and against itself with
//! a clock for every rank.

mod mixed;
mod sharing;

use partita_base::{DType, Result};
use partita_cost::{Algorithm, Cluster, Level, Link, Work};
use partita_mesh::Mesh;
use partita_nn::{MlpConfig, Model, ModelConfig, Optimizer, StepOptions};
use partita_pipeline::{Order, Task, TaskKind};
use partita_program::{
    Action, Edge, Event, Instruction, LowerOptions, MoveKind, ProgramSet, Stage, Stages, lower_stages,
};
use partita_runtime::Cpu;
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, Plan, moves};
use partita_simulate::{Simulation, collective_s, simulate};
use std::collections::BTreeMap;

fn mlp(layers: usize, width: usize, rows: usize) -> Result<Model> {
    let config = MlpConfig { dims: vec![width; layers + 1], ..MlpConfig::default() };
    ModelConfig::Mlp(config).build(rows, DType::F32, true)
}

/// A step of this model.
fn built(model: &Model, mesh: &str, microbatches: usize, timetable: &str) -> Built {
    let built = || -> Result<Built> {
        let mesh = Mesh::parse(mesh, None)?;
        let mut options = BuildOptions::new(StepOptions::new(Optimizer::adam()));
        options.microbatches = microbatches;
        options.timetable = Order::named(timetable)?;
        let context = BuildContext { registry: &Default::default(), runner: &Interpreter };
        let mut plan = Plan::default();
        if mesh.axis_named("tp").is_some() {
            plan.add("layers.0", "colwise", "test")?;
            plan.add("layers.1", "rowwise", "test")?;
        }
        if mesh.axis_named("fsdp").is_some() {
            plan.add("**", "fsdp", "test")?;
        }
        BuildRequest::new(model, &plan, &mesh, &options, context).build()
    };
    built().unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(built: &Built) -> ProgramSet {
    let stages = built.stages.iter().map(|stage| Stage {
        classes: &stage.classes,
        ranks: stage.ranks.clone(),
        received: stage.received(),
        sent: stage.sent(),
    });
    let edges = built.edges.iter().map(|edge| {
        let (members, boxes) = moves(&built.stages, edge);
        Edge { name: edge.name.clone(), members: members.into(), boxes: boxes.into() }
    });
    let stages = Stages {
        stages: stages.collect(),
        edges: edges.collect(),
        timetable: built.timetable.as_ref(),
        offload: built.offload.clone(),
    };
    lower_stages(&stages, &LowerOptions::default(), &Cpu::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn predicted(set: &ProgramSet, cluster: &Cluster) -> Simulation {
    simulate(set, cluster).unwrap_or_else(|error| panic!("{error}"))
}

/// Links without latency that move any number of bytes at once.
fn free_links() -> Cluster {
    let link = Link { latency_s: 0.0, bytes_per_s: 1e300, algorithm: Algorithm::Ring };
    Cluster { levels: vec![Level { ranks: None, link, links: None }], ..Cluster::default() }
}

#[test]
fn one_device_takes_the_sum_of_its_instructions() {
    let set = lowered(&built(&mlp(3, 16, 8).unwrap(), "dp=1", 1, "1f1b"));
    let (program, device) = (&set.programs[0], Cluster::default().device);
    let mut expected_s = 0.0;
    for instruction in &program.instructions {
        let Action::Compute(compute) = &instruction.action else { panic!("one rank has no collective") };
        let cost = program.cost(compute);
        // A scalar that is broadcast is read once: no instruction moves more than the buffers that it names.
        let read = compute.inputs.iter().map(|view| program.buffer(view.buffer).bytes);
        let written = compute.outputs.iter().map(|&buffer| program.buffer(buffer).bytes);
        assert!(cost.bytes <= read.chain(written).sum::<usize>() as f64, "{instruction:?}");
        expected_s += device.op_s(&Work { flops: cost.flops, bytes: cost.bytes, dtype: DType::F32 });
    }
    let simulation = predicted(&set, &Cluster::default());
    assert!((simulation.step_s - expected_s).abs() < 1e-12, "{} {expected_s}", simulation.step_s);
    assert_eq!(simulation.classes[0].events.len(), program.instructions.len());
    let [parameters, states, ..] = simulation.classes[0].memory.peak;
    assert_eq!(parameters, 4 * 3 * (16 * 16 + 16));
    // Adam keeps two states of each parameter.
    assert!((2 * parameters..2 * parameters + 64).contains(&states), "{states}");
}

#[test]
fn ranks_share_the_cores_of_a_machine() {
    let with = |cores: usize| Cluster { cores: Some(cores), ..free_links() };
    let set = lowered(&built(&mlp(4, 16, 8).unwrap(), "dp=4", 1, "1f1b"));
    let alone_s = predicted(&set, &free_links()).step_s;
    for (cores, times) in [(1, 4.0), (2, 2.0), (3, 4.0 / 3.0), (4, 1.0), (8, 1.0)] {
        let step_s = predicted(&set, &with(cores)).step_s;
        assert!((step_s / alone_s - times).abs() < 1e-6, "{cores}: {step_s} {alone_s}");
    }
    // On one core a pipeline takes the sum of the work of its ranks: while a rank waits, others have the core.
    for timetable in ["gpipe", "1f1b"] {
        let set = lowered(&built(&mlp(6, 64, 64).unwrap(), "pp=3", 4, timetable));
        let apart = predicted(&set, &free_links());
        let sum_s: f64 = apart.classes.iter().map(|class| class.compute_s).sum();
        let step_s = predicted(&set, &with(1)).step_s;
        assert!((step_s / sum_s - 1.0).abs() < 1e-6, "{timetable}: {step_s} {sum_s}");
        assert!(step_s > 1.5 * apart.step_s, "{timetable}: {step_s} {}", apart.step_s);
    }
}

#[test]
fn classes_take_as_long_as_a_clock_for_every_rank() {
    for (mesh, rows) in [
        ("dp=4", 8),
        ("dp=3", 8),
        ("fsdp=4", 8),
        ("tp=3", 6),
        ("dp=2,tp=2", 6),
        ("pp=2,dp=2", 8),
        ("fsdp=2,tp=3", 8),
        ("dp=3,fsdp=2", 8),
        ("fsdp=4,tp=4", 8),
    ] {
        let set = lowered(&built(&mlp(4, 10, rows).unwrap(), mesh, 1, "1f1b"));
        let alone = |rank| set.program(rank).expect("the rank exists");
        let unfolded = ProgramSet { programs: (0..set.rank_count()).map(alone).collect(), ..set.clone() };
        let (folded, unfolded) =
            (predicted(&set, &Cluster::default()), predicted(&unfolded, &Cluster::default()));
        assert!(
            (folded.step_s - unfolded.step_s).abs() < 1e-12,
            "{mesh}: {} and {}",
            folded.step_s,
            unfolded.step_s
        );
        for class in &folded.classes {
            let alone = || class.ranks.iter().map(|&rank| &unfolded.classes[rank]);
            let slowest_s = alone().map(|class| class.end_s).fold(0.0, f64::max);
            assert!((class.end_s - slowest_s).abs() < 1e-12, "{mesh}, ranks {:?}", class.ranks);
            assert!(alone().all(|alone| alone.memory.peak == class.memory.peak), "{mesh}, {:?}", class.ranks);
            // A result that replaces its operand counts once, so no more is in use than is allocated.
            let (used, allocated) = (class.memory.peak_bytes(), class.memory.arena_bytes);
            assert!(used <= allocated, "{mesh}: {used} of {allocated} bytes");
        }
    }
}

#[test]
fn the_step_waits_for_what_compute_does_not_hide() {
    let set = lowered(&built(&mlp(2, 16, 8).unwrap(), "dp=2", 1, "1f1b"));
    let (free, slow) = (predicted(&set, &free_links()), predicted(&set, &Cluster::default()));
    assert_eq!(free.classes.len(), 1);
    assert!(free.classes[0].waiting_s < 1e-12);
    let class = &slow.classes[0];
    assert!((class.compute_s + class.waiting_s - slow.step_s).abs() < 1e-12);
    assert!((class.compute_s - free.step_s).abs() < 1e-12);
    // The queue of a rank runs one collective after another.
    for pair in slow.exchanged.windows(2) {
        assert!(pair[1].begin_s >= pair[0].end_s);
    }
    for exchanged in &slow.exchanged {
        let collective = &set.collectives[exchanged.collective.index()];
        let bytes: usize = collective.transfers.iter().map(|transfer| transfer.full_bytes(0)).sum();
        let link = Cluster::default().levels[0].link;
        let expected_s = 2.0 * (link.latency_s + bytes as f64 / 2.0 / link.bytes_per_s);
        assert!((collective_s(collective, &Cluster::default()) - expected_s).abs() < 1e-15);
        assert!((exchanged.end_s - exchanged.begin_s - expected_s).abs() < 1e-12);
    }
}

#[test]
fn a_pipeline_takes_the_makespan_of_its_timetable() {
    let model = mlp(8, 64, 64).unwrap();
    for (timetable, mesh) in [("1f1b", "pp=2"), ("1f1b", "pp=4"), ("gpipe", "pp=2"), ("zb-h1", "pp=4")] {
        let built = built(&model, mesh, 8, timetable);
        let set = lowered(&built);
        let simulation = predicted(&set, &free_links());
        let table = built.timetable.as_ref().expect("a pipeline has one");
        // Nanoseconds of each task by stage, microbatch and phase; and of the updates that run before
        // the last task of the stage has ended, in which the timetable does not know them.
        let (mut last_s, mut task_ns, mut update_ns) = (0.0f64, BTreeMap::new(), BTreeMap::new());
        for (slice, (run, program)) in simulation.classes.iter().zip(&set.programs).enumerate() {
            let of_task = |event: &&Event| {
                let instruction = &program.instructions[event.instruction];
                matches!(instruction.action, Action::Compute(_)) && instruction.origin.microbatch.is_some()
            };
            let last_ns = run.events.iter().filter(of_task).map(|event| event.end_ns).max().unwrap();
            last_s = last_s.max(last_ns as f64 / 1e9);
            for event in run.events.iter().filter(|event| event.end_ns <= last_ns) {
                let Instruction { action, origin } = &program.instructions[event.instruction];
                let nanos = event.nanos() as usize;
                match (action, origin.microbatch) {
                    (Action::Compute(_), Some(microbatch)) => {
                        *task_ns.entry((slice, microbatch, origin.phase.name())).or_insert(0) += nanos;
                    }
                    (Action::Compute(_), None) => *update_ns.entry(slice).or_insert(0) += nanos,
                    _ => {}
                }
            }
        }
        let of = |slice, microbatch, phase| task_ns.get(&(slice, microbatch, phase)).copied().unwrap_or(0);
        let makespan_s = |update: &dyn Fn(usize) -> usize| {
            let duration = |task: Task| {
                let (stage, microbatch) = (task.stage, task.microbatch);
                let (input, weight) =
                    (of(stage, microbatch, "input_grad"), of(stage, microbatch, "weight_grad"));
                let update = if microbatch == 7 { update(stage) } else { 0 };
                match task.kind {
                    TaskKind::Forward => of(stage, microbatch, "forward"),
                    TaskKind::InputGrad => input,
                    TaskKind::WeightGrad => weight + update,
                    TaskKind::Backward => input + weight + update,
                }
            };
            table.times(duration).unwrap().makespan() as f64 / 1e9
        };
        let without_s = makespan_s(&|_| 0);
        let with_s = makespan_s(&|stage| update_ns.get(&stage).copied().unwrap_or(0));
        let range = 0.999 * without_s..=1.001 * with_s;
        assert!(range.contains(&last_s), "{timetable} on {mesh}: {last_s} is not in {range:?}");
        assert!(with_s < 1.15 * without_s, "{timetable} on {mesh}: {range:?}");
    }
}

#[test]
fn a_thousand_alike_ranks_are_one_clock_and_the_trace_shows_them() {
    let set = lowered(&built(&mlp(2, 8, 1024).unwrap(), "dp=1024", 1, "1f1b"));
    let simulation = predicted(&set, &Cluster::ready("h100-pod").unwrap());
    assert_eq!(simulation.classes.len(), 1);
    let trace = simulation.trace(&set);
    assert_eq!(trace.tracks[0].name, "ranks 0 to 1023, 1024 alike");
    let collectives = trace.spans.iter().filter(|span| span.category == "collective").count();
    assert_eq!(collectives, simulation.exchanged.len());
    let pipeline = lowered(&built(&mlp(4, 8, 8).unwrap(), "pp=2", 2, "1f1b"));
    let simulation = predicted(&pipeline, &Cluster::default());
    let trace = simulation.trace(&pipeline);
    assert_eq!(trace.tracks.len(), 4);
    // Two microbatches, each with a value sent forward and its gradient sent back, at least.
    assert!(trace.flows.len() >= 4 && trace.flows.iter().all(|flow| flow.from.1 < flow.to.1));
    assert!(trace.flows.iter().any(|flow| flow.from.0 > flow.to.0), "gradients go back");
}

/// The moves of a step between a device and host memory take the sum of their times in each direction, one after another,
/// beside all other work.
#[test]
fn moves_queue_on_the_link_of_their_direction() {
    let model = mlp(4, 64, 8).unwrap();
    let mut plan = Plan::default();
    plan.add("**", "offload(optimizer)", "test").unwrap();
    let options = BuildOptions::new(StepOptions::new(Optimizer::adam()));
    let context = BuildContext { registry: &Default::default(), runner: &Interpreter };
    let mesh = Mesh::parse("dp=2", None).unwrap();
    let set = lowered(&BuildRequest::new(&model, &plan, &mesh, &options, context).build().unwrap());
    let program = &set.programs[0];
    let on = |host_bytes_per_s: f64| {
        let mut cluster = free_links();
        cluster.device.host_bytes_per_s = host_bytes_per_s;
        (predicted(&set, &cluster), cluster)
    };
    let (slow, cluster) = on(1e6);
    let class = &slow.classes[0];
    let all = |kind: MoveKind| class.moved.iter().filter(move |moved| moved.moved.kind == kind);
    for kind in [MoveKind::Load, MoveKind::Store] {
        let moved: Vec<_> = all(kind).collect();
        // Two states of each of four weights and biases.
        assert_eq!(moved.len(), 16);
        assert!(moved.windows(2).all(|pair| pair[1].begin_s >= pair[0].end_s));
        for moved in moved {
            let bytes = program.buffer(moved.moved.buffer).bytes as f64;
            assert!((moved.end_s - moved.begin_s - cluster.device.host_s(bytes)).abs() < 1e-12);
        }
    }
    // The link is busy with loads from the first to the last, and with at most one group of stores behind it.
    let loads_s: f64 = all(MoveKind::Load).map(|moved| moved.end_s - moved.begin_s).sum();
    let first_s = all(MoveKind::Load).next().unwrap().begin_s;
    let group_s = 2.0 * cluster.device.host_s(4.0 * 64.0 * 64.0);
    assert!(slow.step_s >= first_s + loads_s, "{} {first_s} {loads_s}", slow.step_s);
    assert!(slow.step_s <= first_s + loads_s + group_s + class.compute_s, "{} {loads_s}", slow.step_s);
    assert!((class.host_waiting_s - class.waiting_s).abs() < 1e-12);
    assert!((class.compute_s + class.waiting_s - slow.step_s).abs() < 1e-12);
    // What waits least is what the latency of the moves leaves.
    let (fast, _) = on(1e15);
    assert!(fast.step_s < slow.step_s / 100.0);
    assert!((fast.classes[0].compute_s - class.compute_s).abs() < 1e-12);
    // States are counted while they are there: one third of them at most, or two weights and a bias.
    let states = class.memory.over_time.iter().map(|(_, bytes)| bytes[1]).max().unwrap();
    let weight = 2 * 4 * 64 * 64;
    assert!((2 * weight..=2 * weight + 2 * 4 * 64 + 64).contains(&states), "{states}");
}
