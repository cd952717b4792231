//! The layout primitives: `shard` shards a tensor, `sync` places a gather or a reduction.

use crate::apply::LayoutAnnotator;
use crate::flow::{Flow, Standing, State};
use crate::modules::{around, is_inside, owner};
use crate::pins::Pin;
use crate::plan::{Entry, Plan};
use crate::primitive::Primitive;
use crate::sync::{MatrixLayout, SyncMode, SyncOp};
use crate::weights::weights_of;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::{NodeId, Phase, Role, Rule, ValueId};
use partita_mesh::{AxisRef, AxisRole};
use partita_spmd::units::rules_of;
use std::collections::{BTreeMap, BTreeSet};

/// Readers with their operand positions.
type Readers = Vec<(NodeId, usize)>;

/// Effects of earlier lines that pins do not record.
#[derive(Default)]
struct Done {
    /// Tensors that were sharded: the tensor, its name in the module, the axis, the line.
    cuts: Vec<(ValueId, String, AxisRef, String)>,
    /// The layout of a module's output over an axis as seen by readers, if it differs from the
    /// value's own.
    left: BTreeMap<(ValueId, AxisRef), Standing>,
    /// The indices of the constraints that implement it.
    handing: BTreeSet<usize>,
}

/// The line being applied.
struct Line<'l> {
    entry: &'l Entry,
    origin: String,
    axis: AxisRef,
    rules: &'l [Rule],
}

