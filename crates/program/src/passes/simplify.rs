//! Graph simplification. Rewrites the graphs of all classes in lockstep, so that they keep one
//! structure: the same nodes with the same operands. Only shapes and attributes may differ between
//! classes.

use crate::collective::meetings;
use crate::passes::describe;
use crate::passes::fuse::uniform;
use crate::ranks::Classes;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{BinaryKind, BroadcastInDim, Constant, RankConstant, Reducer, Update};
use partita_ir::traits::{CollectiveRef, ConstantOp, Elementwise, Traits, ViewMap};
use partita_ir::{Graph, Literal, Node, NodeId, Op, Operation, Role, Target, TensorType, Value, ValueId};
use partita_mesh::Combiner;

/// Checks that the graphs of all classes have one structure. E400 names the first difference.
pub(crate) fn check_structure(graphs: &[Graph]) -> Result<()> {
    let Some(first) = graphs.first() else {
        return Err(Diagnostic::new("E400", "there is no rank to lower a program for"));
    };
    for (number, graph) in graphs.iter().enumerate() {
        let differ = |what: &str, expected: String, found: String| {
            Err(Diagnostic::new(
                "E400",
                format!("the local graphs of rank classes 0 and {number} differ in {what}"),
            )
            .expected(expected)
            .found(found)
            .help("ranks may differ in shapes and attributes, not in structure"))
        };
        let sizes = |g: &Graph| (g.values.len(), g.nodes.len());
        if sizes(first) != sizes(graph) {
            return differ("size", format!("{:?}", sizes(first)), format!("{:?}", sizes(graph)));
        }
        if (&first.inputs, &first.outputs, &first.aliases) != (&graph.inputs, &graph.outputs, &graph.aliases)
        {
            let counts = |g: &Graph| format!("{} inputs, {} outputs", g.inputs.len(), g.outputs.len());
            return differ("their inputs, outputs or aliases", counts(first), counts(graph));
        }
        for (a, b) in first.nodes.iter().zip(&graph.nodes) {
            let place = || match a.path.as_str() {
                "" => "the outermost module".to_string(),
                path => format!("`{path}`"),
            };
            let (name, other) = (a.op.short_name(), b.op.short_name());
            if name != other || a.operands != b.operands || a.results != b.results {
                return differ(&place(), name.into(), other.into());
            }
            if !first.traits(a).is_like(graph.traits(b)) {
                return differ(&place(), "one element width".into(), "another".into());
            }
        }
        for &(input, output) in &graph.aliases {
            let (old, new) = (graph.ty(graph.inputs[input]), graph.ty(graph.outputs[output]));
            if old != new {
                return differ(
                    &format!("the type of `{}` and what replaces it", describe(graph, graph.inputs[input])),
                    old.to_string(),
                    new.to_string(),
                );
            }
        }
    }
    Ok(())
}

/// Inlines composites that the device has no kernel for on some rank, until none is left.
pub(crate) fn decompose(graphs: Vec<Graph>, target: &dyn Target) -> Result<Vec<Graph>> {
    let mut graphs = graphs;
    loop {
        let has_none = |graph: &Graph, node: NodeId| matches!(&graph.node(node).op, Op::Composite(composite) if !target.has_kernel(composite));
        let doomed: Vec<bool> =
            graphs[0].node_ids().map(|node| graphs.iter().any(|graph| has_none(graph, node))).collect();
        if !doomed.contains(&true) {
            return Ok(graphs);
        }
        graphs = graphs.iter().map(|graph| inline_marked(graph, &doomed)).collect();
        check_structure(&graphs)?;
    }
}

fn inline_marked(graph: &Graph, doomed: &[bool]) -> Graph {
    let mut copy = Copier::new(graph);
    for (node, &doomed) in graph.nodes.iter().zip(doomed) {
        let Some(composite) = node.op.composite().filter(|_| doomed) else {
            copy.node(graph, node, node.op.clone());
            continue;
        };
        let body = &composite.definition.decomposition;
        let mut inner = vec![None; body.values.len()];
        for (input, operand) in body.inputs.iter().zip(&node.operands) {
            inner[input.index()] = copy.map[operand.index()];
        }
        for part in &body.nodes {
            let here = node.replaced(part.op.clone(), part.operands.clone(), part.results.clone());
            let results = copy.push(body, &here, part.op.clone(), &inner);
            for (old, new) in part.results.iter().zip(results) {
                inner[old.index()] = Some(new);
            }
        }
        for (result, output) in node.results.iter().zip(&body.outputs) {
            copy.map[result.index()] = inner[output.index()];
        }
    }
    copy.finish(graph)
}

