//! Times the kernels at the sizes of a small language model's training step, on one thread:
//! `cargo run --release -p partita-kernels --example speed`
use partita_kernels::KernelOptions;
use std::time::Instant;

use partita_base::DType;
use partita_kernels::Binary::{Add, Div, Mul, Sub};
use partita_kernels::*;

/// The shortest time of a few repetitions, and the bytes or operations per second that it means.
fn time(name: &str, work: f64, unit: &str, mut kernel: impl FnMut()) {
    let mut best_seconds = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.15 {
        let start = Instant::now();
        kernel();
        best_seconds = best_seconds.min(start.elapsed().as_secs_f64());
    }
    println!("{name:<40} {:>9.1} us {:>8.2} {unit}", best_seconds * 1e6, work / best_seconds / 1e9);
}

fn main() {
    let (rows, d) = (2048usize, 384usize);
    let count = rows * d;
    let x: Vec<f32> = (0..count).map(|i| ((i * 37) % 1001) as f32 / 250.0 - 2.0).collect();
    let y: Vec<f32> = x.iter().rev().copied().collect();
    let mut out = vec![0f32; count];
    let shape = [rows, d];
    let (a, b) = (View::of(&x, &shape), View::of(&y, &shape));
    let bias = View::of(&x, &[d]);
    let floats = count as f64;
    macro_rules! out {
        () => {
            &mut ViewMut::of(&mut out, &shape)
        };
    }

    for op in [Unary::Exp, Unary::Tanh, Unary::Erf, Unary::Log, Unary::Logistic, Unary::Rsqrt] {
        time(&format!("{op:?}"), floats, "G/s", || unary(KernelOptions::native(), op, &a, out!()));
    }
    time("add", floats, "G/s", || binary(KernelOptions::native(), Add, &a, &b, out!()));
    time("add bias", floats, "G/s", || {
        binary(KernelOptions::native(), Add, &a, &bias.broadcast_to(&shape), out!())
    });
    time("maximum", floats, "G/s", || binary(KernelOptions::native(), Binary::Max, &a, &b, out!()));
    for kind in [Activation::Gelu, Activation::GeluTanh] {
        time(&format!("{kind:?}"), floats, "G/s", || activation(KernelOptions::native(), kind, &a, out!()));
        time(&format!("{kind:?} backward"), floats, "G/s", || {
            activation_backward(KernelOptions::native(), kind, &a, &b, out!())
        });
    }
    time("copy", floats, "G/s", || copy(&a, out!()));
    time("copy transposed", floats, "G/s", || {
        copy(&a.permute(&[1, 0]), &mut ViewMut::of(&mut out, &[d, rows]))
    });
    let zero = Scalar::new(0f32);
    let mut sums = vec![0f32; rows];
    time("sum of rows", floats, "G/s", || {
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &a,
            &[false, true],
            &zero,
            &mut ViewMut::of(&mut sums, &[rows]),
        );
    });
    time("sum of columns", floats, "G/s", || {
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &a,
            &[true, false],
            &zero,
            &mut ViewMut::of(&mut sums, &[d]),
        );
    });

    // One AdamW update: parameters, gradient and two moments.
    let registers = vec![DType::F32; 17];
    let constant =
        |value: f32, out| EwInstr { op: ElementwiseOp::Constant(Scalar::new(value)), args: vec![], out };
    let two = |op, a, b, out| EwInstr { op: ElementwiseOp::Binary(op), args: vec![a, b], out };
    let instructions = vec![
        constant(0.9, 4),
        constant(0.1, 5),
        constant(1e-8, 6),
        constant(1e-3, 7),
        two(Mul, 2, 4, 8),
        two(Mul, 1, 5, 9),
        two(Add, 8, 9, 10),
        two(Mul, 3, 4, 11),
        two(Mul, 1, 1, 12),
        two(Mul, 12, 5, 12 + 1),
        two(Add, 11, 13, 14),
        EwInstr { op: ElementwiseOp::Unary(Unary::Sqrt), args: vec![14], out: 15 },
        two(Add, 15, 6, 16),
    ];
    let mut registers = registers;
    let mut instructions = instructions;
    for (i, (op, a, b)) in [(Div, 10, 16), (Mul, 17, 7), (Sub, 0, 18)].into_iter().enumerate() {
        instructions.push(two(op, a, b, 17 + i));
        registers.push(DType::F32);
    }
    let program = ElementwiseProgram::new(registers, 4, instructions, vec![19, 10, 14]).expect("well formed");
    let mut workspace = vec![0u8; elementwise_workspace_bytes(&program)];
    let (mut m, mut v) = (vec![0f32; count], vec![0f32; count]);
    time("fused AdamW", floats, "G/s", || {
        let outs =
            &mut [ViewMut::of(&mut out, &shape), ViewMut::of(&mut m, &shape), ViewMut::of(&mut v, &shape)];
        run_elementwise(KernelOptions::native(), &program, &[a, b, a, b], outs, &shape, &mut workspace);
    });

    let mut workspace = vec![0u8; row_workspace_bytes(DType::F32, d)];
    time("softmax", floats, "G/s", || softmax(KernelOptions::native(), &a, out!(), &mut workspace));
    time("softmax backward", floats, "G/s", || softmax_backward(KernelOptions::native(), &a, &b, out!()));
    time("layer norm", floats, "G/s", || {
        layer_norm(KernelOptions::native(), &a, Some(&bias), Some(&bias), 1e-5, out!())
    });
    let mut workspace = vec![0u8; norm_backward_workspace_bytes(DType::F32, rows, d)];
    let (mut dw, mut db) = (vec![0f32; d], vec![0f32; d]);
    time("layer norm backward", floats, "G/s", || {
        let (dw, db) = (&mut ViewMut::of(&mut dw, &[d]), &mut ViewMut::of(&mut db, &[d]));
        layer_norm_backward(KernelOptions::native(), &a, Some(&bias), &b, 1e-5, out!(), &mut workspace);
        let sums = std::iter::once((rows, &mut workspace[..]));
        norm_parameter_gradients(KernelOptions::native(), sums, DType::F32, d, Some(dw), Some(db));
    });
    let labels = vec![3i64; rows];
    let mut losses = vec![0f32; rows];
    time("cross entropy", floats, "G/s", || {
        cross_entropy(
            KernelOptions::native(),
            &a,
            &View::of(&labels, &[rows]),
            -1,
            &mut ViewMut::of(&mut losses, &[rows]),
        )
        .expect("classes");
    });
    let mut workspace = vec![0u8; row_workspace_bytes(DType::F32, d)];
    time("cross entropy backward", floats, "G/s", || {
        let (labels, dloss) = (View::of(&labels, &[rows]), View::of(&x, &[rows]));
        cross_entropy_backward(KernelOptions::native(), &a, &labels, -1, &dloss, out!(), &mut workspace)
            .expect("classes");
    });

    let n = 4 * d;
    let weight = vec![0.5f32; d * n];
    let mut wide = vec![0f32; rows * n];
    let flops = 2.0 * (rows * d * n) as f64;
    time("matmul x w", flops, "GFlop/s", || {
        matmul(
            KernelOptions::native(),
            &a,
            &View::of(&weight, &[d, n]),
            &mut ViewMut::of(&mut wide, &[rows, n]),
            false,
            &mut [],
        );
    });
    time("matmul x w^T", flops, "GFlop/s", || {
        let weight = View::of(&weight, &[n, d]).permute(&[1, 0]);
        matmul(KernelOptions::native(), &a, &weight, &mut ViewMut::of(&mut wide, &[rows, n]), false, &mut []);
    });
    let mut dweight = vec![0f32; d * n];
    time("matmul x^T dy", flops, "GFlop/s", || {
        let dy = View::of(&wide, &[rows, n]);
        matmul(
            KernelOptions::native(),
            &a.permute(&[1, 0]),
            &dy,
            &mut ViewMut::of(&mut dweight, &[d, n]),
            false,
            &mut [],
        );
    });

    let halves =
        |from: &[f32]| -> Vec<half::bf16> { from.iter().map(|&x| half::bf16::from_f32(x)).collect() };
    let (half_x, half_weight, half_wide) = (halves(&x), halves(&weight), halves(&wide));
    let mut half_out = half_wide.clone();
    let mut workspace = vec![0u8; matmul_workspace_bytes(DType::BF16, rows, d, n)];
    let (a16, dy16) = (View::of(&half_x, &shape), View::of(&half_wide, &[rows, n]));
    let by_columns = View::of(&half_weight, &[d, n]);
    let by_rows = View::of(&half_weight, &[n, d]).permute(&[1, 0]);
    for (name, lhs, rhs, sizes) in [
        ("x w", a16, by_columns, [rows, n]),
        ("x w^T", a16, by_rows, [rows, n]),
        ("x^T dy", a16.permute(&[1, 0]), dy16, [d, n]),
    ] {
        time(&format!("matmul {name} in bf16"), flops, "GFlop/s", || {
            let out = &mut ViewMut::of(&mut half_out[..sizes[0] * n], &sizes);
            matmul(KernelOptions::native(), &lhs, &rhs, out, false, &mut workspace);
        });
    }

    // Heads interleaved in memory, as a projection (matmul) writes them.
    attention_of(&x, &y, "f32");
    let narrow = |x: &[f32]| x.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>();
    attention_of(&narrow(&x), &narrow(&y), "bf16");
    let mut bits = vec![0u32; count];
    time("random bits", floats, "G/s", || {
        random_bits(
            KernelOptions::native(),
            1,
            2,
            &[0, 0],
            &[rows as u64, d as u64],
            &mut ViewMut::of(&mut bits, &shape),
        );
    });
}

