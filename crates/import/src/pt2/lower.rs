//! From the graph of an exported program to a model: names to values, node by node.
//!
//! Regions without gradients and autocast regions are nested graphs; they are inlined. Whether
//! gradients are enabled is a property of the place where an op is called, see [`super::alias`].
//! After each op the types of its results are compared with those that the file states, so a wrong
//! reading of an op is found at once and by name.

use super::alias::{TensorRef, Tensors, has_gradient};
use super::call::{Call, Out, Scalar};
use super::schema::{Argument, Graph, InputSpec, Int, Node, TensorMeta};
use super::{Pt2, payload, places, ranks, symbols};
use crate::aten;
use crate::limits::exceeded;
use crate::model::{ImportOptions, ImportedModel};
use crate::{Limits, Tensor};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::port::name_of_user;
use partita_ir::{Role, TensorType, ValueId};
use partita_nn::Context;
use std::collections::{BTreeMap, BTreeSet};

/// The meaning of a name of a graph.
#[derive(Clone, Copy, Debug)]
pub enum Binding {
    /// A tensor.
    Tensor(TensorRef),
    /// A number that is known at import.
    Scalar(Scalar),
    /// A result that is not computed.
    Absent,
}

/// The names of one graph.
#[derive(Debug, Default)]
pub struct Scope(BTreeMap<String, Binding>);

impl Scope {
    /// The meaning of `name`. E357 if it is not defined.
    pub fn get(&self, name: &str) -> Result<&Binding> {
        self.0.get(name).ok_or_else(|| {
            Diagnostic::new("E357", format!("`{name}` is used before it is defined"))
                .expected("a result of an earlier op, or an input")
                .found("neither")
        })
    }
}

/// An import in progress.
pub struct Lowering<'p> {
    pub(super) cx: Context,
    pub(super) tensors: Tensors,
    /// Whether gradients are enabled here.
    pub(super) grad: bool,
    pub(super) limits: &'p Limits,
    pub(super) notes: Vec<String>,
    pub(super) extents: BTreeMap<String, usize>,
    pub(super) modules: IndexMap<String, String>,
    /// The number of ranks that the program is one of, if it has collectives.
    pub(super) ranks: Option<usize>,
}

/// The inputs of the program that have values in the file.
#[derive(Default)]
pub(super) struct Stored<'p> {
    pub params: IndexMap<String, (ValueId, TensorRef, &'p Tensor)>,
    pub ties: Vec<(String, String)>,
    /// Parameters that are not trained.
    pub frozen: IndexMap<String, (ValueId, TensorRef, &'p Tensor)>,
    /// Buffers and constants.
    pub buffers: IndexMap<String, (ValueId, TensorRef, &'p Tensor)>,
}

/// See [`Pt2::import`].
pub fn lower(file: &Pt2, options: &ImportOptions) -> Result<ImportedModel> {
    let module = &file.program.graph_module;
    let node_count = count_nodes(&module.graph);
    if node_count > options.limits.nodes {
        let limit = format!("at most {} nodes", options.limits.nodes);
        return Err(exceeded("the graph", limit, format!("{node_count} nodes")));
    }
    check_known(&module.graph)?;
    let ranks = ranks::of(&module.graph, options)?;
    let mut lowering = Lowering {
        cx: Context::new("imported", DType::F32, true),
        tensors: Tensors::default(),
        grad: true,
        limits: &options.limits,
        notes: file.notes.clone(),
        extents: symbols::extents(&file.program, options, ranks.unwrap_or(1))?,
        modules: IndexMap::new(),
        ranks,
    };
    let mut scope = Scope::default();
    let (stored, inputs) = lowering.inputs(file, &mut scope)?;
    lowering.run(&module.graph, &mut scope)?;
    lowering.finish(file, options, &scope, stored, inputs)
}

#[cfg(test)]
impl Pt2 {
    /// The targets of all calls.
    pub(crate) fn targets(&self) -> Vec<String> {
        fn walk(graph: &Graph, targets: &mut Vec<String>) {
            for node in &graph.nodes {
                targets.push(node.target.clone());
                for input in &node.inputs {
                    if let Argument::Graph(nested) = &input.arg {
                        walk(nested, targets);
                    }
                }
            }
        }
        let mut targets = Vec::new();
        walk(&self.program.graph_module.graph, &mut targets);
        targets
    }
}

fn count_nodes(graph: &Graph) -> usize {
    let nested = graph.nodes.iter().flat_map(|node| &node.inputs).map(|input| match &input.arg {
        Argument::Graph(graph) => count_nodes(graph),
        _ => 0,
    });
    graph.nodes.len() + nested.sum::<usize>()
}

/// E355 with every op that the table lacks.
fn check_known(graph: &Graph) -> Result<()> {
    let mut unknown: IndexMap<String, (usize, String)> = IndexMap::new();
    collect_unknown(graph, &mut unknown);
    if unknown.is_empty() {
        return Ok(());
    }
    let count = unknown.len();
    let mut error = Diagnostic::new(
        "E355",
        match count {
            1 => "the program has an op that cannot be imported".to_string(),
            _ => format!("the program has {count} ops that cannot be imported"),
        },
    )
    .expected(format!("only ops of the table of {} that the import knows", aten::count()))
    .found(unknown.keys().map(String::as_str).take(50).collect::<Vec<_>>().join(", "));
    for (op, (uses, place)) in unknown.iter().take(50) {
        let times = if *uses == 1 { "once".to_string() } else { format!("{uses} times") };
        error = error.note(format!("`{op}` is called {times}, first {place}"));
    }
    let named: Vec<String> = unknown
        .keys()
        .filter(|op| op.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b)))
        .take(20)
        .map(|op| format!("torch.ops.{op}, "))
        .collect();
    Err(error.help(format!(
        "rewrite these calls in the model, or decompose only them, where PyTorch can, before the program is saved: \
         `table = torch.export.default_decompositions(); program = program.run_decompositions({{op: table[op] for op \
         in ({}) if op in table}})`",
        named.concat().trim_end()
    )))
}

