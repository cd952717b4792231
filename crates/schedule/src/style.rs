//! Styles: what a line of a plan asks of the modules it matches, in the words of PyTorch and Hugging Face.

use partita_base::{Diagnostic, Result, did_you_mean};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How an activation lies over a style's axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Every rank along the axis holds all of it.
    Replicate,
    /// Cut along a dimension; a negative number counts from the last.
    Shard(isize),
}

/// What a style does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The weight is cut along its output features (an embedding: along its features), the output along its last
    /// dimension.
    Colwise,
    /// The weight is cut along its input features (an embedding: along its rows), the output is replicated.
    Rowwise,
    /// Activations `[batch, sequence, features]` are cut along the sequence; parameters are replicated.
    Sequence,
    /// Parameters are replicated.
    Replicate,
    /// Parameters are cut along this dimension; a negative number counts from the last.
    Shard(isize),
    /// Parameters, gradients and optimizer states are cut; parameters are gathered for each use (ZeRO-3).
    Fsdp,
    /// Optimizer states are cut.
    Zero1,
    /// Optimizer states and gradients are cut.
    Zero2,
}

/// A style with its options: `rowwise(output=shard(1), axis=tp)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Style {
    /// What it does.
    pub kind: Kind,
    /// The mesh axis; `None` is the kind's own: `tp`, for `fsdp` `fsdp`, for `zero1` and `zero2` `dp`.
    pub axis: Option<String>,
    /// The layout asked of what enters the module.
    pub input: Option<Layout>,
    /// The layout asked of what leaves the module, where it is not the kind's own.
    pub output: Option<Layout>,
}

/// Every spelling of a style's head.
const NAMES: [&str; 13] = [
    "colwise",
    "rowwise",
    "sequence",
    "replicate",
    "shard(dim)",
    "fsdp",
    "zero1",
    "zero2",
    // Of PyTorch and Hugging Face.
    "colwise_rep",
    "rowwise_rep",
    "sequence_parallel",
    "ColwiseParallel",
    "RowwiseParallel",
];

impl Style {
    /// A style without options.
    pub fn new(kind: Kind) -> Style {
        Style { kind, axis: None, input: None, output: None }
    }

    /// With the layout of what enters.
    pub fn input(mut self, layout: Layout) -> Style {
        self.input = Some(layout);
        self
    }

    /// With the layout of what leaves.
    pub fn output(mut self, layout: Layout) -> Style {
        self.output = Some(layout);
        self
    }

    /// Over another axis.
    pub fn over(mut self, axis: &str) -> Style {
        self.axis = Some(axis.to_string());
        self
    }

    /// The name of the mesh axis.
    pub fn axis_name(&self) -> &str {
        self.axis.as_deref().unwrap_or(match self.kind {
            Kind::Fsdp => "fsdp",
            Kind::Zero1 | Kind::Zero2 => "dp",
            Kind::Colwise | Kind::Rowwise | Kind::Sequence | Kind::Replicate | Kind::Shard(_) => "tp",
        })
    }

    /// Whether it speaks of how parameters and states are kept rather than of how a layer computes.
    pub fn is_storage(&self) -> bool {
        matches!(self.kind, Kind::Fsdp | Kind::Zero1 | Kind::Zero2)
    }

    /// Reads a style. E222 when there is no such style or option, with what is near.
    pub fn parse(text: &str) -> Result<Style> {
        let (head, arguments) = split_call(text).ok_or_else(|| unknown(text, "parentheses do not match"))?;
        let mut style = match head {
            "colwise" | "ColwiseParallel" => Style::new(Kind::Colwise),
            "colwise_rep" => Style::new(Kind::Colwise).output(Layout::Replicate),
            "rowwise" | "RowwiseParallel" => Style::new(Kind::Rowwise),
            "rowwise_rep" => Style::new(Kind::Rowwise).input(Layout::Replicate),
            "sequence" | "sequence_parallel" | "SequenceParallel" => Style::new(Kind::Sequence),
            "replicate" => Style::new(Kind::Replicate),
            "fsdp" => Style::new(Kind::Fsdp),
            "zero1" => Style::new(Kind::Zero1),
            "zero2" => Style::new(Kind::Zero2),
            "shard" => {
                let dim = arguments.first().and_then(|a| a.parse().ok());
                let dim = dim.ok_or_else(|| unknown(text, "`shard` needs a dimension: `shard(0)`"))?;
                Style::new(Kind::Shard(dim))
            }
            _ => return Err(unknown(text, "no such style")),
        };
        let options = if head == "shard" { &arguments[1..] } else { &arguments[..] };
        for option in options {
            let Some((key, value)) = option.split_once('=') else {
                return Err(unknown(text, &format!("`{option}` is not `option=value`")));
            };
            let (key, value) = (key.trim(), value.trim());
            match key {
                "axis" if !value.is_empty() => style.axis = Some(value.to_string()),
                "input" if !style.is_storage() => style.input = Some(parse_layout(text, value)?),
                "output" if !style.is_storage() => style.output = Some(parse_layout(text, value)?),
                _ => {
                    let near = did_you_mean(key, ["axis", "input", "output"]);
                    let mut error = unknown(text, &format!("`{head}` has no option `{key}`"));
                    error.help = near.or(error.help);
                    return Err(error);
                }
            }
        }
        Ok(style)
    }
}

