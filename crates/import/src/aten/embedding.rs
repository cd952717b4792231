//! Rows of a table: embeddings, and sums of bags of them.

use super::index::picked;
use super::{Rows, convert, operand, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::composites::EMBEDDING;
use partita_ir::ops::{Direction, DotGeneral, Reducer, Scatter, ScatterDims, Slice, Update};
use partita_ir::{Literal, TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.embedding.default", embedding),
    ("aten.embedding_bag.padding_idx", bags),
    ("aten.embedding_bag.default", bags),
    ("aten._embedding_bag.default", bags),
    ("aten._embedding_bag_forward_only.default", bags),
];

/// A table `[v, d]` and integer ids; the row of the padding index gets no gradient.
fn table_and_ids(call: &mut Call) -> Result<(ValueId, ValueId)> {
    let table = call.tensor("weight")?;
    let ids = call.tensor("indices")?;
    let shape = call.shape(table);
    if shape.len() != 2 || !call.ty(ids).dtype.is_integer() {
        return Err(call.unsupported("a table [v, d] and integer ids", call.ty(table).to_string()));
    }
    if call.flag("sparse", false)? {
        return Err(call.unsupported("a dense gradient", "`sparse=True`"));
    }
    let table = match call.flag("scale_grad_by_freq", false)? {
        true => shared_by_uses(call, table, ids)?,
        false => table,
    };
    Ok((table, ids))
}

fn embedding(call: &mut Call) -> Outs {
    let (mut table, ids) = table_and_ids(call)?;
    let shape = call.shape(table);
    let padding = call.int("padding_idx", -1)?;
    if padding >= 0 {
        let rows = call.b().iota(TensorType::new(DType::I64, shape.clone()), 0)?;
        let at = call.b().full_like(rows, padding as f64)?;
        let is_padding = call.b().compare(Direction::Eq, rows, at)?;
        let fixed = call.b().stop_gradient(table)?;
        table = call.b().select(is_padding, fixed, table)?;
    }
    let own = call.shape(ids);
    let result = [&own[..], &shape[1..]].concat();
    call.check_size(&result)?;
    let Some((start, step)) = range_of(call, ids, shape[0]) else {
        return super::one(call.b().composite(&EMBEDDING, &[], &[table, ids])?);
    };
    // Rows in order are a slice, whose gradient is a pad; a gather of them would have a scatter.
    let last = own.len() - 1;
    let limit = start + (own[last] - 1) * step + 1;
    let slice = Slice { start: vec![start, 0], limit: vec![limit, shape[1]], stride: vec![step, 1] };
    let rows = match (start, step, own[last]) {
        (0, 1, count) if count == shape[0] => table,
        _ => call.b().push1(slice, &[table])?,
    };
    super::one(match last {
        0 => rows,
        _ => call.b().broadcast_in_dim(rows, &result, &[last, last + 1])?,
    })
}

/// The table, with the gradient of each row divided by the number of ids in the batch that choose it.
fn shared_by_uses(call: &mut Call, table: ValueId, ids: ValueId) -> Result<ValueId> {
    let (ty, count) = (call.ty(table), call.shape(ids).iter().product());
    let vectors = convert(call, ids, DType::I64)?;
    let vectors = call.b().reshape(vectors, &[count, 1])?;
    let zeros = call.b().full(&TensorType::new(ty.dtype, vec![ty.shape[0]]), 0.0)?;
    let ones = call.b().full(&TensorType::new(ty.dtype, vec![count]), 1.0)?;
    let scatter = Scatter {
        dims: ScatterDims {
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        },
        update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
        indices_are_sorted: false,
        unique_indices: false,
    };
    let uses = call.b().push1(scatter, &[zeros, vectors, ones])?;
    let least = call.b().full_like(uses, 1.0)?;
    let uses = call.b().maximum(uses, least)?;
    let uses = call.b().broadcast_in_dim(uses, &ty.shape, &[0])?;
    // The same values: what is added is 0, and carries the gradient.
    let fixed = call.b().stop_gradient(table)?;
    let nothing = call.b().subtract(table, fixed)?;
    let share = call.b().divide(nothing, uses)?;
    call.b().add(fixed, share)
}

/// The ids that are known at import and are `start, start + step, ..` in every row, with steps of at least 1.
fn range_of(call: &Call, ids: ValueId, rows: usize) -> Option<(usize, usize)> {
    let shape = call.shape(ids);
    let count = *shape.last().filter(|&&count| count > 0)?;
    let values = call.known(ids)?.to_f64();
    let (first, second) = (values.first()?, values.get(1).filter(|_| count > 1));
    let step = second.map_or(1.0, |second| second - first);
    let in_order = values.iter().enumerate().all(|(at, &id)| id == first + (at % count) as f64 * step);
    let last = first + (count - 1) as f64 * step;
    (in_order && *first >= 0.0 && step >= 1.0 && last < rows as f64)
        .then_some((*first as usize, step as usize))
}

/// The rows of each bag, summed (mode 0) or averaged (1): bag `b` has the ids from `offsets[b]` to the next offset.
/// A matrix that tells which ids a bag has is multiplied with their rows.
fn bags(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (table, ids) = table_and_ids(call)?;
    let mode = call.int("mode", 0)?;
    if !(0..=1).contains(&mode) {
        return Err(call.unsupported("the mode `sum` or `mean`", "`max`"));
    }
    let (shape, offsets) = (call.shape(table), call.tensor("offsets")?);
    let ([count], [given]) = (&call.shape(ids)[..], &call.shape(offsets)[..]) else {
        return Err(call.unsupported("ids [n] and offsets [bags]", call.ty(ids).to_string()));
    };
    let (count, given) = (*count, *given);
    let ends_given = call.flag("include_last_offset", false)?;
    let Some(number) = given.checked_sub(usize::from(ends_given)).filter(|&number| number > 0) else {
        return Err(call.unsupported("at least one bag", "none"));
    };
    call.check_size(&[count, shape[1]])?;
    call.check_size(&[number, count])?;
    let offsets = convert(call, offsets, DType::I64)?;
    let starts = call.b().slice_dim(offsets, 0, 0, number)?;
    let later = call.b().slice_dim(offsets, 0, 1, given)?;
    let ends = if ends_given {
        later
    } else {
        let end = call.b().constant(Literal::splat_int(&TensorType::new(DType::I64, [1]), count as i128));
        call.b().concatenate(&[later, end], 0)?
    };
    let table_of =
        |call: &mut Call, vector: ValueId| call.b().broadcast_in_dim(vector, &[number, count], &[0]);
    let (starts, ends) = (table_of(call, starts)?, table_of(call, ends)?);
    let position = call.b().iota(TensorType::new(DType::I64, [number, count]), 1)?;
    let begun = call.b().compare(Direction::Ge, position, starts)?;
    let not_ended = call.b().compare(Direction::Lt, position, ends)?;
    let is_in = call.b().binary(partita_ir::ops::BinaryKind::And, begun, not_ended)?;
    let sums = wide(dtype);
    let mut member = convert(call, is_in, sums)?;
    let padding = call.int("padding_idx", -1)?;
    let padding = if padding < 0 && call.op().ends_with(".padding_idx") && call.has("padding_idx") {
        padding + shape[0] as i64
    } else {
        padding
    };
    if padding >= 0 {
        let none = call.b().full_like(ids, padding as f64)?;
        let counts = call.b().compare(Direction::Ne, ids, none)?;
        let counts = convert(call, counts, sums)?;
        let counts = call.b().broadcast_in_dim(counts, &[number, count], &[1])?;
        member = call.b().multiply(member, counts)?;
    }
    let mut weight = member;
    if call.has("per_sample_weights") {
        let weights = operand(call, "per_sample_weights", sums)?;
        let weights = call.b().broadcast_in_dim(weights, &[number, count], &[1])?;
        weight = call.b().multiply(member, weights)?;
    }
    let rows = picked(call, table, ids, 0)?;
    let rows = convert(call, rows, sums)?;
    let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
    let mut y = call.b().dot_general(weight, rows, dims)?;
    if mode == 1 {
        // The mean of an empty bag is 0.
        let sizes = call.b().reduce_sum(member, &[1])?;
        let one = call.b().full_like(sizes, 1.0)?;
        let sizes = call.b().maximum(sizes, one)?;
        let sizes = call.b().broadcast_in_dim(sizes, &[number, shape[1]], &[0])?;
        y = call.b().divide(y, sizes)?;
    }
    Ok(vec![Out::Value(convert(call, y, dtype)?), Out::Absent, Out::Absent, Out::Absent])
}
