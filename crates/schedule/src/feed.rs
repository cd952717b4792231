//! Random values for every input of a model, for verification.

use indexmap::IndexMap;
use partita_base::DType;
use partita_ir::{Attribute, Graph, InputKind, Literal, Op, Operation, Role, TensorType, ValueId};
use partita_nn::Model;
use partita_nn::losses::IGNORE_INDEX;
use partita_nn::random::Draws;

/// Global tensors by input name.
pub type Fed = IndexMap<String, Literal>;

/// Values for every fed input of a model's forward graph but its states, scalars included (see [`scalars`]; step
/// 1).
///
/// The data is uneven on purpose: `ignored_fraction` of the labels are ignored, few in the first
/// rows and most in the last, the rows of `attention_mask` have different lengths, `positions`
/// start again at random. So a mean of means, or a mask applied to the wrong shard, changes the loss. Integers stay below
/// the bound that their consumers imply: rows of an embedding, classes of a loss.
pub fn random_feed(model: &Model, seed: u64, ignored_fraction: f64) -> Fed {
    let graph = &model.forward;
    let mut fed = scalars(graph, seed, 1, 1e-3);
    for &input in &graph.inputs {
        let value = graph.value(input);
        let is_of_step = InputKind::of(&value.name, &value.role, false).is_scalar_of_step();
        if value.role != Role::Input || is_of_step || model.states.contains_key(&value.name) {
            continue;
        }
        let draws = Draws::new(seed, &value.name);
        let literal = match value.name.as_str() {
            "labels" if value.ty.rank() > 0 => {
                labels(&value.ty, draws, choices(graph, input), ignored_fraction)
            }
            "attention_mask" => ragged(&value.ty, draws),
            "positions" => documents(&value.ty, draws),
            _ => random(&value.ty, draws, choices(graph, input)),
        };
        fed.insert(value.name.clone(), literal);
    }
    fed
}

/// The learning rate of a group of parameters where one rate is given for the whole step: another one for each.
pub fn rate_of_group(learning_rate: f64, group: usize) -> f64 {
    learning_rate * (1.0 + 0.25 * group as f64)
}

/// The scalar inputs of a graph: `seed`, `step` (from 1) and `learning_rate`, each in the graph's
/// own type.
pub fn scalars(graph: &Graph, seed: u64, step: u64, learning_rate: f64) -> Fed {
    let mut fed = Fed::new();
    for &input in &graph.inputs {
        let value = graph.value(input);
        if value.role != Role::Input || value.ty.rank() != 0 {
            continue;
        }
        let literal = match InputKind::of(&value.name, &value.role, false) {
            InputKind::Seed => Literal::splat_int(&value.ty, i128::from(seed)),
            InputKind::Step => Literal::splat_int(&value.ty, i128::from(step)),
            InputKind::LearningRate(group) => Literal::splat(&value.ty, rate_of_group(learning_rate, group)),
            _ => continue,
        };
        fed.insert(value.name.clone(), literal);
    }
    fed
}

/// The integers that an input may hold: those from 0 below `count`, and `ignored`, the label of what does not count.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IndexRange {
    /// The rows of an embedding, or the classes of a loss.
    pub count: usize,
    /// Of labels.
    pub ignored: Option<i64>,
}

impl IndexRange {
    /// Whether an integer is in it.
    pub fn contains(&self, index: i128) -> bool {
        (0..self.count as i128).contains(&index) || self.ignored.map(i128::from) == Some(index)
    }
}

/// Exclusive upper bound for a random integer input: [`index_range`]; 2 if unknown.
pub fn choices(graph: &Graph, value: ValueId) -> usize {
    index_range(graph, value).map_or(2, |range| range.count)
}

