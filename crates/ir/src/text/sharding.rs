//! `sdy` meshes and shardings.
//!
//! `<@mesh, [{"x", ?}, {"y":(1)2}], replicated={"z"}, unreduced={"w", "v" max}>`: for each
//! dimension its axes, major to minor, and `?` if propagation may add more; a part of an axis as
//! `"y":(pre)size`; axes over which the value is partial, with the combiner if it is not the sum. A
//! priority (`p1`) is parsed and dropped.

use super::parser::Parser;
use crate::graph::Annotation;
use partita_base::{Result, did_you_mean};
use partita_mesh::{Axis, AxisList, AxisRef, Combiner, DimSharding, Mesh, Sharding};
use partita_mlir::{Kind, quote, unquote};

/// The largest size of an axis, and the most ranks of a mesh.
const RANK_LIMIT: i64 = 1 << 24;

/// The most axes of a mesh: more than the 24 that can shard anything only cost time.
const AXIS_LIMIT: usize = 256;

/// The text form of a sharding.
#[derive(Clone, Debug)]
pub(crate) struct ShardingText {
    /// Index into the module's meshes.
    pub mesh: usize,
    pub sharding: Sharding,
    pub open: Vec<bool>,
    pub replicated: Vec<AxisRef>,
    /// The token it starts at.
    pub token: usize,
}

impl ShardingText {
    /// The annotation with this layout.
    pub fn annotation(self, origin: String) -> Annotation {
        Annotation {
            mesh: self.mesh,
            sharding: self.sharding,
            open: self.open,
            replicated: self.replicated,
            origin,
        }
    }
}

fn combiner_name(combiner: Combiner) -> &'static str {
    match combiner {
        Combiner::Sum => "sum",
        Combiner::Max => "max",
        Combiner::Min => "min",
        Combiner::Prod => "prod",
        Combiner::And => "and",
        Combiner::Or => "or",
    }
}

