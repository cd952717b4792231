//! Sharding groups (`sdy.sharding_group`): values that have one layout, whichever it is. Shardy's rules: a layout that is
//! requested of one value of a group is requested of all, and axes that one receives in propagation spread to the others
//! as if an elementwise op had them all as operands.

use super::{Cause, State};
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, ValueId};
use partita_mesh::AxisList;
use std::collections::BTreeMap;

/// The values of each sharding group. E210 unless those of a group have as many dimensions.
pub(super) fn of(graph: &Graph) -> Result<BTreeMap<u64, Vec<ValueId>>> {
    let mut groups: BTreeMap<u64, Vec<ValueId>> = BTreeMap::new();
    for id in graph.value_ids() {
        let Some(group) = graph.value(id).group else { continue };
        let members = groups.entry(group).or_default();
        let rank = members.first().map_or(graph.ty(id).rank(), |&first| graph.ty(first).rank());
        if graph.ty(id).rank() != rank {
            let what = format!("`{}` cannot have the layout of its sharding group", graph.describe(id));
            return Err(Diagnostic::new("E210", what)
                .expected(format!("{rank} dimensions, as the other values of group {group}"))
                .found(graph.ty(id).to_string()));
        }
        members.push(id);
    }
    Ok(groups)
}

impl State<'_> {
    /// Pins a value and the others of its sharding group.
    pub(super) fn pin_group(&mut self, value: ValueId, annotation: &Annotation) -> Result<()> {
        let group = self.graph.value(value).group.and_then(|group| self.groups.get(&group));
        let others = group.into_iter().flatten().filter(|&&other| other != value).copied();
        let members: Vec<ValueId> = std::iter::once(value).chain(others).collect();
        members.into_iter().try_for_each(|member| self.pin(member, annotation))
    }

    /// Gives the values of each sharding group the axes that no other of them contradicts.
    pub(super) fn unite_groups(&mut self) -> bool {
        let groups = std::mem::take(&mut self.groups);
        let mut changed = false;
        for members in groups.values() {
            let rank = self.graph.ty(members[0]).rank();
            let of = |&value: &ValueId| {
                let axes = self.axes[value.index()].iter().enumerate();
                axes.filter(|(_, axes)| !axes.is_empty()).map(move |(dim, axes)| (dim, axes.clone(), value))
            };
            let chosen = self.agreed(members.iter().flat_map(of).collect(), rank);
            for (dim, choice) in chosen.iter().enumerate() {
                let Some((list, from)) = choice else { continue };
                for &value in members {
                    changed |= self.follow(value, dim, list, *from);
                }
            }
        }
        self.groups = groups;
        changed
    }

    /// Extends the axes of a dimension towards those of another value of the sharding group, as far as possible.
    fn follow(&mut self, value: ValueId, dim: usize, list: &AxisList, from: ValueId) -> bool {
        let index = value.index();
        let have = self.axes[index][dim].len();
        if !self.open[index][dim] || list.len() <= have || list[..have] != self.axes[index][dim][..] {
            return false;
        }
        let mut grown = false;
        for &axis in &list[have..] {
            if !self.is_free(value, &[axis]) {
                break;
            }
            self.axes[index][dim].push(axis);
            self.keep_granularity(from, value, &[axis]);
            self.causes[index][dim].get_or_insert(Cause::Group(from));
            grown = true;
        }
        if grown {
            self.touch(value);
        }
        grown
    }
}
