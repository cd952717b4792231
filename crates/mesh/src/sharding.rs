//! Shardings: the layout of one tensor on a mesh.

use crate::mesh::{AxisList, AxisRef, Mesh};
use crate::split::{piece, primes, split_extents};
use partita_base::{Combiner, Diagnostic, Result};

/// How one dimension is split: see [`split_extents`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DimSharding {
    /// The axes that split it, major to minor.
    pub axes: AxisList,
    /// The block of elements that the split does not break, 1 by default. Divides the dimension.
    pub unit: usize,
    /// The number of minor-most axes that split by single elements instead of by units, 0 by
    /// default: the axes over which a tensor is only stored in shards that no op computes with.
    pub by_element: usize,
}

/// The layout of one tensor on a mesh: the axes that split each dimension, and the axes over which
/// the value is partial. Along all other axes the tensor is replicated.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Sharding {
    /// One per tensor dimension.
    pub dims: Vec<DimSharding>,
    /// Axes over which the value is still to be combined, sorted. All have the same combiner,
    /// because a sum of maxima is not a maximum of sums.
    pub partial: Vec<(AxisRef, Combiner)>,
}

impl DimSharding {
    /// A dimension that is not split.
    pub fn whole() -> DimSharding {
        DimSharding::over([])
    }

    /// A dimension split along these axes, major to minor, with unit 1.
    pub fn over(axes: impl IntoIterator<Item = AxisRef>) -> DimSharding {
        DimSharding { axes: axes.into_iter().collect(), unit: 1, by_element: 0 }
    }

    /// The axes that split by units, and those after them, which split by single elements.
    pub fn by_granularity(&self) -> (&[AxisRef], &[AxisRef]) {
        self.axes.split_at(self.axes.len().saturating_sub(self.by_element))
    }

    /// The same dimension with only its `count` major axes.
    pub(crate) fn truncated(&self, count: usize) -> DimSharding {
        let (in_units, _) = self.by_granularity();
        DimSharding {
            axes: AxisList::from_slice(&self.axes[..count]),
            unit: if count == 0 { 1 } else { self.unit },
            by_element: count.saturating_sub(in_units.len()),
        }
    }

    /// The extents of the shards of a dimension of `size` elements, by [`split_extents`].
    pub fn extents(&self, size: usize) -> Vec<usize> {
        let (in_units, by_element) = self.by_granularity();
        let pieces = split_extents(size, self.unit, in_units);
        match by_element.is_empty() {
            true => pieces,
            false => pieces.iter().flat_map(|&piece| split_extents(piece, 1, by_element)).collect(),
        }
    }

    /// The extent of every shard of a dimension of `size` elements, if all are equal.
    pub fn even_extent(&self, size: usize) -> Option<usize> {
        let count = |axes: &[AxisRef]| axes.iter().map(|axis| axis.size).product::<usize>();
        let (in_units, by_element) = self.by_granularity();
        let (units, ways) = (size / self.unit, count(in_units));
        let piece = units.is_multiple_of(ways).then(|| units / ways * self.unit)?;
        let ways = count(by_element);
        piece.is_multiple_of(ways).then(|| piece / ways)
    }

    /// The extent of the shard at position 0, which is the largest.
    fn largest(&self, size: usize) -> usize {
        let nested = |length: usize, axes: &[AxisRef]| {
            axes.iter()
                .flat_map(|axis| primes(axis.size))
                .fold(length, |length, prime| length.div_ceil(prime))
        };
        let (in_units, by_element) = self.by_granularity();
        nested(nested(size / self.unit, in_units) * self.unit, by_element)
    }

    /// Whether two splits over the same axes, or parts of them, give equal shards of a dimension of
    /// `size` elements.
    fn cuts_as(&self, other: &DimSharding, size: usize) -> bool {
        match (self.even_extent(size), other.even_extent(size)) {
            (None, None) if self.largest(size) != other.largest(size) => false,
            (None, None) if self.axes == other.axes && self.unit.min(other.unit) == 1 => {
                // Compare the splits by units; splits by single elements nest in equal shards
                // alike.
                let whole = if self.unit == 1 { other } else { self };
                let (in_units, _) = whole.by_granularity();
                split_extents(size, whole.unit, in_units) == split_extents(size, 1, in_units)
            }
            (None, None) => self.extents(size) == other.extents(size),
            // Both have the same number of shards.
            (one, two) => one == two,
        }
    }

