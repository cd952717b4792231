//! Suggestions for misspelt names, by Damerau-Levenshtein distance.

/// Up to three of `candidates` that `name` may be a misspelling of, best first.
///
/// A misspelling is at most one edit (a letter inserted, deleted or replaced, or two neighbours
/// swapped) for every three letters of the shorter name, and at least one; case is ignored. Of
/// dotted names, the longer one may have more components in front.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(usize, &str)> =
        candidates.into_iter().filter_map(|candidate| Some((slips(name, candidate)?, candidate))).collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(3).map(|(_, candidate)| candidate.to_string()).collect()
}

/// The number of edits from one name to another; `None` if it is too large for a misspelling.
fn slips(name: &str, candidate: &str) -> Option<usize> {
    let (name, candidate) = (name.to_lowercase(), candidate.to_lowercase());
    let within = |a: &str, b: &str| {
        let most = (a.chars().count().min(b.chars().count()) / 3).max(1);
        Some(strsim::damerau_levenshtein(a, b))
            .filter(|edits| *edits <= most && !a.is_empty() && !b.is_empty())
    };
    // The last components of the longer name, as many as the shorter one has.
    let tail = |long: &str, short: &str| {
        let (components, wanted) = (long.matches('.').count(), short.matches('.').count());
        let skipped = components.checked_sub(wanted)?;
        Some(long.splitn(skipped + 1, '.').last()?.to_string())
    };
    let aligned = match (tail(&candidate, &name), tail(&name, &candidate)) {
        (Some(tail), _) => within(&name, &tail),
        (None, Some(tail)) => within(&tail, &candidate),
        (None, None) => None,
    };
    within(&name, &candidate).or(aligned)
}

/// `did you mean \`a\` or \`b\`?`, or `None` if no candidate is near.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let near = nearest(name, candidates);
    if near.is_empty() {
        return None;
    }
    let quoted: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
    Some(format!("did you mean {}?", quoted.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_name() {
        assert_eq!(nearest("q_porj", ["k_proj", "q_proj", "mlp"])[0], "q_proj");
        assert_eq!(did_you_mean("zzz", ["q_proj"]), None);
        assert_eq!(nearest("dmi", ["vocab", "dim", "layers"]), ["dim"]);
        assert_eq!(nearest("lerning_rat", ["learning_rate", "floor"]), ["learning_rate"]);
        assert_eq!(nearest("Steps", ["steps", "seed"]), ["steps"]);
        assert_eq!(nearest("lama", ["mlp", "gpt", "llama", "bert"]), ["llama"]);
    }

    #[test]
    fn names_that_have_little_in_common_are_not_suggested() {
        for (name, other) in [
            ("lost.toml", "pyenv-installer"),
            ("nowhere", "node_modules"),
            ("data", "date.txt"),
            ("a", "bc"),
            ("tp", "dp2"),
            ("", "x"),
            ("x", ""),
            ("checkpoint", "config"),
        ] {
            assert_eq!(nearest(name, [other]), [""; 0], "{name}");
        }
    }

    #[test]
    fn components_in_front_may_be_missing_or_too_many() {
        let names = ["layers.0.mlp.up_proj", "layers.1.mlp.up_proj", "head"];
        assert_eq!(nearest("up_porj", names), names[..2]);
        assert_eq!(nearest("mlp.up_proj", names), names[..2]);
        assert_eq!(nearest("model.haed", names), ["head"]);
    }

    #[test]
    fn the_nearest_comes_first_and_each_once() {
        assert_eq!(
            nearest("linear1", ["linear22", "linear1x", "linear2", "linear2"]),
            ["linear1x", "linear2", "linear22"]
        );
    }
}
