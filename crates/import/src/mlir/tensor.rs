//! The dialect `tensor`: making, cutting and reshaping tensors whose extents are known.

use super::elementwise::Action::{self, Own};
use super::reader::{Declared, Op, Reader};
use partita_base::{DType, Result};
use partita_ir::ops::{DynamicSlice, DynamicUpdateSlice, Pad, Slice};
use partita_ir::{TensorType, ValueId};
use partita_mlir::Kind;
use std::collections::BTreeMap;

pub(super) const OPS: &[(&str, Action)] = &[
    ("tensor.empty", Own(empty)),
    ("tensor.splat", Own(splat)),
    ("tensor.from_elements", Own(from_elements)),
    ("tensor.extract", Own(extract)),
    ("tensor.insert", Own(insert)),
    ("tensor.extract_slice", Own(extract_slice)),
    ("tensor.insert_slice", Own(insert_slice)),
    ("tensor.collapse_shape", Own(reshape)),
    ("tensor.expand_shape", Own(reshape)),
    ("tensor.cast", Own(reshape)),
    ("tensor.concat", Own(concat)),
    ("tensor.pad", Own(pad)),
    ("tensor.dim", Own(dim)),
];

/// The type after `:` and the one after `to` or `into`, in a pretty form whose rest is of the op's own.
fn types_at_end<'a>(reader: &Reader<'a>, op: &Op<'a>) -> Result<Vec<Declared>> {
    let mut cursor = op.cursor;
    while cursor.position < op.end && cursor.kind() != Kind::Mark(':') {
        cursor.group();
    }
    cursor.mark(':')?;
    let mut types = reader.types(&mut cursor)?;
    if cursor.position < op.end
        && (cursor.at_word("to") || cursor.at_word("into") || cursor.kind() == Kind::Arrow)
    {
        cursor.advance();
        types.extend(reader.types(&mut cursor)?);
    }
    Ok(types)
}

/// E144 for the generic form of an op whose attributes are not read.
fn pretty(reader: &Reader, op: &Op) -> Result<()> {
    match op.generic() {
        None => Ok(()),
        Some(_) => Err(reader.error(op.at, "E144", format!("the generic form of `{}` is not read", op.name))),
    }
}

/// The only declared type.
fn only<'a>(reader: &Reader<'a>, op: &Op<'a>, types: &[Declared]) -> Result<TensorType> {
    match types {
        [only] => Ok(only.ty.clone()),
        _ => Err(reader.error(op.at, "E140", format!("`{}` needs one type", op.name))),
    }
}

/// Elements that nothing has written yet: zeros here.
fn empty<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let ty = match op.generic() {
        Some(_) => {
            let simple = reader.simple(op)?;
            only(reader, op, &simple.to)?
        }
        None => {
            let types = types_at_end(reader, op)?;
            only(reader, op, &types)?
        }
    };
    let zeros = reader.b.full(&ty, 0.0);
    Ok(vec![reader.placed(zeros, op.at)?])
}

fn splat<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 1)?;
    let ty = only(reader, op, if simple.to.is_empty() { &simple.types } else { &simple.to })?;
    let result = reader.b.broadcast_scalar(simple.operands[0], &ty.shape);
    Ok(vec![reader.placed(result, op.at)?])
}

fn from_elements<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    let ty = only(reader, op, if simple.to.is_empty() { &simple.types } else { &simple.to })?;
    reader.arity(op, &simple.operands, ty.element_count())?;
    let result = (|| {
        let b = &mut reader.b;
        let mut rows = Vec::new();
        for &element in &simple.operands {
            rows.push(b.reshape(element, &[1])?);
        }
        let joined = if rows.is_empty() { b.full(&ty, 0.0)? } else { b.concatenate(&rows, 0)? };
        b.reshape(joined, &ty.shape)
    })();
    Ok(vec![reader.placed(result, op.at)?])
}

/// `%tensor[%i, %j]`: the tensor and its indices, as scalars of i64.
fn element<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<(ValueId, Vec<ValueId>)> {
    let tensor = reader.operand(&mut op.cursor)?;
    op.cursor.mark('[')?;
    let indices = reader.operands(&mut op.cursor)?;
    op.cursor.mark(']')?;
    let rank = reader.b.ty(tensor).rank();
    reader.arity(op, &indices, rank)?;
    Ok((tensor, indices))
}

