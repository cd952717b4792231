//! The dialect `torch` as torch-mlir prints it: ATen ops on `!torch.vtensor`, with constants and lists as values.
//!
//! A call of ATen is a call of ATen, whatever wrote it. So a function becomes an exported program as a `.pt2` file has it,
//! and the import of those files does the rest: the table of ops, promotion of types, views. What a text lacks is the names
//! of arguments, which the schemas below add. Literals become constants of the program.

use super::elementwise::literal;
use crate::pt2::Pt2;
use crate::pt2::schema::{
    Argument, Graph as Calls, GraphModule, InputSpec, Int, Metadata, Named, NamedArgument, Node, OutputSpec,
    Program, STRIDED, Signature, Size, TensorMeta, Version,
};
use crate::{ImportOptions, Limits, Tensor};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::{Graph, Literal, TensorType};
use partita_mlir::{Attribute, Cursor, Kind, Operation, Span, Tree, Type, unquote};
use std::collections::BTreeMap;

/// The arguments of each op, in order, as `native_functions.yaml` names them.
const SCHEMAS: &[(&str, &[&str])] = &[
    ("_softmax", &["self", "dim", "half_to_float"]),
    ("add.Scalar", &["self", "other", "alpha"]),
    ("add.Tensor", &["self", "other", "alpha"]),
    ("addmm", &["self", "mat1", "mat2", "beta", "alpha"]),
    ("bmm", &["self", "mat2"]),
    ("cat", &["tensors", "dim"]),
    ("clone", &["self", "memory_format"]),
    ("div.Scalar", &["self", "other"]),
    ("div.Tensor", &["self", "other"]),
    ("dropout", &["input", "p", "train"]),
    ("embedding", &["weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"]),
    ("exp", &["self"]),
    ("expand", &["self", "size", "implicit"]),
    ("flatten.using_ints", &["self", "start_dim", "end_dim"]),
    ("gelu", &["self", "approximate"]),
    ("layer_norm", &["input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable"]),
    ("linear", &["input", "weight", "bias"]),
    ("log_softmax.int", &["self", "dim", "dtype"]),
    ("matmul", &["self", "other"]),
    ("mean.dim", &["self", "dim", "keepdim", "dtype"]),
    ("mm", &["self", "mat2"]),
    ("mul.Scalar", &["self", "other"]),
    ("mul.Tensor", &["self", "other"]),
    ("native_layer_norm", &["input", "normalized_shape", "weight", "bias", "eps"]),
    ("neg", &["self"]),
    ("permute", &["self", "dims"]),
    ("pow.Tensor_Scalar", &["self", "exponent"]),
    ("relu", &["self"]),
    ("reshape", &["self", "shape"]),
    ("rsqrt", &["self"]),
    (
        "scaled_dot_product_attention",
        &["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"],
    ),
    ("select.int", &["self", "dim", "index"]),
    ("sigmoid", &["self"]),
    ("silu", &["self"]),
    ("slice.Tensor", &["self", "dim", "start", "end", "step"]),
    ("softmax.int", &["self", "dim", "dtype"]),
    ("squeeze.dim", &["self", "dim"]),
    ("sub.Tensor", &["self", "other", "alpha"]),
    ("sum.dim_IntList", &["self", "dim", "keepdim", "dtype"]),
    ("t", &["self"]),
    ("tanh", &["self"]),
    ("transpose.int", &["self", "dim0", "dim1"]),
    ("unsqueeze", &["self", "dim"]),
    ("view", &["self", "size"]),
];

/// Element types: their names in the text, and the number of each in an exported program.
const DTYPES: &[(&str, DType, u64)] = &[
    ("ui8", DType::U8, 1),
    ("si8", DType::I8, 2),
    ("si16", DType::I16, 3),
    ("si32", DType::I32, 4),
    ("si64", DType::I64, 5),
    ("f16", DType::F16, 6),
    ("f32", DType::F32, 7),
    ("f64", DType::F64, 8),
    ("i1", DType::Bool, 12),
    ("bf16", DType::BF16, 13),
];

/// Whether a text has ops of this dialect.
pub(super) fn is_used(tree: &Tree) -> bool {
    tree.operations.iter().any(|operation| tree.name(operation).starts_with("torch."))
}