    /// The offset and extent of one rank's shard of a dimension of `size` elements.
    pub(crate) fn piece(&self, mesh: &Mesh, size: usize, rank: usize) -> (usize, usize) {
        let (in_units, by_element) = self.by_granularity();
        let (start, length) = piece(mesh, size, self.unit, in_units, rank);
        let (offset, extent) = piece(mesh, length, 1, by_element, rank);
        (start + offset, extent)
    }
}

impl Sharding {
    /// The same layout, given on mesh `from`, in the axes of mesh `to`; `None` if these cannot
    /// express it.
    pub fn on_mesh(&self, from: &Mesh, to: &Mesh) -> Option<Sharding> {
        if !from.has_devices_of(to) {
            return None;
        }
        let axes_on = |axes: &[AxisRef]| -> Option<AxisList> {
            let mut list = AxisList::new();
            for &axis in axes {
                list.extend(from.axis_on(axis, to)?);
            }
            Some(list)
        };
        let mut dims = Vec::with_capacity(self.dims.len());
        for dim in &self.dims {
            let (whole, by_element) = dim.by_granularity();
            let (mut axes, minor) = (axes_on(whole)?, axes_on(by_element)?);
            let by_element = minor.len();
            axes.extend(minor);
            dims.push(DimSharding { axes, unit: dim.unit, by_element });
        }
        let mut partial = Vec::new();
        for &(axis, combiner) in &self.partial {
            partial.extend(axes_on(&[axis])?.into_iter().map(|axis| (axis, combiner)));
        }
        partial.sort();
        Some(Sharding { dims, partial })
    }

    /// A tensor of `rank` dimensions, replicated on every rank.
    pub fn replicated(rank: usize) -> Sharding {
        Sharding { dims: vec![DimSharding::whole(); rank], partial: Vec::new() }
    }

