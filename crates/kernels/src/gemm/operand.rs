//! The operands of a matmul: matrices in memory, and grids, whose elements are found only as they are packed.
//!
//! A grid is the matrix that *im2col* would write (Chellapilla et al., "High Performance Convolutional Neural
//! Networks for Document Processing", 2006): each row and each column is a list of indices, every index moves
//! through memory, and those of a window move along a spatial dimension, outside of which everything is zero.
//! Packing reads each element from its place in memory, so the matrix is never stored.

use super::RHS_BYTES;
use super::lanes::Lanes;
use super::pack::{self, MIN_DEPTH};
use super::tile::panels;
use crate::matrix::Matrix;
use crate::view::MAX_RANK;

/// How an index moves through memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    /// By elements of memory per step.
    By(isize),
    /// Along a spatial dimension, by positions per step.
    Along(usize, isize),
}

/// One index of the rows or columns of a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index {
    pub size: usize,
    pub moves: Move,
}

/// A spatial dimension: all positions that are not those of an element hold zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spatial {
    pub size: usize,
    /// Elements of memory between neighbours.
    pub stride: isize,
    /// The position at which all indices are zero.
    pub origin: isize,
    /// Whether no index moves along it any more.
    settled: bool,
}

impl Spatial {
    pub(crate) fn new(size: usize, stride: isize, origin: isize) -> Spatial {
        Spatial { size, stride, origin, settled: false }
    }

    /// The offset in memory of a position, if it has an element.
    #[inline(always)]
    fn offset(&self, position: isize) -> Option<isize> {
        ((position as usize) < self.size).then(|| position * self.stride)
    }
}

/// The indices of the rows or the columns of a grid, the outermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    indices: [Index; MAX_RANK],
    count: usize,
}

impl Side {
    pub(crate) fn new(indices: impl Iterator<Item = Index>) -> Side {
        let one = Index { size: 1, moves: Move::By(0) };
        let mut side = Side { indices: [one; MAX_RANK], count: 0 };
        for index in indices.filter(|index| index.size != 1) {
            side.indices[side.count] = index;
            side.count += 1;
        }
        side
    }

    fn indices(&self) -> &[Index] {
        &self.indices[..self.count]
    }

    /// Merges neighbours that move as one index.
    fn merge(&mut self) {
        let all = *self;
        self.count = 0;
        for &index in all.indices() {
            let last = self.count.checked_sub(1).map(|last| &mut self.indices[last]);
            match (last, index.moves) {
                (Some(Index { size, moves: Move::By(outer) }), Move::By(inner))
                    if *outer == inner * index.size as isize =>
                {
                    *size *= index.size;
                    *outer = inner;
                }
                _ => {
                    self.indices[self.count] = index;
                    self.count += 1;
                }
            }
        }
    }

    /// The innermost index.
    #[inline(always)]
    fn inner(&self) -> Index {
        self.indices[self.count.saturating_sub(1)]
    }

    /// The step of the only index, if it does not leave memory.
    fn step(&self) -> Option<isize> {
        match (self.count, self.indices[0].moves) {
            (0, _) => Some(0),
            (1, Move::By(step)) => Some(step),
            _ => None,
        }
    }

    /// A rough cost of copying an element along this side: runs have a fixed cost, and neighbours that are
    /// far apart do not share cache lines.
    fn cost(&self, spatial: &[Spatial; MAX_RANK]) -> usize {
        let step = match self.inner().moves {
            Move::By(step) => step.unsigned_abs(),
            Move::Along(number, step) => (step * spatial[number].stride).unsigned_abs(),
        };
        128 / self.inner().size.max(1) + step.min(16)
    }
}

/// A matrix whose elements are found by the indices of its row and its column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid<C> {
    pointer: *const C,
    spatial: [Spatial; MAX_RANK],
    /// The number of spatial dimensions.
    count: usize,
    /// Rows, columns.
    sides: [Side; 2],
    /// The side along which copying is cheaper.
    along: usize,
}

