//! Attention to parts of the keys, joined, is attention to all of them; contributions to gradients add up.

use crate::attention::limits;
use crate::common::*;
use partita_base::DType;
use partita_kernels::*;
use proptest::prelude::*;

const BATCH: usize = 2;
const HEADS: usize = 2;

/// A problem with one key head.
struct Problem {
    queries: usize,
    width: usize,
    causal: bool,
    window: Option<usize>,
    visible: Option<Tensor>,
}

impl Problem {
    /// With the positions of the first query and of the first key.
    fn options(&self, first_query: usize, first_key: usize) -> AttentionOptions<'_> {
        AttentionOptions {
            causal: self.causal,
            window: self.window,
            visible: self.visible.as_ref().map(Tensor::view),
            places: Places { runs: 1, queries: [first_query as isize, 0], keys: [first_key as isize, 0] },
            ..AttentionOptions::new(0.4)
        }
    }

    fn query_shape(&self) -> [usize; 4] {
        [BATCH, HEADS, self.queries, self.width]
    }
}

/// Keys from `start` on, of which `count` exist; the tensor has `room` of them.
fn cut(x: &Tensor, start: usize, count: usize, room: usize) -> Tensor {
    let (keys, width) = (x.shape[2], x.shape[3]);
    let value = |b: usize, j: usize, d: usize| match j < count {
        true => x.get((b * keys + start + j) * width + d),
        false => f64::NAN,
    };
    let all = (0..BATCH).flat_map(|b| (0..room).flat_map(move |j| (0..width).map(move |d| (b, j, d))));
    let values: Vec<f64> = all.map(|(b, j, d)| value(b, j, d)).collect();
    Tensor::of(x.dtype, &[BATCH, 1, room, width], &values)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_the_keys_make_up_all_of_them(seed: u64) {
        let draw = &mut Draw(seed);
        let queries = draw.pick(&[1, 3, 70, 150]);
        let keys = draw.pick(&[2, 9, 130, 1100]);
        let dtype = draw.pick(&[DType::F64, DType::F32, DType::BF16]);
        // The position of the first query among the keys.
        let first = draw.below(keys);
        let window = draw.chance(2).then(|| draw.pick(&[1, 60, 500]));
        let visible = draw.chance(2).then(|| limits(draw, [BATCH, queries], keys));
        let problem =
            Problem { queries, width: draw.pick(&[1, 4, 16]), causal: draw.chance(2), window, visible };
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let tensor = |draw: &mut Draw, shape: &[usize]| Tensor::random(draw, dtype, shape, |d| 2.0 * d.unit());
        let [q, dout] = [(); 2].map(|()| tensor(draw, &problem.query_shape()));
        let key_shape = [BATCH, 1, keys, problem.width];
        let [k, v] = [(); 2].map(|()| {
            let values = tensor(draw, &key_shape).values();
            Tensor::of(dtype, &key_shape, &values)
        });
        let kernels = KernelOptions::native();

        // All keys at once.
        let mut out = Tensor::zeros(dtype, &problem.query_shape());
        let options = problem.options(first, 0);
        let mut workspace = vec![0xFF; attention_workspace_bytes(dtype, queries, keys, problem.width)];
        attention(kernels, [&q.view(), &k.view(), &v.view()], &options, &mut out.view_mut(), &mut workspace);
        let mut whole = [&q, &k, &v].map(|x| Tensor::zeros(dtype, &x.shape));
        let bytes = attention_backward_workspace_bytes(dtype, HEADS, queries, keys, problem.width);
        let mut workspace = vec![0xFF; bytes];
        let [dq, dk, dv] = &mut whole;
        attention_backward(kernels, [&q.view(), &k.view(), &v.view(), &dout.view()],
            &options, [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()], &mut workspace);

        // In three parts, the last ones first, padded with numbers that are none.
        let room = keys.div_ceil(3);
        let cuts: Vec<(usize, usize)> =
            [2, 1, 0].map(|part| (part * room).min(keys)).map(|start| (start, room.min(keys - start))).to_vec();
        let rows = [BATCH, HEADS, queries];
        let count = BATCH * HEADS * queries;
        let (mut joined, mut lse) = (vec![0.0; count * problem.width], vec![f64::NEG_INFINITY; count]);
        for &(start, there) in &cuts {
            let [k, v] = [&k, &v].map(|x| cut(x, start, there, room));
            let mut part = Tensor::scattered(draw, wide, &problem.query_shape());
            let mut own = Tensor::scattered(draw, wide, &rows);
            let options = problem.options(first, start);
            let mut workspace = vec![0xFF; attention_workspace_bytes(dtype, queries, room, problem.width)];
            attention_part(kernels, [&q.view(), &k.view(), &v.view()], there, &options,
                [&mut part.view_mut(), &mut own.view_mut()], &mut workspace);
            for (row, lse) in lse.iter_mut().enumerate() {
                let most = lse.max(own.get(row));
                let (before, now) = ((*lse - most).exp(), (own.get(row) - most).exp());
                for d in 0..problem.width {
                    let at = row * problem.width + d;
                    joined[at] = (joined[at] * before + part.get(at) * now) / (before + now);
                }
                *lse = most + (before + now).ln();
            }
        }
        let tolerance = 40.0 * epsilon(dtype).max(1e-14);
        for (at, &joined) in joined.iter().enumerate() {
            let right = out.get(at);
            prop_assert!((joined - right).abs() <= tolerance, "{} at {}: {}, not {}", dtype, at, joined, right);
        }

        // The gradients, from the statistics of all keys.
        let delta: Vec<f64> = (0..count)
            .map(|row| {
                let of = |d: usize| dout.get(row * problem.width + d) * joined[row * problem.width + d];
                (0..problem.width).map(of).sum()
            })
            .collect();
        let [lse, delta] = [&lse, &delta].map(|values| Tensor::of(wide, &rows, values));
        let mut sums = [&q, &k, &v].map(|x| vec![0.0; x.len()]);
        for &(start, there) in &cuts {
            let [k, v] = [&k, &v].map(|x| cut(x, start, there, room));
            let mut parts = [&q, &k, &v].map(|x| Tensor::scattered(draw, wide, &x.shape));
            let options = problem.options(first, start);
            let width = problem.width;
            let bytes = attention_part_backward_workspace_bytes(dtype, HEADS, queries, room, width);
            let mut workspace = vec![0xFF; bytes];
            let [dq, dk, dv] = &mut parts;
            let views = [&q, &k, &v, &lse, &delta, &dout].map(Tensor::view);
            attention_part_backward(kernels, views.each_ref(), there, &options,
                [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()], &mut workspace);
            (0..parts[0].len()).for_each(|at| sums[0][at] += parts[0].get(at));
            for which in [1, 2] {
                for at in 0..parts[which].len() {
                    let (row, d) = (at / width, at % width);
                    let (b, j) = (row / room, row % room);
                    match j < there {
                        true => sums[which][(b * keys + start + j) * width + d] += parts[which].get(at),
                        false => prop_assert!(parts[which].get(at) == 0.0, "padding has no gradient"),
                    }
                }
            }
        }
        for (sums, right) in sums.iter().zip(&whole) {
            let largest = right.values().iter().fold(1.0f64, |most, x| most.max(x.abs()));
            for (at, &sum) in sums.iter().enumerate() {
                let error = (sum - right.get(at)).abs();
                // Sums of up to 1,100 terms, in another order.
                prop_assert!(error <= 8.0 * tolerance * largest, "{} at {}: {}, not {}", dtype, at, sum, right.get(at));
            }
        }
    }
}

