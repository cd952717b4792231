//! Splits MLIR text into tokens, in one pass; the parser only moves an index over them.

use super::source::Source;
use partita_base::Result;

/// The kind of a token. Its text is a slice of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `stablehlo.add`, `tensor`, `true`: letters, digits, `_`, `$`, `.`.
    Word,
    /// `12`, `-1.5e+00`, `0x7F800000`.
    Number,
    /// `"..."`, quotes included.
    Text,
    /// `%name` or `%name#2`.
    Value,
    /// `@name` or `@"name"`.
    Symbol,
    /// `#name`: an alias or a dialect attribute; a bare `#` is valid only inside text that is kept as tokens.
    Hash,
    /// `^bb0`.
    Label,
    /// `->`.
    Arrow,
    /// A single character.
    Mark(char),
    /// After the last token.
    End,
}

/// A token: its kind and its byte range in the source.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The kind.
    pub kind: Kind,
    /// Its first byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// The tokens, and for each opening `(`, `[` or `{` the index of the token that closes it.
pub struct Tokens {
    /// The tokens in order; the last one is [`Kind::End`].
    pub list: Vec<Token>,
    /// For each token that opens a bracket, the index of the one that closes it; `usize::MAX` for others.
    pub closing: Vec<usize>,
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

/// Splits the source into tokens. E140 for text that begins no token, an unfinished string, and unpaired
/// brackets.
pub fn tokenize(source: &Source) -> Result<Tokens> {
    let text = source.text;
    let bytes = text.as_bytes();
    let mut list: Vec<Token> = Vec::with_capacity(bytes.len() / 4);
    let mut closing = Vec::with_capacity(bytes.len() / 4);
    let mut open: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        let run = |mut from: usize, accepts: fn(u8) -> bool| {
            while from < bytes.len() && accepts(bytes[from]) {
                from += 1;
            }
            from
        };
        let kind = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = run(at, |b| b != b'\n');
                continue;
            }
            b'"' => {
                at = string_end(source, start)?;
                Kind::Text
            }
            b'-' if bytes.get(at + 1) == Some(&b'>') => {
                at += 2;
                Kind::Arrow
            }
            b'0'..=b'9' => {
                at = number_end(bytes, at);
                Kind::Number
            }
            b'-' | b'+' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                at = number_end(bytes, at + 1);
                Kind::Number
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                at = run(at, is_word_byte);
                Kind::Word
            }
            b'%' => {
                at = run(at + 1, |b| is_word_byte(b) || b == b'-');
                if bytes.get(at) == Some(&b'#') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
                    at = run(at + 1, |b| b.is_ascii_digit());
                }
                Kind::Value
            }
            b'@' if bytes.get(at + 1) == Some(&b'"') => {
                at = string_end(source, at + 1)?;
                Kind::Symbol
            }
            b'@' => {
                at = run(at + 1, |b| is_word_byte(b) || b == b'-');
                Kind::Symbol
            }
            b'#' => {
                at = run(at + 1, is_word_byte);
                Kind::Hash
            }
            b'^' => {
                at = run(at + 1, is_word_byte);
                Kind::Label
            }
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b':' | b'=' | b'?' | b'*'
            | b'+' | b'-' | b'/' | b'!' | b'|' => {
                at += 1;
                Kind::Mark(byte as char)
            }
            _ => {
                let found = text[start..].chars().next().unwrap_or(' ');
                return Err(source
                    .error("E140", "no token begins with this character", start)
                    .found(format!("{found:?}")));
            }
        };
        if at == start + 1 && matches!(kind, Kind::Value | Kind::Symbol) {
            return Err(source.error("E140", "a name is missing", start));
        }
        match kind {
            Kind::Mark('(' | '[' | '{') => open.push(list.len()),
            Kind::Mark(close @ (')' | ']' | '}')) => {
                let Some(from) = open.pop() else {
                    return Err(source.error("E140", format!("`{close}` has no opening bracket"), start));
                };
                let wanted = match bytes[list[from].start] {
                    b'(' => ')',
                    b'[' => ']',
                    _ => '}',
                };
                if wanted != close {
                    let (line, column) = source.position(list[from].start);
                    return Err(source
                        .error("E140", "brackets do not pair", start)
                        .expected(format!("`{wanted}` for the bracket opened at {line}:{column}"))
                        .found(format!("`{close}`")));
                }
                closing[from] = list.len();
            }
            _ => {}
        }
        list.push(Token { kind, start, end: at });
        closing.push(usize::MAX);
    }
    if let Some(&from) = open.last() {
        let bracket = &text[list[from].start..list[from].end];
        return Err(source.error("E140", format!("`{bracket}` is never closed"), list[from].start));
    }
    list.push(Token { kind: Kind::End, start: bytes.len(), end: bytes.len() });
    closing.push(usize::MAX);
    Ok(Tokens { list, closing })
}

/// The byte position after the closing quote of the string that starts at `start`.
fn string_end(source: &Source, start: usize) -> Result<usize> {
    let bytes = source.text.as_bytes();
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return Ok(at + 1),
            b'\\' => at += 2,
            b'\n' => break,
            _ => at += 1,
        }
    }
    Err(source.error("E140", "this string does not end on its line", start))
}

/// The byte position after a number whose first digit is at `at`: digits, hexadecimal digits after `0x`, or a
/// decimal with an exponent. A fraction needs a decimal point, as in MLIR, so that shapes (`2x3xf32`) are
/// never read as numbers.
fn number_end(bytes: &[u8], mut at: usize) -> usize {
    let digits = |mut from: usize| {
        while bytes.get(from).is_some_and(u8::is_ascii_digit) {
            from += 1;
        }
        from
    };
    if bytes[at] == b'0'
        && bytes.get(at + 1) == Some(&b'x')
        && bytes.get(at + 2).is_some_and(u8::is_ascii_hexdigit)
    {
        at += 2;
        while bytes.get(at).is_some_and(u8::is_ascii_hexdigit) {
            at += 1;
        }
        return at;
    }
    at = digits(at);
    if bytes.get(at) != Some(&b'.') {
        return at;
    }
    at = digits(at + 1);
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        if bytes.get(at + 1 + sign).is_some_and(u8::is_ascii_digit) {
            at = digits(at + 1 + sign);
        }
    }
    at
}

/// The value of a string token: quotes removed, `\n`, `\t`, `\"`, `\\` and two-digit hexadecimal escapes
/// resolved. Invalid UTF-8 becomes the replacement character.
pub fn unquote(token: &str) -> String {
    let inner = token.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(token);
    let mut bytes = Vec::with_capacity(inner.len());
    let raw = inner.as_bytes();
    let mut at = 0;
    while at < raw.len() {
        if raw[at] != b'\\' {
            bytes.push(raw[at]);
            at += 1;
            continue;
        }
        let hex = raw.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        let code = hex.filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
        match (raw.get(at + 1), code) {
            (_, Some(code)) => {
                bytes.push(u8::from_str_radix(code, 16).expect("two hexadecimal digits"));
                at += 3;
            }
            (Some(b'n'), _) => {
                bytes.push(b'\n');
                at += 2;
            }
            (Some(b't'), _) => {
                bytes.push(b'\t');
                at += 2;
            }
            (Some(&other), _) => {
                bytes.push(other);
                at += 2;
            }
            (None, _) => at += 1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The inverse of [`unquote`], with quotes.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\22"),
            '\\' => out.push_str("\\5C"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\{:02X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a symbol name is valid after `@` without quotes.
pub fn is_plain_symbol(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_') && bytes.all(is_word_byte)
}
