//! Splits fused projections: a parameter whose matmul result is sliced becomes one parameter per
//! slice.
//!
//! The rows of a fused `qkv_proj` are those of q, then k, then v. Sharded as one dimension, a rank
//! would get rows that straddle these parts. Stored as an ordered list of parts under one global
//! name, each part is sharded by its own heads; checkpoints join the parts again.

use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::ops::{BinaryKind, BroadcastInDim, DotGeneral};
use partita_ir::{Graph, GraphBuilder, NodeId, Op, Pieces, Role, ValueId};

/// One fused projection: a parameter, the ops up to the slices, and the slices of the result.
struct Fused {
    weight: ValueId,
    /// The split dimension of the weight.
    dim: usize,
    bias: Option<ValueId>,
    /// The nodes from the weight to the result: conversions and the matmul; with a bias also its
    /// conversions, its broadcast, and the sum.
    nodes: Vec<NodeId>,
    /// For each part: its start, its end, and the slices that read it.
    slices: Vec<(usize, usize, Vec<NodeId>)>,
}

/// Splits every fused projection of a forward graph. A parameter is fused if its only use is as the
/// right operand of one matmul without batch dimensions on that side (conversions may come
/// between), and if only slices read the matmul's result, possibly after adding the broadcast of a
/// parameter used only there. The slices must be along the parameter's free dimension and cover it
/// in order. Returns the graph with one matmul per slice, and how parameters were split; parts take
/// the parameter's place among the inputs.
pub fn split_fused(graph: &Graph) -> Result<(Graph, Vec<Pieces>)> {
    let uses = graph.uses();
    let fused: Vec<Fused> = graph.params().into_iter().filter_map(|p| find(graph, &uses, p)).collect();
    if fused.is_empty() {
        return Ok((graph.clone(), Vec::new()));
    }
    let mut pieces: IndexMap<ValueId, Pieces> = IndexMap::new();
    for one in &fused {
        for (parameter, dim) in [Some((one.weight, one.dim)), one.bias.map(|b| (b, 0))].into_iter().flatten()
        {
            let name = graph.value(parameter).name.clone();
            let limit = |(i, (start, limit, _)): (usize, &(usize, usize, Vec<NodeId>))| {
                (format!("{name}#{i}"), *start, *limit)
            };
            let limits = one.slices.iter().enumerate().map(limit).collect();
            pieces.insert(parameter, Pieces { name, dim, limits });
        }
    }
    Ok((rewrite(graph, &fused, &pieces)?, pieces.into_values().collect()))
}

fn find(graph: &Graph, uses: &[Vec<(NodeId, usize)>], weight: ValueId) -> Option<Fused> {
    let only_use = |value: ValueId| match uses[value.index()].as_slice() {
        [single] if !graph.outputs.contains(&value) => Some(*single),
        _ => None,
    };
    // Follows conversions to the only other op that reads the value.
    let through_conversions = |mut value: ValueId, nodes: &mut Vec<NodeId>| loop {
        let (id, position) = only_use(value)?;
        nodes.push(id);
        if !matches!(graph.node(id).op, Op::Convert(_)) {
            return Some((id, position));
        }
        value = graph.node(id).results[0];
    };
    let mut nodes = Vec::new();
    let (product, position) = through_conversions(weight, &mut nodes)?;
    let Op::DotGeneral(dot) = &graph.node(product).op else { return None };
    let dim = free_dim(dot, graph.ty(weight).rank()).filter(|_| position == 1)?;
    let mut result = graph.node(product).results[0];
    let last = graph.ty(result).rank() - 1;
    let mut bias = None;
    if let Some((sum, position)) = only_use(result)
        && matches!(&graph.node(sum).op, Op::Binary(b) if b.kind == BinaryKind::Add)
    {
        let other = graph.node(sum).operands[1 - position];
        let parameter = bias_of(graph, other, last)?;
        let mut of_bias = Vec::new();
        let (broadcast, _) = through_conversions(parameter, &mut of_bias)?;
        // The broadcast may be read by the sum only.
        (only_use(graph.node(broadcast).results[0])?.0 == sum).then_some(())?;
        nodes.extend(of_bias);
        nodes.push(sum);
        (bias, result) = (Some(parameter), graph.node(sum).results[0]);
    }
    let slices = slices_of(graph, &uses[result.index()], result, last)?;
    let read_elsewhere = graph.outputs.contains(&result);
    (!read_elsewhere && slices.len() > 1).then_some(Fused { weight, dim, bias, nodes, slices })
}

