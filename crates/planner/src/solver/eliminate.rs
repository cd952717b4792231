//! Bucket elimination with mini-buckets.
//!
//! A variable is eliminated by adding up all tables that contain it and taking the least value over its choices, which
//! leaves one table over its neighbours. The order is that of least fill-in. A table with more than a limit of entries is
//! not built: the tables of the bucket are minimised in several groups, which can only lower the result.

use super::problem::Problem;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// A function of some variables: the number of its table, and the variables in the order of its dimensions.
#[derive(Clone, Debug)]
struct Factor {
    table: usize,
    scope: Vec<usize>,
}

/// The tables of a problem under several objectives, and the order of elimination.
pub struct Elimination<'a> {
    problem: &'a Problem,
    order: Vec<usize>,
    most_entries: usize,
}

/// The choices that elimination finds, and a bound on what any choices cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// No choices cost less.
    pub bound: f64,
    /// One choice for each variable.
    pub choices: Vec<usize>,
    /// Whether a bucket was minimised in groups, so that better choices may exist.
    pub is_split: bool,
    /// The entries of all tables that were added up.
    pub work: u64,
}

impl<'a> Elimination<'a> {
    /// Finds an order of elimination.
    pub fn new(problem: &'a Problem, most_entries: usize) -> Elimination<'a> {
        Elimination { problem, order: order(problem), most_entries }
    }

    /// Minimises the objective whose terms are `of_variable(cost, memory)` for each choice and
    /// `of_edge(cost)` for each pair.
    pub fn minimise(&self, of_variable: impl Fn(f64, f64) -> f64, of_edge: impl Fn(f64) -> f64) -> Found {
        let sizes: Vec<usize> = self.problem.variables.iter().map(|variable| variable.cost.len()).collect();
        let mut tables = Tables::default();
        let mut factors: Vec<Option<Factor>> = Vec::new();
        for (number, variable) in self.problem.variables.iter().enumerate() {
            let entries =
                variable.cost.iter().zip(&variable.memory).map(|(&c, &m)| of_variable(c, m)).collect();
            factors.push(Some(Factor {
                table: tables.interned(&[sizes[number]], entries),
                scope: vec![number],
            }));
        }
        for edge in &self.problem.edges {
            let entries = edge.cost.iter().map(|&cost| of_edge(cost)).collect();
            factors.push(Some(Factor {
                table: tables.interned(&[sizes[edge.from], sizes[edge.to]], entries),
                scope: vec![edge.from, edge.to],
            }));
        }
        let mut at: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.problem.variables.len()];
        for (number, factor) in factors.iter().enumerate() {
            factor.iter().flat_map(|f| &f.scope).for_each(|&v| _ = at[v].insert(number));
        }
        let (mut bound, mut is_split) = (0.0, false);
        let mut buckets: Vec<Vec<Factor>> = Vec::with_capacity(self.order.len());
        for &variable in &self.order {
            let bucket: Vec<Factor> =
                at[variable].iter().filter_map(|&number| factors[number].take()).collect();
            let groups = self.groups(&bucket, &sizes);
            is_split |= groups.len() > 1;
            for group in groups {
                let factor = tables.eliminated(variable, &group, &sizes);
                if factor.scope.is_empty() {
                    bound += tables.of[factor.table][0];
                    continue;
                }
                factor.scope.iter().for_each(|&v| _ = at[v].insert(factors.len()));
                factors.push(Some(factor));
            }
            buckets.push(bucket);
        }
        let mut choices = vec![0; sizes.len()];
        for (&variable, bucket) in self.order.iter().zip(&buckets).rev() {
            let mut least = f64::INFINITY;
            let mut best = 0;
            for choice in 0..sizes[variable] {
                choices[variable] = choice;
                let value: f64 = bucket.iter().map(|factor| tables.at(factor, &choices, &sizes)).sum();
                if value < least {
                    (least, best) = (value, choice);
                }
            }
            choices[variable] = best;
        }
        Found { bound, choices, is_split, work: tables.work }
    }

