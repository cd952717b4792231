//! A step that is folded to small ones against the same step, whole: seconds within 2 %, and within 5 % where slices take
//! turns with several stages or links are slow; bytes within 3 %, within 8 % in a
//! pipeline, and within 10 % in one that defers the gradients of weights.

use super::session;
use partita::Session;
use partita::price::Price;
use partita_base::Result;
use partita_program::{Collective, CollectiveKind};
use partita_schedule::explain::Explain;
use partita_simulate::collective_s;

/// A model on a mesh with so many layers and microbatches of eight rows.
pub fn step(model: &str, mesh: &str, [layers, microbatches]: [usize; 2], more: &[&str]) -> Session {
    let mesh = format!("mesh.shape='{mesh}'");
    let sizes = [
        format!("model.layers={layers}"),
        format!("train.microbatches={microbatches}"),
        format!("train.batch={}", 8 * microbatches),
        mesh,
    ];
    let mut overrides: Vec<&str> = ["cluster.name=a100-80g:8x4", "plan.strict=false"].to_vec();
    overrides.extend(sizes.iter().map(String::as_str));
    overrides.extend(more);
    session(model, &overrides)
}

fn check(model: &str, mesh: &str, sizes: &[[usize; 2]], more: &[&str]) {
    let of_time = if more.iter().any(|item| item.contains("interleaved")) { 0.05 } else { 0.02 };
    check_within(of_time, model, mesh, sizes, more);
}

/// Compares the step of each number of layers and microbatches: seconds within this part of them.
pub fn check_within(of_time: f64, model: &str, mesh: &str, sizes: &[[usize; 2]], more: &[&str]) {
    for &of in sizes {
        let session = step(model, mesh, of, more);
        let whole = session.price_of(&session.build().unwrap()).unwrap();
        let folded = session.price_folded(None).unwrap_or_else(|error| panic!("{model} on {mesh}: {error}"));
        let time = folded.step_s() / whole.step_s() - 1.0;
        let bytes = folded.bytes() as f64 / whole.bytes() as f64 - 1.0;
        let what = format!(
            "{model} on {mesh}, {} layers and {} microbatches {more:?}: {} s folded, {} s whole; {} and {} bytes",
            of[0],
            of[1],
            folded.step_s(),
            whole.step_s(),
            folded.bytes(),
            whole.bytes()
        );
        // The buffers of these steps are small: 256 bytes of alignment for each are a part of them.
        let of_bytes = if mesh.contains("pp") { 0.08 } else { 0.05 };
        assert!(time.abs() < of_time && bytes.abs() < of_bytes, "{what}");
    }
}

#[test]
fn data_parallel() {
    check("gpt", "dp=4", &[[6, 1], [3, 5]], &[]);
    check("llama", "fsdp=4", &[[7, 1], [4, 4]], &[]);
}

/// Gradients of large layers, whose exchange the backward pass does not hide.
#[test]
fn exposed_exchange() {
    let large = ["model.dim=1024", "model.heads=8", "train.dtype=f16", "cluster.name=v100-16g:8x2"];
    check("gpt", "dp=8", &[[6, 1], [3, 4]], &large);
    check("gpt", "fsdp=8", &[[6, 1]], &large);
    check("gpt", "dp=8", &[[6, 2]], &[&large[..], &["plan.\"**\"=\"zero1\""]].concat());
}

#[test]
fn tensor_parallel() {
    check("gpt", "tp=2", &[[6, 2]], &[]);
    check("llama", "dp=2,tp=2", &[[5, 3]], &[]);
    check("bert", "dp=2,tp=4", &[[5, 1]], &["plan.sequence_parallel=true"]);
}

#[test]
fn pipelines() {
    check("gpt", "pp=4", &[[8, 6]], &[]);
    check("llama", "pp=2,dp=2", &[[6, 4]], &[]);
}

#[test]
fn pipelines_of_several_stages_a_slice() {
    check("gpt", "pp=4", &[[8, 4]], &["train.timetable=interleaved-1f1b"]);
}

/// Layers with experts: every second one, all of them, or those behind dense ones.
#[test]
fn experts() {
    let (second, all) =
        (["model.kind='moe-gpt'", "model.experts=4"], ["model.kind='mixtral'", "model.experts=4"]);
    check("gpt", "ep=2", &[[8, 1], [4, 3]], &second);
    check("llama", "dp=2,ep=2", &[[6, 1], [4, 3]], &all);
    check("gpt", "pp=2,ep=2", &[[8, 4]], &second);
    let behind = [
        "model.dense_layers=1",
        "model.dim=32",
        "model.heads=4",
        "model.query_rank=16",
        "model.latent_rank=8",
        "model.plain_features=8",
        "model.rotary_features=4",
        "model.value_features=8",
        "model.hidden=64",
        "model.expert_hidden=16",
        "model.experts=4",
        "model.top_k=2",
        "model.sequence=16",
        "model.vocab=64",
    ];
    check("deepseek-v3", "ep=2,tp=2", &[[7, 1]], &behind);
}

