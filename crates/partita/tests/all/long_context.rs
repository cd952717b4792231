//! A mesh axis shards the sequence through attention: the numbers of one device, exact counts and bytes, and memory.

use crate::counts::seen;
use crate::session;
use partita::session::Execution;
use partita_ir::Op;
use partita_program::{CollectiveKind, Counts, ProgramSet, counts};
use partita_schedule::explain::{Explain, Subject};
use partita_schedule::verify::Unwatched;

const ULYSSES: &str = "plan.layers.*.attn=ulysses";

/// Verifies a small model in f64 on a mesh with more lines of a plan.
fn check(name: &str, mesh: &str, more: &[&str]) {
    let mesh = format!("mesh.shape={mesh}");
    let mut all = vec!["model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8"];
    all.extend(["train.dtype=f64", &mesh]);
    all.extend(more);
    let session = session(name, &all);
    let verified = session.verify(6, &session.interpreter(), &Unwatched);
    let report = verified.unwrap_or_else(|e| panic!("{name} {mesh} {more:?}: {e}")).report;
    assert!(report.ok, "{name} {mesh} {more:?}: {:?}, first {:?}", report.worst(), report.first_diverging);
    assert_eq!(report.excused(), 0, "{name} {mesh}");
}

#[test]
fn attention_by_heads_changes_nothing() {
    for mesh in ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "tp=2,cp=2", "fsdp=2,cp=2", "sp=2,cp=2"] {
        check("gpt", mesh, &[ULYSSES]);
    }
    // Rotary positions, key heads that several query heads share, no causal mask, and padding.
    for mesh in ["cp=2", "cp=4", "tp=2,cp=2"] {
        check("llama", mesh, &[ULYSSES]);
        check("bert", mesh, &[ULYSSES]);
    }
    check("bert", "cp=3", &[ULYSSES, "model.padding_mask=true"]);
    check("gpt", "cp=2", &[ULYSSES, "train.microbatches=2"]);
    check("gpt", "pp=2,cp=2", &[ULYSSES, "train.microbatches=2", "model.layers=2"]);
    check("gpt", "cp=2", &[ULYSSES, "plan.layers.*=checkpoint"]);
}

const RING: &str = "plan.layers.*.attn=ring";

#[test]
fn a_ring_of_keys_changes_nothing() {
    // Shards of 4, 3 + 3 + 2, 2, and with other axes; over `sp` tokens are sharded the same way.
    for mesh in ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "tp=2,cp=2", "fsdp=2,cp=2", "sp=2,cp=2"] {
        check("gpt", mesh, &[RING]);
        check("llama", mesh, &[RING]);
    }
    check("gpt", "tp=3", &["plan.layers.*.attn=ring(axis=tp)"]);
    // A rank without tokens.
    check("gpt", "cp=4", &[RING, "model.sequence=3"]);
    check("gpt", "cp=2", &[RING, "train.microbatches=2"]);
    check("gpt", "pp=2,cp=2", &[RING, "train.microbatches=2", "model.layers=2"]);
    check("gpt", "cp=2", &[RING, "plan.layers.*=checkpoint"]);
}

/// Along the sequence a residual stream is sharded over `cp` and `tp`, and gathers over `tp` alone.
#[test]
fn sequence_parallelism_keeps_the_shards_of_sequences() {
    let sequence = "plan.sequence_parallel=true";
    for name in ["gpt", "llama"] {
        for (mesh, lines) in [("cp=2,tp=2", &[RING][..]), ("cp=2,tp=2", &[ULYSSES]), ("sp=2,tp=2", &[])] {
            check(name, mesh, &[&[sequence], lines].concat());
            let shape = format!("mesh.shape={mesh}");
            let built =
                session(name, &[&[sequence, &shape, "model.heads=4"], lines].concat()).build().unwrap();
            let outer = &mesh[..2];
            for (module, layout) in [
                ("layers.0.mlp_norm", format!("[{{}}, {{{outer}, tp}}, {{}}]")),
                ("layers.0.mlp.up_proj", format!("[{{}}, {{{outer}}}, {{tp}}]")),
                ("layers.0.attn.o_proj", format!("[{{}}, {{{outer}, tp}}, {{}}]")),
            ] {
                let Subject::Tensor(found) = Explain::new(&built, 0).subject(module).unwrap() else {
                    panic!("{module} is an activation")
                };
                assert_eq!(found.layout, layout, "{name} on {mesh} {lines:?}: {module}");
            }
            let rings =
                built.step.nodes.iter().filter(|node| matches!(node.op, Op::RingAttention(_))).count();
            assert_eq!(rings > 0, lines.contains(&RING), "{name} on {mesh}");
        }
    }
}

