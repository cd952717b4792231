//! States and activations in host memory: the same numbers to the bit, in less memory.

use crate::session;
use partita::execution::{stages, tensor_data, with_batch};
use partita::memory::memory;
use partita_ir::{Phase, Role};
use partita_program::{Action, BufferKind, LowerOptions, MoveKind, Program, ProgramSet, lower_stages};
use partita_runtime::Cpu;
use partita_schedule::feed::random_feed;
use std::collections::BTreeMap;

const STATES: &str = "plan.**=offload(optimizer)";
const ACTIVATIONS: &str = "plan.layers.*=offload(activations)";

/// Small enough to run, with more layers than are loaded ahead.
const SMALL: [&str; 7] = [
    "model.vocab=64",
    "model.dim=32",
    "model.heads=4",
    "model.layers=4",
    "model.sequence=16",
    "train.batch=4",
    "model.dropout=0.1",
];

/// Loss and gradient norm of a few steps, and then every parameter and state.
fn steps(name: &str, overrides: &[&str]) -> (Vec<[u64; 2]>, BTreeMap<String, Vec<u8>>) {
    let session = session(name, overrides);
    let planned = session.build().unwrap_or_else(|error| panic!("{overrides:?}: {error}"));
    let model = session.model().unwrap();
    let mut player =
        session.prepare(&planned).unwrap_or_else(|error| panic!("{overrides:?}: {error}")).train_loop;
    for (name, literal) in model.initial(session.config().train.seed).unwrap() {
        player.set_tensor(&name, &tensor_data(&literal)).unwrap();
    }
    let mut step = |number: u64| {
        let batch = random_feed(&model, number, 0.0);
        with_batch(&batch, |tensors| player.step(tensors, 1e-2)).unwrap();
        ["loss", "grad_norm"].map(|name| player.runner().read_number(0, name).unwrap().to_bits())
    };
    let numbers: Vec<[u64; 2]> = (0..3).map(&mut step).collect();
    let kept = player.checkpoint(Default::default()).unwrap().tensors;
    (numbers, kept.into_iter().map(|(name, tensor)| (name, tensor.bytes)).collect())
}

#[test]
fn numbers_are_the_same_to_the_bit_on_every_mesh() {
    let forms: [&[&str]; 8] = [
        &["mesh.shape=dp=1"],
        &["mesh.shape=dp=2"],
        &["mesh.shape=fsdp=2"],
        &["mesh.shape=tp=2"],
        &["mesh.shape=tp=3"],
        &["mesh.shape=pp=2,dp=2", "train.microbatches=2"],
        &["mesh.shape=dp=2", "train.microbatches=2", "optimizer.clip_grad_norm=0"],
        &["mesh.shape=dp=2", "plan.**=zero1(axis=dp)"],
    ];
    for form in forms {
        let plain = [&SMALL[..], form].concat();
        let expected = steps("gpt", &plain);
        assert!(expected.0.windows(2).all(|pair| pair[0] != pair[1]), "{form:?}: it learns");
        let lines: &[&[&str]] = match form.iter().any(|word| word.starts_with("plan.")) {
            true => &[&["plan.layers.*=offload(optimizer)"]],
            false => {
                &[&[STATES], &[ACTIVATIONS], &[STATES, ACTIVATIONS], &["plan.**=offload(optimizer, ahead=3)"]]
            }
        };
        for lines in lines {
            let found = steps("gpt", &[&plain[..], lines].concat());
            assert_eq!(found.0, expected.0, "{form:?} {lines:?}");
            assert!(found.1 == expected.1, "{form:?} {lines:?}: parameters and states");
        }
    }
}

#[test]
fn states_of_every_optimizer_go_to_host_memory() {
    for optimizer in ["sgd", "adamw", "lion", "lamb", "adafactor", "muon"] {
        let kind = format!("optimizer.kind={optimizer}");
        let momentum: &[&str] = if optimizer == "sgd" { &["optimizer.momentum=0.9"] } else { &[] };
        let plain = [&SMALL[..], &["mesh.shape=dp=2", &*kind], momentum].concat();
        let expected = steps("gpt", &plain);
        assert!(steps("gpt", &[&plain[..], &[STATES]].concat()) == expected, "{optimizer}");
    }
}

