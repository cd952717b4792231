//! What is only stored in pieces is cut evenly by elements, whatever the heads; what ops compute in keeps its heads.

use crate::session;
use partita::Session;
use partita::execution::stages;
use partita::memory::memory;
use partita_ir::Role;
use partita_program::{CollectiveKind, LowerOptions, PhaseCounts, ProgramSet, counts, lower_stages};
use partita_runtime::Cpu;
use partita_schedule::Built;
use partita_schedule::verify::Unwatched;
use partita_spmd::{better_mesh, step_s};

fn planned(name: &str, overrides: &[&str]) -> Built {
    session(name, overrides).build().unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(built: &Built) -> ProgramSet {
    lower_stages(&stages(built), &LowerOptions::default(), &Cpu::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The rows that each rank holds of an input.
fn rows(built: &Built, input: &str) -> Vec<usize> {
    let shapes = built.local_shapes(input).unwrap_or_else(|| panic!("there is no {input}"));
    shapes.into_iter().map(|shape| shape[0]).collect()
}

/// The names of parameters and states, scalars left out.
fn stored(built: &Built) -> Vec<String> {
    let graph = &built.stages[0].partitioned.graph;
    let kept = graph
        .inputs
        .iter()
        .map(|&v| graph.value(v))
        .filter(|value| matches!(value.role, Role::Param | Role::StateOf(_)) && value.ty.rank() > 0);
    kept.map(|value| value.name.clone()).collect()
}

/// (kind, meetings, tensors) of the kinds that occur.
fn seen(phase: &PhaseCounts) -> Vec<(&'static str, usize, usize)> {
    let used = phase.kinds.iter().filter(|(_, of)| of.count > 0);
    used.map(|(&kind, of)| (kind, of.count, of.logical)).collect()
}

#[test]
fn fewer_heads_than_ranks_store_as_many_rows_on_each_rank() {
    let built = planned("llama", &["mesh.shape=fsdp=8", "model.kv_heads=2"]);
    for (name, each) in [("q_proj", 12), ("k_proj", 6), ("v_proj", 6), ("o_proj", 12)] {
        let name = format!("layers.0.attn.{name}.weight");
        for input in
            [name.clone(), format!("optimizer.exp_avg.{name}"), format!("optimizer.exp_avg_sq.{name}")]
        {
            assert_eq!(rows(&built, &input), [each; 8], "{input}");
        }
    }
    assert_eq!(built.stages[0].partitioned.notes, []);
    let parameters = built.stages[0].partitioned.graph.params().into_iter();
    let elements: usize = parameters.map(|p| built.stages[0].partitioned.graph.ty(p).element_count()).sum();
    for rank in memory(&lowered(&built)) {
        assert_eq!((rank.parameters, rank.states), (elements * 4 / 8, elements * 2 * 4 / 8));
    }
}

#[test]
fn ranks_that_divide_nothing_differ_by_a_row_at_most() {
    for name in ["gpt", "llama", "bert"] {
        for mesh in ["fsdp=3", "fsdp=5", "fsdp=7"] {
            let mesh = format!("mesh.shape={mesh}");
            let sizes = [mesh.as_str(), "model.dim=40", "model.heads=2", "model.layers=1"];
            let built = planned(name, &sizes);
            for input in stored(&built) {
                let rows = rows(&built, &input);
                let (most, least) = (rows.iter().max().unwrap(), rows.iter().min().unwrap());
                assert!(most - least <= 1, "{name} {mesh} {input}: {rows:?}");
            }
        }
    }
}

#[test]
fn states_of_replicated_parameters_are_cut_evenly_too() {
    for style in ["zero1", "zero2"] {
        let line = format!("plan.\"**\"={style}");
        let built = planned("llama", &["mesh.shape=dp=8", "model.kv_heads=2", &line]);
        assert_eq!(rows(&built, "layers.0.attn.k_proj.weight"), [48; 8], "{style}");
        assert_eq!(rows(&built, "optimizer.exp_avg.layers.0.attn.k_proj.weight"), [6; 8], "{style}");
        assert_eq!(rows(&built, "optimizer.exp_avg_sq.layers.0.attn.q_proj.weight"), [12; 8], "{style}");
        let update = counts(&lowered(&built), 0).update;
        assert_eq!(update.of(CollectiveKind::AllGather).logical, 21, "{style}: each parameter once");
    }
}

/// Heads go to tp as a whole; each tp shard is then stored evenly over fsdp.
#[test]
fn tensor_parallel_heads_are_stored_evenly_within_their_shard() {
    let divided = planned("llama", &["mesh.shape=fsdp=4,tp=2", "model.kv_heads=2"]);
    assert_eq!(rows(&divided, "layers.0.attn.k_proj.weight"), [6; 8]);
    assert_eq!(rows(&divided, "optimizer.exp_avg.layers.1.attn.q_proj.weight"), [12; 8]);
    // Four heads of 24 rows over tp=3 are 2, 1 and 1 heads.
    for (mesh, expected) in
        [("tp=3,fsdp=2", [24, 24, 12, 12, 12, 12]), ("fsdp=2,tp=3", [24, 12, 12, 24, 12, 12])]
    {
        let built = planned("gpt", &[&format!("mesh.shape={mesh}")]);
        for parameter in ["layers.0.attn.q_proj.weight", "layers.1.attn.v_proj.bias"] {
            assert_eq!(rows(&built, parameter), expected, "{mesh} {parameter}");
            assert_eq!(
                rows(&built, &format!("optimizer.exp_avg_sq.{parameter}")),
                expected,
                "{mesh} {parameter}"
            );
        }
        assert_eq!(built.stages[0].partitioned.notes, [], "{mesh}");
    }
}

/// Each parameter is gathered once forward and, where the backward pass needs it, once backward, but for the head, whose
/// backward pass follows at once; each gradient is reduce-scattered once; the update meets for the norm alone. Whether heads divide among the ranks changes none of it.
#[test]
fn how_often_ranks_meet_does_not_depend_on_heads() {
    for mesh in ["fsdp=2", "fsdp=3", "fsdp=8"] {
        for kv_heads in ["model.kv_heads=1", "model.kv_heads=2", "model.kv_heads=4"] {
            let built = planned("llama", &[&format!("mesh.shape={mesh}"), kv_heads]);
            let counts = counts(&lowered(&built), 0);
            assert_eq!(
                seen(&counts.forward),
                [("all_reduce", 1, 2), ("all_gather", 5, 21)],
                "{mesh} {kv_heads}"
            );
            assert_eq!(
                seen(&counts.backward),
                [("all_gather", 3, 19), ("reduce_scatter", 5, 21)],
                "{mesh} {kv_heads}"
            );
            assert_eq!(seen(&counts.update), [("all_reduce", 1, 1)], "{mesh} {kv_heads}");
        }
    }
}

/// 96 features divide by 3, four heads do not: the layer meets as often as over two ranks.
#[test]
fn heads_that_do_not_divide_cost_no_exchange_where_features_would() {
    for mesh in ["tp=2", "tp=3"] {
        let counts = counts(&lowered(&planned("gpt", &[&format!("mesh.shape={mesh}")])), 0);
        assert_eq!(seen(&counts.forward), [("all_reduce", 4, 4)], "{mesh}");
        assert_eq!(seen(&counts.backward), [("all_reduce", 4, 4)], "{mesh}");
        assert_eq!(seen(&counts.update), [("all_reduce", 1, 20)], "{mesh}");
    }
}

/// Pairs of everything that may matter for uneven storage, each against one device.
#[test]
fn uneven_storage_changes_no_number() {
    let cases = [
        ("mlp", "fsdp=2", "f64", "1", "false"),
        ("mlp", "fsdp=3", "f32", "2", "false"),
        ("mlp", "fsdp=8", "f64", "2", "false"),
        ("gpt", "fsdp=2", "f32", "2", "true"),
        ("gpt", "fsdp=3", "f64", "1", "true"),
        ("gpt", "fsdp=8", "f32", "1", "false"),
        ("gpt", "fsdp=3,tp=2", "f64", "2", "false"),
        ("gpt", "fsdp=2,tp=3", "f64", "2", "true"),
        ("llama", "fsdp=2", "f64", "1", "false"),
        ("llama", "fsdp=3", "f32", "2", "false"),
        ("llama", "fsdp=8", "f64", "2", "true"),
        ("llama", "fsdp=3,tp=2", "f32", "1", "true"),
        ("llama", "tp=3,fsdp=2", "f64", "1", "false"),
        ("bert", "fsdp=2", "f64", "2", "true"),
        ("bert", "fsdp=3", "f32", "1", "false"),
        ("bert", "fsdp=8", "f64", "1", "true"),
        ("bert", "fsdp=3,tp=2", "f64", "2", "true"),
    ];
    for (name, mesh, dtype, microbatches, fused) in cases {
        let mut overrides = vec![
            format!("mesh.shape={mesh}"),
            format!("train.dtype={dtype}"),
            format!("train.microbatches={microbatches}"),
        ];
        match name {
            "mlp" => overrides.push("model.dims=[12,20,12]".to_string()),
            _ => overrides.extend([
                "model.dim=24".to_string(),
                "model.layers=1".to_string(),
                "model.sequence=8".to_string(),
                format!("model.fused_qkv={fused}"),
            ]),
        }
        if name != "bert" && name != "mlp" {
            overrides.push("model.kv_heads=2".to_string());
        }
        let session = Session::load(name, &overrides).unwrap_or_else(|error| panic!("{error}"));
        let verified = session
            .verify(6, &session.interpreter(), &Unwatched)
            .unwrap_or_else(|error| panic!("{overrides:?}: {error}"));
        assert!(verified.report.ok, "{name} {overrides:?}: {:?}", verified.report.worst());
        assert_eq!(verified.report.excused(), 0, "{name} {overrides:?}");
    }
}

/// The advice is another mesh, and both are priced: the step planned anew on the advised mesh takes less time.
#[test]
fn an_advised_mesh_is_better_by_the_cost_model() {
    let cases = [
        ("gpt", "tp=4", "model.heads=2", Some("dp=2,tp=2")),
        ("llama", "tp=4", "model.kv_heads=2", Some("dp=2,tp=2")),
        ("llama", "dp=2,tp=8", "model.kv_heads=2", Some("dp=8,tp=2")),
        ("llama", "tp=2", "model.kv_heads=2", None),
        ("llama", "fsdp=8", "model.kv_heads=2", None),
        ("llama", "fsdp=4,tp=2", "model.kv_heads=2", None),
    ];
    for (name, mesh, heads, advised) in cases {
        let on = |mesh: &str| planned(name, &["train.batch=16", heads, &format!("mesh.shape={mesh}")]);
        let given = on(mesh);
        let better = better_mesh(&given.stages[0].partitioned, &mut |mesh| {
            Ok(on(&mesh.to_string()).stages[0].partitioned.clone())
        });
        assert_eq!(
            better.as_ref().map(|better| better.mesh.to_string()).as_deref(),
            advised,
            "{name} {mesh}"
        );
        let shape = format!("mesh.shape={mesh}");
        let session = session(name, &["train.batch=16", heads, &shape]);
        let notes = session.notes(&session.model().unwrap(), &given);
        let notes: Vec<&String> = notes.iter().filter(|note| note.contains("next best mesh")).collect();
        let Some(better) = better else {
            assert!(notes.is_empty(), "{notes:?}");
            continue;
        };
        assert_eq!(notes, [&better.to_string()]);
        let price = |built: &Built| step_s(&built.stages[0].partitioned);
        let (given_s, step_s) = (price(&given), price(&on(&better.mesh.to_string())));
        assert_eq!((better.given_s, better.step_s), (given_s, step_s));
        assert!(step_s < given_s, "{name} {mesh}: {step_s} s on {}, {given_s} s as given", better.mesh);
    }
}

/// One row of a batch, and most of the work in wide feed-forward layers, which all four ranks share: with fewer ranks
/// for them a step takes longer, so that no other mesh is named.
#[test]
fn where_no_other_mesh_is_better_only_the_idle_ranks_are_named() {
    let sizes = ["model.dim=512", "model.heads=2", "model.mlp_ratio=8", "model.layers=1"];
    let session =
        session("gpt", &[&sizes[..], &["model.sequence=256", "train.batch=1", "mesh.shape=tp=4"]].concat());
    let built = session.build().unwrap();
    let notes = session.notes(&session.model().unwrap(), &built);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("ranks 1,3 are idle there"), "{notes:?}");
}
