//! Inputs that an output replaces, such as the running mean of a batch norm: they stay on the ranks.

use crate::common::ok;
use indexmap::IndexMap;
use partita_base::DType;
use partita_ir::{GraphBuilder, Role, TensorType};
use partita_mesh::Mesh;
use partita_nn::{Init, Model, Optimizer, ParamSpec, StepOptions};
use partita_schedule::verify::{Interpreter, Unwatched, Verification};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Plan};

/// A loss of `x * weight + mean * count`; the mean of `x` and the count of steps are replaced.
fn model() -> Model {
    let ty = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let mut b = GraphBuilder::new("main");
    let x = b.input("x", ty(&[6, 4]), Role::Input);
    let mean = b.input("mean", ty(&[4]), Role::Input);
    let count = b.input("count", TensorType::scalar(DType::I64), Role::Input);
    let weight = b.input("weight", ty(&[4]), Role::Param);
    let rows = |b: &mut GraphBuilder, value| ok(b.broadcast_in_dim(value, &[6, 4], &[1]));
    let (weights, means) = (rows(&mut b, weight), rows(&mut b, mean));
    let steps = ok(b.convert(count, DType::F64));
    let steps = ok(b.broadcast_scalar(steps, &[6, 4]));
    let (product, shift) = (ok(b.multiply(x, weights)), ok(b.multiply(means, steps)));
    let sum = ok(b.add(product, shift));
    let square = ok(b.multiply(sum, sum));
    let loss = ok(b.reduce_sum(square, &[0, 1]));
    let new_mean = ok(b.reduce_sum(x, &[0]));
    let one = b.constant(partita_ir::Literal::splat_int(&TensorType::scalar(DType::I64), 1));
    let new_count = ok(b.add(count, one));
    let outputs = [("loss", loss), ("sum", sum), ("mean", new_mean), ("count", new_count)];
    let mut forward =
        ok(b.finish_checked(outputs.iter().map(|&(name, value)| (name.to_string(), value)).collect()));
    forward.aliases = vec![(1, 2), (2, 3)];
    let spec = ParamSpec { ty: ty(&[4]), init: Init::Normal { std: 1.0 }, stream: 1, stored: None };
    Model {
        forward,
        params: IndexMap::from([("weight".to_string(), spec)]),
        states: IndexMap::new(),
        ties: Vec::new(),
        modules: IndexMap::new(),
    }
}

#[test]
fn a_step_drops_predictions_and_keeps_states() {
    let options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
    let context = BuildContext { registry: &Default::default(), runner: &Interpreter };
    let mesh = ok(Mesh::parse("dp=2", None));
    let step = ok(BuildRequest::new(&model(), &Plan::default(), &mesh, &options, context).build()).step;
    assert!(step.output_named("sum").is_none());
    let name = |value: &partita_ir::ValueId| step.value(*value).name.clone();
    let kept: Vec<(String, String)> = (step.aliases.iter())
        .map(|&(input, output)| (name(&step.inputs[input]), step.output_names[output].clone()))
        .collect();
    for state in ["mean", "count", "weight"] {
        assert!(kept.contains(&(state.to_string(), state.to_string())), "{state}: {kept:?}");
    }
}

#[test]
fn a_step_with_states_of_every_rank_is_verified() {
    let model = model();
    let verification = Verification {
        model: &model,
        precise: None,
        options: &BuildOptions::new(StepOptions::new(Optimizer::sgd())).for_verification(),
        context: BuildContext { registry: &Default::default(), runner: &Interpreter },
        seed: 1,
        learning_rate: 1e-3,
        watcher: &Unwatched,
    };
    let report = ok(verification.run(&Plan::default(), &ok(Mesh::parse("dp=2", None)))).report;
    let compared: Vec<&str> = report.tensors.iter().map(|tensor| tensor.tensor.as_str()).collect();
    assert!(report.ok && compared.contains(&"mean") && compared.contains(&"count"), "{report:?}");
}
