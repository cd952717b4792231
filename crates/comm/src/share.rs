//! Splits a collective into the shares of its members, and these into chunks.

use std::ops::Range;

use crate::copy::StridedCopy;
use crate::reduce::Reduction;
use crate::spec::{CollectiveSpec, Exchange, Moves};

/// Bytes of one input per piece: small enough that the piece and its counterparts in other buffers
/// stay in L2 while they are combined or copied several times.
///
/// With non-temporal stores, a chunk is one piece, large enough to hide the cost of claiming it, so
/// that fast members can help slow ones. Otherwise a share is one chunk, run by one thread: its
/// data is in the cache of the core that ran it last time, and a counter update in between would
/// first wait for all earlier stores.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// The least slice of a member in an all-reduce: below it, sharing the arithmetic costs more than
/// it saves.
const MIN_SLICE_BYTES: usize = 4096;

/// Slices of an all-reduce are aligned to cache lines, so that no two members write one line.
const LINE_BYTES: usize = 64;

/// If the buffers of a collective, all members together, exceed this size, they do not stay in a
/// cache until they are read: outputs are written with non-temporal stores, which avoids reading
/// them first.
const STREAM_BYTES: usize = 32 << 20;

/// The work of a collective.
pub(crate) struct Plan {
    /// Indexed by the member that polls each one first.
    pub(crate) shares: Vec<Share>,
    /// Per member: exchanges whose output it zero-fills before it arrives.
    pub(crate) zero_fills: Vec<Vec<usize>>,
    /// Whether outputs are written with non-temporal stores.
    pub(crate) streams: bool,
}

/// One member's part of the work.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) chunks: Vec<Vec<Piece>>,
    /// The members, in order, whose buffers the chunks access.
    pub(crate) touches: Vec<usize>,
    /// Input bytes in the last chunk, and their limit.
    filled_bytes: usize,
    chunk_bytes: usize,
}

/// One operation on one tensor of the bucket.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its position in the bucket.
    pub(crate) exchange: usize,
    /// The members whose outputs receive the result.
    pub(crate) targets: Range<usize>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A reduction of the inputs of all members.
    Reduce(Reduction),
    /// A copy from the input of one member.
    Copy(usize, StridedCopy),
}

impl Share {
    fn push(&mut self, exchange: usize, targets: &Range<usize>, bytes: usize, action: Action) {
        if self.chunks.is_empty() || self.filled_bytes + bytes > self.chunk_bytes {
            self.chunks.push(Vec::new());
            self.filled_bytes = 0;
        }
        self.filled_bytes += bytes;
        let chunk = self.chunks.last_mut().expect("there is one by now");
        chunk.push(Piece { exchange, targets: targets.clone(), action });
    }

    fn reduce(&mut self, exchange: usize, targets: Range<usize>, whole: &Reduction) {
        for part in whole.split(PIECE_BYTES) {
            self.push(exchange, &targets, part.input_bytes(), Action::Reduce(part));
        }
    }
}

/// The slice of an all-reduce that a member reduces for all.
fn slice(len: usize, element_bytes: usize, member_count: usize, member: usize) -> Range<usize> {
    let even = len.div_ceil(member_count).next_multiple_of(LINE_BYTES / element_bytes);
    let extent = even.max(MIN_SLICE_BYTES / element_bytes);
    (extent * member).min(len)..(extent * (member + 1)).min(len)
}

/// Copies of a `Moves`, by source; data for consecutive targets is read once and written to all of
/// them.
fn copies(moves: &Moves) -> Vec<(usize, Range<usize>, StridedCopy)> {
    let mut copies: Vec<(usize, Range<usize>, StridedCopy)> = Vec::new();
    for moved in &moves.boxes {
        let copy = StridedCopy::of_box(
            moves.element_bytes,
            &moves.input_shapes[moved.source],
            &moved.source_start,
            &moves.output_shapes[moved.target],
            &moved.target_start,
            &moved.extents,
        );
        let Some(copy) = copy else { continue };
        match copies.last_mut() {
            Some((source, targets, last))
                if (*source, targets.end) == (moved.source, moved.target) && *last == copy =>
            {
                targets.end += 1;
            }
            _ => copies.push((moved.source, moved.target..moved.target + 1, copy)),
        }
    }
    copies
}

