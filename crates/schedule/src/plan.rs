//! Plans as data: an ordered list of lines, and their TOML spellings.

use crate::style::Style;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use serde::{Deserialize, Serialize};

/// One line of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// A pattern over module paths and parameter names; see [`crate::matches`].
    pub modules: String,
    /// What is asked of what matches.
    pub style: Style,
    /// Who asks: a file, a ready plan, the planner.
    #[serde(default)]
    pub origin: String,
}

impl Entry {
    /// The line as `explain` shows it: `"layers.*.mlp" = "colwise" (plan.toml)`.
    pub fn describe(&self) -> String {
        let line = format!("\"{}\" = \"{}\"", self.modules, self.style);
        if self.origin.is_empty() { line } else { format!("{line} ({})", self.origin) }
    }
}

/// What is asked of a model's layouts, line by line. Of several layer styles for one module the last one holds, and
/// so for storage styles (`fsdp`, `zero1`, `zero2`) of one parameter over one axis.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The lines, in order.
    pub entries: Vec<Entry>,
}

impl Plan {
    /// Adds a line. E222 when there is no such style.
    pub fn add(&mut self, modules: &str, style: &str, origin: &str) -> Result<()> {
        let style = Style::parse(style).map_err(|error| error.at(format!("{origin}: \"{modules}\"")))?;
        self.push(modules, style, origin);
        Ok(())
    }

    /// Adds a line.
    pub fn push(&mut self, modules: &str, style: Style, origin: &str) {
        self.entries.push(Entry { modules: modules.to_string(), style, origin: origin.to_string() });
    }

    /// Reads the `plan` of a TOML text, in either spelling:
    ///
    /// ```toml
    /// [plan]                                  # the dictionary of PyTorch and Hugging Face
    /// "layers.*.mlp.up_proj" = "colwise"
    /// "**" = ["replicate", "fsdp"]            # several styles for one pattern
    /// ```
    /// ```toml
    /// [[plan]]                                # one table per line, with its origin
    /// modules = "layers.*.mlp.up_proj"
    /// style = "colwise"
    /// origin = "planner"
    /// ```
    ///
    /// E228 when the text is neither, E222 for a style that does not exist. `origin` is for lines without one.
    pub fn from_toml(text: &str, origin: &str) -> Result<Plan> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            Diagnostic::new("E228", "the plan is not TOML").at(origin).found(error.message().to_string())
        })?;
        if let Some(key) = table.keys().find(|key| *key != "plan") {
            return Err(misplaced(origin, key, &["plan"]));
        }
        match table.get("plan") {
            Some(value) => Plan::from_value(value, origin),
            None => Ok(Plan::default()),
        }
    }

    /// As [`Plan::from_toml`], from the value of `plan` alone: for a config that holds one.
    pub fn from_value(value: &toml::Value, origin: &str) -> Result<Plan> {
        let mut plan = Plan::default();
        match value {
            toml::Value::Table(lines) => {
                for (modules, styles) in lines {
                    let styles = match styles {
                        toml::Value::Array(styles) => styles.as_slice(),
                        one => std::slice::from_ref(one),
                    };
                    for style in styles {
                        plan.add(modules, text_of(origin, modules, style)?, origin)?;
                    }
                }
            }
            toml::Value::Array(lines) => {
                for line in lines {
                    let line = line.as_table().ok_or_else(|| malformed(origin, "plan", line, "tables"))?;
                    let keys = ["modules", "style", "origin"];
                    if let Some(key) = line.keys().find(|key| !keys.contains(&key.as_str())) {
                        return Err(misplaced(origin, key, &keys));
                    }
                    let field =
                        |key: &str| line.get(key).map(|value| text_of(origin, key, value)).transpose();
                    let needed = |key: &str| {
                        field(key)?.ok_or_else(|| {
                            Diagnostic::new("E228", format!("a line of the plan has no `{key}`")).at(origin)
                        })
                    };
                    plan.add(needed("modules")?, needed("style")?, field("origin")?.unwrap_or(origin))?;
                }
            }
            other => {
                return Err(malformed(origin, "plan", other, "a table of patterns and styles, or tables"));
            }
        }
        Ok(plan)
    }

    /// The plan as `[[plan]]` tables, which keep order and origins.
    pub fn to_toml(&self) -> String {
        let line = |entry: &Entry| {
            let mut table = toml::Table::new();
            table.insert("modules".into(), entry.modules.clone().into());
            table.insert("style".into(), entry.style.to_string().into());
            if !entry.origin.is_empty() {
                table.insert("origin".into(), entry.origin.clone().into());
            }
            toml::Value::Table(table)
        };
        let mut table = toml::Table::new();
        table.insert("plan".into(), toml::Value::Array(self.entries.iter().map(line).collect()));
        table.to_string()
    }

    /// The plan as a dictionary, patterns in the order they first appear.
    pub fn to_dict(&self) -> IndexMap<String, Vec<Style>> {
        let mut dict: IndexMap<String, Vec<Style>> = IndexMap::new();
        for entry in &self.entries {
            dict.entry(entry.modules.clone()).or_default().push(entry.style.clone());
        }
        dict
    }

    /// The plan as a `[plan]` dictionary in TOML.
    pub fn to_dict_toml(&self) -> String {
        let mut lines = toml::Table::new();
        for (modules, styles) in self.to_dict() {
            let mut styles: Vec<toml::Value> = styles.iter().map(|s| s.to_string().into()).collect();
            let value = if styles.len() == 1 { styles.remove(0) } else { toml::Value::Array(styles) };
            lines.insert(modules, value);
        }
        let mut table = toml::Table::new();
        table.insert("plan".into(), toml::Value::Table(lines));
        table.to_string()
    }
}

