//! Steps in pipeline stages: the programs of different stages on different slices of the mesh, with sends between them,
//! give what one device gives.

use partita::Session;
use partita::execution::{CpuStep, InterpretedCpuStep, stages};
use partita_ir::{Literal, Operation, Phase, Role};
use partita_pipeline::{Task, TaskKind, Timetable, timetables};
use partita_program::{Action, CollectiveKind, LowerOptions, ProgramSet, lower_stages};
use partita_runtime::Cpu;
use partita_schedule::Built;
use partita_schedule::verify::{Interpreter, StepRunner, Unwatched};

fn session(model: &str, overrides: &[&str]) -> Session {
    let sizes: &[&str] = match model {
        "mlp" => &["train.batch=8", "train.dtype=f64"],
        _ => &[
            "model.layers=3",
            "model.dim=16",
            "model.heads=2",
            "model.sequence=8",
            "train.batch=8",
            "train.dtype=f64",
        ],
    };
    let overrides: Vec<String> = sizes.iter().chain(overrides).map(|item| item.to_string()).collect();
    Session::load(model, &overrides).unwrap_or_else(|error| panic!("{error}"))
}

fn built(model: &str, overrides: &[&str]) -> Built {
    session(model, overrides).build().unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(built: &Built) -> ProgramSet {
    lower_stages(&stages(built), &LowerOptions::default(), &Cpu::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn stages_give_what_one_device_gives() {
    let cases = [
        ("gpt", "pp=2", "1", "0.1"),
        ("gpt", "pp=3", "2", "0"),
        ("gpt", "pp=2,tp=2", "3", "0"),
        ("gpt", "tp=2,pp=2", "2", "0"),
        ("llama", "pp=2,dp=2", "2", "0"),
        ("llama", "pp=3", "8", "0"),
        ("bert", "pp=2,fsdp=2", "2", "0"),
        ("bert", "pp=2,tp=3", "1", "0"),
        ("mlp", "pp=2", "3", ""),
        ("mlp", "pp=2,dp=3", "1", ""),
    ];
    for (model, mesh, microbatches, dropout) in cases {
        let mut overrides = vec![format!("mesh.shape={mesh}"), format!("train.microbatches={microbatches}")];
        if !dropout.is_empty() && dropout != "0" {
            overrides.push(format!("model.dropout={dropout}"));
        }
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let session = session(model, &overrides);
        for runner in [&CpuStep::default() as &dyn StepRunner, &InterpretedCpuStep::default()] {
            let verified = session
                .verify(8, runner, &Unwatched)
                .unwrap_or_else(|error| panic!("{model} on {mesh} by {}: {error}", runner.name()));
            let report = &verified.report;
            assert!(report.ok, "{model} on {mesh} by {}: {:?}", runner.name(), report.worst());
            assert!(report.tolerance <= 1e-9);
        }
    }
}

/// A session whose plan is this text.
fn planned(model: &str, text: &str, overrides: &[&str]) -> (tempfile::TempDir, Session) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("plan.toml");
    std::fs::write(&file, text).unwrap();
    let file = format!("plan.file={}", file.display());
    let overrides: Vec<&str> = [file.as_str()].iter().chain(overrides).copied().collect();
    let session = session(model, &overrides);
    (place, session)
}

#[test]
fn lines_without_layouts_are_added_to_the_built_in_plan() {
    // The axes that some value is sharded over, and the lines of the plan.
    let built = |text: &str| {
        let (_place, session) =
            planned("gpt", text, &["mesh.shape='dp=2,fsdp=2,tp=2'", "plan.vocab_parallel=true"]);
        let model = session.model().unwrap();
        let built = session.build_model(&model).unwrap_or_else(|error| panic!("{text}: {error}"));
        let notes = session.notes(&model, &built).join("\n");
        (built.plan, notes)
    };
    let added = ["\"layers.*\" = \"checkpoint\"", "\"**\" = [\"zero1\"]", "\"norm\" = \"precision(f32)\""];
    for line in added {
        let (plan, notes) = built(&format!("[plan]\n{line}\n"));
        assert!(
            plan.entries.iter().any(|entry| entry.line() == "\"layers.*.attn.q_proj\" = \"colwise\""),
            "{line}"
        );
        assert!(plan.entries.iter().any(|entry| entry.modules == line.split('"').nth(1).unwrap()), "{line}");
        assert!(!notes.contains("compute the same") && !notes.contains("changes nothing"), "{line}: {notes}");
    }
    // A plan of layouts is complete, but for storage over the axis `fsdp`, where it says nothing about that.
    for (text, count) in [
        ("[plan]\n\"norm\" = \"replicate\"\n\"**\" = \"replicate(axis=tp)\"\n", 3),
        ("[plan]\n\"lm_head\" = \"replicate\"\n\"**\" = [\"fsdp\", \"replicate(axis=tp)\"]\n", 3),
    ] {
        let (plan, notes) = built(text);
        assert_eq!(plan.entries.len(), count, "{text}");
        assert!(notes.contains("`--vocab-parallel` changes nothing"), "{text}: {notes}");
        let tp =
            notes.lines().find(|note| note.contains("`tp`")).unwrap_or_else(|| panic!("{text}: {notes}"));
        assert!(tp.contains("its 2 ranks all compute the same"), "{tp}");
    }
}

#[test]
fn strict_refuses_ranks_that_all_do_the_same_work() {
    let strict = |text: &str, mesh: &str| {
        let (_place, session) = planned("gpt", text, &["plan.strict=true", &format!("mesh.shape='{mesh}'")]);
        session.build().map(|_| ())
    };
    let repeats = "[plan]\n\"**\" = \"replicate(axis=tp)\"\n";
    for (text, mesh, axis) in [(repeats, "tp=2", "tp"), (repeats, "dp=2,tp=2", "tp")] {
        let error = strict(text, mesh).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            ("E009", "ranks of the mesh all do the same work"),
            "{error}"
        );
        assert!(error.notes[0].contains(&format!("axis `{axis}`")), "{error}");
    }
    strict("plan = []\n", "dp=2").unwrap();
    strict("[plan]\n\"layers.*\" = \"checkpoint\"\n", "dp=2,tp=2").unwrap();
}

/// An axis that nothing uses is a slip, unless a line says that its ranks repeat the work.
#[test]
fn an_axis_that_nothing_uses_is_refused() {
    let build = |text: &str, mesh: &str| {
        let (_place, session) = planned("gpt", text, &[&format!("mesh.shape='{mesh}'")]);
        session.build().map(|_| ())
    };
    let error = build("plan = []\n", "dpp=2").unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E009", "nothing uses the axis `dpp` of the mesh"));
    assert!(error.help.as_ref().is_some_and(|help| help.contains("`dp`")), "{error}");
    assert!(error.notes[0].contains("replicate(axis=dpp)"), "{error}");
    let error = build("plan = []\n", "dp=2,tp=2").unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E009", "nothing uses the axis `tp` of the mesh"));
    assert!(error.help.as_ref().is_some_and(|help| help.contains("replicate(axis=tp)")), "{error}");
    // A line for a part of the model says nothing about the rest.
    let part = |axis: &str| format!("[plan]\n\"lm_head\" = \"replicate(axis={axis})\"\n");
    assert_eq!(build(&part("tp"), "dp=2,tp=2").unwrap_err().code, "E009");
    assert_eq!(build(&part("dpp"), "dpp=2").unwrap_err().code, "E009");
    build("[plan]\n\"**\" = \"replicate(axis=dpp)\"\n", "dpp=2").unwrap();
    // Repeated work leaves the built-in plan over other axes as it is, and replaces it over its own.
    let lines = |axis: &str, mesh: &str| {
        let text = format!("[plan]\n\"**\" = \"replicate(axis={axis})\"\n");
        let (_place, session) = planned("mlp", &text, &[&format!("mesh.shape='{mesh}'")]);
        session.build().unwrap().plan.entries.len()
    };
    assert_eq!((lines("sp", "fsdp=2,sp=2"), lines("tp", "dp=2,tp=2")), (2, 1));
    build("[plan]\n\"layers.*.mlp.up_proj\" = \"colwise(axis=zz)\"\n", "zz=2").unwrap();
    // An axis of the whole mesh may be idle in some stages, which a note names; one that a stage names for itself may not.
    let one = "[plan]\n\"layers.1.mlp.up_proj\" = \"colwise\"\n\"layers.1.mlp.down_proj\" = \"rowwise\"\n";
    let (_place, session) = planned("gpt", one, &["mesh.shape='pp=2,tp=2'", "train.microbatches=4"]);
    let model = session.model().unwrap();
    let notes = session.notes(&model, &session.build_model(&model).unwrap()).join("\n");
    assert!(notes.contains("in stage 1, nothing is sharded over axis `tp`"), "{notes}");
    let stages = "[[stages]]\nuntil = \"layers.0\"\nmesh = \"tp=2\"\nplan = { \"layers.*.mlp.up_proj\" = \"colwise\" }\n\
                  [[stages]]\nmesh = \"tp=2\"\n";
    let error = build(stages, "pp=4").unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E009", "nothing uses the axis `tp` of the mesh"));
    assert!(error.found.as_ref().is_some_and(|found| found.starts_with("in stage 1, ")), "{error}");
    build(&format!("{stages}plan = {{ \"**\" = \"replicate(axis=tp)\" }}\n"), "pp=4").unwrap();
}

#[test]
fn a_stage_without_an_end_is_told_with_its_line() {
    let place = tempfile::tempdir().unwrap();
    let plan = |text: &str| partita_schedule::Plan::from_toml(text, "p.toml").map(|_| ()).unwrap_err();
    let error = plan("# two stages\n[[stages]] # the first\nmesh = \"tp=2\"\n[[stages]]\n");
    assert_eq!((error.code, error.at.as_deref()), ("E228", Some("p.toml:2, [[stages]] table 1 of 2")));
    assert!(error.expected.unwrap().contains("`until`") && error.found.unwrap() == "`mesh`");
    assert_eq!(error.help.as_deref(), Some("until = \"layers.1\""));
    // In a config, stages are a part of the plan.
    let model = "[model]\nkind = \"mlp\"\n[mesh]\nshape = \"pp=2\"\n[train]\nmicrobatches = 2\n";
    let config = |stages: &str| {
        let path = place.path().join("config.toml");
        std::fs::write(&path, format!("{model}{stages}")).unwrap();
        Session::load(path.to_str().unwrap(), &[]).and_then(|session| session.build())
    };
    let built = config("[[plan.stages]]\nuntil = \"layers.0\"\n[[plan.stages]]\n").unwrap();
    assert_eq!(built.stages.len(), 2);
    let error = config("[[plan.stages]]\n[[plan.stages]]\n").map(|_| ()).unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E228", Some("[plan], [[stages]] table 1 of 2")));
    let error = config("[[stages]]\nuntil = \"layers.0\"\n").map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E001");
    assert!(error.help.unwrap().contains("[[plan.stages]]"));
}

/// Two stages, each on a slice with its own mesh; `colwise` and `rowwise` layers where a slice has `tp`.
fn on_slices(until: &str, first: &str, second: &str) -> String {
    format!(
        "[[stages]]\nuntil = \"{until}\"\nmesh = \"{first}\"\n[[stages]]\nmesh = \"{second}\"\n\
         [plan]\n\"layers.*.mlp.up_proj\" = \"colwise\"\n\"layers.*.mlp.down_proj\" = \"rowwise\"\n"
    )
}

#[test]
fn slices_of_different_sizes_give_what_one_device_gives() {
    for (model, first, second, ranks) in [
        ("gpt", "tp=2", "tp=1", 3),
        ("gpt", "dp=2", "tp=2", 4),
        ("llama", "tp=3", "dp=2", 5),
        ("bert", "fsdp=2", "tp=2,dp=2", 6),
    ] {
        for microbatches in ["1", "3"] {
            let mesh = format!("mesh.shape=pp={ranks}");
            let microbatches = format!("train.microbatches={microbatches}");
            let text = on_slices("layers.1", first, second);
            let (_place, session) = planned(model, &text, &[&mesh, &microbatches]);
            for runner in [&CpuStep::default() as &dyn StepRunner, &InterpretedCpuStep::default()] {
                let verified = session
                    .verify(8, runner, &Unwatched)
                    .unwrap_or_else(|error| panic!("{model} on {first} and {second}: {error}"));
                let report = &verified.report;
                assert!(report.ok, "{model} on {first} and {second}: {:?}", report.worst());
                assert!(report.tolerance <= 1e-9);
            }
        }
    }
}

#[test]
fn every_timetable_gives_what_one_device_gives() {
    let training = timetables::ALL.iter().filter(|named| named.name != "inference");
    for (number, named) in training.enumerate() {
        // Each timetable with fewer, as many and more microbatches than stages.
        let (model, layers, mesh) = [
            ("gpt", "model.layers=8", "pp=2"),
            ("mlp", "model.dims=[8, 8, 8, 8, 8, 8, 8, 8, 4]", "pp=4"),
            ("llama", "model.layers=8", "pp=2,tp=2"),
        ][number % 3];
        for microbatches in [1, 3, 8] {
            let mesh = format!("mesh.shape={mesh}");
            let overrides = [
                layers,
                &mesh,
                &format!("train.microbatches={microbatches}"),
                &format!("train.timetable={}", named.name),
            ];
            let session = session(model, &overrides);
            let verified = session
                .verify(8, &CpuStep::default(), &Unwatched)
                .unwrap_or_else(|error| panic!("{model}, {overrides:?}: {error}"));
            assert!(verified.report.ok, "{model}, {overrides:?}: {:?}", verified.report.worst());
        }
    }
}

#[test]
fn a_timetable_of_ones_own_is_a_file() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("own.csv");
    let with = |text: &str, microbatches: &str| {
        std::fs::write(&file, text).unwrap();
        let overrides = [
            "mesh.shape=pp=2".to_string(),
            format!("train.microbatches={microbatches}"),
            format!("train.timetable={}", file.display()),
        ];
        let sizes = ["train.batch=8", "train.dtype=f64"].map(str::to_string);
        Session::load("mlp", &[&sizes[..], &overrides[..]].concat())
    };
    let own = "0F0,0F1,,0I1,0W1,0I0,0W0\n,1F0,1F1,1B1,1B0\n";
    let verified = with(own, "2").unwrap().verify(8, &CpuStep::default(), &Unwatched).unwrap();
    assert!(verified.report.ok, "{:?}", verified.report.worst());
    let code = |text: &str, microbatches: &str| {
        let refused = with(text, microbatches).and_then(|session| session.build().map(|_| ()));
        refused.unwrap_err().code
    };
    assert_eq!(code(own, "3"), "E463");
    assert_eq!(code("0F0,0X1\n1F0\n", "2"), "E500");
    assert_eq!(code("0B0,0F0\n1F0,1B0\n", "1"), "E461");
    assert_eq!(code("0F0,0B0\n1F0,1B0\n2F0,2B0\n", "1"), "E463");
}

