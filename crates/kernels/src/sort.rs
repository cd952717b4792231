//! Sorting along a dimension by a comparator, and the largest elements of rows.
//!
//! A line is sorted as a list of positions by a merge sort, which is stable and ends for any comparator. The
//! comparator is a list of steps on registers. If it compares the same function of either element, that
//! function is evaluated once per element, and only the results are compared.

use partita_base::DType;

use crate::compare::Direction;
use crate::convert::Cast;
use crate::element::{Element, Real, dispatch};
use crate::view::{MAX_RANK, View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};

/// A step of a comparator: its result is the next register. Registers hold 64 bits: the bits of an f64, or
/// an integer whose order is that of i64.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SortStep {
    /// Whether two floats are in this relation; none but `Ne` holds for NaN.
    Floats(Direction, usize, usize),
    /// Whether two floats are in this relation in the total order of IEEE 754.
    Total(Direction, usize, usize),
    /// Whether two integers or bools are in this relation.
    Integers(Direction, usize, usize),
    /// The second register if the first is true, otherwise the third.
    Select(usize, usize, usize),
    /// Both bools.
    And(usize, usize),
    /// Either bool.
    Or(usize, usize),
    /// One of two bools.
    Xor(usize, usize),
    /// The opposite of a bool.
    Not(usize),
    /// The bits of an element of any type, as registers hold it.
    Constant(u64),
}

/// Whether one element comes before another.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparator {
    /// Two registers for each operand: its element of the line, and the other one's.
    operands: usize,
    steps: Vec<SortStep>,
    /// The last step as a comparison of keys: the register of the first element's key.
    key: Option<usize>,
}

/// The most registers of a comparator.
const REGISTERS: usize = 64;

impl SortStep {
    fn sources(self) -> [Option<usize>; 3] {
        match self {
            SortStep::Floats(_, a, b) | SortStep::Total(_, a, b) | SortStep::Integers(_, a, b) => {
                [Some(a), Some(b), None]
            }
            SortStep::And(a, b) | SortStep::Or(a, b) | SortStep::Xor(a, b) => [Some(a), Some(b), None],
            SortStep::Select(a, b, c) => [Some(a), Some(b), Some(c)],
            SortStep::Not(a) => [Some(a), None, None],
            SortStep::Constant(_) => [None; 3],
        }
    }

    /// The step with other registers.
    fn renamed(self, name: impl Fn(usize) -> usize) -> SortStep {
        match self {
            SortStep::Floats(direction, a, b) => SortStep::Floats(direction, name(a), name(b)),
            SortStep::Total(direction, a, b) => SortStep::Total(direction, name(a), name(b)),
            SortStep::Integers(direction, a, b) => SortStep::Integers(direction, name(a), name(b)),
            SortStep::Select(a, b, c) => SortStep::Select(name(a), name(b), name(c)),
            SortStep::And(a, b) => SortStep::And(name(a), name(b)),
            SortStep::Or(a, b) => SortStep::Or(name(a), name(b)),
            SortStep::Xor(a, b) => SortStep::Xor(name(a), name(b)),
            SortStep::Not(a) => SortStep::Not(name(a)),
            SortStep::Constant(bits) => SortStep::Constant(bits),
        }
    }

    #[inline(always)]
    fn apply(self, registers: &[u64; REGISTERS]) -> u64 {
        let get = |register: usize| registers[register & (REGISTERS - 1)];
        let truth = match self {
            SortStep::Floats(direction, a, b) => {
                holds(direction, f64::from_bits(get(a)), f64::from_bits(get(b)))
            }
            SortStep::Total(direction, a, b) => holds(direction, total(get(a)), total(get(b))),
            SortStep::Integers(direction, a, b) => holds(direction, get(a) as i64, get(b) as i64),
            SortStep::Select(a, b, c) => return if get(a) != 0 { get(b) } else { get(c) },
            SortStep::And(a, b) => get(a) != 0 && get(b) != 0,
            SortStep::Or(a, b) => get(a) != 0 || get(b) != 0,
            SortStep::Xor(a, b) => (get(a) != 0) != (get(b) != 0),
            SortStep::Not(a) => get(a) == 0,
            SortStep::Constant(bits) => return bits,
        };
        u64::from(truth)
    }
}

#[inline(always)]
fn holds<T: PartialOrd>(direction: Direction, a: T, b: T) -> bool {
    match direction {
        Direction::Eq => a == b,
        Direction::Ne => a != b,
        Direction::Lt => a < b,
        Direction::Le => a <= b,
        Direction::Gt => a > b,
        Direction::Ge => a >= b,
    }
}

