//! Locations: the text form of a node's module path, phase, microbatch, stage and group.
//!
//! A node prints `loc("forward/layers.0.attn"("model.rs":12:0))`: phase, `@` and the microbatch if
//! there is one, `^` and the pipeline stage if it is not the first, `~` and the recomputation group
//! if it is in one, `/`, module path; inside, the source location if known. A forward node in no
//! module prints its bare source location, or nothing. From JAX's names
//! (`jit(step)/jvp(layers_0)/dot_general`) the modules become the path, without their wrappers,
//! `jit(..)` and the last part, which names the primitive.

use super::parser::Parser;
use crate::graph::{Location, Node, Phase};
use partita_base::Result;
use partita_mlir::{Kind, quote, unquote};

/// The limit on nested location aliases.
const ALIAS_LIMIT: usize = 32;

/// A parsed location.
#[derive(Clone, Default, Debug)]
pub(crate) struct LocationText {
    pub name: Option<String>,
    pub source: Option<Location>,
}

/// A node's origin.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Origin {
    pub path: String,
    pub phase: Phase,
    pub microbatch: Option<usize>,
    pub stage: usize,
    pub remat: Option<usize>,
    pub location: Option<Location>,
}

impl LocationText {
    /// The origin that the location describes.
    pub fn origin(self) -> Origin {
        let mut origin = Origin { location: self.source, ..Origin::default() };
        let Some(name) = self.name else { return origin };
        if let Some((head, path)) = name.split_once('/') {
            let number = |text: &'_ str, mark: char| match text.split_once(mark) {
                Some((before, number)) => (before.len(), number.parse::<usize>().ok()),
                None => (text.len(), None),
            };
            let (end, remat) = number(head, '~');
            let (end, stage) = number(&head[..end], '^');
            let (phase_end, microbatch) = number(&head[..end], '@');
            let phases = [Phase::Forward, Phase::InputGrad, Phase::WeightGrad, Phase::Update];
            let known = phases.into_iter().find(|p| p.name() == &head[..phase_end]);
            let numbers = [('@', microbatch), ('^', stage), ('~', remat)];
            let numbers = numbers.iter().all(|(mark, number)| head.contains(*mark) == number.is_some());
            if let (Some(phase), true) = (known, numbers) {
                (origin.phase, origin.microbatch) = (phase, microbatch);
                (origin.stage, origin.remat) = (stage.unwrap_or(0), remat);
                origin.path = path.to_string();
                return origin;
            }
        }
        let mut parts: Vec<&str> = name.split('/').collect();
        parts.pop();
        let parts: Vec<&str> = parts.into_iter().map(module_of).filter(|part| !part.is_empty()).collect();
        origin.path = parts.join(".");
        origin
    }
}

/// The module in a part of a JAX name: `mlp` in `transpose(jvp(mlp))`, none in `jit(step)`.
fn module_of(part: &str) -> &str {
    if part.starts_with("jit(") || part.starts_with("pjit(") {
        return "";
    }
    let inner = part.rsplit('(').next().unwrap_or(part).trim_end_matches(')');
    if inner.contains(')') { "" } else { inner }
}

/// ` loc(..)` for a node, or nothing.
pub(crate) fn print_location(node: &Node) -> String {
    let source = node.location.as_ref().map(|l| format!("{}:{}:0", quote(&l.file), l.line));
    let numbers = node.microbatch.map_or(String::new(), |m| format!("@{m}"))
        + &Some(node.stage).filter(|&stage| stage > 0).map_or(String::new(), |stage| format!("^{stage}"))
        + &node.remat.map_or(String::new(), |group| format!("~{group}"));
    let plain = node.path.is_empty() && node.phase == Phase::Forward && numbers.is_empty();
    match (plain, source) {
        (true, None) => String::new(),
        (true, Some(source)) => format!(" loc({source})"),
        (false, source) => {
            let name = quote(&format!("{}{numbers}/{}", node.phase.name(), node.path));
            format!(" loc({name}{})", source.map_or(String::new(), |s| format!("({s})")))
        }
    }
}

impl Parser<'_> {
    /// `loc(..)` or nothing.
    pub fn optional_location(&mut self) -> Result<Option<LocationText>> {
        if self.at_word("loc") { self.location().map(Some) } else { Ok(None) }
    }

    /// `loc(..)`.
    pub fn location(&mut self) -> Result<LocationText> {
        self.keyword("loc")?;
        if self.kind() != Kind::Mark('(') {
            return Err(self.unexpected("`(`"));
        }
        let close = self.tree.tokens.closing[self.position];
        self.advance();
        let location = self.location_body(ALIAS_LIMIT)?;
        self.position = close + 1;
        Ok(location)
    }

    /// The inside of `loc(..)`; stops anywhere before the closing bracket. Of composed locations
    /// the first counts.
    fn location_body(&mut self, aliases_left: usize) -> Result<LocationText> {
        // Wrapper words are handled in a loop, not by recursion: a text may nest them without
        // bound.
        let mut found = LocationText::default();
        let mut budget = 64usize;
        loop {
            budget = budget.saturating_sub(1);
            match self.kind() {
                Kind::Text if budget > 0 => {
                    let text = unquote(self.text());
                    self.advance();
                    if self.kind() == Kind::Mark(':') {
                        self.advance();
                        let line = self.text().parse().unwrap_or(0);
                        found.source = Some(Location { file: text, line });
                        return Ok(found);
                    }
                    found.name.get_or_insert(text);
                    if !self.eat('(') {
                        return Ok(found);
                    }
                }
                Kind::Word if budget > 0 && matches!(self.text(), "callsite" | "fused") => {
                    let fused = self.at_word("fused");
                    self.advance();
                    if fused && self.eat('<') {
                        self.skip_angle()?;
                    }
                    if !matches!(self.kind(), Kind::Mark('(' | '[')) {
                        return Err(self.unexpected("a location"));
                    }
                    self.advance();
                }
                Kind::Hash => {
                    let target = self.aliases.get(self.text()).copied();
                    let back = self.position;
                    if let (Some(target), true) = (target, aliases_left > 0) {
                        self.position = target;
                        let inner = self.location_body(aliases_left - 1);
                        self.position = back;
                        let inner = inner?;
                        found.name = found.name.or(inner.name);
                        found.source = inner.source;
                    }
                    return Ok(found);
                }
                _ => return Ok(found),
            }
        }
    }
}