/// The smallest range that the readers of an input allow, also through views: rows of an embedding, classes of a loss;
/// `None` if none limits it. Another index is an error in PyTorch; an embedding of ours, and StableHLO, would take the
/// nearest row.
pub fn index_range(graph: &Graph, value: ValueId) -> Option<IndexRange> {
    let readers = graph.nodes.iter().filter(|node| node.operands.contains(&value));
    let ranges = readers.filter_map(|node| {
        if matches!(node.op, Op::Reshape(_) | Op::Convert(_)) {
            return index_range(graph, node.results[0]);
        }
        let table = &graph.ty(node.operands[0]).shape;
        let Op::Composite(composite) = &node.op else { return None };
        match node.op.name() {
            "partita.embedding" => Some(IndexRange { count: *table.first()?, ignored: None }),
            "partita.cross_entropy" => match composite.attributes.get("ignore_index") {
                Some(&Attribute::Int(ignored)) => {
                    Some(IndexRange { count: *table.last()?, ignored: Some(ignored) })
                }
                _ => Some(IndexRange { count: *table.last()?, ignored: None }),
            },
            _ => None,
        }
    });
    ranges.min_by_key(|range| range.count)
}

/// Normal numbers, booleans, or integers below `choices`.
pub fn random(ty: &TensorType, draws: Draws, choices: usize) -> Literal {
    match ty.dtype {
        dtype if dtype.is_float() => {
            Literal::from_f64(ty, (0..ty.element_count() as u64).map(|i| draws.normal(i)))
        }
        DType::Bool => integers(ty, draws, 2),
        _ => integers(ty, draws, choices),
    }
}

fn integers(ty: &TensorType, draws: Draws, count: usize) -> Literal {
    Literal::from_i128(ty, (0..ty.element_count() as u64).map(|i| draws.below(i, count) as i128))
}

/// Row r of n ignores a share of `2 ignored (r + 1/2) / n`, at most all; one label always counts.
fn labels(ty: &TensorType, draws: Draws, classes: usize, ignored: f64) -> Literal {
    let (count, rows) = (ty.element_count(), ty.shape[0].max(1));
    let per_row = (count / rows).max(1);
    let (value, drop) = (draws.within(0), draws.within(1));
    let mut labels: Vec<i128> = (0..count as u64).map(|i| value.below(i, classes) as i128).collect();
    for (i, label) in labels.iter_mut().enumerate().skip(1) {
        let share = 2.0 * ignored * ((i / per_row) as f64 + 0.5) / rows as f64;
        if drop.unit(i as u64) < share {
            *label = i128::from(IGNORE_INDEX);
        }
    }
    Literal::from_i128(ty, labels.into_iter())
}

/// Each row is ones up to a length of its own (at least 1), then zeros.
fn ragged(ty: &TensorType, draws: Draws) -> Literal {
    let (count, row) = (ty.element_count(), ty.shape.last().copied().unwrap_or(1).max(1));
    let shown = |i: usize| i128::from(i % row <= draws.below((i / row) as u64, row));
    Literal::from_i128(ty, (0..count).map(shown))
}

