//! Module-level parsing: meshes, functions, location aliases, and the entry function.

use super::functions::{Function, State};
use super::one_device::on_own_devices;
use super::parser::Parser;
use crate::graph::Graph;
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_mlir::{Attribute, Kind, OperationId, Span, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Parser<'_> {
    /// A function of a module, the entry if none is named, everything it calls inlined.
    pub fn module(&mut self, function: Option<&str>) -> Result<Graph> {
        let mut mesh_starts = Vec::new();
        self.index_module(&mut mesh_starts)?;
        for start in mesh_starts {
            self.position = start;
            let mesh = self.mesh()?;
            if self.meshes.iter().any(|m| m.name == mesh.name) {
                return Err(self.error_at(start, "E143", format!("mesh `@{}` is defined twice", mesh.name)));
            }
            self.meshes.push(mesh);
        }
        let entry = function.map_or_else(|| self.entry(), |name| Ok(name.to_string()))?;
        let (graph, _) = self.function_with_extent(&entry, 0)?;
        self.functions.clear();
        let mut graph = Arc::try_unwrap(graph).unwrap_or_else(|shared| (*shared).clone());
        if graph.meshes.len() < self.meshes.len() {
            graph.meshes = std::mem::take(&mut self.meshes);
        }
        self.join_groups(&mut graph)?;
        on_own_devices(graph)
    }

    /// Makes sharding groups that share a value one, named by its least number. E148 unless the values of a group have
    /// one shape.
    fn join_groups(&self, graph: &mut Graph) -> Result<()> {
        // For a group that joined another, one with a smaller number.
        let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
        let least = |joined: &mut BTreeMap<u64, u64>, mut group: u64| {
            while let Some(&next) = joined.get(&group) {
                let after = joined.get(&next).copied().unwrap_or(next);
                joined.insert(group, after);
                group = after;
            }
            group
        };
        for &(a, b) in &self.groups {
            let (a, b) = (least(&mut joined, a), least(&mut joined, b));
            if a != b {
                joined.insert(a.max(b), a.min(b));
            }
        }
        let mut shapes: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for value in &mut graph.values {
            let Some(group) = &mut value.group else { continue };
            *group = least(&mut joined, *group);
            let shape = shapes.entry(*group).or_insert_with(|| value.ty.shape.clone());
            if *shape != value.ty.shape {
                return Err(Diagnostic::new("E148", "the values of a sharding group have different shapes")
                    .at(format!("group_id={group}"))
                    .expected(format!("{shape:?}"))
                    .found(format!("{:?}", value.ty.shape)));
            }
        }
        Ok(())
    }

    /// Records the positions of functions, meshes and location aliases, with bodies unparsed.
    fn index_module(&mut self, meshes: &mut Vec<usize>) -> Result<()> {
        let tree = self.tree.clone();
        for alias in &tree.aliases {
            if let Attribute::Location(span) = &alias.value {
                self.aliases.insert(alias.name.clone(), span.start + 1);
            }
        }
        self.index(&tree, &tree.top, meshes)
    }

    fn index(&mut self, tree: &Tree, operations: &[OperationId], meshes: &mut Vec<usize>) -> Result<()> {
        for &id in operations {
            let operation = tree.operation(id);
            self.position = operation.span.start;
            match tree.text(operation.name) {
                _ if operation.name != operation.span.start => return Err(self.not_in_a_module()),
                "module" | "builtin.module" => {
                    for &region in operation.regions() {
                        let region = tree.region(region);
                        self.module_attributes(operation.name..region.span.start);
                        for block in &region.blocks {
                            self.index(tree, &block.operations, meshes)?;
                        }
                    }
                }
                "sdy.mesh" => meshes.push(operation.name + 1),
                "func.func" | "func" => {
                    self.index_function()?;
                    if self.position != operation.span.end {
                        return Err(self.not_in_a_module());
                    }
                }
                _ => return Err(self.not_in_a_module()),
            }
        }
        Ok(())
    }

    fn not_in_a_module(&self) -> Box<Diagnostic> {
        self.unexpected("`module`, `func.func` or `sdy.mesh`")
    }

    /// Module attributes: the number of replicas and partitions of the program. The rest is
    /// skipped.
    fn module_attributes(&mut self, tokens: Span) {
        for at in tokens {
            let count = match self.kind_at(at + 1) {
                Kind::Mark('=') if self.kind_at(at + 2) == Kind::Number => self.text_at(at + 2).parse().ok(),
                _ => None,
            };
            match self.text_at(at) {
                "mhlo.num_replicas" => self.replicas = count.or(self.replicas),
                "mhlo.num_partitions" => self.partitions = count.or(self.partitions),
                _ => {}
            }
        }
    }

    /// The number of partitions: from the module, or the ranks of its meshes if they agree.
    pub fn partition_count(&self) -> Option<usize> {
        let of_all = |mesh: &&Mesh| mesh.only_device().is_none();
        let mut ranks = self.meshes.iter().filter(of_all).map(Mesh::rank_count);
        self.partitions.or_else(|| ranks.next().filter(|&first| ranks.all(|count| count == first)))
    }

    fn index_function(&mut self) -> Result<()> {
        self.advance();
        let mut is_public = true;
        if self.kind() == Kind::Word {
            is_public = match self.text() {
                "public" => true,
                "private" | "nested" => false,
                _ => return Err(self.unexpected("`public`, `private` or a name")),
            };
            self.advance();
        }
        let name_at = self.position;
        let name = self.symbol()?;
        let start = self.position;
        if self.kind() != Kind::Mark('(') {
            return Err(self.unexpected("`(`"));
        }
        self.skip_group();
        if self.kind() == Kind::Arrow {
            self.advance();
            if self.kind() == Kind::Mark('(') {
                self.skip_group();
            } else {
                self.tensor_type()?;
            }
        }
        if self.at_word("attributes") {
            self.advance();
            self.skip_group();
        }
        if self.kind() == Kind::Mark('{') {
            self.skip_group();
            self.optional_location()?;
        }
        let function = Function { start, is_public, state: State::Unread };
        if self.functions.insert(name.clone(), function).is_some() {
            return Err(self.error_at(name_at, "E143", format!("function `@{name}` is defined twice")));
        }
        Ok(())
    }

    /// `@main`, or the only public function.
    fn entry(&self) -> Result<String> {
        if self.functions.contains_key("main") {
            return Ok("main".to_string());
        }
        let public: Vec<&String> =
            self.functions.iter().filter(|(_, f)| f.is_public).map(|(name, _)| name).collect();
        match public.as_slice() {
            [one] => Ok(one.to_string()),
            many => {
                let names: Vec<String> = many.iter().map(|n| format!("`@{n}`")).collect();
                let found =
                    if names.is_empty() { "no public function".to_string() } else { names.join(", ") };
                Err(Diagnostic::new("E143", "there is no entry function")
                    .at(self.source.file)
                    .expected("a function `@main`, or a single public function")
                    .found(found))
            }
        }
    }
}
