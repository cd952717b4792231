//! Where nodes come from: module paths, source lines, and the names of outputs.

use super::schema::{Metadata, Program};
use partita_ir::Location;
use serde_json::Value;

/// The module path of a node: the middle field of the innermost entry `key,path,class` of its
/// stack; and the class of that module.
pub fn module(metadata: &Metadata) -> (&str, &str) {
    let innermost = metadata.nn_module_stack.rsplit(';').next().unwrap_or_default();
    let mut fields = innermost.splitn(3, ',');
    let (_, path, class) = (fields.next(), fields.next(), fields.next());
    (path.unwrap_or_default(), class.unwrap_or_default())
}

/// Every module of the stack of a node, outermost first: path and class.
pub fn modules(metadata: &Metadata) -> impl Iterator<Item = (&str, &str)> {
    metadata.nn_module_stack.split(';').filter_map(|entry| {
        let mut fields = entry.splitn(3, ',');
        let (_, path, class) = (fields.next()?, fields.next()?, fields.next()?);
        Some((path, class))
    })
}

/// The user's line: the innermost frame outside installed packages, or the innermost frame.
pub fn location(metadata: &Metadata) -> Option<Location> {
    let frames = || metadata.stack_trace.lines().rev().filter_map(frame);
    let is_installed = |file: &str| file.contains("site-packages") || file.contains("dist-packages");
    let (file, line) = frames().find(|(file, _)| !is_installed(file)).or_else(|| frames().next())?;
    Some(Location { file: file.to_string(), line })
}

/// File and line of `  File "model.py", line 8, in forward`.
fn frame(line: &str) -> Option<(&str, u32)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((file, digits.parse().ok()?))
}

/// Names of the user's outputs, from the structure of what `forward` returns: the key in a
/// dictionary, the position in a tuple, `output` for a single tensor. Falls back to positions.
pub fn output_names(program: &Program, count: usize) -> Vec<String> {
    let root = program.graph_module.module_call_graph.iter().find(|call| call.fqn.is_empty());
    let spec = root.and_then(|call| call.signature.as_ref()).map_or("", |s| s.out_spec.as_str());
    let tree: Option<Value> = serde_json::from_str(spec).ok();
    let mut names = Vec::new();
    if let Some(tree) = tree.as_ref().and_then(|t| t.get(1)) {
        leaves(tree, "", &mut names);
    }
    for (position, name) in names.iter_mut().enumerate() {
        if name.is_empty() {
            *name = if count == 1 { "output".into() } else { format!("output.{position}") };
        }
    }
    let distinct = names.iter().enumerate().all(|(i, name)| !names[..i].contains(name));
    match names.len() == count && distinct {
        true => names,
        false => (0..count).map(|position| format!("output.{position}")).collect(),
    }
}

/// The paths of the leaves of a tree of `{"type", "context", "children_spec"}`.
fn leaves(tree: &Value, path: &str, names: &mut Vec<String>) {
    let children = tree.get("children_spec").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if tree.get("type").is_none_or(Value::is_null) {
        names.push(path.to_string());
        return;
    }
    let keys: Vec<String> = tree
        .get("context")
        .and_then(Value::as_str)
        .and_then(|context| serde_json::from_str::<Value>(context).ok())
        .map_or(Vec::new(), |context| strings(&context));
    for (position, child) in children.iter().enumerate() {
        let part = match keys.get(position).filter(|_| keys.len() == children.len()) {
            Some(key) => key.clone(),
            None => position.to_string(),
        };
        // Characters with a meaning in paths do not occur in names.
        let part: String =
            part.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '_' }).collect();
        let path = match path {
            "" if keys.is_empty() => format!("output.{part}"),
            "" => part,
            path => format!("{path}.{part}"),
        };
        leaves(child, &path, names);
    }
}

/// The first list of strings in a context.
fn strings(context: &Value) -> Vec<String> {
    let Value::Array(items) = context else { return Vec::new() };
    let all: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(String::from)).collect();
    all.unwrap_or_else(|| items.iter().map(strings).find(|list| !list.is_empty()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_give_paths_and_lines() {
        let metadata = Metadata {
            nn_module_stack: "L__self__,,m.Net;L__self__h.0@1,h.0,torch.nn.Linear[a,b]".into(),
            stack_trace: "File \"a/net.py\", line 8, in forward\n    x = self.h(x)\n  File \
                          \"/x/site-packages/torch/linear.py\", line 134, in forward\n    return F.linear(x)"
                .into(),
        };
        assert_eq!(module(&metadata), ("h.0", "torch.nn.Linear[a,b]"));
        assert_eq!(modules(&metadata).collect::<Vec<_>>()[0], ("", "m.Net"));
        assert_eq!(location(&metadata).unwrap().to_string(), "a/net.py:8");
        assert_eq!(module(&Metadata::default()), ("", ""));
        assert_eq!(location(&Metadata::default()), None);
        let installed =
            Metadata { stack_trace: "File \"/x/site-packages/a.py\", line 3, in f".into(), ..metadata };
        assert_eq!(location(&installed).unwrap().line, 3);
    }
}
