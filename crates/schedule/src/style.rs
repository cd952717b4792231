//! Styles: what a line of a plan asks of the modules it matches, in the words of PyTorch and Hugging Face.

use crate::call::{Argument, Call};
use crate::primitive::primitive_names;
use partita_base::{Diagnostic, Result, did_you_mean};
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
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
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
        Style::from_call(&Call::parse(text)?)
    }

    /// As [`Style::parse`], from a call.
    pub fn from_call(call: &Call) -> Result<Style> {
        let mut style = match call.name.as_str() {
            "colwise" | "ColwiseParallel" => Style::new(Kind::Colwise),
            "colwise_rep" => Style::new(Kind::Colwise).output(Layout::Replicate),
            "rowwise" | "RowwiseParallel" => Style::new(Kind::Rowwise),
            "rowwise_rep" => Style::new(Kind::Rowwise).input(Layout::Replicate),
            "sequence" | "sequence_parallel" | "SequenceParallel" => Style::new(Kind::Sequence),
            "replicate" => Style::new(Kind::Replicate),
            "fsdp" => Style::new(Kind::Fsdp),
            "zero1" => Style::new(Kind::Zero1),
            "zero2" => Style::new(Kind::Zero2),
            "shard" => match call.arguments.first() {
                Some((None, Argument::Int(dim))) => Style::new(Kind::Shard(*dim as isize)),
                _ => return Err(unknown(call, "`shard` needs a dimension: `shard(0)`")),
            },
            _ => return Err(unknown(call, "no such style or primitive")),
        };
        let options = if call.name == "shard" { &call.arguments[1..] } else { &call.arguments[..] };
        for (key, value) in options {
            let Some(key) = key else {
                return Err(unknown(call, &format!("`{}` is not `option=value`", value.describe())));
            };
            match (key.as_str(), value) {
                ("axis", Argument::Text(axis)) => style.axis = Some(axis.clone()),
                ("input", _) if !style.is_storage() => style.input = Some(layout_of(call, value)?),
                ("output", _) if !style.is_storage() => style.output = Some(layout_of(call, value)?),
                _ => {
                    let near = did_you_mean(key, ["axis", "input", "output"]);
                    let mut error = unknown(call, &format!("`{}` has no option `{key}`", call.name));
                    error.help = near.or(error.help);
                    return Err(error);
                }
            }
        }
        Ok(style)
    }

    /// The call that reads back as this.
    pub fn to_call(&self) -> Call {
        let mut call = Call::new(match self.kind {
            Kind::Colwise => "colwise",
            Kind::Rowwise => "rowwise",
            Kind::Sequence => "sequence",
            Kind::Replicate => "replicate",
            Kind::Shard(_) => "shard",
            Kind::Fsdp => "fsdp",
            Kind::Zero1 => "zero1",
            Kind::Zero2 => "zero2",
        });
        if let Kind::Shard(dim) = self.kind {
            call = call.with(None, Argument::Int(dim as i64));
        }
        let layouts = [("input", self.input), ("output", self.output)];
        for (key, layout) in layouts.iter().filter_map(|(key, layout)| Some((key, (*layout)?))) {
            call = call.with(Some(key), layout.to_argument());
        }
        match &self.axis {
            Some(axis) => call.with(Some("axis"), Argument::text(axis.clone())),
            None => call,
        }
    }
}

impl Layout {
    fn to_argument(self) -> Argument {
        match self {
            Layout::Replicate => Argument::text("replicate"),
            Layout::Shard(dim) => Argument::Call(Call::new("shard").with(None, Argument::Int(dim as i64))),
        }
    }
}

fn unknown(call: &Call, why: &str) -> Box<Diagnostic> {
    let mut error = Diagnostic::new("E222", format!("`{call}`: {why}"))
        .expected(format!(
            "colwise, rowwise, sequence, replicate, shard(dim), fsdp, zero1 or zero2, with `axis=`, `input=`, `output=`; \
             or {}",
            primitive_names().collect::<Vec<_>>().join(", ")
        ))
        .found(call.to_string());
    error.help = did_you_mean(&call.name, NAMES.into_iter().chain(primitive_names()));
    error
}

fn layout_of(call: &Call, value: &Argument) -> Result<Layout> {
    match value {
        Argument::Text(text) if text == "replicate" => return Ok(Layout::Replicate),
        Argument::Call(layout) if layout.name == "shard" => {
            if let [(None, Argument::Int(dim))] = layout.arguments[..] {
                return Ok(Layout::Shard(dim as isize));
            }
        }
        _ => {}
    }
    let value = value.describe();
    let mut error = unknown(call, &format!("no layout `{value}`")).expected("replicate or shard(dim)");
    error.help = did_you_mean(value.split('(').next().unwrap_or_default(), ["replicate", "shard(dim)"]);
    Err(error)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_argument().describe())
    }
}

impl fmt::Display for Style {
    /// As [`Style::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_call().fmt(f)
    }
}

impl FromStr for Style {
    type Err = Box<Diagnostic>;
    fn from_str(text: &str) -> Result<Style> {
        Style::parse(text)
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
