//! Addresses of whole tensors in the memory of a rank, and parameters written from borrowed bytes.

use partita_base::Result;

use super::{BatchTensor, TensorLayout, TrainLoop};
use crate::executor::Lent;

impl TrainLoop {
    /// The address of a parameter or state if a rank of this process holds it whole; `None` if it is sharded, or stored
    /// in pieces. If it is replicated, [`TrainLoop::spread`] copies what was written there to the other ranks.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn lend_state(&mut self, name: &str) -> Result<Option<Lent>> {
        if self.state.get(name).is_some_and(|whole| whole.parts.len() > 1) {
            return Ok(None);
        }
        let Some(first) = self.inputs_named(name).first().copied() else {
            return Err(self.unknown_input(name));
        };
        match self.whole_on(&self.inputs[first]) {
            Some(rank) => self.runner.lend_input(rank, name),
            None => Ok(None),
        }
    }

    /// The address of an output of the last step until the next one, if a rank of this process holds it whole.
    ///
    /// # Errors
    /// E446 for a rank of another process.
    pub fn lend_output(&mut self, name: &str) -> Result<Option<Lent>> {
        let layout = self.outputs.iter().find(|layout| layout.name == name);
        match layout.and_then(|layout| self.whole_on(layout)) {
            Some(rank) => self.runner.lend_output(rank, name),
            None => Ok(None),
        }
    }

    /// Copies a parameter or state from the address of [`TrainLoop::lend_state`] to the other ranks of this process.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn spread(&mut self, name: &str) -> Result<()> {
        let mut ranks: Vec<usize> = Vec::new();
        for place in self.inputs_named(name) {
            ranks.extend(self.inputs[place].ranks.iter().filter(|&&rank| self.runner.world().is_local(rank)));
        }
        if ranks.len() < 2 {
            return Ok(());
        }
        self.runner.fill_inputs(&ranks, name, |mut targets| {
            if let Some((first, rest)) = targets.split_first_mut() {
                // Of a dimension that is too short for the mesh, the last ranks hold nothing.
                let holders = rest.iter_mut().filter(|target| target.len() == first.len());
                holders.for_each(|target| target.copy_from_slice(first));
            }
            Ok(())
        })
    }

    /// The first local rank that holds a whole tensor.
    fn whole_on(&self, layout: &TensorLayout) -> Option<usize> {
        let TensorLayout { shape, sharding, mesh, ranks, .. } = layout;
        let (position, &rank) =
            ranks.iter().enumerate().find(|(_, rank)| self.runner.world().is_local(**rank))?;
        let is_whole = !sharding.is_partial() && sharding.local_shape(mesh, shape, position) == *shape;
        is_whole.then_some(rank)
    }

    /// Writes a parameter or any other input from its whole dense bytes, in pieces where it is stored so.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type.
    pub fn write_tensor(&mut self, tensor: &BatchTensor<'_>) -> Result<()> {
        let BatchTensor { name, dtype, shape, bytes } = *tensor;
        match self.state.get(name).cloned() {
            Some(whole) => self.set_whole(name, &whole, dtype, shape, bytes),
            None => {
                let places = self.places(name, dtype)?;
                self.write(&places, name, shape, bytes)
            }
        }
    }
}
