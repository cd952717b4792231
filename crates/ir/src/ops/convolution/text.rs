//! The text of convolutions.

use super::{Convolution, ConvolutionSide, ConvolutionWindow, NAME};
use crate::graph::ValueId;
use crate::op::TextForm;
use crate::ops::ParseOp;
use crate::text::{Kind, OpParser, OpPrinter, Value, join};
use partita_base::Result;

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_convolution), (DYNAMIC, parse_convolution)];

/// With its padding as an operand.
const DYNAMIC: &str = "stablehlo.dynamic_conv";

/// `b, 0, 1, f`: the names of the dimensions in order.
fn print_side(side: &ConvolutionSide, batch: &str, feature: &str) -> String {
    let mut names = vec![String::new(); side.spatial.len() + 2];
    names[side.batch] = batch.to_string();
    names[side.feature] = feature.to_string();
    side.spatial.iter().enumerate().for_each(|(number, &dim)| names[dim] = number.to_string());
    names.join(", ")
}

impl TextForm for Convolution {
    /// `stablehlo.convolution(%0, %1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2]}
    /// {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (T, U) -> V`.
    fn print(&self, printer: &mut OpPrinter) {
        let sides = [(&self.input, "b", "f"), (&self.kernel, "o", "i"), (&self.output, "b", "f")];
        let [input, kernel, output] = sides.map(|(side, batch, feature)| print_side(side, batch, feature));
        let mut clauses = Vec::new();
        let plain = ConvolutionWindow::default();
        let numbers = |of: fn(&ConvolutionWindow) -> usize| -> Vec<usize> { self.windows.iter().map(of).collect() };
        let mut clause = |name: &str, is_plain: bool, list: String| {
            if !is_plain {
                clauses.push(format!("{name} = [{list}]"));
            }
        };
        let all = |is_plain: &dyn Fn(&ConvolutionWindow) -> bool| self.windows.iter().all(is_plain);
        clause("stride", all(&|w| w.stride == plain.stride), join(&numbers(|w| w.stride)));
        let pads: Vec<String> =
            self.windows.iter().map(|w| format!("[{}, {}]", w.padding.0, w.padding.1)).collect();
        clause("pad", all(&|w| w.padding == plain.padding), pads.join(", "));
        let (lhs, rhs) = (numbers(|w| w.input_dilation), numbers(|w| w.kernel_dilation));
        clause("lhs_dilate", all(&|w| w.input_dilation == 1), join(&lhs));
        clause("rhs_dilate", all(&|w| w.kernel_dilation == 1), join(&rhs));
        let reversed: Vec<&str> = self.windows.iter().map(|w| if w.reversed { "1" } else { "0" }).collect();
        clause("reverse", all(&|w| !w.reversed), reversed.join(", "));
        let head = format!(
            "{NAME}({}) dim_numbers = [{input}]x[{kernel}]->[{output}], window = {{{}}}",
            printer.operands(),
            clauses.join(", ")
        );
        printer.push(&head);
        for (name, count) in
            [("batch_group_count", self.batch_groups), ("feature_group_count", self.feature_groups)]
        {
            printer.attributes.push((name.to_string(), format!("{count} : i64")));
        }
        printer.function_type();
    }
}

/// `[b, 0, 1, f]`.
fn parse_side(op: &mut OpParser, batch: &str, feature: &str) -> Result<ConvolutionSide> {
    let at = op.parser.position;
    op.parser.mark('[')?;
    let mut names = Vec::new();
    while matches!(op.parser.kind(), Kind::Word | Kind::Number) {
        names.push(op.parser.text());
        op.parser.advance();
        if !op.parser.eat(',') {
            break;
        }
    }
    op.parser.mark(']')?;
    let find = |name: &str| names.iter().position(|&own| own == name);
    let spatial = (0..names.len().saturating_sub(2)).map(|number| find(&number.to_string()));
    match (find(batch), find(feature), spatial.collect::<Option<Vec<usize>>>()) {
        (Some(batch), Some(feature), Some(spatial)) => Ok(ConvolutionSide { batch, feature, spatial }),
        _ => Err(op
            .parser
            .error_at(at, "E147", format!("these are not the dimensions of a tensor of `{NAME}`"))
            .expected(format!("`{batch}`, `{feature}` and the numbers of the spatial dimensions, each once"))),
    }
}

/// `[b, 0, f]x[0, i, o]->[b, 0, f]`.
fn parse_dimensions(op: &mut OpParser) -> Result<[ConvolutionSide; 3]> {
    let input = parse_side(op, "b", "f")?;
    op.parser.keyword("x")?;
    let kernel = parse_side(op, "o", "i")?;
    if op.parser.kind() != Kind::Arrow {
        return Err(op.parser.unexpected("`->`"));
    }
    op.parser.advance();
    Ok([input, kernel, parse_side(op, "b", "f")?])
}

