//! The signature of a model: what it has to be fed. Feeds are chosen by it, and by nothing else about a model.

use partita_ir::{InputKind, TensorType, ValueId};
use partita_nn::Model;
use partita_schedule::feed::{IndexRange, choices, index_range};
use std::fmt;

/// The fed inputs of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Signature {
    /// The tensors of a batch, in the order of the graph; scalars of the step (`seed`, `step`) are not among them.
    pub inputs: Vec<Input>,
    /// See [`ModelSource::is_bidirectional`](crate::models::ModelSource::is_bidirectional).
    pub is_bidirectional: bool,
}

/// A fed input.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its global type; the rows of the batch are dimension 0.
    pub ty: TensorType,
    /// For integers: the number of values that the ops which read them allow, such as the rows of an embedding; 2 if no op
    /// limits them.
    pub choices: usize,
    /// The rows of the embedding that it chooses from, or the classes of a loss: other indices are refused.
    pub range: Option<IndexRange>,
}

impl Signature {
    /// That of a model.
    pub fn of(model: &Model, is_bidirectional: bool) -> Signature {
        let graph = &model.forward;
        let is_fed = |&(place, &input): &(usize, &ValueId)| {
            let (value, is_replaced) =
                (graph.value(input), graph.aliases.iter().any(|&(old, _)| old == place));
            matches!(InputKind::of(&value.name, &value.role, is_replaced), InputKind::Batch { .. })
        };
        let fed = graph.inputs.iter().enumerate().filter(is_fed).map(|(_, input)| input);
        let input = |&id| {
            let value = graph.value(id);
            Input {
                name: value.name.clone(),
                ty: value.ty.clone(),
                choices: choices(graph, id),
                range: index_range(graph, id),
            }
        };
        Signature { inputs: fed.map(input).collect(), is_bidirectional }
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// [`Input::choices`] of the input of this name; 0 if there is no such input.
    pub fn choices(&self, name: &str) -> usize {
        self.input(name).map_or(0, |input| input.choices)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> =
            self.inputs.iter().map(|Input { name, ty, .. }| format!("{name}: {ty}")).collect();
        f.write_str(if inputs.is_empty() { "no inputs" } else { "" })?;
        f.write_str(&inputs.join(", "))
    }
}
