//! What the ops of the tables do, and the common form of ops: operands, attributes, types.

use super::reader::{Declared, Op, Reader};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, BitcastConvert, Direction, UnaryKind};
use partita_ir::{GraphBuilder, Literal, Role, TensorType, ValueId};
use partita_mlir::{Attribute, Kind, Named};

/// What an op does.
#[derive(Clone, Copy)]
pub(super) enum Action {
    /// An op of one operand.
    Unary(UnaryKind),
    /// An op of two operands of one type.
    Binary(BinaryKind),
    /// An op of two integers without a sign.
    Unsigned(BinaryKind),
    /// A function of one operand, written with others.
    Function(fn(&mut GraphBuilder, ValueId) -> Result<ValueId>),
    /// A function of two operands.
    Function2(fn(&mut GraphBuilder, ValueId, ValueId) -> Result<ValueId>),
    /// A conversion to the type after `to`.
    Convert(fn(&mut GraphBuilder, ValueId, DType) -> Result<ValueId>),
    /// An op with a form of its own.
    Own(for<'r, 'a> fn(&'r mut Reader<'a>, &'r mut Op<'a>) -> Result<Vec<ValueId>>),
}

/// An op in the common form: `word, %operands {attributes} : types to type`.
#[derive(Default)]
pub(super) struct Simple {
    /// The word before the operands, such as the predicate of a comparison.
    pub word: Option<String>,
    pub operands: Vec<ValueId>,
    pub attributes: Vec<Named>,
    /// The types after the colon.
    pub types: Vec<Declared>,
    /// The type after `to`, `into` or `->`.
    pub to: Vec<Declared>,
}

impl<'a> Reader<'a> {
    /// Reads the common form of either kind.
    pub fn simple(&mut self, op: &mut Op<'a>) -> Result<Simple> {
        let mut simple = Simple::default();
        if let Some(generic) = op.generic() {
            for &operand in &generic.operands {
                simple.operands.push(self.operand(&mut self.cursor(operand))?);
            }
            simple.attributes.clone_from(&generic.attributes);
            let mut cursor = self.cursor(generic.signature.start);
            simple.types = self.types(&mut cursor)?;
            if cursor.kind() == Kind::Arrow {
                cursor.advance();
                simple.to = self.types(&mut cursor)?;
            }
            return Ok(simple);
        }
        let cursor = &mut op.cursor;
        if cursor.kind() == Kind::Word
            && !matches!(cursor.text(), "fastmath" | "overflow")
            && cursor.position < op.end
        {
            simple.word = Some(cursor.text().to_string());
            cursor.advance();
            cursor.eat(',');
        }
        simple.operands = self.operands(cursor)?;
        while cursor.kind() == Kind::Word && cursor.ahead(1) == Kind::Mark('<') && cursor.position < op.end {
            cursor.advance();
            cursor.angle()?;
        }
        if cursor.position < op.end && cursor.kind() == Kind::Mark('{') {
            simple.attributes = cursor.dictionary()?;
        }
        if cursor.position < op.end && cursor.eat(':') {
            simple.types = self.types(cursor)?;
        }
        if cursor.position < op.end
            && (cursor.at_word("to") || cursor.at_word("into") || cursor.kind() == Kind::Arrow)
        {
            cursor.advance();
            simple.to = self.types(cursor)?;
        }
        Ok(simple)
    }

    /// E146 unless an op has this many operands.
    pub fn arity(&self, op: &Op, operands: &[ValueId], count: usize) -> Result<()> {
        match operands.len() == count {
            true => Ok(()),
            false => Err(self
                .error(op.at, "E146", format!("`{}` has a wrong number of operands", op.name))
                .expected(count.to_string())
                .found(operands.len().to_string())),
        }
    }

