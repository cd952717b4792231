//! Which threads count as idle.

use super::*;
use partita_ir::{ClassGraph, GraphBuilder, Role};
use partita_program::{LowerOptions, lower};
use std::sync::atomic::Ordering;

#[test]
fn who_has_no_rank_is_idle_from_the_first_instruction_on() {
    let mut b = GraphBuilder::new("doubled");
    let x = b.input("x", TensorType::new(DType::F32, [4]), Role::Activation);
    let sum = b.add(x, x).unwrap();
    let graph = b.finish(vec![sum]);
    for (ranks, workers, idle) in [(1, 1, 0), (1, 3, 2), (2, 2, 0), (2, 3, 1), (3, 2, 0)] {
        let cpu = Cpu { threads: 3, ..Cpu::default() };
        let set =
            lower(&ClassGraph::each(vec![graph.clone(); ranks]), &LowerOptions::default(), &cpu).unwrap();
        let options = RunnerOptions { cpu, workers: Some(workers), ..RunnerOptions::default() };
        let world = options.world(&set).unwrap();
        let mut runner = Runner::new(set, world, options).unwrap();
        for _ in 0..3 {
            let found = runner.shared.idle.load(Ordering::SeqCst);
            assert_eq!(found, idle, "{workers} workers for {ranks} ranks, before a step");
            runner.step().unwrap();
        }
    }
}
