//! Whether a step can be planned in the memory of this process, from a bound that takes no time.

use crate::request::BuildRequest;
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, Role, ValueId};

/// About how many bytes planning takes for each op of a forward pass and each microbatch, its backward pass included: 60 KB
/// were measured.
const BYTES_OF_AN_OP: usize = 60_000;

/// Bytes of one value, over all ranks, that no cluster holds: 64 PiB. Sums and strides of smaller ones fit in 64 bits.
const MAX_VALUE_BYTES: usize = 1 << 56;

/// Refuses a step that nothing can run, before anything is derived from it.
///
/// # Errors
/// E040 for a value of more than 64 PiB, and for memory that planning would take and this process may not have.
pub(super) fn check(forward: &Graph, request: &BuildRequest) -> Result<()> {
    values(forward)?;
    match request.part.has_gradients() {
        true => microbatches(forward, request),
        false => Ok(()),
    }
}

/// E040 for a value that is too large.
fn values(forward: &Graph) -> Result<()> {
    let is_too_large = |value: ValueId| {
        let ty = forward.ty(value);
        let bytes =
            ty.shape.iter().try_fold(ty.dtype.size_bytes(), |bytes, &extent| bytes.checked_mul(extent));
        bytes.is_none_or(|bytes| bytes > MAX_VALUE_BYTES)
    };
    let computed =
        forward.nodes.iter().flat_map(|node| node.results.iter().map(|&value| (value, &node.path)));
    let unnamed = String::new();
    let fed = forward.inputs.iter().map(|&value| (value, &unnamed));
    match fed.chain(computed).find(|&(value, _)| is_too_large(value)) {
        None => Ok(()),
        Some((value, path)) => {
            let name = if path.is_empty() { &forward.value(value).name } else { path };
            Err(Diagnostic::new("E040", "a value of the model is larger than the memory of any cluster")
                .at(format!("`{name}`"))
                .expected("at most 64 PiB over all ranks")
                .found(forward.ty(value).to_string())
                .help("use fewer rows (--batch) or smaller sizes of the model"))
        }
    }
}

/// Requests the memory of a step whose microbatches are to be unrolled, unless there are more of them than rows.
fn microbatches(forward: &Graph, request: &BuildRequest) -> Result<()> {
    let count = request.options.microbatches;
    let rows = |&input: &ValueId| match forward.value(input).role {
        Role::Input => forward.ty(input).shape.first().copied(),
        _ => None,
    };
    let is_possible = forward.inputs.iter().filter_map(rows).max().is_some_and(|rows| count <= rows);
    if !is_possible || count == 1 {
        return Ok(());
    }
    let bytes = (forward.nodes.len() * BYTES_OF_AN_OP) as u64;
    let runner = request.context.runner;
    runner.request(bytes.saturating_mul(count as u64), &format!("a step of {count} microbatches"))
}