#[test]
fn clustered_layers_give_what_one_device_gives() {
    for (model, line, mesh) in [
        ("gpt", "layers(4)", "pp=2"),
        ("gpt", "layers(3, remat=true)", "pp=3"),
        ("llama", "layers(2, remat=true)", "dp=2"),
        ("mlp", "layers(2)", "pp=2"),
    ] {
        let text = format!("[plan]\n\"\" = \"{line}\"\n");
        let (_place, session) =
            planned(model, &text, &[&format!("mesh.shape={mesh}"), "train.microbatches=2"]);
        let verified = session.verify(8, &CpuStep::default(), &Unwatched).unwrap();
        assert!(verified.report.ok, "{model} {line} on {mesh}: {:?}", verified.report.worst());
    }
    let (_place, session) = planned("mlp", "[plan]\n\"\" = \"layers(2)\"\n", &["mesh.shape=pp=3"]);
    assert_eq!(session.build().unwrap_err().code, "E460");
}

#[test]
fn fsdp_gathers_as_often_as_its_option_says() {
    // Gathers and reduce-scatters of tensors on one rank of a stage with two microbatches.
    let counted = |gather: &str| {
        let text = format!("[plan]\n\"**\" = \"fsdp(gather={gather})\"\n");
        let (_place, session) = planned("gpt", &text, &["mesh.shape=pp=2,fsdp=2", "train.microbatches=2"]);
        let verified = session.verify(8, &CpuStep::default(), &Unwatched).unwrap();
        assert!(verified.report.ok, "{gather}: {:?}", verified.report.worst());
        let built = session.build().unwrap();
        assert_eq!(
            built.notes.iter().any(|note| note.text.contains("of gathered parameters")),
            gather != "use"
        );
        let graph = built.local(0).unwrap();
        let of_parameters = |is_backward: bool| {
            let nodes = graph.nodes.iter().filter(|node| node.phase.is_backward() == is_backward);
            let gathers = nodes.filter(|node| node.op.name() == "stablehlo.all_gather");
            gathers.filter(|node| graph.value(node.operands[0]).role == Role::Param).count()
        };
        let scattered =
            graph.nodes.iter().filter(|node| node.op.name() == "stablehlo.reduce_scatter").count();
        (of_parameters(false), of_parameters(true), scattered)
    };
    let (often, pass, step) = (counted("use"), counted("pass"), counted("step"));
    assert!(pass.0 > 10 && pass.1 > 10 && pass.2 > 10, "{pass:?}");
    assert_eq!(often, (2 * pass.0, 2 * pass.1, 2 * pass.2));
    assert_eq!(step, (pass.0, 0, pass.2));
}

