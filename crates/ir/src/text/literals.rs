//! `dense<..>` literals: nested lists, splats, hexadecimal bit patterns, raw bytes.

use super::parser::Parser;
use crate::inert;
use crate::literal::{Literal, Storage};
use crate::types::TensorType;
use half::{bf16, f16};
use partita_base::{DType, InertType, Result};
use partita_mlir::{Kind, unquote};

/// The limit on elements of a literal: a splat stays small, but ops expand it.
const ELEMENT_LIMIT: usize = 1 << 27;

/// Larger literals are printed as raw bytes.
const LISTED: usize = 256;

/// `dense<..>` before its type is known.
enum Dense {
    Bytes(Vec<u8>),
    Splat(usize),
    /// The shape of the brackets, and the token of each element.
    List(Vec<usize>, Vec<usize>),
}

impl Parser<'_> {
    /// `dense<..> : tensor<..>`. E145 where the elements do not fit the type.
    pub fn dense(&mut self) -> Result<Literal> {
        let start = self.position;
        if self.at_word("dense_resource") {
            return Err(self
                .error("E144", "`dense_resource` literals are not supported")
                .help("print the program with its constants in full"));
        }
        self.keyword("dense")?;
        self.mark('<')?;
        let dense = self.dense_body()?;
        self.mark('>')?;
        self.mark(':')?;
        let ty = self.tensor_type()?;
        if ty.element_count() > ELEMENT_LIMIT {
            return Err(self.error_at(start, "E149", format!("a literal of {ty} is too large")));
        }
        match dense {
            Dense::Bytes(bytes) => {
                let size = ty.dtype.size_bytes();
                let one = TensorType::scalar(ty.dtype);
                let literal = match Literal::from_bytes(&one, &bytes) {
                    Some(one) => {
                        Some(Literal { data: one.data.repeated(ty.element_count()), ty: ty.clone() })
                    }
                    None => Literal::from_bytes(&ty, &bytes),
                };
                literal.ok_or_else(|| {
                    self.error_at(start, "E145", "raw bytes do not fill the type")
                        .expected(format!("{} or {} bytes for {ty}", size, ty.bytes()))
                        .found(bytes.len().to_string())
                })
            }
            Dense::Splat(token) => {
                let one = self.elements(&ty, &[token])?;
                let data = one.repeated(ty.element_count());
                Ok(Literal { ty, data })
            }
            Dense::List(shape, elements) => {
                let empty = elements.is_empty() && ty.element_count() == 0;
                if shape != ty.shape && !empty {
                    return Err(self
                        .error_at(start, "E145", "the literal's brackets do not match its type")
                        .expected(format!("{:?}", ty.shape))
                        .found(format!("{shape:?}")));
                }
                let data = self.elements(&ty, &elements)?;
                Ok(Literal { ty, data })
            }
        }
    }

    fn dense_body(&mut self) -> Result<Dense> {
        match self.kind() {
            Kind::Mark('>') => Ok(Dense::List(vec![0], Vec::new())),
            Kind::Text => {
                let text = unquote(self.text());
                let digits = text.strip_prefix("0x").unwrap_or("");
                let bytes: Option<Vec<u8>> =
                    (digits.len().is_multiple_of(2) && digits.is_ascii() && !digits.is_empty())
                        .then(|| {
                            (0..digits.len() / 2)
                                .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok())
                                .collect::<Option<Vec<u8>>>()
                        })
                        .flatten();
                let bytes = bytes.ok_or_else(|| {
                    self.error(
                        "E145",
                        "a raw literal must be `\"0x\"` and two hexadecimal digits for each byte",
                    )
                })?;
                self.advance();
                Ok(Dense::Bytes(bytes))
            }
            Kind::Mark('[') => self.dense_list(),
            Kind::Mark('(') => {
                let at = self.position;
                self.position = self.tree.tokens.closing[at] + 1;
                Ok(Dense::Splat(at))
            }
            _ => {
                self.advance();
                Ok(Dense::Splat(self.position - 1))
            }
        }
    }

    /// Parses nested lists without recursion: a stack of counts, and the extent at each depth.
    fn dense_list(&mut self) -> Result<Dense> {
        let ragged = |p: &Self| p.error("E145", "rows of this literal differ in length");
        let mut extents: Vec<Option<usize>> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        let mut elements = Vec::new();
        let mut leaf_depth = None;
        loop {
            match self.kind() {
                Kind::Mark('[') => {
                    counts.push(0);
                    if counts.len() > 64 {
                        return Err(self.error("E149", "this literal is nested too deeply"));
                    }
                    if extents.len() < counts.len() {
                        extents.push(None);
                    }
                    self.advance();
                    continue;
                }
                Kind::Mark(']') => {}
                Kind::Number | Kind::Word | Kind::Mark('(') => {
                    if *leaf_depth.get_or_insert(counts.len()) != counts.len() {
                        return Err(ragged(self));
                    }
                    elements.push(self.position);
                    self.position = match self.kind() {
                        Kind::Mark(_) => self.tree.tokens.closing[self.position] + 1,
                        _ => self.position + 1,
                    };
                    *counts.last_mut().expect("inside a list") += 1;
                }
                _ => return Err(self.unexpected("an element")),
            }
            // Close every list that ends here; each counts as an element of the list around it.
            loop {
                if self.kind() == Kind::Mark(']') {
                    let count = counts.pop().expect("inside a list");
                    if *extents[counts.len()].get_or_insert(count) != count {
                        return Err(ragged(self));
                    }
                    self.advance();
                    match counts.last_mut() {
                        Some(outer) => *outer += 1,
                        None => {
                            let shape = extents.into_iter().map(|e| e.unwrap_or(0)).collect();
                            return Ok(Dense::List(shape, elements));
                        }
                    }
                } else if self.eat(',') {
                    break;
                } else {
                    return Err(self.unexpected("`,` or `]`"));
                }
            }
        }
    }

    /// The elements at these tokens.
    fn elements(&self, ty: &TensorType, tokens: &[usize]) -> Result<Storage> {
        macro_rules! integers {
            ($variant:ident, $t:ty) => {
                Storage::$variant(
                    tokens.iter().map(|&t| self.integer_element::<$t>(t, ty)).collect::<Result<_>>()?,
                )
            };
        }
        Ok(match ty.dtype {
            DType::Bool => Storage::Bool(
                tokens
                    .iter()
                    .map(|&t| match self.text_at(t) {
                        "true" | "1" | "-1" => Ok(true),
                        "false" | "0" => Ok(false),
                        _ => Err(self.bad_element(t, ty)),
                    })
                    .collect::<Result<_>>()?,
            ),
            DType::I8 => integers!(I8, i8),
            DType::I16 => integers!(I16, i16),
            DType::I32 => integers!(I32, i32),
            DType::I64 => integers!(I64, i64),
            DType::U8 => integers!(U8, u8),
            DType::U16 => integers!(U16, u16),
            DType::U32 => integers!(U32, u32),
            DType::U64 => integers!(U64, u64),
            DType::F16 => Storage::F16(self.float_elements(tokens, ty, |text| {
                Some(match float_text(text)? {
                    Float::Bits(bits) => f16::from_bits(u16::try_from(bits).ok()?),
                    Float::Decimal(text) => f16::from_f64(text.parse().ok()?),
                })
            })?),
            DType::BF16 => Storage::BF16(self.float_elements(tokens, ty, |text| {
                Some(match float_text(text)? {
                    Float::Bits(bits) => bf16::from_bits(u16::try_from(bits).ok()?),
                    Float::Decimal(text) => bf16::from_f64(text.parse().ok()?),
                })
            })?),
            DType::F32 => Storage::F32(self.float_elements(tokens, ty, |text| {
                Some(match float_text(text)? {
                    Float::Bits(bits) => f32::from_bits(u32::try_from(bits).ok()?),
                    Float::Decimal(text) => text.parse().ok()?,
                })
            })?),
            DType::F64 => Storage::F64(self.float_elements(tokens, ty, parse_f64)?),
            DType::Inert(inert) => {
                let round = inert::rounding(inert);
                let element = |&t: &usize| self.inert_element(t, inert, &*round, ty);
                Storage::Inert(inert, tokens.iter().map(element).collect::<Result<_>>()?)
            }
        })
    }

    fn float_elements<T>(
        &self,
        tokens: &[usize],
        ty: &TensorType,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>> {
        tokens.iter().map(|&t| parse(self.text_at(t)).ok_or_else(|| self.bad_element(t, ty))).collect()
    }

    fn integer_element<T: TryFrom<i128>>(&self, token: usize, ty: &TensorType) -> Result<T> {
        parse_integer(self.text_at(token))
            .and_then(|v| T::try_from(v).ok())
            .ok_or_else(|| self.bad_element(token, ty))
    }

    /// An element of a type that only the interpreter knows: `(1.0, 2.0)`, `-3`, `1.5`, `0x3C`.
    fn inert_element(
        &self,
        token: usize,
        inert: InertType,
        round: &dyn Fn(f64) -> f64,
        ty: &TensorType,
    ) -> Result<[f64; 2]> {
        let bad = || self.bad_element(token, ty);
        let number = |at: usize| match self.kind_at(at) {
            Kind::Number => inert::parse(inert, self.text_at(at)).map(round).ok_or_else(bad),
            _ => Err(bad()),
        };
        if !DType::Inert(inert).is_complex() {
            return Ok([number(token)?, 0.0]);
        }
        let is_pair = self.kind_at(token) == Kind::Mark('(')
            && self.tree.tokens.closing[token] == token + 4
            && self.kind_at(token + 2) == Kind::Mark(',');
        if is_pair { Ok([number(token + 1)?, number(token + 3)?]) } else { Err(bad()) }
    }

    fn bad_element(&self, token: usize, ty: &TensorType) -> Box<partita_base::Diagnostic> {
        self.error_at(token, "E145", "this element does not fit the literal's type")
            .expected(format!("a value of {}", ty.dtype.mlir_name()))
            .found(format!("`{}`", self.text_at(token)))
    }
}

