//! Programs of StableHLO, such as JAX lowers them, as models: whole training steps, and forward passes.
//!
//! A training step takes its state and returns the next one: each pair that `tf.aliasing_output` declares (JAX donates the
//! argument) is an input that an output replaces. Those that the loss depends on are parameters; the others, such as the
//! moments of Adam, are states. What is left is fed. The step is trained as it is, since JAX has differentiated it.
//!
//! A forward pass has no such pairs. Its parameters are named by the caller, and it is differentiated here. A lowered
//! function shows no trace of `stop_gradient` or `custom_vjp`: the gradient is that of its ops, and a note says so.
//!
//! Loops of known trip count, such as `lax.scan` over layers, have been unrolled ([`partita_ir::unroll_loops`]).
//!
//! A step whose state was not donated names the state's argument in the options; results of the same paths replace it.
//!
//! The text has no values: parameters are drawn, states begin with zeros.

use crate::model::{ImportOptions, ImportedModel};
use crate::pt2::usual_init;
use crate::{Limits, Source, fold_padding, mlir, recognise_attention};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::port::{LOSS, name_of_user};
use partita_ir::{Graph, Op, Role, TensorType, ValueId, complex_as_pairs};
use partita_nn::init::stream_of;
use partita_nn::{Init, Model, ParamSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An opened program.
#[derive(Debug)]
pub struct StableHlo {
    graph: Graph,
}

impl StableHlo {
    /// Reads the entry function of a file of text.
    ///
    /// # Errors
    /// E350 if it cannot be read, E358 if it is too large, E140 to E149 with line and column.
    pub fn open(path: &Path, limits: &Limits) -> Result<StableHlo> {
        let source = Source::open(path)?;
        let bytes = source.read(0..source.len())?;
        let unread = |found: String| {
            Diagnostic::new("E350", format!("cannot read {}", path.display()))
                .expected("a file of MLIR text")
                .found(found)
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| unread(error.to_string()))?;
        StableHlo::read(text, &path.display().to_string(), limits)
    }

    /// Reads the entry function of a text. Errors as [`StableHlo::open`], and E170 for an op on complex numbers that has no
    /// counterpart on real ones.
    pub fn read(text: &str, file: &str, limits: &Limits) -> Result<StableHlo> {
        let graph = complex_as_pairs(mlir::read_function(text, file, None, limits)?)?;
        let mut graph = fold_padding(&recognise_attention(&graph)?)?;
        let names: Vec<String> = graph.inputs.iter().map(|&input| dotted(&graph.value(input).name)).collect();
        let distinct: BTreeSet<&String> = names.iter().collect();
        if distinct.len() == names.len() {
            for (input, name) in graph.inputs.clone().into_iter().zip(names) {
                graph.value_mut(input).name = name;
            }
        }
        name_apart(&mut graph);
        Ok(StableHlo { graph })
    }

    /// The model.
    ///
    /// # Errors
    /// E360 if the loss is ambiguous, does not exist or is no float scalar, or if a parameter of the options does not exist.
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedModel> {
        let mut graph = self.graph.clone();
        for argument in &options.state {
            let pairs = match argument.split_once('=') {
                Some((input, output)) => vec![pair(&graph, argument, [input.trim(), output.trim()])?],
                None => pairs_by_path(&graph, &dotted(argument))?,
            };
            graph.aliases.retain(|pair| pairs.iter().all(|new| new.0 != pair.0 && new.1 != pair.1));
            graph.aliases.extend(pairs);
        }
        let is_step = !graph.aliases.is_empty();
        for &(input, output) in &graph.aliases {
            let name = graph.value(graph.inputs[input]).name.clone();
            graph.output_names[output] = name;
        }
        let loss = choose_loss(&graph, options.loss.as_deref())?;
        if loss.is_some_and(|place| graph.output_names[place] != LOSS)
            && let Some(other) = graph.output_position(LOSS)
        {
            let names = graph.output_names.clone();
            graph.output_names[other] = name_of_user(LOSS, |name| names.iter().any(|own| own == name));
        }
        let loss_name = loss.map(|place| std::mem::replace(&mut graph.output_names[place], LOSS.to_string()));
        let carried = |graph: &Graph, value: ValueId| {
            graph.aliases.iter().any(|&(input, _)| graph.inputs[input] == value)
        };
        let mut notes = Vec::new();
        if is_step {
            let read = loss.map(|place| read_by(&graph, graph.outputs[place])).unwrap_or_default();
            for input in graph.inputs.clone() {
                let is_read = read.get(input.index()) == Some(&true);
                let is_parameter = carried(&graph, input) && is_read && graph.ty(input).dtype.is_float();
                if is_parameter {
                    graph.value_mut(input).role = Role::Param;
                }
            }
            for (state, parameter) in states_of_parameters(&graph) {
                graph.value_mut(state).role = Role::StateOf(parameter);
            }
        } else {
            mark_parameters(&mut graph, &options.parameters)?;
            if loss.is_some() && !graph.params().is_empty() {
                notes.push(
                    "the program is differentiated here: of `stop_gradient` and `custom_vjp` it shows no trace, and the \
                     gradient is that of its ops; a training step that JAX differentiated keeps them"
                        .to_string(),
                );
            }
        }
        let loops = graph.nodes.iter().filter(|node| matches!(node.op, Op::While(_))).count();
        if loops > 0 {
            notes.push(format!(
                "{loops} loops stay loops, because their trip count depends on data or is too large to unroll: every rank \
                 runs them in full, on gathered values"
            ));
        }
        // The text has roles only where this program wrote it.
        for input in graph.inputs.clone() {
            let value = graph.value_mut(input);
            if value.role == Role::Activation {
                value.role = Role::Input;
            }
        }
        let (mut params, mut states, mut inputs) = (IndexMap::new(), IndexMap::new(), IndexMap::new());
        for &input in &graph.inputs {
            let value = graph.value(input);
            let (name, ty): (String, TensorType) = (value.name.clone(), value.ty.clone());
            let spec = |init| ParamSpec { ty: ty.clone(), init, stream: stream_of(&name), stored: None };
            if value.role == Role::Param {
                params.insert(name.clone(), spec(usual_init(&name, ty.rank())));
            } else if carried(&graph, input) {
                states.insert(name.clone(), spec(Init::Zeros));
            } else {
                inputs.insert(name, ty);
            }
        }
        let outputs = graph.output_names.clone();
        let model = Model { forward: graph, params, states, ties: Vec::new(), modules: IndexMap::new() };
        Ok(ImportedModel {
            model,
            weights: IndexMap::new(),
            states: Vec::new(),
            inputs,
            outputs,
            loss: loss_name,
            sizes: BTreeMap::new(),
            state_dict: IndexMap::new(),
            notes,
        })
    }
}

/// Gives inputs and outputs names without a meaning in a step. A text that this program wrote has a role for its inputs, and
/// keeps its names.
fn name_apart(graph: &mut Graph) {
    if graph.inputs.iter().any(|&input| graph.value(input).role != Role::Activation) {
        return;
    }
    let mut taken: BTreeSet<String> =
        graph.inputs.iter().map(|&input| graph.value(input).name.clone()).collect();
    for input in graph.inputs.clone() {
        let value = graph.value_mut(input);
        value.name = name_of_user(&value.name, |name| taken.contains(name));
        taken.insert(value.name.clone());
    }
    // The output that is called the loss is the loss, if it can be.
    let loss = graph.output_position(LOSS).filter(|&place| is_scalar(graph, place));
    let mut taken: BTreeSet<String> = graph.output_names.iter().cloned().collect();
    for place in (0..graph.output_names.len()).filter(|&place| Some(place) != loss) {
        let name = name_of_user(&graph.output_names[place], |name| taken.contains(name));
        taken.insert(name.clone());
        graph.output_names[place] = name;
    }
}

/// Whether an output is a float scalar.
fn is_scalar(graph: &Graph, place: usize) -> bool {
    let ty = graph.ty(graph.outputs[place]);
    ty.rank() == 0 && ty.dtype.is_float()
}

/// The path of a leaf of JAX's trees, as modules have: `params.layers.0.w` for `params['layers'][0]['w']`. Other names stay.
pub fn dotted(name: &str) -> String {
    let Some((first, rest)) = name.split_once('[') else { return name.to_string() };
    let mut parts = vec![first];
    for key in rest.split('[') {
        let Some((key, attributes)) = key.split_once(']') else { return name.to_string() };
        let quoted = key.strip_prefix('\'').and_then(|key| key.strip_suffix('\''));
        let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let Some(key) = quoted.or(is_number.then_some(key)) else { return name.to_string() };
        parts.push(key);
        // `.mu` behind a bracket is an attribute of the element.
        match attributes.strip_prefix('.') {
            Some(attribute) => parts.push(attribute),
            None if attributes.is_empty() => {}
            None => return name.to_string(),
        }
    }
    match parts.iter().all(|part| !part.is_empty()) {
        true => parts.join("."),
        false => name.to_string(),
    }
}

/// Each leaf of an argument with the result of the same path, `state.params.w` with `result[0]['params']['w']`. E360 if one
/// has no such result or several, or one of another type.
fn pairs_by_path(graph: &Graph, argument: &str) -> Result<Vec<(usize, usize)>> {
    let wrong = |what: String| {
        Diagnostic::new("E360", format!("`{argument}` cannot be the state: {what}"))
            .expected("for each of its leaves, one result of the same path and type")
            .found(graph.output_names.join(", "))
    };
    let mut results: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (position, name) in graph.output_names.iter().enumerate() {
        let name = dotted(name);
        let Some(inside) = name.strip_prefix("result.") else { continue };
        // A step returns its state alone, or in a tuple with others.
        let in_tuple =
            inside.split_once('.').filter(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
        results.entry(in_tuple.map_or(inside, |(_, path)| path).to_string()).or_default().push(position);
    }
    let mut pairs = Vec::new();
    for (position, &input) in graph.inputs.iter().enumerate() {
        let name = &graph.value(input).name;
        let Some(path) = name.strip_prefix(argument).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        match results.get(path).map(Vec::as_slice) {
            Some(&[output]) if graph.ty(graph.outputs[output]) == graph.ty(input) => {
                pairs.push((position, output))
            }
            Some([_]) => return Err(wrong(format!("the result for `{name}` has another type"))),
            Some(_) => return Err(wrong(format!("several results could replace `{name}`"))),
            None => return Err(wrong(format!("no result replaces `{name}`"))),
        }
    }
    if pairs.is_empty() { Err(wrong("no input is a leaf of it".to_string())) } else { Ok(pairs) }
}

/// The argument and the result of a pair `argument=result`. E360 if the program has no such pair of one type.
fn pair(graph: &Graph, text: &str, [input, output]: [&str; 2]) -> Result<(usize, usize)> {
    let inputs: Vec<&str> = graph.inputs.iter().map(|&input| graph.value(input).name.as_str()).collect();
    let outputs: Vec<&str> = graph.output_names.iter().map(String::as_str).collect();
    let find = |what: &str, name: &str, names: &[&str]| {
        names.iter().position(|own| *own == name || dotted(own) == dotted(name)).ok_or_else(|| {
            let mut error = Diagnostic::new("E360", format!("the program has no {what} `{name}`"))
                .at(format!("model.state, `{text}`"))
                .expected("an argument and the result that replaces it: `argument=result`")
                .found(names.join(", "));
            error.help = did_you_mean(name, names.iter().copied());
            error
        })
    };
    let (place, result) = (find("argument", input, &inputs)?, find("result", output, &outputs)?);
    let types = [graph.ty(graph.inputs[place]), graph.ty(graph.outputs[result])];
    match types[0] == types[1] {
        true => Ok((place, result)),
        false => Err(Diagnostic::new("E360", format!("`{output}` cannot replace `{input}`"))
            .at(format!("model.state, `{text}`"))
            .expected(types[0].to_string())
            .found(types[1].to_string())),
    }
}

/// For each value, whether another one depends on it.
fn read_by(graph: &Graph, value: ValueId) -> Vec<bool> {
    let mut read = vec![false; graph.values.len()];
    read[value.index()] = true;
    for node in graph.nodes.iter().rev() {
        if node.results.iter().any(|result| read[result.index()]) {
            node.operands.iter().for_each(|operand| read[operand.index()] = true);
        }
    }
    read
}

/// Which parameters a value updates.
#[derive(Clone, Copy, PartialEq)]
enum Serves {
    /// No parameter's next value.
    None,
    /// The next value of one parameter.
    One(ValueId),
    /// Those of several.
    Several,
}

/// The states from which the next value of exactly one parameter is computed, such as Adam's moments, and that parameter.
fn states_of_parameters(graph: &Graph) -> Vec<(ValueId, ValueId)> {
    let mut targets = vec![Serves::None; graph.values.len()];
    let mut reaches = |value: ValueId, target: Serves| {
        let known = &mut targets[value.index()];
        *known = match (*known, target) {
            (Serves::None, other) | (other, Serves::None) => other,
            (known, target) if known == target => known,
            _ => Serves::Several,
        };
        *known
    };
    for &(input, output) in &graph.aliases {
        let old = graph.inputs[input];
        if graph.value(old).role == Role::Param {
            reaches(graph.outputs[output], Serves::One(old));
        }
    }
    for node in graph.nodes.iter().rev() {
        let of_results = node.results.iter().map(|&result| reaches(result, Serves::None));
        for target in of_results.collect::<Vec<_>>() {
            for &operand in &node.operands {
                reaches(operand, target);
            }
        }
    }
    let kept = graph.aliases.iter().map(|&(input, _)| graph.inputs[input]);
    let states =
        kept.filter(|&input| graph.value(input).role != Role::Param && graph.ty(input).dtype.is_float());
    let with_parameter = states.filter_map(|state| match targets[state.index()] {
        Serves::One(parameter) => Some((state, parameter)),
        Serves::None | Serves::Several => None,
    });
    with_parameter.collect()
}

/// The inputs of these names become parameters; `params*` names all that begin so. Those that the text marks are ones too.
fn mark_parameters(graph: &mut Graph, names: &[String]) -> Result<()> {
    for name in names {
        // Inputs have dotted names; a user may write what JAX prints.
        let name = &dotted(name);
        let fits = |own: &str| match name.strip_suffix('*') {
            Some(beginning) => own.starts_with(beginning),
            None => own == name,
        };
        let float = |value: &ValueId| graph.ty(*value).dtype.is_float() && fits(&graph.value(*value).name);
        let found: Vec<ValueId> = graph.inputs.iter().copied().filter(float).collect();
        if found.is_empty() {
            let inputs: Vec<&str> =
                graph.inputs.iter().map(|&input| graph.value(input).name.as_str()).collect();
            let mut error =
                Diagnostic::new("E360", format!("the program has no float input `{name}` to train"))
                    .expected("the name of an input, or the beginning of names and `*`")
                    .found(inputs.join(", "));
            error.help = did_you_mean(name, inputs);
            return Err(error);
        }
        found.into_iter().for_each(|input| graph.value_mut(input).role = Role::Param);
    }
    Ok(())
}

/// The position of the loss: the output of this name, the one called `loss` (`result['loss']` of JAX), or the
/// only float scalar that replaces nothing.
fn choose_loss(graph: &Graph, name: Option<&str>) -> Result<Option<usize>> {
    let is_scalar = |&place: &usize| is_scalar(graph, place);
    let new =
        (0..graph.outputs.len()).filter(|place| graph.aliases.iter().all(|&(_, output)| output != *place));
    let new: Vec<usize> = new.collect();
    // JAX calls a result `result['loss']`, or `result[0]['loss']` in a tuple.
    let is_named = |own: &str, name: &str| own == name || dotted(own) == dotted(name);
    let named = |name: &str| new.iter().copied().find(|&place| is_named(&graph.output_names[place], name));
    let is_called_loss = |place: &usize| dotted(&graph.output_names[*place]).rsplit('.').next() == Some(LOSS);
    let names = || new.iter().map(|&place| graph.output_names[place].as_str());
    if let Some(name) = name {
        return match named(name) {
            Some(place) if is_scalar(&place) => Ok(Some(place)),
            Some(place) => Err(Diagnostic::new("E360", format!("the output `{name}` cannot be the loss"))
                .expected("a float scalar")
                .found(graph.ty(graph.outputs[place]).to_string())),
            None => {
                let mut error = Diagnostic::new("E360", format!("the program has no output `{name}`"))
                    .expected("the name of an output that replaces no input")
                    .found(names().collect::<Vec<_>>().join(", "));
                error.help = did_you_mean(name, names());
                Err(error)
            }
        };
    }
    let scalars: Vec<usize> = new.iter().copied().filter(is_scalar).collect();
    let called_loss: Vec<usize> = scalars.iter().copied().filter(is_called_loss).collect();
    match (&called_loss[..], &scalars[..]) {
        (&[place], _) | ([], &[place]) => Ok(Some(place)),
        (_, []) => Ok(None),
        (_, several) => {
            Err(Diagnostic::new("E360", "the program has several outputs that could be the loss")
                .expected("the name of one of them as the option `loss`")
                .found(
                    several
                        .iter()
                        .map(|&place| graph.output_names[place].as_str())
                        .collect::<Vec<_>>()
                        .join(", "),
                ))
        }
    }
}
