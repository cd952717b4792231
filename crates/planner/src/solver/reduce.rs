//! Removes what no best choices contain, before a problem is solved.
//!
//! A choice of a variable is a dead end if another one costs less whatever its neighbours choose (J. Desmet et al., "The
//! dead-end elimination theorem and its use in protein side-chain positioning", 1992). Removing it makes dead ends of
//! others.

use super::problem::{Edge, Problem};
use std::collections::{BTreeMap, BTreeSet};

/// The choices that are compared with each choice of a variable: those that could cost least.
const RIVALS: usize = 8;
/// How often a variable is looked at again after choices of its neighbours were removed.
const MAX_VISITS: usize = 6;
/// Differences below this part of what is compared are rounding.
const ROUNDING: f64 = 1e-12;

/// The problem with one edge for each pair of variables.
pub(super) fn joined(problem: &Problem) -> Problem {
    let mut edges: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for edge in &problem.edges {
        let [rows, columns] = [edge.from, edge.to].map(|v| problem.variables[v].cost.len());
        let key = (edge.from.min(edge.to), edge.from.max(edge.to));
        let sum = edges.entry(key).or_insert_with(|| vec![0.0; rows * columns]);
        for (place, cost) in edge.cost.iter().enumerate() {
            let turned = place % columns * rows + place / columns;
            sum[if edge.from < edge.to { place } else { turned }] += cost;
        }
    }
    let edge = |((from, to), cost)| Edge { from, to, cost };
    Problem {
        variables: problem.variables.clone(),
        edges: edges.into_iter().map(edge).collect(),
        memory_limit: problem.memory_limit,
    }
}

/// The choices of each variable that are no dead ends, in order. Where memory is limited, a choice is one only if the better
/// one does not need more. Of [`joined`] problems.
pub(super) fn promising(problem: &Problem) -> Vec<Vec<usize>> {
    let count = problem.variables.len();
    let mut alive: Vec<Vec<usize>> = problem.variables.iter().map(|v| (0..v.cost.len()).collect()).collect();
    let mut at: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (number, edge) in problem.edges.iter().enumerate() {
        at[edge.from].push(number);
        at[edge.to].push(number);
    }
    let mut visits = vec![0; count];
    let mut queue: BTreeSet<usize> = (0..count).collect();
    while let Some(variable) = queue.pop_first() {
        visits[variable] += 1;
        let before = alive[variable].len();
        let own = View { problem, edges: &at[variable], variable };
        own.remove_dead_ends(&mut alive);
        if alive[variable].len() < before {
            let neighbours = at[variable].iter().map(|&number| own.other(number));
            queue.extend(neighbours.filter(|&other| visits[other] < MAX_VISITS));
        }
    }
    alive
}

/// A variable and its edges.
struct View<'a> {
    problem: &'a Problem,
    edges: &'a [usize],
    variable: usize,
}

impl View<'_> {
    fn other(&self, edge: usize) -> usize {
        let Edge { from, to, .. } = self.problem.edges[edge];
        if from == self.variable { to } else { from }
    }

    /// The cost of an own choice with one of the other variable.
    fn between(&self, edge: usize, own: usize, other: usize) -> f64 {
        let Edge { from, to, ref cost } = self.problem.edges[edge];
        let width = self.problem.variables[to].cost.len();
        cost[if from == self.variable { own * width + other } else { other * width + own }]
    }

    fn remove_dead_ends(&self, alive: &mut [Vec<usize>]) {
        let own = alive[self.variable].clone();
        if own.len() < 2 {
            return;
        }
        // What a choice costs at least.
        let least = |choice: usize| {
            let around = self.edges.iter().map(|&edge| {
                let others = alive[self.other(edge)].iter();
                others.map(|&x| self.between(edge, choice, x)).fold(f64::INFINITY, f64::min)
            });
            self.problem.variables[self.variable].cost[choice] + around.sum::<f64>()
        };
        let mut order: Vec<(f64, usize)> = own.iter().map(|&choice| (least(choice), choice)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut kept: BTreeSet<usize> = own.iter().copied().collect();
        // The choice that could cost least comes first and stays, unless an equal one is before it.
        for &(_, choice) in order.iter().rev() {
            let rivals = order.iter().map(|&(_, rival)| rival);
            let mut rivals = rivals.filter(|&r| r != choice && kept.contains(&r)).take(RIVALS);
            if rivals.any(|rival| self.is_beaten(choice, rival, alive)) {
                kept.remove(&choice);
            }
        }
        alive[self.variable] = kept.into_iter().collect();
    }

    /// Whether a choice costs more than another one whatever the neighbours choose, or as much and comes later.
    fn is_beaten(&self, choice: usize, rival: usize, alive: &[Vec<usize>]) -> bool {
        let variable = &self.problem.variables[self.variable];
        let (cost, of_rival) = (variable.cost[choice], variable.cost[rival]);
        let needs_more = variable.memory[rival] > variable.memory[choice];
        if of_rival.is_infinite() || self.problem.memory_limit.is_some() && needs_more {
            return false;
        }
        let mut saved = cost - of_rival;
        let mut size = of_rival.abs();
        for &edge in self.edges {
            let mut least = f64::INFINITY;
            for &other in &alive[self.other(edge)] {
                let [cost, of_rival] = [choice, rival].map(|own| self.between(edge, own, other));
                if cost.is_finite() {
                    least = least.min(cost - of_rival);
                }
            }
            if least == f64::NEG_INFINITY {
                return false;
            }
            saved += least;
            size += least.abs();
        }
        if saved.is_infinite() {
            return true;
        }
        let rounding = ROUNDING * size;
        saved > rounding || saved >= -rounding && rival < choice
    }
}
