//! Layouts under construction, before they become annotations.

use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, NodeId, ValueId};
use partita_mesh::{AxisList, AxisRef, Mesh, Sharding};
use std::collections::{BTreeMap, BTreeSet};

/// The layout requested for one value so far.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pin {
    /// For each dimension, its axes, major to minor.
    pub axes: Vec<AxisList>,
    /// For each dimension, whether propagation may add axes.
    pub open: Vec<bool>,
    /// Axes over which the value must stay replicated.
    pub replicated: Vec<AxisRef>,
    /// Axes that shard the value for storage only. They come after the others on a dimension and
    /// split at single elements, because no op computes with such a shard.
    pub stored: Vec<AxisRef>,
    /// The plan lines that requested it.
    pub origins: Vec<String>,
}

impl Pin {
    pub fn free(rank: usize) -> Pin {
        Pin {
            axes: vec![AxisList::new(); rank],
            open: vec![true; rank],
            replicated: vec![],
            stored: vec![],
            origins: vec![],
        }
    }

    /// Starts from an annotation that the graph already has.
    pub fn of(annotation: &Annotation) -> Pin {
        Pin {
            axes: annotation.sharding.dims.iter().map(|d| d.axes.clone()).collect(),
            open: annotation.open.clone(),
            replicated: annotation.replicated.clone(),
            stored: annotation.sharding.dims.iter().flat_map(|d| d.by_granularity().1).copied().collect(),
            origins: vec![annotation.origin.clone()],
        }
    }

    pub fn annotation(&self, mesh: usize) -> Annotation {
        let mut sharding = Sharding::replicated(self.axes.len());
        for (dim, axes) in sharding.dims.iter_mut().zip(&self.axes) {
            dim.axes = axes.clone();
            dim.by_element = axes.iter().rev().take_while(|axis| self.stored.contains(axis)).count();
        }
        Annotation {
            mesh,
            sharding,
            open: self.open.clone(),
            replicated: self.replicated.clone(),
            origin: self.origins.join("; "),
        }
    }

    pub fn asked_by(&mut self, origin: &str) {
        if !self.origins.iter().any(|o| o == origin) {
            self.origins.push(origin.to_string());
        }
    }

    /// The number of shards along a dimension.
    pub fn ways(&self, dim: usize) -> usize {
        self.axes[dim].iter().map(|a| a.size).product()
    }

    pub fn uses(&self, axis: AxisRef) -> bool {
        self.axes.iter().flatten().any(|a| a.axis == axis.axis)
    }

    /// Shards a dimension over one more axis, the minor-most, for storage only.
    pub fn store(&mut self, dim: usize, axis: AxisRef) {
        self.axes[dim].push(axis);
        self.stored.push(axis);
        self.close();
    }

    /// Replicates the value over an axis; this overrides an earlier request to shard it.
    pub fn keep_whole(&mut self, axis: AxisRef) {
        for axes in &mut self.axes {
            axes.retain(|a| a.axis != axis.axis);
        }
        if axis.size > 1 && !self.replicated.contains(&axis) {
            self.replicated.push(axis);
        }
    }

    pub fn close(&mut self) {
        self.open.iter_mut().for_each(|open| *open = false);
    }
}

/// Constraints to insert, and the operands that read them.
#[derive(Default)]
pub(crate) struct Constraints {
    pub list: Vec<Constraint>,
    /// (node, operand position) to an index in `list`.
    pub readers: BTreeMap<(NodeId, usize), usize>,
}

/// A layout that some readers of a value see in place of its own.
pub(crate) struct Constraint {
    pub value: ValueId,
    pub pin: Pin,
    pub name: String,
    /// The module path; the first reader's if there is none.
    pub path: Option<String>,
}

impl Constraints {
    pub fn add(
        &mut self,
        value: ValueId,
        pin: Pin,
        name: &str,
        path: Option<&str>,
        readers: &[(NodeId, usize)],
    ) {
        let new: Vec<(NodeId, usize)> =
            readers.iter().copied().filter(|r| !self.readers.contains_key(r)).collect();
        if new.is_empty() {
            return;
        }
        self.readers.extend(new.into_iter().map(|reader| (reader, self.list.len())));
        let path = path.map(str::to_string);
        self.list.push(Constraint { value, pin, name: name.to_string(), path });
    }

    /// The index of a constraint with this layout. Adjacent modules with the same request share it,
    /// so it belongs to the module around them.
    pub fn place(&mut self, value: ValueId, pin: Pin, around: &str) -> usize {
        let same = |c: &Constraint| {
            c.value == value
                && (&c.pin.axes, &c.pin.open, &c.pin.replicated) == (&pin.axes, &pin.open, &pin.replicated)
        };
        if let Some(place) = self.list.iter().position(same) {
            return place;
        }
        self.list.push(Constraint { value, pin, name: String::new(), path: Some(around.to_string()) });
        self.list.len() - 1
    }

    /// The constraint that a reader sees in place of a value's own layout.
    pub fn at(&self, reader: (NodeId, usize)) -> Option<&Constraint> {
        self.readers.get(&reader).map(|&place| &self.list[place])
    }
}

