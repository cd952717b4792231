//! The way of keys and values around the ranks of a ring, and which of them a rank sees.

// The places of a rank are a list of ranges, often of one.
#![allow(clippy::single_range_in_vec_init)]

use super::{RingOptions, SEQUENCE};
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::LocalContext;
use crate::ops::{CollectivePermute, Pad};
use partita_base::{DType, Result};
use std::ops::Range;

/// How the shards of keys and values travel.
pub(super) struct Ring {
    /// For each of the shards that a rank sees, in order, the operand `place` of its part. The first is its own.
    pub places: Vec<ValueId>,
    /// For each of them, how many places before a rank in the ring its owner is.
    offsets: Vec<usize>,
    /// The ranks of each ring, in order.
    groups: Vec<Vec<usize>>,
    /// The largest number of keys in a shard.
    most: usize,
    /// Whether tokens are in zigzag order.
    is_zigzag: bool,
}

/// The positions of a rank's tokens: one run, or two in zigzag order.
type Runs = Vec<Range<usize>>;

/// Whether some query at these positions sees some key at those.
fn sees(options: &RingOptions, queries: &Range<usize>, keys: &Range<usize>) -> bool {
    if queries.is_empty() || keys.is_empty() {
        return false;
    }
    // Which side has a later token, and the least distance to an earlier one of the other.
    let reaches = |late: &Range<usize>, early: &Range<usize>| {
        let distance = (late.start + 1).saturating_sub(early.end);
        late.end > early.start && options.window.is_none_or(|window| distance < window)
    };
    reaches(queries, keys) || (!options.causal && reaches(keys, queries))
}

/// How far before each rank in the ring the owners of the keys are that any rank sees; the first is its own.
fn offsets(options: &RingOptions, runs: &[Runs]) -> Vec<usize> {
    let count = runs.len();
    let needs = |rank: usize, owner: usize| {
        let pairs = runs[rank].iter().flat_map(|queries| runs[owner].iter().map(move |keys| (queries, keys)));
        pairs.into_iter().any(|(queries, keys)| sees(options, queries, keys))
    };
    (0..count)
        .filter(|&offset| {
            offset == 0 || (0..count).any(|rank| needs(rank, (rank + count - offset) % count))
        })
        .collect()
}

/// The rank that computes with a chunk in zigzag order.
fn owner(chunk: usize, ranks: usize) -> usize {
    if chunk < ranks { chunk } else { 2 * ranks - 1 - chunk }
}

/// The chunks of a rank in zigzag order, the even one first: it came from the first half of a shard.
fn chunks(rank: usize, ranks: usize) -> [usize; 2] {
    let (low, high) = (rank, 2 * ranks - 1 - rank);
    if low.is_multiple_of(2) { [low, high] } else { [high, low] }
}

impl Ring {
    /// One shard, which is all.
    pub fn alone(b: &mut GraphBuilder, keys: usize) -> Ring {
        let place = b.constant(Literal::new([3], vec![0, 0, keys as i64]));
        Ring { places: vec![place], offsets: vec![0], groups: Vec::new(), most: keys, is_zigzag: false }
    }

    pub fn of(context: &mut dyn LocalContext, options: &RingOptions) -> Result<Ring> {
        let Some(peers) = context.peers(SEQUENCE) else {
            let k = context.operands()[1];
            let keys = context.builder().ty(k).shape[2];
            return Ok(Ring::alone(context.builder(), keys));
        };
        let count = peers.extents.len();
        let most = peers.extents.iter().copied().max().unwrap_or(0);
        let is_even = peers.extents.iter().all(|&extent| extent == most && extent.is_multiple_of(2));
        let is_zigzag = options.zigzag && is_even;
        let mut next = 0;
        let runs: Vec<Runs> = (0..count)
            .map(|rank| match is_zigzag {
                true => {
                    let length = most / 2;
                    chunks(rank, count).map(|chunk| chunk * length..(chunk + 1) * length).to_vec()
                }
                false => {
                    next += peers.extents[rank];
                    vec![next - peers.extents[rank]..next]
                }
            })
            .collect();
        let offsets = offsets(options, &runs);
        let mut places = Vec::with_capacity(offsets.len());
        for &offset in &offsets {
            // The numbers of a place, for each rank.
            let owner = |rank: usize| (rank + count - offset) % count;
            let starts = |of: &dyn Fn(usize) -> usize, run: usize| -> Vec<i64> {
                (0..count).map(|rank| runs[of(rank)][run].start as i64).collect()
            };
            let mut numbers: Vec<Vec<i64>> = (0..runs[0].len()).map(|run| starts(&|rank| rank, run)).collect();
            numbers.extend((0..runs[0].len()).map(|run| starts(&owner, run)));
            numbers.push((0..count).map(|rank| peers.extents[owner(rank)] as i64).collect());
            let mut place = Vec::with_capacity(numbers.len());
            for by_position in numbers {
                let number = context.by_position(SEQUENCE, &by_position)?;
                place.push(context.builder().reshape(number, &[1])?);
            }
            places.push(context.builder().concatenate(&place, 0)?);
        }
        let groups = peers.groups.iter().cloned().collect();
        Ok(Ring { places, offsets, groups, most, is_zigzag })
    }

