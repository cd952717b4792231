//! The context that model code writes into: a graph under construction with its parameters.

use crate::init::{Init, stream_of};
use crate::initializer::Initializer;
use crate::model::Model;
use crate::modules::Module;
use crate::stored::{Stored, Values};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::composites::DROPOUT;
use partita_ir::ops::BinaryKind;
use partita_ir::port::{LOSS, SEED, STEP, is_name_of_step, name_of_user};
use partita_ir::{Attribute, GraphBuilder, Literal, Location, Role, TensorType, ValueId};
use partita_kernels::KernelOptions;
use std::panic;

/// The type and initial values of a parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamSpec {
    /// Element type and global shape.
    pub ty: TensorType,
    /// Its initial values.
    pub init: Init,
    /// The random stream of its initial values: a hash of its name.
    pub stream: u64,
    /// Values of this type that stand instead of draws.
    pub stored: Option<Stored>,
}

impl ParamSpec {
    /// A spec that begins with these values.
    pub fn stored(name: &str, ty: TensorType, values: impl Values + 'static) -> ParamSpec {
        let stored = Some(Stored::new(values));
        ParamSpec { ty, init: Init::Zeros, stream: stream_of(name), stored }
    }

    /// The full initial tensor.
    ///
    /// # Errors
    /// E350 if its values are in a file that has changed.
    pub fn initial(&self, seed: u64) -> Result<Literal> {
        self.initial_shard(seed, &vec![0; self.ty.rank()], &self.ty.shape)
    }

    /// The box of `extent` at `offset` of the initial tensor, equal to that part of [`ParamSpec::initial`].
    ///
    /// # Errors
    /// As [`ParamSpec::initial`].
    pub fn initial_shard(&self, seed: u64, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        Initializer::new(KernelOptions::default(), seed).literal(self, offset, extent)
    }
}

/// A model under construction. Parameters are named by their module path; declaring a name twice
/// gives the same parameter.
///
/// A mistake in a call that returns no `Result` (an input or a module with a wrong name) is
/// reported by the next call that does, at the latest by [`Context::finish`].
#[derive(Debug)]
pub struct Context {
    /// The graph so far; model code may use any of its ops.
    pub builder: GraphBuilder,
    dtype: DType,
    training: bool,
    params: IndexMap<String, (ValueId, ParamSpec)>,
    ties: Vec<(String, String)>,
    dropout_sites: u64,
    step_seed: Option<ValueId>,
    cache: IndexMap<String, Vec<ValueId>>,
    modules: IndexMap<String, String>,
    /// Names of fed inputs.
    fed: Vec<String>,
    /// Tensors that a step replaces: their inputs, how they begin, and the values that replace them.
    states: IndexMap<String, (ValueId, ParamSpec, Option<ValueId>)>,
    /// Terms of the loss beside that of the outputs.
    losses: Vec<ValueId>,
}

impl Context {
    /// An empty model whose parameters and activations are of `dtype`. Dropout is active only if
    /// `training`.
    #[track_caller]
    pub fn new(name: &str, dtype: DType, training: bool) -> Context {
        Context {
            builder: GraphBuilder::new(name),
            dtype,
            training,
            params: IndexMap::new(),
            ties: Vec::new(),
            dropout_sites: 0,
            step_seed: None,
            cache: IndexMap::new(),
            modules: IndexMap::new(),
            fed: Vec::new(),
            states: IndexMap::new(),
            losses: Vec::new(),
        }
    }

    /// The element type of parameters and activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether dropout is active.
    pub fn training(&self) -> bool {
        self.training
    }

