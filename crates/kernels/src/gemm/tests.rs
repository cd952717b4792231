//! Tests of matmul: every level bit for bit against sums in the documented order, and AMX against its twin in
//! plain Rust.

use super::*;
use crate::options::KernelOptions;

/// Numbers in [-1, 1) from a fixed seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / (1 << 23) as f64 - 1.0
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * end as f64) as usize
    }
}

/// What the tests need from a float type.
trait Float: Factor + PartialEq + std::fmt::Debug {
    const STEP: f64;
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn times_plus(self, other: Self, addend: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn bits(self) -> u64;
}

macro_rules! float {
    ($type:ty) => {
        impl Float for $type {
            const STEP: f64 = <$type>::EPSILON as f64;
            fn of(x: f64) -> Self {
                x as $type
            }
            fn wide(self) -> f64 {
                self as f64
            }
            fn times_plus(self, other: Self, addend: Self) -> Self {
                self.mul_add(other, addend)
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn bits(self) -> u64 {
                if self.is_nan() { u64::MAX } else { self.to_bits() as u64 }
            }
        }
    };
}
float!(f32);
float!(f64);

/// The memory layout of a matrix.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Rows,
    Columns,
    Apart,
    Backwards,
    RowsRepeat,
    ColumnsRepeat,
}

const LIES: [Lie; 6] =
    [Lie::Rows, Lie::Columns, Lie::Apart, Lie::Backwards, Lie::RowsRepeat, Lie::ColumnsRepeat];

/// A matrix inside a larger buffer.
struct Held<C> {
    elements: Vec<C>,
    first: usize,
    strides: [isize; 2],
}

impl<C: Float> Held<C> {
    fn new(rows: usize, columns: usize, lie: Lie, numbers: &mut Numbers) -> Self {
        let (r, c) = (rows as isize, columns as isize);
        let strides = match lie {
            Lie::Rows => [c + 3, 1],
            Lie::Columns => [1, r + 1],
            Lie::Apart => [2 * c + 1, 2],
            Lie::Backwards => [-c - 2, -1],
            Lie::RowsRepeat => [0, 1],
            Lie::ColumnsRepeat => [1, 0],
        };
        let ends = [(r - 1).max(0) * strides[0], (c - 1).max(0) * strides[1]];
        let first = -ends.iter().map(|&end| end.min(0)).sum::<isize>();
        let length = first + ends.iter().map(|&end| end.max(0)).sum::<isize>() + 1;
        let elements = (0..length).map(|_| C::of(numbers.next())).collect();
        Held { elements, first: first as usize, strides }
    }

    fn at(&self, i: usize, j: usize) -> usize {
        (self.first as isize + i as isize * self.strides[0] + j as isize * self.strides[1]) as usize
    }

    fn get(&self, i: usize, j: usize) -> C {
        self.elements[self.at(i, j)]
    }

    fn matrix(&self) -> Matrix<C> {
        Matrix { pointer: &self.elements[self.first], row: self.strides[0], column: self.strides[1] }
    }