impl<C: Copy> Grid<C> {
    /// The grid with these rows and columns; all indices zero mean `pointer`, moved to the origin of every
    /// spatial dimension.
    pub(crate) fn new(pointer: *const C, spatial: &[Spatial], rows: Side, columns: Side) -> Self {
        let mut grid = Grid {
            pointer,
            spatial: [Spatial::default(); MAX_RANK],
            count: spatial.len(),
            sides: [rows, columns],
            along: 1,
        };
        grid.spatial[..spatial.len()].copy_from_slice(spatial);
        for number in 0..spatial.len() {
            grid.settle(number);
        }
        grid.sides.iter_mut().for_each(Side::merge);
        let [rows, columns] = grid.sides.map(|side| side.cost(&grid.spatial));
        grid.along = usize::from(columns <= rows);
        grid
    }

    /// If no position of a spatial dimension is outside, its indices become plain.
    fn settle(&mut self, number: usize) {
        let Spatial { size, stride, origin, .. } = self.spatial[number];
        let (mut low, mut high) = (origin, origin);
        for index in self.sides.iter().flat_map(|side| side.indices()) {
            if let Move::Along(own, step) = index.moves
                && own == number
            {
                let reach = step * (index.size as isize - 1);
                if reach < 0 { low += reach } else { high += reach }
            }
        }
        if low < 0 || high >= size as isize {
            return;
        }
        for side in &mut self.sides {
            for index in &mut side.indices[..side.count] {
                if let Move::Along(own, step) = index.moves
                    && own == number
                {
                    index.moves = Move::By(step * stride);
                }
            }
        }
        self.pointer = self.pointer.wrapping_offset(origin * stride);
        self.spatial[number] = Spatial { settled: true, ..Spatial::new(1, 0, 0) };
    }

    /// The same elements as a matrix, if it has constant strides.
    pub(crate) fn matrix(&self) -> Option<Matrix<C>> {
        let whole = self.spatial[..self.count].iter().all(|spatial| spatial.settled);
        let (row, column) = (self.sides[0].step()?, self.sides[1].step()?);
        whole.then_some(Matrix { pointer: self.pointer, row, column })
    }

    /// The element of a row and a column; `None` where it is zero.
    pub(crate) fn find(&self, row: usize, column: usize) -> Option<*const C> {
        let [row, column] = [Cursor::at(self, 0, row), Cursor::at(self, 1, column)];
        let mut offset = row.offset + column.offset;
        for number in 0..self.count {
            offset += self.spatial[number].offset(row.positions[number] + column.positions[number])?;
        }
        Some(self.pointer.wrapping_offset(offset))
    }
}

/// A place along one side of a grid.
#[derive(Clone, Copy)]
struct Cursor {
    index: [usize; MAX_RANK],
    offset: isize,
    /// For rows, these include the origins.
    positions: [isize; MAX_RANK],
}

impl Cursor {
    #[inline(always)]
    fn at<C>(grid: &Grid<C>, side: usize, place: usize) -> Cursor {
        let mut cursor = Cursor { index: [0; MAX_RANK], offset: 0, positions: [0; MAX_RANK] };
        if side == 0 {
            for number in 0..grid.count {
                cursor.positions[number] = grid.spatial[number].origin;
            }
        }
        let side = &grid.sides[side];
        let mut rest = place;
        for d in (0..side.count).rev() {
            // The outermost index takes what is left, so that a cursor may stand at the end.
            let here = if d == 0 { rest } else { rest % side.indices[d].size };
            rest /= side.indices[d].size;
            cursor.step(side, d, here as isize);
            cursor.index[d] = here;
        }
        cursor
    }

    #[inline(always)]
    fn step(&mut self, side: &Side, d: usize, steps: isize) {
        match side.indices[d].moves {
            Move::By(step) => self.offset += steps * step,
            Move::Along(number, step) => self.positions[number] += steps * step,
        }
    }

    /// Moves on by `count` steps that do not pass the end of the innermost index.
    #[inline(always)]
    fn advance(&mut self, side: &Side, count: usize) {
        let Some(mut d) = side.count.checked_sub(1) else { return };
        self.index[d] += count;
        self.step(side, d, count as isize);
        while d > 0 && self.index[d] == side.indices[d].size {
            self.step(side, d, -(self.index[d] as isize));
            self.index[d] = 0;
            d -= 1;
            self.index[d] += 1;
            self.step(side, d, 1);
        }
    }
}

