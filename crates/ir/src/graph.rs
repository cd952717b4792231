//! Graphs: SSA tensor programs in execution order.

use crate::op::{Op, Operation};
use crate::types::TensorType;
use partita_base::Id;
use partita_mesh::{AxisRef, Mesh, Sharding};
use std::fmt;

/// Names a [`Value`] of a graph.
pub type ValueId = Id<Value>;
/// Names a [`Node`] of a graph.
pub type NodeId = Id<Node>;

/// Which part of a training step a node belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Phase {
    /// The model and its loss.
    #[default]
    Forward,
    /// Gradients with respect to activations.
    InputGrad,
    /// Gradients with respect to parameters.
    WeightGrad,
    /// Clipping and the optimizer.
    Update,
}

impl Phase {
    /// `forward`, `input_grad`, `weight_grad` or `update`.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::InputGrad => "input_grad",
            Phase::WeightGrad => "weight_grad",
            Phase::Update => "update",
        }
    }

    /// Either gradient phase.
    pub fn is_backward(self) -> bool {
        matches!(self, Phase::InputGrad | Phase::WeightGrad)
    }
}

/// The role of a value in training.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role {
    /// Computed, without a special role.
    #[default]
    Activation,
    /// Fed at every step: tokens, labels, the learning rate.
    Input,
    /// A trained tensor; its name is the parameter's module path.
    Param,
    /// Optimizer state of the parameter value; its name is `optimizer.<slot>.<parameter>`.
    StateOf(ValueId),
    /// The gradient with respect to this value.
    GradOf(ValueId),
    /// This value, recomputed for the backward pass: it has the same layout.
    RematOf(ValueId),
}

impl Role {
    /// The same role with its value mapped by `map`; [`Role::Activation`] if `map` has none.
    pub fn renamed(&self, map: impl Fn(ValueId) -> Option<ValueId>) -> Role {
        match *self {
            Role::StateOf(v) => map(v).map_or(Role::Activation, Role::StateOf),
            Role::GradOf(v) => map(v).map_or(Role::Activation, Role::GradOf),
            Role::RematOf(v) => map(v).map_or(Role::Activation, Role::RematOf),
            Role::Activation | Role::Input | Role::Param => self.clone(),
        }
    }
}

/// Where in the user's source a node comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// File name.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A layout requested for a value. The `sharding` is a lower bound: open dimensions may be sharded
/// further.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Annotation {
    /// Index into [`Graph::meshes`].
    pub mesh: usize,
    /// The requested layout.
    pub sharding: Sharding,
    /// For each dimension, whether propagation may add axes.
    pub open: Vec<bool>,
    /// Axes that must not shard this value.
    pub replicated: Vec<AxisRef>,
    /// The source of the request: a plan line, a source location, a rule. Shown by `explain`.
    pub origin: String,
}

/// A tensor that is defined once.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// Element type and shape.
    pub ty: TensorType,
    /// The node and result number that define it; `None` for a graph input.
    pub definition: Option<(NodeId, usize)>,
    /// The name that the user knows: a parameter's path, an input's name. Empty for intermediates.
    pub name: String,
    /// Its role in training.
    pub role: Role,
    /// The requested layout.
    pub annotation: Option<Annotation>,
    /// The group of values that have one layout, whichever it is (`sdy.sharding_group`).
    pub group: Option<u64>,
}

/// One application of an op.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// The op with its attributes.
    pub op: Op,
    /// The operands.
    pub operands: Vec<ValueId>,
    /// The results.
    pub results: Vec<ValueId>,
    /// Module path, `layers.3.attn.q_proj`; empty at the root.
    pub path: String,
    /// Source location, where known.
    pub location: Option<Location>,
    /// Part of the step.
    pub phase: Phase,
    /// Its microbatch, if the step has several.
    pub microbatch: Option<usize>,
    /// Its pipeline stage; 0 if the step has one stage.
    pub stage: usize,
    /// The recomputation group of a forward node: the backward pass recomputes the group's
    /// intermediate values instead of reading stored ones. `None`: they are stored. See
    /// [`crate::remat`].
    pub remat: Option<usize>,
}

