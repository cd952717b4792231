//! The syntax tree: operations, regions and blocks in lists, with attributes and types inside them.

use crate::lexer::Tokens;
use crate::source::Source;
use std::collections::HashMap;
use std::ops::Range;

/// A range of token indices.
pub type Span = Range<usize>;

/// Index of an operation in [`Tree::operations`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationId(pub usize);

/// Index of a region in [`Tree::regions`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionId(pub usize);

/// A text as data.
pub struct Tree<'t> {
    /// The text.
    pub source: Source<'t>,
    /// Its tokens; all positions in the tree are indices into them.
    pub tokens: Tokens,
    /// All operations; nested operations precede those that contain them.
    pub operations: Vec<Operation>,
    /// All regions.
    pub regions: Vec<Region>,
    /// The operations that are not nested in others.
    pub top: Vec<OperationId>,
    /// The definitions `#name = ..` and `!name = ..`, in order.
    pub aliases: Vec<Alias>,
    /// The groups `{-# .. #-}`, which contain resources.
    pub resources: Vec<Span>,
    /// The region that a `{` opens, by the index of that token.
    pub(crate) region_at: HashMap<usize, RegionId>,
}

/// `%name:count` on the left of `=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultNames {
    /// The token of the name.
    pub name: usize,
    /// The number of results with that name.
    pub count: usize,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The names of its results.
    pub results: Vec<ResultNames>,
    /// The token of its name: a word, or a string in the generic form.
    pub name: usize,
    /// The tokens or structure after the name.
    pub form: Form,
    /// The inside of its `loc(..)`, brackets included. In a pretty form it is part of the tokens as well.
    pub location: Option<Span>,
    /// All its tokens, results and location included.
    pub span: Span,
}

/// The form in which an operation is written.
#[derive(Clone, Debug)]
pub enum Form {
    /// The generic form, which is the same for all operations.
    Generic(Box<Generic>),
    /// A pretty form, whose grammar depends on the operation.
    Pretty {
        /// The tokens after the name.
        tokens: Span,
        /// The regions among them.
        regions: Vec<RegionId>,
    },
}

/// `"name"(%operands) [^successors] <{properties}> ({regions}) {attributes} : (types) -> types`.
#[derive(Clone, Debug, Default)]
pub struct Generic {
    /// The tokens of the operands' names.
    pub operands: Vec<usize>,
    /// The tokens of the successor blocks.
    pub successors: Vec<usize>,
    /// Properties, then discardable attributes.
    pub attributes: Vec<Named>,
    /// The number of attributes that are properties.
    pub properties: usize,
    /// The regions.
    pub regions: Vec<RegionId>,
    /// The declared types of the operands.
    pub operand_types: Vec<Type>,
    /// The declared types of the results.
    pub result_types: Vec<Type>,
    /// The tokens of the function type.
    pub signature: Span,
}

/// A region: blocks in a pair of braces.
#[derive(Clone, Debug)]
pub struct Region {
    /// The blocks; the first may lack a label.
    pub blocks: Vec<Block>,
    /// Its tokens, braces included.
    pub span: Span,
}

/// A block: arguments and operations.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// `^name`, if there is one.
    pub label: Option<usize>,
    /// The inside of `(%a: T, ..)` after the label, brackets included.
    pub arguments: Option<Span>,
    /// The operations in order.
    pub operations: Vec<OperationId>,
}

/// `name = value` of a dictionary.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    /// The token of the name: a word or a string.
    pub name: usize,
    /// The value; [`Attribute::Unit`] if only the name is written.
    pub value: Attribute,
}

/// `#name = value` or `!name = type`.
#[derive(Clone, Debug)]
pub struct Alias {
    /// `#name` or `!name`.
    pub name: String,
    /// The value of the alias.
    pub value: Attribute,
}

/// An attribute, by its form.
#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    /// A name without a value, or `unit`.
    Unit,
    /// A token: `true`, `false`, a number or a string; with its type if one follows.
    Plain(usize, Option<Box<Type>>),
    /// `@name` or `@outer::@inner`.
    Symbol(Span),
    /// `[a, b]`.
    List(Vec<Attribute>),
    /// `{a = b}`.
    Dictionary(Vec<Named>),
    /// `array<i64: 1, 2>`, `dense<..> : T`, `affine_map<..>` and others: the word, the tokens between `<` and
    /// `>`, and the type if one follows.
    Builtin(usize, Span, Option<Box<Type>>),
    /// `#dialect.name<..>`, or an alias: the token of the name, the tokens between `<` and `>`, and the type.
    Dialect(usize, Option<Span>, Option<Box<Type>>),
    /// A type.
    Type(Type),
    /// The inside of `loc(..)`, brackets included.
    Location(Span),
}

/// A type, by its form.
#[derive(Clone, PartialEq, Debug)]
pub enum Type {
    /// `f32`, `index`: one word.
    Plain(usize),
    /// `tensor<2x3xf32>`: the word, and the tokens between `<` and `>`.
    Builtin(usize, Span),
    /// `(T, U) -> V`.
    Function(Vec<Type>, Vec<Type>),
    /// `!dialect.name<..>` or an alias: the token of the name, and the tokens between `<` and `>`.
    Dialect(usize, Option<Span>),
}

impl<'t> Tree<'t> {
    /// The text of a token.
    pub fn text(&self, token: usize) -> &'t str {
        let token = self.tokens.list[token];
        &self.source.text[token.start..token.end]
    }

    /// The text from the first to the last token of a span.
    pub fn slice(&self, span: &Span) -> &'t str {
        match span.is_empty() {
            true => "",
            false => {
                &self.source.text[self.tokens.list[span.start].start..self.tokens.list[span.end - 1].end]
            }
        }
    }

    /// An operation.
    pub fn operation(&self, id: OperationId) -> &Operation {
        &self.operations[id.0]
    }

    /// A region.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.0]
    }

    /// The region that the `{` at this token opens, if any.
    pub fn region_at(&self, token: usize) -> Option<&Region> {
        self.region_at.get(&token).map(|&id| self.region(id))
    }

    /// The name of an operation, without quotes.
    pub fn name(&self, operation: &Operation) -> String {
        crate::lexer::unquote(self.text(operation.name))
    }
}

impl Operation {
    /// The regions of either form.
    pub fn regions(&self) -> &[RegionId] {
        match &self.form {
            Form::Generic(generic) => &generic.regions,
            Form::Pretty { regions, .. } => regions,
        }
    }
}
