//! Steps that arrive differentiated, as text: `tests/files/differentiated/*.mlir`.
//!
//! The comments of a file say what is known of its step: `loss`, `gradients`, `batched` inputs and
//! `carried` pairs, into how many `microbatches` and `stages` it is split (or after which forward ops
//! stages end), and an `error` with its code and a word, or behind `expect` the phase and stage of each
//! op. A step without an error is also run in microbatches and compared with the text as it stands.

use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::{Graph, Literal, Operation, evaluate, text, verify};
use partita_pipeline::mark;
use partita_schedule::Differentiated;
use partita_schedule::tensors::inputs_of;
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
