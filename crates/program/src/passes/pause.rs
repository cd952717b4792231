//! What runs before the pause of a step, and what behind it.

use crate::outside::Outside;
use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::timing::{Places, Timing};
use partita_ir::{Graph, ValueId};

/// A stage with the buckets that connect it to others, and what its caller touches.
pub(crate) struct Ends<'a> {
    pub graph: &'a Graph,
    pub buckets: &'a [Bucket],
    pub places: &'a Places,
    pub timing: Option<&'a Timing>,
    pub outside: &'a Outside,
}

impl Ends<'_> {
    /// The units that come before the pause: the forward pass, what the caller reads there, and what other stages need for
    /// theirs. And those that come after it, if nothing of the first ones needs them: what follows from what the caller
    /// writes, the backward pass, and the waits for what other stages do after their pause. A stage that waited for those
    /// would wait for the caller, who waits for all stages.
    pub fn around_pause(
        &self,
        unit_of: &[usize],
        source: &dyn Fn(ValueId) -> Option<usize>,
        (start, wait): (&dyn Fn(usize) -> usize, &dyn Fn(usize) -> usize),
    ) -> (Vec<usize>, Vec<usize>) {
        let Ends { graph, buckets, places, timing, outside } = self;
        let is_late = outside.late_values(graph);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for id in graph.node_ids() {
            let reads_late = graph.node(id).operands.iter().any(|operand| is_late[operand.index()]);
            let side = if places.is_behind[id.index()] || reads_late { &mut after } else { &mut before };
            side.push(unit_of[id.index()]);
        }
        for (output, &value) in graph.outputs.iter().enumerate() {
            before.extend(source(value).filter(|_| outside.is_read_at_pause(output)));
        }
        for (number, bucket) in buckets.iter().enumerate() {
            if bucket.operands(graph).iter().any(|value| is_late[value.index()]) {
                after.push(start(number));
            }
            let Some((edge, value)) = bucket.edge else { continue };
            let is_received = bucket.class == BucketClass::Received;
            if !is_received && !is_late[value.index()] {
                before.push(start(number));
            }
            // The receiver of a sent value may begin to receive it after its own pause.
            let is_taken_late = || {
                let task = timing.and_then(|timing| timing.release(edge));
                task.is_none_or(|task| timing.is_none_or(|timing| task >= timing.first_backward()))
            };
            if is_late[value.index()] || (!is_received && is_taken_late()) {
                after.push(wait(number));
            }
        }
        (before, after)
    }
}
