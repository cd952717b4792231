//! Whether a step can be planned in the memory of this process, from a bound that takes no time.

use super::BuildOptions;
use crate::structure::Structured;
use crate::verify::StepRunner;
use partita_base::Result;
use partita_ir::{Role, ValueId};

/// About how many bytes planning takes for each op of a forward pass and each microbatch, its backward pass included: 20 KB
/// were measured.
const BYTES_OF_AN_OP: usize = 10_000;

/// Requests the memory of a step whose microbatches are to be unrolled, unless there are more of them than rows.
pub(super) fn microbatches(
    structured: &Structured,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<()> {
    let (forward, count) = (&structured.model.forward, options.microbatches);
    let rows = |&input: &ValueId| match forward.value(input).role {
        Role::Input => forward.ty(input).shape.first().copied(),
        _ => None,
    };
    let is_possible = forward.inputs.iter().filter_map(rows).max().is_some_and(|rows| count <= rows);
    if !is_possible || count == 1 {
        return Ok(());
    }
    let bytes = (forward.nodes.len() * BYTES_OF_AN_OP) as u64;
    runner.request(bytes.saturating_mul(count as u64), &format!("a step of {count} microbatches"))
}
