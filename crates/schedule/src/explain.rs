//! Explains layouts and collectives: the facts behind `partita explain`, as data.
//!
//! The facts come from a built step: the causes that propagation recorded and the moves that
//! partition made. The cost of another layout is not estimated: the step is partitioned with it and
//! its collectives are counted.

mod chain;
mod choices;
mod lines;

use crate::build::Built;
use crate::modules::{Modules, owner};
use crate::stages::Stage;
use crate::weights::weights_of;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::traits::CollectiveRef;
use partita_ir::{Graph, Node, Operation, Role, ValueId};
use partita_mesh::{LinkCost, Mesh, Sharding};
use partita_spmd::{Move, Partitioned};
use serde::Serialize;
use std::collections::BTreeMap;

pub use choices::Choice;
pub use lines::{Line, lines};

/// One collective of a rank's step. Layouts are those of the global value.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Collective {
    /// `all_reduce:3`: the third of its kind, in the order of the local graph of the stage's first rank, counted
    /// through all stages.
    pub name: String,
    /// `all_reduce`.
    pub kind: String,
    /// `forward`, `input_grad`, `weight_grad` or `update`.
    pub phase: String,
    /// The module that contains it.
    pub module: String,
    /// The value that is communicated.
    pub value: String,
    /// Its element type and global shape.
    pub tensor: String,
    /// The layout before.
    pub before: String,
    /// The layout after.
    pub after: String,
    /// Bytes of the full tensor that this rank takes part in moving, as `lower --counts` counts
    /// them.
    pub bytes: usize,
    /// Microseconds by the cluster that the step was planned for.
    pub cost_us: f64,
    /// The plan line that causes it; empty if no line does.
    pub because: String,
    /// The causes from that line to the collective, one each.
    pub chain: Vec<String>,
    /// The value in the graph before partitioning; `None` inside a manual computation.
    #[serde(skip)]
    pub of: Option<ValueId>,
}

/// The shard of a value that some ranks hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Held {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// The local shape.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: usize,
}

/// The layout of a value over one mesh axis, and its causes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Over {
    /// The mesh axis.
    pub axis: String,
    /// The sharded dimension; `None` if the value is replicated over the axis.
    pub dim: Option<usize>,
    /// The causes from the plan line to the value, one each.
    pub chain: Vec<String>,
}

/// A parameter, an activation, or a fed tensor, with its layout.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tensor {
    /// The name in the question.
    pub name: String,
    /// `parameter`, `output`, `input`, ..
    pub role: String,
    /// The name or position of the value in the step, if it differs.
    pub value: String,
    /// Its element type.
    pub dtype: String,
    /// Its global shape.
    pub shape: Vec<usize>,
    /// Its bytes on one device.
    pub bytes: usize,
    /// The layout.
    pub layout: String,
    /// The layout where the value is computed, if that is partial.
    pub computed: Option<String>,
    /// The shards by group of ranks.
    pub held: Vec<Held>,
    /// The causes, axis by axis.
    pub over: Vec<Over>,
    /// How many tensors of the step share the name: parts of a fused parameter, microbatches. The
    /// first is shown; of several activations that enter or leave a module, the largest.
    pub tensors: usize,
    /// All of them, in the graph before partitioning.
    #[serde(skip)]
    pub values: Vec<ValueId>,
}

/// What a name refers to.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Subject {
    /// A value.
    Tensor(Tensor),
    /// A collective.
    Collective(Collective),
}

/// Answers questions about a built step.
pub struct Explain<'a> {
    built: &'a Built,
    stage: usize,
    partitioned: &'a Partitioned,
    /// The rank of the whole mesh for each rank of the stage.
    ranks: &'a [usize],
    graph: &'a Graph,
    mesh: &'a Mesh,
    modules: Modules<'a>,
    /// The layout in which each value is computed.
    computed: BTreeMap<ValueId, &'a Sharding>,
}

