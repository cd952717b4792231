//! The plan line `attention_auto`: attention of a sharded sequence by a ring, by a ring in zigzag order or by heads,
//! whichever the cost model expects to take less time.

use crate::modules::{Modules, is_inside};
use crate::plan::{Entry, Plan};
use crate::primitive::Primitive;
use crate::structure::is_self_attention;
use crate::style::{Kind, Style};
use crate::ulysses::attention_of;
use partita_base::{Diagnostic, Result};
use partita_cost::{Cluster, Collective, Work};
use partita_ir::composites::attention_window;
use partita_ir::{AttributesExt, Graph, Node};
use partita_mesh::{AxisRole, Mesh};

/// The plan with every line `attention_auto` as the line that it chooses; the origin of the line says what the others would
/// take.
///
/// # Errors
/// E208 for an axis that the mesh does not have, E221 for a pattern that matches nothing, E235 for modules without
/// attention.
pub fn choose_attention(plan: &Plan, graph: &Graph, mesh: &Mesh, cluster: &Cluster) -> Result<Plan> {
    let chosen = |entry: &Entry| match &entry.primitive {
        Primitive::Style(style) if style.kind == Kind::Auto => choose(entry, style, graph, mesh, cluster),
        _ => Ok(entry.clone()),
    };
    Ok(Plan { entries: plan.entries.iter().map(chosen).collect::<Result<_>>()? })
}

fn choose(entry: &Entry, style: &Style, graph: &Graph, mesh: &Mesh, cluster: &Cluster) -> Result<Entry> {
    let modules = Modules::of(graph);
    let named = modules.named(entry.scope(), &entry.describe())?;
    let is_covered = |node: &&Node| named.iter().any(|module| is_inside(&node.path, module));
    let nodes: Vec<&Node> =
        graph.nodes.iter().filter(is_covered).filter(|node| attention_of(node).is_some()).collect();
    if nodes.is_empty() {
        return Err(Diagnostic::new("E235", format!("there is no attention in `{}`", entry.modules))
            .at(entry.describe())
            .expected("modules that apply `partita.attention`")
            .found(format!("modules `{}`", named.join("`, `"))));
    }
    let axis = mesh.find_axis(style.axis_name())?;
    let rings = cluster.rings(mesh, &[axis]);
    let mut totals: Vec<(Style, f64)> = Vec::new();
    for (kind, zigzag) in [(Kind::Ulysses, false), (Kind::Ring, false), (Kind::Ring, true)] {
        let seconds = |node: &Node| {
            let problem = Problem::of(graph, node, mesh, axis.size)?;
            let exchange = |collective: Collective, tensors: f64| {
                collective.seconds(tensors * problem.unit_bytes(), &rings)
            };
            match kind {
                Kind::Ulysses => Some(problem.ulysses_s(cluster, &exchange)),
                _ => problem.ring_s(cluster, zigzag, &exchange),
            }
        };
        let total: Option<f64> = nodes.iter().map(|node| seconds(node)).sum();
        if let Some(total) = total {
            totals.push((Style { kind, zigzag, ..style.clone() }, total));
        }
    }
    // Of equals the first.
    let least = totals.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((best, _)) = least else { unreachable!("Ulysses takes any attention") };
    let told: Vec<String> =
        totals.iter().map(|(style, seconds)| format!("{style} {:.3} ms", 1e3 * seconds)).collect();
    let source = if entry.origin.is_empty() { String::new() } else { format!("{}, ", entry.origin) };
    let origin = format!("{source}`attention_auto` on {} by {}", cluster.name, told.join(", "));
    Ok(Entry { primitive: Primitive::Style(best.clone()), origin, ..entry.clone() })
}

/// One attention, forward and backward, as one rank sees it.
struct Problem {
    /// Bytes of the rank's query tensor, and the ranks that share the sequence.
    query_bytes: f64,
    ranks: usize,
    /// Key heads of a rank, and their number over that of query heads.
    groups: usize,
    shared: f64,
    /// Forward operations of all queries and keys of the ranks.
    work: Work,
    tokens: usize,
    is_causal: bool,
    window: Option<usize>,
    can_ring: bool,
}

/// Operations of the backward pass over those of the forward pass: five products instead of two.
const BACKWARD: f64 = 2.5;

