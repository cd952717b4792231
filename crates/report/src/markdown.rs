//! A report as Markdown, in the form of GitHub: every drawing becomes the table of its figures.

use crate::{Body, Report};
use std::fmt::Write;

/// Rows of a table of figures; drawings with more are sampled evenly.
const MOST_ROWS: usize = 24;

/// The text of a report.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n", report.title);
    for (name, value) in &report.facts {
        let _ = writeln!(text, "- {name}: {value}");
    }
    for section in &report.sections {
        let _ = write!(text, "\n## {}\n\n", section.title);
        if !section.about.is_empty() {
            let _ = write!(text, "{}\n\n", section.about);
        }
        text += &body(&section.body);
    }
    text
}

fn body(body: &Body) -> String {
    match body {
        Body::Table { header, rows } => table(header, rows),
        Body::Text { text } => format!("```text\n{}\n```\n", text.trim_end()),
        Body::Timeline { timeline } => {
            let header = ["track", "spans", "busy"].map(String::from);
            let row = |(number, track): (usize, &String)| {
                let of: Vec<f64> =
                    timeline.spans.iter().filter(|span| span.0 == number).map(|span| span.2).collect();
                vec![track.clone(), of.len().to_string(), format!("{:.1} us", of.iter().sum::<f64>())]
            };
            table(&header, &timeline.tracks.iter().enumerate().map(row).collect::<Vec<_>>())
        }
        Body::Lines { x, series, .. } => lines(x, series),
        Body::Matrix { rows, columns, values, unit } => {
            let mut header = vec![unit.clone()];
            header.extend(columns.iter().cloned());
            let line = |(name, values): (&String, &Vec<f64>)| {
                let mut line = vec![name.clone()];
                line.extend(values.iter().map(|value| format!("{value}")));
                line
            };
            table(&header, &rows.iter().zip(values).map(line).collect::<Vec<_>>())
        }
        Body::Roofline { flops_per_s, bytes_per_s, points } => {
            let header = ["op", "FLOP/byte", "FLOP/s", "share"].map(String::from);
            let row = |point: &crate::Point| {
                vec![
                    point.name.clone(),
                    format!("{:.2}", point.intensity),
                    format!("{:.3e}", point.flops_per_s),
                    format!("{:.1}%", 100.0 * point.share),
                ]
            };
            let rows: Vec<Vec<String>> = points.iter().map(row).collect();
            format!("Peak: {flops_per_s:.3e} FLOP/s, {bytes_per_s:.3e} bytes/s\n\n{}", table(&header, &rows))
        }
        Body::Mesh { cells, .. } => {
            let header = ["ranks", "place", "holds", "memory filled"].map(String::from);
            let row = |cell: &crate::Cell| {
                let filled = format!("{:.1}%", 100.0 * cell.filled);
                vec![cell.ranks.clone(), cell.place.clone(), cell.holds.join("; "), filled]
            };
            table(&header, &cells.iter().map(row).collect::<Vec<_>>())
        }
    }
}

/// Figures over one variable: every x of the first quantity, or an even sample of them.
fn lines(x: &str, series: &[crate::Series]) -> String {
    let mut header = vec![x.to_string()];
    header.extend(series.iter().map(|one| one.name.clone()));
    let Some(first) = series.first() else { return String::new() };
    let every = first.points.len().div_ceil(MOST_ROWS).max(1);
    let row = |&(at, _): &(f64, f64)| {
        let mut row = vec![format!("{at}")];
        row.extend(series.iter().map(|one| {
            let until = one.points.partition_point(|&(x, _)| x <= at);
            until.checked_sub(1).map_or(String::new(), |last| format!("{}", one.points[last].1))
        }));
        row
    };
    table(&header, &first.points.iter().step_by(every).map(row).collect::<Vec<_>>())
}

fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> =
            cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(header);
    text += &format!("|{}\n", "---|".repeat(header.len()));
    rows.iter().for_each(|row| text += &line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;

    #[test]
    fn tables_and_drawings_become_tables() {
        let mut report = Report { title: "mlp".to_string(), ..Report::default() };
        report.facts.push(("step".to_string(), "1 ms".to_string()));
        report.section(
            "Plan",
            "Why.",
            Body::Table { header: vec!["a|b".to_string()], rows: vec![vec!["c\nd".to_string()]] },
        );
        let series =
            |name: &str, points: &[(f64, f64)]| Series { name: name.to_string(), points: points.to_vec() };
        let series = vec![series("p", &[(0.0, 1.0), (2.0, 3.0)]), series("q", &[(1.0, 5.0)])];
        let (x, y) = ("time".to_string(), "bytes".to_string());
        report.section("Memory", "", Body::Lines { x, y, stacked: true, series, marks: Vec::new() });
        assert_eq!(
            report.markdown(),
            "# mlp\n\n- step: 1 ms\n\n## Plan\n\nWhy.\n\n| a\\|b |\n|---|\n| c d |\n\n## Memory\n\n\
             | time | p | q |\n|---|---|---|\n| 0 | 1 |  |\n| 2 | 3 | 5 |\n"
        );
    }
}
