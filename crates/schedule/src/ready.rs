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
    let has_stream = model != "mlp" && CONVOLUTIONS.iter().all(|(name, _)| *name != model);
    let sequence = options.sequence_parallel && has_stream;
    let origin = format!("{}{model}", DEFAULTS[0]);
    let mut lines = Lines { modules: Modules::of(graph), origin, sequence, plan: Plan::default() };
    if mesh.axis_of(AxisRole::Model).is_some() {
        if model == "mlp" {
            lines.shard_pairs();
        } else if let Some((_, [wide, narrow])) = CONVOLUTIONS.iter().find(|(name, _)| *name == model) {
            lines.add(&format!("layers.*.{wide}"), Style::new(Kind::Colwise));
            lines.add(&format!("layers.*.{narrow}"), Style::new(Kind::Rowwise));
        } else {
            lines.shard_layers();
            lines.shard_ends(options.vocab_parallel);
        }
    }
    if mesh.axis_of(AxisRole::Experts).is_some() {
        lines.shard_experts(graph);
    }
    if mesh.axis_of(AxisRole::Parameters).is_some() {
        lines.add("**", Style::new(Kind::Fsdp));
    }
    if mesh.axis_of(AxisRole::Data).is_some() && options.zero > 0 {
        lines.add("**", Style::new(if options.zero == 1 { Kind::Zero1 } else { Kind::Zero2 }));
    }
    Ok(lines.plan)
}

/// The lines of a built-in plan for the modules that a graph has.
struct Lines<'a> {
    modules: Modules<'a>,
    /// The source of every line.
    origin: String,
    /// Whether the residual stream is sharded along the sequence.
    sequence: bool,
    plan: Plan,
}

impl Lines<'_> {
    /// Adds a line, if the graph has modules or parameters for it.
    fn add(&mut self, pattern: &str, style: Style) {
        if !self.modules.matching(pattern).is_empty() || !self.modules.parameters_named(pattern).is_empty() {
            self.plan.push(pattern, style, &self.origin);
        }
    }

    /// The style of layers that read the residual stream.
    fn column(&self) -> Style {
        let style = Style::new(Kind::Colwise);
        if self.sequence { style.input(Layout::Replicate) } else { style }
    }

    /// The style of layers that add to the residual stream.
    fn row(&self) -> Style {
        self.stream(Style::new(Kind::Rowwise))
    }

    /// A style whose output is the residual stream.
    fn stream(&self, style: Style) -> Style {
        if self.sequence { style.output(Layout::Shard(1)) } else { style }
    }

    /// Layers come in pairs: the first is column-parallel, the second row-parallel. A single
    /// last layer stays replicated.
    fn shard_pairs(&mut self) {
        let has = |i: &usize| !self.modules.matching(format!("layers.{i}").as_str()).is_empty();
        let count = (0..).take_while(has).count();
        for pair in 0..count / 2 {
            self.add(&format!("layers.{}", 2 * pair), self.column());
            self.add(&format!("layers.{}", 2 * pair + 1), self.row());
        }
        if count % 2 == 1 {
            self.add(&format!("layers.{}", count - 1), Style::new(Kind::Replicate));
        }
    }

    /// The projections of attention and feed-forward networks.
    fn shard_layers(&mut self) {
        // The layer of DeepSeek's second prediction is a layer like the others.
        for layer in ["layers.*", "next.layer"] {
            for name in ["q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj"] {
                self.add(&format!("{layer}.attn.{name}"), self.column());
            }
            self.add(&format!("{layer}.attn.o_proj"), self.row());
            // The memory of cross attention is read whole, however the stream of the decoder is sharded.
            for name in ["q_proj", "k_proj", "v_proj"] {
                self.add(&format!("{layer}.cross.{name}"), self.column());
            }
            self.add(&format!("{layer}.cross.o_proj"), self.row());
            for block in ["mlp", "moe.shared"] {
                for name in ["gate_proj", "up_proj"] {
                    self.add(&format!("{layer}.{block}.{name}"), self.column());
                }
                self.add(&format!("{layer}.{block}.down_proj"), self.row());
            }
            for name in ["gate_proj", "up_proj"] {
                self.add(&format!("{layer}.moe.experts.{name}"), Style::new(Kind::Shard(1)));
            }
            self.add(&format!("{layer}.moe.experts.down_proj"), Style::new(Kind::Shard(2)));
        }
    }

    /// Embeddings, the head, and the norms of the residual stream.
    fn shard_ends(&mut self, vocab_parallel: bool) {
        if vocab_parallel {
            self.add("embed_tokens", self.stream(Style::new(Kind::Rowwise)));
            self.add("lm_head", self.column());
        } else {
            self.add("embed_tokens", self.stream(Style::new(Kind::Replicate)));
            self.add("lm_head", Style::new(Kind::Replicate));
        }
        for name in ["embed_positions", "embed_types"] {
            self.add(name, self.stream(Style::new(Kind::Replicate)));
        }
        if self.sequence {
            for name in [
                "embed_norm",
                "layers.*.attn_norm",
                "layers.*.cross_norm",
                "layers.*.mlp_norm",
                "norm",
                "lm_norm",
                "encoder_norm",
            ] {
                self.add(name, Style::new(Kind::Sequence));
            }
        }
    }

    /// Experts by number; those that drop no token are one op.
    fn shard_experts(&mut self, graph: &Graph) {
        for layer in ["layers.*", "next.layer"] {
            let experts = Style::new(Kind::Shard(0)).over(AxisRole::Experts.axis());
            self.add(&format!("{layer}.moe.experts"), experts);
            let pattern = format!("{layer}.moe");
            let named = self.modules.matching(pattern.as_str());
            if named.iter().any(|module| has_grouped(graph, module)) {
                self.add(&pattern, Style::new(Kind::Dispatch));
            }
        }
    }
}