/// The bits of an f64 as an integer in its total order.
#[inline(always)]
fn total(bits: u64) -> i64 {
    f64::from_bits(bits).total_order_key()
}

/// An element as registers hold it.
#[inline(always)]
fn register<T: Element + Cast<f64> + Cast<i64>>(value: T) -> u64 {
    match T::DTYPE {
        dtype if dtype.is_float() => {
            let wide: f64 = value.cast();
            wide.to_bits()
        }
        // Unsigned integers above the range of i64 keep their order.
        DType::U64 => {
            let bits: i64 = value.cast();
            (bits as u64) ^ (1 << 63)
        }
        _ => {
            let value: i64 = value.cast();
            value as u64
        }
    }
}

impl Comparator {
    /// A comparator of `operands` operands, whose last step says whether the first element comes before the
    /// second. Registers `2 i` and `2 i + 1` hold the elements of operand `i`; the steps follow. `None` if
    /// there are too many registers, or a step reads one that does not precede it.
    pub fn new(operands: usize, steps: Vec<SortStep>) -> Option<Comparator> {
        let first = 2 * operands;
        let precede =
            |(i, step): (usize, &SortStep)| step.sources().iter().flatten().all(|&from| from < first + i);
        let fits = first + steps.len() <= REGISTERS && steps.iter().enumerate().all(precede);
        let key = match *steps.last().filter(|_| fits)? {
            SortStep::Floats(_, a, b) | SortStep::Total(_, a, b) | SortStep::Integers(_, a, b) => {
                same_function(&steps, first, a, b, &mut Vec::new()).then_some(a)
            }
            _ => None,
        };
        Some(Comparator { operands, steps, key })
    }

    /// The bits of an element as registers hold them, for constants.
    ///
    /// # Panics
    /// Where the bytes are not those of one element.
    pub fn bits(dtype: DType, bytes: &[u8]) -> u64 {
        dispatch!(dtype, T => register::<T>(bytemuck::pod_read_unaligned(bytes)))
    }

    #[inline(always)]
    fn run(&self, registers: &mut [u64; REGISTERS]) {
        let first = 2 * self.operands;
        for (i, step) in self.steps.iter().enumerate() {
            registers[(first + i) & (REGISTERS - 1)] = step.apply(registers);
        }
    }

    /// Whether the elements at `a` come before those at `b` of lines of length `count`.
    #[inline(always)]
    fn before(&self, lines: &[u64], count: usize, registers: &mut [u64; REGISTERS], a: u32, b: u32) -> bool {
        for operand in 0..self.operands {
            registers[2 * operand] = lines[operand * count + a as usize];
            registers[2 * operand + 1] = lines[operand * count + b as usize];
        }
        self.run(registers);
        registers[2 * self.operands + self.steps.len() - 1] != 0
    }
}

/// Whether register `a` depends only on first elements, and `b` is the same function of the second ones;
/// `seen` has the pairs that were compared before.
fn same_function(
    steps: &[SortStep],
    first: usize,
    a: usize,
    b: usize,
    seen: &mut Vec<(usize, usize)>,
) -> bool {
    if seen.contains(&(a, b)) {
        return true;
    }
    seen.push((a, b));
    if a < first || b < first {
        return a < first && a.is_multiple_of(2) && b == a + 1;
    }
    let (left, right) = (steps[a - first], steps[b - first]);
    left.renamed(|_| 0) == right.renamed(|_| 0)
        && left.sources().into_iter().zip(right.sources()).all(|pair| match pair {
            (Some(l), Some(r)) => same_function(steps, first, l, r, seen),
            _ => true,
        })
}

/// Sorts positions by `before`, stably; `other` is scratch memory of the same length.
#[inline(always)]
fn merge_sort(positions: &mut [u32], other: &mut [u32], mut before: impl FnMut(u32, u32) -> bool) {
    /// Runs of this length are sorted by insertion.
    const RUN: usize = 8;
    let count = positions.len();
    for run in positions.chunks_mut(RUN) {
        for i in 1..run.len() {
            let mut j = i;
            while j > 0 && before(run[j], run[j - 1]) {
                run.swap(j, j - 1);
                j -= 1;
            }
        }
    }
    let (mut from, mut to, mut width, mut swapped) = (positions, other, RUN, false);
    while width < count {
        for start in (0..count).step_by(2 * width) {
            let (middle, end) = ((start + width).min(count), (start + 2 * width).min(count));
            if middle == end || !before(from[middle], from[middle - 1]) {
                to[start..end].copy_from_slice(&from[start..end]);
                continue;
            }
            let (mut i, mut j) = (start, middle);
            for place in &mut to[start..end] {
                let takes_right = i == middle || (j < end && before(from[j], from[i]));
                *place = if takes_right { from[j] } else { from[i] };
                (i, j) = if takes_right { (i, j + 1) } else { (i + 1, j) };
            }
        }
        std::mem::swap(&mut from, &mut to);
        swapped = !swapped;
        width *= 2;
    }
    if swapped {
        to.copy_from_slice(from);
    }
}

