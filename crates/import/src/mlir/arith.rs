//! The dialect `arith`: elementwise arithmetic on scalars and tensors. Integers have no sign; the name of an op says whether
//! it takes them as signed.

use super::elementwise::Action::{self, Binary, Convert, Function2, Own, Unary, Unsigned};
use super::elementwise::{bitcast, compared, literal, spread, unsigned};
use super::reader::{Op, Reader};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};
use partita_ir::{GraphBuilder, TensorType, ValueId};
use partita_mlir::Attribute;

pub(super) const OPS: &[(&str, Action)] = &[
    ("arith.constant", Own(constant)),
    ("arith.addf", Binary(BinaryKind::Add)),
    ("arith.subf", Binary(BinaryKind::Subtract)),
    ("arith.mulf", Binary(BinaryKind::Multiply)),
    ("arith.divf", Binary(BinaryKind::Divide)),
    ("arith.remf", Binary(BinaryKind::Remainder)),
    ("arith.negf", Unary(UnaryKind::Negate)),
    ("arith.maximumf", Binary(BinaryKind::Maximum)),
    ("arith.minimumf", Binary(BinaryKind::Minimum)),
    ("arith.maxnumf", Function2(|b, x, y| number(b, BinaryKind::Maximum, x, y))),
    ("arith.minnumf", Function2(|b, x, y| number(b, BinaryKind::Minimum, x, y))),
    ("arith.addi", Binary(BinaryKind::Add)),
    ("arith.subi", Binary(BinaryKind::Subtract)),
    ("arith.muli", Binary(BinaryKind::Multiply)),
    ("arith.divsi", Binary(BinaryKind::Divide)),
    ("arith.divui", Unsigned(BinaryKind::Divide)),
    ("arith.remsi", Binary(BinaryKind::Remainder)),
    ("arith.remui", Unsigned(BinaryKind::Remainder)),
    ("arith.maxsi", Binary(BinaryKind::Maximum)),
    ("arith.minsi", Binary(BinaryKind::Minimum)),
    ("arith.maxui", Unsigned(BinaryKind::Maximum)),
    ("arith.minui", Unsigned(BinaryKind::Minimum)),
    ("arith.andi", Binary(BinaryKind::And)),
    ("arith.ori", Binary(BinaryKind::Or)),
    ("arith.xori", Binary(BinaryKind::Xor)),
    ("arith.shli", Binary(BinaryKind::ShiftLeft)),
    ("arith.shrsi", Binary(BinaryKind::ShiftRightArithmetic)),
    ("arith.shrui", Binary(BinaryKind::ShiftRightLogical)),
    ("arith.cmpf", Own(compare_floats)),
    ("arith.cmpi", Own(compare_integers)),
    ("arith.select", Own(select)),
    ("arith.extf", Convert(|b, x, to| b.convert(x, to))),
    ("arith.truncf", Convert(|b, x, to| b.convert(x, to))),
    ("arith.sitofp", Convert(signed_to)),
    ("arith.extsi", Convert(signed_to)),
    ("arith.uitofp", Convert(unsigned_to)),
    ("arith.extui", Convert(unsigned_to)),
    ("arith.fptosi", Convert(|b, x, to| b.convert(x, to))),
    ("arith.fptoui", Convert(float_to_unsigned)),
    ("arith.trunci", Convert(truncate)),
    ("arith.index_cast", Convert(signed_to)),
    ("arith.index_castui", Convert(unsigned_to)),
    ("arith.bitcast", Convert(bitcast)),
];

