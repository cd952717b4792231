//! Models of images, and T5, on a mesh: the numbers of one device, and halos of exactly the rows that windows see.

use crate::counts::seen;
use partita::Session;
use partita::config::Config;
use partita_base::DType;
use partita_ir::Operation;
use partita_program::{CollectiveKind, counts};
use partita_schedule::verify::{Interpreter, Unwatched};

const RESNET: &str = "kind = \"wide-resnet\"\nblocks = [1, 1]\ndim = 4\nimage = 8\nclasses = 3\n";
const POOLED: &str =
    "kind = \"wide-resnet\"\nblocks = [1]\ndim = 4\nwidth = 1\nimage = 20\nstem = 7\nclasses = 3\n";
const VIT: &str =
    "kind = \"vit\"\nimage = 12\npatch = 3\nclasses = 3\ndim = 8\nlayers = 2\nheads = 2\nmlp_ratio = 2\n";
const UNET: &str = "kind = \"unet\"\nimage = 8\ndim = 4\ndepth = 2\ngroups = 2\n";
const T5: &str = "kind = \"t5\"\nvocab = 300\ndim = 6\nlayers = 1\nheads = 2\nhead_features = 4\nhidden = 8\nsequence = 8\n\
                  buckets = 8\ndistance = 10\n";

/// A model with a batch of four rows.
fn session(model: &str, mesh: &str, dtype: &str, more: &str) -> Session {
    let text = format!(
        "[model]\n{model}[train]\ndtype = \"{dtype}\"\nbatch = 4\n{more}\n[optimizer]\nkind = \"sgd\"\n\
         [mesh]\nshape = \"{mesh}\"\n"
    );
    let config = Config::from_table(text.parse().unwrap()).unwrap_or_else(|error| panic!("{text}{error}"));
    Session::new(config).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn exact(model: &str, mesh: &str, more: &str) {
    let session = session(model, mesh, "f64", more);
    let verified = session.verify(4, &Interpreter, &Unwatched);
    let report = verified.unwrap_or_else(|error| panic!("{model} {mesh}: {error}")).report;
    assert!(report.ok, "{model} {mesh}: {:?}, {:?}", report.worst(), report.first_diverging);
    // Gradients that are zero in exact arithmetic: of key biases, and of biases before a norm.
    let significant =
        |name: &str| !(name.ends_with("k_proj.bias") || model == UNET && name.ends_with(".bias"));
    for tensor in report.tensors.iter().filter(|tensor| significant(&tensor.tensor)) {
        assert!(tensor.rel_error < 1e-9 && tensor.excused == 0, "{model} {mesh}: {tensor:?}");
    }
}

#[test]
fn residual_networks_are_exact_on_every_mesh() {
    for mesh in ["sp=2", "sp=3", "sp=4", "dp=2,sp=2", "sp=2,tp=2", "fsdp=2,sp=2", "dp=2", "fsdp=3", "tp=2"] {
        exact(RESNET, mesh, "");
    }
    for mesh in ["sp=2", "sp=3", "sp=4"] {
        exact(POOLED, mesh, "");
    }
}

#[test]
fn vision_transformers_are_exact_on_every_mesh() {
    for mesh in ["sp=2", "sp=3", "sp=4", "dp=2,sp=2", "sp=2,tp=2", "fsdp=2,tp=2", "dp=2,tp=2", "tp=3", "pp=2"]
    {
        exact(VIT, mesh, "");
    }
    exact(VIT, "tp=2", "[plan]\nsequence_parallel = true");
}

#[test]
fn u_nets_are_exact_on_every_mesh() {
    for mesh in ["sp=2", "sp=3", "sp=4", "dp=2,sp=2", "sp=2,tp=2", "fsdp=2,sp=2", "dp=2", "tp=2"] {
        exact(UNET, mesh, "");
    }
}

/// Convolutions in mixed precision compute in the narrow type, as matmuls do, and so do the sums that gradients are.
#[test]
fn convolutions_in_mixed_precision_are_narrow() {
    for model in [RESNET, UNET] {
        let session = session(model, "dp=2", "f32", "precision = \"bf16\"\n");
        let built = session.build().unwrap_or_else(|error| panic!("{model}: {error}"));
        for graph in built.stages.iter().flat_map(|stage| &stage.classes).map(|class| &class.graph) {
            let convolutions =
                graph.nodes.iter().filter(|node| node.op.short_name() == "convolution").collect::<Vec<_>>();
            assert!(convolutions.len() > 6, "{model}");
            for node in convolutions {
                let types = node.operands.iter().chain(&node.results).map(|&value| graph.ty(value).dtype);
                assert!(types.clone().all(|dtype| dtype == DType::BF16), "{model}: {:?}", node.path);
            }
        }
        let report = session.verify(4, &session.step_runner(), &Unwatched).unwrap().report;
        assert!(report.ok, "{model}: {:?}", report.worst());
    }
}

#[test]
fn encoder_and_decoder_are_exact_on_every_mesh() {
    for mesh in ["dp=2", "fsdp=3", "tp=2", "sp=2", "dp=2,tp=2", "fsdp=2,tp=2", "sp=2,tp=2"] {
        exact(T5, mesh, "");
    }
    exact(T5, "tp=2", "[plan]\nsequence_parallel = true\nvocab_parallel = true");
}

/// Stages of the decoder read what the last stage of the encoder sends.
#[test]
fn attention_crosses_stages() {
    exact(T5, "pp=2", "");
    exact(&T5.replace("layers = 1", "layers = 2"), "pp=4", "microbatches = 2");
    exact(T5, "pp=2,tp=2", "microbatches = 2");
    exact(RESNET, "pp=2", "");
}

/// With even shards, a window of three sees one row beyond the shard on each side, and one on one side if windows are two
/// apart. Forward: two rows of the image and of the first block's middle, one of the second block's. Backward: rows of the
/// gradients of both middle convolutions; the gradients of kernels read the rows that the forward pass received.
#[test]
fn halos_are_the_rows_that_windows_see() {
    const ROWS: usize = 4;
    const IMAGE: usize = 16;
    for ranks in [2, 4] {
        let session = session(&RESNET.replace("image = 8", "image = 16"), &format!("sp={ranks}"), "f32", "");
        let built = session.build().unwrap_or_else(|error| panic!("{error}"));
        let set = session.lower(&built).unwrap_or_else(|error| panic!("{error}"));
        // Rank 1 has neighbours on both sides.
        let counts = counts(&set, 1);
        let row = |features: usize, width: usize| ROWS * width * features * 4;
        let (dim, wide) = (4, 8);
        let forward = counts.forward.of(CollectiveKind::CollectivePermute);
        let bytes = 2 * row(3, IMAGE) + 2 * row(dim, IMAGE) + row(2 * dim, IMAGE);
        assert_eq!((forward.logical, forward.bytes), (5, bytes), "sp={ranks}: {:?}", seen(&counts.forward));
        let backward = counts.backward.of(CollectiveKind::CollectivePermute);
        let bytes = 2 * row(wide, IMAGE) + row(2 * wide, IMAGE / 2);
        assert_eq!(
            (backward.logical, backward.bytes),
            (3, bytes),
            "sp={ranks}: {:?}",
            seen(&counts.backward)
        );
        for phase in [&counts.forward, &counts.backward] {
            assert!(
                seen(phase).iter().all(|(kind, ..)| ["collective_permute", "all_reduce"].contains(kind)),
                "{:?}",
                seen(phase)
            );
        }
    }
}

/// On the CPU device convolutions and pools are kernels, and halos move between threads.
#[test]
fn the_cpu_computes_what_one_device_does() {
    for (model, mesh) in
        [(RESNET, "sp=3"), (POOLED, "sp=2"), (UNET, "dp=2,sp=2"), (VIT, "sp=2,tp=2"), (T5, "pp=2,tp=2")]
    {
        let session = session(model, mesh, "f32", "");
        let verified = session.verify(6, &session.step_runner(), &Unwatched);
        let report = verified.unwrap_or_else(|error| panic!("{model} {mesh}: {error}")).report;
        assert!(report.ok, "{model} {mesh}: {:?}", report.worst());
    }
}

/// Parameters in billions, as published: Alpa's Wide-ResNets, ViT, T5.
#[test]
fn models_by_name_have_the_published_sizes() {
    for (name, billions, allowed) in [
        ("wide-resnet-250m", 0.25, 0.02),
        ("wide-resnet-2b", 2.0, 0.02),
        ("wide-resnet-6.8b", 6.8, 0.02),
        ("wide-resnet-13b", 13.0, 0.03),
        ("vit-b-16", 0.0866, 0.01),
        ("vit-h-14", 0.632, 0.01),
        ("t5-base", 0.223, 0.01),
        ("t5-11b", 11.3, 0.01),
    ] {
        let config = Config::load(name, &["train.batch=1".to_string()])
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let model =
            config.model.build(1, DType::BF16, true).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = model.parameter_count() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < allowed, "{name}: {found} billion");
    }
}

