//! Halos: what a shard of a windowed dimension needs of its neighbours.
//!
//! A rank that computes some steps of a [`Window`] sees a range of the input, which need not be the range that it holds. The
//! range is put together from pieces: its own, and one from each rank at some distance, by one permute for each distance.
//! Where the range leaves the input, the pieces are those of imaginary ranks beyond both ends, which hold what the op reads
//! there, so that all ranks do the same if their shards are equal. Nothing is sent that is not needed: for windows of k
//! elements, one beside another, k - 1 elements in all pass each border of two shards. Nothing is sent twice: the gradient
//! of a kernel reads the halo that the convolution received.

use super::{BroadcastInDim, CollectivePermute, Direction, DynamicSlice};
use crate::graph::ValueId;
use crate::op::{HaloPiece, LocalContext, Peers};
use crate::rule::{FactorId, Window};
use partita_base::{DType, Result};
use std::ops::Range;

/// A range of elements; it may begin before the first and end beyond the last.
type Span = (i64, i64);

/// A sharded dimension of an operand, and what a rank holds of it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The number of the operand.
    pub operand: usize,
    /// Its dimension.
    pub dim: usize,
    /// The rank's shard, which may be extended along other dimensions already.
    pub value: ValueId,
}

/// The windows of one rank: the range of the input that they see, and how the op reads it.
pub(super) struct Seen {
    /// The range, put together from all ranks that hold a part of it.
    pub value: ValueId,
    /// The padding of the range with which its windows are those of the rank.
    pub padding: (i64, i64),
}

/// Where the ranks along a factor begin and end, by position.
struct Ranges(Vec<Range<usize>>);

impl Ranges {
    fn of(extents: &[usize]) -> Ranges {
        let starts = extents.iter().scan(0, |next, extent| Some(std::mem::replace(next, *next + extent)));
        Ranges(starts.zip(extents).map(|(start, extent)| start..start + extent).collect())
    }

    /// What the rank at a position holds. Ranks beyond both ends are imaginary, and as large as the largest.
    fn held(&self, position: i64) -> Span {
        let (count, end) = (self.0.len() as i64, self.0.last().map_or(0, |last| last.end) as i64);
        let most = self.0.iter().map(|range| range.len() as i64).max().unwrap_or(0).max(1);
        match usize::try_from(position) {
            Ok(place) if position < count => (self.0[place].start as i64, self.0[place].end as i64),
            Ok(_) => (end + (position - count) * most, end + (position - count + 1) * most),
            Err(_) => (position * most, (position + 1) * most),
        }
    }

    /// The part of a span that the rank at a position holds: its place within the shard and its length.
    fn part(&self, span: Span, position: i64) -> (usize, usize) {
        let held = self.held(position);
        let (start, end) = (span.0.max(held.0), span.1.min(held.1));
        if start < end { ((start - held.0) as usize, (end - start) as usize) } else { (0, 0) }
    }

    /// How many ranks away the farthest is that holds a part of its span, before and after.
    fn hops(&self, spans: &[Span]) -> (i64, i64) {
        let (mut before, mut after) = (0, 0);
        for (place, &(start, end)) in spans.iter().enumerate().filter(|(_, span)| span.0 < span.1) {
            let place = place as i64;
            while self.held(place - before).0 > start {
                before += 1;
            }
            while self.held(place + after).1 < end {
                after += 1;
            }
        }
        (before, after)
    }
}

/// The elements of the input that each rank sees, and the padding that its local windows need then.
fn needs(window: &Window, steps: &Ranges) -> (Vec<Span>, Vec<(usize, usize)>) {
    let apart = window.input_dilation as i64;
    let need = |steps: &Range<usize>| {
        if steps.is_empty() {
            // Without entries, each result is an empty sum, and there are still as many.
            return ((0, 0), (0, if window.combiner.is_some() { window.reach } else { 0 }));
        }
        let (first, end) = window.positions(steps.clone());
        let up = |position: i64| -(-position).div_euclid(apart);
        let span = (up(first), up(end));
        if span.0 >= span.1 {
            return ((0, 0), (0, (end - first) as usize));
        }
        (span, ((span.0 * apart - first) as usize, (end - (span.1 - 1) * apart - 1) as usize))
    };
    steps.0.iter().map(need).unzip()
}

/// What a rank sees of an operand's dimension along a factor with windows, which is sharded. `steps` are the extents of the
/// shards in steps, and `fill` is what the op reads beyond the ends, a scalar; zero if there is none.
pub(super) fn seen(
    context: &mut dyn LocalContext,
    factor: FactorId,
    window: &Window,
    part: Part,
    steps: &[usize],
    fill: Option<ValueId>,
) -> Result<Seen> {
    let (spans, padding) = needs(window, &Ranges::of(steps));
    let (low, high): (Vec<usize>, Vec<usize>) = padding.into_iter().unzip();
    let padding = (context.own_entry(factor, &low)? as i64, context.own_entry(factor, &high)? as i64);
    Ok(Seen { value: fetch(context, factor, part, &spans, fill)?, padding })
}