/// `arith.constant dense<1.0> : tensor<4xf32>`, `arith.constant 1.0 : f32`, `arith.constant true`.
fn constant<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let (attribute, declared) = match op.generic() {
        Some(generic) => {
            let value = reader.attribute(&generic.attributes, "value").cloned();
            let value = value.ok_or_else(|| reader.error(op.at, "E147", "a constant without a value"))?;
            let mut cursor = reader.cursor(generic.signature.end - 1);
            while cursor.position > generic.signature.start && cursor.kind() != partita_mlir::Kind::Arrow {
                cursor.position -= 1;
            }
            cursor.advance();
            (value, reader.types(&mut cursor)?.pop())
        }
        None => {
            if op.cursor.kind() == partita_mlir::Kind::Mark('{') {
                op.cursor.dictionary()?;
            }
            let start = op.cursor.position;
            let attribute = op.cursor.attribute()?;
            // The type is the last part of the attribute: read it again as a type.
            let mut cursor = reader.cursor(start);
            let mut declared = None;
            while cursor.position < op.cursor.position {
                if cursor.kind() == partita_mlir::Kind::Mark(':') {
                    cursor.advance();
                    declared = Some(reader.read_type(&mut cursor)?);
                } else {
                    cursor.group();
                }
            }
            (attribute, declared)
        }
    };
    let text = match &attribute {
        Attribute::Plain(token, _) => format!("dense<{}>", reader.tree.text(*token)),
        Attribute::Builtin(word, inside, _) if reader.tree.text(*word) == "dense" => {
            format!("dense<{}>", reader.tree.slice(inside))
        }
        _ => {
            return Err(reader
                .error(op.at, "E145", "this constant is not supported")
                .expected("`dense<..>` or a number"));
        }
    };
    let is_flag = matches!(text.as_str(), "dense<true>" | "dense<false>");
    let ty = match declared {
        Some(declared) => declared.ty,
        None if is_flag => TensorType::scalar(DType::Bool),
        None => return Err(reader.error(op.at, "E140", "a constant without a type")),
    };
    let value = literal(&text, &ty).map_err(|error| {
        reader
            .error(op.at, "E145", "this constant cannot be read")
            .expected(ty.to_string())
            .found(error.message.clone())
    })?;
    let number = (ty.rank() == 0 && ty.dtype.is_integer()).then(|| value.to_i128()[0]);
    let value = reader.b.constant(value);
    if let Some(number) = number {
        reader.known.insert(value, number);
    }
    Ok(vec![value])
}

/// The larger or smaller number; NaN only if both are.
fn number(b: &mut GraphBuilder, kind: BinaryKind, x: ValueId, y: ValueId) -> Result<ValueId> {
    let (x_is, y_is) = (b.compare(Direction::Eq, x, x)?, b.compare(Direction::Eq, y, y)?);
    let chosen = b.binary(kind, x, y)?;
    let with_y = b.select(y_is, chosen, x)?;
    b.select(x_is, with_y, y)
}

/// A conversion of a number with a sign. A set bit of type `i1` is -1.
fn signed_to(b: &mut GraphBuilder, x: ValueId, to: DType) -> Result<ValueId> {
    let is_flag = b.ty(x).dtype == DType::Bool;
    let converted = b.convert(x, to)?;
    if is_flag && to != DType::Bool { b.negate(converted) } else { Ok(converted) }
}

fn unsigned_to(b: &mut GraphBuilder, x: ValueId, to: DType) -> Result<ValueId> {
    let x = unsigned(b, x)?;
    b.convert(x, to)
}

fn float_to_unsigned(b: &mut GraphBuilder, x: ValueId, to: DType) -> Result<ValueId> {
    let converted = b.convert(x, super::elementwise::unsigned_type(to))?;
    bitcast(b, converted, to)
}

/// The low bits.
fn truncate(b: &mut GraphBuilder, x: ValueId, to: DType) -> Result<ValueId> {
    if to != DType::Bool {
        return b.convert(x, to);
    }
    let one = b.full_like(x, 1.0)?;
    let low = b.binary(BinaryKind::And, x, one)?;
    b.convert(low, DType::Bool)
}

/// The predicate: a word of the pretty form, a number of the generic one.
fn predicate<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>, names: &[&str]) -> Result<(String, Vec<ValueId>)> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 2)?;
    for &operand in &simple.operands {
        if let Some(declared) = simple.types.first() {
            reader.check(operand, declared, op.at)?;
        }
    }
    let number = match reader.attribute(&simple.attributes, "predicate") {
        Some(Attribute::Plain(token, _)) => reader.tree.text(*token).parse::<usize>().ok(),
        _ => None,
    };
    let name = simple.word.or_else(|| names.get(number?).map(|name| name.to_string()));
    let name = name.filter(|name| names.contains(&name.as_str())).ok_or_else(|| {
        reader.error(op.at, "E147", "this predicate does not exist").expected(names.join(", "))
    })?;
    Ok((name, reader.alike(&simple.operands)?))
}