    fn matrix_mut(&mut self) -> MatrixMut<C> {
        MatrixMut { pointer: &mut self.elements[self.first], row: self.strides[0], column: self.strides[1] }
    }
}

fn levels() -> Vec<Level> {
    KernelOptions::levels().into_iter().map(KernelOptions::level).collect()
}

/// Compares every level bit for bit with an element computed alone in the documented order, and that with a
/// plain sum. The memory between and around the elements of `out` must not change.
fn check<C: Float>(
    [m, k, n]: [usize; 3],
    [left, right, into]: [Lie; 3],
    scale: f64,
    accumulate: bool,
    special: bool,
    numbers: &mut Numbers,
) {
    let mut lhs = Held::<C>::new(m, k, left, numbers);
    let mut rhs = Held::<C>::new(k, n, right, numbers);
    let out = Held::<C>::new(m, n, into, numbers);
    if special {
        let value = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN][numbers.below(3)];
        for held in [&mut lhs, &mut rhs] {
            let at = numbers.below(held.elements.len());
            held.elements[at] = C::of(value);
        }
    }
    let scale = C::of(scale);
    let mut expected = out.elements.clone();
    for i in 0..m {
        for j in 0..n {
            let (mut value, mut plain, mut size) = (out.get(i, j), 0.0, 0.0);
            for p in (0..k.max(1)).step_by(depth_block(k)) {
                let products = p..k.min(p + depth_block(k));
                let sum = products.fold(C::of(0.0), |sum, p| lhs.get(i, p).times_plus(rhs.get(p, j), sum));
                let adds = accumulate || p > 0;
                value = if adds { sum.times_plus(scale, value) } else { sum.times(scale) };
            }
            for p in 0..k {
                plain += lhs.get(i, p).wide() * rhs.get(p, j).wide();
                size += (lhs.get(i, p).wide() * rhs.get(p, j).wide()).abs();
            }
            let before = if accumulate { out.get(i, j).wide() } else { 0.0 };
            let (plain, size) = (plain * scale.wide() + before, size * scale.wide().abs() + before.abs());
            if plain.is_finite() {
                let error = (value.wide() - plain).abs();
                assert!(error <= (k + 2) as f64 * C::STEP * size, "{:?} is not {plain}", value);
            } else {
                assert!(value.wide() == plain || (value.wide().is_nan() && plain.is_nan()));
            }
            expected[out.at(i, j)] = value;
        }
    }
    for level in levels() {
        let mut found = Held { elements: out.elements.clone(), ..out };
        // SAFETY: the matrices have these sizes and are apart; the machine has the level.
        unsafe {
            let (lhs, rhs, out) = (lhs.matrix().into(), rhs.matrix().into(), found.matrix_mut());
            let part = Part::WHOLE;
            C::at_level(level, Product { sizes: [m, k, n], scale, lhs, rhs, out, accumulate, part });
        }
        for (at, (found, expected)) in found.elements.iter().zip(&expected).enumerate() {
            assert!(
                found.bits() == expected.bits(),
                "{found:?} is not {expected:?} at {at}: {level:?}, {m} x {k} x {n}, {left:?} {right:?} {into:?}"
            );
        }
    }
}

/// Random sizes below `most`, layouts of `lhs`, `rhs` and `out`, a scale, and whether to accumulate.
fn draw(most: usize, numbers: &mut Numbers) -> ([usize; 3], [Lie; 3], f64, bool) {
    let sizes = std::array::from_fn(|_| numbers.below(most));
    let lies = [LIES[numbers.below(6)], LIES[numbers.below(6)], LIES[numbers.below(4)]];
    let scale = [1.0, -0.375][numbers.below(2)];
    (sizes, lies, scale, numbers.below(2) == 0)
}

#[test]
fn every_level_and_layout_gives_the_promised_bits() {
    let mut numbers = Numbers(1);
    for round in 0..400 {
        let most = if round % 10 == 0 { 210 } else { 40 };
        let (sizes, lies, scale, accumulate) = draw(most, &mut numbers);
        let special = numbers.below(5) == 0;
        check::<f32>(sizes, lies, scale, accumulate, special, &mut numbers);
        check::<f64>(sizes, lies, scale, accumulate, special, &mut numbers);
    }
}

#[test]
fn long_sums_and_wide_blocks_are_cut_alike() {
    let mut numbers = Numbers(2);
    for (sizes, left, right) in [
        ([9, 3 * DEPTH + 5, 70], Lie::Rows, Lie::Columns),
        ([70, DEPTH + 1, 9], Lie::Columns, Lie::Rows),
        ([3, 40, RHS_BYTES / 4 / 48 + 100], Lie::Rows, Lie::Columns),
        ([250, 30, 64], Lie::Rows, Lie::Rows),
        ([IN_PLACE_ROWS, 50, 192], Lie::Rows, Lie::Rows),
        ([2 * NEAR_ROWS + 7, DEPTH + 90, 150], Lie::Columns, Lie::Rows),
    ] {
        for into in [Lie::Rows, Lie::Columns] {
            check::<f32>(sizes, [left, right, into], 0.5, true, false, &mut numbers);
            check::<f64>(sizes, [left, right, into], 1.0, false, false, &mut numbers);
        }
    }
}

#[test]
fn vectors_and_nothing() {
    let mut numbers = Numbers(3);
    for m in [0, 1, 2, 5, 65] {
        for n in [0, 1, 2, 5, 65] {
            for k in [0, 1, 20] {
                for (left, right, into) in
                    [(Lie::Rows, Lie::Rows, Lie::Rows), (Lie::Columns, Lie::Columns, Lie::Columns)]
                {
                    for accumulate in [false, true] {
                        check::<f32>([m, k, n], [left, right, into], 2.0, accumulate, false, &mut numbers);
                    }
                }
            }
        }
    }
}