    /// Whether the layout is neither sharded nor partial.
    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(|d| d.axes.is_empty())
    }

    /// Whether the value is still to be combined over some axis.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The axes that split dimensions, dimension by dimension.
    pub fn sharded_axes(&self) -> AxisList {
        self.dims.iter().flat_map(|d| d.axes.iter().copied()).collect()
    }

    /// The axes over which the value is partial.
    pub fn partial_axes(&self) -> AxisList {
        self.partial.iter().map(|&(axis, _)| axis).collect()
    }

    /// The combiner of a partial value.
    pub fn combiner(&self) -> Option<Combiner> {
        self.partial.first().map(|&(_, combiner)| combiner)
    }

    /// Whether the axis, or one that overlaps it, splits a dimension or is partial.
    pub fn uses_axis(&self, axis: AxisRef) -> bool {
        self.sharded_axes().iter().chain(&self.partial_axes()).any(|used| used.overlaps(axis))
    }

    /// Replaces the axes that split `dim` (major to minor).
    pub fn with_dim(mut self, dim: usize, axes: impl IntoIterator<Item = AxisRef>) -> Sharding {
        self.dims[dim].axes = axes.into_iter().collect();
        self
    }

    /// Sets the unit of `dim`.
    pub fn with_unit(mut self, dim: usize, unit: usize) -> Sharding {
        self.dims[dim].unit = unit;
        self
    }

    /// Makes this number of minor-most axes of `dim` split by single elements.
    pub fn with_by_element(mut self, dim: usize, count: usize) -> Sharding {
        self.dims[dim].by_element = count;
        self
    }

    /// Adds axes over which the value is partial.
    pub fn with_partial(mut self, axes: impl IntoIterator<Item = AxisRef>, combiner: Combiner) -> Sharding {
        self.partial.extend(axes.into_iter().map(|axis| (axis, combiner)));
        self.partial.sort();
        self
    }

    /// Brings the sharding into the canonical form among those that are equal for every shape: no
    /// axes of size 1, adjacent parts of an axis merged wherever that changes no split, partial
    /// axes merged and sorted, unit 1 on dimensions that no axis splits by units.
    pub fn canonicalise(&mut self, _mesh: &Mesh) {
        for dim in &mut self.dims {
            let (in_units, by_element) = dim.by_granularity();
            let (mut axes, by_element) = (merged(in_units), merged(by_element));
            (dim.unit, dim.by_element) = match (axes.is_empty(), dim.unit) {
                (true, _) | (_, 1) => (1, 0),
                (false, unit) => (unit, by_element.len()),
            };
            axes.extend(by_element);
            dim.axes = if dim.unit == 1 { merged(&axes) } else { axes };
        }
        self.partial.sort();
        let mut partial: Vec<(AxisRef, Combiner)> = Vec::new();
        for &(axis, combiner) in self.partial.iter().filter(|(axis, _)| axis.size > 1) {
            match partial
                .last_mut()
                .filter(|(_, c)| *c == combiner)
                .and_then(|(last, _)| Some((last.joined(axis)?, last)))
            {
                Some((joined, last)) => *last = joined,
                None => partial.push((axis, combiner)),
            }
        }
        self.partial = partial;
    }

    /// As [`Sharding::canonicalise`], for one shape: unit 1 and merged parts of an axis wherever
    /// the split stays the same for this shape.
    pub fn normalise(&mut self, mesh: &Mesh, shape: &[usize]) {
        self.canonicalise(mesh);
        for (dim, &size) in self.dims.iter_mut().zip(shape) {
            let given = dim.clone();
            let same = |other: &DimSharding| other.cuts_as(&given, size);
            if dim.unit != 1 {
                let simpler = [(1, 0), (dim.unit, 0)].map(|(unit, by_element)| DimSharding {
                    unit,
                    by_element,
                    axes: dim.axes.clone(),
                });
                if let Some(simpler) = simpler.into_iter().find(|simpler| simpler != dim && same(simpler)) {
                    *dim = simpler;
                }
            }
            let mut at = 1;
            while at < dim.axes.len() {
                let mut fewer = dim.clone();
                let minor = fewer.axes.remove(at);
                let within = at != dim.axes.len() - dim.by_element;
                match fewer.axes[at - 1].joined(minor).filter(|_| within) {
                    Some(joined) => fewer.axes[at - 1] = joined,
                    None => fewer.axes.clear(),
                }
                fewer.by_element -= usize::from(at > dim.axes.len() - dim.by_element);
                if !fewer.axes.is_empty() && same(&fewer) {
                    *dim = fewer;
                } else {
                    at += 1;
                }
            }
        }
    }

    /// Whether every rank holds the same elements under both, partial over the same axes in the
    /// same way.
    pub fn same_layout(&self, other: &Sharding, mesh: &Mesh, shape: &[usize]) -> bool {
        if self == other {
            return true;
        }
        let (mut one, mut two) = (self.clone(), other.clone());
        one.normalise(mesh, shape);
        two.normalise(mesh, shape);
        if one.partial != two.partial || one.dims.len() != two.dims.len() {
            return false;
        }
        let differing = |(i, _): &(usize, &usize)| one.dims[*i] != two.dims[*i];
        shape.iter().enumerate().filter(differing).all(|(i, &size)| {
            let held = |d: &DimSharding, rank| Some(d.piece(mesh, size, rank)).filter(|p| p.1 > 0);
            (0..mesh.rank_count()).all(|rank| held(&one.dims[i], rank) == held(&two.dims[i], rank))
        })
    }

    /// Checks that the sharding fits a mesh and a global shape.
    ///
    /// # Errors
    /// E210 another number of dimensions, E211 an axis that the mesh does not have, E212 an axis
    /// used twice, E213 a unit that does not divide its dimension, E214 partial with different
    /// combiners.
    pub fn validate(&self, mesh: &Mesh, shape: &[usize]) -> Result<()> {
        if self.dims.len() != shape.len() {
            return Err(Diagnostic::new(
                "E210",
                format!("a sharding of {} dimensions on a tensor of shape {shape:?}", self.dims.len()),
            )
            .expected(format!("{} dimensions", shape.len()))
            .found(format!("{} dimensions", self.dims.len())));
        }
        let uses = self.uses();
        for (axis, place) in &uses {
            let size = mesh.axes.get(axis.axis).map(|a| a.size);
            if !size.is_some_and(|n| axis.end() > 0 && n.is_multiple_of(axis.end())) {
                return Err(Diagnostic::new(
                    "E211",
                    format!("{place} of shape {shape:?} uses an axis that the mesh does not have"),
                )
                .expected(format!("an axis, or a part of one, of mesh {mesh}"))
                .found(format!("axis {}:({}){}", axis.axis, axis.pre, axis.size)));
            }
        }
        for (i, (axis, place)) in uses.iter().enumerate() {
            if let Some((earlier, first)) = uses[..i].iter().find(|(earlier, _)| earlier.overlaps(*axis)) {
                let names = [mesh.display_axis(*earlier), mesh.display_axis(*axis)];
                let message = if names[0] == names[1] {
                    format!("mesh axis `{}` is used twice on shape {shape:?}", names[0])
                } else {
                    format!("mesh axes `{}` and `{}` overlap on shape {shape:?}", names[0], names[1])
                };
                return Err(Diagnostic::new("E212", message)
                    .expected("each axis at most once: on one dimension, or partial")
                    .found(format!("{first} and {place}, in {}", self.display(mesh)))
                    .help(format!("use another axis of {mesh} for one of them")));
            }
        }
        for (i, (dim, &size)) in self.dims.iter().zip(shape).enumerate() {
            if dim.unit == 0 || !size.is_multiple_of(dim.unit) {
                let axes = mesh.display_axes(&dim.axes);
                return Err(Diagnostic::new(
                    "E213",
                    format!(
                        "dimension {i} of shape {shape:?} cannot be sharded along {{{axes}}} in units of {}",
                        dim.unit
                    ),
                )
                .expected(format!("a unit that divides {size}"))
                .found(dim.unit.to_string()));
            }
        }
        if self.partial.iter().any(|&(_, c)| Some(c) != self.combiner()) {
            return Err(Diagnostic::new(
                "E214",
                format!("shape {shape:?} is partial with different combiners"),
            )
            .expected("one combiner for all partial axes")
            .found(self.display(mesh)));
        }
        Ok(())
    }

    /// The shape of the shard that `rank` holds of a tensor of this global shape.
    pub fn local_shape(&self, mesh: &Mesh, shape: &[usize], rank: usize) -> Vec<usize> {
        self.pieces(mesh, shape, rank).map(|(_, extent)| extent).collect()
    }

    /// The offset of the shard that `rank` holds in the global tensor, per dimension.
    pub fn local_offset(&self, mesh: &Mesh, shape: &[usize], rank: usize) -> Vec<usize> {
        self.pieces(mesh, shape, rank).map(|(offset, _)| offset).collect()
    }

    /// The number of elements of the largest shard, which is that of rank 0.
    pub fn largest_local_elements(&self, mesh: &Mesh, shape: &[usize]) -> usize {
        self.local_shape(mesh, shape, 0).iter().product()
    }

    /// Whether all shards have the same shape.
    pub fn is_even(&self, shape: &[usize]) -> bool {
        self.dims.iter().zip(shape).all(|(dim, &size)| {
            let extents = dim.extents(size);
            extents.iter().all(|e| *e == extents[0])
        })
    }

    /// `[{dp}, {tp}, {}] partial={tp: sum}`; a part of an axis as `tp:(1)2`, a unit as `{tp;
    /// unit=4}`, axes that split by single elements after one that splits by units as `{tp; unit=4;
    /// fsdp}`.
    pub fn display(&self, mesh: &Mesh) -> String {
        let dim = |d: &DimSharding| match (d.unit, d.by_granularity()) {
            (1, _) | (_, ([], _)) => format!("{{{}}}", mesh.display_axes(&d.axes)),
            (unit, (in_units, [])) => format!("{{{}; unit={unit}}}", mesh.display_axes(in_units)),
            (unit, (in_units, by_element)) => {
                format!("{{{}; unit={unit}; {}}}", mesh.display_axes(in_units), mesh.display_axes(by_element))
            }
        };
        let dims: Vec<String> = self.dims.iter().map(dim).collect();
        let partial: Vec<String> =
            self.partial.iter().map(|&(a, c)| format!("{}: {c}", mesh.display_axis(a))).collect();
        match partial.is_empty() {
            true => format!("[{}]", dims.join(", ")),
            false => format!("[{}] partial={{{}}}", dims.join(", "), partial.join(", ")),
        }
    }

    /// Every use of an axis, with a phrase for messages.
    fn uses(&self) -> Vec<(AxisRef, String)> {
        let dims = self.dims.iter().enumerate();
        let cuts = dims.flat_map(|(i, d)| d.axes.iter().map(move |&axis| (axis, format!("dimension {i}"))));
        cuts.chain(self.partial.iter().map(|&(axis, c)| (axis, format!("the partial {c}")))).collect()
    }

    fn pieces<'a>(
        &'a self,
        mesh: &'a Mesh,
        shape: &'a [usize],
        rank: usize,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.dims.iter().zip(shape).map(move |(d, &size)| d.piece(mesh, size, rank))
    }
}

