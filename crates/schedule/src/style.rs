//! Styles: the request of a plan line for the modules it matches, in the terms of PyTorch and
//! Hugging Face.

use crate::call::{Argument, Call};
pub use crate::gather::Gather;
use crate::primitive::{choice, primitive_names};
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_mesh::AxisRole;
use std::fmt;
use std::str::FromStr;

/// The layout of an activation over a style's axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Every rank along the axis holds all of it.
    Replicate,
    /// Sharded along a dimension; a negative number counts from the last.
    Shard(isize),
}

/// The layouts of the activations at one side of a module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Layouts {
    /// The same for all of them.
    All(Layout),
    /// One by position: inputs in order of first use, outputs in order of computation. `None`, and
    /// positions behind the last, request nothing.
    Each(Vec<Option<Layout>>),
}

impl From<Layout> for Layouts {
    fn from(layout: Layout) -> Layouts {
        Layouts::All(layout)
    }
}

impl Layouts {
    /// The request for the activation at this position.
    pub fn at(&self, place: usize) -> Option<Layout> {
        match self {
            Layouts::All(layout) => Some(*layout),
            Layouts::Each(layouts) => layouts.get(place).copied().flatten(),
        }
    }

    /// The least number of activations.
    pub fn needed(&self) -> usize {
        match self {
            Layouts::All(_) => 1,
            Layouts::Each(layouts) => layouts.iter().rposition(Option::is_some).map_or(0, |last| last + 1),
        }
    }
}

/// The kind of a style.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The weight is sharded along its output features (an embedding: along its features), the
    /// output along its last dimension.
    Colwise,
    /// The weight is sharded along its input features (an embedding: along its rows), the output is
    /// replicated.
    Rowwise,
    /// Activations `[batch, sequence, features]` are sharded along the sequence; parameters are
    /// replicated.
    Sequence,
    /// Parameters are replicated.
    Replicate,
    /// Parameters are sharded along this dimension; a negative number counts from the last.
    Shard(isize),
    /// Only inputs and outputs get layouts; other requests for the module or its inner modules
    /// still apply.
    Prepare,
    /// Parameters, gradients and optimizer states are sharded; parameters are gathered for each use
    /// (ZeRO-3).
    Fsdp,
    /// Optimizer states are sharded.
    Zero1,
    /// Optimizer states and gradients are sharded.
    Zero2,
    /// Around attention, shards of the sequence are exchanged for shards of heads.
    Ulysses,
    /// Attention of a sharded sequence passes shards of keys and values from rank to rank.
    Ring,
    /// `ulysses` or `ring`, whichever the cost model expects to take less time.
    Auto,
    /// Experts that drop no token get the tokens once and return their results once.
    Dispatch,
}

/// A style with its options: `rowwise(output=shard(1), axis=tp)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Style {
    /// The kind.
    pub kind: Kind,
    /// The mesh axis; `None` is the default of the kind: `tp`, for `fsdp` `fsdp`, for `zero1` and
    /// `zero2` `dp`, for `ulysses` and `ring` `cp`.
    pub axis: Option<String>,
    /// The layout in which the input of the module arrives.
    pub input_from: Option<Layouts>,
    /// The layout in which the module reads its input. If only `input_from` is given, `colwise`
    /// reads it replicated and `rowwise` sharded along its features.
    pub input: Option<Layouts>,
    /// The layout in which the module computes its output, if others read it in another one: for
    /// `prepare`.
    pub output_from: Option<Layouts>,
    /// The layout of the output, if it is not the default of the kind.
    pub output: Option<Layouts>,
    /// How long the gathered parameters of `fsdp` are kept.
    pub gather: Gather,
    /// Whether the ranks of a `ring` compute in zigzag order.
    pub zigzag: bool,
    /// `use_local_output` of PyTorch: has no effect, and a note says so.
    pub local: Option<bool>,
}

/// The note about `use_local_output`.
pub(crate) const LOCAL_NOTE: &str =
    "`use_local_output` changes nothing: models read global tensors, whatever their layout";

