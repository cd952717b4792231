//! Emits the steps of a reshard as ops of the local graphs.

use super::shards::RankTable;
use super::{Emitter, Stop};
use partita_base::{DType, Result};
use partita_ir::builder::identity;
use partita_ir::ops::{
    AllGather, AllReduce, AllToAll, BroadcastInDim, CollectivePermute, DynamicSlice, PartitionId,
    ReduceScatter, Select,
};
use partita_ir::{GraphBuilder, Literal, Op, TensorType, ValueId};
use partita_mesh::{AxisRef, Combiner, ReshardStep, Sharding, Step, permute_pairs};
use std::collections::BTreeMap;

impl Emitter<'_> {
    pub(super) fn emit_step(
        &mut self,
        before: &Sharding,
        step: &ReshardStep,
        ty: &TensorType,
        local: ValueId,
    ) -> std::result::Result<ValueId, Stop> {
        let mesh = self.mesh;
        let after = &step.after;
        let types = self.local_types(after, ty)?;
        let mut result = local;
        for (class, local_type) in types.into_iter().enumerate() {
            let op: Op = match &step.step {
                Step::Slice { dim, .. } => {
                    let table = self.shards.within(&before.dims[*dim], &after.dims[*dim], ty.shape[*dim]);
                    let rank_of_tensor = ty.rank();
                    let start =
                        lookup(&mut self.builders[class], &mut self.tables[class], DType::I64, &table)?;
                    let zero = self.builders[class].scalar(DType::I64, 0.0);
                    let mut operands = vec![local];
                    operands.extend((0..rank_of_tensor).map(|d| if d == *dim { start } else { zero }));
                    let op = DynamicSlice { sizes: local_type.shape.clone() };
                    result = self.builders[class].push_typed(op, &operands, vec![local_type])[0];
                    continue;
                }
                Step::ToPartial { axes, combiner } => {
                    let table = self.shards.leads(axes);
                    let builder = &mut self.builders[class];
                    let leader = lookup(builder, &mut self.tables[class], DType::Bool, &table)?;
                    result = leader_or_identity(builder, leader, local, *combiner)?;
                    continue;
                }
                Step::AllReduce { axes, combiner } => {
                    AllReduce { groups: self.shards.groups(axes), combiner: *combiner }.into()
                }
                Step::AllGather { dim, axes } => {
                    let mine = self.extents(class, before, ty, *dim, axes)?;
                    AllGather { dim: *dim, groups: self.shards.groups(axes), extents: mine }.into()
                }
                Step::ReduceScatter { dim, axes, combiner } => {
                    let mine = self.extents(class, after, ty, *dim, axes)?;
                    let groups = self.shards.groups(axes);
                    ReduceScatter { dim: *dim, groups, combiner: *combiner, extents: mine }.into()
                }
                Step::AllToAll { from_dim, to_dim, axes } => {
                    let cut = self.extents(class, after, ty, *to_dim, axes)?;
                    let join = self.extents(class, before, ty, *from_dim, axes)?;
                    AllToAll {
                        split_dim: *to_dim,
                        concat_dim: *from_dim,
                        groups: self.shards.groups(axes),
                        split_extents: cut,
                        concat_extents: join,
                    }
                    .into()
                }
                Step::Permute {} => {
                    CollectivePermute { pairs: permute_pairs(mesh, before, after, &ty.shape) }.into()
                }
            };
            result = self.builders[class].push_typed(op, &[local], vec![local_type])[0];
        }
        Ok(result)
    }
}

impl Emitter<'_> {
    /// The extents of a dimension on the members of a group over `axes`, which must agree for all
    /// groups of a class.
    fn extents(
        &self,
        class: usize,
        sharding: &Sharding,
        ty: &TensorType,
        dim: usize,
        axes: &[AxisRef],
    ) -> std::result::Result<Vec<usize>, Stop> {
        let pieces = self.shards.pieces(&sharding.dims[dim], ty.shape[dim]);
        if pieces.is_even {
            return Ok(vec![pieces.extents[0]; self.mesh.axes_size(axes)]);
        }
        let groups = self.shards.in_groups(&sharding.dims[dim], ty.shape[dim], axes);
        let list = match groups.of_class[class] {
            Some(list) => list,
            None => self.same_for_class(class, |rank| groups.of_rank[rank])?,
        };
        Ok(groups.lists[list].clone())
    }
}

/// Looks up this rank's scalar in a table over all ranks; a plain constant if all entries are
/// equal.
pub(super) fn lookup(
    builder: &mut GraphBuilder,
    tables: &mut BTreeMap<(DType, usize), ValueId>,
    dtype: DType,
    table: &RankTable,
) -> Result<ValueId> {
    let key = (dtype, table.id);
    if let Some(&value) = tables.get(&key) {
        return Ok(value);
    }
    let table = &table.values;
    let value = if table.iter().all(|t| *t == table[0]) {
        builder.scalar(dtype, table[0] as f64)
    } else {
        let ty = TensorType::new(dtype, [table.len()]);
        let all = builder.constant(Literal::from_f64(&ty, table.iter().map(|&t| t as f64)));
        let rank = builder.push1(PartitionId, &[])?;
        let rank = builder.convert(rank, DType::I64)?;
        let mine = builder.push1(DynamicSlice { sizes: vec![1] }, &[all, rank])?;
        builder.reshape(mine, &[])?
    };
    tables.insert(key, value);
    Ok(value)
}

/// The value on the leader, the combiner's identity elsewhere.
fn leader_or_identity(
    builder: &mut GraphBuilder,
    leader: ValueId,
    value: ValueId,
    combiner: Combiner,
) -> Result<ValueId> {
    let ty = builder.ty(value).clone();
    let scalar = builder.constant(identity(combiner, ty.dtype));
    let nothing = if ty.rank() == 0 {
        scalar
    } else {
        builder.push1(BroadcastInDim { shape: ty.shape.clone(), dims: vec![] }, &[scalar])?
    };
    builder.push1(Select, &[leader, value, nothing])
}
