//! A model as everything above this crate sees it.

use crate::context::ParamSpec;
use crate::initializer::Initializer;
use indexmap::IndexMap;
use partita_ir::{Graph, Literal};

/// A model built for a batch size: its forward graph, mostly with a loss, and its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Inputs are what is fed, then the parameters, in the order of `params`; outputs are `loss` and `logits` (or
    /// `prediction`).
    pub forward: Graph,
    /// The parameters by name, in order of declaration.
    pub params: IndexMap<String, ParamSpec>,
    /// Further names of parameters: (alias, name).
    pub ties: Vec<(String, String)>,
    /// Module paths and what stands there: `layers.0.attn` is a `MultiheadAttention`. In order of application; modules
    /// that are mere names for a part of the model are not listed.
    pub modules: IndexMap<String, String>,
}

impl Model {
    /// The number of trained elements; tied parameters count once.
    pub fn parameter_count(&self) -> usize {
        self.params.values().map(|p| p.ty.element_count()).sum()
    }

    /// Every initial parameter, whole, in the order of `params`.
    pub fn initial(&self, seed: u64) -> IndexMap<String, Literal> {
        let initializer = Initializer::new(seed);
        let whole = |spec: &ParamSpec| initializer.literal(spec, &vec![0; spec.ty.rank()], &spec.ty.shape);
        self.params.iter().map(|(name, spec)| (name.clone(), whole(spec))).collect()
    }
}
