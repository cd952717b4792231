//! The layouts that a style requests for the activations at both sides of a module: how inputs
//! arrive, how the module reads them, how it computes outputs, and how others read those.

use crate::apply::{Declared, LayoutAnnotator};
use crate::modules::{Modules, around, is_inside};
use crate::pins::Pin;
use crate::style::{Kind, LOCAL_NOTE, Layout, Layouts};
use partita_base::{Diagnostic, Note, Result};
use partita_ir::{NodeId, Phase, ValueId};
use partita_mesh::AxisRef;

/// A side of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Enters,
    Leaves,
}

/// An activation at a side of a module.
pub(crate) struct Passing {
    pub value: ValueId,
    /// Its readers there, with operand positions: nodes inside for an input, nodes outside for an
    /// output.
    pub readers: Vec<(NodeId, usize)>,
    /// Its position among those of its microbatch: inputs in order of first use, outputs in node
    /// order.
    pub place: usize,
}

/// The inputs or outputs of a module in the forward pass.
pub(crate) fn passing(modules: &Modules, module: &str, side: Side) -> Vec<Passing> {
    let graph = modules.graph;
    let mut found: Vec<(Option<usize>, Passing)> = Vec::new();
    let place = |found: &[(Option<usize>, Passing)], microbatch| {
        found.iter().filter(|(other, _)| *other == microbatch).count()
    };
    match side {
        Side::Enters => {
            let mut reads: Vec<((NodeId, usize), ValueId)> = modules
                .inputs_of(module)
                .into_iter()
                .flat_map(|(value, readers)| readers.into_iter().map(move |reader| (reader, value)))
                .collect();
            reads.sort();
            for (reader, value) in reads {
                let microbatch = graph.node(reader.0).microbatch;
                match found.iter_mut().find(|(m, p)| *m == microbatch && p.value == value) {
                    Some((_, passing)) => passing.readers.push(reader),
                    None => {
                        let place = place(&found, microbatch);
                        found.push((microbatch, Passing { value, readers: vec![reader], place }));
                    }
                }
            }
        }
        Side::Leaves => {
            for value in modules.outputs_of(module) {
                let microbatch = graph.value(value).definition.and_then(|(id, _)| graph.node(id).microbatch);
                let outside = |reader: &&(NodeId, usize)| {
                    let node = graph.node(reader.0);
                    node.phase == Phase::Forward && !is_inside(&node.path, module)
                };
                let readers = modules.uses(value).iter().filter(outside).copied().collect();
                let place = place(&found, microbatch);
                found.push((microbatch, Passing { value, readers, place }));
            }
        }
    }
    found.into_iter().map(|(_, passing)| passing).collect()
}

impl<'a> LayoutAnnotator<'a> {
    /// Applies lines that only set layouts of module inputs and outputs. E221 if a pattern matches
    /// no module.
    pub(crate) fn prepared(&mut self, line: Declared) -> Result<()> {
        let (axis, origin) = (self.axis(line)?, line.describe());
        let modules = self.modules.named(line.entry.scope(), &origin)?;
        for module in modules {
            let style = line.style;
            if let Some(from) = &style.input_from {
                self.pin_boundary(module, Side::Enters, from, axis, &origin)?;
            }
            if let Some(input) = &style.input {
                self.pin_input(module, Side::Enters, input, axis, &origin)?;
            }
            match (&style.output_from, &style.output) {
                (None, Some(output)) => self.pin_boundary(module, Side::Leaves, output, axis, &origin)?,
                (Some(from), Some(output)) => {
                    self.pin_boundary(module, Side::Leaves, from, axis, &origin)?;
                    self.pin_input(module, Side::Leaves, output, axis, &origin)?;
                }
                (_, None) => {}
            }
        }
        Ok(())
    }

    /// The layout in which a layer reads its input if a line only says how the input arrives: a
    /// `rowwise` matmul takes its features sharded, a lookup takes ids as they are.
    pub(crate) fn read_by(&self, kind: Kind, module: &str) -> Option<Layouts> {
        let ids = |passing: &Passing| !self.graph.ty(passing.value).dtype.is_float();
        match kind {
            Kind::Colwise => Some(Layout::Replicate.into()),
            Kind::Rowwise if passing(self.modules, module, Side::Enters).iter().any(ids) => {
                Some(Layout::Replicate.into())
            }
            Kind::Rowwise => Some(Layout::Shard(-1).into()),
            _ => None,
        }
    }

    /// Requests the layout of values at a side of a module. E227 if another line requests a
    /// different one.
    pub(crate) fn pin_boundary(
        &mut self,
        module: &str,
        side: Side,
        layouts: &Layouts,
        axis: AxisRef,
        origin: &str,
    ) -> Result<()> {
        for (passing, layout) in self.asked(module, side, layouts, origin)? {
            match layout {
                Layout::Shard(dim) => self.pins.shard(passing.value, dim, axis, origin)?,
                Layout::Replicate => self.pins.replicate(passing.value, axis, origin)?,
            }
        }
        Ok(())
    }

    /// Requests the layout in which values at a side of a module are read there, by a constraint
    /// that modules with the same request share.
    pub(crate) fn pin_input(
        &mut self,
        module: &str,
        side: Side,
        layouts: &Layouts,
        axis: AxisRef,
        origin: &str,
    ) -> Result<()> {
        for (passing, layout) in self.asked(module, side, layouts, origin)? {
            if passing.readers.is_empty() {
                continue;
            }
            let value = passing.value;
            let mut pin = Pin::free(self.graph.ty(value).rank());
            match layout {
                Layout::Replicate => pin.keep_whole(axis),
                Layout::Shard(dim) => {
                    let dim = self.pins.dim(value, dim, origin)?;
                    if axis.size > 1 {
                        let before = self.pins.before(value, dim, axis, &pin);
                        pin.axes[dim].extend(before);
                        pin.axes[dim].push(axis);
                    }
                    pin.open[dim] = false;
                }
            }
            pin.asked_by(origin);
            let place = self.constraints.place(value, pin, around(module));
            for reader in passing.readers {
                self.constraints.readers.entry(reader).or_insert(place);
            }
        }
        Ok(())
    }

    /// The values that layouts refer to. E262 if they refer to more values than exist.
    fn asked(
        &self,
        module: &str,
        side: Side,
        layouts: &Layouts,
        origin: &str,
    ) -> Result<Vec<(Passing, Layout)>> {
        let all = passing(self.modules, module, side);
        let count = all.iter().map(|passing| passing.place + 1).max().unwrap_or(0);
        if let Layouts::Each(_) = layouts
            && layouts.needed() > count
        {
            let (tensor, verb) = match side {
                Side::Enters => ("input", "enter"),
                Side::Leaves => ("output", "leave"),
            };
            let needed = layouts.needed();
            let several = |count: usize| if count == 1 { "" } else { "s" };
            let given = format!("you gave {needed} layout{}", several(needed));
            return Err(Diagnostic::new(
                "E262",
                format!("{given}, but `{module}` has {count} {tensor}{}", several(count)),
            )
            .at(origin)
            .expected(format!("layouts of the {count} that {verb}"))
            .found(format!("layouts of {needed}"))
            .help("write `None` for a tensor without a request, and nothing after the last tensor"));
        }
        Ok(all.into_iter().filter_map(|p| layouts.at(p.place).map(|layout| (p, layout))).collect())
    }

    /// Notes options of a line that have no effect.
    pub(crate) fn note_options(&mut self, line: &Declared) {
        if line.style.local.is_some() {
            self.notes.push(Note::on_line("no-effect", line.describe(), LOCAL_NOTE));
        }
    }
}