/// The steps of a group of the table `tests/data/folded.txt`: seconds and bytes, and the compute of the busiest slice,
/// which no folding may lose.
fn compare(group: &str) {
    let mut wrong = Vec::new();
    for line in TABLE.lines().filter(|line| line.split_whitespace().next() == Some(group)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, model, mesh, layers, microbatches, timetable, more @ ..] = &words[..] else {
            panic!("`{line}`");
        };
        let timetable = format!("train.timetable={timetable}");
        let more = [&[timetable.as_str()], more].concat();
        let session = step(model, mesh, [layers.parse().unwrap(), microbatches.parse().unwrap()], &more);
        let Price::Whole(whole) = session.price_of(&session.build().unwrap()).unwrap() else {
            unreachable!()
        };
        let (_, simulation) = *whole;
        let Price::Folded(folded) =
            session.price_folded(None).unwrap_or_else(|error| panic!("{line}: {error}"))
        else {
            unreachable!()
        };
        let compute_s = simulation.classes.iter().map(|class| class.compute_s).fold(0.0, f64::max);
        let bytes = simulation.classes.iter().map(|class| class.memory.arena_bytes).max().unwrap_or(0) as f64;
        let of = |folded: f64, whole: f64| 100.0 * (folded / whole - 1.0);
        let seconds = &folded.seconds;
        let errors = [
            of(seconds.step_s, simulation.step_s),
            of(seconds.compute_s, compute_s),
            of(folded.fullest().total(), bytes),
        ];
        let told = format!("{line}: {errors:.2?} % of {:.5} s, {bytes:.3e} bytes", simulation.step_s);
        let busy_s = seconds.compute_s + seconds.exposed_s;
        let of_time =
            if stages_of_slice(&session) > 1 || matches!(group, "slow" | "limited") { 5.0 } else { 2.0 };
        // What is computed again depends on how much room the layers leave.
        let of_compute = if group == "limited" { 5.0 } else { 0.5 };
        // What waits for the gradients of weights is bounded by that of the fullest stage.
        let of_bytes = if timetable.contains("zb-") { 10.0 } else { 8.0 };
        let is_near = errors[0].abs() < of_time && errors[1].abs() < of_compute && errors[2].abs() < of_bytes;
        if !is_near || busy_s > seconds.step_s * (1.0 + 1e-6) {
            wrong.push(told);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The stages on each slice.
fn stages_of_slice(session: &Session) -> usize {
    let slices = session.mesh().axis_named("pp").map_or(1, |axis| axis.size);
    session.config().train.timetable.chunks(slices)
}

const TABLE: &str = include_str!("../data/folded.txt");

/// Layers of few features, whose many short kernels make the step.
#[test]
fn table_of_tiny_layers() {
    compare("tiny");
}

/// Layers of many features, whose matmuls and exchanges make it.
#[test]
fn table_of_wide_layers() {
    compare("wide");
}

/// Pipelines over slow links, whose gathers and reductions fill the time in which slices wait for each other.
#[test]
fn table_of_slow_links() {
    compare("slow");
}

/// Layers with experts, some between dense ones, of which a stage may have one more than the next.
/// Under a limit on activations, each layer may keep its part of them.
#[test]
fn table_of_limits() {
    compare("limited");
}

#[test]
fn table_of_experts() {
    compare("experts");
}

/// An encoder and a decoder, of which two blocks are one layer.
#[test]
fn table_of_pairs() {
    compare("pairs");
    let sizes =
        ["model.dim=256", "model.hidden=1024", "model.heads=4", "model.sequence=128", "train.dtype=bf16"];
    check("t5-small", "fsdp=8", &[[6, 4]], &sizes);
    check("t5-small", "fsdp=4,tp=2", &[[5, 1]], &sizes);
}

/// Layers on patches of images.
#[test]
fn patches_of_images() {
    let half = ["train.dtype=bf16"];
    check("vit-b-16", "dp=4", &[[6, 1]], &half);
    check("vit-b-16", "fsdp=8", &[[5, 2]], &half);
    check("vit-b-16", "pp=2,dp=2", &[[8, 4]], &half);
}

/// Stages with different numbers of layers.
#[test]
fn table_of_uneven_stages() {
    compare("uneven");
}

/// An update that is only priced moves the bytes of the real one, in as many kernels.
#[test]
fn an_abridged_update_costs_what_the_real_one_does() {
    let small = |optimizer: &str, mesh: &str, more: &str| {
        let momentum = if optimizer == "sgd" { "optimizer.momentum=0.9" } else { "train.microbatches=2" };
        let optimizer = format!("optimizer.kind={optimizer}");
        let steps = [false, true].map(|abridged| {
            let mut config =
                step("gpt", mesh, [3, 2], &[&optimizer, momentum, "train.dtype=bf16", more]).config().clone();
            config.step.abridged = abridged;
            let session = Session::new(config).unwrap();
            let built = session.build().unwrap();
            let programs = session.lower(&built).unwrap().programs;
            let count = programs.iter().map(|program| program.instructions.len()).sum::<usize>();
            (session.price_of(&built).unwrap(), count)
        });
        let [(real, instructions), (abridged, others)] = steps;
        assert_eq!(real.bytes(), abridged.bytes(), "{optimizer} on {mesh}");
        // A scalar that no one needs is not computed.
        assert!(others <= instructions && instructions <= others + 16, "{instructions} and {others}");
        let error = abridged.step_s() / real.step_s() - 1.0;
        assert!(
            error.abs() < 0.005,
            "{optimizer} on {mesh}: {} s and {} s",
            real.step_s(),
            abridged.step_s()
        );
    };
    for optimizer in ["sgd", "adamw", "lion"] {
        small(optimizer, "dp=2,tp=2", "plan.\"**\"=\"zero1\"");
        small(optimizer, "fsdp=4", "cluster.name=laptop");
    }
}

/// Each kind of bytes is unfolded along a line of its own. On long sequences it led below nothing, beyond the sum of all.
#[test]
fn no_figure_is_negative_and_parts_add_up() {
    let meshes =
        ["fsdp=8,cp=8", "dp=2,fsdp=4,tp=2", "cp=4", "dp=4,cp=2", "pp=2,fsdp=2,cp=2", "pp=4,tp=2", "fsdp=16"];
    let (mut choose, mut told) = (draws(), 0);
    for _ in 0..48 {
        let (model, mesh) = (["gpt", "llama"][choose(2)], meshes[choose(meshes.len())]);
        let sequence = [64, 1024, 16384, 131_072][choose(4)];
        let dim = [64, 512, 4096][choose(3)];
        let sizes = [
            format!("model.sequence={sequence}"),
            format!("model.dim={dim}"),
            format!("train.dtype={}", ["f32", "bf16"][choose(2)]),
            format!("train.batch={}", 32 * [1, 4][choose(2)]),
            "model.heads=8".to_string(),
            "cluster.name=h100-80g:64x8".to_string(),
        ];
        let more: Vec<&str> = sizes.iter().map(String::as_str).collect();
        let of = [[4, 24, 80][choose(3)], [1, 4][choose(2)]];
        let session = step(model, mesh, of, &more);
        // Some do not divide, or do not fit a fold.
        let Ok(forecast) = partita::predict::unfold::forecast(&session, None) else { continue };
        told += 1;
        for bytes in &forecast.stages {
            let parts = [
                bytes.parameters,
                bytes.gradients,
                bytes.optimizer_state,
                bytes.activations,
                bytes.communication,
            ];
            let what = format!("{model} on {mesh}, {of:?}, {more:?}: {bytes:?}");
            assert!(parts.iter().all(|&part| part >= 0.0), "{what}");
            // What is in flight is gathered or summed from what the ranks of a group hold.
            let held = bytes.parameters + bytes.gradients + bytes.activations;
            assert!(bytes.communication <= session.mesh().rank_count() as f64 * held, "{what}");
            assert_eq!(bytes.by_kind().iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes.whole(), "{what}");
        }
        let seconds = &forecast.seconds;
        for part in [seconds.compute_s, seconds.exposed_s, seconds.bubble_s] {
            assert!(
                (0.0..=seconds.step_s).contains(&part),
                "{model} on {mesh}, {of:?}, {more:?}: {seconds:?}"
            );
        }
    }
    assert!(told >= 24, "{told} forecasts");
}

/// Numbers drawn from a fixed seed.
fn draws() -> impl FnMut(usize) -> usize {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move |count| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % count as u64) as usize
    }
}

