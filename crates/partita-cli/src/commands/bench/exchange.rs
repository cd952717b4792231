//! Programs that do nothing but exchange one tensor, or copy it: what the executor makes of a collective, and the limits.

use partita_base::{DType, Id};
use partita_ir::{Graph, GraphBuilder, Phase, Role, TensorType};
use partita_mesh::Combiner;
use partita_program::{
    ALIGNMENT_BYTES, Action, Buffer, BufferKind, Collective, CollectiveKind, CollectiveOp, Compute,
    Instruction, Origin, Port, Program, ProgramSet, Region, RegionKind, Start, Transfer, View,
};

/// What happens to a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// Every rank copies its share, which no other rank touches: what memory and caches can do.
    Copy,
    /// Every rank passes on to the next one the share that it has just been given: what they can do with what another
    /// core has written.
    Exchange,
    /// Every rank gets the sum of all.
    AllReduce,
    /// Every rank gets the shares of all.
    AllGather,
    /// Every rank gets its share of the sum.
    ReduceScatter,
}

impl Traffic {
    /// All of them, the limits first.
    pub const ALL: [Traffic; 5] =
        [Traffic::Copy, Traffic::Exchange, Traffic::AllReduce, Traffic::AllGather, Traffic::ReduceScatter];

    /// `copy`, `all_reduce`, ...
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Copy => "copy",
            Traffic::Exchange => "exchange",
            Traffic::AllReduce => "all_reduce",
            Traffic::AllGather => "all_gather",
            Traffic::ReduceScatter => "reduce_scatter",
        }
    }

    /// Bytes that have to be read and written for a whole tensor of `bytes` bytes: every input once, every output once.
    pub fn least_traffic_bytes(self, bytes: usize, ranks: usize) -> usize {
        let (inputs, outputs) = self.parts(ranks);
        bytes / ranks * ranks * (inputs + outputs)
    }

    /// Shares of the tensor that a rank gives and gets.
    fn parts(self, ranks: usize) -> (usize, usize) {
        match self {
            Traffic::Copy | Traffic::Exchange => (1, 1),
            Traffic::AllReduce => (ranks, ranks),
            Traffic::AllGather => (1, ranks),
            Traffic::ReduceScatter => (ranks, 1),
        }
    }
}

/// Programs of `ranks` ranks that do it `times` times over, one after the other, to a tensor of `bytes` bytes of f32.
pub fn programs(traffic: Traffic, bytes: usize, ranks: usize, times: usize) -> ProgramSet {
    let share = bytes / 4 / ranks;
    let (given, got) = traffic.parts(ranks);
    let ty = |shares: usize| TensorType::new(DType::F32, [shares * share]);
    let (input, output) = (ty(given), ty(got));
    let exchange = match traffic {
        Traffic::Copy => None,
        Traffic::Exchange => {
            let next = |rank: usize| (rank, (rank + 1) % ranks);
            Some(CollectiveOp::CollectivePermute { pairs: (0..ranks).map(next).collect() })
        }
        Traffic::AllReduce => Some(CollectiveOp::AllReduce { combiner: Combiner::Sum }),
        Traffic::AllGather => Some(CollectiveOp::AllGather { dim: 0, extents: vec![share; ranks] }),
        Traffic::ReduceScatter => {
            Some(CollectiveOp::ReduceScatter { combiner: Combiner::Sum, dim: 0, extents: vec![share; ranks] })
        }
    };
    let collective = |exchange: &CollectiveOp| Collective {
        kind: exchange.kind(),
        members: (0..ranks).collect::<Vec<_>>().into(),
        transfers: [Transfer {
            exchange: exchange.clone(),
            inputs: vec![input.clone(); ranks].into(),
            outputs: vec![output.clone(); ranks].into(),
            what: "output".to_string(),
        }]
        .into(),
        label: CollectiveKind::name(exchange.kind()).to_string(),
        phase: Phase::Forward,
        microbatch: None,
        bucket: 0,
        edge: None,
    };
    let collectives: Vec<Collective> =
        exchange.iter().flat_map(|exchange| (0..times).map(|_| collective(exchange))).collect();
    let program = |rank| program(rank, traffic, &input, &output, times);
    ProgramSet { programs: (0..ranks).map(program).collect(), collectives }
}