/// Every spelling of a style's name.
const NAMES: [&str; 22] = [
    "colwise",
    "rowwise",
    "sequence",
    "replicate",
    "shard(dim)",
    "prepare",
    "fsdp",
    "zero1",
    "zero2",
    "ulysses",
    "ring",
    "attention_auto",
    "dispatch",
    // Of PyTorch and Hugging Face.
    "colwise_rep",
    "rowwise_rep",
    "sequence_parallel",
    "ColwiseParallel",
    "RowwiseParallel",
    "SequenceParallel",
    "PrepareModuleInput",
    "PrepareModuleOutput",
    "PrepareModuleInputOutput",
];

/// Every option, ours and those of PyTorch.
const OPTIONS: [&str; 16] = [
    "axis",
    "gather",
    "zigzag",
    "reshard_after_forward",
    "input",
    "output",
    "input_from",
    "output_from",
    "input_layouts",
    "desired_input_layouts",
    "output_layouts",
    "desired_output_layouts",
    "use_local_input",
    "use_local_output",
    "sequence_dim",
    "input_kwarg_layouts",
];

impl Style {
    /// A style without options.
    pub fn new(kind: Kind) -> Style {
        Style {
            kind,
            axis: None,
            input_from: None,
            input: None,
            output_from: None,
            output: None,
            gather: Gather::Use,
            zigzag: false,
            local: None,
        }
    }

    /// Sets the layout of the input.
    pub fn input(mut self, layout: impl Into<Layouts>) -> Style {
        self.input = Some(layout.into());
        self
    }

    /// Sets the layout of the output.
    pub fn output(mut self, layout: impl Into<Layouts>) -> Style {
        self.output = Some(layout.into());
        self
    }

    /// Sets the axis.
    pub fn over(mut self, axis: &str) -> Style {
        self.axis = Some(axis.to_string());
        self
    }

    /// The name of the mesh axis.
    pub fn axis_name(&self) -> &str {
        self.axis.as_deref().unwrap_or(match self.kind {
            Kind::Fsdp => AxisRole::Parameters.axis(),
            Kind::Zero1 | Kind::Zero2 => AxisRole::Data.axis(),
            Kind::Ulysses | Kind::Ring | Kind::Auto => AxisRole::Context.axis(),
            Kind::Colwise
            | Kind::Rowwise
            | Kind::Sequence
            | Kind::Replicate
            | Kind::Shard(_)
            | Kind::Prepare => AxisRole::Model.axis(),
            Kind::Dispatch => AxisRole::Experts.axis(),
        })
    }

    /// Whether it sets how parameters and states are stored rather than how a layer computes.
    pub fn is_storage(&self) -> bool {
        matches!(self.kind, Kind::Fsdp | Kind::Zero1 | Kind::Zero2)
    }

    /// Whether it sets how attention works on a sharded sequence; of several for one attention, the last one counts.
    pub fn is_attention(&self) -> bool {
        matches!(self.kind, Kind::Ulysses | Kind::Ring | Kind::Auto)
    }

    /// Whether it sets how a layer computes; of several for one module, the last one counts.
    pub fn is_layer(&self) -> bool {
        !self.is_storage() && !self.is_attention() && !matches!(self.kind, Kind::Prepare | Kind::Dispatch)
    }

