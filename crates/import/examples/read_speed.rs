//! Times how long a file of StableHLO text takes to read, on one thread: the file into memory, then its text into a graph.
//! `cargo run --release -p partita-import --example read_speed FILE.mlir [COPIES]`
//!
//! With COPIES the body of the entry function is read that often in a row: a large file from a small one.
use partita_base::Result;
use partita_ir::{Registry, text};
use std::time::Instant;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), copies) = (arguments.next(), arguments.next()) else {
        println!("usage: read_speed FILE.mlir [COPIES]");
        return Ok(());
    };
    let copies = copies.and_then(|copies| copies.parse().ok()).unwrap_or(1);
    let source = repeated(&std::fs::read_to_string(&path).unwrap_or_default(), copies);
    let lines = source.lines().count();
    let mut best_seconds = f64::INFINITY;
    let mut nodes = 0;
    for _ in 0..5 {
        let start = Instant::now();
        nodes = text::parse_with(&source, &path, &Registry::default())?.nodes.len();
        best_seconds = best_seconds.min(start.elapsed().as_secs_f64());
    }
    println!("{lines} lines, {nodes} ops, {:.1} MB: {best_seconds:.3} s", source.len() as f64 / 1e6);
    Ok(())
}

/// The text with the statements of its first function repeated, under other names of their values.
fn repeated(source: &str, copies: usize) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let head = lines.iter().position(|line| line.contains("func.func"));
    let end = lines.iter().position(|line| line.trim_start().starts_with("return "));
    let (Some(head), Some(end)) = (head, end) else { return source.to_string() };
    let mut text = String::new();
    for line in &lines[..=head] {
        text += line;
        text.push('\n');
    }
    for copy in 0..copies {
        for line in &lines[head + 1..end] {
            // `%12` becomes `%c3_12`; arguments of the function, `%arg0`, are shared.
            let mut rest = *line;
            while let Some(at) = rest.find('%') {
                text += &rest[..=at];
                rest = &rest[at + 1..];
                if copy + 1 < copies && !rest.starts_with("arg") {
                    text += &format!("c{copy}_");
                }
            }
            text += rest;
            text.push('\n');
        }
    }
    for line in &lines[end..] {
        text += line;
        text.push('\n');
    }
    text
}
