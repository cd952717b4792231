//! Attention against a loop in f64; gradients against central differences.

use crate::common::*;
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

struct Problem {
    sizes: [usize; 6],
    mask: Option<Tensor>,
    causal: bool,
    window: Option<usize>,
    visible: Option<Tensor>,
    query_offset: usize,
    scale: f64,
}

impl Problem {
    fn random(draw: &mut Draw) -> Self {
        let group = 1 + draw.below(2);
        let key_heads = 1 + draw.below(2);
        let queries = draw.pick(&[1, 2, 5, 70, 200]);
        let query_offset = draw.pick(&[0, 0, 3]);
        // Several blocks of keys, including cases where a causal row sees the first block in part or not at
        // all.
        let query_offset = if draw.chance(4) { draw.pick(&[1000, 1990]) } else { query_offset };
        let keys = draw.pick(&[queries + query_offset, 1, 9, 130, 1100, 2100]);
        let sizes = [1 + draw.below(2), key_heads * group, key_heads, queries, keys, draw.pick(&[1, 4, 16])];
        let mask = draw.chance(2).then(|| {
            let shape = [draw.pick(&[1, sizes[0]]), draw.pick(&[1, sizes[1]]), queries, keys];
            let density = draw.pick(&[2, 3]);
            Tensor::random(draw, DType::Bool, &shape, |d| f64::from(u8::from(!d.chance(density))))
        });
        let window = draw.chance(2).then(|| draw.pick(&[1, 2, 70, 600, usize::MAX]));
        let visible = draw.chance(2).then(|| limits(draw, [sizes[0], queries], keys));
        let scale = 0.3 + 0.2 * draw.unit();
        Problem { sizes, mask, causal: draw.chance(2), window, visible, query_offset, scale }
    }

    fn options(&self) -> AttentionOptions<'_> {
        AttentionOptions {
            mask: self.mask.as_ref().map(Tensor::view),
            causal: self.causal,
            window: self.window,
            visible: self.visible.as_ref().map(Tensor::view),
            places: Places::behind(self.query_offset as isize),
            scale: self.scale,
        }
    }

    fn query_shape(&self) -> [usize; 4] {
        let [batch, heads, _, queries, _, width] = self.sizes;
        [batch, heads, queries, width]
    }

    fn key_shape(&self) -> [usize; 4] {
        let [batch, _, key_heads, _, keys, width] = self.sizes;
        [batch, key_heads, keys, width]
    }

    fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, out: &mut Tensor) {
        let [_, _, _, queries, keys, width] = self.sizes;
        let mut workspace = vec![0xFF; attention_workspace_bytes(q.dtype, queries, keys, width)];
        attention(
            KernelOptions::native(),
            [&q.view(), &k.view(), &v.view()],
            &self.options(),
            &mut out.view_mut(),
            &mut workspace,
        );
    }

    fn right(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Vec<f64> {
        let [batch, heads, key_heads, queries, keys, width] = self.sizes;
        let mut out = Vec::new();
        for b in 0..batch {
            for h in 0..heads {
                let key_head = b * key_heads + h / (heads / key_heads);
                for i in 0..queries {
                    let q_at = ((b * heads + h) * queries + i) * width;
                    let scores: Vec<Option<f64>> = (0..keys)
                        .map(|j| {
                            let masked = self.mask.as_ref().is_some_and(|mask| {
                                let b = if mask.shape[0] == 1 { 0 } else { b };
                                let h = if mask.shape[1] == 1 { 0 } else { h };
                                mask.bits(((b * mask.shape[1] + h) * queries + i) * keys + j) == 0
                            });
                            let k_at = (key_head * keys + j) * width;
                            let score: f64 = (0..width).map(|d| q.get(q_at + d) * k.get(k_at + d)).sum();
                            let position = i + self.query_offset;
                            let behind = self.causal && j > position;
                            let far = self.window.is_some_and(|window| j.abs_diff(position) >= window);
                            let outside = self.visible.as_ref().is_some_and(|visible| {
                                let at = 2 * (b * queries + i);
                                !(visible.get(at)..visible.get(at + 1)).contains(&(j as f64))
                            });
                            (!masked && !behind && !far && !outside).then_some(score * self.scale)
                        })
                        .collect();
                    let max = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> =
                        scores.iter().map(|s| s.map_or(0.0, |s| (s - max).exp())).collect();
                    let sum: f64 = weights.iter().sum();
                    for d in 0..width {
                        let mixed: f64 =
                            (0..keys).map(|j| weights[j] * v.get((key_head * keys + j) * width + d)).sum();
                        out.push(if sum == 0.0 { 0.0 } else { mixed / sum });
                    }
                }
            }
        }
        out
    }
}

