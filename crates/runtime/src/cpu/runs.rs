//! Divides rows of several dimensions into blocks of at most so many rows.

use std::ops::Range;

use partita_kernels::MAX_RANK;

/// Maximum number of runs of equal blocks, of which each is a row of the outer dimensions: so many fill 64 GiB, and a step
/// that is only planned must not spend time on listing more.
const MAX_RUNS: usize = 1 << 18;

/// Blocks of equal extents, one behind the other.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Run {
    pub extents: Vec<usize>,
    /// The first row, of all rows in row-major order.
    pub start: usize,
    pub count: usize,
}

impl Run {
    /// The rows of a block.
    pub fn each(&self) -> usize {
        self.extents.iter().product()
    }
}

/// Splits a range of rows into blocks of at most `most` rows, in row-major order. In each block, one
/// dimension is a range, the dimensions before it are one row, and the dimensions after it are complete.
/// `None` if there are more than [`MAX_RUNS`].
pub(super) fn runs(rows: &[usize], range: Range<usize>, most: usize) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut extents = vec![0; rows.len()];
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        let (mut rest, mut inner, mut taken) = (at, rows.iter().product::<usize>(), None);
        for (own, &size) in extents.iter_mut().zip(rows) {
            inner /= size;
            let start = rest / inner;
            rest %= inner;
            *own = match taken {
                Some(_) => size,
                None if rest > 0 || most.min(left) < inner => 1,
                None => {
                    let whole = (most.min(left) / inner).min(size - start);
                    // Blocks of so many follow each other up to the end of the dimension, or of the range.
                    taken = Some((whole * inner, ((size - start) / whole).min(left / (whole * inner))));
                    whole
                }
            };
        }
        let (each, count) = taken.expect("a block has a row");
        let is_full = runs.len() == MAX_RUNS;
        match runs.last_mut() {
            Some(run) if run.extents == extents => run.count += count,
            _ if is_full => return None,
            _ => runs.push(Run { extents: extents.clone(), start: at, count }),
        }
        at += each * count;
    }
    Some(runs)
}

/// Where the inputs and outputs of a block begin.
pub(super) struct Moves {
    /// The extents of the dimensions that are rows.
    pub rows: Vec<usize>,
    /// For each input and output, the bytes from one row to the next along every row dimension.
    pub steps: Vec<Vec<isize>>,
}

impl Moves {
    /// The byte offset of each input and output in the block that begins with this row, from the first row of all.
    pub fn to(&self, row: usize, moves: &mut [isize]) {
        let (mut rest, mut at) = (row, [0; MAX_RANK]);
        for (at, &extent) in at.iter_mut().zip(&self.rows).rev() {
            (rest, *at) = (rest / extent, rest % extent);
        }
        for (moved, steps) in moves.iter_mut().zip(&self.steps) {
            *moved = steps.iter().zip(at).map(|(step, at)| step * at as isize).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first row and the extents of each block, one by one: of the outermost dimension that begins at its first row
    /// as many as fit, or else one row of it.
    fn one_by_one(rows: &[usize], range: Range<usize>, most: usize) -> Vec<(usize, Vec<usize>)> {
        let mut blocks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let mut extents = vec![1; rows.len()];
            for dim in 0..rows.len() {
                let inner: usize = rows[dim + 1..].iter().product();
                let left = rows[dim] - at / inner % rows[dim];
                let fits = |&count: &usize| count * inner <= most.min(range.end - at);
                if let Some(count) = (1..=left).rev().find(fits).filter(|_| at.is_multiple_of(inner)) {
                    extents[dim] = count;
                    extents[dim + 1..].copy_from_slice(&rows[dim + 1..]);
                    break;
                }
            }
            blocks.push((at, extents.clone()));
            at += extents.iter().product::<usize>();
        }
        blocks
    }

    proptest! {
        #[test]
        fn runs_are_the_blocks_one_by_one(
            rows in prop::collection::vec(1usize..7, 1..4),
            begin in 0usize..60,
            end in 0usize..200,
            most in 1usize..40,
        ) {
            let all: usize = rows.iter().product();
            let range = begin.min(all)..end.min(all);
            let found = runs(&rows, range.clone(), most).unwrap();
            let blocks = found.iter().flat_map(|run| {
                (0..run.count).map(move |block| (run.start + block * run.each(), run.extents.clone()))
            });
            prop_assert_eq!(blocks.collect::<Vec<_>>(), one_by_one(&rows, range, most));
            prop_assert!(found.windows(2).all(|pair| pair[0].extents != pair[1].extents));
        }

        #[test]
        fn moves_are_offsets_of_elements(rows in prop::collection::vec(1usize..7, 1..4), row in 0usize..200) {
            let row = row % rows.iter().product::<usize>();
            let steps = vec![vec![3; rows.len()], (0..rows.len() as isize).map(|dim| 7 * dim - 4).collect()];
            let mut found = [0; 2];
            Moves { rows: rows.clone(), steps: steps.clone() }.to(row, &mut found);
            let inner = |dim: usize| rows[dim + 1..].iter().product::<usize>();
            let at = |dim: usize| (row / inner(dim) % rows[dim]) as isize;
            let sum = |steps: &Vec<isize>| (0..rows.len()).map(|dim| steps[dim] * at(dim)).sum::<isize>();
            prop_assert_eq!(found.to_vec(), steps.iter().map(sum).collect::<Vec<_>>());
        }
    }

    #[test]
    fn many_blocks_take_no_time() {
        let rows = [1 << 40, 64];
        assert_eq!(runs(&rows, 0..1 << 46, 1000).unwrap().len(), 2);
        assert_eq!(runs(&rows, 0..1 << 46, 48), None);
    }
}
