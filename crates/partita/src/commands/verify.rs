//! `partita verify`: the planned step against one device.

use crate::compile::{self, Build};
use crate::config::Config;
use crate::feeds;
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_ir::{Graph, Literal, evaluate};
use partita_nn::ModelConfig;
use partita_schedule::verify::{self, Report, StepRunner};

/// Rows of the batch used for verification: every data-parallel rank of the meshes in the docs has one, unevenly.
pub const VERIFY_BATCH: usize = 6;

/// The outcome, with what a reader wants to know of the two sides.
pub struct Verified {
    /// The comparison.
    pub report: Report,
    /// Facts worth telling.
    pub notes: Vec<String>,
}

/// Runs the step of `config` on its mesh through `runner` and on one device through the interpreter, on `batch` rows
/// with labels to ignore spread unevenly, and compares everything both return.
pub fn verify(
    config: &Config,
    batch: usize,
    runner: &mut dyn StepRunner,
    break_rule_at: Option<String>,
) -> Result<Verified> {
    let mesh = compile::mesh(config)?;
    let dtype = config.train.dtype;
    let build = Build {
        batch,
        output_gradients: true,
        output_predictions: true,
        break_rule_at,
        ..Build::from_config(config)
    };
    let model = compile::model(config, &build)?;
    let reference = compile::reference_step(config, &model, &build)?;
    let planned = compile::plan_step(config, &model, &mesh, &build)?;

    let mut tensors: IndexMap<String, Literal> = model.initial(config.train.seed);
    tensors.extend(compile::zero_states(&reference));
    tensors.extend(feeds::random_feed(&model, vocab(config), config.train.seed, 0.3));
    tensors.extend(feeds::scalars(&reference, config.train.seed, 1, config.schedule.at(1)));
    let by_name = |graph: &Graph, outputs: Vec<Literal>| -> IndexMap<String, Literal> {
        graph.output_names.iter().cloned().zip(outputs).collect()
    };
    let inputs = compile::inputs_of(&reference, &[], &tensors)?;
    let expected = by_name(&reference, evaluate(&reference, &inputs)?);
    let precise = match dtype {
        DType::F64 => None,
        _ => {
            let build = Build { dtype: DType::F64, ..build.clone() };
            let model = compile::model(config, &build)?;
            let step = compile::reference_step(config, &model, &build)?;
            let inputs: Vec<Literal> = compile::inputs_of(&step, &[], &tensors)?
                .into_iter()
                .zip(&step.inputs)
                .map(|(value, &input)| Literal::from_f64(step.ty(input), value.to_f64().into_iter()))
                .collect();
            Some(by_name(&step, evaluate(&step, &inputs)?))
        }
    };
    let inputs = compile::inputs_of(&planned.step, &planned.pieces, &tensors)?;
    let outputs = runner.run(&planned.partitioned, &inputs);
    let outputs = match outputs {
        Ok(outputs) => outputs,
        // Ranks that should agree and do not: let the trace below say where.
        Err(error) if error.code == "E230" => {
            let tolerance = verify::tolerance(dtype);
            let first = verify::first_diverging(&planned.partitioned, &inputs, tolerance)?;
            let report = Report { ok: false, tensors: Vec::new(), tolerance, first_diverging: first };
            return Ok(Verified { report, notes: planned.notes });
        }
        Err(error) => return Err(error),
    };
    let actual = compile::outputs_by_name(&planned.step, &planned.pieces, outputs);
    let mut report = verify::compare(&expected, &actual, precise.as_ref(), dtype);
    if !report.ok {
        report.first_diverging = verify::first_diverging(&planned.partitioned, &inputs, report.tolerance)?;
    }
    Ok(Verified { report, notes: planned.notes })
}

/// The number of classes tokens are drawn from; what has none is fed reals.
fn vocab(config: &Config) -> usize {
    match &config.model {
        ModelConfig::Gpt(c) => c.vocab,
        ModelConfig::Llama(c) => c.vocab,
        ModelConfig::Bert(c) => c.vocab,
        ModelConfig::Mlp(_) => 0,
    }
}
