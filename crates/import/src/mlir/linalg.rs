//! The dialect `linalg` on tensors: `generic`, and the named ops, which are structured ops with a known body.

use super::elementwise::Action::{self, Own};
use super::reader::{Declared, Op, Reader};
use super::structured::{Map, Structured};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, UnaryKind};
use partita_ir::{TensorType, ValueId};
use partita_mlir::{Attribute, Cursor, Kind, Named, Region};
use std::collections::BTreeMap;

pub(super) const OPS: &[(&str, Action)] = &[
    ("linalg.generic", Own(generic)),
    ("linalg.map", Own(map)),
    ("linalg.reduce", Own(reduce)),
    ("linalg.broadcast", Own(broadcast)),
    ("linalg.transpose", Own(transpose)),
    ("linalg.fill", Own(fill)),
    ("linalg.index", Own(index)),
    ("linalg.matmul", Own(contraction)),
    ("linalg.matmul_transpose_a", Own(contraction)),
    ("linalg.matmul_transpose_b", Own(contraction)),
    ("linalg.batch_matmul", Own(contraction)),
    ("linalg.batch_matmul_transpose_a", Own(contraction)),
    ("linalg.batch_matmul_transpose_b", Own(contraction)),
    ("linalg.matvec", Own(contraction)),
    ("linalg.vecmat", Own(contraction)),
    ("linalg.batch_matvec", Own(contraction)),
    ("linalg.batch_vecmat", Own(contraction)),
    ("linalg.dot", Own(contraction)),
    ("linalg.add", Own(named)),
    ("linalg.sub", Own(named)),
    ("linalg.mul", Own(named)),
    ("linalg.div", Own(named)),
    ("linalg.max", Own(named)),
    ("linalg.min", Own(named)),
    ("linalg.powf", Own(named)),
    ("linalg.exp", Own(named)),
    ("linalg.log", Own(named)),
    ("linalg.abs", Own(named)),
    ("linalg.ceil", Own(named)),
    ("linalg.floor", Own(named)),
    ("linalg.negf", Own(named)),
    ("linalg.sqrt", Own(named)),
    ("linalg.rsqrt", Own(named)),
    ("linalg.square", Own(named)),
    ("linalg.tanh", Own(named)),
    ("linalg.erf", Own(named)),
    ("linalg.copy", Own(named)),
];

/// The subscripts of contractions: of both factors, and of the result.
const CONTRACTIONS: &[(&str, [&str; 3])] = &[
    ("linalg.matmul", ["mk", "kn", "mn"]),
    ("linalg.matmul_transpose_a", ["km", "kn", "mn"]),
    ("linalg.matmul_transpose_b", ["mk", "nk", "mn"]),
    ("linalg.batch_matmul", ["bmk", "bkn", "bmn"]),
    ("linalg.batch_matmul_transpose_a", ["bkm", "bkn", "bmn"]),
    ("linalg.batch_matmul_transpose_b", ["bmk", "bnk", "bmn"]),
    ("linalg.matvec", ["mk", "k", "m"]),
    ("linalg.vecmat", ["k", "kn", "n"]),
    ("linalg.batch_matvec", ["bmk", "bk", "bm"]),
    ("linalg.batch_vecmat", ["bk", "bkn", "bn"]),
    ("linalg.dot", ["k", "k", ""]),
];

/// The parts of an op: `{attributes} ins(..) outs(..) name = value {region} -> types`.
struct Parts<'a> {
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    attributes: Vec<Named>,
    /// Clauses such as `permutation = [1, 0]`.
    clauses: Vec<(String, Vec<usize>)>,
    region: Option<&'a Region>,
    /// The token of the op in `{ arith.addf }`, instead of a region.
    body: Option<usize>,
    results: Vec<Declared>,
}

/// `%a, %b : T, U` in brackets.
fn typed_operands<'a>(reader: &Reader<'a>, cursor: &mut Cursor<'a, 'a>) -> Result<Vec<ValueId>> {
    let at = cursor.position;
    cursor.mark('(')?;
    let operands = reader.operands(cursor)?;
    let mut types = Vec::new();
    if cursor.eat(':') {
        types = reader.types(cursor)?;
    }
    cursor.mark(')')?;
    if types.len() != operands.len() {
        return Err(reader
            .error(at, "E146", "an operand without a type")
            .expected(operands.len().to_string()));
    }
    for (&operand, ty) in operands.iter().zip(&types) {
        reader.check(operand, ty, at)?;
    }
    Ok(operands)
}

