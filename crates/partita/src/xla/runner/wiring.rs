//! Which value each module of a step reads and gives: places for all of them, found once before the first step.

use super::shards::{Layout, unfit};
use crate::xla::manifest::MANIFEST_FILE;
use crate::xla::{Kind, Manifest, Module, Tensor};
use partita_base::{Diagnostic, Result};
use std::collections::BTreeMap;

/// A place for a value: a buffer on the device of each of its ranks.
pub struct Slot<'m> {
    /// What the value is.
    pub tensor: &'m Tensor,
    /// Its shards.
    pub layout: Layout<'m>,
    /// The ranks that have it.
    pub ranks: &'m [usize],
}

/// A value that goes to other ranks.
pub struct Handover {
    /// Its slot.
    pub from: usize,
    /// The slot on the other ranks.
    pub to: usize,
    /// Whether both sides have equal shards, so that each goes from device to device.
    pub is_direct: bool,
}

/// Where a result goes.
pub enum Sink {
    /// To a slot. The copies of its old value on other ranks, in these slots, are void.
    Slot { slot: usize, void: Vec<usize> },
    /// To the figures of the step, if it is a number.
    Figure,
}

/// A module between its neighbours.
pub struct Wired<'m> {
    /// What it is.
    pub module: &'m Module,
    /// Slots that the batch or a number of the step fills, unless they are filled.
    pub fed: Vec<usize>,
    /// Values that come from other ranks before it runs, unless they are there.
    pub fetches: Vec<Handover>,
    /// The slots of its arguments.
    pub arguments: Vec<usize>,
    /// Where its results go.
    pub sinks: Vec<Sink>,
    /// Of its results, those that other ranks read: they leave at once, while later modules compute.
    pub sends: Vec<Handover>,
    /// Slots that nothing reads after it.
    pub dead: Vec<usize>,
}

/// All modules and slots of a step.
pub struct Wiring<'m> {
    pub slots: Vec<Slot<'m>>,
    pub modules: Vec<Wired<'m>>,
    /// The slots of parameters and states, by name.
    pub kept: BTreeMap<&'m str, usize>,
}

/// The name of a value and the ranks that have it.
type Key<'m> = (&'m str, &'m [usize]);

impl<'m> Wiring<'m> {
    /// The wiring of a manifest.
    ///
    /// # Errors
    /// E061 for a module that reads what no module gives, and for tensors that do not fit themselves.
    pub fn of(manifest: &'m Manifest) -> Result<Wiring<'m>> {
        let mut it = Wiring { slots: Vec::new(), modules: Vec::new(), kept: BTreeMap::new() };
        for module in &manifest.modules {
            for tensor in module.inputs.iter().filter(|tensor| tensor.kind.is_kept()) {
                if !it.kept.contains_key(tensor.name.as_str()) {
                    let slot = it.slot(tensor, &module.ranks)?;
                    it.kept.insert(&tensor.name, slot);
                }
            }
        }
        let mut maker: BTreeMap<usize, usize> = BTreeMap::new();
        let mut carried: BTreeMap<&str, usize> = BTreeMap::new();
        let mut others: BTreeMap<Key, usize> = BTreeMap::new();
        let mut copies: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, module) in manifest.modules.iter().enumerate() {
            let mut wired = Wired {
                module,
                fed: Vec::new(),
                fetches: Vec::new(),
                arguments: Vec::new(),
                sinks: Vec::new(),
                sends: Vec::new(),
                dead: Vec::new(),
            };
            for tensor in &module.inputs {
                let name = tensor.name.as_str();
                let slot = match tensor.kind {
                    Kind::Parameter | Kind::State => it.kept[name],
                    Kind::Carried => *carried.get(name).ok_or_else(|| unknown(tensor))?,
                    Kind::Received => {
                        let from = carried.get(name).or(it.kept.get(name));
                        let from = *from.ok_or_else(|| unknown(tensor))?;
                        let to = it.shared(&mut others, tensor, &module.ranks)?;
                        let sent = it.slots[from].tensor;
                        let is_direct = sent.shards == tensor.shards && sent.held == tensor.held;
                        let handover = Handover { from, to, is_direct };
                        copies.entry(from).or_default().push(to);
                        match maker.get(&from).filter(|_| is_direct) {
                            Some(&maker) => {
                                let sends: &mut Vec<Handover> = &mut it.modules[maker].sends;
                                if !sends.iter().any(|other| other.to == to) {
                                    sends.push(handover);
                                }
                            }
                            None => wired.fetches.push(handover),
                        }
                        to
                    }
                    Kind::Batch | Kind::LearningRate | Kind::Step | Kind::Seed => {
                        let slot = it.shared(&mut others, tensor, &module.ranks)?;
                        wired.fed.push(slot);
                        slot
                    }
                    _ => return Err(unknown(tensor)),
                };
                wired.arguments.push(slot);
            }
            for tensor in &module.outputs {
                let sink = match tensor.kind {
                    Kind::Carried => {
                        let slot = it.slot(tensor, &module.ranks)?;
                        carried.insert(&tensor.name, slot);
                        maker.insert(slot, number);
                        Sink::Slot { slot, void: Vec::new() }
                    }
                    Kind::NewValue => {
                        let slot = *it.kept.get(tensor.name.as_str()).ok_or_else(|| unknown(tensor))?;
                        Sink::Slot { slot, void: copies.get(&slot).cloned().unwrap_or_default() }
                    }
                    _ => Sink::Figure,
                };
                wired.sinks.push(sink);
            }
            it.modules.push(wired);
        }
        it.bury();
        Ok(it)
    }

