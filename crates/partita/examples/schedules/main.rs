//! Whole schedules for GPT, BERT and Llama, one function each: tensor parallel projections, a residual stream cut along
//! the sequence, embedding and head cut along the vocabulary, every block computed again in the backward pass, bias and
//! GELU as one kernel.

use partita::prelude::*;

fn gpt(sch: &mut Schedule) -> Result<()> {
    // Bias and activation as one kernel.
    sch.at("layers.*.mlp.up_proj")?.decompose()?;
    sch.root().trace(true)?;
    let found = sch.root().find(&Pattern::parse("gelu(x + bias)")?)?;
    sch.root().fuse(&found, "gpt.bias_gelu", Some("cpu"))?;
    // Megatron's pairs, q, k and v as one projection; the stream between them is cut along the sequence.
    sch.at("layers.*.attn.qkv_proj")?.style("colwise(input=replicate)")?;
    sch.at("layers.*.attn.o_proj")?.style("rowwise(output=shard(1))")?;
    sch.at("layers.*.mlp.up_proj")?.style("colwise(input=replicate)")?;
    sch.at("layers.*.mlp.down_proj")?.style("rowwise(output=shard(1))")?;
    sch.at("layers.*.*_norm")?.style("sequence")?;
    sch.at("norm")?.style("sequence")?;
    // The vocabulary in pieces, also in the loss.
    sch.at("embed_tokens")?.style("rowwise(output=shard(1))")?;
    sch.at("embed_positions")?.style("replicate(output=shard(1))")?;
    sch.at("lm_head")?.style("colwise(input=replicate)")?;
    sch.at("layers.*")?.checkpoint()?;
    Ok(())
}

fn bert(sch: &mut Schedule) -> Result<()> {
    // Bias and activation as one kernel, in the layers and in the head.
    sch.at("layers.*.mlp.up_proj")?.decompose()?;
    sch.root().trace(true)?;
    let found = sch.root().find(&Pattern::parse("gelu(x + bias)")?)?;
    sch.root().fuse(&found, "bert.bias_gelu", Some("cpu"))?;
    sch.at("layers.*.attn.qkv_proj")?.style("colwise(input=replicate)")?;
    sch.at("layers.*.attn.o_proj")?.style("rowwise(output=shard(1))")?;
    sch.at("layers.*.mlp.up_proj")?.style("colwise(input=replicate)")?;
    sch.at("layers.*.mlp.down_proj")?.style("rowwise(output=shard(1))")?;
    for norm in ["embed_norm", "layers.*.*_norm", "lm_norm"] {
        sch.at(norm)?.style("sequence")?;
    }
    sch.at("embed_tokens")?.style("rowwise(output=shard(1))")?;
    sch.at("embed_positions")?.style("replicate(output=shard(1))")?;
    sch.at("lm_head")?.style("colwise(input=replicate)")?;
    sch.at("layers.*")?.checkpoint()?;
    Ok(())
}

fn llama(sch: &mut Schedule) -> Result<()> {
    // The gate and the product with it as one kernel.
    sch.root().trace(true)?;
    let found = sch.root().find(&Pattern::parse("silu(gate) * up")?)?;
    sch.root().fuse(&found, "llama.gated_silu", Some("cpu"))?;
    sch.at("layers.*.attn.qkv_proj")?.style("colwise(input=replicate)")?;
    sch.at("layers.*.attn.o_proj")?.style("rowwise(output=shard(1))")?;
    for projection in ["gate_proj", "up_proj"] {
        sch.at(&format!("layers.*.mlp.{projection}"))?.style("colwise(input=replicate)")?;
    }
    sch.at("layers.*.mlp.down_proj")?.style("rowwise(output=shard(1))")?;
    sch.at("layers.*.*_norm")?.style("sequence")?;
    sch.at("norm")?.style("sequence")?;
    sch.at("embed_tokens")?.style("rowwise(output=shard(1))")?;
    sch.at("lm_head")?.style("colwise(input=replicate)")?;
    sch.at("layers.*")?.checkpoint()?;
    Ok(())
}

/// A model and the function that schedules it.
type Case = (ModelConfig, fn(&mut Schedule) -> Result<()>);

/// Small models of the three kinds, with a vocabulary large enough that its pieces are worth a sum.
fn cases() -> [Case; 3] {
    let (vocab, dim, layers, heads, sequence) = (4096, 16, 2, 4, 6);
    let fused_qkv = true;
    let gpt_config =
        GptConfig { vocab, dim, layers, heads, sequence, fused_qkv, dropout: 0.1, ..Default::default() };
    let bert_config =
        BertConfig { vocab, dim, layers, heads, sequence, fused_qkv, dropout: 0.1, ..Default::default() };
    let llama_config = LlamaConfig { vocab, dim, layers, heads, sequence, fused_qkv, ..Default::default() };
    [
        (ModelConfig::Gpt(gpt_config), gpt),
        (ModelConfig::Bert(bert_config), bert),
        (ModelConfig::Llama(llama_config), llama),
    ]
}

/// How many lines a function of this file has.
fn lines(name: &str) -> usize {
    let head = format!("fn {name}(");
    let body = include_str!("main.rs").lines().skip_while(|line| !line.starts_with(&head));
    body.take_while(|line| *line != "}").count() + 1
}

fn main() -> Result<()> {
    arguments::arguments(std::env::args(), &[], 0).and_then(|_| run(&mut |line| println!("{line}")))
}

/// The example; `say` gets its lines.
pub fn run(say: &mut dyn FnMut(&str)) -> Result<()> {
    for (config, schedule) in cases() {
        let model = config.build(4, DType::F64, true)?;
        let (mut calls, lines) = (String::new(), lines(config.name()));
        say(&format!("{}, scheduled in {lines} lines", config.name()));
        if lines > 40 {
            return Err(Diagnostic::new("E253", "a schedule has more than 40 lines").at(config.name()));
        }
        for mesh in ["tp=2", "dp=2,tp=2"] {
            let mut sch = Schedule::new(&model, &Mesh::parse(mesh, None)?)?.on(CpuStep::default());
            let report = sch.verify(schedule)?;
            say(&format!("on {mesh}: {} tensors agree with one device", report.tensors.len()));
            say(counts_of_graph(&sch.build()?.local(0)?).to_string().trim_end());
            calls = sch.plan().to_calls();
            if Plan::parse(&calls, "calls")? != *sch.plan() {
                return Err(Diagnostic::new("E253", "the calls read back as another plan").found(calls));
            }
        }
        say(&format!("as calls\n{calls}"));
    }
    Ok(())
}

#[path = "../support/arguments.rs"]
mod arguments;
