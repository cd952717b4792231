//! Why a step was refused: a batch that is not finite, or a run that diverges.

use partita_base::Diagnostic;
use partita_kernels::Scalar;

use super::BatchTensor;
use crate::executor::DIVERGED;

/// The values of a tensor that are not finite.
#[derive(Default)]
struct NotFinite {
    nan: usize,
    infinite: usize,
    /// The position of the first one, in elements.
    first: Option<usize>,
}

impl NotFinite {
    fn count(tensor: &BatchTensor<'_>) -> NotFinite {
        let mut found = NotFinite::default();
        if !tensor.dtype.is_float() {
            return found;
        }
        for (at, bytes) in tensor.bytes.chunks_exact(tensor.dtype.size_bytes()).enumerate() {
            let value = Scalar::from_bytes(tensor.dtype, bytes).to_f64();
            if !value.is_finite() {
                found.first.get_or_insert(at);
                *if value.is_nan() { &mut found.nan } else { &mut found.infinite } += 1;
            }
        }
        found
    }
}

/// The index of an element of a dense tensor.
fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        (*place, at) = (at % extent, at / extent);
    }
    index
}

/// The error of a step on this batch. If the step was refused for numbers that are not finite, its help says whether the
/// batch has such numbers itself: in which tensors, how many, and where the first one is.
pub(super) fn explained(error: Box<Diagnostic>, batch: &[BatchTensor<'_>]) -> Box<Diagnostic> {
    if error.code != DIVERGED {
        return error;
    }
    let (mut places, mut has_nan) = (Vec::new(), false);
    for tensor in batch {
        let NotFinite { nan, infinite, first } = NotFinite::count(tensor);
        let Some(first) = first else { continue };
        has_nan |= nan > 0;
        let counts = [(nan, "NaN"), (infinite, "infinite")];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        places.push(format!(
            "`{}` has {} of {} elements, the first at {:?}",
            tensor.name,
            counts.join(" and "),
            tensor.shape.iter().product::<usize>(),
            index(first, tensor.shape)
        ));
    }
    if places.is_empty() {
        return error;
    }
    let places = places.join("; ");
    // An infinite number may be meant, as in a mask that is added to scores.
    let advice = match (has_nan, &error.help) {
        (false, Some(diverged)) => format!("if that is meant, as in a mask, {diverged}"),
        _ => "mend the data or leave these rows out; parameters and states are those of the step before"
            .to_string(),
    };
    error.help(format!("the batch is not finite: {places}; {advice}"))
}