/// Reads a function: the one of this name, or `@main`, or the only one.
///
/// # Errors
/// E140 to E147 with line and column; those of [`Pt2::import`] with the line of the op.
pub(super) fn read(tree: &Tree, function: Option<&str>, limits: &Limits) -> Result<Graph> {
    let mut reader = Reader {
        tree,
        limits,
        values: BTreeMap::new(),
        calls: Calls { inputs: vec![], outputs: vec![], nodes: vec![], tensor_values: BTreeMap::new() },
        inputs: Vec::new(),
        outputs: Vec::new(),
        constants: IndexMap::new(),
    };
    let (name, found) = reader.function(function)?;
    reader.body(found)?;
    let signature = Signature { input_specs: reader.inputs, output_specs: reader.outputs };
    let program = Program {
        graph_module: GraphModule { graph: reader.calls, signature, module_call_graph: Vec::new() },
        schema_version: Version { major: 8, minor: 0 },
        range_constraints: BTreeMap::new(),
        torch_version: String::new(),
        verifiers: Vec::new(),
    };
    let file = Pt2::of_program("main", program, reader.constants);
    let options = ImportOptions { limits: limits.clone(), ..ImportOptions::default() };
    let mut graph = file.import(&options)?.model.forward;
    graph.output_names.clear();
    graph.name = name;
    Ok(graph)
}

/// The value of a name.
#[derive(Clone, Debug)]
enum Value {
    /// A tensor, which has the same name in the program.
    Tensor,
    /// A number, a text or nothing.
    Constant(Argument),
    /// A list of names.
    List(Vec<String>),
}

struct Reader<'a> {
    tree: &'a Tree<'a>,
    limits: &'a Limits,
    values: BTreeMap<String, Value>,
    calls: Calls,
    inputs: Vec<InputSpec>,
    outputs: Vec<OutputSpec>,
    constants: IndexMap<String, Tensor>,
}

impl<'a> Reader<'a> {
    fn cursor(&self, position: usize) -> Cursor<'a, 'a> {
        Cursor { source: self.tree.source, tokens: &self.tree.tokens, position, depth: 0 }
    }

    fn error(&self, token: usize, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.cursor(token).error(code, message)
    }

    fn function(&self, name: Option<&str>) -> Result<(String, &'a Operation)> {
        let mut open = self.tree.top.clone();
        let mut found: Vec<(String, &Operation)> = Vec::new();
        while let Some(id) = open.pop() {
            let operation = self.tree.operation(id);
            match self.tree.name(operation).as_str() {
                "module" | "builtin.module" => {
                    let blocks =
                        operation.regions().iter().flat_map(|&region| &self.tree.region(region).blocks);
                    open.extend(blocks.flat_map(|block| &block.operations));
                }
                "func.func" | "func" => {
                    let symbol =
                        operation.span.clone().find(|&at| self.tree.tokens.list[at].kind == Kind::Symbol);
                    let symbol = symbol.map(|at| unquote(self.tree.text(at).trim_start_matches('@')));
                    found.push((symbol.unwrap_or_default(), operation));
                }
                _ => {
                    return Err(self.error(operation.name, "E140", "unexpected text").expected("a function"));
                }
            }
        }
        let wanted = name.unwrap_or("main");
        let chosen = found.iter().find(|(own, _)| own == wanted);
        let only = if name.is_none() && found.len() == 1 { found.first() } else { None };
        chosen.or(only).cloned().ok_or_else(|| {
            Diagnostic::new("E143", format!("there is no function `@{wanted}`"))
                .at(self.tree.source.file)
                .found(found.iter().map(|(own, _)| format!("`@{own}`")).collect::<Vec<_>>().join(", "))
        })
    }

