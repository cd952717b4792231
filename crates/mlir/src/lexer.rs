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
    let length = source.text.len();
    let mut lexer = Lexer {
        source,
        bytes: source.text.as_bytes(),
        at: 0,
        list: Vec::with_capacity(length / 4),
        closing: Vec::with_capacity(length / 4),
        open: Vec::new(),
    };
    while lexer.at < length {
        let start = lexer.at;
        let Some(kind) = lexer.pass(start)? else { continue };
        if lexer.at == start + 1 && matches!(kind, Kind::Value | Kind::Symbol) {
            return Err(source.error("E140", "a name is missing", start));
        }
        if let Kind::Mark(bracket) = kind {
            lexer.pair(bracket, start)?;
        }
        lexer.add(kind, start);
    }
    if let Some(&from) = lexer.open.last() {
        let Token { start, end, .. } = lexer.list[from];
        return Err(source.error("E140", format!("`{}` is never closed", &source.text[start..end]), start));
    }
    lexer.add(Kind::End, length);
    Ok(Tokens { list: lexer.list, closing: lexer.closing })
}

/// The tokens before a position.
struct Lexer<'a> {
    source: &'a Source<'a>,
    bytes: &'a [u8],
    at: usize,
    list: Vec<Token>,
    closing: Vec<usize>,
    /// The tokens of brackets that are not closed yet.
    open: Vec<usize>,
}

impl Lexer<'_> {
    /// Moves behind the token, the space or the comment that begins at `start`. The kind of the token; `None` for others.
    fn pass(&mut self, start: usize) -> Result<Option<Kind>> {
        let byte = self.bytes[start];
        let next = self.bytes.get(start + 1).copied();
        let is_name_byte = |b| is_word_byte(b) || b == b'-';
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                self.at += 1;
                return Ok(None);
            }
            b'/' if next == Some(b'/') => {
                self.at = self.run(start, |b| b != b'\n');
                return Ok(None);
            }
            b'"' => (Kind::Text, string_end(self.source, start)?),
            b'-' if next == Some(b'>') => (Kind::Arrow, start + 2),
            b'0'..=b'9' => (Kind::Number, number_end(self.bytes, start)),
            b'-' | b'+' if next.is_some_and(|b| b.is_ascii_digit()) => {
                (Kind::Number, number_end(self.bytes, start + 1))
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => (Kind::Word, self.run(start, is_word_byte)),
            b'%' => (Kind::Value, self.value_end(self.run(start + 1, is_name_byte))),
            b'@' if next == Some(b'"') => (Kind::Symbol, string_end(self.source, start + 1)?),
            b'@' => (Kind::Symbol, self.run(start + 1, is_name_byte)),
            b'#' => (Kind::Hash, self.run(start + 1, is_word_byte)),
            b'^' => (Kind::Label, self.run(start + 1, is_word_byte)),
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b':' | b'=' | b'?' | b'*'
            | b'+' | b'-' | b'/' | b'!' | b'|' => (Kind::Mark(byte as char), start + 1),
            _ => {
                let found = self.source.text[start..].chars().next().unwrap_or(' ');
                return Err(self
                    .source
                    .error("E140", "no token begins with this character", start)
                    .found(format!("{found:?}")));
            }
        };
        self.at = end;
        Ok(Some(kind))
    }

    /// The position behind the bytes from `from` on that `accepts` holds for.
    fn run(&self, mut from: usize, accepts: impl Fn(u8) -> bool) -> usize {
        while from < self.bytes.len() && accepts(self.bytes[from]) {
            from += 1;
        }
        from
    }

    /// The end of a value whose name ends here: behind the number of a result, if there is one.
    fn value_end(&self, at: usize) -> usize {
        if self.bytes.get(at) == Some(&b'#') && self.bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
            return self.run(at + 1, |b| b.is_ascii_digit());
        }
        at
    }

    /// Notes a bracket that opens, or pairs one that closes with it; other characters are no brackets.
    fn pair(&mut self, bracket: char, start: usize) -> Result<()> {
        if let '(' | '[' | '{' = bracket {
            self.open.push(self.list.len());
        }
        let (')' | ']' | '}') = bracket else { return Ok(()) };
        let Some(from) = self.open.pop() else {
            return Err(self.source.error("E140", format!("`{bracket}` has no opening bracket"), start));
        };
        let opening = self.list[from].start;
        let wanted = match self.bytes[opening] {
            b'(' => ')',
            b'[' => ']',
            _ => '}',
        };
        if wanted != bracket {
            let (line, column) = self.source.position(opening);
            return Err(self
                .source
                .error("E140", "brackets do not pair", start)
                .expected(format!("`{wanted}` for the bracket opened at {line}:{column}"))
                .found(format!("`{bracket}`")));
        }
        self.closing[from] = self.list.len();
        Ok(())
    }

    /// Adds the token from `start` up to here.
    fn add(&mut self, kind: Kind, start: usize) {
        self.list.push(Token { kind, start, end: self.at });
        self.closing.push(usize::MAX);
    }
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
