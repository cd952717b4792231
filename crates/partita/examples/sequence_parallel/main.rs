//! Sequence parallelism on two toys: PyTorch's, as declared styles with AdamW on three ranks, and Slapo's, call by call.

use partita::prelude::*;

/// Two linear layers with a ReLU between them, on `x` of this shape.
fn toy(shape: &[usize], names: [&str; 2], hidden: usize, out: usize) -> Result<Model> {
    let mut cx = Context::new("toy", DType::F32, true);
    let features = shape[shape.len() - 1];
    let x = cx.input("x", DType::F32, shape);
    let h = cx.call(names[0], &Linear::new(features, hidden), x)?;
    let h = cx.call("relu", &ReLU, h)?;
    let y = cx.call(names[1], &Linear::new(hidden, out), h)?;
    let target_shape = cx.shape(y);
    let target = cx.input("target", DType::F32, &target_shape);
    let loss = losses::mse(&mut cx, y, target)?;
    cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)])
}

fn main() -> Result<()> {
    arguments::arguments(std::env::args(), &[], 0).and_then(|_| run(&mut |line| println!("{line}")))
}

/// The example; `say` gets its lines.
pub fn run(say: &mut dyn FnMut(&str)) -> Result<()> {
    // 20 rows of 10 features, 32 hidden ones, 5 out: none of them is a multiple of three.
    let model = toy(&[20, 10], ["in_proj", "out_proj"], 32, 5)?;
    let mut sch = Schedule::new(&model, &Mesh::parse("tp=3", None)?)?.on(CpuStep::default());
    sch.options().step = StepOptions::new(Optimizer::adamw());
    let report = sch.verify(|sch| {
        sch.at("in_proj")?.style("colwise(input=shard(0))")?;
        sch.at("out_proj")?.style("rowwise(output=shard(0))")?;
        Ok(())
    })?;
    say("the toy of PyTorch, 10-32-5 on three ranks, AdamW");
    say(&format!("verified: {} tensors agree with one device", report.tensors.len()));
    let built = sch.build()?;
    for input in
        ["x", "in_proj.weight", "in_proj.bias", "out_proj.weight", "optimizer.exp_avg.out_proj.weight"]
    {
        let shapes: Vec<String> =
            built.local_shapes(input).into_iter().flatten().map(|shape| format!("{shape:?}")).collect();
        say(&format!("  {input:<34} {}", shapes.join(" ")));
    }
    say(&format!("collectives of a rank\n{}", counts_of_graph(&built.local(0)?)));
    let mut planned = PlannedStep::new(&built, &model, 0, RunnerOptions::default())?;
    let batch = random_feed(&model, 1, 0.0);
    for step in 1..=5 {
        say(&format!("step {step}  loss {:.4}", planned.step(&batch, 0.01)?.loss));
    }

    // Sequences of 16 in pieces; each exchange is where its line says.
    let model = toy(&[3, 16, 30], ["linear1", "linear2"], 30, 30)?;
    let mut sch = Schedule::new(&model, &Mesh::parse("tp=2", None)?)?.on(CpuStep::default());
    sch.options().input_gradient = true;
    let report = sch.verify(|sch| {
        sch.root().shard("input", 1)?;
        sch.at("linear1")?.shard("weight", 0)?.shard("bias", 0)?.sync_along("fwd_pre", "all_gather", 1)?;
        sch.at("linear2")?.shard("weight", 1)?.sync_along("fwd_post", "reduce_scatter", 1)?;
        sch.at("linear2")?.sync_along("fwd_post", "all_gather", 1)?;
        Ok(())
    })?;
    say("\nthe toy of Slapo, 30-30-30 on two ranks");
    say(&format!("verified: {} tensors agree with one device", report.tensors.len()));
    say("collectives of a rank");
    say(counts_of_graph(&sch.build()?.local(0)?).to_string().trim_end());
    // The gather's way back sums the gradient of the input already: once more would double it.
    match sch.at("linear1")?.sync("bwd_post", "all_reduce") {
        Ok(_) => Err(Diagnostic::new("E233", "a doubled collective was accepted")),
        Err(refused) => {
            say(&format!("one exchange too many is refused, {}:\n{}", refused.code, refused.message));
            Ok(())
        }
    }
}

#[path = "../support/arguments.rs"]
mod arguments;
