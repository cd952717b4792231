//! Matmuls in 8 bits: which operands of a step are rounded to floats of 8 bits, in which blocks, with which scales.
//!
//! [`quantised`] goes over a forward graph, or over one with its gradients. A matmul by a weight, and the two matmuls
//! that are its gradients, read [quantised](crate::composites::QUANTISE) operands; all else stays as it is. Each matmul
//! has its operands rounded along its own contraction, from the values in full precision: so the gradient of a product is
//! the product with the gradient rounded, as if rounding were the identity. Matmuls without a weight, those of attention,
//! are left alone.
//!
//! Sources: OCP microscaling formats (MX) 1.0; DeepSeek-V3 technical report, 2024, section 3.3; P. Micikevicius et al.,
//! "FP8 formats for deep learning", 2022, and the delayed scaling of NVIDIA's Transformer Engine.

use crate::builder::GraphBuilder;
use crate::composite::Attribute;
use crate::composites::{Narrow, QUANTISE};
use crate::graph::{Graph, Node, Phase, Role, ValueId};
use crate::graph_edit;
use crate::op::Op;
use crate::ops::{Direction, DotGeneral, UnaryKind};
use crate::port::state_name;
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};
use std::collections::BTreeMap;

/// How operands of matmuls are scaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum F8 {
    /// Blocks of 32 along the contraction, with powers of two as scales.
    Mx,
    /// Blocks of 128 along the contraction, for a weight of 128 x 128; e4m3 for gradients too.
    Block,
    /// One scale for a tensor, from the largest magnitudes that it had in the steps before.
    Delayed,
    /// One scale for a tensor, from the largest magnitude that it has: [`F8::Delayed`] without a history.
    Current,
}

/// The steps whose largest magnitudes a delayed scale looks at.
pub const HISTORY: usize = 16;

/// The slots of the states that hold them begin so: `optimizer.amax_<operand>.<module>`, one for each tensor.
pub const AMAX: &str = "amax";

impl F8 {
    /// The names in configs.
    pub const NAMES: [&'static str; 3] = ["mxfp8", "f8-block", "f8-delayed"];

    /// `mxfp8`, `f8-block` or `f8-delayed`.
    pub fn name(self) -> &'static str {
        match self {
            F8::Mx => F8::NAMES[0],
            F8::Block => F8::NAMES[1],
            F8::Delayed | F8::Current => F8::NAMES[2],
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<F8> {
        [F8::Mx, F8::Block, F8::Delayed].into_iter().find(|f8| f8.name() == name)
    }

    /// What a graph without states, such as that of an evaluation, has instead.
    pub fn without_states(self) -> F8 {
        match self {
            F8::Delayed => F8::Current,
            other => other,
        }
    }

    /// The distance from 1 to the next number of the coarsest format.
    pub fn unit(self) -> f64 {
        match self {
            F8::Block => Narrow::E4M3.unit(),
            F8::Mx | F8::Delayed | F8::Current => Narrow::E5M2.unit(),
        }
    }
}

/// What an operand of a matmul is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Input,
    Weight,
    Gradient,
}

impl Kind {
    fn narrow(self, f8: F8) -> Narrow {
        match self {
            Kind::Gradient if f8 != F8::Block => Narrow::E5M2,
            Kind::Input | Kind::Weight | Kind::Gradient => Narrow::E4M3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Weight => "weight",
            Kind::Gradient => "gradient",
        }
    }
}

/// The graph with the operands of matmuls by weights rounded to 8 bits. `seed` is the gradient from which all others follow,
/// if the graph has gradients. Nodes for which `keeps` is true are left alone. [`F8::Delayed`] adds a state for each
/// tensor: an input, and an output that replaces it.
///
/// # Errors
/// What building nodes says.
pub fn quantised(
    graph: &Graph,
    f8: F8,
    seed: Option<ValueId>,
    keeps: &dyn Fn(&Node) -> bool,
) -> Result<Graph> {
    let kinds = kinds(graph, seed);
    let mut pass = Pass { f8, made: BTreeMap::new(), scales: BTreeMap::new(), states: Vec::new() };
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut rebuilt = graph_edit::rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let Some(dot) = chosen(graph, node, &kinds).filter(|_| !keeps(node)) else {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        };
        let mut narrow = Vec::with_capacity(2);
        for (side, (&old, &new)) in node.operands.iter().zip(operands).enumerate() {
            let kind = kinds[old.index()];
            narrow.push(pass.operand(
                builder,
                node,
                new,
                kind,
                &blocks(graph, dot, node, side, kind, f8),
                &mut names,
            )?);
        }
        Ok(Some(graph_edit::push_copy(builder, graph, index, &narrow)))
    })?;
    for (name, old, new) in pass.states {
        let input = rebuilt.inputs.iter().position(|&input| input == old).expect("it was added");
        rebuilt.aliases.push((input, rebuilt.outputs.len()));
        rebuilt.outputs.push(new);
        rebuilt.output_names.push(name);
        if !rebuilt.output_annotations.is_empty() {
            rebuilt.output_annotations.push(None);
        }
    }
    Ok(rebuilt)
}

