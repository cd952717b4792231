//! The request of a plan line: a style, or one primitive of the schedule language, with its call
//! notation.

use crate::call::{Argument, Call};
use crate::style::Style;
use crate::sync::{SyncMode, SyncOp, function_as_sync};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use std::fmt;

/// One request for the modules of a line. Primitives place work or name a part of it. None changes
/// what is computed, except [`Primitive::Precision`], which changes the model itself.
#[derive(Clone, PartialEq, Debug)]
pub enum Primitive {
    /// A declared style: `colwise`.
    Style(Style),
    /// Shards a parameter, a buffer, or the `input` or `output` of a module along a dimension.
    Shard {
        /// `weight`, `bias`, a buffer's name, `input` or `output`.
        tensor: String,
        /// The dimension; a negative number counts from the last.
        dim: isize,
        /// The mesh axis; `None` is `tp`, or the only axis of the mesh.
        axis: Option<String>,
    },
    /// Sets where a value is gathered, reduced or scattered, and how.
    Sync {
        /// The side of the module.
        mode: SyncMode,
        /// The operation.
        op: SyncOp,
        /// The mesh axis, as in [`Primitive::Shard`].
        axis: Option<String>,
    },
    /// Recomputes the activations of the module or subgraph in the backward pass instead of storing
    /// them (activation checkpointing).
    Checkpoint {
        /// The subgraph, as text of a [`crate::Pattern`]; `None` is the whole module.
        pattern: Option<String>,
    },
    /// Inlines the composites of the module, and makes the matmul and the bias of a linear layer
    /// visible to patterns.
    Decompose,
    /// Makes the modules inside visible to patterns as one flat list of ops.
    Trace {
        /// Whether inner modules are traced too, down to their leaves.
        flatten: bool,
    },
    /// Makes each match of a pattern one composite, which the engine runs as one kernel.
    Fuse {
        /// The subgraph, as text of a [`crate::Pattern`].
        pattern: String,
        /// The name of the composite.
        name: String,
        /// The engine that must run it as one kernel; `None` only names it.
        backend: Option<String>,
        /// Which matches, from 0; empty is all.
        at: Vec<usize>,
    },
    /// Replaces the module, each match of a pattern, or consecutive ops by a composite or a custom
    /// kernel, which must compute the same.
    Replace {
        /// The name in the registry.
        with: String,
        /// The subgraph; `None` is the whole module.
        pattern: Option<String>,
        /// Which matches, from 0; empty is all.
        at: Vec<usize>,
        /// The first op and the one behind the last, as numbers among the forward ops of the
        /// modules.
        ops: Option<(usize, usize)>,
        /// Arguments by the kernel's names where they differ from the subgraph's, and attributes.
        bindings: IndexMap<String, Argument>,
    },
    /// [`Primitive::Replace`] for every module of a kind inside.
    ReplaceAll {
        /// `LayerNorm`.
        kind: String,
        /// The name in the registry.
        with: String,
        /// As in [`Primitive::Replace`].
        bindings: IndexMap<String, Argument>,
    },
    /// A pipeline stage ends after the module; at the root, the last stage.
    PipelineSplit {
        /// The mesh of the slice that runs the stage, such as `tp=2`; `None` where the axis `pp`
        /// makes all slices alike.
        mesh: Option<String>,
        /// The ranks of the slice; empty for those that follow the ranks of the previous stage.
        ranks: Vec<usize>,
    },
    /// Clusters the whole forward pass into consecutive layers, without using module names. They are
    /// the blocks of which pipeline stages are made.
    Layers {
        /// How many.
        count: usize,
        /// Whether the backward pass recomputes each layer from its inputs.
        remat: bool,
    },
    /// Attaches a note to a parameter.
    Annotate {
        /// The parameter's own name.
        tensor: String,
        /// The key of the note.
        key: String,
        /// Its value.
        value: Argument,
    },
    /// Computes the module in this element type; its inputs and outputs keep theirs.
    Precision {
        /// `bf16`, `f16`, `f32` or `f64`.
        compute: DType,
    },
    /// Keeps the optimizer states of parameters, or the activations of modules, in host memory while nothing uses them.
    Offload {
        /// What is kept there.
        what: Offloaded,
        /// How many groups are loaded ahead of their use; `None` is one.
        ahead: Option<usize>,
    },
    /// Gives ranks with different elements different random numbers. They always have them: nothing
    /// changes.
    ForkRng,
}