/// For each row the first of `keys` keys that it sees, and the one behind the last: documents in a sequence, or anything.
pub fn limits(draw: &mut Draw, [batch, queries]: [usize; 2], keys: usize) -> Tensor {
    let mut values = Vec::new();
    let are_documents = draw.chance(2);
    for _ in 0..batch {
        let (mut start, mut end) = (0, draw.below(keys + 1));
        for row in 0..queries {
            if !are_documents {
                (start, end) = (draw.below(keys + 1), draw.below(keys + 2));
            } else if row * keys > end * queries {
                (start, end) = (end, end + draw.below(keys + 1 - end) + usize::from(end < keys));
            }
            values.extend([start as f64, end.min(keys) as f64]);
        }
    }
    Tensor::of(DType::I32, &[batch, queries, 2], &values)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_matches_a_loop(seed: u64) {
        let mut draw = Draw(seed);
        let problem = Problem::random(&mut draw);
        let dtype = draw.pick(&FLOATS);
        let q = Tensor::random(&mut draw, dtype, &problem.query_shape(), |d| d.unit() * 2.0);
        let k = Tensor::random(&mut draw, dtype, &problem.key_shape(), |d| d.unit() * 2.0);
        let v = Tensor::random(&mut draw, dtype, &problem.key_shape(), |d| d.unit());
        let mut out = Tensor::scattered(&mut draw, dtype, &problem.query_shape());
        problem.forward(&q, &k, &v, &mut out);
        let tolerance = if dtype == DType::F64 { 1e-12 } else { (2.0 * epsilon(dtype)).max(5e-6) };
        for (i, right) in problem.right(&q, &k, &v).into_iter().enumerate() {
            prop_assert!((out.get(i) - right).abs() <= tolerance, "{} at {}: {}, not {}", dtype, i, out.get(i), right);
        }
    }

    #[test]
    fn attention_gradients_match_differences(seed: u64) {
        let mut draw = Draw(seed);
        let problem = Problem::random(&mut draw);
        let f = DType::F64;
        let dense = |draw: &mut Draw, shape: &[usize]| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| draw.unit()).collect();
            Tensor::of(f, shape, &values)
        };
        let q = dense(&mut draw, &problem.query_shape());
        let k = dense(&mut draw, &problem.key_shape());
        let v = dense(&mut draw, &problem.key_shape());
        let dout = Tensor::random(&mut draw, f, &problem.query_shape(), |d| d.unit());
        let backward = |draw: &mut Draw, q: &Tensor, k: &Tensor, v: &Tensor, dout: &Tensor| {
            let dtype = q.dtype;
            let mut gradients = [q, k, v].map(|x| Tensor::scattered(draw, dtype, &x.shape));
            let [_, heads, key_heads, queries, keys, width] = problem.sizes;
            let bytes = attention_backward_workspace_bytes(dtype, heads / key_heads, queries, keys, width);
            let mut workspace = vec![0xFF; bytes];
            let [dq, dk, dv] = &mut gradients;
            attention_backward(KernelOptions::native(), [&q.view(), &k.view(), &v.view(), &dout.view()],
                &problem.options(), [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()], &mut workspace);
            gradients
        };
        let gradients = backward(&mut draw, &q, &k, &v, &dout);
        let objective = |q: &Tensor, k: &Tensor, v: &Tensor| {
            let mut out = Tensor::zeros(f, &problem.query_shape());
            problem.forward(q, k, v, &mut out);
            (0..out.len()).map(|i| out.get(i) * dout.get(i)).sum::<f64>()
        };
        for (which, gradient) in gradients.iter().enumerate() {
            for _ in 0..4 {
                let i = draw.below(gradient.len());
                let shifted = |by: f64| {
                    let mut inputs = [q.clone(), k.clone(), v.clone()];
                    let start = inputs[which].get(i);
                    inputs[which].set(i, start + by);
                    objective(&inputs[0], &inputs[1], &inputs[2])
                };
                let slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
                prop_assert!((gradient.get(i) - slope).abs() < 1e-6 * (1.0 + slope.abs()), "{} {}: {}, not {}", which, i, gradient.get(i), slope);
            }
        }
        let dtype = draw.pick(&[DType::F32, DType::BF16]);
        let narrow = |t: &Tensor| Tensor::of(dtype, &t.shape, &t.values());
        let narrowed = backward(&mut draw, &narrow(&q), &narrow(&k), &narrow(&v), &narrow(&dout));
        for (found, right) in narrowed.iter().zip(&gradients) {
            let largest = right.values().iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for i in 0..right.len() {
                let error = (found.get(i) - right.get(i)).abs();
                prop_assert!(error <= 40.0 * epsilon(dtype) * largest, "{}: {} not {}", dtype, found.get(i), right.get(i));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    /// The machine's instruction for bf16, where it has one, gives the bits of sums in f32 over the same rounded factors.
    #[test]
    fn attention_of_bf16_has_the_bits_of_f32_sums(seed: u64) {
        let mut draw = Draw(seed);
        let mut problem = Problem::random(&mut draw);
        problem.sizes[5] = draw.pick(&[1, 7, 16, 64, 80]);
        let [_, heads, key_heads, queries, keys, width] = problem.sizes;
        // No subnormal numbers, which the instruction takes as zero.
        let number = |d: &mut Draw| (d.unit() * 64.0).round() / 32.0;
        let [q, dout] = [(); 2].map(|()| Tensor::random(&mut draw, DType::BF16, &problem.query_shape(), number));
        let [k, v] = [(); 2].map(|()| Tensor::random(&mut draw, DType::BF16, &problem.key_shape(), number));
        let native = KernelOptions::native();
        let found = [native, native.without_bf16_unit()].map(|options| {
            let mut workspace = vec![0xFF; attention_workspace_bytes(DType::BF16, queries, keys, width)];
            let mut results = [&q, &q, &k, &v].map(|x| Tensor::zeros(DType::BF16, &x.shape));
            let [out, dq, dk, dv] = &mut results;
            attention(options, [&q.view(), &k.view(), &v.view()], &problem.options(), &mut out.view_mut(), &mut workspace);
            let bytes = attention_backward_workspace_bytes(DType::BF16, heads / key_heads, queries, keys, width);
            let mut workspace = vec![0xFF; bytes];
            attention_backward(options, [&q.view(), &k.view(), &v.view(), &dout.view()],
                &problem.options(), [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()], &mut workspace);
            results.map(|x| x.values())
        });
        for (with, without) in found[0].iter().zip(&found[1]) {
            prop_assert!(with.iter().zip(without).all(|(a, b)| a.to_bits() == b.to_bits() || a == b), "{:?}", problem.sizes);
        }
    }
}

#[test]
fn a_number_that_is_none_shows_in_the_result() {
    let q = Tensor::of(DType::F32, &[1, 1, 1, 1], &[f64::NAN]);
    let k = Tensor::of(DType::F32, &[1, 1, 2, 1], &[1.0, 2.0]);
    let mut out = Tensor::zeros(DType::F32, &[1, 1, 1, 1]);
    let mut workspace = vec![0; attention_workspace_bytes(DType::F32, 1, 2, 1)];
    let options = AttentionOptions::new(1.0);
    attention(
        KernelOptions::native(),
        [&q.view(), &k.view(), &k.view()],
        &options,
        &mut out.view_mut(),
        &mut workspace,
    );
    assert!(out.get(0).is_nan());
}

#[test]
fn scratch_does_not_grow_with_the_keys() {
    for dtype in FLOATS {
        let forward = |keys| attention_workspace_bytes(dtype, 1024, keys, 64);
        let backward = |keys| attention_backward_workspace_bytes(dtype, 2, 1024, keys, 64);
        assert_eq!(forward(1 << 10), forward(1 << 15));
        assert_eq!(backward(1 << 11), backward(1 << 15));
        assert!(backward(1 << 10) < backward(1 << 11));
    }
    // 128 of 1024 queries and 512 keys at a time: scores, queries and output, keys and values, three
    // statistics per row.
    let elements = 132 * 528 + 2 * 132 * 64 + 2 * 512 * 64 + 3 * 132;
    assert_eq!(attention_workspace_bytes(DType::F32, 1024, 1 << 15, 64), 4 * elements + 8 * 64);
}

/// Queries in one block and in two, keys in several blocks.
#[test]
fn a_query_has_the_bits_it_has_among_others() {
    let mut draw = Draw(7);
    let (shape, key_shape) = ([1, 2, 300, 24], [1, 1, 1100, 24]);
    let q = Tensor::random(&mut draw, DType::F32, &shape, |d| 3.0 * d.unit());
    let [k, v] = [(); 2].map(|()| Tensor::random(&mut draw, DType::F32, &key_shape, |d| d.unit()));
    let options = AttentionOptions::new(1.0);
    let run = |first: usize, end: usize| {
        let mut out = Tensor::zeros(DType::F32, &[1, 2, end - first, 24]);
        let mut workspace = vec![0; attention_workspace_bytes(DType::F32, end - first, 1100, 24)];
        let q = q.view().slice(2, first, end, 1);
        attention(
            KernelOptions::native(),
            [&q, &k.view(), &v.view()],
            &options,
            &mut out.view_mut(),
            &mut workspace,
        );
        out
    };
    let (whole, parts) = (run(0, 300), [run(0, 7), run(7, 300)]);
    for head in 0..2 {
        for at in 0..300 * 24 {
            let (part, of, at_part) = if at < 7 * 24 { (0, 7, at) } else { (1, 293, at - 7 * 24) };
            assert_eq!(whole.bits(head * 300 * 24 + at), parts[part].bits(head * of * 24 + at_part));
        }
    }
}

#[test]
fn infinite_scores_and_rows_without_keys_across_blocks() {
    let keys = 1200;
    let ones = |shape: &[usize]| Tensor::of(DType::F32, shape, &vec![1.0; shape.iter().product()]);
    let mut k = ones(&[1, 1, keys, 1]);
    let (q, v) = (ones(&[1, 1, 3, 1]), ones(&[1, 1, keys, 1]));
    k.set(1000, f64::INFINITY);
    k.set(5, f64::NEG_INFINITY);
    // The first row sees nothing, the second all but the infinite score, the third that one only.
    let seen = (0..3 * keys).map(|i| [false, i % keys != 1000, i % keys == 1000][i / keys]);
    let mask =
        Tensor::of(DType::Bool, &[1, 1, 3, keys], &seen.map(|x| f64::from(u8::from(x))).collect::<Vec<_>>());
    let options = AttentionOptions { mask: Some(mask.view()), ..AttentionOptions::new(1.0) };
    let mut out = ones(&[1, 1, 3, 1]);
    let mut workspace = vec![0xFF; attention_workspace_bytes(DType::F32, 3, keys, 1)];
    attention(
        KernelOptions::native(),
        [&q.view(), &k.view(), &v.view()],
        &options,
        &mut out.view_mut(),
        &mut workspace,
    );
    assert_eq!(out.get(0), 0.0);
    assert!((out.get(1) - 1.0).abs() < 1e-6);
    assert!(out.get(2).is_nan());
    // A row that sees no keys contributes to no gradient.
    k = v.clone();
    let mut gradients = [&q, &k, &v].map(|x| ones(&x.shape));
    let mut workspace = vec![0xFF; attention_backward_workspace_bytes(DType::F32, 1, 3, keys, 1)];
    let dout = Tensor::of(DType::F32, &[1, 1, 3, 1], &[1e30, 0.0, 0.0]);
    let [dq, dk, dv] = &mut gradients;
    attention_backward(
        KernelOptions::native(),
        [&q.view(), &k.view(), &v.view(), &dout.view()],
        &options,
        [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()],
        &mut workspace,
    );
    assert!(gradients.iter().all(|x| x.values().iter().all(|&x| x == 0.0)));
}

#[test]
fn empty_dimensions() {
    for (sizes, causal) in [[0, 2, 1, 3, 4, 5], [1, 2, 1, 0, 4, 5], [1, 2, 1, 3, 0, 5], [1, 2, 1, 3, 4, 0]]
        .into_iter()
        .flat_map(|sizes| [(sizes, false), (sizes, true)])
    {
        let (mask, window, visible) = (None, None, None);
        let problem = Problem { sizes, mask, causal, window, visible, query_offset: 0, scale: 1.0 };
        let filled = |shape: &[usize]| Tensor::of(DType::BF16, shape, &vec![1.0; shape.iter().product()]);
        let [mut out, q, dout] = [(); 3].map(|()| filled(&problem.query_shape()));
        let [k, v] = [(); 2].map(|()| filled(&problem.key_shape()));
        problem.forward(&q, &k, &v, &mut out);
        let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| filled(&x.shape));
        let mut workspace =
            vec![0xFF; attention_backward_workspace_bytes(DType::BF16, 2, sizes[3], sizes[4], sizes[5])];
        attention_backward(
            KernelOptions::native(),
            [&q.view(), &k.view(), &v.view(), &dout.view()],
            &problem.options(),
            [&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut()],
            &mut workspace,
        );
        // Without keys everything is zero, and without queries the gradients of keys are zero.
        assert!([out, dq, dk, dv].iter().all(|x| x.values().iter().all(|&x| x == 0.0)));
    }
}

