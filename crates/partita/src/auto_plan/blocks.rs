//! What the repeated blocks of a step cost on the ranks of a mesh, and what stages of them then cost.

use partita_ir::{Graph, Node, Phase, Role, ValueId};
use partita_mesh::Mesh;
use partita_planner::inter::{Memory, SliceKind, StageTable, most_successors, stages};
use partita_planner::intra::Found;
use partita_schedule::matches;
use std::collections::BTreeSet;

/// The blocks of a step, each with its costs on a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockCosts {
    /// Their module paths, in order.
    pub names: Vec<String>,
    /// The costs.
    pub costs: Vec<BlockCost>,
}

/// What a block, or several, cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct BlockCost {
    /// Seconds of a microbatch, forward and backward.
    pub each_s: f64,
    /// Seconds of the update.
    pub once_s: f64,
    /// Bytes of parameters.
    pub parameters: f64,
    /// Bytes of parameters, gradients and optimizer states.
    pub states: f64,
    /// Bytes of the forward values that the backward pass of a microbatch reads.
    pub kept: f64,
    /// The most bytes that an op reads and writes.
    pub peak: f64,
}

impl BlockCost {
    /// Both together.
    fn and(self, other: BlockCost) -> BlockCost {
        BlockCost {
            each_s: self.each_s + other.each_s,
            once_s: self.once_s + other.once_s,
            parameters: self.parameters + other.parameters,
            states: self.states + other.states,
            kept: self.kept + other.kept,
            peak: self.peak.max(other.peak),
        }
    }
}

impl BlockCosts {
    /// The costs of the blocks of one microbatch with the layouts that a search found, of which a step has so many.
    pub fn of(step: &Graph, mesh: &Mesh, found: &Found, repeats: usize) -> BlockCosts {
        let names = blocks(step);
        let mut costs = vec![BlockCost::default(); names.len()];
        if names.is_empty() {
            return BlockCosts { names, costs };
        }
        let known = |path: &str| block_of(path).and_then(|own| names.iter().position(|name| *name == own));
        let bytes = |value: ValueId| {
            let ty = step.ty(value);
            let elements = found.layouts[value.index()].largest_local_elements(mesh, &ty.shape);
            (elements * ty.dtype.size_bytes()) as f64
        };
        let mut place_of_nodes = Vec::with_capacity(step.nodes.len());
        let mut current = 0;
        for (node, cost) in step.nodes.iter().zip(&found.node_costs) {
            // What is in no block belongs to the one before it: the embedding to the first, the head to the last.
            current = known(&node.path).unwrap_or(if node.phase == Phase::Update { 0 } else { current });
            let own = &mut costs[current];
            match node.phase {
                Phase::Update => own.once_s += cost,
                _ => {
                    own.each_s += cost / repeats.max(1) as f64;
                    let touched: f64 = node.operands.iter().chain(&node.results).copied().map(bytes).sum();
                    own.peak = own.peak.max(touched);
                }
            }
            place_of_nodes.push(current);
        }
        let reader = |value: ValueId| {
            let reads = step.nodes.iter().position(|node| node.operands.contains(&value));
            reads.map_or(0, |node| place_of_nodes[node])
        };
        let parameter = |value: ValueId| known(&step.value(value).name).unwrap_or_else(|| reader(value));
        for &input in &step.inputs {
            match step.value(input).role {
                Role::Param => {
                    let own = &mut costs[parameter(input)];
                    own.parameters += bytes(input);
                    own.states += 2.0 * bytes(input);
                }
                Role::StateOf(of) => costs[parameter(of)].states += bytes(input),
                _ => {}
            }
        }
        let backward = step.nodes.iter().filter(|node| node.phase.is_backward());
        let read: BTreeSet<ValueId> = backward.flat_map(|node| node.operands.iter().copied()).collect();
        for (node, &place) in step.nodes.iter().zip(&place_of_nodes) {
            if node.phase == Phase::Forward {
                costs[place].kept += node
                    .results
                    .iter()
                    .filter(|result| read.contains(result))
                    .map(|&r| bytes(r))
                    .sum::<f64>();
            }
        }
        BlockCosts { names, costs }
    }

