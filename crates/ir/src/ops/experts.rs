//! The feed-forward networks of experts that drop no token, as one op: each token is multiplied by matrices of its experts
//! alone, and their results are added.
//!
//! Experts are a factor that is summed over, for the network as a whole: a rank that has some of the experts gives zeros for
//! the choices of others, through every product and activation, and what ranks add up is the result. So with experts
//! sharded over r ranks, tokens go to the experts once and results come back once, however many products there are between:
//! each rank gets the tokens of all ranks, and keeps its share of the sum. How many tokens an expert gets is known only
//! when the op runs, while extents are known before; every token of the ranks is the bound for those that an expert gets.
//!
//! The gradient computes the products of the forward pass again, so nothing but operands is kept.

use super::checks::{operand_count, same_type};
use super::reduce::refused;
use super::{Composite, DotGeneral, GROUPS, ParseOp};
use crate::autodiff;
use crate::builder::GraphBuilder;
use crate::composite::{Attribute, Attributes, Template};
use crate::composites::{GELU, GROUPED_MATMUL, SILU};
use crate::graph::{Graph, Node, Role, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm};
use crate::rule::{FactorKind, Rule};
use crate::text::{OpParser, OpPrinter};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};
use partita_mesh::Combiner;

/// `(x[b, s, d], weights[b, s, k], own[b, s, k, e], gate[e, h, d]?, up[e, h, d], down[e, d, h]) -> y[b, s, d]`: for each
/// token the sum over its k choices of `weights` times the result of the chosen expert, where `own` is 1 and 0 elsewhere. An
/// expert is `down(silu(gate(x)) * up(x))`, or `down(gelu(up(x)))` without `gate`, with the tanh form of GELU.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    /// The number of experts among which tokens choose. A rank may have some of them.
    pub experts: usize,
}

/// `(operands of [`Experts`].., dy[b, s, d]) -> (dx, dweights, dgate?, dup, ddown)`.
#[derive(Clone, PartialEq, Debug)]
pub struct ExpertsGradient {
    /// As in [`Experts`].
    pub experts: usize,
}

const NAME: &str = "partita.experts";
const GRADIENT: &str = "partita.experts_gradient";

/// The number of operands of [`Experts`] with and without a gate.
const GATED: usize = 6;
const PLAIN: usize = 5;

/// E103 or E116 unless these are operands of [`Experts`].
fn check(name: &str, operands: &[&TensorType]) -> Result<()> {
    let (x, weights, own, up) = (operands[0], operands[1], operands[2], operands[operands.len() - 2]);
    let fits = match (&x.shape[..], &own.shape[..], &up.shape[..]) {
        (&[b, s, d], &[ob, os, k, e], &[_, h, _]) => {
            let matrices = &operands[3..operands.len() - 1];
            [b, s] == [ob, os]
                && weights.shape == [b, s, k]
                && matrices.iter().all(|matrix| matrix.shape == [e, h, d])
                && operands[operands.len() - 1].shape == [e, d, h]
        }
        _ => false,
    };
    if fits && x.dtype.is_float() && operands.iter().all(|operand| operand.dtype == x.dtype) {
        return Ok(());
    }
    let found: Vec<String> = operands.iter().map(|operand| operand.to_string()).collect();
    Err(Diagnostic::new("E116", format!("the operands of `{name}` do not fit together"))
        .expected("floats x [b, s, d], weights [b, s, k], own [b, s, k, e], gate and up [e, h, d], down [e, d, h]")
        .found(found.join(", ")))
}

/// The rule; tokens are summed over for the gradients of matrices.
fn rule(operands: &[&TensorType], is_gradient: bool) -> Rule {
    let sum = FactorKind::Reduce(Combiner::Sum);
    let of_tokens = if is_gradient { sum } else { FactorKind::Pass };
    let (x, own, down) = (operands[0], operands[2], operands[operands.len() - 1 - usize::from(is_gradient)]);
    let mut rule = Rule::default();
    let [batch, sequence] = [0, 1].map(|dim| rule.factor(x.shape[dim], of_tokens));
    let choice = rule.factor(own.shape[2], FactorKind::Whole);
    let expert = rule.factor(own.shape[3], sum);
    let features = rule.factor(x.shape[2], FactorKind::Whole);
    let hidden = rule.factor(down.shape[2], sum);
    let dims = |factors: &[usize]| -> Vec<Vec<usize>> { factors.iter().map(|&factor| vec![factor]).collect() };
    let (tokens, weights) = (dims(&[batch, sequence, features]), dims(&[batch, sequence, choice]));
    let (wide, down) = (dims(&[expert, hidden, features]), dims(&[expert, features, hidden]));
    let count = operands.len() - usize::from(is_gradient);
    let mut matrices = vec![wide; count - 4];
    matrices.push(down);
    rule.operands = vec![tokens.clone(), weights.clone(), dims(&[batch, sequence, choice, expert])];
    rule.operands.extend(matrices.clone());
    match is_gradient {
        false => rule.results = vec![tokens],
        true => {
            rule.operands.push(tokens.clone());
            rule.results = vec![tokens, weights];
            rule.results.extend(matrices);
        }
    }
    rule
}

