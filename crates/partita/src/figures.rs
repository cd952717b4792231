//! What a step comes to, in the figures that `simulate`, `plan` and `report` print: each is computed here alone.

use crate::models::active_parameters;
use crate::price::Price;
use crate::session::{Session, has_loss};
use partita_base::{Result, format_bytes, format_count, format_flops, format_parameters, format_seconds};
use partita_cost::Fill;
use partita_ir::{Graph, Node, Op, Operation};
use partita_nn::Model;

/// The figures of a priced step.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// Parameters of the model; tied ones count once.
    pub parameters: f64,
    /// Those that a token uses, of a model with experts.
    pub active: Option<f64>,
    /// Seconds of the step.
    pub step_s: f64,
    /// Rows of the batch per second.
    pub rows_per_s: f64,
    /// Tokens per second, of a model whose rows are tokens.
    pub tokens_per_s: Option<f64>,
    /// Model FLOPs per second of a rank: those of the matmuls and convolutions of the step on one device, without
    /// recomputation or replicated work.
    pub flops_per_s: f64,
    /// The part of the peak of all devices that this is.
    pub mfu: f64,
    /// Memory of the rank with the least room, and what its device has.
    pub fill: Fill,
}

/// Model FLOPs of a step: its backward pass does twice those of its forward pass, a product for either operand of each one.
pub(crate) fn model_flops(model: &Model) -> f64 {
    forward_flops(&model.forward) * if has_loss(model) { 3.0 } else { 1.0 }
}

/// Floating-point operations of the matmuls and convolutions of a graph, those inside composites included.
pub(crate) fn forward_flops(graph: &Graph) -> f64 {
    let of_node = |node: &Node| {
        if let Some(composite) = node.op.composite() {
            return forward_flops(&composite.definition.decomposition) * composite.share();
        }
        let is_product = matches!(node.op, Op::DotGeneral(_) | Op::Convolution(_));
        let cost = || node.op.cost(&graph.operand_types(node), &graph.result_types(node));
        if is_product { cost().flops } else { 0.0 }
    };
    graph.nodes.iter().map(of_node).sum()
}

impl Session {
    /// The figures of the step at its price.
    ///
    /// # Errors
    /// Those of [`Session::model`].
    pub fn figures(&self, price: &Price) -> Result<Figures> {
        let (flops, parameters) = match price {
            Price::Folded(forecast) => (forecast.flops, forecast.parameters),
            Price::Whole(_) => {
                let model = self.model()?;
                (model_flops(&model), model.parameter_count() as f64)
            }
        };
        self.figures_of(price.step_s(), price.fullest(), flops, parameters)
    }

    /// The figures of a step of so many seconds and model FLOPs, of a model with so many parameters.
    pub(crate) fn figures_of(&self, step_s: f64, fill: Fill, flops: f64, parameters: f64) -> Result<Figures> {
        let (config, ranks) = (self.config(), self.mesh().rank_count());
        // Ranks that share cores have no more than the peak of these.
        let devices = config.cluster.cores.map_or(ranks, |cores| cores.min(ranks));
        let per_s = 1.0 / step_s.max(f64::MIN_POSITIVE);
        let rows_per_s = config.train.batch as f64 * per_s;
        Ok(Figures {
            parameters,
            active: active_parameters(config.model.as_ref())?,
            step_s,
            rows_per_s,
            tokens_per_s: config.model.tokens().map(|tokens| tokens as f64 * rows_per_s),
            flops_per_s: flops * per_s / ranks as f64,
            mfu: flops * per_s / config.cluster.peak(devices, config.matmul_dtype()),
            fill,
        })
    }
}

impl Figures {
    /// The number of parameters, and how many of them a token uses.
    pub fn parameters_text(&self) -> String {
        parameters_text(self.parameters, self.active)
    }

    /// `92.7k tokens/s`, or rows without tokens.
    pub fn throughput(&self) -> String {
        match self.tokens_per_s {
            Some(tokens) => format!("{} tokens/s", format_count(tokens)),
            None => format!("{:.1} rows/s", self.rows_per_s),
        }
    }

    /// The time of a step, its throughput, and how much of the peak this is, in one line.
    pub fn speed(&self) -> String {
        format!(
            "{} a step, {}, {} a rank ({:.1}% of the peak)",
            format_seconds(self.step_s),
            self.throughput(),
            format_flops(self.flops_per_s),
            100.0 * self.mfu
        )
    }

    /// Names with values for a report: what the step comes to, and what it is.
    pub fn facts(&self, session: &Session) -> Vec<(String, String)> {
        let (config, mesh) = (session.config(), session.mesh());
        let fill = self.fill;
        let memory = format!("{} of {}", format_bytes(fill.bytes), format_bytes(fill.limit));
        let rows = match config.model.tokens() {
            Some(tokens) => format!("{} rows of {tokens} tokens", config.train.batch),
            None => format!("{} rows", config.train.batch),
        };
        let mut facts = vec![
            ("predicted step", format_seconds(self.step_s)),
            ("throughput", self.throughput()),
            ("MFU", format!("{:.1}%", 100.0 * self.mfu)),
            ("peak memory", memory),
            ("model", config.model_name().to_string()),
            ("parameters", self.parameters_text()),
            ("computes in", config.types()),
            ("batch", rows),
            ("microbatches", config.train.microbatches.to_string()),
            ("mesh", mesh.to_string()),
            ("ranks", mesh.rank_count().to_string()),
            ("cluster", config.cluster.name.clone()),
            ("model FLOPs of a rank", format_flops(self.flops_per_s)),
        ];
        if !fill.fits() {
            facts.push(("does not fit", format!("{} too much", format_bytes(fill.missing()))));
        }
        facts.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }
}

/// A number of parameters, and how many of them a token uses: `46.7 B (12.9 B active)`.
pub fn parameters_text(parameters: f64, active: Option<f64>) -> String {
    let all = format_parameters(parameters);
    active.map_or(all.clone(), |active| format!("{all} ({} active)", format_parameters(active)))
}