/// Convolutions count as matmuls do: ResNet-50 takes 4.09e9 multiplications and additions an image (torchvision, its table
/// of weights), each two operations, and three times as many with the backward pass. A transposed convolution makes one
/// product of an input and the kernel for each output, not one for each element of the gaps between inputs.
#[test]
fn model_flops_count_convolutions() {
    let flops = |model: &str| {
        let session = session(model, "dp=1", "f32", "");
        let figures = session.figures(&session.price().unwrap()).unwrap();
        figures.flops_per_s * figures.step_s
    };
    let resnet = "kind = \"wide-resnet\"\nblocks = [3, 4, 6, 3]\ndim = 64\nwidth = 1\nimage = 224\nstem = 7\nclasses = 1000\n";
    let published = 4.0 * 3.0 * 2.0 * 4.089e9;
    assert!((flops(resnet) / published - 1.0).abs() < 1e-3, "{} and {published}", flops(resnet));
    // Of the U-Net: pixels x window x features before and behind, level by level down and up, and the head.
    let down = 64 * 9 * (3 * 4 + 4 * 4) + 16 * 9 * (4 * 8 + 8 * 8) + 4 * 9 * (8 * 16 + 16 * 16);
    let transposed = 16 * (16 * 8) + 64 * (8 * 4);
    let up = 16 * 9 * (16 * 8 + 8 * 8) + 64 * 9 * (8 * 4 + 4 * 4) + 64 * (4 * 3);
    let expected = 4.0 * 3.0 * 2.0 * f64::from(down + transposed + up);
    assert!((flops(UNET) / expected - 1.0).abs() < 1e-9, "{} and {expected}", flops(UNET));
}