fn parts<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Parts<'a>> {
    let mut parts = Parts {
        inputs: Vec::new(),
        outputs: Vec::new(),
        attributes: Vec::new(),
        clauses: Vec::new(),
        region: None,
        body: None,
        results: Vec::new(),
    };
    if let Some(generic) = op.generic() {
        let operands = reader.simple(op)?.operands;
        let segments = reader.attribute(&generic.attributes, "operandSegmentSizes");
        let sizes = segments.map(|attribute| integers(reader, attribute)).unwrap_or_default();
        let split = sizes.first().copied().unwrap_or(operands.len().saturating_sub(1)).min(operands.len());
        (parts.inputs, parts.outputs) = (operands[..split].to_vec(), operands[split..].to_vec());
        parts.attributes.clone_from(&generic.attributes);
        parts.region = generic.regions.first().map(|&region| reader.tree.region(region));
        let named = generic.attributes.iter().filter(|named| !matches!(named.value, Attribute::Unit));
        parts.clauses = named
            .map(|named| (reader.tree.text(named.name).to_string(), integers(reader, &named.value)))
            .collect();
        return Ok(parts);
    }
    while op.cursor.position < op.end {
        let cursor = &mut op.cursor;
        match cursor.kind() {
            Kind::Mark('{') => match reader.tree.region_at(cursor.position) {
                Some(region) => {
                    parts.region = Some(region);
                    cursor.group();
                }
                // A dotted name alone is an op.
                None => match cursor.dictionary()? {
                    list if list.len() == 1 && reader.tree.text(list[0].name).contains('.') => {
                        parts.body = Some(list[0].name);
                    }
                    list => parts.attributes.extend(list),
                },
            },
            Kind::Mark('(') => {
                // `(%a: f32, %b: f32) {..}`, the arguments of the region that follows.
                cursor.group();
            }
            Kind::Arrow => {
                cursor.advance();
                parts.results = reader.types(cursor)?;
            }
            Kind::Word => {
                let word = cursor.text();
                cursor.advance();
                match word {
                    "ins" => parts.inputs = typed_operands(reader, cursor)?,
                    "outs" => parts.outputs = typed_operands(reader, cursor)?,
                    "attrs" => {
                        cursor.mark('=')?;
                        parts.attributes.extend(cursor.dictionary()?);
                    }
                    "loc" => {
                        cursor.group();
                    }
                    _ => {
                        cursor.mark('=')?;
                        let value = cursor.attribute()?;
                        parts.clauses.push((word.to_string(), integers(reader, &value)));
                        if word == "indexing_maps" {
                            return Err(reader.error(op.at, "E144", "maps of a named op are not read"));
                        }
                    }
                }
            }
            Kind::Mark(',') => cursor.advance(),
            _ => return Err(cursor.unexpected("`ins`, `outs` or a region")),
        }
    }
    for (&output, ty) in parts.outputs.iter().zip(&parts.results) {
        reader.check(output, ty, op.at)?;
    }
    Ok(parts)
}

/// The numbers of `[1, 0]`, `array<i64: 1, 0>` or `dense<[1, 0]>`.
fn integers(reader: &Reader, attribute: &Attribute) -> Vec<usize> {
    let of_token = |token: usize| reader.tree.text(token).parse::<usize>().ok();
    match attribute {
        Attribute::List(list) => list.iter().flat_map(|item| integers(reader, item)).collect(),
        Attribute::Plain(token, _) => of_token(*token).into_iter().collect(),
        Attribute::Builtin(_, inside, _) => inside.clone().filter_map(of_token).collect(),
        _ => Vec::new(),
    }
}

