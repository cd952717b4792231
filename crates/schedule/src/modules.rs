//! The modules of a step graph: their paths, parameters, inputs and outputs.

use crate::glob::matches;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::{Graph, NodeId, Op, Phase, Role, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The module that owns a parameter, and the parameter's own name without the number of a part:
/// `qkv_proj.weight#1` is `weight` of `qkv_proj`.
pub(crate) fn owner(name: &str) -> (&str, &str) {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    (module, own.split('#').next().unwrap_or(own))
}

/// Whether a path is a module or inside one.
pub(crate) fn is_inside(path: &str, module: &str) -> bool {
    module.is_empty() || path == module || (path.starts_with(module) && path.as_bytes()[module.len()] == b'.')
}

/// The module around a module.
pub(crate) fn around(module: &str) -> &str {
    module.rsplit_once('.').map_or("", |(around, _)| around)
}

/// A path and the modules around it, the outermost first, without the model itself.
fn with_around(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('.').map(|(place, _)| place).chain([path.len()]);
    ends.map(|end| &path[..end])
}

/// Whether a pattern matches a path or a module around it.
pub(crate) fn matches_around(pattern: &str, path: &str) -> bool {
    with_around(path).any(|part| matches(pattern, part))
}

/// What a line of a plan is about: a pattern over paths, in one pipeline stage or in all.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'p> {
    pub pattern: &'p str,
    /// Only modules whose ops are all in this stage, and parameters that this stage reads first.
    pub stage: Option<usize>,
}

impl<'p> From<&'p str> for Scope<'p> {
    fn from(pattern: &'p str) -> Scope<'p> {
        Scope { pattern, stage: None }
    }
}

/// An index of a graph by module path.
pub(crate) struct Modules<'a> {
    pub graph: &'a Graph,
    /// Every module path and those above it, in order of appearance.
    pub paths: Vec<String>,
    uses: Vec<Vec<(NodeId, usize)>>,
    /// The forward nodes directly in each module.
    forward: BTreeMap<&'a str, Vec<NodeId>>,
    /// The parameters directly in each module.
    params: BTreeMap<&'a str, Vec<ValueId>>,
    /// The named constants directly in each module.
    buffers: BTreeMap<&'a str, Vec<ValueId>>,
}