fn unknown(text: &str, why: &str) -> Box<Diagnostic> {
    let head = text.split('(').next().unwrap_or_default().trim();
    let mut error = Diagnostic::new("E222", format!("style `{text}`: {why}"))
        .expected("colwise, rowwise, sequence, replicate, shard(dim), fsdp, zero1 or zero2, with `axis=`, `input=`, `output=`")
        .found(text);
    error.help = did_you_mean(head, NAMES);
    error
}

fn parse_layout(text: &str, value: &str) -> Result<Layout> {
    let layout = match split_call(value) {
        Some(("replicate", arguments)) if arguments.is_empty() => Some(Layout::Replicate),
        Some(("shard", arguments)) if arguments.len() == 1 => arguments[0].parse().ok().map(Layout::Shard),
        _ => None,
    };
    layout.ok_or_else(|| {
        let mut error = unknown(text, &format!("no layout `{value}`")).expected("replicate or shard(dim)");
        error.help = did_you_mean(value.split('(').next().unwrap_or_default(), ["replicate", "shard(dim)"]);
        error
    })
}

/// `head(a, b(c))` as its head and arguments; a bare head has none. `None` when parentheses do not match.
fn split_call(text: &str) -> Option<(&str, Vec<&str>)> {
    let text = text.trim();
    let Some((head, rest)) = text.split_once('(') else {
        return (!text.contains(')')).then_some((text, Vec::new()));
    };
    let inside = rest.strip_suffix(')')?;
    let (mut arguments, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (place, letter) in inside.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(inside[start..place].trim());
                start = place + 1;
            }
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    if !inside[start..].trim().is_empty() {
        arguments.push(inside[start..].trim());
    }
    (depth == 0).then_some((head.trim(), arguments))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Replicate => f.write_str("replicate"),
            Layout::Shard(dim) => write!(f, "shard({dim})"),
        }
    }
}

impl fmt::Display for Style {
    /// As [`Style::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut arguments = Vec::new();
        let head = match self.kind {
            Kind::Colwise => "colwise",
            Kind::Rowwise => "rowwise",
            Kind::Sequence => "sequence",
            Kind::Replicate => "replicate",
            Kind::Shard(dim) => {
                arguments.push(dim.to_string());
                "shard"
            }
            Kind::Fsdp => "fsdp",
            Kind::Zero1 => "zero1",
            Kind::Zero2 => "zero2",
        };
        arguments.extend(self.input.map(|layout| format!("input={layout}")));
        arguments.extend(self.output.map(|layout| format!("output={layout}")));
        arguments.extend(self.axis.as_ref().map(|axis| format!("axis={axis}")));
        if arguments.is_empty() { f.write_str(head) } else { write!(f, "{head}({})", arguments.join(", ")) }
    }
}

impl FromStr for Style {
    type Err = Box<Diagnostic>;
    fn from_str(text: &str) -> Result<Style> {
        Style::parse(text)
    }
}

impl TryFrom<String> for Style {
    type Error = Box<Diagnostic>;
    fn try_from(text: String) -> Result<Style> {
        Style::parse(&text)
    }
}

impl From<Style> for String {
    fn from(style: Style) -> String {
        style.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_read_back_what_they_print() {
        for text in [
            "colwise",
            "rowwise(output=shard(1))",
            "colwise(input=replicate, output=shard(-1), axis=model)",
            "shard(0)",
            "shard(-1, axis=ep)",
            "fsdp(axis=dp)",
            "zero2",
            "sequence",
        ] {
            assert_eq!(Style::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Style::parse("colwise_rep").unwrap().to_string(), "colwise(output=replicate)");
        assert_eq!(
            Style::parse(" rowwise( output = shard( 1 ) ) ").unwrap().to_string(),
            "rowwise(output=shard(1))"
        );
    }

    #[test]
    fn a_wrong_style_names_what_is_near() {
        let error = Style::parse("colwse").unwrap_err();
        assert_eq!(error.code, "E222");
        assert!(error.help.as_deref().unwrap().contains("`colwise`"), "{error}");
        for text in [
            "shard",
            "shard(x)",
            "rowwise(output=shard)",
            "rowwise(outptu=replicate)",
            "fsdp(output=replicate)",
            "a)",
            "zero1(",
            "zero1(()",
        ] {
            assert_eq!(Style::parse(text).unwrap_err().code, "E222", "{text}");
        }
    }
}
