//! Chunked cross-entropy: runs the LM head, its loss and their gradients in chunks of rows. Logits
//! have one column per word of the vocabulary; chunking avoids holding all rows of them at once.
//! Each chunk goes from its rows of the last hidden state to its contribution to the gradients
//! before the next chunk begins.
//!
//! ```text
//! logits = dot_general(hidden, weight)             rows of logits from rows of hidden
//! losses = cross_entropy(logits, labels)           row by row
//! dlogits = cross_entropy.vjp(logits, labels, scale)
//! dot_general(dlogits, weight)                     rows of the gradient: chunks are concatenated
//! dot_general(dlogits, hidden)                     a sum over rows: chunks are added
//! ```
//!
//! A sum over rows adds blocks of as many rows as the device's matmul sums at once, so that
//! chunking gives the same bits as the full matmul. The scale of the gradient must not depend on
//! the losses; the number of labels does not.
//!
//! Not chunked are: logits that are converted before the loss (f16, bf16); logits that are an
//! output; a sharded vocabulary, whose cross-entropy is inlined and contains collectives; rows that
//! a matmul sums at once anyway, in thousands of blocks, or that ranks would split into different
//! numbers of blocks.

use crate::LowerOptions;
use crate::passes::simplify::{Copier, check_structure};
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::composite::Origin;
use partita_ir::composites::CROSS_ENTROPY;
use partita_ir::ops::{
    Binary, BinaryKind, Composite, Concatenate, DotGeneral, OptimizationBarrier, Reshape, Slice,
};
use partita_ir::{Graph, Node, NodeId, Op, Operation, Role, Target, TensorType, Value, ValueId};
use std::fmt;
use std::ops::Range;

/// How a matmul uses the rows of the gradient of the logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rows {
    /// Each row of the gradient gives a row of the result.
    Kept,
    /// The matmul sums over the rows.
    Summed,
}

/// A matmul of the gradient of the logits and another operand.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Product {
    node: NodeId,
    rows: Rows,
    /// The operand position of the gradient, and the other operand.
    operand: usize,
    other: ValueId,
}

/// A head that can be chunked.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Head {
    /// The matmul that computes the logits.
    logits: NodeId,
    losses: NodeId,
    /// The gradient of the logits, if the step has one, and the matmuls that read it.
    gradient: Option<NodeId>,
    products: Vec<Product>,
}

/// Whether the logits that a cross-entropy reads are chunked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeadCut {
    /// The module path of the cross-entropy.
    pub path: String,
    /// Bytes of the logits on rank 0.
    pub logits_bytes: usize,
    /// The number of chunks, or why the head is not chunked.
    pub pieces: Result<usize, NotChunked>,
}

/// Why a head is not chunked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotChunked {
    /// Below the threshold: on no rank are its logits larger than this.
    Small {
        /// [`LowerOptions::logits_bytes`].
        most_bytes: usize,
    },
    /// The logits are not computed by a matmul of rows and a weight.
    NotAMatmul,
    /// Another op than the loss and matmuls reads the logits or their gradient.
    OtherReader,
    /// The scale of the gradient, or another operand of a matmul, depends on all losses.
    DependsOnLoss,
    /// The device sums all rows at once, or not in blocks.
    Summed,
    /// So many blocks of rows that their instructions would take longer to plan than they save.
    Many {
        /// The number of blocks.
        blocks: usize,
    },
    /// Ranks would have to chunk it differently.
    Uneven,
}

const MIB: f64 = (1 << 20) as f64;

/// The most blocks of rows of a head that is chunked. Each block is some instructions: the logits of a million sequences
/// made a program that took a minute and gigabytes to lower.
const MAX_BLOCKS: usize = 8192;

impl fmt::Display for HeadCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the step" } else { &self.path };
        write!(f, "logits of {place}, {:.1} MiB: ", self.logits_bytes as f64 / MIB)?;
        match self.pieces {
            Ok(pieces) => write!(f, "in {pieces} chunks of rows"),
            Err(why) => write!(f, "not chunked: {why}"),
        }
    }
}

