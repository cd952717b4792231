//! The training step: forward graph, gradients, update.
//!
//! The two halves are separate functions because the microbatching pass runs between them: it turns
//! the gradient graph into one over many microbatches with outputs of the same names.

use crate::accumulation_dtype;
use crate::loss_scaling::{LossScaling, Scaler, taken_or_kept};
use crate::optim::{Optimizer, Shared, rounding};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::UnaryKind;
use partita_ir::port::{
    GRADIENT_NORM, LOSS, SEED, STEP, gradient_name, learning_rate_name, state_name, whole_name,
};
use partita_ir::{
    F8, Graph, GraphBuilder, InputKind, Phase, Role, TensorType, ValueId, autodiff, graph_edit, precision,
    quantise, remat,
};
use std::collections::{BTreeMap, BTreeSet};

/// Parameters with a rule and a learning rate of their own, as the groups of an optimizer of PyTorch.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Their names.
    pub parameters: BTreeSet<String>,
    /// The update rule. Weight decay acts on all of them.
    pub optimizer: Optimizer,
}

/// How one parameter is updated.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rule<'a> {
    /// The update rule.
    pub optimizer: &'a Optimizer,
    /// The number of its learning rate: 0 for what is in no group, else 1 and the position of the group.
    pub group: usize,
    /// Whether weight decay acts on it.
    pub decays: bool,
}

/// Options of the parameter update.
#[derive(Clone, PartialEq, Debug)]
pub struct StepOptions {
    /// The update rule of parameters that are in no group.
    pub optimizer: Optimizer,
    /// Groups of parameters with rules of the same kind and other constants.
    pub groups: Vec<Group>,
    /// Gradients are scaled down so that their global norm does not exceed this.
    pub clip_grad_norm: Option<f64>,
    /// Whether the step returns the gradient norm even without clipping; it costs one more pass
    /// over all gradients.
    pub grad_norm: bool,
    /// Whether weight decay also acts on parameters of fewer than two dimensions: norms and biases.
    pub decay_1d: bool,
    /// Whether the step also returns the gradients (before clipping), as outputs `grad.<parameter>`.
    pub output_gradients: bool,
    /// The narrower type in which the model computes; parameters, their gradients and their updates keep their own. See
    /// [`partita_ir::precision`].
    pub precision: Option<DType>,
    /// The way in which operands of matmuls by weights are rounded to 8 bits, if they are. See [`partita_ir::quantise`].
    pub f8: Option<F8>,
    /// Whether new parameters in bf16 are rounded up or down at random, so that small updates are not lost.
    pub stochastic_rounding: bool,
    /// The scale of the loss over time; without it the loss is not scaled.
    pub loss_scaling: Option<LossScaling>,
    /// Whether updates of single elements only read and write what they would, with one op for each tensor, and compute
    /// nothing of use: for steps that are priced and never run. Such an update moves as many bytes, in as many kernels.
    pub abridged: bool,
}

impl StepOptions {
    /// Options with this optimizer, without clipping.
    pub fn new(optimizer: Optimizer) -> StepOptions {
        StepOptions {
            optimizer,
            groups: Vec::new(),
            clip_grad_norm: None,
            grad_norm: true,
            decay_1d: false,
            output_gradients: false,
            precision: None,
            f8: None,
            loss_scaling: None,
            stochastic_rounding: false,
            abridged: false,
        }
    }

    /// The same options for a model that computes in this type, `bf16` or `f16`, which scales the loss, or whose matmuls
    /// do in a way of [`F8::NAMES`]. E004 for another name.
    pub fn in_precision(&self, name: &str) -> Result<StepOptions> {
        if let Some(f8) = F8::from_name(name) {
            return Ok(StepOptions { precision: None, loss_scaling: None, f8: Some(f8), ..self.clone() });
        }
        let narrow = DType::from_name(name).filter(|dtype| matches!(dtype, DType::BF16 | DType::F16));
        let narrow = narrow.ok_or_else(|| {
            Diagnostic::new("E004", format!("the precision cannot be {name}"))
                .expected(format!("bf16, f16, {}", F8::NAMES.join(", ")))
                .found(name)
        })?;
        let loss_scaling = (narrow == DType::F16).then(LossScaling::default);
        Ok(StepOptions { precision: Some(narrow), loss_scaling, f8: None, ..self.clone() })
    }

