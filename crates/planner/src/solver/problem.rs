//! The problem that the solver solves: variables, choices, and costs between pairs.

use std::collections::BTreeMap;

/// A variable: one of several choices is made.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Variable {
    /// The cost of each choice; infinite for a choice that must not be made.
    pub cost: Vec<f64>,
    /// The memory of each choice, finite.
    pub memory: Vec<f64>,
}

/// The cost of the choices of two variables together.
#[derive(Clone, PartialEq, Debug)]
pub struct Edge {
    /// One variable.
    pub from: usize,
    /// The other variable.
    pub to: usize,
    /// The cost for each choice of `from` and each choice of `to`, which varies fastest; infinite for a pair that must not
    /// be chosen.
    pub cost: Vec<f64>,
}

/// Variables and edges.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Problem {
    /// The variables.
    pub variables: Vec<Variable>,
    /// The edges; several between one pair add up.
    pub edges: Vec<Edge>,
    /// The most memory that all choices together may need.
    pub memory_limit: Option<f64>,
}

impl Problem {
    /// Adds a variable without memory, and returns its number.
    pub fn variable(&mut self, cost: Vec<f64>) -> usize {
        let memory = vec![0.0; cost.len()];
        self.variables.push(Variable { cost, memory });
        self.variables.len() - 1
    }

    /// Adds an edge; an edge from a variable to itself adds the diagonal to its costs.
    pub fn edge(&mut self, from: usize, to: usize, cost: Vec<f64>) {
        if from == to {
            let count = self.variables[from].cost.len();
            self.variables[from]
                .cost
                .iter_mut()
                .enumerate()
                .for_each(|(choice, own)| *own += cost[choice * count + choice]);
        } else {
            self.edges.push(Edge { from, to, cost });
        }
    }

    /// The cost of these choices.
    pub fn cost(&self, choices: &[usize]) -> f64 {
        let own =
            self.variables.iter().zip(choices).map(|(variable, &choice)| variable.cost[choice]).sum::<f64>();
        let between = self.edges.iter().map(|edge| {
            edge.cost[choices[edge.from] * self.variables[edge.to].cost.len() + choices[edge.to]]
        });
        own + between.sum::<f64>()
    }

    /// The memory of these choices.
    pub fn memory(&self, choices: &[usize]) -> f64 {
        self.variables.iter().zip(choices).map(|(variable, &choice)| variable.memory[choice]).sum()
    }

    /// The problem with only these choices of each variable. What a variable with one choice costs its neighbours is added
    /// to their choices.
    pub fn restricted(&self, kept: &[Vec<usize>]) -> Problem {
        let variable = |(variable, kept): (&Variable, &Vec<usize>)| Variable {
            cost: kept.iter().map(|&choice| variable.cost[choice]).collect(),
            memory: kept.iter().map(|&choice| variable.memory[choice]).collect(),
        };
        let mut variables: Vec<Variable> = self.variables.iter().zip(kept).map(variable).collect();
        let mut edges = Vec::new();
        for edge in &self.edges {
            let width = self.variables[edge.to].cost.len();
            let row = |&from: &usize| kept[edge.to].iter().map(move |&to| edge.cost[from * width + to]);
            let cost: Vec<f64> = kept[edge.from].iter().flat_map(row).collect();
            let only = match (kept[edge.from].len(), kept[edge.to].len()) {
                (_, 1) => edge.from,
                (1, _) => edge.to,
                _ => {
                    edges.push(Edge { from: edge.from, to: edge.to, cost });
                    continue;
                }
            };
            variables[only].cost.iter_mut().zip(cost).for_each(|(own, cost)| *own += cost);
        }
        Problem { variables, edges, memory_limit: self.memory_limit }
    }

    /// The two variables whose remaining choices first exclude each other, if arc consistency shows that no choice
    /// satisfies all infinite costs; twice the same variable if it has no choice of its own.
    pub fn conflict(&self) -> Option<(usize, usize)> {
        let mut alive: Vec<Vec<bool>> =
            self.variables.iter().map(|v| v.cost.iter().map(|cost| cost.is_finite()).collect()).collect();
        if let Some(empty) = alive.iter().position(|choices| !choices.contains(&true)) {
            return Some((empty, empty));
        }
        let mut sums: BTreeMap<(usize, usize), Vec<bool>> = BTreeMap::new();
        for edge in &self.edges {
            let allowed = sums.entry((edge.from, edge.to)).or_insert_with(|| vec![true; edge.cost.len()]);
            allowed.iter_mut().zip(&edge.cost).for_each(|(allowed, cost)| *allowed &= cost.is_finite());
        }
        loop {
            let mut changed = false;
            for (&(from, to), allowed) in &sums {
                let width = alive[to].len();
                for (one, other, at) in [(from, to, 0), (to, from, 1)] {
                    for choice in 0..alive[one].len() {
                        let place = |partner: usize| {
                            if at == 0 { choice * width + partner } else { partner * width + choice }
                        };
                        let supported = (0..alive[other].len()).any(|p| alive[other][p] && allowed[place(p)]);
                        if alive[one][choice] && !supported {
                            alive[one][choice] = false;
                            changed = true;
                        }
                    }
                    if !alive[one].contains(&true) {
                        return Some((from, to));
                    }
                }
            }
            if !changed {
                return None;
            }
        }
    }
}
