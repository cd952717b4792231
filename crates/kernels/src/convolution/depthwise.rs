//! Depthwise convolutions: each group has one output feature, so that a matmul would have one row.
//!
//! The lanes of a vector are groups. A tile of windows reads a part of the input plane of these groups, which
//! is copied once, with its edges, as one vector for each position; then every window adds its products from the
//! copy, several windows side by side. This fits both gradients: the kernel of the gradient of a kernel is a
//! plane, and its windows are few. The sums are those of the matmul, in the same order.

use super::{Convolution, ConvolutionWindow};
use crate::element::Number;
use crate::gemm::lanes::{Job, Lanes};
use crate::gemm::pack::{self, depth_block, with_buffer};
use crate::gemm::{Factor, Work};
use crate::matrix::Matrix;
use crate::options::KernelOptions;
use crate::view::{View, ViewMut};

/// Bytes of the tile: what is read of the input and the kernel, and the sums.
const TILE_BYTES: usize = 384 << 10;
/// With fewer groups most lanes would be empty.
const MIN_GROUPS: usize = 4;
/// Windows whose sums are computed side by side.
const SIDE_BY_SIDE: usize = 8;

/// One spatial dimension.
#[derive(Clone, Copy)]
struct Space {
    /// Elements of the input, entries of the kernel, windows.
    sizes: [usize; 3],
    /// The same, from neighbour to neighbour in memory.
    strides: [isize; 3],
    window: ConvolutionWindow,
}

impl Space {
    /// Positions from one entry to the next.
    fn step(&self) -> isize {
        let step = self.window.kernel_dilation as isize;
        if self.window.reversed { -step } else { step }
    }

    /// The positions that some windows and entries meet: the first, their number, and that of the first
    /// entry of the first window among them.
    fn reach(&self, windows: [usize; 2], entries: [usize; 2]) -> (isize, usize, usize) {
        let [first, last] = [entries[0], entries[1] - 1].map(|at| self.window.entry(at, self.sizes[1]));
        let low = (windows[0] * self.window.stride + first.min(last)) as isize - self.window.low as isize;
        let count = (windows[1] - windows[0] - 1) * self.window.stride + first.abs_diff(last) + 1;
        (low, count, first - first.min(last))
    }
}

/// A convolution in which each group has one output feature.
struct Depthwise<C> {
    input: *const C,
    kernel: *const C,
    out: *mut C,
    groups: usize,
    /// Elements from group to group of the input, the kernel and the result.
    group: [isize; 3],
    /// Images, and elements from image to image of the input and the result.
    batch: (usize, [isize; 2]),
    /// Input features of a group, and elements from one to the next of the input and the kernel.
    features: (usize, [isize; 2]),
    /// Rows and columns.
    space: [Space; 2],
}

