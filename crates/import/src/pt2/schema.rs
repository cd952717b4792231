//! The JSON of an exported program: `torch/_export/serde/schema.py`, major version 8, minor 14
//! (torch 2.9) to 20 (torch 2.15). Fields that the import does not need are ignored.
//!
//! Unions are objects with one key, `{"as_int": 3}`. The union of arguments is read by hand, because
//! an unknown alternative must become an error that names the op, not a failure of the parser.

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// `models/<name>.json`.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Program {
    pub graph_module: GraphModule,
    pub schema_version: Version,
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Bounds>,
    #[serde(default)]
    pub torch_version: String,
    /// The dialect: `TRAINING` as exported, `ATEN` after decomposition.
    #[serde(default)]
    pub verifiers: Vec<String>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
}

/// The bounds of a symbolic size.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Bounds {
    #[serde(default)]
    pub min_val: Option<i64>,
    #[serde(default)]
    pub max_val: Option<i64>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCall>,
}

/// A graph: SSA, except that ops may change tensors in place.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    pub tensor_values: BTreeMap<String, TensorMeta>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Node {
    /// `torch.ops.aten.linear.default`
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct NamedArgument {
    /// The name in the operator's schema; empty for arguments of a higher-order op.
    pub name: String,
    pub arg: Argument,
}

/// Where a node comes from.
#[derive(serde::Deserialize, Clone, PartialEq, Debug, Default)]
pub struct Metadata {
    #[serde(default)]
    pub stack_trace: String,
    #[serde(default)]
    pub nn_module_stack: String,
}

/// What the file says of a tensor.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct TensorMeta {
    pub dtype: u64,
    pub sizes: Vec<Size>,
    pub strides: Vec<Size>,
    pub storage_offset: Size,
    #[serde(default)]
    pub requires_grad: bool,
    #[serde(default = "strided")]
    pub layout: u64,
}

/// The number of the strided layout.
pub const STRIDED: u64 = 7;

fn strided() -> u64 {
    STRIDED
}

/// A size: a number or an expression over symbols.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    AsInt(i64),
    AsExpr(Expression),
}

/// A size in sympy's `srepr` with its value at export.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Expression {
    pub expr_str: String,
    #[serde(default)]
    pub hint: Option<Hint>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub enum Hint {
    #[serde(rename = "as_int")]
    Int(i64),
    #[serde(rename = "as_float")]
    Float(Real),
    #[serde(rename = "as_bool")]
    Bool(bool),
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Named {
    pub name: String,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String },
    TensorConstant { arg: Named, tensor_constant_name: String },
    UserInput { arg: Argument },
    ConstantInput { name: String },
    CustomObj { arg: Named },
    Token { arg: Named },
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput { arg: Named },
    BufferMutation { arg: Named, buffer_name: String },
    ParameterMutation { arg: Named, parameter_name: String },
    UserInputMutation { arg: Named, user_input_name: String },
    GradientToParameter { arg: Named, parameter_name: String },
    GradientToUserInput { arg: Named, user_input_name: String },
    Token {},
}

impl OutputSpec {
    /// Whether it is a gradient, as joint programs have.
    pub fn is_gradient(&self) -> bool {
        matches!(self, OutputSpec::GradientToParameter { .. } | OutputSpec::GradientToUserInput { .. })
    }
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct ModuleCall {
    pub fqn: String,
    #[serde(default)]
    pub signature: Option<CallSignature>,
}

#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct CallSignature {
    #[serde(default)]
    pub out_spec: String,
}