impl Parts<'_> {
    fn clause(&self, reader: &Reader, op: &Op, name: &str) -> Result<Vec<usize>> {
        let found = self.clauses.iter().find(|(own, _)| own == name).map(|(_, list)| list.clone());
        found.ok_or_else(|| reader.error(op.at, "E147", format!("`{}` needs `{name} = [..]`", op.name)))
    }

    /// The values of the body of an op: its region, or its only op, for these arguments.
    fn yielded<'a>(
        &self,
        reader: &mut Reader<'a>,
        op: &Op<'a>,
        region: Option<&'a Region>,
        body: Option<usize>,
        names: &[String],
        arguments: Vec<ValueId>,
    ) -> Result<Vec<ValueId>> {
        if let Some(body) = body {
            return reader.plain(body, &arguments);
        }
        let Some(region) = region else {
            return Err(reader.error(op.at, "E140", format!("`{}` needs a body", op.name)));
        };
        if names.len() != arguments.len() {
            return Err(reader
                .error(op.at, "E146", "the body has another number of arguments than the op has operands")
                .expected(arguments.len().to_string())
                .found(names.len().to_string()));
        }
        reader.region(region, names.iter().cloned().zip(arguments).collect::<BTreeMap<_, _>>())
    }
}

impl<'a> Reader<'a> {
    /// The op whose name alone is at a token, such as `arith.addf`, on these operands.
    fn plain(&mut self, token: usize, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let name = self.tree.text(token);
        let action = super::TABLES.iter().flat_map(|table| table.iter()).find(|(own, _)| *own == name);
        let operands = self.alike(operands)?;
        let result = match (action.map(|(_, action)| *action), &operands[..]) {
            (Some(Action::Unary(kind)), &[x]) => self.b.unary(kind, x),
            (Some(Action::Function(function)), &[x]) => function(&mut self.b, x),
            (Some(Action::Binary(kind)), &[x, y]) => self.b.binary(kind, x, y),
            (Some(Action::Function2(function)), &[x, y]) => function(&mut self.b, x, y),
            _ => {
                return Err(self.error(token, "E144", format!("`{name}` as a whole body is not read")));
            }
        };
        Ok(vec![self.placed(result, token)?])
    }
}

/// `%a, %b` named by a region written with its arguments before it: `(%a: f32, %b: f32) {..}`.
fn argument_names<'a>(reader: &Reader<'a>, op: &Op<'a>, region: Option<&'a Region>) -> Result<Vec<String>> {
    let Some(region) = region else { return Ok(Vec::new()) };
    let own = reader.block_arguments(region)?;
    if !own.is_empty() {
        return Ok(own.into_iter().map(|(name, _)| name).collect());
    }
    // The group that ends before the region.
    let mut cursor = reader.cursor(op.at + 1);
    let mut names = Vec::new();
    while cursor.position < region.span.start {
        let span = cursor.group();
        if span.end == region.span.start {
            let is_name = |&at: &usize| reader.cursor(at).kind() == Kind::Value;
            names = span.filter(is_name).map(|at| reader.tree.text(at).to_string()).collect();
        }
    }
    Ok(names)
}

/// The identity of so many dimensions.
fn identity(rank: usize) -> Map {
    (0..rank).map(Some).collect()
}

/// `linalg.generic {indexing_maps = [..], iterator_types = [..]} ins(..) outs(..) {..} -> T`.
fn generic<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let Some(Attribute::List(maps)) = reader.attribute(&parts.attributes, "indexing_maps") else {
        return Err(reader.error(op.at, "E147", "`linalg.generic` needs `indexing_maps = [..]`"));
    };
    let Some(Attribute::List(iterators)) = reader.attribute(&parts.attributes, "iterator_types") else {
        return Err(reader.error(op.at, "E147", "`linalg.generic` needs `iterator_types = [..]`"));
    };
    let rank = iterators.len();
    let maps = maps.iter().map(|map| affine_map(reader, op, map, rank)).collect::<Result<Vec<Map>>>()?;
    let names = argument_names(reader, op, parts.region)?;
    let structured = Structured::new(reader, op, parts.inputs.clone(), parts.outputs.clone(), maps, rank)?;
    structured.results(reader, op, |reader, arguments| {
        parts.yielded(reader, op, parts.region, None, &names, arguments)
    })
}

