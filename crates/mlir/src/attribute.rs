//! Parses attributes and types.

use crate::cursor::Cursor;
use crate::lexer::Kind;
use crate::tree::{Attribute, Named, Type};
use partita_base::Result;

/// Words that begin an attribute when `<..>` follows; any other word with `<..>` is a type.
const BUILTIN: [&str; 9] = [
    "affine_map",
    "affine_set",
    "array",
    "dense",
    "dense_resource",
    "distinct",
    "opaque",
    "sparse",
    "strided",
];

impl Cursor<'_, '_> {
    /// `{a = b, c}`.
    pub fn dictionary(&mut self) -> Result<Vec<Named>> {
        self.mark('{')?;
        let mut list = Vec::new();
        while self.kind() != Kind::Mark('}') {
            if !matches!(self.kind(), Kind::Word | Kind::Text) {
                return Err(self.unexpected("an attribute name"));
            }
            let name = self.take();
            let value = if self.eat('=') { self.attribute()? } else { Attribute::Unit };
            list.push(Named { name, value });
            if !self.eat(',') {
                break;
            }
        }
        self.mark('}')?;
        Ok(list)
    }

    /// One attribute value, with its type if one follows. E140; E149 if it nests too deeply.
    pub fn attribute(&mut self) -> Result<Attribute> {
        self.enter()?;
        let attribute = self.attribute_inner();
        self.leave();
        attribute
    }

    fn attribute_inner(&mut self) -> Result<Attribute> {
        match self.kind() {
            Kind::Text | Kind::Number => {
                let token = self.take();
                Ok(Attribute::Plain(token, self.type_behind()?))
            }
            Kind::Symbol => {
                let start = self.take();
                while self.kind() == Kind::Mark(':')
                    && self.ahead(1) == Kind::Mark(':')
                    && self.ahead(2) == Kind::Symbol
                {
                    self.position += 3;
                }
                Ok(Attribute::Symbol(start..self.position))
            }
            Kind::Mark('[') => {
                self.advance();
                let mut values = Vec::new();
                while self.kind() != Kind::Mark(']') {
                    values.push(self.attribute()?);
                    if !self.eat(',') {
                        break;
                    }
                }
                self.mark(']')?;
                Ok(Attribute::List(values))
            }
            Kind::Mark('{') => Ok(Attribute::Dictionary(self.dictionary()?)),
            Kind::Hash => {
                let name = self.take();
                let body = if self.kind() == Kind::Mark('<') { Some(self.angle()?) } else { None };
                Ok(Attribute::Dialect(name, body, self.type_behind()?))
            }
            Kind::Mark('!' | '(') => Ok(Attribute::Type(self.read_type()?)),
            Kind::Word => match self.text() {
                "true" | "false" => {
                    let token = self.take();
                    Ok(Attribute::Plain(token, self.type_behind()?))
                }
                "unit" => {
                    self.advance();
                    Ok(Attribute::Unit)
                }
                "loc" if self.ahead(1) == Kind::Mark('(') => {
                    self.advance();
                    Ok(Attribute::Location(self.group()))
                }
                word if BUILTIN.contains(&word) => {
                    let word = self.take();
                    if self.kind() == Kind::Mark('[') {
                        self.group();
                    }
                    let body = self.angle()?;
                    Ok(Attribute::Builtin(word, body, self.type_behind()?))
                }
                _ => Ok(Attribute::Type(self.read_type()?)),
            },
            _ => Err(self.unexpected("an attribute value")),
        }
    }

    /// `: T`, or nothing.
    fn type_behind(&mut self) -> Result<Option<Box<Type>>> {
        if self.eat(':') { Ok(Some(Box::new(self.read_type()?))) } else { Ok(None) }
    }

    /// One type of any dialect. E140; E149 if it nests too deeply.
    pub fn read_type(&mut self) -> Result<Type> {
        match self.kind() {
            Kind::Word => {
                let word = self.take();
                Ok(match self.kind() {
                    Kind::Mark('<') => Type::Builtin(word, self.angle()?),
                    _ => Type::Plain(word),
                })
            }
            Kind::Mark('!') => {
                self.advance();
                if self.kind() != Kind::Word {
                    return Err(self.unexpected("the name of a type"));
                }
                let name = self.take();
                let body = if self.kind() == Kind::Mark('<') { Some(self.angle()?) } else { None };
                Ok(Type::Dialect(name, body))
            }
            Kind::Mark('(') => {
                self.enter()?;
                let inputs = self.types()?;
                if self.kind() != Kind::Arrow {
                    return Err(self.unexpected("`->`"));
                }
                self.advance();
                let results = self.types()?;
                self.leave();
                Ok(Type::Function(inputs, results))
            }
            _ => Err(self.unexpected("a type")),
        }
    }

    /// `(T, U)`, or one type.
    pub fn types(&mut self) -> Result<Vec<Type>> {
        if self.kind() != Kind::Mark('(') {
            return Ok(vec![self.read_type()?]);
        }
        self.advance();
        let mut types = Vec::new();
        while self.kind() != Kind::Mark(')') {
            types.push(self.read_type()?);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(')')?;
        Ok(types)
    }
}