    /// Two tensors `[b, g, keys, d]` as one `[2, b, g, keys, d]`, padded to the largest shard.
    pub fn pack(&self, b: &mut GraphBuilder, tensors: [ValueId; 2]) -> Result<ValueId> {
        let shape = [&[1], &b.shape(tensors[0])[..]].concat();
        let [first, second] = tensors.map(|tensor| b.reshape(tensor, &shape));
        let packed = b.concatenate(&[first?, second?], 0)?;
        if self.places.len() == 1 {
            return Ok(packed);
        }
        let dtype = b.ty(packed).dtype;
        let zero = b.scalar(dtype, 0.0);
        let high = vec![0, 0, 0, (self.most - shape[3]) as i64, 0];
        b.push1(Pad { low: vec![0; 5], high, interior: vec![0; 5] }, &[packed, zero])
    }

    pub fn unpack(&self, b: &mut GraphBuilder, packed: ValueId) -> Result<[ValueId; 2]> {
        let shape = b.shape(packed)[1..].to_vec();
        let [first, second] = [0, 1].map(|number| {
            let one = b.slice_dim(packed, 0, number, number + 1)?;
            b.reshape(one, &shape)
        });
        Ok([first?, second?])
    }

    /// The value of a rank that many places before each.
    fn shift(&self, b: &mut GraphBuilder, value: ValueId, by: usize) -> Result<ValueId> {
        self.send(b, value, |place, count| (place + by) % count)
    }

    /// Each rank's value, sent to another place of its ring.
    fn send(
        &self,
        b: &mut GraphBuilder,
        value: ValueId,
        to: impl Fn(usize, usize) -> usize,
    ) -> Result<ValueId> {
        let mut pairs = Vec::new();
        for group in &self.groups {
            pairs.extend((0..group.len()).map(|place| (group[place], group[to(place, group.len())])));
        }
        b.push1(CollectivePermute { pairs }, &[value])
    }

    /// From where a value is at the hop before to where it is at a hop.
    pub fn pass_on(&self, b: &mut GraphBuilder, value: ValueId, hop: usize) -> Result<ValueId> {
        self.shift(b, value, self.offsets[hop] - self.offsets[hop - 1])
    }

    /// From where a value is at the last hop to its owner.
    pub fn pass_home(&self, b: &mut GraphBuilder, value: ValueId) -> Result<ValueId> {
        match *self.offsets.last().expect("a rank sees its own") {
            0 => Ok(value),
            last => self.shift(b, value, self.groups[0].len() - last),
        }
    }

    /// Tensors that are sharded along a dimension, in the order in which the ranks compute.
    pub fn enter(&self, b: &mut GraphBuilder, tensors: &[(ValueId, usize)]) -> Result<Vec<ValueId>> {
        self.exchange(b, tensors, |half, place, ranks| owner(2 * place + half, ranks))
    }

    /// What [`Ring::enter`] reordered, in the order of the sequence.
    pub fn leave(&self, b: &mut GraphBuilder, tensors: &[(ValueId, usize)]) -> Result<Vec<ValueId>> {
        self.exchange(b, tensors, |half, place, ranks| chunks(place, ranks)[half] / 2)
    }