#[test]
fn a_ring_computes_in_a_narrow_type() {
    for (name, precision) in [("llama", "bf16"), ("gpt", "f16")] {
        let narrow = format!("train.precision={precision}");
        let all = ["mesh.shape=cp=2", "model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8"];
        let session = session(name, &[&all[..], &[RING, &narrow]].concat());
        let report = session.verify(6, &session.step_runner(), &Unwatched);
        let report = report.unwrap_or_else(|e| panic!("{name}: {e}")).report;
        assert!(report.ok, "{name}: {:?}, first {:?}", report.worst(), report.first_diverging);
    }
}

const ZIGZAG: &str = "plan.layers.*.attn=ring(zigzag=true)";

/// Windows that end inside a shard, at its boundary and behind the next one; documents; both.
#[test]
fn windows_and_documents_change_nothing_on_a_mesh() {
    for line in [RING, ULYSSES] {
        for mesh in ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "tp=2,cp=2", "fsdp=2,cp=2"] {
            check("gpt", mesh, &[line, "model.window=3", "model.documents=true"]);
            check("llama", mesh, &[line, "model.window=4"]);
        }
        check("llama", "cp=2", &[line, "model.kind=mixtral", "model.window=1"]);
        check("llama", "cp=4", &[line, "model.window=5", "model.documents=true"]);
        check("gpt", "cp=2", &[line, "model.documents=true", "train.microbatches=2"]);
        check("gpt", "pp=2,cp=2", &[line, "model.documents=true", "train.microbatches=2", "model.layers=2"]);
    }
    for mesh in ["dp=2", "tp=2", "cp=2", "pp=2"] {
        check("gpt", mesh, &["model.window=3", "model.documents=true", "model.layers=2"]);
    }
}

#[test]
fn zigzag_order_changes_nothing() {
    for mesh in ["cp=2", "cp=4", "dp=2,cp=2", "tp=2,cp=2", "fsdp=2,cp=2"] {
        check("gpt", mesh, &[ZIGZAG]);
        check("llama", mesh, &[ZIGZAG, "model.window=3", "model.documents=true"]);
    }
    check("gpt", "cp=3", &[ZIGZAG, "model.sequence=12"]);
    check("gpt", "cp=2", &[ZIGZAG, "train.microbatches=2"]);
    check("gpt", "pp=2,cp=2", &[ZIGZAG, "train.microbatches=2", "model.layers=2"]);
    check("gpt", "cp=2", &[ZIGZAG, "plan.layers.*=checkpoint"]);
}

#[test]
fn zigzag_order_needs_a_causal_mask_and_two_chunks_for_each_rank() {
    for (name, mesh, found) in [("gpt", "cp=3", "8 tokens, causal"), ("bert", "cp=2", "8 tokens, not causal")]
    {
        let mesh = format!("mesh.shape={mesh}");
        let session = session(name, &["model.sequence=8", "model.layers=1", &mesh, ZIGZAG]);
        let error = session.build().unwrap_err();
        assert_eq!((error.code, error.found.as_deref()), ("E235", Some(found)), "{error}");
    }
}

const BATCH: usize = 2;
const DIM: usize = 32;

/// A GPT of one head for each 8 features, lowered for a mesh.
fn gpt(mesh: &str, sequence: usize, layers: usize, line: &str) -> ProgramSet {
    gpt_with(mesh, sequence, layers, &[line])
}

