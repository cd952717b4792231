//! A model as it is written, and the same model with two parts exchanged for faster ones: a layer norm in primitives for
//! the fused one, a range of ops for a kernel of one's own. Both are timed in alternation and plotted.

mod chart;

use chart::Chart;
use partita::prelude::*;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Added to variances and mean squares.
const EPSILON: f64 = 1e-5;

/// A layer norm over the last dimension, op by op.
fn layer_norm_by_hand(b: &mut GraphBuilder, x: ValueId, weight: ValueId, bias: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let mean = b.reduce_sum(x, &[1])?;
    let mean = b.scale(mean, 1.0 / shape[1] as f64)?;
    let mean = b.broadcast_in_dim(mean, &shape, &[0])?;
    let centred = b.subtract(x, mean)?;
    let normal = scaled_to_one(b, centred)?;
    let weight = b.broadcast_trailing(weight, &shape)?;
    let bias = b.broadcast_trailing(bias, &shape)?;
    let y = b.multiply(normal, weight)?;
    b.add(y, bias)
}

/// `x / sqrt(mean(x^2) + epsilon)` for each row.
fn scaled_to_one(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let squares = b.multiply(x, x)?;
    let mean = b.reduce_sum(squares, &[1])?;
    let mean = b.scale(mean, 1.0 / shape[1] as f64)?;
    let mean = b.offset(mean, EPSILON)?;
    let inverse = b.unary(UnaryKind::Rsqrt, mean)?;
    let inverse = b.broadcast_in_dim(inverse, &shape, &[0])?;
    b.multiply(x, inverse)
}

/// The range of ops: `x + residual`, every row scaled to one, times `weight`. It is written into the model, it is the
/// pattern to look for, and it says what the kernel must compute.
fn add_norm(b: &mut GraphBuilder, operands: &[ValueId]) -> Result<Vec<ValueId>> {
    let sum = b.add(operands[0], operands[1])?;
    let shape = b.shape(sum);
    let normal = scaled_to_one(b, sum)?;
    let weight = b.broadcast_trailing(operands[2], &shape)?;
    Ok(vec![b.multiply(normal, weight)?])
}

/// A linear layer, `norm`, two linear layers with a GELU between them, `tail`, and a linear layer, on `rows` of 8 numbers;
/// `dim` features inside.
fn model(rows: usize, dim: usize) -> Result<Model> {
    let mut cx = Context::new("block", DType::F32, true);
    let x = cx.input("x", DType::F32, &[rows, 8]);
    let target = cx.input("target", DType::F32, &[rows, 1]);
    let x = cx.call("stem", &Linear::new(8, dim), x)?;
    let normal = cx.scope("norm", |cx| {
        let weight = cx.param("weight", &[dim], Init::Ones)?;
        let bias = cx.param("bias", &[dim], Init::Zeros)?;
        layer_norm_by_hand(&mut cx.builder, x, weight, bias)
    })?;
    let h = cx.call("mlp", &Mlp::new(dim, dim / 4), normal)?;
    let h = cx.scope("tail", |cx| {
        let weight = cx.param("weight", &[dim], Init::Ones)?;
        add_norm(&mut cx.builder, &[h, normal, weight])
    })?;
    let y = cx.call("head", &Linear::new(dim, 1), h[0])?;
    let loss = losses::mse(&mut cx, y, target)?;
    cx.finish(vec![("loss".to_string(), loss)])
}

/// [`add_norm`] in one pass over each row.
struct AddNorm;

/// Its gradient in one pass over each row.
struct AddNormGradient;

fn are_rows_of_f32(operands: &[TensorType]) -> bool {
    operands.iter().all(|ty| ty.dtype == DType::F32) && operands[0].rank() == 2 && operands[0].shape[1] > 0
}

