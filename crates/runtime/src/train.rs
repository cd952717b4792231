//! The training loop over a [`Runner`]: global batches in, reports out, global parameters and optimizer state
//! saved and restored whatever the mesh.
//!
//! It knows names, shapes and layouts as plain data; which model, optimizer or plan they come from it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::{Pieces, Role};
use partita_kernels::Scalar;
use partita_mesh::{Mesh, Sharding};

use crate::checkpoint::{self, Checkpoint, OPTIMIZER_PREFIX, TensorData};
use crate::executor::Runner;
use crate::sharded::{self, Piece};

/// A global tensor and where its shards live. A name may occur several times, once per mesh that has a copy.
#[derive(Clone, Debug)]
pub struct TensorLayout {
    /// The input's or output's name in the programs.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<usize>,
    /// How it lies on the mesh; not partial.
    pub sharding: Sharding,
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// The rank that plays each position of the mesh.
    pub ranks: Vec<usize>,
}

impl TensorLayout {
    /// E415 unless a tensor of this shape and size has the layout's.
    fn expect(&self, shape: &[usize], bytes: usize) -> Result<()> {
        let expected = self.shape.iter().product::<usize>() * self.dtype.size_bytes();
        if self.shape == shape && bytes == expected {
            return Ok(());
        }
        Err(Diagnostic::new("E415", format!("input `{}` has another shape", self.name))
            .expected(format!("{}{:?}, {expected} bytes", self.dtype, self.shape))
            .found(format!("{shape:?}, {bytes} bytes")))
    }
}

/// One global tensor of a batch; its rows are along dimension 0.
#[derive(Clone, Copy, Debug)]
pub struct BatchTensor<'a> {
    /// The input's name; with microbatches the inputs are `<name>.micro0`, `<name>.micro1`, ...
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: &'a [usize],
    /// Dense elements of the input's type.
    pub bytes: &'a [u8],
}

/// What one step came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// The output `loss`.
    pub loss: f64,
    /// The output `grad_norm`, where there is one.
    pub grad_norm: Option<f64>,
    /// Elements of the batch's integer tensor `tokens` (or else rows of its first tensor) per second of this step.
    pub tokens_per_s: f64,
    /// Planned bytes of the largest arena.
    pub peak_bytes_planned: usize,
    /// Bytes touched so far of the arena that was touched most.
    pub peak_bytes_used: usize,
}

/// Inputs that the loop feeds itself: scalars of the step.
const OWN_INPUTS: [&str; 3] = ["learning_rate", "step", "seed"];

/// A tensor that every batch must have.
#[derive(Clone, Debug)]
struct BatchInput {
    /// As the caller knows it: without the number of a microbatch.
    name: String,
    dtype: DType,
    /// Of the whole batch.
    shape: Vec<usize>,
    /// In order of the rows: the input of a microbatch, how many rows it has, and its layouts.
    parts: Vec<(String, usize, Vec<usize>)>,
}

impl std::fmt::Display for BatchInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.dtype, self.shape)
    }
}

/// Trains, step by step.
pub struct TrainLoop {
    runner: Runner,
    inputs: Vec<TensorLayout>,
    /// What a batch consists of, in input order.
    batch: Vec<BatchInput>,
    outputs: Vec<TensorLayout>,
    pieces: Vec<Pieces>,
    /// Random seed, fed as the input `seed` where there is one.
    pub seed: u64,
    step: u64,
    /// Whether the inputs of the next step are written.
    is_fed: bool,
}

impl TrainLoop {
    /// A loop over a runner whose inputs and outputs lie as told. Parameters and state are zeros until
    /// [`TrainLoop::set_tensor`] or [`TrainLoop::restore`].
    ///
    /// # Errors
    /// E414 for a layout of an input that its ranks do not have, E415 where a rank's shard has another shape than
    /// the layout says.
    pub fn new(
        runner: Runner,
        inputs: Vec<TensorLayout>,
        outputs: Vec<TensorLayout>,
        pieces: Vec<Pieces>,
        seed: u64,
    ) -> Result<TrainLoop> {
        for layout in &inputs {
            for (position, &rank) in layout.ranks.iter().enumerate() {
                let ty = runner.input_type(rank, &layout.name)?;
                let shape = layout.sharding.local_shape(&layout.mesh, &layout.shape, position);
                if ty.shape != shape || ty.dtype != layout.dtype {
                    return Err(Diagnostic::new(
                        "E415",
                        format!("the layout of `{}` is not that of the program", layout.name),
                    )
                    .at(format!("rank {rank}"))
                    .expected(ty.to_string())
                    .found(format!("{}{shape:?}", layout.dtype)));
                }
            }
        }
        let mut train =
            TrainLoop { runner, inputs, batch: Vec::new(), outputs, pieces, seed, step: 0, is_fed: false };
        train.batch = train.batch_inputs();
        Ok(train)
    }

