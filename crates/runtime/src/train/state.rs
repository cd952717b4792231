//! The saved state of a training run: parameters and optimizer state as global tensors, with parts
//! joined.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_ir::port::{state_name, state_of};

use super::{TensorLayout, TrainLoop, collect};
use crate::checkpoint::{self, Checkpoint, Opened, Region, Shard, TensorData};
use crate::sharded::Piece;

/// A state tensor's place in a checkpoint.
struct Home {
    name: String,
    shape: Vec<usize>,
    /// Dimension, start and end of the part.
    piece: Option<(usize, usize, usize)>,
}

impl TrainLoop {
    /// The position of a state tensor in a checkpoint: under its own name, or as a part of a full
    /// tensor.
    fn home(&self, layout: &TensorLayout) -> Home {
        let (slot, parameter) = match state_of(&layout.name) {
            Some((slot, parameter)) => (Some(slot), parameter),
            None => (None, layout.name.as_str()),
        };
        for pieces in &self.pieces {
            let Some((_, start, limit)) = pieces.limits.iter().find(|(piece, ..)| piece == parameter) else {
                continue;
            };
            // State of another shape than its parameter cannot be joined along the parameter's dimension.
            if layout.shape.get(pieces.dim) == Some(&(limit - start)) {
                let mut shape = layout.shape.clone();
                shape[pieces.dim] = pieces.extent();
                let name = slot.map_or_else(|| pieces.name.clone(), |slot| state_name(slot, &pieces.name));
                return Home { name, shape, piece: Some((pieces.dim, *start, *limit)) };
            }
        }
        Home { name: layout.name.clone(), shape: layout.shape.clone(), piece: None }
    }

    /// The first layout of every state tensor and its position in a checkpoint.
    fn homes(&self) -> Vec<(usize, Home)> {
        let names = self.state_names();
        let place = |name: &&str| {
            let first =
                self.inputs.iter().position(|layout| layout.name == **name).expect("a name of a layout");
            (first, self.home(&self.inputs[first]))
        };
        names.iter().map(place).collect()
    }

    /// Name, type and global shape of every tensor in a checkpoint of this run.
    pub fn checkpoint_tensors(&self) -> Vec<(String, DType, Vec<usize>)> {
        let mut tensors: IndexMap<String, (DType, Vec<usize>)> = IndexMap::new();
        for (layout, home) in self.homes() {
            tensors.insert(home.name, (self.inputs[layout].dtype, home.shape));
        }
        tensors.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect()
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
        for (index, home) in self.homes() {
            let layout = &self.inputs[index];
            let read = |rank: usize| world.gather(rank, || self.runner.read_input(rank, &layout.name));
            let Some(value) = collect(layout, read)? else { continue };
            let Some((dim, start, limit)) = home.piece else {
                tensors.insert(home.name, value);
                continue;
            };
            let size = layout.dtype.size_bytes();
            let whole = tensors.entry(home.name).or_insert_with(|| {
                let bytes = vec![0; home.shape.iter().product::<usize>() * size];
                TensorData::new(layout.dtype, home.shape.clone(), bytes)
            });
            Piece { shape: &home.shape, dim, start, limit }.put(size, &value.bytes, &mut whole.bytes);
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
        for (index, home) in self.homes() {
            let TensorLayout { name, dtype, shape, sharding, mesh, ranks } = &self.inputs[index];
            let mut seen: Vec<Vec<usize>> = Vec::new();
            for (position, &rank) in ranks.iter().enumerate() {
                let extents = sharding.local_shape(mesh, shape, position);
                let mut offset = sharding.local_offset(mesh, shape, position);
                // Nonempty shards are identified by their offset.
                let is_empty = extents.contains(&0) && !shape.contains(&0);
                if is_empty || seen.contains(&offset) {
                    continue;
                }
                seen.push(offset.clone());
                if !self.runner.world().is_local(rank) {
                    continue;
                }
                if let Some((dim, start, _)) = home.piece {
                    offset[dim] += start;
                }
                let part = TensorData::new(*dtype, extents, self.runner.read_input(rank, name)?);
                shards.push(Shard { name: home.name.clone(), shape: home.shape.clone(), offset, part });
            }
        }
        Ok(shards)
    }

    /// As [`TrainLoop::restore`], from a checkpoint on disk. Of one in shards, only the parts are read that overlap what
    /// local ranks hold.
    ///
    /// # Errors
    /// As [`TrainLoop::restore`]; E312 if what is read is damaged: parts that were read before are in place then.
    pub fn resume(&mut self, opened: &Opened) -> Result<()> {
        let Some(types) = opened.types() else { return self.restore(&opened.load()?) };
        checkpoint::compare_types(&self.checkpoint_tensors(), &types)?;
        for (index, home) in self.homes() {
            let name = self.inputs[index].name.clone();
            for place in self.inputs_named(&name) {
                let TensorLayout { shape, sharding, mesh, ranks, .. } = &self.inputs[place];
                let world = self.runner.world();
                let mut regions: IndexMap<Region, Vec<usize>> = IndexMap::new();
                for (position, &rank) in ranks.iter().enumerate().filter(|(_, rank)| world.is_local(**rank)) {
                    let mut offset = sharding.local_offset(mesh, shape, position);
                    if let Some((dim, start, _)) = home.piece {
                        offset[dim] += start;
                    }
                    let extents = sharding.local_shape(mesh, shape, position);
                    regions.entry((offset, extents)).or_default().push(rank);
                }
                let (regions, ranks): (Vec<Region>, Vec<Vec<usize>>) = regions.into_iter().unzip();
                let read = opened.regions(&home.name, &regions)?;
                for (bytes, ranks) in read.iter().zip(&ranks) {
                    for &rank in ranks {
                        self.runner.write_input(rank, &name, bytes)?;
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
        for (index, home) in self.homes() {
            let (name, dtype, shape) = {
                let layout = &self.inputs[index];
                (layout.name.clone(), layout.dtype, layout.shape.clone())
            };
            let whole = &checkpoint.tensors[&home.name];
            let places = self.inputs_named(&name);
            match home.piece {
                None => self.write(&places, &name, &shape, &whole.bytes)?,
                Some((dim, start, limit)) => {
                    let size = dtype.size_bytes();
                    let mut piece = vec![0; shape.iter().product::<usize>() * size];
                    Piece { shape: &home.shape, dim, start, limit }.take(size, &whole.bytes, &mut piece);
                    self.write(&places, &name, &shape, &piece)?;
                }
            }
        }
        self.step = checkpoint.step;
        Ok(())
    }
}
