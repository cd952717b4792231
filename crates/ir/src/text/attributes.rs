//! Attribute values and dictionaries, in the subset that StableHLO uses.

use super::literals::{parse_f64, parse_integer};
use super::parser::Parser;
use super::sharding::ShardingText;
use crate::literal::Literal;
use partita_base::{DType, Result};
use partita_mlir::{Attribute, Kind, Named, Tree, Type, unquote};

/// An attribute value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Present without a value.
    Unit,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// `@name`.
    Symbol(String),
    /// `[a, b]`.
    List(Vec<Value>),
    /// `array<i64: 1, 2>`; booleans are 0 and 1.
    Ints(Vec<i64>),
    /// `dense<..> : T`.
    Dense(Literal),
    /// An element type.
    DType(DType),
    /// `{a = b}`.
    Dictionary(Attributes),
    /// `#dialect.name<a = b>`.
    Record(Attributes),
    /// `#stablehlo<comparison_direction LT>`: the last word.
    Keyword(String),
    /// `#sdy.sharding<..>` or each of `#sdy.sharding_per_value<[..]>`.
    Shardings(Vec<ShardingText>),
    /// The dimension numbers of a convolution: the token after `#stablehlo.conv<`.
    Convolution(usize),
    /// A value that this language does not use.
    Other,
}

/// Attributes by name; the last one of a name counts. Order is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    pub list: Vec<(String, Value)>,
}

impl Attributes {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.list.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// Magnitude that integers in attributes may have: sums and small multiples of them never overflow.
pub(crate) const INTEGER_LIMIT: i128 = 1 << 40;

impl Parser<'_> {
    /// `{a = b, c}`.
    pub fn dictionary(&mut self) -> Result<Attributes> {
        let tree = self.tree.clone();
        let mut cursor = self.cursor(&tree);
        let list = cursor.dictionary()?;
        let attributes = self.named(&tree, &list)?;
        self.position = cursor.position;
        Ok(attributes)
    }

    /// The values of the tree's attributes.
    pub fn named(&mut self, tree: &Tree, list: &[Named]) -> Result<Attributes> {
        let mut attributes = Attributes { list: Vec::with_capacity(list.len()) };
        for named in list {
            let value = self.meaning(tree, &named.value)?;
            attributes.list.push((unquote(tree.text(named.name)), value));
        }
        Ok(attributes)
    }

    /// `{..}` or nothing.
    pub fn optional_dictionary(&mut self) -> Result<Attributes> {
        if self.kind() == Kind::Mark('{') { self.dictionary() } else { Ok(Attributes::default()) }
    }

    /// `a = b, c` up to a closing mark, which is not consumed.
    pub fn fields(&mut self, close: char) -> Result<Attributes> {
        let mut attributes = Attributes::default();
        while self.kind() != Kind::Mark(close) {
            let name = match self.kind() {
                Kind::Word => self.text().to_string(),
                Kind::Text => unquote(self.text()),
                _ => return Err(self.unexpected("an attribute name")),
            };
            self.advance();
            let value = if self.eat('=') { self.value()? } else { Value::Unit };
            attributes.list.push((name, value));
            if !self.eat(',') {
                break;
            }
        }
        Ok(attributes)
    }

    /// One attribute value, with its type where it has one.
    pub fn value(&mut self) -> Result<Value> {
        let tree = self.tree.clone();
        let mut cursor = self.cursor(&tree);
        let attribute = cursor.attribute()?;
        let value = self.meaning(&tree, &attribute)?;
        self.position = cursor.position;
        Ok(value)
    }

    /// The value of an attribute of the tree.
    fn meaning(&mut self, tree: &Tree, attribute: &Attribute) -> Result<Value> {
        Ok(match attribute {
            Attribute::Unit => Value::Unit,
            Attribute::Plain(token, ty) => match self.kind_at(*token) {
                Kind::Text => Value::Text(unquote(tree.text(*token))),
                Kind::Number => self.number_value(*token, ty.as_deref())?,
                _ => Value::Bool(tree.text(*token) == "true"),
            },
            Attribute::Symbol(span) => {
                let parts = tree.slice(span).split("::").map(|part| unquote(part.trim_start_matches('@')));
                Value::Symbol(parts.collect::<Vec<_>>().join("::"))
            }
            Attribute::List(list) => {
                Value::List(list.iter().map(|value| self.meaning(tree, value)).collect::<Result<_>>()?)
            }
            Attribute::Dictionary(list) => Value::Dictionary(self.named(tree, list)?),
            Attribute::Builtin(word, ..) => {
                self.position = *word;
                match tree.text(*word) {
                    "array" => Value::Ints(self.array()?),
                    "dense" | "dense_resource" => Value::Dense(self.dense()?),
                    _ => Value::Other,
                }
            }
            Attribute::Dialect(name, ..) => {
                self.position = *name;
                self.dialect_value()?
            }
            Attribute::Type(Type::Plain(word)) => match DType::from_mlir_name(tree.text(*word)) {
                Some(dtype) => Value::DType(dtype),
                None => {
                    self.position = *word;
                    return Err(self.unexpected("an attribute value"));
                }
            },
            Attribute::Type(_) | Attribute::Location(_) => Value::Other,
        })
    }

