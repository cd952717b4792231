//! Partitioning: turns the global step graph and its layouts into one local graph per rank class.
//!
//! Ranks whose shards have equal shapes form a class and share a graph; values that differ by rank,
//! such as the offset of a shard, are looked up by `partition_id`. Classes are refined on demand:
//! when a layout gives two members of a class different shapes, the class is split and emission
//! starts again.

use crate::advice::idle_notes;
use crate::emit::{Emitted, Emitter, Stop};
use crate::propagate::{Layouts, propagate_with};
use crate::units::{Units, rules_of};
use partita_base::{Diagnostic, Note, Result, did_you_mean};
use partita_cost::Cluster;
use partita_ir::{FactorKind, Graph, NodeId, Op, Rule, ValueId, graph_edit};
use partita_mesh::{AxisList, Mesh, ReshardStep, Sharding};
use std::collections::BTreeMap;

/// Options of partitioning.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What messages call each rank of the mesh: its number in the whole mesh, where this one is a slice of
    /// it; empty where they are the same.
    pub ranks: Vec<usize>,
    /// The cost model of links and devices.
    pub cluster: Cluster,
    /// For tests: below this module path, the first result that is partial is treated as
    /// complete. Verification must detect the error.
    #[cfg(feature = "testing")]
    pub break_rule_at: Option<String>,
    /// Splits fixed by the user: for the name of a value, the axes of each factor of the op that
    /// computes it. All other splits are chosen by cost. E475 for a name that no op computes.
    pub fixed: BTreeMap<String, Vec<AxisList>>,
    /// Inputs, by name, that arrive in another layout than that in which they are used, from which
    /// the ranks gather it before the first reader: values that another pipeline stage sends.
    pub arrivals: BTreeMap<String, Sharding>,
    /// Outputs, by name, that are returned in another layout than that in which their values are used; never partial. The
    /// values move there when they have their propagated layouts, so an annotation that requests the same saves a move.
    pub returned: BTreeMap<String, Sharding>,
    /// Whether outputs that [`Options::returned`] does not name are returned partial if their values are, instead of
    /// combined. [`Partitioned::outputs`] says which are.
    pub unreduced: bool,
}

/// The local counterpart of a global value.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// The global value.
    pub global: ValueId,
    /// The local value, with the same id in the graph of every class.
    pub local: ValueId,
    /// Its layout, possibly partial.
    pub sharding: Sharding,
}

/// One reshard step of a value, in the graph of every class.
#[derive(Clone, PartialEq, Debug)]
pub struct Move {
    /// The global value.
    pub value: ValueId,
    /// The local value that the step computes, with the same id in the graph of every class.
    pub local: ValueId,
    /// The layout before the step.
    pub before: Sharding,
    /// The step.
    pub step: ReshardStep,
    /// The final layout of the reshard to which the step belongs.
    pub to: Sharding,
    /// The global node that needed the layout; `None` for an output of the step.
    pub reader: Option<NodeId>,
}

/// The result of partitioning.
#[derive(Clone, Debug)]
pub struct Partitioned {
    /// The mesh.
    pub mesh: Mesh,
    /// The cost model that chose its layouts.
    pub cluster: Cluster,
    /// The partitioned global graph, in which composites that a layout splits have been inlined.
    pub graph: Graph,
    /// The layout of every value of `graph`.
    pub layouts: Layouts,
    /// One graph per rank class, all of one structure.
    pub locals: Vec<Graph>,
    /// The class of each rank.
    pub class_of_rank: Vec<usize>,
    /// The layout of each input.
    pub inputs: Vec<Sharding>,
    /// The layout of each output.
    pub outputs: Vec<Sharding>,
    /// The local counterpart of each computed value, in execution order.
    pub placements: Vec<Placement>,
    /// Every reshard step, in execution order.
    pub moves: Vec<Move>,
    /// Number of tables with one entry per rank that partitioning built: one for each distinct
    /// split, not for each value.
    pub rank_tables: usize,
    /// Notes for the user, such as idle ranks.
    pub notes: Vec<Note>,
}

impl Partitioned {
    /// The local graph of a rank.
    pub fn local(&self, rank: usize) -> &Graph {
        &self.locals[self.class_of_rank[rank]]
    }
}

/// A global graph with the layouts of its values, before its local graphs are written.
pub struct LaidOut {
    /// The graph, in which composites that a layout splits have been inlined.
    pub graph: Graph,
    rules: Vec<Rule>,
    units: Units,
    /// The layout of each value, input and output of `graph`.
    pub layouts: Layouts,
}

/// Partitions `graph` over `mesh`. Layouts follow from the graph's annotations by propagation.
pub fn partition(graph: &Graph, mesh: &Mesh, options: &Options) -> Result<Partitioned> {
    lay_out(graph, mesh)?.partition(options)
}

