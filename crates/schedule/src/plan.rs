//! Plans as data: an ordered list of lines, and their three spellings (TOML, Python dictionary,
//! calls).

use crate::call::{Argument, Call, closing};
use crate::listed::{Listed, listed_stages};
use crate::modules::Scope;
use crate::primitive::Primitive;
use crate::python;
use partita_base::{Diagnostic, Result, did_you_mean};

/// One line of a plan.
#[derive(Clone, Debug)]
pub struct Entry {
    /// A pattern over module paths and parameter names, see [`crate::matches`]; empty for the whole
    /// model.
    pub modules: String,
    /// The request for the matches.
    pub primitive: Primitive,
    /// The pipeline stage whose modules alone the line is for, in the order of the model; `None` for all.
    pub stage: Option<usize>,
    /// The source: a file, a built-in plan, the planner.
    pub origin: String,
}

impl PartialEq for Entry {
    /// Two lines are equal if they request the same, whatever their source.
    fn eq(&self, other: &Self) -> bool {
        (&self.modules, &self.primitive, self.stage) == (&other.modules, &other.primitive, other.stage)
    }
}

impl Entry {
    /// A line from its request as a call; an argument `stage=1` limits any request to a pipeline stage. E222 for an
    /// unknown request, or wrong arguments.
    pub fn from_call(modules: &str, call: &Call, origin: &str) -> Result<Entry> {
        let mut call = call.clone();
        let mut stage = None;
        if let Some(place) = call.arguments.iter().position(|(key, _)| key.as_deref() == Some(STAGE)) {
            let (_, value) = call.arguments.remove(place);
            let number = match value {
                Argument::Int(number) => usize::try_from(number).ok(),
                _ => None,
            };
            stage = Some(number.ok_or_else(|| {
                Diagnostic::new("E222", format!("`{}`: `{STAGE}` is not the number of a stage", call.name))
                    .expected("a number from 0")
                    .found(value.describe())
            })?);
        }
        let primitive = Primitive::from_call(&call)?;
        Ok(Entry { modules: modules.to_string(), primitive, stage, origin: origin.to_string() })
    }

    /// The request as a call, with its stage.
    pub(crate) fn to_call(&self) -> Call {
        let call = self.primitive.to_call();
        match self.stage {
            Some(stage) => call.with(Some(STAGE), Argument::Int(stage as i64)),
            None => call,
        }
    }

    /// The request in dictionary notation, with its stage: `colwise`, `colwise(stage=1)`.
    pub fn request(&self) -> String {
        match self.stage {
            Some(_) => self.to_call().to_string(),
            None => self.primitive.to_string(),
        }
    }

    /// The line without its source: `"layers.*.mlp" = "colwise"`.
    pub fn line(&self) -> String {
        format!("\"{}\" = \"{}\"", self.modules, self.request())
    }

    /// The line as `explain` shows it: `"layers.*.mlp" = "colwise" (plan.toml)`.
    pub fn describe(&self) -> String {
        let line = self.line();
        if self.origin.is_empty() { line } else { format!("{line} ({})", self.origin) }
    }

    /// The modules and parameters that the line is about.
    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope { pattern: &self.modules, stage: self.stage }
    }
}

/// The argument of any request, and the key of any line, that limits it to a pipeline stage.
const STAGE: &str = "stage";

/// The requests for a model and its layouts, line by line. If several layer styles match one
/// module, the last one counts; likewise for storage styles (`fsdp`, `zero1`, `zero2`) of one
/// parameter over one axis. Primitives apply in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// The lines, in order.
    pub entries: Vec<Entry>,
}

impl Plan {
    /// Adds a line in dictionary notation. E222 if the style or primitive does not exist.
    pub fn add(&mut self, modules: &str, primitive: &str, origin: &str) -> Result<()> {
        let call = Call::parse(primitive).and_then(|call| Entry::from_call(modules, &call, origin));
        self.entries.push(call.map_err(|error| error.at(format!("{origin}: \"{modules}\"")))?);
        Ok(())
    }

