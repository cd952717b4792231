//! Writes the layouts that a search found as a plan: lines by module path, which a person can read, edit and verify.

use crate::intra::Found;
use partita_ir::{Graph, Phase, Role, ValueId};
use partita_mesh::{Mesh, Sharding, Step};
use partita_schedule::{Kind, Layout, Plan, Primitive, Style, SyncMode, SyncOp, matches};
use std::collections::{BTreeMap, BTreeSet};

/// The origin of the lines.
const ORIGIN: &str = "planner";

/// Which tensors get lines; propagation derives the layouts of all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pins {
    /// Parameters alone.
    Parameters,
    /// Parameters, and the outputs of the modules that own them.
    Activations,
    /// These, and what is fed, where all of it is sharded alike.
    Inputs,
    /// These, the outputs of all other modules, and that outputs are replicated over the axes that do not shard them: where
    /// propagation would shard what the search keeps whole.
    Replicated,
}

/// One request for a module, before equal ones are joined.
#[derive(Clone, PartialEq, Debug)]
struct Request {
    module: String,
    /// The tensor that the line is for.
    tensor: String,
    primitive: Primitive,
}

/// The plan of these layouts over the axes `axes` of a mesh. Modules with equal numbers of equal lines, such as all layers,
/// share a line with `*`. What the graph's annotations say gets no line.
pub fn plan_of(graph: &Graph, mesh: &Mesh, axes: &[String], found: &Found, pins: Pins) -> Plan {
    let (requests, universe) = requests_of(graph, mesh, axes, found, pins);
    joined(requests, &universe)
}

/// As [`plan_of`], for a model with more layers than the graph: all layers get the lines that most of the graph's have, of
/// equally many those of the last one.
pub fn plan_of_layers(graph: &Graph, mesh: &Mesh, axes: &[String], found: &Found, pins: Pins) -> Plan {
    let (requests, universe) = requests_of(graph, mesh, axes, found, pins);
    alike(&requests, &universe)
}

/// The requests of these layouts, and all tensors that requests could be made for, by module and name.
fn requests_of(
    graph: &Graph,
    mesh: &Mesh,
    axes: &[String],
    found: &Found,
    pins: Pins,
) -> (Vec<Request>, BTreeSet<(String, String)>) {
    let mut requests: Vec<Request> = Vec::new();
    let mut universe: BTreeSet<(String, String)> = BTreeSet::new();
    let params = graph.params();
    for &parameter in &params {
        let (module, tensor) = owner(&graph.value(parameter).name);
        if !universe.insert((module.to_string(), tensor.to_string())) {
            continue;
        }
        // The parts of a parameter have lines where they agree.
        let parts = params.iter().filter(|part| owner(&graph.value(**part).name) == (module, tensor));
        let mut parts = parts.map(|&part| {
            cuts(mesh, &left(graph, part, mesh, axes), module, tensor, &found.layouts[part.index()])
        });
        let mut lines = parts.next().unwrap_or_default();
        parts.for_each(|other| lines.retain(|line| other.contains(line)));
        requests.extend(lines);
    }
    if matches!(pins, Pins::Inputs | Pins::Replicated) {
        requests.extend(fed(graph, mesh, axes, found));
    }
    if pins != Pins::Parameters {
        let mut modules: BTreeSet<String> = universe.iter().map(|(module, _)| module.clone()).collect();
        if pins == Pins::Replicated {
            // Blocks have no parameters of their own, but a sum.
            let forward =
                graph.nodes.iter().filter(|node| node.phase == Phase::Forward && !node.path.is_empty());
            modules.extend(forward.map(|node| node.path.clone()));
        }
        for (module, output) in outputs(graph, &modules) {
            universe.insert((module.clone(), OUTPUT.to_string()));
            let layout = &found.layouts[output.index()];
            let axes = &left(graph, output, mesh, axes);
            let own = cuts(mesh, axes, &module, OUTPUT, layout);
            let is_reduced = own.is_empty() && is_reduced_in(graph, found, &module, axes, mesh);
            if is_reduced {
                let axis = axes.iter().find(|axis| mesh.axis_named(axis).is_some_and(|axis| axis.size > 1));
                let sync =
                    Primitive::Sync { mode: SyncMode::FwdPost, op: SyncOp::AllReduce, axis: axis.cloned() };
                requests.push(Request {
                    module: module.clone(),
                    tensor: OUTPUT.to_string(),
                    primitive: sync,
                });
            }
            if pins == Pins::Replicated && !is_reduced {
                requests.extend(whole(mesh, axes, &module, layout));
            }
            requests.extend(own);
        }
    }
    (requests, universe)
}