    /// What a batch consists of: every input that is no state and that the loop does not feed itself. Inputs
    /// `<name>.micro0`, `<name>.micro1`, .. are the rows of one tensor.
    fn batch_inputs(&self) -> Vec<BatchInput> {
        let state: BTreeSet<&str> = self.state_names().into_iter().collect();
        let mut parts: IndexMap<&str, Vec<usize>> = IndexMap::new();
        for (index, layout) in self.inputs.iter().enumerate() {
            let name = layout.name.as_str();
            if !state.contains(name) && !OWN_INPUTS.contains(&name) {
                parts.entry(name).or_default().push(index);
            }
        }
        let mut whole: IndexMap<&str, BatchInput> = IndexMap::new();
        for (&part, layouts) in &parts {
            let layout = &self.inputs[layouts[0]];
            let name = match part.rsplit_once(".micro") {
                Some((name, number)) if number.parse::<usize>().is_ok() => name,
                _ => part,
            };
            let rows = layout.shape.first().copied().unwrap_or(1);
            let part = (part.to_string(), rows, layouts.clone());
            let input = whole.entry(name).or_insert_with(|| BatchInput {
                name: name.to_string(),
                dtype: layout.dtype,
                shape: layout.shape.clone(),
                parts: Vec::new(),
            });
            if !input.parts.is_empty() {
                input.shape[0] += rows;
            }
            input.parts.push(part);
        }
        whole.into_values().collect()
    }

    /// The runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// The runner, to change.
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Steps taken.
    pub fn steps_taken(&self) -> u64 {
        self.step
    }

