//! Functions of MLIR: read, planned for a mesh, run once.
//!
//! A function is a model without parameters: its inputs are fed, and dimension 0 of them is split over the mesh as a batch
//! is. What it computes does not depend on the mesh.

use crate::models::from_fn;
use crate::session::Session;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean, read_at_most};
use partita_import::mlir::read_function;
use partita_import::stablehlo::dotted;
use partita_import::{Limits, Weights};
use partita_ir::interpret::work;
use partita_ir::{Graph, Literal, Role, TensorType, complex_as_pairs, evaluate};
use partita_nn::Model;
use partita_nn::random::Draws;
use partita_runtime::MemoryLimit;
use partita_schedule::feed::{Fed, random};
use std::path::Path;

/// Bytes that a text may have: 1 GiB, constants included.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// A function that was read.
#[derive(Clone, Debug)]
pub struct Function {
    graph: Graph,
}

impl Function {
    /// The function of this name in a text, or else `@main` or the only public one.
    ///
    /// # Errors
    /// E140 to E149 with line and column: see [`read_function`].
    pub fn read(text: &str, file: &str, function: Option<&str>) -> Result<Function> {
        let graph = read_function(text, file, function, &Limits::default()).map_err(|mut error| {
            if let Some(name) = function.filter(|_| error.code == "E143" && error.expected.is_none()) {
                let names = functions_of(text);
                error.expected =
                    Some(format!("a function of the file instead of `{name}`: {}", names.join(", ")));
            }
            error
        })?;
        Ok(Function { graph })
    }

    /// [`Function::read`] for a file.
    ///
    /// # Errors
    /// E005 for a file that cannot be read, and those of [`Function::read`].
    pub fn open(path: &Path, function: Option<&str>) -> Result<Function> {
        let unread = |found: String| {
            Diagnostic::new("E005", format!("cannot read `{}`", path.display()))
                .expected("a file of MLIR text")
                .found(found)
        };
        let bytes = read_at_most(path, MAX_TEXT_BYTES).map_err(|error| unread(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| match error.as_bytes() {
            bytes if bytes.starts_with(b"PK") && path.extension().is_some_and(|ending| ending == "pt2") => {
                let file = path.display();
                unread("an exported program of PyTorch".to_string())
                    .help(format!("`partita verify {file}`, `show`, `explain` and `train` take such models"))
            }
            bytes if bytes.starts_with(b"ML\xefR") => unread("MLIR bytecode".to_string())
                .help("print it as text: `mlir-opt FILE` or `stablehlo-opt FILE`"),
            _ => unread(format!("a file that is not text ({})", error.utf8_error())),
        })?;
        Function::read(&text, &path.display().to_string(), function)
    }

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.graph.name
    }

