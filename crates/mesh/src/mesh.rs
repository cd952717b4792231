//! Meshes: named axes over ranks, and references to whole axes or parts of them.

use partita_base::{Diagnostic, Result, did_you_mean};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::num::IntErrorKind;

/// Most ranks of a mesh; the limit keeps tables over all ranks small.
pub const MAX_RANKS: usize = 1 << 24;

/// A named axis of a mesh.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Axis {
    /// Unique within the mesh: `dp`, `tp`.
    pub name: String,
    /// Number of positions along the axis, at least 1.
    pub size: usize,
}

/// Named axes over ranks. Ranks are numbered row-major: the first axis is the major one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Mesh {
    /// The name of the mesh in program text.
    pub name: String,
    /// The axes, major to minor.
    pub axes: Vec<Axis>,
    /// The device of each rank; `None` if rank `n` runs on device `n`.
    pub device_ids: Option<Vec<usize>>,
}

/// An axis or a part of one. An axis of size `n` is viewed as `[pre, size, n / (pre * size)]`,
/// major to minor; the reference is to the middle. The full axis is `pre = 1, size = n`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AxisRef {
    /// Index into [`Mesh::axes`].
    pub axis: usize,
    /// Product of the sizes of all more major parts of the axis.
    pub pre: usize,
    /// Size of this part.
    pub size: usize,
}

/// Axes, major to minor.
pub type AxisList = SmallVec<[AxisRef; 2]>;

impl AxisRef {
    /// `pre * size`: the `pre` of the next more minor part of the axis.
    pub fn end(self) -> usize {
        self.pre * self.size
    }

    /// Whether one tensor cannot use both: they share a part of an axis, or divide it incompatibly
    /// (the halves and the thirds of an axis of 6).
    pub fn overlaps(self, other: AxisRef) -> bool {
        let trivial = self.size == 1 || other.size == 1;
        let apart = other.pre.is_multiple_of(self.end()) || self.pre.is_multiple_of(other.end());
        self.axis == other.axis && !trivial && !apart
    }

    /// Splits the part into its major part of size `first` and the minor rest; `None` unless
    /// `first` divides the size.
    pub fn split(self, first: usize) -> Option<(AxisRef, AxisRef)> {
        if first == 0 || !self.size.is_multiple_of(first) {
            return None;
        }
        let major = AxisRef { size: first, ..self };
        Some((major, AxisRef { pre: major.end(), size: self.size / first, ..self }))
    }

    /// Both as one reference, if `minor` directly follows `self` on the same axis.
    pub fn joined(self, minor: AxisRef) -> Option<AxisRef> {
        (self.axis == minor.axis && self.end() == minor.pre)
            .then_some(AxisRef { size: self.size * minor.size, ..self })
    }
}

impl Mesh {
    /// A mesh of these axes, major to minor.
    pub fn new(name: &str, axes: &[(&str, usize)]) -> Mesh {
        let axes = axes.iter().map(|&(name, size)| Axis { name: name.to_string(), size }).collect();
        Mesh { name: name.to_string(), axes, device_ids: None }
    }

    /// Parses `dp=2,tp=4`. One size may be `-1`: the rest of `device_count`.
    ///
    /// # Errors
    /// E201 no axes, E202 not `name=size`, E203 an axis twice, E204 a size of zero, E205 `-1` twice
    /// or without a device count, E206 the sizes do not divide the device count, E207 too many
    /// ranks.
    pub fn parse(text: &str, device_count: Option<usize>) -> Result<Mesh> {
        if text.trim().is_empty() {
            return Err(Diagnostic::new("E201", "the mesh has no axes").help("write it as `dp=2,tp=2`"));
        }
        let mut axes: Vec<Axis> = Vec::new();
        let mut open = None;
        for entry in text.split(',').map(str::trim) {
            let (name, size) = parse_axis(entry)?;
            if axes.iter().any(|a| a.name == name) {
                return Err(Diagnostic::new("E203", format!("mesh axis `{name}` is given twice")).found(text));
            }
            if size.is_none() && open.replace(axes.len()).is_some() {
                return Err(
                    Diagnostic::new("E205", "only one mesh axis can take the rest (`-1`)").found(text)
                );
            }
            axes.push(Axis { name, size: size.unwrap_or(1) });
        }
        let product = axes.iter().try_fold(1usize, |product, a| product.checked_mul(a.size));
        let known = product.filter(|&p| p <= MAX_RANKS).ok_or_else(|| {
            Diagnostic::new("E207", "the mesh has too many ranks")
                .expected(format!("at most {MAX_RANKS} ranks"))
                .found(text)
        })?;
        if let Some(open) = open {
            let name = &axes[open].name;
            let count = device_count.ok_or_else(|| {
                Diagnostic::new(
                    "E205",
                    format!("`{name}=-1` takes the remaining devices, but their number is unknown"),
                )
                .help(format!("give mesh axis `{name}` a size"))
            })?;
            if count == 0 || count % known != 0 {
                return Err(Diagnostic::new("E206", format!("mesh `{text}` does not fit {count} devices"))
                    .expected(format!("the sizes of the other axes divide {count}"))
                    .found(known.to_string()));
            }
            axes[open].size = count / known;
        }
        Ok(Mesh { name: "mesh".to_string(), axes, device_ids: None })
    }