/// What each value is: it follows from the gradient of the loss, or from parameters alone, or neither.
fn kinds(graph: &Graph, seed: Option<ValueId>) -> Vec<Kind> {
    let mut kinds = vec![Kind::Input; graph.values.len()];
    let mut is_constant = vec![false; graph.values.len()];
    for &input in &graph.inputs {
        if graph.value(input).role == Role::Param {
            kinds[input.index()] = Kind::Weight;
        }
    }
    let mark = |kinds: &mut Vec<Kind>| {
        if let Some(seed) = seed {
            kinds[seed.index()] = Kind::Gradient;
        }
    };
    mark(&mut kinds);
    for node in &graph.nodes {
        let own = |kind: Kind| node.operands.iter().any(|v| kinds[v.index()] == kind);
        let all = node.operands.iter().all(|v| is_constant[v.index()]);
        let fixed =
            all && matches!(graph.traits(node), Traits::Constant(_) | Traits::Iota { .. } | Traits::View(_));
        let is_weight = own(Kind::Weight)
            && node.operands.iter().all(|v| kinds[v.index()] == Kind::Weight || is_constant[v.index()]);
        let kind = match (own(Kind::Gradient), is_weight) {
            (true, _) => Kind::Gradient,
            (false, true) => Kind::Weight,
            (false, false) => Kind::Input,
        };
        for result in &node.results {
            kinds[result.index()] = kind;
            is_constant[result.index()] = fixed;
        }
        mark(&mut kinds);
    }
    kinds
}

/// The matmul that a node is, if its operands are quantised: one by a weight, or one of a gradient of a weight.
fn chosen<'a>(graph: &Graph, node: &'a Node, kinds: &[Kind]) -> Option<&'a DotGeneral> {
    let Op::DotGeneral(dot) = &node.op else { return None };
    let is_wide = |v: &ValueId| matches!(graph.ty(*v).dtype, DType::F32 | DType::F64);
    let has = |kind: Kind| node.operands.iter().any(|v| kinds[v.index()] == kind);
    let of_weight = node.phase == Phase::WeightGrad && has(Kind::Gradient);
    (node.operands.iter().all(is_wide) && (has(Kind::Weight) || of_weight)).then_some(dot)
}

/// The extent of a block along each dimension of an operand.
fn blocks(graph: &Graph, dot: &DotGeneral, node: &Node, side: usize, kind: Kind, f8: F8) -> Vec<usize> {
    let shape = &graph.ty(node.operands[side]).shape;
    let extent = match f8 {
        F8::Mx => 32,
        F8::Block => 128,
        F8::Delayed => return Vec::new(),
        F8::Current => return shape.clone(),
    };
    let mut blocks = vec![1; shape.len()];
    // Both operands have their blocks along one pair of dimensions: the innermost of the left one.
    let pairs = dot.lhs_contracting.iter().zip(&dot.rhs_contracting);
    if let Some((&left, &right)) = pairs.max_by_key(|(left, _)| **left) {
        blocks[if side == 0 { left } else { right }] = extent;
    }
    if f8 == F8::Block && kind == Kind::Weight {
        let (batch, contracting) = match side {
            0 => (&dot.lhs_batch, &dot.lhs_contracting),
            _ => (&dot.rhs_batch, &dot.rhs_contracting),
        };
        let free = (0..shape.len()).rev().find(|dim| !batch.contains(dim) && !contracting.contains(dim));
        free.into_iter().for_each(|dim| blocks[dim] = extent);
    }
    blocks
}