    /// The names and types of its arguments.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.graph.inputs.iter().map(|&input| {
            let value = self.graph.value(input);
            (value.name.as_str(), &value.ty)
        })
    }

    /// Arguments of its types from numbers and files, in order. Each text is a number, numbers with commas between, a
    /// `.npy` file, or a `.npz` or `.safetensors` file that has several arguments by name. Arguments that nothing is given
    /// for are random.
    ///
    /// # Errors
    /// E040 if they would not fit into `memory`, E414 for more arguments than the function has or a name that is none, E415
    /// for a type or a number of elements that the argument does not have, E350 to E361 for files that cannot be read.
    pub fn arguments(&self, texts: &[String], seed: u64, memory: MemoryLimit) -> Result<Vec<Literal>> {
        let types: Vec<(&str, &TensorType)> = self.inputs().collect();
        let bytes = types.iter().fold(0u64, |sum, (_, ty)| sum.saturating_add(ty.bytes() as u64));
        memory.request(bytes, &format!("the arguments of `{}`", self.name()))?;
        let mut given: Vec<Option<Literal>> = vec![None; types.len()];
        for text in texts {
            let path = Path::new(text);
            let free = given.iter().position(Option::is_none);
            let (name, ty) = match free {
                Some(at) => types[at],
                None => {
                    return Err(Diagnostic::new("E414", "there are more inputs than arguments")
                        .at("--input")
                        .expected(format!("{} for `{}`", types.len(), self.name()))
                        .found(format!("{text} beside them")));
                }
            };
            match path.extension().and_then(|ending| ending.to_str()) {
                Some("npz" | "safetensors") => {
                    let tensors = Weights::open(path, &Limits::default())?;
                    for (own, tensor) in tensors.iter() {
                        // What JAX prints, `b['x']`, and the path that models have, `b.x`, are one name.
                        let exact = types.iter().position(|(name, _)| *name == own);
                        let by_path = || types.iter().position(|(name, _)| dotted(name) == dotted(own));
                        let Some(at) = exact.or_else(by_path) else {
                            let mut error = Diagnostic::new("E414", format!("there is no argument `{own}`"))
                                .at(text.clone())
                                .expected(types.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
                            error.help = did_you_mean(own, types.iter().map(|(name, _)| *name));
                            return Err(error);
                        };
                        given[at] = Some(fitting(tensor.literal()?, own, types[at].1)?);
                    }
                }
                Some("npy") => {
                    let tensors = Weights::open(path, &Limits::default())?;
                    let tensor = tensors.iter().next().expect("a file of one array").1.literal()?;
                    given[free.expect("found above")] = Some(fitting(tensor, name, ty)?);
                }
                _ => given[free.expect("found above")] = Some(numbers(text, name, ty)?),
            }
        }
        let fill = |((name, ty), given): ((&str, &TensorType), Option<Literal>)| {
            given.unwrap_or_else(|| random(ty, Draws::new(seed, name), 2))
        };
        Ok(types.into_iter().zip(given).map(fill).collect())
    }

    /// An element type of the function that no device computes with, if the session is of one rank: then the interpreter
    /// evaluates it.
    pub fn only_interpreted(&self, session: &Session) -> Option<DType> {
        let mut types = self.graph.value_ids().map(|value| self.graph.ty(value).dtype);
        types.find(|dtype| dtype.is_inert() && session.mesh().rank_count() == 1)
    }

    /// Runs it once on the mesh of a session made for it by [`Function::session`]; the results in order, with their names.
    ///
    /// # Errors
    /// E415 for arguments of other types, E040 for too little memory, and what planning, lowering and running refuse.
    pub fn run(&self, session: &Session, arguments: &[Literal]) -> Result<IndexMap<String, Literal>> {
        let types: Vec<&TensorType> = self.inputs().map(|(_, ty)| ty).collect();
        let given: Vec<&TensorType> = arguments.iter().map(|argument| &argument.ty).collect();
        if types != given {
            let list =
                |types: &[&TensorType]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
            return Err(Diagnostic::new("E415", format!("the arguments do not fit `{}`", self.name()))
                .expected(list(&types))
                .found(list(&given)));
        }
        if self.only_interpreted(session).is_some() {
            let memory = session.config().train.memory_limit;
            memory.request(work(&self.graph).peak_bytes, &format!("the values of `{}`", self.name()))?;
            let results = evaluate(&self.graph, arguments)?;
            return Ok(self.graph.output_names.iter().cloned().zip(results).collect());
        }
        let model = self.model()?;
        let fed: Fed =
            arguments.iter().enumerate().map(|(at, value)| (input_name(at), as_pairs(value))).collect();
        // An argument that nothing reads is no input of the planned graph.
        let graph = &model.forward;
        let mut is_read = vec![false; graph.values.len()];
        let operands = graph.nodes.iter().flat_map(|node| &node.operands);
        operands.chain(&graph.outputs).for_each(|value| is_read[value.index()] = true);
        let read = |name: &String| graph.input_named(name).is_some_and(|input| is_read[input.index()]);
        let fed: Fed = fed.into_iter().filter(|(name, _)| read(name)).collect();
        let names: Vec<&str> = fed.keys().map(String::as_str).collect();
        let mut results = session.inference(&model, &names)?.run(&fed)?;
        let result = |(at, name): (usize, &String)| {
            let value = results.swap_remove(&output_name(at)).expect("a function returns all its results");
            let ty = self.graph.ty(self.graph.outputs[at]);
            let value = match ty.dtype.is_complex() {
                true => Literal::from_bytes(ty, &value.bytes()).expect("the same bytes"),
                false => value,
            };
            (name.clone(), value)
        };
        Ok(self.graph.output_names.iter().enumerate().map(result).collect())
    }

    /// A session on a mesh such as `dp=2`.
    ///
    /// # Errors
    /// Those of [`Session::of`].
    pub fn session(&self, mesh: &str) -> Result<Session> {
        Session::of(from_fn(self.name(), |_, _| Ok(Vec::new())), mesh)
    }

    /// The function as a model, under names that mean nothing to a training step.
    fn model(&self) -> Result<Model> {
        let mut forward = complex_as_pairs(self.graph.clone())?;
        forward.aliases.clear();
        for (at, input) in forward.inputs.clone().into_iter().enumerate() {
            let value = forward.value_mut(input);
            (value.name, value.role) = (input_name(at), Role::Input);
        }
        forward.output_names = (0..forward.outputs.len()).map(output_name).collect();
        let none = IndexMap::new;
        Ok(Model { forward, params: none(), states: none(), ties: Vec::new(), modules: IndexMap::new() })
    }
}

/// Complex numbers as real ones with a last dimension of 2: the same bytes.
fn as_pairs(value: &Literal) -> Literal {
    let pairs = value.ty.as_pairs().and_then(|ty| Literal::from_bytes(&ty, &value.bytes()));
    pairs.unwrap_or_else(|| value.clone())
}

fn input_name(at: usize) -> String {
    format!("argument.{at}")
}

fn output_name(at: usize) -> String {
    format!("result.{at}")
}

