//! What lowering makes of small steps: buckets, order, regions, views, places.

mod common;

use common::*;
use partita_base::DType;
use partita_ir::composite::Attributes;
use partita_ir::ops::Constant;
use partita_ir::{ClassGraph, Graph, GraphBuilder, Literal, Op, Phase, Role, TensorType, ValueId};
use partita_program::*;

/// Two layers whose weights [5, 4] are sharded by rows 3 + 2: gathered before use in forward and backward, gradients
/// reduce-scattered, stochastic gradient descent. `x` is [2, 5] on each rank.
fn sharded_step() -> Vec<Graph> {
    let extents = [3, 2];
    let mut graphs = build(2, |rank, b| {
        let x = b.input("x", f32s(&[2, 5]), Role::Input);
        let names = ["layers.0.up", "layers.0.gate", "layers.1.up", "layers.1.gate"];
        let weights: Vec<ValueId> =
            names.iter().map(|name| b.input(name, f32s(&[extents[rank], 4]), Role::Param)).collect();
        let gather = |b: &mut GraphBuilder, i: usize| all_gather(b, weights[i], 0, &[0, 1], &extents);
        let mut h = x;
        for layer in 0..2 {
            h = in_phase(b, Phase::Forward, &format!("layers.{layer}.mlp"), |b| {
                let up = gather(b, 2 * layer);
                let up = matmul(b, h, up);
                let gate = gather(b, 2 * layer + 1);
                let gate = matmul(b, h, gate);
                let y = b.multiply(up, gate).unwrap();
                let y = b.scale(y, 0.125).unwrap();
                let bias = b.full(&f32s(&[2, 5]), 0.5).unwrap();
                let first = b.slice_dim(y, 1, 0, 1).unwrap();
                let wide = b.concatenate(&[y, first], 1).unwrap();
                b.add(wide, bias).unwrap()
            });
        }
        let loss = b.reduce_sum(h, &[0, 1]).unwrap();
        let mut updates = Vec::new();
        let mut cotangent = b.broadcast_scalar(loss, &[2, 4]).unwrap();
        for layer in (0..2).rev() {
            let path = format!("layers.{layer}.mlp");
            for i in [2 * layer, 2 * layer + 1] {
                let full = in_phase(b, Phase::WeightGrad, &path, |b| {
                    let turned = b.transpose(x, &[1, 0]).unwrap();
                    let gradient = matmul(b, turned, cotangent);
                    reduce_scatter(b, gradient, 0, &[0, 1], &extents, rank)
                });
                cotangent = in_phase(b, Phase::InputGrad, &path, |b| {
                    let weight = gather(b, i);
                    let turned = b.transpose(weight, &[1, 0]).unwrap();
                    let back = matmul(b, cotangent, turned);
                    let cut = b.slice_dim(back, 1, 0, 4).unwrap();
                    b.scale(cut, 0.0625).unwrap()
                });
                updates.push((i, full));
            }
        }
        updates.sort();
        let last = cotangent;
        let mut outputs = vec![("loss".to_string(), loss)];
        for (i, gradient) in updates {
            let new = in_phase(b, Phase::Update, names[i], |b| {
                let step = b.scale(gradient, 1.0 / 1024.0).unwrap();
                b.subtract(weights[i], step).unwrap()
            });
            outputs.push((names[i].to_string(), new));
        }
        outputs.push(("cotangent".into(), last));
        outputs
    });
    alias(&mut graphs, &[(1, 1), (2, 2), (3, 3), (4, 4)]);
    graphs
}

fn position(program: &Program, test: impl Fn(&Instruction) -> bool) -> usize {
    program.instructions.iter().position(test).expect("there is such an instruction")
}

/// (start, wait) of every collective of a rank, in order of their starts.
fn spans(set: &ProgramSet, rank: usize) -> Vec<(CollectiveKind, String, usize, usize)> {
    let program = &set.programs[rank];
    let mut spans = Vec::new();
    for (index, instruction) in program.instructions.iter().enumerate() {
        if let Action::Start(start) = &instruction.action {
            let wait = position(program, |i| i.action == Action::Wait(start.collective));
            let collective = &set.collectives[start.collective.index()];
            spans.push((collective.kind, collective.label.clone(), index, wait));
        }
    }
    spans
}