/// The inside of `#stablehlo.conv<..>`: dimensions as above, or `raw` and a field for each.
fn parse_attribute(op: &mut OpParser, start: usize) -> Result<[ConvolutionSide; 3]> {
    let back = std::mem::replace(&mut op.parser.position, start);
    let sides = if op.parser.at_word("raw") {
        op.parser.advance();
        let fields = op.parser.fields('>')?;
        let number = |name: &str| match fields.get(name) {
            Some(&Value::Int(dim)) => usize::try_from(dim).ok(),
            _ => None,
        };
        let side = |of: &str, batch: &str, feature: &str| -> Result<ConvolutionSide> {
            let spatial = op.field(&fields, &format!("{of}_spatial_dimensions"))?;
            match (number(&format!("{of}_{batch}")), number(&format!("{of}_{feature}"))) {
                (Some(batch), Some(feature)) => Ok(ConvolutionSide { batch, feature, spatial }),
                _ => Err(op.error("E147", format!("`dimension_numbers` of `{NAME}` lack a dimension"))),
            }
        };
        [
            side("input", "batch_dimension", "feature_dimension")?,
            side("kernel", "output_feature_dimension", "input_feature_dimension")?,
            side("output", "batch_dimension", "feature_dimension")?,
        ]
    } else {
        parse_dimensions(op)?
    };
    op.parser.position = back;
    Ok(sides)
}

/// A clause of `window = {..}` as integers; a list of pairs as two each.
fn integers(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Int(one) => Some(vec![*one]),
        Value::Bool(one) => Some(vec![i64::from(*one)]),
        Value::List(list) => Some(list.iter().map(integers).collect::<Option<Vec<_>>>()?.concat()),
        Value::Ints(list) => Some(list.clone()),
        Value::Dense(literal) => Some(literal.to_i64()),
        _ => None,
    }
}

fn parse_convolution(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let names = ["window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal"];
    let [input, kernel, output] = if op.generic()? {
        match op.attributes.get("dimension_numbers") {
            Some(&Value::Convolution(start)) => parse_attribute(op, start)?,
            _ => return Err(op.error("E147", format!("`{NAME}` needs the attribute `dimension_numbers`"))),
        }
    } else {
        op.parser.mark('(')?;
        op.operands()?;
        op.parser.mark(')')?;
        op.parser.keyword("dim_numbers")?;
        op.parser.mark('=')?;
        let sides = parse_dimensions(op)?;
        op.clause("window")?;
        let window = op.parser.dictionary()?;
        for (short, name) in ["stride", "pad", "lhs_dilate", "rhs_dilate", "reverse"].into_iter().zip(names) {
            if let Some(value) = window.get(short) {
                op.attributes.list.push((name.to_string(), value.clone()));
            }
        }
        op.types()?;
        sides
    };
    if op.name == DYNAMIC {
        op.arity(3)?;
        op.check_operands()?;
        let padding = op.constant_integers(2)?;
        op.attributes.list.push(("padding".to_string(), Value::Ints(padding)));
    }
    op.arity(2)?;
    let dims = input.spatial.len();
    let mut lists = Vec::new();
    for (name, width) in names.into_iter().zip([1, 2, 1, 1, 1]) {
        let list = match op.attributes.get(name) {
            None => None,
            Some(value) => match integers(value).filter(|list| list.len() == width * dims) {
                Some(list) if list.iter().all(|v| v.unsigned_abs() <= 1 << 40) => Some(list),
                _ => {
                    return Err(op
                        .error("E147", format!("`{name}` of `{NAME}` has the wrong form"))
                        .expected(format!("{} integers", width * dims)));
                }
            },
        };
        lists.push(list);
    }
    let number = |list: &Option<Vec<i64>>, at: usize, default: i64| list.as_ref().map_or(default, |list| list[at]);
    let positive = |op: &OpParser, value: i64| {
        usize::try_from(value).map_err(|_| op.error("E147", "strides and dilations may not be negative"))
    };
    let mut windows = Vec::new();
    for at in 0..dims {
        windows.push(ConvolutionWindow {
            stride: positive(op, number(&lists[0], at, 1))?,
            padding: (number(&lists[1], 2 * at, 0), number(&lists[1], 2 * at + 1, 0)),
            input_dilation: positive(op, number(&lists[2], at, 1))?,
            kernel_dilation: positive(op, number(&lists[3], at, 1))?,
            reversed: number(&lists[4], at, 0) != 0,
        });
    }
    let groups = |op: &OpParser, name: &str| match op.attributes.get(name) {
        Some(_) => op.index_of(name),
        None => Ok(1),
    };
    let (feature_groups, batch_groups) = (groups(op, "feature_group_count")?, groups(op, "batch_group_count")?);
    if feature_groups == 0 || batch_groups == 0 {
        return Err(op.error("E147", format!("`{NAME}` has at least one group")));
    }
    let dtype = op.result_type()?.dtype;
    // What the op prints itself.
    op.attributes.list.retain(|(name, _)| !name.ends_with("_group_count"));
    op.finish(Convolution { input, kernel, output, windows, feature_groups, batch_groups, dtype })
}
