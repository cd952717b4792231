//! Random graphs with random layouts asked for, on random meshes: partitioning never changes a number and never
//! panics.

mod common;

use common::recipe::{MESHES, Recipe, recipes};
use common::{check, check_specialised};
use partita_ir::evaluate;
use partita_spmd::{Cause, Options};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn run(recipe: &Recipe) -> Result<(), TestCaseError> {
    let (graph, mesh) = (recipe.graph(), recipe.mesh());
    let inputs = recipe.values(&graph);
    let expected = evaluate(&graph, &inputs).expect("a valid graph");
    let fail = |(code, text)| TestCaseError::fail(format!("{code} on {mesh}: {text}"));
    let partitioned = check(&graph, &mesh, &Options::default(), &inputs, &expected).map_err(fail)?;
    if recipe.seed.is_multiple_of(4) {
        check_specialised(&partitioned, &inputs).map_err(fail)?;
    }
    // Every split dimension says why.
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
    if let Err(error) = runner.run(&recipes(MESHES.len(), 14), |recipe| run(&recipe)) {
        panic!("seed {seed}: {error}");
    }
}

#[test]
fn random_graphs_equal_one_device_a() {
    run_seed(1, 300);
}

#[test]
fn random_graphs_equal_one_device_b() {
    run_seed(2, 300);
}
