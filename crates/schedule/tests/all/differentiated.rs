//! Steps that arrive differentiated, as text: `tests/files/differentiated/*.mlir`.
//!
//! The comments of a file say what is known of its step: `loss`, `gradients`, `batched` inputs and
//! `carried` pairs, into how many `microbatches` and `stages` it is split (or after which forward ops
//! stages end), and an `error` with its code and a word, or behind `expect` the phase and stage of each
//! op. A step without an error is also run in microbatches and compared with the text as it stands.

use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::{Graph, Literal, Operation, Registry, Role, evaluate, text, verify};
use partita_mesh::Mesh;
use partita_nn::{Optimizer, StepOptions};
use partita_pipeline::mark;
use partita_schedule::tensors::inputs_of;
use partita_schedule::verify::{Interpreter, StepRunner};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Differentiated, Plan, Source};
use std::path::Path;

/// The value of a key in the comments of a file: `loss = result[3], batched = 3 4`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let comments = text.lines().filter_map(|line| line.strip_prefix("// "));
    let entries = comments.flat_map(|line| line.split(',')).filter_map(|entry| entry.split_once('='));
    entries.map(|(name, value)| (name.trim(), value.trim())).find(|(name, _)| *name == key).map(|(_, v)| v)
}

fn numbers(text: &str) -> Vec<usize> {
    text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

fn known(text: &str) -> Differentiated {
    let list = |key| value(text, key).unwrap_or_default().split_whitespace();
    let pair = |pair: &str| {
        let (input, output) = pair.split_once(':').expect("input:output");
        (input.parse().expect("a position"), output.parse().expect("a position"))
    };
    Differentiated {
        loss: value(text, "loss").unwrap_or_default().to_string(),
        gradients: list("gradients").map(str::to_string).collect(),
        batched: numbers(value(text, "batched").unwrap_or_default()),
        carried: list("carried").map(pair).collect(),
    }
}

fn split(text: &str, step: &Graph, microbatches: usize) -> Result<Graph> {
    let mark = |forward: &mut Graph| match value(text, "ends") {
        Some(ends) => {
            mark::after(forward, &numbers(ends));
            Ok(())
        }
        None => mark::evenly(forward, value(text, "stages").expect("`stages` or `ends`").parse().unwrap()),
    };
    known(text).microbatched(step, microbatches, &mark)
}

/// Numbers for each input, by name.
fn tensors(step: &Graph) -> IndexMap<String, Literal> {
    let tensor = |(position, &input): (usize, &partita_ir::ValueId)| {
        let ty = step.ty(input);
        let values = (0..ty.element_count()).map(|i| ((i * 7 + position * 3) % 11) as f64 / 8.0 - 0.6);
        (format!("arg{position}"), Literal::from_f64(ty, values))
    };
    step.inputs.iter().enumerate().map(tensor).collect()
}

#[test]
fn steps_in_text_files_are_split_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/differentiated");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 6);
    for file in files {
        let (name, text) = (file.display(), std::fs::read_to_string(&file).unwrap());
        let step = text::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let microbatches = value(&text, "microbatches").expect("a number").parse().unwrap();
        let outcome = split(&text, &step, microbatches);
        if let Some(expected) = value(&text, "error") {
            let (code, word) = expected.split_once(' ').expect("a code and a word");
            let Err(error) = outcome else { panic!("{name} is accepted") };
            assert_eq!(error.code, code, "{name}: {error}");
            assert!(error.to_string().contains(word), "{name}: {error}");
            continue;
        }
        let whole = split(&text, &step, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
        let told = |node: &partita_ir::Node| {
            format!("{} {} {}", node.op.short_name(), node.phase.name(), node.stage)
        };
        let found: Vec<String> = whole.nodes.iter().map(told).collect();
        let expected = text.split("// expect\n").nth(1).expect("`expect` or `error`");
        let expected: Vec<&str> = expected.lines().filter_map(|line| line.strip_prefix("// ")).collect();
        assert_eq!(found, expected, "{name}");

        let split = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
        verify::verify(&split).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tensors = tensors(&step);
        let inputs: Vec<Literal> = tensors.values().cloned().collect();
        let alone = evaluate(&step, &inputs).unwrap();
        for graph in [&whole, &split] {
            assert_eq!(graph.aliases.len(), known(&text).carried.len());
            let found = evaluate(graph, &inputs_of(graph, &[], &tensors).unwrap()).unwrap();
            for (a, b) in alone.iter().zip(&found) {
                let worst = a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(a.ty == b.ty && worst < 1e-12, "{name}: {worst}");
            }
        }
    }
}

/// The file, its step with fed batches, and what is known of it.
fn two_layers() -> (Graph, Differentiated) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/differentiated/two_layers.mlir");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut step, known) = (text::parse(&text).unwrap(), known(&text));
    for &position in &known.batched {
        step.value_mut(step.inputs[position]).role = Role::Input;
    }
    (step, known)
}

