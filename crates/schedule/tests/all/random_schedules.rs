//! Random schedules of random models on random meshes: an accepted schedule gives the loss,
//! outputs, gradients and new state of one device, and a rejected call changes nothing.
//!
//! `cargo test -p partita-schedule --test random_schedules -- --ignored` searches longer; `CASES`
//! and `SEED` say how.

use crate::common::{build_as, unchecked};
use partita_base::{DType, Result};
use partita_ir::composites::GELU as GELU_TEMPLATE;
use partita_ir::custom::CustomOp;
use partita_ir::{Attribute, GraphBuilder, Registry, ValueId, evaluate, text};
use partita_mesh::Mesh;
use partita_nn::{
    Activation, Context, Dropout, Embedding, GELU, LayerNorm, Linear, Mlp, Model, MultiheadAttention,
    Optimizer, RMSNorm, StepOptions, losses,
};
use partita_schedule::feed::random_feed;
use partita_schedule::tensors::inputs_of;
use partita_schedule::verify::{Interpreter, StepRunner};
use partita_schedule::{
    Argument, BuildContext, BuildOptions, BuildRequest, Entry, Plan, Primitive, Schedule, StepKind, Style,
    SyncMode, SyncOp,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Features of the residual stream, of two heads.
const DIM: usize = 4;

const MESHES: [&str; 9] =
    ["tp=1", "tp=2", "tp=3", "tp=4", "dp=2", "dp=2,tp=2", "fsdp=2,tp=2", "fsdp=3", "sp=2,tp=2"];

#[derive(Clone, Debug)]
enum Layer {
    Linear {
        bias: bool,
    },
    Norm {
        root_mean_square: bool,
    },
    Activation(usize),
    Gelu,
    Dropout,
    /// The input and a layer applied to it.
    Residual {
        bias: bool,
    },
    Mlp {
        bias: bool,
    },
    Attention {
        fused: bool,
        causal: bool,
        shared: bool,
    },
}

#[derive(Clone, Debug)]
struct Recipe {
    layers: Vec<Layer>,
    /// Ids through a table and back through the same table to classes; else real numbers.
    tokens: bool,
    batch: usize,
    mesh: usize,
    microbatches: usize,
    sequence_parallel: bool,
    /// The calls: kind, place and arguments, each taken modulo the number of choices.
    calls: Vec<[u8; 4]>,
}

fn layer() -> impl Strategy<Value = Layer> {
    prop_oneof![
        any::<bool>().prop_map(|bias| Layer::Linear { bias }),
        any::<bool>().prop_map(|root_mean_square| Layer::Norm { root_mean_square }),
        (0..Activation::ALL.len()).prop_map(Layer::Activation),
        Just(Layer::Gelu),
        Just(Layer::Dropout),
        any::<bool>().prop_map(|bias| Layer::Residual { bias }),
        any::<bool>().prop_map(|bias| Layer::Mlp { bias }),
        any::<[bool; 3]>().prop_map(|[fused, causal, shared]| Layer::Attention { fused, causal, shared }),
    ]
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let what = (prop::collection::vec(layer(), 1..5), any::<bool>(), 2..4usize, 0..MESHES.len());
    let how = (1..3usize, prop::bool::weighted(0.2), prop::collection::vec(any::<[u8; 4]>(), 1..14));
    (what, how).prop_map(|((layers, tokens, batch, mesh), (microbatches, sequence_parallel, calls))| Recipe {
        layers,
        tokens,
        batch,
        mesh,
        microbatches,
        sequence_parallel,
        calls,
    })
}

impl Layer {
    fn call(&self, cx: &mut Context, name: &str, x: ValueId) -> Result<ValueId> {
        match self {
            Layer::Linear { bias } => cx.call(name, &Linear::new(DIM, DIM).bias(*bias), x),
            Layer::Norm { root_mean_square: true } => cx.call(name, &RMSNorm::new(DIM), x),
            Layer::Norm { root_mean_square: false } => cx.call(name, &LayerNorm::new(DIM), x),
            Layer::Activation(which) => cx.call(name, &Activation::ALL[*which], x),
            Layer::Gelu => cx.call(name, &GELU::default(), x),
            Layer::Dropout => cx.call(name, &Dropout { rate: 0.3 }, x),
            Layer::Residual { bias } => cx.scope(name, |cx| {
                let y = cx.call("inner", &Linear::new(DIM, DIM).bias(*bias), x)?;
                cx.builder.add(x, y)
            }),
            Layer::Mlp { bias } => cx.call(name, &Mlp { bias: *bias, ..Mlp::new(DIM, 6) }, x),
            Layer::Attention { fused, causal, shared } => {
                let kv_heads = if *shared { 1 } else { 2 };
                let attention = MultiheadAttention {
                    fused_qkv: *fused,
                    causal: *causal,
                    kv_heads,
                    ..MultiheadAttention::new(DIM, 2)
                };
                cx.call(name, &attention, x)
            }
        }
    }
}

impl Recipe {
    fn model(&self, training: bool) -> Result<Model> {
        let (sequence, vocab) = (3, 5);
        let mut cx = Context::new("random", DType::F64, training);
        let shape = [self.batch, sequence];
        let mut x = if self.tokens {
            let ids = cx.input("ids", DType::I64, &shape);
            cx.call("embed", &Embedding::new(vocab, DIM), ids)?
        } else {
            cx.input("inputs", DType::F64, &[self.batch, sequence, DIM])
        };
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.call(&mut cx, &format!("layers.{number}"), x)?;
        }
        let (loss, y) = if self.tokens {
            let y = cx.scope("head", |cx| {
                let table = cx.tie("weight", "embed.weight")?;
                cx.builder.linear(x, table)
            })?;
            let labels = cx.input("labels", DType::I64, &shape);
            (losses::cross_entropy(&mut cx, y, labels)?, y)
        } else {
            let y = cx.call("head", &Linear::new(DIM, 5), x)?;
            let shape = cx.shape(y);
            let targets = cx.input("targets", DType::F64, &shape);
            (losses::mse(&mut cx, y, targets)?, y)
        };
        cx.finish(vec![("loss".to_string(), loss), ("prediction".to_string(), y)])
    }

    fn mesh(&self) -> Mesh {
        Mesh::parse(MESHES[self.mesh], None).expect("a mesh")
    }

    fn schedule(&self, model: &Model) -> Result<Schedule> {
        let mut schedule = Schedule::new(model, &self.mesh())?.with_registry(registry());
        schedule.options().microbatches = self.microbatches;
        schedule.options().sequence_parallel = self.sequence_parallel;
        Ok(schedule)
    }
}