impl<'a> Modules<'a> {
    pub fn of(graph: &'a Graph) -> Modules<'a> {
        let mut paths = Vec::new();
        let mut seen = BTreeSet::new();
        let of_nodes = graph.nodes.iter().filter(|n| n.phase == Phase::Forward).map(|n| n.path.as_str());
        let of_params = graph.params().into_iter().map(|p| owner(&graph.value(p).name).0);
        for path in of_nodes.chain(of_params) {
            for part in with_around(path).filter(|part| !part.is_empty()) {
                if seen.insert(part) {
                    paths.push(part.to_string());
                }
            }
        }
        let mut forward: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for id in graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward) {
            forward.entry(&graph.node(id).path).or_default().push(id);
        }
        let mut params: BTreeMap<&str, Vec<ValueId>> = BTreeMap::new();
        for param in graph.params() {
            params.entry(owner(&graph.value(param).name).0).or_default().push(param);
        }
        let mut buffers: BTreeMap<&str, Vec<ValueId>> = BTreeMap::new();
        for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Constant(_))) {
            let name = &graph.value(node.results[0]).name;
            if !name.is_empty() {
                buffers.entry(owner(name).0).or_default().push(node.results[0]);
            }
        }
        Modules { graph, paths, uses: graph.uses(), forward, params, buffers }
    }

    /// The readers of a value, with operand positions.
    pub fn uses(&self, value: ValueId) -> &[(NodeId, usize)] {
        &self.uses[value.index()]
    }

    /// The modules that match a pattern.
    pub fn matching<'p>(&self, scope: impl Into<Scope<'p>>) -> Vec<&str> {
        let Scope { pattern, stage } = scope.into();
        let is_meant = |path: &&str| matches(pattern, path) && self.is_in(path, stage);
        self.paths.iter().map(String::as_str).filter(is_meant).collect()
    }

    /// The modules that a line covers: those that match its pattern. For an empty pattern it is the model
    /// itself (`""`), or the outermost modules of the line's stage. E221 if nothing matches.
    pub fn named<'p>(&self, scope: impl Into<Scope<'p>>, origin: &str) -> Result<Vec<&str>> {
        let scope = scope.into();
        let paths = match (scope.pattern, scope.stage) {
            ("", None) => vec![""],
            ("", Some(_)) => {
                let all = self.paths.iter().map(String::as_str);
                all.filter(|p| self.is_in(p, scope.stage) && !self.is_in(around(p), scope.stage)).collect()
            }
            _ => self.matching(scope),
        };
        if paths.is_empty() { Err(self.unmatched(scope, origin)) } else { Ok(paths) }
    }

    /// The parameters whose own name matches a pattern.
    pub fn parameters_named<'p>(&self, scope: impl Into<Scope<'p>>) -> Vec<ValueId> {
        let Scope { pattern, stage } = scope.into();
        let is_meant = |p: &ValueId| {
            let name = &self.graph.value(*p).name;
            let named = matches(pattern, name) || name.split('#').next().is_some_and(|n| matches(pattern, n));
            named && self.is_read_first_in(*p, stage)
        };
        self.graph.params().into_iter().filter(is_meant).collect()
    }

    /// The parameters that match a pattern by their own name or by a module around them.
    pub fn parameters_matching<'p>(&self, scope: impl Into<Scope<'p>>) -> Vec<ValueId> {
        let scope = scope.into();
        let Scope { pattern, stage } = scope;
        let is_around = |p: &ValueId| {
            let (module, _) = owner(&self.graph.value(*p).name);
            (matches_around(pattern, module) || matches(pattern, "")) && self.is_read_first_in(*p, stage)
        };
        let named: BTreeSet<ValueId> = self.parameters_named(scope).into_iter().collect();
        self.graph.params().into_iter().filter(|p| named.contains(p) || is_around(p)).collect()
    }

    /// Whether a module is in a stage with all its ops; one without ops with all its parameters.
    fn is_in(&self, module: &str, stage: Option<usize>) -> bool {
        let Some(stage) = stage else { return true };
        let nodes = self.forward_nodes(module);
        match nodes.is_empty() {
            false => nodes.iter().all(|&id| self.graph.node(id).stage == stage),
            true => self.parameters_inside(module).iter().all(|&p| self.is_read_first_in(p, Some(stage))),
        }
    }

    /// Whether a parameter belongs to a stage: the first one that reads it.
    fn is_read_first_in(&self, parameter: ValueId, stage: Option<usize>) -> bool {
        let nodes = self.uses(parameter).iter().map(|(id, _)| self.graph.node(*id));
        let reading = nodes.filter(|node| node.phase == Phase::Forward).map(|node| node.stage);
        stage.is_none_or(|stage| reading.min() == Some(stage))
    }

    /// The parameters that a module itself owns.
    pub fn parameters_of(&self, module: &str) -> Vec<ValueId> {
        self.params.get(module).cloned().unwrap_or_default()
    }

    /// The named constants that a module itself owns.
    pub fn buffers_of(&self, module: &str) -> Vec<ValueId> {
        self.buffers.get(module).cloned().unwrap_or_default()
    }

    /// The parameters of a module and all modules in it.
    pub fn parameters_inside(&self, module: &str) -> Vec<ValueId> {
        let inside = |p: &ValueId| is_inside(owner(&self.graph.value(*p).name).0, module);
        self.graph.params().into_iter().filter(inside).collect()
    }

    /// The forward nodes directly in a module.
    pub fn forward_nodes_of(&self, module: &str) -> &[NodeId] {
        self.forward.get(module).map_or(&[], Vec::as_slice)
    }

    /// The forward nodes of a module and all modules in it, in order.
    pub fn forward_nodes(&self, module: &str) -> Vec<NodeId> {
        let begins_alike = self.forward.range(module..).take_while(|(path, _)| path.starts_with(module));
        let inside = begins_alike.filter(|(path, _)| is_inside(path, module));
        let mut nodes: Vec<NodeId> = inside.flat_map(|(_, nodes)| nodes).copied().collect();
        nodes.sort();
        nodes
    }

    /// The outputs of a module in the forward pass: tensors that nodes outside read, one per
    /// microbatch; if no node outside reads any, the last one it computes.
    pub fn outputs_of(&self, module: &str) -> Vec<ValueId> {
        let nodes = self.forward_nodes(module);
        let outside = |&(id, _): &(NodeId, usize)| {
            let node = self.graph.node(id);
            node.phase == Phase::Forward && !is_inside(&node.path, module)
        };
        let leaves = |v: &ValueId| {
            let read = self.uses(*v).iter().any(outside) || self.graph.outputs.contains(v);
            read && self.graph.ty(*v).rank() > 0
        };
        let results = nodes.iter().flat_map(|&id| self.graph.node(id).results.iter().copied());
        let leaving: Vec<ValueId> = results.filter(leaves).collect();
        match (leaving.is_empty(), nodes.last()) {
            (true, Some(&last)) => self.graph.node(last).results.first().copied().into_iter().collect(),
            _ => leaving,
        }
    }

    /// The inputs of a module in the forward pass, parameters excluded: values computed or fed
    /// outside, each with its readers and their operand positions.
    pub fn inputs_of(&self, module: &str) -> BTreeMap<ValueId, Vec<(NodeId, usize)>> {
        let mut inputs: BTreeMap<ValueId, Vec<(NodeId, usize)>> = BTreeMap::new();
        for id in self.forward_nodes(module) {
            for (position, &operand) in self.graph.node(id).operands.iter().enumerate() {
                let value = self.graph.value(operand);
                let from_inside = match value.definition {
                    Some((definition, _)) => is_inside(&self.graph.node(definition).path, module),
                    None => value.role == Role::Param,
                };
                if !from_inside && value.ty.rank() >= 2 {
                    inputs.entry(operand).or_default().push((id, position));
                }
            }
        }
        inputs
    }

    /// E221: a pattern that matches nothing, with the nearest names.
    pub fn unmatched<'p>(&self, scope: impl Into<Scope<'p>>, origin: &str) -> Box<Diagnostic> {
        let Scope { pattern, stage } = scope.into();
        // Repeated layers have equal suffixes: `layers.*.mlp` covers all of them.
        let general = |path: &str| {
            let starred = path.split('.').map(|c| if c.parse::<usize>().is_ok() { "*" } else { c });
            starred.collect::<Vec<&str>>().join(".")
        };
        let mut names: Vec<String> = Vec::new();
        let params = self.graph.params().into_iter().map(|p| self.graph.value(p).name.clone());
        for name in self.paths.iter().cloned().chain(params) {
            let name = if pattern.contains('*') { general(&name) } else { name };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let within = stage.map_or(String::new(), |stage| format!(" of stage {stage}"));
        let shown = if pattern.is_empty() { "an empty pattern".to_string() } else { format!("`{pattern}`") };
        let mut error =
            Diagnostic::new("E221", format!("{shown} matches no module and no parameter{within}"))
                .at(origin)
                .expected("the path of a module, `*` for one component, `**` for any number");
        error.help = did_you_mean(pattern, names.iter().map(String::as_str));
        if stage.is_some()
            && !(self.matching(pattern).is_empty() && self.parameters_named(pattern).is_empty())
        {
            error.help =
                Some("move the line to the stage that runs these modules, or to `[plan]`".to_string());
        }
        error
    }
}
