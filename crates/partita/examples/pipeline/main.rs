//! A four-layer MLP that learns `y = x W + b`: on one device, in two stages cut by hand, and in two stages found by
//! clustering its ops into layers.
//!
//! `--dim 2048` runs it 2,048 features wide, with 2,048 rows.

use partita::prelude::*;

/// The microbatches of a step in stages.
const MICROBATCHES: usize = 16;

/// `relu(Dense(4 dim)), relu(Dense(dim))`, twice, and the mean squared error.
fn mlp(dim: usize) -> Result<Model> {
    let mut cx = Context::new("mlp", DType::F32, true);
    let mut h = cx.input("x", DType::F32, &[dim, dim]);
    let y = cx.input("y", DType::F32, &[dim, dim]);
    for (number, (from, to)) in [(1, 4), (4, 1), (1, 4), (4, 1)].into_iter().enumerate() {
        h = cx.call(&format!("dense{number}"), &Linear::new(from * dim, to * dim), h)?;
        h = cx.call(&format!("relu{number}"), &ReLU, h)?;
    }
    let loss = losses::mse(&mut cx, h, y)?;
    cx.finish(vec![("loss".to_string(), loss)])
}

/// Rows `x` and `y = x W + b + noise`, with a fixed normal `W`, `b` and noise.
fn data(dim: usize) -> Result<Fed> {
    let mut cx = Context::new("truth", DType::F32, true);
    let x = cx.input("x", DType::F32, &[dim, dim]);
    cx.input("w", DType::F32, &[dim, dim]);
    cx.input("b", DType::F32, &[dim]);
    cx.input("noise", DType::F32, &[dim, dim]);
    let drawn = random_feed(&cx.finish(vec![("x".to_string(), x)])?, 1, 0.0);
    let [x, w, b, noise] = ["x", "w", "b", "noise"].map(|name| drawn[name].to_f64());
    let mut y: Vec<f64> = noise.iter().zip(b.iter().cycle()).map(|(noise, b)| 0.1 * noise + b).collect();
    for (row, sums) in x.chunks(dim).zip(y.chunks_mut(dim)) {
        for (x, weights) in row.iter().zip(w.chunks(dim)) {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
        }
    }
    let y = Literal::from_f64(&drawn["x"].ty, y.into_iter());
    Ok(Fed::from_iter([("x".to_string(), drawn["x"].clone()), ("y".to_string(), y)]))
}

/// What one step of Adam leaves: loss, gradients and new parameters, by name.
struct Step {
    loss: f64,
    gradients: Vec<(String, Vec<f64>)>,
    parameters: Vec<(String, Vec<f64>)>,
}

/// One step of a schedule.
fn step(sch: &mut Schedule, model: &Model, batch: &Fed) -> Result<Step> {
    sch.options().step = StepOptions { output_gradients: true, ..StepOptions::new(Optimizer::adam()) };
    let mut planned = PlannedStep::new(&sch.build()?, model, 0, RunnerOptions::default())?;
    let loss = planned.step(batch, 1e-3)?.loss;
    let names = model.params.keys();
    let gradients =
        names.clone().map(|name| Ok((name.clone(), planned.output(&format!("grad.{name}"))?.to_f64())));
    let gradients = gradients.collect::<Result<_>>()?;
    let parameters = names.map(|name| Ok((name.clone(), planned.parameter(name)?.to_f64())));
    Ok(Step { loss, gradients, parameters: parameters.collect::<Result<_>>()? })
}

/// The largest difference of two lists of tensors, each relative to its tensor's largest element.
fn relative(a: &[(String, Vec<f64>)], b: &[(String, Vec<f64>)]) -> f64 {
    let worst = |((_, a), (_, b)): (&(String, Vec<f64>), &(String, Vec<f64>))| {
        let largest = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        largest_difference(a, b) / largest
    };
    a.iter().zip(b).map(worst).fold(0.0, f64::max)
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

fn main() -> Result<()> {
    let (values, _) = arguments::arguments(std::env::args(), &["--dim"], 0)?;
    let dim = match &values[0] {
        None => 256,
        Some(text) => text.parse().map_err(|_| {
            Diagnostic::new("E033", "`--dim` is no number")
                .expected("features of a layer")
                .found(text.clone())
        })?,
    };
    run_with(dim, &mut |line| println!("{line}"))
}

/// The example; `say` receives its lines.
pub fn run(say: &mut dyn FnMut(&str)) -> Result<()> {
    run_with(256, say)
}

fn run_with(dim: usize, say: &mut dyn FnMut(&str)) -> Result<()> {
    let (model, batch) = (mlp(dim)?, data(dim)?);
    let on = |mesh: &str| -> Result<Schedule> {
        Ok(Schedule::new(&model, &Mesh::parse(mesh, None)?)?.on(CpuStep::default()))
    };

    let expected = step(&mut on("dp=1")?, &model, &batch)?;
    say(&format!("one device          loss {:.6}", expected.loss));

    // By hand: the first stage ends after the second ReLU.
    let mut by_hand = on("pp=2")?;
    by_hand.at("relu1")?.pipeline_split()?;
    // By rule: two layers of equal work, with few bytes between them.
    let mut by_rule = on("pp=2")?;
    by_rule.root().layers(2)?;

    for (name, sch) in [("stages by hand", &mut by_hand), ("stages by layers(2)", &mut by_rule)] {
        sch.options().microbatches = MICROBATCHES;
        let found = step(sch, &model, &batch)?;
        let gradients = relative(&found.gradients, &expected.gradients);
        let parameters = found.parameters.iter().zip(&expected.parameters);
        let parameters = parameters.map(|((_, a), (_, b))| largest_difference(a, b)).fold(0.0, f64::max);
        let verdict = |value: f64, most: f64| if value <= most { "within" } else { "beyond" };
        say(&format!(
            "{name:<19} loss {:.6}, gradients {} 1e-6, parameters {} 1e-4 of one device",
            found.loss,
            verdict(gradients, 1e-6),
            verdict(parameters, 1e-4),
        ));
        if gradients > 1e-6 || parameters > 1e-4 {
            return Err(Diagnostic::new("E253", format!("{name} differ from one device"))
                .expected("gradients within 1e-6, parameters within 1e-4")
                .found(format!("{gradients:.1e} and {parameters:.1e}")));
        }
    }
    say(&format!("\nthe order of {MICROBATCHES} microbatches in two stages"));
    let built = by_hand.build()?;
    if let Some(timetable) = &built.timetable {
        timetable.chart()?.lines().for_each(say);
    }
    Ok(())
}

#[path = "../support/arguments.rs"]
mod arguments;