/// Attention forward and backward over 8 rows of 256 tokens with 6 heads of 64 features.
fn attention_of<T: Element>(x: &[T], y: &[T], dtype: &str) {
    let (batch, heads, length, width) = (8, 6, 256, 64);
    let view = |x| View::of::<T>(x, &[batch, length, heads, width]).permute(&[0, 2, 1, 3]);
    let flops = 4.0 * (batch * heads * length * length * width) as f64;
    let mut results = [(); 3].map(|()| vec![T::default(); x.len()]);
    for causal in [false, true] {
        let options = AttentionOptions { causal, ..AttentionOptions::new(0.125) };
        let mut workspace = vec![0u8; attention_backward_workspace_bytes(T::DTYPE, 1, length, length, width)];
        let done = if causal { flops / 2.0 } else { flops };
        time(&format!("attention of {dtype}, causal {causal}"), done, "GFlop/s", || {
            let mut out = ViewMut::of(&mut results[0], &[batch, length, heads, width]).permute(&[0, 2, 1, 3]);
            attention(
                KernelOptions::native(),
                [&view(x), &view(y), &view(x)],
                &options,
                &mut out,
                &mut workspace,
            );
        });
        time(&format!("attention backward of {dtype}, causal {causal}"), 2.5 * done, "GFlop/s", || {
            let [mut dq, mut dk, mut dv] = results
                .each_mut()
                .map(|x| ViewMut::of(x, &[batch, length, heads, width]).permute(&[0, 2, 1, 3]));
            attention_backward(
                KernelOptions::native(),
                [&view(x), &view(y), &view(x), &view(y)],
                &options,
                [&mut dq, &mut dk, &mut dv],
                &mut workspace,
            );
        });
    }
}