/// `affine_map<(d0, d1) -> (d1, d0)>`, or the alias of one.
fn affine_map(reader: &Reader, op: &Op, attribute: &Attribute, rank: usize) -> Result<Map> {
    let not_read = |found: &str| {
        reader
            .error(op.at, "E144", "this map is not read")
            .expected("a projection such as `affine_map<(d0, d1) -> (d1)>`")
            .found(format!("`{found}`"))
    };
    let inside = match attribute {
        Attribute::Builtin(word, inside, _) if reader.tree.text(*word) == "affine_map" => inside.clone(),
        Attribute::Dialect(name, None, _) => {
            let name = reader.tree.text(*name);
            let alias = reader.tree.aliases.iter().find(|alias| alias.name == name);
            match alias.map(|alias| &alias.value) {
                Some(Attribute::Builtin(_, inside, _)) => inside.clone(),
                _ => return Err(not_read(name)),
            }
        }
        _ => return Err(not_read("another attribute")),
    };
    let text = reader.tree.slice(&inside);
    let words = |text: &str| -> Option<Vec<String>> {
        let list = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(list.split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect())
    };
    let (Some(dims), Some(results)) = (
        text.split_once("->").and_then(|(dims, _)| words(dims)),
        text.split_once("->").and_then(|(_, results)| words(results)),
    ) else {
        return Err(not_read(text));
    };
    if dims.len() != rank {
        return Err(reader.error(
            op.at,
            "E146",
            "a map has another number of dimensions than the op has iterators",
        ));
    }
    let mut map = Map::new();
    for result in results {
        let place = dims.iter().position(|dim| *dim == result);
        if (place.is_none() && result != "0") || (place.is_some() && map.contains(&place)) {
            return Err(not_read(text));
        }
        map.push(place);
    }
    Ok(map)
}

/// `linalg.map { arith.addf } ins(..) outs(..)`.
fn map<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let rank = parts.outputs.first().map_or(0, |&output| reader.b.ty(output).rank());
    let maps = vec![identity(rank); parts.inputs.len() + parts.outputs.len()];
    let names = argument_names(reader, op, parts.region)?;
    let count = parts.inputs.len();
    let structured = Structured::new(reader, op, parts.inputs.clone(), parts.outputs.clone(), maps, rank)?;
    structured.results(reader, op, |reader, mut arguments| {
        if names.len() != arguments.len() {
            arguments.truncate(count);
        }
        parts.yielded(reader, op, parts.region, parts.body, &names, arguments)
    })
}

/// `linalg.reduce { arith.addf } ins(..) outs(..) dimensions = [1]`.
fn reduce<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let left_out = parts.clause(reader, op, "dimensions")?;
    let rank = parts.inputs.first().map_or(0, |&input| reader.b.ty(input).rank());
    let kept: Map = (0..rank).filter(|dim| !left_out.contains(dim)).map(Some).collect();
    let mut maps = vec![identity(rank); parts.inputs.len()];
    maps.resize(parts.inputs.len() + parts.outputs.len(), kept);
    let names = argument_names(reader, op, parts.region)?;
    let structured = Structured::new(reader, op, parts.inputs.clone(), parts.outputs.clone(), maps, rank)?;
    structured.results(reader, op, |reader, arguments| {
        parts.yielded(reader, op, parts.region, parts.body, &names, arguments)
    })
}

/// `linalg.broadcast ins(..) outs(..) dimensions = [1]`: the new dimensions.
fn broadcast<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let new = parts.clause(reader, op, "dimensions")?;
    let rank = parts.outputs.first().map_or(0, |&output| reader.b.ty(output).rank());
    let old: Map = (0..rank).filter(|dim| !new.contains(dim)).map(Some).collect();
    first_of(reader, op, parts, vec![old, identity(rank)], rank)
}

/// `linalg.transpose ins(..) outs(..) permutation = [1, 0]`.
fn transpose<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let permutation = parts.clause(reader, op, "permutation")?;
    let rank = permutation.len();
    // Dimension `permutation[i]` of the operand is dimension i of the result.
    let map: Map = (0..rank).map(|dim| permutation.iter().position(|&from| from == dim)).collect();
    if map.iter().any(Option::is_none) {
        return Err(reader.error(op.at, "E147", "this is no permutation").found(format!("{permutation:?}")));
    }
    first_of(reader, op, parts, vec![map, identity(rank)], rank)
}

/// The first operand over the space.
fn first_of<'a>(
    reader: &mut Reader<'a>,
    op: &mut Op<'a>,
    parts: Parts<'a>,
    maps: Vec<Map>,
    rank: usize,
) -> Result<Vec<ValueId>> {
    let structured = Structured::new(reader, op, parts.inputs, parts.outputs, maps, rank)?;
    structured.results(reader, op, |_, arguments| Ok(vec![arguments[0]]))
}

