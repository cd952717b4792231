//! Comparison, select and clamp.

use super::checks::{element_type, operand_count, same_dtype, same_type, shapes};
use super::elementwise::float_max;
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, Storage};
use crate::op::{GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::Rule;
use crate::traits::{Elementwise, Traits};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::cmp::Ordering;

/// The relation.
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
    /// The order; `None` derives it from the element type.
    pub compare_type: Option<CompareType>,
}

/// `result[i] = predicate[i] ? on_true[i] : on_false[i]`; the predicate may be a scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct Select;

/// `result[i] = min(max(operand[i], low[i]), high[i])`, operands (low, operand, high); limits may be scalars.
#[derive(Clone, PartialEq, Debug)]
pub struct Clamp;

impl Direction {
    /// Whether the relation holds for elements in this order; unordered elements satisfy only `NE`.
    pub(super) fn holds(self, order: Option<Ordering>) -> bool {
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
    /// Whether elements of this type can be compared in this way, and which types can.
    fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            CompareType::Float => (dtype.is_float() || dtype.is_complex(), "a float"),
            CompareType::TotalOrder => (dtype.is_float(), "a float"),
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
        let is_ordered = !matches!(self.direction, Direction::Eq | Direction::Ne);
        let dtype = operands[0].dtype;
        element_type(self.name(), !(is_ordered && dtype.is_complex()), "a type with an order", dtype)?;
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
        } else if x.ty.dtype.is_complex() {
            let pairs = x.to_complex().into_iter().zip(y.to_complex());
            pairs.map(|(x, y)| self.direction.holds((x == y).then_some(Ordering::Equal))).collect()
        } else {
            let pairs = x.to_i128().into_iter().zip(y.to_i128());
            pairs.map(|(x, y)| self.direction.holds(Some(x.cmp(&y)))).collect()
        };
        Ok(vec![Literal::new(x.ty.shape.clone(), holds)])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Compare(self))
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Compare(other) if self.direction == other.direction))
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