fn extract<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    if reader.space.is_some() {
        return Err(reader.error(op.at, "E144", "`tensor.extract` in the body of a `linalg` op is not read"));
    }
    let (tensor, indices) = element(reader, op)?;
    let sizes = vec![1; indices.len()];
    let operands: Vec<ValueId> = std::iter::once(tensor).chain(indices).collect();
    let result =
        reader.b.push1(DynamicSlice { sizes }, &operands).and_then(|value| reader.b.reshape(value, &[]));
    Ok(vec![reader.placed(result, op.at)?])
}

fn insert<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    let value = reader.operand(&mut op.cursor)?;
    if !op.cursor.at_word("into") {
        return Err(op.cursor.unexpected("`into`"));
    }
    op.cursor.advance();
    let (tensor, indices) = element(reader, op)?;
    let ones = vec![1; indices.len()];
    let result = reader.b.reshape(value, &ones).and_then(|value| {
        let operands: Vec<ValueId> = [tensor, value].into_iter().chain(indices).collect();
        reader.b.push1(DynamicUpdateSlice, &operands)
    });
    Ok(vec![reader.placed(result, op.at)?])
}

/// `[0, %i, 2]`: numbers, written or known.
fn numbers<'a>(reader: &Reader<'a>, op: &mut Op<'a>) -> Result<Vec<i128>> {
    let mut list = Vec::new();
    op.cursor.mark('[')?;
    while op.cursor.kind() != Kind::Mark(']') {
        list.push(match op.cursor.kind() {
            Kind::Value => {
                let at = op.cursor.position;
                let value = reader.operand(&mut op.cursor)?;
                reader.constant_of(value, at)?
            }
            Kind::Number => {
                let number = op.cursor.text().parse();
                let number = number.map_err(|_| op.cursor.unexpected("an integer"))?;
                op.cursor.advance();
                number
            }
            _ => return Err(op.cursor.unexpected("a number")),
        });
        if !op.cursor.eat(',') {
            break;
        }
    }
    op.cursor.mark(']')?;
    Ok(list)
}

/// `[offsets] [sizes] [strides]` of a tensor of this shape, as a slice within it.
fn window<'a>(reader: &Reader<'a>, op: &mut Op<'a>, shape: &[usize]) -> Result<(Slice, Vec<usize>)> {
    let at = op.cursor.position;
    let lists = [numbers(reader, op)?, numbers(reader, op)?, numbers(reader, op)?];
    let outside = || {
        reader.error(at, "E146", "this slice is not within its tensor").expected(format!("within {shape:?}"))
    };
    if lists.iter().any(|list| list.len() != shape.len()) {
        return Err(outside());
    }
    let mut slice = Slice { start: Vec::new(), limit: Vec::new(), stride: Vec::new() };
    let mut sizes = Vec::new();
    for (dim, &extent) in shape.iter().enumerate() {
        let [offset, size, stride] = [0, 1, 2].map(|list| usize::try_from(lists[list][dim]).ok());
        let (Some(offset), Some(size), Some(stride)) = (offset, size, stride) else { return Err(outside()) };
        let last = size.saturating_sub(1).checked_mul(stride).and_then(|span| span.checked_add(offset));
        let limit = last.map(|last| last + usize::from(size > 0)).filter(|&limit| limit <= extent);
        let (Some(limit), true) = (limit, stride > 0) else { return Err(outside()) };
        slice.start.push(offset);
        slice.limit.push(limit);
        slice.stride.push(stride);
        sizes.push(size);
    }
    Ok((slice, sizes))
}

fn extract_slice<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    let types = types_at_end(reader, op)?;
    let tensor = reader.operand(&mut op.cursor)?;
    let shape = reader.b.shape(tensor);
    let (slice, _) = window(reader, op, &shape)?;
    let [_, to] = &types[..] else { return Err(reader.error(op.at, "E140", "a slice needs two types")) };
    let result = reader.b.push1(slice, &[tensor]).and_then(|part| reader.b.reshape(part, &to.ty.shape));
    Ok(vec![reader.placed(result, op.at)?])
}

