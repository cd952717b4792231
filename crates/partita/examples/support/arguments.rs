//! The command line of an example: an argument that it does not know is refused.

use partita::prelude::{Diagnostic, Result};

/// The values of the named flags, `None` for those that are not given, and at most `others` other arguments.
///
/// # Errors
/// E033 for an unknown flag, a flag without a value, and more arguments.
pub fn arguments(
    given: impl Iterator<Item = String>,
    flags: &[&str],
    others: usize,
) -> Result<(Vec<Option<String>>, Vec<String>)> {
    let refused = |argument: &str, message: &str| {
        let known: Vec<String> = flags.iter().map(|flag| format!("{flag} VALUE")).collect();
        let paths = if others > 0 { ", and a path" } else { "" };
        Diagnostic::new("E033", format!("{message} `{argument}`")).expected(
            match known.is_empty() && others == 0 {
                true => "no arguments".to_string(),
                false => format!("{}{paths}", known.join(", ")).trim_start_matches(", and ").to_string(),
            },
        )
    };
    let (mut values, mut rest) = (vec![None; flags.len()], Vec::new());
    let mut given = given.skip(1);
    while let Some(argument) = given.next() {
        match flags.iter().position(|flag| **flag == argument) {
            Some(place) => {
                values[place] = Some(given.next().ok_or_else(|| refused(&argument, "no value behind"))?);
            }
            None if argument.starts_with('-') || rest.len() == others => {
                return Err(refused(&argument, "unknown argument"));
            }
            None => rest.push(argument),
        }
    }
    Ok((values, rest))
}
