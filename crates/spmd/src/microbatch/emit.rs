//! Emits the microbatched graph: every node once, or once for each microbatch, according to the
//! analysis.

use super::{Analysis, Cuts, Part, Place, Run, State, is_range, refusal};
use partita_base::{DType, Result};
use partita_ir::graph_edit::prune;
use partita_ir::ops::BinaryKind;
use partita_ir::port::microbatch_name;
use partita_ir::{
    FactorId, FactorKind, Graph, GraphBuilder, LocalContext, Node, NodeId, Operation, Rule, TensorType,
    ValueId,
};
use partita_mesh::Combiner;
use std::collections::{BTreeMap, BTreeSet};

/// Writes the new graph.
pub(super) struct Emitter<'a> {
    graph: &'a Graph,
    cuts: &'a Cuts,
    analysis: &'a Analysis,
    builder: GraphBuilder,
    /// For each old value: the new one, if it is the same for all microbatches.
    whole: Vec<Option<ValueId>>,
    /// For each old value and microbatch: its part or contribution.
    pieces: Vec<Vec<Option<ValueId>>>,
    /// Slices of whole values: (value, place, microbatch).
    taken: BTreeMap<(ValueId, Place, usize), ValueId>,
    /// (new, old, microbatch) of every value that inherits its role.
    heirs: Vec<(ValueId, ValueId, Option<usize>)>,
    /// The new values of `heirs`, and the parts of inputs.
    settled: BTreeSet<ValueId>,
}

impl<'a> Emitter<'a> {
    /// Emits the microbatched graph.
    pub(super) fn run(
        graph: &'a Graph,
        batched: &[ValueId],
        cuts: &'a Cuts,
        analysis: &'a Analysis,
    ) -> Result<Graph> {
        let mut builder = GraphBuilder::new(&graph.name);
        builder.graph_mut().meshes = graph.meshes.clone();
        let mut emitter = Emitter {
            graph,
            cuts,
            analysis,
            builder,
            whole: vec![None; graph.values.len()],
            pieces: vec![vec![None; cuts.count()]; graph.values.len()],
            taken: BTreeMap::new(),
            heirs: Vec::new(),
            settled: BTreeSet::new(),
        };
        let positions = emitter.inputs(batched);
        let stage_count = analysis.stages.iter().max().map_or(0, |s| s + 1);
        for stage in 0..stage_count {
            let of_stage: Vec<NodeId> =
                graph.node_ids().filter(|id| analysis.stages[id.index()] == stage).collect();
            for &id in of_stage.iter().filter(|id| analysis.runs[id.index()] == Run::Once) {
                emitter.emit_once(id);
            }
            for index in 0..cuts.count() {
                for &id in of_stage.iter().filter(|id| analysis.runs[id.index()] != Run::Once) {
                    emitter.emit_piece(id, index)?;
                }
            }
        }
        emitter.finish(&positions)
    }

    /// Adds the new inputs. Returns the new position of each old input that is not split.
    fn inputs(&mut self, batched: &[ValueId]) -> Vec<Option<usize>> {
        let mut positions = Vec::new();
        for &input in &self.graph.inputs {
            let value = self.graph.value(input);
            if !batched.contains(&input) {
                positions.push(Some(self.builder.graph().inputs.len()));
                let new = self.builder.input(&value.name, value.ty.clone(), value.role.clone());
                self.whole[input.index()] = Some(new);
                self.inherit(new, input, None);
                continue;
            }
            positions.push(None);
            for index in 0..self.cuts.count() {
                let ty = self.cuts.piece_type(&value.ty, 0, index);
                let new = self.builder.input(&microbatch_name(&value.name, index), ty, value.role.clone());
                let target = self.builder.graph_mut().value_mut(new);
                (target.annotation, target.group) = (value.annotation.clone(), value.group);
                self.settled.insert(new);
                self.pieces[input.index()][index] = Some(new);
            }
        }
        positions
    }