/// The axes without those of size 1, and with adjacent parts of an axis merged if their primes
/// ascend: the merged axis then splits every dimension in the same way.
pub(crate) fn merged(axes: &[AxisRef]) -> AxisList {
    let mut out = AxisList::new();
    for &axis in axes.iter().filter(|axis| axis.size > 1) {
        let ascends = |last: &AxisRef| primes(last.size).last() <= primes(axis.size).next();
        match out.last_mut().filter(|last| ascends(last)).and_then(|last| Some((last.joined(axis)?, last))) {
            Some((joined, last)) => *last = joined,
            None => out.push(axis),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        Mesh::new("m", &[("dp", 2), ("tp", 4), ("six", 6), ("one", 1)])
    }

    fn part(axis: usize, pre: usize, size: usize) -> AxisRef {
        AxisRef { axis, pre, size }
    }

    #[test]
    fn shardings_print_in_the_field_s_notation() {
        let m = mesh();
        let s = Sharding::replicated(3)
            .with_dim(0, [m.full_axis(0), part(1, 1, 2)])
            .with_dim(1, [m.full_axis(2)]);
        let s = s.with_unit(1, 4).with_partial([part(1, 2, 2)], Combiner::Sum);
        assert_eq!(s.display(&m), "[{dp, tp:(1)2}, {six; unit=4}, {}] partial={tp:(2)2: sum}");
    }

    #[test]
    fn canonical_form_merges_what_splits_alike_and_nothing_else() {
        let m = mesh();
        let canonical = |axes: &[AxisRef]| {
            let mut s = Sharding::replicated(1).with_dim(0, axes.iter().copied());
            s.canonicalise(&m);
            s.dims[0].axes.to_vec()
        };
        assert_eq!(canonical(&[part(1, 1, 2), part(1, 2, 2)]), [m.full_axis(1)]);
        assert_eq!(canonical(&[part(1, 2, 2), part(1, 1, 2)]), [part(1, 2, 2), part(1, 1, 2)]);
        assert_eq!(canonical(&[part(2, 1, 2), part(2, 2, 3)]), [m.full_axis(2)]);
        assert_eq!(canonical(&[part(2, 1, 3), part(2, 3, 2)]), [part(2, 1, 3), part(2, 3, 2)]);
        assert_eq!(canonical(&[part(1, 1, 2), m.full_axis(3), part(1, 2, 2)]), [m.full_axis(1)]);
        let mut partial = Sharding::replicated(0).with_partial([part(2, 3, 2), part(2, 1, 3)], Combiner::Max);
        partial.canonicalise(&m);
        assert_eq!(partial.partial, [(m.full_axis(2), Combiner::Max)]);
    }

    #[test]
    fn canonical_form_never_changes_what_a_rank_holds() {
        let m = mesh();
        for axes in [
            vec![part(2, 1, 3), part(2, 3, 2)],
            vec![part(2, 1, 2), part(2, 2, 3)],
            vec![part(2, 2, 3), m.full_axis(0)],
        ] {
            for size in (0..30).step_by(2) {
                for unit in [1, 2] {
                    let before = Sharding::replicated(1).with_dim(0, axes.clone()).with_unit(0, unit);
                    let mut after = before.clone();
                    after.normalise(&m, &[size]);
                    for rank in 0..m.rank_count() {
                        assert_eq!(
                            before.local_offset(&m, &[size], rank),
                            after.local_offset(&m, &[size], rank)
                        );
                        assert_eq!(
                            before.local_shape(&m, &[size], rank),
                            after.local_shape(&m, &[size], rank)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn units_vanish_only_where_they_change_nothing() {
        let m = mesh();
        let s = Sharding::replicated(1).with_dim(0, [m.full_axis(0)]).with_unit(0, 4);
        let normal = |size| {
            let mut n = s.clone();
            n.normalise(&m, &[size]);
            n.dims[0].unit
        };
        assert_eq!((normal(16), normal(12)), (1, 4));
        let plain = s.clone().with_unit(0, 1);
        assert!(s.same_layout(&plain, &m, &[16]) && !s.same_layout(&plain, &m, &[12]));
    }

    #[test]
    fn different_axes_of_one_size_are_different_layouts() {
        let m = Mesh::new("m", &[("x", 2), ("y", 2)]);
        let over = |axis| Sharding::replicated(1).with_dim(0, [m.full_axis(axis)]);
        assert!(!over(0).same_layout(&over(1), &m, &[8]));
        assert!(over(0).same_layout(&over(1), &m, &[0]), "nothing is nothing on every rank");
    }

    #[test]
    fn bad_shardings_are_told_apart() {
        let m = mesh();
        let (dp, tp) = (m.full_axis(0), m.full_axis(1));
        let two = Sharding::replicated(2);
        let code = |s: Sharding| s.validate(&m, &[8, 6]).unwrap_err().code;
        assert_eq!(code(Sharding::replicated(1)), "E210");
        assert_eq!(code(two.clone().with_dim(0, [part(9, 1, 2)])), "E211");
        assert_eq!(code(two.clone().with_dim(0, [part(1, 1, 3)])), "E211");
        assert_eq!(code(two.clone().with_dim(0, [part(1, 0, 2)])), "E211");
        assert_eq!(code(two.clone().with_dim(0, [dp]).with_dim(1, [dp])), "E212");
        assert_eq!(code(two.clone().with_dim(0, [tp]).with_dim(1, [part(1, 2, 2)])), "E212");
        assert_eq!(code(two.clone().with_dim(0, [tp]).with_partial([tp], Combiner::Sum)), "E212");
        assert_eq!(code(two.clone().with_dim(0, [dp]).with_unit(0, 3)), "E213");
        assert_eq!(
            code(two.clone().with_partial([dp], Combiner::Sum).with_partial([tp], Combiner::Max)),
            "E214"
        );
        assert!(
            two.with_dim(0, [part(1, 1, 2)]).with_dim(1, [part(1, 2, 2), dp]).validate(&m, &[8, 6]).is_ok()
        );
        let error =
            Sharding::replicated(2).with_dim(0, [dp]).with_dim(1, [dp]).validate(&m, &[8, 6]).unwrap_err();
        assert_eq!(error.message, "mesh axis `dp` is used twice on shape [8, 6]");
        assert_eq!(error.found.as_deref(), Some("dimension 0 and dimension 1, in [{dp}, {dp}]"));
    }
}