#[test]
fn a_model_without_module_names_is_cut_where_one_tensor_crosses() {
    let session = session("gpt", &["model.layers=8", "model.dropout=0", "model.tied=false"]);
    let mut forward = session.config().model.build(8, session.config().train.dtype, true).unwrap().forward;
    forward.nodes.iter_mut().for_each(|node| node.path = "".into());
    partita_pipeline::mark::evenly(&mut forward, 4).unwrap();
    let stages: Vec<usize> = forward.nodes.iter().map(|node| node.stage).collect();
    assert!(stages.is_sorted() && stages.last() == Some(&3));
    let cut = partita_pipeline::cut(&forward, 4, &|stage| stage);
    // The residual stream, `8x8x16`, and nothing else but the loss, which all stages return.
    let crossing =
        cut.edges.iter().map(|edge| &forward.ty(edge.value).shape).filter(|shape| !shape.is_empty());
    assert_eq!(crossing.collect::<Vec<_>>(), [&[8, 8, 16]; 3]);
}

#[test]
fn slices_that_do_not_fit_the_mesh_are_refused() {
    let refused = |text: &str, mesh: &str| {
        let (_place, session) = planned("gpt", text, &[&format!("mesh.shape={mesh}")]);
        session.build().map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(&on_slices("layers.1", "tp=2", "tp=1"), "pp=4").code, "E467");
    assert_eq!(refused(&on_slices("layers.1", "tp=2", "tp=2"), "pp=3").code, "E467");
    let overlapping = on_slices("layers.1", "tp=2", "tp=2\"\nranks = [1, 2]\n#");
    assert_eq!(refused(&overlapping, "pp=3").code, "E467");
    // A line over an axis that the slice of its modules does not have.
    let text = format!("{}\"layers.2.attn.o_proj\" = \"rowwise\"\n", on_slices("layers.1", "tp=2", "dp=1"));
    let error = refused(&text, "pp=3");
    assert_eq!(error.code, "E223");
    assert!(error.to_string().contains("layers.2.attn.o_proj"), "{error}");
}

