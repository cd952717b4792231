use partita::commands::lower::{LowerRequest, counts, counts_table};
use partita::config::Config;
use partita_runtime::Cpu;

fn go(name: &str, o: &[&str], ig: bool) {
    let all: Vec<String> = o.iter().map(|s| s.to_string()).collect();
    let config = Config::load(name, &all).unwrap_or_else(|e| panic!("{e}"));
    let t = std::time::Instant::now();
    let c = counts(&config, LowerRequest { input_gradient: ig }, &Cpu).unwrap_or_else(|e| panic!("{name} {o:?} {e}"));
    println!("{name} {o:?} {ig} {:?}\n{}", t.elapsed(), counts_table(&c));
}
const G: &[&str] = &["model.dim=32", "model.heads=4", "model.sequence=16", "model.vocab=64", "model.dropout=0", "model.tied=false", "optimizer.clip_grad_norm=0", "train.batch=8"];
fn gpt(o: &[&str]) { go("gpt", &[G, o].concat(), false) }

#[test]
fn explore() {
    for ig in [false, true] {
        go("mlp", &["model.dims=[1024,4096,1024]", "mesh.shape=tp=2", "train.batch=8"], ig);
    }
    for l in ["model.layers=1", "model.layers=2"] {
        gpt(&[l, "mesh.shape=tp=2"]);
        gpt(&[l, "mesh.shape=tp=2", "model.fused_qkv=true"]);
        gpt(&[l, "mesh.shape=tp=2", "model.kv_heads=2", "model.fused_qkv=true"]);
        gpt(&[l, "mesh.shape=tp=2", "plan.sequence_parallel=true"]);
        gpt(&[l, "mesh.shape=tp=2", "plan.vocab_parallel=true"]);
        gpt(&[l, "mesh.shape=fsdp=2"]);
        gpt(&[l, "mesh.shape=fsdp=4"]);
        gpt(&[l, "mesh.shape=dp=2"]);
        gpt(&[l, "mesh.shape=dp=2,tp=2"]);
    }
    gpt(&["mesh.shape=dp=2", "train.microbatches=4", "plan.\"**\"=zero1"]);
    gpt(&["mesh.shape=dp=2", "train.microbatches=4", "plan.\"**\"=zero2"]);
}