/// Computes a convolution without gaps if it is depthwise over at most two dimensions, and a row of its
/// kernel fits a tile; otherwise nothing, and returns `false`.
pub(super) fn sums<C: Number + Factor>(
    options: KernelOptions,
    op: &Convolution,
    windows: &[ConvolutionWindow],
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
) -> bool {
    let to = out.as_mut_ptr().cast();
    let result = out.as_view();
    let (x, w, y) = (&op.input, &op.kernel, &op.output);
    let batch = result.shape()[y.batch];
    let groups = op.groups(input, kernel, batch);
    let features = kernel.shape()[w.feature];
    let fits = kernel.shape()[w.batch] == groups
        && result.shape()[y.feature] == groups
        && input.shape()[x.batch] == if op.groups_of_batch { groups * batch } else { batch }
        && input.shape()[x.feature] == if op.groups_of_batch { features } else { groups * features }
        && [x, w, y].iter().all(|dims| dims.spatial.len() == windows.len());
    // The terms are added in the order of the kernel's dimensions.
    let in_order = features == 1 || w.spatial.iter().all(|&dim| w.feature < dim || kernel.shape()[dim] == 1);
    if groups < MIN_GROUPS || windows.len() > 2 || !fits || !in_order {
        return false;
    }
    let one = ConvolutionWindow { stride: 1, low: 0, input_dilation: 1, kernel_dilation: 1, reversed: false };
    let mut space = [Space { sizes: [1; 3], strides: [0; 3], window: one }; 2];
    let mut numbers: [usize; 2] = [0, 1];
    if let [first, second] = w.spatial[..]
        && second < first
    {
        numbers = [1, 0];
    }
    // A single dimension is that of the columns.
    for (at, &number) in numbers[..windows.len()].iter().enumerate() {
        let dims = [x.spatial[number], w.spatial[number], y.spatial[number]];
        let views = [input, kernel, &result];
        space[at + 2 - windows.len()] = Space {
            sizes: [0, 1, 2].map(|i| views[i].shape()[dims[i]]),
            strides: [0, 1, 2].map(|i| views[i].strides()[dims[i]]),
            window: windows[number],
        };
    }
    let (grouped, apart) = if op.groups_of_batch { (x.batch, batch) } else { (x.feature, features) };
    let work = Depthwise::<C> {
        input: input.as_ptr().cast(),
        kernel: kernel.as_ptr().cast(),
        out: to,
        groups,
        group: [
            apart as isize * input.strides()[grouped],
            kernel.strides()[w.batch],
            result.strides()[y.feature],
        ],
        batch: (batch, [input.strides()[x.batch], result.strides()[y.batch]]),
        features: (features, [input.strides()[x.feature], kernel.strides()[w.feature]]),
        space,
    };
    let Some(tile) = work.tile(TILE_BYTES / size_of::<C>() / LANES) else { return false };
    // SAFETY: the views guarantee the elements, and a writable view is apart from the others; options exist
    // only for what the machine has.
    unsafe { C::at_level(options.level(), Tiled { work, tile }) };
    true
}

/// The most lanes of a vector.
const LANES: usize = 16;

/// How much is computed at once.
#[derive(Clone, Copy)]
struct Tile {
    /// Rows and columns of windows.
    windows: [usize; 2],
    /// Rows of entries.
    entries: usize,
}

impl<C> Depthwise<C> {
    /// A tile of at most so many vectors; `None` if a row of the kernel is too long.
    fn tile(&self, most: usize) -> Option<Tile> {
        let [rows, columns] = &self.space;
        let mut tile = Tile { windows: [rows.sizes[2], columns.sizes[2]], entries: rows.sizes[1] };
        while self.vectors(&tile).iter().sum::<usize>() > most {
            let Tile { windows: [down, across], entries } = &mut tile;
            let longest = if *entries > *down { entries } else { down };
            let halved = if *longest > 1 { longest } else { across };
            if *halved <= 1 {
                return None;
            }
            *halved = halved.div_ceil(2);
        }
        Some(tile)
    }

    /// The vectors of a tile: of the input, of the kernel, and twice of sums.
    fn vectors(&self, tile: &Tile) -> [usize; 4] {
        let [rows, columns] = &self.space;
        let high = rows.reach([0, tile.windows[0]], [0, tile.entries]).1;
        let wide = columns.reach([0, tile.windows[1]], [0, columns.sizes[1]]).1;
        let sums = tile.windows[0] * tile.windows[1];
        [high.saturating_mul(wide), tile.entries * columns.sizes[1], sums, sums]
    }
}

struct Tiled<C> {
    work: Depthwise<C>,
    tile: Tile,
}

impl<C: Copy> Work<C> for Tiled<C> {
    unsafe fn run<V: Lanes<Element = C>>(self) {
        let Tiled { work, tile } = self;
        with_buffer(TILE_BYTES, |memory| {
            let mut memory: *mut C = memory.cast();
            let parts = work.vectors(&tile).map(|vectors| {
                let part = memory;
                memory = memory.wrapping_add(vectors * V::COUNT);
                part
            });
            // SAFETY: the caller upholds the contract, and the parts have the vectors of the tile.
            unsafe { V::compiled(Sums::<V> { work: &work, tile, parts }) }
        });
    }
}

