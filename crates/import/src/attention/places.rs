//! Masks that follow from places alone: which numbers a value has where a linear function of the indices is not negative,
//! and which elsewhere. Counters, comparisons, constants and choices among them are followed back to what they compute.

use partita_base::DType;
use partita_ir::ops::{BinaryKind, Compare, Direction, UnaryKind};
use partita_ir::traits::{ConstantOp, Elementwise, ViewMap};
use partita_ir::{Graph, Literal, Node, Traits, ValueId};

/// `sum(steps[dim] * index[dim]) + start`.
#[derive(Clone, PartialEq, Debug)]
struct Line {
    steps: Vec<i64>,
    start: i64,
}

/// The numbers of a tensor by place.
#[derive(Clone, PartialEq, Debug)]
enum Places {
    /// The same everywhere.
    Splat(f64),
    /// Integers that count.
    Count(Line),
    /// `inside` where the line is not negative, else `outside`.
    Split { line: Line, inside: f64, outside: f64 },
}

/// The number that all elements of a value are, if they are a constant.
pub(super) fn splat(graph: &Graph, value: ValueId) -> Option<f64> {
    match places(graph, value, 8)? {
        Places::Splat(number) => Some(number),
        Places::Count(_) | Places::Split { .. } => None,
    }
}

/// The numbers of a mask where query `index[row]` may see key `index[column]`, and where it may not: keys up to the query,
/// where the last query sees all. `None` for a value of other numbers.
pub(super) fn causal(graph: &Graph, value: ValueId, row: usize, column: usize) -> Option<(f64, f64)> {
    let Places::Split { line, inside, outside } = places(graph, value, 32)? else { return None };
    let shape = &graph.ty(value).shape;
    let last = shape[column] as i64 - shape[row] as i64;
    let steps = |row_step: i64| {
        let mut steps = vec![0; shape.len()];
        (steps[row], steps[column]) = (row_step, -row_step);
        steps
    };
    if line == (Line { steps: steps(1), start: last }) {
        Some((inside, outside))
    } else if line == (Line { steps: steps(-1), start: -last - 1 }) {
        Some((outside, inside))
    } else {
        None
    }
}

fn places(graph: &Graph, value: ValueId, depth: usize) -> Option<Places> {
    let (node, _) = graph.value(value).definition?;
    let node = graph.node(node);
    let depth = depth.checked_sub(1)?;
    let of = |operand: usize| places(graph, node.operands[operand], depth);
    let rank = graph.ty(value).rank();
    match graph.traits(node) {
        Traits::Constant(ConstantOp::OfAll(constant)) => literal(&constant.value),
        Traits::Iota { dim } if counts(graph.ty(value).dtype) => {
            let mut steps = vec![0; rank];
            steps[dim] = 1;
            Some(Places::Count(Line { steps, start: 0 }))
        }
        Traits::View(view) => viewed(graph, node, view, of(0)?),
        Traits::Elementwise(Elementwise::Convert) => converted(graph, node, of(0)?),
        Traits::Elementwise(Elementwise::Unary(kind)) => unary(graph, node, kind, of(0)?),
        Traits::Elementwise(Elementwise::Binary(kind)) => binary(kind, of(0)?, of(1)?),
        Traits::Elementwise(Elementwise::Compare(compare)) => compared(compare, of(0)?, of(1)?, rank),
        Traits::Elementwise(Elementwise::Select) => {
            let (choice, yes, no) = (of(0)?, of(1)?, of(2)?);
            joined(&[&choice, &yes, &no], |numbers| Some(numbers[if numbers[0] != 0.0 { 1 } else { 2 }]))
        }
        Traits::Elementwise(Elementwise::Clamp | Elementwise::Bitcast)
        | Traits::Iota { .. }
        | Traits::Constant(ConstantOp::ByRank(_))
        | Traits::Collective(_)
        | Traits::Opaque
        | Traits::Refused => None,
    }
}

/// Whether indices and their differences do not wrap around in this type.
fn counts(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64 | DType::F32 | DType::F64)
}

