//! Each axis of a mesh and each line of a plan changes the step, or is an error, or says that it should change nothing.

use partita_base::{DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_nn::{ExpertsConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig, Optimizer, StepOptions};
use partita_schedule::verify::Interpreter;
use partita_schedule::{
    BuildContext, BuildOptions, BuildRequest, Plan, check_effects, choose_attention, primitive_names,
};

const MODELS: [&str; 3] = ["mlp", "gpt", "llama"];

fn model(name: &str) -> ModelConfig {
    let (vocab, dim, layers, heads, sequence, dropout) = (10, 8, 2, 2, 4, 0.0);
    let gpt = GptConfig { vocab, dim, layers, heads, sequence, dropout, ..GptConfig::default() };
    match name {
        "mlp" => ModelConfig::Mlp(MlpConfig::default()),
        "gpt" => ModelConfig::Gpt(gpt),
        "moe" => {
            let experts = ExpertsConfig { capacity: None, ..ExpertsConfig::default() };
            ModelConfig::Gpt(GptConfig { experts: Some(experts), ..gpt })
        }
        _ => ModelConfig::Llama(LlamaConfig {
            vocab,
            dim,
            layers,
            heads,
            sequence,
            dropout,
            ..LlamaConfig::default()
        }),
    }
}

/// Builds the step of a model under lines of a plan and checks it.
fn checked(name: &str, mesh: &str, lines: &str, optimizer: &str) -> Result<()> {
    let model = model(name).build(4, DType::F32, true)?;
    let (mesh, plan) = (Mesh::parse(mesh, None)?, Plan::from_toml(&format!("[plan]\n{lines}\n"), "plan")?);
    let plan = choose_attention(&plan, &model.forward, &mesh, &Cluster::default())?;
    let optimizer = Optimizer::from_name(optimizer).expect("bundled");
    let options = BuildOptions { microbatches: 2, ..BuildOptions::new(StepOptions::new(optimizer)) };
    let context = BuildContext { registry: &Registry::default(), runner: &Interpreter };
    check_effects(&BuildRequest::new(&model, &plan, &mesh, &options, context).build()?)
}

/// What a row says of its lines.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Is {
    /// They have an effect.
    Used,
    /// They have none by what they say, for this reason.
    Meant(&'static str),
    /// They are an error with this code.
    Refused(&'static str),
}
use Is::{Meant, Refused, Used};

const ONE_RANK: Is = Meant("an axis of one rank divides nothing, so that a plan fits smaller meshes");
const REPEATS: Is = Meant("it says that the work is repeated");
const PATTERNS: Is = Meant("it changes what patterns of other lines see");
const TAG: Is = Meant("programs that read the plan find it");
const SLAPO: Is = Meant("programs of Slapo call it");
const ONE_STAGE: Is = Meant("`pp=1` is one stage, so that a plan fits meshes without a pipeline");
const E229: Is = Refused("E229");

/// Lines of a style or primitive: its name, the mesh, the lines, the optimizer, and what is said of them on each of [`MODELS`].
/// `LAYER` is a linear layer of each model, `BLOCK` the repeated module around it.
type Row = (&'static str, &'static str, &'static str, &'static str, [Is; 3]);

const ROWS: &[Row] = &[
    ("colwise", "tp=2", "'LAYER' = 'colwise'", "adamw", [Used; 3]),
    ("colwise", "tp=2", "'LAYER' = 'colwise'\n'LAYER*' = 'rowwise'", "adamw", [E229; 3]),
    ("colwise", "dp=2,tp=1", "'LAYER' = 'colwise'", "adamw", [ONE_RANK; 3]),
    ("rowwise", "tp=2", "'LAYER' = 'rowwise'", "adamw", [Used; 3]),
    ("rowwise", "tp=2", "'LAYER' = 'rowwise'\n'LAYER*' = 'colwise'", "adamw", [E229; 3]),
    ("sequence", "tp=2", "'NORM' = 'sequence'", "adamw", [Refused("E224"), Used, Used]),
    (
        "sequence",
        "tp=2",
        "'NORM' = 'sequence'\n'NORM*' = 'replicate'\n'LAYER' = 'colwise'",
        "adamw",
        [E229; 3],
    ),
    ("replicate", "tp=2", "'LAYER' = 'replicate'", "adamw", [Refused("E009"); 3]),
    ("replicate", "tp=2", "'LAYER' = 'replicate(axis=tp)'", "adamw", [Refused("E009"); 3]),
    ("replicate", "tp=2", "'**' = 'replicate(axis=tp)'", "adamw", [REPEATS; 3]),
    // A line that another one overrides whole, whose axis nothing has.
    ("rowwise", "tp=2", "'LAYER' = ['rowwise(axis=zz)', 'colwise']", "adamw", [E229; 3]),
    ("rowwise", "tp=2", "'LAYER' = 'rowwise(axis=zz)'", "adamw", [Refused("E223"); 3]),
    // What another line says already.
    ("rowwise", "tp=2", "'LAYER' = ['rowwise', 'rowwise']", "adamw", [E229; 3]),
    ("zero1", "dp=2", "'**' = 'zero1'\n'BLOCK' = 'zero1'", "adamw", [E229; 3]),
    ("zero1", "dp=2", "'BLOCK' = 'zero1'\n'**' = 'zero1'", "adamw", [E229; 3]),
    ("fsdp", "fsdp=2", "'**' = ['fsdp', 'offload(optimizer)']\n'BLOCK' = 'fsdp'", "adamw", [E229; 3]),
    ("offload", "dp=2", "'**' = ['offload(optimizer, ahead=2)', 'offload(optimizer)']", "adamw", [Used; 3]),
    ("offload", "dp=2", "'**' = ['offload(optimizer)', 'offload(optimizer)']", "adamw", [E229; 3]),
    ("shard", "tp=2", "'LAYER' = 'shard(0)'", "adamw", [Used; 3]),
    ("shard", "tp=2", "'LAYER' = 'shard(0)'\n'LAYER*' = 'rowwise'", "adamw", [E229; 3]),
    ("shard", "tp=2", "'LAYER' = 'shard(weight, 0)'", "adamw", [Used; 3]),
    ("shard", "tp=2", "'LAYER' = ['shard(weight, 0)', 'shard(weight, 0)']", "adamw", [Refused("E231"); 3]),
    ("prepare", "tp=2", "'LAYER' = 'prepare(input=shard(-1))'", "adamw", [Used; 3]),
    (
        "prepare",
        "tp=2",
        "'LAYER' = 'prepare(input=shard(-1))'\n'LAYER*' = 'prepare(input=replicate)'",
        "adamw",
        [E229; 3],
    ),
    ("fsdp", "fsdp=2", "'**' = 'fsdp'", "adamw", [Used; 3]),
    ("fsdp", "fsdp=2", "'LAYER.weight' = ['shard(0, axis=fsdp)', 'fsdp']", "adamw", [E229; 3]),
    ("fsdp", "fsdp=1,dp=2", "'**' = 'fsdp'", "adamw", [ONE_RANK; 3]),
    ("zero1", "dp=2", "'**' = 'zero1'", "adamw", [Used; 3]),
    ("zero1", "dp=2", "'**' = 'zero1'", "sgd", [E229; 3]),
    ("zero2", "dp=2", "'**' = 'zero2'", "sgd", [Used; 3]),
    ("zero2", "dp=2", "'LAYER.weight' = ['shard(0, axis=dp)', 'zero2']", "adamw", [E229; 3]),
    ("ulysses", "cp=2", "'**' = 'ulysses'", "adamw", [Refused("E235"), Used, Used]),
    ("ulysses", "cp=2", "'NORM' = 'ulysses'", "adamw", [Refused("E235"); 3]),
    (
        "ulysses",
        "tp=2",
        "'layers.*.attn.*_proj' = 'colwise'\n'layers.*.attn.o_proj' = 'rowwise'\n'**' = 'ulysses(axis=tp)'",
        "adamw",
        [Refused("E221"), E229, E229],
    ),
    ("ring", "cp=2", "'**' = 'ring'", "adamw", [Refused("E235"), Used, Used]),
    ("ring", "cp=2", "'NORM' = 'ring'", "adamw", [Refused("E235"); 3]),
    ("attention_auto", "cp=2", "'**' = 'attention_auto'", "adamw", [Refused("E235"), Used, Used]),
    ("attention_auto", "cp=2", "'NORM' = 'attention_auto'", "adamw", [Refused("E235"); 3]),
    ("dispatch", "dp=2", "'**' = 'dispatch'", "adamw", [Refused("E235"); 3]),
    ("sync", "tp=2", "'LAYER' = ['shard(weight, 1)', 'sync(fwd_post, all_reduce)']", "adamw", [Used; 3]),
    ("sync", "tp=2", "'LAYER' = 'sync(fwd_post, all_reduce)'", "adamw", [Refused("E233"); 3]),
    // The input of the first layer of `mlp` needs no gradient.
    (
        "sync",
        "tp=2",
        "'LAYER' = ['shard(weight, 0)', 'sync(bwd_post, all_reduce)']",
        "adamw",
        [SLAPO, Used, Used],
    ),
    ("checkpoint", "dp=2", "'BLOCK' = 'checkpoint'", "adamw", [E229, Used, Used]),
    ("checkpoint", "dp=2", "'LAYER' = 'checkpoint'", "adamw", [E229; 3]),
    ("decompose", "dp=2", "'NORM' = 'decompose'", "adamw", [PATTERNS, Used, Used]),
    ("decompose", "dp=2", "'NORM' = ['decompose', 'decompose']", "adamw", [Refused("E255"); 3]),
    ("trace", "dp=2", "'**' = 'trace(flatten=true)'", "adamw", [PATTERNS; 3]),
    ("fuse", "dp=2", "'**' = ['decompose', 'fuse(\"x + y\", name=mine.sum)']", "adamw", [Used; 3]),
    ("fuse", "dp=2", "'**' = 'fuse(\"erf(x)\", name=mine.erf)'", "adamw", [Refused("E242"); 3]),
    ("precision", "dp=2", "'LAYER' = 'precision(bf16)'", "adamw", [Used; 3]),
    ("precision", "dp=2", "'LAYER' = 'precision(f32)'", "adamw", [E229; 3]),
    ("precision", "dp=2", "'LAYER' = ['precision(bf16)', 'precision(f16)']", "adamw", [E229; 3]),
    ("pipeline_split", "pp=2", "'BLOCK' = 'pipeline_split'", "adamw", [Used; 3]),
    ("pipeline_split", "dp=2", "'BLOCK' = 'pipeline_split'", "adamw", [E229; 3]),
    ("pipeline_split", "dp=2,pp=1", "'BLOCK' = 'pipeline_split'", "adamw", [ONE_STAGE; 3]),
    ("layers", "pp=2", "'' = 'layers(2)'", "adamw", [Used; 3]),
    ("layers", "dp=2", "'' = 'layers(2)'", "adamw", [E229; 3]),
    ("annotate", "dp=2", "'LAYER' = 'annotate(weight, tag, 1)'", "adamw", [TAG; 3]),
    ("offload", "dp=2", "'**' = 'offload(optimizer)'", "adamw", [Used; 3]),
    ("offload", "dp=2", "'**' = 'offload(optimizer)'", "sgd", [E229; 3]),
    ("offload", "dp=2", "'BLOCK' = 'offload(activations)'", "adamw", [E229, Used, Used]),
    ("fork_rng", "dp=2", "'LAYER' = 'fork_rng'", "adamw", [SLAPO; 3]),
    ("replace", "dp=2", "'NORM' = 'replace(LIKE, epsilon=EPSILON)'", "adamw", [Refused("E244"), E229, E229]),
    (
        "replace_all",
        "dp=2",
        "'' = 'replace_all(KIND, LIKE, epsilon=EPSILON)'",
        "adamw",
        [Refused("E244"), E229, E229],
    ),
];

/// The words of a row for a model.
fn filled(name: &str, text: &str) -> String {
    let [layer, block, norm, like, kind] = match name {
        "mlp" => ["layers.0", "layers.0", "layers.1", "mine.none", "Linear"],
        "gpt" => ["layers.0.mlp.up_proj", "layers.0", "layers.0.mlp_norm", "partita.layer_norm", "LayerNorm"],
        _ => ["layers.0.mlp.up_proj", "layers.0", "layers.0.mlp_norm", "partita.rms_norm", "RMSNorm"],
    };
    let words = [
        ("LAYER", layer),
        ("BLOCK", block),
        ("NORM", norm),
        ("LIKE", like),
        ("KIND", kind),
        ("EPSILON", "0.00001"),
    ];
    words.iter().fold(text.to_string(), |text, (word, by)| text.replace(word, by))
}

#[test]
fn each_style_and_primitive_changes_the_step_or_is_an_error() {
    let mut wrong = Vec::new();
    for (what, mesh, lines, optimizer, expected) in ROWS {
        for (name, expected) in MODELS.iter().zip(expected) {
            let lines = filled(name, lines);
            let found = checked(name, mesh, &lines, optimizer);
            let code = found.as_ref().err().map(|error| error.code);
            let wanted = match expected {
                Used | Meant(_) => None,
                Refused(code) => Some(*code),
            };
            if code != wanted {
                wrong.push(format!("{what} of {name} on {mesh}: {lines}\n{expected:?}, but {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_table_has_each_style_and_primitive_with_and_without_an_effect() {
    let styles = [
        "colwise",
        "rowwise",
        "sequence",
        "replicate",
        "prepare",
        "fsdp",
        "zero1",
        "zero2",
        "ulysses",
        "ring",
        "attention_auto",
        "dispatch",
    ];
    for name in styles.into_iter().chain(primitive_names()) {
        let rows: Vec<Is> = ROWS.iter().filter(|row| row.0 == name).flat_map(|row| row.4).collect();
        let acts = rows.iter().any(|is| matches!(is, Used | Meant(_)));
        let is_refused = rows.iter().any(|is| matches!(is, Refused(_) | Meant(_)));
        // Replacements and experts are tested where there is something to replace, and where there are experts.
        let is_elsewhere = ["replace", "replace_all", "dispatch"].contains(&name);
        assert!((acts || is_elsewhere) && is_refused, "{name}: {rows:?}");
    }
    checked(
        "moe",
        "ep=2",
        "'layers.*.moe.experts' = 'shard(0, axis=ep)'\n'layers.*.moe' = 'dispatch'",
        "adamw",
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

fn refused(name: &str, mesh: &str, lines: &str) -> Box<Diagnostic> {
    checked(name, mesh, lines, "adamw").err().unwrap_or_else(|| panic!("{name} on {mesh}: accepted"))
}

/// An axis that nothing uses, with or without a built-in meaning.
#[test]
fn an_axis_that_nothing_uses_is_refused() {
    for (name, axis) in
        [("mlp", "tp"), ("gpt", "tp"), ("llama", "tp"), ("mlp", "sp"), ("mlp", "cp"), ("gpt", "zz")]
    {
        for mesh in [format!("{axis}=2"), format!("dp=2,{axis}=2")] {
            let error = refused(name, &mesh, "");
            assert_eq!(error.code, "E009", "{error}");
            assert_eq!(error.message, format!("nothing uses the axis `{axis}` of the mesh"));
            let text = error.to_string();
            assert!(text.contains(&format!("replicate(axis={axis})")), "{text}");
            let purpose = format!("'**' = 'replicate(axis={axis})'");
            checked(name, &mesh, &purpose, "adamw").unwrap_or_else(|error| panic!("{error}"));
        }
    }
    for (name, mesh) in [("gpt", "sp=2"), ("gpt", "cp=2"), ("gpt", "ep=2"), ("mlp", "dp=2"), ("mlp", "tp=1")]
    {
        checked(name, mesh, "", "adamw").unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(refused("gpt", "dpp=2", "").help.is_some_and(|help| help.contains("`dp`")));
}

/// A line that changes nothing is named with its origin and the reason.
#[test]
fn a_line_that_changes_nothing_is_named_with_the_reason() {
    let error = refused("gpt", "tp=2", "'lm_head' = 'colwise'\n'lm_*' = 'rowwise'");
    assert_eq!((error.code, error.at.as_deref()), ("E229", Some("\"lm_head\" = \"colwise\" (plan:2)")));
    assert!(error.found.as_deref().is_some_and(|found| found.contains("overrides")), "{error}");
    let error = checked("gpt", "dp=2", "'**' = 'zero1'", "sgd").unwrap_err();
    assert_eq!(error.found.as_deref(), Some("the optimizer has no states"));
    let error = refused("gpt", "dp=2", "'layers.0' = 'pipeline_split'");
    assert!(error.help.as_deref().is_some_and(|help| help.contains("pp=1")), "{error}");
}
