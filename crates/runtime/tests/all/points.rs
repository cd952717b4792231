//! The CPU device beside the reference interpreter, on one op at a time and at the points where values and gradients go
//! wrong (`tests/ops`): NaN and infinities are in the same places.

use crate::common::program;
use crate::recorded::cases::cases;
use partita_ir::{Graph, Literal, evaluate};
use partita_program::Reference;
use partita_runtime::Cpu;

/// What the CPU device computes.
fn on_the_cpu(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let set = program(std::slice::from_ref(graph));
    let mut device = Reference::on(&set, &Cpu::default()).expect("a device");
    for (position, input) in inputs.iter().enumerate() {
        device.write_input(0, position, input).expect("an input");
    }
    device.step().expect("a step");
    (0..graph.outputs.len()).map(|position| device.output(0, position)).collect()
}

#[test]
fn kernels_agree_with_the_interpreter_at_nasty_points() {
    let mut differing = Vec::new();
    let mut count = 0;
    for case in cases() {
        let programs = case.programs().expect("a program");
        let graphs = [Some((programs.forward, programs.inputs)), programs.backward];
        for (what, (graph, inputs)) in ["result", "gradient"].iter().zip(graphs.into_iter().flatten()) {
            let expected = evaluate(&graph, &inputs).expect("values");
            let found = on_the_cpu(&graph, &inputs);
            count += 1;
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let apart = case.apart(&format!("{what} {at}"), 4.0, found, expected);
                differing.extend(apart.map(|apart| format!("{} `{}`: {apart}", case.op(), case.name())));
            }
        }
    }
    assert!(
        differing.is_empty(),
        "{} of {count} programs differ:\n{}",
        differing.len(),
        differing.join("\n")
    );
}