#[test]
fn a_part_has_the_bits_of_the_whole() {
    let mut numbers = Numbers(4);
    let [m, k, n] = [61, 500, 143];
    let lhs = Held::<f32>::new(m, k, Lie::Rows, &mut numbers);
    let rhs = Held::<f32>::new(k, n, Lie::Columns, &mut numbers);
    let mut whole = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
    let mut parts = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
    // SAFETY: the matrices have these sizes and are apart.
    unsafe {
        product(
            KernelOptions::native(),
            [m, k, n],
            1.0,
            lhs.matrix(),
            rhs.matrix(),
            whole.matrix_mut(),
            false,
            Part::WHOLE,
        );
        for (i, rows) in [(0, 1), (1, 37), (38, 23)] {
            for (j, columns) in [(0, 64), (64, 5), (69, 74)] {
                let out = parts.matrix_mut().rows_after(i).columns_after(j);
                let (lhs, rhs) = (lhs.matrix().rows_after(i), rhs.matrix().columns_after(j));
                product(KernelOptions::native(), [rows, k, columns], 1.0, lhs, rhs, out, false, Part::WHOLE);
            }
        }
    }
    assert_same_bits(&whole, &parts, [m, n], "parts");
}

fn assert_same_bits(whole: &Held<f32>, other: &Held<f32>, [m, n]: [usize; 2], of: &str) {
    for i in 0..m {
        for j in 0..n {
            assert_eq!(whole.get(i, j).to_bits(), other.get(i, j).to_bits(), "{of} at {i}, {j}");
        }
    }
}

/// A matmul may be split along k into blocks that accumulate.
#[test]
fn blocks_of_a_sum_add_up_to_the_bits_of_the_whole() {
    for k in 1..3000 {
        let block = depth_block(k);
        let rest = k % block;
        assert!(depth_block(block) >= block && depth_block(rest) >= rest, "{k} in blocks of {block}");
    }
    let mut numbers = Numbers(5);
    let [m, n] = [37, 70];
    for k in [1, 384, 385, 767, 1000] {
        let lhs = Held::<f32>::new(m, k, Lie::Columns, &mut numbers);
        let rhs = Held::<f32>::new(k, n, Lie::Rows, &mut numbers);
        let mut whole = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
        let mut blocks = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
        // SAFETY: the matrices have these sizes and are apart.
        unsafe {
            product(
                KernelOptions::native(),
                [m, k, n],
                1.0,
                lhs.matrix(),
                rhs.matrix(),
                whole.matrix_mut(),
                false,
                Part::WHOLE,
            );
            for p in (0..k).step_by(depth_block(k)) {
                let sizes = [m, depth_block(k).min(k - p), n];
                let (lhs, rhs) = (lhs.matrix().columns_after(p), rhs.matrix().rows_after(p));
                product(
                    KernelOptions::native(),
                    sizes,
                    1.0,
                    lhs,
                    rhs,
                    blocks.matrix_mut(),
                    p > 0,
                    Part::WHOLE,
                );
            }
        }
        assert_same_bits(&whole, &blocks, [m, n], &format!("blocks of {k}"));
    }
}

#[test]
fn a_band_leaves_out_what_is_hidden_and_has_the_bits_of_the_rest() {
    let mut numbers = Numbers(5);
    for round in 0..200 {
        let (most_rows, most_sums) = match round % 8 {
            0 => (50, 900),
            1 => (3 * NEAR_ROWS, 50),
            _ => (50, 50),
        };
        let [m, k, n] = [most_rows, most_sums, 90].map(|most| 1 + numbers.below(most));
        let shift = numbers.below(2 * m.max(k)) as isize - m.max(k) as isize;
        let band = [Band::Out(shift), Band::Lower(shift), Band::Upper(shift)][numbers.below(3)];
        let (accumulate, lies) = (numbers.below(2) == 0, [LIES[numbers.below(4)], LIES[numbers.below(4)]]);
        let mut lhs = Held::<f32>::new(m, k, lies[0], &mut numbers);
        let rhs = Held::<f32>::new(k, n, lies[1], &mut numbers);
        let out = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
        // How far an element of the left factor is behind the diagonal: zero in the next rows, arbitrary
        // after them.
        let behind = |i: usize, p: usize| match band {
            Band::Lower(shift) => p as isize - i as isize - shift,
            Band::Upper(shift) => i as isize - p as isize - shift,
            _ => -1,
        };
        let places = || (0..m).flat_map(|i| (0..k).map(move |p| (i, p)));
        for (i, p) in places().filter(|&(i, p)| behind(i, p) >= 0) {
            let at = lhs.at(i, p);
            lhs.elements[at] = 0.0;
        }
        let product = |level, lhs: &Held<f32>, band| {
            let mut found = Held { elements: out.elements.clone(), ..out };
            let (part, out) = (Part { band, ahead: &[] }, found.matrix_mut());
            let (lhs, rhs) = (lhs.matrix().into(), rhs.matrix().into());
            let work = Product { sizes: [m, k, n], scale: 0.5, lhs, rhs, out, accumulate, part };
            // SAFETY: the matrices have these sizes and are apart; the machine has the level.
            unsafe { f32::at_level(level, work) };
            found
        };
        let expected = product(Level::Portable, &lhs, Band::Full);
        for (i, p) in places().filter(|&(i, p)| behind(i, p) >= BAND_ROWS as isize) {
            let at = lhs.at(i, p);
            lhs.elements[at] = f32::NAN;
        }
        for level in levels() {
            let found = product(level, &lhs, band);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let wanted = !matches!(band, Band::Out(shift) if j as isize >= i as isize + shift);
                let (found, expected) = (found.get(i, j), expected.get(i, j));
                // Skipped products do not add zeros of the other sign either.
                assert!(
                    !wanted || found == expected,
                    "{found} is not {expected}: {band:?} {level:?} {i} {j}"
                );
            }
        }
    }
}