/// Composites that compute the same as layers.
fn registry() -> Registry {
    let linear = |b: &mut GraphBuilder, v: &[ValueId]| -> Result<Vec<ValueId>> {
        let y = b.linear(v[0], v[1])?;
        let shape = b.shape(y);
        let bias = b.broadcast_trailing(v[2], &shape)?;
        Ok(vec![b.add(y, bias)?])
    };
    let mut registry = Registry::default();
    for op in [
        CustomOp::new("mine.linear", &["x", "weight", "bias"], linear),
        CustomOp::new("mine.product", &["x", "weight"], |b, v| Ok(vec![b.linear(v[0], v[1])?])),
        CustomOp::new("mine.sum", &["x", "y"], |b, v| Ok(vec![b.add(v[0], v[1])?])),
        CustomOp::new("mine.gelu", &["x"], |b, v| {
            Ok(vec![b.composite(&GELU_TEMPLATE, &[("tanh", Attribute::Bool(false))], &[v[0]])?])
        }),
    ] {
        registry.add_custom(op).expect("a name of its own");
    }
    registry
}

const PATTERNS: [&str; 8] = [
    "gelu(x)",
    "x + y",
    "gelu(x + bias)",
    "linear(x, weight)",
    "h = x + y; gelu(h)",
    "layer_norm(x, weight, bias)",
    "tanh(x)",
    "linear(x, weight) + bias",
];

const STYLES: [&str; 22] = [
    "colwise",
    "rowwise",
    "sequence",
    "replicate",
    "shard(0)",
    "fsdp",
    "zero1",
    "zero2",
    "colwise(output=replicate)",
    "rowwise(output=shard(1))",
    "rowwise(input=shard(-1))",
    "fsdp(axis=tp)",
    "zero2(axis=tp)",
    "zero1(axis=dp)",
    "ColwiseParallel(input_layouts=Shard(0))",
    "ColwiseParallel(input_layouts=Shard(1), use_local_output=False)",
    "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))",
    "SequenceParallel(sequence_dim=0)",
    "PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))",
    "PrepareModuleInput(input_layouts=(None, Shard(0)), desired_input_layouts=(Shard(-1), Replicate()))",
    "PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Shard(1))",
    "prepare(input=shard(1), output=replicate)",
];