    /// The shape of a value. A value of another context gives an empty shape, and the next call
    /// returns E160.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.builder.shape(value)
    }

    /// `name` under the current module path.
    pub fn full_name(&self, name: &str) -> String {
        if self.builder.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.builder.path) }
    }

    /// An input that is fed at every step. Its name is used without the module path. E161 for the
    /// name of another input or a parameter, or one that a training step gives a meaning to.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        if is_name_of_step(name) {
            self.builder.reject(name_of_step("an input", name));
        }
        self.own_input(name, dtype, shape)
    }

    fn own_input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        if name.is_empty() || self.fed.iter().any(|other| other == name) || self.params.contains_key(name) {
            self.builder.reject(self.doubled_input(name));
        }
        self.fed.push(name.to_string());
        self.builder.input(name, TensorType::new(dtype, shape), Role::Input)
    }

    fn doubled_input(&self, name: &str) -> Box<Diagnostic> {
        let message = match name {
            "" => "an input without a name".to_string(),
            name => format!("`{name}` is the name of two inputs"),
        };
        Diagnostic::new("E161", message)
            .at(self.builder.path.clone())
            .expected("a unique name for each input, because inputs are fed by name")
            .found(format!("inputs {}", self.fed.join(", ")))
    }

    /// The parameter `name` of the current module. E051 if it exists with another shape, E050 if it
    /// is empty or exceeds memory, E161 if an input has its name, E162 for an invalid name.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> Result<ValueId> {
        let full = self.full_name(name);
        self.builder.check(&[])?;
        check_name(name, &full)?;
        if self.fed.contains(&full) {
            return Err(self.doubled_input(&full));
        }
        let bytes = shape.iter().try_fold(self.dtype.size_bytes(), |bytes, &n| bytes.checked_mul(n));
        if bytes.is_none_or(|bytes| bytes == 0 || bytes > isize::MAX as usize) {
            return Err(Diagnostic::new("E050", format!("parameter `{full}` has an invalid shape"))
                .at(full)
                .expected("at least 1 along each dimension, and no more than memory can hold")
                .found(format!("{shape:?}")));
        }
        let ty = TensorType::new(self.dtype, shape);
        if let Some(value) = self.lookup(&full) {
            let found = self.builder.ty(value);
            if *found != ty {
                return Err(Diagnostic::new("E051", format!("parameter `{full}` is declared twice"))
                    .at(full)
                    .expected(ty.to_string())
                    .found(found.to_string()));
            }
            return Ok(value);
        }
        let value = self.builder.input(&full, ty.clone(), Role::Param);
        let stream = stream_of(&full);
        self.params.insert(full, (value, ParamSpec { ty, init, stream, stored: None }));
        Ok(value)
    }

    /// Makes `name` of the current module another name of the parameter with the full name
    /// `existing`: one tensor, one gradient, the sum over all uses. E053 if there is no such
    /// parameter.
    pub fn tie(&mut self, name: &str, existing: &str) -> Result<ValueId> {
        let full = self.full_name(name);
        check_name(name, &full)?;
        let Some((value, _)) = self.params.get(existing) else {
            let mut error = Diagnostic::new(
                "E053",
                format!("`{full}` is tied to `{existing}`, which is not a parameter"),
            );
            error.help = did_you_mean(existing, self.params.keys().map(String::as_str));
            return Err(error);
        };
        let value = *value;
        if self.params.contains_key(&full) {
            return Err(Diagnostic::new("E053", format!("`{full}` already has its own tensor"))
                .help("tie it before its first use"));
        }
        self.ties.push((full, existing.to_string()));
        Ok(value)
    }

    fn lookup(&self, full: &str) -> Option<ValueId> {
        let of = self.ties.iter().find(|(alias, _)| alias == full).map_or(full, |(_, of)| of);
        self.params.get(of).map(|(value, _)| *value)
    }

    /// A tensor that is part of the model but not trained.
    pub fn buffer(&mut self, name: &str, value: Literal) -> ValueId {
        let full = self.full_name(name);
        let id = self.builder.constant(value);
        self.builder.graph_mut().value_mut(id).name = full;
        id
    }

    /// A tensor of the current module that steps replace without an optimizer, such as a running mean; it begins as zeros.
    /// Asking for it again gives the same value.
    pub fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        let full = self.full_name(name);
        if let Some((value, ..)) = self.states.get(&full) {
            return *value;
        }
        let value = self.input(&full, dtype, shape);
        let ty = TensorType::new(dtype, shape);
        let spec = ParamSpec { ty, init: Init::Zeros, stream: stream_of(&full), stored: None };
        self.states.insert(full, (value, spec, None));
        value
    }

    /// Makes a value what a state of the current module is at the next step. A name without a state is reported by the next
    /// call that returns an error.
    pub fn replace_state(&mut self, name: &str, next: ValueId) {
        let full = self.full_name(name);
        match self.states.get_mut(&full) {
            Some((.., replacement)) => *replacement = Some(next),
            None => {
                let error = Diagnostic::new("E053", format!("`{full}` is not a state"));
                self.builder.reject(error.expected("a name that `state` was called with"));
            }
        }
    }

    /// Adds a scalar to the loss of the model, such as the balance loss of experts.
    pub fn add_loss(&mut self, loss: ValueId) {
        self.losses.push(loss);
    }

    /// The loss of the outputs plus all added terms, in its own type.
    pub fn with_added_losses(&mut self, loss: ValueId) -> Result<ValueId> {
        let dtype = self.builder.ty(loss).dtype;
        std::mem::take(&mut self.losses).into_iter().try_fold(loss, |sum, term| {
            let term = self.builder.convert(term, dtype)?;
            self.builder.add(sum, term)
        })
    }

    /// Values shared by all layers (rotary tables, for example): built at the first call with this
    /// key, at the root of the model and under the module path `key`.
    pub fn shared(
        &mut self,
        key: &str,
        build: impl FnOnce(&mut GraphBuilder) -> Result<Vec<ValueId>>,
    ) -> Result<Vec<ValueId>> {
        if let Some(values) = self.cache.get(key) {
            return Ok(values.clone());
        }
        let path = std::mem::replace(&mut self.builder.path, key.to_string());
        let values = build(&mut self.builder);
        self.builder.path = path;
        let values = values?;
        self.cache.insert(key.to_string(), values.clone());
        Ok(values)
    }

    /// Runs `body` one level deeper in the module path; its nodes carry the caller's source
    /// location. An invalid name makes the next call return E162.
    #[track_caller]
    pub fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Context) -> T) -> T {
        let caller = panic::Location::caller();
        let location = Location { file: caller.file().to_string(), line: caller.line() };
        let outer = self.builder.location.replace(location);
        let result = self.inside(name, body);
        self.builder.location = outer;
        result
    }

    /// Applies a module under `name`; its nodes carry the caller's source location. E162 for an
    /// invalid name, E160 for a value of another context, and any error of the module.
    #[track_caller]
    pub fn call(&mut self, name: &str, module: &dyn Module, x: ValueId) -> Result<ValueId> {
        self.scope(name, |cx| cx.forward(module, x))
    }

    /// [`Context::call`] that keeps the location.
    pub(crate) fn apply(&mut self, name: &str, module: &dyn Module, x: ValueId) -> Result<ValueId> {
        self.inside(name, |cx| cx.forward(module, x))
    }

    fn forward(&mut self, module: &dyn Module, x: ValueId) -> Result<ValueId> {
        self.builder.check(&[x])?;
        self.note_kind(module);
        module.forward(self, x)
    }

    /// Records the kind of the module at the current path.
    pub(crate) fn note_kind(&mut self, module: &dyn Module) {
        self.modules.insert(self.builder.path.clone(), module.kind().to_string());
    }

    /// [`Context::scope`] that keeps the location: inside this crate's modules, the user's line is
    /// more useful.
    pub(crate) fn inside<T>(&mut self, name: &str, body: impl FnOnce(&mut Context) -> T) -> T {
        let path = self.full_name(name);
        if let Err(error) = check_name(name, &path) {
            self.builder.reject(error);
        }
        let outer = std::mem::replace(&mut self.builder.path, path);
        let result = body(self);
        self.builder.path = outer;
        result
    }

    /// Zeroes elements with probability `rate` and scales the others by `1 / (1 - rate)`; the
    /// identity outside training. Each call has its own random stream; masks change with the step.
    /// E052 unless `0 <= rate < 1`.
    pub fn dropout(&mut self, x: ValueId, rate: f64) -> Result<ValueId> {
        self.builder.check(&[x])?;
        if !(0.0..1.0).contains(&rate) {
            return Err(Diagnostic::new("E052", "dropout rate out of range")
                .at(self.builder.path.clone())
                .expected("at least 0 and less than 1")
                .found(rate.to_string()));
        }
        if !self.training || rate == 0.0 {
            return Ok(x);
        }
        let seed = self.step_seed()?;
        let site = self.dropout_sites;
        self.dropout_sites += 1;
        let attributes = [("rate", Attribute::Float(rate)), ("stream", Attribute::Int(site as i64))];
        self.builder.composite(&DROPOUT, &attributes, &[x, seed])
    }

    /// The seed of this step: the input `seed` advanced by the input `step`. The multiplier (of
    /// Vigna's MRG and LXM generators) keeps steps apart from streams, which advance by the golden
    /// ratio.
    fn step_seed(&mut self) -> Result<ValueId> {
        if let Some(seed) = self.step_seed {
            return Ok(seed);
        }
        let seed = self.own_input(SEED, DType::U64, &[]);
        let step = self.own_input(STEP, DType::I64, &[]);
        let combined = self.shared("step_seed", |b| {
            let ty = TensorType::scalar(DType::U64);
            let factor = b.constant(Literal::splat_int(&ty, 0xD134_2543_DE82_EF95));
            let step = b.convert(step, DType::U64)?;
            let moved = b.multiply(step, factor)?;
            Ok(vec![b.binary(BinaryKind::Add, seed, moved)?])
        })?[0];
        self.step_seed = Some(combined);
        Ok(combined)
    }

    /// Ends construction. The inputs of the graph are the fed ones, then the parameters. E160 for
    /// an output of another context, E161 for two outputs with one name, and any error that an
    /// earlier call could not return.
    pub fn finish(self, mut outputs: Vec<(String, ValueId)>) -> Result<Model> {
        if let Some((name, _)) = outputs.iter().find(|(name, _)| name != LOSS && is_name_of_step(name)) {
            return Err(name_of_step("an output", name));
        }
        for (name, (value, _, next)) in &self.states {
            outputs.push((name.clone(), next.unwrap_or(*value)));
        }
        for (number, (name, _)) in outputs.iter().enumerate() {
            if outputs[..number].iter().any(|(other, _)| other == name) {
                return Err(Diagnostic::new("E161", format!("`{name}` is the name of two outputs"))
                    .expected("a unique name for each output, because outputs are read by name"));
            }
        }
        let mut forward = self.builder.finish_checked(outputs)?;
        let is_param = |v: &ValueId| forward.value(*v).role == Role::Param;
        let (params, mut inputs): (Vec<ValueId>, Vec<ValueId>) =
            forward.inputs.iter().partition(|v| is_param(v));
        inputs.extend(params);
        forward.inputs = inputs;
        for (name, (value, ..)) in &self.states {
            let input = forward.inputs.iter().position(|input| input == value);
            let output = forward.output_names.iter().position(|output| output == name);
            forward.aliases.extend(input.zip(output));
        }
        let params = self.params.into_iter().map(|(name, (_, spec))| (name, spec)).collect();
        let states = self.states.into_iter().map(|(name, (_, spec, _))| (name, spec)).collect();
        Ok(Model { forward, params, states, ties: self.ties, modules: self.modules })
    }
}

/// E161 for the name of an input or output that a training step gives a meaning to.
fn name_of_step(what: &str, name: &str) -> Box<Diagnostic> {
    Diagnostic::new("E161", format!("`{name}` is the name of {what} that a training step has itself"))
        .expected("another name: a step has `loss`, `grad_norm`, `learning_rate`, `step`, `seed`, and names like `grad.w`")
        .found(format!("{what} `{name}`"))
        .help(format!("call it `{}`", name_of_user(name, |_| false)))
}

/// E162 unless each dotted part of a name is valid in a module path: plans find modules by path.
pub fn check_name(name: &str, path: &str) -> Result<()> {
    let is_mark = |c: char| c.is_whitespace() || c.is_control() || "*#,:;=\"'`()[]{}".contains(c);
    if name.split('.').all(|part| !part.is_empty()) && !name.contains(is_mark) {
        return Ok(());
    }
    Err(Diagnostic::new("E162", "this is not a valid name of a module or parameter")
        .at(path)
        .expected("letters, digits and `_`; in plans `*` stands for any name")
        .found(format!("{name:?}")))
}