/// All sums, with memory for a tile: the input, the kernel, the sums of a block of terms, and the whole sums.
struct Sums<'a, V: Lanes> {
    work: &'a Depthwise<V::Element>,
    tile: Tile,
    parts: [*mut V::Element; 4],
}

/// The part of a result whose windows read one copy of the input.
#[derive(Clone, Copy)]
struct Place {
    /// The first group, and the number of lanes that have one.
    groups: [usize; 2],
    image: usize,
    /// The first window and the one after the last, of rows and columns.
    windows: [[usize; 2]; 2],
}

impl<V: Lanes> Job for Sums<'_, V> {
    #[inline(always)]
    unsafe fn run(self) {
        let (work, tile) = (self.work, self.tile);
        let [down, across] = [0, 1].map(|at| work.space[at].sizes[2]);
        for first in (0..work.groups).step_by(V::COUNT) {
            let groups = [first, V::COUNT.min(work.groups - first)];
            for image in 0..work.batch.0 {
                for i in (0..down).step_by(tile.windows[0]) {
                    for j in (0..across).step_by(tile.windows[1]) {
                        let windows =
                            [[i, down.min(i + tile.windows[0])], [j, across.min(j + tile.windows[1])]];
                        // SAFETY: the caller upholds the contract.
                        unsafe { self.place(Place { groups, image, windows }) };
                    }
                }
            }
        }
    }
}