    fn enter(&mut self, node: &Node, microbatch: Option<usize>) {
        self.builder.enter(node);
        self.builder.microbatch = microbatch;
    }

    fn whole(&self, value: ValueId) -> ValueId {
        self.whole[value.index()].expect("stages are in order")
    }

    fn emit_once(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let operands: Vec<ValueId> = node.operands.iter().map(|&v| self.whole(v)).collect();
        self.enter(node, None);
        let types = node.results.iter().map(|&v| self.graph.ty(v).clone()).collect();
        let results = self.builder.push_typed(node.op.clone(), &operands, types);
        for (&old, new) in node.results.iter().zip(results) {
            self.whole[old.index()] = Some(new);
            self.inherit(new, old, None);
        }
    }

    fn emit_piece(&mut self, id: NodeId, index: usize) -> Result<()> {
        let node = self.graph.node(id);
        let results = match self.analysis.runs[id.index()] {
            Run::Pieces(part) => self.localise(id, part, index)?,
            Run::Contributions => {
                let operand = |&v: &ValueId| self.pieces[v.index()][index].unwrap_or_else(|| self.whole(v));
                let operands: Vec<ValueId> = node.operands.iter().map(operand).collect();
                self.enter(node, Some(index));
                let types = node.results.iter().map(|&v| self.graph.ty(v).clone()).collect();
                self.builder.push_typed(node.op.clone(), &operands, types)
            }
            Run::Once => unreachable!("only repeated nodes come here"),
        };
        for (&old, new) in node.results.iter().zip(results) {
            self.pieces[old.index()][index] = Some(new);
            self.inherit(new, old, Some(index));
            if let (State::Partial(combiner), true) =
                (self.analysis.states[old.index()], self.analysis.combined[old.index()])
            {
                self.accumulate(node, old, new, combiner, index)?;
            }
        }
        Ok(())
    }

    /// Combines a contribution with the previous ones.
    fn accumulate(
        &mut self,
        node: &Node,
        old: ValueId,
        new: ValueId,
        combiner: Combiner,
        index: usize,
    ) -> Result<()> {
        self.whole[old.index()] = Some(match self.whole[old.index()] {
            None => new,
            Some(sum) => {
                let kind = match combiner {
                    Combiner::Sum => BinaryKind::Add,
                    Combiner::Max => BinaryKind::Maximum,
                    Combiner::Min => BinaryKind::Minimum,
                    Combiner::Prod => BinaryKind::Multiply,
                    Combiner::And => BinaryKind::And,
                    Combiner::Or => BinaryKind::Or,
                };
                self.enter(node, Some(index));
                let sum = self.builder.binary(kind, sum, new)?;
                let last = index + 1 == self.cuts.count();
                self.inherit(sum, old, (!last).then_some(index));
                sum
            }
        });
        Ok(())
    }

    /// Emits a node on the operands of one microbatch.
    fn localise(&mut self, id: NodeId, part: Part, index: usize) -> Result<Vec<ValueId>> {
        let node = self.graph.node(id);
        let rule = &self.analysis.rules[id.index()];
        let mut operands = Vec::with_capacity(node.operands.len());
        for (position, &operand) in node.operands.iter().enumerate() {
            operands.push(
                match (self.analysis.states[operand.index()], part.place(rule, &rule.operands[position])) {
                    (State::Split(_), _) => {
                        self.pieces[operand.index()][index].expect("nodes stand in order")
                    }
                    (_, Some(place)) => self.take(operand, place, index)?,
                    (_, None) => self.whole(operand),
                },
            );
        }
        let local = |(number, &v): (usize, &ValueId)| match part.place(rule, &rule.results[number]) {
            Some(place) => self.cuts.piece_type(self.graph.ty(v), place.dim, index),
            None => self.graph.ty(v).clone(),
        };
        let local_results = node.results.iter().enumerate().map(local).collect();
        self.enter(node, Some(index));
        let mut context = PieceContext {
            builder: &mut self.builder,
            graph: self.graph,
            node,
            rule,
            part,
            cuts: self.cuts,
            index,
            operands,
            global_operands: self.graph.operand_types(node).into_iter().cloned().collect(),
            global_results: self.graph.result_types(node).into_iter().cloned().collect(),
            local_results,
        };
        node.op.localise(&mut context)
    }

