//! Recurrent layers, unrolled over time: `lstm`, `gru` and `rnn` as `torch.export` calls them before
//! decomposition, with the parameters of all layers in one list; and their cells called by themselves.

use super::activation::dropped;
use super::{Rows, convert, operand};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::UnaryKind;

pub const ROWS: Rows = &[
    ("aten.lstm.input", |c| recurrent(c, Kind::Lstm)),
    ("aten.gru.input", |c| recurrent(c, Kind::Gru)),
    ("aten.rnn_tanh.input", |c| recurrent(c, Kind::Plain(UnaryKind::Tanh))),
    ("aten.rnn_relu.input", |c| recurrent(c, Kind::Relu)),
    ("aten.lstm_cell.default", |c| one_step(c, Kind::Lstm)),
    ("aten.gru_cell.default", |c| one_step(c, Kind::Gru)),
    ("aten.rnn_tanh_cell.default", |c| one_step(c, Kind::Plain(UnaryKind::Tanh))),
    ("aten.rnn_relu_cell.default", |c| one_step(c, Kind::Relu)),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Plain(UnaryKind),
    Relu,
}

/// The weights of one direction of one layer.
struct Weights {
    input: ValueId,
    hidden: ValueId,
    input_bias: Option<ValueId>,
    hidden_bias: Option<ValueId>,
}

/// `x weight^T + bias`
fn project(call: &mut Call, x: ValueId, weight: ValueId, bias: Option<ValueId>) -> Result<ValueId> {
    let y = call.b().linear(x, weight)?;
    let Some(bias) = bias else { return Ok(y) };
    let shape = call.shape(y);
    let bias = call.spread(bias, &shape)?;
    call.b().add(y, bias)
}

fn recurrent(call: &mut Call, kind: Kind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = call.tensor("input")?;
    let x = convert(call, x, dtype)?;
    let own = call.shape(x);
    let batch_first = call.flag("batch_first", false)?;
    let has_biases = call.flag("has_biases", true)?;
    let directions = 1 + usize::from(call.flag("bidirectional", false)?);
    let layers = usize::try_from(call.int("num_layers", 1)?).unwrap_or(0);
    let rate = if call.flag("train", false)? { call.float("dropout", 0.0)? } else { 0.0 };
    // [time, batch, features]
    let mut sequence = match own.len() {
        2 => call.b().reshape(x, &[own[0], 1, own[1]])?,
        3 if batch_first => call.b().transpose(x, &[1, 0, 2])?,
        3 => x,
        _ => return Err(call.unsupported("[time, batch, features]", format!("{own:?}"))),
    };
    let is_single = own.len() == 2;
    let states = match kind {
        Kind::Lstm => call.tensors("hx")?,
        _ => vec![call.tensor("hx")?],
    };
    let parameters = call.tensors("params")?;
    let each = if has_biases { 4 } else { 2 };
    let count = layers.saturating_mul(directions);
    if states.len() != if kind == Kind::Lstm { 2 } else { 1 }
        || count.checked_mul(each) != Some(parameters.len())
    {
        return Err(call.unsupported(
            &format!("{each} parameters for each layer and direction"),
            parameters.len().to_string(),
        ));
    }
    let mut carried = Vec::new();
    for state in states {
        let state = convert(call, state, dtype)?;
        let shape = call.shape(state);
        let shape = if is_single && shape.len() == 2 { vec![shape[0], 1, shape[1]] } else { shape };
        if shape.len() != 3 || shape[0] != count {
            return Err(call.unsupported(&format!("states [{count}, batch, features]"), format!("{shape:?}")));
        }
        carried.push(call.b().reshape(state, &shape)?);
    }
    let mut last: Vec<Vec<ValueId>> = vec![Vec::new(); carried.len()];
    for layer in 0..layers {
        let mut outputs = Vec::new();
        for direction in 0..directions {
            let number = layer * directions + direction;
            let of = &parameters[number * each..(number + 1) * each];
            let bias = |at: usize| has_biases.then(|| of[at]);
            let mut weights =
                Weights { input: of[0], hidden: of[1], input_bias: bias(2), hidden_bias: bias(3) };
            for weight in [&mut weights.input, &mut weights.hidden] {
                *weight = convert(call, *weight, dtype)?;
            }
            let mut state = Vec::new();
            for &states in &carried {
                let row = call.b().slice_dim(states, 0, number, number + 1)?;
                let shape = call.shape(row);
                state.push(call.b().reshape(row, &shape[1..])?);
            }
            let (output, end) = unrolled(call, kind, sequence, &weights, state, direction == 1)?;
            outputs.push(output);
            last.iter_mut().zip(end).for_each(|(last, end)| last.push(end));
        }
        sequence = if outputs.len() == 1 { outputs[0] } else { call.b().concatenate(&outputs, 2)? };
        if layer + 1 < layers {
            sequence = dropped(call, sequence, rate, true)?;
        }
    }
    let shape = call.shape(sequence);
    let y = match (is_single, batch_first) {
        (true, _) => call.b().reshape(sequence, &[shape[0], shape[2]])?,
        (false, true) => call.b().transpose(sequence, &[1, 0, 2])?,
        (false, false) => sequence,
    };
    let mut outs = vec![Out::Value(y)];
    for rows in last {
        let joined = stacked(call, &rows)?;
        let shape = call.shape(joined);
        let joined = if is_single { call.b().reshape(joined, &[shape[0], shape[2]])? } else { joined };
        outs.push(Out::Value(joined));
    }
    Ok(outs)
}

