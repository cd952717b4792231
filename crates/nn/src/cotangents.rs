//! A loss for a model without one: the inner product of its outputs with further inputs.
//!
//! The gradients of `sum of output x cotangent` with respect to the parameters are the vector-Jacobian products of the
//! model: what a backward pass computes for cotangents of its outputs. Random cotangents therefore compare all of them.

use crate::Model;
use partita_base::{DType, Result};
use partita_ir::port::{LOSS, cotangent_name};
use partita_ir::{GraphBuilder, Role};

/// What the model's own loss is called where the inner product is the loss.
pub const OWN_LOSS: &str = "own_loss";

/// The model whose loss is the inner product of these float outputs with new inputs `cotangent.<output>`, in f32 or
/// wider. A model without any such output is returned as it is.
///
/// # Errors
/// E161 if an output is called `own_loss` beside one called `loss`.
pub fn with_cotangents(model: &Model, outputs: &[String]) -> Result<Model> {
    let forward = model.forward.clone();
    let mut b = GraphBuilder::from_graph(forward.clone());
    b.path = "loss".to_string();
    let float =
        |name: &String| forward.output_named(name).filter(|&value| forward.ty(value).dtype.is_float());
    let is_f64 = outputs.iter().filter_map(float).any(|value| forward.ty(value).dtype == DType::F64);
    let sum_type = if is_f64 { DType::F64 } else { DType::F32 };
    let mut loss = None;
    for name in outputs {
        let Some(output) = float(name) else { continue };
        let ty = forward.ty(output).clone();
        let dims: Vec<usize> = (0..ty.rank()).collect();
        let cotangent = b.input(&cotangent_name(name), ty, Role::Input);
        let product = b.multiply(output, cotangent)?;
        let product = b.convert(product, sum_type)?;
        let sum = b.reduce_sum(product, &dims)?;
        loss = Some(match loss {
            None => sum,
            Some(others) => b.add(others, sum)?,
        });
    }
    let Some(loss) = loss else { return Ok(model.clone()) };
    let aliases = forward.aliases.clone();
    let own = |name: &String| if name == LOSS { OWN_LOSS.to_string() } else { name.clone() };
    let mut named: Vec<_> =
        forward.output_names.iter().map(own).zip(forward.outputs.iter().copied()).collect();
    named.push((LOSS.to_string(), loss));
    let mut graph = b.finish_checked(named)?;
    graph.aliases = aliases;
    Ok(Model { forward: graph, ..model.clone() })
}
