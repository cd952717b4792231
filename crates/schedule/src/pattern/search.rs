//! Subgraph matching along dataflow, by backtracking.

use super::compile::alike;
use super::{Broadcast, Form, Match, Matcher, Operand, Pattern, Source, number_behind, views};
use crate::modules::{Modules, is_inside};
use partita_ir::ops::DotGeneral;
use partita_ir::{Graph, Literal, Node, NodeId, Op, Operation, Phase, Role, TensorType, ValueId};

impl Pattern {
    /// Every match among the forward nodes in `scope`, in graph order of the first output. Matches
    /// share no nodes except skipped constants and broadcasts.
    pub fn find(&self, graph: &Graph, scope: &dyn Fn(NodeId) -> bool) -> Vec<Match> {
        let eligible: Vec<bool> =
            graph.node_ids().map(|id| graph.node(id).phase == Phase::Forward && scope(id)).collect();
        let targets: Vec<Targets> =
            self.forms.iter().map(|form| Targets::of(graph, form, &eligible)).collect();
        let mut anchors: Vec<(NodeId, usize, usize)> = Vec::new();
        for (number, (form, targets)) in self.forms.iter().zip(&targets).enumerate() {
            let Source::Result(first, _) = form.outputs[0] else { continue };
            let units = targets.units[first].iter().enumerate();
            anchors
                .extend(units.map(|(place, unit)| (*unit.nodes.last().expect("not empty"), number, place)));
        }
        anchors.sort();
        let mut taken = vec![false; graph.nodes.len()];
        let mut matches = Vec::new();
        for (_, number, place) in anchors {
            let (form, targets) = (&self.forms[number], &targets[number]);
            let Source::Result(first, _) = form.outputs[0] else { continue };
            let search = Search { graph, form, targets, taken: &taken };
            let start = State {
                inputs: vec![None; self.inputs.len()],
                places: vec![None; form.nodes.len()],
                ..State::default()
            };
            let Some(state) = search.run(search.place(&start, &[], first, place)) else { continue };
            let own = search.own_nodes(&state);
            matches.push(search.result(&state, own.clone(), &self.inputs));
            own.iter().for_each(|id| taken[id.index()] = true);
        }
        matches
    }
}

/// A candidate for a node of a pattern: a node of the graph, or a whole module.
struct Unit {
    nodes: Vec<NodeId>,
    operands: Vec<ValueId>,
    results: Vec<ValueId>,
    /// Whether the two operands may be swapped.
    commutes: bool,
}

impl Unit {
    fn of_node(id: NodeId, node: &Node) -> Unit {
        let commutes = matches!(&node.op, Op::Binary(binary) if binary.kind.commutes());
        let (operands, results) = (node.operands.clone(), node.results.clone());
        Unit { nodes: vec![id], operands, results, commutes }
    }

    /// A module as a unit: its inputs that were computed or fed outside (parameters and constants
    /// excluded) in order of first use, and its outputs that the forward pass outside reads.
    fn of_module(graph: &Graph, modules: &Modules, path: &str) -> Unit {
        let nodes = modules.forward_nodes(path);
        let inside = |id: NodeId| is_inside(&graph.node(id).path, path);
        let mut operands: Vec<ValueId> = Vec::new();
        for &operand in nodes.iter().flat_map(|&id| &graph.node(id).operands) {
            let own = graph.value(operand).definition.is_some_and(|(id, _)| inside(id));
            if !own && !operands.contains(&operand) && !is_parameter(graph, operand) {
                operands.push(operand);
            }
        }
        let leaves = |value: &ValueId| {
            let outside = |id: NodeId| graph.node(id).phase == Phase::Forward && !inside(id);
            modules.uses(*value).iter().any(|&(id, _)| outside(id)) || graph.outputs.contains(value)
        };
        let results = nodes.iter().flat_map(|&id| graph.node(id).results.iter().copied()).filter(leaves);
        Unit { results: results.collect(), nodes, operands, commutes: false }
    }
}

/// Whether a value is a parameter or a constant, perhaps converted or broadcast.
fn is_parameter(graph: &Graph, value: ValueId) -> bool {
    match graph.value(value).definition {
        None => graph.value(value).role == Role::Param,
        Some((id, _)) => {
            let Node { op, operands, .. } = graph.node(id);
            let is_view = matches!(op, Op::Convert(_) | Op::BroadcastInDim(_));
            matches!(op, Op::Constant(_)) || (is_view && is_parameter(graph, operands[0]))
        }
    }
}

/// For each node of a form, all its candidates, in graph order.
struct Targets {
    units: Vec<Vec<Unit>>,
}

