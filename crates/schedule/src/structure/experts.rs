//! The plan line `dispatch`: experts that drop no token become one op, to which tokens go once and from which results come
//! back once.

use crate::modules::is_inside;
use crate::plan::Entry;
use partita_base::{Diagnostic, Result};
use partita_ir::composite::Origin;
use partita_ir::composites::{GELU, GROUPED_MATMUL, SILU};
use partita_ir::ops::{BinaryKind, Composite, DotGeneral, Experts};
use partita_ir::{AttributesExt, Graph, Node, Op, ValueId, graph_edit};

/// The composite of a template that a node applies.
fn composite<'a>(node: &'a Node, template: &str) -> Option<&'a Composite> {
    let Op::Composite(composite) = &node.op else { return None };
    let is_it = matches!(&composite.definition.origin, Origin::Template(own) if own.name == template);
    is_it.then_some(composite)
}

/// Whether a graph has experts that drop no token in a module.
pub(crate) fn has_grouped(graph: &Graph, module: &str) -> bool {
    graph
        .nodes
        .iter()
        .any(|node| is_inside(&node.path, module) && composite(node, GROUPED_MATMUL.name).is_some())
}

/// A network of experts in a graph.
struct Network<'a> {
    /// The product with the last matrices.
    last: &'a Node,
    /// The operands of [`Experts`].
    operands: Vec<ValueId>,
}

/// The network whose choices a node adds up, if it does: `sum over choices of weights * down(hidden)`.
fn network<'a>(graph: &'a Graph, combine: &Node) -> Option<Network<'a>> {
    let made_by = |value: ValueId| graph.nodes.iter().find(|node| node.results.contains(&value));
    let product =
        |value: ValueId| made_by(value).filter(|node| composite(node, GROUPED_MATMUL.name).is_some());
    let Op::DotGeneral(dims) = &combine.op else { return None };
    let over_choices = DotGeneral {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: vec![2],
        rhs_contracting: vec![2],
        ..DotGeneral::default()
    };
    let last = product(combine.operands[1]).filter(|_| *dims == over_choices)?;
    let &[hidden, down, own] = &last.operands[..] else { return None };
    let hidden = made_by(hidden)?;
    let (first, up) = if let Op::Binary(binary) = &hidden.op {
        let gate = made_by(hidden.operands[0]).filter(|node| composite(node, SILU.name).is_some())?;
        let up = Some(product(hidden.operands[1])?).filter(|_| binary.kind == BinaryKind::Multiply)?;
        (product(gate.operands[0])?, Some(up))
    } else {
        composite(hidden, GELU.name).filter(|gelu| gelu.attributes.flag("tanh"))?;
        (product(hidden.operands[0])?, None)
    };
    let products = [Some(first), up].into_iter().flatten();
    let rows = made_by(first.operands[0])?;
    let is_of_tokens = matches!(&rows.op, Op::BroadcastInDim(op) if op.dims == [0, 1, 3]);
    let is_same = |node: &Node| node.operands[0] == first.operands[0] && node.operands[2] == own;
    if !is_of_tokens || !products.clone().all(is_same) {
        return None;
    }
    let mut operands = vec![rows.operands[0], combine.operands[0], own];
    operands.extend(products.map(|product| product.operands[1]));
    operands.push(down);
    Some(Network { last, operands })
}

/// The graph with every network of experts in these modules as one op. E235 if there is none.
pub(super) fn together(graph: &Graph, modules: &[&str], entry: &Entry) -> Result<Graph> {
    let mut found = 0;
    let joined = graph_edit::rebuild(graph, |builder, map, index, operands| {
        let node = &graph.nodes[index];
        let is_covered = modules.iter().any(|module| is_inside(&node.path, module));
        let Some(network) = is_covered.then(|| network(graph, node)).flatten() else {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        };
        found += 1;
        let operands: Vec<ValueId> =
            network.operands.iter().map(|value| map[value.index()].expect("it comes before")).collect();
        builder.enter(network.last);
        let experts = graph.ty(network.operands[2]).shape[3];
        builder.push(Experts { experts }, &operands).map(Some)
    })?;
    if found > 0 {
        return Ok(graph_edit::prune(joined));
    }
    Err(Diagnostic::new("E235", format!("there are no experts that drop no token in `{}`", entry.modules))
        .at(entry.describe())
        .expected(
            "modules that multiply tokens with the matrices of their experts (`partita.grouped_matmul`)",
        )
        .found(format!("modules `{}`", modules.join("`, `")))
        .help("experts with a capacity exchange tokens without a line"))
}