/// The only dimension of a right operand of this rank that appears in the result.
fn free_dim(dot: &DotGeneral, rank: usize) -> Option<usize> {
    let mut free = (0..rank).filter(|d| !dot.rhs_contracting.contains(d));
    let first = free.next()?;
    (dot.rhs_batch.is_empty() && free.next().is_none()).then_some(first)
}

/// The rank-1 parameter that `value` broadcasts along dimension `last`.
fn bias_of(graph: &Graph, value: ValueId, last: usize) -> Option<ValueId> {
    let (id, _) = graph.value(value).definition?;
    let Op::BroadcastInDim(broadcast) = &graph.node(id).op else { return None };
    if broadcast.dims != [last] {
        return None;
    }
    let mut source = graph.node(id).operands[0];
    while let Some((id, _)) = graph.value(source).definition {
        let Op::Convert(_) = &graph.node(id).op else { return None };
        source = graph.node(id).operands[0];
    }
    let fits = graph.ty(source).rank() == 1 && graph.ty(source).shape[0] == graph.ty(value).shape[last];
    (fits && graph.value(source).role == Role::Param).then_some(source)
}

/// The slices that read `value`, by their start, if they split `dim` alone and cover it in order.
fn slices_of(
    graph: &Graph,
    uses: &[(NodeId, usize)],
    value: ValueId,
    dim: usize,
) -> Option<Vec<(usize, usize, Vec<NodeId>)>> {
    let shape = &graph.ty(value).shape;
    let mut slices: Vec<(usize, usize, Vec<NodeId>)> = Vec::new();
    for &(id, _) in uses {
        let Op::Slice(slice) = &graph.node(id).op else { return None };
        let whole = |d: usize| d == dim || (slice.start[d] == 0 && slice.limit[d] == shape[d]);
        if !(0..shape.len()).all(whole) || slice.stride.iter().any(|&s| s != 1) {
            return None;
        }
        let (start, limit) = (slice.start[dim], slice.limit[dim]);
        match slices.iter_mut().find(|(s, l, _)| (*s, *l) == (start, limit)) {
            Some((_, _, readers)) => readers.push(id),
            None => slices.push((start, limit, vec![id])),
        }
    }
    slices.sort();
    let mut end = 0;
    for &(start, limit, _) in &slices {
        if start != end || limit <= start {
            return None;
        }
        end = limit;
    }
    (end == shape[dim]).then_some(slices)
}

