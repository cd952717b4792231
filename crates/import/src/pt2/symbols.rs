//! Symbolic sizes: which there are, and what they become. An import fixes each to a number.

use super::schema::{Argument, Expression, Hint, InputSpec, Program, Size};
use crate::ImportOptions;
use partita_base::{Diagnostic, Result, did_you_mean};
use std::collections::BTreeMap;

/// A symbolic size of the inputs, such as the batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// `s17`
    pub name: String,
    /// Its extent in the example that the model was exported with.
    pub example: Option<usize>,
    /// The smallest and the largest extent, where the file has bounds.
    pub bounds: (Option<i64>, Option<i64>),
    /// The first input that has it, and the dimension.
    pub first: (String, usize),
}

/// The user inputs that are tensors.
pub fn user_inputs(program: &Program) -> impl Iterator<Item = &str> {
    program.graph_module.signature.input_specs.iter().filter_map(|spec| match spec {
        InputSpec::UserInput { arg: Argument::Tensor(name) } => Some(name.as_str()),
        _ => None,
    })
}

/// The first extent of an input, if it is a number.
fn rows(program: &Program, input: &str) -> Option<usize> {
    match program.graph_module.graph.tensor_values.get(input)?.sizes.first()? {
        Size::AsInt(rows) => usize::try_from(*rows).ok(),
        Size::AsExpr(_) => None,
    }
}

/// The symbols of the inputs, in order of first use.
pub fn of(program: &Program) -> Result<Vec<Symbol>> {
    let mut symbols: Vec<Symbol> = Vec::new();
    for input in user_inputs(program) {
        let Some(meta) = program.graph_module.graph.tensor_values.get(input) else { continue };
        for (dim, size) in meta.sizes.iter().enumerate() {
            let Size::AsExpr(expression) = size else { continue };
            let Some(name) = symbol(&expression.expr_str) else { continue };
            if symbols.iter().any(|known| known.name == name) {
                continue;
            }
            let bounds = program.range_constraints.get(name);
            symbols.push(Symbol {
                name: name.to_string(),
                example: example(expression),
                bounds: (bounds.and_then(|b| b.min_val), bounds.and_then(|b| b.max_val)),
                first: (input.to_string(), dim),
            });
        }
    }
    Ok(symbols)
}

fn example(expression: &Expression) -> Option<usize> {
    match expression.hint {
        Some(Hint::Int(value)) => usize::try_from(value).ok(),
        _ => None,
    }
}

/// The symbol of `Symbol('s17', positive=True, integer=True)`.
fn symbol(text: &str) -> Option<&str> {
    let (name, _) = text.trim().strip_prefix("Symbol('")?.split_once('\'')?;
    text.trim().ends_with(')').then_some(name)
}

