//! Computing layers again in the backward pass: the same numbers to the bit, in less memory.

use partita::Session;
use partita::execution::{tensor_data, with_batch};
use partita::memory::{Memory, memory};
use partita_ir::{Graph, remat};
use partita_program::{ProgramSet, counts};
use partita_schedule::{Built, feed::random_feed};

const VOCAB: usize = 64;

/// A model of `layers` layers, planned; each layer computed again where `again` says so.
fn planned(name: &str, layers: usize, again: bool, overrides: &[&str]) -> (Session, Built) {
    let sizes = [format!("model.layers={layers}"), format!("model.vocab={VOCAB}")];
    let overrides = ["mesh.shape=dp=1"].iter().chain(overrides).map(|item| item.to_string());
    let session = Session::load(name, &sizes.into_iter().chain(overrides).collect::<Vec<_>>())
        .unwrap_or_else(|error| panic!("{error}"));
    let mut model = session.model().unwrap();
    if again {
        (0..layers).for_each(|layer| mark_layer(&mut model.forward, layer));
    }
    let planned = session.build_model(&model).unwrap_or_else(|error| panic!("{error}"));
    (session, planned)
}

fn mark_layer(forward: &mut Graph, layer: usize) {
    let prefix = format!("layers.{layer}");
    let is_inside =
        |path: &str| path.strip_prefix(&prefix).is_some_and(|p| p.is_empty() || p.starts_with('.'));
    let nodes: Vec<_> = forward.node_ids().filter(|&id| is_inside(&forward.node(id).path)).collect();
    remat::mark(forward, nodes).unwrap();
}

/// Loss and gradient norm of a few steps.
fn steps(name: &str, again: bool, overrides: &[&str]) -> Vec<(u64, u64)> {
    let (session, planned) = planned(name, 2, again, overrides);
    let model = session.model().unwrap();
    let mut player = session.prepare(&planned).unwrap().train_loop;
    for (name, literal) in model.initial(session.config().train.seed).unwrap() {
        player.set_tensor(&name, &tensor_data(&literal)).unwrap();
    }
    let step = |number: u64| {
        let batch = random_feed(&model, number, 0.0);
        with_batch(&batch, |tensors| player.step(tensors, 1e-2)).unwrap();
        let bits = |name: &str| player.runner().read_number(0, name).unwrap().to_bits();
        (bits("loss"), bits("grad_norm"))
    };
    (0..4).map(step).collect()
}

#[test]
fn losses_are_the_same_to_the_bit() {
    let sizes = ["model.dim=32", "model.heads=4", "model.sequence=16", "train.batch=4", "model.dropout=0.1"];
    let forms: [&[&str]; 6] = [
        &[],
        &["mesh.shape=tp=2"],
        &["mesh.shape=dp=2"],
        &["mesh.shape=dp=2", "train.microbatches=2", "model.kv_heads=2"],
        &["mesh.shape=tp=2", "plan.sequence_parallel=true"],
        &["mesh.shape=fsdp=2,tp=2"],
    ];
    for form in forms {
        let overrides = [&sizes, form].concat();
        let expected = steps("gpt", false, &overrides);
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "{form:?}: it learns");
        assert_eq!(steps("gpt", true, &overrides), expected, "{form:?}");
    }
}

/// Sizes at which a layer's input is larger than a layer's gradients: most is held where the backward pass begins.
const BATCH: usize = 8;
const SEQUENCE: usize = 128;
const DIM: usize = 32;
const STREAM_BYTES: usize = BATCH * SEQUENCE * DIM * 4;
const MLP_RATIO: usize = 4;

fn sized(layers: usize, again: bool, overrides: &[&str]) -> ProgramSet {
    let sizes = [
        format!("model.dim={DIM}"),
        format!("model.mlp_ratio={MLP_RATIO}"),
        format!("model.sequence={SEQUENCE}"),
        format!("train.batch={BATCH}"),
    ];
    let overrides: Vec<&str> = sizes.iter().map(String::as_str).chain(overrides.iter().copied()).collect();
    {
        let (session, planned) = planned("gpt", layers, again, &overrides);
        session.lower(&planned).unwrap()
    }
}

#[test]
fn a_layer_keeps_its_input_alone() {
    // What the backward pass of a layer reads, in sizes of the residual stream: the inputs of both norms, of the
    // projections to queries, keys and values, those three, the input of the output projection, the inputs of both
    // feed-forward layers, and what GELU was taken of. What softmax and norms reduce, and dropout's masks, are computed
    // again anyhow.
    let norms = 2;
    let attention = 1 + 3 + 1;
    let feed_forward = 1 + MLP_RATIO + MLP_RATIO;
    let kept = (norms + attention + feed_forward) * STREAM_BYTES;
    for dropout in ["model.dropout=0.1", "model.dropout=0"] {
        let of = |layers: usize, again: bool| memory(&sized(layers, again, &[dropout]))[0];
        let plain: Vec<Memory> = (2..=4).map(|layers| of(layers, false)).collect();
        let again: Vec<Memory> = (2..=4).map(|layers| of(layers, true)).collect();
        let slopes = |all: &[Memory]| -> Vec<usize> {
            all.windows(2).map(|pair| pair[1].activations - pair[0].activations).collect()
        };
        assert_eq!(slopes(&plain), [kept; 2], "{dropout}");
        assert_eq!(slopes(&again), [STREAM_BYTES; 2], "{dropout}");
        // Parameters, states and what is fed are the same.
        let rest = |memory: &Memory| Memory { activations: 0, arena: 0, ..*memory };
        for (plain, again) in plain.iter().zip(&again) {
            assert_eq!(rest(again), rest(plain));
            assert!(again.activations < plain.activations);
        }
    }
}

/// (kind, meetings, tensors, bytes) of the kinds that occur in the backward pass.
fn backward(set: &ProgramSet) -> Vec<(&'static str, usize, usize, usize)> {
    let kinds = counts(set, 0).backward.kinds;
    let used = kinds.iter().filter(|(_, of)| of.count > 0);
    used.map(|(&kind, of)| (kind, of.count, of.logical, of.bytes)).collect()
}

#[test]
fn ranks_meet_once_more_for_a_layer_computed_again() {
    for layers in [1, 2, 3] {
        let of = |again: bool, mesh: &str| backward(&sized(layers, again, &[mesh]));
        // Of the two sums of the forward pass the layer's own output, the second, is read by nobody.
        let sums = |count: usize| [("all_reduce", count, count, count * STREAM_BYTES)];
        assert_eq!(of(false, "mesh.shape=tp=2"), sums(2 * layers));
        assert_eq!(of(true, "mesh.shape=tp=2"), sums(3 * layers));
        // Of each layer, one gather serves what is computed again and its gradient. Beside the six matrices and both
        // norms it now brings the biases of q, k, v, o and up.
        let [plain, again] = [false, true].map(|again| of(again, "mesh.shape=fsdp=2"));
        let bias_bytes = layers * (4 + MLP_RATIO) * DIM * 4;
        let (kind, meetings, tensors, bytes) = plain[0];
        assert_eq!((kind, meetings), ("all_gather", layers + 1), "the layers and the last norm");
        assert_eq!(again, [(kind, meetings, tensors + 5 * layers, bytes + bias_bytes), plain[1]]);
    }
}
