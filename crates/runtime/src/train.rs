//! The training loop over a [`Runner`]: takes global batches, returns reports, and saves and
//! restores global parameters and optimizer state on any mesh.
//!
//! It knows names, shapes and layouts as plain data, but no model, optimizer or plan. If the world
//! has several processes, each has its own loop, and all call the same methods in the same order: a
//! method writes to the local ranks, and reads from others over the control channel.

mod causes;
mod layout;
mod lent;
mod outputs;
mod report;
mod state;

use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::port::TOKENS;
use partita_ir::{InputKind, OutputKind, Pieces, Role};
use partita_kernels::Scalar;
use partita_mesh::{Mesh, Sharding};
use partita_program::Program;

use crate::checkpoint::TensorData;
use crate::executor::Runner;
use crate::sharded;
pub use layout::StateLayout;
pub use report::{Scaling, StepReport};

/// A global tensor and its layout. A name may occur several times, once per mesh that has a copy.
#[derive(Clone, Debug)]
pub struct TensorLayout {
    /// The input's or output's name in the programs.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<usize>,
    /// Its sharding; not partial.
    pub sharding: Sharding,
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// The rank at each position of the mesh.
    pub ranks: Vec<usize>,
}

impl TensorLayout {
    /// E415 unless a tensor has the element type of the layout.
    fn expect_type(&self, dtype: DType) -> Result<()> {
        if self.dtype == dtype {
            return Ok(());
        }
        Err(Diagnostic::new("E415", format!("input `{}` has another element type", self.name))
            .expected(self.dtype.to_string())
            .found(dtype.to_string()))
    }

    /// E415 unless a tensor's shape and size are those of the layout.
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
    /// The input's name, even if the step has one input per microbatch.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: &'a [usize],
    /// Dense elements of the input's type.
    pub bytes: &'a [u8],
}

/// A required tensor of every batch.
#[derive(Clone, Debug)]
struct BatchInput {
    /// The caller's name: without the number of a microbatch.
    name: String,
    dtype: DType,
    /// The shape of the whole batch.
    shape: Vec<usize>,
    /// In row order: the input of a microbatch, its number of rows, and its layouts.
    parts: Vec<(String, usize, Vec<usize>)>,
    /// Whether it is given after the forward pass.
    is_cotangent: bool,
}

impl std::fmt::Display for BatchInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.dtype, self.shape)
    }
}

/// Trains step by step.
pub struct TrainLoop {
    runner: Runner,
    inputs: Vec<TensorLayout>,
    /// The kind of each layout's input.
    kinds: Vec<InputKind>,
    /// The tensors of a batch, in input order.
    batch: Vec<BatchInput>,
    outputs: Vec<TensorLayout>,
    pieces: Vec<Pieces>,
    state: StateLayout,
    /// Random seed, fed as the input `seed` if there is one.
    pub seed: u64,
    step: u64,
    /// Whether the inputs of the next step are written.
    is_fed: bool,
}

impl TrainLoop {
    /// A loop over a runner with these layouts of inputs and outputs. Parameters and state are
    /// zeros until [`TrainLoop::set_tensor`] or [`TrainLoop::restore`]. That the state can be saved and
    /// read back is certain from here on: see [`StateLayout`].
    ///
    /// # Errors
    /// E414 for a layout of an input that its ranks do not have, E415 if a rank's shard has another
    /// shape than the layout says; those of [`StateLayout::new`].
    pub fn new(
        runner: Runner,
        inputs: Vec<TensorLayout>,
        outputs: Vec<TensorLayout>,
        pieces: Vec<Pieces>,
        seed: u64,
    ) -> Result<TrainLoop> {
        let mut kinds = Vec::with_capacity(inputs.len());
        for layout in &inputs {
            kinds.push(kind(&runner, layout));
            for (position, &rank) in layout.ranks.iter().enumerate() {
                let ty = runner.input_type(rank, &layout.name)?;
                let shape = layout.sharding.local_shape(&layout.mesh, &layout.shape, position);
                if ty.shape != shape || ty.dtype != layout.dtype {
                    return Err(Diagnostic::new(
                        "E415",
                        format!("the layout of `{}` does not match the program", layout.name),
                    )
                    .at(format!("rank {rank}"))
                    .expected(ty.to_string())
                    .found(format!("{}{shape:?}", layout.dtype)));
                }
            }
        }
        let state = StateLayout::new(&inputs, &kinds, &pieces)?;
        let mut train = TrainLoop {
            runner,
            inputs,
            kinds,
            batch: Vec::new(),
            outputs,
            pieces,
            state,
            seed,
            step: 0,
            is_fed: false,
        };
        train.batch = train.batch_inputs();
        Ok(train)
    }

