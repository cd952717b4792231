//! What runs before the pause of a step, and what behind it.

use crate::passes::bucket::BucketClass;
use crate::passes::order::{Stage, Units};

impl Stage<'_> {
    /// The units that come before the pause: the forward pass, what the caller reads there, and what other stages need for
    /// theirs. And those that come after it, if nothing of the first ones needs them: what follows from what the caller
    /// writes, the backward pass, and the waits for what other stages do after their pause. A stage that waited for those
    /// would wait for the caller, who waits for all stages.
    pub fn around_pause(&self, units: &Units) -> (Vec<usize>, Vec<usize>) {
        let Stage { graph, buckets, timing, outside, ref places, .. } = *self;
        let is_late = outside.late_values(graph);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for id in graph.node_ids() {
            let reads_late = graph.node(id).operands.iter().any(|operand| is_late[operand.index()]);
            let side = if places.is_behind[id.index()] || reads_late { &mut after } else { &mut before };
            side.push(units.of_node[id.index()]);
        }
        for (output, &value) in graph.outputs.iter().enumerate() {
            before.extend(units.source(value).filter(|_| outside.is_read_at_pause(output)));
        }
        for (number, bucket) in buckets.iter().enumerate() {
            if bucket.operands(graph).iter().any(|value| is_late[value.index()]) {
                after.push(units.start(number));
            }
            let Some((edge, value)) = bucket.edge else { continue };
            let is_received = bucket.class == BucketClass::Received;
            if !is_received && !is_late[value.index()] {
                before.push(units.start(number));
            }
            // The receiver of a sent value may begin to receive it after its own pause.
            let is_taken_late = || {
                let task = timing.and_then(|timing| timing.release(edge));
                task.is_none_or(|task| timing.is_none_or(|timing| task >= timing.first_backward()))
            };
            if is_late[value.index()] || (!is_received && is_taken_late()) {
                after.push(units.wait(number));
            }
        }
        (before, after)
    }
}
