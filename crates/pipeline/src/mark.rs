//! Assigns each node of a forward graph to a stage. Marks are set before differentiation, which
//! copies them: the gradient of a node belongs to the node's stage.

use crate::feed::from_feed;
use crate::layers::{layers, work};
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, ValueId};
use std::collections::BTreeSet;
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
/// module. Where these are fewer than the stages, and no block repeats, the graph is clustered into
/// as many layers by its dataflow, see [`layers`].
///
/// # Errors
/// E460 if there are fewer blocks than stages.
pub fn evenly(forward: &mut Graph, count: usize) -> Result<()> {
    let named = blocks(forward);
    let is_by_dataflow = named.len() < count && !has_repeated_blocks(forward);
    let blocks = if is_by_dataflow { layers(forward, count)? } else { named };
    grouping(forward, &blocks, count)
}

/// Whether two numbered modules of a graph have the same name but for the number: `layers.0` and `layers.1`.
pub fn has_repeated_blocks(graph: &Graph) -> bool {
    let numbered: BTreeSet<&str> =
        graph.nodes.iter().map(|node| block_of(&node.path)).filter(|block| is_numbered(block)).collect();
    let stems = numbered.iter().map(|block| block.trim_end_matches(|c: char| c.is_ascii_digit()));
    stems.collect::<BTreeSet<&str>>().len() < numbered.len()
}

/// The scope in which a program puts its layer of this number: `pp_stage_0`, `pp_stage_1`, ..
pub const LAYER_SCOPE: &str = "pp_stage_";

/// The scope in which a program requests so many layers: `pp_layers_4`.
pub const LAYER_COUNT_SCOPE: &str = "pp_layers_";

/// Cuts the forward graph into `count` stages where the scopes of its nodes request it, see [`LAYER_SCOPE`] and
/// [`LAYER_COUNT_SCOPE`]: layers become stages, neighbours one stage where there are more layers than stages. A node
/// outside of all layers joins the last layer that it reads, or else the first that reads it. A graph without such
/// scopes is cut as [`evenly`] does.
///
/// # Errors
/// E460 if there are fewer layers than stages.
pub fn by_scopes(forward: &mut Graph, count: usize) -> Result<()> {
    let asked = forward.nodes.iter().find_map(|node| numbered(&node.path, LAYER_COUNT_SCOPE));
    if let Some(asked) = asked {
        layered(forward, asked)?;
        return regrouped(forward, count);
    }
    let mut layer: Vec<Option<usize>> =
        forward.nodes.iter().map(|node| numbered(&node.path, LAYER_SCOPE)).collect();
    if layer.iter().all(Option::is_none) {
        return evenly(forward, count);
    }
    let is_local = from_feed(forward, |_| false);
    for (index, node) in forward.nodes.iter().enumerate() {
        let maker = |operand: &ValueId| forward.value(*operand).definition.map(|(id, _)| id.index());
        let of_operands = node.operands.iter().filter(|operand| !is_local[operand.index()]);
        let read = of_operands.filter_map(maker).filter_map(|maker| layer[maker]).max();
        layer[index] = layer[index].max(read);
    }
    let mut first_reader: Vec<Option<usize>> = vec![None; forward.values.len()];
    for (index, node) in forward.nodes.iter().enumerate().rev() {
        let readers = node.results.iter().filter_map(|result| first_reader[result.index()]);
        let own = *layer[index].get_or_insert(readers.min().unwrap_or(0));
        for operand in &node.operands {
            let first = &mut first_reader[operand.index()];
            *first = Some(first.map_or(own, |other| other.min(own)));
        }
    }
    for (node, layer) in forward.nodes.iter_mut().zip(layer) {
        node.stage = layer.unwrap_or(0);
    }
    let layers = forward.nodes.iter().map(|node| node.stage + 1).max().unwrap_or(0);
    if layers == count { Ok(()) } else { grouped(forward, layers, count) }
}

/// Makes `count` stages of nearly equal work from the layers that the nodes have, in whatever order the nodes are.
fn grouped(forward: &mut Graph, layers: usize, count: usize) -> Result<()> {
    if layers < count {
        return Err(too_few(layers, count));
    }
    let mut sums = vec![0.0; layers];
    for node in &forward.nodes {
        sums[node.stage] += work(forward, node);
    }
    let ends = balanced(&sums, count);
    for node in &mut forward.nodes {
        node.stage = ends.partition_point(|&end| end < node.stage);
    }
    Ok(())
}

/// The number of a scope in a module path: 3 in `step.pp_stage_3.dense`.
fn numbered(path: &str, scope: &str) -> Option<usize> {
    path.split('.').find_map(|part| part.strip_prefix(scope)?.parse().ok())
}

/// A module path without the scopes of layers.
pub fn without_scopes(path: &str) -> String {
    let is_module =
        |part: &&str| numbered(part, LAYER_SCOPE).is_none() && numbered(part, LAYER_COUNT_SCOPE).is_none();
    path.split('.').filter(is_module).collect::<Vec<_>>().join(".")
}