#[test]
fn gathers_and_reduce_scatters_travel_by_block() {
    let set = lower_and_compare(&sharded_step(), &LowerOptions::default());
    let counts = counts(&set);
    let full = 5 * 4 * 4;
    let of = |phase: &PhaseCounts, kind| phase.of(kind);
    let pair = |count| KindCount { count, logical: 2 * count, bytes: 2 * count * full };
    assert_eq!(of(&counts.forward, CollectiveKind::AllGather), pair(2));
    assert_eq!(of(&counts.backward, CollectiveKind::AllGather), pair(2));
    assert_eq!(of(&counts.backward, CollectiveKind::ReduceScatter), pair(2));
    assert_eq!(counts.update.total(), KindCount::default());
    let plain = counts_of_graph(&sharded_step()[0]);
    assert_eq!(plain.backward.total(), KindCount { count: 8, logical: 8, bytes: 8 * full });
}

#[test]
fn a_gather_starts_when_the_block_before_begins() {
    for prefetch in [true, false] {
        let options = LowerOptions { prefetch, ..LowerOptions::default() };
        let set = lower_and_compare(&sharded_step(), &options);
        let gathers: Vec<_> =
            spans(&set, 0).into_iter().filter(|s| s.0 == CollectiveKind::AllGather).collect();
        assert_eq!(gathers.len(), 4);
        for pair in gathers.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            if prefetch {
                assert_eq!(after.2, before.3 + 1, "{}", set.display(0));
            } else {
                assert_eq!(after.2 + 1, after.3, "{}", set.display(0));
            }
        }
    }
}

#[test]
fn one_gradient_bucket_is_under_way_at_a_time() {
    let set = lower_and_compare(&sharded_step(), &LowerOptions::default());
    let scatters: Vec<_> =
        spans(&set, 1).into_iter().filter(|s| s.0 == CollectiveKind::ReduceScatter).collect();
    assert_eq!(scatters.len(), 2);
    assert!(scatters[0].1.contains("layers.1") && scatters[1].1.contains("layers.0"));
    assert!(scatters[0].2 + 1 < scatters[0].3, "something overlaps");
    assert!(scatters[0].3 < scatters[1].2);
}

#[test]
fn an_update_is_written_over_its_parameter() {
    let set = lower_and_compare(&sharded_step(), &LowerOptions::default());
    for program in &set.programs {
        assert!(
            program.instructions.iter().all(|i| i.origin.what != "copy" || i.origin.phase != Phase::Update)
        );
        for (input, output) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
            assert_eq!(program.inputs[input].buffer, program.outputs[output].buffer);
            assert_eq!(program.outputs[output].replaces, Some(input));
        }
        // Scale and subtract are one region.
        let updates = program.instructions.iter().filter(|i| i.origin.phase == Phase::Update);
        assert_eq!(updates.filter(|i| matches!(i.action, Action::Compute(_))).count(), 4);
    }
}

fn reduced_gradients(sizes: &[usize], chained: bool) -> Vec<Graph> {
    build(2, |_, b| {
        let mut outputs = Vec::new();
        let inputs: Vec<ValueId> =
            (0..sizes.len()).map(|i| b.input(&format!("g{i}"), f32s(&[sizes[i]]), Role::Param)).collect();
        b.phase = Phase::WeightGrad;
        let mut reduced: Option<ValueId> = None;
        for (i, &input) in inputs.iter().enumerate() {
            b.path = format!("layers.{i}");
            let twice = match reduced {
                Some(before) if chained => b.add(input, before).unwrap(),
                _ => b.add(input, input).unwrap(),
            };
            let sum = all_reduce(b, twice, &[&[0, 1]]);
            reduced = Some(sum);
            outputs.push((format!("r{i}"), sum));
        }
        outputs
    })
}

#[test]
fn gradient_all_reduces_fill_buckets_up_to_the_cap() {
    // 16 + 16 + 16 + 24 + 4 bytes under a cap of 40.
    let options = LowerOptions { bucket_cap_bytes: 40, ..LowerOptions::default() };
    let set = lower_and_compare(&reduced_gradients(&[4, 4, 4, 6, 1], false), &options);
    let logical: Vec<usize> = set.collectives.iter().map(|c| c.transfers.len()).collect();
    assert_eq!(logical, [2, 2, 1]);
    let set = lower_and_compare(&reduced_gradients(&[4, 4, 4, 6, 1], false), &LowerOptions::default());
    assert_eq!(
        counts(&set).backward.of(CollectiveKind::AllReduce),
        KindCount { count: 1, logical: 5, bytes: 76 }
    );
}

#[test]
fn collectives_that_depend_on_each_other_do_not_merge() {
    let set = lower_and_compare(&reduced_gradients(&[4, 4, 4], true), &LowerOptions::default());
    assert_eq!(counts(&set).backward.of(CollectiveKind::AllReduce).count, 3);
}

