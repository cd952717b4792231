//! Experts on a mesh: exact on any of them, with the all-to-alls that the layouts of tokens and experts require.

use partita::Session;
use partita::config::Config;
use partita::models::active_parameters;
use partita::predict::Blocks;
use partita::predict::fold::job;
use partita::predict::step::Software;
use partita_base::DType;
use partita_ir::AttributesExt;
use partita_program::{Action, CollectiveKind, counts};
use partita_schedule::verify::{Interpreter, Unwatched};

/// A decoder with experts, in f64.
fn session(kind: &str, mesh: &str, more: &str) -> Session {
    let text = format!(
        "[model]\nkind = \"{kind}\"\nvocab = 32\ndim = 8\nlayers = 2\nheads = 2\nsequence = 6\n{more}\n\
         [train]\ndtype = \"f64\"\nbatch = 4\n[optimizer]\nkind = \"adamw\"\n[mesh]\nshape = \"{mesh}\"\n"
    );
    let config = Config::from_table(text.parse().unwrap()).unwrap_or_else(|error| panic!("{text}{error}"));
    Session::new(config).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn exact(session: &Session) {
    let mesh = session.mesh().to_string();
    let report =
        session.verify(4, &Interpreter, &Unwatched).unwrap_or_else(|error| panic!("{mesh}: {error}")).report;
    let worst = report.worst().expect("tensors were compared");
    assert!(report.ok, "{mesh}: {worst:?}, {:?}", report.first_diverging);
    // The gradient of a key bias is zero in exact arithmetic.
    let significant = |name: &str| !name.ends_with("k_proj.bias");
    for tensor in report.tensors.iter().filter(|tensor| significant(&tensor.tensor)) {
        assert!(tensor.rel_error < 1e-9 && tensor.excused == 0, "{mesh}: {tensor:?}");
    }
}

#[test]
fn experts_with_a_capacity_are_exact_on_every_mesh() {
    let sizes = "experts = 4\nmlp_ratio = 2";
    for mesh in ["ep=2", "ep=3", "ep=4", "dp=2,ep=2", "ep=2,tp=2", "fsdp=2,ep=2", "dp=2", "tp=2"] {
        exact(&session("moe-gpt", mesh, sizes));
    }
}

#[test]
fn experts_that_drop_nothing_are_exact_on_every_mesh() {
    let sizes = "experts = 4\nkv_heads = 1\nhidden = 6";
    for mesh in ["ep=2", "ep=3", "ep=4", "dp=2,ep=2", "ep=2,tp=2", "fsdp=2,ep=2"] {
        exact(&session("mixtral", mesh, sizes));
    }
}

/// Latent attention, shared and small experts, biases that balance, a second head.
#[test]
fn deepseek_is_exact_on_every_mesh() {
    let sizes = "experts = 4\nquery_rank = 4\nlatent_rank = 3\nplain_features = 4\nrotary_features = 2\n\
                 value_features = 4\nhidden = 6\nexpert_hidden = 3";
    for mesh in ["dp=2", "ep=2", "ep=3", "ep=4", "dp=2,ep=2", "ep=2,tp=2", "fsdp=2,ep=2", "pp=2"] {
        exact(&session("deepseek", mesh, sizes));
    }
    for mesh in ["ep=2", "ep=2,tp=2"] {
        exact(&session("deepseek", mesh, &format!("{sizes}\ncapacity = 1.5")));
    }
}

#[test]
fn experts_are_exact_in_a_pipeline() {
    let sizes = "experts = 4\nmlp_ratio = 2";
    exact(&session("moe-gpt", "pp=2,ep=2", sizes));
    exact(&session("moe-gpt", "pp=2", sizes));
}

/// Tokens travel to their experts and back: two all-to-alls forward, two backward, for each layer with experts.
#[test]
fn tokens_meet_their_experts_in_two_exchanges_each_way() {
    const BATCH: usize = 4;
    const SEQUENCE: usize = 6;
    const DIM: usize = 8;
    for (mesh, shards) in [("ep=2", 2), ("ep=4", 4), ("dp=2,ep=2", 4)] {
        for (every, layers) in [(2, 1), (1, 2)] {
            let sizes = format!("experts = 4\ncapacity = 1.0\nevery = {every}\nmlp_ratio = 2");
            let session = session("moe-gpt", mesh, &sizes);
            let built = session.build().unwrap_or_else(|error| panic!("{error}"));
            let set = session.lower(&built).unwrap_or_else(|error| panic!("{error}"));
            let counts = counts(&set, 0);
            // A capacity of 1 has as many slots as there are choices, two for each token.
            let bytes = 2 * BATCH * SEQUENCE * DIM * 8 / shards;
            for phase in [&counts.forward, &counts.backward] {
                let exchanges = phase.of(CollectiveKind::AllToAll);
                assert_eq!((exchanges.logical, exchanges.bytes), (2 * layers, 2 * layers * bytes), "{mesh}");
            }
        }
    }
}

/// Parameters that a token meets, in billions, as published.
#[test]
fn a_token_meets_the_published_part_of_a_model() {
    for (name, more, billions) in
        [("mixtral-8x7b", "train.batch=1", 12.9), ("deepseek-v3", "model.next_weight=0.0", 37.0)]
    {
        let config = Config::load(name, &[more.to_string()]).unwrap();
        let found = active_parameters(config.model.as_ref()).unwrap().unwrap() / 1e9;
        assert!((found / billions - 1.0).abs() < 0.02, "{name}: {found} billion");
    }
    let dense = Config::load("gpt2-124m", &[]).unwrap();
    assert_eq!(active_parameters(dense.model.as_ref()).unwrap(), None);
}

/// Each token is multiplied with the matrices of its own experts: twice as many operations as parameters that it meets, and
/// those of attention, 4 s d for each token and layer; the embedding is a lookup. Three times that with the backward pass.
#[test]
fn a_step_multiplies_each_token_with_its_own_experts() {
    let sizes = "experts = 4\nhidden = 16\nkv_heads = 2";
    let session = session("mixtral", "dp=1", sizes);
    let cluster = partita_cost::Cluster::ready("a100-80g").unwrap();
    let forecast =
        Blocks::default().forecast(&job(&session).unwrap(), &cluster, &Software::default()).unwrap();
    let (tokens, layers, dim, sequence, vocab) = (4.0 * 6.0, 2.0, 8.0, 6.0, 32.0);
    let model = session.config().model.with_layers(2).unwrap().build(1, DType::F64, true).unwrap();
    let norms = 2.0 * layers * dim + dim;
    let experts = session.config().model.experts().unwrap();
    let met = experts.active(&model) - vocab * dim - norms;
    // Weighing the outputs of two experts is a contraction too.
    let weighed = 2.0 * 2.0 * dim * layers;
    let flops = 3.0 * tokens * (2.0 * met + 4.0 * sequence * dim * layers + weighed);
    assert!((forecast.flops / flops - 1.0).abs() < 0.02, "{} and {flops}", forecast.flops);
}

/// Parameters in billions, as published. DeepSeek's 671 are without its second head.
#[test]
fn models_by_name_have_the_published_sizes() {
    for (name, more, billions) in [
        ("gshard-moe-380m", "", 0.380),
        ("gshard-moe-1.3b", "", 1.3),
        ("gshard-moe-10b", "", 10.0),
        ("mixtral-8x7b", "", 46.7),
        ("deepseek-v3", "model.next_weight=0.0", 671.0),
    ] {
        let overrides = ["train.batch=1", more].map(str::to_string);
        let overrides: Vec<String> = overrides.into_iter().filter(|item| !item.is_empty()).collect();
        let config = Config::load(name, &overrides).unwrap_or_else(|error| panic!("{name}: {error}"));
        let model =
            config.model.build(1, DType::BF16, true).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = model.parameter_count() as f64 / 1e9;
        let allowed = if name.starts_with("gshard") { 0.05 } else { 0.002 };
        assert!((found / billions - 1.0).abs() < allowed, "{name}: {found} billion");
    }
}

/// Of experts that drop no token: tokens are gathered once and results scattered once, forward and for the gradients, and
/// the gradient gathers the tokens again; beside them travels the routing.
#[test]
fn tokens_of_experts_that_drop_nothing_travel_once_each_way() {
    const LAYERS: usize = 2;
    for (mesh, shards) in [("ep=2", 2), ("ep=4", 4)] {
        let session = session("mixtral", mesh, "experts = 4\nkv_heads = 1\nhidden = 6\nbalance = 0.0");
        let built = session.build().unwrap_or_else(|error| panic!("{error}"));
        let set = session.lower(&built).unwrap_or_else(|error| panic!("{error}"));
        let counts = counts(&set, 0);
        // Bytes of all tokens, of the weights of all choices, and of the experts of all choices.
        let (tokens, weights, own) = (4 * 6 * 8 * 8, 4 * 6 * 2 * 8, 4 * 6 * 2 * 4 * 8);
        use CollectiveKind::{AllGather, AllToAll, ReduceScatter};
        for (phase, kind, logical, bytes) in [
            (&counts.forward, AllGather, 2, tokens + weights),
            (&counts.forward, AllToAll, 1, own / shards),
            (&counts.forward, ReduceScatter, 1, tokens),
            (&counts.backward, AllGather, 3, 2 * tokens + weights),
            (&counts.backward, AllToAll, 0, 0),
            (&counts.backward, ReduceScatter, 2, tokens + weights),
        ] {
            let found = phase.of(kind);
            let expected = (LAYERS * logical, LAYERS * bytes);
            assert_eq!((found.logical, found.bytes), expected, "{mesh} {kind:?}");
        }
    }
}

/// The op that a plan makes of them computes what the CPU's kernels compute for one device.
#[test]
fn experts_that_drop_nothing_run_on_the_cpu() {
    let session = session("mixtral", "ep=2", "experts = 4\nkv_heads = 1\nhidden = 6");
    let verified =
        session.verify(4, &session.step_runner(), &Unwatched).unwrap_or_else(|error| panic!("{error}"));
    assert!(verified.report.ok, "{:?}", verified.report.worst());
}

/// The products of a layer with experts, forward and backward, are kernels that do the work of the choices alone: of each
/// matrix one product, one with it transposed and one outer product; as one op, the backward pass multiplies again.
#[test]
fn rows_meet_their_own_experts_in_the_backward_pass_too() {
    let sizes = "experts = 4\nkv_heads = 1\nhidden = 6";
    for (kind, mesh, products, expected) in [
        ("mixtral", "dp=1", 3, [3, 3, 3]),
        ("mixtral", "ep=2", 3, [6, 3, 3]),
        ("moe-gpt", "dp=2", 2, [2, 2, 2]),
        ("moe-gpt", "ep=2", 2, [4, 2, 2]),
    ] {
        let sizes = if products == 3 { sizes } else { "experts = 4\nevery = 1\ncapacity = 0.0" };
        let session = session(kind, mesh, sizes);
        let set = session.lower(&session.build().unwrap()).unwrap();
        let mut found = [0; 3];
        for instruction in &set.programs[0].instructions {
            let Action::Compute(compute) = &instruction.action else { continue };
            for node in &set.programs[0].region(compute.region).graph.nodes {
                let Some(composite) = node.op.composite() else { continue };
                match composite.definition.name.as_str() {
                    "partita.grouped_matmul" => {
                        found[usize::from(composite.attributes.flag("transposed"))] += 1;
                    }
                    "partita.grouped_outer" => found[2] += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(found, expected.map(|each| 2 * each), "{kind} {mesh}: two layers");
    }
}

#[test]
fn experts_as_one_op_that_nothing_shards_are_told() {
    let notes = |mesh: &str, more: &str| -> Vec<String> {
        let session = session("mixtral", mesh, &format!("experts = 4\nkv_heads = 1\nhidden = 6\n{more}"));
        let model = session.model().unwrap();
        let notes = session.notes(&model, &session.build_model(&model).unwrap());
        notes.into_iter().filter(|note| note.contains("dispatch")).collect()
    };
    assert!(notes("ep=2", "").is_empty() && notes("dp=2", "").is_empty());
    let told = notes("dp=2", "[plan]\n\"layers.*.moe\" = \"dispatch\"");
    assert!(told.len() == 1 && told[0].contains("and 1 more changes no exchange"), "{told:?}");
}
