//! A model: its forward graph and its parameters.

use crate::context::ParamSpec;
use crate::initializer::Initializer;
use indexmap::IndexMap;
use partita_ir::{Graph, Literal};
use partita_kernels::KernelOptions;

/// A model built for a batch size: its forward graph, usually with a loss, and its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Inputs are the fed ones, then the parameters in the order of `params`; outputs are `loss`
    /// and `logits` (or `prediction`).
    pub forward: Graph,
    /// The parameters by name, in order of declaration.
    pub params: IndexMap<String, ParamSpec>,
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

    /// The full initial value of every parameter, in the order of `params`.
    pub fn initial(&self, seed: u64) -> IndexMap<String, Literal> {
        let initializer = Initializer::new(KernelOptions::default(), seed);
        let whole = |spec: &ParamSpec| initializer.literal(spec, &vec![0; spec.ty.rank()], &spec.ty.shape);
        self.params.iter().map(|(name, spec)| (name.clone(), whole(spec))).collect()
    }
}
