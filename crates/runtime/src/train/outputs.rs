//! Outputs of a step by name; the gradient of a parameter that is stored in pieces is joined.

use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::Pieces;

use super::TrainLoop;
use crate::checkpoint::TensorData;
use crate::sharded::place;

impl TrainLoop {
    /// The global value of an output of the last step.
    ///
    /// # Errors
    /// E414 for an unknown name, E419 if ranks hold partial values that are not yet reduced.
    pub fn output(&self, name: &str) -> Result<TensorData> {
        if let Some(layout) = self.outputs.iter().find(|layout| layout.name == name) {
            return self.collect(layout, |rank| self.runner.read_output(rank, name));
        }
        if let Some((pieces, prefix)) = self.pieces_of_output(name) {
            let part = |(piece, ..): &(String, usize, usize)| self.output(&format!("{prefix}{piece}"));
            return Ok(join(pieces, &pieces.limits.iter().map(part).collect::<Result<Vec<_>>>()?));
        }
        let error = Diagnostic::new("E414", format!("the step has no output `{name}`"));
        Err(match did_you_mean(name, self.outputs.iter().map(|layout| layout.name.as_str())) {
            Some(help) => error.help(help),
            None => error,
        })
    }

    /// The pieces of the parameter that the output `<prefix><parameter>` belongs to, and the prefix.
    fn pieces_of_output<'n>(&self, name: &'n str) -> Option<(&Pieces, &'n str)> {
        let prefix_of = |pieces: &Pieces| {
            let prefix = name.strip_suffix(pieces.name.as_str())?;
            let first = format!("{prefix}{}", pieces.limits.first()?.0);
            self.outputs.iter().any(|layout| layout.name == first).then_some(prefix)
        };
        self.pieces.iter().find_map(|pieces| Some((pieces, prefix_of(pieces)?)))
    }
}

/// A whole tensor from its pieces, in order.
fn join(pieces: &Pieces, parts: &[TensorData]) -> TensorData {
    let mut shape = parts[0].shape.clone();
    shape[pieces.dim] = pieces.extent();
    let (dtype, size) = (parts[0].dtype, parts[0].dtype.size_bytes());
    let mut whole = vec![0; shape.iter().product::<usize>() * size];
    for (part, (_, start, _)) in parts.iter().zip(&pieces.limits) {
        let mut offset = vec![0; shape.len()];
        offset[pieces.dim] = *start;
        place(size, &part.bytes, &part.shape, &mut whole, &shape, &offset);
    }
    TensorData::new(dtype, shape, whole)
}