    /// Runs one step on a global batch: [`TrainLoop::feed`], then [`TrainLoop::run`].
    ///
    /// # Errors
    /// What these say.
    pub fn step(&mut self, batch: &[BatchTensor<'_>], learning_rate: f64) -> Result<StepReport> {
        let begin = Instant::now();
        self.feed(batch, learning_rate)?;
        let (loss, grad_norm) = self.run()?;
        let is_tokens = |t: &&BatchTensor<'_>| t.name == "tokens";
        let rows = batch.first().and_then(|t| t.shape.first().copied());
        let tokens = batch.iter().find(is_tokens).map(|t| t.shape.iter().product()).or(rows).unwrap_or(0);
        Ok(StepReport {
            step: self.step,
            loss,
            grad_norm,
            tokens_per_s: tokens as f64 / begin.elapsed().as_secs_f64().max(1e-9),
            peak_bytes_planned: self.runner.planned_bytes().into_iter().max().unwrap_or(0),
            peak_bytes_used: self.runner.peak_bytes_used().into_iter().max().unwrap_or(0),
        })
    }

    /// Writes what the next step runs on: a global batch, which has every input of the step that is no parameter and no
    /// state, and the inputs `learning_rate`, `step` (from 1) and `seed` where they exist. A batch may have these three
    /// too; they are passed over.
    ///
    /// # Errors
    /// E414, E415 and E430 where the batch does not fit the inputs, E431 for a learning rate that is no finite number of at
    /// least 0. Nothing is changed then.
    pub fn feed(&mut self, batch: &[BatchTensor<'_>], learning_rate: f64) -> Result<()> {
        self.check_batch(batch)?;
        self.check_rate(learning_rate)?;
        for tensor in batch {
            self.feed_tensor(tensor)?;
        }
        self.feed_scalars(self.step + 1, learning_rate)?;
        self.is_fed = true;
        Ok(())
    }

    /// Runs the step that was fed; returns its outputs `loss` and, where there is one, `grad_norm`.
    ///
    /// # Errors
    /// E430 where no batch was fed since the last step. What [`Runner::step`] says, with the number of the step.
    pub fn run(&mut self) -> Result<(f64, Option<f64>)> {
        if !std::mem::take(&mut self.is_fed) {
            return Err(Diagnostic::new("E430", "a step was not fed").help("call `feed` before each `run`"));
        }
        let step = self.step + 1;
        self.runner.step().map_err(|error| error.note(format!("at step {step}")))?;
        self.step = step;
        let loss = self.number("loss")?.ok_or_else(|| {
            Diagnostic::new("E414", "no rank has an output `loss`")
                .help("the step graph must name its loss so")
        })?;
        Ok((loss, self.number("grad_norm")?))
    }

    fn batch_input(&self, name: &str) -> Option<&BatchInput> {
        self.batch.iter().find(|input| input.name == name)
    }

    /// Whether the loop feeds an input of this name itself.
    fn is_own(&self, name: &str) -> bool {
        OWN_INPUTS.contains(&name) && self.inputs.iter().any(|layout| layout.name == name)
    }

    /// E414 for a tensor that the step does not want, E415 for one of another shape or type, E430 for one that is missing.
    fn check_batch(&self, batch: &[BatchTensor<'_>]) -> Result<()> {
        let wanted = || {
            let inputs: Vec<String> = self.batch.iter().map(BatchInput::to_string).collect();
            if inputs.is_empty() { "no tensors".to_string() } else { inputs.join(", ") }
        };
        for tensor in batch.iter().filter(|tensor| !self.is_own(tensor.name)) {
            let input = self.batch_input(tensor.name).ok_or_else(|| self.unwanted(tensor.name, wanted()))?;
            let bytes = input.shape.iter().product::<usize>() * input.dtype.size_bytes();
            if (tensor.dtype, tensor.shape) != (input.dtype, input.shape.as_slice())
                || tensor.bytes.len() != bytes
            {
                let what = if tensor.dtype == input.dtype { "shape" } else { "element type" };
                return Err(Diagnostic::new("E415", format!("input `{}` has another {what}", tensor.name))
                    .expected(format!("{}{:?}, {bytes} bytes", input.dtype, input.shape))
                    .found(format!("{}{:?}, {} bytes", tensor.dtype, tensor.shape, tensor.bytes.len())));
            }
        }
        let is_missing = |input: &&BatchInput| !batch.iter().any(|tensor| tensor.name == input.name);
        let missing: Vec<String> =
            self.batch.iter().filter(is_missing).map(|input| format!("`{}`", input.name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let found: Vec<&str> = batch.iter().map(|tensor| tensor.name).collect();
        Err(Diagnostic::new("E430", format!("the batch has no {}", missing.join(", no ")))
            .expected(wanted())
            .found(if found.is_empty() { "an empty batch".to_string() } else { found.join(", ") })
            .help("give the step every tensor it reads; parameters and states keep their values"))
    }

    /// E414: a tensor of a batch that is no input, or one that no batch sets.
    fn unwanted(&self, name: &str, wanted: String) -> Box<Diagnostic> {
        if self.inputs.iter().any(|layout| layout.name == name) {
            return Diagnostic::new("E414", format!("`{name}` does not belong to a batch"))
                .expected(wanted)
                .help("the step keeps its parameters and states itself; they are set by `set_tensor`");
        }
        let error = Diagnostic::new("E414", format!("the step has no input `{name}`")).expected(wanted);
        match did_you_mean(name, self.batch.iter().map(|input| input.name.as_str())) {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// E431 unless a rate is finite and at least 0, also as the step computes with it.
    fn check_rate(&self, learning_rate: f64) -> Result<()> {
        let layout = self.inputs.iter().find(|layout| layout.name == "learning_rate");
        let fed = layout.map_or(learning_rate, |l| Scalar::from_f64(l.dtype, learning_rate).to_f64());
        if fed.is_finite() && learning_rate >= 0.0 {
            return Ok(());
        }
        let within = layout.map_or(String::new(), |layout| format!(" within the range of {}", layout.dtype));
        Err(Diagnostic::new("E431", "the learning rate is out of range")
            .expected(format!("a finite number of at least 0{within}"))
            .found(learning_rate.to_string()))
    }

    /// Writes one tensor of a batch, which fits, to the input of its name or to those of its microbatches.
    fn feed_tensor(&mut self, tensor: &BatchTensor<'_>) -> Result<()> {
        let Some(input) = self.batch_input(tensor.name) else { return Ok(()) };
        let parts = input.parts.clone();
        let row_bytes =
            tensor.bytes.len().checked_div(tensor.shape.first().copied().unwrap_or(1)).unwrap_or(0);
        let mut start = 0;
        for (name, rows, places) in parts {
            let limit = start + rows * row_bytes;
            let shape = self.inputs[places[0]].shape.clone();
            self.write(&places, &name, &shape, &tensor.bytes[start..limit])?;
            start = limit;
        }
        Ok(())
    }

    fn feed_scalars(&mut self, step: u64, learning_rate: f64) -> Result<()> {
        let integer = |dtype: DType, value: u64| match dtype {
            DType::U64 => Scalar::new(value),
            DType::I64 => Scalar::new(value as i64),
            _ => Scalar::from_f64(dtype, value as f64),
        };
        for name in OWN_INPUTS {
            let places = self.inputs_named(name);
            let Some(&first) = places.first() else { continue };
            let dtype = self.inputs[first].dtype;
            let value = match name {
                "learning_rate" => Scalar::from_f64(dtype, learning_rate),
                "step" => integer(dtype, step),
                _ => integer(dtype, self.seed),
            };
            self.write(&places, name, &[], value.bytes())?;
        }
        Ok(())
    }

    fn inputs_named(&self, name: &str) -> Vec<usize> {
        (0..self.inputs.len()).filter(|&i| self.inputs[i].name == name).collect()
    }

    fn unknown_input(&self, name: &str) -> Box<Diagnostic> {
        let error = Diagnostic::new("E414", format!("the step has no input `{name}`"));
        match did_you_mean(name, self.inputs.iter().map(|layout| layout.name.as_str())) {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// Distributes a global tensor to all copies of an input.
    fn write(&mut self, places: &[usize], name: &str, shape: &[usize], bytes: &[u8]) -> Result<()> {
        for &place in places {
            let layout = &self.inputs[place];
            layout.expect(shape, bytes.len())?;
            for (position, &rank) in layout.ranks.iter().enumerate() {
                let TensorLayout { dtype, shape, sharding, mesh, .. } = layout;
                let local = sharded::scatter(bytes, *dtype, shape, sharding, mesh, position);
                self.runner.write_input(rank, name, &local)?;
            }
        }
        Ok(())
    }

    /// A scalar output of the lowest rank that has it.
    fn number(&self, name: &str) -> Result<Option<f64>> {
        let rank = (0..self.runner.rank_count()).find(|&rank| self.runner.has_output(rank, name));
        rank.map(|rank| self.runner.read_number(rank, name)).transpose()
    }

    /// Writes a parameter or any other input by its name in the programs.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type.
    pub fn set_tensor(&mut self, name: &str, tensor: &TensorData) -> Result<()> {
        let places = self.places(name, tensor.dtype)?;
        self.write(&places, name, &tensor.shape, &tensor.bytes)
    }

    /// The layouts of an input that must be there and of this type.
    fn places(&self, name: &str, dtype: DType) -> Result<Vec<usize>> {
        let places = self.inputs_named(name);
        let Some(&first) = places.first() else { return Err(self.unknown_input(name)) };
        if self.inputs[first].dtype != dtype {
            return Err(Diagnostic::new("E415", format!("input `{name}` has another element type"))
                .expected(self.inputs[first].dtype.to_string())
                .found(dtype.to_string()));
        }
        Ok(places)
    }

    /// As [`TrainLoop::set_tensor`], by a function that writes pieces of the tensor where they live: it gets a piece's
    /// offset, its extent and the bytes of every rank that holds it.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type.
    pub fn fill_tensor(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        fill: impl Fn(&[usize], &[usize], Vec<&mut [u8]>),
    ) -> Result<()> {
        for place in self.places(name, dtype)? {
            let layout = &self.inputs[place];
            layout.expect(shape, shape.iter().product::<usize>() * dtype.size_bytes())?;
            let TensorLayout { sharding, mesh, ranks, .. } = layout;
            let mut pieces: IndexMap<(Vec<usize>, Vec<usize>), Vec<usize>> = IndexMap::new();
            for (position, &rank) in ranks.iter().enumerate() {
                let offset = sharding.local_offset(mesh, shape, position);
                let extent = sharding.local_shape(mesh, shape, position);
                pieces.entry((offset, extent)).or_default().push(rank);
            }
            for ((offset, extent), ranks) in &pieces {
                self.runner.fill_inputs(ranks, name, |targets| fill(offset, extent, targets))?;
            }
        }
        Ok(())
    }

    /// The global value of a parameter or other input, as the last step left it.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn tensor(&self, name: &str) -> Result<TensorData> {
        let layout =
            self.inputs.iter().find(|layout| layout.name == name).ok_or_else(|| self.unknown_input(name))?;
        collect(layout, |rank| self.runner.read_input(rank, name))
    }

    /// The global value of an output of the last step.
    ///
    /// # Errors
    /// E414 for an unknown name, E419 where ranks hold only parts that are yet to be combined.
    pub fn output(&self, name: &str) -> Result<TensorData> {
        let layout = self.outputs.iter().find(|layout| layout.name == name).ok_or_else(|| {
            let error = Diagnostic::new("E414", format!("the step has no output `{name}`"));
            match did_you_mean(name, self.outputs.iter().map(|layout| layout.name.as_str())) {
                Some(help) => error.help(help),
                None => error,
            }
        })?;
        collect(layout, |rank| self.runner.read_output(rank, name))
    }

    /// The names of parameters and optimizer state, in input order, without repetition.
    pub fn state_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for layout in &self.inputs {
            let Some(&rank) = layout.ranks.first() else { continue };
            let program = &self.runner.programs().programs[rank];
            let position = program.inputs.iter().position(|port| port.name == layout.name);
            let is_state = position.is_some_and(|position| {
                matches!(program.inputs[position].role, Role::Param | Role::StateOf(_))
                    || program.outputs.iter().any(|port| port.replaces == Some(position))
            });
            if is_state && !names.contains(&layout.name.as_str()) {
                names.push(&layout.name);
            }
        }
        names
    }

    /// Where a state tensor goes in a checkpoint: under its own name, or as a piece of a whole.
    fn home(&self, layout: &TensorLayout) -> Home {
        // `optimizer.<slot>.<parameter>`: a slot has no dot.
        let (prefix, parameter) =
            match layout.name.strip_prefix(OPTIMIZER_PREFIX).and_then(|rest| rest.split_once('.')) {
                Some((slot, parameter)) => (format!("{OPTIMIZER_PREFIX}{slot}."), parameter),
                None => (String::new(), layout.name.as_str()),
            };
        for pieces in &self.pieces {
            let Some((_, start, limit)) = pieces.limits.iter().find(|(piece, ..)| piece == parameter) else {
                continue;
            };
            // State of another shape than its parameter cannot be joined along the parameter's dimension.
            if layout.shape.get(pieces.dim) == Some(&(limit - start)) {
                let total = pieces.limits.iter().map(|(_, _, limit)| *limit).max().unwrap_or(0);
                let mut shape = layout.shape.clone();
                shape[pieces.dim] = total;
                let name = format!("{prefix}{}", pieces.name);
                return Home { name, shape, piece: Some((pieces.dim, *start, *limit)) };
            }
        }
        Home { name: layout.name.clone(), shape: layout.shape.clone(), piece: None }
    }

    /// The first layout of every state tensor and its place in a checkpoint.
    fn homes(&self) -> Vec<(usize, Home)> {
        let names = self.state_names();
        let place = |name: &&str| {
            let first =
                self.inputs.iter().position(|layout| layout.name == **name).expect("a name of a layout");
            (first, self.home(&self.inputs[first]))
        };
        names.iter().map(place).collect()
    }

    /// Name, type and global shape of every tensor a checkpoint of this run holds.
    pub fn checkpoint_tensors(&self) -> Vec<(String, DType, Vec<usize>)> {
        let mut tensors: IndexMap<String, (DType, Vec<usize>)> = IndexMap::new();
        for (layout, home) in self.homes() {
            tensors.insert(home.name, (self.inputs[layout].dtype, home.shape));
        }
        tensors.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect()
    }

    /// Everything needed to go on, on any mesh: global parameters and optimizer state, pieces joined, and steps taken.
    ///
    /// # Errors
    /// E417 where the last step failed and a worker never came back.
    pub fn checkpoint(&self, meta: BTreeMap<String, String>) -> Result<Checkpoint> {
        let mut tensors: IndexMap<String, TensorData> = IndexMap::new();
        for (index, home) in self.homes() {
            let layout = &self.inputs[index];
            let value = collect(layout, |rank| self.runner.read_input(rank, &layout.name))?;
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
        Ok(Checkpoint { tensors, step: self.step, meta })
    }

    /// Goes on from a checkpoint, whatever mesh it was made on. Only what the step computes with is replaced; the
    /// seed and the data position are the caller's.
    ///
    /// # Errors
    /// E314 with a table where names, types or shapes differ.
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

/// A state tensor's place in a checkpoint.
struct Home {
    name: String,
    shape: Vec<usize>,
    /// Dimension, start and end of the piece.
    piece: Option<(usize, usize, usize)>,
}

/// The global tensor from its shards.
fn collect(layout: &TensorLayout, mut local: impl FnMut(usize) -> Result<Vec<u8>>) -> Result<TensorData> {
    let TensorLayout { name, dtype, shape, sharding, mesh, ranks } = layout;
    if sharding.is_partial() {
        return Err(Diagnostic::new(
            "E419",
            format!("`{name}` is spread over ranks as parts yet to be combined"),
        )
        .found(sharding.display(mesh)));
    }
    let bytes = sharded::gather(*dtype, shape, sharding, mesh, |position| local(ranks[position]))?;
    Ok(TensorData::new(*dtype, shape.clone(), bytes))
}
