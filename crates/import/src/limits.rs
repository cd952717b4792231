//! What a file may make the reader do. Every size in a file is a claim; memory and time follow the
//! size of the file and these limits, not the claims.

use partita_base::{Diagnostic, Result};

/// Upper bounds on what one file may contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Entries of an archive.
    pub entries: usize,
    /// Bytes of one JSON text: a graph, a table of weights.
    pub json_bytes: usize,
    /// Nodes of the imported graph.
    pub nodes: usize,
    /// Nodes that loops of known trip count are unrolled to, in all. Other loops stay: they are not split over a mesh.
    pub unrolled_nodes: usize,
    /// Elements of any tensor of the imported graph. Below 2^32, so that the product of two counts
    /// cannot overflow.
    pub elements: usize,
    /// Bytes of a tensor whose strides repeat elements, once it is expanded.
    pub expanded_bytes: usize,
    /// Bytes that the compressed entries of an archive expand to, in all.
    pub inflated_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            entries: 1 << 20,
            json_bytes: 1 << 28,
            nodes: 1 << 20,
            unrolled_nodes: 1 << 15,
            elements: (1 << 32) - 1,
            expanded_bytes: 1 << 26,
            inflated_bytes: 1 << 32,
        }
    }
}

impl Limits {
    /// The number of elements of a shape. E358 if it exceeds [`Limits::elements`].
    pub fn count(&self, shape: &[usize], what: &str) -> Result<usize> {
        // An extent of 0 empties the tensor but must not hide the others.
        let bound = |extents: &[usize]| extents.iter().try_fold(1usize, |n, &e| n.checked_mul(e.max(1)));
        match bound(shape).filter(|&n| n <= self.elements) {
            Some(_) => Ok(shape.iter().product()),
            None => Err(exceeded(what, format!("at most {} elements", self.elements), format!("{shape:?}"))),
        }
    }
}

/// E358: a limit is exceeded.
pub(crate) fn exceeded(what: &str, limit: String, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E358", format!("{what} is too large"))
        .expected(limit)
        .found(found)
        .help("make the tensor smaller; a program in Rust may read the file with larger `Limits`")
}
