//! Recomputation and random masks through the schedule language: recomputed values are bitwise
//! equal, and masks depend on the global index of an element, on any mesh, with and without
//! `fork_rng`.

use crate::common::unchecked;
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_ir::{Graph, Literal, Op, Operation, Phase, Registry, Role, ValueId};
use partita_mesh::Mesh;
use partita_nn::{Context, Dropout, LayerNorm, Linear, Mlp, Model, MultiheadAttention, losses};
use partita_schedule::feed::{Fed, random_feed, scalars};
use partita_schedule::tensors::{inputs_of, outputs_by_name, zero_states};
use partita_schedule::verify::{self, Interpreter, StepRunner};
use partita_schedule::{Built, Plan, Schedule};

/// Two transformer blocks with dropout behind attention and feed-forward; `dropped` is the first one's result.
fn blocks() -> Model {
    let mut cx = Context::new("blocks", DType::F64, true);
    let mut build = || -> Result<Vec<(String, ValueId)>> {
        let mut x = cx.input("inputs", DType::F64, &[4, 3, 4]);
        let targets = cx.input("targets", DType::F64, &[4, 3, 4]);
        let mut dropped = x;
        for number in 0..2 {
            x = cx.scope(&format!("blocks.{number}"), |cx| -> Result<ValueId> {
                let h = cx.call("norm", &LayerNorm::new(4), x)?;
                let h = cx.call("attention", &MultiheadAttention::new(4, 2), h)?;
                let h = cx.call("dropout", &Dropout { rate: 0.5 }, h)?;
                dropped = if number == 0 { h } else { dropped };
                let x = cx.builder.add(x, h)?;
                let h = cx.call("mlp", &Mlp::new(4, 8), x)?;
                let h = cx.call("dropout2", &Dropout { rate: 0.5 }, h)?;
                cx.builder.add(x, h)
            })?;
        }
        let y = cx.call("head", &Linear::new(4, 4), x)?;
        Ok(vec![("loss".to_string(), losses::mse(&mut cx, y, targets)?), ("dropped".to_string(), dropped)])
    };
    let outputs = build().unwrap_or_else(|error| panic!("{error}"));
    cx.finish(outputs).unwrap()
}

fn built(model: &Model, mesh: &str, calls: &str) -> Built {
    let mut sch = Schedule::new(model, &Mesh::parse(mesh, None).unwrap()).unwrap();
    *sch.options() = sch.options().clone().for_verification();
    let plan = Plan::from_calls(calls, "case").unwrap();
    let built = sch.extend(&plan).and_then(|()| unchecked(&mut sch, model, &Registry::default()));
    built.unwrap_or_else(|error| panic!("{mesh} {calls}\n{error}"))
}

/// The outputs of a step by name: outputs, gradients, parameters, states.
fn outputs(model: &Model, built: &Built) -> IndexMap<String, Literal> {
    let mut fed: Fed = model.initial(3).unwrap();
    fed.extend(random_feed(model, 3, 0.0));
    fed.extend(scalars(&built.step, 3, 1, 1e-3));
    fed.extend(zero_states(&built.step));
    let inputs = inputs_of(&built.step, &built.pieces, &fed).unwrap();
    let results = Interpreter.run(built, &inputs).unwrap_or_else(|error| panic!("{error}"));
    outputs_by_name(&built.step, &built.pieces, results)
}

/// The number of masks that the backward pass recomputes.
fn drawn_again(graph: &Graph) -> usize {
    let draws = |op: &Op| op.name() == "partita.dropout";
    graph.nodes.iter().filter(|node| node.phase != Phase::Forward && draws(&node.op)).count()
}

/// The values of a module's forward pass that the backward pass reads.
fn kept(graph: &Graph, module: &str) -> usize {
    let inside = |v: &ValueId| {
        graph.value(*v).definition.is_some_and(|(id, _)| {
            let node = graph.node(id);
            node.phase == Phase::Forward
                && node.path.starts_with(module)
                && !matches!(node.op, Op::Constant(_) | Op::BroadcastInDim(_))
        })
    };
    let backward = graph.nodes.iter().filter(|node| node.phase.is_backward());
    let mut read: Vec<ValueId> = backward.flat_map(|node| &node.operands).copied().filter(inside).collect();
    read.sort();
    read.dedup();
    read.len()
}

