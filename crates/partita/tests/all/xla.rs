//! Steps exported for XLA: the one program of all ranks, on the interpreter, and what the manifest says of it.

use crate::session;
use partita::xla::{Form, Kind, export};
use partita_ir::{Literal, Role, evaluate};
use partita_schedule::feed::random_feed;
use partita_spmd::{uniform, virtual_ranks};
use std::collections::{BTreeMap, BTreeSet};

/// Small models, by name, with a batch that no mesh below but dp=3 divides unevenly.
fn sizes(model: &str) -> Vec<&'static str> {
    match model {
        "mlp" => vec!["model.dims=[6,12,6]", "train.batch=8"],
        _ => vec![
            "model.layers=1",
            "model.dim=16",
            "model.heads=4",
            "model.sequence=8",
            "model.vocab=256",
            "model.dropout=0.1",
            "train.batch=8",
        ],
    }
}

#[test]
fn the_program_of_all_ranks_gives_the_numbers_of_one_device() {
    for model in ["mlp", "gpt"] {
        for mesh in ["tp=2", "dp=2", "dp=2,tp=2", "fsdp=4", "dp=3", "fsdp=3", "fsdp=3,tp=2"] {
            let mut overrides = sizes(model);
            let shape = format!("mesh.shape={mesh}");
            overrides.extend([shape.as_str(), "train.dtype=f64"]);
            let session = session(model, &overrides);
            let source = session.model().unwrap();
            let built =
                session.build_model(&source).unwrap_or_else(|error| panic!("{model} on {mesh}: {error}"));
            let partitioned = &built.stages[0].partitioned;
            let fed = random_feed(&source, 3, 0.2);
            let initial = source.initial(3).unwrap();
            let inputs: Vec<Literal> = built
                .step
                .inputs
                .iter()
                .map(|&input| {
                    let value = built.step.value(input);
                    let known = fed.get(&value.name).or_else(|| initial.get(&value.name)).cloned();
                    match (&value.role, value.name.as_str()) {
                        (Role::StateOf(_), _) => Literal::zeros(&value.ty),
                        (_, "learning_rate") => Literal::splat(&value.ty, 1e-3),
                        (_, "step") => Literal::splat(&value.ty, 1.0),
                        (_, name) => {
                            known.unwrap_or_else(|| panic!("{model} on {mesh}: no value for {name}"))
                        }
                    }
                })
                .collect();
            let expected = evaluate(&built.step, &inputs).unwrap();
            let program = uniform(partitioned).unwrap_or_else(|error| panic!("{model} on {mesh}: {error}"));
            let actual = virtual_ranks::interpret_uniform(partitioned, &program, &inputs).unwrap();
            for ((actual, expected), name) in actual.iter().zip(&expected).zip(&built.step.output_names) {
                let (actual, expected) = (actual.to_f64(), expected.to_f64());
                let most = expected.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
                let worst = actual.iter().zip(&expected).map(|(a, e)| (a - e).abs()).fold(0.0, f64::max);
                assert!(worst <= 1e-9 * most, "{model} on {mesh}: `{name}` is off by {worst:e}");
            }
        }
    }
}

#[test]
fn the_manifest_says_where_every_element_of_every_tensor_is() {
    for (form, mesh) in
        [(Form::Uniform, "fsdp=3"), (Form::Uniform, "dp=2,tp=2"), (Form::Global, "fsdp=2,tp=2")]
    {
        let mut overrides = sizes("gpt");
        let shape = format!("mesh.shape={mesh}");
        overrides.extend([shape.as_str(), "train.steps=2"]);
        let step =
            export(&session("gpt", &overrides), form, None).unwrap_or_else(|error| panic!("{mesh}: {error}"));
        let [module] = &step.manifest.modules[..] else { panic!("one stage") };
        for tensor in module.inputs.iter().chain(&module.outputs) {
            let mut held = vec![false; tensor.shape.iter().product()];
            assert_eq!(tensor.shards.len(), module.ranks.len(), "{}", tensor.name);
            for shard in &tensor.shards {
                for (place, held) in partita_ir::literal::indices(&tensor.shape).zip(&mut held) {
                    *held |= place.iter().zip(shard).all(|(at, [start, limit])| (start..limit).contains(&at));
                }
                assert!(shard.iter().zip(&tensor.held).all(|([start, limit], most)| limit - start <= *most));
            }
            assert!(!held.contains(&false), "{} on {mesh}", tensor.name);
        }
        // What is kept has an initial value or starts at zero, and is donated to the result of its name.
        for input in &module.inputs {
            let is_kept = input.kind.is_kept();
            assert_eq!(input.replaced_by.is_some(), is_kept, "{}", input.name);
            if let Some(output) = input.replaced_by {
                assert_eq!(module.outputs[output].name, input.name);
                assert_eq!(
                    (&module.outputs[output].held, module.outputs[output].kind),
                    (&input.held, Kind::NewValue)
                );
            }
            assert_eq!(step.state.contains_key(&input.name), input.kind == Kind::Parameter, "{}", input.name);
            if let Some((name, [start, limit])) = &input.rows {
                let whole = &step.feeds[&format!("2/{name}")];
                assert!(start < limit && *limit <= whole.shape[0] && whole.shape[1..] == input.shape[1..]);
            }
        }
        assert_eq!(step.manifest.learning_rates.len(), 2);
        assert_eq!((module.outputs[0].name.as_str(), module.outputs[0].kind), ("loss", Kind::Loss));
    }
}

