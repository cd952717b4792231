//! Cuts: one kernel as several that each write their own rows of the results, for the threads of a rank.
//!
//! Which dimension may be cut, and which dimensions of the operands go with it, is read off the op's factor rule, as
//! for the ranks of a mesh: a `Pass` factor that every result has. Every element is computed by one part, in the way
//! it would be without cuts, so cuts change no bit.

use std::ops::Range;

use partita_ir::ops::DotGeneral;
use partita_ir::{FactorId, FactorKind, Graph, Node, Op, Operation, Rule};
use partita_program::Region;

use super::Value;
use crate::arena::Place;

/// A dimension, and how many of its elements one step of the factor is.
type Along = (usize, usize);

/// What one part of a kernel works on.
pub(super) struct Share {
    pub operands: Vec<Value>,
    pub outputs: Vec<Place>,
    /// The dimension of the first result that is cut, and where in the whole this share begins.
    pub begins: (usize, usize),
}

impl Share {
    /// All there is.
    pub fn whole(operands: Vec<Value>, outputs: &[Place]) -> Share {
        Share { operands, outputs: outputs.to_vec(), begins: (0, 0) }
    }
}

/// A factor along which a kernel may be cut.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    size: usize,
    /// How many times as many parts as there are threads are worth it, so that who is done early can help.
    pub pieces: usize,
    /// Whether each part prepares what all of them read.
    pub repeats: bool,
    /// Steps in a part at least.
    least: usize,
    operands: Vec<Option<Along>>,
    results: Vec<Along>,
}

impl Cut {
    /// Operands and results as seen by the parts, at most `parts` of them.
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

    /// The factor in every result, and at most once in each operand; always as the major factor of its dimension,
    /// so that a range of it is a range of the dimension.
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

    /// How evenly the work spreads: the smallest mean over the largest part.
    fn balance(&self, parts: usize) -> f64 {
        self.size as f64 / (self.size.div_ceil(parts.max(1)) * parts.max(1)).max(1) as f64
    }
}

/// `size` steps in at most `parts` ranges of nearly one length, none empty but where there is nothing at all.
pub(super) fn ranges(size: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, size.max(1));
    (0..parts).map(move |part| size * part / parts..size * (part + 1) / parts)
}

/// The dimension of which a range is as dense as the whole; `None` where there is but one element.
pub(super) fn outer_dim(shape: &[usize]) -> Option<usize> {
    shape.iter().position(|&size| size != 1)
}

/// Nanoseconds of work that are worth a part of their own: waking a thread that waits and waiting for it costs one or
/// two microseconds.
const WORTH_NANOSECONDS: f64 = 4000.0;

/// The parts into which a region's work is cut: as many as there are threads, or one where it is soon done.
pub(super) fn part_count(region: &Region, threads: usize) -> usize {
    if threads == 1 {
        return 1;
    }
    // What a core does in a nanosecond, roughly: what is cut need not be right to the last bit, only the same for
    // the same region.
    let (flops, bytes) = (100.0, 10.0);
    let cost = region.cost();
    let nanoseconds = cost.flops / flops + cost.bytes / bytes;
    ((nanoseconds / WORTH_NANOSECONDS) as usize).clamp(1, threads)
}

/// Each thread gets at most so many pieces of a matrix product, each of so many operations and rows or columns at
/// least: every piece of rows prepares the right operand anew, every piece of columns reads the left one again.
const MOST_PIECES: usize = 8;
const PIECE_FLOPS: f64 = 1e7;
const PIECE_ROWS: usize = 512;
const PIECE_COLUMNS: usize = 256;

/// The matrix product that an op is, perhaps added to something, and the position of its left operand.
fn product(op: &Op) -> Option<(&DotGeneral, usize)> {
    if let Op::DotGeneral(dot) = op {
        return Some((dot, 0));
    }
    super::composites::product_added(op.composite()?).map(|dot| (dot, 1))
}

/// Where to cut an op, if anywhere.
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
        // A batch needs nothing twice. Of rows and columns the longer, as each part reads all of the other operand; but
        // columns unless they are far fewer, if there can be pieces: none prepares anything twice.
        let by_columns = column_pieces > 1 && 2 * lines(1) >= lines(0);
        let worth = |cut: &Cut| match (cut.operands[first], cut.operands[first + 1]) {
            (Some(_), Some(_)) => (2, 0),
            (None, _) if by_columns => (1, 0),
            (None, _) => (0, lines(1)),
            (Some(_), None) => (0, lines(0)),
        };
        // One line more or less is no reason.
        let balance = |cut: &Cut| (100.0 * cut.balance(parts)).round();
        let cut = best(cuts, |cut| (balance(cut), worth(cut)))?;
        let pieces = match (cut.operands[first], cut.operands[first + 1]) {
            (Some(_), Some(_)) => cut.size / parts,
            (None, _) => column_pieces,
            (Some(_), None) => row_pieces,
        };
        let flops = node.op.cost(&operands, &results).flops / parts as f64;
        let most = ((flops / PIECE_FLOPS) as usize).min(MOST_PIECES);
        let repeats = cut.operands[first..][..2].contains(&None);
        return Some(Cut { pieces: pieces.min(most).max(1), repeats, ..cut });
    }
    match &node.op {
        // A factor of what is indexed needs more than its slice.
        Op::Gather(_) => outermost(cuts.filter(|cut| cut.operands[0].is_none()), &results),
        Op::Scatter(_) => best(cuts.filter(|cut| cut.operands[2].is_some()), |cut| (cut.balance(parts), 0)),
        // A reduction that leaves one element of the last dimensions has another order than one that leaves more.
        Op::Reduce(op) => outermost(cuts, &results).map(|cut| {
            let is_behind =
                cut.operands[0].is_some_and(|(dim, _)| op.dims.iter().any(|&reduced| reduced < dim));
            Cut { least: 1 + usize::from(is_behind), ..cut }
        }),
        Op::Composite(_) | Op::Concatenate(_) | Op::Pad(_) => outermost(cuts, &results),
        Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Transpose(_) => outermost(cuts, &results),
        _ => None,
    }
}

/// The first of the best.
fn best<W: PartialOrd>(cuts: impl Iterator<Item = Cut>, worth: impl Fn(&Cut) -> W) -> Option<Cut> {
    cuts.fold(None, |best: Option<Cut>, cut| match &best {
        Some(other) if worth(other) >= worth(&cut) => best,
        _ => Some(cut),
    })
}

/// The cut along the first dimension of all results, so that each part's results are as dense as the whole.
fn outermost(mut cuts: impl Iterator<Item = Cut>, results: &[&partita_ir::TensorType]) -> Option<Cut> {
    cuts.find(|cut| cut.results.iter().zip(results).all(|(&(dim, _), ty)| outer_dim(&ty.shape) == Some(dim)))
}