    /// Parses a style. E222 for an unknown style or option, with the nearest names.
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
            "prepare" | "PrepareModuleInput" | "PrepareModuleOutput" | "PrepareModuleInputOutput" => {
                Style::new(Kind::Prepare)
            }
            "fsdp" => Style::new(Kind::Fsdp),
            "zero1" => Style::new(Kind::Zero1),
            "zero2" => Style::new(Kind::Zero2),
            "ulysses" => Style::new(Kind::Ulysses),
            "ring" => Style::new(Kind::Ring),
            "attention_auto" => Style::new(Kind::Auto),
            "auto" => return Err(unknown(call, "the style `auto` is called `attention_auto`")),
            "dispatch" => Style::new(Kind::Dispatch),
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
            style.set(call, key, value)?;
        }
        if style.kind == Kind::Prepare {
            let sides = [
                (&style.input_from, &style.input, "`desired_input_layouts` (`input`)"),
                (&style.output_from, &style.output, "`desired_output_layouts` (`output`)"),
            ];
            for (from, to, missing) in sides {
                if from.is_some() && to.is_none() {
                    return Err(unknown(call, &format!("{missing}, the layout to convert to, is missing")));
                }
            }
            if style.input.is_none() && style.output.is_none() {
                return Err(unknown(call, "it gives no layout of an input or output"));
            }
        }
        Ok(style)
    }

    /// Sets one option. `input_layouts` of PyTorch is how a value arrives. `output_layouts` is how
    /// it leaves; for `prepare` modules, it is the layout before `desired_output_layouts`.
    fn set(&mut self, call: &Call, key: &str, value: &Argument) -> Result<()> {
        let prepare = self.kind == Kind::Prepare;
        let single = self.kind != Kind::Prepare || OUR_OPTIONS.contains(&key);
        let layouts = || layouts_of(call, value, single);
        match (key, value) {
            // The layouts of tokens and experts say over which ranks.
            _ if self.kind == Kind::Dispatch => return Err(no_option(call, key)),
            ("axis", Argument::Text(axis)) => self.axis = Some(axis.clone()),
            ("gather", Argument::Text(name)) if self.kind == Kind::Fsdp => {
                let known = Gather::ALL.iter().find(|(known, _)| known == name);
                let names = Gather::ALL.map(|(name, _)| name);
                self.gather = known.ok_or_else(|| choice("gather", name, &names))?.1;
            }
            ("reshard_after_forward", Argument::Bool(after)) if self.kind == Kind::Fsdp => {
                self.gather = if *after { Gather::Use } else { Gather::Step };
            }
            ("zigzag", Argument::Bool(zigzag)) if self.kind == Kind::Ring => self.zigzag = *zigzag,
            _ if self.is_storage() || self.is_attention() => return Err(no_option(call, key)),
            ("input", _) => self.input = layouts()?,
            ("desired_input_layouts", _) if prepare => self.input = layouts()?,
            ("input_from" | "input_layouts", _) => self.input_from = layouts()?,
            ("output", _) => self.output = layouts()?,
            ("desired_output_layouts", _) if prepare => self.output = layouts()?,
            ("output_from" | "output_layouts", _) if prepare => self.output_from = layouts()?,
            ("output_layouts", _) => self.output = layouts()?,
            ("use_local_output" | "use_local_input", Argument::Bool(local)) => self.local = Some(*local),
            ("sequence_dim", Argument::Int(dim)) if self.kind == Kind::Sequence => {
                // Dimension 1 is the default.
                self.output = (*dim != 1).then_some(Layout::Shard(*dim as isize).into());
            }
            ("input_kwarg_layouts" | "desired_input_kwarg_layouts", _) if prepare => {
                return Err(unknown(
                    call,
                    &format!("`{key}`: inputs of a module are given by position, not by name"),
                )
                .help("list the layouts in order of use: `input_layouts=(Shard(0), None)`"));
            }
            _ => return Err(no_option(call, key)),
        }
        Ok(())
    }

    /// The call that parses back to this.
    pub fn to_call(&self) -> Call {
        let mut call = Call::new(match self.kind {
            Kind::Colwise => "colwise",
            Kind::Rowwise => "rowwise",
            Kind::Sequence => "sequence",
            Kind::Replicate => "replicate",
            Kind::Shard(_) => "shard",
            Kind::Prepare => "prepare",
            Kind::Fsdp => "fsdp",
            Kind::Zero1 => "zero1",
            Kind::Zero2 => "zero2",
            Kind::Ulysses => "ulysses",
            Kind::Ring => "ring",
            Kind::Auto => "attention_auto",
            Kind::Dispatch => "dispatch",
        });
        if let Kind::Shard(dim) = self.kind {
            call = call.with(None, Argument::Int(dim as i64));
        }
        let layouts = [
            ("input_from", &self.input_from),
            ("input", &self.input),
            ("output_from", &self.output_from),
            ("output", &self.output),
        ];
        for (key, layouts) in layouts.into_iter().filter_map(|(key, layouts)| Some((key, layouts.as_ref()?)))
        {
            call = call.with(Some(key), layouts.to_argument());
        }
        if let Some(local) = self.local {
            call = call.with(Some("use_local_output"), Argument::Bool(local));
        }
        if self.gather != Gather::Use {
            call = call.with(Some("gather"), Argument::text(self.gather.name()));
        }
        if self.zigzag {
            call = call.with(Some("zigzag"), Argument::Bool(true));
        }
        match &self.axis {
            Some(axis) => call.with(Some("axis"), Argument::text(axis.clone())),
            None => call,
        }
    }
}

