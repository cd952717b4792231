//! A box of a strided tensor, copied row by row: read in the order of the file, written in the order of the box.

use crate::source::Pieces;
use std::io;

/// A gap of so many bytes is read over: another read would take longer.
const GAP: usize = 8 << 10;

/// Runs of so many bytes are read where they belong, not through a buffer.
const LONG: usize = 64 << 10;

/// A dimension: its extent, and the distance of neighbours in the file and in the result, in elements.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    from: usize,
    to: usize,
}

/// Fills `into` with the box of `extent`, row by row, of elements of `size` bytes: the first one is the byte `first` of the
/// source, and neighbours along each dimension are `strides` elements apart.
pub fn copy(
    pieces: &mut Pieces,
    (size, first): (usize, usize),
    (extent, strides): (&[usize], &[usize]),
    into: &mut [u8],
) -> io::Result<()> {
    let mut axes: Vec<Axis> = Vec::with_capacity(extent.len());
    let mut to = 1;
    for (&extent, &from) in extent.iter().zip(strides).rev() {
        axes.push(Axis { extent, from, to });
        to *= extent;
    }
    if to == 0 {
        return Ok(());
    }
    axes.retain(|axis| axis.extent > 1);
    axes.reverse();
    // In the order of the file, so that it is read forward.
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.from));
    // Innermost dimensions that are dense on both sides are one run.
    let mut run = 1;
    while let Some(axis) = axes.last().filter(|axis| axis.from == run && axis.to == run) {
        run *= axis.extent;
        axes.pop();
    }
    // Where runs are long or far apart, each is read for itself. The dimensions inside of that form blocks without gaps.
    let (mut span, mut outer) = (run, axes.len());
    while outer > 0 && run * size < LONG && axes[outer - 1].from.saturating_sub(span) * size <= GAP {
        outer -= 1;
        span += (axes[outer].extent - 1) * axes[outer].from;
    }
    let inner = axes.split_off(outer);
    let run = run * size;
    each(&axes, (0, 0), &mut |from, to| {
        let (at, to) = (first + from * size, to * size);
        let Some((&last, inner)) = inner.split_last() else {
            return pieces.copy(at, &mut into[to..to + run]);
        };
        let end = at + span * size;
        each(inner, (0, 0), &mut |from, inner_to| {
            line(pieces, (at + from * size, end), size, last, run, &mut into[to + inner_to * size..])
        })
    })
}

/// Calls `visit` with the places, in elements, of every index of the axes.
fn each(
    axes: &[Axis],
    (from, to): (usize, usize),
    visit: &mut dyn FnMut(usize, usize) -> io::Result<()>,
) -> io::Result<()> {
    match axes.split_first() {
        None => visit(from, to),
        Some((axis, rest)) => (0..axis.extent)
            .try_for_each(|index| each(rest, (from + index * axis.from, to + index * axis.to), visit)),
    }
}

/// The runs of `run` bytes along one axis, from the byte `at` of a block that ends at `end`.
fn line(
    pieces: &mut Pieces,
    (at, end): (usize, usize),
    size: usize,
    axis: Axis,
    run: usize,
    into: &mut [u8],
) -> io::Result<()> {
    let (from, to) = (axis.from * size, axis.to * size);
    let mut done = 0;
    while done < axis.extent {
        let held = pieces.ahead(at + done * from, run, end)?;
        let left = axis.extent - done;
        let count = (held.len() - run).checked_div(from).map_or(left, |more| left.min(more + 1));
        let into = &mut into[done * to..];
        match run {
            1 => scatter::<1>(held, from, into, to, count),
            2 => scatter::<2>(held, from, into, to, count),
            4 => scatter::<4>(held, from, into, to, count),
            8 => scatter::<8>(held, from, into, to, count),
            _ => (0..count).for_each(|index| {
                into[index * to..][..run].copy_from_slice(&held[index * from..][..run]);
            }),
        }
        done += count;
    }
    Ok(())
}

/// Copies `count` elements of N bytes.
fn scatter<const N: usize>(held: &[u8], from: usize, into: &mut [u8], to: usize, count: usize) {
    for index in 0..count {
        into[index * to..][..N].copy_from_slice(&held[index * from..][..N]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use partita_ir::literal::indices;
    use partita_testkit::Random;

    /// One element after another.
    fn plain(
        bytes: &[u8],
        (size, first): (usize, usize),
        (extent, strides): (&[usize], &[usize]),
    ) -> Vec<u8> {
        let mut all = Vec::new();
        for index in indices(extent) {
            let at = first + size * index.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>();
            all.extend_from_slice(&bytes[at..at + size]);
        }
        all
    }

    /// Strides of a view: of a dense tensor of wider rows in any order of dimensions, with gaps, or any at all.
    fn strides(random: &mut Random, extent: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..extent.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        let gap = [0, 1, 3, 700, 9000][random.below(5)];
        let is_any = random.below(8) == 0;
        let (mut strides, mut step) = (vec![0; extent.len()], 1 + random.below(2));
        for dim in order {
            strides[dim] = if is_any { random.below(40) } else { step };
            step = step * extent[dim].max(1) + if random.below(2) == 0 { gap } else { 0 };
        }
        strides
    }

    #[test]
    fn boxes_are_those_of_a_plain_loop_from_memory_and_from_a_file() {
        let mut random = Random(7);
        let bytes: Vec<u8> = (0..4 << 20).map(|_| random.below(256) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let sources = [Source::from(bytes.clone()), Source::open(file.path()).unwrap()];
        let (mut checked, mut most) = (0, 0);
        while checked < 400 {
            let size = [1, 2, 4, 8][random.below(4)];
            let widest = [3, 9, 60, 600][random.below(4)];
            let extent: Vec<usize> = (0..random.below(5)).map(|_| random.below(widest)).collect();
            let (strides, first) = (strides(&mut random, &extent), random.below(100));
            let count: usize = extent.iter().product();
            let last: usize = extent.iter().zip(&strides).map(|(e, s)| e.saturating_sub(1) * s).sum();
            if count > 1 << 18 || first + (last + 1) * size > bytes.len() {
                continue;
            }
            let expected = plain(&bytes, (size, first), (&extent, &strides));
            for source in &sources {
                let mut found = vec![0; expected.len()];
                source
                    .reading(|pieces| copy(pieces, (size, first), (&extent, &strides), &mut found))
                    .unwrap();
                assert!(found == expected, "{size} bytes, {extent:?} with {strides:?} in {source:?}");
            }
            (checked, most) = (checked + 1, most.max(count));
        }
        assert!(most > 1 << 15, "large boxes are among them");
    }

    #[test]
    fn a_matrix_of_many_pieces_comes_turned_and_in_columns() {
        let side = 1500;
        let bytes: Vec<u8> = (0..side * side * 4).map(|at| (at % 253) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let source = Source::open(file.path()).unwrap();
        let views = [([side, side], [1, side]), ([side, 700], [side, 1]), ([40, 3], [side, 1])];
        for (extent, strides) in views {
            let expected = plain(&bytes, (4, 0), (&extent, &strides));
            let mut found = vec![0; expected.len()];
            source.reading(|pieces| copy(pieces, (4, 0), (&extent, &strides), &mut found)).unwrap();
            assert!(found == expected, "{extent:?} with {strides:?}");
        }
    }
}
