//! The interface for an op's file to parse its text: operands, clauses, attributes, regions, types.

use super::attributes::{Attributes, INTEGER_LIMIT, Value};
use super::parser::Parser;
use super::scope::{Capture, Region};
use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::Op;
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};
use partita_mlir::{Form, Kind, OperationId};

/// One op being parsed from its place in the tree: its pretty form token by token, its generic form
/// as structure. Both forms fill the same fields, so an op reads clauses in the pretty form and
/// attributes in the generic form; the rest of its parser is common.
pub(crate) struct OpParser<'p, 't> {
    /// The parser, past the op's name.
    pub parser: &'p mut Parser<'t>,
    /// The op's name.
    pub name: String,
    /// The position of the name.
    pub at: usize,
    id: OperationId,
    /// The operands read so far.
    pub operands: Vec<ValueId>,
    /// Properties and attributes read so far.
    pub attributes: Attributes,
    /// The regions of the generic form.
    pub regions: Vec<Region>,
    /// Declared types of the operands, if the form has them.
    pub operand_types: Option<Vec<TensorType>>,
    /// Declared types of the results.
    pub result_types: Vec<TensorType>,
}

impl<'p, 't> OpParser<'p, 't> {
    pub fn new(parser: &'p mut Parser<'t>, name: String, at: usize, id: OperationId) -> Self {
        OpParser {
            parser,
            name,
            at,
            id,
            operands: Vec::new(),
            attributes: Attributes::default(),
            regions: Vec::new(),
            operand_types: None,
            result_types: Vec::new(),
        }
    }