fn collect_unknown(graph: &Graph, unknown: &mut IndexMap<String, (usize, String)>) {
    for node in &graph.nodes {
        if aten::find(&node.target).is_none() && !is_region(&node.target) {
            let op = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target);
            unknown.entry(op.to_string()).or_insert_with(|| (0, place(node))).0 += 1;
        }
        for input in &node.inputs {
            if let Argument::Graph(nested) = &input.arg {
                collect_unknown(nested, unknown);
            }
        }
    }
}

/// `in h.0.attn at model.py:12`
fn place(node: &Node) -> String {
    let (path, _) = places::module(&node.metadata);
    let path = if path.is_empty() { "<root>" } else { path };
    match places::location(&node.metadata) {
        Some(location) => format!("in {path} at {location}"),
        None => format!("in {path}"),
    }
}

const GRAD_REGION: &str = "torch.ops.higher_order.wrap_with_set_grad_enabled";
const AUTOCAST_REGION: &str = "torch.ops.higher_order.wrap_with_autocast";

fn is_region(target: &str) -> bool {
    target == GRAD_REGION || target == AUTOCAST_REGION
}

/// The names of the results of a node, in order; `None` for one that is not a value.
fn results(node: &Node) -> Vec<Option<&str>> {
    let mut names = Vec::new();
    for output in &node.outputs {
        match output {
            Argument::Tensor(name) | Argument::Computed(name) | Argument::Int(Int::Name(name)) => {
                names.push(Some(name.as_str()));
            }
            Argument::Tensors(list) => names.extend(list.iter().map(|name| Some(name.as_str()))),
            Argument::OptionalTensors(list) => names.extend(list.iter().map(Option::as_deref)),
            _ => names.push(None),
        }
    }
    names
}

/// The name of an input that is a tensor of the caller.
fn argument_name(spec: &InputSpec) -> Option<&str> {
    match spec {
        InputSpec::UserInput { arg: Argument::Tensor(name) } => Some(name),
        _ => None,
    }
}

/// The module's own name of an input whose values are in the file.
fn stored_name(spec: &InputSpec) -> Option<&str> {
    match spec {
        InputSpec::Parameter { parameter_name: name, .. }
        | InputSpec::Buffer { buffer_name: name, .. }
        | InputSpec::TensorConstant { tensor_constant_name: name, .. } => Some(name),
        _ => None,
    }
}