fn pick<'a, T: ?Sized>(from: &[&'a T], by: u8) -> &'a T {
    from[by as usize % from.len()]
}

/// The modules and the primitive of a call; `None` undoes the last line.
fn decode(sch: &Schedule, model: &Model, [kind, place, a, b]: [u8; 4]) -> Option<(String, Primitive)> {
    let kind = kind % 24;
    let mut places: Vec<String> = sch.named_modules().into_iter().map(|(path, _)| path).collect();
    places.extend(["", "layers.*", "**", "lairs.0"].map(str::to_string));
    // Half of the patterns are searched for everywhere.
    if (13..=19).contains(&kind) && b.is_multiple_of(2) {
        places = vec![String::new()];
    }
    let mut modules = places[place as usize % places.len()].clone();
    // Mostly existing axes, and a parameter of its module.
    let mesh = sch.mesh().axes.iter().map(|axis| Some(axis.name.as_str()));
    let axes: Vec<Option<&str>> = mesh.chain([None, None, None, Some("ep")]).collect();
    let axis = axes[(a / 16) as usize % axes.len()].map(str::to_string);
    let mut tensor = |by: u8| {
        let owned: Vec<(&str, &str)> = model.params.keys().filter_map(|name| name.rsplit_once('.')).collect();
        match by % 8 {
            0..=4 => {
                let (module, name) = owned[place as usize % owned.len()];
                modules = module.to_string();
                name.to_string()
            }
            other => ["input", "output", "wieght"][other as usize - 5].to_string(),
        }
    };
    let pattern = pick(&PATTERNS, a).to_string();
    let at = if b.is_multiple_of(8) { vec![(b / 8 % 2) as usize] } else { Vec::new() };
    let primitive = match kind {
        0..=4 => {
            Primitive::Shard { tensor: tensor(a), dim: [0, 1, -1, 2, 0, -2, 1, 5][b as usize % 8], axis }
        }
        5..=8 => {
            let mode = [SyncMode::FwdPost, SyncMode::FwdPre, SyncMode::BwdPost][a as usize % 3];
            let ops = ["all_reduce", "all_gather", "reduce_scatter", "scatter"];
            let arrows = ["RS->SR", "SR->RR", "RR->RS", "SR->RS", "RS->RR", "RR->SR"];
            let all: Vec<&str> = ops.iter().chain(&ops).chain(&arrows).copied().collect();
            let dims = [None, Some(1), Some(-1), Some(0), Some(7)];
            let op = SyncOp::parse(pick(&all, b), dims[(b / 16) as usize % dims.len()]).expect("an op");
            Primitive::Sync { mode, op, axis }
        }
        9..=11 => Style::parse(pick(&STYLES, a)).expect("a style").into(),
        12 => Primitive::Checkpoint { pattern: None },
        13 => Primitive::Checkpoint { pattern: Some(pattern) },
        14 => Primitive::Decompose,
        15 => Primitive::Trace { flatten: !a.is_multiple_of(4) },
        16 | 17 => {
            let name = format!("mine.fused{}", sch.plan().entries.len());
            Primitive::Fuse { pattern, name, backend: None, at }
        }
        18 => {
            let replacements = [
                ("mine.linear", None),
                ("mine.product", None),
                ("mine.gelu", Some("gelu(x)")),
                ("mine.sum", Some("x + y")),
                ("mine.product", Some("linear(x, weight)")),
                ("mine.sum", Some("tanh(x)")),
            ];
            let (with, pattern) = replacements[a as usize % replacements.len()];
            let (with, pattern) = (with.to_string(), pattern.map(str::to_string));
            // Or ops by their numbers.
            let ops = (b % 4 == 3).then(|| (place as usize % 8, place as usize % 8 + 1 + (b / 64) as usize));
            let (pattern, at) = if ops.is_some() { (None, Vec::new()) } else { (pattern, at) };
            Primitive::Replace { with, pattern, at, ops, bindings: Default::default() }
        }
        19 => {
            let epsilon = |e| [("epsilon".to_string(), Argument::Float(e))].into_iter().collect();
            let kinds = [
                ("LayerNorm", "partita.layer_norm", epsilon(1e-5)),
                ("RMSNorm", "partita.rms_norm", epsilon(f64::EPSILON)),
                ("GELU", "mine.gelu", Default::default()),
                ("Linear", "mine.linear", Default::default()),
                ("Linear", "mine.product", Default::default()),
                ("LayerNorm", "partita.layer_norm", epsilon(1e-1)),
            ];
            let (kind, with, bindings) = kinds[a as usize % kinds.len()].clone();
            Primitive::ReplaceAll { kind: kind.to_string(), with: with.to_string(), bindings }
        }
        20 => Primitive::PipelineSplit { mesh: None, ranks: Vec::new() },
        21 => Primitive::Annotate {
            tensor: tensor(a),
            key: "tag".to_string(),
            value: Argument::text("kept: \"a\\b\""),
        },
        22 => Primitive::ForkRng,
        _ => return None,
    };
    Some((modules, primitive))
}

