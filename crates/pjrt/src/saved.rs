//! The form of saved programs: bytes of a plugin, which is stated in front of them, with a checksum.
//!
//! Plugins do not check what they load: of 158 programs for CPUs with one byte changed, 8 ended the process and 106 were
//! loaded. The checksum finds damage, not malice: a saved program is machine code.

use partita_base::{Diagnostic, Result};

/// The first bytes of every saved program.
const MAGIC: &[u8; 8] = b"PJRT\0sv1";

/// Bytes of a number.
const WORD: usize = 8;

/// FNV-1a on words of eight bytes, the last one filled up with zeros, and the length.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let mut hash = step(0xcbf2_9ce4_8422_2325, bytes.len() as u64);
    for word in bytes.chunks(WORD) {
        let mut filled = [0; WORD];
        filled[..word.len()].copy_from_slice(word);
        hash = step(hash, u64::from_le_bytes(filled));
    }
    hash
}

/// A saved program: the magic, the checksum of all that follows, the length of `build`, `build`, `program`.
pub(crate) fn wrap(build: &str, program: &[u8]) -> Vec<u8> {
    let mut saved = Vec::with_capacity(MAGIC.len() + 2 * WORD + build.len() + program.len());
    saved.extend(MAGIC);
    saved.extend([0; WORD]);
    saved.extend((build.len() as u64).to_le_bytes());
    saved.extend(build.as_bytes());
    saved.extend(program);
    let sum = checksum(&saved[MAGIC.len() + WORD..]);
    saved[MAGIC.len()..MAGIC.len() + WORD].copy_from_slice(&sum.to_le_bytes());
    saved
}

/// The bytes of the plugin in a saved program; E066 if it is damaged or of another build.
pub(crate) fn unwrap<'a>(build: &str, saved: &'a [u8]) -> Result<&'a [u8]> {
    let refused = |what: &str| Diagnostic::new("E066", format!("a saved program cannot be loaded: {what}"));
    let parts = || {
        let rest = saved.strip_prefix(MAGIC)?;
        let (sum, content) = rest.split_first_chunk::<WORD>()?;
        let (length, rest) = content.split_first_chunk::<WORD>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (saver, program) = rest.split_at_checked(length)?;
        Some((u64::from_le_bytes(*sum) == checksum(content), saver, program))
    };
    match parts() {
        Some((true, saver, program)) if saver == build.as_bytes() => Ok(program),
        Some((true, saver, _)) => Err(refused("it is of another build of the plugin")
            .expected(build)
            .found(String::from_utf8_lossy(saver))
            .help("compile it again")),
        Some((false, _, _)) => {
            Err(refused("it is damaged").found(format!("{} bytes with another checksum", saved.len())))
        }
        None => Err(refused("these bytes are none, or incomplete").found(format!("{} bytes", saved.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_programs_are_refused_at_every_byte() {
        for program in [&b""[..], b"program", b"12345678", b"a program of more than 16 bytes"] {
            let saved = wrap("build 1", program);
            assert_eq!(unwrap("build 1", &saved).unwrap(), program);
            let error = unwrap("build 2", &saved).unwrap_err();
            assert_eq!((error.code, error.found.as_deref()), ("E066", Some("build 1")));
            for end in 0..saved.len() {
                assert!(unwrap("build 1", &saved[..end]).is_err());
            }
            for at in 0..saved.len() {
                for bit in 0..8 {
                    let mut damaged = saved.clone();
                    damaged[at] ^= 1 << bit;
                    assert_eq!(unwrap("build 1", &damaged).unwrap_err().code, "E066");
                }
            }
            let longer = [&saved[..], &[0]].concat();
            assert!(unwrap("build 1", &longer).is_err());
        }
    }
}