impl Targets {
    fn of(graph: &Graph, form: &Form, eligible: &[bool]) -> Targets {
        let mut modules = None;
        let units = form.nodes.iter().map(|node| {
            let mut units: Vec<Unit> = match &node.matcher {
                Matcher::Module(regex) => {
                    let modules = modules.get_or_insert_with(|| Modules::of(graph));
                    let paths = modules.paths.iter().filter(|path| regex.is_match(path));
                    paths.map(|path| Unit::of_module(graph, modules, path)).collect()
                }
                matcher => {
                    let fitting = graph.node_ids().filter(|&id| fits(graph, matcher, graph.node(id)));
                    fitting.map(|id| Unit::of_node(id, graph.node(id))).collect()
                }
            };
            units.retain(|unit| {
                let whole = !unit.nodes.is_empty() && unit.nodes.iter().all(|id| eligible[id.index()]);
                whole && unit.operands.len() == node.operands.len()
            });
            units
        });
        Targets { units: units.collect() }
    }
}

fn fits(graph: &Graph, matcher: &Matcher, node: &Node) -> bool {
    match matcher {
        Matcher::Named(name) => node.op.name() == name,
        Matcher::Like { op, operands } => {
            operands.len() == node.operands.len() && alike(op, operands, &node.op, &graph.operand_types(node))
        }
        Matcher::Linear => {
            let Op::DotGeneral(DotGeneral { lhs_batch, lhs_contracting, rhs_contracting, .. }) = &node.op
            else {
                return false;
            };
            let last = graph.ty(node.operands[0]).rank().checked_sub(1);
            lhs_batch.is_empty()
                && lhs_contracting.len() == 1
                && lhs_contracting.first() == last.as_ref()
                && rhs_contracting[..] == [1]
        }
        Matcher::Module(_) => false,
    }
}

/// The decisions so far.
#[derive(Clone, Default)]
struct State {
    inputs: Vec<Option<ValueId>>,
    /// The chosen candidate of each node of the form.
    places: Vec<Option<usize>>,
    /// Nodes that were skipped.
    through: Vec<NodeId>,
    /// How inputs were read: input, shape, position of each source dimension.
    views: Vec<(usize, Vec<usize>, Vec<usize>)>,
}

/// An operand of the pattern and the value it must match.
type Goal<'a> = (&'a Operand, ValueId);

/// The decisions so far and the goals that remain.
type Branch<'a> = (State, Vec<Goal<'a>>);

struct Search<'a> {
    graph: &'a Graph,
    form: &'a Form,
    targets: &'a Targets,
    taken: &'a [bool],
}

