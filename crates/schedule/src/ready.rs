//! Ready plans for the bundled models: the usual layout for each mesh axis name.

use crate::modules::Modules;
use crate::plan::{Entry, Plan};
use crate::structure::has_grouped;
use crate::style::{Kind, Layout, Style};
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::Graph;
use partita_mesh::{AxisRole, Mesh};

/// How the sources of lines begin that no user wrote.
const DEFAULTS: [&str; 2] = ["built-in plan ", "the axis `fsdp`"];

/// Whether a line is of a built-in plan: other lines may override all of it.
pub(crate) fn is_default(entry: &Entry) -> bool {
    DEFAULTS.iter().any(|source| entry.origin.starts_with(source))
}

/// Models with a built-in plan.
pub const READY_PLANS: [&str; 11] =
    ["mlp", "gpt", "llama", "bert", "moe-gpt", "mixtral", "deepseek", "wide-resnet", "vit", "unet", "t5"];

/// The convolution of a block whose output channels are sharded, and the one that then sums over its input channels.
const CONVOLUTIONS: [(&str, [&str; 2]); 2] =
    [("wide-resnet", ["conv2", "conv3"]), ("unet", ["conv1", "conv2"])];

/// Options of a built-in plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadyOptions {
    /// Shard the residual stream along the sequence over `tp`.
    pub sequence_parallel: bool,
    /// Shard the vocabulary of the embedding and the head over `tp`; otherwise they are replicated.
    pub vocab_parallel: bool,
    /// ZeRO stage over `dp`: 0 nothing, 1 shards optimizer states, 2 gradients too.
    pub zero: u8,
}

/// The plan for a model without a built-in one: over an axis `fsdp`, parameters are sharded as the axis promises. A program
/// that shards over axes of its own says itself what is sharded.
pub fn storage_plan(graph: &Graph, mesh: &Mesh) -> Plan {
    let mut plan = Plan::default();
    let has_axis = mesh.size_of(AxisRole::Parameters) > 1;
    if has_axis && graph.meshes.is_empty() && !graph.params().is_empty() {
        plan.push("**", Style::new(Kind::Fsdp), DEFAULTS[1]);
    }
    plan
}

/// A plan that says how layers compute, with that of [`storage_plan`] where none of its lines is about storage over the axis
/// `fsdp`.
pub fn with_storage(plan: Plan, graph: &Graph, mesh: &Mesh) -> Plan {
    let stores = |entry: &Entry| {
        entry
            .primitive
            .style()
            .is_some_and(|style| style.is_storage() && style.axis_name() == AxisRole::Parameters.axis())
    };
    match plan.entries.iter().any(stores) {
        true => plan,
        false => Plan { entries: [storage_plan(graph, mesh).entries, plan.entries].concat() },
    }
}

