use partita_base::{DType, Diagnostic, Result};

use crate::convert::Cast;
use crate::element::{Real, dispatch};
use crate::rows::scale_into;
use crate::softmax::{row_count, row_exp, row_sum_exp};
use crate::tiles::{Reader, Scratch, TILE, TileBytes, Writer};
use crate::workspace::Workspace;
use crate::{Element, Float, Scalar, View, ViewMut};

/// Reads the labels of rows one by one.
struct Labels<'a> {
    reader: Reader<'a>,
    dtype: DType,
    classes: usize,
    ignored: i64,
}

impl<'a> Labels<'a> {
    fn new(labels: &View<'a>, logits: &View<'_>, ignored: i64) -> Self {
        let lead = &logits.shape()[..logits.rank() - 1];
        assert_eq!(labels.shape(), lead, "one label for each row of logits");
        let classes = logits.shape()[logits.rank() - 1];
        Labels { reader: Reader::new(labels), dtype: labels.dtype(), classes, ignored }
    }

    /// The class of a row, or `None` where it is ignored.
    fn get(&self, row: usize) -> Result<Option<usize>> {
        let mut scratch = [0u64];
        let bytes = self.reader.tile(row, 1, bytemuck::cast_slice_mut(&mut scratch));
        let label: i64 =
            dispatch!(index self.dtype, T => Scalar::from_bytes(T::DTYPE, bytes).get::<T>().cast());
        if label == self.ignored {
            return Ok(None);
        }
        match usize::try_from(label) {
            Ok(class) if class < self.classes => Ok(Some(class)),
            _ => Err(Diagnostic::new("E422", format!("label {label} of row {row} is not a class"))
                .expected(format!("0..{}, or {} to ignore the row", self.classes, self.ignored))
                .found(label.to_string())),
        }
    }
}

/// The per-row loss `ln(sum(e^logits)) - logits[label]`, zero where the label is `ignore_index`. `logits` is
/// [.., V], `labels` an integer [..], `loss` a float [..] of any type. Halves compute in f32.
///
/// # Errors
/// E422 where a label is neither a class nor `ignore_index`.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn cross_entropy(
    logits: &View<'_>,
    labels: &View<'_>,
    ignore_index: i64,
    loss: &mut ViewMut<'_>,
) -> Result<()> {
    assert!(
        logits.rank() > 0 && loss.shape() == &logits.shape()[..logits.rank() - 1],
        "one loss for each row"
    );
    let labels = Labels::new(labels, logits, ignore_index);
    dispatch!(float logits.dtype(), T => forward::<T>(logits, &labels, loss))
}

fn forward<T: Float>(logits: &View<'_>, labels: &Labels<'_>, loss: &mut ViewMut<'_>) -> Result<()> {
    let (rows, count) = (row_count(logits), labels.classes);
    let dtype = loss.dtype();
    let reader = Reader::new(logits);
    let mut writer = Writer::new(loss);
    let mut scratch = Scratch::new();
    for row in 0..rows {
        let value = match labels.get(row)? {
            None => 0.0,
            Some(label) => {
                let (max, sum) = row_sum_exp::<T>(&reader, row, count, &mut scratch);
                let chosen = reader.widened::<T>(row * count + label, 1, &mut scratch)[0];
                // Each difference is small where the sum of the parts may be large.
                (sum.ln() + (max - chosen)).to_f64()
            }
        };
        writer.store(row, Scalar::from_f64(dtype, value).bytes());
    }
    Ok(())
}

/// The gradient of [`cross_entropy`]: `dlogits = (softmax(logits) - onehot(label)) dloss[row]`, zero in
/// ignored rows. `dlogits` may be written over `logits`. The workspace is of [`crate::row_workspace_bytes`].
///
/// # Errors
/// E422 where a label is neither a class nor `ignore_index`.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn cross_entropy_backward(
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
    let labels = Labels::new(labels, logits, ignore_index);
    dispatch!(float logits.dtype(), T => backward::<T>(logits, &labels, dloss, dlogits, workspace))
}

fn backward<T: Float>(
    logits: &View<'_>,
    labels: &Labels<'_>,
    dloss: &View<'_>,
    dlogits: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    let (rows, count) = (row_count(logits), labels.classes);
    let dtype = dloss.dtype();
    // Nothing of a row is borrowed any more when it is written.
    let reader = Reader::new(logits);
    let dloss = Reader::new(dloss);
    let mut writer = Writer::streaming(dlogits, &[logits]);
    let powers = Workspace::new(workspace).take::<T::Compute>(count);
    let (mut scratch, mut out_scratch) = (Scratch::new(), Scratch::new());
    let mut one: TileBytes = [0; TILE];
    for row in 0..rows {
        let bytes = dloss.tile(row, 1, bytemuck::cast_slice_mut(&mut one));
        let weight = T::Compute::from_f64(Scalar::from_bytes(dtype, bytes).to_f64());
        let Some(label) = labels.get(row)? else {
            for (start, some) in writer.tiles(count) {
                writer.widened::<T>(row * count + start, some, &mut out_scratch, |out| {
                    out.fill(T::Compute::default());
                });
            }
            continue;
        };
        let scale = weight / row_exp::<T>(&reader, row, powers, &writer, &mut scratch);
        for (start, some) in writer.tiles(count) {
            writer.widened::<T>(row * count + start, some, &mut out_scratch, |out| {
                scale_into(&powers[start..start + some], scale, out);
                if let Some(chosen) = label.checked_sub(start).and_then(|at| out.get_mut(at)) {
                    *chosen = *chosen - weight;
                }
            });
        }
    }
    Ok(())
}