#[test]
fn pieces_of_stages_read_what_pieces_before_them_return() {
    for (mesh, microbatches, timetable) in
        [("pp=2", 1, "1f1b"), ("dp=2,pp=2", 4, "1f1b"), ("pp=2", 4, "zb-h1")]
    {
        let mut overrides = sizes("gpt");
        let settings = [
            format!("mesh.shape={mesh}"),
            format!("train.microbatches={microbatches}"),
            format!("train.timetable={timetable}"),
        ];
        // Dropout would draw other numbers in each microbatch.
        overrides.extend(["model.layers=2", "model.dropout=0", "train.steps=1"]);
        overrides.extend(settings.iter().map(String::as_str));
        let step = export(&session("gpt", &overrides), Form::Uniform, None)
            .unwrap_or_else(|error| panic!("{mesh}: {error}"));
        let modules = &step.manifest.modules;
        assert!(modules.iter().any(|module| module.ranks != modules[0].ranks), "{mesh}: one stage");
        // Each stage has a forward and a backward pass of each microbatch, and updates; the texts of alike ones are one.
        assert!(modules.len() > 4 * microbatches, "{mesh}: {} modules", modules.len());
        let files: BTreeSet<&String> = modules.iter().map(|module| &module.file).collect();
        assert!(
            files.iter().all(|file| step.modules.contains_key(*file)) && files.len() == step.modules.len()
        );
        assert!(microbatches == 1 || files.len() < modules.len(), "{mesh}: alike microbatches share no text");
        let (mut returned, mut replaced) = (BTreeMap::new(), BTreeMap::new());
        for module in modules {
            for input in &module.inputs {
                match input.kind {
                    Kind::Carried => {
                        let (ranks, held): &(Vec<usize>, Vec<usize>) = &returned[&input.name];
                        assert_eq!((ranks, held), (&module.ranks, &input.held), "{}", input.name);
                    }
                    Kind::Received if !step.state.contains_key(&input.name) => {
                        let (ranks, _) = &returned[&input.name];
                        assert_ne!(ranks, &module.ranks, "{}", input.name);
                    }
                    _ => {
                        assert!(
                            !replaced.contains_key(&input.name),
                            "{} is read after its update",
                            input.name
                        );
                    }
                }
                if let Some(output) = input.replaced_by {
                    assert_eq!(module.outputs[output].name, input.name);
                }
            }
            for output in &module.outputs {
                if output.kind == Kind::Carried {
                    returned.insert(output.name.clone(), (module.ranks.clone(), output.held.clone()));
                } else if output.kind == Kind::NewValue {
                    replaced.insert(output.name.clone(), ());
                }
            }
        }
        let parameters = step.state.keys().collect::<BTreeSet<_>>();
        assert!(parameters.iter().all(|name| replaced.contains_key(*name)), "{mesh}: not all are updated");
    }
}

#[test]
fn a_pipeline_has_no_global_form() {
    let mut overrides = sizes("gpt");
    overrides.extend(["model.layers=2", "mesh.shape=pp=2", "train.microbatches=2"]);
    let error = export(&session("gpt", &overrides), Form::Global, None).unwrap_err();
    assert_eq!(error.code, "E276");
    assert!(error.to_string().contains("pp"), "{error}");
}