    /// A new slot.
    fn slot(&mut self, tensor: &'m Tensor, ranks: &'m [usize]) -> Result<usize> {
        // What stays on its ranks has no global value, and no shards.
        let layout = match tensor.kind == Kind::Carried && tensor.shards.is_empty() {
            true => Layout::local(tensor)?,
            false => Layout::of(tensor, ranks.len())?,
        };
        self.slots.push(Slot { tensor, layout, ranks });
        Ok(self.slots.len() - 1)
    }

    /// The slot of a value that several modules on the same ranks read.
    fn shared(
        &mut self,
        known: &mut BTreeMap<Key<'m>, usize>,
        tensor: &'m Tensor,
        ranks: &'m [usize],
    ) -> Result<usize> {
        if let Some(&slot) = known.get(&(tensor.name.as_str(), ranks)) {
            let other = self.slots[slot].tensor;
            let is_same =
                other.shards == tensor.shards && other.held == tensor.held && other.rows == tensor.rows;
            return if is_same { Ok(slot) } else { self.slot(tensor, ranks) };
        }
        let slot = self.slot(tensor, ranks)?;
        known.insert((&tensor.name, ranks), slot);
        Ok(slot)
    }

    /// Finds after which module each slot is empty.
    fn bury(&mut self) {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, wired) in self.modules.iter().enumerate() {
            let results = wired.sinks.iter().filter_map(|sink| match sink {
                Sink::Slot { slot, .. } => Some(slot),
                Sink::Figure => None,
            });
            let sources = wired.fetches.iter().chain(&wired.sends).map(|handover| &handover.from);
            for &slot in wired.arguments.iter().chain(results).chain(sources) {
                last.insert(slot, number);
            }
        }
        for (slot, number) in last {
            if !self.kept.values().any(|&kept| kept == slot) {
                self.modules[number].dead.push(slot);
            }
        }
    }
}

/// E061: nothing gives what a module reads or replaces.
fn unknown(tensor: &Tensor) -> Box<Diagnostic> {
    match tensor.dtype() {
        None => unfit(tensor),
        Some(_) => {
            Diagnostic::new("E061", format!("the step cannot be run: nothing gives `{}`", tensor.name))
                .at(MANIFEST_FILE)
                .expected("a value of a module before it, a parameter, a state, or a part of the batch")
                .found(format!("{:?}", tensor.kind))
                .help("export the step again with this version")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xla::Form;

    fn tensor(name: &str, kind: Kind) -> Tensor {
        Tensor {
            name: name.to_string(),
            kind,
            dtype: "f32".to_string(),
            shape: Vec::new(),
            layout: String::new(),
            held: Vec::new(),
            shards: vec![Vec::new()],
            rows: None,
            replaced_by: None,
        }
    }

    fn manifest(modules: Vec<(usize, Vec<(&str, Kind)>, Vec<(&str, Kind)>)>) -> Manifest {
        let tensors =
            |list: Vec<(&str, Kind)>| list.into_iter().map(|(name, kind)| tensor(name, kind)).collect();
        let module = |(rank, inputs, outputs)| Module {
            file: "m".to_string(),
            ranks: vec![rank],
            inputs: tensors(inputs),
            outputs: tensors(outputs),
        };
        Manifest {
            format: String::new(),
            form: Form::Uniform,
            mesh: Vec::new(),
            modules: modules.into_iter().map(module).collect(),
            seed: 0,
            first: 0,
            learning_rates: Vec::new(),
            pieces: Vec::new(),
        }
    }

    #[test]
    fn values_for_other_ranks_leave_once_and_every_value_goes_when_nothing_reads_it() {
        use Kind::*;
        let manifest = manifest(vec![
            (0, vec![("w", Parameter), ("x", Batch)], vec![("h", Carried)]),
            (1, vec![("h", Received), ("w", Received)], vec![("loss", Loss)]),
            (1, vec![("h", Received), ("w", Received)], vec![("g", Carried)]),
            (0, vec![("g", Received), ("w", Parameter), ("x", Batch)], vec![("w", NewValue)]),
        ]);
        let wiring = Wiring::of(&manifest).unwrap();
        let name = |slot: &usize| (wiring.slots[*slot].tensor.name.as_str(), wiring.slots[*slot].ranks[0]);
        let names = |slots: &[usize]| slots.iter().map(name).collect::<Vec<_>>();
        let sent = |sends: &[Handover]| sends.iter().map(|send| name(&send.to)).collect::<Vec<_>>();
        let all: Vec<_> = wiring
            .modules
            .iter()
            .map(|wired| (sent(&wired.fetches), sent(&wired.sends), names(&wired.dead)))
            .collect();
        assert_eq!(all[0], (vec![], vec![("h", 1)], vec![("h", 0)]));
        assert_eq!(all[1], (vec![("w", 1)], vec![], vec![]));
        assert_eq!(all[2], (vec![("w", 1)], vec![("g", 0)], vec![("h", 1), ("w", 1), ("g", 1)]));
        assert_eq!(all[3], (vec![], vec![], vec![("x", 0), ("g", 0)]));
        let Sink::Slot { void, .. } = &wiring.modules[3].sinks[0] else { panic!("it is kept") };
        assert_eq!(names(void), [("w", 1), ("w", 1)]);
    }

    #[test]
    fn a_module_that_reads_what_nothing_gives_is_refused() {
        use Kind::*;
        for kind in [Carried, Received, Cotangent] {
            let manifest = manifest(vec![(0, vec![("v", kind)], Vec::new())]);
            assert_eq!(Wiring::of(&manifest).err().unwrap().code, "E061");
        }
        let manifest = manifest(vec![(0, Vec::new(), vec![("v", NewValue)])]);
        assert_eq!(Wiring::of(&manifest).err().unwrap().code, "E061");
    }
}
