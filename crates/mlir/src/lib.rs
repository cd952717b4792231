//! The syntax of MLIR as plain data: tokens, operations, attributes, types, regions and locations of any
//! dialect.
//!
//! [`Tree::parse`] parses a text without knowing any operation. MLIR's generic form is parsed into structure:
//! results, name, operands, successors, properties, regions, attributes and the function type. A pretty form
//! has its own grammar for each operation, so it is kept as a balanced list of tokens, together with the
//! regions found in it, for the reader of that operation. The same holds for what a dialect writes between
//! `<` and `>` in its attributes and types. A consumer can therefore traverse the operations and regions of
//! any module, and parse the details only of operations that it knows.
//!
//! The text does not mark the end of a pretty operation. It ends before tokens that can only begin another
//! statement: results and `=`, a quoted name and `(`, a dotted name where no word can precede it, a label on
//! its own line, or the closing bracket. Braces in a pretty form contain a region if their first tokens begin
//! a statement, and a dictionary otherwise.
//!
//! Trees borrow the text and hold token indices: a literal of a million numbers is two indices. Nesting is
//! bounded ([`DEPTH_LIMIT`]), so that no text overflows the stack, neither here nor in code that traverses a
//! tree. [`Tree::print`] writes a tree as text. Diagnostics: E140 for text that is not well formed, E149 for
//! text that nests too deeply.
#![forbid(unsafe_code)]

mod attribute;
mod cursor;
mod lexer;
mod parse;
mod print;
mod source;
#[cfg(test)]
mod tests;
mod tree;

pub use cursor::{Cursor, DEPTH_LIMIT};
pub use lexer::{Kind, Token, Tokens, is_plain_symbol, quote, tokenize, unquote};
pub use source::Source;
pub use tree::{
    Alias, Attribute, Block, Form, Generic, Named, Operation, OperationId, Region, RegionId, ResultNames,
    Span, Tree, Type,
};