pub(crate) enum Float<'a> {
    Bits(u64),
    Decimal(&'a str),
}

pub(crate) fn float_text(text: &str) -> Option<Float<'_>> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(Float::Bits),
        None => text
            .starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+')
            .then_some(Float::Decimal(text)),
    }
}

/// A decimal, or the bit pattern of an f64 after `0x`.
pub(crate) fn parse_f64(text: &str) -> Option<f64> {
    Some(match float_text(text)? {
        Float::Bits(bits) => f64::from_bits(bits),
        Float::Decimal(text) => text.parse().ok()?,
    })
}

/// A decimal or hexadecimal integer.
pub(crate) fn parse_integer(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `dense<..>`, without the type.
pub(crate) fn print_dense(literal: &Literal) -> String {
    let count = literal.data.len();
    if count == 0 {
        return "dense<>".to_string();
    }
    if literal.is_splat() {
        return format!("dense<{}>", print_element(&literal.data, 0));
    }
    if count > LISTED && literal.ty.dtype != DType::Bool && !literal.ty.dtype.is_inert() {
        let digits: String = literal.to_bytes().iter().map(|b| format!("{b:02X}")).collect();
        return format!("dense<\"0x{digits}\">");
    }
    let shape = &literal.ty.shape;
    let mut out = String::from("dense<");
    for position in 0..count {
        // Brackets open where a position starts a row of some depth, and close where it ends one.
        let mut row = 1;
        let mut starts = 0;
        let mut ends = 0;
        for extent in shape.iter().rev() {
            row *= extent;
            starts += usize::from(position % row == 0);
            ends += usize::from((position + 1) % row == 0);
        }
        if position > 0 {
            out.push_str(", ");
        }
        out.push_str(&"[".repeat(starts));
        out.push_str(&print_element(&literal.data, position));
        out.push_str(&"]".repeat(ends));
    }
    out.push('>');
    out
}

fn print_element(data: &Storage, at: usize) -> String {
    match data {
        Storage::Bool(v) => v[at].to_string(),
        Storage::I8(v) => v[at].to_string(),
        Storage::I16(v) => v[at].to_string(),
        Storage::I32(v) => v[at].to_string(),
        Storage::I64(v) => v[at].to_string(),
        Storage::U8(v) => v[at].to_string(),
        Storage::U16(v) => v[at].to_string(),
        Storage::U32(v) => v[at].to_string(),
        Storage::U64(v) => v[at].to_string(),
        Storage::F16(v) if v[at].is_finite() => print_decimal(format!("{:e}", v[at].to_f32())),
        Storage::F16(v) => format!("0x{:04X}", v[at].to_bits()),
        Storage::BF16(v) if v[at].is_finite() => print_decimal(format!("{:e}", v[at].to_f32())),
        Storage::BF16(v) => format!("0x{:04X}", v[at].to_bits()),
        Storage::F32(v) if v[at].is_finite() => print_decimal(format!("{:e}", v[at])),
        Storage::F32(v) => format!("0x{:08X}", v[at].to_bits()),
        Storage::F64(v) => print_f64(v[at]),
        Storage::Splat(one, _) => print_element(one, 0),
        Storage::Inert(inert, elements) => inert::print(*inert, elements[at]),
    }
}

/// The shortest digits that parse back to the value, or the bit pattern if there are none.
pub(crate) fn print_f64(value: f64) -> String {
    if value.is_finite() {
        print_decimal(format!("{value:e}"))
    } else {
        format!("0x{:016X}", value.to_bits())
    }
}

/// Rust's shortest `7.5e-1` in MLIR's format: at least six digits after the point, a signed
/// two-digit exponent.
pub(crate) fn print_decimal(shortest: String) -> String {
    let (mantissa, exponent) = shortest.split_once('e').expect("`{:e}` writes an exponent");
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i32 = exponent.parse().expect("`{:e}` writes an integer exponent");
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{whole}.{fraction:0<6}e{sign}{:02}", exponent.abs())
}
