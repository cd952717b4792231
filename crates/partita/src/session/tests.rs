//! Tests of the session.

use super::*;

#[test]
fn a_small_batch_represents_a_large_one() {
    for ((batch, microbatches, shards), rows) in [
        ((32, 1, 1), 6),
        ((32, 1, 2), 6),
        ((32, 1, 4), 8),
        // 32 rows over 3 shards are uneven, 7 are too.
        ((32, 1, 3), 7),
        ((33, 1, 3), 6),
        ((32, 8, 2), 16),
        ((32, 8, 1), 8),
        ((32, 8, 4), 32),
        // Microbatches of 5, 5, 4 and 4 rows are split over two shards as those of 3, 2, 2 and 2 are.
        ((18, 4, 2), 9),
        // Fewer rows than shards stay so.
        ((3, 1, 4), 3),
        ((4, 2, 4), 4),
        ((1, 1, 1), 1),
        // The split refuses these.
        ((8, 9, 2), 8),
        ((8, 0, 2), 8),
    ] {
        assert_eq!(verification_rows(batch, microbatches, shards), rows, "{batch} {microbatches} {shards}");
    }
}