/// A float; the ones that JSON lacks are strings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Real(pub f64);

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Real, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Real;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Real, E> {
                Ok(Real(value))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Real, E> {
                Ok(Real(value as f64))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Real, E> {
                Ok(Real(value as f64))
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Real, E> {
                match value {
                    "Infinity" => Ok(Real(f64::INFINITY)),
                    "-Infinity" => Ok(Real(f64::NEG_INFINITY)),
                    "NaN" => Ok(Real(f64::NAN)),
                    _ => Err(E::custom(format!("`{value}` is not a number"))),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// An integer, or the name of a value that holds one.
#[derive(Clone, PartialEq, Debug)]
pub enum Int {
    Value(i64),
    Name(String),
}

/// One argument of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Argument {
    None,
    Tensor(String),
    Tensors(Vec<String>),
    OptionalTensors(Vec<Option<String>>),
    Int(Int),
    Ints(Vec<Int>),
    Float(f64),
    Floats(Vec<f64>),
    /// A real and an imaginary part.
    Complex([f64; 2]),
    Bool(bool),
    Bools(Vec<bool>),
    /// The name of a computed boolean or float.
    Computed(String),
    Text(String),
    DType(u64),
    Graph(Box<Graph>),
    /// Devices, layouts and memory formats: nothing here depends on them.
    Ignored,
    /// An alternative that this reader does not know.
    Unknown(String),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum OptionalTensor {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum SymInt {
    AsName(String),
    AsInt(i64),
}

impl From<SymInt> for Int {
    fn from(value: SymInt) -> Int {
        match value {
            SymInt::AsName(name) => Int::Name(name),
            SymInt::AsInt(value) => Int::Value(value),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum SymBool {
    AsName(String),
    AsBool(bool),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum SymFloat {
    AsName(String),
    AsFloat(Real),
}

#[derive(serde::Deserialize)]
struct ComplexValue {
    real: Real,
    imag: Real,
}

#[derive(serde::Deserialize)]
struct GraphArgument {
    graph: Graph,
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Argument, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Argument;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an argument: an object with one key")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument, A::Error> {
                let Some(key) = map.next_key::<String>()? else {
                    return Err(A::Error::custom("an argument without a value"));
                };
                let argument = alternative(&key, &mut map)?;
                match map.next_key::<String>()? {
                    Some(second) => {
                        Err(A::Error::custom(format!("an argument that is `{key}` and `{second}`")))
                    }
                    None => Ok(argument),
                }
            }
        }
        deserializer.deserialize_map(Read)
    }
}

fn alternative<'de, A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Argument, A::Error> {
    let names = |list: Vec<Named>| list.into_iter().map(|tensor| tensor.name).collect();
    Ok(match key {
        "as_none" => {
            map.next_value::<IgnoredAny>()?;
            Argument::None
        }
        "as_tensor" => Argument::Tensor(map.next_value::<Named>()?.name),
        "as_tensors" => Argument::Tensors(names(map.next_value()?)),
        "as_optional_tensor" => match map.next_value::<OptionalTensor>()? {
            OptionalTensor::AsTensor(tensor) => Argument::Tensor(tensor.name),
            OptionalTensor::AsNone(_) => Argument::None,
        },
        "as_optional_tensors" => {
            let list: Vec<OptionalTensor> = map.next_value()?;
            let name = |tensor| match tensor {
                OptionalTensor::AsTensor(tensor) => Some(tensor.name),
                OptionalTensor::AsNone(_) => None,
            };
            Argument::OptionalTensors(list.into_iter().map(name).collect())
        }
        "as_int" => Argument::Int(Int::Value(map.next_value()?)),
        "as_ints" => Argument::Ints(map.next_value::<Vec<i64>>()?.into_iter().map(Int::Value).collect()),
        "as_sym_int" => Argument::Int(map.next_value::<SymInt>()?.into()),
        "as_sym_ints" => {
            Argument::Ints(map.next_value::<Vec<SymInt>>()?.into_iter().map(Int::from).collect())
        }
        "as_float" => Argument::Float(map.next_value::<Real>()?.0),
        "as_floats" => Argument::Floats(map.next_value::<Vec<Real>>()?.into_iter().map(|r| r.0).collect()),
        "as_complex" => {
            let ComplexValue { real, imag } = map.next_value()?;
            Argument::Complex([real.0, imag.0])
        }
        "as_sym_float" => match map.next_value::<SymFloat>()? {
            SymFloat::AsName(name) => Argument::Computed(name),
            SymFloat::AsFloat(value) => Argument::Float(value.0),
        },
        "as_bool" => Argument::Bool(map.next_value()?),
        "as_bools" => Argument::Bools(map.next_value()?),
        "as_sym_bool" => match map.next_value::<SymBool>()? {
            SymBool::AsName(name) => Argument::Computed(name),
            SymBool::AsBool(value) => Argument::Bool(value),
        },
        "as_string" => Argument::Text(map.next_value()?),
        "as_scalar_type" => Argument::DType(map.next_value()?),
        "as_graph" => Argument::Graph(Box::new(map.next_value::<GraphArgument>()?.graph)),
        "as_device" | "as_layout" | "as_memory_format" => {
            map.next_value::<IgnoredAny>()?;
            Argument::Ignored
        }
        _ => {
            map.next_value::<IgnoredAny>()?;
            Argument::Unknown(key.to_string())
        }
    })
}

/// `*_weights_config.json` and `*_constants_config.json`.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct PayloadTable {
    pub config: BTreeMap<String, Payload>,
}

/// Where the values of a tensor are, and its type.
#[derive(serde::Deserialize, Clone, PartialEq, Debug)]
pub struct Payload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    #[serde(default)]
    pub tensor_meta: Option<TensorMeta>,
}