/// The sum of `term(0)`, `term(1)`, .. in an order that vectors can take.
fn sum(count: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let whole = count - count % lanes.len();
    for start in (0..whole).step_by(lanes.len()) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += term(start + lane);
        }
    }
    lanes.iter().sum::<f32>() + (whole..count).map(term).sum::<f32>()
}

impl CpuKernel for AddNorm {
    fn supports(&self, operands: &[TensorType], _: &[TensorType]) -> bool {
        are_rows_of_f32(operands)
    }

    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        _: &mut [u8],
    ) -> Result<()> {
        let [x, residual, weight] = [0, 1, 2].map(|i| operands[i].elements::<f32>());
        let (weight, y) = (weight?, results[0].elements::<f32>()?);
        let n = weight.len();
        for ((x, residual), y) in x?.chunks_exact(n).zip(residual?.chunks_exact(n)).zip(y.chunks_exact_mut(n))
        {
            y.iter_mut().zip(x).zip(residual).for_each(|((y, x), residual)| *y = x + residual);
            let inverse = (sum(n, |i| y[i] * y[i]) / n as f32 + EPSILON as f32).sqrt().recip();
            y.iter_mut().zip(weight).for_each(|(y, weight)| *y *= inverse * weight);
        }
        Ok(())
    }
}

impl CpuKernel for AddNormGradient {
    fn supports(&self, operands: &[TensorType], _: &[TensorType]) -> bool {
        are_rows_of_f32(operands)
    }

