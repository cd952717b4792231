//! The end of an import: outputs by name, the choice of the loss, states, the model.

use super::lower::{Binding, Lowering, Scope, Stored};
use super::schema::{Argument, OutputSpec};
use super::{Pt2, places, ranks};
use crate::model::{ImportOptions, ImportedModel, State};
use crate::recognise_attention;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::port::{LOSS, gradient_name, name_of_user};
use partita_ir::{GraphBuilder, Role, TensorType, ValueId, complex_as_pairs, graph_edit};
use partita_nn::init::stream_of;
use partita_nn::{Init, Model, ParamSpec};
use std::collections::BTreeSet;

impl Lowering<'_> {
    fn read_output(&mut self, scope: &Scope, name: &str) -> Result<ValueId> {
        match scope.get(name)? {
            Binding::Tensor(tensor) => self.tensors.read(&mut self.cx.builder, *tensor, true),
            Binding::Scalar(_) | Binding::Absent => {
                Err(Diagnostic::new("E356", format!("the output `{name}` is not a computed tensor"))
                    .expected("tensors as outputs")
                    .found("a number, or a result that is not computed"))
            }
        }
    }

    /// Collects outputs and states, chooses the loss, and builds the model.
    pub fn finish(
        mut self,
        file: &Pt2,
        options: &ImportOptions,
        scope: &Scope,
        stored: Stored,
        mut inputs: IndexMap<String, TensorType>,
    ) -> Result<ImportedModel> {
        self.cx.builder.path = String::new();
        self.cx.builder.location = None;
        let mut returned = self.returned(file, scope)?;
        self.add_changes_in_place(&stored, &mut returned.replaced)?;
        let chosen = returned.stated_loss.clone().or(options.loss.clone());
        let loss = choose_loss(&self.cx.builder, &returned.user, chosen, options.may_lack_loss)?;
        let mut returned = returned.beside_loss(loss);
        let gradients: BTreeSet<String> = returned.others.iter().map(|(name, _)| name.clone()).collect();
        let outputs: Vec<String> = returned.user.iter().map(|(name, _)| name.clone()).collect();
        let states = self.states(&stored, &mut returned)?;
        let Returned { mut user, others, .. } = returned;
        user.extend(others);
        let mut model = self.cx.finish(user)?;
        model.forward = complex_as_pairs(graph_edit::prune(model.forward))?;
        for ty in inputs.values_mut() {
            *ty = ty.as_pairs().unwrap_or_else(|| ty.clone());
        }
        model.forward.name = "main".to_string();
        if let Some(ranks) = self.ranks {
            let is_state = |name: &str| states.iter().any(|state| state.name == name);
            let is_one_value = |name: &str| name == LOSS || gradients.contains(name) || is_state(name);
            model.forward = ranks::lift(&model.forward, ranks, &mut inputs, &is_one_value, self.limits)?;
        }
        model.forward = recognise_attention(&model.forward)?;
        alias_states(&mut model, &states)?;
        declare_stored(&mut model, &stored, &states);
        model.ties = stored.ties;
        model.modules = self.modules;
        partita_ir::verify::verify(&model.forward)?;
        let weights =
            stored.params.into_iter().map(|(name, (_, _, tensor))| (name, tensor.as_pairs())).collect();
        let specs = &file.program.graph_module.signature.output_specs;
        let loss_name = loss.map(|position| user_name(file, position, specs));
        let (sizes, notes) = (self.extents, self.notes);
        let (state_dict, loss) = (file.weights.clone(), loss_name);
        Ok(ImportedModel { model, weights, states, inputs, outputs, loss, sizes, state_dict, notes })
    }

    /// What the program returns, by name.
    fn returned(&mut self, file: &Pt2, scope: &Scope) -> Result<Returned> {
        let specs = &file.program.graph_module.signature.output_specs;
        let is_user = |spec: &&OutputSpec| {
            matches!(spec, OutputSpec::UserOutput { .. } | OutputSpec::LossOutput { .. })
        };
        let user_names = places::output_names(&file.program, specs.iter().filter(is_user).count());
        let mut user_names = user_names.into_iter();
        let mut returned = Returned::default();
        for spec in specs {
            match spec {
                OutputSpec::UserOutput { arg } => {
                    let name = user_names.next().unwrap_or_default();
                    if let Argument::Tensor(tensor) = arg {
                        returned.user.push((name, self.read_output(scope, tensor)?));
                    }
                }
                OutputSpec::LossOutput { arg } => {
                    let name = user_names.next().unwrap_or_default();
                    returned.stated_loss = Some(name.clone());
                    returned.user.push((name, self.read_output(scope, &arg.name)?));
                }
                OutputSpec::GradientToParameter { arg, parameter_name: of }
                | OutputSpec::GradientToUserInput { arg, user_input_name: of } => {
                    returned.others.push((gradient_name(of), self.read_output(scope, &arg.name)?));
                }
                OutputSpec::BufferMutation { arg, buffer_name } => {
                    returned.replaced.insert(buffer_name.clone(), self.read_output(scope, &arg.name)?);
                }
                OutputSpec::ParameterMutation { parameter_name, .. } => {
                    return Err(changed_parameter(parameter_name));
                }
                OutputSpec::UserInputMutation { .. } | OutputSpec::Token {} => {}
            }
        }
        Ok(returned)
    }

    /// Adds the buffers that ops change in place. E356 if a parameter is changed.
    fn add_changes_in_place(
        &mut self,
        stored: &Stored,
        replaced: &mut IndexMap<String, ValueId>,
    ) -> Result<()> {
        for (name, (_, tensor, _)) in &stored.buffers {
            if self.tensors.changes(*tensor) > 0 && !replaced.contains_key(name) {
                replaced.insert(name.clone(), self.tensors.read(&mut self.cx.builder, *tensor, true)?);
            }
        }
        for (name, (_, tensor, _)) in stored.params.iter().chain(&stored.frozen) {
            if self.tensors.changes(*tensor) > 0 {
                return Err(changed_parameter(name));
            }
        }
        Ok(())
    }

    /// States are inputs that an output of the same name replaces: those outputs are added to the others.
    fn states(&mut self, stored: &Stored, returned: &mut Returned) -> Result<Vec<State>> {
        let Returned { user, others, replaced, .. } = returned;
        let mut states = Vec::new();
        for (name, (value, _, tensor)) in &stored.frozen {
            states.push(State { name: name.clone(), initial: tensor.as_pairs(), is_frozen_parameter: true });
            others.push((name.clone(), *value));
        }
        for (name, &new) in replaced.iter() {
            let Some((value, _, tensor)) = stored.buffers.get(name) else {
                return Err(Diagnostic::new("E357", format!("`{name}` is replaced, but is not a buffer"))
                    .expected("a buffer of the module")
                    .found("none of this name"));
            };
            let input = become_input(&mut self.cx.builder, *value, name);
            user.iter_mut()
                .chain(others.iter_mut())
                .filter(|(_, v)| v.index() == value.index())
                .for_each(|(_, v)| *v = input);
            let new = if new.index() == value.index() { input } else { new };
            let initial = tensor.as_pairs();
            states.push(State { name: name.clone(), initial, is_frozen_parameter: false });
            others.push((name.clone(), new));
        }
        Ok(states)
    }
}

