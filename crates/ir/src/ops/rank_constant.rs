//! A constant with one value per rank of a class.

use super::checks::operand_count;
use super::{Constant, ParseOp};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, TextForm};
use crate::rule::Rule;
use crate::text::{self, OpParser, OpPrinter, print_dense};
use crate::traits::{ConstantOp, Traits};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};
use std::sync::Arc;

/// One literal for each rank of a class, such as the offset of its shard. It occurs only in class
/// graphs; [`RankConstant::on_rank`] turns it into a [`Constant`].
#[derive(Clone, PartialEq, Debug)]
pub struct RankConstant {
    /// The ranks, ascending.
    pub ranks: Arc<[usize]>,
    /// Their values, stacked along a new first dimension.
    pub values: Arc<Literal>,
}

const RANK_CONSTANT: &str = "partita.rank_constant";

impl RankConstant {
    /// The literals of these ranks, all of one type; there is at least one.
    pub fn new(ranks: &[usize], values: &[Literal]) -> RankConstant {
        let ty = &values[0].ty;
        let mut stacked = Literal::zeros(&ty.with_shape([&[values.len()], &ty.shape[..]].concat()));
        let count = ty.element_count();
        for (number, value) in values.iter().enumerate() {
            debug_assert_eq!(&value.ty, ty);
            (0..count).for_each(|at| stacked.data.put(number * count + at, &value.data, at));
        }
        RankConstant { ranks: ranks.into(), values: Arc::new(stacked) }
    }

    /// The type of one rank's value.
    pub fn ty(&self) -> TensorType {
        self.values.ty.with_shape(self.values.ty.shape[1..].to_vec())
    }

    /// The value of the rank at this position of `ranks`.
    pub fn at(&self, position: usize) -> Literal {
        let ty = self.ty();
        let count = ty.element_count();
        let data = self.values.data.pick(position * count..(position + 1) * count);
        Literal { ty, data }
    }

    /// The values of all ranks, in their order.
    pub fn each(&self) -> impl Iterator<Item = Literal> + '_ {
        (0..self.ranks.len()).map(|position| self.at(position))
    }

    /// This constant with its ranks renumbered by the order-preserving `name`.
    pub fn renumbered(&self, name: &dyn Fn(usize) -> usize) -> RankConstant {
        RankConstant { ranks: self.ranks.iter().map(|&rank| name(rank)).collect(), ..self.clone() }
    }

    /// The constant of one rank; `None` if the rank is not in the list.
    pub fn on_rank(&self, rank: usize) -> Option<Constant> {
        let position = self.ranks.binary_search(&rank).ok()?;
        Some(Constant { value: self.at(position) })
    }
}

impl Operation for RankConstant {
    fn name(&self) -> &str {
        RANK_CONSTANT
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(RANK_CONSTANT, operands, 0)?;
        Ok(vec![self.ty()])
    }

    fn rule(&self, _: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&[], &[&results[0].shape])
    }

    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(Vec::new())
    }

    /// The first rank's value.
    fn evaluate(&self, _: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![self.at(0)])
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        let own = |(rank, call): (usize, &RankCall)| match call.op {
            Op::RankConstant(op) => match op.on_rank(rank) {
                Some(constant) => Ok(vec![constant.value]),
                None => Err(Diagnostic::new("E130", format!("a constant has no value for rank {rank}"))
                    .expected(format!("one of ranks {:?}", op.ranks))),
            },
            other => other.evaluate(&call.operands, &call.results),
        };
        ranks.iter().enumerate().map(own).collect()
    }

    /// It is created by partitioning and never partitioned again.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Constant(ConstantOp::ByRank(self))
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(Diagnostic::new("E119", format!("{RANK_CONSTANT} is valid only in per-rank graphs"))
            .help("partition the global graph instead"))
    }
}

// ---- text ----

/// The op of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(RANK_CONSTANT, parse_rank_constant)];

impl TextForm for RankConstant {
    /// `"partita.rank_constant"() <{ranks = array<i64: 0, 1>, values = dense<..> : T}> : () -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        let ranks: Vec<String> = self.ranks.iter().map(|rank| rank.to_string()).collect();
        let properties = [
            ("ranks", format!("array<i64: {}>", ranks.join(", "))),
            ("values", format!("{} : {}", print_dense(&self.values), self.values.ty)),
        ];
        printer.generic(RANK_CONSTANT, &properties, &[]);
    }
}

fn parse_rank_constant(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E147", "this op must be written in the generic form"));
    }
    let ranks = op.indices_of("ranks")?;
    let values = match op.attributes.get("values") {
        Some(text::Value::Dense(value)) if value.ty.shape.first() == Some(&ranks.len()) => value.clone(),
        _ => return Err(op.error("E147", "`values = dense<..>` must have one value for each of `ranks`")),
    };
    if ranks.is_empty() || !ranks.is_sorted_by(|a, b| a < b) {
        return Err(op.error("E147", "`ranks` must be a list of ascending ranks"));
    }
    op.arity(0)?;
    op.finish(RankConstant { ranks: ranks.into(), values: Arc::new(values) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, GraphBuilder, evaluate_ranks};
    use partita_base::DType;

    fn graph() -> Graph {
        let value = |n: i32| Literal::new([2], vec![n, -n]);
        let constant = RankConstant::new(&[0, 2], &[value(3), value(5)]);
        let mut b = GraphBuilder::new("main");
        let ty = constant.ty();
        assert_eq!(ty, TensorType::new(DType::I32, [2]));
        let result = b.push_typed(constant, &[], vec![ty])[0];
        b.finish(vec![result])
    }

    #[test]
    fn each_rank_has_its_own_value() {
        let graph = graph();
        let Op::RankConstant(constant) = &graph.nodes[0].op else { panic!("{:?}", graph.nodes[0].op) };
        assert_eq!(constant.on_rank(2).unwrap().value, Literal::new([2], vec![5, -5]));
        assert_eq!(constant.on_rank(1), None);
        let found = evaluate_ranks(&[&graph], &[vec![]]).unwrap();
        assert_eq!(found, [[Literal::new([2], vec![3, -3])]]);
        let missing = evaluate_ranks(&[&graph, &graph], &[vec![], vec![]]).unwrap_err();
        assert_eq!(missing.code, "E130");
    }

    #[test]
    fn its_text_reads_back() {
        let graph = graph();
        let text = text::print(&graph);
        assert!(text.contains("ranks = array<i64: 0, 2>"), "{text}");
        let again = text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(text::print(&again), text);
        let wrong = text.replace("0, 2>, values", "2, 0>, values");
        assert_eq!(text::parse(&wrong).unwrap_err().code, "E147");
    }
}