/// Queries come in blocks of at most 144, and keys are left out in lanes of 16.
#[test]
fn hidden_blocks_are_not_computed() {
    let length = 144 * 8;
    let causal = AttentionOptions { causal: true, ..AttentionOptions::new(1.0) };
    let pairs = |options: &AttentionOptions<'_>| attention_pairs(length, length, options);
    assert_eq!(pairs(&AttentionOptions::new(1.0)), length * length);
    assert_eq!(pairs(&causal), (1..=8).map(|block| 144 * 144 * block).sum());
    // A window of 144 reaches the block before; the first key of the span is rounded down to a lane.
    let window = AttentionOptions { window: Some(144), ..causal };
    let rounded = |first: usize| first / 16 * 16;
    let span = |block: usize| 144 * (144 * (block + 1) - rounded((144 * block).saturating_sub(143)));
    assert!(pairs(&window).abs_diff((0..8).map(span).sum()) <= 8 * 144 * 16, "{}", pairs(&window));
    assert!(pairs(&window) * 2 < pairs(&causal));
    // Eight documents of one block each, under a causal mask and without.
    let values: Vec<f64> = (0..length)
        .flat_map(|row| [row / 144 * 144, (row / 144 + 1) * 144])
        .map(|position| position as f64)
        .collect();
    let documents = Tensor::of(DType::I32, &[1, length, 2], &values);
    for options in [causal, AttentionOptions::new(1.0)] {
        let options = AttentionOptions { visible: Some(documents.view()), ..options };
        let computed = pairs(&options);
        assert!((8 * 144 * 144..=8 * 144 * 160).contains(&computed), "{computed}");
    }
}