    /// Does what a table says.
    pub fn act(&mut self, action: Action, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
        let at = op.at;
        if let Action::Own(read) = action {
            return read(self, op);
        }
        let simple = self.simple(op)?;
        let result = match action {
            Action::Convert(convert) => {
                self.arity(op, &simple.operands, 1)?;
                let value = simple.operands[0];
                if let Some(declared) = simple.types.first() {
                    self.check(value, declared, at)?;
                }
                let [to] = &simple.to[..] else {
                    return Err(self.error(at, "E140", "a conversion needs a type").expected("`: T to U`"));
                };
                let known = self.known.get(&value).copied();
                let converted = convert(&mut self.b, value, to.ty.dtype);
                let converted = self.placed(converted, at)?;
                // Indices are converted without a loss.
                if let Some(number) = known.filter(|_| op.name.starts_with("arith.index_cast")) {
                    self.known.insert(converted, number);
                }
                self.check(converted, to, at)?;
                return Ok(vec![converted]);
            }
            Action::Unary(kind) => {
                self.arity(op, &simple.operands, 1)?;
                self.b.unary(kind, simple.operands[0])
            }
            Action::Function(function) => {
                self.arity(op, &simple.operands, 1)?;
                function(&mut self.b, simple.operands[0])
            }
            Action::Binary(kind) => {
                self.arity(op, &simple.operands, 2)?;
                let number = self.folded(kind, &simple.operands);
                let operands = self.alike(&simple.operands)?;
                let result = self.b.binary(kind, operands[0], operands[1]);
                if let (Ok(value), Some(number)) = (&result, number) {
                    self.known.insert(*value, number);
                }
                result
            }
            Action::Function2(function) => {
                self.arity(op, &simple.operands, 2)?;
                let operands = self.alike(&simple.operands)?;
                function(&mut self.b, operands[0], operands[1])
            }
            Action::Unsigned(kind) => {
                self.arity(op, &simple.operands, 2)?;
                let operands = self.alike(&simple.operands)?;
                let dtype = self.b.ty(operands[0]).dtype;
                unsigned(&mut self.b, operands[0]).and_then(|a| {
                    let b = unsigned(&mut self.b, operands[1])?;
                    let result = self.b.binary(kind, a, b)?;
                    bitcast(&mut self.b, result, dtype)
                })
            }
            Action::Own(_) => unreachable!("read above"),
        };
        let result = self.placed(result, at)?;
        if let Some(declared) = simple.types.first() {
            for &operand in &simple.operands {
                self.check(operand, declared, at)?;
            }
        }
        Ok(vec![result])
    }

    /// The result of an op on known integers.
    fn folded(&self, kind: BinaryKind, operands: &[ValueId]) -> Option<i128> {
        let (&a, &b) = (self.known.get(&operands[0])?, self.known.get(&operands[1])?);
        let number = match kind {
            BinaryKind::Add => a.checked_add(b),
            BinaryKind::Subtract => a.checked_sub(b),
            BinaryKind::Multiply => a.checked_mul(b),
            _ => None,
        };
        // Wider results wrap in the program.
        number.filter(|number| i32::try_from(*number).is_ok())
    }

    /// Values of one shape: in the body of a `linalg` op, scalars from outside are repeated.
    pub fn alike(&mut self, values: &[ValueId]) -> Result<Vec<ValueId>> {
        let Some(space) = self.space.clone() else { return Ok(values.to_vec()) };
        if values.iter().all(|&value| self.b.ty(value).rank() == 0) {
            return Ok(values.to_vec());
        }
        values.iter().map(|&value| spread(&mut self.b, value, &space)).collect()
    }

    /// The attribute of a name.
    pub fn attribute<'s>(&self, attributes: &'s [Named], name: &str) -> Option<&'s Attribute> {
        attributes
            .iter()
            .find(|named| self.tree.text(named.name).trim_matches('"') == name)
            .map(|named| &named.value)
    }
}

/// A scalar repeated over a shape; a tensor as it is.
pub(super) fn spread(b: &mut GraphBuilder, value: ValueId, shape: &[usize]) -> Result<ValueId> {
    match b.ty(value).rank() == 0 && !shape.is_empty() {
        true => b.broadcast_scalar(value, shape),
        false => Ok(value),
    }
}

/// The unsigned type of as many bits; others as they are.
pub(super) fn unsigned_type(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        other => other,
    }
}

/// The same bits without a sign.
pub(super) fn unsigned(b: &mut GraphBuilder, value: ValueId) -> Result<ValueId> {
    let dtype = unsigned_type(b.ty(value).dtype);
    bitcast(b, value, dtype)
}

/// The same bits as another type of the same size.
pub(super) fn bitcast(b: &mut GraphBuilder, value: ValueId, dtype: DType) -> Result<ValueId> {
    match b.ty(value).dtype == dtype {
        true => Ok(value),
        false => b.push1(BitcastConvert { dtype }, &[value]),
    }
}

/// `a < b` and its like; of unsigned numbers after [`unsigned`].
pub(super) fn compared(
    b: &mut GraphBuilder,
    direction: Direction,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId> {
    b.compare(direction, x, y)
}

/// A value for reading a literal: the text of an attribute and its type.
pub(super) fn literal(text: &str, ty: &TensorType) -> Result<Literal> {
    let module =
        format!("func.func @main() -> {ty} {{\n%0 = stablehlo.constant {text} : {ty}\nreturn %0 : {ty}\n}}");
    let graph = partita_ir::text::parse(&module)?;
    debug_assert!(graph.inputs.iter().all(|&input| graph.value(input).role == Role::Input));
    let mut values = partita_ir::evaluate(&graph, &[])?;
    Ok(values.remove(0))
}