    /// Adds a line from its request as a call.
    pub(crate) fn add_call(&mut self, modules: &str, call: &Call, origin: &str) -> Result<()> {
        self.entries.push(Entry::from_call(modules, call, origin)?);
        Ok(())
    }

    /// Adds a line for all stages.
    pub fn push(&mut self, modules: &str, primitive: impl Into<Primitive>, origin: &str) {
        let (modules, primitive) = (modules.to_string(), primitive.into());
        self.entries.push(Entry { modules, primitive, stage: None, origin: origin.to_string() });
    }

    /// Reads a plan in any of its spellings: calls if the first line with content starts with
    /// `sch`; else a Python dictionary if `origin` ends in `.py`; TOML otherwise. Errors as
    /// [`Plan::from_calls`], [`Plan::from_python`] and [`Plan::from_toml`].
    pub fn parse(text: &str, origin: &str) -> Result<Plan> {
        let mut lines = text.lines().map(|line| split_comment(line).0.trim());
        let first = lines.find(|line| !line.is_empty() && !is_import(line)).unwrap_or_default();
        if first.starts_with("sch[") || first.starts_with("sch.") {
            Plan::from_calls(text, origin)
        } else if origin.ends_with(".py") {
            Plan::from_python(text, origin)
        } else {
            Plan::from_toml(text, origin)
        }
    }

    /// Reads the dictionary of a Python text, called `parallelize_plan`, `plan`, `tp_plan` or
    /// `base_model_tp_plan`:
    ///
    /// ```python
    /// parallelize_plan = {
    ///     "layers.*.mlp.up_proj": ColwiseParallel(),
    ///     "layers.*.mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    ///     "norm": "sequence",
    /// }
    /// ```
    ///
    /// The text is parsed as a literal and never executed; imports and comments are skipped. E260
    /// for anything else, E261 for a repeated pattern, E222 for an unknown style; each with line
    /// and column.
    pub fn from_python(text: &str, origin: &str) -> Result<Plan> {
        python::parse(text, origin)
    }

