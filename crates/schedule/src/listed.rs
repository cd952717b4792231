//! The pipeline stages of a plan as tables `[[stages]]`: the end of each, its mesh, and its own lines.

use crate::plan::{Entry, dictionary, toml_of};
use crate::primitive::Primitive;

/// A stage as `[[stages]]` lists it.
pub(crate) struct Listed<'p> {
    split: Option<&'p Entry>,
    lines: &'p [Entry],
}

impl Listed<'_> {
    /// Its table.
    pub fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        if let Some(Entry { modules, primitive, .. }) = self.split {
            if !modules.is_empty() {
                table.insert("until".into(), modules.clone().into());
            }
            for (key, value) in primitive.named_arguments() {
                table.insert(key, toml_of(&value));
            }
        }
        if !self.lines.is_empty() {
            table.insert("plan".into(), dictionary(self.lines, &|line| line.primitive.to_string()));
        }
        toml::Value::Table(table)
    }
}

/// The lines before the stages, and the stages: `None` if no stage has a mesh or lines of its own, or if
/// the lines are in another order than `[[stages]]` gives them.
pub(crate) fn listed_stages(entries: &[Entry]) -> Option<(&[Entry], Vec<Listed<'_>>)> {
    let is_split = |entry: &Entry| matches!(entry.primitive, Primitive::PipelineSplit { .. });
    let is_own = |entry: &Entry| {
        entry.stage.is_some() || matches!(entry.primitive, Primitive::PipelineSplit { mesh: Some(_), .. })
    };
    entries.iter().find(|entry| is_own(entry))?;
    let first = entries.iter().position(|entry| is_split(entry) || entry.stage.is_some())?;
    let (before, rest) = entries.split_at(first);
    let mut stages: Vec<Listed> = Vec::new();
    for (place, entry) in rest.iter().enumerate() {
        if is_split(entry) && entry.stage.is_none() {
            stages.push(Listed { split: Some(entry), lines: &rest[place + 1..place + 1] });
            continue;
        }
        if entry.stage == Some(stages.len()) {
            stages.push(Listed { split: None, lines: &rest[place..place] });
        }
        let number = stages.len().checked_sub(1)?;
        if entry.stage != Some(number) || is_split(entry) {
            return None;
        }
        let begin = place - stages[number].lines.len();
        stages[number].lines = &rest[begin..=place];
    }
    // Only the last stage is without an end, or ends with the model.
    let (last, others) = stages.split_last()?;
    let ends = |stage: &Listed| stage.split.is_some_and(|split| !split.modules.is_empty());
    let is_told = others.iter().all(ends);
    if ends(last) && !rest.iter().any(|entry| is_split(entry) && is_own(entry)) {
        stages.push(Listed { split: None, lines: &[] });
    }
    is_told.then_some((before, stages))
}