fn lowered(name: &str, overrides: &[&str]) -> ProgramSet {
    let built = session(name, overrides).build().unwrap_or_else(|error| panic!("{error}"));
    lower_stages(&stages(&built), &LowerOptions::default(), &Cpu::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes of the states, with padding.
fn padded_states(program: &Program) -> usize {
    let states = program.inputs.iter().filter(|port| matches!(port.role, Role::StateOf(_)));
    states.map(|port| program.buffer(port.buffer).bytes.next_multiple_of(64)).sum()
}

/// From a program that keeps its states: the most bytes live at once if states are there only within their window. In the
/// order of the update, that of update `n` has the states of `n - ahead` to `n + ahead`; before the first one, while the
/// norm of the gradients is taken, those of the first `ahead`.
fn expected_peak(program: &Program, ahead: usize) -> usize {
    let is_state: BTreeMap<_, _> = program
        .inputs
        .iter()
        .filter(|port| matches!(port.role, Role::StateOf(_)))
        .map(|port| (port.buffer, program.buffer(port.buffer).bytes))
        .collect();
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        let (inputs, _) = instruction.action.accesses();
        let bytes: usize = inputs.iter().filter_map(|input| is_state.get(input)).sum();
        if bytes > 0 {
            groups.push((at, bytes));
        }
    }
    let first = groups[0].0;
    let begin = (0..first).rev().find(|&at| program.instructions[at].origin.phase != Phase::Update);
    let begin = begin.map_or(0, |at| at + 1);
    let window = |at: usize| -> usize {
        let now = groups.iter().rposition(|&(update, _)| update <= at);
        let range = match now {
            None if at >= begin => 0..ahead,
            None => 0..0,
            Some(now) => now.saturating_sub(ahead)..now + ahead + 1,
        };
        groups[range.start..range.end.min(groups.len())].iter().map(|(_, bytes)| bytes).sum()
    };
    let live = |at: usize| -> usize {
        let buffers = program.buffers.iter().enumerate();
        let others = buffers.filter(|(id, _)| !is_state.keys().any(|state| state.index() == *id));
        others.filter(|(_, b)| (b.first..=b.last).contains(&at)).map(|(_, b)| b.bytes).sum()
    };
    (0..program.instructions.len()).map(|at| live(at) + window(at)).max().unwrap_or(0)
}

/// The planned peak falls by the bytes of the states, less those of the window where the peak is.
#[test]
fn the_peak_falls_by_the_states_less_the_window() {
    for (name, overrides) in [
        ("mlp", &["model.dims=[64,128,256,128,64]", "mesh.shape=dp=1"][..]),
        ("mlp", &["model.dims=[64,128,256,128,64]", "mesh.shape=fsdp=2", "train.batch=4"]),
        ("gpt", &["mesh.shape=dp=2", "train.batch=2"]),
        ("gpt", &["mesh.shape=tp=2", "train.batch=64"]),
    ] {
        let resident = lowered(name, overrides);
        for ahead in [1, 2] {
            let line = format!("plan.**=offload(optimizer, ahead={ahead})");
            let offloaded = lowered(name, &[overrides, &[&*line]].concat());
            let (before, after) = (&resident.programs[0], &offloaded.programs[0]);
            let what = format!("{name} {overrides:?}, {ahead} ahead");
            assert_eq!(after.live_peak_bytes(), expected_peak(before, ahead), "{what}");
            assert!(after.arena_bytes < before.arena_bytes, "{what}");
            // The states are in host memory, and each moves once in each direction.
            assert_eq!(after.host_bytes, padded_states(before), "{what}");
            let states: usize = memory(&resident)[0].states;
            assert_eq!(
                (memory(&offloaded)[0].states, memory(&offloaded)[0].host),
                (0, after.host_bytes),
                "{what}"
            );
            assert_eq!(
                [MoveKind::Load, MoveKind::Store].map(|kind| after.moved_bytes(kind)),
                [states; 2],
                "{what}"
            );
        }
    }
    // With a batch so large that the peak is in the backward pass, far from any update, all states are saved.
    let sizes = ["model.dims=[64,128,256,128,64]", "mesh.shape=dp=1", "train.batch=4096"];
    let [before, after] = [&[][..], &[STATES]].map(|line| lowered("mlp", &[&sizes[..], line].concat()));
    let (before, after) = (&before.programs[0], &after.programs[0]);
    assert_eq!(before.arena_bytes - after.arena_bytes, padded_states(before));
}

/// Of a model with many blocks, activations of few are on the device.
#[test]
fn activations_of_few_blocks_are_held() {
    let arena = |layers: usize, lines: &[&str]| {
        let layers = format!("model.layers={layers}");
        let sizes = [
            "model.vocab=64",
            "model.dim=32",
            "model.sequence=128",
            "train.batch=8",
            "mesh.shape=dp=1",
            &*layers,
        ];
        let set = lowered("gpt", &[&sizes[..], lines].concat());
        (set.programs[0].arena_bytes - set.programs[0].persistent_bytes(), set.programs[0].host_bytes)
    };
    let plain = [6, 8].map(|layers| arena(layers, &[]).0);
    let [six, eight] = [6, 8].map(|layers| arena(layers, &[ACTIVATIONS]));
    // What two layers keep goes to host memory; of them, their gradients alone are left in the arena.
    let kept = (eight.1 - six.1) / 2;
    assert!(kept > 8 * 128 * 32 * 4 * 10, "{kept} bytes of a layer are little");
    assert!(eight.0 - six.0 < kept / 8, "{} bytes are held for two layers", eight.0 - six.0);
    assert!(plain[1] - plain[0] >= 2 * kept, "{plain:?}");
}

/// No instruction but a move touches host memory, and what is stored for the backward pass is loaded once.
#[test]
fn every_store_of_an_activation_is_loaded_again() {
    let set =
        lowered("gpt", &[&SMALL[..], &["mesh.shape=dp=2", "train.microbatches=2", ACTIVATIONS]].concat());
    let program = &set.programs[0];
    let of = |kind: MoveKind| {
        let hosts = program.instructions.iter().filter_map(|instruction| match instruction.action {
            Action::Move(moved) if moved.kind == kind => Some(moved.host),
            _ => None,
        });
        let mut hosts: Vec<_> = hosts.collect();
        hosts.sort_unstable();
        hosts
    };
    let stored = of(MoveKind::Store);
    assert!(stored.len() > 10, "{}", stored.len());
    assert_eq!(of(MoveKind::Load), stored);
    assert!(stored.iter().all(|&host| program.buffer(host).kind == BufferKind::Host));
}

#[test]
fn lines_that_name_nothing_are_refused() {
    for (line, code) in [
        ("plan.layrs.*=offload(optimizer)", "E221"),
        ("plan.layrs.*=offload(activations)", "E221"),
        ("plan.**=offload(gradients)", "E222"),
        ("plan.**=offload(optimizer, ahead=0)", "E222"),
    ] {
        let session = partita::Session::load("gpt", &[line.to_string()]);
        let error = session.and_then(|session| session.build()).err().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(error.code, code, "{line}: {error}");
    }
    let stateless = session("mlp", &["optimizer.kind=sgd", "optimizer.momentum=0", STATES]).build();
    let error = stateless.expect_err("a line without effect");
    assert_eq!(
        (error.code, error.found.as_deref()),
        ("E229", Some("the optimizer has no states")),
        "{error}"
    );
}

/// What a single block keeps is needed again at once, so nothing of it is moved.
#[test]
fn activations_that_stay_are_told() {
    let notes = |layers: &str, lines: &[&str]| -> Vec<String> {
        let overrides = [&SMALL[..], &["mesh.shape=dp=1", layers], lines].concat();
        let session = session("gpt", &overrides);
        let model = session.model().unwrap();
        let notes = session.notes(&model, &session.build_model(&model).unwrap());
        notes.into_iter().filter(|note| note.contains("offload")).collect()
    };
    assert!(notes("model.layers=1", &[]).is_empty() && notes("model.layers=4", &[ACTIVATIONS]).is_empty());
    let told = notes("model.layers=1", &[ACTIVATIONS]);
    assert!(
        told.len() == 1 && told[0].contains("saves nothing") && told[0].contains("nothing is moved"),
        "{told:?}"
    );
}
