//! Lagrange multiplier on memory, and branch and bound.

use super::eliminate::{Elimination, Found};
use super::problem::Problem;
use super::reduce::{joined, promising};

/// How much work a solution may take; the same effort gives the same solution on every machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// The most entries of a table.
    pub most_entries: usize,
    /// The most branches.
    pub most_branches: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { most_entries: 1 << 20, most_branches: 64 }
    }
}

/// The choices found and how good they are.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// One choice for each variable.
    pub choices: Vec<usize>,
    /// Their cost.
    pub cost: f64,
    /// Their memory.
    pub memory: f64,
    /// No choices within the limit cost less.
    pub bound: f64,
    /// The branches that were searched.
    pub branches: usize,
}

impl Solution {
    /// The largest share of the cost that better choices could save.
    pub fn gap(&self) -> f64 {
        if self.cost <= self.bound {
            0.0
        } else {
            (self.cost - self.bound) / self.cost.abs().max(f64::MIN_POSITIVE)
        }
    }
}

/// The answer to a problem.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// Choices within the limit.
    Solved(Solution),
    /// All choices need more memory than the limit.
    TooLarge {
        /// A lower bound on the memory of any choices.
        least_memory: f64,
        /// The choices with the least memory that was found.
        choices: Vec<usize>,
    },
    /// Infinite costs exclude all choices; these two variables show it where arc consistency finds a pair.
    Conflict(Option<(usize, usize)>),
    /// Neither choices within the limit nor a proof that there are none were found with this effort.
    Unknown,
}

/// Costs with a smaller relative difference are considered equal.
const SAME: f64 = 1e-9;

/// Finds the cheapest choices within the limit of memory.
pub fn solve(problem: &Problem, effort: &Effort) -> Outcome {
    if let Some(pair) = problem.conflict() {
        return Outcome::Conflict(Some(pair));
    }
    let whole = joined(problem);
    let kept = promising(&whole);
    let small = whole.restricted(&kept);
    let all: Vec<Vec<usize>> = small.variables.iter().map(|v| (0..v.cost.len()).collect()).collect();
    let mut search = Search {
        problem: &small,
        effort,
        best: None,
        smallest: None,
        branches: 0,
        work: 0,
        open_bound: f64::INFINITY,
    };
    search.visit(&all, f64::NEG_INFINITY);
    let Search { best, smallest, branches, open_bound, .. } = search;
    let of_whole = |choices: Vec<usize>| -> Vec<usize> {
        choices.into_iter().zip(&kept).map(|(choice, kept)| kept[choice]).collect()
    };
    match (best, smallest) {
        (Some((_, choices)), _) => {
            let choices = of_whole(choices);
            let cost = problem.cost(&choices);
            let (memory, bound) = (problem.memory(&choices), open_bound.min(cost));
            Outcome::Solved(Solution { choices, cost, memory, bound, branches })
        }
        _ if open_bound.is_finite() => Outcome::Unknown,
        (None, Some((least_memory, choices))) => {
            Outcome::TooLarge { least_memory, choices: of_whole(choices) }
        }
        (None, None) => Outcome::Conflict(None),
    }
}

struct Search<'a> {
    problem: &'a Problem,
    effort: &'a Effort,
    best: Option<(f64, Vec<usize>)>,
    /// The least memory of the whole problem and choices that come near it, where that is above the limit.
    smallest: Option<(f64, Vec<usize>)>,
    branches: usize,
    /// The entries of tables that were added up.
    work: u64,
    /// The least bound of what was not searched.
    open_bound: f64,
}

/// The work after which no more branches are searched.
const MAX_WORK: u64 = 1 << 28;

/// What relaxation says of a part of the problem.
struct Relaxed {
    bound: f64,
    /// The variable to branch on and the choice to split off.
    branch: Option<(usize, usize)>,
}

