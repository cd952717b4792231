//! Clusters a forward graph into consecutive layers, without using module names.
//!
//! After Alpa (Zheng et al., 2022, section 5): a layer boundary is a cut of the execution order. The
//! dynamic program below chooses `count - 1` cuts such that no layer has more than `1 + EXCESS` times
//! the average work, and, in this order: the largest number of bytes that cross a cut is smallest, so
//! is the sum over all cuts, and the work of the layers is most even. Since equal blocks have equal
//! boundaries, repeated blocks end up in layers of equal size.

use crate::feed::from_feed;
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, Node, Operation};
use std::ops::Range;

/// The work of a layer may exceed the average by this share.
const EXCESS: f64 = 0.5;

/// Clusters the forward graph into `count` layers: the positions of the nodes of each, in execution
/// order.
///
/// # Errors
/// E460 if the graph has fewer ops with substantial work (matmuls, convolutions) than layers.
pub fn layers(forward: &Graph, count: usize) -> Result<Vec<Range<usize>>> {
    let work: Vec<f64> = forward.nodes.iter().map(|node| work(forward, node)).collect();
    let heaviest = work.iter().copied().fold(0.0, f64::max);
    // Ops below a thousandth of the heaviest one (norms, activations) do not make a layer.
    let heavy: Vec<usize> =
        (0..work.len()).filter(|&index| work[index] > 0.0 && work[index] * 1e3 >= heaviest).collect();
    if count == 0 || heavy.len() < count {
        return Err(Diagnostic::new("E460", format!("{count} layers of {} ops", heavy.len()))
            .at("layers")
            .expected(format!(
                "1 to {} layers: each needs a matmul or another op with as much work",
                heavy.len()
            ))
            .found(count.to_string()));
    }
    let crossing = crossing_bytes(forward);
    let spans = spans(&heavy, &work, &crossing);
    let ends = Clustering { spans: &spans, count }.solve();
    let limits = ends.into_iter().map(|span| spans[span].end + 1).chain([forward.nodes.len()]);
    Ok(limits.scan(0, |start, limit| Some(std::mem::replace(start, limit)..limit)).collect())
}

/// The floating-point operations of a node.
pub(crate) fn work(forward: &Graph, node: &Node) -> f64 {
    node.op.cost(&forward.operand_types(node), &forward.result_types(node)).flops
}

/// For each position, the bytes of values computed at or before it and read after it. Values that
/// follow from fed tensors and constants alone do not count: every stage computes them itself.
pub fn crossing_bytes(forward: &Graph) -> Vec<usize> {
    let is_local = from_feed(forward, |_| false);
    let mut last_read = vec![None; forward.values.len()];
    for (index, node) in forward.nodes.iter().enumerate() {
        node.operands.iter().for_each(|operand| last_read[operand.index()] = Some(index));
    }
    let mut change = vec![0isize; forward.nodes.len() + 1];
    for (index, node) in forward.nodes.iter().enumerate() {
        for &result in &node.results {
            if let Some(last) = last_read[result.index()].filter(|_| !is_local[result.index()]) {
                let bytes = forward.ty(result).bytes() as isize;
                change[index] += bytes;
                change[last] -= bytes;
            }
        }
    }
    let sum = |total: &mut isize, change: isize| {
        *total += change;
        Some(*total as usize)
    };
    change[..forward.nodes.len()].iter().copied().scan(0, sum).collect()
}

/// The nodes from one possible cut to the next: one op with substantial work and light ops around it.
struct Span {
    /// The position of its last node.
    end: usize,
    /// Bytes that cross a cut after it.
    bytes: usize,
    /// The work of its nodes, in floating-point operations.
    work: f64,
}

/// Between two heavy ops, a cut is possible only where the fewest bytes cross, and of such places at
/// the last one: a bias and an activation belong to the matmul before them.
fn spans(heavy: &[usize], work: &[f64], crossing: &[usize]) -> Vec<Span> {
    let mut spans = Vec::with_capacity(heavy.len());
    let mut start = 0;
    for (number, &op) in heavy.iter().enumerate() {
        let end = match heavy.get(number + 1) {
            None => work.len() - 1,
            Some(&next) => {
                (op..next).rev().min_by_key(|&place| crossing[place]).expect("an op precedes the next")
            }
        };
        let bytes = if number + 1 == heavy.len() { 0 } else { crossing[end] };
        spans.push(Span { end, bytes, work: work[start..=end].iter().sum() });
        start = end + 1;
    }
    spans
}

/// What cuts cost beside the largest crossing; smaller is better, field by field. Both are sums, so the
/// best choice of all cuts begins with a best choice of the first ones.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Cost {
    bytes: usize,
    /// The sum of the squares of the layers' work: least if all are equal.
    squares: f64,
}

impl Cost {
    fn and(self, bytes: usize, work: f64) -> Cost {
        Cost { bytes: self.bytes + bytes, squares: self.squares + work * work }
    }

    fn is_better(&self, other: &Cost) -> bool {
        // Sums of products in another order differ by rounding.
        let is_even = (self.squares - other.squares).abs() <= 1e-9 * other.squares;
        self.bytes < other.bytes || (self.bytes == other.bytes && !is_even && self.squares < other.squares)
    }
}

struct Clustering<'a> {
    spans: &'a [Span],
    count: usize,
}