/// Options of our own notation, with one layout for all activations.
const OUR_OPTIONS: [&str; 4] = ["input", "output", "input_from", "output_from"];

impl Layout {
    fn to_argument(self) -> Argument {
        match self {
            Layout::Replicate => Argument::text("replicate"),
            Layout::Shard(dim) => Argument::Call(Call::new("shard").with(None, Argument::Int(dim as i64))),
        }
    }
}

impl Layouts {
    fn to_argument(&self) -> Argument {
        match self {
            Layouts::All(layout) => layout.to_argument(),
            Layouts::Each(layouts) => {
                let one =
                    |layout: &Option<Layout>| layout.map_or(Argument::text("none"), Layout::to_argument);
                Argument::List(layouts.iter().map(one).collect())
            }
        }
    }
}

fn unknown(call: &Call, why: &str) -> Box<Diagnostic> {
    let mut error = Diagnostic::new("E222", format!("`{call}`: {why}"))
        .expected(format!(
            "colwise, rowwise, sequence, replicate, shard(dim), prepare, fsdp, zero1, zero2, ulysses, ring, attention_auto or dispatch, with `axis=`, \
             `input=`, `output=`, `input_from=`; or {}",
            primitive_names().collect::<Vec<_>>().join(", ")
        ))
        .found(call.to_string());
    error.help = did_you_mean(&call.name, NAMES.into_iter().chain(primitive_names()));
    error
}

fn no_option(call: &Call, key: &str) -> Box<Diagnostic> {
    let mut error = unknown(call, &format!("`{}` has no option `{key}`", call.name));
    // An option that exists but is not accepted in this form is no suggestion.
    let near = did_you_mean(key, OPTIONS).filter(|_| !OPTIONS.contains(&key));
    error.help = near.or(error.help);
    error
}

/// Layouts as a list, a tuple, or one: for all activations if `single`, else for the first. A bare
/// `None` gives `None`, which leaves the option unset.
fn layouts_of(call: &Call, value: &Argument, single: bool) -> Result<Option<Layouts>> {
    let is_none =
        |value: &Argument| matches!(value, Argument::Text(text) if text == "none" || text == "None");
    let one = |value: &Argument| match is_none(value) {
        true => Ok(None),
        false => layout_of(call, value).map(Some),
    };
    match value {
        Argument::List(layouts) if layouts.iter().all(is_none) => {
            Err(unknown(call, &format!("`{}` contains no layout", value.describe())))
        }
        Argument::List(layouts) => Ok(Some(Layouts::Each(layouts.iter().map(one).collect::<Result<_>>()?))),
        value if single => Ok(one(value)?.map(Layouts::All)),
        value => Ok(one(value)?.map(|layout| Layouts::Each(vec![Some(layout)]))),
    }
}