/// Each row counts from 0 and starts again at random places, as the positions in documents do.
fn documents(ty: &TensorType, draws: Draws) -> Literal {
    let row = ty.shape.last().copied().unwrap_or(1).max(1);
    let mut position = 0;
    let positions = (0..ty.element_count()).map(|i| {
        let starts = i % row == 0 || draws.below(i as u64, 4) == 0;
        position = if starts { 0 } else { position + 1 };
        position
    });
    Literal::from_i128(ty, positions.collect::<Vec<_>>().into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_ir::interpret;
    use partita_nn::{BertConfig, GptConfig, MlpConfig, ModelConfig, Optimizer, StepOptions, train_step};

    fn bert() -> Model {
        let config = BertConfig {
            vocab: 40,
            dim: 8,
            layers: 1,
            heads: 2,
            sequence: 12,
            types: 3,
            padding_mask: true,
            dropout: 0.1,
            ..Default::default()
        };
        ModelConfig::Bert(config).build(8, DType::F32, true).unwrap()
    }

    /// The feed runs: every input is present, of the right type, and in range.
    fn loss(model: &Model, fed: &Fed) -> f64 {
        let params = model.initial(1).unwrap();
        let inputs: Vec<Literal> = (model.forward.inputs.iter())
            .map(|&input| {
                let value = model.forward.value(input);
                let literal = fed.get(&value.name).or_else(|| params.get(&value.name)).unwrap();
                assert_eq!(literal.ty, value.ty, "{}", value.name);
                literal.clone()
            })
            .collect();
        let position = model.forward.output_position("loss").unwrap();
        interpret::evaluate(&model.forward, &inputs).unwrap()[position].to_f64()[0]
    }

    #[test]
    fn every_model_can_be_fed() {
        let gpt = GptConfig {
            vocab: 300,
            dim: 8,
            layers: 1,
            heads: 2,
            sequence: 6,
            dropout: 0.1,
            ..Default::default()
        };
        for config in [
            ModelConfig::Gpt(gpt),
            ModelConfig::Mlp(MlpConfig { classify: true, ..Default::default() }),
            ModelConfig::Mlp(MlpConfig::default()),
        ] {
            let model = config.build(4, DType::F32, true).unwrap();
            let loss = loss(&model, &random_feed(&model, 3, 0.4));
            assert!(loss.is_finite() && loss > 0.0, "{}: {loss}", config.name());
        }
        let model = bert();
        // 40 tokens, nothing learnt yet.
        assert!((loss(&model, &random_feed(&model, 3, 0.4)) - 40f64.ln()).abs() < 0.2);
    }

    #[test]
    fn ignored_labels_grow_from_row_to_row() {
        let config = GptConfig { sequence: 400, ..Default::default() };
        let model = ModelConfig::Gpt(config).build(4, DType::F32, false).unwrap();
        let labels = random_feed(&model, 1, 0.4)["labels"].to_i64();
        let ignored: Vec<usize> =
            labels.chunks(400).map(|row| row.iter().filter(|&&l| l == -100).count()).collect();
        for (row, expected) in [40.0, 120.0, 200.0, 280.0].iter().enumerate() {
            assert!((ignored[row] as f64 - expected).abs() < 35.0, "{ignored:?}");
        }
        assert!(labels.iter().all(|&l| l == -100 || (0..256).contains(&l)));
        let none = random_feed(&model, 1, 0.0)["labels"].to_i64();
        assert!(none.iter().all(|&l| l != -100));
        let all = random_feed(&model, 1, 1e9)["labels"].to_i64();
        assert_eq!(all.iter().filter(|&&l| l != -100).count(), 1);
    }

    #[test]
    fn masks_are_ragged_prefixes() {
        let fed = random_feed(&bert(), 1, 0.2);
        let mask = fed["attention_mask"].to_i64();
        let lengths: Vec<i64> = mask.chunks(12).map(|row| row.iter().sum()).collect();
        for (row, &length) in mask.chunks(12).zip(&lengths) {
            assert!(length >= 1 && row[..length as usize].iter().all(|&m| m == 1), "{row:?}");
        }
        assert!(lengths.iter().any(|&l| l != lengths[0]), "{lengths:?}");
        assert!(fed["token_types"].to_i64().iter().all(|t| (0..3).contains(t)));
        assert_eq!(fed["seed"].ty, TensorType::scalar(DType::U64));
        assert_eq!(fed["step"].to_i64(), [1]);
    }

    #[test]
    fn a_step_graph_gets_its_learning_rate_and_an_exact_seed() {
        let step =
            train_step(&bert().forward, &StepOptions::new(Optimizer::from_name("adamw").unwrap())).unwrap();
        let fed = scalars(&step, u64::MAX - 1, 7, 0.25);
        assert_eq!(fed["seed"].to_i128(), [i128::from(u64::MAX - 1)]);
        assert_eq!((fed["step"].to_i64()[0], fed["learning_rate"].to_f64()[0]), (7, 0.25));
    }
}
