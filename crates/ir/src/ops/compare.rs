//! Comparison, choice and limits.

use super::checks::{element_type, operand_count, same_dtype, same_type, shapes};
use super::elementwise::float_max;
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::literal::{Literal, Storage};
use crate::op::{GradientContext, LocalContext, Operation, localise_same};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::cmp::Ordering;

/// The relation compared for.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How elements are ordered.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareType {
    Float,
    TotalOrder,
    Signed,
    Unsigned,
}

/// `result[i] = lhs[i] <direction> rhs[i]`, an i1.
#[derive(Clone, PartialEq, Debug)]
pub struct Compare {
    /// The relation.
    pub direction: Direction,
    /// The order; `None` follows from the element type.
    pub compare_type: Option<CompareType>,
}

/// `result[i] = predicate[i] ? on_true[i] : on_false[i]`; the predicate may be a scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct Select;

/// `result[i] = min(max(operand[i], low[i]), high[i])`, operands (low, operand, high); limits may be scalars.
#[derive(Clone, PartialEq, Debug)]
pub struct Clamp;

impl Direction {
    /// Whether the relation holds of elements in this order; unordered elements are only unequal.
    fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Direction::Eq => order == Some(Ordering::Equal),
            Direction::Ne => order != Some(Ordering::Equal),
            Direction::Lt => order == Some(Ordering::Less),
            Direction::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Direction::Gt => order == Some(Ordering::Greater),
            Direction::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl CompareType {
    /// Whether elements of this type can be so compared, and which can.
    fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            CompareType::Float | CompareType::TotalOrder => (dtype.is_float(), "a float"),
            CompareType::Signed => (dtype.is_signed_integer(), "a signed integer"),
            CompareType::Unsigned => {
                (dtype.is_unsigned_integer() || dtype == DType::Bool, "an unsigned integer or boolean")
            }
        }
    }
}