/// A constant: a splat, or numbers in two dimensions that are one on and below a diagonal, another above it.
fn literal(value: &Literal) -> Option<Places> {
    if value.is_splat() {
        let first = (value.ty.element_count() > 0)
            .then(|| value.window(&vec![0; value.ty.rank()], &vec![1; value.ty.rank()]));
        return first.map(|first| Places::Splat(first.to_f64()[0]));
    }
    let shape = &value.ty.shape;
    let large: Vec<usize> = (0..shape.len()).filter(|&dim| shape[dim] > 1).collect();
    let [row, column] = large[..] else { return None };
    let (rows, columns) = (shape[row], shape[column]);
    let numbers = value.to_f64();
    let (inside, outside) = (numbers[(rows - 1) * columns], numbers[columns - 1]);
    let seen = numbers[..columns].iter().take_while(|&&number| number == inside).count();
    let start = seen as i64 - 1;
    let fits = numbers.iter().enumerate().all(|(place, &number)| {
        let (row, column) = ((place / columns) as i64, (place % columns) as i64);
        number == if row - column + start >= 0 { inside } else { outside }
    });
    let mut steps = vec![0; shape.len()];
    (steps[row], steps[column]) = (1, -1);
    (fits && inside != outside).then_some(Places::Split { line: Line { steps, start }, inside, outside })
}

/// The same numbers with another line.
fn with_line(places: Places, map: impl Fn(Line) -> Option<Line>) -> Option<Places> {
    Some(match places {
        Places::Splat(number) => Places::Splat(number),
        Places::Count(line) => Places::Count(map(line)?),
        Places::Split { line, inside, outside } => Places::Split { line: map(line)?, inside, outside },
    })
}

fn viewed(graph: &Graph, node: &Node, view: ViewMap, places: Places) -> Option<Places> {
    let operand = &graph.ty(node.operands[0]).shape;
    let result = &graph.ty(node.results[0]).shape;
    with_line(places, |Line { steps, mut start }| {
        let steps = match view {
            ViewMap::Identity => steps,
            ViewMap::Broadcast { dims } => {
                let mut wide = vec![0; result.len()];
                for (dim, &place) in dims.iter().enumerate() {
                    // The index of a single element that is repeated stays 0.
                    wide[place] = if operand[dim] == result[place] { steps[dim] } else { 0 };
                }
                wide
            }
            ViewMap::Reshape => {
                let mut large = (0..operand.len()).filter(|&dim| operand[dim] > 1);
                let mut other = Vec::with_capacity(result.len());
                for &extent in result {
                    let dim = if extent > 1 { Some(large.next()?) } else { None };
                    if dim.is_some_and(|dim| operand[dim] != extent) {
                        return None;
                    }
                    other.push(dim.map_or(0, |dim| steps[dim]));
                }
                other
            }
            ViewMap::Transpose { permutation } => permutation.iter().map(|&dim| steps[dim]).collect(),
            ViewMap::Slice { start: first, stride } => {
                for (dim, &step) in steps.iter().enumerate() {
                    start += step * first[dim] as i64;
                }
                steps.iter().zip(stride).map(|(step, &stride)| step * stride as i64).collect()
            }
            ViewMap::Reverse { .. } | ViewMap::Window { .. } => return None,
        };
        Some(Line { steps, start })
    })
}

/// Numbers that both types have exactly: booleans, and integers that are not too large.
fn converted(graph: &Graph, node: &Node, places: Places) -> Option<Places> {
    let to = graph.ty(node.results[0]).dtype;
    match places {
        Places::Count(line) => counts(to).then_some(Places::Count(line)),
        other if to.is_float() => Some(other),
        other => joined(&[&other], |numbers| {
            let number = if to == DType::Bool { f64::from(numbers[0] != 0.0) } else { numbers[0] };
            (number.fract() == 0.0 && number.abs() <= 127.0).then_some(number)
        }),
    }
}

fn unary(graph: &Graph, node: &Node, kind: UnaryKind, places: Places) -> Option<Places> {
    let is_boolean = graph.ty(node.results[0]).dtype == DType::Bool;
    match (kind, places) {
        (UnaryKind::Negate, Places::Count(line)) => {
            let steps = line.steps.iter().map(|step| -step).collect();
            Some(Places::Count(Line { steps, start: -line.start }))
        }
        (UnaryKind::Negate, other) => joined(&[&other], |numbers| Some(-numbers[0])),
        (UnaryKind::Not, other) if is_boolean => joined(&[&other], |numbers| Some(1.0 - numbers[0])),
        _ => None,
    }
}

