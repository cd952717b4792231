//! Copies, fills, iotas, gathers, scatters and random bits against index arithmetic.

use crate::common::*;
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

fn random_bits_of(draw: &mut Draw, dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::random(draw, dtype, shape, |d| d.below(100) as f64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_keeps_every_element_in_its_place(seed: u64) {
        let mut draw = Draw(seed);
        let (shape, dtype) = (draw.shape(), draw.pick(&DType::ALL));
        let x = random_bits_of(&mut draw, dtype, &shape);
        let mut out = Tensor::scattered(&mut draw, dtype, &shape);
        copy(&x.view(), &mut out.view_mut());
        prop_assert_eq!(out.all_bits(), x.all_bits());
    }

    #[test]
    fn a_copy_of_a_permuted_slice_reads_the_right_elements(seed: u64) {
        let mut draw = Draw(seed);
        let (rows, columns, depth) = (1 + draw.below(70), 1 + draw.below(70), 1 + draw.below(3));
        let x = random_bits_of(&mut draw, DType::F32, &[rows, columns, depth]);
        let start = draw.below(rows);
        let step = 1 + draw.below(3);
        let at = draw.below(depth);
        let view = x.view().slice(0, start, rows, step).index(2, at).permute(&[1, 0]);
        let mut out = Tensor::zeros(DType::F32, view.shape());
        copy(&view, &mut out.view_mut());
        let kept = (rows - start).div_ceil(step);
        prop_assert_eq!(&out.shape, &vec![columns, kept]);
        for (i, bits) in out.all_bits().into_iter().enumerate() {
            let (column, row) = (i / kept, start + step * (i % kept));
            prop_assert_eq!(bits, x.bits((row * columns + column) * depth + at));
        }
    }

    #[test]
    fn a_write_stays_inside_its_view(seed: u64) {
        let mut draw = Draw(seed);
        let (rows, columns) = (2 + draw.below(40), 2 + draw.below(40));
        let mut whole = vec![7i32; rows * columns];
        let (top, left) = (draw.below(rows), draw.below(columns));
        let target = ViewMut::of(&mut whole, &[rows, columns])
            .slice(0, top, rows, 1)
            .slice(1, left, columns, 2);
        let mut target = if draw.chance(2) { target } else { target.permute(&[1, 0]) };
        fill(&mut target, &Scalar::new(-1i32));
        for (i, &value) in whole.iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let inside = row >= top && column >= left && (column - left) % 2 == 0;
            prop_assert_eq!(value, if inside { -1 } else { 7 });
        }
    }

    #[test]
    fn iota_counts_along_its_dimension(seed: u64) {
        let mut draw = Draw(seed);
        let mut shape = draw.shape();
        shape.push(1 + draw.below(5));
        let dim = draw.below(shape.len());
        let dtype = draw.pick(&[DType::I64, DType::I32, DType::F32, DType::F64, DType::U16]);
        let mut out = Tensor::scattered(&mut draw, dtype, &shape);
        iota(dim, &mut out.view_mut());
        let inner: usize = shape[dim + 1..].iter().product();
        for (i, x) in out.values().into_iter().enumerate() {
            prop_assert_eq!(x, ((i / inner) % shape[dim]) as f64);
        }
    }

    #[test]
    fn gathered_rows_are_those_of_the_table(seed: u64) {
        let mut draw = Draw(seed);
        let (rows, width, count) = (1 + draw.below(20), draw.pick(&[0, 1, 3, 40, 1100]), draw.below(12));
        let (dtype, id_type) = (draw.pick(&DType::ALL), draw.pick(&[DType::I32, DType::I64, DType::U32]));
        let table = random_bits_of(&mut draw, dtype, &[rows, width]);
        let ids = Tensor::random(&mut draw, id_type, &[count], |d| d.below(rows) as f64);
        let mut out = Tensor::scattered(&mut draw, dtype, &[count, width]);
        gather_rows(&table.view(), &ids.view(), &mut out.view_mut()).unwrap();
        for i in 0..count * width {
            prop_assert_eq!(out.bits(i), table.bits(ids.get(i / width) as usize * width + i % width));
        }
    }

    #[test]
    fn scattered_rows_add_up(seed: u64) {
        let mut draw = Draw(seed);
        let (rows, width, count) = (1 + draw.below(6), draw.pick(&[1, 3, 40, 1100]), draw.below(12));
        let dtype = draw.pick(&[DType::F32, DType::F64, DType::I32, DType::BF16]);
        let updates = Tensor::random(&mut draw, dtype, &[count, width], |d| d.below(9) as f64);
        // Ids may be negative or too large; those are dropped.
        let ids = Tensor::random(&mut draw, DType::I64, &[count], |d| d.below(rows + 2) as f64 - 1.0);
        let mut out = Tensor::scattered(&mut draw, dtype, &[rows, width]);
        let mut right = vec![0.0; rows * width];
        for (i, start) in right.iter_mut().enumerate() {
            *start = draw.below(9) as f64;
            out.set(i, *start);
        }
        scatter_add_rows(&updates.view(), &ids.view(), &mut out.view_mut());
        for i in 0..count * width {
            let row = ids.get(i / width);
            if row >= 0.0 && row < rows as f64 {
                right[row as usize * width + i % width] += updates.get(i);
            }
        }
        prop_assert_eq!(out.values(), right);
    }

    #[test]
    fn a_shard_draws_the_bits_of_its_place_in_the_whole(seed: u64) {
        let mut draw = Draw(seed);
        let rank = 1 + draw.below(3);
        let global: Vec<usize> = (0..rank).map(|_| draw.pick(&[1, 2, 6, 40])).collect();
        let offsets: Vec<usize> = global.iter().map(|&size| draw.below(size)).collect();
        let local: Vec<usize> =
            global.iter().zip(&offsets).map(|(&size, &offset)| 1 + draw.below(size - offset)).collect();
        let wide = |sizes: &[usize]| -> Vec<u64> { sizes.iter().map(|&s| s as u64).collect() };
        let dtype = draw.pick(&[DType::U32, DType::U64]);
        let (seed, stream) = (draw.bits(), draw.bits());
        let mut whole = Tensor::zeros(dtype, &global);
        random_bits(KernelOptions::native(), seed, stream, &vec![0; rank], &wide(&global), &mut whole.view_mut());
        let mut shard = Tensor::scattered(&mut draw, dtype, &local);
        random_bits(KernelOptions::native(), seed, stream, &wide(&offsets), &wide(&global), &mut shard.view_mut());
        for i in 0..shard.len() {
            let (mut rest, mut at, mut step) = (i, 0, 1);
            for d in (0..rank).rev() {
                at += (offsets[d] + rest % local[d]) * step;
                rest /= local[d];
                step *= global[d];
            }
            prop_assert_eq!(shard.bits(i), whole.bits(at));
        }
    }
}