    fn number_value(&self, token: usize, ty: Option<&Type>) -> Result<Value> {
        let text = self.text_at(token);
        let ty = match ty {
            Some(Type::Plain(word)) => DType::from_mlir_name(self.text_at(*word)),
            _ => None,
        };
        let as_float = text.contains('.') || ty.is_some_and(DType::is_float);
        if as_float {
            let narrow = match (text.strip_prefix("0x"), ty) {
                (Some(digits), Some(DType::F32)) => {
                    u32::from_str_radix(digits, 16).ok().map(|bits| f32::from_bits(bits) as f64)
                }
                _ => parse_f64(text),
            };
            return narrow.map(Value::Float).ok_or_else(|| self.error_at(token, "E145", "not a number"));
        }
        // Integer attributes may be written as unsigned 64-bit numbers; their bits are kept.
        parse_integer(text)
            .and_then(|v| i64::try_from(v).ok().or_else(|| u64::try_from(v).ok().map(|v| v as i64)))
            .map(Value::Int)
            .ok_or_else(|| self.error_at(token, "E145", "this integer has more than 64 bits"))
    }

    /// `array<i64: 1, 2>`, `array<i64>`, `array<i1: true>`.
    fn array(&mut self) -> Result<Vec<i64>> {
        self.keyword("array")?;
        self.mark('<')?;
        if self.kind() != Kind::Word {
            return Err(self.unexpected("an element type"));
        }
        self.advance();
        let mut values = Vec::new();
        if self.eat(':') {
            loop {
                values.push(match self.text() {
                    "true" => 1,
                    "false" => 0,
                    text => parse_integer(text)
                        .and_then(|v| i64::try_from(v).ok())
                        .ok_or_else(|| self.unexpected("an integer"))?,
                });
                self.advance();
                if !self.eat(',') {
                    break;
                }
            }
        }
        self.mark('>')?;
        Ok(values)
    }

    /// `#stablehlo.gather<..>`, `#stablehlo<precision DEFAULT>`, `#sdy.sharding<..>`.
    fn dialect_value(&mut self) -> Result<Value> {
        let name = self.text();
        self.advance();
        match name {
            "#sdy.sharding" => return Ok(Value::Shardings(vec![self.sharding()?])),
            "#sdy.sharding_per_value" => {
                self.mark('<')?;
                let list = self.sharding_list()?;
                self.mark('>')?;
                return Ok(Value::Shardings(list));
            }
            "#stablehlo.conv" => {
                self.mark('<')?;
                let start = self.position;
                self.skip_angle()?;
                return Ok(Value::Convolution(start));
            }
            _ => {}
        }
        if self.kind() != Kind::Mark('<') {
            return Ok(Value::Other);
        }
        self.advance();
        let next = self.kind_at(self.position + 1);
        if self.kind() == Kind::Word && next == Kind::Word {
            self.advance();
            let word = self.text().to_string();
            self.advance();
            self.mark('>')?;
            return Ok(Value::Keyword(word));
        }
        if self.kind() == Kind::Word && matches!(next, Kind::Mark('=' | ',' | '>')) {
            let fields = self.fields('>')?;
            self.mark('>')?;
            return Ok(Value::Record(fields));
        }
        self.skip_angle()?;
        Ok(Value::Other)
    }

    /// Skips to the `>` that closes a consumed `<`.
    pub fn skip_angle(&mut self) -> Result<()> {
        let mut depth = 1;
        loop {
            match self.kind() {
                Kind::Mark('<') => depth += 1,
                Kind::Mark('>') => depth -= 1,
                Kind::Mark('(' | '[' | '{') => {
                    self.position = self.tree.tokens.closing[self.position];
                }
                Kind::End | Kind::Mark(')' | ']' | '}') => return Err(self.unexpected("`>`")),
                _ => {}
            }
            self.advance();
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// `[1, 2]` or `[]`.
    pub fn integer_list(&mut self) -> Result<Vec<i64>> {
        self.mark('[')?;
        let mut values = Vec::new();
        while self.kind() != Kind::Mark(']') {
            values.push(self.integer()?);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(']')?;
        Ok(values)
    }

    /// One integer of moderate size. E149 beyond.
    pub fn integer(&mut self) -> Result<i64> {
        if self.kind() != Kind::Number {
            return Err(self.unexpected("an integer"));
        }
        let value = parse_integer(self.text()).ok_or_else(|| self.unexpected("an integer"))?;
        if value.abs() > INTEGER_LIMIT {
            return Err(self.error("E149", "this integer is too large"));
        }
        self.advance();
        Ok(value as i64)
    }
}
