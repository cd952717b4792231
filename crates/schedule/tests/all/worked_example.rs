//! The smallest training step that can be done by hand: y = w x with w = 1, points (2, 4) and (3, 5), mean squared
//! error, rate 0.1. The errors are -2 and -2, so the gradient is 2 (2 (-2) + 3 (-2)) / 2 = -10, and w becomes 2.

use partita_base::DType;
use partita_ir::{Literal, TensorType, ValueId, evaluate};
use partita_mesh::Mesh;
use partita_nn::models::MlpConfig;
use partita_nn::modules::Activation;
use partita_nn::{ModelConfig, Optimizer, StepOptions, train_step};
use partita_schedule::{ApplyOptions, ReadyOptions, apply, ready_plan};
use partita_spmd::{Options, partition, virtual_ranks};

#[test]
fn one_step_by_hand_is_one_step_on_any_number_of_ranks() {
    let config = MlpConfig { dims: vec![1, 1], activation: Activation::Relu, bias: false, classify: false };
    let config = ModelConfig::Mlp(config);
    let model = config.build(2, DType::F64, true).unwrap();
    let mut options = StepOptions::new(Optimizer::sgd());
    options.output_gradients = true;
    let step = train_step(&model.forward, &options).unwrap();
    let column = |a: f64, b: f64| Literal::from_f64(&TensorType::new(DType::F64, [2, 1]), [a, b].into_iter());
    let value = |&input: &ValueId| match step.value(input).name.as_str() {
        "inputs" => column(2.0, 3.0),
        "targets" => column(4.0, 5.0),
        "layers.0.weight" => Literal::from_f64(step.ty(input), [1.0].into_iter()),
        "learning_rate" => Literal::splat(step.ty(input), 0.1),
        "step" => Literal::splat(step.ty(input), 1.0),
        other => panic!("an unexpected input `{other}`"),
    };
    let inputs: Vec<Literal> = step.inputs.iter().map(value).collect();
    let assert_by_hand = |outputs: &[Literal], what: &str| {
        let output = |name: &str| {
            let position = step.output_position(name);
            outputs[position.unwrap_or_else(|| panic!("{name} of {:?}", step.output_names))].to_f64()[0]
        };
        assert_eq!(output("loss"), 4.0, "{what}");
        assert_eq!(output("grad.layers.0.weight"), -10.0, "{what}");
        assert_eq!(output("layers.0.weight"), 2.0, "{what}");
    };
    assert_by_hand(&evaluate(&step, &inputs).unwrap(), "one device");
    for ranks in [1, 2] {
        let mesh = Mesh::new("mesh", &[("dp", ranks)]);
        let plan = ready_plan(config.name(), &step, &mesh, &ReadyOptions::default()).unwrap();
        let applied = apply(&plan, &step, &mesh, &ApplyOptions::default()).unwrap();
        let partitioned = partition(&applied.graph, &mesh, &Options::default()).unwrap();
        let points = partitioned.local(0).ty(partitioned.local(0).inputs[0]).clone();
        assert!(points.shape.contains(&(2 / ranks)), "each rank has its share of the points: {points}");
        assert_by_hand(&virtual_ranks::interpret(&partitioned, &inputs).unwrap(), &format!("{ranks} ranks"));
    }
}