impl LaidOut {
    /// Writes the local graphs.
    pub fn partition(self, options: &Options) -> Result<Partitioned> {
        let LaidOut { graph, rules, units, layouts } = self;
        let mesh = layouts.mesh.clone();
        for name in options.fixed.keys() {
            is_computed(&graph, name)?;
        }
        let mut classes: Vec<Vec<usize>> = vec![(0..mesh.rank_count()).collect()];
        // Every refinement splits a class, so the number of rounds is at most the number of ranks.
        for _ in 0..=mesh.rank_count() {
            let emitter = |classes| Emitter::new(&graph, &mesh, &layouts, &rules, &units, classes, options);
            match emitter(classes).run() {
                Ok(mut emitted) => {
                    // Where terms were passed on that another reader combines, the results may be had without combining
                    // them.
                    if !emitted.late.is_empty()
                        && let Ok(early) =
                            emitter(emitted.classes.clone()).completing(emitted.late.clone()).run()
                    {
                        let seconds = |emitted: &Emitted| emitted.moves_s(&graph, &mesh, &options.cluster);
                        emitted = if seconds(&early) < seconds(&emitted) { early } else { emitted };
                    }
                    let mut class_of_rank = vec![0; mesh.rank_count()];
                    for (class, ranks) in emitted.classes.iter().enumerate() {
                        for &rank in ranks {
                            class_of_rank[rank] = class;
                        }
                    }
                    let notes = idle_notes(&graph, &mesh, &layouts, &options.ranks);
                    return Ok(Partitioned {
                        cluster: options.cluster.clone(),
                        locals: emitted.locals,
                        class_of_rank,
                        inputs: emitted.inputs,
                        outputs: emitted.outputs,
                        placements: emitted.placements,
                        moves: emitted.moves,
                        rank_tables: emitted.rank_tables,
                        notes,
                        mesh,
                        layouts,
                        graph,
                    });
                }
                Err(Stop::Refine(finer)) => classes = finer,
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Err(Diagnostic::new("E219", "rank classes did not converge")
            .help("this is a bug in partita; please report it"))
    }
}

/// E475 if no op of the graph computes a value of this name.
pub fn is_computed(graph: &Graph, name: &str) -> Result<()> {
    let computed = || graph.values.iter().filter(|v| v.definition.is_some()).map(|v| v.name.as_str());
    if computed().any(|known| known == name) {
        return Ok(());
    }
    let error = Diagnostic::new("E475", format!("a split is fixed for `{name}`, which no op computes"))
        .expected("the name of a value that an op computes");
    match did_you_mean(name, computed().filter(|known| !known.is_empty())) {
        Some(hint) => Err(error.help(hint)),
        None => Err(error),
    }
}

/// Propagates layouts, and inlines each composite that would have to gather a sharded dimension of
/// an operand, since its primitive ops can often work on the shards. Where an inlined gradient
/// recomputes a part of the forward pass, it would repeat that part's reductions over shards, so
/// reductions of inlined composites are shared.
///
/// # Errors
/// As [`crate::propagate()`].
pub fn lay_out(graph: &Graph, mesh: &Mesh) -> Result<LaidOut> {
    let mut graph = graph.clone();
    // Nodes that come from inlined composites.
    let mut inner = vec![false; graph.nodes.len()];
    loop {
        let rules = rules_of(&graph);
        let units = Units::of(&graph, &rules);
        let layouts = propagate_with(&graph, mesh, &rules, &units)?;
        let mut split = vec![false; graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::Composite(_)) {
                continue;
            }
            let rule = &rules[index];
            for (&operand, dims) in node.operands.iter().zip(&rule.operands) {
                for (dim, factors) in dims.iter().enumerate() {
                    let whole = factors
                        .iter()
                        .any(|&f| matches!(rule.factors[f].kind, FactorKind::Whole | FactorKind::Shift));
                    // A dimension of several factors may be split along its major factor alone.
                    let major_passes = factors.first().is_some_and(|&f| {
                        matches!(rule.factors[f].kind, FactorKind::Pass | FactorKind::Reduce(_))
                    });
                    let axes = &layouts.sharding(operand).dims[dim].axes;
                    split[index] |= whole && !major_passes && !axes.is_empty();
                }
            }
        }
        if !split.contains(&true) {
            if let Some(fewer) = graph_edit::reuse_reductions(&graph, &inner)? {
                inner = vec![false; fewer.nodes.len()];
                graph = fewer;
                continue;
            }
            return Ok(LaidOut { graph, rules, units, layouts });
        }
        let source = graph;
        let mut now_inner: Vec<bool> = Vec::new();
        graph = graph_edit::rebuild(&source, |builder, _, index, operands| {
            let node = &source.nodes[index];
            let results = match node.op.composite().filter(|_| split[index]) {
                Some(composite) => {
                    builder.enter(node);
                    builder.inline(&composite.definition.decomposition, operands, false)?
                }
                None => graph_edit::push_copy(builder, &source, index, operands),
            };
            now_inner.resize(builder.graph().nodes.len(), inner[index] || split[index]);
            Ok(Some(results))
        })?;
        inner = now_inner;
    }
}
