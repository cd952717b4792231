//! Mixture of experts: each token goes to a few of many feed-forward networks, chosen by a router.
//!
//! With a **capacity** (GShard, Lepikhin et al. 2020), each row of the batch gives every expert so many slots. Tokens are
//! dispatched into them and combined again by two contractions, so all extents are known; a token beyond the capacity of
//! its expert is dropped. Tokens are sharded by rows and experts by number: where both use one mesh axis, the layouts
//! before and after the experts differ, and each side is one all-to-all.
//!
//! **Without a capacity** no token is dropped: each token is multiplied with the matrices of its own experts alone, as one
//! grouped matmul ([`GROUPED_MATMUL`]).

use super::{Activation, Linear, Module, SwiGlu};
use crate::accumulation_dtype;
use crate::context::Context;
use crate::init::Init;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::{GROUPED_MATMUL, SOFTMAX};
use partita_ir::ops::{Direction, DotGeneral, GROUPS, TopK, UnaryKind};
use partita_ir::{Attribute, TensorType, ValueId};

/// How a router scores experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The logistic function of each logit. A bias for each expert joins the choice, not the weights; a step raises it
    /// by `rate` where an expert had fewer tokens than the mean, and lowers it where it had more (Wang et al. 2024).
    BiasedSigmoid {
        /// The change of a bias in a step.
        rate: f64,
    },
}

/// A feed-forward block of experts over `x[batch, sequence, dim]`.
///
/// Parameters: `router.weight[experts, dim]`, `experts.up_proj[experts, hidden, dim]`,
/// `experts.down_proj[experts, dim, hidden]`, with `gated` `experts.gate_proj[experts, hidden, dim]`, and
/// `shared.{gate,up,down}_proj` for shared experts.
#[derive(Clone, Debug)]
pub struct MixtureOfExperts {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Hidden features of an expert.
    pub hidden: usize,
    /// The number of experts.
    pub experts: usize,
    /// Experts for each token.
    pub top_k: usize,
    /// Slots of an expert over its even share of a row's choices; `None` drops no token.
    pub capacity: Option<f64>,
    /// Whether experts are `down(silu(gate(x)) * up(x))`, rather than `down(gelu(up(x)))`.
    pub gated: bool,
    /// Hidden features of the experts that every token visits; 0 for none.
    pub shared_hidden: usize,
    /// How experts are scored.
    pub scores: Scores,
    /// Whether the weights of a token's experts are scaled to a sum of 1.
    pub normalise: bool,
    /// What the weights are multiplied with.
    pub weight_scale: f64,
    /// The factor of the balance loss in the loss of the model; 0 for none.
    pub balance: f64,
    /// Initial weights.
    pub init: Init,
    /// Initial `down_proj`.
    pub out_init: Init,
}

impl MixtureOfExperts {
    /// Two experts for each token, with slots for a quarter more than their even share, and no balance loss.
    pub fn new(dim: usize, hidden: usize, experts: usize) -> MixtureOfExperts {
        MixtureOfExperts {
            dim,
            hidden,
            experts,
            top_k: 2.min(experts),
            capacity: Some(1.25),
            gated: false,
            shared_hidden: 0,
            scores: Scores::Softmax,
            normalise: true,
            weight_scale: 1.0,
            balance: 0.0,
            init: Init::Normal { std: 0.02 },
            out_init: Init::Normal { std: 0.02 },
        }
    }

    /// E050 with the offending size.
    pub fn validate(&self) -> Result<()> {
        let refused = |what: &str, expected: String, found: String| {
            Err(Diagnostic::new("E050", what).expected(expected).found(found))
        };
        if self.experts == 0 || self.hidden == 0 {
            return refused(
                "a mixture without experts",
                "at least 1 expert with at least 1 hidden feature".to_string(),
                format!("{} experts of {} features", self.experts, self.hidden),
            );
        }
        if !(1..=self.experts).contains(&self.top_k) {
            return refused(
                "`top_k` does not fit the experts",
                format!("1 to {}", self.experts),
                self.top_k.to_string(),
            );
        }
        if let Some(factor) = self.capacity
            && !(factor.is_finite() && factor > 0.0)
        {
            return refused(
                "`capacity` out of range",
                "a finite number above 0, or 0 for experts that drop no token".to_string(),
                factor.to_string(),
            );
        }
        if !(self.balance.is_finite() && self.balance >= 0.0) {
            return refused(
                "`balance` out of range",
                "a finite number, at least 0".to_string(),
                self.balance.to_string(),
            );
        }
        Ok(())
    }