/// Replaces the sum of a value and a scatter into zeros by a scatter into the value, which may run
/// in place. The gradient of an embedding table with other readers, such as a tied LM head, has
/// this form.
pub(crate) fn scatter_into_sums(mut graphs: Vec<Graph>) -> Vec<Graph> {
    let uses = graphs[0].uses();
    let is_output = graphs[0].is_output();
    let mut rewritten: Vec<(NodeId, usize)> = Vec::new();
    for id in graphs[0].node_ids() {
        // `other` is the position of the operand that is no scatter.
        let fits = |other: usize, graph: &Graph| {
            let node = graph.node(id);
            let scattered = node.operands[1 - other];
            let Some((scatter, _)) = graph.value(scattered).definition else { return false };
            let scatter = graph.node(scatter);
            is_sum(&node.op)
                && adds(&scatter.op)
                && scatter.microbatch == node.microbatch
                && graph.ty(node.results[0]) == graph.ty(scattered)
                && is_zeros(graph, scatter.operands[0])
        };
        let node = graphs[0].node(id);
        if node.operands.len() != 2 {
            continue;
        }
        let alone = |other: usize| {
            let scattered = node.operands[1 - other];
            uses[scattered.index()].len() == 1 && !is_output[scattered.index()]
        };
        let other = [0, 1].into_iter().find(|&o| alone(o) && graphs.iter().all(|graph| fits(o, graph)));
        rewritten.extend(other.map(|other| (id, other)));
    }
    for graph in &mut graphs {
        for &(id, other) in &rewritten {
            let operands = graph.node(id).operands.clone();
            let scatter = graph.value(operands[1 - other]).definition.expect("found above").0;
            let scatter = graph.node(scatter).clone();
            let node = &mut graph.nodes[id.index()];
            node.op = scatter.op;
            node.operands = [&operands[other..=other], &scatter.operands[1..]].concat();
        }
    }
    graphs
}

pub(crate) fn is_sum(op: &Op) -> bool {
    matches!(op, Op::Binary(binary) if binary.kind == BinaryKind::Add)
}

/// Whether the op is a scatter that adds its updates.
fn adds(op: &Op) -> bool {
    let Op::Scatter(scatter) = op else { return false };
    matches!(scatter.update, Update::Combine(Reducer::Combiner(Combiner::Sum)))
}

/// Whether a value is zero throughout. This includes a select between zeros, by which one rank
/// keeps a value that the other ranks replace by zeros.
fn is_zeros(graph: &Graph, value: ValueId) -> bool {
    let are_zeros = |literal: &Literal| match literal.is_splat() && !literal.data.is_empty() {
        true => literal.window(&vec![0; literal.ty.rank()], &vec![1; literal.ty.rank()]).to_f64() == [0.0],
        false => literal.to_f64().iter().all(|&value| value == 0.0),
    };
    let is_zero = |constant: ConstantOp| match constant {
        ConstantOp::OfAll(constant) => are_zeros(&constant.value),
        ConstantOp::ByRank(constant) => are_zeros(&constant.values),
    };
    if let Some((id, _)) = graph.value(value).definition
        && let Node { op: Op::Select(_), operands, .. } = graph.node(id)
    {
        return operands[1..].iter().all(|&branch| is_zeros(graph, branch));
    }
    uniform(graph, value).is_some_and(is_zero)
}