fn text_of<'a>(origin: &str, key: &str, value: &'a toml::Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| malformed(origin, key, value, "a text"))
}

fn malformed(origin: &str, key: &str, value: &toml::Value, expected: &str) -> Box<Diagnostic> {
    Diagnostic::new("E228", format!("`{key}` of the plan is not {expected}"))
        .at(origin)
        .expected(expected)
        .found(value.to_string())
}

fn misplaced(origin: &str, key: &str, keys: &[&str]) -> Box<Diagnostic> {
    let mut error =
        Diagnostic::new("E228", format!("unknown key `{key}`")).at(origin).expected(keys.join(", "));
    error.help = did_you_mean(key, keys.iter().copied());
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: &str = r#"[plan]
"z.*.up_proj" = "colwise"
"a.*.down_proj" = "rowwise(output=shard(1))"
"**" = ["fsdp", "zero1"]
"#;

    #[test]
    fn the_dictionary_keeps_its_order_and_reads_back() {
        let plan = Plan::from_toml(DICT, "plan.toml").unwrap();
        let globs: Vec<&str> = plan.entries.iter().map(|e| e.modules.as_str()).collect();
        assert_eq!(globs, ["z.*.up_proj", "a.*.down_proj", "**", "**"]);
        assert_eq!(plan.to_dict_toml(), DICT);
        assert_eq!(plan.entries[1].describe(), r#""a.*.down_proj" = "rowwise(output=shard(1))" (plan.toml)"#);
    }

    #[test]
    fn tables_keep_origins_and_read_back() {
        let mut plan = Plan::from_toml(DICT, "plan.toml").unwrap();
        plan.add("lm_head", "colwise", "planner").unwrap();
        let text = plan.to_toml();
        assert!(text.contains("[[plan]]"), "{text}");
        assert_eq!(Plan::from_toml(&text, "elsewhere").unwrap(), plan);
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let code = |text: &str| Plan::from_toml(text, "plan.toml").unwrap_err().code;
        assert_eq!(code("[plan"), "E228");
        assert_eq!(code("plan = 3"), "E228");
        assert_eq!(code("[plna]\n\"a\" = \"colwise\""), "E228");
        assert_eq!(code("[plan]\n\"a\" = 3"), "E228");
        assert_eq!(code("[[plan]]\nmodules = \"a\""), "E228");
        assert_eq!(code("[[plan]]\nmodules = \"a\"\nstyel = \"colwise\""), "E228");
        let error = Plan::from_toml("[plan]\n\"a.b\" = \"colwis\"", "plan.toml").unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E222", Some("plan.toml: \"a.b\"")));
        assert_eq!(Plan::from_toml("", "plan.toml").unwrap(), Plan::default());
    }
}
