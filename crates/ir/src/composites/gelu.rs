//! The Gaussian error linear unit, exact or by tanh, with a gradient of its own. Of f16 and bf16 it computes in f32 and
//! rounds once.

use super::widened;
use crate::GraphBuilder;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Gradient, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::Result;

/// `gelu(x)`; attribute `tanh` chooses the approximation.
pub static GELU: Template = Template {
    name: "partita.gelu",
    arguments: &["x"],
    optional: 0,
    build: build_gelu,
    gradient: Some(Gradient::Composite(gelu_gradient)),
    rule: None,
    offsets_operand: None,
};

/// sqrt(2 / pi)
const ROOT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

const GELU_SLOPE: f64 = 2.0 * ROOT_2_OVER_PI;

const GELU_CUBIC: f64 = 0.044715;

/// `slope (1 + cubic x^2)`
fn gelu_slope(b: &mut GraphBuilder, square: ValueId, cubic: f64) -> Result<ValueId> {
    let scaled = b.scale(square, cubic * GELU_SLOPE)?;
    b.offset(scaled, GELU_SLOPE)
}

/// The square of x, and the gate of the tanh GELU of x: 0.5 (1 + tanh(v)) = logistic(2 v), where v
/// = sqrt(2/pi) (x + 0.044715 x^3). The logistic form takes fewer steps and does not cancel where
/// tanh is near -1.
fn gelu_gate(b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, ValueId)> {
    let square = b.unary(UnaryKind::Square, x)?;
    let slope = gelu_slope(b, square, GELU_CUBIC)?;
    let inner = b.multiply(x, slope)?;
    Ok((square, b.unary(UnaryKind::Logistic, inner)?))
}

/// `erf(x / sqrt(2))`
fn gelu_erf(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let scaled = b.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
    b.unary(UnaryKind::Erf, scaled)
}

fn build_gelu(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let result = if a.flag("tanh") {
        let (_, gate) = gelu_gate(b, x)?;
        b.multiply(x, gate)?
    } else {
        let inner = gelu_erf(b, x)?;
        let one = b.offset(inner, 1.0)?;
        let half = b.scale(x, 0.5)?;
        b.multiply(half, one)?
    };
    Ok(vec![b.convert(result, dtype)?])
}

/// The gradient of GELU times the result's cotangent: for tanh `gate + gate (1 - gate) x slope (1 +
/// 3 cubic x^2)`, for erf `Phi(x) + x phi(x)`.
fn gelu_gradient(
    a: &Attributes,
    b: &mut GraphBuilder,
    args: &[ValueId],
    cotangents: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>> {
    let Some(cotangent) = cotangents[0] else { return Ok(vec![None]) };
    let ((x, dtype), (cotangent, _)) = (widened(b, args[0])?, widened(b, cotangent)?);
    let derivative = if a.flag("tanh") {
        let (square, gate) = gelu_gate(b, x)?;
        let slope = gelu_slope(b, square, 3.0 * GELU_CUBIC)?;
        let one = b.full_like(gate, 1.0)?;
        let rest = b.subtract(one, gate)?;
        let steepness = b.multiply(rest, gate)?;
        // This order never multiplies infinity by zero for large x.
        let change = b.multiply(steepness, x)?;
        let change = b.multiply(change, slope)?;
        b.add(change, gate)?
    } else {
        let erf = gelu_erf(b, x)?;
        let distribution = b.scale(erf, 0.5)?;
        let distribution = b.offset(distribution, 0.5)?;
        let square = b.unary(UnaryKind::Square, x)?;
        let exponent = b.scale(square, -0.5)?;
        let bell = b.exponential(exponent)?;
        let density = b.scale(bell, 0.5 * ROOT_2_OVER_PI)?;
        let change = b.multiply(x, density)?;
        b.add(change, distribution)?
    };
    let gradient = b.multiply(derivative, cotangent)?;
    Ok(vec![Some(b.convert(gradient, dtype)?)])
}