#[test]
fn a_row_outside_the_table_is_an_error() {
    let table = Tensor::zeros(DType::F32, &[3, 2]);
    let mut out = Tensor::zeros(DType::F32, &[1, 2]);
    for id in [3.0, -1.0] {
        let ids = Tensor::of(DType::I32, &[1], &[id]);
        let error = gather_rows(&table.view(), &ids.view(), &mut out.view_mut()).unwrap_err();
        assert_eq!((error.code, error.found), ("E423", Some(format!("{id}"))));
    }
}

#[test]
fn random_bits_are_those_of_the_documented_formula() {
    // splitmix64 as published, started at a known state: its first outputs for the seed 0.
    assert_eq!(random_bits_at(0, 0), 0xE220_A839_7B1D_CDAF);
    assert_eq!(random_bits_at(0, 1), 0x6E78_9E6A_A1B9_65F4);
    assert_eq!(random_key(0, 0), 0xE220_A839_7B1D_CDAF);
    let key = random_key(1234, 7);
    let (mut narrow, mut wide) = ([0u32; 5], [0u64; 5]);
    random_bits(KernelOptions::native(), 1234, 7, &[0], &[5], &mut ViewMut::of(&mut narrow, &[5]));
    random_bits(KernelOptions::native(), 1234, 7, &[0], &[5], &mut ViewMut::of(&mut wide, &[5]));
    for i in 0..5 {
        assert_eq!(wide[i], random_bits_at(key, i as u64));
        assert_eq!(u64::from(narrow[i]), wide[i] >> 32);
    }
}

#[test]
fn random_bits_look_uniform() {
    let count = 1 << 16;
    let mut bits = vec![0u64; count];
    random_bits(KernelOptions::native(), 42, 0, &[0], &[count as u64], &mut ViewMut::of(&mut bits, &[count]));
    for place in 0..64 {
        let ones = bits.iter().filter(|&&b| b >> place & 1 == 1).count() as f64;
        // Five standard deviations of a fair coin.
        assert!((ones - count as f64 / 2.0).abs() < 5.0 * (count as f64).sqrt() / 2.0, "bit {place}: {ones}");
    }
}
