//! Splits one kernel into parts for the threads of a rank; each part writes its own rows of the results.
//!
//! The op's factor rule says which dimension may be split and which dimensions of the operands go with it, as
//! for sharding over ranks: a `Pass` factor that every result has. Every element is computed by one part, in
//! the same way as without the split, so the bits do not change.

use std::ops::Range;

use partita_ir::ops::{Convolution, DotGeneral};
use partita_ir::{FactorId, FactorKind, Graph, Node, Op, Operation, Rule};
use partita_program::Region;

use super::Value;
use crate::arena::Place;

/// A dimension, and the number of its elements per step of the factor.
type Along = (usize, usize);

/// The operands and results of one part of a kernel.
pub(super) struct Share {
    pub operands: Vec<Value>,
    pub outputs: Vec<Place>,
    /// The dimension of the first result that is split, and where this share begins in it.
    pub begins: (usize, usize),
}

impl Share {
    /// The whole kernel as one share.
    pub fn whole(operands: Vec<Value>, outputs: &[Place]) -> Share {
        Share { operands, outputs: outputs.to_vec(), begins: (0, 0) }
    }
}

/// A factor along which a kernel may be split.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    size: usize,
    /// Useful number of parts per thread: more parts let idle threads steal work.
    pub pieces: usize,
    /// Whether each part repeats work, such as packing an operand that all parts read.
    pub repeats: bool,
    /// Minimum number of steps in a part.
    least: usize,
    operands: Vec<Option<Along>>,
    results: Vec<Along>,
}

impl Cut {
    /// The operands and results of at most `parts` parts.
    pub fn shares(&self, parts: usize, operands: &[Value], outputs: &[Place]) -> Vec<Share> {
        let share = |range: Range<usize>| {
            let elements = |step: usize| range.start * step..range.end * step;
            let operands = operands.iter().zip(&self.operands).map(|(value, along)| match *along {
                None => value.clone(),
                Some((dim, step)) => value.sliced(dim, elements(step)),
            });
            let outputs = outputs.iter().zip(&self.results);
            let (dim, step) = self.results[0];
            Share {
                operands: operands.collect(),
                outputs: outputs.map(|(place, &(dim, step))| place.sliced(dim, elements(step))).collect(),
                begins: (dim, range.start * step),
            }
        };
        ranges(self.size, parts.min(self.size / self.least)).map(share).collect()
    }

    /// The split along a factor that occurs in every result and at most once in each operand, always as the
    /// major factor of its dimension, so that a range of the factor is a range of the dimension.
    fn along(rule: &Rule, factor: FactorId) -> Option<Cut> {
        let minor = |factors: &[FactorId]| factors[1..].iter().map(|&f| rule.factors[f].size).product();
        let find = |dims: &[Vec<FactorId>]| -> Option<Option<Along>> {
            let mut holding = dims.iter().enumerate().filter(|(_, factors)| factors.contains(&factor));
            match (holding.next(), holding.next()) {
                (None, _) => Some(None),
                (Some((dim, factors)), None) if factors[0] == factor => Some(Some((dim, minor(factors)))),
                _ => None,
            }
        };
        let operands = rule.operands.iter().map(|dims| find(dims)).collect::<Option<Vec<_>>>()?;
        let results = rule.results.iter().map(|dims| find(dims).flatten()).collect::<Option<Vec<_>>>()?;
        Some(Cut { size: rule.factors[factor].size, pieces: 1, repeats: false, least: 1, operands, results })
    }

    /// How evenly the work is divided: the mean part over the largest part.
    fn balance(&self, parts: usize) -> f64 {
        self.size as f64 / (self.size.div_ceil(parts.max(1)) * parts.max(1)).max(1) as f64
    }
}

/// Splits `size` steps into at most `parts` ranges of nearly equal length; none is empty unless `size` is 0.
pub(super) fn ranges(size: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, size.max(1));
    (0..parts).map(move |part| size * part / parts..size * (part + 1) / parts)
}

/// The outermost dimension with more than one element, of which any range is dense; `None` if there is none.
pub(super) fn outer_dim(shape: &[usize]) -> Option<usize> {
    shape.iter().position(|&size| size != 1)
}

/// The minimum work of a part, in nanoseconds: waking a thread and waiting for it costs one or two
/// microseconds.
const WORTH_NANOSECONDS: f64 = 4000.0;

/// The number of parts of a region's work: at most one per thread, and one if the work is short.
pub(super) fn part_count(region: &Region, threads: usize) -> usize {
    if threads == 1 {
        return 1;
    }
    // Rough work of a core per nanosecond. The estimate need not be accurate, only the same for the same
    // region.
    let (flops, bytes) = (100.0, 10.0);
    let cost = region.cost();
    let nanoseconds = cost.flops / flops + cost.bytes / bytes;
    ((nanoseconds / WORTH_NANOSECONDS) as usize).clamp(1, threads)
}

/// Limits on the parts of a matmul per thread: each part of rows packs the right operand again, and each part
/// of columns reads the left operand again, so parts need a minimum of operations, rows and columns.
const MAX_PIECES: usize = 8;
const PIECE_FLOPS: f64 = 1e7;
const PIECE_ROWS: usize = 512;
const PIECE_COLUMNS: usize = 256;

/// The matmul that an op computes, possibly added to a tensor, and the position of its left operand.
fn product(op: &Op) -> Option<(&DotGeneral, usize)> {
    if let Op::DotGeneral(dot) = op {
        return Some((dot, 0));
    }
    super::composites::product_added(op.composite()?).map(|dot| (dot, 1))
}