fn rewrite(graph: &Graph, fused: &[Fused], pieces: &IndexMap<ValueId, Pieces>) -> Result<Graph> {
    let mut builder = GraphBuilder::new(&graph.name);
    builder.graph_mut().meshes = graph.meshes.clone();
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut piece_values: IndexMap<(ValueId, usize), ValueId> = IndexMap::new();
    let mut positions = Vec::new();
    for &input in &graph.inputs {
        let value = graph.value(input);
        positions.push(builder.graph().inputs.len());
        let Some(cut) = pieces.get(&input) else {
            let new = builder.input(&value.name, value.ty.clone(), value.role.clone());
            let target = builder.graph_mut().value_mut(new);
            (target.annotation, target.group) = (value.annotation.clone(), value.group);
            map[input.index()] = Some(new);
            continue;
        };
        for (number, (name, start, limit)) in cut.limits.iter().enumerate() {
            let mut shape = value.ty.shape.clone();
            shape[cut.dim] = limit - start;
            let new = builder.input(name, value.ty.with_shape(shape), Role::Param);
            builder.graph_mut().value_mut(new).annotation = value.annotation.clone();
            piece_values.insert((input, number), new);
        }
    }
    let mut dropped = vec![false; graph.nodes.len()];
    let mut slice_of: IndexMap<NodeId, (usize, usize)> = IndexMap::new();
    for (which, one) in fused.iter().enumerate() {
        for id in &one.nodes {
            dropped[id.index()] = true;
        }
        for (number, (_, _, readers)) in one.slices.iter().enumerate() {
            slice_of.extend(readers.iter().map(|&id| (id, (which, number))));
        }
    }
    let mut done: IndexMap<(usize, usize), ValueId> = IndexMap::new();
    for id in graph.node_ids().filter(|id| !dropped[id.index()]) {
        let node = graph.node(id);
        if let Some(&(which, number)) = slice_of.get(&id) {
            let new = match done.get(&(which, number)) {
                Some(&new) => new,
                None => project(graph, &mut builder, &fused[which], number, &map, &piece_values)?,
            };
            done.insert((which, number), new);
            map[node.results[0].index()] = Some(new);
            continue;
        }
        let operands: Vec<ValueId> = node
            .operands
            .iter()
            .map(|v| map[v.index()].expect("what is dropped is read by slices alone"))
            .collect();
        let results = partita_ir::graph_edit::push_copy(&mut builder, graph, id.index(), &operands);
        for (&old, new) in node.results.iter().zip(results) {
            map[old.index()] = Some(new);
            let source = graph.value(old);
            let target = builder.graph_mut().value_mut(new);
            (target.name, target.annotation) = (source.name.clone(), source.annotation.clone());
            target.group = source.group;
        }
    }
    let outputs = graph.outputs.iter().map(|v| map[v.index()].expect("outputs are kept")).collect();
    let mut result = builder.finish(outputs);
    result.output_names = graph.output_names.clone();
    result.output_annotations = graph.output_annotations.clone();
    result.aliases = graph.aliases.iter().map(|&(input, output)| (positions[input], output)).collect();
    Ok(result)
}

