//! Storage styles for parameters, gradients and optimizer states: `fsdp` (ZeRO-3), `zero1` and
//! `zero2`.

use crate::apply::{Declared, LayoutAnnotator};
use crate::contradictions::{Claim, named, overruled};
use crate::pins::Pin;
use crate::plan::Entry;
use crate::style::{Gather, Kind, Style};
use crate::weights::forms_of;
use partita_base::{Note, Result, format_bytes};
use partita_ir::{NodeId, Phase, Role, Value, ValueId};
use partita_mesh::AxisRef;
use std::collections::BTreeMap;

impl LayoutAnnotator<'_> {
    /// The storage line of each parameter over each axis: the last one.
    pub(crate) fn storage_lines<'p>(
        &mut self,
        declared: &[Declared<'p>],
    ) -> BTreeMap<(ValueId, &'p str), &'p Entry> {
        let mut kept: BTreeMap<(ValueId, &str), &Entry> = BTreeMap::new();
        let mut claims: BTreeMap<&str, Vec<Claim<&Style>>> = BTreeMap::new();
        for line in declared.iter().filter(|line| line.style.is_storage()) {
            let parameters = self.modules.parameters_matching(line.entry.scope());
            let axis = line.style.axis_name();
            let about = parameters.iter().map(|&p| self.graph.value(p).name.as_str()).collect();
            let claim = Claim { line: line.describe(), about, asks: line.style };
            claims.entry(axis).or_default().push(claim);
            kept.extend(parameters.into_iter().map(|parameter| ((parameter, axis), line.entry)));
        }
        self.notes.extend(claims.values().flat_map(|claims| overruled(claims)));
        kept
    }

    /// Sets the storage layout of matched parameters, their gradients and their states, if this
    /// line is the last one for them.
    pub(crate) fn storage(
        &mut self,
        entry: Declared,
        kept: &BTreeMap<(ValueId, &str), &Entry>,
    ) -> Result<()> {
        let axis = self.axis(entry)?;
        let origin = entry.describe();
        let parameters = self.modules.parameters_matching(entry.entry.scope());
        if parameters.is_empty() {
            return Err(self.modules.unmatched(entry.entry.scope(), &origin));
        }
        if axis.size == 1 {
            return Ok(());
        }
        let holds = |p: &ValueId| {
            kept.get(&(*p, entry.style.axis_name())).is_some_and(|line| std::ptr::eq(*line, entry.entry))
        };
        let mut cut_already: Vec<&str> = Vec::new();
        let mut kept_bytes = 0;
        for parameter in parameters.into_iter().filter(|p| self.graph.ty(*p).rank() > 0 && holds(p)) {
            let same = self.graph.ty(parameter).shape.clone();
            let states = self.graph.inputs.iter().copied().filter(|&v| {
                self.graph.value(v).role == Role::StateOf(parameter) && self.graph.ty(v).shape == same
            });
            let states: Vec<ValueId> = states.collect();
            // A layer line already shards it along this axis.
            if self.pins.at(parameter).uses(axis) {
                cut_already.push(&self.graph.value(parameter).name);
                continue;
            }
            let before = self.pins.at(parameter).clone();
            let dim = storage_dim(&before, &same, axis);
            for state in states {
                self.pins.shard(state, dim as isize, axis, &origin)?;
                self.pins.at(state).stored.push(axis);
                self.pins.at(state).close();
            }
            let mut cut = before.clone();
            cut.store(dim, axis);
            cut.asked_by(&origin);
            match entry.style.kind {
                Kind::Fsdp => {
                    for form in forms_of(self.graph, self.modules, parameter) {
                        self.pins.of.insert(form, cut.clone());
                        self.gather_for_use(parameter, form, &before, entry.style.gather, axis, &origin);
                    }
                    if entry.style.gather != Gather::Use {
                        let gathered = before.annotation(self.pins.mesh_index).sharding;
                        let dtype = self.graph.ty(parameter).dtype;
                        kept_bytes += gathered.largest_local_elements(self.mesh, &same) * dtype.size_bytes();
                    }
                    self.gradients(parameter, &cut, entry.style.gather == Gather::Use);
                }
                Kind::Zero1 | Kind::Zero2 => {
                    self.pins.replicate(parameter, axis, &origin)?;
                    if entry.style.kind == Kind::Zero2 {
                        self.gradients(parameter, &cut, true);
                    }
                }
                _ => unreachable!("layer styles are no storage styles"),
            }
        }
        if kept_bytes > 0 {
            let kept = format_bytes(kept_bytes as u64);
            let kept = format!("each rank keeps {kept} of gathered parameters");
            self.notes.push(Note::on_line("kept-gathered", &origin, kept));
        }
        if !cut_already.is_empty() {
            let axis = self.mesh.display_axis(axis);
            let what = named(&cut_already);
            let why = format!("no effect on {what}, which another line shards along `{axis}`");
            self.notes.push(Note::on_line("no-effect", &origin, why));
        }
        Ok(())
    }

    /// Each use of a sharded parameter reads it gathered over the axis. By default there is one gather
    /// for each module, pass and microbatch, so that the gathered copy is short-lived.
    fn gather_for_use(
        &mut self,
        parameter: ValueId,
        form: ValueId,
        before: &Pin,
        gather: Gather,
        axis: AxisRef,
        origin: &str,
    ) {
        let mut groups: BTreeMap<(bool, &str, Option<usize>), Vec<(NodeId, usize)>> = BTreeMap::new();
        let others = forms_of(self.graph, self.modules, parameter);
        for &(id, position) in self.modules.uses(form) {
            let node = self.graph.node(id);
            let conversion = form == parameter && others.contains(&node.results[0]);
            if node.phase != Phase::Update && !conversion {
                let key = match gather {
                    Gather::Use => (node.phase.is_backward(), node.path.as_str(), node.microbatch),
                    Gather::Pass => (node.phase.is_backward(), node.path.as_str(), None),
                    Gather::Step => (false, node.path.as_str(), None),
                };
                groups.entry(key).or_default().push((id, position));
            }
        }
        let mut pin = before.clone();
        for (axes, open) in pin.axes.iter().zip(&mut pin.open) {
            *open = axes.is_empty();
        }
        pin.keep_whole(axis);
        pin.asked_by(origin);
        for readers in groups.into_values() {
            self.constraints.add(form, pin.clone(), &self.graph.value(parameter).name, None, &readers);
        }
    }

    /// Gives every gradient of a parameter this layout. With `each_microbatch`, so do the
    /// contributions of microbatches: they are reduce-scattered before accumulation.
    fn gradients(&mut self, parameter: ValueId, pin: &Pin, each_microbatch: bool) {
        for value in self.graph.value_ids() {
            let Value { role, definition, .. } = self.graph.value(value);
            let of_microbatch =
                || definition.is_some_and(|(node, _)| self.graph.node(node).microbatch.is_some());
            if *role == Role::GradOf(parameter)
                && self.graph.ty(value).shape == self.graph.ty(parameter).shape
                && (each_microbatch || !of_microbatch())
            {
                self.pins.of.insert(value, pin.clone());
            }
        }
    }
}

/// The dimension along which a parameter is sharded for storage: the first if it divides evenly,
/// else the largest that does, else the first. Shards of other axes are taken into account.
pub(crate) fn storage_dim(pin: &Pin, shape: &[usize], axis: AxisRef) -> usize {
    let rest = |dim: usize| shape[dim] / pin.ways(dim);
    let divides = |&dim: &usize| {
        shape[dim].is_multiple_of(pin.ways(dim)) && rest(dim) > 0 && rest(dim).is_multiple_of(axis.size)
    };
    if divides(&0) {
        return 0;
    }
    // The first of equals.
    (0..shape.len()).filter(divides).max_by_key(|&d| (rest(d), std::cmp::Reverse(d))).unwrap_or(0)
}
