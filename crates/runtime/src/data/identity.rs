//! The identity of data: the digest by which a checkpoint recognises what it was trained on.

use std::ops::Range;

use hmac_sha256::Hash as Sha256;

use crate::digest;

/// Up to so many bytes the digest is SHA-256, as `sha256sum` prints it; of more, one that takes a tenth of the time.
const MAX_SHA256_BYTES: u64 = 64 << 20;

/// The most bytes that are read for a digest: it takes as long as reading them, some ten seconds. Of more, samples are.
pub(super) const MAX_BYTES: u64 = 16 << 30;

const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 1 << 20;
const OF_SAMPLES: &str = "sha256-of-samples:";

/// The identity of `total` bytes, of which `chunks` gives a range; of at most `most` bytes it covers every bit.
pub(super) fn of_chunks<'a, I: Iterator<Item = &'a [u8]>>(
    total: u64,
    most: u64,
    chunks: impl Fn(Range<u64>) -> I,
) -> String {
    if total > most {
        of_samples(total, chunks)
    } else if total > MAX_SHA256_BYTES {
        digest::of_chunks(chunks(0..total))
    } else {
        let mut hash = Sha256::new();
        chunks(0..total).for_each(|chunk| hash.update(chunk));
        format!("sha256:{}", hexadecimal(&hash))
    }
}

/// The SHA-256 of the length and of 64 samples of 1 MiB, evenly spaced from the first byte to the last.
pub(super) fn of_samples<'a, I: Iterator<Item = &'a [u8]>>(
    total: u64,
    chunks: impl Fn(Range<u64>) -> I,
) -> String {
    let mut hash = Sha256::new();
    for i in 0..SAMPLES {
        let start = total.saturating_sub(SAMPLE_BYTES) * i / (SAMPLES - 1);
        chunks(start..total.min(start + SAMPLE_BYTES)).for_each(|chunk| hash.update(chunk));
    }
    hash.update(total.to_le_bytes());
    format!("{OF_SAMPLES}{}", hexadecimal(&hash))
}

fn hexadecimal(hash: &Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether an identity is that of samples alone: a change between them is not noticed.
pub fn is_of_samples(identity: &str) -> bool {
    identity.starts_with(OF_SAMPLES)
}

/// The beginning of an identity, for people.
pub(super) fn short(identity: &str) -> String {
    let (kind, digits) = identity.split_once(':').unwrap_or(("", identity));
    let what = if is_of_samples(identity) { " (recognised by samples of 64 MiB)" } else { "" };
    format!("{kind}:{digits:.12}{what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(bytes: &[u8], most: u64) -> String {
        of_chunks(bytes.len() as u64, most, |range| {
            std::iter::once(&bytes[range.start as usize..range.end as usize])
        })
    }

    #[test]
    fn every_bit_of_a_text_counts_unless_it_is_too_long_to_be_read() {
        let mut text = vec![b'a'; (MAX_SHA256_BYTES + 40) as usize];
        let sha = identity(&text[40..], MAX_BYTES);
        assert!(sha.starts_with("sha256:"), "{sha}");
        let [whole, samples] = [MAX_BYTES, MAX_SHA256_BYTES].map(|most| identity(&text, most));
        assert!(whole.starts_with("xxh3-128:") && is_of_samples(&samples), "{whole} {samples}");
        assert_eq!((short(&sha).len(), short(&whole).len()), ("sha256:".len() + 12, "xxh3-128:".len() + 12));
        assert!(short(&samples).ends_with("(recognised by samples of 64 MiB)"), "{}", short(&samples));
        // Samples see both ends and the length.
        for place in [0, 12_345_678, text.len() - 1] {
            text[place] ^= 1;
            assert_ne!(identity(&text, MAX_BYTES), whole, "{place}");
            text[place] ^= 1;
        }
        for place in [0, text.len() - 1] {
            text[place] ^= 1;
            assert_ne!(identity(&text, MAX_SHA256_BYTES), samples, "{place}");
            text[place] ^= 1;
        }
        assert_ne!(identity(&text[1..], MAX_SHA256_BYTES), samples);
    }
}