impl fmt::Display for NotChunked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NotChunked::Small { most_bytes } => {
                write!(f, "within the limit of {:.1} MiB", most_bytes as f64 / MIB)
            }
            NotChunked::NotAMatmul => write!(f, "they are not computed by a matmul of rows and a weight"),
            NotChunked::OtherReader => write!(f, "another op reads them or their gradient"),
            NotChunked::DependsOnLoss => write!(f, "their gradient depends on all losses"),
            NotChunked::Summed => write!(f, "the matmul sums all rows at once"),
            NotChunked::Many { blocks } => write!(f, "{blocks} blocks of rows, more than {MAX_BLOCKS}"),
            NotChunked::Uneven => write!(f, "ranks would chunk them differently"),
        }
    }
}

/// How rows are divided, on one rank.
#[derive(Clone, Copy)]
struct Cut {
    /// Number of rows that a matmul sums at once.
    block: usize,
    /// Number of rows in a chunk, a multiple of `block`.
    piece: usize,
}

/// Chunks every head whose logits are larger than [`LowerOptions::logits_bytes`] on some rank. A
/// chunk has as many blocks as stay below this limit, but at least one. The graphs keep one
/// structure.
pub(crate) fn cut_heads(
    mut graphs: Vec<Graph>,
    options: &LowerOptions,
    target: &dyn Target,
) -> Result<Vec<Graph>> {
    // The logits of a chunk are below the limit or one block, so they are not chunked again.
    while let Some((head, cuts)) = next(&graphs, options.logits_bytes, target) {
        let cut = |(graph, cut): (&Graph, Cut)| Cutter::new(graph, &head).run(&head, cut);
        graphs = graphs.iter().zip(cuts).map(cut).collect::<Result<_>>()?;
        check_structure(&graphs)?;
    }
    Ok(graphs)
}

/// Reports what [`cut_heads`] does to every head.
pub(crate) fn cuts_of_heads(graphs: &[Graph], options: &LowerOptions, target: &dyn Target) -> Vec<HeadCut> {
    let (graph, uses) = (&graphs[0], graphs[0].uses());
    let cut_of = |losses: NodeId| {
        let logits = graph.node(losses).operands[0];
        let cuts = cuts(graphs, &uses, losses, options.logits_bytes, target);
        HeadCut {
            path: graph.node(losses).path.clone(),
            logits_bytes: graph.ty(logits).bytes(),
            pieces: cuts.map(|(_, cuts)| row_count(graph, logits).div_ceil(cuts[0].piece)),
        }
    };
    graph.node_ids().filter(|&id| is_losses(graph.node(id))).map(cut_of).collect()
}

/// A head to chunk, and how on each rank.
fn next(graphs: &[Graph], most_bytes: usize, target: &dyn Target) -> Option<(Head, Vec<Cut>)> {
    let uses = graphs[0].uses();
    let mut losses = graphs[0].node_ids().filter(|&id| is_losses(graphs[0].node(id)));
    losses.find_map(|losses| cuts(graphs, &uses, losses, most_bytes, target).ok())
}