/// Tries and acceptances, by primitive.
type Tally = BTreeMap<String, (usize, usize)>;

fn state(sch: &Schedule) -> (Plan, String) {
    (sch.plan().clone(), format!("{}{sch}{:?}", text::print(sch.graph()), sch.notes()))
}

fn check(recipe: &Recipe, tally: &RefCell<Tally>) -> std::result::Result<(), TestCaseError> {
    let fail = |what: String| TestCaseError::fail(what);
    let model = recipe.model(true).map_err(|error| fail(error.to_string()))?;
    let mut sch = recipe.schedule(&model).map_err(|error| fail(error.to_string()))?;
    let mut states = vec![state(&sch)];
    for &call in &recipe.calls {
        let Some((modules, primitive)) = decode(&sch, &model, call) else {
            let taken = sch.undo().map_err(|error| fail(format!("undo: {error}")))?;
            prop_assert_eq!(taken.is_some(), states.len() > 1);
            if taken.is_some() {
                states.pop();
            }
            prop_assert!(states.last() == Some(&state(&sch)), "undo of {taken:?} left something");
            continue;
        };
        let name = match &primitive {
            Primitive::Style(_) => "style".to_string(),
            other => other.to_call().name,
        };
        let outcome = sch.apply(&modules, primitive.clone());
        let mut tally = tally.borrow_mut();
        let (tried, accepted) = tally.entry(name).or_default();
        *tried += 1;
        match outcome {
            Ok(()) => {
                *accepted += 1;
                states.push(state(&sch));
            }
            Err(error) => {
                prop_assert!(!error.message.is_empty());
                prop_assert!(states.last() == Some(&state(&sch)), "{modules} {primitive} changed something");
            }
        }
    }
    let calls = sch.plan().to_calls();
    let report = sch.compare().map_err(|error| fail(format!("{}\n{calls}\n{error}", recipe.mesh())))?;
    prop_assert!(report.ok, "{}\n{calls}\n{:?}\n{:?}", recipe.mesh(), report.worst(), report.first_diverging);
    let built = unchecked(&mut sch, &model, &registry());
    let built = built.map_err(|error| fail(format!("{calls}\n{error}")))?;
    prop_assert_eq!(built.stages[0].partitioned.mesh.rank_count(), recipe.mesh().rank_count());
    // A microbatch may hold one sample, and predictions are concatenated from microbatches: over
    // the data axes both layouts differ from those of one batch.
    if recipe.microbatches == 1 {
        check_evaluation(recipe, &model, &sch, &calls)?;
    }

    // Without the lines that are said to change nothing, the step is the same.
    let is_kept = |entry: &&Entry| !built.idle.iter().any(|idle| idle.line == entry.describe());
    let less = Plan { entries: sch.plan().entries.iter().filter(is_kept).cloned().collect() };
    if less != *sch.plan() {
        let options = sch.options().clone();
        let same = build_as(&less, &sch, &model, &options, &registry());
        let same = same.map_err(|error| fail(format!("{calls}\n{error}")))?;
        for rank in 0..recipe.mesh().rank_count() {
            let [all, some] = [&built, &same].map(|built| text::print(&built.local(rank).expect("a rank")));
            prop_assert!(all == some, "{}\n{calls}\n{:?}", recipe.mesh(), built.idle);
        }
    }

    // Three spellings of one plan build the same.
    let spellings = [calls.clone(), sch.plan().to_toml(), sch.plan().to_dict_toml()];
    for (number, spelled) in spellings.iter().enumerate() {
        let plan = Plan::parse(spelled, "again").map_err(|error| fail(format!("{spelled}\n{error}")))?;
        prop_assert!(&plan == sch.plan(), "{spelled}");
        if number != recipe.calls.len() % spellings.len() {
            continue;
        }
        let mut again = recipe.schedule(&model).map_err(|error| fail(error.to_string()))?;
        let same = again.extend(&plan).and_then(|()| unchecked(&mut again, &model, &registry()));
        let same = same.map_err(|error| fail(format!("{spelled}\n{error}")))?;
        for rank in 0..recipe.mesh().rank_count() {
            let [mine, other] = [&built, &same].map(|built| text::print(&built.local(rank).expect("a rank")));
            prop_assert!(mine == other, "{spelled}");
        }
    }
    Ok(())
}