const MEGATRON: &str = "sch['blocks.*.attention.*_proj'].colwise()\n";

#[test]
fn gradients_are_equal_to_the_bit_with_and_without() {
    let model = blocks();
    let plain = built(&model, "tp=1", "");
    let expected = outputs(&model, &plain);
    assert!(expected.keys().filter(|name| name.starts_with("grad.")).count() == model.params.len());
    for (calls, drawn) in [
        // Of four masks, the first is returned and kept; the last of a block is needed only for its
        // output.
        ("sch['blocks.*'].checkpoint()", 1),
        ("sch['blocks.0'].checkpoint()\nsch['blocks.1.mlp'].checkpoint()", 0),
        ("sch['blocks.*.mlp'].checkpoint()\nsch['blocks.*.attention'].checkpoint()", 0),
        ("sch['blocks.*.mlp'].trace(flatten=True)\nsch.checkpoint('gelu(x)')", 0),
        ("sch.checkpoint('dropout(x, seed)')", 0),
        ("sch['blocks.*'].checkpoint('x + dropout(y, seed)')", 0),
        ("sch.checkpoint()", 3),
    ] {
        let again = built(&model, "tp=1", calls);
        for (name, value) in outputs(&model, &again) {
            assert_eq!(value.to_bytes(), expected[&name].to_bytes(), "{calls}: {name}");
        }
        assert_eq!(drawn_again(&again.step), drawn, "{calls}");
    }
}

#[test]
fn a_checkpointed_block_keeps_what_enters_it() {
    let model = blocks();
    // Only the block's output and the returned values are kept.
    let every = built(&model, "tp=1", "sch['blocks.*'].checkpoint()").step;
    assert_eq!([kept(&every, "blocks.0"), kept(&every, "blocks.1")], [2, 1]);
    let plain = built(&model, "tp=1", "").step;
    assert!(kept(&plain, "blocks.1") > 10, "{}", kept(&plain, "blocks.1"));
    let is_again = |v: &ValueId| matches!(every.value(*v).role, Role::RematOf(_));
    assert!(every.value_ids().filter(is_again).count() > 20);
    assert!(!plain.value_ids().any(|v| matches!(plain.value(v).role, Role::RematOf(_))));
}

#[test]
fn l11_masks_follow_the_global_index_and_recomputation_repeats_them() {
    let model = blocks();
    let one = outputs(&model, &built(&model, "tp=1", ""));
    let mask = |outputs: &IndexMap<String, Literal>| -> Vec<bool> {
        outputs["dropped"].to_f64().iter().map(|v| *v == 0.0).collect()
    };
    let zeros = mask(&one).iter().filter(|zero| **zero).count();
    assert!((12..36).contains(&zeros), "about half of 48: {zeros}");
    let layouts = ["", MEGATRON, "sch['blocks.*.dropout'].shard('output', -1, axis='tp')\n"];
    for (mesh, layouts) in [("tp=2", &layouts[..]), ("dp=2", &layouts[..1]), ("dp=2,tp=2", &layouts[..])] {
        for layout in layouts {
            let plain = outputs(&model, &built(&model, mesh, layout));
            let report = verify::compare(&one, &plain, None, None, DType::F64);
            assert!(report.ok, "{mesh} {layout}: {:?}", report.worst());
            assert_eq!(mask(&plain), mask(&one), "{mesh} {layout}");
            for more in [
                "sch['blocks.*.dropout'].fork_rng()",
                "sch['blocks.*'].checkpoint()",
                "sch['blocks.*.dropout'].fork_rng()\nsch['blocks.*'].checkpoint()",
            ] {
                let built = built(&model, mesh, &format!("{layout}{more}"));
                let noted = built.notes.iter().filter(|note| note.text.contains("fork_rng changes nothing"));
                assert_eq!(noted.count(), if more.contains("fork_rng") { 2 } else { 0 });
                let drawn = if more.contains("checkpoint") { 1 } else { 0 };
                assert_eq!(drawn_again(&built.step), drawn, "{mesh} {more}");
                let again = outputs(&model, &built);
                assert_eq!(mask(&again), mask(&one), "{mesh} {layout}{more}");
                let report = verify::compare(&one, &again, None, None, DType::F64);
                assert!(report.ok, "{mesh} {layout}{more}: {:?}", report.worst());
            }
        }
    }
}
