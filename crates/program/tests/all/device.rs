//! Adds a user-defined device: lowering queries its capabilities, and the executor runs its ranks.

use crate::common::*;
use partita_base::Result;
use partita_ir::ops::Composite;
use partita_ir::{ClassGraph, Role, Target};
use partita_program::{
    BufferId, Compute, Device, LowerOptions, Move, Program, RankDevice, RankMemory, Reference, Region,
    RegionTarget, View, lower,
};
use std::cell::Cell;
use std::rc::Rc;

/// Computes nothing and counts the work of each instruction, as a simulator would.
#[derive(Clone, Default)]
struct Counting {
    flops: Rc<Cell<f64>>,
    instructions: Rc<Cell<usize>>,
    sized: Rc<Cell<usize>>,
}

struct CountingRank {
    device: Counting,
    bytes: Vec<Vec<u8>>,
}

impl Target for Counting {
    fn has_kernel(&self, _: &Composite) -> bool {
        true
    }
}

impl RegionTarget for Counting {
    fn workspace_bytes(&self, region: &Region, _: &[View]) -> usize {
        self.sized.set(self.sized.get() + 1);
        region.graph.ty(region.graph.outputs[0]).bytes()
    }
}

impl Device for Counting {
    type Rank = CountingRank;

    fn rank(&self, program: &Program) -> Result<CountingRank> {
        let bytes = program.buffers.iter().map(|buffer| vec![0; buffer.bytes]).collect();
        Ok(CountingRank { device: self.clone(), bytes })
    }
}

impl RankMemory for CountingRank {
    fn read(&self, _: &Program, buffer: BufferId) -> &[u8] {
        &self.bytes[buffer.index()]
    }

    fn write(&mut self, _: &Program, buffer: BufferId, bytes: &[u8]) {
        self.bytes[buffer.index()].copy_from_slice(bytes);
    }
}

impl RankDevice for CountingRank {
    fn run(&mut self, program: &Program, _: usize, compute: &Compute) -> Result<()> {
        let Counting { flops, instructions, .. } = &self.device;
        flops.set(flops.get() + program.region(compute.region).cost().flops);
        instructions.set(instructions.get() + 1);
        Ok(())
    }

    fn begin_move(&mut self, _: &Program, _: usize, _: Move) -> Result<()> {
        Ok(())
    }

    fn end_move(&mut self, _: &Program, _: usize, _: Move) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_device_that_computes_nothing_runs_a_step_with_collectives() {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[4, 3]), Role::Input);
        let w = b.input("w", f32s(&[3, 5]), Role::Param);
        let y = matmul(b, x, w);
        let y = all_reduce(b, y, &[&[0, 1]]);
        let y = b.negate(y).unwrap();
        vec![("y".into(), y)]
    });
    let device = Counting::default();
    let set = lower(&ClassGraph::each(graphs), &LowerOptions::default(), &device).unwrap();
    let mut reference = Reference::on(&set, &device).unwrap();
    reference.step().unwrap();
    // A matmul and a negation on each of two ranks.
    assert_eq!(device.instructions.get(), 4);
    assert_eq!(device.flops.get(), 2.0 * (2.0 * 4.0 * 3.0 * 5.0 + 4.0 * 5.0));
}

#[test]
fn the_device_sizes_equal_regions_once() {
    let graphs = build(1, |_, b| {
        let mut x = b.input("x", f32s(&[4, 8]), Role::Input);
        for (layer, width) in [8, 8, 8, 6, 6].into_iter().enumerate() {
            let from = b.shape(x)[1];
            let w = b.input(&format!("layers.{layer}.w"), f32s(&[from, width]), Role::Param);
            x = matmul(b, x, w);
        }
        vec![("y".into(), x)]
    });
    let device = Counting::default();
    let set = lower(&ClassGraph::each(graphs), &LowerOptions::default(), &device).unwrap();
    let program = &set.programs[0];
    let scratch = |instruction: &partita_program::Instruction| match &instruction.action {
        partita_program::Action::Compute(compute) => {
            compute.workspace.map(|buffer| program.buffers[buffer.index()].bytes)
        }
        _ => None,
    };
    // Products of [4, 8] by [8, 8] three times, by [8, 6], and of [4, 6] by [6, 6].
    assert_eq!(program.instructions.iter().filter_map(scratch).collect::<Vec<_>>(), [128, 128, 128, 96, 96]);
    assert_eq!(device.sized.get(), 3);
}