    /// The same options for a model that computes everything in the type of its parameters, matmuls in 8 bits with
    /// numbers of that type.
    pub fn in_full_precision(&self) -> StepOptions {
        StepOptions { precision: None, loss_scaling: None, ..self.clone() }
    }

    /// How the parameter with this name, or a part of it, is updated.
    pub fn rule_of(&self, parameter: &str, rank: usize) -> Rule<'_> {
        let whole = whole_name(parameter);
        let group = self.groups.iter().position(|group| group.parameters.contains(whole));
        match group {
            Some(place) => Rule { optimizer: &self.groups[place].optimizer, group: place + 1, decays: true },
            None => Rule { optimizer: &self.optimizer, group: 0, decays: self.decay_1d || rank >= 2 },
        }
    }

    /// E057 if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        if let Some(norm) = self.clip_grad_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return Err(Diagnostic::new("E057", "`clip_grad_norm` out of range")
                .expected("a finite number above 0")
                .found(norm.to_string()));
        }
        self.loss_scaling.iter().try_for_each(LossScaling::validate)?;
        self.groups.iter().try_for_each(|group| group.optimizer.validate())?;
        self.optimizer.validate()
    }
}

/// The whole step: the forward graph in the precision of the options, the [`gradient_graph`] of the scaled loss, then
/// [`append_update`].
pub fn train_step(forward: &Graph, options: &StepOptions) -> Result<Graph> {
    let computed =
        options.precision.map(|compute| precision::mixed(forward, compute, &|_| false)).transpose()?;
    append_update(
        &scaled_gradient_graph(computed.as_ref().unwrap_or(forward), &[], options.loss_scaling, options.f8)?,
        options,
    )
}

/// The forward graph with the gradient of its output `loss` (a float scalar) with respect to every
/// parameter: outputs `loss`, the other outputs, then `grad.<parameter>` in the order of the
/// parameters. Nodes marked for recomputation are recomputed rather than stored ([`remat`]). Outputs
/// that replace an input (states such as running means) still do. E055 without such a loss.
pub fn gradient_graph(forward: &Graph) -> Result<Graph> {
    gradient_graph_wrt(forward, &[])
}

/// [`gradient_graph`] with the gradients of these inputs too: further outputs `grad.<input>`. E055
/// if there is no float input of that name.
pub fn gradient_graph_wrt(forward: &Graph, also: &[&str]) -> Result<Graph> {
    scaled_gradient_graph(forward, also, None, None)
}

/// [`gradient_graph_wrt`] whose gradients are those of the loss times the scale of this step; [`append_update`] divides by
/// it. With `f8`, matmuls are in 8 bits.
fn scaled_gradient_graph(
    forward: &Graph,
    also: &[&str],
    scaling: Option<LossScaling>,
    f8: Option<F8>,
) -> Result<Graph> {
    let (mut graph, seed) = differentiate(forward, also, scaling)?;
    if let Some(f8) = f8 {
        graph = quantise::quantised(&graph, f8, Some(seed), &|_| false)?;
    }
    precision::widen_sums(&remat::rematerialise(graph_edit::prune(graph))?)
}