/// The documented result of AMX, in plain Rust.
mod twin {
    use super::*;

    /// AMX treats subnormal numbers as zero.
    fn normal(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    pub fn parts(x: f32) -> [f32; 3] {
        let upper = |bits: u32| f32::from_bits(bits & 0xffff_0000);
        let first = upper(x.to_bits().wrapping_add(0x8000));
        let second = upper((x - first).to_bits());
        let third = (x - first) - second;
        [first, second, upper(third.to_bits())].map(normal)
    }

    /// The sum over one block of a row of `lhs` times a column of `rhs`.
    pub fn sum(row: &[f32], column: &[f32]) -> f32 {
        let has_parts = |numbers: &[f32]| {
            numbers.iter().all(|x| x.is_finite() && parts(*x).iter().all(|part| part.is_finite()))
        };
        if !has_parts(row) || !has_parts(column) {
            return row.iter().zip(column).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum));
        }
        let mut sum = 0.0;
        for (row, column) in row.chunks(32).zip(column.chunks(32)) {
            for (left, right) in [(0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)] {
                let mut halves = [0.0; 2];
                for (p, (a, b)) in row.iter().zip(column).enumerate() {
                    let half = &mut halves[p / 16];
                    *half = normal(parts(*a)[left].mul_add(parts(*b)[right], *half));
                }
                sum = normal(sum + normal(halves[0] + halves[1]));
            }
        }
        sum
    }

    pub fn product(
        [m, k, n]: [usize; 3],
        scale: f32,
        lhs: &Held<f32>,
        rhs: &Held<f32>,
        out: &mut Held<f32>,
        accumulate: bool,
    ) {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at = out.at(i, j);
            for p in (0..k.max(1)).step_by(depth_block(k)) {
                let block = p..k.min(p + depth_block(k));
                let row: Vec<f32> = block.clone().map(|p| lhs.get(i, p)).collect();
                let column: Vec<f32> = block.map(|p| rhs.get(p, j)).collect();
                let (sum, there) = (sum(&row, &column), out.elements[at]);
                out.elements[at] = if accumulate || p > 0 { sum.mul_add(scale, there) } else { sum * scale };
            }
        }
    }
}

/// Compares [`whole_product`] with the fastest options with its documented result.
fn check_fastest(
    sizes: [usize; 3],
    [left, right, into]: [Lie; 3],
    scale: f32,
    accumulate: bool,
    numbers: &mut Numbers,
    change: impl Fn(&mut [f32], &mut Numbers),
) {
    let [m, k, n] = sizes;
    let mut lhs = Held::<f32>::new(m, k, left, numbers);
    let mut rhs = Held::<f32>::new(k, n, right, numbers);
    change(&mut lhs.elements, numbers);
    change(&mut rhs.elements, numbers);
    let mut found = Held::<f32>::new(m, n, into, numbers);
    let mut expected = Held { elements: found.elements.clone(), ..found };
    // SAFETY: the matrices have these sizes and are apart.
    unsafe {
        let (lhs, rhs, out) = (lhs.matrix(), rhs.matrix(), found.matrix_mut());
        whole_product(KernelOptions::native(), sizes, scale, lhs, rhs, out, accumulate);
    }
    if KernelOptions::native().matrix_unit() {
        twin::product(sizes, scale, &lhs, &rhs, &mut expected, accumulate);
    } else {
        // SAFETY: as above.
        unsafe {
            let (lhs, rhs, out) = (lhs.matrix(), rhs.matrix(), expected.matrix_mut());
            product(KernelOptions::native(), sizes, scale, lhs, rhs, out, accumulate, Part::WHOLE);
        }
    }
    for (at, (found, expected)) in found.elements.iter().zip(&expected.elements).enumerate() {
        assert!(
            found.bits() == expected.bits(),
            "{found:?} is not {expected:?} at {at}: {m} x {k} x {n}, {left:?} {right:?} {into:?}"
        );
    }
}

