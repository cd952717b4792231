//! In which layout the ranks of a slice receive what another pipeline stage sends.
//!
//! Where several ranks of the receiving slice need the same elements, each may receive all of them,
//! or a part from which they gather the rest among themselves. Then each byte crosses between the
//! slices once, at the price of an all_gather within the slice. The cluster decides which is faster:
//! links within a node are often ten times as fast as those between nodes.

use partita_cost::Cluster;
use partita_mesh::{BoxMove, Sharding, Slice, once, transfer};
use partita_pipeline::{Edge, Source, StageGraph};
use partita_spmd::LaidOut;
use std::collections::BTreeMap;

/// What a decision depends on: the sending stage, the shape and the bytes of an element, the layout
/// there and here.
type Question = (usize, Vec<usize>, usize, Sharding, Sharding);

/// The received inputs of a stage that should arrive in another layout than that in which the stage
/// uses them, by name. The clusters are the whole one, and that of the stage's slice.
pub(crate) fn arrivals(
    stage: usize,
    stages: &[(LaidOut, StageGraph)],
    edges: &[Edge],
    slices: &[Slice],
    [cluster, own]: [&Cluster; 2],
) -> BTreeMap<String, Sharding> {
    let (to, inputs) = (&stages[stage].0, &stages[stage].1.inputs);
    let mesh = &to.layouts.mesh;
    let mut known: BTreeMap<Question, Option<Sharding>> = BTreeMap::new();
    let mut arrivals = BTreeMap::new();
    for (position, source) in inputs.iter().enumerate() {
        let Source::Edge(edge) = source else { continue };
        let (sender, output) = edges[*edge].from;
        let from = &stages[sender].0;
        let (sent, used) = (&from.layouts.outputs[output], &to.layouts.inputs[position]);
        let value = to.graph.value(to.graph.inputs[position]);
        let (shape, element) = (&value.ty.shape, value.ty.dtype.size_bytes());
        let question = (sender, shape.clone(), element, sent.clone(), used.clone());
        let answer = known.entry(question).or_insert_with(|| {
            let send_s = |layout: &Sharding| {
                let moves = transfer(shape, (sent, &from.layouts.mesh), (layout, mesh));
                let count = from.layouts.mesh.rank_count();
                let message = |moved: &BoxMove| {
                    let (source, target) = (slices[sender].ranks[moved.source], moved.target - count);
                    (source, slices[stage].ranks[target], moved.elements() * element)
                };
                cluster.messages_s(moves.iter().map(message))
            };
            let gather_s = |layout: &Sharding| own.reshard_cost(mesh, shape, element).reshard_s(layout, used);
            let priced = once(shape, used, mesh).into_iter().map(|layout| {
                let seconds = send_s(&layout) + gather_s(&layout);
                (seconds, layout)
            });
            let best = priced.min_by(|a, b| a.0.total_cmp(&b.0))?;
            (best.0 < send_s(used)).then_some(best.1)
        });
        if let Some(layout) = answer {
            arrivals.insert(value.name.clone(), layout.clone());
        }
    }
    arrivals
}
