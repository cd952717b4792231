//! Folds values that depend on the rank's number, before anything runs.
//!
//! Partitioning writes one graph per rank class, in which positions, such as the offset of a shard
//! or the rows of a table, are looked up by `partition_id`. This pass folds these lookups: into
//! constants for one rank ([`specialise`]), or into [`RankConstant`]s for all ranks of a class
//! ([`specialise_class`]). A dynamic slice whose position is then known becomes a view of its
//! operand.

use partita_base::Result;
use partita_ir::ops::{Constant, RankConstant, Slice};
use partita_ir::traits::{Elementwise, Traits, ViewMap};
use partita_ir::{
    ClassGraph, Graph, GraphBuilder, Literal, Node, Op, Operation, TensorType, ValueId, graph_edit,
};
use std::borrow::Cow;
use std::sync::Arc;

/// What is known of a value before the step runs. The variant must not depend on the rank or on the
/// sizes of shards; otherwise the graphs of different classes would differ in structure.
#[derive(Clone)]
enum Known {
    /// Computed by the step.
    Nothing,
    /// A constant; its shape may be that of a shard.
    Constant(Literal),
    /// A constant with the same shape on every rank: a scalar, or computed from scalars.
    Fixed(Literal),
    /// Computed from the rank's number: one literal for each rank of the class, with the same shape
    /// on every rank.
    ByRank(RankConstant),
    /// The rank's number, converted to some element type. It indexes tables over ranks.
    Rank(RankConstant),
}

impl Known {
    /// The value on the rank at this position of the class.
    fn at(&self, position: usize) -> Option<Cow<'_, Literal>> {
        match self {
            Known::Nothing => None,
            Known::Constant(value) | Known::Fixed(value) => Some(Cow::Borrowed(value)),
            Known::ByRank(values) | Known::Rank(values) => Some(Cow::Owned(values.at(position))),
        }
    }

    /// The values on all of `count` ranks, stacked along a new first dimension.
    fn stacked(&self, count: usize) -> Option<Cow<'_, Literal>> {
        let repeated = |value: &Literal| {
            let elements = value.ty.element_count();
            let ty = stacked_type(&value.ty, count);
            let data = value.data.pick((0..count).flat_map(|_| 0..elements));
            Cow::Owned(Literal { ty, data })
        };
        match self {
            Known::Nothing => None,
            Known::Constant(value) | Known::Fixed(value) => Some(repeated(value)),
            Known::ByRank(values) | Known::Rank(values) => Some(Cow::Borrowed(&values.values)),
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self, Known::Fixed(_) | Known::ByRank(_) | Known::Rank(_))
    }

    fn is_by_rank(&self) -> bool {
        matches!(self, Known::ByRank(_) | Known::Rank(_))
    }
}

/// The graph of one rank: `partition_id` becomes a constant, tables over ranks are looked up, and a
/// dynamic slice at a known position becomes a slice. Nodes correspond one to one, so that the
/// graphs of all ranks keep one structure.
pub fn specialise(graph: &Graph, rank: usize) -> Result<Graph> {
    Folder { graph, ranks: [rank].into(), keeps_ranks: false }.run()
}

/// The graph of a rank class: as [`specialise`], but values that differ by rank become
/// [`RankConstant`]s. A dynamic slice whose position differs by rank remains, with constant
/// positions.
pub fn specialise_class(graph: &Graph, ranks: &[usize]) -> Result<ClassGraph> {
    let graph = Folder { graph, ranks: ranks.into(), keeps_ranks: true }.run()?;
    Ok(ClassGraph { graph, ranks: ranks.to_vec() })
}

struct Folder<'a> {
    graph: &'a Graph,
    ranks: Arc<[usize]>,
    /// Whether values that differ by rank become rank constants.
    keeps_ranks: bool,
}