/// Bytes of workspace that [`sort`] needs for lines of `extent` elements of so many operands.
pub fn sort_workspace_bytes(operands: usize, extent: usize) -> usize {
    piece_bytes::<u64>(operands * extent) + 2 * piece_bytes::<u32>(extent)
}

/// Writes a line as registers hold it.
fn load_line(x: &View<'_>, line: &[usize], dim: usize, into: &mut [u64]) {
    assert!(into.len() == x.shape()[dim], "lines of one length");
    dispatch!(x.dtype(), T => {
        let from: *const T = x.as_ptr().cast();
        let base: isize = line.iter().zip(x.strides()).map(|(&i, s)| i as isize * s).sum();
        for (i, into) in into.iter_mut().enumerate() {
            // SAFETY: the element is inside the view.
            *into = register(unsafe { from.offset(base + i as isize * x.strides()[dim]).read() });
        }
    })
}

/// Copies the chosen elements of a line.
fn store_line(x: &View<'_>, line: &[usize], dim: usize, chosen: &[u32], out: &mut ViewMut<'_>) {
    let inside = |d: usize| d == dim || x.shape()[d] == out.shape()[d];
    assert!(x.dtype() == out.dtype() && (0..x.rank()).all(inside), "lines of one tensor");
    assert!(chosen.len() <= out.shape()[dim], "a line of the result");
    dispatch!(x.dtype(), T => {
        let (from, to): (*const T, *mut T) = (x.as_ptr().cast(), out.as_mut_ptr().cast());
        let base = |strides: &[isize]| -> isize { line.iter().zip(strides).map(|(&i, s)| i as isize * s).sum() };
        let (base, out_base) = (base(x.strides()), base(out.strides()));
        let (step, out_step) = (x.strides()[dim], out.strides()[dim]);
        for (i, &at) in chosen.iter().enumerate() {
            // SAFETY: both places are inside the views.
            unsafe {
                let value = from.offset(base + at as isize * step).read();
                to.offset(out_base + i as isize * out_step).write(value);
            }
        }
    })
}

/// Calls `visit` with the index of every line along a dimension, as which it is zero.
fn each_line(shape: &[usize], dim: usize, mut visit: impl FnMut(&[usize])) {
    let mut sizes = [1; MAX_RANK];
    sizes[..shape.len()].copy_from_slice(shape);
    sizes[dim] = 1;
    crate::windows::each_index(&sizes[..shape.len()], &mut visit);
}

/// Sorts all operands together along `dim`, stably. `operand` and `out` give them by number; all have one
/// shape, and the results overlap no operand.
///
/// # Panics
/// Where a line has more than 2^32 elements, or the workspace is too small.
pub fn sort<'a>(
    comparator: &Comparator,
    dim: usize,
    operand: impl Fn(usize) -> View<'a>,
    out: impl Fn(usize) -> ViewMut<'a>,
    workspace: &mut [u8],
) {
    let first = operand(0);
    let count = first.shape()[dim];
    assert!(u32::try_from(count).is_ok(), "a line of {count} elements");
    let mut workspace = Workspace::new(workspace);
    let lines = workspace.take::<u64>(comparator.operands * count);
    let positions = workspace.take::<u32>(count);
    let other = workspace.take::<u32>(count);
    let mut registers = [0; REGISTERS];
    each_line(first.shape(), dim, |line| {
        for number in 0..comparator.operands {
            load_line(&operand(number), line, dim, &mut lines[number * count..][..count]);
        }
        (0..).zip(positions.iter_mut()).for_each(|(i, position)| *position = i);
        let last = comparator.steps[comparator.steps.len() - 1];
        match (comparator.key, last) {
            (Some(key), SortStep::Floats(direction, ..)) => {
                keys(comparator, key, lines, count, &mut registers, |bits| bits);
                sort_keys(direction, positions, other, |at| f64::from_bits(lines[at as usize]));
            }
            (Some(key), SortStep::Total(direction, ..)) => {
                keys(comparator, key, lines, count, &mut registers, |bits| total(bits) as u64);
                sort_keys(direction, positions, other, |at| lines[at as usize] as i64);
            }
            (Some(key), SortStep::Integers(direction, ..)) => {
                keys(comparator, key, lines, count, &mut registers, |bits| bits);
                sort_keys(direction, positions, other, |at| lines[at as usize] as i64);
            }
            _ => merge_sort(positions, other, |a, b| comparator.before(lines, count, &mut registers, a, b)),
        }
        for number in 0..comparator.operands {
            store_line(&operand(number), line, dim, positions, &mut out(number));
        }
    });
}