/// The extent of each symbol. E359 for a chosen extent of a symbol that does not exist, out of
/// bounds, for a symbol without any extent, or for a batch that the `ranks` of the program cannot share.
pub fn extents(program: &Program, options: &ImportOptions, ranks: usize) -> Result<BTreeMap<String, usize>> {
    let symbols = of(program)?;
    let mut chosen = options.sizes.clone();
    if let Some(batch) = options.batch {
        let first = user_inputs(program).next();
        let batch_symbol = symbols.iter().find(|s| Some(s.first.0.as_str()) == first && s.first.1 == 0);
        match batch_symbol {
            // A batch that is fixed may still be named: it says which inputs have a row for each sample.
            None if user_inputs(program).any(|input| rows(program, input) == Some(batch)) => {}
            None => {
                return Err(Diagnostic::new("E359", "the batch of this program is fixed")
                    .at(first.unwrap_or("the inputs"))
                    .expected(format!(
                        "a symbolic first dimension, to be set to {batch}, or {batch} rows in an input"
                    ))
                    .found("other numbers")
                    .help("export with `dynamic_shapes`, or use the batch of the export"));
            }
            Some(symbol) if !batch.is_multiple_of(ranks) => {
                return Err(Diagnostic::new(
                    "E359",
                    "the batch cannot be shared by the ranks of the program",
                )
                .at(format!("dimension 0 of `{}`", symbol.first.0))
                .expected(format!("a multiple of {ranks} rows"))
                .found(batch.to_string()));
            }
            Some(symbol) => drop(chosen.insert(symbol.name.clone(), batch / ranks)),
        }
    }
    if let Some(unknown) = chosen.keys().find(|name| !symbols.iter().any(|s| &s.name == *name)) {
        let names: Vec<&str> = symbols.iter().map(|s| s.name.as_str()).collect();
        let mut error = Diagnostic::new("E359", format!("the program has no symbolic size `{unknown}`"))
            .expected(if names.is_empty() { "no sizes: all are fixed".into() } else { names.join(", ") })
            .found(unknown.clone());
        error.help = did_you_mean(unknown, names);
        return Err(error);
    }
    let mut extents = BTreeMap::new();
    for Symbol { name, example, bounds, first } in symbols {
        let extent = chosen.get(&name).copied().or(example).ok_or_else(|| {
            Diagnostic::new("E359", format!("the symbolic size `{name}` has no extent"))
                .at(format!("dimension {} of `{}`", first.1, first.0))
                .expected("an extent in the options, or one of the example in the file")
                .found("neither")
        })?;
        let value = i64::try_from(extent).unwrap_or(i64::MAX);
        if bounds.0.is_some_and(|min| value < min) || bounds.1.is_some_and(|max| value > max) {
            let bound = |bound: Option<i64>| bound.map_or("any".to_string(), |bound| bound.to_string());
            return Err(Diagnostic::new("E359", format!("the symbolic size `{name}` is out of bounds"))
                .at(format!("dimension {} of `{}`", first.1, first.0))
                .expected(format!("{} to {}", bound(bounds.0), bound(bounds.1)))
                .found(extent.to_string())
                .help("export with other bounds: `torch.export.Dim(name, min=.., max=..)`"));
        }
        extents.insert(name, extent);
    }
    Ok(extents)
}

/// The value of a size, if it is a number or an expression of sums and products over known symbols.
pub fn value(size: &Size, extents: &BTreeMap<String, usize>) -> Option<usize> {
    match size {
        Size::AsInt(value) => usize::try_from(*value).ok(),
        Size::AsExpr(expression) => {
            let mut rest = expression.expr_str.as_str();
            let value = expression_value(&mut rest, extents, 0)?;
            if rest.trim().is_empty() { usize::try_from(value).ok() } else { None }
        }
    }
}

/// Reads one term of sympy's `srepr`: `Integer(2)`, `Symbol('s0', ..)`, `Add(.., ..)`, `Mul(.., ..)`.
fn expression_value(rest: &mut &str, extents: &BTreeMap<String, usize>, depth: usize) -> Option<i64> {
    let (head, tail) = rest.trim_start().split_once('(')?;
    *rest = tail;
    match head {
        "Symbol" => {
            let (arguments, tail) = tail.split_once(')')?;
            *rest = tail;
            let name = arguments.trim().strip_prefix('\'')?.split_once('\'')?.0;
            extents.get(name).and_then(|&extent| i64::try_from(extent).ok())
        }
        "Integer" => {
            let (digits, tail) = tail.split_once(')')?;
            *rest = tail;
            digits.trim().parse().ok()
        }
        "Add" | "Mul" if depth < 16 => {
            let mut result = if head == "Add" { 0i64 } else { 1 };
            loop {
                let term = expression_value(rest, extents, depth + 1)?;
                result = if head == "Add" { result.checked_add(term)? } else { result.checked_mul(term)? };
                let next = rest.trim_start();
                if let Some(tail) = next.strip_prefix(')') {
                    *rest = tail;
                    return Some(result);
                }
                *rest = next.strip_prefix(',')?;
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_over_symbols_have_values() {
        let extents = BTreeMap::from([("s0".to_string(), 3)]);
        let of =
            |text: &str| value(&Size::AsExpr(Expression { expr_str: text.into(), hint: None }), &extents);
        assert_eq!(of("Symbol('s0', positive=True, integer=True)"), Some(3));
        assert_eq!(of("Add(Mul(Integer(2), Symbol('s0', positive=True)), Integer(-1))"), Some(5));
        assert_eq!(of("Symbol('s1', positive=True)"), None);
        assert_eq!(of("Mul(Integer(2), Symbol('s0'"), None);
        assert_eq!(of("Integer(9223372036854775808)"), None);
        assert_eq!(of("Pow(Symbol('s0'), Integer(2))"), None);
        assert_eq!(of("Integer(-2)"), None);
    }
}
