//! The scratch memory of regions. A device compiles a region to know what it needs, and layers repeat the regions of the
//! first one: the device answers once for each distinct region of a program.

use crate::RegionTarget;
use crate::program::{Program, Region, RegionId, View};
use indexmap::IndexMap;

/// What the device answered for the regions of one program.
#[derive(Default)]
pub(crate) struct Scratch {
    /// By the numbers of nodes, inputs and outputs: regions with the views that they read, and bytes.
    known: IndexMap<(usize, usize, usize), Vec<(RegionId, Vec<View>, usize)>>,
}

impl Scratch {
    /// Bytes of scratch memory of `region`, which becomes the next region of `program`.
    pub fn bytes(
        &mut self,
        program: &Program,
        target: &dyn RegionTarget,
        region: &Region,
        inputs: &[View],
    ) -> usize {
        let graph = &region.graph;
        let key = (graph.nodes.len(), graph.inputs.len(), graph.outputs.len());
        let known = self.known.entry(key).or_default();
        let is_known = |(other, views, _): &&(RegionId, Vec<View>, usize)| {
            same_steps(views, inputs) && same_work(&program.regions[other.index()], region)
        };
        if let Some(&(_, _, bytes)) = known.iter().find(is_known) {
            return bytes;
        }
        // The device sizes scratch memory for the region of a concrete rank.
        let own = region.is_by_rank().then(|| {
            let mut own = region.clone();
            own.bind(program.ranks[0]);
            own
        });
        let bytes = target.workspace_bytes(own.as_ref().unwrap_or(region), inputs);
        known.push((RegionId::new(program.regions.len()), inputs.to_vec(), bytes));
        bytes
    }
}

/// Whether views have the same strides, wherever they begin.
fn same_steps(a: &[View], b: &[View]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.shape == b.shape && a.strides == b.strides)
}

/// Whether regions do the same work, of whatever module.
fn same_work(a: &Region, b: &Region) -> bool {
    let (own, other) = (&a.graph, &b.graph);
    let mut nodes = own.nodes.iter().zip(&other.nodes);
    a.kind == b.kind
        && (&own.inputs, &own.outputs) == (&other.inputs, &other.outputs)
        && own.values.len() == other.values.len()
        && own.values.iter().zip(&other.values).all(|(a, b)| a.ty == b.ty)
        && nodes.all(|(a, b)| (&a.operands, &a.results) == (&b.operands, &b.results) && a.op == b.op)
}