    /// The costs of a model with these blocks, each of which costs what the one at a place among these does.
    pub fn expanded(&self, names: &[String], place: &dyn Fn(usize) -> Option<usize>) -> BlockCosts {
        let cost = |block| place(block).and_then(|block| self.costs.get(block).copied()).unwrap_or_default();
        BlockCosts { names: names.to_vec(), costs: (0..names.len()).map(cost).collect() }
    }

    /// The costs at another number of rows, from those at two: what each microbatch costs grows by as much with each row.
    pub fn between(&self, other: &BlockCosts, [own, others, rows]: [usize; 3]) -> BlockCosts {
        if own == others || self.costs.len() != other.costs.len() {
            return self.clone();
        }
        let share = (rows as f64 - own as f64) / (others as f64 - own as f64);
        let at = |one: f64, other: f64| (one + (other - one) * share).max(0.0);
        let cost = |(one, other): (&BlockCost, &BlockCost)| BlockCost {
            each_s: at(one.each_s, other.each_s),
            kept: at(one.kept, other.kept),
            peak: at(one.peak, other.peak),
            ..*one
        };
        BlockCosts {
            names: self.names.clone(),
            costs: self.costs.iter().zip(&other.costs).map(cost).collect(),
        }
    }

    /// The costs with `share` times as many rows, where the seconds of each block change as from `before` to `after`.
    pub fn scaled(&self, before: &BlockCosts, after: &BlockCosts, share: f64) -> BlockCosts {
        let change = |block: usize| match (before.costs.get(block), after.costs.get(block)) {
            (Some(before), Some(after)) if before.each_s > 0.0 => after.each_s / before.each_s,
            _ => share,
        };
        let cost = |(block, cost): (usize, &BlockCost)| BlockCost {
            each_s: cost.each_s * change(block),
            kept: cost.kept * share,
            peak: cost.peak * share,
            ..*cost
        };
        BlockCosts { names: self.names.clone(), costs: self.costs.iter().enumerate().map(cost).collect() }
    }

    /// The costs of the blocks of a stage.
    fn range(&self, first: usize, last: usize) -> BlockCost {
        self.costs[first..=last].iter().copied().fold(BlockCost::default(), BlockCost::and)
    }
}

/// A kind of slice, with the ways in which its ranks may share a stage.
pub(super) struct Slices {
    pub kind: SliceKind,
    /// The costs of the blocks with each way; there is at least one.
    pub ways: Vec<BlockCosts>,
    /// The bytes of a device; none where they do not count.
    pub available: Option<u64>,
}

/// What stages of so many blocks cost on these slices, and which way each range of blocks takes: of those that fit the
/// fastest. `cut` is what is sent between stages, as in [`StageTable`].
pub(super) fn table_of(
    slices: &[Slices],
    layers: usize,
    microbatches: usize,
    cut: Vec<Vec<f64>>,
) -> (StageTable, Vec<Vec<Vec<usize>>>) {
    let kinds = slices.iter().map(|slices| slices.kind.clone()).collect();
    let mut table = StageTable {
        layers,
        slices: kinds,
        seconds: vec![vec![vec![f64::INFINITY; slices.len()]; layers]; layers],
        successors: vec![vec![vec![-1; slices.len()]; layers]; layers],
        once: vec![vec![vec![0.0; slices.len()]; layers]; layers],
        cut,
    };
    let mut chosen = vec![vec![vec![0; slices.len()]; layers]; layers];
    for (first, last) in (0..layers).flat_map(|first| (first..layers).map(move |last| (first, last))) {
        for (place, Slices { ways, available, .. }) in slices.iter().enumerate() {
            let of_way = |costs: &BlockCosts| {
                let cost = costs.range(first, last);
                let memory = |available: u64| Memory {
                    available: available as f64,
                    peak: cost.peak,
                    initial: cost.states,
                    intermediate: cost.kept,
                };
                let follow = available.map_or(i64::MAX, |bytes| most_successors(&memory(bytes)));
                (follow, cost)
            };
            let step_s = |cost: &BlockCost| cost.each_s * microbatches as f64 + cost.once_s;
            let best = ways.iter().map(of_way).enumerate().min_by(|(_, (a, one)), (_, (b, other))| {
                (*a < 0).cmp(&(*b < 0)).then(step_s(one).total_cmp(&step_s(other)))
            });
            let Some((way, (follow, cost))) = best else { continue };
            table.seconds[first][last][place] = cost.each_s;
            table.once[first][last][place] = cost.once_s;
            table.successors[first][last][place] = follow;
            chosen[first][last][place] = way;
        }
    }
    (table, chosen)
}