#[test]
fn a_wrong_rule_in_a_later_stage_is_found() {
    let session = session("gpt", &["mesh.shape=pp=2,tp=2"]);
    let broken = session
        .with_broken_rule(Some("layers.2.mlp".into()))
        .verify(8, &InterpretedCpuStep::default(), &Unwatched)
        .unwrap();
    assert!(!broken.report.ok);
    let first = broken.report.first_diverging.expect("something differs");
    assert!(first.contains("layers.2.mlp"), "{first}");
}

#[test]
fn each_rank_holds_the_parameters_of_its_stage() {
    let built = built("gpt", &["mesh.shape=pp=3"]);
    let set = lowered(&built);
    let of_rank = |rank: usize| -> Vec<String> {
        let program = set.program(rank).unwrap();
        let parameters = program.inputs.iter().filter(|port| port.role == Role::Param);
        parameters.map(|port| port.name.clone()).collect()
    };
    let all: Vec<String> = (0..3).flat_map(of_rank).collect();
    assert_eq!(all.len(), built.step.params().len(), "each parameter lives once");
    let layers = all.iter().filter_map(|name| name.strip_prefix("layers.")?.split('.').next());
    let layers: Vec<&str> = layers.collect();
    assert!(layers.is_sorted(), "stages have their layers in order: {layers:?}");
    assert!((0..3).all(|rank| !of_rank(rank).is_empty()));
}