impl<'p> Lowering<'p> {
    /// Binds the inputs of the program.
    fn inputs(
        &mut self,
        file: &'p Pt2,
        scope: &mut Scope,
    ) -> Result<(Stored<'p>, IndexMap<String, TensorType>)> {
        let module = &file.program.graph_module;
        let mut stored = Stored::default();
        let mut inputs = IndexMap::new();
        let stored_names: BTreeSet<&str> =
            module.signature.input_specs.iter().filter_map(stored_name).collect();
        let argument_names: BTreeSet<&str> =
            module.signature.input_specs.iter().filter_map(argument_name).collect();
        for spec in &module.signature.input_specs {
            let (argument, name) = match spec {
                InputSpec::UserInput { arg: Argument::Tensor(argument) } => {
                    let ty = self.declared(&module.graph, argument)?;
                    partita_nn::context::check_name(argument, argument)?;
                    // Inputs and state share one space of names; an argument of `forward` may have a parameter's name.
                    let mut unique = name_of_user(argument, |name| argument_names.contains(name));
                    while stored_names.contains(unique.as_str()) {
                        unique.push_str("_input");
                    }
                    let name = &unique;
                    let value = self.cx.input(name, ty.dtype, &ty.shape);
                    let tensor = self.tensors.fresh(value, has_gradient(ty.dtype), false);
                    scope.0.insert(argument.clone(), Binding::Tensor(tensor));
                    inputs.insert(unique, ty);
                    continue;
                }
                InputSpec::UserInput { arg: Argument::Int(Int::Name(name)) } => {
                    return Err(Diagnostic::new("E356", format!("the input `{name}` is a symbolic number"))
                        .expected("tensors as inputs; numbers are fixed when the model is exported")
                        .found("an int input with a dynamic value"));
                }
                InputSpec::UserInput { .. } | InputSpec::ConstantInput { .. } => continue,
                InputSpec::CustomObj { arg } | InputSpec::Token { arg } => {
                    return Err(Diagnostic::new("E356", format!("the input `{}` is not a tensor", arg.name))
                        .expected("parameters, buffers and tensors")
                        .found("a custom object or a token of an effect"));
                }
                InputSpec::Parameter { arg, parameter_name: name }
                | InputSpec::Buffer { arg, buffer_name: name }
                | InputSpec::TensorConstant { arg, tensor_constant_name: name } => (&arg.name, name),
            };
            partita_nn::context::check_name(name, name)?;
            let tensor = file.value_of(spec).ok_or_else(|| {
                Diagnostic::new("E354", format!("the values of `{name}` are missing"))
                    .expected("an entry in the table of weights or of constants")
                    .found("none")
            })?;
            let declared = self.declared(&module.graph, argument)?;
            if declared != tensor.ty {
                return Err(Diagnostic::new("E354", format!("`{name}` has another type than its values"))
                    .at(name.clone())
                    .expected(declared.to_string())
                    .found(tensor.ty.to_string()));
            }
            let known = [&stored.params, &stored.frozen, &stored.buffers];
            if known.iter().any(|of| of.contains_key(name))
                || stored.ties.iter().any(|(alias, _)| alias == name)
            {
                return Err(Diagnostic::new("E357", format!("`{name}` is an input twice"))
                    .expected("one input for each tensor of the module")
                    .found("two"));
            }
            let is_parameter = matches!(spec, InputSpec::Parameter { .. });
            let is_trained = is_parameter && !file.frozen.contains(name);
            let group = match (is_trained, is_parameter) {
                (true, _) => &mut stored.params,
                (false, true) => &mut stored.frozen,
                (false, false) => &mut stored.buffers,
            };
            let twin = group.iter().find(|(_, (_, _, other))| tensor.is_same_view(other));
            if let Some((first, (_, reference, _))) = twin {
                scope.0.insert(argument.clone(), Binding::Tensor(*reference));
                if is_trained {
                    stored.ties.push((name.clone(), first.clone()));
                }
                continue;
            }
            let value = match (is_trained, is_parameter) {
                (true, _) => self.cx.builder.input(name, tensor.ty.clone(), Role::Param),
                (false, true) => self.cx.builder.input(name, tensor.ty.clone(), Role::Input),
                (false, false) => self.cx.buffer(name, tensor.literal()?),
            };
            let reference = self.tensors.fresh(value, is_trained, false);
            group.insert(name.clone(), (value, reference, tensor));
            scope.0.insert(argument.clone(), Binding::Tensor(reference));
        }
        Ok((stored, inputs))
    }

    /// The type of an input as the graph states it.
    fn declared(&self, graph: &Graph, name: &str) -> Result<TensorType> {
        let meta = graph.tensor_values.get(name).ok_or_else(|| {
            Diagnostic::new("E357", format!("`{name}` has no type"))
                .expected("an entry in `tensor_values`")
                .found("none")
        })?;
        let dtype = payload::dtype(meta.dtype, &format!("`{name}`"))?;
        let shape: Option<Vec<usize>> =
            meta.sizes.iter().map(|size| symbols::value(size, &self.extents)).collect();
        let shape = shape.ok_or_else(|| {
            Diagnostic::new("E359", format!("the shape of `{name}` cannot be computed"))
                .at(name)
                .expected("numbers, symbols, and sums and products of them")
                .found(format!("{:?}", meta.sizes))
                .help("export with simple dynamic sizes, or without")
        })?;
        self.limits.count(&shape, &format!("`{name}`"))?;
        Ok(TensorType::new(dtype, shape))
    }