/// The last block of each stage but the last, where each slice runs one and blocks cost this much on it: slower slices get
/// fewer blocks. None where there are fewer blocks than slices.
pub(super) fn divided(of_slices: &[BlockCosts], microbatches: usize) -> Option<Vec<usize>> {
    // Slices that cost the same are of one kind.
    let mut kinds: Vec<(&BlockCosts, Vec<usize>)> = Vec::new();
    for (place, own) in of_slices.iter().enumerate() {
        match kinds.iter_mut().find(|(costs, _)| costs.costs == own.costs) {
            Some((_, places)) => places.push(place),
            None => kinds.push((own, vec![place])),
        }
    }
    let kinds = kinds.into_iter().map(|(costs, begins)| Slices {
        kind: SliceKind { devices: 1, begins: Some(begins) },
        ways: vec![costs.clone()],
        available: None,
    });
    let layers = of_slices.first()?.costs.len();
    let (table, _) = table_of(&kinds.collect::<Vec<_>>(), layers, microbatches, vec![vec![0.0]; layers]);
    let count = of_slices.len();
    let found = stages(&table, count, microbatches).into_iter().find(|found| found.stages.len() == count)?;
    Some(found.stages[..count - 1].iter().map(|stage| stage.last).collect())
}

/// The repeated blocks of a model, such as `layers.0`: the module paths up to their first number, in order.
pub(super) fn blocks(graph: &Graph) -> Vec<String> {
    blocks_among(graph, &|_| true)
}

/// Those of the forward nodes that `is_own` takes.
pub(super) fn blocks_among(graph: &Graph, is_own: &dyn Fn(&Node) -> bool) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward && is_own(node)) {
        if let Some(block) = block_of(&node.path).filter(|block| !found.contains(block)) {
            found.push(block);
        }
    }
    found
}

