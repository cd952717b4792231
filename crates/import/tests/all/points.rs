//! One op at a time, at points where values and gradients go wrong: what the import makes of it, on the reference
//! interpreter, beside what PyTorch recorded (`tests/ops`).
//!
//! `PARTITA_POINTS=WORD` compares only the cases whose op or name has that word, and prints each difference in full.

use crate::common::cases::{Case, cases, folder};
use partita_ir::evaluate;
use std::collections::BTreeMap;

/// What differs, or why the case cannot be compared.
fn differences(case: &Case) -> Vec<String> {
    let error = |what: &str, error: Box<partita_base::Diagnostic>| vec![format!("{what}: {error}")];
    let programs = match case.programs() {
        Ok(programs) => programs,
        Err(diagnostic) => return error("import", diagnostic),
    };
    let found = match evaluate(&programs.forward, &programs.inputs) {
        Ok(found) => found,
        Err(diagnostic) => return error("forward", diagnostic),
    };
    let mut differing = Vec::new();
    for (at, &output) in programs.results.iter().enumerate() {
        differing.extend(case.apart(&format!("result {at}"), 1.0, &found[output], &case.result(at)));
    }
    let Some((backward, inputs)) = programs.backward else { return differing };
    let found = match evaluate(&backward, &inputs) {
        Ok(found) => found,
        Err(diagnostic) => return error("backward", diagnostic),
    };
    for (&at, found) in programs.trained.iter().zip(&found) {
        differing.extend(case.apart(&format!("gradient of x{at}"), 1.0, found, &case.gradient(at)));
    }
    differing
}

/// The cases that differ from PyTorch for a reason that is written down: op, name, what differs, why.
fn known() -> Vec<[String; 4]> {
    let text = std::fs::read_to_string(folder().join("differs.txt")).expect("what differs");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = |line: &str| {
        let mut parts = line.splitn(4, '|').map(|part| part.trim().to_string());
        [0, 1, 2, 3]
            .map(|_| parts.next().unwrap_or_else(|| panic!("`{line}` is not `op | name | what | why`")))
    };
    lines.map(parts).collect()
}

/// A difference without the numbers: `result 0: 2 of 5`.
fn place(difference: &str) -> String {
    difference.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ")
}

#[test]
fn every_op_computes_values_and_gradients_of_pytorch_at_nasty_points() {
    let whole = std::env::var_os("PARTITA_POINTS").is_none();
    let known = known();
    let mut used = vec![false; known.len()];
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for case in cases() {
        let (op, name) = (case.op(), case.name());
        count += 1;
        let found = differences(&case);
        if found.is_empty() {
            continue;
        }
        let what: Vec<String> = found.iter().map(|difference| place(difference)).collect();
        let what = what.join("; ");
        match known.iter().position(|[o, n, w, _]| o == op && n == name && *w == what) {
            Some(at) => used[at] = true,
            None => {
                wrong.entry(op.to_string()).or_default().push(format!("{op} `{name}`: {}", found.join("; ")))
            }
        }
    }
    if whole {
        for (line, used) in known.iter().zip(used) {
            if !used {
                wrong
                    .entry(line[0].clone())
                    .or_default()
                    .push(format!("{line:?} is in differs.txt and does not differ"));
            }
        }
    }
    let lines: Vec<String> = wrong.values().flatten().cloned().collect();
    assert!(
        lines.is_empty(),
        "{} of {count} cases of {} ops differ:\n{}",
        lines.len(),
        wrong.len(),
        lines.join("\n")
    );
}
