//! From the program of one rank to the program of all: what a data-parallel trace with collectives means.
//!
//! A trace of one of `n` ranks sees the rows of its own batch and calls collectives of its group. The program of all
//! ranks sees the rows of all, rank after rank. A value that differs from rank to rank gets a leading dimension of extent
//! `n` (as with `jax.vmap` over a named axis), and a collective becomes what it does along that dimension: an all-reduce a
//! reduction, an all-gather a reshape, a broadcast a slice, an all-to-all a transpose. The result has no collective of its
//! own. It trains on any mesh, and where an axis of `n` ranks shards the batch, partitioning derives the collectives of
//! the trace again. Other axes take annotations as in every model: a trace with data parallelism takes tensor parallelism.

use super::schema::{Argument, Graph as Exported, Int, Node as Call};
use crate::limits::exceeded;
use crate::{ImportOptions, Limits};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::composite::Origin;
use partita_ir::ops::{
    BroadcastInDim, Composite, Concatenate, DotGeneral, Pad, Reduce, Reducer, Reshape, Reverse, Slice,
    Transpose,
};
use partita_ir::traits::{CollectiveRef, ViewMap};
use partita_ir::{FactorKind, Graph, GraphBuilder, Node, Op, Operation, Rule, TensorType, Traits, ValueId};
use partita_mesh::Combiner;

/// The number of ranks that a program with collectives is one of; `None` if it has none. E356 if it is unknown, if the
/// option contradicts the program, or if there are several groups.
pub fn of(graph: &Exported, options: &ImportOptions) -> Result<Option<usize>> {
    let mut found = Groups::default();
    found.collect(graph);
    if found.names.is_empty() {
        return match options.ranks {
            None => Ok(None),
            Some(ranks) => Err(Diagnostic::new("E356", "the program has no collectives")
                .expected("a trace of one rank with collectives, for the option `ranks`")
                .found(format!("ranks = {ranks}, and no call of `_c10d_functional`"))),
        };
    }
    if found.names.len() > 1 {
        return Err(Diagnostic::new("E356", "the program has collectives of several groups")
            .expected("collectives of one group: that of data parallelism")
            .found(found.names.join(", "))
            .help("export without the other groups, and state their layouts in a plan"));
    }
    found.sizes.extend(options.ranks);
    match found.sizes[..] {
        [ranks, ref others @ ..] if others.iter().all(|&other| other == ranks) => {
            // Each call lists the ranks.
            let most = options.limits.nodes / found.calls.max(1);
            if (1..=most).contains(&ranks) {
                Ok(Some(ranks))
            } else {
                Err(exceeded("the group of ranks", format!("1 to {most} ranks"), ranks.to_string()))
            }
        }
        [] => Err(Diagnostic::new("E356", "the number of ranks of the group is not in the program")
            .expected("the number of ranks that the trace is one of, as option `ranks`")
            .found("only collectives that do not say it")
            .help("for a trace of 2 ranks: `--set model.ranks=2`")),
        _ => Err(Diagnostic::new("E356", "the program has collectives of groups of different sizes")
            .expected("one number of ranks")
            .found(format!("{:?}", found.sizes))),
    }
}

/// What the collectives of a program say of their groups.
#[derive(Default)]
struct Groups {
    names: Vec<String>,
    sizes: Vec<usize>,
    calls: usize,
}

impl Groups {
    fn collect(&mut self, graph: &Exported) {
        for node in &graph.nodes {
            for input in &node.inputs {
                if let Argument::Graph(nested) = &input.arg {
                    self.collect(nested);
                }
            }
            if node.target.starts_with("torch.ops._c10d_functional") {
                self.of_call(node);
            }
        }
    }

    fn of_call(&mut self, node: &Call) {
        self.calls += 1;
        let argument =
            |name: &str| node.inputs.iter().find(|input| input.name == name).map(|input| &input.arg);
        if let Some(Argument::Text(name)) = argument("group_name")
            && !self.names.contains(name)
        {
            self.names.push(name.clone());
        }
        if let Some(Argument::Int(Int::Value(size))) = argument("group_size") {
            // A negative size is as wrong as one that no mesh has.
            let size = usize::try_from(*size).unwrap_or(usize::MAX);
            if !self.sizes.contains(&size) {
                self.sizes.push(size);
            }
        }
    }
}