    /// Reads the `plan` of a TOML text:
    ///
    /// ```toml
    /// [plan]                                  # the dictionary of PyTorch and Hugging Face
    /// "layers.*.mlp.up_proj" = "colwise"
    /// "layers.*" = ["checkpoint", "fsdp"]     # several lines for one pattern
    /// ```
    /// ```toml
    /// [[plan]]                                # one table per line, with its origin
    /// modules = "layers.*.mlp.up_proj"
    /// style = "colwise"
    /// origin = "planner"
    ///
    /// [[plan]]
    /// modules = "lm_head"
    /// primitive = "shard"
    /// tensor = "weight"
    /// dim = 0
    /// ```
    ///
    /// Pipeline stages with slices of their own are listed in order, the last one without `until`:
    ///
    /// ```toml
    /// [[stages]]
    /// until = "layers.1"                      # the stage ends after this module
    /// mesh = "tp=2"                           # the slice that runs it
    /// ranks = [0, 1]                          # optional: the ranks that follow, in order
    /// plan = { "layers.*.mlp.up_proj" = "colwise" }
    ///
    /// [[stages]]
    /// mesh = "dp=1"
    /// ```
    ///
    /// The last stage needs no keys: without `mesh` it has one rank, or those of `ranks`, along `dp`.
    /// This is the same as a line `pipeline_split(mesh=.., ranks=..)` per stage, followed by the
    /// lines of its `plan`, each with the number of the stage: `colwise(stage=0)`. They apply to the
    /// modules of that stage alone, on its mesh.
    ///
    /// `mesh = "dp=2,tp=2"`, `microbatches = 8` and `timetable = "zb-h1"` at the top say what the plan was made for,
    /// `sequence_parallel = true` that the residual stream is sharded; the config of a run reads them.
    ///
    /// A table with neither `modules` nor `style` nor `primitive` is a dictionary, one of several
    /// in a row. E228 for any other text, E222 for an unknown style or primitive. Lines without an
    /// origin get `origin` and the number of the line that first contains their pattern.
    pub fn from_toml(text: &str, origin: &str) -> Result<Plan> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| not_toml(text, origin, &error))?;
        let keys =
            ["plan", "stages", "mesh", "microbatches", "timetable", "sequence_parallel", "activation_limit"];
        if let Some(key) = table.keys().find(|key| !keys.contains(&key.as_str())) {
            return Err(misplaced(origin, key, &keys));
        }
        let mut plan = match table.get("plan") {
            Some(value) => Plan::from_value(value, origin)?,
            None => Plan::default(),
        };
        let tables: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| split_comment(line).0.trim() == "[[stages]]")
            .map(|(n, _)| n)
            .collect();
        if let Some(stages) = table.get("stages") {
            plan.extend_from_stages(stages, origin, &|number| match tables.get(number) {
                Some(line) => format!("{origin}:{}", line + 1),
                None => origin.to_string(),
            })?;
        }
        for entry in plan.entries.iter_mut().filter(|entry| entry.origin == origin) {
            let quoted = [format!("\"{}\"", entry.modules), format!("'{}'", entry.modules)];
            let is_named = |line: &str| quoted.iter().any(|pattern| line.contains(pattern));
            let first = entry.stage.and_then(|stage| tables.get(stage)).copied().unwrap_or(0);
            let number = text.lines().skip(first).position(is_named).map(|number| first + number);
            if let Some(number) = number {
                entry.origin = format!("{origin}:{}", number + 1);
            }
        }
        Ok(plan)
    }

    /// [`Plan::from_toml`] for the value of `plan` alone, as in a config, where stages are `[[plan.stages]]`.
    pub fn from_value(value: &toml::Value, origin: &str) -> Result<Plan> {
        let mut plan = Plan::default();
        match value {
            toml::Value::Table(lines) => {
                let mut lines = lines.clone();
                // `[[plan.stages]]` of a config. The value of a pattern is never a list of tables.
                let is_list = |value: &toml::Value| {
                    value.as_array().is_some_and(|all| all.iter().all(|v| v.is_table()))
                };
                let stages = lines.get("stages").filter(|value| is_list(value)).cloned();
                if stages.is_some() {
                    lines.remove("stages");
                }
                plan.extend_from_dict(&lines, origin)?;
                if let Some(stages) = stages {
                    plan.extend_from_stages(&stages, origin, &|_| origin.to_string())?;
                }
            }
            toml::Value::Array(lines) => {
                for line in lines {
                    let line = line.as_table().ok_or_else(|| malformed(origin, "plan", line, "tables"))?;
                    if LINE_KEYS.iter().any(|key| line.contains_key(*key)) {
                        plan.entries.push(entry_of(line, origin)?);
                    } else {
                        plan.extend_from_dict(line, origin)?;
                    }
                }
            }
            other => {
                return Err(malformed(origin, "plan", other, "a table of patterns and styles, or tables"));
            }
        }
        Ok(plan)
    }

    /// Adds the lines of `[[stages]]`; `line_of` is where the table of a stage begins.
    fn extend_from_stages(
        &mut self,
        stages: &toml::Value,
        origin: &str,
        line_of: &dyn Fn(usize) -> String,
    ) -> Result<()> {
        let wrong = |value: &toml::Value| malformed(origin, "stages", value, "tables, one per stage");
        let tables = stages.as_array().ok_or_else(|| wrong(stages))?;
        let is_listed =
            tables.iter().any(|stage| stage.get("mesh").is_some() || stage.get("ranks").is_some());
        for (number, stage) in tables.iter().enumerate() {
            let stage = stage.as_table().ok_or_else(|| wrong(stage))?;
            let keys = ["until", "mesh", "ranks", "plan"];
            if let Some(key) = stage.keys().find(|key| !keys.contains(&key.as_str())) {
                return Err(misplaced(origin, key, &keys));
            }
            let until = stage.get("until").map(|value| text_of(origin, "until", value)).transpose()?;
            if let Some(several) = until.filter(|until| until.contains('*')) {
                return Err(malformed(origin, "until", &several.into(), "the path of one module"));
            }
            let mut call = Call::new("pipeline_split");
            for key in ["mesh", "ranks"] {
                if let Some(value) = stage.get(key) {
                    call = call.with(Some(key), argument_of(origin, key, value)?);
                }
            }
            let place = format!("{origin}, [[stages]] table {}", number + 1);
            let ranks = stage.get("ranks").and_then(toml::Value::as_array);
            if ranks.is_some_and(Vec::is_empty) {
                return Err(Diagnostic::new("E467", "a pipeline stage has an empty list of ranks")
                    .at(place)
                    .expected("the ranks that run the stage, or no `ranks` for those that follow")
                    .found("ranks = []"));
            }
            let is_last = until.is_none() && number + 1 == tables.len();
            if until.is_none() && !is_last {
                return Err(Diagnostic::new("E228", "a stage of the pipeline does not say where it ends")
                    .at(format!("{}, [[stages]] table {} of {}", line_of(number), number + 1, tables.len()))
                    .expected("`until`, the last module of the stage; only the last table needs none")
                    .found(if stage.is_empty() {
                        "no keys".to_string()
                    } else {
                        stage.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
                    })
                    .help("until = \"layers.1\""));
            }
            if is_last && is_listed && !stage.contains_key("mesh") {
                call = call.with(Some("mesh"), Argument::text(format!("dp={}", ranks.map_or(1, Vec::len))));
            }
            if !is_last || is_listed {
                let split = Primitive::from_call(&call).map_err(|error| error.at(place.clone()))?;
                self.push(until.unwrap_or_default(), split, &place);
            }
            if let Some(lines) = stage.get("plan") {
                let of_stage = Plan::from_value(lines, origin)?.entries;
                self.entries.extend(of_stage.into_iter().map(|line| Entry { stage: Some(number), ..line }));
            }
        }
        Ok(())
    }

    fn extend_from_dict(&mut self, lines: &toml::Table, origin: &str) -> Result<()> {
        for (modules, primitives) in lines {
            let primitives = match primitives {
                toml::Value::Array(primitives) => primitives.as_slice(),
                one => std::slice::from_ref(one),
            };
            for primitive in primitives {
                self.add(modules, text_of(origin, modules, primitive)?, origin)?;
            }
        }
        Ok(())
    }

    /// Reads a schedule as it is written in code:
    ///
    /// ```python
    /// sch["layers.*.mlp.up_proj"].shard("weight", 0).shard("bias", 0)
    /// sch["layers.*.mlp.down_proj"].sync("fwd_post", "all_reduce")    # by hand
    /// sch.trace(flatten=True)
    /// ```
    ///
    /// A comment behind `#` is the origin of its line; a line without one gets `origin` and its
    /// number. Imports are skipped. E228 for a line that is no call, E222 for an unknown primitive.
    pub fn from_calls(text: &str, origin: &str) -> Result<Plan> {
        let mut plan = Plan::default();
        for (number, line) in text.lines().enumerate() {
            let place = format!("{origin}:{}", number + 1);
            let (code, comment) = split_comment(line);
            let code = code.trim();
            if code.is_empty() || is_import(code) {
                continue;
            }
            let wrong = || {
                Diagnostic::new("E228", "not a line of a schedule")
                    .at(place.clone())
                    .expected("sch[\"path\"].primitive(..)")
                    .found(code)
            };
            let rest = code.strip_prefix("sch").ok_or_else(wrong)?;
            let (modules, calls) = match rest.strip_prefix('[') {
                Some(rest) => {
                    let end = closing(rest, ']').ok_or_else(wrong)?;
                    let path = Call::parse(&format!("sch({})", &rest[..end]))?;
                    let [(None, Argument::Text(path))] = &path.arguments[..] else { return Err(wrong()) };
                    (path.clone(), &rest[end + 1..])
                }
                None => (String::new(), rest),
            };
            let mut calls = calls.trim();
            if calls.is_empty() {
                return Err(wrong());
            }
            let line_origin = if comment.is_empty() { place.as_str() } else { comment };
            while !calls.is_empty() {
                let call = calls.strip_prefix('.').ok_or_else(wrong)?;
                let open = call.find('(').ok_or_else(wrong)?;
                let end = open + 1 + closing(&call[open + 1..], ')').ok_or_else(wrong)?;
                let request = Call::parse(&call[..=end]);
                request
                    .and_then(|request| plan.add_call(&modules, &request, line_origin))
                    .map_err(|error| error.at(place.clone()))?;
                calls = call[end + 1..].trim_start();
            }
        }
        Ok(plan)
    }

    /// The plan as calls, one line each, origins as comments.
    pub fn to_calls(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            let place = match entry.modules.as_str() {
                "" => "sch".to_string(),
                path => format!("sch[{}]", serde_json::Value::from(path)),
            };
            text += &format!("{place}.{}", entry.to_call().quoted());
            // An origin with several lines would not fit in one comment.
            if !entry.origin.is_empty() && !entry.origin.contains('\n') {
                text += &format!("  # {}", entry.origin);
            }
            text.push('\n');
        }
        text
    }

    /// The plan as `[[plan]]` tables, which keep order and origins.
    pub fn to_toml(&self) -> String {
        let line = |entry: &Entry| {
            let mut table = toml::Table::new();
            table.insert("modules".into(), entry.modules.clone().into());
            match &entry.primitive {
                Primitive::Style(style) => _ = table.insert("style".into(), style.to_string().into()),
                primitive => {
                    table.insert("primitive".into(), primitive.to_call().name.into());
                    for (key, value) in primitive.named_arguments() {
                        table.insert(key, toml_of(&value));
                    }
                }
            }
            if let Some(stage) = entry.stage {
                table.insert(STAGE.into(), (stage as i64).into());
            }
            if !entry.origin.is_empty() {
                table.insert("origin".into(), entry.origin.clone().into());
            }
            toml::Value::Table(table)
        };
        let mut table = toml::Table::new();
        table.insert("plan".into(), toml::Value::Array(self.entries.iter().map(line).collect()));
        table.to_string()
    }

    /// The plan as `[plan]` dictionaries in TOML: one if the order of its lines allows it, else
    /// several. Stages with meshes or lines of their own follow as `[[stages]]`.
    pub fn to_dict_toml(&self) -> String {
        let (lines, stages) = listed_stages(&self.entries).unwrap_or((&self.entries, Vec::new()));
        let mut table = toml::Table::new();
        if !lines.is_empty() || stages.is_empty() {
            table.insert("plan".into(), dictionary(lines, &Entry::request));
        }
        if !stages.is_empty() {
            table.insert("stages".into(), toml::Value::Array(stages.iter().map(Listed::to_toml).collect()));
        }
        table.to_string()
    }
}