impl<V: Lanes> Sums<'_, V> {
    /// # Safety
    /// The contract of the work, for this and all that follow.
    #[inline(always)]
    unsafe fn place(&self, place: Place) {
        let work = self.work;
        let entries = work.space.map(|space| space.sizes[1]);
        let terms = work.features.0 * entries[0] * entries[1];
        for feature in 0..work.features.0 {
            for first in (0..entries[0]).step_by(self.tile.entries) {
                let rows = [first, entries[0].min(first + self.tile.entries)];
                // SAFETY: the caller upholds the contract.
                unsafe {
                    self.copy_input(&place, feature, rows);
                    self.copy_kernel(&place, feature, rows);
                    let [first, end] = rows.map(|row| (feature * entries[0] + row) * entries[1]);
                    let block = depth_block(terms);
                    let mut from = first;
                    while from < end {
                        let to = end.min((from / block + 1) * block);
                        let sums = Terms {
                            range: [from - first, to - first],
                            begins: from.is_multiple_of(block),
                            ends: to.is_multiple_of(block) || to == terms,
                            is_first: from < block,
                        };
                        self.add(&place, rows, sums);
                        from = to;
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.write(&place) };
    }

    /// Copies the input that the windows of a place meet with some rows of entries.
    #[inline(always)]
    unsafe fn copy_input(&self, place: &Place, feature: usize, entries: [usize; 2]) {
        let work = self.work;
        let [rows, columns] = &work.space;
        let (top, high, _) = rows.reach(place.windows[0], entries);
        let (left, wide, _) = columns.reach(place.windows[1], [0, columns.sizes[1]]);
        let base = place.groups[0] as isize * work.group[0]
            + place.image as isize * work.batch.1[0]
            + feature as isize * work.features.1[0];
        // The columns of the copy that are elements.
        let inside = |at: isize| at.clamp(0, wide as isize) as usize;
        let (begin, end) = (inside(-left), inside(columns.sizes[0] as isize - left));
        for row in 0..high {
            let to = self.parts[0].wrapping_add(row * wide * V::COUNT);
            let at = top + row as isize;
            let is_element = (0..rows.sizes[0] as isize).contains(&at) && begin < end;
            let (begin, end) = if is_element { (begin, end) } else { (wide, wide) };
            // SAFETY: the copy has these vectors, and the elements between `begin` and `end` exist.
            unsafe {
                clear::<V>(to, 0, begin);
                let offset = base + at * rows.strides[0] + (left + begin as isize) * columns.strides[0];
                let pointer = work.input.wrapping_offset(offset);
                let from = Matrix { pointer, row: columns.strides[0], column: work.group[0] };
                if begin < end {
                    let to = to.add(begin * V::COUNT);
                    pack::copy::<V>(from, [end - begin, place.groups[1]], to, V::COUNT);
                }
                clear::<V>(to, end, wide);
            }
        }
    }

    #[inline(always)]
    unsafe fn copy_kernel(&self, place: &Place, feature: usize, entries: [usize; 2]) {
        let work = self.work;
        let [rows, columns] = &work.space;
        for row in entries[0]..entries[1] {
            let offset = place.groups[0] as isize * work.group[1]
                + feature as isize * work.features.1[1]
                + row as isize * rows.strides[1];
            let pointer = work.kernel.wrapping_offset(offset);
            let from = Matrix { pointer, row: columns.strides[1], column: work.group[1] };
            // SAFETY: the copy has these vectors, and the entries exist.
            unsafe {
                let to = self.parts[1].add((row - entries[0]) * columns.sizes[1] * V::COUNT);
                pack::copy::<V>(from, [columns.sizes[1], place.groups[1]], to, V::COUNT);
            }
        }
    }

    /// Adds some terms to the sums of all windows of a place.
    #[inline(always)]
    unsafe fn add(&self, place: &Place, entries: [usize; 2], terms: Terms) {
        let [rows, columns] = &self.work.space;
        let (_, _, first_row) = rows.reach(place.windows[0], entries);
        let (_, wide, first) = columns.reach(place.windows[1], [0, columns.sizes[1]]);
        let [down, across] = place.windows.map(|[begin, end]| end - begin);
        let walk = Walk {
            input: self.parts[0].wrapping_add((first_row * wide + first) * V::COUNT),
            kernel: self.parts[1],
            steps: [rows.step() * wide as isize, columns.step()].map(|step| step * V::COUNT as isize),
            row: columns.sizes[1],
        };
        let steps = [rows.window.stride * wide * V::COUNT, columns.window.stride * V::COUNT];
        let windows = down * across;
        let mut left = windows.div_ceil(SIDE_BY_SIDE);
        let (mut done, mut at, mut start) = (0, 0, 0);
        while left > 0 {
            let count = (windows - done).div_ceil(left);
            let offsets: [usize; SIDE_BY_SIDE] = std::array::from_fn(|i| {
                let here = start + at * steps[1];
                if i < count {
                    at += 1;
                }
                if at == across {
                    (at, start) = (0, start + steps[0]);
                }
                here
            });
            let sums = [self.parts[2], self.parts[3]].map(|part| part.wrapping_add(done * V::COUNT));
            macro_rules! side_by_side {
                ($($count:literal)*) => {
                    match count {
                        // SAFETY: the windows and terms are inside the copies.
                        $($count => unsafe {
                            walk.add::<V, $count>(std::array::from_fn(|i| offsets[i]), &terms, sums)
                        },)*
                        _ => unreachable!("{count} windows side by side"),
                    }
                };
            }
            side_by_side!(1 2 3 4 5 6 7 8);
            (done, left) = (done + count, left - 1);
        }
    }

    /// Writes the sums of a place to the result.
    #[inline(always)]
    unsafe fn write(&self, place: &Place) {
        let work = self.work;
        let [rows, columns] = &work.space;
        let [down, across] = place.windows.map(|[begin, end]| end - begin);
        let base = place.groups[0] as isize * work.group[2] + place.image as isize * work.batch.1[1];
        let (group, step) = (work.group[2], columns.strides[2]);
        // Rows that follow each other in memory are one.
        let merges = rows.strides[2] == across as isize * step;
        let (down, across) = if merges { (1, down * across) } else { (down, across) };
        for row in 0..down {
            let from = self.parts[3].wrapping_add(row * across * V::COUNT).cast_const();
            let offset = base
                + (place.windows[0][0] + row) as isize * rows.strides[2]
                + place.windows[1][0] as isize * step;
            let to = work.out.wrapping_offset(offset);
            // SAFETY: the windows and groups are inside the result.
            unsafe {
                if group == 1 {
                    for j in 0..across {
                        let to = to.offset(j as isize * step);
                        V::load(from.add(j * V::COUNT)).store_first(to, place.groups[1]);
                    }
                    continue;
                }
                let whole = if step == 1 && group > 0 { across / V::COUNT * V::COUNT } else { 0 };
                let lanes = Matrix { pointer: from, row: 1, column: V::COUNT as isize };
                pack::transposed::<V>(lanes, [place.groups[1], whole], to, group.unsigned_abs());
                for j in whole..across {
                    for lane in 0..place.groups[1] {
                        let to = to.offset(j as isize * step + lane as isize * group);
                        to.write(from.add(j * V::COUNT + lane).read());
                    }
                }
            }
        }
    }
}

/// Writes zeros to some vectors.
#[inline(always)]
unsafe fn clear<V: Lanes>(to: *mut V::Element, begin: usize, end: usize) {
    for at in begin..end {
        // SAFETY: the caller guarantees the vectors.
        unsafe { V::splat(V::ZERO).store(to.add(at * V::COUNT)) };
    }
}

/// Terms of sums: those of a range of the copied entries.
struct Terms {
    range: [usize; 2],
    /// Whether they are the first and the last of a block, and whether that block is the first.
    begins: bool,
    ends: bool,
    is_first: bool,
}

/// The way of a window over the copies.
#[derive(Clone, Copy)]
struct Walk<C> {
    /// The first entry of the first window.
    input: *const C,
    kernel: *const C,
    /// Elements of the input from one row of entries to the next, and from one entry to the next.
    steps: [isize; 2],
    /// Entries in a row.
    row: usize,
}

impl<C: Copy> Walk<C> {
    /// Adds terms to the sums of `R` windows.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
    unsafe fn add<V: Lanes<Element = C>, const R: usize>(
        self,
        offsets: [usize; R],
        terms: &Terms,
        [partial, whole]: [*mut C; 2],
    ) {
        let [from, to] = terms.range;
        let (mut row, mut column) = (from / self.row, from % self.row);
        let mut left = to - from;
        // SAFETY: the caller upholds the contract.
        unsafe {
            let mut sums = [V::splat(V::ZERO); R];
            if !terms.begins {
                for r in 0..R {
                    sums[r] = V::load(partial.add(r * V::COUNT));
                }
            }
            let mut kernel = self.kernel.add(from * V::COUNT);
            while left > 0 {
                let run = left.min(self.row - column);
                let mut input = self
                    .input
                    .wrapping_offset(row as isize * self.steps[0] + column as isize * self.steps[1]);
                for _ in 0..run {
                    let entry = V::load(kernel);
                    for r in 0..R {
                        sums[r] = entry.times_plus(V::load(input.wrapping_add(offsets[r])), sums[r]);
                    }
                    kernel = kernel.add(V::COUNT);
                    input = input.wrapping_offset(self.steps[1]);
                }
                (row, column, left) = (row + 1, 0, left - run);
            }
            for r in 0..R {
                let at = r * V::COUNT;
                match (terms.ends, terms.is_first) {
                    (false, _) => sums[r].store(partial.add(at)),
                    (true, true) => sums[r].store(whole.add(at)),
                    // As the matmul adds a block, which multiplies by its scale.
                    (true, false) => {
                        sums[r].times_plus(V::splat(V::ONE), V::load(whole.add(at))).store(whole.add(at));
                    }
                }
            }
        }
    }
}