impl Plan {
    /// The work of a valid collective.
    pub(crate) fn new(spec: &CollectiveSpec) -> Self {
        let count = spec.members.len();
        let buffers = spec.exchanges.iter().flat_map(|exchange| {
            (0..count).map(move |member| exchange.input_bytes(member) + exchange.output_bytes(member))
        });
        let streams = buffers.sum::<usize>() > STREAM_BYTES;
        let chunk_bytes = if streams { PIECE_BYTES } else { usize::MAX };
        let mut shares: Vec<Share> = (0..count).map(|_| Share { chunk_bytes, ..Share::default() }).collect();
        let mut zero_fills = vec![Vec::new(); count];
        for (index, exchange) in spec.exchanges.iter().enumerate() {
            match exchange {
                Exchange::AllReduce { combiner, dtype, len } => {
                    for (member, share) in shares.iter_mut().enumerate() {
                        let mine = slice(*len, dtype.size_bytes(), count, member);
                        let reduction = Reduction {
                            combiner: *combiner,
                            dtype: *dtype,
                            rows: 1,
                            len: mine.len(),
                            input_offset: mine.start,
                            input_stride: 0,
                            output_offset: mine.start,
                            output_stride: 0,
                        };
                        share.reduce(index, 0..count, &reduction);
                    }
                }
                Exchange::ReduceScatter { combiner, dtype, outer, extents } => {
                    let row: usize = extents.iter().sum();
                    let mut start = 0;
                    for (member, (share, &extent)) in shares.iter_mut().zip(extents).enumerate() {
                        let reduction = Reduction {
                            combiner: *combiner,
                            dtype: *dtype,
                            rows: *outer,
                            len: extent,
                            input_offset: start,
                            input_stride: row,
                            output_offset: 0,
                            output_stride: extent,
                        };
                        share.reduce(index, member..member + 1, &reduction);
                        start += extent;
                    }
                }
                Exchange::Moves(moves) => {
                    for (source, targets, copy) in copies(moves) {
                        for part in copy.split(PIECE_BYTES) {
                            shares[source].push(index, &targets, part.bytes(), Action::Copy(source, part));
                        }
                    }
                    for (fills, _) in zero_fills.iter_mut().zip(&moves.zero_fill).filter(|(_, zero)| **zero) {
                        fills.push(index);
                    }
                }
            }
        }
        if spec.exchanges.is_empty() {
            // A barrier has no work, but its share opens only when all members have arrived.
            shares[0].chunks.push(Vec::new());
        }
        for (member, share) in shares.iter_mut().enumerate().filter(|(_, share)| !share.chunks.is_empty()) {
            let pieces = || share.chunks.iter().flatten();
            let all = spec.exchanges.is_empty() || pieces().any(|p| matches!(p.action, Action::Reduce(_)));
            let touched = |&m: &usize| all || m == member || pieces().any(|p| p.targets.contains(&m));
            share.touches = (0..count).filter(touched).collect();
        }
        Plan { shares, zero_fills, streams }
    }
}

#[cfg(test)]
mod tests {
    use partita_base::{Combiner, DType};

    use super::*;

    /// Elements that a share reduces.
    fn reduced(share: &Share) -> usize {
        let pieces = share.chunks.iter().flatten();
        pieces.map(|p| if let Action::Reduce(r) = &p.action { r.rows * r.len } else { 0 }).sum()
    }

    fn all_reduce(len: usize) -> Vec<Share> {
        let exchange = Exchange::all_reduce(Combiner::Sum, DType::F32, len);
        Plan::new(&CollectiveSpec::new("gradients", vec![0, 1, 2, 3], vec![exchange])).shares
    }

    #[test]
    fn a_large_all_reduce_gives_each_member_its_part_of_the_arithmetic() {
        let len = 100_003;
        let shares = all_reduce(len);
        let lens: Vec<usize> = shares.iter().map(reduced).collect();
        assert_eq!(lens.iter().sum::<usize>(), len);
        assert!(lens.iter().all(|&l| l <= len / 4 + 16), "{lens:?}");
        assert!(shares.iter().all(|s| s.touches == [0, 1, 2, 3]));
    }

    #[test]
    fn a_small_all_reduce_is_done_by_one_member() {
        assert_eq!(all_reduce(1000).iter().map(reduced).collect::<Vec<_>>(), [1000, 0, 0, 0]);
    }

    #[test]
    fn a_send_touches_its_two_members_and_is_one_share() {
        let shares = Plan::new(&CollectiveSpec::send(5, 2, 8)).shares;
        assert_eq!((shares[0].touches.as_slice(), shares[1].touches.as_slice()), (&[0, 1][..], &[][..]));
        assert_eq!((shares[0].chunks.len(), shares[1].chunks.len()), (1, 0));
    }

    fn all_gather(pieces: usize) -> Vec<Share> {
        let bytes = pieces * PIECE_BYTES;
        let spec = CollectiveSpec::new("gather", vec![0, 1, 2], vec![Exchange::all_gather(1, &[bytes; 3])]);
        Plan::new(&spec).shares
    }

    #[test]
    fn an_all_gather_reads_each_input_once() {
        for share in all_gather(3) {
            assert_eq!(share.chunks.len(), 1);
            assert_eq!(share.chunks[0].len(), 3);
            assert!(share.chunks[0].iter().all(|piece| piece.targets == (0..3)));
        }
    }

    #[test]
    fn what_goes_past_the_caches_is_shared_chunk_by_chunk() {
        // Three inputs and nine of their size in outputs.
        let pieces = STREAM_BYTES / PIECE_BYTES / 12 + 1;
        for share in all_gather(pieces) {
            assert_eq!(share.chunks.len(), pieces);
            assert!(share.chunks.iter().all(|chunk| chunk.len() == 1 && chunk[0].targets == (0..3)));
        }
    }
}