/// The axes of these that no annotation of a value uses.
fn left(graph: &Graph, value: ValueId, mesh: &Mesh, axes: &[String]) -> Vec<String> {
    let annotation = graph.value(value).annotation.as_ref();
    let is_left = |axis: &&String| {
        let at = mesh.axes.iter().position(|own| own.name == **axis);
        !annotation.zip(at).is_some_and(|(annotation, at)| {
            let axis = mesh.full_axis(at);
            annotation.sharding.uses_axis(axis) || annotation.replicated.contains(&axis)
        })
    };
    axes.iter().filter(is_left).cloned().collect()
}

/// What the tensor of a module's results is called in a plan.
const OUTPUT: &str = "output";

/// The module and the own name of a parameter, without the number of a part.
fn owner(name: &str) -> (&str, &str) {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    (module, own.split('#').next().unwrap_or(own))
}

/// A line for each axis that shards a dimension of a tensor.
fn cuts(mesh: &Mesh, axes: &[String], module: &str, tensor: &str, layout: &Sharding) -> Vec<Request> {
    let mut found = Vec::new();
    for (dim, sharding) in layout.dims.iter().enumerate() {
        for axis in &sharding.axes {
            let name = &mesh.axes[axis.axis].name;
            if axes.contains(name) {
                let primitive = Primitive::Shard {
                    tensor: tensor.to_string(),
                    dim: dim as isize,
                    axis: Some(name.clone()),
                };
                found.push(Request { module: module.to_string(), tensor: tensor.to_string(), primitive });
            }
        }
    }
    found
}

/// A line for each axis over which the output of a module is replicated.
fn whole(mesh: &Mesh, axes: &[String], module: &str, layout: &Sharding) -> Vec<Request> {
    let is_free = |axis: &&String| {
        let place = mesh.axes.iter().position(|own| own.name == **axis && own.size > 1);
        place.is_some_and(|place| !layout.uses_axis(mesh.full_axis(place)))
    };
    let request = |axis: &String| Request {
        module: module.to_string(),
        tensor: OUTPUT.to_string(),
        primitive: Primitive::Style(Style::new(Kind::Prepare).output(Layout::Replicate).over(axis)),
    };
    axes.iter().filter(is_free).map(request).collect()
}

/// A line for each axis that shards the same dimension of every fed tensor of at least two dimensions.
fn fed(graph: &Graph, mesh: &Mesh, axes: &[String], found: &Found) -> Vec<Request> {
    let is_fed = |value: &&ValueId| graph.value(**value).role == Role::Input && graph.ty(**value).rank() >= 2;
    let lines = graph.inputs.iter().filter(is_fed).map(|&value| {
        cuts(mesh, &left(graph, value, mesh, axes), "", "input", &found.layouts[value.index()])
    });
    let lines: Vec<Vec<Request>> = lines.collect();
    let Some((first, others)) = lines.split_first() else { return Vec::new() };
    first.iter().filter(|line| others.iter().all(|other| other.contains(line))).cloned().collect()
}

/// The output of each module that has exactly one.
fn outputs(graph: &Graph, modules: &BTreeSet<String>) -> Vec<(String, ValueId)> {
    let inside = |path: &str, module: &str| {
        path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
    };
    let uses = graph.uses();
    let mut found: BTreeMap<String, BTreeSet<ValueId>> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward && modules.contains(&node.path))
    {
        for &result in &node.results {
            let leaves = uses[result.index()].iter().any(|&(reader, _)| {
                let reader = graph.node(reader);
                reader.phase == Phase::Forward && !inside(&reader.path, &node.path)
            });
            if leaves && graph.ty(result).rank() > 0 {
                found.entry(node.path.clone()).or_default().insert(result);
            }
        }
    }
    let only = found.into_iter().filter(|(_, values)| values.len() == 1);
    only.filter_map(|(module, values)| Some((module, values.into_iter().next()?))).collect()
}

