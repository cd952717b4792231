//! One program for all ranks, as XLA runs it: the local graphs of the rank classes, merged.
//!
//! [`partition`](crate::partition()) writes one graph per class of ranks with equal shards; all have one structure, and
//! the same decisions and collectives. Rank 0 holds the largest shard of every dimension, so its graph has the shapes of
//! the merged one, and the other ranks pad their shards at the end. What a pad holds is unknown; where an op would
//! combine it with elements, which its factor rule says, the pad is replaced by the combiner's identity. Collectives
//! move pieces of equal sizes: elements are rearranged before and after. Constants that differ between classes are
//! looked up by the rank's number.

use crate::emit::same_structure;
use crate::partition::Partitioned;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::builder::identity;
use partita_ir::ops::{
    AllGather, AllToAll, BroadcastInDim, Direction, DynamicSlice, Gather, GatherDims, Pad, PartitionId,
    ReduceScatter,
};
use partita_ir::{
    FactorKind, Graph, GraphBuilder, Literal, Node, Op, Operation, Rule, TensorType, ValueId, graph_edit,
};
use partita_mesh::Combiner;
use std::collections::BTreeMap;

/// The program of every rank: StableHLO without composites, in which the rank's number is the only thing that differs.
/// Its inputs and outputs are shards, padded at the end of each dimension to the size of rank 0's.
///
/// # Errors
/// E275 for an op whose shards differ between ranks in a way that padding cannot express.
pub fn uniform(partitioned: &Partitioned) -> Result<Graph> {
    let opened = |graph: &Graph| graph_edit::open_composites(graph, &|_| true);
    let classes = partitioned.locals.iter().map(opened).collect::<Result<Vec<Graph>>>()?;
    same_structure(&classes)?;
    let of_rank = &partitioned.class_of_rank;
    let mut graph = match classes.len() {
        1 => classes.into_iter().next().expect("a mesh has ranks"),
        _ => Merger {
            whole: &classes[of_rank[0]],
            classes: &classes,
            of_rank,
            rows: BTreeMap::new(),
            masked: BTreeMap::new(),
        }
        .run()?,
    };
    graph.meshes.clear();
    graph.name = "main".to_string();
    Ok(graph)
}

struct Merger<'a> {
    /// The graph of rank 0, whose shapes the result has.
    whole: &'a Graph,
    classes: &'a [Graph],
    of_rank: &'a [usize],
    /// The rows of tables over ranks that were looked up, by type and bytes of the table.
    rows: BTreeMap<(String, Vec<u8>), ValueId>,
    /// Values whose pads along a dimension hold a combiner's identity.
    masked: BTreeMap<(ValueId, usize, Vec<usize>, Combiner), ValueId>,
}

