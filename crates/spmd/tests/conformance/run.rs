//! Runs the test functions of a file.

use super::check::{difference, is_complex};
use super::suite::{Case, Parallel};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composite::Registry;
use partita_ir::{Graph, Literal, Op, ValueId, evaluate, graph_edit, interpret, text};
use partita_mesh::Mesh;
use partita_spmd::{Options, in_device_order, partition};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What became of a test function.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// All its comparisons hold.
    Pass,
    /// It needs something that does not exist here.
    Unsupported(String),
    /// A comparison does not hold, or it was refused for another reason, or a panic.
    Fail(String),
}

/// The outcome of an error.
pub fn refused(error: &Diagnostic) -> Outcome {
    let found = error.found.as_ref().map_or(String::new(), |found| format!(": {found}"));
    let text = format!("{} {}{found}", error.code, error.message);
    match error.code {
        "E119" | "E141" | "E142" | "E144" | "E170" => Outcome::Unsupported(text),
        _ => {
            let at = error.at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
            let expected = error.expected.as_ref().map_or(String::new(), |e| format!(", expected {e}"));
            Outcome::Fail(text + &expected + &at)
        }
    }
}

/// Runs a case.
pub fn outcome(case: &Case) -> Outcome {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let result = catch_unwind(AssertUnwindSafe(|| run(case)));
    std::panic::set_hook(hook);
    match result {
        Ok(Ok(None)) => Outcome::Pass,
        Ok(Ok(Some(difference))) => Outcome::Fail(difference),
        Ok(Err(error)) => refused(&error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Outcome::Fail(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

fn read(module: &str, function: &str) -> Result<Graph> {
    text::parse_function(module, "test", &Registry::default(), function)
}

/// A function on one device.
fn alone(module: &str, function: &str) -> Result<Graph> {
    Ok(rounded(&[&read(module, function)?])?.remove(0))
}

/// The graphs of ranks with the sums of matrix products as the reference interpreter of StableHLO has them: in order, each
/// rounded to the element type. Ours are in f64 and rounded once, which is closer to the true sum but differs in the last
/// bit. Sums of 16-bit floats stay: what is recorded of them was summed in wider floats.
fn rounded(graphs: &[&Graph]) -> Result<Vec<Graph>> {
    graphs.iter().map(|graph| rounded_one(graph, graphs)).collect()
}

/// One of the graphs. All get as many terms, so that they stay alike; those that a rank does not have are zeros.
fn rounded_one(graph: &Graph, alike: &[&Graph]) -> Result<Graph> {
    graph_edit::rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let Op::DotGeneral(dot) = &node.op else {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        };
        let extent = |&dim: &usize| {
            let of = |graph: &&Graph| graph.ty(graph.nodes[index].operands[0]).shape[dim];
            alike.iter().map(of).max().unwrap_or(0)
        };
        let extents: Vec<usize> = dot.lhs_contracting.iter().map(extent).collect();
        let terms: usize = extents.iter().product();
        let dtype = graph.ty(node.results[0]).dtype;
        let is_rounded = matches!(dtype, DType::F32 | DType::F64) || is_complex(dtype);
        if !(2..=MAX_TERMS).contains(&terms) || !is_rounded {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        }
        let mut sum: Option<ValueId> = None;
        for term in 0..terms {
            // The place of the term in each contracted dimension, the last one fastest.
            let mut rest = term;
            let mut places = vec![0; extents.len()];
            for (place, extent) in places.iter_mut().zip(&extents).rev() {
                (*place, rest) = (rest % extent, rest / extent);
            }
            let mut factors = Vec::new();
            for (&operand, dims) in operands.iter().zip([&dot.lhs_contracting, &dot.rhs_contracting]) {
                let mut factor = operand;
                for (&dim, &place) in dims.iter().zip(&places) {
                    let own = builder.ty(operand).shape[dim];
                    factor = builder.slice_dim(factor, dim, place.min(own), (place + 1).min(own))?;
                }
                factors.push(factor);
            }
            let types = vec![graph.ty(node.results[0]).clone()];
            let product = builder.push_typed(node.op.clone(), &factors, types)[0];
            sum = Some(sum.map_or(Ok(product), |sum| builder.add(sum, product))?);
        }
        Ok(sum.map(|sum| vec![sum]))
    })
}

/// Longer sums stay as they are.
const MAX_TERMS: usize = 64;

/// The first difference found by the checks.
fn run(case: &Case) -> Result<Option<String>> {
    let mut arguments: Vec<Literal> = Vec::new();
    let (last, stages) = case.stages.split_last().expect("one stage or more");
    for (stage, run) in stages.iter().zip(&case.runs) {
        let inputs = evaluate(&alone(stage, &case.function)?, &arguments)?;
        arguments.extend(parallel(stage, run, inputs)?);
    }
    let values = evaluate(&alone(last, &case.function)?, &arguments)?;
    let pairs = values.chunks(2).zip(&case.checks).enumerate();
    let differences = pairs.filter_map(|(number, (pair, &check))| {
        difference(check, &pair[0], &pair[1]).map(|text| format!("check {number}: {text}"))
    });
    Ok(differences.into_iter().next())
}

/// The results of all programs, in order of the ranks.
fn parallel(module: &str, run: &Parallel, inputs: Vec<Literal>) -> Result<Vec<Literal>> {
    if !run.infeed.is_empty() {
        return Err(Diagnostic::new("E144", "infeed is not supported"));
    }
    let (replicas, partitions) = (run.programs.len(), run.programs.first().map_or(0, Vec::len));
    let module = format!(
        "module attributes {{mhlo.num_replicas = {replicas} : i32, mhlo.num_partitions = {partitions} : i32}} {{\n\
         {module}\n}}"
    );
    let names = run.programs.concat();
    let graphs: Vec<Graph> = names.iter().map(|name| read(&module, name)).collect::<Result<_>>()?;
    let mut inputs = inputs.into_iter();
    let locals: Vec<Vec<Literal>> =
        graphs.iter().map(|graph| inputs.by_ref().take(graph.inputs.len()).collect()).collect();
    let is_annotated = |graph: &Graph| {
        let has_layout = graph.values.iter().any(|value| value.annotation.is_some());
        has_layout || graph.output_annotations.iter().any(Option::is_some) || !graph.meshes.is_empty()
    };
    let results = match module.contains("sdy.mesh") && graphs.iter().any(is_annotated) {
        true => partitioned(&graphs, locals)?,
        false => {
            let alike = |graph: &Graph| {
                let pairs = graph.nodes.iter().zip(&graphs[0].nodes);
                graph.nodes.len() == graphs[0].nodes.len()
                    && pairs.into_iter().all(|(own, other)| own.op.variant() == other.op.variant())
            };
            if !graphs.iter().all(alike) {
                return Err(Diagnostic::new("E144", "ranks that run different programs are not supported"));
            }
            let graphs = rounded(&graphs.iter().collect::<Vec<_>>())?;
            interpret::evaluate_ranks(&graphs.iter().collect::<Vec<_>>(), &locals)?
        }
    };
    Ok(results.concat())
}

/// The mesh of all devices that a program is annotated with. A function may use several; a layout
/// on one that does not fit is refused.
fn mesh_of(graph: &Graph, devices: usize) -> Result<Mesh> {
    let of_all = |mesh: &&Mesh| mesh.rank_count() == devices && mesh.is_in_device_order();
    let fits = |mesh: &&Mesh| mesh.rank_count() == devices;
    let mut annotated = graph.values.iter().filter_map(|value| value.annotation.as_ref());
    let outputs = graph.output_annotations.iter().flatten();
    let used: Vec<usize> = annotated.by_ref().chain(outputs).map(|annotation| annotation.mesh).collect();
    let first = used.iter().filter_map(|&mesh| graph.meshes.get(mesh)).find(fits);
    first
        .or_else(|| graph.meshes.iter().find(of_all))
        .or_else(|| graph.meshes.iter().find(fits))
        .cloned()
        .ok_or_else(|| {
            Diagnostic::new("E144", "a program whose mesh does not have all devices")
                .expected(format!("a mesh of {devices} devices"))
        })
}

/// Partitions one program over its mesh and runs it on the shards.
fn partitioned(graphs: &[Graph], locals: Vec<Vec<Literal>>) -> Result<Vec<Vec<Literal>>> {
    let graph = &graphs[0];
    let mesh = mesh_of(graph, graphs.len())?;
    // What nothing reads, such as a rank's number, is not there.
    let graph = graph_edit::prune(graph.clone());
    let partitioned = partition(&graph, &mesh, &Options::default())?;
    // Program p runs on device p.
    let ranks = 0..mesh.rank_count();
    let inputs: Vec<Vec<Literal>> = ranks.clone().map(|rank| locals[mesh.device(rank)].clone()).collect();
    let locals = in_device_order(&partitioned)?;
    let locals = rounded(&locals.iter().collect::<Vec<_>>())?;
    let ranks: Vec<&Graph> = locals.iter().collect();
    let mut by_device = vec![Vec::new(); graphs.len()];
    for (rank, results) in interpret::evaluate_ranks(&ranks, &inputs)?.into_iter().enumerate() {
        by_device[mesh.device(rank)] = results;
    }
    Ok(by_device)
}