/// The head with these losses, and how to chunk it on each rank.
fn cuts(
    graphs: &[Graph],
    uses: &[Vec<(NodeId, usize)>],
    losses: NodeId,
    most_bytes: usize,
    target: &dyn Target,
) -> Result<(Head, Vec<Cut>), NotChunked> {
    let logits = |graph: &Graph| graph.node(losses).operands[0];
    let bytes = |graph: &Graph| graph.ty(logits(graph)).bytes();
    if !graphs.iter().any(|graph| bytes(graph) > most_bytes) {
        return Err(NotChunked::Small { most_bytes });
    }
    let head = Head::at(&graphs[0], uses, losses)?;
    if !graphs.iter().all(|graph| Head::at(graph, uses, losses).as_ref() == Ok(&head)) {
        return Err(NotChunked::Uneven);
    }
    let blocks: Option<Vec<usize>> = graphs.iter().map(|graph| head.block_rows(graph, target)).collect();
    let blocks = blocks.ok_or(NotChunked::Summed)?;
    let rows = |graph: &Graph| row_count(graph, logits(graph));
    let mut counts = graphs.iter().zip(&blocks).map(|(graph, &block)| rows(graph).div_ceil(block));
    let count = counts.next().expect("there is a rank");
    if !counts.all(|other| other == count) {
        return Err(NotChunked::Uneven);
    }
    if count > MAX_BLOCKS {
        return Err(NotChunked::Many { blocks: count });
    }
    let fit = |(graph, &block): (&Graph, &usize)| most_bytes / (bytes(graph) / rows(graph) * block).max(1);
    let together = graphs.iter().zip(&blocks).map(fit).min().expect("there is a rank").max(1);
    if count <= together {
        return Err(NotChunked::Summed);
    }
    Ok((head, blocks.iter().map(|&block| Cut { block, piece: block * together }).collect()))
}

/// The number of rows of logits: the product of all dimensions but the last.
fn row_count(graph: &Graph, value: ValueId) -> usize {
    let shape = &graph.ty(value).shape;
    shape[..shape.len() - 1].iter().product()
}

/// Whether a node is a cross-entropy.
fn is_losses(node: &Node) -> bool {
    matches!(&node.op, Op::Composite(composite) if is_cross_entropy(&composite.definition.origin))
}

fn is_cross_entropy(origin: &Origin) -> bool {
    matches!(origin, Origin::Template(template) if template.name == CROSS_ENTROPY.name)
}

/// Whether a node is the gradient of cross-entropy with respect to logits.
fn is_gradient(node: &Node) -> bool {
    let Op::Composite(composite) = &node.op else { return false };
    matches!(&composite.definition.origin, Origin::Vjp { base, seeded, wanted }
        if is_cross_entropy(&base.origin) && *seeded == [0] && *wanted == [0])
}

/// How a matmul uses the first `rank` dimensions of an operand that has one more.
fn rows(dot: &DotGeneral, operand: usize, rank: usize) -> Option<Rows> {
    let leading = |dims: &[usize]| dims.iter().copied().eq(0..rank);
    if !dot.lhs_batch.is_empty() {
        None
    } else if operand == 0 && dot.lhs_contracting == [rank] {
        Some(Rows::Kept)
    } else {
        (leading(&dot.lhs_contracting) && leading(&dot.rhs_contracting)).then_some(Rows::Summed)
    }
}

/// Whether two values are equal because they are computed in the same way, such as a weight that is
/// gathered for the forward pass and again for the backward pass.
fn is_twin(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let maker = |value: ValueId| graph.value(value).definition.map(|(id, _)| graph.node(id));
    let alike = |a: &Node, b: &Node| match (&a.operands[..], &b.operands[..]) {
        (&[x], &[y]) => a.op == b.op && is_twin(graph, x, y),
        _ => false,
    };
    a == b || maker(a).zip(maker(b)).is_some_and(|(a, b)| alike(a, b))
}