/// An SSA tensor program: inputs, nodes in execution order, outputs. Regions of ops (a loop body,
/// the decomposition of a composite) are separate graphs that see only their inputs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    /// The function's name in text.
    pub name: String,
    /// The table of meshes that annotations refer to.
    pub meshes: Vec<Mesh>,
    /// Every value, by id.
    pub values: Vec<Value>,
    /// Every node; the order is an execution order.
    pub nodes: Vec<Node>,
    /// The graph's parameters.
    pub inputs: Vec<ValueId>,
    /// The graph's results.
    pub outputs: Vec<ValueId>,
    /// A name for each output (`loss`, `params.x`); empty or as long as `outputs`.
    pub output_names: Vec<String>,
    /// The requested layout of each output; empty or as long as `outputs`.
    pub output_annotations: Vec<Option<Annotation>>,
    /// Pairs (input position, output position): the output replaces the input at the next step, so both may
    /// share storage and must share a layout.
    pub aliases: Vec<(usize, usize)>,
}

impl Node {
    /// A node with another op in place of this one; it keeps path, location, phase, microbatch,
    /// stage and group.
    pub fn replaced(&self, op: Op, operands: Vec<ValueId>, results: Vec<ValueId>) -> Node {
        let &Node { phase, microbatch, stage, remat, .. } = self;
        let (path, location) = (self.path.clone(), self.location.clone());
        Node { op, operands, results, path, location, phase, microbatch, stage, remat }
    }
}

impl Graph {
    /// This graph without inputs, nodes and values, with capacity for as many nodes and values.
    pub fn emptied(&self) -> Graph {
        Graph {
            name: self.name.clone(),
            meshes: self.meshes.clone(),
            values: Vec::with_capacity(self.values.len()),
            nodes: Vec::with_capacity(self.nodes.len()),
            inputs: Vec::with_capacity(self.inputs.len()),
            outputs: self.outputs.clone(),
            output_names: self.output_names.clone(),
            output_annotations: self.output_annotations.clone(),
            aliases: self.aliases.clone(),
        }
    }

    /// For each value, whether it is one of the graph's results.
    pub fn is_output(&self) -> Vec<bool> {
        let mut is_output = vec![false; self.values.len()];
        self.outputs.iter().for_each(|value| is_output[value.index()] = true);
        is_output
    }

    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The value with this id, mutable.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.index()]
    }

    /// The type of a value.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.index()].ty
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Ids of all nodes in execution order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }

    /// Ids of all values.
    pub fn value_ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.values.len()).map(ValueId::new)
    }

    /// For each value, the nodes that read it with the operand position, in execution order.
    pub fn uses(&self) -> Vec<Vec<(NodeId, usize)>> {
        let mut uses = vec![Vec::new(); self.values.len()];
        for id in self.node_ids() {
            for (position, operand) in self.node(id).operands.iter().enumerate() {
                uses[operand.index()].push((id, position));
            }
        }
        uses
    }

    /// The types of a node's operands.
    pub fn operand_types(&self, node: &Node) -> Vec<&TensorType> {
        node.operands.iter().map(|&v| self.ty(v)).collect()
    }

    /// The types of a node's results.
    pub fn result_types(&self, node: &Node) -> Vec<&TensorType> {
        node.results.iter().map(|&v| self.ty(v)).collect()
    }

    /// The input with this name.
    pub fn input_named(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|&v| self.value(v).name == name)
    }

    /// The position of the output with this name.
    pub fn output_position(&self, name: &str) -> Option<usize> {
        self.output_names.iter().position(|n| n == name)
    }

    /// The output with this name.
    pub fn output_named(&self, name: &str) -> Option<ValueId> {
        self.output_position(name).map(|p| self.outputs[p])
    }

    /// Ids of all parameters, in input order.
    pub fn params(&self) -> Vec<ValueId> {
        self.inputs.iter().copied().filter(|&v| self.value(v).role == Role::Param).collect()
    }

    /// A readable name for a value: its own, else the op and module path that define it.
    pub fn describe(&self, id: ValueId) -> String {
        let value = self.value(id);
        if !value.name.is_empty() {
            return value.name.clone();
        }
        match value.definition {
            Some((node, _)) => {
                let node = self.node(node);
                let path = if node.path.is_empty() { "<root>" } else { &node.path };
                format!("%{} = {} in {path} ({})", id.index(), node.op.name(), node.phase.name())
            }
            None => format!("%{}", id.index()),
        }
    }
}