/// The program of all `ranks` for the program of one. `fed` are its inputs with rows of their own on each rank; they get the
/// rows of all. E356 for an output that is one value for the model, as the loss is, but differs from rank to rank.
pub fn lift(
    graph: &Graph,
    ranks: usize,
    fed: &mut IndexMap<String, TensorType>,
    is_one_value: &dyn Fn(&str) -> bool,
    limits: &Limits,
) -> Result<Graph> {
    let mut lift = Lift { b: GraphBuilder::new(&graph.name), ranks, limits };
    let mut inputs = Vec::new();
    for &input in &graph.inputs {
        let value = graph.value(input);
        let given = fed.get_mut(&value.name).filter(|ty| ty.rank() > 0);
        inputs.push(match given {
            None => {
                Held { value: lift.b.input(&value.name, value.ty.clone(), value.role.clone()), varies: false }
            }
            Some(ty) => {
                let own = ty.shape.clone();
                ty.shape[0] = own[0].saturating_mul(ranks);
                limits.count(&ty.shape, &format!("`{}`", value.name))?;
                let all = lift.b.input(&value.name, ty.clone(), value.role.clone());
                Held { value: lift.b.reshape(all, &lift.led(&own))?, varies: true }
            }
        });
    }
    let results = lift.body(graph, &inputs, true)?;
    (lift.b.path, lift.b.location) = (String::new(), None);
    let mut outputs = Vec::new();
    for (name, held) in graph.output_names.iter().zip(results) {
        let shape = lift.b.shape(held.value);
        if held.varies && (is_one_value(name) || shape.is_empty()) {
            return Err(Diagnostic::new("E356", format!("the output `{name}` differs from rank to rank"))
                .expected("one value for all ranks")
                .found("a value that no collective combined")
                .help("all-reduce it in `forward`: `all_reduce(value, \"avg\", group)`"));
        }
        let rows = if held.varies && shape.len() > 1 {
            lift.b.reshape(held.value, &merged(&shape))?
        } else {
            held.value
        };
        outputs.push((name.clone(), rows));
    }
    Ok(lift.b.finish_named(outputs))
}

/// A value: the same on all ranks, or with a leading dimension of one entry for each rank.
#[derive(Clone, Copy)]
struct Held {
    value: ValueId,
    varies: bool,
}

struct Lift<'l> {
    b: GraphBuilder,
    ranks: usize,
    limits: &'l Limits,
}

/// `[n, b, ..]` as `[n b, ..]`.
fn merged(shape: &[usize]) -> Vec<usize> {
    [&[shape[0] * shape[1]], &shape[2..]].concat()
}

/// Dimensions behind a new one.
fn behind(dims: &[usize]) -> Vec<usize> {
    dims.iter().map(|dim| dim + 1).collect()
}

/// `first` before the others.
fn after<T: Copy>(first: T, others: &[T]) -> Vec<T> {
    std::iter::once(first).chain(others.iter().copied()).collect()
}