    /// The part of a whole value for a microbatch: computed directly if all its ancestors allow it
    /// (constants, random numbers, broadcasts), otherwise a slice.
    fn take(&mut self, value: ValueId, place: Place, index: usize) -> Result<ValueId> {
        if let Some(&piece) = self.taken.get(&(value, place, index)) {
            return Ok(piece);
        }
        let Place { dim, major } = place;
        let definition = self.graph.value(value).definition;
        let cut = definition.and_then(|(id, number)| {
            let rule = &self.analysis.rules[id.index()];
            let part = self.cuts.part(rule, &rule.results[number][dim], major)?;
            let once = self.analysis.runs[id.index()] == Run::Once;
            let free = rule.factors[part.factor].kind == FactorKind::Pass && is_range(rule, part);
            (once && free).then_some((id, number, part))
        });
        let piece = match cut {
            Some((id, number, part)) => self.localise(id, part, index)?[number],
            None => {
                let shape = &self.graph.ty(value).shape;
                let start = self.cuts.start(shape[dim] / major, index);
                let limit = start + self.cuts.piece_type(self.graph.ty(value), dim, index).shape[dim] / major;
                let whole = self.whole(value);
                if let Some((id, _)) = definition {
                    self.enter(self.graph.node(id), Some(index));
                } else {
                    self.builder.microbatch = Some(index);
                }
                let (whole, along) = self.opened(whole, place)?;
                let piece = self.builder.slice_dim(whole, along, start, limit)?;
                self.closed(piece, place)?
            }
        };
        self.taken.insert((value, place, index), piece);
        Ok(piece)
    }

    /// A value in which the elements before the batch are a dimension of their own, and the dimension of the batch.
    fn opened(&mut self, value: ValueId, Place { dim, major }: Place) -> Result<(ValueId, usize)> {
        if major == 1 {
            return Ok((value, dim));
        }
        let mut shape = self.builder.ty(value).shape.clone();
        shape.splice(dim..=dim, [major, shape[dim] / major]);
        Ok((self.builder.reshape(value, &shape)?, dim + 1))
    }

    /// The reverse of [`Emitter::opened`].
    fn closed(&mut self, value: ValueId, Place { dim, major }: Place) -> Result<ValueId> {
        if major == 1 {
            return Ok(value);
        }
        let mut shape = self.builder.ty(value).shape.clone();
        shape.splice(dim..=dim + 1, [major * shape[dim + 1]]);
        self.builder.reshape(value, &shape)
    }

    /// Copies name and annotation to the new value. Its role follows once all values exist.
    fn inherit(&mut self, new: ValueId, old: ValueId, microbatch: Option<usize>) {
        let source = self.graph.value(old);
        let target = self.builder.graph_mut().value_mut(new);
        // An op may return its operand, whose name and role stay.
        if !self.settled.insert(new) {
            return;
        }
        if !source.name.is_empty() {
            target.name = match microbatch {
                Some(index) => microbatch_name(&source.name, index),
                None => source.name.clone(),
            };
        }
        (target.annotation, target.group) = (source.annotation.clone(), source.group);
        self.heirs.push((new, old, microbatch));
    }

