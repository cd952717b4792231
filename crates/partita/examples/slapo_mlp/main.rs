//! The tutorial of Slapo, end to end: shard, synchronise, decompose, trace, find, fuse, build, verify, train.

use partita::prelude::*;

/// Features of the model, and of its hidden layer twice as many.
const DIM: usize = 32;

/// Two linear layers with a GELU between them, on `[batch, sequence, features]`.
fn mlp() -> Result<Model> {
    let mut cx = Context::new("mlp", DType::F32, true);
    let x = cx.input("x", DType::F32, &[8, 16, DIM]);
    let target = cx.input("target", DType::F32, &[8, 16, DIM]);
    let h = cx.call("linear1", &Linear::new(DIM, 2 * DIM), x)?;
    let h = cx.call("activation", &GELU::default(), h)?;
    let y = cx.call("linear2", &Linear::new(2 * DIM, DIM), h)?;
    let loss = losses::mse(&mut cx, y, target)?;
    cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)])
}

fn main() -> Result<()> {
    arguments::arguments(std::env::args(), &[], 0).and_then(|_| run(&mut |line| println!("{line}")))
}

/// The example; `say` gets its lines.
pub fn run(say: &mut dyn FnMut(&str)) -> Result<()> {
    let model = mlp()?;
    let mesh = Mesh::parse("tp=2", None)?;
    let mut sch = Schedule::new(&model, &mesh)?.on(CpuStep::default());
    // So that there is a gradient to sum behind `linear1`, as inside a larger model.
    sch.options().input_gradient = true;
    say(&format!("before\n{sch}"));

    // Megatron's pair: columns, then rows.
    let report = sch.verify(|sch| {
        sch.at("linear1")?.shard("weight", 0)?.shard("bias", 0)?;
        sch.at("linear2")?.shard("weight", 1)?;
        sch.at("linear2")?.sync("fwd_post", "all_reduce")?;
        sch.at("linear1")?.sync("bwd_post", "all_reduce")?;
        Ok(())
    })?;
    say(&format!("sharded: {} tensors agree with one device", report.tensors.len()));

    // The bias and the activation become one kernel.
    let report = sch.verify(|sch| {
        sch.at("linear1")?.decompose()?;
        sch.root().trace(true)?;
        let bias_gelu = Pattern::parse("gelu(x + bias)")?;
        let found = sch.root().find(&bias_gelu)?;
        sch.root().fuse(&found, "tutorial.bias_gelu", Some("cpu"))?;
        Ok(())
    })?;
    say(&format!("fused: {} tensors agree with one device\n\nafter\n{sch}", report.tensors.len()));
    let ops = sch.root().forward_ops();
    say("forward ops");
    ops.iter().for_each(|(path, op)| say(format!("  {op:<18} {path}").trim_end()));

    let built = sch.build()?;
    say(&format!("\ncollectives of a rank\n{}", counts_of_graph(&built.local(0)?)));

    let mut planned = PlannedStep::new(&built, &model, 0, RunnerOptions::default())?;
    let batch = random_feed(&model, 1, 0.0);
    for step in 1..=5 {
        say(&format!("step {step}  loss {:.4}", planned.step(&batch, 0.01)?.loss));
    }
    Ok(())
}

#[path = "../support/arguments.rs"]
mod arguments;
