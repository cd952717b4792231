//! Predictions from a folded layer against whole programs, published sizes and published answers.

use partita::models::named::{from_hugging_face, names};
use partita::predict::Blocks;
use partita::predict::attention::AttentionKernel;
use partita::predict::estimate::{Need, needs};
use partita::predict::fold::job;
use partita::predict::rows::read;
use partita::predict::step::{Job, Software, layers_of_stages};
use partita::{Config, Session};
use partita_cost::Cluster;
use partita_ir::Role;
use partita_simulate::{ClassRun, MemoryKind, simulate};

/// The session of a model with overrides.
fn session(name: &str, overrides: &[&str]) -> Session {
    let overrides: Vec<String> = overrides.iter().map(|item| item.to_string()).collect();
    Session::load(name, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

/// The most bytes in use at once beside scratch memory.
fn without_scratch(class: &ClassRun) -> usize {
    let bytes = |kinds: &[usize; 7]| kinds.iter().sum::<usize>() - kinds[MemoryKind::Workspace as usize];
    class.memory.over_time.iter().map(|(_, kinds)| bytes(kinds)).max().unwrap_or(0)
}

#[test]
fn a_folded_step_is_the_whole_one() {
    // Parameters and states are those of the whole programs to the byte, whatever the mesh; time is near that of the
    // executor over a clock on one rank, where nothing overlaps.
    let sizes = ["model.layers=6", "model.dim=512", "model.heads=8", "model.sequence=128", "train.batch=8"];
    for (name, mesh) in
        [("gpt", "dp=1"), ("gpt", "tp=2"), ("llama", "dp=2,tp=2"), ("llama", "pp=2"), ("bert", "pp=2,tp=2")]
    {
        let mesh = format!("mesh.shape='{mesh}'");
        let mut overrides = sizes.to_vec();
        overrides.extend([mesh.as_str(), "train.microbatches=2", "cluster.name=a100-8", "train.dtype=bf16"]);
        let session = session(name, &overrides);
        let cluster = &session.config().cluster;
        let job = job(&session).unwrap_or_else(|error| panic!("{error}"));
        let forecast = Blocks::default().forecast(&job, cluster, &Software::default()).unwrap();
        let set = session.lower(&session.build().unwrap()).unwrap();
        let whole: usize = session.model().unwrap().parameter_count();
        assert_eq!(forecast.parameters, whole as f64, "{name} {mesh}");
        for program in &set.programs {
            let slice = program.rank() * job.pp / session.mesh().rank_count();
            let bytes = |wanted: fn(&Role) -> bool| -> f64 {
                let ports = program.inputs.iter().filter(|port| wanted(&port.role));
                ports.map(|port| program.buffer(port.buffer).bytes as f64).sum()
            };
            let (parameters, states) =
                (bytes(|role| *role == Role::Param), bytes(|role| matches!(role, Role::StateOf(_))));
            let folded = forecast.stages[slice];
            assert_eq!(
                (folded.parameters, folded.optimizer_state),
                (parameters, states),
                "{name} {mesh}: slice {slice}"
            );
        }
        if session.mesh().rank_count() == 1 {
            let clocked = simulate(&set, cluster).unwrap().step_s;
            let ratio = forecast.seconds.step_s / clocked;
            assert!(
                (0.7..1.4).contains(&ratio),
                "{name} {mesh}: {} s folded, {clocked} s whole",
                forecast.seconds.step_s
            );
        }
    }
}

#[test]
fn model_flops_are_those_of_one_device_whatever_the_plan() {
    // D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021,
    // equation 3 without recomputation: 72 B s l h^2 (1 + s / 6h + V / 12lh).
    let (rows, tokens, layers, dim, vocab) = (32.0, 1024.0, 24.0, 1024.0, 51200.0f64);
    let published = 72.0
        * rows
        * tokens
        * layers
        * dim
        * dim
        * (1.0 + tokens / (6.0 * dim) + vocab / (12.0 * layers * dim));
    let place = tempfile::tempdir().unwrap();
    let plan = |name: &str, text: &str| {
        std::fs::write(place.path().join(name), text).unwrap();
        format!("plan.file='{}'", place.path().join(name).display())
    };
    let replicated = plan("replicated.toml", "plan = []\n");
    let recomputed = plan("recomputed.toml", "[plan]\n\"layers.*\" = \"checkpoint\"\n");
    let (alone, ready) = ("plan.strict=false".to_string(), "plan.sequence_parallel=true".to_string());
    for (mesh, plan) in [
        ("dp=1", &alone),
        ("tp=8", &ready),
        ("tp=8", &replicated),
        ("dp=2,tp=2", &recomputed),
        ("sp=2,dp=2", &replicated),
    ] {
        let mesh = format!("mesh.shape='{mesh}'");
        let batch = ["train.batch=32", "train.microbatches=2"];
        let session = session("gpt-350m", &[&batch[..], &[&mesh, plan]].concat());
        let cluster = Cluster::ready("a100-80g").unwrap();
        let forecast =
            Blocks::default().forecast(&job(&session).unwrap(), &cluster, &Software::default()).unwrap();
        assert!(
            (forecast.flops / published - 1.0).abs() < 1e-9,
            "{mesh} {plan}: {} and {published}",
            forecast.flops
        );
    }
}

#[test]
fn sizes_that_are_only_planned_may_be_large() {
    // The batch of GPT-3 on one device in one microbatch: scores of 6e11 elements, which no process could hold.
    let config =
        Config::load("gpt3-175b", &["train.batch=1536".to_string()]).unwrap_or_else(|e| panic!("{e}"));
    let session = Session::new(config).unwrap();
    assert_eq!(session.check_runs_here().unwrap_err().code, "E015");
    let error = Config::load("gpt3-175b", &["train.batch=1000000000".to_string()]).map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E015", "{error}");
}

#[test]
fn the_rest_of_a_mesh_is_that_of_the_cluster() {
    let mesh = |cluster: &str| {
        let overrides = [format!("cluster.name={cluster}"), "mesh.shape='dp=2,tp=-1'".to_string()];
        Session::load("gpt", &overrides).map(|session| session.mesh().to_string())
    };
    assert_eq!(mesh("a100-80g:1x8").unwrap(), "dp=2,tp=4");
    assert_eq!(mesh("a100-80g:4x8").unwrap(), "dp=2,tp=16");
    let error = mesh("h100-pod").unwrap_err();
    assert!(error.code == "E205" && error.to_string().contains("cluster `h100-pod`"), "{error}");
    let error = mesh("a100-80g:3").unwrap_err();
    assert_eq!(error.code, "E206", "{error}");
}

#[test]
fn layers_are_spread_evenly_with_the_ends_last() {
    assert_eq!(layers_of_stages(8, 4), [2, 2, 2, 2]);
    assert_eq!(layers_of_stages(6, 4), [1, 2, 2, 1]);
    assert_eq!(layers_of_stages(2, 4), [0, 1, 1, 0]);
}

#[test]
fn named_models_have_their_published_sizes() {
    // Billions of parameters, by the papers and model cards.
    let published = [
        ("gpt2-124m", 0.124),
        ("gpt2-1.5b", 1.558),
        ("gpt3-175b", 174.6),
        ("gpt-529.6b", 529.6),
        ("llama-7b", 6.738),
        ("llama2-70b", 68.98),
        ("llama3-8b", 8.030),
        ("llama3-405b", 405.9),
        ("bert-large", 0.335),
    ];
    for (name, billions) in published {
        assert!(names().contains(&name));
        let session = session(name, &["train.batch=1"]);
        let job = job(&session).unwrap();
        let cluster = Cluster::ready("a100-80g").unwrap();
        let parameters =
            Blocks::default().forecast(&job, &cluster, &Software::default()).unwrap().parameters / 1e9;
        assert!((parameters / billions - 1.0).abs() < 0.005, "{name}: {parameters} billion");
    }
}

#[test]
fn names_are_found_in_any_case_and_near_ones_are_told() {
    assert_eq!(session("GPT3-13B", &["train.batch=1"]).config().model.stream(), Some([40, 2048, 5120]));
    assert_eq!(session("Llama2-7b", &["train.batch=1"]).config().model.name(), "llama");
    assert_eq!(session("GPT", &[]).config().model.name(), "gpt");
    let error = Config::load("GPT3-14b", &[]).map(|_| ()).unwrap_err();
    assert!(error.code == "E005" && error.help.as_deref().unwrap().contains("`gpt3-13b`"), "{error}");
    assert!(error.notes.iter().any(|note| names().iter().all(|name| note.contains(name))), "{error}");
}

#[test]
fn a_description_of_hugging_face_is_a_model() {
    let text = r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}"#;
    let table = from_hugging_face(text, "config.json").unwrap();
    assert_eq!(table["kv_heads"].as_integer(), Some(8));
    let window = |kind: &str, more: &str| {
        let text = text.replace("\"llama\"", &format!("\"{kind}\", \"sliding_window\": 4096{more}"));
        from_hugging_face(&text, "config.json").unwrap().get("window").and_then(|window| window.as_integer())
    };
    assert_eq!((window("mistral", ""), window("qwen2", "")), (Some(4096), None));
    assert_eq!(window("qwen2", ", \"use_sliding_window\": true"), Some(4096));
    for (text, at) in [
        ("{\"model_type\": \n \"llama\",, }", "config.json:2:10"),
        ("{\"model_type\": \"mamba\"}", "config.json"),
        ("{\"model_type\": \"gpt2\", \"n_layer\": 0}", "config.json"),
    ] {
        let error = from_hugging_face(text, "config.json").unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E512", Some(at)), "{error}");
    }
}

#[test]
fn thirteen_billion_parameters_need_what_the_rule_of_thumb_says() {
    // "FSDP with FULL_SHARD, activation checkpointing, and DecoupledLionW: 4xA100-40GB, or 2xA100-80GB".
    for (cluster, devices) in [("a100-40g", 4), ("a100-80g", 2)] {
        let session = session("gpt-13b", &[&format!("cluster.name={cluster}")]);
        let found = needs(&session, 8, &|_, _| {}).unwrap();
        assert!((12.5e9..13.2e9).contains(&found.parameters));
        let fsdp = |optimizer: &str| {
            let is = |need: &&Need| {
                let choice = &need.choice;
                choice.strategy.name() == "fsdp" && choice.optimizer == optimizer && choice.recompute
            };
            found.choices.iter().find(is).unwrap().fewest.as_ref().map(|fit| fit.devices)
        };
        assert_eq!(fsdp("lion"), Some(devices));
        assert!(fsdp("adamw") > Some(devices), "AdamW has one state more");
    }
}

/// A table of one run with these changes.
fn table(changes: &[(&str, &str)]) -> String {
    let mut fields = vec![
        ("row_id", "a-1"),
        ("source_id", "a"),
        ("hw_gpu", "A100-SXM-80GB"),
        ("gpus", "32"),
        ("gpus_per_node", "8"),
        ("layers", "8"),
        ("hidden", "1024"),
        ("heads", "8"),
        ("kv_heads", "8"),
        ("ffn", "4096"),
        ("mlp", "gelu"),
        ("vocab", "51200"),
        ("seq", "2048"),
        ("gbs", "64"),
        ("mbs", "2"),
        ("tp", "4"),
        ("pp", "2"),
        ("dp", "4"),
        ("vpp", "1"),
        ("seq_parallel", "1"),
        ("zero_stage", "1"),
        ("recompute", "full"),
        ("dtype", "bf16"),
        ("step_time_s", "1.5"),
        ("source", ""),
        ("overlap_notes", ""),
    ];
    for (name, value) in changes {
        fields.iter_mut().find(|field| field.0 == *name).unwrap().1 = value;
    }
    let [head, row] = [|f: &(&str, &str)| f.0.to_string(), |f: &(&str, &str)| f.1.to_string()]
        .map(|of| fields.iter().map(of).collect::<Vec<_>>().join(","));
    format!("{head}\n{row}\n")
}

#[test]
fn a_row_is_a_mesh_with_styles() {
    let rows = read(&table(&[]), "t").unwrap();
    let (job, cluster) = rows[0].job.as_ref().unwrap();
    assert_eq!((job.block.tp, job.pp, job.dp, job.microbatches, job.zero), (4, 2, 4, 8, 1));
    assert!(job.block.sequence_parallel && job.block.vocab_parallel);
    assert_eq!(cluster.levels.iter().map(|level| level.ranks).collect::<Vec<_>>(), [Some(8), Some(32)]);
    assert_eq!(rows[0].tokens, 64.0 * 2048.0);
    for (change, why) in [
        (("tp", "3"), "are not 32 devices"),
        (("mbs", ""), "`mbs` is not published"),
        (("mbs", "3"), "do not divide"),
        (("hw_gpu", "abacus"), "no figures"),
        (("ffn", "4000"), "no multiple"),
    ] {
        let rows = read(&table(&[change]), "t").unwrap();
        let refusal = rows[0].job.as_ref().unwrap_err();
        assert!(refusal.contains(why), "{change:?}: {refusal}");
    }
    for (change, why) in
        [(("zero_stage", "9"), "unknown ZeRO stage"), (("recompute", "some"), "unknown recomputation")]
    {
        let rows = read(&table(&[change]), "t").unwrap();
        assert!(rows[0].job.as_ref().unwrap_err().contains(why), "{change:?}");
    }
    for seconds in ["0", "-1"] {
        assert_eq!(read(&table(&[("step_time_s", seconds)]), "t").unwrap_err().code, "E513");
    }
    let error = read(&table(&[("layers", "eight")]), "t").unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E513", Some("t:2:26")));
}

/// An encoder and a decoder, of which two blocks are one layer: parameters, states and what is kept are those of the whole
/// programs; seconds are within 5 % of theirs, and all bytes within 6 %, or within 20 % where ranks share a layer.
#[test]
fn a_folded_encoder_and_decoder_is_the_whole_one() {
    let sizes =
        ["model.layers=5", "train.dtype=bf16", "cluster.name=a100-8", "train.batch=8", "plan.strict=false"];
    for (name, mesh) in
        [("t5-base", "dp=1"), ("t5-small", "tp=2"), ("t5-small", "dp=2"), ("t5-base", "fsdp=4")]
    {
        let mesh = format!("mesh.shape='{mesh}'");
        let session = session(name, &[&sizes[..], &[&mesh]].concat());
        let cluster = &session.config().cluster;
        let job = job(&session).unwrap_or_else(|error| panic!("{error}"));
        let forecast = Blocks::default().forecast(&job, cluster, &Software::default()).unwrap();
        let set = session.lower(&session.build().unwrap()).unwrap();
        assert_eq!(forecast.parameters, session.model().unwrap().parameter_count() as f64, "{name} {mesh}");
        let program = &set.programs[0];
        let bytes = |wanted: fn(&Role) -> bool| -> f64 {
            let ports = program.inputs.iter().filter(|port| wanted(&port.role));
            ports.map(|port| program.buffer(port.buffer).bytes as f64).sum()
        };
        let own = [bytes(|role| *role == Role::Param), bytes(|role| matches!(role, Role::StateOf(_)))];
        let folded = forecast.fullest();
        assert_eq!([folded.parameters, folded.optimizer_state], own, "{name} {mesh}");
        let simulation = simulate(&set, cluster).unwrap();
        // Without the scratch memory of this machine's kernels, which other devices do not need.
        let whole = simulation.classes.iter().map(without_scratch).max().unwrap() as f64;
        let errors = [folded.total() / whole - 1.0, forecast.seconds.step_s / simulation.step_s - 1.0];
        // How much is gathered or reduced at a time is only estimated.
        let of_bytes = if mesh.contains("dp=") && !mesh.contains("fsdp") { 0.06 } else { 0.2 };
        let is_near = errors[0].abs() < of_bytes && errors[1].abs() < 0.05;
        assert!(is_near, "{name} {mesh}: bytes and seconds {errors:?}");
    }
}

/// Stages of an encoder and a decoder differ, so their pipelines run whole, and `simulate` says so only where it folds.
#[test]
fn pipelines_of_an_encoder_and_a_decoder_are_not_folded() {
    let large =
        ["mesh.shape='pp=2,tp=4'", "train.batch=8", "train.microbatches=2", "cluster.name=a100-80g:1x8"];
    let session = session("t5-11b", &large);
    assert!(!session.is_folded());
    let error = session.price_folded(None).unwrap_err();
    assert!(error.code == "E511" && error.to_string().contains("`pp=2`"), "{error}");
    assert!(self::session("t5-11b", &["train.batch=1"]).is_folded());
}

/// What a row says about kernels, gradients and recomputation reaches its prediction.
#[test]
fn a_row_says_what_its_software_does() {
    let job = |changes: &[(&str, &str)]| {
        let rows = read(&table(changes), "t").unwrap();
        let (job, cluster) = rows[0].job.clone().unwrap();
        (job, cluster, rows[0].is_recompute_known)
    };
    let attention = |heads| job(&[("heads", heads), ("kv_heads", heads), ("dtype", "fp16")]).0.attention;
    // Heads of 64 features fit matrix units, heads of 2 do not.
    assert_eq!(attention("16"), AttentionKernel::Unfused(0.6));
    assert_eq!(attention("512"), AttentionKernel::Unfused(0.15));
    let is_known = |recompute| job(&[("recompute", recompute)]).2;
    assert!(is_known("none") && !is_known(""));

    // 32 ranks are five doublings.
    let (job, cluster, _) = job(&[]);
    let seconds = |stragglers| {
        let software = Software { stragglers, ..Software::default() };
        Blocks::default().forecast(&job, &cluster, &software).unwrap().seconds
    };
    let (alone, waiting) = (seconds(0.0), seconds(0.01));
    assert!((waiting.step_s / alone.step_s - 1.05).abs() < 1e-9);
    assert!((waiting.exposed_s - alone.exposed_s - 0.05 * alone.step_s).abs() < 1e-9);
}

/// What is known of the software of a row reaches its seconds and bytes.
#[test]
fn a_row_names_its_software() {
    let forecast = |changes: &[(&str, &str)], software: &Software| {
        let rows = read(&table(changes), "t").unwrap();
        let (job, cluster) = rows[0].job.clone().unwrap();
        let forecast = Blocks::default().forecast(&job, &cluster, software).unwrap();
        (job, forecast, rows[0].is_made_to_fit)
    };
    let plain = Software::default();
    let (job, others, _) = forecast(&[("pp", "1"), ("dp", "8")], &plain);
    let (own, intern, _) = forecast(&[("pp", "1"), ("dp", "8"), ("source", "InternLM/InternEvo")], &plain);
    // Half precision twice; a copy and two moments in single precision, and during the update three more numbers.
    let elements = intern.fullest().parameters / 2.0;
    assert_eq!(intern.fullest().gradients, 2.0 * elements);
    assert_eq!(intern.fullest().optimizer_state, 24.0 * elements / 8.0);
    assert_eq!(others.fullest().optimizer_state, 12.0 * elements / 8.0);
    assert!(own.overlaps && own.broadcasts && !job.overlaps && !job.broadcasts);
    // Ten layers on four stages: 2, 2, 3, 3 instead of 2, 3, 3, 2, and the head is on the last one.
    let of_stages = |source: &str| {
        let sizes = [("layers", "10"), ("pp", "4"), ("dp", "2"), ("source", source)];
        forecast(&sizes, &plain).1.stages.iter().map(|bytes| bytes.parameters).collect::<Vec<f64>>()
    };
    let (left, middle) = (of_stages("InternLM/InternEvo"), of_stages(""));
    assert!(left[3] > middle[3] && left[1] < middle[1] && left[0] == middle[0], "{left:?} {middle:?}");

    // A launch that blocks costs as much as one that is said to take so long.
    let launch = Software { launch_s: 100e-6, ..plain };
    let blocking = forecast(&[("overlap_notes", "CUDA_LAUNCH_BLOCKING=1 likely")], &plain).1;
    assert_eq!(blocking.seconds, forecast(&[], &launch).1.seconds);

    // MXFP8 writes each operand twice.
    let wide = [("hw_gpu", "H100-SXM-80GB"), ("hidden", "8192"), ("ffn", "32768")];
    let eighth = |dtype| forecast(&[&wide[..], &[("dtype", dtype)]].concat(), &plain).1.seconds.compute_s;
    assert!(eighth("fp8") < eighth("mxfp8") && eighth("mxfp8") < eighth("bf16"));
    assert!(forecast(&[("hw_gpu", "TPU-v4-32GB")], &plain).2 && !forecast(&[], &plain).2);

    // Eight ranks that gather each layer wait for each other in each one: three doublings, beside five of all ranks.
    let waiting = Software { stragglers: 0.01, layer_stragglers: 0.02, ..plain };
    let sharded = [("pp", "1"), ("dp", "8"), ("zero_stage", "3")];
    let ratio = |zero: &[(&str, &str)]| {
        forecast(zero, &waiting).1.seconds.step_s / forecast(zero, &plain).1.seconds.step_s
    };
    assert!((ratio(&sharded) - 1.11).abs() < 1e-9 && (ratio(&sharded[..2]) - 1.05).abs() < 1e-9);
}

/// A layer with more rows is that of few rows, stretched.
#[test]
fn a_layer_grows_evenly_with_its_rows() {
    for (model, mesh) in [("gpt-350m", "tp=4"), ("llama2-7b", "dp=1")] {
        let batch = ["train.batch=8", "train.microbatches=1"];
        let session = session(model, &[&batch[..], &[&format!("mesh.shape='{mesh}'")]].concat());
        let spec = job(&session).unwrap().block;
        assert_eq!(spec.rows, 8);
        let (mut derived, mut compiled) = (Blocks::default(), Blocks::default());
        let (derived, compiled) = (derived.at_rows(&spec).unwrap(), compiled.of(&spec).unwrap());
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        assert_eq!(derived.two.items.len(), compiled.two.items.len(), "{model}");
        for (one, other) in derived.two.items.iter().zip(&compiled.two.items) {
            assert!(
                near(one.flops, other.flops) && near(one.bytes, other.bytes),
                "{model}: {one:?} {other:?}"
            );
        }
        for at in 0..3 {
            assert!(near(derived.two.saved[at], compiled.two.saved[at]), "{model}");
            assert!(near(derived.two.transient[at], compiled.two.transient[at]), "{model}");
        }
        assert!(
            near(derived.stream_bytes, compiled.stream_bytes)
                && near(derived.one.whole_flops, compiled.one.whole_flops)
        );
    }
}

/// The closed form of a pipeline's memory against whole programs, which it understates a little; also of timetables that
/// delay gradients of weights, with their tasks over a clock and without.
#[test]
fn the_closed_form_of_memory_is_near_that_of_whole_programs() {
    let sizes = ["model.layers=8", "model.dim=256", "model.heads=8", "model.sequence=128", "train.batch=32"];
    for timetable in ["1f1b", "zb-h1", "zb-h2"] {
        let timetable = format!("train.timetable={timetable}");
        let more = ["mesh.shape='pp=4'", "train.microbatches=8", "train.dtype=bf16", timetable.as_str()];
        let session = session("gpt", &[&sizes[..], &more].concat());
        let set = session.lower(&session.build().unwrap()).unwrap();
        for clocked in [true, false] {
            let job = Job { clocked, ..job(&session).unwrap() };
            let cluster = &session.config().cluster;
            let forecast = Blocks::default().forecast(&job, cluster, &Software::default()).unwrap();
            for (program, bytes) in set.programs.iter().zip(&forecast.stages) {
                let ratio = bytes.total() / program.arena_bytes as f64;
                let what = format!("{timetable}, clocked {clocked}, ranks {:?}: {ratio}", program.ranks);
                assert!((0.87..1.0).contains(&ratio), "{what}");
            }
        }
    }
}

/// Experts that drop no token, whose rows depend on data: the closed form against whole programs.
#[test]
fn the_closed_form_of_experts_is_near_that_of_whole_programs() {
    let mut wrong = Vec::new();
    let sizes = ["model.kind='mixtral'", "model.experts=8", "model.dim=256", "model.heads=8"];
    for (mesh, layers, microbatches, more) in [
        ("dp=1", 4, 1, ""),
        ("dp=1", 4, 4, ""),
        ("dp=2", 4, 1, ""),
        ("ep=2", 4, 1, ""),
        ("ep=4", 4, 4, ""),
        ("pp=2,dp=2", 4, 4, ""),
        ("tp=2", 4, 1, ""),
        ("fsdp=4", 4, 1, ""),
        ("dp=4", 4, 1, "plan.\"**\"='zero2'"),
        ("dp=2", 4, 1, "plan.\"layers.*\"='checkpoint'"),
        ("pp=2,ep=2", 4, 4, "plan.\"layers.*\"='checkpoint'"),
    ] {
        let mut overrides: Vec<String> = sizes.iter().map(|item| item.to_string()).collect();
        overrides.push(format!("mesh.shape='{mesh}'"));
        overrides.push(format!("model.layers={layers}"));
        overrides.push(format!("train.microbatches={microbatches}"));
        overrides.push(format!("train.batch={}", 8 * microbatches));
        overrides.extend(["model.sequence=256", "train.dtype=bf16"].map(str::to_string));
        overrides.extend((!more.is_empty()).then(|| more.to_string()));
        let session = Session::load("llama", &overrides).unwrap_or_else(|error| panic!("{error}"));
        let set = session.lower(&session.build().unwrap()).unwrap();
        let job = job(&session).unwrap();
        let forecast =
            Blocks::default().forecast(&job, &session.config().cluster, &Software::default()).unwrap();
        // Without the scratch memory of this machine's kernels, which other devices do not need.
        let simulation = simulate(&set, &session.config().cluster).unwrap();
        let whole = simulation.classes.iter().map(without_scratch).max().unwrap() as f64;
        let bytes = forecast.fullest();
        let ratio = bytes.total() / whole;
        // Layers that are recomputed begin early to gather the rows of their experts, several at a time.
        let least = if mesh.contains("ep") && !more.is_empty() { 0.75 } else { 0.85 };
        if !(least..1.15).contains(&ratio) {
            wrong.push(format!("{mesh}, {microbatches} microbatches {more}: {ratio} of {whole}: {bytes:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