impl<'a> Search<'a> {
    fn unit(&self, state: &State, node: usize) -> Option<&'a Unit> {
        state.places[node].map(|place| &self.targets.units[node][place])
    }

    /// The graph nodes matched by the pattern's own nodes.
    fn own_nodes(&self, state: &State) -> Vec<NodeId> {
        let units = (0..self.form.nodes.len()).filter_map(|node| self.unit(state, node));
        units.flat_map(|unit| unit.nodes.iter().copied()).collect()
    }

    /// The final state of the first branch that succeeds.
    fn run(&self, mut branches: Vec<Branch<'a>>) -> Option<State> {
        branches.reverse();
        while let Some((state, mut goals)) = branches.pop() {
            let next = match goals.pop() {
                Some((operand, value)) => self.meet(state, goals, operand, value),
                None => match self.open_node(&state) {
                    Some((node, near)) => self.spread(state, node, near),
                    None if self.is_whole(&state) => return Some(state),
                    None => Vec::new(),
                },
            };
            branches.extend(next.into_iter().rev());
        }
        None
    }

    /// Matches `node` with its candidate `place`: one branch for each order of operands.
    fn place(&self, state: &State, goals: &[Goal<'a>], node: usize, place: usize) -> Vec<Branch<'a>> {
        let unit = &self.targets.units[node][place];
        let own = self.own_nodes(state);
        if unit.nodes.iter().any(|id| self.taken[id.index()] || own.contains(id)) {
            return Vec::new();
        }
        let mut orders = vec![unit.operands.clone()];
        if let (true, &[a, b]) = (unit.commutes && unit.operands[0] != unit.operands[1], &unit.operands[..]) {
            orders.push(vec![b, a]);
        }
        let operands = &self.form.nodes[node].operands;
        let branch = |order: Vec<ValueId>| {
            let mut state = state.clone();
            state.places[node] = Some(place);
            (state, goals.iter().copied().chain(operands.iter().zip(order)).collect())
        };
        orders.into_iter().map(branch).collect()
    }

    /// The ways in which an operand can match a value.
    fn meet(
        &self,
        mut state: State,
        goals: Vec<Goal<'a>>,
        operand: &Operand,
        value: ValueId,
    ) -> Vec<Branch<'a>> {
        match operand.source {
            Source::Number(number) => match number_behind(self.graph, value) {
                Some((literal, nodes)) if is_number(literal, number) => {
                    state.through.extend(nodes);
                    vec![(state, goals)]
                }
                _ => Vec::new(),
            },
            Source::Input(input) => match self.bind(&mut state, input, &operand.broadcast, value) {
                true => vec![(state, goals)],
                false => Vec::new(),
            },
            Source::Result(node, result) => {
                let rank = self.graph.ty(value).rank();
                let views = views(self.graph, value).into_iter();
                let views = views.filter(|view| said(&operand.broadcast, rank, &view.dims));
                let branches = views.flat_map(|view| {
                    let is_it = |unit: &Unit| unit.results.get(result) == Some(&view.source);
                    let mut state = state.clone();
                    state.through.extend(&view.through);
                    match self.unit(&state, node) {
                        Some(unit) if is_it(unit) => vec![(state, goals.clone())],
                        Some(_) => Vec::new(),
                        None => match self.targets.units[node].iter().position(is_it) {
                            Some(place) => self.place(&state, &goals, node, place),
                            None => Vec::new(),
                        },
                    }
                });
                branches.collect()
            }
        }
    }

    /// Matches an input with a value, or with the source of its broadcast.
    fn bind(&self, state: &mut State, input: usize, broadcast: &Broadcast, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        let mut views = views(self.graph, value);
        let view = match broadcast {
            Broadcast::None => views.swap_remove(0),
            _ => views.pop().expect("of itself at least"),
        };
        if !said(broadcast, ty.rank(), &view.dims) {
            return false;
        }
        // One tensor broadcast in two ways over one shape counts as two tensors.
        let same =
            |(other, shape, _): &&(usize, Vec<usize>, Vec<usize>)| (*other, shape) == (input, &ty.shape);
        if state.views.iter().find(same).is_some_and(|(_, _, dims)| *dims != view.dims) {
            return false;
        }
        if *state.inputs[input].get_or_insert(view.source) != view.source {
            return false;
        }
        state.views.push((input, ty.shape.clone(), view.dims));
        state.through.extend(view.through);
        true
    }

    /// An undecided node: preferably one that reads a known value, and that value.
    fn open_node(&self, state: &State) -> Option<(usize, Option<ValueId>)> {
        let open = || (0..self.form.nodes.len()).filter(|&node| state.places[node].is_none());
        let beside = open().find_map(|node| {
            let operands = &self.form.nodes[node].operands;
            operands
                .iter()
                .find_map(|operand| self.stands_for(state, operand.source))
                .map(|v| (node, Some(v)))
        });
        beside.or_else(|| open().next_back().map(|node| (node, None)))
    }

    /// One branch for each candidate of `node`, or for those that read `near`.
    fn spread(&self, state: State, node: usize, near: Option<ValueId>) -> Vec<Branch<'a>> {
        let reads = |unit: &Unit, value: ValueId| {
            unit.operands.iter().any(|&v| views(self.graph, v).iter().any(|view| view.source == value))
        };
        let places = self.targets.units[node].iter().enumerate();
        let places = places.filter(|(_, unit)| near.is_none_or(|value| reads(unit, value)));
        places.flat_map(|(place, _)| self.place(&state, &[], node, place)).collect()
    }

    fn stands_for(&self, state: &State, source: Source) -> Option<ValueId> {
        match source {
            Source::Input(input) => state.inputs[input],
            Source::Result(node, result) => self.unit(state, node)?.results.get(result).copied(),
            Source::Number(_) => None,
        }
    }

    /// Whether every output is matched, and every input is matched with a value that the match does
    /// not compute.
    fn is_whole(&self, state: &State) -> bool {
        let own = self.own_nodes(state);
        let computed = |v: &ValueId| self.graph.value(*v).definition.is_some_and(|(id, _)| own.contains(&id));
        let mut outputs = self.form.outputs.iter().map(|&output| self.stands_for(state, output));
        outputs.all(|v| v.is_some()) && !state.inputs.iter().flatten().any(computed)
    }

    fn result(&self, state: &State, own: Vec<NodeId>, names: &[String]) -> Match {
        let inputs: Vec<ValueId> = state.inputs.iter().map(|v| v.expect("every input is used")).collect();
        // A skipped node belongs to the match if the match reads it, but not if it only feeds an
        // input.
        let mut nodes = own;
        let mut next = 0;
        while let Some(&id) = nodes.get(next) {
            for &operand in self.graph.node(id).operands.iter().filter(|v| !inputs.contains(v)) {
                let definition = self.graph.value(operand).definition.map(|(id, _)| id);
                nodes.extend(definition.filter(|id| state.through.contains(id) && !nodes.contains(id)));
            }
            next += 1;
        }
        nodes.sort();
        let output = |&source: &Source| self.stands_for(state, source).expect("the match is whole");
        let outputs = self.form.outputs.iter().map(output);
        Match { nodes, inputs: names.iter().cloned().zip(inputs).collect(), outputs: outputs.collect() }
    }
}

/// Whether a constant equals this number after rounding to its element type.
fn is_number(literal: &Literal, number: f64) -> bool {
    Literal::splat(&TensorType::scalar(literal.ty.dtype), number).to_f64()[0] == literal.to_f64()[0]
}

/// Whether a tensor of this rank reads its source as the pattern requires; `dims` are the positions
/// of the source dimensions.
fn said(broadcast: &Broadcast, rank: usize, dims: &[usize]) -> bool {
    match broadcast {
        Broadcast::Dims(wanted) => dims.iter().map(|d| rank - d).eq(wanted.iter().copied()),
        Broadcast::Unsaid | Broadcast::None => true,
    }
}