/// Reads a function from a text and runs it once on a mesh; the results in order, with their names.
///
/// ```
/// use partita::function::run_function;
/// use partita::prelude::*;
/// let text = "func.func @simple_add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
///   %0 = arith.addf %a, %b : tensor<4xf32>
///   return %0 : tensor<4xf32>
/// }";
/// let arguments = [Literal::new([4], vec![1.0f32, 2.0, 3.0, 4.0]), Literal::new([4], vec![5.0f32, 6.0, 7.0, 8.0])];
/// let results = run_function(text, "add.mlir", None, &arguments, "dp=2")?;
/// assert_eq!(results[0].to_f64(), [6.0, 8.0, 10.0, 12.0]);
/// # Ok::<(), Box<Diagnostic>>(())
/// ```
///
/// # Errors
/// Those of [`Function::read`] and [`Function::run`].
pub fn run_function(
    text: &str,
    file: &str,
    function: Option<&str>,
    arguments: &[Literal],
    mesh: &str,
) -> Result<IndexMap<String, Literal>> {
    let function = Function::read(text, file, function)?;
    function.run(&function.session(mesh)?, arguments)
}

/// The names of the functions that a text defines, for messages.
fn functions_of(text: &str) -> Vec<&str> {
    let name = |rest: &'_ str| -> Option<(usize, usize)> {
        let begin = rest.find('@')? + 1;
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '.' | '-');
        let length = rest[begin..].find(|c| !is_of_name(c)).unwrap_or(rest.len() - begin);
        Some((begin, begin + length))
    };
    let parts = text.split("func.func").skip(1);
    parts.filter_map(|rest| name(rest).map(|(begin, end)| &rest[begin..end])).collect()
}

/// Whether a conversion made a finite number infinite.
fn overflows(before: &[f64], after: &Literal) -> bool {
    before.iter().zip(after.to_f64()).any(|(before, after)| before.is_finite() && after.is_infinite())
}

/// A tensor as an argument: of the same number of elements and kind. E415 otherwise.
fn fitting(value: Literal, name: &str, ty: &TensorType) -> Result<Literal> {
    if value.ty == *ty {
        return Ok(value);
    }
    let unfit = || {
        Diagnostic::new("E415", format!("this is no value for the argument `{name}`"))
            .at("--input")
            .expected(ty.to_string())
            .found(value.ty.to_string())
    };
    if value.ty.shape != ty.shape || (value.ty.dtype.is_float() && !ty.dtype.is_float()) {
        return Err(unfit());
    }
    match ty.dtype.is_float() {
        true => {
            let numbers = value.to_f64();
            let converted = Literal::from_f64(ty, numbers.iter().copied());
            if overflows(&numbers, &converted) { Err(unfit()) } else { Ok(converted) }
        }
        false => {
            let converted = Literal::from_i128(ty, value.to_i128().into_iter());
            if converted.to_i128() == value.to_i128() { Ok(converted) } else { Err(unfit()) }
        }
    }
}

/// `1,2,3,4`, row by row; one number fills all elements.
fn numbers(text: &str, name: &str, ty: &TensorType) -> Result<Literal> {
    let unread = |found: String| {
        Diagnostic::new("E415", format!("this is no value for the argument `{name}`"))
            .at("--input")
            .expected(format!(
                "{} numbers for {ty}, with commas between, or a file that ends in .npy, .npz or .safetensors",
                ty.element_count()
            ))
            .found(found)
    };
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let count = ty.element_count();
    if words.len() != count && words.len() != 1 {
        return Err(unread(format!("{} numbers", words.len())));
    }
    let repeat = if words.len() == count { 1 } else { count };
    match ty.dtype.is_float() {
        true => {
            let beyond = |word: &str| unread(format!("`{word}`, which is beyond {}", ty.dtype));
            let number = |word: &&str| {
                let number = word.parse::<f64>().map_err(|_| unread(format!("`{word}`")))?;
                let is_written = word.trim_start_matches(['+', '-']).to_ascii_lowercase().starts_with("inf");
                if number.is_infinite() && !is_written { Err(beyond(word)) } else { Ok(number) }
            };
            let numbers = words.iter().map(number).collect::<Result<Vec<f64>>>()?;
            let value = Literal::from_f64(ty, numbers.repeat(repeat).into_iter());
            if overflows(&numbers, &value) {
                return Err(beyond(text));
            }
            Ok(value)
        }
        false => {
            let number = |word: &str| match word {
                "true" => Some(1),
                "false" => Some(0),
                word => word.parse::<i128>().ok(),
            };
            let numbers = words.iter().map(|word| number(word).ok_or_else(|| unread(format!("`{word}`"))));
            let numbers = numbers.collect::<Result<Vec<i128>>>()?.repeat(repeat);
            let value = Literal::from_i128(ty, numbers.iter().copied());
            if value.to_i128() == numbers {
                Ok(value)
            } else {
                Err(unread(format!("numbers beyond {}", ty.dtype)))
            }
        }
    }
}