    /// Slots of an expert for a row of so many tokens; `None` without a capacity. No expert needs more than one for each
    /// token.
    pub fn slots(&self, sequence: usize) -> Option<usize> {
        let factor = self.capacity?;
        let share = factor * (sequence * self.top_k) as f64 / self.experts as f64;
        Some((share.ceil() as usize).clamp(1, sequence))
    }

    /// The experts of each token.
    fn route(&self, cx: &mut Context, x: ValueId) -> Result<Routes> {
        let [batch, sequence, _] = cx.shape(x)[..] else { unreachable!("the shape is checked") };
        let router = Linear::new(self.dim, self.experts).bias(false).init(self.init);
        let logits = cx.apply("router", &router, x)?;
        let dtype = accumulation_dtype(cx.dtype());
        let logits = cx.builder.convert(logits, dtype)?;
        let (gates, ranked) = match self.scores {
            Scores::Softmax => {
                let gates = cx.builder.composite(&SOFTMAX, &[], &[logits])?;
                (gates, gates)
            }
            Scores::BiasedSigmoid { .. } => {
                let gates = cx.builder.unary(UnaryKind::Logistic, logits)?;
                let bias = cx.inside("router", |cx| cx.state("balance_bias", dtype, &[self.experts]));
                let bias = cx.builder.broadcast_in_dim(bias, &[batch, sequence, self.experts], &[2])?;
                (gates, cx.builder.add(gates, bias)?)
            }
        };
        let b = &mut cx.builder;
        let chosen = b.push(TopK { k: self.top_k }, &[ranked])?[1];
        let shape = [batch, sequence, self.top_k, self.experts];
        let number = b.iota(TensorType::new(DType::I32, shape), 3)?;
        let chosen = b.broadcast_in_dim(chosen, &shape, &[0, 1, 2])?;
        let chosen = b.compare(Direction::Eq, chosen, number)?;
        let chosen = b.convert(chosen, dtype)?;
        let spread = b.broadcast_in_dim(gates, &shape, &[0, 1, 3])?;
        let weights = b.multiply(chosen, spread)?;
        let mut weights = b.reduce_sum(weights, &[3])?;
        if self.normalise {
            let sum = b.reduce_sum(weights, &[2])?;
            let sum = b.offset(sum, 1e-20)?;
            let sum = b.broadcast_in_dim(sum, &[batch, sequence, self.top_k], &[0, 1])?;
            weights = b.divide(weights, sum)?;
        }
        if self.weight_scale != 1.0 {
            weights = b.scale(weights, self.weight_scale)?;
        }
        Ok(Routes { gates, chosen, weights })
    }

    /// The balance loss of each row, as Switch Transformer defines it: `experts * sum of f P`, where f is an expert's
    /// share of the choices and P its mean gate; its mean over rows. The next biases, if the router has any.
    fn balanced(&self, cx: &mut Context, routes: &Routes) -> Result<()> {
        let [batch, sequence, top_k, experts] = cx.shape(routes.chosen)[..] else {
            unreachable!("one-hot rows")
        };
        let b = &mut cx.builder;
        let counts = b.reduce_sum(routes.chosen, &[1, 2])?;
        if let Scores::BiasedSigmoid { rate } = self.scores {
            let total = b.reduce_sum(counts, &[0])?;
            let mean = b.full_like(total, (batch * sequence * top_k) as f64 / experts as f64)?;
            let short = b.subtract(mean, total)?;
            let short = b.unary(UnaryKind::Sign, short)?;
            let change = b.scale(short, rate)?;
            cx.inside("router", |cx| -> Result<()> {
                let dtype = cx.builder.ty(change).dtype;
                let bias = cx.state("balance_bias", dtype, &[experts]);
                let next = cx.builder.add(bias, change)?;
                cx.replace_state("balance_bias", next);
                Ok(())
            })?;
        }
        if self.balance == 0.0 {
            return Ok(());
        }
        let b = &mut cx.builder;
        let gates = match self.scores {
            Scores::Softmax => routes.gates,
            Scores::BiasedSigmoid { .. } => {
                let sum = b.reduce_sum(routes.gates, &[2])?;
                let sum = b.broadcast_in_dim(sum, &[batch, sequence, experts], &[0, 1])?;
                b.divide(routes.gates, sum)?
            }
        };
        let means = b.reduce_sum(gates, &[1])?;
        let product = b.multiply(counts, means)?;
        let sum = b.reduce_sum(product, &[0, 1])?;
        let rows = batch as f64 * (sequence * top_k) as f64 * sequence as f64;
        let loss = b.scale(sum, self.balance * experts as f64 / rows)?;
        cx.add_loss(loss);
        Ok(())
    }