/// Two runs of queries and keys give what they give one by one, joined by hand.
#[test]
fn runs_of_positions_are_seen_where_they_are() {
    let (length, width) = (150, 8);
    let draw = &mut Draw(11);
    let tensor = |draw: &mut Draw, heads: usize| {
        Tensor::random(draw, DType::F64, &[1, heads, 2 * length, width], |d| d.unit())
    };
    let (q, dout) = (tensor(draw, 2), tensor(draw, 2));
    let [k, v] = [(); 2].map(|()| {
        let values = tensor(draw, 1).values();
        Tensor::of(DType::F64, &[1, 1, 2 * length, width], &values)
    });
    let kernels = KernelOptions::native();
    // Of eight chunks, queries are the third and the sixth, keys the second and the seventh.
    let starts = [[2, 5], [1, 6]].map(|of| of.map(|chunk: usize| (chunk * length) as isize));
    let limits: Vec<f64> = (0..2 * length).flat_map(|row| [(row * 3) as f64, 1e6]).collect();
    let limits = Tensor::of(DType::I32, &[1, 2 * length, 2], &limits);
    for (window, is_limited) in [(None, false), (Some(400), false), (None, true)] {
        let options = AttentionOptions { causal: true, window, ..AttentionOptions::new(0.3) };
        let visible = is_limited.then(|| limits.view());
        let places = Places { runs: 2, queries: starts[0], keys: starts[1] };
        let rows = [1, 2, 2 * length];
        let mut out = Tensor::zeros(DType::F64, &q.shape);
        let mut lse = Tensor::zeros(DType::F64, &rows);
        let mut workspace = vec![0xFF; attention_workspace_bytes(DType::F64, 2 * length, 2 * length, width)];
        let whole = AttentionOptions { places, visible, ..options };
        attention_part(
            kernels,
            [&q.view(), &k.view(), &v.view()],
            2 * length,
            &whole,
            [&mut out.view_mut(), &mut lse.view_mut()],
            &mut workspace,
        );
        let delta = Tensor::zeros(DType::F64, &rows);
        let bytes = attention_part_backward_workspace_bytes(DType::F64, 2, 2 * length, 2 * length, width);
        let mut workspace = vec![0xFF; bytes];
        let mut gradients = [&q, &k, &v].map(|x| Tensor::zeros(DType::F64, &x.shape));
        let [dq, dk, dv] = &mut gradients;
        attention_part_backward(
            kernels,
            [&q.view(), &k.view(), &v.view(), &lse.view(), &delta.view(), &dout.view()],
            2 * length,
            &whole,
            [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()],
            &mut workspace,
        );
        let mut sums = [&q, &k, &v].map(|x| vec![0.0; x.len()]);
        let mut right = vec![0.0; q.len()];
        for run in 0..2 {
            // Weights of both parts, by the logarithms of their sums.
            for of_keys in 0..2 {
                let half = |x: &Tensor, run: usize| {
                    let heads = x.shape[1];
                    let at = |h: usize, i: usize| (h * 2 * length + run * length + i) * width;
                    let all = (0..heads).flat_map(|h| (0..length).map(move |i| (h, i)));
                    let values: Vec<f64> = all
                        .flat_map(|(h, i)| (0..width).map(move |d| at(h, i) + d))
                        .map(|i| x.get(i))
                        .collect();
                    Tensor::of(DType::F64, &[1, heads, length, width], &values)
                };
                let [own_q, own_dout] = [&q, &dout].map(|x| half(x, run));
                let [own_k, own_v] = [&k, &v].map(|x| half(x, of_keys));
                let own_rows: Vec<f64> = (0..2)
                    .flat_map(|h| (0..length).map(move |i| h * 2 * length + run * length + i))
                    .map(|i| lse.get(i))
                    .collect();
                let own_lse = Tensor::of(DType::F64, &[1, 2, length], &own_rows);
                let own_limits: Vec<f64> =
                    (0..2 * length).map(|i| limits.get(2 * run * length + i)).collect();
                let own_limits = Tensor::of(DType::I32, &[1, length, 2], &own_limits);
                let places = Places { runs: 1, queries: [starts[0][run], 0], keys: [starts[1][of_keys], 0] };
                let visible = is_limited.then(|| own_limits.view());
                let options = AttentionOptions { places, visible, ..options };
                let mut part = Tensor::zeros(DType::F64, &own_q.shape);
                let mut part_lse = Tensor::zeros(DType::F64, &[1, 2, length]);
                attention_part(
                    kernels,
                    [&own_q.view(), &own_k.view(), &own_v.view()],
                    length,
                    &options,
                    [&mut part.view_mut(), &mut part_lse.view_mut()],
                    &mut workspace,
                );
                let zeros = Tensor::zeros(DType::F64, &[1, 2, length]);
                let mut own = [&own_q, &own_k, &own_v].map(|x| Tensor::zeros(DType::F64, &x.shape));
                let [dq, dk, dv] = &mut own;
                attention_part_backward(
                    kernels,
                    [
                        &own_q.view(),
                        &own_k.view(),
                        &own_v.view(),
                        &own_lse.view(),
                        &zeros.view(),
                        &own_dout.view(),
                    ],
                    length,
                    &options,
                    [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()],
                    &mut workspace,
                );
                for (which, own) in own.iter().enumerate() {
                    let of = if which == 0 { run } else { of_keys };
                    for at in 0..own.len() {
                        let (h, rest) = (at / (length * width), at % (length * width));
                        sums[which][(h * 2 + of) * length * width + rest] += own.get(at);
                    }
                }
                for at in 0..part.len() {
                    let (row, rest) = (at / width, at % (length * width));
                    let share = match part_lse.get(row) < -1e200 {
                        true => 0.0,
                        false => (part_lse.get(row) - own_lse.get(row)).exp(),
                    };
                    right[(at / (length * width) * 2 + run) * length * width + rest] += share * part.get(at);
                }
            }
        }
        let close = |found: &Tensor, right: &[f64]| {
            (0..found.len()).all(|at| (found.get(at) - right[at]).abs() < 1e-11)
        };
        assert!(close(&out, &right), "{window:?} {is_limited}");
        assert!(
            gradients.iter().zip(&sums).all(|(found, right)| close(found, right)),
            "{window:?} {is_limited}"
        );
    }
}
