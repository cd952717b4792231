//! The saved state of a training run: parameters and optimizer states as global tensors, as the [`StateLayout`] of the step
//! says.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use partita_base::{DType, Result};

use super::layout::{Part, Whole};
use super::{StateLayout, TensorLayout, TrainLoop, collect};
use crate::checkpoint::{self, Checkpoint, Opened, Region, Shard, TensorData};
use crate::sharded::{copy_shared, place};

impl TrainLoop {
    /// Where the state of the step is.
    pub fn state(&self) -> &StateLayout {
        &self.state
    }

    /// Name, type and global shape of every tensor in a checkpoint of this run.
    pub fn checkpoint_tensors(&self) -> Vec<(String, DType, Vec<usize>)> {
        self.state.types()
    }

    /// A global tensor from the shards that `local` returns for a rank and an input; `None` where it returns none.
    fn joined(
        &self,
        whole: &Whole,
        mut local: impl FnMut(usize, &str) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<TensorData>> {
        let mut joined: Option<TensorData> = None;
        for part in &whole.parts {
            let layout = &self.inputs[part.places[0]];
            let Some(value) = collect(layout, |rank| local(rank, &part.input))? else { continue };
            if part.shape == whole.shape {
                joined = Some(value);
                continue;
            }
            let size = whole.dtype.size_bytes();
            let joined = joined.get_or_insert_with(|| {
                let bytes = vec![0; whole.shape.iter().product::<usize>() * size];
                TensorData::new(whole.dtype, whole.shape.clone(), bytes)
            });
            place(size, &value.bytes, &part.shape, &mut joined.bytes, &whole.shape, &part.offset);
        }
        Ok(joined)
    }

    /// The global value of a parameter or state, as the last step left it, on every process.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn state_tensor(&self, name: &str) -> Result<TensorData> {
        let Some(whole) = self.state.get(name) else { return self.tensor(name) };
        let world = self.runner.world();
        let read = |rank: usize, input: &str| {
            world.broadcast(rank, || self.runner.read_input(rank, input)).map(Some)
        };
        Ok(self.joined(whole, read)?.expect("every shard came"))
    }

    /// Sets a parameter or state by its global value.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type.
    pub fn set_state_tensor(&mut self, name: &str, tensor: &TensorData) -> Result<()> {
        let Some(whole) = self.state.get(name).cloned() else { return self.set_tensor(name, tensor) };
        self.set_whole(name, &whole, tensor.dtype, &tensor.shape, &tensor.bytes)
    }

