//! Reports about a step: facts, tables and drawings as data, written as one HTML page, as Markdown or as JSON.
//!
//! Knows: titles, tables, lines, matrices, rooflines, meshes and the events of `partita-trace`. Must not know what a
//! program, a plan or a rank is: who makes a report says everything in words and numbers.
//!
//! The page is self-contained: its script and styles are in it, the report is embedded as JSON, and nothing is loaded from
//! elsewhere, so that it can be mailed, kept beside a run, and opened without a network.
#![forbid(unsafe_code)]

mod markdown;
mod timeline;

pub use timeline::Timeline;

use serde::Serialize;

/// A report: what it is about, its most important figures, and its sections in order.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// What it is about, in one line.
    pub title: String,
    /// Names with values, such as `step` with `12.3 ms`.
    pub facts: Vec<(String, String)>,
    /// The sections.
    pub sections: Vec<Section>,
}

/// A part of a report under its own title.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Section {
    /// The title.
    pub title: String,
    /// What is seen, in a sentence or two; may be empty.
    pub about: String,
    /// What is seen.
    pub body: Body,
}

/// What a section shows.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Body {
    /// Rows under a header, all of the same length.
    Table {
        /// The header.
        header: Vec<String>,
        /// The rows.
        rows: Vec<Vec<String>>,
    },
    /// Text as it is, such as a plan.
    Text {
        /// The text.
        text: String,
    },
    /// Work over time, a row for each track.
    Timeline {
        /// The work.
        timeline: Timeline,
    },
    /// Quantities over one variable.
    Lines {
        /// What the horizontal axis shows. Of `seconds` and `bytes` the page chooses a multiple.
        x: String,
        /// What the vertical axis shows.
        y: String,
        /// Whether each quantity begins where the one before ends, and holds its value until its next point.
        stacked: bool,
        /// The quantities.
        series: Vec<Series>,
        /// Lines across at values of y, each with its name; one far above all others is not drawn.
        marks: Vec<(String, f64)>,
    },
    /// A number for each pair.
    Matrix {
        /// Names of the rows.
        rows: Vec<String>,
        /// Names of the columns.
        columns: Vec<String>,
        /// `values[row][column]`.
        values: Vec<Vec<f64>>,
        /// The unit of the numbers and what the rows are: `bytes from`. Of bytes the page chooses a multiple.
        unit: String,
    },
    /// Points under the roofline of a device: Williams, Waterman, Patterson, "Roofline", 2009.
    Roofline {
        /// The most operations per second.
        flops_per_s: f64,
        /// The most bytes per second.
        bytes_per_s: f64,
        /// The points.
        points: Vec<Point>,
    },
    /// The devices of a mesh, each with what it holds.
    Mesh {
        /// Axes with their sizes, the slowest first.
        axes: Vec<(String, usize)>,
        /// The cells: groups of ranks that are alike.
        cells: Vec<Cell>,
    },
}

/// One quantity.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Pairs of x and y, in the order of x.
    pub points: Vec<(f64, f64)>,
}

/// A point under a roofline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Operations per byte.
    pub intensity: f64,
    /// Operations per second.
    pub flops_per_s: f64,
    /// Its share of the whole, from 0 to 1.
    pub share: f64,
}

/// Ranks that are alike.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// The ranks, such as `0, 2`.
    pub ranks: String,
    /// Where they are, such as `pp=0`.
    pub place: String,
    /// What they hold, a line each.
    pub holds: Vec<String>,
    /// How full their memory is, from 0 to 1.
    pub filled: f64,
}

/// The page; `REPORT_DATA` and `REPORT_TITLE` are replaced.
const PAGE: &str = include_str!("page.html");

impl Report {
    /// Adds a section.
    pub fn section(&mut self, title: &str, about: &str, body: Body) {
        self.sections.push(Section { title: title.to_string(), about: about.to_string(), body });
    }

    /// One HTML page that needs nothing else.
    pub fn html(&self) -> String {
        // Data inside a script element ends at the first `<` that looks like a tag: none is written as it is.
        let data =
            self.json().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
        let title = self.title.replace('&', "&amp;").replace('<', "&lt;");
        PAGE.replacen("REPORT_TITLE", &title, 1).replacen("REPORT_DATA", &data, 1)
    }

    /// The report as JSON; numbers that are not finite are null.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report is plain data")
    }

    /// The report as Markdown: tables as tables, drawings as the figures behind them.
    pub fn markdown(&self) -> String {
        markdown::markdown(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_holds_the_report_and_no_text_can_end_its_script() {
        let mut report = Report { title: "a < b & c".to_string(), ..Report::default() };
        report.section("</script><script>alert(1)", "", Body::Text { text: "<!-- </script>".to_string() });
        let page = report.html();
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        let begin = page.find("type=\"application/json\">").unwrap() + "type=\"application/json\">".len();
        let data = &page[begin..begin + page[begin..].find("</script>").unwrap()];
        let read: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(read["sections"][0]["title"], "</script><script>alert(1)");
        assert!(page.contains("<title>a &lt; b &amp; c</title>"));
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for forbidden in ["http://", "https://", "src=", "@import", "url("] {
            let allowed = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!allowed.contains(forbidden), "{forbidden}");
        }
    }
}