    /// An error that points at the op.
    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.parser.error_at(self.at, code, message)
    }

    /// Parses all of the generic form, `"op"(%a) <{..}> ({..}) {..} : (T) -> T`, and returns true;
    /// false for the pretty form.
    pub fn generic(&mut self) -> Result<bool> {
        self.generic_with(Capture::Constants)
    }

    /// [`OpParser::generic`] with regions that may use values of the surrounding graph.
    pub fn generic_with(&mut self, capture: Capture) -> Result<bool> {
        let tree = self.parser.tree.clone();
        let Form::Generic(generic) = &tree.operation(self.id).form else { return Ok(false) };
        for &operand in &generic.operands {
            self.operands.push(self.parser.resolve(tree.text(operand), operand)?);
        }
        self.attributes = self.parser.named(&tree, &generic.attributes)?;
        for &region in &generic.regions {
            self.parser.position = tree.region(region).span.start;
            let region = self.parser.region(capture)?;
            self.regions.push(region);
        }
        self.parser.position = generic.signature.start;
        self.operand_types = Some(self.parser.result_types()?);
        // The tree guarantees the arrow here.
        self.parser.advance();
        self.result_types = self.parser.result_types()?;
        Ok(true)
    }

    /// `%a, %b` with any number of values; a comma without a value behind it is not consumed.
    pub fn operands(&mut self) -> Result<()> {
        while self.parser.kind() == Kind::Value {
            let value = self.parser.operand()?;
            self.operands.push(value);
            let more = self.parser.kind_at(self.parser.position + 1) == Kind::Value;
            if !more || !self.parser.eat(',') {
                break;
            }
        }
        Ok(())
    }

    /// `, name = `.
    pub fn clause(&mut self, name: &str) -> Result<()> {
        self.parser.mark(',')?;
        self.parser.keyword(name)?;
        self.parser.mark('=')
    }

    /// `, name = `, or nothing.
    pub fn optional_clause(&mut self, name: &str) -> Result<bool> {
        let next = self.parser.position + 1;
        let here = self.parser.kind() == Kind::Mark(',')
            && self.parser.kind_at(next) == Kind::Word
            && self.parser.text_at(next) == name;
        if here {
            self.clause(name)?;
        }
        Ok(here)
    }

    /// `[1, 2]` of non-negative numbers.
    pub fn index_list(&mut self) -> Result<Vec<usize>> {
        let at = self.parser.position;
        let list = self.parser.integer_list()?;
        to_indices(&list).ok_or_else(|| self.parser.error_at(at, "E147", "these numbers may not be negative"))
    }

    /// A non-negative number.
    pub fn index(&mut self) -> Result<usize> {
        let at = self.parser.position;
        let value = self.parser.integer()?;
        usize::try_from(value)
            .map_err(|_| self.parser.error_at(at, "E147", "this number may not be negative"))
    }

    // ---- attributes ------------------------------------------------------------------------------------

    fn missing(&self, name: &str, kind: &str) -> Box<Diagnostic> {
        let message = match self.attributes.get(name) {
            Some(_) => format!("attribute `{name}` of `{}` has the wrong form", self.name),
            None => format!("`{}` lacks the attribute `{name}`", self.name),
        };
        self.error("E147", message).expected(kind)
    }

    /// An integer list attribute: `array<i64: ..>`, `dense<..>`, or a list. E147 when absent.
    pub fn integers_of(&self, name: &str) -> Result<Vec<i64>> {
        self.optional_integers_of(name)?
            .ok_or_else(|| self.missing(name, "integers such as `array<i64: 0, 1>`"))
    }

    /// The same; `None` when absent.
    pub fn optional_integers_of(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.attributes.get(name) else { return Ok(None) };
        let list =
            integers(value).ok_or_else(|| self.missing(name, "integers such as `array<i64: 0, 1>`"))?;
        if list.iter().any(|v| (*v as i128).abs() > INTEGER_LIMIT) {
            return Err(self.error("E149", format!("attribute `{name}` has too large a number")));
        }
        Ok(Some(list))
    }

    /// A list of non-negative integers. E147 when absent.
    pub fn indices_of(&self, name: &str) -> Result<Vec<usize>> {
        let list = self.integers_of(name)?;
        to_indices(&list).ok_or_else(|| self.missing(name, "non-negative integers"))
    }

    /// The same; `None` when absent.
    pub fn optional_indices_of(&self, name: &str) -> Result<Option<Vec<usize>>> {
        match self.attributes.get(name) {
            Some(_) => self.indices_of(name).map(Some),
            None => Ok(None),
        }
    }

    /// A non-negative integer attribute. E147 when absent.
    pub fn index_of(&self, name: &str) -> Result<usize> {
        match self.attributes.get(name) {
            Some(&Value::Int(value)) if (0..=INTEGER_LIMIT as i64).contains(&value) => Ok(value as usize),
            _ => Err(self.missing(name, "a non-negative integer such as `0 : i64`")),
        }
    }

    /// A flag: true, or present without a value.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.attributes.get(name), Some(Value::Bool(true) | Value::Unit))
    }

    /// The word of an attribute such as `#stablehlo<comparison_direction LT>`.
    pub fn keyword_of(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(Value::Keyword(word)) => Some(word),
            _ => None,
        }
    }

    /// The fields of an attribute such as `#stablehlo.gather<..>`. E147 when absent.
    pub fn record_of(&self, name: &str) -> Result<Attributes> {
        match self.attributes.get(name) {
            Some(Value::Record(fields) | Value::Dictionary(fields)) => Ok(fields.clone()),
            // A record without fields parses as `Other`.
            Some(Value::Other) => Ok(Attributes::default()),
            _ => Err(self.missing(name, "a record such as `#stablehlo.gather<..>`")),
        }
    }

    /// An integer list of a record; absent means empty.
    pub fn field(&self, record: &Attributes, name: &str) -> Result<Vec<usize>> {
        match record.get(name) {
            None => Ok(Vec::new()),
            Some(value) => integers(value)
                .and_then(|list| to_indices(&list))
                .ok_or_else(|| self.missing(name, "a list of non-negative integers")),
        }
    }

    /// A matrix attribute `dense<[[..], ..]> : tensor<RxCxi64>` as its rows. E147 when absent.
    pub fn rows_of(&self, name: &str, columns: usize) -> Result<Vec<Vec<i64>>> {
        let Some(Value::Dense(literal)) = self.attributes.get(name) else {
            return Err(self.missing(name, "rows such as `dense<[[0, 1]]> : tensor<1x2xi64>`"));
        };
        rows(literal, columns).ok_or_else(|| self.missing(name, "a matrix of small integers"))
    }

    // ---- regions ---------------------------------------------------------------------------------------

    /// The region with this number, taken. E140 when there are fewer.
    pub fn region(&mut self, number: usize) -> Result<Graph> {
        if number >= self.regions.len() {
            return Err(self.error("E140", format!("`{}` lacks a region", self.name)));
        }
        Ok(std::mem::take(&mut self.regions[number].graph))
    }

    // ---- types and the end -----------------------------------------------------------------------------

    /// `{..} : types`: a function type, one type for all, a list of one type for each, or `T, .. -> U`.
    pub fn types(&mut self) -> Result<()> {
        self.dictionary()?;
        self.parser.mark(':')?;
        if self.parser.kind() == Kind::Mark('(') {
            self.operand_types = Some(self.parser.result_types()?);
            if self.parser.kind() != Kind::Arrow {
                return Err(self.parser.unexpected("`->`"));
            }
            self.parser.advance();
            self.result_types = self.parser.result_types()?;
            return Ok(());
        }
        let list = self.parser.type_list()?;
        if self.parser.kind() == Kind::Arrow {
            self.parser.advance();
            self.result_types = self.parser.result_types()?;
            self.operand_types = Some(list);
        } else if let [one] = list.as_slice() {
            self.operand_types = Some(vec![one.clone(); self.operands.len()]);
            self.result_types = list;
        } else {
            self.operand_types = Some(list.clone());
            self.result_types = list;
        }
        Ok(())
    }

    /// `{..}` or nothing, added to the attributes.
    pub fn dictionary(&mut self) -> Result<()> {
        let more = self.parser.optional_dictionary()?;
        self.attributes.list.extend(more.list);
        Ok(())
    }

    /// The declared type of the only result. E146 when there is not just one.
    pub fn result_type(&self) -> Result<TensorType> {
        match self.result_types.as_slice() {
            [one] => Ok(one.clone()),
            many => Err(self
                .error("E146", format!("`{}` must have one result", self.name))
                .found(format!("{} types", many.len()))),
        }
    }

    /// The type of an operand.
    pub fn operand_type(&self, number: usize) -> &TensorType {
        self.parser.graph().ty(self.operands[number])
    }

    /// E146 unless there are this many operands.
    pub fn arity(&self, count: usize) -> Result<()> {
        if self.operands.len() == count {
            return Ok(());
        }
        Err(self
            .error("E146", format!("`{}` has a wrong number of operands", self.name))
            .expected(count.to_string())
            .found(self.operands.len().to_string()))
    }

    /// E146 unless there are at least this many operands.
    pub fn at_least(&self, count: usize) -> Result<()> {
        if self.operands.len() >= count {
            return Ok(());
        }
        Err(self
            .error("E146", format!("`{}` needs more operands", self.name))
            .expected(format!("at least {count}"))
            .found(self.operands.len().to_string()))
    }

    /// E146 unless the declared operand types are those of the operands.
    pub fn check_operands(&self) -> Result<()> {
        let Some(declared) = &self.operand_types else { return Ok(()) };
        let graph = self.parser.graph();
        let actual: Vec<TensorType> = self.operands.iter().map(|&v| graph.ty(v).clone()).collect();
        if &actual == declared {
            return Ok(());
        }
        Err(self
            .error("E146", format!("the operands of `{}` do not have the types after `:`", self.name))
            .expected(super::types::print_types(&actual))
            .found(super::types::print_types(declared)))
    }

    /// Ends the op: checks the declared types and appends the node.
    pub fn finish(&mut self, op: impl Into<Op>) -> Result<Vec<ValueId>> {
        self.check_operands()?;
        let operands = std::mem::take(&mut self.operands);
        self.parser.emit(op.into(), &operands, Some(&self.result_types), self.at)
    }

    /// Appends a further node, its result types inferred.
    pub fn emit(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        self.parser.emit(op.into(), operands, None, self.at)
    }
}

fn integers(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Ints(list) => Some(list.clone()),
        Value::Dense(literal) if !literal.ty.dtype.is_float() => Some(literal.to_i64()),
        Value::List(list) => {
            list.iter().map(|v| if let Value::Int(i) = v { Some(*i) } else { None }).collect()
        }
        Value::Int(one) => Some(vec![*one]),
        _ => None,
    }
}

fn to_indices(list: &[i64]) -> Option<Vec<usize>> {
    list.iter().map(|&v| usize::try_from(v).ok()).collect()
}

fn rows(literal: &Literal, columns: usize) -> Option<Vec<Vec<i64>>> {
    let values = literal.to_i64();
    if literal.ty.dtype.is_float() || values.iter().any(|v| (*v as i128).abs() > INTEGER_LIMIT) {
        return None;
    }
    match literal.ty.shape.as_slice() {
        [count, width] if columns == 0 || *width == columns || *count == 0 => {
            Some((0..*count).map(|row| values[row * width..(row + 1) * width].to_vec()).collect())
        }
        [0] => Some(Vec::new()),
        _ => None,
    }
}