fn insert_slice<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    let part = reader.operand(&mut op.cursor)?;
    if !op.cursor.at_word("into") {
        return Err(op.cursor.unexpected("`into`"));
    }
    op.cursor.advance();
    let tensor = reader.operand(&mut op.cursor)?;
    let shape = reader.b.shape(tensor);
    let (slice, sizes) = window(reader, op, &shape)?;
    if slice.stride.iter().any(|&stride| stride != 1) {
        return Err(reader.error(op.at, "E144", "`tensor.insert_slice` with a stride is not read"));
    }
    let starts: Vec<ValueId> =
        slice.start.iter().map(|&start| reader.integer(DType::I64, start as i128)).collect();
    let result = reader.b.reshape(part, &sizes).and_then(|part| {
        let operands: Vec<ValueId> = [tensor, part].into_iter().chain(starts).collect();
        reader.b.push1(DynamicUpdateSlice, &operands)
    });
    Ok(vec![reader.placed(result, op.at)?])
}

/// The same elements in another shape: `collapse_shape`, `expand_shape`, `cast`.
fn reshape<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let (tensor, types) = match op.generic() {
        Some(_) => {
            let simple = reader.simple(op)?;
            let first = simple.operands.first().copied();
            let first = first.ok_or_else(|| reader.error(op.at, "E146", "an op without an operand"))?;
            (first, [simple.types, simple.to].concat())
        }
        None => {
            let types = types_at_end(reader, op)?;
            (reader.operand(&mut op.cursor)?, types)
        }
    };
    let (Some(from), Some(to)) = (types.first(), types.last()) else {
        return Err(reader.error(op.at, "E140", format!("`{}` needs two types", op.name)));
    };
    reader.check(tensor, from, op.at)?;
    let result = reader.b.reshape(tensor, &to.ty.shape);
    let result = reader.placed(result, op.at)?;
    reader.check(result, to, op.at)?;
    Ok(vec![result])
}

/// `tensor.concat dim(0) %a, %b : (T, U) -> V`.
fn concat<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    if !op.cursor.at_word("dim") {
        return Err(op.cursor.unexpected("`dim`"));
    }
    op.cursor.advance();
    op.cursor.mark('(')?;
    let dim = op.cursor.text().parse::<usize>();
    let dim = dim.map_err(|_| op.cursor.unexpected("the number of a dimension"))?;
    op.cursor.advance();
    op.cursor.mark(')')?;
    let operands = reader.operands(&mut op.cursor)?;
    if operands.iter().any(|&operand| reader.b.ty(operand).rank() <= dim) || operands.is_empty() {
        return Err(reader.error(op.at, "E146", "there is no such dimension").found(dim.to_string()));
    }
    let result = reader.b.concatenate(&operands, dim);
    Ok(vec![reader.placed(result, op.at)?])
}

/// `tensor.pad %t low[0, 1] high[1, 0] { .. tensor.yield %c : f32 } : T to U`.
fn pad<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    pretty(reader, op)?;
    let tensor = reader.operand(&mut op.cursor)?;
    let mut sides = Vec::new();
    for name in ["low", "high"] {
        if op.cursor.at_word("nofold") {
            op.cursor.advance();
        }
        if !op.cursor.at_word(name) {
            return Err(op.cursor.unexpected(&format!("`{name}`")));
        }
        op.cursor.advance();
        let side: Vec<i64> = numbers(reader, op)?.into_iter().filter_map(|n| i64::try_from(n).ok()).collect();
        sides.push(side);
    }
    let rank = reader.b.ty(tensor).rank();
    if sides.iter().any(|side| side.len() != rank || side.iter().any(|&n| !(0..1 << 40).contains(&n))) {
        return Err(reader.error(
            op.at,
            "E146",
            "the widths of a padding are not one number for each dimension",
        ));
    }
    let [region] = op.operation.regions() else {
        return Err(reader.error(op.at, "E140", "a padding needs one region"));
    };
    let region = reader.tree.region(*region);
    // The padding is a value from outside: the indices have none.
    let yielded = reader.region(region, BTreeMap::new())?;
    reader.arity(op, &yielded, 1)?;
    let (high, low) = (sides.pop().unwrap_or_default(), sides.pop().unwrap_or_default());
    let result = reader.b.push1(Pad { low, high, interior: vec![0; rank] }, &[tensor, yielded[0]]);
    Ok(vec![reader.placed(result, op.at)?])
}

/// The extent of a dimension.
fn dim<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 2)?;
    let number = reader.constant_of(simple.operands[1], op.at)?;
    let shape = reader.b.shape(simple.operands[0]);
    let extent = usize::try_from(number).ok().and_then(|dim| shape.get(dim).copied());
    let extent = extent
        .ok_or_else(|| reader.error(op.at, "E146", "there is no such dimension").found(number.to_string()))?;
    Ok(vec![reader.integer(DType::I64, extent as i128)])
}