/// The forward graph with the gradients of [`gradient_graph_wrt`], times the scale of this step, before anything else is
/// done to it; and the derivative of the loss by itself, from which the backward pass starts.
///
/// # Errors
/// E055 without a loss, or where an input of `also` has no gradient.
pub fn differentiate(
    forward: &Graph,
    also: &[&str],
    scaling: Option<LossScaling>,
) -> Result<(Graph, ValueId)> {
    let loss = forward.output_named(LOSS).ok_or_else(|| {
        Diagnostic::new("E055", format!("`{}` has no loss to differentiate", forward.name))
            .expected("an output named `loss`")
            .found(format!("{:?}", forward.output_names))
            .help("let the model return its loss; of several float scalars, name the one that is it when the model is loaded")
    })?;
    let ty = forward.ty(loss).clone();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        return Err(Diagnostic::new("E055", "the loss cannot be differentiated")
            .at(forward.describe(loss))
            .expected("a float scalar")
            .found(ty.to_string()));
    }
    let mut params = parameters(forward)?;
    for name in also {
        let float = |v: &ValueId| forward.ty(*v).dtype.is_float();
        let input = forward.input_named(name).filter(float).ok_or_else(|| {
            let inputs = forward.inputs.iter().copied().filter(float);
            let names: Vec<&str> = inputs.map(|v| forward.value(v).name.as_str()).collect();
            Diagnostic::new("E055", format!("there is no gradient with respect to `{name}`"))
                .expected("an input with a float type")
                .found(names.join(", "))
        })?;
        if !params.contains(&input) {
            params.push(input);
        }
    }
    let mut builder = GraphBuilder::from_graph(forward.clone());
    builder.phase = Phase::InputGrad;
    builder.path = "loss".to_string();
    builder.stage = stage_of(builder.graph(), loss);
    let seed = match scaling {
        Some(scaling) => {
            let scale = scaling.current(&mut builder)?;
            builder.convert(scale, ty.dtype)?
        }
        None => builder.scalar(ty.dtype, 1.0),
    };
    let gradients = autodiff::backward(&mut builder, &[(loss, seed)], &params)?;
    let mut outputs = Outputs::default();
    outputs.push(LOSS, loss);
    outputs.extend_others(forward, |name| name == LOSS);
    let aliases = outputs.aliases(forward);
    for (&parameter, gradient) in params.iter().zip(gradients) {
        let name = builder.graph().value(parameter).name.clone();
        let gradient = match gradient {
            Some(gradient) => gradient,
            // The parameter does not influence the loss.
            None => {
                builder.phase = Phase::WeightGrad;
                builder.path = module_path(&name);
                let ty = builder.ty(parameter).clone();
                builder.full(&ty, 0.0)?
            }
        };
        let value = builder.graph_mut().value_mut(gradient);
        if value.name.is_empty() && value.role != Role::Input && value.role != Role::Param {
            value.name = gradient_name(&name);
            value.role = Role::GradOf(parameter);
        }
        outputs.push(&gradient_name(&name), gradient);
    }
    let mut graph = outputs.finish(builder);
    graph.aliases = aliases;
    Ok((graph, seed))
}

/// Completes a graph that has parameters and outputs `loss` and `grad.<parameter>` to a step. New
/// inputs: `learning_rate` (a scalar of the accumulation type; of groups, `learning_rate.<number>`), `step` (i64, from 1;
/// shared with dropout), the optimizer states, those of loss scaling. Outputs: `loss`, `grad_norm` (the global norm
/// before clipping, if requested), the other outputs, the new parameters and the new states under the names of the
/// old ones, which they replace. E056 if a gradient is missing.
pub fn append_update(graph: &Graph, options: &StepOptions) -> Result<Graph> {
    options.validate()?;
    let params = parameters(graph)?;
    let loss = graph.output_named(LOSS).ok_or_else(|| {
        Diagnostic::new("E056", "an update needs a gradient graph").expected("an output named `loss`")
    })?;
    let mut update = Update::begin(graph, options, params)?;
    let scaling = update.scale_gradients()?;
    let shared = update.shared(&scaling)?;
    update.replace_all(&scaling, &shared)?;
    let scales = update.next_scales(&scaling)?;
    Ok(update.finish(graph, loss, scaling.norm, &scales))
}

/// The gradients of parameters, by the names of the outputs. E056 if one is missing.
fn gradients_of(graph: &Graph, names: &[String]) -> Result<Vec<ValueId>> {
    // Of outputs of one name the first counts.
    let outputs = graph.output_names.iter().map(String::as_str).zip(graph.outputs.iter().copied());
    let named: BTreeMap<&str, ValueId> = outputs.rev().collect();
    let gradient = |name: &String| {
        named.get(gradient_name(name).as_str()).copied().ok_or_else(|| {
            Diagnostic::new("E056", format!("parameter `{name}` has no gradient"))
                .expected(format!("an output named `{}`", gradient_name(name)))
        })
    };
    names.iter().map(gradient).collect()
}

/// The update of all parameters, under construction.
struct Update<'a> {
    b: GraphBuilder,
    options: &'a StepOptions,
    params: Vec<ValueId>,
    names: Vec<String>,
    gradients: Vec<ValueId>,
    rules: Vec<Rule<'a>>,
    /// The optimizer states of each parameter.
    states: Vec<Vec<ValueId>>,
    /// The learning rate of each group.
    rates: BTreeMap<usize, ValueId>,
    /// The number of the step, from 1.
    step: ValueId,
    new_params: Vec<ValueId>,
    new_states: Vec<Vec<ValueId>>,
}

