//! Models of images and T5 against losses and gradients recorded from PyTorch (`tests/zoo/make.py`), and against finite
//! differences.

use crate::common::*;
use partita_base::DType;
use partita_nn::{Model, ModelConfig, T5Config, UnetConfig, VitConfig, WideResNetConfig, gradient_graph};
use std::collections::BTreeMap;

/// The cases of `make.py`, with their rows.
fn cases() -> Vec<(&'static str, ModelConfig, usize)> {
    let resnet = WideResNetConfig { dim: 2, classes: 4, ..WideResNetConfig::default() };
    let small = WideResNetConfig { blocks: vec![1, 2], width: 2, expansion: 3, image: 6, ..resnet.clone() };
    let pooled = WideResNetConfig { blocks: vec![1, 1], width: 1, image: 16, stem: 7, ..resnet };
    let vit = VitConfig {
        image: 8,
        patch: 4,
        classes: 5,
        dim: 8,
        layers: 2,
        heads: 2,
        mlp_ratio: 2,
        ..VitConfig::default()
    };
    let unet = UnetConfig { image: 8, channels: 3, outputs: 2, dim: 4, depth: 2, groups: 2 };
    let t5 = T5Config {
        vocab: 11,
        dim: 6,
        layers: 2,
        heads: 2,
        head_features: 4,
        hidden: 10,
        sequence: 12,
        buckets: 8,
        distance: 10,
        ..T5Config::default()
    };
    vec![
        ("wide-resnet", ModelConfig::WideResNet(small), 3),
        ("wide-resnet-pooled", ModelConfig::WideResNet(pooled), 2),
        ("vit", ModelConfig::Vit(vit), 2),
        ("unet", ModelConfig::Unet(unet), 2),
        ("t5", ModelConfig::T5(t5), 2),
    ]
}

/// The inputs of `make.py`.
fn fed(model: &Model, classes: i32) -> Values {
    let mut values = Values::new();
    for &input in &model.forward.inputs {
        let value = model.forward.value(input);
        let (name, ty) = (value.name.as_str(), &value.ty);
        let count = ty.element_count();
        let floats =
            |of: fn(f64) -> f64| f64s(&ty.shape, &(0..count).map(|i| of(i as f64)).collect::<Vec<f64>>());
        let ints =
            |of: &dyn Fn(i32) -> i32| i32s(&ty.shape, &(0..count as i32).map(of).collect::<Vec<i32>>());
        let literal = match (name, ty.rank()) {
            ("inputs", _) => floats(|i| (0.53 * i).sin()),
            ("targets", _) => floats(|i| (0.29 * i).cos()),
            ("labels", 1) => ints(&|i| 7 * i % classes),
            ("tokens", _) => ints(&|i| 5 * i % classes),
            ("labels", _) => ints(&|i| if i % 5 == 0 { -100 } else { (3 * i + 1) % classes }),
            _ => continue,
        };
        values.insert(name.to_string(), literal);
    }
    let mut names: Vec<(&String, &partita_nn::ParamSpec)> = model.params.iter().collect();
    names.sort_by_key(|(name, _)| name.as_str());
    for (k, (name, spec)) in names.into_iter().enumerate() {
        let offset = if name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let numbers = (0..spec.ty.element_count()).map(|i| offset + 0.3 * (0.37 * i as f64 + k as f64).cos());
        values.insert(name.clone(), f64s(&spec.ty.shape, &numbers.collect::<Vec<f64>>()));
    }
    values
}

fn classes(config: &ModelConfig) -> i32 {
    match config {
        ModelConfig::WideResNet(config) => config.classes as i32,
        ModelConfig::Vit(config) => config.classes as i32,
        ModelConfig::T5(config) => config.vocab as i32,
        _ => 1,
    }
}

#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let recorded = include_str!("../../../../tests/zoo/recorded.txt");
    for (case, config, rows) in cases() {
        let own = recorded.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
        let expected: BTreeMap<&str, Vec<f64>> = own
            .filter(|words| words[0] == case)
            .map(|words| (words[1], words[2..].iter().map(|number| number.parse().unwrap()).collect()))
            .collect();
        let model = config.build(rows, DType::F64, true).unwrap();
        let values = fed(&model, classes(&config));
        let loss = single(&run(&model.forward, &values), "loss");
        assert_close(&[loss], &expected["loss"], 1e-12, case);
        let found = run(&gradient_graph(&model.forward).unwrap(), &values);
        assert_eq!(expected.len(), model.params.len() + 1, "{case}: {:?}", model.params.keys());
        for name in model.params.keys() {
            let gradient = found[&format!("grad.{name}")].to_f64();
            let squares: f64 = gradient.iter().map(|g| g * g).sum();
            let wave: f64 = gradient.iter().enumerate().map(|(i, g)| g * (0.71 * i as f64).sin()).sum();
            let (found, expected) = ([squares, wave], &expected[name.as_str()]);
            assert_close(&found, expected, 1e-9, &format!("{case}: {name}"));
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    for (case, config, rows) in cases() {
        // Enough of each kind of layer at a size that takes no seconds.
        let config = match config {
            ModelConfig::WideResNet(config) if case == "wide-resnet" => {
                ModelConfig::WideResNet(WideResNetConfig { blocks: vec![1], image: 4, ..config })
            }
            ModelConfig::Unet(config) => {
                ModelConfig::Unet(UnetConfig { image: 4, dim: 2, depth: 1, groups: 1, ..config })
            }
            ModelConfig::T5(config) => ModelConfig::T5(T5Config { layers: 1, sequence: 5, ..config }),
            ModelConfig::WideResNet(_) => continue,
            other => other,
        };
        let model = config.build(rows, DType::F64, true).unwrap();
        check_gradients(&model, &fed(&model, classes(&config)));
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let code = |config: ModelConfig| config.build(2, DType::F32, true).unwrap_err().code;
    let resnet = WideResNetConfig::default();
    assert_eq!(code(ModelConfig::WideResNet(WideResNetConfig { blocks: vec![], ..resnet.clone() })), "E050");
    assert_eq!(
        code(ModelConfig::WideResNet(WideResNetConfig { blocks: vec![1, 0], ..resnet.clone() })),
        "E050"
    );
    assert_eq!(code(ModelConfig::WideResNet(WideResNetConfig { blocks: vec![1; 6], ..resnet })), "E050");
    assert_eq!(code(ModelConfig::Vit(VitConfig { patch: 3, ..VitConfig::default() })), "E050");
    assert_eq!(code(ModelConfig::Vit(VitConfig { heads: 5, ..VitConfig::default() })), "E050");
    assert_eq!(code(ModelConfig::Unet(UnetConfig { image: 10, ..UnetConfig::default() })), "E050");
    assert_eq!(code(ModelConfig::Unet(UnetConfig { groups: 3, ..UnetConfig::default() })), "E050");
    assert_eq!(code(ModelConfig::T5(T5Config { buckets: 6, ..T5Config::default() })), "E050");
    assert_eq!(code(ModelConfig::T5(T5Config { distance: 16, ..T5Config::default() })), "E050");
}
