//! Training in mixed precision: losses and scales recorded from PyTorch (`tests/precision/make.py`), agreement of all ranks
//! on skipped steps, checkpoints, what is reduced in which type, and verification.

use crate::session;
use partita::config::Config;
use partita::execution::stages;
use partita::prelude::*;
use partita_ir::port::{GOOD_STEPS, LOSS_SCALE, SKIPPED_STEPS};
use partita_nn::LossScaling;
use partita_program::{CollectiveKind, LowerOptions, counts, lower_stages};
use partita_schedule::StepKind;
use partita_schedule::verify::{Unwatched, tolerance};
use partita_testkit::overrides;
use std::collections::BTreeMap;

const RECORDED: &str = include_str!("../../../../tests/precision/recorded.txt");
const STEPS: usize = 20;
const ROWS: usize = 24;
const RATE: f64 = 0.05;

/// The parameters of `make.py`, in its order.
const PARAMETERS: [&str; 8] = [
    "first.weight",
    "first.bias",
    "norm.weight",
    "norm.bias",
    "second.weight",
    "second.bias",
    "head.weight",
    "head.bias",
];

fn recorded(case: &str, what: &str) -> Vec<f64> {
    let line = RECORDED.lines().find_map(|line| line.strip_prefix(&format!("{case} {what} ")));
    let line = line.unwrap_or_else(|| panic!("{case} {what} is recorded"));
    line.split(' ').map(|number| number.parse().unwrap()).collect()
}

/// The classifier of `make.py` in f32, trained by SGD with momentum.
fn classifier(case: &str, mesh: &str) -> Session {
    let source = from_fn("classifier", |cx, batch| {
        let x = cx.input("x", DType::F32, &[batch, 8]);
        let labels = cx.input("labels", DType::I32, &[batch]);
        let h = cx.call("first", &Linear::new(8, 16), x)?;
        let n = cx.call("gelu", &GELU { tanh: false }, h)?;
        let n = cx.call("norm", &LayerNorm::new(16), n)?;
        let n = cx.call("second", &Linear::new(16, 16), n)?;
        let n = cx.call("gelu2", &GELU { tanh: false }, n)?;
        let h = cx.builder.add(h, n)?;
        let logits = cx.call("head", &Linear::new(16, 4), h)?;
        let loss = losses::cross_entropy(cx, logits, labels)?;
        Ok(vec![("loss".to_string(), loss)])
    });
    let mut config = Config { mesh: mesh.to_string(), ..Config::of(source) };
    config.train.batch = ROWS;
    let rule = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };
    let options = StepOptions { grad_norm: false, ..StepOptions::new(rule) };
    config.step = match case {
        "f32" => options,
        // As in `make.py`: the first steps overflow, and the factor grows again after every three finite steps.
        "f16-overflow" => {
            let scaling = LossScaling { initial: 2f64.powi(24), interval: 3, ..LossScaling::default() };
            StepOptions { loss_scaling: Some(scaling), ..options.in_precision("f16").unwrap() }
        }
        narrow => options.in_precision(narrow).unwrap(),
    };
    Session::new(config).unwrap()
}

/// Values between -`scale` and `scale` around `offset`, exact in f32; `make.py` has the same.
pub(crate) fn wave(k: usize, shape: &[usize], scale: f64, offset: f64) -> Literal {
    let ty = TensorType::new(DType::F32, shape);
    let value = |i: usize| {
        let i = i as f64;
        f64::from((scale * (0.37 * i * i + 0.9 * i + k as f64).sin()) as f32) + offset
    };
    Literal::from_f64(&ty, (0..ty.element_count()).map(value))
}

/// A step with the initial values of `make.py`, under a plan.
fn begun(session: &Session, plan: &str) -> PlannedStep {
    begun_with(session, plan, &PARAMETERS, |k, shape| wave(k, shape, 0.4, if k == 2 { 1.0 } else { 0.0 }))
}