    /// Dispatches into the slots of experts, computes, and combines.
    fn with_capacity(&self, cx: &mut Context, x: ValueId, routes: &Routes, slots: usize) -> Result<ValueId> {
        let [batch, sequence, top_k, experts] = cx.shape(routes.chosen)[..] else {
            unreachable!("one-hot rows")
        };
        let dtype = cx.dtype();
        let (dispatch, combine) = cx.inside("dispatch", |cx| -> Result<(ValueId, ValueId)> {
            let b = &mut cx.builder;
            let wide = b.ty(routes.chosen).dtype;
            // First choices come before second ones; among them, earlier tokens before later ones.
            let order = TensorType::new(DType::I32, [sequence, sequence]);
            let (token, other) = (b.iota(order.clone(), 0)?, b.iota(order, 1)?);
            let is_earlier = b.compare(Direction::Lt, other, token)?;
            let is_earlier = b.convert(is_earlier, wide)?;
            let mut taken = b.full(&TensorType::new(wide, [batch, experts]), 0.0)?;
            let grid = [batch, sequence, experts, slots];
            let mut sums: Option<[ValueId; 2]> = None;
            for choice in 0..top_k {
                let chosen = b.slice_dim(routes.chosen, 2, choice, choice + 1)?;
                let chosen = b.reshape(chosen, &[batch, sequence, experts])?;
                let dims = DotGeneral {
                    lhs_contracting: vec![1],
                    rhs_contracting: vec![1],
                    ..DotGeneral::default()
                };
                let before = b.dot_general(chosen, is_earlier, dims)?;
                let before = b.transpose(before, &[0, 2, 1])?;
                let filled = b.broadcast_in_dim(taken, &[batch, sequence, experts], &[0, 2])?;
                let slot = b.add(before, filled)?;
                // The slot of the chosen expert; none beyond the capacity.
                let number = b.iota(TensorType::new(wide, grid), 3)?;
                let slot = b.broadcast_in_dim(slot, &grid, &[0, 1, 2])?;
                let is_slot = b.compare(Direction::Eq, slot, number)?;
                let is_slot = b.convert(is_slot, wide)?;
                let is_chosen = b.broadcast_in_dim(chosen, &grid, &[0, 1, 2])?;
                let place = b.multiply(is_slot, is_chosen)?;
                let weight = b.slice_dim(routes.weights, 2, choice, choice + 1)?;
                let weight = b.reshape(weight, &[batch, sequence])?;
                let weight = b.broadcast_in_dim(weight, &grid, &[0, 1])?;
                let weighted = b.multiply(place, weight)?;
                sums = Some(match sums {
                    None => [place, weighted],
                    Some([places, weights]) => [b.add(places, place)?, b.add(weights, weighted)?],
                });
                let count = b.reduce_sum(chosen, &[1])?;
                taken = b.add(taken, count)?;
            }
            let [places, weights] = sums.expect("there is at least one choice");
            let places = b.convert(places, dtype)?;
            let dims = DotGeneral {
                lhs_batch: vec![0],
                rhs_batch: vec![0],
                lhs_contracting: vec![1],
                rhs_contracting: vec![1],
                ..DotGeneral::default()
            };
            // [batch, experts, slots, dim]
            Ok((b.dot_general(places, x, dims)?, b.convert(weights, dtype)?))
        })?;
        let y = cx.inside("experts", |cx| -> Result<ValueId> {
            self.expert_network(cx, dispatch, |b, x, weight| {
                let dims = DotGeneral {
                    lhs_batch: vec![1],
                    rhs_batch: vec![0],
                    lhs_contracting: vec![3],
                    rhs_contracting: vec![2],
                    ..DotGeneral::default()
                };
                let y = b.dot_general(x, weight, dims)?;
                // [experts, batch, slots, features]
                b.transpose(y, &[1, 0, 2, 3])
            })
        })?;
        cx.inside("combine", |cx| {
            let dims = DotGeneral {
                lhs_batch: vec![0],
                rhs_batch: vec![0],
                lhs_contracting: vec![2, 3],
                rhs_contracting: vec![1, 2],
                ..DotGeneral::default()
            };
            cx.builder.dot_general(combine, y, dims)
        })
    }

