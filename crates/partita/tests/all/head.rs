//! The head of a language model in pieces of rows: the same bits, in less memory.

use partita::Session;
use partita_ir::{Literal, Op, Role, TensorType};
use partita_program::{Buffer, LowerOptions, Program, ProgramSet, lower};
use partita_runtime::{Cpu, Runner, RunnerOptions};
use partita_schedule::Built;
use partita_spmd::virtual_ranks;

const VOCAB: usize = 53;

/// The planned step of a small model, with more settings.
fn planned(model: &str, settings: &[&str]) -> Built {
    let own = [
        format!("model.vocab={VOCAB}"),
        "model.dim=8".to_string(),
        "model.heads=2".to_string(),
        "model.layers=1".to_string(),
        "model.sequence=200".to_string(),
        "train.batch=4".to_string(),
        "mesh.shape=dp=1".to_string(),
    ];
    let settings: Vec<String> = own.into_iter().chain(settings.iter().map(|s| s.to_string())).collect();
    Session::load(model, &settings).unwrap().build().unwrap()
}

/// Cut where logits take more than so many bytes.
fn lowered(planned: &Built, logits_bytes: usize, cpu: &Cpu) -> ProgramSet {
    let options = LowerOptions { logits_bytes, ..LowerOptions::default() };
    lower(&planned.stages[0].classes, &options, cpu).unwrap()
}

/// Rows of the logits of each piece.
fn pieces(program: &Program) -> Vec<usize> {
    let logits = program.regions.iter().filter_map(|region| match &region.single()?.op {
        Op::Composite(composite) if composite.definition.name == "partita.cross_entropy" => {
            Some(region.graph.ty(region.graph.inputs[0]))
        }
        _ => None,
    });
    logits.map(|ty| ty.element_count() / VOCAB).collect()
}

/// Something for each input of the step: states of zero, words, small numbers.
fn inputs(planned: &Built) -> Vec<Literal> {
    let graph = &planned.stages[0].partitioned.graph;
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut literal = |ty: &TensorType, role: &Role| match role {
        Role::StateOf(_) => Literal::zeros(ty),
        _ if ty.rank() == 0 => Literal::scalar(ty.dtype, 1.0),
        _ => {
            let values = (0..ty.element_count()).map(|_| match ty.dtype.is_float() {
                true => next() - 0.5,
                false => (next() * VOCAB as f64).floor(),
            });
            Literal::from_f64(ty, values.collect::<Vec<_>>().into_iter())
        }
    };
    graph.inputs.iter().map(|&input| literal(graph.ty(input), &graph.value(input).role)).collect()
}

/// Every output of every rank after two steps.
fn outputs(planned: &Built, set: &ProgramSet, cpu: &Cpu) -> Vec<Vec<u8>> {
    let options = RunnerOptions { cpu: cpu.clone(), ..RunnerOptions::default() };
    let mut runner = Runner::new(set.clone(), options.world(set).unwrap(), options).unwrap();
    let graph = &planned.stages[0].partitioned.graph;
    let inputs = inputs(planned);
    for step in 0..2 {
        let placed = graph.inputs.iter().zip(&planned.stages[0].partitioned.inputs);
        for ((&input, sharding), literal) in placed.zip(&inputs) {
            let value = graph.value(input);
            for rank in 0..set.rank_count() {
                if step == 0 || value.role == Role::Input {
                    let own = virtual_ranks::distribute(
                        literal,
                        sharding,
                        &planned.stages[0].partitioned.mesh,
                        rank,
                    );
                    runner.write_input(rank, &value.name, &own.to_bytes()).unwrap();
                }
            }
        }
        runner.step().unwrap();
    }
    let ranks = set.programs.iter().flat_map(|p| p.ranks.iter().map(move |&rank| (rank, &p.outputs)));
    let ports = ranks.flat_map(|(rank, ports)| ports.iter().map(move |port| (rank, &port.name)));
    ports.map(|(rank, name)| runner.read_output(rank, name).unwrap()).collect()
}

/// Cuts the head, asserts that no bit changes, and gives the pieces of rank 0.
fn cut(model: &str, settings: &[&str]) -> Vec<usize> {
    let planned = planned(model, settings);
    let cpu = Cpu::default();
    let (whole, cut) = (lowered(&planned, usize::MAX, &cpu), lowered(&planned, 0, &cpu));
    let expected = outputs(&planned, &whole, &cpu);
    assert!(outputs(&planned, &cut, &cpu) == expected, "{model} {settings:?}: other bits");
    let threads = Cpu { threads: 3, ..Cpu::default() };
    let found = outputs(&planned, &lowered(&planned, 0, &threads), &threads);
    assert!(found == expected, "{model} {settings:?}: other bits on three threads");
    for (whole, cut) in whole.programs.iter().zip(&cut.programs) {
        assert_eq!(pieces(whole).iter().sum::<usize>(), pieces(cut).iter().sum::<usize>());
        // Logits are done with, gradient and all, before the next are made.
        let mut logits: Vec<&Buffer> = cut
            .buffers
            .iter()
            .filter(|buffer| buffer.ty.rank() > 1 && buffer.ty.shape.last() == Some(&VOCAB))
            .collect();
        logits.sort_by_key(|buffer| buffer.first);
        assert!(
            logits.windows(2).all(|pair| pair[0].last <= pair[1].first),
            "{model} {settings:?}: held together"
        );
    }
    pieces(&cut.programs[0])
}

#[test]
fn pieces_have_the_bits_of_the_whole() {
    assert_eq!(cut("gpt", &[]), [288, 288, 224]);
    assert_eq!(cut("gpt", &["train.batch=3", "model.sequence=129"]), [224, 163]);
    assert_eq!(cut("llama", &["train.batch=2"]), [224, 176]);
    assert_eq!(cut("gpt", &["train.dtype=f64", "train.batch=2"]), [224, 176]);
    // Short enough for one sum.
    assert_eq!(cut("gpt", &["train.batch=1"]), [200]);
}

#[test]
fn so_they_have_on_meshes() {
    assert_eq!(cut("gpt", &["mesh.shape=dp=2"]), [224, 176]);
    // 600 and 400 rows.
    assert_eq!(cut("gpt", &["mesh.shape=dp=2", "train.batch=5"]), [320, 280]);
    // 400 and 200 rows, which cannot go in as many pieces.
    assert_eq!(cut("gpt", &["mesh.shape=dp=2", "train.batch=3"]), [400]);
    assert_eq!(cut("gpt", &["mesh.shape=fsdp=2"]), [224, 176]);
    assert_eq!(cut("gpt", &["mesh.shape=dp=2,tp=2"]), [224, 176]);
    assert_eq!(cut("gpt", &["train.microbatches=2"]), [224, 176, 224, 176]);
    // The vocabulary is cut, and cross-entropy full of collectives.
    assert_eq!(cut("gpt", &["mesh.shape=tp=2", "plan.vocab_parallel=true"]), [0; 0]);
}

/// Where sums of products round in between, pieces would give other bits.
#[test]
fn halves_are_not_cut() {
    assert_eq!(cut("gpt", &["train.dtype=bf16"]), [800]);
}