/// Whether a module reduces a forward value over one of these axes.
fn is_reduced_in(graph: &Graph, found: &Found, module: &str, axes: &[String], mesh: &Mesh) -> bool {
    let over = |value: &ValueId| {
        found.exchanges.iter().filter(|exchange| exchange.value == *value).any(|exchange| {
            match &exchange.step {
                Step::AllReduce { axes: over, .. } => {
                    over.iter().any(|axis| axes.contains(&mesh.axes[axis.axis].name))
                }
                _ => false,
            }
        })
    };
    let own = |value: &&ValueId| {
        let Some((node, _)) = graph.value(**value).definition else { return false };
        let node = graph.node(node);
        node.path == module && node.phase == Phase::Forward
    };
    found.reduced.iter().filter(own).any(over)
}

/// The path with every number replaced by `*`.
fn pattern(path: &str) -> String {
    let any = |part: &str| if part.parse::<usize>().is_ok() { "*".to_string() } else { part.to_string() };
    path.split('.').map(any).collect::<Vec<_>>().join(".")
}

/// The lines, with one for all modules of a pattern where each of them has the same requests for a tensor.
fn joined(requests: Vec<Request>, universe: &BTreeSet<(String, String)>) -> Plan {
    let mut of: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for request in &requests {
        let key = (request.module.clone(), request.tensor.clone());
        of.entry(key).or_default().push(request.primitive.to_string());
    }
    let is_shared = |request: &Request| {
        let pattern = pattern(&request.module);
        let own = of.get(&(request.module.clone(), request.tensor.clone()));
        let mut alike =
            universe.iter().filter(|(module, tensor)| *tensor == request.tensor && matches(&pattern, module));
        alike.all(|key| of.get(key) == own)
    };
    let mut plan = Plan::default();
    let mut done: BTreeSet<(String, String)> = BTreeSet::new();
    for request in requests {
        let modules = if is_shared(&request) { pattern(&request.module) } else { request.module.clone() };
        if done.insert((modules.clone(), request.primitive.to_string())) {
            plan.push(&modules, request.primitive, ORIGIN);
        }
    }
    plan
}

/// A line for all modules of a pattern, from the requests that most of them have for a tensor.
fn alike(requests: &[Request], universe: &BTreeSet<(String, String)>) -> Plan {
    let own = |key: &(String, String)| -> Vec<&Primitive> {
        let own = requests.iter().filter(|request| (&request.module, &request.tensor) == (&key.0, &key.1));
        own.map(|request| &request.primitive).collect()
    };
    // The numbers of layers in order: layer 10 comes after layer 9.
    let numbers = |module: &str| -> Vec<usize> {
        module.split('.').filter_map(|part| part.parse::<usize>().ok()).collect()
    };
    let mut plan = Plan::default();
    let mut done: BTreeSet<(String, &str)> = BTreeSet::new();
    for request in requests {
        let modules = pattern(&request.module);
        if !done.insert((modules.clone(), &request.tensor)) {
            continue;
        }
        let is_alike = |key: &&(String, String)| key.1 == request.tensor && pattern(&key.0) == modules;
        let mut keys: Vec<&(String, String)> = universe.iter().filter(is_alike).collect();
        keys.sort_by_key(|key| numbers(&key.0));
        let count = |key: &(String, String)| keys.iter().filter(|other| own(other) == own(key)).count();
        let chosen = match keys.iter().max_by_key(|key| count(key)) {
            Some(key) => own(key),
            None => own(&(request.module.clone(), request.tensor.clone())),
        };
        for primitive in chosen {
            plan.push(&modules, primitive.clone(), ORIGIN);
        }
    }
    plan
}