    fn body(&mut self, function: &'a Operation) -> Result<()> {
        let mut cursor = self.cursor(function.name + 1);
        while cursor.kind() != Kind::Mark('(') && cursor.kind() != Kind::End {
            cursor.advance();
        }
        cursor.mark('(')?;
        while cursor.kind() == Kind::Value {
            let name = self.tree.text(cursor.take()).to_string();
            cursor.mark(':')?;
            let ty = self.tensor_type(&mut cursor)?;
            if cursor.kind() == Kind::Mark('{') {
                cursor.dictionary()?;
            }
            let plain = name.trim_start_matches('%').to_string();
            let plain =
                if plain.starts_with(|c: char| c.is_ascii_digit()) { format!("arg{plain}") } else { plain };
            self.declare(&plain, &ty);
            self.values.insert(name, Value::Constant(Argument::Tensor(plain.clone())));
            self.inputs.push(InputSpec::UserInput { arg: Argument::Tensor(plain) });
            if !cursor.eat(',') {
                break;
            }
        }
        cursor.mark(')')?;
        let [region] = function.regions() else {
            return Err(self.error(function.name, "E144", "a function without a body"));
        };
        let [block] = &self.tree.region(*region).blocks[..] else {
            return Err(self.error(function.name, "E144", "branches between blocks are not read"));
        };
        for &id in &block.operations {
            let operation = self.tree.operation(id);
            let name = self.tree.name(operation);
            let mut cursor = self.cursor(operation.name + 1);
            if !operation.regions().is_empty() || matches!(operation.form, partita_mlir::Form::Generic(_)) {
                return Err(self
                    .error(operation.name, "E144", format!("`{name}` is not supported in this form"))
                    .expected("calls of ATen in their pretty form, without regions"));
            }
            match name.as_str() {
                "return" | "func.return" => {
                    for (name, at) in self.operands(&mut cursor) {
                        let arg = self.argument(&name, at)?;
                        self.outputs.push(OutputSpec::UserOutput { arg });
                    }
                }
                _ => self.statement(operation, &name, &mut cursor)?,
            }
        }
        Ok(())
    }

    fn statement(&mut self, operation: &'a Operation, name: &str, cursor: &mut Cursor<'a, 'a>) -> Result<()> {
        if let Some(op) = name.strip_prefix("torch.aten.") {
            return self.call(operation, op, cursor);
        }
        let value = match name {
            "torch.constant.none" => Value::Constant(Argument::None),
            "torch.constant.int" | "torch.constant.float" | "torch.constant.bool" | "torch.constant.str" => {
                let text = cursor.text();
                let argument = match &name["torch.constant.".len()..] {
                    "int" => text.parse().ok().map(|value| Argument::Int(Int::Value(value))),
                    "float" => float(text).map(Argument::Float),
                    "bool" => text.parse().ok().map(Argument::Bool),
                    _ => Some(Argument::Text(unquote(text))),
                };
                Value::Constant(argument.ok_or_else(|| {
                    cursor
                        .error("E145", format!("`{name}` has a value of another type"))
                        .found(format!("`{text}`"))
                })?)
            }
            "torch.prim.ListConstruct" => {
                Value::List(self.operands(cursor).into_iter().map(|(name, _)| name).collect())
            }
            "torch.vtensor.literal" => {
                cursor.mark('(')?;
                let at = cursor.position;
                let attribute = cursor.attribute()?;
                cursor.mark(')')?;
                cursor.mark(':')?;
                let ty = self.tensor_type(cursor)?;
                let plain = format!("constant_{}", self.constants.len());
                let value = self.literal(&attribute, &ty, at)?;
                let bytes = value.to_bytes();
                let place = 0..bytes.len();
                let tensor = Tensor::dense(&plain, ty.clone(), bytes.into(), place, self.limits)?;
                self.constants.insert(plain.clone(), tensor);
                self.declare(&plain, &ty);
                let arg = Named { name: plain.clone() };
                self.inputs.push(InputSpec::TensorConstant { arg, tensor_constant_name: plain.clone() });
                Value::Constant(Argument::Tensor(plain))
            }
            _ => {
                return Err(self
                    .error(operation.name, "E144", format!("`{name}` is not supported"))
                    .expected("`torch.aten` ops, `torch.constant`, `torch.prim.ListConstruct` and `torch.vtensor.literal`"));
            }
        };
        let [result] = operation.results[..] else {
            return Err(self.error(operation.name, "E146", format!("`{name}` has one result")));
        };
        self.values.insert(self.tree.text(result.name).to_string(), value);
        Ok(())
    }

