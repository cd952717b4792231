//! The textual form of a graph: StableHLO MLIR with `sdy` meshes and shardings.
//!
//! It reads what JAX prints, and StableHLO's own tools read what it prints. `print` and `parse` are
//! inverse to each other. A graph is a module with one public function; composites' decompositions
//! are private ones. Facts without a place in MLIR are attributes, which other tools drop or keep:
//!
//! | fact | text |
//! |---|---|
//! | name of a value | `partita.name = "x"` on arguments and ops (a list on ops with several results); `loc("x")` on region arguments |
//! | name of an output | `jax.result_info = "loss"` |
//! | role of a value | `partita.role = "param"`, `"input"`, `"state_of %arg0"`, `"grad_of %3"` |
//! | requested layout | `sdy.sharding`, with `partita.origin`, and `partita.units` if a unit is not 1, `partita.by_element` if axes split at single elements |
//! | an output that replaces an input | `tf.aliasing_output = 0 : i32` |
//! | module path, phase, microbatch | the location's name: `loc("weight_grad@2/layers.0.attn"("model.rs":12:0))` |
//! | extents of an uneven collective | `partita.extents = array<i64: 2, 1>` |
//!
//! Other tools read all of it except two features: uneven collectives, and layouts that are partial
//! under another combiner than the sum (`unreduced={"x" max}`).
//!
//! The text is first parsed to a syntax tree (`partita_mlir`), from which modules, functions and
//! ops parse their parts, each op in its own file. Parsing never panics, and takes time
//! proportional to the text and its expanded calls. Diagnostics: E140 syntax, E141 unknown op, E142
//! type, E143 name, E144 known but not supported, E145 literal, E146 types that do not agree, E147
//! attribute, E148 sharding, E149 limits.

mod attributes;
mod canonical;
mod facts;
mod folding;
mod functions;
mod literals;
mod location;
mod module;
mod one_device;
mod op_parser;
mod op_printer;
#[cfg(test)]
mod op_tests;
mod parser;
mod printer;
#[cfg(test)]
mod reader_tests;
mod scope;
mod sharding;
mod statements;
#[cfg(test)]
mod tests;
mod types;

pub use canonical::canonical;
pub use types::tensor_type;

pub(crate) use attributes::Value;
pub(crate) use facts::set_units;
pub(crate) use literals::{Float, float_text, parse_integer, print_decimal, print_dense, print_f64};
pub(crate) use op_parser::OpParser;
pub(crate) use op_printer::OpPrinter;
pub(crate) use partita_mlir::{Kind, is_plain_symbol, quote, unquote};
pub(crate) use printer::{join, origin_attributes, print_array, print_dictionary, print_units};
pub(crate) use scope::{Capture, Region};
pub(crate) use sharding::{ShardingText, print_sharding};
pub(crate) use types::{print_results, print_types};

use crate::composite::Registry;
use crate::graph::Graph;
use partita_base::Result;

/// What to print besides the program.
#[derive(Clone, Debug)]
pub struct PrintOptions {
    /// Module paths, phases and source locations, as trailing `loc(..)`.
    pub locations: bool,
    /// What the ranks are to XLA, with their number; `None` leaves it to the program that compiles the text.
    pub ranks: Option<Ranks>,
}

/// What ranks are to XLA. The module says so in `mhlo.num_partitions` and `mhlo.num_replicas`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranks {
    /// The partitions of a global graph, or of a local one.
    Partitions(usize),
    /// The replicas of a local graph, which XLA does not partition further: the rank's number is `replica_id`, and
    /// collectives name replicas.
    Replicas(usize),
}

impl Default for PrintOptions {
    fn default() -> Self {
        PrintOptions { locations: true, ranks: None }
    }
}

/// The text of a graph, with locations.
pub fn print(graph: &Graph) -> String {
    print_with(graph, &PrintOptions::default())
}

/// The text of a graph.
pub fn print_with(graph: &Graph, options: &PrintOptions) -> String {
    printer::print_module(graph, options)
}

/// Reads a graph: the function `@main`, or the only public one, with all calls inlined. Diagnostics E140 to E149.
pub fn parse(text: &str) -> Result<Graph> {
    parse_named(text, "<text>")
}

/// [`parse`] with a file name for messages and for the origin of annotations.
pub fn parse_named(text: &str, file_name: &str) -> Result<Graph> {
    parse_with(text, file_name, &Registry::default())
}

/// [`parse_named`] with a registry: a composite whose decomposition equals the one of the template
/// of its name becomes that template.
pub fn parse_with(text: &str, file_name: &str, registry: &Registry) -> Result<Graph> {
    parser::Parser::new(partita_mlir::Source { text, file: file_name }, registry)?.module(None)
}

/// [`parse_with`] for another function than the entry. E143 if there is none of this name.
pub fn parse_function(text: &str, file_name: &str, registry: &Registry, function: &str) -> Result<Graph> {
    parser::Parser::new(partita_mlir::Source { text, file: file_name }, registry)?.module(Some(function))
}
