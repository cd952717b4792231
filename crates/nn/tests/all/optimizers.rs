//! Optimizers that see whole tensors, and AdamW with 8-bit states, against numbers recorded from PyTorch and from plain
//! formulas (`tests/optimizers/make.py`).

use crate::common::*;
use partita_base::DType;
use partita_ir::{Graph, Role};
use partita_nn::{Context, Init, Optimizer, StepOptions, train_step};

/// The parameters of `make.py`.
const SHAPES: [(&str, &[usize]); 5] = [
    ("layers.0.weight", &[3, 64]),
    ("layers.1.weight", &[5, 3]),
    ("experts.weight", &[2, 3, 4]),
    ("embed_tokens.weight", &[4, 3]),
    ("layers.0.bias", &[4]),
];
const RATES: [f64; 3] = [0.1, 0.05, 0.02];

/// A loss whose gradients are the inputs `g0`, `g1` and so on.
fn chosen_gradients() -> Graph {
    let mut cx = Context::new("chosen", DType::F64, true);
    let mut loss = cx.builder.scalar(DType::F64, 0.0);
    for (number, (name, shape)) in SHAPES.into_iter().enumerate() {
        let gradient = cx.input(&format!("g{number}"), DType::F64, shape);
        let parameter = cx.param(name, shape, Init::Ones).unwrap();
        let product = cx.builder.multiply(parameter, gradient).unwrap();
        let dims: Vec<usize> = (0..shape.len()).collect();
        let sum = cx.builder.reduce_sum(product, &dims).unwrap();
        loss = cx.builder.add(loss, sum).unwrap();
    }
    cx.finish(vec![("loss".into(), loss)]).unwrap().forward
}

fn numbers(shape: &[usize], of: impl Fn(f64) -> f64) -> partita_ir::Literal {
    let count: usize = shape.iter().product();
    f64s(shape, &(0..count).map(|i| of(i as f64)).collect::<Vec<f64>>())
}

/// The inputs of the first step: initial parameters, zero states.
fn initial(step: &Graph) -> Values {
    let mut values = Values::new();
    for (number, (name, shape)) in SHAPES.into_iter().enumerate() {
        values.insert(name.into(), numbers(shape, |i| (0.37 * i + number as f64).cos()));
    }
    for &input in &step.inputs {
        if matches!(step.value(input).role, Role::StateOf(_)) {
            values.insert(step.value(input).name.clone(), zeros(step.ty(input)));
        }
    }
    values
}

/// All parameters after three steps.
fn three_steps(optimizer: Optimizer) -> Values {
    let step = train_step(&chosen_gradients(), &StepOptions::new(optimizer)).unwrap();
    let mut values = initial(&step);
    for (index, rate) in RATES.into_iter().enumerate() {
        let time = (index + 1) as f64;
        for (number, (_, shape)) in SHAPES.into_iter().enumerate() {
            let gradient = numbers(shape, |i| (0.71 * i + 1.3 * time + number as f64).sin());
            values.insert(format!("g{number}"), gradient);
        }
        values.insert("learning_rate".into(), scalar(DType::F64, rate));
        values.insert("step".into(), scalar(DType::I64, time));
        values.extend(run(&step, &values));
    }
    values
}

fn rule(case: &str) -> Optimizer {
    let name = case.split('_').next().unwrap();
    let mut rule = Optimizer::from_name(name).unwrap();
    match (&mut rule, case) {
        (Optimizer::Adafactor { weight_decay, .. }, "adafactor_decay") => *weight_decay = 0.1,
        (Optimizer::Muon { match_rms, .. }, "muon_original") => *match_rms = false,
        _ => assert_eq!(case, name),
    }
    rule
}

#[test]
fn three_steps_are_those_that_were_recorded() {
    let recorded = include_str!("../../../../tests/optimizers/recorded.txt");
    let mut cases: Vec<(String, Values)> = Vec::new();
    let mut compared = 0;
    for line in recorded.lines() {
        let mut words = line.split(' ');
        let (case, tensor) = (words.next().unwrap(), words.next().unwrap());
        let expected: Vec<f64> = words.map(|word| word.parse().unwrap()).collect();
        if cases.last().is_none_or(|(known, _)| known != case) {
            cases.push((case.to_string(), three_steps(rule(case))));
        }
        let found = cases.last().unwrap().1[tensor].to_f64();
        assert_close(&found, &expected, 1e-10, &format!("{case} {tensor}"));
        compared += expected.len();
    }
    assert_eq!((cases.len(), compared), (6, 6 * (192 + 15 + 24 + 12 + 4)));
}