    /// `torch.aten.linear %0, %1, %2 : T, U, V -> W`.
    fn call(&mut self, operation: &'a Operation, op: &str, cursor: &mut Cursor<'a, 'a>) -> Result<()> {
        let Some((_, arguments)) = SCHEMAS.iter().find(|(name, _)| *name == op) else {
            let mut error = self
                .error(operation.name, "E141", format!("unknown operation `torch.aten.{op}`"))
                .expected(format!("one of the {} ATen ops that are read from this dialect", SCHEMAS.len()));
            error.help = did_you_mean(op, SCHEMAS.iter().map(|(name, _)| *name));
            return Err(error);
        };
        let operands = self.operands(cursor);
        if operands.len() > arguments.len() {
            return Err(self
                .error(operation.name, "E101", format!("`torch.aten.{op}` has too many operands"))
                .expected(arguments.join(", "))
                .found(operands.len().to_string()));
        }
        let mut inputs = Vec::new();
        for ((value, at), &name) in operands.into_iter().zip(*arguments) {
            let arg = match (name, self.argument(&value, at)?) {
                ("dtype", Argument::Int(Int::Value(code))) => Argument::DType(exported_code(code)),
                ("memory_format", _) => Argument::Ignored,
                (_, argument) => argument,
            };
            inputs.push(NamedArgument { name: name.to_string(), arg });
        }
        while cursor.position < operation.span.end && cursor.kind() != Kind::Arrow {
            cursor.group();
        }
        if cursor.kind() != Kind::Arrow {
            return Err(cursor.unexpected("`->` and the types of the results"));
        }
        cursor.advance();
        let in_brackets = cursor.eat('(');
        let mut outputs = Vec::new();
        for names in &operation.results {
            for number in 0..names.count {
                let own = self.tree.text(names.name);
                let name = if names.count == 1 { own.to_string() } else { format!("{own}#{number}") };
                if !outputs.is_empty() {
                    cursor.mark(',')?;
                }
                let ty = self.tensor_type(cursor)?;
                self.declare(&name, &ty);
                self.values.insert(name.clone(), Value::Tensor);
                outputs.push(Argument::Tensor(name));
            }
        }
        if in_brackets {
            cursor.mark(')')?;
        }
        let (line, _) = self.tree.source.position(self.tree.tokens.list[operation.name].start);
        let file = self.tree.source.file;
        let metadata = Metadata {
            stack_trace: format!("File \"{file}\", line {line}, in main"),
            nn_module_stack: String::new(),
        };
        // An op without an overload is the default one.
        let overload = if op.contains('.') { "" } else { ".default" };
        let target = format!("torch.ops.aten.{op}{overload}");
        self.calls.nodes.push(Node { target, inputs, outputs, metadata });
        Ok(())
    }

    /// `%a, %b`: names and their tokens.
    fn operands(&self, cursor: &mut Cursor<'a, 'a>) -> Vec<(String, usize)> {
        let mut operands = Vec::new();
        while cursor.kind() == Kind::Value {
            let at = cursor.take();
            operands.push((self.tree.text(at).to_string(), at));
            if !cursor.eat(',') {
                break;
            }
        }
        operands
    }

    /// A value as an argument of a call.
    fn argument(&self, name: &str, at: usize) -> Result<Argument> {
        let value = self.values.get(name).ok_or_else(|| {
            let mut error = self.error(at, "E143", format!("there is no value `{name}`"));
            error.help = did_you_mean(name, self.values.keys().map(String::as_str));
            error
        })?;
        let list = match value {
            Value::Tensor => return Ok(Argument::Tensor(name.to_string())),
            Value::Constant(argument) => return Ok(argument.clone()),
            Value::List(list) => list,
        };
        let items = list.iter().map(|item| match self.values.get(item) {
            Some(Value::List(_)) => Err(self.error(at, "E144", "lists of lists are not supported")),
            _ => self.argument(item, at),
        });
        let items: Vec<Argument> = items.collect::<Result<_>>()?;
        let tensors = || -> Option<Vec<String>> {
            let name = |item: &Argument| match item {
                Argument::Tensor(name) => Some(name.clone()),
                _ => None,
            };
            items.iter().map(name).collect()
        };
        let integers = || -> Option<Vec<Int>> {
            let integer = |item: &Argument| match item {
                Argument::Int(int) => Some(int.clone()),
                _ => None,
            };
            items.iter().map(integer).collect()
        };
        match (integers(), tensors()) {
            (Some(list), _) => Ok(Argument::Ints(list)),
            (None, Some(list)) => Ok(Argument::Tensors(list)),
            (None, None) => Err(self
                .error(
                    at,
                    "E144",
                    format!("the list `{name}` has items of this kind, which are not supported"),
                )
                .expected("integers, or tensors")),
        }
    }

