//! Glob patterns over module paths.

/// Whether a dotted path matches a pattern: `*` matches one component or a part of one (`*_proj`),
/// `**` matches any number of components, including none.
pub fn matches(pattern: &str, path: &str) -> bool {
    let path: Vec<&str> = if path.is_empty() { Vec::new() } else { path.split('.').collect() };
    components_match(&pattern.split('.').collect::<Vec<&str>>(), &path)
}

fn components_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, _) => path.is_empty(),
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skipped| components_match(rest, &path[skipped..])),
        (Some((first, rest)), Some((component, others))) => {
            letters_match(first.as_bytes(), component.as_bytes()) && components_match(rest, others)
        }
        (Some(_), None) => false,
    }
}

fn letters_match(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| letters_match(rest, &text[skipped..])),
        Some((first, rest)) => text.first() == Some(first) && letters_match(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_components_and_their_parts() {
        for (pattern, path) in [
            ("layers.*.mlp.up_proj", "layers.3.mlp.up_proj"),
            ("layers.*.*.*_proj", "layers.3.mlp.up_proj"),
            ("**", ""),
            ("**", "layers.0"),
            ("**.up_proj", "layers.3.mlp.up_proj"),
            ("**.up_proj", "up_proj"),
            ("layers.**.up_proj", "layers.up_proj"),
            ("layers.1*", "layers.10"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("layers.*", "layers.3.mlp"),
            ("layers.*.mlp", "layers.mlp"),
            ("layers.1", "layers.10"),
            ("*", ""),
            ("**.up_proj", "layers.3.up_projection"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }
}