#[test]
fn values_cross_once_for_each_microbatch() {
    // Between two stages: an activation and its gradient per microbatch. The loss, the norm of the gradients and its parts
    // go to the stage that lacks them.
    let built = built("mlp", &["mesh.shape=pp=2", "train.microbatches=4"]);
    let set = lowered(&built);
    let sends: Vec<_> = set.collectives.iter().filter(|c| c.kind == CollectiveKind::Send).collect();
    let large = |phase: Phase| {
        let of_phase = sends.iter().filter(|c| c.phase == phase && c.microbatch.is_some());
        let tensors = of_phase.filter(|c| c.transfers[0].inputs.iter().any(|ty| ty.element_count() > 1));
        tensors.map(|c| c.transfers[0].full_bytes(0)).collect::<Vec<_>>()
    };
    let (forward, backward) = (large(Phase::Forward), large(Phase::InputGrad));
    assert_eq!(forward.len(), 4);
    assert_eq!(backward.len(), 4);
    let width = forward[0];
    assert!(forward.iter().chain(&backward).all(|&bytes| bytes == width), "{forward:?} {backward:?}");
}

/// The outputs of a step on the CPU device, with every input a ramp of small numbers.
fn outputs(built: &Built, runner: &dyn StepRunner) -> Vec<Literal> {
    let input = |(number, &value): (usize, &partita_ir::ValueId)| {
        let ty = built.step.ty(value);
        let number = number as f64 + 1.0;
        Literal::from_f64(ty, (0..ty.element_count()).map(|i| ((i as f64) * number * 0.37).sin().abs() * 0.1))
    };
    let inputs: Vec<Literal> = built.step.inputs.iter().enumerate().map(input).collect();
    runner.run(built, &inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// 1F1B with the two halves of each backward pass apart, and those of parameters as late as possible.
fn late_weights(stages: usize, microbatches: usize) -> Timetable {
    let whole = timetables::one_f_one_b(stages, microbatches);
    let split = |tasks: &Vec<Task>| {
        let halves = |task: &Task| match task.kind {
            TaskKind::Backward => Task { kind: TaskKind::InputGrad, ..*task },
            _ => *task,
        };
        let weights = tasks.iter().filter(|task| task.kind == TaskKind::Backward);
        let weights = weights.map(|task| Task { kind: TaskKind::WeightGrad, ..*task });
        tasks.iter().map(halves).chain(weights).collect()
    };
    Timetable { slices: whole.slices.iter().map(split).collect(), ..whole }
}

#[test]
fn timetables_change_the_order_and_no_number() {
    let mut built = built("mlp", &["mesh.shape=pp=2", "train.microbatches=4"]);
    let expected = outputs(&built, &Interpreter);
    let close = |found: &[Literal]| {
        for (a, b) in expected.iter().zip(found) {
            let worst = a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-12, "{worst}");
        }
    };
    for make in [timetables::one_f_one_b, timetables::gpipe, late_weights] {
        built.timetable = Some(make(2, 4));
        close(&outputs(&built, &CpuStep::default()));
    }
    // Apart: every matmul for a parameter of stage 0 comes after all those for activations and all sends.
    let set = lowered(&built);
    let program = set.program(1).unwrap();
    let last_send = program.instructions.iter().rposition(|instruction| {
        matches!(instruction.action, Action::Start(_)) && instruction.origin.phase == Phase::InputGrad
    });
    let weights = program.instructions.iter().position(|instruction| {
        instruction.origin.phase == Phase::WeightGrad && instruction.origin.what.contains("dot_general")
    });
    assert!(last_send.unwrap() < weights.unwrap(), "{last_send:?} {weights:?}");
}

#[test]
fn stages_that_cannot_be_are_refused() {
    let refused =
        |model: &str, overrides: &[&str]| session(model, overrides).build().map(|_| ()).unwrap_err().code;
    assert_eq!(refused("gpt", &["mesh.shape=pp=32"]), "E460");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("plan.py");
    std::fs::write(&file, "sch[\"layers.0\"].pipeline_split()\n").unwrap();
    let file = format!("plan.file={}", file.display());
    assert_eq!(refused("gpt", &[&file, "mesh.shape=pp=3"]), "E463");
    let split = built("gpt", &[&file, "mesh.shape=pp=2"]);
    let params = split.stages[1].partitioned.graph.params();
    let graph = &split.stages[1].partitioned.graph;
    let of_layers: Vec<&str> = params
        .iter()
        .map(|&p| graph.value(p).name.as_str())
        .filter(|name| name.starts_with("layers."))
        .collect();
    assert!(of_layers.iter().all(|name| !name.starts_with("layers.0.")) && of_layers.len() > 10);
}

/// The GPT of `partita bench gpt`, `small`.
const SMALL: [&str; 8] = [
    "model.layers=6",
    "model.dim=384",
    "model.heads=6",
    "model.sequence=256",
    "train.batch=32",
    "train.dtype=f32",
    "train.microbatches=8",
    "mesh.shape=pp=2",
];

/// `cargo test --release -p partita --test all makespan -- --ignored --nocapture`, on two cores that do nothing else: how long a
/// step takes beside what its timetable gives for the measured times of its tasks.
#[test]
#[ignore = "measures for half a minute"]
fn a_step_takes_the_makespan_of_its_timetable() {
    let session = session("gpt", &SMALL);
    let execution = partita::session::Execution { record: true, ..Default::default() };
    let session = session.with_execution(execution).unwrap();
    let model = session.model().unwrap();
    let built = session.build_model(&model).unwrap();
    let (set, table) = (session.lower(&built).unwrap(), built.timetable.clone().unwrap());
    let mut step = session.prepare(&built).unwrap();
    step.initialize(&model, 0).unwrap();
    let batch = session.feed(&model).unwrap().batch(0).unwrap();
    let last_microbatch = table.microbatches - 1;
    let mut ratios = Vec::new();
    for _ in 0..12 {
        step.step(&batch, 1e-4).unwrap();
        let events = step.train_loop.runner().events();
        // The nanoseconds of each task; those of the updates count with the last task of a stage.
        let mut task_ns = std::collections::BTreeMap::new();
        let (mut begin, mut end) = (u64::MAX, 0);
        for event in events {
            let program = set.class_of(event.rank).unwrap();
            let instruction = &program.instructions[event.instruction];
            if !matches!(instruction.action, Action::Compute(_)) {
                continue;
            }
            (begin, end) = (begin.min(event.begin_ns), end.max(event.end_ns));
            let microbatch = instruction.origin.microbatch.unwrap_or(last_microbatch);
            let is_forward =
                instruction.origin.phase == Phase::Forward && instruction.origin.microbatch.is_some();
            *task_ns.entry((event.rank, microbatch, is_forward)).or_insert(0) += event.nanos() as usize;
        }
        let duration = |task: Task| {
            let of =
                |is_forward| task_ns.get(&(task.stage, task.microbatch, is_forward)).copied().unwrap_or(0);
            if task.kind == TaskKind::Forward { of(true) } else { of(false) }
        };
        let makespan = table.times(duration).unwrap().makespan();
        ratios.push((end - begin) as f64 / makespan as f64);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "a step over the makespan of its tasks: least {:.3}, median {:.3}, most {:.3}",
        ratios[0], ratios[6], ratios[11]
    );
}