    /// Says the type of a tensor of the program, in row-major order.
    fn declare(&mut self, name: &str, ty: &TensorType) {
        let code = DTYPES.iter().find(|(_, dtype, _)| *dtype == ty.dtype).map_or(0, |(_, _, code)| *code);
        let int = |extent: usize| Size::AsInt(i64::try_from(extent).unwrap_or(i64::MAX));
        let meta = TensorMeta {
            dtype: code,
            sizes: ty.shape.iter().copied().map(int).collect(),
            strides: ty.strides().into_iter().map(int).collect(),
            storage_offset: Size::AsInt(0),
            requires_grad: false,
            layout: STRIDED,
        };
        self.calls.tensor_values.insert(name.to_string(), meta);
    }

    /// `!torch.vtensor<[4,8],f32>`. E142 for other types, E144 for sizes that are not known.
    fn tensor_type(&self, cursor: &mut Cursor<'a, 'a>) -> Result<TensorType> {
        let at = cursor.position;
        let wrong = |found: &str| {
            self.error(at, "E142", "this type is not supported")
                .expected("`!torch.vtensor<[4,8],f32>`: known sizes, and a float, integer or boolean type")
                .found(format!("`{found}`"))
        };
        match cursor.read_type()? {
            Type::Dialect(name, Some(inside)) if self.tree.text(name) == "torch.vtensor" => {
                self.shaped(&inside).ok_or_else(|| wrong(self.tree.slice(&inside)))
            }
            _ => Err(wrong(self.tree.text(at + 1))),
        }
    }

    /// `[4,8],f32`.
    fn shaped(&self, inside: &Span) -> Option<TensorType> {
        let (sizes, word) = self.tree.slice(inside).strip_prefix('[')?.split_once("],")?;
        let (_, dtype, _) = DTYPES.iter().find(|(name, ..)| *name == word.trim())?;
        let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape: Vec<usize> = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
        let ty = TensorType::new(*dtype, shape);
        self.limits.count(&ty.shape, "a tensor").ok()?;
        Some(ty)
    }

    /// `dense<..>`, or `dense_resource<name>` with its bytes at the end of the file.
    fn literal(&self, attribute: &Attribute, ty: &TensorType, at: usize) -> Result<Literal> {
        let wrong = |expected: &str| self.error(at, "E145", "this literal cannot be read").expected(expected);
        let Attribute::Builtin(word, inside, _) = attribute else {
            return Err(wrong("`dense<..>` or `dense_resource<..>`"));
        };
        match self.tree.text(*word) {
            "dense" => literal(&format!("dense<{}>", self.tree.slice(inside)), ty)
                .map_err(|error| wrong(&ty.to_string()).found(error.message.clone())),
            "dense_resource" => {
                let name = self.tree.slice(inside);
                let mut tokens = self.tree.resources.iter().cloned().flatten();
                let found =
                    tokens.find(|&token| self.tree.text(token) == name && self.tree.text(token + 1) == ":");
                let text = found.map(|token| unquote(self.tree.text(token + 2)));
                let text = text.ok_or_else(|| wrong("a resource of this name in `{-# .. #-}`"))?;
                // Four bytes state the alignment.
                let bytes = bytes_of(&text).filter(|bytes| bytes.len() >= 4);
                let value = bytes.and_then(|bytes| Literal::from_bytes(ty, &bytes[4..]));
                value.ok_or_else(|| wrong(&format!("{} bytes in hexadecimal digits", ty.bytes() + 4)))
            }
            _ => Err(wrong("`dense<..>` or `dense_resource<..>`")),
        }
    }
}

/// A float; `0x7FF0000000000000` is its bits.
fn float(text: &str) -> Option<f64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(f64::from_bits),
        None => text.parse().ok(),
    }
}

/// The number of an element type in an exported program, from that in PyTorch.
fn exported_code(code: i64) -> u64 {
    match code {
        15 => 13,
        0..=11 => code as u64 + 1,
        _ => 0,
    }
}

/// `0x0A1B` as bytes.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?.as_bytes();
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(pair).collect()
}