/// Copies elements that are `step` apart.
///
/// # Safety
/// They are readable, `to` is writable, and the machine has the instructions.
#[inline(always)]
unsafe fn copy_run<V: Lanes>(from: *const V::Element, step: isize, to: *mut V::Element, count: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match step {
            1 => {
                let whole = count / V::COUNT * V::COUNT;
                for i in (0..whole).step_by(V::COUNT) {
                    V::load(from.add(i)).store(to.add(i));
                }
                if whole < count {
                    V::load_first(from.add(whole), count - whole).store_first(to.add(whole), count - whole);
                }
            }
            2 => (0..count).for_each(|i| to.add(i).write(from.add(2 * i).read())),
            _ => (0..count as isize).for_each(|i| to.offset(i).write(from.offset(i * step).read())),
        }
    }
}

/// # Safety
/// `to` is writable, and the machine has the instructions.
#[inline(always)]
unsafe fn clear_run<V: Lanes>(to: *mut V::Element, count: usize) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let whole = count / V::COUNT * V::COUNT;
        for i in (0..whole).step_by(V::COUNT) {
            V::splat(V::ZERO).store(to.add(i));
        }
        if whole < count {
            V::splat(V::ZERO).store_first(to.add(whole), count - whole);
        }
    }
}

/// The first of the steps from `position` by `step` that is not below `bound`, at most `count`; `step` is
/// positive.
#[inline(always)]
fn steps_below(position: isize, step: isize, bound: isize, count: usize) -> usize {
    let missing = bound - position;
    let steps = if step == 1 { missing } else { (missing + step - 1).div_euclid(step) };
    steps.clamp(0, count as isize) as usize
}

impl<C: Copy> Grid<C> {
    /// Copies `count` elements along the cheaper side, from `start` on, at one place of the other side.
    ///
    /// # Safety
    /// The places exist, `to` is writable, and the machine has the instructions.
    #[inline(always)]
    unsafe fn line<V: Lanes<Element = C>>(&self, fixed: &Cursor, start: &Cursor, to: *mut C, count: usize) {
        let side = &self.sides[self.along];
        let inner = side.inner();
        let (mut cursor, mut done) = (*start, 0);
        while done < count {
            let innermost = side.count.saturating_sub(1);
            let run = (inner.size - cursor.index[innermost]).min(count - done);
            // SAFETY: the run is inside the line.
            unsafe { self.run::<V>(fixed, &cursor, inner.moves, to.add(done), run) };
            cursor.advance(side, run);
            done += run;
        }
    }

    /// Copies the elements of one run of the innermost index.
    ///
    /// # Safety
    /// The same as for [`Grid::line`].
    #[inline(always)]
    unsafe fn run<V: Lanes<Element = C>>(
        &self,
        fixed: &Cursor,
        cursor: &Cursor,
        moves: Move,
        to: *mut C,
        count: usize,
    ) {
        let moving = if let Move::Along(number, _) = moves { number } else { MAX_RANK };
        let mut offset = fixed.offset + cursor.offset;
        // SAFETY: the elements of the run are inside memory where their positions are inside the spatial
        // dimensions, and `to` covers the run.
        unsafe {
            for number in 0..self.count {
                if number != moving {
                    let position = fixed.positions[number] + cursor.positions[number];
                    match self.spatial[number].offset(position) {
                        Some(found) => offset += found,
                        None => return clear_run::<V>(to, count),
                    }
                }
            }
            let from = self.pointer.wrapping_offset(offset);
            let (number, step) = match moves {
                Move::By(step) => return copy_run::<V>(from, step, to, count),
                Move::Along(number, step) => (number, step),
            };
            let Spatial { size, stride, .. } = self.spatial[number];
            let position = fixed.positions[number] + cursor.positions[number];
            if step > 0 {
                let first = steps_below(position, step, 0, count);
                let end = steps_below(position, step, size as isize, count).max(first);
                clear_run::<V>(to, first);
                let from = from.wrapping_offset((position + first as isize * step) * stride);
                copy_run::<V>(from, step * stride, to.add(first), end - first);
                clear_run::<V>(to.add(end), count - end);
                return;
            }
            for i in 0..count {
                let found = self.spatial[number].offset(position + i as isize * step);
                to.add(i).write(found.map_or(V::ZERO, |found| from.offset(found).read()));
            }
        }
    }