impl Folder<'_> {
    fn run(&self) -> Result<Graph> {
        let mut known: Vec<Known> = Vec::new();
        graph_edit::rebuild(self.graph, |builder, _, index, operands| {
            let (results, what) = self.emit(builder, index, operands, &known)?;
            known.resize(builder.graph().values.len(), Known::Nothing);
            if let [result] = results[..] {
                known[result.index()] = what;
            }
            Ok(Some(results))
        })
    }

    fn emit(
        &self,
        builder: &mut GraphBuilder,
        index: usize,
        operands: &[ValueId],
        known: &[Known],
    ) -> Result<(Vec<ValueId>, Known)> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let nothing = Known::Nothing;
        let of = |v: &ValueId| known.get(v.index()).unwrap_or(&nothing);
        let types = || node.results.iter().map(|&v| graph.ty(v).clone()).collect::<Vec<TensorType>>();
        let place = |builder: &mut GraphBuilder, op: Op, operands: &[ValueId]| {
            builder.enter(node);
            builder.push_typed(op, operands, types())
        };
        let copy = |builder: &mut GraphBuilder| graph_edit::push_copy(builder, graph, index, operands);
        let is_known = |operands: &[ValueId]| operands.iter().all(|v| of(v).at(0).is_some());
        let fixed: Vec<bool> = operands.iter().map(|v| of(v).is_fixed()).collect();
        if matches!(node.op, Op::PartitionId(_)) {
            let numbers: Vec<u32> = self.ranks.iter().map(|&rank| rank as u32).collect();
            let numbers = self.by_rank(Literal::new([numbers.len()], numbers));
            return Ok((place(builder, self.constant(&numbers), &[]), Known::Rank(numbers)));
        }
        // Region bodies use the rank's number themselves: for a class, they are bound when a
        // program is bound to a rank.
        let has_bodies = !node.op.regions().is_empty();
        if has_bodies && node.op.is_by_rank() && !self.keeps_ranks {
            return Ok((place(builder, node.op.on_rank(self.ranks[0]), operands), Known::Nothing));
        }
        if let Op::Constant(constant) = &node.op {
            let value = constant.value.clone();
            let what = if value.ty.rank() == 0 { Known::Fixed(value) } else { Known::Constant(value) };
            return Ok((copy(builder), what));
        }
        let is_lookup = matches!(node.op, Op::DynamicSlice(_))
            && matches!(operands, [_, start] if matches!(of(start), Known::Rank(_)));
        if let Op::DynamicSlice(slice) = &node.op
            && !is_lookup
            && is_known(&operands[1..])
        {
            let starts = &operands[1..];
            if self.keeps_ranks && starts.iter().any(|v| of(v).is_by_rank()) {
                return Ok((copy(builder), Known::Nothing));
            }
            let starts: Vec<i64> = starts.iter().filter_map(|v| of(v).at(0)).map(|l| l.to_i64()[0]).collect();
            let shape = builder.shape(operands[0]);
            let op = Slice::clamped(&starts, &slice.sizes, &shape);
            return Ok((place(builder, op.into(), &operands[..1]), Known::Nothing));
        }
        // Fold ops on a fixed shape, if all operands are fixed, or one of two is (the other is then
        // a constant of that shape).
        let any = fixed.contains(&true);
        let all = !fixed.contains(&false);
        let folds = match graph.traits(node) {
            Traits::Elementwise(function) => match function {
                Elementwise::Binary(_) | Elementwise::Compare(_) => any,
                Elementwise::Convert | Elementwise::Select => all,
                Elementwise::Unary(_) | Elementwise::Clamp | Elementwise::Bitcast => false,
            },
            Traits::View(ViewMap::Reshape) => all,
            Traits::View(_) | Traits::Opaque => is_lookup || (matches!(node.op, Op::Concatenate(_)) && all),
            Traits::Constant(_) | Traits::Iota { .. } | Traits::Collective(_) | Traits::Refused => false,
        };
        if !folds || !is_known(operands) {
            return Ok((copy(builder), Known::Nothing));
        }
        let is_by_rank = operands.iter().any(|v| of(v).is_by_rank());
        let known: Vec<&Known> = operands.iter().map(of).collect();
        if !is_by_rank {
            let value = self.evaluated(node, &known, 0)?;
            return Ok((place(builder, Constant { value: value.clone() }.into(), &[]), Known::Fixed(value)));
        }
        let values = self.evaluated_on_all(node, &known)?;
        let is_rank = matches!(node.op, Op::Convert(_)) && matches!(of(&operands[0]), Known::Rank(_));
        let results = place(builder, self.constant(&values), &[]);
        Ok((results, if is_rank { Known::Rank(values) } else { Known::ByRank(values) }))
    }

    /// Evaluates an op on known operands, for the rank at this position.
    fn evaluated(&self, node: &Node, operands: &[&Known], position: usize) -> Result<Literal> {
        let values: Vec<Cow<Literal>> = operands.iter().filter_map(|known| known.at(position)).collect();
        let values: Vec<&Literal> = values.iter().map(Cow::as_ref).collect();
        Ok(node.op.evaluate(&values, &[self.graph.ty(node.results[0]).clone()])?.remove(0))
    }

    /// Evaluates an op on known operands for every rank of the class: in one call if it is
    /// elementwise or looks up a number.
    fn evaluated_on_all(&self, node: &Node, operands: &[&Known]) -> Result<RankConstant> {
        let (graph, count) = (self.graph, self.ranks.len());
        let ty = stacked_type(graph.ty(node.results[0]), count);
        if let (Op::DynamicSlice(slice), [Known::Constant(table), Known::Rank(numbers)]) =
            (&node.op, operands)
            && slice.sizes == [1]
        {
            let last = table.ty.element_count() as i64 - 1;
            let places = numbers.values.to_i64().into_iter().map(|number| number.clamp(0, last) as usize);
            return Ok(self.by_rank(Literal { ty, data: table.data.pick(places) }));
        }
        let is_elementwise = match graph.traits(node) {
            Traits::Elementwise(_) => {
                let shape = &graph.ty(node.results[0]).shape;
                node.operands.iter().all(|&operand| graph.ty(operand).shape == *shape)
            }
            Traits::View(view) => matches!(view, ViewMap::Reshape),
            Traits::Opaque
            | Traits::Constant(_)
            | Traits::Iota { .. }
            | Traits::Collective(_)
            | Traits::Refused => false,
        };
        if !is_elementwise {
            let each = (0..count).map(|position| self.evaluated(node, operands, position));
            return Ok(RankConstant::new(&self.ranks, &each.collect::<Result<Vec<Literal>>>()?));
        }
        let values: Vec<Cow<Literal>> = operands.iter().filter_map(|known| known.stacked(count)).collect();
        if matches!(graph.traits(node), Traits::View(_)) {
            return Ok(self.by_rank(Literal { ty, data: values[0].data.clone() }));
        }
        let values: Vec<&Literal> = values.iter().map(Cow::as_ref).collect();
        Ok(self.by_rank(node.op.evaluate(&values, &[ty])?.remove(0)))
    }

    fn by_rank(&self, values: Literal) -> RankConstant {
        RankConstant { ranks: self.ranks.clone(), values: Arc::new(values) }
    }

    fn constant(&self, values: &RankConstant) -> Op {
        match self.keeps_ranks {
            true => values.clone().into(),
            false => Constant { value: values.at(0) }.into(),
        }
    }
}

/// A type with a new first dimension of size `count`.
fn stacked_type(ty: &TensorType, count: usize) -> TensorType {
    ty.with_shape([&[count], &ty.shape[..]].concat())
}