impl Lift<'_> {
    fn led(&self, shape: &[usize]) -> Vec<usize> {
        after(self.ranks, shape)
    }

    fn body(&mut self, graph: &Graph, inputs: &[Held], is_program: bool) -> Result<Vec<Held>> {
        let mut map: Vec<Option<Held>> = vec![None; graph.values.len()];
        for (input, held) in graph.inputs.iter().zip(inputs) {
            map[input.index()] = Some(*held);
        }
        let read = |map: &[Option<Held>], value: &ValueId| {
            map[value.index()].expect("a value is defined before its use")
        };
        for node in &graph.nodes {
            if is_program {
                self.b.enter(node);
            }
            let operands: Vec<Held> = node.operands.iter().map(|value| read(&map, value)).collect();
            let types: Vec<TensorType> = graph.result_types(node).into_iter().cloned().collect();
            for (result, held) in node.results.iter().zip(self.node(graph, node, &operands, types)?) {
                map[result.index()] = Some(held);
            }
            self.check_nodes()?;
        }
        Ok(graph.outputs.iter().map(|value| read(&map, value)).collect())
    }

    /// E358 for a graph that has become too large.
    fn check_nodes(&self) -> Result<()> {
        match self.b.graph().nodes.len() {
            count if count <= self.limits.nodes => Ok(()),
            count => Err(exceeded(
                "the graph",
                format!("at most {} nodes", self.limits.nodes),
                format!("{count} nodes"),
            )),
        }
    }

    /// The value with a leading dimension.
    fn spread(&mut self, held: Held) -> Result<ValueId> {
        if held.varies {
            return Ok(held.value);
        }
        let own = self.b.shape(held.value);
        self.limits.count(&self.led(&own), "a tensor of all ranks")?;
        let dims: Vec<usize> = (1..=own.len()).collect();
        self.b.broadcast_in_dim(held.value, &self.led(&own), &dims)
    }

    fn node(
        &mut self,
        graph: &Graph,
        node: &Node,
        operands: &[Held],
        types: Vec<TensorType>,
    ) -> Result<Vec<Held>> {
        let traits = graph.traits(node);
        if let Some(collective) = traits.collective() {
            return Ok(vec![self.collective(node.op.name(), collective, operands[0])?]);
        }
        if operands.iter().all(|held| !held.varies) {
            let values: Vec<ValueId> = operands.iter().map(|held| held.value).collect();
            let results = self.b.push_typed(node.op.clone(), &values, types);
            return Ok(results.into_iter().map(|value| Held { value, varies: false }).collect());
        }
        for ty in &types {
            self.limits.count(&self.led(&ty.shape), "a tensor of all ranks")?;
        }
        let renumbered = match traits {
            Traits::View(view) => self.view(view, operands, &types)?,
            Traits::Elementwise(_)
            | Traits::Constant(_)
            | Traits::Iota { .. }
            | Traits::Collective(_)
            | Traits::Opaque
            | Traits::Refused => self.renumbered(&node.op, operands)?,
        };
        if let Some(value) = renumbered {
            return Ok(vec![Held { value, varies: true }]);
        }
        let own = graph.operand_types(node);
        let rule = node.op.rule(&own, &graph.result_types(node));
        let whole: Vec<usize> = own.first().map(|ty| ty.shape.clone()).unwrap_or_default();
        let pointwise = Rule::pointwise(&whole, own.len(), types.len());
        let results = if (&rule.operands, &rule.results) == (&pointwise.operands, &pointwise.results)
            && rule.factors == pointwise.factors
        {
            let values: Vec<ValueId> =
                operands.iter().map(|&held| self.spread(held)).collect::<Result<_>>()?;
            let expected: Vec<TensorType> =
                types.iter().map(|ty| ty.with_shape(self.led(&ty.shape))).collect();
            self.applied(&node.op, &values, &expected)?
        } else {
            self.along_rows(node, &rule, operands, &types)?
        };
        let values = match results {
            Some(values) => values,
            None => {
                if let Op::Composite(composite) = &node.op {
                    return self.opened(&composite.definition.decomposition, operands);
                }
                self.one_by_one(node, operands, &types)?
            }
        };
        Ok(values.into_iter().map(|value| Held { value, varies: true }).collect())
    }

    /// A composite as the ops of its decomposition.
    fn opened(&mut self, decomposition: &Graph, operands: &[Held]) -> Result<Vec<Held>> {
        let results = self.body(decomposition, operands, false)?;
        results.into_iter().map(|held| Ok(Held { value: self.spread(held)?, varies: true })).collect()
    }

    /// What a collective does, along the leading dimension.
    fn collective(&mut self, name: &str, op: CollectiveRef, x: Held) -> Result<Held> {
        let shared = |value| Held { value, varies: false };
        let own = self.b.shape(x.value);
        Ok(match op {
            CollectiveRef::AllReduce(op) if x.varies => shared(self.b.reduce(op.combiner, x.value, &[0])?),
            CollectiveRef::AllReduce(op) => match op.combiner {
                Combiner::Sum => shared(self.b.scale(x.value, self.ranks as f64)?),
                Combiner::Max | Combiner::Min | Combiner::And | Combiner::Or => x,
                Combiner::Prod => {
                    let all = self.spread(x)?;
                    shared(self.b.reduce(op.combiner, all, &[0])?)
                }
            },
            CollectiveRef::ReduceScatter(op) => {
                let all = self.spread(x)?;
                let sum = self.b.reduce(op.combiner, all, &[0])?;
                let shape = self.b.shape(sum);
                let parts = [&[self.ranks, shape[0] / self.ranks], &shape[1..]].concat();
                Held { value: self.b.reshape(sum, &parts)?, varies: true }
            }
            CollectiveRef::CollectiveBroadcast(_) if !x.varies => x,
            CollectiveRef::CollectiveBroadcast(op) => {
                let source = op.groups.first().and_then(|group| group.first()).copied().unwrap_or_default();
                shared(self.entry(x.value, source)?)
            }
            // A trace gathers what differs from rank to rank: of a parameter, the file would have one rank's shard only.
            CollectiveRef::AllGather(_) | CollectiveRef::AllToAll(_) if !x.varies => {
                return Err(Diagnostic::new(
                    "E356",
                    format!("`{}` of a value that does not depend on the batch", name),
                )
                .expected("collectives of activations: the file has the parameters of one rank only")
                .found("a parameter or a constant, of which other ranks may have other shards")
                .help("export with whole parameters, and shard them by a plan: `\"*\" = \"fsdp\"`"));
            }
            CollectiveRef::AllGather(_) => shared(self.b.reshape(x.value, &merged(&own))?),
            CollectiveRef::AllToAll(_) => {
                let parts = [&[self.ranks, self.ranks, own[1] / self.ranks], &own[2..]].concat();
                let sent = self.b.reshape(x.value, &parts)?;
                let order: Vec<usize> = [1, 0].into_iter().chain(2..parts.len()).collect();
                let received = self.b.transpose(sent, &order)?;
                Held { value: self.b.reshape(received, &own)?, varies: true }
            }
            CollectiveRef::CollectivePermute(_) => {
                return Err(Diagnostic::new("E356", format!("`{}` has no counterpart for all ranks", name))
                    .expected("all-reduce, all-gather, reduce-scatter, broadcast or all-to-all"));
            }
        })
    }

    /// One rank's entry of a value.
    fn entry(&mut self, value: ValueId, rank: usize) -> Result<ValueId> {
        let shape = self.b.shape(value);
        let slice = self.b.slice_dim(value, 0, rank, rank + 1)?;
        self.b.reshape(slice, &shape[1..])
    }

    /// A view with one more dimension. `None` if it needs none or has another form.
    fn view(&mut self, view: ViewMap, operands: &[Held], types: &[TensorType]) -> Result<Option<ValueId>> {
        let shape = &types[0].shape;
        let op: Op = match view {
            ViewMap::Broadcast { dims } => {
                BroadcastInDim { shape: self.led(shape), dims: after(0, &behind(dims)) }.into()
            }
            ViewMap::Reshape => Reshape { shape: self.led(shape) }.into(),
            ViewMap::Transpose { permutation } => {
                Transpose { permutation: after(0, &behind(permutation)) }.into()
            }
            ViewMap::Slice { start, stride } => {
                // The end of a slice is one behind the last element that it shows.
                let ends = start.iter().zip(stride).zip(shape);
                let limit: Vec<usize> = ends
                    .map(|((start, stride), &n)| start + n.saturating_sub(1) * stride + n.min(1))
                    .collect();
                let (start, stride) = (after(0, start), after(1, stride));
                Slice { start, limit: after(self.ranks, &limit), stride }.into()
            }
            ViewMap::Reverse { dims } => Reverse { dims: behind(dims) }.into(),
            ViewMap::Identity | ViewMap::Window { .. } => return Ok(None),
        };
        self.b.push1(op, &[operands[0].value]).map(Some)
    }

    /// Other ops that number dimensions, with one more before them. `None` for the others.
    fn renumbered(&mut self, op: &Op, operands: &[Held]) -> Result<Option<ValueId>> {
        if let Op::DotGeneral(op) = op {
            return self.product(op, operands).map(Some);
        }
        if let Op::Concatenate(op) = op {
            let pieces: Vec<ValueId> =
                operands.iter().map(|&held| self.spread(held)).collect::<Result<_>>()?;
            return self.b.push1(Concatenate { dim: op.dim + 1 }, &pieces).map(Some);
        }
        if !operands[0].varies || operands[1..].iter().any(|held| held.varies) {
            return Ok(None);
        }
        let values: Vec<ValueId> = operands.iter().map(|held| held.value).collect();
        if let Op::Pad(op) = op {
            let (low, high, interior) = (after(0, &op.low), after(0, &op.high), after(0, &op.interior));
            return self.b.push1(Pad { low, high, interior }, &values).map(Some);
        }
        if let Op::Reduce(op) = op
            && matches!(op.reducer, Reducer::Combiner(_))
        {
            let op = Reduce { dims: behind(&op.dims), reducer: op.reducer.clone() };
            return self.b.push1(op, &values).map(Some);
        }
        Ok(None)
    }

    /// A product: ranks are further rows of the first matrix if the second is shared, else a batch dimension.
    fn product(&mut self, op: &DotGeneral, operands: &[Held]) -> Result<ValueId> {
        let [a, b] = [operands[0], operands[1]];
        if !b.varies && op.lhs_batch.is_empty() {
            let op = DotGeneral { lhs_contracting: behind(&op.lhs_contracting), ..op.clone() };
            return self.b.push1(op, &[a.value, b.value]);
        }
        let [a, b] = [self.spread(a)?, self.spread(b)?];
        let op = DotGeneral {
            lhs_batch: after(0, &behind(&op.lhs_batch)),
            rhs_batch: after(0, &behind(&op.rhs_batch)),
            lhs_contracting: behind(&op.lhs_contracting),
            rhs_contracting: behind(&op.rhs_contracting),
            result_dtype: op.result_dtype,
        };
        self.b.push1(op, &[a, b])
    }

    /// The op over these operands; `None` if it does not give these types.
    fn applied(
        &mut self,
        op: &Op,
        operands: &[ValueId],
        expected: &[TensorType],
    ) -> Result<Option<Vec<ValueId>>> {
        let types: Vec<TensorType> = operands.iter().map(|&value| self.b.ty(value).clone()).collect();
        let mut op = op.clone();
        if let Op::Composite(composite) = &op {
            let Origin::Template(template) = &composite.definition.origin else { return Ok(None) };
            op = Composite::new(template, composite.attributes.clone(), &types)?.into();
        }
        let fits = op.infer(&types.iter().collect::<Vec<_>>()).is_ok_and(|results| results == expected);
        Ok(fits.then(|| self.b.push_typed(op, operands, expected.to_vec())))
    }

    /// An op whose results for some rows need the same rows of its operands only, as its rule says: the rows of all ranks at
    /// once. `None` if it is not one.
    fn along_rows(
        &mut self,
        node: &Node,
        rule: &Rule,
        operands: &[Held],
        types: &[TensorType],
    ) -> Result<Option<Vec<ValueId>>> {
        let rows_of = |dims: &Vec<Vec<usize>>| match dims.first().map(Vec::as_slice) {
            Some(&[factor]) => Some(factor),
            _ => None,
        };
        let Some(rows) = rule.results.first().and_then(rows_of) else { return Ok(None) };
        let has = |dims: &Vec<Vec<usize>>| dims.iter().flatten().any(|&factor| factor == rows);
        let leads = |dims: &Vec<Vec<usize>>| {
            rows_of(dims) == Some(rows)
                && dims.iter().flatten().filter(|&&factor| factor == rows).count() == 1
        };
        let separates = rule.factors[rows].kind == FactorKind::Pass
            && rule.results.iter().all(leads)
            && rule
                .operands
                .iter()
                .zip(operands)
                .all(|(dims, held)| leads(dims) || (!has(dims) && !held.varies));
        if !separates {
            return Ok(None);
        }
        let mut values = Vec::new();
        for (dims, &held) in rule.operands.iter().zip(operands) {
            values.push(if has(dims) {
                let all = self.spread(held)?;
                let shape = merged(&self.b.shape(all));
                self.b.reshape(all, &shape)?
            } else {
                held.value
            });
        }
        let led: Vec<Vec<usize>> = types.iter().map(|ty| self.led(&ty.shape)).collect();
        let expected: Vec<TensorType> =
            types.iter().zip(&led).map(|(ty, led)| ty.with_shape(merged(led))).collect();
        let Some(results) = self.applied(&node.op, &values, &expected)? else { return Ok(None) };
        results
            .into_iter()
            .zip(&led)
            .map(|(value, led)| self.b.reshape(value, led))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// The op for each rank by itself.
    fn one_by_one(&mut self, node: &Node, operands: &[Held], types: &[TensorType]) -> Result<Vec<ValueId>> {
        let mut pieces: Vec<Vec<ValueId>> = vec![Vec::new(); types.len()];
        for rank in 0..self.ranks {
            let mut values = Vec::new();
            for held in operands {
                values.push(if held.varies { self.entry(held.value, rank)? } else { held.value });
            }
            let results = self.b.push_typed(node.op.clone(), &values, types.to_vec());
            for ((value, ty), pieces) in results.into_iter().zip(types).zip(&mut pieces) {
                pieces.push(self.b.reshape(value, &after(1, &ty.shape))?);
            }
            self.check_nodes()?;
        }
        pieces.iter().map(|pieces| self.b.concatenate(pieces, 0)).collect()
    }
}