/// `linalg.fill ins(%c : f32) outs(%t : T) -> T`.
fn fill<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    reader.arity(op, &parts.inputs, 1)?;
    reader.arity(op, &parts.outputs, 1)?;
    let ty: TensorType = reader.b.ty(parts.outputs[0]).clone();
    let value = reader.b.convert(parts.inputs[0], ty.dtype);
    let value = reader.placed(value, op.at)?;
    let filled = reader.b.broadcast_scalar(value, &ty.shape);
    Ok(vec![reader.placed(filled, op.at)?])
}

/// `linalg.index 0 : index`: the position along a dimension of the space.
fn index<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let dim = match op.generic() {
        None => op.cursor.text().parse::<usize>().ok(),
        Some(generic) => reader
            .attribute(&generic.attributes, "dim")
            .and_then(|attribute| integers(reader, attribute).first().copied()),
    };
    match (dim, reader.space.clone()) {
        (Some(dim), Some(space)) if dim < space.len() => {
            let iota = reader.b.iota(TensorType::new(DType::I64, space), dim);
            Ok(vec![reader.placed(iota, op.at)?])
        }
        _ => Err(reader.error(op.at, "E146", "there is no such dimension of an iteration space")),
    }
}

/// A matmul and its like.
fn contraction<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let letters =
        CONTRACTIONS.iter().find(|(name, _)| *name == op.name).map_or([""; 3], |(_, letters)| *letters);
    let mut dims: Vec<char> = letters.concat().chars().collect();
    dims.sort_unstable();
    dims.dedup();
    let map =
        |letters: &&str| letters.chars().map(|letter| dims.iter().position(|dim| *dim == letter)).collect();
    let maps: Vec<Map> = letters.iter().map(map).collect();
    let structured = Structured::new(reader, op, parts.inputs, parts.outputs, maps, dims.len())?;
    structured.results(reader, op, |reader, arguments| {
        let [x, y, old] = arguments[..] else { return Ok(Vec::new()) };
        let b = &mut reader.b;
        let dtype = b.ty(old).dtype;
        let (x, y) = (b.convert(x, dtype)?, b.convert(y, dtype)?);
        let product = b.multiply(x, y)?;
        Ok(vec![b.add(old, product)?])
    })
}

/// An elementwise op.
fn named<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let parts = parts(reader, op)?;
    let rank = parts.outputs.first().map_or(0, |&output| reader.b.ty(output).rank());
    let count = parts.inputs.len();
    let maps = vec![identity(rank); count + parts.outputs.len()];
    let name = op.name.clone();
    let structured = Structured::new(reader, op, parts.inputs, parts.outputs, maps, rank)?;
    structured.results(reader, op, |reader, arguments| {
        let binary = match name.as_str() {
            "linalg.add" => Some(BinaryKind::Add),
            "linalg.sub" => Some(BinaryKind::Subtract),
            "linalg.mul" => Some(BinaryKind::Multiply),
            "linalg.div" => Some(BinaryKind::Divide),
            "linalg.max" => Some(BinaryKind::Maximum),
            "linalg.min" => Some(BinaryKind::Minimum),
            "linalg.powf" => Some(BinaryKind::Power),
            _ => None,
        };
        let unary = match name.as_str() {
            "linalg.exp" => Some(UnaryKind::Exponential),
            "linalg.log" => Some(UnaryKind::Log),
            "linalg.abs" => Some(UnaryKind::Abs),
            "linalg.ceil" => Some(UnaryKind::Ceil),
            "linalg.floor" => Some(UnaryKind::Floor),
            "linalg.negf" => Some(UnaryKind::Negate),
            "linalg.sqrt" => Some(UnaryKind::Sqrt),
            "linalg.rsqrt" => Some(UnaryKind::Rsqrt),
            "linalg.square" => Some(UnaryKind::Square),
            "linalg.tanh" => Some(UnaryKind::Tanh),
            "linalg.erf" => Some(UnaryKind::Erf),
            _ => None,
        };
        match (binary, unary, &arguments[..count]) {
            (Some(kind), _, &[x, y]) => Ok(vec![reader.b.binary(kind, x, y)?]),
            (None, Some(kind), &[x]) => Ok(vec![reader.b.unary(kind, x)?]),
            (None, None, &[x]) => Ok(vec![x]),
            _ => Err(reader.error(op.at, "E146", format!("`{name}` has a wrong number of operands"))),
        }
    })
}