    /// With `s = x + residual` and `i = 1 / sqrt(mean(s^2) + epsilon)`, the gradient of the result being `g`: that of
    /// `x` and `residual` is `i g w - s i^3 mean(g w s)`, that of the weight is the sum of `g s i` over rows.
    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        _: &mut [u8],
    ) -> Result<()> {
        let [x, residual, weight, g] = [0, 1, 2, 3].map(|i| operands[i].elements::<f32>());
        let (x, residual, weight, g) = (x?, residual?, weight?, g?);
        let [dx, dresidual, dweight] = results else { unreachable!("a gradient for each operand") };
        let (dx, dresidual) = (dx.elements::<f32>()?, dresidual.elements::<f32>()?);
        let dweight = dweight.elements::<f32>()?;
        dweight.fill(0.0);
        let n = weight.len();
        for start in (0..x.len()).step_by(n) {
            let row = start..start + n;
            let (x, residual, g) = (&x[row.clone()], &residual[row.clone()], &g[row.clone()]);
            let (dx, dresidual) = (&mut dx[row.clone()], &mut dresidual[row]);
            // The sum waits in the place of its gradient.
            dx.iter_mut().zip(x).zip(residual).for_each(|((s, x), residual)| *s = x + residual);
            let inverse = (sum(n, |i| dx[i] * dx[i]) / n as f32 + EPSILON as f32).sqrt().recip();
            let pull = sum(n, |i| g[i] * weight[i] * dx[i]) / n as f32 * inverse.powi(3);
            for i in 0..n {
                let s = dx[i];
                dweight[i] += g[i] * s * inverse;
                dx[i] = inverse * g[i] * weight[i] - s * pull;
                dresidual[i] = dx[i];
            }
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let (_, paths) = arguments::arguments(std::env::args(), &[], 1)?;
    let folder = paths.into_iter().next().unwrap_or_else(|| "target/kernel_injection".to_string());
    run(&mut |line| println!("{line}"), Path::new(&folder), 100, [4096, 64])
}

/// The example; `say` gets its lines, `folder` the plots. The model works on `rows` of `dim` features.
pub fn run(
    say: &mut dyn FnMut(&str),
    folder: &Path,
    iterations: usize,
    [rows, dim]: [usize; 2],
) -> std::result::Result<(), Box<dyn Error>> {
    // The op is its decomposition; a kernel is held against it when it is registered.
    let op = CustomOp::new("mine.add_norm", &["x", "residual", "weight"], add_norm);
    let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let example = [f32s(&[3, 40]), f32s(&[3, 40]), f32s(&[40])];
    // A kernel of one's own has one thread, so the comparison has one.
    let mut options = RunnerOptions { workers: Some(1), ..RunnerOptions::default() };
    options.cpu.kernels.register(&op, Arc::new(AddNorm), &[example.to_vec()])?;
    let gradient_example = [&example[..], &[f32s(&[3, 40])]].concat();
    let gradient = op.gradient(&[0], &[0, 1, 2]);
    options.cpu.kernels.register(&gradient, Arc::new(AddNormGradient), &[gradient_example])?;
    let mut registry = Registry::default();
    registry.add_custom(op)?;

    let model = model(rows, dim)?;
    let mesh = Mesh::parse("dp=1", None)?;
    let device = CpuStep { options: options.clone() };
    let plain = Schedule::new(&model, &mesh)?.on(device.clone());
    let mut injected = Schedule::new(&model, &mesh)?.with_registry(registry).on(device);
    let report = injected.verify(|sch| {
        sch.at("norm")?.replace("partita.layer_norm", &[("epsilon", Argument::Float(EPSILON))])?;
        let range = Pattern::from_model(
            &[("x", &[rows, dim]), ("residual", &[rows, dim]), ("weight", &[dim])],
            add_norm,
        )?;
        let found = sch.root().find(&range)?;
        sch.root().replace_subgraphs(&found, "mine.add_norm", &[])?;
        Ok(())
    })?;
    say(&format!("verified: {} tensors agree with one device", report.tensors.len()));
    let mut variants = Vec::new();
    for (name, mut sch) in [("as written", plain), ("kernels injected", injected)] {
        say(&format!("{name}: {} ops in the forward pass", sch.root().forward_ops().len()));
        let built = sch.build()?;
        // What has no kernel was opened when the step was built.
        let composites = built.stages[0].classes[0].graph.nodes.iter().filter_map(|node| match &node.op {
            Op::Composite(composite) => Some(composite.definition.name.as_str()),
            _ => None,
        });
        let names: Vec<&str> = composites.collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        say(&format!("  composites of the step: {names}"));
        variants.push((name, PlannedStep::new(&built, &model, 0, options.clone())?, Vec::new()));
    }

    // In alternation, so that both see the same machine; the first steps warm it up.
    let batch = random_feed(&model, 1, 0.0);
    let mut losses = [0.0; 2];
    for iteration in 0..iterations + 3 {
        for ((_, planned, times), loss) in variants.iter_mut().zip(&mut losses) {
            let began = Instant::now();
            *loss = planned.step(&batch, 1e-3)?.loss;
            let milliseconds = began.elapsed().as_secs_f64() * 1e3;
            if iteration >= 3 {
                times.push(milliseconds);
            }
        }
    }
    if (losses[0] - losses[1]).abs() > 1e-3 * losses[0].abs() {
        return Err(format!("the losses part: {} and {}", losses[0], losses[1]).into());
    }
    say(&format!("\n{:<18} {:>10} {:>10} {:>10}", "milliseconds", "fastest", "median", "slowest"));
    let mut lines = Vec::new();
    for (name, _, times) in variants {
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let [fastest, median, slowest] = [0, sorted.len() / 2, sorted.len() - 1].map(|i| sorted[i]);
        say(&format!("{name:<18} {fastest:>10.3} {median:>10.3} {slowest:>10.3}"));
        lines.push((name.to_string(), times));
    }

    let title = format!("milliseconds of each of {iterations} training steps, {rows} x {dim} on one rank");
    let chart = Chart { title, lines };
    std::fs::create_dir_all(folder)?;
    for (name, bytes) in [("steps.svg", chart.to_svg().into_bytes()), ("steps.png", chart.to_png()?)] {
        std::fs::write(folder.join(name), bytes)?;
    }
    say("\nplotted to steps.svg and steps.png");
    Ok(())
}

#[path = "../support/arguments.rs"]
mod arguments;