/// Patterns that together match each block once: one for the blocks of each kind, `layers.*`, and where that matches a
/// module around blocks of another kind, the blocks by name.
pub(super) fn patterns(blocks: &[String]) -> Vec<String> {
    let of_block = |block: &str| format!("{}*", block.trim_end_matches(|c: char| c.is_ascii_digit()));
    let mut patterns: Vec<String> = Vec::new();
    for block in blocks {
        let pattern = of_block(block);
        let is_around = |other: &String| {
            let ends = other.match_indices('.').map(|(end, _)| end).chain([other.len()]);
            of_block(other) != pattern && ends.into_iter().any(|end| matches(&pattern, &other[..end]))
        };
        let pattern = if blocks.iter().any(is_around) { block.clone() } else { pattern };
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    patterns
}

fn block_of(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('.').collect();
    let number = parts.iter().position(|part| part.parse::<usize>().is_ok())?;
    Some(parts[..=number].join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks alike, each of which takes so many seconds.
    fn alike(count: usize, each_s: f64) -> BlockCosts {
        let cost =
            BlockCost { each_s, once_s: 0.5, states: 8.0, kept: 2.0, peak: 3.0, ..BlockCost::default() };
        let names = (0..count).map(|block| format!("layers.{block}")).collect();
        BlockCosts { names, costs: vec![cost; count] }
    }

    #[test]
    fn slow_slices_get_fewer_blocks() {
        let [fast, slow] = [1.0, 2.0].map(|each_s| alike(9, each_s));
        assert_eq!(divided(&[fast.clone(), slow.clone()], 8), Some(vec![5]));
        assert_eq!(divided(&[slow.clone(), fast.clone()], 8), Some(vec![2]));
        assert_eq!(divided(&[fast.clone(), fast.clone(), fast.clone()], 8), Some(vec![2, 5]));
        // Two of four slices are half as fast: two thirds of 12 blocks are on the first two.
        let [fast, slow] = [1.0, 2.0].map(|each_s| alike(12, each_s));
        let ends = divided(&[fast.clone(), fast.clone(), slow.clone(), slow.clone()], 8).unwrap();
        assert_eq!(ends, [3, 7, 9]);
        assert_eq!(divided(&vec![fast; 13], 8), None);
    }

    #[test]
    fn a_stage_takes_the_way_that_fits() {
        // The first way is faster, the second one keeps less.
        let ways = vec![
            alike(4, 1.0),
            BlockCosts {
                costs: alike(4, 1.5).costs.iter().map(|c| BlockCost { states: 4.0, ..*c }).collect(),
                ..alike(4, 1.5)
            },
        ];
        let slices = Slices { kind: SliceKind::anywhere(1), ways, available: Some(21) };
        let (table, chosen) = table_of(&[slices], 4, 4, vec![vec![0.0]; 4]);
        // One block: 8 bytes of states and 3 at a time leave 10 for microbatches of 2 each. Two: 16 and 3 leave 2.
        assert_eq!((chosen[0][0][0], table.successors[0][0][0], table.seconds[0][0][0]), (0, 4, 1.0));
        assert_eq!((chosen[0][1][0], table.successors[0][1][0], table.seconds[0][1][0]), (1, 1, 3.0));
        assert_eq!(table.successors[0][3][0], -1);
    }

    /// Each block is recomputed once, in whatever order blocks of several kinds run, and wherever they are.
    #[test]
    fn patterns_match_each_block_once() {
        let rows: [(&[&str], &[&str]); 4] = [
            (&["layers.0", "layers.1", "layers.10"], &["layers.*"]),
            (&["conv.0", "norm.0", "attn.0", "norm.1", "attn.1"], &["conv.*", "norm.*", "attn.*"]),
            (&["m.0", "m.encoder.0", "m.encoder.1", "m.1"], &["m.0", "m.encoder.*", "m.1"]),
            (&["0", "1", "head.0"], &["0", "1", "head.*"]),
        ];
        for (blocks, expected) in rows {
            let blocks: Vec<String> = blocks.iter().map(|block| block.to_string()).collect();
            assert_eq!(patterns(&blocks), expected);
        }
    }

    #[test]
    fn costs_follow_the_rows() {
        let [one, other] = [alike(2, 1.0), alike(2, 3.0)];
        assert_eq!(one.between(&other, [4, 8, 6]).costs[0].each_s, 2.0);
        let scaled = one.scaled(&one, &other, 2.0).costs[1];
        assert_eq!((scaled.each_s, scaled.kept, scaled.states), (3.0, 4.0, 8.0));
        let names: Vec<String> = (0..7).map(|block| format!("layers.{block}")).collect();
        let mut three = alike(3, 1.0);
        three.costs[2].each_s = 5.0;
        let like = |block: usize| Some(if block == 6 { 2 } else { block.min(1) });
        let all: Vec<f64> = three.expanded(&names, &like).costs.iter().map(|cost| cost.each_s).collect();
        assert_eq!(all, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0]);
    }
}