    fn finish(mut self, positions: &[Option<usize>]) -> Result<Graph> {
        let mut outputs = Vec::with_capacity(self.graph.outputs.len());
        for &output in &self.graph.outputs {
            let State::Split(place) = self.analysis.states[output.index()] else {
                outputs.push(self.whole(output));
                continue;
            };
            if self.whole[output.index()].is_none() {
                let pieces: Vec<ValueId> =
                    self.pieces[output.index()].iter().map(|p| p.expect("all pieces are emitted")).collect();
                if let Some((id, _)) = self.graph.value(output).definition {
                    self.enter(self.graph.node(id), None);
                }
                let mut opened = Vec::with_capacity(pieces.len());
                let mut along = place.dim;
                for &piece in &pieces {
                    let (piece, dim) = self.opened(piece, place)?;
                    opened.push(piece);
                    along = dim;
                }
                let joined = self.builder.concatenate(&opened, along)?;
                let joined = self.closed(joined, place)?;
                self.whole[output.index()] = Some(joined);
                self.inherit(joined, output, None);
            }
            outputs.push(self.whole(output));
        }
        for &(new, old, microbatch) in &self.heirs {
            let of =
                |v: ValueId| microbatch.and_then(|i| self.pieces[v.index()][i]).or(self.whole[v.index()]);
            self.builder.graph_mut().value_mut(new).role = self.graph.value(old).role.renamed(of);
        }
        let mut result = self.builder.finish(outputs);
        result.output_names = self.graph.output_names.clone();
        result.output_annotations = self.graph.output_annotations.clone();
        let moved = |&(input, output): &(usize, usize)| Some((positions[input]?, output));
        result.aliases = self.graph.aliases.iter().filter_map(moved).collect();
        Ok(prune(result))
    }
}

/// The context in which an op rewrites itself for one microbatch, as for a rank but with known
/// offsets.
struct PieceContext<'a> {
    builder: &'a mut GraphBuilder,
    graph: &'a Graph,
    node: &'a Node,
    rule: &'a Rule,
    part: Part,
    cuts: &'a Cuts,
    index: usize,
    operands: Vec<ValueId>,
    global_operands: Vec<TensorType>,
    global_results: Vec<TensorType>,
    local_results: Vec<TensorType>,
}

impl PieceContext<'_> {
    /// The offset of a part along a dimension of these factors. E220 if the part is no range of it.
    fn offset(&mut self, dims: &[Vec<FactorId>], dim: usize, extent: usize) -> Result<ValueId> {
        let offset = match self.part.place(self.rule, dims) {
            Some(place) if place.dim == dim && place.major > 1 => {
                let why = "it counts positions along a dimension in which the batch comes second";
                return Err(refusal(self.graph, self.node, self.cuts, why));
            }
            Some(place) if place.dim == dim => self.cuts.start(extent, self.index),
            _ => 0,
        };
        Ok(self.builder.scalar(DType::I64, offset as f64))
    }
}

impl LocalContext for PieceContext<'_> {
    fn is_of_rank(&self) -> bool {
        false
    }
    fn builder(&mut self) -> &mut GraphBuilder {
        self.builder
    }
    fn operands(&self) -> &[ValueId] {
        &self.operands
    }
    fn global_operand(&self, operand: usize) -> &TensorType {
        &self.global_operands[operand]
    }
    fn global_result(&self, result: usize) -> &TensorType {
        &self.global_results[result]
    }
    fn local_result(&self, result: usize) -> TensorType {
        self.local_results[result].clone()
    }
    fn is_sharded(&self, factor: FactorId) -> bool {
        factor == self.part.factor
    }
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId> {
        let (rule, extent) = (self.rule, self.global_operands[operand].shape[dim]);
        self.offset(&rule.operands[operand], dim, extent)
    }
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId> {
        let (rule, extent) = (self.rule, self.global_results[result].shape[dim]);
        self.offset(&rule.results[result], dim, extent)
    }
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId> {
        let leads = self.index == 0 || !factors.contains(&self.part.factor);
        Ok(self.builder.scalar(DType::Bool, f64::from(u8::from(leads))))
    }
}
