//! Tables of comma-separated values (RFC 4180): a head of column names, then rows of as many fields; fields may be quoted.

use partita_base::{Diagnostic, Result};
use std::collections::BTreeMap;

/// A table with named columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Csv {
    /// What messages call it.
    origin: String,
    columns: BTreeMap<String, usize>,
    /// Fields with the line and column where each begins.
    rows: Vec<Vec<Field>>,
}

/// A field and where it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    text: String,
    line: usize,
    column: usize,
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    table: &'a Csv,
    fields: &'a [Field],
}

fn malformed(origin: &str, line: usize, column: usize) -> Box<Diagnostic> {
    Diagnostic::new("E513", "malformed table of runs").at(format!("{origin}:{line}:{column}"))
}

impl Csv {
    /// Reads a table.
    ///
    /// # Errors
    /// E513 with line and column: a quote that does not end, text after a quoted field, a row with another number of
    /// fields than the head, a column named twice, no row.
    pub fn parse(text: &str, origin: &str) -> Result<Csv> {
        let mut rows: Vec<Vec<Field>> = Vec::new();
        // Spreadsheets write a mark of the byte order first.
        let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
        let (mut line, mut column) = (1, 1);
        while chars.peek().is_some() {
            let mut fields = Vec::new();
            loop {
                let mut field = Field { text: String::new(), line, column };
                if chars.next_if_eq(&'"').is_some() {
                    column += 1;
                    loop {
                        match chars.next() {
                            None => {
                                return Err(malformed(origin, field.line, field.column)
                                    .expected("a closing quote")
                                    .found("the end of the file"));
                            }
                            Some('"') if chars.next_if_eq(&'"').is_some() => {
                                field.text.push('"');
                                column += 2;
                            }
                            Some('"') => {
                                column += 1;
                                break;
                            }
                            Some(other) => {
                                (line, column) =
                                    if other == '\n' { (line + 1, 1) } else { (line, column + 1) };
                                field.text.push(other);
                            }
                        }
                    }
                    if let Some(other) = chars.peek().filter(|c| !matches!(c, ',' | '\n' | '\r')) {
                        return Err(malformed(origin, line, column)
                            .expected("a comma or the end of the line after a quoted field")
                            .found(format!("`{other}`")));
                    }
                } else {
                    while let Some(other) = chars.next_if(|c| !matches!(c, ',' | '\n' | '\r')) {
                        field.text.push(other);
                        column += 1;
                    }
                }
                fields.push(field);
                if chars.next_if_eq(&',').is_none() {
                    break;
                }
                column += 1;
            }
            chars.next_if_eq(&'\r');
            chars.next_if_eq(&'\n');
            (line, column) = (line + 1, 1);
            if fields.len() > 1 || !fields[0].text.is_empty() {
                rows.push(fields);
            }
        }
        if rows.len() < 2 {
            return Err(malformed(origin, line, 1).expected("a head of column names and at least one row"));
        }
        let head = rows.remove(0);
        let mut columns = BTreeMap::new();
        for (place, field) in head.iter().enumerate() {
            if columns.insert(field.text.trim().to_string(), place).is_some() {
                return Err(malformed(origin, field.line, field.column)
                    .expected("each column once")
                    .found(format!("`{}` again", field.text)));
            }
        }
        if let Some(row) = rows.iter().find(|row| row.len() != head.len()) {
            let last = row.last().expect("a row has a field");
            return Err(malformed(origin, last.line, last.column)
                .expected(format!("{} fields, as in the head", head.len()))
                .found(format!("{} fields", row.len())));
        }
        Ok(Csv { origin: origin.to_string(), columns, rows })
    }

    /// E513 if a column is missing.
    pub fn needs(&self, columns: &[&str]) -> Result<()> {
        match columns.iter().find(|column| !self.columns.contains_key(**column)) {
            None => Ok(()),
            Some(column) => Err(malformed(&self.origin, 1, 1)
                .expected(format!("a column `{column}`"))
                .found(format!("columns {}", self.columns.keys().cloned().collect::<Vec<_>>().join(", ")))),
        }
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|fields| Row { table: self, fields })
    }
}

impl<'a> Row<'a> {
    /// The text of a column; empty if the table has none of this name.
    pub fn text(&self, column: &str) -> &'a str {
        self.table.columns.get(column).map_or("", |&place| self.fields[place].text.trim())
    }

    /// The number in a column; `None` if the field is empty.
    ///
    /// # Errors
    /// E513 with line and column for text that is no finite number.
    pub fn number(&self, column: &str) -> Result<Option<f64>> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.unlike(column, "a number"))
    }

    /// That the field of a column is not what is expected.
    fn unlike(&self, column: &str, expected: &str) -> Box<Diagnostic> {
        let field = &self.fields[self.table.columns[column]];
        malformed(&self.table.origin, field.line, field.column)
            .expected(format!("{expected} in column `{column}`"))
            .found(format!("`{}`", field.text))
    }

    /// The number above zero in a column; `None` if the field is empty.
    ///
    /// # Errors
    /// E513 with line and column for another number.
    pub fn above_zero(&self, column: &str) -> Result<Option<f64>> {
        match self.number(column)? {
            Some(number) if number <= 0.0 => Err(self.unlike(column, "a number above 0")),
            number => Ok(number),
        }
    }

    /// The count in a column; `None` if the field is empty.
    ///
    /// # Errors
    /// E513 with line and column for a number that is no count of at least 1 and at most 2^40.
    pub fn count(&self, column: &str) -> Result<Option<usize>> {
        let Some(number) = self.number(column)? else { return Ok(None) };
        if number.fract() == 0.0 && (1.0..=(1u64 << 40) as f64).contains(&number) {
            return Ok(Some(number as usize));
        }
        Err(self.unlike(column, "a count of at least 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_hold_commas_quotes_and_lines() {
        let table = Csv::parse("\u{feff}a,b\r\n\"1,2\",\"x \"\"y\"\"\nz\"\n3,\n", "t").unwrap();
        let rows: Vec<[&str; 2]> = table.rows().map(|row| [row.text("a"), row.text("b")]).collect();
        assert_eq!(rows, [["1,2", "x \"y\"\nz"], ["3", ""]]);
        assert_eq!(table.rows().last().unwrap().count("a").unwrap(), Some(3));
        assert_eq!(table.rows().last().unwrap().count("b").unwrap(), None);
    }

    #[test]
    fn malformed_tables_point_at_line_and_column() {
        for (text, at) in [
            ("a,b\n1,\"2", "t:2:3"),
            ("a,b\n\"1\"2,3\n", "t:2:4"),
            ("a,b\n1,2\n1\n", "t:3:1"),
            ("a,b,a\n1,2,3\n", "t:1:5"),
            ("a,b\n", "t:2:1"),
        ] {
            let error = Csv::parse(text, "t").unwrap_err();
            assert_eq!((error.code, error.at.as_deref()), ("E513", Some(at)), "{text}");
        }
        let table = Csv::parse("a,b\n1,two\n", "t").unwrap();
        let row = table.rows().next().unwrap();
        assert_eq!(row.number("b").unwrap_err().at.as_deref(), Some("t:2:3"));
        assert_eq!(table.needs(&["c"]).unwrap_err().code, "E513");
    }
}
