//! `partita estimate`: how many devices a model needs.

use crate::command::{Application, Command, ConfigFlags, Unread, of_no_run};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, short, table};
use crate::run::{Ending, answer, session};
use clap::Args;
use partita::figures::parameters_text;
use partita::models::active_parameters;
use partita::predict::estimate::{CONTEXT_BYTES, Fit, Need, RULE_BYTES, needs, notes};
use partita::session::Session;
use partita_base::Result;
use serde::Serialize;

/// Flags of `estimate`.
#[derive(Args, Clone, Debug)]
pub struct EstimateArgs {
    /// A model by name such as gpt3-13b, a config.json of Hugging Face, a config file or a bundled config.
    #[arg(value_name = "MODEL|CONFIG")]
    pub config: String,
    /// The most devices to try.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub most: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

impl Command for EstimateArgs {
    const NAME: &'static str = "estimate";
    const ABOUT: &'static str = "Estimate how many devices a model needs, for each strategy and optimizer";
    const UNREAD: Unread = of_no_run(&[
        (
            "train",
            "it answers for mixed precision with one microbatch, and finds the largest microbatch itself",
        ),
        ("mesh", "it tries 1, 2, 4, .. devices for each strategy; --most limits them"),
        ("plan", "it has a row for each strategy"),
        ("optimizer", "it has a row for each optimizer"),
        ("data", "no data is read"),
        ("checkpoint", "nothing is saved"),
    ]);

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        estimate(self, &session(&self.config, self.flags.overrides()?, output)?, output)?;
        Ok(Ending::Done)
    }
}

/// How many devices a model needs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The cluster.
    pub cluster: String,
    /// Memory of a device in bytes.
    pub memory_bytes: u64,
    /// Parameters of the model.
    pub parameters: f64,
    /// Rows of its batch, if it has no other.
    pub batch: Option<usize>,
    /// The most rows of a microbatch that were tried.
    pub most_rows: usize,
    /// Those that a token uses, of a model with experts.
    pub active: Option<f64>,
    /// Bytes by the rule of thumb, over all devices.
    pub rule_bytes: f64,
    /// Devices by the rule of thumb.
    pub rule_devices: usize,
    /// Each choice.
    pub choices: Vec<Choice>,
}

/// One choice of strategy, optimizer and recomputation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// `ddp`, `zero1`, `zero2`, `fsdp`, `tp`.
    pub strategy: &'static str,
    /// `adamw`, `lion`, `sgd`.
    pub optimizer: &'static str,
    /// Whether layers are recomputed.
    pub recompute: bool,
    /// Whether optimizer states are in host memory.
    pub offload: bool,
    /// The fewest devices.
    pub devices: Option<usize>,
    /// Bytes of parameters, gradients and optimizer states on each.
    pub state_bytes: Option<u64>,
    /// Bytes of activations and scratch memory with one row.
    pub activation_bytes: Option<u64>,
    /// Bytes of gathered parameters.
    pub workspace_bytes: Option<u64>,
    /// The largest microbatch, in rows.
    pub rows: Option<usize>,
    /// Rows a day with it.
    pub rows_per_day: Option<f64>,
    /// Tokens a day with it, of a model of tokens.
    pub tokens_per_day: Option<f64>,
    /// Bytes that are missing on each device at the largest count that was tried, beside those of the process itself; 0
    /// where it is host memory that is too small.
    pub missing_bytes: Option<u64>,
}

impl Event for Estimate {
    const NAME: &'static str = "estimate";
}

