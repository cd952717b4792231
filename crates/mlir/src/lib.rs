//! The syntax of MLIR as plain data: tokens, operations, attributes, types, regions and locations of any dialect.
//!
//! [`Tree::parse`] reads a text without knowing any operation. What MLIR's generic form spells out is structure: results,
//! name, operands, successors, properties, regions, attributes and the function type. A pretty form is a grammar of its
//! own for each operation, so it stays what it is: a balanced list of tokens, with the regions found in it, for the reader
//! of that operation. The same goes for what a dialect writes between `<` and `>` in its attributes and types. A consumer
//! therefore walks operations and regions of a module alike, and asks for the insides only of what it knows.
//!
//! Where a pretty operation ends is not written down. It ends before what can only begin a statement: results and `=`, a
//! quoted name and `(`, a dotted name where no word can precede it, a label on a line of its own, or the closing bracket.
//! Braces in a pretty form hold a region where their first tokens begin a statement, and a dictionary otherwise.
//!
//! Trees borrow the text and hold places in it: a literal of a million numbers is two indices. Nesting is bounded
//! ([`DEPTH_LIMIT`]), so that no text overflows a stack, here or in what walks a tree. [`Tree::print`] writes a tree
//! back. Diagnostics: E140 for what is not well formed, E149 for what nests too deep.
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