/// What a program returns, by name.
#[derive(Default)]
struct Returned {
    /// What its caller gets.
    user: Vec<(String, ValueId)>,
    /// Gradients, then new states.
    others: Vec<(String, ValueId)>,
    /// The new values of buffers.
    replaced: IndexMap<String, ValueId>,
    /// The output that the file calls the loss.
    stated_loss: Option<String>,
}

impl Returned {
    /// What the file returns has names of its own beside the loss and the gradients of a step.
    fn beside_loss(self, loss: Option<usize>) -> Returned {
        let Returned { user, others, replaced, stated_loss } = self;
        let returned: BTreeSet<String> = user.iter().chain(&others).map(|(name, _)| name.clone()).collect();
        let own =
            |(name, value): (String, ValueId)| (name_of_user(&name, |name| returned.contains(name)), value);
        let (mut user, others): (Vec<_>, Vec<_>) =
            (user.into_iter().map(own).collect(), others.into_iter().map(own).collect());
        if let Some(loss) = loss {
            user[loss].0 = LOSS.to_string();
        }
        Returned { user, others, replaced, stated_loss }
    }
}

/// Declares parameters and states with the values that they have in the file.
fn declare_stored(model: &mut Model, stored: &Stored, states: &[State]) {
    for (name, (_, _, tensor)) in &stored.params {
        let (ty, init) = (tensor.as_pairs().ty, usual_init(name, tensor.ty.rank()));
        model.params.insert(name.clone(), ParamSpec { ty, init, stream: stream_of(name), stored: None });
    }
    let kept = |state: &State| {
        let ty = state.initial.ty.clone();
        (state.name.clone(), ParamSpec::stored(&state.name, ty, state.initial.clone()))
    };
    model.states = states.iter().map(kept).collect();
}