/// Plans and sizes drawn at random: what collectives move, as they are printed and as they are priced.
#[test]
fn no_collective_moves_more_than_its_group_holds_or_nothing_of_what_is_split() {
    let mut choose = draws();
    let meshes = [
        "tp=2",
        "tp=3",
        "dp=2,tp=2",
        "fsdp=2,tp=2",
        "cp=2",
        "cp=2,tp=2",
        "sp=2,tp=2",
        "fsdp=2,cp=2",
        "fsdp=3",
        "dp=2,fsdp=2",
        "pp=2,tp=2",
        "pp=2,fsdp=2",
        "dp=3",
    ];
    let lines = [
        "plan.strict=false",
        "plan.\"layers.*\"=checkpoint",
        "plan.\"layers.*.attn\"=ring",
        "plan.\"layers.*.attn\"=ulysses",
        "plan.\"**\"=zero1",
        "plan.sequence_parallel=true",
        "plan.vocab_parallel=true",
    ];
    let (mut steps, mut seen, mut split) = (0, 0, 0);
    for _ in 0..64 {
        let (model, mesh) = (["gpt", "llama"][choose(2)], meshes[choose(meshes.len())]);
        let sizes = [
            format!("model.sequence={}", [5, 8, 16][choose(3)]),
            format!("model.dim={}", [16, 24][choose(2)]),
            format!("train.dtype={}", ["f32", "bf16"][choose(2)]),
            "model.heads=4".to_string(),
            "model.vocab=30".to_string(),
            lines[choose(lines.len())].to_string(),
        ];
        let more: Vec<&str> = sizes.iter().map(String::as_str).collect();
        let session = step(model, mesh, [2, [1, 2][choose(2)]], &more);
        let what = format!("{model} on {mesh}, {more:?}");
        // Some meshes do not have the axis of the line.
        let Ok(built) = session.build() else { continue };
        steps += 1;
        for stage in 0..built.stages.len() {
            for printed in Explain::new(&built, stage).collectives() {
                let Some(value) = printed.of else { continue };
                let whole = built.stages[stage].partitioned.graph.ty(value).bytes();
                assert!(printed.bytes <= whole, "{what}: {printed:?}, of {whole} bytes");
                assert!(printed.bytes > 0 && printed.cost_us > 0.0, "{what}: {printed:?}");
                seen += 1;
            }
        }
        let set = session.lower(&built).unwrap();
        for collective in set.collectives.iter() {
            let seconds = collective_s(collective, &session.config().cluster);
            let moved = check_transfers(collective).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(moved > 0, seconds > 0.0, "{what}: {collective:?}, {seconds} s");
            split += usize::from(moved > 0);
        }
    }
    assert!(steps >= 32 && seen >= 1000 && split >= 1000, "{steps} steps, {seen} and {split} collectives");
}

