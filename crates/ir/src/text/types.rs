//! `tensor<2x3xf32>` and lists of types.

use super::parser::Parser;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mlir::Kind;

/// The limit on elements of a type: far beyond any tensor, far below overflow.
const ELEMENT_LIMIT: u128 = 1 << 48;

impl Parser<'_> {
    /// `tensor<2x3xf32>`. E142 names unsupported element types and shapes.
    pub fn tensor_type(&mut self) -> Result<TensorType> {
        let start = self.token().start;
        if !self.at_word("tensor") {
            if self.kind() == Kind::Mark('!') || self.kind() == Kind::Word {
                return Err(self
                    .error("E142", "not a tensor type")
                    .expected("a ranked tensor such as `tensor<2x3xf32>`")
                    .found(self.found()));
            }
            return Err(self.unexpected("a type"));
        }
        self.advance();
        if self.kind() != Kind::Mark('<') {
            return Err(self.unexpected("`<`"));
        }
        let tree = self.tree.clone();
        let mut cursor = self.cursor(&tree);
        cursor.angle().map_err(|_| self.source.error("E142", "this type is not closed", start))?;
        let (open, close) = (tree.tokens.list[self.position], tree.tokens.list[cursor.position - 1]);
        let raw = &self.source.text[open.end..close.start];
        let refuse = |what: &str| self.source.error("E142", what, start).found(format!("`tensor<{raw}>`"));
        let ty = tensor_type(raw, &refuse)?;
        self.position = cursor.position;
        Ok(ty)
    }

    /// Types with commas between.
    pub fn type_list(&mut self) -> Result<Vec<TensorType>> {
        let mut types = vec![self.tensor_type()?];
        while self.eat(',') {
            types.push(self.tensor_type()?);
        }
        Ok(types)
    }

    /// `T`, or `(T, U)` with any number of types.
    pub fn result_types(&mut self) -> Result<Vec<TensorType>> {
        if self.kind() != Kind::Mark('(') {
            return Ok(vec![self.tensor_type()?]);
        }
        self.advance();
        let types = if self.kind() == Kind::Mark(')') { Vec::new() } else { self.type_list()? };
        self.mark(')')?;
        Ok(types)
    }
}

/// The type whose text between the brackets of `tensor<..>` is `raw`; `refuse` makes a diagnostic of what is wrong.
///
/// # Errors
/// What `refuse` makes: E142.
pub fn tensor_type(raw: &str, refuse: &dyn Fn(&str) -> Box<Diagnostic>) -> Result<TensorType> {
    let compact: String = raw.chars().filter(|c| !c.is_whitespace()).collect();
    if compact.contains('?') || compact.contains('*') {
        return Err(refuse("shapes must be static").help("lower the program with concrete shapes"));
    }
    if compact.contains("!quant") {
        return Err(refuse("quantized element types are not supported"));
    }
    let mut shape = Vec::new();
    let mut rest = compact.as_str();
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let Some((extent, after)) = rest.split_once('x') else { break };
        let Ok(extent) = extent.parse::<u64>() else { return Err(refuse("an extent is not a number")) };
        shape.push(extent as usize);
        rest = after;
    }
    if rest.starts_with('-') {
        return Err(refuse("an extent is negative").expected("extents of at least 0"));
    }
    let count =
        shape.iter().try_fold(1u128, |n, &e| Some(n * (e as u128).max(1)).filter(|&n| n <= ELEMENT_LIMIT));
    if count.is_none() {
        return Err(refuse("this tensor has too many elements"));
    }
    let dtype = DType::from_mlir_name(rest).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|d| d.mlir_name()).collect();
        refuse("this element type is not supported").expected(format!("one of {}", known.join(", ")))
    })?;
    Ok(TensorType { dtype, shape })
}

/// `T` or `(T, U)`.
pub(crate) fn print_results(types: &[TensorType]) -> String {
    match types {
        [one] => one.to_string(),
        many => format!("({})", print_types(many)),
    }
}

/// Types with commas between.
pub(crate) fn print_types(types: &[TensorType]) -> String {
    types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ")
}