    /// The factors of a bucket in groups whose joint tables are within the limit; one group if all fit.
    fn groups(&self, bucket: &[Factor], sizes: &[usize]) -> Vec<Vec<Factor>> {
        let entries = |scope: &BTreeSet<usize>| scope.iter().map(|&v| sizes[v] as f64).product::<f64>();
        let mut largest_first: Vec<&Factor> = bucket.iter().collect();
        let all: BTreeSet<usize> = bucket.iter().flat_map(|factor| factor.scope.iter().copied()).collect();
        if entries(&all) <= self.most_entries as f64 {
            return vec![bucket.to_vec()];
        }
        largest_first.sort_by_key(|factor| std::cmp::Reverse(factor.scope.len()));
        let mut groups: Vec<(BTreeSet<usize>, Vec<Factor>)> = Vec::new();
        for factor in largest_first {
            let joint = |scope: &BTreeSet<usize>| -> BTreeSet<usize> {
                scope.iter().chain(&factor.scope).copied().collect()
            };
            let fitting =
                groups.iter_mut().find(|(scope, _)| entries(&joint(scope)) <= self.most_entries as f64);
            match fitting {
                Some((scope, group)) => {
                    *scope = joint(scope);
                    group.push(factor.clone());
                }
                None => groups.push((factor.scope.iter().copied().collect(), vec![factor.clone()])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}

/// The tables by number, and what is known of them.
#[derive(Default)]
struct Tables {
    of: Vec<Rc<Vec<f64>>>,
    /// Tables by their extents and the bits of their entries.
    known: HashMap<(Vec<usize>, Vec<u64>), usize>,
    /// Results by what was eliminated: for each factor its table and the places of its variables in the joint scope.
    done: BTreeMap<Vec<(usize, Vec<usize>)>, usize>,
    /// See [`Found::work`].
    work: u64,
}

impl Tables {
    fn interned(&mut self, extents: &[usize], entries: Vec<f64>) -> usize {
        let bits = entries.iter().map(|entry| entry.to_bits()).collect();
        let Tables { of, known, .. } = self;
        *known.entry((extents.to_vec(), bits)).or_insert_with(|| {
            of.push(Rc::new(entries));
            of.len() - 1
        })
    }

    fn at(&self, factor: &Factor, choices: &[usize], sizes: &[usize]) -> f64 {
        let place = factor.scope.iter().fold(0, |place, &v| place * sizes[v] + choices[v]);
        self.of[factor.table][place]
    }

    /// The sum of the factors with its least value over a variable, as a function of the others.
    fn eliminated(&mut self, variable: usize, group: &[Factor], sizes: &[usize]) -> Factor {
        let mut scope: Vec<usize> = Vec::new();
        for &other in group.iter().flat_map(|factor| &factor.scope) {
            if other != variable && !scope.contains(&other) {
                scope.push(other);
            }
        }
        // The eliminated variable varies fastest.
        let place = |v: &usize| scope.iter().position(|s| s == v).unwrap_or(scope.len());
        let key: Vec<(usize, Vec<usize>)> =
            group.iter().map(|factor| (factor.table, factor.scope.iter().map(place).collect())).collect();
        if let Some(&table) = self.done.get(&key) {
            return Factor { table, scope };
        }
        let extents: Vec<usize> = scope.iter().chain([&variable]).map(|&v| sizes[v]).collect();
        let mut sum = vec![0.0; extents.iter().product()];
        self.work += (sum.len() * group.len()) as u64;
        for (factor, (table, places)) in group.iter().zip(&key) {
            // The distance in the factor's table of one step along each dimension of the joint table.
            let mut strides = vec![0; extents.len()];
            let mut stride = 1;
            for (&place, &v) in places.iter().zip(&factor.scope).rev() {
                strides[place] = stride;
                stride *= sizes[v];
            }
            add(&mut sum, &self.of[*table], &extents, &strides);
        }
        let width = sizes[variable];
        let least: Vec<f64> =
            sum.chunks_exact(width).map(|row| row.iter().copied().fold(f64::INFINITY, f64::min)).collect();
        self.of.push(Rc::new(least));
        self.done.insert(key, self.of.len() - 1);
        Factor { table: self.of.len() - 1, scope }
    }
}

/// Adds a table to a larger one, of which it is a broadcast.
fn add(sum: &mut [f64], table: &[f64], extents: &[usize], strides: &[usize]) {
    let (&width, &stride) = (extents.last().expect("there is one"), strides.last().expect("there is one"));
    let mut index = vec![0usize; extents.len() - 1];
    let mut place = 0;
    for row in sum.chunks_exact_mut(width) {
        for (choice, entry) in row.iter_mut().enumerate() {
            *entry += table[place + choice * stride];
        }
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            place += strides[dim];
            if index[dim] < extents[dim] {
                break;
            }
            place -= strides[dim] * extents[dim];
            index[dim] = 0;
        }
    }
}

/// Neighbours beyond which those that lack an edge are not counted: such a variable is eliminated after the others.
const MANY: usize = 48;

/// The order of elimination: each time the variable whose neighbours lack the fewest edges between each other; of these
/// the one with the smallest table, and of these the first.
fn order(problem: &Problem) -> Vec<usize> {
    let count = problem.variables.len();
    let mut neighbours: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
    for edge in &problem.edges {
        neighbours[edge.from].insert(edge.to);
        neighbours[edge.to].insert(edge.from);
    }
    let rank = |neighbours: &[BTreeSet<usize>], v: usize| {
        let near: Vec<usize> = neighbours[v].iter().copied().collect();
        let missing = |(place, &a): (usize, &usize)| {
            near[place + 1..].iter().filter(|b| !neighbours[a].contains(b)).count()
        };
        let fill: usize = match near.len() {
            few if few <= MANY => near.iter().enumerate().map(missing).sum(),
            many => many * many,
        };
        let entries: f64 = near.iter().chain([&v]).map(|&v| problem.variables[v].cost.len() as f64).product();
        (fill, entries.min(1e15) as u64)
    };
    let mut ranks: Vec<(usize, u64)> = (0..count).map(|v| rank(&neighbours, v)).collect();
    let mut queue: BTreeSet<(usize, u64, usize)> = (0..count).map(|v| (ranks[v].0, ranks[v].1, v)).collect();
    let mut order = Vec::with_capacity(count);
    while let Some((_, _, variable)) = queue.pop_first() {
        order.push(variable);
        let near: Vec<usize> = std::mem::take(&mut neighbours[variable]).into_iter().collect();
        let mut touched: BTreeSet<usize> = near.iter().copied().collect();
        for &a in &near {
            neighbours[a].remove(&variable);
            for &b in &near {
                if a != b && neighbours[a].insert(b) {
                    let (small, large) = match neighbours[a].len() < neighbours[b].len() {
                        true => (a, b),
                        false => (b, a),
                    };
                    touched.extend(neighbours[small].iter().filter(|c| neighbours[large].contains(c)));
                }
            }
        }
        for v in touched {
            let new = rank(&neighbours, v);
            if new != ranks[v] {
                queue.remove(&(ranks[v].0, ranks[v].1, v));
                queue.insert((new.0, new.1, v));
                ranks[v] = new;
            }
        }
    }
    order
}