/// The plan for a model, one of [`READY_PLANS`], on a mesh, chosen by axis names: `tp` shards the projections of the
/// attention and the feed-forward network, and the channels of every second convolution, `ep` shards experts by number
/// (those that drop no token are one op, by the line `dispatch`), `fsdp` shards parameters.
/// `dp`, `fsdp`, `ep` and `sp` shard data, which needs no lines. Lines cover only modules that `graph`
/// has. E222 if there is no built-in plan of this name.
pub fn ready_plan(model: &str, graph: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
    if !READY_PLANS.contains(&model) {
        let mut error = Diagnostic::new("E222", format!("there is no built-in plan for `{model}`"))
            .expected(READY_PLANS.join(", "))
            .found(model);
        error.help = did_you_mean(model, READY_PLANS)
            .or(Some("write a plan: a dictionary of module patterns and styles".to_string()));
        return Err(error);
    }
    let modules = Modules::of(graph);
    let origin = format!("{}{model}", DEFAULTS[0]);
    let mut plan = Plan::default();
    let mut line = |pattern: &str, style: Style| {
        if !modules.matching(pattern).is_empty() || !modules.parameters_named(pattern).is_empty() {
            plan.push(pattern, style, &origin);
        }
    };
    let has_stream = model != "mlp" && CONVOLUTIONS.iter().all(|(name, _)| *name != model);
    let sequence = options.sequence_parallel && has_stream;
    let (column, row) = match sequence {
        true => (
            Style::new(Kind::Colwise).input(Layout::Replicate),
            Style::new(Kind::Rowwise).output(Layout::Shard(1)),
        ),
        false => (Style::new(Kind::Colwise), Style::new(Kind::Rowwise)),
    };
    if mesh.axis_of(AxisRole::Model).is_some() {
        if model == "mlp" {
            // Layers come in pairs: the first is column-parallel, the second row-parallel. A single
            // last layer stays replicated.
            let count =
                (0..).take_while(|i| !modules.matching(format!("layers.{i}").as_str()).is_empty()).count();
            for pair in 0..count / 2 {
                line(&format!("layers.{}", 2 * pair), column.clone());
                line(&format!("layers.{}", 2 * pair + 1), row.clone());
            }
            if count % 2 == 1 {
                line(&format!("layers.{}", count - 1), Style::new(Kind::Replicate));
            }
        } else if let Some((_, [wide, narrow])) = CONVOLUTIONS.iter().find(|(name, _)| *name == model) {
            line(&format!("layers.*.{wide}"), Style::new(Kind::Colwise));
            line(&format!("layers.*.{narrow}"), Style::new(Kind::Rowwise));
        } else {
            // The layer of DeepSeek's second prediction is a layer like the others.
            for layer in ["layers.*", "next.layer"] {
                for name in ["q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj"] {
                    line(&format!("{layer}.attn.{name}"), column.clone());
                }
                line(&format!("{layer}.attn.o_proj"), row.clone());
                // The memory of cross attention is read whole, however the stream of the decoder is sharded.
                for name in ["q_proj", "k_proj", "v_proj"] {
                    line(&format!("{layer}.cross.{name}"), column.clone());
                }
                line(&format!("{layer}.cross.o_proj"), row.clone());
                for block in ["mlp", "moe.shared"] {
                    for name in ["gate_proj", "up_proj"] {
                        line(&format!("{layer}.{block}.{name}"), column.clone());
                    }
                    line(&format!("{layer}.{block}.down_proj"), row.clone());
                }
                for name in ["gate_proj", "up_proj"] {
                    line(&format!("{layer}.moe.experts.{name}"), Style::new(Kind::Shard(1)));
                }
                line(&format!("{layer}.moe.experts.down_proj"), Style::new(Kind::Shard(2)));
            }
            let stream = |style: Style| if sequence { style.output(Layout::Shard(1)) } else { style };
            if options.vocab_parallel {
                line("embed_tokens", stream(Style::new(Kind::Rowwise)));
                line("lm_head", column.clone());
            } else {
                line("embed_tokens", stream(Style::new(Kind::Replicate)));
                line("lm_head", Style::new(Kind::Replicate));
            }
            for name in ["embed_positions", "embed_types"] {
                line(name, stream(Style::new(Kind::Replicate)));
            }
            if sequence {
                for name in [
                    "embed_norm",
                    "layers.*.attn_norm",
                    "layers.*.cross_norm",
                    "layers.*.mlp_norm",
                    "norm",
                    "lm_norm",
                    "encoder_norm",
                ] {
                    line(name, Style::new(Kind::Sequence));
                }
            }
        }
    }
    if mesh.axis_of(AxisRole::Experts).is_some() {
        for layer in ["layers.*", "next.layer"] {
            line(&format!("{layer}.moe.experts"), Style::new(Kind::Shard(0)).over(AxisRole::Experts.axis()));
            let pattern = format!("{layer}.moe");
            let named = modules.matching(pattern.as_str());
            if named.iter().any(|module| has_grouped(graph, module)) {
                line(&pattern, Style::new(Kind::Dispatch));
            }
        }
    }
    if mesh.axis_of(AxisRole::Parameters).is_some() {
        line("**", Style::new(Kind::Fsdp));
    }
    if mesh.axis_of(AxisRole::Data).is_some() && options.zero > 0 {
        line("**", Style::new(if options.zero == 1 { Kind::Zero1 } else { Kind::Zero2 }));
    }
    Ok(plan)
}
