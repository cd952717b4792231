//! Emits the microbatched graph: every node once, or once for each microbatch, according to the
//! analysis.

use super::{Analysis, Cuts, Run, State, holds, splits_cleanly};
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
    /// Slices of whole values: (value, dimension, microbatch).
    taken: BTreeMap<(ValueId, usize, usize), ValueId>,
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
            Run::Pieces(factor) => self.localise(id, factor, index)?,
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
    fn localise(&mut self, id: NodeId, factor: FactorId, index: usize) -> Result<Vec<ValueId>> {
        let node = self.graph.node(id);
        let rule = &self.analysis.rules[id.index()];
        let mut operands = Vec::with_capacity(node.operands.len());
        for (position, &operand) in node.operands.iter().enumerate() {
            operands.push(
                match (self.analysis.states[operand.index()], holds(&rule.operands[position], factor)) {
                    (State::Split(_), _) => {
                        self.pieces[operand.index()][index].expect("nodes stand in order")
                    }
                    (_, Some(dim)) => self.take(operand, dim, index)?,
                    (_, None) => self.whole(operand),
                },
            );
        }
        let local = |(number, &v): (usize, &ValueId)| match holds(&rule.results[number], factor) {
            Some(dim) => self.cuts.piece_type(self.graph.ty(v), dim, index),
            None => self.graph.ty(v).clone(),
        };
        let local_results = node.results.iter().enumerate().map(local).collect();
        self.enter(node, Some(index));
        let mut context = PieceContext {
            builder: &mut self.builder,
            rule,
            factor,
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
    fn take(&mut self, value: ValueId, dim: usize, index: usize) -> Result<ValueId> {
        if let Some(&piece) = self.taken.get(&(value, dim, index)) {
            return Ok(piece);
        }
        let definition = self.graph.value(value).definition;
        let cut = definition.and_then(|(id, number)| {
            let rule = &self.analysis.rules[id.index()];
            let factor = self.cuts.batch_factor(rule, &rule.results[number][dim])?;
            let once = self.analysis.runs[id.index()] == Run::Once;
            let free =
                rule.factors[factor].kind == FactorKind::Pass && splits_cleanly(rule, factor, self.cuts);
            (once && free).then_some((id, number, factor))
        });
        let piece = match cut {
            Some((id, number, factor)) => self.localise(id, factor, index)?[number],
            None => {
                let extent = self.graph.ty(value).shape[dim];
                let start = self.cuts.start(extent, index);
                let limit = start + self.cuts.piece_type(self.graph.ty(value), dim, index).shape[dim];
                let whole = self.whole(value);
                if let Some((id, _)) = definition {
                    self.enter(self.graph.node(id), Some(index));
                } else {
                    self.builder.microbatch = Some(index);
                }
                self.builder.slice_dim(whole, dim, start, limit)?
            }
        };
        self.taken.insert((value, dim, index), piece);
        Ok(piece)
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
            let State::Split(dim) = self.analysis.states[output.index()] else {
                outputs.push(self.whole(output));
                continue;
            };
            if self.whole[output.index()].is_none() {
                let pieces: Vec<ValueId> =
                    self.pieces[output.index()].iter().map(|p| p.expect("all pieces are emitted")).collect();
                if let Some((id, _)) = self.graph.value(output).definition {
                    self.enter(self.graph.node(id), None);
                }
                let joined = self.builder.concatenate(&pieces, dim)?;
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
    rule: &'a Rule,
    factor: FactorId,
    cuts: &'a Cuts,
    index: usize,
    operands: Vec<ValueId>,
    global_operands: Vec<TensorType>,
    global_results: Vec<TensorType>,
    local_results: Vec<TensorType>,
}

impl PieceContext<'_> {
    fn offset(&mut self, held: bool, extent: usize) -> ValueId {
        let offset = if held { self.cuts.start(extent, self.index) } else { 0 };
        self.builder.scalar(DType::I64, offset as f64)
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
        factor == self.factor
    }
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId> {
        let held = self.rule.operands[operand][dim].contains(&self.factor);
        let extent = self.global_operands[operand].shape[dim];
        Ok(self.offset(held, extent))
    }
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId> {
        let held = self.rule.results[result][dim].contains(&self.factor);
        let extent = self.global_results[result].shape[dim];
        Ok(self.offset(held, extent))
    }
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId> {
        let leads = self.index == 0 || !factors.contains(&self.factor);
        Ok(self.builder.scalar(DType::Bool, f64::from(u8::from(leads))))
    }
}