/// What [`Primitive::Offload`] keeps in host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offloaded {
    /// Optimizer states.
    Optimizer,
    /// What the forward pass computes for the backward pass.
    Activations,
}

impl Offloaded {
    /// Both.
    pub const ALL: [Offloaded; 2] = [Offloaded::Optimizer, Offloaded::Activations];

    /// The word in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Offloaded::Optimizer => "optimizer",
            Offloaded::Activations => "activations",
        }
    }
}

/// The code of the note that explains a stage mark.
pub(crate) const STAGE_ENDS: &str = "stage-ends";

/// The note about [`Primitive::PipelineSplit`].
pub(crate) const PIPELINE_NOTE: &str = "a pipeline stage ends here on a mesh with the axis `pp`; without that axis, every rank computes the complete model";

/// The most groups that [`Primitive::Offload`] may load ahead: more than any model has blocks.
const MAX_AHEAD: usize = 1024;

/// PyTorch compilers that a plan may name as a backend; fusion here uses our own kernels.
pub(crate) const FOREIGN_COMPILERS: [&str; 3] = ["TorchScript", "TorchInductor", "torch.compile"];

/// The note about [`Primitive::ForkRng`].
pub(crate) const FORK_RNG_NOTE: &str = "changes nothing: random numbers follow the global index of an element, so ranks \
                                        with different elements already draw different numbers";

/// E222 for a word that is none of a few.
pub(crate) fn choice(what: &str, found: &str, all: &[&str]) -> Box<Diagnostic> {
    let mut error =
        Diagnostic::new("E222", format!("no {what} `{found}`")).expected(all.join(", ")).found(found);
    error.help = did_you_mean(found, all.iter().copied());
    error
}

/// The signature of a primitive: name, arguments in order, how many are written without a key, how
/// many are required.
struct Signature {
    name: &'static str,
    arguments: &'static [&'static str],
    bare: usize,
    needed: usize,
    /// Whether other keys are accepted: names of a kernel's arguments and attributes.
    open: bool,
}

const fn signature(
    name: &'static str,
    arguments: &'static [&'static str],
    bare: usize,
    needed: usize,
) -> Signature {
    Signature { name, arguments, bare, needed, open: false }
}

const SIGNATURES: [Signature; 14] = [
    signature("shard", &["tensor", "dim", "axis"], 2, 2),
    signature("sync", &["mode", "op", "dim", "axis"], 2, 2),
    signature("checkpoint", &["pattern"], 1, 0),
    signature("decompose", &[], 0, 0),
    signature("trace", &["flatten"], 0, 0),
    signature("fuse", &["pattern", "name", "backend", "at"], 1, 2),
    Signature { open: true, ..signature("replace", &["with", "pattern", "at", "ops"], 1, 1) },
    Signature { open: true, ..signature("replace_all", &["kind", "with"], 2, 2) },
    signature("pipeline_split", &["mesh", "ranks"], 0, 0),
    signature("layers", &["count", "remat"], 1, 1),
    signature("annotate", &["tensor", "key", "value"], 3, 3),
    signature("precision", &["compute"], 1, 1),
    signature("offload", &["what", "ahead"], 1, 1),
    signature("fork_rng", &[], 0, 0),
];

/// Keys of other schedule languages: primitive, their key, ours.
const ALIASES: [(&str, &str, &str); 3] =
    [("fuse", "compiler", "backend"), ("sync", "sync_op_or_fn", "op"), ("shard", "tensor_name", "tensor")];

/// The names of all primitives.
pub fn primitive_names() -> impl Iterator<Item = &'static str> {
    SIGNATURES.iter().map(|s| s.name)
}

/// Arguments by name.
pub(crate) struct Arguments {
    of: String,
    values: IndexMap<String, Argument>,
}

