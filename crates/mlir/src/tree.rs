//! The tree: operations, regions and blocks in lists of their own, attributes and types inside them.

use crate::lexer::Tokens;
use crate::source::Source;
use std::collections::HashMap;
use std::ops::Range;

/// Tokens from one index up to another.
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
    /// Its tokens; all places in the tree are indices into them.
    pub tokens: Tokens,
    /// All operations, inner ones before those that hold them.
    pub operations: Vec<Operation>,
    /// All regions.
    pub regions: Vec<Region>,
    /// The operations that no other holds.
    pub top: Vec<OperationId>,
    /// What `#name = ..` and `!name = ..` define, in order.
    pub aliases: Vec<Alias>,
    /// Groups of `{-# .. #-}`, which hold resources.
    pub resources: Vec<Span>,
    /// The region that a `{` opens, by its token.
    pub(crate) region_at: HashMap<usize, RegionId>,
}

/// `%name:count` on the left of `=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultNames {
    /// The token of the name.
    pub name: usize,
    /// How many results it names.
    pub count: usize,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it yields.
    pub results: Vec<ResultNames>,
    /// The token of its name: a word, or a string where the form is generic.
    pub name: usize,
    /// What follows the name.
    pub form: Form,
    /// The inside of its `loc(..)`, brackets included. Of a pretty form it is part of the tokens as well.
    pub location: Option<Span>,
    /// All its tokens, results and location included.
    pub span: Span,
}

/// How an operation is written.
#[derive(Clone, Debug)]
pub enum Form {
    /// In the generic form, which is the same for all operations.
    Generic(Box<Generic>),
    /// In a form of its own.
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
    /// The tokens of the blocks that may follow.
    pub successors: Vec<usize>,
    /// Properties, then discardable attributes.
    pub attributes: Vec<Named>,
    /// How many of the attributes are properties.
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
    /// `^name`, where it is written.
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
    /// The value; [`Attribute::Unit`] where only the name is written.
    pub value: Attribute,
}

/// `#name = value` or `!name = type`.
#[derive(Clone, Debug)]
pub struct Alias {
    /// `#name` or `!name`.
    pub name: String,
    /// What it stands for.
    pub value: Attribute,
}

/// An attribute, by its form.
#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    /// A name without a value, or `unit`.
    Unit,
    /// A token: `true`, `false`, a number or a string; with its type where one follows.
    Plain(usize, Option<Box<Type>>),
    /// `@name` or `@outer::@inner`.
    Symbol(Span),
    /// `[a, b]`.
    List(Vec<Attribute>),
    /// `{a = b}`.
    Dictionary(Vec<Named>),
    /// `array<i64: 1, 2>`, `dense<..> : T`, `affine_map<..>` and others: the word, what stands between `<` and `>`, and
    /// the type where one follows.
    Builtin(usize, Span, Option<Box<Type>>),
    /// `#dialect.name<..>`, or an alias: the token of the name, what stands between `<` and `>`, and the type.
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
    /// `tensor<2x3xf32>`: the word, and what stands between `<` and `>`.
    Builtin(usize, Span),
    /// `(T, U) -> V`.
    Function(Vec<Type>, Vec<Type>),
    /// `!dialect.name<..>` or an alias: the token of the name, and what stands between `<` and `>`.
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

    /// The region that the `{` at this token opens, if it opens one.
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