fn options(microbatches: usize) -> BuildOptions {
    let mut options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
    options.microbatches = microbatches;
    options
}

#[test]
fn a_step_in_text_runs_on_meshes_as_it_stands() {
    let (step, known) = two_layers();
    let tensors = tensors(&step);
    let alone = evaluate(&step, &tensors.values().cloned().collect::<Vec<_>>()).unwrap();
    for (mesh, microbatches) in
        [("dp=1", 1), ("dp=2", 1), ("dp=4", 1), ("dp=2", 2), ("pp=2", 1), ("pp=2", 4), ("pp=2,dp=2", 2)]
    {
        let ranks = Mesh::parse(mesh, None).unwrap();
        let (plan, options) = (Plan::default(), options(microbatches));
        let built = BuildRequest::new(
            Source::Differentiated { step: &step, known: &known, is_returned: &|_| true },
            &plan,
            &ranks,
            &options,
            BuildContext { registry: &Registry::default(), runner: &Interpreter },
        )
        .build()
        .unwrap();
        let inputs = inputs_of(&built.step, &[], &tensors).unwrap();
        let found = Interpreter.run(&built, &inputs).unwrap();
        assert_eq!(built.step.output_names, step.output_names);
        for (a, b) in alone.iter().zip(&found) {
            let worst = a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(a.ty == b.ty && worst < 1e-12, "{mesh} {microbatches}: {worst}");
        }
        // The batch is sharded over dp, and parameters are not.
        let rows = built.local_shapes(if microbatches == 1 { "arg3" } else { "arg3.micro0" }).unwrap();
        let shards = if mesh.ends_with("dp=2") {
            2
        } else {
            mesh.strip_prefix("dp=").map_or(1, |n| n.parse().unwrap())
        };
        assert_eq!(rows[0], [4 / microbatches / shards, 3], "{mesh} {microbatches}");
        assert_eq!(built.local_shapes("arg0").unwrap()[0], [3, 5]);
    }
}

#[test]
fn outputs_that_nobody_wants_are_not_computed() {
    let (step, known) = two_layers();
    let mesh = Mesh::parse("dp=2", None).unwrap();
    let build = |known: &Differentiated, is_returned: &dyn Fn(usize) -> bool| {
        let (plan, options) = (Plan::default(), options(1));
        BuildRequest::new(
            Source::Differentiated { step: &step, known, is_returned },
            &plan,
            &mesh,
            &options,
            BuildContext { registry: &Registry::default(), runner: &Interpreter },
        )
        .build()
        .unwrap()
    };
    let (all, without_loss) = (build(&known, &|_| true), build(&known, &|place| place != 3));
    assert_eq!(without_loss.step.output_names, step.output_names[..3]);
    // The loss alone needs the squares, their sum, its start, the count and the quotient.
    assert_eq!(all.step.nodes.len() - without_loss.step.nodes.len(), 5);
    // Without gradients the text is a program like any other.
    let plain = Differentiated { gradients: Vec::new(), ..known };
    let built = build(&plain, &|place| place == 3);
    assert!(built.step.nodes.iter().all(|node| node.phase == partita_ir::Phase::Forward));
}
