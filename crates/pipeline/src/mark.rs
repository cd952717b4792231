//! Assigns each node of a forward graph to a stage. Marks are set before differentiation, which
//! copies them: the gradient of a node belongs to the node's stage.

use crate::layers::{layers, work};
use partita_base::{Diagnostic, Result};
use partita_ir::Graph;
use std::ops::Range;

/// Ends a stage after each of these positions in execution order: the stage of a node is the number
/// of ends before it.
pub fn after(forward: &mut Graph, ends: &[usize]) {
    let mut ends = ends.to_vec();
    ends.sort_unstable();
    for (index, node) in forward.nodes.iter_mut().enumerate() {
        node.stage = ends.partition_point(|&end| end < index);
    }
}

/// Ends a stage after each of these layers, see [`layers`]: the stage of a node is its layer. Later
/// rewrites of the graph keep it, and [`regrouped`] makes stages of the layers.
pub fn layered(forward: &mut Graph, count: usize) -> Result<Vec<Range<usize>>> {
    let layers = layers(forward, count)?;
    let ends: Vec<usize> = layers[..layers.len() - 1].iter().map(|layer| layer.end - 1).collect();
    after(forward, &ends);
    Ok(layers)
}

/// Groups the layers that [`layered`] marked into `count` stages of nearly equal work.
///
/// # Errors
/// E460 if there are fewer layers than stages.
pub fn regrouped(forward: &mut Graph, count: usize) -> Result<()> {
    // A rewritten layer may lie behind the begin of the next one.
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut layer = None;
    for (index, node) in forward.nodes.iter().enumerate() {
        match blocks.last_mut() {
            Some(block) if layer >= Some(node.stage) => block.end = index + 1,
            _ => {
                blocks.push(index..index + 1);
                layer = Some(node.stage);
            }
        }
    }
    grouping(forward, &blocks, count)
}

/// Cuts the forward graph into `count` stages of nearly equal work at block boundaries: it
/// minimises the floating-point operations of the largest stage. Block boundaries are where the
/// numbered module of the path changes (`layers.3`), or, without numbered modules, the outermost
/// module. A graph without module names is clustered into as many layers, see [`layers`].
///
/// # Errors
/// E460 if there are fewer blocks than stages.
pub fn evenly(forward: &mut Graph, count: usize) -> Result<()> {
    let is_unnamed = forward.nodes.iter().all(|node| block_of(&node.path).is_empty());
    let blocks = if is_unnamed { layers(forward, count)? } else { blocks(forward) };
    grouping(forward, &blocks, count)
}

/// As [`evenly`], for these blocks: consecutive positions of the execution order.
fn grouping(forward: &mut Graph, blocks: &[Range<usize>], count: usize) -> Result<()> {
    if blocks.len() < count {
        return Err(Diagnostic::new("E460", format!("{count} pipeline stages for {} blocks", blocks.len()))
            .at("mesh axis pp")
            .expected(format!("at most {} stages: one for each block of the model", blocks.len()))
            .found(count.to_string())
            .help("use a model or a line `layers(..)` with more blocks, or fewer ranks on the axis pp"));
    }
    let work: Vec<f64> = blocks
        .iter()
        .map(|block| forward.nodes[block.clone()].iter().map(|node| work(forward, node)).sum())
        .collect();
    let ends: Vec<usize> = balanced(&work, count).into_iter().map(|last| blocks[last].end - 1).collect();
    after(forward, &ends);
    Ok(())
}

/// Runs of nodes of one block, in execution order. If the model has numbered modules, these are
/// the blocks: nodes before the first one join it (an embedding), and nodes after one join that one
/// (a head, the loss).
fn blocks(forward: &Graph) -> Vec<Range<usize>> {
    let is_numbered = |name: &str| name.rsplit('.').next().is_some_and(is_number);
    let has_numbers = forward.nodes.iter().any(|node| is_numbered(block_of(&node.path)));
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut current: Option<&str> = None;
    for (index, node) in forward.nodes.iter().enumerate() {
        let name = block_of(&node.path);
        // Nodes between modules (a residual sum, a mask) join the block before them.
        let is_block = if has_numbers { is_numbered(name) } else { !name.is_empty() };
        if is_block && current != Some(name) {
            if current.is_some() {
                blocks.push(index..index);
            }
            current = Some(name);
        }
        match blocks.last_mut() {
            Some(block) => block.end = index + 1,
            None => blocks.push(0..index + 1),
        }
    }
    blocks
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// The module path up to and including its first number; without one, its first part.
pub fn block_of(path: &str) -> &str {
    let mut end = 0;
    for part in path.split('.') {
        end += part.len();
        if is_number(part) {
            return &path[..end];
        }
        end += 1;
    }
    path.split('.').next().unwrap_or_default()
}

/// Splits the blocks into `count` consecutive groups with the smallest largest sum, and returns the
/// last block of each group except the last. Dynamic programming over (groups, blocks).
fn balanced(work: &[f64], count: usize) -> Vec<usize> {
    let blocks = work.len();
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(work.iter().scan(0.0, |sum, w| {
            *sum += w;
            Some(*sum)
        }))
        .collect();
    // largest[g][b]: the least possible largest sum of the first `b` blocks in `g + 1` groups, and
    // the first block of the last group.
    let mut largest = vec![vec![(f64::INFINITY, 0); blocks + 1]; count];
    for end in 0..=blocks {
        largest[0][end] = (sums[end], 0);
    }
    for groups in 1..count {
        for end in groups + 1..=blocks {
            for begin in groups..end {
                let sum = largest[groups - 1][begin].0.max(sums[end] - sums[begin]);
                if sum < largest[groups][end].0 {
                    largest[groups][end] = (sum, begin);
                }
            }
        }
    }
    let (mut ends, mut end) = (Vec::new(), blocks);
    for groups in (1..count).rev() {
        end = largest[groups][end].1;
        ends.push(end - 1);
    }
    ends.reverse();
    ends
}

#[cfg(test)]
mod tests {
    use super::{balanced, block_of};

    #[test]
    fn a_block_ends_at_its_number() {
        assert_eq!(block_of("layers.3.attn.q_proj"), "layers.3");
        assert_eq!(block_of("model.layers.12"), "model.layers.12");
        assert_eq!(block_of("0.weight"), "0");
        assert_eq!(block_of("lm_head.weight"), "lm_head");
        assert_eq!(block_of(""), "");
    }

    #[test]
    fn the_largest_group_is_as_small_as_possible() {
        assert_eq!(balanced(&[1.0, 1.0, 1.0, 1.0], 2), [1]);
        assert_eq!(balanced(&[1.0, 1.0, 1.0, 5.0], 2), [2]);
        assert_eq!(balanced(&[4.0, 1.0, 1.0, 1.0, 4.0], 3), [0, 3]);
        assert_eq!(balanced(&[1.0, 2.0], 1), []);
        assert_eq!(balanced(&[0.0, 9.0, 0.0], 3), [0, 1]);
    }
}
