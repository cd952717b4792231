//! Prints modules, functions and values. Each op's own file prints what follows its name.

use super::location::print_location;
use super::op_printer::OpPrinter;
use super::sharding::{print_mesh, print_sharding};
use super::{PrintOptions, Ranks};
use crate::composite::CompositeDefinition;
use crate::graph::{Annotation, Graph, Role, ValueId};
use crate::op::TextForm;
use partita_mesh::{DimSharding, Mesh, Sharding};
use partita_mlir::{is_plain_symbol, quote};
use std::sync::Arc;

/// Text under construction.
pub(crate) struct Printer {
    pub out: String,
    options: PrintOptions,
    indent: usize,
    next_argument: usize,
    next_value: usize,
    meshes: Vec<(Mesh, String)>,
    symbols: Vec<String>,
    /// Decompositions seen so far; they are printed as functions after the entry.
    definitions: Vec<(Arc<CompositeDefinition>, String)>,
}

/// The module of a graph.
pub(crate) fn print_module(graph: &Graph, options: &PrintOptions) -> String {
    let mut printer = Printer {
        out: String::new(),
        options: options.clone(),
        indent: 1,
        next_argument: 0,
        next_value: 0,
        meshes: Vec::new(),
        symbols: Vec::new(),
        definitions: Vec::new(),
    };
    for mesh in &graph.meshes {
        printer.mesh_symbol(mesh);
    }
    let symbol = printer.new_symbol(if graph.name.is_empty() { "main" } else { &graph.name });
    printer.function(graph, &symbol, true);
    let mut number = 0;
    while number < printer.definitions.len() {
        let (definition, symbol) = printer.definitions[number].clone();
        printer.function(&definition.decomposition, &symbol, false);
        number += 1;
    }
    let meshes: String =
        printer.meshes.iter().map(|(mesh, symbol)| format!("  {}\n", print_mesh(mesh, symbol))).collect();
    let attributes = options.ranks.map_or(String::new(), |ranks| {
        let (partitions, replicas) = match ranks {
            Ranks::Partitions(count) => (count, 1),
            Ranks::Replicas(count) => (1, count),
        };
        format!(
            "attributes {{mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = {replicas} : i32}} "
        )
    });
    format!("module {attributes}{{\n{meshes}{}}}\n", printer.out)
}

/// `@name`, quoted where it must be.
pub(crate) fn print_symbol(name: &str) -> String {
    if is_plain_symbol(name) { format!("@{name}") } else { format!("@{}", quote(name)) }
}

/// `{a = b, c}`, sorted by name as MLIR does, after a space; nothing when empty.
pub(crate) fn print_dictionary(mut attributes: Vec<(String, String)>) -> String {
    if attributes.is_empty() {
        return String::new();
    }
    attributes.sort();
    let fields: Vec<String> = attributes
        .into_iter()
        .map(|(name, value)| if value.is_empty() { name } else { format!("{name} = {value}") })
        .collect();
    format!(" {{{}}}", fields.join(", "))
}

/// `array<i64: 1, 2>`.
pub(crate) fn print_array<T: ToString>(values: &[T]) -> String {
    if values.is_empty() {
        return "array<i64>".to_string();
    }
    format!("array<i64: {}>", join(values))
}

/// `1, 2`.
pub(crate) fn join<T: ToString>(values: &[T]) -> String {
    values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(", ")
}

impl Printer {
    /// An unused symbol: the name, or the name and a number.
    fn new_symbol(&mut self, name: &str) -> String {
        let mut symbol = name.to_string();
        let mut number = 0;
        while self.symbols.contains(&symbol) {
            number += 1;
            symbol = format!("{name}_{number}");
        }
        self.symbols.push(symbol.clone());
        symbol
    }

    /// The `@name` of a mesh.
    pub fn mesh_symbol(&mut self, mesh: &Mesh) -> String {
        if let Some((_, symbol)) = self.meshes.iter().find(|(known, _)| known == mesh) {
            return symbol.clone();
        }
        let symbol = self.new_symbol(if mesh.name.is_empty() { "mesh" } else { &mesh.name });
        let symbol = print_symbol(&symbol);
        self.meshes.push((mesh.clone(), symbol.clone()));
        symbol
    }

    /// The `@name` of a composite's decomposition.
    pub fn definition_symbol(&mut self, definition: &Arc<CompositeDefinition>) -> String {
        let same = |known: &Arc<CompositeDefinition>| {
            Arc::ptr_eq(known, definition) || known.decomposition == definition.decomposition
        };
        if let Some((_, symbol)) = self.definitions.iter().find(|(known, _)| same(known)) {
            return print_symbol(symbol);
        }
        let own = &definition.decomposition.name;
        let short = definition.name.rsplit('.').next().unwrap_or("composite");
        let symbol = self.new_symbol(if own.is_empty() { short } else { own });
        self.definitions.push((definition.clone(), symbol.clone()));
        print_symbol(&symbol)
    }

