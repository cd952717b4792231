//! Numbers and tables for people.

use partita_base::Diagnostic;
pub use partita_base::{
    format_bytes as bytes, format_count as short, format_parameters as parameters, format_seconds as seconds,
};

/// A loss or a norm: four decimals, or an exponent where they would say little.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-3..1e5).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Seconds as `12.3 s`, `4 min 05 s` or `2 h 07 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// What a throughput counts: tokens, where rows have several.
pub fn unit(rows_per_s: f64, tokens_per_s: f64) -> &'static str {
    if tokens_per_s > rows_per_s { "tokens/s" } else { "rows/s" }
}

/// Rows under a header, columns two spaces apart: the first to the left, the others to the right. No trailing spaces.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell_width = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = header.iter().map(|name| cell_width(name)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell_width(cell));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, &width)) in cells.zip(&widths).enumerate() {
            match column {
                0 => text += &format!("{cell:<width$}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text.trim_end().to_string() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// The headline in red, labels in cyan.
pub fn coloured(diagnostic: &Diagnostic) -> String {
    let text = diagnostic.to_string();
    let (head, rest) = text.split_once('\n').map_or((text.as_str(), None), |(h, r)| (h, Some(r)));
    let (code, message) = head.split_once(": ").unwrap_or((head, ""));
    let mut result = format!("\x1b[1;31m{code}\x1b[0m\x1b[1m: {message}\x1b[0m");
    for line in rest.into_iter().flat_map(str::lines) {
        result.push('\n');
        // Labels end at column 10; lines that go on with a text start after it.
        match line.split_at_checked(10) {
            Some((label, text)) if !label.trim().is_empty() && text.starts_with(':') => {
                result += &format!("\x1b[36m{label}\x1b[0m{text}");
            }
            _ => result += line,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_to_their_units() {
        assert_eq!([2.34567, 0.0, 1.5e-5, 2e7].map(number), ["2.3457", "0.0000", "1.500e-5", "2.000e7"]);
        assert_eq!(number(f64::NAN), "NaN");
        assert_eq!([12.34, 245.0, 7620.0].map(duration), ["12.3 s", "4 min 05 s", "2 h 07 min"]);
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["loss".to_string(), "1.5".into()], vec!["layers.0".to_string(), "12".into()]];
        assert_eq!(table(&["tensor", "error"], &rows), "tensor    error\nloss        1.5\nlayers.0     12\n");
    }
}