/// Repeats a projection with one part of its parameters.
fn project(
    graph: &Graph,
    builder: &mut GraphBuilder,
    fused: &Fused,
    number: usize,
    map: &[Option<ValueId>],
    pieces: &IndexMap<(ValueId, usize), ValueId>,
) -> Result<ValueId> {
    let mut local: IndexMap<ValueId, ValueId> = IndexMap::new();
    for parameter in [Some(fused.weight), fused.bias].into_iter().flatten() {
        local.insert(parameter, pieces[&(parameter, number)]);
    }
    let extent = fused.slices[number].1 - fused.slices[number].0;
    let mut last = local[&fused.weight];
    for &id in &fused.nodes {
        let node = graph.node(id);
        let operand = |v: &ValueId| local.get(v).copied().or(map[v.index()]).expect("nodes stand in order");
        let operands: Vec<ValueId> = node.operands.iter().map(operand).collect();
        let op = if let Op::BroadcastInDim(broadcast) = &node.op {
            let mut shape = broadcast.shape.clone();
            if let Some(dim) = shape.last_mut() {
                *dim = extent;
            }
            Op::from(BroadcastInDim { shape, dims: broadcast.dims.clone() })
        } else {
            node.op.clone()
        };
        builder.enter(node);
        last = builder.push1(op, &operands)?;
        local.insert(node.results[0], last);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_ir::Literal;
    use partita_ir::{TensorType, evaluate};
    use partita_nn::models::{LlamaConfig, ModelConfig};

    fn ramp(ty: &TensorType, seed: usize) -> Literal {
        let values = (0..ty.element_count()).map(|i| ((i * 37 + seed * 101) % 97) as f64 / 48.5 - 1.0);
        Literal::from_f64(ty, values.collect::<Vec<f64>>().into_iter())
    }

    /// Checks that the split graph gives the same numbers, for any inputs of the graph.
    fn assert_same_numbers(before: &Graph, after: &Graph, pieces: &[Pieces]) {
        let inputs: Vec<Literal> = before
            .inputs
            .iter()
            .enumerate()
            .map(|(i, &v)| {
                let ty = before.ty(v);
                if ty.dtype.is_float() { ramp(ty, i) } else { Literal::splat(ty, (i % 3) as f64) }
            })
            .collect();
        let cut: Vec<Literal> = before
            .inputs
            .iter()
            .zip(&inputs)
            .flat_map(|(&v, whole)| match pieces.iter().find(|p| p.name == before.value(v).name) {
                Some(pieces) => pieces.split(whole).into_iter().map(|(_, piece)| piece).collect(),
                None => vec![whole.clone()],
            })
            .collect();
        assert_eq!(evaluate(before, &inputs).unwrap(), evaluate(after, &cut).unwrap());
    }

    fn fused(bias: bool, limits: &[(usize, usize)]) -> Graph {
        let mut b = GraphBuilder::new("fused");
        let x = b.input("x", TensorType::new(DType::F64, [2, 3]), Role::Input);
        let w = b.input("qkv_proj.weight", TensorType::new(DType::F64, [8, 3]), Role::Param);
        b.path = "qkv_proj".to_string();
        let mut y = b.linear(x, w).unwrap();
        if bias {
            let bias = b.input("qkv_proj.bias", TensorType::new(DType::F64, [8]), Role::Param);
            let wide = b.broadcast_trailing(bias, &[2, 8]).unwrap();
            y = b.add(y, wide).unwrap();
        }
        let outputs = limits.iter().map(|&(start, limit)| b.slice_dim(y, 1, start, limit).unwrap()).collect();
        b.finish(outputs)
    }

    #[test]
    fn unequal_pieces_give_the_same_numbers() {
        for bias in [false, true] {
            // Slices in another order, one of them read twice.
            let before = fused(bias, &[(6, 8), (0, 4), (4, 6), (0, 4)]);
            let (after, pieces) = split_fused(&before).unwrap();
            assert_eq!(pieces.len(), 1 + usize::from(bias));
            let limits: Vec<(&str, usize, usize)> =
                pieces[0].limits.iter().map(|(n, s, l)| (n.as_str(), *s, *l)).collect();
            let expected =
                [("qkv_proj.weight#0", 0, 4), ("qkv_proj.weight#1", 4, 6), ("qkv_proj.weight#2", 6, 8)];
            assert_eq!(limits, expected);
            assert!(!after.nodes.iter().any(|n| matches!(n.op, Op::Slice(_))));
            assert!(after.nodes.iter().all(|n| n.path == "qkv_proj"));
            assert_same_numbers(&before, &after, &pieces);
        }
    }

    #[test]
    fn pieces_join_to_what_was_split() {
        let ty = TensorType::new(DType::F32, [2, 7]);
        let whole = ramp(&ty, 1);
        let pieces = Pieces {
            name: "w".into(),
            dim: 1,
            limits: vec![("w#0".into(), 0, 4), ("w#1".into(), 4, 5), ("w#2".into(), 5, 7)],
        };
        let parts: Vec<Literal> = pieces.split(&whole).into_iter().map(|(_, p)| p).collect();
        assert_eq!(parts.iter().map(|p| p.ty.shape.clone()).collect::<Vec<_>>(), [[2, 4], [2, 1], [2, 2]]);
        assert_eq!(pieces.join(&parts), whole);
    }

    #[test]
    fn a_grouped_query_model_splits_by_its_heads() {
        let config =
            LlamaConfig { fused_qkv: true, layers: 2, sequence: 4, vocab: 8, ..LlamaConfig::default() };
        let model = ModelConfig::Llama(config).build(2, DType::F64, false).unwrap();
        let (after, pieces) = split_fused(&model.forward).unwrap();
        let limits: Vec<(usize, usize)> = pieces[0].limits.iter().map(|(_, s, l)| (*s, *l)).collect();
        assert_eq!((pieces.len(), limits), (2, vec![(0, 64), (64, 96), (96, 128)]));
        assert_same_numbers(&model.forward, &after, &pieces);
    }
}