impl<'a> Explain<'a> {
    /// Prepares a stage of a step for questions.
    pub fn new(built: &'a Built, stage: usize) -> Explain<'a> {
        let partitioned = &built.stages[stage].partitioned;
        let mut computed: BTreeMap<ValueId, &Sharding> = BTreeMap::new();
        for placement in &partitioned.placements {
            computed.insert(placement.global, &placement.sharding);
        }
        Explain {
            built,
            stage,
            partitioned,
            ranks: &built.stages[stage].ranks,
            graph: &partitioned.graph,
            mesh: &partitioned.mesh,
            modules: Modules::of(&partitioned.graph),
            computed,
        }
    }

    /// The collectives of the step of the stage's first rank, in order. Numbers continue those of the stages
    /// before it.
    pub fn collectives(&self) -> Vec<Collective> {
        let local = self.partitioned.local(0);
        let cluster = &self.partitioned.cluster;
        let moves: BTreeMap<ValueId, &Move> = self.partitioned.moves.iter().map(|m| (m.local, m)).collect();
        let mut numbers = kinds_of(&self.built.stages[..self.stage]);
        let mut found = Vec::new();
        for node in &local.nodes {
            let Some(bytes) = exchanged_bytes(local, node) else { continue };
            let kind = node.op.short_name();
            let number = numbers.entry(kind).or_default();
            *number += 1;
            let mut collective = Collective {
                name: format!("{kind}:{number}"),
                kind: kind.to_string(),
                phase: node.phase.name().to_string(),
                module: node.path.clone(),
                value: local.describe(node.operands[0]),
                tensor: local.ty(node.operands[0]).to_string(),
                before: String::new(),
                after: String::new(),
                bytes,
                cost_us: 0.0,
                because: String::new(),
                chain: vec!["written out in a manual computation".to_string()],
                of: None,
            };
            if let Some(step) = moves.get(&node.results[0]) {
                let ty = self.graph.ty(step.value);
                let cost = cluster.reshard_cost(self.mesh, &ty.shape, ty.dtype.size_bytes());
                let seconds = cost.step_s(&step.before, &step.step);
                let chain = self.collective_chain(step);
                collective.value = self.name_of(step.value);
                collective.tensor = ty.to_string();
                collective.before = step.before.display(self.mesh);
                collective.after = step.step.after.display(self.mesh);
                collective.cost_us = seconds * 1e6;
                collective.because = chain.origin.unwrap_or_default();
                collective.chain = chain.links;
                collective.of = Some(step.value);
            }
            found.push(collective);
        }
        found
    }

    /// What a name refers to: a parameter, a module (its output), `module.input`, an input or
    /// output of the step, or a collective such as `all_reduce:3`. E257 for an unknown name, E258
    /// for a collective that does not exist.
    pub fn subject(&self, name: &str) -> Result<Subject> {
        if let Some((kind, number)) = name.split_once(':')
            && CollectiveRef::NAMES.contains(&kind)
        {
            let mut all = self.collectives();
            let place = all.iter().position(|collective| collective.name == name);
            return match place {
                Some(place) => Ok(Subject::Collective(all.swap_remove(place))),
                None => Err(self.no_collective(kind, number)),
            };
        }
        match self.tensor(name) {
            Some(tensor) => Ok(Subject::Tensor(tensor)),
            None => Err(self.nothing_of(name)),
        }
    }

    /// The other layouts of a subject over each mesh axis. Each replaces the present one, is
    /// partitioned and counted; the present one comes first for each axis. `progress` receives the
    /// number done and the total.
    pub fn choices(&self, subject: &Subject, progress: &mut dyn FnMut(usize, usize)) -> Vec<Choice> {
        match subject {
            Subject::Tensor(tensor) => choices::choices(self, &tensor.values, progress),
            Subject::Collective(collective) => {
                choices::choices(self, &collective.of.into_iter().collect::<Vec<_>>(), progress)
            }
        }
    }

    fn tensor(&self, name: &str) -> Option<Tensor> {
        let (role, mut values) = self.values_named(name)?;
        let &largest = values.iter().rev().max_by_key(|v| self.graph.ty(**v).bytes())?;
        // Modules also read masks and tables; parts of one parameter belong together.
        let is_parameter = self.graph.value(largest).role == Role::Param;
        values.retain(|&v| is_parameter || self.graph.ty(v) == self.graph.ty(largest));
        let first = values[0];
        let ty = self.graph.ty(first);
        let sharding = self.layout(first);
        let mut held: Vec<Held> = Vec::new();
        for rank in 0..self.mesh.rank_count() {
            let shape = sharding.local_shape(self.mesh, &ty.shape, rank);
            match held.iter_mut().find(|held| held.shape == shape) {
                Some(held) => held.ranks.push(self.ranks[rank]),
                None => {
                    let bytes = ty.with_shape(shape.clone()).bytes();
                    held.push(Held { ranks: vec![self.ranks[rank]], shape, bytes });
                }
            }
        }
        let axes = (0..self.mesh.axes.len()).filter(|&axis| self.mesh.axes[axis].size > 1);
        let over = axes.map(|axis| {
            let axis = self.mesh.full_axis(axis);
            Over {
                axis: self.mesh.display_axis(axis),
                dim: self.dim_over(first, axis),
                chain: self.chain(first, axis).links,
            }
        });
        let computed = self.computed.get(&first).filter(|computed| computed.is_partial());
        Some(Tensor {
            name: name.to_string(),
            role: role.to_string(),
            value: self.name_of(first),
            dtype: ty.dtype.to_string(),
            shape: ty.shape.clone(),
            bytes: ty.bytes(),
            layout: sharding.display(self.mesh),
            computed: computed.map(|computed| computed.display(self.mesh)),
            held,
            over: over.collect(),
            tensors: values.len(),
            values,
        })
    }

    /// The values that a name refers to, and their role.
    fn values_named(&self, name: &str) -> Option<(&'static str, Vec<ValueId>)> {
        let found = |role, values: Vec<ValueId>| (!values.is_empty()).then_some((role, values));
        let whole = |v: &ValueId| self.graph.value(*v).name.split('#').next() == Some(name);
        let inputs = self.graph.inputs.iter().copied().filter(whole);
        let (params, fed): (Vec<ValueId>, Vec<ValueId>) =
            inputs.partition(|&v| self.graph.value(v).role == Role::Param);
        let (module, own) = owner(name);
        let is_module = |path: &str| self.modules.paths.iter().any(|p| p == path);
        let read_by = |path: &str| -> Vec<ValueId> {
            // If readers have a layout constraint of their own, they see that layout.
            self.modules.inputs_of(path).into_keys().collect()
        };
        found("parameter", params)
            .or_else(|| found("input of the step", fed))
            .or_else(|| {
                is_module(name).then(|| self.modules.outputs_of(name)).and_then(|v| found("output", v))
            })
            .or_else(|| match own {
                _ if !is_module(module) => None,
                "input" => found("input", read_by(module)),
                "output" => found("output", self.modules.outputs_of(module)),
                "weight" => found("tied parameter", weights_of(self.graph, &self.modules, module)),
                _ => found("buffer", {
                    let mut buffers = self.modules.buffers_of(module);
                    buffers.retain(|v| whole(v));
                    buffers
                }),
            })
            .or_else(|| found("output of the step", self.graph.output_named(name).into_iter().collect()))
    }

    /// E257.
    fn nothing_of(&self, name: &str) -> Box<Diagnostic> {
        let inputs = self.graph.inputs.iter().map(|&v| self.graph.value(v).name.as_str());
        let names = inputs.chain(self.modules.paths.iter().map(String::as_str));
        let near = did_you_mean(name, names.chain(self.graph.output_names.iter().map(String::as_str)));
        let lists = "`partita show` lists parameters; without a name, `explain` lists collectives";
        Diagnostic::new("E257", format!("nothing in the step has the name `{name}`"))
            .expected("a parameter, a module, `module.input`, or a collective such as all_reduce:1")
            .found(name)
            .help(near.unwrap_or_else(|| lists.to_string()))
    }

    /// E258.
    fn no_collective(&self, kind: &str, number: &str) -> Box<Diagnostic> {
        let count = kinds_of(&self.built.stages).get(kind).copied().unwrap_or(0);
        Diagnostic::new("E258", format!("there is no {kind} number {number}"))
            .expected(match count {
                0 => format!("another kind: this step has no {kind}"),
                _ => format!("a number from 1 to {count}"),
            })
            .found(format!("{kind}:{number}"))
            .help("without a name, `explain` lists them")
    }

    /// A display name: the value's own, else its op and module.
    fn name_of(&self, value: ValueId) -> String {
        let of = self.graph.value(value);
        match (of.name.is_empty(), of.definition) {
            (true, Some((node, _))) => self.op_of(self.graph.node(node)),
            _ => self.graph.describe(value),
        }
    }

    /// `dot_general of layers.0.mlp.up_proj`, with the phase where it is not the forward one.
    fn op_of(&self, node: &Node) -> String {
        let path = if node.path.is_empty() { "the model" } else { &node.path };
        let phase = if node.phase == partita_ir::Phase::Forward { "" } else { node.phase.name() };
        let phase = if phase.is_empty() { String::new() } else { format!(" ({phase})") };
        format!("{} of {path}{phase}", node.op.short_name())
    }

    fn layout(&self, value: ValueId) -> &'a Sharding {
        self.partitioned.layouts.sharding(value)
    }
}

/// How many collectives of each kind the first ranks of these stages have.
fn kinds_of(stages: &[Stage]) -> BTreeMap<&str, usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for local in stages.iter().map(|stage| stage.partitioned.local(0)) {
        let collectives = local.nodes.iter().filter(|node| exchanged_bytes(local, node).is_some());
        collectives.for_each(|node| *counts.entry(node.op.short_name()).or_default() += 1);
    }
    counts
}

/// The full tensor of a collective, in bytes; `None` for other ops.
fn exchanged_bytes(local: &Graph, node: &Node) -> Option<usize> {
    let full = match local.traits(node).collective()? {
        CollectiveRef::AllGather(_) | CollectiveRef::CollectiveBroadcast(_) => node.results[0],
        CollectiveRef::AllReduce(_)
        | CollectiveRef::ReduceScatter(_)
        | CollectiveRef::AllToAll(_)
        | CollectiveRef::CollectivePermute(_) => node.operands[0],
    };
    Some(local.ty(full).bytes())
}