impl Search<'_> {
    /// Searches the choices in `kept`; nothing in them costs less than `above`.
    fn visit(&mut self, kept: &[Vec<usize>], above: f64) {
        self.branches += 1;
        let part = self.problem.restricted(kept);
        if self.branches > 1 && part.conflict().is_some() {
            return;
        }
        let Some(relaxed) = self.relax(&part, kept) else { return };
        let bound = relaxed.bound.max(above);
        if self.is_beaten(bound) {
            return;
        }
        let Some((variable, choice)) = relaxed.branch else {
            self.open_bound = self.open_bound.min(bound);
            return;
        };
        if self.is_tired() {
            self.open_bound = self.open_bound.min(bound);
            return;
        }
        let mut only = kept.to_vec();
        only[variable] = vec![kept[variable][choice]];
        let mut without = kept.to_vec();
        without[variable].remove(choice);
        for part in [only, without] {
            match self.is_tired() {
                true if !self.is_beaten(bound) => self.open_bound = self.open_bound.min(bound),
                true => {}
                false => self.visit(&part, bound),
            }
        }
    }

    /// Whether the effort is spent.
    fn is_tired(&self) -> bool {
        self.branches >= self.effort.most_branches || self.work > MAX_WORK
    }

    fn is_beaten(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|(cost, _)| bound >= cost - SAME * cost.abs())
    }

    /// Keeps choices of a part if they are within the limit and the best so far, after single changes that improve them.
    fn offer(&mut self, part: &Problem, kept: &[Vec<usize>], choices: &[usize]) {
        let mut choices = choices.to_vec();
        if !part.cost(&choices).is_finite() || !fits(part, part.memory(&choices)) {
            return;
        }
        improve(part, &mut choices);
        let choices: Vec<usize> = choices.iter().zip(kept).map(|(&choice, kept)| kept[choice]).collect();
        let cost = self.problem.cost(&choices);
        if fits(self.problem, self.problem.memory(&choices))
            && self.best.as_ref().is_none_or(|(least, _)| cost < *least)
        {
            self.best = Some((cost, choices));
        }
    }

    /// A lower bound from the relaxation of memory, whose dual is maximised along its breakpoints. `None` if the part has
    /// no choices within the limit.
    fn relax(&mut self, part: &Problem, kept: &[Vec<usize>]) -> Option<Relaxed> {
        let elimination = Elimination::new(part, self.effort.most_entries);
        let free = elimination.minimise(|cost, _| cost, |cost| cost);
        self.work += free.work;
        if free.bound == f64::INFINITY {
            return None;
        }
        self.offer(part, kept, &free.choices);
        let Some(limit) = part.memory_limit.filter(|_| !fits(part, part.memory(&free.choices))) else {
            return Some(Relaxed { bound: free.bound, branch: split_at(part, &free, &free) });
        };
        let barrier = |cost: f64| if cost.is_finite() { 0.0 } else { f64::INFINITY };
        let small = elimination.minimise(|cost, memory| memory + barrier(cost), barrier);
        self.work += small.work;
        if !fits(part, small.bound) {
            if self.branches == 1 {
                self.smallest = Some((small.bound, small.choices));
            }
            return None;
        }
        self.offer(part, kept, &small.choices);
        // The dual function is the minimum of lines with slope memory - limit; walk to where the lines of the two ends meet.
        let point = |found: &Found| (part.cost(&found.choices), part.memory(&found.choices));
        let (mut large, mut small) = (free.clone(), small);
        let mut bound = free.bound;
        for _ in 0..MAX_STEPS {
            let ((large_cost, large_memory), (small_cost, small_memory)) = (point(&large), point(&small));
            let saved = large_memory - small_memory;
            if !(saved > 0.0 && small_cost > large_cost && small_cost.is_finite()) {
                break;
            }
            let multiplier = (small_cost - large_cost) / saved;
            let found = elimination.minimise(|cost, memory| cost + multiplier * memory, |cost| cost);
            self.work += found.work;
            bound = bound.max(found.bound - multiplier * limit);
            self.offer(part, kept, &found.choices);
            let (cost, memory) = point(&found);
            let line = large_cost + multiplier * large_memory;
            if cost + multiplier * memory >= line - SAME * line.abs() {
                break;
            }
            match fits(part, memory) {
                true => small = found,
                false => large = found,
            }
        }
        Some(Relaxed { bound, branch: split_at(part, &large, &small) })
    }
}

/// The most multipliers that are tried.
const MAX_STEPS: usize = 24;

fn fits(problem: &Problem, memory: f64) -> bool {
    problem.memory_limit.is_none_or(|limit| memory <= limit + SAME * limit.abs())
}

/// Where to branch: the variable whose choices in two solutions differ most in cost, or, if they are the same solution of a
/// relaxation, the one with the most choices. `None` if nothing is left to choose or the solution is exact.
fn split_at(part: &Problem, large: &Found, small: &Found) -> Option<(usize, usize)> {
    let span = |v: usize| {
        let cost = |found: &Found| {
            part.variables[v].cost[found.choices[v]] + part.variables[v].memory[found.choices[v]]
        };
        (cost(large) - cost(small)).abs()
    };
    let differs = (0..part.variables.len()).filter(|&v| large.choices[v] != small.choices[v]);
    let differs = differs.max_by(|&a, &b| span(a).total_cmp(&span(b)).then(b.cmp(&a)));
    if let Some(variable) = differs {
        return Some((variable, small.choices[variable]));
    }
    if !large.is_split && fits(part, part.memory(&large.choices)) {
        return None;
    }
    let mut degrees = vec![0usize; part.variables.len()];
    for edge in &part.edges {
        degrees[edge.from] += 1;
        degrees[edge.to] += 1;
    }
    let choosable = |&v: &usize| part.variables[v].cost.len() > 1;
    let widest = (0..part.variables.len()).filter(choosable);
    let widest = widest.max_by_key(|&v| (degrees[v], std::cmp::Reverse(v)));
    widest.map(|variable| (variable, large.choices[variable]))
}

/// Changes single choices as long as that lowers the cost within the limit.
fn improve(problem: &Problem, choices: &mut [usize]) {
    let mut at: Vec<Vec<usize>> = vec![Vec::new(); problem.variables.len()];
    for (number, edge) in problem.edges.iter().enumerate() {
        at[edge.from].push(number);
        at[edge.to].push(number);
    }
    let around = |choices: &[usize], v: usize| {
        let edges = at[v].iter().map(|&number| {
            let edge = &problem.edges[number];
            edge.cost[choices[edge.from] * problem.variables[edge.to].cost.len() + choices[edge.to]]
        });
        problem.variables[v].cost[choices[v]] + edges.sum::<f64>()
    };
    let mut memory = problem.memory(choices);
    for _ in 0..MAX_STEPS {
        let mut changed = false;
        for v in 0..choices.len() {
            let now = choices[v];
            let (mut best, mut least) = (now, around(choices, v));
            for choice in 0..problem.variables[v].cost.len() {
                choices[v] = choice;
                let after = memory - problem.variables[v].memory[now] + problem.variables[v].memory[choice];
                let cost = around(choices, v);
                if cost < least - SAME * least.abs() && fits(problem, after) {
                    (best, least) = (choice, cost);
                }
            }
            choices[v] = best;
            memory += problem.variables[v].memory[best] - problem.variables[v].memory[now];
            changed |= best != now;
        }
        if !changed {
            return;
        }
    }
}