impl Head {
    /// The head of this cross-entropy, if it can be chunked.
    fn at(graph: &Graph, uses: &[Vec<(NodeId, usize)>], losses: NodeId) -> Result<Head, NotChunked> {
        let node = graph.node(losses);
        let (logits, labels) = (node.operands[0], node.operands[1]);
        if graph.outputs.contains(&logits) {
            return Err(NotChunked::OtherReader);
        }
        let rank = graph.ty(logits).rank() - 1;
        let (maker, _) = graph.value(logits).definition.ok_or(NotChunked::NotAMatmul)?;
        let Op::DotGeneral(dot) = &graph.node(maker).op else { return Err(NotChunked::NotAMatmul) };
        let hidden = graph.ty(graph.node(maker).operands[0]);
        if rows(dot, 0, rank) != Some(Rows::Kept) || hidden.rank() != rank + 1 {
            return Err(NotChunked::NotAMatmul);
        }
        let mut head = Head { logits: maker, losses, gradient: None, products: Vec::new() };
        for &(reader, _) in uses[logits.index()].iter().filter(|(reader, _)| *reader != losses) {
            let node = graph.node(reader);
            if head.gradient.is_some() || !is_gradient(node) || node.operands[..2] != [logits, labels] {
                return Err(NotChunked::OtherReader);
            }
            head.gradient = Some(reader);
            let gradient = node.results[0];
            for &(reader, operand) in &uses[gradient.index()] {
                let Op::DotGeneral(dot) = &graph.node(reader).op else { return Err(NotChunked::OtherReader) };
                let rows = rows(dot, operand, rank).ok_or(NotChunked::OtherReader)?;
                let other = graph.node(reader).operands[1 - operand];
                let weight = graph.node(maker).operands[1];
                let other = if is_twin(graph, other, weight) { weight } else { other };
                head.products.push(Product { node: reader, rows, operand, other });
            }
            if graph.outputs.contains(&gradient) {
                return Err(NotChunked::OtherReader);
            }
        }
        let depends = head.followers(graph);
        let is_together = |id: NodeId| graph.node(id).microbatch == node.microbatch;
        let is_known = |value: ValueId| !depends[value.index()];
        let is_cut = head.reads(graph).into_iter().all(is_known) && head.nodes().all(is_together);
        if is_cut { Ok(head) } else { Err(NotChunked::DependsOnLoss) }
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let products = self.products.iter().map(|product| product.node);
        [self.logits, self.losses].into_iter().chain(self.gradient).chain(products)
    }

    /// The values that the chunks read.
    fn reads(&self, graph: &Graph) -> Vec<ValueId> {
        let mut reads = graph.node(self.logits).operands.clone();
        reads.push(graph.node(self.losses).operands[1]);
        reads.extend(self.gradient.map(|id| graph.node(id).operands[2]));
        reads.extend(self.products.iter().map(|product| product.other));
        reads
    }

    /// For each value, whether it depends on a node of the head.
    fn followers(&self, graph: &Graph) -> Vec<bool> {
        let mut depends = vec![false; graph.values.len()];
        for id in graph.node_ids() {
            let node = graph.node(id);
            if self.nodes().any(|own| own == id) || node.operands.iter().any(|v| depends[v.index()]) {
                node.results.iter().for_each(|v| depends[v.index()] = true);
            }
        }
        depends
    }

    /// The number of rows in a block of the matmuls that sum over rows; `None` if the device does
    /// not sum in such blocks.
    fn block_rows(&self, graph: &Graph, target: &dyn Target) -> Option<usize> {
        let logits = graph.ty(graph.node(self.losses).operands[0]);
        let is_typed = |product: &Product| {
            let node = graph.node(product.node);
            let mut values = node.operands.iter().chain(&node.results);
            product.rows == Rows::Kept || values.all(|&value| graph.ty(value).dtype == logits.dtype)
        };
        let count = row_count(graph, graph.node(self.losses).operands[0]);
        let block = |terms: usize| target.product_block(logits.dtype, terms).filter(|&block| block > 0);
        let rows = block(count)?.min(count);
        let is_at_once = |terms: usize| terms == 0 || block(terms).is_some_and(|block| terms <= block);
        let fits = is_at_once(rows) && is_at_once(count % rows.max(1));
        (rows > 0 && fits && self.products.iter().all(is_typed)).then_some(rows)
    }
}

/// Rebuilds a graph with a chunked head.
struct Cutter<'a> {
    graph: &'a Graph,
    copy: Copier,
    /// Number of leading dimensions that are rows.
    rank: usize,
    /// Values of the source reshaped to one dimension of rows, as values of the copy.
    flat: IndexMap<ValueId, ValueId>,
}

impl<'a> Cutter<'a> {
    fn new(graph: &'a Graph, head: &Head) -> Self {
        let rank = graph.ty(graph.node(head.losses).results[0]).rank();
        Cutter { graph, copy: Copier::new(graph), rank, flat: IndexMap::new() }
    }