    /// The number of ranks: the product of the axis sizes, 1 for a mesh without axes.
    pub fn rank_count(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// The device of a mesh that is one device of a larger mesh: no axes, and the number of the device.
    pub fn only_device(&self) -> Option<usize> {
        match (self.axes.is_empty(), self.device_ids.as_deref()) {
            (true, Some(&[device])) => Some(device),
            _ => None,
        }
    }

    /// The device that a rank runs on.
    pub fn device(&self, rank: usize) -> usize {
        self.device_ids.as_ref().and_then(|ids| ids.get(rank)).copied().unwrap_or(rank)
    }

    /// Whether each rank runs on the device of the same number.
    pub fn is_in_device_order(&self) -> bool {
        self.device_ids.iter().flatten().enumerate().all(|(rank, &device)| rank == device)
    }

    /// Whether both meshes have the same ranks on the same devices.
    pub fn has_devices_of(&self, other: &Mesh) -> bool {
        let ranks = self.rank_count();
        let given = self.device_ids.is_some() || other.device_ids.is_some();
        ranks == other.rank_count()
            && (!given || (0..ranks).all(|rank| self.device(rank) == other.device(rank)))
    }

    /// For each rank of `other`, the rank of this mesh on the same device; `None` unless both have the same devices.
    pub fn ranks_on(&self, other: &Mesh) -> Option<Vec<usize>> {
        let by_device: BTreeMap<usize, usize> =
            (0..self.rank_count()).map(|rank| (self.device(rank), rank)).collect();
        let found = (0..other.rank_count()).map(|rank| by_device.get(&other.device(rank)).copied());
        found.collect::<Option<Vec<usize>>>().filter(|ranks| ranks.len() == self.rank_count())
    }

    /// Axes of `other` that order all ranks as `axis` of this mesh does, so that both give the same
    /// layout. `None` if there are none, or if the two meshes place ranks on different devices.
    pub fn axis_on(&self, axis: AxisRef, other: &Mesh) -> Option<AxisList> {
        let known = self
            .axes
            .get(axis.axis)
            .is_some_and(|full| axis.end() > 0 && full.size.is_multiple_of(axis.end()));
        if !known || !self.has_devices_of(other) {
            return None;
        }
        let mut axes = AxisList::new();
        // The parts found so far cover the strides of `axis` below `stride`; `end` is where the
        // axis ends.
        let (mut stride, end) = (self.stride(axis), self.stride(axis) * axis.size);
        for index in (0..other.axes.len()).rev() {
            let full = other.full_axis(index);
            let from = other.stride(full);
            let until = from * full.size;
            if stride == end || until <= stride || full.size == 1 {
                continue;
            }
            let upper = until.min(end);
            let fits = from <= stride
                && (stride / from) * from == stride
                && upper.is_multiple_of(stride)
                && until.is_multiple_of(upper);
            if !fits {
                return None;
            }
            axes.insert(0, AxisRef { axis: index, pre: until / upper, size: upper / stride });
            stride = upper;
        }
        (stride == end).then_some(axes)
    }

    /// The rank's position along each axis.
    pub fn coordinates(&self, rank: usize) -> Vec<usize> {
        let mut rest = rank;
        let mut coordinates: Vec<usize> =
            self.axes.iter().rev().map(|a| (rest % a.size, rest /= a.size).0).collect();
        coordinates.reverse();
        coordinates
    }

    /// The rank at these positions; the inverse of [`Mesh::coordinates`].
    pub fn rank_at(&self, coordinates: &[usize]) -> usize {
        self.axes.iter().zip(coordinates).fold(0, |rank, (axis, c)| rank * axis.size + c)
    }

    /// The full axis of this name.
    pub fn axis_named(&self, name: &str) -> Option<AxisRef> {
        self.axes.iter().position(|a| a.name == name).map(|axis| self.full_axis(axis))
    }

    /// The full axis of this name. E208, which lists the axes, if there is none.
    pub fn find_axis(&self, name: &str) -> Result<AxisRef> {
        self.axis_named(name).ok_or_else(|| {
            let error = Diagnostic::new("E208", format!("the mesh has no axis `{name}`"))
                .expected(format!("an axis of {self}"));
            match did_you_mean(name, self.axes.iter().map(|a| a.name.as_str())) {
                Some(hint) => error.help(hint),
                None => error,
            }
        })
    }

    /// The full axis at this index.
    pub fn full_axis(&self, axis: usize) -> AxisRef {
        AxisRef { axis, pre: 1, size: self.axes[axis].size }
    }

    /// The product of the sizes of these axes.
    pub fn axes_size(&self, axes: &[AxisRef]) -> usize {
        axes.iter().map(|a| a.size).product()
    }

    /// The rank's position along one axis or part of an axis.
    pub fn place(&self, rank: usize, axis: AxisRef) -> usize {
        rank / self.stride(axis) % axis.size
    }

    /// The rank's position along the ordered axes, major to minor, in `0..axes_size(axes)`.
    pub fn position(&self, rank: usize, axes: &[AxisRef]) -> usize {
        axes.iter().fold(0, |position, &axis| position * axis.size + self.place(rank, axis))
    }

    /// Partitions all ranks into groups that differ only along `axes`. A group is ordered by
    /// [`Mesh::position`], the groups by their smallest rank.
    pub fn groups(&self, axes: &[AxisRef]) -> Vec<Vec<usize>> {
        let firsts = (0..self.rank_count()).filter(|&rank| self.position(rank, axes) == 0);
        firsts.map(|rank| self.group_of(rank, axes)).collect()
    }

    /// The group of [`Mesh::groups`] that contains `rank`.
    pub fn group_of(&self, rank: usize, axes: &[AxisRef]) -> Vec<usize> {
        let first: usize = rank - axes.iter().map(|&a| self.place(rank, a) * self.stride(a)).sum::<usize>();
        axes.iter().fold(vec![first], |group, &axis| {
            let stride = self.stride(axis);
            group.iter().flat_map(|&rank| (0..axis.size).map(move |place| rank + place * stride)).collect()
        })
    }

    /// `dp`, or `dp:(1)2` for a part of an axis.
    pub fn display_axis(&self, axis: AxisRef) -> String {
        let full = &self.axes[axis.axis];
        if axis.size == full.size {
            full.name.clone()
        } else {
            format!("{}:({}){}", full.name, axis.pre, axis.size)
        }
    }

    /// [`Mesh::display_axis`] of each, separated by commas.
    pub fn display_axes(&self, axes: &[AxisRef]) -> String {
        axes.iter().map(|&a| self.display_axis(a)).collect::<Vec<_>>().join(", ")
    }

    /// The difference between the numbers of neighbouring ranks along this axis.
    pub fn stride(&self, axis: AxisRef) -> usize {
        let minor: usize = self.axes[axis.axis + 1..].iter().map(|a| a.size).product();
        minor * (self.axes[axis.axis].size / axis.end())
    }
}

/// Parses one `name=size`; `None` for a size of `-1`.
fn parse_axis(entry: &str) -> Result<(String, Option<usize>)> {
    let malformed = |what: &str| {
        Diagnostic::new("E202", format!("mesh axis `{entry}` {what}"))
            .expected("name=size, for instance `dp=2`")
            .found(format!("`{entry}`"))
    };
    let (name, size) = entry.split_once('=').ok_or_else(|| malformed("has no size"))?;
    let (name, size) = (name.trim(), size.trim());
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(malformed("has no valid name (letters, digits and underscores)"));
    }
    if size == "-1" {
        return Ok((name.to_string(), None));
    }
    match size.parse::<usize>() {
        Ok(0) => Err(Diagnostic::new("E204", format!("mesh axis `{name}` has size zero"))
            .expected("a size of at least 1")
            .help(format!("leave `{name}` out, or write `{name}=1`"))),
        Ok(size) => Ok((name.to_string(), Some(size))),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err(malformed("has a size that is too large"))
        }
        Err(_) => Err(malformed("has a size that is not a number")),
    }
}

