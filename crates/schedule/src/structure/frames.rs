//! Module boundaries for patterns: a pattern sees into a module only after `trace`, into a layer
//! only after `decompose`.

use crate::modules::{Modules, around, is_inside, owner};
use partita_ir::{Graph, NodeId, Op};
use partita_nn::Model;
use std::collections::BTreeSet;

/// Which modules are transparent to patterns.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    /// Leaf layers: library modules without inner modules.
    leaves: BTreeSet<String>,
    opened: BTreeSet<String>,
}

impl Frames {
    /// Layers without parameters, such as activations, count as the function they apply.
    pub fn of(model: &Model) -> Frames {
        let all = &model.modules;
        let mut with_inside: BTreeSet<&str> = BTreeSet::new();
        for path in all.keys() {
            let mut path = path.as_str();
            while !path.is_empty() {
                path = around(path);
                with_inside.insert(path);
            }
        }
        let leaves: BTreeSet<String> =
            all.keys().filter(|path| !with_inside.contains(path.as_str())).cloned().collect();
        let parameters = model.params.keys().chain(model.ties.iter().map(|(alias, _)| alias));
        let owners: BTreeSet<&str> = parameters.map(|name| owner(name).0).collect();
        let opened = leaves.iter().filter(|path| !owners.contains(path.as_str())).cloned().collect();
        Frames { leaves, opened }
    }

    /// Makes one module transparent.
    pub fn open(&mut self, path: &str) {
        self.opened.insert(path.to_string());
    }

    /// Makes every module inside this one transparent, down to the layers.
    pub fn flatten(&mut self, module: &str, modules: &Modules) {
        for path in &modules.paths {
            if path != module && is_inside(path, module) && !self.leaves.contains(path) {
                self.opened.insert(path.clone());
            }
        }
    }

    /// Whether this is a layer that patterns do not see into.
    pub fn is_closed_leaf(&self, path: &str) -> bool {
        self.leaves.contains(path) && !self.opened.contains(path)
    }

    /// The first closed module inside `scope` that contains some of these nodes while the module
    /// has others.
    pub fn boundary(
        &self,
        graph: &Graph,
        modules: &Modules,
        nodes: &BTreeSet<NodeId>,
        scope: &str,
    ) -> Option<String> {
        let is_whole = |path: &str| {
            let constant = |id: &NodeId| matches!(graph.node(*id).op, Op::Constant(_));
            modules.forward_nodes(path).iter().all(|id| constant(id) || nodes.contains(id))
        };
        for &id in nodes {
            if matches!(graph.node(id).op, Op::Constant(_)) {
                continue;
            }
            let mut path = graph.node(id).path.as_str();
            while path != scope && !path.is_empty() {
                if !self.opened.contains(path) && !is_whole(path) && !self.holds_all(graph, nodes, path) {
                    return Some(path.to_string());
                }
                path = around(path);
            }
        }
        None
    }

    /// Whether all of the nodes are directly in the module: then they cross no boundary.
    fn holds_all(&self, graph: &Graph, nodes: &BTreeSet<NodeId>, path: &str) -> bool {
        nodes
            .iter()
            .all(|&id| matches!(graph.node(id).op, Op::Constant(_)) || is_inside(&graph.node(id).path, path))
    }
}