/// A step under a plan, with these values of its parameters, by number and shape.
pub(crate) fn begun_with(
    session: &Session,
    plan: &str,
    parameters: &[&str],
    value: impl Fn(usize, &[usize]) -> Literal,
) -> PlannedStep {
    let model = session.model().unwrap();
    let plan = Plan::from_toml(plan, "test").unwrap();
    let built = session.build_part(&model, &plan, StepKind::Step);
    let built = built.unwrap_or_else(|error| panic!("{error}"));
    let mut step = session.prepare(&built).unwrap_or_else(|error| panic!("{error}"));
    for (k, name) in parameters.iter().enumerate() {
        step.set_parameter(name, &value(k, &model.params[*name].ty.shape)).unwrap();
    }
    step
}

fn batch() -> Fed {
    let labels = (0..ROWS).map(|i| ((7 * i + i * i) % 4) as i32).collect::<Vec<i32>>();
    Fed::from_iter([
        ("x".to_string(), wave(20, &[ROWS, 8], 1.0, 0.0)),
        ("labels".to_string(), Literal::new([ROWS], labels)),
    ])
}

/// The meshes and plans on which every case runs.
const PLANNED: [(&str, &str); 5] = [
    ("dp=1", ""),
    ("dp=2", ""),
    ("dp=3", ""),
    ("tp=2", "[plan]\n\"second\" = \"colwise\"\n\"head\" = \"colwise\"\n"),
    ("fsdp=2", "[plan]\n\"**\" = \"fsdp\"\n"),
];

/// Each loss is within the tolerance of the type, relative to itself; the factor of the loss in f16 is exact.
#[test]
fn losses_are_those_of_pytorch() {
    for (case, dtype) in [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)] {
        let expected = recorded(case, "loss");
        assert_eq!(expected.len(), STEPS);
        let scales = (case == "f16").then(|| recorded(case, "scale"));
        for (mesh, plan) in PLANNED {
            let mut step = begun(&classifier(case, mesh), plan);
            for (number, &expected) in expected.iter().enumerate() {
                let report =
                    step.step(&batch(), RATE).unwrap_or_else(|error| panic!("{case} {mesh}: {error}"));
                let error = (report.loss - expected).abs() / expected;
                assert!(error <= tolerance(dtype), "{case} {mesh} step {number}: {} {expected}", report.loss);
                let scale = report.scaling.map(|scaling| scaling.scale);
                assert_eq!(
                    scale,
                    scales.as_ref().map(|scales| scales[number]),
                    "{case} {mesh} step {number}"
                );
            }
        }
    }
}

/// The first steps overflow by far: there the factors are those of PyTorch, and no rank changes a parameter or an optimizer
/// state. Later a gradient of a weight may pass 65504, which PyTorch has in f16 and this step in f32; so from then on the
/// factor is compared with the rule itself, and a loss with PyTorch's after as many steps that were taken.
#[test]
fn a_step_that_overflows_changes_nothing_on_any_rank_and_does_not_count() {
    let (losses, scales) = (recorded("f16", "loss"), recorded("f16-overflow", "scale"));
    const SKIPPED: u64 = 6;
    for (mesh, plan) in PLANNED {
        let mut step = begun(&classifier("f16-overflow", mesh), plan);
        let values = |step: &PlannedStep| {
            let names = step.train_loop.state_names();
            let kept =
                names.into_iter().filter(|name| ![LOSS_SCALE, GOOD_STEPS, SKIPPED_STEPS].contains(name));
            kept.map(|name| step.train_loop.tensor(name).unwrap()).collect::<Vec<_>>()
        };
        let before = values(&step);
        let (mut scale, mut in_a_row, mut skipped) = (2f64.powi(24), 0, 0);
        for number in 0..STEPS as u64 {
            let report = step.step(&batch(), RATE).unwrap();
            let loss = losses[(number - skipped) as usize];
            assert!((report.loss - loss).abs() <= tolerance(DType::F16) * loss, "{mesh} step {number}");
            let now = report.scaling.unwrap();
            if now.skipped > skipped {
                (scale, in_a_row, skipped) = (scale / 2.0, 0, skipped + 1);
                assert_eq!(report.grad_norm, Some(0.0));
            } else {
                in_a_row = (in_a_row + 1) % 3;
                scale = if in_a_row == 0 { scale * 2.0 } else { scale };
            }
            assert_eq!((now.scale, now.skipped), (scale, skipped), "{mesh} step {number}");
            if number < SKIPPED {
                assert_eq!((now.skipped, now.scale), (number + 1, scales[number as usize]), "{mesh}");
                assert!(values(&step) == before, "{mesh} step {number}");
            }
        }
        assert!(values(&step) != before && skipped < STEPS as u64 / 2);
        // Every rank has its own copy of the three states.
        let runner = step.train_loop.runner();
        for name in [LOSS_SCALE, GOOD_STEPS, SKIPPED_STEPS] {
            let of_rank = |rank| runner.read_input(rank, name).unwrap();
            assert!((0..runner.rank_count()).all(|rank| of_rank(rank) == of_rank(0)), "{mesh} {name}");
        }
    }
}

