//! Digests of files, by which damage is noticed: XXH3 in 128 bits, which is as fast as memory. They are no protection
//! against malice: a program that changes a file can write the digest that the file has then.

use twox_hash::XxHash3_128;

/// What a digest begins with.
const KIND: &str = "xxh3-128:";

/// Bytes that are hashed at a time.
const AT_ONCE: usize = 1 << 20;

/// The digest of bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    of_chunks(std::iter::once(bytes))
}

/// The digest of chunks, one after another: that of the whole, however it is cut.
pub fn of_chunks<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = XxHash3_128::new();
    chunks.flat_map(|chunk| chunk.chunks(AT_ONCE)).for_each(|chunk| hash.write(chunk));
    format!("{KIND}{:032x}", hash.finish_128())
}

/// Whether a text is a digest of this kind.
pub(crate) fn is_one(text: &str) -> bool {
    text.starts_with(KIND)
}

/// The results of both: `aside` runs on a thread of its own, if there can be one.
pub(crate) fn beside<T: Send, U>(aside: impl Fn() -> T + Sync, here: impl FnOnce() -> U) -> (T, U) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("partita digest".into()).spawn_scoped(scope, &aside);
        let done = here();
        let aside = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => aside(),
        };
        (aside, done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_whole_and_every_bit_counts() {
        // `printf abc | xxhsum -H128`, and of nothing: the reference implementation's own test values.
        assert_eq!(of_bytes(b""), "xxh3-128:99aa06d3014798d86001c324468d497f");
        assert_eq!(of_bytes(b"abc"), "xxh3-128:06b05ab6733a618578af5f94892f3950");
        let bytes: Vec<u8> =
            (0..3 * AT_ONCE as u32 + 5).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
        let whole = of_bytes(&bytes);
        assert_eq!(
            of_chunks([&bytes[..7], &bytes[7..AT_ONCE + 9], &bytes[AT_ONCE + 9..]].into_iter()),
            whole
        );
        let mut changed = bytes.clone();
        for place in [0, 1, AT_ONCE, bytes.len() - 1] {
            changed[place] ^= 16;
            assert_ne!(of_bytes(&changed), whole, "{place}");
            changed[place] ^= 16;
        }
        assert!(is_one(&whole));
        assert_eq!(beside(|| of_bytes(&bytes), || 3), (whole, 3));
    }
}