#[test]
fn groups_meet_apart_and_a_rank_alone_meets_itself() {
    let graphs = build(5, |_, b| {
        let x = b.input("x", f32s(&[3]), Role::Activation);
        let y = all_reduce(b, x, &[&[0, 2], &[3, 1]]);
        let z = permute(b, y, &[(0, 1), (1, 0), (2, 2)]);
        vec![("y".into(), y), ("z".into(), z)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let members: Vec<&[usize]> = set.collectives.iter().map(|c| &c.members[..]).collect();
    assert_eq!(members, [&[0, 2][..], &[3, 1], &[4], &[0, 1], &[2], &[3], &[4]]);
    assert_eq!(counts(&set).forward.total().count, 2);
}

#[test]
fn a_collective_in_which_all_are_alone_vanishes() {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[3]), Role::Activation);
        let y = all_reduce(b, x, &[&[0], &[1]]);
        vec![("y".into(), b.negate(y).unwrap())]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    assert!(set.collectives.is_empty());
}

#[test]
fn swapped_and_doubled_replacements_keep_their_values() {
    let mut graphs = build(1, |_, b| {
        let names = ["a", "b", "c", "d", "e"];
        let v: Vec<ValueId> = names.iter().map(|n| b.input(n, f32s(&[2, 2]), Role::Param)).collect();
        let sum = b.add(v[2], v[3]).unwrap();
        let turned = b.transpose(v[4], &[1, 0]).unwrap();
        // The old `c` is read after its replacement is computed.
        let later = b.reduce_max(sum, &[0]).unwrap();
        let later = b.broadcast_in_dim(later, &[2, 2], &[1]).unwrap();
        let late = b.multiply(later, v[2]).unwrap();
        let outputs = [v[1], v[0], sum, sum, turned, late, v[0]];
        outputs.iter().enumerate().map(|(i, &v)| (format!("out{i}"), v)).collect()
    });
    alias(&mut graphs, &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    lower_and_compare(&graphs, &LowerOptions::default());
}

#[test]
fn a_parameter_that_stays_needs_no_instruction() {
    let mut graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[2]), Role::Param);
        vec![("x".into(), x)]
    });
    alias(&mut graphs, &[(0, 0)]);
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    assert!(set.programs[0].instructions.is_empty());
    assert_eq!(set.programs[0].arena_bytes, 8);
}

#[test]
fn view_ops_cost_nothing_where_strides_can_say_it() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[2, 6]), Role::Input);
        let bias = b.input("bias", f32s(&[3]), Role::Param);
        let split = b.reshape(x, &[2, 2, 3]).unwrap();
        let turned = b.transpose(split, &[1, 0, 2]).unwrap();
        let bias = b.broadcast_in_dim(bias, &[2, 2, 3], &[2]).unwrap();
        let one = b.constant(Literal::splat(&f32s(&[2, 2, 3]), 1.0));
        let sum = b.add(turned, bias).unwrap();
        vec![("y".into(), b.multiply(sum, one).unwrap())]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let program = &set.programs[0];
    assert_eq!(program.instructions.len(), 1, "{}", set.display(0));
    assert!(program.constants.is_empty());
    let Action::Compute(compute) = &program.instructions[0].action else { panic!("one region") };
    assert_eq!(compute.inputs[0].strides, [3, 6, 1]);
    assert_eq!(compute.inputs[1].strides, [0, 0, 1]);
}

#[test]
fn a_chain_runs_in_the_place_of_its_input() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[32]), Role::Input);
        let mut y = b.negate(x).unwrap();
        for _ in 0..5 {
            y = b.scale(y, 0.5).unwrap();
        }
        vec![("y".into(), y)]
    });
    for fused_ops in [1, 64] {
        let options = LowerOptions { fused_ops, ..LowerOptions::default() };
        let set = lower_and_compare(&graphs, &options);
        let program = &set.programs[0];
        assert_eq!(program.instructions.len(), if fused_ops == 1 { 6 } else { 1 });
        assert_eq!(program.arena_bytes, 32 * 4);
    }
}

#[test]
fn an_input_seen_in_two_ways_keeps_its_place() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[4, 4]), Role::Input);
        let turned = b.transpose(x, &[1, 0]).unwrap();
        vec![("y".into(), b.subtract(x, turned).unwrap())]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    assert_eq!(set.programs[0].arena_bytes, 2 * 16 * 4);
}