/// The factor along which to split an op, if any.
pub(super) fn choose(graph: &Graph, node: &Node, parts: usize) -> Option<Cut> {
    if parts == 1 {
        return None;
    }
    let (operands, results) = (graph.operand_types(node), graph.result_types(node));
    let rule = node.op.rule(&operands, &results);
    let cuts = (0..rule.factors.len())
        .filter(|&factor| rule.factors[factor].kind == FactorKind::Pass)
        .filter_map(|factor| Cut::along(&rule, factor))
        .filter(|cut| cut.size > 1);
    if let Some((op, first)) = product(&node.op) {
        let terms = op.terms(&operands[first].shape).max(1);
        let lines = |side: usize| operands[first + side].element_count() / terms;
        let [row_pieces, column_pieces] =
            [(0, PIECE_ROWS), (1, PIECE_COLUMNS)].map(|(side, least)| lines(side) / (parts * least));
        // Splitting the batch repeats no work. Otherwise split the longer of rows and columns, because each
        // part reads all of the other operand; but if there can be several parts per thread, prefer columns
        // unless they are far fewer, because they repeat no packing.
        let by_columns = column_pieces > 1 && 2 * lines(1) >= lines(0);
        let worth = |cut: &Cut| match (cut.operands[first], cut.operands[first + 1]) {
            (Some(_), Some(_)) => (2, 0),
            (None, _) if by_columns => (1, 0),
            (None, _) => (0, lines(1)),
            (Some(_), None) => (0, lines(0)),
        };
        // A difference of one row or column does not matter.
        let balance = |cut: &Cut| (100.0 * cut.balance(parts)).round();
        let cut = best(cuts, |cut| (balance(cut), worth(cut)))?;
        let pieces = match (cut.operands[first], cut.operands[first + 1]) {
            (Some(_), Some(_)) => cut.size / parts,
            (None, _) => column_pieces,
            (Some(_), None) => row_pieces,
        };
        let flops = node.op.cost(&operands, &results).flops / parts as f64;
        let most = ((flops / PIECE_FLOPS) as usize).min(MAX_PIECES);
        let repeats = cut.operands[first..][..2].contains(&None);
        return Some(Cut { pieces: pieces.min(most).max(1), repeats, ..cut });
    }
    match &node.op {
        // A part of the input is read by one part only; the kernel is smaller.
        Op::Convolution(op) => {
            let cuts = cuts.chain(batch_groups(op, &operands));
            best(cuts, |cut| ((100.0 * cut.balance(parts)).round(), cut.operands[0].is_some()))
        }
        // A factor of the indexed operand needs more than its slice.
        Op::Gather(_) => outermost(cuts.filter(|cut| cut.operands[0].is_none()), &results),
        Op::Scatter(_) => best(cuts.filter(|cut| cut.operands[2].is_some()), |cut| (cut.balance(parts), 0)),
        // A reduction to a single trailing element sums in another order than one that keeps several.
        Op::Reduce(op) => outermost(cuts, &results).map(|cut| {
            let is_behind =
                cut.operands[0].is_some_and(|(dim, _)| op.dims.iter().any(|&reduced| reduced < dim));
            Cut { least: 1 + usize::from(is_behind), ..cut }
        }),
        Op::ReduceWindow(_) | Op::SelectAndScatter(_) | Op::Sort(_) | Op::TopK(_) => {
            outermost(cuts, &results)
        }
        // Groups may have any number of rows; a range of features of every group is always the same work. Each part packs
        // the other operand's rows again, so those are to be the shorter ones.
        Op::Composite(composite) if super::composites::is_grouped_outer(composite) => {
            let of_features = cuts.filter(|cut| cut.operands[2].is_none());
            best(of_features, |cut| ((100.0 * cut.balance(parts)).round(), cut.size))
                .map(|cut| Cut { repeats: true, ..cut })
        }
        Op::Composite(_) | Op::Concatenate(_) | Op::Pad(_) => outermost(cuts, &results),
        Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Transpose(_) => outermost(cuts, &results),
        _ => None,
    }
}

/// The split along the groups of the batch of a convolution. (Layouts of ranks cannot use it, because an
/// empty shard would not say the batch of its result.)
fn batch_groups(op: &Convolution, operands: &[&partita_ir::TensorType]) -> Option<Cut> {
    let groups = op.batch_groups;
    let per_group = |operand: usize, dim: usize| operands[operand].shape[dim] / groups;
    let outputs = per_group(1, op.kernel.batch);
    (groups > 1).then(|| Cut {
        size: groups,
        pieces: 1,
        repeats: false,
        least: 1,
        operands: vec![
            Some((op.input.batch, per_group(0, op.input.batch))),
            Some((op.kernel.batch, outputs)),
        ],
        results: vec![(op.output.feature, outputs)],
    })
}

/// The first of the best.
fn best<W: PartialOrd>(cuts: impl Iterator<Item = Cut>, worth: impl Fn(&Cut) -> W) -> Option<Cut> {
    cuts.fold(None, |best: Option<Cut>, cut| match &best {
        Some(other) if worth(other) >= worth(&cut) => best,
        _ => Some(cut),
    })
}

/// The split along the first dimension of all results, so that each part's results are as dense as the whole.
fn outermost(mut cuts: impl Iterator<Item = Cut>, results: &[&partita_ir::TensorType]) -> Option<Cut> {
    cuts.find(|cut| cut.results.iter().zip(results).all(|(&(dim, _), ty)| outer_dim(&ty.shape) == Some(dim)))
}