/// Removes what needs no work at run time: dead nodes, identities, collectives of single ranks,
/// repeated constants and repeated elementwise scalars. Constants with one value become broadcast
/// scalars, and `partition_id` becomes a constant. E400 for ops that an earlier stage should have
/// rewritten.
pub(crate) fn simplify(graphs: &[Graph], classes: &Classes) -> Result<Vec<Graph>> {
    let first = &graphs[0];
    let mut live = vec![false; first.values.len()];
    for output in &first.outputs {
        live[output.index()] = true;
    }
    for node in first.nodes.iter().rev() {
        if node.results.iter().any(|r| live[r.index()]) {
            node.operands.iter().for_each(|o| live[o.index()] = true);
        }
    }
    let mut copies: Vec<Copier> = graphs.iter().map(Copier::new).collect();
    let mut seen = Seen::default();
    for id in first.node_ids() {
        let node = first.node(id);
        if !node.results.iter().any(|r| live[r.index()]) {
            continue;
        }
        let nodes: Vec<&Node> = graphs.iter().map(|graph| graph.node(id)).collect();
        if is_identity(graphs, classes, &nodes)? {
            for copy in &mut copies {
                for (operand, result) in node.operands.iter().zip(&node.results) {
                    copy.map[result.index()] = copy.map[operand.index()];
                }
            }
            continue;
        }
        let traits = graphs[0].traits(node);
        let splats: Option<Vec<Op>> = graphs.iter().map(|graph| splat(graph, graph.node(id))).collect();
        if let Some(scalars) = splats {
            let types: Vec<TensorType> =
                graphs.iter().map(|g| TensorType::scalar(g.ty(node.results[0]).dtype)).collect();
            let scalar = seen.push(&mut copies, &nodes, scalars, &[], types);
            let shapes: Vec<Op> = graphs
                .iter()
                .map(|g| BroadcastInDim { shape: g.ty(node.results[0]).shape.clone(), dims: vec![] }.into())
                .collect();
            let types = graphs.iter().map(|g| g.ty(node.results[0]).clone()).collect();
            let full = seen.push(&mut copies, &nodes, shapes, &[scalar], types);
            copies.iter_mut().for_each(|copy| copy.map[node.results[0].index()] = Some(full));
            continue;
        }
        let ops: Vec<Op> =
            nodes.iter().zip(&classes.ranks).map(|(node, ranks)| with_ranks(&node.op, ranks)).collect();
        // The updates of all parameters compute the same learning rates and bias corrections.
        let is_scalar = |graph: &Graph| {
            let result = graph.value(node.results[0]);
            result.ty.rank() == 0 && result.name.is_empty()
        };
        let is_repeated = traits.is_elementwise() && graphs.iter().all(is_scalar);
        let is_shared = match traits {
            Traits::Constant(_) | Traits::Iota { .. } | Traits::View(ViewMap::Broadcast { .. }) => true,
            Traits::Elementwise(_) => is_repeated,
            // The rank's number has become a constant.
            Traits::Refused if matches!(node.op, Op::PartitionId(_)) => true,
            Traits::Refused => {
                return Err(Diagnostic::new("E400", format!("{} cannot be lowered", node.op.short_name()))
                    .at(node.path.clone())
                    .help("partition the graph first"));
            }
            Traits::View(_) | Traits::Collective(_) | Traits::Opaque => false,
        };
        if is_shared {
            let operands: Vec<ValueId> = node
                .operands
                .iter()
                .map(|o| copies[0].map[o.index()].expect("nodes stand in execution order"))
                .collect();
            let types = graphs.iter().map(|g| g.ty(node.results[0]).clone()).collect();
            let value = seen.push(&mut copies, &nodes, ops, &operands, types);
            copies.iter_mut().for_each(|copy| copy.map[node.results[0].index()] = Some(value));
        } else {
            for (((copy, graph), node), op) in copies.iter_mut().zip(graphs).zip(&nodes).zip(ops) {
                copy.node(graph, node, op);
            }
        }
    }
    Ok(copies.into_iter().zip(graphs).map(|(copy, graph)| copy.finish(graph)).collect())
}

/// Replaces `partition_id` by a constant with one value per rank of the class.
fn with_ranks(op: &Op, ranks: &[usize]) -> Op {
    if !matches!(op, Op::PartitionId(_)) {
        return op.clone();
    }
    if let &[rank] = ranks {
        return op.on_rank(rank);
    }
    let number = |&rank: &usize| Literal::scalar(DType::U32, rank as f64);
    RankConstant::new(ranks, &ranks.iter().map(number).collect::<Vec<_>>()).into()
}