impl Parser<'_> {
    /// `sdy.mesh @name = <["x"=2, "y"=4], device_ids=[..]> {..}`, after the keyword. The mesh may
    /// be spelt `#sdy.mesh<..>`.
    pub fn mesh(&mut self) -> Result<Mesh> {
        let name = self.symbol()?;
        self.mark('=')?;
        if self.kind() == Kind::Hash && self.text() == "#sdy.mesh" {
            self.advance();
        }
        let mesh = self.mesh_value(name)?;
        self.optional_dictionary()?;
        self.optional_location()?;
        Ok(mesh)
    }

    /// `<["x"=2, "y"=4], device_ids=[..]>`.
    fn mesh_value(&mut self, name: String) -> Result<Mesh> {
        self.mark('<')?;
        let mut mesh = Mesh { name, axes: Vec::new(), device_ids: None };
        self.mark('[')?;
        while self.kind() == Kind::Text {
            let axis = unquote(self.text());
            if mesh.axes.len() == AXIS_LIMIT {
                return Err(self.error("E149", format!("a mesh has at most {AXIS_LIMIT} axes")));
            }
            if mesh.axes.iter().any(|a| a.name == axis) {
                return Err(self.error("E148", format!("the mesh has two axes named `{axis}`")));
            }
            self.advance();
            self.mark('=')?;
            let size_at = self.position;
            let size = self.integer()?;
            if !(1..=RANK_LIMIT).contains(&size) {
                return Err(self.error_at(size_at, "E148", "an axis must have between 1 and 2^24 positions"));
            }
            mesh.axes.push(Axis { name: axis, size: size as usize });
            let ranks = mesh
                .axes
                .iter()
                .try_fold(1i64, |n, a| n.checked_mul(a.size as i64).filter(|&n| n <= RANK_LIMIT));
            if ranks.is_none() {
                return Err(self.error_at(size_at, "E148", "a mesh must have at most 2^24 ranks"));
            }
            if !self.eat(',') {
                break;
            }
        }
        self.mark(']')?;
        if self.eat(',') {
            self.keyword("device_ids")?;
            self.mark('=')?;
            let at = self.position;
            let ids = self.integer_list()?;
            let ids: Option<Vec<usize>> = ids.into_iter().map(|id| usize::try_from(id).ok()).collect();
            let ranks: usize = mesh.axes.iter().map(|a| a.size).product();
            let is_named_once = |ids: &[usize]| {
                let mut sorted = ids.to_vec();
                sorted.sort_unstable();
                sorted.windows(2).all(|pair| pair[0] < pair[1])
            };
            match ids {
                Some(ids) if ids.len() == ranks && is_named_once(&ids) => mesh.device_ids = Some(ids),
                _ => {
                    return Err(self
                        .error_at(at, "E148", "a mesh must name one device for each rank")
                        .expected(format!("{ranks} device numbers, each once")));
                }
            }
        }
        self.mark('>')?;
        Ok(mesh)
    }

    /// The mesh of a sharding, `@mesh` or `mesh<["x"=2]>`, by its index. One that is written out
    /// and has no name yet gets one.
    fn mesh_index(&mut self) -> Result<usize> {
        if self.at_word("mesh") {
            self.advance();
            let mut mesh = self.mesh_value(String::new())?;
            let equal = |known: &Mesh| known.axes == mesh.axes && known.device_ids == mesh.device_ids;
            if let Some(index) = self.meshes.iter().position(equal) {
                return Ok(index);
            }
            let is_free = |name: &String| self.meshes.iter().all(|known| known.name != *name);
            let mut names = (0..).map(|number| format!("mesh_{number}"));
            mesh.name = names.find(is_free).expect("a number is free");
            self.meshes.push(mesh);
            return Ok(self.meshes.len() - 1);
        }
        let mesh_at = self.position;
        let name = self.symbol()?;
        self.meshes.iter().position(|m| m.name == name).ok_or_else(|| {
            let mut error = self.error_at(mesh_at, "E143", format!("there is no mesh `@{name}`"));
            error.help = did_you_mean(&name, self.meshes.iter().map(|m| m.name.as_str()));
            error
        })
    }

    /// `<@mesh, [..], ..>`, also as `#sdy.sharding<..>`.
    pub fn sharding(&mut self) -> Result<ShardingText> {
        let token = self.position;
        if self.kind() == Kind::Hash && self.text() == "#sdy.sharding" {
            self.advance();
        }
        self.mark('<')?;
        let index = self.mesh_index()?;
        let mut text = ShardingText {
            mesh: index,
            sharding: Sharding { dims: Vec::new(), partial: Vec::new() },
            open: Vec::new(),
            replicated: Vec::new(),
            token,
        };
        self.mark(',')?;
        self.mark('[')?;
        while self.kind() == Kind::Mark('{') {
            let (axes, open) = self.dimension(index)?;
            text.sharding.dims.push(DimSharding::over(axes));
            text.open.push(open);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(']')?;
        while self.eat(',') {
            if self.at_word("replicated") {
                self.advance();
                self.mark('=')?;
                text.replicated = self.dimension(index)?.0.to_vec();
            } else if self.at_word("unreduced") {
                self.advance();
                self.mark('=')?;
                text.sharding.partial = self.partial_axes(index)?;
            } else {
                return Err(self.unexpected("`replicated` or `unreduced`"));
            }
        }
        self.mark('>')?;
        self.check_axes(&text)?;
        Ok(text)
    }

    /// `[<@mesh, ..>, <@mesh, ..>]`.
    pub fn sharding_list(&mut self) -> Result<Vec<ShardingText>> {
        self.mark('[')?;
        let mut list = Vec::new();
        while matches!(self.kind(), Kind::Mark('<') | Kind::Hash) {
            list.push(self.sharding()?);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(']')?;
        Ok(list)
    }

    /// `{"x", "y":(1)2, ?}p1`: axes, and whether more may be added.
    pub fn dimension(&mut self, mesh: usize) -> Result<(AxisList, bool)> {
        self.mark('{')?;
        let mut axes = AxisList::new();
        let mut open = false;
        loop {
            match self.kind() {
                Kind::Text => axes.push(self.axis(mesh)?),
                Kind::Mark('?') => {
                    open = true;
                    self.advance();
                    break;
                }
                _ => break,
            }
            if !self.eat(',') {
                break;
            }
        }
        self.mark('}')?;
        let is_priority = |word: &str| {
            word.strip_prefix('p').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        if self.kind() == Kind::Word && is_priority(self.text()) {
            self.advance();
        }
        Ok((axes, open))
    }

    /// `{"x", "y" max}`.
    fn partial_axes(&mut self, mesh: usize) -> Result<Vec<(AxisRef, Combiner)>> {
        self.mark('{')?;
        let mut partial = Vec::new();
        while self.kind() == Kind::Text {
            let axis = self.axis(mesh)?;
            let mut combiner = Combiner::Sum;
            if self.kind() == Kind::Word {
                let all = [
                    Combiner::Sum,
                    Combiner::Max,
                    Combiner::Min,
                    Combiner::Prod,
                    Combiner::And,
                    Combiner::Or,
                ];
                combiner = all
                    .into_iter()
                    .find(|&c| combiner_name(c) == self.text())
                    .ok_or_else(|| self.unexpected("a combiner: sum, max, min, prod, and, or"))?;
                self.advance();
            }
            partial.push((axis, combiner));
            if !self.eat(',') {
                break;
            }
        }
        self.mark('}')?;
        Ok(partial)
    }

    /// `"x"` or `"x":(pre)size`.
    fn axis(&mut self, mesh: usize) -> Result<AxisRef> {
        let name = unquote(self.text());
        let found = self.meshes[mesh].axes.iter().position(|a| a.name == name);
        let axis = found.ok_or_else(|| {
            let axes = self.meshes[mesh].axes.iter().map(|a| a.name.as_str());
            let known: Vec<String> = axes.clone().map(|a| format!("`{a}`")).collect();
            let mut error = self
                .error("E148", format!("mesh `@{}` has no axis `{name}`", self.meshes[mesh].name))
                .expected(format!("one of {}", known.join(", ")));
            error.help = did_you_mean(&name, axes);
            error
        })?;
        let full = self.meshes[mesh].axes[axis].size;
        self.advance();
        if !self.eat(':') {
            return Ok(AxisRef { axis, pre: 1, size: full });
        }
        let at = self.position;
        self.mark('(')?;
        let pre = self.integer()?;
        self.mark(')')?;
        let size = self.integer()?;
        let parts = 1..=RANK_LIMIT;
        if !parts.contains(&pre) || !parts.contains(&size) || full as i64 % (pre * size) != 0 {
            return Err(self
                .error_at(at, "E148", format!("axis `{name}` of size {full} has no part ({pre}){size}"))
                .expected("(pre)size with pre * size dividing the axis"));
        }
        Ok(AxisRef { axis, pre: pre as usize, size: size as usize })
    }

    /// No part of an axis may be used twice.
    fn check_axes(&self, text: &ShardingText) -> Result<()> {
        let dims = text.sharding.dims.iter().flat_map(|d| d.axes.iter().copied());
        let partial = text.sharding.partial.iter().map(|(a, _)| *a);
        let all: Vec<AxisRef> = dims.chain(text.replicated.iter().copied()).chain(partial).collect();
        for (position, a) in all.iter().enumerate() {
            for b in &all[..position] {
                let apart = b.pre % (a.pre * a.size) == 0 || a.pre % (b.pre * b.size) == 0;
                if a.axis == b.axis && !apart && a.size > 1 && b.size > 1 {
                    let name = &self.meshes[text.mesh].axes[a.axis].name;
                    return Err(self.error_at(
                        text.token,
                        "E148",
                        format!("axis `{name}` is used twice in one sharding"),
                    ));
                }
            }
        }
        Ok(())
    }
}

fn print_axis(mesh: &Mesh, axis: AxisRef) -> String {
    let full = &mesh.axes[axis.axis];
    let name = quote(&full.name);
    if axis.pre == 1 && axis.size == full.size { name } else { format!("{name}:({}){}", axis.pre, axis.size) }
}

/// `<@mesh, [..], ..>`.
pub(crate) fn print_sharding(
    mesh: &Mesh,
    symbol: &str,
    sharding: &Sharding,
    open: &[bool],
    replicated: &[AxisRef],
) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    // A value on one device alone has no entries.
    let shown = if mesh.only_device().is_some() { &[][..] } else { &sharding.dims[..] };
    let dims = shown.iter().enumerate().map(|(dim, d)| {
        let mut parts: Vec<String> = d.axes.iter().map(|&a| print_axis(mesh, a)).collect();
        if open.get(dim) == Some(&true) {
            parts.push("?".to_string());
        }
        format!("{{{}}}", join(parts))
    });
    let mut out = format!("<{symbol}, [{}]", join(dims.collect()));
    if !replicated.is_empty() {
        // Shardy reads them in the order of the mesh.
        let mut replicated = replicated.to_vec();
        replicated.sort();
        let axes = replicated.iter().map(|&a| print_axis(mesh, a)).collect();
        out.push_str(&format!(", replicated={{{}}}", join(axes)));
    }
    if !sharding.partial.is_empty() {
        let axes = sharding.partial.iter().map(|&(axis, combiner)| match combiner {
            Combiner::Sum => print_axis(mesh, axis),
            other => format!("{} {}", print_axis(mesh, axis), combiner_name(other)),
        });
        out.push_str(&format!(", unreduced={{{}}}", join(axes.collect())));
    }
    out.push('>');
    out
}

/// `sdy.mesh @mesh = <["x"=2]>`.
pub(crate) fn print_mesh(mesh: &Mesh, symbol: &str) -> String {
    let axes: Vec<String> = mesh.axes.iter().map(|a| format!("{}={}", quote(&a.name), a.size)).collect();
    let devices = match &mesh.device_ids {
        Some(ids) => {
            let ids: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
            format!(", device_ids=[{}]", ids.join(", "))
        }
        None => String::new(),
    };
    format!("sdy.mesh {symbol} = <[{}]{devices}>", axes.join(", "))
}