/// Lines as a dictionary of patterns and requests, or as several where their order needs it.
pub(crate) fn dictionary(lines: &[Entry], request: &dyn Fn(&Entry) -> String) -> toml::Value {
    let mut dicts: Vec<toml::Table> = vec![toml::Table::new()];
    for entry in lines {
        let dict = dicts.last_mut().expect("there is one");
        // Only the last pattern of a dictionary can get more lines.
        if dict.contains_key(&entry.modules) && dict.keys().next_back() != Some(&entry.modules) {
            dicts.push(toml::Table::new());
        }
        let dict = dicts.last_mut().expect("there is one");
        let value: toml::Value = request(entry).into();
        match dict.get_mut(&entry.modules) {
            None => _ = dict.insert(entry.modules.clone(), value),
            Some(toml::Value::Array(values)) => values.push(value),
            Some(one) => *one = toml::Value::Array(vec![one.clone(), value]),
        }
    }
    let mut dicts: Vec<toml::Value> = dicts.into_iter().map(toml::Value::Table).collect();
    if dicts.len() == 1 { dicts.remove(0) } else { toml::Value::Array(dicts) }
}

/// Keys that make a table one line of a plan rather than a dictionary.
/// E228: the text is not TOML, with its line and what is there.
fn not_toml(text: &str, origin: &str, error: &toml::de::Error) -> Box<Diagnostic> {
    let diagnostic = Diagnostic::new("E228", "the plan is not TOML");
    let Some(span) = error.span() else {
        return diagnostic.at(origin).found(error.message().to_string());
    };
    let line = text.get(..span.start).map_or(1, |before| before.matches('\n').count() + 1);
    let there = text.get(span).and_then(|there| there.lines().next()).unwrap_or_default().trim();
    let found = match there {
        "" => error.message().to_string(),
        there => format!("{}: {}", error.message(), there.chars().take(80).collect::<String>()),
    };
    diagnostic.at(format!("{origin}:{line}")).found(found)
}

