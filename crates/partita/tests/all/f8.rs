//! Training with matmuls in 8 bits: losses recorded from PyTorch (`tests/precision/make_f8.py`), verification, histories in
//! checkpoints, blocks that a layout would cut.

use crate::precision::{begun_with, wave};
use crate::session;
use partita::config::Config;
use partita::execution::literal;
use partita::prelude::*;
use partita_ir::F8;
use partita_schedule::verify::{Unwatched, tolerance_of};
use partita_testkit::overrides;
use std::collections::BTreeMap;

const RECORDED: &str = include_str!("../../../../tests/precision/recorded_f8.txt");
const ROWS: usize = 64;
const RATE: f64 = 0.05;
const PARAMETERS: [&str; 4] = ["first.weight", "first.bias", "head.weight", "head.bias"];

fn losses_of(case: &str) -> Vec<f64> {
    let line = RECORDED.lines().find_map(|line| line.strip_prefix(&format!("{case} loss ")));
    line.unwrap().split(' ').map(|number| number.parse().unwrap()).collect()
}

/// The classifier of `make_f8.py`.
fn classifier(case: &str, mesh: &str) -> Session {
    let source = from_fn("classifier", |cx, batch| {
        let x = cx.input("x", DType::F32, &[batch, 64]);
        let labels = cx.input("labels", DType::I32, &[batch]);
        let h = cx.call("first", &Linear::new(64, 96), x)?;
        let h = cx.call("gelu", &GELU { tanh: false }, h)?;
        let logits = cx.call("head", &Linear::new(96, 8), h)?;
        let loss = losses::cross_entropy(cx, logits, labels)?;
        Ok(vec![("loss".to_string(), loss)])
    });
    let mut config = Config { mesh: mesh.to_string(), ..Config::of(source) };
    config.train.batch = ROWS;
    let rule = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };
    let options = StepOptions { grad_norm: false, ..StepOptions::new(rule) };
    config.step = if case == "f32" { options } else { options.in_precision(case).unwrap() };
    Session::new(config).unwrap()
}

fn begun(session: &Session, plan: &str) -> PlannedStep {
    begun_with(session, plan, &PARAMETERS, |k, shape| wave(k, shape, 0.2, 0.0))
}

fn batch() -> Fed {
    let labels = (0..ROWS).map(|i| ((7 * i + i * i) % 8) as i32).collect::<Vec<i32>>();
    Fed::from_iter([
        ("x".to_string(), wave(20, &[ROWS, 64], 1.0, 0.0)),
        ("labels".to_string(), Literal::new([ROWS], labels)),
    ])
}

/// Meshes that cut between blocks of 32, and some that would cut within one: 96 features over two ranks, 64 rows over three.
const PLANNED: [(&str, &str); 6] = [
    ("dp=1", ""),
    ("dp=2", ""),
    ("dp=3", ""),
    ("tp=3", "[plan]\n\"first\" = \"colwise\"\n\"head\" = \"rowwise\"\n"),
    ("tp=2", "[plan]\n\"first\" = \"colwise\"\n\"head\" = \"rowwise\"\n"),
    ("fsdp=2", "[plan]\n\"**\" = \"fsdp\"\n"),
];

/// The first loss is that of PyTorch but for the order of sums. Later ones part a little, as an operand near the middle of
/// two numbers is rounded to another one.
#[test]
fn losses_are_those_of_pytorch_and_near_those_of_f32() {
    let full = losses_of("f32");
    for case in F8::NAMES {
        let expected = losses_of(case);
        assert!(
            expected[0] != full[0] && expected.iter().zip(&full).all(|(a, b)| (a - b).abs() < 0.1),
            "{case}"
        );
        for (mesh, plan) in PLANNED {
            let mut step = begun(&classifier(case, mesh), plan);
            for (number, &expected) in expected.iter().enumerate() {
                let report = step.step(&batch(), RATE);
                let loss = report.unwrap_or_else(|error| panic!("{case} {mesh}: {error}")).loss;
                let permitted = if number == 0 { 1e-5 } else { 1e-2 };
                assert!(
                    (loss - expected).abs() <= permitted * expected,
                    "{case} {mesh} {number}: {loss} {expected}"
                );
            }
        }
    }
}

