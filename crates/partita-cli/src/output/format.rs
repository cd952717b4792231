//! Numbers and tables for people.

pub use partita_base::{format_bytes as bytes, format_seconds as seconds};

/// A count in three digits or so: `87`, `12.3k`, `4.5M`.
pub fn short(count: f64) -> String {
    match count {
        _ if !count.is_finite() => "-".to_string(),
        c if c < 999.5 => format!("{c:.0}"),
        c if c < 999_950.0 => format!("{:.1}k", c / 1e3),
        c if c < 999_950_000.0 => format!("{:.1}M", c / 1e6),
        c => format!("{:.1}G", c / 1e9),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_to_their_units() {
        assert_eq!([87.4, 999.6, 12_345.0, 4.5e6, f64::NAN].map(short), ["87", "1.0k", "12.3k", "4.5M", "-"]);
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
