//! The squared difference.

use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use partita_base::Result;

/// `mse(prediction, target) -> (prediction - target)^2`, elementwise; the caller takes the mean.
pub static MSE: Template = Template {
    name: "partita.mse",
    arguments: &["prediction", "target"],
    optional: 0,
    build: build_mse,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_mse(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let difference = b.subtract(args[0], args[1])?;
    Ok(vec![b.multiply(difference, difference)?])
}
