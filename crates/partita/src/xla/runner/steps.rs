//! A step with its state on the devices: compiling, placing, running, reading back.

use super::shards::{Number, put_part, scalar};
use super::wiring::{Handover, Sink, Wired, Wiring};
use crate::xla::cache::Cache;
use crate::xla::manifest::{FORMAT, MANIFEST_FILE};
use crate::xla::{Form, Kind, Manifest, Module};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_pjrt::{Buffer, Client, CompileOptions, Device, Executable};
use partita_runtime::checkpoint::TensorData;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer for each rank.
type Shards = Vec<Arc<Buffer>>;

/// What a step reads: the tensors of its batch by name, and its numbers.
pub struct Fed<'a> {
    /// The tensor of the batch with this name.
    pub tensor: &'a dyn Fn(&str) -> Option<&'a TensorData>,
    /// The learning rate.
    pub rate: f64,
    /// The number of the step, the first one being 1.
    pub step: u64,
}

/// A step on devices.
pub struct Run<'m> {
    manifest: &'m Manifest,
    wiring: Wiring<'m>,
    client: Client,
    /// The device of each rank.
    devices: Vec<Device>,
    /// The program of each module.
    programs: Vec<Arc<Executable>>,
    values: Vec<Option<Shards>>,
    /// How many programs there are, and how many of them were compiled before.
    pub compiled: (usize, usize),
}

