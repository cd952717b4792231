//! Split granularity: the block of elements, such as one attention head, that an uneven split of a
//! dimension must not break.
//!
//! A dimension of 128 that is 4 heads of 32 can be split over 3 ranks as 2, 1 and 1 heads, but not
//! as 43, 43 and 42 elements. The unit of a dimension follows from reshapes, through every op that
//! relates it to another dimension. It matters only for uneven splits, and only in layouts in which
//! ops compute. An axis over which a tensor is merely stored in shards (`fsdp`, `zero1`, `zero2`)
//! splits by single elements, see [`Layouts::by_element`](crate::propagate::Layouts::by_element).

use partita_ir::ops::Composite;
use partita_ir::{FactorKind, Graph, Operation, Rule, ValueId};
use std::sync::Arc;

/// The unit of each dimension of each value.
pub struct Units {
    of: Vec<Vec<usize>>,
}

impl Units {
    /// Computes units to a fixed point, from the factor rules of `graph`'s nodes.
    pub fn of(graph: &Graph, rules: &[Rule]) -> Units {
        let mut of: Vec<Vec<usize>> = graph.values.iter().map(|v| vec![1; v.ty.rank()]).collect();
        // Start from the units of annotations.
        for (value, units) in graph.values.iter().zip(&mut of) {
            let asked = value.annotation.iter().flat_map(|a| &a.sharding.dims);
            for ((unit, dim), &extent) in units.iter_mut().zip(asked).zip(&value.ty.shape) {
                raise(unit, dim.unit, extent);
            }
        }
        // Units only grow along divisors of extents, so this terminates. Alternating forward and
        // backward sweeps make it fast.
        loop {
            let mut changed = false;
            for id in graph.node_ids().chain(graph.node_ids().rev()) {
                changed |= visit(graph, &rules[id.index()], id, &mut of);
            }
            for &(input, output) in &graph.aliases {
                let (a, b) = (graph.inputs[input], graph.outputs[output]);
                for (dim, &extent) in graph.ty(a).shape.iter().enumerate() {
                    let unit = lcm(of[a.index()][dim], of[b.index()][dim]);
                    for value in [a, b] {
                        changed |= raise(&mut of[value.index()][dim], unit, extent);
                    }
                }
            }
            if !changed {
                return Units { of };
            }
        }
    }

    /// The unit of one dimension.
    pub fn unit(&self, value: ValueId, dim: usize) -> usize {
        self.of[value.index()][dim]
    }
}

fn visit(graph: &Graph, rule: &Rule, id: partita_ir::NodeId, of: &mut [Vec<usize>]) -> bool {
    let node = graph.node(id);
    // Along windows, tensors have extents of their own, and units of their own.
    let moves = |factor: usize| matches!(rule.factors[factor].kind, FactorKind::Window(_));
    let tensors: Vec<(ValueId, &Vec<Vec<usize>>)> = node
        .operands
        .iter()
        .copied()
        .zip(&rule.operands)
        .chain(node.results.iter().copied().zip(&rule.results))
        .collect();
    let mut unit_of_factor = vec![1usize; rule.factors.len()];
    for (value, dims) in &tensors {
        for (dim, factors) in dims.iter().enumerate() {
            if let Some((&major, minor)) = factors.split_first().filter(|(major, _)| !moves(**major)) {
                let below: usize = minor.iter().map(|&f| rule.factors[f].size).product();
                let unit = lcm(of[value.index()][dim], below.max(1));
                unit_of_factor[major] = lcm(unit_of_factor[major], unit / below.max(1));
            }
        }
    }
    let mut changed = false;
    for (value, dims) in &tensors {
        for (dim, factors) in dims.iter().enumerate() {
            if let Some((&major, minor)) = factors.split_first().filter(|(major, _)| !moves(**major)) {
                let below: usize = minor.iter().map(|&f| rule.factors[f].size).product();
                let unit = unit_of_factor[major] * below.max(1);
                changed |= raise(&mut of[value.index()][dim], unit, graph.ty(*value).shape[dim]);
            }
        }
    }
    changed
}

/// Raises a unit, unless the new one does not divide the extent.
fn raise(unit: &mut usize, wish: usize, extent: usize) -> bool {
    if wish > *unit && wish > 0 && extent > 0 && extent.is_multiple_of(wish) {
        *unit = wish;
        return true;
    }
    false
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    // Nearly all units are one, so skip the division for those.
    if a.min(b) <= 1 { a.max(b) } else { a / gcd(a, b) * b }
}

/// The factor rule of every node of a graph.
pub fn rules_of(graph: &Graph) -> Vec<Rule> {
    // Alike composites share a definition, and with equal attributes have one rule.
    let mut known: Vec<(&Composite, usize)> = Vec::new();
    let mut rules: Vec<Rule> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let composite = node.op.composite();
        let is_alike = |other: &Composite| {
            composite.is_some_and(|own| {
                Arc::ptr_eq(&own.definition, &other.definition) && own.attributes == other.attributes
            })
        };
        let rule = match known.iter().find(|(other, _)| is_alike(other)) {
            Some(&(_, first)) => rules[first].clone(),
            None => {
                known.extend(composite.map(|own| (own, rules.len())));
                node.op.rule(&graph.operand_types(node), &graph.result_types(node))
            }
        };
        rules.push(rule);
    }
    rules
}