/// Replaces the first operand's line by the key of each position.
fn keys(
    comparator: &Comparator,
    key: usize,
    lines: &mut [u64],
    count: usize,
    registers: &mut [u64; REGISTERS],
    finish: impl Fn(u64) -> u64,
) {
    for i in 0..count {
        if key < 2 * comparator.operands {
            // The element itself.
            lines[i] = finish(lines[key / 2 * count + i]);
        } else {
            comparator.before(lines, count, registers, i as u32, i as u32);
            lines[i] = finish(registers[key]);
        }
    }
}

/// Sorts positions by keys that are in a relation.
fn sort_keys<K: PartialOrd>(
    direction: Direction,
    positions: &mut [u32],
    other: &mut [u32],
    key: impl Fn(u32) -> K,
) {
    match direction {
        Direction::Lt => merge_sort(positions, other, |a, b| key(a) < key(b)),
        Direction::Gt => merge_sort(positions, other, |a, b| key(a) > key(b)),
        _ => merge_sort(positions, other, |a, b| holds(direction, key(a), key(b))),
    }
}

/// Bytes of workspace that [`top_k`] needs for rows of `extent` elements.
pub fn top_k_workspace_bytes(extent: usize) -> usize {
    sort_workspace_bytes(1, extent)
}

/// Up to so many elements are kept in order by insertion; for more, rows are sorted.
const MAX_INSERTED: usize = 64;

/// The largest elements along the last dimension, largest first, and their positions as i32. Of equal
/// elements the first counts as the largest; floats are in their total order.
///
/// # Panics
/// Where shapes or types do not fit, or the workspace is too small.
pub fn top_k(x: &View<'_>, values: &mut ViewMut<'_>, positions: &mut ViewMut<'_>, workspace: &mut [u8]) {
    let dim = x.rank() - 1;
    let (count, k) = (x.shape()[dim], values.shape()[dim]);
    assert!(
        values.shape() == positions.shape()
            && values.shape()[..dim] == x.shape()[..dim]
            && k <= count
            && i32::try_from(count).is_ok()
            && x.dtype() == values.dtype()
            && positions.dtype() == DType::I32,
        "the largest of each row"
    );
    let mut workspace = Workspace::new(workspace);
    let keys = workspace.take::<u64>(count);
    let order = workspace.take::<u32>(count);
    let other = workspace.take::<u32>(count);
    let is_float = x.dtype().is_float();
    each_line(x.shape(), dim, |line| {
        load_line(x, line, dim, keys);
        if is_float {
            keys.iter_mut().for_each(|key| *key = total(*key) as u64);
        }
        let key = |at: u32| keys[at as usize] as i64;
        let chosen = if k <= MAX_INSERTED {
            let mut kept = 0;
            for at in 0..count as u32 {
                if kept == k && (k == 0 || key(at) <= key(order[k - 1])) {
                    continue;
                }
                let mut place = kept.min(k - 1);
                kept = (kept + 1).min(k);
                while place > 0 && key(order[place - 1]) < key(at) {
                    order[place] = order[place - 1];
                    place -= 1;
                }
                order[place] = at;
            }
            &order[..k]
        } else {
            (0..).zip(order.iter_mut()).for_each(|(i, position)| *position = i);
            sort_keys(Direction::Gt, order, other, key);
            &order[..k]
        };
        store_line(x, line, dim, chosen, values);
        let to: *mut i32 = positions.as_mut_ptr().cast();
        let base: isize = line.iter().zip(positions.strides()).map(|(&i, s)| i as isize * s).sum();
        for (i, &at) in chosen.iter().enumerate() {
            // SAFETY: the place is inside the view.
            unsafe { to.offset(base + i as isize * positions.strides()[dim]).write(at as i32) };
        }
    });
}