/// The operations of `times` as many products as the forward pass has, if all of so many experts are chosen equally often.
fn cost(times: usize, experts: usize, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let (choices, up) = (operands[1].element_count(), operands[operands.len().min(GATED) - 2]);
    let matrices = operands.len().min(GATED) - 3;
    let numbers = up.element_count() as f64 / experts.max(1) as f64;
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: (2 * times * matrices * choices) as f64 * numbers, bytes: bytes as f64 }
}

impl Operation for Experts {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, if operands.len() == PLAIN { PLAIN } else { GATED })?;
        check(NAME, operands)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        rule(operands, false)
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(1, self.experts, operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(dy) = context.cotangents[0] else { return Ok(vec![None; context.operands.len()]) };
        let operands = [context.operands, &[dy]].concat();
        let op = ExpertsGradient { experts: self.experts };
        let mut gradients: Vec<Option<ValueId>> =
            context.builder.push(op, &operands)?.into_iter().map(Some).collect();
        // Choices have no gradient.
        gradients.insert(2, None);
        Ok(gradients.into_iter().zip(context.wanted).map(|(g, wanted)| g.filter(|_| *wanted)).collect())
    }

    fn has_one_gradient(&self) -> bool {
        true
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, operands| emit(b, operands, self.experts))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let operands = context.operands().to_vec();
        emit(context.builder(), &operands, self.experts)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

impl Operation for ExpertsGradient {
    fn name(&self) -> &str {
        GRADIENT
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(GRADIENT, operands, if operands.len() == PLAIN + 1 { PLAIN + 1 } else { GATED + 1 })?;
        let own = &operands[..operands.len() - 1];
        check(GRADIENT, own)?;
        same_type(GRADIENT, operands[0], operands[own.len()])?;
        Ok(own.iter().enumerate().filter(|&(at, _)| at != 2).map(|(_, &ty)| ty.clone()).collect())
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        rule(operands, true)
    }