    /// Runs every node of a graph.
    fn run(&mut self, graph: &'p Graph, scope: &mut Scope) -> Result<()> {
        for node in &graph.nodes {
            let (path, _) = places::module(&node.metadata);
            if !path.is_empty() {
                partita_nn::context::check_name(path, path)?;
            }
            for (path, class) in places::modules(&node.metadata).filter(|(path, _)| !path.is_empty()) {
                if !self.modules.contains_key(path) {
                    let kind = class.split('[').next().and_then(|c| c.rsplit('.').next()).unwrap_or(class);
                    self.modules.insert(path.to_string(), kind.to_string());
                }
            }
            self.cx.builder.path = path.to_string();
            self.cx.builder.location = places::location(&node.metadata);
            let outcome = match is_region(&node.target) {
                true => self.region(node, scope),
                false => self.call(graph, node, scope),
            };
            outcome.map_err(|mut error| {
                error.at.get_or_insert_with(|| place(node).trim_start_matches("in ").to_string());
                error
            })?;
        }
        Ok(())
    }

    /// Inlines a region: an optional boolean (are gradients enabled), other settings, the graph, its
    /// inputs.
    fn region(&mut self, node: &'p Node, scope: &mut Scope) -> Result<()> {
        let malformed = |expected: &str| {
            Diagnostic::new("E357", format!("`{}` is malformed", node.target))
                .expected(expected)
                .found("another call")
        };
        let position = node.inputs.iter().position(|input| matches!(input.arg, Argument::Graph(_)));
        let position = position.ok_or_else(|| malformed("a nested graph"))?;
        let Argument::Graph(graph) = &node.inputs[position].arg else { unreachable!("just found") };
        let outer = self.grad;
        if node.target == GRAD_REGION {
            let Argument::Bool(enabled) = node.inputs[0].arg else {
                return Err(malformed("a boolean first"));
            };
            self.grad = enabled;
        }
        let arguments = &node.inputs[position + 1..];
        if arguments.len() != graph.inputs.len() {
            return Err(malformed(&format!("{} inputs", graph.inputs.len())));
        }
        let mut inner = Scope::default();
        for (input, argument) in graph.inputs.iter().zip(arguments) {
            let name = match input {
                Argument::Tensor(name) | Argument::Computed(name) | Argument::Int(Int::Name(name)) => name,
                _ => continue,
            };
            let binding = match &argument.arg {
                Argument::Tensor(outer) | Argument::Computed(outer) | Argument::Int(Int::Name(outer)) => {
                    *scope.get(outer)?
                }
                Argument::Int(Int::Value(value)) => Binding::Scalar(Scalar::Int(*value)),
                _ => Binding::Absent,
            };
            inner.0.insert(name.clone(), binding);
        }
        self.run(graph, &mut inner)?;
        self.grad = outer;
        let names = results(node);
        if names.len() != graph.outputs.len() {
            return Err(malformed(&format!("{} results", graph.outputs.len())));
        }
        for (name, output) in names.into_iter().zip(&graph.outputs) {
            let (Some(name), Argument::Tensor(inner_name) | Argument::Int(Int::Name(inner_name))) =
                (name, output)
            else {
                continue;
            };
            let binding = *inner.get(inner_name)?;
            scope.0.insert(name.to_string(), binding);
        }
        Ok(())
    }