impl Merger<'_> {
    fn run(mut self) -> Result<Graph> {
        let whole = self.whole;
        for value in whole.value_ids() {
            let shapes = self.classes.iter().map(|class| &class.ty(value).shape);
            let fits =
                |shape: &Vec<usize>| shape.iter().zip(&whole.ty(value).shape).all(|(own, most)| own <= most);
            if !shapes.into_iter().all(fits) {
                return Err(refused(&whole.describe(value), "a shard larger than that of rank 0"));
            }
        }
        graph_edit::rebuild(whole, |builder, _, index, operands| {
            builder.enter(&whole.nodes[index]);
            Ok(Some(self.emit(builder, index, operands)?))
        })
    }

    fn emit(&mut self, b: &mut GraphBuilder, index: usize, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let (whole, classes) = (self.whole, self.classes);
        let node = &whole.nodes[index];
        let is_even = node
            .operands
            .iter()
            .chain(&node.results)
            .all(|&value| (0..whole.ty(value).rank()).all(|dim| !self.varies(value, dim)));
        let is_same = classes.iter().all(|class| class.nodes[index].op == node.op);
        if is_even && is_same {
            return Ok(graph_edit::push_copy(b, whole, index, operands));
        }
        if matches!(node.op, Op::Constant(_)) {
            return Ok(vec![self.constant(b, index)?]);
        }
        if let Op::DynamicSlice(slice) = &node.op {
            return Ok(vec![self.dynamic_slice(b, node, slice, operands)?]);
        }
        if node.op.is_collective() && node.op.regions().is_empty() {
            return Ok(vec![self.collective(b, index, operands[0])?]);
        }
        if classes.iter().any(|class| padding_of(&class.nodes[index].op) != padding_of(&node.op)) {
            return Err(self.refused(node, "windows with other padding on some ranks"));
        }
        let regions = node.op.regions();
        if classes.iter().any(|class| class.nodes[index].op.regions() != regions) {
            return Err(self.refused(node, "a loop or branch whose body differs between ranks"));
        }
        let types = (whole.operand_types(node), whole.result_types(node));
        let rule = node.op.rule(&types.0, &types.1);
        for (&value, dims) in node.results.iter().zip(&rule.results) {
            for (dim, factors) in dims.iter().enumerate() {
                self.combines(node, value, dim, factors, &rule)?;
            }
        }
        let mut own = operands.to_vec();
        for ((&value, dims), operand) in node.operands.iter().zip(&rule.operands).zip(&mut own) {
            for (dim, factors) in dims.iter().enumerate() {
                if let Some(combiner) = self.combines(node, value, dim, factors, &rule)? {
                    *operand = self.mask(b, *operand, dim, &self.extents(value, dim), combiner)?;
                }
            }
        }
        Ok(graph_edit::push_copy(b, whole, index, &own))
    }

    /// The extent of a dimension of a value on each rank.
    fn extents(&self, value: ValueId, dim: usize) -> Vec<usize> {
        self.of_rank.iter().map(|&class| self.classes[class].ty(value).shape[dim]).collect()
    }

    /// Whether ranks have different extents.
    fn varies(&self, value: ValueId, dim: usize) -> bool {
        let own = self.whole.ty(value).shape[dim];
        self.classes.iter().any(|class| class.ty(value).shape[dim] != own)
    }

    /// The combiner along a dimension with pads that the op reduces; `None` if the op keeps elements and pads apart.
    fn combines(
        &self,
        node: &Node,
        value: ValueId,
        dim: usize,
        factors: &[usize],
        rule: &Rule,
    ) -> Result<Option<Combiner>> {
        let Some((&major, minor)) = factors.split_first().filter(|_| self.varies(value, dim)) else {
            return Ok(None);
        };
        let below: usize = minor.iter().map(|&factor| rule.factors[factor].size).product();
        if self.extents(value, dim).iter().any(|extent| !extent.is_multiple_of(below.max(1))) {
            return Err(self.refused(node, "pads between elements"));
        }
        match rule.factors[major].kind {
            FactorKind::Pass => Ok(None),
            FactorKind::Reduce(combiner) => Ok(Some(combiner)),
            FactorKind::Exchange | FactorKind::Window(_) | FactorKind::Shift | FactorKind::Whole => {
                Err(self.refused(node, &format!("dimension {dim} of {}", self.whole.ty(value))))
            }
        }
    }

    fn refused(&self, node: &Node, found: &str) -> Box<Diagnostic> {
        let at = node.results.first().map_or(String::new(), |&result| self.whole.describe(result));
        refused(&format!("{at} ({})", node.op.name()), found)
    }

    // ---- values that differ by rank ----

    /// A constant: looked up by the rank's number unless all ranks have the same.
    fn constant(&mut self, b: &mut GraphBuilder, index: usize) -> Result<ValueId> {
        let of_class = |class: &Graph| {
            let Op::Constant(constant) = &class.nodes[index].op else {
                unreachable!("the graphs have one structure")
            };
            constant.value.clone()
        };
        let values: Vec<Literal> = self.classes.iter().map(of_class).collect();
        let own = &values[self.of_rank[0]];
        let repeats = |value: &Literal| {
            let (empty, first) = (value.data.is_empty(), || value.data.pick([0].into_iter()));
            empty || (value.is_splat() && own.is_splat() && first() == own.data.pick([0].into_iter()))
        };
        if !own.data.is_empty() && values.iter().all(repeats) {
            return Ok(b.constant(own.clone()));
        }
        let padded = |value: &Literal| {
            let mut padded = Literal::zeros(&own.ty);
            padded.set_window(&vec![0; own.ty.rank()], value);
            padded
        };
        let values: Vec<Literal> = values.iter().map(padded).collect();
        let of_rank: Vec<&Literal> = self.of_rank.iter().map(|&class| &values[class]).collect();
        self.row(b, &of_rank)
    }

    /// The literal of this rank.
    fn row(&mut self, b: &mut GraphBuilder, of_rank: &[&Literal]) -> Result<ValueId> {
        let ty = of_rank[0].ty.clone();
        let stacked = ty.with_shape([&[of_rank.len()], &ty.shape[..]].concat());
        let mut table = Literal::zeros(&stacked);
        for (rank, value) in of_rank.iter().enumerate() {
            for element in 0..ty.element_count() {
                table.data.put(rank * ty.element_count() + element, &value.data, element);
            }
        }
        let key = (stacked.to_string(), table.to_bytes());
        if let Some(&known) = self.rows.get(&key) {
            return Ok(known);
        }
        let table = b.constant(table);
        let rank = b.push1(PartitionId, &[])?;
        let rank = b.convert(rank, DType::I64)?;
        let zero = b.scalar(DType::I64, 0.0);
        let operands: Vec<ValueId> = [table, rank].into_iter().chain(vec![zero; ty.rank()]).collect();
        let row = b.push1(DynamicSlice { sizes: [&[1], &ty.shape[..]].concat() }, &operands)?;
        let row = b.reshape(row, &ty.shape)?;
        self.rows.insert(key, row);
        Ok(row)
    }

    /// This rank's numbers, of equal length on all ranks.
    fn numbers(&mut self, b: &mut GraphBuilder, of_rank: &[Vec<usize>]) -> Result<ValueId> {
        let literal = |list: &Vec<usize>| {
            Literal::new([list.len()], list.iter().map(|&n| n as i64).collect::<Vec<i64>>())
        };
        let literals: Vec<Literal> = of_rank.iter().map(literal).collect();
        self.row(b, &literals.iter().collect::<Vec<_>>())
    }

    // ---- pads ----

    /// The value with the combiner's identity beyond each rank's extent.
    fn mask(
        &mut self,
        b: &mut GraphBuilder,
        value: ValueId,
        dim: usize,
        extents: &[usize],
        combiner: Combiner,
    ) -> Result<ValueId> {
        let key = (value, dim, extents.to_vec(), combiner);
        if let Some(&known) = self.masked.get(&key) {
            return Ok(known);
        }
        let ty = b.ty(value).clone();
        let limit = self.numbers(b, &extents.iter().map(|&extent| vec![extent]).collect::<Vec<_>>())?;
        let limit = b.reshape(limit, &[])?;
        let line = TensorType::new(DType::I64, [ty.shape[dim]]);
        let place = b.iota(line.clone(), 0)?;
        let limit = b.broadcast_scalar(limit, &line.shape)?;
        let inside = b.compare(Direction::Lt, place, limit)?;
        let inside = b.push1(BroadcastInDim { shape: ty.shape.clone(), dims: vec![dim] }, &[inside])?;
        let nothing = b.constant(identity(combiner, ty.dtype));
        let nothing = b.broadcast_scalar(nothing, &ty.shape)?;
        let masked = b.select(inside, value, nothing)?;
        self.masked.insert(key, masked);
        Ok(masked)
    }

    /// A window of the size of rank 0's. On other ranks it may reach beyond the operand, which is then extended so that
    /// the start is not clamped.
    fn dynamic_slice(
        &mut self,
        b: &mut GraphBuilder,
        node: &Node,
        slice: &DynamicSlice,
        operands: &[ValueId],
    ) -> Result<ValueId> {
        let (from, to) = (node.operands[0], node.results[0]);
        let beyond = |dim: usize| match self.extents(from, dim) == self.extents(to, dim) {
            true => 0,
            false => slice.sizes[dim] - self.extents(to, dim).into_iter().min().unwrap_or(0),
        };
        let high: Vec<i64> = (0..slice.sizes.len()).map(|dim| beyond(dim) as i64).collect();
        let mut own = operands.to_vec();
        if high.iter().any(|&count| count > 0) {
            own[0] = extended(b, own[0], high)?;
        }
        b.push1(slice.clone(), &own)
    }

    // ---- collectives ----

    /// A collective over pieces of the size of rank 0's.
    fn collective(&mut self, b: &mut GraphBuilder, index: usize, operand: ValueId) -> Result<ValueId> {
        let node = &self.whole.nodes[index];
        let result = self.whole.ty(node.results[0]).clone();
        if matches!(node.op, Op::CollectivePermute(_)) && result.shape != b.shape(operand) {
            return Err(self.refused(node, "parts that differ between ranks"));
        }
        let own: Vec<&Op> = self.of_rank.iter().map(|&class| &self.classes[class].nodes[index].op).collect();
        if own.iter().all(|op| **op == node.op) && is_in_equal_parts(&node.op) {
            return Ok(b.push_typed(node.op.clone(), &[operand], vec![result])[0]);
        }
        if let Op::AllGather(op) = &node.op {
            let extents = |op: &&Op| if let Op::AllGather(op) = op { op.extents.clone() } else { Vec::new() };
            let lists: Vec<Vec<usize>> = own.iter().map(extents).collect();
            let piece = b.shape(operand)[op.dim];
            let even = AllGather { extents: vec![piece; op.extents.len()], ..op.clone() };
            let gathered = b.push1(even, &[operand])?;
            return self.packed(b, gathered, op.dim, piece, &lists, result.shape[op.dim]);
        }
        if let Op::ReduceScatter(op) = &node.op {
            let extents =
                |op: &&Op| if let Op::ReduceScatter(op) = op { op.extents.clone() } else { Vec::new() };
            let lists: Vec<Vec<usize>> = own.iter().map(extents).collect();
            let piece = result.shape[op.dim];
            let spread = self.spread(b, operand, op.dim, piece, &lists)?;
            let even = ReduceScatter { extents: vec![piece; op.extents.len()], ..op.clone() };
            return b.push1(even, &[spread]);
        }
        if let Op::AllToAll(op) = &node.op
            && op.split_dim != op.concat_dim
        {
            let each = own.iter().filter_map(|op| if let Op::AllToAll(op) = op { Some(op) } else { None });
            let (cut, join): (Vec<Vec<usize>>, Vec<Vec<usize>>) =
                each.map(|op| (op.split_extents.clone(), op.concat_extents.clone())).unzip();
            let (sent, received) = (result.shape[op.split_dim], b.shape(operand)[op.concat_dim]);
            let spread = self.spread(b, operand, op.split_dim, sent, &cut)?;
            let count = op.split_extents.len();
            let (split_extents, concat_extents) = (vec![sent; count], vec![received; count]);
            let moved = b.push1(AllToAll { split_extents, concat_extents, ..op.clone() }, &[spread])?;
            return self.packed(b, moved, op.concat_dim, received, &join, result.shape[op.concat_dim]);
        }
        Err(self.refused(node, "parts that differ between ranks"))
    }

    /// Pieces of `piece` elements, of which the first `lists[rank][i]` count, moved together; `extent` elements in all.
    fn packed(
        &mut self,
        b: &mut GraphBuilder,
        value: ValueId,
        dim: usize,
        piece: usize,
        lists: &[Vec<usize>],
        extent: usize,
    ) -> Result<ValueId> {
        let places = |list: &Vec<usize>| {
            let pieces = list.iter().enumerate().flat_map(|(i, &own)| i * piece..i * piece + own);
            let places: Vec<usize> = pieces.collect();
            let count = places.len();
            places.into_iter().chain(0..extent - count).collect()
        };
        let places: Vec<Vec<usize>> = lists.iter().map(places).collect();
        self.take(b, value, dim, &places)
    }

    /// The reverse: consecutive elements, of which the first `lists[rank][i]` are piece i, moved apart into pieces of
    /// `piece` elements.
    fn spread(
        &mut self,
        b: &mut GraphBuilder,
        value: ValueId,
        dim: usize,
        piece: usize,
        lists: &[Vec<usize>],
    ) -> Result<ValueId> {
        let last = b.shape(value)[dim].saturating_sub(1);
        let places = |list: &Vec<usize>| {
            let starts = list.iter().scan(0, |start, own| Some(std::mem::replace(start, *start + own)));
            starts.flat_map(|start| start..start + piece).map(|place| place.min(last)).collect()
        };
        let places: Vec<Vec<usize>> = lists.iter().map(places).collect();
        self.take(b, value, dim, &places)
    }

    /// The elements at these places of a dimension, a list of equal length for each rank: slices if all ranks have the
    /// same list.
    fn take(
        &mut self,
        b: &mut GraphBuilder,
        value: ValueId,
        dim: usize,
        places: &[Vec<usize>],
    ) -> Result<ValueId> {
        let ty = b.ty(value).clone();
        let is_identity = |list: &Vec<usize>| list.iter().copied().eq(0..ty.shape[dim]);
        if places.iter().all(is_identity) {
            return Ok(value);
        }
        if places.iter().all(|list| *list == places[0]) {
            let runs = places[0].chunk_by(|a, b| a + 1 == *b);
            let pieces = runs.map(|run| b.slice_dim(value, dim, run[0], run[0] + run.len()));
            let pieces = pieces.collect::<Result<Vec<ValueId>>>()?;
            return if let [only] = pieces[..] { Ok(only) } else { b.concatenate(&pieces, dim) };
        }
        let indices = self.numbers(b, places)?;
        let dims = GatherDims {
            offset_dims: (0..ty.rank()).filter(|&d| d != dim).collect(),
            collapsed_slice_dims: vec![dim],
            start_index_map: vec![dim],
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let mut slice_sizes = ty.shape.clone();
        slice_sizes[dim] = 1;
        b.push1(Gather { dims, slice_sizes, indices_are_sorted: false }, &[value, indices])
    }
}