fn program(rank: usize, traffic: Traffic, input: &TensorType, output: &TensorType, times: usize) -> Program {
    let actions: Vec<Action> = (0..times)
        .flat_map(|number| {
            // What has been passed on comes back into the buffer that it came from.
            let from = if traffic == Traffic::Exchange { number % 2 } else { 0 };
            let (inputs, outputs) = (vec![View::whole(Id::new(from), &input.shape)], vec![Id::new(1 - from)]);
            match traffic {
                Traffic::Copy => {
                    vec![Action::Compute(Compute { region: Id::new(0), inputs, outputs, workspace: None })]
                }
                _ => vec![
                    Action::Start(Start { collective: Id::new(number), inputs, outputs }),
                    Action::Wait(Id::new(number)),
                ],
            }
        })
        .collect();
    let origin = Origin { what: traffic.name().to_string(), ..Origin::default() };
    let instructions: Vec<Instruction> =
        actions.into_iter().map(|action| Instruction { action, origin: origin.clone() }).collect();
    let buffer = |ty: &TensorType, offset_bytes: usize, what: &str| Buffer {
        ty: ty.clone(),
        offset_bytes,
        bytes: ty.bytes(),
        what: what.to_string(),
        first: 0,
        last: instructions.len() - 1,
        kind: BufferKind::Persistent,
    };
    let second = input.bytes().next_multiple_of(ALIGNMENT_BYTES);
    let regions = match traffic {
        Traffic::Copy => vec![Region::new(identity(input), RegionKind::Copy)],
        _ => Vec::new(),
    };
    Program {
        ranks: vec![rank],
        buffers: vec![buffer(input, 0, "input"), buffer(output, second, "output")],
        instructions,
        regions,
        arena_bytes: second + output.bytes(),
        host_bytes: 0,
        // Fed, not a parameter: its memory is there before the first run, and not one page of zeros lent many times.
        inputs: vec![Port {
            name: "input".into(),
            role: Role::Input,
            buffer: Id::new(0),
            replaces: None,
            at: 0,
        }],
        outputs: Vec::new(),
        constants: Vec::new(),
        rank_constants: Vec::new(),
        pauses: Vec::new(),
    }
}

/// A graph that gives back what it gets.
fn identity(ty: &TensorType) -> Graph {
    let mut builder = GraphBuilder::new("copy");
    let value = builder.input("input", ty.clone(), Role::Input);
    builder.finish(vec![value])
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_runtime::{Runner, RunnerOptions};

    /// Rank r gives r + 1 everywhere; the second of 64-byte aligned buffers holds the result.
    #[test]
    fn the_programs_pass_the_checks_and_do_what_they_are_called() {
        for ranks in [2, 4] {
            for traffic in Traffic::ALL {
                let mut set = programs(traffic, 256, ranks, 3);
                for program in &mut set.programs {
                    let port = Port {
                        buffer: Id::new(1),
                        name: "output".into(),
                        at: 1,
                        ..program.inputs[0].clone()
                    };
                    program.outputs.push(port);
                }
                let options = RunnerOptions::default();
                let world = options.world(&set).unwrap();
                let mut runner = Runner::new(set, world, options).unwrap_or_else(|e| panic!("{e}"));
                for rank in 0..ranks {
                    let count = runner.input_type(rank, "input").unwrap().element_count();
                    let bytes = vec![rank as f32 + 1.0; count]
                        .iter()
                        .flat_map(|x| x.to_le_bytes())
                        .collect::<Vec<u8>>();
                    runner.write_input(rank, "input", &bytes).unwrap();
                }
                runner.step().unwrap_or_else(|error| panic!("{error}"));
                for rank in 0..ranks {
                    let output = runner.read_output(rank, "output").unwrap();
                    let found: Vec<f32> =
                        output.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
                    let share = 64 / ranks;
                    let sum = (ranks * (ranks + 1) / 2) as f32;
                    let expected = match traffic {
                        Traffic::Copy => vec![rank as f32 + 1.0; share],
                        // Three times.
                        Traffic::Exchange => vec![((rank + ranks - 3 % ranks) % ranks) as f32 + 1.0; share],
                        Traffic::AllReduce => vec![sum; 64],
                        Traffic::AllGather => (0..64).map(|i| (i / share) as f32 + 1.0).collect(),
                        Traffic::ReduceScatter => vec![sum; share],
                    };
                    assert_eq!(found, expected, "{traffic:?} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn least_traffic_counts_inputs_and_outputs_once() {
        assert_eq!(Traffic::Copy.least_traffic_bytes(64, 4), 128);
        assert_eq!(Traffic::Exchange.least_traffic_bytes(64, 4), 128);
        assert_eq!(Traffic::AllReduce.least_traffic_bytes(64, 4), 512);
        assert_eq!(Traffic::AllGather.least_traffic_bytes(64, 4), 64 + 256);
        assert_eq!(Traffic::ReduceScatter.least_traffic_bytes(64, 2), 128 + 64);
    }
}
