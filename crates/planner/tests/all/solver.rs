//! The solver against brute force, and with folding against problems without equal parts.

use partita_planner::solver::{Effort, Outcome, Problem, solve};
use proptest::prelude::*;

/// Every choice of all variables.
fn all_choices(problem: &Problem) -> Vec<Vec<usize>> {
    problem.variables.iter().fold(vec![Vec::new()], |before, variable| {
        let with = |choices: Vec<usize>| {
            (0..variable.cost.len()).map(move |choice| [choices.as_slice(), &[choice]].concat())
        };
        before.into_iter().flat_map(with).collect()
    })
}

/// The cheapest cost within the limit, by trying everything.
fn brute(problem: &Problem) -> Option<f64> {
    let limit = problem.memory_limit.unwrap_or(f64::INFINITY);
    let within = all_choices(problem).into_iter().filter(|choices| problem.memory(choices) <= limit + 1e-9);
    within.map(|choices| problem.cost(&choices)).filter(|cost| cost.is_finite()).min_by(f64::total_cmp)
}

/// A cost from a small number: every seventh is forbidden.
fn cost(number: u8) -> f64 {
    if number % 7 == 6 { f64::INFINITY } else { f64::from(number) }
}

prop_compose! {
    fn problems()(sizes in prop::collection::vec(1usize..5, 1..7))(
        costs in sizes.iter().map(|&n| prop::collection::vec((0u8..60, 0u8..20), n)).collect::<Vec<_>>(),
        edges in prop::collection::vec(
            ((0..sizes.len()), (0..sizes.len()), prop::collection::vec(0u8..60, 16)), 0..10),
        share in 0u8..12,
        limited in any::<bool>(),
    ) -> Problem {
        let mut problem = Problem::default();
        for choices in &costs {
            let variable = problem.variable(choices.iter().map(|&(c, _)| cost(c)).collect());
            problem.variables[variable].memory = choices.iter().map(|&(_, m)| f64::from(m)).collect();
        }
        for (from, to, entries) in &edges {
            let count = problem.variables[*from].cost.len() * problem.variables[*to].cost.len();
            problem.edge(*from, *to, entries[..count].iter().map(|&c| cost(c)).collect());
        }
        let most: f64 = problem.variables.iter().map(|v| v.memory.iter().copied().fold(0.0, f64::max)).sum();
        problem.memory_limit = limited.then_some(most * f64::from(share) / 12.0);
        problem
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_cheaper_and_the_bound_is_one(problem in problems()) {
        let best = brute(&problem);
        match solve(&problem, &Effort { most_entries: 1 << 20, most_branches: 10_000 }) {
            Outcome::Solved(found) => {
                let best = best.expect("there are choices");
                prop_assert!((found.cost - best).abs() <= 1e-6, "{} instead of {best}", found.cost);
                prop_assert!(found.bound <= best + 1e-6 && found.gap() <= 1e-6, "{:?}", found);
                prop_assert_eq!(problem.cost(&found.choices), found.cost);
                prop_assert!(problem.memory_limit.is_none_or(|limit| found.memory <= limit + 1e-6));
            }
            Outcome::TooLarge { least_memory, choices } => {
                prop_assert_eq!(best, None);
                let finite = all_choices(&problem).into_iter().filter(|c| problem.cost(c).is_finite());
                let least = finite.map(|c| problem.memory(&c)).min_by(f64::total_cmp).expect("memory is the obstacle");
                prop_assert!((least_memory - least).abs() <= 1e-6);
                prop_assert!((problem.memory(&choices) - least).abs() <= 1e-6);
            }
            Outcome::Conflict(_) => prop_assert_eq!(best, None),
            Outcome::Unknown => prop_assert!(false, "the effort suffices"),
        }
    }

    #[test]
    fn the_bound_holds_with_little_effort(problem in problems(), most_entries in 1usize..40, most_branches in 1usize..6) {
        let best = brute(&problem);
        match solve(&problem, &Effort { most_entries, most_branches }) {
            Outcome::Solved(found) => {
                let best = best.expect("there are choices");
                prop_assert!(found.bound <= best + 1e-6 && found.cost >= best - 1e-6, "{:?} {}", found, best);
            }
            Outcome::TooLarge { .. } | Outcome::Conflict(_) => prop_assert_eq!(best, None),
            Outcome::Unknown => {}
        }
    }
}

/// A chain of `layers` layers of three variables in a ring, with costs from a generator; `alike` repeats the first layer.
fn layers(layers: usize, alike: bool, seed: u64) -> Problem {
    let mut problem = Problem::default();
    let mut state = seed;
    let mut draw = |restart: bool, count: usize| -> Vec<f64> {
        if restart {
            state = seed;
        }
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) % 1000) as f64
        };
        (0..count).map(next).collect()
    };
    for layer in 0..layers {
        let own: Vec<usize> = (0..3).map(|i| problem.variable(draw(alike && i == 0, 4))).collect();
        for (from, to) in [(0, 1), (1, 2), (0, 2)] {
            problem.edge(own[from], own[to], draw(false, 16));
        }
        if layer > 0 {
            problem.edge(own[0] - 1, own[0], draw(false, 16));
        }
    }
    problem
}

/// The least cost of [`layers`] by dynamic programming over the last variable of each layer.
fn chain(problem: &Problem) -> f64 {
    let cost = |v: usize, c: usize| problem.variables[v].cost[c];
    let between = |from: usize, to: usize, a: usize, b: usize| {
        let edges = problem.edges.iter().filter(|edge| (edge.from, edge.to) == (from, to));
        edges.map(|edge| edge.cost[a * 4 + b]).sum::<f64>()
    };
    let mut ends: Option<[f64; 4]> = None;
    for first in (0..problem.variables.len()).step_by(3) {
        let mut next = [f64::INFINITY; 4];
        for (a, b, c) in (0..64).map(|i| (i / 16, i / 4 % 4, i % 4)) {
            let before = ends.map_or(0.0, |ends| {
                (0..4).map(|e| ends[e] + between(first - 1, first, e, a)).fold(f64::INFINITY, f64::min)
            });
            let own = cost(first, a) + cost(first + 1, b) + cost(first + 2, c);
            let inner = between(first, first + 1, a, b)
                + between(first + 1, first + 2, b, c)
                + between(first, first + 2, a, c);
            next[c] = next[c].min(before + own + inner);
        }
        ends = Some(next);
    }
    ends.expect("there are layers").into_iter().fold(f64::INFINITY, f64::min)
}

#[test]
fn layers_cost_what_dynamic_programming_finds() {
    for seed in 0..20 {
        for alike in [false, true] {
            let problem = layers(40, alike, seed);
            let Outcome::Solved(found) = solve(&problem, &Effort::default()) else {
                panic!("there are choices")
            };
            assert_eq!((found.cost, found.bound), (chain(&problem), found.cost), "seed {seed}");
        }
    }
}

#[test]
fn pairs_that_exclude_each_other_are_named() {
    let mut problem = Problem::default();
    let variables: Vec<usize> = (0..3).map(|_| problem.variable(vec![0.0; 2])).collect();
    let same = vec![0.0, f64::INFINITY, f64::INFINITY, 0.0];
    problem.edge(variables[0], variables[1], same.clone());
    problem.edge(variables[1], variables[2], same);
    problem.variables[0].cost[1] = f64::INFINITY;
    problem.variables[2].cost[0] = f64::INFINITY;
    assert_eq!(solve(&problem, &Effort::default()), Outcome::Conflict(Some((1, 2))));
}
