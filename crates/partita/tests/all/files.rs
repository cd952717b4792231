//! Passes tested from files: each `.mlir` file below `tests/files` says in comments which passes to run and what must
//! hold of the outcome. `tests/files/README.md` explains the lines; `FILE=text` runs the files whose path has the text,
//! and `UPDATE=1` writes expected outcomes anew.

use partita::opt::{OptOptions, Unit};
use partita_ir::{Literal, TensorType};
use partita_mesh::Mesh;
use partita_runtime::Cpu;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Steps in a row that `EQUAL` compares: what replaces an input in the first is read by the second.
const STEPS: usize = 2;

/// A text that is looked for behind what was found before.
struct Check {
    text: String,
    /// Only on the line that follows.
    next_line: bool,
}

/// The lines of a file that say something of the test.
#[derive(Default)]
struct Directives {
    /// Passes and choices of lowering.
    items: Vec<String>,
    mesh: Option<String>,
    ranks: Option<usize>,
    checks: Vec<Check>,
    absent: Vec<String>,
    counts: Vec<(String, usize)>,
    equal: Option<f64>,
    errors: Vec<String>,
}

fn directives(text: &str) -> Result<Directives, String> {
    let mut found = Directives::default();
    for line in text.lines() {
        let Some((word, rest)) = line.strip_prefix("// ").and_then(|line| line.split_once(": ")) else {
            continue;
        };
        let rest = rest.trim();
        match word {
            "RUN" => {
                for item in rest.split_whitespace() {
                    match item.split_once('=') {
                        Some(("mesh", axes)) => found.mesh = Some(axes.to_string()),
                        Some(("ranks", n)) => {
                            found.ranks = Some(n.parse().map_err(|_| format!("RUN: {item}"))?);
                        }
                        _ => found.items.push(item.to_string()),
                    }
                }
            }
            "CHECK" | "NEXT" => {
                found.checks.push(Check { text: rest.to_string(), next_line: word == "NEXT" });
            }
            "ABSENT" => found.absent.push(rest.to_string()),
            "COUNT" => {
                let (op, count) = rest.rsplit_once(' ').ok_or(format!("COUNT: {rest}"))?;
                found.counts.push((op.to_string(), count.parse().map_err(|_| format!("COUNT: {rest}"))?));
            }
            "EQUAL" => {
                found.equal = Some(match rest {
                    "exact" => 0.0,
                    bound => bound.parse().map_err(|_| format!("EQUAL: {rest}"))?,
                });
            }
            "ERROR" => found.errors.push(rest.to_string()),
            _ if word.chars().all(|c| c.is_ascii_uppercase()) => {
                return Err(format!("there is no line `{word}`"));
            }
            _ => {}
        }
    }
    if found.items.is_empty() {
        return Err("no RUN line names a pass".to_string());
    }
    Ok(found)
}

/// Numbers of a type that depend on nothing but their place: small, so that short sums are exact; whole numbers stay
/// below 2, so that they are rows of any table.
fn numbers(ty: &TensorType, seed: usize) -> Literal {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let is_float = ty.dtype.is_float();
    let values = (0..ty.element_count()).map(|_| match is_float {
        true => (next() % 33) as f64 / 8.0 - 2.0,
        false => (next() % 2) as f64,
    });
    Literal::from_f64(ty, values.collect::<Vec<_>>().into_iter())
}

/// The largest difference relative to the largest number; 0 where the bits are equal.
fn difference(one: &Literal, other: &Literal) -> f64 {
    if one.ty != other.ty {
        return f64::INFINITY;
    }
    if one.to_bytes() == other.to_bytes() {
        return 0.0;
    }
    let (one, other) = (one.to_f64(), other.to_f64());
    let largest = one.iter().chain(&other).fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
    let differences = one.iter().zip(&other).map(|(a, b)| (a - b).abs() / largest);
    differences.fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}