/// The bytes that members of a collective receive from others, at most. They are checked against what its group holds.
fn check_transfers(collective: &Collective) -> Result<usize> {
    let members = collective.members.len();
    let wrong = |what: &str| {
        Err(partita_base::Diagnostic::new("E403", what.to_string()).found(format!("{collective:?}")))
    };
    let mut all = 0;
    for transfer in collective.transfers.iter() {
        let [held, given] = [&transfer.inputs, &transfer.outputs]
            .map(|types| types.iter().map(|ty| ty.bytes()).collect::<Vec<usize>>());
        let [sum_held, sum_given] = [&held, &given].map(|bytes| bytes.iter().sum::<usize>());
        let full = (0..members).map(|member| transfer.full_bytes(member)).max().unwrap_or(0);
        let sent: usize = (0..members).map(|member| transfer.sent_bytes(member)).sum();
        let fits = match collective.kind {
            CollectiveKind::AllReduce => held == given && given.iter().all(|&bytes| bytes == full),
            CollectiveKind::AllGather => given.iter().all(|&bytes| bytes == sum_held) && full == sum_held,
            CollectiveKind::ReduceScatter => {
                held.iter().all(|&bytes| bytes == sum_given) && full == sum_given
            }
            CollectiveKind::AllToAll => sum_held == sum_given && full <= sum_held,
            CollectiveKind::CollectivePermute | CollectiveKind::CollectiveBroadcast => full <= sum_held,
            CollectiveKind::Send => full == sum_given && sent == sum_given,
        };
        if !fits {
            return wrong("a collective does not move what its group holds");
        }
        if sent > members * full {
            return wrong("a collective moves more than its group holds");
        }
        if members > 1 && sum_held > 0 && sum_given > 0 && full == 0 {
            return wrong("a collective moves nothing of a tensor that is split");
        }
        all += if members > 1 { full } else { 0 };
    }
    Ok(all)
}
