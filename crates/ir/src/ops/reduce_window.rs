//! Combination over sliding windows.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use super::reduce::Reducer;

/// Operands (inputs.., initial values..); combines each window.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceWindow {
    /// Extent of the window in each dimension.
    pub window: Vec<usize>,
    /// Step between windows.
    pub strides: Vec<usize>,
    /// Dilation of the input.
    pub base_dilation: Vec<usize>,
    /// Dilation of the window.
    pub window_dilation: Vec<usize>,
    /// (low, high) padding of each dimension.
    pub padding: Vec<(i64, i64)>,
    /// The combiner or body.
    pub reducer: Reducer,
}

impl Operation for ReduceWindow {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter, print_array};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.reduce_window", parse_reduce_window)];

impl TextForm for ReduceWindow {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let types = printer.operand_types();
        let dtypes: Vec<DType> = types.iter().map(|t| t.dtype).collect();
        let body = self.reducer.to_region(&dtypes);
        let rows: Vec<String> = self.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        let padding = match rows.is_empty() {
            true => "dense<> : tensor<0x2xi64>".to_string(),
            false => format!("dense<[{}]> : tensor<{}x2xi64>", rows.join(", "), rows.len()),
        };
        let properties = [
            ("base_dilations", print_array(&self.base_dilation)),
            ("padding", padding),
            ("window_dilations", print_array(&self.window_dilation)),
            ("window_dimensions", print_array(&self.window)),
            ("window_strides", print_array(&self.strides)),
        ];
        printer.generic("stablehlo.reduce_window", &properties, &[&body]);
    }
}

fn parse_reduce_window(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.reduce_window` is written in the generic form"));
    }
    op.at_least(2)?;
    let window = op.indices_of("window_dimensions")?;
    let ones = vec![1; window.len()];
    let padding = match op.attributes.get("padding") {
        Some(_) => op.rows_of("padding", 2)?.into_iter().map(|row| (row[0], row[1])).collect(),
        None => vec![(0, 0); window.len()],
    };
    let reduce_window = ReduceWindow {
        strides: op.optional_indices_of("window_strides")?.unwrap_or(ones.clone()),
        base_dilation: op.optional_indices_of("base_dilations")?.unwrap_or(ones.clone()),
        window_dilation: op.optional_indices_of("window_dilations")?.unwrap_or(ones),
        padding,
        reducer: Reducer::from_region(op.region(0)?),
        window,
    };
    op.finish(reduce_window)
}