/// The scale, the count of good steps and that of skipped ones are saved and restored, on any mesh.
#[test]
fn a_resumed_run_goes_on_with_its_scale() {
    let run = |step: &mut PlannedStep, steps: usize| {
        (0..steps)
            .map(|_| step.step(&batch(), RATE).unwrap())
            .map(|report| (report.loss, report.scaling))
            .collect::<Vec<_>>()
    };
    let mut first = begun(&classifier("f16-overflow", "dp=2"), "");
    // In the middle of three good steps.
    run(&mut first, 8);
    let checkpoint = first.train_loop.checkpoint(BTreeMap::new()).unwrap();
    let expected = run(&mut first, 8);
    for (mesh, plan) in PLANNED {
        let mut resumed = begun(&classifier("f16-overflow", mesh), plan);
        resumed.train_loop.restore(&checkpoint).unwrap();
        for ((loss, scaling), (of_first, scaling_of_first)) in run(&mut resumed, 8).into_iter().zip(&expected)
        {
            assert_eq!(scaling, *scaling_of_first, "{mesh}");
            assert!((loss - of_first).abs() <= tolerance(DType::F16) * of_first, "{mesh}");
            assert!(mesh != "dp=2" || loss == *of_first, "the same mesh goes on with the same bits");
        }
    }
    // A run whose loss is not scaled has other states.
    let mut plain = begun(&classifier("f32", "dp=1"), "");
    let error = plain.train_loop.restore(&checkpoint).err();
    assert_eq!(error.map(|error| error.code), Some("E314"));
}

/// Data parallelism adds gradients in f32: as many bytes as without mixed precision, with a scaled loss too. Sharded
/// parameters are gathered in the narrow type, for half the bytes.
#[test]
fn gradients_are_reduced_in_the_parameters_type_and_weights_gathered_in_the_narrow_one() {
    let seen = |case: &str, mesh: &str, plan: &str| {
        let session = classifier(case, mesh);
        let plan = Plan::from_toml(plan, "test").unwrap();
        let model = session.model().unwrap();
        let built = session.build_part(&model, &plan, StepKind::Step).unwrap();
        counts(&lower_stages(&stages(&built), &LowerOptions::default(), &Cpu::default()).unwrap(), 0)
    };
    let elements = 16 * 8 + 16 + 16 + 16 + 16 * 16 + 16 + 4 * 16 + 4;
    for case in ["f32", "bf16", "f16"] {
        let of = seen(case, "dp=2", "");
        let reduced: usize =
            of.phases().into_iter().map(|(_, phase)| phase.of(CollectiveKind::AllReduce).bytes).sum();
        // Two parts of the loss beside the gradients; the gradients are whole on each rank, so their norm needs no meeting.
        assert_eq!(reduced / 4, elements + 2, "{case}");
    }
    let gathered = |case: &str| {
        let of = seen(case, "fsdp=2", "[plan]\n\"**\" = \"fsdp\"\n");
        let phases = of.phases().into_iter().map(|(_, phase)| phase.of(CollectiveKind::AllGather).bytes);
        let scattered =
            of.phases().into_iter().map(|(_, phase)| phase.of(CollectiveKind::ReduceScatter).bytes);
        (phases.sum::<usize>(), scattered.sum::<usize>())
    };
    let ((all, scattered), (narrow, also_scattered)) = (gathered("f32"), gathered("bf16"));
    // The bias of the head follows the last matmul: its 16 bytes are gathered in f32.
    assert_eq!((narrow * 2, also_scattered), (all + 16, scattered));
}

const SMALL: &[&str] = &[
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "model.sequence=8",
    "model.vocab=64",
    "train.batch=4",
];

