//! Equal layers as one: `layers.0.mlp.weight` to `layers.31.mlp.weight` become `layers.0-31.mlp.weight`.

use indexmap::IndexMap;
use partita_mesh::rank_list;

/// Positions of equal layers under one name.
pub struct Group {
    /// The name, with the numbers of all its layers.
    pub name: String,
    /// The positions, in their order.
    pub members: Vec<usize>,
}

/// Groups the names that differ only in the number of the layer, in the order of their first ones. Names with different
/// `rest` stay apart; there too, the number of the layer makes no difference.
pub fn groups(names: &[&str], rest: impl Fn(usize) -> String) -> Vec<Group> {
    let mut alike: IndexMap<(String, String, String), (Vec<usize>, Vec<usize>)> = IndexMap::new();
    for (position, name) in names.iter().enumerate() {
        let (head, number, tail) = split(name);
        let rest = match number {
            Some(number) => unnumbered(&rest(position), head, number),
            None => rest(position),
        };
        let (members, numbers) = alike.entry((head.to_string(), tail.to_string(), rest)).or_default();
        members.push(position);
        numbers.extend(number);
    }
    let group = |((head, tail, _), (members, mut numbers)): ((String, String, _), (_, Vec<usize>))| {
        numbers.sort_unstable();
        numbers.dedup();
        Group { name: head + &rank_list(&numbers) + &tail, members }
    };
    alike.into_iter().map(group).collect()
}

/// Rows whose first cells are names, with one row for equal layers. Other cells are those of the first layer.
pub fn rows(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let row = |group: Group| {
        let mut row = rows[group.members[0]].clone();
        row[0] = group.name;
        row
    };
    groups(&names, |position| rows[position][1..].join("\n")).into_iter().map(row).collect()
}

/// Names in their order, with one name for equal layers.
pub fn names(names: &[String]) -> Vec<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    groups(&names, |_| String::new()).into_iter().map(|group| group.name).collect()
}

/// A name around its first number behind a dot: `layers.`, 3 and `.mlp`.
fn split(name: &str) -> (&str, Option<usize>, &str) {
    for (dot, _) in name.match_indices('.') {
        let behind = &name[dot + 1..];
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let ends = !behind[digits..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if let (true, Ok(number)) = (ends, behind[..digits].parse()) {
            return (&name[..=dot], Some(number), &behind[digits..]);
        }
    }
    (name, None, "")
}

/// A text in which this layer has no number.
fn unnumbered(text: &str, head: &str, number: usize) -> String {
    let layer = head.rsplit(' ').next().unwrap_or(head);
    text.replace(&format!("{layer}{number}."), layer).replace(&format!("{layer}{number}\""), layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_one_where_they_are_equal() {
        let row = |name: &str, size: &str, why: &str| [name, size, why].map(String::from).to_vec();
        let of = |layer: usize, size: &str| {
            row(&format!("layers.{layer}.mlp.weight"), size, &format!("follows layers.{layer}.attn"))
        };
        let all: Vec<Vec<String>> = [row("embed", "9", "")]
            .into_iter()
            .chain((0..32).map(|layer| of(layer, if layer == 7 { "5" } else { "4" })))
            .chain([row("head.weight_2", "9", "")])
            .collect();
        let names: Vec<String> = rows(all).iter().map(|row| row[0].clone()).collect();
        assert_eq!(names, ["embed", "layers.0-6,8-31.mlp.weight", "layers.7.mlp.weight", "head.weight_2"]);
        let few = ["norm", "layers.2", "layers.1", "add in layers.4.mlp"].map(String::from);
        assert_eq!(super::names(&few), ["norm", "layers.1,2", "add in layers.4.mlp"]);
    }
}