/// Runs one file; what is wrong with it.
fn run(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let wanted = directives(&text)?;
    let mesh = wanted.mesh.as_ref().map(|mesh| Mesh::parse(mesh, None)).transpose();
    let mesh = mesh.map_err(|error| error.to_string())?;
    let mut options = OptOptions { mesh, ranks: wanted.ranks, ..OptOptions::default() };
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    let mut passed = || -> partita_base::Result<Unit> {
        let mut unit = Unit::read(&text, &name, &options)?;
        for item in &wanted.items {
            if !options.set(item)? {
                unit = unit.run(item, &options, &Cpu::default())?;
            }
        }
        Ok(unit)
    };
    let unit = match passed() {
        Ok(unit) if wanted.errors.is_empty() => unit,
        Ok(_) => return Err(format!("no error, where `{}` was expected", wanted.errors.join("`, `"))),
        Err(error) if wanted.errors.is_empty() => return Err(error.to_string()),
        Err(error) => {
            let found = error.to_string();
            return match wanted.errors.iter().find(|text| !found.contains(text.as_str())) {
                None => Ok(()),
                Some(text) => Err(format!("another error than `{text}`:\n{found}")),
            };
        }
    };
    let printed = unit.print();
    if std::env::var_os("FILE").is_some() {
        println!("{printed}");
    }
    let mut rest = printed.as_str();
    for Check { text, next_line } in &wanted.checks {
        let found = match next_line {
            false => rest.find(text.as_str()),
            true => {
                let line = rest.find('\n').map_or("", |end| &rest[end + 1..]);
                let start = rest.len() - line.len();
                line.lines().next().and_then(|line| line.find(text.as_str())).map(|at| start + at)
            }
        };
        match found {
            Some(at) => rest = &rest[at + text.len()..],
            None => return Err(format!("`{text}` is not in the rest of the outcome:\n{rest}")),
        }
    }
    if let Some(text) = wanted.absent.iter().find(|text| printed.contains(text.as_str())) {
        return Err(format!("`{text}` is in the outcome:\n{printed}"));
    }
    for (text, count) in &wanted.counts {
        let found = printed.matches(text.as_str()).count();
        if found != *count {
            return Err(format!("{found} times `{text}`, where {count} were expected:\n{printed}"));
        }
    }
    if let Some(bound) = wanted.equal {
        let before = Unit::read(&text, &name, &options).map_err(|error| error.to_string())?;
        let inputs: Vec<Literal> =
            before.inputs().iter().enumerate().map(|(seed, ty)| numbers(ty, seed)).collect();
        let outputs = |unit: &Unit| unit.interpret(&inputs, STEPS).map_err(|error| error.to_string());
        let (expected, found) = (outputs(&before)?, outputs(&unit)?);
        for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
            if expected.len() != found.len() {
                return Err(format!("{} outputs, where {} were expected", found.len(), expected.len()));
            }
            for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
                let difference = difference(expected, found);
                if difference > bound {
                    let place = format!("output {number} of step {step}");
                    return Err(format!("{place} differs by {difference:e}:\n{expected:?}\n{found:?}"));
                }
            }
        }
    }
    blessed(&path.with_extension("out"), &printed)
}

/// Compares with the expected outcome, where there is one, or writes it.
fn blessed(path: &Path, printed: &str) -> Result<(), String> {
    if std::env::var_os("UPDATE").is_some() {
        if path.exists() {
            std::fs::write(path, printed).map_err(|error| error.to_string())?;
        }
        return Ok(());
    }
    match std::fs::read_to_string(path) {
        Ok(expected) if expected == printed => Ok(()),
        Ok(expected) => {
            let mut lines = expected.lines().zip(printed.lines()).enumerate();
            let first = lines.find(|(_, (a, b))| a != b);
            let at = first.map_or("the lengths differ".to_string(), |(n, (a, b))| {
                format!("line {}:\n  expected {a}\n  found    {b}", n + 1)
            });
            Err(format!("the outcome is not that of {}: {at}\nUPDATE=1 writes it anew", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder of file tests can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "mlir") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/files");
    let mut found = Vec::new();
    files(&folder, &mut found);
    found.sort();
    if let Ok(wanted) = std::env::var("FILE") {
        found.retain(|path| path.to_string_lossy().contains(&wanted));
    }
    assert!(!found.is_empty(), "no files below {}", folder.display());
    let mut failures = String::new();
    for path in &found {
        if let Err(error) = run(path) {
            let name = path.strip_prefix(&folder).unwrap_or(path);
            let _ = writeln!(failures, "{}: {error}\n", name.display());
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn buffers_without_a_place_are_not_interpreted() {
    let text = "module {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}";
    let options = OptOptions { ranks: Some(1), ..OptOptions::default() };
    let unit =
        Unit::read(text, "text", &options).and_then(|unit| unit.run("..emit", &options, &Cpu::default()));
    let unit = unit.unwrap_or_else(|error| panic!("{error}"));
    let inputs: Vec<Literal> = unit.inputs().iter().map(|ty| numbers(ty, 0)).collect();
    assert_eq!(unit.interpret(&inputs, 1).expect_err("it has no places").code, "E017");
}