impl Operation for Compare {
    fn name(&self) -> &str {
        "stablehlo.compare"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 2)?;
        same_type(self.name(), operands[0], operands[1])?;
        if let Some(compare_type) = self.compare_type {
            let (allowed, expected) = compare_type.accepts(operands[0].dtype);
            element_type(self.name(), allowed, expected, operands[0].dtype)?;
        }
        Ok(vec![operands[0].with_dtype(DType::Bool)])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        Rule::pointwise(&operands[0].shape, 2, 1)
    }

    fn gradient(&self, _context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![None, None])
    }

    fn evaluate(&self, operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let (x, y) = (operands[0], operands[1]);
        let total = self.compare_type == Some(CompareType::TotalOrder);
        let holds: Vec<bool> = if x.ty.dtype.is_float() {
            let order = |x: f64, y: f64| if total { Some(x.total_cmp(&y)) } else { x.partial_cmp(&y) };
            let pairs = x.to_f64().into_iter().zip(y.to_f64());
            pairs.map(|(x, y)| self.direction.holds(order(x, y))).collect()
        } else {
            let pairs = x.to_i128().into_iter().zip(y.to_i128());
            pairs.map(|(x, y)| self.direction.holds(Some(x.cmp(&y)))).collect()
        };
        Ok(vec![Literal::new(x.ty.shape.clone(), holds)])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

/// E104 unless `ty` is a scalar or has the shape of `whole`.
fn scalar_or_shape(name: &str, what: &str, ty: &TensorType, whole: &TensorType) -> Result<()> {
    shapes(
        ty.rank() == 0 || ty.shape == whole.shape,
        format!("{what} of `{name}` must be a scalar or as large as the operand"),
        format!("a scalar or shape {:?}", whole.shape),
        ty.to_string(),
    )
}

/// The pointwise rule of three operands where scalar ones have no dimensions.
fn rule_with_scalars(operands: &[&TensorType], result: &TensorType) -> Rule {
    let mut rule = Rule::pointwise(&result.shape, operands.len(), 1);
    for (dims, ty) in rule.operands.iter_mut().zip(operands) {
        dims.truncate(ty.rank());
    }
    rule
}

impl Operation for Select {
    fn name(&self) -> &str {
        "stablehlo.select"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 3)?;
        let dtype = operands[0].dtype;
        if dtype != DType::Bool {
            return Err(Diagnostic::new("E103", "the predicate of `stablehlo.select` must be boolean")
                .expected(DType::Bool.name())
                .found(dtype.name()));
        }
        same_type(self.name(), operands[1], operands[2])?;
        scalar_or_shape(self.name(), "the predicate", operands[0], operands[1])?;
        Ok(vec![operands[1].clone()])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        rule_with_scalars(operands, results[0]).transparent_in(&[1, 2])
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let predicate = context.operands[0];
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else {
            return Ok(vec![None; 3]);
        };
        let mut cotangents = vec![None; 3];
        if context.wanted[1] {
            let zero = b.full_like(g, 0.0)?;
            cotangents[1] = Some(b.select(predicate, g, zero)?);
        }
        if context.wanted[2] {
            let zero = b.full_like(g, 0.0)?;
            cotangents[2] = Some(b.select(predicate, zero, g)?);
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let Storage::Bool(predicate) = &operands[0].data else { unreachable!("inference asks for i1") };
        let mut result = operands[2].clone();
        for position in 0..result.data.len() {
            if predicate[if predicate.len() == 1 { 0 } else { position }] {
                result.data.put(position, &operands[1].data, position);
            }
        }
        Ok(vec![result])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

impl Operation for Clamp {
    fn name(&self) -> &str {
        "stablehlo.clamp"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 3)?;
        for (what, limit) in [("the lower limit", 0), ("the upper limit", 2)] {
            same_dtype(self.name(), operands[1], operands[limit])?;
            scalar_or_shape(self.name(), what, operands[limit], operands[1])?;
        }
        Ok(vec![operands[1].clone()])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        rule_with_scalars(operands, results[0])
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let [low, x, high] = [0, 1, 2].map(|i| context.operands[i]);
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else {
            return Ok(vec![None; 3]);
        };
        let shape = b.shape(x);
        let full = |b: &mut GraphBuilder, v: ValueId| {
            if b.shape(v) == shape { Ok(v) } else { b.broadcast_scalar(v, &shape) }
        };
        let (wide_low, wide_high) = (full(b, low)?, full(b, high)?);
        let zero = b.full_like(g, 0.0)?;
        let mut cotangents = vec![None; 3];
        if context.wanted[1] {
            let above = b.compare(Direction::Gt, x, wide_low)?;
            let below = b.compare(Direction::Lt, x, wide_high)?;
            let kept = b.select(above, g, zero)?;
            cotangents[1] = Some(b.select(below, kept, zero)?);
        }
        // The upper limit wins where the limits cross, so the lower one counts only below it.
        let mut limit_cotangent = |b: &mut GraphBuilder, limit: usize, taken: ValueId| -> Result<()> {
            let whole = b.select(taken, g, zero)?;
            let scalar = b.shape(context.operands[limit]).is_empty() && !shape.is_empty();
            let dims: Vec<usize> = (0..shape.len()).collect();
            cotangents[limit] = Some(if scalar { b.reduce_sum(whole, &dims)? } else { whole });
            Ok(())
        };
        if context.wanted[0] {
            let below = b.compare(Direction::Gt, wide_low, x)?;
            let ordered = b.compare(Direction::Lt, wide_low, wide_high)?;
            let taken = b.binary(super::BinaryKind::And, below, ordered)?;
            limit_cotangent(b, 0, taken)?;
        }
        if context.wanted[2] {
            let largest = b.maximum(x, wide_low)?;
            let taken = b.compare(Direction::Gt, largest, wide_high)?;
            limit_cotangent(b, 2, taken)?;
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        fn limited<T: Copy>(operands: [Vec<T>; 3], limit: impl Fn(T, T, T) -> T) -> Vec<T> {
            let [low, x, high] = &operands;
            let at = |limit: &[T], position| limit[if limit.len() == 1 { 0 } else { position }];
            x.iter().enumerate().map(|(i, &x)| limit(at(low, i), x, at(high, i))).collect()
        }
        let [low, x, high] = [operands[0], operands[1], operands[2]];
        Ok(vec![if x.ty.dtype.is_float() {
            let limit = |low: f64, x, high: f64| -float_max(-float_max(x, low), -high);
            let values = limited([low.to_f64(), x.to_f64(), high.to_f64()], limit);
            Literal::from_f64(&results[0], values.into_iter())
        } else {
            let limit = |low: i128, x: i128, high| x.max(low).min(high);
            let values = limited([low.to_i128(), x.to_i128(), high.to_i128()], limit);
            Literal::from_i128(&results[0], values.into_iter())
        }])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{Kind, OpParser, OpPrinter};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.compare", parse_compare),
    ("stablehlo.select", parse_select),
    ("stablehlo.clamp", parse_clamp),
];

const DIRECTIONS: [(&str, Direction); 6] = [
    ("EQ", Direction::Eq),
    ("NE", Direction::Ne),
    ("LT", Direction::Lt),
    ("LE", Direction::Le),
    ("GT", Direction::Gt),
    ("GE", Direction::Ge),
];

const COMPARE_TYPES: [(&str, CompareType); 4] = [
    ("FLOAT", CompareType::Float),
    ("TOTALORDER", CompareType::TotalOrder),
    ("SIGNED", CompareType::Signed),
    ("UNSIGNED", CompareType::Unsigned),
];

impl TextForm for Compare {
    /// `stablehlo.compare LT, %0, %1, SIGNED : (T, T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        let direction = DIRECTIONS.iter().find(|(_, d)| *d == self.direction).expect("the table is complete").0;
        let order = self.compare_type.map_or(String::new(), |wanted| {
            let (name, _) = COMPARE_TYPES.iter().find(|(_, t)| *t == wanted).expect("the table is complete");
            format!(", {name}")
        });
        printer.pretty(&format!("stablehlo.compare {direction},"), &order);
    }
}

fn parse_compare(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (direction, compare_type);
    if op.generic()? {
        direction = op.keyword_of("comparison_direction").unwrap_or("nothing").to_string();
        compare_type = op.keyword_of("compare_type").map(str::to_string);
    } else {
        direction = op.parser.text().to_string();
        op.parser.advance();
        op.parser.mark(',')?;
        op.operands()?;
        compare_type = if op.parser.eat(',') {
            let word = op.parser.text().to_string();
            op.parser.advance();
            Some(word)
        } else {
            None
        };
        op.types()?;
    }
    op.arity(2)?;
    let direction = DIRECTIONS.iter().find(|(name, _)| *name == direction).map(|(_, d)| *d).ok_or_else(|| {
        op.error("E147", "unknown direction of comparison")
            .expected("EQ, NE, LT, LE, GT or GE")
            .found(format!("`{direction}`"))
    })?;
    let compare_type = match compare_type.as_deref() {
        None | Some("NOTYPE") => None,
        Some(word) => {
            let known = COMPARE_TYPES.iter().find(|(name, _)| *name == word);
            Some(known.map(|(_, t)| *t).ok_or_else(|| {
                op.error("E147", "unknown order of comparison")
                    .expected("FLOAT, TOTALORDER, SIGNED or UNSIGNED")
                    .found(format!("`{word}`"))
            })?)
        }
    };
    op.finish(Compare { direction, compare_type })
}

impl TextForm for Select {
    /// `stablehlo.select %p, %a, %b : P, T`.
    fn print(&self, printer: &mut OpPrinter) {
        let types = printer.operand_types();
        if types[1] != types[2] || types[1] != printer.result_types()[0] {
            return printer.pretty("stablehlo.select", "");
        }
        printer.push(&format!("stablehlo.select {}", printer.operands()));
        printer.attributes();
        printer.push(&format!(" : {}, {}", types[0], types[1]));
    }
}

fn parse_select(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.dictionary()?;
        if op.parser.kind() == Kind::Mark(':') && op.parser.kind_at(op.parser.position + 1) == Kind::Word {
            op.parser.advance();
            let types = op.parser.type_list()?;
            let [predicate, value] = types.as_slice() else {
                return Err(op.error("E146", "`stablehlo.select` has two types").expected("`: P, T`"));
            };
            op.operand_types = Some(vec![predicate.clone(), value.clone(), value.clone()]);
            op.result_types = vec![value.clone()];
        } else {
            op.types()?;
        }
    }
    op.arity(3)?;
    op.finish(Select)
}

impl TextForm for Clamp {
    /// `stablehlo.clamp %low, %x, %high : T`, with a function type where limits are scalars.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty_same_type("stablehlo.clamp", "");
    }
}

fn parse_clamp(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(3)?;
    op.finish(Clamp)
}
