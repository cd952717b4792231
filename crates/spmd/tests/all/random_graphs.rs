//! Random graphs with random annotations on random meshes: partitioning never changes a result and
//! never panics.

use crate::common::recipe::{MESHES, Recipe, recipes};
use crate::common::{check, check_specialised};
use partita_ir::Operation;
use partita_ir::evaluate;
use partita_spmd::{Cause, Options, partition};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn run(recipe: &Recipe) -> Result<(), TestCaseError> {
    let (graph, mesh) = (recipe.graph(), recipe.mesh());
    let inputs = recipe.values(&graph);
    let expected = evaluate(&graph, &inputs).expect("a valid graph");
    let fail = |(code, text)| TestCaseError::fail(format!("{code} on {mesh}: {text}"));
    let partitioned = check(&graph, &mesh, &recipe.options(), &inputs, &expected).map_err(fail)?;
    if recipe.seed.is_multiple_of(4) {
        check_specialised(&partitioned, &inputs).map_err(fail)?;
    }
    // Every sharded dimension has a cause.
    let layouts = &partitioned.layouts;
    for id in partitioned.graph.value_ids() {
        for (dim, sharding) in layouts.sharding(id).dims.iter().enumerate() {
            let cause: &Option<Cause> = &layouts.causes[id.index()][dim];
            prop_assert!(
                sharding.axes.is_empty() || cause.is_some(),
                "no cause for {:?} dimension {dim}",
                id
            );
        }
    }
    Ok(())
}

/// Fixed seeds, so that every run tries the same cases.
fn run_seed(seed: u8, cases: u32) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(error) = runner.run(&recipes(MESHES.len(), 20), |recipe| run(&recipe)) {
        panic!("seed {seed}: {error}");
    }
}

#[test]
fn random_graphs_equal_one_device_a() {
    run_seed(1, 500);
}

#[test]
fn random_graphs_equal_one_device_b() {
    run_seed(2, 500);
}

/// Checks that the cases above are strong enough: they communicate, hold partial values, and a sum
/// that is never completed is detected.
#[test]
fn a_sum_that_is_taken_for_complete_is_noticed() {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]));
    let strategy = recipes(MESHES.len(), 20);
    let (mut moving, mut broken, mut noticed) = (0, 0, 0);
    for _ in 0..200 {
        let recipe = strategy.new_tree(&mut runner).expect("recipes are never refused").current();
        let (graph, mesh) = (recipe.graph(), recipe.mesh());
        let inputs = recipe.values(&graph);
        let expected = evaluate(&graph, &inputs).expect("a valid graph");
        let partitioned = partition(&graph, &mesh, &Options::default()).expect("valid layouts");
        let local = &partitioned.locals[0];
        moving += usize::from(local.nodes.iter().any(|n| n.op.is_collective()));
        if partitioned.placements.iter().any(|p| p.sharding.is_partial()) {
            broken += 1;
            let options = Options { break_rule_at: Some(String::new()), ..Options::default() };
            noticed += usize::from(check(&graph, &mesh, &options, &inputs, &expected).is_err());
        }
    }
    println!("{moving} move data, {broken} hold partial values, {noticed} show when one is broken");
    assert!(moving > 100 && broken > 40 && noticed > 20, "{moving} {broken} {noticed}");
}
