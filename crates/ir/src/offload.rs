//! What ranks keep in host memory: an annotation of a step beside its graph, from plans to programs.

use std::collections::BTreeSet;

/// What is kept in host memory while nothing uses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Inputs that are kept from step to step, by name: optimizer states.
    pub states: BTreeSet<String>,
    /// The modules whose activations are kept there for the backward pass; `""` is the whole model.
    pub activations: BTreeSet<String>,
    /// How many groups are loaded ahead of their use: a group is what one instruction updates, or what the backward pass of
    /// one block of the model reads.
    pub ahead: usize,
}

impl Default for Offload {
    fn default() -> Offload {
        Offload { states: BTreeSet::new(), activations: BTreeSet::new(), ahead: 1 }
    }
}

impl Offload {
    /// Whether everything stays on the device.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.activations.is_empty()
    }

    /// Whether activations of a module are kept in host memory.
    pub fn takes(&self, path: &str) -> bool {
        let is_inside = |module: &String| {
            let rest = path.strip_prefix(module.as_str());
            module.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.activations.iter().any(is_inside)
    }
}