fn gpt_with(mesh: &str, sequence: usize, layers: usize, lines: &[&str]) -> ProgramSet {
    let all = [
        format!("mesh.shape={mesh}"),
        format!("train.batch={BATCH}"),
        format!("model.dim={DIM}"),
        format!("model.sequence={sequence}"),
        format!("model.layers={layers}"),
    ];
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.extend(["model.heads=4", "model.vocab=64", "model.dropout=0", "model.tied=false"]);
    all.push("optimizer.clip_grad_norm=0");
    all.extend(lines);
    let session = session("gpt", &all);
    let planned = session.build().unwrap_or_else(|error| panic!("{error}"));
    session.lower(&planned).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn heads_are_exchanged_four_times_each_way() {
    for ranks in [2, 4] {
        for layers in [1, 2] {
            let set = gpt(&format!("cp={ranks}"), 64, layers, ULYSSES);
            let counts: Counts = counts(&set, 0);
            let shard = BATCH * 64 * DIM * 4 / ranks;
            for phase in [&counts.forward, &counts.backward] {
                let exchanged = phase.of(CollectiveKind::AllToAll);
                assert_eq!(exchanged.logical, 4 * layers, "{:?}", seen(phase));
                assert_eq!(exchanged.bytes, 4 * layers * shard);
                assert!(seen(phase).iter().all(|(kind, ..)| ["all_to_all", "all_reduce"].contains(kind)));
            }
        }
    }
}

#[test]
fn keys_and_values_travel_once_forward_and_gradients_home() {
    for ranks in [2, 3, 4] {
        for layers in [1, 2] {
            let set = gpt(&format!("cp={ranks}"), 48, layers, RING);
            let counts = counts(&set, 0);
            let both = 2 * BATCH * 48 * DIM * 4 / ranks;
            for (phase, hops) in [(&counts.forward, ranks - 1), (&counts.backward, ranks - 1 + ranks)] {
                let sent = phase.of(CollectiveKind::CollectivePermute);
                assert_eq!(sent.logical, hops * layers, "{ranks} ranks: {:?}", seen(phase));
                assert_eq!(sent.bytes, hops * layers * both);
                assert!(
                    seen(phase).iter().all(|(kind, ..)| ["collective_permute", "all_reduce"].contains(kind))
                );
            }
        }
    }
}

/// Each microbatch has a ring of its own: none gathers its keys.
#[test]
fn a_ring_stays_a_ring_in_microbatches() {
    for (mesh, ranks) in [("cp=2", 2), ("cp=4", 4), ("tp=2,cp=2", 2)] {
        let sent = |microbatches: usize| {
            let set = gpt_with(mesh, 48, 1, &[RING, &format!("train.microbatches={microbatches}")]);
            let counts = counts(&set, 0);
            [&counts.forward, &counts.backward].map(|phase| {
                assert_eq!(phase.of(CollectiveKind::AllGather).logical, 0, "{mesh}: {:?}", seen(phase));
                phase.of(CollectiveKind::CollectivePermute).logical
            })
        };
        assert_eq!(sent(1), [ranks - 1, 2 * ranks - 1], "{mesh}");
        assert_eq!(sent(2), sent(1).map(|count| 2 * count), "{mesh}");
    }
}

/// Keys travel as many shards as the window of their queries reaches, and their gradients go home directly.
#[test]
fn keys_travel_as_far_as_a_window_reaches() {
    for (window, hops) in [(1, 0), (2, 1), (13, 1), (14, 2), (25, 2), (26, 3), (1000, 3)] {
        let set = gpt_with("cp=4", 48, 1, &[RING, &format!("model.window={window}")]);
        let counts = counts(&set, 0);
        let both = 2 * BATCH * 48 * DIM * 4 / 4;
        let home = usize::from(hops > 0);
        for (phase, hops) in [(&counts.forward, hops), (&counts.backward, 2 * hops + home)] {
            let sent = phase.of(CollectiveKind::CollectivePermute);
            assert_eq!((sent.logical, sent.bytes), (hops, hops * both), "window {window}: {:?}", seen(phase));
        }
    }
}

/// Half of each shard travels at a time: queries, keys and values to the ranks that compute with them, and results back. On
/// rank 0, and on two ranks, one half stays where it is.
#[test]
fn zigzag_order_adds_two_exchanges_each_way() {
    for (ranks, halves) in [(2, 1), (4, 2)] {
        let set = gpt(&format!("cp={ranks}"), 48, 1, ZIGZAG);
        let counts = counts(&set, 1);
        // Bytes of half of a rank's queries, and of one number for each of its heads and tokens.
        let (half, row) = (BATCH * 48 * DIM * 4 / ranks / 2, BATCH * 48 * 4 * 4 / ranks / 2);
        let forward = (ranks - 1) * 4 * half + halves * (3 * half + half + row);
        let backward = (2 * ranks - 1) * 4 * half + halves * (4 * half + 2 * row + 3 * half);
        let all = [(&counts.forward, ranks - 1, forward), (&counts.backward, 2 * ranks - 1, backward)];
        for (phase, hops, bytes) in all {
            let sent = phase.of(CollectiveKind::CollectivePermute);
            assert_eq!(
                (sent.logical, sent.bytes),
                (hops + 2 * halves, bytes),
                "{ranks} ranks: {:?}",
                seen(phase)
            );
        }
    }
}

/// Bytes of a Llama's arena on rank 0, with so many tokens on each rank.
fn arena_bytes(ranks: usize, tokens: usize, lines: &[&str]) -> usize {
    let (mesh, sequence) = (format!("mesh.shape=cp={ranks}"), format!("model.sequence={}", tokens * ranks));
    let mut all = vec![mesh.as_str(), &sequence, "train.batch=1", "model.dim=64", "model.layers=2"];
    all.extend(["model.heads=8", "model.kv_heads=8"]);
    all.extend(lines);
    // More threads have more scratch memory.
    let one = Execution { deterministic: true, ..Execution::default() };
    let session = session("llama", &all).with_execution(one).unwrap();
    let planned = session.build().unwrap_or_else(|error| panic!("{error}"));
    session.lower(&planned).unwrap_or_else(|error| panic!("{error}")).programs[0].arena_bytes
}

#[test]
fn memory_of_a_ring_is_flat_in_ranks_and_linear_in_tokens() {
    let two = arena_bytes(2, 64, &[RING]);
    for ranks in [4, 8] {
        // Each hop has three numbers, which say where its keys are, in a cache line.
        assert_eq!(arena_bytes(ranks, 64, &[RING]) - two, 64 * (ranks - 2), "{ranks} ranks");
    }
    let growth = |lines: &[&str]| {
        let [one, two, four] = [64, 128, 256].map(|tokens| arena_bytes(4, tokens, lines) as f64);
        (four - two) / (two - one)
    };
    for line in [RING, ULYSSES] {
        assert!(growth(&[line]) < 2.2, "twice the tokens take {} times the bytes", growth(&[line]));
    }
    assert!(growth(&[]) > 3.0, "scores of gathered keys are quadratic");
}

/// On the CPU device parts of attention are kernels.
#[test]
fn the_cpu_computes_what_one_device_does() {
    for line in [RING, ULYSSES] {
        let all =
            ["mesh.shape=cp=3", "model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8", line];
        let session = session("gpt", &all);
        let verified = session.verify(6, &session.step_runner(), &Unwatched);
        let report = verified.unwrap_or_else(|e| panic!("{line}: {e}")).report;
        assert!(report.ok, "{line}: {:?}", report.worst());
    }
    for line in [RING, ULYSSES, ZIGZAG] {
        let all =
            ["mesh.shape=cp=2", "model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8", line];
        let all = [&all[..], &["model.window=3", "model.documents=true"]].concat();
        let session = session("gpt", &all);
        let verified = session.verify(6, &session.step_runner(), &Unwatched);
        let report = verified.unwrap_or_else(|e| panic!("{line}: {e}")).report;
        assert!(report.ok, "{line}: {:?}", report.worst());
    }
}

/// What the line `attention_auto` stands for: heads where there are enough, else a ring; in zigzag order where one is possible.
#[test]
fn attention_is_chosen_by_cost() {
    let chosen = |kind: &str, mesh: &str, more: &[&str]| {
        let mesh = format!("mesh.shape={mesh}");
        let mut all = vec!["cluster.name=a100-80g", "train.batch=4", "model.layers=1", "model.dim=1024"];
        all.extend([mesh.as_str(), "train.dtype=bf16", "plan.layers.*.attn=attention_auto"]);
        all.extend(more);
        let session = session(kind, &all);
        let model = session.model().unwrap_or_else(|error| panic!("{error}"));
        let plan = session.plan(&model).unwrap_or_else(|error| panic!("{error}"));
        let line = plan.entries.iter().find(|entry| entry.modules == "layers.*.attn").expect("it is there");
        assert!(line.origin.contains("`attention_auto` on a100-80g by ulysses "), "{}", line.origin);
        line.primitive.to_string()
    };
    let many = ["model.heads=16", "model.kv_heads=16", "model.sequence=8192"];
    let few = ["model.heads=16", "model.kv_heads=2", "model.sequence=8192"];
    assert_eq!(chosen("llama", "cp=4", &many), "ulysses");
    assert_eq!(chosen("llama", "cp=8", &few), "ring(zigzag=true)");
    assert_eq!(chosen("llama", "cp=8", &[&few[..2], &["model.sequence=8200"]].concat()), "ring");
    assert_eq!(chosen("bert", "cp=8", &["model.heads=4", "model.sequence=8192"]), "ring");
    check("gpt", "cp=2", &["plan.layers.*.attn=attention_auto"]);
}
