//! A model: its forward graph and its parameters.

use crate::context::ParamSpec;
use crate::init::Init;
use crate::initializer::Initializer;
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::{Graph, Literal, Role};
use partita_kernels::KernelOptions;

/// A model built for a batch size: its forward graph, usually with a loss, and its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Inputs are the fed ones, then the parameters in the order of `params`; outputs are `loss`
    /// and `logits` (or `prediction`).
    pub forward: Graph,
    /// The parameters by name, in order of declaration.
    pub params: IndexMap<String, ParamSpec>,
    /// Tensors that a step replaces without an optimizer, such as running means: inputs of the graph, each with an output
    /// of its name that replaces it. Those of a model made here are fed by its caller and not listed.
    pub states: IndexMap<String, ParamSpec>,
    /// Further names of parameters: (alias, name).
    pub ties: Vec<(String, String)>,
    /// Module paths and kinds: `layers.0.attn` is a `MultiheadAttention`. In order of application;
    /// paths that only name a part of the model are not listed.
    pub modules: IndexMap<String, String>,
}

impl Model {
    /// The number of trained elements; tied parameters count once.
    pub fn parameter_count(&self) -> usize {
        self.params.values().map(|p| p.ty.element_count()).sum()
    }

    /// Whether the graph is a whole training step, which returns new parameters, and not a forward pass: whether an output
    /// replaces a parameter.
    pub fn is_step(&self) -> bool {
        let replaces = |&(input, _): &(usize, usize)| {
            let input = self.forward.inputs[input];
            self.forward.value(input).role == Role::Param
        };
        self.forward.aliases.iter().any(replaces)
    }

    /// Parameters, then states: everything that a step keeps apart from the states of its optimizer.
    pub fn kept(&self) -> impl Iterator<Item = (&String, &ParamSpec)> {
        self.params.iter().chain(&self.states)
    }

    /// The full initial value of every parameter and state, in the order of [`Model::kept`].
    ///
    /// # Errors
    /// E350 if values are in a file that has changed.
    pub fn initial(&self, seed: u64) -> Result<IndexMap<String, Literal>> {
        let initializer = Initializer::new(KernelOptions::default(), seed);
        self.kept().map(|(name, spec)| Ok((name.clone(), whole(&initializer, spec)?))).collect()
    }

    /// [`Model::initial`] for comparing two runs of a step: stored floats that are all zero, which would hide a term that
    /// counts twice, are drawn. Errors as there.
    pub fn trial(&self, seed: u64) -> Result<IndexMap<String, Literal>> {
        let initializer = Initializer::new(KernelOptions::default(), seed);
        let value = |spec: &ParamSpec| {
            let value = whole(&initializer, spec)?;
            let is_zero = spec.ty.dtype.is_float() && value.to_f64().iter().all(|&number| number == 0.0);
            match is_zero && spec.stored.is_some() {
                true => whole(
                    &initializer,
                    &ParamSpec { init: Init::Normal { std: 0.02 }, stored: None, ..spec.clone() },
                ),
                false => Ok(value),
            }
        };
        self.kept().map(|(name, spec)| Ok((name.clone(), value(spec)?))).collect()
    }
}

/// The whole initial tensor.
fn whole(initializer: &Initializer, spec: &ParamSpec) -> Result<Literal> {
    initializer.literal(spec, &vec![0; spec.ty.rank()], &spec.ty.shape)
}