impl Arguments {
    /// Gives bare arguments their names. E222 for one too many, an unknown or repeated key, or a
    /// missing argument.
    fn of(call: &Call, signature: &Signature) -> Result<Arguments> {
        let wrong = |what: String| {
            Diagnostic::new("E222", format!("`{call}`: {what}")).expected(format!(
                "{}({}){}",
                signature.name,
                signature.arguments.join(", "),
                if signature.open { ", and arguments of the kernel by name" } else { "" }
            ))
        };
        let mut values: IndexMap<String, Argument> = IndexMap::new();
        for (position, (key, value)) in call.arguments.iter().enumerate() {
            let key = match key {
                Some(key) => key.as_str(),
                None => signature
                    .arguments
                    .get(position)
                    .ok_or_else(|| wrong(format!("takes at most {} arguments", signature.arguments.len())))?,
            };
            let alias = ALIASES.iter().find(|(of, theirs, _)| (*of, *theirs) == (signature.name, key));
            let key = match (alias, value) {
                (Some((_, _, ours)), _) => ours,
                // In other languages a numeric `axis` is a dimension of the tensor; here a named
                // `axis` is a mesh axis.
                (None, Argument::Int(_)) if key == "axis" && signature.arguments.contains(&"dim") => "dim",
                (None, _) => key,
            };
            if !signature.arguments.contains(&key) && !signature.open {
                let mut error = wrong(format!("has no argument `{key}`"));
                error.help = did_you_mean(key, signature.arguments.iter().copied());
                return Err(error);
            }
            if values.insert(key.to_string(), value.clone()).is_some() {
                return Err(wrong(format!("`{key}` is given twice")));
            }
        }
        if let Some(missing) =
            signature.arguments[..signature.needed].iter().find(|a| !values.contains_key(**a))
        {
            return Err(wrong(format!("`{missing}` is missing")));
        }
        Ok(Arguments { of: call.to_string(), values })
    }