/// The scalar of a constant that fills a larger shape with one number, of one rank or of each rank
/// of a class.
fn splat(graph: &Graph, node: &Node) -> Option<Op> {
    let scalar = |value: &Literal| -> Option<Literal> {
        if value.ty.rank() == 0 || !value.is_splat() {
            return None;
        }
        let ty = TensorType::scalar(value.ty.dtype);
        if value.ty.element_count() == 0 {
            return Some(Literal::zeros(&ty));
        }
        Some(Literal { data: value.data.pick(std::iter::once(0)), ty })
    };
    let Traits::Constant(constant) = graph.traits(node) else { return None };
    match constant {
        ConstantOp::OfAll(constant) => Some(Constant { value: scalar(&constant.value)? }.into()),
        ConstantOp::ByRank(constant) => {
            let scalars: Vec<Literal> = constant.each().map(|value| scalar(&value)).collect::<Option<_>>()?;
            Some(RankConstant::new(&constant.ranks, &scalars).into())
        }
    }
}

/// Whether the node returns its operands unchanged on every rank.
fn is_identity(graphs: &[Graph], classes: &Classes, nodes: &[&Node]) -> Result<bool> {
    let same_type = |graph: &Graph, node: &Node| {
        node.operands.len() == node.results.len()
            && node.operands.iter().zip(&node.results).all(|(&o, &r)| graph.ty(o) == graph.ty(r))
    };
    if !graphs.iter().zip(nodes).all(|(graph, node)| same_type(graph, node)) {
        return Ok(false);
    }
    if let Some(op) = graphs[0].traits(nodes[0]).collective() {
        let ranks = classes.rank_count();
        let alone = meetings(op, ranks)?.iter().all(|group| group.len() == 1);
        let gives_itself = |op: CollectiveRef| match op {
            CollectiveRef::CollectivePermute(permute) => (0..ranks).all(|r| permute.pairs.contains(&(r, r))),
            CollectiveRef::CollectiveBroadcast(op) => {
                op.groups.iter().map(|g| g.len()).sum::<usize>() == ranks
            }
            CollectiveRef::AllReduce(_)
            | CollectiveRef::AllGather(_)
            | CollectiveRef::ReduceScatter(_)
            | CollectiveRef::AllToAll(_) => true,
        };
        let mut all = graphs.iter().zip(nodes).filter_map(|(graph, node)| graph.traits(node).collective());
        return Ok(alone && all.all(gives_itself));
    }
    // Here the types of operands and results are equal.
    let is_identity = |(graph, node): (&Graph, &&Node)| match graph.traits(node) {
        Traits::View(ViewMap::Reshape) | Traits::Elementwise(Elementwise::Convert) => true,
        // A barrier of several values is kept: it makes each result wait for all operands.
        Traits::View(ViewMap::Identity) => node.operands.len() == 1,
        Traits::View(ViewMap::Broadcast { dims }) => dims.is_sorted(),
        Traits::View(ViewMap::Transpose { permutation }) => permutation.is_sorted(),
        Traits::View(ViewMap::Slice { .. } | ViewMap::Reverse { .. } | ViewMap::Window { .. })
        | Traits::Elementwise(_)
        | Traits::Constant(_)
        | Traits::Iota { .. }
        | Traits::Collective(_)
        | Traits::Opaque
        | Traits::Refused => false,
    };
    Ok(graphs.iter().zip(nodes).all(is_identity))
}

/// Nodes without effects that were already copied, for reuse.
#[derive(Default)]
struct Seen {
    found: IndexMap<(String, Vec<ValueId>, TensorType), Vec<ValueId>>,
}