fn binary(kind: BinaryKind, a: Places, b: Places) -> Option<Places> {
    let sign = match kind {
        BinaryKind::Add => Some(1),
        BinaryKind::Subtract => Some(-1),
        _ => None,
    };
    if let (Some(sign), Some((a, b))) = (sign, lines(&a, &b)) {
        return Some(Places::Count(combined(&a, &b, sign)));
    }
    let is_truth = |number: f64| number == 0.0 || number == 1.0;
    joined(&[&a, &b], |numbers| {
        let [a, b] = [numbers[0], numbers[1]];
        match kind {
            BinaryKind::Add => Some(a + b),
            BinaryKind::Subtract => Some(a - b),
            BinaryKind::Multiply => Some(a * b),
            BinaryKind::Maximum => Some(a.max(b)),
            BinaryKind::Minimum => Some(a.min(b)),
            BinaryKind::And => (is_truth(a) && is_truth(b)).then_some(a * b),
            BinaryKind::Or => (is_truth(a) && is_truth(b)).then_some(a.max(b)),
            _ => None,
        }
    })
}

/// Two values as lines, of which one counts.
fn lines(a: &Places, b: &Places) -> Option<(Line, Line)> {
    let rank = match (a, b) {
        (Places::Count(line), _) | (_, Places::Count(line)) => line.steps.len(),
        _ => return None,
    };
    let line = |places: &Places| match places {
        Places::Count(line) => Some(line.clone()),
        Places::Splat(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Some(Line { steps: vec![0; rank], start: *number as i64 })
        }
        Places::Splat(_) | Places::Split { .. } => None,
    };
    Some((line(a)?, line(b)?))
}

/// `a + sign * b`.
fn combined(a: &Line, b: &Line, sign: i64) -> Line {
    let steps = a.steps.iter().zip(&b.steps).map(|(a, b)| a + sign * b).collect();
    Line { steps, start: a.start + sign * b.start }
}

fn compared(compare: &Compare, a: Places, b: Places, rank: usize) -> Option<Places> {
    let Some((a, b)) = lines(&a, &b) else {
        return joined(&[&a, &b], |numbers| {
            let [a, b] = [numbers[0], numbers[1]];
            Some(f64::from(match compare.direction {
                Direction::Eq => a == b,
                Direction::Ne => a != b,
                Direction::Lt => a < b,
                Direction::Le => a <= b,
                Direction::Gt => a > b,
                Direction::Ge => a >= b,
            }))
        });
    };
    // Integers: a > b is a - b - 1 >= 0.
    let (mut line, less) = match compare.direction {
        Direction::Ge => (combined(&a, &b, -1), 0),
        Direction::Gt => (combined(&a, &b, -1), 1),
        Direction::Le => (combined(&b, &a, -1), 0),
        Direction::Lt => (combined(&b, &a, -1), 1),
        Direction::Eq | Direction::Ne => return None,
    };
    line.start -= less;
    debug_assert_eq!(line.steps.len(), rank);
    Some(Places::Split { line, inside: 1.0, outside: 0.0 })
}

/// A function of values that are splats or change at one and the same line, on both sides of it.
fn joined(values: &[&Places], function: impl Fn(&[f64]) -> Option<f64>) -> Option<Places> {
    let mut shared: Option<&Line> = None;
    for &value in values {
        match value {
            Places::Splat(_) => {}
            Places::Count(_) => return None,
            Places::Split { line, .. } if shared.is_none_or(|shared| shared == line) => shared = Some(line),
            Places::Split { .. } => return None,
        }
    }
    let side = |is_inside: bool| {
        let numbers: Vec<f64> = values
            .iter()
            .map(|value| match value {
                Places::Splat(number) => *number,
                Places::Count(_) => f64::NAN,
                Places::Split { inside, outside, .. } => {
                    if is_inside {
                        *inside
                    } else {
                        *outside
                    }
                }
            })
            .collect();
        function(&numbers)
    };
    let (inside, outside) = (side(true)?, side(false)?);
    Some(match shared {
        Some(line) if inside != outside => Places::Split { line: line.clone(), inside, outside },
        _ => Places::Splat(inside),
    })
}