/// The pointwise rule for three operands; scalar operands have no dimensions.
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
        let predicate = operands[0].data.filled();
        let Storage::Bool(predicate) = &*predicate else { unreachable!("inference asks for i1") };
        let mut result = operands[2].clone();
        for position in 0..result.data.len() {
            if predicate[if predicate.len() == 1 { 0 } else { position }] {
                result.data.put(position, &operands[1].data, position);
            }
        }
        Ok(vec![result])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Select)
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
        let dtype = operands[1].dtype;
        element_type(self.name(), !dtype.is_complex(), "a type with an order", dtype)?;
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
        // The upper limit takes precedence if the limits cross, so the lower one counts only below
        // it.
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Clamp)
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
        let direction =
            DIRECTIONS.iter().find(|(_, d)| *d == self.direction).expect("the table is complete").0;
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
    let direction =
        DIRECTIONS.iter().find(|(name, _)| *name == direction).map(|(_, d)| *d).ok_or_else(|| {
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
                return Err(op.error("E146", "`stablehlo.select` needs two types").expected("`: P, T`"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, gradients, random, refusal};

    fn compare(direction: Direction, compare_type: Option<CompareType>, x: Literal, y: Literal) -> Vec<bool> {
        let result = apply(Compare { direction, compare_type }, &[x, y]).remove(0);
        result.to_f64().into_iter().map(|holds| holds != 0.0).collect()
    }

    fn vector(values: &[f64]) -> Literal {
        Literal::new([values.len()], values.to_vec())
    }

    #[test]
    fn comparison_of_floats_leaves_nan_unequal_to_everything() {
        let (x, y) = (vector(&[1.0, 2.0, 3.0, f64::NAN, -0.0]), vector(&[2.0, 2.0, 2.0, f64::NAN, 0.0]));
        let holds = |direction| compare(direction, None, x.clone(), y.clone());
        assert_eq!(holds(Direction::Eq), [false, true, false, false, true]);
        assert_eq!(holds(Direction::Ne), [true, false, true, true, false]);
        assert_eq!(holds(Direction::Lt), [true, false, false, false, false]);
        assert_eq!(holds(Direction::Le), [true, true, false, false, true]);
        assert_eq!(holds(Direction::Gt), [false, false, true, false, false]);
        assert_eq!(holds(Direction::Ge), [false, true, true, false, true]);
    }

    #[test]
    fn total_order_places_zeros_and_nan() {
        let ascending = [-f32::NAN, f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1.0, f32::INFINITY, f32::NAN];
        let (x, y) = (ascending[..7].to_vec(), ascending[1..].to_vec());
        let (x, y) = (Literal::new([7], x), Literal::new([7], y));
        assert_eq!(compare(Direction::Lt, Some(CompareType::TotalOrder), x, y), [true; 7]);
    }

    #[test]
    fn integers_compare_by_their_own_sign() {
        let (x, y) = (Literal::new([1], vec![u64::MAX]), Literal::new([1], vec![u64::MAX - 1]));
        assert_eq!(compare(Direction::Gt, Some(CompareType::Unsigned), x, y), [true]);
        let (x, y) = (Literal::new([1], vec![i64::MIN]), Literal::new([1], vec![i64::MIN + 1]));
        assert_eq!(compare(Direction::Lt, None, x, y), [true]);
        let (x, y) = (Literal::new([1], vec![false]), Literal::new([1], vec![true]));
        assert_eq!(compare(Direction::Lt, None, x, y), [true]);
    }

    #[test]
    fn inference_refuses_what_does_not_fit() {
        let ty = TensorType::new(DType::F32, [2]);
        let compare = |compare_type| Compare { direction: Direction::Eq, compare_type };
        assert!(refusal(compare(None), &[ty.clone(), ty.with_shape([3])]).contains("E102"));
        assert!(refusal(compare(Some(CompareType::Signed)), &[ty.clone(), ty.clone()]).contains("E103"));
        assert!(refusal(Select, &[ty.clone(), ty.clone(), ty.clone()]).contains("E103"));
        let predicate = TensorType::new(DType::Bool, [3]);
        assert!(refusal(Select, &[predicate.clone(), ty.clone(), ty.clone()]).contains("E104"));
        assert!(refusal(Select, &[predicate, ty.clone(), ty.with_shape([3])]).contains("E102"));
        assert!(refusal(Clamp, &[ty.with_shape([3]), ty.clone(), ty.clone()]).contains("E104"));
        assert!(refusal(Clamp, &[ty.clone(), ty.clone(), ty.with_dtype(DType::F64)]).contains("E102"));
        assert!(refusal(Clamp, &[ty.clone(), ty]).contains("E101"));
    }

    #[test]
    fn select_takes_whole_and_scalar_predicates() {
        let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 4.0]));
        let each = Literal::new([2], vec![true, false]);
        assert_eq!(apply(Select, &[each, x.clone(), y.clone()])[0], vector(&[1.0, 4.0]));
        assert_eq!(apply(Select, &[Literal::new([], vec![false]), x, y.clone()])[0], y);
    }

    #[test]
    fn clamp_limits_and_spreads_nan() {
        let scalar = |x: f64| Literal::new([], vec![x]);
        let x = vector(&[-5.0, 0.5, 5.0, f64::NAN]);
        let found = apply(Clamp, &[scalar(-1.0), x.clone(), scalar(1.0)]).remove(0).to_f64();
        assert_eq!(&found[..3], [-1.0, 0.5, 1.0]);
        assert!(found[3].is_nan());
        // If the limits cross, the upper one takes precedence.
        assert_eq!(apply(Clamp, &[scalar(2.0), x, scalar(1.0)])[0].to_f64()[..3], [1.0; 3]);
        let ints = Literal::new([3], vec![-9i32, 2, 9]);
        let limits = [0i32, 3].map(|limit| Literal::new([], vec![limit]));
        let found = apply(Clamp, &[limits[0].clone(), ints, limits[1].clone()]).remove(0);
        assert_eq!(found, Literal::new([3], vec![0, 2, 3]));
    }

    #[test]
    fn gradients_go_to_what_was_chosen() {
        let each = Literal::new([2, 3], vec![true, false, false, true, true, false]);
        let wanted = [false, true, true];
        check_gradient(Select, vec![each, random(1, &[2, 3]), random(2, &[2, 3])], &wanted);
        let one = Literal::new([], vec![true]);
        check_gradient(Select, vec![one, random(1, &[2, 3]), random(2, &[2, 3])], &wanted);
        let (low, high) = (vector(&[-0.5, 0.4, -2.0, 0.3]), vector(&[0.5, 2.0, -1.0, -0.3]));
        check_gradient(Clamp, vec![low, random(3, &[4]), high], &[true; 3]);
        let scalar = |x: f64| Literal::new([], vec![x]);
        check_gradient(Clamp, vec![scalar(-0.3), random(4, &[4, 5]), scalar(0.4)], &[true; 3]);
        check_gradient(Clamp, vec![scalar(-0.3), scalar(0.7), scalar(0.4)], &[true; 3]);
        let x = random(5, &[2]);
        let less = Compare { direction: Direction::Lt, compare_type: None };
        assert_eq!(gradients(less, &[x.clone(), x], &[None], &[true, true]), [None, None]);
    }

    #[test]
    fn rules_hold_on_shards_and_partial_operands() {
        let (x, y) = (random(6, &[5, 2]), random(7, &[5, 2]));
        let less = Compare { direction: Direction::Lt, compare_type: None };
        let each = apply(less.clone(), &[x.clone(), y.clone()]).remove(0);
        check_rule(less, &[x.clone(), y.clone()]);
        check_rule(Select, &[each, x.clone(), y.clone()]);
        check_rule(Select, &[Literal::new([], vec![true]), x.clone(), y.clone()]);
        let scalar = |x: f64| Literal::new([], vec![x]);
        check_rule(Clamp, &[scalar(-0.3), x.clone(), scalar(0.3)]);
        check_rule(Clamp, &[y.clone(), x, y]);
    }
}