    /// Copies a rectangle from a row and a column on, to rows that are `width` elements apart, each padded
    /// with zeros to whole vectors.
    ///
    /// # Safety
    /// The same as for [`pack::copy`].
    #[inline(always)]
    pub(super) unsafe fn copy<V: Lanes<Element = C>>(
        &self,
        at: [usize; 2],
        turned: bool,
        [rows, columns]: [usize; 2],
        to: *mut C,
        width: usize,
    ) {
        // The sides that rows and columns of the rectangle go along.
        let (down, across) = if turned { (1, 0) } else { (0, 1) };
        if self.along == across {
            let start = Cursor::at(self, across, at[across]);
            let mut fixed = Cursor::at(self, down, at[down]);
            for row in 0..rows {
                // SAFETY: the caller upholds the contract.
                unsafe {
                    let to = to.add(row * width);
                    self.line::<V>(&fixed, &start, to, columns);
                    clear_run::<V>(to.add(columns), columns.next_multiple_of(V::COUNT) - columns);
                }
                fixed.advance(&self.sides[down], 1);
            }
            return;
        }
        // Lines go down: some of them are copied side by side, and transposed in squares.
        let mut lines = std::mem::MaybeUninit::<[[V::Element; PITCH]; 16]>::uninit();
        let lines: *mut C = lines.as_mut_ptr().cast();
        let mut first = Cursor::at(self, across, at[across]);
        for j in (0..columns).step_by(V::COUNT) {
            let some = V::COUNT.min(columns - j);
            for i in (0..rows).step_by(LENGTH) {
                let length = LENGTH.min(rows - i);
                let start = Cursor::at(self, down, at[down] + i);
                let mut fixed = first;
                for line in 0..some {
                    // SAFETY: a line is no longer than the pitch.
                    unsafe { self.line::<V>(&fixed, &start, lines.add(line * PITCH), length) };
                    fixed.advance(&self.sides[across], 1);
                }
                let from = Matrix { pointer: lines.cast_const(), row: 1, column: PITCH as isize };
                // SAFETY: the lines were written, and the caller guarantees the rectangle.
                unsafe { pack::transposed::<V>(from, [length, some], to.add(i * width + j), width) };
            }
            first = Cursor::at(self, across, at[across] + j + some);
        }
    }
}

/// Elements of the lines that are copied before they are divided among panels: at least one line of a block of
/// `rhs`.
const LINES: usize = RHS_BYTES / size_of::<f32>() / MIN_DEPTH + 16;

impl<C: Copy> Grid<C> {
    /// Packs a rectangle from a row and a column on, panel by panel. Lines across it are copied whole, because
    /// each run of a line has a fixed cost.
    ///
    /// # Safety
    /// The same as for [`pack::Pack`].
    #[inline(always)]
    unsafe fn pack<V: Lanes<Element = C>>(
        &self,
        at: [usize; 2],
        turned: bool,
        [rows, columns]: [usize; 2],
        to: *mut C,
    ) {
        let (down, across) = if turned { (1, 0) } else { (0, 1) };
        if self.along != across {
            for (first, columns) in panels::<V>(columns) {
                let (at, to) = (moved(at, across, first), to.wrapping_add(first * rows));
                // SAFETY: the caller upholds the contract.
                unsafe {
                    self.copy::<V>(at, turned, [rows, columns], to, columns.next_multiple_of(V::COUNT))
                };
            }
            return;
        }
        let mut lines = std::mem::MaybeUninit::<[C; LINES]>::uninit();
        let lines: *mut C = lines.as_mut_ptr().cast();
        let width = columns.next_multiple_of(V::COUNT);
        let together = LINES / width;
        for row in (0..rows).step_by(together) {
            let some = together.min(rows - row);
            // SAFETY: the lines fit, and the caller upholds the contract.
            unsafe {
                self.copy::<V>(moved(at, down, row), turned, [some, columns], lines, width);
                for (first, columns) in panels::<V>(columns) {
                    let columns = columns.next_multiple_of(V::COUNT);
                    for line in 0..some {
                        let from = lines.add(line * width + first);
                        let to = to.add(first * rows + (row + line) * columns);
                        for j in (0..columns).step_by(V::COUNT) {
                            V::load(from.add(j)).store(to.add(j));
                        }
                    }
                }
            }
        }
    }
}

