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

/// A count in three digits or so: `87`, `12.3k`, `4.5M`.
pub fn format_count(count: f64) -> String {
    match count {
        _ if !count.is_finite() => "-".to_string(),
        c if c < 999.5 => format!("{c:.0}"),
        c if c < 999_950.0 => format!("{:.1}k", c / 1e3),
        c if c < 999_950_000.0 => format!("{:.1}M", c / 1e6),
        c if c < 999.95e9 => format!("{:.1}G", c / 1e9),
        c if c < 999.95e12 => format!("{:.1}T", c / 1e12),
        c => format!("{:.1}P", c / 1e15),
    }
}

/// A number of parameters as model cards write it: `254.6 K`, `8.03 B`, `405.9 B`.
pub fn format_parameters(count: f64) -> String {
    // What would print as 1000 uses the next unit.
    let (amount, unit) = match count {
        c if c < 999.5 => return format!("{c:.0}"),
        c if c < 999_950.0 => (c / 1e3, "K"),
        c if c < 999_950_000.0 => (c / 1e6, "M"),
        c if c < 999_950_000_000.0 => (c / 1e9, "B"),
        c => (c / 1e12, "T"),
    };
    if amount < 9.995 { format!("{amount:.2} {unit}") } else { format!("{amount:.1} {unit}") }
}

/// Operations per second: `654 TFLOP/s`, `3.2 TFLOP/s`, `41.5 GFLOP/s`.
pub fn format_flops(per_second: f64) -> String {
    match per_second {
        rate if rate >= 99.95e12 => format!("{:.0} TFLOP/s", rate / 1e12),
        rate if rate >= 0.99995e12 => format!("{:.1} TFLOP/s", rate / 1e12),
        rate if rate >= 0.99995e9 => format!("{:.1} GFLOP/s", rate / 1e9),
        rate => format!("{:.1} MFLOP/s", rate / 1e6),
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
        assert_eq!(
            [87.4, 999.6, 12_345.0, 4.5e6, 2.5e12, 1.2e18, f64::NAN].map(format_count),
            ["87", "1.0k", "12.3k", "4.5M", "2.5T", "1200.0P", "-"]
        );
        let counts = [87.0, 254_592.0, 999_960.0, 124.4e6, 8_030_261_248.0, 405_853_388_800.0, 1.04e12];
        let texts = ["87", "254.6 K", "1.00 M", "124.4 M", "8.03 B", "405.9 B", "1.04 T"];
        assert_eq!(counts.map(format_parameters), texts);
        let rates = [654.3e12, 3.21e12, 41.5e9, 2e6];
        assert_eq!(rates.map(format_flops), ["654 TFLOP/s", "3.2 TFLOP/s", "41.5 GFLOP/s", "2.0 MFLOP/s"]);
        assert_eq!(format_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format_bytes(u64::MAX), "16384.0 PiB");
    }
}