impl Seen {
    /// Appends a node with one result on every rank, or reuses an equal one.
    fn push(
        &mut self,
        copies: &mut [Copier],
        nodes: &[&Node],
        ops: Vec<Op>,
        operands: &[ValueId],
        types: Vec<TensorType>,
    ) -> ValueId {
        let candidates = self
            .found
            .entry((ops[0].short_name().to_string(), operands.to_vec(), types[0].clone()))
            .or_default();
        for &candidate in candidates.iter() {
            let equal = |(copy, op): (&Copier, &Op)| {
                let (definition, _) = copy.graph.value(candidate).definition.expect("pushed as a node");
                bit_equal(&copy.graph.node(definition).op, op)
            };
            if copies.iter().zip(&ops).all(equal) {
                return candidate;
            }
        }
        let mut result = None;
        for (((copy, node), op), ty) in copies.iter_mut().zip(nodes).zip(ops).zip(types) {
            let value = Value {
                ty,
                definition: None,
                name: String::new(),
                role: Role::Activation,
                annotation: None,
                group: None,
            };
            result = Some(copy.append(node, op, operands.to_vec(), vec![value])[0]);
        }
        let result = result.expect("at least one rank");
        candidates.push(result);
        result
    }
}

/// Equality that distinguishes -0 from 0 and NaNs from each other.
fn bit_equal(a: &Op, b: &Op) -> bool {
    let same = |a: &Literal, b: &Literal| a.ty == b.ty && a.to_bytes() == b.to_bytes();
    if let (Op::Constant(a), Op::Constant(b)) = (a, b) {
        same(&a.value, &b.value)
    } else if let (Op::RankConstant(a), Op::RankConstant(b)) = (a, b) {
        a.ranks == b.ranks && same(&a.values, &b.values)
    } else {
        a == b
    }
}

/// Rebuilds a graph node by node.
pub(crate) struct Copier {
    pub graph: Graph,
    /// The value of the copy for each value of the source.
    pub map: Vec<Option<ValueId>>,
}

impl Copier {
    /// A copy with the inputs of `source` and no node yet.
    pub fn new(source: &Graph) -> Copier {
        let mut graph = source.emptied();
        let mut map = vec![None; source.values.len()];
        for &input in &source.inputs {
            let id = ValueId::new(graph.values.len());
            graph.values.push(source.value(input).clone());
            graph.inputs.push(id);
            map[input.index()] = Some(id);
        }
        Copier { graph, map }
    }

    /// Copies a node of the source with another op.
    pub fn node(&mut self, source: &Graph, node: &Node, op: Op) {
        let results = self.append_copy(source, node, op);
        for (old, new) in node.results.iter().zip(results) {
            self.map[old.index()] = Some(new);
        }
    }

    /// As [`Copier::node`], but leaves the mapping of the source's results unchanged.
    pub fn append_copy(&mut self, source: &Graph, node: &Node, op: Op) -> Vec<ValueId> {
        let map = std::mem::take(&mut self.map);
        let results = self.push(source, node, op, &map);
        self.map = map;
        results
    }

    /// Appends a node of `source`, with its operands renamed by `map`.
    fn push(&mut self, source: &Graph, node: &Node, op: Op, map: &[Option<ValueId>]) -> Vec<ValueId> {
        let operands =
            node.operands.iter().map(|o| map[o.index()].expect("nodes stand in execution order")).collect();
        let values = node.results.iter().map(|&r| source.value(r).clone()).collect();
        self.append(node, op, operands, values)
    }

    /// Appends a node derived from another one; operands and values are those of the copy.
    pub fn append(
        &mut self,
        origin: &Node,
        op: Op,
        operands: Vec<ValueId>,
        values: Vec<Value>,
    ) -> Vec<ValueId> {
        let id = NodeId::new(self.graph.nodes.len());
        let mut results = Vec::new();
        for (number, value) in values.into_iter().enumerate() {
            results.push(ValueId::new(self.graph.values.len()));
            self.graph.values.push(Value { definition: Some((id, number)), ..value });
        }
        self.graph.nodes.push(origin.replaced(op, operands, results.clone()));
        results
    }

    /// Sets the outputs, and the roles in terms of the new values.
    pub fn finish(mut self, source: &Graph) -> Graph {
        let map = self.map;
        self.graph.outputs =
            source.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect();
        for value in &mut self.graph.values {
            value.role = value.role.renamed(|v| map.get(v.index()).copied().flatten());
        }
        self.graph
    }
}
