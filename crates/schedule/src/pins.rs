//! Layouts under construction, before they become annotations.

use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, NodeId, ValueId};
use partita_mesh::{AxisList, AxisRef, Mesh, Sharding};
use std::collections::BTreeMap;

/// What is asked of one value so far.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pin {
    /// For each dimension, its axes, major to minor.
    pub axes: Vec<AxisList>,
    /// For each dimension, whether propagation may add axes.
    pub open: Vec<bool>,
    /// Axes that must not shard the value.
    pub replicated: Vec<AxisRef>,
    /// Those of its axes over which the value is only stored in pieces. They come after the others on a dimension and cut
    /// by single elements, as no op computes with such a piece.
    pub stored: Vec<AxisRef>,
    /// Who asked.
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

    /// Takes over what a graph asks already.
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

    /// The number of ways a dimension is cut.
    pub fn ways(&self, dim: usize) -> usize {
        self.axes[dim].iter().map(|a| a.size).product()
    }

    pub fn uses(&self, axis: AxisRef) -> bool {
        self.axes.iter().flatten().any(|a| a.axis == axis.axis)
    }

    /// Cuts a dimension along one more axis, the minor-most, for storage alone.
    pub fn store(&mut self, dim: usize, axis: AxisRef) {
        self.axes[dim].push(axis);
        self.stored.push(axis);
        self.close();
    }

    /// Keeps the value whole over an axis; a later wish than that of cutting it undoes the cut.
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

/// Constraints to insert, and which operands read them.
#[derive(Default)]
pub(crate) struct Constraints {
    pub list: Vec<Constraint>,
    /// (node, operand position) to a place in `list`.
    pub readers: BTreeMap<(NodeId, usize), usize>,
}

/// A layout that some readers of a value see instead of its own.
pub(crate) struct Constraint {
    pub value: ValueId,
    pub pin: Pin,
    pub name: String,
    /// The module path; the first reader's where there is none.
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

    /// The place of a constraint that asks for this. Modules next to each other with the same wish share it, so it
    /// belongs to what is around them.
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

    /// What a reader sees instead of a value's own layout.
    pub fn at(&self, reader: (NodeId, usize)) -> Option<&Constraint> {
        self.readers.get(&reader).map(|&place| &self.list[place])
    }
}

/// The pins of a graph's values on one mesh.
pub(crate) struct Pins<'a> {
    pub graph: &'a Graph,
    pub mesh: &'a Mesh,
    /// The mesh's number in the graph.
    pub mesh_index: usize,
    pub of: BTreeMap<ValueId, Pin>,
}

impl Pins<'_> {
    /// What is asked of a value, to change.
    pub fn at(&mut self, value: ValueId) -> &mut Pin {
        let given = self.graph.value(value).annotation.as_ref().filter(|a| a.mesh == self.mesh_index);
        let rank = self.graph.ty(value).rank();
        self.of.entry(value).or_insert_with(|| given.map_or_else(|| Pin::free(rank), Pin::of))
    }

    /// What is asked of a value so far.
    pub fn look(&self, value: ValueId) -> Option<Pin> {
        let given = self.graph.value(value).annotation.as_ref().filter(|a| a.mesh == self.mesh_index);
        self.of.get(&value).cloned().or_else(|| given.map(Pin::of))
    }

    /// Cuts a dimension along one more axis, the minor-most, and closes it. E224 when there is no such dimension, E227
    /// when the axis cuts another dimension already or must not cut the value.
    pub fn shard(&mut self, value: ValueId, dim: isize, axis: AxisRef, origin: &str) -> Result<()> {
        let dim = self.dim(value, dim, origin)?;
        let (graph, mesh) = (self.graph, self.mesh);
        let pin = self.at(value);
        if axis.size > 1 && !pin.axes[dim].contains(&axis) {
            if pin.uses(axis) || pin.replicated.contains(&axis) {
                return Err(Diagnostic::new(
                    "E227",
                    format!(
                        "`{}` is asked to lie in two ways over `{}`",
                        graph.describe(value),
                        mesh.display_axis(axis)
                    ),
                )
                .at(origin)
                .expected(format!(
                    "dimension {dim} of {} cut along `{}`",
                    graph.ty(value),
                    mesh.display_axis(axis)
                ))
                .found(pin.annotation(0).sharding.display(mesh))
                .note(format!("asked by {}", pin.origins.join("; ")))
                .help("let one of the two lines use another axis, or match other modules"));
            }
            pin.axes[dim].push(axis);
        }
        pin.open[dim] = false;
        pin.asked_by(origin);
        Ok(())
    }

    /// Keeps a value whole over an axis. E227 when the axis cuts it already.
    pub fn replicate(&mut self, value: ValueId, axis: AxisRef, origin: &str) -> Result<()> {
        let (graph, mesh) = (self.graph, self.mesh);
        let pin = self.at(value);
        if pin.uses(axis) {
            return Err(Diagnostic::new(
                "E227",
                format!(
                    "`{}` is asked to lie in two ways over `{}`",
                    graph.describe(value),
                    mesh.display_axis(axis)
                ),
            )
            .at(origin)
            .expected(format!("{} whole over `{}`", graph.ty(value), mesh.display_axis(axis)))
            .found(pin.annotation(0).sharding.display(mesh))
            .note(format!("asked by {}", pin.origins.join("; ")))
            .help("let one of the two lines use another axis, or match other modules"));
        }
        pin.keep_whole(axis);
        pin.asked_by(origin);
        Ok(())
    }

    /// A dimension, counted from the last where negative. E224 when there is none.
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
                0 => "a tensor that can be cut; this is a scalar".to_string(),
                _ => format!("a dimension from 0 to {} of {:?}", rank - 1, ty.shape),
            })
            .found(ty.to_string()))
    }
}