/// A cell called by itself: the new states of one step.
fn one_step(call: &mut Call, kind: Kind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", dtype)?;
    let states = match kind {
        Kind::Lstm => call.tensors("hx")?,
        _ => vec![call.tensor("hx")?],
    };
    let mut state = Vec::with_capacity(states.len());
    for value in states {
        state.push(convert(call, value, dtype)?);
    }
    let mut projected = Vec::new();
    for (x, weight, bias) in [(Some(x), "w_ih", "b_ih"), (state.first().copied(), "w_hh", "b_hh")] {
        let (Some(x), weight) = (x, operand(call, weight, dtype)?) else {
            return Err(call.unsupported("the states of a step", "none"));
        };
        let bias = if call.has(bias) { Some(operand(call, bias, dtype)?) } else { None };
        projected.push(project(call, x, weight, bias)?);
    }
    let shape = call.shape(state[0]);
    let fits = shape.len() == 2
        && state.len() == if kind == Kind::Lstm { 2 } else { 1 }
        && projected.iter().all(|&p| call.shape(p) == [shape[0], shape[1].saturating_mul(gates(kind))]);
    if !fits {
        return Err(call.unsupported(
            &format!("[batch, features] and {} gates for each state feature", gates(kind)),
            format!("{shape:?}"),
        ));
    }
    Ok(cell(call, kind, projected[0], projected[1], &state, shape[1])?.into_iter().map(Out::Value).collect())
}

/// The gates of a cell.
fn gates(kind: Kind) -> usize {
    match kind {
        Kind::Lstm => 4,
        Kind::Gru => 3,
        Kind::Plain(_) | Kind::Relu => 1,
    }
}

/// Values of one shape along a new first dimension.
fn stacked(call: &mut Call, rows: &[ValueId]) -> Result<ValueId> {
    let Some(&first) = rows.first() else {
        return Err(call.unsupported("at least one layer and time step", "none"));
    };
    let shape = [&[1], &call.shape(first)[..]].concat();
    let mut apart = Vec::with_capacity(rows.len());
    for &row in rows {
        apart.push(call.b().reshape(row, &shape)?);
    }
    if apart.len() == 1 { Ok(apart[0]) } else { call.b().concatenate(&apart, 0) }
}

