//! Collectives of `torch.distributed` (`_c10d_functional`), as traces of one rank of a group call them.
//!
//! They become the collectives of the IR over a group of the ranks `0..n`; [`crate::pt2::ranks`] then turns the program of
//! one rank into that of all. Waiting for a result is the identity.

use super::{Rows, one};
use crate::pt2::call::{Call, Outs};
use partita_base::{DType, Result};
use partita_ir::ops::{AllGather, AllReduce, AllToAll, CollectiveBroadcast, Groups, ReduceScatter};
use partita_ir::{Op, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("_c10d_functional.all_reduce.default", all_reduce),
    ("_c10d_functional.all_gather_into_tensor.default", all_gather),
    ("_c10d_functional.reduce_scatter_tensor.default", reduce_scatter),
    ("_c10d_functional.broadcast.default", broadcast),
    ("_c10d_functional.all_to_all_single.default", all_to_all),
    ("_c10d_functional.wait_tensor.default", |c| c.view("tensor", Vec::new())),
    ("_c10d_functional_autograd.all_gather_into_tensor.default", all_gather),
    ("_c10d_functional_autograd.reduce_scatter_tensor.default", reduce_scatter),
    ("_c10d_functional_autograd.all_to_all_single.default", all_to_all),
];

fn everyone(call: &Call) -> Result<(usize, Groups)> {
    let ranks = call.ranks()?;
    Ok((ranks, vec![(0..ranks).collect::<Vec<usize>>()].into()))
}

/// The combiner of an argument `reduce_op`, and whether the sum is to be divided by the number of ranks.
fn combiner(call: &Call, dtype: DType) -> Result<(Combiner, bool)> {
    let name = call.text("reduce_op", "sum")?.to_lowercase();
    match name.as_str() {
        "sum" => Ok((Combiner::Sum, false)),
        "avg" if dtype.is_float() => Ok((Combiner::Sum, true)),
        "max" => Ok((Combiner::Max, false)),
        "min" => Ok((Combiner::Min, false)),
        "product" => Ok((Combiner::Prod, false)),
        _ => Err(call.unsupported("sum, avg (of floats), max, min or product as `reduce_op`", name.clone())),
    }
}

/// Dimension 0 of a tensor, which the collectives of PyTorch gather and scatter.
fn rows(call: &Call, x: ValueId) -> Result<usize> {
    let shape = call.shape(x);
    shape.first().copied().ok_or_else(|| call.unsupported("a tensor with a dimension 0", "a scalar"))
}

/// The collective, and its result divided by the number of ranks for averages.
fn reduced(call: &mut Call, op: impl Into<Op>, x: ValueId, ranks: usize, averages: bool) -> Outs {
    let y = call.b().push1(op, &[x])?;
    one(if averages { call.b().scale(y, 1.0 / ranks as f64)? } else { y })
}

fn all_reduce(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    let (ranks, groups) = everyone(call)?;
    let (combiner, averages) = combiner(call, call.ty(x).dtype)?;
    reduced(call, AllReduce { groups, combiner }, x, ranks, averages)
}

fn reduce_scatter(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    let (ranks, groups) = everyone(call)?;
    let (combiner, averages) = combiner(call, call.ty(x).dtype)?;
    let rows = rows(call, x)?;
    if !rows.is_multiple_of(ranks) {
        return Err(call.unsupported(&format!("rows that {ranks} ranks divide"), rows.to_string()));
    }
    let op = ReduceScatter { dim: 0, groups, combiner, extents: vec![rows / ranks; ranks] };
    reduced(call, op, x, ranks, averages)
}

fn all_gather(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    let (ranks, groups) = everyone(call)?;
    let rows = rows(call, x)?;
    let mut gathered = call.shape(x);
    gathered[0] = rows.saturating_mul(ranks);
    call.check_size(&gathered)?;
    one(call.b().push1(AllGather { dim: 0, groups, extents: vec![rows; ranks] }, &[x])?)
}

/// The value of the rank `src`, which is the first of its group for the IR.
fn broadcast(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    let (ranks, _) = everyone(call)?;
    let source = call.required_int("src")?;
    let Some(source) = usize::try_from(source).ok().filter(|&source| source < ranks) else {
        return Err(call.unsupported(&format!("a rank below {ranks} as `src`"), source.to_string()));
    };
    let group: Vec<usize> =
        std::iter::once(source).chain((0..ranks).filter(|&rank| rank != source)).collect();
    one(call.b().push1(CollectiveBroadcast { groups: vec![group].into() }, &[x])?)
}

fn all_to_all(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    let (ranks, groups) = everyone(call)?;
    let rows = rows(call, x)?;
    let parts = vec![rows / ranks; ranks];
    for name in ["input_split_sizes", "output_split_sizes"] {
        let sizes = call.extents(&call.ints(name)?)?;
        if sizes != parts || !rows.is_multiple_of(ranks) {
            return Err(call.unsupported(&format!("{ranks} equal parts as `{name}`"), format!("{sizes:?}")));
        }
    }
    let op =
        AllToAll { split_dim: 0, concat_dim: 0, groups, split_extents: parts.clone(), concat_extents: parts };
    one(call.b().push1(op, &[x])?)
}
