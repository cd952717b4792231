//! Plans as values of Python, and their lines.

use crate::error::OrRaise;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A plan from module patterns and styles: `{"layers.*.up": "colwise", "norm": ["sequence", "checkpoint"]}`.
fn from_dict(lines: &Bound<'_, PyDict>, origin: &str) -> PyResult<partita_schedule::Plan> {
    let mut plan = partita_schedule::Plan::default();
    for (modules, styles) in lines {
        let modules: String = modules.extract()?;
        let styles: Vec<String> = match styles.extract::<String>() {
            Ok(style) => vec![style],
            Err(_) => styles.extract()?,
        };
        for style in styles {
            plan.add(&modules, &style, origin).or_raise(lines.py())?;
        }
    }
    Ok(plan)
}

/// The lines that say how a mesh runs a model.
#[pyclass(frozen, eq, module = "partita")]
#[derive(Clone, PartialEq)]
pub struct Plan {
    pub plan: partita_schedule::Plan,
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (source = None, origin = "plan"))]
    fn new(py: Python<'_>, source: Option<Bound<'_, PyAny>>, origin: &str) -> PyResult<Plan> {
        let Some(source) = source else { return Ok(Plan { plan: partita_schedule::Plan::default() }) };
        if let Ok(plan) = source.cast::<Plan>() {
            return Ok(plan.get().clone());
        }
        if let Ok(lines) = source.cast::<PyDict>() {
            return Ok(Plan { plan: from_dict(lines, origin)? });
        }
        let text: String = source.extract()?;
        Ok(Plan { plan: partita_schedule::Plan::parse(&text, origin).or_raise(py)? })
    }

    fn to_calls(&self) -> String {
        self.plan.to_calls()
    }

    fn to_toml(&self) -> String {
        self.plan.to_dict_toml()
    }

    fn to_tables(&self) -> String {
        self.plan.to_toml()
    }

    fn lines(&self) -> Vec<(String, String)> {
        self.plan.entries.iter().map(|entry| (entry.modules.clone(), entry.primitive.to_string())).collect()
    }

    fn origins(&self) -> Vec<String> {
        self.plan.entries.iter().map(|entry| entry.origin.clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.plan.entries.len()
    }

    fn __str__(&self) -> String {
        self.plan.to_calls()
    }

    fn __repr__(&self) -> String {
        format!("Plan({} lines)", self.plan.entries.len())
    }

    fn _repr_html_(&self) -> String {
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let row = |entry: &partita_schedule::Entry| {
            let cells = [entry.modules.as_str(), &entry.request(), &entry.origin];
            let cells: String = cells.map(|cell| format!("<td><code>{}</code></td>", escaped(cell))).concat();
            format!("<tr>{cells}</tr>")
        };
        let rows: String = self.plan.entries.iter().map(row).collect();
        format!("<table><tr><th>modules</th><th>request</th><th>origin</th></tr>{rows}</table>")
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> (Py<PyAny>, (String,)) {
        (slf.get_type().into_any().unbind(), (slf.get().plan.to_toml(),))
    }
}
