use super::*;

/// Numbers in [-1, 1), the same ones every time.
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

/// What the tests need to know of a float.
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

/// How a matrix lies in memory.
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

/// A matrix in a buffer that is larger.
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
    #[cfg(target_arch = "x86_64")]
    match level() {
        Level::Avx512 => return vec![Level::Baseline, Level::Avx2, Level::Avx512],
        Level::Avx2 => return vec![Level::Baseline, Level::Avx2],
        Level::Baseline => {}
    }
    vec![Level::Baseline]
}

/// Every level against an element computed alone, in the order that is promised, to the bit; and that against a
/// plain sum. What lies between and around the elements of `out` stays.
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
        // SAFETY: the matrices have these sizes and are apart; the level is one of the machine's.
        unsafe {
            C::product_at(
                level,
                [m, k, n],
                scale,
                lhs.matrix(),
                rhs.matrix(),
                found.matrix_mut(),
                accumulate,
                Part::WHOLE,
            );
        }
        for (at, (found, expected)) in found.elements.iter().zip(&expected).enumerate() {
            assert!(
                found.bits() == expected.bits(),
                "{found:?} is not {expected:?} at {at}: {level:?}, {m} x {k} x {n}, {left:?} {right:?} {into:?}"
            );
        }
    }
}

#[test]
fn every_level_and_layout_gives_the_promised_bits() {
    let mut numbers = Numbers(1);
    for round in 0..400 {
        let most = if round % 10 == 0 { 210 } else { 40 };
        let sizes = std::array::from_fn(|_| numbers.below(most));
        let lies = [LIES[numbers.below(6)], LIES[numbers.below(6)], LIES[numbers.below(4)]];
        let scale = [1.0, -0.375][numbers.below(2)];
        let (accumulate, special) = (numbers.below(2) == 0, numbers.below(5) == 0);
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
        product([m, k, n], 1.0, lhs.matrix(), rhs.matrix(), whole.matrix_mut(), false, Part::WHOLE);
        for (i, rows) in [(0, 1), (1, 37), (38, 23)] {
            for (j, columns) in [(0, 64), (64, 5), (69, 74)] {
                let out = parts.matrix_mut().rows_after(i).columns_after(j);
                let (lhs, rhs) = (lhs.matrix().rows_after(i), rhs.matrix().columns_after(j));
                product([rows, k, columns], 1.0, lhs, rhs, out, false, Part::WHOLE);
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

/// A product over all may be done block by block, each added to those before.
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
            product([m, k, n], 1.0, lhs.matrix(), rhs.matrix(), whole.matrix_mut(), false, Part::WHOLE);
            for p in (0..k).step_by(depth_block(k)) {
                let sizes = [m, depth_block(k).min(k - p), n];
                let (lhs, rhs) = (lhs.matrix().columns_after(p), rhs.matrix().rows_after(p));
                product(sizes, 1.0, lhs, rhs, blocks.matrix_mut(), p > 0, Part::WHOLE);
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
        // How far an element of the left factor is behind the diagonal: zero there, and rubbish farther on.
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
            let (part, into) = (Part { band, ahead: &[] }, found.matrix_mut());
            // SAFETY: the matrices have these sizes and are apart; the level is one of the machine's.
            unsafe {
                f32::product_at(level, [m, k, n], 0.5, lhs.matrix(), rhs.matrix(), into, accumulate, part);
            }
            found
        };
        let expected = product(Level::Baseline, &lhs, Band::Full);
        for (i, p) in places().filter(|&(i, p)| behind(i, p) >= BAND_ROWS as isize) {
            let at = lhs.at(i, p);
            lhs.elements[at] = f32::NAN;
        }
        for level in levels() {
            let found = product(level, &lhs, band);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let wanted = !matches!(band, Band::Out(shift) if j as isize >= i as isize + shift);
                let (found, expected) = (found.get(i, j), expected.get(i, j));
                // What is left out adds no zeros of the other sign either.
                assert!(
                    !wanted || found == expected,
                    "{found} is not {expected}: {band:?} {level:?} {i} {j}"
                );
            }
        }
    }
}