#[test]
fn verification_knows_the_error_of_each_precision_and_finds_what_is_missing() {
    for (precision, meshes) in
        [("bf16", &["dp=2", "tp=2", "fsdp=2,tp=2", "pp=2"][..]), ("f16", &["dp=3", "tp=2"])]
    {
        for mesh in meshes {
            for name in ["gpt", "llama"] {
                let own = [format!("mesh.shape={mesh}"), format!("train.precision={precision}")];
                let items: Vec<&str> = SMALL.iter().copied().chain(own.iter().map(String::as_str)).collect();
                let items = match *mesh {
                    "pp=2" => [&items[..], &["model.layers=2", "train.microbatches=2"]].concat(),
                    _ => items,
                };
                let session = session(name, &items);
                let verified = session.verify(4, &session.step_runner(), &Unwatched);
                let report = verified.unwrap_or_else(|error| panic!("{name} {mesh}: {error}")).report;
                let worst = report.worst().cloned();
                assert!(report.ok, "{name} {mesh} {precision}: {worst:?} {:?}", report.first_diverging);
                assert_eq!(report.tolerance, tolerance(DType::from_name(precision).unwrap()));
            }
        }
    }
    let items = [SMALL, &["mesh.shape=tp=2", "train.precision=bf16"]].concat();
    let broken = session("gpt", &items).with_broken_rule(Some("layers.0.mlp.down_proj".to_string()));
    assert!(!broken.verify(4, &broken.step_runner(), &Unwatched).unwrap().report.ok);
}

#[test]
fn what_does_not_fit_is_refused() {
    for (items, place) in [
        (&["train.precision=f8"][..], "train.precision"),
        (&["train.precision=bf16", "train.dtype=f16"], "train.precision"),
        (&["train.loss_scale=8.0"], "train.loss_scale"),
    ] {
        let error = Config::load("gpt", &overrides(items)).unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E004", Some(place)), "{items:?}");
    }
    for items in [
        ["train.precision=f16", "train.loss_scale=0.0"],
        ["train.precision=f16", "train.loss_scale_interval=0"],
    ] {
        assert_eq!(Config::load("gpt", &overrides(&items)).unwrap_err().code, "E057", "{items:?}");
    }
}

/// Rounding at random draws by the element's index in the whole tensor: a sharded weight has the bits of a whole one.
#[test]
fn stochastic_rounding_is_the_same_on_every_mesh() {
    let weights = |mesh: &str, plan: &str| {
        let source = from_fn("one", |cx, batch| {
            let x = cx.input("x", DType::BF16, &[batch, 8]);
            let y = cx.call("layer", &Linear::new(8, 16), x)?;
            let targets = cx.input("targets", DType::BF16, &[batch, 16]);
            let loss = losses::mse(cx, y, targets)?;
            Ok(vec![("loss".to_string(), loss)])
        });
        let mut config = Config { mesh: mesh.to_string(), ..Config::of(source) };
        (config.train.batch, config.train.dtype) = (4, DType::BF16);
        config.step =
            StepOptions { stochastic_rounding: true, grad_norm: false, ..StepOptions::new(Optimizer::sgd()) };
        let session = Session::new(config).unwrap();
        let model = session.model().unwrap();
        let plan = Plan::from_toml(plan, "test").unwrap();
        let built = session.build_part(&model, &plan, StepKind::Step).unwrap();
        let mut step = session.prepare(&built).unwrap();
        step.initialize(&model, 3).unwrap();
        let narrow = |shape: &[usize], k| {
            let wave = wave(k, shape, 1.0, 0.0);
            Literal::from_f64(&wave.ty.with_dtype(DType::BF16), wave.to_f64().into_iter())
        };
        let fed = Fed::from_iter([
            ("x".to_string(), narrow(&[4, 8], 1)),
            ("targets".to_string(), narrow(&[4, 16], 2)),
        ]);
        for _ in 0..4 {
            step.step(&fed, 1e-3).unwrap();
        }
        step.parameter("layer.weight").unwrap()
    };
    let whole = weights("dp=1", "");
    for (mesh, plan) in
        [("tp=2", "[plan]\n\"layer\" = \"colwise\"\n"), ("tp=3", "[plan]\n\"layer\" = \"colwise\"\n")]
    {
        assert!(weights(mesh, plan) == whole, "{mesh}");
    }
}