const FLOAT_PREDICATES: &[&str] = &[
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une",
    "uno", "true",
];

fn compare_floats<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let (name, operands) = predicate(reader, op, FLOAT_PREDICATES)?;
    let result = float_predicate(&mut reader.b, &name, operands[0], operands[1]);
    Ok(vec![reader.placed(result, op.at)?])
}

/// Ordered predicates are false, unordered ones true, where an operand is NaN.
fn float_predicate(b: &mut GraphBuilder, name: &str, x: ValueId, y: ValueId) -> Result<ValueId> {
    let negated = |b: &mut GraphBuilder, name: &str| {
        let opposite = float_predicate(b, name, x, y)?;
        b.unary(UnaryKind::Not, opposite)
    };
    match name {
        "oeq" => compared(b, Direction::Eq, x, y),
        "ogt" => compared(b, Direction::Gt, x, y),
        "oge" => compared(b, Direction::Ge, x, y),
        "olt" => compared(b, Direction::Lt, x, y),
        "ole" => compared(b, Direction::Le, x, y),
        "une" => compared(b, Direction::Ne, x, y),
        "ord" => {
            let (x, y) = (b.compare(Direction::Eq, x, x)?, b.compare(Direction::Eq, y, y)?);
            b.binary(BinaryKind::And, x, y)
        }
        "one" => {
            let (ordered, other) = (float_predicate(b, "ord", x, y)?, b.compare(Direction::Ne, x, y)?);
            b.binary(BinaryKind::And, ordered, other)
        }
        "ueq" => negated(b, "one"),
        "ugt" => negated(b, "ole"),
        "uge" => negated(b, "olt"),
        "ult" => negated(b, "oge"),
        "ule" => negated(b, "ogt"),
        "uno" => negated(b, "ord"),
        "true" | "false" => {
            let ty = b.ty(x).with_dtype(DType::Bool);
            b.full(&ty, if name == "true" { 1.0 } else { 0.0 })
        }
        other => unreachable!("`{other}` is not in the list of predicates"),
    }
}

const INTEGER_PREDICATES: &[&str] = &["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"];

fn compare_integers<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let (name, operands) = predicate(reader, op, INTEGER_PREDICATES)?;
    let (x, y) = (operands[0], operands[1]);
    let b = &mut reader.b;
    let result = (|| {
        let (x, y) = if name.starts_with('u') { (unsigned(b, x)?, unsigned(b, y)?) } else { (x, y) };
        let direction = match name.trim_start_matches(['s', 'u']) {
            "eq" => Direction::Eq,
            "ne" => Direction::Ne,
            "lt" => Direction::Lt,
            "le" => Direction::Le,
            "gt" => Direction::Gt,
            _ => Direction::Ge,
        };
        // A set bit of type `i1` is -1: the order of signed flags is the other one.
        let is_flag = b.ty(x).dtype == DType::Bool && name.starts_with('s');
        if is_flag { b.compare(direction, y, x) } else { b.compare(direction, x, y) }
    })();
    Ok(vec![reader.placed(result, op.at)?])
}

/// `arith.select %c, %a, %b : T`, or `: tensor<..xi1>, T`.
fn select<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 3)?;
    let operands = reader.alike(&simple.operands)?;
    if let Some(declared) = simple.types.last() {
        let branches = if op.generic().is_some() { &simple.to } else { &simple.types };
        let declared = branches.last().unwrap_or(declared);
        reader.check(operands[1], declared, op.at)?;
        reader.check(operands[2], declared, op.at)?;
    }
    let shape = reader.b.shape(operands[1]);
    let result = spread(&mut reader.b, operands[0], &shape)
        .and_then(|condition| reader.b.select(condition, operands[1], operands[2]));
    Ok(vec![reader.placed(result, op.at)?])
}
