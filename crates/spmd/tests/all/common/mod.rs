//! Shared by the tests and the sweep: random numbers, comparison, the table of ops, random graphs.
#![allow(dead_code)]

pub mod recipe;
pub mod splits;
pub mod table;

use partita_base::DType;
use partita_ir::{Graph, Literal, TensorType, interpret};
use partita_mesh::Mesh;
use partita_spmd::{Options, Partitioned, partition, uniform, virtual_ranks};

/// Numbers in (-1, 1), or from -4 to 4 for integers, that depend on nothing but the seed.
pub fn numbers(shape: &[usize], seed: u64, dtype: DType) -> Literal {
    let ty = TensorType::new(dtype, shape);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let values = (0..ty.element_count()).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let unit = (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0;
        if dtype.is_float() { unit } else { (unit * 4.5).round() }
    });
    Literal::from_f64(&ty, values.collect::<Vec<_>>().into_iter())
}

/// Integers in `0..below`.
pub fn indices(shape: &[usize], seed: u64, below: usize) -> Literal {
    let raw = numbers(shape, seed, DType::F64).to_f64();
    let ty = TensorType::new(DType::I32, shape);
    Literal::from_f64(&ty, raw.into_iter().map(|v| ((v + 1.0) * 0.4999 * below as f64).floor()))
}

/// Where two results differ by more than the rounding of another order of summation, relative to
/// the largest number of the tensor.
pub fn difference(actual: &Literal, expected: &Literal) -> Option<String> {
    if actual.ty != expected.ty {
        return Some(format!("{} instead of {}", actual.ty, expected.ty));
    }
    let tolerance = match expected.ty.dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 | DType::BF16 => 0.1,
        _ => 0.0,
    };
    let (actual, expected) = (actual.to_f64(), expected.to_f64());
    let magnitude = expected.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
    (0..expected.len()).find_map(|i| {
        let (x, y) = (actual[i], expected[i]);
        let close = x == y || (x - y).abs() <= tolerance * magnitude || (x.is_nan() && y.is_nan());
        (!close).then(|| format!("{x} instead of {y} at element {i}\n{actual:?}\n{expected:?}"))
    })
}

/// Partitions, runs on virtual ranks and compares with `expected`. Returns the partition, or what
/// went wrong.
pub fn check(
    graph: &Graph,
    mesh: &Mesh,
    options: &Options,
    inputs: &[Literal],
    expected: &[Literal],
) -> Result<Partitioned, (&'static str, String)> {
    let partitioned = partition(graph, mesh, options).map_err(|e| (e.code, e.to_string()))?;
    let actual = virtual_ranks::interpret(&partitioned, inputs).map_err(|e| ("interpret", e.to_string()))?;
    compare("numbers", &actual, expected)?;
    let program = uniform(&partitioned).map_err(|e| (e.code, e.to_string()))?;
    check_uniform(&partitioned, &program, inputs, expected)?;
    Ok(partitioned)
}

fn compare(
    code: &'static str,
    actual: &[Literal],
    expected: &[Literal],
) -> Result<(), (&'static str, String)> {
    for (position, (a, e)) in actual.iter().zip(expected).enumerate() {
        if let Some(difference) = difference(a, e) {
            return Err((code, format!("output {position}: {difference}")));
        }
    }
    Ok(())
}

/// Runs the one program of all ranks and compares with `expected`.
pub fn check_uniform(
    partitioned: &Partitioned,
    program: &Graph,
    inputs: &[Literal],
    expected: &[Literal],
) -> Result<(), (&'static str, String)> {
    let failed = |e: Box<partita_base::Diagnostic>| ("uniform", e.to_string());
    let actual = virtual_ranks::interpret_uniform(partitioned, program, inputs).map_err(failed)?;
    compare("uniform numbers", &actual, expected)
}

/// Runs the ranks' own graphs, with their numbers folded in, and compares them bit by bit with the
/// class graphs.
pub fn check_specialised(
    partitioned: &Partitioned,
    inputs: &[Literal],
) -> Result<(), (&'static str, String)> {
    let ranks = partitioned.mesh.rank_count();
    let shards = |rank| -> Vec<Literal> {
        let pairs = inputs.iter().zip(&partitioned.inputs);
        pairs.map(|(v, s)| virtual_ranks::distribute(v, s, &partitioned.mesh, rank)).collect()
    };
    let locals: Vec<Vec<Literal>> = (0..ranks).map(shards).collect();
    let failed = |e: Box<partita_base::Diagnostic>| ("specialise", e.to_string());
    let own = virtual_ranks::rank_graphs(partitioned).map_err(failed)?;
    let own = interpret::evaluate_ranks(&own.iter().collect::<Vec<_>>(), &locals).map_err(failed)?;
    let class: Vec<&Graph> = (0..ranks).map(|r| partitioned.local(r)).collect();
    let class = interpret::evaluate_ranks(&class, &locals).map_err(failed)?;
    let bits = |results: &Vec<Vec<Literal>>| -> Vec<Vec<u8>> {
        results.iter().flatten().map(Literal::to_bytes).collect()
    };
    if bits(&own) != bits(&class) {
        return Err(("specialise", "a rank's own graph computes something else than its class".to_string()));
    }
    Ok(())
}