    /// Sends each half of the tensors to the place that is given for it and for the sender's, all tensors of one type at
    /// once.
    fn exchange(
        &self,
        b: &mut GraphBuilder,
        tensors: &[(ValueId, usize)],
        to: impl Fn(usize, usize, usize) -> usize,
    ) -> Result<Vec<ValueId>> {
        let mut values: Vec<ValueId> = tensors.iter().map(|&(value, _)| value).collect();
        if !self.is_zigzag {
            return Ok(values);
        }
        let mut types: Vec<DType> = values.iter().map(|&value| b.ty(value).dtype).collect();
        types.sort_unstable_by_key(|dtype| dtype.name());
        types.dedup();
        for dtype in types {
            let some: Vec<usize> = (0..tensors.len()).filter(|&at| b.ty(tensors[at].0).dtype == dtype).collect();
            let mut halves = Vec::with_capacity(2);
            for half in 0..2 {
                let mut flat = Vec::with_capacity(some.len());
                for &at in &some {
                    let (value, dim) = tensors[at];
                    let length = b.shape(value)[dim] / 2;
                    let own = b.slice_dim(value, dim, half * length, (half + 1) * length)?;
                    let elements = b.ty(own).element_count();
                    flat.push(b.reshape(own, &[elements])?);
                }
                let packed = b.concatenate(&flat, 0)?;
                halves.push(self.send(b, packed, |place, ranks| to(half, place, ranks))?);
            }
            let mut start = 0;
            for &at in &some {
                let (value, dim) = tensors[at];
                let mut shape = b.shape(value);
                shape[dim] /= 2;
                let end = start + shape.iter().product::<usize>();
                let mut both = Vec::with_capacity(2);
                for &half in &halves {
                    let own = b.slice_dim(half, 0, start, end)?;
                    both.push(b.reshape(own, &shape)?);
                }
                values[at] = b.concatenate(&both, dim)?;
                start = end;
            }
        }
        Ok(values)
    }
}

/// Keys and values on their way around the ring.
pub(super) struct Travelling {
    own: [ValueId; 2],
    packed: Option<ValueId>,
}

impl Travelling {
    pub fn new(b: &mut GraphBuilder, ring: &Ring, own: [ValueId; 2]) -> Result<Travelling> {
        let packed = if ring.places.len() > 1 { Some(ring.pack(b, own)?) } else { None };
        Ok(Travelling { own, packed })
    }

    /// The shard of keys and values that a rank has at a hop, one after the other; the first is its own.
    pub fn at(&mut self, b: &mut GraphBuilder, ring: &Ring, hop: usize) -> Result<[ValueId; 2]> {
        let Some(packed) = self.packed.filter(|_| hop > 0) else { return Ok(self.own) };
        let packed = *self.packed.insert(ring.pass_on(b, packed, hop)?);
        ring.unpack(b, packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(causal: bool, window: Option<usize>) -> RingOptions {
        RingOptions { causal, window, zigzag: false, scale: 1.0 }
    }

    fn even(ranks: usize, each: usize) -> Vec<Runs> {
        (0..ranks).map(|rank| vec![rank * each..(rank + 1) * each]).collect()
    }

    #[test]
    fn keys_travel_as_far_as_they_are_seen() {
        let far = |causal, window, runs: &[Runs]| offsets(&options(causal, window), runs);
        assert_eq!(far(true, None, &even(4, 4)), [0, 1, 2, 3]);
        assert_eq!(far(false, None, &even(4, 4)), [0, 1, 2, 3]);
        // A window of one token sees itself; of five, the last key of the shard before the one before.
        assert_eq!(far(true, Some(1), &even(4, 4)), [0]);
        assert_eq!(far(true, Some(2), &even(4, 4)), [0, 1]);
        assert_eq!(far(true, Some(5), &even(4, 4)), [0, 1]);
        assert_eq!(far(true, Some(6), &even(4, 4)), [0, 1, 2]);
        // Both sides, without a causal mask.
        assert_eq!(far(false, Some(2), &even(5, 4)), [0, 1, 4]);
        // Ranks without tokens see nothing.
        assert_eq!(far(true, None, &[vec![0..1], vec![1..2], vec![2..2]]), [0, 1]);
    }

    /// Under a causal mask each rank has the same number of pairs of a query and a key, whatever it holds.
    #[test]
    fn zigzag_order_is_even() {
        for ranks in 1..7 {
            let mut held: Vec<usize> = (0..ranks).flat_map(|rank| chunks(rank, ranks)).collect();
            assert!((0..2 * ranks).all(|chunk| chunks(owner(chunk, ranks), ranks)[chunk % 2] == chunk));
            held.sort_unstable();
            assert_eq!(held, (0..2 * ranks).collect::<Vec<_>>());
            for length in [1, 3] {
                let positions = |rank: usize| {
                    chunks(rank, ranks).into_iter().flat_map(move |chunk| chunk * length..(chunk + 1) * length)
                };
                let seen = |rank: usize| positions(rank).map(|query| query + 1).sum::<usize>();
                assert!((0..ranks).all(|rank| seen(rank) == seen(0)), "{ranks} ranks");
            }
        }
    }
}