#[test]
fn states_take_the_memory_that_the_papers_promise() {
    let bytes = |optimizer: Optimizer| {
        let step = train_step(&chosen_gradients(), &StepOptions::new(optimizer)).unwrap();
        let states = step.inputs.iter().filter(|&&v| matches!(step.value(v).role, Role::StateOf(_)));
        states.map(|&v| step.ty(v).bytes()).sum::<usize>()
    };
    let (matrices, bias) = (192 + 15 + 24 + 12, 4);
    assert_eq!(bytes(Optimizer::adamw()), 16 * (matrices + bias));
    assert_eq!(bytes(Optimizer::lamb()), 16 * (matrices + bias));
    // Rows and columns of each matrix.
    assert_eq!(bytes(Optimizer::adafactor()), 8 * ((3 + 64) + (5 + 3) + 2 * (3 + 4) + (4 + 3) + bias));
    // One momentum for hidden matrices, AdamW for the embedding and the bias.
    assert_eq!(bytes(Optimizer::muon()), 8 * (192 + 15 + 24) + 16 * (12 + bias));
    // Two codes of a byte, and two scales for each row.
    assert_eq!(bytes(Optimizer::adam8bit()), 2 * matrices + 16 * (3 + 5 + 6 + 4) + 16 * bias);
}

/// The same tensor through the graph of a step and alone.
#[test]
fn one_tensor_alone_moves_as_within_the_step() {
    for case in ["adafactor", "lamb", "muon", "adam8bit", "adamw"] {
        let optimizer = rule(case);
        let step = train_step(&chosen_gradients(), &StepOptions::new(optimizer)).unwrap();
        let mut values = initial(&step);
        for (number, (_, shape)) in SHAPES.into_iter().enumerate() {
            values.insert(format!("g{number}"), numbers(shape, |i| (0.71 * i + number as f64).sin()));
        }
        values.insert("learning_rate".into(), scalar(DType::F64, 0.1));
        values.insert("step".into(), scalar(DType::I64, 1.0));
        let outputs = run(&step, &values);
        for (number, (name, shape)) in SHAPES.into_iter().enumerate() {
            let parameter = &values[name];
            let states = optimizer.states(name, &parameter.ty);
            let names = states.iter().map(|(slot, _)| format!("optimizer.{slot}.{name}"));
            let names: Vec<String> = [name.to_string()].into_iter().chain(names).collect();
            let before: Vec<_> = names.iter().map(|name| values[name.as_str()].clone()).collect();
            let gradient = &values[format!("g{number}").as_str()];
            let new = optimizer.tensor(name, &before, gradient, 0.1, shape.len() >= 2).unwrap();
            assert_eq!(new.len(), names.len());
            for (new, name) in new.iter().zip(&names) {
                assert_eq!(new, &outputs[name.as_str()], "{case} {name}");
            }
        }
    }
}

#[test]
fn constants_out_of_range_are_refused() {
    let bad = [
        Optimizer::Adafactor {
            beta2_decay: 0.5,
            epsilon1: None,
            epsilon2: 1e-3,
            clip: 1.0,
            weight_decay: 0.0,
        },
        Optimizer::Adafactor {
            beta2_decay: -0.8,
            epsilon1: None,
            epsilon2: 1e-3,
            clip: 0.0,
            weight_decay: 0.0,
        },
        Optimizer::Lamb { beta1: 1.0, beta2: 0.9, epsilon: 1e-6, weight_decay: 0.0 },
        Optimizer::Adam8bit { beta1: 0.9, beta2: 0.9, epsilon: -1.0, weight_decay: 0.0 },
    ];
    for optimizer in bad {
        assert_eq!(optimizer.validate().unwrap_err().code, "E057", "{optimizer:?}");
    }
    for name in Optimizer::NAMES {
        let optimizer = Optimizer::from_name(name).unwrap();
        assert_eq!(optimizer.name(), name);
        optimizer.validate().unwrap();
    }
}