/// The padding of an op with windows.
fn padding_of(op: &Op) -> Vec<(i64, i64)> {
    if let Op::Convolution(op) = op {
        return op.windows.iter().map(|window| window.padding).collect();
    }
    if let Op::ReduceWindow(op) = op {
        return op.padding.clone();
    }
    if let Op::SelectAndScatter(op) = op { op.padding.clone() } else { Vec::new() }
}

/// Whether the members of a collective send and receive parts of one size.
fn is_in_equal_parts(op: &Op) -> bool {
    let equal = |extents: &[usize]| extents.iter().all(|extent| *extent == extents[0]);
    let gathers = !matches!(op, Op::AllGather(op) if !equal(&op.extents));
    let scatters = !matches!(op, Op::ReduceScatter(op) if !equal(&op.extents));
    let exchanges =
        !matches!(op, Op::AllToAll(op) if !(equal(&op.split_extents) && equal(&op.concat_extents)));
    gathers && scatters && exchanges
}

/// The value with zeros after the end of each dimension.
fn extended(b: &mut GraphBuilder, value: ValueId, high: Vec<i64>) -> Result<ValueId> {
    let dtype = b.ty(value).dtype;
    let zero = b.scalar(dtype, 0.0);
    let rank = high.len();
    b.push1(Pad { low: vec![0; rank], high, interior: vec![0; rank] }, &[value, zero])
}

/// E275.
fn refused(at: &str, found: &str) -> Box<Diagnostic> {
    Diagnostic::new("E275", "this step cannot be one program for all ranks")
        .at(at)
        .expected("shards of equal sizes on all ranks, or of sizes that pads at the end can make equal")
        .found(found)
        .help("choose a mesh whose axes divide the dimensions that they split")
}
