//! The examples, run as they stand: each verifies itself, and prints what its README shows.

// Each example has the file of its command line, as users run it.
#![allow(clippy::duplicate_mod)]

#[path = "../../examples/support/arguments.rs"]
mod arguments;
#[path = "../../examples/kernel_injection/main.rs"]
#[allow(dead_code)]
mod kernel_injection;
#[path = "../../examples/parameter_sharding/main.rs"]
#[allow(dead_code)]
mod parameter_sharding;
#[path = "../../examples/pipeline/main.rs"]
#[allow(dead_code)]
mod pipeline;
#[path = "../../examples/schedules/main.rs"]
#[allow(dead_code)]
mod schedules;
#[path = "../../examples/sequence_parallel/main.rs"]
#[allow(dead_code)]
mod sequence_parallel;
#[path = "../../examples/slapo_mlp/main.rs"]
#[allow(dead_code)]
mod slapo_mlp;

use partita::prelude::{Diagnostic, Result};
use std::path::Path;

/// The text blocks of an example's README, one after the other.
fn shown(example: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks = text.split("```text\n").skip(1).filter_map(|part| part.split("```").next());
    let blocks: String = blocks.collect();
    assert!(!blocks.is_empty(), "{} shows no output", path.display());
    blocks
}

/// Everything but broken numbers is equal; those to three digits, for vectors of other machines round otherwise.
fn is_alike(printed: &str, shown: &str) -> bool {
    let near = |a: &str, b: &str| match (a.contains('.'), a.parse::<f64>(), b.parse::<f64>()) {
        (true, Ok(a), Ok(b)) => (a - b).abs() <= 1e-3 * a.abs().max(1e-3),
        _ => a == b,
    };
    let (a, b) = (printed.split_whitespace(), shown.split_whitespace());
    a.clone().count() == b.clone().count() && a.zip(b).all(|(a, b)| near(a, b))
}

fn prints_what_its_readme_shows(example: &str, run: fn(&mut dyn FnMut(&str)) -> Result<()>) {
    let mut printed = String::new();
    let result = run(&mut |line| printed += &format!("{line}\n"));
    // Paths of source files, as the example itself has them.
    let printed = printed.replace("tests/all/../../", "");
    result.unwrap_or_else(|error: Box<Diagnostic>| panic!("{error}\nafter\n{printed}"));
    assert!(is_alike(&printed, &shown(example)), "{example} printed\n{printed}");
}

#[test]
fn the_tutorial_of_slapo() {
    prints_what_its_readme_shows("slapo_mlp", slapo_mlp::run);
}

#[test]
fn pipeline() {
    prints_what_its_readme_shows("pipeline", pipeline::run);
}

#[test]
fn parameter_sharding() {
    prints_what_its_readme_shows("parameter_sharding", parameter_sharding::run);
}

#[test]
fn sequence_parallelism() {
    prints_what_its_readme_shows("sequence_parallel", sequence_parallel::run);
}

#[test]
fn schedules_of_three_models() {
    prints_what_its_readme_shows("schedules", schedules::run);
}

#[test]
fn kernel_injection() {
    let folder = tempfile::tempdir().unwrap();
    let mut printed = String::new();
    let result =
        kernel_injection::run(&mut |line| printed += &format!("{line}\n"), folder.path(), 5, [64, 16]);
    result.unwrap_or_else(|error| panic!("{error}\nafter\n{printed}"));
    // Times are what they are; all else is as shown.
    let without_times = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  ").next().unwrap_or("").to_string()).collect()
    };
    assert_eq!(without_times(&printed), without_times(&shown("kernel_injection")));
    let svg = std::fs::read_to_string(folder.path().join("steps.svg")).unwrap();
    // Five lines of the grid, and one of five points for each variant.
    let lines: Vec<&str> = svg.lines().filter(|line| line.starts_with("<polyline")).collect();
    let points = |line: &&&str| line.matches(',').count() == 5;
    assert_eq!((lines.len(), lines.iter().filter(points).count()), (7, 2), "{svg}");
    let png = std::fs::File::open(folder.path().join("steps.png")).unwrap();
    let mut reader = png::Decoder::new(std::io::BufReader::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    let drawn = pixels.chunks(3).filter(|pixel| **pixel != [255; 3]).count();
    assert!((4000..100_000).contains(&drawn), "lines and letters on white: {drawn} pixels");
}

#[test]
fn an_example_refuses_arguments_that_it_does_not_know() {
    let given = |line: &str, flags: &[&str], others| {
        arguments::arguments(line.split(' ').map(str::to_string), flags, others)
            .map_err(|error| error.to_string())
    };
    let (values, others) = given("example out --dim 3", &["--dim"], 1).unwrap();
    assert_eq!((values, others), (vec![Some("3".to_string())], vec!["out".to_string()]));
    for line in ["example --steps 3", "example 3", "example --dim"] {
        let error = given(line, &["--dim"], 0).unwrap_err();
        assert!(error.starts_with("error[E033]") && error.contains("--dim VALUE"), "{line}: {error}");
    }
    assert!(given("example 3", &[], 0).unwrap_err().contains("no arguments"));
}
