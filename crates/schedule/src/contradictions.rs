//! Finds plan lines that a later line overrides. Contradictions without a sensible meaning are
//! errors when the plan is applied; the others become notes with both lines and their subject.

use partita_base::Note;
use std::collections::BTreeSet;

/// A line, the names of what it covers, and what it requests.
pub(crate) struct Claim<'a, T> {
    pub line: String,
    pub about: BTreeSet<&'a str>,
    pub asks: T,
}

/// The code of a note that names two lines of which the later one overrides the earlier.
pub(crate) const OVERRIDDEN: &str = "overridden";

/// Reports each claim that a later claim overrides. An exception to a default, that is a later line
/// about a part of what an earlier one covers, is no contradiction.
pub(crate) fn overruled<T: PartialEq>(claims: &[Claim<T>]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (number, before) in claims.iter().enumerate() {
        let overrules = |after: &&Claim<T>| {
            let exception = after.about.len() < before.about.len() && after.about.is_subset(&before.about);
            after.asks != before.asks && !exception && !after.about.is_disjoint(&before.about)
        };
        if let Some(after) = claims[number + 1..].iter().find(overrules) {
            let common: Vec<&str> = before.about.intersection(&after.about).copied().collect();
            let text = format!("{}: {} overrides {}", named(&common), after.line, before.line);
            notes.push(Note { code: OVERRIDDEN, line: Some(before.line.clone()), text });
        }
    }
    notes
}

/// The first of some names, and how many more there are.
pub(crate) fn named(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("`{one}`"),
        [first, rest @ ..] => format!("`{first}` and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_has_exceptions_and_everything_else_is_told() {
        let claims = |lines: &[(&'static str, &'static [&'static str], u8)]| -> Vec<Claim<'static, u8>> {
            let claim = |&(line, about, asks): &(&str, &'static [&'static str], u8)| Claim {
                line: line.to_string(),
                about: about.iter().copied().collect(),
                asks,
            };
            lines.iter().map(claim).collect()
        };
        let notes = |lines: &[(&'static str, &'static [&'static str], u8)]| -> Vec<String> {
            overruled(&claims(lines)).into_iter().map(|note| note.text).collect()
        };
        assert!(notes(&[("A", &["a", "b"], 1), ("B", &["a"], 2)]).is_empty(), "an exception");
        assert!(notes(&[("A", &["a"], 1), ("B", &["a", "b"], 1)]).is_empty(), "the same twice");
        assert!(notes(&[("A", &["a"], 1), ("B", &["b"], 2)]).is_empty(), "nothing in common");
        let said = |text: &str| vec![text.to_string()];
        assert_eq!(notes(&[("A", &["a"], 1), ("B", &["a"], 2)]), said("`a`: B overrides A"));
        assert_eq!(
            notes(&[("A", &["a", "b"], 1), ("B", &["a", "b", "c"], 2)]),
            said("`a` and 1 more: B overrides A"),
            "a default that comes too late"
        );
        assert_eq!(
            notes(&[("A", &["a", "b", "d"], 1), ("B", &["b", "c"], 2)]),
            said("`b`: B overrides A"),
            "neither is an exception"
        );
    }
}
