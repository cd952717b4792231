//! The dialect `scf`: loops with constant bounds, which are unrolled.

use super::elementwise::Action::{self, Own};
use super::reader::{Op, Reader};
use partita_base::{DType, Result};
use partita_ir::ValueId;
use partita_mlir::Kind;
use std::collections::BTreeMap;

pub(super) const OPS: &[(&str, Action)] = &[("scf.for", Own(counted_loop))];

/// `scf.for %i = %lower to %upper step %step iter_args(%a = %init, ..) -> (T, ..) : type {..}`.
fn counted_loop<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let at = op.at;
    let [region] = op.operation.regions() else {
        return Err(reader.error(at, "E140", "a loop needs one body"));
    };
    let region = reader.tree.region(*region);
    let mut carried: Vec<ValueId> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let bounds: Vec<ValueId>;
    let counter;
    if op.generic().is_some() {
        let operands = reader.simple(op)?.operands;
        if operands.len() < 3 {
            return Err(reader.error(at, "E146", "a loop needs a lower bound, an upper bound and a step"));
        }
        bounds = operands[..3].to_vec();
        carried.extend(&operands[3..]);
        let mut arguments = reader.block_arguments(region)?.into_iter().map(|(name, _)| name);
        counter = arguments.next().unwrap_or_default();
        names.extend(arguments);
    } else {
        let cursor = &mut op.cursor;
        if cursor.kind() != Kind::Value {
            return Err(cursor.unexpected("the counter of a loop"));
        }
        counter = cursor.text().to_string();
        cursor.advance();
        cursor.mark('=')?;
        let lower = reader.operand(cursor)?;
        word(cursor, "to")?;
        let upper = reader.operand(cursor)?;
        word(cursor, "step")?;
        let step = reader.operand(cursor)?;
        bounds = vec![lower, upper, step];
        if cursor.at_word("iter_args") {
            cursor.advance();
            cursor.mark('(')?;
            while cursor.kind() == Kind::Value {
                names.push(cursor.text().to_string());
                cursor.advance();
                cursor.mark('=')?;
                carried.push(reader.operand(cursor)?);
                if !cursor.eat(',') {
                    break;
                }
            }
            cursor.mark(')')?;
            if cursor.kind() == Kind::Arrow {
                cursor.advance();
                let types = reader.types(cursor)?;
                for (&value, ty) in carried.iter().zip(&types) {
                    reader.check(value, ty, at)?;
                }
            }
        }
    }
    let numbers = bounds.iter().map(|&bound| reader.constant_of(bound, at)).collect::<Result<Vec<i128>>>()?;
    let (lower, upper, step) = (numbers[0], numbers[1], numbers[2]);
    if step <= 0 {
        return Err(reader.error(at, "E145", "the step of a loop is not positive").found(step.to_string()));
    }
    if names.len() != carried.len() {
        return Err(reader
            .error(at, "E146", "a loop has another number of arguments than of values it carries")
            .expected(carried.len().to_string())
            .found(names.len().to_string()));
    }
    let dtype: DType = reader.b.ty(bounds[0]).dtype;
    let mut number = lower;
    while number < upper {
        let index = reader.integer(dtype, number);
        let mut scope: BTreeMap<String, ValueId> =
            names.iter().cloned().zip(carried.iter().copied()).collect();
        scope.insert(counter.clone(), index);
        let results = reader.region(region, scope)?;
        let types = |values: &[ValueId]| values.iter().map(|&v| reader.b.ty(v).clone()).collect::<Vec<_>>();
        if types(&results) != types(&carried) {
            return Err(reader.error(at, "E146", "the body of a loop yields other types than it carries"));
        }
        carried = results;
        number += step;
    }
    Ok(carried)
}

/// A word of the form.
fn word(cursor: &mut partita_mlir::Cursor, word: &str) -> Result<()> {
    if !cursor.at_word(word) {
        return Err(cursor.unexpected(&format!("`{word}`")));
    }
    cursor.advance();
    Ok(())
}
