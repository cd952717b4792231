//! The printer: from tree to text, one operation per line; tokens are printed as they were written.

use crate::tree::{Attribute, Block, Form, Named, Operation, OperationId, Span, Tree, Type};
use std::fmt::Write;

impl Tree<'_> {
    /// The text of the tree, with one operation per line.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for alias in &self.aliases {
            let _ = writeln!(out, "{} = {}", alias.name, self.attribute_text(&alias.value));
        }
        for &operation in &self.top {
            self.print_operation(operation, 0, &mut out);
        }
        for resources in &self.resources {
            let _ = writeln!(out, "{}", self.slice(resources));
        }
        out
    }

    /// Prints an operation and everything in it, on one or more lines.
    fn print_operation(&self, id: OperationId, indent: usize, out: &mut String) {
        let operation = self.operation(id);
        out.push_str(&"  ".repeat(indent));
        for (position, result) in operation.results.iter().enumerate() {
            out.push_str(if position > 0 { ", " } else { "" });
            out.push_str(self.text(result.name));
            if result.count > 1 {
                let _ = write!(out, ":{}", result.count);
            }
        }
        if !operation.results.is_empty() {
            out.push_str(" = ");
        }
        out.push_str(self.text(operation.name));
        match &operation.form {
            Form::Generic(_) => self.print_generic(operation, indent, out),
            Form::Pretty { tokens, regions } => {
                let mut from = tokens.start;
                for &region in regions {
                    let span = self.region(region).span.clone();
                    self.print_tokens(&(from..span.start), operation.name, out);
                    out.push(' ');
                    self.print_region(&self.region(region).blocks, indent, out);
                    from = span.end;
                }
                self.print_tokens(&(from..tokens.end), operation.name, out);
            }
        }
        out.push('\n');
    }

    /// Prints tokens as they were written, on one line, separated from the text before them where necessary.
    fn print_tokens(&self, span: &Span, name: usize, out: &mut String) {
        for token in span.clone() {
            let (before, own) = (self.tokens.list[token - 1], self.tokens.list[token]);
            let is_apart = before.end < own.start || (token == span.start && token - 1 != name);
            out.push_str(if is_apart { " " } else { "" });
            out.push_str(self.text(token));
        }
    }

    fn print_generic(&self, operation: &Operation, indent: usize, out: &mut String) {
        let Form::Generic(generic) = &operation.form else { return };
        let list = |tokens: &[usize]| tokens.iter().map(|&t| self.text(t)).collect::<Vec<_>>().join(", ");
        let _ = write!(out, "({})", list(&generic.operands));
        if !generic.successors.is_empty() {
            let _ = write!(out, " [{}]", list(&generic.successors));
        }
        let (properties, attributes) = generic.attributes.split_at(generic.properties);
        if !properties.is_empty() {
            let _ = write!(out, " <{}>", self.dictionary_text(properties));
        }
        for (position, &region) in generic.regions.iter().enumerate() {
            out.push_str(if position > 0 { ", " } else { " (" });
            self.print_region(&self.region(region).blocks, indent, out);
        }
        out.push_str(if generic.regions.is_empty() { "" } else { ")" });
        if !attributes.is_empty() {
            let _ = write!(out, " {}", self.dictionary_text(attributes));
        }
        let results = self.types_text(&generic.result_types);
        let _ = write!(out, " : ({}) -> ", self.list_text(&generic.operand_types));
        out.push_str(&results);
        if let Some(location) = &operation.location {
            let _ = write!(out, " loc{}", self.slice(location));
        }
    }

    fn print_region(&self, blocks: &[Block], indent: usize, out: &mut String) {
        out.push_str("{\n");
        for block in blocks {
            if let Some(label) = block.label {
                let arguments = block.arguments.as_ref().map_or("", |span| self.slice(span));
                let _ = writeln!(out, "{}{}{arguments}:", "  ".repeat(indent), self.text(label));
            }
            for &operation in &block.operations {
                self.print_operation(operation, indent + 1, out);
            }
        }
        let _ = write!(out, "{}}}", "  ".repeat(indent));
    }

    /// `{a = b, c}`.
    fn dictionary_text(&self, list: &[Named]) -> String {
        let entry = |named: &Named| match &named.value {
            Attribute::Unit => self.text(named.name).to_string(),
            value => format!("{} = {}", self.text(named.name), self.attribute_text(value)),
        };
        format!("{{{}}}", list.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    /// The text of an attribute.
    pub fn attribute_text(&self, attribute: &Attribute) -> String {
        let behind = |ty: &Option<Box<Type>>| match ty {
            Some(ty) => format!(" : {}", self.type_text(ty)),
            None => String::new(),
        };
        match attribute {
            Attribute::Unit => "unit".to_string(),
            Attribute::Plain(token, ty) => format!("{}{}", self.text(*token), behind(ty)),
            Attribute::Symbol(span) => self.slice(span).to_string(),
            Attribute::List(list) => {
                let texts: Vec<String> = list.iter().map(|a| self.attribute_text(a)).collect();
                format!("[{}]", texts.join(", "))
            }
            Attribute::Dictionary(list) => self.dictionary_text(list),
            Attribute::Builtin(word, body, ty) => {
                // Tokens between the word and `<`, such as `[0]` of `distinct[0]<..>`, are part of the head.
                let head = self.slice(&(*word..body.start - 1));
                format!("{head}<{}>{}", self.slice(body), behind(ty))
            }
            Attribute::Dialect(name, body, ty) => {
                let body = body.as_ref().map_or(String::new(), |body| format!("<{}>", self.slice(body)));
                format!("{}{body}{}", self.text(*name), behind(ty))
            }
            Attribute::Type(ty) => self.type_text(ty),
            Attribute::Location(span) => format!("loc{}", self.slice(span)),
        }
    }

    /// The text of a type.
    pub fn type_text(&self, ty: &Type) -> String {
        match ty {
            Type::Plain(word) => self.text(*word).to_string(),
            Type::Builtin(word, body) => format!("{}<{}>", self.text(*word), self.slice(body)),
            Type::Function(inputs, results) => {
                format!("({}) -> {}", self.list_text(inputs), self.types_text(results))
            }
            Type::Dialect(name, body) => {
                let body = body.as_ref().map_or(String::new(), |body| format!("<{}>", self.slice(body)));
                format!("!{}{body}", self.text(*name))
            }
        }
    }

    fn list_text(&self, types: &[Type]) -> String {
        types.iter().map(|ty| self.type_text(ty)).collect::<Vec<_>>().join(", ")
    }

    /// `T`, or `(T, U)`.
    fn types_text(&self, types: &[Type]) -> String {
        match types {
            [one] if !matches!(one, Type::Function(..)) => self.type_text(one),
            many => format!("({})", self.list_text(many)),
        }
    }
}