/// The validation loss: equal to that of the model without dropout on one device.
fn check_evaluation(
    recipe: &Recipe,
    model: &Model,
    sch: &Schedule,
    calls: &str,
) -> std::result::Result<(), TestCaseError> {
    let (registry, runner) = (registry(), Interpreter);
    let context = BuildContext { registry: &registry, runner: &runner };
    let options = BuildOptions::new(StepOptions::new(Optimizer::from_name("adamw").expect("bundled")));
    let options = BuildOptions { sequence_parallel: recipe.sequence_parallel, ..options };
    let loss = || -> Result<[f64; 2]> {
        let built = BuildRequest::new(model, sch.plan(), sch.mesh(), &options, context)
            .part(StepKind::Loss)
            .build()?;
        let plain = recipe.model(false)?;
        let mut fed = model.initial(1).unwrap();
        fed.extend(random_feed(model, 1, 0.3));
        let found = Interpreter.run(&built, &inputs_of(&built.step, &built.pieces, &fed)?)?;
        let expected = evaluate(&plain.forward, &inputs_of(&plain.forward, &[], &fed)?)?;
        Ok([&found, &expected].map(|outputs| outputs[0].to_f64()[0]))
    };
    let [found, expected] = loss().map_err(|error| TestCaseError::fail(format!("{calls}\n{error}")))?;
    prop_assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{calls}\n{found} and {expected}");
    Ok(())
}

/// Runs random recipes, the same for one seed, until `holds` fails.
fn sweep(
    cases: u32,
    seed: u8,
    holds: impl Fn(&Recipe) -> std::result::Result<(), TestCaseError>,
) -> std::result::Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let run = TestRunner::new_with_rng(config, rng).run(&recipes(), |recipe| holds(&recipe));
    run.map_err(|error| error.to_string())
}

#[test]
fn no_schedule_changes_the_numbers() {
    let tally = RefCell::new(Tally::new());
    sweep(150, 1, |recipe| check(recipe, &tally)).unwrap_or_else(|error| panic!("{error}"));
    // Enough calls are accepted to make the test meaningful, and every kind is rejected sometimes.
    let least = [
        ("annotate", 10),
        ("checkpoint", 30),
        ("decompose", 20),
        ("fork_rng", 20),
        ("fuse", 15),
        ("pipeline_split", 20),
        ("replace", 5),
        ("replace_all", 3),
        ("shard", 80),
        ("style", 30),
        ("sync", 20),
        ("trace", 20),
    ];
    let tally = tally.into_inner();
    assert_eq!(tally.len(), least.len(), "{tally:?}");
    for (primitive, least) in least {
        let (tried, accepted) = tally[primitive];
        assert!(accepted >= least && tried > accepted, "{primitive}: {accepted} of {tried}");
    }
}

#[test]
fn a_rule_that_is_broken_is_noticed() {
    let broken = |recipe: &Recipe| {
        let fail = |error: Box<partita_base::Diagnostic>| TestCaseError::fail(error.to_string());
        let model = recipe.model(true).map_err(fail)?;
        let mut sch = recipe.schedule(&model).map_err(fail)?;
        sch.options().break_rule_at = Some("layers".to_string());
        for &call in &recipe.calls {
            // Rejected calls do not matter here.
            if let Some((modules, primitive)) = decode(&sch, &model, call) {
                let _ = sch.apply(&modules, primitive);
            }
        }
        prop_assert!(sch.compare().is_ok_and(|report| report.ok));
        Ok(())
    };
    assert!(sweep(40, 1, broken).is_err());
}

#[test]
#[ignore = "a longer search: minutes"]
fn no_schedule_changes_the_numbers_at_length() {
    let number = |name: &str, or| std::env::var(name).map_or(or, |n| n.parse().expect("a number"));
    let tally = RefCell::new(Tally::new());
    let found = sweep(number("CASES", 5000), number("SEED", 2) as u8, |recipe| check(recipe, &tally));
    found.unwrap_or_else(|error| panic!("{error}"));
    println!("{:?}", tally.into_inner());
}