#[test]
fn a_node_that_reads_a_detour_stays_out_of_the_region() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Param);
        let a = b.negate(x).unwrap();
        let product = matmul(b, a, a);
        let c = b.add(a, product).unwrap();
        let d = b.add(a, x).unwrap();
        let e = b.add(c, d).unwrap();
        vec![("e".into(), e)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let regions: Vec<usize> = set.programs[0].regions.iter().map(|r| r.graph.nodes.len()).collect();
    // a; the product; the rest: with a, d would only lie in memory earlier.
    assert_eq!(regions, [1, 1, 3], "{}", set.display(0));
}

#[test]
fn a_node_joins_an_earlier_region_where_it_takes_the_place_of_an_output() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Param);
        let a = b.negate(x).unwrap();
        let c = b.add(a, x).unwrap();
        let product = matmul(b, a, a);
        let d = b.multiply(c, x).unwrap();
        let e = b.transpose(d, &[1, 0]).unwrap();
        vec![("e".into(), matmul(b, e, product))]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let regions: Vec<usize> = set.programs[0].regions.iter().map(|r| r.graph.nodes.len()).collect();
    // a, c and d, which is handed on instead of c; both products.
    assert_eq!(regions, [3, 1, 1], "{}", set.display(0));
}

#[test]
fn constants_are_loaded_once_and_shared() {
    let graphs = build(2, |rank, b| {
        let x = b.input("x", f32s(&[2]), Role::Input);
        let table = Literal::new([2], vec![1.0f32, 2.0 + rank as f32]);
        let (a, c) = (b.constant(table.clone()), b.constant(table));
        let y = b.add(x, a).unwrap();
        let z = b.concatenate(&[y, c], 0).unwrap();
        vec![("z".into(), z), ("table".into(), a)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    assert!(set.programs.iter().all(|p| p.constants.len() == 1));
}

/// Knows one composite.
struct OneKernel;

impl RegionSizes for OneKernel {
    fn workspace_bytes(&self, _: &Region, _: &[View]) -> usize {
        0
    }
    fn has_kernel(&self, composite: &partita_ir::ops::Composite) -> bool {
        composite.definition.name == "test.known"
    }
}

#[test]
fn a_composite_without_a_kernel_is_inlined() {
    let graph = |name: &str| {
        let mut body = GraphBuilder::new(name);
        let x = body.input("x", f32s(&[3]), Role::Activation);
        let y = body.negate(x).unwrap();
        let y = body.add(y, y).unwrap();
        let decomposition = body.finish(vec![y]);
        let definition = partita_ir::CompositeDefinition {
            name: name.into(),
            decomposition,
            origin: partita_ir::composite::Origin::Outlined,
        };
        let composite =
            partita_ir::ops::Composite { attributes: Attributes::new(), definition: definition.into() };
        build(1, |_, b| {
            let x = b.input("x", f32s(&[3]), Role::Activation);
            let y = b.push_typed(composite.clone(), &[x], vec![f32s(&[3])])[0];
            vec![("z".into(), b.negate(y).unwrap())]
        })
    };
    let known = lower(&ClassGraph::each(graph("test.known")), &LowerOptions::default(), &OneKernel).unwrap();
    assert_eq!(known.programs[0].regions.len(), 2);
    assert!(matches!(known.programs[0].regions[0].single().unwrap().op, Op::Composite(_)));
    let unknown =
        lower(&ClassGraph::each(graph("test.other")), &LowerOptions::default(), &OneKernel).unwrap();
    assert_eq!(unknown.programs[0].regions.len(), 1);
    lower_and_compare(&graph("test.other"), &LowerOptions::default());
    let inputs = vec![vec![Literal::new([3], vec![1.0f32, 2.0, 3.0])]];
    assert_eq!(interpret(&known, &inputs).unwrap(), interpret(&unknown, &inputs).unwrap());
}

#[test]
fn scalar_operands_stay_in_the_region_and_scalar_predicates_repeat() {
    let graphs = build(1, |_, b| {
        let x = b.input("x", f32s(&[2, 3]), Role::Input);
        let flag = b.input("flag", TensorType::scalar(DType::Bool), Role::Input);
        let y = b.negate(x).unwrap();
        let z = b.select(flag, x, y).unwrap();
        let sum = b.reduce_sum(z, &[0]).unwrap();
        vec![("sum".into(), sum)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let regions = &set.programs[0].regions;
    assert_eq!(regions.len(), 2);
    assert!(matches!(&regions[1].graph.nodes[0].op, Op::Constant(Constant { .. })));
    assert!(matches!(regions[1].single().unwrap().op, Op::Reduce(_)));
    assert_eq!(regions[1].graph.inputs.len(), 1);
}

#[test]
fn ranks_of_different_structure_are_refused() {
    let graphs = build(2, |rank, b| {
        let x = b.input("x", f32s(&[3]), Role::Activation);
        let y = if rank == 0 { b.negate(x) } else { b.exponential(x) };
        vec![("y".into(), y.unwrap())]
    });
    assert_eq!(
        lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap_err().code,
        "E400"
    );
}

#[test]
fn a_listing_shows_places_and_paths() {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[4]), Role::Param);
        let y = in_phase(b, Phase::Forward, "layers.0.mlp", |b| b.negate(x).unwrap());
        let z = in_phase(b, Phase::Forward, "layers.0.mlp", |b| all_reduce(b, y, &[&[0, 1]]));
        vec![("z".into(), z)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    assert_eq!(
        set.display(1).to_string(),
        "program of rank 1: 3 instructions, 3 buffers, arena 144 bytes (16 persistent)\n  \
           in   %0@0:f32[4]  x\n  \
           0  %1@64:f32[4] = negate(%0@0:f32[4])  // layers.0.mlp (forward)\n  \
           1  start #0 all_reduce over [0, 1]: %2@128:f32[4] <- %1@64:f32[4]  // layers.0.mlp (forward)\n  \
           2  wait #0 all_reduce  // layers.0.mlp (forward)\n  \
           out  %2@128:f32[4]  z\n"
    );
}

#[test]
fn work_behind_a_bucket_of_gradients_is_counted() {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Input);
        let sum = in_phase(b, Phase::WeightGrad, "layer", |b| all_reduce(b, x, &[&[0, 1]]));
        let product = in_phase(b, Phase::InputGrad, "layer", |b| matmul(b, x, x));
        let y = in_phase(b, Phase::Update, "optimizer", |b| b.add(sum, product).unwrap());
        vec![("y".to_string(), y)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let overlaps = gradient_overlap(&set, 1);
    // A multiplication and an addition for each of 3 * 3 * 3; the sum of both comes after.
    let found: Vec<_> = overlaps.iter().map(|o| (o.kind, o.tensors, o.bytes, o.flops)).collect();
    assert_eq!(found, [(CollectiveKind::AllReduce, 1, 36, 54.0)], "{}", set.display(1));
}

/// A tied table gets a gradient from the head and one from the rows that were looked up.
#[test]
fn a_scatter_into_zeros_that_is_added_goes_into_the_sum() {
    use partita_ir::ops::{Reducer, Scatter, ScatterDims, Update};
    use partita_mesh::Combiner;
    for selected in [false, true] {
        let graphs = build(1, |_, b| {
            let x = b.input("x", f32s(&[3, 4]), Role::Input);
            let w = b.input("w", f32s(&[4, 4]), Role::Input);
            let head = matmul(b, x, w);
            let rows = b.input("rows", TensorType::new(DType::I32, [2, 1]), Role::Input);
            let updates = b.input("updates", f32s(&[2, 4]), Role::Input);
            // As on a mesh, where one rank keeps what there is and others begin with zeros.
            let is_first = b.input("is_first", TensorType::scalar(DType::Bool), Role::Input);
            let zeros = [0, 1].map(|_| b.full(&f32s(&[3, 4]), 0.0).unwrap());
            let zeros = if selected { b.select(is_first, zeros[0], zeros[1]).unwrap() } else { zeros[0] };
            let scatter = Scatter {
                dims: ScatterDims {
                    update_window_dims: vec![1],
                    inserted_window_dims: vec![0],
                    input_batching_dims: vec![],
                    scatter_indices_batching_dims: vec![],
                    scatter_dims_to_operand_dims: vec![0],
                    index_vector_dim: 1,
                },
                update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
                indices_are_sorted: false,
                unique_indices: false,
            };
            let scattered = b.push(scatter, &[zeros, rows, updates]).unwrap()[0];
            let sum = b.add(head, scattered).unwrap();
            vec![("sum".to_string(), sum)]
        });
        let set = lower_and_compare(&graphs, &LowerOptions::default());
        let program = &set.programs[0];
        let what: Vec<&str> = program.instructions.iter().map(|i| i.origin.what.as_str()).collect();
        assert_eq!(what, ["dot_general", "scatter"], "{}", set.display(0));
        let outputs: Vec<usize> = (0..2)
            .map(|i| match &program.instructions[i].action {
                Action::Compute(compute) => program.buffer(compute.outputs[0]).offset_bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(outputs[0], outputs[1], "in place");
    }
}
