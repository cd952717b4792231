//! Deflated entries of archives, expanded piece by piece.

use crate::Source;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use partita_base::Result;
use std::ops::Range;

/// Bytes of the stream that are read at a time.
const AT_ONCE: usize = 1 << 20;

/// The `size` bytes that the stream at `place` expands to, or what is wrong with it. Errors of the source.
pub fn inflated(source: &Source, place: Range<usize>, size: usize) -> Result<Result<Vec<u8>, String>> {
    let mut state = Box::<DecompressorOxide>::default();
    // The size is a claim: memory follows what comes.
    let mut expanded = vec![0; place.len().saturating_mul(2).min(size)];
    let (mut filled, mut at) = (0, place.start);
    loop {
        let piece = source.read(at..place.end.min(at + AT_ONCE))?;
        at += piece.len();
        let more = if at < place.end { TINFL_FLAG_HAS_MORE_INPUT } else { 0 };
        let mut rest = &piece[..];
        loop {
            let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | more;
            let (status, used, written) = decompress(&mut state, rest, &mut expanded, filled, flags);
            filled += written;
            rest = rest.get(used..).unwrap_or_default();
            match status {
                TINFLStatus::Done if filled == size => return Ok(Ok(expanded)),
                TINFLStatus::Done => return Ok(Err(format!("{filled} bytes of {size}"))),
                TINFLStatus::NeedsMoreInput if at < place.end => break,
                TINFLStatus::HasMoreOutput if expanded.len() < size => {
                    expanded.resize(expanded.len().saturating_mul(2).min(size), 0);
                }
                TINFLStatus::HasMoreOutput => return Ok(Err(format!("more than {size} bytes"))),
                other => return Ok(Err(format!("a deflated stream that cannot be read: {other:?}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::compress_to_vec;

    #[test]
    fn a_stream_of_several_pieces_expands_to_what_was_deflated() {
        // Words that differ, so that the stream is long.
        let words = (0u64..800_000).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17));
        let plain: Vec<u8> = words.flat_map(|word| (word >> 8).to_le_bytes()).collect();
        let stream = [&[7; 9], &compress_to_vec(&plain, 1)[..], &[7; 9]].concat();
        let place = 9..stream.len() - 9;
        assert!(place.len() > 2 * AT_ONCE, "{} bytes", place.len());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &stream).unwrap();
        for source in [Source::from(stream), Source::open(file.path()).unwrap()] {
            let read = |place: Range<usize>, size: usize| inflated(&source, place, size).unwrap();
            assert!(read(place.clone(), plain.len()).unwrap() == plain);
            assert_eq!(
                read(place.clone(), plain.len() - 1),
                Err(format!("more than {} bytes", plain.len() - 1))
            );
            let short = format!("{} bytes of {}", plain.len(), plain.len() + 1);
            assert_eq!(read(place.clone(), plain.len() + 1), Err(short));
            assert!(read(place.start..place.end - 100, plain.len()).unwrap_err().contains("cannot be read"));
            assert!(read(place.start..place.start, 0).is_err());
        }
    }
}