/// The elements of the spans, by position of the rank, of a dimension of an operand that is sharded along a factor.
pub(super) fn fetch(
    context: &mut dyn LocalContext,
    factor: FactorId,
    Part { operand, dim, value: own }: Part,
    spans: &[Span],
    fill: Option<ValueId>,
) -> Result<ValueId> {
    let Some(Peers { groups, extents }) = context.operand_peers(factor, operand, dim) else { return Ok(own) };
    let ranges = Ranges::of(&extents);
    let count = extents.len() as i64;
    let places = 0..count;
    let (before, after) = ranges.hops(spans);
    let mut pieces = Vec::new();
    for distance in -before..=after {
        // What each rank takes from the rank at this distance, and what it gives to the one that takes from it.
        let taken: Vec<(usize, usize)> =
            places.clone().map(|place| ranges.part(spans[place as usize], place + distance)).collect();
        let widths: Vec<usize> = taken.iter().map(|&(_, width)| width).collect();
        if distance == 0 {
            if widths != extents {
                pieces.push(cut(context, factor, own, dim, &taken)?);
            } else if widths.iter().any(|&width| width > 0) {
                pieces.push(own);
            }
            continue;
        }
        if widths.iter().all(|&width| width == 0) {
            continue;
        }
        let key = HaloPiece { value: own, dim, distance, taken: taken.clone(), fill };
        if let Some(received) = context.received(&key) {
            pieces.push(received);
            continue;
        }
        let exists = |place: i64| (0..count).contains(&place);
        let taker = |place: i64| {
            Some(place - distance).filter(|&taker| exists(taker)).map(|taker| taken[taker as usize])
        };
        let real: Vec<usize> =
            places.clone().filter_map(&taker).map(|(_, width)| width).filter(|&width| width > 0).collect();
        let width = context.own_entry(factor, &widths)?;
        let mut shape = context.builder().shape(own);
        shape[dim] = width;
        let Some(&most) = real.iter().max() else {
            // All of it is beyond the ends.
            pieces.push(filled(context, own, &shape, fill)?);
            continue;
        };
        // A rank of which nothing is taken sends what the others send, if it has that, so that it is like them.
        let spare = |place: i64| (0, if extents[place as usize] >= most { most } else { 0 });
        let given: Vec<(usize, usize)> = places
            .clone()
            .map(|place| taker(place).filter(|&(_, width)| width > 0).unwrap_or_else(|| spare(place)))
            .collect();
        let sent = cut(context, factor, own, dim, &given)?;
        let is_sent = |place: i64| exists(place + distance) && widths[place as usize] > 0;
        let pairs = groups.iter().flat_map(|group| {
            let pair = |place: i64| (group[(place + distance) as usize], group[place as usize]);
            places.clone().filter(|&place| is_sent(place)).map(pair).collect::<Vec<_>>()
        });
        let permute = CollectivePermute { pairs: pairs.collect() };
        let ty = context.builder().ty(own).with_shape(shape.clone());
        let mut piece = context.builder().push_typed(permute, &[sent], vec![ty])[0];
        // Who receives nothing has zeros.
        let beyond: Vec<i64> = places.clone().map(|place| i64::from(!exists(place + distance))).collect();
        if let (Some(fill), true) = (fill, (0..widths.len()).any(|at| beyond[at] == 1 && widths[at] > 0)) {
            let beyond = context.by_position(factor, &beyond)?;
            let builder = context.builder();
            let one = builder.scalar(DType::I64, 1.0);
            let is_beyond = builder.compare(Direction::Eq, beyond, one)?;
            let outside = builder.broadcast_scalar(fill, &shape)?;
            let is_beyond = builder.push1(BroadcastInDim { shape, dims: vec![] }, &[is_beyond])?;
            piece = builder.select(is_beyond, outside, piece)?;
        }
        context.remember(key, piece);
        pieces.push(piece);
    }
    match pieces[..] {
        // No rank sees anything.
        [] => cut(context, factor, own, dim, &vec![(0, 0); extents.len()]),
        [only] => Ok(only),
        _ => context.builder().concatenate(&pieces, dim),
    }
}

/// The part of the operand from the given place on, of the given width, by position of the rank.
fn cut(
    context: &mut dyn LocalContext,
    factor: FactorId,
    own: ValueId,
    dim: usize,
    parts: &[(usize, usize)],
) -> Result<ValueId> {
    let (starts, widths): (Vec<i64>, Vec<usize>) =
        parts.iter().map(|&(start, width)| (start as i64, width)).unzip();
    let width = context.own_entry(factor, &widths)?;
    let start = context.by_position(factor, &starts)?;
    let builder = context.builder();
    let mut sizes = builder.shape(own);
    sizes[dim] = width;
    let zero = builder.scalar(DType::I64, 0.0);
    let mut operands = vec![own];
    operands.extend((0..sizes.len()).map(|other| if other == dim { start } else { zero }));
    builder.push1(DynamicSlice { sizes }, &operands)
}

/// A tensor of what the op reads beyond the ends.
fn filled(
    context: &mut dyn LocalContext,
    own: ValueId,
    shape: &[usize],
    fill: Option<ValueId>,
) -> Result<ValueId> {
    let builder = context.builder();
    let dtype = builder.ty(own).dtype;
    let fill = fill.unwrap_or_else(|| builder.scalar(dtype, 0.0));
    builder.broadcast_scalar(fill, shape)
}