    /// Calls the builder function of a node and binds its results.
    fn call(&mut self, graph: &'p Graph, node: &'p Node, scope: &mut Scope) -> Result<()> {
        let row = aten::find(&node.target).ok_or_else(|| {
            Diagnostic::new("E355", "the program has an op that cannot be imported")
                .found(node.target.clone())
        })?;
        let names = results(node);
        let meta = |name: &Option<&str>| name.and_then(|name| graph.tensor_values.get(name));
        let mut declared = Vec::with_capacity(names.len());
        for name in &names {
            declared.push(match meta(name) {
                // A result that nothing reads may have any type.
                Some(meta) => payload::dtype(meta.dtype, "a result").ok(),
                None => None,
            });
        }
        let before = self.cx.builder.graph().nodes.len();
        let mut call = Call { lowering: self, scope, node, graph, declared, read: Vec::new(), before };
        call.check_nodes(0)?;
        let target = if row.in_place { Some(call.reference("self")?) } else { None };
        let outs = (row.build)(&mut call)?;
        let read = std::mem::take(&mut call.read);
        let tracked = read.iter().any(|&tensor| self.tensors.is_tracked(tensor));
        // Without gradients, what derives from a tensor that carries one is to be stopped when it is read with gradients.
        let carries = !self.grad && read.iter().any(|&tensor| self.tensors.carries(tensor));
        if let Some(target) = target {
            return self.write(target, outs, tracked || carries, &names, scope);
        }
        let mut outs = outs.into_iter();
        for name in &names {
            let out = outs.next().unwrap_or(Out::Absent);
            let binding = match out {
                Out::Scalar(value) => Binding::Scalar(value),
                Out::Absent => Binding::Absent,
                Out::Value(value) => {
                    let may_flow = has_gradient(self.cx.builder.ty(value).dtype);
                    Binding::Tensor(self.tensors.fresh(
                        value,
                        may_flow && tracked && self.grad,
                        may_flow && carries,
                    ))
                }
                Out::View { of, views, detach } => {
                    let tensor = self.tensors.view(&mut self.cx.builder, of, views, detach || !self.grad)?;
                    Binding::Tensor(tensor)
                }
            };
            let Some(name) = name else { continue };
            if let (Binding::Tensor(tensor), Some(meta)) = (binding, meta(&Some(name))) {
                self.check(node, name, tensor, meta)?;
            }
            scope.0.insert(name.to_string(), binding);
        }
        Ok(())
    }

    /// Ends an op in place: its result replaces the elements of its target, and is the target.
    fn write(
        &mut self,
        target: TensorRef,
        outs: Vec<Out>,
        tracked: bool,
        names: &[Option<&str>],
        scope: &mut Scope,
    ) -> Result<()> {
        let b = &mut self.cx.builder;
        let old = self.tensors.read(b, target, self.grad)?;
        let ty = b.ty(old).clone();
        let new = match outs.into_iter().next() {
            Some(Out::Value(value)) => value,
            Some(Out::View { of, views, detach }) => {
                let view = self.tensors.view(b, of, views, detach)?;
                self.tensors.read(b, view, self.grad)?
            }
            _ => {
                return Err(Diagnostic::new("E357", "an op in place without a result")
                    .expected("a tensor")
                    .found("none"));
            }
        };
        let fits = b.shape(new).len() <= ty.rank();
        let new = if fits { b.convert(new, ty.dtype)? } else { new };
        let new = if fits { b.broadcast_trailing(new, &ty.shape)? } else { new };
        if *b.ty(new) != ty {
            return Err(Diagnostic::new("E357", "an op in place changes the type of its tensor")
                .expected(ty.to_string())
                .found(b.ty(new).to_string()));
        }
        self.tensors.write(b, target, new, self.grad, tracked)?;
        if let Some(Some(name)) = names.first() {
            scope.0.insert(name.to_string(), Binding::Tensor(target));
        }
        Ok(())
    }

    /// E357 unless a result has the type that the file states; E358 if it is too large.
    fn check(&mut self, node: &Node, name: &str, tensor: TensorRef, meta: &TensorMeta) -> Result<()> {
        // The raw value: reading it here must not add nodes.
        let value = self.tensors.read(&mut self.cx.builder, tensor, false)?;
        let ty = self.cx.builder.ty(value).clone();
        self.limits.count(&ty.shape, &format!("`{name}`"))?;
        let known: Vec<Option<usize>> =
            meta.sizes.iter().map(|size| symbols::value(size, &self.extents)).collect();
        let (mut stated, mut own) = (known.clone(), ty.shape.clone());
        if node.target == "torch.ops.aten.lstm.input" {
            // torch 2.9 states the states of an LSTM with one more extent of 1 than they have.
            stated.retain(|extent| *extent != Some(1));
            own.retain(|extent| *extent != 1);
        }
        let fits = stated.len() == own.len()
            && stated.iter().zip(&own).all(|(stated, own)| stated.is_none_or(|stated| stated == *own));
        let dtype = payload::dtype(meta.dtype, &format!("`{name}`"))?;
        if fits && dtype == ty.dtype {
            return Ok(());
        }
        let extents: Vec<String> =
            known.iter().map(|known| known.map_or("any".into(), |known| known.to_string())).collect();
        Err(Diagnostic::new("E357", format!("`{}` gives another type than the file states", node.target))
            .expected(format!("{} [{}] for `{name}`", dtype, extents.join(", ")))
            .found(ty.to_string())
            .help("if the file is as PyTorch wrote it, this is a mistake of the import: report it"))
    }
}