impl fmt::Display for Mesh {
    /// `dp=2,tp=2`, as [`Mesh::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, axis) in self.axes.iter().enumerate() {
            write!(f, "{}{}={}", if i == 0 { "" } else { "," }, axis.name, axis.size)?;
        }
        Ok(())
    }
}

/// Ascending ranks as a list in which long runs are written as `4-11`.
pub fn rank_list(ranks: &[usize]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 4 => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_reads_back_what_it_prints() {
        let mesh = Mesh::parse(" dp=2, tp=3 ", None).unwrap();
        assert_eq!(mesh, Mesh::new("mesh", &[("dp", 2), ("tp", 3)]));
        assert_eq!(Mesh::parse(&mesh.to_string(), None).unwrap(), mesh);
    }

    #[test]
    fn one_axis_takes_the_rest_of_the_devices() {
        assert_eq!(Mesh::parse("dp=-1,tp=2", Some(8)).unwrap().to_string(), "dp=4,tp=2");
    }

    #[test]
    fn bad_meshes_are_told_apart() {
        let code = |text: &str, devices| Mesh::parse(text, devices).unwrap_err().code;
        assert_eq!(code("  ", None), "E201");
        for text in ["dp", "dp=", "dp=two", "=2", "dp=2,", "dp=-2", "d p=2", "dp=2=3"] {
            assert_eq!(code(text, None), "E202", "{text}");
        }
        assert_eq!(code("dp=2,dp=2", None), "E203");
        assert_eq!(code("dp=0", None), "E204");
        assert_eq!(code("dp=-1", None), "E205");
        assert_eq!(code("dp=-1,tp=-1", Some(4)), "E205");
        assert_eq!(code("dp=-1,tp=3", Some(4)), "E206");
        assert_eq!(code("dp=99999999999,tp=99999999999", None), "E207");
        let error = Mesh::parse("data=2,model=2", None).unwrap().find_axis("modle").unwrap_err();
        assert_eq!((error.code, error.help.as_deref()), ("E208", Some("did you mean `model`?")));
    }

    #[test]
    fn ranks_are_row_major() {
        let mesh = Mesh::new("m", &[("a", 2), ("b", 3), ("c", 2)]);
        assert_eq!(mesh.coordinates(7), [1, 0, 1]);
        assert!((0..12).all(|rank| mesh.rank_at(&mesh.coordinates(rank)) == rank));
    }

    #[test]
    fn an_axis_is_found_again_on_a_mesh_of_other_axes() {
        let meshes = [
            Mesh::new("a", &[("x", 2), ("y", 4)]),
            Mesh::new("b", &[("y", 4), ("x", 2)]),
            Mesh::new("c", &[("all", 8)]),
            Mesh::new("d", &[("p", 2), ("q", 2), ("one", 1), ("r", 2)]),
        ];
        for (from, to) in meshes.iter().flat_map(|from| meshes.iter().map(move |to| (from, to))) {
            for axis in (0..from.axes.len()).map(|axis| from.full_axis(axis)) {
                let axes = from.axis_on(axis, to).expect("powers of two always fit");
                for rank in 0..8 {
                    assert_eq!(to.position(rank, &axes), from.place(rank, axis), "{from} {to} {axis:?}");
                }
            }
        }
        let major = AxisRef { axis: 0, pre: 1, size: 2 };
        assert_eq!(meshes[1].axis_on(major, &meshes[0]).unwrap().to_vec(), [major]);
        // Thirds of six are no part of halves and thirds in the other order; nor do other devices
        // fit.
        let (a, b) = (Mesh::new("a", &[("x", 2), ("y", 3)]), Mesh::new("b", &[("y", 3), ("x", 2)]));
        assert_eq!(a.axis_on(a.full_axis(1), &b), None);
        let turned = Mesh { device_ids: Some(vec![1, 2, 3, 4, 5, 0]), ..a.clone() };
        assert_eq!(a.axis_on(a.full_axis(0), &turned), None);
        assert!(turned.axis_on(a.full_axis(0), &turned).is_some() && !turned.is_in_device_order());
        assert_eq!(a.axis_on(a.full_axis(0), &meshes[0]), None);
    }

    #[test]
    fn long_runs_of_ranks_are_written_short() {
        assert_eq!(rank_list(&[]), "");
        assert_eq!(rank_list(&[0, 1, 2, 3]), "0,1,2,3");
        assert_eq!(rank_list(&[0, 2, 3, 4, 5, 6, 9]), "0,2-6,9");
    }

    #[test]
    fn groups_partition_the_ranks_in_position_order() {
        let mesh = Mesh::new("m", &[("a", 2), ("b", 4)]);
        let (a, b) = (mesh.full_axis(0), mesh.full_axis(1));
        let (major, minor) = b.split(2).unwrap();
        assert_eq!(mesh.groups(&[b]), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(mesh.groups(&[major]), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!(mesh.groups(&[minor, a]), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(mesh.groups(&[]).len(), 8);
        assert_eq!(mesh.group_of(7, &[minor, a]), [2, 6, 3, 7]);
        for (place, &rank) in mesh.group_of(7, &[minor, a]).iter().enumerate() {
            assert_eq!(mesh.position(rank, &[minor, a]), place);
        }
    }

    #[test]
    fn parts_that_cannot_stand_side_by_side_overlap() {
        let part = |pre, size| AxisRef { axis: 0, pre, size };
        assert!(!part(1, 2).overlaps(part(2, 3)));
        assert!(part(1, 3).overlaps(part(2, 3)));
        assert!(part(1, 2).overlaps(part(3, 2)), "the halves of 6 and the thirds' halves do not fit");
        assert!(part(1, 6).overlaps(part(2, 3)));
        assert!(!part(1, 6).overlaps(AxisRef { axis: 1, pre: 1, size: 6 }));
    }
}
