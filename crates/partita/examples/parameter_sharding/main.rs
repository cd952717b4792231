//! An MLP trained five steps with its parameters and its optimizer states sharded over a mesh.

use partita::prelude::*;

/// Rows of a batch; the norm has a weight for each, so no other number would do.
const BATCH: usize = 32;
/// Features in, hidden and out.
const SIZES: [usize; 3] = [128, 64, 16];

/// A norm over all of `x[rows, features]`, as PyTorch's `LayerNorm([rows, features])`.
#[derive(Debug)]
struct MatrixNorm {
    rows: usize,
    features: usize,
}

impl Module for MatrixNorm {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let count = self.rows * self.features;
        let flat = cx.builder.reshape(x, &[1, count])?;
        let y = LayerNorm::new(count).forward(cx, flat)?;
        cx.builder.reshape(y, &[self.rows, self.features])
    }
}

/// `linear1`, `norm`, ReLU, `linear2`.
fn mlp() -> Result<Model> {
    let mut cx = Context::new("mlp", DType::F32, true);
    let x = cx.input("x", DType::F32, &[BATCH, SIZES[0]]);
    let target = cx.input("target", DType::F32, &[BATCH, SIZES[2]]);
    let h = cx.call("linear1", &Linear::new(SIZES[0], SIZES[1]), x)?;
    let h = cx.call("norm", &MatrixNorm { rows: BATCH, features: SIZES[1] }, h)?;
    let h = cx.call("relu", &ReLU, h)?;
    let y = cx.call("linear2", &Linear::new(SIZES[1], SIZES[2]), h)?;
    let loss = losses::mse(&mut cx, y, target)?;
    cx.finish(vec![("loss".to_string(), loss)])
}

/// Five steps of AdamW: the losses.
fn train(built: &Built, model: &Model) -> Result<Vec<f64>> {
    let mut planned = PlannedStep::new(built, model, 0, RunnerOptions::default())?;
    let batch = random_feed(model, 1, 0.0);
    (0..5).map(|_| Ok(planned.step(&batch, 0.003)?.loss)).collect()
}

fn main() -> Result<()> {
    arguments::arguments(std::env::args(), &[], 0).and_then(|_| run(&mut |line| println!("{line}")))
}

/// The example; `say` gets its lines.
pub fn run(say: &mut dyn FnMut(&str)) -> Result<()> {
    let model = mlp()?;
    let alone = Schedule::new(&model, &Mesh::parse("dp=1", None)?)?.on(CpuStep::default());
    let expected = train(&alone.build()?, &model)?;

    let mut sch = Schedule::new(&model, &Mesh::parse("fsdp=4", None)?)?.on(CpuStep::default());
    let report = sch.verify(|sch| sch.at("**")?.style("fsdp").map(|_| ()))?;
    say(&format!("verified: {} tensors agree with one device", report.tensors.len()));

    let built = sch.build()?;
    say(&format!(
        "\n{:<15} {:<10} parameter, exp_avg and exp_avg_sq on each of four ranks",
        "parameter", "whole"
    ));
    for (name, spec) in &model.params {
        let shapes = built.local_shapes(name);
        for slot in Optimizer::adamw().slots() {
            if built.local_shapes(&format!("optimizer.{slot}.{name}")) != shapes {
                return Err(Diagnostic::new(
                    "E253",
                    format!("`{slot}` of `{name}` is not cut as the parameter"),
                ));
            }
        }
        let shown: Vec<String> = shapes.iter().flatten().map(|shape| format!("{shape:?}")).collect();
        say(&format!("{name:<15} {:<10} {}", format!("{:?}", spec.ty.shape), shown.join(" ")));
    }
    say(&format!("\ncollectives of a rank\n{}", counts_of_graph(&built.local(0)?)));

    let losses = train(&built, &model)?;
    say("step  four ranks  one device");
    for (step, (sharded, whole)) in losses.iter().zip(&expected).enumerate() {
        say(&format!("{:>4} {sharded:>11.5} {whole:>11.5}", step + 1));
        if (sharded - whole).abs() > 1e-4 * whole.abs() {
            return Err(Diagnostic::new("E253", format!("step {} differs from one device", step + 1)));
        }
    }
    Ok(())
}

#[path = "../support/arguments.rs"]
mod arguments;