    /// Each choice is a row of its own in the grouped matmuls.
    fn without_capacity(&self, cx: &mut Context, x: ValueId, routes: &Routes) -> Result<ValueId> {
        let [batch, sequence, top_k, _] = cx.shape(routes.chosen)[..] else { unreachable!("one-hot rows") };
        let dtype = cx.dtype();
        let own = cx.builder.convert(routes.chosen, dtype)?;
        let rows = cx.builder.broadcast_in_dim(x, &[batch, sequence, top_k, self.dim], &[0, 1, 3])?;
        let y = cx.inside("experts", |cx| {
            let groups = [(GROUPS, Attribute::Int(self.experts as i64))];
            self.expert_network(cx, rows, |b, x, weight| {
                b.composite(&GROUPED_MATMUL, &groups, &[x, weight, own])
            })
        })?;
        cx.inside("combine", |cx| {
            let b = &mut cx.builder;
            let weights = b.convert(routes.weights, dtype)?;
            let dims = DotGeneral {
                lhs_batch: vec![0, 1],
                rhs_batch: vec![0, 1],
                lhs_contracting: vec![2],
                rhs_contracting: vec![2],
                ..DotGeneral::default()
            };
            b.dot_general(weights, y, dims)
        })
    }

    /// The network of the experts, with a product of features by the matrix of each expert.
    fn expert_network(
        &self,
        cx: &mut Context,
        x: ValueId,
        product: impl Fn(&mut partita_ir::GraphBuilder, ValueId, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let wide = [self.experts, self.hidden, self.dim];
        let gate = match self.gated {
            true => Some(cx.param("gate_proj", &wide, self.init)?),
            false => None,
        };
        let up = cx.param("up_proj", &wide, self.init)?;
        let down = cx.param("down_proj", &[self.experts, self.dim, self.hidden], self.out_init)?;
        let h = product(&mut cx.builder, x, up)?;
        let h = match gate {
            Some(gate) => {
                let gate = product(&mut cx.builder, x, gate)?;
                let gate = Activation::Silu.forward(cx, gate)?;
                cx.builder.multiply(gate, h)?
            }
            None => Activation::GeluTanh.forward(cx, h)?,
        };
        product(&mut cx.builder, h, down)
    }
}

/// The experts of each token.
struct Routes {
    /// The score of each expert, `[batch, sequence, experts]`.
    gates: ValueId,
    /// For each choice 1 at its expert, `[batch, sequence, top_k, experts]`.
    chosen: ValueId,
    /// The weight of each choice, `[batch, sequence, top_k]`.
    weights: ValueId,
}

impl Module for MixtureOfExperts {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        self.validate()?;
        cx.real(x, "mixture of experts")?;
        let shape = cx.shape(x);
        let &[_, sequence, dim] = &shape[..] else {
            return Err(self.misfit(cx, &shape));
        };
        if dim != self.dim {
            return Err(self.misfit(cx, &shape));
        }
        let routes = self.route(cx, x)?;
        self.balanced(cx, &routes)?;
        let y = match self.slots(sequence) {
            Some(slots) => self.with_capacity(cx, x, &routes, slots)?,
            None => self.without_capacity(cx, x, &routes)?,
        };
        if self.shared_hidden == 0 {
            return Ok(y);
        }
        let shared = SwiGlu {
            init: Some(self.init),
            out_init: Some(self.out_init),
            ..SwiGlu::new(self.dim, self.shared_hidden)
        };
        let z = cx.apply("shared", &shared, x)?;
        cx.builder.add(y, z)
    }
}

impl MixtureOfExperts {
    fn misfit(&self, cx: &Context, shape: &[usize]) -> Box<Diagnostic> {
        Diagnostic::new("E050", "the input of a mixture of experts has the wrong shape")
            .at(cx.builder.path.clone())
            .expected(format!("[batch, sequence, {}]", self.dim))
            .found(format!("{shape:?}"))
    }
}
