//! A long search for a split that changes a result: every op of the test table over more shapes,
//! meshes, parts of axes and element types than a test run has time for, and random graphs. The
//! same seed tries the same cases.
//!
//! `cargo run --release -p partita-spmd --example sweep -- --seconds 300 --seed 1`; `--from N`
//! starts at trial N, as the report of a failure says.

#[path = "../tests/all/common/mod.rs"]
mod common;

use common::recipe::{MESHES, recipes};
use common::splits::{check_case, full_axes};
use common::table::cases;
use common::{check, check_specialised};
use partita_base::DType;
use partita_ir::evaluate;
use partita_mesh::{AxisRef, Mesh};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::time::Instant;

const MESHES_OF_OPS: &[&[(&str, usize)]] = &[
    &[("x", 2)],
    &[("x", 3)],
    &[("x", 4)],
    &[("x", 5)],
    &[("x", 2), ("y", 2)],
    &[("x", 2), ("y", 3)],
    &[("x", 3), ("y", 2)],
    &[("x", 2), ("y", 2), ("z", 2)],
];

/// The whole axes, or the halves of an axis of 4.
fn axes(mesh: &Mesh, in_parts: bool) -> Vec<AxisRef> {
    let parts = |axis: AxisRef| match axis.split(2) {
        Some((major, minor)) if in_parts && axis.size == 4 => vec![minor, major],
        _ => vec![axis],
    };
    full_axes(mesh).into_iter().flat_map(parts).collect()
}

/// Numbers that depend on the seed and the trial alone.
fn mix(seed: u64, trial: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ trial.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 30)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Tries one op of the table on one mesh in every split.
fn try_op(number: u64) -> Result<usize, String> {
    let mut digits = number;
    let mut below = |count: usize| {
        let digit = digits % count as u64;
        digits /= count as u64;
        digit as usize
    };
    let mesh = Mesh::new("mesh", MESHES_OF_OPS[below(MESHES_OF_OPS.len())]);
    let dtype = [DType::F64, DType::F32, DType::BF16, DType::I32][below(4)];
    let n = [0, 1, 2, 3, 4, 5, 6, 7, 8][below(9)];
    let axes = axes(&mesh, below(2) == 1);
    let cases = cases(n, dtype);
    check_case(&cases[below(cases.len())], &mesh, &axes)
}

/// Tries one random graph.
fn try_graph(number: u64) -> Result<usize, String> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let recipe =
        recipes(MESHES.len(), 40).new_tree(&mut runner).expect("recipes are never refused").current();
    let (graph, mesh) = (recipe.graph(), recipe.mesh());
    let inputs = recipe.values(&graph);
    let fail = |(code, text): (&str, String)| format!("{code} on {mesh}: {text}\n{recipe:#?}");
    let expected = evaluate(&graph, &inputs).map_err(|e| format!("{e}\n{recipe:#?}"))?;
    let partitioned = check(&graph, &mesh, &recipe.options(), &inputs, &expected).map_err(fail)?;
    check_specialised(&partitioned, &inputs).map_err(fail)?;
    Ok(1)
}

fn argument(name: &str, default: u64) -> u64 {
    let arguments: Vec<String> = std::env::args().collect();
    let value = arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1));
    value.map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name} takes a whole number, not `{v}`")))
}

fn main() {
    let (seconds, seed, from) = (argument("--seconds", 60), argument("--seed", 1), argument("--from", 0));
    let start = Instant::now();
    let (mut trial, mut splits, mut graphs) = (from, 0, 0);
    while start.elapsed().as_secs() < seconds {
        let number = mix(seed, trial);
        let outcome = std::panic::catch_unwind(|| match trial % 4 {
            0 => try_op(number),
            _ => try_graph(number),
        });
        let problem = match outcome {
            Ok(Ok(tried)) if trial.is_multiple_of(4) => {
                splits += tried;
                None
            }
            Ok(Ok(tried)) => {
                graphs += tried;
                None
            }
            Ok(Err(problem)) => Some(problem),
            Err(_) => Some("it panicked".to_string()),
        };
        if let Some(problem) = problem {
            println!("{problem}");
            println!(
                "again: cargo run -p partita-spmd --example sweep -- --seed {seed} --from {trial} --seconds 1"
            );
            std::process::exit(1);
        }
        trial += 1;
    }
    println!("{splits} splits of single ops and {graphs} random graphs equal one device");
}
