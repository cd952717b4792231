//! Conformance: runs MLIR test files in the executable form of StableHLO's interpreter tests and of
//! Shardy's partitioner tests, and reports for each function whether it passes.
//!
//! A test file is a list of modules separated by `// -----`. A function without arguments is a
//! test: it computes values and compares them (`check.expect_eq`, `check.expect_close` and others).
//! `interpreter.run_parallel` runs functions as the ranks of a mesh: functions with `sdy` layouts are
//! partitioned first and receive shards; others are per-rank programs and run as they are. A file
//! of two parts (`//--- part1.mlir`) is one module.
//!
//! The files in `tests/conformance` at the root must all pass. `PARTITA_CONFORMANCE=FOLDER cargo
//! test -p partita-spmd --test conformance -- --nocapture` runs the files of a folder instead, such
//! as a checkout of a public suite, and prints a report.

mod check;
mod run;
mod suite;

use run::Outcome;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The `.mlir` files below a path, in order of their names.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    let entries = std::fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    found.sort();
    let is_test = |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|e| e == "mlir");
    found.into_iter().filter(is_test).flat_map(|path| files(&path)).collect()
}

/// The outcome of every test function of a file.
fn outcomes(path: &Path) -> Vec<(String, Outcome)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut outcomes = Vec::new();
    for (number, module) in suite::modules(&text).into_iter().enumerate() {
        match suite::cases(&module) {
            Ok(cases) => outcomes.extend(cases.iter().map(|case| {
                let name = format!("{name}:{number}:@{}", case.function);
                (name, run::outcome(case))
            })),
            Err(error) => outcomes.push((format!("{name}:{number}"), run::refused(&error))),
        }
    }
    outcomes
}

#[test]
fn test_files_pass() {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance"));
    let outside = std::env::var_os("PARTITA_CONFORMANCE").map(PathBuf::from);
    let folder = outside.as_ref().unwrap_or(&own);
    let (mut passed, mut reasons, mut failures) = (0, BTreeMap::<String, usize>::new(), Vec::new());
    let (mut whole, mut all_files) = (0, 0);
    for path in files(folder) {
        let outcomes = outcomes(&path);
        all_files += 1;
        whole += usize::from(outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Pass));
        for (name, outcome) in outcomes {
            match outcome {
                Outcome::Pass => passed += 1,
                Outcome::Unsupported(reason) => {
                    println!("unsupported {name}: {reason}");
                    *reasons.entry(reason).or_default() += 1;
                }
                Outcome::Fail(reason) => {
                    println!("FAIL {name}: {reason}");
                    failures.push(format!("{name}: {reason}"));
                }
            }
        }
    }
    let unsupported: usize = reasons.values().sum();
    let total = passed + unsupported + failures.len();
    for (reason, count) in &reasons {
        println!("{count:5} {reason}");
    }
    println!("functions: {passed} of {total} pass, {unsupported} unsupported, {} fail", failures.len());
    println!("files: {whole} of {all_files} pass in full");
    if outside.is_none() {
        assert!(reasons.is_empty() && failures.is_empty(), "{reasons:?} {failures:?}");
        assert!(passed > 0, "there are test files");
    }
    let panics: Vec<&String> = failures.iter().filter(|failure| failure.contains("panic")).collect();
    assert!(panics.is_empty(), "{panics:#?}");
}