const LINE_KEYS: [&str; 3] = ["modules", "style", "primitive"];

/// Parses a line from its table.
fn entry_of(line: &toml::Table, origin: &str) -> Result<Entry> {
    let needed = |key: &str| {
        let value = line.get(key).ok_or_else(|| {
            Diagnostic::new("E228", format!("a line of the plan has no `{key}`")).at(origin)
        })?;
        text_of(origin, key, value)
    };
    let modules = needed("modules")?;
    let own_origin = line.get("origin").map(|value| text_of(origin, "origin", value)).transpose()?;
    let call = if line.contains_key("primitive") {
        let mut call = Call::new(needed("primitive")?);
        for (key, value) in
            line.iter().filter(|(key, _)| !["modules", "primitive", "origin"].contains(&key.as_str()))
        {
            call = call.with(Some(key), argument_of(origin, key, value)?);
        }
        Ok(call)
    } else {
        let keys = ["modules", "style", "origin", "primitive", STAGE];
        if let Some(key) = line.keys().find(|key| !keys.contains(&key.as_str())) {
            return Err(misplaced(origin, key, &keys));
        }
        let stage = line.get(STAGE).map(|value| argument_of(origin, STAGE, value)).transpose()?;
        Call::parse(needed("style")?).map(|call| match stage {
            Some(stage) => call.with(Some(STAGE), stage),
            None => call,
        })
    };
    call.and_then(|call| Entry::from_call(modules, &call, own_origin.unwrap_or(origin)))
        .map_err(|error| error.at(format!("{origin}: \"{modules}\"")))
}