impl Problem {
    fn of(graph: &Graph, node: &Node, mesh: &Mesh, ranks: usize) -> Option<Problem> {
        let composite = attention_of(node)?;
        let [q, k] = [0, 1].map(|at| graph.ty(node.operands[at]));
        let (&[batch, heads, tokens, depth], &[_, groups, keys, _]) = (&q.shape[..], &k.shape[..]) else {
            return None;
        };
        let by_heads = mesh.size_of(AxisRole::Model);
        let rows = batch.div_ceil(mesh.batch_shards()) as f64;
        let own_heads = heads.div_ceil(by_heads) as f64;
        let attributes = &composite.attributes;
        let (is_causal, window) = (attributes.flag("causal"), attention_window(attributes));
        // How many keys a query sees, at most.
        let near = window.map_or(keys, |window| window.saturating_mul(2).min(keys)) as f64;
        let sides = if is_causal { 2.0 } else { 4.0 };
        let flops = sides * rows * own_heads * tokens as f64 * near * depth as f64;
        let query_bytes = rows * own_heads * (tokens * depth * q.dtype.size_bytes()) as f64 / ranks as f64;
        Some(Problem {
            query_bytes,
            ranks,
            groups: groups.div_ceil(by_heads),
            shared: groups as f64 / heads.max(1) as f64,
            work: Work { flops, bytes: 0.0, dtype: q.dtype },
            tokens,
            is_causal,
            window,
            can_ring: is_self_attention(graph, node),
        })
    }

    fn unit_bytes(&self) -> f64 {
        self.query_bytes
    }

    /// Seconds of a share of the operations.
    fn work_s(&self, cluster: &Cluster, share: f64) -> f64 {
        cluster.op_s(&Work { flops: self.work.flops * share, ..self.work })
    }

    /// Four exchanges each way; the rank with the most heads has the most work.
    fn ulysses_s(&self, cluster: &Cluster, exchange: &dyn Fn(Collective, f64) -> f64) -> f64 {
        let share = self.groups.div_ceil(self.ranks) as f64 / self.groups.max(1) as f64;
        let moves_s =
            2.0 * (exchange(Collective::AllToAll, 1.0) + exchange(Collective::AllToAll, self.shared));
        2.0 * moves_s + (1.0 + BACKWARD) * self.work_s(cluster, share)
    }

    /// At each hop, keys travel while the rank computes with those of the hop before. `None` if there is no such ring.
    fn ring_s(
        &self,
        cluster: &Cluster,
        zigzag: bool,
        exchange: &dyn Fn(Collective, f64) -> f64,
    ) -> Option<f64> {
        let ranks = self.ranks;
        if !self.can_ring || (zigzag && !(self.is_causal && self.tokens.is_multiple_of(2 * ranks))) {
            return None;
        }
        let tokens = self.tokens.div_ceil(ranks).max(1);
        let reach = |window: usize| window.saturating_sub(1).div_ceil(tokens).min(ranks - 1);
        let hops = match self.window {
            Some(window) if !zigzag => reach(window),
            _ => ranks - 1,
        };
        // Without zigzag the last rank sees all keys of each hop, under a causal mask twice the mean.
        let is_even = zigzag || !self.is_causal || self.window.is_some();
        let parts = if self.window.is_some() { hops + 1 } else { ranks };
        let share = if is_even { 1.0 } else { 2.0 } / (ranks * parts) as f64;
        let hop_s = exchange(Collective::Permute, 2.0 * self.shared);
        let pass = |work: f64, sent_s: f64| {
            let part_s = work * self.work_s(cluster, share);
            part_s + hops as f64 * part_s.max(sent_s)
        };
        let mut total_s = pass(1.0, hop_s) + pass(BACKWARD, 2.0 * hop_s);
        if hops > 0 {
            // The gradients go home.
            total_s += hop_s;
        }
        if zigzag {
            let moved = |tensors: f64| 2.0 * exchange(Collective::Permute, tensors / 2.0);
            let keys = 2.0 * self.shared;
            total_s += moved(1.0 + keys) + moved(1.0) + moved(2.0 + keys) + moved(1.0 + keys);
        }
        Some(total_s)
    }
}