    /// Distributes a global tensor to its parts. E415 for another shape or type.
    pub(super) fn set_whole(
        &mut self,
        name: &str,
        whole: &Whole,
        dtype: DType,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<()> {
        let first = &self.inputs[whole.parts[0].places[0]];
        let outer = TensorLayout { name: name.to_string(), shape: whole.shape.clone(), ..first.clone() };
        outer.expect_type(dtype)?;
        outer.expect(shape, bytes.len())?;
        for Part { input, places, offset, shape: extents } in &whole.parts {
            if extents == shape {
                self.write(places, input, extents, bytes)?;
                continue;
            }
            let (size, zero) = (dtype.size_bytes(), vec![0; shape.len()]);
            let mut part = vec![0; extents.iter().product::<usize>() * size];
            copy_shared(size, (bytes, (&zero, shape)), (&mut part, (offset, extents)));
            self.write(places, input, extents, &part)?;
        }
        Ok(())
    }

    /// As [`TrainLoop::fill_tensor`], for a parameter or state by its global name: `fill` gets offsets and extents in the
    /// global tensor.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type, and those of `fill`.
    pub fn fill_state_tensor(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        fill: impl Fn(&[usize], &[usize], Vec<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(whole) = self.state.get(name).cloned() else {
            return self.fill_tensor(name, dtype, shape, fill);
        };
        let first = &self.inputs[whole.parts[0].places[0]];
        let outer = TensorLayout { name: name.to_string(), shape: whole.shape.clone(), ..first.clone() };
        outer.expect(shape, shape.iter().product::<usize>() * dtype.size_bytes())?;
        for part in &whole.parts {
            self.fill_tensor(&part.input, dtype, &part.shape, |offset, extents, targets| {
                let offset: Vec<usize> = offset.iter().zip(&part.offset).map(|(a, b)| a + b).collect();
                fill(&offset, extents, targets)
            })?;
        }
        Ok(())
    }

    /// Everything needed to continue on any mesh: global parameters and optimizer state, parts
    /// joined, and steps taken. The process of rank 0 gets it; the checkpoints of other processes
    /// have no tensors.
    ///
    /// # Errors
    /// E417 if a worker still runs after a failed step.
    pub fn checkpoint(&self, meta: BTreeMap<String, String>) -> Result<Checkpoint> {
        let world = self.runner.world();
        let mut tensors: IndexMap<String, TensorData> = IndexMap::new();
        for (name, whole) in self.state.tensors() {
            let read = |rank: usize, input: &str| world.gather(rank, || self.runner.read_input(rank, input));
            if let Some(value) = self.joined(whole, read)? {
                tensors.insert(name.clone(), value);
            }
        }
        Ok(Checkpoint { tensors, step: self.step, meta, beside: BTreeMap::new() })
    }

    /// The part of [`TrainLoop::checkpoint`] that ranks of this process hold. Of ranks with the same shard, the lowest one
    /// has it.
    ///
    /// # Errors
    /// E417 if a worker still runs after a failed step.
    pub fn shards(&self) -> Result<Vec<Shard>> {
        let mut shards = Vec::new();
        for (whole_name, whole, part) in self.parts() {
            let TensorLayout { name, dtype, shape, sharding, mesh, ranks } = &self.inputs[part.places[0]];
            let mut seen: Vec<Vec<usize>> = Vec::new();
            for (position, &rank) in ranks.iter().enumerate() {
                let extents = sharding.local_shape(mesh, shape, position);
                let offset = sharding.local_offset(mesh, shape, position);
                // Nonempty shards are identified by their offset.
                let is_empty = extents.contains(&0) && !shape.contains(&0);
                if is_empty || seen.contains(&offset) {
                    continue;
                }
                seen.push(offset.clone());
                if !self.runner.world().is_local(rank) {
                    continue;
                }
                let offset = within(part, &offset);
                let value = TensorData::new(*dtype, extents, self.runner.read_input(rank, name)?);
                let (name, shape) = (whole_name.clone(), whole.shape.clone());
                shards.push(Shard { name, shape, offset, part: value });
            }
        }
        Ok(shards)
    }

    /// Every part of every global tensor.
    fn parts(&self) -> impl Iterator<Item = (&String, &Whole, &Part)> {
        self.state.tensors().flat_map(|(name, whole)| whole.parts.iter().map(move |part| (name, whole, part)))
    }

    /// As [`TrainLoop::restore`], from a checkpoint on disk. Of one in shards, only the parts are read that overlap what
    /// local ranks hold.
    ///
    /// # Errors
    /// As [`TrainLoop::restore`]; E312 if what is read is damaged: parts that were read before are in place then.
    pub fn resume(&mut self, opened: &Opened) -> Result<()> {
        let Some(types) = opened.types() else { return self.restore(&opened.load()?) };
        checkpoint::compare_types(&self.checkpoint_tensors(), &types)?;
        let state = self.state.clone();
        for (name, part) in
            state.tensors().flat_map(|(name, whole)| whole.parts.iter().map(move |p| (name, p)))
        {
            for &place in &part.places {
                let TensorLayout { shape, sharding, mesh, ranks, .. } = &self.inputs[place];
                let world = self.runner.world();
                let mut regions: IndexMap<Region, Vec<usize>> = IndexMap::new();
                for (position, &rank) in ranks.iter().enumerate().filter(|(_, rank)| world.is_local(**rank)) {
                    let offset = within(part, &sharding.local_offset(mesh, shape, position));
                    let extents = sharding.local_shape(mesh, shape, position);
                    regions.entry((offset, extents)).or_default().push(rank);
                }
                let (regions, ranks): (Vec<Region>, Vec<Vec<usize>>) = regions.into_iter().unzip();
                let read = opened.regions(name, &regions)?;
                for (bytes, ranks) in read.iter().zip(&ranks) {
                    for &rank in ranks {
                        self.runner.write_input(rank, &part.input, bytes)?;
                    }
                }
            }
        }
        self.step = opened.step();
        Ok(())
    }

    /// Continues from a checkpoint made on any mesh. Only the step's own state is replaced; the
    /// caller handles the seed and the data position.
    ///
    /// # Errors
    /// E314 with a table if names, types or shapes differ.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint::compare(&self.checkpoint_tensors(), checkpoint)?;
        let state = self.state.clone();
        for (name, whole) in state.tensors() {
            let TensorData { dtype, shape, bytes } = &checkpoint.tensors[name];
            self.set_whole(name, whole, *dtype, shape, bytes)?;
        }
        self.step = checkpoint.step;
        Ok(())
    }
}

/// An offset in the global tensor from one in a part of it.
fn within(part: &Part, offset: &[usize]) -> Vec<usize> {
    offset.iter().zip(&part.offset).map(|(own, start)| own + start).collect()
}