/// How the gradients of a step are scaled, and what they say about it.
struct Scaling {
    scaler: Option<Scaler>,
    /// The norm of what is applied: a skipped step applies nothing.
    norm: Option<ValueId>,
    /// What clipping multiplies gradients by.
    factor: Option<ValueId>,
    /// Whether the step is taken, where loss scaling may skip it.
    good: Option<ValueId>,
}

impl<'a> Update<'a> {
    /// With the inputs of the update.
    fn begin(graph: &Graph, options: &'a StepOptions, params: Vec<ValueId>) -> Result<Update<'a>> {
        let names: Vec<String> = params.iter().map(|&p| graph.value(p).name.clone()).collect();
        let gradients = gradients_of(graph, &names)?;
        let mut b = GraphBuilder::from_graph(graph.clone());
        b.phase = Phase::Update;
        b.path = "optimizer".to_string();
        let wide = accumulation_dtype(b.ty(params[0]).dtype);
        let rules: Vec<Rule> =
            params.iter().zip(&names).map(|(&p, name)| options.rule_of(name, b.ty(p).rank())).collect();
        let mut rates: BTreeMap<usize, ValueId> = BTreeMap::new();
        for group in rules.iter().map(|rule| rule.group).collect::<BTreeSet<usize>>() {
            rates.insert(group, b.input(&learning_rate_name(group), TensorType::scalar(wide), Role::Input));
        }
        let step = match scalar_of_step(graph, STEP) {
            Some(step) => step,
            None => b.input(STEP, TensorType::scalar(DType::I64), Role::Input),
        };
        let mut states: Vec<Vec<ValueId>> = Vec::with_capacity(params.len());
        for ((&parameter, name), rule) in params.iter().zip(&names).zip(&rules) {
            let slots = rule.optimizer.states(name, b.ty(parameter)).into_iter();
            let inputs =
                slots.map(|(slot, ty)| b.input(&state_name(slot, name), ty, Role::StateOf(parameter)));
            states.push(inputs.collect());
        }
        let new_params = Vec::with_capacity(params.len());
        let new_states = Vec::with_capacity(params.len());
        Ok(Update {
            b,
            options,
            params,
            names,
            gradients,
            rules,
            states,
            rates,
            step,
            new_params,
            new_states,
        })
    }

    /// Removes the scale of the loss from the gradients, and computes their norm.
    fn scale_gradients(&mut self) -> Result<Scaling> {
        let Update { b, options, params, gradients, .. } = self;
        let wide = accumulation_dtype(b.ty(params[0]).dtype);
        let scaler = options.loss_scaling.map(|scaling| Scaler::new(b, scaling)).transpose()?;
        if let Some(scaler) = &scaler {
            *gradients = scaler.unscaled(b, params, gradients)?;
        }
        let norm = match options.grad_norm || options.clip_grad_norm.is_some() || scaler.is_some() {
            true => Some(gradient_norm(b, gradients, wide)?),
            false => None,
        };
        let limit = norm.zip(options.clip_grad_norm);
        let factor = limit.map(|(norm, limit)| clip_factor(b, norm, limit)).transpose()?;
        let good = scaler.as_ref().zip(norm).map(|(scaler, norm)| scaler.is_good(b, norm)).transpose()?;
        let norm = match (norm, good) {
            (Some(norm), Some(good)) => {
                let zero = b.full_like(norm, 0.0)?;
                Some(b.select(good, norm, zero)?)
            }
            _ => norm,
        };
        Ok(Scaling { scaler, norm, factor, good })
    }

    /// What the updates of each group share.
    fn shared(&mut self, scaling: &Scaling) -> Result<BTreeMap<usize, Shared>> {
        let Update { b, options, rules, rates, step, .. } = self;
        let taken = match &scaling.scaler {
            Some(scaler) => scaler.taken(b, *step)?,
            None => *step,
        };
        let mut rounding = None;
        if options.stochastic_rounding {
            let seed = match scalar_of_step(b.graph(), SEED) {
                Some(seed) => seed,
                None => b.input(SEED, TensorType::scalar(DType::U64), Role::Input),
            };
            rounding = Some(rounding::seed_of(b, seed, *step)?);
        }
        let mut shared: BTreeMap<usize, Shared> = BTreeMap::new();
        for (&group, &rate) in rates.iter() {
            let rule = rules.iter().find(|rule| rule.group == group).expect("each rate is of a rule");
            let mut own = rule.optimizer.shared(b, rate, taken)?;
            (own.abridged, own.rounding) = (options.abridged, rounding);
            shared.insert(group, own);
        }
        Ok(shared)
    }

    /// The new parameters and states, which are the old ones if the step is skipped.
    fn replace_all(&mut self, scaling: &Scaling, shared: &BTreeMap<usize, Shared>) -> Result<()> {
        let Update { b, params, names, gradients, rules, states, .. } = self;
        for (index, &parameter) in params.iter().enumerate() {
            b.path = module_path(&names[index]);
            let mut gradient = gradients[index];
            b.stage = stage_of(b.graph(), gradient);
            if let Some(factor) = scaling.factor {
                let ty = b.ty(gradient).clone();
                let factor = b.convert(factor, ty.dtype)?;
                let factor = b.broadcast_scalar(factor, &ty.shape)?;
                gradient = b.multiply(gradient, factor)?;
            }
            let Rule { optimizer, group, decays } = rules[index];
            let (mut new, mut updated) =
                optimizer.update(b, &shared[&group], parameter, gradient, &states[index], decays)?;
            if let Some(good) = scaling.good {
                new = taken_or_kept(b, good, new, parameter)?;
                for (new, &old) in updated.iter_mut().zip(&states[index]) {
                    *new = taken_or_kept(b, good, *new, old)?;
                }
            }
            self.new_params.push(new);
            self.new_states.push(updated);
        }
        Ok(())
    }

    /// The new states of loss scaling, by name.
    fn next_scales(&mut self, scaling: &Scaling) -> Result<Vec<(&'static str, ValueId)>> {
        self.b.path = "optimizer".to_string();
        self.b.stage = 0;
        match (&scaling.scaler, scaling.good) {
            (Some(scaler), Some(good)) => scaler.next(&mut self.b, good),
            _ => Ok(Vec::new()),
        }
    }

    /// The step, whose new parameters and states replace the old ones.
    fn finish(
        self,
        graph: &Graph,
        loss: ValueId,
        norm: Option<ValueId>,
        scales: &[(&'static str, ValueId)],
    ) -> Graph {
        let Update { b, options, params, names, gradients, states, new_params, new_states, .. } = self;
        let gradient_names: BTreeSet<String> = names.iter().map(|name| gradient_name(name)).collect();
        let mut outputs = Outputs::default();
        outputs.push(LOSS, loss);
        if let Some(norm) = norm {
            outputs.push(GRADIENT_NORM, norm);
        }
        outputs.extend_others(graph, |name| name == LOSS || gradient_names.contains(name));
        let mut aliases = outputs.aliases(graph);
        let inputs = b.graph().inputs.iter().enumerate();
        let position: BTreeMap<ValueId, usize> = inputs.map(|(position, &input)| (input, position)).collect();
        for ((&old, &new), name) in params.iter().zip(&new_params).zip(&names) {
            aliases.push((position[&old], outputs.push(name, new)));
        }
        for (old, new) in states.iter().flatten().zip(new_states.iter().flatten()) {
            let name = b.graph().value(*old).name.clone();
            aliases.push((position[old], outputs.push(&name, *new)));
        }
        for &(name, new) in scales {
            let old = b.graph().input_named(name).expect("loss scaling reads its states");
            aliases.push((position[&old], outputs.push(name, new)));
        }
        if options.output_gradients {
            for (name, &gradient) in names.iter().zip(&gradients) {
                outputs.push(&gradient_name(name), gradient);
            }
        }
        let mut graph = outputs.finish(b);
        graph.aliases = aliases;
        graph_edit::prune(graph)
    }
}

/// The square root of the sum of all squares, parameter by parameter, in order.
fn gradient_norm(b: &mut GraphBuilder, gradients: &[ValueId], dtype: DType) -> Result<ValueId> {
    b.path = "grad_norm".to_string();
    let mut total: Option<ValueId> = None;
    for &gradient in gradients {
        b.stage = stage_of(b.graph(), gradient);
        let own = accumulation_dtype(b.ty(gradient).dtype);
        let wide = b.convert(gradient, own)?;
        let squares = b.multiply(wide, wide)?;
        let dims: Vec<usize> = (0..b.ty(squares).rank()).collect();
        let sum = if dims.is_empty() { squares } else { b.reduce_sum(squares, &dims)? };
        let sum = b.convert(sum, dtype)?;
        total = Some(match total {
            Some(total) => b.add(total, sum)?,
            None => sum,
        });
    }
    let norm = b.unary(UnaryKind::Sqrt, total.expect("there are parameters"))?;
    b.path = "optimizer".to_string();
    Ok(norm)
}

/// `min(1, limit / (norm + 1e-6))`, as `torch.nn.utils.clip_grad_norm_`.
fn clip_factor(b: &mut GraphBuilder, norm: ValueId, limit: f64) -> Result<ValueId> {
    let limit = b.full_like(norm, limit)?;
    let denominator = b.offset(norm, 1e-6)?;
    let factor = b.divide(limit, denominator)?;
    let one = b.full_like(norm, 1.0)?;
    b.minimum(factor, one)
}

/// The input with the name of a scalar of the step; a parameter or state may have the same name.
fn scalar_of_step(graph: &Graph, name: &str) -> Option<ValueId> {
    let is_scalar = |&(place, &input): &(usize, &ValueId)| {
        let (value, is_replaced) = (graph.value(input), graph.aliases.iter().any(|&(old, _)| old == place));
        value.name == name && InputKind::of(name, &value.role, is_replaced).is_scalar_of_step()
    };
    graph.inputs.iter().enumerate().find(is_scalar).map(|(_, &input)| input)
}

/// The parameters of a graph. E055 if there are none.
fn parameters(graph: &Graph) -> Result<Vec<ValueId>> {
    let params = graph.params();
    if params.is_empty() {
        return Err(Diagnostic::new("E055", "the model has no parameters to train"));
    }
    Ok(params)
}

/// The stage of the node that computes a value. A parameter is updated in the stage of its complete
/// gradient.
pub(crate) fn stage_of(graph: &Graph, value: ValueId) -> usize {
    graph.value(value).definition.map_or(0, |(node, _)| graph.node(node).stage)
}

/// The path of the module that owns a parameter.
fn module_path(parameter: &str) -> String {
    parameter.rsplit_once('.').map_or(String::new(), |(module, _)| module.to_string())
}

/// Outputs under construction: name, value and position of the annotation in the source graph.
#[derive(Default)]
struct Outputs {
    list: Vec<(String, ValueId, Option<partita_ir::Annotation>)>,
}

impl Outputs {
    fn push(&mut self, name: &str, value: ValueId) -> usize {
        self.list.push((name.to_string(), value, None));
        self.list.len() - 1
    }

    /// The outputs of `graph` except those that `skip` names.
    fn extend_others(&mut self, graph: &Graph, skip: impl Fn(&str) -> bool) {
        for (position, &value) in graph.outputs.iter().enumerate() {
            let name = graph.output_names.get(position).cloned().unwrap_or_default();
            if !skip(&name) {
                let annotation = graph.output_annotations.get(position).cloned().flatten();
                self.list.push((name, value, annotation));
            }
        }
    }

    /// The aliases of `graph`, whose inputs keep their positions, with the new positions of its outputs.
    fn aliases(&self, graph: &Graph) -> Vec<(usize, usize)> {
        let moved = |&(input, output): &(usize, usize)| {
            let name = graph.output_names.get(output)?;
            Some((input, self.list.iter().position(|(own, _, _)| own == name)?))
        };
        graph.aliases.iter().filter_map(moved).collect()
    }

    fn finish(self, builder: GraphBuilder) -> Graph {
        let annotated = self.list.iter().any(|(_, _, a)| a.is_some());
        let annotations = self.list.iter().map(|(_, _, a)| a.clone()).collect();
        let mut graph = builder.finish_named(self.list.into_iter().map(|(n, v, _)| (n, v)).collect());
        graph.output_annotations = if annotated { annotations } else { Vec::new() };
        graph
    }
}