fn too_few(blocks: usize, count: usize) -> Box<Diagnostic> {
    Diagnostic::new("E460", format!("{count} pipeline stages for {blocks} blocks"))
        .at("mesh axis pp")
        .expected(format!("at most {blocks} stages: one for each block of the model"))
        .found(count.to_string())
        .help(format!(
            "use fewer ranks on the axis pp, or stages that end within blocks: `\"\" = \"layers({count})\"` in the plan"
        ))
}

/// As [`evenly`], for these blocks: consecutive positions of the execution order.
fn grouping(forward: &mut Graph, blocks: &[Range<usize>], count: usize) -> Result<()> {
    if blocks.len() < count {
        return Err(too_few(blocks.len(), count));
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

fn is_numbered(block: &str) -> bool {
    block.rsplit('.').next().is_some_and(is_number)
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
    use super::*;
    use partita_base::DType;
    use partita_ir::{GraphBuilder, Operation, Role, TensorType};

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

    /// A chain of matmuls, one for each path, each with a constant that is added before it.
    fn chain(paths: &[&str]) -> Graph {
        let mut b = GraphBuilder::new("forward");
        let ty = TensorType::new(DType::F32, [4, 4]);
        let mut value = b.input("x", ty.clone(), Role::Input);
        let weights: Vec<ValueId> =
            (0..paths.len()).map(|i| b.input(&format!("w{i}"), ty.clone(), Role::Param)).collect();
        for (path, weight) in paths.iter().zip(weights) {
            b.path = String::new();
            let ones = b.full(&ty, 1.0).unwrap();
            b.path = path.to_string();
            let sum = b.add(weight, ones).unwrap();
            value = b.linear(value, sum).unwrap();
        }
        b.finish_named(vec![("y".to_string(), value)])
    }

    fn stages_of_matmuls(forward: &Graph) -> Vec<usize> {
        let matmuls = forward.nodes.iter().filter(|node| node.op.short_name() == "dot_general");
        matmuls.map(|node| node.stage).collect()
    }

    #[test]
    fn scopes_of_layers_become_stages_and_constants_follow_their_readers() {
        let paths = ["pp_stage_0.a", "pp_stage_0.b", "net.pp_stage_1.c", "pp_stage_2", ""];
        for (count, expected) in [(3, [0, 0, 1, 2, 2]), (2, [0, 0, 1, 1, 1]), (1, [0; 5])] {
            let mut forward = chain(&paths);
            by_scopes(&mut forward, count).unwrap();
            assert_eq!(stages_of_matmuls(&forward), expected, "{count}");
            // A node is in no earlier stage than what it reads, and a constant is where it is read.
            let makers = |node: &partita_ir::Node| {
                let made = node.operands.iter().filter_map(|&v| forward.value(v).definition);
                made.map(|(id, _)| forward.node(id).stage).collect::<Vec<_>>()
            };
            assert!(forward.nodes.iter().all(|node| makers(node).iter().all(|&stage| stage <= node.stage)));
            let constants = forward.nodes.iter().filter(|node| node.op.short_name() == "constant");
            assert_eq!(constants.map(|node| node.stage).collect::<Vec<_>>(), expected);
        }
        assert_eq!(by_scopes(&mut chain(&paths), 4).unwrap_err().code, "E460");
    }

    #[test]
    fn a_scope_may_ask_for_layers_and_no_scope_means_an_even_split() {
        let mut forward = chain(&["pp_layers_4.net"; 4]);
        by_scopes(&mut forward, 2).unwrap();
        assert_eq!(stages_of_matmuls(&forward), [0, 0, 1, 1]);
        assert_eq!(by_scopes(&mut chain(&["pp_layers_9"; 4]), 2).unwrap_err().code, "E460");
        let mut forward = chain(&["a", "b", "c"]);
        by_scopes(&mut forward, 3).unwrap();
        assert_eq!(stages_of_matmuls(&forward), [0, 1, 2]);
    }

    #[test]
    fn without_repeated_blocks_stages_are_cut_by_dataflow() {
        for paths in [["net"; 4], ["enc.0.a", "enc.0.a", "enc.0.b", "enc.0.b"], ["a", "b.0", "b.0", "b.0"]] {
            let mut forward = chain(&paths);
            assert!(!has_repeated_blocks(&forward));
            evenly(&mut forward, 4).unwrap();
            assert_eq!(stages_of_matmuls(&forward), [0, 1, 2, 3], "{paths:?}");
            // Sums count too; there are eight ops.
            assert_eq!(evenly(&mut chain(&paths), 9).unwrap_err().code, "E460");
        }
        // Blocks that repeat are not cut: there the residual stream and what is computed beside it would cross.
        let mut forward = chain(&["layers.0", "layers.0", "layers.1", "layers.1"]);
        assert!(has_repeated_blocks(&forward));
        assert_eq!(evenly(&mut forward, 3).unwrap_err().code, "E460");
    }

    #[test]
    fn scopes_are_no_part_of_a_module_path() {
        assert_eq!(without_scopes("pp_stage_1.net.dense"), "net.dense");
        assert_eq!(without_scopes("net.pp_layers_2.dense"), "net.dense");
        assert_eq!(without_scopes("net.pp_stage_x"), "net.pp_stage_x");
    }
}
