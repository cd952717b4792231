//! Global tensors by name: the inputs and outputs of a planned step.

use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::Pieces;
use partita_ir::port::{microbatch_of, state_of};
use partita_ir::{Graph, Literal, Role};

/// Every input of a step graph by position, from tensors by their global names: fed tensors,
/// parameters (in full or as parts), optimizer states. Microbatch inputs are sliced from the full
/// ones. E010 names a missing tensor.
pub fn inputs_of(
    step: &Graph,
    pieces: &[Pieces],
    tensors: &IndexMap<String, Literal>,
) -> Result<Vec<Literal>> {
    let mut cut: IndexMap<String, Literal> = IndexMap::new();
    for piece in pieces {
        for (name, value) in tensors {
            // A part of a parameter is also a part of its states.
            if *name == piece.name || name.ends_with(&format!(".{}", piece.name)) {
                let prefix = &name[..name.len() - piece.name.len()];
                for (part, literal) in piece.split(value) {
                    cut.insert(format!("{prefix}{part}"), literal);
                }
            }
        }
    }
    let micro = micro_counts(step);
    step.inputs
        .iter()
        .map(|&input| {
            let name = &step.value(input).name;
            if let Some(value) = tensors.get(name).or_else(|| cut.get(name)) {
                return Ok(value.clone());
            }
            if let Some((whole, index)) = microbatch_of(name)
                && let Some(value) = tensors.get(whole)
            {
                let rows = value.ty.shape[0];
                let (start, limit) = micro_rows(rows, micro[whole], index);
                let (mut offset, mut shape) = (vec![0; value.ty.rank()], value.ty.shape.clone());
                (offset[0], shape[0]) = (start, limit - start);
                return Ok(value.window(&offset, &shape));
            }
            Err(Diagnostic::new("E010", format!("there are no values for input `{name}`"))
                .expected(step.ty(input).to_string()))
        })
        .collect()
}

fn micro_counts(step: &Graph) -> IndexMap<String, usize> {
    let mut counts: IndexMap<String, usize> = IndexMap::new();
    for &input in &step.inputs {
        if let Some((whole, index)) = microbatch_of(&step.value(input).name) {
            let count = counts.entry(whole.to_string()).or_default();
            *count = (*count).max(index + 1);
        }
    }
    counts
}

/// Rows of microbatch `index` of `count`: balanced, the first ones get one more.
pub fn micro_rows(rows: usize, count: usize, index: usize) -> (usize, usize) {
    let start = |i: usize| i * (rows / count) + i.min(rows % count);
    (start(index), start(index + 1))
}

/// Outputs by name, with parts joined under their parameter's name.
pub fn outputs_by_name(step: &Graph, pieces: &[Pieces], outputs: Vec<Literal>) -> IndexMap<String, Literal> {
    let mut named: IndexMap<String, Literal> = step.output_names.iter().cloned().zip(outputs).collect();
    for piece in pieces {
        let Some((first, _, _)) = piece.limits.first() else { continue };
        let prefixes: Vec<String> = named
            .keys()
            .filter(|name| *name == first || name.ends_with(&format!(".{first}")))
            .map(|name| name[..name.len() - first.len()].to_string())
            .collect();
        for prefix in prefixes {
            let parts: Vec<Literal> = piece
                .limits
                .iter()
                .filter_map(|(part, _, _)| named.shift_remove(&format!("{prefix}{part}")))
                .collect();
            named.insert(format!("{prefix}{}", piece.name), piece.join(&parts));
        }
    }
    named
}

/// Zero states for every optimizer state of a step and those of loss scaling, by name.
pub fn zero_states(step: &Graph) -> IndexMap<String, Literal> {
    let mut states = IndexMap::new();
    for &input in &step.inputs {
        let value = step.value(input);
        let is_state = value.role != Role::Param && state_of(&value.name).is_some();
        if matches!(value.role, Role::StateOf(_)) || is_state {
            states.insert(value.name.clone(), Literal::zeros(&value.ty));
        }
    }
    states
}
