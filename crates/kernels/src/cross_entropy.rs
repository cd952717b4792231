//! Cross-entropy of logits and labels, with its gradient, in one pass over each row of logits.

use crate::options::KernelOptions;
use partita_base::{Diagnostic, Result};

use crate::convert::Cast;
use crate::element::{Element, Float};
use crate::element::{Real, dispatch};
use crate::native::vector::LANES;
use crate::rows::scale_into;
use crate::scalar::Scalar;
use crate::softmax::{finish_exponentials, row_count, row_sum_exp};
use crate::tiles::{Reader, Scratch, Writer};
use crate::view::{View, ViewMut};

/// The labels of all rows.
struct Labels {
    /// The class of each row; `None` if the row is ignored.
    of_rows: Vec<Option<usize>>,
    classes: usize,
}

impl Labels {
    fn read(labels: &View<'_>, logits: &View<'_>, ignored: i64) -> Result<Self> {
        let lead = &logits.shape()[..logits.rank() - 1];
        assert_eq!(labels.shape(), lead, "one label for each row of logits");
        let classes = logits.shape()[logits.rank() - 1];
        let (reader, dtype) = (Reader::new(labels), labels.dtype());
        let mut scratch = [0u64];
        let class = |row: usize| {
            let bytes = reader.tile(row, 1, bytemuck::cast_slice_mut(&mut scratch));
            let label: i64 =
                dispatch!(index dtype, T => Scalar::from_bytes(T::DTYPE, bytes).get::<T>().cast());
            match usize::try_from(label) {
                _ if label == ignored => Ok(None),
                Ok(class) if class < classes => Ok(Some(class)),
                _ => Err(Diagnostic::new("E422", format!("label {label} of row {row} is not a class"))
                    .expected(format!("0..{classes}, or {ignored} to ignore the row"))
                    .found(label.to_string())),
            }
        };
        let of_rows = (0..row_count(logits)).map(class).collect::<Result<_>>()?;
        Ok(Labels { of_rows, classes })
    }
}

/// The per-row loss `ln(sum(e^logits)) - logits[label]`, zero where the label is `ignore_index`. `logits` is
/// [.., V], `labels` an integer [..], `loss` a float [..] of any type. f16 and bf16 compute in f32.
///
/// # Errors
/// E422 if a label is neither a class nor `ignore_index`.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn cross_entropy(
    options: KernelOptions,
    logits: &View<'_>,
    labels: &View<'_>,
    ignore_index: i64,
    loss: &mut ViewMut<'_>,
) -> Result<()> {
    assert!(
        logits.rank() > 0 && loss.shape() == &logits.shape()[..logits.rank() - 1],
        "one loss for each row"
    );
    let labels = Labels::read(labels, logits, ignore_index)?;
    dispatch!(float logits.dtype(), T => forward::<T>(options, logits, &labels, loss));
    Ok(())
}

fn forward<T: Float>(options: KernelOptions, logits: &View<'_>, labels: &Labels, loss: &mut ViewMut<'_>) {
    let count = labels.classes;
    let dtype = loss.dtype();
    let reader = Reader::new(logits);
    let mut writer = Writer::new(loss);
    let mut scratch = Scratch::new();
    for (row, &label) in labels.of_rows.iter().enumerate() {
        let value = match label {
            None => 0.0,
            Some(label) => {
                let (max, sum) = row_sum_exp::<T>(options, &reader, row, count, &mut scratch);
                let chosen = reader.widened::<T>(row * count + label, 1, &mut scratch)[0];
                // Adding the differences in this order is accurate: each is small where the sum of the terms
                // may be large.
                (sum.ln() + (max - chosen)).to_f64()
            }
        };
        writer.store(row, Scalar::from_f64(dtype, value).bytes());
    }
}

/// The gradient of [`cross_entropy`]: `dlogits = (softmax(logits) - onehot(label)) dloss[row]`, zero in
/// ignored rows. `dlogits` may overwrite `logits`. The workspace has [`crate::row_workspace_bytes`].
///
/// # Errors
/// E422 if a label is neither a class nor `ignore_index`.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn cross_entropy_backward(
    options: KernelOptions,
    logits: &View<'_>,
    labels: &View<'_>,
    ignore_index: i64,
    dloss: &View<'_>,
    dlogits: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    assert!(
        logits.rank() > 0 && dloss.shape() == &logits.shape()[..logits.rank() - 1],
        "one loss for each row"
    );
    assert!(
        dlogits.shape() == logits.shape() && dlogits.dtype() == logits.dtype(),
        "the gradient of logits is like them"
    );
    let labels = Labels::read(labels, logits, ignore_index)?;
    dispatch!(float logits.dtype(), T => backward::<T>(options, logits, &labels, dloss, dlogits, workspace));
    Ok(())
}

fn backward<T: Float>(
    options: KernelOptions,
    logits: &View<'_>,
    labels: &Labels,
    dloss: &View<'_>,
    dlogits: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    // A row is no longer borrowed when it is written.
    let reader = Reader::new(logits);
    let (dloss, dtype) = (Reader::new(dloss), dloss.dtype());
    let weight = |row: usize| {
        let mut scratch = [0u64];
        let bytes = dloss.tile(row, 1, bytemuck::cast_slice_mut(&mut scratch));
        T::Compute::from_f64(Scalar::from_bytes(dtype, bytes).to_f64())
    };
    finish_exponentials::<T, _>(
        options,
        &reader,
        &mut Writer::streaming(dlogits, &[logits]),
        [labels.of_rows.len(), labels.classes],
        workspace,
        |row| labels.of_rows[row].is_some(),
        |row, sum| {
            let weight = weight(row);
            (labels.of_rows[row], weight, weight / sum)
        },
        |&(label, weight, scale), start, powers, out, streaming| {
            let Some(chosen) = label.and_then(|label| label.checked_sub(start)).filter(|&at| at < out.len())
            else {
                return scale_into(options, powers, scale, out, streaming);
            };
            // The chunk that is read again is not written with non-temporal stores.
            let first = chosen / LANES * LANES;
            let end = out.len().min(first + LANES);
            for (piece, streaming) in [(0..first, streaming), (first..end, None), (end..out.len(), streaming)]
            {
                scale_into(options, &powers[piece.clone()], scale, &mut out[piece], streaming);
            }
            out[chosen] = out[chosen] - weight;
        },
    );
}