/// Each history has the largest magnitudes of the steps before, and a run on any mesh continues with them.
#[test]
fn histories_are_part_of_a_checkpoint() {
    let run = |step: &mut PlannedStep| {
        (0..3).map(|_| step.step(&batch(), RATE).unwrap().loss).collect::<Vec<f64>>()
    };
    let mut first = begun(&classifier("f8-delayed", "dp=2"), "");
    let before = first.parameter("first.weight").unwrap();
    run(&mut first);
    let names: Vec<&str> =
        first.train_loop.state_names().into_iter().filter(|name| name.contains(".amax_")).collect();
    let sites = ["input", "weight", "gradient"]
        .map(|kind| ["first", "head"].map(|module| format!("optimizer.amax_{kind}.{module}")));
    let mut expected = sites.concat();
    expected.sort();
    let mut found: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    found.sort();
    assert_eq!(found, expected);
    let history = literal(&first.train_loop.tensor("optimizer.amax_weight.first").unwrap()).to_f64();
    let amax = before.to_f64().into_iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    assert_eq!((history[2], &history[3..]), (amax, &[0.0; 13][..]), "the third of the newest first");
    let checkpoint = first.train_loop.checkpoint(BTreeMap::new()).unwrap();
    let expected = run(&mut first);
    for (mesh, plan) in PLANNED {
        let mut resumed = begun(&classifier("f8-delayed", mesh), plan);
        resumed.train_loop.restore(&checkpoint).unwrap();
        let found = run(&mut resumed);
        assert!(mesh != "dp=2" || found == expected, "the same mesh goes on with the same bits");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-2 * expected, "{mesh}: {found} {expected}");
        }
    }
}

const SMALL: &[&str] = &[
    "model.dim=64",
    "model.heads=2",
    "model.layers=1",
    "model.sequence=32",
    "model.vocab=96",
    "train.batch=4",
];

/// In f64 the planned step rounds every operand as one device does: all numbers agree to 1e-9.
#[test]
fn planned_steps_round_as_one_device_does() {
    for (name, mesh, more) in [
        ("gpt", "dp=2", &[][..]),
        ("gpt", "tp=2", &[]),
        ("gpt", "tp=2", &["plan.sequence_parallel=true"]),
        ("gpt", "dp=2,fsdp=2", &["train.microbatches=2"]),
        ("llama", "dp=3", &[]),
        ("llama", "tp=2", &[]),
        ("gpt", "pp=2", &["model.layers=2", "train.microbatches=2"]),
        ("gpt", "ep=2", &["model.kind=moe-gpt", "model.experts=4", "model.layers=2"]),
    ] {
        for precision in F8::NAMES {
            for dtype in [DType::F64, DType::F32] {
                let own = [
                    format!("mesh.shape={mesh}"),
                    format!("train.precision={precision}"),
                    format!("train.dtype={dtype}"),
                ];
                let items: Vec<&str> =
                    SMALL.iter().chain(more).copied().chain(own.iter().map(String::as_str)).collect();
                let session = session(name, &items);
                let verified = session.verify(4, &session.step_runner(), &Unwatched);
                let report = verified.unwrap_or_else(|error| panic!("{name} {mesh}: {error}")).report;
                let worst = report.worst().cloned();
                assert!(
                    report.ok,
                    "{name} {mesh} {precision} {dtype}: {worst:?} {:?}",
                    report.first_diverging
                );
                assert_eq!(report.tolerance, tolerance_of(dtype, F8::from_name(precision)));
            }
        }
    }
    let items = [SMALL, &["mesh.shape=tp=2", "train.precision=mxfp8"]].concat();
    let broken = session("gpt", &items).with_broken_rule(Some("layers.0.mlp.down_proj".to_string()));
    assert!(!broken.verify(4, &broken.step_runner(), &Unwatched).unwrap().report.ok);
}

#[test]
fn what_does_not_fit_is_refused() {
    for (items, place) in [
        (&["train.precision=f8"][..], "train.precision"),
        (&["train.precision=mxfp8", "train.dtype=bf16"], "train.precision"),
        (&["train.precision=f8-block", "train.loss_scale=8.0"], "train.loss_scale"),
    ] {
        let error = Config::load("gpt", &overrides(items)).unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E004", Some(place)), "{items:?}");
    }
}
