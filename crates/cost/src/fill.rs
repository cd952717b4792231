//! What a rank needs beside what its device holds.

/// Bytes of a rank, and of the memory of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fill {
    /// Bytes that the rank needs.
    pub bytes: u64,
    /// Bytes of its device.
    pub limit: u64,
}

impl Fill {
    /// So many bytes on a device with so many.
    pub fn new(bytes: u64, limit: u64) -> Fill {
        Fill { bytes, limit }
    }

    /// Whether the device holds them.
    pub fn fits(self) -> bool {
        self.bytes <= self.limit
    }

    /// The bytes that are too many; below 0, those that are left.
    pub fn excess(self) -> i128 {
        i128::from(self.bytes) - i128::from(self.limit)
    }

    /// The bytes that are too many; 0 if it fits.
    pub fn missing(self) -> u64 {
        self.bytes.saturating_sub(self.limit)
    }

    /// The one with the least room: all fit if it does. Of equals the first.
    pub fn fullest(all: impl IntoIterator<Item = Fill>) -> Fill {
        let fuller = |a: Fill, b: Fill| if b.excess() > a.excess() { b } else { a };
        all.into_iter().reduce(fuller).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_with_the_least_room_decides() {
        let (large, small) = (Fill::new(60, 80), Fill::new(20, 16));
        assert_eq!(Fill::fullest([large, small]), small);
        assert_eq!((small.fits(), small.missing(), large.missing()), (false, 4, 0));
        assert_eq!(Fill::fullest([large, Fill::new(12, 16)]), Fill::new(12, 16));
        // Without ranks nothing is needed.
        assert!(Fill::fullest([]).fits());
    }
}