    fn take<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl Fn(&Argument) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.shift_remove(key) else { return Ok(None) };
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(Diagnostic::new("E222", format!("`{}`: `{key}` is not {expected}", self.of))
                .expected(expected)
                .found(value.describe())),
        }
    }

    fn text(&mut self, key: &str) -> Result<Option<String>> {
        self.take(key, "a string", |value| match value {
            Argument::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    fn int(&mut self, key: &str) -> Result<Option<isize>> {
        self.take(key, "an integer", |value| match value {
            Argument::Int(value) => isize::try_from(*value).ok(),
            _ => None,
        })
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        self.take(key, "true or false", |value| match value {
            Argument::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// Consecutive ops: one number, or `first:end` as a Python slice.
    fn range(&mut self, key: &str) -> Result<Option<(usize, usize)>> {
        let read = |value: &Argument| match value {
            Argument::Int(one) => usize::try_from(*one).ok().map(|one| (one, one.saturating_add(1))),
            Argument::Text(text) => {
                let (first, end) = text.split_once(':')?;
                Some((first.trim().parse().ok()?, end.trim().parse().ok()?))
            }
            _ => None,
        };
        self.take(key, "the number of an op, or `first:end` from 0, the end not included", read)
    }

    fn indices(&mut self, key: &str) -> Result<Vec<usize>> {
        let index = |value: &Argument| match value {
            Argument::Int(value) => usize::try_from(*value).ok(),
            _ => None,
        };
        let read = |value: &Argument| match value {
            Argument::List(values) => values.iter().map(index).collect(),
            one => index(one).map(|one| vec![one]),
        };
        Ok(self.take(key, "a list of numbers from 0", read)?.unwrap_or_default())
    }
}

impl Primitive {
    /// Parses `shard(weight, 0)`, `colwise`. E222 for an unknown primitive or style, or wrong
    /// arguments.
    pub fn parse(text: &str) -> Result<Primitive> {
        Primitive::from_call(&Call::parse(text)?)
    }

    /// As [`Primitive::parse`], from a call.
    pub fn from_call(call: &Call) -> Result<Primitive> {
        // The style `shard(0)` shards every parameter of a module; the primitive names a tensor.
        let is_style =
            call.name == "shard" && matches!(call.arguments.first(), Some((None, Argument::Int(_))));
        let Some(signature) = SIGNATURES.iter().find(|s| s.name == call.name && !is_style) else {
            return Ok(Primitive::Style(Style::from_call(call)?));
        };
        let mut arguments = Arguments::of(call, signature)?;
        let a = &mut arguments;
        const CHECKED: &str = "a needed argument is there";
        Ok(match call.name.as_str() {
            "shard" => Primitive::Shard {
                tensor: a.text("tensor")?.expect(CHECKED),
                dim: a.int("dim")?.expect(CHECKED),
                axis: a.text("axis")?,
            },
            "sync" => {
                let dim = a.int("dim")?;
                let op = match a.values.shift_remove("op").expect(CHECKED) {
                    Argument::Text(op) => SyncOp::parse(&op, dim)?,
                    other => return Err(function_as_sync(&other.describe())),
                };
                Primitive::Sync {
                    mode: SyncMode::parse(&a.text("mode")?.expect(CHECKED))?,
                    op,
                    axis: a.text("axis")?,
                }
            }
            "checkpoint" => Primitive::Checkpoint { pattern: a.text("pattern")? },
            "decompose" => Primitive::Decompose,
            "trace" => Primitive::Trace { flatten: a.flag("flatten")?.unwrap_or(false) },
            "fuse" => Primitive::Fuse {
                pattern: a.text("pattern")?.expect(CHECKED),
                name: a.text("name")?.expect(CHECKED),
                backend: a.text("backend")?,
                at: a.indices("at")?,
            },
            "replace" => {
                let (with, pattern) = (a.text("with")?.expect(CHECKED), a.text("pattern")?);
                let (at, ops) = (a.indices("at")?, a.range("ops")?);
                if ops.is_some() && (pattern.is_some() || !at.is_empty()) {
                    return Err(Diagnostic::new(
                        "E222",
                        format!("`{call}`: select ops by number or by pattern, not by both"),
                    )
                    .expected("`ops`, or `pattern` with `at`")
                    .found("both"));
                }
                Primitive::Replace { with, pattern, at, ops, bindings: arguments.values }
            }
            "replace_all" => Primitive::ReplaceAll {
                kind: a.text("kind")?.expect(CHECKED),
                with: a.text("with")?.expect(CHECKED),
                bindings: arguments.values,
            },
            "pipeline_split" => {
                Primitive::PipelineSplit { mesh: a.text("mesh")?, ranks: a.indices("ranks")? }
            }
            "layers" => {
                let count = a.int("count")?.expect(CHECKED);
                let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or_else(|| {
                    Diagnostic::new("E222", format!("`{call}`: a number of layers"))
                        .expected("an integer of at least 1")
                        .found(count.to_string())
                })?;
                Primitive::Layers { count, remat: a.flag("remat")?.unwrap_or(false) }
            }
            "annotate" => Primitive::Annotate {
                tensor: a.text("tensor")?.expect(CHECKED),
                key: a.text("key")?.expect(CHECKED),
                value: a.values.shift_remove("value").expect(CHECKED),
            },
            "precision" => {
                let name = a.text("compute")?.expect(CHECKED);
                let floats = DType::ALL.iter().copied().filter(|d| d.is_float());
                let compute = floats.clone().find(|d| d.name() == name);
                let names: Vec<&str> = floats.map(|d| d.name()).collect();
                Primitive::Precision { compute: compute.ok_or_else(|| choice("precision", &name, &names))? }
            }
            "offload" => {
                let name = a.text("what")?.expect(CHECKED);
                let what = Offloaded::ALL.into_iter().find(|what| what.name() == name);
                let what =
                    what.ok_or_else(|| choice("tensors", &name, &Offloaded::ALL.map(Offloaded::name)))?;
                let ahead = a.int("ahead")?.map(|ahead| {
                    usize::try_from(ahead).ok().filter(|ahead| (1..=MAX_AHEAD).contains(ahead)).ok_or_else(
                        || {
                            Diagnostic::new("E222", format!("`{call}`: groups to load ahead"))
                                .expected(format!("an integer from 1 to {MAX_AHEAD}"))
                                .found(ahead.to_string())
                        },
                    )
                });
                Primitive::Offload { what, ahead: ahead.transpose()? }
            }
            "fork_rng" => Primitive::ForkRng,
            other => unreachable!("`{other}` has a signature"),
        })
    }

    /// The call that parses back to this.
    pub fn to_call(&self) -> Call {
        let text = |text: &String| Argument::text(text.clone());
        let mut named: Vec<(&str, Option<Argument>)> = Vec::new();
        let name = match self {
            Primitive::Style(style) => return style.to_call(),
            Primitive::Shard { tensor, dim, axis } => {
                named.push(("tensor", Some(text(tensor))));
                named.push(("dim", Some(Argument::Int(*dim as i64))));
                named.push(("axis", axis.as_ref().map(text)));
                "shard"
            }
            Primitive::Sync { mode, op, axis } => {
                let (word, dim) = op.parts();
                named.push(("mode", Some(Argument::text(mode.name()))));
                named.push(("op", Some(Argument::Text(word))));
                named.push(("dim", dim.map(|dim| Argument::Int(dim as i64))));
                named.push(("axis", axis.as_ref().map(text)));
                "sync"
            }
            Primitive::Checkpoint { pattern } => {
                named.push(("pattern", pattern.as_ref().map(text)));
                "checkpoint"
            }
            Primitive::Decompose => "decompose",
            Primitive::Trace { flatten } => {
                named.push(("flatten", flatten.then_some(Argument::Bool(true))));
                "trace"
            }
            Primitive::Fuse { pattern, name, backend, at } => {
                named.push(("pattern", Some(text(pattern))));
                named.push(("name", Some(text(name))));
                named.push(("backend", backend.as_ref().map(text)));
                named.push(("at", indices(at)));
                "fuse"
            }
            Primitive::Replace { with, pattern, at, ops, bindings } => {
                named.push(("with", Some(text(with))));
                named.push(("pattern", pattern.as_ref().map(text)));
                named.push(("at", indices(at)));
                named.push(("ops", ops.map(range)));
                named.extend(bindings.iter().map(|(key, value)| (key.as_str(), Some(value.clone()))));
                "replace"
            }
            Primitive::ReplaceAll { kind, with, bindings } => {
                named.push(("kind", Some(text(kind))));
                named.push(("with", Some(text(with))));
                named.extend(bindings.iter().map(|(key, value)| (key.as_str(), Some(value.clone()))));
                "replace_all"
            }
            Primitive::PipelineSplit { mesh, ranks } => {
                named.push(("mesh", mesh.as_ref().map(text)));
                named.push(("ranks", indices(ranks)));
                "pipeline_split"
            }
            Primitive::Layers { count, remat } => {
                named.push(("count", Some(Argument::Int(*count as i64))));
                named.push(("remat", remat.then_some(Argument::Bool(true))));
                "layers"
            }
            Primitive::Annotate { tensor, key, value } => {
                named.push(("tensor", Some(text(tensor))));
                named.push(("key", Some(text(key))));
                named.push(("value", Some(value.clone())));
                "annotate"
            }
            Primitive::Precision { compute } => {
                named.push(("compute", Some(Argument::text(compute.name()))));
                "precision"
            }
            Primitive::Offload { what, ahead } => {
                named.push(("what", Some(Argument::text(what.name()))));
                named.push(("ahead", ahead.map(|ahead| Argument::Int(ahead as i64))));
                "offload"
            }
            Primitive::ForkRng => "fork_rng",
        };
        let bare = SIGNATURES.iter().find(|s| s.name == name).map_or(0, |s| s.bare);
        let mut call = Call::new(name);
        for (position, (key, value)) in named.into_iter().enumerate() {
            if let Some(value) = value {
                call.arguments.push(((position >= bare).then(|| key.to_string()), value));
            }
        }
        call
    }

    /// The arguments by name, in order: for spellings that name all of them.
    pub(crate) fn named_arguments(&self) -> Vec<(String, Argument)> {
        let call = self.to_call();
        let signature = SIGNATURES.iter().find(|s| s.name == call.name);
        let name_at = |position: usize| signature.map_or("", |s| s.arguments[position]).to_string();
        let named = call.arguments.into_iter().enumerate();
        named.map(|(position, (key, value))| (key.unwrap_or_else(|| name_at(position)), value)).collect()
    }

    /// The style, where it is one.
    pub fn style(&self) -> Option<&Style> {
        match self {
            Primitive::Style(style) => Some(style),
            _ => None,
        }
    }

    /// Whether a stage of a pipeline ends with the modules of the line.
    pub fn ends_stage(&self) -> bool {
        matches!(self, Primitive::PipelineSplit { .. })
    }

    /// Whether the line decides where stages of a pipeline end: one of them, or the number of their layers.
    pub fn decides_stages(&self) -> bool {
        self.ends_stage() || matches!(self, Primitive::Layers { .. })
    }
}

fn indices(at: &[usize]) -> Option<Argument> {
    (!at.is_empty()).then(|| Argument::List(at.iter().map(|&i| Argument::Int(i as i64)).collect()))
}

/// The notation of consecutive ops.
fn range((first, end): (usize, usize)) -> Argument {
    match first.checked_add(1) == Some(end) {
        true => Argument::Int(first as i64),
        false => Argument::Text(format!("{first}:{end}")),
    }
}

impl From<Style> for Primitive {
    fn from(style: Style) -> Primitive {
        Primitive::Style(style)
    }
}

impl fmt::Display for Primitive {
    /// The notation that [`Primitive::parse`] reads: `shard(weight, 0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_call().fmt(f)
    }
}

#[cfg(test)]
mod tests;
