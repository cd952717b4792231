//! Human-readable amounts.

/// Bytes in the largest binary unit that keeps at least one: `512 B`, `1.5 KiB`, `3.2 MiB`.
pub fn format_bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut amount = count as f64 / 1024.0;
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        // What would print as 1024 uses the next unit.
        if amount < 1023.95 {
            return format!("{amount:.1} {unit}");
        }
        amount /= 1024.0;
    }
    format!("{amount:.1} PiB")
}

/// A time in the unit that keeps it readable: `1.25 s`, `1.25 ms` or `1.3 us`.
pub fn format_seconds(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 => format!("{seconds:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.1} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_to_their_units() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB")];
        for (count, text) in cases {
            assert_eq!(format_bytes(count), text);
        }
        assert_eq!(format_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format_bytes(u64::MAX), "16384.0 PiB");
    }
}