impl Clustering<'_> {
    /// The last span of each layer except the last. Where no choice keeps within the limit of work,
    /// the limit grows.
    fn solve(&self) -> Vec<usize> {
        let total: f64 = self.spans.iter().map(|span| span.work).sum();
        let mut limit = (1.0 + EXCESS) * total / self.count as f64;
        loop {
            if let Some(ends) = self.within(limit) {
                return ends;
            }
            limit *= 1.0 + EXCESS;
        }
    }

    /// The best choice whose layers are within a limit of work, if there is one.
    fn within(&self, limit: f64) -> Option<Vec<usize>> {
        let (largest, _) =
            self.search(limit, 0, |largest, bytes, _| Some(bytes.max(largest)), |a, b| a < b)?;
        let (_, ends) = self.search(
            limit,
            Cost::default(),
            |cost, bytes, work| (bytes <= largest).then(|| cost.and(bytes, work)),
            Cost::is_better,
        )?;
        Some(ends)
    }

    /// Dynamic programming over (layers, spans): the choice with the best value, where `extend` gives
    /// the value of some layers and one more, from the bytes that cross behind it and its work.
    fn search<V: Copy>(
        &self,
        limit: f64,
        nothing: V,
        extend: impl Fn(V, usize, f64) -> Option<V>,
        is_better: impl Fn(&V, &V) -> bool,
    ) -> Option<(V, Vec<usize>)> {
        let spans = self.spans.len();
        // best[l][s]: the best value of the first `s` spans in `l` layers, and the first span of the
        // last of them.
        let mut best: Vec<Vec<Option<(V, usize)>>> = vec![vec![None; spans + 1]; self.count + 1];
        best[0][0] = Some((nothing, 0));
        for layer in 1..=self.count {
            for end in layer..=spans {
                let bytes = self.spans[end - 1].bytes;
                let mut work = 0.0;
                for begin in (layer - 1..end).rev() {
                    work += self.spans[begin].work;
                    if work > limit {
                        break;
                    }
                    let before = best[layer - 1][begin].map(|(value, _)| value);
                    let Some(value) = before.and_then(|before| extend(before, bytes, work)) else { continue };
                    if best[layer][end].is_none_or(|(known, _)| is_better(&value, &known)) {
                        best[layer][end] = Some((value, begin));
                    }
                }
            }
        }
        let (value, _) = best[self.count][spans]?;
        let (mut ends, mut end) = (Vec::new(), spans);
        for layer in (1..=self.count).rev() {
            let (_, begin) = best[layer][end].expect("a best choice goes through it");
            if layer > 1 {
                ends.push(begin - 1);
            }
            end = begin;
        }
        ends.reverse();
        Some((value, ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(bytes: usize, work: f64) -> Span {
        Span { end: 0, bytes, work }
    }

    /// The largest crossing and the other costs of cuts after these spans; `None` beyond the limit.
    fn price(spans: &[Span], ends: &[usize], limit: f64) -> Option<(usize, Cost)> {
        let (mut largest, mut cost, mut begin) = (0, Cost::default(), 0);
        for &end in ends.iter().chain([&(spans.len() - 1)]) {
            let work: f64 = spans[begin..=end].iter().rev().map(|span| span.work).sum();
            if work > limit {
                return None;
            }
            largest = largest.max(spans[end].bytes);
            cost = cost.and(spans[end].bytes, work);
            begin = end + 1;
        }
        Some((largest, cost))
    }

    /// Every choice of `count - 1` ends before the last span.
    fn choices(from: usize, spans: usize, count: usize) -> Vec<Vec<usize>> {
        if count == 1 {
            return vec![Vec::new()];
        }
        let behind = |end: usize| {
            let rest = choices(end + 1, spans, count - 1).into_iter();
            rest.map(move |rest| [vec![end], rest].concat())
        };
        (from..spans - 1).flat_map(behind).collect()
    }

    proptest! {
        #[test]
        fn no_other_choice_of_cuts_is_better(
            sizes in prop::collection::vec((1usize..4, 1u8..5), 1..9),
            count in 1usize..5,
            share in 1usize..5,
        ) {
            let spans: Vec<Span> = sizes.iter().map(|&(bytes, work)| span(bytes, f64::from(work))).collect();
            let limit = spans.iter().map(|span| span.work).sum::<f64>() * share as f64 / 4.0;
            let found = Clustering { spans: &spans, count }.within(limit);
            let all = choices(0, spans.len(), count);
            let prices: Vec<(usize, Cost)> = all.iter().filter_map(|ends| price(&spans, ends, limit)).collect();
            prop_assert_eq!(found.is_some(), !prices.is_empty());
            if let Some(ends) = found {
                let (largest, cost) = price(&spans, &ends, limit).expect("it is within the limit");
                for (other, price) in prices {
                    prop_assert!(largest <= other);
                    prop_assert!(largest < other || !price.is_better(&cost), "{:?} {:?}", price, cost);
                }
            }
        }
    }

    #[test]
    fn cuts_lie_where_few_bytes_cross() {
        // Blocks of a wide and a narrow value: cuts lie after the narrow one.
        let spans: Vec<Span> = (0..8).map(|i| span(if i % 2 == 0 { 400 } else { 100 }, 1.0)).collect();
        assert_eq!(Clustering { spans: &spans, count: 2 }.solve(), [3]);
        assert_eq!(Clustering { spans: &spans, count: 4 }.solve(), [1, 3, 5]);
    }

    #[test]
    fn one_span_with_most_of_the_work_raises_the_limit() {
        let spans = [span(1, 1.0), span(1, 100.0), span(1, 1.0)];
        assert_eq!(Clustering { spans: &spans, count: 3 }.solve(), [0, 1]);
    }
}
