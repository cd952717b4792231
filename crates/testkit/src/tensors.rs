//! Tensors compared within a tolerance, and lists of config overrides.

use partita_ir::Literal;

/// Asserts that two tensors have one type, and elements that differ by at most `tolerance` times the largest magnitude of
/// `expected`.
///
/// # Panics
/// If they do not, with the first element that differs.
#[track_caller]
pub fn assert_close(found: &Literal, expected: &Literal, tolerance: f64, what: &str) {
    assert_eq!(found.ty, expected.ty, "{what}: another type");
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * largest;
    let differs = found.iter().zip(&expected).position(|pair| !is_near(pair));
    if let Some(place) = differs {
        panic!("{what}: element {place} is {}, expected {}", found[place], expected[place]);
    }
}

/// Config overrides from string slices.
pub fn overrides(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}
