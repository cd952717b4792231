//! A spec, cut into what each member does.

use std::ops::Range;

use crate::copy::StridedCopy;
use crate::reduce::Reduction;
use crate::spec::{CollectiveSpec, Exchange};

/// Up to this size every member of an all-reduce reduces all elements for itself: repeating the arithmetic costs
/// less than a second rendezvous. The bits are the same.
const ALONE_BYTES: usize = 4096;

/// Slices of an all-reduce begin on cache lines, so that no two members write one line.
const LINE_BYTES: usize = 64;

/// What one member does in a collective. Exchanges are given by their position in the bucket.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Outputs that are filled with zeros first.
    pub(crate) zero_fills: Vec<usize>,
    /// Copies from peers' inputs to my output, as soon as the peer has arrived.
    pub(crate) inputs: Vec<Fetch>,
    /// Reductions over all members' inputs to my output, when all have arrived.
    pub(crate) reductions: Vec<(usize, Reduction)>,
    /// Copies from peers' outputs to my output, as soon as the peer has reduced its slice.
    pub(crate) outputs: Vec<Fetch>,
    /// Whether all members must have arrived.
    pub(crate) needs_all: bool,
    /// The members, other than this one, that read this one's buffers.
    pub(crate) readers: Vec<usize>,
}

/// Everything that is copied from one peer.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) peer: usize,
    pub(crate) copies: Vec<(usize, StridedCopy)>,
}

fn add(fetches: &mut Vec<Fetch>, peer: usize, exchange: usize, copy: StridedCopy) {
    match fetches.iter_mut().find(|f| f.peer == peer) {
        Some(fetch) => fetch.copies.push((exchange, copy)),
        None => fetches.push(Fetch { peer, copies: vec![(exchange, copy)] }),
    }
}

/// The elements of an all-reduce that a member reduces for everybody.
fn slice(len: usize, element_bytes: usize, member_count: usize, member: usize) -> Range<usize> {
    let extent = len.div_ceil(member_count).next_multiple_of(LINE_BYTES / element_bytes);
    (extent * member).min(len)..(extent * (member + 1)).min(len)
}

/// What each member of a valid collective does.
pub(crate) fn shares(spec: &CollectiveSpec) -> Vec<Share> {
    let count = spec.members.len();
    let mut shares: Vec<Share> = (0..count).map(|_| Share::default()).collect();
    for (index, exchange) in spec.exchanges.iter().enumerate() {
        match exchange {
            Exchange::AllReduce { combiner, dtype, len } => {
                let element_bytes = dtype.size_bytes();
                let alone = len * element_bytes <= ALONE_BYTES;
                for (member, share) in shares.iter_mut().enumerate() {
                    let mine = if alone { 0..*len } else { slice(*len, element_bytes, count, member) };
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
                    if !mine.is_empty() {
                        share.reductions.push((index, reduction));
                    }
                    for peer in (0..count).filter(|&peer| !alone && peer != member) {
                        let theirs = slice(*len, element_bytes, count, peer);
                        let offset = theirs.start * element_bytes;
                        if let Some(copy) = StridedCopy::of_range(offset, theirs.len() * element_bytes) {
                            add(&mut share.outputs, peer, index, copy);
                        }
                    }
                }
            }
            Exchange::ReduceScatter { combiner, dtype, outer, extents } => {
                let row: usize = extents.iter().sum();
                let mut start = 0;
                for (share, &extent) in shares.iter_mut().zip(extents) {
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
                    if outer * extent > 0 {
                        share.reductions.push((index, reduction));
                    }
                    start += extent;
                }
            }
            Exchange::Moves(moves) => {
                for moved in &moves.boxes {
                    let copy = StridedCopy::of_box(
                        moves.element_bytes,
                        &moves.input_shapes[moved.source],
                        &moved.source_start,
                        &moves.output_shapes[moved.target],
                        &moved.target_start,
                        &moved.extents,
                    );
                    if let Some(copy) = copy {
                        add(&mut shares[moved.target].inputs, moved.source, index, copy);
                    }
                }
                for (share, _) in shares.iter_mut().zip(&moves.zero_fill).filter(|(_, zero)| **zero) {
                    share.zero_fills.push(index);
                }
            }
        }
    }
    for member in 0..count {
        // Members begin with the peer after themselves, so that not all read the same buffer at once.
        let distance = |f: &Fetch| (f.peer + count - member) % count;
        shares[member].inputs.sort_by_key(distance);
        shares[member].outputs.sort_by_key(distance);
        shares[member].needs_all = spec.exchanges.is_empty() || !shares[member].reductions.is_empty();
        let reads = |reader: &Share| {
            !reader.reductions.is_empty()
                || reader.inputs.iter().chain(&reader.outputs).any(|f| f.peer == member)
        };
        let readers = (0..count).filter(|&r| r != member && reads(&shares[r])).collect();
        shares[member].readers = readers;
    }
    shares
}

#[cfg(test)]
mod tests {
    use partita_base::DType;

    use super::*;
    use partita_base::Combiner;

    #[test]
    fn a_large_all_reduce_gives_each_member_its_part_of_the_arithmetic() {
        let len = 100_003;
        let spec = CollectiveSpec::new(
            "gradients",
            vec![0, 1, 2, 3],
            vec![Exchange::all_reduce(Combiner::Sum, DType::F32, len)],
        );
        let shares = shares(&spec);
        let lens: Vec<usize> = shares.iter().map(|s| s.reductions[0].1.len).collect();
        assert_eq!(lens.iter().sum::<usize>(), len);
        assert!(lens.iter().all(|&l| l <= len / 4 + 16), "{lens:?}");
        assert!(shares.iter().all(|s| s.outputs.len() == 3));
    }

    #[test]
    fn a_sender_waits_for_its_reader_and_a_receiver_for_nobody() {
        let shares = shares(&CollectiveSpec::send(5, 2, 8));
        assert_eq!((shares[0].readers.as_slice(), shares[1].readers.as_slice()), (&[1][..], &[][..]));
    }
}