/// The name of a user output before the loss was renamed.
fn user_name(file: &Pt2, position: usize, specs: &[OutputSpec]) -> String {
    let is_user =
        |spec: &&OutputSpec| matches!(spec, OutputSpec::UserOutput { .. } | OutputSpec::LossOutput { .. });
    let tensors = specs.iter().filter(is_user).enumerate().filter(|(_, spec)| {
        matches!(spec, OutputSpec::UserOutput { arg: Argument::Tensor(_) } | OutputSpec::LossOutput { .. })
    });
    let names = places::output_names(&file.program, specs.iter().filter(is_user).count());
    let at = tensors.map(|(at, _)| at).nth(position).unwrap_or_default();
    names.into_iter().nth(at).unwrap_or_default()
}

/// How a parameter usually begins when it is trained from scratch, as in GPT-2.
pub fn usual_init(name: &str, rank: usize) -> Init {
    match rank {
        0 | 1 if name.ends_with("weight") => Init::Ones,
        0 | 1 => Init::Zeros,
        _ => Init::Normal { std: 0.02 },
    }
}

fn changed_parameter(name: &str) -> Box<Diagnostic> {
    Diagnostic::new("E356", format!("the model changes its parameter `{name}`"))
        .expected("parameters that only the optimizer changes")
        .found("an op in place on the parameter")
        .help("make it a buffer, or change it outside `forward`")
}

/// The position of the loss among the outputs. E360 if the chosen one is not a float scalar, or
/// does not exist.
fn choose_loss(
    b: &GraphBuilder,
    user: &[(String, ValueId)],
    chosen: Option<String>,
    may_lack: bool,
) -> Result<Option<usize>> {
    let is_scalar = |value: ValueId| b.ty(value).rank() == 0 && b.ty(value).dtype.is_float();
    let Some(chosen) = chosen else {
        let mut scalars = user.iter().enumerate().filter(|(_, (_, value))| is_scalar(*value));
        let first = scalars.next();
        return match scalars.next() {
            None => Ok(first.map(|(position, _)| position)),
            // Several scalars: the one that is called the loss.
            Some(_) => match user.iter().position(|(name, value)| name == LOSS && is_scalar(*value)) {
                Some(position) => Ok(Some(position)),
                None if may_lack => Ok(None),
                None => {
                    let names: Vec<&str> =
                        user.iter().filter(|(_, v)| is_scalar(*v)).map(|(name, _)| name.as_str()).collect();
                    Err(Diagnostic::new("E360", "the program has several outputs that could be the loss")
                        .expected("the name of one of them as the option `loss`")
                        .found(names.join(", ")))
                }
            },
        };
    };
    let names = || user.iter().map(|(name, _)| name.as_str());
    match user.iter().position(|(name, _)| *name == chosen) {
        Some(position) if is_scalar(user[position].1) => Ok(Some(position)),
        Some(position) => Err(Diagnostic::new("E360", format!("the output `{chosen}` cannot be the loss"))
            .expected("a float scalar")
            .found(b.ty(user[position].1).to_string())),
        None => {
            let mut error = Diagnostic::new("E360", format!("the program has no output `{chosen}`"))
                .expected("the name of an output")
                .found(names().collect::<Vec<_>>().join(", "));
            error.help = did_you_mean(&chosen, names());
            Err(error)
        }
    }
}

/// Replaces a buffer, which is a constant, by an input.
fn become_input(b: &mut GraphBuilder, constant: ValueId, name: &str) -> ValueId {
    let ty = b.ty(constant).clone();
    let input = b.input(name, ty, Role::Input);
    let graph = b.graph_mut();
    graph.value_mut(constant).name.clear();
    for operand in graph.nodes.iter_mut().flat_map(|node| &mut node.operands) {
        if operand.index() == constant.index() {
            *operand = input;
        }
    }
    input
}

/// Declares that the output of a state replaces its input. E357 if their types differ.
fn alias_states(model: &mut Model, states: &[State]) -> Result<()> {
    let graph = &mut model.forward;
    for state in states {
        let input = graph.inputs.iter().position(|&v| graph.value(v).name == state.name);
        let (Some(input), Some(output)) = (input, graph.output_position(&state.name)) else {
            return Err(Diagnostic::new("E357", format!("`{}` is lost", state.name))
                .expected("an input and an output"));
        };
        let (old, new) = (graph.ty(graph.inputs[input]), graph.ty(graph.outputs[output]));
        if old != new {
            return Err(Diagnostic::new("E357", format!("`{}` is replaced by another type", state.name))
                .expected(old.to_string())
                .found(new.to_string()));
        }
        graph.aliases.push((input, output));
    }
    Ok(())
}