    /// Each product again, and two for its gradients.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(3, self.experts, &operands[..operands.len() - 1], results)
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(GRADIENT, "a second derivative"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, operands| emit_gradient(b, operands, self.experts))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let operands = context.operands().to_vec();
        emit_gradient(context.builder(), &operands, self.experts)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

/// The network of those of so many experts that these operands have.
fn emit(b: &mut GraphBuilder, operands: &[ValueId], experts: usize) -> Result<Vec<ValueId>> {
    let &[x, weights, own, ref matrices @ ..] = operands else { unreachable!("the operands are checked") };
    let [batch, sequence, choices, _] = b.shape(own)[..] else { unreachable!("the operands are checked") };
    let rows = [batch, sequence, choices, b.shape(x)[2]];
    let rows = b.broadcast_in_dim(x, &rows, &[0, 1, 3])?;
    let groups = [(GROUPS, Attribute::Int(experts as i64))];
    let product = |b: &mut GraphBuilder, x, matrix| b.composite(&GROUPED_MATMUL, &groups, &[x, matrix, own]);
    let (down, wide) = matrices.split_last().expect("there is a matrix");
    let first = product(b, rows, wide[0])?;
    let hidden = match wide.get(1) {
        Some(&up) => {
            let gate = opened(b, &SILU, Attributes::new(), first)?;
            let up = product(b, rows, up)?;
            b.multiply(gate, up)?
        }
        None => {
            let by_tanh = Attributes::from_iter([("tanh".to_string(), Attribute::Bool(true))]);
            opened(b, &GELU, by_tanh, first)?
        }
    };
    let y = product(b, hidden, *down)?;
    let dims = DotGeneral {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: vec![2],
        rhs_contracting: vec![2],
        ..DotGeneral::default()
    };
    Ok(vec![b.dot_general(weights, y, dims)?])
}

/// The ops of a composite of one operand.
fn opened(b: &mut GraphBuilder, template: &'static Template, a: Attributes, x: ValueId) -> Result<ValueId> {
    let composite = Composite::new(template, a, &[b.ty(x).clone()])?;
    Ok(b.inline(&composite.definition.decomposition, &[x], false)?[0])
}

fn emit_gradient(b: &mut GraphBuilder, operands: &[ValueId], experts: usize) -> Result<Vec<ValueId>> {
    let own = &operands[..operands.len() - 1];
    let mut network = GraphBuilder::new("experts");
    let inputs: Vec<ValueId> =
        own.iter().map(|&operand| network.input("", b.ty(operand).clone(), Role::Activation)).collect();
    let results = emit(&mut network, &inputs, experts)?;
    let wanted: Vec<usize> = (0..own.len()).filter(|&at| at != 2).collect();
    let gradient = autodiff::vjp(&network.finish(results), &[0], &wanted)?;
    b.inline(&gradient, operands, false)
}

/// The values on one rank that has all experts.
fn evaluate(
    operands: &[&Literal],
    emit: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Result<Vec<Literal>> {
    let mut b = GraphBuilder::new("experts");
    let values: Vec<ValueId> =
        operands.iter().map(|operand| b.input("", operand.ty.clone(), Role::Activation)).collect();
    let results = emit(&mut b, &values)?;
    let operands: Vec<Literal> = operands.iter().map(|&operand| operand.clone()).collect();
    interpret::evaluate(&b.finish(results), &operands)
}

// ---- text ----

/// The ops by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse), (GRADIENT, parse_gradient)];

fn attributes(experts: usize) -> [(&'static str, String); 1] {
    [("experts", format!("{experts} : i64"))]
}

impl TextForm for Experts {
    /// The generic form, with the number of experts as attribute.
    fn print(&self, printer: &mut OpPrinter) {
        printer.generic(NAME, &attributes(self.experts), &[]);
    }
}

impl TextForm for ExpertsGradient {
    /// The generic form, with the number of experts as attribute.
    fn print(&self, printer: &mut OpPrinter) {
        printer.generic(GRADIENT, &attributes(self.experts), &[]);
    }
}

/// The number of experts of the generic form, which has so many operands or one more.
fn generic(op: &mut OpParser, least: usize) -> Result<usize> {
    if !op.generic()? {
        return Err(op.error("E140", format!("`{}` must be written in the generic form", op.name)));
    }
    op.at_least(least)?;
    op.arity(op.operands.len().min(least + 1))?;
    op.index_of("experts")
}

fn parse(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let experts = generic(op, PLAIN)?;
    op.finish(Experts { experts })
}

fn parse_gradient(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let experts = generic(op, PLAIN + 1)?;
    op.finish(ExpertsGradient { experts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random, refusal};
    use partita_base::DType;

    const OP: Experts = Experts { experts: 4 };

    /// Two rows of three tokens, two choices among four experts.
    fn operands(gated: bool) -> Vec<Literal> {
        let (features, hidden, experts) = (2, 3, 4);
        let chosen = [0, 3, 1, 0, 2, 1, 3, 2, 0, 1, 1, 2];
        let own = chosen.into_iter().flat_map(|own| (0..experts).map(move |e| f64::from(u8::from(e == own))));
        let own = Literal::new([2, 3, 2, experts], own.collect::<Vec<f64>>());
        let mut operands = vec![random(1, &[2, 3, features]), random(2, &[2, 3, 2]), own];
        operands.extend((0..1 + u64::from(gated)).map(|number| random(3 + number, &[experts, hidden, features])));
        operands.push(random(5, &[experts, features, hidden]));
        operands
    }

    #[test]
    fn each_token_meets_its_experts() {
        for gated in [false, true] {
            let operands = operands(gated);
            let found = apply(OP, &operands)[0].to_f64();
            let [x, weights, own] = [0, 1, 2].map(|at: usize| operands[at].to_f64());
            let matrices: Vec<Vec<f64>> = operands[3..].iter().map(Literal::to_f64).collect();
            for token in 0..6 {
                let mut y = [0.0; 2];
                for choice in 2 * token..2 * token + 2 {
                    let expert = (0..4).find(|e| own[4 * choice + e] == 1.0).unwrap();
                    let product = |matrix: &[f64], row: usize| -> f64 {
                        (0..2).map(|d| matrix[(expert * 3 + row) * 2 + d] * x[2 * token + d]).sum()
                    };
                    for row in 0..3 {
                        let first = product(&matrices[0], row);
                        let hidden = match gated {
                            true => first / (1.0 + (-first).exp()) * product(&matrices[1], row),
                            false => {
                                let inner = 0.7978845608028654 * (first + 0.044715 * first.powi(3));
                                0.5 * first * (1.0 + inner.tanh())
                            }
                        };
                        for (d, y) in y.iter_mut().enumerate() {
                            let down = matrices.last().unwrap()[(expert * 2 + d) * 3 + row];
                            *y += weights[choice] * hidden * down;
                        }
                    }
                }
                for (d, y) in y.into_iter().enumerate() {
                    assert!((found[2 * token + d] - y).abs() < 1e-12, "{gated} {token}");
                }
            }
        }
    }

    #[test]
    fn gradients_are_those_of_differences() {
        check_gradient(OP, operands(false), &[true, true, false, true, true]);
        check_gradient(OP, operands(true), &[true, true, false, true, true, true]);
    }

    #[test]
    fn tokens_experts_and_hidden_features_may_be_cut() {
        for gated in [false, true] {
            let mut operands = operands(gated);
            check_rule(OP, &operands);
            operands.push(random(6, &[2, 3, 2]));
            check_rule(ExpertsGradient { experts: 4 }, &operands);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let types: Vec<TensorType> = operands(true).iter().map(|operand| operand.ty.clone()).collect();
        for at in 0..6 {
            let mut other = types.clone();
            other[at].shape[0] += 1;
            assert!(refusal(OP, &other).contains("E116"), "operand {at}");
            other[at] = types[at].with_dtype(DType::F32);
            assert!(refusal(OP, &other).contains("E116"), "operand {at}");
        }
    }
}