    /// Puts the chunks at the place of the gradient, or of the losses if there is no gradient.
    /// Earlier nodes that depend on the losses move behind them.
    fn run(mut self, head: &Head, cut: Cut) -> Result<Graph> {
        let graph = self.graph;
        let place = head.gradient.unwrap_or(head.losses);
        let depends = head.followers(graph);
        let mut late = Vec::new();
        for id in graph.node_ids() {
            let node = graph.node(id);
            if id == place {
                head.reads(graph).into_iter().for_each(|value| self.need(value));
                self.pieces(head, cut)?;
                late.drain(..).for_each(|node: &Node| self.copy.node(graph, node, node.op.clone()));
            } else if head.nodes().any(|own| own == id) {
                continue;
            } else if id < place && depends[node.results[0].index()] {
                late.push(node);
            } else if self.copy.map[node.results[0].index()].is_none() {
                self.copy.node(graph, node, node.op.clone());
            }
        }
        Ok(self.copy.finish(graph))
    }

    /// Copies the nodes that compute a value, unless they are copied already.
    fn need(&mut self, value: ValueId) {
        if self.copy.map[value.index()].is_none() {
            let graph = self.graph;
            let (id, _) = graph.value(value).definition.expect("inputs are there");
            let node = graph.node(id);
            node.operands.iter().for_each(|&operand| self.need(operand));
            self.copy.node(graph, node, node.op.clone());
        }
    }

    fn pieces(&mut self, head: &Head, cut: Cut) -> Result<()> {
        let graph = self.graph;
        let (dot, losses) = (graph.node(head.logits), graph.node(head.losses));
        let (hidden, labels) = (dot.operands[0], losses.operands[1]);
        let count = row_count(graph, losses.operands[0]);
        // The chunks of the losses, then those of each matmul.
        let mut parts: Vec<Vec<ValueId>> = vec![Vec::new(); 1 + head.products.len()];
        let mut last = None;
        for start in (0..count).step_by(cut.piece) {
            let rows = start..count.min(start + cut.piece);
            let hidden = self.rows(dot, hidden, &rows)?;
            let labels = self.rows(losses, labels, &rows)?;
            let logits = self.kept(dot, hidden, dot.operands[1])?;
            parts[0].push(self.composite(losses, &[logits, labels])?);
            let Some(node) = head.gradient.map(|id| graph.node(id)) else { continue };
            let scale = self.rows(node, node.operands[2], &rows)?;
            let gradient = self.composite(node, &[logits, labels, scale])?;
            last = Some(gradient);
            for (product, parts) in head.products.iter().zip(&mut parts[1..]) {
                let node = graph.node(product.node);
                match product.rows {
                    Rows::Kept => parts.push(self.kept(node, gradient, product.other)?),
                    Rows::Summed => {
                        let sum = self.summed(product, gradient, &rows, cut.block, parts.pop())?;
                        parts.push(sum);
                    }
                }
            }
        }
        let nodes = [head.losses].into_iter().chain(head.products.iter().map(|product| product.node));
        nodes.zip(parts).try_for_each(|(id, parts)| self.whole(graph.node(id), &parts, last))
    }

    /// The matmul of a node that preserves rows, for some of them.
    fn kept(&mut self, node: &Node, rows: ValueId, other: ValueId) -> Result<ValueId> {
        let Op::DotGeneral(dot) = &node.op else { unreachable!("of a product") };
        let other = self.copy.map[other.index()].expect("needed before");
        self.push(node, DotGeneral { lhs_contracting: vec![1], ..dot.clone() }.into(), &[rows, other])
    }