impl LayoutAnnotator<'_> {
    /// Applies the lines `shard` and `sync` of a plan, in order.
    pub(crate) fn placements(&mut self, plan: &Plan) -> Result<()> {
        let is_placement =
            |entry: &Entry| matches!(entry.primitive, Primitive::Shard { .. } | Primitive::Sync { .. });
        if !plan.entries.iter().any(is_placement) {
            return Ok(());
        }
        let rules = rules_of(self.graph);
        let mut done = Done::default();
        for entry in &plan.entries {
            let (Primitive::Shard { axis, .. } | Primitive::Sync { axis, .. }) = &entry.primitive else {
                continue;
            };
            let axis = self.axis_of(axis.as_deref(), entry)?;
            let line = Line { entry, origin: entry.describe(), axis, rules: &rules };
            let modules = self.modules.named(entry.scope(), &line.origin)?;
            let modules: Vec<String> = modules.into_iter().map(str::to_string).collect();
            match &entry.primitive {
                Primitive::Shard { tensor, dim, .. } => {
                    self.shard(&line, &modules, tensor, *dim, &mut done)?
                }
                // One rank has nothing to communicate.
                Primitive::Sync { .. } if axis.size == 1 => {}
                Primitive::Sync { mode, op, .. } => self.sync(&line, &modules, *mode, op, &mut done)?,
                _ => unreachable!("only these have an axis"),
            }
        }
        Ok(())
    }

    fn axis_of(&mut self, name: Option<&str>, entry: &Entry) -> Result<AxisRef> {
        let only = || match self.mesh.axes.as_slice() {
            [axis] => axis.name.clone(),
            _ => AxisRole::Model.axis().to_string(),
        };
        let name = name.map_or_else(only, str::to_string);
        self.axis_named(&name, entry)
    }

    fn shard(
        &mut self,
        line: &Line,
        modules: &[String],
        tensor: &str,
        dim: isize,
        done: &mut Done,
    ) -> Result<()> {
        let mut found = false;
        for module in modules {
            let kept = self.tensors_named(module, tensor);
            let activations = kept.is_empty().then_some(tensor);
            for value in kept.iter().copied() {
                self.cut(line, module, value, dim, done)?;
                self.pins.at(value).close();
            }
            found |= !kept.is_empty();
            if activations == Some("output") {
                for value in self.modules.outputs_of(module) {
                    self.cut(line, module, value, dim, done)?;
                    found = true;
                }
            }
            if activations == Some("input") {
                for (value, readers) in self.modules.inputs_of(module) {
                    self.cut_entering(line, module, value, &readers, dim, done)?;
                    found = true;
                }
            }
        }
        if found { Ok(()) } else { Err(self.no_tensor(line, modules, tensor)) }
    }

    /// The parameters and buffers of a module with this name; if it has none, those of other
    /// modules that it reads (tied ones).
    fn tensors_named(&self, module: &str, tensor: &str) -> Vec<ValueId> {
        let named = |&v: &ValueId| owner(&self.graph.value(v).name).1 == tensor;
        let own: Vec<ValueId> = self.modules.parameters_of(module).into_iter().filter(named).collect();
        let buffers = self.modules.buffers_of(module).into_iter().filter(named);
        let own: Vec<ValueId> = own.into_iter().chain(buffers).collect();
        match own.is_empty() && tensor == "weight" {
            true => weights_of(self.graph, self.modules, module),
            false => own,
        }
    }

    fn cut(&mut self, line: &Line, module: &str, value: ValueId, dim: isize, done: &mut Done) -> Result<()> {
        let dim = self.pins.dim(value, dim, &line.origin)?;
        let before = done.cuts.iter().filter(|(v, _, axis, _)| (*v, *axis) == (value, line.axis));
        let mut others = before.map(|(_, by, _, _)| by.as_str()).peekable();
        let pin = self.pins.at(value).clone();
        // A tied parameter may be sharded once under each of its names, in the same way.
        let tied = others.peek().is_some() && !others.any(|by| by == module);
        let uses = pin.uses(line.axis) || (line.axis.size == 1 && done.has(value, module, line.axis));
        if uses && !tied {
            return Err(self.already_cut(line, value, &pin));
        }
        self.pins.shard(value, dim as isize, line.axis, &line.origin)?;
        done.cuts.push((value, module.to_string(), line.axis, line.origin.clone()));
        Ok(())
    }

    /// Shards the input of a module: a tensor fed only to it is fed sharded; other values are
    /// resharded for its readers.
    fn cut_entering(
        &mut self,
        line: &Line,
        module: &str,
        value: ValueId,
        readers: &Readers,
        dim: isize,
        done: &mut Done,
    ) -> Result<()> {
        let elsewhere = |(id, position): &(NodeId, usize)| {
            self.graph.node(*id).phase == Phase::Forward && !readers.contains(&(*id, *position))
        };
        let is_fed = self.graph.value(value).definition.is_none();
        if is_fed && !self.modules.uses(value).iter().any(elsewhere) {
            return self.cut(line, module, value, dim, done);
        }
        let dim = self.pins.dim(value, dim, &line.origin)?;
        let before = self.constraints.at(readers[0]).map(|c| c.pin.clone());
        if let Some(pin) = before.filter(|pin| pin.uses(line.axis)) {
            return Err(self.already_cut(line, value, &pin));
        }
        self.constrain(line, value, readers, State::Cut(dim), around(module));
        Ok(())
    }

    fn already_cut(&self, line: &Line, value: ValueId, pin: &Pin) -> Box<Diagnostic> {
        let (name, ty) = (self.graph.describe(value), self.graph.ty(value));
        let axis = self.mesh.display_axis(line.axis);
        Diagnostic::new("E231", format!("`{name}` is already sharded along `{axis}`"))
            .at(line.origin.clone())
            .expected(format!("{:?} sharded once along `{axis}`", ty.shape))
            .found(format!("{} by {}", pin.annotation(0).sharding.display(self.mesh), pin.origins.join("; ")))
            .help(
                "remove one of the lines: the second line would split each shard again along the same axis; \
                   another dimension can be sharded along another axis (`axis=`)",
            )
    }

    fn no_tensor(&self, line: &Line, modules: &[String], tensor: &str) -> Box<Diagnostic> {
        let mut names: Vec<String> = Vec::new();
        for module in modules {
            let own = self.modules.parameters_of(module).into_iter().chain(self.modules.buffers_of(module));
            let own: Vec<&str> = own.map(|v| owner(&self.graph.value(v).name).1).collect();
            for name in own.into_iter().chain(["input", "output"]) {
                if !names.iter().any(|n| n == name) {
                    names.push(name.to_string());
                }
            }
        }
        let module = &line.entry.modules;
        let place = if module.is_empty() { "the model itself".to_string() } else { format!("`{module}`") };
        let mut error = Diagnostic::new("E232", format!("{place} has no tensor `{tensor}`"))
            .at(line.origin.clone())
            .expected(format!("one of {}", names.join(", ")))
            .found(tensor);
        let inside: Vec<&str> = self
            .graph
            .params()
            .into_iter()
            .map(|p| self.graph.value(p).name.as_str())
            .filter(|name| owner(name).1 == tensor && modules.iter().any(|m| is_inside(name, m)))
            .collect();
        error.help = did_you_mean(tensor, names.iter().map(String::as_str))
            .or_else(|| inside.first().map(|first| format!("`{first}` belongs to a nested module")));
        error
    }

    /// Gives these readers another layout of the value over the axis; other axes stay as before.
    fn constrain(
        &mut self,
        line: &Line,
        value: ValueId,
        readers: &Readers,
        to: State,
        around: &str,
    ) -> usize {
        let mut place = 0;
        for &reader in readers {
            let before = self.constraints.at(reader).map(|c| c.pin.clone());
            let mut pin = before.unwrap_or_else(|| Pin::free(self.graph.ty(value).rank()));
            pin.axes.iter_mut().for_each(|axes| axes.retain(|a| a.axis != line.axis.axis));
            pin.replicated.retain(|a| a.axis != line.axis.axis);
            match to {
                State::Cut(dim) => {
                    if line.axis.size > 1 {
                        let before = self.pins.before(value, dim, line.axis, &pin);
                        pin.axes[dim].extend(before);
                        pin.axes[dim].push(line.axis);
                    }
                    pin.open[dim] = false;
                }
                State::Whole | State::Partial => pin.keep_whole(line.axis),
            }
            pin.asked_by(&line.origin);
            place = self.constraints.place(value, pin, around);
            self.constraints.readers.insert(reader, place);
        }
        place
    }

    fn sync(
        &mut self,
        line: &Line,
        modules: &[String],
        mode: SyncMode,
        op: &SyncOp,
        done: &mut Done,
    ) -> Result<()> {
        let flow = Flow::of(&self.pins, &self.constraints, line.rules, line.axis);
        let mut acts: Vec<Act> = Vec::new();
        for module in modules {
            let (mut fitting, mut first_doubled) = (0, None);
            for (value, readers, standing) in self.exchanged(line, module, mode, done, &flow) {
                match self.decide(line, mode, op, value, &readers, &standing) {
                    Ok(to) => {
                        fitting += 1;
                        acts.push(Act { module: module.clone(), value, readers, from: standing.state, to });
                    }
                    // One of several tensors may be replicated: a mask beside the sharded one.
                    Err(error) if error.code == DOUBLED => first_doubled = first_doubled.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
            match (fitting, first_doubled) {
                (0, Some(error)) => return Err(error),
                (0, None) => return Err(self.nothing_to_exchange(line, module, mode)),
                _ => {}
            }
        }
        acts.into_iter().try_for_each(|act| self.act(line, mode, act, done))
    }

    /// The values that a `sync` at one side of a module covers, their readers, and their layouts
    /// there.
    fn exchanged(
        &self,
        line: &Line,
        module: &str,
        mode: SyncMode,
        done: &Done,
        flow: &Flow,
    ) -> Vec<(ValueId, Readers, Standing)> {
        let mut found = Vec::new();
        match mode {
            SyncMode::FwdPost => {
                for value in self.modules.outputs_of(module) {
                    // A reader that another line covers is excluded.
                    let outside = |reader: &&(NodeId, usize)| {
                        let node = self.graph.node(reader.0);
                        let place = self.constraints.readers.get(reader);
                        node.phase == Phase::Forward
                            && !is_inside(&node.path, module)
                            && place.is_none_or(|place| done.handing.contains(place))
                    };
                    let readers: Readers = self.modules.uses(value).iter().filter(outside).copied().collect();
                    let left = done.left.get(&(value, line.axis));
                    found.push((value, readers, left.unwrap_or_else(|| flow.value(value)).clone()));
                }
            }
            SyncMode::FwdPre => {
                for (value, readers) in self.modules.inputs_of(module) {
                    let mut alike: Vec<(Readers, Standing)> = Vec::new();
                    for reader in readers {
                        let standing = flow.read(reader);
                        match alike.iter_mut().find(|(_, s)| s.state == standing.state) {
                            Some((readers, _)) => readers.push(reader),
                            None => alike.push((vec![reader], standing)),
                        }
                    }
                    found.extend(alike.into_iter().map(|(readers, standing)| (value, readers, standing)));
                }
            }
            SyncMode::BwdPost => {
                for (value, readers) in self.modules.inputs_of(module) {
                    if !self.graph.ty(value).dtype.is_float() {
                        continue;
                    }
                    let inside = |id: NodeId| {
                        let node = self.graph.node(id);
                        node.phase == Phase::Forward && is_inside(&node.path, module)
                    };
                    // The gradient of a sharded value is sharded with it.
                    let own = flow.value(value).clone();
                    let standing = match own.state {
                        State::Cut(_) => own,
                        _ => flow.gradient(&readers, &inside),
                    };
                    found.push((value, readers, standing));
                }
            }
        }
        found
    }

    /// The layout after the `sync`. E224 for a dimension that does not exist, E233 if there is
    /// nothing to communicate, E234 if the operation does not suit the layout.
    fn decide(
        &self,
        line: &Line,
        mode: SyncMode,
        op: &SyncOp,
        value: ValueId,
        readers: &Readers,
        standing: &Standing,
    ) -> Result<State> {
        let dim = |dim: isize| self.pins.dim(value, dim, &line.origin);
        let layout = |layout: MatrixLayout| -> Result<State> {
            Ok(layout.dim().map(dim).transpose()?.map_or(State::Whole, State::Cut))
        };
        let doubled = || Err(self.doubled(line, mode, value, standing));
        let contradiction = || Err(self.contradiction(line, mode, value, standing));
        if mode == SyncMode::BwdPost {
            return match (op, standing.state) {
                (SyncOp::AllReduce, State::Partial) => Ok(State::Whole),
                (SyncOp::ReduceScatter(d), State::Partial) => Ok(State::Cut(dim(*d)?)),
                (SyncOp::AllReduce | SyncOp::ReduceScatter(_), State::Whole) => doubled(),
                (SyncOp::AllReduce | SyncOp::ReduceScatter(_), State::Cut(_))
                    if readers.iter().any(|reader| self.is_gathered(line, reader)) =>
                {
                    doubled()
                }
                (SyncOp::ReduceScatter(d), State::Cut(cut)) if dim(*d)? == cut => Ok(State::Cut(cut)),
                _ => contradiction(),
            };
        }
        match (op, standing.state) {
            (SyncOp::AllReduce, State::Partial) => Ok(State::Whole),
            (SyncOp::ReduceScatter(d), State::Partial) => Ok(State::Cut(dim(*d)?)),
            (SyncOp::Scatter(d), State::Whole) => Ok(State::Cut(dim(*d)?)),
            (SyncOp::AllGather(None), State::Cut(_)) => Ok(State::Whole),
            (SyncOp::AllGather(Some(d)), State::Cut(cut)) if dim(*d)? == cut => Ok(State::Whole),
            (SyncOp::Reshard(from, to), state) => {
                let (from, to) = (layout(*from)?, layout(*to)?);
                match state {
                    _ if state == from => Ok(to),
                    State::Partial if from == State::Whole => Ok(to),
                    State::Whole => doubled(),
                    _ => contradiction(),
                }
            }
            (SyncOp::AllReduce | SyncOp::ReduceScatter(_) | SyncOp::AllGather(_), State::Whole) => doubled(),
            _ => contradiction(),
        }
    }

    /// Whether a line gives a reader the gathered value.
    fn is_gathered(&self, line: &Line, reader: &(NodeId, usize)) -> bool {
        let whole = |pin: &Pin| pin.replicated.iter().any(|a| a.axis == line.axis.axis);
        self.constraints.at(*reader).is_some_and(|constraint| whole(&constraint.pin))
    }

    /// A pin sets the layout of a value but lets a sum wait for its reader; a constraint is a
    /// reader that does not wait.
    fn act(&mut self, line: &Line, mode: SyncMode, act: Act, done: &mut Done) -> Result<()> {
        let Act { module, value, readers, from, to } = act;
        match mode {
            SyncMode::FwdPre => _ = self.constrain(line, value, &readers, to, around(&module)),
            SyncMode::FwdPost => {
                match from {
                    State::Partial => self.pin(line, value, to)?,
                    // The value itself keeps its layout; readers outside see another.
                    State::Cut(_) if !done.left.contains_key(&(value, line.axis)) => {
                        self.pin(line, value, from)?;
                    }
                    State::Cut(_) | State::Whole => {}
                }
                if !readers.is_empty() {
                    done.handing.insert(self.constrain(line, value, &readers, to, around(&module)));
                }
                let why =
                    format!("the output `{}` has this layout by {}", self.graph.describe(value), line.origin);
                done.left.insert((value, line.axis), Standing::new(to, why));
            }
            SyncMode::BwdPost => {
                let is_gradient = |v: &ValueId| {
                    self.graph.value(*v).role == Role::GradOf(value)
                        && self.graph.ty(*v).shape == self.graph.ty(value).shape
                };
                for gradient in self.graph.value_ids().filter(is_gradient).collect::<Vec<ValueId>>() {
                    self.pin(line, gradient, to)?;
                    let readers = self.modules.uses(gradient).to_vec();
                    self.constrain(line, gradient, &readers, to, around(&module));
                }
            }
        }
        Ok(())
    }

    fn pin(&mut self, line: &Line, value: ValueId, to: State) -> Result<()> {
        match to {
            State::Cut(dim) => self.pins.shard(value, dim as isize, line.axis, &line.origin),
            State::Whole | State::Partial => self.pins.replicate(value, line.axis, &line.origin),
        }
    }

    fn nothing_to_exchange(&self, line: &Line, module: &str, mode: SyncMode) -> Box<Diagnostic> {
        let what = match mode {
            SyncMode::FwdPost => "returns no tensor",
            SyncMode::FwdPre => "reads no tensor from outside",
            SyncMode::BwdPost => "reads no tensor with a gradient from outside",
        };
        Diagnostic::new("E221", format!("`{module}` {what}"))
            .at(line.origin.clone())
            .expected(format!("a module for `sync({}, ..)`", mode.name()))
    }

    /// A display name of the value: for a gradient, whose gradient it is.
    fn exchanged_name(&self, mode: SyncMode, value: ValueId) -> String {
        let name = self.graph.describe(value);
        let of = if mode == SyncMode::BwdPost { "the gradient of " } else { "" };
        format!("{of}`{name}`")
    }

    /// E233.
    fn doubled(&self, line: &Line, mode: SyncMode, value: ValueId, standing: &Standing) -> Box<Diagnostic> {
        let (name, axis) = (self.exchanged_name(mode, value), self.mesh.display_axis(line.axis));
        let state = match standing.state {
            State::Cut(_) => "already reduced",
            State::Whole | State::Partial => "already replicated",
        };
        let error = Diagnostic::new(DOUBLED, format!("{name} is {state} over `{axis}`"))
            .at(line.origin.clone())
            .expected(format!("{} sharded or partial over `{axis}`", self.graph.ty(value)))
            .found(self.shown(line, standing))
            .note(format!("why: {}", standing.why))
            .help("remove this line");
        match standing.state {
            State::Cut(_) => {
                error.note("the backward pass of the gather before the module is a reduce-scatter")
            }
            State::Whole | State::Partial => error,
        }
    }

    /// E234.
    fn contradiction(
        &self,
        line: &Line,
        mode: SyncMode,
        value: ValueId,
        standing: &Standing,
    ) -> Box<Diagnostic> {
        let Primitive::Sync { op, .. } = &line.entry.primitive else { unreachable!("called by sync") };
        let (word, dim) = op.parts();
        let dim = dim.map_or(String::new(), |dim| format!(" along dimension {dim}"));
        let name = self.exchanged_name(mode, value);
        let help = match (mode, standing.state) {
            (SyncMode::BwdPost, State::Cut(cut)) => {
                format!(
                    "the gradient of a sharded value has the same sharding: write `reduce_scatter, dim={cut}`"
                )
            }
            (SyncMode::BwdPost, _) => {
                "gradients are reduced: write `all_reduce` or `reduce_scatter`".to_string()
            }
            (_, State::Partial) => "reduce it with `all_reduce` or `reduce_scatter`".to_string(),
            (_, State::Cut(cut)) => format!("gather it with `all_gather, dim={cut}`"),
            (_, State::Whole) => "shard it with `scatter`".to_string(),
        };
        Diagnostic::new("E234", format!("`{word}`{dim} does not suit {name}"))
            .at(line.origin.clone())
            .expected(match op {
                SyncOp::AllReduce | SyncOp::ReduceScatter(_) => "a partial value".to_string(),
                SyncOp::AllGather(None) => "a sharded value".to_string(),
                SyncOp::AllGather(Some(dim)) => format!("a value sharded along dimension {dim}"),
                SyncOp::Scatter(_) => "a replicated value".to_string(),
                SyncOp::Reshard(from, _) => match from.dim() {
                    Some(dim) => format!("a value sharded along dimension {dim}"),
                    None => "a replicated or partial value".to_string(),
                },
            })
            .found(format!("{}, {}", self.graph.ty(value), self.shown(line, standing)))
            .note(format!("why: {}", standing.why))
            .help(help)
    }

    fn shown(&self, line: &Line, standing: &Standing) -> String {
        let axis = self.mesh.display_axis(line.axis);
        match standing.state {
            State::Whole => format!("replicated over `{axis}`"),
            State::Cut(dim) => format!("sharded along dimension {dim} over `{axis}`"),
            State::Partial => format!("partial over `{axis}`"),
        }
    }
}

/// The code of a `sync` with nothing to communicate.
const DOUBLED: &str = "E233";

/// One value to communicate, after its line was checked.
struct Act {
    module: String,
    value: ValueId,
    readers: Readers,
    from: State,
    to: State,
}

impl Done {
    fn has(&self, value: ValueId, module: &str, axis: AxisRef) -> bool {
        self.cuts.iter().any(|(v, by, a, _)| (*v, by.as_str(), *a) == (value, module, axis))
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