impl<'m> Run<'m> {
    /// Compiles the modules in `folder`, and puts the initial values on the devices: what `initial` lacks starts at zero.
    ///
    /// # Errors
    /// E061 for a manifest of another version and for too few devices, and what compiling and copying refuse.
    pub fn new(
        manifest: &'m Manifest,
        folder: &Path,
        client: &Client,
        cache: &Cache,
        initial: &IndexMap<String, TensorData>,
    ) -> Result<Run<'m>> {
        if manifest.format != FORMAT {
            return Err(Diagnostic::new("E061", "the step is of another version")
                .at(MANIFEST_FILE)
                .expected(FORMAT)
                .found(&manifest.format)
                .help("export it again with this version"));
        }
        let (devices, ranks) = (client.devices(), rank_count(manifest));
        if devices.len() < ranks {
            let kind = devices.first().map_or("none", |device| device.kind());
            return Err(Diagnostic::new("E061", "there are too few devices for this mesh")
                .at(format!("the PJRT plugin for {}", client.platform()))
                .expected(format!("{ranks} devices, one for each rank"))
                .found(format!("{} ({kind})", devices.len()))
                .help(format!("choose a mesh of at most {} ranks with --mesh", devices.len())));
        }
        let wiring = Wiring::of(manifest)?;
        let values = wiring.slots.iter().map(|_| None).collect();
        let (programs, compiled) = compile(manifest, folder, client, &devices, cache)?;
        let mut run = Run { manifest, wiring, client: client.clone(), devices, programs, values, compiled };
        for (name, &slot) in &run.wiring.kept {
            let value = initial.get(*name);
            let layout = &run.wiring.slots[slot].layout;
            if let Some(value) = value.filter(|value| value.bytes.len() != layout.global_bytes()) {
                return Err(misfit(name, layout.global_bytes(), value.bytes.len()));
            }
            run.values[slot] = Some(run.place(slot, value.map(|value| &value.bytes[..]))?);
        }
        Ok(run)
    }

    /// Runs a step, and gives its numbers by name, such as the loss. They are computed when this returns.
    ///
    /// # Errors
    /// E061 for a batch without a tensor that the step reads, and what running and copying refuse.
    pub fn step(&mut self, fed: &Fed) -> Result<Vec<(String, f64)>> {
        let mut figures = Vec::new();
        for number in 0..self.wiring.modules.len() {
            self.run_module(number, fed, &mut figures)?;
        }
        let number =
            |(name, dtype, buffer): (String, _, Arc<Buffer>)| Ok((name, scalar(dtype, &buffer.download()?)));
        figures.into_iter().map(number).collect()
    }

    fn run_module(
        &mut self,
        number: usize,
        fed: &Fed,
        figures: &mut Vec<(String, partita_base::DType, Arc<Buffer>)>,
    ) -> Result<()> {
        let Wired { module, arguments, sinks, fetches, sends, fed: slots, dead } =
            &self.wiring.modules[number];
        for &slot in slots {
            if self.values[slot].is_none() {
                self.values[slot] = Some(self.feed(slot, fed)?);
            }
        }
        for fetch in fetches {
            if self.values[fetch.to].is_none() {
                self.values[fetch.to] = Some(self.hand_over(fetch)?);
            }
        }
        let list = |place: usize| -> Result<Vec<&Buffer>> {
            let buffer = |slot: &usize| Ok(&*self.value(*slot)?[place]);
            arguments.iter().map(buffer).collect()
        };
        let lists = (0..module.ranks.len()).map(list).collect::<Result<Vec<_>>>()?;
        let results = self.programs[number].run(&lists)?;
        let mut of_output: Vec<Shards> = sinks.iter().map(|_| Vec::with_capacity(results.len())).collect();
        for device in results {
            of_output.iter_mut().zip(device).for_each(|(shards, buffer)| shards.push(Arc::new(buffer)));
        }
        for ((sink, shards), tensor) in sinks.iter().zip(of_output).zip(&module.outputs) {
            match sink {
                Sink::Slot { slot, void } => {
                    void.iter().for_each(|&slot| self.values[slot] = None);
                    self.values[*slot] = Some(shards);
                }
                Sink::Figure => {
                    if let (true, Some(dtype), Some(first)) =
                        (tensor.shape.is_empty(), tensor.dtype(), shards.first())
                    {
                        figures.push((tensor.name.clone(), dtype, first.clone()));
                    }
                }
            }
        }
        for send in sends {
            self.values[send.to] = Some(self.hand_over(send)?);
        }
        dead.iter().for_each(|&slot| self.values[slot] = None);
        Ok(())
    }

    fn value(&self, slot: usize) -> Result<&Shards> {
        self.values[slot].as_ref().ok_or_else(|| {
            let name = &self.wiring.slots[slot].tensor.name;
            Diagnostic::new("E061", format!("the step cannot be run: `{name}` is read before it is there"))
                .at(MANIFEST_FILE)
                .expected("modules in the order in which they run")
        })
    }

    /// The shards of a global value, or zeros, on the devices of a slot.
    fn place(&self, slot: usize, value: Option<&[u8]>) -> Result<Shards> {
        let slot = &self.wiring.slots[slot];
        let shard = |(place, &rank): (usize, &usize)| {
            let shard = slot.layout.cut(value, place);
            let buffer =
                self.client.upload(slot.layout.dtype, &slot.tensor.held, &shard, &self.devices[rank])?;
            Ok(Arc::new(buffer))
        };
        slot.ranks.iter().enumerate().map(shard).collect()
    }

    /// What a step reads for a slot.
    fn feed(&self, number: usize, fed: &Fed) -> Result<Shards> {
        let slot = &self.wiring.slots[number];
        let (tensor, layout) = (slot.tensor, &slot.layout);
        let bytes = match tensor.kind {
            Kind::Batch => {
                let (name, [start, limit]) =
                    tensor.rows.as_ref().ok_or_else(|| super::shards::unfit(tensor))?;
                let whole = (fed.tensor)(name).ok_or_else(|| {
                    Diagnostic::new("E061", format!("there is no batch for step {}", fed.step))
                        .at(crate::xla::manifest::FEEDS_FILE)
                        .expected(format!("{}/{name}", fed.step))
                        .help("export more with --set train.steps=N")
                })?;
                let row = layout.global_bytes() / (limit - start).max(1);
                let rows = match tensor.shape.is_empty() {
                    true => Some(&whole.bytes[..]),
                    false => whole.bytes.get(start * row..limit * row),
                };
                let rows = rows.filter(|rows| rows.len() == layout.global_bytes());
                let rows = rows.ok_or_else(|| misfit(name, layout.global_bytes(), whole.bytes.len()))?;
                return self.place(number, Some(rows));
            }
            Kind::LearningRate => layout.number(Number::Real(fed.rate)),
            Kind::Step => layout.number(Number::Whole(fed.step)),
            _ => layout.number(Number::Whole(self.manifest.seed)),
        };
        self.place(number, Some(&bytes))
    }

    /// The value of a slot on the devices of another one: from device to device where ranks have equal shards, through the
    /// host elsewhere.
    fn hand_over(&self, handover: &Handover) -> Result<Shards> {
        if !handover.is_direct {
            return self.place(handover.to, Some(&self.global(handover.from)?));
        }
        let (from, to) = (&self.wiring.slots[handover.from], &self.wiring.slots[handover.to]);
        let copy = |((buffer, source), target): ((&Arc<Buffer>, &usize), &usize)| match source == target {
            true => Ok(buffer.clone()),
            false => Ok(Arc::new(buffer.copy_to(&self.devices[*target])?)),
        };
        self.value(handover.from)?.iter().zip(from.ranks).zip(to.ranks).map(copy).collect()
    }

    /// The global value of a slot. Ranks of equal shards are read once.
    fn global(&self, slot: usize) -> Result<Vec<u8>> {
        let (shards, slot) = (self.value(slot)?, &self.wiring.slots[slot]);
        let mut global = vec![0; slot.layout.global_bytes()];
        let mut known = BTreeSet::new();
        for (place, buffer) in shards.iter().enumerate() {
            if known.insert(&slot.tensor.shards[place]) {
                slot.layout.put(&buffer.download()?, place, &mut global)?;
            }
        }
        Ok(global)
    }

    /// The global parameters and states, those in parts joined.
    ///
    /// # Errors
    /// What copying refuses.
    pub fn state(&self) -> Result<IndexMap<String, TensorData>> {
        let mut values = IndexMap::new();
        for (name, &slot) in &self.wiring.kept {
            let own = &self.wiring.slots[slot];
            let (dtype, shape, value) = (own.layout.dtype, &own.tensor.shape, self.global(slot)?);
            let Some(part) = self.manifest.pieces.iter().find(|part| part.part == *name) else {
                values.insert(name.to_string(), TensorData::new(dtype, shape.clone(), value));
                continue;
            };
            let all = self.manifest.pieces.iter().filter(|other| other.whole == part.whole);
            let mut whole = shape.clone();
            whole[part.dim] = all.map(|other| other.window[1]).max().unwrap_or(0);
            let zeros = || {
                TensorData::new(
                    dtype,
                    whole.clone(),
                    vec![0; whole.iter().product::<usize>() * dtype.size_bytes()],
                )
            };
            let joined: &mut TensorData = values.entry(part.whole.clone()).or_insert_with(zeros);
            let into = (&mut joined.bytes[..], &joined.shape[..]);
            put_part((&value, shape), into, part.dim, part.window[0], dtype.size_bytes());
        }
        Ok(values)
    }

    /// The most bytes that a step takes on a device, as XLA has planned its programs; `None` where it does not say.
    ///
    /// # Errors
    /// E482 if the plugin fails to count.
    pub fn planned_bytes(&self) -> Result<Option<u64>> {
        let size = |slot: usize| self.wiring.slots[slot].layout.held_bytes() as u64;
        let mut now: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let hold = |now: &mut BTreeMap<_, _>, slot: usize| {
            for &rank in self.wiring.slots[slot].ranks {
                now.insert((rank, slot), size(slot));
            }
        };
        self.wiring.kept.values().for_each(|&slot| hold(&mut now, slot));
        let mut most = 0;
        for (wired, program) in self.wiring.modules.iter().zip(&self.programs) {
            let Some(memory) = program.memory()? else { return Ok(None) };
            let arrived = wired.fetches.iter().map(|fetch| fetch.to);
            wired.fed.iter().copied().chain(arrived).for_each(|slot| hold(&mut now, slot));
            let own = memory.code + memory.temporary + memory.results.saturating_sub(memory.aliased);
            for &rank in &wired.module.ranks {
                let held: u64 = now.range((rank, 0)..(rank + 1, 0)).map(|(_, bytes)| bytes).sum();
                most = most.max(held + own);
            }
            for sink in &wired.sinks {
                if let Sink::Slot { slot, .. } = sink {
                    hold(&mut now, *slot);
                }
            }
            wired.sends.iter().for_each(|send| hold(&mut now, send.to));
            for &slot in &wired.dead {
                for &rank in self.wiring.slots[slot].ranks {
                    now.remove(&(rank, slot));
                }
            }
        }
        Ok(Some(most))
    }

    /// The most bytes that were in use at a time on any of the devices so far; `None` where they are not counted.
    ///
    /// # Errors
    /// E482 if a device fails to count.
    pub fn used_bytes(&self) -> Result<Option<u64>> {
        let mut most = None;
        for device in &self.devices[..rank_count(self.manifest)] {
            most = most.max(device.memory_stats()?.map(|memory| memory.peak.unwrap_or(memory.in_use)));
        }
        Ok(most)
    }
}