/// Pairs of a query and a key that the kernels of each rank compute, for tokens that are contiguous and in zigzag order.
#[test]
fn zigzag_order_shares_the_work_evenly() {
    let (ranks, sequence) = (4, 8 * 144);
    let pairs = |rank: usize, is_zigzag: bool| -> usize {
        let shard = sequence / ranks;
        let starts = |rank: usize| match is_zigzag {
            true => [rank, 2 * ranks - 1 - rank].map(|chunk| (chunk * shard / 2) as isize),
            false => [(rank * shard) as isize, 0],
        };
        let of = |owner: usize| {
            let runs = if is_zigzag { 2 } else { 1 };
            let places = Places { runs, queries: starts(rank), keys: starts(owner) };
            let options = AttentionOptions { causal: true, places, ..AttentionOptions::new(1.0) };
            attention_pairs(shard, shard, &options)
        };
        (0..ranks).map(of).sum()
    };
    let all = |is_zigzag| [0, 1, 2, 3].map(|rank| pairs(rank, is_zigzag));
    let [contiguous, zigzag] = [false, true].map(all);
    // In blocks of 144 queries and 144 keys.
    assert_eq!(contiguous, [3, 7, 11, 15].map(|blocks| blocks * 144 * 144));
    assert_eq!(zigzag, [9 * 144 * 144; 4]);
}