/// What identifies a quantised value: where it is made, of what, in which format and blocks.
type Key = (ValueId, &'static str, Vec<usize>, Phase, usize, Option<usize>);

struct Pass {
    f8: F8,
    made: BTreeMap<Key, ValueId>,
    /// The scale of each tensor, by stage.
    scales: BTreeMap<(ValueId, usize), ValueId>,
    /// The name of each state, its input, and what replaces it.
    states: Vec<(String, ValueId, ValueId)>,
}

impl Pass {
    /// A value as this node reads it.
    fn operand(
        &mut self,
        b: &mut GraphBuilder,
        node: &Node,
        x: ValueId,
        kind: Kind,
        blocks: &[usize],
        names: &mut BTreeMap<String, usize>,
    ) -> Result<ValueId> {
        let format = kind.narrow(self.f8);
        let key = (x, format.name(), blocks.to_vec(), node.phase, node.stage, node.remat);
        if let Some(&made) = self.made.get(&key) {
            return Ok(made);
        }
        b.enter(node);
        let mut attributes = vec![("format", Attribute::Text(format.name().to_string()))];
        let mut operands = vec![x];
        match self.f8 {
            F8::Delayed => operands.push(self.scale(b, node, x, kind, names)?),
            F8::Mx | F8::Block | F8::Current => {
                let blocks = blocks.iter().map(|&extent| extent as i64).collect();
                attributes.push(("blocks", Attribute::Ints(blocks)));
                attributes.push(("power", Attribute::Bool(self.f8 == F8::Mx)));
            }
        }
        let made = b.composite(&QUANTISE, &attributes, &operands)?;
        self.made.insert(key, made);
        Ok(made)
    }

    /// The scale of a tensor in this step, and its history for the next. Before the first step all histories are zero, and
    /// the scale is 1.
    fn scale(
        &mut self,
        b: &mut GraphBuilder,
        node: &Node,
        x: ValueId,
        kind: Kind,
        names: &mut BTreeMap<String, usize>,
    ) -> Result<ValueId> {
        if let Some(&scale) = self.scales.get(&(x, node.stage)) {
            return Ok(scale);
        }
        let module = if node.path.is_empty() { "model" } else { &node.path };
        let slot = format!("{AMAX}_{}", kind.name());
        let name = state_name(&slot, module);
        let count = names.entry(name.clone()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { name } else { state_name(&format!("{slot}{count}"), module) };
        let wide = b.ty(x).dtype;
        let history = b.input(&name, TensorType::new(wide, [HISTORY]), Role::Input);
        // The scale is the same for all microbatches, and is not recomputed.
        (b.microbatch, b.remat) = (None, None);
        let largest = b.reduce_max(history, &[0])?;
        let of_format = b.full_like(largest, kind.narrow(self.f8).largest())?;
        let scale = b.divide(of_format, largest)?;
        let one = b.full_like(scale, 1.0)?;
        let zero = b.full_like(scale, 0.0)?;
        let infinity = b.full_like(scale, f64::INFINITY)?;
        let is_small = b.compare(Direction::Lt, scale, infinity)?;
        let scale = b.select(is_small, scale, one)?;
        let is_known = b.compare(Direction::Gt, scale, zero)?;
        let scale = b.select(is_known, scale, one)?;
        b.enter(node);
        b.remat = None;
        // Outside of the module, whose last value remains its output.
        b.path = if node.path.is_empty() { AMAX.to_string() } else { format!("{AMAX}.{}", node.path) };
        let magnitude = b.unary(UnaryKind::Abs, x)?;
        let dims: Vec<usize> = (0..b.shape(x).len()).collect();
        let amax = b.reduce_max(magnitude, &dims)?;
        let amax = b.reshape(amax, &[1])?;
        let kept = b.slice_dim(history, 0, 0, HISTORY - 1)?;
        let next = b.concatenate(&[amax, kept], 0)?;
        b.enter(node);
        self.states.push((name, history, next));
        self.scales.insert((x, node.stage), scale);
        Ok(scale)
    }
}