/// The number of devices that a step runs on.
pub fn rank_count(manifest: &Manifest) -> usize {
    let ranks = manifest.modules.iter().flat_map(|module| &module.ranks);
    ranks.max().map_or(1, |most| most + 1)
}

/// The program of each module, and how many there are and were compiled before. Modules of one text on the same ranks have
/// one. Several are compiled at a time.
fn compile(
    manifest: &Manifest,
    folder: &Path,
    client: &Client,
    devices: &[Device],
    cache: &Cache,
) -> Result<(Vec<Arc<Executable>>, (usize, usize))> {
    let mut wanted: IndexMap<(&str, &[usize]), Option<Result<(Executable, bool)>>> = IndexMap::new();
    for module in &manifest.modules {
        wanted.entry((&module.file, &module.ranks)).or_default();
    }
    let one = |(file, ranks): (&str, &[usize])| {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error.to_string()))?;
        let ids: Vec<i32> = ranks.iter().map(|&rank| devices[rank].id()).collect();
        let options = match manifest.form {
            Form::Uniform => CompileOptions::replicas(&ids),
            Form::Global => CompileOptions::partitions(&ids),
        };
        cache.compile(client, &text, &options).map_err(|error| match error.at {
            Some(_) => error,
            None => error.at(file),
        })
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(wanted.len());
    let queue = Mutex::new(wanted.iter_mut());
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((&key, done)) = take() {
                    *done = Some(one(key));
                }
            });
        }
    });
    let count = wanted.len();
    let mut known: BTreeMap<(&str, &[usize]), Arc<Executable>> = BTreeMap::new();
    let mut found = 0;
    for (key, done) in wanted {
        let (program, was_known) = done.unwrap_or_else(|| one(key))?;
        found += usize::from(was_known);
        known.insert(key, Arc::new(program));
    }
    let of_module = |module: &Module| known[&(module.file.as_str(), &module.ranks[..])].clone();
    Ok((manifest.modules.iter().map(of_module).collect(), (count, found)))
}

/// E061: a file of the step cannot be read.
pub fn unreadable(path: &Path, why: &str) -> Box<Diagnostic> {
    Diagnostic::new("E061", "a file of the exported step cannot be read")
        .at(path.display().to_string())
        .expected("a folder that `partita export --for xla` has written")
        .found(why)
}

/// E061: a value of another size.
fn misfit(name: &str, expected: usize, found: usize) -> Box<Diagnostic> {
    Diagnostic::new("E061", format!("the step cannot be run: `{name}` has another size than in the manifest"))
        .expected(format!("{expected} bytes"))
        .found(format!("{found} bytes"))
        .help("export the step again")
}