/// The pins of a graph's values on one mesh.
pub(crate) struct Pins<'a> {
    pub graph: &'a Graph,
    pub mesh: &'a Mesh,
    /// The index of the mesh in the graph.
    pub mesh_index: usize,
    pub of: BTreeMap<ValueId, Pin>,
    /// The axes that shard token sequences, and the lengths of these.
    pub sequence: (Vec<AxisRef>, BTreeSet<usize>),
}

impl Pins<'_> {
    /// The pin of a value, mutable.
    pub fn at(&mut self, value: ValueId) -> &mut Pin {
        let given = self.graph.value(value).annotation.as_ref().filter(|a| a.mesh == self.mesh_index);
        let rank = self.graph.ty(value).rank();
        self.of.entry(value).or_insert_with(|| given.map_or_else(|| Pin::free(rank), Pin::of))
    }

    /// The pin of a value so far.
    pub fn look(&self, value: ValueId) -> Option<Pin> {
        let given = self.graph.value(value).annotation.as_ref().filter(|a| a.mesh == self.mesh_index);
        self.of.get(&value).cloned().or_else(|| given.map(Pin::of))
    }

    /// The axes that come before another one in a layout of an activation so far: along the sequence of `[batch, sequence,
    /// features]` those over which tokens are sharded anyway, which a layout over a further axis must not gather.
    pub fn before(&self, value: ValueId, dim: usize, axis: AxisRef, pin: &Pin) -> AxisList {
        let (axes, lengths) = &self.sequence;
        let ty = self.graph.ty(value);
        let is_sequence = dim == 1
            && ty.rank() == 3
            && ty.dtype.is_float()
            && lengths.contains(&ty.shape[1])
            && self.graph.value(value).definition.is_some()
            && axis.size > 1
            && !axes.contains(&axis);
        let is_free = |own: &&AxisRef| own.size > 1 && !pin.uses(**own) && !pin.replicated.contains(own);
        axes.iter().filter(|_| is_sequence).filter(is_free).copied().collect()
    }

    /// Shards a dimension over one more axis, the minor-most, and closes it. E224 if the dimension
    /// does not exist, E227 if the axis already shards another dimension or must not shard the
    /// value.
    pub fn shard(&mut self, value: ValueId, dim: isize, axis: AxisRef, origin: &str) -> Result<()> {
        let dim = self.dim(value, dim, origin)?;
        let (graph, mesh) = (self.graph, self.mesh);
        let so_far = self.at(value).clone();
        let before = self.before(value, dim, axis, &so_far);
        let pin = self.at(value);
        if axis.size > 1 && !pin.axes[dim].contains(&axis) {
            if pin.uses(axis) || pin.replicated.contains(&axis) {
                return Err(Diagnostic::new(
                    "E227",
                    format!(
                        "two lines request different layouts of `{}` over `{}`",
                        graph.describe(value),
                        mesh.display_axis(axis)
                    ),
                )
                .at(origin)
                .expected(format!(
                    "dimension {dim} of {} sharded over `{}`",
                    graph.ty(value),
                    mesh.display_axis(axis)
                ))
                .found(pin.annotation(0).sharding.display(mesh))
                .note(format!("requested by {}", pin.origins.join("; ")))
                .help("change the axis or the modules of one of the lines"));
            }
            pin.axes[dim].extend(before);
            pin.axes[dim].push(axis);
        }
        pin.open[dim] = false;
        pin.asked_by(origin);
        Ok(())
    }

    /// Replicates a value over an axis. E227 if the axis already shards it.
    pub fn replicate(&mut self, value: ValueId, axis: AxisRef, origin: &str) -> Result<()> {
        let (graph, mesh) = (self.graph, self.mesh);
        let pin = self.at(value);
        if pin.uses(axis) {
            return Err(Diagnostic::new(
                "E227",
                format!(
                    "two lines request different layouts of `{}` over `{}`",
                    graph.describe(value),
                    mesh.display_axis(axis)
                ),
            )
            .at(origin)
            .expected(format!("{} replicated over `{}`", graph.ty(value), mesh.display_axis(axis)))
            .found(pin.annotation(0).sharding.display(mesh))
            .note(format!("requested by {}", pin.origins.join("; ")))
            .help("change the axis or the modules of one of the lines"));
        }
        pin.keep_whole(axis);
        pin.asked_by(origin);
        Ok(())
    }

    /// A dimension, counted from the last if negative. E224 if it does not exist.
    pub fn dim(&self, value: ValueId, dim: isize, origin: &str) -> Result<usize> {
        let ty = self.graph.ty(value);
        let rank = ty.rank() as isize;
        let counted = if dim < 0 { dim + rank } else { dim };
        if (0..rank).contains(&counted) {
            return Ok(counted as usize);
        }
        Err(Diagnostic::new("E224", format!("`{}` has no dimension {dim}", self.graph.describe(value)))
            .at(origin)
            .expected(match rank {
                0 => "a tensor with dimensions; this is a scalar".to_string(),
                1 => format!("dimension 0 (or -1) of {:?}", ty.shape),
                _ => format!("a dimension from 0 to {} of {:?}", rank - 1, ty.shape),
            })
            .found(ty.to_string()))
    }
}