    /// The tensors of a batch: every input that is no state and that the loop does not feed itself.
    /// The inputs of microbatches are the rows of one tensor.
    fn batch_inputs(&self) -> Vec<BatchInput> {
        // Several layouts of one name are copies on several meshes.
        let mut parts: IndexMap<&str, (&str, Vec<usize>)> = IndexMap::new();
        for (index, (layout, kind)) in self.inputs.iter().zip(&self.kinds).enumerate() {
            let whole = match kind {
                InputKind::Batch { name, .. } => name,
                InputKind::Cotangent(_) => &layout.name,
                _ => continue,
            };
            parts.entry(&layout.name).or_insert_with(|| (whole, Vec::new())).1.push(index);
        }
        let mut whole: IndexMap<&str, BatchInput> = IndexMap::new();
        for (&part, (name, layouts)) in &parts {
            let layout = &self.inputs[layouts[0]];
            let rows = layout.shape.first().copied().unwrap_or(1);
            let part = (part.to_string(), rows, layouts.clone());
            let input = whole.entry(name).or_insert_with(|| BatchInput {
                name: name.to_string(),
                dtype: layout.dtype,
                shape: layout.shape.clone(),
                parts: Vec::new(),
                is_cotangent: matches!(self.kinds[layouts[0]], InputKind::Cotangent(_)),
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

    /// The runner, mutable.
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Steps taken.
    pub fn steps_taken(&self) -> u64 {
        self.step
    }

    /// The next step has the number after this one: for a loop that continues the steps of another one.
    pub fn set_steps_taken(&mut self, steps: u64) {
        self.step = steps;
    }

    /// Runs one step on a global batch: [`TrainLoop::feed`], then [`TrainLoop::run`].
    ///
    /// # Errors
    /// As for these two; E412 says whether the batch itself is not finite. The loop is then as before the call: the next
    /// step has the same number and the same random numbers, and changes what it would have changed.
    pub fn step(&mut self, batch: &[BatchTensor<'_>], learning_rate: f64) -> Result<StepReport> {
        self.step_at_rates(batch, &[learning_rate])
    }

    /// [`TrainLoop::step`] with a learning rate for each group of parameters; of groups beyond them, the first.
    ///
    /// # Errors
    /// As there.
    pub fn step_at_rates(&mut self, batch: &[BatchTensor<'_>], rates: &[f64]) -> Result<StepReport> {
        let begin = Instant::now();
        self.feed_at_rates(batch, rates)?;
        let (loss, grad_norm) = self.run().map_err(|error| causes::explained(error, batch))?;
        let is_tokens = |t: &&BatchTensor<'_>| t.name == TOKENS;
        let rows = batch.first().and_then(|t| t.shape.first().copied());
        let planned = self.runner.program_set().programs.iter();
        let tokens = batch.iter().find(is_tokens).map(|t| t.shape.iter().product()).or(rows).unwrap_or(0);
        Ok(StepReport {
            step: self.step,
            loss,
            grad_norm,
            scaling: self.scaling()?,
            tokens_per_s: tokens as f64 / begin.elapsed().as_secs_f64().max(1e-9),
            peak_bytes_planned: planned.map(|program| program.arena_bytes).max().unwrap_or(0),
            peak_bytes_used: self.runner.peak_bytes_used().into_iter().max().unwrap_or(0),
        })
    }

    /// Writes the inputs of the next step: a global batch with every input of the step that is no
    /// parameter and no state; and the learning rate, the step (from 1) and the seed if they are
    /// inputs. If a batch contains these three, they are ignored.
    ///
    /// # Errors
    /// E414, E415 and E430 if the batch does not fit the inputs, E431 unless the learning rate is
    /// finite and at least 0. Nothing is changed then.
    pub fn feed(&mut self, batch: &[BatchTensor<'_>], learning_rate: f64) -> Result<()> {
        self.feed_at_rates(batch, &[learning_rate])
    }

    fn feed_at_rates(&mut self, batch: &[BatchTensor<'_>], rates: &[f64]) -> Result<()> {
        self.check_batch(batch, |_| true)?;
        rates.iter().try_for_each(|&rate| self.check_rate(rate))?;
        for tensor in batch {
            self.feed_tensor(tensor)?;
        }
        self.feed_scalars(self.step + 1, rates)?;
        self.is_fed = true;
        Ok(())
    }

    /// Runs the forward pass of a step with cotangents on a global batch, whose outputs may be read then;
    /// [`TrainLoop::backward`] runs the rest of the step. A step that paused before and did not go on is given up.
    ///
    /// # Errors
    /// As [`TrainLoop::feed`] and [`Runner::forward`].
    pub fn forward(&mut self, batch: &[BatchTensor<'_>]) -> Result<()> {
        self.runner.pauses()?;
        self.check_batch(batch, |input| !input.is_cotangent)?;
        self.runner.give_up()?;
        for tensor in batch {
            self.feed_tensor(tensor)?;
        }
        self.feed_scalars(self.step + 1, &[])?;
        self.runner.forward()
    }

    /// Runs the backward pass after [`TrainLoop::forward`], on the gradients with respect to the outputs:
    /// `cotangent.<output>`.
    ///
    /// # Errors
    /// As [`TrainLoop::feed`] and [`Runner::step`].
    pub fn backward(&mut self, cotangents: &[BatchTensor<'_>]) -> Result<()> {
        self.check_batch(cotangents, |input| input.is_cotangent)?;
        for tensor in cotangents {
            self.feed_tensor(tensor)?;
        }
        self.runner.step()
    }

    /// Runs the step that was fed; returns its loss and, if it is an output, the norm of the
    /// gradients.
    ///
    /// # Errors
    /// E430 if no batch was fed since the last step; errors of [`Runner::step`] with the number of
    /// the step.
    pub fn run(&mut self) -> Result<(f64, Option<f64>)> {
        if !std::mem::take(&mut self.is_fed) {
            return Err(Diagnostic::new("E430", "no batch was fed for this step")
                .help("call `feed` before each `run`"));
        }
        let step = self.step + 1;
        self.runner.step().map_err(|error| error.note(format!("at step {step}")))?;
        self.step = step;
        let loss = self.number(OutputKind::Loss)?.ok_or_else(|| {
            Diagnostic::new("E414", "no rank has an output `loss`")
                .help("the step graph must name its loss `loss`")
        })?;
        Ok((loss, self.number(OutputKind::GradientNorm)?))
    }

    fn batch_input(&self, name: &str) -> Option<&BatchInput> {
        self.batch.iter().find(|input| input.name == name)
    }

    /// Whether the loop feeds an input of this name itself.
    fn is_own(&self, name: &str) -> bool {
        let mut named = self.inputs.iter().zip(&self.kinds).filter(|(layout, _)| layout.name == name);
        named.any(|(_, kind)| kind.is_scalar_of_step())
    }

    /// E414 for an unknown tensor, E415 for a wrong shape or type, E430 if one of the `needed` ones is missing.
    fn check_batch(&self, batch: &[BatchTensor<'_>], needed: impl Fn(&BatchInput) -> bool) -> Result<()> {
        let wanted = || {
            let inputs = self.batch.iter().filter(|input| needed(input));
            let inputs: Vec<String> = inputs.map(BatchInput::to_string).collect();
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
        let is_missing =
            |input: &&BatchInput| needed(input) && !batch.iter().any(|tensor| tensor.name == input.name);
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

    /// E414: a tensor of a batch that is no input, or an input that no batch sets.
    fn unwanted(&self, name: &str, wanted: String) -> Box<Diagnostic> {
        if self.inputs.iter().any(|layout| layout.name == name) {
            return Diagnostic::new("E414", format!("`{name}` does not belong to a batch"))
                .expected(wanted)
                .help("parameters and states are kept by the step: set them with `set_tensor`");
        }
        let error = Diagnostic::new("E414", format!("the step has no input `{name}`")).expected(wanted);
        match did_you_mean(name, self.batch.iter().map(|input| input.name.as_str())) {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// E431 unless a rate is finite and at least 0, also in the step's own type.
    fn check_rate(&self, learning_rate: f64) -> Result<()> {
        let place = self.kinds.iter().position(|kind| matches!(kind, InputKind::LearningRate(_)));
        let layout = place.map(|place| &self.inputs[place]);
        let fed = layout.map_or(learning_rate, |l| Scalar::from_f64(l.dtype, learning_rate).to_f64());
        if fed.is_finite() && learning_rate >= 0.0 {
            return Ok(());
        }
        let within = layout.map_or(String::new(), |layout| format!(" within the range of {}", layout.dtype));
        Err(Diagnostic::new("E431", "the learning rate is out of range")
            .expected(format!("a finite number of at least 0{within}"))
            .found(learning_rate.to_string()))
    }

    /// Writes one valid tensor of a batch to the input of its name or to those of its microbatches.
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

    fn feed_scalars(&mut self, step: u64, rates: &[f64]) -> Result<()> {
        let rate_of = |group: usize| rates.get(group).or(rates.first()).copied().unwrap_or(0.0);
        let integer = |dtype: DType, value: u64| match dtype {
            DType::U64 => Scalar::new(value),
            DType::I64 => Scalar::new(value as i64),
            _ => Scalar::from_f64(dtype, value as f64),
        };
        for place in 0..self.inputs.len() {
            let dtype = self.inputs[place].dtype;
            let value = match self.kinds[place] {
                InputKind::LearningRate(group) => Scalar::from_f64(dtype, rate_of(group)),
                InputKind::Step => integer(dtype, step),
                InputKind::Seed => integer(dtype, self.seed),
                _ => continue,
            };
            let name = self.inputs[place].name.clone();
            self.write(&[place], &name, &[], value.bytes())?;
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

    /// Distributes a global tensor to all copies of an input on the local ranks.
    fn write(&mut self, places: &[usize], name: &str, shape: &[usize], bytes: &[u8]) -> Result<()> {
        for &place in places {
            let layout = &self.inputs[place];
            layout.expect(shape, bytes.len())?;
            for (position, &rank) in layout.ranks.iter().enumerate() {
                if !self.runner.world().is_local(rank) {
                    continue;
                }
                let TensorLayout { dtype, shape, sharding, mesh, .. } = layout;
                self.runner.fill_inputs(&[rank], name, |targets| {
                    for target in targets {
                        sharded::scatter_into(bytes, *dtype, shape, sharding, mesh, position, target);
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// A scalar output of the lowest rank that has it.
    fn number(&self, kind: OutputKind) -> Result<Option<f64>> {
        let name = kind.to_string();
        let Some(rank) = (0..self.runner.rank_count()).find(|&rank| self.runner.has_output(rank, &name))
        else {
            return Ok(None);
        };
        let number = || Ok(self.runner.read_number(rank, &name)?.to_le_bytes().to_vec());
        let bytes = self.runner.world().broadcast(rank, number)?;
        Ok(bytes.as_slice().try_into().ok().map(f64::from_le_bytes))
    }

    /// Writes a parameter or any other input by its name in the programs.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type.
    pub fn set_tensor(&mut self, name: &str, tensor: &TensorData) -> Result<()> {
        let places = self.places(name, tensor.dtype)?;
        self.write(&places, name, &tensor.shape, &tensor.bytes)
    }

    /// The layouts of an input, which must exist and have this type.
    fn places(&self, name: &str, dtype: DType) -> Result<Vec<usize>> {
        let places = self.inputs_named(name);
        let Some(&first) = places.first() else { return Err(self.unknown_input(name)) };
        self.inputs[first].expect_type(dtype)?;
        Ok(places)
    }

    /// [`TrainLoop::set_tensor`] with a function that writes shards of the tensor in place: it gets
    /// a shard's offset, its extent and the bytes of every rank that holds it.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 for another shape or type, and those of `fill`.
    pub fn fill_tensor(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        fill: impl Fn(&[usize], &[usize], Vec<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        for place in self.places(name, dtype)? {
            let layout = &self.inputs[place];
            layout.expect(shape, shape.iter().product::<usize>() * dtype.size_bytes())?;
            let TensorLayout { sharding, mesh, ranks, .. } = layout;
            let mut pieces: IndexMap<(Vec<usize>, Vec<usize>), Vec<usize>> = IndexMap::new();
            let world = self.runner.world();
            for (position, &rank) in ranks.iter().enumerate().filter(|(_, rank)| world.is_local(**rank)) {
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
        self.collect(layout, |rank| self.runner.read_input(rank, name))
    }

    /// The global tensor from its shards, on every process.
    fn collect(&self, layout: &TensorLayout, local: impl Fn(usize) -> Result<Vec<u8>>) -> Result<TensorData> {
        let world = self.runner.world();
        let tensor = collect(layout, |rank| world.broadcast(rank, || local(rank)).map(Some))?;
        Ok(tensor.expect("every shard came"))
    }

    /// The names of parameters and optimizer state, in input order, without repetition.
    pub fn state_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (layout, kind) in self.inputs.iter().zip(&self.kinds) {
            if kind.is_kept() && !names.contains(&layout.name.as_str()) {
                names.push(&layout.name);
            }
        }
        names
    }
}

/// The kind of a layout's input, from the program of its first rank.
fn kind(runner: &Runner, layout: &TensorLayout) -> InputKind {
    let program = layout.ranks.first().and_then(|&rank| runner.program_set().class_of(rank));
    let position = |program: &Program| program.inputs.iter().position(|port| port.name == layout.name);
    match program.and_then(|program| Some((program, position(program)?))) {
        Some((program, position)) => program.input_kind(position),
        None => InputKind::of(&layout.name, &Role::Input, false),
    }
}

/// The global tensor from the shards that `local` returns; `None` where it returns none.
fn collect(
    layout: &TensorLayout,
    mut local: impl FnMut(usize) -> Result<Option<Vec<u8>>>,
) -> Result<Option<TensorData>> {
    let TensorLayout { dtype, shape, sharding, mesh, ranks, .. } = layout;
    if sharding.is_partial() {
        return Err(partial(layout));
    }
    let bytes = sharded::gather(*dtype, shape, sharding, mesh, |position| local(ranks[position]))?;
    Ok(bytes.map(|bytes| TensorData::new(*dtype, shape.clone(), bytes)))
}

/// E419.
fn partial(layout: &TensorLayout) -> Box<Diagnostic> {
    let message = format!("`{}` is partial: its terms on the ranks are not yet reduced", layout.name);
    Diagnostic::new("E419", message).found(layout.sharding.display(&layout.mesh))
}
