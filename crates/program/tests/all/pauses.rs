//! The caller as a part of programs: small program sets in `tests/files/programs`, which the static check accepts or
//! refuses. `random.rs` runs random steps in pieces.

use crate::common::*;
use partita_ir::{ClassGraph, GraphBuilder, Role};
use partita_mesh::Combiner;
use partita_program::*;
use std::path::Path;

/// The word behind a prefix.
fn number(word: &str, prefix: &str) -> usize {
    word.strip_prefix(prefix)
        .and_then(|rest| rest.parse().ok())
        .unwrap_or_else(|| panic!("{prefix}N: {word}"))
}

fn buffer(word: &str) -> BufferId {
    BufferId::new(number(word, "%"))
}

fn view(word: &str) -> View {
    View::whole(buffer(word), &[4])
}

/// Appends what a line says to a program. All buffers are `f32[4]`.
fn read_line(program: &mut Program, collectives: &mut Vec<Collective>, words: &[&str]) {
    let origin = Origin::default();
    let mut push = |action| program.instructions.push(Instruction { action, origin: origin.clone() });
    match *words {
        [_, "at", offset, kind, span] => {
            let (first, last) = span.split_once("..").expect("FIRST..LAST");
            let kinds = [BufferKind::Input, BufferKind::Output, BufferKind::Temporary];
            program.buffers.push(Buffer {
                ty: f32s(&[4]),
                offset_bytes: number(offset, ""),
                bytes: 16,
                what: String::new(),
                first: number(first, ""),
                last: number(last, ""),
                kind: *kinds.iter().find(|other| other.name() == kind).expect("a kind of buffer"),
            });
        }
        [end @ ("in" | "out"), word, name, ref pause @ ..] => {
            let between = if end == "in" { 0 } else { usize::MAX };
            let at = if let ["pause", pause] = *pause { number(pause, "") } else { between };
            program.buffers[buffer(word).index()].what = name.to_string();
            let port =
                Port { name: name.into(), role: Role::Input, buffer: buffer(word), replaces: None, at };
            if end == "in" { &mut program.inputs } else { &mut program.outputs }.push(port);
        }
        ["pause"] => program.pauses.push(program.instructions.len()),
        [output, "=", op, ref operands @ ..] => {
            let mut b = GraphBuilder::new("op");
            let values: Vec<_> = operands.iter().map(|_| b.input("", f32s(&[4]), Role::Activation)).collect();
            let result = match op {
                "negate" => b.negate(values[0]),
                "multiply" => b.multiply(values[0], values[1]),
                _ => panic!("unknown op {op}"),
            };
            let region = RegionId::new(program.regions.len());
            program.regions.push(Region::fused(b.finish(vec![result.expect("types agree")])));
            let inputs = operands.iter().map(|word| view(word)).collect();
            push(Action::Compute(Compute { region, inputs, outputs: vec![buffer(output)], workspace: None }));
        }
        ["start", collective, "all_reduce", input, "->", output] => {
            let id = number(collective, "");
            collectives.resize(collectives.len().max(id + 1), all_reduce_of_two());
            let (inputs, outputs) = (vec![view(input)], vec![buffer(output)]);
            push(Action::Start(Start { collective: CollectiveId::new(id), inputs, outputs }));
        }
        ["wait", collective] => push(Action::Wait(CollectiveId::new(number(collective, "")))),
        _ => panic!("cannot read `{}`", words.join(" ")),
    }
}

/// A sum over the ranks 0 and 1. That both are in one bucket of their own lets the check compare rank with rank.
fn all_reduce_of_two() -> Collective {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[4]), Role::Input);
        vec![("sum".into(), all_reduce(b, x, &[&[0, 1]]))]
    });
    let set = lower(&ClassGraph::each(graphs), &LowerOptions::default(), &Sizes).expect("it is sound");
    let collective = set.collectives[0].clone();
    let sum = CollectiveOp::AllReduce { combiner: Combiner::Sum };
    assert_eq!(collective.transfers[0].exchange, sum);
    collective
}

fn read_set(text: &str) -> ProgramSet {
    let mut set = ProgramSet::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["rank", rank, "arena", bytes] => set.programs.push(Program {
                ranks: vec![number(rank, "")],
                arena_bytes: number(bytes, ""),
                ..Program::default()
            }),
            _ => {
                read_line(set.programs.last_mut().expect("a rank comes first"), &mut set.collectives, &words)
            }
        }
    }
    for program in &mut set.programs {
        let behind = program.pauses.len() + 1;
        program.outputs.iter_mut().for_each(|port| port.at = port.at.min(behind));
    }
    set
}

#[test]
fn program_sets_in_files_are_accepted_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/files/programs");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 14);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let refused = text.lines().find_map(|line| line.strip_prefix("# REFUSED "));
        let found = check(&read_set(&text));
        match (refused, found) {
            (None, found) => _ = found.unwrap_or_else(|error| panic!("{}: {error}", file.display())),
            (Some(refused), Ok(_)) => panic!("{} is accepted; expected {refused}", file.display()),
            (Some(refused), Err(error)) => {
                let (code, message) = refused.split_once(": ").expect("CODE: MESSAGE");
                let text = error.to_string();
                assert!(error.code == code && text.contains(message), "{}: {text}", file.display());
            }
        }
    }
}

#[test]
fn pauses_are_in_the_order_of_the_instructions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/files/programs");
    let sound = std::fs::read_to_string(folder.join("sound.program")).unwrap();
    for pauses in [vec![2, 1], vec![9]] {
        let mut set = read_set(&sound);
        set.programs[0].pauses = pauses;
        let error = check(&set).unwrap_err();
        assert!(error.code == "E420" && error.to_string().contains("pauses out of order"), "{error}");
    }
}
