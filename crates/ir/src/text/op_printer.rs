//! The interface for an op's file to print its text.

use super::printer::{Printer, join, print_dictionary};
use super::types::{print_results, print_types};
use crate::graph::{Graph, Node};
use crate::types::TensorType;
use partita_mlir::quote;

/// One op being printed: its name, clauses, attributes and types are appended in order.
pub(crate) struct OpPrinter<'a> {
    pub printer: &'a mut Printer,
    pub graph: &'a Graph,
    pub node: &'a Node,
    /// The names of the graph's values.
    pub names: &'a [String],
    /// Name, role and layout of the results, not yet printed.
    pub attributes: Vec<(String, String)>,
}

impl OpPrinter<'_> {
    /// Appends text.
    pub fn push(&mut self, text: &str) {
        self.printer.out.push_str(text);
    }

    /// The name of an operand.
    pub fn operand(&self, number: usize) -> String {
        self.names[self.node.operands[number].index()].clone()
    }

    /// `%a, %b`.
    pub fn operands(&self) -> String {
        join(&self.node.operands.iter().map(|v| &self.names[v.index()]).collect::<Vec<_>>())
    }

    /// The types of the operands.
    pub fn operand_types(&self) -> Vec<TensorType> {
        self.graph.operand_types(self.node).into_iter().cloned().collect()
    }

    /// The types of the results.
    pub fn result_types(&self) -> Vec<TensorType> {
        self.graph.result_types(self.node).into_iter().cloned().collect()
    }

    /// `{..}` with attributes of the results; nothing if there are none.
    pub fn attributes(&mut self) {
        let attributes = std::mem::take(&mut self.attributes);
        self.push(&print_dictionary(attributes));
    }

    /// `name %a, %b<clauses> {..} : (T, U) -> V`.
    pub fn pretty(&mut self, name: &str, clauses: &str) {
        let operands = self.operands();
        self.push(&format!("{name} {operands}{clauses}"));
        self.function_type();
    }

    /// [`OpPrinter::pretty`] with `: T` if operands and result share it.
    pub fn pretty_same_type(&mut self, name: &str, clauses: &str) {
        let operands = self.operands();
        self.push(&format!("{name} {operands}{clauses}"));
        let result = self.result_types();
        if self.operand_types().iter().all(|t| t == &result[0]) {
            self.attributes();
            self.push(&format!(" : {}", result[0]));
        } else {
            self.function_type();
        }
    }

    /// `{..} : (T, U) -> V`.
    pub fn function_type(&mut self) {
        self.attributes();
        let (operands, results) = (self.operand_types(), self.result_types());
        self.push(&format!(" : ({}) -> {}", print_types(&operands), print_results(&results)));
    }

    /// `"name"(%a) <{..}> ({..}) {..} : (T) -> T`, with arguments on each region.
    pub fn generic(&mut self, name: &str, properties: &[(&str, String)], regions: &[&Graph]) {
        self.generic_start(name, properties);
        if !regions.is_empty() {
            self.push(" (");
            for (number, region) in regions.iter().enumerate() {
                if number > 0 {
                    self.push(", ");
                }
                let mut names = self.printer.input_names(region);
                self.block_with_label(region, &mut names);
            }
            self.push(")");
        }
        self.function_type();
    }

    /// `"name"(%a) <{..}>`.
    pub fn generic_start(&mut self, name: &str, properties: &[(&str, String)]) {
        let operands = self.operands();
        self.push(&format!("{}({operands})", quote(name)));
        if !properties.is_empty() {
            let list = properties.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
            self.push(&format!(" <{}>", &print_dictionary(list)[1..]));
        }
    }

    /// `{` newline, `^bb0(..):`, statements, `}`.
    fn block_with_label(&mut self, region: &Graph, names: &mut Vec<String>) {
        self.push("{\n");
        if !region.inputs.is_empty() {
            self.printer.line();
            let arguments = self.arguments(region, names);
            self.push(&format!("^bb0({arguments}):\n"));
        }
        self.statements(region, names, "stablehlo.return");
        self.push("}");
    }

    /// Statements on lines of their own, and the indent of the closing bracket.
    pub fn statements(&mut self, region: &Graph, names: &mut Vec<String>, terminator: &str) {
        self.printer.indented(|p| p.block(region, names, terminator));
        self.printer.line();
    }

    /// `%a: T loc("name"), %b: U`.
    pub fn arguments(&self, region: &Graph, names: &[String]) -> String {
        let arguments: Vec<String> = region
            .inputs
            .iter()
            .map(|&input| {
                let value = region.value(input);
                let location = if value.name.is_empty() {
                    String::new()
                } else {
                    format!(" loc({})", quote(&value.name))
                };
                format!("{}: {}{location}", names[input.index()], value.ty)
            })
            .collect();
        arguments.join(", ")
    }
}
