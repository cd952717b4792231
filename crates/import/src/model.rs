//! What an import gives: a model as those of the zoo, with initial values, and what else the file says.

use crate::{Limits, Tensor};
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::{Literal, TensorType};
use partita_nn::Model;
use std::collections::BTreeMap;

/// How a file becomes a model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ImportOptions {
    /// The output that is the loss; `None`: the only float scalar output, if there is just one.
    pub loss: Option<String>,
    /// Whether a model may have several float scalar outputs of which none is named as the loss: it then has no loss,
    /// which is no error for those who call it.
    pub may_lack_loss: bool,
    /// The extents of symbolic sizes by symbol, `s17`; others get the extent of the example that the
    /// model was exported with.
    pub sizes: BTreeMap<String, usize>,
    /// The extent of the first dimension of the first input, if that is symbolic.
    pub batch: Option<usize>,
    /// The inputs of a StableHLO program that are trained, by name; `params*` means all that begin so.
    pub parameters: Vec<String>,
    /// The arguments of a StableHLO step that are its state though they were not donated: each leaf, `state.params.w`, is
    /// replaced by the result of the same path, `result[0]['params']['w']`.
    pub state: Vec<String>,
    /// The number of ranks that a program with collectives is one of, if the program does not say it. The model is that of
    /// all ranks: its inputs have the rows of all.
    pub ranks: Option<usize>,
    /// What the file may make the reader do.
    pub limits: Limits,
}

/// A tensor that a step replaces by a new one: a buffer that the model changes, such as the running
/// mean of a batch norm, or a parameter that is not trained (replaced by itself). It is an input of
/// the graph with the same name as the output that replaces it.
#[derive(Clone, Debug)]
pub struct State {
    /// Its name in the module tree: `bn.running_mean`.
    pub name: String,
    /// Its first value.
    pub initial: Tensor,
    /// Whether it is a parameter with `requires_grad = False`.
    pub is_frozen_parameter: bool,
}

/// An imported model. Complex tensors are real ones with a last dimension of 2 in it, see [`partita_ir::complex_as_pairs`];
/// only `state_dict` has those of the file. `model.forward` is a forward graph as those of the zoo: inputs, states, then
/// parameters; an output `loss`, if the file has one. [`partita_nn::gradient_graph`] and
/// [`partita_nn::append_update`] complete it to a training step.
#[derive(Clone, Debug)]
pub struct ImportedModel {
    /// The forward graph, the types of the parameters, tied names and the module tree. The `init` of a
    /// parameter is a usual one, for training from scratch; the values of the file are in `weights`.
    pub model: Model,
    /// The initial value of each parameter, in the order of `model.params`.
    pub weights: IndexMap<String, Tensor>,
    /// Tensors that are kept from step to step without an optimizer.
    pub states: Vec<State>,
    /// The fed inputs: names and types.
    pub inputs: IndexMap<String, TensorType>,
    /// The names of the user's outputs, in order; the loss is called `loss`.
    pub outputs: Vec<String>,
    /// The name of the loss in the file, if there is a loss.
    pub loss: Option<String>,
    /// The extents of the symbolic sizes.
    pub sizes: BTreeMap<String, usize>,
    /// Every tensor of the module's `state_dict()` with its value in the file: parameters under all their
    /// names, and persistent buffers.
    pub state_dict: IndexMap<String, Tensor>,
    /// Remarks for the user: a newer format, random numbers that differ from PyTorch's.
    pub notes: Vec<String>,
}

impl ImportedModel {
    /// The module's `state_dict()` after training, for [`crate::save`] and PyTorch's
    /// `load_state_dict`: `values` has parameters and states by name, the others are as in the file.
    ///
    /// # Errors
    /// E350 if the file has changed.
    pub fn trained(&self, values: &IndexMap<String, Literal>) -> Result<IndexMap<String, Literal>> {
        let tied = |name: &String| self.model.ties.iter().find(|(alias, _)| alias == name).map(|(_, of)| of);
        let value = |(name, tensor): (&String, &Tensor)| {
            let value = match values.get(tied(name).unwrap_or(name)) {
                None => tensor.literal()?,
                Some(new) if tensor.ty.as_pairs().as_ref() == Some(&new.ty) => {
                    Literal::from_bytes(&tensor.ty, &new.bytes()).expect("the same bytes")
                }
                Some(new) => new.clone(),
            };
            Ok((name.clone(), value))
        };
        self.state_dict.iter().map(value).collect()
    }
}