fn layout_of(call: &Call, value: &Argument) -> Result<Layout> {
    let written = match value {
        Argument::Text(name) => Some((name.as_str(), &[][..])),
        Argument::Call(layout) => Some((layout.name.as_str(), &layout.arguments[..])),
        _ => None,
    };
    match written {
        Some(("replicate" | "Replicate", [])) => return Ok(Layout::Replicate),
        Some(("shard" | "Shard", [(key, Argument::Int(dim))]))
            if key.as_deref().is_none_or(|k| k == "dim") =>
        {
            return Ok(Layout::Shard(*dim as isize));
        }
        Some(("partial" | "Partial", _)) => {
            return Err(unknown(call, "values between modules are never partial")
                .expected("replicate or shard(dim)")
                .help("leave it out: a partial value is reduced where an op needs the result"));
        }
        _ => {}
    }
    let value = value.describe();
    let mut error =
        unknown(call, &format!("there is no layout `{value}`")).expected("replicate or shard(dim)");
    error.help = did_you_mean(value.split('(').next().unwrap_or_default(), ["replicate", "shard(dim)"]);
    Err(error)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_argument().describe())
    }
}

impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_argument().describe())
    }
}

impl fmt::Display for Style {
    /// The notation that [`Style::parse`] reads.
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
            "ulysses(axis=sp)",
            "ring",
            "sequence",
            "sequence(output=shard(0))",
            "colwise(input_from=shard(0), use_local_output=false)",
            "rowwise(input_from=shard(-1), input=replicate, output=shard(0))",
            "prepare(input_from=[shard(1), none], input=[replicate])",
            "prepare(output_from=shard(0), output=replicate, axis=model)",
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
    fn pytorchs_words_read_as_ours() {
        for (theirs, ours) in [
            ("ColwiseParallel()", "colwise"),
            ("ColwiseParallel(input_layouts=Shard(0))", "colwise(input_from=shard(0))"),
            ("ColwiseParallel(input_layouts=Replicate(),)", "colwise(input_from=replicate)"),
            (
                "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate(), use_local_output=False)",
                "colwise(input_from=shard(1), output=replicate, use_local_output=false)",
            ),
            ("RowwiseParallel(output_layouts=Shard(dim=0))", "rowwise(output=shard(0))"),
            ("RowwiseParallel(input_layouts=Shard(-1))", "rowwise(input_from=shard(-1))"),
            ("RowwiseParallel(input_layouts=None)", "rowwise"),
            ("SequenceParallel()", "sequence"),
            ("SequenceParallel(sequence_dim=1, use_local_output=True)", "sequence(use_local_output=true)"),
            ("SequenceParallel(sequence_dim=0)", "sequence(output=shard(0))"),
            (
                "PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))",
                "prepare(input_from=[shard(1), none], input=[replicate, none])",
            ),
            (
                "PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())",
                "prepare(input_from=[shard(1)], input=[replicate])",
            ),
            (
                "PrepareModuleOutput(output_layouts=(Shard(0),), desired_output_layouts=(Replicate(),))",
                "prepare(output_from=[shard(0)], output=[replicate])",
            ),
            ("colwise(input_layouts=Shard(0))", "colwise(input_from=shard(0))"),
        ] {
            assert_eq!(Style::parse(theirs).unwrap().to_string(), ours, "{theirs}");
        }
        for (text, what) in [
            (
                "PrepareModuleInput(input_layouts=Shard(0))",
                "`desired_input_layouts` (`input`), the layout to convert to, is missing",
            ),
            ("PrepareModuleOutput()", "no layout of an input or output"),
            ("prepare(input=[none])", "`[none]` contains no layout"),
            ("ColwiseParallel(input_layouts=Partial())", "are never partial"),
            ("ColwiseParallel(input_layouts=Shard(x))", "no layout `Shard(x)`"),
            ("ColwiseParallel(desired_input_layouts=Shard(0))", "has no option"),
            ("ColwiseParallel(use_local_outptu=True)", "did you mean `use_local_output`"),
            ("ColwiseParallel(Shard(0))", "is not `option=value`"),
            ("PrepareModuleInput(input_kwarg_layouts=Shard(0))", "list the layouts in order of use"),
        ] {
            let error = Style::parse(text).unwrap_err();
            assert_eq!(error.code, "E222", "{text}");
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
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
            "ulysses(output=replicate)",
            "zero1(",
            "zero1(()",
        ] {
            assert_eq!(Style::parse(text).unwrap_err().code, "E222", "{text}");
        }
    }
}
