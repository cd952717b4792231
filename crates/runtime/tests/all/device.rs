//! The CPU as a device: its ranks run on any executor, with the same bits.

use crate::common::*;
use partita_program::Reference;
use partita_runtime::{Cpu, RunnerOptions};

#[test]
fn one_thread_on_ranks_of_the_cpu_gives_the_bits_of_the_runner() {
    for ranks in 1..=4 {
        let graphs = step_graphs(ranks);
        let set = program(&graphs);
        let inputs = inputs(&graphs, 29);
        let mut reference = Reference::on(&set, &Cpu::default()).unwrap();
        for (rank, inputs) in inputs.iter().enumerate() {
            for (position, literal) in inputs.iter().enumerate() {
                reference.write_input(rank, position, literal).unwrap();
            }
        }
        reference.step().unwrap();
        let expected = run(&graphs, &set, RunnerOptions::default(), &inputs, 1);
        for (rank, expected) in expected.iter().enumerate() {
            for (position, expected) in expected.iter().enumerate() {
                let found = reference.output(rank, position).to_bytes();
                assert_eq!(&found, expected, "output {position} of rank {rank} of {ranks}");
            }
        }
    }
}
