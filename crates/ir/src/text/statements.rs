//! Statements: results, ops, inlined calls, and appended nodes.

use super::attributes::{Attributes, Value};
use super::functions::NODE_LIMIT;
use super::location::{LocationText, Origin};
use super::op_parser::OpParser;
use super::parser::Parser;
use super::scope::add_value;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::op::{Op, Operation};
use crate::ops;
use crate::types::TensorType;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_mlir::{Kind, OperationId, unquote};

impl Parser<'_> {
    /// `%a, %b:2 = op ..` or `op ..`.
    pub fn statement(&mut self, id: OperationId) -> Result<()> {
        let start = self.position;
        let mut names: Vec<(usize, usize)> = Vec::new();
        while self.kind() == Kind::Value {
            let at = self.position;
            self.advance();
            let mut count = 1;
            if self.eat(':') {
                let count_at = self.position;
                count = match usize::try_from(self.integer()?) {
                    Ok(count @ 1..=65536) => count,
                    _ => return Err(self.error_at(count_at, "E140", "not a number of results")),
                };
            }
            names.push((at, count));
            if !self.eat(',') {
                break;
            }
        }
        if !names.is_empty() {
            self.mark('=')?;
        }
        let first_node = self.graph().nodes.len();
        let first_value = self.graph().values.len();
        let op_at = self.position;
        let wanted: usize = names.iter().map(|(_, count)| count).sum();
        let (results, attributes) = self.operation(id)?;
        let origin = self.optional_location()?.map(LocationText::origin).unwrap_or_default();
        self.set_origin(first_node, origin);
        if wanted != results.len() && !names.is_empty() {
            return Err(self
                .error_at(start, "E146", "a wrong number of results is named")
                .expected(results.len().to_string())
                .found(wanted.to_string()));
        }
        let fresh = results.iter().all(|v| v.index() >= first_value);
        if fresh {
            self.describe_values(&results, &attributes, op_at)?;
        }
        let mut rest = results.as_slice();
        for (at, count) in names {
            let (own, others) = rest.split_at(count);
            self.define(at, own.to_vec())?;
            rest = others;
        }
        Ok(())
    }

    /// The op at the current token, with its operands, attributes, regions and types.
    fn operation(&mut self, id: OperationId) -> Result<(Vec<ValueId>, Attributes)> {
        let at = self.position;
        let generic = self.kind() == Kind::Text;
        let name = match self.kind() {
            Kind::Text => unquote(self.text()),
            Kind::Word => self.text().to_string(),
            _ => return Err(self.unexpected("an operation")),
        };
        if matches!(name.as_str(), "call" | "func.call") {
            self.advance();
            return self.call(generic);
        }
        let Some(&parse) = self.parsers.get(name.as_str()) else { return Err(self.unknown_op(&name)) };
        self.advance();
        let mut op = OpParser::new(self, name, at, id);
        let results = parse(&mut op)?;
        let attributes = std::mem::take(&mut op.attributes);
        Ok((results, attributes))
    }

    fn unknown_op(&self, name: &str) -> Box<Diagnostic> {
        if ops::UNSUPPORTED.contains(&name) {
            return self.error("E144", format!("`{name}` is not supported"));
        }
        if name.ends_with(".custom_call") {
            let target = (self.position..self.position + 4)
                .find(|&p| self.kind_at(p) == Kind::Symbol)
                .map_or("?", |p| self.text_at(p));
            let mut error = self.error("E144", format!("custom call `{target}` is not supported"));
            if target.contains("lapack") {
                error = error.help(
                    "a CPU's LAPACK is called by name; lower for a platform without it: \
                     `jax.jit(f).trace(..).lower(lowering_platforms=(\"tpu\",))`",
                );
            }
            if target.contains("hard") {
                error = error
                    .help("lower with Shardy (`jax.config.update(\"jax_use_shardy_partitioner\", True)`)");
            }
            return error;
        }
        let mut error = self.error("E141", format!("unknown operation `{name}`"));
        let mut known: Vec<&str> = self.parsers.keys().copied().collect();
        known.sort_unstable();
        error.help = did_you_mean(name, known);
        error
    }

    /// `call @f(%a) : (T) -> U`, inlined.
    fn call(&mut self, generic: bool) -> Result<(Vec<ValueId>, Attributes)> {
        let at = self.position;
        let mut name = if generic { String::new() } else { self.symbol()? };
        self.mark('(')?;
        let mut arguments = Vec::new();
        while self.kind() == Kind::Value {
            arguments.push(self.operand()?);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(')')?;
        let mut attributes = Attributes::default();
        if generic && self.eat('<') {
            attributes = self.dictionary()?;
            self.mark('>')?;
        }
        attributes.list.extend(self.optional_dictionary()?.list);
        if let (true, Some(Value::Symbol(callee))) = (generic, attributes.get("callee")) {
            name = callee.clone();
        }
        self.mark(':')?;
        let declared = self.result_types()?;
        if self.kind() != Kind::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance();
        let results = self.result_types()?;
        let (callee, extent) = self.function_with_extent(&name, at)?;
        let graph = self.graph();
        let given: Vec<TensorType> = arguments.iter().map(|&v| graph.ty(v).clone()).collect();
        let taken: Vec<TensorType> = callee.inputs.iter().map(|&v| callee.ty(v).clone()).collect();
        let returned: Vec<TensorType> = callee.outputs.iter().map(|&v| callee.ty(v).clone()).collect();
        if given != taken || declared != taken || returned != results {
            let show = |a: &[TensorType], b: &[TensorType]| {
                format!("({}) -> {}", super::types::print_types(a), super::types::print_results(b))
            };
            return Err(self
                .error_at(at, "E146", format!("this call does not fit `@{name}`"))
                .expected(show(&taken, &returned))
                .found(show(if given == taken { &declared } else { &given }, &results)));
        }
        self.count_inlined(extent.nodes, at)?;
        self.check_depth(extent.depth, at)?;
        Ok((self.inline(&callee, &arguments), attributes))
    }

    /// Counts nodes that are written out once more. E149 at the limit.
    pub fn count_inlined(&mut self, nodes: usize, at: usize) -> Result<()> {
        self.inlined_nodes = self.inlined_nodes.saturating_add(nodes);
        if self.inlined_nodes > NODE_LIMIT { Err(self.too_many_nodes(at)) } else { Ok(()) }
    }

    /// Copies the nodes of a function here.
    pub fn inline(&mut self, callee: &Graph, arguments: &[ValueId]) -> Vec<ValueId> {
        if !callee.meshes.is_empty() {
            self.use_meshes();
        }
        let mut map: Vec<Option<ValueId>> = vec![None; callee.values.len()];
        for (input, &argument) in callee.inputs.iter().zip(arguments) {
            map[input.index()] = Some(argument);
        }
        let graph = &mut self.frame().graph;
        for node in &callee.nodes {
            let id = NodeId::new(graph.nodes.len());
            let find = |v: &ValueId| map[v.index()].expect("nodes stand in execution order");
            let operands = node.operands.iter().map(find).collect();
            let mut results = Vec::new();
            for (number, &old) in node.results.iter().enumerate() {
                let source = callee.value(old);
                let new = add_value(graph, source.ty.clone(), Some((id, number)));
                graph.value_mut(new).name = source.name.clone();
                graph.value_mut(new).annotation = source.annotation.clone();
                graph.value_mut(new).group = source.group;
                map[old.index()] = Some(new);
                results.push(new);
            }
            graph.nodes.push(node.replaced(node.op.clone(), operands, results));
        }
        callee.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect()
    }

    /// Sets the origin of the nodes from `first` on; a callee's own origin is kept.
    fn set_origin(&mut self, first: usize, origin: Origin) {
        for node in &mut self.frame().graph.nodes[first..] {
            if node.path.is_empty() {
                node.path = origin.path.clone();
            }
            if node.location.is_none() {
                node.location = origin.location.clone();
            }
            if node.phase == Default::default() {
                node.phase = origin.phase;
            }
            node.microbatch = node.microbatch.or(origin.microbatch);
            if node.stage == 0 {
                node.stage = origin.stage;
            }
            node.remat = node.remat.or(origin.remat);
        }
    }

    /// Appends a node; types are inferred and compared with declared ones. Errors of inference get
    /// the position in the text.
    pub fn emit(
        &mut self,
        op: Op,
        operands: &[ValueId],
        declared: Option<&[TensorType]>,
        at: usize,
    ) -> Result<Vec<ValueId>> {
        let graph = self.graph();
        let operand_types: Vec<&TensorType> = operands.iter().map(|&v| graph.ty(v)).collect();
        let place = |mut error: Box<Diagnostic>| {
            let here = self.error_at(at, "E146", "");
            error.at = here.at;
            error.notes.extend(here.notes);
            error
        };
        // Uneven collectives differ by rank, so only the text knows which of their types this is.
        let of_rank = match (operand_types.as_slice(), declared) {
            ([operand], Some([result])) if op.is_collective() => Some((*operand, result)),
            _ => None,
        };
        let inferred = match (op.infer(&operand_types), of_rank) {
            (Err(error), Some((operand, result)))
                if error.code == "E118" && op.yields_on_some_rank(operand, result) =>
            {
                vec![result.clone()]
            }
            (inferred, _) => inferred.map_err(place)?,
        };
        let types = match declared {
            Some(declared) if declared != inferred => {
                return Err(self
                    .error_at(at, "E146", format!("`{}` does not yield the declared type", op.name()))
                    .expected(super::types::print_results(&inferred))
                    .found(super::types::print_results(declared)));
            }
            _ => inferred,
        };
        let graph = &mut self.frame().graph;
        let id = NodeId::new(graph.nodes.len());
        let results: Vec<ValueId> = types
            .into_iter()
            .enumerate()
            .map(|(number, ty)| add_value(graph, ty, Some((id, number))))
            .collect();
        graph.nodes.push(Node {
            op,
            operands: operands.to_vec(),
            results: results.clone(),
            path: String::new(),
            location: None,
            phase: Default::default(),
            microbatch: None,
            stage: 0,
            remat: None,
        });
        Ok(results)
    }
}