    /// The matmul that sums over rows, for these rows only: block by block, added to the sum so
    /// far.
    fn summed(
        &mut self,
        product: &Product,
        gradient: ValueId,
        rows: &Range<usize>,
        block: usize,
        mut sum: Option<ValueId>,
    ) -> Result<ValueId> {
        let node = self.graph.node(product.node);
        let Op::DotGeneral(dot) = &node.op else { unreachable!("of a product") };
        for start in rows.clone().step_by(block) {
            let block = start..rows.end.min(start + block);
            let own = self.slice(node, gradient, &(block.start - rows.start..block.end - rows.start))?;
            let mut operands = [self.rows(node, product.other, &block)?, own];
            operands.rotate_left(usize::from(product.operand == 0));
            let over = DotGeneral { lhs_contracting: vec![0], rhs_contracting: vec![0], ..dot.clone() };
            let part = self.push(node, over.into(), &operands)?;
            sum = Some(match sum {
                Some(sum) => self.push(node, Binary { kind: BinaryKind::Add }.into(), &[sum, part])?,
                None => part,
            });
        }
        Ok(sum.expect("there are rows"))
    }

    /// Some rows of a value of the source.
    fn rows(&mut self, origin: &Node, value: ValueId, rows: &Range<usize>) -> Result<ValueId> {
        let flat = match self.flat.get(&value) {
            Some(&flat) => flat,
            None => {
                let (lead, rest) = self.graph.ty(value).shape.split_at(self.rank);
                let shape = [&[lead.iter().product()], rest].concat();
                let whole = self.copy.map[value.index()].expect("needed before");
                let flat = self.push(origin, Reshape { shape }.into(), &[whole])?;
                self.flat.insert(value, flat);
                flat
            }
        };
        self.slice(origin, flat, rows)
    }

    /// A range of the first dimension.
    fn slice(&mut self, origin: &Node, value: ValueId, range: &Range<usize>) -> Result<ValueId> {
        let mut limit = self.copy.graph.ty(value).shape.clone();
        let (mut start, stride) = (vec![0; limit.len()], vec![1; limit.len()]);
        (start[0], limit[0]) = (range.start, range.end);
        self.push(origin, Slice { start, limit, stride }.into(), &[value])
    }

    /// A composite of the head for some rows.
    fn composite(&mut self, node: &Node, operands: &[ValueId]) -> Result<ValueId> {
        let Op::Composite(Composite { attributes, definition }) = &node.op else {
            unreachable!("of a composite")
        };
        let types: Vec<TensorType> = operands.iter().map(|&v| self.copy.graph.ty(v).clone()).collect();
        let definition = definition.resized(attributes, &types)?;
        self.push(node, Composite { attributes: attributes.clone(), definition }.into(), operands)
    }

    /// Replaces the result of a node by its chunks: concatenated rows, or the single sum. It is
    /// placed after `last`, the last gradient of logits, so that collectives on the losses do not
    /// share a bucket with values that the gradients wait for.
    fn whole(&mut self, node: &Node, parts: &[ValueId], last: Option<ValueId>) -> Result<()> {
        let mut joined = match parts {
            &[sum] => sum,
            rows => self.push(node, Concatenate { dim: 0 }.into(), rows)?,
        };
        if let Some(last) = last {
            let operands = vec![joined, last];
            let values = operands.iter().map(|&operand| self.copy.graph.value(operand).clone()).collect();
            joined = self.copy.append(node, OptimizationBarrier.into(), operands, values)[0];
        }
        let value = self.graph.value(node.results[0]);
        let reshape = Reshape { shape: value.ty.shape.clone() };
        let whole = self.copy.append(node, reshape.into(), vec![joined], vec![value.clone()])[0];
        self.copy.map[node.results[0].index()] = Some(whole);
        Ok(())
    }

    fn push(&mut self, origin: &Node, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        let types: Vec<&TensorType> = operands.iter().map(|&v| self.copy.graph.ty(v)).collect();
        let ty = op.infer(&types)?.remove(0);
        let value = Value {
            ty,
            definition: None,
            name: String::new(),
            role: Role::Activation,
            annotation: None,
            group: None,
        };
        Ok(self.copy.append(origin, op, operands.to_vec(), vec![value])[0])
    }
}