pub(crate) fn toml_of(value: &Argument) -> toml::Value {
    match value {
        Argument::Int(value) => (*value).into(),
        Argument::Float(value) => (*value).into(),
        Argument::Bool(value) => (*value).into(),
        Argument::Text(value) => value.clone().into(),
        Argument::List(values) => toml::Value::Array(values.iter().map(toml_of).collect()),
        Argument::Call(call) => toml::Value::Table({
            let mut table = toml::Table::new();
            table.insert("call".into(), call.to_string().into());
            table
        }),
    }
}

fn argument_of(origin: &str, key: &str, value: &toml::Value) -> Result<Argument> {
    let wrong = || malformed(origin, key, value, "a number, a boolean, a string or a list");
    Ok(match value {
        toml::Value::Integer(value) => Argument::Int(*value),
        toml::Value::Float(value) => Argument::Float(*value),
        toml::Value::Boolean(value) => Argument::Bool(*value),
        toml::Value::String(value) => Argument::text(value.clone()),
        toml::Value::Array(values) => {
            Argument::List(values.iter().map(|v| argument_of(origin, key, v)).collect::<Result<_>>()?)
        }
        toml::Value::Table(table) => match table.get("call") {
            Some(toml::Value::String(call)) if table.len() == 1 => Argument::Call(Call::parse(call)?),
            _ => return Err(wrong()),
        },
        toml::Value::Datetime(_) => return Err(wrong()),
    })
}

/// Whether a line of Python is an import.
fn is_import(line: &str) -> bool {
    line.starts_with("import ") || line.starts_with("from ")
}

/// A line of code and the comment behind it.
fn split_comment(line: &str) -> (&str, &str) {
    match closing(line, '#') {
        Some(place) => (&line[..place], line[place + 1..].trim()),
        None => (line, ""),
    }
}

fn text_of<'a>(origin: &str, key: &str, value: &'a toml::Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| malformed(origin, key, value, "a string"))
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
#[path = "plan_tests.rs"]
mod tests;