#[test]
fn the_fastest_products_have_the_promised_bits() {
    let mut numbers = Numbers(6);
    for round in 0..300 {
        let most = if round % 10 == 0 { 150 } else { 40 };
        let (sizes, lies, scale, accumulate) = draw(most, &mut numbers);
        check_fastest(sizes, lies, scale as f32, accumulate, &mut numbers, |elements, numbers| {
            match round % 5 {
                // 0: one number has no parts; 1: magnitudes vary, and some numbers lose parts; 2: two parts
                // are enough.
                0 => {
                    let odd =
                        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, -f32::MAX][numbers.below(5)];
                    let at = numbers.below(elements.len());
                    elements[at] = odd;
                }
                1 => elements.iter_mut().for_each(|x| *x *= 2f32.powi(numbers.below(200) as i32 - 140)),
                2 => elements.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_8000)),
                _ => {}
            }
        });
    }
    // More than one block in every direction.
    for (sizes, left, right) in [
        ([35, 2 * DEPTH + 5, 40], Lie::Rows, Lie::Columns),
        ([70, DEPTH + 1, 33], Lie::Columns, Lie::Rows),
        ([3, 40, 8000], Lie::Rows, Lie::Rows),
    ] {
        for into in [Lie::Rows, Lie::Columns] {
            check_fastest(sizes, [left, right, into], 1.0, true, &mut numbers, |_, _| ());
        }
    }
}

/// Six products of parts are as accurate as one product of the full numbers.
#[test]
fn sums_of_parts_are_nearer_to_the_truth_than_sums_in_order() {
    let mut numbers = Numbers(7);
    let mut squares = [0.0; 2];
    for _ in 0..200 {
        let [row, column]: [Vec<f32>; 2] = std::array::from_fn(|_| {
            (0..384).map(|_| (numbers.next() * (8.0 * numbers.next()).exp()) as f32).collect()
        });
        let terms = || row.iter().zip(&column).map(|(a, b)| *a as f64 * *b as f64);
        let (truth, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        let in_order = row.iter().zip(&column).fold(0f32, |sum, (a, b)| a.mul_add(*b, sum));
        for (square, sum) in squares.iter_mut().zip([twin::sum(&row, &column), in_order]) {
            *square += ((sum as f64 - truth) / size).powi(2);
        }
        // Sums of one product: no other term hides its error.
        let (a, b) = (row[0], column[0]);
        let error = (twin::sum(&[a], &[b]) as f64 - a as f64 * b as f64).abs();
        assert!(
            error <= 1.01 * f32::EPSILON as f64 * (a as f64 * b as f64).abs(),
            "{a} x {b} is off by {error}"
        );
    }
    assert!(squares[0] < squares[1], "{squares:?}");
}

#[test]
fn no_level_uses_the_matrix_unit() {
    let mut numbers = Numbers(8);
    let [m, k, n] = [40, 70, 50];
    let lhs = Held::<f32>::new(m, k, Lie::Rows, &mut numbers);
    let rhs = Held::<f32>::new(k, n, Lie::Rows, &mut numbers);
    let without = KernelOptions::native().without_matrix_unit();
    for options in KernelOptions::levels().into_iter().chain([without]) {
        let mut found = Held::<f32>::new(m, n, Lie::Rows, &mut numbers);
        // SAFETY: the matrices have these sizes and are apart.
        unsafe {
            let (left, right, out) = (lhs.matrix(), rhs.matrix(), found.matrix_mut());
            whole_product(options, [m, k, n], 1.0, left, right, out, false);
        }
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let sum = (0..k).fold(0f32, |sum, p| lhs.get(i, p).mul_add(rhs.get(p, j), sum));
            assert_eq!(found.get(i, j).to_bits(), sum.to_bits(), "{options:?}");
        }
    }
}
