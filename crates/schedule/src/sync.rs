//! The vocabulary of `sync`: where values are communicated, and how.

use crate::primitive::choice;
use partita_base::{Diagnostic, Result, did_you_mean};

/// The side of a module at which values are communicated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// Its inputs, before the module computes.
    FwdPre,
    /// Its outputs.
    FwdPost,
    /// The gradients of its inputs, after the module's backward pass.
    BwdPost,
}

/// The operation. Negative dimensions count from the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SyncOp {
    /// A sum over the ranks; each rank holds all of it.
    AllReduce,
    /// Concatenates the shards; `None` is the sharded dimension.
    AllGather(Option<isize>),
    /// A sum over the ranks; each rank holds one shard.
    ReduceScatter(isize),
    /// Each rank keeps its shard of a replicated value.
    Scatter(isize),
    /// From one layout of the last two dimensions to another.
    Reshard(MatrixLayout, MatrixLayout),
}

/// The layout of the last two dimensions of an activation over an axis.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixLayout {
    /// `RR`: replicated.
    Whole,
    /// `RS`: the last dimension is sharded.
    Last,
    /// `SR`: the one before the last is sharded.
    BeforeLast,
}

impl MatrixLayout {
    /// The sharded dimension, counted from the last.
    pub fn dim(self) -> Option<isize> {
        match self {
            MatrixLayout::Whole => None,
            MatrixLayout::Last => Some(-1),
            MatrixLayout::BeforeLast => Some(-2),
        }
    }

    fn name(self) -> &'static str {
        match self {
            MatrixLayout::Whole => "RR",
            MatrixLayout::Last => "RS",
            MatrixLayout::BeforeLast => "SR",
        }
    }

    fn parse(text: &str) -> Option<MatrixLayout> {
        let all = [MatrixLayout::Whole, MatrixLayout::Last, MatrixLayout::BeforeLast];
        all.into_iter().find(|layout| layout.name() == text.trim())
    }
}

/// The names of [`SyncMode`], in its order.
const MODES: [(&str, SyncMode); 3] =
    [("fwd_pre", SyncMode::FwdPre), ("fwd_post", SyncMode::FwdPost), ("bwd_post", SyncMode::BwdPost)];

impl SyncMode {
    /// `fwd_pre`, `fwd_post` or `bwd_post`.
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(_, mode)| *mode == self).expect("every mode has a word").0
    }

    /// Parses a mode. E222 for an unknown name.
    pub fn parse(text: &str) -> Result<SyncMode> {
        let found = MODES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| choice("mode of sync", text, MODES.map(|(name, _)| name).as_slice()))
    }
}

const SYNC_OPS: [&str; 6] = ["all_reduce", "all_gather", "reduce_scatter", "scatter", "RS->SR", "SR->RR"];

impl SyncOp {
    /// Parses an op: `all_reduce`, `all_gather`, `reduce_scatter`, `scatter` with a dimension (0
    /// for the last two by default), or `RS->SR`: from and to a layout of `RR`, `RS` (the last
    /// dimension is sharded), `SR` (the one before). E222 for an unknown name, E263 for a function.
    pub fn parse(text: &str, dim: Option<isize>) -> Result<SyncOp> {
        if let Some((from, to)) = text.split_once("->")
            && let (Some(from), Some(to)) = (MatrixLayout::parse(from), MatrixLayout::parse(to))
        {
            return Ok(SyncOp::Reshard(from, to));
        }
        match text {
            "all_reduce" => Ok(SyncOp::AllReduce),
            "all_gather" => Ok(SyncOp::AllGather(dim)),
            "reduce_scatter" => Ok(SyncOp::ReduceScatter(dim.unwrap_or(0))),
            "scatter" => Ok(SyncOp::Scatter(dim.unwrap_or(0))),
            // A misspelt word rather than a function.
            _ if text.contains("->") || (is_word(text) && did_you_mean(text, SYNC_OPS).is_some()) => {
                Err(choice("op of sync", text, &SYNC_OPS).note(NO_FUNCTION))
            }
            _ => Err(function_as_sync(text)),
        }
    }

    /// The word and its dimension.
    pub fn parts(&self) -> (String, Option<isize>) {
        match self {
            SyncOp::AllReduce => ("all_reduce".to_string(), None),
            SyncOp::AllGather(dim) => ("all_gather".to_string(), *dim),
            SyncOp::ReduceScatter(dim) => ("reduce_scatter".to_string(), Some(*dim)),
            SyncOp::Scatter(dim) => ("scatter".to_string(), Some(*dim)),
            SyncOp::Reshard(from, to) => (format!("{}->{}", from.name(), to.name()), None),
        }
    }
}

/// Why `sync` accepts words only.
const NO_FUNCTION: &str = "collectives, in the forward and the backward pass, follow from the layouts before and after; a \
                           function has no layout, so it could not be differentiated or checked";

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// E263.
pub(crate) fn function_as_sync(found: &str) -> Box<Diagnostic> {
    Diagnostic::new("E263", "`sync` does not take a function")
        .expected(SYNC_OPS.join(", "))
        .found(found)
        .note(NO_FUNCTION)
        .help("name the layout after it: replicated (`all_reduce`, `all_gather`) or sharded (`reduce_scatter`, `scatter`)")
}