/// A place, moved along one side.
fn moved(mut at: [usize; 2], side: usize, count: usize) -> [usize; 2] {
    at[side] += count;
    at
}

/// The most elements of a line that are transposed at once, and those from line to line.
const LENGTH: usize = 128;
const PITCH: usize = LENGTH + 16;

/// An operand of a matmul.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a, C> {
    /// Elements in memory with constant strides.
    Matrix(Matrix<C>),
    /// The elements of a grid, or of its transpose, from this row and column of the grid on.
    Grid { grid: &'a Grid<C>, at: [usize; 2], turned: bool },
}

impl<C> From<Matrix<C>> for Operand<'_, C> {
    fn from(matrix: Matrix<C>) -> Self {
        Operand::Matrix(matrix)
    }
}

impl<'a, C: Copy> From<&'a Grid<C>> for Operand<'a, C> {
    fn from(grid: &'a Grid<C>) -> Self {
        match grid.matrix() {
            Some(matrix) => Operand::Matrix(matrix),
            None => Operand::Grid { grid, at: [0, 0], turned: false },
        }
    }
}

impl<C: Copy> Operand<'_, C> {
    /// The matrix, if it is one.
    pub(super) fn matrix(self) -> Option<Matrix<C>> {
        match self {
            Operand::Matrix(matrix) => Some(matrix),
            Operand::Grid { .. } => None,
        }
    }

    pub(super) fn transposed(self) -> Self {
        match self {
            Operand::Matrix(matrix) => Operand::Matrix(matrix.transposed()),
            Operand::Grid { grid, at, turned } => Operand::Grid { grid, at, turned: !turned },
        }
    }

    /// From a row and a column on.
    pub(super) fn after(self, row: usize, column: usize) -> Self {
        match self {
            Operand::Matrix(matrix) => Operand::Matrix(matrix.rows_after(row).columns_after(column)),
            Operand::Grid { grid, at, turned } => {
                let [down, across] = if turned { [1, 0] } else { [0, 1] };
                let mut at = at;
                at[down] += row;
                at[across] += column;
                Operand::Grid { grid, at, turned }
            }
        }
    }

    /// Packs rows and columns panel by panel. In a panel, rows follow each other, padded with zeros to whole
    /// vectors.
    ///
    /// # Safety
    /// The same as for [`pack::Pack`].
    #[inline(always)]
    pub(super) unsafe fn pack<V: Lanes<Element = C>>(self, sizes: [usize; 2], to: *mut C) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self {
                Operand::Matrix(matrix) => {
                    for (first, columns) in panels::<V>(sizes[1]) {
                        let (from, to) = (matrix.columns_after(first), to.wrapping_add(first * sizes[0]));
                        let width = columns.next_multiple_of(V::COUNT);
                        pack::copy::<V>(from, [sizes[0], columns], to, width);
                    }
                }
                Operand::Grid { grid, at, turned } => grid.pack::<V>(at, turned, sizes, to),
            }
        }
    }

    /// Copies rows and columns to rows that are `width` elements apart, each padded with zeros to whole
    /// vectors.
    ///
    /// # Safety
    /// The same as for [`pack::copy`].
    #[inline(always)]
    pub(super) unsafe fn copy<V: Lanes<Element = C>>(self, sizes: [usize; 2], to: *mut C, width: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self {
                Operand::Matrix(matrix) => pack::copy::<V>(matrix, sizes, to, width),
                Operand::Grid { grid, at, turned } => grid.copy::<V>(at, turned, sizes, to, width),
            }
        }
    }
}