/// One direction of one layer: outputs `[time, batch, hidden]` and the states at the end.
fn unrolled(
    call: &mut Call,
    kind: Kind,
    sequence: ValueId,
    weights: &Weights,
    mut state: Vec<ValueId>,
    backwards: bool,
) -> Result<(ValueId, Vec<ValueId>)> {
    let steps = call.shape(sequence)[0];
    // Some twenty ops for each step.
    call.check_nodes(steps.saturating_mul(32))?;
    // The projections of all steps are one product.
    let inputs = project(call, sequence, weights.input, weights.input_bias)?;
    let width = call.shape(inputs)[2];
    let hidden = call.shape(state[0]).get(1).copied().unwrap_or(0);
    let gates = gates(kind);
    if hidden.checked_mul(gates) != Some(width) {
        return Err(call.unsupported(&format!("{gates} gates of {hidden} features"), width.to_string()));
    }
    let mut outputs = vec![None; steps];
    for step in 0..steps {
        let at = if backwards { steps - 1 - step } else { step };
        let input = call.b().slice_dim(inputs, 0, at, at + 1)?;
        let shape = call.shape(input);
        let input = call.b().reshape(input, &shape[1..])?;
        let recurrent = project(call, state[0], weights.hidden, weights.hidden_bias)?;
        state = cell(call, kind, input, recurrent, &state, hidden)?;
        outputs[at] = Some(state[0]);
    }
    let outputs: Vec<ValueId> = outputs.into_iter().flatten().collect();
    Ok((stacked(call, &outputs)?, state))
}

/// One step: the new states from the projections of input and state.
fn cell(
    call: &mut Call,
    kind: Kind,
    input: ValueId,
    recurrent: ValueId,
    state: &[ValueId],
    hidden: usize,
) -> Result<Vec<ValueId>> {
    let gate = |call: &mut Call, x: ValueId, number: usize| {
        call.b().slice_dim(x, 1, number * hidden, (number + 1) * hidden)
    };
    match kind {
        Kind::Plain(activation) => {
            let sum = call.b().add(input, recurrent)?;
            Ok(vec![call.b().unary(activation, sum)?])
        }
        Kind::Relu => {
            let sum = call.b().add(input, recurrent)?;
            Ok(vec![super::compare::within(call, sum, Some(0.0), None)?])
        }
        Kind::Lstm => {
            // Input, forget, cell and output gate.
            let sum = call.b().add(input, recurrent)?;
            let mut gates = Vec::new();
            for number in 0..4 {
                let part = gate(call, sum, number)?;
                let activation = if number == 2 { UnaryKind::Tanh } else { UnaryKind::Logistic };
                gates.push(call.b().unary(activation, part)?);
            }
            let kept = call.b().multiply(gates[1], state[1])?;
            let added = call.b().multiply(gates[0], gates[2])?;
            let cell = call.b().add(kept, added)?;
            let shown = call.b().unary(UnaryKind::Tanh, cell)?;
            Ok(vec![call.b().multiply(gates[3], shown)?, cell])
        }
        Kind::Gru => {
            // Reset, update and new gate; the reset gate acts on the projected state.
            let mut sums = Vec::new();
            for number in 0..2 {
                let (a, b) = (gate(call, input, number)?, gate(call, recurrent, number)?);
                let sum = call.b().add(a, b)?;
                sums.push(call.b().unary(UnaryKind::Logistic, sum)?);
            }
            let (a, b) = (gate(call, input, 2)?, gate(call, recurrent, 2)?);
            let reset = call.b().multiply(sums[0], b)?;
            let sum = call.b().add(a, reset)?;
            let new = call.b().unary(UnaryKind::Tanh, sum)?;
            // new + update (old - new)
            let difference = call.b().subtract(state[0], new)?;
            let step = call.b().multiply(sums[1], difference)?;
            Ok(vec![call.b().add(new, step)?])
        }
    }
}