    /// Whether ranks are the replicas of one program.
    pub fn ranks_are_replicas(&self) -> bool {
        matches!(self.options.ranks, Some(Ranks::Replicas(_)))
    }

    /// Starts a line.
    pub fn line(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    pub fn indented(&mut self, body: impl FnOnce(&mut Self)) {
        self.indent += 1;
        body(self);
        self.indent -= 1;
    }

    /// Fresh names for the inputs of a graph; the names of its values so far.
    pub fn input_names(&mut self, graph: &Graph) -> Vec<String> {
        let mut names = vec![String::new(); graph.values.len()];
        for &input in &graph.inputs {
            names[input.index()] = format!("%arg{}", self.next_argument);
            self.next_argument += 1;
        }
        names
    }

    fn function(&mut self, graph: &Graph, symbol: &str, is_entry: bool) {
        (self.next_argument, self.next_value) = (0, 0);
        let mut names = self.input_names(graph);
        // Roles may name later values, so names are assigned before anything is printed.
        let body_start = self.next_value;
        self.value_names(graph, &mut names);
        let visibility = if is_entry { "public" } else { "private" };
        self.line();
        self.out.push_str(&format!("func.func {visibility} {}(", print_symbol(symbol)));
        for (position, &input) in graph.inputs.iter().enumerate() {
            let mut attributes = self.value_attributes(graph, &[input], &names);
            let alias = graph.aliases.iter().find(|(i, _)| *i == position);
            if let Some((_, output)) = alias {
                attributes.push(("tf.aliasing_output".into(), format!("{output} : i32")));
            }
            let comma = if position > 0 { ", " } else { "" };
            let (name, ty) = (&names[input.index()], graph.ty(input));
            self.out.push_str(&format!("{comma}{name}: {ty}{}", print_dictionary(attributes)));
        }
        self.out.push_str(") -> (");
        for (position, &output) in graph.outputs.iter().enumerate() {
            let mut attributes = Vec::new();
            if let Some(name) = graph.output_names.get(position) {
                attributes.push(("jax.result_info".to_string(), quote(name)));
            }
            if let Some(Some(annotation)) = graph.output_annotations.get(position) {
                attributes.extend(self.annotation_attributes(graph, &[annotation]));
            }
            let comma = if position > 0 { ", " } else { "" };
            self.out.push_str(&format!("{comma}{}{}", graph.ty(output), print_dictionary(attributes)));
        }
        self.out.push(')');
        if symbol != graph.name {
            self.out.push_str(&format!(" attributes {{partita.name = {}}}", quote(&graph.name)));
        }
        self.out.push_str(" {\n");
        self.next_value = body_start;
        self.indented(|p| p.block(graph, &mut names, "return"));
        self.line();
        self.out.push_str("}\n");
    }

    /// The names that results will get when the body is printed. Nested regions use the same
    /// counter, so this counts only if a role of a value needs it.
    fn value_names(&mut self, graph: &Graph, names: &mut [String]) {
        let plain = |role: &Role| matches!(role, Role::Activation | Role::Input | Role::Param);
        if graph.values.iter().all(|v| plain(&v.role)) {
            return;
        }
        let (out, argument, value) = (std::mem::take(&mut self.out), self.next_argument, self.next_value);
        let mut scratch = names.to_vec();
        self.block(graph, &mut scratch, "return");
        names.clone_from_slice(&scratch);
        (self.out, self.next_argument, self.next_value) = (out, argument, value);
    }

    /// The statements of a graph and its terminator.
    pub fn block(&mut self, graph: &Graph, names: &mut Vec<String>, terminator: &str) {
        self.groups(graph, &graph.inputs, names);
        for node in &graph.nodes {
            self.line();
            let number = self.next_value;
            match node.results.as_slice() {
                [] => {}
                [one] => names[one.index()] = format!("%{number}"),
                many => {
                    for (result, value) in many.iter().enumerate() {
                        names[value.index()] = format!("%{number}#{result}");
                    }
                }
            }
            if !node.results.is_empty() {
                self.next_value += 1;
                self.out.push_str(&match node.results.len() {
                    1 => format!("%{number} = "),
                    count => format!("%{number}:{count} = "),
                });
            }
            let attributes = self.value_attributes(graph, &node.results, names);
            let mut op = OpPrinter { printer: self, graph, node, names, attributes };
            node.op.print(&mut op);
            if self.options.locations {
                self.out.push_str(&print_location(node));
            }
            self.out.push('\n');
            self.groups(graph, &node.results, names);
        }
        self.line();
        let outputs: Vec<&String> = graph.outputs.iter().map(|v| &names[v.index()]).collect();
        let types: Vec<_> = graph.outputs.iter().map(|&v| graph.ty(v)).collect();
        self.out.push_str(terminator);
        if !outputs.is_empty() {
            self.out.push_str(&format!(" {} : {}", join(&outputs), join(&types)));
        }
        self.out.push('\n');
    }

    /// `sdy.sharding_group %0 group_id=1 : T` for those of these values that are in a group.
    fn groups(&mut self, graph: &Graph, values: &[ValueId], names: &[String]) {
        for &value in values {
            if let Some(group) = graph.value(value).group {
                self.line();
                let (name, ty) = (&names[value.index()], graph.ty(value));
                self.out.push_str(&format!("sdy.sharding_group {name} group_id={group} : {ty}\n"));
            }
        }
    }

    /// Name, role and layout of values as attributes.
    fn value_attributes(
        &mut self,
        graph: &Graph,
        values: &[ValueId],
        names: &[String],
    ) -> Vec<(String, String)> {
        let mut attributes = Vec::new();
        let values_of: Vec<_> = values.iter().map(|&v| graph.value(v)).collect();
        let mut add = |key: &str, texts: Vec<String>| {
            if texts.iter().any(|t| !t.is_empty()) {
                let quoted: Vec<String> = texts.iter().map(|t| quote(t)).collect();
                attributes.push((key.to_string(), one_or_list(quoted)));
            }
        };
        add("partita.name", values_of.iter().map(|v| v.name.clone()).collect());
        let role = |role: &Role| match role {
            Role::Activation => String::new(),
            Role::Input => "input".to_string(),
            Role::Param => "param".to_string(),
            Role::StateOf(v) => format!("state_of {}", names[v.index()]),
            Role::GradOf(v) => format!("grad_of {}", names[v.index()]),
            Role::RematOf(v) => format!("remat_of {}", names[v.index()]),
        };
        add("partita.role", values_of.iter().map(|v| role(&v.role)).collect());
        let annotated: Vec<usize> =
            (0..values.len()).filter(|&i| values_of[i].annotation.is_some()).collect();
        let annotations: Vec<&Annotation> = values_of.iter().filter_map(|v| v.annotation.as_ref()).collect();
        if !annotations.is_empty() {
            attributes.extend(self.annotation_attributes(graph, &annotations));
            if annotated.len() < values.len() {
                attributes.push(("partita.annotated".into(), print_array(&annotated)));
            }
            let is_result = values_of[0].definition.is_some();
            if is_result {
                // Results of an op: Shardy requires the list form there.
                let list: Vec<String> = annotations.iter().map(|a| self.annotation_text(graph, a)).collect();
                for (key, value) in &mut attributes {
                    if key == "sdy.sharding" {
                        *value = format!("#sdy.sharding_per_value<[{}]>", list.join(", "));
                    }
                }
            }
        }
        attributes
    }

    /// `sdy.sharding` with `partita.origin` and, if they differ from 1, `partita.units`.
    pub fn annotation_attributes(
        &mut self,
        graph: &Graph,
        annotations: &[&Annotation],
    ) -> Vec<(String, String)> {
        let list: Vec<String> = annotations.iter().map(|a| self.annotation_text(graph, a)).collect();
        let sharding = match list.as_slice() {
            [one] => format!("#sdy.sharding{one}"),
            many => format!("#sdy.sharding_per_value<[{}]>", many.join(", ")),
        };
        let mut attributes = vec![("sdy.sharding".to_string(), sharding)];
        attributes.extend(origin_attributes(annotations));
        attributes
    }

    /// `<@mesh, [..]>` of an annotation.
    pub fn annotation_text(&mut self, graph: &Graph, annotation: &Annotation) -> String {
        let mesh = &graph.meshes[annotation.mesh];
        let symbol = self.mesh_symbol(mesh);
        print_sharding(mesh, &symbol, &annotation.sharding, &annotation.open, &annotation.replicated)
    }
}

/// `partita.origin`, `partita.units` and `partita.by_element` of annotations.
pub(crate) fn origin_attributes(annotations: &[&Annotation]) -> Vec<(String, String)> {
    let origins = annotations.iter().map(|a| quote(&a.origin)).collect();
    let mut attributes = vec![("partita.origin".to_string(), one_or_list(origins))];
    let shardings: Vec<&Sharding> = annotations.iter().map(|a| &a.sharding).collect();
    if let Some(units) = print_units(&shardings) {
        attributes.push(("partita.units".to_string(), units));
    }
    if let Some(counts) = print_per_dim(&shardings, 0, |dim| dim.by_element) {
        attributes.push(("partita.by_element".to_string(), counts));
    }
    attributes
}

/// The units of shardings, unless all are 1.
pub(crate) fn print_units(shardings: &[&Sharding]) -> Option<String> {
    print_per_dim(shardings, 1, |dim| dim.unit)
}

/// A number for each dimension of shardings, unless all are the default.
fn print_per_dim(
    shardings: &[&Sharding],
    usual: usize,
    number: impl Fn(&DimSharding) -> usize,
) -> Option<String> {
    let numbers = |s: &&Sharding| s.dims.iter().map(&number).collect::<Vec<usize>>();
    let trivial = shardings.iter().flat_map(numbers).all(|number| number == usual);
    (!trivial).then(|| one_or_list(shardings.iter().map(|s| print_array(&numbers(s))).collect()))
}

fn one_or_list(texts: Vec<String>) -> String {
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}