/// Runs the command.
///
/// # Errors
/// E511 for a model without a loss, or with an update of its own; what building and lowering refuse.
fn estimate(args: &EstimateArgs, session: &Session, output: &mut Output) -> Result<()> {
    let cluster = &session.config().cluster;
    let most = cluster.levels.last().and_then(|level| level.ranks).unwrap_or(1024).min(args.most as usize);
    notes(session).into_iter().for_each(|note| output.note(note));
    let tokens = session.config().model.tokens();
    let working = output.working("estimating");
    let watch = |done: usize, all: usize| {
        working.expect(all as u64);
        working.advance(done as u64);
    };
    let found = needs(session, most, &watch)?;
    drop(working);
    let parameters = found.parameters;
    let rule_bytes = RULE_BYTES * parameters;
    let missing = |need: &Need| {
        (need.least_bytes + CONTEXT_BYTES - cluster.memory_bytes() as f64).max(0.0).ceil() as u64
    };
    let choice = |need: &Need| {
        let fit = |figure: &dyn Fn(&Fit) -> f64| need.fewest.as_ref().map(figure);
        let parts = need.fewest.as_ref().map(|fit| fit.bytes.by_kind().map(|(_, bytes)| bytes));
        Choice {
            strategy: need.choice.strategy.name(),
            optimizer: need.choice.optimizer,
            recompute: need.choice.recompute,
            offload: need.choice.offload,
            devices: need.fewest.as_ref().map(|fit| fit.devices),
            state_bytes: parts.map(|[parameters, gradients, states, ..]| parameters + gradients + states),
            activation_bytes: parts.map(|[.., activations, _]| activations),
            workspace_bytes: parts.map(|[.., gathered]| gathered),
            rows: need.fewest.as_ref().map(|fit| fit.rows),
            rows_per_day: fit(&|fit| fit.rows_per_day),
            tokens_per_day: tokens.and_then(|tokens| fit(&|fit| fit.rows_per_day * tokens as f64)),
            missing_bytes: need.fewest.is_none().then(|| missing(need)),
        }
    };
    let result = Estimate {
        cluster: cluster.name.clone(),
        memory_bytes: cluster.memory_bytes(),
        parameters,
        batch: found.batch,
        most_rows: found.most_rows,
        active: active_parameters(session.config().model.as_ref())?,
        rule_bytes,
        // The rule counts memory as it is sold: a device of 40 GB holds 40 billion bytes.
        rule_devices: (rule_bytes / (cluster.memory_bytes() as f64 / (1u64 << 30) as f64 * 1e9)).ceil()
            as usize,
        choices: found.choices.iter().map(choice).collect(),
    };
    answer(&result, |result| result.text(tokens.is_some()), output);
    Ok(())
}

impl Estimate {
    fn text(&self, is_folded: bool) -> String {
        let maybe = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let size = |number: Option<u64>| maybe(number.map(bytes));
        let row = |choice: &Choice| {
            vec![
                choice.strategy.to_string(),
                choice.optimizer.to_string(),
                if choice.recompute { "full" } else { "none" }.to_string(),
                if choice.offload { "host" } else { "device" }.to_string(),
                maybe(choice.devices.map(|devices| devices.to_string())),
                size(choice.state_bytes),
                size(choice.activation_bytes),
                size(choice.workspace_bytes),
                maybe(choice.rows.map(|rows| rows.to_string())),
                maybe(choice.tokens_per_day.or(choice.rows_per_day).map(short)),
                maybe(choice.missing_bytes.map(|missing| match missing {
                    0 => "too little host memory".to_string(),
                    missing => format!("{} too little", bytes(missing)),
                })),
            ]
        };
        let has_tokens = self.choices.iter().any(|choice| choice.tokens_per_day.is_some());
        let head = [
            "strategy",
            "optimizer",
            "recompute",
            "states",
            "devices",
            "state",
            "activations",
            "gathered",
            "rows",
            if has_tokens { "tokens/day" } else { "rows/day" },
            "on each device",
        ];
        let mut text = format!(
            "{} parameters on devices of {} ({})\n\n",
            parameters_text(self.parameters, self.active),
            bytes(self.memory_bytes),
            self.cluster
        );
        text += &table(&head, &self.choices.iter().map(row).collect::<Vec<_>>());
        text += &format!(
            "\nrule of thumb, 12 GB for a billion parameters: {:.0} GB, {} device{}. It counts 4 bytes each for parameters,\n\
             gradients and one state: right for fsdp with lion and full recomputation. AdamW needs 16 GB, and activations\n\
             come on top. devices: the fewest, of 1, 2, 4, ..; rows: {}.\n\
             state: parameters, gradients and optimizer states when the step of one row is fullest{}.\n",
            self.rule_bytes / 1e9,
            self.rule_devices,
            if self.rule_devices == 1 { "" } else { "s" },
            match self.batch {
                None => format!("the largest microbatch of a device there, up to {}", self.most_rows),
                Some(batch) =>
                    format!("the share of a device in the batch, which the model fixes at {batch}"),
            },
            if is_folded {
                ""
            } else {
                "; gradients that\nare not there at that moment do not count, so a column need not grow with the states"
            }
        );
        text
    }
}
